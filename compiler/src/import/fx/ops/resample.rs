//! Resizing and sampling of images.

use super::super::prelude::*;
use crate::lower::interpolate::{Axis, Coordinates, Mode, Nearest, Resize};
use crate::lower::sample::{self, GridSample, Padding};
use crate::lower::split::{self, Blocks};
use crate::lower::{resize, transposed};
use wgfc_ir::build::WindowAxis;
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{Op, Poly, ReduceOp, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._upsample_bicubic2d_aa.default|vec", |cx| smooth(cx, Mode::Cubic(-0.5), true)),
    OpDef::new("aten._upsample_bilinear2d_aa.default|vec", |cx| smooth(cx, Mode::Linear, true)),
    OpDef::new("aten._upsample_nearest_exact1d.default|vec", |cx| nearest(cx, true)),
    OpDef::new("aten._upsample_nearest_exact2d.default|vec", |cx| nearest(cx, true)),
    OpDef::new("aten._upsample_nearest_exact3d.default|vec", |cx| nearest(cx, true)),
    OpDef::new("aten.affine_grid_generator.default", |cx| {
        let (theta, size) = (cx.tensor("theta")?, cx.sizes("size")?);
        let align = cx.flag("align_corners")?;
        Ok(vec![sample::affine_grid(cx, theta, &size, align)?])
    }),
    OpDef::new("aten.channel_shuffle.default", shuffled),
    OpDef::new("aten.col2im.default", |cx| {
        let (x, image, block) = (cx.tensor("self")?, cx.sizes("output_size")?, cx.sizes("kernel_size")?);
        let pads = cx.ints_of("padding", 2)?;
        let p = transposed::Layout {
            strides: cx.ints_of("stride", 2)?,
            dilations: cx.ints_of("dilation", 2)?,
            pads: [&pads[..], &pads[..]].concat(),
        };
        let single = cx.rank(x) == 2;
        let x = if single { cx.unsqueeze(x, &[0])? } else { x };
        let y = transposed::col2im(cx, x, &image, &block, &p)?;
        Ok(vec![if single { cx.squeeze(y, &[0])? } else { y }])
    }),
    OpDef::new("aten.fractional_max_pool2d.default", |cx| fractional(cx, 2)),
    OpDef::new("aten.fractional_max_pool3d.default", |cx| fractional(cx, 3)),
    OpDef::new("aten.grid_sampler.default", sampled),
    OpDef::new("aten.grid_sampler_2d.default", sampled),
    OpDef::new("aten.grid_sampler_2d_backward.default", sampled_backward)
        .notes("Of the nearest element, or of the nearest four."),
    OpDef::new("aten.grid_sampler_3d.default", sampled),
    OpDef::new("aten.grid_sampler_3d_backward.default", sampled_backward)
        .notes("Of the nearest element, or of the nearest eight."),
    OpDef::new("aten.im2col.default", windows),
    OpDef::new("aten.max_unpool2d.default", |cx| unpooled(cx, 2)),
    OpDef::new("aten.max_unpool3d.default", |cx| unpooled(cx, 3)),
    OpDef::new("aten.native_channel_shuffle.default", shuffled),
    OpDef::new("aten.pixel_shuffle.default", |cx| {
        let b = cx.int("upscale_factor")?;
        images(cx, |cx, x| split::depth_to_space(cx, x, b, Blocks::Last))
    }),
    OpDef::new("aten.pixel_unshuffle.default", |cx| {
        let b = cx.int("downscale_factor")?;
        images(cx, |cx, x| split::space_to_depth(cx, x, b, Blocks::Last))
    }),
    OpDef::new("aten.upsample_bicubic2d.default|vec", |cx| smooth(cx, Mode::Cubic(-0.75), false)),
    OpDef::new("aten.upsample_bilinear2d.default|vec", |cx| smooth(cx, Mode::Linear, false)),
    OpDef::new("aten.upsample_linear1d.default|vec", |cx| smooth(cx, Mode::Linear, false)),
    OpDef::new("aten.upsample_nearest1d.default|vec", |cx| nearest(cx, false)),
    OpDef::new("aten.upsample_nearest2d.default|vec", |cx| nearest(cx, false)),
    OpDef::new("aten.upsample_nearest3d.default|vec", |cx| nearest(cx, false)),
    OpDef::new("aten.upsample_trilinear3d.default|vec", |cx| smooth(cx, Mode::Linear, false)),
];

