//! Products on matrix units: [`Cooperative`] instantiated.
//!
//! Both factors are f16 in the graph (of quantised weights: their scales are), sums are f32. Operands
//! are written out for eight neighbours in memory, whose loads become one.

use super::matmul::{store_results, vector_stores};
use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::substitute::{K, moved_stores, substitute};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, Matmul, Store};
use crate::schedule::products;
use crate::schedule::products::problem::{Side, suits};
use std::fmt::Write;
use wgfc_codegen_templates::cooperative::{Cooperative, FETCH};
use wgfc_codegen_templates::matmul::Extents;
use wgfc_ir::{DType, Dim, Poly};

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
    let products::Cooperative { shape, subgroup } = *schedule;
    if !suits(kernel, &x, &y) || !shape.divides(subgroup) {
        return Err(Diagnostic::internal(format!("{shape:?} does not fit the product or the device")));
    }
    let domain = [batch, m, n, k].map(Poly::clone);
    let mut body = Body::default();
    let eight = i64::from(FETCH);
    let mut eights = |s: &Side<'_>| -> Vec<ExprId> {
        let along = s.along();
        let mut domain = domain.clone();
        domain[along] = domain[along].div(&eight.into(), &[]);
        (0..eight)
            .map(|i| {
                let mut vars = [0, 1, 2, 3].map(Poly::var);
                vars[along] = &(&vars[along] * eight) + &i.into();
                let ids = substitute(&kernel.body, &mut body, &[s.root], &vars, &domain);
                ids.get(s.root as usize).copied().flatten().unwrap_or(0)
            })
            .collect()
    };
    let (xs, ys) = (eights(&x), eights(&y));
    let stores = vector_stores(kernel, &y, &mut body, cx)?;
    let mut kernel = match &stores {
        Some(stores) => Kernel { body, stores: stores.concat(), ..kernel.clone() },
        None => moved_stores(kernel, body),
    };
    let roots: Vec<ExprId> = xs.iter().chain(&ys).copied().collect();
    if let Family::Matmul(Matmul { a, b, .. }) = &mut kernel.family {
        *a = roots.first().copied().unwrap_or(0);
        b.clone_from(&roots);
    }
    let mut module = Module::new(&kernel, cx, false)?;
    module.vectorise(&roots);
    if stores.is_some() {
        let reads: Vec<ExprId> = kernel.stores.iter().flat_map(Store::reads).collect();
        module.vectorise(&reads);
        for s in &kernel.stores {
            module.bindings.declare_vectors(cx.graph, s.tensor, 4);
        }
    }
    module.uses_f16 = true;
    module.subgroup = Some(subgroup);
    module.uses_cooperative = true;

    let mut top = Scope::new(4);
    let extents = Extents {
        batch: module.extent(&mut top, batch)?,
        rows: module.extent(&mut top, x.extent)?,
        cols: module.extent(&mut top, y.extent)?,
        depth: module.extent(&mut top, k)?,
    };
    let mut functions = "struct Eight { low: vec4<f16>, high: vec4<f16> }\n".to_owned();
    for (name, side, ids) in [("x", &x, &xs), ("y", &y, &ys)] {
        let mut s = Scope::new(4);
        let values = ids
            .iter()
            .map(|id| module.value(&mut s, unrounded(&kernel.body, *id)))
            .collect::<Result<Vec<_>, _>>()?;
        let (low, high) = values.split_at(4);
        let _ = writeln!(
            functions,
            "fn {name}_fetch(v0: i32, v{}: i32, v{K}: i32) -> Eight {{\n{}    return Eight(vec4<f16>(vec4<f32>({})), vec4<f16>(vec4<f32>({})));\n}}",
            side.var,
            s.text,
            low.join(", "),
            high.join(", ")
        );
    }
    let mut store = Scope::new(4);
    let result = store_results(&mut module, &mut store, stores.is_some())?;
    let _ = writeln!(
        functions,
        "fn store(v0: i32, v{}: i32, v{}: i32, {result}) {{\n{}}}",
        x.var, y.var, store.text
    );
    let divides = |d: &Dim, by: u32| d.as_const().is_some_and(|d| d > 0 && d % i64::from(by) == 0);
    let text = Cooperative {
        preamble: format!("{}\n{functions}", module.preamble()),
        setup: top.text,
        extents,
        shape,
        x: x.order,
        y: y.order,
        whole_depth: k.as_const().is_some_and(|k| k % i64::from(shape.k) == 0),
        whole_tiles: divides(x.extent, shape.rows) && divides(y.extent, shape.cols),
        store_vectors: stores.is_some(),
        subgroup,
    };
    let wgsl = text.render().map_err(template_error)?;
    let tiles = &x.extent.ceil_div(i64::from(shape.rows)) * &y.extent.ceil_div(i64::from(shape.cols));
    let groups = fold_workgroups(&(&tiles * batch), cx.target.max_workgroups);
    let bytes = shape.workgroup_bytes(x.order, y.order);
    Ok(module.finish("matmul", wgsl, [shape.subgroups() * subgroup, 1, 1], bytes, groups))
}

/// What is rounded to f16, where that comes last: the conversion that follows does it, too.
fn unrounded(body: &Body, id: ExprId) -> ExprId {
    match *body.expr(id) {
        Expr::Cast(DType::F32, half) if body.dtype(half) == DType::F16 => match *body.expr(half) {
            Expr::Cast(DType::F16, own) if body.dtype(own) == DType::F32 => own,
            _ => id,
        },
        _ => id,
    }
}
