//! Checks of the invariants on which every pass relies.
//!
//! After [`verify`] has passed, fusion and emission may assume that edges and operand lists agree, that every stored
//! type is the one that [`Op::infer`] gives, and that every symbol has a value once the inputs' shapes are known.

use crate::dtype::{Class, DType};
use crate::eval::{Env, Index};
use crate::graph::{Computed, Graph, Node, State, TensorType, Value};
use crate::op::{Contract, Op};
use crate::poly::{Atom, Dim, Poly};
use crate::scalar::{Scalar, ScalarNode};
use crate::storage;
use crate::tensor::Tensor;
use std::collections::BTreeSet;
use std::sync::Arc;
pub use wgfc_program::types::MAX_ELEMENTS;

/// The maximum extent whose positions are tried one by one.
const MAX_TRIED: usize = 1 << 22;

type Symbols = BTreeSet<Arc<str>>;

/// Checks a graph and its subgraphs; the error lists all violations, each with its place.
///
/// ```
/// use wgfc_ir::{text::parse, verify::verify};
/// let graph = parse("graph (x: %0) -> (y: %0) { %0 = input : f32[2] as \"x\" }").unwrap();
/// assert_eq!(verify(&graph), Ok(()));
/// ```
pub fn verify(graph: &Graph) -> Result<(), Vec<String>> {
    let mut v = Verifier { errors: vec![] };
    v.graph(graph, &Symbols::new(), "");
    if v.errors.is_empty() { Ok(()) } else { Err(v.errors) }
}

struct Verifier {
    errors: Vec<String>,
}

impl Verifier {
    fn graph(&mut self, g: &Graph, outer: &Symbols, place: &str) {
        let before = self.errors.len();
        for id in g.node_ids() {
            let n = g.node(id);
            for e in operands(g, n) {
                self.node(place, n, e);
            }
        }
        if let Err(id) = g.edges_agree()
            && g.contains(id)
        {
            self.node(place, g.node(id), "its edges and its operand list differ".into());
        }
        for (what, borders) in [("input", &g.inputs), ("output", &g.outputs)] {
            for b in borders {
                if !exists(g, b.value) {
                    self.errors
                        .push(format!("{place}{what} \"{}\" refers to a value that is not there", b.name));
                } else if what == "input" && !matches!(g.node(b.value.node).op, Op::Input) {
                    self.errors
                        .push(format!("{place}input \"{}\" refers to a node that is no input", b.name));
                }
            }
        }
        for s in &g.states {
            self.state(g, s, place);
        }
        for c in g.computed.iter().filter(|c| !exists(g, c.value)) {
            self.errors.push(format!("{place}symbol `{}` refers to a value that is not there", c.symbol));
        }
        if self.errors.len() > before {
            return;
        }
        if let Err(id) = g.topo() {
            self.node(place, g.node(id), "is on a cycle".into());
            return;
        }
        let mut known = known_symbols(g, outer);
        for c in &g.computed {
            self.computed(g, c, &known, place);
            known.insert(c.symbol.clone());
        }
        for (name, shape) in &g.optional {
            self.optional(g, name, shape, &known, place);
        }
        for c in &g.constraints {
            for d in [&c.a, &c.b] {
                for e in unknown(d, &known) {
                    self.errors.push(format!("{place}constraint of node \"{}\": {e}", c.origin));
                }
            }
        }
        for id in g.node_ids() {
            let n = g.node(id);
            let types: Vec<&TensorType> = n.inputs.iter().map(|v| g.ty(*v)).collect();
            let mut errors = vec![];
            let listed = || {
                g.inputs.iter().any(|b| b.value.node == id) || g.states.iter().any(|s| s.before.node == id)
            };
            if matches!(n.op, Op::Input) && !listed() {
                errors.push("is an input that the graph does not list".to_owned());
            }
            check_types(n, &types, &mut errors);
            for d in n.outputs.iter().flat_map(|t| &t.shape).chain(n.op.polys()) {
                errors.extend(unknown(d, &known));
            }
            if errors.is_empty() {
                check_op(&n.op, &types, &mut errors);
            }
            errors.dedup();
            for e in errors {
                self.node(place, n, e);
            }
            self.subgraphs(n, &types, &known, place);
        }
    }

