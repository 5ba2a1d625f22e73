//! Sorting, running combinations and runs of equal elements, compared with plain loops.

use super::super::testing::{tensor, values};
use super::super::{scan, unique};
use super::*;
use wgfc_ir::Tensor;

/// Numbers with several duplicates and one NaN.
fn numbers() -> Vec<f64> {
    let mut v: Vec<f64> = (0..23).map(|i| f64::from(i * 7 % 11) - 4.0).collect();
    v[17] = f64::NAN;
    v
}

#[test]
fn the_middle_is_without_what_is_no_number_or_it_is_that() {
    let x = numbers();
    let run = |skip| {
        values(|cx| {
            let x = cx.constant(tensor(DType::F32, &[23], &x));
            Ok(median(cx, x, 0, skip)?.to_vec())
        })
    };
    let mut sorted: Vec<f64> = x.iter().copied().filter(|v| !v.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    assert_eq!(run(true)[0], [sorted[(sorted.len() - 1) / 2]]);
    let with = run(false);
    assert!(with[0][0].is_nan() && with[1] == [17.0]);
}

#[test]
fn the_most_frequent_is_the_smallest_of_them() {
    let found = values(|cx| {
        let x = cx.constant(Tensor::from_i64(vec![2, 6], &[3, 1, 3, 1, 2, 5, 4, 4, 4, 0, 0, 0]));
        Ok(mode(cx, x, 1)?.to_vec())
    });
    assert_eq!(found, [vec![1.0, 0.0], vec![3.0, 5.0]]);
}

#[test]
fn the_largest_so_far_is_at_its_last_place() {
    let x = [1.0, 3.0, 3.0, 2.0, f64::NAN, 9.0, f64::NAN];
    let found = values(|cx| {
        let x = cx.constant(tensor(DType::F32, &[7], &x));
        Ok(scan::extreme(cx, x, 0, ReduceOp::Max)?.to_vec())
    });
    assert_eq!(found[0][..4], [1.0, 3.0, 3.0, 3.0]);
    assert!(found[0][4..].iter().all(|v| v.is_nan()));
    assert_eq!(found[1], [0.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]);
}

#[test]
fn sums_of_exponentials_stay_finite() {
    let x = [-300.0, 2.0, 400.0, -50.0, 401.0, f64::NEG_INFINITY];
    let found = values(|cx| {
        let x = cx.constant(tensor(DType::F32, &[6], &x));
        Ok(vec![scan::log_sum_exp(cx, x, 0)?])
    });
    let mut sum = f64::NEG_INFINITY;
    for (x, y) in x.iter().zip(&found[0]) {
        let high = sum.max(*x);
        sum = high + ((sum - high).exp() + (x - high).exp()).ln();
        assert!((sum - y).abs() < 1e-4, "{sum} {y}");
    }
}

#[test]
fn runs_of_equal_neighbours_are_one() {
    let x = [1.0, 1.0, 2.0, 1.0, f64::NAN, f64::NAN, 3.0, 3.0, 3.0];
    let found = values(|cx| {
        let x = cx.constant(tensor(DType::F32, &[9], &x));
        let u = unique::consecutive(cx, x, None)?;
        Ok(vec![u.values, u.inverse, u.counts])
    });
    assert_eq!(found[1], [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0]);
    assert_eq!(found[2], [2.0, 1.0, 1.0, 1.0, 1.0, 3.0]);
    assert_eq!((found[0][0], found[0][5]), (1.0, 3.0));
}
