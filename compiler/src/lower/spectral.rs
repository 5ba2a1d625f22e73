//! Operators around a spectrum: window functions and mel filter banks.

use super::{Lowering, OpError, Result};
use wgfc_ir::{BinaryOp, Body, DType, Dim, Poly, UnaryOp, Value};

/// The window `a₀ − a₁·cos(2πn/N) + a₂·cos(4πn/N)`, where N is the size or, for a symmetric window, the size minus 1.
pub fn window(cx: &mut Lowering, a: [f64; 3], size: &Dim, periodic: bool, to: DType) -> Result {
    if size.as_const().is_some_and(|n| n < 0) {
        return Err(OpError::model(format!("a window of size {size}")).param("size"));
    }
    let wide = if to == DType::F64 { to } else { DType::F32 };
    let mut f = Body::default();
    let n = f.index(Poly::var(0));
    let period = f.index(if periodic { size.clone() } else { size - &Poly::ONE });
    let (n, period) = (f.cast(wide, n), f.cast(wide, period));
    let turns = f.binary(BinaryOp::Div, n, period);
    let mut y = f.number(wide, a[0]);
    for (i, (c, op)) in [(a[1], BinaryOp::Sub), (a[2], BinaryOp::Add)].into_iter().enumerate() {
        if c != 0.0 {
            let circle = f.number(wide, std::f64::consts::TAU * (i + 1) as f64);
            let angle = f.binary(BinaryOp::Mul, turns, circle);
            let cos = f.unary(UnaryOp::Cos, angle);
            let c = f.number(wide, c);
            let term = f.binary(BinaryOp::Mul, cos, c);
            y = f.binary(op, y, term);
        }
    }
    if to != wide {
        f.cast(to, y);
    }
    Ok(cx.map_to(f.0, &[], vec![size.clone()])?)
}

/// A bank of triangular filters on the mel scale, `[spectrum bins, mel bins]`: column `i` rises from edge `i` to 1 at
/// edge `i + 1` and falls to 0 at edge `i + 2`. The edges are evenly spaced in mel, `2595·log₁₀(1 + hertz/700)`, and
/// rounded down to spectrum bins.
///
/// `given` are the sample rate and the lowest and highest frequencies in hertz, each with one element.
pub fn mel_weights(cx: &mut Lowering, bins: &Dim, length: &Dim, given: [Value; 3], to: DType) -> Result {
    let mut numbers = vec![];
    for v in given {
        if !matches!(cx.ty(v).numel().as_const(), Some(1) | None) {
            return Err(OpError::model(format!("needs one number, got {}", cx.ty(v))).operand(v));
        }
        numbers.push(cx.reshape(v, vec![])?);
    }

    let mut f = Body::default();
    let mut operands = [0, 1, 2].map(|i| f.arg(i));
    operands = operands.map(|v| f.cast(DType::F32, v));
    let [rate, low, high] = operands;
    let scale = f.f32(2595.0 / std::f64::consts::LN_10);
    let (hertz, one, zero) = (f.f32(700.0), f.f32(1.0), f.f32(0.0));
    let [low, high] = [low, high].map(|v| {
        let v = f.binary(BinaryOp::Div, v, hertz);
        let v = f.binary(BinaryOp::Add, v, one);
        let v = f.unary(UnaryOp::Log, v);
        f.binary(BinaryOp::Mul, v, scale)
    });
    let count = f.index(bins + 2);
    let count = f.cast(DType::F32, count);
    let span = f.binary(BinaryOp::Sub, high, low);
    let step = f.binary(BinaryOp::Div, span, count);
    let size = f.index(length + 1);
    let size = f.cast(DType::F32, size);
    let [lower, centre, upper] = [0, 1, 2].map(|i| {
        let at = f.index(&Poly::var(1) + i);
        let at = f.cast(DType::F32, at);
        let mel = f.binary(BinaryOp::Mul, at, step);
        let mel = f.binary(BinaryOp::Add, mel, low);
        let mel = f.binary(BinaryOp::Div, mel, scale);
        let ratio = f.unary(UnaryOp::Exp, mel);
        let ratio = f.binary(BinaryOp::Sub, ratio, one);
        let frequency = f.binary(BinaryOp::Mul, ratio, hertz);
        let bin = f.binary(BinaryOp::Mul, size, frequency);
        let bin = f.binary(BinaryOp::Div, bin, rate);
        f.unary(UnaryOp::Floor, bin)
    });
    let j = f.index(Poly::var(0));
    let j = f.cast(DType::F32, j);
    // Both widths are clamped to at least 1, so that they can be divided by.
    let mut side = |from: u32, to: u32, top: u32, bottom: u32| {
        let (width, part) = (f.binary(BinaryOp::Sub, to, from), f.binary(BinaryOp::Sub, top, bottom));
        let width = f.binary(BinaryOp::Max, width, one);
        let y = f.binary(BinaryOp::Div, part, width);
        f.binary(BinaryOp::Max, y, zero)
    };
    let (rising, falling) = (side(lower, centre, j, lower), side(centre, upper, upper, j));
    let before = f.binary(BinaryOp::Lt, j, centre);
    let top = f.binary(BinaryOp::Eq, j, centre);
    let y = f.select(before, rising, falling);
    let y = f.select(top, one, y);
    if to != DType::F32 {
        f.cast(to, y);
    }
    let spectrum = &length.div(&Poly::constant(2), &[]) + 1;
    Ok(cx.map_to(f.0, &numbers, vec![spectrum, bins.clone()])?)
}
