//! Imports the parts of a program other than its nodes: inputs, outputs, states.

use super::guards::{Guard, Relation};
use super::messages::{
    Argument, ExportedProgram, Graph as FxGraph, InputSpec, Node, OutputSpec, SymArgument, SymInt,
};
use super::names::Names;
use super::op::{OpError, diagnostic};
use super::scope::{Scope, Slot};
use super::shared::{self, Stored};
use super::survey::survey;
use super::symbols::{Required, require, require_said};
use super::walk::{Importer, tensors, written};
use super::{expr, schema, symbols};
use crate::import::{Imported, close_names};
use crate::loss_scale::Ones;
use crate::lower::inside::Names as InsideNames;
use crate::lower::{Lowering, check_dims};
use crate::{Diagnostic, Errors, Location, Options};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wgfc_ir::{Border, DType, Dim, Graph, Op, State, Tensor, TensorType, Value};

/// Imports a program.
///
/// # Errors
/// All faults of the program and all parts that are not supported.
pub fn import<'m>(
    im: &mut Importer<'m>,
    p: &'m ExportedProgram,
    options: &Options,
) -> Result<Imported, Errors> {
    let names = Names::of(p);
    let graph = &p.graph_module.graph;
    im.errors.extend(survey(graph).errors);
    let (shapes, required) = symbols::settle(im, p, &names, options);
    let mut g = Graph::new();
    let mut to = Lowering::new(&mut g);
    to.look_inside(options);
    let others = modules(graph).into_iter().map(|(m, r)| (m.to_owned(), r)).chain(results(p, &names));
    im.also = others.filter(|(m, _)| to.is_wanted(m)).map(|(m, r)| (r, m)).collect();
    let Required { equal, at_most, others } = required;
    for (pairs, relation) in [(equal, Relation::Equal), (at_most, Relation::AtMost)] {
        pairs.into_iter().for_each(|(a, b)| require(&mut to, &Guard { a, b, relation }));
    }
    others.iter().for_each(|(text, g)| require_said(&mut to, text, g));
    let mut scope = Scope::default();
    let mut states = inputs(im, &mut to, &mut scope, p, &names, &shapes, options);
    im.nodes(&mut to, &mut scope, graph);
    outputs(im, &mut to, &mut scope, p, &names, &mut states);
    inside(im, &mut to, &mut scope, graph, options);
    let ones: Vec<Ones> = to.ones.iter().map(|(ones, like)| Ones { ones: *ones, like: *like }).collect();
    let notes = to.finish();
    if !im.errors.is_empty() {
        return Err(Errors(std::mem::take(&mut im.errors)));
    }
    g.states.extend(states.into_iter().map(|(_, s)| s));
    let operators = std::mem::take(&mut im.operators);
    let (nodes, nan) = (schema::nodes(graph), im.weights.nan);
    let imported = Imported::of(g, nodes, &im.bytes_unfused, notes.warnings, nan, operators);
    let ones = ones.into_iter().filter(|o| imported.graph.contains(o.ones.node)).collect();
    Ok(Imported { ones, ..imported })
}

fn at_part(e: OpError, part: String) -> Diagnostic {
    diagnostic(e.at(part), Location::default())
}

/// Future states, by the graph's name of the initial value.
type States = Vec<(String, State)>;

/// The inputs that the user passes, with their declared types.
///
/// # Errors
/// The types that cannot be read.
pub fn declared_inputs(
    im: &mut Importer<'_>,
    p: &ExportedProgram,
    options: &Options,
) -> Result<Vec<(String, TensorType)>, Errors> {
    let names = Names::of(p);
    let (shapes, _) = symbols::settle(im, p, &names, options);
    let mut g = Graph::new();
    let mut to = Lowering::new(&mut g);
    for spec in &p.graph_module.signature.input_specs {
        let InputSpec::UserInput(Argument::Tensor(t)) = spec else { continue };
        let user = names.input(&t.name);
        if let Err(e) = given(im, &mut to, &mut Scope::default(), (&t.name, &user), &shapes, options) {
            im.errors.push(at_part(e, format!("input \"{user}\"")));
        }
    }
    match im.errors.is_empty() {
        true => Ok(g.inputs.iter().map(|b| (b.name.to_string(), g.ty(b.value).clone())).collect()),
        false => Err(Errors(std::mem::take(&mut im.errors))),
    }
}

