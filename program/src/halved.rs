//! f32 tensors converted to f16 when their bytes are requested.

use crate::tensor::Data;
use crate::{DType, Tensor};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The number of elements that are converted at a time.
const BLOCK: usize = 4096;
/// The number of bytes that a thread reads at a time.
const PIECE: usize = 64 * 4 * BLOCK;

/// The elements of an f32 tensor, rounded to the nearest f16.
///
/// ```
/// use wgfc_program::{DType, Tensor, tensor::Data};
/// let half = Tensor::from_f32(vec![2], &[1.0, 0.1]).in_half();
/// assert_eq!((half.dtype, half.byte_len()), (DType::F16, Some(4)));
/// let Data::Halved(h) = &half.data else { panic!("an f32 tensor is halved on demand") };
/// assert_eq!(h.of().dtype, DType::F32);
/// assert_eq!(half.to_f32s(), Some(vec![1.0, 0.099975586]));
/// ```
pub struct Halved {
    of: Tensor,
    bytes: OnceLock<Option<Vec<u8>>>,
}

impl Halved {
    /// The tensor that is rounded.
    pub fn of(&self) -> &Tensor {
        &self.of
    }

    /// The number of bytes of the f16 elements.
    pub fn len(&self) -> usize {
        2 * self.of.numel()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `f` with consecutive pieces of a range of the bytes, which are not kept; `false` if the f32 elements cannot
    /// be read.
    pub(crate) fn read(&self, range: Range<usize>, f: &mut dyn FnMut(&[u8])) -> bool {
        let range = range.start..range.end.min(self.len());
        let (first, last) = (range.start / 2, range.end.div_ceil(2));
        let Some(from) = self.of.bytes().and_then(|b| b.get(4 * first..4 * last)) else { return false };
        let mut at = 2 * first;
        blocks(from, |_, halves| {
            let bytes: &[u8] = bytemuck::cast_slice(halves);
            let (begin, end) = (range.start.max(at), range.end.min(at + bytes.len()));
            f(&bytes[begin - at..end - at]);
            at += bytes.len();
        });
        true
    }

    /// The f16 elements, which are computed by the first call; `None` if the f32 elements cannot be read.
    pub fn bytes(&self) -> Option<&[u8]> {
        let halve = || {
            let mut out = Vec::with_capacity(self.len());
            self.read(0..self.len(), &mut |b| out.extend_from_slice(b)).then_some(out)
        };
        self.bytes.get_or_init(halve).as_deref()
    }
}

/// Empty if the bytes cannot be read.
impl AsRef<[u8]> for Halved {
    fn as_ref(&self) -> &[u8] {
        self.bytes().unwrap_or_default()
    }
}

/// Calls `f` with blocks of the f32 elements in `bytes`, original and rounded.
fn blocks(bytes: &[u8], mut f: impl FnMut(&[f32], &[f16])) {
    let (mut whole, mut halves) = ([0.0; BLOCK], [f16::ZERO; BLOCK]);
    for block in bytes.chunks(4 * BLOCK) {
        let n = block.len() / 4;
        for (to, from) in whole.iter_mut().zip(block.chunks_exact(4)) {
            *to = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
        }
        halves[..n].convert_from_f32_slice(&whole[..n]);
        f(&whole[..n], &halves[..n]);
    }
}

/// The loss from rounding an f32 tensor to f16.
///
/// ```
/// use wgfc_program::Tensor;
/// let loss = Tensor::from_f32(vec![3], &[1.0, 0.1, -2.0]).loss_in_half().unwrap();
/// assert!(loss.finite && loss.rounded && !loss.whole);
/// assert_eq!(loss.range, (-2.0, 1.0));
/// assert!(Tensor::from_f32(vec![1], &[1e6]).overflows_in_half());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The minimum and the maximum.
    pub range: (f64, f64),
    /// Whether all values are integers.
    pub whole: bool,
    /// Whether all values are finite and stay finite.
    pub finite: bool,
    /// Whether any value changes.
    pub rounded: bool,
    /// The norm of the error, relative to the norm of the values.
    pub relative: f64,
}

impl Tensor {
    /// The loss from rounding to f16; `None` if the type is not f32 or the values are unknown.
    pub fn loss_in_half(&self) -> Option<Loss> {
        if self.dtype != DType::F32 {
            return None;
        }
        let parts = self.scan(PIECE, |bytes| {
            let (mut low, mut high, mut whole, mut finite) = (f32::INFINITY, f32::NEG_INFINITY, true, true);
            let mut sums = Vec::with_capacity(bytes.len().div_ceil(4 * BLOCK));
            let mut back = [0.0f32; BLOCK];
            blocks(bytes, |values, halves| {
                let back = &mut back[..values.len()];
                halves.convert_to_f32_slice(back);
                let (mut e, mut n) = (0.0f32, 0.0f32);
                for (v, b) in values.iter().zip(back) {
                    low = low.min(*v);
                    high = high.max(*v);
                    whole &= v.fract() == 0.0;
                    finite &= b.is_finite();
                    let d = v - *b;
                    // Scaled so that the squares of the smallest relevant weights do not underflow.
                    let (d, v) = (d * 1e6, v * 1e6);
                    e += d * d;
                    n += v * v;
                }
                sums.push((f64::from(e), f64::from(n)));
            });
            (Loss { range: (low.into(), high.into()), whole, finite, rounded: false, relative: 0.0 }, sums)
        })?;
        let mut loss = Loss {
            range: (f64::INFINITY, f64::NEG_INFINITY),
            whole: true,
            finite: true,
            rounded: false,
            relative: 0.0,
        };
        let (mut error, mut norm) = (0.0f64, 0.0f64);
        for (part, sums) in parts {
            loss.range = (loss.range.0.min(part.range.0), loss.range.1.max(part.range.1));
            loss.whole &= part.whole;
            loss.finite &= part.finite;
            for (e, n) in sums {
                error += e;
                norm += n;
            }
        }
        loss.rounded = error != 0.0;
        loss.relative = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
        Some(loss)
    }

