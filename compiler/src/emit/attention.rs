//! The `Attention` family.

use super::matmul::{operand, store_results, vector_stores};
use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::substitute::{hoistable, moved, substitute};
use crate::kernel::window::Window;
use crate::kernel::{self, Body, ExprId, Family, Kernel, Store};
use crate::schedule::attention::{self, MAX_WIDTH};
use crate::schedule::products::Contiguous;
use crate::schedule::products::problem::Side;
use std::fmt::Write;
use wgfc_codegen_templates::attention::{
    self as template, Attention, Cooperative, Decode, Problem, Streamed, Window as Seen,
};
use wgfc_ir::{Atom, DType, Poly, Reg, Scalar};

/// Neighbouring keys whose mask is read at a time, those that are preferred first: 16 bytes of it.
const MASKS: [u32; 3] = [16, 8, 4];

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
    let decode = matches!(schedule, attention::Attention::Streamed(_) | attention::Attention::Decode(_));
    // So many neighbours are read at a time, where that is possible.
    let runs = match schedule {
        attention::Attention::Tiled(_) => [4; 3],
        attention::Attention::Streamed(s) => [4, s.run, s.run],
        attention::Attention::Decode(_) => [1; 3],
        attention::Attention::Cooperative(_) => [8; 3],
    };
    let on_units = matches!(schedule, attention::Attention::Cooperative(_));
    let (mut kernel, roots, masks) = operands(kernel, runs, on_units)?;
    let vectors = on_units && stores_in_vectors(&mut kernel, cx)?;
    let (kernel, roots) = (&kernel, &roots);
    let Family::Attention(k) = &kernel.family else {
        return Err(Diagnostic::internal("not an attention kernel"));
    };
    let kernel::Attention {
        batch, s, t, d, e, mask, scale, empty_is_zero, parts: count, part_stores, ..
    } = k;
    let width = match e.as_const() {
        Some(e) if (1..=MAX_WIDTH).contains(&e) => e as u32,
        _ => {
            return Err(Diagnostic::unsupported(format!(
                "attention over values of width {e}: the fused kernel takes a known width of at most {MAX_WIDTH}"
            ))
            .help("compile with --without approximate, which leaves attention as products and a softmax"));
        }
    };
    let mut module = Module::new(kernel, cx)?;
    let wide = roots.iter().filter(|ids| ids.len() > 1).flatten().chain(&masks);
    let wide: Vec<ExprId> = wide.copied().collect();
    module.vectorise(&wide);
    if vectors {
        let reads: Vec<ExprId> = kernel.stores.iter().flat_map(Store::reads).collect();
        module.vectorise(&reads);
        for s in &kernel.stores {
            module.bindings.declare_vectors(cx.graph, s.tensor, 4);
        }
    }
    module.uses_cooperative = on_units;
    // Behind a bound that is not uniform there can be no barrier. Data are uniform in bindings that are only read.
    let streams = matches!(schedule, attention::Attention::Streamed(_));
    let window = Window::of(kernel, &|t| streams || module.bindings.is_read(t));
    let mut top = Scope::new(4);
    let batch_text = module.extent(&mut top, batch)?;
    let s_text = module.extent(&mut top, s)?;
    let t_text = module.extent(&mut top, t)?;
    let d_text = module.extent(&mut top, d)?;
    let parts_text = module.extent(&mut top, count)?;
    let mut functions = String::new();
    if roots.iter().any(|r| r.len() == 8) {
        let of = if module.uses_cooperative { "f16" } else { "f32" };
        let _ = writeln!(functions, "struct Eight {{ low: vec4<{of}>, high: vec4<{of}> }}");
    }
    if roots.iter().any(|r| r.len() == 16) {
        functions.push_str(
            "struct Sixteen { first: vec4<f32>, second: vec4<f32>, third: vec4<f32>, fourth: vec4<f32> }\n",
        );
    }
    let library = if on_units { &["attention_total"][..] } else { &["attention_score", "attention_weight"] };
    for function in library {
        module.lib(function)?;
    }
    let [qs, ks, vs] = roots;
    operand(&mut module, &mut functions, "q", qs, 1, 3)?;
    operand(&mut module, &mut functions, "k", ks, 2, 3)?;
    operand(&mut module, &mut functions, "v", vs, 2, 4)?;
    let exact = if decode && window.is_bounded() && window.exact && !window.half {
        Some(Seen { free: None, ..seen(&mut module, &top, &window, true, ["s", "s"])? })
    } else {
        None
    };
    if let Some(mask) = mask.filter(|_| exact.is_none()) {
        if kernel.body.dtype(mask).reg() != Reg::F32 {
            return Err(Diagnostic::internal("an attention mask is not a float"));
        }
        functions.push_str(&match masks.is_empty() {
            true => module.function("load_mask", &[0, 1, 2], mask)?,
            false => load_masks(&mut module, &masks)?,
        });
        functions.push('\n');
    }
    let mut body = Scope::new(4);
    let result = store_results(&mut module, &mut body, vectors)?;
    let scale_text = match scale.is_finite() {
        true => format!("{scale:?}"),
        false => module.literal(Scalar::from_f64(DType::F32, f64::from(*scale)))?,
    };
    let parted = !part_stores.is_empty();
    if parted && !decode {
        return Err(Diagnostic::internal("attention in parts takes workgroups for each query"));
    }
    let part = if decode { ", v5: i32" } else { "" };
    let _ = writeln!(functions, "fn store(v0: i32, v1: i32, v4: i32{part}, {result}) {{\n{}}}", body.text);
    if parted {
        let mut body = Scope::new(4);
        module.stores(&mut body, part_stores)?;
        let _ = writeln!(
            functions,
            "fn store_part(v0: i32, v1: i32, v5: i32, acc1: f32, acc2: f32) {{\n{}}}",
            body.text
        );
    }
    let problem = |module: &Module| Problem {
        preamble: format!("{}\n{functions}", module.preamble()),
        setup: top.text.clone(),
        batch: batch_text.clone(),
        s: s_text.clone(),
        t: t_text.clone(),
        d: d_text.clone(),
        e: width,
        mask: mask.is_some(),
        scale: scale_text.clone(),
        empty_is_zero: *empty_is_zero,
    };

    let (wgsl, threads, bytes, groups) = match *schedule {
        attention::Attention::Tiled(attention::Tiled { tiles, subgroup }) => {
            if !tiles.is_sound() {
                return Err(Diagnostic::internal(format!("{tiles:?} is no way to cut up attention")));
            }
            let depth = d.as_const().and_then(|d| u32::try_from(d).ok());
            if tiles.kept && depth.is_none() {
                return Err(Diagnostic::internal("queries of an unknown width are not kept"));
            }
            let window = seen(&mut module, &top, &window, *empty_is_zero, ["first", "last"])?;
            module.subgroup = (subgroup > 1).then_some(subgroup);
            let fours = roots.each_ref().map(|ids| ids.len() > 1);
            let (problem, bytes) = (problem(&module), tiles.workgroup_bytes(depth, width, subgroup));
            let parts = tiled_parts(tiles, depth, width);
            let a = Attention { problem, tiles: parts, subgroup, depth, fours, window };
            let groups = &s.ceil_div(i64::from(tiles.queries)) * batch;
            (a.render(), tiles.threads(), bytes, groups)
        }
        attention::Attention::Cooperative(matrices) => {
            let depth = d.as_const().and_then(|d| u32::try_from(d).ok()).unwrap_or(0);
            if !matrices.fits(depth, width) || roots.iter().any(|r| r.len() != 8) {
                return Err(Diagnostic::internal(format!("{matrices:?} does not fit the queries and keys")));
            }
            let window = seen(&mut module, &top, &window, *empty_is_zero, ["first", "last"])?;
            module.uses_f16 = true;
            module.subgroup = Some(matrices.subgroup);
            let (problem, mask_run) = (problem(&module), masks.len() as u32);
            let bytes = matrices.workgroup_bytes(depth, width);
            let parts = matrix_parts(matrices, depth, width);
            let (store_vectors, chromium) = (vectors, cx.target.chromium_matrices);
            let a =
                Cooperative { problem, matrices: parts, depth, window, mask_run, store_vectors, chromium };
            let groups = &s.ceil_div(i64::from(matrices.queries)) * batch;
            (a.render(), matrices.threads(), bytes, groups)
        }
        attention::Attention::Streamed(stream) => {
            let [Some(depth), Some(_)] = [d, e]
                .map(|w| w.as_const().and_then(|w| u32::try_from(w).ok()).filter(|w| stream.fits(*w, *w)))
            else {
                return Err(Diagnostic::internal(format!("{stream:?} does not fit the widths {d} and {e}")));
            };
            if [ks, vs].iter().any(|r| r.len() != stream.run as usize)
                || !attention::shared_heads(kernel).is_multiple_of(stream.heads)
            {
                return Err(Diagnostic::internal(format!("{stream:?} does not fit the keys and values")));
            }
            module.subgroup = Some(stream.subgroup);
            let query_fours = qs.len() == 4;
            let attention::Stream { threads, lanes, unroll, heads, run, subgroup } = stream;
            let (problem, window) = (problem(&module), exact);
            let parts = parted.then_some(parts_text);
            let own = template::Stream { threads, lanes, unroll, heads, run, subgroup };
            let a = Streamed { problem, stream: own, depth, query_fours, parts, window };
            let problems = batch.div(&i64::from(stream.heads).into(), &[]);
            let groups = &(s * &problems) * count;
            (a.render(), stream.threads, stream.workgroup_bytes(width), groups)
        }
        attention::Attention::Decode(attention::Decode { threads, subgroup }) => {
            let depth_max = d.as_const().unwrap_or(MAX_WIDTH).max(1) as u32;
            module.subgroup = (subgroup > 1).then_some(subgroup);
            let (problem, window) = (problem(&module), exact);
            let parts = parted.then_some(parts_text);
            let a = Decode { problem, threads, depth_max, parts, subgroup, window };
            (a.render(), threads, a.workgroup_bytes(), &(s * batch) * count)
        }
    };
    let wgsl = wgsl.map_err(template_error)?;
    let groups = fold_workgroups(&groups, cx.target.max_workgroups);
    Ok(module.finish("attention", wgsl, [threads, 1, 1], bytes, groups))
}

