//! The intermediate representation of wgfc.
//!
//! A model is a [`Graph`]: nodes of a few core [operators](op) over values with an element type
//! ([`DType`]) and a symbolic shape ([`Dim`]). What a compiled model is made of is a [`Program`]:
//! WGSL kernels, the buffers they read and write, and the order in which they run. Those types are
//! of the crate `wgfc-program`, which runtimes use alone, and are found here too.
//!
//! - An elementwise operator is a [`Map`](Op::Map) whose body is a scalar expression ([`ScalarFn`]).
//! - Moving data is a [`View`](Op::View) whose body is an index expression ([`Poly`]).
//! - Dimensions and index expressions are one type, [`Poly`], kept in a canonical form.
//!
//! Features: `fast` lets the evaluator use threads (rayon) and vector units (gemm), `validate` has naga judge the texts of kernels.
//!
//! This crate knows nothing of ONNX, of rewriting, of templates or of a GPU, and touches no files.

pub mod body;
pub mod build;
pub mod computed;
pub mod dag;
pub mod eval;
pub mod graph;
pub mod lower;
pub mod nan;
pub mod op;
pub mod order;
pub mod scalar;
pub mod special;
pub mod testing;
pub mod text;
pub mod verify;

pub use body::Body;
pub use build::Builder;
pub use graph::{Border, Computed, Graph, Growth, Node, NodeId, State, Value};
pub use op::{Contract, GatherAxis, NormKind, Op, ReduceOp};
pub use scalar::{BinaryOp, ScalarFn, ScalarNode, UnaryOp};
pub use special::{Special, Special2};
#[cfg(feature = "validate")]
pub use wgfc_program::check;
pub use wgfc_program::{
    Atom, Bundle, Class, DType, Dim, Domain, Poly, Program, Reg, Scalar, Tensor, TensorType, bundle, dtype,
    halved, joined, memory, optional, poly, program, recipe, remote, storage, suggest, symbols, tensor, wgsl,
};
