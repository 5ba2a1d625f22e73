//! Programs on devices, and their runs.

mod canaries;
mod encode;
mod late;
mod memory;
mod prepared;
mod rounds;
mod stream;

use crate::bind::{self, Bound};
use crate::check;
use crate::error::RunError;
use crate::gpu::Gpu;
use crate::kernel::{self, Checks, Pipeline};
use crate::platform;
use crate::state::StateSet;
use crate::tensor::{self, DeviceTensor, Memory};
use crate::upload;
use late::Late;
use prepared::Piece;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use wgfc_program::program::BufferKind;
use wgfc_program::tensor::{ByteOwner, Data};
use wgfc_program::{DType, Program, Tensor};

pub use crate::state::Place;
pub use encode::Encoded;
pub use memory::DeviceMemory;
pub(crate) use prepared::{Dispatch, Prepared, Ready};
pub use stream::{Finished, Staging, Stream, StreamOptions};

/// An input: from the host, or already on the device.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// use wgfc_program::Tensor;
/// use wgfc_runtime::session::Value;
/// let x = Tensor::from_f32(vec![3], &[1.0, 2.0, 3.0]);
/// let on_device = Value::from(gpu.upload_blocking(&x)?);
/// let on_host = Value::from(x);
/// assert_eq!(on_device.shape(), on_host.shape());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub enum Value {
    /// A tensor that is copied to the device.
    Host(Tensor),
    /// A tensor that is bound without a copy.
    Device(DeviceTensor),
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Value {
        Value::Host(t)
    }
}
impl From<DeviceTensor> for Value {
    fn from(t: DeviceTensor) -> Value {
        Value::Device(t)
    }
}

impl Value {
    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            Value::Host(t) => t.dtype,
            Value::Device(t) => t.dtype,
        }
    }
    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        match self {
            Value::Host(t) => &t.shape,
            Value::Device(t) => &t.shape,
        }
    }
}

/// The options of a [`Session`].
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let program = wgfc_runtime::testing::summing();
/// use wgfc_runtime::kernel::Checks;
/// use wgfc_runtime::session::{Session, SessionOptions};
/// // The program was compiled by this process, and its state is to hold 1000 positions at first.
/// let options = SessionOptions { checks: Checks::Trusted, capacity: 1000, ..Default::default() };
/// let session = Session::with_options_blocking(gpu, &program, options)?;
/// assert_eq!(session.capacity(), Some(1000));
/// # Ok(()) }
/// ```
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// use wgfc_program::Tensor;
/// use wgfc_runtime::{Session, testing};
/// // y = 2·x, where x is f32[n].
/// let mut session = Session::new_blocking(gpu, &testing::doubling())?;
/// for n in [3, 100] {
///     let outputs = session.run_blocking(&[("x", Tensor::from_f32(vec![n], &vec![1.5; n]))])?;
///     let (name, y) = &outputs[0];
///     assert_eq!((name.as_str(), y.to_f32s()), ("y", Some(vec![3.0; n])));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// The run-time checks of kernels.
    pub checks: Checks,
    /// The initial capacity of states in positions, if the program leaves it open. It is rounded up if positions are not whole
    /// words. [`Session::grow`] increases it.
    pub capacity: usize,
    /// The most bytes of device memory that weights and states may take; `None` for those that the device has
    /// ([`Gpu::memory`](crate::Gpu::memory)).
    pub memory: Option<u64>,
    /// For tests: buffers share no memory. Memory that no kernel has written is filled with NaN, and so are 256 bytes behind each
    /// buffer, where a write is [`RunError::OutOfBounds`]. Each run is waited for.
    pub canaries: bool,
}

impl Default for SessionOptions {
    /// Checks of unproven kernels, and room for 256 positions.
    fn default() -> SessionOptions {
        SessionOptions { checks: Checks::default(), capacity: 256, memory: None, canaries: false }
    }
}

/// The requested outputs by name, and the lengths of the states after the run.
type Ran = (Vec<(String, Tensor)>, Vec<(String, i64)>);

/// The place of a weight in host memory: the address of its owner, its offset and its length.
type HostPlace = (usize, usize, usize);

