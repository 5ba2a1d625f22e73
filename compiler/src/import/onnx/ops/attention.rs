//! Attention with heads, masks and caches, in the forms of ONNX and of ONNX Runtime.

use crate::import::onnx::prelude::*;
use crate::lower::attention::{
    self, Attended, Attention, GroupQuery, GroupQueryOperands, MultiHead, MultiHeadOperands, Operands,
};
use crate::lower::heads::Stage;
use wgfc_ir::Value;

/// An attribute that is a number of heads.
pub(super) fn count(cx: &Cx, name: &str) -> Result<i64> {
    match cx.int_req(name)? {
        n if (1..=1 << 20).contains(&n) => Ok(n),
        n => Err(OpError::model(format!("{n} heads")).attribute(name)),
    }
}

/// The attribute `scale`; 0 counts as absent.
pub(super) fn scale(cx: &Cx) -> Result<Option<f64>> {
    Ok(cx.float_opt("scale")?.filter(|s| *s != 0.0).map(f64::from))
}

/// The number that is added to the scores of padding keys.
pub(super) fn padding(cx: &Cx) -> Result<f64> {
    Ok(cx.float("mask_filter_value", -10_000.0)?.into())
}

/// A bound of a window; −1 means that there is none.
fn bound(cx: &Cx, name: &str) -> Result<Option<i64>> {
    match cx.int(name, -1)? {
        -1 => Ok(None),
        n if (0..=i64::from(i32::MAX)).contains(&n) => Ok(Some(n)),
        n => Err(OpError::model(format!("a window of {n}")).attribute(name)),
    }
}

/// Two inputs, or neither.
fn both(cx: &Cx, first: usize, what: &str) -> Result<Option<(Value, Value)>> {
    match (cx.opt(first), cx.opt(first + 1)) {
        (Some(k), Some(v)) => Ok(Some((k, v))),
        (None, None) => Ok(None),
        _ => Err(OpError::model(format!("needs both {what}, or neither"))),
    }
}

fn outputs(a: Attended) -> Lowered {
    Ok([a.y, a.present.0, a.present.1].into_iter().chain(a.shown).collect())
}

/// `Attention` of ONNX.
fn onnx(cx: &mut Cx) -> Lowered {
    let qkv = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    let heads = match cx.rank(qkv[0]) {
        3 => Some((count(cx, "q_num_heads")?, count(cx, "kv_num_heads")?)),
        _ => None,
    };
    let past = both(cx, 4, "past_key and past_value")?;
    let (left, mut right) = (bound(cx, "left_window_size")?, bound(cx, "right_window_size")?);
    if cx.flag("is_causal", false)? {
        right = Some(0);
    }
    let show = match (cx.wants(3), cx.int("qk_matmul_output_mode", 0)?) {
        (false, _) => None,
        (true, 0) => Some(Stage::Product),
        (true, 1) => Some(Stage::Capped),
        (true, 2) => Some(Stage::Masked),
        (true, 3) => Some(Stage::Softmax),
        (true, m) => return Err(OpError::model(format!("unknown mode {m}")).attribute("qk_matmul_output_mode")),
    };
    let (scale, cap) = (scale(cx)?, cx.float("softcap", 0.0)?.into());
    let o = Operands { qkv, past, lengths: cx.opt(6), mask: cx.opt(3) };
    outputs(attention::attention(cx, &o, &Attention { heads, left, right, scale, cap, show })?)
}

/// `MultiHeadAttention`: attention without projections, with packed operands, bias, masks and a cache.
fn multi_head(cx: &mut Cx) -> Lowered {
    let heads = count(cx, "num_heads")?;
    for (i, what) in [(8, "past_sequence_length"), (9, "cache_indirection")] {
        if cx.opt(i).is_some() {
            let help = "export the model with caches that are inputs and outputs; wgfc keeps those on the device itself";
            let e = OpError::unsupported(format!("{what}: caches that grow in place"), help);
            return Err(cx.at_input(i, e));
        }
    }
    if cx.wants(3) {
        let help = "export the model without this output; `wgfc run --tap` shows values inside of a model";
        return Err(OpError::unsupported("the scores as an output", help));
    }
    let o = MultiHeadOperands {
        query: cx.input(0)?,
        key: cx.opt(1),
        value: cx.opt(2),
        bias: cx.opt(3),
        padding: cx.opt(4),
        scores: cx.opt(5),
        past: cx.opt(6).zip(cx.opt(7)),
    };
    let (padding, causal) = (padding(cx)?, cx.flag("unidirectional", false)?);
    let scale = scale(cx)?;
    outputs(attention::multi_head(cx, &o, &MultiHead { heads, padding, causal, scale })?)
}

/// `GroupQueryAttention`.
fn group_query(cx: &mut Cx) -> Lowered {
    let heads = (count(cx, "num_heads")?, count(cx, "kv_num_heads")?);
    for (i, what) in [(12, "quantised keys"), (13, "quantised values")] {
        if cx.opt(i).is_some() {
            let help = "export the model with caches of f16 or f32";
            return Err(cx.at_input(i, OpError::unsupported(what, help)));
        }
    }
    for name in ["sliding_window_cache", "qk_output"] {
        if cx.int(name, 0)? != 0 {
            let help = "export the model without it (0)";
            return Err(OpError::unsupported("not supported", help).attribute(name));
        }
    }
    let rotary = cx.flag("do_rotary", false)?;
    cx.gives(6, "total");
    let o = GroupQueryOperands {
        query: cx.input(0)?,
        key_value: cx.opt(1).zip(cx.opt(2)),
        past: both(cx, 3, "past_key and past_value")?,
        last: cx.input(5)?,
        total: cx.opt(6),
        angles: if rotary { Some((cx.input(7)?, cx.input(8)?)) } else { None },
        positions: cx.opt(9),
        scores: cx.opt(10),
        sink: cx.opt(11),
        norms: cx.opt(14).zip(cx.opt(15)),
    };
    // The window includes the query's own position.
    let window = match bound(cx, "local_window_size")? {
        None => None,
        Some(0) => return Err(OpError::model("a window of 0").attribute("local_window_size")),
        Some(n) => Some(n - 1),
    };
    let p = GroupQuery {
        heads,
        norm_epsilon: cx.float("qk_norm_epsilon", 1e-6)?.into(),
        interleaved: cx.flag("rotary_interleaved", false)?,
        window,
        causal: cx.flag("causal", true)?,
        smooth: cx.int("smooth_softmax", -1)? > 0,
        scale: scale(cx)?,
        cap: cx.float("softcap", 0.0)?.into(),
    };
    outputs(attention::group_query(cx, &o, &p)?)
}

/// Attention operators.
pub const OPS: &[OpDef] = &[
    OpDef::new("Attention", &[23, 24, 25], onnx).cases(&["test_attention"]),
    OpDef::new("GroupQueryAttention", &[1], group_query)
        .domain(MICROSOFT)
        .notes("not quantised caches, `sliding_window_cache`, `qk_output`")
        .cases(&["group_query_attention_"]),
    OpDef::new("MultiHeadAttention", &[1], multi_head)
        .domain(MICROSOFT)
        .notes("not `past_sequence_length`, `cache_indirection`, the scores as an output")
        .cases(&["multi_head_attention_"]),
];
