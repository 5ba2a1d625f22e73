//! Products of many rows in integers: [`TiledIntegers`](products::TiledIntegers) instantiated.
//!
//! Each operand gets a function that reads a group of neighbours along k as words of bytes with their scales. Rows are rounded there; the
//! integers of weights are put into bytes. A zero that is the same for all weights is taken off their bytes.

use super::integers::{Weights, round, sum_of_words};
use super::matmul::{depth, module_of, store_results, vector_stores, with_operands};
use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::substitute::{K, substitute};
use crate::kernel::{Body, ExprId, Family, GROUP, Kernel, Matmul};
use crate::schedule::products::integers::integers;
use crate::schedule::products::problem::{Side, operands, stores_are_long};
use crate::schedule::products::{self, Product, TileShape};
use std::fmt::Write;
use wgfc_codegen_templates::integer_tiles::IntegerTiles;
use wgfc_codegen_templates::matmul::{Extents, Tile};
use wgfc_ir::{Dim, Poly};

/// Writes the product as its schedule says.
pub(super) fn emit(
    kernel: &Kernel,
    [x, y]: [Side<'_>; 2],
    cx: &EmitContext,
    schedule: &products::TiledIntegers,
) -> Result<EmittedKernel, Diagnostic> {
    let Family::Matmul(Matmul { batch, m, n, k, .. }) = &kernel.family else {
        return Err(Diagnostic::internal("not a matmul kernel"));
    };
    let TileShape { rows, cols, k: step, thread_rows, thread_cols, split } = schedule.shape;
    let found = operands(kernel, x, y).and_then(|o| integers(kernel, &o));
    let Some(integers) = found.filter(|_| schedule.suits(k)) else {
        return Err(Diagnostic::internal(format!("{schedule:?} does not fit the product")));
    };
    let groups = k.div(&i64::from(GROUP).into(), &[]);
    let mut domain = [batch, m, n, k].map(Poly::clone);
    domain[K] = groups.clone();
    let mut body = Body::default();
    let mut group = |side: &Side<'_>| -> Vec<ExprId> {
        let element = |i: u32| {
            let mut vars = [0, 1, 2, 3].map(Poly::var);
            vars[K] = &(&vars[K] * i64::from(GROUP)) + &i64::from(i).into();
            let ids = substitute(&kernel.body, &mut body, &[side.root], &vars, &domain);
            ids.get(side.root as usize).copied().flatten().unwrap_or(0)
        };
        (0..GROUP).map(element).collect()
    };
    let (xs, ys) = (group(&x), group(&y));
    let weights = Weights::of(&mut body, &[vec![ys]], integers)?;
    let rolled = stores_are_long(kernel, Product::TiledIntegers(*schedule).results_of_invocation());
    let stores = if rolled { None } else { vector_stores(kernel, &y, &mut body, cx)? };
    let words = weights.loads();
    let roots: Vec<ExprId> = xs.iter().chain(&words).copied().chain(weights.floats()).collect();
    let kernel = with_operands(kernel, body, stores.as_deref(), &roots);
    let mut module = module_of(&kernel, cx, &roots, stores.is_some())?;
    let mut top = Scope::new(4);
    let mut functions = String::new();
    let extents = Extents {
        batch: module.extent(&mut top, batch)?,
        rows: module.extent(&mut top, x.extent)?,
        cols: module.extent(&mut top, y.extent)?,
        depth: depth(&mut module, &mut top, &mut functions, &groups)?,
    };
    let offsets = weights.have_offsets();
    rows_group(&mut module, &mut functions, x.var, &xs, &weights)?;
    columns_group(&mut module, &mut functions, y.var, &weights)?;
    let mut store = Scope::new(4);
    let result = store_results(&mut module, &mut store, stores.is_some())?;
    let _ = writeln!(
        functions,
        "fn store(v0: i32, v{}: i32, v{}: i32, {result}) {{\n{}}}",
        x.var, y.var, store.text
    );
    let text = IntegerTiles {
        preamble: format!("{}\n{functions}", module.preamble()),
        setup: top.text,
        extents,
        tile: Tile { rows, cols, k: step, thread_rows, thread_cols, split },
        buffers: schedule.buffers,
        unit: integers.unit,
        offsets,
        rows_first: schedule.rows_first,
        store_vectors: stores.is_some(),
        rolled,
    };
    let wgsl = text.render().map_err(template_error)?;
    let tiles = |extent: &Dim, of: u32| extent.ceil_div(i64::from(of));
    let groups = &(&tiles(x.extent, rows) * &tiles(y.extent, cols)) * batch;
    let groups = fold_workgroups(&groups, cx.target.max_workgroups);
    let bytes = schedule.workgroup_bytes(integers.unit, offsets);
    Ok(module.finish("matmul", wgsl, [schedule.shape.threads(), 1, 1], bytes, groups))
}

/// Writes `x_group`, which reads a group of a row and rounds it.
fn rows_group(
    m: &mut Module,
    out: &mut String,
    line: usize,
    xs: &[ExprId],
    weights: &Weights,
) -> Result<(), Diagnostic> {
    let mut s = Scope::new(4);
    let values = xs.iter().map(|id| m.value(&mut s, *id)).collect::<Result<Vec<_>, _>>()?;
    let rounded = round(&mut s, &values, weights.integers.pairs, |_, greatest| greatest);
    let mut sums = vec![];
    for words in rounded.words.chunks(weights.integers.unit as usize / 4) {
        let sum = sum_of_words(&mut s, words);
        sums.push(format!("{} * f32({sum})", rounded.scale));
    }
    let sums = if weights.have_offsets() { sums } else { vec![] };
    let fields = ["scale".to_owned()].into_iter().chain((0..sums.len()).map(|u| format!("sum{u}")));
    let values = [rounded.scale.to_string()].into_iter().chain(sums).collect();
    group(out, "x", line, s, (&rounded.words, fields.collect(), values));
    Ok(())
}

/// Writes `y_group`, which reads a group of a column.
fn columns_group(m: &mut Module, out: &mut String, line: usize, weights: &Weights) -> Result<(), Diagnostic> {
    let mut s = Scope::new(4);
    let (mut words, mut fields, mut values) = (vec![], vec![], vec![]);
    for (u, unit) in weights.units(m, &mut s)?.into_iter().enumerate() {
        words.extend(unit.words);
        fields.push(format!("scale{u}"));
        values.push(unit.scale);
        if let Some(offset) = unit.offset {
            fields.push(format!("offset{u}"));
            values.push(offset);
        }
    }
    group(out, "y", line, s, (&words, fields, values));
    Ok(())
}

/// Writes the structure of a group and the function that reads it: eight words, and numbers in the fields.
fn group(
    out: &mut String,
    name: &str,
    line: usize,
    s: Scope,
    (words, fields, values): (&[String], Vec<String>, Vec<String>),
) {
    let ty = format!("{}Group", name.to_uppercase());
    let fields: String = fields.iter().map(|f| format!("    {f}: f32,\n")).collect();
    let (low, high) = words.split_at(words.len().min(4));
    let _ = writeln!(
        out,
        "struct {ty} {{\n    words0: vec4<u32>,\n    words1: vec4<u32>,\n{fields}}}\nfn {name}_group(v0: i32, v{line}: i32, v{K}: i32) -> {ty} {{\n{}    return {ty}(vec4<u32>({}), vec4<u32>({}), {});\n}}\n",
        s.text,
        low.join(", "),
        high.join(", "),
        values.join(", ")
    );
}
