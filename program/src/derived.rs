//! Tensors whose bytes are computed from those of another tensor when they are read.
//!
//! Computing takes as long as copying only if it is compiled for speed, so the computations are here, in a crate that the profile
//! `release` optimises fully: [`planes`] of blocks of GGUF files, and [`quantise`].

pub mod planes;
pub mod quantise;

use crate::tensor::Data;
use crate::{DType, Tensor};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The number of bytes that are computed at a time.
const STEP: usize = 1 << 16;

/// A computation of bytes from blocks of bytes: each block of the source makes as many bytes.
///
/// Two derivations of one name make the same bytes of the same source.
#[derive(Clone, Copy, Debug)]
pub struct Derivation {
    /// Its unique name.
    pub name: &'static str,
    /// The number of bytes of a block of the source.
    pub block: usize,
    /// The number of bytes that a block makes, at most [`Derivation::MOST`].
    pub makes: usize,
    /// Writes the bytes that consecutive blocks make. For some n the slices have n · `block` and n · `makes` bytes.
    pub make: fn(&[u8], &mut [u8]),
}

/// Calls `make` for each block of `B` bytes with the `M` bytes that it makes.
#[inline]
fn each_block<const B: usize, const M: usize>(
    from: &[u8],
    to: &mut [u8],
    make: impl Fn(&[u8; B], &mut [u8; M]),
) {
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        make(from, to);
    }
}

impl Derivation {
    /// The most bytes that a block may make.
    pub const MOST: usize = 1024;

    /// The derivation of this name, of blocks of GGUF files or of floats that are quantised.
    ///
    /// ```
    /// use wgfc_program::derived::Derivation;
    /// let scales = Derivation::named("q8_0_scales").unwrap();
    /// assert_eq!((scales.block, scales.makes), (34, 2));
    /// assert!(Derivation::named("no such").is_none());
    /// ```
    pub fn named(name: &str) -> Option<Derivation> {
        let quantised = [DType::F32, DType::F16, DType::BF16].into_iter();
        let quantised = quantised.flat_map(|d| [true, false].map(|q4| quantise::derivations(d, q4)));
        planes::ALL.iter().copied().chain(quantised.flatten().flatten()).find(|d| d.name == name)
    }
}

/// The bytes that a derivation makes of a tensor.
///
/// ```
/// use wgfc_program::derived::Derivation;
/// use wgfc_program::{DType, Tensor};
/// // The low halves of bytes, two to a byte.
/// let low = Derivation {
///     name: "low halves",
///     block: 2,
///     makes: 1,
///     make: |from, to| {
///         for (from, to) in from.chunks_exact(2).zip(to) {
///             *to = from[0] & 15 | from[1] << 4;
///         }
///     },
/// };
/// let bytes = Tensor::new(DType::U8, vec![4], vec![0x12, 0x34, 0x56, 0x78])?;
/// let t = Tensor::derived(&bytes, low, DType::U4, vec![4])?;
/// assert_eq!(t.to_i64s(), Some(vec![2, 4, 6, 8]));
/// # Ok::<(), String>(())
/// ```
pub struct Derived {
    of: Tensor,
    how: Derivation,
    bytes: OnceLock<Option<Vec<u8>>>,
}

impl Derived {
    /// The source.
    pub fn of(&self) -> &Tensor {
        &self.of
    }

    /// How the bytes are made.
    pub fn how(&self) -> Derivation {
        self.how
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.of.byte_len().unwrap_or(0) / self.how.block * self.how.makes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes, which the first call computes and keeps; `None` if the source cannot be read.
    pub fn bytes(&self) -> Option<&[u8]> {
        let make = || {
            let mut out = Vec::with_capacity(self.len());
            self.read(0..self.len(), &mut |b| out.extend_from_slice(b)).then_some(out)
        };
        self.bytes.get_or_init(make).as_deref()
    }

    /// Calls `f` with consecutive pieces of a range of the bytes, which are not kept. `false` if the source cannot be
    /// read.
    pub(crate) fn read(&self, range: Range<usize>, f: &mut dyn FnMut(&[u8])) -> bool {
        let Derivation { block, makes, make, .. } = self.how;
        let Some(from) = self.of.bytes() else { return false };
        let range = range.start..range.end.min(self.len());
        // Short ranges, such as rows of joined tensors, need room for a few blocks alone.
        let room = STEP.min(range.len().saturating_add(2 * makes));
        let mut made = vec![0u8; room / makes * makes];
        let mut first = range.start / makes;
        while first * makes < range.end {
            let last = (first + made.len() / makes).min(range.end.div_ceil(makes));
            make(&from[first * block..last * block], &mut made[..(last - first) * makes]);
            let (begin, end) = (range.start.max(first * makes), range.end.min(last * makes));
            f(&made[begin - first * makes..end - first * makes]);
            first = last;
        }
        true
    }

    /// The range of the source's bytes of which a range of the bytes is made.
    pub(crate) fn source(&self, range: Range<usize>) -> Range<usize> {
        let Derivation { block, makes, .. } = self.how;
        range.start / makes * block..range.end.div_ceil(makes) * block
    }

    /// A range of the bytes that whole blocks make, derived from these alone; `None` if a block makes bytes beyond it.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<Derived> {
        let Derivation { block, makes, .. } = self.how;
        let whole =
            |at: usize| at.is_multiple_of(makes).then_some(at / makes * block * 8 / self.of.dtype.bits());
        let (first, last) = (whole(range.start)?, whole(range.end)?);
        let of = self.of.flat_slice(first, last - first);
        Some(Derived { of, how: self.how, bytes: OnceLock::new() })
    }

