//! The form of a model compiled by wgfc: a [`Program`] of kernels, buffers, dispatches and weights.
//!
//! It contains everything that a runtime needs and nothing about its compilation: no operators, no graph. Sizes and
//! workgroup counts are polynomials over the model's symbols ([`Dim`]); [`symbols`] determines the values of symbols
//! from the shapes of inputs, and [`memory`] places the buffers. `docs/plan-format.md` describes the files to which
//! programs are written.
//!
//! ```
//! use wgfc_program::{Dim, symbols};
//! let extents = [(Dim::parse("past + seq").unwrap(), 12), (Dim::sym("seq"), 5)];
//! let extents: Vec<(&Dim, i64)> = extents.iter().map(|(d, n)| (d, *n)).collect();
//! let found = symbols::bind(&extents, &|_| None);
//! let value = |name: &str| found.iter().find(|f| *f.symbol == *name).map(|f| f.value);
//! assert_eq!((value("seq"), value("past")), (Some(5), Some(7)));
//! assert_eq!(Dim::parse("(past + 3)/4").unwrap().eval_syms(&value), Some(2));
//! ```
//!
//! The feature `validate` validates the text of kernels with naga.

pub mod bundle;
#[cfg(feature = "validate")]
pub mod check;
pub mod derived;
pub mod device;
pub mod dtype;
pub mod exponents;
pub mod halved;
pub mod joined;
pub mod mapped;
pub mod memory;
pub mod optional;
pub mod parallel;
pub mod poly;
pub mod program;
pub mod recipe;
pub mod remote;
pub mod scalar;
pub mod storage;
pub mod suggest;
pub mod symbols;
pub mod tensor;
pub mod types;
pub mod wgsl;

pub use bundle::Bundle;
pub use device::DeviceLimits;
pub use dtype::{Class, DType, Reg};
pub use poly::{Atom, Dim, Domain, Poly};
pub use program::Program;
pub use scalar::Scalar;
pub use tensor::Tensor;
pub use types::TensorType;
