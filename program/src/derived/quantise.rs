//! Floats in blocks of 8-bit or 4-bit integers that share a scale in f16.
//!
//! Each element is rounded to the nearest multiple of the scale. For 8 bits the scale is the greatest magnitude over 127; for 4 bits
//! it is the value of greatest magnitude over -8, and integers are stored with 8 added. Loops have constant lengths and no calls, so
//! that compilers turn them into vector instructions.

use super::{Derivation, each_block};
use crate::DType;
use half::f16;

/// The number of elements that share a scale.
pub const BLOCK: usize = 32;
/// Added to a float of less than 2²², it rounds it to an integer, ties to even, and puts the integer into the low bits.
const ROUND: f32 = 12_582_912.0;

/// The results of `f` for the items. Compilers vectorise this loop, and not that of [`array::map`].
#[inline]
fn each<T, R: Copy + Default>(items: &[T], f: impl Fn(&T) -> R) -> [R; BLOCK] {
    let mut out = [R::default(); BLOCK];
    out.iter_mut().zip(items).for_each(|(out, item)| *out = f(item));
    out
}

/// The elements of a block of bytes.
trait Floats<const B: usize> {
    /// All elements.
    fn floats(bytes: &[u8; B]) -> [f32; BLOCK];
    /// The greatest magnitude, or, if it is `signed`, the first element that has it.
    fn extreme(bytes: &[u8; B], signed: bool) -> f32;
}

struct F32;
struct F16;
struct Bf16;

impl Floats<128> for F32 {
    #[inline]
    fn floats(bytes: &[u8; 128]) -> [f32; BLOCK] {
        each(bytes.as_chunks().0, |b| f32::from_le_bytes(*b))
    }
    #[inline]
    fn extreme(bytes: &[u8; 128], signed: bool) -> f32 {
        extreme(&F32::floats(bytes), signed)
    }
}

impl Floats<64> for F16 {
    #[inline]
    fn floats(bytes: &[u8; 64]) -> [f32; BLOCK] {
        each(bytes.as_chunks().0, |b| widened(u16::from_le_bytes(*b)))
    }
    #[inline]
    fn extreme(bytes: &[u8; 64], signed: bool) -> f32 {
        widened(extreme_bits(bytes, signed))
    }
}

impl Floats<64> for Bf16 {
    #[inline]
    fn floats(bytes: &[u8; 64]) -> [f32; BLOCK] {
        each(bytes.as_chunks().0, |b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16))
    }
    #[inline]
    fn extreme(bytes: &[u8; 64], signed: bool) -> f32 {
        f32::from_bits(u32::from(extreme_bits(bytes, signed)) << 16)
    }
}

/// The greatest magnitude of a block, or the first element that has it. Magnitudes are in the order of their bits.
#[inline]
fn extreme(block: &[f32; BLOCK], signed: bool) -> f32 {
    let most = f32::from_bits(block.iter().fold(0, |m: i32, v| m.max(v.abs().to_bits() as i32)) as u32);
    if !signed || most == 0.0 {
        return most;
    }
    block.iter().copied().find(|v| v.abs() == most).unwrap_or(most)
}

/// [`extreme`] of a block of floats of 16 bits, as bits.
#[inline]
fn extreme_bits(bytes: &[u8; 64], signed: bool) -> u16 {
    const MAGNITUDE: u16 = 0x7fff;
    let block = bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b));
    let most = block.clone().fold(0, |m: i16, v| m.max((v & MAGNITUDE) as i16)) as u16;
    if !signed || most == 0 {
        return most;
    }
    block.clone().find(|v| v & MAGNITUDE == most).unwrap_or(most)
}

/// The value of an f16, without branches.
#[inline]
fn widened(bits: u16) -> f32 {
    /// The difference of the exponents' biases.
    const BIAS: u32 = 112 << 23;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let normal = magnitude + BIAS;
    // A subnormal number is the difference of two normal ones.
    let subnormal = f32::from_bits(magnitude + BIAS + (1 << 23)) - f32::from_bits(BIAS + (1 << 23));
    let value = if magnitude < 1 << 23 { subnormal.to_bits() } else { normal };
    let value = if magnitude >= 0x1f << 23 { normal + BIAS } else { value };
    f32::from_bits(value | u32::from(bits & 0x8000) << 16)
}

