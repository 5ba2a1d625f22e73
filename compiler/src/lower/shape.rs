//! Reshapes, which keep the order of elements, and concatenation.

use super::{Lowering, OpError, Result};
use wgfc_ir::op::show;
use wgfc_ir::{Dim, Poly, Value};

/// Reshapes `x`; an extent of -1 stands for the remaining number of elements.
pub fn reshape(cx: &mut Lowering, x: Value, want: &[Dim]) -> Result {
    let from = cx.shape(x);
    let mut shape: Vec<Dim> = vec![];
    let mut rest = None;
    for (i, d) in want.iter().enumerate() {
        match d.as_const() {
            Some(-1) => {
                if rest.replace(i).is_some() {
                    return Err(OpError::model("-1 stands twice in the shape").param("shape"));
                }
                shape.push(Dim::ONE);
            }
            Some(c) if c < 0 => {
                return Err(OpError::model(format!("extent {c} in shape {}", show(want))).param("shape"));
            }
            _ => shape.push(d.clone()),
        }
    }
    if let Some(i) = rest {
        let (total, known): (Dim, Dim) = (from.iter().product(), shape.iter().product());
        shape[i] = if known.is(0) {
            Dim::ZERO
        } else {
            let q = total.div(&known, &[]);
            if total.as_const().is_some() && known.as_const().is_some() && &q * &known != total {
                return Err(OpError::model(format!(
                    "cannot reshape {} to {}: {known} does not divide {total}",
                    show(&from),
                    show(want)
                )));
            }
            q
        };
    }
    Ok(cx.reshape(x, shape)?)
}

/// Broadcasts the tensor and the wanted shape against each other.
pub fn expand(cx: &mut Lowering, x: Value, want: &[Dim]) -> Result {
    let from = cx.shape(x);
    let rank = from.len().max(want.len());
    let at = |s: &[Dim], i: usize| (i + s.len()).checked_sub(rank).map_or(Dim::ONE, |j| s[j].clone());
    let mut shape = vec![];
    for i in 0..rank {
        let (a, b) = (at(&from, i), at(want, i));
        if a == b || b.is(1) {
            shape.push(a);
        } else if a.is(1) {
            shape.push(b);
        } else if a.as_const().is_some() && b.as_const().is_some() {
            return Err(OpError::model(format!("shape {} does not expand to {}", show(&from), show(want))));
        } else {
            cx.require_equal(&a, &b);
            shape.push(if b.as_const().is_some() { b } else { a });
        }
    }
    Ok(cx.expand(x, &shape)?)
}

/// Reshapes to a matrix: the axes before `axis`, which may be the rank, and the remaining axes.
pub fn flatten(cx: &mut Lowering, x: Value, axis: usize) -> Result {
    let dims = cx.shape(x);
    let (a, b): (Dim, Dim) = (dims[..axis].iter().product(), dims[axis..].iter().product());
    Ok(cx.reshape(x, vec![a, b])?)
}

/// `x` with its extents required to equal those of `shape`, and given the same expressions.
pub fn with_extents(cx: &mut Lowering, x: Value, shape: &[Dim]) -> Result {
    let have = cx.shape(x);
    let known = |d: &Dim| d.as_const().is_some();
    if have.len() != shape.len() || have.iter().zip(shape).any(|(h, w)| h != w && known(h) && known(w)) {
        let e = format!("needs the shape {}, got {}", show(shape), cx.ty(x));
        return Err(OpError::model(e));
    }
    for (h, w) in have.iter().zip(shape) {
        cx.require_equal(h, w);
    }
    let index = (0..shape.len()).map(Poly::var).collect();
    Ok(cx.view(x, shape.to_vec(), index)?)
}

/// Concatenates one or more tensors along an axis.
pub fn concat(cx: &mut Lowering, xs: &[Value], axis: usize) -> Result {
    let first = xs.first().map(|x| cx.ty(*x).clone()).ok_or("needs at least one input")?;
    let mut common = first.shape.clone();
    for x in &xs[1..] {
        let ty = cx.ty(*x).clone();
        if ty.rank() != first.rank() || ty.dtype != first.dtype {
            return Err(OpError::model(format!("{ty} cannot be joined to {first}")).operand(*x));
        }
        for d in (0..common.len()).filter(|d| *d != axis) {
            let (a, b) = (common[d].clone(), ty.shape[d].clone());
            if a == b {
                continue;
            }
            if a.as_const().is_some() && b.as_const().is_some() {
                let e = OpError::model(format!("{ty} cannot be joined to {first} along axis {axis}"));
                return Err(e.operand(*x));
            }
            cx.require_equal(&a, &b);
            if b.as_const().is_some() {
                common[d] = b;
            }
        }
    }
    let mut parts = vec![];
    for x in xs {
        let mut want = common.clone();
        want[axis] = cx.shape(*x)[axis].clone();
        let index = (0..want.len()).map(Poly::var).collect();
        parts.push(cx.view(*x, want, index)?);
    }
    Ok(cx.concat(&parts, axis)?)
}
