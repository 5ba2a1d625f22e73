//! From a model's bytes to a [`Graph`].
//!
//! [`onnx`] holds the messages, [`op`] the contract of an operator, [`ops`] the operators, [`cx`] what
//! an operator sees of its node. `docs/adding-an-operator.md` says how to add one.

#[cfg(test)]
mod attribute_tests;
pub mod cx;
#[cfg(test)]
mod decoder_tests;
mod dims;
#[cfg(test)]
mod error_tests;
mod graph;
#[cfg(test)]
mod integer_tests;
pub mod onnx;
pub mod op;
pub mod ops;
mod schema;
#[cfg(test)]
mod shape_tests;
mod survey;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod traffic;
pub mod weights;

pub use cx::Cx;
pub use graph::{Param, Scope, Subgraph};
pub use survey::{CheckReport, Unsupported, check, indexing_nodes};

use self::graph::{Importer, Slot};
use self::onnx::{GraphProto, ModelProto, TypeValue, ValueInfoProto, data_type};
use self::op::OpError;
use crate::{Diagnostic, Errors, Location, Options};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wgfc_ir::build::Built;
use wgfc_ir::computed::Bounds;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{
    Atom, BinaryOp, Border, Builder, DType, Dim, Graph, Op, Poly, Scalar, ScalarFn, ScalarNode, Tensor,
    TensorType,
};

/// The newest file format that is understood.
pub const NEWEST_IR: i64 = 14;
/// The oldest and newest version of `ai.onnx` that are understood; operators say their own oldest.
pub const OPSETS: std::ops::RangeInclusive<i64> = 1..=28;

/// Where the bytes of external tensors come from.
pub trait ExternalData {
    /// The whole file at `location`, a path relative to the model that the importer has already
    /// checked not to leave the model's folder.
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String>;
}

/// No external data: a model that refers to some is refused.
pub struct NoExternalData;

impl ExternalData for NoExternalData {
    fn open(&self, _: &str) -> Result<Arc<dyn ByteOwner>, String> {
        Err("the model was given as bytes alone, without its folder".into())
    }
}

/// An imported model.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Its graph in core operators, shapes inferred, shape arithmetic evaluated.
    pub graph: Graph,
    /// Nodes of the model (constants not counted).
    pub model_nodes: usize,
    /// Bytes moved if every node of the model were a kernel of its own.
    pub bytes_unfused: Dim,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// The operators of the nodes that were lowered, by the node's name; those of subgraphs and functions too.
    pub operators: BTreeMap<String, String>,
}

