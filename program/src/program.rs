//! The form of a compiled model: kernels, buffers, dispatches, weights.
//!
//! Everything a runtime needs and nothing else: it never sees an operator. The JSON form
//! (`plan.json`) is documented in `docs/plan-format.md`. Sizes and workgroup counts are [`Dim`]s over
//! the program's symbols, which the shapes of the inputs bind at run time.

use crate::dtype::DType;
use crate::poly::{Dim, MAX_EXTENT};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the format of compiled programs: see `docs/versions.md`.
pub const FORMAT_VERSION: u32 = 1;

/// A compiled model.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Program {
    /// The tensors that the caller gives, in the model's order.
    pub inputs: Vec<Port>,
    /// The tensors that the caller gets, in the model's order.
    pub outputs: Vec<Port>,
    /// The tensors that stay on the device from run to run.
    #[serde(default)]
    pub states: Vec<State>,
    /// Free dimensions in the order in which the `Dims` uniform holds them (one `i32` each).
    pub symbols: Vec<String>,
    /// The symbols that the dispatches compute, in the order in which they do.
    #[serde(default)]
    pub computed: Vec<Computed>,
    /// Equations between dimensions that a run checks once the symbols are known.
    pub constraints: Vec<DimConstraint>,
    /// Memory the dispatches read and write.
    pub buffers: Vec<Buffer>,
    /// The kernels; equal ones are listed once.
    pub kernels: Vec<Kernel>,
    /// The dispatches, in order.
    pub dispatches: Vec<Dispatch>,
    /// Which of them run several times; of two that overlap, the one inside is the later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<Repeat>,
    /// How the model was, for reports.
    pub stats: Stats,
    /// Weights by name; in the file form they live in `weights.safetensors`.
    #[serde(skip)]
    pub weights: BTreeMap<String, Tensor>,
    /// The facts proven of the kernels. They are in no file: nothing is known of a program that was read.
    #[serde(skip)]
    pub proof: Proof,
}

/// The facts that the compiler has proven of a program's kernels. Code that changes the program must take them away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// The accesses of each kernel that may leave the buffers of a dispatch, even while no size is negative.
    unproven: Vec<Vec<String>>,
    /// The sizes.
    sizes: Vec<Dim>,
    /// The numbers to which kernels count.
    counted: Vec<Dim>,
}

impl Proof {
    /// That all accesses of all kernels but those `unproven` stay inside their buffers in every run in which none of `sizes` is
    /// negative and none of `counted` above [`Proof::MOST`].
    pub fn new(unproven: Vec<Vec<String>>, sizes: Vec<Dim>, counted: Vec<Dim>) -> Proof {
        Proof { unproven, sizes, counted }
    }
    /// The largest number that kernels count to in 32 bits: the last step of a loop goes beyond the end.
    pub const MOST: i64 = MAX_EXTENT - (1 << 20);
    /// The sizes that a run must find to be at most [`Proof::MOST`], where any kernel is proven.
    pub fn counted(&self) -> &[Dim] {
        if self.count() == 0 { &[] } else { &self.counted }
    }
    /// Whether a kernel stays inside its buffers.
    pub fn is_in_bounds(&self, kernel: usize) -> bool {
        self.unproven(kernel).is_some_and(<[String]>::is_empty)
    }
    /// The accesses of a kernel that may leave their buffers, in words. `None` where nothing is known: of a program that was
    /// read.
    pub fn unproven(&self, kernel: usize) -> Option<&[String]> {
        self.unproven.get(kernel).map(Vec::as_slice)
    }
    /// How many kernels do.
    pub fn count(&self) -> usize {
        self.unproven.iter().filter(|p| p.is_empty()).count()
    }
    /// The sizes that a run must find not to be negative, where any kernel is proven.
    pub fn sizes(&self) -> &[Dim] {
        if self.count() == 0 { &[] } else { &self.sizes }
    }
}

