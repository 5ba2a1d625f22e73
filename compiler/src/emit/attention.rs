//! The `Attention` family.

use super::matmul::operand;
use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::substitute::hoistable;
use crate::kernel::{self, Family, Kernel};
use crate::schedule::attention::{self, MAX_WIDTH};
use std::fmt::Write;
use wgfc_codegen_templates::attention::{Attention, Decode, Problem};
use wgfc_ir::{DType, Reg, Scalar};

/// Writes attention as its schedule says.
///
/// # Errors
/// `Unsupported` where the width of the values is not a constant of at most 256; else as
/// [`emit`](super::emit).
pub(super) fn emit(
    kernel: &Kernel,
    schedule: &attention::Attention,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let kernel = &hoistable(&hoistable(kernel, 3), 4);
    let Family::Attention(k) = &kernel.family else {
        return Err(Diagnostic::internal("not an attention kernel"));
    };
    let kernel::Attention { batch, s, t, d, e, q, k, v, mask, scale, empty_is_zero, parts, part_stores } = k;
    let width = match e.as_const() {
        Some(e) if (1..=MAX_WIDTH).contains(&e) => e as u32,
        _ => {
            return Err(Diagnostic::unsupported(format!(
                "attention over values of width {e}: the fused kernel takes a known width of at most {MAX_WIDTH}"
            ))
            .help("compile with --without approximate, which leaves attention as products and a softmax"));
        }
    };
    let mut module = Module::new(kernel, cx, false)?;
    let mut top = Scope::new(4);
    let batch_text = module.extent(&mut top, batch)?;
    let s_text = module.extent(&mut top, s)?;
    let t_text = module.extent(&mut top, t)?;
    let d_text = module.extent(&mut top, d)?;
    let mut functions = String::new();
    operand(&mut module, &mut functions, "q", &[*q], 1, 3)?;
    operand(&mut module, &mut functions, "k", &[*k], 2, 3)?;
    operand(&mut module, &mut functions, "v", &[*v], 2, 4)?;
    if let Some(mask) = mask {
        if kernel.body.dtype(*mask).reg() != Reg::F32 {
            return Err(Diagnostic::internal("an attention mask is not a float"));
        }
        functions.push_str(&module.function("load_mask", &[0, 1, 2], *mask)?);
        functions.push('\n');
    }
    let mut body = Scope::new(4);
    for s in &kernel.stores {
        module.store(&mut body, s)?;
    }
    let scale_text = match scale.is_finite() {
        true => format!("{scale:?}"),
        false => module.literal(Scalar::from_f64(DType::F32, f64::from(*scale)))?,
    };
    let decode = matches!(schedule, attention::Attention::Decode(_));
    if *parts > 1 && !decode {
        return Err(Diagnostic::internal("attention in parts takes a workgroup for each query"));
    }
    let part = if decode { ", v5: i32" } else { "" };
    let _ = writeln!(functions, "fn store(v0: i32, v1: i32, v4: i32{part}, acc0: f32) {{\n{}}}", body.text);
    if *parts > 1 {
        let mut body = Scope::new(4);
        for s in part_stores {
            module.store(&mut body, s)?;
        }
        let _ = writeln!(
            functions,
            "fn store_part(v0: i32, v1: i32, v5: i32, acc1: f32, acc2: f32) {{\n{}}}",
            body.text
        );
    }
    let problem = Problem {
        preamble: format!("{}\n{functions}", module.preamble()),
        setup: top.text,
        batch: batch_text,
        s: s_text,
        t: t_text,
        d: d_text,
        e: width,
        mask: mask.is_some(),
        scale: scale_text,
        empty_is_zero: *empty_is_zero,
    };

    let (wgsl, threads, bytes, groups) = match *schedule {
        attention::Attention::Tiled(attention::Tiled { queries, thread_queries, depth }) => {
            let whole_depth = d.as_const().is_some_and(|d| d % i64::from(depth) == 0);
            let a = Attention { problem, queries, thread_queries, depth, whole_depth };
            let groups = &s.ceil_div(i64::from(queries)) * batch;
            (a.render(), a.threads(), a.workgroup_bytes(), groups)
        }
        attention::Attention::Decode(attention::Decode { threads, subgroup }) => {
            let depth_max = d.as_const().unwrap_or(MAX_WIDTH).max(1) as u32;
            module.subgroup = (subgroup > 1).then_some(subgroup);
            let a = Decode { problem, threads, depth_max, parts: *parts, subgroup };
            (a.render(), threads, a.workgroup_bytes(), &(s * batch) * i64::from(*parts))
        }
    };
    let wgsl = wgsl.map_err(template_error)?;
    let groups = fold_workgroups(&groups, cx.target.max_workgroups);
    Ok(module.finish("attention", wgsl, [threads, 1, 1], bytes, groups))
}
