//! Attention: for each query the greatest score, then the sum of weights, then the weighted sum of values.

use super::builder::Builder;
use crate::kernel::Attention;
use wgfc_ir::{BinaryOp, DType, Poly, ReduceOp, Scalar, UnaryOp};
use wgfc_loops::{Expr, Space, Stmt, Store, Write};

fn f32(v: f64) -> Expr {
    Expr::Const(Scalar::from_f64(DType::F32, v))
}

/// The most elements of a result whose sums are kept at the same time.
const MOST: i64 = 1024;

/// The greatest finite number: scores are between it and its negative, and those that are NaN or infinite are it.
const GREATEST: f64 = f32::MAX as f64;

pub(super) fn attention(b: &mut Builder, k: &Attention) -> Result<Vec<Stmt>, String> {
    let outer = [(0, "batch"), (1, "query"), (5, "part")].map(|(i, name)| b.open(i, name));
    // The keys of a part: all but the last parts have as many.
    let size = (&(&k.t + &k.parts) - 1).div(&k.parts, &[]);
    let start = &Poly::var(outer[2]) * &size;
    let keys = (&k.t - &start).min_of(&size, &[]).max_of(&Poly::ZERO, &[]);
    let (best, total, acc) =
        (b.register("best", DType::F32), b.register("total", DType::F32), b.register("acc", DType::F32));

    let mut inside = vec![b.set(best, f32(-GREATEST))];
    let mut each = vec![];
    let key = key(b, &start);
    let s = score(b, k, &mut each)?;
    each.push(b.combine(best, ReduceOp::Max, s));
    inside.push(b.repeat(key, &keys, each));

    inside.push(b.set(total, f32(0.0)));
    let mut each = vec![];
    let key = self::key(b, &start);
    let s = score(b, k, &mut each)?;
    let p = weight(b, k, s, best, &mut each)?;
    each.push(b.combine(total, ReduceOp::Sum, p));
    inside.push(b.repeat(key, &keys, each));

    // The sums of all elements, where there is a register for each; else each of them by itself.
    let all = k.e.as_const().filter(|n| (0..=MOST).contains(n));
    let sums = all.map(|n| b.out.add_tensor("sums", DType::F32, vec![Poly::from(n)], Space::Register));
    let e = b.open(4, "e");
    let (sum, at) = match sums {
        Some(sums) => (sums, vec![Poly::var(e)]),
        None => (acc, vec![]),
    };
    let first = Stmt::Store(Store::new(sum, at.clone(), f32(0.0)));
    let mut each = vec![];
    let key = self::key(b, &start);
    let s = score(b, k, &mut each)?;
    let p = weight(b, k, s, best, &mut each)?;
    let own = sums.map(|_| b.open(4, "e"));
    let mut term = vec![];
    let value = b.values(&[k.v], &mut term)?.pop().ok_or("attention without values")?;
    let value = b.converted(DType::F32, value)?;
    let to = own.map_or_else(Vec::new, |own| vec![Poly::var(own)]);
    let product = Expr::binary(BinaryOp::Mul, p, value);
    term.push(Stmt::Store(Store { write: Write::Combine(ReduceOp::Sum), ..Store::new(sum, to, product) }));
    let mut element = vec![];
    match own {
        Some(own) => {
            each.push(b.repeat(own, &k.e, term));
            inside.push(b.repeat(e, &k.e, vec![first]));
            inside.push(b.repeat(key, &keys, each));
        }
        None => {
            each.extend(term);
            element.push(first);
            element.push(b.repeat(key, &keys, each));
        }
    }
    let last = if own.is_some() { b.open(4, "e") } else { e };
    let at = own.map_or_else(Vec::new, |_| vec![Poly::var(last)]);
    let (sum, whole) = (Expr::load(sum, at), Expr::load(total, vec![]));
    let result = match k.part_stores.is_empty() {
        true => {
            let none = Expr::binary(BinaryOp::Eq, whole.clone(), f32(0.0));
            Expr::select(none, f32(0.0), Expr::binary(BinaryOp::Div, sum, whole.clone()))
        }
        false => sum,
    };
    b.accs.extend([(0, result), (1, Expr::load(best, vec![])), (2, whole)]);
    b.stores(&b.kernel.stores, &mut element)?;
    inside.push(b.repeat(last, &k.e, element));
    b.stores(&k.part_stores, &mut inside)?;

    let parts = b.parallel(outer[2], &k.parts, inside);
    let queries = b.parallel(outer[1], &k.s, vec![parts]);
    Ok(vec![b.parallel(outer[0], &k.batch, vec![queries])])
}

/// A loop variable for the keys of a part.
fn key(b: &mut Builder, start: &Poly) -> usize {
    let key = b.out.add_var("key");
    b.assign(2, start + &Poly::var(key));
    key
}

/// The score of a key, among finite numbers.
fn score(b: &mut Builder, k: &Attention, to: &mut Vec<Stmt>) -> Result<Expr, String> {
    let sum = b.register("score", DType::F32);
    to.push(b.set(sum, f32(0.0)));
    let d = b.open(3, "d");
    let mut each = vec![];
    let mut both = b.values(&[k.q, k.k], &mut each)?;
    let (Some(key), Some(query)) = (both.pop(), both.pop()) else {
        return Err("attention without keys".into());
    };
    let (query, key) = (b.converted(DType::F32, query)?, b.converted(DType::F32, key)?);
    each.push(b.combine(sum, ReduceOp::Sum, Expr::binary(BinaryOp::Mul, query, key)));
    to.push(b.repeat(d, &k.d, each));
    let mut score = Expr::binary(BinaryOp::Mul, Expr::load(sum, vec![]), f32(f64::from(k.scale)));
    if let Some(mask) = k.mask {
        let mask = b.values(&[mask], to)?.pop().ok_or("a mask without a value")?;
        score = Expr::binary(BinaryOp::Add, score, b.converted(DType::F32, mask)?);
    }
    let score = Expr::Value(b.name("raw", score, to)?);
    let low = Expr::binary(BinaryOp::Max, score.clone(), f32(-GREATEST));
    let clamped = Expr::binary(BinaryOp::Min, low, f32(GREATEST));
    let finite = Expr::select(Expr::unary(UnaryOp::IsNan, score), f32(GREATEST), clamped);
    Ok(Expr::Value(b.name("s", finite, to)?))
}

/// The weight of a score before it is divided by their sum: NaN where the score was infinite or NaN.
fn weight(
    b: &mut Builder,
    k: &Attention,
    score: Expr,
    best: usize,
    to: &mut Vec<Stmt>,
) -> Result<Expr, String> {
    let below = Expr::binary(BinaryOp::Sub, score.clone(), Expr::load(best, vec![]));
    let mut p = Expr::unary(UnaryOp::Exp, Expr::binary(BinaryOp::Max, below, f32(-200.0)));
    if k.empty_is_zero {
        let seen = Expr::binary(BinaryOp::Gt, score.clone(), f32(-GREATEST));
        p = Expr::select(seen, p, f32(0.0));
    }
    let infinite = Expr::binary(BinaryOp::Ge, score, f32(GREATEST));
    let p = Expr::select(infinite, f32(f64::NAN), p);
    Ok(Expr::Value(b.name("p", p, to)?))
}
