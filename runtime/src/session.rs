//! A program on a device, and how it runs.

use crate::bind::{self, Bound, Given};
use crate::check;
use crate::error::{BadInput, RunError};
use crate::gpu::Gpu;
use crate::kernel::{self, Checks, Pipeline};
use crate::state::{self, StateSet};
use crate::tensor::{self, DeviceTensor, Memory};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use wgfc_ir::program::{Buffer, BufferKind};
use wgfc_ir::tensor::{ByteOwner, Data};
use wgfc_ir::{DType, Program, Tensor};

/// Shape bindings, prepared plans and bind groups kept at most (the latter per dispatch).
const KEPT_BOUND: usize = 256;
const KEPT_PLANS: usize = 4;
const KEPT_GROUPS: usize = 8;
/// Weights go up in pieces of this many bytes, and are waited for after every `WEIGHT_BATCH`.
const WEIGHT_CHUNK: usize = 16 << 20;
const WEIGHT_BATCH: usize = 256 << 20;

/// An input: from the host, or already on the device.
#[derive(Clone, Debug)]
pub enum Value {
    /// Copied to the device.
    Host(Tensor),
    /// Bound where it is.
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
    fn dtype(&self) -> DType {
        match self {
            Value::Host(t) => t.dtype,
            Value::Device(t) => t.dtype,
        }
    }
    fn shape(&self) -> &[usize] {
        match self {
            Value::Host(t) => &t.shape,
            Value::Device(t) => &t.shape,
        }
    }
}

/// How a [`Session`] is set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// How kernels are guarded.
    pub checks: Checks,
}

/// Bytes of device memory, of buffers alone: what a driver keeps beside them is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Weights.
    pub weights: u64,
    /// States, all their room.
    pub states: u64,
    /// Arenas, inputs and outputs: what runs so far needed and is kept for those to come.
    pub activations: u64,
}

impl DeviceMemory {
    /// Of some sessions. What they share counts once.
    pub fn of<'s>(sessions: impl IntoIterator<Item = &'s Session>) -> DeviceMemory {
        let mut seen: Vec<wgpu::Buffer> = vec![];
        let mut new = |b: &wgpu::Buffer| match seen.contains(b) {
            true => 0,
            false => {
                seen.push(b.clone());
                b.size()
            }
        };
        let mut sum = DeviceMemory::default();
        for s in sessions {
            for (buffer, b) in s.resident.iter().zip(&s.program.buffers) {
                let Some(bytes) = buffer.as_ref().map(&mut new) else { continue };
                match b.kind {
                    BufferKind::State { .. } => sum.states += bytes,
                    _ => sum.weights += bytes,
                }
            }
            let ports = s.pools.iter().flatten().map(|m| &m.buffer);
            let kept = s.arenas.iter().chain(ports).chain([&s.dims]).chain(&s.staging);
            sum.activations += kept.map(&mut new).sum::<u64>();
        }
        sum
    }
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.states + self.activations
    }
}

/// A stretch of a buffer, as bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Piece {
    buffer: wgpu::Buffer,
    offset: u64,
    size: u64,
}

/// One dispatch, ready to be recorded.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Index into [`Program::dispatches`].
    pub(crate) dispatch: usize,
    /// Index into [`Program::kernels`].
    pub(crate) kernel: usize,
    pub(crate) group: wgpu::BindGroup,
    pub(crate) workgroups: [u32; 3],
}

/// The steps for one shape binding and one choice of buffers for the ports.
#[derive(Debug)]
pub(crate) struct Plan {
    bound: Arc<Bound>,
    ports: Vec<wgpu::Buffer>,
    pub(crate) steps: Vec<Step>,
}

impl Plan {
    /// The values of the program's symbols.
    pub(crate) fn values(&self) -> &[i64] {
        &self.bound.values
    }
}

/// The outputs asked for, by name, and the lengths of the states afterwards.
type Ran = (Vec<(String, Tensor)>, Vec<(String, i64)>);

