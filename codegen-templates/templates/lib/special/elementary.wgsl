// (eʳ − 1)/r for |r| ≤ ln(2)/2.
fn expm1_ratio(r: f32) -> f32 {
    return (((((1.989928281e-4 * r + 1.394111641e-3) * r + 8.333298473e-3) * r + 4.16663528e-2) * r + 0.1666666672) * r
        + 0.5) * r + 1.0;
}

// x as whole powers of two and a rest of at most ln(2)/2: ln 2 in two parts, so that the products are exact.
fn exp_parts(x: f32) -> vec2<f32> {
    let n = round(x * 1.4426950408889634);
    return vec2<f32>(n, (x - n * 0.693359375) + n * 2.12194440e-4);
}

// From 2⁻¹²⁶ on.
fn power_of_two(n: f32) -> f32 {
    return bitcast<f32>(u32(i32(n) + 127) << 23u);
}

// In two steps, so that neither factor overflows before the product does.
fn scaled_by_power(x: f32, n: f32) -> f32 {
    let half = floor(n * 0.5);
    return x * power_of_two(half) * power_of_two(n - half);
}

// eˣ to the last bits: WGSL's own may be as many units off as x is large.
fn precise_exp(x: f32) -> f32 {
    let p = exp_parts(clamp(x, -110.0, 90.0));
    return select(scaled_by_power(p.y * expm1_ratio(p.y) + 1.0, p.x), x, is_nan(x));
}

fn expm1_f32(x: f32) -> f32 {
    let p = exp_parts(clamp(x, -30.0, 90.0));
    let q = p.y * expm1_ratio(p.y);
    let two = power_of_two(min(p.x, 30.0));
    let y = select((two - 1.0) + two * q, scaled_by_power(q + 1.0, p.x), p.x > 30.0);
    return select(y, x, is_nan(x) || abs(x) < 1e-8);
}

fn exp2_f32(x: f32) -> f32 {
    let a = clamp(x, -160.0, 130.0);
    let n = round(a);
    let r = (a - n) * 0.6931471805599453;
    return select(scaled_by_power(r * expm1_ratio(r) + 1.0, n), x, is_nan(x));
}

// ln(1 + t)/t from √½ − 1 to √2 − 1.
fn log1p_ratio(t: f32) -> f32 {
    return ((((((((-7.451186227e-2 * t + 0.1280661044) * t - 0.1326603136) * t + 0.141996501) * t - 0.1660836941) * t
        + 0.2000093944) * t - 0.250015791) * t + 0.3333334535) * t - 0.499999885) * t + 1.0;
}

// The exponent, and the logarithm of the mantissa from √½ to √2.
fn log_parts(x: f32) -> vec2<f32> {
    let small = x < 1.1754944e-38;
    let bits = bitcast<u32>(select(x, x * 8388608.0, small)) + 0x4afb0du;
    let t = bitcast<f32>((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0;
    return vec2<f32>(f32(i32(bits >> 23u) - 127) - select(0.0, 23.0, small), t * log1p_ratio(t));
}

// The logarithm of x where x is no positive number, else y.
fn log_or(x: f32, y: f32) -> f32 {
    let other = select(select(float_of_bits(0x7fc00000u), x, x > 0.0), float_of_bits(0xff800000u), x == 0.0);
    return select(other, y, x > 0.0 && !is_inf(x));
}

// ln x to the last bits, near 1 too.
fn precise_log(x: f32) -> f32 {
    let p = log_parts(x);
    return log_or(x, (p.y - p.x * 2.12194440e-4) + p.x * 0.693359375);
}

fn log1p_f32(x: f32) -> f32 {
    return select(precise_log(1.0 + x), x * log1p_ratio(x), x > -0.29 && x < 0.41);
}

fn log2_f32(x: f32) -> f32 {
    let p = log_parts(x);
    return log_or(x, p.y * 1.4426950408889634 + p.x);
}

fn log10_f32(x: f32) -> f32 {
    let p = log_parts(x);
    return log_or(x, (p.y * 0.4342944819032518 + p.x * 4.6050389811952e-6) + p.x * 0.30102539062500);
}

// The smaller of two magnitudes over the larger. Quotients are exact up to divisors of 2^126 alone.
fn ratio_of_magnitudes(a: f32, b: f32) -> f32 {
    let most = max(a, b);
    let scale = select(1.0, 0.0625, most > 4.2535296e37);
    return min(a, b) * scale / (most * scale);
}

fn hypot_f32(x: f32, y: f32) -> f32 {
    let most = max(abs(x), abs(y));
    let q = ratio_of_magnitudes(abs(x), abs(y));
    let length = select(most * sqrt(1.0 + q * q), 0.0, most == 0.0);
    let number = select(length, float_of_bits(0x7fc00000u), is_nan(x) || is_nan(y));
    return select(number, float_of_bits(0x7f800000u), is_inf(x) || is_inf(y));
}

fn atan2_f32(y: f32, x: f32) -> f32 {
    let a = abs(x);
    let b = abs(y);
    let most = max(a, b);
    let both = is_inf(a) && is_inf(b);
    let t = select(select(ratio_of_magnitudes(a, b), 0.0, most == 0.0), 1.0, both);
    let eighth = atan_f32(t);
    let quarter = select(eighth, 1.5707963267948966 - eighth, b > a);
    let half = select(quarter, 3.1415926535897932 - quarter, (bitcast<u32>(x) >> 31u) != 0u);
    let angle = bitcast<f32>(bitcast<u32>(half) | (bitcast<u32>(y) & 0x80000000u));
    return select(angle, float_of_bits(0x7fc00000u), is_nan(x) || is_nan(y));
}
