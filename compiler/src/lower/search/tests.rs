//! Searches compared with counting, and the operators built on them.

use super::super::testing::{tensor, values};
use super::super::{histogram, segment};
use super::*;
use wgfc_ir::Tensor;

fn sequence(n: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * i) / 7) as f64 * 0.5 - 3.0).collect()
}

#[test]
fn places_are_those_that_counting_finds() {
    for n in [1, 2, 7, 64, 65, 100, 255, 256, 257] {
        let s = sequence(n);
        let mut v: Vec<f64> = s.iter().map(|x| x + 0.25).collect();
        v.extend(&s);
        v.extend([f64::NEG_INFINITY, f64::INFINITY, f64::NAN, -3.0, 1e9]);
        for right in [false, true] {
            let found = values(|cx| {
                let (a, b) = (tensor(DType::F32, &[n], &s), tensor(DType::F32, &[v.len()], &v));
                let (a, b) = (cx.constant(a), cx.constant(b));
                Ok(vec![place(cx, a, b, right)?])
            });
            let behind = |v: f64| s.iter().filter(|s| if right { **s > v } else { **s >= v }).count();
            let before = |v: f64| n - behind(v);
            let counted: Vec<f64> = v.iter().map(|v| before(*v) as f64).collect();
            assert_eq!(found[0], counted, "{n} {right}");
        }
    }
}

#[test]
fn rows_have_sequences_of_their_own() {
    for n in [5, 80] {
        let rows: Vec<f64> =
            sequence(n).into_iter().chain(sequence(n).iter().map(|x| x * 2.0 + 1.0)).collect();
        let v = [0.0, 3.0, 17.5, -2.0, 100.0, 4.0];
        let found = values(|cx| {
            let (a, b) = (tensor(DType::F32, &[2, n], &rows), tensor(DType::F32, &[2, 3], &v));
            let (a, b) = (cx.constant(a), cx.constant(b));
            Ok(vec![place(cx, a, b, false)?])
        });
        let row = |r: usize, v: f64| rows[r * n..(r + 1) * n].iter().filter(|s| **s < v).count() as f64;
        let counted: Vec<f64> = v.iter().enumerate().map(|(i, v)| row(i / 3, *v)).collect();
        assert_eq!(found[0], counted);
    }
}

#[test]
fn the_last_range_has_its_end_and_others_have_none() {
    let x = [-1.0, 0.0, 0.5, 1.0, 1.999, 2.0, 3.0, 4.0, 4.001, f64::NAN];
    let found = values(|cx| {
        let (x, e) = (tensor(DType::F32, &[10, 1], &x), tensor(DType::F32, &[4], &[0.0, 1.0, 2.0, 4.0]));
        let (x, e) = (cx.constant(x), cx.constant(e));
        Ok(vec![histogram::cells(cx, x, &[e], None)?])
    });
    assert_eq!(found[0], [2.0, 2.0, 3.0]);
}

#[test]
fn empty_groups_have_what_combining_nothing_gives() {
    let data: Vec<f64> = (1..=5).map(f64::from).collect();
    let run = |how, initial| {
        let all = values(|cx| {
            let x = tensor(DType::F32, &[5], &data);
            let (begins, ends) =
                (Tensor::from_i64(vec![4], &[0, 2, 2, 3]), Tensor::from_i64(vec![4], &[2, 2, 3, 5]));
            let (x, begins, ends) = (cx.constant(x), cx.constant(begins), cx.constant(ends));
            Ok(vec![segment::reduce(cx, x, 0, [begins, ends], (how, initial))?])
        });
        all[0].clone()
    };
    use segment::Combined::{By, Mean};
    assert_eq!(run(By(ReduceOp::Sum), None), [3.0, 0.0, 3.0, 9.0]);
    assert_eq!(run(By(ReduceOp::Max), None), [2.0, f64::NEG_INFINITY, 3.0, 5.0]);
    assert_eq!(run(By(ReduceOp::Prod), Some(2.0)), [4.0, 2.0, 6.0, 40.0]);
    assert_eq!(run(Mean, Some(1.0)), [2.0, 1.0, 4.0, 5.0]);
    assert!(run(Mean, None)[1].is_nan());
}
