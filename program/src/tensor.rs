//! Tensors in host memory.

use crate::derived::{Derivation, Derived};
use crate::dtype::{Class, DType};
use crate::halved::Halved;
use crate::joined::Joined;
use crate::mapped::Mapped;
use crate::remote::{Remote, Stretch};
use crate::scalar::Scalar;
use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

/// Memory that another object owns and keeps alive, such as a memory-mapped file.
///
/// ```
/// use std::sync::Arc;
/// use wgfc_program::tensor::ByteOwner;
/// // Everything that gives bytes and can go to another thread is one.
/// let owner: Arc<dyn ByteOwner> = Arc::new(vec![1_u8, 2]);
/// assert_eq!((*owner).as_ref(), [1, 2]);
/// ```
pub trait ByteOwner: AsRef<[u8]> + Any + Send + Sync {}
impl<T: AsRef<[u8]> + Any + Send + Sync> ByteOwner for T {}

/// The bytes of a [`Tensor`].
///
/// ```
/// use wgfc_program::{DType, Tensor, tensor::Data};
/// let weight = Tensor::absent(DType::F32, vec![1000, 1000]);
/// assert!(matches!(weight.data, Data::Absent) && weight.bytes().is_none());
/// ```
#[derive(Clone)]
pub enum Data {
    /// Shared bytes: `len` of them from `offset`.
    Bytes {
        /// The owner of the memory.
        owner: Arc<dyn ByteOwner>,
        /// The first byte of the tensor in the owner's bytes.
        offset: usize,
        /// Number of bytes.
        len: usize,
    },
    /// Other tensors, concatenated along an axis when they are read.
    Joined(Arc<Joined>),
    /// Bytes of a file that are read on demand: `len` bytes of a stretch from `offset`.
    Remote {
        /// The stretch.
        stretch: Arc<Remote>,
        /// The offset of the tensor's first byte in the stretch.
        offset: usize,
        /// Number of bytes.
        len: usize,
    },
    /// An f32 tensor, rounded to f16 on demand.
    Halved(Arc<Halved>),
    /// Bytes that are computed from another tensor on demand.
    Derived(Arc<Derived>),
    /// Absent, because the model was read without its weights. Such a program can be planned and inspected, but not
    /// run.
    Absent,
}

/// A dense, row-major, little-endian tensor of constant shape; bool is one byte each, 4-bit types two to a byte.
///
/// ```
/// use wgfc_program::{DType, Tensor};
/// let t = Tensor::from_f32(vec![2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// assert_eq!((t.dtype, t.numel(), t.byte_len()), (DType::F32, 6, Some(24)));
/// assert_eq!(t.reshaped(vec![3, 2]).to_f32s(), t.to_f32s());
/// assert_eq!(t.element(4).map(|s| s.as_f64()), Some(5.0));
/// let halves = Tensor::new(DType::F16, vec![2], vec![0x00, 0x3c, 0x00, 0xc0])?;
/// assert_eq!(halves.to_f32s(), Some(vec![1.0, -2.0]));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The packed elements.
    pub data: Data,
}

