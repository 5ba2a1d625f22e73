//! The intermediate representation of wgfc.
//!
//! A model is a [`Graph`]: nodes of a few core [operators](op) over values with an element type
//! ([`DType`]) and a symbolic shape ([`Dim`]). What a compiled model is made of is a [`Program`]:
//! WGSL kernels, the buffers they read and write, and the order in which they run.
//!
//! - An elementwise operator is a [`Map`](Op::Map) whose body is a scalar expression ([`ScalarFn`]).
//! - Moving data is a [`View`](Op::View) whose body is an index expression ([`Poly`]).
//! - Dimensions and index expressions are one type, [`Poly`], kept in a canonical form.
//!
//! This crate knows nothing of ONNX, of rewriting, of templates or of a GPU, and touches no files.

pub mod body;
pub mod build;
pub mod computed;
pub mod dtype;
pub mod eval;
pub mod graph;
pub mod joined;
pub mod lower;
pub mod memory;
pub mod op;
pub mod poly;
pub mod program;
pub mod scalar;
pub mod storage;
pub mod tensor;
pub mod testing;
pub mod text;
pub mod verify;

pub use body::Body;
pub use build::Builder;
pub use dtype::{Class, DType, Reg};
pub use graph::{Border, Computed, Graph, Growth, Node, NodeId, State, TensorType, Value};
pub use op::{Contract, GatherAxis, NormKind, Op, ReduceOp};
pub use poly::{Atom, Dim, Domain, Poly};
pub use program::Program;
pub use scalar::{BinaryOp, Scalar, ScalarFn, ScalarNode, UnaryOp};
pub use tensor::Tensor;
