//! Short sums written out.
//!
//! An invocation makes a block of neighbouring results with all terms of their sums in its text. What several of them read is
//! one expression there and is read once: in a depthwise convolution the windows of neighbours overlap. Comparisons that
//! hold for every position of the block are left out, so that the loads between a row's edges become vectors.

use super::problem::Side;
use crate::kernel::bindings::{component, neighbours};
use crate::kernel::substitute::{K, moved};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, Map, Matmul, ReduceKind, Reduction, Row, Store};
use rustc_hash::{FxHashMap, FxHashSet};
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly, Scalar};

/// Terms of a sum that are written out at most.
const MOST_TERMS: i64 = 64;
/// Positions of a row that are written out in a map at most.
const MOST_WINDOW: i64 = 25;
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

/// The work of an invocation that makes a block.
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
pub fn blocks(kernel: &Kernel, x: &Side<'_>, y: &Side<'_>, known: &mut Known) -> Vec<Work> {
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
    all.into_iter().filter_map(|[rows, cols]| work(kernel, x, y, [rows as u32, cols as u32], known)).collect()
}

fn work(
    kernel: &Kernel,
    x: &Side<'_>,
    y: &Side<'_>,
    [rows, cols]: [u32; 2],
    known: &mut Known,
) -> Option<Work> {
    let block = Block::of(kernel, x, y, [rows, cols])?;
    let w = block.stored(known.sums(&block)?);
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
    let block = Block::of(kernel, x, y, block)?;
    Some(block.stored(block.sums()?))
}

/// The sums of a block, written out.
#[derive(Clone)]
struct Sums {
    body: Body,
    /// Row by row.
    all: Vec<ExprId>,
}

/// The sums of blocks that were written out before: a product that only stores otherwise has the same.
#[derive(Default)]
pub struct Known(FxHashMap<Operands, Option<Sums>>);

/// All that sums depend on.
#[derive(PartialEq, Eq, Hash)]
struct Operands {
    expressions: Vec<(ExprId, Expr)>,
    sides: [(ExprId, usize); 2],
    domain: Vec<Dim>,
    depth: i64,
    extents: [i64; 2],
}

impl Known {
    /// How many were written out.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    fn sums(&mut self, block: &Block<'_>) -> Option<Sums> {
        let sides = [block.x, block.y].map(|s| (s.root, s.var));
        let body = &block.kernel.body;
        let reached = body.reachable(&sides.map(|s| s.0)).into_iter();
        let operands = Operands {
            expressions: reached.map(|e| (e, body.expr(e).clone())).collect(),
            sides,
            domain: block.domain.clone(),
            depth: block.depth,
            extents: [block.rows, block.cols],
        };
        self.0.entry(operands).or_insert_with(|| block.sums()).clone()
    }
}

/// A product and its blocks.
struct Block<'k> {
    kernel: &'k Kernel,
    x: &'k Side<'k>,
    y: &'k Side<'k>,
    /// Extents of the variables, of which two count blocks.
    domain: Vec<Dim>,
    depth: i64,
    rows: i64,
    cols: i64,
}

