//! Gradients.

use super::super::prelude::*;
use crate::lower::conv::{self, Conv};
use crate::lower::transposed::{self, ConvTranspose};
use crate::lower::window::{Padding, Window, Windows};
use crate::lower::{pool, scatter};
use wgfc_ir::{Body, Contract, Op, Poly, ReduceOp, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._adaptive_avg_pool2d_backward.default", adaptive_average),
    OpDef::new("aten._adaptive_avg_pool3d_backward.default", adaptive_average),
    OpDef::new("aten._log_softmax_backward_data.default", |cx| softmax(cx, true)),
    OpDef::new("aten._softmax_backward_data.default", |cx| softmax(cx, false)),
    OpDef::new("aten.avg_pool2d_backward.default", |cx| average(cx, 2)),
    OpDef::new("aten.avg_pool3d_backward.default", |cx| average(cx, 3)),
    OpDef::new("aten.convolution_backward.default", convolution),
    OpDef::new("aten.embedding_dense_backward.default", embedding),
    OpDef::new("aten.gelu_backward.default", gelu),
    OpDef::new("aten.hardtanh_backward.default", hardtanh),
    OpDef::new("aten.leaky_relu_backward.default", leaky_relu),
    OpDef::new("aten.max_pool2d_with_indices_backward.default", |cx| maximum(cx, 2)),
    OpDef::new("aten.max_pool3d_with_indices_backward.default", |cx| maximum(cx, 3)),
    OpDef::new("aten.mse_loss_backward.default", squared_distance),
    OpDef::new("aten.native_dropout_backward.default", dropout),
    OpDef::new("aten.native_group_norm_backward.default", group_norm),
    OpDef::new("aten.native_layer_norm_backward.default", layer_norm),
    OpDef::new("aten.sigmoid_backward.default", sigmoid),
    OpDef::new("aten.silu_backward.default", silu),
    OpDef::new("aten.tanh_backward.default", tanh),
    OpDef::new("aten.threshold_backward.default", threshold),
];

/// An elementwise function of the gradient and another operand.
fn formula(cx: &mut Cx, names: [&str; 2], f: impl FnOnce(&mut Body, u32, u32, DType) -> u32) -> Lowered {
    let [g, x] = cx.promoted(names)?;
    let dtype = cx.dtype(g);
    let mut body = Body::default();
    let (a, b) = (body.arg(0), body.arg(1));
    f(&mut body, a, b, dtype);
    Ok(vec![cx.map(body.0, &[g, x])?])
}

fn threshold(cx: &mut Cx) -> Lowered {
    let at = cx.float("threshold")?;
    formula(cx, ["grad_output", "self"], |f, g, x, t| {
        let (at, zero) = (f.number(t, at), f.number(t, 0.0));
        let below = f.binary(BinaryOp::Le, x, at);
        f.select(below, zero, g)
    })
}

fn hardtanh(cx: &mut Cx) -> Lowered {
    let (low, high) = (cx.float("min_val")?, cx.float("max_val")?);
    formula(cx, ["grad_output", "self"], |f, g, x, t| {
        let (low, high, zero) = (f.number(t, low), f.number(t, high), f.number(t, 0.0));
        let (below, above) = (f.binary(BinaryOp::Le, x, low), f.binary(BinaryOp::Ge, x, high));
        let outside = f.binary(BinaryOp::Or, below, above);
        f.select(outside, zero, g)
    })
}

fn leaky_relu(cx: &mut Cx) -> Lowered {
    let slope = cx.float("negative_slope")?;
    formula(cx, ["grad_output", "self"], |f, g, x, t| {
        let (slope, zero) = (f.number(t, slope), f.number(t, 0.0));
        let (low, positive) = (f.binary(BinaryOp::Mul, g, slope), f.binary(BinaryOp::Gt, x, zero));
        f.select(positive, g, low)
    })
}

