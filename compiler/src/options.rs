//! What a compilation can be told.

use crate::tuning::Tuning;
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

/// What the target device offers. The default is what every WebGPU device has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Storage buffers one kernel may bind.
    pub max_storage_buffers: u32,
    /// Invocations of a workgroup.
    pub max_invocations: u32,
    /// Bytes of workgroup memory.
    pub max_workgroup_bytes: u32,
    /// Bytes one binding may have.
    pub max_binding_bytes: u64,
    /// Workgroups along one dimension of a dispatch.
    pub max_workgroups: u32,
    /// Alignment of a binding's offset, in bytes.
    pub storage_alignment: u32,
    /// Whether kernels may use `f16` (`shader-f16`); without it f16 tensors are unpacked by hand.
    pub f16: bool,
    /// Invocations of every subgroup (`subgroups`), a power of two; `None` where there are none or they differ.
    #[serde(default)]
    pub subgroup: Option<u32>,
    /// Whether subgroups multiply matrices of 16 × 16 f16 into f32 (`wgpu-cooperative-matrix`, not in browsers).
    #[serde(default)]
    pub cooperative_matrix: bool,
    /// Iterations of a loop in a kernel, where the driver ends it after so many.
    #[serde(default)]
    pub loop_iterations: Option<u32>,
    /// Bytes a second that a streaming kernel moves.
    pub bandwidth: f64,
    /// Floating-point operations a second.
    pub flops: f64,
    /// Seconds that one more dispatch in a pass costs.
    pub dispatch_cost: f64,
}

impl Default for DeviceProfile {
    fn default() -> DeviceProfile {
        DeviceProfile {
            max_storage_buffers: 8,
            max_invocations: 256,
            max_workgroup_bytes: 16384,
            max_binding_bytes: 128 << 20,
            max_workgroups: 65535,
            storage_alignment: 256,
            f16: false,
            subgroup: None,
            cooperative_matrix: false,
            loop_iterations: None,
            bandwidth: 100e9,
            flops: 2e12,
            dispatch_cost: 10e-6,
        }
    }
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
    /// Choices measured on the target, which come before those of the cost models.
    pub tuning: Tuning,
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