    fn optional(&mut self, g: &Graph, name: &str, shape: &[Dim], known: &Symbols, place: &str) {
        let mut fail = |what: String| self.errors.push(format!("{place}optional input \"{name}\": {what}"));
        let Some(input) = g.inputs.iter().find(|b| *b.name == *name) else {
            return fail("is not listed".into());
        };
        let ty = g.ty(input.value);
        if ty.rank() != shape.len() || shape.is_empty() {
            fail(format!("{ty} is broadcast to {}", crate::op::show(shape)));
        }
        let others = g.inputs.iter().filter(|b| *b.name != *name).flat_map(|b| &g.ty(b.value).shape);
        let taken: Symbols = others.flat_map(Poly::symbols).collect();
        let own: Symbols = ty.shape.iter().flat_map(Poly::symbols).collect();
        let lone = ty.shape.iter().all(|d| matches!(d.as_atom(), Some(Atom::Sym(_))));
        if !lone || own.len() != ty.rank() || !own.is_disjoint(&taken) {
            fail(format!("the extents of {ty} are not symbols of its own"));
        }
        for d in shape {
            unknown(d, known).into_iter().for_each(&mut fail);
            if d.symbols().iter().any(|s| own.contains(s) || g.computed.iter().any(|c| c.symbol == *s)) {
                fail(format!("it is broadcast to `{d}`, which is not known when a run begins"));
            }
        }
    }

    fn state(&mut self, g: &Graph, s: &State, place: &str) {
        let mut fail = |what: String| self.errors.push(format!("{place}state \"{}\": {what}", s.name));
        if !exists(g, s.before) || !exists(g, s.after) {
            return fail("refers to a value that is not there".into());
        }
        if !matches!(g.node(s.before.node).op, Op::Input) {
            fail("begins as what is no input".into());
        }
        if g.inputs.iter().any(|b| b.value == s.before)
            || g.states.iter().filter(|o| o.before == s.before || o.name == s.name).count() > 1
        {
            fail("is also given otherwise".into());
        }
        let (before, after) = (g.ty(s.before), g.ty(s.after));
        if before != after {
            fail(format!("is {before} and becomes {after}"));
        }
        let room = s.growth.as_ref().map(|g| g.axis);
        let open = before.shape.iter().enumerate().find(|(d, e)| {
            e.as_const().is_none() && (Some(*d) != room || !matches!(e.as_atom(), Some(Atom::Sym(_))))
        });
        if open.is_some() {
            fail(format!("its type {before} has a size that is not constant"));
        }
        if let Some(t) = &s.initial {
            if s.growth.is_some() {
                fail("grows and does not begin empty".into());
            } else if t.dtype != before.dtype || before.static_shape().as_deref() != Some(&t.shape[..]) {
                fail(format!("is {before} and begins as {}{:?}", t.dtype, t.shape));
            }
        }
        if let Some(grow) = s.growth.as_ref().filter(|g| g.axis >= before.rank()) {
            fail(format!("grows along axis {} of {before}", grow.axis));
        }
    }

    fn computed(&mut self, g: &Graph, c: &Computed, known: &Symbols, place: &str) {
        let mut fail = |what: String| self.errors.push(format!("{place}symbol `{}`: {what}", c.symbol));
        let ty = g.ty(c.value);
        if !matches!(ty.dtype, DType::I32 | DType::I64) || !ty.numel().is(1) {
            fail(format!("its value is {ty}, not one integer"));
        }
        if known.contains(&c.symbol) {
            fail("is determined otherwise".into());
        }
        if g.states.iter().filter_map(|s| s.growth.as_ref()).any(|g| g.by.symbols().contains(&c.symbol)) {
            fail("a state grows by it".into());
        }
        unknown(&c.bound, known).into_iter().for_each(fail);
    }

    fn node(&mut self, place: &str, n: &Node, message: String) {
        self.errors.push(format!("{place}node \"{}\" ({}): {message}", n.label(), n.op.name()));
    }

