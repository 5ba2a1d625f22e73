//! The core operators and the typing rule of each.
//!
//! | operator | result |
//! |---|---|
//! | `Input`, `Const` | given |
//! | `Map` | `out[i] = body(operands broadcast to i, i)` |
//! | `View` | `out[i] = x[index(i)]`, or `fill` where `index(i)` is outside `x` |
//! | `Reduce` | reduced axes stay with extent 1 |
//! | `ArgReduce` | i64, the axis stays with extent 1 |
//! | `PrefixScan` | running sum, product, maximum or minimum along an axis |
//! | `Contract` | `out[labels] = Σ a[labels]·b[labels]` over the labels that `out` lacks |
//! | `Gather` | `out[i] = data[affine(i) or indices[affine(i)], …]` |
//! | `Scatter` | `data` with `updates` written, or reduced in, at indexed places |
//! | `Place` | `out[index(i)] = updates[i]`: the inverse of a `Gather` that takes every element once |
//! | `Concat` | operands joined along an axis |
//! | `TopK` | sorted prefix along an axis: values, i64 positions |
//! | `Sort` | parts of an axis, of each the least elements in order |
//! | `Softmax`, `Norm`, `Attention` | *raised*: each equals a composition of the above ([`crate::lower`]) |
//! | `If`, `While`, `Scan` | subgraphs |
//!
//! A convolution is a `Contract` of an unfolding `View`; pooling is a `Reduce` of one.
//! Float sums accumulate in f32 whatever the element type.

use crate::dtype::{Class, DType};
use crate::graph::{Graph, TensorType};
use crate::poly::{Dim, Poly};
use crate::scalar::{Scalar, ScalarFn, ScalarNode};
use crate::tensor::Tensor;
use std::sync::Arc;

/// The combination of elements in [`Op::Reduce`], [`Op::PrefixScan`] and [`Op::Scatter`].
///
/// ```
/// use wgfc_ir::{DType, ReduceOp};
/// assert_eq!(ReduceOp::Max.identity(DType::F32).as_f64(), f64::NEG_INFINITY);
/// assert_eq!(ReduceOp::Prod.identity(DType::I64).as_i64(), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceOp {
    /// Sum; the identity is 0.
    Sum,
    /// Product; the identity is 1.
    Prod,
    /// Maximum; the identity is the type's least value. For bool: any.
    Max,
    /// Minimum; the identity is the type's greatest value. For bool: all.
    Min,
}

impl ReduceOp {
    /// Every reduction.
    pub const ALL: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];
    /// The identity of the reduction, which is the result for no elements.
    pub fn identity(self, dtype: DType) -> Scalar {
        let bits = dtype.bits() as u32;
        let int = |v: i64| Scalar { dtype, bits: v as u64 };
        match (self, dtype.class()) {
            (ReduceOp::Sum, _) => Scalar::from_i64(dtype, 0),
            (ReduceOp::Prod, _) => Scalar::from_i64(dtype, 1),
            (ReduceOp::Max, Class::Float) => Scalar::from_f64(dtype, f64::NEG_INFINITY),
            (ReduceOp::Min, Class::Float) => Scalar::from_f64(dtype, f64::INFINITY),
            (ReduceOp::Max, Class::Int) => int(i64::MIN >> (64 - bits)),
            (ReduceOp::Min, Class::Int) => int(i64::MAX >> (64 - bits)),
            (ReduceOp::Max, _) => int(0),
            (ReduceOp::Min, Class::Uint) => Scalar { dtype, bits: u64::MAX >> (64 - bits) },
            (ReduceOp::Min, Class::Bool) => Scalar::bool(true),
        }
    }
    /// The operator that combines two values.
    pub fn operator(self) -> crate::BinaryOp {
        use crate::BinaryOp;
        match self {
            ReduceOp::Sum => BinaryOp::Add,
            ReduceOp::Prod => BinaryOp::Mul,
            ReduceOp::Max => BinaryOp::Max,
            ReduceOp::Min => BinaryOp::Min,
        }
    }
    /// The name in the text format.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
        }
    }
}

