//! Simplification of a lane's expressions: facts that hold while the lane is alive, selections between constants, and sums of products
//! that start with their addend.

use crate::kernel::{Body, Expr, ExprId, renumbered};
use rustc_hash::FxHashMap;
use wgfc_ir::{BinaryOp, DType, Dim, Scalar, UnaryOp};

/// The nesting depth of selections that is simplified: a bound on compile time.
const DEPTH: usize = 16;

/// Simplified roots with the same values, given that carried bool `alive` is true.
pub fn tidy(body: &mut Body, roots: &[ExprId], alive: Option<usize>, domain: &[Dim]) -> Vec<ExprId> {
    let mut new: FxHashMap<ExprId, ExprId> = FxHashMap::default();
    let all = body.reachable(roots);
    let mut uses: FxHashMap<ExprId, u32> = FxHashMap::default();
    for e in all.iter().flat_map(|id| body.operands(*id)).chain(roots.iter().copied()) {
        *uses.entry(e).or_default() += 1;
    }
    for id in all {
        let dtype = body.dtype(id);
        if let Some((sum, other)) = bias(body, id, &uses) {
            let of = |x: ExprId| new.get(&x).copied().unwrap_or(x);
            let (sum, other) = (of(sum), of(other));
            let e = begin_with(body, sum, other);
            new.insert(id, e);
            continue;
        }
        let of = |x: ExprId| new.get(&x).copied().unwrap_or(x);
        let e = body.expr(id).mapped(of, |p| renumbered(p, of, domain));
        let e = match e {
            Expr::Acc(a) if Some(a as usize) == alive => constant(body, Scalar::bool(true)),
            e => simpler(body, e, dtype),
        };
        new.insert(id, e);
    }
    roots.iter().map(|r| new.get(r).copied().unwrap_or(*r)).collect()
}

/// The sum and the addend of an addition of a sum of products and another term. With that term first, each addition of the sum has a
/// product as its operand and becomes one fused multiply-add.
fn bias(body: &Body, id: ExprId, uses: &FxHashMap<ExprId, u32>) -> Option<(ExprId, ExprId)> {
    let Expr::Binary(BinaryOp::Add, a, b) = *body.expr(id) else { return None };
    let products = |mut e: ExprId| {
        let mut sum = false;
        while let Expr::Binary(BinaryOp::Add, first, _) = *body.expr(e) {
            if uses.get(&e) != Some(&1) {
                return false;
            }
            (sum, e) = (true, first);
        }
        sum && uses.get(&e) == Some(&1) && matches!(body.expr(e), Expr::Binary(BinaryOp::Mul, ..))
    };
    let plain = |e: ExprId| !matches!(body.expr(e), Expr::Binary(BinaryOp::Add | BinaryOp::Mul, ..));
    if body.dtype(id) != DType::F32 {
        return None;
    }
    match (products(a) && plain(b), products(b) && plain(a)) {
        (true, _) => Some((a, b)),
        (_, true) => Some((b, a)),
        _ => None,
    }
}

/// The sum with `e` added to its first product.
fn begin_with(body: &mut Body, sum: ExprId, e: ExprId) -> ExprId {
    let dtype = body.dtype(sum);
    match *body.expr(sum) {
        Expr::Binary(BinaryOp::Add, first, rest) => {
            let first = begin_with(body, first, e);
            body.push(Expr::Binary(BinaryOp::Add, first, rest), dtype)
        }
        _ => body.push(Expr::Binary(BinaryOp::Add, sum, e), dtype),
    }
}

fn constant(body: &mut Body, s: Scalar) -> ExprId {
    body.push(Expr::Const(s), s.dtype)
}

fn known(body: &Body, e: ExprId) -> Option<Scalar> {
    match body.expr(e) {
        Expr::Const(s) => Some(*s),
        _ => None,
    }
}

fn truth(body: &Body, e: ExprId) -> Option<bool> {
    known(body, e).filter(|s| s.dtype == DType::Bool).map(|s| s.bits != 0)
}

fn simpler(body: &mut Body, e: Expr, dtype: DType) -> ExprId {
    match e {
        Expr::Select(c, a, b) => select(body, c, a, b),
        Expr::Unary(UnaryOp::Not, a) if dtype == DType::Bool => not(body, a),
        Expr::Binary(op, a, b) if dtype == DType::Bool => {
            let bools = body.dtype(a) == DType::Bool;
            match (op, truth(body, a), truth(body, b)) {
                (BinaryOp::And, Some(true), _) | (BinaryOp::Or, Some(false), _) if bools => b,
                (BinaryOp::And, _, Some(true)) | (BinaryOp::Or, _, Some(false)) if bools => a,
                (BinaryOp::And, Some(false), _) | (BinaryOp::Or, Some(true), _) if bools => a,
                (BinaryOp::And, _, Some(false)) | (BinaryOp::Or, _, Some(true)) if bools => b,
                (BinaryOp::Eq | BinaryOp::Ne, ..) => compared(body, op, a, b),
                _ => body.push(Expr::Binary(op, a, b), dtype),
            }
        }
        Expr::Cast(to, a) => {
            let number = |s: Scalar| (s.dtype == DType::Bool || s.dtype.is_int()).then_some(s.as_i64());
            match chosen(body, a, &|_, s| Some(Scalar::from_i64(to, number(s)?)), DEPTH) {
                Some(e) => e,
                None => body.push(Expr::Cast(to, a), dtype),
            }
        }
        e => body.push(e, dtype),
    }
}

