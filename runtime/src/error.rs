//! Errors of a run.

use std::fmt;
use wgfc_program::suggest::Relation;

/// One input that does not fit the program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadInput {
    /// The input's name, or the symbol's.
    pub name: String,
    /// The fault and the expectation.
    pub message: String,
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "input \"{}\": {}", self.name, self.message)
    }
}

/// A plan that is not run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotTaken {
    /// The plan's name.
    pub plan: String,
    /// Why it is not.
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

/// The message about the node whose condition is violated, or about the model where none is named.
fn needs(node: &str, relation: Relation, a: (&str, i64), b: (&str, i64)) -> String {
    let who = if node.is_empty() { "the model".to_owned() } else { format!("node \"{node}\"") };
    format!("{who} {}", wgfc_program::suggest::needed(relation, a, b))
}

/// Why a program could not be loaded or run. Nothing in this crate panics on a bad program or input.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no adapter, or none that fits the choice.
    #[error("no GPU adapter: {wanted}; found: {found}")]
    NoAdapter {
        /// The adapter that was asked for.
        wanted: String,
        /// The adapters there are, or `none`.
        found: String,
    },
    /// The adapter would not open a device.
    #[error("adapter \"{adapter}\" gives no device: {message}")]
    NoDevice {
        /// The adapter's name.
        adapter: String,
        /// The driver's reason.
        message: String,
    },
    /// The program needs more than the device has.
    #[error("{what} needs {need}, and this device has {have}")]
    Limits {
        /// The binding that needs it: `weight "embed" (one binding, bytes)`.
        what: String,
        /// How much it needs.
        need: u64,
        /// How much there is.
        have: u64,
    },
    /// The driver ends loops before they are done, without saying so, and this kernel may take more iterations.
    #[error(
        "kernel `{kernel}` of {nodes} may take more iterations of its loops than the {most} after which this driver \
         ends them: {why}"
    )]
    Loops {
        /// The kernel's name.
        kernel: String,
        /// The nodes of the model that it computes.
        nodes: String,
        /// Iterations that the driver allows, of all loops of an invocation together.
        most: u32,
        /// How many there may be.
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
    /// A device was made, or is about to be, without all that a program needs: see [`Requirements`](crate::Requirements).
    #[error("the program needs what this device does not have:{}", lines(.0))]
    Lacking(Vec<String>),
    /// A buffer of the caller's cannot be a tensor.
    #[error("the buffer cannot be a tensor of the program: {why}")]
    Buffer {
        /// The fault, and the expectation.
        why: String,
    },
    /// A tensor that was given to hold an output cannot.
    #[error("the tensor for output \"{name}\" does not fit: {why}")]
    Output {
        /// The output's name.
        name: String,
        /// The fault, and the expectation.
        why: String,
    },
    /// The program cannot be recorded into an encoder of the caller's; [`Session::run`](crate::Session::run) runs it.
    #[error("the program cannot be recorded into an encoder: {why}")]
    Encode {
        /// The reason.
        why: String,
    },
    /// The device can run none of several plans.
    #[error("the device can run none of the plans:{}", lines(.0))]
    NoPlan(Vec<NotTaken>),
    /// The inputs fit none of several plans.
    #[error("the inputs fit none of the plans:{}", lines(.0))]
    NoFit(Vec<NotTaken>),
    /// The device's memory is exhausted.
    #[error("out of device memory: {what}")]
    OutOfMemory {
        /// The thing that was being allocated.
        what: String,
    },
    /// The device went away: a driver reset, a hung kernel, an unplugged GPU. Open a new [`crate::Gpu`].
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// The plan contradicts itself; it was edited, damaged, or written by another version.
    #[error("the program is not consistent:{}", lines(.0))]
    Plan(Vec<String>),
    /// The program was compiled without its weights.
    #[error("weight \"{name}\" is absent: this program can be inspected, not run")]
    WeightAbsent {
        /// The first one missing.
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
    /// Two dimensions do not stand to each other as the model needs them to for these inputs.
    #[error("{}", needs(node, *relation, (a, *a_value), (b, *b_value)))]
    Constraint {
        /// Values of symbols for which they do, in words.
        help: Option<String>,
        /// The node that needs it; empty where the model itself does.
        node: String,
        /// The relation that they must have.
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
    /// No such input, output or state.
    #[error("there is no {what} \"{name}\"; there is: {known}")]
    Unknown {
        /// The kind of thing that was asked for: `output`, `state`, ….
        what: &'static str,
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A run would fill a state beyond its capacity. Nothing has been run.
    #[error("state \"{state}\" holds {length} of at most {capacity} positions: {request} more do not fit")]
    StateFull {
        /// The state's name.
        state: String,
        /// Positions in use.
        length: i64,
        /// Positions that the run would add.
        request: i64,
        /// Positions that the state has room for.
        capacity: i64,
    },
    /// A loop that runs until a condition ends it was not ended in as many iterations as it may take. The run
    /// has no results; what states hold is undefined.
    #[error("the loop of {of} has not ended after {rounds} rounds of {dispatches} dispatches: {why}")]
    Endless {
        /// The nodes of the model that it is.
        of: String,
        /// Rounds that it may take.
        rounds: u64,
        /// Dispatches of a round.
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
    /// The request does not fit the state.
    #[error("state \"{state}\": {message}")]
    State {
        /// The state's name.
        state: String,
        /// The reason.
        message: String,
    },
    /// With [`canaries`](crate::session::SessionOptions::canaries): a kernel has written behind a buffer. This is a bug in wgfc, or
    /// an edited plan.
    #[error("a kernel has written {past} bytes behind the end of {buffer}, which {writers} writes")]
    OutOfBounds {
        /// Which buffer.
        buffer: String,
        /// The first byte overwritten, from the buffer's end on.
        past: u64,
        /// The nodes whose kernels write the buffer.
        writers: String,
    },
    /// wgpu refused a call. This is a bug in wgfc, or an edited plan.
    #[error("{what}: {message}")]
    Gpu {
        /// The action during which it occurred.
        what: String,
        /// wgpu's message.
        message: String,
    },
}