/// `g y (1 - y)`.
fn sigmoid(cx: &mut Cx) -> Lowered {
    formula(cx, ["grad_output", "output"], |f, g, y, t| {
        let one = f.number(t, 1.0);
        let rest = f.binary(BinaryOp::Sub, one, y);
        let slope = f.binary(BinaryOp::Mul, y, rest);
        f.binary(BinaryOp::Mul, g, slope)
    })
}

/// `g (1 - y²)`.
fn tanh(cx: &mut Cx) -> Lowered {
    formula(cx, ["grad_output", "output"], |f, g, y, t| {
        let one = f.number(t, 1.0);
        let square = f.binary(BinaryOp::Mul, y, y);
        let rest = f.binary(BinaryOp::Sub, one, square);
        f.binary(BinaryOp::Mul, g, rest)
    })
}

/// `g s (1 + x (1 - s))`, where `s` is the sigmoid of `x`.
fn silu(cx: &mut Cx) -> Lowered {
    formula(cx, ["grad_output", "self"], |f, g, x, t| {
        let (one, s) = (f.number(t, 1.0), f.unary(UnaryOp::Sigmoid, x));
        let rest = f.binary(BinaryOp::Sub, one, s);
        let line = f.binary(BinaryOp::Mul, x, rest);
        let line = f.binary(BinaryOp::Add, line, one);
        let slope = f.binary(BinaryOp::Mul, s, line);
        f.binary(BinaryOp::Mul, g, slope)
    })
}

/// `g (Φ(x) + x φ(x))`, or the derivative of the tanh approximation.
fn gelu(cx: &mut Cx) -> Lowered {
    use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};
    let tanh = cx.text("approximate")?.as_deref() == Some("tanh");
    formula(cx, ["grad_output", "self"], |f, g, x, t| {
        let (half, one) = (f.number(t, 0.5), f.number(t, 1.0));
        let square = f.binary(BinaryOp::Mul, x, x);
        let slope = if tanh {
            let root = (2.0 / PI).sqrt();
            let (root, cubic, three) = (f.number(t, root), f.number(t, 0.044715), f.number(t, 3.0 * 0.044715));
            let part = f.binary(BinaryOp::Mul, square, cubic);
            let part = f.binary(BinaryOp::Add, part, one);
            let part = f.binary(BinaryOp::Mul, part, x);
            let part = f.binary(BinaryOp::Mul, part, root);
            let y = f.unary(UnaryOp::Tanh, part);
            let inner = f.binary(BinaryOp::Mul, square, three);
            let inner = f.binary(BinaryOp::Add, inner, one);
            let inner = f.binary(BinaryOp::Mul, inner, root);
            let y2 = f.binary(BinaryOp::Mul, y, y);
            let rest = f.binary(BinaryOp::Sub, one, y2);
            let right = f.binary(BinaryOp::Mul, x, rest);
            let right = f.binary(BinaryOp::Mul, right, inner);
            let left = f.binary(BinaryOp::Add, y, one);
            let sum = f.binary(BinaryOp::Add, left, right);
            f.binary(BinaryOp::Mul, sum, half)
        } else {
            let (scale, density) = (f.number(t, FRAC_1_SQRT_2), f.number(t, 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2));
            let scaled = f.binary(BinaryOp::Mul, x, scale);
            let erf = f.unary(UnaryOp::Erf, scaled);
            let cdf = f.binary(BinaryOp::Add, erf, one);
            let cdf = f.binary(BinaryOp::Mul, cdf, half);
            let exponent = f.binary(BinaryOp::Mul, square, half);
            let exponent = f.unary(UnaryOp::Neg, exponent);
            let e = f.unary(UnaryOp::Exp, exponent);
            let pdf = f.binary(BinaryOp::Mul, e, density);
            let right = f.binary(BinaryOp::Mul, x, pdf);
            f.binary(BinaryOp::Add, cdf, right)
        };
        f.binary(BinaryOp::Mul, g, slope)
    })
}