    fn subgraphs(&mut self, n: &Node, types: &[&TensorType], known: &Symbols, place: &str) {
        let bool_scalar = TensorType::new(DType::Bool, vec![]);
        let trip = TensorType::new(DType::I64, vec![]);
        let mut check = |body: &Graph, name: &str, args: Vec<&TensorType>, results: usize| {
            if body.inputs.len() != args.len() {
                self.node(
                    place,
                    n,
                    format!("{name} takes {} values and is given {}", body.inputs.len(), args.len()),
                );
            } else if body.outputs.len() < results {
                self.node(place, n, format!("{name} gives {} values of {results}", body.outputs.len()));
            } else {
                for (b, a) in body.inputs.iter().zip(&args) {
                    let Some(want) = exists(body, b.value).then(|| body.ty(b.value)) else { continue };
                    let rank = a.rank();
                    if want.dtype != a.dtype || want.rank() != rank {
                        self.node(
                            place,
                            n,
                            format!("{name} takes {want} as \"{}\" and is given {a}", b.name),
                        );
                    }
                }
            }
            self.graph(body, known, &format!("{place}in {name} of node \"{}\": ", n.label()));
        };
        match &n.op {
            Op::If { then_branch, else_branch } => {
                let rest: Vec<&TensorType> = types.iter().skip(1).copied().collect();
                check(then_branch, "the then branch", rest.clone(), n.outputs.len());
                check(else_branch, "the else branch", rest, n.outputs.len());
                if types.first().is_none_or(|t| t.dtype != DType::Bool) {
                    self.node(place, n, "needs a bool as its condition".into());
                }
            }
            Op::While { body, carried } => {
                let args = [&trip, &bool_scalar].into_iter().chain(types.iter().skip(2).copied()).collect();
                check(body, "the body", args, carried + 1);
                if types.len() < 2 + carried || types[0].dtype != DType::I64 || types[1].dtype != DType::Bool
                {
                    self.node(
                        place,
                        n,
                        format!("needs an i64 trip count, a bool and {carried} carried values"),
                    );
                }
            }
            Op::Scan { body, carried, scanned, .. } => {
                let end = carried + scanned;
                let slices: Vec<TensorType> = types
                    .iter()
                    .enumerate()
                    .map(|(i, t)| {
                        let slice = (*carried..end).contains(&i);
                        TensorType::new(
                            t.dtype,
                            t.shape.iter().skip(usize::from(slice)).cloned().collect::<Vec<_>>(),
                        )
                    })
                    .collect();
                check(body, "the body", slices.iter().collect(), *carried);
                if types.len() < end || *scanned == 0 {
                    self.node(place, n, format!("needs {carried} carried and {scanned} scanned values"));
                }
            }
            _ => {}
        }
    }
}

fn exists(g: &Graph, v: Value) -> bool {
    g.contains(v.node) && (v.port as usize) < g.node(v.node).outputs.len()
}

/// Checks that a node's operands exist and its results have names.
fn operands(g: &Graph, n: &Node) -> Vec<String> {
    let mut errors = vec![];
    for (i, v) in n.inputs.iter().enumerate() {
        if !exists(g, *v) {
            errors.push(format!("operand {i} is a value that is not there"));
        }
    }
    if n.names.len() != n.outputs.len() {
        errors.push(format!("{} names for {} outputs", n.names.len(), n.outputs.len()));
    }
    errors
}

/// The symbols that have a value in a run.
fn known_symbols(g: &Graph, outer: &Symbols) -> Symbols {
    let mut known = outer.clone();
    known.extend(g.states.iter().filter_map(|s| Some(s.growth.as_ref()?.length.clone())));
    known.extend(g.states.iter().flat_map(|s| &g.ty(s.before).shape).flat_map(Poly::symbols));
    for id in g.node_ids() {
        let n = g.node(id);
        if matches!(n.op, Op::If { .. } | Op::While { .. } | Op::Scan { .. }) {
            let symbols = n.outputs.iter().flat_map(|t| &t.shape).flat_map(Poly::symbols);
            known.extend(symbols.filter(|s| g.computed.iter().all(|c| c.symbol != *s)));
        }
    }
    let mut equations: Vec<Dim> = g.inputs.iter().flat_map(|b| g.ty(b.value).shape.clone()).collect();
    equations.extend(g.constraints.iter().filter(|c| !g.is_late(c)).map(|c| &c.a - &c.b));
    loop {
        let before = known.len();
        for d in &equations {
            let open: Vec<Arc<str>> = d.symbols().into_iter().filter(|s| !known.contains(s)).collect();
            let [s] = open.as_slice() else { continue };
            let terms = d.terms();
            let mut with =
                terms.iter().filter(|(m, _)| m.iter().any(|a| Poly::atom(a.clone()).symbols().contains(s)));
            if let (Some((m, _)), None) = (with.next(), with.next())
                && matches!(m.as_slice(), [Atom::Sym(_)])
            {
                known.insert(s.clone());
            }
        }
        if known.len() == before {
            return known;
        }
    }
}

fn unknown(d: &Dim, known: &Symbols) -> Vec<String> {
    let s = d.symbols();
    s.iter()
        .filter(|s| !known.contains(*s))
        .map(|s| format!("`{d}` uses `{s}`, which no input determines"))
        .collect()
}