/// Simplifies an equality comparison of a constant with a selection between constants.
fn compared(body: &mut Body, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
    let sides = [(a, known(body, b)), (b, known(body, a))];
    for (choice, other) in sides {
        let Some(other) = other.filter(|s| !s.dtype.is_float()) else { continue };
        let same = |_: DType, s: Scalar| Some(Scalar::bool((s.bits == other.bits) == (op == BinaryOp::Eq)));
        if let Some(e) = chosen(body, choice, &same, DEPTH) {
            return e;
        }
    }
    body.push(Expr::Binary(op, a, b), DType::Bool)
}

/// `f` applied to a constant, or to both sides of a selection between constants.
fn chosen(
    body: &mut Body,
    e: ExprId,
    f: &dyn Fn(DType, Scalar) -> Option<Scalar>,
    depth: usize,
) -> Option<ExprId> {
    match *body.expr(e) {
        Expr::Const(s) => {
            let s = f(body.dtype(e), s)?;
            Some(constant(body, s))
        }
        Expr::Select(c, a, b) if depth > 0 => {
            let (a, b) = (chosen(body, a, f, depth - 1)?, chosen(body, b, f, depth - 1)?);
            Some(select(body, c, a, b))
        }
        _ => None,
    }
}

fn select(body: &mut Body, c: ExprId, a: ExprId, b: ExprId) -> ExprId {
    if let Some(c) = truth(body, c) {
        return if c { a } else { b };
    }
    if a == b {
        return a;
    }
    let bool = DType::Bool;
    match (truth(body, a), truth(body, b)) {
        (Some(true), Some(false)) => c,
        (Some(false), Some(true)) => not(body, c),
        (Some(true), None) => body.push(Expr::Binary(BinaryOp::Or, c, b), bool),
        (None, Some(false)) => body.push(Expr::Binary(BinaryOp::And, c, a), bool),
        (Some(false), None) => {
            let c = not(body, c);
            body.push(Expr::Binary(BinaryOp::And, c, b), bool)
        }
        (None, Some(true)) => {
            let c = not(body, c);
            body.push(Expr::Binary(BinaryOp::Or, c, a), bool)
        }
        _ => {
            let dtype = body.dtype(a);
            body.push(Expr::Select(c, a, b), dtype)
        }
    }
}

fn not(body: &mut Body, a: ExprId) -> ExprId {
    if let Some(known) = truth(body, a) {
        return constant(body, Scalar::bool(!known));
    }
    if let Expr::Unary(UnaryOp::Not, inner) = *body.expr(a) {
        return inner;
    }
    body.push(Expr::Unary(UnaryOp::Not, a), DType::Bool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_begins_a_sum_of_products() {
        let mut b = Body::default();
        let [p, q, r, bias] = [0, 1, 2, 3].map(|i| b.push(Expr::Acc(i), DType::F32));
        let mut of = |op, x, y| b.push(Expr::Binary(op, x, y), DType::F32);
        let (pq, qr) = (of(BinaryOp::Mul, p, q), of(BinaryOp::Mul, q, r));
        let sum = of(BinaryOp::Add, pq, qr);
        let all = of(BinaryOp::Add, sum, bias);
        let begun = of(BinaryOp::Add, pq, bias);
        let want = of(BinaryOp::Add, begun, qr);
        assert_eq!(tidy(&mut b, &[all], None, &[]), [want]);
        // A sum that is used elsewhere stays as it is.
        assert_eq!(tidy(&mut b, &[all, sum], None, &[]), [all, sum]);
    }

    #[test]
    fn choices_between_numbers_are_conditions() {
        let mut b = Body::default();
        let [p, q, alive] = [0, 1, 2].map(|i| b.push(Expr::Acc(i), DType::Bool));
        let [zero, one, two] = [0, 1, 2].map(|i| constant(&mut b, Scalar::from_i64(DType::I64, i)));
        let inner = b.push(Expr::Select(q, one, zero), DType::I64);
        let place = b.push(Expr::Select(p, two, inner), DType::I64);
        let is_one = b.push(Expr::Binary(BinaryOp::Eq, place, one), DType::Bool);
        let number = b.push(Expr::Cast(DType::F32, place), DType::F32);
        let kept = b.push(Expr::Select(alive, is_one, p), DType::Bool);
        let got = tidy(&mut b, &[kept, number], Some(2), &[]);
        // q and not p: of the two truth values, the one selected by p is false.
        let not_p = b.push(Expr::Unary(UnaryOp::Not, p), DType::Bool);
        assert_eq!(got[0], b.push(Expr::Binary(BinaryOp::And, not_p, q), DType::Bool));
        let [zero, one, two] = [0, 1, 2].map(|i| constant(&mut b, Scalar::from_i64(DType::F32, i)));
        let inner = b.push(Expr::Select(q, one, zero), DType::F32);
        assert_eq!(got[1], b.push(Expr::Select(p, two, inner), DType::F32));
    }
}