/// The scale factors of the spatial axes, if they are given.
fn factors(cx: &mut Cx, axes: usize) -> Result<Vec<Option<f64>>> {
    if cx.declares("scale_factors") {
        return Ok(match cx.opt_floats("scale_factors")? {
            Some(f) => f.into_iter().map(Some).collect(),
            None => vec![None; axes],
        });
    }
    let names: &[&str] = if axes == 1 { &["scales"] } else { &["scales_d", "scales_h", "scales_w"] };
    let mut out = vec![];
    for name in &names[names.len() - axes.min(names.len())..] {
        out.push(cx.opt_float(name)?);
    }
    Ok(out)
}

/// The scale factor for aligned corners, if both extents are constants. A single output element is placed at the first corner, which an
/// effectively infinite factor achieves.
fn apart(from: &Dim, to: &Dim) -> Option<f64> {
    let (from, to) = (from.as_const()?, to.as_const()?);
    if from > 1 && to == 1 {
        return Some(1e30);
    }
    (from > 1 && to > 1).then(|| (to - 1) as f64 / (from - 1) as f64)
}

/// Resizes to the declared shape.
fn resized(cx: &mut Cx, r: &Resize, corners: bool) -> Lowered {
    let x = cx.tensor(if cx.declares("self") { "self" } else { "input" })?;
    let (from, to) = (cx.shape(x), cx.result(0)?.shape);
    if from.len() < 3 || from.len() != to.len() {
        return Err(OpError::model(format!("needs spatial axes, got {}", cx.ty(x))).operand(x));
    }
    let mut factors = factors(cx, from.len() - 2)?;
    factors.resize(from.len() - 2, None);
    let of = |(i, scale): (usize, Option<f64>)| Axis {
        axis: i + 2,
        from: from[i + 2].clone(),
        to: to[i + 2].clone(),
        scale: match corners {
            // With aligned corners the scale depends on the extents alone.
            true if r.antialias => apart(&from[i + 2], &to[i + 2]),
            true => None,
            false => scale.filter(|s| *s > 0.0),
        },
        roi: [0.0, 1.0],
    };
    let axes: Vec<Axis> = factors.into_iter().enumerate().map(of).collect();
    // In these modes torch resizes u8 images with integer weights.
    if cx.dtype(x) == DType::U8 && from.len() == 4 && !matches!(r.mode, Mode::Nearest(_)) {
        return Ok(vec![resize::resize_bytes(cx, x, r, &axes)?]);
    }
    Ok(vec![resize::resize(cx, x, r, &axes)?])
}

fn nearest(cx: &mut Cx, exact: bool) -> Lowered {
    let coordinates = if exact { Coordinates::TfHalfPixelForNn } else { Coordinates::Asymmetric };
    let mode = Mode::Nearest(Nearest::Floor);
    let r = Resize { mode, coordinates, antialias: false, exclude_outside: false, extrapolation: 0.0 };
    resized(cx, &r, false)
}

fn smooth(cx: &mut Cx, mode: Mode, antialias: bool) -> Lowered {
    let align = cx.flag("align_corners")?;
    // Antialiasing always uses half-pixel coordinates.
    let by_corners = align && !antialias;
    let coordinates = if by_corners { Coordinates::AlignCorners } else { Coordinates::HalfPixel };
    let r = Resize { mode, coordinates, antialias, exclude_outside: antialias, extrapolation: 0.0 };
    resized(cx, &r, align)
}

fn sampled(cx: &mut Cx) -> Lowered {
    let (x, grid) = (cx.tensor("input")?, cx.tensor("grid")?);
    let p = sampling(cx)?;
    Ok(vec![sample::grid_sample(cx, x, grid, &p)?])
}

fn sampled_backward(cx: &mut Cx) -> Lowered {
    let (grad, x, grid) = (cx.tensor("grad_output")?, cx.tensor("input")?, cx.tensor("grid")?);
    let p = sampling(cx)?;
    if p.mode == sample::Mode::Cubic {
        let e = "the gradient of samples of sixteen elements";
        return Err(OpError::unsupported(e, "sample with mode=\"bilinear\"").param("interpolation_mode"));
    }
    let all = sample::grid_sample_backward(cx, grad, x, grid, &p)?;
    let mask = cx.flags("output_mask")?;
    // Some programs name all results, others only the requested ones.
    if cx.result_count() == all.len() {
        return Ok(all.into());
    }
    Ok(all.into_iter().zip(mask.into_iter().chain([true, true])).filter(|(_, wanted)| *wanted).map(|(v, _)| v).collect())
}

fn sampling(cx: &mut Cx) -> Result<GridSample> {
    let mode = match cx.int("interpolation_mode")? {
        0 => sample::Mode::Linear,
        1 => sample::Mode::Nearest,
        2 => sample::Mode::Cubic,
        m => return Err(OpError::model(format!("unknown mode {m}")).param("interpolation_mode")),
    };
    let padding = match cx.int("padding_mode")? {
        0 => Padding::Zeros,
        1 => Padding::Border,
        2 => Padding::Reflection,
        m => return Err(OpError::model(format!("unknown mode {m}")).param("padding_mode")),
    };
    let align_corners = cx.flag("align_corners")?;
    Ok(GridSample { mode, padding, align_corners })
}