/// The sizes of the tiled template for keys and values of these widths.
fn tiled_parts(tiles: attention::Tiles, d: Option<u32>, e: u32) -> template::Tiles {
    let attention::Tiles { queries, thread_queries, keys, lanes, depth, kept, ahead } = tiles;
    template::Tiles {
        queries,
        thread_queries,
        keys,
        lanes,
        depth,
        kept,
        loads: tiles.loads_ahead(d, e).filter(|_| ahead).unwrap_or(0),
        query_pitch: tiles.query_pitch(d),
        key_pitch: tiles.key_pitch(d),
        tile_len: tiles.tile_len(d, e),
        columns: tiles.columns(e),
    }
}

/// The sizes of the template for matrix units for keys and values of these widths.
fn matrix_parts(matrices: attention::Matrices, d: u32, e: u32) -> template::Matrices {
    let attention::Matrices { queries, sub_queries, keys, ahead, subgroup } = matrices;
    template::Matrices {
        queries,
        sub_queries,
        keys,
        ahead,
        subgroup,
        pad: attention::Matrices::PAD,
        tile_len: matrices.tile_len(d, e),
        strip_pitch: matrices.strip_pitch(),
    }
}

/// Writes the results of four neighbouring columns together, where that can be; `%4` of what is stored then counts fours.
fn stores_in_vectors(kernel: &mut Kernel, cx: &EmitContext) -> Result<bool, Diagnostic> {
    let Family::Attention(k) = &kernel.family else { return Ok(false) };
    let columns = Side { root: k.v, var: 4, extent: &k.e, order: Contiguous::Line };
    let mut body = kernel.body.clone();
    let Some(stores) = vector_stores(kernel, &columns, &mut body, cx)? else { return Ok(false) };
    (kernel.body, kernel.stores) = (body, stores.concat());
    Ok(true)
}

