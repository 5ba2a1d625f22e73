//! Results of the evaluator; `compiler/tests/it/special.rs` and the self-test compare the kernels with it.

use super::*;
use std::collections::BTreeMap;
use wgfc_ir::eval::evaluate;
use wgfc_ir::{Border, Graph, Tensor};

fn constants(cx: &mut Lowering, xs: &[(DType, &[f64])]) -> Vec<Value> {
    let tensor = |(dtype, x): &(DType, &[f64])| {
        let v: Vec<Scalar> = x.iter().map(|x| Scalar::from_f64(*dtype, *x)).collect();
        Tensor::from_scalars(*dtype, vec![v.len()], &v)
    };
    xs.iter().map(|x| cx.constant(tensor(x))).collect()
}

/// The values of a function applied to constants.
fn values(xs: &[(DType, &[f64])], f: impl FnOnce(&mut Lowering, &[Value]) -> Result) -> Vec<f64> {
    let mut g = Graph::new();
    let mut cx = Lowering::new(&mut g);
    let xs = constants(&mut cx, xs);
    let value = f(&mut cx, &xs).unwrap();
    g.outputs.push(Border { name: "y".into(), value });
    wgfc_ir::verify::verify(&g).unwrap();
    let y = evaluate(&g, &BTreeMap::new()).unwrap();
    y[0].scalars().unwrap().iter().map(|s| s.as_f64()).collect()
}

fn near(got: &[f64], want: &[f64]) {
    let same = |(g, w): (&f64, &f64)| {
        (g - w).abs() <= 1e-6 * w.abs().max(1e-3) || g == w || (g.is_nan() && w.is_nan())
    };
    assert!(got.len() == want.len() && got.iter().zip(want).all(same), "{got:?}, not {want:?}");
}

use DType::{BF16, F16, F32, I32, I64, U8};
const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

#[test]
fn compositions() {
    let x: &[f64] = &[0.5, 2.25, -1.5];
    // ψ, ψ′ and ψ″ by DLMF 5.15, computed with mpmath.
    near(&values(&[(F32, x)], |cx, v| polygamma(cx, 0, v[0])), &[-1.963510026, 0.5725464666, 0.7031566406]);
    near(&values(&[(F32, x)], |cx, v| polygamma(cx, 1, v[0])), &[4.934802201, 0.5573291545, 9.379246645]);
    near(&values(&[(F32, x)], |cx, v| polygamma(cx, 2, v[0])), &[-16.82879664, -0.3037399375, -0.2362040516]);
    near(&values(&[(F32, &[0.25, 0.0, 0.75])], |cx, v| sinc(cx, v[0])), &[0.900316316, 1.0, 0.300105439]);
    near(&values(&[(F32, &[0.0, -10.0, INF])], |cx, v| ndtr(cx, v[0])), &[0.5, 7.61985302e-24, 1.0]);
    near(
        &values(&[(F32, &[0.5, 0.0, -1.0, NAN])], |cx, v| entropy(cx, v[0])),
        &[0.346573590, 0.0, -INF, NAN],
    );
    let (a, b): (&[f64], &[f64]) = (&[0.0, 0.0, 2.0, 1.0], &[0.0, NAN, 0.0, -1.0]);
    near(
        &values(&[(F32, a), (F32, b)], |cx, v| x_log(cx, v[0], v[1], Logarithm::Of)),
        &[0.0, NAN, -INF, NAN],
    );
    near(
        &values(&[(F32, a), (F32, b)], |cx, v| x_log(cx, v[0], v[1], Logarithm::OfOnePlus)),
        &[0.0, NAN, 0.0, -INF],
    );
    let (a, b): (&[f64], &[f64]) = (&[1.0, -INF, INF, 1000.0], &[2.0, -INF, INF, 0.0]);
    near(
        &values(&[(F32, a), (F32, b)], |cx, v| log_add_exp(cx, v[0], v[1], Base::E)),
        &[2.313261688, -INF, INF, 1000.0],
    );
    near(
        &values(&[(F32, a), (F32, b)], |cx, v| log_add_exp(cx, v[0], v[1], Base::Two)),
        &[2.584962501, -INF, INF, 1000.0],
    );
    let degrees: &[f64] = &[3.0, 0.0, -1.0];
    near(
        &values(&[(F32, &[0.25, 0.5, 0.5]), (F32, degrees)], |cx, v| {
            shifted(cx, Special2::ChebyshevT, v[0], v[1])
        }),
        &[1.0, 1.0, 0.0],
    );
}

