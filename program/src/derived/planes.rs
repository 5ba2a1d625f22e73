//! Planes of the block types of GGUF files: the elements of all blocks, their scales, their factors, each as a tensor of its own.
//!
//! A function takes whole blocks and writes what they make, as a [`Derivation`] requires. Elements are spread over
//! an array with a byte for each and then packed, both in loops of constant length that compilers turn into vector instructions once
//! everything is inlined.

use super::{Derivation, each_block};

/// Packs elements of 4 bits, which are the bytes of `e`.
#[inline]
fn pack_4<const N: usize, const M: usize>(e: &[u8; N], to: &mut [u8; M]) {
    for (t, e) in to.iter_mut().zip(e.as_chunks::<2>().0) {
        let w = u16::from_le_bytes(*e);
        *t = (w | w >> 4) as u8;
    }
}

/// Packs elements of 2 bits, which are the bytes of `e`.
#[inline]
fn pack_2<const N: usize, const M: usize>(e: &[u8; N], to: &mut [u8; M]) {
    for (t, e) in to.iter_mut().zip(e.as_chunks::<4>().0) {
        let w = u32::from_le_bytes(*e);
        *t = (w | w >> 6 | w >> 12 | w >> 18) as u8;
    }
}

/// Bits as elements of 2 bits.
#[inline]
fn spread(bits: [u8; 4]) -> [u8; 8] {
    let mut x = u64::from(u32::from_le_bytes(bits));
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        x = (x | x << shift) & mask;
    }
    x.to_le_bytes()
}

/// The 4-bit integers of a block of 32: the first half in the low bits of its bytes, the second half in the high ones.
#[inline]
fn halves(q: &[u8; 16]) -> [u8; 32] {
    let mut e = [0; 32];
    let (low, high) = e.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(q) {
        (*low, *high) = (q & 15, q >> 4);
    }
    e
}

/// The 4-bit integers of a block of 256: of each 64 elements the first 32 are in the low bits of 32 bytes.
#[inline]
fn pairs(q: &[u8; 128]) -> [u8; 256] {
    let mut e = [0; 256];
    for (e, q) in e.as_chunks_mut::<64>().0.iter_mut().zip(q.as_chunks::<32>().0) {
        for i in 0..32 {
            (e[i], e[32 + i]) = (q[i] & 15, q[i] >> 4);
        }
    }
    e
}

/// The 2-bit integers of a block of 256: of each 128 elements every 32 have bits of their own in 32 bytes.
#[inline]
fn fours(q: &[u8; 64]) -> [u8; 256] {
    let mut e = [0; 256];
    for (e, q) in e.as_chunks_mut::<128>().0.iter_mut().zip(q.as_chunks::<32>().0) {
        for (k, e) in e.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for i in 0..32 {
                e[i] = q[i] >> (2 * k) & 3;
            }
        }
    }
    e
}

/// The bits of a block of 256: every 32 elements have a bit of their own in 32 bytes.
#[inline]
fn bits(h: &[u8; 32]) -> [u8; 256] {
    let mut e = [0; 256];
    for (k, e) in e.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for i in 0..32 {
            e[i] = h[i] >> k & 1;
        }
    }
    e
}

/// The low 4 bits of the 6-bit integers of a block of 256.
#[inline]
fn sixes(q: &[u8; 128]) -> [u8; 256] {
    let mut e = [0; 256];
    for (e, q) in e.as_chunks_mut::<128>().0.iter_mut().zip(q.as_chunks::<64>().0) {
        for i in 0..64 {
            (e[i], e[64 + i]) = (q[i] & 15, q[i] >> 4);
        }
    }
    e
}

/// The `N` bytes of a block from `at`.
#[inline]
fn part<const N: usize>(b: &[u8], at: usize) -> &[u8; N] {
    b[at..].first_chunk().expect("a part of a block")
}

