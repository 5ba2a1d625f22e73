// Field `i` of the fields of 16, 8, 4, 2 bits that a word packs, lowest first.
fn field16(word: u32, i: i32) -> u32 {
    return (word >> ((u32(i) & 1u) * 16u)) & 0xffffu;
}

fn field8(word: u32, i: i32) -> u32 {
    return (word >> ((u32(i) & 3u) * 8u)) & 0xffu;
}

fn field4(word: u32, i: i32) -> u32 {
    return (word >> ((u32(i) & 7u) * 4u)) & 0xfu;
}

fn field2(word: u32, i: i32) -> u32 {
    return (word >> ((u32(i) & 15u) * 2u)) & 0x3u;
}

// The four lowest fields of 4 bits, each in a byte.
fn bytes_of_fields(fields: u32) -> u32 {
    let pairs = (fields | (fields << 8u)) & 0x00ff00ffu;
    return (pairs | (pairs << 4u)) & 0x0f0f0f0fu;
}

// Twice the magnitudes of eight floats of 4 bits (E2M1), in the fields of their codes: 0, 1, 2, 3, 4, 6, 8, 12.
fn twice_magnitudes_e2m1(codes: u32) -> u32 {
    let high = codes & 0x44444444u;
    let low = codes & (high - (high >> 2u));
    return (codes & 0x77777777u) + low + (low & (low << 1u));
}

// The bits of a small float: `man` bits of mantissa, `max_code` the largest finite number, `over`
// what lies beyond it, `nan` not a number, `sign` the sign's bit (0: unsigned). Ties to even. Without
// branches: some drivers take minutes over a kernel with hundreds.
fn encode_small(x: f32, man: u32, bias: u32, max_code: u32, over: u32, nan: u32, sign: u32) -> u32 {
    let bits = bitcast<u32>(x);
    let s = select(0u, sign, (bits >> 31u) != 0u);
    let a = bits & 0x7fffffffu;
    let shift = 23u - man;
    let least = (128u - bias) << 23u;
    let subnormal = u32(round(bitcast<f32>(min(a, least)) * bitcast<f32>((126u + bias + man) << 23u)));
    let normal = ((a + (1u << (shift - 1u)) - 1u + ((a >> shift) & 1u)) >> shift) - ((127u - bias) << man);
    let code = select(normal, subnormal, a < least);
    let finite = select(code | s, 0u, code == 0u && nan == sign);
    return select(select(finite, over | s, code > max_code), nan, a > 0x7f800000u);
}

// The number of a finite code of a small float.
fn decode_small(raw: u32, man: u32, bias: u32, sign: u32) -> f32 {
    let m = raw & (sign - 1u);
    let e = m >> man;
    let f = m & ((1u << man) - 1u);
    let subnormal = f32(f) * bitcast<f32>((128u - bias - man) << 23u);
    let normal = bitcast<f32>(((e + 127u - bias) << 23u) | (f << (23u - man)));
    let v = select(normal, subnormal, e == 0u);
    return select(v, -v, (raw & sign) != 0u);
}

fn encode_f16(x: f32) -> u32 {
    return encode_small(x, 10u, 15u, 0x7bffu, 0x7c00u, 0x7e00u, 0x8000u);
}

fn decode_f16(raw: u32) -> f32 {
    let m = raw & 0x7fffu;
    let special = float_of_bits(0x7f800000u | ((raw & 0x8000u) << 16u) | ((m & 0x3ffu) << 13u));
    return select(decode_small(raw, 10u, 15u, 0x8000u), special, m >= 0x7c00u);
}

// The nearest value that f16 has, of two that are as near the one whose last bit is 0.
fn round_f16(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let a = bits & 0x7fffffffu;
    let normal = bitcast<f32>((bits + 0xfffu + ((bits >> 13u) & 1u)) & 0xffffe000u);
    // Multiples of the least subnormal number.
    let small = round(x * 0x1p+24f) * 0x1p-24f;
    let infinity = bitcast<f32>((bits & 0x80000000u) | 0x7f800000u);
    let value = select(select(normal, small, a < 0x38800000u), infinity, a >= 0x477ff000u);
    return select(value, x, a > 0x7f800000u);
}

