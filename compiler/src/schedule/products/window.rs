//! Short sums written out.
//!
//! An invocation makes a block of neighbouring results with all terms of their sums in its text. What several of them read is
//! one expression there and is read once: in a depthwise convolution the windows of neighbours overlap. Comparisons that
//! hold for every position of the block are left out, so that the loads between a row's edges become vectors.

use super::problem::Side;
use crate::kernel::bindings::{component, neighbours};
use crate::kernel::substitute::{K, moved};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, Matmul, Store};
use rustc_hash::FxHashSet;
use wgfc_ir::{BinaryOp, DType, Dim, Poly, Scalar};

/// Terms of a sum that are written out at most.
const MOST_TERMS: i64 = 64;
/// Products that an invocation's text has at most.
const MOST_PRODUCTS: i64 = 640;

/// A block of results of one invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Rows of the block.
    pub rows: u32,
    /// Columns of the block.
    pub cols: u32,
}

/// What an invocation that makes a block evaluates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Rows of the block.
    pub rows: u32,
    /// Columns of the block.
    pub cols: u32,
    /// Loads, vectors counting once.
    pub loads: f64,
    /// Other operations.
    pub operations: f64,
}

/// A product with its sums written out: over the batch, blocks of rows and blocks of columns.
pub struct Written {
    /// The expressions.
    pub body: Body,
    /// For each store of the kernel and row of the block, those of its columns.
    pub stores: Vec<Vec<Store>>,
    /// Whether the columns of each are the elements of a vector.
    pub vectors: Vec<bool>,
}

/// The blocks in which a product with few terms can be written out, with what each evaluates.
pub fn blocks(kernel: &Kernel, x: &Side<'_>, y: &Side<'_>) -> Vec<Work> {
    let Family::Matmul(Matmul { k, .. }) = &kernel.family else { return vec![] };
    let Some(depth) = k.as_const().filter(|k| (1..=MOST_TERMS).contains(k)) else { return vec![] };
    let divides = |d: &Dim, by: i64| d.modulo(&by.into(), &[]).is(0);
    // With many rows, tiles share both operands.
    if x.extent.as_const().is_none_or(|r| r > 8) {
        return vec![];
    }
    let mut all = vec![];
    for cols in [4, 2].into_iter().filter(|c| divides(y.extent, *c)) {
        let fits = |r: &i64| divides(x.extent, *r) && r * cols * depth <= MOST_PRODUCTS;
        let rows = [8, 4, 2, 1].into_iter().find(fits);
        all.extend(rows.map(|r| [r, cols]));
        all.extend(rows.filter(|r| *r > 1).map(|_| [1, cols]));
    }
    all.into_iter().filter_map(|[rows, cols]| work(kernel, x, y, [rows as u32, cols as u32])).collect()
}

fn work(kernel: &Kernel, x: &Side<'_>, y: &Side<'_>, [rows, cols]: [u32; 2]) -> Option<Work> {
    let w = write(kernel, x, y, [rows, cols])?;
    let roots: Vec<ExprId> = w.stores.iter().flatten().flat_map(Store::reads).collect();
    let (mut loads, mut operations) = (FxHashSet::default(), 0.0);
    for id in w.body.reachable(&roots) {
        match w.body.expr(id) {
            Expr::Load { tensor, offset, guard } => {
                let at = component(offset, cols).map_or_else(|| offset.clone(), |(at, _)| at);
                loads.insert((*tensor, at, *guard));
            }
            Expr::Const(_) => {}
            _ => operations += 1.0,
        }
    }
    Some(Work { rows, cols, loads: loads.len() as f64, operations })
}

