//! Imports the parts of a model other than its nodes: its header, inputs, outputs, and declared types.

use super::dims::DimNames;
use super::messages::{
    DimensionValue, GraphProto, ModelProto, NodeProto, TensorTypeProto, TypeValue, ValueInfoProto, data_type,
};
use super::names::{RENAME, Scope, Slot, domain_key};
use super::op::{OpError, diagnostic};
use super::walk::{Importer, MAX_OPERANDS};
use super::{NEWEST_IR, OPSETS};
use crate::import::{Imported, close_names};
use crate::lower::inside::Names;
use crate::lower::{Lowering, check_dims};
use crate::{Diagnostic, Errors, Location, Options};
use std::collections::BTreeSet;
use wgfc_ir::{Border, DType, Graph, TensorType};

/// Imports a model whose header has been checked. Also returns the inputs that sizes depend on.
pub(super) fn import(
    im: &mut Importer,
    proto: &GraphProto,
    options: &Options,
) -> (Result<Imported, Errors>, BTreeSet<String>) {
    let mut g = Graph::new();
    let mut to = Lowering::new(&mut g);
    to.look_inside(options);
    let mut scope = Scope::default();
    im.initializers(&mut to, &mut scope, proto);
    inputs(im, &mut to, &mut scope, proto, options);
    for (what, count) in [("inputs", to.graph.inputs.len()), ("outputs", proto.output.len())] {
        if count > MAX_OPERANDS {
            let most = format!("the model has {count} {what}; at most {MAX_OPERANDS} are supported");
            let help = "make one tensor of many: Concat takes them together, Split apart";
            im.stop(Diagnostic::unsupported(most).help(help));
        }
    }
    im.nodes(&mut to, &mut scope, &proto.node, "");
    outputs(im, to.graph, &scope, proto);
    let inner = |name: &str| {
        let functions = || im.functions.values().flat_map(|f| &f.node);
        let nodes = functions().chain(inner_nodes(functions().chain(&proto.node)));
        nodes.flat_map(|n| &n.output).any(|o| o == name)
    };
    let wrong = to.finish_inside(&Names {
        kind: "tensor",
        names: scope.values.keys().map(String::as_str).collect(),
        failed: &|name| matches!(scope.values.get(name), Some(Slot::Poisoned)),
        inner: &inner,
        help: "a viewer of ONNX models shows the names",
    });
    im.errors.extend(wrong);
    compare_declared(&mut to, &scope, proto);
    let mut notes = to.finish();
    let data_inputs = std::mem::take(&mut notes.data_inputs);
    if !im.errors.is_empty() {
        return (Err(Errors(std::mem::take(&mut im.errors))), data_inputs);
    }
    let model_nodes = proto.node.iter().filter(|n| n.op_type != "Constant").count();
    let operators = std::mem::take(&mut im.operators);
    (
        Ok(Imported::of(g, model_nodes, &im.bytes_unfused, notes.warnings, im.weights.nan, operators)),
        data_inputs,
    )
}

/// The model's graph; an error if the version of the file format or of an operator set is not supported.
pub(super) fn check_header(model: &ModelProto) -> Result<&GraphProto, Errors> {
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
        if domain_key(&o.domain).is_empty() && !OPSETS.contains(&o.version) {
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
    diagnostic(e.at(part), Location::default())
}

/// The declared tensor type and its element type; an error if they are not supported.
fn declared(v: &ValueInfoProto) -> Result<(&TensorTypeProto, DType), OpError> {
    match v.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Tensor(t)) => match data_type::dtype(t.elem_type) {
            Some(d) => Ok((t, d)),
            None if t.elem_type == 0 => Err(OpError::model("its element type is not given")),
            None => Err(OpError::unsupported(
                format!(
                    "a tensor of {}; only arrays of numbers and bools can be computed with",
                    data_type::name(t.elem_type)
                ),
                "cut the model where its numbers begin or end (onnx.utils.extract_model)",
            )),
        },
        Some(other) => Err(OpError::unsupported(
            format!("a {}; only tensors are supported", other.name()),
            "export the model with the tensors in it as inputs of their own",
        )),
        None => Err(OpError::model("its type is not given")),
    }
}

