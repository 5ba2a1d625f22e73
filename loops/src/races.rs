//! Proofs that invocations do not disturb each other in workgroup memory.
//!
//! Between two barriers the invocations of a workgroup run in any order. [`races`] takes each stretch of statements between barriers and
//! enumerates, for all invocations and all points of loops inside of it, which elements they access: none may be written by one
//! invocation and accessed by another one. Loops around a barrier are looked at for two points in a row, so that the end of a point and
//! the beginning of the next one are in one stretch; of loops that may have no points, and of branches, all ways are. What is the same
//! for all invocations (sizes, workgroups, the points of loops around the stretch) may have any value, as it is in both positions alike;
//! so the proof is for all sizes.

use crate::interpret::levels;
use crate::text::statement;
use crate::{Expr, For, Kernel, Space, Stmt, TensorId, Write, visit};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use wgfc_ir::{Atom, BinaryOp, Poly};

/// The most accesses of a stretch that are enumerated.
const MOST: i64 = 1 << 22;

/// The most accesses of a stretch that are compared.
const MOST_OF_A_STRETCH: usize = 2048;

/// The number of stretches after which loops around barriers are not looked into: it doubles with each that is in another one.
const MOST_STRETCHES: usize = 1024;

/// The most ways that lead to a statement from the last barrier that are kept apart.
const MOST_WAYS: usize = 16;

/// An access to workgroup memory.
#[derive(Clone, PartialEq)]
struct Access {
    tensor: TensorId,
    offset: Poly,
    write: Option<Write>,
    /// Loops inside of the stretch around it, with their extents.
    inner: Vec<(usize, Poly)>,
    /// Conditions under which it happens.
    guards: Vec<Expr>,
    text: String,
}

/// The accesses to workgroup memory that are not shown to be free of races; none if all are.
///
/// ```
/// let text = |barrier: &str| format!("kernel
///   y: f32[8] storage write
///   s: f32[8] workgroup
///   for lane in 0..8 invocation
///     s[lane] = 1.0
///     {barrier}
///     y[lane] = s[7 - lane]
/// ");
/// let kernel = |barrier| wgfc_loops::text::parse(&text(barrier)).unwrap();
/// assert!(wgfc_loops::races(&kernel("barrier")).is_empty());
/// assert_eq!(
///     wgfc_loops::races(&kernel("// none")),
///     ["`s`: `s[lane] = 1.0` of invocation 0 and `y[lane] = s[-lane + 7]` of invocation 7 access the same element without a barrier between them"]
/// );
/// ```
pub fn races(kernel: &Kernel) -> Vec<String> {
    let (_, invocations, body) = levels(kernel);
    let lanes: Vec<(usize, i64)> =
        invocations.iter().filter_map(|l| Some((l.var, l.extent.as_const()?))).collect();
    let mut walk = Walk { kernel, stretches: vec![], open: vec![vec![]], renamed: 0, too_many: false };
    walk.block(body, &[], &[], &[]);
    walk.barrier();
    let mut out = BTreeSet::new();
    if walk.too_many {
        out.insert(
            "the kernel has more accesses to workgroup memory, or loops around barriers, than are looked at"
                .into(),
        );
    }
    for stretch in &walk.stretches {
        let written: BTreeSet<TensorId> =
            stretch.iter().filter(|a| a.write.is_some()).map(|a| a.tensor).collect();
        for t in written {
            let all: Vec<&Access> = stretch.iter().filter(|a| a.tensor == t).collect();
            if let Err(why) = check(&all, &lanes) {
                out.insert(format!("`{}`: {why}", kernel.tensors[t].name));
            }
        }
    }
    out.into_iter().collect()
}

struct Walk<'k> {
    kernel: &'k Kernel,
    /// Accesses between barriers.
    stretches: Vec<Vec<Access>>,
    /// Accesses since the last barrier, for each way that leads here.
    open: Vec<Vec<Access>>,
    /// The number of variables that stand for those of loops around a barrier.
    renamed: usize,
    /// Whether a stretch has more accesses than are compared, or there are more of them than are looked at.
    too_many: bool,
}

