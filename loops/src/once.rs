//! Proofs that every element of a result is stored exactly once.
//!
//! The points of the loops around a store, where its conditions hold, must be as many as the tensor has elements, each with an offset of
//! its own. [`once`] changes the variables of these loops, one to one, until a single one is left that is the offset itself:
//!
//! - Two variables that occur as `n*u + v` only, where `v` has `n` points, become one.
//! - A variable that is divided by a divisor of its extent becomes two.
//! - A variable with a negative step runs the other way.
//! - A condition `v < n` is the new extent of `v`.
//!
//! Two stores of which one is executed where a condition holds and the other one elsewhere are one store, if they are alike but for
//! conditions that follow from that one.

use crate::bounds::values::{Form, Table};
use crate::text::statement;
use crate::{Access, Kernel, Name, Space, Stmt, Store, TensorId, Write, steps};
use std::collections::BTreeSet;
use wgfc_ir::bounds::{Values, conditions, expanded};
use wgfc_ir::{Atom, BinaryOp, DType, Poly, UnaryOp};

/// The most points that are counted to find an element that is not stored once.
const MOST: usize = 20_000;

/// The most changes of variables.
const CHANGES: usize = 64;

/// A store to a result.
struct Stored<'k> {
    store: &'k Store,
    text: String,
    around: Vec<usize>,
    /// Conditions that are true, or false, where it is executed.
    conditions: Vec<(u32, bool)>,
    /// Whether a loop around it ends by a condition.
    ends: bool,
}

/// The tensors in storage that are only written of whose elements it is not proven that each is stored exactly once, with the reason;
/// none if it is proven of all. It presumes that stores are [inside](crate::bounds()) of their tensors.
///
/// ```
/// let text = |guard: &str| format!("kernel
///   x: f32[n] storage read
///   y: f32[n] storage write
///   for i in 0..(n + 63)/64 grid
///     for j in 0..64 invocation
///       y[64*i + j] = x[64*i + j] if index(64*i + j) < index({guard})
/// ");
/// let kernel = |guard| wgfc_loops::text::parse(&text(guard)).unwrap();
/// assert!(wgfc_loops::once(&kernel("n")).is_empty());
/// assert_eq!(
///     wgfc_loops::once(&kernel("n - 1")),
///     ["`y`: element 0 is stored 0 times by `y[64*i + j] = x[64*i + j] if index(64*i + j) < index(n - 1)`, where n = 1"]
/// );
/// ```
pub fn once(kernel: &Kernel) -> Vec<String> {
    let mut table = Table::new(kernel);
    let mut stores: Vec<(TensorId, Stored)> = vec![];
    collect(kernel, &mut table, &kernel.body, &[], &[], false, &mut stores);
    table.finish(kernel);
    let mut out = vec![];
    for (t, tensor) in kernel.tensors.iter().enumerate() {
        if tensor.space != Space::Storage(Access::Write) {
            continue;
        }
        let all: Vec<&Stored> = stores.iter().filter(|(u, _)| *u == t).map(|(_, s)| s).collect();
        let result = match all[..] {
            [] => Err("no statement stores it".into()),
            [s] => points(kernel, &table, s).and_then(|p| p.check(&tensor.elements(), &s.text)),
            [a, b] if let Some(p) = either(kernel, &table, a, b) => p.check(&tensor.elements(), &a.text),
            _ => Err(format!("{} statements store it", all.len())),
        };
        if let Err(why) = result {
            out.push(format!("`{}`: {why}", tensor.name));
        }
    }
    out
}

