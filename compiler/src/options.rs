//! What a compilation can be told.

use crate::device::DeviceProfile;
use crate::schedule::table::Tuning;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::Tensor;

/// How much is fused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fusion {
    /// Every operator is a kernel of its own: the baseline everything is compared with.
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
    /// Products that share an operand made one: Q, K and V; gate and up.
    Merge,
    /// What follows a product or a reduction in its kernel: activations, residuals, rotary embeddings.
    Epilogues,
    /// A norm's scale that waits for the product behind it.
    WaitingScales,
    /// Attention's keys in parts that the reader puts together.
    KeyParts,
    /// Loops as one kernel where their steps are independent along some axes.
    Loops,
    /// Of these, those with an invocation for each position along the axes.
    LoopsInInvocations,
    /// And those with a workgroup for each.
    LoopsInWorkgroups,
}

/// Which inputs and outputs become tensors that stay on the device from run to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum States {
    /// None: the caller carries them.
    #[default]
    None,
    /// Those found by structure: an output that is an input with something appended along an axis, or
    /// an input with some of its elements replaced.
    Auto {
        /// Positions that a state filled along an axis has room for. `None`: each session sets it and may
        /// let it grow; it is a symbol of the program then.
        capacity: Option<usize>,
    },
    /// These, each an input's name and an output's.
    Named {
        /// The pairs.
        pairs: Vec<(String, String)>,
        /// As in [`States::Auto`].
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
    /// What stays on the device from run to run.
    pub states: States,
    /// What to leave out of full fusion.
    pub without: BTreeSet<Technique>,
    /// The target.
    pub profile: DeviceProfile,
    /// Schedules measured on the target, which come before those of the cost models; what does not fit is ignored.
    pub tuning: Tuning,
    /// Schedules that somebody wrote, which come before all others; what does not fit is an error.
    pub schedules: Tuning,
    /// Tensors of the model to return as extra outputs; fusion stops at them.
    pub taps: Vec<String>,
    /// Do not read weights: plan only.
    pub graph_only: bool,
}

impl Options {
    /// Whether full fusion is asked for, with this part of it.
    pub fn fuses(&self, t: Technique) -> bool {
        self.fusion == Fusion::Full && !self.without.contains(&t)
    }
}