/// The gradient times the mask and the scale.
fn dropout(cx: &mut Cx) -> Lowered {
    let (g, mask, scale) = (cx.tensor("grad_output")?, cx.tensor("mask")?, cx.float("scale")?);
    let to = cx.result_dtype(0)?;
    let g = cx.converted(g, to)?;
    let grown = cx.binary_scalar(BinaryOp::Mul, g, scale)?;
    let zero = cx.scalar(cx.dtype(g), 0.0);
    let mask = super::binary::truth(cx, mask)?;
    Ok(vec![cx.select(mask, grown, zero)?])
}

fn squared_distance(cx: &mut Cx) -> Lowered {
    let (g, x, t) = (cx.tensor("grad_output")?, cx.tensor("self")?, cx.tensor("target")?);
    let d = cx.binary(BinaryOp::Sub, x, t)?;
    let mut factor = cx.scalar(cx.dtype(x), 2.0);
    if cx.int("reduction")? == 1 {
        let n = cx.ty(x).numel();
        let dtype = cx.dtype(x);
        let n = cx.dim_scalar(&n, dtype)?;
        factor = cx.binary(BinaryOp::Div, factor, n)?;
    }
    let d = cx.binary(BinaryOp::Mul, d, factor)?;
    Ok(vec![cx.binary(BinaryOp::Mul, d, g)?])
}

/// `y (g - Σ g y)` for softmax, `g - e^y Σ g` for log-softmax.
fn softmax(cx: &mut Cx, log: bool) -> Lowered {
    let (g, y) = (cx.tensor("grad_output")?, cx.tensor("output")?);
    if cx.rank(y) == 0 {
        return Ok(vec![cx.scalar(cx.dtype(y), 0.0)]);
    }
    let axis = cx.axis("dim", cx.rank(y))?;
    let result = if log {
        let sum = cx.reduce(ReduceOp::Sum, g, &[axis], true)?;
        let e = cx.unary(UnaryOp::Exp, y)?;
        let share = cx.binary(BinaryOp::Mul, e, sum)?;
        cx.binary(BinaryOp::Sub, g, share)?
    } else {
        let product = cx.binary(BinaryOp::Mul, g, y)?;
        let sum = cx.reduce(ReduceOp::Sum, product, &[axis], true)?;
        let d = cx.binary(BinaryOp::Sub, g, sum)?;
        cx.binary(BinaryOp::Mul, y, d)?
    };
    let dtype = cx.result_dtype(0)?;
    Ok(vec![cx.converted(result, dtype)?])
}

/// The gradient of an input that was normalised over `axes`, in f32, from the normalised values `hat` and the factor `inverse`.
fn normalised(cx: &mut Cx, g: Value, hat: Value, inverse: Value, axes: &[usize]) -> Result {
    let mean = cx.mean(g, axes)?;
    let product = cx.binary(BinaryOp::Mul, g, hat)?;
    let along = cx.mean(product, axes)?;
    let along = cx.binary(BinaryOp::Mul, hat, along)?;
    let d = cx.binary(BinaryOp::Sub, g, mean)?;
    let d = cx.binary(BinaryOp::Sub, d, along)?;
    Ok(cx.binary(BinaryOp::Mul, d, inverse)?)
}