/// Writes out a product whose numbers of rows and columns are multiples of the block's; `None` where it cannot be.
pub fn write(kernel: &Kernel, x: &Side<'_>, y: &Side<'_>, block: [u32; 2]) -> Option<Written> {
    let Family::Matmul(Matmul { k, b, sums, .. }) = &kernel.family else { return None };
    let depth = k.as_const().filter(|k| (1..=MOST_TERMS).contains(k))?;
    let [rows, cols] = block.map(i64::from);
    if b.len() != 1 || !sums.is_empty() || rows * cols * depth > MOST_PRODUCTS {
        return None;
    }
    let mut domain = kernel.domain();
    for (side, by) in [(x, rows), (y, cols)] {
        let extent = domain.get_mut(side.var)?;
        if by == 0 || !extent.modulo(&by.into(), &[]).is(0) {
            return None;
        }
        *extent = extent.div(&by.into(), &[]);
    }
    let vars = |row: i64, col: i64, term: Option<i64>| {
        let mut vars = [0, 1, 2, 3].map(Poly::var);
        vars[x.var] = &(&vars[x.var] * rows) + &row.into();
        vars[y.var] = &(&vars[y.var] * cols) + &col.into();
        if let Some(k) = term {
            vars[K] = Poly::constant(k);
        }
        vars
    };
    let mut body = Body::default();
    let mut element = |side: &Side<'_>, vars: [Poly; 4]| {
        let ids = written(&kernel.body, &mut body, &[side.root], &vars, &domain, None);
        ids.get(side.root as usize).copied().flatten()
    };
    let (mut xs, mut ys) = (vec![], vec![]);
    for k in 0..depth {
        for r in 0..rows {
            xs.push(element(x, vars(r, 0, Some(k)))?);
        }
        for c in 0..cols {
            ys.push(element(y, vars(0, c, Some(k)))?);
        }
    }
    let mut sum = |r: i64, c: i64| {
        let term = |k: i64| (xs[(k * rows + r) as usize], ys[(k * cols + c) as usize]);
        let product = |body: &mut Body, k| {
            let (x, y) = term(k);
            body.push(Expr::Binary(BinaryOp::Mul, x, y), DType::F32)
        };
        let first = product(&mut body, 0);
        (1..depth).fold(first, |sum, k| {
            let next = product(&mut body, k);
            body.push(Expr::Binary(BinaryOp::Add, sum, next), DType::F32)
        })
    };
    let mut acc = vec![];
    for r in 0..rows {
        for c in 0..cols {
            acc.push(sum(r, c));
        }
    }
    let roots: Vec<ExprId> = kernel.stores.iter().flat_map(Store::reads).collect();
    let mut stores = vec![vec![]; kernel.stores.len() * rows as usize];
    for r in 0..rows {
        for c in 0..cols {
            let vars = vars(r, c, None);
            let acc = acc.get((r * cols + c) as usize).copied();
            let ids = written(&kernel.body, &mut body, &roots, &vars, &domain, acc);
            let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
            for (i, s) in kernel.stores.iter().enumerate() {
                stores[i * rows as usize + r as usize].push(Store {
                    tensor: s.tensor,
                    offset: moved(&s.offset, &ids, &vars, &domain),
                    value: of(s.value),
                    guard: s.guard.map(of),
                    combine: s.combine,
                });
            }
        }
    }
    let read = body.reachable(&stores.iter().flatten().flat_map(Store::reads).collect::<Vec<_>>());
    let reads = |s: &Store| {
        read.iter().any(|id| matches!(body.expr(*id), Expr::Load { tensor, .. } if *tensor == s.tensor))
    };
    let vector = |all: &Vec<Store>| {
        all.iter().all(|s| s.combine.is_none() && s.guard == all[0].guard)
            && neighbours(all.iter().map(|s| &s.offset))
            && !reads(&all[0])
    };
    let vectors = stores.iter().map(vector).collect();
    Some(Written { body, stores, vectors })
}

/// Copies what the roots need into another arena, as `substitute` does, with what comparisons come to.
fn written(
    from: &Body,
    to: &mut Body,
    roots: &[ExprId],
    vars: &[Poly],
    domain: &[Poly],
    acc: Option<ExprId>,
) -> Vec<Option<ExprId>> {
    let mut ids: Vec<Option<ExprId>> = vec![None; from.len()];
    for id in from.reachable(roots) {
        let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
        let dtype = from.dtype(id);
        let new = from.expr(id).mapped(of, |p| moved(p, &ids, vars, domain));
        let flag = |e: ExprId| match to.expr(e) {
            Expr::Const(s) if s.dtype == DType::Bool => Some(s.bits != 0),
            _ => None,
        };
        let done = match &new {
            Expr::Acc(_) => acc,
            Expr::Binary(BinaryOp::And, a, b) => match (flag(*a), flag(*b)) {
                (Some(true), _) | (_, Some(false)) => Some(*b),
                (_, Some(true)) | (Some(false), _) => Some(*a),
                _ => None,
            },
            Expr::Select(c, a, b) => flag(*c).map(|c| if c { *a } else { *b }),
            _ => None,
        };
        let new = match new {
            Expr::Load { tensor, offset, guard: Some(g) } if flag(g) == Some(true) => {
                Expr::Load { tensor, offset, guard: None }
            }
            Expr::Binary(op, a, b) => compared(to, op, a, b, domain)
                .map_or(Expr::Binary(op, a, b), |v| Expr::Const(Scalar::bool(v))),
            e => e,
        };
        ids[id as usize] = Some(done.unwrap_or_else(|| to.push(new, dtype)));
    }
    ids
}

/// What a comparison of index expressions comes to wherever the variables are.
fn compared(body: &Body, op: BinaryOp, a: ExprId, b: ExprId, domain: &[Poly]) -> Option<bool> {
    let index = |e: ExprId| match body.expr(e) {
        Expr::Index(p) => Some(p.clone()),
        Expr::Const(s) if s.dtype.is_int() => Some(Poly::constant(s.as_i64())),
        _ => None,
    };
    let (low, high, strict) = match op {
        BinaryOp::Lt => (index(a)?, index(b)?, true),
        BinaryOp::Le => (index(a)?, index(b)?, false),
        BinaryOp::Gt => (index(b)?, index(a)?, true),
        BinaryOp::Ge => (index(b)?, index(a)?, false),
        _ => return None,
    };
    let distance = &high - &low;
    let known = |p: Poly| p.proves_nonneg(domain);
    if known(&distance - i64::from(strict)) {
        Some(true)
    } else if known(&Poly::constant(-i64::from(!strict)) - &distance) {
        Some(false)
    } else {
        None
    }
}
