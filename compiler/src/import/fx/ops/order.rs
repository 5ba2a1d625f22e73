//! Sorting and order statistics.

use super::super::prelude::*;
use crate::lower::order;
use wgfc_ir::Poly;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.argsort.default|stable", |cx| sorted(cx, &[1])),
    OpDef::new("aten.kthvalue.default", kth),
    OpDef::new("aten.median.default", |cx| median_of_all(cx, false)),
    OpDef::new("aten.median.dim", |cx| along(cx, |cx, x, axis| order::median(cx, x, axis, false))),
    OpDef::new("aten.mode.default", |cx| along(cx, order::mode)),
    OpDef::new("aten.msort.default", |cx| sorted(cx, &[0])),
    OpDef::new("aten.nanmedian.default", |cx| median_of_all(cx, true)),
    OpDef::new("aten.nanmedian.dim", |cx| along(cx, |cx, x, axis| order::median(cx, x, axis, true))),
    OpDef::new("aten.sort.default|stable", |cx| sorted(cx, &[0, 1])),
    OpDef::new("aten.topk.default", top),
];

/// The operand, with an axis added if it has rank 0, and whether one was added.
fn with_axis(cx: &mut Cx) -> Result<(Value, bool)> {
    let x = cx.tensor("self")?;
    match cx.rank(x) {
        0 => Ok((cx.unsqueeze(x, &[0])?, true)),
        _ => Ok((x, false)),
    }
}

fn without_axis(cx: &mut Cx, of: [Value; 2], axis: usize) -> Lowered {
    Ok(vec![cx.squeeze(of[0], &[axis])?, cx.squeeze(of[1], &[axis])?])
}

/// The sorted values and their positions, of which `returned` lists the results.
fn sorted(cx: &mut Cx, returned: &[usize]) -> Lowered {
    let (x, single) = with_axis(cx)?;
    let axis = if cx.declares("dim") { cx.axis("dim", cx.rank(x))? } else { 0 };
    let descending = cx.declares("descending") && cx.flag("descending")?;
    let n = cx.shape(x)[axis].clone();
    let both = order::sort(cx, x, axis, &n, descending)?;
    let all = if single { without_axis(cx, both, axis)? } else { both.to_vec() };
    Ok(returned.iter().map(|i| all[*i]).collect())
}

fn top(cx: &mut Cx) -> Lowered {
    let (x, single) = with_axis(cx)?;
    let (axis, largest) = (cx.axis("dim", cx.rank(x))?, cx.flag("largest")?);
    let k = cx.size("k")?;
    let both = order::sort(cx, x, axis, &k, largest)?;
    if single && k.is(1) {
        return without_axis(cx, both, axis);
    }
    if single && cx.result(0)?.shape.is_empty() {
        // A tensor of rank 0 has one element, whatever `k` is.
        return both.into_iter().map(|v| Ok(cx.view(v, vec![], vec![Poly::ZERO])?)).collect();
    }
    Ok(both.to_vec())
}

/// A reduction along `dim`, which is removed unless `keepdim` is set.
fn along(cx: &mut Cx, f: impl Fn(&mut Lowering, Value, usize) -> Result<[Value; 2]>) -> Lowered {
    let (x, single) = with_axis(cx)?;
    let axis = cx.axis("dim", cx.rank(x))?;
    let both = f(cx, x, axis)?;
    if cx.flag("keepdim")? && !single { Ok(both.to_vec()) } else { without_axis(cx, both, axis) }
}

fn kth(cx: &mut Cx) -> Lowered {
    let at = &cx.size("k")? - 1;
    along(cx, |cx, x, axis| order::kth(cx, x, axis, &at))
}

fn median_of_all(cx: &mut Cx, skip_nan: bool) -> Lowered {
    let x = cx.tensor("self")?;
    let n: Dim = cx.shape(x).iter().product();
    if n.is(0) && cx.dtype(x).is_float() {
        let dtype = cx.dtype(x);
        return Ok(vec![cx.scalar(dtype, f64::NAN)]);
    }
    let flat = cx.reshape(x, vec![n])?;
    let [value, _] = order::median(cx, flat, 0, skip_nan)?;
    Ok(vec![cx.squeeze(value, &[0])?])
}
