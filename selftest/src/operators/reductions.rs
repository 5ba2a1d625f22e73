//! Operators that reduce along axes.

use super::{FLOATS, Line};
use crate::draw::Draw;
use wgfc_ir::DType::{self, *};

fn reduce(d: &mut Draw, types: &[DType], low: f64, high: f64) {
    let t = d.pick(types);
    let s = d.full(0..=5);
    d.within(t, &s, low, high);
    match d.below(4) {
        0 => {}
        1 if s.is_empty() => d.ints(&[]),
        _ => {
            let axes: Vec<i64> = d
                .axes(s.len())
                .iter()
                .map(|a| if d.one_in(2) { *a as i64 } else { *a as i64 - s.len() as i64 })
                .collect();
            d.ints(&axes);
        }
    }
    d.flag("keepdims");
    d.flag("noop_with_empty_axes");
}
fn arg(d: &mut Draw) {
    let t = d.pick(&[F32, F16, I32, I64, U8, I8]);
    let s = d.full(1..=4);
    let (_, a) = d.axis(s.len());
    d.within(t, &s, -3.0, 3.0);
    d.set("axis", a);
    d.flag("keepdims");
    d.flag("select_last_index");
}
fn prefix_scan(d: &mut Draw, low: f64, high: f64) {
    let t = d.pick(&[F32, F16, F64, I32, I64]);
    let s = d.shape(1..=4);
    let (_, a) = d.axis(s.len());
    d.within(t, &s, low, high);
    d.int(a);
    d.flag("exclusive");
    d.flag("reverse");
}
fn along(d: &mut Draw) {
    let (t, s) = (d.pick(FLOATS), d.shape(1..=4));
    let (_, a) = d.axis(s.len());
    d.within(t, &s, -5.0, 5.0);
    if d.one_in(3) {
        d.opset = 11;
        if t == BF16 {
            d.opset = 13;
        }
    }
    d.set("axis", a);
}
fn hardmax(d: &mut Draw) {
    let (t, s) = (d.pick(FLOATS), d.full(1..=4));
    let (_, a) = d.axis(s.len());
    d.within(t, &s, -5.0, 5.0);
    d.set("axis", a);
}
fn top_k(d: &mut Draw) {
    let t = d.pick(&[F32, F16, I32, I64, U8]);
    let s = d.full(1..=3);
    let (axis, a) = d.axis(s.len());
    d.within(t, &s, -9.0, 9.0);
    let k = d.from(1..=s[axis]);
    d.ints(&[k as i64]);
    d.set("axis", a);
    d.flag("largest");
    d.outputs(2);
}
fn lp(d: &mut Draw) {
    let s = d.full(1..=4);
    let (_, a) = d.axis(s.len());
    d.within(F32, &s, 0.2, 2.0);
    d.set("axis", a);
    let p = d.from(1..=2);
    d.set("p", p as i64);
}
/// A normalisation over all axes from a given one on, with operands of the shape of these axes.
fn norm(d: &mut Draw, operands: usize, outputs: usize) {
    let (t, s) = (d.pick(&[F32, F32, F16, BF16]), d.full(1..=4));
    let (axis, a) = d.axis(s.len());
    d.x(t, &s);
    let n = d.from(1..=operands);
    for _ in 0..n {
        d.x(t, &s[axis..]);
    }
    d.set("axis", a);
    if d.one_in(2) {
        d.set_float("epsilon", 1e-3);
    }
    if d.one_in(3) {
        d.outputs(outputs);
    }
}
/// A normalisation along the last axis: the `Skip…` and `Simplified…` operators of ONNX Runtime.
fn skipped(d: &mut Draw, beta: bool) {
    let (t, s) = (d.pick(&[F32, F16]), d.full(3..=3));
    let last = &s[2..];
    d.x(t, &s);
    let from = d.pick(&[0, 0, 1]);
    d.x(t, &s[from..]);
    d.x(t, last);
    if beta {
        if d.one_in(3) { d.none() } else { d.x(t, last) }
    }
    if d.one_in(2) {
        d.x(t, last);
    }
    d.set_float("epsilon", 1e-3);
    d.loose = t == F16;
}
fn channels(d: &mut Draw, groups: bool) {
    let t = d.pick(&[F32, F16]);
    let mut s = d.full(3..=5);
    let g = d.from(1..=3);
    if groups {
        s[1] = g * d.from(1..=3);
        d.set("num_groups", g as i64);
    }
    d.x(t, &s);
    d.x(t, &s[1..2]);
    d.x(t, &s[1..2]);
    d.set_float("epsilon", 1e-2);
}
fn batch(d: &mut Draw) {
    let t = d.pick(&[F32, F16]);
    let s = d.full(2..=5);
    d.x(t, &s);
    let positions = d.one_in(4);
    let each = if positions { &s[1..] } else { &s[1..2] };
    for _ in 0..3 {
        d.x(t, each);
    }
    d.within(t, each, 0.3, 2.0);
    d.set_float("epsilon", 1e-2);
    d.loose = t == F16;
    if positions {
        d.opset = 8;
        d.set("spatial", 0);
    } else if d.one_in(3) {
        d.set("training_mode", 1);
        d.outputs(3);
    }
}
fn image_scaler(d: &mut Draw) {
    let t = d.pick(&[F32, F16]);
    let s = d.full(4..=4);
    d.x(t, &s);
    let bias: Vec<f32> = (0..s[1]).map(|c| c as f32 * 0.37 - 1.0).collect();
    d.set_floats("bias", &bias);
    d.set_float("scale", 0.7);
}
fn lrn(d: &mut Draw) {
    let (t, s) = (d.pick(&[F32, F16]), d.full(2..=5));
    d.x(t, &s);
    let size = d.pick(&[1, 3, 5]);
    d.set("size", size);
    d.set_float("alpha", 0.1);
}
fn mean_variance(d: &mut Draw) {
    let s = d.full(2..=4);
    d.x(F32, &s);
    let mut axes = d.axes(s.len());
    if axes.is_empty() || axes.iter().map(|a| s[*a]).product::<usize>() < 2 {
        axes = (0..s.len()).collect();
    }
    d.set_ints("axes", &axes.iter().map(|a| *a as i64).collect::<Vec<_>>());
}
/// A loss of scores, with target classes and optional class weights.
fn loss(d: &mut Draw, outputs: usize) {
    let t = d.pick(&[F32, F16]);
    let mut s = d.full(2..=4);
    s[1] = d.from(2..=7);
    d.within(t, &s, -3.0, 0.0);
    let mut target = s.clone();
    target.remove(1);
    let classes = d.pick(&[I32, I64]);
    d.within(classes, &target, 0.0, s[1] as f64 - 1.0);
    if d.one_in(2) {
        d.within(t, &s[1..2], 0.2, 2.0);
    }
    let how = d.pick(&["none", "sum", "mean"]);
    d.set_text("reduction", how);
    if how != "mean" && d.one_in(2) {
        d.set("ignore_index", 1);
    }
    d.outputs(outputs);
}
fn quantized_range(d: &mut Draw) {
    let s = d.full(1..=3);
    d.within(F32, &s, -3.0, 5.0);
    d.outputs(3);
    d.loose = true;
}
fn einsum(d: &mut Draw) {
    let equations: &[(&str, &[&str])] = &[
        ("ij,jk->ik", &["ij", "jk"]),
        ("bij,bjk->bik", &["bij", "bjk"]),
        ("ij->ji", &["ij"]),
        ("ij->i", &["ij"]),
        ("ij,ij->", &["ij", "ij"]),
        ("i,j->ij", &["i", "j"]),
        ("bqhd,bkhd->bhqk", &["bqhd", "bkhd"]),
        ("ijk,jil->kl", &["ijk", "jil"]),
        ("ii->i", &["ii"]),
        ("ab,cd,bc->da", &["ab", "cd", "bc"]),
    ];
    let (equation, operands) = d.pick(equations);
    let t = d.pick(&[F32, F32, F16, I32, I64]);
    let extents: Vec<usize> = (0..26).map(|_| d.pick(&[1, 2, 3, 5, 7, 9])).collect();
    for letters in operands {
        let s: Vec<usize> = letters.bytes().map(|l| extents[usize::from(l - b'a')]).collect();
        d.x(t, &s);
    }
    d.set_text("equation", equation);
}
fn det(d: &mut Draw) {
    let n = d.from(1..=9);
    let s = [d.full(0..=1), vec![n, n]].concat();
    d.x(F32, &s);
    d.loose = true;
}
const NUMBERS: &[DType] = &[F32, F32, F16, BF16, F64, I32, I64, U32, U64];