fn collect<'k>(
    kernel: &'k Kernel,
    table: &mut Table,
    body: &'k [Stmt],
    around: &[usize],
    conditions: &[(u32, bool)],
    ends: bool,
    out: &mut Vec<(TensorId, Stored<'k>)>,
) {
    for s in body {
        match s {
            Stmt::For(l) => {
                let inside = [around, &[l.var]].concat();
                collect(kernel, table, &l.body, &inside, conditions, ends || l.condition.is_some(), out);
            }
            Stmt::If { condition, then, otherwise } => {
                let c = table.expr(kernel, condition);
                for (body, truth) in [(then, true), (otherwise, false)] {
                    let own = [conditions, &[(c, truth)]].concat();
                    collect(kernel, table, body, around, &own, ends, out);
                }
            }
            Stmt::Let { value, expr } => {
                let e = table.expr(kernel, expr);
                table.name(*value, e);
            }
            Stmt::Store(store) => {
                let mut own = conditions.to_vec();
                own.extend(store.guard.iter().map(|g| (table.expr(kernel, g), true)));
                let (text, around) = (statement(kernel, s), around.to_vec());
                out.push((store.tensor, Stored { store, text, around, conditions: own, ends }));
            }
            Stmt::Barrier { .. } => {}
        }
    }
}

/// The comparisons `small <= large` of positions that together are a condition; `None` if it is another one.
fn exact(table: &Table, e: u32, truth: bool, depth: usize) -> Option<Vec<(Poly, Poly)>> {
    let both = |a: u32, b: u32| {
        let first = exact(table, a, truth, depth + 1)?;
        Some([first, exact(table, b, truth, depth + 1)?].concat())
    };
    match *table.form(e) {
        _ if depth > 64 => None,
        Form::Const(s) if s.dtype == DType::Bool && (s.bits != 0) == truth => Some(vec![]),
        Form::Binary(BinaryOp::And, a, b) if truth => both(a, b),
        Form::Binary(BinaryOp::Or, a, b) if !truth => both(a, b),
        Form::Unary(UnaryOp::Not, a) => exact(table, a, !truth, depth + 1),
        Form::Binary(_, a, _) if table.dtype(a) == DType::I32 => {
            let all = conditions(table, e, truth);
            let all = all.into_iter().map(|c| (expanded(table, &c.small), expanded(table, &c.large)));
            let all: Vec<(Poly, Poly)> = all.collect();
            let fixed = |p: &Poly| p.data().is_empty();
            (!all.is_empty() && all.iter().all(|(a, b)| fixed(a) && fixed(b))).then_some(all)
        }
        _ => None,
    }
}

/// The points of two stores, of which a condition says which one is executed, as those of one store.
fn either(kernel: &Kernel, table: &Table, a: &Stored, b: &Stored) -> Option<Points> {
    let (a, mut b) = (points(kernel, table, a).ok()?, points(kernel, table, b).ok()?);
    if a.vars.len() != b.vars.len() {
        return None;
    }
    for (u, v) in a.vars.iter().zip(b.vars.clone()) {
        if a.extents[*u] != b.extents[v] {
            return None;
        }
        b.replace(v, &Poly::var(*u));
    }
    b.vars.clone_from(&a.vars);
    if a.offset != b.offset {
        return None;
    }
    [(&a, &b), (&b, &a)].into_iter().find_map(|(some, others)| {
        // `c >= 0` is false where `-1 - c >= 0`.
        let known = some.conditions.iter().find(|c| others.conditions.contains(&(&-*c - 1)))?;
        let all: Vec<Poly> = others.conditions.iter().filter(|c| **c != &-known - 1).cloned().collect();
        let own = some.conditions.iter().filter(|c| *c != known).all(|c| all.contains(c));
        let follows = |c: &Poly| some.conditions.contains(c) || (c - known).proves_nonneg(&some.extents);
        (own && all.iter().all(follows)).then(|| Points { conditions: all, ..some.clone() })
    })
}

