//! Options of a compilation.

use crate::device::DeviceProfile;
use crate::schedule::cost::Expected;
use crate::schedule::table::Tuning;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::Tensor;

/// The extent of fusion.
///
/// ```
/// use wgfc_compiler::{Fusion, Options, Technique};
/// let baseline = Options { fusion: Fusion::None, ..Options::default() };
/// assert!(!baseline.fuses(Technique::Epilogues));
/// assert!(Options::default().fuses(Technique::Epilogues));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fusion {
    /// Every operator is a kernel of its own: the baseline.
    None,
    /// Chains and DAGs of elementwise operators and views.
    Elementwise,
    /// In addition prologues and epilogues of reductions and products, merged products, and raised operators.
    #[default]
    Full,
}

/// A part of [`Fusion::Full`] that can be disabled to measure its effect.
///
/// ```
/// use wgfc_compiler::{Options, Technique};
/// // Full fusion, but every bit is that of the unfused model.
/// let options = Options { without: [Technique::Approximate].into(), ..Options::default() };
/// assert!(!options.fuses(Technique::Approximate) && options.fuses(Technique::Merge));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Technique {
    /// Rewrites that change the last bits, among them raised norms, softmax and attention.
    Approximate,
    /// Merging of products that share an operand: Q, K and V; gate and up.
    Merge,
    /// Epilogues: elementwise operations after a product or a reduction, computed in its kernel (activations,
    /// residuals, rotary embeddings).
    Epilogues,
    /// Norms fused into the following product: their scale is applied to its results.
    WaitingScales,
    /// Attention split over the keys among several workgroups; the reader combines the partial results.
    KeyParts,
    /// Loops as one kernel if their steps are independent along some axes.
    Loops,
    /// Such loops with one invocation for each position along these axes.
    LoopsInInvocations,
    /// Such loops with one workgroup for each position along these axes.
    LoopsInWorkgroups,
    /// Other memory orders of the axes of intermediate tensors and weights, if the kernels take less time with them.
    Layouts,
    /// Winograd convolution for 3 × 3 kernels, if it takes less time.
    Winograd,
    /// Several small kernels in one dispatch, in which one workgroup runs them one after another.
    Sequences,
}

/// The storage type of f32 values in memory. Kernels compute in f32 in any case.
///
/// ```
/// use wgfc_compiler::{Options, Precision};
/// // Half the memory. The values of one node keep their range.
/// let keep_f32 = vec!["logits".to_owned()];
/// let options = Options { precision: Precision::F16, keep_f32, ..Options::default() };
/// # drop(options);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// The model's own types.
    #[default]
    F32,
    /// f16, except for values that need the range or the precision of f32: see [`precision`](crate::precision).
    F16,
}

/// The storage format of the weights of products.
///
/// ```
/// use wgfc_compiler::{Options, WeightBits};
/// let options = Options { weights: WeightBits::Q4, ..Options::default() };
/// assert_eq!(options.weights.bits(), 4);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightBits {
    /// The model's own types, or those of [`Options::precision`].
    #[default]
    Own,
    /// 8 bits, with a scale for each block: see [`weights`](crate::weights).
    Q8,
    /// 4 bits, with a scale for each block.
    Q4,
}

impl WeightBits {
    /// The bits of an element; 0 if the weights are not quantised.
    pub fn bits(self) -> u32 {
        match self {
            WeightBits::Own => 0,
            WeightBits::Q8 => 8,
            WeightBits::Q4 => 4,
        }
    }
}

/// The precision of what products multiply with quantised weights.
///
/// ```
/// use wgfc_compiler::{Activations, Options, WeightBits};
/// let options = Options { weights: WeightBits::Q4, activations: Activations::Q8, ..Options::default() };
/// # drop(options);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// As they are.
    #[default]
    Own,
    /// Products with quantised weights may round the other operand to 8 bits, in groups of 32 elements that share a scale (the greatest
    /// magnitude over 127), and multiply integers. Products of few rows do where that takes less time. A relative error of about
    /// 0.5 % of a product's result is usual. A NaN of a group may be lost.
    Q8,
}

/// The type of the caches of decoders: of states that grow, and of those that are written at given positions.
///
/// ```
/// use wgfc_compiler::{CacheType, Options, States};
/// // A quarter of the memory of f32.
/// let states = States::Auto { capacity: None };
/// let options = Options { states, cache: CacheType::Q8, ..Options::default() };
/// assert_eq!(options.cache.to_string(), "q8");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheType {
    /// The type of the model, or f16 with [`Precision::F16`].
    #[default]
    Own,
    /// The type of the model, also with [`Precision::F16`].
    F32,
    /// f16, also with [`Precision::F32`].
    F16,
    /// 8 bits, with a scale in f32 for each [`GROUP`](crate::states::GROUP) elements of a head.
    Q8,
}

impl std::fmt::Display for CacheType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CacheType::Own => "own",
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Q8 => "q8",
        })
    }
}

