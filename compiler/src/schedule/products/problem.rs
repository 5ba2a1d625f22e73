//! What is looked at of a product of matrices before it is cut up.

use crate::kernel::substitute::K;
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, Matmul};
use crate::schedule::cost::ASSUMED;
use std::fmt;
use wgfc_codegen_templates::cooperative::FETCH;
use wgfc_codegen_templates::matmul::Contiguous;
use wgfc_codegen_templates::thin::Results;
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly};

/// What the choice depends on.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Independent products.
    pub batch: Dim,
    /// Rows.
    pub rows: Dim,
    /// Columns, along which results are stored.
    pub cols: Dim,
    /// Summed over.
    pub depth: Dim,
    /// Memory order of the operand with the rows.
    pub x: Contiguous,
    /// Memory order of the operand with the columns.
    pub y: Contiguous,
    /// What is summed; only thin geometries make more than one product.
    pub results: Results,
    /// Bits of memory that one k and column of the operands with the columns take.
    pub bits: f64,
    /// Elements of the widest vectors in which they can be read, along their memory order.
    pub vector: u32,
    /// Operations that make an element of the rows which a thin workgroup stages; 0 where nothing is.
    pub staged: f64,
    /// Both operands are f16 and can be read by eights.
    pub half: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { batch, rows, cols, depth, .. } = self;
        write!(f, "[{batch}, {rows}, {cols}, {depth}] x by {:?} y by {:?}", self.x, self.y)?;
        let Results { products, sums } = self.results;
        write!(f, ", {products} products {sums} sums")?;
        write!(f, ", {} bits in {}s, staged {}", self.bits, self.vector, self.staged)?;
        if self.half { f.write_str(", f16 by eights") } else { Ok(()) }
    }
}

/// An operand.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// The operand.
    pub root: ExprId,
    /// The variable of its rows or columns.
    pub var: usize,
    /// How many there are.
    pub extent: &'a Dim,
    /// Its memory order.
    pub order: Contiguous,
}

/// The operands over rows and over columns. A side known to be at most 8 long is the rows, which the
/// thin template wants; else columns lie along memory in the result.
pub fn sides(kernel: &Kernel) -> Option<(Side<'_>, Side<'_>)> {
    let Family::Matmul(Matmul { m, n, a, b, .. }) = &kernel.family else { return None };
    let side = |root: ExprId, var: usize, extent| {
        let (mut along_line, mut along_k) = (0.0, 0.0);
        for id in kernel.body.reachable(&[root]) {
            if let Expr::Load { offset, .. } = kernel.body.expr(id) {
                along_line += adjacency(&kernel.body, offset, var);
                along_k += adjacency(&kernel.body, offset, K);
            }
        }
        let order = if along_k > along_line { Contiguous::Depth } else { Contiguous::Line };
        Side { root, var, extent, order }
    };
    let (a, b) = (side(*a, 1, m), side(*b.first()?, 2, n));
    let thin = |d: &Dim| d.as_const().is_some_and(|d| d <= 8);
    let several =
        matches!(&kernel.family, Family::Matmul(Matmul { b, sums, .. }) if b.len() > 1 || !sums.is_empty());
    let swap = match (thin(m) || several, thin(n) && !several) {
        (true, false) => false,
        (false, true) => true,
        _ => columns_are_m(kernel),
    };
    Some(if swap { (b, a) } else { (a, b) })
}

/// The operands of a thin product.
pub struct Operands<'a> {
    /// The variable of the rows.
    pub row_var: usize,
    /// The variable of the columns.
    pub col_var: usize,
    /// Rows.
    pub rows: &'a Dim,
    /// Columns.
    pub cols: &'a Dim,
    /// Summed over.
    pub depth: &'a Dim,
    /// The operand over rows.
    pub x: ExprId,
    /// Those over columns.
    pub ys: Vec<ExprId>,
    /// Summed beside the products, over rows.
    pub sums: Vec<ExprId>,
}

/// The operands of a kernel whose sides are known.
pub fn operands<'a>(kernel: &'a Kernel, x: Side<'a>, y: Side<'a>) -> Option<Operands<'a>> {
    let Family::Matmul(Matmul { k, b, sums, .. }) = &kernel.family else { return None };
    let ys = if y.var == 2 { b.clone() } else { vec![y.root] };
    let (row_var, col_var) = (x.var, y.var);
    let (rows, cols, depth) = (x.extent, y.extent, k);
    Some(Operands { row_var, col_var, rows, cols, depth, x: x.root, ys, sums: sums.clone() })
}

/// What the choice of a product's schedule depends on; `None` for other families.
pub fn problem(kernel: &Kernel) -> Option<Problem> {
    let Family::Matmul(Matmul { batch, k, b, sums, .. }) = &kernel.family else { return None };
    let (x, y) = sides(kernel)?;
    let o = operands(kernel, x, y)?;
    let (bits, vector) = streams(kernel, &o, if y.order == Contiguous::Depth { K } else { y.var });
    let [batch, rows, cols, depth] = [batch, x.extent, y.extent, k].map(Dim::clone);
    let results = Results { products: b.len() as u32, sums: sums.len() as u32 };
    let staged = staged_operations(kernel, &o);
    let half = suits(kernel, &x, &y);
    Some(Problem { batch, rows, cols, depth, x: x.order, y: y.order, results, bits, vector, staged, half })
}

/// Whether the result lies along `m` rather than `n`.
fn columns_are_m(kernel: &Kernel) -> bool {
    let along =
        |v: usize| -> f64 { kernel.stores.iter().map(|s| adjacency(&kernel.body, &s.offset, v)).sum() };
    along(1) > along(2)
}