fn encode_bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, (bits >> 16u) | 0x40u, (bits & 0x7fffffffu) > 0x7f800000u);
}

fn decode_bf16(raw: u32) -> f32 {
    return float_of_bits(raw << 16u);
}

fn encode_f8e4m3(x: f32) -> u32 {
    return encode_small(x, 3u, 7u, 0x7eu, 0x7fu, 0x7fu, 0x80u);
}

fn decode_f8e4m3(raw: u32) -> f32 {
    return select(decode_small(raw, 3u, 7u, 0x80u), float_of_bits(0x7fc00000u), (raw & 0x7fu) == 0x7fu);
}

fn encode_f8e4m3uz(x: f32) -> u32 {
    return encode_small(x, 3u, 8u, 0x7fu, 0x80u, 0x80u, 0x80u);
}

fn decode_f8e4m3uz(raw: u32) -> f32 {
    return select(decode_small(raw, 3u, 8u, 0x80u), float_of_bits(0x7fc00000u), raw == 0x80u);
}

fn encode_f8e5m2(x: f32) -> u32 {
    return encode_small(x, 2u, 15u, 0x7bu, 0x7cu, 0x7du, 0x80u);
}

fn decode_f8e5m2(raw: u32) -> f32 {
    let m = raw & 0x7fu;
    let special = float_of_bits(0x7f800000u | ((raw & 0x80u) << 24u) | ((m & 3u) << 21u));
    return select(decode_small(raw, 2u, 15u, 0x80u), special, m >= 0x7cu);
}

fn encode_f8e5m2uz(x: f32) -> u32 {
    return encode_small(x, 2u, 16u, 0x7fu, 0x80u, 0x80u, 0x80u);
}

fn decode_f8e5m2uz(raw: u32) -> f32 {
    return select(decode_small(raw, 2u, 16u, 0x80u), float_of_bits(0x7fc00000u), raw == 0x80u);
}

fn encode_f4e2m1(x: f32) -> u32 {
    return encode_small(x, 1u, 1u, 0x7u, 0x7u, 0x7u, 0x8u);
}

fn decode_f4e2m1(raw: u32) -> f32 {
    return decode_small(raw, 1u, 1u, 0x8u);
}

// A power of two by its exponent.
fn encode_f8e8m0(x: f32) -> u32 {
    let a = bitcast<u32>(x) & 0x7fffffffu;
    if (a >= 0x7f800000u) {
        return 0xffu;
    }
    return (a + 0x3fffffu + ((a >> 23u) & 1u)) >> 23u;
}

fn decode_f8e8m0(raw: u32) -> f32 {
    if (raw == 0xffu) {
        return float_of_bits(0x7fc00000u);
    }
    return bitcast<f32>(select(raw << 23u, 0x400000u, raw == 0u));
}

// A double rounded to single precision; what is too small becomes 0, too large infinite.
fn decode_f64(raw: vec2<u32>) -> f32 {
    let sign = raw.y & 0x80000000u;
    let e = (raw.y >> 20u) & 0x7ffu;
    let man = ((raw.y & 0xfffffu) << 3u) | (raw.x >> 29u);
    let rest = raw.x & 0x1fffffffu;
    if (e == 0x7ffu) {
        let nan = (raw.y & 0xfffffu) != 0u || raw.x != 0u;
        return float_of_bits(sign | select(0x7f800000u, 0x7fc00000u, nan));
    }
    if (e < 897u) {
        return bitcast<f32>(sign);
    }
    if (e > 1150u) {
        return float_of_bits(sign | 0x7f800000u);
    }
    let up = rest > 0x10000000u || (rest == 0x10000000u && (man & 1u) != 0u);
    return float_of_bits(sign | (((e - 896u) << 23u) + man + select(0u, 1u, up)));
}

fn encode_f64(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x);
    let sign = bits & 0x80000000u;
    let e = (bits >> 23u) & 0xffu;
    let man = bits & 0x7fffffu;
    if (e == 0u) {
        return vec2<u32>(0u, sign);
    }
    return vec2<u32>(man << 29u, sign | (select(e + 896u, 0x7ffu, e == 0xffu) << 20u) | (man >> 3u));
}
