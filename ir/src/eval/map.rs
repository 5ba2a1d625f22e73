//! Map: bodies are evaluated for a column of elements at a time.

use super::array::{Array, Buf, Elem, each, narrow};
use super::index::{Index, Walk, advance, copy_walk, merge, point_at};
use super::{Env, EvalError, par, scalar};
use crate::dtype::DType;
use crate::scalar::{ScalarFn, ScalarNode};

/// The number of elements evaluated together: small enough for every column to stay in the cache.
const COLUMN: usize = 1024;
/// The number of elements in a task of one thread.
const BLOCK: usize = 16 * COLUMN;

enum Step<'a> {
    /// Computed once, before the first column.
    Fixed,
    /// Not read by any node.
    Dead,
    Arg(&'a Array, Walk),
    Index(Index),
    Op(&'a ScalarNode),
}

pub(super) fn map(
    body: &ScalarFn,
    shape: Vec<usize>,
    args: &[&Array],
    env: &Env,
) -> Result<Array, EvalError> {
    let arg_types: Vec<DType> = args.iter().map(|a| a.dtype).collect();
    let types = body.types(&arg_types).map_err(EvalError::at)?;
    let n = env.numel(&shape)?;
    let live = live(body);
    let mut steps = vec![];
    for (i, node) in body.nodes.iter().enumerate() {
        steps.push(match node {
            _ if !live[i] => Step::Dead,
            ScalarNode::Arg(a) => {
                let a = args[*a as usize];
                Step::Arg(a, merge(broadcast_strides(a, &shape)?.into_iter()))
            }
            ScalarNode::Const(_) => Step::Fixed,
            ScalarNode::Index(p) => Step::Index(Index::new(p, &shape, env)?),
            op => Step::Op(op),
        });
    }
    let dtype = types[types.len() - 1];
    let mut out = Buf::zeros(dtype, n);
    let failed = std::sync::atomic::AtomicBool::new(false);
    let block = |start: usize, len: usize| -> Vec<Buf> {
        let width = COLUMN.min(len);
        body.nodes
            .iter()
            .zip(&types)
            .zip(&steps)
            .map(|((node, ty), step)| match (node, step) {
                (ScalarNode::Const(s), _) => Buf::full(*s, width),
                (_, Step::Dead) => Buf::zeros(*ty, 0),
                _ => Buf::zeros(*ty, width),
            })
            .inspect(|_| debug_assert!(start <= n))
            .collect()
    };
    each!(&mut out, out => par::chunks(out, BLOCK, |b, chunk| {
        let mut columns = block(b * BLOCK, chunk.len());
        for (c, piece) in chunk.chunks_mut(COLUMN).enumerate() {
            let start = b * BLOCK + c * COLUMN;
            for (i, step) in steps.iter().enumerate() {
                let (before, rest) = columns.split_at_mut(i);
                let Some(column) = rest.first_mut() else { continue };
                if quickly(step, before, column, env) {
                    continue;
                }
                if !run(step, before, column, &types, &arg_types, i, start, piece.len(), &shape) {
                    failed.store(true, std::sync::atomic::Ordering::Relaxed);
                }
            }
            if let Some(root) = columns.last_mut() {
                narrow(dtype, root);
                if let Some(v) = Elem::slice(root) {
                    piece.copy_from_slice(&v[..piece.len()]);
                }
            }
        }
    }));
    if failed.into_inner() {
        return Err(EvalError::at("an index expression divides by zero".into()));
    }
    Ok(Array::new(dtype, shape, out))
}

/// Evaluates a step by a quicker function, if there is one and it may.
#[cfg(feature = "products")]
fn quickly(step: &Step<'_>, before: &[Buf], column: &mut Buf, env: &Env) -> bool {
    let Step::Op(ScalarNode::Unary(op, a)) = step else { return false };
    match (&before[*a as usize], column) {
        (Buf::F32(x), Buf::F32(out)) if env.quick => super::smooth::unary(*op, x, out),
        _ => false,
    }
}

#[cfg(not(feature = "products"))]
fn quickly(_: &Step<'_>, _: &[Buf], _: &mut Buf, _: &Env) -> bool {
    false
}

#[expect(clippy::too_many_arguments, reason = "the state of one step of a small interpreter")]
fn run(
    step: &Step<'_>,
    before: &[Buf],
    column: &mut Buf,
    types: &[DType],
    _args: &[DType],
    i: usize,
    start: usize,
    len: usize,
    shape: &[usize],
) -> bool {
    let at = |j: &u32| &before[*j as usize];
    match step {
        Step::Fixed | Step::Dead => {}
        Step::Arg(a, walk) => each!(column, c => {
            if let Some(src) = Elem::slice(&a.data) {
                copy_walk(src, walk, start, &mut c[..len]);
            }
        }),
        Step::Index(index) => {
            let Buf::I32(c) = column else { return false };
            let mut point = point_at(start, shape);
            for slot in &mut c[..len] {
                let Some(v) = index.at(&point) else { return false };
                *slot = v as i32;
                advance(&mut point, shape);
            }
        }
        Step::Op(node) => match node {
            ScalarNode::Unary(op, a) => scalar::unary(*op, types[i], at(a), column),
            ScalarNode::Binary(op, a, b) => scalar::binary(*op, types[*a as usize], at(a), at(b), column),
            ScalarNode::Select(c, a, b) => scalar::select(at(c), at(a), at(b), column),
            ScalarNode::Cast(to, a) => scalar::cast(*to, at(a), column),
            ScalarNode::Bitcast(to, a) => scalar::bitcast(types[*a as usize], *to, at(a), column),
            ScalarNode::Arg(_) | ScalarNode::Const(_) | ScalarNode::Index(_) => {}
        },
    }
    true
}

/// For each node, whether the result depends on it.
fn live(body: &ScalarFn) -> Vec<bool> {
    let mut live = vec![false; body.nodes.len()];
    if let Some(l) = live.last_mut() {
        *l = true;
    }
    for i in (0..live.len()).rev().collect::<Vec<_>>() {
        if !live[i] {
            continue;
        }
        match &body.nodes[i] {
            ScalarNode::Unary(_, a) | ScalarNode::Cast(_, a) | ScalarNode::Bitcast(_, a) => {
                live[*a as usize] = true;
            }
            ScalarNode::Binary(_, a, b) => {
                live[*a as usize] = true;
                live[*b as usize] = true;
            }
            ScalarNode::Select(c, a, b) => {
                for x in [c, a, b] {
                    live[*x as usize] = true;
                }
            }
            ScalarNode::Arg(_) | ScalarNode::Const(_) | ScalarNode::Index(_) => {}
        }
    }
    live
}

/// Each axis of `shape` with the stride of `a` along it, 0 where `a` broadcasts.
pub(super) fn broadcast_strides(a: &Array, shape: &[usize]) -> Result<Vec<(usize, usize)>, EvalError> {
    let wrong =
        || EvalError::at(format!("an operand of shape {:?} does not broadcast to {shape:?}", a.shape));
    let skip = shape.len().checked_sub(a.shape.len()).ok_or_else(wrong)?;
    let strides = a.strides();
    let mut out = vec![];
    for (i, d) in shape.iter().enumerate() {
        out.push(match i.checked_sub(skip) {
            None => (*d, 0),
            Some(j) if a.shape[j] == *d => (*d, strides[j]),
            Some(j) if a.shape[j] == 1 => (*d, 0),
            Some(_) => return Err(wrong()),
        });
    }
    Ok(out)
}