/// The names of integer inputs. Sizes may depend on them, so they must be constants.
pub fn integers(p: &ExportedProgram) -> Vec<String> {
    let specs = p.graph_module.signature.input_specs.iter();
    let name = |s: &InputSpec| match s {
        InputSpec::UserInput(Argument::SymInt(SymArgument::Name(n))) => Some(n.clone()),
        _ => None,
    };
    specs.filter_map(name).collect()
}

/// Adds weights, constants and inputs, with fixed values for the inputs that have them. Tensors that the program writes become states.
fn inputs<'m>(
    im: &mut Importer<'m>,
    to: &mut Lowering,
    scope: &mut Scope,
    p: &'m ExportedProgram,
    names: &Names,
    shapes: &BTreeMap<String, Vec<Dim>>,
    options: &Options,
) -> States {
    let module = &p.graph_module;
    let mut changed: BTreeSet<&str> = written(&module.graph);
    for spec in &module.signature.output_specs {
        if let OutputSpec::BufferMutation { name, .. } = spec {
            changed.insert(name);
        }
    }
    let shared = shared::find(&im.weights, &module.signature, &changed);
    changed.extend(shared.views.values().map(|whole| whole.arg));
    im.errors.extend(shared.errors);
    let mut states = vec![];
    let mut used = BTreeSet::new();
    for (spec, input) in module.signature.input_specs.iter().zip(&module.graph.inputs) {
        let Stored { arg, name, table } = match spec {
            InputSpec::UserInput(Argument::Tensor(t)) => {
                let user = names.input(&t.name);
                used.insert(user.clone());
                if let Err(e) = given(im, to, scope, (&t.name, &user), shapes, options) {
                    im.errors.push(at_part(e, format!("input \"{user}\"")));
                    scope.poison(&t.name);
                }
                continue;
            }
            InputSpec::UserInput(Argument::SymInt(SymArgument::Name(n))) => {
                used.insert(n.clone());
                if let Err(e) = integer(im, &module.graph, n, options) {
                    im.errors.push(at_part(e, format!("input \"{n}\"")));
                }
                continue;
            }
            InputSpec::UserInput(_) | InputSpec::Fixed => continue,
            InputSpec::Other(key) => {
                if key != "token" {
                    let d = Diagnostic::unsupported(format!("an input of the graph is a {key}"));
                    im.errors.push(d.help("export the module with tensors in its place"));
                }
                tensors(input).for_each(|n| scope.poison(n));
                continue;
            }
            spec => match Stored::of(spec) {
                Some(stored) => stored,
                None => continue,
            },
        };
        if shared.views.contains_key(arg) {
            continue;
        }
        let made = match changed.contains(name) || changed.contains(arg) {
            true => im.weights.tensor(table, name).map(|t| {
                let s = state(to, name, t);
                let before = s.before;
                states.push((arg.to_owned(), s));
                before
            }),
            false => im.weights.value(to, table, name).map(|v| to.named_all(&[name, arg], v)),
        };
        match made {
            Ok(v) => {
                if let Some(slot @ None) = to.graph.node_mut(v.node).names.get_mut(v.port as usize) {
                    *slot = Some(name.into());
                }
                scope.insert(arg, v);
            }
            Err(e) => {
                im.errors.push(at_part(e, format!("weight \"{name}\"")));
                scope.poison(arg);
            }
        }
    }
    for part in module.signature.input_specs.iter().filter_map(Stored::of) {
        let Some(whole) = shared.views.get(part.arg).filter(|w| w.arg != part.arg) else { continue };
        let made = scope.read(to, whole.arg).and_then(|v| {
            let v = im.weights.part(to, (part.table, part.name), (whole.table, whole.name), v)?;
            scope.alias(to.graph, part.arg, whole.arg, v, true);
            Ok(())
        });
        if let Err(e) = made {
            if !e.reported {
                im.errors.push(at_part(e, format!("weight \"{}\"", part.name)));
            }
            scope.poison(part.arg);
        }
    }
    for name in options.values.keys().filter(|n| !used.contains(*n)) {
        let d = Diagnostic::model(format!(
            "a value is given for \"{name}\", which is not an input of the program"
        ));
        let close = close_names(name, used.iter().map(String::as_str));
        let all: Vec<&str> = used.iter().map(String::as_str).collect();
        im.errors.push(match (close.is_empty(), all.is_empty()) {
            (false, _) => d.help(format!("close names: {}", close.join(", "))),
            (true, false) => d.help(format!("its inputs are {}", all.join(", "))),
            (true, true) => d.help("it has none: leave the value out"),
        });
    }
    states
}

