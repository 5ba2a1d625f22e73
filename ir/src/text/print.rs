//! Printing of graphs.

use super::INLINE_ELEMENTS;
use super::body::print_body;
use crate::dtype::{Class, DType};
use crate::graph::{Graph, Node, NodeId, Value};
use crate::op::{GatherAxis, NormKind, Op, ReduceOp, show};
use crate::poly::Poly;
use crate::scalar::Scalar;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::fmt::Write;

/// The graph as text.
pub fn print(graph: &Graph) -> String {
    let mut out = String::new();
    print_graph(graph, 0, &mut out);
    out.push('\n');
    out
}

/// Writing to a `String` does not fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => { let _ = write!($out, $($arg)*); };
}

fn print_graph(g: &Graph, depth: usize, out: &mut String) {
    // The nodes of a graph with a cycle, which has no topological order, are printed in the order of their ids.
    let order: Vec<NodeId> = g.topo().unwrap_or_else(|_| g.node_ids().collect());
    let mut number: HashMap<Value, usize> = HashMap::new();
    for id in &order {
        for port in 0..g.node(*id).outputs.len() {
            number.insert(Value { node: *id, port: port as u32 }, number.len());
        }
    }
    let name = |v: &Value| number.get(v).map_or("%?".to_owned(), |n| format!("%{n}"));
    let border = |bs: &[crate::graph::Border]| {
        bs.iter().map(|b| format!("{}: {}", word(&b.name), name(&b.value))).collect::<Vec<_>>().join(", ")
    };
    put!(out, "graph ({}) -> ({}) {{\n", border(&g.inputs), border(&g.outputs));
    let pad = "  ".repeat(depth + 1);
    for c in &g.constraints {
        put!(out, "{pad}require {} == {} @ {}\n", c.a, c.b, quoted(&c.origin));
    }
    for s in &g.states {
        put!(out, "{pad}state {}: {} -> {}", word(&s.name), name(&s.before), name(&s.after));
        if let Some(grow) = &s.growth {
            put!(out, " axis {} from {} by {}", grow.axis, word(&grow.length), grow.by);
        }
        if let Some(t) = &s.initial {
            put!(out, " initial {}", constant(t));
        }
        out.push('\n');
    }
    for (name, shape) in &g.optional {
        put!(out, "{pad}optional {} to {}\n", word(name), show(shape));
    }
    for c in &g.computed {
        put!(out, "{pad}compute {} = {} up to {}\n", c.symbol, name(&c.value), c.bound);
    }
    for id in &order {
        let n = g.node(*id);
        let results: Vec<String> =
            (0..n.outputs.len()).map(|p| name(&Value { node: *id, port: p as u32 })).collect();
        put!(out, "{pad}{} = {}", results.join(", "), n.op.name());
        print_op(&n.op, depth + 1, out);
        if !matches!(n.op, Op::Input | Op::Const(_)) {
            put!(out, " ({})", n.inputs.iter().map(name).collect::<Vec<_>>().join(", "));
        }
        print_tail(n, out);
    }
    put!(out, "{}}}", "  ".repeat(depth));
}

fn print_tail(n: &Node, out: &mut String) {
    let types: Vec<String> = n.outputs.iter().map(|t| t.to_string()).collect();
    put!(out, " : {}", types.join(", "));
    if n.names.iter().any(Option::is_some) {
        let names: Vec<String> =
            n.names.iter().map(|o| o.as_ref().map_or("_".to_owned(), |o| quoted(o))).collect();
        put!(out, " as {}", names.join(", "));
    }
    if !n.origin.is_empty() {
        put!(out, " @ {}", n.origin.iter().map(|o| quoted(o)).collect::<Vec<_>>().join(", "));
    }
    out.push('\n');
}

