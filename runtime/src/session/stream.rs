//! Streams: runs one after another, several of which are in flight at a time.

use super::{Session, Started, Transfer, Value};
use crate::error::{BadInput, RunError};
use crate::tensor::DeviceTensor;
use std::collections::VecDeque;
use wgfc_program::program::Buffer;
use wgfc_program::tensor::checked_numel;
use wgfc_program::{DType, Tensor};

/// The options of a [`Stream`].
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
/// use wgfc_runtime::session::StreamOptions;
/// let options = StreamOptions { in_flight: 4, first: 100, ..Default::default() };
/// assert_eq!(session.stream(options)?.next_step(), 100);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// The largest number of runs in flight, at least one. While the device executes one, the host prepares the next. Memory
    /// holds the inputs and the read outputs of this many runs.
    pub in_flight: usize,
    /// The names of the outputs to read back; `None` for all.
    pub outputs: Option<Vec<String>>,
    /// The number of the first run.
    pub first: u64,
}

impl Default for StreamOptions {
    /// Two runs in flight, all outputs, numbers from 0.
    fn default() -> StreamOptions {
        StreamOptions { in_flight: 2, outputs: None, first: 0 }
    }
}

/// Runs of a session one after another. Outputs are read as runs finish, and the device does not idle between runs:
///
/// ```no_run
/// # use wgfc_program::Tensor;
/// # use wgfc_runtime::session::{Session, StreamOptions};
/// # fn stream(session: &mut Session, batches: Vec<Tensor>) -> Result<(), wgfc_runtime::RunError> {
/// let mut stream = session.stream(StreamOptions::default())?;
/// for batch in batches {
///     stream.push_blocking(&[("x", batch.into())])?;
///     while let Some(run) = stream.ended() {
///         println!("{}: {:?}", run.step, run.outputs);
///     }
/// }
/// while let Some(run) = stream.next_blocking()? {
///     println!("{}: {:?}", run.step, run.outputs);
/// }
/// # Ok(()) }
/// ```
///
/// Programs with loops that end on a condition are waited for in each run. Errors are [`RunError::Step`] with the number of the
/// failed run; runs that were started before it can still be read. Dropping a stream does not cancel the runs that it started.
#[derive(Debug)]
pub struct Stream<'s> {
    session: &'s mut Session,
    options: StreamOptions,
    under_way: VecDeque<Pending>,
    ended: VecDeque<Finished>,
    /// Transfer buffers of finished runs, for reuse.
    spare: Vec<wgpu::Buffer>,
    next: u64,
}

/// A run in flight.
#[derive(Debug)]
struct Pending {
    step: u64,
    names: Vec<String>,
    transfer: Transfer,
}

/// A finished run. See the example of [`Stream`].
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The run's number.
    pub step: u64,
    /// The requested outputs.
    pub outputs: Vec<(String, Tensor)>,
}

/// Staging memory from which the device copies an input. It is filled from front to back.
/// See the example of [`Session::upload_input`].
#[derive(Debug)]
pub struct Staging {
    view: Option<wgpu::QueueWriteBufferView>,
    at: usize,
    len: usize,
}

impl Staging {
    /// Appends bytes of the tensor, in the order of [`Tensor::bytes`]. Bytes beyond the tensor's size are ignored, and the upload
    /// fails.
    pub fn put(&mut self, bytes: &[u8]) {
        let end = self.at.saturating_add(bytes.len());
        if let Some(view) = self.view.as_mut().filter(|_| end <= self.len) {
            view.slice(self.at..end).copy_from_slice(bytes);
        }
        self.at = end;
    }

    /// Writes zeros behind the last element, up to the next whole word.
    fn pad(&mut self, padded: usize) {
        if let (Some(view), Some(rest)) =
            (&mut self.view, [0; 3].get(..padded.saturating_sub(self.len)).filter(|r| !r.is_empty()))
        {
            view.slice(self.len..).copy_from_slice(rest);
        }
    }
}

