//! Distributions: shares of many numbers, and what must be true of each.

use super::*;
use std::collections::BTreeMap;
use wgfc_ir::eval::evaluate;
use wgfc_ir::{Border, Graph, Scalar, Tensor};

const N: usize = 20_000;

fn drawn_by(f: impl FnOnce(&mut Lowering) -> Result) -> Vec<f64> {
    let mut g = Graph::new();
    let mut cx = Lowering::new(&mut g);
    let value = f(&mut cx).unwrap_or_else(|e| panic!("{e:?}"));
    g.outputs.push(Border { name: "y".into(), value });
    let y = evaluate(&g, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    y[0].scalars().expect("it is in memory").iter().map(|s| s.as_f64()).collect()
}

fn shape() -> Vec<Dim> {
    vec![N.into()]
}

fn share(v: &[f64], f: impl Fn(f64) -> bool) -> f64 {
    v.iter().filter(|x| f(**x)).count() as f64 / v.len() as f64
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() < 0.015, "{got}, not {want}");
}

#[test]
fn shares_are_those_of_the_distribution() {
    let v = drawn_by(|cx| of(cx, shape(), DType::F32, Distribution::Exponential(2.0), [1, 2]));
    near(share(&v, |x| x > 0.5), (-1.0f64).exp());
    assert!(v.iter().all(|x| *x >= 0.0));
    let v = drawn_by(|cx| of(cx, shape(), DType::F32, Distribution::Cauchy(1.0, 3.0), [3, 4]));
    near(share(&v, |x| x < 1.0), 0.5);
    near(share(&v, |x| (-2.0..4.0).contains(&x)), 0.5);
    let v = drawn_by(|cx| of(cx, shape(), DType::I64, Distribution::Geometric(0.25), [5, 6]));
    near(share(&v, |x| x == 1.0), 0.25);
    near(share(&v, |x| x == 3.0), 0.75 * 0.75 * 0.25);
    assert!(v.iter().all(|x| *x >= 1.0));
}

#[test]
fn integers_are_even_over_their_range() {
    let v = drawn_by(|cx| integers(cx, shape(), DType::I32, (-3, 5), [7, 8]));
    for n in -3..5 {
        near(share(&v, |x| x == f64::from(n)), 0.125);
    }
    let far = i64::MAX / 2;
    let v = drawn_by(|cx| integers(cx, shape(), DType::I64, (-far, far), [9, 10]));
    near(share(&v, |x| x < 0.0), 0.5);
}

#[test]
fn a_permutation_has_every_number_once() {
    let mut v = drawn_by(|cx| permutation(cx, 1000i64.into(), DType::I64, [1, 1]));
    let moved = v.iter().enumerate().filter(|(i, x)| *i as f64 != **x).count();
    v.sort_by(f64::total_cmp);
    assert!(moved > 900 && v.iter().enumerate().all(|(i, x)| i as f64 == *x));
}

#[test]
fn what_is_drawn_once_follows_the_weights() {
    let weights = [0.5f64, 0.3, 0.2, 0.0];
    let row: Vec<Scalar> = weights.iter().map(|w| Scalar::from_f64(DType::F32, w.ln())).collect();
    let rows: Vec<Scalar> = std::iter::repeat_n(row, 5000).flatten().collect();
    let v = drawn_by(|cx| {
        let x = cx.constant(Tensor::from_scalars(DType::F32, vec![5000, 4], &rows));
        distinct(cx, x, &3i64.into(), DType::I64, [2, 3])
    });
    let first: Vec<f64> = v.chunks(3).map(|r| r[0]).collect();
    for (class, w) in weights.iter().enumerate() {
        near(share(&first, |x| x == class as f64), *w);
    }
    assert!(v.chunks(3).all(|r| r[0] != r[1] && r[1] != r[2] && r[0] != r[2] && !r.contains(&3.0)));
}
