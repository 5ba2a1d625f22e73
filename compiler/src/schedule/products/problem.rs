//! The properties of a product of matrices that are looked at before it is cut up.

use super::integers::{Integers, integers};
use super::window::{self, Work};
use super::{Contiguous, EIGHT, FEW_ROWS, Results, SINGLE, TileShape};
use crate::cost::ASSUMED;
use crate::kernel::bindings::{component, neighbours};
use crate::kernel::dependence::{Dependence, var_bit};
use crate::kernel::length;
use crate::kernel::substitute::{K, hoistable, moved, substitute, substitute_results};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, Matmul, Store, TensorId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly};

/// Expressions of a result up to which an invocation's results are written out one after another: a bound on the text.
const MOST_STORED: usize = 64;

/// The properties on which the choice depends.
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
    /// The sums; only thin geometries make more than one product.
    pub results: Results,
    /// Bits of memory that one k and column of the operands with the columns take.
    pub bits: f64,
    /// Elements of the widest vectors in which they can be read, along their memory order.
    pub vector: u32,
    /// Operations that make an element of the rows which a thin workgroup stages; 0 where nothing is.
    pub staged: f64,
    /// The instructions of an element of the operands with the rows and with the columns.
    pub making: [Making; 2],
    /// Both operands are f16 and can be read by eights.
    pub half: bool,
    /// Whether the operands with the rows and with the columns can be read by fours along their memory order.
    pub fours: [bool; 2],
    /// Whether they can be read by eights.
    pub eights: [bool; 2],
    /// The blocks in which it can be written out.
    pub windows: Vec<Work>,
    /// How the weights are integers, where the rows may be rounded.
    pub integers: Option<Integers>,
}

/// The instructions that make an element of an operand beside the load of one element.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Making {
    /// Instructions of each element: what is computed of loaded values, and the other loads.
    pub value: f64,
    /// Instructions of each position: offsets, and the comparisons of guards. Neighbours that are read together share them.
    pub index: f64,
    /// Instructions for the position that depend on the place in the sum. An invocation with fixed rows and columns computes the others once.
    pub along: f64,
    /// The elements of one of the [runs](run) in which matrix units are given them, if they are read by eights.
    pub run: Run,
    /// Four neighbours that tiles read at once, of elements in fields of a word; `None` for others.
    pub four: Option<Run>,
}

/// A run of neighbours that an invocation reads at once and computes together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Its elements.
    pub elements: f64,
    /// Its loads, a vector as one.
    pub loads: f64,
    /// The words that are read.
    pub words: f64,
    /// Its instructions.
    pub instructions: f64,
}

impl Making {
    /// The instructions of an element that is read together with others, `width` in all.
    pub fn element(&self, width: f64) -> f64 {
        self.value + self.index / width
    }
    /// The instructions of an element of a row or column that an invocation goes through.
    pub fn term(&self) -> f64 {
        self.value + self.along
    }
}

impl Default for Run {
    fn default() -> Run {
        Run::HALVES
    }
}

impl Run {
    /// Eight neighbours in f16, which are taken as they are.
    pub const HALVES: Run = Run { elements: 8.0, loads: 1.0, words: 4.0, instructions: 0.0 };
    /// Thirty-two neighbours in fields of 4 to 6 bits with scales, as Q4_K and Q6_K have them.
    pub const FIELDS: Run = Run { elements: 32.0, loads: 3.0, words: 6.0, instructions: 230.0 };
    /// Four of them.
    pub const FOUR_FIELDS: Run = Run { elements: 4.0, loads: 3.0, words: 3.0, instructions: 60.0 };
}

/// The instructions that take an element of less than 16 bits out of its word.
const UNPACK: f64 = 2.0;

