//! A decoder's access to its node.

use super::messages::{AttributeProto, GraphProto, NodeProto, attribute_type, data_type};
use super::names::Scope;
use super::op::{AtAttribute, OpError};
use super::walk::Importer;
use crate::lower::{self, Lowering, Part};
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use wgfc_ir::{DType, Dim, Tensor, Value};

type Result<T> = std::result::Result<T, OpError>;

/// A node of the model while it is decoded. Dereferences to the [`Lowering`] of its graph.
pub struct Cx<'a, 'g, 'm> {
    pub(super) lowering: &'a mut Lowering<'g>,
    pub(super) importer: &'a mut Importer<'m>,
    pub(super) scope: &'a Scope,
    /// The node.
    pub node: &'a NodeProto,
    /// The opset version in force for its domain.
    pub opset: i64,
    /// The operator's version: the newest of [`OpDef::since`](super::op::OpDef) not above `opset`.
    pub since: i64,
    pub(super) inputs: Vec<Option<Value>>,
    /// Parameters of the lowering, with the inputs that set them.
    given: Vec<(&'static str, usize)>,
    /// Operands of the lowering that were computed from one input.
    made: Vec<(Value, usize)>,
}

impl<'g> Deref for Cx<'_, 'g, '_> {
    type Target = Lowering<'g>;
    fn deref(&self) -> &Lowering<'g> {
        self.lowering
    }
}
impl<'g> DerefMut for Cx<'_, 'g, '_> {
    fn deref_mut(&mut self) -> &mut Lowering<'g> {
        self.lowering
    }
}

/// Translation of operands and parameters in the lowering's errors to inputs and attributes of the node.
impl<'a, 'g, 'm> Cx<'a, 'g, 'm> {
    pub(super) fn new(
        lowering: &'a mut Lowering<'g>,
        importer: &'a mut Importer<'m>,
        scope: &'a Scope,
        node: &'a NodeProto,
        (opset, since): (i64, i64),
        inputs: Vec<Option<Value>>,
    ) -> Cx<'a, 'g, 'm> {
        Cx { lowering, importer, scope, node, opset, since, inputs, given: vec![], made: vec![] }
    }
    /// Declares that input `i` sets a parameter of the lowering. Other parameters are set by the attribute of the same name or by that in
    /// `ATTRIBUTES`.
    pub fn gives(&mut self, i: usize, param: &'static str) {
        self.given.push((param, i));
    }
    /// Declares that an operand of the lowering was computed from input `i`.
    pub fn made_of(&mut self, i: usize, v: Value) {
        self.made.push((v, i));
    }
    /// Adds the input or attribute that an error is about.
    pub(super) fn placed(&self, e: OpError) -> OpError {
        let part = match e.part {
            Some(Part::Operand(v)) => {
                let own = (0..self.inputs.len()).filter(|i| self.inputs[*i] == Some(v));
                let made = self.made.iter().filter(|(made, _)| *made == v).map(|(_, i)| *i);
                // Several inputs may be the same value.
                let all: BTreeSet<usize> = own.chain(made).collect();
                let all: Vec<String> = all.into_iter().map(|i| self.called(i)).collect();
                (!all.is_empty()).then(|| all.join(" or "))
            }
            Some(Part::Param(p)) => Some(match self.given.iter().find(|(name, _)| *name == p) {
                Some((_, i)) => self.called(*i),
                None => {
                    let other = ATTRIBUTES.iter().find(|(name, _)| *name == p);
                    format!("attribute `{}`", other.map_or(p, |(_, attribute)| attribute))
                }
            }),
            Some(Part::Source(text)) => Some(text),
            None => None,
        };
        OpError { part: part.map(Part::Source), ..e }
    }
    fn called(&self, i: usize) -> String {
        match self.node.input.get(i) {
            Some(name) if !name.is_empty() => format!("input {i} (\"{name}\")"),
            _ => format!("input {i}"),
        }
    }
}

/// Parameters of the lowering whose attributes have other names.
pub(super) const ATTRIBUTES: &[(&str, &str)] = &[
    ("along", "quantize_axis"),
    ("groups", "group"),
    ("kernel", "kernel_shape"),
    ("samples", "sampling_ratio"),
];