/// Checks that the stored types are the inferred ones, with possible sizes.
fn check_types(n: &Node, types: &[&TensorType], errors: &mut Vec<String>) {
    if !matches!(n.op, Op::Input) {
        match n.op.infer(types) {
            Err(e) => errors.push(e),
            Ok(t) if t != n.outputs => {
                let show = |t: &[TensorType]| t.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
                errors.push(format!("gives {} but is said to give {}", show(&t), show(&n.outputs)));
            }
            Ok(_) => {}
        }
    } else if n.outputs.len() != 1 {
        errors.push(format!("{} outputs of an input", n.outputs.len()));
    }
    for t in &n.outputs {
        if let Some(d) = t.shape.iter().find(|d| d.as_const().is_some_and(|c| c < 0)) {
            errors.push(format!("{t} has the extent {d}"));
        }
        if t.numel().as_const().is_some_and(|c| c > MAX_ELEMENTS) {
            errors.push(format!("{t} has more than 2^40 elements"));
        }
    }
}

/// Checks rules that go beyond the types.
fn check_op(op: &Op, types: &[&TensorType], errors: &mut Vec<String>) {
    match op {
        Op::Const(t) => check_const(t, errors),
        Op::Map { body, .. } => {
            for n in &body.nodes {
                if let ScalarNode::Const(s) = n {
                    check_scalar(*s, errors);
                }
            }
        }
        Op::View { shape, index, fill } => match fill {
            Some(s) => check_scalar(*s, errors),
            None => check_inside(shape, index, types[0], errors),
        },
        Op::Reduce { axes, .. } | Op::Norm { axes, .. } if !axes.windows(2).all(|w| w[0] < w[1]) => {
            errors.push(format!("axes {axes:?} are not sorted"));
        }
        Op::Contract(c) => check_labels(c, errors),
        _ => {}
    }
}

fn check_const(t: &Tensor, errors: &mut Vec<String>) {
    if t.is_present() && t.byte_len() != Some(t.dtype.bytes_for(t.numel())) {
        errors.push(format!("{t:?} has {:?} bytes", t.byte_len()));
    }
}

fn check_scalar(s: Scalar, errors: &mut Vec<String>) {
    if s.dtype.class() != Class::Float && storage::from_raw(s.dtype, storage::to_raw(s.dtype, s)) != s {
        errors.push(format!("the constant {s} is not a value of its type"));
    }
}

fn check_labels(c: &Contract, errors: &mut Vec<String>) {
    for (name, ls) in [("a", &c.a), ("b", &c.b), ("the result", &c.out)] {
        if ls.iter().collect::<BTreeSet<_>>().len() != ls.len() {
            errors.push(format!("a label occurs twice in {name}: {ls:?}"));
        }
    }
    for l in c.a.iter().chain(&c.b).collect::<BTreeSet<_>>() {
        if [&c.a, &c.b, &c.out].iter().filter(|ls| ls.contains(l)).count() < 2 {
            errors.push(format!("label {l} occurs in one operand only"));
        }
    }
}

