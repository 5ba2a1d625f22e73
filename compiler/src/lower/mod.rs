//! Lowering of operators to core operators, independent of the model's source format.
//!
//! A function takes a [`Lowering`], its operands as values of the graph, and its parameters as plain or typed
//! arguments: `conv(cx, x, w, bias, &Conv { … })`. The importer of a source format decodes parameters, applies
//! defaults and distinguishes operator versions. An error names only the operand or the parameter that it is about
//! ([`Part`]); the importer translates that into the words of its format.

pub mod activation;
pub mod arg;
pub mod attention;
pub mod attention_gradient;
pub mod blocks;
pub mod cache;
pub mod cast;
pub mod chosen;
pub mod complex;
mod context;
pub mod control;
pub mod conv;
mod counters;
pub mod deform;
pub mod dequantize;
pub mod distance;
pub mod einsum;
pub mod elementwise;
mod error;
pub mod flex;
pub mod fourier;
pub mod gates;
pub mod gather;
pub mod heads;
pub mod histogram;
pub mod inside;
pub mod interpolate;
pub mod linalg;
pub mod linear_attention;
pub mod loss;
pub mod lp;
pub mod matmul;
pub mod nms;
pub mod norm;
pub mod order;
pub mod placed;
pub mod pool;
pub mod quantize;
pub mod random;
pub mod range;
pub mod recurrent;
pub mod reduce;
pub mod resize;
pub mod roi;
pub mod rotary;
pub mod sample;
pub mod scan;
pub mod scatter;
pub mod search;
pub mod segment;
pub mod shape;
mod sizes;
pub mod slice;
pub mod softmax;
pub mod special;
pub mod spectral;
pub mod split;
pub mod support_vectors;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod transposed;
pub mod trees;
pub mod unique;
pub mod window;

pub use context::{Lowering, Notes, Place, Size, axes, axis};
pub use error::{Lowered, OpError, Part, Result};
pub use sizes::check_dims;
