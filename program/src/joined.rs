//! Tensors concatenated along an axis without a copy.

use crate::derived::Derivation;
use crate::remote::Stretch;
use crate::tensor::{Data, checked_numel};
use crate::{DType, Tensor};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The bytes of tensors concatenated along an axis. Requesting them as one slice copies them once;
/// [`pieces`](Joined::pieces) returns them without a copy.
///
/// ```
/// use wgfc_program::{Tensor, tensor::Data};
/// let q = Tensor::from_f32(vec![2, 1], &[1.0, 2.0]);
/// let k = Tensor::from_f32(vec![2, 2], &[3.0, 4.0, 5.0, 6.0]);
/// let both = Tensor::joined(&[&q, &k], 1)?;
/// assert_eq!(both.shape, [2, 3]);
/// let Data::Joined(j) = &both.data else { panic!("nothing is copied yet") };
/// assert_eq!(j.pieces(0..j.len()).count(), 4);
/// assert_eq!(both.to_f32s(), Some(vec![1.0, 3.0, 4.0, 2.0, 5.0, 6.0]));
/// # Ok::<(), String>(())
/// ```
pub struct Joined {
    parts: Vec<Tensor>,
    /// The product of the extents before the axis, which is the number of rows in which the parts alternate.
    outer: usize,
    len: usize,
    whole: OnceLock<Vec<u8>>,
}

impl Joined {
    /// Joins tensors that are present, each with a multiple of `outer` bytes; `None` otherwise.
    pub(crate) fn new(parts: Vec<Tensor>, outer: usize) -> Option<Joined> {
        let lens = parts.iter().map(Tensor::byte_len).collect::<Option<Vec<_>>>()?;
        let even = outer > 0 && lens.iter().all(|l| l % outer == 0);
        even.then(|| Joined { parts, outer, len: lens.iter().sum(), whole: OnceLock::new() })
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A range of the bytes, as pieces in order.
    pub fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        self.parts_of(range).flat_map(|(t, r)| t.pieces(r))
    }

    /// Calls `f` with consecutive pieces of a range of the bytes; `false` if a part cannot be read.
    pub(crate) fn read(&self, range: Range<usize>, f: &mut dyn FnMut(&[u8])) -> bool {
        self.parts_of(range).all(|(t, r)| t.read(r, f))
    }

    /// Says that a range of the bytes will not be read soon.
    pub(crate) fn release(&self, range: Range<usize>) {
        self.parts_of(range).for_each(|(t, r)| t.release(r));
    }

    /// The address of the byte from which the first one comes.
    pub(crate) fn place(&self) -> usize {
        self.parts.first().map_or(0, Tensor::place)
    }

    /// The locations of a range of the bytes, in order.
    pub fn stretches(&self, range: Range<usize>) -> impl Iterator<Item = Stretch<'_>> {
        self.parts_of(range).flat_map(|(t, r)| t.stretches(r))
    }

    /// Whether some of the bytes would have to be read from a file.
    pub(crate) fn is_remote(&self) -> bool {
        self.parts.iter().any(Tensor::is_remote)
    }

    /// Whether some of the bytes are computed.
    pub(crate) fn is_derived(&self) -> bool {
        self.parts.iter().any(Tensor::is_derived)
    }

    /// The parts that hold a range of the bytes, in order, each with its own range.
    fn parts_of(&self, range: Range<usize>) -> impl Iterator<Item = (&Tensor, Range<usize>)> {
        let row = (self.len / self.outer).max(1);
        let rows = range.start / row..range.end.min(self.len).div_ceil(row);
        rows.flat_map(move |i| {
            let mut at = i * row;
            let range = range.clone();
            self.parts.iter().filter_map(move |p| {
                let len = p.byte_len().unwrap_or(0) / self.outer;
                // The range of this row in the whole, and its start within the part.
                let (here, there) = (at..at + len, i * len);
                at += len;
                let from = here.start.max(range.start) - here.start;
                let to = here.end.min(range.end).saturating_sub(here.start);
                (from < to).then(|| (p, there + from..there + to))
            })
        })
    }

    /// Hashes where the parts' bytes are.
    pub(crate) fn hash_place(&self, state: &mut impl Hasher) {
        (self.outer, self.parts.len()).hash(state);
        self.parts.iter().for_each(|p| p.hash_place(state));
    }

    /// Whether both join the same memory, so that their bytes are certainly equal.
    pub(crate) fn is_same(&self, o: &Joined) -> bool {
        self.outer == o.outer
            && self.parts.len() == o.parts.len()
            && self.parts.iter().zip(&o.parts).all(|(a, b)| a.shares_bytes(b))
    }
}