fn print_op(op: &Op, depth: usize, out: &mut String) {
    let reads = |ps: &[Poly]| show(ps);
    match op {
        Op::Input => {}
        Op::Const(t) => print_const(t, out),
        Op::Map { body, shape } => {
            put!(out, " {} {{ {} }}", show(shape), print_body(body));
        }
        Op::View { shape, index, fill } => {
            put!(out, " {} reads {}", show(shape), reads(index));
            if let Some(s) = fill {
                put!(out, " else {}", scalar(*s));
            }
        }
        Op::Reduce { op, axes } => {
            put!(out, " {} axes {axes:?}", op.name());
        }
        Op::ArgReduce { op, axis, last } => {
            put!(out, " {} axis {axis}{}", op.name(), if *last { " last" } else { "" });
        }
        Op::PrefixScan { op, axis, exclusive, reverse } => {
            put!(out, " {} axis {axis}", op.name());
            out.push_str(if *exclusive { " exclusive" } else { "" });
            out.push_str(if *reverse { " reverse" } else { "" });
        }
        Op::Contract(c) => {
            put!(out, " [{}, {} -> {}]", labels(&c.a), labels(&c.b), labels(&c.out));
        }
        Op::Gather { shape, index } => {
            put!(out, " {} reads {}", show(shape), gather(index));
        }
        Op::Scatter { reduce, index } => {
            put!(out, " {} writes {}", reduce.map_or("set", ReduceOp::name), gather(index));
        }
        Op::Place { shape, index } => {
            put!(out, " {} writes {}", show(shape), gather(index));
        }
        Op::Concat { axis } => {
            put!(out, " axis {axis}");
        }
        Op::TopK { axis, k, largest } => {
            put!(out, " axis {axis} k [{k}] {}", if *largest { "largest" } else { "smallest" });
        }
        Op::Sort { axis, sorted, part, keep } => {
            put!(out, " axis {axis} sorted {sorted} part {part} keep {keep}");
        }
        Op::Softmax { axis, log } => {
            put!(out, " axis {axis}{}", if *log { " log" } else { "" });
        }
        Op::Norm { kind, axes, epsilon } => {
            let kind = match kind {
                NormKind::Layer => "layer",
                NormKind::Rms => "rms",
            };
            put!(out, " {kind} axes {axes:?} epsilon {:?}", f32::from_bits(*epsilon));
        }
        Op::Attention { scale, empty_is_zero } => {
            put!(out, " scale {:?}", f32::from_bits(*scale));
            if *empty_is_zero {
                out.push_str(" empty zero");
            }
        }
        Op::If { then_branch, else_branch } => {
            out.push_str(" then ");
            print_graph(then_branch, depth, out);
            out.push_str(" else ");
            print_graph(else_branch, depth, out);
        }
        Op::While { body, carried } => {
            put!(out, " carried {carried} ");
            print_graph(body, depth, out);
        }
        Op::Scan { body, carried, scanned, reverse_inputs, reverse_outputs } => {
            put!(out, " carried {carried} scanned {scanned} reverse {reverse_inputs:?} {reverse_outputs:?} ");
            print_graph(body, depth, out);
        }
    }
}

fn print_const(t: &Tensor, out: &mut String) {
    put!(out, " {}", constant(t));
}

/// The values of a constant: in brackets if there are few, else `hash …`; `absent` if they are unknown.
pub fn constant(t: &Tensor) -> String {
    match t.byte_len() {
        None => "absent".into(),
        Some(_) if t.numel() <= INLINE_ELEMENTS => {
            let values = t.scalars().unwrap_or_default();
            format!("[{}]", values.into_iter().map(number).collect::<Vec<_>>().join(", "))
        }
        Some(_) => {
            // FNV-1a: enough to see whether two dumps hold the same weights.
            let hash =
                t.bytes().unwrap_or_default().iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
                    (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
                });
            format!("hash {hash:016x}")
        }
    }
}

/// A number without its type.
fn number(s: Scalar) -> String {
    match s.dtype.class() {
        Class::Float if s.dtype == DType::F64 => format!("{:?}", s.as_f64()).to_lowercase(),
        Class::Float => format!("{:?}", s.as_f64() as f32).to_lowercase(),
        Class::Int => (s.bits as i64).to_string(),
        Class::Uint => s.bits.to_string(),
        Class::Bool => (s.bits != 0).to_string(),
    }
}

/// A number with its type, as [`Parser::scalar`](super::Parser::scalar) reads it.
pub fn scalar(s: Scalar) -> String {
    if s.dtype == DType::Bool { number(s) } else { format!("{}:{}", number(s), s.dtype) }
}

fn labels(ls: &[u8]) -> String {
    ls.iter()
        .map(|l| match l {
            0..26 => ((b'a' + l) as char).to_string(),
            26..52 => ((b'A' + l - 26) as char).to_string(),
            l => format!("<{l}>"),
        })
        .collect()
}

fn gather(index: &[GatherAxis]) -> String {
    let axes: Vec<String> = index
        .iter()
        .map(|a| match a {
            GatherAxis::Affine(p) => p.to_string(),
            GatherAxis::Data { input, at } => format!("${input}{}", show(at)),
        })
        .collect();
    format!("[{}]", axes.join(", "))
}

fn word(s: &str) -> String {
    let plain = s
        .chars()
        .enumerate()
        .all(|(i, c)| c == '_' || c.is_ascii_alphabetic() || (i > 0 && c.is_ascii_digit()));
    if plain && !s.is_empty() { s.to_owned() } else { quoted(s) }
}

/// A string in quotes, as [`Parser::string`](super::Parser::string) reads it.
pub fn quoted(s: &str) -> String {
    let mut out = String::from("\"");
    for c in s.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