/// The inputs and outputs that become states: tensors that are kept on the device from run to run.
///
/// ```
/// use wgfc_compiler::{Options, States};
/// // Caches stay on the device, and each session gives them room.
/// let caches = Options { states: States::Auto { capacity: None }, ..Options::default() };
/// // The model returns as `h_next` what it takes as `h` in the next run.
/// let pairs = vec![("h".to_owned(), "h_next".to_owned())];
/// let named = Options { states: States::Named { pairs, capacity: None }, ..Options::default() };
/// assert_ne!(caches, named);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum States {
    /// None: the caller passes them from run to run.
    #[default]
    None,
    /// Pairs recognised by structure: an output that is an input with new elements appended along an axis, or an input
    /// with some of its elements replaced.
    Auto {
        /// The capacity in positions of a state that grows along an axis. `None`: it is a symbol of the program, which
        /// each session sets and may let grow.
        capacity: Option<usize>,
    },
    /// The given pairs of an input's and an output's name.
    Named {
        /// Names of an input and of the output that continues it.
        pairs: Vec<(String, String)>,
        /// The capacity in positions of a state, as in [`States::Auto`].
        capacity: Option<usize>,
    },
}

/// The scaling of the gradients of a training step, so that f16 holds them: see [`loss_scale`](crate::loss_scale).
///
/// ```
/// use wgfc_compiler::{LossScale, Options, Precision};
/// let loss_scale = Some(LossScale { initial: 1024, ..LossScale::default() });
/// let options = Options { precision: Precision::F16, loss_scale, ..Options::default() };
/// # drop(options);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossScale {
    /// The scale of the first step: a power of two up to 2^24.
    pub initial: u32,
    /// The scale doubles after this many steps in a row whose gradients are finite.
    pub interval: u32,
}

impl Default for LossScale {
    /// 65,536, and 2,000 steps.
    fn default() -> LossScale {
        LossScale { initial: 1 << 16, interval: 2000 }
    }
}

/// Options of a compilation. Further options may be added: write the rest as `..Options::default()`.
///
/// ```
/// use wgfc_compiler::{DeviceProfile, Options, schedule::cost::Expected};
/// let options = Options {
///     // The batch is fixed, and sequences are expected to be long.
///     dims: [("batch".to_owned(), 1)].into(),
///     expect: Expected([("seq".to_owned(), 4096)].into()),
///     // The target has the features of a discrete GPU.
///     profile: DeviceProfile::named("discrete").expect("a profile"),
///     ..Options::default()
/// };
/// assert_eq!(options.dims["batch"], 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The extent of fusion.
    pub fusion: Fusion,
    /// Symbolic dimensions to fix: name to value.
    pub dims: BTreeMap<String, i64>,
    /// Inputs to fix: name to value. They become constants and are not inputs of the program. Values that decide
    /// shapes (axes, sizes, limits of a range) must be known while compiling.
    pub values: BTreeMap<String, Tensor>,
    /// The tensors that are kept on the device from run to run.
    pub states: States,
    /// The techniques to exclude from full fusion.
    pub without: BTreeSet<Technique>,
    /// The names of passes to leave out: [`passes`](crate::passes). A name that does not exist, and a pass without which a compilation
    /// cannot work, are errors.
    pub without_passes: BTreeSet<String>,
    /// Expected values of symbolic dimensions that are not fixed: name to value. Choices are optimised for them. A
    /// name that the model does not have is an error.
    pub expect: Expected,
    /// The device to compile for.
    pub profile: DeviceProfile,
    /// Schedules measured on the target, which take precedence over those of the cost models; those that do not fit
    /// are ignored.
    pub tuning: Tuning,
    /// Schedules given by the user, which take precedence over all others; one that does not fit is an error.
    pub schedules: Tuning,
    /// Tensors of the model to return as extra outputs; fusion stops at them.
    pub taps: Vec<String>,
    /// Tensors of the model that a run may replace as a whole or in parts: [`lower::inside`](crate::lower::inside).
    pub replaced: Vec<String>,
    /// Tensors of the model to which a run may add.
    pub added: Vec<String>,
    /// The storage type of f32 values in memory.
    pub precision: Precision,
    /// The model is a training step whose gradients are scaled. `None` leaves them as they are.
    pub loss_scale: Option<LossScale>,
    /// The storage format of the weights of products.
    pub weights: WeightBits,
    /// The precision of what products multiply with quantised weights.
    pub activations: Activations,
    /// The type of caches.
    pub cache: CacheType,
    /// The positions of a page, if the caches of a decoder are to be pools of pages, which sequences of any length share:
    /// [`import::decoder`](crate::import::decoder). Only models whose files hold no graph can be compiled so.
    pub page: Option<i64>,
    /// Nodes of the model whose values stay f32 in memory, and whose weights are not quantised. A name that the model
    /// does not have is an error.
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
    /// Whether values or weights are kept or multiplied in other types than the model's own.
    pub fn changes_values(&self) -> bool {
        self.precision != Precision::F32
            || self.weights != WeightBits::Own
            || self.activations != Activations::Own
            || self.cache != CacheType::Own
    }

    /// Whether fusion is full and includes this technique.
    pub fn fuses(&self, t: Technique) -> bool {
        self.fusion == Fusion::Full && !self.without.contains(&t)
    }
}