/// Imports an ONNX model. All errors are collected.
pub fn import(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Imported, Errors> {
    import_model(&decode(bytes)?, external, options)
}

/// Reads a model's messages.
pub fn decode(bytes: &[u8]) -> Result<ModelProto, Errors> {
    ModelProto::decode(bytes).map_err(|e| {
        Diagnostic::model(format!("this is not an ONNX model: {e}"))
            .help("the file may be cut short, or be a Git LFS pointer")
            .into()
    })
}

/// Imports a decoded model.
pub fn import_model(
    model: &ModelProto,
    external: &dyn ExternalData,
    options: &Options,
) -> Result<Imported, Errors> {
    run(model, external, options).0
}

/// The inputs of the model whose *data* shapes depend on, as far as an import can see: with their
/// values given ([`Options::values`]) it gets further. Empty where there are none.
pub fn shape_inputs(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Vec<String> {
    let Ok(model) = decode(bytes) else { return vec![] };
    run(&model, external, options).1.into_iter().collect()
}

type Ran = (Result<Imported, Errors>, BTreeSet<String>);

fn run(model: &ModelProto, external: &dyn ExternalData, options: &Options) -> Ran {
    let proto = match check_header(model) {
        Ok(p) => p,
        Err(e) => return (Err(e), BTreeSet::new()),
    };
    let mut im = importer(model, external, options);
    let result = lower(&mut im, proto, options);
    // Parameters of subgraphs have been seen too; only the model's inputs can be given.
    im.shape_inputs.retain(|n| proto.input.iter().any(|v| v.name == *n));
    (result, im.shape_inputs)
}

/// The inputs of a model whose values must be given in each run, with their types as it declares them.
pub fn declared_inputs(bytes: &[u8], options: &Options) -> Result<Vec<(String, TensorType)>, Errors> {
    let model = decode(bytes)?;
    let proto = check_header(&model)?;
    let mut im = importer(&model, &NoExternalData, options);
    im.errors.clear();
    let mut g = Graph::new();
    inputs(&mut im, &mut g, &mut Scope::default(), proto, options);
    match im.errors.is_empty() {
        true => Ok(g.inputs.iter().map(|b| (b.name.to_string(), g.ty(b.value).clone())).collect()),
        false => Err(Errors(im.errors)),
    }
}

fn importer<'m>(model: &'m ModelProto, external: &'m dyn ExternalData, options: &Options) -> Importer<'m> {
    let survey = survey::survey(model);
    Importer {
        weights: weights::Weights::new(external, options.graph_only),
        eval: Default::default(),
        functions: survey::functions(model),
        opsets: graph::opsets(&model.opset_import),
        warnings: vec![],
        errors: survey.unsupported.iter().map(Unsupported::diagnostic).collect(),
        calls: vec![],
        bytes_unfused: Dim::ZERO,
        expanded: 0,
        most_expanded: graph::most_expanded(model),
        bodies: 0,
        depth: 0,
        stopped: false,
        shape_inputs: BTreeSet::new(),
        operators: BTreeMap::new(),
    }
}

fn lower(im: &mut Importer, proto: &GraphProto, options: &Options) -> Result<Imported, Errors> {
    let mut g = Graph::new();
    let mut scope = Scope::default();
    im.initializers(&mut g, &mut scope, proto);
    inputs(im, &mut g, &mut scope, proto, options);
    im.nodes(&mut g, &mut scope, &proto.node, "");
    outputs(im, &mut g, &scope, proto);
    taps(im, &mut g, &scope, proto, options);
    compare_declared(im, &g, &scope, proto);
    if !im.errors.is_empty() {
        return Err(Errors(std::mem::take(&mut im.errors)));
    }
    let bytes_unfused = Bounds::of(&g.computed).most(&std::mem::take(&mut im.bytes_unfused));
    let bytes_unfused = if bytes_unfused.is_too_large() { Dim::ZERO } else { bytes_unfused };
    g.remove_dead();
    if im.weights.nan.0 > 0 {
        let (tensors, n) = im.weights.nan;
        im.warn(format!("{n} elements of {tensors} constants are not numbers (NaN)"));
    }
    if g.node_ids().any(|n| g.node(n).outputs.iter().any(graph::narrowed)) {
        im.warn("f64 values are computed in f32".into());
    }
    let model_nodes = proto.node.iter().filter(|n| n.op_type != "Constant").count();
    let (warnings, operators) = (std::mem::take(&mut im.warnings), std::mem::take(&mut im.operators));
    Ok(Imported { graph: g, model_nodes, bytes_unfused, warnings, operators })
}

fn check_header(model: &ModelProto) -> Result<&GraphProto, Errors> {
    let mut errors = vec![];
    if model.ir_version > NEWEST_IR {
        errors.push(
            Diagnostic::unsupported(format!(
                "the model's file format is IR version {}; the newest known here is {NEWEST_IR}",
                model.ir_version
            ))
            .help("export it with an older version of the onnx package"),
        );
    } else if model.ir_version < 3 {
        errors.push(
            Diagnostic::unsupported(format!(
                "the model's file format is IR version {}; the oldest known here is 3",
                model.ir_version
            ))
            .help("load it with the onnx package, set its ir_version to 3 or more, and save it"),
        );
    }
    for o in &model.opset_import {
        if graph::domain_key(&o.domain).is_empty() && !OPSETS.contains(&o.version) {
            errors.push(
                Diagnostic::unsupported(format!(
                    "the model uses opset {}; versions {} to {} are supported",
                    o.version,
                    OPSETS.start(),
                    OPSETS.end()
                ))
                .help("convert it with onnx.version_converter"),
            );
        }
    }
    match &model.graph {
        Some(g) if errors.is_empty() => Ok(g),
        Some(_) => Err(Errors(errors)),
        None => {
            let d = Diagnostic::model("the model has no graph");
            Err(d
                .help("the file may be another kind of protobuf, or be cut short: export the model again")
                .into())
        }
    }
}

fn at_part(e: OpError, part: String) -> Diagnostic {
    OpError { part: Some(part), ..e }.diagnostic(Location::default())
}

/// The dtype of a declared tensor, or why it cannot be.
fn declared(v: &ValueInfoProto) -> Result<(&onnx::TensorTypeProto, DType), OpError> {
    match v.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Tensor(t)) => match data_type::dtype(t.elem_type) {
            Some(d) => Ok((t, d)),
            None if t.elem_type == 0 => Err(OpError::model("its element type is not given")),
            None => Err(OpError::unsupported(format!(
                "a tensor of {}; only arrays of numbers and bools can be computed with",
                data_type::name(t.elem_type)
            ))),
        },
        Some(other) => Err(OpError::unsupported(format!("a {}; only tensors are supported", other.name()))),
        None => Err(OpError::model("its type is not given")),
    }
}

