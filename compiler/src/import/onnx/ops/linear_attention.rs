//! `LinearAttention`, and `CausalConvWithState`, which precedes it in models.

use crate::import::onnx::prelude::*;
use crate::lower::linear_attention::{self as linear, LinearAttention, Recurrence};
use wgfc_ir::Value;

fn heads(cx: &Cx, name: &str) -> Result<i64> {
    match cx.int_req(name)? {
        n if (1..1 << 20).contains(&n) => Ok(n),
        n => Err(OpError::model(format!("{n} heads; 1 to 2^20 - 1 are supported")).attribute(name)),
    }
}

/// Input `i`, which the update rule either requires or forbids.
fn gate(cx: &Cx, rule: &str, i: usize, needed: bool) -> Result<Option<Value>> {
    match (cx.opt(i), needed) {
        (None, true) => {
            let e = format!("`{rule}` needs input {i}, which is missing");
            Err(OpError::model(e).attribute("update_rule"))
        }
        (Some(_), false) => Err(cx.at_input(i, OpError::model(format!("update_rule `{rule}` does not allow this input")))),
        (v, _) => Ok(v),
    }
}

fn linear_attention(cx: &mut Cx) -> Lowered {
    let operands = [cx.input_of_rank(0, 3)?, cx.input_of_rank(1, 3)?, cx.input_of_rank(2, 3)?];
    let (q_heads, kv_heads) = (heads(cx, "q_num_heads")?, heads(cx, "kv_num_heads")?);
    let rule = cx.string("update_rule", "gated_delta")?;
    let (gated, delta) = match rule.as_str() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(OpError::model(format!("unknown value `{other}`")).attribute("update_rule")),
    };
    let (decay, beta) = (gate(cx, &rule, 4, gated)?, gate(cx, &rule, 5, delta)?);
    let scale = Some(f64::from(cx.float("scale", 0.0)?)).filter(|s| *s != 0.0);
    let r = Recurrence { state: cx.opt(3), decay, beta };
    let p = LinearAttention { q_heads, kv_heads, scale };
    Ok(linear::linear_attention(cx, operands, &r, &p)?.to_vec())
}

fn causal_conv(cx: &mut Cx) -> Lowered {
    let operands = [cx.input_of_rank(0, 3)?, cx.input_of_rank(1, 3)?];
    let (bias, past) = (cx.opt(2), cx.opt(3));
    let silu = match cx.string("activation", "none")?.as_str() {
        "none" => false,
        "silu" | "swish" => true,
        other => return Err(OpError::model(format!("unknown value `{other}`")).attribute("activation")),
    };
    Ok(linear::causal_conv(cx, operands, bias, past, silu)?.to_vec())
}

/// `CausalConvWithState` and `LinearAttention`.
pub const OPS: &[OpDef] = &[
    OpDef::new("CausalConvWithState", &[27], causal_conv).cases(&["test_causal_conv_with_state_"]),
    OpDef::new("LinearAttention", &[27], linear_attention)
        .cases(&["test_linear_attention_"])
        .notes("on a device: sequences of a known length of at most 256"),
];
