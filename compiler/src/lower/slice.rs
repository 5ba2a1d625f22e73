//! Slices whose starts and ends are constants, expressions of dimensions, or values computed at run time.

use super::{Lowering, OpError, Result, Size};
use wgfc_ir::build::Built;
use wgfc_ir::{Atom, BinaryOp, Body, DType, Dim, Poly, Value};

/// Bounds of at least this magnitude mean "to the end".
const FAR: i64 = 1 << 40;

/// Every `step`th element from `start` to before `end` along an axis, as in numpy: negative positions count from the
/// end, and positions are clamped to the axis.
pub fn slice(cx: &mut Lowering, x: Value, axis: usize, start: &Size, end: &Size, step: i64) -> Result {
    let extent = cx.shape(x)[axis].clone();
    let (start, len) = match (start, end) {
        (Size::Known(start), Size::Known(end)) => {
            let least = i64::from(extent.as_const().is_none() && !cx.is_computed(&extent));
            range(start, end, step, &extent, least)?
        }
        _ => computed_range(cx, start, end, step, &extent)?,
    };
    if start.is(0) && step == 1 && len == extent {
        return Ok(x);
    }
    Ok(cx.slice(x, axis, &start, step, &len)?)
}

/// [`range`] for bounds computed at run time: its results are computed symbols.
fn computed_range(
    cx: &mut Lowering,
    start: &Size,
    end: &Size,
    step: i64,
    extent: &Dim,
) -> Result<(Poly, Dim)> {
    if step == 0 || step.unsigned_abs() > FAR as u64 {
        return Err(OpError::model(format!("step {step}")));
    }
    let [start, end] = [start, end].map(|b| position(cx, b, step > 0, extent));
    let (start, end) = (start?, end?);
    let mut f = Body::default();
    let (from, to, zero) = (f.arg(0), f.arg(1), f.int(DType::I64, 0));
    let span = if step > 0 { f.binary(BinaryOp::Sub, to, from) } else { f.binary(BinaryOp::Sub, from, to) };
    let span = f.binary(BinaryOp::Max, span, zero);
    let (by, rest) = (f.int(DType::I64, step.abs()), f.int(DType::I64, step.abs() - 1));
    let span = f.binary(BinaryOp::Add, span, rest);
    f.binary(BinaryOp::Div, span, by);
    let len = cx.map(f.0, &[start, end])?;
    // The start of an empty backward slice may be -1.
    let first = cx.binary_scalar(BinaryOp::Max, start, 0.0)?;
    let len = cx.computed_size(len, extent.ceil_div(step.abs()));
    Ok((cx.computed_as("_from", first, extent.clone()), len))
}

/// A position (negative ones count from the end) clamped to `0..=extent` or, for a backward slice, to
/// `-1..=extent - 1`.
fn position(cx: &mut Lowering, bound: &Size, forwards: bool, extent: &Dim) -> Built {
    let v = match bound {
        Size::Known(p) => match p.as_const() {
            Some(c) => cx.int(DType::I64, c.clamp(-FAR, FAR)),
            None => cx.dim_scalar(p, DType::I64)?,
        },
        Size::Computed(v) => *v,
    };
    let n = cx.dim_scalar(extent, DType::I64)?;
    let mut f = Body::default();
    let (v_0, n_0) = (f.arg(0), f.arg(1));
    let (zero, one) = (f.int(DType::I64, 0), f.int(DType::I64, 1));
    let (negative, from_end) = (f.binary(BinaryOp::Lt, v_0, zero), f.binary(BinaryOp::Add, v_0, n_0));
    let at = f.select(negative, from_end, v_0);
    let (low, high) = match forwards {
        true => (zero, n_0),
        false => (f.int(DType::I64, -1), f.binary(BinaryOp::Sub, n_0, one)),
    };
    let at = f.binary(BinaryOp::Min, at, high);
    f.binary(BinaryOp::Max, at, low);
    cx.map(f.0, &[v, n])
}

/// The first position and the number of elements that `start:end:step` selects from `extent`, which is assumed to be
/// at least `least`. `least` is 1 for a symbol that is hardly ever 0, so that `x[1:]` and `x[-1:]` need no clamping.
fn range(start: &Poly, end: &Poly, step: i64, extent: &Dim, least: i64) -> Result<(Poly, Dim)> {
    if step == 0 || step.unsigned_abs() > FAR as u64 {
        return Err(OpError::model(format!("step {step}")));
    }
    // The range to which a position is clamped.
    let (low, high) =
        if step > 0 { (Poly::ZERO, extent.clone()) } else { (Poly::constant(-1), extent - &Poly::ONE) };
    let first = clamp(start, extent, if step > 0 { &Poly::ZERO } else { &low }, &high, least)?;
    let last = clamp(end, extent, &low, &high, least)?;
    let span = if step > 0 { &last - &first } else { &first - &last };
    let len = span.ceil_div(step.abs());
    let len = if len.as_const().is_some_and(|c| c < 0) { Dim::ZERO } else { positive(len, least) };
    Ok((first, len))
}

