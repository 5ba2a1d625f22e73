//! What an operator sees of the node it lowers.

use super::graph::{Importer, Scope};
use super::onnx::{AttributeProto, GraphProto, NodeProto, attribute_type, data_type};
use super::op::OpError;
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use wgfc_ir::{Builder, DType, Dim, Op, Scalar, Tensor, Value};

type Result<T> = std::result::Result<T, OpError>;

/// A node of the model while it is lowered. Dereferences to the [`Builder`] of its graph.
pub struct Cx<'a, 'm> {
    pub(super) builder: Builder<'a>,
    pub(super) importer: &'a mut Importer<'m>,
    pub(super) scope: &'a Scope,
    /// The node.
    pub node: &'a NodeProto,
    /// The opset version in force for its domain.
    pub opset: i64,
    /// The operator's version: the newest of [`OpDef::since`](super::op::OpDef) not above `opset`.
    pub since: i64,
    pub(super) inputs: Vec<Option<Value>>,
}

impl<'a> Deref for Cx<'a, '_> {
    type Target = Builder<'a>;
    fn deref(&self) -> &Builder<'a> {
        &self.builder
    }
}
impl<'a> DerefMut for Cx<'a, '_> {
    fn deref_mut(&mut self) -> &mut Builder<'a> {
        &mut self.builder
    }
}

/// Inputs and outputs.
impl Cx<'_, '_> {
    /// Input `i`, which must be there.
    pub fn input(&self, i: usize) -> Result<Value> {
        self.opt(i).ok_or_else(|| OpError::model(format!("input {i} is required and missing")))
    }
    /// Input `i`, unless it is left out.
    pub fn opt(&self, i: usize) -> Option<Value> {
        self.inputs.get(i).copied().flatten()
    }
    /// Every input; at least one, none left out.
    pub fn inputs(&self) -> Result<Vec<Value>> {
        if self.inputs.is_empty() {
            return Err(OpError::model("needs at least one input"));
        }
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }
    /// How many inputs are written, left-out ones between them included.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }
    /// How many outputs are written.
    pub fn output_count(&self) -> usize {
        self.node.output.len()
    }
    /// Whether output `i` is given a name.
    pub fn wants(&self, i: usize) -> bool {
        self.node.output.get(i).is_some_and(|o| !o.is_empty())
    }
    /// Says that an error is about input `i`.
    pub fn at_input(&self, i: usize, mut e: OpError) -> OpError {
        e.part = Some(match self.node.input.get(i) {
            Some(name) if !name.is_empty() => format!("input {i} (\"{name}\")"),
            _ => format!("input {i}"),
        });
        e
    }
    /// Input `i`, of exactly this rank.
    pub fn input_of_rank(&self, i: usize, rank: usize) -> Result<Value> {
        let v = self.input(i)?;
        if self.rank(v) != rank {
            let e = OpError::model(format!("needs a tensor of rank {rank}, got {}", self.ty(v)));
            return Err(self.at_input(i, e));
        }
        Ok(v)
    }
    /// A rank-0 integer constant ([`Builder::int`], which [`Cx::int`] hides).
    pub fn int_const(&mut self, dtype: DType, v: i64) -> Value {
        self.builder.int(dtype, v)
    }
    /// How many errors there are; for [`Cx::forget_errors`].
    pub fn error_mark(&self) -> usize {
        self.importer.errors.len()
    }
    /// Whether the model expands to too many nodes, which has been reported.
    pub fn is_overgrown(&self) -> bool {
        self.importer.is_overgrown()
    }
    /// Takes back the errors since a mark: a subgraph failed, and there is another way to import it.
    pub fn forget_errors(&mut self, mark: usize) {
        // A limit that has been met holds for every way.
        if !self.importer.stopped {
            self.importer.errors.truncate(mark);
        }
    }
    /// Tells the user something that is no error.
    pub fn warn(&mut self, what: impl std::fmt::Display) {
        let node = self.origin.first().cloned().unwrap_or_default();
        self.importer.warn(format!("node \"{node}\" ({}): {what}", self.node.op_type));
    }
}