impl Session {
    /// A stream: runs one after another, several of which are in flight at a time.
    ///
    /// # Errors
    /// [`RunError::Unknown`] for an output that the program does not have.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
    /// use wgfc_program::Tensor;
    /// use wgfc_runtime::session::StreamOptions;
    /// let mut stream = session.stream(StreamOptions::default())?;
    /// for i in 0..3 {
    ///     stream.push_blocking(&[("x", Tensor::from_f32(vec![1], &[i as f32]).into())])?;
    /// }
    /// let mut sum = 0.0;
    /// while let Some(run) = stream.next_blocking()? {
    ///     sum += run.outputs[0].1.to_f32s().unwrap()[0];
    /// }
    /// assert_eq!(sum, 6.0);
    /// # Ok(()) }
    /// ```
    pub fn stream(&mut self, options: StreamOptions) -> Result<Stream<'_>, RunError> {
        let names: Option<Vec<&str>> =
            options.outputs.as_ref().map(|o| o.iter().map(String::as_str).collect());
        self.outputs_named(names.as_deref())?;
        let next = options.first;
        Ok(Stream {
            session: self,
            options,
            under_way: VecDeque::new(),
            ended: VecDeque::new(),
            spare: vec![],
            next,
        })
    }

    /// Uploads an input whose bytes `fill` writes directly into staging memory, so that the host makes no other copy of them. The
    /// device memory comes from the session's pool for this input and is reused once all clones of the tensor are dropped.
    ///
    /// # Errors
    /// [`RunError::Unknown`] for an input that the program does not have; [`RunError::Inputs`] if `fill` appends more or fewer
    /// bytes than the shape has.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::doubling()).await?;
    /// let numbers = [1.0_f32, 2.0, 3.0];
    /// // The bytes are written where the device copies them from.
    /// let x = session.upload_input("x", vec![3], |staging| {
    ///     for n in numbers {
    ///         staging.put(&n.to_le_bytes());
    ///     }
    /// }).await?;
    /// let outputs = session.run_values(&[("x", x.into())], None).await?;
    /// assert_eq!(outputs[0].1.to_f32s(), Some(vec![2.0, 4.0, 6.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn upload_input(
        &mut self,
        name: &str,
        shape: Vec<usize>,
        fill: impl FnOnce(&mut Staging),
    ) -> Result<DeviceTensor, RunError> {
        let inputs = &self.program.inputs;
        let port = inputs.iter().position(|p| p.name == name);
        let port = port.ok_or_else(|| self.unknown("input", name, inputs.iter().map(|p| &p.name)))?;
        let dtype: DType = inputs[port].dtype;
        let bad = |message: String| RunError::Inputs(vec![BadInput { name: name.to_owned(), message }]);
        let elements = checked_numel(&shape).ok_or_else(|| bad(format!("its shape {shape:?} overflows")))?;
        let len = dtype.bytes_for(elements);
        let memory = self.take_buffer(port, Buffer::byte_size(dtype, elements) + self.slack()).await?;
        let gpu = self.gpu.clone();
        let padded = len.next_multiple_of(4);
        let what = format!("writing input \"{name}\"");
        let put = gpu
            .scoped(&what, || {
                let size = wgpu::BufferSize::new(padded as u64);
                let view = size.and_then(|size| gpu.queue().write_buffer_with(&memory.buffer, 0, size));
                // If there is no view although the tensor has elements, the error scope has the error.
                let mut staging = Staging { view, at: 0, len };
                fill(&mut staging);
                staging.pad(padded);
                staging.at
            })
            .await?;
        if put != len {
            return Err(bad(format!("{put} bytes were given for {dtype}{shape:?}, which has {len}")));
        }
        Ok(DeviceTensor { dtype, shape, memory, gpu })
    }
}

impl Stream<'_> {
    /// The session. Runs started with it execute after those of the stream so far.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// The number of the run that is pushed next.
    pub fn next_step(&self) -> u64 {
        self.next
    }

    /// Uploads an input of the run that is pushed next, while earlier runs execute: see [`Session::upload_input`].
    ///
    /// # Errors
    /// [`RunError::Step`].
    pub async fn upload(
        &mut self,
        name: &str,
        shape: Vec<usize>,
        fill: impl FnOnce(&mut Staging),
    ) -> Result<DeviceTensor, RunError> {
        let uploaded = self.session.upload_input(name, shape, fill).await;
        uploaded.map_err(|e| at(self.next, e))
    }

    /// Starts a run. If the largest number of runs is in flight, this first waits for the oldest, whose outputs [`Stream::ended`]
    /// then returns.
    ///
    /// # Errors
    /// [`RunError::Step`] of the run that was waited for or of this one. In either case this run has not been started.
    pub async fn push(&mut self, inputs: &[(&str, Value)]) -> Result<(), RunError> {
        while self.under_way.len() >= self.options.in_flight.max(1) {
            if let Some(run) = self.wait().await? {
                self.ended.push_back(run);
            }
        }
        let step = self.next;
        self.session.staging = self.spare.pop();
        let names: Option<Vec<&str>> =
            self.options.outputs.as_ref().map(|o| o.iter().map(String::as_str).collect());
        let started = self.session.start_once(inputs, names.as_deref()).await;
        let (Started { outputs, transfer }, lengths) = started.map_err(|e| at(step, e))?;
        self.session.advance(&lengths);
        let names = outputs.into_iter().map(|(n, _)| n).collect();
        self.under_way.push_back(Pending { step, names, transfer });
        self.next += 1;
        Ok(())
    }

    /// The oldest run that has been waited for and not been returned yet.
    pub fn ended(&mut self) -> Option<Finished> {
        self.ended.pop_front()
    }

    /// Waits for the oldest run that has not been returned yet and returns it; `None` if there is none.
    ///
    /// # Errors
    /// [`RunError::Step`].
    pub async fn next(&mut self) -> Result<Option<Finished>, RunError> {
        match self.ended.pop_front() {
            Some(run) => Ok(Some(run)),
            None => self.wait().await,
        }
    }

    async fn wait(&mut self) -> Result<Option<Finished>, RunError> {
        let Some(Pending { step, names, transfer }) = self.under_way.pop_front() else { return Ok(None) };
        let (values, staging) = transfer.collect().await.map_err(|e| at(step, e))?;
        self.spare.push(staging);
        Ok(Some(Finished { step, outputs: names.into_iter().zip(values).collect() }))
    }
}

fn at(step: u64, error: RunError) -> RunError {
    RunError::Step { step, error: Box::new(error) }
}