#[test]
fn signs_and_neighbours() {
    let x: &[f64] = &[0.0, -0.0, 1.5, -2.0, -INF];
    for t in [F32, F16, BF16] {
        near(&values(&[(t, x)], |cx, v| sign_bit(cx, v[0])), &[0.0, 1.0, 0.0, 1.0, 1.0]);
        let signs: &[f64] = &[-0.0, 1.0, -3.0, NAN, 0.0];
        near(&values(&[(t, x), (t, signs)], |cx, v| copy_sign(cx, v[0], v[1])), &[0.0, 0.0, -1.5, 2.0, INF]);
    }
    near(&values(&[(I32, &[-3.0, 0.0])], |cx, v| sign_bit(cx, v[0])), &[1.0, 0.0]);
    near(&values(&[(U8, &[3.0, 0.0])], |cx, v| sign_bit(cx, v[0])), &[0.0, 0.0]);
    for (t, ulp) in [(F32, 2f64.powi(-23)), (F16, 2f64.powi(-10)), (BF16, 2f64.powi(-7))] {
        let (a, b): (&[f64], &[f64]) = (&[1.0, 1.0, -1.0, 1.0, NAN], &[2.0, 0.0, -2.0, 1.0, 1.0]);
        let got = values(&[(t, a), (t, b)], |cx, v| next_after(cx, v[0], v[1]));
        assert_eq!(&got[..4], &[1.0 + ulp, 1.0 - ulp / 2.0, -1.0 - ulp, 1.0]);
        assert!(got[4].is_nan());
    }
    let got = values(&[(F32, &[0.0, -0.0]), (F32, &[-1.0, INF])], |cx, v| next_after(cx, v[0], v[1]));
    assert_eq!(got, [-f64::from(f32::from_bits(1)), f64::from(f32::from_bits(1))]);
}

#[test]
fn mantissas_and_divisors() {
    for t in [F32, F16, BF16] {
        let x: &[f64] = &[0.0, 6.0, -0.375, INF, 1.0];
        near(
            &values(&[(t, x)], |cx, v| Ok(mantissa_and_exponent(cx, v[0])?.0)),
            &[0.0, 0.75, -0.75, INF, 0.5],
        );
        near(&values(&[(t, x)], |cx, v| Ok(mantissa_and_exponent(cx, v[0])?.1)), &[0.0, 3.0, -1.0, 0.0, 1.0]);
    }
    near(&values(&[(F32, &[1e-40])], |cx, v| Ok(mantissa_and_exponent(cx, v[0])?.1)), &[-132.0]);
    for t in [I32, I64] {
        let (a, b): (&[f64], &[f64]) = (&[12.0, -18.0, 0.0, 0.0, 7.0], &[18.0, 12.0, 5.0, 0.0, -3.0]);
        near(&values(&[(t, a), (t, b)], |cx, v| gcd(cx, v[0], v[1])), &[6.0, 6.0, 5.0, 0.0, 1.0]);
        near(&values(&[(t, a), (t, b)], |cx, v| lcm(cx, v[0], v[1])), &[36.0, 36.0, 0.0, 0.0, 21.0]);
    }
}

#[test]
fn what_has_no_such_function_is_refused() {
    let mut g = Graph::new();
    let mut cx = Lowering::new(&mut g);
    let v = constants(&mut cx, &[(I32, &[1.0]), (F32, &[1.0]), (F16, &[1.0]), (DType::F64, &[1.0])]);
    assert!(function(&mut cx, Special::Erfinv, v[0]).is_err());
    assert!(function2(&mut cx, Special2::Hypot, v[1], v[2]).is_err());
    assert!(polygamma(&mut cx, -1, v[1]).is_err());
    assert!(gcd(&mut cx, v[0], v[1]).is_err());
    assert!(next_after(&mut cx, v[3], v[3]).is_err());
}
