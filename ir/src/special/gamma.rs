//! The gamma function and related functions.

use std::f64::consts::PI;

/// The Bernoulli numbers B₂ to B₂₀.
const BERNOULLI: [f64; 10] = [
    1.0 / 6.0,
    -1.0 / 30.0,
    1.0 / 42.0,
    -1.0 / 30.0,
    5.0 / 66.0,
    -691.0 / 2730.0,
    7.0 / 6.0,
    -3617.0 / 510.0,
    43867.0 / 798.0,
    -174_611.0 / 330.0,
];

pub(super) fn log_gamma(x: f64) -> f64 {
    if x.is_infinite() { f64::INFINITY } else { libm::lgamma(x) }
}

/// The digamma function: above 15 by the asymptotic series (DLMF 5.11.2), below by the recurrence, for negative x by
/// reflection.
pub(super) fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        let f = x.fract();
        return if f == 0.0 || x.is_infinite() { f64::NAN } else { digamma(1.0 - x) - PI / (PI * f).tan() };
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < 15.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let series: f64 = BERNOULLI.iter().zip(1..).map(|(b, k)| b / (f64::from(2 * k) * x.powi(2 * k))).sum();
    sum + x.ln() - 0.5 / x - series
}

/// The Hurwitz zeta function: the sum of the first terms, and the Euler-Maclaurin formula for the rest (DLMF 25.11.5).
/// For negative q the terms have both signs: ζ(s, q) = ζ(s, f) ± (ζ(s, g) − ζ(s, 1 − q)), where f and g are the distances of q from the
/// integers below and above it.
pub(super) fn zeta(s: f64, q: f64) -> f64 {
    if s == 1.0 {
        return f64::INFINITY;
    }
    if s.is_nan() || q.is_nan() || s < 1.0 {
        return f64::NAN;
    }
    if q <= 0.0 {
        if q == q.floor() {
            return f64::INFINITY;
        }
        if s != s.floor() {
            return f64::NAN;
        }
        let sign = if s % 2.0 == 0.0 { 1.0 } else { -1.0 };
        return zeta(s, q - q.floor()) + sign * (zeta(s, q.ceil() - q) - zeta(s, 1.0 - q));
    }
    if q.is_infinite() || s.is_infinite() {
        return if s.is_infinite() && q <= 1.0 { q.powf(-s) } else { 0.0 };
    }
    const FIRST: i32 = 20;
    let mut sum: f64 = (0..FIRST).map(|k| (q + f64::from(k)).powf(-s)).sum();
    let a = q + f64::from(FIRST);
    let last = a.powf(-s);
    sum += a * last / (s - 1.0) + last / 2.0;
    let mut factor = s / 2.0 * last / a;
    for (b, k) in BERNOULLI.iter().zip(1..) {
        sum += b * factor;
        let k = f64::from(2 * k);
        factor *= (s + k - 1.0) * (s + k) / ((k + 1.0) * (k + 2.0) * a * a);
    }
    sum
}

/// The lower or the upper incomplete gamma function.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Lower,
    Upper,
}

pub(super) fn gamma_p(a: f64, x: f64) -> f64 {
    incomplete(a, x, Part::Lower)
}
pub(super) fn gamma_q(a: f64, x: f64) -> f64 {
    incomplete(a, x, Part::Upper)
}

/// A regularised incomplete gamma function: by the series (DLMF 8.7.1) for x below 1 or `a`, else by the continued
/// fraction (8.9.2).
fn incomplete(a: f64, x: f64, part: Part) -> f64 {
    let of = |p: f64| if part == Part::Lower { p } else { 1.0 - p };
    if a.is_nan() || x.is_nan() || a < 0.0 || x < 0.0 || (a == 0.0 && x == 0.0) {
        return f64::NAN;
    }
    if a.is_infinite() {
        return if x.is_infinite() { f64::NAN } else { of(0.0) };
    }
    if a == 0.0 || x.is_infinite() {
        return of(1.0);
    }
    if x == 0.0 {
        return of(0.0);
    }
    let log = a * x.ln() - x - libm::lgamma(a + 1.0);
    if x < 1.0 || x < a {
        if part == Part::Upper && a < 1.0 {
            // P may be near 1, where 1 − P is not accurate: Q = 1 − xᵃ/Γ(1 + a) − xᵃ/Γ(1 + a)·Σ a·(−x)ⁿ/(n!·(a + n)).
            let front = a * x.ln() - libm::lgamma(a + 1.0);
            let (mut term, mut sum) = (1.0, 0.0);
            for n in 1..200 {
                term *= -x / f64::from(n);
                sum += a * term / (a + f64::from(n));
            }
            return -libm::expm1(front) - front.exp() * sum;
        }
        let (mut term, mut sum) = (1.0, 1.0);
        for n in 1..1_000_000 {
            term *= x / (a + f64::from(n));
            sum += term;
            if term < 1e-17 * sum {
                break;
            }
        }
        return of(log.exp() * sum);
    }
    // Lentz's method.
    let mut b = x + 1.0 - a;
    let mut c = 1e300;
    let mut d = 1.0 / b;
    let mut h = d;
    for n in 1..1_000_000 {
        let n = f64::from(n);
        let an = n * (a - n);
        b += 2.0;
        d = 1.0 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (d * c - 1.0).abs() < 1e-16 {
            break;
        }
    }
    let q = a * log.exp() * h;
    if part == Part::Upper { q } else { 1.0 - q }
}
