// e^(c·x²) for x from 0 on and c of ±1 or ±½: the square in two parts, of which the first is exact.
fn exp_square(x: f32, c: f32) -> f32 {
    let a = min(x, 20.0);
    let h = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u);
    return precise_exp(c * h * h) * precise_exp(c * (a - h) * (a + h));
}

// e^x² · erfc(x) from 0 on.
fn erfcx_positive(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.5 * x);
    let s = t - 0.5;
    return t * ((((((((((((-0.03605364868 * s - 0.002589313292) * s + 0.07021222178) * s - 0.01696047623) * s
        - 0.08424633726) * s + 0.05468104812) * s + 0.09885173828) * s - 0.1037418349) * s - 0.1720837677) * s
        + 0.1457711858) * s + 0.5589441714) * s + 0.6871606645) * s + 0.5107913526);
}

fn erfc_f32(x: f32) -> f32 {
    let a = abs(x);
    let tail = exp_square(a, -1.0) * erfcx_positive(a);
    let y = select(select(tail, 2.0 - tail, x < 0.0), 1.0 - erf(x), a < 0.5);
    return select(y, x, is_nan(x));
}

fn erfcx_f32(x: f32) -> f32 {
    let y = erfcx_positive(abs(x));
    return select(select(y, 2.0 * exp_square(-x, 1.0) - y, x < 0.0), x, is_nan(x));
}

// erfinv(x)/x, which is smooth in w = −ln(1 − x²) and for large ones in its root.
fn erfinv_ratio(w: f32) -> f32 {
    if (w < 5.0) {
        let s = w - 2.5;
        return (((((((2.260597774e-8 * s + 3.42224709e-7) * s - 3.454779514e-6) * s - 4.380346714e-6) * s
            + 2.183129798e-4) * s - 1.253758885e-3) * s - 4.177346517e-3) * s + 0.2466407663) * s + 1.501409351;
    }
    let root = sqrt(w);
    if (root < 4.08) {
        let s = root - 3.0;
        return ((((((((1.115385808e-4 * s - 3.055250512e-4) * s - 5.04588529e-5) * s + 1.479703953e-3) * s
            - 3.6009003319e-3) * s + 5.689216294e-3) * s - 7.636489637e-3) * s + 9.444992114e-3) * s + 1.001674912) * s
            + 2.832976807;
    }
    let s = root - 7.0;
    return (((((((1.13874288e-8 * s - 9.072669174e-8) * s + 3.194754498e-7) * s - 1.346667341e-6) * s
        + 5.924927543e-6) * s + 5.570027204e-6) * s - 5.123479593e-4) * s + 1.008596118) * s + 6.869019559;
}

fn erfinv_f32(x: f32) -> f32 {
    let a = abs(x);
    let y = x * erfinv_ratio(-precise_log(max((1.0 - a) * (1.0 + a), 1e-9)));
    let end = bitcast<f32>((bitcast<u32>(x) & 0x80000000u) | bitcast<u32>(float_of_bits(0x7f800000u)));
    return select(select(float_of_bits(0x7fc00000u), end, a == 1.0), y, a < 1.0);
}

fn ndtri_f32(p: f32) -> f32 {
    let q = min(p, 1.0 - p);
    let y = 1.4142135623730951 * (1.0 - 2.0 * q) * erfinv_ratio(-precise_log(4.0 * q * (1.0 - q)));
    let inside = select(y, -y, p < 0.5);
    let end = select(float_of_bits(0x7f800000u), float_of_bits(0xff800000u), p == 0.0);
    let outside = select(float_of_bits(0x7fc00000u), end, p == 0.0 || p == 1.0);
    return select(outside, inside, p > 0.0 && p < 1.0);
}

fn log_ndtr_f32(x: f32) -> f32 {
    let t = x * 0.7071067811865476;
    if (x < -1.0) {
        return precise_log(0.5 * erfcx_positive(-t)) - t * t;
    }
    return log1p_f32(-select(0.5 * exp_square(x, -0.5) * erfcx_positive(t), 0.5 - 0.5 * erf(t), x < 0.7));
}
