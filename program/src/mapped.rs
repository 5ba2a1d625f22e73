//! Files that are mapped into memory.

use std::ops::Range;

/// The fewest bytes that are given back at a time.
const LEAST: usize = 64 << 10;

/// Pages of a file, which the system reads when they are needed and which may be given back.
pub trait Pages: AsRef<[u8]> + Send + Sync {
    /// Gives back the pages that lie in a range of the bytes. Bytes are the same when they are read again.
    fn release(&self, range: Range<usize>);
}

/// A mapped file. [`Tensor::release`](crate::Tensor::release) gives pages back, so that a model that is larger than the memory of the
/// host can be read once.
///
/// ```
/// use std::{ops::Range, sync::Arc};
/// use wgfc_program::mapped::{Mapped, Pages};
/// use wgfc_program::{DType, Tensor};
/// struct File(Vec<u8>);
/// impl AsRef<[u8]> for File {
///     fn as_ref(&self) -> &[u8] {
///         &self.0
///     }
/// }
/// impl Pages for File {
///     fn release(&self, range: Range<usize>) {
///         println!("{range:?} are no longer needed");
///     }
/// }
/// let file = Arc::new(Mapped::new(Box::new(File(vec![1; 1 << 20]))));
/// let t = Tensor::shared(DType::U8, vec![1 << 20], file, 0, 1 << 20)?;
/// t.release(0..1 << 19);
/// assert_eq!(t.element(0).map(|s| s.as_i64()), Some(1));
/// # Ok::<(), String>(())
/// ```
pub struct Mapped(Box<dyn Pages>);

impl Mapped {
    /// A file whose pages these are.
    pub fn new(pages: Box<dyn Pages>) -> Mapped {
        Mapped(pages)
    }

    /// Gives back the pages that lie in a range of the bytes, unless these are few.
    pub(crate) fn release(&self, range: Range<usize>) {
        if range.len() >= LEAST {
            self.0.release(range);
        }
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}
