//! Elementary functions of f32 for [`Prepared`](super::Prepared) graphs: polynomials without branches, which compilers make vector
//! instructions of. Their errors are a few units in the last place.

use crate::scalar::UnaryOp;

/// Adding and subtracting it rounds small numbers to integers.
const ROUND: f32 = 12_582_912.0;

#[inline(always)]
fn polynomial(x: f32, coefficients: &[f32]) -> f32 {
    coefficients.iter().fold(0.0, |sum, c| sum * x + c)
}

/// eˣ by Cephes' `expf`: `x = n ln 2 + r`, and a polynomial in `r`.
#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = polynomial(r, &[1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5]);
    let y = p * r * r + r + 1.0;
    // Two factors, as 2ⁿ itself may be no normal number.
    let n = n as i32;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    y * power(n >> 1) * power(n - (n >> 1))
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    (if x >= 0.0 { 1.0 } else { e }) / (1.0 + e)
}

/// tanh x by Eigen's rational function.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let c = if x < -9.0 { -9.0 } else { x };
    let c = if c > 9.0 { 9.0 } else { c };
    let s = c * c;
    let p = polynomial(
        s,
        &[
            -2.760_768_4e-16,
            2.000_188e-13,
            -8.604_672e-11,
            5.122_297e-8,
            1.485_722_4e-5,
            6.372_619e-4,
            4.893_524_6e-3,
        ],
    );
    let q = polynomial(s, &[1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3]);
    if x.abs() < 4e-4 { x } else { c * p / q }
}

/// erf x by two polynomials of N. Juffa's.
#[inline(always)]
fn erf(x: f32) -> f32 {
    let (t, s) = (x.abs(), x * x);
    let small = polynomial(
        s,
        &[-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1],
    );
    let t = if t > 4.0 { 4.0 } else { t };
    let large = polynomial(
        t,
        &[
            -1.728_534_7e-5,
            3.831_971_3e-4,
            -3.883_964_4e-3,
            2.425_462_2e-2,
            -1.067_778_8e-1,
            -6.348_467e-1,
            -1.287_175_1e-1,
        ],
    );
    let large = (1.0 - exp(large * t - t)).copysign(x);
    if x.abs() > 0.927_734_4 { large } else { small * x + x }
}

/// `out = op(x)`; false for operators that are not here.
pub(super) fn unary(op: UnaryOp, x: &[f32], out: &mut [f32]) -> bool {
    fn each(x: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
        out.iter_mut().zip(x).for_each(|(o, x)| *o = f(*x));
    }
    match op {
        UnaryOp::Exp => each(x, out, exp),
        UnaryOp::Sigmoid => each(x, out, sigmoid),
        UnaryOp::Tanh => each(x, out, tanh),
        UnaryOp::Erf => each(x, out, erf),
        _ => return false,
    }
    true
}

/// A fold of a row in eight lanes, as its order does not matter.
fn fold(row: &[f32], first: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [first; 8];
    let chunks = row.chunks_exact(8);
    let rest = chunks.remainder();
    chunks.for_each(|c| lanes.iter_mut().zip(c).for_each(|(l, x)| *l = f(*l, *x)));
    lanes.into_iter().chain(rest.iter().copied()).fold(first, f)
}

fn sum(row: &[f32]) -> f32 {
    let mut lanes = [0.0; 8];
    let chunks = row.chunks_exact(8);
    let rest = chunks.remainder();
    chunks.for_each(|c| lanes.iter_mut().zip(c).for_each(|(l, x)| *l += x));
    lanes.iter().chain(rest).sum()
}

/// Softmax of a row, or its logarithm.
pub(super) fn softmax(row: &mut [f32], log: bool) {
    let max = fold(row, f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
    // A NaN reaches all results through the sum.
    let mut powers = [0f32; 64];
    let mut total = 0.0;
    for strip in row.chunks_mut(64) {
        let powers = &mut powers[..strip.len()];
        powers.iter_mut().zip(&*strip).for_each(|(p, x)| *p = exp(x - max));
        total += sum(powers);
        if !log {
            strip.copy_from_slice(powers);
        }
    }
    let (scale, shift) = (1.0 / total, max + total.ln());
    row.iter_mut().for_each(|x| *x = if log { *x - shift } else { *x * scale });
}

/// A row less its mean, if `centred`, divided by the root of its mean square.
pub(super) fn norm(row: &mut [f32], centred: bool, epsilon: f32) {
    let n = row.len() as f32;
    if centred {
        let mean = sum(row) / n;
        row.iter_mut().for_each(|x| *x -= mean);
    }
    let mut squares = [0f32; 64];
    let mut total = 0.0;
    for strip in row.chunks(64) {
        let squares = &mut squares[..strip.len()];
        squares.iter_mut().zip(strip).for_each(|(s, x)| *s = x * x);
        total += sum(squares);
    }
    let scale = 1.0 / (total / n + epsilon).sqrt();
    row.iter_mut().for_each(|x| *x *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_as_precise_as_they_say() {
        let points: Vec<f32> = (-12_000..12_000).map(|i| i as f32 * 0.007_3 + 1e-5).collect();
        let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
        let functions: [(UnaryOp, &dyn Fn(f64) -> f64); 4] = [
            (UnaryOp::Exp, &f64::exp),
            (UnaryOp::Sigmoid, &logistic),
            (UnaryOp::Tanh, &f64::tanh),
            (UnaryOp::Erf, &libm::erf),
        ];
        for (op, exact) in functions {
            let mut out = vec![0.0; points.len()];
            assert!(unary(op, &points, &mut out));
            for (x, y) in points.iter().zip(&out) {
                let want = exact(f64::from(*x));
                let error = (f64::from(*y) - want).abs();
                assert!(error <= 1e-6 * want.abs() + 1e-37, "{op:?}({x}) is {y}, not {want}");
            }
        }
        let mut out = [0.0; 4];
        unary(UnaryOp::Exp, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0], &mut out);
        assert!(out[0].is_nan() && out[1..] == [f32::INFINITY, 0.0, 1.0]);
        unary(UnaryOp::Erf, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0], &mut out);
        assert!(out[0].is_nan() && out[1..] == [1.0, -1.0, 0.0]);
        unary(UnaryOp::Tanh, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0], &mut out);
        assert!(out[0].is_nan() && out[1] >= 0.999_999 && out[2] <= -0.999_999);
    }

    #[test]
    fn rows_are_normalised() {
        let row: Vec<f32> = (0..131).map(|i| (i as f32 * 0.37).sin() * 5.0).collect();
        let mut powers = row.clone();
        softmax(&mut powers, false);
        assert!((powers.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        let mut logarithms = row.clone();
        softmax(&mut logarithms, true);
        assert!(powers.iter().zip(&logarithms).all(|(p, l)| (p.ln() - l).abs() < 1e-4));
        let mut even = row;
        norm(&mut even, true, 0.0);
        assert!(even.iter().sum::<f32>().abs() < 1e-3);
        assert!((even.iter().map(|x| x * x).sum::<f32>() / 131.0 - 1.0).abs() < 1e-4);
    }
}