/// How close in memory neighbours along a variable are: 1 for every step of at most one element, less
/// for wider ones, averaged over the first steps.
fn adjacency(body: &Body, offset: &Poly, var: usize) -> f64 {
    const STEPS: i64 = 24;
    if !depends(body, offset, var) {
        return 0.0;
    }
    let at = |i: i64| value(body, offset, var, i, 0);
    let mut sum = 0.0;
    for i in 0..STEPS {
        if let (Some(p), Some(q)) = (at(i), at(i + 1)) {
            let step = (q - p).abs().max(1);
            if step < 8 {
                sum += 1.0 / step as f64;
            }
        }
    }
    sum / STEPS as f64
}

fn depends(body: &Body, p: &Poly, var: usize) -> bool {
    p.vars().contains(&var)
        || p.data().into_iter().any(|d| {
            body.reachable(&[d]).into_iter().any(|e| match body.expr(e) {
                Expr::Index(p) | Expr::Load { offset: p, .. } => p.vars().contains(&var),
                _ => false,
            })
        })
}

/// An offset's value where variable `var` is `i` and the others are 0; what is read from memory counts as 0. Symbols are
/// [`ASSUMED`] here, whatever is expected of them: what is found is part of the key of a table of schedules.
fn value(body: &Body, p: &Poly, var: usize, i: i64, depth: u32) -> Option<i64> {
    p.eval(&|a| match a {
        Atom::Var(v) => Some(if *v as usize == var { i } else { 0 }),
        Atom::Sym(_) => Some(ASSUMED),
        Atom::Data(d) => match body.expr(*d) {
            Expr::Index(p) if depth < 16 => value(body, p, var, i, depth + 1),
            _ => Some(0),
        },
        _ => None,
    })
}

/// How the operands over columns can be read as vectors: the bits that one k and column of all of
/// them take, and the elements of 16 bytes of the one that is read most finely, or fewer where the
/// extent along `var`, `%3` or the variable of the columns, is no multiple of them.
pub fn streams(kernel: &Kernel, o: &Operands, var: usize) -> (f64, u32) {
    const STEPS: i64 = 32;
    let body = &kernel.body;
    let at = |offset: &Poly, var: usize, i: i64| {
        offset.eval(&|a| match a {
            Atom::Var(v) => Some(if *v as usize == var { i } else { 0 }),
            Atom::Sym(_) => Some(ASSUMED),
            Atom::Data(_) => Some(0),
            _ => None,
        })
    };
    // Less than 1 where several neighbours read the same element.
    let rate = |offset: &Poly, var: usize| {
        (0..STEPS).filter(|i| at(offset, var, *i) != at(offset, var, i + 1)).count() as f64 / STEPS as f64
    };
    let (mut bits, mut vector) = (0.0, 1);
    for id in body.reachable(&o.ys) {
        let Expr::Load { offset, guard, .. } = body.expr(id) else { continue };
        let width = body.dtype(id).bits() as u32;
        let each = rate(offset, K) * rate(offset, o.col_var);
        bits += f64::from(width) * each;
        let unit = at(offset, var, 1).zip(at(offset, var, 0)).is_some_and(|(p, q)| p - q == 1);
        if guard.is_none() && each == 1.0 && unit && width <= 32 {
            vector = vector.max(128 / width);
        }
    }
    let extent = if var == K { o.depth } else { o.cols };
    while !extent.modulo(&Poly::constant(i64::from(vector)), &[]).is(0) {
        vector /= 2;
    }
    (if bits == 0.0 { 32.0 } else { bits }, vector)
}
/// How many expressions make an element of what is worth staging; 0 where `x` is a plain load.
pub fn staged_operations(kernel: &Kernel, o: &Operands) -> f64 {
    let body = &kernel.body;
    let plain = matches!(body.expr(o.x), Expr::Load { guard: None, .. })
        && body.dtype(o.x) == DType::F32
        && o.sums.is_empty();
    let roots: Vec<ExprId> = o.sums.iter().copied().chain([o.x]).collect();
    if plain { 0.0 } else { body.reachable(&roots).len() as f64 }
}

/// Whether the units take both operands as they are, and they can be read by eights.
pub fn suits(kernel: &Kernel, x: &Side<'_>, y: &Side<'_>) -> bool {
    let Family::Matmul(Matmul { k, .. }) = &kernel.family else { return false };
    let eights = |d: &Poly| d.modulo(&i64::from(FETCH).into(), &[]).is(0);
    let fits = |s: &Side<'_>| {
        half(&kernel.body, s.root) && eights(if s.order == Contiguous::Depth { k } else { s.extent })
    };
    k.as_const().is_some() && fits(x) && fits(y)
}

/// Whether an operand is f16 in the graph: as it is, or as a weight of few bits with a scale in f16.
fn half(body: &Body, root: ExprId) -> bool {
    if let Expr::Cast(DType::F32, e) = body.expr(root) {
        return body.dtype(*e) == DType::F16;
    }
    let narrow = |d: DType| !d.is_float() && d.bits() <= 8;
    let mut quantised = false;
    let plain = body.reachable(&[root]).into_iter().all(|id| match body.expr(id) {
        Expr::Load { .. } => {
            quantised |= narrow(body.dtype(id));
            narrow(body.dtype(id)) || body.dtype(id) == DType::F16
        }
        Expr::Binary(op, ..) => matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul),
        Expr::Const(_) | Expr::Index(_) | Expr::Cast(..) => true,
        _ => false,
    });
    plain && quantised
}
