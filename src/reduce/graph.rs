//! Operations on ONNX graphs: the values that a graph reads, removal of unneeded nodes, inlining of bodies.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use wgfc_compiler::import::onnx::*;
use wgfc_ir::Tensor;

/// The graphs in a node's attributes.
pub fn bodies(n: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    n.attribute.iter().filter_map(|a| a.g.as_ref())
}

/// The number of nodes in a graph, including those in its bodies.
pub fn count(nodes: &[NodeProto]) -> usize {
    nodes.iter().map(|n| 1 + bodies(n).map(|g| count(&g.node)).sum::<usize>()).sum()
}

/// The values that a node reads, including those that its bodies capture.
pub fn reads(n: &NodeProto) -> BTreeSet<&str> {
    let mut all: BTreeSet<&str> = n.input.iter().filter(|i| !i.is_empty()).map(String::as_str).collect();
    bodies(n).for_each(|g| all.extend(captures(g)));
    all
}

/// The values that a body captures from the graphs around it.
fn captures(g: &GraphProto) -> BTreeSet<&str> {
    let mut made: BTreeSet<&str> = g.input.iter().map(|i| i.name.as_str()).collect();
    made.extend(g.initializer.iter().map(|t| t.name.as_str()));
    made.extend(g.node.iter().flat_map(|n| &n.output).map(String::as_str));
    let mut free: BTreeSet<&str> = g.node.iter().flat_map(reads).collect();
    free.extend(g.output.iter().map(|o| o.name.as_str()));
    free.retain(|n| !n.is_empty() && !made.contains(n));
    free
}

