//! Rows in steps of several positions.
//!
//! Position `%1` becomes `width · %1 + i`: reductions and element stores are then `width` neighbours
//! each, and what they read and write is vectors. It is done where everything along the row is whole
//! vectors: what is left in single elements would be read with gaps between neighbouring invocations.

use crate::Diagnostic;
use crate::kernel::bindings::{Bindings, neighbours};
use crate::kernel::dependence::{Dependence, var_bit};
use crate::kernel::length::{self, MOST_INSTRUCTIONS};
use crate::kernel::substitute::{moved, substitute};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, ReduceKind, Row, Store, TensorId};
use crate::schedule::Context;
use wgfc_ir::{Dim, Poly};

/// Positions of a step, the preferred first.
const WIDTHS: [u32; 2] = [4, 2];
/// Expressions of a position beyond which registers are scarce.
const MOST_EXPRESSIONS: usize = 48;

/// A row kernel that makes `width` positions a step.
pub struct Unrolled {
    /// `%1` is the step. Reductions and element stores are those of the first one's positions, of the second one's, ….
    pub kernel: Kernel,
    /// Positions of a step.
    pub width: u32,
    /// Steps of a row.
    pub len: Dim,
    /// The tensors that are read and written as vectors.
    pub vectors: Vec<TensorId>,
}

impl Unrolled {
    /// The widest steps that suit the kernel.
    pub(super) fn widest(kernel: &Kernel, cx: &Context) -> Result<Unrolled, Diagnostic> {
        let bindings = Bindings::of(kernel, cx.graph, cx.device.f16, false)?;
        let roots = kernel.roots();
        if kernel.body.reachable(&roots).len() <= MOST_EXPRESSIONS {
            let instructions = length::of(&kernel.body, &roots);
            let short = |width: &u32| instructions.saturating_mul(*width as usize) <= MOST_INSTRUCTIONS;
            for width in WIDTHS.into_iter().filter(short) {
                let Some(unrolled) = Unrolled::by(kernel, width) else { continue };
                let mut own = bindings.clone();
                if unrolled.vectors.iter().all(|t| own.declare_vectors(cx.graph, *t, width)) {
                    return Ok(unrolled);
                }
            }
        }
        Unrolled::single(kernel)
    }

    fn single(kernel: &Kernel) -> Result<Unrolled, Diagnostic> {
        let Family::Row(Row { len, .. }) = &kernel.family else {
            return Err(Diagnostic::internal("not a row kernel"));
        };
        Ok(Unrolled { kernel: kernel.clone(), width: 1, len: len.clone(), vectors: vec![] })
    }

    /// The kernel in steps of `width` positions.
    ///
    /// # Errors
    /// `Internal` where that is not possible.
    pub fn new(kernel: &Kernel, width: u32) -> Result<Unrolled, Diagnostic> {
        match width {
            1 => Unrolled::single(kernel),
            _ => Unrolled::by(kernel, width)
                .ok_or_else(|| Diagnostic::internal(format!("a row kernel does not go in steps of {width}"))),
        }
    }

    fn by(from: &Kernel, width: u32) -> Option<Unrolled> {
        let deps = Dependence::of(from);
        let Family::Row(Row { rows, len, .. }) = &from.family else { return None };
        let by = Poly::from(i64::from(width));
        if !len.modulo(&by, &[]).is(0) {
            return None;
        }
        let domain = [rows.clone(), len.div(&by, &[])];
        let roots = from.roots();
        let (mut body, mut copies) = (Body::default(), vec![]);
        for i in 0..i64::from(width) {
            let vars = [Poly::var(0), &(&Poly::var(1) * &by) + &i.into()];
            let ids = substitute(&from.body, &mut body, &roots, &vars, &domain);
            copies.push((vars, ids));
        }
        let of = |i: usize, id: ExprId| copies.get(i)?.1.get(id as usize).copied().flatten();

        let mut vectors = vec![];
        for id in from.body.reachable(&roots) {
            let Expr::Load { tensor, .. } = from.body.expr(id) else { continue };
            if deps.expr(id) & var_bit(1) == 0 {
                continue;
            }
            let mut loads = vec![];
            for i in 0..width as usize {
                let Expr::Load { offset, guard, .. } = body.expr(of(i, id)?) else { return None };
                loads.push((offset, *guard));
            }
            // One element for all positions.
            if loads.iter().all(|l| *l == loads[0]) {
                continue;
            }
            if loads.iter().any(|l| l.1 != loads[0].1) || !neighbours(loads.iter().map(|l| l.0)) {
                return None;
            }
            vectors.push(*tensor);
        }
        let store = |s: &Store, i: usize| {
            if s.combine.is_some() {
                return None;
            }
            let (vars, ids) = copies.get(i)?;
            let guard = match s.guard {
                Some(g) => Some(of(i, g)?),
                None => None,
            };
            let offset = moved(&s.offset, ids, vars, &domain);
            Some(Store { tensor: s.tensor, offset, value: of(i, s.value)?, guard, combine: None })
        };
        let mut new = from.clone();
        let reads = from.reads();
        new.stores = vec![];
        for s in &from.stores {
            let made = (0..width as usize).map(|i| store(s, i)).collect::<Option<Vec<Store>>>()?;
            if made.iter().any(|n| n.guard != made[0].guard)
                || !neighbours(made.iter().map(|n| &n.offset))
                || reads.contains(&s.tensor)
            {
                return None;
            }
            vectors.push(s.tensor);
            new.stores.extend(made);
        }
        let Family::Row(Row { reductions, row_stores, len, .. }) = &mut new.family else { return None };
        if row_stores.iter().any(|s| vectors.contains(&s.tensor)) || vectors.is_empty() {
            return None;
        }
        *row_stores = row_stores.iter().map(|s| store(s, 0)).collect::<Option<Vec<Store>>>()?;
        let mut all = vec![];
        for r in reductions.iter() {
            for i in 0..width as usize {
                let mut r = r.clone();
                r.value = of(i, r.value)?;
                if let ReduceKind::Last { when, init } = r.kind {
                    r.kind = ReduceKind::Last { when: of(i, when)?, init: of(i, init)? };
                }
                all.push(r);
            }
        }
        *reductions = all;
        *len = domain[1].clone();
        let len = len.clone();
        new.body = body;
        vectors.sort_unstable();
        vectors.dedup();
        Some(Unrolled { kernel: new, width, len, vectors })
    }
}
