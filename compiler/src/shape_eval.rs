//! Evaluation of shape arithmetic while compiling.
//!
//! Models compute shapes with tensors: `Shape → Gather → Mul → Concat → Reshape`. This module is an abstract
//! interpreter of core operators for small tensors whose elements are symbolic integers ([`Poly`] over dimensions),
//! exact fractions of them, or plain floats. It is lazy and caches its results; while an evaluator is in use its graph
//! may only grow.
//!
//! An element that depends on data is *unknown*; so is one whose value depends on the sign of an expression that is
//! not decided for all non-negative dimensions. Constants are computed as by the reference evaluator: integers wrap.
//! Expressions of dimensions are exact, or unknown if coefficients exceed 62 bits; floats computed from dimensions are
//! assumed to be exact integers, as they are in f32 up to 2²⁴.

mod arith;

use arith::{binary, cast, from_scalar, unary};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use wgfc_ir::{Atom, DType, Dim, GatherAxis, Graph, Op, Poly, ReduceOp, Scalar, ScalarFn, ScalarNode, Value};

/// The maximum number of elements of a tensor that is evaluated.
pub const MAX_ELEMENTS: usize = 1024;

/// The known value of one element.
#[derive(Clone, Debug, PartialEq)]
pub enum Elem {
    /// The value depends on data.
    Unknown,
    /// An integer, or a bool as 0 or 1.
    Int(Poly),
    /// A constant float.
    Float(f64),
    /// A float: an expression of dimensions over a positive constant, in lowest terms. It is exact if the constant is
    /// a power of two, else the quotient rounded once.
    Ratio(Poly, i64),
}

/// Evaluates values of one graph and caches the results. See the [module](self).
#[derive(Default)]
pub struct ShapeEval {
    known: FxHashMap<Value, Option<Arc<[Elem]>>>,
}

impl ShapeEval {
    /// The elements as symbolic integers, if all are known.
    pub fn dims(&mut self, g: &Graph, v: Value) -> Option<Vec<Dim>> {
        self.elements(g, v)?
            .iter()
            .map(|e| match e {
                Elem::Int(p) => Some(p.clone()),
                _ => None,
            })
            .collect()
    }

    /// The elements as numbers, if all are constant.
    pub fn numbers(&mut self, g: &Graph, v: Value) -> Option<Vec<f64>> {
        self.elements(g, v)?
            .iter()
            .map(|e| match e {
                Elem::Int(p) => p.as_const().map(|c| c as f64),
                Elem::Float(f) => Some(*f),
                _ => None,
            })
            .collect()
    }

    /// The elements as exact fractions, expressions of dimensions over positive constants; `None` if any element is
    /// unknown or has another form.
    pub fn fractions(&mut self, g: &Graph, v: Value) -> Option<Vec<(Poly, i64)>> {
        self.elements(g, v)?.iter().map(arith::exact).collect()
    }

    /// Declares the elements of a value.
    pub fn set(&mut self, v: Value, elements: &[Dim]) {
        self.known.insert(v, Some(elements.iter().map(|d| Elem::Int(d.clone())).collect()));
    }

    /// The known value of each element; `None` if nothing is known, or the tensor is large or has a symbolic shape.
    pub fn elements(&mut self, g: &Graph, v: Value) -> Option<Arc<[Elem]>> {
        // Depth first with an explicit stack: chains of nodes may be long.
        let mut stack = vec![v];
        while let Some(top) = stack.last().copied() {
            if self.known.contains_key(&top) {
                stack.pop();
                continue;
            }
            let node = g.node(top.node);
            let small = small_shape(g, top).is_some();
            let before = stack.len();
            if small
                && !matches!(node.op, Op::If { .. } | Op::While { .. } | Op::Scan { .. } | Op::Contract(_))
            {
                stack.extend(
                    node.inputs
                        .iter()
                        .filter(|i| !self.known.contains_key(i) && small_shape(g, **i).is_some()),
                );
            }
            if stack.len() == before {
                stack.pop();
                let e = if small { self.compute(g, top) } else { None };
                let e = e.filter(|e| e.is_empty() || e.iter().any(|x| *x != Elem::Unknown));
                self.known.insert(top, e.map(Arc::from));
            }
        }
        self.known.get(&v).cloned().flatten()
    }

