//! Caches in pages.

use crate::lower::{Lowering, Result};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp as B, DType, Dim, Op, Poly, ScalarFn, ScalarNode as N, Value};

/// The places of positions in a pool of pages, `[pages, heads, page, head]`.
pub(super) struct Paging {
    /// The positions of a page.
    pub size: i64,
    /// The pages of each sequence, i32 `[batch, blocks]`.
    table: Value,
    /// The page of each new position, i32 `[batch, seq]`, and its place there.
    page: Value,
    place: Value,
    /// The first new position of each sequence, i32 `[batch, 1, 1, 1]`.
    pub start: Value,
}

impl Paging {
    /// The places of `positions`, integers `[batch, seq]`, which follow each other in each sequence.
    pub fn new(cx: &mut Lowering, size: i64, positions: Value, table: Value) -> Result<Paging> {
        let shape = cx.shape(positions);
        let positions = cx.cast(positions, DType::I32)?;
        let first = vec![shape[0].clone(), Dim::ONE, Dim::ONE, Dim::ONE];
        let start = cx.view(positions, first, vec![Poly::var(0), Poly::ZERO])?;
        let pages = cx.int(DType::I32, size);
        let block = cx.binary(B::Div, positions, pages)?;
        let mut f = ScalarFn::default();
        let (position, block_arg) = (f.push(N::Arg(0)), f.push(N::Arg(1)));
        let size_const = f.push(N::Const(wgfc_ir::Scalar::from_i64(DType::I32, size)));
        let begin = f.push(N::Binary(B::Mul, block_arg, size_const));
        f.push(N::Binary(B::Sub, position, begin));
        let place = cx.map_to(f, &[positions, block], shape.clone())?;
        let each = vec![Poly::var(0), Poly::var(1)];
        let index = vec![GatherAxis::Affine(Poly::var(0)), GatherAxis::Data { input: 1, at: each }];
        let page = cx.push(Op::Gather { shape, index }, &[table, block])?;
        Ok(Paging { size, table, page, place, start })
    }

    /// The pool with `new`, `[batch, heads, seq, head]`, in the places of the new positions.
    pub fn written(&self, cx: &mut Lowering, pool: Value, new: Value) -> Result {
        let at = || vec![Poly::var(0), Poly::var(2)];
        let index = vec![
            GatherAxis::Data { input: 2, at: at() },
            GatherAxis::Affine(Poly::var(1)),
            GatherAxis::Data { input: 3, at: at() },
            GatherAxis::Affine(Poly::var(3)),
        ];
        Ok(cx.push(Op::Scatter { reduce: None, index }, &[pool, new, self.page, self.place])?)
    }

    /// The first `total` positions of each sequence, `[batch, heads, total, head]`.
    pub fn read(&self, cx: &mut Lowering, pool: Value, total: &Dim) -> Result {
        let batch = cx.shape(self.table)[0].clone();
        let of_pool = cx.shape(pool);
        let shape = vec![batch, of_pool[1].clone(), total.clone(), of_pool[3].clone()];
        let size = Dim::from(self.size);
        let (block, place) = (Poly::var(2).div(&size, &shape), Poly::var(2).modulo(&size, &shape));
        let index = vec![
            GatherAxis::Data { input: 1, at: vec![Poly::var(0), block] },
            GatherAxis::Affine(Poly::var(1)),
            GatherAxis::Affine(place),
            GatherAxis::Affine(Poly::var(3)),
        ];
        Ok(cx.push(Op::Gather { shape, index }, &[pool, self.table])?)
    }
}
