//! The context in which operators are lowered.

use super::inside::Inside;
use super::sizes;
use super::{OpError, Result};
use crate::shape_eval::ShapeEval;
use petgraph::visit::Dfs;
use std::collections::{BTreeSet, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use wgfc_ir::{
    BinaryOp, Border, Builder, DType, Dim, Graph, NodeId, Op, Poly, ReduceOp, Scalar, TensorType, Value,
};

/// A graph into which operators are lowered, and the values known while compiling. Dereferences to the [`Builder`] of
/// the graph.
///
/// Each graph has its own: the model's graph, and that of each branch and loop body ([`Lowering::body`]).
/// [`Lowering::at`] sets the operator of the model to which new nodes belong.
pub struct Lowering<'g> {
    builder: Builder<'g>,
    eval: ShapeEval,
    /// The name of the first result of the current operator.
    result: String,
    /// Whether the graph is a branch or a loop body.
    inner: bool,
    /// The tensors that are tapped, replaced or added to.
    pub(super) inside: Inside,
    /// The iteration number (i64, rank 0) in the body of a loop.
    pub iteration: Option<Value>,
    /// The key of this run's random numbers ([`random::run_key`](super::random::run_key)), once it is needed.
    pub run_key: Option<Value>,
    /// The number of draws since the model gave the key itself; `None` if it has not.
    pub drawn: Option<u32>,
    /// Scalars of 1 that the model makes like another value, and that value: the seed of a backward pass is one like the loss.
    pub ones: Vec<(Value, Value)>,
    /// The warnings for the user, without duplicates.
    pub warnings: Vec<String>,
    /// Inputs of the model whose values, if known while compiling, would allow more to be lowered.
    pub data_inputs: BTreeSet<String>,
}

/// A size or a position.
#[derive(Clone, Debug, PartialEq)]
pub enum Size {
    /// A number, or an expression of dimensions.
    Known(Poly),
    /// A value computed at run time: an integer tensor of one element.
    Computed(Value),
}

/// The operator of the model to which new nodes belong.
#[derive(Clone, Debug, Default)]
pub struct Place {
    origin: Vec<Arc<str>>,
    result: String,
}

impl Place {
    /// The operator's name in the model, and the name of its first result, which may be empty.
    pub fn new(operator: &str, result: &str) -> Place {
        Place { origin: vec![operator.into()], result: result.to_owned() }
    }
}

impl<'g> Deref for Lowering<'g> {
    type Target = Builder<'g>;
    fn deref(&self) -> &Builder<'g> {
        &self.builder
    }
}
impl<'g> DerefMut for Lowering<'g> {
    fn deref_mut(&mut self) -> &mut Builder<'g> {
        &mut self.builder
    }
}

