//! Reductions and prefix scans.

use super::builder::Builder;
use crate::kernel::{PrefixScan, ReduceKind, Reduction, Row};
use wgfc_ir::{BinaryOp, Poly, ReduceOp, Scalar, UnaryOp};
use wgfc_loops::{Expr, Stmt, Store};

/// The registers of a reduction under way.
pub(super) struct Running<'r> {
    reduction: &'r Reduction,
    /// The combined value, or the best or last one.
    acc: usize,
    /// The position of the best value.
    at: Option<usize>,
}

impl<'r> Running<'r> {
    /// Begins a reduction.
    pub(super) fn begin(
        b: &mut Builder,
        r: &'r Reduction,
        to: &mut Vec<Stmt>,
    ) -> Result<Running<'r>, String> {
        let dtype = b.kernel.body.dtype(r.value);
        let (acc, at, first) = match r.kind {
            ReduceKind::Arg { .. } => {
                let (best, at) = (b.register("best", dtype), b.register("at", r.dtype));
                to.push(b.set(at, Expr::Const(Scalar::from_i64(r.dtype, -1))));
                (best, Some(at), Expr::Const(Scalar { dtype, bits: 0 }))
            }
            ReduceKind::Last { init, .. } => {
                let first = b.values(&[init], to)?.pop().ok_or("a reduction without a first value")?;
                (b.register("acc", r.dtype), None, first)
            }
            kind => {
                let op = kind.operation().unwrap_or(ReduceOp::Sum);
                (b.register("acc", r.dtype), None, Expr::Const(op.identity(r.dtype)))
            }
        };
        to.push(b.set(acc, first));
        Ok(Running { reduction: r, acc, at })
    }

    /// Takes in the value at a position.
    pub(super) fn take(&self, b: &mut Builder, position: &Poly, to: &mut Vec<Stmt>) -> Result<(), String> {
        let r = self.reduction;
        let mut values =
            b.values(&r.roots()[..if matches!(r.kind, ReduceKind::Last { .. }) { 2 } else { 1 }], to)?;
        let value =
            if values.is_empty() { return Err("a reduction of nothing".into()) } else { values.remove(0) };
        match (r.kind, self.at) {
            (ReduceKind::Arg { largest, last }, Some(at)) => {
                let dtype = b.kernel.body.dtype(r.value);
                let value = Expr::Value(b.name("value", value, to)?);
                let (best, place) = (Expr::load(self.acc, vec![]), Expr::load(at, vec![]));
                let or = |x, y| Expr::binary(BinaryOp::Or, x, y);
                let and = |x, y| Expr::binary(BinaryOp::And, x, y);
                let op = if largest { BinaryOp::Gt } else { BinaryOp::Lt };
                let mut better = Expr::binary(op, value.clone(), best.clone());
                let mut equal = Expr::binary(BinaryOp::Eq, value.clone(), best.clone());
                if dtype.is_float() {
                    // NaN is better than every number.
                    let nan = |e: &Expr| Expr::unary(UnaryOp::IsNan, e.clone());
                    better = and(or(better, nan(&value)), Expr::unary(UnaryOp::Not, nan(&best)));
                    equal = or(equal, and(nan(&value), nan(&best)));
                }
                let zero = Expr::Const(Scalar::from_i64(r.dtype, 0));
                let mut take = or(Expr::binary(BinaryOp::Lt, place, zero), better);
                if last {
                    take = or(take, equal);
                }
                let take = Expr::Value(b.name("better", take, to)?);
                let here = b.converted(r.dtype, Expr::Index(position.clone()))?;
                for (register, v) in [(self.acc, value), (at, here)] {
                    to.push(Stmt::Store(Store {
                        guard: Some(take.clone()),
                        ..Store::new(register, vec![], v)
                    }));
                }
            }
            (ReduceKind::Last { .. }, _) => {
                let guard = values.pop();
                to.push(Stmt::Store(Store { guard, ..Store::new(self.acc, vec![], value) }));
            }
            (kind, _) => {
                let op = kind.operation().ok_or("a reduction without a position")?;
                let value = b.converted(r.dtype, value)?;
                to.push(b.combine(self.acc, op, value));
            }
        }
        Ok(())
    }

    /// The result.
    pub(super) fn result(&self) -> Expr {
        match self.at {
            Some(at) => {
                let zero = Expr::Const(Scalar::from_i64(self.reduction.dtype, 0));
                Expr::binary(BinaryOp::Max, Expr::load(at, vec![]), zero)
            }
            None => Expr::load(self.acc, vec![]),
        }
    }
}

/// The reductions of a row one after another, then its stores.
pub(super) fn row(b: &mut Builder, k: &Row) -> Result<Vec<Stmt>, String> {
    let row = b.open(0, "row");
    let mut inside = vec![];
    for (i, r) in k.reductions.iter().enumerate() {
        let running = Running::begin(b, r, &mut inside)?;
        let position = b.open(1, "k");
        let mut each = vec![];
        running.take(b, &Poly::var(position), &mut each)?;
        inside.push(b.repeat(position, &k.len, each));
        b.accs.insert(i as u32, running.result());
    }
    b.stores(&k.row_stores, &mut inside)?;
    if !b.kernel.stores.is_empty() {
        let position = b.open(1, "k");
        let mut each = vec![];
        b.stores(&b.kernel.stores, &mut each)?;
        inside.push(b.repeat(position, &k.len, each));
    }
    Ok(vec![b.parallel(row, &k.rows, inside)])
}

/// The positions of a row in order, each of which is stored after or before it is taken in.
pub(super) fn prefix_scan(b: &mut Builder, k: &PrefixScan) -> Result<Vec<Stmt>, String> {
    let row = b.open(0, "row");
    let mut inside = vec![];
    let running = Running::begin(b, &k.reduction, &mut inside)?;
    let position = b.open(1, "k");
    let at = Poly::var(position);
    b.accs.insert(0, running.result());
    let mut each = vec![];
    if k.exclusive {
        // A store may be where a value is read.
        let own = b.register("taken", b.kernel.body.dtype(k.reduction.value));
        let value = b.values(&[k.reduction.value], &mut each)?.pop().ok_or("a scan of nothing")?;
        each.push(b.set(own, value));
        b.stores(&b.kernel.stores, &mut each)?;
        let op = k.reduction.kind.operation().ok_or("an exclusive scan without an operation")?;
        let value = b.converted(k.reduction.dtype, Expr::load(own, vec![]))?;
        each.push(b.combine(running.acc, op, value));
    } else {
        running.take(b, &at, &mut each)?;
        b.stores(&b.kernel.stores, &mut each)?;
    }
    let mut positions = b.repeat(position, &k.len, each);
    if let Stmt::For(l) = &mut positions {
        l.down = k.reverse;
    }
    inside.push(positions);
    Ok(vec![b.parallel(row, &k.rows, inside)])
}
