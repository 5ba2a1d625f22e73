//! Evaluation of shape arithmetic while compiling.
//!
//! Models compute shapes with tensors: `Shape → Gather → Mul → Concat → Reshape`. This module is an
//! abstract interpreter of core operators over small tensors whose elements are symbolic integers
//! ([`Poly`] over dimensions), exact fractions of them, or plain floats. It is lazy and remembers
//! what it has found; a graph may only grow while one evaluator looks at it.
//!
//! An element that depends on data is *unknown*; so is one whose value hangs on the sign of an
//! expression that is not decided for all non-negative dimensions.

use rustc_hash::FxHashMap;
use std::sync::Arc;
use wgfc_ir::{
    Atom, BinaryOp, Class, DType, Dim, GatherAxis, Graph, Op, Poly, ReduceOp, Scalar, ScalarFn, ScalarNode,
    UnaryOp, Value, storage,
};

/// Tensors with more elements are not looked at.
pub const MAX_ELEMENTS: usize = 1024;

/// What is known of one element.
#[derive(Clone, Debug, PartialEq)]
pub enum Elem {
    /// Nothing.
    Unknown,
    /// An integer, or a bool as 0 or 1.
    Int(Poly),
    /// A float.
    Float(f64),
    /// A float: an expression of dimensions over a positive constant.
    Ratio(Poly, i64),
}

/// See the [module](self).
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

    /// Declares the elements of a value.
    pub fn set(&mut self, v: Value, elements: &[Dim]) {
        self.known.insert(v, Some(elements.iter().map(|d| Elem::Int(d.clone())).collect()));
    }

    /// What is known of each element; `None` when nothing is, or the tensor is large or of symbolic shape.
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
                && !matches!(node.op, Op::If { .. } | Op::Loop { .. } | Op::Scan { .. } | Op::Contract(_))
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
                // Row-major: for each position before the axis, each operand's block in turn.
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
                        Some(acc) => binary(combine(*op), &acc, &x, out.dtype),
                        None => x,
                    });
                }
                Some(result.into_iter().map(|x| x.unwrap_or(Elem::Unknown)).collect())
            }
            Op::Cumulate { op, axis, exclusive: false, reverse: false } => {
                let mut e = self.get(*node.inputs.first()?)?.to_vec();
                for (i, pos) in positions(&shape).enumerate() {
                    if *pos.get(*axis)? > 0 {
                        let step: usize = shape[axis + 1..].iter().product();
                        e[i] = binary(combine(*op), &e[i - step], &e[i], out.dtype);
                    }
                }
                Some(e)
            }
            _ => None,
        }
    }
}

