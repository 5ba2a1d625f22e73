// Floor division by a positive number.
fn floor_div(a: i32, b: i32) -> i32 {
    let q = a / b;
    return select(q, q - 1, a - q * b < 0);
}

// Remainder of floor division by a positive number.
fn floor_mod(a: i32, b: i32) -> i32 {
    let r = a - a / b * b;
    return select(r, r + b, r < 0);
}

// Truncates; by zero gives 0.
fn div_i32(a: i32, b: i32) -> i32 {
    if (b == -1) {
        return -a;
    }
    return select(a / select(b, 1, b == 0), 0, b == 0);
}

fn div_u32(a: u32, b: u32) -> u32 {
    return select(a / select(b, 1u, b == 0u), 0u, b == 0u);
}

// Vulkan leaves open what OpSRem gives for negative operands, and older wgpu passes `%` on to it: 7 % -3 is 7 on NVIDIA then.
fn rem_i32(a: i32, b: i32) -> i32 {
    let safe = select(b, 1, b == 0 || b == -1);
    return a - a / safe * safe;
}

fn rem_u32(a: u32, b: u32) -> u32 {
    return a % select(b, 1u, b == 0u);
}

fn mod_i32(a: i32, b: i32) -> i32 {
    let r = rem_i32(a, b);
    return select(r, r + b, r != 0 && (r < 0) != (b < 0));
}

// NVIDIA's Vulkan driver 580 loses the sign of a negated operand of `min(min(a, b), c)`, but not of `select`.
fn min_i32(a: i32, b: i32) -> i32 {
    return select(b, a, a < b);
}

// NVIDIA's Vulkan driver 580 loses the sign of a negated operand of `max(max(a, b), c)`, but not of `select`.
fn max_i32(a: i32, b: i32) -> i32 {
    return select(b, a, a > b);
}

fn pow_u32(a: u32, b: u32) -> u32 {
    var n = b;
    var base = a;
    var p = 1u;
    while (n > 0u) {
        if ((n & 1u) != 0u) {
            p *= base;
        }
        base *= base;
        n >>= 1u;
    }
    return p;
}

fn pow_i32(a: i32, b: i32) -> i32 {
    if (b < 0) {
        return select(0, select(1, a, (b & 1) != 0), a == 1 || a == -1);
    }
    return bitcast<i32>(pow_u32(bitcast<u32>(a), u32(b)));
}

// Euclid's algorithm: no pair of words takes more steps.
fn gcd_u32(a: u32, b: u32) -> u32 {
    var x = a;
    var y = b;
    for (var i = 0; i < 48; i++) {
        if (y == 0u) {
            break;
        }
        let r = rem_u32(x, y);
        x = y;
        y = r;
    }
    return x;
}

fn gcd_i32(a: i32, b: i32) -> i32 {
    return bitcast<i32>(gcd_u32(bitcast<u32>(abs(a)), bitcast<u32>(abs(b))));
}

// Shifts of a value of `width` bits; by the width or more gives 0.
fn shl_32(a: u32, b: u32, width: u32) -> u32 {
    return select(a << (b & 31u), 0u, b >= width);
}

fn shr_u32(a: u32, b: u32, width: u32) -> u32 {
    return select(a >> (b & 31u), 0u, b >= width);
}

fn shr_i32(a: i32, b: i32, width: u32) -> i32 {
    return select(a >> (u32(b) & 31u), 0, u32(b) >= width);
}

// The lowest `bits` bits of a word as a signed number.
fn wrap_i32(a: i32, bits: u32) -> i32 {
    return (a << (32u - bits)) >> (32u - bits);
}

// To the nearest, ties to even, also where the driver converts words of 32 bits by halves.
fn f32_from_u32(a: u32) -> f32 {
    return select(f32(i32(a)), 2.0 * f32(i32((a >> 1u) | (a & 1u))), a >= 0x80000000u);
}

// Not zero, by bits: NaN is true.
fn bool_from_f32(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) != 0u;
}

// Truncates; negative numbers wrap. Beyond -2³¹ and 2³² the nearest, of NaN 0.
fn u32_from_f32(x: f32) -> u32 {
    let positive = select(u32(x), 0xffffffffu, x >= 4294967296.0);
    let word = select(positive, u32(i32(x)), x < 0.0);
    return select(word, 0u, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u);
}

// A conversion to i32; from 2³¹ to 2³² it wraps.
fn i32_from_f32(x: f32) -> i32 {
    return i32(u32_from_f32(x));
}
