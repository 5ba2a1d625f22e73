fn add_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn sub_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn neg_64(a: vec2<u32>) -> vec2<u32> {
    return sub_64(vec2<u32>(0u, 0u), a);
}

// The 64-bit product of two words.
fn mul_wide(a: u32, b: u32) -> vec2<u32> {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let p00 = a0 * b0;
    let p01 = a0 * b1;
    let p10 = a1 * b0;
    let middle = (p00 >> 16u) + (p01 & 0xffffu) + (p10 & 0xffffu);
    return vec2<u32>((p00 & 0xffffu) | (middle << 16u), a1 * b1 + (p01 >> 16u) + (p10 >> 16u) + (middle >> 16u));
}

fn mul_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = mul_wide(a.x, b.x);
    return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}

fn lt_u64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn lt_i64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}

fn is_negative(a: vec2<u32>) -> bool {
    return (a.y >> 31u) != 0u;
}

fn abs_i64(a: vec2<u32>) -> vec2<u32> {
    return select(a, neg_64(a), is_negative(a));
}

fn sign_i64(a: vec2<u32>) -> vec2<u32> {
    return select(vec2<u32>(select(0u, 1u, any(a != vec2<u32>(0u, 0u))), 0u), vec2<u32>(0xffffffffu, 0xffffffffu), is_negative(a));
}

fn sign_u64(a: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(select(0u, 1u, any(a != vec2<u32>(0u, 0u))), 0u);
}

fn min_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, lt_i64(b, a));
}

fn max_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, lt_i64(a, b));
}

fn min_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, lt_u64(b, a));
}

fn max_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, lt_u64(a, b));
}

// The next digit, of 16 bits, of the quotient of `high` followed by the digit `next` by v, whose highest bit is set and which
// is greater than `high`. A guess from the highest digits is at most 2 too large.
fn digit_of_quotient(high: u32, next: u32, v: u32) -> u32 {
    let top = max(v >> 16u, 1u);
    let low = v & 0xffffu;
    var q = high / top;
    var r = high - q * top;
    if (q > 0xffffu || q * low > ((r << 16u) | next)) {
        q -= 1u;
        r += top;
        if (r <= 0xffffu && (q > 0xffffu || q * low > ((r << 16u) | next))) {
            q -= 1u;
        }
    }
    return q;
}

// Quotient and remainder of a by d, which is greater than a.y.
fn divide_by_word(a: vec2<u32>, d: u32) -> vec2<u32> {
    let by = countLeadingZeros(d) & 31u;
    let v = d << by;
    let high = (a.y << by) | ((a.x >> 1u) >> (31u - by));
    let low = a.x << by;
    let q1 = digit_of_quotient(high, low >> 16u, v);
    let rest = ((high << 16u) | (low >> 16u)) - q1 * v;
    let q0 = digit_of_quotient(rest, low & 0xffffu, v);
    let r = ((rest << 16u) | (low & 0xffffu)) - q0 * v;
    return vec2<u32>((q1 << 16u) + q0, r >> by);
}

// Quotient and remainder, without a loop; both 0 for a divisor of 0.
fn divide_u64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
    if (b.x == 0u && b.y == 0u) {
        return vec4<u32>(0u, 0u, 0u, 0u);
    }
    if (b.y == 0u) {
        let d = max(b.x, 1u);
        let high = a.y / d;
        let low = divide_by_word(vec2<u32>(a.x, a.y - high * d), d);
        return vec4<u32>(low.x, high, low.y, 0u);
    }
    // The quotient by the 32 highest bits of b is at most 1 too large.
    let by = countLeadingZeros(b.y) & 31u;
    let v = (b.y << by) | ((b.x >> 1u) >> (31u - by));
    let half = divide_by_word(vec2<u32>((a.x >> 1u) | (a.y << 31u), a.y >> 1u), v).x;
    var q = half >> (31u - by);
    q = select(q, q - 1u, q > 0u);
    var r = sub_64(a, mul_64(vec2<u32>(q, 0u), b));
    if (!lt_u64(r, b)) {
        r = sub_64(r, b);
        q += 1u;
    }
    return vec4<u32>(q, 0u, r);
}