/// A sum of products over labelled axes, like an einsum of two operands.
///
/// Labels of `a`, `b` and `out` name their axes in order; a label's extent is the same wherever it
/// stands. A label in all three is a *batch* label, in `a` and `out` an *m* label, in `b` and `out` an
/// *n* label, in `a` and `b` only a *k* label. Each label occurs in at least two places, once in each.
///
/// ```
/// use wgfc_ir::Contract;
/// // A product of matrices for each of several heads.
/// let c = Contract { a: vec![0, 1, 3], b: vec![0, 3, 2], out: vec![0, 1, 2] };
/// assert_eq!((c.batch(), c.m(), c.n(), c.k()), (vec![0], vec![1], vec![2], vec![3]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contract {
    /// Axes of the first operand.
    pub a: Vec<u8>,
    /// Axes of the second operand.
    pub b: Vec<u8>,
    /// Axes of the result.
    pub out: Vec<u8>,
}

impl Contract {
    /// Labels in all three, in the order of `out`.
    pub fn batch(&self) -> Vec<u8> {
        self.out.iter().copied().filter(|l| self.a.contains(l) && self.b.contains(l)).collect()
    }
    /// Labels of `a` and `out` only, in the order of `out`.
    pub fn m(&self) -> Vec<u8> {
        self.out.iter().copied().filter(|l| self.a.contains(l) && !self.b.contains(l)).collect()
    }
    /// Labels of `b` and `out` only, in the order of `out`.
    pub fn n(&self) -> Vec<u8> {
        self.out.iter().copied().filter(|l| !self.a.contains(l) && self.b.contains(l)).collect()
    }
    /// Labels summed over, in the order of `b`.
    pub fn k(&self) -> Vec<u8> {
        self.b.iter().copied().filter(|l| self.a.contains(l) && !self.out.contains(l)).collect()
    }
}

/// The position along one axis of a [`Op::Gather`], [`Op::Scatter`] or [`Op::Place`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GatherAxis {
    /// An index expression over the domain's variables, which is always in range.
    Affine(Poly),
    /// An element of index operand `input` (i32 or i64; its position among the node's inputs), read at `at`. Negative
    /// values count from the end; values that are still out of range are clamped (Gather) or dropped (Scatter, Place).
    Data {
        /// The input of the node that holds the indices.
        input: usize,
        /// The position in the index operand.
        at: Vec<Poly>,
    },
}

/// The normalisation of [`Op::Norm`]; `μ` and `σ²` are taken over `axes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NormKind {
    /// `(x − μ) / √(σ² + ε)`.
    Layer,
    /// `x / √(mean(x²) + ε)`.
    Rms,
}

