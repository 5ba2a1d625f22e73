//! Products with short sums: [`Window`] instantiated.

use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::bindings::Bindings;
use crate::kernel::{ExprId, Family, Kernel, Matmul, Store};
use crate::schedule::products::problem::Side;
use crate::schedule::products::window::{self, Written};
use wgfc_codegen_templates::matmul::Extents;
use wgfc_codegen_templates::untiled::Window;

/// Writes the product as its schedule says.
pub(super) fn emit(
    kernel: &Kernel,
    [x, y]: [Side<'_>; 2],
    cx: &EmitContext,
    schedule: &window::Window,
) -> Result<EmittedKernel, Diagnostic> {
    let window::Window { threads, rows, cols } = *schedule;
    let Family::Matmul(Matmul { batch, .. }) = &kernel.family else {
        return Err(Diagnostic::internal("not a matmul kernel"));
    };
    let Written { body, stores, mut vectors } = window::write(kernel, &x, &y, [rows, cols])
        .ok_or_else(|| Diagnostic::internal(format!("{schedule:?} does not fit the product")))?;
    let roots: Vec<ExprId> = stores.iter().flatten().flat_map(Store::reads).collect();
    let mut written = Kernel { body, stores: stores.concat(), ..kernel.clone() };
    if let Family::Matmul(Matmul { a, b, .. }) = &mut written.family {
        *a = roots.first().copied().unwrap_or(0);
        *b = vec![*a];
    }
    // A tensor is declared as vectors if all of its stores are.
    let mut bindings = Bindings::of(&written, cx.graph, cx.target.f16, false)?;
    let tensor = |all: &[Store]| all.first().map(|s| s.tensor);
    let of: Vec<_> = stores.iter().map(|all| tensor(all)).collect();
    for (i, t) in of.iter().enumerate() {
        let whole = of.iter().zip(&vectors).all(|(u, v)| u != t || *v);
        vectors[i] = whole && t.is_some_and(|t| bindings.declare_vectors(cx.graph, t, cols));
    }

    let mut module = Module::new(&written, cx)?;
    module.vectorise(&roots);
    for (t, _) in of.iter().zip(&vectors).filter(|(_, v)| **v) {
        module.bindings.declare_vectors(cx.graph, t.unwrap_or_default(), cols);
    }
    let mut top = Scope::new(4);
    let extents = Extents {
        batch: module.extent(&mut top, batch)?,
        rows: module.extent(&mut top, x.extent)?,
        cols: module.extent(&mut top, y.extent)?,
        depth: String::new(),
    };
    let mut body = top.inner(4);
    let setup = std::mem::take(&mut top.text);
    module.read_ahead(&mut body, stores.iter().flatten().flat_map(Store::reads))?;
    for (all, vector) in stores.iter().zip(&vectors) {
        if *vector {
            module.store_neighbours(&mut body, all)?;
        } else {
            for s in all {
                module.store(&mut body, s)?;
            }
        }
    }
    let text = Window {
        preamble: module.preamble(),
        setup,
        extents,
        threads,
        block: [rows, cols],
        vars: [x.var, y.var],
        body: body.text,
    };
    let wgsl = text.render().map_err(template_error)?;
    let blocks = &x.extent.ceil_div(i64::from(rows)) * &y.extent.ceil_div(i64::from(cols));
    let groups = (&blocks * batch).ceil_div(i64::from(threads));
    let groups = fold_workgroups(&groups, cx.target.max_workgroups);
    Ok(module.finish("matmul", wgsl, [threads, 1, 1], 0, groups))
}
