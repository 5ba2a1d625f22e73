//! Operators on windows and positions of images.

use super::Line;
use crate::draw::Draw;
use wgfc_ir::DType::*;
use wgfc_ir::Tensor;

fn signed(v: &[usize]) -> Vec<i64> {
    v.iter().map(|x| *x as i64).collect()
}

/// The shape of an image with one to three spatial axes.
pub fn image(d: &mut Draw) -> Vec<usize> {
    let axes = d.from(1..=3);
    let mut s = vec![d.from(1..=2), d.from(1..=4)];
    for _ in 0..axes {
        s.push(d.from(4..=[17, 11, 7][axes - 1]));
    }
    s
}

/// Sets strides, dilations and padding so that no window is empty. Returns the kernel's extents.
pub fn windows(d: &mut Draw, spatial: &[usize], ceil: bool, dilate: bool) -> Vec<usize> {
    let kernel: Vec<usize> = spatial.iter().map(|n| d.from(1..=(*n).min(3))).collect();
    if d.one_in(2) {
        let strides: Vec<i64> = spatial.iter().map(|_| d.from(1..=3) as i64).collect();
        d.set_ints("strides", &strides);
    }
    match d.below(4) {
        0 => {}
        1 => {
            let how = d.pick(&["SAME_UPPER", "SAME_LOWER", "VALID"]);
            d.set_text("auto_pad", how);
        }
        _ => {
            let pads: Vec<i64> =
                (0..2 * kernel.len()).map(|i| d.below(kernel[i % kernel.len()]) as i64).collect();
            d.set_ints("pads", &pads);
            if ceil {
                d.flag("ceil_mode");
            }
            if dilate && kernel.iter().zip(spatial).all(|(k, n)| 2 * k - 1 <= *n) {
                let dilations: Vec<i64> = spatial.iter().map(|_| d.from(1..=2) as i64).collect();
                d.set_ints("dilations", &dilations);
            }
        }
    }
    kernel
}