impl Tensor {
    /// A tensor of packed bytes; fails if their number is not the one that shape and type need.
    ///
    /// ```
    /// use wgfc_program::{DType, Tensor};
    /// let mask = Tensor::new(DType::Bool, vec![3], vec![1, 0, 1])?;
    /// assert_eq!(mask.to_i64s(), Some(vec![1, 0, 1]));
    /// assert!(Tensor::new(DType::F32, vec![3], vec![0; 8]).is_err());
    /// # Ok::<(), String>(())
    /// ```
    pub fn new(dtype: DType, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Tensor, String> {
        let len = bytes.len();
        Tensor::shared(dtype, shape, Arc::new(bytes), 0, len)
    }
    /// A tensor over a range of shared bytes; fails like [`Tensor::new`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use wgfc_program::{DType, Tensor};
    /// // Two tensors in one file that is in memory.
    /// let file = Arc::new(vec![1_u8, 2, 3, 4, 5]);
    /// let a = Tensor::shared(DType::U8, vec![2], file.clone(), 0, 2)?;
    /// let b = Tensor::shared(DType::U8, vec![3], file, 2, 3)?;
    /// assert_eq!((a.to_i64s(), b.to_i64s()), (Some(vec![1, 2]), Some(vec![3, 4, 5])));
    /// # Ok::<(), String>(())
    /// ```
    pub fn shared(
        dtype: DType,
        shape: Vec<usize>,
        owner: Arc<dyn ByteOwner>,
        offset: usize,
        len: usize,
    ) -> Result<Tensor, String> {
        let n = checked_numel(&shape).ok_or_else(|| format!("shape {shape:?} overflows"))?;
        let need = dtype.bytes_for(n);
        if len != need {
            return Err(format!("{dtype}{shape:?} needs {need} bytes, got {len}"));
        }
        if offset.checked_add(len).is_none_or(|end| end > (*owner).as_ref().len()) {
            return Err(format!(
                "bytes {offset}+{len} are outside the data ({} bytes)",
                (*owner).as_ref().len()
            ));
        }
        Ok(Tensor { dtype, shape, data: Data::Bytes { owner, offset, len } })
    }
    /// A tensor whose bytes are read on demand; fails like [`Tensor::new`].
    pub fn remote(dtype: DType, shape: Vec<usize>, stretch: Arc<Remote>) -> Result<Tensor, String> {
        let n = checked_numel(&shape).ok_or_else(|| format!("shape {shape:?} overflows"))?;
        let (need, len) = (dtype.bytes_for(n), stretch.len());
        if len != need {
            return Err(format!("{dtype}{shape:?} needs {need} bytes, got {len}"));
        }
        Ok(Tensor { dtype, shape, data: Data::Remote { stretch, offset: 0, len } })
    }
    /// A tensor with unknown values.
    pub fn absent(dtype: DType, shape: Vec<usize>) -> Tensor {
        Tensor { dtype, shape, data: Data::Absent }
    }
    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: Vec<usize>) -> Tensor {
        let len = dtype.bytes_for(shape.iter().product());
        Tensor { dtype, shape, data: Data::Bytes { owner: Arc::new(vec![0u8; len]), offset: 0, len } }
    }
    /// A rank-0 tensor.
    pub fn scalar(s: Scalar) -> Tensor {
        Tensor::from_scalars(s.dtype, vec![], &[s])
    }
    /// An f32 tensor. `v.len()` must be the number of elements.
    ///
    /// ```
    /// use wgfc_program::Tensor;
    /// let x = Tensor::from_f32(vec![2, 2], &[1.0, 2.0, 3.0, 4.0]);
    /// assert_eq!(x.numel(), 4);
    /// ```
    pub fn from_f32(shape: Vec<usize>, v: &[f32]) -> Tensor {
        assert_eq!(v.len(), shape.iter().product::<usize>(), "{shape:?}");
        let bytes: Vec<u8> = bytemuck::cast_slice(v).to_vec();
        let len = bytes.len();
        Tensor { dtype: DType::F32, shape, data: Data::Bytes { owner: Arc::new(bytes), offset: 0, len } }
    }
    /// An i64 tensor. `v.len()` must be the number of elements.
    ///
    /// ```
    /// use wgfc_program::Tensor;
    /// let ids = Tensor::from_i64(vec![1, 3], &[3, 1, 36]);
    /// assert_eq!(ids.to_i64s(), Some(vec![3, 1, 36]));
    /// ```
    pub fn from_i64(shape: Vec<usize>, v: &[i64]) -> Tensor {
        assert_eq!(v.len(), shape.iter().product::<usize>(), "{shape:?}");
        let bytes: Vec<u8> = bytemuck::cast_slice(v).to_vec();
        let len = bytes.len();
        Tensor { dtype: DType::I64, shape, data: Data::Bytes { owner: Arc::new(bytes), offset: 0, len } }
    }
    /// A tensor of scalars, which are narrowed to `dtype`. `v.len()` must be the number of elements.
    ///
    /// ```
    /// use wgfc_program::{DType, Scalar, Tensor};
    /// let v = [1.0, 2.5].map(|x| Scalar::from_f64(DType::F32, x));
    /// let t = Tensor::from_scalars(DType::BF16, vec![2], &v);
    /// assert_eq!((t.byte_len(), t.to_f32s()), (Some(4), Some(vec![1.0, 2.5])));
    /// ```
    pub fn from_scalars(dtype: DType, shape: Vec<usize>, v: &[Scalar]) -> Tensor {
        assert_eq!(v.len(), shape.iter().product::<usize>(), "{shape:?}");
        let bytes = crate::storage::encode(dtype, v.iter().copied());
        let len = bytes.len();
        Tensor { dtype, shape, data: Data::Bytes { owner: Arc::new(bytes), offset: 0, len } }
    }

