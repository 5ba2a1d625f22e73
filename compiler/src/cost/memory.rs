//! The units in which memory delivers, and what counts where a device or a model does not say.

/// The bytes that memory delivers together: an element with no neighbour in them takes as long as all.
pub const SECTOR: f64 = 32.0;
/// The bytes of a cache line: a load of a subgroup takes as long as if it read all of the lines that it touches.
pub const LINE: f64 = 128.0;
/// The least bytes that a load takes of a cache where a core reads for one invocation after the other. A fit to rows timed on llvmpipe and
/// SwiftShader.
pub const APART: f64 = 8.0;
/// The invocations of a subgroup where the device does not say: they take as long as one of them.
pub const SUBGROUP: u32 = 32;
