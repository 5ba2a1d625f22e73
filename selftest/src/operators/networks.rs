//! Attention, rotary embeddings, recurrences.

use super::Line;
use crate::draw::Draw;
use wgfc_ir::DType::*;
use wgfc_ir::Tensor;

/// The number of query heads, the number of key heads, and the width of a head.
fn heads(d: &mut Draw) -> (usize, usize, usize) {
    let kept = d.from(1..=3);
    let group = d.from(1..=3);
    (kept * group, kept, d.pick(&[4, 6, 8, 16]))
}
fn onnx(d: &mut Draw) {
    let t = d.pick(&[F32, F32, F16]);
    let ((n, m, h), b, s, l) = (heads(d), d.from(1..=3), d.from(1..=9), d.from(1..=9));
    let flat = d.one_in(2);
    for (heads, rows) in [(n, s), (m, l), (m, l)] {
        d.x(t, &if flat { vec![b, rows, heads * h] } else { vec![b, heads, rows, h] });
    }
    if flat {
        d.set("q_num_heads", n as i64);
        d.set("kv_num_heads", m as i64);
    }
    let past = if d.one_in(3) { d.from(1..=5) } else { 0 };
    match d.below(4) {
        0 => {
            let mask = d.fitting(&[b, n, s, l + past]);
            d.x(Bool, &mask);
        }
        1 => {
            let mask = d.fitting(&[b, n, s, l + past]);
            d.x(t, &mask);
        }
        _ => d.none(),
    }
    if past > 0 {
        d.x(t, &[b, m, past, h]);
        d.x(t, &[b, m, past, h]);
        d.outputs(3);
    }
    d.flag("is_causal");
    if d.one_in(3) {
        d.set_float("softcap", 3.0);
    }
    if d.one_in(3) {
        d.set_float("scale", 0.3);
    }
    d.loose = t == F16;
}
fn multi_head(d: &mut Draw) {
    let t = d.pick(&[F32, F32, F16]);
    let (n, h, b, s, l) = (d.from(1..=4), d.pick(&[4, 8, 12]), d.from(1..=3), d.from(1..=7), d.from(1..=9));
    for rows in [s, l, l] {
        d.x(t, &[b, rows, n * h]);
    }
    if d.one_in(2) {
        d.x(t, &[3 * n * h])
    } else {
        d.none()
    }
    let mask = d.below(3);
    match mask {
        0 => d.within(I32, &[b], 1.0, l as f64),
        1 => d.within(I32, &[b, l], 0.0, 1.0),
        _ => d.none(),
    }
    if d.one_in(2) {
        let bias = [d.pick(&[1, b]), d.pick(&[1, n]), s, l];
        d.x(t, &bias);
    }
    d.set("num_heads", n as i64);
    if s == l {
        d.flag("unidirectional");
    }
    // Masked scores have 10⁴ subtracted, which leaves few digits in rows that are entirely masked.
    d.loose = t == F16 || mask < 2;
}
fn packed(d: &mut Draw, quantised: bool) {
    let (n, h, b, s, w) = (d.from(1..=4), d.pick(&[4, 8]), d.from(1..=3), d.from(1..=7), d.from(3..=17));
    let width = 3 * n * h;
    if quantised {
        d.bits(U8, &[b, s, w]);
        d.bits(I8, &[w, width]);
        d.x(F32, &[width]);
        d.within(F32, &[], 0.005, 0.02);
        d.within(F32, &[], 0.002, 0.01);
    } else {
        d.x(F32, &[b, s, w]);
        d.within(F32, &[w, width], -0.5, 0.5);
        d.x(F32, &[width]);
    }
    match d.below(4) {
        0 => d.within(I32, &[b], 1.0, s as f64),
        1 => d.within(I32, &[b, s], 0.0, 1.0),
        2 => d.within(I32, &[b, s, s], 0.0, 1.0),
        _ => d.none(),
    }
    d.set("num_heads", n as i64);
    d.flag("unidirectional");
    // Masked scores have 10⁴ subtracted, which leaves few digits in rows that are entirely masked.
    d.loose = true;
    let outputs = d.from(1..=2);
    d.outputs(outputs);
}
fn group_query(d: &mut Draw) {
    let t = d.pick(&[F32, F32, F16]);
    let ((n, m, _), h, b) = (heads(d), d.pick(&[8, 16]), d.from(1..=3));
    let past = if d.one_in(2) { d.from(1..=9) } else { 0 };
    let s = if past > 0 { 1 } else { d.from(1..=7) };
    for heads in [n, m, m] {
        d.x(t, &[b, s, heads * h]);
    }
    if past > 0 {
        d.x(t, &[b, m, past, h]);
        d.x(t, &[b, m, past, h]);
    } else {
        d.none();
        d.none();
    }
    let last =
        Tensor::from_scalars(I32, vec![b], &vec![wgfc_ir::Scalar::from_i64(I32, (past + s) as i64 - 1); b]);
    d.give(last);
    d.known(Tensor::scalar(wgfc_ir::Scalar::from_i64(I32, (past + s) as i64)));
    if d.one_in(2) {
        d.x(t, &[24, h / 2]);
        d.x(t, &[24, h / 2]);
        d.set("do_rotary", 1);
        d.flag("rotary_interleaved");
    }
    if d.one_in(3) {
        let window = d.from(1..=5);
        d.set("local_window_size", window as i64);
    }
    d.set("num_heads", n as i64);
    d.set("kv_num_heads", m as i64);
    d.outputs(3);
    d.loose = t == F16;
}
fn flex(d: &mut Draw) {
    let ((n, m, h), b, s, l) = (heads(d), d.from(1..=2), d.from(1..=9), d.from(1..=9));
    d.x(F32, &[b, n, s, h]);
    d.x(F32, &[b, m, l, h]);
    d.x(F32, &[b, m, l, h]);
}
fn rotary(d: &mut Draw, microsoft: bool) {
    let t = d.pick(&[F32, F16]);
    let (b, n, s, h) = (d.from(1..=3), d.from(1..=4), d.from(1..=7), d.pick(&[4, 8, 16]));
    let flat = microsoft || d.one_in(2);
    d.x(t, &if flat { vec![b, s, n * h] } else { vec![b, n, s, h] });
    let angles = |d: &mut Draw| {
        d.x(t, &[19, h / 2]);
        d.x(t, &[19, h / 2]);
    };
    if !microsoft {
        angles(d);
    }
    match d.below(4) {
        0 if microsoft => d.within(I64, &[], 0.0, 10.0),
        1 if microsoft => d.within(I64, &[1], 0.0, 10.0),
        _ => d.within(I64, &[b, s], 0.0, 18.0),
    }
    if microsoft {
        angles(d);
    }
    if flat {
        d.set("num_heads", n as i64);
    }
    d.flag("interleaved");
}
fn recurrent(d: &mut Draw, gates: usize, bias: usize) {
    let (s, b, i, h) = (d.from(1..=5), d.from(1..=3), d.from(1..=7), d.from(1..=7));
    let direction = d.pick(&["forward", "reverse", "bidirectional"]);
    let n = if direction == "bidirectional" { 2 } else { 1 };
    d.x(F32, &[s, b, i]);
    d.within(F32, &[n, gates * h, i], -1.0, 1.0);
    d.within(F32, &[n, gates * h, h], -1.0, 1.0);
    if d.one_in(2) {
        d.x(F32, &[n, bias * h])
    } else {
        d.none()
    }
    if d.one_in(2) {
        d.within(I32, &[b], 1.0, s as f64)
    } else {
        d.none()
    }
    if d.one_in(2) {
        d.x(F32, &[n, b, h]);
    }
    d.set("hidden_size", h as i64);
    d.set_text("direction", direction);
    if gates == 3 {
        d.flag("linear_before_reset");
    }
    let outputs = d.from(1..=if gates == 4 { 3 } else { 2 });
    d.outputs(outputs);
}
fn quantised_lstm(d: &mut Draw) {
    let (s, b, i, h) = (d.from(1..=4), d.from(1..=3), d.from(1..=7), d.from(1..=7));
    let direction = d.pick(&["forward", "reverse", "bidirectional"]);
    let n = if direction == "bidirectional" { 2 } else { 1 };
    let t = d.pick(&[I8, U8]);
    d.x(F32, &[s, b, i]);
    d.bits(t, &[n, i, 4 * h]);
    d.bits(t, &[n, h, 4 * h]);
    if d.one_in(2) {
        d.x(F32, &[n, 8 * h])
    } else {
        d.none()
    }
    if d.one_in(2) {
        d.within(I32, &[b], 1.0, s as f64)
    } else {
        d.none()
    }
    for _ in 0..3 {
        d.none();
    }
    let each = if d.one_in(2) { vec![n] } else { vec![n, 4 * h] };
    for _ in 0..2 {
        d.within(F32, &each, 0.001, 0.006);
        d.within(t, &each, 0.0, 20.0);
    }
    d.set("hidden_size", h as i64);
    d.set_text("direction", direction);
    let outputs = d.from(1..=3);
    d.outputs(outputs);
    // A value halfway between two of the 256 steps may round to either.
    d.loose = true;
}
fn linear(d: &mut Draw) {
    let ((n, m, k), v, b, s) = (heads(d), d.pick(&[4, 8]), d.from(1..=2), d.from(1..=5));
    let rule = d.pick(&["linear", "gated", "delta", "gated_delta"]);
    d.within(F32, &[b, s, n * k], -0.5, 0.5);
    d.within(F32, &[b, s, m * k], -0.5, 0.5);
    d.x(F32, &[b, s, m * v]);
    if d.one_in(2) {
        d.x(F32, &[b, m, k, v])
    } else {
        d.none()
    }
    if rule.starts_with("gated") {
        d.within(F32, &[b, s, m], -1.0, 0.0)
    } else {
        d.none()
    }
    if rule.ends_with("delta") {
        d.within(F32, &[b, s, m], 0.0, 1.0);
    }
    d.set("q_num_heads", n as i64);
    d.set("kv_num_heads", m as i64);
    d.set_text("update_rule", rule);
    d.outputs(2);
}
fn causal_conv(d: &mut Draw) {
    let t = d.pick(&[F32, F16]);
    let (b, c, s, k) = (d.from(1..=3), d.from(1..=7), d.from(1..=9), d.from(2..=4));
    d.x(t, &[b, c, s]);
    d.x(t, &[c, 1, k]);
    if d.one_in(2) {
        d.x(t, &[c])
    } else {
        d.none()
    }
    if d.one_in(2) {
        d.x(t, &[b, c, k - 1]);
    }
    let a = d.pick(&["none", "silu"]);
    d.set_text("activation", a);
    d.outputs(2);
}

pub const LINES: &[Line] = &[
    Line("Attention", onnx),
    Line("CausalConvWithState", causal_conv),
    Line("GRU", |d| recurrent(d, 3, 6)),
    Line("LSTM", |d| recurrent(d, 4, 8)),
    Line("LinearAttention", linear),
    Line("RNN", |d| recurrent(d, 1, 2)),
    Line("RotaryEmbedding", |d| rotary(d, false)),
    Line("ai.onnx.preview.FlexAttention", flex),
    Line("com.microsoft.Attention", |d| packed(d, false)),
    Line("com.microsoft.DynamicQuantizeLSTM", quantised_lstm),
    Line("com.microsoft.GroupQueryAttention", group_query),
    Line("com.microsoft.MultiHeadAttention", multi_head),
    Line("com.microsoft.QAttention", |d| packed(d, true)),
    Line("com.microsoft.RotaryEmbedding", |d| rotary(d, true)),
];
