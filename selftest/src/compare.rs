//! Whether two tensors agree.

use wgfc_ir::{DType, Scalar, Tensor};

/// The tolerance of a comparison of floats: `|a − b| ≤ atol + rtol·|b|`.
///
/// ```
/// use wgfc_ir::Tensor;
/// use wgfc_selftest::relative_error;
/// let (a, b) = (Tensor::from_f32(vec![1], &[1.0]), Tensor::from_f32(vec![1], &[1.001]));
/// println!("{:?}", relative_error(&a, &b));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// The relative tolerance.
    pub rtol: f64,
    /// The absolute tolerance.
    pub atol: f64,
}

impl Tolerance {
    /// The tolerance, widened to at least one rounding to `dtype`. Integers and floats of at most 8 bits must be equal.
    fn of(self, dtype: DType) -> Tolerance {
        let (rtol, atol) = match dtype {
            DType::F32 | DType::F64 => (0.0, 0.0),
            DType::F16 => (2e-3, 1e-3),
            DType::BF16 => (1.6e-2, 1e-2),
            _ => return Tolerance { rtol: 0.0, atol: 0.0 },
        };
        Tolerance { rtol: self.rtol.max(rtol), atol: self.atol.max(atol) }
    }
}

/// Compares two tensors. NaN equals NaN, and infinities must match.
///
/// # Errors
/// The first difference, and the number of elements that differ.
pub fn equal(got: &Tensor, want: &Tensor, tolerance: Tolerance) -> Result<(), String> {
    if got.dtype != want.dtype {
        return Err(format!("element type {} instead of {}", got.dtype, want.dtype));
    }
    if got.shape != want.shape {
        return Err(format!("shape {:?} instead of {:?}", got.shape, want.shape));
    }
    let t = tolerance.of(want.dtype);
    let (Some(a), Some(b)) = (got.scalars(), want.scalars()) else { return Err("values are absent".into()) };
    let differs = |i: &usize| {
        let (x, y) = (a[*i], b[*i]);
        if !want.dtype.is_float() {
            return x != y;
        }
        let (x, y) = (x.as_f64(), y.as_f64());
        let near = (x - y).abs() <= t.atol + t.rtol * y.abs();
        !(x == y || (x.is_nan() && y.is_nan()) || (near && x.is_finite() && y.is_finite()))
    };
    let wrong: Vec<usize> = (0..b.len()).filter(differs).collect();
    match wrong.first() {
        None => Ok(()),
        Some(i) => Err(format!(
            "{} of {} elements of {}{:?} differ, the first at {:?}: {} instead of {}{}",
            wrong.len(),
            b.len(),
            want.dtype,
            want.shape,
            position(*i, &want.shape),
            a[*i],
            b[*i],
            if beyond_f32(b[*i]) { " (beyond the range of f32, in which f64 is computed)" } else { "" }
        )),
    }
}

fn beyond_f32(s: Scalar) -> bool {
    s.dtype == DType::F64 && s.as_f64().is_finite() && s.as_f64().abs() > f64::from(f32::MAX)
}

/// `‖a − b‖ / ‖b‖`; NaN if either tensor contains NaN, and 0 if both are zero.
///
/// # Errors
/// The types or shapes differ.
pub fn relative_error(got: &Tensor, want: &Tensor) -> Result<f64, String> {
    if got.dtype != want.dtype || got.shape != want.shape {
        return Err(format!("{got:?} instead of {want:?}"));
    }
    let (Some(a), Some(b)) = (got.scalars(), want.scalars()) else { return Err("values are absent".into()) };
    let (mut diff, mut norm) = (0.0, 0.0);
    for (x, y) in a.iter().zip(&b) {
        diff += (x.as_f64() - y.as_f64()).powi(2);
        norm += y.as_f64().powi(2);
    }
    Ok(if diff == 0.0 { 0.0 } else { (diff / norm).sqrt() })
}

fn position(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|d| {
            let p = i % d;
            i /= d;
            p
        })
        .collect();
    at.reverse();
    at
}

#[cfg(test)]
#[test]
fn comparison_sees_what_differs() {
    let exact = Tolerance { rtol: 0.0, atol: 0.0 };
    let a = Tensor::from_f32(vec![2, 3], &[1.0, 2.0, f32::NAN, f32::INFINITY, 5.0, 6.0]);
    let b = Tensor::from_f32(vec![2, 3], &[1.0, 2.0, f32::NAN, f32::INFINITY, 5.0, 6.5]);
    assert_eq!(equal(&a, &a, exact), Ok(()));
    let message = equal(&a, &b, exact).expect_err("they differ");
    assert!(message.contains("1 of 6") && message.contains("[1, 2]"), "{message}");
    assert_eq!(equal(&a, &b, Tolerance { rtol: 0.1, atol: 0.0 }), Ok(()));
    assert!(equal(&a, &b.reshaped(vec![3, 2]), exact).is_err());
    let (x, y) = (Tensor::from_f32(vec![2], &[3.0, 4.0]), Tensor::from_f32(vec![2], &[3.0, 5.0]));
    assert!((relative_error(&x, &y).expect("they fit") - 1.0 / 34f64.sqrt()).abs() < 1e-12);
}
