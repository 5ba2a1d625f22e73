//! Operators that sum products: matrix products, convolutions, transforms, and quantised versions of these.

use super::Line;
use super::windows::windows;
use crate::draw::Draw;
use wgfc_ir::DType::{self, *};

/// An extent of a matrix product.
fn extent(d: &mut Draw) -> usize {
    d.pick(&[1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 64, 67])
}
/// The shapes of two operands of a matrix product, whose batches broadcast.
fn operands(d: &mut Draw) -> (Vec<usize>, Vec<usize>) {
    let batch: Vec<usize> = d.full(0..=2).iter().map(|e| *e.min(&5)).collect();
    let (m, k, n) = (extent(d), extent(d), extent(d));
    let (a, b) = (d.fitting(&batch), d.fitting(&batch));
    ([a, vec![m, k]].concat(), [b, vec![k, n]].concat())
}
fn matmul(d: &mut Draw) {
    let t = d.pick(&[F32, F32, F16, BF16, F64, I32, I64, U32]);
    let (mut a, mut b) = operands(d);
    match d.below(8) {
        0 => a = a[a.len() - 1..].to_vec(),
        1 => b = b[b.len() - 2..b.len() - 1].to_vec(),
        _ => {}
    }
    d.x(t, &a);
    d.x(t, &b);
}
fn gemm(d: &mut Draw) {
    let t = d.pick(&[F32, F32, F16, F64]);
    let (m, k, n) = (extent(d), extent(d), extent(d));
    let (ta, tb) = (d.flag("transA") == Some(true), d.flag("transB") == Some(true));
    d.x(t, &if ta { [k, m] } else { [m, k] });
    d.x(t, &if tb { [n, k] } else { [k, n] });
    if d.one_in(2) {
        let c = d.fitting(&[m, n]);
        d.x(t, &c);
    }
    d.set_float("alpha", 0.5);
    d.set_float("beta", 1.5);
}
fn fused_gemm(d: &mut Draw) {
    gemm(d);
    activation(d);
}
fn activation(d: &mut Draw) {
    let a = d.pick(&["Relu", "Tanh", "Sigmoid", "LeakyRelu"]);
    d.set_text("activation", a);
}
fn fused_matmul(d: &mut Draw) {
    let t = d.pick(&[F32, F16]);
    let (m, k, n) = (extent(d), extent(d), extent(d));
    let (ta, tb) = (d.flag("transA") == Some(true), d.flag("transB") == Some(true));
    let batch = d.from(1..=3);
    d.x(t, &if ta { [batch, k, m] } else { [batch, m, k] });
    d.x(t, &if tb { [batch, n, k] } else { [batch, k, n] });
    d.set_float("alpha", 0.25);
}

/// The shapes of an image and of convolution weights. Sets the attributes that both convolution operators share.
fn convolution(d: &mut Draw) -> (Vec<usize>, Vec<usize>) {
    let axes = d.from(1..=3);
    let (groups, per, each) = (d.pick(&[1, 1, 2, 3]), d.from(1..=4), d.from(1..=4));
    let spatial: Vec<usize> = (0..axes).map(|_| d.from(4..=[17, 11, 6][axes - 1])).collect();
    let k = windows(d, &spatial, false, true);
    let n = d.from(1..=2);
    d.set("group", groups as i64);
    ([vec![n, groups * per], spatial].concat(), [vec![groups * each, per], k].concat())
}
fn conv(d: &mut Draw) {
    let t = d.pick(&[F32, F32, F16]);
    let (x, w) = convolution(d);
    d.x(t, &x);
    d.x(t, &w);
    if d.one_in(2) {
        d.x(t, &w[..1]);
    }
}
fn fused_conv(d: &mut Draw) {
    let (x, w) = convolution(d);
    d.x(F32, &x);
    d.x(F32, &w);
    d.x(F32, &w[..1]);
    activation(d);
}
fn conv_transpose(d: &mut Draw) {
    let t = d.pick(&[F32, F32, F16]);
    let axes = d.from(1..=2);
    let (groups, per, each) = (d.pick(&[1, 1, 2]), d.from(1..=4), d.from(1..=4));
    let spatial: Vec<usize> = (0..axes).map(|_| d.from(1..=7)).collect();
    let kernel: Vec<usize> = (0..axes).map(|_| d.from(1..=4)).collect();
    let strides: Vec<i64> = (0..axes).map(|_| d.from(1..=3) as i64).collect();
    let n = d.from(1..=2);
    d.x(t, &[vec![n, groups * per], spatial].concat());
    d.x(t, &[vec![groups * per, each], kernel].concat());
    if d.one_in(2) {
        d.x(t, &[groups * each]);
    }
    d.set("group", groups as i64);
    d.set_ints("strides", &strides);
    if d.one_in(2) {
        let more: Vec<i64> = strides.iter().map(|s| d.below(*s as usize) as i64).collect();
        d.set_ints("output_padding", &more);
    }
}
fn deform(d: &mut Draw) {
    let (n, c, m, h, w, k) =
        (d.from(1..=2), d.from(1..=3), d.from(1..=3), d.from(3..=7), d.from(3..=7), d.from(1..=3));
    d.x(F32, &[n, c, h, w]);
    d.x(F32, &[m, c, k, k]);
    let out = [h + 3 - k, w + 3 - k];
    d.x(F32, &[n, 2 * k * k, out[0], out[1]]);
    if d.one_in(2) {
        d.x(F32, &[m]);
        d.x(F32, &[n, k * k, out[0], out[1]]);
    }
    d.set_ints("pads", &[1, 1, 1, 1]);
    d.set_ints("kernel_shape", &[k as i64, k as i64]);
}

