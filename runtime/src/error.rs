//! Errors of a run.

use crate::session::DeviceMemory;
use std::fmt;
use wgfc_program::suggest::Relation;

/// An input that the program does not accept.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
/// use wgfc_runtime::RunError;
/// let Err(RunError::Inputs(bad)) = session.run_blocking(&[]) else { panic!("x is missing") };
/// assert_eq!(bad[0].name, "x");
/// println!("{}", bad[0]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadInput {
    /// The input's name, or the symbol's.
    pub name: String,
    /// The problem and the expectation.
    pub message: String,
}

/// The words for the memory of a device.
fn has(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| ", which the device does not have".to_owned(), |b| format!("; there are {b}"))
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "input \"{}\": {}", self.name, self.message)
    }
}

/// A plan that was not used, and the reason. See the example of [`plans::choose`](crate::plans::choose).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotTaken {
    /// The plan's name.
    pub plan: String,
    /// The reason.
    pub why: String,
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plan \"{}\": {}", self.plan, self.why.replace('\n', "\n  "))
    }
}

fn lines<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(|i| format!("\n  {i}")).collect()
}

/// The message about the node whose constraint is violated, or about the model if `node` is empty.
fn needs(node: &str, relation: Relation, a: (&str, i64), b: (&str, i64)) -> String {
    let who = if node.is_empty() { "the model".to_owned() } else { format!("node \"{node}\"") };
    format!("{who} {}", wgfc_program::suggest::needed(relation, a, b))
}

