//! `Slice`: starts, ends and steps may be expressions of dimensions.

use crate::import::Cx;
use crate::import::op::{Lowered, OpDef, OpError};
use wgfc_ir::{Dim, Poly};

/// Beyond this a bound means "to the end".
const FAR: i64 = 1 << 40;

fn slice(cx: &mut Cx) -> Lowered {
    let mut x = cx.input(0)?;
    let rank = cx.rank(x);
    let (starts, ends, axes, steps) = if cx.since < 10 {
        let dims = |v: Vec<i64>| v.into_iter().map(Poly::constant).collect::<Vec<Dim>>();
        (dims(cx.ints_req("starts")?), dims(cx.ints_req("ends")?), cx.ints("axes")?, None)
    } else {
        let axes = if cx.opt(3).is_some() { Some(cx.const_ints(3)?) } else { None };
        let steps = if cx.opt(4).is_some() { Some(cx.const_ints(4)?) } else { None };
        (cx.const_dims(1)?, cx.const_dims(2)?, axes, steps)
    };
    let n = starts.len();
    let axes = axes.unwrap_or_else(|| (0..n as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; n]);
    if ends.len() != n || axes.len() != n || steps.len() != n {
        return Err(OpError::model(format!(
            "{n} starts, {} ends, {} axes and {} steps",
            ends.len(),
            axes.len(),
            steps.len()
        )));
    }
    // Repeated axes are an error.
    cx.axes(&axes, rank)?;
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = cx.axis(*axis, rank)?;
        let extent = cx.shape(x)[axis].clone();
        let (start, len) = range(start, end, *step, &extent)?;
        if !(start.is(0) && *step == 1 && len == extent) {
            x = cx.slice(x, axis, &start, *step, &len)?;
        }
    }
    Ok(vec![x])
}

/// The first position and the number of elements that `start:end:step` picks of `extent`.
pub(super) fn range(start: &Poly, end: &Poly, step: i64, extent: &Dim) -> Result<(Poly, Dim), OpError> {
    if step == 0 || step.unsigned_abs() > FAR as u64 {
        return Err(OpError::model(format!("step {step}")));
    }
    // The bounds that a position is clamped to.
    let (low, high) =
        if step > 0 { (Poly::ZERO, extent.clone()) } else { (Poly::constant(-1), extent - &Poly::ONE) };
    let first = clamp(start, extent, if step > 0 { &Poly::ZERO } else { &low }, &high)?;
    let last = clamp(end, extent, &low, &high)?;
    let span = if step > 0 { &last - &first } else { &first - &last };
    let len = span.ceil_div(step.abs());
    let len = if len.as_const().is_some_and(|c| c < 0) { Dim::ZERO } else { positive(len) };
    Ok((first, len))
}

/// A length that could only be negative for the degenerate extents that are not met, as it is; others clamped.
fn positive(len: Dim) -> Dim {
    if len.proves_nonneg(&[]) || (&len + 1).proves_nonneg(&[]) { len } else { len.max_of(&Dim::ZERO, &[]) }
}

/// A position, counted from the end when negative, brought into `low..=high`. A symbolic extent is
/// taken to be at least 1, so that `x[1:]` and `x[-1:]` need no clamping.
fn clamp(v: &Poly, extent: &Dim, low: &Poly, high: &Poly) -> Result<Poly, OpError> {
    let p = match v.as_const() {
        Some(c) if c >= FAR => return Ok(high.clone()),
        Some(c) if c <= -FAR => return Ok(low.clone()),
        Some(c) if c < 0 => extent + &Poly::constant(c),
        Some(_) => v.clone(),
        None if v.proves_nonneg(&[]) => v.clone(),
        None if (&-v - 1).proves_nonneg(&[]) => extent + v,
        None => {
            return Err(OpError::unsupported(format!("whether bound {v} is negative depends on dimensions")));
        }
    };
    let at_least =
        |a: &Poly, b: &Poly| (&(a - b) + i64::from(extent.as_const().is_none())).proves_nonneg(&[]);
    let p = if at_least(high, &p) { p } else { p.min_of(high, &[]) };
    Ok(if at_least(&p, low) { p } else { p.max_of(low, &[]) })
}

/// `Slice`.
pub const OPS: &[OpDef] = &[OpDef::new("Slice", &[1, 10, 11, 13], slice)
    .cases(&["test_slice"])
    .notes("starts and ends must not depend on data")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_clamped_as_numpy_does() {
        for extent in 0..6i64 {
            for start in -8..8i64 {
                for end in -8..8i64 {
                    for step in [-3i64, -2, -1, 1, 2, 3] {
                        let c = Poly::constant;
                        let (first, len) = range(&c(start), &c(end), step, &c(extent)).unwrap();
                        // Count by walking.
                        let norm = |v: i64| if v < 0 { v + extent } else { v };
                        let (lo, hi) = if step > 0 { (0, extent) } else { (-1, extent - 1) };
                        let mut at = norm(start).clamp(lo, hi);
                        let stop = norm(end).clamp(lo, hi);
                        let mut want = vec![];
                        while if step > 0 { at < stop } else { at > stop } {
                            want.push(at);
                            at += step;
                        }
                        let n = len.as_const().unwrap();
                        let got: Vec<i64> = (0..n).map(|i| first.as_const().unwrap() + i * step).collect();
                        assert_eq!(got, want, "[{start}:{end}:{step}] of {extent}");
                    }
                }
            }
        }
    }

    #[test]
    fn symbolic_bounds_stay_readable() {
        let p = |s: &str| Poly::parse(s).unwrap();
        let show = |s: &str, e: &str, step, n: &str| {
            let (a, b) = range(&p(s), &p(e), step, &p(n)).unwrap();
            format!("{a} {b}")
        };
        assert_eq!(show("0", "9223372036854775807", 1, "seq"), "0 seq");
        assert_eq!(show("1", "9223372036854775807", 1, "seq"), "1 seq - 1");
        assert_eq!(show("-1", "9223372036854775807", 1, "seq"), "seq - 1 1");
        assert_eq!(show("0", "past + seq", 1, "seq + past"), "0 past + seq");
        assert_eq!(show("0", "5", 1, "seq"), "0 min(5, seq)");
        assert_eq!(show("-1", "-9223372036854775807", -1, "seq"), "seq - 1 seq");
    }
}
