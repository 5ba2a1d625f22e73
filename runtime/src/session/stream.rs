//! Runs one after another, of which several are under way at a time.

use super::{Session, Started, Transfer, Value};
use crate::error::{BadInput, RunError};
use crate::tensor::DeviceTensor;
use std::collections::VecDeque;
use wgfc_program::program::Buffer;
use wgfc_program::tensor::checked_numel;
use wgfc_program::{DType, Tensor};

/// How a [`Stream`] is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// Runs that may be under way at a time, at least one: while the device works on one, the host prepares the next. Inputs
    /// and read outputs of so many are in memory.
    pub in_flight: usize,
    /// The outputs to read back, all without names.
    pub outputs: Option<Vec<String>>,
    /// The number of the first run.
    pub first: u64,
}

impl Default for StreamOptions {
    /// Two at a time, all outputs, counted from 0.
    fn default() -> StreamOptions {
        StreamOptions { in_flight: 2, outputs: None, first: 0 }
    }
}

/// Runs of a session one after another. Outputs are read as runs end, without a wait between one run and the next:
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
/// A loop whose runs end by a condition is waited for as each of them runs. Errors are [`RunError::Step`], with the number of the run
/// that failed; those started before it can still be read. A stream that is dropped leaves the runs that it started to the device.
#[derive(Debug)]
pub struct Stream<'s> {
    session: &'s mut Session,
    options: StreamOptions,
    under_way: VecDeque<Pending>,
    ended: VecDeque<Finished>,
    /// Transfer buffers of runs that have ended.
    spare: Vec<wgpu::Buffer>,
    next: u64,
}

/// A run under way.
#[derive(Debug)]
struct Pending {
    step: u64,
    names: Vec<String>,
    transfer: Transfer,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Its number.
    pub step: u64,
    /// The outputs asked for.
    pub outputs: Vec<(String, Tensor)>,
}

/// Memory from which the device copies an input. What is put into it is put behind what is there already.
#[derive(Debug)]
pub struct Staging {
    view: Option<wgpu::QueueWriteBufferView>,
    at: usize,
    len: usize,
}

impl Staging {
    /// Puts bytes of the tensor, in the order of [`Tensor::bytes`]. What is too much is left out, and the upload fails.
    pub fn put(&mut self, bytes: &[u8]) {
        let end = self.at.saturating_add(bytes.len());
        if let Some(view) = self.view.as_mut().filter(|_| end <= self.len) {
            view.slice(self.at..end).copy_from_slice(bytes);
        }
        self.at = end;
    }

    /// Zeros behind the last element, up to the next whole word.
    fn pad(&mut self, padded: usize) {
        if let (Some(view), Some(rest)) =
            (&mut self.view, [0; 3].get(..padded.saturating_sub(self.len)).filter(|r| !r.is_empty()))
        {
            view.slice(self.len..).copy_from_slice(rest);
        }
    }
}

impl Session {
    /// Runs one after another, of which several are under way at a time.
    ///
    /// # Errors
    /// [`RunError::Unknown`] for an output that the program does not have.
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

    /// An input on the device, whose bytes `fill` puts into the memory that the device copies from: no other copy of them is made.
    /// The device's memory is one that the session has for this input, and is taken again once nobody holds the tensor.
    ///
    /// # Errors
    /// [`RunError::Unknown`] for an input that the program does not have; [`RunError::Inputs`] where `fill` puts more or fewer bytes
    /// than the shape has.
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
                // Without a view of a tensor that has elements an error was raised.
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
    /// The session, of which other runs come after those that were started.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// The number of the run that is pushed next.
    pub fn next_step(&self) -> u64 {
        self.next
    }

    /// Uploads an input of the run that is pushed next, while those before it are under way: see [`Session::upload_input`].
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

    /// Starts a run. Where as many are under way as may be, the oldest is waited for first; [`Stream::ended`] has its outputs.
    ///
    /// # Errors
    /// [`RunError::Step`], of the run that was waited for or of this one, which has not been started then.
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

    /// A run that has been waited for and not been returned yet, the oldest first.
    pub fn ended(&mut self) -> Option<Finished> {
        self.ended.pop_front()
    }

    /// The oldest run that has not been returned yet, which is waited for; nothing when there is none.
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