/// The error of loading or running a program. Nothing in this crate panics on a bad program or input.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
/// # let x = wgfc_program::Tensor::from_f32(vec![1], &[1.0]);
/// use wgfc_runtime::RunError;
/// match session.run_blocking(&[("x", x)]) {
///     Ok(outputs) => println!("{outputs:?}"),
///     Err(RunError::Inputs(bad)) => bad.iter().for_each(|b| eprintln!("{b}")),
///     // A new device and new sessions are needed.
///     Err(RunError::DeviceLost(why)) => eprintln!("the device is lost: {why}"),
///     Err(e) => return Err(e),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no adapter, or none that matches the choice.
    #[error("no GPU adapter: {wanted}; found: {found}")]
    NoAdapter {
        /// The adapter that was asked for.
        wanted: String,
        /// The adapters that were found, or `none`.
        found: String,
    },
    /// The adapter did not open a device.
    #[error("adapter \"{adapter}\" gives no device: {message}")]
    NoDevice {
        /// The adapter's name.
        adapter: String,
        /// The driver's reason.
        message: String,
    },
    /// The program exceeds a limit of the device.
    #[error("{what} needs {need}, and this device has {have}")]
    Limits {
        /// The resource that exceeds the limit: `weight "embed" (one binding, bytes)`.
        what: String,
        /// The amount that is needed.
        need: u64,
        /// The device's limit.
        have: u64,
    },
    /// The driver silently ends loops after a number of iterations, which this kernel may exceed.
    #[error(
        "kernel `{kernel}` of {nodes} may take more iterations of its loops than the {most} after which this driver \
         ends them: {why}"
    )]
    Loops {
        /// The kernel's name.
        kernel: String,
        /// The nodes of the model that it computes.
        nodes: String,
        /// The number of iterations that the driver allows for all loops of an invocation together.
        most: u32,
        /// The number of iterations that the kernel may have.
        why: String,
    },
    /// The program needs a feature that the device lacks.
    #[error("kernel `{kernel}` needs the WebGPU feature `{feature}`, which this device lacks")]
    Feature {
        /// The kernel's name.
        kernel: String,
        /// The feature's name: `shader-f16`, `subgroups`, ….
        feature: String,
    },
    /// A device lacks features or limits that a program needs: see [`Requirements`](crate::Requirements).
    #[error("the program needs what this device does not have:{}", lines(.0))]
    Lacking(Vec<String>),
    /// A buffer of the caller cannot hold a tensor.
    #[error("the buffer cannot be a tensor of the program: {why}")]
    Buffer {
        /// The fault, and the expectation.
        why: String,
    },
    /// A tensor that was given for an output does not fit.
    #[error("the tensor for output \"{name}\" does not fit: {why}")]
    Output {
        /// The output's name.
        name: String,
        /// The fault, and the expectation.
        why: String,
    },
    /// The program cannot be recorded into an encoder of the caller; [`Session::run`](crate::Session::run) can run it.
    #[error("the program cannot be recorded into an encoder: {why}")]
    Encode {
        /// The reason.
        why: String,
    },
    /// The device can run none of the plans.
    #[error("the device can run none of the plans:{}", lines(.0))]
    NoPlan(Vec<NotTaken>),
    /// None of the plans accepts the inputs.
    #[error("the inputs fit none of the plans:{}", lines(.0))]
    NoFit(Vec<NotTaken>),
    /// The device's memory is exhausted.
    #[error("out of device memory: {what}")]
    OutOfMemory {
        /// The resource that was being allocated.
        what: String,
    },
    /// Weights and states do not fit the device's memory. Nothing was read or uploaded.
    #[error("weights and states do not fit the device's memory: {needs}{}", has(*.have))]
    DoesNotFit {
        /// The memory that is needed.
        needs: DeviceMemory,
        /// The bytes that the device has; `None` if they are not known, and it refused to reserve them.
        have: Option<u64>,
    },
    /// The device was lost: a driver reset, a hung kernel, an unplugged GPU. Open a new [`crate::Gpu`].
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// The plan is inconsistent: it was edited, damaged, or written by another version.
    #[error("the program is not consistent:{}", lines(.0))]
    Plan(Vec<String>),
    /// The program was compiled without its weights.
    #[error("weight \"{name}\" is absent: this program can be inspected, not run")]
    WeightAbsent {
        /// The first missing weight.
        name: String,
    },
    /// A kernel does not compile. Unless it was edited, this is a bug in wgfc.
    #[error("kernel `{kernel}` does not compile:\n{message}")]
    Shader {
        /// The kernel's name.
        kernel: String,
        /// The message of the shader compiler.
        message: String,
    },
    /// Inputs are missing, unknown, or of the wrong type or shape.
    #[error("the inputs do not fit the program:{}", lines(.0))]
    Inputs(Vec<BadInput>),
    /// Two sizes violate a relation that the model requires, such as equality, for these inputs.
    #[error("{}", needs(node, *relation, (a, *a_value), (b, *b_value)))]
    Constraint {
        /// A suggestion of values for the symbols that satisfy the relation.
        help: Option<String>,
        /// The node that requires the relation; empty if the model does.
        node: String,
        /// The relation that is required.
        relation: Relation,
        /// The left side, as an expression over the symbols.
        a: String,
        /// The value of the left side.
        a_value: i64,
        /// The right side, as an expression over the symbols.
        b: String,
        /// The value of the right side.
        b_value: i64,
    },
    /// There is no input, output, state or symbol of this name.
    #[error("there is no {what} \"{name}\"; there is: {known}")]
    Unknown {
        /// The kind of thing that was asked for: `output`, `state`, ….
        what: &'static str,
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A run would exceed the capacity of a state. Nothing has been run.
    #[error("state \"{state}\" holds {length} of at most {capacity} positions: {request} more do not fit")]
    StateFull {
        /// The state's name.
        state: String,
        /// Positions in use.
        length: i64,
        /// Positions that the run would add.
        request: i64,
        /// The capacity in positions.
        capacity: i64,
    },
    /// A loop that ends on a condition has not ended within its largest number of rounds. The run has no results, and the
    /// contents of states are undefined.
    #[error("the loop of {of} has not ended after {rounds} rounds of {dispatches} dispatches: {why}")]
    Endless {
        /// The model's nodes of the loop.
        of: String,
        /// The largest number of rounds.
        rounds: u64,
        /// The number of dispatches of a round.
        dispatches: usize,
        /// The plan's reason.
        why: String,
    },
    /// A run of a [`Stream`](crate::session::Stream) failed.
    #[error("step {step}: {error}")]
    Step {
        /// The run's number.
        step: u64,
        /// The error.
        error: Box<RunError>,
    },
    /// The request is not possible for the state.
    #[error("state \"{state}\": {message}")]
    State {
        /// The state's name.
        state: String,
        /// The reason.
        message: String,
    },
    /// With [`canaries`](crate::session::SessionOptions::canaries): a kernel has written behind the end of a buffer. This is a
    /// bug in wgfc, or the plan was edited.
    #[error("a kernel has written {past} bytes behind the end of {buffer}, which {writers} writes")]
    OutOfBounds {
        /// The buffer's description.
        buffer: String,
        /// The offset of the first overwritten byte from the buffer's end.
        past: u64,
        /// The nodes whose kernels write the buffer.
        writers: String,
    },
    /// wgpu returned an error. This is a bug in wgfc, or the plan was edited.
    #[error("{what}: {message}")]
    Gpu {
        /// The action that failed.
        what: String,
        /// wgpu's message.
        message: String,
    },
}
