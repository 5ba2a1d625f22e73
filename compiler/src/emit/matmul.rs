//! The `Matmul` family: products of matrices and, through their index maps, convolutions.
//!
//! The templates know rows and columns. Columns are whichever of `m` and `n` lies along memory in the
//! result, so that neighbouring threads store neighbours; the operand over the rows is `x`, the other
//! `y`. What an operand's load needs is split three ways, and each part is computed as rarely as it
//! can be: what depends on the line (row or column) once a line, on `k` once a `k`, on both at each
//! element. An im2col load is then two additions and its guard.

use super::geometry::{self, Geometry, Problem, SINGLE};
use super::wgsl::{Module, Scope, reg_type, var_bit};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use super::{cooperative, thin};
use crate::Diagnostic;
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, Matmul, renumbered};
use std::fmt::Write;
use wgfc_codegen_templates::matmul::{Contiguous, Extents, Serial, Tiled};
use wgfc_codegen_templates::thin::Results;
use wgfc_ir::{Atom, DType, Dim, Poly, Reg};

/// The variable of the sum.
pub(super) const K: usize = 3;

/// Emits with the given geometry, or the one that [`geometry::choose`] prefers.
///
/// # Errors
/// As [`emit`](super::emit).
pub fn emit_as(
    kernel: &Kernel,
    cx: &EmitContext,
    forced: Option<Geometry>,
) -> Result<EmittedKernel, Diagnostic> {
    let (Some(p), Some((x, y))) = (problem(kernel), sides(kernel)) else {
        return Err(Diagnostic::internal("not a matmul kernel"));
    };
    let choice = forced.unwrap_or_else(|| geometry::choose(&p, cx.profile));
    if let Geometry::Thin(shape) = choice
        && let Some(o) = operands(kernel, x, y)
    {
        return thin::emit(kernel, &o, cx, shape);
    }
    if p.results != SINGLE {
        return Err(Diagnostic::internal(format!(
            "{choice:?} makes one product, not {} and {} sums",
            p.results.products, p.results.sums
        )));
    }
    if let Geometry::Cooperative(shape) = choice {
        return cooperative::emit(kernel, [x, y], cx, shape);
    }
    let kernel = &hoistable(kernel, K);
    let (Family::Matmul(Matmul { batch, k, .. }), Some((x, y))) = (&kernel.family, sides(kernel)) else {
        return Err(Diagnostic::internal("not a matmul kernel"));
    };
    let (rows, cols) = (x.extent, y.extent);

    let mut module = Module::new(kernel, cx, false)?;
    let mut top = Scope::new(4);
    let extents = Extents {
        batch: module.extent(&mut top, batch)?,
        rows: module.extent(&mut top, rows)?,
        cols: module.extent(&mut top, cols)?,
        depth: module.extent(&mut top, k)?,
    };
    let mut functions = String::new();
    operand(&mut module, &mut functions, "x", x.root, x.var, K)?;
    operand(&mut module, &mut functions, "y", y.root, y.var, K)?;
    let mut body = Scope::new(4);
    for s in &kernel.stores {
        module.store(&mut body, s)?;
    }
    let _ = writeln!(
        functions,
        "fn store(v0: i32, v{}: i32, v{}: i32, acc0: f32) {{\n{}}}",
        x.var, y.var, body.text
    );
    let preamble = format!("{}\n{functions}", module.preamble());
    let setup = top.text;

    let divides = |d: &Dim, by: u32| d.as_const().is_some_and(|d| d > 0 && d % i64::from(by) == 0);
    let (wgsl, threads, bytes, groups) = match choice {
        Geometry::Tiled(shape) => {
            let bytes = shape.workgroup_bytes(cx.profile.max_workgroup_bytes);
            let t = Tiled {
                preamble,
                setup,
                extents,
                shape,
                x: x.order,
                y: y.order,
                whole_rows: divides(rows, shape.rows),
                whole_cols: divides(cols, shape.cols),
                whole_depth: divides(k, shape.k * shape.split),
                rows_first: geometry::size(cols) > geometry::size(rows),
                workgroup_bytes: cx.profile.max_workgroup_bytes,
            };
            let tiles = &rows.ceil_div(i64::from(shape.rows)) * &cols.ceil_div(i64::from(shape.cols));
            (t.render(), shape.threads(), bytes, &tiles * batch)
        }
        Geometry::Thin(_) | Geometry::Cooperative(_) => {
            return Err(Diagnostic::internal(format!("{choice:?} does not fit the product")));
        }
        Geometry::Serial => {
            let threads = cx.profile.max_invocations.clamp(1, 128);
            let unrolled = k.as_const().unwrap_or(0).clamp(0, 32) as u32;
            let rest = !k.is(i64::from(unrolled));
            let t = Serial { preamble, setup, extents, threads, unrolled, rest };
            let all = &(rows * cols) * batch;
            (t.render(), threads, 0, all.ceil_div(i64::from(threads)))
        }
    };
    let wgsl = wgsl.map_err(template_error)?;
    let groups = fold_workgroups(&groups, cx.profile.max_workgroups);
    Ok(module.finish("matmul", wgsl, [threads, 1, 1], bytes, groups))
}

