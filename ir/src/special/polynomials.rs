//! Orthogonal polynomials by their recurrences (DLMF 18.9).

/// The highest supported degree.
const MOST: f64 = 4096.0;
/// The highest degree of Hermite polynomials, which overflow f32 nearly everywhere above it.
const MOST_HERMITE: f64 = 128.0;

/// Evaluates degree `n` by a recurrence, from the values of degrees 0 and 1; `next` computes the next degree from
/// degrees k − 1 and k.
fn recur(n: f64, most: f64, first: f64, next: impl Fn(f64, f64, f64) -> f64) -> f64 {
    let n = n.trunc();
    if n < 0.0 {
        return 0.0;
    }
    if n.is_nan() || n > most {
        return f64::NAN;
    }
    let (mut p, mut q) = (1.0, first);
    for k in 0..n as u32 {
        (p, q) = (q, next(f64::from(k) + 1.0, p, q));
    }
    p
}

fn chebyshev(x: f64, n: f64, first: f64) -> f64 {
    recur(n, MOST, first, |_, p, q| 2.0 * x * q - p)
}
pub(super) fn chebyshev_t(x: f64, n: f64) -> f64 {
    chebyshev(x, n, x)
}
pub(super) fn chebyshev_u(x: f64, n: f64) -> f64 {
    chebyshev(x, n, 2.0 * x)
}
pub(super) fn chebyshev_v(x: f64, n: f64) -> f64 {
    chebyshev(x, n, 2.0 * x - 1.0)
}
pub(super) fn chebyshev_w(x: f64, n: f64) -> f64 {
    chebyshev(x, n, 2.0 * x + 1.0)
}
pub(super) fn hermite_h(x: f64, n: f64) -> f64 {
    recur(n, MOST_HERMITE, 2.0 * x, |k, p, q| 2.0 * (x * q - k * p))
}
pub(super) fn hermite_he(x: f64, n: f64) -> f64 {
    recur(n, MOST_HERMITE, x, |k, p, q| x * q - k * p)
}
pub(super) fn laguerre_l(x: f64, n: f64) -> f64 {
    recur(n, MOST, 1.0 - x, |k, p, q| ((2.0 * k + 1.0 - x) * q - k * p) / (k + 1.0))
}
pub(super) fn legendre_p(x: f64, n: f64) -> f64 {
    recur(n, MOST, x, |k, p, q| ((2.0 * k + 1.0) * x * q - k * p) / (k + 1.0))
}
