//! The kernel graph as text, which [`parse`](super::parse()) reads.

use super::{
    Attention, Body, Expr, ExprId, Family, Kernel, KernelGraph, Loop, Map, Matmul, Part, PrefixScan,
    ReduceKind, Reduction, Row, Sort, Stage, StagedLoop, Store, TensorId, TensorKind,
};
use rustc_hash::FxHashMap;
use std::fmt;
use wgfc_ir::text::{constant, quoted, scalar};
use wgfc_ir::{Dim, Poly};

impl fmt::Display for KernelGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, t) in self.tensors.iter().enumerate() {
            write!(f, "t{i}: {} {}", t.ty, t.kind)?;
            match &t.name {
                Some(n) => writeln!(f, " as {}", quoted(n))?,
                None => writeln!(f)?,
            }
        }
        for (symbol, t) in &self.computed {
            writeln!(f, "compute {symbol} = t{t}")?;
        }
        for (symbol, most) in self.bounds.iter() {
            writeln!(f, "bound {symbol} = {most}")?;
        }
        for (i, k) in self.kernels.iter().enumerate() {
            write!(f, "\nkernel {i} {k}")?;
        }
        for r in &self.repeats {
            write!(f, "\nrepeat {}..{} times [{}]", r.kernels.start, r.kernels.end, r.times)?;
            write!(f, " keeps [{}]", tensors(&r.keeps))?;
            if let Some(u) = &r.until {
                write!(f, " until t{} rounds {}", u.word, u.rounds)?;
            }
            writeln!(f, " as {}", quoted(&r.why))?;
        }
        Ok(())
    }
}

fn tensors(list: &[TensorId]) -> String {
    list.iter().map(|t| format!("t{t}")).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorKind::Input(n) => write!(f, "input {n}"),
            TensorKind::Output(n) => write!(f, "output {n}"),
            TensorKind::Const(t) => write!(f, "const {}", constant(t)),
            TensorKind::Withheld(hash) => write!(f, "const hash {hash:016x}"),
            TensorKind::State { state, grows, after } => {
                let (grows, updated) =
                    (if *grows { " grows" } else { "" }, if *after { " updated" } else { "" });
                write!(f, "state {state}{grows}{updated}")
            }
            TensorKind::Intermediate => f.write_str("intermediate"),
            TensorKind::Under(over) => write!(f, "under t{over}"),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.family)?;
        for (i, n) in self.nodes.iter().enumerate() {
            write!(f, "{} {}", if i == 0 { " @" } else { "," }, quoted(n))?;
        }
        writeln!(f)?;
        let shown = Shown::new(self);
        for id in &shown.order {
            writeln!(f, "  {}: {} = {}", shown.name(*id), self.body.dtype(*id), shown.expr(*id))?;
        }
        shown.family(f, &self.family)?;
        self.stores.iter().try_for_each(|s| writeln!(f, "  {}", shown.store(s)))
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |extents: &[Dim]| extents.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
        let flag = |word, on| if on { word } else { "" };
        match self {
            Family::Map(Map { elements }) => write!(f, "map [{elements}]"),
            Family::Row(Row { rows, len, .. }) => write!(f, "row [{rows}, {len}]"),
            Family::PrefixScan(PrefixScan { rows, len, exclusive, reverse, .. }) => {
                write!(f, "prefix_scan [{rows}, {len}]")?;
                write!(f, "{}{}", flag(" exclusive", *exclusive), flag(" reverse", *reverse))
            }
            Family::Sort(Sort { rows, len, places, sorted, part, keep, .. }) => {
                write!(f, "sort [{rows}, {len}, {places}] sorted {sorted} part {part} keep {keep}")
            }
            Family::Loop(Loop { lanes, steps, .. }) => {
                write!(f, "loop [{}] steps [{steps}]", list(lanes))
            }
            Family::StagedLoop(StagedLoop { lanes, steps, why, .. }) => {
                write!(f, "staged_loop [{}] steps [{steps}] as {}", list(lanes), quoted(why))
            }
            Family::Matmul(Matmul { batch, m, n, k, rounded, .. }) => {
                write!(f, "matmul [{batch}, {m}, {n}, {k}]{}", flag(" rounded", *rounded))
            }
            Family::Attention(Attention { batch, s, t, d, e, parts, .. }) => {
                write!(f, "attention [{batch}, {s}, {t}, {d}, {e}] parts {parts}")
            }
        }
    }
}

