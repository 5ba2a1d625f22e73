//! The intermediate representation of wgfc.
//!
//! A model is a [`Graph`]: nodes of a few core [operators](op) over values with an element type ([`DType`]) and a
//! symbolic shape ([`Dim`]). A compiled model is a [`Program`]: WGSL kernels, the buffers that they read and write,
//! and the order in which they run. These types belong to the crate `wgfc-program`, which runtimes use alone, and are
//! re-exported here.
//!
//! - An elementwise operator is a [`Map`](Op::Map) whose body is a scalar expression ([`ScalarFn`]).
//! - Moving data is a [`View`](Op::View) whose body is an index expression ([`Poly`]).
//! - Dimensions and index expressions are one type, [`Poly`], kept in a canonical form.
//!
//! A program that builds graphs needs [`Graph`], [`Builder`], [`Body`] and [`Op`], the [verifier](verify), the [text form](text) and
//! the [evaluator](eval). The other modules serve the compiler, may change in every version, and have no examples.
//!
//! ```
//! use wgfc_ir::{Border, Builder, DType, Dim, Graph, Tensor, TensorType, UnaryOp, eval::evaluate};
//! let mut graph = Graph::new();
//! let x = graph.add_input("x", TensorType::new(DType::F32, [Dim::sym("n")]));
//! let value = Builder::new(&mut graph, "root").unary(UnaryOp::Sqrt, x)?;
//! graph.outputs.push(Border { name: "y".into(), value });
//! println!("{}", wgfc_ir::text::print(&graph));
//! let y = evaluate(&graph, &[("x".to_owned(), Tensor::from_f32(vec![2], &[4.0, 9.0]))].into())?;
//! assert_eq!(y[0].to_f32s(), Some(vec![2.0, 3.0]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Features: `fast` lets the evaluator use threads (rayon) and vector units (gemm), `validate` validates the text of
//! kernels with naga.
//!
//! This crate is independent of ONNX, rewriting, templates and GPUs, and does no file input or output.

pub mod body;
pub mod bounds;
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
    Atom, Bundle, Class, DType, DeviceLimits, Dim, Domain, Poly, Program, Reg, Scalar, Tensor, TensorType,
    bundle, derived, dtype, halved, joined, mapped, memory, optional, poly, program, recipe, remote, storage,
    suggest, symbols, tensor, wgsl,
};
