//! Cases that drivers get wrong: loops of more iterations than some drivers allow, any and all over rows, attention rows
//! that are entirely masked, quotients halfway between two integers.

use super::Line;
use crate::draw::Draw;
use wgfc_ir::DType::{self, *};
use wgfc_ir::{Scalar, Tensor};

/// A long extent: around 2¹⁶, where 16-bit counters overflow, or a part of it that several loops of a kernel add up to.
fn long(d: &mut Draw) -> usize {
    d.pick(&[65_535, 65_536, 65_537, 65_539, 70_001, 70_000, 99_991, 21_846, 32_735, 32_768, 40_009])
}

/// A shape with a long axis and a few short ones, and the index of the long axis.
fn around(d: &mut Draw) -> (Vec<usize>, usize) {
    let n = long(d);
    match d.below(4) {
        0 => (vec![n, 2], 0),
        1 => (vec![2, n], 1),
        2 => (vec![1, n, 1], 1),
        _ => (vec![n], 0),
    }
}

/// A reduction over the long axis, in a range in which sums do not cancel.
fn reduce(d: &mut Draw, types: &[DType], low: f64, high: f64) {
    let (t, (s, axis)) = (d.pick(types), around(d));
    d.within(t, &s, low, high);
    d.ints(&[axis as i64]);
    d.flag("keepdims");
}
fn along(d: &mut Draw, low: f64, high: f64) {
    let (s, axis) = around(d);
    d.within(F32, &s, low, high);
    d.set("axis", axis as i64);
}
/// ArgMax or ArgMin; the values along the long axis repeat rarely.
fn arg(d: &mut Draw) {
    let (s, axis) = around(d);
    let numel = s.iter().product();
    let by = d.pick(&[7919, 12_347, 31_337]);
    let v: Vec<f32> = (0..numel).map(|i: usize| (i.wrapping_mul(by) % 99_991) as f32).collect();
    d.give(Tensor::from_f32(s, &v));
    d.set("axis", axis as i64);
    d.flag("select_last_index");
}
fn prefix_scan(d: &mut Draw) {
    let (s, axis) = around(d);
    d.within(I32, &s, -3.0, 3.0);
    d.int(axis as i64);
    d.flag("exclusive");
    d.flag("reverse");
}
fn product(d: &mut Draw) {
    let (k, m, n) = (long(d), d.from(1..=2), d.from(1..=3));
    d.within(F32, &[m, k], 0.0, 1.0);
    d.within(F32, &[k, n], 0.0, 1.0);
}
fn image(d: &mut Draw) {
    let (h, w) = (d.pick(&[257, 271, 300]), d.pick(&[257, 256, 263]));
    d.within(F32, &[1, 1, h, w], 0.0, 1.0);
}
fn moved(d: &mut Draw) -> Vec<usize> {
    let (s, _) = around(d);
    let t = d.pick(&[F32, I32, F16, U8, I64]);
    d.x(t, &s);
    s
}
fn taken(d: &mut Draw) {
    let (s, axis) = around(d);
    d.x(F32, &s);
    d.within(I64, &[9], 0.0, s[axis] as f64 - 1.0);
    d.set("axis", axis as i64);
}

/// Boolean rows that are all one value, or have one element of the other.
fn rows(d: &mut Draw) {
    let (n, m) = (d.from(1..=9), d.pick(&[1, 2, 31, 64, 65, 255, 256, 257, 300, 1025]));
    let most = d.one_in(2);
    let mut v = vec![most; n * m];
    for row in 0..n {
        if d.one_in(2) {
            let at = d.below(m);
            v[row * m + at] = !most;
        }
    }
    let v: Vec<Scalar> = v.into_iter().map(Scalar::bool).collect();
    let t = Tensor::from_scalars(Bool, vec![n, m], &v);
    d.give(t);
    d.ints(&[1]);
    d.flag("keepdims");
}