fn inputs(im: &mut Importer, g: &mut Graph, scope: &mut Scope, proto: &GraphProto, options: &Options) {
    let mut namer = dims::DimNames::new(proto, &options.dims);
    for v in &proto.input {
        // An initializer of the same name is its value unless another is given; older models list every
        // initializer as an input.
        if proto.initializer.iter().any(|t| t.name == v.name) && !options.values.contains_key(&v.name) {
            continue;
        }
        let part = || format!("input \"{}\"", v.name);
        if let Some(t) = options.values.get(&v.name) {
            let ty = TensorType::new(t.dtype, t.shape.iter().map(|d| (*d).into()).collect::<Vec<_>>());
            if let Err(d) = agrees(v, &ty) {
                im.errors.push(at_part(d.help("this is the value given for it"), part()));
            }
            let value = Builder { graph: g, origin: vec![] }.constant(t.clone());
            g.node_mut(value.node).names = vec![Some(v.name.as_str().into())];
            scope.values.insert(v.name.clone(), Slot::Made(value));
            continue;
        }
        let slot = match declared(v) {
            Ok((t, dtype)) => match namer.shape(&v.name, t) {
                Ok(shape) => {
                    let ty = TensorType::new(dtype, shape);
                    match graph::check_dims(&ty) {
                        Ok(()) => Slot::Made(g.add_input(&v.name, ty)),
                        Err(e) => {
                            im.errors.push(at_part(OpError::model(e), part()));
                            Slot::Poisoned
                        }
                    }
                }
                Err(e) => {
                    im.errors.push(at_part(e, part()));
                    Slot::Poisoned
                }
            },
            Err(e) => {
                im.errors.push(at_part(e, part()));
                Slot::Poisoned
            }
        };
        if scope.values.insert(v.name.clone(), slot).is_some() {
            im.errors
                .push(Diagnostic::model(format!("two values are named \"{}\"", v.name)).help(graph::RENAME));
        }
    }
    im.errors.extend(namer.unused(&options.dims));
    for name in options.values.keys().filter(|n| !proto.input.iter().any(|v| v.name == **n)) {
        let d = Diagnostic::model(format!("a value is given for \"{name}\", which is no input of the model"));
        let close = close_names(name, proto.input.iter().map(|v| v.name.as_str()));
        let inputs: Vec<&str> = proto.input.iter().map(|v| v.name.as_str()).collect();
        im.errors.push(match (close.is_empty(), inputs.is_empty()) {
            (false, _) => d.help(format!("close names: {}", close.join(", "))),
            (true, false) => d.help(format!("its inputs are {}", inputs.join(", "))),
            (true, true) => d.help("it has none: leave the value out"),
        });
    }
}