/// What one run needs once its inputs are in place.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) plan: Arc<Plan>,
    pub(crate) outputs: Vec<DeviceTensor>,
    /// How long the states will be once it has run.
    lengths: Vec<(String, i64)>,
    /// Keeps pooled input buffers from being handed out again before the run is submitted.
    _inputs: Vec<Arc<Memory>>,
}

/// A weight on the device. Its key is where its bytes begin on the host and how many they are; the
/// reference keeps that address from being another's without keeping the bytes.
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

/// A loaded program. See the [crate] for an example.
#[derive(Debug)]
pub struct Session {
    pub(crate) gpu: Gpu,
    pub(crate) checks: Checks,
    pub(crate) program: Program,
    pub(crate) pipelines: Vec<Pipeline>,
    /// Weights and states, by buffer.
    resident: Vec<Option<wgpu::Buffer>>,
    weights: HashMap<(usize, usize, usize), Uploaded>,
    pub(crate) states: Arc<StateSet>,
    arenas: Vec<wgpu::Buffer>,
    dims: wgpu::Buffer,
    dims_written: Option<Vec<i64>>,
    /// Buffers for inputs from the host, then for outputs.
    pools: Vec<Vec<Arc<Memory>>>,
    bound: HashMap<Vec<i64>, Arc<Bound>>,
    groups: Vec<HashMap<Vec<Piece>, wgpu::BindGroup>>,
    plans: Vec<Arc<Plan>>,
    staging: Option<wgpu::Buffer>,
    symbols: BTreeMap<String, i64>,
}

/// A run that was started: see [`Session::start`].
#[derive(Debug)]
pub struct Started {
    gpu: Gpu,
    outputs: Vec<(String, DeviceTensor)>,
    ranges: Vec<std::ops::Range<u64>>,
    staging: wgpu::Buffer,
    sent: wgpu::SubmissionIndex,
}

impl Started {
    /// An output on the device, to be an input of what is started next.
    pub fn output(&self, name: &str) -> Option<&DeviceTensor> {
        self.outputs.iter().find_map(|(n, t)| (n == name).then_some(t))
    }

    /// Waits for this run (not for later ones) and returns its outputs on the host.
    pub async fn read(self) -> Result<Vec<(String, Tensor)>, RunError> {
        Ok(self.collect().await?.0)
    }

    /// [`Started::read`] for callers without an executor.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn read_blocking(self) -> Result<Vec<(String, Tensor)>, RunError> {
        pollster::block_on(self.read())
    }

    async fn collect(self) -> Result<(Vec<(String, Tensor)>, wgpu::Buffer), RunError> {
        let read: Vec<DeviceTensor> = self.outputs.iter().map(|(_, t)| t.clone()).collect();
        let values = tensor::collect(&self.gpu, &read, &self.ranges, &self.staging, self.sent).await?;
        Ok((self.outputs.into_iter().map(|(n, _)| n).zip(values).collect(), self.staging))
    }
}

impl Session {
    /// Checks the program, compiles its kernels and uploads its weights.
    ///
    /// Errors: [`RunError::Plan`] for a plan that contradicts itself, [`RunError::Limits`] and
    /// [`RunError::Feature`] for a device that is too small, [`RunError::Shader`],
    /// [`RunError::WeightAbsent`], [`RunError::OutOfMemory`].
    pub async fn new(gpu: &Gpu, program: &Program) -> Result<Session, RunError> {
        Session::with_options(gpu, program, SessionOptions::default()).await
    }

    /// [`Session::new`] with options.
    pub async fn with_options(
        gpu: &Gpu,
        program: &Program,
        options: SessionOptions,
    ) -> Result<Session, RunError> {
        Session::build(gpu, program, options, None).await
    }

    /// With the weights and on the states of `kin`, as far as they are the same.
    pub(crate) async fn build(
        gpu: &Gpu,
        program: &Program,
        options: SessionOptions,
        kin: Option<&Session>,
    ) -> Result<Session, RunError> {
        let problems = check::check(program);
        if !problems.is_empty() {
            return Err(RunError::Plan(problems));
        }
        let pipelines = kernel::compile_all(gpu, &program.kernels, options.checks).await?;
        let mut session = Session::empty(gpu, program, options.checks, pipelines).await?;
        let states = match kin {
            Some(kin) => kin.states.clone(),
            None => Arc::new(StateSet::new(gpu, program).await?),
        };
        session.place_states(states);
        session.weights = kin.map_or_else(HashMap::new, |k| k.weights.clone());
        session.upload(program).await?;
        Ok(session)
    }