/// The scale of a block with this [`extreme`], which is signed for 4 bits.
#[inline]
fn scale<const Q4: bool>(extreme: f32) -> f16 {
    f16::from_f32(if Q4 { extreme / -8.0 } else { extreme / 127.0 })
}

/// The nearest multiples of a scale, as floats to which [`ROUND`] has been added.
#[inline]
fn nearest<const Q4: bool>(block: &[f32; BLOCK], scale: f32) -> [f32; BLOCK] {
    if scale == 0.0 {
        return [ROUND; BLOCK];
    }
    let (low, high) = if Q4 { (-8.0, 7.0) } else { (-127.0, 127.0) };
    each(block, |v| {
        let v = *v / scale;
        let v = if v < low { low } else { v };
        let v = if v > high { high } else { v };
        v + ROUND
    })
}

/// Writes the integers of a block.
#[inline]
fn integers<const Q4: bool, const M: usize>(block: &[f32; BLOCK], scale: f16, to: &mut [u8; M]) {
    let near = nearest::<Q4>(block, scale.to_f32());
    if Q4 {
        let codes = each(&near, |v| (v.to_bits() + 8) as u8 & 15);
        for (t, c) in to.iter_mut().zip(codes.as_chunks::<2>().0) {
            let w = u16::from_le_bytes(*c);
            *t = (w | w >> 4) as u8;
        }
    } else {
        to.iter_mut().zip(near).for_each(|(t, v)| *t = v.to_bits() as u8);
    }
}

/// The error of quantising elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Error {
    /// The sum of the squares of the elements' errors.
    pub error: f64,
    /// The sum of the squares of the elements.
    pub norm: f64,
    /// Whether a scale or an element is not finite.
    pub infinite: bool,
}

impl Error {
    /// Adds the errors of a block.
    #[inline]
    fn add<const Q4: bool>(&mut self, block: &[f32; BLOCK], scale: f16) {
        let (by, mut errors, mut norms) = (scale.to_f32(), [0.0f64; 4], [0.0f64; 4]);
        let near = nearest::<Q4>(block, by);
        for (v, near) in block.as_chunks::<4>().0.iter().zip(near.as_chunks::<4>().0) {
            for i in 0..4 {
                let (error, v) = (f64::from(v[i] - (near[i] - ROUND) * by), f64::from(v[i]));
                errors[i] += error * error;
                norms[i] += v * v;
            }
        }
        let sum = |all: [f64; 4]| (all[0] + all[1]) + (all[2] + all[3]);
        self.error += sum(errors);
        self.norm += sum(norms);
        self.infinite |= !scale.is_finite() || !sum(norms).is_finite();
    }

    /// Adds the errors of other elements.
    pub fn and(self, o: Error) -> Error {
        Error { error: self.error + o.error, norm: self.norm + o.norm, infinite: self.infinite || o.infinite }
    }
}

#[inline]
fn measured<F: Floats<B>, const B: usize, const Q4: bool>(bytes: &[u8]) -> Error {
    let mut sum = Error::default();
    bytes
        .as_chunks::<B>()
        .0
        .iter()
        .for_each(|b| sum.add::<Q4>(&F::floats(b), scale::<Q4>(F::extreme(b, Q4))));
    sum
}

/// The error of quantising blocks of f32, f16 or bf16 to 4 bits (`q4`) or 8 bits.
///
/// ```
/// use wgfc_program::{DType, Tensor, derived::quantise};
/// let t = Tensor::from_f32(vec![32], &[1.0; 32]);
/// let e = quantise::error(DType::F32, true, t.bytes().unwrap());
/// assert_eq!((e.error, e.norm, e.infinite), (0.0, 32.0, false));
/// ```
pub fn error(dtype: DType, q4: bool, bytes: &[u8]) -> Error {
    match (dtype, q4) {
        (DType::F32, true) => measured::<F32, 128, true>(bytes),
        (DType::F32, false) => measured::<F32, 128, false>(bytes),
        (DType::BF16, true) => measured::<Bf16, 64, true>(bytes),
        (DType::BF16, false) => measured::<Bf16, 64, false>(bytes),
        (_, true) => measured::<F16, 64, true>(bytes),
        (_, false) => measured::<F16, 64, false>(bytes),
    }
}