/// The place of a weight, its owner and the number of its bytes.
fn weight_place(program: &Program, name: &str) -> Result<(HostPlace, Arc<dyn ByteOwner>, usize), RunError> {
    let absent = || RunError::WeightAbsent { name: name.to_owned() };
    let tensor = program.weights.get(name).ok_or_else(absent)?;
    let len = tensor.byte_len().ok_or_else(absent)?;
    let (owner, offset): (Arc<dyn ByteOwner>, usize) = match &tensor.data {
        Data::Bytes { owner, offset, .. } => (owner.clone(), *offset),
        Data::Joined(j) => (j.clone(), 0),
        Data::Halved(h) => (h.clone(), 0),
        Data::Derived(d) => (d.clone(), 0),
        Data::Remote { stretch, offset, .. } if stretch.bytes().is_some() => (stretch.clone(), *offset),
        Data::Remote { .. } | Data::Absent => return Err(absent()),
    };
    Ok(((Arc::as_ptr(&owner).cast::<()>() as usize, offset, len), owner, len))
}

/// A weight that is to be uploaded: its name, its values, and its buffer.
type NewWeight<'p> = (&'p str, &'p Tensor, wgpu::Buffer);

/// The bytes of the buffer of a weight.
fn weight_bytes(len: usize) -> u64 {
    len.next_multiple_of(4).max(16) as u64
}

/// A weight on the device, by its [`HostPlace`]. The weak reference prevents the reuse of the address without keeping the bytes alive.
#[derive(Clone)]
struct Uploaded {
    _owner: Weak<dyn ByteOwner>,
    buffer: wgpu::Buffer,
}

impl std::fmt::Debug for Uploaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.buffer.fmt(f)
    }
}

/// A loaded program.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// use wgfc_program::Tensor;
/// use wgfc_runtime::{Session, testing};
/// // y = 2·x, where x is f32[n].
/// let mut session = Session::new_blocking(gpu, &testing::doubling())?;
/// for n in [3, 100] {
///     let outputs = session.run_blocking(&[("x", Tensor::from_f32(vec![n], &vec![1.5; n]))])?;
///     let (name, y) = &outputs[0];
///     assert_eq!((name.as_str(), y.to_f32s()), ("y", Some(vec![3.0; n])));
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Session {
    pub(crate) gpu: Gpu,
    pub(crate) checks: Checks,
    pub(crate) canaries: bool,
    pub(crate) program: Program,
    pub(crate) pipelines: Vec<Pipeline>,
    /// The buffers of weights and states, by the program's buffer index.
    resident: Vec<Option<wgpu::Buffer>>,
    weights: HashMap<HostPlace, Uploaded>,
    pub(crate) states: Arc<StateSet>,
    /// The version of the states' buffers that is bound.
    placed: u64,
    arenas: Vec<wgpu::Buffer>,
    dims: Arc<Memory>,
    dims_written: Option<Vec<i64>>,
    /// Whether a run has been recorded into an encoder of the caller, who may submit it at any time.
    encoded: bool,
    /// Pools of buffers, first one for each input, then one for each output.
    pools: Vec<Vec<Arc<Memory>>>,
    bound: HashMap<Vec<i64>, Arc<Bound>>,
    groups: Vec<HashMap<Vec<Piece>, wgpu::BindGroup>>,
    prepared: Vec<Arc<Prepared>>,
    staging: Option<wgpu::Buffer>,
    longer: platform::Longer,
    symbols: BTreeMap<String, i64>,
}

/// A run in progress: see [`Session::start`].
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
/// use wgfc_program::Tensor;
/// let x = Tensor::from_f32(vec![1], &[1.0]);
/// let first = session.start_blocking(&[("x", x.into())], None)?;
/// // The output of the first run is the input of the second, before anything has been waited for.
/// let y = first.output("y").expect("y is an output").clone();
/// let second = session.start_blocking(&[("x", y.into())], None)?;
/// assert_eq!(first.read_blocking()?[0].1.to_f32s(), Some(vec![2.0]));
/// assert_eq!(second.read_blocking()?[0].1.to_f32s(), Some(vec![4.0]));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Started {
    outputs: Vec<(String, DeviceTensor)>,
    transfer: Transfer,
}