impl<'g> Lowering<'g> {
    /// Lowers into the graph of a model.
    pub fn new(graph: &'g mut Graph) -> Lowering<'g> {
        Lowering {
            builder: Builder { graph, origin: vec![] },
            eval: ShapeEval::default(),
            result: String::new(),
            inner: false,
            inside: Inside::default(),
            iteration: None,
            run_key: None,
            drawn: None,
            ones: vec![],
            warnings: vec![],
            data_inputs: BTreeSet::new(),
        }
    }

    /// Lowers into the graph of a branch or of a loop body.
    pub fn body(graph: &'g mut Graph) -> Lowering<'g> {
        Lowering { inner: true, ..Lowering::new(graph) }
    }

    /// Whether this is the graph of a branch or of a loop body.
    pub(super) fn is_inner(&self) -> bool {
        self.inner
    }

    /// Sets the operator to which new nodes belong, and returns the previous place.
    pub fn at(&mut self, place: Place) -> Place {
        Place {
            origin: std::mem::replace(&mut self.builder.origin, place.origin),
            result: std::mem::replace(&mut self.result, place.result),
        }
    }

    /// The operator to which new nodes belong.
    pub fn place(&self) -> Place {
        Place { origin: self.builder.origin.clone(), result: self.result.clone() }
    }

    /// The value after `steps` iterations of a loop that starts with `first`. Each iteration computes the next value
    /// from the current one and from the loop-invariant `read`.
    pub fn repeated(
        &mut self,
        steps: usize,
        first: Value,
        read: Value,
        next: impl FnOnce(&mut Lowering, Value, Value) -> Result,
    ) -> Result {
        let numbers = self.iota(&[Dim::from(steps)], Poly::var(0), DType::I32)?;
        let mut body = Graph::new();
        let before = body.add_input("state", self.ty(first).clone());
        body.add_input("step", TensorType::new(DType::I32, vec![]));
        let inside = body.add_input("read", self.ty(read).clone());
        let mut inner = Lowering::body(&mut body);
        inner.at(self.place());
        let after = next(&mut inner, before, inside)?;
        inner.finish();
        body.outputs.push(Border { name: "state".into(), value: after });
        let op = Op::Scan {
            body: Box::new(body),
            carried: 1,
            scanned: 1,
            reverse_inputs: vec![false],
            reverse_outputs: vec![],
        };
        Ok(self.push(op, &[first, numbers, read])?)
    }

    /// Declares `own` (i64, rank 0) as the iteration number of this body. In nested loops it is combined with the
    /// outer number, so that every inner iteration has a number of its own.
    pub fn number_iterations(&mut self, own: Value) -> Result<()> {
        let number = match self.iteration {
            Some(outer) => {
                let far = self.binary_scalar(BinaryOp::Mul, outer, 1_000_003.0)?;
                self.binary(BinaryOp::Add, far, own)?
            }
            None => own,
        };
        self.iteration = Some(number);
        Ok(())
    }

    /// Adds a warning for the user.
    pub fn warn(&mut self, what: String) {
        if !self.warnings.contains(&what) {
            self.warnings.push(what);
        }
    }

    /// Takes over the warnings and data inputs of a branch or body, and returns its known values.
    pub fn absorb(&mut self, inner: Notes) -> ShapeEval {
        for w in inner.warnings {
            self.warn(w);
        }
        self.data_inputs.extend(inner.data_inputs);
        inner.eval
    }

    /// The notes that remain once the graph is complete.
    pub fn finish(self) -> Notes {
        Notes { eval: self.eval, warnings: self.warnings, data_inputs: self.data_inputs }
    }

    /// Replaces a small integer tensor that does not depend on data with a constant or a map without operands; dead
    /// code elimination removes the nodes that computed it. Returns any other value as it is.
    pub fn evaluated(&mut self, v: Value) -> Value {
        let ty = self.ty(v).clone();
        let node = self.graph.node(v.node);
        if ty.dtype.is_float() || node.inputs.is_empty() {
            return v;
        }
        let origin = node.origin.clone();
        let (Some(dims), Some(shape)) = (self.eval.dims(self.builder.graph, v), ty.static_shape()) else {
            return v;
        };
        if !dims.iter().all(sizes::is_short) && dims.iter().any(|d| d.as_const().is_none()) {
            return v;
        }
        let mut b = Builder { graph: self.builder.graph, origin };
        match sizes::shape_value(&mut b, &dims, &shape, ty.dtype) {
            Ok(w) => {
                self.eval.set(w, &dims);
                w
            }
            // The expression is too large: the value stays as it is.
            Err(_) => v,
        }
    }

    /// Fails if a constraint added after the first `known` ones requires two extents to be equal that are known to
    /// differ.
    pub fn check_constraints(&self, known: usize) -> Result<()> {
        let fails = |c: &&wgfc_ir::graph::Constraint| (&c.a - &c.b).as_const().is_some_and(|d| d != 0);
        match self.graph.constraints.iter().skip(known).find(fails) {
            Some(c) => Err(OpError::model(format!("needs equal extents, and has {} and {}", c.a, c.b))),
            None => Ok(()),
        }
    }
}

/// A finished [`Lowering`] without its graph.
pub struct Notes {
    /// The known values of the graph.
    pub eval: ShapeEval,
    /// The warnings for the user.
    pub warnings: Vec<String>,
    /// Inputs of the model whose values, if known while compiling, would allow more to be lowered.
    pub data_inputs: BTreeSet<String>,
}

/// The contents of small tensors that are known while compiling.
impl Lowering<'_> {
    /// The elements of an integer or bool tensor, each a constant or an expression of dimensions,
    /// in row-major order; `None` when any depends on data.
    pub fn dims(&mut self, v: Value) -> Option<Vec<Dim>> {
        if self.dtype(v).is_float() {
            return None;
        }
        self.eval.dims(self.builder.graph, v)
    }
    /// The graph and its known values.
    pub fn known(&mut self) -> (&Graph, &mut ShapeEval) {
        (self.builder.graph, &mut self.eval)
    }
    /// The elements as numbers (of any type), if all are constant.
    pub fn numbers(&mut self, v: Value) -> Option<Vec<f64>> {
        self.eval.numbers(self.builder.graph, v)
    }
    /// The elements as exact fractions: a numerator that is an expression of dimensions, and a constant denominator.
    pub fn fractions(&mut self, v: Value) -> Option<Vec<(Dim, i64)>> {
        self.eval.fractions(self.builder.graph, v)
    }
    /// The scalar, if `v` is a constant whose elements are all the same.
    pub fn splat(&self, v: Value) -> Option<Scalar> {
        let all = self.as_const(v).filter(|t| t.numel() <= 1024).and_then(|t| t.scalars())?;
        let first = *all.first()?;
        all.iter().all(|s| *s == first).then_some(first)
    }
    /// An i64 tensor with these elements: a constant if all are constant, else computed from the dimensions.
    pub fn dims_value(&mut self, elements: &[Dim], shape: &[usize]) -> Result {
        let v = sizes::shape_value(&mut self.builder, elements, shape, DType::I64)?;
        self.eval.set(v, elements);
        Ok(v)
    }
    /// Declares the elements of an integer tensor that the evaluator cannot derive.
    pub fn set_dims(&mut self, v: Value, elements: &[Dim]) {
        self.eval.set(v, elements);
    }
    /// The dimensions on which a value depends if it depends on nothing else; `None` if it depends on data or on no
    /// dimension.
    pub fn open_dimensions(&mut self, v: Value) -> Option<Vec<String>> {
        let mut open = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut stack = vec![v];
        while let Some(v) = stack.pop() {
            if let Some(known) = self.eval.dims(self.builder.graph, v) {
                open.extend(known.iter().flat_map(|d| d.symbols()));
                continue;
            }
            let node = self.builder.graph.node(v.node);
            if matches!(node.op, Op::Input) {
                return None;
            }
            if seen.insert(v.node) {
                open.extend(node.op.polys().into_iter().flat_map(|p| p.symbols()));
                stack.extend(&node.inputs);
            }
        }
        (!open.is_empty()).then(|| open.iter().map(|s| s.to_string()).collect())
    }
}

/// Values that depend on data.
impl Lowering<'_> {
    /// The error for an operand that must be known while compiling but depends on data; records the inputs that it
    /// depends on.
    pub fn unknown(&mut self, v: Value) -> OpError {
        let behind = self.inputs_behind(v);
        let e = match behind.as_slice() {
            [] => OpError::unsupported(
                "its value must be known when compiling, and depends on data",
                "shapes may depend on the shapes of inputs, not on their values; \
                 export the model with this operand constant",
            ),
            names => OpError::unsupported(
                format!(
                    "its value must be known when compiling, and depends on the data of input {}",
                    names.join(", ")
                ),
                "export the model with this operand constant, or give the input's value when compiling (--fix NAME=VALUE)",
            ),
        };
        e.operand(v)
    }
    /// Records that more could be lowered if this value were known.
    pub fn depends_on_data_of(&mut self, v: Value) {
        if self.numbers(v).is_none() {
            self.inputs_behind(v);
        }
    }
    /// The inputs of the graph whose data a value depends on, if they are few; records them.
    pub fn inputs_behind(&mut self, v: Value) -> Vec<String> {
        let mut found = BTreeSet::new();
        let graph = &*self.builder.graph;
        let mut behind = Dfs::from_parts(vec![v.node], HashSet::<NodeId>::new());
        for (looked_at, n) in std::iter::from_fn(|| behind.next(graph.operands())).enumerate() {
            let node = graph.node(n);
            if let (Op::Input, Some(Some(name))) = (&node.op, node.names.first()) {
                found.insert(name.to_string());
            }
            if looked_at >= 1000 || found.len() > 4 {
                return vec![];
            }
        }
        self.data_inputs.extend(found.iter().cloned());
        found.into_iter().collect()
    }
    /// Whether sizes may be computed in this graph: in the model's own graph, but not in a branch or loop body.
    pub fn may_compute_sizes(&self) -> bool {
        !self.inner
    }
    /// Fails if an operand that depends on data would decide a size inside a branch or loop body.
    pub fn require_open_sizes(&mut self, v: Value) -> Result<()> {
        if self.may_compute_sizes() { Ok(()) } else { Err(self.unknown(v)) }
    }
    /// Turns an integer of one element that is computed at run time into a size, so that it can be checked against
    /// others after the run. A number below 0 or above `most` is reported as `most + 1`. The symbol of the size is
    /// named after `what`. `None` in a branch or loop body, where no sizes are computed.
    pub fn checked_number(&mut self, what: &str, v: Value, most: &Dim) -> Result<Option<Dim>> {
        self.checked_of(what, v, most, |cx| Ok(cx.reshape(v, vec![])?))
    }
    /// [`Lowering::checked_number`] of the largest number in `v`; a negative number anywhere counts as out of range.
    pub fn checked_largest(&mut self, what: &str, v: Value, most: &Dim) -> Result<Option<Dim>> {
        self.checked_of(what, v, most, |cx| {
            let v = cx.nearest_i32(v)?;
            let v = cx.within(v, &(most + 1))?;
            let axes: Vec<usize> = (0..cx.rank(v)).collect();
            Ok(cx.reduce(ReduceOp::Max, v, &axes, false)?)
        })
    }
    /// The size made from a number that `number` computes from `v`; equal requests share one size.
    fn checked_of(
        &mut self,
        what: &str,
        v: Value,
        most: &Dim,
        number: impl FnOnce(&mut Self) -> Result,
    ) -> Result<Option<Dim>> {
        if !self.may_compute_sizes() {
            return Ok(None);
        }
        let (name, bound) = (format!("{what}_{}", v.node.index()), most + 1);
        let symbol = format!("n_{name}");
        if self.graph.computed.iter().any(|c| *c.symbol == *symbol && c.bound == bound) {
            return Ok(Some(Dim::sym(&symbol)));
        }
        let v = number(self)?;
        let v = self.nearest_i32(v)?;
        let v = self.within(v, &bound)?;
        Ok(Some(self.builder.computed(&name, v, bound)))
    }
    /// The i32 numbers of `v`, with those below 0 or above `end` replaced by `end`.
    pub fn within(&mut self, v: Value, end: &Dim) -> Result {
        let end = self.dim_scalar(end, DType::I32)?;
        let below = self.binary_scalar(BinaryOp::Lt, v, 0.0)?;
        let v = self.binary(BinaryOp::Min, v, end)?;
        Ok(self.select(below, end, v)?)
    }
    /// A size computed at run time and named after the operator's first result: the integer `count`, at most `bound`.
    pub fn computed_size(&mut self, count: Value, bound: Dim) -> Dim {
        let name = self.result.clone();
        self.builder.computed(&name, count, bound)
    }
    /// [`Lowering::computed_size`] for a further size of the same result, with a suffix to its name.
    pub fn computed_as(&mut self, suffix: &str, count: Value, bound: Dim) -> Dim {
        let name = format!("{}{suffix}", self.result);
        self.builder.computed(&name, count, bound)
    }
}

