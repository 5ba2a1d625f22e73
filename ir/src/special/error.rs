//! The error function and related functions.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

const SQRT_PI: f64 = 1.772_453_850_905_516;

pub(super) use libm::erfc;

/// Above 25 it is computed by the asymptotic series (DLMF 7.12.1).
pub(super) fn erfcx(x: f64) -> f64 {
    if x < 25.0 {
        return (x * x).exp() * erfc(x);
    }
    let t = 1.0 / (2.0 * x * x);
    super::horner(t, &[105.0, -15.0, 3.0, -1.0, 1.0]) / (x * SQRT_PI)
}

/// The `y` with erfc(y) = q, for 0 < q ≤ 1, by Newton's method from a lower bound.
fn erfc_inverse(q: f64) -> f64 {
    // The logarithm of erfc is concave, so no step from below overshoots.
    let mut y = 0.0;
    for _ in 0..200 {
        // erfc(y) in its scaled form, which does not underflow.
        let scaled = erfcx(y);
        let step = (scaled.ln() - y * y - q.ln()) * scaled * SQRT_PI / 2.0;
        y += step;
        if step.abs() <= 1e-15 * y {
            break;
        }
    }
    y
}

pub(super) fn erfinv(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() || a > 1.0 {
        return f64::NAN;
    }
    if a == 1.0 {
        return x * f64::INFINITY;
    }
    if a > 0.5 {
        return erfc_inverse(1.0 - a).copysign(x);
    }
    let mut y = x * SQRT_PI / 2.0;
    for _ in 0..20 {
        y -= (libm::erf(y) - x) * SQRT_PI / 2.0 * (y * y).exp();
    }
    y
}

pub(super) fn ndtri(p: f64) -> f64 {
    if p.is_nan() || !(0.0..=1.0).contains(&p) {
        return f64::NAN;
    }
    if p == 0.0 || p == 1.0 {
        return if p == 0.0 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    if p < 0.25 { -SQRT_2 * erfc_inverse(2.0 * p) } else { SQRT_2 * erfinv(2.0 * p - 1.0) }
}

pub(super) fn log_ndtr(x: f64) -> f64 {
    let t = x * FRAC_1_SQRT_2;
    if x < -1.0 { (erfcx(-t) / 2.0).ln() - t * t } else { libm::log1p(-erfc(t) / 2.0) }
}
