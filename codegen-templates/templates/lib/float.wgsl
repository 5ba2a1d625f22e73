// A zero that a shader compiler cannot fold: infinities and NaN
// are computed with it, since WGSL refuses them as constant expressions.
var<private> zero_bits: u32 = 0u;

fn float_of_bits(bits: u32) -> f32 {
    return bitcast<f32>(bits | zero_bits);
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn is_inf(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}

// x · 0 as IEEE 754 has it: NaN if x is infinite or NaN. Drivers fold the product to 0.
fn times_zero(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return bitcast<f32>((bits & 0x80000000u) | select(0u, 0x7fc00000u, (bits & 0x7f800000u) == 0x7f800000u));
}

// x / x as IEEE 754 has it: NaN if x is 0, infinite or NaN. Drivers fold the quotient to 1.
fn over_itself(x: f32) -> f32 {
    let a = bitcast<u32>(x) & 0x7fffffffu;
    return bitcast<f32>(select(0x3f800000u, 0x7fc00000u | zero_bits, a == 0u || a >= 0x7f800000u));
}

// A score of attention among finite numbers, so that differences of scores are numbers: one that is NaN is the largest,
// as infinity is.
fn attention_score(x: f32) -> f32 {
    let a = bitcast<u32>(x) & 0x7fffffffu;
    return select(clamp(x, -3.4028234663852886e38, 3.4028234663852886e38), 3.4028234663852886e38, a > 0x7f800000u);
}

// The weight of a score from `attention_score`: NaN where that was NaN or infinity.
fn attention_weight(p: f32, score: f32) -> f32 {
    return select(p, float_of_bits(0x7fc00000u), score >= 3.4028234663852886e38);
}

// The sum of exponentials of scores of attention: NaN where `met`, a multiple of the sum of the scores, is NaN or infinity, as one of them is then.
fn attention_total(total: f32, met: f32) -> f32 {
    let bits = bitcast<u32>(met);
    return select(total, float_of_bits(0x7fc00000u), (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u);
}

// Maximum, minimum and sign that give NaN for NaN, which WGSL's own functions need not. NaN is found by its bits, as drivers
// replace a comparison and selection of the same values by an instruction that drops NaN. Written without calls, as
// some drivers compile a kernel with hundreds of calls for minutes.
fn max_f32(a: f32, b: f32) -> f32 {
    let x = select(select(a, b, a < b), a, (bitcast<u32>(a) & 0x7fffffffu) > 0x7f800000u);
    return select(x, b, (bitcast<u32>(b) & 0x7fffffffu) > 0x7f800000u);
}

fn min_f32(a: f32, b: f32) -> f32 {
    let x = select(select(a, b, a > b), a, (bitcast<u32>(a) & 0x7fffffffu) > 0x7f800000u);
    return select(x, b, (bitcast<u32>(b) & 0x7fffffffu) > 0x7f800000u);
}

fn sign_f32(x: f32) -> f32 {
    return select(sign(x), x, is_nan(x));
}

// Some drivers give wrong logarithms of 0, of negative numbers and of NaN.
fn log_f32(x: f32) -> f32 {
    let y = select(log(x), float_of_bits(0xff800000u), x == 0.0);
    return select(y, float_of_bits(0x7fc00000u), x < 0.0 || is_nan(x));
}

// The quotient rounded to the nearest, which WGSL's own may miss by some units in the last place. The quotient of the
// mantissas is corrected in integers: the remainder of a near one fits into 32 bits, whatever wraps on the way.
fn quotient_f32(a: f32, b: f32) -> f32 {
    let x = bitcast<u32>(a);
    let y = bitcast<u32>(b);
    let ex = (x >> 23u) & 255u;
    let ey = (y >> 23u) & 255u;
    let mx = (x & 0x7fffffu) | 0x800000u;
    let my = (y & 0x7fffffu) | 0x800000u;
    let below = select(0u, 1u, mx < my);
    let e = i32(ex) - i32(ey) + 127 - i32(below);
    let near = bitcast<f32>((x & 0x7fffffu) | 0x3f800000u) / bitcast<f32>((y & 0x7fffffu) | 0x3f800000u);
    let first = u32(near * select(8388608.0, 16777216.0, mx < my));
    let left = bitcast<i32>((mx << (23u + below)) - first * my);
    let steps = i32(round(f32(left) / f32(my)));
    let rest = 2 * (left - steps * i32(my));
    let last = select(0, 1, rest > i32(my)) - select(0, 1, rest < -i32(my));
    let q = bitcast<u32>(bitcast<i32>(first) + steps + last);
    let exact = bitcast<f32>(((x ^ y) & 0x80000000u) | (bitcast<u32>(e) << 23u) | (q & 0x7fffffu));
    // Zeros, subnormals, infinities, NaN. Without branches: see `encode_small`.
    let special = (u32(min(ex, ey) == 0u) | u32(max(ex, ey) == 255u) | u32(e < 1) | u32(e > 254)) != 0u;
    return select(exact, a / b, special);
}

// Remainder with the sign of the dividend, exact: a long division of the significands, eight bits a step.
fn rem_f32(a: f32, b: f32) -> f32 {
    let x = bitcast<u32>(a) & 0x7fffffffu;
    let y = bitcast<u32>(b) & 0x7fffffffu;
    if (y == 0u || x >= 0x7f800000u || y > 0x7f800000u) {
        return float_of_bits(0x7fc00000u);
    }
    if (x < y) {
        return a;
    }
    let ey = max(y >> 23u, 1u);
    let my = (y & 0x7fffffu) | select(0u, 0x800000u, y >= 0x800000u);
    var rest = ((x & 0x7fffffu) | select(0u, 0x800000u, x >= 0x800000u)) % my;
    var steps = max(x >> 23u, 1u) - ey;
    // Exponents differ by 277 at most.
    for (var i = 0u; i < 35u; i++) {
        if (steps == 0u || rest == 0u) {
            break;
        }
        let n = min(steps, 8u);
        rest = (rest << n) % my;
        steps -= n;
    }
    let up = min(countLeadingZeros(rest) - 8u, ey - 1u);
    let bits = select((rest << up) + ((ey - up - 1u) << 23u), 0u, rest == 0u);
    return bitcast<f32>(bits | (bitcast<u32>(a) & 0x80000000u));
}

// Remainder with the sign of the divisor.
fn mod_f32(a: f32, b: f32) -> f32 {
    let r = rem_f32(a, b);
    return select(r, r + b, r != 0.0 && (r < 0.0) != (b < 0.0));
}

// Small whole exponents are exact products; a negative base takes whole exponents only.
fn pow_f32(x: f32, y: f32) -> f32 {
    if (y == trunc(y) && abs(y) <= 32.0) {
        var n = u32(abs(y));
        var base = x;
        var p = 1.0;
        while (n > 0u) {
            if ((n & 1u) != 0u) {
                p *= base;
            }
            n >>= 1u;
            if (n > 0u) {
                base *= base;
            }
        }
        return select(p, 1.0 / p, y < 0.0);
    }
    if (is_nan(x) || is_nan(y)) {
        return select(float_of_bits(0x7fc00000u), 1.0, x == 1.0);
    }
    if (x == 0.0) {
        return select(0.0, float_of_bits(0x7f800000u), y < 0.0);
    }
    let p = select(pow(abs(x), y), 1.0, abs(x) == 1.0);
    if (x > 0.0 || is_inf(y)) {
        return p;
    }
    if (y != trunc(y)) {
        return select(float_of_bits(0x7fc00000u), p, is_inf(x));
    }
    return select(p, -p, abs(y) < 16777216.0 && (i32(y) & 1) != 0);
}

fn sigmoid(x: f32) -> f32 {
    let e = exp(-abs(x));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

// The error function: a polynomial near 0, Abramowitz and Stegun 7.1.26 beyond 1.
fn erf(x: f32) -> f32 {
    let z = x * x;
    let p = x * ((((((7.853861353153693e-5 * z - 8.010193625184903e-4) * z + 5.188327685732524e-3) * z
        - 2.685381193529856e-2) * z + 1.128358514861418e-1) * z - 3.761262582423300e-1) * z + 1.128379165726710);
    let a = abs(x);
    let t = 1.0 / (1.0 + 0.3275911 * a);
    let y = 1.0 - ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
        * exp(-min(z, 80.0));
    return select(select(y, -y, x < 0.0), p, a < 1.0);
}

fn tanh_f32(x: f32) -> f32 {
    let z = x * x;
    let p = ((((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z
        - 3.33332819422e-1) * z * x + x;
    let a = abs(x);
    let y = 1.0 - 2.0 / (exp(2.0 * min(a, 15.0)) + 1.0);
    return select(p, select(y, -y, x < 0.0), a >= 0.625);
}

fn sinh_f32(x: f32) -> f32 {
    let z = x * x;
    let p = ((2.03721912945e-4 * z + 8.33028376239e-3) * z + 1.66667160211e-1) * z * x + x;
    let a = abs(x);
    let e = exp(a - 0.6931471805599453);
    let y = e - 0.25 / e;
    return select(select(y, -y, x < 0.0), p, a < 1.0);
}

fn cosh_f32(x: f32) -> f32 {
    let e = exp(abs(x) - 0.6931471805599453);
    return e + 0.25 / e;
}

fn asinh_f32(x: f32) -> f32 {
    let a = abs(x);
    let z = x * x;
    let p = (((2.0122003309e-2 * z - 4.2699340972e-2) * z + 7.4847586088e-2) * z - 1.6666288134e-1) * z * x + x;
    let far = log_f32(a) + 0.6931471805599453;
    let near = log_f32(a + sqrt(min(z, 1e30) + 1.0));
    let y = select(near, far, a > 1e6);
    return select(select(y, -y, x < 0.0), p, a < 0.5);
}

fn acosh_f32(x: f32) -> f32 {
    let t = x - 1.0;
    let p = ((((1.7596881071e-3 * t - 7.5272886713e-3) * t + 2.6454905019e-2) * t - 1.1784741703e-1) * t
        + 1.4142135263) * sqrt(max(t, 0.0));
    let far = log_f32(x) + 0.6931471805599453;
    let near = log_f32(x + sqrt(max(min(x * x, 1e30) - 1.0, 0.0)));
    let y = select(select(near, far, x > 1e6), p, t < 0.5);
    return select(y, float_of_bits(0x7fc00000u), x < 1.0);
}

fn atanh_f32(x: f32) -> f32 {
    let z = x * x;
    let p = ((((1.81740078349e-1 * z + 8.24370301058e-2) * z + 1.46691431730e-1) * z + 1.99782164500e-1) * z
        + 3.33337300303e-1) * z * x + x;
    return select(0.5 * log_f32((1.0 + x) / (1.0 - x)), p, abs(x) < 0.5);
}

fn atan_f32(x: f32) -> f32 {
    let a = abs(x);
    let far = a > 2.414213562373095;
    let middle = !far && a > 0.4142135623730950;
    let base = select(select(0.0, 0.7853981633974483, middle), 1.5707963267948966, far);
    let t = select(select(a, (a - 1.0) / (a + 1.0), middle), -1.0 / max(a, 1.0), far);
    let z = t * t;
    let y = base + ((((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1) * z * t + t);
    return select(y, -y, x < 0.0);
}

// asin of 0 to 0.5.
fn asin_small(x: f32) -> f32 {
    let z = x * x;
    return ((((4.2163199048e-2 * z + 2.4181311049e-2) * z + 4.5470025998e-2) * z + 7.4953002686e-2) * z
        + 1.6666752422e-1) * z * x + x;
}

fn asin_f32(x: f32) -> f32 {
    let a = abs(x);
    let y = select(asin_small(a), 1.5707963267948966 - 2.0 * asin_small(sqrt(0.5 * max(1.0 - a, 0.0))), a > 0.5);
    return select(select(y, -y, x < 0.0), float_of_bits(0x7fc00000u), a > 1.0);
}

fn acos_f32(x: f32) -> f32 {
    let a = abs(x);
    let y = 2.0 * asin_small(sqrt(0.5 * max(1.0 - a, 0.0)));
    let far = select(y, 3.1415926535897932 - y, x < 0.0);
    return select(select(1.5707963267948966 - sign(x) * asin_small(a), far, a > 0.5), float_of_bits(0x7fc00000u), a > 1.0);
}

// The high word of a product of at most 24 and 32 bits.
fn high_of_product(a: u32, b: u32) -> u32 {
    let low = (a >> 16u) * (b & 0xffffu) + (((a & 0xffffu) * (b & 0xffffu)) >> 16u);
    let middle = (a & 0xffffu) * (b >> 16u) + (low & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (low >> 16u) + (middle >> 16u);
}

// `quarter_turns` of a number from 1 on: Payne and Hanek, Radian Reduction for Trigonometric Functions, SIGNUM Newsletter
// 18 (1983). The significand is multiplied by those 96 bits of 2/π that make the lowest two bits of the integer part
// and the fraction.
fn quarter_turns_of_large(a: f32) -> vec2<f32> {
    let bits = bitcast<u32>(a);
    let first = ((bits >> 23u) & 255u) - 120u;
    let word = min(first >> 5u, 4u);
    let shift = first & 31u;
    // Words number `word` to `word + 3` of 0 and 2/π. They are selected, as drivers take long over an array of them.
    let second = (word & 2u) != 0u;
    let even = select(vec4<u32>(0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u), vec4<u32>(0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u), second);
    let odd = select(vec4<u32>(0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u), vec4<u32>(0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u), second);
    let last = vec4<u32>(0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu);
    let t = select(select(even, odd, (word & 1u) != 0u), last, word == 4u);
    // Two shifts, since one by 32 bits is none.
    let w0 = (t.x << shift) | ((t.y >> 1u) >> (31u - shift));
    let w1 = (t.y << shift) | ((t.z >> 1u) >> (31u - shift));
    let w2 = (t.z << shift) | ((t.w >> 1u) >> (31u - shift));
    let m = (bits & 0x7fffffu) | 0x800000u;
    let carried = high_of_product(m, w2);
    let low = m * w1 + carried;
    let high = m * w0 + high_of_product(m, w1) + select(0u, 1u, low < carried);
    let n = (high + 0x20000000u) >> 30u;
    // The rest, a signed number of 64 bits of which the upper 34 are the sign.
    let rest = high - (n << 30u);
    let below = (rest >> 31u) != 0u;
    let rest_low = select(low, 0u - low, below);
    let rest_high = select(rest, ~rest + select(0u, 1u, low == 0u), below);
    let r = (f32(rest_high) + f32(rest_low) * 0x1p-32f) * 1.4629180792671596e-9;
    let number = select(r, -r, below);
    return vec2<f32>(select(number, float_of_bits(0x7fc00000u), bits >= 0x7f800000u), f32(n));
}

// A number not below 0 less the nearest multiple of π/2, and that multiple modulo 4. Moderate numbers
// after Cody and Waite, Software Manual for the Elementary Functions (1980): π/2 in four parts, of which three have products
// that are exact.
fn quarter_turns(a: f32) -> vec2<f32> {
    if (a > 12000.0) {
        return quarter_turns_of_large(a);
    }
    let n = round(a * 0.6366197723675814);
    let r = (((a - n * 1.5703125) - n * 0.0004837512969970703) - n * 7.549533620476723e-08) - n * 2.563344151594519e-12;
    return vec2<f32>(r, n - 4.0 * floor(n * 0.25));
}

fn sin_kernel(r: f32) -> f32 {
    let z = r * r;
    return ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
}

fn cos_kernel(r: f32) -> f32 {
    let z = r * r;
    return ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0;
}

// Sine from -π/2 to π/2, to some units in the last place.
fn sin_half(r: f32) -> f32 {
    let z = r * r;
    return (((2.60572e-6 * z - 1.9809577e-4) * z + 8.333066e-3) * z - 1.666666e-1) * (z * r) + r;
}

fn sin_f32(x: f32) -> f32 {
    let t = quarter_turns(abs(x));
    let q = u32(t.y);
    let y = select(sin_kernel(t.x), cos_kernel(t.x), (q & 1u) != 0u);
    return bitcast<f32>(bitcast<u32>(y) ^ ((q & 2u) << 30u) ^ (bitcast<u32>(x) & 0x80000000u));
}

fn cos_f32(x: f32) -> f32 {
    let t = quarter_turns(abs(x));
    let q = u32(t.y);
    let y = select(cos_kernel(t.x), sin_kernel(t.x), (q & 1u) != 0u);
    return bitcast<f32>(bitcast<u32>(y) ^ (((q + 1u) & 2u) << 30u));
}

// Sine and cosine of one angle.
fn sin_cos_f32(x: f32) -> vec2<f32> {
    let t = quarter_turns(abs(x));
    let q = u32(t.y);
    let s = sin_kernel(t.x);
    let c = cos_kernel(t.x);
    let y = select(vec2<f32>(s, c), vec2<f32>(c, s), (q & 1u) != 0u);
    let signs = vec2<u32>(((q & 2u) << 30u) ^ (bitcast<u32>(x) & 0x80000000u), ((q + 1u) & 2u) << 30u);
    return bitcast<vec2<f32>>(bitcast<vec2<u32>>(y) ^ signs);
}

fn tan_f32(x: f32) -> f32 {
    let t = quarter_turns(abs(x));
    let s = sin_kernel(t.x);
    let c = cos_kernel(t.x);
    let y = select(s / c, -c / s, (u32(t.y) & 1u) != 0u);
    return bitcast<f32>(bitcast<u32>(y) ^ (bitcast<u32>(x) & 0x80000000u));
}