/// Inputs and outputs.
impl Cx<'_, '_, '_> {
    /// The required input `i`.
    pub fn input(&self, i: usize) -> Result<Value> {
        self.opt(i).ok_or_else(|| OpError::model(format!("input {i} is required and missing")))
    }
    /// Input `i`, or `None` if it is left out.
    pub fn opt(&self, i: usize) -> Option<Value> {
        self.inputs.get(i).copied().flatten()
    }
    /// All inputs; there must be at least one, and none may be left out.
    pub fn inputs(&self) -> Result<Vec<Value>> {
        if self.inputs.is_empty() {
            return Err(OpError::model("needs at least one input"));
        }
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }
    /// The number of inputs of the node, including those left out between others.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }
    /// The number of outputs of the node.
    pub fn output_count(&self) -> usize {
        self.node.output.len()
    }
    /// Whether output `i` has a name.
    pub fn wants(&self, i: usize) -> bool {
        self.node.output.get(i).is_some_and(|o| !o.is_empty())
    }
    /// Adds to an error that it is about input `i`.
    pub fn at_input(&self, i: usize, e: OpError) -> OpError {
        e.at(self.called(i))
    }
    /// Input `i`, of exactly this rank.
    pub fn input_of_rank(&self, i: usize, rank: usize) -> Result<Value> {
        let v = self.input(i)?;
        self.require_rank(v, rank).map_err(|e| self.at_input(i, e))
    }
    /// A rank-0 integer constant ([`Builder::int`](wgfc_ir::Builder::int), which [`Cx::int`] hides).
    pub fn int_const(&mut self, dtype: DType, v: i64) -> Value {
        self.lowering.int(dtype, v)
    }
    /// The number of errors so far, for [`Cx::forget_errors`].
    pub fn error_mark(&self) -> usize {
        self.importer.errors.len()
    }
    /// The first error since a mark.
    pub fn error_since(&self, mark: usize) -> Option<String> {
        self.importer.errors.get(mark).map(|e| e.message.clone())
    }
    /// Whether the model has exceeded a limit, which has been reported.
    pub fn is_stopped(&self) -> bool {
        self.importer.stopped
    }
    /// Removes the errors since a mark, because a failed subgraph is imported in another way.
    pub fn forget_errors(&mut self, mark: usize) {
        // An exceeded limit applies to every way.
        if !self.importer.stopped {
            self.importer.errors.truncate(mark);
        }
    }
}

/// Attributes.
impl<'a> Cx<'a, '_, '_> {
    /// The attribute as decoded, if it is present.
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
    /// An integer, if it is present.
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
    /// A float, if it is present.
    pub fn float_opt(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.typed(name, attribute_type::FLOAT)?.map(|a| a.f))
    }
    /// A required float.
    pub fn float_req(&self, name: &str) -> Result<f32> {
        self.required(name, self.float_opt(name)?)
    }
    /// Integers, if they are present.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        Ok(self.typed(name, attribute_type::INTS)?.map(|a| a.ints.clone()))
    }
    /// Required integers.
    pub fn ints_req(&self, name: &str) -> Result<Vec<i64>> {
        self.required(name, self.ints(name)?)
    }
    /// Floats, if they are present.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        Ok(self.typed(name, attribute_type::FLOATS)?.map(|a| a.floats.clone()))
    }
    /// A string, or the default.
    pub fn string(&self, name: &str, default: &str) -> Result<String> {
        Ok(self.string_opt(name)?.unwrap_or_else(|| default.to_owned()))
    }
    /// A string, if it is present.
    pub fn string_opt(&self, name: &str) -> Result<Option<String>> {
        Ok(self.typed(name, attribute_type::STRING)?.map(|a| String::from_utf8_lossy(&a.s).into_owned()))
    }
    /// A required string.
    pub fn string_req(&self, name: &str) -> Result<String> {
        self.required(name, self.string_opt(name)?)
    }
    /// Strings, if they are present.
    pub fn strings(&self, name: &str) -> Result<Option<Vec<String>>> {
        let a = self.typed(name, attribute_type::STRINGS)?;
        Ok(a.map(|a| a.strings.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect()))
    }
    /// A tensor, if it is present.
    pub fn tensor(&mut self, name: &str) -> Result<Option<Tensor>> {
        let Some(a) = self.typed(name, attribute_type::TENSOR)? else { return Ok(None) };
        let Some(t) = &a.t else { return Ok(None) };
        let t = self.importer.weights.tensor(t).map_err(|e| e.attribute(name))?;
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
                let help = "export the model with another type: `float16`, `int32` or `uint8` for instance";
                Err(OpError::unsupported(format!("element type {}", data_type::name(code32)), help)
                    .attribute(name))
            }
        }
    }
    /// A required element type.
    pub fn dtype_req(&self, name: &str) -> Result<DType> {
        self.required(name, self.dtype_opt(name)?)
    }
    /// Axis `v` of a tensor of `rank`, counted from the end when negative.
    pub fn axis(&self, v: i64, rank: usize) -> Result<usize> {
        lower::axis(v, rank)
    }
    /// The axis of `x` in attribute `axis`.
    pub fn axis_attr(&self, x: Value, default: i64) -> Result<usize> {
        self.axis(self.int("axis", default)?, self.rank(x))
    }
    /// The axis of `x` in attribute `axis`, from which on axes are flattened; it may equal the rank.
    pub fn first_axis(&self, x: Value, default: i64) -> Result<usize> {
        let (axis, rank) = (self.int("axis", default)?, self.rank(x));
        if axis == rank as i64 { Ok(rank) } else { self.axis(axis, rank) }
    }
    /// Several axes, sorted; a repeated axis is an error.
    pub fn axes(&self, v: &[i64], rank: usize) -> Result<Vec<usize>> {
        lower::axes(v, rank)
    }
    /// Axes from input `input`, or from attribute `axes`, which operators have before opset 13 or 18. `None` if both are absent.
    pub fn axes_input_or_attr(&mut self, input: usize, rank: usize) -> Result<Option<Vec<usize>>> {
        let given = match self.opt(input) {
            Some(_) => Some(self.const_ints(input)?),
            None => self.ints("axes")?,
        };
        given.map(|v| self.axes(&v, rank)).transpose()
    }
}

