//! Elementwise operators.

use super::{FLOATS, INTS, Line};
use crate::draw::Draw;
use wgfc_ir::DType::{self, *};

fn numbers(d: &mut Draw) -> DType {
    if d.one_in(2) { d.pick(FLOATS) } else { d.pick(INTS) }
}

/// An operand of floats in a range.
fn float(d: &mut Draw, low: f64, high: f64) {
    let (t, s) = (d.pick(FLOATS), d.shape(0..=5));
    d.within(t, &s, low, high);
}
fn any_float(d: &mut Draw) {
    float(d, -4.0, 4.0);
}
fn number(d: &mut Draw) {
    let (t, s) = (numbers(d), d.shape(0..=5));
    if t.is_float() { d.x(t, &s) } else { d.bits(t, &s) }
}
/// A float operand; each of these float attributes is set one time in two.
fn with(d: &mut Draw, names: &[&str]) {
    any_float(d);
    for name in names {
        if d.one_in(2) {
            let v = 0.1 + d.below(20) as f32 / 10.0;
            d.set_float(name, v);
        }
    }
}

/// `n` shapes that broadcast to one another.
fn shapes(d: &mut Draw, n: usize) -> Vec<Vec<usize>> {
    let s = d.shape(0..=5);
    (0..n).map(|_| d.fitting(&s)).collect()
}
/// Two numeric operands; integers have random bits.
fn two(d: &mut Draw) {
    let t = numbers(d);
    for s in shapes(d, 2) {
        if t.is_float() { d.x(t, &s) } else { d.bits(t, &s) }
    }
}
fn many(d: &mut Draw, types: &[DType]) {
    let (t, n) = (d.pick(types), d.from(1..=4));
    for s in shapes(d, n) {
        d.x(t, &s);
    }
}
fn compared(d: &mut Draw, types: &[DType]) {
    let t = d.pick(types);
    for s in shapes(d, 2) {
        // There are few distinct values, so that some are equal.
        if t == Bool { d.x(t, &s) } else { few(d, t, &s) }
    }
}
/// An operand of small integers.
fn few(d: &mut Draw, t: DType, s: &[usize]) {
    let low = if format!("{t}").starts_with('u') { 0.0 } else { -2.0 };
    let v = d.numbers(I8, s, low, 2.0);
    let v: Vec<wgfc_ir::Scalar> =
        v.to_i64s().unwrap_or_default().iter().map(|x| wgfc_ir::Scalar::from_i64(t, *x)).collect();
    d.give(wgfc_ir::Tensor::from_scalars(t, s.to_vec(), &v));
}
const ALL: &[DType] = &[F32, F16, I32, I64, U8, I8, U32, U64, Bool];

fn bools(d: &mut Draw) {
    for s in shapes(d, 2) {
        d.x(Bool, &s);
    }
}
fn bits(d: &mut Draw) {
    let t = d.pick(INTS);
    for s in shapes(d, 2) {
        d.bits(t, &s);
    }
}
fn gelu(d: &mut Draw) {
    any_float(d);
    if d.one_in(2) {
        let v = d.pick(&["none", "tanh"]);
        d.set_text("approximate", v);
    }
}
fn bias_add(d: &mut Draw) {
    let (t, s) = (d.pick(&[F32, F16]), d.full(1..=4));
    d.x(t, &s);
    d.x(t, &s[s.len() - 1..]);
    d.x(t, &s);
}
fn bias(d: &mut Draw) {
    let (t, s) = (d.pick(&[F32, F16]), d.full(1..=4));
    d.x(t, &s);
    d.x(t, &s[s.len() - 1..]);
}
fn bias_split(d: &mut Draw) {
    let (t, mut s) = (d.pick(&[F32, F16]), d.full(1..=4));
    if let Some(last) = s.last_mut() {
        *last *= 2;
    }
    d.x(t, &s);
    d.x(t, &s[s.len() - 1..]);
}