impl AsRef<[u8]> for Joined {
    fn as_ref(&self) -> &[u8] {
        self.whole.get_or_init(|| {
            let mut all = Vec::with_capacity(self.len);
            self.pieces(0..self.len).for_each(|p| all.extend_from_slice(p));
            all
        })
    }
}

impl Tensor {
    /// The tensors that are joined side by side in this one, and the number of their rows.
    pub fn columns(&self) -> (usize, Vec<&Tensor>) {
        match &self.data {
            Data::Joined(j) if j.outer > 1 => (j.outer, j.parts.iter().collect()),
            _ => (1, vec![self]),
        }
    }

    /// [`Tensor::underived`] of tensors that are joined one behind the other.
    pub(crate) fn joined_underived(&self) -> Option<(Derivation, Tensor)> {
        let Data::Joined(j) = &self.data else { return None };
        let all: Vec<(Derivation, Tensor)> = j.parts.iter().map(Tensor::underived).collect::<Option<_>>()?;
        let how = all.first()?.0;
        let same = all.iter().all(|(other, _)| other.name == how.name);
        let bytes = all.iter().map(|(_, of)| of.byte_len()).sum::<Option<usize>>()?;
        let of =
            Tensor::of_pieces(DType::U8, vec![bytes], all.into_iter().map(|(_, of)| of).collect()).ok()?;
        same.then_some((how, of))
    }

    /// Joins tensors of one type side by side, each with `rows` rows, as returned by [`Tensor::columns`]. Nothing is
    /// copied until the bytes are requested.
    ///
    /// # Errors
    /// If columns are absent, or their bytes are not those that shape and type need.
    ///
    /// ```
    /// use wgfc_program::{DType, Tensor};
    /// let (a, b) = (Tensor::from_f32(vec![2], &[1.0, 2.0]), Tensor::from_f32(vec![2], &[3.0, 4.0]));
    /// // Two columns of two rows.
    /// let t = Tensor::of_columns(DType::F32, vec![2, 2], 2, vec![a, b])?;
    /// assert_eq!(t.to_f32s(), Some(vec![1.0, 3.0, 2.0, 4.0]));
    /// assert_eq!(t.columns().0, 2);
    /// # Ok::<(), String>(())
    /// ```
    pub fn of_columns(
        dtype: DType,
        shape: Vec<usize>,
        rows: usize,
        columns: Vec<Tensor>,
    ) -> Result<Tensor, String> {
        let n = checked_numel(&shape).ok_or_else(|| format!("shape {shape:?} overflows"))?;
        let joined = Joined::new(columns, rows).filter(|j| j.len == dtype.bytes_for(n));
        let joined = joined.ok_or_else(|| format!("the columns are not {rows} rows of {dtype}{shape:?}"))?;
        Ok(Tensor { dtype, shape, data: Data::Joined(Arc::new(joined)) })
    }

    /// A tensor whose packed bytes are those of `pieces`, one after the other. Nothing is copied until the bytes are
    /// requested.
    ///
    /// # Errors
    /// If pieces are absent, or their bytes are not those that shape and type need.
    ///
    /// ```
    /// use wgfc_program::{DType, Tensor};
    /// let pieces = vec![Tensor::from_f32(vec![1], &[1.0]), Tensor::from_f32(vec![2], &[2.0, 3.0])];
    /// let t = Tensor::of_pieces(DType::F32, vec![3], pieces)?;
    /// assert_eq!(t.to_f32s(), Some(vec![1.0, 2.0, 3.0]));
    /// # Ok::<(), String>(())
    /// ```
    pub fn of_pieces(dtype: DType, shape: Vec<usize>, mut pieces: Vec<Tensor>) -> Result<Tensor, String> {
        let n = checked_numel(&shape).ok_or_else(|| format!("shape {shape:?} overflows"))?;
        let need = dtype.bytes_for(n);
        let lens = pieces.iter().map(Tensor::byte_len).collect::<Option<Vec<usize>>>();
        let have = lens.and_then(|l| l.into_iter().try_fold(0usize, usize::checked_add));
        if have != Some(need) {
            let have = have.map_or("fewer known".to_owned(), |n| n.to_string());
            return Err(format!("{dtype}{shape:?} needs {need} bytes, got {have}"));
        }
        let data = match pieces.len() {
            0 => return Tensor::new(dtype, shape, vec![]),
            1 => pieces.remove(0).data,
            _ => {
                let joined = Joined::new(pieces, 1).ok_or("pieces that are absent cannot be joined")?;
                Data::Joined(Arc::new(joined))
            }
        };
        Ok(Tensor { dtype, shape, data })
    }