fn has_barrier(body: &[Stmt]) -> bool {
    let mut found = false;
    visit(body, &mut |s| found |= matches!(s, Stmt::Barrier { .. }));
    found
}

impl Walk<'_> {
    /// `values` are those of the variables of loops around a barrier.
    fn block(&mut self, body: &[Stmt], inner: &[(usize, Poly)], guards: &[Expr], values: &[(usize, Poly)]) {
        for s in body {
            let at = |e: &Expr, w: &mut Self, guards: &[Expr]| w.reads(s, e, inner, guards, values);
            match s {
                Stmt::Barrier { .. } => self.barrier(),
                Stmt::For(l) => self.repeat(s, l, inner, guards, values),
                Stmt::If { condition, then, otherwise } => {
                    at(condition, self, guards);
                    let own: Vec<Expr> = guards.iter().cloned().chain([moved(condition, values)]).collect();
                    let before = self.open.clone();
                    self.block(then, inner, &own, values);
                    if !has_barrier(then) && !has_barrier(otherwise) {
                        self.block(otherwise, inner, guards, values);
                        continue;
                    }
                    // Statements after this one may follow either branch.
                    let after = std::mem::replace(&mut self.open, before);
                    self.block(otherwise, inner, guards, values);
                    self.join(after);
                }
                Stmt::Let { expr, .. } => at(expr, self, guards),
                Stmt::Store(store) => {
                    let mut own = guards.to_vec();
                    if let Some(g) = &store.guard {
                        at(g, self, guards);
                        own.push(moved(g, values));
                    }
                    at(&store.value, self, &own);
                    self.access(s, store.tensor, &store.at, Some(store.write), inner, &own, values);
                }
            }
        }
    }

    fn repeat(
        &mut self,
        s: &Stmt,
        l: &For,
        inner: &[(usize, Poly)],
        guards: &[Expr],
        values: &[(usize, Poly)],
    ) {
        if let Some(c) = &l.condition {
            self.reads(s, c, inner, guards, values);
        }
        if !has_barrier(&l.body) {
            let own: Vec<(usize, Poly)> = inner.iter().cloned().chain([(l.var, l.extent.clone())]).collect();
            return self.block(&l.body, &own, guards, values);
        }
        // Each time that the loop is reached its variable has other values: those of two points in a row.
        if self.stretches.len() > MOST_STRETCHES {
            self.too_many = true;
            return;
        }
        let before = self.open.clone();
        let first = Poly::var(self.kernel.vars.len() + self.renamed);
        self.renamed += 1;
        for value in [first.clone(), &first + &Poly::ONE] {
            let own: Vec<(usize, Poly)> = values.iter().cloned().chain([(l.var, value)]).collect();
            self.block(&l.body, inner, guards, &own);
            if let Some(c) = &l.condition {
                self.reads(s, c, inner, guards, &own);
            }
        }
        if l.condition.is_some() || l.extent.as_const().is_none_or(|n| n < 1) {
            // The loop may have no points.
            self.join(before);
        }
    }

    /// Ends the stretches that lead to a barrier.
    fn barrier(&mut self) {
        let ended = std::mem::replace(&mut self.open, vec![vec![]]);
        self.stretches.extend(ended);
    }

    /// Adds stretches after which what follows may come, too.
    fn join(&mut self, others: Vec<Vec<Access>>) {
        for o in others {
            if self.open.contains(&o) {
                continue;
            }
            if self.open.len() < MOST_WAYS {
                self.open.push(o);
            } else if let Some(last) = self.open.last_mut() {
                // As if all of it came in one way.
                self.too_many |= last.len() + o.len() > MOST_OF_A_STRETCH;
                last.extend(o);
            }
        }
    }

    /// Adds an access to all ways that lead here.
    fn add(&mut self, a: &Access) {
        for s in &mut self.open {
            if s.len() >= MOST_OF_A_STRETCH {
                self.too_many = true;
            } else if !s.contains(a) {
                s.push(a.clone());
            }
        }
    }

    fn reads(
        &mut self,
        s: &Stmt,
        e: &Expr,
        inner: &[(usize, Poly)],
        guards: &[Expr],
        values: &[(usize, Poly)],
    ) {
        if let Expr::Load { tensor, at, guard } = e {
            let own: Vec<Expr> =
                guards.iter().cloned().chain(guard.iter().map(|g| moved(g, values))).collect();
            self.access(s, *tensor, at, None, inner, &own, values);
        }
        e.operands().into_iter().for_each(|e| self.reads(s, e, inner, guards, values));
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of an access")]
    fn access(
        &mut self,
        s: &Stmt,
        tensor: TensorId,
        at: &[Poly],
        write: Option<Write>,
        inner: &[(usize, Poly)],
        guards: &[Expr],
        values: &[(usize, Poly)],
    ) {
        let Some(t) = self.kernel.tensors.get(tensor).filter(|t| t.space == Space::Workgroup) else { return };
        let access = Access {
            tensor,
            offset: later(&t.offset(at), values),
            write,
            inner: inner.to_vec(),
            guards: guards.to_vec(),
            text: statement(self.kernel, s),
        };
        self.add(&access);
    }
}

