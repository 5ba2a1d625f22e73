//! An element type together with a shape.

use crate::dtype::DType;
use crate::poly::Dim;
use std::fmt;

/// The maximum number of elements of a tensor of constant shape.
pub const MAX_ELEMENTS: i64 = 1 << 40;

/// The element type and the symbolic shape of a value.
///
/// ```
/// use wgfc_program::{DType, Dim, TensorType};
/// let t = TensorType::new(DType::F32, [Dim::sym("batch"), Dim::constant(13)]);
/// assert_eq!(t.to_string(), "f32[batch, 13]");
/// assert_eq!(t.numel(), Dim::sym("batch") * 13);
/// assert_eq!(t.static_shape(), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// A type of this element type and shape.
    pub fn new(dtype: DType, shape: impl Into<Vec<Dim>>) -> TensorType {
        TensorType { dtype, shape: shape.into() }
    }
    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
    /// Number of elements.
    pub fn numel(&self) -> Dim {
        self.shape.iter().product()
    }
    /// Fails if an extent is negative, or the number of elements is too large for any memory, whatever the symbols
    /// are.
    ///
    /// ```
    /// use wgfc_program::{DType, Dim, TensorType};
    /// assert!(TensorType::new(DType::F32, [Dim::constant(-1)]).exists().is_err());
    /// ```
    pub fn exists(&self) -> Result<(), String> {
        let extents = || self.shape.iter().filter_map(Dim::as_const);
        if let Some(d) = extents().find(|d| *d < 0) {
            return Err(format!("a tensor of type {self} has an extent of {d}"));
        }
        let least = extents().try_fold(1i64, |n, d| n.checked_mul(d.max(1)));
        match least.filter(|n| *n <= MAX_ELEMENTS) {
            Some(_) => Ok(()),
            None => Err(format!("a tensor of type {self} has more than 2^40 elements")),
        }
    }
    /// The shape, if every extent is a constant.
    pub fn static_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.shape.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}
