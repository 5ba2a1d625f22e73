//! Products on matrix units: [`Cooperative`] instantiated.
//!
//! Both factors are f16 in the graph (of quantised weights: their scales are), sums are f32. Operands
//! are written out for a run of neighbours in memory, whose loads become few. They are read while the step before is multiplied, and
//! computed when they are put into the tile.

use super::held::Held;
use super::matmul::{depth, module_of, store_results, vector_stores, with_operands};
use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::dependence::var_bit;
use crate::kernel::substitute::{K, substitute};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, Matmul, Store};
use crate::schedule::products::problem::{
    Side, along, by_eights, neighbours_of, run, stores_are_long, suits,
};
use crate::schedule::products::{self, Contiguous, CooperativeShape, EIGHT};
use std::fmt::Write;
use wgfc_codegen_templates::cooperative::{Beside, Blocks, Cooperative, FETCH, Operand, WORDS};
use wgfc_codegen_templates::matmul::Extents;
use wgfc_ir::{DType, Dim, Poly};

// The template reads as many elements at once as schedules take it to.
const _: () = assert!(FETCH == EIGHT);

/// Writes the product as its schedule says.
pub(super) fn emit(
    kernel: &Kernel,
    [x, y]: [Side<'_>; 2],
    cx: &EmitContext,
    schedule: &products::Cooperative,
) -> Result<EmittedKernel, Diagnostic> {
    let Family::Matmul(Matmul { batch, m, n, k, .. }) = &kernel.family else {
        return Err(Diagnostic::internal("not a matmul kernel"));
    };
    let products::Cooperative { shape, ahead, subgroup } = *schedule;
    if !suits(kernel, &x, &y) || !shape.divides(subgroup) || !schedule.suits(k) {
        return Err(Diagnostic::internal(format!("{shape:?} does not fit the product or the device")));
    }
    let domain = [batch, m, n, k].map(Poly::clone);
    let mut body = Body::default();
    let runs = [(&x, shape.rows), (&y, shape.cols)]
        .map(|(s, lines)| shape.run(lines, s.order, run(kernel, s), subgroup));
    let mut neighbours = |s: &Side<'_>, run: u32| -> Vec<ExprId> {
        if by_eights(kernel, s) {
            return neighbours_of(kernel, s, run, &mut body);
        }
        let vars = [0, 1, 2, 3].map(Poly::var);
        let ids = substitute(&kernel.body, &mut body, &[s.root], &vars, &domain);
        vec![ids.get(s.root as usize).copied().flatten().unwrap_or(0)]
    };
    let (xs, ys) = (neighbours(&x, runs[0]), neighbours(&y, runs[1]));
    let rolled = stores_are_long(kernel, products::Product::Cooperative(*schedule).results_of_invocation());
    let stores = if rolled { None } else { vector_stores(kernel, &y, &mut body, cx)? };
    let roots: Vec<ExprId> = xs.iter().chain(&ys).copied().collect();
    let kernel = with_operands(kernel, body, stores.as_deref(), &roots);
    let mut module = module_of(&kernel, cx, &roots, stores.is_some())?;
    module.uses_f16 = true;
    module.subgroup = Some(subgroup);
    module.uses_cooperative = true;

    let mut top = Scope::new(4);
    let mut functions = String::new();
    let extents = Extents {
        batch: module.extent(&mut top, batch)?,
        rows: module.extent(&mut top, x.extent)?,
        cols: module.extent(&mut top, y.extent)?,
        depth: depth(&mut module, &mut top, &mut functions, k)?,
    };
    let x_operand = operand(&mut module, &mut functions, "x", &x, &xs)?;
    let y_operand = operand(&mut module, &mut functions, "y", &y, &ys)?;
    let mut store = Scope::new(4);
    let (mut beside, mut more) = (Beside::default(), String::new());
    if stores.is_some() && shape.shares_strips(subgroup) {
        (beside, more) = read_beside(&mut module, &mut functions, &mut store, [x.var, y.var])?;
    }
    let result = store_results(&mut module, &mut store, stores.is_some())?;
    let _ = writeln!(
        functions,
        "fn store(v0: i32, v{}: i32, v{}: i32, {result}{more}) {{\n{}}}",
        x.var, y.var, store.text
    );
    let divides = |d: &Dim, by: u32| d.as_const().is_some_and(|d| d > 0 && d % i64::from(by) == 0);
    let CooperativeShape { rows, cols, k: depth, sub_rows, sub_cols } = shape;
    let (strip_cols, pad) = (shape.strip_cols(), CooperativeShape::PAD);
    let text = Cooperative {
        preamble: format!("{}\n{functions}", module.preamble()),
        setup: top.text,
        extents,
        blocks: Blocks { rows, cols, k: depth, sub_rows, sub_cols, strip_cols, pad },
        along_depth: [&x, &y].map(|s| s.order == Contiguous::Depth),
        tile_len: [shape.tile(rows, x.order), shape.tile(cols, y.order)],
        ahead,
        shares_strips: shape.shares_strips(subgroup),
        whole_depth: k.as_const().is_some_and(|k| k % i64::from(shape.k) == 0),
        whole_tiles: divides(x.extent, shape.rows) && divides(y.extent, shape.cols),
        operands: [x_operand, y_operand],
        store_vectors: stores.is_some(),
        beside,
        subgroup,
        chromium: cx.target.chromium_matrices,
    };
    let wgsl = text.render().map_err(template_error)?;
    let tiles = &x.extent.ceil_div(i64::from(shape.rows)) * &y.extent.ceil_div(i64::from(shape.cols));
    let groups = fold_workgroups(&(&tiles * batch), cx.target.max_workgroups);
    let bytes = shape.workgroup_bytes(x.order, y.order);
    Ok(module.finish("matmul", wgsl, [shape.subgroups() * subgroup, 1, 1], bytes, groups))
}