fn pool(d: &mut Draw, op: &str) {
    let (t, s) = (d.pick(&[F32, F32, F16]), image(d));
    d.x(t, &s);
    let k = windows(d, &s[2..], true, true);
    d.set_ints("kernel_shape", &signed(&k));
    match op {
        "average" => drop(d.flag("count_include_pad")),
        "lp" => {
            let p = d.from(1..=3);
            d.set("p", p as i64);
        }
        _ => {
            if d.one_in(3) {
                d.outputs(2);
                d.flag("storage_order");
            }
        }
    }
}
fn global(d: &mut Draw) {
    let (t, s) = (d.pick(&[F32, F16]), image(d));
    d.x(t, &s);
}
/// Resizes by scales or to sizes. The inputs of the operator are x, roi, scales and sizes.
fn resize(d: &mut Draw) {
    let t = d.pick(&[F32, F32, F16, U8]);
    let s = [d.full(0..=2).iter().map(|e| *e.min(&3)).collect(), vec![d.from(1..=9), d.from(1..=9)]].concat();
    d.x(t, &s);
    let mode = d.pick(&["nearest", "linear", "cubic"]);
    let coordinates =
        d.pick(&["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"]);
    let n = s.len();
    let lead = n - 2;
    d.none();
    if d.one_in(2) {
        // The products of these scales with the extents are far from integers.
        let by: Vec<f32> = s
            .iter()
            .enumerate()
            .map(|(i, _)| if i < lead { 1.0 } else { d.pick(&[0.6, 1.37, 2.0, 2.6]) })
            .collect();
        d.known(Tensor::from_f32(vec![n], &by));
        if s[lead..].iter().zip(&by[lead..]).any(|(e, b)| *e as f32 * b < 1.0) {
            d.known(Tensor::from_i64(vec![0], &[]));
        }
    } else {
        d.none();
        let to: Vec<i64> = s
            .iter()
            .enumerate()
            .map(|(i, e)| if i < lead { *e as i64 } else { d.from(1..=13) as i64 })
            .collect();
        d.ints(&to);
    }
    d.set_text("mode", mode);
    d.set_text("coordinate_transformation_mode", coordinates);
    match mode {
        "nearest" => {
            let r = d.pick(&["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]);
            d.set_text("nearest_mode", r);
        }
        _ if t != U8 => {
            d.flag("antialias");
            if mode == "cubic" {
                d.flag("exclude_outside");
            }
        }
        _ => {}
    }
    d.loose = t == U8;
}
fn upsample(d: &mut Draw) {
    d.opset = 9;
    let s = [d.from(1..=2), d.from(1..=3), d.from(1..=7), d.from(1..=7)];
    d.x(F32, &s);
    let by = [1.0, 1.0, d.pick(&[1.0, 2.0, 3.0]), d.pick(&[1.0, 2.0, 3.0])];
    d.known(Tensor::from_f32(vec![4], &by));
    let mode = d.pick(&["nearest", "linear"]);
    d.set_text("mode", mode);
}
fn grid_sample(d: &mut Draw) {
    let three = d.one_in(3);
    let spatial: Vec<usize> = (0..if three { 3 } else { 2 }).map(|_| d.from(2..=7)).collect();
    let out: Vec<usize> = spatial.iter().map(|_| d.from(1..=6)).collect();
    let (n, c) = (d.from(1..=2), d.from(1..=3));
    d.x(F32, &[vec![n, c], spatial.clone()].concat());
    d.within(F32, &[vec![n], out, vec![spatial.len()]].concat(), -1.3, 1.3);
    let mode = if three { d.pick(&["linear", "nearest"]) } else { d.pick(&["linear", "nearest", "cubic"]) };
    d.set_text("mode", mode);
    let padding = d.pick(&["zeros", "border", "reflection"]);
    d.set_text("padding_mode", padding);
    d.flag("align_corners");
}
fn affine_grid(d: &mut Draw) {
    let n = d.from(1..=3);
    let axes = d.from(2..=3);
    d.x(F32, &[n, axes, axes + 1]);
    let mut size = vec![n as i64, d.from(1..=3) as i64];
    for _ in 0..axes {
        size.push(d.from(2..=7) as i64);
    }
    d.ints(&size);
    d.flag("align_corners");
}
fn roi_align(d: &mut Draw) {
    let (n, c, h, w, r) = (d.from(1..=3), d.from(1..=3), d.from(4..=9), d.from(4..=9), d.from(1..=4));
    d.x(F32, &[n, c, h, w]);
    let corner: Vec<f32> = (0..r)
        .flat_map(|_| {
            let (x, y) = (d.below(30) as f32 / 10.0, d.below(30) as f32 / 10.0);
            // Without a sampling ratio, a region larger than the image is refused.
            let (right, bottom) = (x + 0.7 + d.below(40) as f32 / 10.0, y + 0.7 + d.below(40) as f32 / 10.0);
            [x, y, right.min(w as f32), bottom.min(h as f32)]
        })
        .collect();
    d.give(Tensor::from_f32(vec![r, 4], &corner));
    d.within(I64, &[r], 0.0, n as f64 - 1.0);
    for (name, v) in
        [("output_height", d.from(1..=4)), ("output_width", d.from(1..=4)), ("sampling_ratio", d.from(0..=3))]
    {
        d.set(name, v as i64);
    }
    let mode = d.pick(&["avg", "max"]);
    d.set_text("mode", mode);
    if d.one_in(2) {
        d.set_text("coordinate_transformation_mode", "output_half_pixel");
    }
}
fn max_roi_pool(d: &mut Draw) {
    let (n, c, h, w, r) = (d.from(1..=3), d.from(1..=3), d.from(1..=9), d.from(1..=9), d.from(1..=4));
    d.x(F32, &[n, c, h, w]);
    let regions: Vec<f32> = (0..r)
        .flat_map(|_| {
            let v = [d.below(n), d.below(w), d.below(h), d.below(2 * w), d.below(2 * h)];
            v.map(|x| x as f32)
        })
        .collect();
    d.give(Tensor::from_f32(vec![r, 5], &regions));
    let pooled = [d.from(1..=4) as i64, d.from(1..=4) as i64];
    d.set_ints("pooled_shape", &pooled);
    if d.one_in(2) {
        d.set_float("spatial_scale", 0.75);
    }
}
fn col2im(d: &mut Draw) {
    let (h, w, kh, kw) = (d.from(3..=8), d.from(3..=8), d.from(1..=3), d.from(1..=3));
    let (n, c, s, p) = (d.from(1..=2), d.from(1..=3), d.from(1..=2), d.below(2));
    let count = |e: usize, k: usize| (e + 2 * p - k) / s + 1;
    d.x(F32, &[n, c * kh * kw, count(h, kh) * count(w, kw)]);
    d.ints(&[h as i64, w as i64]);
    d.ints(&[kh as i64, kw as i64]);
    d.set_ints("strides", &[s as i64, s as i64]);
    d.set_ints("pads", &[p as i64; 4]);
}
fn max_unpool(d: &mut Draw) {
    let (n, c, h, w) = (d.from(1..=2), d.from(1..=2), d.from(1..=4), d.from(1..=4));
    d.x(F32, &[n, c, h, w]);
    // One index in each window of 2×2, so that all indices are distinct.
    let mut at = vec![];
    for plane in 0..n * c {
        for y in 0..h {
            for x in 0..w {
                let (dy, dx) = (d.below(2), d.below(2));
                at.push((plane * 4 * h * w + (2 * y + dy) * 2 * w + 2 * x + dx) as i64);
            }
        }
    }
    d.give(Tensor::from_i64(vec![n, c, h, w], &at));
    d.set_ints("kernel_shape", &[2, 2]);
    d.set_ints("strides", &[2, 2]);
}

pub const LINES: &[Line] = &[
    Line("AffineGrid", affine_grid),
    Line("AveragePool", |d| pool(d, "average")),
    Line("Col2Im", col2im),
    Line("GlobalAveragePool", global),
    Line("GlobalLpPool", global),
    Line("GlobalMaxPool", global),
    Line("GridSample", grid_sample),
    Line("LpPool", |d| pool(d, "lp")),
    Line("MaxPool", |d| pool(d, "max")),
    Line("MaxRoiPool", max_roi_pool),
    Line("MaxUnpool", max_unpool),
    Line("Resize", resize),
    Line("RoiAlign", roi_align),
    Line("Upsample", upsample),
];
