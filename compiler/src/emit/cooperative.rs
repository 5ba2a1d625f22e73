//! Products on matrix units: [`CooperativeShape`] instantiated.
//!
//! Both factors are f16 in the graph (of quantised weights: their scales are), sums are f32. Operands
//! are written out for eight neighbours in memory, whose loads become one.

use super::matmul::{K, Side};
use super::thin::{moved_stores, substitute};
use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, Matmul};
use crate::{DeviceProfile, Diagnostic};
use std::fmt::Write;
use wgfc_codegen_templates::cooperative::{Cooperative, CooperativeShape, FETCH};
use wgfc_codegen_templates::matmul::{Contiguous, Extents};
use wgfc_ir::{BinaryOp, DType, Poly};

/// Whether the units take both operands as they are, and they can be read by eights.
pub(super) fn suits(kernel: &Kernel, x: &Side<'_>, y: &Side<'_>) -> bool {
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

/// Whether the device can run it.
pub(super) fn fits(shape: CooperativeShape, x: Contiguous, y: Contiguous, profile: &DeviceProfile) -> bool {
    let Some(subgroup) = profile.subgroup.filter(|_| profile.cooperative_matrix && profile.f16) else {
        return false;
    };
    shape.subgroups() * subgroup <= profile.max_invocations
        && shape.divides(subgroup)
        && shape.workgroup_bytes(x, y) <= profile.max_workgroup_bytes
}

/// Emits the product cut up as `shape`.
pub(super) fn emit(
    kernel: &Kernel,
    [x, y]: [Side<'_>; 2],
    cx: &EmitContext,
    shape: CooperativeShape,
) -> Result<EmittedKernel, Diagnostic> {
    let Family::Matmul(Matmul { batch, m, n, k, .. }) = &kernel.family else {
        return Err(Diagnostic::internal("not a matmul kernel"));
    };
    let Some(subgroup) =
        cx.profile.subgroup.filter(|_| suits(kernel, &x, &y) && fits(shape, x.order, y.order, cx.profile))
    else {
        return Err(Diagnostic::internal(format!("{shape:?} does not fit the product or the device")));
    };
    let domain = [batch, m, n, k].map(Poly::clone);
    let mut body = Body::default();
    let eight = i64::from(FETCH);
    let mut eights = |s: &Side<'_>| -> Vec<ExprId> {
        let along = if s.order == Contiguous::Depth { K } else { s.var };
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
    let mut kernel = moved_stores(kernel, body);
    let roots: Vec<ExprId> = xs.iter().chain(&ys).copied().collect();
    if let Family::Matmul(Matmul { a, b, .. }) = &mut kernel.family {
        *a = roots.first().copied().unwrap_or(0);
        b.clone_from(&roots);
    }
    let mut module = Module::new(&kernel, cx, false)?;
    module.vectorise(&roots);
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
        let values = ids.iter().map(|id| module.value(&mut s, *id)).collect::<Result<Vec<_>, _>>()?;
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
    for s in &kernel.stores {
        module.store(&mut store, s)?;
    }
    let _ = writeln!(
        functions,
        "fn store(v0: i32, v{}: i32, v{}: i32, acc0: f32) {{\n{}}}",
        x.var, y.var, store.text
    );
    let text = Cooperative {
        preamble: format!("{}\n{functions}", module.preamble()),
        setup: top.text,
        extents,
        shape,
        x: x.order,
        y: y.order,
        whole_depth: k.as_const().is_some_and(|k| k % i64::from(shape.k) == 0),
        subgroup,
    };
    let wgsl = text.render().map_err(template_error)?;
    let tiles = &x.extent.ceil_div(i64::from(shape.rows)) * &y.extent.ceil_div(i64::from(shape.cols));
    let groups = fold_workgroups(&(&tiles * batch), cx.profile.max_workgroups);
    let bytes = shape.workgroup_bytes(x.order, y.order);
    Ok(module.finish("matmul", wgsl, [shape.subgroups() * subgroup, 1, 1], bytes, groups))
}