/// Gradients of the input, the scale and the bias; those that are not requested are zeros of one element.
fn layer_norm(cx: &mut Cx) -> Lowered {
    let (g, x, mean, inverse) = (cx.tensor("grad_out")?, cx.tensor("input")?, cx.tensor("mean")?, cx.tensor("rstd")?);
    let n = cx.sizes("normalized_shape")?.len();
    let rank = cx.rank(x);
    let (axes, others): (Vec<usize>, Vec<usize>) = ((rank - n..rank).collect(), (0..rank - n).collect());
    let dtype = cx.dtype(x);
    let [g, x, mean, inverse] = [g, x, mean, inverse].map(|v| cx.converted(v, DType::F32));
    let (g, x, mean, inverse) = (g?, x?, mean?, inverse?);
    let hat = cx.binary(BinaryOp::Sub, x, mean)?;
    let hat = cx.binary(BinaryOp::Mul, hat, inverse)?;
    let scaled = match cx.opt_tensor("weight")? {
        Some(w) => {
            let w = cx.converted(w, DType::F32)?;
            cx.binary(BinaryOp::Mul, g, w)?
        }
        None => g,
    };
    let input = normalised(cx, scaled, hat, inverse, &axes)?;
    let product = cx.binary(BinaryOp::Mul, g, hat)?;
    let weight = cx.reduce(ReduceOp::Sum, product, &others, false)?;
    let bias = cx.reduce(ReduceOp::Sum, g, &others, false)?;
    masked(cx, [input, weight, bias], dtype)
}

/// The results that `output_mask` requests.
fn masked(cx: &mut Cx, results: [Value; 3], dtype: DType) -> Lowered {
    let mask = cx.flags("output_mask")?;
    let mut out = vec![];
    for (i, v) in results.into_iter().enumerate() {
        // Gradients that are not requested have no result name.
        if mask.get(i).copied().unwrap_or(true) {
            out.push(cx.converted(v, dtype)?);
        }
    }
    Ok(out)
}

fn group_norm(cx: &mut Cx) -> Lowered {
    let (g, x, mean, inverse) = (cx.tensor("grad_out")?, cx.tensor("input")?, cx.tensor("mean")?, cx.tensor("rstd")?);
    let (groups, shape, dtype) = (cx.int("group")?, cx.shape(x), cx.dtype(x));
    let rest: Dim = shape[2..].iter().product();
    let each = shape[1].div(&groups.into(), &[]);
    let split = vec![shape[0].clone(), groups.into(), each, rest.clone()];
    let [g, x, mean, inverse] = [g, x, mean, inverse].map(|v| cx.converted(v, DType::F32));
    let (g, x) = (cx.reshape(g?, split.clone())?, cx.reshape(x?, split.clone())?);
    let (mean, inverse) = (cx.unsqueeze(mean?, &[2, 3])?, cx.unsqueeze(inverse?, &[2, 3])?);
    let hat = cx.binary(BinaryOp::Sub, x, mean)?;
    let hat = cx.binary(BinaryOp::Mul, hat, inverse)?;
    let scaled = match cx.opt_tensor("weight")? {
        Some(w) => {
            let w = cx.converted(w, DType::F32)?;
            let w = cx.reshape(w, vec![split[1].clone(), split[2].clone(), Dim::ONE])?;
            cx.binary(BinaryOp::Mul, g, w)?
        }
        None => g,
    };
    let input = normalised(cx, scaled, hat, inverse, &[2, 3])?;
    let input = cx.reshape(input, shape.clone())?;
    let product = cx.binary(BinaryOp::Mul, g, hat)?;
    let mut sums = [product, g];
    for s in &mut sums {
        let sum = cx.reduce(ReduceOp::Sum, *s, &[0, 3], false)?;
        *s = cx.reshape(sum, vec![shape[1].clone()])?;
    }
    masked(cx, [input, sums[0], sums[1]], dtype)
}