/// Adds an input that the user passes.
fn given(
    im: &Importer<'_>,
    to: &mut Lowering,
    scope: &mut Scope,
    (arg, user): (&str, &str),
    shapes: &BTreeMap<String, Vec<Dim>>,
    options: &Options,
) -> Result<(), OpError> {
    let Some(shape) = shapes.get(arg) else { return Err(OpError::reported()) };
    let dtype = im.declared_dtype(arg)?;
    let mut ty = TensorType::new(dtype, shape.clone());
    if im.declared_complex(arg) {
        ty.shape.push(2i64.into());
    }
    check_dims(&ty).map_err(OpError::model)?;
    let called: Vec<&str> = std::iter::once(user).chain(im.names_of(arg)).collect();
    if let Some(t) = options.values.get(user) {
        let fits = t.dtype == ty.dtype
            && t.shape.len() == ty.rank()
            && t.shape.iter().zip(&ty.shape).all(|(n, d)| d.as_const().is_none_or(|c| c == *n as i64));
        if !fits {
            let e = format!("is a {ty}, and the value given for it a {}{:?}", t.dtype, t.shape);
            return Err(OpError::model(e).help("give a value of its type"));
        }
        for (n, d) in t.shape.iter().zip(&ty.shape) {
            to.require_equal(&(*n).into(), d);
        }
        let v = to.constant(t.clone());
        to.graph.node_mut(v.node).names = vec![Some(user.into())];
        let v = to.named_all(&called, v);
        scope.insert(arg, v);
        return Ok(());
    }
    let v = to.graph.add_input(user, ty);
    let v = to.named_all(&called, v);
    scope.insert(arg, v);
    Ok(())
}

/// Fixes an integer input, whose value must be given.
fn integer(im: &mut Importer<'_>, graph: &FxGraph, name: &str, options: &Options) -> Result<(), OpError> {
    let symbol = match graph.sym_int_values.get(name) {
        Some(SymInt::Expr(text)) => match expr::parse(text) {
            Ok(expr::Expr::Symbol(s)) => s,
            _ => {
                return Err(OpError::unsupported(
                    "is an expression of integers",
                    "export the module without it",
                ));
            }
        },
        _ => return Ok(()),
    };
    let value = options.values.get(name).and_then(|t| t.to_i64s()).filter(|v| v.len() == 1);
    let Some(value) = value else {
        return Err(OpError::unsupported(
            "is an integer that sizes may depend on",
            format!("give its value when compiling: --fix {name}=VALUE"),
        ));
    };
    im.define(&symbol, value[0].into());
    Ok(())
}

/// A tensor that persists from run to run.
fn state(to: &mut Lowering, name: &str, initial: Tensor) -> State {
    let shape: Vec<Dim> = initial.shape.iter().map(|n| (*n).into()).collect();
    let node = wgfc_ir::Node {
        op: Op::Input,
        inputs: vec![],
        outputs: vec![TensorType::new(initial.dtype, shape)],
        origin: vec![],
        names: vec![Some(name.into())],
    };
    let before: Value = to.graph.add_node(node).into();
    State { name: name.into(), before, after: before, growth: None, initial: Some(Arc::new(initial)) }
}