fn div_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return divide_u64(a, b).xy;
}

fn rem_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return divide_u64(a, b).zw;
}

// Truncates; by zero gives 0.
fn div_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let q = div_u64(abs_i64(a), abs_i64(b));
    return select(q, neg_64(q), is_negative(a) != is_negative(b));
}

fn rem_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let r = rem_u64(abs_i64(a), abs_i64(b));
    return select(r, neg_64(r), is_negative(a));
}

fn mod_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let r = rem_i64(a, b);
    return select(r, add_64(r, b), any(r != vec2<u32>(0u, 0u)) && is_negative(r) != is_negative(b));
}

// Quotient, in two words, and remainder by d of 1 to 2^16: digits of 16 bits, one after another.
fn divide_by_digit(a: vec2<u32>, d: u32) -> vec3<u32> {
    let high = a.y / d;
    let upper = ((a.y - high * d) << 16u) | (a.x >> 16u);
    let q1 = upper / d;
    let lower = ((upper - q1 * d) << 16u) | (a.x & 0xffffu);
    let q0 = lower / d;
    return vec3<u32>((q1 << 16u) | q0, high, lower - q0 * d);
}

// Quotient, in two words, and remainder by d of 1 to 2^24: digits of 8 bits.
fn divide_by_three_bytes(a: vec2<u32>, d: u32) -> vec3<u32> {
    let high = a.y / d;
    let n3 = ((a.y - high * d) << 8u) | (a.x >> 24u);
    let q3 = n3 / d;
    let n2 = ((n3 - q3 * d) << 8u) | ((a.x >> 16u) & 0xffu);
    let q2 = n2 / d;
    let n1 = ((n2 - q2 * d) << 8u) | ((a.x >> 8u) & 0xffu);
    let q1 = n1 / d;
    let n0 = ((n1 - q1 * d) << 8u) | (a.x & 0xffu);
    let q0 = n0 / d;
    return vec3<u32>((q3 << 24u) | (q2 << 16u) | (q1 << 8u) | q0, high, n0 - q0 * d);
}

fn div_short_u64(a: vec2<u32>, d: u32) -> vec2<u32> {
    return divide_by_digit(a, d).xy;
}

fn rem_short_u64(a: vec2<u32>, d: u32) -> vec2<u32> {
    return vec2<u32>(divide_by_digit(a, d).z, 0u);
}

fn div_short_i64(a: vec2<u32>, d: u32) -> vec2<u32> {
    let q = div_short_u64(abs_i64(a), d);
    return select(q, neg_64(q), is_negative(a));
}

fn rem_short_i64(a: vec2<u32>, d: u32) -> vec2<u32> {
    let r = rem_short_u64(abs_i64(a), d);
    return select(r, neg_64(r), is_negative(a));
}

fn mod_short_i64(a: vec2<u32>, d: u32) -> vec2<u32> {
    let r = divide_by_digit(abs_i64(a), d).z;
    return vec2<u32>(select(r, d - r, is_negative(a) && r != 0u), 0u);
}

fn div_medium_u64(a: vec2<u32>, d: u32) -> vec2<u32> {
    return divide_by_three_bytes(a, d).xy;
}

fn rem_medium_u64(a: vec2<u32>, d: u32) -> vec2<u32> {
    return vec2<u32>(divide_by_three_bytes(a, d).z, 0u);
}

fn div_medium_i64(a: vec2<u32>, d: u32) -> vec2<u32> {
    let q = div_medium_u64(abs_i64(a), d);
    return select(q, neg_64(q), is_negative(a));
}

fn rem_medium_i64(a: vec2<u32>, d: u32) -> vec2<u32> {
    let r = rem_medium_u64(abs_i64(a), d);
    return select(r, neg_64(r), is_negative(a));
}