/// Elements of small tensors that are known at compile time.
impl Cx<'_, '_, '_> {
    /// The elements of required input `i` ([`Lowering::dims`]); an input that depends on data is an error.
    pub fn const_dims(&mut self, i: usize) -> Result<Vec<Dim>> {
        let v = self.input(i)?;
        if let Some(d) = self.dims(v) {
            return Ok(d);
        }
        let ty = self.ty(v).clone();
        if ty.dtype.is_float() {
            return Err(self.at_input(i, OpError::model(format!("needs integers, got {ty}"))));
        }
        Err(self.unknown_input(i, v))
    }
    /// The error for input `i`, which must be known at compile time and depends on data.
    fn unknown_input(&mut self, i: usize, v: Value) -> OpError {
        let e = self.unknown(v);
        self.at_input(i, e)
    }
    /// An error where input `i`, which depends on data, would decide a size in a branch or body.
    pub fn require_open_sizes_of(&mut self, i: usize) -> Result<()> {
        let v = self.input(i)?;
        self.require_open_sizes(v).map_err(|e| self.at_input(i, e))
    }
    /// Required input `i` as constant integers.
    pub fn const_ints(&mut self, i: usize) -> Result<Vec<i64>> {
        let dims = self.const_dims(i)?;
        dims.iter()
            .map(|d| {
                d.as_const().ok_or_else(|| {
                    let e = OpError::symbolic(format!("must be a constant, and is {d}"));
                    self.at_input(i, e)
                })
            })
            .collect()
    }
    /// Required input `i` as one constant integer.
    pub fn const_int(&mut self, i: usize) -> Result<i64> {
        match self.const_ints(i)?.as_slice() {
            [one] => Ok(*one),
            v => {
                let e = OpError::model(format!("needs one element, got {}", v.len()));
                Err(self.at_input(i, e))
            }
        }
    }
    /// Required input `i` as constant numbers; an input that depends on data is an error.
    pub fn const_numbers(&mut self, i: usize) -> Result<Vec<f64>> {
        let v = self.input(i)?;
        match self.numbers(v) {
            Some(n) => Ok(n),
            None => Err(self.unknown_input(i, v)),
        }
    }
    /// Required input `i` as exact fractions, expressions of dimensions over constant denominators; an input that depends on data is an
    /// error.
    pub fn const_fractions(&mut self, i: usize) -> Result<Vec<(Dim, i64)>> {
        let v = self.input(i)?;
        match self.fractions(v) {
            Some(f) => Ok(f),
            None => Err(self.unknown_input(i, v)),
        }
    }
}
