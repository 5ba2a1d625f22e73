//! The kernel graph as text, for people.

use super::{
    Attention, Body, Expr, ExprId, Family, Kernel, KernelGraph, Loop, Map, Matmul, PrefixScan, ReduceKind,
    Reduction, Row, Stage, StagedLoop, Store, TensorKind,
};
use std::fmt;
use wgfc_ir::Dim;

impl fmt::Display for KernelGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, t) in self.tensors.iter().enumerate() {
            let kind = match &t.kind {
                TensorKind::Input(n) => format!("input {n}"),
                TensorKind::Output(n) => format!("output {n}"),
                TensorKind::Const(_) => "const".into(),
                TensorKind::State { state, after: false } => format!("state {state}"),
                TensorKind::State { state, after: true } => format!("state {state} updated"),
                TensorKind::Intermediate => "intermediate".into(),
                TensorKind::Under(over) => format!("under t{over}"),
            };
            writeln!(f, "t{i}: {} {kind} {}", t.ty, t.name.as_deref().unwrap_or(""))?;
        }
        for (i, k) in self.kernels.iter().enumerate() {
            write!(f, "\nkernel {i} {k}")?;
        }
        for r in &self.repeats {
            write!(f, "\nkernels {:?}: {} times", r.kernels, r.times)?;
            if let Some(u) = &r.until {
                write!(f, " until t{} is 0, at most {} times", u.word, u.rounds)?;
            }
            writeln!(f, " // {}", r.why)?;
        }
        Ok(())
    }
}

impl Kernel {
    /// The text without the names of nodes: equal for kernels that compute the same on the same tensors.
    pub fn structure(&self) -> String {
        Kernel { nodes: vec![], ..self.clone() }.to_string()
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<&str> = self.nodes.iter().map(|n| n.as_ref()).collect();
        writeln!(f, "{} // {}", self.family, nodes.join(" "))?;
        for id in self.body.reachable(&self.roots()) {
            writeln!(f, "  e{id}: {} = {}", self.body.dtype(id), show(&self.body, id))?;
        }
        match &self.family {
            Family::Row(Row { reductions, row_stores, .. }) => {
                for (i, r) in reductions.iter().enumerate() {
                    writeln!(f, "  acc{i} = {}", reduction(r))?;
                }
                for s in row_stores {
                    writeln!(f, "  row {}", store(s))?;
                }
            }
            Family::PrefixScan(PrefixScan { reduction: r, .. }) => {
                writeln!(f, "  acc0 = running {}", reduction(r))?
            }
            Family::Loop(Loop { carries, alive, step_stores, part, .. }) => {
                if let Some(p) = part {
                    writeln!(f, "  from step e{}, {} at most", p.first, p.most)?;
                }
                for (i, c) in carries.iter().enumerate() {
                    writeln!(f, "  acc{i} = e{} then e{}", c.init, c.next)?;
                }
                if let Some(alive) = alive {
                    writeln!(f, "  while e{alive}")?;
                }
                for s in step_stores {
                    writeln!(f, "  step {}", store(s))?;
                }
            }
            Family::Matmul(Matmul { a, b, sums, .. }) => {
                for (i, b) in b.iter().enumerate() {
                    writeln!(f, "  acc{i} = sum(e{a} * e{b})")?;
                }
                for (i, s) in sums.iter().enumerate() {
                    writeln!(f, "  acc{} = sum(e{s})", b.len() + i)?;
                }
            }
            Family::Attention(Attention { q, k, v, mask, scale, part_stores, .. }) => {
                let mask = mask.map_or("none".into(), |m| format!("e{m}"));
                writeln!(f, "  acc0 = attention(q e{q}, k e{k}, v e{v}, mask {mask}, scale {scale})")?;
                for s in part_stores {
                    writeln!(f, "  {} once a part", store(s))?;
                }
            }
            Family::StagedLoop(StagedLoop { arrays, first, each, last, alive, part, .. }) => {
                if let Some(p) = part {
                    writeln!(f, "  from step e{}, {} at most", p.first, p.most)?;
                }
                for (i, a) in arrays.iter().enumerate() {
                    writeln!(f, "  s{i}: {}[{}]", a.dtype, a.len)?;
                }
                if let Some(alive) = alive {
                    writeln!(f, "  while s{alive}")?;
                }
                for (when, stages) in [("first", first), ("each", each), ("last", last)] {
                    stages.iter().try_for_each(|s| stage(f, when, s))?;
                }
            }
            Family::Map(_) => {}
        }
        for s in &self.stores {
            writeln!(f, "  {}", store(s))?;
        }
        Ok(())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Family::Map(Map { elements }) => write!(f, "map [{elements}]"),
            Family::Row(Row { rows, len, .. }) => write!(f, "row [{rows}, {len}]"),
            Family::PrefixScan(PrefixScan { rows, len, exclusive, reverse, .. }) => {
                write!(f, "scan [{rows}, {len}] exclusive={exclusive} reverse={reverse}")
            }
            Family::Loop(Loop { lanes, steps, .. }) => {
                let lanes: Vec<String> = lanes.iter().map(Dim::to_string).collect();
                write!(f, "loop [{}] {steps} steps", lanes.join(", "))
            }
            Family::StagedLoop(StagedLoop { lanes, steps, why, .. }) => {
                let lanes: Vec<String> = lanes.iter().map(Dim::to_string).collect();
                write!(f, "stages [{}] {steps} steps, as {why}", lanes.join(", "))
            }
            Family::Matmul(Matmul { batch, m, n, k, .. }) => write!(f, "matmul [{batch}, {m}, {n}, {k}]"),
            Family::Attention(Attention { batch, s, t, d, e, parts, .. }) => {
                write!(f, "attention [{batch}, {s}, {t}, {d}, {e}, {parts}]")
            }
        }
    }
}

