//! Proofs that kernels stay inside of their tensors.
//!
//! [`bounds`] shows of each load and store, for each axis of the tensor, that the position is at least 0 and below the extent wherever
//! the statement is executed and the guards hold, for all values of symbols. These are sizes: they are not negative, and neither are the
//! extents of tensors. It uses that the variable of a loop is below its extent; the conditions of guards, branches and loops; and the
//! range of named values and registers. [`wgfc_ir::bounds`] searches for the proof. Where there is none, a point at which the position
//! is outside is looked for.

pub(crate) mod values;
mod witness;

pub use witness::Witness;

use crate::text::statement;
use crate::{Expr, For, Kernel, Space, Stmt, TensorId};
use rustc_hash::FxHashMap;
use std::fmt;
use values::Table;
use wgfc_ir::bounds::{Access, Facts, Known, Prover, STEPS, Worlds, expanded, hidden};
use wgfc_ir::{Atom, Dim, Poly};

/// An access that is not proven to be inside of its tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The name of the tensor.
    pub tensor: String,
    /// The statement.
    pub statement: String,
    /// The axis.
    pub axis: usize,
    /// The position along the axis.
    pub position: String,
    /// The extent of the axis.
    pub extent: String,
    /// A point at which the position is outside, if one was found.
    pub witness: Option<Witness>,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outside { tensor, statement, axis, position, extent, witness } = self;
        match witness {
            Some(w) => write!(
                f,
                "`{statement}`: position {} along axis {axis} of `{tensor}`, whose extent is {}{w}",
                w.position, w.extent
            ),
            None => write!(
                f,
                "`{statement}`: position {position} along axis {axis} of `{tensor}` is not proven to be below {extent} and not negative"
            ),
        }
    }
}

/// A position along an axis at one place of the kernel.
struct Place {
    statement: String,
    tensor: TensorId,
    axis: usize,
    at: Poly,
    /// Conditions that are true, or false, there.
    conditions: Vec<(u32, bool)>,
    /// The number of loops in [`Accesses::loops`] that are around it.
    around: Vec<usize>,
    /// Whether a loop around it ends by a condition.
    ends: bool,
}

/// The accesses that are not proven to be inside of their tensors, where these facts about symbols hold; none if all are.
///
/// ```
/// use wgfc_ir::bounds::Facts;
/// let kernel = |extent: &str| wgfc_loops::text::parse(&format!("kernel
///   x: f32[n] storage read
///   y: f32[n] storage write
///   for i in 0..(n + 63)/64 grid
///     for j in 0..64 invocation
///       y[64*i + j] = x[64*i + j] if index(64*i + j) < index({extent})
/// ")).unwrap();
/// assert_eq!(wgfc_loops::bounds(&kernel("n"), &Facts::default()), []);
/// let outside = wgfc_loops::bounds(&kernel("n + 1"), &Facts::default());
/// assert_eq!(
///     outside[0].to_string(),
///     "`y[64*i + j] = x[64*i + j] if index(64*i + j) < index(n + 1)`: position 1 along axis 0 of `x`, whose extent is 1, \
///      where n = 1, i = 0, j = 1"
/// );
/// ```
pub fn bounds(kernel: &Kernel, facts: &Facts) -> Vec<Outside> {
    let mut walk = Accesses { kernel, table: Table::new(kernel), places: vec![] };
    walk.block(&kernel.body, &[], &[], false);
    let Accesses { mut table, places, .. } = walk;
    table.finish(kernel);
    let table = &table;

    // A loop over a negative number of points has none.
    let counts: Vec<Dim> =
        super::steps::domain(kernel).iter().map(|e| positive(&expanded(table, e))).collect();
    let mut all = vec![];
    kernel.indices(&mut |p| all.push(p.clone()));
    let shapes: Vec<&Dim> = kernel
        .tensors
        .iter()
        .filter(|t| matches!(t.space, Space::Storage(_)))
        .flat_map(|t| &t.shape)
        .collect();
    let hidden = hidden(&all);
    let mut prover = Prover::new(facts, STEPS);
    let mut worlds: FxHashMap<Vec<usize>, (Worlds, Known)> = FxHashMap::default();
    let mut out: Vec<Outside> = vec![];
    for p in &places {
        if p.around.iter().any(|v| counts[*v].as_const().is_some_and(|n| n < 1)) {
            continue;
        }
        let tensor = &kernel.tensors[p.tensor];
        let extent = &tensor.shape[p.axis];
        let plain = |v: &&usize| counts[**v].vars().is_empty() && counts[**v].data().is_empty();
        // Each loop around has a point.
        let mut nonneg = vec![];
        for v in &p.around {
            at_least_one(&counts[*v], &mut nonneg);
        }
        let (worlds, ranges) = worlds.entry(p.around.clone()).or_default();
        let access = Access {
            values: table,
            ranges,
            extents: &counts,
            vars: p.around.iter().filter(plain).copied().collect(),
            shapes: &shapes,
            at: &p.at,
            conditions: &p.conditions,
            nonneg: &nonneg,
            elements: extent,
        };
        if prover.proves(&access, 0, worlds, &|| hidden.clone()) {
            continue;
        }
        let named = |p: &Poly| p.named(&|a| kernel.name_of(a)).to_string();
        let known = out.iter().any(|o| {
            o.statement == p.statement
                && o.axis == p.axis
                && o.tensor == *tensor.name
                && o.position == named(&p.at)
        });
        if !known {
            out.push(Outside {
                tensor: tensor.name.to_string(),
                statement: p.statement.clone(),
                axis: p.axis,
                position: named(&p.at),
                extent: named(extent),
                witness: witness::find(kernel, table, p, facts),
            });
        }
    }
    out
}