fn mod_medium_i64(a: vec2<u32>, d: u32) -> vec2<u32> {
    let r = divide_by_three_bytes(abs_i64(a), d).z;
    return vec2<u32>(select(r, d - r, is_negative(a) && r != 0u), 0u);
}

fn pow_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    var n = b;
    var base = a;
    var p = vec2<u32>(1u, 0u);
    for (var i = 0u; i < 64u; i++) {
        if (all(n == vec2<u32>(0u, 0u))) {
            break;
        }
        if ((n.x & 1u) != 0u) {
            p = mul_64(p, base);
        }
        base = mul_64(base, base);
        n = vec2<u32>((n.x >> 1u) | (n.y << 31u), n.y >> 1u);
    }
    return p;
}

fn pow_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if (is_negative(b)) {
        let unit = all(abs_i64(a) == vec2<u32>(1u, 0u));
        return select(vec2<u32>(0u, 0u), select(vec2<u32>(1u, 0u), a, (b.x & 1u) != 0u), unit);
    }
    return pow_u64(a, b);
}

// Euclid's algorithm: no pair takes more steps.
fn gcd_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    var x = a;
    var y = b;
    for (var i = 0; i < 94; i++) {
        if (all(y == vec2<u32>(0u, 0u))) {
            break;
        }
        let r = rem_u64(x, y);
        x = y;
        y = r;
    }
    return x;
}

fn gcd_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return gcd_u64(abs_i64(a), abs_i64(b));
}

// Shifts; by 64 or more gives 0.
fn shl_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let by = b.x & 31u;
    let low = a.x << by;
    let high = (a.y << by) | ((a.x >> 1u) >> (31u - by));
    let shifted = select(vec2<u32>(low, high), vec2<u32>(0u, low), b.x >= 32u);
    return select(shifted, vec2<u32>(0u, 0u), b.y != 0u || b.x >= 64u);
}

fn shr_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let by = b.x & 31u;
    let high = a.y >> by;
    let low = (a.x >> by) | ((a.y << 1u) << (31u - by));
    let shifted = select(vec2<u32>(low, high), vec2<u32>(high, 0u), b.x >= 32u);
    return select(shifted, vec2<u32>(0u, 0u), b.y != 0u || b.x >= 64u);
}

fn shr_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let s = shr_u64(a, b);
    if (!is_negative(a) || b.y != 0u || b.x >= 64u) {
        return s;
    }
    let ones = shr_u64(vec2<u32>(0xffffffffu, 0xffffffffu), b);
    return s | ~ones;
}

fn i64_from_i32(a: i32) -> vec2<u32> {
    return vec2<u32>(bitcast<u32>(a), bitcast<u32>(a >> 31u));
}

// To the nearest, ties to even.
fn f32_from_u64(a: vec2<u32>) -> f32 {
    let shift = countLeadingZeros(a.y);
    let s = shl_64(a, vec2<u32>(shift, 0u));
    return f32_from_u32(s.y | select(0u, 1u, s.x != 0u)) * bitcast<f32>((159u - shift) << 23u);
}

fn f32_from_i64(a: vec2<u32>) -> f32 {
    let f = f32_from_u64(abs_i64(a));
    return select(f, -f, is_negative(a));
}

// Truncates; ends at the largest and smallest number, of NaN 0.
fn i64_from_f32(x: f32) -> vec2<u32> {
    let a = select(trunc(abs(x)), 0.0, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u);
    if (a >= 9223372036854775808.0) {
        return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), x < 0.0);
    }
    let high = floor(a * 2.3283064365386963e-10);
    let v = vec2<u32>(u32(a - high * 4294967296.0), u32(high));
    return select(v, neg_64(v), x < 0.0);
}

fn u64_from_f32(x: f32) -> vec2<u32> {
    let nan = (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
    if (nan || x < 9223372036854775808.0) {
        return i64_from_f32(x);
    }
    if (x >= 18446744073709551616.0) {
        return vec2<u32>(0xffffffffu, 0xffffffffu);
    }
    let v = i64_from_f32(x - 9223372036854775808.0);
    return vec2<u32>(v.x, v.y | 0x80000000u);
}