/// A block that was quantised.
pub struct Quantised {
    /// The scale.
    pub scale: f16,
    /// The integers, a byte for each; those of 4 bits have 8 added.
    pub integers: [u8; BLOCK],
    /// The error.
    pub error: Error,
}

#[inline]
fn quantised<const Q4: bool>(block: &[f32; BLOCK]) -> Quantised {
    let mut error = Error::default();
    let scale = scale::<Q4>(extreme(block, Q4));
    error.add::<Q4>(block, scale);
    let near = nearest::<Q4>(block, scale.to_f32());
    let code = |v: u32| if Q4 { (v + 8) as u8 & 15 } else { v as u8 };
    let integers = each(&near, |v| code(v.to_bits()));
    Quantised { scale, integers, error }
}

/// Quantises a block of at most [`BLOCK`] elements. Integers beyond its length have no meaning.
pub fn block(q4: bool, elements: &[f32]) -> Quantised {
    let mut block = [0.0; BLOCK];
    block.iter_mut().zip(elements).for_each(|(b, v)| *b = *v);
    if q4 { quantised::<true>(&block) } else { quantised::<false>(&block) }
}

/// Quantises the columns of a matrix of [`BLOCK`] rows of f32, f16 or bf16, each of which is a block.
///
/// ```
/// use wgfc_program::{DType, Tensor, derived::quantise};
/// let t = Tensor::from_f32(vec![32, 2], &[1.0, -2.0].repeat(32));
/// let columns = quantise::columns(DType::F32, false, t.bytes().unwrap());
/// assert_eq!((columns[0].integers[5], columns[1].integers[9] as i8), (127, -127));
/// ```
pub fn columns(dtype: DType, q4: bool, bytes: &[u8]) -> Vec<Quantised> {
    let one = if q4 { quantised::<true> } else { quantised::<false> };
    match dtype {
        DType::F32 => columns_of(bytes.as_chunks().0, f32::from_le_bytes, one),
        DType::BF16 => {
            let value = |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16);
            columns_of(bytes.as_chunks().0, value, one)
        }
        _ => columns_of(bytes.as_chunks().0, |b| widened(u16::from_le_bytes(b)), one),
    }
}

#[inline]
fn columns_of<const W: usize>(
    elements: &[[u8; W]],
    value: impl Fn([u8; W]) -> f32,
    quantise: impl Fn(&[f32; BLOCK]) -> Quantised,
) -> Vec<Quantised> {
    let n = elements.len() / BLOCK;
    let mut out = Vec::with_capacity(n);
    // Squares are read by rows, in which elements are side by side, and transposed near the core.
    for first in (0..n).step_by(BLOCK) {
        let width = BLOCK.min(n - first);
        let mut square = [[0.0; BLOCK]; BLOCK];
        for (r, to) in square.iter_mut().enumerate() {
            let from = &elements[r * n + first..][..width];
            to.iter_mut().zip(from).for_each(|(to, e)| *to = value(*e));
        }
        out.extend((0..width).map(|c| quantise(&each(&square, |row| row[c]))));
    }
    out
}

#[inline]
fn elements<F: Floats<B>, const B: usize, const Q4: bool, const M: usize>(from: &[u8], to: &mut [u8]) {
    each_block(from, to, |b: &[u8; B], to: &mut [u8; M]| {
        integers::<Q4, M>(&F::floats(b), scale::<Q4>(F::extreme(b, Q4)), to);
    });
}

#[inline]
fn scales<F: Floats<B>, const B: usize, const Q4: bool>(from: &[u8], to: &mut [u8]) {
    each_block(from, to, |b: &[u8; B], to: &mut [u8; 2]| {
        *to = scale::<Q4>(F::extreme(b, Q4)).to_le_bytes();
    });
}