    fn get(&self, v: Value) -> Option<&Arc<[Elem]>> {
        self.known.get(&v)?.as_ref()
    }

    fn compute(&self, g: &Graph, v: Value) -> Option<Vec<Elem>> {
        let node = g.node(v.node);
        let out = g.ty(v);
        let shape = small_shape(g, v)?;
        let input_shape = |i: usize| g.ty(*node.inputs.get(i)?).static_shape();
        match &node.op {
            Op::Const(t) => {
                let all = t.scalars()?;
                Some(all.into_iter().map(from_scalar).collect())
            }
            Op::Map { body, .. } => {
                let args: Vec<(_, Option<&Arc<[Elem]>>, DType)> = node
                    .inputs
                    .iter()
                    .map(|i| (g.ty(*i).static_shape().unwrap_or_default(), self.get(*i), g.ty(*i).dtype))
                    .collect();
                let types: Vec<DType> = args.iter().map(|a| a.2).collect();
                let types = body.types(&types).ok()?;
                Some(
                    positions(&shape)
                        .map(|pos| {
                            let arg = |i: u32| match args.get(i as usize) {
                                Some((s, Some(e), _)) => {
                                    let skip = pos.len() - s.len().min(pos.len());
                                    let at = s
                                        .iter()
                                        .zip(&pos[skip..])
                                        .fold(0, |f, (d, p)| f * d + if *d == 1 { 0 } else { *p });
                                    e.get(at).cloned().unwrap_or(Elem::Unknown)
                                }
                                _ => Elem::Unknown,
                            };
                            eval_body(body, &types, &arg, &pos)
                        })
                        .collect(),
                )
            }
            Op::View { index, fill, .. } => {
                let (from, e) = (input_shape(0)?, self.get(*node.inputs.first()?)?);
                Some(
                    positions(&shape)
                        .map(|pos| match position(index, &pos) {
                            Some(at) => match flat(&from, &at) {
                                Some(i) => e.get(i).cloned().unwrap_or(Elem::Unknown),
                                None => fill.map_or(Elem::Unknown, from_scalar),
                            },
                            None => Elem::Unknown,
                        })
                        .collect(),
                )
            }
            Op::Concat { axis } => {
                // In row-major order: for each position before the axis, the block of each operand in turn.
                let outer: usize = shape.get(..*axis)?.iter().product();
                let mut result = Vec::with_capacity(shape.iter().product());
                for o in 0..outer {
                    for (i, input) in node.inputs.iter().enumerate() {
                        let block: usize = input_shape(i)?.get(*axis..)?.iter().product();
                        match self.get(*input) {
                            Some(e) => result.extend(e.get(o * block..(o + 1) * block)?.iter().cloned()),
                            None => result.extend(std::iter::repeat_n(Elem::Unknown, block)),
                        }
                    }
                }
                Some(result)
            }
            Op::Gather { index, .. } => {
                let (from, e) = (input_shape(0)?, self.get(*node.inputs.first()?)?);
                let one = |pos: &[usize]| -> Option<Elem> {
                    let mut at = vec![];
                    for (axis, extent) in index.iter().zip(&from) {
                        let extent = *extent as i64;
                        at.push(match axis {
                            GatherAxis::Affine(p) => position(std::slice::from_ref(p), pos)?[0],
                            GatherAxis::Data { input, at } => {
                                let s = input_shape(*input)?;
                                let i = flat(&s, &position(at, pos)?)?;
                                let Elem::Int(p) = self.get(*node.inputs.get(*input)?)?.get(i)? else {
                                    return None;
                                };
                                let k = p.as_const()?;
                                (if k < 0 { k + extent } else { k }).clamp(0, (extent - 1).max(0))
                            }
                        });
                    }
                    e.get(flat(&from, &at)?).cloned()
                };
                Some(positions(&shape).map(|pos| one(&pos).unwrap_or(Elem::Unknown)).collect())
            }
            Op::Reduce { op, axes } => {
                let (from, e) = (input_shape(0)?, self.get(*node.inputs.first()?)?);
                let start = match op {
                    ReduceOp::Sum => Some(from_scalar(Scalar::from_i64(out.dtype, 0))),
                    ReduceOp::Prod => Some(from_scalar(Scalar::from_i64(out.dtype, 1))),
                    ReduceOp::Max | ReduceOp::Min => None,
                };
                let mut result = vec![start; shape.iter().product()];
                for (i, pos) in positions(&from).enumerate() {
                    let to: Vec<i64> = pos
                        .iter()
                        .enumerate()
                        .map(|(d, p)| if axes.contains(&d) { 0 } else { *p as i64 })
                        .collect();
                    let slot = result.get_mut(flat(&shape, &to)?)?;
                    let x = e.get(i)?.clone();
                    *slot = Some(match slot.take() {
                        Some(acc) => binary(op.operator(), &acc, &x, out.dtype),
                        None => x,
                    });
                }
                Some(result.into_iter().map(|x| x.unwrap_or(Elem::Unknown)).collect())
            }
            Op::PrefixScan { op, axis, exclusive: false, reverse: false } => {
                let mut e = self.get(*node.inputs.first()?)?.to_vec();
                for (i, pos) in positions(&shape).enumerate() {
                    if *pos.get(*axis)? > 0 {
                        let step: usize = shape[axis + 1..].iter().product();
                        e[i] = binary(op.operator(), &e[i - step], &e[i], out.dtype);
                    }
                }
                Some(e)
            }
            _ => None,
        }
    }
}