/// The instructions of an element of an operand.
fn making(kernel: &Kernel, deps: &Dependence, root: ExprId) -> Making {
    let body = &kernel.body;
    let mut loaded = vec![false; body.len()];
    let mut out = Making::default();
    let mut divisions = BTreeSet::new();
    let mut loads = 0.0;
    let mut position = |p: &Poly, out: &mut Making| {
        let mut own = BTreeSet::new();
        length::divisions(p, &mut own);
        for a in own {
            let along = match &a {
                Atom::Div(x, _) | Atom::Mod(x, _) => deps.poly(x) & var_bit(K) != 0,
                _ => false,
            };
            let instructions = length::of_division(&a);
            if divisions.insert(a) {
                out.index += instructions;
                out.along += if along { instructions } else { 0.0 };
            }
        }
    };
    for id in body.reachable(&[root]) {
        let e = body.expr(id);
        let of_load = body.operands(id).iter().any(|o| loaded[*o as usize]);
        loaded[id as usize] = of_load || matches!(e, Expr::Load { .. });
        if let Some(p) = e.index() {
            position(p, &mut out);
        }
        if let Expr::Load { .. } = e {
            loads += 1.0;
            out.value += if body.dtype(id).bits() < 16 { UNPACK } else { 0.0 };
            continue;
        }
        // A load converts what it reads.
        let converts = matches!(e, Expr::Cast(_, a) if matches!(body.expr(*a), Expr::Load { .. }));
        let instructions = if converts { 0.0 } else { length::of_expr(body, id) as f64 };
        if of_load {
            out.value += instructions;
        } else {
            out.index += instructions;
            out.along += if deps.expr(id) & var_bit(K) != 0 { instructions } else { 0.0 };
        }
    }
    out.value += (loads - 1.0_f64).max(0.0);
    out
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { batch, rows, cols, depth, .. } = self;
        write!(f, "[{batch}, {rows}, {cols}, {depth}] x by {:?} y by {:?}", self.x, self.y)?;
        let Results { products, sums } = self.results;
        write!(f, ", {products} products {sums} sums")?;
        write!(f, ", {} bits in {}s, staged {}", self.bits, self.vector, self.staged)?;
        f.write_str(match self.fours {
            [false, false] => "",
            [true, false] => ", x by fours",
            [false, true] => ", y by fours",
            [true, true] => ", both by fours",
        })?;
        if self.half {
            f.write_str(", f16 by eights")?;
        }
        if self.integers.is_some() { f.write_str(", in integers") } else { Ok(()) }
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

impl Side<'_> {
    /// The variable of its memory order.
    pub fn along(&self) -> usize {
        if self.order == Contiguous::Depth { K } else { self.var }
    }
}