/// A kernel's evaluated expressions in order, with the numbers under which they are printed.
struct Shown<'k> {
    body: &'k Body,
    order: Vec<ExprId>,
    number: FxHashMap<ExprId, usize>,
}

impl Shown<'_> {
    fn new(kernel: &Kernel) -> Shown<'_> {
        let order = kernel.body.reachable(&kernel.roots());
        let number = order.iter().enumerate().map(|(i, e)| (*e, i)).collect();
        Shown { body: &kernel.body, order, number }
    }

    fn number(&self, id: ExprId) -> usize {
        self.number.get(&id).copied().unwrap_or(id as usize)
    }

    fn name(&self, id: ExprId) -> String {
        format!("e{}", self.number(id))
    }

    /// An index expression with its data renumbered. Renumbering preserves the order of the numbers, and thereby the order of the terms.
    fn index(&self, p: &Poly) -> String {
        let text = p.to_string();
        let mut parts = text.split('@');
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            let (number, rest) = part.split_at(end);
            let number = number.parse().map_or(0, |id| self.number(id));
            out += &format!("@{number}{rest}");
        }
        out
    }

    fn guard(&self, guard: Option<ExprId>) -> String {
        guard.map_or(String::new(), |g| format!(" if {}", self.name(g)))
    }

    fn expr(&self, id: ExprId) -> String {
        let e = |id: &ExprId| self.name(*id);
        match self.body.expr(id) {
            Expr::Const(s) => scalar(*s),
            Expr::Index(p) => format!("index({})", self.index(p)),
            Expr::Load { tensor, offset, guard } => {
                format!("t{tensor}[{}]{}", self.index(offset), self.guard(*guard))
            }
            Expr::Acc(i) => format!("acc{i}"),
            Expr::Shared { array, at, guard } => {
                format!("s{array}[{}]{}", self.index(at), self.guard(*guard))
            }
            Expr::Unary(op, a) => format!("{}({})", op.name(), e(a)),
            Expr::Binary(op, a, b) => format!("{}({}, {})", op.name(), e(a), e(b)),
            Expr::Select(c, a, b) => format!("select({}, {}, {})", e(c), e(a), e(b)),
            Expr::Cast(t, a) => format!("cast({t}, {})", e(a)),
            Expr::Bitcast(t, a) => format!("bitcast({t}, {})", e(a)),
        }
    }

    fn store(&self, s: &Store) -> String {
        let combine = s.combine.map_or(String::new(), |op| format!("{} ", op.name()));
        let (at, value) = (self.index(&s.offset), self.name(s.value));
        format!("t{}[{at}] = {combine}{value}{}", s.tensor, self.guard(s.guard))
    }

    fn reduction(&self, r: &Reduction) -> String {
        let value = self.name(r.value);
        let text = match r.kind {
            ReduceKind::Sum => format!("sum({value})"),
            ReduceKind::Prod => format!("prod({value})"),
            ReduceKind::Max => format!("max({value})"),
            ReduceKind::Min => format!("min({value})"),
            ReduceKind::Arg { largest, last } => {
                let which = if largest { "arg_max" } else { "arg_min" };
                format!("{which}{}({value})", if last { "_last" } else { "" })
            }
            ReduceKind::Last { when, init } => {
                format!("last({value} when {} else {})", self.name(when), self.name(init))
            }
        };
        format!("{text}: {}", r.dtype)
    }

    fn part(&self, f: &mut fmt::Formatter<'_>, part: &Option<Part>) -> fmt::Result {
        match part {
            Some(p) => writeln!(f, "  from {} most {}", self.name(p.first), p.most),
            None => Ok(()),
        }
    }

    fn family(&self, f: &mut fmt::Formatter<'_>, family: &Family) -> fmt::Result {
        let name = |e: &ExprId| self.name(*e);
        match family {
            Family::Map(_) => {}
            Family::Row(Row { reductions, row_stores, .. }) => {
                for (i, r) in reductions.iter().enumerate() {
                    writeln!(f, "  acc{i} = {}", self.reduction(r))?;
                }
                for s in row_stores {
                    writeln!(f, "  row {}", self.store(s))?;
                }
            }
            Family::PrefixScan(PrefixScan { reduction, .. }) => {
                writeln!(f, "  acc0 = running {}", self.reduction(reduction))?
            }
            Family::Sort(Sort { key, .. }) => writeln!(f, "  acc0 = sorted {}", name(key))?,
            Family::Loop(Loop { carries, alive, step_stores, part, .. }) => {
                self.part(f, part)?;
                for (i, c) in carries.iter().enumerate() {
                    writeln!(f, "  acc{i} = {} then {}", name(&c.init), name(&c.next))?;
                }
                if let Some(alive) = alive {
                    writeln!(f, "  while {}", name(alive))?;
                }
                for s in step_stores {
                    writeln!(f, "  step {}", self.store(s))?;
                }
            }
            Family::StagedLoop(StagedLoop { arrays, first, each, last, alive, part, meet, .. }) => {
                self.part(f, part)?;
                if let Some(meet) = meet {
                    writeln!(f, "  meet {}", self.store(meet))?;
                }
                for (i, a) in arrays.iter().enumerate() {
                    writeln!(f, "  s{i}: {}[{}]", a.dtype, a.len)?;
                }
                if let Some(alive) = alive {
                    writeln!(f, "  while s{alive}")?;
                }
                for (when, stages) in [("first", first), ("each", each), ("last", last)] {
                    stages.iter().try_for_each(|s| self.stage(f, when, s))?;
                }
            }
            Family::Matmul(Matmul { a, b, sums, .. }) => {
                for (i, b) in b.iter().enumerate() {
                    writeln!(f, "  acc{i} = sum({} * {})", name(a), name(b))?;
                }
                for (i, s) in sums.iter().enumerate() {
                    writeln!(f, "  acc{} = sum({})", b.len() + i, name(s))?;
                }
            }
            Family::Attention(Attention { q, k, v, mask, scale, empty_is_zero, part_stores, .. }) => {
                let [q, k, v] = [q, k, v].map(name);
                write!(f, "  acc0 = attention(q {q}, k {k}, v {v}")?;
                if let Some(mask) = mask {
                    write!(f, ", mask {}", name(mask))?;
                }
                let empty = if *empty_is_zero { ", empty zero" } else { "" };
                writeln!(f, ", scale {scale:?}{empty})")?;
                for s in part_stores {
                    writeln!(f, "  part {}", self.store(s))?;
                }
            }
        }
        Ok(())
    }

    fn stage(&self, f: &mut fmt::Formatter<'_>, when: &str, s: &Stage) -> fmt::Result {
        writeln!(f, "  {when} [{}] {{", s.elements)?;
        if let Some(c) = &s.combined {
            writeln!(f, "    acc{} = {} terms {}", c.acc, self.reduction(&c.reduction), c.terms)?;
        }
        for w in &s.writes {
            writeln!(f, "    s{} = {}", w.array, self.name(w.value))?;
        }
        s.stores.iter().try_for_each(|s| writeln!(f, "    {}", self.store(s)))?;
        writeln!(f, "  }}")
    }
}
