//! The form of a compiled model: kernels, buffers, dispatches, weights.
//!
//! It contains everything that a runtime needs and nothing else: a runtime never sees an operator. The JSON form
//! (`plan.json`) is documented in `docs/plan-format.md`. Sizes and workgroup counts are [`Dim`]s over the program's
//! symbols, which the shapes of the inputs bind at run time.

use crate::dtype::DType;
use crate::poly::{Dim, MAX_EXTENT};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the format of compiled programs: see `docs/versions.md`.
pub const FORMAT_VERSION: u32 = 1;

/// A compiled model.
///
/// ```
/// use wgfc_program::program::{Buffer, BufferKind, Port};
/// use wgfc_program::{DType, Dim, Program, memory};
/// // A program of one input, which no kernel reads.
/// let shape = vec![Dim::sym("batch"), Dim::constant(13)];
/// let elements = shape.iter().product();
/// let x = Port { name: "x".to_owned(), dtype: DType::F32, shape, buffer: 0, broadcast: None };
/// let buffer = Buffer { kind: BufferKind::Input { index: 0 }, dtype: DType::F32, elements };
/// let symbols = vec!["batch".to_owned()];
/// let program = Program { inputs: vec![x], buffers: vec![buffer], symbols, ..Program::default() };
/// assert_eq!(program.buffers[0].elements.eval_syms(&|_| Some(2)), Some(26));
/// assert_eq!(memory::plan(&program, &|_| Some(2))?.packed(), 0);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Program {
    /// The tensors that the caller provides, in the model's order.
    pub inputs: Vec<Port>,
    /// The tensors that the caller receives, in the model's order.
    pub outputs: Vec<Port>,
    /// The tensors that are kept on the device from run to run.
    #[serde(default)]
    pub states: Vec<State>,
    /// Free dimensions in the order in which the `Dims` uniform holds them (one `i32` each).
    pub symbols: Vec<String>,
    /// The symbols that the dispatches compute, in the order of the dispatches.
    #[serde(default)]
    pub computed: Vec<Computed>,
    /// Equations between dimensions that a run checks once the symbols are known.
    pub constraints: Vec<DimConstraint>,
    /// The memory that the dispatches read and write.
    pub buffers: Vec<Buffer>,
    /// The kernels, without duplicates.
    pub kernels: Vec<Kernel>,
    /// The dispatches, in order.
    pub dispatches: Vec<Dispatch>,
    /// The ranges of dispatches that run several times; of two nested ranges, the inner one comes later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<Repeat>,
    /// Figures about the compilation, for reports.
    pub stats: Stats,
    /// Weights by name; in the file form they are stored in `weights.safetensors`.
    #[serde(skip)]
    pub weights: BTreeMap<String, Tensor>,
    /// The facts proven about the kernels. They are not stored: nothing is known about a program that was read from a
    /// file.
    #[serde(skip)]
    pub proof: Proof,
}

/// The facts that the compiler has proven about a program's kernels. Code that changes the program must remove them.
///
/// ```
/// use wgfc_program::{Dim, program::Proof};
/// // Of two kernels, the second has an index that the data decide.
/// let proof = Proof::new(vec![vec![], vec!["x[indices[i]]".to_owned()]], vec![Dim::sym("n")], vec![]);
/// assert!(proof.is_in_bounds(0) && !proof.is_in_bounds(1));
/// assert_eq!(proof.count(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// For each kernel, the accesses that may leave the buffers of a dispatch even if no size is negative.
    unproven: Vec<Vec<String>>,
    /// The sizes that must not be negative.
    sizes: Vec<Dim>,
    /// The numbers up to which kernels count.
    counted: Vec<Dim>,
}

impl Proof {
    /// States that all accesses of all kernels except the `unproven` ones stay inside their buffers, in every run in
    /// which none of `sizes` is negative and none of `counted` exceeds [`Proof::MOST`].
    pub fn new(unproven: Vec<Vec<String>>, sizes: Vec<Dim>, counted: Vec<Dim>) -> Proof {
        Proof { unproven, sizes, counted }
    }
    /// The maximum number up to which kernels count in 32 bits. It leaves room for the last step of a loop, which goes
    /// beyond the loop's end.
    pub const MOST: i64 = MAX_EXTENT - (1 << 20);
    /// The sizes that must be at most [`Proof::MOST`] in a run; empty if no kernel is proven.
    pub fn counted(&self) -> &[Dim] {
        if self.count() == 0 { &[] } else { &self.counted }
    }
    /// Whether a kernel is proven to stay inside its buffers.
    pub fn is_in_bounds(&self, kernel: usize) -> bool {
        self.unproven(kernel).is_some_and(<[String]>::is_empty)
    }
    /// The accesses of a kernel that may leave their buffers, as text. `None` if nothing is known, as for a program
    /// that was read from a file.
    pub fn unproven(&self, kernel: usize) -> Option<&[String]> {
        self.unproven.get(kernel).map(Vec::as_slice)
    }
    /// The number of kernels that are proven to stay inside their buffers.
    pub fn count(&self) -> usize {
        self.unproven.iter().filter(|p| p.is_empty()).count()
    }
    /// The sizes that must not be negative in a run; empty if no kernel is proven.
    pub fn sizes(&self) -> &[Dim] {
        if self.count() == 0 { &[] } else { &self.sizes }
    }
}