/// A named tensor at the border of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Its name in the model.
    pub name: String,
    /// Element type, also of its storage on the device (packed as in ONNX; bool is one byte).
    pub dtype: DType,
    /// Extents over the symbols. An input extent that is a lone symbol binds it.
    pub shape: Vec<Dim>,
    /// Index into [`Program::buffers`].
    pub buffer: usize,
    /// The shape that an input that a run may leave out is broadcast to: see [`optional`](crate::optional).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<Vec<Dim>>,
}

/// A tensor that keeps its contents from run to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Its name: that of the model's input it stands for.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents: numbers, and along the axis it grows along its capacity, which may be a symbol whose value
    /// the session sets.
    pub shape: Vec<Dim>,
    /// Index into [`Program::buffers`].
    pub buffer: usize,
    /// How much of it is in use; absent when all of it always is.
    #[serde(default)]
    pub growth: Option<Growth>,
    /// Its contents before the first run: a key in [`Program::weights`]. Absent where they are zeros.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<String>,
}

/// A state that is filled along one axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// The axis along which the state is filled.
    pub axis: usize,
    /// The symbol whose value is the number of positions in use before a run: 0 at first, and after each
    /// run larger by `by`. States may share it.
    pub length: String,
    /// How many positions a run adds. Where that depends on `length`, the state is a window of the latest
    /// positions, which is never longer than its capacity and forgets the others.
    pub by: Dim,
}

impl State {
    /// Whether it is a window: see [`Growth::by`].
    pub fn is_window(&self) -> bool {
        self.growth.as_ref().is_some_and(|g| g.by.symbols().iter().any(|s| **s == *g.length))
    }
}

/// A symbol whose value the dispatches compute. Only shapes of outputs, constraints and kernels use it: the
/// sizes of buffers and the workgroup counts hold for every value that it can have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Computed {
    /// The symbol, one of [`Program::symbols`].
    pub symbol: String,
    /// The upper bound of its value, over symbols that are not computed; the lower bound is 0.
    pub bound: Dim,
    /// The buffer whose first four bytes are its value.
    pub buffer: usize,
    /// How many dispatches run before they are. Then, and before any further dispatch, the bytes are copied
    /// to the symbol's place in the `Dims` uniform.
    pub after: usize,
}

/// `a` must equal `b`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DimConstraint {
    /// The left side.
    pub a: Dim,
    /// The right side.
    pub b: Dim,
    /// The node of the model that needs it.
    pub node: String,
}

/// A stretch of device memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// The use of the buffer.
    pub kind: BufferKind,
    /// Element type of what it holds.
    pub dtype: DType,
    /// Number of elements.
    pub elements: Dim,
}

impl Buffer {
    /// Bytes to allocate for `elements` elements: packed, in whole 32-bit words, at least 16; at most a number that no memory has
    /// and to which a little can be added.
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
    /// Alive from dispatch `first` (which writes it) to dispatch `last`, both included. Buffers of one
    /// arena may share memory when their lives do not overlap; no dispatch reads and writes one arena.
    Arena {
        /// The arena's number; buffers of one arena may share memory.
        arena: usize,
        /// Where its life begins.
        first: usize,
        /// Where its life ends.
        last: usize,
    },
    /// Keeps its contents from run to run; zero at first, or as [`State::initial`] says. `elements` is its capacity.
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
    /// Which family made it: `map`, `reduce`, `row`, `matmul`, ….
    pub family: String,
    /// The text; in the file form it lives beside the plan.
    #[serde(skip)]
    pub wgsl: String,
    /// Invocations of a workgroup.
    pub workgroup_size: [u32; 3],
    /// Storage bindings of group 0, binding number `i` being element `i`.
    pub bindings: Vec<Access>,
    /// Whether binding `bindings.len()` of group 0 is the `Dims` uniform: one `i32` per program symbol.
    pub uses_dims: bool,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// WebGPU features it needs (`shader-f16`, `subgroups`).
    pub features: Vec<String>,
    /// The number of invocations that every subgroup must have, where it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subgroup_size: Option<u32>,
}