/// Attributes.
impl<'a> Cx<'a, '_> {
    /// The attribute as it is, if it is there.
    pub fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        self.node.attribute.iter().find(|a| a.name == name)
    }
    fn typed(&self, name: &str, ty: i32) -> Result<Option<&'a AttributeProto>> {
        match self.attribute(name) {
            None => Ok(None),
            Some(a) if a.r#type == ty || a.r#type == 0 => Ok(Some(a)),
            Some(a) => Err(OpError::model(format!(
                "attribute `{name}` is {}, not {}",
                attribute_type::name(a.r#type),
                attribute_type::name(ty)
            ))
            .attribute(name)),
        }
    }
    fn required<T>(&self, name: &str, v: Option<T>) -> Result<T> {
        v.ok_or_else(|| OpError::model(format!("attribute `{name}` is required and missing")).attribute(name))
    }
    /// An integer, or the default.
    pub fn int(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.int_opt(name)?.unwrap_or(default))
    }
    /// An integer, if it is there.
    pub fn int_opt(&self, name: &str) -> Result<Option<i64>> {
        Ok(self.typed(name, attribute_type::INT)?.map(|a| a.i))
    }
    /// A required integer.
    pub fn int_req(&self, name: &str) -> Result<i64> {
        self.required(name, self.int_opt(name)?)
    }
    /// An integer that stands for a bool.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, i64::from(default))? != 0)
    }
    /// A float, or the default.
    pub fn float(&self, name: &str, default: f32) -> Result<f32> {
        Ok(self.float_opt(name)?.unwrap_or(default))
    }
    /// A float, if it is there.
    pub fn float_opt(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.typed(name, attribute_type::FLOAT)?.map(|a| a.f))
    }
    /// A required float.
    pub fn float_req(&self, name: &str) -> Result<f32> {
        self.required(name, self.float_opt(name)?)
    }
    /// Integers, if they are there.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        Ok(self.typed(name, attribute_type::INTS)?.map(|a| a.ints.clone()))
    }
    /// Required integers.
    pub fn ints_req(&self, name: &str) -> Result<Vec<i64>> {
        self.required(name, self.ints(name)?)
    }
    /// Floats, if they are there.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        Ok(self.typed(name, attribute_type::FLOATS)?.map(|a| a.floats.clone()))
    }
    /// A string, or the default.
    pub fn string(&self, name: &str, default: &str) -> Result<String> {
        Ok(self.string_opt(name)?.unwrap_or_else(|| default.to_owned()))
    }
    /// A string, if it is there.
    pub fn string_opt(&self, name: &str) -> Result<Option<String>> {
        Ok(self.typed(name, attribute_type::STRING)?.map(|a| String::from_utf8_lossy(&a.s).into_owned()))
    }
    /// Strings, if they are there.
    pub fn strings(&self, name: &str) -> Result<Option<Vec<String>>> {
        let a = self.typed(name, attribute_type::STRINGS)?;
        Ok(a.map(|a| a.strings.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect()))
    }
    /// A tensor, if it is there.
    pub fn tensor(&mut self, name: &str) -> Result<Option<Tensor>> {
        let Some(a) = self.typed(name, attribute_type::TENSOR)? else { return Ok(None) };
        let Some(t) = &a.t else { return Ok(None) };
        let t = self.importer.weights.tensor(t).map_err(|mut e| {
            e.part = Some(format!("attribute `{name}`"));
            e
        })?;
        Ok(Some(t))
    }
    /// A required graph.
    pub fn graph_attr(&self, name: &str) -> Result<&'a GraphProto> {
        let g = self.typed(name, attribute_type::GRAPH)?.and_then(|a| a.g.as_ref());
        self.required(name, g)
    }
    /// An element type given by its number in the schema, if the attribute is there.
    pub fn dtype_opt(&self, name: &str) -> Result<Option<DType>> {
        let Some(code) = self.int_opt(name)? else { return Ok(None) };
        let code32 = i32::try_from(code).unwrap_or(-1);
        match data_type::dtype(code32) {
            Some(d) => Ok(Some(d)),
            None => {
                Err(OpError::unsupported(format!("element type {}", data_type::name(code32))).attribute(name))
            }
        }
    }
    /// Axis `v` of a tensor of `rank`, counted from the end when negative.
    pub fn axis(&self, v: i64, rank: usize) -> Result<usize> {
        normal_axis(v, rank)
            .ok_or_else(|| OpError::model(format!("axis {v} is outside a tensor of rank {rank}")))
    }
    /// Several axes: sorted; a repeated one is an error.
    pub fn axes(&self, v: &[i64], rank: usize) -> Result<Vec<usize>> {
        let mut axes = v.iter().map(|a| self.axis(*a, rank)).collect::<Result<Vec<_>>>()?;
        axes.sort_unstable();
        if axes.windows(2).any(|w| w[0] == w[1]) {
            return Err(OpError::model(format!("axes {v:?} name one axis twice")));
        }
        Ok(axes)
    }
    /// Axes given as input `input`, or as attribute `axes` (as operators before opset 13 or 18 do).
    /// `None` when neither is there.
    pub fn axes_input_or_attr(&mut self, input: usize, rank: usize) -> Result<Option<Vec<usize>>> {
        let given = match self.opt(input) {
            Some(_) => Some(self.const_ints(input)?),
            None => self.ints("axes")?,
        };
        given.map(|v| self.axes(&v, rank)).transpose()
    }
}

