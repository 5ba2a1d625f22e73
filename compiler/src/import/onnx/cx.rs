//! An operator's decoder's view of its node.

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
    /// Parameters of the lowering that inputs give.
    given: Vec<(&'static str, usize)>,
    /// Operands of the lowering that are made of one input.
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

/// The subjects of the lowering's errors, in the words of the model.
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
    /// Says that input `i` gives a parameter of the lowering. Others are given by the attributes of their
    /// names, or of those that `ATTRIBUTES` says.
    pub fn gives(&mut self, i: usize, param: &'static str) {
        self.given.push((param, i));
    }
    /// Says that an operand of the lowering is made of input `i`.
    pub fn made_of(&mut self, i: usize, v: Value) {
        self.made.push((v, i));
    }
    /// An error with the input or attribute it is about.
    pub(super) fn placed(&self, e: OpError) -> OpError {
        let part = match e.part {
            Some(Part::Operand(v)) => {
                let own = (0..self.inputs.len()).filter(|i| self.inputs[*i] == Some(v));
                let made = self.made.iter().filter(|(made, _)| *made == v).map(|(_, i)| *i);
                // A value may be given several times.
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

/// Attributes that are not called as the parameters of the lowering that they give.
pub(super) const ATTRIBUTES: &[(&str, &str)] = &[
    ("along", "quantize_axis"),
    ("groups", "group"),
    ("kernel", "kernel_shape"),
    ("samples", "sampling_ratio"),
];

/// Inputs and outputs.
impl Cx<'_, '_, '_> {
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
    /// How many errors there are; for [`Cx::forget_errors`].
    pub fn error_mark(&self) -> usize {
        self.importer.errors.len()
    }
    /// The first error since a mark.
    pub fn error_since(&self, mark: usize) -> Option<String> {
        self.importer.errors.get(mark).map(|e| e.message.clone())
    }
    /// Whether the model has met a limit, which has been reported.
    pub fn is_stopped(&self) -> bool {
        self.importer.stopped
    }
    /// Takes back the errors since a mark: a subgraph failed, and there is another way to import it.
    pub fn forget_errors(&mut self, mark: usize) {
        // A limit that has been met holds for every way.
        if !self.importer.stopped {
            self.importer.errors.truncate(mark);
        }
    }
}

/// Attributes.
impl<'a> Cx<'a, '_, '_> {
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
    /// A required string.
    pub fn string_req(&self, name: &str) -> Result<String> {
        self.required(name, self.string_opt(name)?)
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
    /// The axis of `x` that attribute `axis` names.
    pub fn axis_attr(&self, x: Value, default: i64) -> Result<usize> {
        self.axis(self.int("axis", default)?, self.rank(x))
    }
    /// The first of the axes of `x` that are taken as one, which attribute `axis` names: it may be the rank.
    pub fn first_axis(&self, x: Value, default: i64) -> Result<usize> {
        let (axis, rank) = (self.int("axis", default)?, self.rank(x));
        if axis == rank as i64 { Ok(rank) } else { self.axis(axis, rank) }
    }
    /// Several axes: sorted; a repeated one is an error.
    pub fn axes(&self, v: &[i64], rank: usize) -> Result<Vec<usize>> {
        lower::axes(v, rank)
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

/// Contents of small tensors, known while compiling.
impl Cx<'_, '_, '_> {
    /// The elements of required input `i` ([`Lowering::dims`]); an error that says so when it depends on data.
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
    /// The error for input `i`, which must be known and depends on data.
    fn unknown_input(&mut self, i: usize, v: Value) -> OpError {
        let e = self.unknown(v);
        self.at_input(i, e)
    }
    /// An error where input `i`, which depends on data, would decide a size in a branch or body.
    pub fn require_open_sizes_of(&mut self, i: usize) -> Result<()> {
        let v = self.input(i)?;
        self.require_open_sizes(v).map_err(|e| self.at_input(i, e))
    }
    /// Required input `i` as integers that depend on nothing.
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
    /// Required input `i` as numbers; an error that says so when they depend on data.
    pub fn const_numbers(&mut self, i: usize) -> Result<Vec<f64>> {
        let v = self.input(i)?;
        match self.numbers(v) {
            Some(n) => Ok(n),
            None => Err(self.unknown_input(i, v)),
        }
    }
    /// Required input `i` as exact fractions, expressions of dimensions over constants; an error that says so
    /// when they depend on data.
    pub fn const_fractions(&mut self, i: usize) -> Result<Vec<(Dim, i64)>> {
        let v = self.input(i)?;
        match self.fractions(v) {
            Some(f) => Ok(f),
            None => Err(self.unknown_input(i, v)),
        }
    }
}