fn outputs(im: &mut Importer, g: &mut Graph, scope: &Scope, proto: &GraphProto) {
    if proto.output.is_empty() {
        let help = "name what it computes as the graph's outputs, or take a tensor with --tap";
        im.errors.push(Diagnostic::model("the graph has no outputs").help(help));
    }
    let mut names = BTreeSet::new();
    for v in &proto.output {
        let part = || format!("output \"{}\"", v.name);
        if !names.insert(v.name.as_str()) {
            let e =
                OpError::model("is listed twice").help("give one of them another name, through an Identity");
            im.errors.push(at_part(e, part()));
            continue;
        }
        match scope.values.get(&v.name) {
            Some(Slot::Made(value)) => {
                // A wrong shape is worth a warning; nobody can read another element type than is meant.
                if let Err(d) = same_type(v, g.ty(*value)) {
                    im.errors.push(at_part(d, part()));
                }
                g.outputs.push(Border { name: v.name.as_str().into(), value: *value });
            }
            Some(Slot::Poisoned) => {}
            None => {
                let e = OpError::model("nothing makes this output");
                im.errors.push(at_part(
                    e.help("remove it from the graph's outputs, or add the node that makes it"),
                    part(),
                ));
            }
        }
    }
}

const DECLARED: &str = "correct the declaration, or leave it out: onnx.shape_inference makes another";

/// Compares a declaration with what has been inferred. Constants must agree; symbols may be named differently.
fn agrees(v: &ValueInfoProto, ty: &TensorType) -> Result<(), OpError> {
    same_type(v, ty)?;
    let Some(TypeValue::Tensor(t)) = v.r#type.as_ref().and_then(|t| t.value.as_ref()) else { return Ok(()) };
    let Some(shape) = &t.shape else { return Ok(()) };
    if shape.dim.len() != ty.rank() {
        let e = format!("declared with rank {}, computed as {ty}", shape.dim.len());
        return Err(OpError::model(e).help(DECLARED));
    }
    for (i, (d, inferred)) in shape.dim.iter().zip(&ty.shape).enumerate() {
        if let (Some(onnx::DimensionValue::Value(n)), Some(c)) = (&d.value, inferred.as_const())
            && *n != c
            && *n > 0
        {
            let e = format!("declared with {n} along axis {i}, computed as {ty}");
            return Err(OpError::model(e).help(DECLARED));
        }
    }
    Ok(())
}

/// Compares a declared element type with what has been inferred.
fn same_type(v: &ValueInfoProto, ty: &TensorType) -> Result<(), OpError> {
    let Some(TypeValue::Tensor(t)) = v.r#type.as_ref().and_then(|t| t.value.as_ref()) else { return Ok(()) };
    match data_type::dtype(t.elem_type) {
        Some(d) if d != ty.dtype => {
            Err(OpError::model(format!("declared as {d}, computed as {ty}")).help(DECLARED))
        }
        _ => Ok(()),
    }
}

/// What the model says of what it computes is advice, and the computed shape holds; a contradiction is worth
/// a warning.
fn compare_declared(im: &mut Importer, g: &Graph, scope: &Scope, proto: &GraphProto) {
    let mut wrong = vec![];
    for v in proto.output.iter().chain(&proto.value_info) {
        if let Some(Slot::Made(value)) = scope.values.get(&v.name)
            && let Err(d) = agrees(v, g.ty(*value))
        {
            wrong.push(format!("\"{}\": {}", v.name, d.message));
        }
    }
    if let [first, rest @ ..] = wrong.as_slice() {
        let more = if rest.is_empty() { String::new() } else { format!(" (and {} more)", rest.len()) };
        im.warn(format!(
            "the model declares a type that is not what is computed, {first}{more}; what is computed holds"
        ));
    }
}

fn taps(im: &mut Importer, g: &mut Graph, scope: &Scope, proto: &GraphProto, options: &Options) {
    for tap in &options.taps {
        if proto.output.iter().any(|o| o.name == *tap) {
            continue;
        }
        match scope.values.get(tap) {
            Some(Slot::Made(v)) => g.outputs.push(Border { name: tap.as_str().into(), value: *v }),
            Some(Slot::Poisoned) => {}
            None => {
                let mut d = Diagnostic::model(format!("the model has no tensor \"{tap}\" to tap"));
                let close = close_names(tap, scope.values.keys().map(String::as_str));
                d = d.help(match close.is_empty() {
                    false => format!("close names: {}", close.join(", ")),
                    true => {
                        "a viewer of ONNX models shows the names; those of subgraphs cannot be tapped".into()
                    }
                });
                im.errors.push(d);
            }
        }
    }
}