    /// Without weights and states.
    async fn empty(
        gpu: &Gpu,
        program: &Program,
        checks: Checks,
        pipelines: Vec<Pipeline>,
    ) -> Result<Session, RunError> {
        let dims_bytes = (program.symbols.len() as u64 * 4).next_multiple_of(16).max(16);
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let dims = gpu.buffer("dimensions", dims_bytes, usage).await?;
        let arenas = program.buffers.iter().filter_map(|b| match b.kind {
            BufferKind::Arena { arena, .. } => Some(arena + 1),
            _ => None,
        });
        // Weights are not kept on the host; cloning a map of shared bytes to drop it is cheap.
        Ok(Session {
            gpu: gpu.clone(),
            checks,
            pipelines,
            resident: vec![None; program.buffers.len()],
            weights: HashMap::new(),
            states: Arc::default(),
            arenas: Vec::with_capacity(arenas.max().unwrap_or(0)),
            dims,
            dims_written: None,
            pools: vec![Vec::new(); program.inputs.len() + program.outputs.len()],
            bound: HashMap::new(),
            groups: vec![HashMap::new(); program.dispatches.len()],
            plans: Vec::new(),
            staging: None,
            symbols: BTreeMap::new(),
            program: Program { weights: BTreeMap::new(), ..program.clone() },
        })
    }

    /// Puts the weights on the device, or finds them there.
    async fn upload(&mut self, program: &Program) -> Result<(), RunError> {
        let mut pending = 0;
        for (i, b) in program.buffers.iter().enumerate() {
            let BufferKind::Weight { name } = &b.kind else { continue };
            let absent = || RunError::WeightAbsent { name: name.clone() };
            let tensor = program.weights.get(name).ok_or_else(absent)?;
            let Data::Bytes { owner, offset, len } = &tensor.data else { return Err(absent()) };
            let key = (Arc::as_ptr(owner).cast::<()>() as usize, *offset, *len);
            if let Some(same) = self.weights.get(&key) {
                self.resident[i] = Some(same.buffer.clone());
                continue;
            }
            let bytes = tensor.bytes().ok_or_else(absent)?;
            let size = bytes.len().next_multiple_of(4).max(16) as u64;
            let buffer = self.gpu.resident(&format!("weight \"{name}\""), size).await?;
            for (n, chunk) in bytes.chunks(WEIGHT_CHUNK).enumerate() {
                let offset = (n * WEIGHT_CHUNK) as u64;
                let what = format!("uploading weight \"{name}\"");
                self.gpu.scoped(&what, || self.gpu.write(&buffer, offset, chunk)).await?;
                pending += chunk.len();
                if pending >= WEIGHT_BATCH {
                    self.gpu.scoped(&what, || self.gpu.queue().submit([])).await?;
                    self.gpu.wait().await?;
                    pending = 0;
                }
            }
            let uploaded = Uploaded { _owner: Arc::downgrade(owner), buffer: buffer.clone() };
            self.weights.insert(key, uploaded);
            self.resident[i] = Some(buffer);
        }
        self.gpu.scoped("uploading the weights", || self.gpu.queue().submit([])).await?;
        self.gpu.health()
    }

    /// Points the buffers of states at `states`.
    fn place_states(&mut self, states: Arc<StateSet>) {
        for (slot, b) in self.resident.iter_mut().zip(&self.program.buffers) {
            if let BufferKind::State { name } = &b.kind {
                *slot = states.buffer(name).cloned();
            }
        }
        self.states = states;
    }