/// A core operator. See the [module](self) for the result of each. Two operators with subgraphs are equal only if the
/// subgraphs are the same object.
///
/// ```
/// use wgfc_ir::{Contract, DType, Dim, Op, TensorType};
/// let matrix = |rows: &str, columns: &str| TensorType::new(DType::F32, [Dim::sym(rows), Dim::sym(columns)]);
/// let product = Op::Contract(Contract { a: vec![0, 2], b: vec![2, 1], out: vec![0, 1] });
/// let types = product.infer(&[&matrix("m", "k"), &matrix("k", "n")])?;
/// assert_eq!(types, [matrix("m", "n")]);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Op {
    /// A graph input.
    Input,
    /// A constant tensor.
    Const(Arc<Tensor>),
    /// Elementwise; operands broadcast to `shape` aligned at the last axis.
    Map {
        /// The function that is computed for each element.
        body: ScalarFn,
        /// The shape of the result.
        shape: Vec<Dim>,
    },
    /// Reads the operand at other positions: `index[d]`, over the variables of `shape`, is the position along the
    /// operand's axis `d`.
    View {
        /// The shape of the result.
        shape: Vec<Dim>,
        /// One expression per axis of the operand.
        index: Vec<Poly>,
        /// The value where `index` is out of range; `None` promises that it never is.
        fill: Option<Scalar>,
    },
    /// Combines all elements along `axes` into one.
    Reduce {
        /// How elements are combined.
        op: ReduceOp,
        /// The axes to combine along, sorted.
        axes: Vec<usize>,
    },
    /// The position of the largest or smallest element.
    ArgReduce {
        /// `Max` or `Min`.
        op: ReduceOp,
        /// The axis to work along.
        axis: usize,
        /// Whether the last of equal elements is taken rather than the first.
        last: bool,
    },
    /// Prefix scan: each element is combined with all those before it.
    PrefixScan {
        /// How elements are combined.
        op: ReduceOp,
        /// The axis to work along.
        axis: usize,
        /// Whether the element itself is left out.
        exclusive: bool,
        /// Whether the scan starts at the end of the axis.
        reverse: bool,
    },
    /// Sum of products. Inputs: a, b, of one element type.
    Contract(Contract),
    /// Reads at indexed positions. Inputs: data, index operands.
    Gather {
        /// The shape of the result.
        shape: Vec<Dim>,
        /// One per axis of data, over the variables of `shape`.
        index: Vec<GatherAxis>,
    },
    /// Writes at indexed positions. Inputs: data, updates, index operands. With `reduce: None` no two updates should
    /// have the same position: it is unspecified which of them remains (the evaluator keeps the last one).
    Scatter {
        /// The reduction with the old elements; `None` replaces them.
        reduce: Option<ReduceOp>,
        /// One per axis of data, over the variables of updates' shape.
        index: Vec<GatherAxis>,
    },
    /// Writes a new tensor at indexed positions. Inputs: updates, index operands. Promises that each element of the
    /// result is written once; updates out of range are dropped.
    Place {
        /// The shape of the result.
        shape: Vec<Dim>,
        /// One per axis of the result, over the variables of updates' shape.
        index: Vec<GatherAxis>,
    },
    /// Concatenates its operands along an axis.
    Concat {
        /// The axis to work along.
        axis: usize,
    },
    /// The `k` largest or smallest elements along an axis in sorted order; of equal elements the first wins. Outputs:
    /// values, positions (i64).
    TopK {
        /// The axis to work along.
        axis: usize,
        /// The number of elements to keep.
        k: Dim,
        /// Whether the largest elements are kept rather than the smallest.
        largest: bool,
    },
    /// Cuts an axis into parts and sorts each in ascending order: a step of a [`Op::TopK`] over a long axis.
    Sort {
        /// The axis to work along.
        axis: usize,
        /// The length of the runs in a part that are already sorted, of which the last may be shorter; 1 if nothing is
        /// known.
        sorted: i64,
        /// The number of elements in a part; the last part may have fewer.
        part: i64,
        /// The number of smallest elements kept of each part: all of them if `sorted` is above 1. If fewer than all
        /// are kept, a last part that is too short is filled up with the type's greatest value.
        keep: i64,
    },
    /// `exp(x − max) / Σ exp(x − max)` along an axis, or its logarithm.
    Softmax {
        /// The axis to work along.
        axis: usize,
        /// Whether the result is the logarithm of the softmax.
        log: bool,
    },
    /// Normalisation without scale and bias.
    Norm {
        /// The kind of normalisation.
        kind: NormKind,
        /// The axes over which mean and variance are taken, sorted.
        axes: Vec<usize>,
        /// The number that is added to the variance, as the bits of an `f32`.
        epsilon: u32,
    },
    /// `softmax(q·kᵀ·scale + mask)·v`. Inputs: q `[…, s, d]`, k `[…, t, d]`, v `[…, t, e]` and optionally a mask, of
    /// their type or f32, that broadcasts to `[…, s, t]`. A row whose scores are all at most the most negative finite
    /// f32 gives the mean of v, as softmax does, or 0 if `empty_is_zero`. Scores are clamped to finite numbers, so
    /// that +∞ gives no NaN.
    Attention {
        /// The scale of the scores, as the bits of an `f32`.
        scale: u32,
        /// Whether a key whose score is at most the most negative finite f32 is hidden: it has no weight, and a row
        /// without visible keys is 0.
        empty_is_zero: bool,
    },
    /// Inputs: a bool of one element, then the values that the branches read as their graph inputs.
    If {
        /// Computed where the condition is true.
        then_branch: Box<Graph>,
        /// Computed where the condition is false.
        else_branch: Box<Graph>,
    },
    /// A loop that ends after a number of iterations or once a condition is false, whichever comes first: ONNX's Loop.
    /// A loop that always runs to its trip count is imported as [`Op::Scan`] instead. Inputs: trip count (i64),
    /// condition (bool), carried values, then captured values. The body's inputs: iteration (i64), condition, carried,
    /// captured; its outputs: condition, carried, one slice for each stacked output. The number of iterations is the
    /// symbol `trips_` followed by the name of the body's output.
    While {
        /// The graph of one iteration.
        body: Box<Graph>,
        /// The number of carried values.
        carried: usize,
    },
    /// A loop over the slices of arrays along axis 0, with one iteration for each: ONNX's Scan. Inputs: carried
    /// values, scanned values, then captured values. The body's inputs are the same, with a slice of each scanned
    /// value. Its outputs: carried values, then one slice for each stacked output.
    Scan {
        /// The graph of one iteration.
        body: Box<Graph>,
        /// The number of carried values.
        carried: usize,
        /// The number of scanned inputs.
        scanned: usize,
        /// For each scanned input, whether it runs backwards.
        reverse_inputs: Vec<bool>,
        /// For each stacked output, whether it runs backwards: the slice of the last iteration comes first.
        reverse_outputs: Vec<bool>,
    },
}

