//! Products with few rows: [`Thin`] instantiated.
//!
//! The operands are written out for every element of a block: `%3` becomes `k · %3 + i` and the
//! variable of the columns `cols · % + j`, rows become constants. What the elements of a block share
//! (the scale of a group of quantised weights, an element of `x` for several columns) is then one
//! expression, and loads that are neighbours in memory become one load of a vector
//! ([`Module::vectorise`]).
//!
//! An `x` that is more than a load is computed once for the workgroup and [staged](Stage) in its memory where that has room.
//! Sums beside the products are then added up by the threads that stage them.

use super::integers::Weights;
use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::dependence::var_bit;
use crate::kernel::substitute::{K, moved_stores, substitute};
use crate::kernel::{Body, Expr, ExprId, Family, GROUP, Kernel, Matmul};
use crate::schedule::products::integers::{self, Integers};
use crate::schedule::products::problem::Operands;
use crate::schedule::products::{self, Results, ThinShape};
use std::fmt::Write;
use wgfc_codegen_templates::matmul::Extents;
use wgfc_codegen_templates::thin::{self as template, Adding, Stage, Thin};
use wgfc_ir::{BinaryOp, DType, Poly, Reg};

/// Writes `o` as its schedule says.
pub(super) fn emit(
    kernel: &Kernel,
    o: &Operands,
    cx: &EmitContext,
    schedule: &products::Thin,
) -> Result<EmittedKernel, Diagnostic> {
    let Family::Matmul(Matmul { batch, k, .. }) = &kernel.family else {
        return Err(Diagnostic::internal("not a matmul kernel"));
    };
    let results = Results { products: o.ys.len() as u32, sums: o.sums.len() as u32 };
    let (shape, room) = (schedule.shape, schedule.room());
    let divides = |d: &Poly, by: u32| d.modulo(&Poly::constant(i64::from(by)), &[]).is(0);
    let depth = k.as_const().and_then(|k| u32::try_from(k).ok());
    let integers = match schedule.integers {
        false => None,
        true => {
            let found = integers::integers(kernel, o).map(|i| i.in_blocks(shape.k));
            Some(found.ok_or_else(|| Diagnostic::internal("weights are no integers"))?)
        }
    };
    let staged = match (schedule.staged, depth, integers) {
        (false, ..) => None,
        (true, depth, None) => depth.and_then(|d| d.checked_mul(shape.rows * 4)),
        (true, depth, Some(i)) => depth.map(|d| i.bytes(shape.rows, d)),
    };
    if !o.rows.is(i64::from(shape.rows))
        || !divides(k, shape.k)
        || !divides(o.cols, shape.cols)
        || shape.round(results, room) == 0
        || schedule.staged && staged.is_none()
    {
        return Err(Diagnostic::internal(format!("{schedule:?} does not fit the product")));
    }
    let stage_width = match integers {
        Some(_) if room.subgroup > 1 => GROUP / 2,
        Some(_) => GROUP,
        None => shape.k.min(4),
    };
    let blocks = Blocks::new(kernel, o, shape, staged.map(|_| stage_width), integers)?;
    let mut module = Module::new(&blocks.kernel, cx)?;
    let roots = blocks.roots();
    module.vectorise(&roots);

    let mut top = Scope::new(4);
    let steps = k.div(&Poly::constant(i64::from(shape.k)), &[]);
    let extents = Extents {
        batch: module.extent(&mut top, batch)?,
        rows: shape.rows.to_string(),
        cols: module.extent(&mut top, o.cols)?,
        depth: module.extent(&mut top, &steps)?,
    };
    let mut before = top.inner(4);
    before.bind_var(0, "batch");
    let staging = match (staged, depth) {
        (Some(_), Some(depth)) => {
            let subgroup = if integers.is_some() { room.subgroup } else { 1 };
            Some(blocks.staging(&mut module, &mut before, shape, (depth, stage_width, subgroup))?)
        }
        _ => None,
    };
    before.bind_var(o.col_var, "col");
    module.hoist(&mut before, &roots, var_bit(0) | var_bit(o.col_var))?;
    // The staged values are waited for with the loads of the first round under way.
    let (mut stage, mut first) = (None, before.inner(4));
    if let Some(staging) = &staging {
        let round = blocks.round(&mut module, &mut before, shape, &steps, true)?;
        let mut text = before.inner(4);
        text.number_after(&before);
        stage = Some(blocks.stage(&mut module, &mut text, shape, results, staging)?);
        first.number_after(&text);
        blocks.adds(&mut module, &mut first, shape, results, (&steps, round))?;
    }
    let mut body = before.inner(8);
    body.number_after(&first);
    let once = steps.as_const().is_some_and(|s| s <= i64::from(shape.lanes * shape.unroll));
    if stage.is_none() || !once {
        let round = blocks.round(&mut module, &mut body, shape, &steps, false)?;
        blocks.adds(&mut module, &mut body, shape, results, (&steps, round))?;
    }

    let mut store = Scope::new(4);
    module.stores(&mut store, &blocks.kernel.stores)?;
    let mut args = format!("v0: i32, v{}: i32, v{}: i32", o.row_var, o.col_var);
    for i in 0..results.products + results.sums {
        let _ = write!(args, ", acc{i}: f32");
    }
    let (round, joined) = (shape.round(results, room), shape.joined(results, room.subgroup));
    let ThinShape { rows, k, cols, across, lanes, unroll, depth_first } = shape;
    let text = Thin {
        preamble: format!("{}\nfn store({args}) {{\n{}}}\n", module.preamble(), store.text),
        setup: top.text,
        extents,
        blocks: template::Blocks { rows, k, cols, across, lanes, unroll, depth_first },
        products: results.products,
        sums: results.sums,
        adding: Adding { each: round, joined, pitch: shape.pitch(), subgroup: room.subgroup },
        stage,
        before: before.text,
        first: first.text,
        body: body.text,
    };
    let wgsl = text.render().map_err(template_error)?;
    let groups = &o.cols.ceil_div(i64::from(shape.tile_cols())) * batch;
    let groups = fold_workgroups(&groups, cx.target.max_workgroups);
    if joined > 1 || integers.is_some() && room.subgroup > 1 {
        module.subgroup = Some(room.subgroup);
    }
    let bytes = shape.workgroup_bytes(results, room) + staged.unwrap_or(0);
    Ok(module.finish("matmul", wgsl, [shape.threads(), 1, 1], bytes, groups))
}