/// Outputs on their way to the host.
#[derive(Debug)]
struct Transfer {
    gpu: Gpu,
    /// The places of the outputs in the transfer buffer, followed by the sizes that `late` reads.
    packed: Vec<tensor::Packed>,
    staging: wgpu::Buffer,
    sent: wgpu::SubmissionIndex,
    /// The sizes to read if the run computes shapes of outputs.
    late: Option<Late>,
}

impl Started {
    /// An output on the device, which can be an input of the next run.
    pub fn output(&self, name: &str) -> Option<&DeviceTensor> {
        self.outputs.iter().find_map(|(n, t)| (n == name).then_some(t))
    }

    /// Waits for this run, but not for later ones, and returns its outputs on the host.
    pub async fn read(self) -> Result<Vec<(String, Tensor)>, RunError> {
        Ok(self.collect().await?.0)
    }

    async fn collect(self) -> Result<(Vec<(String, Tensor)>, wgpu::Buffer), RunError> {
        let (values, staging) = self.transfer.collect().await?;
        Ok((self.outputs.into_iter().map(|(n, _)| n).zip(values).collect(), staging))
    }
}

impl Transfer {
    /// Waits for the run, and returns its outputs and the transfer buffer.
    async fn collect(self) -> Result<(Vec<Tensor>, wgpu::Buffer), RunError> {
        let mut values = tensor::collect(&self.gpu, &self.packed, &self.staging, self.sent).await?;
        if let Some(late) = &self.late
            && let Some(dims) = values.pop()
        {
            let shapes = late.shapes(&dims)?;
            for (v, i) in values.iter_mut().zip(&late.wanted) {
                *v = tensor::cut(v, &shapes[*i])?;
            }
        }
        Ok((values, self.staging))
    }
}

impl Session {
    /// Checks the program, compiles its kernels and uploads its weights.
    ///
    /// # Errors
    /// [`RunError::Plan`] for an inconsistent plan, [`RunError::Limits`] and [`RunError::Feature`] for a device that lacks
    /// something, [`RunError::Shader`], [`RunError::WeightAbsent`], [`RunError::OutOfMemory`].
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let program = wgfc_runtime::testing::doubling();
    /// use wgfc_runtime::{RunError, Session};
    /// let session = Session::new(gpu, &program).await?;
    /// assert_eq!(session.program().outputs[0].name, "y");
    /// // A program that is not consistent is an error.
    /// let mut broken = program;
    /// broken.buffers.clear();
    /// assert!(matches!(Session::new(gpu, &broken).await, Err(RunError::Plan(_))));
    /// # Ok(()) }) }
    /// ```
    pub async fn new(gpu: &Gpu, program: &Program) -> Result<Session, RunError> {
        Session::with_options(gpu, program, SessionOptions::default()).await
    }

    /// [`Session::new`] with options.
    pub async fn with_options(
        gpu: &Gpu,
        program: &Program,
        options: SessionOptions,
    ) -> Result<Session, RunError> {
        let mut one = Session::family(gpu, &[program], options).await?;
        one.pop().ok_or_else(|| RunError::Plan(vec!["there is no program".to_owned()]))
    }

    /// Sessions of several programs that share states, as if all but the first were made with [`Session::sibling`]. All kernels
    /// are compiled together; natively, the weights are uploaded at the same time.
    ///
    /// # Errors
    /// As [`Session::new`] and [`Session::sibling`].
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let (long, short) = (wgfc_runtime::testing::summing(), wgfc_runtime::testing::summing());
    /// use wgfc_runtime::session::{Session, SessionOptions};
    /// // Two programs of one model: their sessions have the same states.
    /// let sessions = Session::family(gpu, &[&long, &short], SessionOptions::default()).await?;
    /// assert_eq!(sessions.len(), 2);
    /// # Ok(()) }) }
    /// ```
    pub async fn family(
        gpu: &Gpu,
        programs: &[&Program],
        options: SessionOptions,
    ) -> Result<Vec<Session>, RunError> {
        if let Some((first, others)) = programs.split_first() {
            others.iter().try_for_each(|p| crate::state::fit(p, first))?;
        }
        Session::build(gpu, programs, options, None).await
    }