/// Applies a function to images, with all axes before the last three flattened.
fn images(cx: &mut Cx, f: impl Fn(&mut Lowering, Value) -> Result) -> Lowered {
    let x = cx.tensor("self")?;
    let dims = cx.shape(x);
    let Some(lead) = dims.len().checked_sub(3) else {
        return Err(OpError::model(format!("needs three axes, got {}", cx.ty(x))).operand(x));
    };
    let mut four = vec![dims[..lead].iter().product::<Dim>()];
    four.extend_from_slice(&dims[lead..]);
    let x = cx.reshape(x, four)?;
    let y = f(cx, x)?;
    let mut want = dims[..lead].to_vec();
    want.extend_from_slice(&cx.shape(y)[1..]);
    Ok(vec![cx.reshape(y, want)?])
}

/// Channel shuffle: interleaves the channels of the groups.
fn shuffled(cx: &mut Cx) -> Lowered {
    let (x, groups) = (cx.tensor("self")?, cx.size("groups")?);
    let dims = cx.shape(x);
    if dims.len() < 2 || groups.is(0) {
        return Err(OpError::model(format!("{groups} groups of {}", cx.ty(x))).operand(x));
    }
    let mut apart = dims.clone();
    apart[1] = dims[1].div(&groups, &[]);
    apart.insert(1, groups);
    let x = cx.reshape(x, apart)?;
    let mut order: Vec<usize> = (0..=dims.len()).collect();
    order.swap(1, 2);
    let x = cx.transpose(x, &order)?;
    Ok(vec![cx.reshape(x, dims)?])
}

/// The windows of an image as columns (im2col).
fn windows(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let single = cx.rank(x) == 3;
    let x = if single { cx.unsqueeze(x, &[0])? } else { x };
    let dims = cx.shape(cx.require_rank(x, 4)?);
    let (kernel, dilation) = (cx.ints_of("kernel_size", 2)?, cx.ints_of("dilation", 2)?);
    let (pad, stride) = (cx.ints_of("padding", 2)?, cx.ints_of("stride", 2)?);
    let axes: Vec<WindowAxis> = (0..2)
        .map(|i| {
            let room = &dims[2 + i] + (2 * pad[i] - dilation[i] * (kernel[i] - 1) - 1);
            WindowAxis {
                kernel: kernel[i].into(),
                stride: stride[i],
                dilation: dilation[i],
                pad: pad[i].into(),
                out: &room.div(&stride[i].into(), &[]) + 1,
            }
        })
        .collect();
    let count: Dim = axes.iter().map(|a| a.out.clone()).product();
    let rows = &dims[1] * (kernel[0] * kernel[1]);
    let zero = Scalar::from_i64(cx.dtype(x), 0);
    let y = cx.unfold(x, &axes, zero)?;
    let y = cx.transpose(y, &[0, 1, 4, 5, 2, 3])?;
    let y = cx.reshape(y, vec![dims[0].clone(), rows, count])?;
    Ok(vec![if single { cx.squeeze(y, &[0])? } else { y }])
}

/// Max unpooling: elements at their flat positions in the last `n` axes, 0 elsewhere.
fn unpooled(cx: &mut Cx, n: usize) -> Lowered {
    let (x, places) = (cx.tensor("self")?, cx.tensor("indices")?);
    let size = cx.sizes("output_size")?;
    let dims = cx.shape(x);
    let Some(lead) = dims.len().checked_sub(n) else {
        return Err(OpError::model(format!("needs {n} spatial axes, got {}", cx.ty(x))).operand(x));
    };
    let (planes, count): (Dim, Dim) = (dims[..lead].iter().product(), dims[lead..].iter().product());
    let flat = vec![planes.clone(), count];
    let (x, places) = (cx.reshape(x, flat.clone())?, cx.reshape(places, flat)?);
    let places = cx.require_indices(places)?;
    let none = Scalar::from_i64(cx.dtype(x), 0);
    let none = cx.full(&[planes, size.iter().product()], none)?;
    let at = vec![Poly::var(0), Poly::var(1)];
    let index = vec![GatherAxis::Affine(Poly::var(0)), GatherAxis::Data { input: 2, at }];
    let y = cx.push(Op::Scatter { reduce: None, index }, &[none, x, places])?;
    let want = [&dims[..lead], &size[..]].concat();
    Ok(vec![cx.reshape(y, want)?])
}