/// Gradients of the input, the weights and the bias.
fn convolution(cx: &mut Cx) -> Lowered {
    let (g, x, w) = (cx.tensor("grad_output")?, cx.tensor("input")?, cx.tensor("weight")?);
    let n = cx.rank(w).saturating_sub(2);
    let (strides, dilations, around) =
        (cx.ints_of("stride", n)?, cx.ints_of("dilation", n)?, cx.ints_of("padding", n)?);
    let (groups, turned) = (cx.int("groups")?, cx.flag("transposed")?);
    let padding = Padding::Explicit([around.clone(), around.clone()].concat());
    let dtype = cx.dtype(x);
    let input = if turned {
        let window = Window { strides: strides.clone(), dilations: dilations.clone(), padding: padding.clone(), ceil: false };
        let y = conv::product(cx, g, w, &Conv { window, groups })?;
        // An output padding of at least the stride produces positions beyond the input.
        let (sx, sy) = (cx.shape(x), cx.shape(y));
        let more = |d: usize| (&sy[d] - &sx[d]).as_const().is_some_and(|n| n > 0);
        if (2..n + 2).any(more) { cx.view(y, sx, (0..n + 2).map(Poly::var).collect())? } else { y }
    } else {
        // The elements at the end of each axis that no window covered.
        let (sx, sg, sw) = (cx.shape(x), cx.shape(g), cx.shape(w));
        let left = |i: usize| {
            let reach = &(&(&sw[2 + i] - 1) * dilations[i]) + 1;
            let covered = &(&(&sg[2 + i] - 1) * strides[i]) + &reach;
            (&(&sx[2 + i] + 2 * around[i]) - &covered).as_const().filter(|l| *l >= 0)
        };
        let output_padding = (0..n).map(left).collect::<Option<Vec<i64>>>().or_else(|| {
            strides.iter().all(|s| *s == 1).then(|| vec![0; n])
        });
        let output_padding = output_padding.ok_or_else(|| {
            OpError::symbolic("how far windows reach depends on dimensions that are not known").param("input")
        })?;
        let p = ConvTranspose {
            strides: strides.clone(),
            dilations: dilations.clone(),
            padding: padding.clone(),
            output_padding,
            output_shape: None,
            groups,
        };
        transposed::conv_transpose(cx, g, w, None, &p)?
    };
    // In a transposed convolution, input and result have swapped roles.
    let (small, large) = if turned { (x, g) } else { (g, x) };
    let weight = products(cx, small, large, w, groups, &Window { strides, dilations, padding, ceil: false })?;
    let others: Vec<usize> = (0..n + 2).filter(|d| *d != 1).collect();
    let bias = cx.reduce(ReduceOp::Sum, g, &others, false)?;
    masked(cx, [input, weight, bias], dtype)
}

/// The gradient of the weights: `small [N, G·M, out…]` contracted with the windows over `large [N, G·C, spatial…]` gives `[G·M, C,
/// kernel…]`.
fn products(cx: &mut Cx, small: Value, large: Value, w: Value, groups: i64, window: &Window) -> Result {
    let (ss, sl, sw) = (cx.shape(small), cx.shape(large), cx.shape(w));
    let n = sw.len() - 2;
    let g = Dim::from(groups);
    let each = |d: &Dim| d.div(&g, &[]);
    let split = |s: &[Dim]| [&[s[0].clone(), g.clone(), each(&s[1])], &s[2..]].concat();
    let (small, large) = (cx.reshape(small, split(&ss))?, cx.reshape(large, split(&sl))?);
    let mut windows = Windows::over(&sl[2..], sw[2..].to_vec(), window)?;
    // The number of windows is that of the forward pass; the last window need not reach the end.
    windows.out = ss[2..].to_vec();
    let zero = Scalar::from_f64(cx.dtype(large), 0.0);
    let unfolded = cx.unfold(large, &windows.axes(), zero)?;
    // The labels are batch 0, group 1, output channel 2 and input channel 3, then the positions, then the kernel axes.
    let places: Vec<u8> = (4..4 + n as u8).collect();
    let kernel: Vec<u8> = (4 + n as u8..4 + 2 * n as u8).collect();
    let contract = Contract {
        a: [&[0, 1, 2], &places[..]].concat(),
        b: [&[0, 1, 3], &places[..], &kernel[..]].concat(),
        out: [&[1, 2, 3], &kernel[..]].concat(),
    };
    let y = cx.push(Op::Contract(contract), &[small, unfolded])?;
    Ok(cx.reshape(y, sw)?)
}