/// A length clamped to at least 0, unless it can only be negative for extents below `least`.
fn positive(len: Dim, least: i64) -> Dim {
    if len.proves_nonneg(&[]) || (&len + least).proves_nonneg(&[]) {
        len
    } else {
        len.max_of(&Dim::ZERO, &[])
    }
}

/// A position (negative ones count from the end) clamped to `low..=high`.
fn clamp(v: &Poly, extent: &Dim, low: &Poly, high: &Poly, least: i64) -> Result<Poly> {
    let p = match v.as_const() {
        Some(c) if c >= FAR => return Ok(high.clone()),
        Some(c) if c <= -FAR => return Ok(low.clone()),
        Some(c) if c < 0 => extent + &Poly::constant(c),
        Some(_) => v.clone(),
        None if v.proves_nonneg(&[]) => v.clone(),
        None if (&-v - 1).proves_nonneg(&[]) => extent + v,
        // The position `-extent`, counted from the end or equal to 0, is the first one.
        None if (-v).proves_nonneg(&[]) && (extent + v).is(0) => Poly::ZERO,
        None if least > 0 && is_positive(&-v) => extent + v,
        None => v + &(extent * &is_negative(v)),
    };
    let at_least = |a: &Poly, b: &Poly| (&(a - b) + least).proves_nonneg(&[]);
    let p = if at_least(high, &p) { p } else { p.min_of(high, &[]) };
    Ok(if at_least(&p, low) { p } else { p.max_of(low, &[]) })
}

/// 1 where an expression is below 0, else 0.
pub fn is_negative(p: &Poly) -> Poly {
    (-p).max_of(&Dim::ZERO, &[]).min_of(&Dim::ONE, &[])
}

/// Whether the expression is at least 1 whenever all symbols are.
fn is_positive(p: &Poly) -> bool {
    let one_more = |a: &Atom| matches!(a, Atom::Sym(_)).then(|| &Poly::atom(a.clone()) + 1);
    (&p.subst(&one_more, &[]) - 1).proves_nonneg(&[])
}

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
                        let (first, len) = range(&c(start), &c(end), step, &c(extent), 0).unwrap();
                        // Counts by walking.
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
    fn runs_decide_whether_bounds_are_negative() {
        let p = |s: &str| Poly::parse(s).unwrap();
        let all = "9223372036854775807";
        let cases = [
            ("0", "seq - 3", "seq"),
            ("0", "past - seq", "seq"),
            ("0", "n - 8*((n + 7)/(8))", "seq"),
            ("seq - 3", all, "seq"),
            ("past - seq", "seq - 2", "past + seq"),
            ("-seq", all, "past + seq"),
        ];
        for (start, end, extent) in cases {
            // Computed extents can be 0.
            let (first, len) = range(&p(start), &p(end), 1, &p(extent), 0).unwrap();
            for values in (0..6 * 6 * 6).map(|i| [i % 6, i / 6 % 6, i / 36]) {
                let of = |name: &str| Some(values[["seq", "past", "n"].iter().position(|s| *s == name)?]);
                let value = |d: &Poly| d.eval_syms(&of).unwrap();
                let extent = value(&p(extent));
                let norm = |v: i64| (if v < 0 { v + extent } else { v }).clamp(0, extent);
                let (from, to) = (norm(value(&p(start))), norm(value(&p(end))));
                let got = (value(&first), value(&len));
                assert_eq!(got.1, (to - from).max(0), "[{start}:{end}] at {values:?}");
                assert!(got.1 == 0 || got.0 == from, "[{start}:{end}] at {values:?}");
            }
        }
    }

    #[test]
    fn symbolic_bounds_stay_readable() {
        let p = |s: &str| Poly::parse(s).unwrap();
        let show = |s: &str, e: &str, step, n: &str| {
            let (a, b) = range(&p(s), &p(e), step, &p(n), 1).unwrap();
            format!("{a} {b}")
        };
        assert_eq!(show("0", "9223372036854775807", 1, "seq"), "0 seq");
        assert_eq!(show("1", "9223372036854775807", 1, "seq"), "1 seq - 1");
        assert_eq!(show("-1", "9223372036854775807", 1, "seq"), "seq - 1 1");
        assert_eq!(show("0", "past + seq", 1, "seq + past"), "0 past + seq");
        assert_eq!(show("0", "5", 1, "seq"), "0 min(5, seq)");
        assert_eq!(show("-1", "-9223372036854775807", -1, "seq"), "seq - 1 seq");
        assert_eq!(show("-seq", "9223372036854775807", 1, "seq"), "0 seq");
        assert_eq!(show("-seq", "9223372036854775807", 1, "past + seq"), "past seq");
        assert_eq!(show("0", "-2*seq", 1, "past + 2*seq"), "0 past");
    }
}