    /// Sessions of several programs. With `kin` they share its states, and its equal weights and kernels.
    pub(crate) async fn build(
        gpu: &Gpu,
        programs: &[&Program],
        options: SessionOptions,
        kin: Option<&Session>,
    ) -> Result<Vec<Session>, RunError> {
        let problems: Vec<String> = programs.iter().flat_map(|p| check::check(p)).collect();
        if !problems.is_empty() {
            return Err(RunError::Plan(problems));
        }
        let compile = || {
            let kernels = programs.iter().flat_map(|p| kernel::kernels(p));
            // Pipelines of `kin` can be reused only if they were compiled with the same checks.
            let kin = kin.filter(|k| k.checks == options.checks);
            let known = kin.into_iter().flat_map(|k| kernel::kernels(&k.program).zip(&k.pipelines));
            kernel::compile_all(gpu, kernels, options.checks, known)
        };
        let place = || Session::placed(gpu, programs, options, kin);
        let (pipelines, sessions) = platform::both(compile, place).await;
        let (mut pipelines, mut sessions) = (pipelines?.into_iter(), sessions?);
        // Calls on a lost device return no errors.
        gpu.health()?;
        for s in &mut sessions {
            s.pipelines = pipelines.by_ref().take(s.program.kernels.len()).collect();
        }
        Ok(sessions)
    }

    /// Sessions with weights and states on the device, but without pipelines. No weight is read before there is memory for all.
    async fn placed(
        gpu: &Gpu,
        programs: &[&Program],
        options: SessionOptions,
        kin: Option<&Session>,
    ) -> Result<Vec<Session>, RunError> {
        // Programs that join a session bring few weights of their own.
        let have = options.memory.into_iter().chain(gpu.memory()).min();
        let needs = DeviceMemory::needed(programs, &options)?;
        if kin.is_none() && have.is_some_and(|have| needs.total() > have) {
            return Err(RunError::DoesNotFit { needs, have });
        }
        let (sessions, new) = match Session::reserved(gpu, programs, options, kin).await {
            Err(RunError::OutOfMemory { .. }) if kin.is_none() => {
                return Err(RunError::DoesNotFit { needs, have });
            }
            reserved => reserved?,
        };
        upload::tensors(gpu, &new).await?;
        Ok(sessions)
    }

    /// Sessions with memory for weights and states, but without pipelines, and the weights that are to be uploaded.
    async fn reserved<'p>(
        gpu: &Gpu,
        programs: &[&'p Program],
        options: SessionOptions,
        kin: Option<&Session>,
    ) -> Result<(Vec<Session>, Vec<NewWeight<'p>>), RunError> {
        let (mut sessions, mut new): (Vec<Session>, _) = (vec![], vec![]);
        for program in programs {
            let mut session = Session::empty(gpu, program, options, vec![]).await?;
            let states = match sessions.last().or(kin) {
                Some(k) => {
                    session.weights = k.weights.clone();
                    k.states.clone()
                }
                None => Arc::new(StateSet::new(gpu, program, options.capacity, session.slack()).await?),
            };
            session.place_states(states);
            new.extend(session.place_weights(program).await?);
            sessions.push(session);
        }
        Ok((sessions, new))
    }

    /// A session without weights and states.
    async fn empty(
        gpu: &Gpu,
        program: &Program,
        options: SessionOptions,
        pipelines: Vec<Pipeline>,
    ) -> Result<Session, RunError> {
        let dims_bytes = (program.symbols.len() as u64 * 4).next_multiple_of(16).max(16);
        use wgpu::BufferUsages as U;
        let dims = gpu.buffer("dimensions", dims_bytes, U::UNIFORM | U::COPY_DST | U::COPY_SRC).await?;
        let dims = Memory::of(dims, dims_bytes);
        let arenas = program.buffers.iter().filter_map(|b| match b.kind {
            BufferKind::Arena { arena, .. } => Some(arena + 1),
            _ => None,
        });
        // The session's program has no weights, so that it does not keep them in host memory.
        Ok(Session {
            gpu: gpu.clone(),
            checks: options.checks,
            canaries: options.canaries,
            pipelines,
            resident: vec![None; program.buffers.len()],
            weights: HashMap::new(),
            states: Arc::default(),
            placed: 0,
            arenas: Vec::with_capacity(arenas.max().unwrap_or(0)),
            dims,
            dims_written: None,
            encoded: false,
            pools: vec![Vec::new(); program.inputs.len() + program.outputs.len()],
            bound: HashMap::new(),
            groups: vec![HashMap::new(); program.dispatches.len()],
            prepared: Vec::new(),
            staging: None,
            longer: platform::Longer::default(),
            symbols: BTreeMap::new(),
            program: Program { weights: BTreeMap::new(), ..program.clone() },
        })
    }