/// Checks that a view without fill stays in range, if every extent is a constant.
fn check_inside(shape: &[Dim], index: &[Poly], x: &TensorType, errors: &mut Vec<String>) {
    let domain = TensorType::new(x.dtype, shape);
    let (Some(out), Some(from)) = (domain.static_shape(), x.static_shape()) else { return };
    if out.contains(&0) || out.iter().any(|d| *d > MAX_TRIED) {
        return;
    }
    for ((p, d), (axis, extent)) in index.iter().zip(&x.shape).zip(from.iter().enumerate()) {
        if p.in_range(d, shape) || !p.symbols().is_empty() {
            continue;
        }
        let Ok(compiled) = Index::new(p, &out, &Env::default()) else { continue };
        if let Some((lo, hi)) = compiled.range()
            && (lo < 0 || hi >= *extent as i64)
        {
            errors.push(format!(
                "reads positions {lo} to {hi} of axis {axis}, which has {extent} (`{p}`), and has no fill"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::scalar::{ScalarFn, UnaryOp};

    fn dims(s: &str) -> Vec<Dim> {
        s.split(", ").map(|d| Poly::parse(d).unwrap()).collect()
    }

    fn errors(build: impl FnOnce(&mut Graph)) -> String {
        let mut g = Graph::default();
        build(&mut g);
        verify(&g).map_or_else(|e| e.join("\n"), |()| String::new())
    }

    fn neg(g: &mut Graph, shape: &str) -> Value {
        let x = g.add_input("x", TensorType::new(DType::F32, dims(shape)));
        let y = Builder::new(g, "n").unary(UnaryOp::Neg, x).unwrap();
        g.outputs.push(crate::graph::Border { name: "y".into(), value: y });
        y
    }

    #[test]
    fn a_good_graph_passes() {
        assert_eq!(
            errors(|g| {
                neg(g, "past + seq, 2*seq");
            }),
            ""
        );
    }

    #[test]
    fn each_promise_is_kept() {
        assert_eq!(
            errors(|g| {
                let y = neg(g, "3");
                g.node_mut(y.node).outputs[0].dtype = DType::F16;
            }),
            "node \"n\" (map): gives f32[3] but is said to give f16[3]"
        );
        assert_eq!(
            errors(|g| {
                let y = neg(g, "3");
                g.node_mut(y.node).inputs.push(y);
            }),
            "node \"n\" (map): its edges and its operand list differ"
        );
        assert_eq!(
            errors(|g| {
                let y = neg(g, "3");
                g.set_input(y.node, 0, y);
            }),
            "node \"n\" (map): is on a cycle"
        );
        let e = errors(|g| {
            let y = neg(g, "past + seq");
            let shape = dims("past");
            Builder::new(g, "v").view(y, shape, dims("%0")).unwrap();
        });
        assert!(e.contains("node \"v\" (view): `past` uses `past`, which no input determines"), "{e}");
        let e = errors(|g| {
            let y = neg(g, "7");
            Builder::new(g, "v").view(y, dims("4"), dims("2*%0 + 1")).unwrap();
        });
        assert!(e.contains("reads positions 1 to 7 of axis 0, which has 7 (`2*%0 + 1`)"), "{e}");
        let e = errors(|g| {
            g.add_input("x", TensorType::new(DType::F32, dims("2000000, 2000000")));
        });
        assert!(e.contains("more than 2^40 elements"), "{e}");
        let e = errors(|g| {
            let y = neg(g, "3");
            g.outputs[0].value = Value { node: y.node, port: 4 };
        });
        assert_eq!(e, "output \"y\" refers to a value that is not there");
        let e = errors(|g| {
            let mut body = ScalarFn::default();
            body.push(ScalarNode::Const(Scalar { dtype: DType::U8, bits: 300 }));
            g.push(Op::Map { body, shape: dims("3") }, &[], &["c".into()]).unwrap();
        });
        assert_eq!(e, "node \"c\" (map): the constant 300:u8 is not a value of its type");
    }

    #[test]
    fn computed_symbols_are_integers_that_come_before() {
        let graph = |lines: &str, n: &str| {
            let text = format!(
                "graph (x: %0) -> (y: %2) {{\n  {lines}\n  %0 = input : f32[m]\n  {n}\n  \
                %2 = map [n] {{ index(n + %0) }} () : i32[n] @ \"y\"\n}}"
            );
            verify(&crate::text::parse(&text).unwrap()).map_or_else(|e| e.join("\n"), |()| String::new())
        };
        let count = "%1 = map [] { index(m) } () : i32[]";
        assert_eq!(graph("compute n = %1 up to m", count), "");
        let unknown = "node \"y\" (map): `n` uses `n`, which no input determines";
        assert_eq!(graph("", count).lines().next(), Some(unknown));
        assert_eq!(
            graph("compute n = %1 up to 2*k", count),
            "symbol `n`: `2*k` uses `k`, which no input determines"
        );
        assert_eq!(
            graph("compute n = %0 up to m", count),
            "symbol `n`: its value is f32[m], not one integer"
        );
        let itself = "%1 = map [] { index(n) } () : i32[]";
        assert_eq!(graph("compute n = %1 up to m", itself), "node \"map\" (map): is on a cycle");
        let twice = graph("compute n = %1 up to m\n  compute n = %1 up to m", count);
        assert_eq!(twice, "symbol `n`: is determined otherwise");
    }

    #[test]
    fn optional_inputs_have_extents_of_their_own() {
        let graph = |own: &str, to: &str| {
            let text = format!(
                "graph (x: %0, d: %1) -> (y: %1) {{\n  optional d to {to}\n  %0 = input : f32[m, 3]\n  \
                %1 = input : f32{own}\n}}"
            );
            verify(&crate::text::parse(&text).unwrap()).map_or_else(|e| e.join("\n"), |()| String::new())
        };
        assert_eq!(graph("[a, b]", "[m, 3]"), "");
        let error = "optional input \"d\": ";
        assert_eq!(graph("[a]", "[m, 3]"), format!("{error}f32[a] is broadcast to [m, 3]"));
        for own in ["[a, a]", "[a, m]", "[a, 3]"] {
            let e = format!("{error}the extents of f32{own} are not symbols of its own");
            assert_eq!(graph(own, "[m, 3]").lines().next(), Some(e.as_str()));
        }
        assert_eq!(graph("[a]", "[k]"), format!("{error}`k` uses `k`, which no input determines"));
        let e = "it is broadcast to `a`, which is not known when a run begins";
        assert_eq!(graph("[a]", "[a]"), format!("{error}{e}"));
    }
}