/// Operands.
impl Lowering<'_> {
    /// An integer clamped to the range of i32: a length or a position outside that range lies outside of any axis.
    pub fn nearest_i32(&mut self, v: Value) -> Result {
        let mut v = v;
        if matches!(self.dtype(v), DType::I64 | DType::U64) {
            let most = self.builder.int(self.dtype(v), i32::MAX.into());
            v = self.binary(BinaryOp::Min, v, most)?;
        }
        if self.dtype(v) == DType::I64 {
            let least = self.builder.int(DType::I64, i32::MIN.into());
            v = self.binary(BinaryOp::Max, v, least)?;
        }
        Ok(self.cast(v, DType::I32)?)
    }
    /// Returns `v`, or fails if it does not have exactly this rank.
    pub fn require_rank(&self, v: Value, rank: usize) -> Result {
        if self.rank(v) != rank {
            let e = format!("needs a tensor of rank {rank}, got {}", self.ty(v));
            return Err(OpError::model(e).operand(v));
        }
        Ok(v)
    }
    /// Returns `v`, or fails if it is not i32 or i64.
    pub fn require_indices(&self, v: Value) -> Result {
        match self.dtype(v) {
            DType::I32 | DType::I64 => Ok(v),
            _ => Err(OpError::model(format!("indices of type {}", self.ty(v))).operand(v)),
        }
    }
}

/// Resolves axis `v` of a tensor of rank `rank`; negative axes count from the end.
pub fn axis(v: i64, rank: usize) -> Result<usize> {
    let r = i64::try_from(rank).unwrap_or(i64::MAX);
    let n = if v < 0 { v.saturating_add(r) } else { v };
    match usize::try_from(n) {
        Ok(n) if n < rank => Ok(n),
        _ => Err(OpError::model(format!("axis {v} is outside a tensor of rank {rank}"))),
    }
}

/// Resolves several axes and sorts them; a repeated axis is an error.
pub fn axes(v: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut axes = v.iter().map(|a| axis(*a, rank)).collect::<Result<Vec<_>>>()?;
    axes.sort_unstable();
    if axes.windows(2).any(|w| w[0] == w[1]) {
        return Err(OpError::model(format!("axes {v:?} name one axis twice")));
    }
    Ok(axes)
}
