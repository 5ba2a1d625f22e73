//! Bessel and Airy functions.

use super::horner;
use std::f64::consts::PI;

pub(super) fn j0(x: f64) -> f64 {
    if x.is_infinite() { f64::NAN } else { libm::j0(x) }
}
pub(super) fn j1(x: f64) -> f64 {
    if x.is_infinite() { f64::NAN } else { libm::j1(x) }
}
pub(super) fn y0(x: f64) -> f64 {
    if x < 0.0 || x.is_infinite() { f64::NAN } else { libm::y0(x) }
}
pub(super) fn y1(x: f64) -> f64 {
    if x < 0.0 || x.is_infinite() { f64::NAN } else { libm::y1(x) }
}

pub(super) fn spherical_j0(x: f64) -> f64 {
    if x.is_infinite() {
        0.0
    } else if x.abs() < 1e-4 {
        1.0 - x * x / 6.0
    } else {
        x.sin() / x
    }
}

/// Iᵥ(x)·e⁻ˣ for x ≥ 0 and v of 0 or 1: by the power series (DLMF 10.25.2), whose terms all have the same sign, and
/// for large x by the asymptotic series (10.40.1).
fn i_scaled(v: f64, x: f64) -> f64 {
    if x.is_nan() || x.is_infinite() {
        return if x.is_nan() { x } else { 0.0 };
    }
    let mut term = 1.0;
    let mut sum = 1.0;
    if x < 30.0 {
        let z = x * x / 4.0;
        for k in 1..200 {
            let k = f64::from(k);
            term *= z / (k * (k + v));
            sum += term;
            if term < 1e-17 * sum {
                break;
            }
        }
        return sum * (x / 2.0).powf(v) * (-x).exp();
    }
    for k in 1..30 {
        let odd = f64::from(2 * k - 1);
        term *= -(4.0 * v * v - odd * odd) / (8.0 * x * f64::from(k));
        sum += term;
    }
    sum / (2.0 * PI * x).sqrt()
}
pub(super) fn i0e(x: f64) -> f64 {
    i_scaled(0.0, x.abs())
}
pub(super) fn i1e(x: f64) -> f64 {
    i_scaled(1.0, x.abs()).copysign(x)
}
pub(super) fn i0(x: f64) -> f64 {
    if x.is_infinite() { f64::INFINITY } else { i0e(x) * x.abs().exp() }
}
pub(super) fn i1(x: f64) -> f64 {
    if x.is_infinite() { x } else { i1e(x) * x.abs().exp() }
}

/// Kᵥ(x)·eˣ, the integral of e^(x − x·cosh t)·cosh vt (DLMF 10.32.9) by the trapezoidal rule, which converges exponentially.
fn k_scaled(v: f64, x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 || x.is_infinite() {
        return if x == 0.0 { f64::INFINITY } else { 0.0 };
    }
    // For large x, the width of the integrand is proportional to 1/√x.
    let h = 0.125 / (1.0 + x / 16.0).sqrt();
    let mut sum = 0.5;
    for k in 1..20_000 {
        let t = h * f64::from(k);
        let s = (t / 2.0).sinh();
        let term = (-2.0 * x * s * s).exp() * (v * t).cosh();
        sum += term;
        if term < 1e-17 * sum {
            break;
        }
    }
    sum * h
}
pub(super) fn k0e(x: f64) -> f64 {
    k_scaled(0.0, x)
}
pub(super) fn k1e(x: f64) -> f64 {
    k_scaled(1.0, x)
}
pub(super) fn k0(x: f64) -> f64 {
    if x.is_infinite() && x > 0.0 { 0.0 } else { k0e(x) * (-x).exp() }
}
pub(super) fn k1(x: f64) -> f64 {
    if x.is_infinite() && x > 0.0 { 0.0 } else { k1e(x) * (-x).exp() }
}

/// Computed from K of order ⅓ (DLMF 9.6.2), the Maclaurin series (9.4.1), and the asymptotic expansion (9.7.9).
pub(super) fn airy_ai(x: f64) -> f64 {
    if x.is_nan() || x.is_infinite() {
        return f64::NAN;
    }
    let zeta = 2.0 / 3.0 * x.abs().powf(1.5);
    if x > 2.0 {
        return (x / 3.0).sqrt() / PI * k_scaled(1.0 / 3.0, zeta) * (-zeta).exp();
    }
    if x > -8.0 {
        let (mut f, mut g, z) = (1.0, x, x * x * x);
        let (mut sum_f, mut sum_g) = (f, g);
        for k in 1..60 {
            let k = 3.0 * f64::from(k);
            f *= z / (k * (k - 1.0));
            g *= z / (k * (k + 1.0));
            sum_f += f;
            sum_g += g;
        }
        return 0.355_028_053_887_817_2 * sum_f - 0.258_819_403_792_806_8 * sum_g;
    }
    // The coefficients u₀ to u₉ of DLMF 9.7.2.
    let mut u = [1.0; 10];
    for k in 1..10 {
        let n = k as f64;
        u[k] = u[k - 1] * (6.0 * n - 5.0) * (6.0 * n - 3.0) * (6.0 * n - 1.0) / (216.0 * n * (2.0 * n - 1.0));
    }
    let z = -1.0 / (zeta * zeta);
    let p = horner(z, &[u[8], u[6], u[4], u[2], u[0]]);
    let q = horner(z, &[u[9], u[7], u[5], u[3], u[1]]) / zeta;
    let (s, c) = (zeta - PI / 4.0).sin_cos();
    (c * p + s * q) / (PI.sqrt() * (-x).sqrt().sqrt())
}