impl<'k> Block<'k> {
    fn of(kernel: &'k Kernel, x: &'k Side<'_>, y: &'k Side<'_>, block: [u32; 2]) -> Option<Block<'k>> {
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
        Some(Block { kernel, x, y, domain, depth, rows, cols })
    }

    /// The kernel's variables at a row and a column of the block.
    fn vars(&self, row: i64, col: i64, term: Option<i64>) -> [Poly; 4] {
        let mut vars = [0, 1, 2, 3].map(Poly::var);
        vars[self.x.var] = &(&vars[self.x.var] * self.rows) + &row.into();
        vars[self.y.var] = &(&vars[self.y.var] * self.cols) + &col.into();
        if let Some(k) = term {
            vars[K] = Poly::constant(k);
        }
        vars
    }

    fn sums(&self) -> Option<Sums> {
        let Block { rows, cols, depth, .. } = *self;
        let mut body = Body::default();
        let mut element = |side: &Side<'_>, vars: [Poly; 4]| {
            let ids = written(&self.kernel.body, &mut body, &[side.root], &vars, &self.domain, None);
            ids.get(side.root as usize).copied().flatten()
        };
        let (mut xs, mut ys) = (vec![], vec![]);
        for k in 0..depth {
            for r in 0..rows {
                xs.push(element(self.x, self.vars(r, 0, Some(k)))?);
            }
            for c in 0..cols {
                ys.push(element(self.y, self.vars(0, c, Some(k)))?);
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
        let mut all = vec![];
        for r in 0..rows {
            for c in 0..cols {
                all.push(sum(r, c));
            }
        }
        Some(Sums { body, all })
    }

    /// The stores of the block.
    fn stored(&self, Sums { mut body, all }: Sums) -> Written {
        let Block { kernel, rows, cols, .. } = *self;
        let roots: Vec<ExprId> = kernel.stores.iter().flat_map(Store::reads).collect();
        let mut stores = vec![vec![]; kernel.stores.len() * rows as usize];
        for r in 0..rows {
            for c in 0..cols {
                let vars = self.vars(r, c, None);
                let acc = all.get((r * cols + c) as usize).copied();
                let ids = written(&kernel.body, &mut body, &roots, &vars, &self.domain, acc);
                let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
                for (i, s) in kernel.stores.iter().enumerate() {
                    stores[i * rows as usize + r as usize].push(Store {
                        tensor: s.tensor,
                        offset: moved(&s.offset, &ids, &vars, &self.domain),
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
        Written { body, stores, vectors }
    }
}

/// A product with short sums, all written out, as a map over its results in the order in which they lie in memory. `None` where they do not
/// lie side by side in the order of its variables.
pub fn flattened(kernel: &Kernel) -> Option<Kernel> {
    let Family::Matmul(Matmul { a, b, k, sums, .. }) = &kernel.family else { return None };
    let depth = k.as_const().filter(|k| (1..=MOST_TERMS).contains(k))?;
    let first = kernel.stores.first()?;
    let extents = kernel.domain();
    let single = b.len() == 1 && sums.is_empty() && extents[1..3].iter().any(|d| d.is(1));
    if !single || kernel.stores.iter().any(|s| s.combine.is_some()) {
        return None;
    }
    // The variables from the one along which results are neighbours.
    let (mut left, mut each) = (vec![0, 1, 2], Poly::ONE);
    left.retain(|v| !extents[*v].is(1));
    let (place, mut offset) = (Poly::var(0), Poly::ZERO);
    let elements = &(&extents[0] * &extents[1]) * &extents[2];
    let domain = [elements.clone()];
    let mut vars = [0, 1, 2, 3].map(|_| Poly::ZERO);
    while !left.is_empty() {
        let next = left.iter().position(|v| {
            first.offset.terms().iter().any(|(m, c)| m[..] == [Atom::Var(*v as u32)] && each.is(*c))
        })?;
        let v = left.remove(next);
        offset = &offset + &(&Poly::var(v) * &each);
        let whole = place.div(&each, &domain);
        vars[v] = if left.is_empty() { whole } else { whole.modulo(&extents[v], &domain) };
        each = &each * &extents[v];
    }
    if first.offset != offset {
        return None;
    }
    let mut body = Body::default();
    let mut sum = None;
    for term in 0..depth {
        vars[K] = Poly::constant(term);
        let ids = written(&kernel.body, &mut body, &[*a, b[0]], &vars, &domain, None);
        let of = |id: ExprId| ids.get(id as usize).copied().flatten();
        let product = body.push(Expr::Binary(BinaryOp::Mul, of(*a)?, of(b[0])?), DType::F32);
        sum = Some(match sum {
            None => product,
            Some(sum) => body.push(Expr::Binary(BinaryOp::Add, sum, product), DType::F32),
        });
    }
    let roots: Vec<ExprId> = kernel.stores.iter().flat_map(Store::reads).collect();
    let ids = written(&kernel.body, &mut body, &roots, &vars, &domain, sum);
    let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
    let stores = kernel.stores.iter().map(|s| Store {
        tensor: s.tensor,
        offset: if s.offset == offset { place.clone() } else { moved(&s.offset, &ids, &vars, &domain) },
        value: of(s.value),
        guard: s.guard.map(of),
        combine: None,
    });
    let stores = stores.collect();
    Some(Kernel { family: Family::Map(Map { elements }), body, stores, nodes: kernel.nodes.clone() })
}

/// A reduction of short rows, all written out, as a map over its results, where neighbours among these read neighbours. `None` for others.
pub fn flattened_rows(kernel: &Kernel) -> Option<Kernel> {
    let Family::Row(Row { rows, len, reductions, row_stores }) = &kernel.family else { return None };
    let [Reduction { kind, value, dtype: DType::F32 }] = reductions[..] else { return None };
    let op = match kind {
        ReduceKind::Sum => BinaryOp::Add,
        ReduceKind::Max => BinaryOp::Max,
        ReduceKind::Min => BinaryOp::Min,
        _ => return None,
    };
    let count = len.as_const().filter(|n| (2..=MOST_WINDOW).contains(n))?;
    let single = kernel.stores.is_empty() && row_stores.iter().all(|s| s.combine.is_none());
    let beside = kernel.body.reachable(&[value]).into_iter().any(|id| match kernel.body.expr(id) {
        Expr::Load { offset, .. } => offset.terms().iter().any(|(m, c)| *c == 1 && along_first(m)),
        _ => false,
    });
    if !single || !beside || kernel.body.dtype(value) != DType::F32 || rows.is(1) {
        return None;
    }
    let domain = [rows.clone()];
    let mut vars = [Poly::var(0), Poly::ZERO];
    let mut body = Body::default();
    let mut all = None;
    for i in 0..count {
        vars[1] = Poly::constant(i);
        let ids = written(&kernel.body, &mut body, &[value], &vars, &domain, None);
        let next = ids.get(value as usize).copied().flatten()?;
        all = Some(match all {
            None => next,
            Some(all) => body.push(Expr::Binary(op, all, next), DType::F32),
        });
    }
    let roots: Vec<ExprId> = row_stores.iter().flat_map(Store::reads).collect();
    let ids = written(&kernel.body, &mut body, &roots, &vars, &domain, all);
    let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
    let stores = row_stores.iter().map(|s| s.mapped(of, |p| moved(p, &ids, &vars, &domain))).collect();
    let family = Family::Map(Map { elements: rows.clone() });
    Some(Kernel { family, body, stores, nodes: kernel.nodes.clone() })
}

/// Whether a term is the first variable, or a remainder of it: one further for the next of most of its values.
fn along_first(term: &[Atom]) -> bool {
    match term {
        [Atom::Var(0)] => true,
        [Atom::Mod(x, _)] => x.as_atom() == Some(&Atom::Var(0)),
        _ => false,
    }
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

/// The result of a comparison of index expressions wherever the variables are.
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
