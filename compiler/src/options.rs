//! Options of a compilation.

use crate::device::DeviceProfile;
use crate::schedule::cost::Expected;
use crate::schedule::table::Tuning;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::Tensor;

/// How much is fused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fusion {
    /// Every operator is a kernel of its own: the baseline.
    None,
    /// Chains and DAGs of elementwise operators and views.
    Elementwise,
    /// Also prologues and epilogues of reductions and products, merged products, raised operators.
    #[default]
    Full,
}

/// A part of [`Fusion::Full`] that can be left out, to see what it brings or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Technique {
    /// Rewrites that change the last bits: raised norms, softmax and attention among them.
    Approximate,
    /// Merging of products that share an operand: Q, K and V; gate and up.
    Merge,
    /// Epilogues: what follows a product or a reduction, in its kernel (activations, residuals, rotary embeddings).
    Epilogues,
    /// Norms in the product behind them: their scale is applied to its results.
    WaitingScales,
    /// Attention over parts of the keys, in several workgroups; the reader combines the results.
    KeyParts,
    /// Loops as one kernel where their steps are independent along some axes.
    Loops,
    /// Such loops with one invocation for each position along the axes.
    LoopsInInvocations,
    /// Such loops with one workgroup for each position along the axes.
    LoopsInWorkgroups,
    /// Other orders of the axes of tensors between kernels, and of weights, where the kernels take less time so.
    Layouts,
    /// Convolutions of 3 × 3 by fewer multiplications, where that takes less time.
    Winograd,
}

/// In which type values of f32 are kept in memory. What kernels compute is f32 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// As the model says.
    #[default]
    F32,
    /// In f16, except for values that need the range or the precision of f32: see [`precision`](crate::precision).
    F16,
}

/// How weights of products are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightBits {
    /// As the model has them, or as [`Options::precision`] says.
    #[default]
    Own,
    /// In 8 bits, with a scale for each block: see [`weights`](crate::weights).
    Q8,
    /// In 4 bits, with a scale for each block.
    Q4,
}

impl WeightBits {
    /// Bits of an element; 0 where they stay as they are.
    pub fn bits(self) -> u32 {
        match self {
            WeightBits::Own => 0,
            WeightBits::Q8 => 8,
            WeightBits::Q4 => 4,
        }
    }
}

/// Which inputs and outputs become tensors that stay on the device from run to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum States {
    /// None: the caller carries them.
    #[default]
    None,
    /// States found by structure: an output that is an input with something appended along an axis, or
    /// an input with some of its elements replaced.
    Auto {
        /// Positions that a state filled along an axis has room for. `None`: each session sets it and may
        /// let it grow; it is a symbol of the program then.
        capacity: Option<usize>,
    },
    /// These, each an input's name and an output's.
    Named {
        /// Names of an input and of the output that continues it.
        pairs: Vec<(String, String)>,
        /// Positions that a state has room for, as in [`States::Auto`].
        capacity: Option<usize>,
    },
}

/// Options of a compilation. There will be more: write the rest as `..Options::default()`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// How much is fused.
    pub fusion: Fusion,
    /// Symbolic dimensions to fix: name to value.
    pub dims: BTreeMap<String, i64>,
    /// Inputs to fix: name to value. They become constants and are no inputs of the program. What
    /// decides shapes (axes, sizes, limits of a range) must be known while compiling.
    pub values: BTreeMap<String, Tensor>,
    /// The tensors that stay on the device from run to run.
    pub states: States,
    /// The techniques to leave out of full fusion.
    pub without: BTreeSet<Technique>,
    /// Expected values of symbolic dimensions that are not fixed: name to value. Choices are made for them. A name
    /// that the model does not have is an error.
    pub expect: Expected,
    /// The device to compile for.
    pub profile: DeviceProfile,
    /// Schedules measured on the target, which come before those of the cost models; what does not fit is ignored.
    pub tuning: Tuning,
    /// Schedules given by the user, which come before all others; one that does not fit is an error.
    pub schedules: Tuning,
    /// Tensors of the model to return as extra outputs; fusion stops at them.
    pub taps: Vec<String>,
    /// Tensors of the model that a run may replace, everywhere or in places: [`lower::inside`](crate::lower::inside).
    pub replaced: Vec<String>,
    /// Tensors of the model that a run may add to.
    pub added: Vec<String>,
    /// In which type values of f32 are kept in memory.
    pub precision: Precision,
    /// How weights of products are kept.
    pub weights: WeightBits,
    /// Nodes of the model whose values stay f32 in memory, and whose weights are not quantised. A name that the model does not
    /// have is an error.
    pub keep_f32: Vec<String>,
    /// Bytes of memory that reading the model may take in addition to its files; `None` derives it from their size:
    /// [`Budget`](crate::budget::Budget).
    pub memory_limit: Option<u64>,
    /// The largest number of loop iterations when the evaluator runs the model in place of a device, each of 65,536 elements
    /// of work on average; `None` is 2^24.
    pub iteration_limit: Option<u64>,
    /// Do not read weights: plan only.
    pub graph_only: bool,
}

impl Options {
    /// Whether full fusion is asked for, with this part of it.
    pub fn fuses(&self, t: Technique) -> bool {
        self.fusion == Fusion::Full && !self.without.contains(&t)
    }
}