    /// A session of the same program with the same pipelines and weights on these states.
    pub(crate) async fn twin(&self, states: Arc<StateSet>) -> Result<Session, RunError> {
        let mut twin = Session::empty(&self.gpu, &self.program, self.checks, self.pipelines.clone()).await?;
        twin.resident = self.resident.clone();
        twin.weights = self.weights.clone();
        twin.symbols = self.symbols.clone();
        twin.place_states(states);
        Ok(twin)
    }

    /// The device it runs on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }
    /// The program, without its weights.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Gives a symbol that no input's shape determines its value for the runs to come. A symbol that is
    /// the length of states has one already, which grows from run to run; this sets it, and the caller
    /// vouches for what the states then hold.
    pub fn set_symbol(&mut self, name: &str, value: i64) -> Result<(), RunError> {
        if !self.program.symbols.iter().any(|s| s == name) {
            return Err(self.unknown("symbol", name, self.program.symbols.iter()));
        }
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

    /// Frees what is kept from run to run, except weights and states.
    pub fn trim(&mut self) {
        self.forget_groups();
        self.pools.iter_mut().for_each(Vec::clear);
        self.arenas.clear();
        self.bound.clear();
        self.staging = None;
    }

    fn forget_groups(&mut self) {
        self.plans.clear();
        self.groups.iter_mut().for_each(HashMap::clear);
    }

    /// Runs with inputs from the host and returns all outputs on the host, in the model's order.
    pub async fn run(&mut self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, RunError> {
        let inputs: Vec<_> = inputs.iter().map(|(n, t)| (*n, Value::Host(t.clone()))).collect();
        self.run_values(&inputs, None).await
    }

    /// Runs with inputs from wherever they are and returns the outputs named (all without names) on the
    /// host; only those are read back.
    pub async fn run_values(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        let (results, lengths) = self.run_once(inputs, outputs).await?;
        self.advance(&lengths);
        Ok(results)
    }

    /// One run, after which the states have the lengths that are returned, if they shall.
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

    /// Starts a run and the transfer of the outputs named (all without names) to the host. What is
    /// started next runs after it, whether the results were read or not: a loop can start the next run
    /// with this one's outputs before it reads them.
    pub async fn start(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Started, RunError> {
        let (started, lengths) = self.start_once(inputs, outputs).await?;
        self.advance(&lengths);
        Ok(started)
    }

    async fn start_once(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<(Started, Vec<(String, i64)>), RunError> {
        let wanted: Vec<usize> = match outputs {
            None => (0..self.program.outputs.len()).collect(),
            Some(names) => {
                let all = &self.program.outputs;
                let find = |n: &&str| {
                    all.iter()
                        .position(|p| p.name == **n)
                        .ok_or_else(|| self.unknown("output", n, all.iter().map(|p| &p.name)))
                };
                names.iter().map(find).collect::<Result<_, _>>()?
            }
        };
        let ready = self.prepare(inputs).await?;
        let gpu = self.gpu.clone();
        let outputs: Vec<(String, DeviceTensor)> = wanted
            .iter()
            .map(|i| (self.program.outputs[*i].name.clone(), ready.outputs[*i].clone()))
            .collect();
        let read: Vec<DeviceTensor> = outputs.iter().map(|(_, t)| t.clone()).collect();
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        self.record(&ready.plan, &mut encoder);
        let (ranges, staging) = tensor::copy_out(&gpu, &read, self.staging.take(), &mut encoder).await?;
        let sent = gpu.scoped("running the plan", || gpu.queue().submit([encoder.finish()])).await?;
        Ok((Started { gpu, outputs, ranges, staging, sent }, ready.lengths))
    }

    /// Runs and leaves the outputs on the device. Nothing is waited for: reading an output, or using it
    /// as an input of another run, comes after this run by itself.
    pub async fn run_on_device(
        &mut self,
        inputs: &[(&str, Value)],
    ) -> Result<Vec<(String, DeviceTensor)>, RunError> {
        let ready = self.prepare(inputs).await?;
        self.submit(&ready).await?;
        self.advance(&ready.lengths);
        Ok(self.program.outputs.iter().map(|p| p.name.clone()).zip(ready.outputs).collect())
    }

    /// [`Session::new`] for callers without an executor.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn new_blocking(gpu: &Gpu, program: &Program) -> Result<Session, RunError> {
        pollster::block_on(Session::new(gpu, program))
    }
    /// [`Session::with_options`] for callers without an executor.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn with_options_blocking(
        gpu: &Gpu,
        program: &Program,
        options: SessionOptions,
    ) -> Result<Session, RunError> {
        pollster::block_on(Session::with_options(gpu, program, options))
    }
    /// [`Session::run`] for callers without an executor.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run_blocking(&mut self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, RunError> {
        pollster::block_on(self.run(inputs))
    }
    /// [`Session::run_values`] for callers without an executor.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run_values_blocking(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        pollster::block_on(self.run_values(inputs, outputs))
    }
    /// [`Session::start`] for callers without an executor.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn start_blocking(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Started, RunError> {
        pollster::block_on(self.start(inputs, outputs))
    }
    /// [`Session::run_on_device`] for callers without an executor.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run_on_device_blocking(
        &mut self,
        inputs: &[(&str, Value)],
    ) -> Result<Vec<(String, DeviceTensor)>, RunError> {
        pollster::block_on(self.run_on_device(inputs))
    }

    /// Records the whole plan as one compute pass.
    pub(crate) fn record(&self, plan: &Plan, encoder: &mut wgpu::CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        let mut current = None;
        for step in &plan.steps {
            self.record_step(step, &mut current, &mut pass);
        }
    }

    /// Records one dispatch; `current` is the kernel whose pipeline is set.
    pub(crate) fn record_step(
        &self,
        step: &Step,
        current: &mut Option<usize>,
        pass: &mut wgpu::ComputePass<'_>,
    ) {
        if *current != Some(step.kernel) {
            pass.set_pipeline(&self.pipelines[step.kernel].pipeline);
            *current = Some(step.kernel);
        }
        let [x, y, z] = step.workgroups;
        pass.set_bind_group(0, &step.group, &[]);
        pass.dispatch_workgroups(x, y, z);
    }

    pub(crate) async fn submit(&self, ready: &Ready) -> Result<(), RunError> {
        self.gpu
            .scoped("running the plan", || {
                let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
                self.record(&ready.plan, &mut encoder);
                self.gpu.queue().submit([encoder.finish()]);
            })
            .await
    }

    /// Binds the symbols, puts the inputs on the device, and finds or makes all that the run needs.
    pub(crate) async fn prepare(&mut self, inputs: &[(&str, Value)]) -> Result<Ready, RunError> {
        self.gpu.health()?;
        let given: Vec<Given<'_>> =
            inputs.iter().map(|(name, v)| Given { name, dtype: v.dtype(), shape: v.shape() }).collect();
        let order = bind::match_inputs(&self.program, &given)?;
        let shapes: Vec<&[usize]> = order.iter().map(|i| given[*i].shape).collect();
        let mut fixed = self.symbols.clone();
        fixed.extend(self.states.lengths());
        let values = bind::bind_symbols(&self.program, &shapes, &fixed)?;
        let lengths = state::lengths_after(&self.program, &values)?;
        let bound = self.bind(values)?;
        let arenas_changed = self.grow_arenas(&bound).await?;
        if arenas_changed {
            self.forget_groups();
        }
        let mut placed = Vec::with_capacity(order.len());
        for (port, i) in order.into_iter().enumerate() {
            placed.push(self.place_input(port, &inputs[i].1).await?);
        }
        let mut outputs = Vec::with_capacity(self.program.outputs.len());
        for i in 0..self.program.outputs.len() {
            let port = &self.program.outputs[i];
            let (dtype, size) = (port.dtype, bound.memory.bytes[port.buffer]);
            let memory = self.take_buffer(self.program.inputs.len() + i, size).await?;
            let shape = bound.outputs[i].clone();
            outputs.push(DeviceTensor { dtype, shape, memory, gpu: self.gpu.clone() });
        }
        if self.dims_written.as_ref() != Some(&bound.values) {
            let words: Vec<i32> = bound.values.iter().map(|v| *v as i32).collect();
            let gpu = &self.gpu;
            gpu.scoped("writing the dimensions", || gpu.write(&self.dims, 0, bytemuck::cast_slice(&words)))
                .await?;
            self.dims_written = Some(bound.values.clone());
        }
        let plan = self.plan(bound, &placed, &outputs).await?;
        Ok(Ready { plan, outputs, lengths, _inputs: placed })
    }

    fn bind(&mut self, values: Vec<i64>) -> Result<Arc<Bound>, RunError> {
        if let Some(b) = self.bound.get(&values) {
            return Ok(b.clone());
        }
        let bound = Arc::new(bind::bind(&self.program, values.clone(), self.gpu.profile())?);
        if self.bound.len() >= KEPT_BOUND {
            self.bound.clear();
        }
        self.bound.insert(values, bound.clone());
        Ok(bound)
    }

    /// Arenas only grow, so that alternating shapes share them. Says whether any changed.
    async fn grow_arenas(&mut self, bound: &Bound) -> Result<bool, RunError> {
        let mut changed = false;
        for (i, need) in bound.memory.arenas.iter().enumerate() {
            let have = self.arenas.get(i).map(wgpu::Buffer::size);
            if have.is_some_and(|h| h >= *need) {
                continue;
            }
            // Something that grew once will grow again; an eighth ahead saves most of the copies.
            let ahead = have.map_or(0, |_| need / 8).next_multiple_of(256);
            let size = need.saturating_add(ahead).min(self.gpu.profile().buffer_bytes).max(*need).max(256);
            let what = format!("arena {i}");
            if let Some(old) = self.arenas.get(i) {
                // Its bind groups are forgotten too, so that the memory is free before it is needed again.
                old.destroy();
                self.plans.clear();
                self.groups.iter_mut().for_each(HashMap::clear);
            }
            let new = self.gpu.storage(&what, size).await;
            match (new, self.arenas.get_mut(i)) {
                (Ok(b), Some(slot)) => *slot = b,
                (Ok(b), None) => self.arenas.push(b),
                (Err(e), _) => {
                    self.arenas.truncate(i);
                    return Err(e);
                }
            }
            changed = true;
        }
        Ok(changed)
    }

    async fn place_input(&mut self, port: usize, value: &Value) -> Result<Arc<Memory>, RunError> {
        let name = &self.program.inputs[port].name;
        let bad = |message: &str| {
            RunError::Inputs(vec![BadInput { name: name.clone(), message: message.to_owned() }])
        };
        match value {
            Value::Device(t) if t.gpu.is(&self.gpu) => Ok(t.memory.clone()),
            Value::Device(_) => Err(bad("it is on another device")),
            Value::Host(t) => {
                let bytes = t.bytes().ok_or_else(|| bad("its values are not known"))?;
                let what = format!("writing input \"{name}\"");
                let memory = self.take_buffer(port, Buffer::byte_size(t.dtype, t.numel()) as u64).await?;
                self.gpu.scoped(&what, || self.gpu.write(&memory.buffer, 0, bytes)).await?;
                Ok(memory)
            }
        }
    }

    /// A buffer of at least `need` bytes that nobody else holds.
    async fn take_buffer(&mut self, pool: usize, need: u64) -> Result<Arc<Memory>, RunError> {
        let fits = |m: &Arc<Memory>| m.capacity >= need && m.capacity / 2 <= need.max(4096);
        let free = |m: &Arc<Memory>| Arc::strong_count(m) == 1;
        if let Some(m) = self.pools[pool].iter().find(|m| free(m) && fits(m)) {
            return Ok(m.clone());
        }
        // The first size is exact. Where sizes vary from run to run, buffers are made a little larger.
        let varies = self.pools[pool].iter().any(|m| !fits(m));
        let step = (need / 8).next_power_of_two().max(4);
        let rounded = if varies { need.next_multiple_of(step) } else { need };
        let capacity = rounded.min(self.gpu.profile().buffer_bytes).max(need);
        self.pools[pool].retain(|m| !free(m) || fits(m));
        let inputs = &self.program.inputs;
        let what = match inputs.get(pool) {
            Some(p) => format!("input \"{}\"", p.name),
            None => format!("output \"{}\"", self.program.outputs[pool - inputs.len()].name),
        };
        let buffer = self.gpu.storage(&what, capacity).await?;
        let memory = Arc::new(Memory { buffer, capacity });
        // What the caller keeps is the caller's; the pool follows a few of them at most.
        if self.pools[pool].len() >= 4 {
            self.pools[pool].remove(0);
        }
        self.pools[pool].push(memory.clone());
        Ok(memory)
    }

    /// The steps of a run, from those kept or made now.
    async fn plan(
        &mut self,
        bound: Arc<Bound>,
        inputs: &[Arc<Memory>],
        outputs: &[DeviceTensor],
    ) -> Result<Arc<Plan>, RunError> {
        let ports: Vec<wgpu::Buffer> =
            inputs.iter().chain(outputs.iter().map(|o| &o.memory)).map(|m| m.buffer.clone()).collect();
        let kept = self.plans.iter().position(|p| Arc::ptr_eq(&p.bound, &bound) && p.ports == ports);
        if let Some(i) = kept {
            self.plans[..=i].rotate_right(1);
            return Ok(self.plans[0].clone());
        }
        let gpu = self.gpu.clone();
        let steps = gpu.scoped("binding buffers", || self.steps(&bound, &ports)).await?;
        let plan = Arc::new(Plan { bound, ports, steps });
        self.plans.truncate(KEPT_PLANS - 1);
        self.plans.insert(0, plan.clone());
        Ok(plan)
    }

    fn steps(&mut self, bound: &Bound, ports: &[wgpu::Buffer]) -> Vec<Step> {
        let device = self.gpu.device();
        let mut steps = Vec::with_capacity(self.program.dispatches.len());
        for (i, d) in self.program.dispatches.iter().enumerate() {
            if bound.workgroups[i].contains(&0) {
                continue;
            }
            let pieces: Vec<Piece> = d
                .bindings
                .iter()
                .filter_map(|b| {
                    let size = bound.memory.bytes[*b];
                    let (buffer, offset) = match &self.program.buffers[*b].kind {
                        BufferKind::Input { index } => (&ports[*index], 0),
                        BufferKind::Output { index } => (&ports[self.program.inputs.len() + index], 0),
                        BufferKind::Weight { .. } | BufferKind::State { .. } => {
                            (self.resident[*b].as_ref()?, 0)
                        }
                        BufferKind::Arena { .. } => {
                            let (arena, offset) = bound.memory.slots[*b]?;
                            (&self.arenas[arena], offset)
                        }
                    };
                    Some(Piece { buffer: buffer.clone(), offset, size })
                })
                .collect();
            let kernel = &self.program.kernels[d.kernel];
            let layout = &self.pipelines[d.kernel].layout;
            if self.groups[i].len() >= KEPT_GROUPS && !self.groups[i].contains_key(&pieces) {
                self.groups[i].clear();
            }
            let group = self.groups[i].entry(pieces).or_insert_with_key(|pieces| {
                let mut entries: Vec<wgpu::BindGroupEntry<'_>> = pieces
                    .iter()
                    .enumerate()
                    .map(|(i, p)| wgpu::BindGroupEntry {
                        binding: i as u32,
                        resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                            buffer: &p.buffer,
                            offset: p.offset,
                            size: std::num::NonZeroU64::new(p.size),
                        }),
                    })
                    .collect();
                if kernel.uses_dims {
                    entries.push(wgpu::BindGroupEntry {
                        binding: pieces.len() as u32,
                        resource: self.dims.as_entire_binding(),
                    });
                }
                let label = Some(kernel.name.as_str());
                device.create_bind_group(&wgpu::BindGroupDescriptor { label, layout, entries: &entries })
            });
            let (group, workgroups) = (group.clone(), bound.workgroups[i]);
            steps.push(Step { dispatch: i, kernel: d.kernel, group, workgroups });
        }
        steps
    }
}
