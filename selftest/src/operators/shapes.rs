//! Operators that move elements.

use super::Line;
use crate::draw::Draw;
use wgfc_ir::DType::{self, *};
use wgfc_ir::Tensor;

const ALL: &[DType] = &[F32, F32, F16, BF16, F64, I32, I64, U8, I8, I16, U64, Bool];

fn any(d: &mut Draw) -> DType {
    d.pick(ALL)
}
fn signed(v: &[usize]) -> Vec<i64> {
    v.iter().map(|x| *x as i64).collect()
}
/// Adds a tensor whose elements may be smaller than a byte. Returns its shape.
fn packed(d: &mut Draw, least: usize, most: usize) -> Vec<usize> {
    let (t, s) = (d.pick(&[F32, F16, BF16, I64, U8, Bool, U4, I4]), d.full(least..=most));
    d.x(t, &s);
    s
}
/// Adds a tensor of any type. Returns its shape.
fn x(d: &mut Draw, least: usize, most: usize) -> Vec<usize> {
    let (t, s) = (any(d), d.shape(least..=most));
    d.x(t, &s);
    s
}

fn reshape(d: &mut Draw) {
    let s = packed(d, 0, 5);
    // The prime factors of the extents are distributed over the new axes.
    let mut to = vec![1; d.from(1..=5)];
    for mut e in s.clone() {
        for p in [2, 3, 5, 7, 11, 13, 17, 31, 131] {
            while e % p == 0 {
                e /= p;
                let i = d.below(to.len());
                to[i] *= p as i64;
            }
        }
    }
    if d.one_in(3) {
        let i = d.below(to.len());
        to[i] = -1;
    } else if to.len() <= s.len() && d.one_in(3) {
        let i = d.below(to.len());
        if to[i] == s[i] as i64 {
            to[i] = 0;
        }
    }
    d.ints(&to);
}
fn transpose(d: &mut Draw) {
    let s = packed(d, 1, 5);
    let mut perm: Vec<i64> = (0..s.len() as i64).collect();
    for i in 0..perm.len() {
        let j = d.below(perm.len());
        perm.swap(i, j);
    }
    if !d.one_in(5) {
        d.set_ints("perm", &perm);
    }
}
fn squeeze(d: &mut Draw) {
    let s = packed(d, 1, 5);
    let axes: Vec<i64> = (0..s.len()).filter(|a| s[*a] == 1).map(|a| a as i64).collect();
    d.ints(&axes);
}
fn unsqueeze(d: &mut Draw) {
    let s = x(d, 0, 3);
    let rank = s.len() as i64 + 2;
    let a = d.below(rank as usize) as i64;
    let b = (a + 1 + d.below(rank as usize - 1) as i64) % rank;
    d.ints(&[a, b - rank]);
}
fn flatten(d: &mut Draw) {
    let s = packed(d, 1, 5);
    let a = d.from(0..=s.len());
    d.set("axis", a as i64);
}
fn slice(d: &mut Draw) {
    let s = x(d, 1, 4);
    let axes: Vec<usize> = d.axes(s.len());
    let (mut starts, mut ends, mut steps) = (vec![], vec![], vec![]);
    for a in &axes {
        let n = s[*a] as i64;
        let bound = |d: &mut Draw| d.below(2 * n as usize + 5) as i64 - n - 2;
        starts.push(bound(d));
        ends.push(if d.one_in(4) { i64::MAX } else { bound(d) });
        steps.push(d.pick(&[1, 1, 2, 3, -1, -2]));
    }
    d.ints(&starts);
    d.ints(&ends);
    d.ints(&signed(&axes));
    d.ints(&steps);
}
fn concat(d: &mut Draw) {
    let (t, mut s, n) = (any(d), d.shape(1..=4), d.from(1..=4));
    let (axis, a) = d.axis(s.len());
    for _ in 0..n {
        s[axis] = d.from(0..=5);
        d.x(t, &s);
    }
    d.set("axis", a);
}
fn split(d: &mut Draw) {
    let (t, mut s, n) = (any(d), d.full(1..=4), d.from(1..=4));
    let (axis, a) = d.axis(s.len());
    let parts: Vec<i64> = (0..n).map(|_| d.from(0..=5) as i64).collect();
    s[axis] = parts.iter().sum::<i64>() as usize;
    if d.one_in(2) {
        d.x(t, &s);
        d.ints(&parts);
    } else {
        s[axis] = n * d.from(1..=4);
        d.x(t, &s);
        d.set("num_outputs", n as i64);
    }
    d.set("axis", a);
    d.outputs(n);
}
fn expand(d: &mut Draw) {
    let (t, s) = (any(d), d.full(1..=5));
    let from = d.fitting(&s);
    d.x(t, &from);
    let to = d.fitting(&s);
    d.ints(&signed(&to));
}
fn tile(d: &mut Draw) {
    let (t, s) = (any(d), d.full(1..=3));
    d.x(t, &s);
    let times: Vec<i64> = s.iter().map(|_| d.from(0..=3) as i64).collect();
    d.ints(&times);
}
fn pad(d: &mut Draw) {
    let (t, s) = (d.pick(&[F32, F16, I32, I64, U8, Bool]), d.full(1..=4));
    let mode = d.pick(&["constant", "constant", "reflect", "edge", "wrap"]);
    d.x(t, &s);
    let pads: Vec<i64> = (0..2 * s.len())
        .map(|i| {
            let n = s[i % s.len()] as i64;
            match mode {
                "constant" => d.below(5) as i64 - i64::from(n > 4),
                "reflect" => d.below(n.min(4) as usize) as i64,
                _ => d.below(n.min(3) as usize + 1) as i64,
            }
        })
        .collect();
    d.ints(&pads);
    d.set_text("mode", mode);
    if mode == "constant" && d.one_in(2) {
        d.x(t, &[]);
    }
}
/// Indices along an axis, some of them negative.
fn places(d: &mut Draw, shape: &[usize], extent: usize) {
    let t = d.pick(&[I32, I64]);
    let n = extent as f64;
    let low = if d.one_in(2) { -n } else { 0.0 };
    d.within(t, shape, low, n - 1.0);
}
fn gather(d: &mut Draw) {
    let (t, s) = (any(d), d.full(1..=4));
    let (axis, a) = d.axis(s.len());
    d.x(t, &s);
    let i = d.full(0..=2);
    let i: Vec<usize> = i.iter().map(|e| *e.min(&9)).collect();
    places(d, &i, s[axis]);
    d.set("axis", a);
}
fn gather_elements(d: &mut Draw) {
    let (t, s) = (any(d), d.full(1..=4));
    let (axis, a) = d.axis(s.len());
    d.x(t, &s);
    let mut i: Vec<usize> = s.iter().map(|e| d.from(1..=*e)).collect();
    i[axis] = d.from(1..=7);
    places(d, &i, s[axis]);
    d.set("axis", a);
}
fn gather_nd(d: &mut Draw) {
    let (t, s) = (any(d), d.full(2..=4));
    let batch = d.below(s.len() - 1);
    let depth = d.from(1..=s.len() - batch);
    d.x(t, &s);
    let count = d.from(1..=5);
    let least = s[batch..batch + depth].iter().min().copied().unwrap_or(1);
    let i = [s[..batch].to_vec(), vec![count, depth]].concat();
    let low = if d.one_in(2) { -(least as f64) } else { 0.0 };
    d.within(I64, &i, low, least as f64 - 1.0);
    d.set("batch_dims", batch as i64);
}
/// A random permutation of 0..n.
fn permutation(d: &mut Draw, n: usize) -> Vec<i64> {
    let mut p: Vec<i64> = (0..n as i64).collect();
    for i in 0..n {
        let j = d.below(n);
        p.swap(i, j);
    }
    p
}
fn scatter_elements(d: &mut Draw, reductions: &[&str]) {
    let (t, s) = (d.pick(&[F32, F16, I32, I64]), d.full(1..=3));
    let (axis, a) = d.axis(s.len());
    d.x(t, &s);
    let mut u: Vec<usize> = s.iter().map(|e| d.from(1..=*e)).collect();
    let how = d.pick(reductions);
    if how == "none" {
        // If two updates have the same index, ONNX does not define which one wins; therefore the indices are distinct.
        let column = permutation(d, s[axis]);
        let n = u.iter().product::<usize>();
        let inner: usize = u[axis + 1..].iter().product();
        let v: Vec<i64> = (0..n).map(|i| column[i / inner % u[axis]]).collect();
        d.give(Tensor::from_i64(u.clone(), &v));
    } else {
        u[axis] = d.from(1..=7);
        places(d, &u, s[axis]);
    }
    d.x(t, &u);
    d.set("axis", a);
    if reductions.len() > 1 {
        d.set_text("reduction", how);
    }
    d.loose = how == "mul" || t == F16;
}
fn scatter_nd(d: &mut Draw) {
    let (t, s) = (d.pick(&[F32, F16, I32, I64]), d.full(1..=3));
    let how = d.pick(&["none", "add", "mul", "max", "min"]);
    let depth = d.from(1..=s.len());
    d.x(t, &s);
    let count = if how == "none" { d.from(1..=s[0]) } else { d.from(1..=6) };
    let first = permutation(d, s[0]);
    let mut v = vec![];
    for own in first.iter().cycle().take(count) {
        for (axis, e) in s[..depth].iter().enumerate() {
            v.push(if axis == 0 && how == "none" { *own } else { d.below(*e) as i64 });
        }
    }
    d.give(Tensor::from_i64(vec![count, depth], &v));
    let u = [vec![count], s[depth..].to_vec()].concat();
    d.x(t, &u);
    d.set_text("reduction", how);
    d.loose = how == "mul" || t == F16;
}
fn tensor_scatter(d: &mut Draw) {
    let t = d.pick(&[F32, F16]);
    let (b, n, most, h) = (d.from(1..=3), d.from(1..=2), d.from(3..=9), d.from(1..=7));
    let new = d.from(1..=3);
    let mode = d.pick(&["linear", "circular"]);
    d.x(t, &[b, n, most, h]);
    d.x(t, &[b, n, new, h]);
    let last = if mode == "linear" { most - new } else { most - 1 };
    d.within(I64, &[b], 0.0, last as f64);
    d.set_text("mode", mode);
}
fn trilu(d: &mut Draw) {
    let s = x(d, 2, 4);
    if d.one_in(2) {
        let k = d.below(s.iter().rev().take(2).sum::<usize>() + 1) as i64 - 3;
        d.int(k);
    }
    d.flag("upper");
}
fn eye_like(d: &mut Draw) {
    let t = d.pick(&[F32, I32, I64, U8]);
    let s = d.full(2..=2);
    d.x(t, &s);
    let k = d.below(7) as i64 - 3;
    d.set("k", k);
    if d.one_in(2) {
        d.set_type("dtype", I64);
    }
}
fn one_hot(d: &mut Draw) {
    let (t, s) = (d.pick(&[F32, I32, I64, F16]), d.full(0..=2));
    let depth = d.from(1..=9);
    d.within(I64, &s, -(depth as f64) - 1.0, depth as f64);
    d.int(depth as i64);
    d.x(t, &[2]);
    let (_, a) = d.axis(s.len() + 1);
    d.set("axis", a);
}
fn depth_to_space(d: &mut Draw, back: bool) {
    let (t, b) = (any(d), d.from(1..=3));
    let (n, c, h, w) = (d.from(1..=2), d.from(1..=3), d.from(1..=5), d.from(1..=4));
    if back {
        d.x(t, &[n, c, h * b, w * b]);
    } else {
        d.x(t, &[n, c * b * b, h, w]);
        let mode = d.pick(&["DCR", "CRD"]);
        d.set_text("mode", mode);
    }
    d.set("blocksize", b as i64);
}
fn reverse_sequence(d: &mut Draw) {
    let (t, s) = (any(d), d.full(2..=4));
    let time = d.below(2);
    d.x(t, &s);
    d.within(I64, &[s[1 - time]], 1.0, s[time] as f64);
    d.set("time_axis", time as i64);
    d.set("batch_axis", 1 - time as i64);
}
fn crop_or_pad(d: &mut Draw) {
    let (t, s) = (any(d), d.full(1..=4));
    d.x(t, &s);
    let mut axes = d.axes(s.len());
    if axes.is_empty() {
        axes = vec![0];
    }
    let to: Vec<i64> = axes.iter().map(|_| d.from(1..=9) as i64).collect();
    d.ints(&to);
    d.set_ints("axes", &signed(&axes));
}
fn range(d: &mut Draw) {
    let t = d.pick(&[F32, I32, I64]);
    let (start, step) = (d.below(9) as f64 - 4.0, d.pick(&[1.0, 2.0, -1.0, -3.0]));
    let limit = start + step * d.below(30) as f64 + if t == F32 { step / 2.0 } else { 0.0 };
    for v in [start, limit, step] {
        let v = d.numbers(t, &[], v, if t == F32 { v } else { v - 0.5 });
        d.known(v);
    }
}
fn constant_of_shape(d: &mut Draw) {
    let s = d.shape(0..=4);
    d.ints(&signed(&s));
}
fn compress(d: &mut Draw) {
    let s = x(d, 1, 3);
    let (axis, a) = d.axis(s.len());
    let n = d.from(0..=s[axis]);
    let keep = d.numbers(Bool, &[n], 0.0, 1.0);
    perhaps_known(d, keep);
    d.set("axis", a);
}
fn perhaps_known(d: &mut Draw, v: Tensor) {
    if d.one_in(2) { d.known(v) } else { d.give(v) }
}
fn non_zero(d: &mut Draw) {
    let s = d.full(1..=3);
    let v = d.numbers(I32, &s, 0.0, 2.0);
    perhaps_known(d, v);
}
fn unique(d: &mut Draw) {
    let s = d.full(1..=3);
    let v = d.numbers(I32, &s, -3.0, 3.0);
    d.give(v);
    if d.one_in(2) {
        let (_, a) = d.axis(s.len());
        d.set("axis", a);
    }
    d.flag("sorted");
    let n = d.from(1..=4);
    d.outputs(n);
}
fn non_max_suppression(d: &mut Draw) {
    let (batches, boxes, classes) = (d.from(1..=2), d.from(1..=9), d.from(1..=3));
    d.within(F32, &[batches, boxes, 4], 0.0, 1.0);
    d.within(F32, &[batches, classes, boxes], 0.0, 1.0);
    let most = d.from(0..=4);
    d.int(most as i64);
    d.within(F32, &[1], 0.0, 1.0);
    d.within(F32, &[1], 0.0, 1.0);
    d.flag("center_point_box");
}
fn shape_of(d: &mut Draw) {
    let s = x(d, 0, 5);
    let (a, b) = (d.below(2 * s.len() + 3), d.below(2 * s.len() + 3));
    d.set("start", a as i64 - s.len() as i64 - 1);
    if d.one_in(2) {
        d.set("end", b as i64 - s.len() as i64 - 1);
    }
}
fn upto(d: &mut Draw, periodic: bool) {
    let n = d.from(1..=40);
    d.int(n as i64);
    if periodic {
        d.flag("periodic");
    }
}
fn mel(d: &mut Draw) {
    let (bins, length) = (d.from(3..=20), d.pick(&[64, 128, 250]));
    for v in [bins as i64, length, 8000] {
        d.int(v);
    }
    for v in [20.0, 3800.0] {
        d.known(Tensor::from_f32(vec![], &[v]));
    }
}
fn drawn(d: &mut Draw, like: bool, names: &[&str]) {
    let s = d.full(1..=3);
    if like {
        d.x(F32, &s);
    } else {
        d.set_ints("shape", &signed(&s));
    }
    for n in names {
        d.set_float(n, if n.len() > 3 { 1.5 } else { 0.5 });
    }
    d.set_float("seed", 7.0);
}