/// Up to five names that resemble `wanted`: those that contain it, and those a few edits away.
pub fn close_names<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let low = wanted.to_lowercase();
    let mut scored: Vec<(usize, &str)> = names
        .filter_map(|n| {
            let m = n.to_lowercase();
            let d = if m.contains(&low) || (m.len() > 2 && low.contains(&m)) { 1 } else { edits(&low, &m) };
            (d <= 2 + wanted.len() / 4).then_some((d, n))
        })
        .collect();
    scored.sort_unstable();
    scored.into_iter().take(5).map(|(_, n)| n).collect()
}

fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(200).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(200).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row.last().copied().unwrap_or(0)
}

/// Whether an expression is below 31 bits whatever its symbols are, none of which is beyond 2²⁹: index
/// expressions are computed in 32 bits.
fn is_short(p: &Poly) -> bool {
    if let Some(c) = p.as_const() {
        return i32::try_from(c).is_ok();
    }
    let mut multiples = 0u64;
    p.terms().iter().all(|(m, c)| match m.as_slice() {
        [] => c.unsigned_abs() <= 1 << 29,
        [atom] => {
            multiples = multiples.saturating_add(c.unsigned_abs());
            let inside = match atom {
                Atom::Sym(_) => true,
                Atom::Div(x, y) | Atom::Mod(x, y) | Atom::Max(x, y) | Atom::Min(x, y) => {
                    is_short(x) && is_short(y)
                }
                Atom::Var(_) | Atom::Data(_) | Atom::TooLarge => false,
            };
            inside && multiples <= 3
        }
        _ => false,
    })
}

/// A tensor whose elements are expressions of dimensions: a constant, or a map without operands.
/// `Err` when it is a long list of expressions.
pub(crate) fn shape_value(b: &mut Builder, elements: &[Dim], shape: &[usize], dtype: DType) -> Built {
    if let Some(c) = elements.iter().map(Poly::as_const).collect::<Option<Vec<_>>>() {
        let s: Vec<Scalar> = c.iter().map(|v| Scalar::from_i64(dtype, *v)).collect();
        if s.len() != shape.iter().product::<usize>() {
            return Err(format!("{} elements for shape {shape:?}", s.len()));
        }
        return Ok(b.constant(Tensor::from_scalars(dtype, shape.to_vec(), &s)));
    }
    let fits = |p: &Poly| !p.is_too_large() && p.terms().iter().all(|(_, c)| i32::try_from(*c).is_ok());
    if elements.len() > 32 || dtype == DType::Bool || !elements.iter().all(fits) {
        return Err("too long to write as one expression".into());
    }
    let dims: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
    let mut flat = Poly::ZERO;
    for (i, d) in dims.iter().enumerate() {
        flat = &(&flat * d) + &if d.is(1) { Poly::ZERO } else { Poly::var(i) };
    }
    let mut f = ScalarFn::default();
    let position = f.push(ScalarNode::Index(flat));
    let mut value = None;
    for (i, e) in elements.iter().enumerate().rev() {
        let this = f.push(ScalarNode::Index(e.clone()));
        value = Some(match value {
            None => this,
            Some(rest) => {
                let k = f.push(ScalarNode::Const(Scalar::from_i64(DType::I32, i as i64)));
                let here = f.push(ScalarNode::Binary(BinaryOp::Eq, position, k));
                f.push(ScalarNode::Select(here, this, rest))
            }
        });
    }
    let Some(mut root) = value else { return Err("no elements".into()) };
    if elements.len() == 1 {
        return b.iota(&dims, elements[0].clone(), dtype);
    }
    if dtype != DType::I32 {
        root = f.push(ScalarNode::Cast(dtype, root));
    }
    if root as usize + 1 != f.nodes.len() {
        // The result must be the last node; a repeated expression may have been found earlier.
        f.nodes.push(ScalarNode::Select(root, root, root));
        return Err("the result is not the last node".into());
    }
    b.push(Op::Map { body: f, shape: dims }, &[])
}