fn outputs<'m>(
    im: &mut Importer<'m>,
    to: &mut Lowering,
    scope: &mut Scope,
    p: &'m ExportedProgram,
    names: &Names,
    states: &mut States,
) {
    let module = &p.graph_module;
    let specs = &module.signature.output_specs;
    let users = specs.iter().filter(|s| matches!(s, OutputSpec::UserOutput(_))).count();
    let buffers: BTreeMap<&str, &str> = module
        .signature
        .input_specs
        .iter()
        .filter_map(|s| match s {
            InputSpec::Buffer { arg, name, .. } | InputSpec::Parameter { arg, name } => {
                Some((name.as_str(), arg.as_str()))
            }
            _ => None,
        })
        .collect();
    for (arg, s) in states.iter_mut() {
        if let Some(v) = scope.written(arg) {
            s.after = v;
        }
    }
    let mut i = 0;
    let mut written: Vec<Border> = vec![];
    for spec in specs {
        let mut read =
            |to: &mut Lowering, im: &mut Importer<'_>, arg: &str, part: &str| match scope.read(to, arg) {
                Ok(v) => Some(v),
                Err(e) if e.reported => None,
                Err(e) => {
                    im.errors.push(at_part(e, part.to_owned()));
                    None
                }
            };
        let (arg, name) = match spec {
            OutputSpec::UserOutput(a) => {
                let name = names.output(i, users);
                i += 1;
                match a {
                    Argument::Tensor(t) => (t.name.as_str(), name),
                    Argument::None => continue,
                    a => {
                        constant(im, to, a, &module.graph, &name);
                        continue;
                    }
                }
            }
            OutputSpec::Loss(arg) => (arg.as_str(), "loss".to_owned()),
            OutputSpec::Gradient { arg, name } => (arg.as_str(), format!("grad.{name}")),
            OutputSpec::BufferMutation { arg, name } => {
                let of = buffers.get(name.as_str()).copied().unwrap_or(name);
                let Some(v) = read(to, im, arg, &format!("buffer \"{name}\"")) else { continue };
                match states.iter_mut().find(|(a, _)| a == of) {
                    Some((_, s)) => s.after = v,
                    None => {
                        let d = Diagnostic::unsupported(format!(
                            "buffer \"{name}\", which is written, is a view of another one"
                        ));
                        im.errors
                            .push(d.help("register only the whole tensor, and take the view in forward"));
                    }
                }
                continue;
            }
            OutputSpec::InputMutation { arg, name } => {
                let name = names.input(name);
                if let Some(v) = read(to, im, arg, &format!("input \"{name}\"")) {
                    written.push(Border { name: name.into(), value: v });
                }
                continue;
            }
            OutputSpec::Other(key) => {
                if key != "token" {
                    let d = Diagnostic::unsupported(format!("an output of the graph is a {key}"));
                    im.errors.push(d.help("return tensors"));
                }
                continue;
            }
        };
        if let Some(value) = read(to, im, arg, &format!("output \"{name}\"")) {
            to.graph.outputs.push(Border { name: name.as_str().into(), value });
        }
    }
    // The new value of a written input is an output with the input's name, after all others. Some programs already list it in the
    // signature.
    for spec in &module.signature.input_specs {
        let InputSpec::UserInput(Argument::Tensor(t)) = spec else { continue };
        let name = names.input(&t.name);
        if let Some(value) = scope.written(&t.name)
            && !written.iter().any(|b| *b.name == *name)
        {
            written.push(Border { name: name.into(), value });
        }
    }
    to.graph.outputs.extend(written);
    if to.graph.outputs.is_empty() && states.is_empty() && im.errors.is_empty() {
        let help = "return a tensor from forward, or take one with --tap";
        im.errors.push(Diagnostic::model("the program has no outputs").help(help));
    }
}