/// Adds each gradient at the position of the window's maximum.
fn maximum(cx: &mut Cx, n: usize) -> Lowered {
    let (g, x, at) = (cx.tensor("grad_output")?, cx.tensor("self")?, cx.tensor("indices")?);
    let (sx, sg) = (cx.shape(x), cx.shape(g));
    let front = sx.len() - n;
    let plane = |s: &[Dim]| [&s[..front], &[s[front..].iter().product::<Dim>()]].concat();
    let dtype = cx.dtype(x);
    let zeros = cx.full(&plane(&sx), Scalar::from_f64(dtype, 0.0))?;
    let (g, at) = (cx.reshape(g, plane(&sg))?, cx.reshape(at, plane(&sg))?);
    let y = scatter::elements(cx, [zeros, at, g], front, Some(ReduceOp::Sum))?;
    Ok(vec![cx.reshape(y, sx)?])
}

/// Distributes each gradient equally over the elements of its window.
fn average(cx: &mut Cx, n: usize) -> Lowered {
    let (g, x) = (cx.tensor("grad_output")?, cx.tensor("self")?);
    let alone = cx.rank(x) == n + 1;
    let (g, x) = if alone { (cx.unsqueeze(g, &[0])?, cx.unsqueeze(x, &[0])?) } else { (g, x) };
    let kernel = cx.ints_of("kernel_size", n)?;
    let strides = if cx.ints("stride")?.is_empty() { kernel.clone() } else { cx.ints_of("stride", n)? };
    let around = cx.ints_of("padding", n)?;
    let padding = Padding::Explicit([around.clone(), around.clone()].concat());
    let window =
        Window { strides: strides.clone(), dilations: vec![1; n], padding: padding.clone(), ceil: cx.flag("ceil_mode")? };
    let extents: Vec<Dim> = kernel.iter().map(|k| (*k).into()).collect();
    let windows = pool::over(cx, x, &extents, &window)?;
    let (sx, dtype, g) = (cx.shape(x), cx.dtype(g), cx.widened(g)?);
    let share = match cx.opt_int("divisor_override")? {
        Some(d) => cx.binary_scalar(BinaryOp::Div, g, d as f64)?,
        None => {
            // The sum of ones in a window, divided by their mean, is the divisor of the average.
            let [zero, one] = [0.0, 1.0].map(|x| Scalar::from_f64(cx.dtype(g), x));
            let ones = cx.full(&sx, one)?;
            let with_padding = cx.flag("count_include_pad")?;
            let (sum, _) = cx.unfold_inside(ones, &windows.axes(), zero)?;
            let axes: Vec<usize> = (2 + n..2 + 2 * n).collect();
            let sum = cx.reduce(ReduceOp::Sum, sum, &axes, false)?;
            let mean = pool::average(cx, ones, &windows, with_padding)?;
            let count = cx.binary(BinaryOp::Div, sum, mean)?;
            cx.binary(BinaryOp::Div, g, count)?
        }
    };
    // Position `i` is covered by the windows `(i + padding) / stride − j` that are long enough. The others are excluded by an index out
    // of range along an axis of extent 1, which reads the fill value.
    let (sg, lead) = (cx.shape(share), 2);
    let mut shape = sx.clone();
    shape.extend((0..n).map(|i| Dim::from((kernel[i] + strides[i] - 1) / strides[i])));
    let mut index: Vec<Poly> = (0..lead).map(Poly::var).collect();
    let mut long_enough = vec![];
    for i in 0..n {
        let (from, j, stride) = (&Poly::var(lead + i) + around[i], Poly::var(lead + n + i), Dim::from(strides[i]));
        index.push(&from.div(&stride, &shape) - &j);
        long_enough.push((&from.modulo(&stride, &shape) + &(&j * strides[i])).div(&kernel[i].into(), &shape));
    }
    index.extend(long_enough);
    let share = cx.reshape(share, [sg, vec![Dim::ONE; n]].concat())?;
    let fill = Some(Scalar::from_f64(cx.dtype(share), 0.0));
    let met = cx.push(Op::View { shape, index, fill }, &[share])?;
    let axes: Vec<usize> = (lead + n..lead + 2 * n).collect();
    let y = cx.reduce(ReduceOp::Sum, met, &axes, false)?;
    let y = cx.cast(y, dtype)?;
    Ok(vec![if alone { cx.squeeze(y, &[0])? } else { y }])
}