const BYTES: &[DType] = &[I8, U8];

fn byte(d: &mut Draw, shape: &[usize]) -> DType {
    let t = d.pick(BYTES);
    d.bits(t, shape);
    t
}
fn scale(d: &mut Draw, shape: &[usize]) {
    d.within(F32, shape, 0.01, 0.05);
}
fn matmul_integer(d: &mut Draw) {
    let (a, b) = operands(d);
    let (ta, tb) = (byte(d, &a), byte(d, &b));
    if d.one_in(2) {
        d.bits(ta, &[]);
        if d.one_in(2) {
            d.bits(tb, &b[b.len() - 1..]);
        }
    }
}
fn conv_integer(d: &mut Draw) {
    let (x, w) = convolution(d);
    let t = byte(d, &x);
    byte(d, &w);
    if d.one_in(2) {
        d.bits(t, &[]);
    }
}
fn q_matmul(d: &mut Draw) {
    let (a, b) = operands(d);
    for s in [&a, &b] {
        let t = byte(d, s);
        scale(d, &[]);
        d.bits(t, &[]);
    }
    d.within(F32, &[], 0.2, 0.9);
    byte(d, &[]);
    d.loose = true;
}
fn q_conv(d: &mut Draw) {
    let (x, w) = convolution(d);
    for s in [&x, &w] {
        let t = byte(d, s);
        scale(d, &[]);
        d.bits(t, &[]);
    }
    d.within(F32, &[], 0.2, 0.9);
    byte(d, &[]);
    if d.one_in(2) {
        d.within(I32, &w[..1], -900.0, 900.0);
    }
    d.loose = true;
}
fn quantize(d: &mut Draw) {
    let (t, s) = (d.pick(&[F32, F16]), d.full(1..=4));
    let to = d.pick(&[U8, I8, U16, I16, U4, I4, I2]);
    let (axis, a) = d.axis(s.len());
    d.within(t, &s, -3.0, 3.0);
    let per = if d.one_in(2) { s[axis..=axis].to_vec() } else { vec![] };
    d.within(t, &per, 0.02, 0.2);
    d.bits(to, &per);
    d.set("axis", a);
    d.loose = true;
}
fn dequantize(d: &mut Draw, types: &[DType]) {
    let (t, s) = (d.pick(types), d.full(1..=4));
    let (axis, a) = d.axis(s.len());
    d.bits(t, &s);
    let per = if d.one_in(2) { s[axis..=axis].to_vec() } else { vec![] };
    let wide = d.pick(&[F32, F32, F16]);
    d.within(wide, &per, 0.001, 0.02);
    if d.one_in(2) {
        d.bits(t, &per);
    }
    d.set("axis", a);
}
fn q_binary(d: &mut Draw) {
    let (s, t) = (d.full(1..=4), d.pick(BYTES));
    for _ in 0..2 {
        let f = d.fitting(&s);
        d.bits(t, &f);
        scale(d, &[]);
        d.bits(t, &[]);
    }
    d.within(F32, &[], 0.02, 0.06);
    d.bits(t, &[]);
    d.loose = true;
}
fn q_unary(d: &mut Draw, shape: Vec<usize>) -> DType {
    let t = byte(d, &shape);
    scale(d, &[]);
    d.bits(t, &[]);
    d.within(F32, &[], 0.004, 0.02);
    d.bits(t, &[]);
    d.loose = true;
    t
}
fn q_concat(d: &mut Draw) {
    let (t, mut s, n) = (d.pick(BYTES), d.full(1..=3), d.from(1..=3));
    let (axis, a) = d.axis(s.len());
    scale(d, &[]);
    d.bits(t, &[]);
    for _ in 0..n {
        s[axis] = d.from(1..=4);
        d.bits(t, &s);
        scale(d, &[]);
        d.bits(t, &[]);
    }
    d.set("axis", a);
    d.loose = true;
}
fn q_where(d: &mut Draw) {
    let (t, s) = (d.pick(BYTES), d.full(1..=4));
    let f = d.fitting(&s);
    d.x(Bool, &f);
    for _ in 0..2 {
        let f = d.fitting(&s);
        d.bits(t, &f);
        scale(d, &[]);
        d.bits(t, &[]);
    }
    scale(d, &[]);
    d.bits(t, &[]);
    d.loose = true;
}
fn q_gemm(d: &mut Draw) {
    let (m, k, n) = (extent(d), extent(d), extent(d));
    let (ta, tb) = (d.flag("transA") == Some(true), d.flag("transB") == Some(true));
    let t = byte(d, &if ta { [k, m] } else { [m, k] });
    scale(d, &[]);
    d.bits(t, &[]);
    let u = byte(d, &if tb { [n, k] } else { [k, n] });
    scale(d, &[n]);
    d.bits(u, &[n]);
    d.within(I32, &[n], -900.0, 900.0);
    if d.one_in(2) {
        d.within(F32, &[], 0.5, 0.9);
        d.bits(t, &[]);
    }
    d.loose = true;
}
fn to_float(d: &mut Draw) {
    let (a, b) = operands(d);
    let n = &b[b.len() - 1..];
    let (ta, tb) = (byte(d, &a), byte(d, &b));
    scale(d, &[]);
    scale(d, n);
    if d.one_in(2) {
        d.bits(ta, &[]);
        d.bits(tb, n);
        d.x(F32, n);
    }
}
fn dynamic_matmul(d: &mut Draw) {
    let (a, b) = operands(d);
    d.x(F32, &a);
    let t = byte(d, &b);
    scale(d, &b[b.len() - 1..]);
    if d.one_in(2) {
        d.bits(t, &b[b.len() - 1..]);
    }
    // Each product may be off by one quantisation step of the operand.
    d.loose = true;
}
fn matmul_nbits(d: &mut Draw) {
    let (m, n, bits, block) = (d.pick(&[1, 1, 3, 17]), extent(d), d.pick(&[2, 4, 8]), d.pick(&[16, 32]));
    let k = d.pick(&[16, 19, 32, 100, 128, 192]);
    let t = d.pick(&[F32, F16]);
    let blocks = usize::div_ceil(k, block);
    d.x(t, &[m, k]);
    d.bits(U8, &[n, blocks, block * bits / 8]);
    d.within(t, &[n, blocks], 0.001, 0.02);
    match d.below(3) {
        0 => d.bits(U8, &[n, (blocks * bits).div_ceil(8)]),
        1 => d.within(t, &[n, blocks], 0.0, 3.0),
        _ => {}
    }
    for (name, v) in [("K", k), ("N", n), ("bits", bits), ("block_size", block)] {
        d.set(name, v as i64);
    }
    d.loose = t == F16;
}
fn gather_block(d: &mut Draw) {
    let (rows, width, bits) = (d.from(3..=31), d.pick(&[32, 48, 128]), d.pick(&[4, 8]));
    d.bits(U8, &[rows, width * bits / 8]);
    let s = d.full(1..=2);
    d.within(I64, &s, 0.0, rows as f64 - 1.0);
    d.within(F32, &[rows, usize::div_ceil(width, 16)], 0.01, 0.1);
    for (name, v) in [("bits", bits), ("block_size", 16), ("quantize_axis", 1), ("gather_axis", 0)] {
        d.set(name, v as i64);
    }
}
fn dft(d: &mut Draw) {
    let (b, n) = (d.from(1..=3), d.from(2..=19));
    let real = d.one_in(2);
    d.x(F32, &[b, n, if real { 1 } else { 2 }]);
    if d.one_in(2) {
        let length = d.from(1..=23);
        d.int(length as i64);
    }
    if real {
        d.flag("onesided");
    } else {
        d.flag("inverse");
    }
}
fn stft(d: &mut Draw) {
    let (b, step, frame) = (d.from(1..=2), d.from(1..=7), d.from(4..=16));
    let n = frame + d.from(0..=30);
    d.x(F32, &[b, n, 1]);
    d.int(step as i64);
    if d.one_in(2) {
        d.x(F32, &[frame])
    } else {
        d.none()
    }
    d.int(frame as i64);
    d.flag("onesided");
}
fn embed(d: &mut Draw) {
    let (b, s, h) = (d.from(1..=3), d.from(1..=7), d.from(2..=17));
    d.within(I32, &[b, s], 0.0, 22.0);
    d.within(I32, &[b, s], 0.0, 1.0);
    for rows in [23, 9, 2] {
        d.x(F32, &[rows, h]);
    }
    d.x(F32, &[h]);
    d.x(F32, &[h]);
    if d.one_in(2) {
        d.within(I32, &[b, s], 0.0, 1.0);
    }
    d.set_float("epsilon", 1e-3);
    d.outputs(2);
}
/// The shape of a small image with one or two spatial axes.
fn one(d: &mut Draw) -> Vec<usize> {
    let axes = d.from(1..=2);
    let mut s = vec![d.from(1..=2), d.from(1..=3)];
    s.extend((0..axes).map(|_| d.from(3..=8)));
    s
}
const QUANTISED: &[DType] = &[U8, I8, U16, I16, U4, I4];