fn combine(op: ReduceOp) -> BinaryOp {
    match op {
        ReduceOp::Sum => BinaryOp::Add,
        ReduceOp::Prod => BinaryOp::Mul,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::Min => BinaryOp::Min,
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

/// Index expressions at a position; `None` when one depends on a dimension.
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

fn from_scalar(s: Scalar) -> Elem {
    match s.dtype.class() {
        Class::Float => Elem::Float(s.as_f64()),
        Class::Uint if s.bits > i64::MAX as u64 => Elem::Unknown,
        _ => Elem::Int(Poly::constant(s.as_i64())),
    }
}

fn truth(v: bool) -> Elem {
    Elem::Int(Poly::constant(i64::from(v)))
}

fn eval_body(body: &ScalarFn, types: &[DType], arg: &dyn Fn(u32) -> Elem, pos: &[usize]) -> Elem {
    let mut v: Vec<Elem> = Vec::with_capacity(body.nodes.len());
    for (n, ty) in body.nodes.iter().zip(types) {
        let at = |i: &u32| v.get(*i as usize).unwrap_or(&Elem::Unknown);
        let e = match n {
            ScalarNode::Arg(i) => arg(*i),
            ScalarNode::Const(s) => from_scalar(*s),
            ScalarNode::Index(p) => {
                let vars: Vec<Poly> = pos.iter().map(|p| Poly::from(*p)).collect();
                Elem::Int(p.subst_vars(&vars, &[]))
            }
            ScalarNode::Unary(op, a) => unary(*op, at(a), *ty),
            ScalarNode::Binary(op, a, b) => {
                binary(*op, at(a), at(b), types.get(*a as usize).copied().unwrap_or(*ty))
            }
            ScalarNode::Select(c, a, b) => match at(c) {
                Elem::Int(p) if p.is(0) => at(b).clone(),
                Elem::Int(p) if p.is(1) => at(a).clone(),
                _ if at(a) == at(b) => at(a).clone(),
                _ => Elem::Unknown,
            },
            ScalarNode::Cast(to, a) => cast(at(a), *to),
            ScalarNode::Bitcast(..) => Elem::Unknown,
        };
        v.push(e);
    }
    v.pop().unwrap_or(Elem::Unknown)
}

/// Keeps a constant within its type.
fn fit(p: Poly, dtype: DType) -> Elem {
    match p.as_const() {
        Some(c) => {
            from_scalar(storage::from_raw(dtype, storage::to_raw(dtype, Scalar::from_i64(DType::I64, c))))
        }
        None => Elem::Int(p),
    }
}

fn float(v: f64, dtype: DType) -> Elem {
    Elem::Float(Scalar::from_f64(dtype, v).as_f64())
}

fn ratio(p: Poly, den: i64, dtype: DType) -> Elem {
    match p.as_const() {
        Some(c) => float(c as f64 / den as f64, dtype),
        None => Elem::Ratio(p, den),
    }
}

fn cast(e: &Elem, to: DType) -> Elem {
    match (e, to.class()) {
        (Elem::Unknown, _) => Elem::Unknown,
        (Elem::Int(p), Class::Float) => ratio(p.clone(), 1, to),
        (Elem::Int(p), Class::Bool) => match p.as_const() {
            Some(c) => truth(c != 0),
            None if (p - 1).proves_nonneg(&[]) => truth(true),
            None => Elem::Unknown,
        },
        (Elem::Int(p), _) => fit(p.clone(), to),
        (Elem::Float(f), Class::Float) => float(*f, to),
        (Elem::Float(f), Class::Bool) => truth(*f != 0.0),
        (Elem::Float(f), _) if f.is_finite() => fit(Poly::constant(*f as i64), to),
        (Elem::Ratio(..), Class::Float) => e.clone(),
        (Elem::Ratio(p, den), Class::Int | Class::Uint) if p.proves_nonneg(&[]) => {
            Elem::Int(p.div(&Poly::constant(*den), &[]))
        }
        _ => Elem::Unknown,
    }
}

fn unary(op: UnaryOp, a: &Elem, ty: DType) -> Elem {
    match (op, a) {
        (UnaryOp::Neg, Elem::Int(p)) => fit(-p, ty),
        (UnaryOp::Neg, Elem::Ratio(p, d)) => Elem::Ratio(-p, *d),
        (UnaryOp::Abs, Elem::Int(p)) => {
            if p.proves_nonneg(&[]) {
                a.clone()
            } else if (-p).proves_nonneg(&[]) {
                fit(-p, ty)
            } else {
                Elem::Unknown
            }
        }
        (UnaryOp::Sign, Elem::Int(p)) => match p.as_const() {
            Some(c) => Elem::Int(Poly::constant(c.signum())),
            None if (p - 1).proves_nonneg(&[]) => Elem::Int(Poly::ONE),
            None => Elem::Unknown,
        },
        (UnaryOp::Not, Elem::Int(p)) if ty == DType::Bool => match p.as_const() {
            Some(c) => truth(c == 0),
            None => Elem::Unknown,
        },
        (UnaryOp::Not, Elem::Int(p)) => p.as_const().map_or(Elem::Unknown, |c| fit(Poly::constant(!c), ty)),
        (UnaryOp::Floor | UnaryOp::Trunc, Elem::Ratio(p, d)) if p.proves_nonneg(&[]) => {
            Elem::Ratio(p.div(&Poly::constant(*d), &[]), 1)
        }
        (UnaryOp::Ceil, Elem::Ratio(p, d)) => Elem::Ratio(p.ceil_div(*d), 1),
        (UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc, Elem::Int(_)) => a.clone(),
        (op, Elem::Float(f)) => {
            let v = match op {
                UnaryOp::Neg => -f,
                UnaryOp::Abs => f.abs(),
                UnaryOp::Floor => f.floor(),
                UnaryOp::Ceil => f.ceil(),
                UnaryOp::Round => f.round_ties_even(),
                UnaryOp::Trunc => f.trunc(),
                UnaryOp::Sqrt => f.sqrt(),
                UnaryOp::Recip => 1.0 / f,
                UnaryOp::Exp => f.exp(),
                UnaryOp::Log => f.ln(),
                UnaryOp::IsNan => return truth(f.is_nan()),
                UnaryOp::IsInf => return truth(f.is_infinite()),
                _ => return Elem::Unknown,
            };
            float(v, ty)
        }
        _ => Elem::Unknown,
    }
}

/// Two operands of type `ty`.
fn binary(op: BinaryOp, a: &Elem, b: &Elem, ty: DType) -> Elem {
    use BinaryOp::*;
    match (a, b) {
        (Elem::Int(x), Elem::Int(y)) => int_binary(op, x, y, ty),
        (Elem::Float(x), Elem::Float(y)) => {
            let v = match op {
                Add => x + y,
                Sub => x - y,
                Mul => x * y,
                Div => x / y,
                Pow => x.powf(*y),
                Rem => x % y,
                Min => x.min(*y),
                Max => x.max(*y),
                Eq => return truth(x == y),
                Ne => return truth(x != y),
                Lt => return truth(x < y),
                Le => return truth(x <= y),
                Gt => return truth(x > y),
                Ge => return truth(x >= y),
                _ => return Elem::Unknown,
            };
            float(v, ty)
        }
        // Anything times zero, and or with a decided side.
        (Elem::Unknown, Elem::Int(k)) | (Elem::Int(k), Elem::Unknown) => match op {
            Mul if k.is(0) => b_or(a, b),
            And if k.is(0) && ty == DType::Bool => truth(false),
            Or if k.is(1) && ty == DType::Bool => truth(true),
            _ => Elem::Unknown,
        },
        (Elem::Unknown, _) | (_, Elem::Unknown) => Elem::Unknown,
        _ => {
            let (Some((p, m)), Some((q, n))) = (as_ratio(a), as_ratio(b)) else { return Elem::Unknown };
            let (Some(common), true) = (m.checked_mul(n), m > 0 && n > 0) else { return Elem::Unknown };
            let (x, y) = (&p * n, &q * m);
            match op {
                Add => ratio(&x + &y, common, ty),
                Sub => ratio(&x - &y, common, ty),
                Mul => ratio(&p * &q, common, ty),
                Div => match q.as_const().and_then(|c| m.checked_mul(c)) {
                    Some(den) if den > 0 => ratio(&p * n, den, ty),
                    _ => Elem::Unknown,
                },
                Min if m == n => ratio(p.min_of(&q, &[]), m, ty),
                Max if m == n => ratio(p.max_of(&q, &[]), m, ty),
                Eq | Ne | Lt | Le | Gt | Ge => int_binary(op, &x, &y, DType::I64),
                _ => Elem::Unknown,
            }
        }
    }
}

fn b_or(a: &Elem, b: &Elem) -> Elem {
    if *a == Elem::Unknown { b.clone() } else { a.clone() }
}

/// A float as an exact fraction with a small denominator.
fn as_ratio(e: &Elem) -> Option<(Poly, i64)> {
    match e {
        Elem::Int(p) => Some((p.clone(), 1)),
        Elem::Ratio(p, d) => Some((p.clone(), *d)),
        Elem::Float(f) => (0..=16).find_map(|k| {
            let scaled = f * f64::from(1u32 << k);
            (scaled.fract() == 0.0 && scaled.abs() < 2f64.powi(31))
                .then(|| (Poly::constant(scaled as i64), 1i64 << k))
        }),
        Elem::Unknown => None,
    }
}

fn int_binary(op: BinaryOp, x: &Poly, y: &Poly, ty: DType) -> Elem {
    use BinaryOp::*;
    let consts = x.as_const().zip(y.as_const());
    let nonneg = |p: &Poly| p.proves_nonneg(&[]);
    // Decided for every value of the dimensions?
    let less = |a: &Poly, b: &Poly| {
        let d = b - a;
        if nonneg(&(&d - 1)) {
            Some(true)
        } else if nonneg(&-&d) {
            Some(false)
        } else {
            None
        }
    };
    let decided = |v: Option<bool>| v.map_or(Elem::Unknown, truth);
    let equal = || {
        if x == y {
            Some(true)
        } else if less(x, y) == Some(true) || less(y, x) == Some(true) {
            Some(false)
        } else {
            None
        }
    };
    match op {
        Add => fit(x + y, ty),
        Sub => fit(x - y, ty),
        Mul => fit(x * y, ty),
        Min => fit(x.min_of(y, &[]), ty),
        Max => fit(x.max_of(y, &[]), ty),
        Eq => decided(equal()),
        Ne => decided(equal().map(|v| !v)),
        Lt => decided(less(x, y)),
        Gt => decided(less(y, x)),
        Le => decided(less(y, x).map(|v| !v)),
        Ge => decided(less(x, y).map(|v| !v)),
        Div => match consts {
            Some((_, 0)) => Elem::Int(Poly::ZERO),
            Some((a, b)) => fit(Poly::constant(a.wrapping_div(b)), ty),
            // Floor and truncation agree where nothing is negative.
            None if y.is(0) || !nonneg(y) => Elem::Unknown,
            None if nonneg(x) => Elem::Int(x.div(y, &[])),
            None if nonneg(&-x) => Elem::Int(-&(-x).div(y, &[])),
            None => Elem::Unknown,
        },
        Mod | Rem => match consts {
            Some((_, 0)) => Elem::Unknown,
            Some((a, b)) => {
                let r = a.wrapping_rem(b);
                let wrap = op == Mod && r != 0 && (r < 0) != (b < 0);
                fit(Poly::constant(if wrap { r + b } else { r }), ty)
            }
            None if y.is(0) || !nonneg(y) => Elem::Unknown,
            None if op == Mod || nonneg(x) => Elem::Int(x.modulo(y, &[])),
            None => Elem::Unknown,
        },
        Pow => match consts {
            Some((a, b)) => u32::try_from(b)
                .ok()
                .and_then(|b| a.checked_pow(b))
                .map_or(Elem::Unknown, |v| fit(Poly::constant(v), ty)),
            None => match y.as_const() {
                Some(k @ 0..=4) => Elem::Int((0..k).fold(Poly::ONE, |p, _| &p * x)),
                _ => Elem::Unknown,
            },
        },
        And | Or | Xor => match consts {
            Some((a, b)) => {
                let v = match op {
                    And => a & b,
                    Or => a | b,
                    _ => a ^ b,
                };
                fit(Poly::constant(v), ty)
            }
            None => Elem::Unknown,
        },
        Shl | Shr => match consts {
            Some((a, b @ 0..=62)) if a >= 0 => {
                if op == Shl {
                    a.checked_mul(1 << b).map_or(Elem::Unknown, |v| fit(Poly::constant(v), ty))
                } else {
                    Elem::Int(Poly::constant(a >> b))
                }
            }
            _ => Elem::Unknown,
        },
    }
}