    /// A tensor whose elements `f` computes from their flat index, narrowed to `dtype`.
    ///
    /// ```
    /// use wgfc_program::{DType, Scalar, Tensor};
    /// let squares = |i: usize| Scalar::from_i64(DType::I64, (i * i) as i64);
    /// assert_eq!(Tensor::generate(DType::I64, vec![4], squares).to_i64s(), Some(vec![0, 1, 4, 9]));
    /// ```
    pub fn generate(dtype: DType, shape: Vec<usize>, mut f: impl FnMut(usize) -> Scalar) -> Tensor {
        let bytes = crate::storage::encode(dtype, (0..shape.iter().product()).map(&mut f));
        let len = bytes.len();
        Tensor { dtype, shape, data: Data::Bytes { owner: Arc::new(bytes), offset: 0, len } }
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
    /// The packed bytes; `None` if absent.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.data {
            Data::Bytes { owner, offset, len } => (**owner).as_ref().get(*offset..*offset + *len),
            Data::Joined(j) => Some((**j).as_ref()).filter(|b| b.len() == j.len()),
            Data::Remote { stretch, offset, len } => stretch.bytes()?.get(*offset..*offset + *len),
            Data::Halved(h) => h.bytes(),
            Data::Derived(d) => d.bytes(),
            Data::Absent => None,
        }
    }
    /// The number of packed bytes; `None` if absent. Copies nothing.
    pub fn byte_len(&self) -> Option<usize> {
        match &self.data {
            Data::Bytes { len, .. } | Data::Remote { len, .. } => Some(*len),
            Data::Joined(j) => Some(j.len()),
            Data::Halved(h) => Some(h.len()),
            Data::Derived(d) => Some(d.len()),
            Data::Absent => None,
        }
    }
    /// A range of the packed bytes as consecutive pieces; none if absent. Copies nothing.
    ///
    /// ```
    /// use wgfc_program::Tensor;
    /// let t = Tensor::from_f32(vec![2], &[1.0, 2.0]);
    /// // Written somewhere without being copied.
    /// let bytes: usize = t.pieces(0..8).map(<[u8]>::len).sum();
    /// assert_eq!(bytes, 8);
    /// ```
    pub fn pieces(&self, range: Range<usize>) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        match &self.data {
            Data::Joined(j) => Box::new(j.pieces(range)),
            _ => Box::new(self.bytes().and_then(|b| b.get(range)).into_iter()),
        }
    }
    /// Calls `f` with consecutive pieces of a range of the packed bytes. Bytes that are computed on demand are not kept.
    /// `false` if some cannot be read; `f` may have been called before.
    ///
    /// ```
    /// use wgfc_program::Tensor;
    /// let half = Tensor::from_f32(vec![2], &[1.0, 2.0]).in_half();
    /// let mut bytes = vec![];
    /// assert!(half.read(0..4, &mut |piece| bytes.extend_from_slice(piece)));
    /// assert_eq!(bytes, [0x00, 0x3c, 0x00, 0x40]);
    /// ```
    pub fn read(&self, range: Range<usize>, f: &mut dyn FnMut(&[u8])) -> bool {
        match &self.data {
            Data::Joined(j) => j.read(range, f),
            Data::Derived(d) => d.read(range, f),
            Data::Halved(h) => h.read(range, f),
            _ => match self.bytes().and_then(|b| b.get(range)) {
                Some(b) => {
                    f(b);
                    true
                }
                None => false,
            },
        }
    }
    /// Says that a range of the packed bytes will not be read soon: pages of [mapped files](Mapped) are given back to the system,
    /// which reads them again if they are needed.
    pub fn release(&self, range: Range<usize>) {
        match &self.data {
            Data::Bytes { owner, offset, len } => {
                if let Some(m) = (&**owner as &dyn Any).downcast_ref::<Mapped>() {
                    m.release(offset + range.start..offset + range.end.min(*len));
                }
            }
            Data::Joined(j) => j.release(range),
            Data::Halved(h) => h.of().release(2 * range.start..2 * range.end),
            Data::Derived(d) => d.of().release(d.source(range)),
            Data::Remote { .. } | Data::Absent => {}
        }
    }
    /// The address of the byte of a file or of memory from which the first byte comes; 0 if there is none. Reading tensors in the
    /// order of their places reads files from the beginning to the end.
    pub fn place(&self) -> usize {
        match &self.data {
            Data::Bytes { owner, offset, .. } => (**owner).as_ref().as_ptr().addr().saturating_add(*offset),
            Data::Joined(j) => j.place(),
            Data::Halved(h) => h.of().place(),
            Data::Derived(d) => d.of().place(),
            Data::Remote { .. } | Data::Absent => 0,
        }
    }
    /// The results of `f` for consecutive pieces of `step` bytes of all packed bytes, in order; the last may be shorter. All cores take
    /// part, and nothing that was read stays in memory. `None` if the bytes cannot be read.
    ///
    /// ```
    /// use wgfc_program::Tensor;
    /// let t = Tensor::from_f32(vec![3], &[1.0, 2.0, 3.0]);
    /// assert_eq!(t.scan(8, |piece| piece.len()), Some(vec![8, 4]));
    /// ```
    pub fn scan<T: Send>(&self, step: usize, f: impl Fn(&[u8]) -> T + Sync) -> Option<Vec<T>> {
        let (len, step) = (self.byte_len()?, step.max(1));
        let one = |i: usize| {
            let range = i * step..len.min((i + 1) * step);
            let result = match &self.data {
                Data::Joined(_) | Data::Derived(_) | Data::Halved(_) => {
                    let mut piece = Vec::with_capacity(range.len());
                    let read = self.read(range.clone(), &mut |b| piece.extend_from_slice(b));
                    read.then(|| f(&piece))
                }
                _ => self.bytes().and_then(|b| b.get(range.clone())).map(&f),
            };
            self.release(range);
            result
        };
        crate::parallel::each(len.div_ceil(step), len, one).into_iter().collect()
    }
    /// The locations of a range of the packed bytes, in order; none if absent. Reads nothing.
    pub fn stretches(&self, range: Range<usize>) -> Box<dyn Iterator<Item = Stretch<'_>> + '_> {
        match &self.data {
            Data::Joined(j) => Box::new(j.stretches(range)),
            Data::Remote { stretch, offset, len } => {
                let (from, to) = (range.start.min(*len), range.end.min(*len));
                let (file, first) = (stretch.file(), stretch.offset() + (offset + from) as u64);
                let there = Stretch::There { file, offset: first, len: to.saturating_sub(from) };
                Box::new(Some(there).filter(|s| !s.is_empty()).into_iter())
            }
            _ => Box::new(self.pieces(range).map(Stretch::Here)),
        }
    }
    /// Whether some of the bytes would have to be read from a file.
    pub fn is_remote(&self) -> bool {
        match &self.data {
            Data::Remote { .. } => true,
            Data::Joined(j) => j.is_remote(),
            Data::Halved(h) => h.of().is_remote(),
            Data::Derived(d) => d.of().is_remote(),
            _ => false,
        }
    }
    /// Whether some of the bytes are computed from those of another tensor, other than by rounding.
    pub fn is_derived(&self) -> bool {
        match &self.data {
            Data::Derived(_) => true,
            Data::Joined(j) => j.is_derived(),
            Data::Halved(h) => h.of().is_derived(),
            _ => false,
        }
    }
    /// The derivation of the bytes and its source, if one makes all of them.
    pub fn underived(&self) -> Option<(Derivation, Tensor)> {
        match &self.data {
            Data::Derived(d) => Some((d.how(), d.of().clone())),
            Data::Joined(_) if self.columns().0 == 1 => self.joined_underived(),
            _ => None,
        }
    }
    /// Whether both are certainly the same memory, without comparing bytes.
    pub fn shares_bytes(&self, o: &Tensor) -> bool {
        match (&self.data, &o.data) {
            (Data::Joined(a), Data::Joined(b)) => Arc::ptr_eq(a, b) || a.is_same(b),
            (Data::Halved(a), Data::Halved(b)) => Arc::ptr_eq(a, b) || a.of().shares_bytes(b.of()),
            (Data::Derived(a), Data::Derived(b)) => Arc::ptr_eq(a, b) || a.is_same(b),
            (Data::Bytes { owner: a, offset: i, len: n }, Data::Bytes { owner: b, offset: j, len: m }) => {
                Arc::as_ptr(a).cast::<()>() == Arc::as_ptr(b).cast::<()>() && (i, n) == (j, m)
            }
            (
                Data::Remote { stretch: a, offset: i, len: n },
                Data::Remote { stretch: b, offset: j, len: m },
            ) => {
                let first = |r: &Remote, at: &usize| r.offset() + *at as u64;
                a.file() == b.file() && (first(a, i), n) == (first(b, j), m)
            }
            _ => false,
        }
    }
    /// Hashes where the bytes are. Tensors that [share bytes](Tensor::shares_bytes) are equal in this; no bytes are read.
    pub fn hash_place(&self, state: &mut impl Hasher) {
        match &self.data {
            Data::Bytes { owner, offset, len } => {
                (Arc::as_ptr(owner).cast::<()>().addr(), offset, len).hash(state);
            }
            Data::Joined(j) => j.hash_place(state),
            Data::Halved(h) => h.of().hash_place(state),
            Data::Derived(d) => {
                d.how().name.hash(state);
                d.of().hash_place(state);
            }
            Data::Remote { stretch, offset, len } => {
                (stretch.file(), stretch.offset() + *offset as u64, len).hash(state);
            }
            Data::Absent => {}
        }
    }
    /// Whether the values are known.
    pub fn is_present(&self) -> bool {
        !matches!(self.data, Data::Absent)
    }
    /// The elements as scalars, decoded from any storage type; `None` if absent.
    pub fn scalars(&self) -> Option<Vec<Scalar>> {
        Some(crate::storage::decode(self.dtype, self.bytes()?, self.numel()))
    }
    /// The elements as integers; `None` if absent or not of an integer or bool type.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        (self.dtype.class() != Class::Float).then_some(())?;
        Some(self.scalars()?.into_iter().map(Scalar::as_i64).collect())
    }
    /// The elements as `f32` (64-bit floats and integers are rounded); `None` if absent.
    pub fn to_f32s(&self) -> Option<Vec<f32>> {
        if self.dtype == DType::F32 {
            let b = self.bytes()?;
            return Some(b.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect());
        }
        Some(self.scalars()?.into_iter().map(|s| s.as_f64() as f32).collect())
    }
    /// `len` elements from flat index `start`, which must lie at a byte boundary, sharing the bytes.
    ///
    /// ```
    /// use wgfc_program::Tensor;
    /// let t = Tensor::from_f32(vec![3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    /// // The second row.
    /// let row = t.flat_slice(2, 2);
    /// assert_eq!(row.to_f32s(), Some(vec![3.0, 4.0]));
    /// ```
    pub fn flat_slice(&self, start: usize, len: usize) -> Tensor {
        let (skip, bytes) = (self.dtype.bytes_for(start), self.dtype.bytes_for(len));
        let data = match &self.data {
            Data::Bytes { owner, offset, .. } => {
                Data::Bytes { owner: owner.clone(), offset: offset + skip, len: bytes }
            }
            Data::Joined(j) => Data::Bytes { owner: j.clone(), offset: skip, len: bytes },
            Data::Halved(h) => Data::Bytes { owner: h.clone(), offset: skip, len: bytes },
            Data::Derived(d) => match d.slice(skip..skip + bytes) {
                Some(slice) => Data::Derived(Arc::new(slice)),
                None => Data::Bytes { owner: d.clone(), offset: skip, len: bytes },
            },
            Data::Remote { stretch, offset, .. } => {
                Data::Remote { stretch: stretch.clone(), offset: offset + skip, len: bytes }
            }
            Data::Absent => Data::Absent,
        };
        Tensor { dtype: self.dtype, shape: vec![len], data }
    }
    /// The element at flat index `at`; `None` if absent or out of range. Reads only a few bytes of a file.
    ///
    /// ```
    /// use wgfc_program::Tensor;
    /// let t = Tensor::from_i64(vec![3], &[3, 1, 36]);
    /// assert_eq!(t.element(2).map(|s| s.as_i64()), Some(36));
    /// assert_eq!(t.element(3), None);
    /// ```
    pub fn element(&self, at: usize) -> Option<Scalar> {
        (at < self.numel()).then_some(())?;
        // Elements smaller than a byte are decoded from a byte boundary.
        let within = at % 8;
        self.flat_slice(at - within, within + 1).scalars()?.pop()
    }
    /// This tensor's elements under another shape of the same size.
    pub fn reshaped(&self, shape: Vec<usize>) -> Tensor {
        assert_eq!(self.numel(), shape.iter().product::<usize>());
        Tensor { shape, ..self.clone() }
    }
}