/// The mask of so many neighbouring keys, of which `%2` counts.
fn load_masks(m: &mut Module, masks: &[ExprId]) -> Result<String, Diagnostic> {
    let mut s = Scope::new(4);
    let values = masks.iter().map(|id| Ok(m.value(&mut s, *id)?.to_string()));
    let values = values.collect::<Result<Vec<_>, Diagnostic>>()?;
    let fours = values.chunks(4).map(|four| format!("vec4<f32>({})", four.join(", ")));
    let fours = fours.collect::<Vec<_>>().join(", ");
    let fields: String = (0..masks.len() / 4).map(|i| format!(" m{i}: vec4<f32>,")).collect();
    Ok(format!(
        "struct Masks {{{fields} }}\nfn load_masks(v0: i32, v1: i32, v2: i32) -> Masks {{\n{}    return Masks({fours});\n}}\n",
        s.text
    ))
}

/// The expressions that are read: queries, keys and values.
type Roots = [Vec<ExprId>; 3];

/// The kernel with queries, keys and values as they are read, several neighbours at a time where they can be and that is asked
/// for, and their expressions; and with `masks` those of the mask of several keys, where one load reads what it does.
fn operands(
    kernel: &Kernel,
    runs: [u32; 3],
    masks: bool,
) -> Result<(Kernel, Roots, Vec<ExprId>), Diagnostic> {
    let plain = hoistable(&hoistable(kernel, 3), 4);
    let (Family::Attention(k), Family::Attention(p)) = (&kernel.family, &plain.family) else {
        return Err(Diagnostic::internal("not an attention kernel"));
    };
    let domain = kernel.domain();
    let vars: Vec<Poly> = (0..domain.len()).map(Poly::var).collect();
    let mut body = Body::default();
    let mut side = |root: ExprId, own: ExprId, along: usize, run: u32| {
        if let Some(several) = attention::run_of(kernel, root, along, run, &mut body) {
            return several;
        }
        let ids = substitute(&plain.body, &mut body, &[own], &vars, &domain);
        vec![ids.get(own as usize).copied().flatten().unwrap_or(0)]
    };
    let roots = [side(k.q, p.q, 3, runs[0]), side(k.k, p.k, 3, runs[1]), side(k.v, p.v, 4, runs[2])];
    let mut mask_of = |run: &u32| attention::run_of(kernel, k.mask.filter(|_| masks)?, 2, *run, &mut body);
    let masks = MASKS.iter().find_map(&mut mask_of).unwrap_or_default();
    let stored = plain.all_stores().flat_map(Store::reads);
    let rest: Vec<ExprId> = p.mask.iter().copied().chain(stored).collect();
    let ids = substitute(&plain.body, &mut body, &rest, &vars, &domain);
    let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
    let mut new = plain.over(body, &of, &mut |p| moved(p, &ids, &vars, &domain));
    if let Family::Attention(a) = &mut new.family {
        [a.q, a.k, a.v] = roots.each_ref().map(|ids| ids.first().copied().unwrap_or(0));
    }
    Ok((new, roots, masks))
}