/// Numbers from here on stand for staged elements where results of reductions stand otherwise.
const STAGED: u32 = 1 << 16;

/// The operands written out for every element of a block.
struct Blocks {
    /// The stores of the kernel; its operands are those below.
    kernel: Kernel,
    /// By row and k.
    x: Vec<Vec<ExprId>>,
    /// By product, column and k.
    y: Vec<Vec<Vec<ExprId>>>,
    /// By sum, row and k; none where they are added up as rows are staged.
    sums: Vec<Vec<Vec<ExprId>>>,
    /// The values computed for the stage of each line, by neighbouring k: the rows of `x`, which are kept there, then those of
    /// each sum.
    staged: Vec<Vec<ExprId>>,
    /// The weights where they are multiplied as integers.
    integers: Option<Weights>,
}

impl Blocks {
    fn new(
        kernel: &Kernel,
        o: &Operands,
        shape: ThinShape,
        stage: Option<u32>,
        integers: Option<Integers>,
    ) -> Result<Blocks, Diagnostic> {
        let Family::Matmul(Matmul { batch, m, n, k, .. }) = &kernel.family else {
            return Err(Diagnostic::internal("not a matmul kernel"));
        };
        let from = &kernel.body;
        for root in o.ys.iter().chain(&o.sums).chain([&o.x]) {
            if from.dtype(*root).reg() != Reg::F32 {
                return Err(Diagnostic::internal("an operand of a product is not a float"));
            }
        }
        let whole = [batch, m, n, k].map(Poly::clone);
        let mut domain = whole.clone();
        domain[K] = k.div(&i64::from(shape.k).into(), &[]);
        domain[o.col_var] = o.cols.div(&i64::from(shape.cols).into(), &[]);
        let element = |row: u32, i: u32, j: u32, depth: u32| {
            let mut v = [0, 1, 2, 3].map(Poly::var);
            if batch.is(1) {
                v[0] = Poly::ZERO;
            }
            v[o.row_var] = i64::from(row).into();
            v[o.col_var] = &(&v[o.col_var] * i64::from(shape.cols)) + &i64::from(j).into();
            v[K] = &(&v[K] * i64::from(depth)) + &i64::from(i).into();
            v
        };
        let mut body = Body::default();
        let at = |body: &mut Body, root: ExprId, row, i, j| {
            let ids = substitute(from, body, &[root], &element(row, i, j, shape.k), &domain);
            ids.get(root as usize).copied().flatten().unwrap_or(0)
        };
        let mut y = vec![];
        for root in &o.ys {
            let mut columns: Vec<Vec<ExprId>> = vec![];
            for j in 0..shape.cols {
                columns.push((0..shape.k).map(|i| at(&mut body, *root, 0, i, j)).collect());
            }
            y.push(columns);
        }
        let lines: Vec<ExprId> = std::iter::once(o.x).chain(o.sums.iter().copied()).collect();
        let mut made: Vec<Vec<Vec<ExprId>>> = vec![];
        let mut staged = vec![];
        for root in if stage.is_some() { &lines[..1] } else { &lines[..] } {
            let rows = (0..shape.rows).map(|r| {
                let make = |i: u32| match stage {
                    Some(_) => body.push(Expr::Acc(STAGED + r * shape.k + i), DType::F32),
                    None => at(&mut body, *root, r, i, 0),
                };
                (0..shape.k).map(make).collect::<Vec<ExprId>>()
            });
            made.push(rows.collect());
        }
        if let Some(width) = stage {
            let mut domain = whole.clone();
            domain[K] = k.div(&i64::from(width).into(), &[]);
            for root in &lines {
                for r in 0..shape.rows {
                    let of = |i: u32| {
                        let ids = substitute(from, &mut body, &[*root], &element(r, i, 0, width), &domain);
                        ids.get(*root as usize).copied().flatten().unwrap_or(0)
                    };
                    staged.push((0..width).map(of).collect());
                }
            }
        }
        let mut made = made.into_iter();
        let x = made.next().unwrap_or_default();
        let sums = made.collect();
        let integers = integers.map(|i| Weights::of(&mut body, &y, i)).transpose()?;

        let mut blocks = Blocks { kernel: moved_stores(kernel, body), x, y, sums, staged, integers };
        let all = blocks.roots();
        if let Family::Matmul(Matmul { a, b, sums, .. }) = &mut blocks.kernel.family {
            *a = all.first().copied().unwrap_or(0);
            *b = all;
            sums.clear();
        }
        Ok(blocks)
    }

