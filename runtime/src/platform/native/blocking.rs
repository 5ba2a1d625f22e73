//! Calls that block the thread until the device has finished, for callers without an executor. They do not exist on web pages,
//! whose only thread must not block.

use crate::error::RunError;
use crate::gpu::{AdapterChoice, AdapterSummary, Gpu};
use crate::plans::Plans;
use crate::profile::{Pace, Profile};
use crate::session::{Encoded, Finished, Session, SessionOptions, Staging, Started, Stream, Value};
use crate::tensor::DeviceTensor;
use crate::timeline::Timeline;
use std::collections::BTreeMap;
use wgfc_program::{Bundle, DType, Program, Tensor};

impl Gpu {
    /// [`Gpu::request`] for callers without an executor.
    pub fn request_blocking(choice: &AdapterChoice) -> Result<Gpu, RunError> {
        pollster::block_on(Gpu::request(choice))
    }
    /// [`Gpu::adapters`] for callers without an executor.
    pub fn adapters_blocking() -> Vec<AdapterSummary> {
        pollster::block_on(Gpu::adapters())
    }
    /// [`Gpu::wait`] for callers without an executor.
    pub fn wait_blocking(&self) -> Result<(), RunError> {
        pollster::block_on(self.wait())
    }
    /// [`Gpu::read`] for callers without an executor.
    pub fn read_blocking(&self, tensors: &[DeviceTensor]) -> Result<Vec<Tensor>, RunError> {
        pollster::block_on(self.read(tensors))
    }
    /// [`Gpu::zeros`] for callers without an executor.
    pub fn zeros_blocking(&self, dtype: DType, shape: Vec<usize>) -> Result<DeviceTensor, RunError> {
        pollster::block_on(self.zeros(dtype, shape))
    }
    /// [`Gpu::upload`] for callers without an executor.
    pub fn upload_blocking(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        pollster::block_on(self.upload(tensor))
    }
}

impl DeviceTensor {
    /// [`DeviceTensor::read`] for callers without an executor.
    pub fn read_blocking(&self) -> Result<Tensor, RunError> {
        pollster::block_on(self.read())
    }
    /// [`DeviceTensor::copy_rows`] for callers without an executor.
    pub fn copy_rows_blocking(&self, rows: &[(&DeviceTensor, usize, usize)]) -> Result<(), RunError> {
        pollster::block_on(self.copy_rows(rows))
    }
}

impl Started {
    /// [`Started::read`] for callers without an executor.
    pub fn read_blocking(self) -> Result<Vec<(String, Tensor)>, RunError> {
        pollster::block_on(self.read())
    }
}