    /// Whether both make the same bytes of the same memory.
    pub(crate) fn is_same(&self, o: &Derived) -> bool {
        self.how.name == o.how.name && self.of.shares_bytes(&o.of)
    }
}

/// Empty if the source cannot be read.
impl AsRef<[u8]> for Derived {
    fn as_ref(&self) -> &[u8] {
        self.bytes().unwrap_or_default()
    }
}

impl Tensor {
    /// A tensor whose packed bytes `how` makes of this one when they are read; absent if this one is.
    ///
    /// # Errors
    /// If this tensor is not whole blocks, or they do not make the bytes that type and shape need.
    pub fn derived(&self, how: Derivation, dtype: DType, shape: Vec<usize>) -> Result<Tensor, String> {
        let need = crate::tensor::checked_numel(&shape).map(|n| dtype.bytes_for(n));
        let source = self.dtype.bytes_for(self.numel());
        let whole = how.block > 0 && (1..=Derivation::MOST).contains(&how.makes);
        let made = (whole && source.is_multiple_of(how.block)).then(|| source / how.block * how.makes);
        if made.is_none() || made != need {
            return Err(format!("{}: {source} bytes do not make {dtype}{shape:?}", how.name));
        }
        let data = match self.is_present() {
            true => Data::Derived(Arc::new(Derived { of: self.clone(), how, bytes: OnceLock::new() })),
            false => Data::Absent,
        };
        Ok(Tensor { dtype, shape, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIPLE: Derivation = Derivation {
        name: "triple",
        block: 2,
        makes: 3,
        make: |from, to| each_block(from, to, |b: &[u8; 2], to| *to = [b[0], b[1], b[0] ^ b[1]]),
    };

    #[test]
    fn bytes_are_computed_when_they_are_read() {
        let n = 50_000;
        let bytes: Vec<u8> = (0..2 * n).map(|i| (i * 7 + i / 256) as u8).collect();
        let source = Tensor::new(DType::U8, vec![2 * n], bytes.clone()).unwrap();
        let t = source.derived(TRIPLE, DType::U8, vec![n, 3]).unwrap();
        let want: Vec<u8> = bytes.chunks(2).flat_map(|b| [b[0], b[1], b[0] ^ b[1]]).collect();
        for range in [0..3 * n, 1..2, 4..65_541, 65_533..131_080, 3 * n - 1..3 * n, 5..5] {
            let mut got = vec![];
            assert!(t.read(range.clone(), &mut |b| got.extend_from_slice(b)));
            assert_eq!(got, want[range]);
        }
        assert_eq!((t.byte_len(), t.bytes()), (Some(3 * n), Some(&want[..])));
        assert_eq!(t.flat_slice(7, 3).bytes(), Some(&want[7..10]));
        let again = source.derived(TRIPLE, DType::U8, vec![n, 3]).unwrap();
        let other = source.derived(Derivation { name: "other", ..TRIPLE }, DType::U8, vec![n, 3]).unwrap();
        assert!(t.shares_bytes(&again) && !t.shares_bytes(&other) && !t.shares_bytes(&source));
        // Slices at the edges of blocks are derived, too, and equal only to slices of the same place.
        let [a, b, c] = [(30, 60), (30, 60), (60, 60)].map(|(at, n)| t.flat_slice(at, n));
        assert!(a.is_derived() && a.shares_bytes(&b) && a == b && a != c);
        assert_eq!(a.bytes(), Some(&want[30..90]));
        assert!(!t.flat_slice(31, 60).is_derived());
        let joined = Tensor::joined(&[&t, &t], 0).unwrap();
        let mut both = vec![];
        assert!(joined.read(3 * n - 2..3 * n + 2, &mut |b| both.extend_from_slice(b)));
        assert_eq!(both, [&want[3 * n - 2..], &want[..2]].concat());
    }

    #[test]
    fn sizes_that_do_not_match_are_errors() {
        let of = |n: usize| Tensor::zeros(DType::U8, vec![n]);
        assert!(of(3).derived(TRIPLE, DType::U8, vec![3]).is_err());
        assert!(of(4).derived(TRIPLE, DType::U8, vec![5]).is_err());
        assert!(of(4).derived(Derivation { block: 0, ..TRIPLE }, DType::U8, vec![6]).is_err());
        assert!(of(4).derived(TRIPLE, DType::U8, vec![usize::MAX, 9]).is_err());
        let absent = Tensor::absent(DType::U8, vec![4]).derived(TRIPLE, DType::U8, vec![6]).unwrap();
        assert!(!absent.is_present());
    }
}