impl Op {
    /// A short name for messages and the text format.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input => "input",
            Op::Const(_) => "const",
            Op::Map { .. } => "map",
            Op::View { .. } => "view",
            Op::Reduce { .. } => "reduce",
            Op::ArgReduce { .. } => "arg_reduce",
            Op::PrefixScan { .. } => "prefix_scan",
            Op::Contract(_) => "contract",
            Op::Gather { .. } => "gather",
            Op::Scatter { .. } => "scatter",
            Op::Place { .. } => "place",
            Op::Concat { .. } => "concat",
            Op::TopK { .. } => "top_k",
            Op::Sort { .. } => "sort",
            Op::Softmax { .. } => "softmax",
            Op::Norm { .. } => "norm",
            Op::Attention { .. } => "attention",
            Op::If { .. } => "if",
            Op::While { .. } => "while",
            Op::Scan { .. } => "scan",
        }
    }

    /// The symbolic integers in its attributes, without those of subgraphs.
    pub fn polys(&self) -> Vec<&Poly> {
        fn axes(index: &[GatherAxis]) -> Vec<&Poly> {
            let mut out = vec![];
            for a in index {
                match a {
                    GatherAxis::Affine(p) => out.push(p),
                    GatherAxis::Data { at, .. } => out.extend(at),
                }
            }
            out
        }
        match self {
            Op::Map { body, shape } => {
                let index = body.nodes.iter().filter_map(|n| match n {
                    ScalarNode::Index(p) => Some(p),
                    _ => None,
                });
                index.chain(shape).collect()
            }
            Op::View { shape, index, .. } => shape.iter().chain(index).collect(),
            Op::Gather { shape, index } | Op::Place { shape, index } => {
                shape.iter().chain(axes(index)).collect()
            }
            Op::Scatter { index, .. } => axes(index),
            Op::TopK { k, .. } => vec![k],
            _ => vec![],
        }
    }

    /// Rejects a view that would read elements of a tensor that has none for any values of the symbols.
    pub(crate) fn reads_elements(&self, t: &[&TensorType]) -> Result<(), String> {
        let Op::View { shape, fill: None, .. } = self else { return Ok(()) };
        let some = shape.iter().all(|d| d.as_const().is_some_and(|d| d > 0));
        match t.first().filter(|t| some && t.shape.iter().any(|d| d.is(0))) {
            Some(t) => Err(format!("reads elements of a tensor of type {t}, which has none")),
            None => Ok(()),
        }
    }

    /// The output types for these input types, or an error message.
    pub fn infer(&self, t: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let arity = |n: usize| {
            if t.len() == n {
                Ok(())
            } else {
                Err(format!("`{}` takes {n} operands, got {}", self.name(), t.len()))
            }
        };
        let axis_in = |axis: usize, rank: usize| {
            if axis < rank { Ok(()) } else { Err(format!("axis {axis} of a tensor of rank {rank}")) }
        };
        match self {
            Op::Input => Err("an input's type is declared, not inferred".into()),
            Op::Const(c) => {
                arity(0)?;
                let shape: Vec<Dim> = c.shape.iter().map(|d| Dim::from(*d)).collect();
                Ok(vec![TensorType::new(c.dtype, shape)])
            }
            Op::Map { body, shape } => {
                for (i, x) in t.iter().enumerate() {
                    if !broadcasts_to(&x.shape, shape) {
                        return Err(format!("operand {i} of type {x} does not broadcast to {}", show(shape)));
                    }
                }
                let args: Vec<DType> = t.iter().map(|x| x.dtype).collect();
                let types = body.types(&args)?;
                check_vars(
                    body.nodes.iter().filter_map(|n| match n {
                        ScalarNode::Index(p) => Some(p),
                        _ => None,
                    }),
                    shape.len(),
                )?;
                Ok(vec![TensorType::new(types[types.len() - 1], shape.clone())])
            }
            Op::View { shape, index, fill } => {
                arity(1)?;
                if index.len() != t[0].rank() {
                    return Err(format!("{} index expressions for an operand of type {}", index.len(), t[0]));
                }
                if let Some(f) = fill
                    && f.dtype != t[0].dtype
                {
                    return Err(format!("fill of type {} for an operand of type {}", f.dtype, t[0]));
                }
                check_vars(index.iter(), shape.len())?;
                Ok(vec![TensorType::new(t[0].dtype, shape.clone())])
            }
            Op::Reduce { op, axes } => {
                arity(1)?;
                let mut ty = t[0].clone();
                if ty.dtype == DType::Bool && matches!(op, ReduceOp::Sum | ReduceOp::Prod) {
                    return Err(format!("{} of bool", op.name()));
                }
                for a in axes {
                    axis_in(*a, ty.rank())?;
                    ty.shape[*a] = Dim::ONE;
                }
                Ok(vec![ty])
            }
            Op::ArgReduce { axis, .. } => {
                arity(1)?;
                axis_in(*axis, t[0].rank())?;
                let mut shape = t[0].shape.clone();
                shape[*axis] = Dim::ONE;
                Ok(vec![TensorType::new(DType::I64, shape)])
            }
            Op::PrefixScan { axis, .. } => {
                arity(1)?;
                axis_in(*axis, t[0].rank())?;
                Ok(vec![t[0].clone()])
            }
            Op::Contract(c) => {
                arity(2)?;
                let mut extent: std::collections::BTreeMap<u8, &Dim> = Default::default();
                for (labels, ty) in [(&c.a, t[0]), (&c.b, t[1])] {
                    if labels.len() != ty.rank() {
                        return Err(format!("{} labels for an operand of type {ty}", labels.len()));
                    }
                    for (l, d) in labels.iter().zip(&ty.shape) {
                        if let Some(e) = extent.insert(*l, d)
                            && e != d
                        {
                            return Err(format!("inner dimensions differ: {e} and {d}"));
                        }
                    }
                }
                if t[0].dtype != t[1].dtype {
                    return Err(format!("operands of different types: {} and {}", t[0], t[1]));
                }
                let shape = c
                    .out
                    .iter()
                    .map(|l| {
                        extent
                            .get(l)
                            .map(|d| (*d).clone())
                            .ok_or_else(|| format!("label {l} is in no operand"))
                    })
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(vec![TensorType::new(t[0].dtype, shape)])
            }
            Op::Gather { shape, index } => {
                let data = t.first().ok_or("no data operand")?;
                if index.len() != data.rank() {
                    return Err(format!("{} indices for data of type {data}", index.len()));
                }
                check_gather(index, t, shape.len())?;
                Ok(vec![TensorType::new(data.dtype, shape.clone())])
            }
            Op::Scatter { index, .. } => {
                let [data, updates, ..] = t else { return Err("needs data and updates".into()) };
                if index.len() != data.rank() {
                    return Err(format!("{} indices for data of type {data}", index.len()));
                }
                if data.dtype != updates.dtype {
                    return Err(format!("updates of type {updates} for data of type {data}"));
                }
                check_gather(index, t, updates.rank())?;
                Ok(vec![(*data).clone()])
            }
            Op::Place { shape, index } => {
                let updates = t.first().ok_or("needs updates")?;
                if index.len() != shape.len() {
                    return Err(format!("{} indices for a result of shape {}", index.len(), show(shape)));
                }
                check_gather(index, t, updates.rank())?;
                Ok(vec![TensorType::new(updates.dtype, shape.clone())])
            }
            Op::Concat { axis } => {
                let first = t.first().ok_or("no operands")?;
                axis_in(*axis, first.rank())?;
                let mut ty = (*first).clone();
                for (i, x) in t.iter().enumerate().skip(1) {
                    let same = x.rank() == ty.rank()
                        && x.dtype == ty.dtype
                        && (0..ty.rank()).all(|d| d == *axis || x.shape[d] == ty.shape[d]);
                    if !same {
                        return Err(format!(
                            "operand {i} of type {x} does not join {first} along axis {axis}"
                        ));
                    }
                    ty.shape[*axis] = &ty.shape[*axis] + &x.shape[*axis];
                }
                Ok(vec![ty])
            }
            Op::TopK { axis, k, .. } => {
                arity(1)?;
                axis_in(*axis, t[0].rank())?;
                let mut ty = t[0].clone();
                ty.shape[*axis] = k.clone();
                let index = TensorType::new(DType::I64, ty.shape.clone());
                Ok(vec![ty, index])
            }
            Op::Sort { axis, sorted, part, keep } => {
                arity(1)?;
                axis_in(*axis, t[0].rank())?;
                if !t[0].dtype.is_int() {
                    return Err(format!("sorts integers, not {}", t[0]));
                }
                let leaves = keep < part && *sorted > 1;
                if !(1..=*part).contains(sorted) || !(1..=*part).contains(keep) || leaves {
                    return Err(format!("parts of {part} with {sorted} in order, of which {keep} are kept"));
                }
                let mut ty = t[0].clone();
                if keep < part {
                    ty.shape[*axis] = &ty.shape[*axis].ceil_div(*part) * *keep;
                }
                Ok(vec![ty])
            }
            Op::Softmax { axis, .. } => {
                arity(1)?;
                axis_in(*axis, t[0].rank())?;
                float(t[0])?;
                Ok(vec![t[0].clone()])
            }
            Op::Norm { axes, .. } => {
                arity(1)?;
                for a in axes {
                    axis_in(*a, t[0].rank())?;
                }
                float(t[0])?;
                Ok(vec![t[0].clone()])
            }
            Op::Attention { .. } => {
                if !(3..=4).contains(&t.len()) {
                    return Err(format!("takes 3 or 4 operands, got {}", t.len()));
                }
                let (q, k, v) = (t[0], t[1], t[2]);
                let r = q.rank();
                if r < 2 || k.rank() != r || v.rank() != r {
                    return Err(format!("q {q}, k {k} and v {v} need one rank of at least 2"));
                }
                float(q)?;
                let batch = r - 2;
                if q.shape[..batch] != k.shape[..batch]
                    || k.shape[..batch] != v.shape[..batch]
                    || q.shape[r - 1] != k.shape[r - 1]
                    || k.shape[batch] != v.shape[batch]
                    || q.dtype != k.dtype
                    || k.dtype != v.dtype
                {
                    return Err(format!("q {q}, k {k} and v {v} do not fit"));
                }
                let mut shape = q.shape.clone();
                if let Some(m) = t.get(3) {
                    shape[r - 1] = k.shape[batch].clone();
                    if !broadcasts_to(&m.shape, &shape) || (m.dtype != q.dtype && m.dtype != DType::F32) {
                        return Err(format!("mask {m} does not broadcast to scores {}", show(&shape)));
                    }
                }
                shape[r - 1] = v.shape[r - 1].clone();
                Ok(vec![TensorType::new(q.dtype, shape)])
            }
            Op::If { then_branch, else_branch } => {
                let types = |g: &Graph| g.outputs.iter().map(|o| g.ty(o.value).clone()).collect::<Vec<_>>();
                let (a, b) = (types(then_branch), types(else_branch));
                if a != b {
                    return Err("the branches have different output types".into());
                }
                Ok(a)
            }
            Op::While { body, carried } => {
                let mut out = vec![];
                for (i, o) in body.outputs.iter().skip(1).enumerate() {
                    let mut ty = body.ty(o.value).clone();
                    if i >= *carried {
                        ty.shape.insert(0, Dim::sym(&trips_of(&o.name)));
                    }
                    out.push(ty);
                }
                Ok(out)
            }
            Op::Scan { body, carried, .. } => {
                let length = t.get(*carried).and_then(|x| x.shape.first()).ok_or("nothing to scan")?;
                let mut out = vec![];
                for (i, o) in body.outputs.iter().enumerate() {
                    let mut ty = body.ty(o.value).clone();
                    if i >= *carried {
                        ty.shape.insert(0, length.clone());
                    }
                    out.push(ty);
                }
                Ok(out)
            }
        }
    }
}