/// The points at which a store is executed.
fn points(kernel: &Kernel, table: &Table, s: &Stored) -> Result<Points, String> {
    let text = &s.text;
    let tensor = &kernel.tensors[s.store.tensor];
    match s.store.write {
        Write::Replace => {}
        Write::Any => return Err(format!("`{text}` may replace an element several times")),
        Write::Combine(_) => {
            return Err(format!("`{text}` combines with elements that have no value before"));
        }
    }
    if s.ends {
        return Err(format!("a loop around `{text}` may end by its condition"));
    }
    let offset = expanded(table, &tensor.offset(&s.store.at));
    if !offset.data().is_empty() {
        return Err(format!("data says where `{text}` stores"));
    }
    let mut compared = vec![];
    for (e, truth) in &s.conditions {
        let all = exact(table, *e, *truth, 0);
        compared.extend(all.ok_or_else(|| format!("a condition of `{text}` is not one of positions"))?);
    }
    let extents: Vec<Poly> = steps::domain(kernel).iter().map(|e| expanded(table, e)).collect();
    Ok(Points {
        offset: offset.subst(&|_| None, &extents),
        extents,
        vars: s.around.clone(),
        conditions: compared.into_iter().map(|(small, large)| &large - &small).collect(),
    })
}

/// An element that is not stored once, and the sizes at which it is not.
struct Miscount {
    element: usize,
    times: usize,
    sizes: Vec<(Name, i64)>,
}

/// Points of loops, each with an offset.
#[derive(Clone)]
struct Points {
    /// The extents of all variables.
    extents: Vec<Poly>,
    /// The variables of the loops.
    vars: Vec<usize>,
    offset: Poly,
    /// Expressions that are not negative at the points.
    conditions: Vec<Poly>,
}

impl Points {
    /// Whether the store `text` is executed once for each of this number of elements.
    fn check(&self, elements: &Poly, text: &str) -> Result<(), String> {
        if self.clone().is_numbered(elements) {
            return Ok(());
        }
        Err(match self.miscounted(elements) {
            Some(Miscount { element, times, sizes }) => {
                let sizes: Vec<String> = sizes.iter().map(|(n, v)| format!("{n} = {v}")).collect();
                let sizes =
                    if sizes.is_empty() { String::new() } else { format!(", where {}", sizes.join(", ")) };
                format!("element {element} is stored {times} times by `{text}`{sizes}")
            }
            None => format!("`{text}` is not shown to store each element once"),
        })
    }

    /// Whether the offsets are shown to be the numbers from 0 to below this one, each at one point.
    fn is_numbered(&mut self, elements: &Poly) -> bool {
        // Numbers of points can be multiplied only if none is negative.
        let counted = |v: &usize| {
            let e = &self.extents[*v];
            e.vars().is_empty() && e.data().is_empty() && e.proves_nonneg(&[])
        };
        if !self.vars.iter().all(counted) {
            return false;
        }
        for _ in 0..CHANGES {
            if !self.change() {
                break;
            }
        }
        if !self.conditions.is_empty() {
            return false;
        }
        match self.vars[..] {
            [] => self.offset.is(0) && elements.is(1),
            [v] => self.offset == Poly::var(v) && self.extents[v] == *elements,
            _ => false,
        }
    }

    /// Replaces a variable everywhere.
    fn replace(&mut self, v: usize, to: &Poly) {
        let atom = |a: &Atom| (*a == Atom::Var(v as u32)).then(|| to.clone());
        let now = |p: &Poly| p.subst(&atom, &self.extents);
        let (offset, conditions) = (now(&self.offset), self.conditions.iter().map(now).collect());
        (self.offset, self.conditions) = (offset, conditions);
    }

    fn add(&mut self, extent: Poly) -> usize {
        self.extents.push(extent);
        self.vars.push(self.extents.len() - 1);
        self.extents.len() - 1
    }

    fn remove(&mut self, v: usize) {
        self.vars.retain(|u| *u != v);
    }

    /// Makes one change, if there is any.
    fn change(&mut self) -> bool {
        self.without_single()
            || self.without_condition()
            || self.as_extent()
            || self.turned()
            || self.divided()
            || self.joined()
    }

    /// A variable with one point is 0.
    fn without_single(&mut self) -> bool {
        let Some(v) = self.vars.iter().copied().find(|v| self.extents[*v].is(1)) else { return false };
        self.remove(v);
        self.replace(v, &Poly::ZERO);
        true
    }

    /// A condition that holds at all points says nothing.
    fn without_condition(&mut self) -> bool {
        let before = self.conditions.len();
        let extents = &self.extents;
        self.conditions.retain(|c| !c.proves_nonneg(extents));
        self.conditions.dedup();
        self.conditions.len() < before
    }

