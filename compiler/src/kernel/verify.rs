//! Verification of the conditions that code generation relies on.
//!
//! After [`verify`] has passed, every expression has the type that follows from its operands and comes after them; each place of a kernel
//! reads only variables and results that are available there; tensors exist and have permitted writers; what a kernel writes [in
//! place](super::in_place) is not read by another point, nor by its own point afterwards; and the conditions of families, repeats and
//! computed symbols hold. Whether offsets are inside their tensors is a separate question, which [`bounds`](super::bounds) answers.

use super::in_place;
use super::{
    Body, Expr, ExprId, Family, Kernel, KernelGraph, StagedLoop, Store, TensorId, TensorKind, combines, thin,
};
use crate::kernel::places::Place;
use rustc_hash::FxHashSet;
use wgfc_ir::{DType, Dim, Poly, UnaryOp};

/// Verifies a kernel graph; `Err` lists all errors, each with its place.
pub fn verify(graph: &KernelGraph) -> Result<(), Vec<String>> {
    let mut errors = vec![];
    for (i, t) in graph.tensors.iter().enumerate() {
        for d in t.ty.shape.iter().filter(|d| !is_dim(d)) {
            errors.push(format!("t{i}: the extent `{d}` is not a dimension"));
        }
        if let TensorKind::Under(over) = t.kind
            && graph
                .tensors
                .get(over)
                .is_none_or(|o| o.ty.dtype != t.ty.dtype || o.ty.numel() != t.ty.numel())
        {
            errors.push(format!(
                "t{i}: the tensor whose memory it shares has another type or number of elements than {}",
                t.ty
            ));
        }
        if let TensorKind::Const(data) = &t.kind
            && (data.dtype != t.ty.dtype || t.ty.static_shape().is_none_or(|s| s != data.shape))
        {
            errors.push(format!("t{i}: {} holds a constant of type {data:?}", t.ty));
        }
    }
    for (i, k) in graph.kernels.iter().enumerate() {
        let places = k.places();
        let accs = places.iter().flat_map(|p| &p.results).map(|r| (r.acc, r.dtype)).collect();
        let mut v = Verifier { graph, kernel: k, accs, errors: vec![] };
        v.kernel();
        let node = k.nodes.first().map_or(String::new(), |n| format!(" (node \"{n}\")"));
        errors.extend(v.errors.into_iter().map(|e| format!("kernel {i}{node}: {e}")));
    }
    if errors.is_empty() {
        program(graph, &mut errors);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Whether it is a size, that is, an expression over symbols only.
fn is_dim(d: &Dim) -> bool {
    !d.is_too_large() && d.vars().is_empty() && d.data().is_empty()
}

/// Conditions on all kernels together.
fn program(graph: &KernelGraph, errors: &mut Vec<String>) {
    let n = graph.kernels.len();
    let exists = |t: &TensorId| *t < graph.tensors.len();
    for (i, r) in graph.repeats.iter().enumerate() {
        if r.kernels.is_empty() || r.kernels.end > n {
            errors.push(format!("repeat {:?} of {n} kernels", r.kernels));
        }
        for s in &graph.repeats[..i] {
            let (a, b) = (&s.kernels, &r.kernels);
            let inside = a.start <= b.start && b.end <= a.end;
            if !(inside || a.end <= b.start || b.end <= a.start) {
                errors.push(format!("repeat {b:?} is neither inside nor outside of {a:?}"));
            }
        }
        if !is_dim(&r.times) {
            errors.push(format!("repeat {:?}: `{}` is no number of times", r.kernels, r.times));
        }
        for t in r.keeps.iter().chain(r.until.as_ref().map(|u| &u.word)).filter(|t| !exists(t)) {
            errors.push(format!("repeat {:?}: there is no t{t}", r.kernels));
        }
        if let Some(u) = &r.until
            && graph.tensors.get(u.word).is_some_and(|t| t.ty.dtype != DType::I32)
        {
            errors.push(format!("repeat {:?}: t{} is no i32", r.kernels, u.word));
        }
    }
    for (symbol, t) in &graph.computed {
        match graph.tensors.get(*t) {
            Some(tensor) if tensor.ty.dtype.is_int() => {}
            _ => errors.push(format!("symbol `{symbol}` is computed in t{t}, which is no integer")),
        }
        if graph.bounds.get(symbol).is_none() {
            errors.push(format!("symbol `{symbol}` is computed without a bound"));
        }
    }
    // A tensor must be written before it is read, at the latest by a kernel of the same repeat.
    let mut written: FxHashSet<TensorId> = FxHashSet::default();
    for (i, k) in graph.kernels.iter().enumerate() {
        let around = graph.repeats.iter().filter(|r| r.kernels.contains(&i)).flat_map(|r| r.kernels.clone());
        let around: FxHashSet<TensorId> =
            around.filter_map(|j| graph.kernels.get(j)).flat_map(Kernel::writes).collect();
        for t in k.reads() {
            let made = matches!(graph.tensors[t].kind, TensorKind::Intermediate | TensorKind::Output(_));
            let empty = graph.tensors[t].ty.numel().is(0);
            if made && !empty && !written.contains(&t) && !around.contains(&t) {
                errors.push(format!("kernel {i} reads t{t}, which nothing has written"));
            }
        }
        written.extend(k.writes());
    }
}

struct Verifier<'g> {
    graph: &'g KernelGraph,
    kernel: &'g Kernel,
    /// The results of the family, with their types.
    accs: Vec<(u32, DType)>,
    errors: Vec<String>,
}

impl Verifier<'_> {
    fn error(&mut self, e: impl Into<String>) {
        self.errors.push(e.into());
    }

    fn kernel(&mut self) {
        let k = self.kernel;
        for d in k.domain().iter().filter(|d| !is_dim(d)) {
            self.error(format!("the extent `{d}` is no dimension"));
        }
        let len = k.body.len();
        for (id, e, dtype) in k.body.iter() {
            if let Some(o) = k.body.operands(id).into_iter().find(|o| *o >= id) {
                return self.error(format!("e{id} reads e{o}, which comes behind it"));
            }
            if let Some(p) = e.index().filter(|p| p.is_too_large()) {
                self.error(format!("e{id}: {p}"));
            }
            match self.type_of(e) {
                Ok(t) if t == dtype => {}
                Ok(t) => self.error(format!("e{id} is {t}, not {dtype}")),
                Err(e) => self.error(format!("e{id}: {e}")),
            }
        }
        if let Some(e) = k.roots().into_iter().find(|e| *e as usize >= len) {
            return self.error(format!("there is no e{e}"));
        }
        if self.errors.is_empty() {
            k.places().iter().for_each(|p| self.place(p));
            k.all_stores().for_each(|s| self.store(s));
            self.family();
        }
        if self.errors.is_empty() {
            self.errors = in_place::conflicts(k, &self.graph.tensors);
        }
    }

    fn place(&mut self, place: &Place<'_>) {
        let body = &self.kernel.body;
        let known =
            |p: &Poly| p.vars().into_iter().find(|v| place.extents.get(*v).is_none_or(Option::is_none));
        for (e, want) in &place.exprs {
            if let Some(want) = want.filter(|t| *t != body.dtype(*e)) {
                self.error(format!("{}: e{e} is {}, not {want}", place.name, body.dtype(*e)));
            }
        }
        for e in body.reachable(&place.roots()) {
            let expr = body.expr(e);
            if let Some(v) = expr.index().and_then(known) {
                self.error(format!("{}: e{e} uses %{v}, which has no value there", place.name));
            }
            if let Expr::Acc(i) = expr {
                match place.results.iter().find(|r| r.acc == *i) {
                    None => self.error(format!("{}: e{e} reads acc{i}, which is not there", place.name)),
                    Some(r) if r.dtype != body.dtype(e) => {
                        self.error(format!(
                            "{}: e{e} is {}, acc{i} is {}",
                            place.name,
                            body.dtype(e),
                            r.dtype
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        for s in &place.stores {
            if let Some(v) = known(&s.offset) {
                self.error(format!(
                    "{}: a store to t{} uses %{v}, which has no value there",
                    place.name, s.tensor
                ));
            }
        }
    }

    fn store(&mut self, s: &Store) {
        let body = &self.kernel.body;
        let Some(t) = self.graph.tensors.get(s.tensor) else {
            return self.error(format!("a store to t{}, which is not there", s.tensor));
        };
        let rounded = (body.dtype(s.value), t.ty.dtype) == (DType::F32, DType::F16);
        if body.dtype(s.value) != t.ty.dtype && !rounded {
            let (e, dtype) = (s.value, body.dtype(s.value));
            self.error(format!("e{e}, stored to t{}, is {dtype}, not {}", s.tensor, t.ty.dtype));
        }
        if s.guard.is_some_and(|g| body.dtype(g) != DType::Bool) {
            self.error(format!("the guard of a store to t{} is no bool", s.tensor));
        }
        self.data(&s.offset, &format!("a store to t{}", s.tensor));
        if !matches!(
            t.kind,
            TensorKind::Output(_)
                | TensorKind::Intermediate
                | TensorKind::Under(_)
                | TensorKind::State { .. }
        ) {
            self.error(format!("t{} ({}) is written", s.tensor, t.kind));
        }
        if let Some(op) = s.combine {
            if !combines(op, t.ty.dtype) {
                self.error(format!("stores to t{} combine by {} of {}", s.tensor, op.name(), t.ty.dtype));
            }
            if self.kernel.reads().contains(&s.tensor) {
                self.error(format!("t{} is read where stores combine with it", s.tensor));
            }
        }
    }

    /// Checks that data in index expressions are `i32`.
    fn data(&mut self, p: &Poly, place: &str) {
        for e in p.data() {
            let dtype = self.kernel.body.dtype(e);
            if dtype != DType::I32 {
                self.error(format!("{place}: @{e} is {dtype}, not i32"));
            }
        }
    }

    fn type_of(&mut self, e: &Expr) -> Result<DType, String> {
        let body: &Body = &self.kernel.body;
        if let Some(p) = e.index() {
            self.data(p, "an index expression");
        }
        let guarded = |guard: &Option<ExprId>| match guard {
            Some(g) if body.dtype(*g) != DType::Bool => Err(format!("its guard e{g} is no bool")),
            _ => Ok(()),
        };
        Ok(match e {
            Expr::Const(s) => s.dtype,
            Expr::Index(_) => DType::I32,
            Expr::Load { tensor, guard, .. } => {
                guarded(guard)?;
                self.graph.tensors.get(*tensor).ok_or_else(|| format!("there is no t{tensor}"))?.ty.dtype
            }
            Expr::Shared { array, guard, .. } => {
                guarded(guard)?;
                let Family::StagedLoop(f) = &self.kernel.family else {
                    return Err(format!("a kernel of family `{}` has no arrays", self.kernel.family.name()));
                };
                f.arrays.get(*array as usize).ok_or_else(|| format!("there is no s{array}"))?.dtype
            }
            Expr::Acc(i) => {
                let found = self.accs.iter().find(|(acc, _)| acc == i).map(|(_, dtype)| *dtype);
                found.ok_or_else(|| format!("there is no acc{i}"))?
            }
            Expr::Unary(op, a) => {
                let t = body.dtype(*a);
                match op {
                    UnaryOp::IsNan | UnaryOp::IsInf => DType::Bool,
                    UnaryOp::Not if t.is_float() => return Err(format!("`not` of {t}")),
                    UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign if t == DType::Bool => {
                        return Err(format!("`{}` of bool", op.name()));
                    }
                    UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Not => t,
                    UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => t,
                    _ if !t.is_float() => return Err(format!("`{}` of {t}", op.name())),
                    _ => t,
                }
            }
            Expr::Binary(op, a, b) => {
                let (a, b) = (body.dtype(*a), body.dtype(*b));
                if a != b {
                    return Err(format!("`{}` of {a} and {b}", op.name()));
                }
                if op.is_comparison() { DType::Bool } else { a }
            }
            Expr::Select(c, a, b) => {
                let (c, a, b) = (body.dtype(*c), body.dtype(*a), body.dtype(*b));
                if c != DType::Bool || a != b {
                    return Err(format!("select of {c}, {a} and {b}"));
                }
                a
            }
            Expr::Cast(to, _) => *to,
            Expr::Bitcast(to, a) => {
                let a = body.dtype(*a);
                if a.bits() != to.bits() {
                    return Err(format!("bitcast of {a} to {to}"));
                }
                *to
            }
        })
    }

    /// Checks conditions that only some families have.
    fn family(&mut self) {
        match &self.kernel.family {
            Family::Matmul(m) => {
                if m.b.is_empty() {
                    self.error("a product without a second operand");
                }
                if (m.b.len() > 1 || !m.sums.is_empty()) && !thin(&m.batch, &m.m) {
                    self.error(format!("several products of {} × {} rows, which are not few", m.batch, m.m));
                }
            }
            Family::Attention(a) if a.parts.is(0) => self.error("attention in no parts"),
            Family::Attention(a) if !a.parts.is(1) && a.part_stores.is_empty() => {
                self.error("attention in parts stores no scales of them");
            }
            Family::StagedLoop(f) => self.stages(f),
            _ => {}
        }
    }

    fn stages(&mut self, f: &StagedLoop) {
        if let Some(a) = f.alive
            && f.arrays.get(a as usize).is_none_or(|a| a.dtype != DType::Bool || a.len != 1)
        {
            self.error(format!("s{a} is no array of one bool"));
        }
        let mut accs = FxHashSet::default();
        for s in f.stages() {
            if let Some(c) = &s.combined {
                if !accs.insert(c.acc) {
                    self.error(format!("two stages combine acc{}", c.acc));
                }
                if c.terms == 0 {
                    self.error(format!("acc{} combines nothing", c.acc));
                }
            }
            for w in &s.writes {
                match f.arrays.get(w.array as usize) {
                    None => self.error(format!("there is no s{}", w.array)),
                    Some(a) if a.len < s.elements => {
                        self.error(format!(
                            "{} elements are written to s{}, which has {}",
                            s.elements, w.array, a.len
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        if f.steps.is_too_large() || f.arrays.iter().any(|a| a.len == 0) {
            self.error("an array without elements");
        }
    }
}