    /// Everything that a block adds up, `y` first.
    fn roots(&self) -> Vec<ExprId> {
        let words = self.integers.iter().flat_map(Weights::loads);
        let staged = self.staged.iter().flatten().copied();
        let mut all: Vec<ExprId> = self.block_roots().into_iter().chain(words).chain(staged).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The expressions that the loop needs.
    fn block_roots(&self) -> Vec<ExprId> {
        if let Some(weights) = &self.integers {
            return weights.floats();
        }
        let y = self.y.iter().chain(&self.sums).flatten().flatten();
        y.chain(self.x.iter().flatten()).copied().collect()
    }

    /// The loads of all that a thread stages, written into `s`.
    fn staging(
        &self,
        m: &mut Module,
        s: &mut Scope,
        shape: ThinShape,
        (depth, width, subgroup): (u32, u32, u32),
    ) -> Result<Staging, Diagnostic> {
        let per_line = depth / width;
        let roots: Vec<ExprId> = self.staged.iter().flatten().copied().collect();
        let loads = self.loads(&roots);
        let threads = shape.threads();
        let start = s.inner(4);
        let mut turns = vec![];
        for u in 0..per_line.div_ceil(threads) {
            let mut turn = start.inner(4);
            turn.resume(s);
            let at = format!("t + {}", u * threads);
            let at = if (u + 1) * threads > per_line { format!("min({at}, {})", per_line - 1) } else { at };
            turn.line(&format!("let stage{u} = {at};"));
            turn.bind_var(K, &format!("stage{u}"));
            for id in &loads {
                m.fetch(&mut turn, *id)?;
            }
            s.resume(&mut turn);
            turns.push(turn);
        }
        Ok(Staging { turns, width, per_line, subgroup })
    }

    /// Fills the stage with what is made of those loads, and adds up what is summed beside the products.
    fn stage(
        &self,
        m: &mut Module,
        s: &mut Scope,
        shape: ThinShape,
        r: Results,
        staging: &Staging,
    ) -> Result<Stage, Diagnostic> {
        if let Some(weights) = &self.integers {
            return weights.stage(m, s, shape, r, (&self.staged, staging));
        }
        let Staging { turns, width, per_line, .. } = staging;
        let threads = shape.threads();
        for (u, scope) in turns.iter().enumerate() {
            let partly = (u as u32 + 1) * threads > *per_line;
            if partly {
                s.line(&format!("if (t < {}) {{", per_line - (u as u32 * threads).min(*per_line)));
            }
            let mut turn = scope.inner(if partly { 8 } else { 4 });
            turn.resume(s);
            for (line, ids) in self.staged.iter().enumerate() {
                let values = ids.iter().map(|id| m.value(&mut turn, *id)).collect::<Result<Vec<_>, _>>()?;
                let (of, row) = (line as u32 / shape.rows, line as u32 % shape.rows);
                if of > 0 {
                    let sum = shape.sum_of(r, r.products + of - 1, row, 0);
                    turn.line(&format!("sum{sum} += {};", values.join(" + ")));
                    continue;
                }
                let value = match &values[..] {
                    [one] => one.to_string(),
                    many => format!("vec{width}<f32>({})", many.join(", ")),
                };
                // Blocks that neighbouring threads read lie side by side.
                let place = match shape.k / width {
                    1 => format!("stage{u}"),
                    n => format!("stage{u} % {n} * {} + stage{u} / {n}", per_line / n),
                };
                turn.line(&format!("staged[{} + {place}] = {value};", row * per_line));
            }
            s.resume(&mut turn);
            if partly {
                s.line("}");
            }
        }
        let element = if *width == 1 { "f32".into() } else { format!("vec{width}<f32>") };
        let (len, text) = (per_line * shape.rows, std::mem::take(&mut s.text));
        Ok(Stage { element, len, scales: None, subgroup: 1, text })
    }

    /// The loads that some expressions need.
    fn loads(&self, roots: &[ExprId]) -> Vec<ExprId> {
        let body = &self.kernel.body;
        let all = body.reachable(roots).into_iter();
        all.filter(|id| matches!(body.expr(*id), Expr::Load { .. })).collect()
    }

    /// Reads the staged elements of the block at `step`.
    fn bind_staged(&self, s: &mut Scope, shape: ThinShape, depth: u32, step: &str, u: u32) {
        if let Some(weights) = &self.integers {
            return weights.bind_staged(s, shape, depth / shape.k, step, u);
        }
        let width = shape.k.min(4);
        let per_block = shape.k / width;
        for line in 0..shape.rows {
            for q in 0..per_block {
                let name = format!("x{u}_{line}_{q}");
                let first = line * (depth / width) + q * (depth / shape.k);
                s.line(&format!("let {name} = staged[{first} + {step}];"));
                for i in 0..width {
                    let acc = STAGED + line * shape.k + q * width + i;
                    let lane = ["x", "y", "z", "w"][i as usize & 3];
                    s.bind_acc(acc, &if width == 1 { name.clone() } else { format!("{name}.{lane}") });
                }
            }
        }
    }

    /// The loads of a round's blocks, written into `text`: of the loop's, whose blocks begin at `step`, or of the first one.
    fn round(
        &self,
        m: &mut Module,
        text: &mut Scope,
        shape: ThinShape,
        steps: &Poly,
        first: bool,
    ) -> Result<Vec<Block>, Diagnostic> {
        let steps = steps.as_const();
        let lanes = i64::from(shape.lanes);
        let whole = steps.is_some_and(|s| s % (lanes * i64::from(shape.unroll)) == 0);
        let all = self.loads(&self.block_roots());
        let loads: Vec<ExprId> = all.into_iter().filter(|id| m.deps(*id) & var_bit(K) != 0).collect();
        let mut blocks = vec![];
        for u in 0..i64::from(shape.unroll) {
            let (mut name, mut at, certain) = match first {
                true => (format!("first{u}"), "lane".to_owned(), steps.is_some_and(|s| (u + 1) * lanes <= s)),
                false => (format!("step{u}"), "step".to_owned(), whole || u == 0),
            };
            if u > 0 {
                at = format!("{at} + {}", u * lanes);
            }
            let mut s = text.inner(text.indent());
            s.resume(text);
            match (certain, u) {
                (true, 0) => name.clone_from(&at),
                (true, _) => s.line(&format!("let {name} = {at};")),
                (false, _) => s.line(&format!("let {name} = min({at}, steps - 1);")),
            }
            s.bind_var(K, &name);
            if let Some(weights) = &self.integers {
                weights.fetch(m, &mut s)?;
            }
            for id in &loads {
                m.fetch(&mut s, *id)?;
            }
            text.resume(&mut s);
            blocks.push(Block {
                scope: s,
                step: name,
                condition: (!certain).then(|| format!("{at} < steps")),
            });
        }
        Ok(blocks)
    }

    /// The additions of a round's blocks.
    fn adds(
        &self,
        m: &mut Module,
        text: &mut Scope,
        shape: ThinShape,
        results: Results,
        (steps, blocks): (&Poly, Vec<Block>),
    ) -> Result<(), Diagnostic> {
        let mut blocks = blocks;
        if !self.staged.is_empty() {
            let depth = steps.as_const().and_then(|n| u32::try_from(n).ok()).unwrap_or(0) * shape.k;
            for (u, block) in blocks.iter_mut().enumerate() {
                block.scope.resume(text);
                self.bind_staged(&mut block.scope, shape, depth, &block.step, u as u32);
                text.resume(&mut block.scope);
            }
        }
        for (u, block) in blocks.iter().enumerate() {
            if let Some(condition) = &block.condition {
                text.line(&format!("if ({condition}) {{"));
            }
            let mut s = block.scope.inner(text.indent() + if block.condition.is_some() { 4 } else { 0 });
            s.resume(text);
            match &self.integers {
                Some(weights) => weights.add(m, &mut s, shape, results, u)?,
                None => self.add(m, &mut s, shape, results)?,
            }
            text.resume(&mut s);
            if block.condition.is_some() {
                text.line("}");
            }
        }
        Ok(())
    }

    /// Adds a block to the sums.
    fn add(&self, m: &mut Module, s: &mut Scope, shape: ThinShape, r: Results) -> Result<(), Diagnostic> {
        for (g, columns) in self.y.iter().enumerate() {
            for (j, ks) in columns.iter().enumerate() {
                for run in runs(&self.kernel.body, ks) {
                    let factor = run.factor.map(|f| m.value(s, f)).transpose()?;
                    let weights =
                        run.terms.iter().map(|(_, w)| m.value(s, *w)).collect::<Result<Vec<_>, _>>()?;
                    for (row, x) in self.x.iter().enumerate() {
                        let mut products = vec![];
                        for ((i, _), w) in run.terms.iter().zip(&weights) {
                            products.push(format!("{} * {w}", m.value(s, x[*i])?));
                        }
                        let sum = shape.sum_of(r, g as u32, row as u32, j as u32);
                        match &factor {
                            Some(f) => s.line(&format!("sum{sum} += {f} * ({});", products.join(" + "))),
                            None => products.iter().for_each(|p| s.line(&format!("sum{sum} += {p};"))),
                        }
                    }
                }
            }
        }
        for (g, rows) in self.sums.iter().enumerate() {
            for (row, ks) in rows.iter().enumerate() {
                let sum = shape.sum_of(r, r.products + g as u32, row as u32, 0);
                for e in ks {
                    let e = m.value(s, *e)?;
                    s.line(&format!("sum{sum} += {e};"));
                }
            }
        }
        Ok(())
    }
}

/// The part of a thread in staging, for which the loads are written.
pub(super) struct Staging {
    /// With the names of the loads.
    pub turns: Vec<Scope>,
    /// Elements of a row that a thread stages at once.
    pub width: u32,
    /// How many of these a line has.
    pub per_line: u32,
    /// Invocations of the subgroups in which neighbours stage together; 1 for none.
    pub subgroup: u32,
}

/// A block whose loads are written.
struct Block {
    /// With their names.
    scope: Scope,
    /// Its number.
    step: String,
    /// Where it need not be one of the product's: that it is.
    condition: Option<String>,
}

/// Neighbouring k whose weights have a factor in common.
struct Run {
    factor: Option<ExprId>,
    /// The position in the block and the other factor.
    terms: Vec<(usize, ExprId)>,
}

/// Cuts the weights of a column into runs.
fn runs(body: &Body, ks: &[ExprId]) -> Vec<Run> {
    let factors = |id: ExprId| match body.expr(id) {
        Expr::Binary(BinaryOp::Mul, p, q) => Some([*p, *q]),
        _ => None,
    };
    let mut out: Vec<Run> = vec![];
    let mut i = 0;
    while i < ks.len() {
        let common = |f: ExprId| {
            let rest = ks[i..].iter().enumerate().map_while(|(n, id)| {
                let [p, q] = factors(*id)?;
                (p == f).then_some((i + n, q)).or((q == f).then_some((i + n, p)))
            });
            Run { factor: Some(f), terms: rest.collect() }
        };
        let longest = factors(ks[i]).into_iter().flatten().map(common).max_by_key(|r| r.terms.len());
        let run = match longest {
            Some(r) if r.terms.len() > 1 => r,
            _ => Run { factor: None, terms: vec![(i, ks[i])] },
        };
        i += run.terms.len();
        out.push(run);
    }
    out
}