    /// `v <= c` with a smaller number of points than `v` has.
    fn as_extent(&mut self) -> bool {
        for (i, c) in self.conditions.iter().enumerate() {
            let [v] = c.vars().into_iter().collect::<Vec<_>>()[..] else { continue };
            let bound = c + &Poly::var(v);
            if !bound.vars().is_empty() || !self.vars.contains(&v) {
                continue;
            }
            let extent = &bound + &Poly::ONE;
            if extent.proves_nonneg(&[]) && is_at_least(&self.extents[v], &extent) {
                self.extents[v] = extent;
                self.conditions.remove(i);
                return true;
            }
        }
        false
    }

    /// A variable with a negative step.
    fn turned(&mut self) -> bool {
        let negative =
            |v: &&usize| step(&self.offset, **v).is_some_and(|s| (-&s).proves_nonneg(&[]) && !s.is(0));
        let Some(v) = self.vars.iter().find(negative).copied() else { return false };
        let last = &self.extents[v] - &Poly::ONE;
        let turned = self.add(self.extents[v].clone());
        self.remove(v);
        self.replace(v, &(&last - &Poly::var(turned)));
        true
    }

    /// A variable that is divided by a divisor of its extent.
    fn divided(&mut self) -> bool {
        let mut found = vec![];
        for p in [&self.offset].into_iter().chain(&self.conditions) {
            divisors(p, &mut found);
        }
        for (v, d) in found {
            if !self.vars.contains(&v) || !d.vars().is_empty() || !d.data().is_empty() {
                continue;
            }
            let outer = self.extents[v].div(&d, &[]);
            if &outer * &d != self.extents[v] || !outer.proves_nonneg(&[]) || !d.proves_nonneg(&[]) {
                continue;
            }
            let (outer, inner) = (self.add(outer), self.add(d.clone()));
            self.remove(v);
            self.replace(v, &(&(&Poly::var(outer) * &d) + &Poly::var(inner)));
            return true;
        }
        false
    }

    /// Two variables that are parts of one number.
    fn joined(&mut self) -> bool {
        for u in self.vars.clone() {
            for v in self.vars.clone() {
                let used = |p: &Poly| p.vars().contains(&v);
                if u == v || !used(&self.offset) {
                    continue;
                }
                let (size, whole) = (self.extents[v].clone(), self.extents.len());
                let number = &(&Poly::var(u) * &size) + &Poly::var(v);
                // The outer part counts nothing where the inner one is the whole number.
                let joined = |p: &Poly| {
                    let inner = |a: &Atom| match a {
                        Atom::Var(w) if *w as usize == u => Some(Poly::ZERO),
                        Atom::Var(w) if *w as usize == v => Some(Poly::var(whole)),
                        _ => None,
                    };
                    let new = p.subst(&inner, &[]);
                    let back = |a: &Atom| (*a == Atom::Var(whole as u32)).then(|| number.clone());
                    (new.subst(&back, &[]) == *p).then_some(new)
                };
                let conditions: Option<Vec<Poly>> = self.conditions.iter().map(joined).collect();
                if let (Some(offset), Some(conditions)) = (joined(&self.offset), conditions) {
                    (self.offset, self.conditions) = (offset, conditions);
                    self.remove(u);
                    self.remove(v);
                    self.add(&self.extents[u] * &size);
                    self.offset = self.offset.subst(&|_| None, &self.extents);
                    return true;
                }
            }
        }
        false
    }