/// An index expression with these values of variables.
fn later(p: &Poly, values: &[(usize, Poly)]) -> Poly {
    let value = |a: &Atom| match a {
        Atom::Var(v) => values.iter().rev().find(|(u, _)| u == &(*v as usize)).map(|(_, p)| p.clone()),
        _ => None,
    };
    if values.is_empty() { p.clone() } else { p.subst(&value, &[]) }
}

fn moved(e: &Expr, values: &[(usize, Poly)]) -> Expr {
    e.map(&|p| later(p, values), &|e| e)
}

/// The points at which the invocations access elements: the offset without what is the same for all, and the invocation.
fn points(a: &Access, lanes: &[(usize, i64)]) -> Result<(Poly, FxHashMap<i64, i64>), String> {
    let mut vars: Vec<(usize, i64)> = lanes.to_vec();
    let mut differ: BTreeSet<usize> = lanes.iter().map(|l| l.0).collect();
    for (v, extent) in &a.inner {
        differ.insert(*v);
        let used = |p: &Poly| p.vars().contains(v);
        let mut guarded = false;
        a.guards.iter().for_each(|g| g.visit(&mut |e| guarded |= e.indices().iter().any(used)));
        if !used(&a.offset) && !guarded {
            continue;
        }
        let n = extent.as_const().ok_or_else(|| format!("`{}` is in a loop of {extent} points", a.text))?;
        vars.push((*v, n));
    }
    let (mut same, mut own) = (Poly::ZERO, Poly::ZERO);
    for (m, c) in a.offset.terms() {
        let term = m.iter().fold(Poly::constant(c), |t, a| &t * &Poly::atom(a.clone()));
        if term.vars().iter().any(|v| differ.contains(v)) { own = &own + &term } else { same = &same + &term }
    }
    let strange = |p: &Poly| {
        !p.data().is_empty()
            || !p.symbols().is_empty()
            || p.vars().iter().any(|v| vars.iter().all(|u| u.0 != *v))
    };
    if strange(&own) || !a.offset.data().is_empty() {
        return Err(format!("the position in `{}` depends on more than the invocation", a.text));
    }
    let total = vars.iter().try_fold(1i64, |n, v| n.checked_mul(v.1)).filter(|n| *n <= MOST);
    let total = total.ok_or_else(|| format!("`{}` has more accesses than are enumerated", a.text))?;
    let threads: i64 = lanes.iter().map(|l| l.1).product();
    let per_lane = total / threads.max(1);
    let mut out: FxHashMap<i64, i64> = FxHashMap::default();
    for i in 0..total {
        let (lane, mut rest) = (i / per_lane.max(1), i);
        let mut values: FxHashMap<usize, i64> = FxHashMap::default();
        for (v, n) in vars.iter().rev() {
            values.insert(*v, rest % n);
            rest /= n;
        }
        let value = |a: &Atom| match a {
            Atom::Var(v) => values.get(&(*v as usize)).copied(),
            _ => None,
        };
        // A condition without a value here may be true.
        if a.guards.iter().any(|g| truth(g, &value) == Some(false)) {
            continue;
        }
        let offset = own.eval(&value).ok_or_else(|| format!("the position in `{}` has no value", a.text))?;
        // Several invocations: number -1.
        out.entry(offset)
            .and_modify(|l| {
                if *l != lane {
                    *l = -1
                }
            })
            .or_insert(lane);
    }
    Ok((same, out))
}