    /// Concatenates tensors of one type that differ only along `axis`; absent if any of them is. Nothing is copied
    /// until the bytes are requested.
    ///
    /// # Errors
    /// If the tensors do not match, or a joint lies within a byte.
    pub fn joined(parts: &[&Tensor], axis: usize) -> Result<Tensor, String> {
        let first = parts.first().ok_or("nothing to join")?;
        let mut shape = first.shape.clone();
        let fits = |p: &&Tensor| {
            p.dtype == first.dtype
                && p.shape.len() == shape.len()
                && p.shape.iter().zip(&shape).enumerate().all(|(i, (a, b))| i == axis || a == b)
        };
        if axis >= shape.len() || !parts.iter().all(fits) {
            return Err(format!("{parts:?} cannot be joined along axis {axis}"));
        }
        shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
        if !parts.iter().all(|p| p.is_present()) {
            return Ok(Tensor::absent(first.dtype, shape));
        }
        let outer = shape[..axis].iter().product::<usize>();
        if shape.contains(&0) {
            return Tensor::new(first.dtype, shape, vec![]);
        }
        let all = Joined::new(parts.iter().map(|p| (*p).clone()).collect(), outer)
            .filter(|j| j.len() == first.dtype.bytes_for(shape.iter().product()))
            .ok_or_else(|| format!("{parts:?} cannot be joined along axis {axis} within a byte"))?;
        Ok(Tensor { dtype: first.dtype, shape, data: Data::Joined(Arc::new(all)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_bytes_are_those_of_a_copy() {
        let a = Tensor::from_i64(vec![2, 3], &[1, 2, 3, 4, 5, 6]);
        let b = Tensor::from_i64(vec![2, 1], &[7, 8]);
        let j = Tensor::joined(&[&a, &b], 1).unwrap();
        assert_eq!((j.shape.as_slice(), j.byte_len()), (&[2, 4][..], Some(64)));
        let pieces: Vec<u8> = j.pieces(0..64).flatten().copied().collect();
        for (from, to) in (0..=64).flat_map(|i| (i..=64).map(move |k| (i, k))) {
            let some: Vec<u8> = j.pieces(from..to).flatten().copied().collect();
            assert_eq!(some, pieces[from..to], "{from}..{to}");
        }
        assert_eq!(j.to_i64s().unwrap(), [1, 2, 3, 7, 4, 5, 6, 8]);
        assert_eq!(pieces, j.bytes().unwrap());
        assert_eq!(j, Tensor::from_i64(vec![2, 4], &[1, 2, 3, 7, 4, 5, 6, 8]));
        assert_eq!(j.flat_slice(3, 2).to_i64s().unwrap(), [7, 4]);
        let again = Tensor::joined(&[&a.clone(), &b.clone()], 1).unwrap();
        assert!(j.shares_bytes(&again) && !j.shares_bytes(&a) && j == again);
        assert!(!j.shares_bytes(&Tensor::joined(&[&b, &a], 1).unwrap()));
        let twice = Tensor::joined(&[&j, &j], 0).unwrap();
        assert_eq!(twice.numel(), 16);
        assert_eq!(twice.bytes().unwrap(), [pieces.clone(), pieces].concat());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let t = |dtype, shape: &[usize]| Tensor::zeros(dtype, shape.to_vec());
        let f = t(DType::F32, &[2, 3]);
        for other in [t(DType::F16, &[2, 3]), t(DType::F32, &[3, 3]), t(DType::F32, &[2, 3, 1])] {
            assert!(Tensor::joined(&[&f, &other], 1).is_err(), "{other:?}");
        }
        assert!(Tensor::joined(&[&f], 2).is_err() && Tensor::joined(&[], 0).is_err());
        let odd = t(DType::U4, &[2, 3]);
        assert!(Tensor::joined(&[&odd, &odd], 1).is_err());
        let even = t(DType::U4, &[2, 4]);
        assert_eq!(Tensor::joined(&[&even, &even], 1).unwrap().bytes().map(<[u8]>::len), Some(8));
        assert!(!Tensor::joined(&[&f, &Tensor::absent(DType::F32, vec![2, 1])], 1).unwrap().is_present());
        assert_eq!(
            Tensor::joined(&[&t(DType::F32, &[0, 3]), &t(DType::F32, &[0, 2])], 1).unwrap().shape,
            [0, 5]
        );
    }
}