/// A number of points that is positive where `e` is: without a maximum with what is not positive.
fn positive(e: &Poly) -> Poly {
    match e.as_atom() {
        Some(Atom::Max(a, b)) if b.as_const().is_some_and(|c| c <= 0) => positive(a),
        Some(Atom::Max(a, b)) if a.as_const().is_some_and(|c| c <= 0) => positive(b),
        _ => e.clone(),
    }
}

/// The expressions that are not negative where `e` is at least 1.
fn at_least_one(e: &Poly, out: &mut Vec<Poly>) {
    match e.as_atom() {
        Some(Atom::Min(a, b)) => [a, b].into_iter().for_each(|p| at_least_one(&positive(p), out)),
        Some(Atom::Div(a, d)) if d.as_const().is_some_and(|d| d > 0) => positive_factors(&(a - d), out),
        _ => positive_factors(&(e - &Poly::ONE), out),
    }
}

/// `e`, which is not negative, and that the sizes of a product are positive of which only a positive number is taken away.
fn positive_factors(e: &Poly, out: &mut Vec<Poly>) {
    let positive = |a: &Atom| matches!(a, Atom::Sym(_));
    match &e.terms()[..] {
        [(m, 1..), (none, ..=-1)] | [(none, ..=-1), (m, 1..)]
            if none.is_empty() && m.iter().all(positive) =>
        {
            out.extend(m.iter().map(|a| &Poly::atom(a.clone()) - &Poly::ONE));
        }
        _ => {}
    }
    if e.as_const().is_none() && !out.contains(e) {
        out.push(e.clone());
    }
}

struct Accesses<'k> {
    kernel: &'k Kernel,
    table: Table,
    places: Vec<Place>,
}

impl Accesses<'_> {
    fn block(&mut self, body: &[Stmt], around: &[usize], conditions: &[(u32, bool)], ends: bool) {
        for s in body {
            match s {
                Stmt::For(l) => self.repeat(s, l, around, conditions, ends),
                Stmt::If { condition, then, otherwise } => {
                    let c = self.expr(s, condition, around, conditions, ends);
                    for (body, truth) in [(then, true), (otherwise, false)] {
                        let own = [conditions, &[(c, truth)]].concat();
                        self.block(body, around, &own, ends);
                    }
                }
                Stmt::Let { value, expr } => {
                    let e = self.expr(s, expr, around, conditions, ends);
                    self.table.name(*value, e);
                }
                Stmt::Store(store) => {
                    let mut own = conditions.to_vec();
                    if let Some(g) = &store.guard {
                        own.push((self.expr(s, g, around, conditions, ends), true));
                    }
                    let e = self.expr(s, &store.value, around, &own, ends);
                    self.table.stored(store, e, around);
                    self.access(s, store.tensor, &store.at, around, &own, ends);
                }
                Stmt::Barrier { .. } => {}
            }
        }
    }

    fn repeat(&mut self, s: &Stmt, l: &For, around: &[usize], conditions: &[(u32, bool)], ends: bool) {
        let inside = [around, &[l.var]].concat();
        let mut own = conditions.to_vec();
        if let Some(c) = &l.condition {
            own.push((self.expr(s, c, &inside, conditions, true), true));
        }
        self.block(&l.body, &inside, &own, ends || l.condition.is_some());
    }

    /// The number of an expression, whose loads are added.
    fn expr(&mut self, s: &Stmt, e: &Expr, around: &[usize], conditions: &[(u32, bool)], ends: bool) -> u32 {
        if let Expr::Load { tensor, at, guard } = e {
            let mut own = conditions.to_vec();
            if let Some(g) = guard {
                own.push((self.expr(s, g, around, conditions, ends), true));
            }
            self.access(s, *tensor, at, around, &own, ends);
        }
        let loads = matches!(e, Expr::Load { .. });
        let operands: Vec<u32> = match loads {
            true => vec![],
            false => e.operands().into_iter().map(|e| self.expr(s, e, around, conditions, ends)).collect(),
        };
        self.table.add(self.kernel, e, &operands)
    }

    fn access(
        &mut self,
        s: &Stmt,
        tensor: TensorId,
        at: &[Poly],
        around: &[usize],
        conditions: &[(u32, bool)],
        ends: bool,
    ) {
        let axes = self.kernel.tensors.get(tensor).map_or(0, |t| t.shape.len());
        for (axis, p) in at.iter().take(axes).enumerate() {
            self.places.push(Place {
                statement: statement(self.kernel, s),
                tensor,
                axis,
                at: p.clone(),
                conditions: conditions.to_vec(),
                around: around.to_vec(),
                ends,
            });
        }
    }
}