/// Attention with some rows that are entirely masked.
fn masked(d: &mut Draw) {
    let (b, n, h) = (d.from(1..=2), d.from(1..=3), d.pick(&[4, 8, 16]));
    let (s, l) = (d.from(1..=9), d.pick(&[1, 5, 9, 33, 70]));
    for rows in [s, l, l] {
        d.x(F32, &[b, n, rows, h]);
    }
    let lead = if d.one_in(2) { vec![] } else { vec![b, 1] };
    let mask: Vec<usize> = [lead, vec![s, l]].concat();
    let count: usize = mask.iter().product::<usize>() / l;
    let mut v = vec![];
    for _ in 0..count {
        let seen = d.below(3);
        v.extend((0..l).map(|_| Scalar::bool(seen == 2 || (seen == 1 && d.one_in(2)))));
    }
    let t = Tensor::from_scalars(Bool, mask, &v);
    d.give(t);
    d.flag("is_causal");
}

/// Numbers halfway between two multiples of a scale, as closely as f32 can represent them.
fn halves(d: &mut Draw, n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|_| (d.below(250) as f32 - 125.0 + 0.5) * scale).collect()
}
/// A scale: a power of two or another number.
fn step(d: &mut Draw) -> f32 {
    d.pick(&[0.5, 0.25, 0.125, 2.0, 0.1, 0.3, 0.007, 1.0 / 3.0, 0.019_607_844])
}
fn quantize(d: &mut Draw) {
    let (s, scale) = (d.full(1..=3), step(d));
    let v = halves(d, s.iter().product(), scale);
    d.give(Tensor::from_f32(s, &v));
    d.give(Tensor::from_f32(vec![], &[scale]));
    let to = d.pick(&[U8, I8, I16]);
    d.bits(to, &[]);
}
/// The first two elements are the ends of the range, which determine the scale.
fn quantize_range(d: &mut Draw) {
    let (n, scale) = (d.from(2..=300), step(d));
    let mut v = halves(d, n, scale);
    let low = d.below(200) as f32;
    v.iter_mut().for_each(|x| *x = x.clamp(-low * scale, (255.0 - low) * scale));
    (v[0], v[1]) = (-low * scale, (255.0 - low) * scale);
    d.give(Tensor::from_f32(vec![n], &v));
    d.outputs(3);
}

pub const LINES: &[Line] = &[
    Line("Add:long", |d| {
        let (s, _) = around(d);
        d.x(F32, &s);
        d.x(F32, &s);
    }),
    Line("ArgMax:long", arg),
    Line("ArgMin:long", arg),
    Line("Attention:masked", masked),
    Line("CumSum:long", prefix_scan),
    Line("DynamicQuantizeLinear:halves", quantize_range),
    Line("Gather:long", taken),
    Line("GlobalAveragePool:long", image),
    Line("GlobalMaxPool:long", image),
    Line("LayerNormalization:long", |d| {
        let n = long(d);
        d.within(F32, &[2, n], -2.0, 2.0);
        d.within(F32, &[n], 0.5, 2.0);
    }),
    Line("MatMul:long", product),
    Line("QuantizeLinear:halves", quantize),
    Line("ReduceL2:long", |d| reduce(d, &[F32], -1.0, 1.0)),
    Line("ReduceLogSumExp:long", |d| reduce(d, &[F32], -1.0, 1.0)),
    Line("ReduceMax:long", |d| reduce(d, &[F32, I32, I64], -1e6, 1e6)),
    Line("ReduceMax:rows", rows),
    Line("ReduceMean:long", |d| reduce(d, &[F32], 0.0, 1.0)),
    Line("ReduceMin:rows", rows),
    Line("ReduceSum:long", |d| reduce(d, &[F32, I32, I64], 0.0, 1.0)),
    Line("Softmax:long", |d| along(d, -2.0, 2.0)),
    Line("Transpose:long", |d| drop(moved(d))),
];