/// The keys that the queries between two may see.
fn seen(
    module: &mut Module,
    top: &Scope,
    window: &Window,
    empty_is_zero: bool,
    ends: [&str; 2],
) -> Result<Seen, Diagnostic> {
    let mut s = top.inner(4);
    s.bind_var(0, "batch");
    s.bind_var(1, ends[0]);
    s.bind_var(2, ends[1]);
    let one_query = ends[0] == ends[1];
    let last = |a: &Atom| matches!(a, Atom::Var(1)).then(|| Poly::var(2));
    // The least, or the greatest, of the block: bounds are linear.
    let mut ends = |all: &[Poly], of: &str| {
        let one = |p: &Poly| {
            let first = module.index(&mut s, p)?;
            let end = p.subst(&last, &[]);
            Ok(if end == *p || one_query {
                first
            } else {
                format!("{of}({first}, {})", module.index(&mut s, &end)?)
            })
        };
        all.iter().map(one).collect::<Result<Vec<_>, Diagnostic>>()
    };
    let (from, to) = (ends(&window.from, "min")?, ends(&window.to, "max")?);
    let free = if window.exact { Some((ends(&window.from, "max")?, ends(&window.to, "min")?)) } else { None };
    Ok(Seen { setup: s.text, from, to, free, half: window.half, again: window.again(empty_is_zero) })
}