/// A named input or output of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Its name in the model.
    pub name: String,
    /// The element type, also on the device (packed as in ONNX; bool is one byte).
    pub dtype: DType,
    /// The extents over the symbols. An input extent that is a single symbol binds it.
    pub shape: Vec<Dim>,
    /// An index into [`Program::buffers`].
    pub buffer: usize,
    /// The shape to which an optional input is broadcast: see [`optional`](crate::optional).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<Vec<Dim>>,
}

/// A tensor that keeps its contents from run to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Its name: that of the model's input that it replaces.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// The extents. They are constants, except for the axis along which the state grows: its extent is the capacity,
    /// which may be a symbol whose value the session sets.
    pub shape: Vec<Dim>,
    /// An index into [`Program::buffers`].
    pub buffer: usize,
    /// The part of it that is in use; absent if all of it always is.
    #[serde(default)]
    pub growth: Option<Growth>,
    /// The contents before the first run, as a key in [`Program::weights`]; absent if they are zeros.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<String>,
}

/// The growth of a state that is filled along one axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// The axis along which the state is filled.
    pub axis: usize,
    /// The symbol whose value is the number of positions in use before a run. It starts at 0, and each run increases
    /// it by `by`. States may share it.
    pub length: String,
    /// The number of positions that a run adds. If it depends on `length`, the state is a window of the latest
    /// positions, which never exceeds its capacity and drops the oldest ones.
    pub by: Dim,
}

impl State {
    /// Whether it is a window: see [`Growth::by`].
    pub fn is_window(&self) -> bool {
        self.growth.as_ref().is_some_and(|g| g.by.symbols().iter().any(|s| **s == *g.length))
    }
}

/// A symbol whose value the dispatches compute. Only the shapes of outputs, constraints and kernels use it: the sizes
/// of buffers and the workgroup counts are valid for every value that it can have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Computed {
    /// The symbol, one of [`Program::symbols`].
    pub symbol: String,
    /// The upper bound of its value, over symbols that are not computed; the lower bound is 0.
    pub bound: Dim,
    /// The buffer whose first four bytes hold its value.
    pub buffer: usize,
    /// The number of dispatches after which the value is complete. Before any further dispatch, it is copied to the
    /// symbol's place in the `Dims` uniform.
    pub after: usize,
}

/// The requirement that `a` equals `b`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DimConstraint {
    /// The left side.
    pub a: Dim,
    /// The right side.
    pub b: Dim,
    /// The node of the model that requires it.
    pub node: String,
}

/// A range of device memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// The use of the buffer.
    pub kind: BufferKind,
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub elements: Dim,
}

impl Buffer {
    /// The number of bytes to allocate for `elements` elements: packed, in whole 32-bit words, at least 16. It is
    /// capped at a number that exceeds any memory but can be added to without overflow.
    ///
    /// ```
    /// use wgfc_program::{DType, program::Buffer};
    /// assert_eq!(Buffer::byte_size(DType::F32, 100), 400);
    /// assert_eq!(Buffer::byte_size(DType::U8, 1), 16);
    /// ```
    pub fn byte_size(dtype: DType, elements: usize) -> u64 {
        dtype.bytes_of(elements as u64).min(1 << 62).next_multiple_of(4).max(16)
    }
}

/// The use of a [`Buffer`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum BufferKind {
    /// Filled from input `index` before the first dispatch.
    Input {
        /// Index into [`Program::inputs`].
        index: usize,
    },
    /// Holds output `index` after the last dispatch.
    Output {
        /// Index into [`Program::outputs`].
        index: usize,
    },
    /// Constant, uploaded once.
    Weight {
        /// Key in [`Program::weights`].
        name: String,
    },
    /// Memory in an arena, live from dispatch `first` (which writes it) to dispatch `last`, both included. Buffers of
    /// an arena may share memory if their live ranges do not overlap; no dispatch reads and writes the same arena.
    Arena {
        /// The number of the arena.
        arena: usize,
        /// The first dispatch of its live range.
        first: usize,
        /// The last dispatch of its live range.
        last: usize,
    },
    /// Keeps its contents from run to run; initially zero, or [`State::initial`]. `elements` is its capacity.
    State {
        /// The state's name, as in [`Program::states`].
        name: String,
    },
}