/// Division by a nonzero divisor.
fn divide(d: &mut Draw) {
    let (t, s) = (numbers(d), shapes(d, 2));
    if t.is_float() {
        d.x(t, &s[0]);
        d.within(t, &s[1], 0.3, 3.0);
        return;
    }
    d.bits(t, &s[0]);
    d.within(t, &s[1], 1.0, 120.0);
}
fn remainder(d: &mut Draw) {
    quotient_ints(d);
    d.flag("fmod");
}
fn quotient_ints(d: &mut Draw) {
    let (t, s) = (d.pick(INTS), shapes(d, 2));
    d.within(t, &s[0], -100.0, 100.0);
    d.within(t, &s[1], 1.0, 9.0);
}
fn power(d: &mut Draw) {
    let (t, s) = (d.pick(&[F32, F16, BF16, I32, I64, F64]), shapes(d, 2));
    if t.is_float() {
        d.within(t, &s[0], 0.2, 2.0);
        let e = d.pick(&[t, t, F32, I32]);
        d.within(e, &s[1], -2.0, 2.0);
    } else {
        d.within(t, &s[0], -5.0, 5.0);
        let e = d.pick(&[t, I64]);
        d.within(e, &s[1], 0.0, 4.0);
    }
}
fn shifted(d: &mut Draw) {
    let t = d.pick(&[U8, U16, U32, U64]);
    let s = shapes(d, 2);
    d.bits(t, &s[0]);
    d.within(t, &s[1], 0.0, t.bits() as f64 - 1.0);
    let to = d.pick(&["LEFT", "RIGHT"]);
    d.set_text("direction", to);
}
fn chosen(d: &mut Draw) {
    let (t, s) = (d.pick(ALL), shapes(d, 3));
    d.x(Bool, &s[0]);
    d.x(t, &s[1]);
    d.x(t, &s[2]);
}
fn clip(d: &mut Draw) {
    let (t, s) = (numbers(d), d.shape(0..=4));
    d.within(t, &s, -8.0, 8.0);
    for (low, high) in [(-3.0, 0.0), (1.0, 5.0)] {
        if d.one_in(3) { d.none() } else { d.within(t, &[], low, high) }
    }
}
fn slopes(d: &mut Draw) {
    let (t, s) = (d.pick(FLOATS), d.shape(1..=4));
    d.x(t, &s);
    let f = d.fitting(&s);
    d.x(t, &f);
}
fn cast_types(d: &mut Draw) -> (DType, DType) {
    let of: &[DType] = &[
        F32, F16, BF16, F64, I64, I32, I16, I8, U64, U32, U16, U8, Bool, I4, U4, I2, U2, F8E4M3, F8E5M2,
        F4E2M1,
    ];
    (d.pick(of), d.pick(of))
}
/// An operand whose values both types can represent, so that rounding modes do not matter.
fn castable(d: &mut Draw, from: DType, to: DType, s: &[usize]) {
    let unsigned = |t: DType| matches!(t, U64 | U32 | U16 | U8 | U4 | U2);
    let narrow = |t: DType| matches!(t, I2 | U2 | F4E2M1);
    let low = if unsigned(from) || unsigned(to) { 0.0 } else { -2.0 };
    let high = if narrow(from) || narrow(to) { 1.0 } else { 7.0 };
    d.within(from, s, low, high);
}
fn cast(d: &mut Draw) {
    let ((from, to), s) = (cast_types(d), d.shape(0..=4));
    castable(d, from, to, &s);
    d.set_type("to", to);
}
fn cast_like(d: &mut Draw) {
    let ((from, to), s) = (cast_types(d), d.shape(0..=4));
    castable(d, from, to, &s);
    d.x(to, &[1]);
}
fn bit_cast(d: &mut Draw) {
    let sets: &[&[DType]] = &[&[F32, I32, U32], &[I64, U64], &[I8, U8], &[I16, U16, F16]];
    let set = d.pick(sets);
    let (from, to, s) = (d.pick(set), d.pick(set), d.shape(0..=4));
    if from.is_float() {
        d.x(from, &s)
    } else {
        d.within(from, &s, 0.0, 100.0)
    }
    d.set_type("to", to);
}
fn swiglu(d: &mut Draw) {
    let (t, s) = (d.pick(FLOATS), d.shape(1..=4));
    d.x(t, &s);
    d.x(t, &s);
    if d.one_in(2) {
        d.set_float("alpha", 1.7);
    }
}
fn shrink(d: &mut Draw) {
    let (t, s) = (d.pick(&[F32, F16, I32, I8]), d.shape(0..=4));
    d.within(t, &s, -4.0, 4.0);
    d.set_float("bias", 0.5);
    d.set_float("lambd", 1.25);
}
fn special(d: &mut Draw) {
    let s = d.shape(0..=4);
    let n: usize = s.iter().product();
    let v: Vec<f32> =
        (0..n).map(|_| d.pick(&[0.0, 1.5, -2.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY])).collect();
    d.give(wgfc_ir::Tensor::from_f32(s, &v));
}
fn infinite(d: &mut Draw) {
    special(d);
    d.flag("detect_negative");
    d.flag("detect_positive");
}
fn dropout(d: &mut Draw) {
    any_float(d);
    if d.one_in(2) {
        d.known(wgfc_ir::Tensor::from_f32(vec![], &[0.3]));
    }
    let n = d.from(1..=2);
    d.outputs(n);
}