/// Adds the inputs, or the values given for them.
pub(super) fn inputs(
    im: &mut Importer,
    to: &mut Lowering,
    scope: &mut Scope,
    proto: &GraphProto,
    options: &Options,
) {
    let mut namer = DimNames::new(proto, &options.dims);
    for v in &proto.input {
        // An initializer with an input's name is its default value; older models list every initializer as an input.
        if proto.initializer.iter().any(|t| t.name == v.name) && !options.values.contains_key(&v.name) {
            continue;
        }
        let part = || format!("input \"{}\"", v.name);
        if let Some(t) = options.values.get(&v.name) {
            let ty = TensorType::new(t.dtype, t.shape.iter().map(|d| (*d).into()).collect::<Vec<_>>());
            if let Err(d) = agrees(v, &ty) {
                im.errors.push(at_part(d.help("this is the value given for it"), part()));
            }
            let value = to.constant(t.clone());
            to.graph.node_mut(value.node).names = vec![Some(v.name.as_str().into())];
            scope.values.insert(v.name.clone(), Slot::Made(to.named(&v.name, value)));
            continue;
        }
        let slot = match declared(v) {
            Ok((t, dtype)) => match namer.shape(&v.name, t) {
                Ok(shape) => {
                    let ty = TensorType::new(dtype, shape);
                    match check_dims(&ty) {
                        Ok(()) => {
                            let value = to.graph.add_input(&v.name, ty);
                            Slot::Made(to.named(&v.name, value))
                        }
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
            im.errors.push(Diagnostic::model(format!("two values are named \"{}\"", v.name)).help(RENAME));
        }
    }
    im.errors.extend(namer.unused(&options.dims));
    for name in options.values.keys().filter(|n| !proto.input.iter().any(|v| v.name == **n)) {
        let d =
            Diagnostic::model(format!("a value is given for \"{name}\", which is not an input of the model"));
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
        let help = "list its results as the graph's outputs, or take a tensor with --tap";
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
                // A wrong shape is only a warning, but a wrong element type would change how the output is read.
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

const DECLARED: &str = "correct the declaration, or remove it; onnx.shape_inference can add it again";

/// Compares a declared type with the inferred one. Constant extents must agree; symbols may have different names.
fn agrees(v: &ValueInfoProto, ty: &TensorType) -> Result<(), OpError> {
    same_type(v, ty)?;
    let Some(TypeValue::Tensor(t)) = v.r#type.as_ref().and_then(|t| t.value.as_ref()) else { return Ok(()) };
    let Some(shape) = &t.shape else { return Ok(()) };
    if shape.dim.len() != ty.rank() {
        let e = format!("declared with rank {}, computed as {ty}", shape.dim.len());
        return Err(OpError::model(e).help(DECLARED));
    }
    for (i, (d, inferred)) in shape.dim.iter().zip(&ty.shape).enumerate() {
        if let (Some(DimensionValue::Value(n)), Some(c)) = (&d.value, inferred.as_const())
            && *n != c
            && *n > 0
        {
            let e = format!("declared with {n} along axis {i}, computed as {ty}");
            return Err(OpError::model(e).help(DECLARED));
        }
    }
    Ok(())
}

/// Compares a declared element type with the inferred one.
fn same_type(v: &ValueInfoProto, ty: &TensorType) -> Result<(), OpError> {
    let Some(TypeValue::Tensor(t)) = v.r#type.as_ref().and_then(|t| t.value.as_ref()) else { return Ok(()) };
    match data_type::dtype(t.elem_type) {
        Some(d) if d != ty.dtype => {
            Err(OpError::model(format!("declared as {d}, computed as {ty}")).help(DECLARED))
        }
        _ => Ok(()),
    }
}

/// Warns about declared types of values that contradict the inferred ones. The inferred types are used.
fn compare_declared(to: &mut Lowering, scope: &Scope, proto: &GraphProto) {
    let mut wrong = vec![];
    for v in proto.output.iter().chain(&proto.value_info) {
        if let Some(Slot::Made(value)) = scope.values.get(&v.name)
            && let Err(d) = agrees(v, to.ty(*value))
        {
            wrong.push(format!("\"{}\": {}", v.name, d.message));
        }
    }
    if let [first, rest @ ..] = wrong.as_slice() {
        let more = if rest.is_empty() { String::new() } else { format!(" (and {} more)", rest.len()) };
        to.warn(format!(
            "the model declares a type that differs from the computed one, {first}{more}; the computed type is used"
        ));
    }
}

/// The nodes of all graphs that are nested in these nodes, at any depth.
fn inner_nodes<'p>(nodes: impl IntoIterator<Item = &'p NodeProto>) -> Vec<&'p NodeProto> {
    let graphs = |n: &'p NodeProto| n.attribute.iter().filter_map(|a| a.g.as_ref()).flat_map(|g| &g.node);
    let mut found: Vec<&NodeProto> = nodes.into_iter().flat_map(graphs).collect();
    let mut next = 0;
    while let Some(n) = found.get(next) {
        next += 1;
        found.extend(graphs(n));
    }
    found
}
