//! Points at which a position is outside of its tensor.

use super::Place;
use super::values::{Form, Table};
use crate::{Kernel, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use wgfc_ir::bounds::{Facts, Values};
use wgfc_ir::{Atom, BinaryOp, DType, Poly, UnaryOp};

/// The most points that are looked at.
const MOST: usize = 100_000;

/// The sizes that are tried.
const SIZES: [i64; 12] = [1, 2, 3, 5, 4, 7, 8, 9, 16, 17, 33, 64];

/// A point at which a position is outside of its tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The values of symbols.
    pub symbols: Vec<(Name, i64)>,
    /// The values of the variables of the loops around the access.
    pub point: Vec<(Name, i64)>,
    /// The position.
    pub position: i64,
    /// The extent of the axis.
    pub extent: i64,
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> =
            self.symbols.iter().chain(&self.point).map(|(n, v)| format!("{n} = {v}")).collect();
        if all.is_empty() { Ok(()) } else { write!(f, ", where {}", all.join(", ")) }
    }
}

struct Search<'a> {
    kernel: &'a Kernel,
    table: &'a Table,
    place: &'a Place,
    extents: Vec<Poly>,
    symbols: BTreeMap<Name, i64>,
    vars: Vec<i64>,
    left: usize,
}

/// A point at which all conditions hold and the position is outside, among small sizes and the ends of loops.
pub(super) fn find(kernel: &Kernel, table: &Table, place: &Place, facts: &Facts) -> Option<Witness> {
    // A loop that ends by a condition may not reach the point.
    if place.ends {
        return None;
    }
    let extents = crate::steps::domain(kernel);
    let mut names: BTreeSet<Name> = BTreeSet::new();
    names.extend(place.at.symbols());
    names.extend(kernel.tensors[place.tensor].shape[place.axis].symbols());
    names.extend(place.around.iter().flat_map(|v| extents[*v].symbols()));
    let of_facts = facts.nonneg.iter().chain(facts.equal.iter().flat_map(|(a, b)| [a, b]));
    names.extend(of_facts.flat_map(Poly::symbols));
    let mut seen = BTreeSet::new();
    let read = place.at.data().into_iter().chain(place.around.iter().flat_map(|v| extents[*v].data()));
    for e in place.conditions.iter().map(|c| c.0).chain(read) {
        table.symbols(e, &mut seen, &mut names);
    }
    let vars = vec![0; kernel.vars.len()];
    let mut search = Search { kernel, table, place, extents, symbols: BTreeMap::new(), vars, left: MOST };
    let names: Vec<Name> = names.into_iter().collect();
    // All sizes alike, then each from the list in turn.
    let mut state = 1u64;
    for turn in 0..400 {
        for (i, n) in names.iter().enumerate() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let size = match turn {
                0..12 => SIZES[turn],
                12..24 => SIZES[(turn + 5 * i) % SIZES.len()],
                _ => SIZES[(state >> 33) as usize % SIZES.len()],
            };
            search.symbols.insert(n.clone(), size);
        }
        let value = |p: &Poly| p.eval_syms(&|s| search.symbols.get(s).copied());
        let holds = facts.nonneg.iter().all(|p| value(p).is_some_and(|v| v >= 0))
            && facts.equal.iter().all(|(a, b)| value(a).is_some() && value(a) == value(b))
            && kernel.tensors.iter().flat_map(|t| &t.shape).all(|d| value(d).is_none_or(|v| v >= 0));
        if holds && let Some(w) = search.point(0) {
            return Some(w);
        }
        if names.is_empty() || search.left == 0 {
            return None;
        }
    }
    None
}

impl Search<'_> {
    /// Looks at the ends of the loops around from the `depth`th on.
    fn point(&mut self, depth: usize) -> Option<Witness> {
        let Some(v) = self.place.around.get(depth).copied() else { return self.outside() };
        let n = self.index(&self.extents[v])?;
        let mut tried = BTreeSet::new();
        for i in [0, n - 1, 1, n - 2, n / 2, 2] {
            if (0..n).contains(&i) && tried.insert(i) && self.left > 0 {
                self.vars[v] = i;
                if let Some(w) = self.point(depth + 1) {
                    return Some(w);
                }
            }
        }
        None
    }

    fn outside(&mut self) -> Option<Witness> {
        self.left -= 1;
        if !self.place.conditions.iter().all(|(e, truth)| self.value(*e, 0) == Some(i64::from(*truth))) {
            return None;
        }
        let extent = self.index(&self.kernel.tensors[self.place.tensor].shape[self.place.axis])?;
        let position = self.index(&self.place.at).filter(|p| !(0..extent).contains(p))?;
        let symbols = self.symbols.iter().map(|(n, v)| (n.clone(), *v)).collect();
        let name = |v: &usize| (self.kernel.vars[*v].clone(), self.vars[*v]);
        Some(Witness { symbols, point: self.place.around.iter().map(name).collect(), position, extent })
    }

    fn index(&self, p: &Poly) -> Option<i64> {
        self.index_at(p, 0)
    }

    fn index_at(&self, p: &Poly, depth: usize) -> Option<i64> {
        p.eval(&|a| match a {
            Atom::Sym(s) => self.symbols.get(s).copied(),
            Atom::Var(v) => self.vars.get(*v as usize).copied(),
            Atom::Data(e) => self.value(*e, depth + 1),
            _ => None,
        })
    }

    /// The value of an integer or bool expression, if it follows from positions.
    fn value(&self, e: u32, depth: usize) -> Option<i64> {
        if depth > 64 {
            return None;
        }
        let of = |e: u32| self.value(e, depth + 1);
        let dtype = self.table.dtype(e);
        let fits = |v: i64| (dtype == DType::Bool || i32::try_from(v).is_ok()).then_some(v);
        fits(match *self.table.form(e) {
            Form::Index(ref p) => self.index_at(p, depth)?,
            Form::Const(s) if s.dtype == DType::Bool => i64::from(s.bits != 0),
            Form::Const(s) if s.dtype.is_int() => s.as_i64(),
            Form::Cast(DType::I32 | DType::I64, a)
                if self.table.dtype(a).is_int() || self.table.dtype(a) == DType::Bool =>
            {
                of(a)?
            }
            Form::Select(c, a, b) => of(if of(c)? != 0 { a } else { b })?,
            Form::Unary(UnaryOp::Not, a) if dtype == DType::Bool => 1 - of(a)?,
            Form::Binary(op, a, b) => {
                let bools = self.table.dtype(a) == DType::Bool;
                if !bools && !matches!(self.table.dtype(a), DType::I32 | DType::I64) {
                    return None;
                }
                let (x, y) = (of(a)?, of(b)?);
                match op {
                    BinaryOp::And if bools => x & y,
                    BinaryOp::Or if bools => x | y,
                    BinaryOp::Lt => i64::from(x < y),
                    BinaryOp::Le => i64::from(x <= y),
                    BinaryOp::Gt => i64::from(x > y),
                    BinaryOp::Ge => i64::from(x >= y),
                    BinaryOp::Eq => i64::from(x == y),
                    BinaryOp::Ne => i64::from(x != y),
                    BinaryOp::Min => x.min(y),
                    BinaryOp::Max => x.max(y),
                    BinaryOp::Add if !bools => x.checked_add(y)?,
                    BinaryOp::Sub if !bools => x.checked_sub(y)?,
                    BinaryOp::Mul if !bools => x.checked_mul(y)?,
                    _ => return None,
                }
            }
            _ => return None,
        })
    }
}