pub const LINES: &[Line] = &[
    Line("ArgMax", arg),
    Line("ArgMin", arg),
    Line("BatchNormalization", batch),
    Line("CumProd", |d| prefix_scan(d, 0.8, 1.2)),
    Line("CumSum", |d| prefix_scan(d, -2.0, 2.0)),
    Line("Det", det),
    Line("DynamicQuantizeLinear", quantized_range),
    Line("Einsum", einsum),
    Line("GroupNormalization", |d| channels(d, true)),
    Line("Hardmax", hardmax),
    Line("ImageScaler", image_scaler),
    Line("InstanceNormalization", |d| channels(d, false)),
    Line("LRN", lrn),
    Line("LayerNormalization", |d| norm(d, 2, 3)),
    Line("LogSoftmax", along),
    Line("LpNormalization", lp),
    Line("MeanVarianceNormalization", mean_variance),
    Line("NegativeLogLikelihoodLoss", |d| loss(d, 1)),
    Line("RMSNormalization", |d| norm(d, 1, 1)),
    Line("ReduceL1", |d| reduce(d, NUMBERS, -2.0, 2.0)),
    Line("ReduceL2", |d| reduce(d, FLOATS, -2.0, 2.0)),
    Line("ReduceLogSum", |d| reduce(d, FLOATS, 0.1, 2.0)),
    Line("ReduceLogSumExp", |d| reduce(d, FLOATS, -2.0, 2.0)),
    Line("ReduceMax", |d| reduce(d, &[F32, F16, BF16, F64, I32, I64, U32, U64, I8, U8, Bool], -9.0, 9.0)),
    Line("ReduceMean", |d| reduce(d, FLOATS, -2.0, 2.0)),
    Line("ReduceMin", |d| reduce(d, &[F32, F16, BF16, F64, I32, I64, U32, U64, I8, U8, Bool], -9.0, 9.0)),
    Line("ReduceProd", |d| reduce(d, NUMBERS, 0.9, 1.1)),
    Line("ReduceSum", |d| reduce(d, NUMBERS, -2.0, 2.0)),
    Line("ReduceSumSquare", |d| reduce(d, NUMBERS, -2.0, 2.0)),
    Line("SimplifiedLayerNormalization", |d| norm(d, 1, 1)),
    Line("Softmax", along),
    Line("SoftmaxCrossEntropyLoss", |d| {
        let n = d.from(1..=2);
        loss(d, n)
    }),
    Line("TopK", top_k),
    Line("com.microsoft.SimplifiedLayerNormalization", |d| norm(d, 1, 1)),
    Line("com.microsoft.SkipLayerNormalization", |d| skipped(d, true)),
    Line("com.microsoft.SkipSimplifiedLayerNormalization", |d| skipped(d, false)),
];
