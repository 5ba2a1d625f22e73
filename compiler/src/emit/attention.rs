//! The `Attention` family.

use super::matmul::{hoistable, operand};
use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::kernel::{Family, Kernel};
use crate::{DeviceProfile, Diagnostic, kernel};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};
use wgfc_codegen_templates::attention::{Attention, Decode, Problem};
use wgfc_ir::{DType, Dim, Reg, Scalar};

/// The widest values a thread can hold the sums of.
const MAX_WIDTH: i64 = 256;
/// Workgroups that keep a GPU busy; more than so many are not worth smaller ones.
const ENOUGH: i64 = 160;

/// Queries up to which a workgroup for each of them may be worth trying.
const MOST_QUERIES: i64 = 16;

/// How attention is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Geometry {
    /// Blocks of queries.
    Tiled {
        /// Queries of a workgroup.
        queries: u32,
        /// Queries of a thread, 1 or 2.
        thread_queries: u32,
    },
    /// A workgroup a query, for few queries.
    Decode,
}

/// The tiled geometries, largest first.
pub const TILED: &[Geometry] = &[
    Geometry::Tiled { queries: 64, thread_queries: 2 },
    Geometry::Tiled { queries: 32, thread_queries: 2 },
    Geometry::Tiled { queries: 16, thread_queries: 1 },
    Geometry::Tiled { queries: 8, thread_queries: 1 },
];

impl Geometry {
    fn fits(self, profile: &DeviceProfile) -> bool {
        match self {
            Geometry::Tiled { queries, thread_queries } => {
                queries / thread_queries * 8 <= profile.max_invocations
            }
            Geometry::Decode => profile.max_invocations >= 256,
        }
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Geometry::Tiled { queries, thread_queries } => {
                write!(f, "{queries} queries, {thread_queries} a thread")
            }
            Geometry::Decode => f.write_str("a query a workgroup"),
        }
    }
}

/// All geometries that a device can run on an attention kernel, the preferred one first.
pub fn candidates(kernel: &Kernel, profile: &DeviceProfile) -> Vec<Geometry> {
    let Family::Attention(kernel::Attention { batch, s, t, d, parts, .. }) = &kernel.family else {
        return vec![];
    };
    let first = if *parts > 1 { Geometry::Decode } else { choose(batch, s, t, d, profile) };
    let mut out = vec![first];
    if *parts > 1 {
        return out;
    }
    let few = s.as_const().is_some_and(|s| s <= MOST_QUERIES) && takes_decode(d, profile);
    let tiled = TILED.iter().filter(|g| g.fits(profile));
    out.extend(tiled.chain(few.then_some(&Geometry::Decode)).filter(|g| **g != first));
    out
}

/// Emits with the given geometry, or a suitable one.
///
/// # Errors
/// `Unsupported` where the width of the values is not a constant of at most 256; else as
/// [`emit`](super::emit).
pub fn emit_as(
    kernel: &Kernel,
    cx: &EmitContext,
    forced: Option<Geometry>,
) -> Result<EmittedKernel, Diagnostic> {
    let kernel = &hoistable(&hoistable(kernel, 3), 4);
    let Family::Attention(kernel::Attention { batch, s, t, d, e, q, k, v, mask, scale, parts, part_stores }) =
        &kernel.family
    else {
        return Err(Diagnostic::internal("not an attention kernel"));
    };
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
    operand(&mut module, &mut functions, "q", *q, 1, 3)?;
    operand(&mut module, &mut functions, "k", *k, 2, 3)?;
    operand(&mut module, &mut functions, "v", *v, 2, 4)?;
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
    let geometry = forced
        .unwrap_or_else(|| if *parts > 1 { Geometry::Decode } else { choose(batch, s, t, d, cx.profile) });
    let part = if geometry == Geometry::Decode { ", v5: i32" } else { "" };
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
    };

    let (wgsl, threads, bytes, groups) = match geometry {
        Geometry::Tiled { queries, thread_queries } => {
            let depth = if queries >= 64 { 16 } else { 32 };
            let whole_depth = d.as_const().is_some_and(|d| d % i64::from(depth) == 0);
            let a = Attention { problem, queries, thread_queries, depth, whole_depth };
            let groups = &s.ceil_div(i64::from(queries)) * batch;
            (a.render(), a.threads(), a.workgroup_bytes(), groups)
        }
        Geometry::Decode => {
            let depth_max = d.as_const().unwrap_or(MAX_WIDTH).max(1) as u32;
            let threads = cx.profile.max_invocations.min(256);
            let subgroup = cx.profile.subgroup.filter(|s| threads.is_multiple_of(*s));
            module.subgroup = subgroup;
            let a = Decode { problem, threads, depth_max, parts: *parts, subgroup: subgroup.unwrap_or(1) };
            (a.render(), threads, a.workgroup_bytes(), &(s * batch) * i64::from(*parts))
        }
    };
    let wgsl = wgsl.map_err(template_error)?;
    let groups = fold_workgroups(&groups, cx.profile.max_workgroups);
    Ok(module.finish("attention", wgsl, [threads, 1, 1], bytes, groups))
}

/// The largest blocks of queries that still make enough workgroups.
fn choose(batch: &Dim, s: &Dim, t: &Dim, d: &Dim, profile: &DeviceProfile) -> Geometry {
    let size = |d: &Dim| d.eval_syms(&|_| Some(super::geometry::ASSUMED)).unwrap_or(i64::MAX).max(1);
    let few = s.as_const().is_some_and(|s| s <= 4) && size(t) >= 16 * size(s);
    if few && takes_decode(d, profile) {
        return Geometry::Decode;
    }
    let smallest = Geometry::Tiled { queries: 8, thread_queries: 1 };
    for g in TILED {
        let Geometry::Tiled { queries, .. } = *g else { continue };
        let blocks = size(s).saturating_add(i64::from(queries) - 1) / i64::from(queries);
        if g.fits(profile) && size(batch).saturating_mul(blocks) >= ENOUGH {
            return *g;
        }
    }
    smallest
}

/// Whether the geometry for few queries can be had.
fn takes_decode(d: &Dim, profile: &DeviceProfile) -> bool {
    d.as_const().is_some_and(|d| d <= MAX_WIDTH) && profile.max_invocations >= 256
}