/// Axis `v` of `rank` with negatives counted from the end.
pub fn normal_axis(v: i64, rank: usize) -> Option<usize> {
    let r = i64::try_from(rank).ok()?;
    let n = if v < 0 { v.checked_add(r)? } else { v };
    (0..r).contains(&n).then_some(n as usize)
}

/// Contents of small tensors, known while compiling.
impl Cx<'_, '_> {
    /// The elements of an integer or bool tensor, each a constant or an expression of dimensions,
    /// in row-major order; `None` when any depends on data.
    pub fn dims(&mut self, v: Value) -> Option<Vec<Dim>> {
        if self.dtype(v).is_float() {
            return None;
        }
        self.importer.eval.dims(self.builder.graph, v)
    }
    /// [`Cx::dims`] of required input `i`; an error that says so when it depends on data.
    pub fn const_dims(&mut self, i: usize) -> Result<Vec<Dim>> {
        let v = self.input(i)?;
        if let Some(d) = self.dims(v) {
            return Ok(d);
        }
        let ty = self.ty(v).clone();
        if ty.dtype.is_float() {
            return Err(self.at_input(i, OpError::model(format!("needs integers, got {ty}"))));
        }
        Err(self.unknown(i, v))
    }
    /// The dimensions that a value depends on where it depends on nothing else; `None` where it depends on
    /// data, or on no dimension.
    pub fn open_dimensions(&mut self, v: Value) -> Option<Vec<String>> {
        let mut open = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut stack = vec![v];
        while let Some(v) = stack.pop() {
            if let Some(known) = self.importer.eval.dims(self.builder.graph, v) {
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
    /// Notes that more could be done if operand `i` were known ([`shape_inputs`](super::shape_inputs)).
    pub fn depends_on_data_of(&mut self, i: usize) {
        if let Some(v) = self.opt(i)
            && self.numbers(v).is_none()
        {
            self.importer.data_inputs(self.builder.graph, v);
        }
    }
    /// The number of the iteration (i64, rank 0), in the body of a loop.
    pub fn iteration(&self) -> Option<Value> {
        super::graph::iteration(self.scope)
    }
    /// Whether a subgraph draws random numbers.
    pub fn draws(&self, body: &GraphProto) -> bool {
        super::graph::draws(body)
    }
    /// Whether the graph may compute sizes: that of the model, but not the body of a loop or a branch.
    pub fn may_compute_sizes(&self) -> bool {
        self.importer.bodies == 0
    }
    /// An error where operand `i`, which depends on data, would decide a size in such a body.
    pub fn require_open_sizes(&mut self, i: usize) -> Result<()> {
        let v = self.input(i)?;
        if self.may_compute_sizes() { Ok(()) } else { Err(self.unknown(i, v)) }
    }
    /// The error for an operand that must be known and depends on data; remembers which inputs it is.
    fn unknown(&mut self, i: usize, v: Value) -> OpError {
        let behind = self.importer.data_inputs(self.builder.graph, v);
        let e = match behind.as_slice() {
            [] => OpError::unsupported("its value must be known when compiling, and depends on data").help(
                "shapes may depend on the shapes of inputs, not on their values; \
                 export the model with this operand constant",
            ),
            names => OpError::unsupported(format!(
                "its value must be known when compiling, and depends on the data of input {}",
                names.join(", ")
            ))
            .help("export the model with this operand constant, or give the input's value when compiling (--fix NAME=VALUE)"),
        };
        self.at_input(i, e)
    }
    /// Required input `i` as integers that depend on nothing.
    pub fn const_ints(&mut self, i: usize) -> Result<Vec<i64>> {
        let dims = self.const_dims(i)?;
        dims.iter()
            .map(|d| {
                d.as_const().ok_or_else(|| {
                    let e = OpError::unsupported(format!("must be a constant, and is {d}"))
                        .help("fix the dimension with --dim NAME=VALUE");
                    self.at_input(i, e)
                })
            })
            .collect()
    }
    /// Required input `i` as one integer that depends on nothing.
    pub fn const_int(&mut self, i: usize) -> Result<i64> {
        match self.const_ints(i)?.as_slice() {
            [one] => Ok(*one),
            v => {
                let e = OpError::model(format!("needs one element, got {}", v.len()));
                Err(self.at_input(i, e))
            }
        }
    }
    /// The elements as numbers (any type), when all are constant.
    pub fn numbers(&mut self, v: Value) -> Option<Vec<f64>> {
        self.importer.eval.numbers(self.builder.graph, v)
    }
    /// Required input `i` as numbers; an error that says so when they depend on data.
    pub fn const_numbers(&mut self, i: usize) -> Result<Vec<f64>> {
        let v = self.input(i)?;
        match self.numbers(v) {
            Some(n) => Ok(n),
            None => Err(self.unknown(i, v)),
        }
    }
    /// Required input `i` as exact fractions, expressions of dimensions over constants; an error that says so
    /// when they depend on data.
    pub fn const_fractions(&mut self, i: usize) -> Result<Vec<(Dim, i64)>> {
        let v = self.input(i)?;
        match self.importer.eval.fractions(self.builder.graph, v) {
            Some(f) => Ok(f),
            None => Err(self.unknown(i, v)),
        }
    }
    /// An i64 tensor of these elements: a constant where they are, else computed from the dimensions.
    pub fn dims_value(&mut self, elements: &[Dim], shape: &[usize]) -> Result<Value> {
        let v = super::shape_value(&mut self.builder, elements, shape, DType::I64)?;
        self.importer.eval.set(v, elements);
        Ok(v)
    }
    /// Declares what an integer tensor contains, where the evaluator cannot see it.
    pub fn set_dims(&mut self, v: Value, elements: &[Dim]) {
        self.importer.eval.set(v, elements);
    }
    /// The scalar, if `v` is a constant whose elements are all the same.
    pub fn splat(&self, v: Value) -> Option<Scalar> {
        let Op::Const(t) = &self.graph.node(v.node).op else { return None };
        let all = (t.numel() <= 1024).then(|| t.scalars()).flatten()?;
        let first = *all.first()?;
        all.iter().all(|s| *s == first).then_some(first)
    }
}