/// How a kernel uses a binding.
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
    /// Index into [`Program::kernels`].
    pub kernel: usize,
    /// Index into [`Program::buffers`] for each of the kernel's bindings.
    pub bindings: Vec<usize>,
    /// Workgroup counts; when any is 0 the dispatch does nothing.
    pub workgroups: [Dim; 3],
    /// The model's nodes it computes.
    pub nodes: Vec<String>,
    /// Types and shapes of what it writes, for people: `f32[batch, 10]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    /// Bytes it must read and write at least, each operand once.
    pub bytes: Dim,
    /// Floating-point operations it does (a multiply-add is two).
    pub flops: Dim,
}

/// Dispatches that run one after another, all of them several times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeat {
    /// The first of them.
    pub first: usize,
    /// How many there are, at least 1.
    pub count: usize,
    /// How often they run; not at all when 0 or less.
    pub times: Dim,
    /// Why they are not one kernel.
    #[serde(default)]
    pub why: String,
    /// The end of the repeat, where `times` does not say it: then `times` is how often they run in a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

/// How dispatches are repeated whose number is found out by running them: in rounds, after each of which the host
/// looks at a word. A round that is not needed changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Until {
    /// The buffer whose first four bytes are 0 after the round in which the repetition has ended.
    pub buffer: usize,
    /// Rounds after which a repetition that has not ended is an error, at least 1.
    pub rounds: u64,
}

impl Program {
    /// How often a run dispatches number `dispatch`, where no repeat runs less than 0 times and one in rounds
    /// runs one round.
    pub fn times(&self, dispatch: usize) -> Dim {
        let inside = |r: &&Repeat| dispatch.checked_sub(r.first).is_some_and(|i| i < r.count);
        self.repeats.iter().filter(inside).map(|r| r.times.clone()).product()
    }
}

/// Figures about the compilation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Nodes of the model.
    pub model_nodes: usize,
    /// Bytes moved if every node of the core graph that is not a mere change of shape were a kernel of its own.
    pub bytes_unfused: Dim,
    /// Whether some weights are absent, so that the program can be inspected but not run.
    pub weights_absent: bool,
    /// The warnings for the user: narrowed types and the like.
    pub warnings: Vec<String>,
    /// The operators of the nodes that dispatches compute, by the node's name.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub operators: std::collections::BTreeMap<String, String>,
    /// The products that were merged since they share an operand, as Q, K and V do: how many each group has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<usize>,
    /// The tensors of a model of f32 that are f16 in memory, and those that are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halved: Option<Halved>,
    /// The gain and the loss of quantising weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantised: Option<Quantised>,
}

/// The gain and the loss of quantising weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantised {
    /// Bits of an element.
    pub bits: u32,
    /// How many weights.
    pub weights: usize,
    /// Their bytes in the model.
    pub bytes_before: u64,
    /// Their bytes now, with the scales.
    pub bytes: u64,
    /// The norm of what was lost of all of them, relative to their own.
    pub relative_error: f64,
    /// The loss of the weight that lost most.
    pub worst: f64,
}

/// The tensors of a model of f32 that are f16 in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halved {
    /// How many weights.
    pub weights: usize,
    /// How many tensors between kernels.
    pub between: usize,
    /// How many states.
    pub states: usize,
    /// How many tensors stay f32 since they are small.
    pub small: usize,
    /// Which others stay f32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Kept>,
}

/// A tensor that stays f32.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Type and shape.
    pub tensor: String,
    /// The model's name for it, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The nodes of the kernel that writes it, or that reads it where none does.
    pub nodes: Vec<String>,
    /// Why.
    pub why: String,
}

impl Default for Dim {
    fn default() -> Dim {
        Dim::ZERO
    }
}