/// The operands over rows and over columns. A side known to be at most 8 long is the rows, which the
/// thin template wants; else columns lie along memory in the result.
pub fn sides(kernel: &Kernel) -> Option<(Side<'_>, Side<'_>)> {
    let Family::Matmul(Matmul { m, n, a, b, .. }) = &kernel.family else { return None };
    let side = |root: ExprId, var: usize, extent| {
        let body = &kernel.body;
        let loads = body.values(&[root]).into_iter().filter_map(|id| match body.expr(id) {
            Expr::Load { offset, .. } => Some(offset),
            _ => None,
        });
        // A load along one of the two alone, as of a scale of each column, reads little.
        let (whole, parts): (Vec<&Poly>, Vec<&Poly>) =
            loads.partition(|p| depends(body, p, var) && depends(body, p, K));
        let of = if whole.is_empty() { parts } else { whole };
        let along = |v: usize| of.iter().map(|p| adjacency(body, p, v)).sum::<f64>();
        let order = if along(K) > along(var) { Contiguous::Depth } else { Contiguous::Line };
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
    /// The operands over columns.
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

impl Problem {
    /// Whether it is one matrix product, in whole tiles, of tensors that are read as they are, in vectors of four elements of 32 bits.
    pub fn is_plain(&self, tiles: &TileShape) -> bool {
        let as_they_are = self.making.iter().all(|m| m.value == 0.0);
        let whole = |n: &Dim, tile: u32| n.as_const().is_some_and(|n| n % i64::from(tile.max(1)) == 0);
        self.results.products == 1
            && self.batch.as_const() == Some(1)
            && self.bits == 32.0
            && self.fours == [true; 2]
            && as_they_are
            && whole(&self.rows, tiles.rows)
            && whole(&self.cols, tiles.cols)
            && whole(&self.depth, tiles.k)
    }
}

/// The properties on which the choice of a product's schedule depends; `None` for other families.
pub fn problem(kernel: &Kernel) -> Option<Problem> {
    problem_with(kernel, &mut window::Known::default())
}

/// [`problem`] where sums of others are `known`.
pub fn problem_with(kernel: &Kernel, known: &mut window::Known) -> Option<Problem> {
    let Family::Matmul(Matmul { batch, k, b, sums, .. }) = &kernel.family else { return None };
    let (x, y) = sides(kernel)?;
    let o = operands(kernel, x, y)?;
    let (bits, vector) = streams(kernel, &o, if y.order == Contiguous::Depth { K } else { y.var });
    let [batch, rows, cols, depth] = [batch, x.extent, y.extent, k].map(Dim::clone);
    let results = Results { products: b.len() as u32, sums: sums.len() as u32 };
    let staged = staged_operations(kernel, &o);
    let half = suits(kernel, &x, &y);
    let deps = Dependence::of(kernel);
    let making = [&x, &y].map(|s| Making {
        run: match half && by_eights(kernel, s) {
            true => counted_run(kernel, s, run(kernel, s)),
            false => Run::default(),
        },
        four: (in_fields(&kernel.body, s.root) && by_fours(kernel, s)).then(|| counted_run(kernel, s, 4)),
        ..making(kernel, &deps, s.root)
    });
    let fours = [by_fours(kernel, &x), by_fours(kernel, &y)];
    let eights = [0, 1].map(|i| fours[i] && by_eights(kernel, [&x, &y][i]));
    let mut windows = if results == SINGLE { window::blocks(kernel, &x, &y, known) } else { vec![] };
    windows.retain(|w| !stores_are_long(kernel, w.rows * w.cols));
    let rounded = matches!(&kernel.family, Family::Matmul(m) if m.rounded);
    let integers = (rounded && y.order == Contiguous::Depth).then(|| integers(kernel, &o)).flatten();
    let (x, y) = (x.order, y.order);
    Some(Problem {
        batch,
        rows,
        cols,
        depth,
        x,
        y,
        results,
        bits,
        vector,
        staged,
        making,
        half,
        fours,
        eights,
        windows,
        integers,
    })
}

/// [`Problem::fours`] alone, which is known sooner than the rest.
pub fn operand_fours(kernel: &Kernel) -> Option<[bool; 2]> {
    let (x, y) = sides(kernel)?;
    Some([by_fours(kernel, &x), by_fours(kernel, &y)])
}

/// Whether the result lies along `m` rather than `n`.
fn columns_are_m(kernel: &Kernel) -> bool {
    let along =
        |v: usize| -> f64 { kernel.stores.iter().map(|s| adjacency(&kernel.body, &s.offset, v)).sum() };
    along(1) > along(2)
}

/// How close in memory neighbours along a variable are: 1 for every step of at most one element, less
/// for wider ones, averaged over the first steps; 0 where the position is looked up for each.
fn adjacency(body: &Body, offset: &Poly, var: usize) -> f64 {
    const STEPS: i64 = 24;
    if !depends(body, offset, var) || looked_up(body, offset, var) {
        return 0.0;
    }
    let at = |i: i64| value(body, offset, var, i, 0);
    let mut sum = 0.0;
    for i in 0..STEPS {
        if let (Some(p), Some(q)) = (at(i), at(i + 1)) {
            let step = (q - p).abs().max(1);
            if step < 32 {
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

/// Whether a position is computed from loads at positions that depend on a variable.
fn looked_up(body: &Body, p: &Poly, var: usize) -> bool {
    p.data().into_iter().any(|d| {
        body.reachable(&[d]).into_iter().any(|e| match body.expr(e) {
            Expr::Load { offset, .. } => depends(body, offset, var),
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

/// An operand's values at four neighbours along its memory order, whose variable then counts fours: in another arena.
pub fn four(kernel: &Kernel, side: &Side<'_>, to: &mut Body) -> Option<[ExprId; 4]> {
    four_along(kernel, side.root, side.along(), to)
}

/// An expression's values at four neighbours along a variable, which then counts fours: in another arena. `None` where it
/// reads nothing that four neighbours are a vector of, or what is none.
pub fn four_along(kernel: &Kernel, root: ExprId, along: usize, to: &mut Body) -> Option<[ExprId; 4]> {
    neighbours_along(kernel, root, along, 4, to)?.try_into().ok()
}

/// [`four_along`] of `count` neighbours, all of which 16 bytes hold.
pub fn neighbours_along(
    kernel: &Kernel,
    root: ExprId,
    along: usize,
    count: u32,
    to: &mut Body,
) -> Option<Vec<ExprId>> {
    let mut domain = kernel.domain();
    let variables = domain.len();
    let extent = domain.get_mut(along)?;
    *extent = extent.div(&i64::from(count).into(), &[]);
    let ids = |lane: i64, to: &mut Body| {
        let mut vars: Vec<Poly> = (0..variables).map(Poly::var).collect();
        vars[along] = &(&vars[along] * i64::from(count)) + &lane.into();
        substitute(&kernel.body, to, &[root], &vars, &domain)
    };
    let lanes: Vec<Vec<Option<ExprId>>> = (0..i64::from(count)).map(|lane| ids(lane, to)).collect();
    let of = |id: ExprId| -> Vec<ExprId> {
        lanes.iter().map(|ids| ids.get(id as usize).copied().flatten().unwrap_or(0)).collect()
    };
    let mut vectors = false;
    for id in kernel.body.reachable(&[root]) {
        let Expr::Load { .. } = kernel.body.expr(id) else { continue };
        let same = of(id);
        if same.iter().all(|other| *other == same[0]) {
            continue;
        }
        let mut offsets = vec![];
        let mut guards = vec![];
        for id in &same {
            let Expr::Load { offset, guard, .. } = to.expr(*id) else { return None };
            offsets.push(offset);
            guards.push(guard);
        }
        if to.dtype(same[0]).bits() as u32 * count > 128
            || guards.iter().any(|g| *g != guards[0])
            || !neighbours(offsets.into_iter())
        {
            return None;
        }
        vectors = true;
    }
    vectors.then(|| of(root))
}

/// An operand's value at term `%4` of block `%3` of `terms` terms, in an arena of its own, where all but the place of an element
/// within what a block reads is the same for the whole block.
pub fn blocked(kernel: &Kernel, side: &Side<'_>, terms: u32) -> Option<(Body, ExprId)> {
    const TERM: usize = 4;
    let terms = Poly::constant(i64::from(terms));
    let mut domain = kernel.domain();
    let depth = domain.get_mut(K)?;
    if depth.as_const().is_none() || !depth.modulo(&terms, &[]).is(0) {
        return None;
    }
    *depth = depth.div(&terms, &[]);
    domain.push(terms.clone());
    let mut vars = [0, 1, 2, 3].map(Poly::var);
    vars[K] = &(&vars[K] * &terms) + &Poly::var(TERM);
    let mut body = Body::default();
    let root = substitute(&kernel.body, &mut body, &[side.root], &vars, &domain)
        .get(side.root as usize)
        .copied()
        .flatten()?;
    // Expressions that depend on the term: elements that are read, and values computed of them.
    let (mut on_term, mut found) = (vec![false; body.len()], false);
    for id in body.reachable(&[root]) {
        let e = body.expr(id);
        let index = e.index().is_some_and(|p| p.vars().contains(&TERM));
        on_term[id as usize] = index || body.operands(id).iter().any(|o| on_term[*o as usize]);
        if !on_term[id as usize] {
            continue;
        }
        let operand = |o: &ExprId| on_term[*o as usize];
        let same = match e {
            Expr::Load { offset, guard, .. } => {
                found |= guard.is_some();
                let linear = |m: &Vec<Atom>| m.is_empty() || m[..] == [Atom::Var(TERM as u32)];
                let with = |m: &Vec<Atom>| m.iter().any(|a| Poly::atom(a.clone()).vars().contains(&TERM));
                !guard.is_some_and(|g| on_term[g as usize])
                    && !offset.data().iter().any(operand)
                    && offset.terms().iter().all(|(m, _)| !with(m) || linear(m))
            }
            Expr::Select(c, ..) => !operand(c),
            Expr::Unary(..) | Expr::Binary(..) | Expr::Cast(..) => body.dtype(id).is_float(),
            _ => false,
        };
        if !same {
            return None;
        }
    }
    let windows = kernel.body.reachable(&[side.root]).into_iter().any(|id| {
        let quotient = |p: &Poly| {
            p.terms().iter().any(|(m, _)| {
                m.iter().any(|a| {
                    matches!(a, Atom::Div(..) | Atom::Mod(..)) && Poly::atom(a.clone()).vars().contains(&K)
                })
            })
        };
        kernel.body.expr(id).index().is_some_and(quotient)
    });
    if !found && !windows {
        return None;
    }
    let family = match &kernel.family {
        Family::Matmul(m) => Family::Matmul(Matmul { a: root, b: vec![root], sums: vec![], ..m.clone() }),
        _ => return None,
    };
    let parted = hoistable(&hoistable(&Kernel { family, body, stores: vec![], nodes: vec![] }, TERM), K);
    match &parted.family {
        Family::Matmul(Matmul { a, .. }) => Some((parted.body.clone(), *a)),
        _ => None,
    }
}

/// The stores for four neighbouring columns `%c`, which then counts fours; results 0 to 3 are theirs. What they need is
/// added to the arena. `None` where they are no vectors of the tensors' own.
pub fn four_stores(kernel: &Kernel, cols: &Side<'_>, to: &mut Body) -> Option<Vec<[Store; 4]>> {
    let mut domain = kernel.domain();
    let extent = domain.get_mut(cols.var)?;
    if !extent.modulo(&4_i64.into(), &[]).is(0) {
        return None;
    }
    *extent = extent.div(&4_i64.into(), &[]);
    let roots: Vec<ExprId> = kernel.stores.iter().flat_map(Store::reads).collect();
    if kernel.body.reachable(&roots).len() > MOST_STORED {
        return None;
    }
    let lanes = [0_i64, 1, 2, 3].map(|lane| {
        let mut vars: Vec<Poly> = (0..domain.len()).map(Poly::var).collect();
        vars[cols.var] = &(&vars[cols.var] * 4) + &lane.into();
        let ids = substitute_results(&kernel.body, to, &roots, &vars, &domain, &|_| lane as u32);
        (vars, ids)
    });
    let mut out = vec![];
    for s in &kernel.stores {
        let four = lanes.each_ref().map(|(vars, ids)| {
            let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
            let offset = moved(&s.offset, ids, vars, &domain);
            Store { tensor: s.tensor, offset, value: of(s.value), guard: s.guard.map(of), combine: s.combine }
        });
        let together = s.combine.is_none() && four.iter().all(|o| o.guard == four[0].guard);
        if !together || !neighbours(four.iter().map(|o| &o.offset)) {
            return None;
        }
        out.push(four);
    }
    // Tensors that are written in vectors are read in the same ones, if at all.
    for id in to.reachable(&out.iter().flatten().flat_map(Store::reads).collect::<Vec<_>>()) {
        if let Expr::Load { tensor, offset, .. } = to.expr(id)
            && out.iter().any(|s| s[0].tensor == *tensor)
            && (component(offset, 4).is_none() || to.dtype(id).bits() != 32)
        {
            return None;
        }
    }
    Some(out)
}

/// Instructions of an invocation's stores beyond which they are written once, in a loop over its results. The exponentials of
/// activations are fewer for 64 results; a sine is not.
const MOST_STORING: usize = 4096;

/// Whether what is computed of each result of a product is too long to be written out for so many results.
pub fn stores_are_long(kernel: &Kernel, results: u32) -> bool {
    let roots: Vec<ExprId> = kernel.stores.iter().flat_map(Store::reads).collect();
    results > 1 && length::of(&kernel.body, &roots).saturating_mul(results as usize) > MOST_STORING
}

/// Whether an operand can be read by fours: its extent has them, and so does every load that depends on it.
fn by_fours(kernel: &Kernel, side: &Side<'_>) -> bool {
    let Family::Matmul(Matmul { k, .. }) = &kernel.family else { return false };
    let extent = if side.order == Contiguous::Depth { k } else { side.extent };
    extent.modulo(&4_i64.into(), &[]).is(0) && four(kernel, side, &mut Body::default()).is_some()
}

/// Which operands tiles of a shape read by fours.
pub fn fours(kernel: &Kernel, x: &Side<'_>, y: &Side<'_>, shape: TileShape) -> [bool; 2] {
    [shape.x_by_fours() && by_fours(kernel, x), by_fours(kernel, y)]
}

/// Which operands are read by fours where an invocation makes blocks of vectors; `None` where the columns' is not, along the columns.
pub fn block_fours(kernel: &Kernel, x: &Side<'_>, y: &Side<'_>) -> Option<[bool; 2]> {
    let vectors = y.order == Contiguous::Line && by_fours(kernel, y);
    vectors.then(|| [by_fours(kernel, x), true])
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

/// Whether the units take both operands as they are, and they can be read by eights or it is known how many they are.
pub fn suits(kernel: &Kernel, x: &Side<'_>, y: &Side<'_>) -> bool {
    let Family::Matmul(Matmul { k, .. }) = &kernel.family else { return false };
    let many = x.extent.as_const().is_none_or(|r| r > FEW_ROWS);
    let counted = |s: &Side<'_>| many && along(kernel, s).is_some();
    let fits = |s: &Side<'_>| half(&kernel.body, s.root) && (by_eights(kernel, s) || counted(s));
    k.as_const().is_some() && fits(x) && fits(y)
}

/// Whether an operand's elements along its memory order are whole eights.
pub fn by_eights(kernel: &Kernel, side: &Side<'_>) -> bool {
    let Family::Matmul(Matmul { k, .. }) = &kernel.family else { return false };
    let extent = if side.order == Contiguous::Depth { k } else { side.extent };
    extent.modulo(&i64::from(EIGHT).into(), &[]).is(0)
}

/// How many neighbours of an operand of matrix units may be read at once: of fields of few bits, which share the words and scales that
/// they are read from, up to 32.
pub fn run(kernel: &Kernel, side: &Side<'_>) -> u32 {
    let body = &kernel.body;
    let Family::Matmul(Matmul { k, .. }) = &kernel.family else { return EIGHT };
    let extent = if side.order == Contiguous::Depth { k } else { side.extent };
    let whole = |run: &u32| extent.modulo(&i64::from(*run).into(), &[]).is(0);
    let packed = in_fields(body, side.root);
    [32, 16].into_iter().filter(|_| packed).find(whole).unwrap_or(EIGHT)
}

/// Whether elements of an operand are read from fields of words.
pub fn in_fields(body: &Body, root: ExprId) -> bool {
    let narrow = |id: &ExprId| matches!(body.expr(*id), Expr::Load { .. }) && body.dtype(*id).bits() < 16;
    body.values(&[root]).iter().any(narrow)
}

/// A run of neighbours of an operand, counted.
fn counted_run(kernel: &Kernel, side: &Side<'_>, run: u32) -> Run {
    let mut body = Body::default();
    let roots = neighbours_of(kernel, side, run, &mut body);
    // The bytes that each tensor is read in, and those of the elements that are read of it.
    let mut read: BTreeMap<TensorId, (BTreeSet<&Poly>, usize)> = BTreeMap::new();
    for id in body.values(&roots) {
        if let Expr::Load { tensor, offset, .. } = body.expr(id) {
            let (offsets, bits) = read.entry(*tensor).or_default();
            offsets.insert(offset);
            *bits = body.dtype(id).bits();
        }
    }
    let bits = read.values().map(|(offsets, bits)| (offsets.len() * bits) as f64);
    let computed = read.len() > 1 || body.values(&roots).len() > 2 * run as usize;
    let instruction = |id: ExprId| match body.expr(id) {
        Expr::Load { .. } if body.dtype(id).bits() < 16 => UNPACK,
        Expr::Load { .. } => 0.0,
        Expr::Cast(_, a) if matches!(body.expr(*a), Expr::Load { .. }) => 1.0,
        _ => length::of_expr(&body, id) as f64,
    };
    let instructions = if computed { body.values(&roots).into_iter().map(instruction).sum() } else { 0.0 };
    Run {
        elements: f64::from(run),
        loads: bits.clone().map(|b| (b / 128.0).ceil()).sum(),
        words: bits.map(|b| (b / 32.0).ceil()).sum(),
        instructions,
    }
}

/// The expressions of a run of neighbours along the memory order of an operand, whose variable then counts runs: in another arena.
pub fn neighbours_of(kernel: &Kernel, side: &Side<'_>, run: u32, to: &mut Body) -> Vec<ExprId> {
    let (along, run) = (side.along(), i64::from(run));
    let mut domain = kernel.domain();
    let Some(extent) = domain.get_mut(along) else { return vec![] };
    *extent = extent.div(&run.into(), &[]);
    (0..run)
        .map(|i| {
            let mut vars = [0, 1, 2, 3].map(Poly::var);
            vars[along] = &(&vars[along] * run) + &i.into();
            let ids = substitute(&kernel.body, to, &[side.root], &vars, &domain);
            ids.get(side.root as usize).copied().flatten().unwrap_or(0)
        })
        .collect()
}

/// How many elements an operand has along its memory order.
pub fn along(kernel: &Kernel, side: &Side<'_>) -> Option<i64> {
    let Family::Matmul(Matmul { k, .. }) = &kernel.family else { return None };
    if side.order == Contiguous::Depth { k } else { side.extent }.as_const().filter(|n| *n > 0)
}

/// Whether an operand is f16 in the graph: as it is, or as a weight of few bits with a scale in f16.
pub fn half(body: &Body, root: ExprId) -> bool {
    if let Expr::Cast(DType::F32, e) = body.expr(root) {
        return body.dtype(*e) == DType::F16;
    }
    let narrow = |d: DType| !d.is_float() && d.bits() <= 8;
    let mut quantised = false;
    let plain = body.values(&[root]).into_iter().all(|id| match body.expr(id) {
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