/// Writes `<name>_fetch`, which reads a run of neighbours of an operand, and `<name>_values`, which computes them.
fn operand(
    m: &mut Module,
    out: &mut String,
    name: &'static str,
    side: &Side<'_>,
    ids: &[ExprId],
) -> Result<Operand, Diagnostic> {
    if let [one] = ids[..] {
        one_by_one(m, out, name, side, one)?;
        return Ok(Operand { run: EIGHT, whole: false, read: run_type(EIGHT), computed: false });
    }
    let run = ids.len() as u32;
    let body = &m.kernel.body;
    let params = format!("v0: i32, v{}: i32, v{K}: i32", side.var);
    let ids: Vec<ExprId> = ids.iter().map(|id| unrounded(body, *id)).collect();
    let plain = m.plain_eight(&ids);
    let mut fetch = Scope::new(4);
    if let Some(eight) = plain {
        m.return_words(&mut fetch, &eight)?;
        let _ = writeln!(out, "fn {name}_fetch({params}) -> {WORDS} {{\n{}}}", fetch.text);
        let _ = writeln!(
            out,
            "fn {name}_values(words: {WORDS}, {params}) -> Run8 {{\n    return run_of_words(words);\n}}"
        );
        return Ok(Operand { run, whole: true, read: WORDS.into(), computed: false });
    }
    let loads: Vec<ExprId> =
        body.values(&ids).into_iter().filter(|id| matches!(body.expr(*id), Expr::Load { .. })).collect();
    let held = Held::read(m, &mut fetch, &loads)?;
    // Words that are more than the numbers in f32 are rather computed with at once.
    if held.words > run {
        let mut s = Scope::new(4);
        values(m, &mut s, &ids)?;
        let _ = writeln!(out, "fn {name}_fetch({params}) -> Run{run} {{\n{}}}", s.text);
        let _ =
            writeln!(out, "fn {name}_values(run: Run{run}, {params}) -> Run{run} {{\n    return run;\n}}");
        return Ok(Operand { run, whole: true, read: run_type(run), computed: false });
    }
    let read = format!("{}Read", name.to_uppercase());
    fetch.line(&format!("return {};", held.value(&read)));
    let mut s = Scope::new(4);
    held.bind(m, &mut s, "read")?;
    values(m, &mut s, &ids)?;
    let structure = held.structure(&read);
    let _ = writeln!(out, "{structure}fn {name}_fetch({params}) -> {read} {{\n{}}}", fetch.text);
    let _ = writeln!(out, "fn {name}_values(read: {read}, {params}) -> Run{run} {{\n{}}}", s.text);
    Ok(Operand { run, whole: true, read, computed: true })
}

/// The type of a run of neighbours.
fn run_type(run: u32) -> String {
    format!("Run{run}")
}