/// Sorts nodes topologically. Among nodes that are ready, the first one in the original order comes first. Nodes on a cycle
/// come last.
pub fn sort(nodes: &mut Vec<NodeProto>) {
    let maker: HashMap<&str, usize> =
        nodes.iter().enumerate().flat_map(|(i, n)| n.output.iter().map(move |o| (o.as_str(), i))).collect();
    let mut waits: Vec<usize> = vec![0; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![vec![]; nodes.len()];
    for (i, n) in nodes.iter().enumerate() {
        let makers: BTreeSet<usize> =
            reads(n).iter().filter_map(|r| maker.get(r)).copied().filter(|m| *m != i).collect();
        waits[i] = makers.len();
        makers.into_iter().for_each(|m| readers[m].push(i));
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|i| waits[*i] == 0).collect();
    let mut order = vec![];
    while let Some(i) = ready.pop_first() {
        order.push(i);
        for r in &readers[i] {
            waits[*r] -= 1;
            if waits[*r] == 0 {
                ready.insert(*r);
            }
        }
    }
    let placed: HashSet<usize> = order.iter().copied().collect();
    order.extend((0..nodes.len()).filter(|i| !placed.contains(i)));
    let mut all: Vec<Option<NodeProto>> = nodes.drain(..).map(Some).collect();
    nodes.extend(order.into_iter().filter_map(|i| all[i].take()));
}

/// Removes nodes, inputs and initialisers that no output needs.
pub fn prune(g: &mut GraphProto) {
    let mut needed: HashSet<String> = g.output.iter().map(|o| o.name.clone()).collect();
    let mut keep = vec![false; g.node.len()];
    for (i, n) in g.node.iter().enumerate().rev() {
        if n.output.iter().any(|o| needed.contains(o)) {
            keep[i] = true;
            needed.extend(reads(n).into_iter().map(str::to_owned));
        }
    }
    let mut flags = keep.into_iter();
    g.node.retain(|_| flags.next().unwrap_or(true));
    g.input.retain(|i| needed.contains(&i.name));
    g.initializer.retain(|t| needed.contains(&t.name));
    g.sparse_initializer.retain(|t| t.values.as_ref().is_some_and(|v| needed.contains(&v.name)));
    g.value_info.clear();
}

/// Renames a value where nodes read it, also inside bodies.
pub fn rename_reads(nodes: &mut [NodeProto], from: &str, to: &str) {
    for n in nodes {
        n.input.iter_mut().filter(|i| *i == from).for_each(|i| to.clone_into(i));
        for g in n.attribute.iter_mut().filter_map(|a| a.g.as_mut()) {
            let hidden = g.input.iter().any(|i| i.name == from);
            if !hidden {
                rename_reads(&mut g.node, from, to);
                g.output.iter_mut().filter(|o| o.name == from).for_each(|o| to.clone_into(&mut o.name));
            }
        }
    }
}

/// A mapping of the names inside a body to names that are unique in the model.
struct Renaming(HashMap<String, String>);

impl Renaming {
    fn of(&self, name: &str) -> String {
        self.0.get(name).cloned().unwrap_or_else(|| name.to_owned())
    }

    fn nodes(&self, nodes: &mut [NodeProto]) {
        for n in nodes {
            for name in n.input.iter_mut().chain(&mut n.output) {
                *name = self.of(name);
            }
            for g in n.attribute.iter_mut().filter_map(|a| a.g.as_mut()) {
                self.nodes(&mut g.node);
                g.initializer.iter_mut().for_each(|t| t.name = self.of(&t.name));
                g.input.iter_mut().chain(&mut g.output).for_each(|v| v.name = self.of(&v.name));
            }
        }
    }
}

/// The names that are used in a model's graph.
fn taken(g: &GraphProto) -> HashSet<String> {
    let mut all: HashSet<String> = g.node.iter().flat_map(|n| n.output.iter().cloned()).collect();
    all.extend(g.input.iter().map(|i| i.name.clone()));
    all.extend(g.initializer.iter().map(|t| t.name.clone()));
    all
}

fn unique(taken: &mut HashSet<String>, name: &str) -> String {
    let mut new = name.to_owned();
    let mut n = 1;
    while !taken.insert(new.clone()) {
        n += 1;
        new = format!("{name}.{n}");
    }
    new
}

/// A copy of a body's nodes and constants, with names that are unused in the graph. `arguments` replace its parameters, and
/// its results are named `results`; an empty name stands for a result that is not needed.
fn spliced(
    g: &GraphProto,
    body: &GraphProto,
    arguments: &[String],
    results: &[String],
) -> (Vec<NodeProto>, Vec<TensorProto>) {
    let mut taken = taken(g);
    let mut names = HashMap::new();
    for (formal, actual) in body.input.iter().zip(arguments) {
        names.insert(formal.name.clone(), actual.clone());
    }
    let inner: Vec<&String> = body.node.iter().flat_map(|n| &n.output).filter(|o| !o.is_empty()).collect();
    let mut copies = vec![];
    for (o, result) in body.output.iter().zip(results).filter(|(_, r)| !r.is_empty()) {
        if inner.contains(&&o.name) && !names.contains_key(&o.name) {
            names.insert(o.name.clone(), result.clone());
        } else {
            copies.push((o.name.clone(), result.clone()));
        }
    }
    let constants = body.initializer.iter().map(|t| &t.name);
    for name in inner.into_iter().chain(constants) {
        if !names.contains_key(name) {
            names.insert(name.clone(), unique(&mut taken, name));
        }
    }
    let names = Renaming(names);
    let mut nodes = body.node.clone();
    names.nodes(&mut nodes);
    nodes.extend(copies.into_iter().map(|(from, to)| NodeProto {
        op_type: "Identity".into(),
        input: vec![names.of(&from)],
        output: vec![to],
        ..NodeProto::default()
    }));
    let mut constants = body.initializer.clone();
    constants.iter_mut().for_each(|t| t.name = names.of(&t.name));
    (nodes, constants)
}

/// Models in which node `i` is replaced by its body: a branch of an `If`, one step of a `Loop`, the body of a function.
pub fn inlined(m: &ModelProto, i: usize) -> Vec<ModelProto> {
    let Some(g) = &m.graph else { return vec![] };
    let Some(n) = g.node.get(i) else { return vec![] };
    let with = |(nodes, constants): (Vec<NodeProto>, Vec<TensorProto>)| {
        let mut m = m.clone();
        if let Some(g) = &mut m.graph {
            g.node.splice(i..=i, nodes);
            g.initializer.extend(constants);
        }
        m
    };
    let graph = |name: &str| n.attribute.iter().find(|a| a.name == name).and_then(|a| a.g.as_ref());
    if let Some(f) =
        m.functions.iter().find(|f| f.name == n.op_type && f.domain == n.domain && f.overload == n.overload)
    {
        return function(m, g, f, n).map(with).into_iter().collect();
    }
    match (n.op_type.as_str(), n.domain.as_str()) {
        ("If", "" | "ai.onnx") => ["then_branch", "else_branch"]
            .into_iter()
            .filter_map(|b| Some(with(spliced(g, graph(b)?, &[], &n.output))))
            .collect(),
        ("Loop", "" | "ai.onnx") => {
            graph("body").map(|body| with(one_step(m, g, body, n))).into_iter().collect()
        }
        _ => vec![],
    }
}

/// The nodes and constants of a loop's first step.
fn one_step(
    m: &ModelProto,
    g: &GraphProto,
    body: &GraphProto,
    n: &NodeProto,
) -> (Vec<NodeProto>, Vec<TensorProto>) {
    let mut taken = taken(g);
    let mut names = |name: &str| unique(&mut taken, name);
    let (step, goes_on) = (names("step"), names("goes_on"));
    let carried = n.input.len().saturating_sub(2);
    let arguments: Vec<String> =
        [step.clone(), goes_on.clone()].into_iter().chain(n.input.iter().skip(2).cloned()).collect();
    let mut results = vec![String::new()];
    results.extend(n.output.iter().take(carried).cloned());
    results.resize(1 + carried, String::new());
    let stacked: Vec<(String, String)> = n
        .output
        .iter()
        .skip(carried)
        .map(|o| (if o.is_empty() { String::new() } else { names(&format!("{o}.step")) }, o.clone()))
        .collect();
    results.extend(stacked.iter().map(|(inner, _)| inner.clone()));
    let (mut nodes, mut constants) = spliced(g, body, &arguments, &results);
    constants.push(TensorProto::of(&step, &Tensor::from_i64(vec![], &[0])));
    constants.push(TensorProto::of(
        &goes_on,
        &Tensor::generate(wgfc_ir::DType::Bool, vec![], |_| {
            wgfc_ir::Scalar::from_i64(wgfc_ir::DType::Bool, 1)
        }),
    ));
    let opset = m.opset_import.iter().find(|o| o.domain.is_empty() || o.domain == "ai.onnx");
    let axes = names("axes");
    let any = stacked.iter().any(|(_, o)| !o.is_empty());
    for (inner, outer) in stacked.into_iter().filter(|(_, o)| !o.is_empty()) {
        let mut n = NodeProto { op_type: "Unsqueeze".into(), output: vec![outer], ..NodeProto::default() };
        match opset.is_some_and(|o| o.version >= 13) {
            true => n.input = vec![inner, axes.clone()],
            false => {
                n.input = vec![inner];
                n.attribute = vec![AttributeProto {
                    name: "axes".into(),
                    r#type: attribute_type::INTS,
                    ints: vec![0],
                    ..AttributeProto::default()
                }];
            }
        }
        nodes.push(n);
    }
    if any {
        constants.push(TensorProto::of(&axes, &Tensor::from_i64(vec![1], &[0])));
    }
    (nodes, constants)
}

/// The nodes and constants of a function call; `None` if the function's operator sets differ from the model's.
fn function(
    m: &ModelProto,
    g: &GraphProto,
    f: &FunctionProto,
    n: &NodeProto,
) -> Option<(Vec<NodeProto>, Vec<TensorProto>)> {
    let set = |domain: &str| m.opset_import.iter().find(|o| o.domain == domain).map(|o| o.version);
    if f.opset_import.iter().any(|o| set(&o.domain) != Some(o.version)) {
        return None;
    }
    let mut given: BTreeMap<&str, &AttributeProto> =
        f.attribute_proto.iter().map(|a| (a.name.as_str(), a)).collect();
    given.extend(n.attribute.iter().map(|a| (a.name.as_str(), a)));
    let body = GraphProto {
        node: f.node.clone(),
        input: f.input.iter().map(|name| ValueInfoProto { name: name.clone(), r#type: None }).collect(),
        output: f.output.iter().map(|name| ValueInfoProto { name: name.clone(), r#type: None }).collect(),
        ..GraphProto::default()
    };
    let mut arguments = n.input.clone();
    arguments.resize(f.input.len(), String::new());
    let mut results = n.output.clone();
    results.resize(f.output.len(), String::new());
    let (mut nodes, constants) = spliced(g, &body, &arguments, &results);
    bind(&mut nodes, &given);
    Some((nodes, constants))
}

/// Replaces references to a function's attributes by the values of a call.
fn bind(nodes: &mut [NodeProto], given: &BTreeMap<&str, &AttributeProto>) {
    for n in nodes {
        n.attribute.retain_mut(|a| {
            if let Some(g) = &mut a.g {
                bind(&mut g.node, given);
            }
            if a.ref_attr_name.is_empty() {
                return true;
            }
            let Some(v) = given.get(a.ref_attr_name.as_str()) else { return false };
            let name = std::mem::take(&mut a.name);
            *a = AttributeProto { name, ..(*v).clone() };
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(op: &str, input: &[&str], output: &[&str]) -> NodeProto {
        let own = |v: &[&str]| v.iter().map(|s| (*s).to_owned()).collect();
        NodeProto { op_type: op.into(), input: own(input), output: own(output), ..NodeProto::default() }
    }

    fn value(name: &str) -> ValueInfoProto {
        ValueInfoProto { name: name.into(), r#type: None }
    }

    #[test]
    fn nodes_come_behind_what_they_read_and_unneeded_ones_go() {
        let mut g = GraphProto {
            node: vec![
                node("Add", &["b", "x"], &["c"]),
                node("Relu", &["x"], &["b"]),
                node("Neg", &["x"], &["d"]),
            ],
            input: vec![value("x"), value("u")],
            output: vec![value("c")],
            ..GraphProto::default()
        };
        sort(&mut g.node);
        prune(&mut g);
        let ops: Vec<&str> = g.node.iter().map(|n| n.op_type.as_str()).collect();
        assert_eq!((ops, g.input.len()), (vec!["Relu", "Add"], 1));
    }

    #[test]
    fn a_branch_replaces_its_if_under_names_of_its_own() {
        let branch = GraphProto {
            node: vec![node("Relu", &["x"], &["t"]), node("Neg", &["t"], &["r"])],
            output: vec![value("r")],
            ..GraphProto::default()
        };
        let mut n = node("If", &["c"], &["y"]);
        n.attribute = vec![AttributeProto {
            name: "then_branch".into(),
            g: Some(branch),
            r#type: attribute_type::GRAPH,
            ..AttributeProto::default()
        }];
        let g = GraphProto {
            node: vec![node("Exp", &["x"], &["t"]), n],
            input: vec![value("x"), value("c")],
            output: vec![value("y"), value("t")],
            ..GraphProto::default()
        };
        let m = ModelProto { graph: Some(g), ..ModelProto::default() };
        let all = inlined(&m, 1);
        let g = all[0].graph.as_ref().unwrap();
        assert_eq!(g.node.len(), 3);
        assert_eq!(
            (&g.node[1].output[0], &g.node[2].input[0], &g.node[2].output[0]),
            (&"t.2".into(), &"t.2".into(), &"y".into())
        );
        assert_eq!(count(&m.graph.unwrap().node), 4);
    }
}
