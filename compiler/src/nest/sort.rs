//! Sorts: each key at the place of its rank.

use super::builder::Builder;
use crate::kernel::Sort;
use wgfc_ir::{Atom, BinaryOp, DType, Poly, ReduceOp, Scalar};
use wgfc_loops::{Expr, Stmt};

/// The place of a key in its part is the number of keys that come before it: those that are less, and equal ones at earlier positions.
pub(super) fn sort(b: &mut Builder, k: &Sort) -> Result<Vec<Stmt>, String> {
    let row = b.open(0, "row");
    let part = b.out.add_var("part");
    let (own, rank) = (b.register("own", DType::U64), b.register("rank", DType::I32));
    let start = &Poly::var(part) * &Poly::from(k.part);
    let rest = (&k.len - &start).min_of(&Poly::from(k.part), &[]);

    let position = b.out.add_var("k");
    b.assign(1, &start + &Poly::var(position));
    let mut inside = vec![];
    let key = key(b, k, &mut inside)?;
    inside.push(b.set(own, key));
    inside.push(b.set(rank, Expr::Const(Scalar::from_i64(DType::I32, 0))));
    let other = b.out.add_var("other");
    b.assign(1, &start + &Poly::var(other));
    let mut each = vec![];
    let key = Expr::Value({
        let key = self::key(b, k, &mut each)?;
        b.name("key", key, &mut each)?
    });
    let less = Expr::binary(BinaryOp::Lt, key.clone(), Expr::load(own, vec![]));
    let equal = Expr::binary(BinaryOp::Eq, key, Expr::load(own, vec![]));
    let earlier = Expr::compare(BinaryOp::Lt, Poly::var(other), Poly::var(position));
    let before = Expr::binary(BinaryOp::Or, less, Expr::binary(BinaryOp::And, equal, earlier));
    each.push(b.combine(rank, ReduceOp::Sum, Expr::cast(DType::I32, before)));
    inside.push(b.repeat(other, &rest, each));

    let first = &Poly::var(part) * &Poly::from(k.keep);
    let place = b.name("place", Expr::load(rank, vec![]), &mut inside)?;
    let place = Poly::atom(Atom::Data(place));
    // There are fewer keys before one than the part has.
    let condition = Expr::compare(BinaryOp::Lt, place.clone(), rest.min_of(&Poly::from(k.keep), &[]));
    let then = place_key(b, &(&first + &place), Expr::load(own, vec![]))?;
    inside.push(Stmt::If { condition, then, otherwise: vec![] });
    let mut parts = vec![b.repeat(position, &rest, inside)];
    if k.keep < k.part {
        // Places that a part has no key for.
        let lacking = b.out.add_var("lacking");
        let greatest = Expr::Const(ReduceOp::Min.identity(DType::U64));
        let fill = place_key(b, &(&(&first + &rest) + &Poly::var(lacking)), greatest)?;
        parts.push(b.repeat(lacking, &(&Poly::from(k.keep) - &rest).max_of(&Poly::ZERO, &[]), fill));
    }
    let parts = b.parallel(part, &k.len.ceil_div(k.part), parts);
    Ok(vec![b.parallel(row, &k.rows, vec![parts])])
}

/// The key at the position that variable 1 of the kernel has.
fn key(b: &mut Builder, k: &Sort, to: &mut Vec<Stmt>) -> Result<Expr, String> {
    b.values(&[k.key], to)?.pop().ok_or_else(|| "a sort without keys".into())
}

/// The stores of a place with its key.
fn place_key(b: &mut Builder, place: &Poly, key: Expr) -> Result<Vec<Stmt>, String> {
    b.assign(2, place.clone());
    b.accs.insert(0, key);
    let mut out = vec![];
    b.stores(&b.kernel.stores, &mut out)?;
    Ok(out)
}
