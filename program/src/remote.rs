//! Bytes of remote files that are read on demand.
//!
//! A compiler that runs in a web page does not hold the weights of a model: it knows their location in the model's
//! files, and reads only those with which it computes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A reader of the files.
///
/// ```
/// use std::sync::Arc;
/// use wgfc_program::remote::{Files, Remote, Source};
/// use wgfc_program::{DType, Tensor};
/// struct InMemory(Vec<u8>);
/// impl Files for InMemory {
///     fn read(&self, _file: usize, offset: u64, into: &mut [u8]) -> bool {
///         let bytes = self.0.get(offset as usize..).and_then(|b| b.get(..into.len()));
///         bytes.map(|b| into.copy_from_slice(b)).is_some()
///     }
/// }
/// let source = Source::new(Box::new(InMemory(vec![1, 2, 3, 4])));
/// let t = Tensor::remote(DType::U8, vec![2], Arc::new(Remote::new(source.clone(), 0, 1, 2)))?;
/// # assert_eq!(source.bytes_read(), 0);
/// # assert_eq!(t.bytes(), Some(&[2, 3][..]));
/// # assert_eq!(source.bytes_read(), 2);
/// # Ok::<(), String>(())
/// ```
pub trait Files: Send + Sync {
    /// Fills `into` with the bytes of a file from `offset`; returns whether it succeeded.
    fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> bool;
}

/// The files to which remote bytes belong.
pub struct Source {
    files: Box<dyn Files>,
    read: AtomicU64,
    failed: OnceLock<(usize, u64)>,
}

impl Source {
    /// A source that reads files through `files`.
    pub fn new(files: Box<dyn Files>) -> Arc<Source> {
        Arc::new(Source { files, read: AtomicU64::new(0), failed: OnceLock::new() })
    }

    /// The number of bytes that have been read.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// The file and the offset of the first failed read; the bytes of a failed read count as absent.
    pub fn failed(&self) -> Option<(usize, u64)> {
        self.failed.get().copied()
    }
}

/// A range of one of the files.
pub struct Remote {
    source: Arc<Source>,
    file: usize,
    offset: u64,
    len: usize,
    bytes: OnceLock<Option<Vec<u8>>>,
}

impl Remote {
    /// The `len` bytes of a file from `offset`.
    pub fn new(source: Arc<Source>, file: usize, offset: u64, len: usize) -> Remote {
        Remote { source, file, offset, len, bytes: OnceLock::new() }
    }

    /// The number of the file.
    pub fn file(&self) -> usize {
        self.file
    }

    /// The offset of the first byte in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, which the first call reads; `None` if that fails.
    pub fn bytes(&self) -> Option<&[u8]> {
        let read = || {
            let mut bytes = vec![0; self.len];
            if self.source.files.read(self.file, self.offset, &mut bytes) {
                self.source.read.fetch_add(self.len as u64, Ordering::Relaxed);
                return Some(bytes);
            }
            // Only the first failure is kept.
            let _ = self.source.failed.set((self.file, self.offset));
            None
        };
        self.bytes.get_or_init(read).as_deref()
    }
}

/// Empty if the bytes cannot be read.
impl AsRef<[u8]> for Remote {
    fn as_ref(&self) -> &[u8] {
        self.bytes().unwrap_or_default()
    }
}

/// The location of some bytes of a tensor.
///
/// ```
/// use wgfc_program::{Tensor, remote::Stretch};
/// let t = Tensor::from_f32(vec![2], &[1.0, 2.0]);
/// let first = t.stretches(0..8).next();
/// assert!(matches!(first, Some(Stretch::Here(bytes)) if bytes.len() == 8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stretch<'a> {
    /// In memory.
    Here(&'a [u8]),
    /// In a file.
    There {
        /// The number of the file.
        file: usize,
        /// The offset of the first byte in the file.
        offset: u64,
        /// The number of bytes.
        len: usize,
    },
}

impl Stretch<'_> {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Stretch::Here(bytes) => bytes.len(),
            Stretch::There { len, .. } => *len,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Data, Tensor};
    use crate::{DType, Scalar};

    /// Two files, the second of which cannot be read.
    struct Two;

    impl Files for Two {
        fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> bool {
            into.iter_mut().enumerate().for_each(|(i, b)| *b = (offset as usize + i) as u8);
            file == 0
        }
    }

    fn tensor(source: &Arc<Source>, file: usize, offset: u64, shape: [usize; 2]) -> Tensor {
        let len = shape[0] * shape[1];
        Tensor::remote(DType::U8, shape.to_vec(), Arc::new(Remote::new(source.clone(), file, offset, len)))
            .unwrap()
    }

    #[test]
    fn nothing_is_read_before_it_is_asked_for() {
        let source = Source::new(Box::new(Two));
        let (a, b) = (tensor(&source, 0, 10, [2, 3]), tensor(&source, 0, 40, [2, 1]));
        let joined = Tensor::joined(&[&a, &b], 1).unwrap();
        let there = |offset, len| Stretch::There { file: 0, offset, len };
        let all: Vec<Stretch<'_>> = joined.stretches(0..8).collect();
        assert_eq!(all, [there(10, 3), there(40, 1), there(13, 3), there(41, 1)]);
        assert_eq!(joined.stretches(2..5).collect::<Vec<_>>(), [there(12, 1), there(40, 1), there(13, 1)]);
        let slice = a.flat_slice(2, 3);
        assert_eq!(slice.stretches(1..3).collect::<Vec<_>>(), [there(13, 2)]);
        assert!(a != b && a == a.clone() && a.reshaped(vec![6]).shares_bytes(&a));
        assert_eq!((source.bytes_read(), slice.byte_len()), (0, Some(3)));

        assert_eq!(slice.bytes(), Some(&[12, 13, 14][..]));
        assert_eq!(
            joined.pieces(0..8).flatten().copied().collect::<Vec<_>>(),
            [10, 11, 12, 40, 13, 14, 15, 41]
        );
        assert_eq!((source.bytes_read(), source.failed()), (8, None));
    }

    #[test]
    fn what_cannot_be_read_is_absent_and_remembered() {
        let source = Source::new(Box::new(Two));
        let t = tensor(&source, 1, 7, [1, 2]);
        assert!(t.is_present() && source.failed().is_none());
        assert_eq!((t.bytes(), t.scalars()), (None, None::<Vec<Scalar>>));
        assert_eq!(source.failed(), Some((1, 7)));
        assert!(matches!(t.data, Data::Remote { .. }));
    }
}