pub const LINES: &[Line] = &[
    Line("Abs", |d| {
        let (t, s) = (numbers(d), d.shape(0..=5));
        d.x(t, &s)
    }),
    Line("Acos", |d| float(d, -0.99, 0.99)),
    Line("Acosh", |d| float(d, 1.1, 9.0)),
    Line("Add", two),
    Line("And", bools),
    Line("Asin", |d| float(d, -0.99, 0.99)),
    Line("Asinh", any_float),
    Line("Atan", any_float),
    Line("Atanh", |d| float(d, -0.9, 0.9)),
    Line("BitCast", bit_cast),
    Line("BitShift", shifted),
    Line("BitwiseAnd", bits),
    Line("BitwiseNot", |d| {
        let (t, s) = (d.pick(INTS), d.shape(0..=5));
        d.bits(t, &s)
    }),
    Line("BitwiseOr", bits),
    Line("BitwiseXor", bits),
    Line("Cast", cast),
    Line("CastLike", cast_like),
    Line("Ceil", any_float),
    Line("Celu", |d| with(d, &["alpha"])),
    Line("Clip", clip),
    Line("Cos", any_float),
    Line("Cosh", any_float),
    Line("Div", divide),
    Line("Dropout", dropout),
    Line("Elu", |d| with(d, &["alpha"])),
    Line("Equal", |d| compared(d, ALL)),
    Line("Erf", any_float),
    Line("Exp", any_float),
    Line("Floor", any_float),
    Line("Gelu", gelu),
    Line("Greater", |d| compared(d, &ALL[..8])),
    Line("GreaterOrEqual", |d| compared(d, &ALL[..8])),
    Line("HardSigmoid", |d| with(d, &["alpha", "beta"])),
    Line("HardSwish", any_float),
    Line("Identity", number),
    Line("IsInf", infinite),
    Line("IsNaN", special),
    Line("LeakyRelu", |d| with(d, &["alpha"])),
    Line("Less", |d| compared(d, &ALL[..8])),
    Line("LessOrEqual", |d| compared(d, &ALL[..8])),
    Line("Log", |d| float(d, 0.1, 9.0)),
    Line("Max", |d| many(d, &[F32, F16, F64, I32, I64, U64, U8, I8])),
    Line("Mean", |d| many(d, FLOATS)),
    Line("Min", |d| many(d, &[F32, F16, F64, I32, I64, U64, U8, I8])),
    Line("Mish", any_float),
    Line("Mod", remainder),
    Line("Mul", two),
    Line("Neg", |d| {
        let (t, s) = (d.pick(&[F32, F16, BF16, I32, I64, I8, I16]), d.shape(0..=5));
        d.x(t, &s)
    }),
    Line("Not", |d| {
        let s = d.shape(0..=5);
        d.x(Bool, &s)
    }),
    Line("Or", bools),
    Line("PRelu", slopes),
    Line("Pow", power),
    Line("Reciprocal", |d| float(d, 0.3, 4.0)),
    Line("Relu", |d| {
        let (t, s) = (d.pick(&[F32, F16, BF16, I32, I64, I8]), d.shape(0..=5));
        d.x(t, &s)
    }),
    Line("Round", any_float),
    Line("Selu", |d| with(d, &["alpha", "gamma"])),
    Line("Shrink", shrink),
    Line("Sigmoid", any_float),
    Line("Sign", |d| {
        let (t, s) = (numbers(d), d.shape(0..=5));
        d.x(t, &s)
    }),
    Line("Sin", any_float),
    Line("Sinh", any_float),
    Line("Softplus", any_float),
    Line("Softsign", any_float),
    Line("Sqrt", |d| float(d, 0.0, 9.0)),
    Line("Sub", two),
    Line("Sum", |d| many(d, FLOATS)),
    Line("SwiGLU", swiglu),
    Line("Swish", |d| with(d, &["alpha"])),
    Line("Tan", |d| float(d, -1.3, 1.3)),
    Line("Tanh", any_float),
    Line("ThresholdedRelu", |d| with(d, &["alpha"])),
    Line("Where", chosen),
    Line("Xor", bools),
    Line("com.microsoft.BiasAdd", bias_add),
    Line("com.microsoft.BiasGelu", bias),
    Line("com.microsoft.BiasSplitGelu", bias_split),
    Line("com.microsoft.FastGelu", bias),
    Line("com.microsoft.Gelu", |d| float(d, -3.0, 3.0)),
    Line("com.microsoft.QuickGelu", |d| with(d, &["alpha"])),
];
