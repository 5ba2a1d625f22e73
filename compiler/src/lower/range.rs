//! Evenly spaced numbers.

use super::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp, DType, Dim, Poly, Scalar, Value};

/// The number of elements from `start` to below (with a negative step, above) `limit`. The step must not be 0.
pub fn length(start: &Dim, limit: &Dim, step: i64) -> Dim {
    let span = if step > 0 { limit - start } else { start - limit };
    not_negative(span.ceil_div(step.checked_abs().unwrap_or(i64::MAX)))
}

fn not_negative(len: Dim) -> Dim {
    if len.proves_nonneg(&[]) { len } else { len.max_of(&Dim::ZERO, &[]) }
}

/// [`length`] for numbers of a float type.
pub fn float_length(dtype: DType, start: f64, limit: f64, step: f64) -> Result<Dim> {
    // The difference is rounded to the type; all that follows is computed in f64.
    let span = Scalar::from_f64(dtype, limit - start).as_f64();
    let n = (span / step).ceil();
    if !n.is_finite() || n > 1e9 {
        return Err(OpError::model(format!("range from {start} to {limit} by {step}")));
    }
    Ok(Dim::from(n.max(0.0) as i64))
}

/// [`length`] for fractions of dimensions, each given by its numerator and its denominator.
pub fn fraction_length(
    (start, a): &(Dim, i64),
    (limit, b): &(Dim, i64),
    (step, c): &(Dim, i64),
) -> Result<Dim> {
    let Some(step) = step.as_const() else {
        let e = OpError::symbolic(format!("a step of {step}, which depends on dimensions"));
        return Err(e.param("step"));
    };
    if step == 0 {
        return Err(OpError::model("a step of 0").param("step"));
    }
    // (limit / b − start / a) / (step / c)
    let span = &(limit * *a) - &(start * *b);
    let span = &span * (c * step.signum());
    let by = step.checked_abs().and_then(|s| s.checked_mul(*a)?.checked_mul(*b));
    let by = by.ok_or_else(|| {
        let help = "export the model with numbers of fewer digits";
        OpError::unsupported(format!("a range from {start} to {limit} by {step}"), help)
    })?;
    Ok(not_negative(span.ceil_div(by)))
}

/// `start + i·step` for `len` values of `i`; `start` and `step` have one element and the type of the result.
pub fn spaced(cx: &mut Lowering, len: Dim, start: Value, step: Value) -> Result {
    let dtype = cx.dtype(start);
    let (start, step) = (cx.reshape(start, vec![])?, cx.reshape(step, vec![])?);
    let i = cx.iota(&[len], Poly::var(0), dtype)?;
    let i = cx.binary(BinaryOp::Mul, i, step)?;
    Ok(cx.binary(BinaryOp::Add, i, start)?)
}

/// [`spaced`] integers from `start` to `limit`, which is excluded, as an index expression; `None` if they exceed 32 bits.
pub fn counted(
    cx: &mut Lowering,
    dtype: DType,
    start: &Dim,
    limit: &Dim,
    step: i64,
) -> Result<Option<Value>> {
    let small = |p: &Poly| p.as_const().is_none_or(|c| i32::try_from(c).is_ok());
    if !small(start) || !small(limit) || i32::try_from(step).is_err() || dtype.bits() < 32 {
        return Ok(None);
    }
    let len = length(start, limit, step);
    Ok(Some(cx.iota(&[len], start + &(Poly::var(0) * step), dtype)?))
}