/// The derivations of integers and scales from blocks of [`BLOCK`] elements, in 4 bits (`q4`) or 8 bits; `None` for types other than
/// f32, f16 and bf16.
pub fn derivations(dtype: DType, q4: bool) -> Option<[Derivation; 2]> {
    macro_rules! pair {
        ($name:literal, $floats:ident, $block:literal, $q4:literal, $makes:literal) => {
            [
                Derivation {
                    name: concat!($name, " elements"),
                    block: $block,
                    makes: $makes,
                    make: elements::<$floats, $block, $q4, $makes>,
                },
                Derivation {
                    name: concat!($name, " scales"),
                    block: $block,
                    makes: 2,
                    make: scales::<$floats, $block, $q4>,
                },
            ]
        };
    }
    Some(match (dtype, q4) {
        (DType::F32, true) => pair!("f32 in 4 bits", F32, 128, true, 16),
        (DType::F16, true) => pair!("f16 in 4 bits", F16, 64, true, 16),
        (DType::BF16, true) => pair!("bf16 in 4 bits", Bf16, 64, true, 16),
        (DType::F32, false) => pair!("f32 in 8 bits", F32, 128, false, 32),
        (DType::F16, false) => pair!("f16 in 8 bits", F16, 64, false, 32),
        (DType::BF16, false) => pair!("bf16 in 8 bits", Bf16, 64, false, 32),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_f16_are_widened_to_their_values() {
        for bits in 0..=u16::MAX {
            let (want, got) = (f16::from_bits(bits).to_f32(), widened(bits));
            assert!(want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn integers_are_the_nearest() {
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        for round in 0..200 {
            let by = 2f32.powi(round / 8 - 14);
            let mut block: [f32; BLOCK] = std::array::from_fn(|_| random() * by);
            match round % 8 {
                0 => block = [0.0; BLOCK],
                // Ties, of both signs and between integers.
                1 => block = std::array::from_fn(|i| by * (i as f32 - 16.0) / 2.0),
                2 => (block[3], block[9]) = (-by, by),
                _ => (),
            }
            for q4 in [true, false] {
                let extreme = block.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
                let scale = f16::from_f32(if q4 { extreme / -8.0 } else { extreme.abs() / 127.0 });
                let s = scale.to_f32();
                let steps = block.map(|v| if s == 0.0 { 0.0 } else { (v / s).round_ties_even() });
                let steps = steps.map(|v| if q4 { v.clamp(-8.0, 7.0) } else { v.clamp(-127.0, 127.0) });
                let codes = steps.map(|v| if q4 { (v + 8.0) as u8 } else { v as i8 as u8 });
                let Quantised { scale: got, integers, error } = super::block(q4, &block);
                assert_eq!((got.to_bits(), integers), (scale.to_bits(), codes), "{block:?}");
                let square = |v: f32| f64::from(v) * f64::from(v);
                let want: f64 = block.iter().zip(steps).map(|(v, n)| square(v - n * s)).sum();
                assert!((error.error - want).abs() <= 1e-12 * want, "{block:?}");
                // The derivations make the same.
                let bytes: Vec<u8> = block.iter().flat_map(|v| v.to_le_bytes()).collect();
                let [elements, scales] = derivations(DType::F32, q4).unwrap();
                let (mut to, mut two) = (vec![0; elements.makes], vec![0; 2]);
                (elements.make)(&bytes, &mut to);
                (scales.make)(&bytes, &mut two);
                let packed: Vec<u8> = match q4 {
                    true => codes.chunks(2).map(|c| c[0] | c[1] << 4).collect(),
                    false => codes.to_vec(),
                };
                assert_eq!((to, two), (packed, scale.to_le_bytes().to_vec()));
            }
        }
    }

    #[test]
    fn infinite_elements_are_told() {
        for v in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9] {
            assert!([true, false].iter().all(|q4| block(*q4, &[1.0, v]).error.infinite), "{v}");
        }
    }
}