/// The value of a condition on positions, if these have values.
fn truth(e: &Expr, value: &dyn Fn(&Atom) -> Option<i64>) -> Option<bool> {
    let Expr::Binary(op, a, b) = e else { return None };
    if *op == BinaryOp::And {
        return match (truth(a, value), truth(b, value)) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
    }
    let (Expr::Index(a), Expr::Index(b)) = (&**a, &**b) else { return None };
    let (a, b) = (a.eval(value)?, b.eval(value)?);
    Some(match op {
        BinaryOp::Lt => a < b,
        BinaryOp::Le => a <= b,
        BinaryOp::Gt => a > b,
        BinaryOp::Ge => a >= b,
        BinaryOp::Eq => a == b,
        BinaryOp::Ne => a != b,
        _ => return None,
    })
}

/// The values of an index expression with the remainders of a variable by a small number, each of which it may have.
fn distances(p: &Poly) -> Vec<Poly> {
    /// The largest divisor.
    const LARGEST: i64 = 8;
    let divided = |a: Atom| match a {
        Atom::Mod(x, d) => {
            let v = x.vars().into_iter().next()?;
            Some((v, d.as_const().filter(|d| (1..=LARGEST).contains(d))?))
        }
        _ => None,
    };
    let Some((v, d)) = p.terms().into_iter().flat_map(|(m, _)| m).find_map(divided) else {
        return vec![p.clone()];
    };
    let case = |r: i64| {
        let value = &(&Poly::var(v) * d) + &Poly::constant(r);
        p.subst(&|a| (*a == Atom::Var(v as u32)).then(|| value.clone()), &[])
    };
    (0..d).map(case).collect()
}

/// Whether no two invocations access an element that one of them writes.
fn check(all: &[&Access], lanes: &[(usize, i64)]) -> Result<(), String> {
    let known: Vec<(Poly, FxHashMap<i64, i64>)> =
        all.iter().map(|a| points(a, lanes)).collect::<Result<_, _>>()?;
    for (i, a) in all.iter().enumerate().filter(|(_, a)| a.write.is_some()) {
        for (j, b) in all.iter().enumerate() {
            let alike = a.write == b.write && a.write != Some(Write::Replace);
            if alike || b.write.is_some() && j < i {
                continue;
            }
            let ((same, mine), (others, theirs)) = (&known[i], &known[j]);
            let mut met: Vec<(i64, i64)> = vec![];
            for distance in distances(&(same - others)) {
                let distance = distance.as_const().ok_or_else(|| {
                    format!(
                        "the distance of `{}` and `{}` depends on more than the invocation",
                        a.text, b.text
                    )
                })?;
                for (element, lane) in mine {
                    if let Some(other) = theirs.get(&(element + distance))
                        && (lane != other || *lane == -1)
                    {
                        met.push((*lane, *other));
                    }
                }
            }
            if let Some((lane, other)) = met.into_iter().min() {
                let who =
                    |n: i64| if n < 0 { "several invocations".into() } else { format!("invocation {n}") };
                return Err(format!(
                    "`{}` of {} and `{}` of {} access the same element without a barrier between them",
                    a.text,
                    who(lane),
                    b.text,
                    who(other)
                ));
            }
        }
    }
    Ok(())
}