/// For each axis, a matrix product with the averaging weights of each output position.
fn adaptive_average(cx: &mut Cx) -> Lowered {
    let (mut g, x) = (cx.tensor("grad_output")?, cx.tensor("self")?);
    let (sx, sg) = (cx.shape(x), cx.shape(g));
    let dtype = cx.dtype(x);
    let n = if cx.node.target.contains("3d") { 3 } else { 2 };
    let rank = sx.len();
    for axis in rank - n..rank {
        let (d, o) = (&sx[axis], &sg[axis]);
        let shape = vec![o.clone(), d.clone()];
        let part = Poly::var(0);
        let first = (&part * d).div(o, &shape);
        let end = (&(&(&(&part + &Poly::ONE) * d) + o) - &Poly::ONE).div(o, &shape);
        let mut f = Body::default();
        let (at, first_at, end_at) = (f.index(Poly::var(1)), f.index(first.clone()), f.index(end.clone()));
        let (from, to) = (f.binary(BinaryOp::Ge, at, first_at), f.binary(BinaryOp::Lt, at, end_at));
        let inside = f.binary(BinaryOp::And, from, to);
        let count = f.index(&end - &first);
        let count = f.cast(dtype, count);
        let share = f.unary(UnaryOp::Recip, count);
        let zero = f.number(dtype, 0.0);
        f.select(inside, share, zero);
        let shares = cx.map_to(f.0, &[], shape)?;
        let label = |i: usize| i as u8;
        let a: Vec<u8> = (0..rank).map(label).collect();
        let out = a.iter().map(|l| if *l == label(axis) { label(rank) } else { *l }).collect();
        let contract = Contract { a: a.clone(), b: vec![label(axis), label(rank)], out };
        g = cx.push(Op::Contract(contract), &[g, shares])?;
    }
    Ok(vec![g])
}

/// Sums the gradients of each row of the table.
fn embedding(cx: &mut Cx) -> Lowered {
    let (g, at) = (cx.tensor("grad_output")?, cx.tensor("indices")?);
    if cx.flag("scale_grad_by_freq")? {
        return Err(OpError::unsupported(
            "gradients are divided by how often rows occur",
            "train the embedding without scale_grad_by_freq",
        ));
    }
    let (rows, ignored) = (cx.size("num_weights")?, cx.size("padding_idx")?);
    let dtype = cx.dtype(g);
    let width = cx.shape(g).last().cloned().unwrap_or(Dim::ONE);
    let count = cx.ty(at).numel();
    let (mut g, at) = (cx.reshape(g, vec![count.clone(), width.clone()])?, cx.reshape(at, vec![count])?);
    if !ignored.is(-1) {
        let to = cx.dtype(at);
        let ignored = cx.dim_scalar(&ignored, to)?;
        let none = cx.binary(BinaryOp::Eq, at, ignored)?;
        let none = cx.unsqueeze(none, &[1])?;
        let zero = cx.scalar(dtype, 0.0);
        g = cx.select(none, zero, g)?;
    }
    let zeros = cx.full(&[rows, width], Scalar::from_f64(dtype, 0.0))?;
    let at = cx.unsqueeze(at, &[1])?;
    Ok(vec![scatter::places(cx, [zeros, at, g], Some(ReduceOp::Sum))?])
}