pub const LINES: &[Line] = &[
    Line("Conv", conv),
    Line("ConvInteger", conv_integer),
    Line("ConvTranspose", conv_transpose),
    Line("DFT", dft),
    Line("DeformConv", deform),
    Line("DequantizeLinear", |d| dequantize(d, QUANTISED)),
    Line("Gemm", gemm),
    Line("MatMul", matmul),
    Line("MatMulInteger", matmul_integer),
    Line("QLinearConv", q_conv),
    Line("QLinearMatMul", q_matmul),
    Line("QuantizeLinear", quantize),
    Line("STFT", stft),
    Line("com.microsoft.DequantizeLinear", |d| dequantize(d, &QUANTISED[..4])),
    Line("com.microsoft.DynamicQuantizeMatMul", dynamic_matmul),
    Line("com.microsoft.EmbedLayerNormalization", embed),
    Line("com.microsoft.FusedConv", fused_conv),
    Line("com.microsoft.FusedGemm", fused_gemm),
    Line("com.microsoft.FusedMatMul", fused_matmul),
    Line("com.microsoft.GatherBlockQuantized", gather_block),
    Line("com.microsoft.MatMulIntegerToFloat", to_float),
    Line("com.microsoft.MatMulNBits", matmul_nbits),
    Line("com.microsoft.QGemm", q_gemm),
    Line("com.microsoft.QLinearAdd", q_binary),
    Line("com.microsoft.QLinearAveragePool", |d| {
        let s = one(d);
        let axes = s.len() - 2;
        q_unary(d, s);
        d.set_ints("kernel_shape", &vec![2; axes]);
    }),
    Line("com.microsoft.QLinearConcat", q_concat),
    Line("com.microsoft.QLinearGlobalAveragePool", |d| {
        let s = one(d);
        q_unary(d, s);
    }),
    Line("com.microsoft.QLinearLeakyRelu", |d| {
        let s = d.full(0..=4);
        q_unary(d, s);
    }),
    Line("com.microsoft.QLinearMul", q_binary),
    Line("com.microsoft.QLinearSigmoid", |d| {
        let s = d.full(0..=4);
        q_unary(d, s);
    }),
    Line("com.microsoft.QLinearSoftmax", |d| {
        let s = d.full(1..=4);
        q_unary(d, s);
        let o = d.pick(&[12, 13]);
        d.set("opset", o);
    }),
    Line("com.microsoft.QLinearWhere", q_where),
    Line("com.microsoft.QuantizeLinear", |d| {
        let s = d.full(1..=4);
        let t = d.pick(&[U8, I16]);
        d.x(F32, &s);
        scale(d, &[]);
        d.bits(t, &[]);
        d.loose = true;
    }),
];