/// An operand.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub root: ExprId,
    /// The variable of its rows or columns.
    pub var: usize,
    pub extent: &'a Dim,
    pub order: Contiguous,
}

/// The operands over rows and over columns. A side known to be at most 8 long is the rows, which the
/// thin template wants; else columns lie along memory in the result.
fn sides(kernel: &Kernel) -> Option<(Side<'_>, Side<'_>)> {
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
pub(super) struct Operands<'a> {
    /// The variable of the rows.
    pub row_var: usize,
    /// The variable of the columns.
    pub col_var: usize,
    pub rows: &'a Dim,
    pub cols: &'a Dim,
    pub depth: &'a Dim,
    /// The operand over rows.
    pub x: ExprId,
    /// Those over columns.
    pub ys: Vec<ExprId>,
    /// Summed beside the products, over rows.
    pub sums: Vec<ExprId>,
}

fn operands<'a>(kernel: &'a Kernel, x: Side<'a>, y: Side<'a>) -> Option<Operands<'a>> {
    let Family::Matmul(Matmul { k, b, sums, .. }) = &kernel.family else { return None };
    let ys = if y.var == 2 { b.clone() } else { vec![y.root] };
    let (row_var, col_var) = (x.var, y.var);
    let (rows, cols, depth) = (x.extent, y.extent, k);
    Some(Operands { row_var, col_var, rows, cols, depth, x: x.root, ys, sums: sums.clone() })
}