/// Adds an output that is a number.
fn constant(im: &mut Importer<'_>, to: &mut Lowering, a: &Argument, graph: &FxGraph, name: &str) {
    let value = match a {
        Argument::Int(n) => Ok(to.int(DType::I64, *n)),
        Argument::Float(x) => Ok(to.scalar(DType::F32, *x)),
        Argument::Bool(b) => Ok(to.constant(wgfc_ir::Tensor::scalar(wgfc_ir::Scalar::bool(*b)))),
        Argument::SymInt(SymArgument::Name(n)) => match graph.sym_int_values.get(n) {
            Some(s) => im.sym_int(s).and_then(|d| Ok(to.dim_scalar(&d, DType::I64)?)),
            None => Err(OpError::model(format!("nothing makes the integer `{n}`"))),
        },
        a => Err(OpError::unsupported(format!("is {}", a.kind()), "return tensors and numbers")),
    };
    match value {
        Ok(value) => to.graph.outputs.push(Border { name: name.into(), value }),
        Err(e) => im.errors.push(at_part(e, format!("output \"{name}\""))),
    }
}

/// The last result of each module that was traced, by the module's qualified name.
fn modules(graph: &FxGraph) -> BTreeMap<&str, &str> {
    let mut out = BTreeMap::new();
    for node in &graph.nodes {
        let stack = node.metadata.get("nn_module_stack").map_or("", String::as_str);
        let Some(result) = Node::results(node).last() else { continue };
        for module in stack.split(';').filter_map(|m| m.split(',').nth(1)).filter(|m| !m.is_empty()) {
            out.insert(module, result);
        }
    }
    out
}

/// The results that the user receives, by name, except names that a tensor of the graph has.
fn results<'m>(p: &'m ExportedProgram, names: &Names) -> Vec<(String, &'m str)> {
    let module = &p.graph_module;
    let users = module.signature.output_specs.iter().filter_map(|s| match s {
        OutputSpec::UserOutput(a) => Some(a),
        _ => None,
    });
    let users: Vec<&Argument> = users.collect();
    let of = |(i, a): (usize, &&'m Argument)| match a {
        Argument::Tensor(t) => Some((names.output(i, users.len()), t.name.as_str())),
        _ => None,
    };
    let named = users.iter().enumerate().filter_map(of);
    named.filter(|(name, _)| !module.graph.tensor_values.contains_key(name)).collect()
}

/// Taps the tensors that the options ask for, by their own names or by the modules that return them.
fn inside(im: &mut Importer<'_>, to: &mut Lowering, scope: &mut Scope, graph: &FxGraph, options: &Options) {
    // A tap of a state shows its final value.
    for tap in &options.taps {
        if let Some(v) = to.graph.outputs.iter().find(|o| *o.name == **tap).map(|o| o.value) {
            to.named_to_tap(tap, v);
        }
        if matches!(scope.get(tap), Some(Slot::Made(_))) && !to.graph.outputs.iter().any(|o| *o.name == **tap)
        {
            match scope.read(to, tap) {
                Ok(v) => to.named_to_tap(tap, v),
                Err(e) => im.errors.push(at_part(e, format!("tap \"{tap}\""))),
            }
        }
    }
    let modules = modules(graph);
    let failed = |name: &str| {
        let output = im.also.iter().find(|(_, other)| other == name).map(|(result, _)| *result);
        let name = modules.get(name).copied().or(output).unwrap_or(name);
        matches!(scope.get(name), Some(Slot::Poisoned))
    };
    let inner = |name: &str| {
        let mut todo: Vec<&FxGraph> = inner_graphs(graph);
        while let Some(g) = todo.pop() {
            if g.nodes.iter().flat_map(Node::results).any(|n| n == name) {
                return true;
            }
            todo.extend(inner_graphs(g));
        }
        false
    };
    let wrong = to.finish_inside(&InsideNames {
        kind: "tensor or module",
        names: scope.names().chain(modules.keys().copied()).collect(),
        failed: &failed,
        inner: &inner,
        help: "print(exported_program) shows the names",
    });
    im.errors.extend(wrong);
}

/// The graphs that nodes of this graph have as arguments.
fn inner_graphs(graph: &FxGraph) -> Vec<&FxGraph> {
    let given = graph.nodes.iter().flat_map(|n| &n.inputs);
    let graphs = given.filter_map(|i| if let Argument::Graph(g) = &i.arg { Some(&*g.graph) } else { None });
    graphs.collect()
}