/// The symbol for the number of iterations of an [`Op::While`], which is the extent of the output that stacks its
/// slices.
fn trips_of(output: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("trips_{}", output.chars().map(word).collect::<String>())
}

/// Whether `from` broadcasts to `to`, aligned at the last axis.
///
/// ```
/// use wgfc_ir::Dim;
/// use wgfc_ir::op::{broadcasts_to, show};
/// let shape = [Dim::sym("batch"), Dim::constant(7)];
/// assert!(broadcasts_to(&[Dim::ONE, Dim::constant(7)], &shape));
/// assert_eq!(show(&shape), "[batch, 7]");
/// ```
pub fn broadcasts_to(from: &[Dim], to: &[Dim]) -> bool {
    from.len() <= to.len() && from.iter().rev().zip(to.iter().rev()).all(|(f, t)| f.is(1) || f == t)
}

/// A shape for messages: `[2, seq, 64]`.
pub fn show(shape: &[Dim]) -> String {
    format!("[{}]", shape.iter().map(Dim::to_string).collect::<Vec<_>>().join(", "))
}

fn float(t: &TensorType) -> Result<(), String> {
    if t.dtype.is_float() { Ok(()) } else { Err(format!("needs a float operand, got {t}")) }
}

fn check_vars<'a>(polys: impl Iterator<Item = &'a Poly>, rank: usize) -> Result<(), String> {
    for p in polys {
        if p.vars().last().is_some_and(|v| *v >= rank) {
            return Err(format!("`{p}` uses a variable beyond rank {rank}"));
        }
    }
    Ok(())
}

fn check_gather(index: &[GatherAxis], t: &[&TensorType], rank: usize) -> Result<(), String> {
    for ax in index {
        match ax {
            GatherAxis::Affine(p) => check_vars([p].into_iter(), rank)?,
            GatherAxis::Data { input, at } => {
                let ty = t.get(*input).ok_or_else(|| format!("no index operand {input}"))?;
                if !matches!(ty.dtype, DType::I32 | DType::I64) {
                    return Err(format!("indices of type {ty}"));
                }
                if at.len() != ty.rank() {
                    return Err(format!("{} positions for indices of type {ty}", at.len()));
                }
                check_vars(at.iter(), rank)?;
            }
        }
    }
    Ok(())
}