impl Session {
    /// [`Session::new`] for callers without an executor.
    pub fn new_blocking(gpu: &Gpu, program: &Program) -> Result<Session, RunError> {
        pollster::block_on(Session::new(gpu, program))
    }
    /// [`Session::with_options`] for callers without an executor.
    pub fn with_options_blocking(
        gpu: &Gpu,
        program: &Program,
        options: SessionOptions,
    ) -> Result<Session, RunError> {
        pollster::block_on(Session::with_options(gpu, program, options))
    }
    /// [`Session::family`] for callers without an executor.
    pub fn family_blocking(
        gpu: &Gpu,
        programs: &[&Program],
        options: SessionOptions,
    ) -> Result<Vec<Session>, RunError> {
        pollster::block_on(Session::family(gpu, programs, options))
    }
    /// [`Session::run`] for callers without an executor.
    pub fn run_blocking(&mut self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, RunError> {
        pollster::block_on(self.run(inputs))
    }
    /// [`Session::run_values`] for callers without an executor.
    pub fn run_values_blocking(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        pollster::block_on(self.run_values(inputs, outputs))
    }
    /// [`Session::start`] for callers without an executor.
    pub fn start_blocking(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Started, RunError> {
        pollster::block_on(self.start(inputs, outputs))
    }
    /// [`Session::run_on_device`] for callers without an executor.
    pub fn run_on_device_blocking(
        &mut self,
        inputs: &[(&str, Value)],
    ) -> Result<Vec<(String, DeviceTensor)>, RunError> {
        pollster::block_on(self.run_on_device(inputs))
    }
    /// [`Session::call`] for callers without an executor.
    pub fn call_blocking(&mut self, inputs: &[Option<Value>]) -> Result<Vec<DeviceTensor>, RunError> {
        pollster::block_on(self.call(inputs))
    }
    /// [`Session::upload_input`] for callers without an executor.
    pub fn upload_input_blocking(
        &mut self,
        name: &str,
        shape: Vec<usize>,
        fill: impl FnOnce(&mut Staging),
    ) -> Result<DeviceTensor, RunError> {
        pollster::block_on(self.upload_input(name, shape, fill))
    }
    /// [`Session::encode`] for callers without an executor.
    pub fn encode_blocking(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        inputs: &[(&str, Value)],
        outputs: &[(&str, DeviceTensor)],
    ) -> Result<Encoded, RunError> {
        pollster::block_on(self.encode(encoder, inputs, outputs))
    }
    /// [`Session::sibling`] for callers without an executor.
    pub fn sibling_blocking(&self, program: &Program) -> Result<Session, RunError> {
        pollster::block_on(self.sibling(program))
    }
    /// [`Session::on_states_of`] for callers without an executor.
    pub fn on_states_of_blocking(&self, other: &Session) -> Result<Session, RunError> {
        pollster::block_on(self.on_states_of(other))
    }
    /// [`Session::fork`] for callers without an executor.
    pub fn fork_blocking(&self) -> Result<Session, RunError> {
        pollster::block_on(self.fork())
    }
    /// [`Session::reset_state`] for callers without an executor.
    pub fn reset_state_blocking(&mut self, name: &str) -> Result<(), RunError> {
        pollster::block_on(self.reset_state(name))
    }
    /// [`Session::reset`] for callers without an executor.
    pub fn reset_blocking(&mut self) -> Result<(), RunError> {
        pollster::block_on(self.reset())
    }
    /// [`Session::grow`] for callers without an executor.
    pub fn grow_blocking(&mut self, capacity: usize) -> Result<(), RunError> {
        pollster::block_on(self.grow(capacity))
    }
    /// [`Session::copy_positions`] for callers without an executor.
    pub fn copy_positions_blocking(
        &mut self,
        rows: usize,
        from: crate::session::Place,
        to: crate::session::Place,
        count: usize,
    ) -> Result<(), RunError> {
        pollster::block_on(self.copy_positions(rows, from, to, count))
    }
    /// [`Session::states`] for callers without an executor.
    pub fn states_blocking(&self) -> Result<BTreeMap<String, Tensor>, RunError> {
        pollster::block_on(self.states())
    }
    /// [`Session::states_named`] for callers without an executor.
    pub fn states_named_blocking(&self, names: &[&str]) -> Result<BTreeMap<String, Tensor>, RunError> {
        pollster::block_on(self.states_named(names))
    }
    /// [`Session::update_states`] for callers without an executor.
    pub fn update_states_blocking(&mut self, to: &BTreeMap<String, Tensor>) -> Result<(), RunError> {
        pollster::block_on(self.update_states(to))
    }
    /// [`Session::set_states`] for callers without an executor.
    pub fn set_states_blocking(&mut self, to: &BTreeMap<String, Tensor>) -> Result<(), RunError> {
        pollster::block_on(self.set_states(to))
    }
    /// [`Session::profile`] for callers without an executor.
    pub fn profile_blocking(&mut self, inputs: &[(&str, Tensor)], runs: usize) -> Result<Profile, RunError> {
        pollster::block_on(self.profile(inputs, runs))
    }
    /// [`Session::timeline`] for callers without an executor.
    pub fn timeline_blocking(
        &mut self,
        inputs: &[(&str, Tensor)],
        runs: usize,
    ) -> Result<Timeline, RunError> {
        pollster::block_on(self.timeline(inputs, runs))
    }
    /// [`Session::profile_paced`] for callers without an executor.
    pub fn profile_paced_blocking(
        &mut self,
        inputs: &[(&str, Tensor)],
        runs: usize,
        pace: Pace<'_>,
    ) -> Result<Profile, RunError> {
        pollster::block_on(self.profile_paced(inputs, runs, pace))
    }
}

impl Stream<'_> {
    /// [`Stream::upload`] for callers without an executor.
    pub fn upload_blocking(
        &mut self,
        name: &str,
        shape: Vec<usize>,
        fill: impl FnOnce(&mut Staging),
    ) -> Result<DeviceTensor, RunError> {
        pollster::block_on(self.upload(name, shape, fill))
    }
    /// [`Stream::push`] for callers without an executor.
    pub fn push_blocking(&mut self, inputs: &[(&str, Value)]) -> Result<(), RunError> {
        pollster::block_on(self.push(inputs))
    }
    /// [`Stream::next`] for callers without an executor.
    pub fn next_blocking(&mut self) -> Result<Option<Finished>, RunError> {
        pollster::block_on(self.next())
    }
}

impl Encoded {
    /// [`Encoded::settle`] for callers without an executor.
    pub fn settle_blocking(&mut self) -> Result<(), RunError> {
        pollster::block_on(self.settle())
    }
}

impl Plans {
    /// [`Plans::new`] for callers without an executor.
    pub fn new_blocking(gpu: &Gpu, bundle: &Bundle, options: SessionOptions) -> Result<Plans, RunError> {
        pollster::block_on(Plans::new(gpu, bundle, options))
    }
    /// [`Plans::run`] for callers without an executor.
    pub fn run_blocking(&mut self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, RunError> {
        pollster::block_on(self.run(inputs))
    }
    /// [`Plans::run_values`] for callers without an executor.
    pub fn run_values_blocking(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        pollster::block_on(self.run_values(inputs, outputs))
    }
    /// [`Plans::run_on_device`] for callers without an executor.
    pub fn run_on_device_blocking(
        &mut self,
        inputs: &[(&str, Value)],
    ) -> Result<Vec<(String, DeviceTensor)>, RunError> {
        pollster::block_on(self.run_on_device(inputs))
    }
    /// [`Plans::start`] for callers without an executor.
    pub fn start_blocking(
        &mut self,
        inputs: &[(&str, Value)],
        outputs: Option<&[&str]>,
    ) -> Result<Started, RunError> {
        pollster::block_on(self.start(inputs, outputs))
    }
    /// [`Plans::encode`] for callers without an executor.
    pub fn encode_blocking(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        inputs: &[(&str, Value)],
        outputs: &[(&str, DeviceTensor)],
    ) -> Result<Encoded, RunError> {
        pollster::block_on(self.encode(encoder, inputs, outputs))
    }
}