fn stage(f: &mut fmt::Formatter<'_>, when: &str, s: &Stage) -> fmt::Result {
    writeln!(f, "  {when} [{}]", s.elements)?;
    if let Some(c) = &s.combined {
        writeln!(f, "    acc{} = {} of {}", c.acc, reduction(&c.reduction), c.terms)?;
    }
    for w in &s.writes {
        writeln!(f, "    s{} = e{}", w.array, w.value)?;
    }
    s.stores.iter().try_for_each(|s| writeln!(f, "    {}", store(s)))
}

fn reduction(r: &Reduction) -> String {
    match r.kind {
        ReduceKind::Last { when, init } => {
            format!("last(e{} when e{when} else e{init}): {}", r.value, r.dtype)
        }
        k => format!("{k:?}(e{}): {}", r.value, r.dtype),
    }
}

fn store(s: &Store) -> String {
    let guard = s.guard.map_or(String::new(), |g| format!(" if e{g}"));
    let combine = s.combine.map_or("", |op| op.name());
    format!("t{}[{}] {combine}= e{}{guard}", s.tensor, s.offset, s.value)
}

fn show(b: &Body, id: ExprId) -> String {
    match b.expr(id) {
        Expr::Const(s) => s.to_string(),
        Expr::Index(p) => format!("index({p})"),
        Expr::Load { tensor, offset, guard } => {
            format!("t{tensor}[{offset}]{}", guard.map_or(String::new(), |g| format!(" if e{g}")))
        }
        Expr::Acc(i) => format!("acc{i}"),
        Expr::Shared { array, at, guard } => {
            format!("s{array}[{at}]{}", guard.map_or(String::new(), |g| format!(" if e{g}")))
        }
        Expr::Unary(op, a) => format!("{}(e{a})", op.name()),
        Expr::Binary(op, x, y) => format!("{}(e{x}, e{y})", op.name()),
        Expr::Select(c, x, y) => format!("select(e{c}, e{x}, e{y})"),
        Expr::Cast(t, a) => format!("cast<{t}>(e{a})"),
        Expr::Bitcast(t, a) => format!("bitcast<{t}>(e{a})"),
    }
}