fn small_shape(g: &Graph, v: Value) -> Option<Vec<usize>> {
    let shape = g.ty(v).static_shape()?;
    let n = wgfc_ir::tensor::checked_numel(&shape)?;
    (n <= MAX_ELEMENTS).then_some(shape)
}

/// Every position of a shape in row-major order.
fn positions(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    let n: usize = shape.iter().product();
    (0..n).map(move |mut i| {
        let mut pos = vec![0; shape.len()];
        for d in (0..shape.len()).rev() {
            pos[d] = i % shape[d];
            i /= shape[d];
        }
        pos
    })
}

/// Index expressions evaluated at a position; `None` if one depends on a dimension.
fn position(index: &[Poly], pos: &[usize]) -> Option<Vec<i64>> {
    let var = |a: &Atom| match a {
        Atom::Var(i) => pos.get(*i as usize).map(|p| *p as i64),
        _ => None,
    };
    index.iter().map(|p| p.eval(&var)).collect()
}

fn flat(shape: &[usize], at: &[i64]) -> Option<usize> {
    let mut f = 0;
    for (d, i) in shape.iter().zip(at) {
        let i = usize::try_from(*i).ok()?;
        if i >= *d {
            return None;
        }
        f = f * d + i;
    }
    Some(f)
}

fn eval_body(body: &ScalarFn, types: &[DType], arg: &dyn Fn(u32) -> Elem, pos: &[usize]) -> Elem {
    let mut v: Vec<Elem> = Vec::with_capacity(body.nodes.len());
    for (n, ty) in body.nodes.iter().zip(types) {
        let at = |i: &u32| v.get(*i as usize).unwrap_or(&Elem::Unknown);
        let of = |i: &u32| types.get(*i as usize).copied().unwrap_or(*ty);
        let e = match n {
            ScalarNode::Arg(i) => arg(*i),
            ScalarNode::Const(s) => from_scalar(*s),
            ScalarNode::Index(p) => {
                let vars: Vec<Poly> = pos.iter().map(|p| Poly::from(*p)).collect();
                Elem::Int(p.subst_vars(&vars, &[]))
            }
            ScalarNode::Unary(op, a) => unary(*op, at(a), of(a)),
            ScalarNode::Binary(op, a, b) => binary(*op, at(a), at(b), of(a)),
            ScalarNode::Select(c, a, b) => match at(c) {
                Elem::Int(p) if p.is(0) => at(b).clone(),
                Elem::Int(p) if p.is(1) => at(a).clone(),
                _ if at(a) == at(b) => at(a).clone(),
                _ => Elem::Unknown,
            },
            ScalarNode::Cast(to, a) => cast(at(a), of(a), *to),
            ScalarNode::Bitcast(..) => Elem::Unknown,
        };
        v.push(e);
    }
    v.pop().unwrap_or(Elem::Unknown)
}