/// What the choice of a product's geometry depends on; `None` for other families.
pub fn problem(kernel: &Kernel) -> Option<Problem> {
    let Family::Matmul(Matmul { batch, k, b, sums, .. }) = &kernel.family else { return None };
    let (x, y) = sides(kernel)?;
    let o = operands(kernel, x, y)?;
    let (bits, vector) = thin::streams(kernel, &o, if y.order == Contiguous::Depth { K } else { y.var });
    let [batch, rows, cols, depth] = [batch, x.extent, y.extent, k].map(Dim::clone);
    let results = Results { products: b.len() as u32, sums: sums.len() as u32 };
    let staged = thin::staged_operations(kernel, &o);
    let half = cooperative::suits(kernel, &x, &y);
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

/// An offset's value where variable `var` is `i` and the others are 0; what is read from memory counts as 0.
fn value(body: &Body, p: &Poly, var: usize, i: i64, depth: u32) -> Option<i64> {
    p.eval(&|a| match a {
        Atom::Var(v) => Some(if *v as usize == var { i } else { 0 }),
        Atom::Sym(_) => Some(61),
        Atom::Data(d) => match body.expr(*d) {
            Expr::Index(p) if depth < 16 => value(body, p, var, i, depth + 1),
            _ => Some(0),
        },
        _ => None,
    })
}

/// Rewrites sums of index terms with and without variable `step` so that the terms with and those
/// without are expressions of their own.
pub(super) fn hoistable(kernel: &Kernel, step: usize) -> Kernel {
    let domain = kernel.domain();
    let mut body = Body::default();
    let mut ids: Vec<ExprId> = vec![];
    let mut on_step: Vec<bool> = vec![];
    for (id, e, dtype) in kernel.body.iter() {
        let of = |id: ExprId| ids.get(id as usize).copied().unwrap_or(0);
        let renamed = |p: &Poly| renumbered(p, of, &domain);
        let steps = |p: &Poly| {
            p.vars().contains(&step) || p.data().iter().any(|d| on_step.get(*d as usize) == Some(&true))
        };
        let parted = |p: &Poly, body: &mut Body| {
            let (mut with, mut without) = (Poly::ZERO, Poly::ZERO);
            for (m, c) in p.terms() {
                let t = m.iter().fold(Poly::constant(c), |t, a| &t * &Poly::atom(a.clone()));
                if steps(&t) { with = &with + &t } else { without = &without + &t }
            }
            if with.is(0) || without.as_const().is_some() {
                return renamed(p);
            }
            // Terms with `step` that also depend on a line stay where they are.
            let (mut pure, mut mixed) = (Poly::ZERO, Poly::ZERO);
            for (m, c) in with.terms() {
                let t = m.iter().fold(Poly::constant(c), |t, a| &t * &Poly::atom(a.clone()));
                if t.data().is_empty() && t.vars().iter().all(|v| *v == step) {
                    pure = &pure + &t;
                } else {
                    mixed = &mixed + &t;
                }
            }
            let mut sum = renamed(&mixed);
            for part in [without, pure] {
                if !part.is(0) {
                    let id = body.push(Expr::Index(renamed(&part)), DType::I32);
                    sum = &sum + &Poly::atom(Atom::Data(id));
                }
            }
            sum
        };
        let new = e.mapped(of, |p| parted(p, &mut body));
        let s = match e {
            Expr::Index(p) | Expr::Load { offset: p, .. } => p.vars().contains(&step),
            _ => false,
        };
        let s = s || kernel.body.operands(id).iter().any(|o| on_step[*o as usize]);
        on_step.push(s);
        ids.push(body.push(new, dtype));
    }
    let of = |id: ExprId| ids.get(id as usize).copied().unwrap_or(0);
    kernel.over(body, &of, &mut |p| renumbered(p, of, &domain))
}

/// Writes `<name>_line`, `<name>_step` and `<name>_load` for the operand `root` over variables `line`
/// and `step`: what depends only on one of them is made by the first two.
pub(super) fn operand(
    m: &mut Module,
    out: &mut String,
    name: &str,
    root: ExprId,
    line: usize,
    step: usize,
) -> Result<(), Diagnostic> {
    let (on_line, on_step) = (var_bit(0) | var_bit(line), var_bit(step));
    let body = &m.kernel.body;
    if body.dtype(root).reg() != Reg::F32 {
        return Err(Diagnostic::internal(format!("operand {name} of a product is not a float")));
    }
    let is_line = |m: &Module, id: ExprId| m.deps(id) & !on_line == 0;
    let is_step = |m: &Module, id: ExprId| m.deps(id) & !on_step == 0 && m.deps(id) != 0;
    let plain = |id: ExprId| matches!(body.expr(id), Expr::Const(_));
    // Values that are made before and used at each element.
    let (mut lines, mut steps) = (vec![], vec![]);
    let mut keep = |m: &Module, id: ExprId| {
        if plain(id) {
        } else if is_line(m, id) {
            lines.push(id);
        } else if is_step(m, id) {
            steps.push(id);
        }
    };
    keep(m, root);
    for id in body.reachable(&[root]) {
        if !is_line(m, id) && !is_step(m, id) {
            for o in body.operands(id) {
                keep(m, o);
            }
        }
    }
    for list in [&mut lines, &mut steps] {
        list.sort_unstable();
        list.dedup();
    }

    let mut load = Scope::new(4);
    load.bind_var(0, "batch");
    load.bind_var(line, &format!("line.v{line}"));
    load.bind_var(step, &format!("step.v{step}"));
    let upper = name.to_uppercase();
    for (part, var, ids) in [("line", line, &lines), ("step", step, &steps)] {
        let mut fields = format!("    v{var}: i32,\n");
        let mut s = Scope::new(4);
        let mut values = vec![format!("v{var}")];
        for (i, id) in ids.iter().enumerate() {
            let ty = reg_type(m.kernel.body.dtype(*id).reg());
            let _ = writeln!(fields, "    p{i}: {ty},");
            values.push(m.value(&mut s, *id)?);
            load.bind(*id, &format!("{part}.p{i}"));
        }
        let ty = if part == "line" { format!("{upper}Line") } else { format!("{upper}Step") };
        let _ =
            writeln!(out, "struct {ty} {{\n{fields}}}\nfn {name}_{part}(v0: i32, v{var}: i32) -> {ty} {{");
        let _ = writeln!(out, "{}    return {ty}({});\n}}", s.text, values.join(", "));
    }
    let v = m.value(&mut load, root)?;
    let _ = writeln!(
        out,
        "fn {name}_load(batch: i32, line: {upper}Line, step: {upper}Step) -> f32 {{\n{}    return {v};\n}}\n",
        load.text
    );
    Ok(())
}