fn multinomial(d: &mut Draw) {
    let (rows, classes, samples) = (d.from(1..=3), d.from(1..=9), d.from(1..=9));
    d.within(F32, &[rows, classes], -3.0, 0.0);
    d.set("sample_size", samples as i64);
    d.set_float("seed", 5.0);
}

pub const LINES: &[Line] = &[
    Line("Bernoulli", |d| {
        let s = d.full(1..=3);
        d.within(F32, &s, 0.0, 1.0);
        d.set_float("seed", 3.0)
    }),
    Line("BlackmanWindow", |d| upto(d, true)),
    Line("CenterCropPad", crop_or_pad),
    Line("Compress", compress),
    Line("Concat", concat),
    Line("ConstantOfShape", constant_of_shape),
    Line("DepthToSpace", |d| depth_to_space(d, false)),
    Line("Expand", expand),
    Line("EyeLike", eye_like),
    Line("Flatten", flatten),
    Line("Gather", gather),
    Line("GatherElements", gather_elements),
    Line("GatherND", gather_nd),
    Line("HammingWindow", |d| upto(d, true)),
    Line("HannWindow", |d| upto(d, true)),
    Line("MelWeightMatrix", mel),
    Line("Multinomial", multinomial),
    Line("NonMaxSuppression", non_max_suppression),
    Line("NonZero", non_zero),
    Line("OneHot", one_hot),
    Line("Pad", pad),
    Line("RandomNormal", |d| drawn(d, false, &["mean", "scale"])),
    Line("RandomNormalLike", |d| drawn(d, true, &["mean", "scale"])),
    Line("RandomUniform", |d| drawn(d, false, &["low", "high"])),
    Line("RandomUniformLike", |d| drawn(d, true, &["low", "high"])),
    Line("Range", range),
    Line("Reshape", reshape),
    Line("ReverseSequence", reverse_sequence),
    Line("Scatter", |d| {
        d.opset = 10;
        scatter_elements(d, &["none"])
    }),
    Line("ScatterElements", |d| scatter_elements(d, &["none", "add", "mul", "max", "min"])),
    Line("ScatterND", scatter_nd),
    Line("Shape", shape_of),
    Line("Size", |d| {
        x(d, 0, 5);
    }),
    Line("Slice", slice),
    Line("SpaceToDepth", |d| depth_to_space(d, true)),
    Line("Split", split),
    Line("Squeeze", squeeze),
    Line("TensorScatter", tensor_scatter),
    Line("Tile", tile),
    Line("Transpose", transpose),
    Line("Trilu", trilu),
    Line("Unique", unique),
    Line("Unsqueeze", unsqueeze),
];