    /// Makes buffers for the weights that are not yet on the device, and returns these weights.
    async fn place_weights<'p>(&mut self, program: &'p Program) -> Result<Vec<NewWeight<'p>>, RunError> {
        let mut new = vec![];
        for (i, b) in program.buffers.iter().enumerate() {
            let BufferKind::Weight { name } = &b.kind else { continue };
            let (place, owner, len) = weight_place(program, name)?;
            if let Some(same) = self.weights.get(&place) {
                self.resident[i] = Some(same.buffer.clone());
                continue;
            }
            let size = weight_bytes(len) + self.slack();
            let buffer = self.gpu.resident(&format!("weight \"{name}\""), size).await?;
            let uploaded = Uploaded { _owner: Arc::downgrade(&owner), buffer: buffer.clone() };
            self.weights.insert(place, uploaded);
            self.resident[i] = Some(buffer.clone());
            new.extend(program.weights.get(name).map(|tensor| (name.as_str(), tensor, buffer)));
        }
        Ok(new)
    }

    /// Uses the buffers of `states` for the program's states.
    fn place_states(&mut self, states: Arc<StateSet>) {
        self.placed = states.version();
        for (slot, b) in self.resident.iter_mut().zip(&self.program.buffers) {
            if let BufferKind::State { name } = &b.kind {
                *slot = states.buffer(name);
            }
        }
        self.states = states;
    }

    /// A session of the same program with the same pipelines and weights on these states.
    pub(crate) async fn twin(&self, states: Arc<StateSet>) -> Result<Session, RunError> {
        let mut twin =
            Session::empty(&self.gpu, &self.program, self.options(), self.pipelines.clone()).await?;
        twin.resident = self.resident.clone();
        twin.weights = self.weights.clone();
        twin.symbols = self.symbols.clone();
        twin.longer = self.longer.clone();
        twin.place_states(states);
        Ok(twin)
    }

    /// The options of this session, except the capacity, which belongs to the states.
    pub(crate) fn options(&self) -> SessionOptions {
        SessionOptions { checks: self.checks, canaries: self.canaries, ..SessionOptions::default() }
    }
    /// The device it runs on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }
    /// The program, without its weights.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Sets the value of a symbol that no input's shape determines, for all later runs. If the symbol is the length of states,
    /// this replaces the length, and the caller must make sure that the states have contents for it. The capacity of states
    /// cannot be set here: see [`Session::grow`].
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let program = wgfc_runtime::testing::summing();
    /// let mut session = wgfc_runtime::Session::new_blocking(gpu, &program)?;
    /// // The number of positions of the state, which no input's shape determines.
    /// session.set_symbol("past", 10)?;
    /// assert_eq!(session.state_len(), 10);
    /// # Ok(()) }
    /// ```
    pub fn set_symbol(&mut self, name: &str, value: i64) -> Result<(), RunError> {
        if !self.program.symbols.iter().any(|s| s == name) {
            return Err(self.unknown("symbol", name, self.program.symbols.iter()));
        }
        self.no_capacity(name)?;
        if !self.set_length(name, value)? {
            self.symbols.insert(name.to_owned(), value);
        }
        Ok(())
    }

    pub(crate) fn unknown<'a>(
        &self,
        what: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a String>,
    ) -> RunError {
        let known: Vec<_> = known.map(|k| format!("\"{k}\"")).collect();
        RunError::Unknown { what, name: name.to_owned(), known: known.join(", ") }
    }

    /// Frees all memory that is kept between runs except weights and states, including the device's staging and transfer buffers.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
    /// use wgfc_program::Tensor;
    /// use wgfc_runtime::session::DeviceMemory;
    /// session.run_blocking(&[("x", Tensor::from_f32(vec![1 << 16], &[1.0; 1 << 16]))])?;
    /// let before = DeviceMemory::of([&session]).total();
    /// session.trim();
    /// assert!(DeviceMemory::of([&session]).total() < before);
    /// # Ok(()) }
    /// ```
    pub fn trim(&mut self) {
        self.gpu.staging().clear();
        self.gpu.keep_transfer(None);
        self.forget_groups();
        self.pools.iter_mut().for_each(Vec::clear);
        self.arenas.clear();
        self.bound.clear();
        self.staging = None;
    }

    fn forget_groups(&mut self) {
        self.prepared.clear();
        self.groups.iter_mut().for_each(HashMap::clear);
    }

    /// Runs with inputs from the host and returns all outputs on the host, in the model's order.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let program = wgfc_runtime::testing::doubling();
    /// use wgfc_program::Tensor;
    /// use wgfc_runtime::{RunError, Session};
    /// let mut session = Session::new(gpu, &program).await?;
    /// let outputs = session.run(&[("x", Tensor::from_f32(vec![2], &[1.0, 2.0]))]).await?;
    /// assert_eq!(outputs[0].1.to_f32s(), Some(vec![2.0, 4.0]));
    /// // Inputs that do not fit are errors.
    /// let e = session.run(&[("x", Tensor::from_i64(vec![2], &[1, 2]))]).await;
    /// assert!(matches!(e, Err(RunError::Inputs(_))));
    /// # Ok(()) }) }
    /// ```
    pub async fn run(&mut self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, RunError> {
        let inputs: Vec<_> = inputs.iter().map(|(n, t)| (*n, Value::Host(t.clone()))).collect();
        self.run_values(&inputs, None).await
    }

    /// Runs with inputs on the host or on the device and returns the named outputs, or all for `None`, on the host. Other outputs
    /// are not read back.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::doubling()).await?;
    /// use wgfc_program::Tensor;
    /// let x = gpu.upload(&Tensor::from_f32(vec![2], &[1.0, 2.0])).await?;
    /// // The input is on the device, and only the output `y` is read back.
    /// let outputs = session.run_values(&[("x", x.into())], Some(&["y"])).await?;
    /// assert_eq!(outputs[0].1.to_f32s(), Some(vec![2.0, 4.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn run_values(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        let (results, lengths) = self.run_once(inputs, outputs).await?;
        self.advance(&lengths);
        Ok(results)
    }

    /// One run. It returns the lengths of the states after the run; the caller decides whether to record them.
    pub(crate) async fn run_once(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Ran, RunError> {
        let (started, lengths) = self.start_once(inputs, outputs).await?;
        let (values, staging) = started.collect().await?;
        self.staging = Some(staging);
        Ok((values, lengths))
    }

    /// Starts a run and the transfer of the named outputs, or of all for `None`, to the host. Later runs execute after it,
    /// whether or not its results have been read, so a loop can start the next run with the outputs of this one before it reads
    /// them. If the run computes the size of an output, this waits for the size.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::doubling()).await?;
    /// use wgfc_program::Tensor;
    /// let run = session.start(&[("x", Tensor::from_f32(vec![1], &[1.0]).into())], Some(&["y"])).await?;
    /// // … other work of the host …
    /// assert_eq!(run.read().await?[0].1.to_f32s(), Some(vec![2.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn start(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Started, RunError> {
        let (mut started, lengths) = self.start_once(inputs, outputs).await?;
        if let Some(late) = started.transfer.late.take() {
            started.transfer.packed.pop();
            let shapes = late.read().await?;
            let packed = started.transfer.packed.iter_mut();
            for (((_, t), p), i) in started.outputs.iter_mut().zip(packed).zip(&late.wanted) {
                t.shape.clone_from(&shapes[*i]);
                p.shape.clone_from(&shapes[*i]);
            }
        }
        self.advance(&lengths);
        Ok(started)
    }

    /// The indices of the named outputs, or of all for `None`, in the program.
    ///
    /// # Errors
    /// [`RunError::Unknown`] for a name that no output has.
    pub fn outputs_named(&self, names: Option<&[&str]>) -> Result<Vec<usize>, RunError> {
        let all = &self.program.outputs;
        let Some(names) = names else { return Ok((0..all.len()).collect()) };
        let find = |n: &&str| {
            let found = all.iter().position(|p| p.name == **n);
            found.ok_or_else(|| self.unknown("output", n, all.iter().map(|p| &p.name)))
        };
        names.iter().map(find).collect()
    }

    async fn start_once(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<(Started, Vec<(String, i64)>), RunError> {
        let wanted = self.outputs_named(outputs)?;
        let ready = self.prepare(inputs).await?;
        let gpu = self.gpu.clone();
        let outputs: Vec<(String, DeviceTensor)> = wanted
            .iter()
            .map(|i| (self.program.outputs[*i].name.clone(), ready.outputs[*i].clone()))
            .collect();
        let late = self.late(&ready, wanted);
        let mut read: Vec<DeviceTensor> = outputs.iter().map(|(_, t)| t.clone()).collect();
        read.extend(late.iter().map(|l| l.dims.clone()));
        let mut encoder = self.play(&ready.prepared).await?;
        let (packed, staging) = tensor::copy_out(&gpu, &read, self.staging.take(), &mut encoder).await?;
        let sent = gpu.scoped("running the plan", || gpu.queue().submit([encoder.finish()])).await?;
        if self.canaries {
            self.check_canaries(&ready.prepared).await?;
        }
        let transfer = Transfer { gpu, packed, staging, sent, late };
        Ok((Started { outputs, transfer }, ready.lengths))
    }

    /// Runs and leaves the outputs on the device. This waits only for sizes of outputs that the run computes. Reading an output,
    /// or using it as an input of another run, is ordered after this run.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::doubling()).await?;
    /// use wgfc_program::Tensor;
    /// use wgfc_runtime::session::Value;
    /// let mut x = Value::from(Tensor::from_f32(vec![1], &[1.0]));
    /// for _ in 0..10 {
    ///     x = session.run_on_device(&[("x", x)]).await?.remove(0).1.into();
    /// }
    /// let Value::Device(y) = x else { panic!("outputs stay on the device") };
    /// assert_eq!(y.read().await?.to_f32s(), Some(vec![1024.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn run_on_device(
        &mut self,
        inputs: &[(&str, Value)],
    ) -> Result<Vec<(String, DeviceTensor)>, RunError> {
        let ready = self.prepare(inputs).await?;
        let outputs = self.finish(ready).await?;
        Ok(self.program.outputs.iter().map(|p| p.name.clone()).zip(outputs).collect())
    }

    /// [`Session::run_on_device`] for inputs in the program's order, `None` for an optional one that is left out. Returns the
    /// outputs in the program's order.
    ///
    /// # Errors
    /// As [`Session::run_on_device`]; [`RunError::Inputs`] for another number of inputs than the program has.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::doubling()).await?;
    /// use wgfc_program::Tensor;
    /// let x = gpu.upload(&Tensor::from_f32(vec![2], &[1.0, 2.0])).await?;
    /// let y = session.call(&[Some(x.into())]).await?;
    /// assert_eq!(y[0].read().await?.to_f32s(), Some(vec![2.0, 4.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn call(&mut self, inputs: &[Option<Value>]) -> Result<Vec<DeviceTensor>, RunError> {
        let inputs: Vec<Option<&Value>> = inputs.iter().map(Option::as_ref).collect();
        let types: Vec<_> = inputs.iter().map(|v| (*v).map(|v| (v.dtype(), v.shape()))).collect();
        bind::check_inputs(&self.program, &types)?;
        let ready = self.prepare_into(&inputs, None).await?;
        self.finish(ready).await
    }

    /// Submits a prepared run, and returns its outputs once their shapes are known.
    async fn finish(&mut self, mut ready: Ready) -> Result<Vec<DeviceTensor>, RunError> {
        self.submit(&ready).await?;
        if let Some(late) = self.late(&ready, vec![]) {
            for (t, shape) in ready.outputs.iter_mut().zip(late.read().await?) {
                t.shape = shape;
            }
        }
        self.advance(&ready.lengths);
        Ok(ready.outputs)
    }

    pub(crate) async fn submit(&self, ready: &Ready) -> Result<(), RunError> {
        let encoder = self.play(&ready.prepared).await?;
        self.gpu.scoped("running the plan", || _ = self.gpu.queue().submit([encoder.finish()])).await?;
        if self.canaries { self.check_canaries(&ready.prepared).await } else { Ok(()) }
    }
}