    /// An element that is not stored once, at some sizes.
    fn miscounted(&self, elements: &Poly) -> Option<Miscount> {
        let mut names: BTreeSet<Name> = elements.symbols();
        names.extend(self.offset.symbols());
        names.extend(self.conditions.iter().flat_map(Poly::symbols));
        names.extend(self.vars.iter().flat_map(|v| self.extents[*v].symbols()));
        for turn in 0..8 {
            let sizes: Vec<(Name, i64)> = names
                .iter()
                .enumerate()
                .map(|(i, n)| (n.clone(), [1, 2, 3, 5, 7][(turn + i * (turn / 4)) % 5]))
                .collect();
            let size = |s: &str| sizes.iter().find(|(n, _)| &**n == s).map(|(_, v)| *v);
            let count = elements.eval_syms(&size).filter(|n| (0..=MOST as i64).contains(n))?;
            let mut times = vec![0; count as usize];
            let mut left = MOST;
            if self.count(0, &mut vec![0; self.extents.len()], &size, &mut times, &mut left).is_some()
                && let Some(e) = times.iter().position(|t| *t != 1)
            {
                return Some(Miscount { element: e, times: times[e], sizes });
            }
        }
        None
    }

    /// Counts how often each element is stored; `None` if there are too many points, or offsets without a value.
    fn count(
        &self,
        depth: usize,
        values: &mut Vec<i64>,
        size: &dyn Fn(&str) -> Option<i64>,
        times: &mut [usize],
        left: &mut usize,
    ) -> Option<()> {
        let value = |values: &[i64], p: &Poly| {
            p.eval(&|a| match a {
                Atom::Sym(s) => size(s),
                Atom::Var(v) => values.get(*v as usize).copied(),
                _ => None,
            })
        };
        let Some(v) = self.vars.get(depth).copied() else {
            *left = left.checked_sub(1)?;
            for c in &self.conditions {
                if value(values, c)? < 0 {
                    return Some(());
                }
            }
            let offset = value(values, &self.offset)?;
            *times.get_mut(usize::try_from(offset).ok()?)? += 1;
            return Some(());
        };
        for i in 0..value(values, &self.extents[v])? {
            values[v] = i;
            self.count(depth + 1, values, size, times, left)?;
        }
        Some(())
    }
}

/// The coefficient of a variable that occurs in no other way in an index expression; 0 if it does not occur.
fn step(p: &Poly, v: usize) -> Option<Poly> {
    let mut step = Poly::ZERO;
    for (m, c) in p.terms() {
        let mut rest = Poly::constant(c);
        let mut times = 0;
        for a in m {
            if a == Atom::Var(v as u32) { times += 1 } else { rest = &rest * &Poly::atom(a) }
        }
        if rest.vars().contains(&v) || times > 1 {
            return None;
        }
        if times == 1 {
            if !rest.vars().is_empty() {
                return None;
            }
            step = &step + &rest;
        }
    }
    Some(step)
}

/// The variables that are divided, with the divisor.
fn divisors(p: &Poly, out: &mut Vec<(usize, Poly)>) {
    for a in p.terms().into_iter().flat_map(|(m, _)| m) {
        match a {
            Atom::Div(x, d) | Atom::Mod(x, d) => {
                out.extend(x.as_var().map(|v| (v, d.clone())));
                divisors(&x, out);
            }
            Atom::Max(x, y) | Atom::Min(x, y) => [x, y].iter().for_each(|p| divisors(p, out)),
            _ => {}
        }
    }
}

/// Whether `a >= b`, where `a` may have multiples of quotients: `c*(x/(c*d))` is at least `x/d - c + 1`.
fn is_at_least(a: &Poly, b: &Poly) -> bool {
    let mut least = Poly::ZERO;
    for (m, c) in a.terms() {
        let whole = m.iter().fold(Poly::constant(c), |t, a| &t * &Poly::atom(a.clone()));
        let part = match &m[..] {
            [Atom::Div(x, d)] => match d.as_const() {
                Some(d) if d > 0 && c > 0 && d % c == 0 => {
                    Some(&x.div(&Poly::constant(d / c), &[]) - &Poly::constant(c - 1))
                }
                Some(d) if d > 0 && c > 0 && c % d == 0 => Some(&(x - &Poly::constant(d - 1)) * (c / d)),
                _ => None,
            },
            _ => None,
        };
        least = &least + &part.unwrap_or(whole);
    }
    (a - b).proves_nonneg(&[]) || (&least - b).proves_nonneg(&[])
}