/// Defines a function for blocks of `$block` bytes that make `$makes` bytes.
macro_rules! plane {
    ($(#[$doc:meta] $name:ident: $block:literal => $makes:literal, |$b:ident, $to:ident| $make:expr;)*) => {
        $(
            #[$doc]
            pub fn $name(from: &[u8], to: &mut [u8]) {
                each_block(from, to, |$b: &[u8; $block], $to: &mut [u8; $makes]| $make);
            }
        )*

        /// All of them, by their names.
        pub const ALL: &[Derivation] = &[
            $(Derivation { name: stringify!($name), block: $block, makes: $makes, make: $name }),*
        ];
    };
}

plane! {
    /// The elements of Q4_0, in 4 bits.
    q4_0_elements: 18 => 16, |b, to| pack_4(&halves(part(b, 2)), to);
    /// The scales of Q4_0 and of IQ4_NL, in f16.
    q4_0_scales: 18 => 2, |b, to| *to = *part(b, 0);
    /// The elements of Q4_1, in 4 bits.
    q4_1_elements: 20 => 16, |b, to| pack_4(&halves(part(b, 4)), to);
    /// The scales and minima of Q4_1, in f16.
    q4_1_scales: 20 => 4, |b, to| *to = *part(b, 0);
    /// The low 4 bits of the elements of Q5_0.
    q5_0_low: 22 => 16, |b, to| pack_4(&halves(part(b, 6)), to);
    /// The high bits of the elements of Q5_0, in 2 bits.
    q5_0_high: 22 => 8, |b, to| *to = spread(*part(b, 2));
    /// The scales of Q5_0, in f16.
    q5_0_scales: 22 => 2, |b, to| *to = *part(b, 0);
    /// The low 4 bits of the elements of Q5_1.
    q5_1_low: 24 => 16, |b, to| pack_4(&halves(part(b, 8)), to);
    /// The high bits of the elements of Q5_1, in 2 bits.
    q5_1_high: 24 => 8, |b, to| *to = spread(*part(b, 4));
    /// The scales and minima of Q5_1, in f16.
    q5_1_scales: 24 => 4, |b, to| *to = *part(b, 0);
    /// The elements of Q8_0, in 8 bits.
    q8_0_elements: 34 => 32, |b, to| *to = *part(b, 2);
    /// The scales of Q8_0, in f16.
    q8_0_scales: 34 => 2, |b, to| *to = *part(b, 0);
    /// The elements of Q2_K, in 2 bits.
    q2_k_elements: 84 => 64, |b, to| pack_2(&fours(part(b, 16)), to);
    /// The factors of scales and minima of Q2_K, in 4 bits.
    q2_k_factors: 84 => 16, |b, to| *to = *part(b, 0);
    /// The scales and minima of Q2_K, in f16.
    q2_k_scales: 84 => 4, |b, to| *to = *part(b, 80);
    /// The elements of Q3_K, in 4 bits.
    q3_k_elements: 110 => 128, |b, to| {
        let mut e = fours(part(b, 32));
        e.iter_mut().zip(bits(part(b, 0))).for_each(|(e, high)| *e |= high << 2);
        pack_4(&e, to);
    };
    /// The factors of Q3_K, in 8 bits.
    q3_k_factors: 110 => 16, |b, to| factors_of_three(part(b, 96), to);
    /// The scales of Q3_K, in f16.
    q3_k_scales: 110 => 2, |b, to| *to = *part(b, 108);
    /// The elements of Q4_K, in 4 bits.
    q4_k_elements: 144 => 128, |b, to| pack_4(&pairs(part(b, 16)), to);
    /// The factors of scales and minima of Q4_K, in 8 bits.
    q4_k_factors: 144 => 16, |b, to| factor_pairs(part(b, 4), to);
    /// The scales and minima of Q4_K, in f16.
    q4_k_scales: 144 => 4, |b, to| *to = *part(b, 0);
    /// The low 4 bits of the elements of Q5_K.
    q5_k_low: 176 => 128, |b, to| pack_4(&pairs(part(b, 48)), to);
    /// The high bits of the elements of Q5_K, in 2 bits.
    q5_k_high: 176 => 64, |b, to| pack_2(&bits(part(b, 16)), to);
    /// The factors of scales and minima of Q5_K, in 8 bits.
    q5_k_factors: 176 => 16, |b, to| factor_pairs(part(b, 4), to);
    /// The scales and minima of Q5_K, in f16.
    q5_k_scales: 176 => 4, |b, to| *to = *part(b, 0);
    /// The low 4 bits of the elements of Q6_K.
    q6_k_low: 210 => 128, |b, to| pack_4(&sixes(part(b, 0)), to);
    /// The high bits of the elements of Q6_K, in 2 bits.
    q6_k_high: 210 => 64, |b, to| pack_2(&fours(part(b, 128)), to);
    /// The factors of Q6_K, in 8 bits.
    q6_k_factors: 210 => 16, |b, to| *to = *part(b, 192);
    /// The scales of Q6_K, in f16.
    q6_k_scales: 210 => 2, |b, to| *to = *part(b, 208);
    /// The elements of IQ4_NL, in 8 bits.
    iq4_nl_elements: 18 => 32, |b, to| {
        for (to, e) in to.iter_mut().zip(halves(part(b, 2))) {
            *to = IQ4_NL[usize::from(e & 15)] as u8;
        }
    };
    /// The elements of MXFP4, in 4 bits.
    mxfp4_elements: 17 => 16, |b, to| pack_4(&halves(part(b, 1)), to);
    /// The scales of MXFP4, in 8 bits.
    mxfp4_scales: 17 => 1, |b, to| *to = *part(b, 0);
}

/// Writes the eight pairs of 6-bit factors of a scale and a minimum.
#[inline]
fn factor_pairs(s: &[u8; 12], to: &mut [u8; 16]) {
    for (j, pair) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        *pair = match j {
            0..4 => [s[j] & 63, s[4 + j] & 63],
            _ => [s[4 + j] & 15 | s[j - 4] >> 2 & 48, s[4 + j] >> 4 | s[j] >> 2 & 48],
        };
    }
}