/// The number of elements, or `None` if it or the number of their bits overflows.
///
/// ```
/// use wgfc_program::tensor::checked_numel;
/// assert_eq!(checked_numel(&[2, 3]), Some(6));
/// assert_eq!(checked_numel(&[usize::MAX, 2]), None);
/// ```
pub fn checked_numel(shape: &[usize]) -> Option<usize> {
    // A 32-bit host can represent the sizes of tensors that do not fit in its memory.
    const MOST: u64 = i64::MAX as u64 / 8;
    shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| *n as u64 <= MOST)
}

/// Equality of type, shape and bytes; two absent tensors are equal. Files are not read, and bytes are not derived: two stretches are
/// equal only if they are the same range, and two derived tensors only if they are made alike of the same bytes.
impl PartialEq for Tensor {
    fn eq(&self, o: &Tensor) -> bool {
        self.dtype == o.dtype
            && self.shape == o.shape
            && (self.shares_bytes(o)
                || !self.is_remote()
                    && !o.is_remote()
                    && !self.is_derived()
                    && !o.is_derived()
                    && self.byte_len() == o.byte_len()
                    && self.bytes() == o.bytes())
    }
}

/// The hash covers only type and shape, so that hashing large tensors is cheap.
impl Hash for Tensor {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.dtype, &self.shape).hash(state);
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}{}", self.dtype, self.shape, if self.is_present() { "" } else { " (absent)" })
    }
}
/// Gathers elements of `width` bytes in row-major order: `counts` elements along each axis, at distances of `strides`
/// elements in `data`. Elements beyond the end of `data` are left out.
///
/// ```
/// use wgfc_program::tensor::gathered;
/// // The transpose of a matrix of 2 rows and 3 columns of bytes.
/// assert_eq!(gathered(&[1, 2, 3, 4, 5, 6], 1, &[3, 2], &[1, 3]), [1, 4, 2, 5, 3, 6]);
/// ```
pub fn gathered(data: &[u8], width: usize, counts: &[usize], strides: &[usize]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    let Some((inner, outer)) = counts.split_last() else { return data.to_vec() };
    let step = strides.last().copied().unwrap_or(1);
    let mut index = vec![0usize; outer.len()];
    for _ in 0..outer.iter().product() {
        let first: usize = index.iter().zip(strides).map(|(i, s)| i * s).sum();
        for i in 0..*inner {
            let at = (first + i * step) * width;
            out.extend_from_slice(data.get(at..at + width).unwrap_or_default());
        }
        for (i, n) in index.iter_mut().zip(outer).rev() {
            *i += 1;
            if *i < *n {
                break;
            }
            *i = 0;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_less_than_a_byte_are_found() {
        let bytes = vec![0x87, 0x59, 0x21, 0x43, 0x65];
        let t = Tensor::new(DType::U4, vec![9], bytes).unwrap();
        let all = t.scalars().unwrap();
        assert_eq!((0..9).map(|i| t.element(i).unwrap()).collect::<Vec<_>>(), all);
        assert_eq!(t.element(9), None);
        let wide = Tensor::from_i64(vec![3], &[5, -6, 7]);
        assert_eq!(wide.element(1).map(Scalar::as_i64), Some(-6));
    }
}