/// Fractional max pooling: the maxima of windows at random offsets, and their flat positions in the spatial axes. With two spatial axes
/// the first sample of a plane is for the last axis, with three it is for the first.
fn fractional(cx: &mut Cx, n: usize) -> Lowered {
    let (x, samples) = (cx.tensor("self")?, cx.tensor("random_samples")?);
    let (kernel, out) = (cx.ints_of("kernel_size", n)?, cx.ints_of("output_size", n)?);
    let single = cx.rank(x) == n + 1;
    let x = if single { cx.unsqueeze(x, &[0])? } else { x };
    let dims = cx.shape(cx.require_rank(x, n + 2)?);
    cx.require_rank(samples, 3)?;
    let planes = [dims[0].clone(), dims[1].clone()];
    let mut inputs = vec![x];
    let mut index: Vec<GatherAxis> = (0..2).map(|d| GatherAxis::Affine(Poly::var(d))).collect();
    let mut shape = planes.to_vec();
    shape.extend(out.iter().map(|o| Dim::from(*o)));
    let count: i64 = kernel.iter().product();
    shape.push(count.into());
    let mut within = Poly::var(n + 2);
    let mut offsets = vec![Poly::ZERO; n];
    for i in (0..n).rev() {
        let k = Poly::from(kernel[i]);
        offsets[i] = if i == 0 { within.clone() } else { within.modulo(&k, &shape) };
        within = within.div(&k, &shape);
    }
    let mut places = vec![];
    for i in 0..n {
        let which = if n == 2 { n - 1 - i } else { i };
        let sample = cx.view(samples, planes.to_vec(), vec![Poly::var(0), Poly::var(1), Poly::from(which)])?;
        let begins = starts(cx, sample, &dims[2 + i], kernel[i], out[i])?;
        // The position of each window element along the axis.
        let begins = cx.view(begins, shape.clone(), vec![Poly::var(0), Poly::var(1), Poly::var(2 + i)])?;
        let far = cx.iota(&shape, offsets[i].clone(), DType::I32)?;
        let at = cx.binary(BinaryOp::Add, begins, far)?;
        index.push(GatherAxis::Data { input: inputs.len(), at: (0..n + 3).map(Poly::var).collect() });
        inputs.push(at);
        places.push(at);
    }
    let parts = cx.push(Op::Gather { shape: shape.clone(), index }, &inputs)?;
    let largest = cx.reduce(ReduceOp::Max, parts, &[n + 2], false)?;
    let best = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis: n + 2, last: false }, &[parts])?;
    let mut flat = places[0];
    for (i, p) in places.iter().enumerate().skip(1) {
        let extent = cx.dim_scalar(&dims[2 + i], DType::I32)?;
        let row = cx.binary(BinaryOp::Mul, flat, extent)?;
        flat = cx.binary(BinaryOp::Add, row, *p)?;
    }
    let at = crate::lower::gather::elements(cx, flat, best, n + 2)?;
    let at = cx.squeeze(at, &[n + 2])?;
    let mut both = [largest, cx.cast(at, DType::I64)?];
    if single {
        both = [cx.squeeze(both[0], &[0])?, cx.squeeze(both[1], &[0])?];
    }
    Ok(both.to_vec())
}

/// The starts of `out` windows along an axis: `⌊(i + sample)·α⌋ − ⌊sample·α⌋`, with the mean distance `α = (extent − kernel) / (out −
/// 1)`. The last window ends with the axis.
fn starts(cx: &mut Cx, sample: Value, extent: &Dim, kernel: i64, out: i64) -> Result {
    let mut shape = cx.shape(sample);
    let i = shape.len();
    shape.push(out.into());
    let dtype = cx.dtype(sample);
    let sample = cx.unsqueeze(sample, &[i])?;
    let mut f = wgfc_ir::Body::default();
    let (sample0, room) = (f.arg(0), f.index(extent - kernel));
    let (wide, parts) = (f.cast(dtype, room), f.number(dtype, (out - 1).max(1) as f64));
    let alpha = f.binary(BinaryOp::Div, wide, parts);
    let here = f.index(Poly::var(i));
    let place = f.cast(dtype, here);
    let moved = f.binary(BinaryOp::Add, place, sample0);
    let [moved, first] = [moved, sample0].map(|v| {
        let far = f.binary(BinaryOp::Mul, v, alpha);
        let far = f.unary(UnaryOp::Trunc, far);
        f.cast(DType::I32, far)
    });
    let begin = f.binary(BinaryOp::Sub, moved, first);
    let last = f.i32(out - 1);
    let is_last = f.binary(BinaryOp::Eq, here, last);
    f.select(is_last, room, begin);
    Ok(cx.map_to(f.0, &[sample], shape)?)
}