/// Writes sixteen signed 6-bit factors.
#[inline]
fn factors_of_three(s: &[u8; 12], to: &mut [u8; 16]) {
    for (j, f) in to.iter_mut().enumerate() {
        let low = s[j % 8] >> (4 * (j / 8)) & 15;
        let high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
        *f = (low | high << 4).wrapping_sub(32);
    }
}

const IQ4_NL: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of bytes without a pattern.
    fn block<const N: usize>() -> [u8; N] {
        let mut state = 1u32;
        std::array::from_fn(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
    }

    /// The elements that a function packs with so many bits.
    fn elements(f: fn(&[u8], &mut [u8]), b: &[u8], bits: usize, n: usize) -> Vec<u8> {
        // Two blocks: the second has the same elements as the first.
        let mut out = vec![0; n * bits / 8 * 2];
        f(&[b, b].concat(), &mut out);
        let (first, second) = out.split_at(n * bits / 8);
        assert_eq!(first, second);
        (0..n).map(|i| (first[i * bits / 8] >> (i * bits % 8)) & ((1 << bits) as u8 - 1)).collect()
    }

    #[test]
    fn elements_are_where_the_layouts_say() {
        let b = block::<210>();
        let of = |n: usize, f: &dyn Fn(usize) -> u8| (0..n).map(f).collect::<Vec<u8>>();
        let half = |at: usize| move |i: usize| b[at + i % 16] >> (4 * (i / 16)) & 15;
        let pair = |at: usize| move |i: usize| b[at + i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15;
        let four = |at: usize| move |i: usize| b[at + i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3;
        let bit = |at: usize| move |i: usize| b[at + i / 8] >> (i % 8) & 1;
        let far_bit = |at: usize| move |i: usize| b[at + i % 32] >> (i / 32) & 1;
        let six = |i: usize| b[i / 128 * 64 + i / 32 % 2 * 32 + i % 32] >> (i / 64 % 2 * 4) & 15;
        assert_eq!(elements(q4_0_elements, &b[..18], 4, 32), of(32, &half(2)));
        assert_eq!(elements(q4_1_elements, &b[..20], 4, 32), of(32, &half(4)));
        assert_eq!(elements(q5_0_low, &b[..22], 4, 32), of(32, &half(6)));
        assert_eq!(elements(q5_0_high, &b[..22], 2, 32), of(32, &bit(2)));
        assert_eq!(elements(q5_1_low, &b[..24], 4, 32), of(32, &half(8)));
        assert_eq!(elements(q5_1_high, &b[..24], 2, 32), of(32, &bit(4)));
        assert_eq!(elements(mxfp4_elements, &b[..17], 4, 32), of(32, &half(1)));
        assert_eq!(elements(q2_k_elements, &b[..84], 2, 256), of(256, &four(16)));
        let three = |i: usize| four(32)(i) | far_bit(0)(i) << 2;
        assert_eq!(elements(q3_k_elements, &b[..110], 4, 256), of(256, &three));
        assert_eq!(elements(q4_k_elements, &b[..144], 4, 256), of(256, &pair(16)));
        assert_eq!(elements(q5_k_low, &b[..176], 4, 256), of(256, &pair(48)));
        assert_eq!(elements(q5_k_high, &b[..176], 2, 256), of(256, &far_bit(16)));
        assert_eq!(elements(q6_k_low, &b, 4, 256), of(256, &six));
        assert_eq!(elements(q6_k_high, &b, 2, 256), of(256, &four(128)));
    }
}