/// One WGSL module with one entry point `main`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// A readable, unique name; the file is `kernels/<name>.wgsl`.
    pub name: String,
    /// The kernel family that generated it: `map`, `reduce`, `row`, `matmul`, ….
    pub family: String,
    /// The WGSL text; in the file form it is stored beside the plan.
    #[serde(skip)]
    pub wgsl: String,
    /// The number of invocations of a workgroup along each axis.
    pub workgroup_size: [u32; 3],
    /// The storage bindings of group 0; the index is the binding number.
    pub bindings: Vec<Access>,
    /// Whether binding `bindings.len()` of group 0 is the `Dims` uniform: one `i32` per program symbol.
    pub uses_dims: bool,
    /// The bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// The required WebGPU features (`shader-f16`, `subgroups`).
    pub features: Vec<String>,
    /// The required number of invocations of every subgroup, if it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subgroup_size: Option<u32>,
}

/// The access mode of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
}

/// One dispatch of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// An index into [`Program::kernels`].
    pub kernel: usize,
    /// An index into [`Program::buffers`] for each of the kernel's bindings.
    pub bindings: Vec<usize>,
    /// The workgroup counts; if any is 0 the dispatch does nothing.
    pub workgroups: [Dim; 3],
    /// The model's nodes that it computes.
    pub nodes: Vec<String>,
    /// The types and shapes of the tensors that it writes, for display: `f32[batch, 10]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    /// The minimum number of bytes that it reads and writes, with each operand counted once.
    pub bytes: Dim,
    /// The number of floating-point operations (a multiply-add counts as two).
    pub flops: Dim,
}

/// Consecutive dispatches that run several times as a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeat {
    /// The first dispatch of the group.
    pub first: usize,
    /// The number of dispatches, at least 1.
    pub count: usize,
    /// The number of repetitions; none if it is 0 or less.
    pub times: Dim,
    /// The reason for which they are not one kernel.
    #[serde(default)]
    pub why: String,
    /// The end condition, if `times` does not determine the end: then `times` is the number of repetitions in a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

/// A repetition whose number is only found at run time. It runs in rounds, after each of which the host checks a word.
/// A superfluous round changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Until {
    /// The buffer whose first four bytes are 0 after the round in which the repetition has ended.
    pub buffer: usize,
    /// The maximum number of rounds, at least 1; a repetition that has not ended by then is an error.
    pub rounds: u64,
}

impl Program {
    /// The number of times that a run executes dispatch `dispatch`, if no number of repetitions is negative, and a
    /// repetition in rounds takes one round.
    ///
    /// ```
    /// use wgfc_program::{Dim, Program, program::Repeat};
    /// let steps = Repeat { first: 1, count: 2, times: Dim::sym("steps"), why: String::new(), until: None };
    /// let program = Program { repeats: vec![steps], ..Program::default() };
    /// assert_eq!(program.times(0), Dim::ONE);
    /// assert_eq!(program.times(2), Dim::sym("steps"));
    /// ```
    pub fn times(&self, dispatch: usize) -> Dim {
        let inside = |r: &&Repeat| dispatch.checked_sub(r.first).is_some_and(|i| i < r.count);
        self.repeats.iter().filter(inside).map(|r| r.times.clone()).product()
    }
}

/// Figures about the compilation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// The number of nodes of the model.
    pub model_nodes: usize,
    /// The bytes moved if every node of the core graph were a kernel of its own, except for mere changes of shape.
    pub bytes_unfused: Dim,
    /// Whether some weights are absent, so that the program can be inspected but not run.
    pub weights_absent: bool,
    /// The warnings for the user: narrowed types and the like.
    pub warnings: Vec<String>,
    /// The operators of the model's nodes that dispatches compute, by the node's name.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub operators: std::collections::BTreeMap<String, String>,
    /// The sizes of groups of products that were merged because they share an operand, as Q, K and V do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<usize>,
    /// The tensors of an f32 model that are stored as f16, and those that are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halved: Option<Halved>,
    /// The savings and the loss from quantising weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantised: Option<Quantised>,
}

/// The savings and the loss from quantising weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantised {
    /// The bits of an element.
    pub bits: u32,
    /// The number of quantised weights.
    pub weights: usize,
    /// Their bytes in the model.
    pub bytes_before: u64,
    /// Their bytes after quantisation, including scales.
    pub bytes: u64,
    /// The norm of the error of all of them, relative to their own norm.
    pub relative_error: f64,
    /// The largest relative error of a single weight.
    pub worst: f64,
}

/// The tensors of an f32 model that are stored as f16.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halved {
    /// The number of weights.
    pub weights: usize,
    /// The number of tensors between kernels.
    pub between: usize,
    /// The number of states.
    pub states: usize,
    /// The number of tensors that stay f32 because they are small.
    pub small: usize,
    /// The other tensors that stay f32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Kept>,
}

/// A tensor that stays f32.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Its type and shape.
    pub tensor: String,
    /// Its name in the model, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The nodes of the kernel that writes it or, if there is none, of the one that reads it.
    pub nodes: Vec<String>,
    /// The reason.
    pub why: String,
}

impl Default for Dim {
    fn default() -> Dim {
        Dim::ZERO
    }
}