    /// Whether rounding to f16 turns a finite value into an infinity.
    pub fn overflows_in_half(&self) -> bool {
        let parts = self.scan(PIECE, |bytes| {
            let mut overflows = false;
            blocks(bytes, |values, halves| {
                overflows |= values.iter().zip(halves).any(|(v, h)| v.is_finite() && h.is_infinite());
            });
            overflows
        });
        parts.is_some_and(|p| p.contains(&true))
    }

    /// This tensor rounded to the nearest f16 when its bytes are requested. Tensors of other types are returned
    /// unchanged.
    ///
    /// ```
    /// use wgfc_program::{DType, Tensor};
    /// let half = Tensor::from_f32(vec![1], &[1.5]).in_half();
    /// assert_eq!((half.dtype, half.to_f32s()), (DType::F16, Some(vec![1.5])));
    /// ```
    pub fn in_half(&self) -> Tensor {
        if self.dtype != DType::F32 {
            return self.clone();
        }
        let data = match self.is_present() {
            true => Data::Halved(Arc::new(Halved { of: self.clone(), bytes: OnceLock::new() })),
            false => Data::Absent,
        };
        Tensor { dtype: DType::F16, shape: self.shape.clone(), data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_when_they_are_read() {
        let v: Vec<f32> = (0..9001).map(|i| i as f32 * 0.37 - 900.0).collect();
        let t = Tensor::from_f32(vec![9001], &v);
        let h = t.in_half();
        assert_eq!((h.dtype, h.byte_len()), (DType::F16, Some(18002)));
        let want: Vec<f32> = v.iter().map(|v| f16::from_f32(*v).to_f32()).collect();
        assert_eq!(h.to_f32s().unwrap(), want);
        assert_eq!(h.flat_slice(3, 2).to_f32s().unwrap(), want[3..5]);
        for range in [0..18002, 3..9000, 8191..8193, 18001..18002, 7..7] {
            let mut got = vec![];
            assert!(h.read(range.clone(), &mut |b| got.extend_from_slice(b)));
            assert_eq!(got, h.bytes().unwrap()[range]);
        }
        assert_eq!(h.pieces(2..6).flatten().copied().collect::<Vec<u8>>(), h.bytes().unwrap()[2..6]);
        assert!(h.shares_bytes(&t.in_half()) && !h.shares_bytes(&t) && h == t.in_half());
        assert!(!Tensor::absent(DType::F32, vec![3]).in_half().is_present());
        assert_eq!(Tensor::from_i64(vec![1], &[1]).in_half().dtype, DType::I64);
    }

    #[test]
    fn losses_of_many_elements_are_those_of_all_pieces() {
        let n = 3 * PIECE / 4 + 5;
        let mut v: Vec<f32> = (0..n).map(|i| (i * 7919 % 1001) as f32 * 0.37 - 100.0).collect();
        v[n - 1] = 1000.5;
        v[PIECE / 4 + 3] = -2000.0;
        let t = Tensor::from_f32(vec![n], &v);
        let loss = t.loss_in_half().unwrap();
        assert_eq!(
            (loss.range, loss.finite, loss.whole, loss.rounded),
            ((-2000.0, 1000.5), true, false, true)
        );
        let (mut error, mut norm) = (0.0, 0.0);
        for v in &v {
            let d = f64::from(v - f16::from_f32(*v).to_f32());
            error += d * d;
            norm += f64::from(*v) * f64::from(*v);
        }
        assert!((loss.relative - f64::sqrt(error / norm)).abs() < 1e-4 * loss.relative);
        assert!(!t.overflows_in_half());
        v[n - 2] = 7e4;
        let t = Tensor::from_f32(vec![n], &v);
        assert!(t.overflows_in_half() && !t.loss_in_half().unwrap().finite);
    }

    #[test]
    fn what_is_lost() {
        let loss = |v: &[f32]| Tensor::from_f32(vec![v.len()], v).loss_in_half().unwrap();
        let exact = loss(&[1.0, -2048.0, 0.0]);
        assert_eq!((exact.relative, exact.whole, exact.rounded, exact.finite), (0.0, true, false, true));
        assert_eq!(exact.range, (-2048.0, 1.0));
        let whole = loss(&[2049.0, 7.0]);
        assert!(whole.whole && whole.rounded && whole.relative < 1e-3);
        let usual = loss(&[0.1, 0.7, -0.3]);
        assert!(!usual.whole && usual.finite && usual.relative < 2f64.powi(-11));
        let overflows = |v: f32| Tensor::from_f32(vec![1], &[v]).overflows_in_half();
        assert!(overflows(-65520.0) && !overflows(65519.0) && !overflows(f32::INFINITY));
        assert!(!loss(&[1.0, 65520.0]).finite && !loss(&[f32::NEG_INFINITY]).finite);
        // Below the smallest normal numbers of f16 few significant bits remain.
        assert!(loss(&[1e-7, 3e-7]).relative > 1e-2 && loss(&[1e-9]).relative == 1.0);
        // Beside a value of usual magnitude such errors are negligible.
        assert!(loss(&[1e-9, 0.1]).relative < 2f64.powi(-11));
        assert_eq!(Tensor::zeros(DType::F16, vec![2]).loss_in_half(), None);
    }
}
