//! Rewrites operators on lists of tensors (`_foreach_add`), which optimizers call, into one operator per tensor.

use super::messages::{Argument, ExportedProgram, Graph, NamedArgument, Node, TensorArgument};
use super::ops;

/// Replaces each known operator on lists by operators on their tensors.
pub fn expand(program: &mut ExportedProgram) {
    in_graph(&mut program.graph_module.graph);
}

fn in_graph(graph: &mut Graph) {
    for node in &mut graph.nodes {
        for input in &mut node.inputs {
            if let Argument::Graph(inner) = &mut input.arg {
                in_graph(&mut inner.graph);
            }
        }
    }
    if graph.nodes.iter().any(|n| n.target.contains("._foreach_")) {
        let nodes = std::mem::take(&mut graph.nodes);
        graph.nodes = nodes.into_iter().flat_map(|n| each(&n).unwrap_or_else(|| vec![n])).collect();
    }
}

/// The nodes that replace a node; `None` if it takes no lists, or if the operator on one tensor is not known.
fn each(node: &Node) -> Option<Vec<Node>> {
    let (space, rest) = node.target.split_once("._foreach_")?;
    let (name, overload) = rest.split_once('.')?;
    let (name, in_place) = name.strip_suffix('_').map_or((name, ""), |n| (n, "_"));
    let (name, overload, arguments) = one(name, overload)?;
    let target = format!("{space}.{name}{in_place}.{overload}");
    ops::find(target.strip_prefix("torch.ops.").unwrap_or(&target))?;
    let lengths = node
        .inputs
        .iter()
        .filter_map(|i| if let Argument::Tensors(l) = &i.arg { Some(l.len()) } else { None });
    // An in-place operator has the tensors that it writes as results.
    let first = node.inputs.first().filter(|_| !in_place.is_empty()).map(|i| &i.arg);
    let made: Vec<&TensorArgument> = first.into_iter().chain(&node.outputs).flat_map(listed).collect();
    let of = |i: usize| -> Option<Node> {
        let input = |a: &NamedArgument| -> Option<NamedArgument> {
            let renamed =
                arguments.iter().find(|(from, _)| *from == a.name).map_or(a.name.as_str(), |(_, to)| *to);
            Some(NamedArgument { name: renamed.to_owned(), arg: element(&a.arg, i)? })
        };
        Some(Node {
            target: target.clone(),
            inputs: node.inputs.iter().map(input).collect::<Option<_>>()?,
            outputs: made.get(i).map(|t| Argument::Tensor((*t).clone())).into_iter().collect(),
            metadata: node.metadata.clone(),
            name: node.name.clone(),
        })
    };
    (0..lengths.max()?).map(of).collect()
}

fn listed(a: &Argument) -> &[TensorArgument] {
    if let Argument::Tensors(list) = a { list } else { &[] }
}

/// The argument for the tensor `i`: an element of a list, or the argument itself.
fn element(a: &Argument, i: usize) -> Option<Argument> {
    Some(match a {
        Argument::Tensors(list) => Argument::Tensor(list.get(i)?.clone()),
        Argument::Floats(list) => Argument::Float(*list.get(i)?),
        Argument::Ints(list) => Argument::Int(*list.get(i)?),
        Argument::Bools(list) => Argument::Bool(*list.get(i)?),
        other => other.clone(),
    })
}

/// Pairs of names of an argument: that of the operator on lists, and that of the operator on one tensor.
type Renamed = &'static [(&'static str, &'static str)];

/// The operator on one tensor for an operator on lists: its name, its overload, and its arguments with other names.
fn one<'a>(name: &'a str, overload: &'a str) -> Option<(&'a str, &'a str, Renamed)> {
    Some(match (name, overload) {
        ("add" | "sub" | "mul" | "div", "Scalar" | "ScalarList") => {
            (name, "Scalar", &[("scalar", "other"), ("scalars", "other")])
        }
        ("add" | "sub" | "mul" | "div", "List" | "Tensor") => (name, "Tensor", &[("tensor", "other")]),
        ("addcmul" | "addcdiv", "Scalar" | "ScalarList") => (name, "default", &[("scalars", "value")]),
        ("clamp_max" | "minimum", "Scalar" | "ScalarList") => {
            ("clamp_max", "default", &[("scalar", "max"), ("scalars", "max")])
        }
        ("clamp_max" | "minimum", "List") => ("clamp_max", "Tensor", &[("other", "max")]),
        ("clamp_min" | "maximum", "Scalar" | "ScalarList") => {
            ("clamp_min", "default", &[("scalar", "min"), ("scalars", "min")])
        }
        ("clamp_min" | "maximum", "List") => ("clamp_min", "Tensor", &[("other", "min")]),
        ("lerp", "Scalar") => (name, "Scalar", &[("tensors1", "end")]),
        ("lerp", "List") => (name, "Tensor", &[("tensors1", "end"), ("weights", "weight")]),
        ("norm", "Scalar") => ("linalg_vector_norm", "default", &[]),
        ("pow", "Scalar" | "ScalarList") => (name, "Tensor_Scalar", &[]),
        ("pow", "List") => (name, "Tensor_Tensor", &[]),
        (_, "default") => (name, overload, &[]),
        _ => return None,
    })
}