/// Writes the end of a function whose result are these values, as fours of f16.
fn values(m: &mut Module, s: &mut Scope, ids: &[ExprId]) -> Result<(), Diagnostic> {
    let values = ids.iter().map(|id| m.value(s, *id)).collect::<Result<Vec<_>, _>>()?;
    let fours: Vec<String> =
        values.chunks(4).map(|four| format!("vec4<f16>(vec4<f32>({}))", four.join(", "))).collect();
    s.line(&format!("return {}({});", run_type(ids.len() as u32), fours.join(", ")));
    Ok(())
}

/// Writes `<name>_fetch` of an operand whose elements along its memory order are no whole eights: each is read by itself, those beyond the
/// depth are zero, and of lines beyond the end is read the last.
fn one_by_one(
    m: &mut Module,
    out: &mut String,
    name: &str,
    side: &Side<'_>,
    id: ExprId,
) -> Result<(), Diagnostic> {
    let Some(count) = along(m.kernel, side) else {
        return Err(Diagnostic::internal("an operand of matrix units has an unknown number of elements"));
    };
    let line = side.var;
    let function = m.function(&format!("{name}_element"), &[0, line, K], unrounded(&m.kernel.body, id))?;
    let deep = side.along() == K;
    let element = |i: u32| {
        let at = format!("min(first + {i}, {})", count - 1);
        let (line, k) = if deep { (format!("v{line}"), at) } else { (at, format!("v{K}")) };
        let value = format!("{name}_element(v0, {line}, {k})");
        if deep { format!("select(0.0, {value}, first + {i} < {count})") } else { value }
    };
    let quad = |from: u32| (from..from + 4).map(element).collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        out,
        "{function}fn {name}_fetch(v0: i32, v{line}: i32, v{K}: i32) -> Run8 {{\n    let first = v{} * {EIGHT};\n    return Run8(vec4<f16>(vec4<f32>({})), vec4<f16>(vec4<f32>({})));\n}}",
        side.along(),
        quad(0),
        quad(4)
    );
    let _ = writeln!(
        out,
        "fn {name}_values(run: Run8, v0: i32, v{line}: i32, v{K}: i32) -> Run8 {{\n    return run;\n}}"
    );
    Ok(())
}

/// Writes the functions that read what stores of vectors need, once for a result and once for all results of a column, and binds the
/// values in the scope of the stores, whose further parameters it gives.
fn read_beside(
    m: &mut Module,
    out: &mut String,
    store: &mut Scope,
    [row, col]: [usize; 2],
) -> Result<(Beside, String), Diagnostic> {
    let (body, mut more) = (&m.kernel.body, String::new());
    let roots: Vec<ExprId> = m.kernel.stores.iter().flat_map(Store::reads).collect();
    let loads: Vec<ExprId> =
        body.reachable(&roots).into_iter().filter(|id| matches!(body.expr(*id), Expr::Load { .. })).collect();
    let (by_row, by_col): (Vec<_>, Vec<_>) =
        loads.into_iter().partition(|id| m.deps(*id) & var_bit(row) != 0);
    for (name, ids, params) in [
        ("beside", &by_row, format!("v0: i32, v{row}: i32, v{col}: i32")),
        ("across", &by_col, format!("v0: i32, v{col}: i32")),
    ] {
        let mut s = Scope::new(4);
        let held = Held::read(m, &mut s, ids)?;
        held.bind(m, store, name)?;
        if ids.is_empty() {
            continue;
        }
        let ty = if name == "beside" { "Beside" } else { "Across" };
        let _ = writeln!(out, "{}fn {name}({params}) -> {ty} {{", held.structure(ty));
        let _ = writeln!(out, "{}    return {};\n}}", s.text, held.value(ty));
        let _ = write!(more, ", {name}: {ty}");
    }
    Ok((Beside { rows: !by_row.is_empty(), cols: !by_col.is_empty() }, more))
}

/// The value that is rounded to f16, where that comes last: the conversion that follows rounds it, too.
fn unrounded(body: &Body, id: ExprId) -> ExprId {
    match *body.expr(id) {
        Expr::Cast(DType::F32, half) if body.dtype(half) == DType::F16 => match *body.expr(half) {
            Expr::Cast(DType::F16, own) if body.dtype(own) == DType::F32 => own,
            _ => id,
        },
        _ => id,
    }
}
