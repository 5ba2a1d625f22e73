//! Recording of runs into the caller's command encoder.

use super::late::Late;
use super::{Session, Value};
use crate::error::RunError;
use crate::tensor::{DeviceTensor, Memory};
use std::sync::Arc;
use wgfc_program::DType;

/// A run that [`Session::encode`] has recorded. The outputs have their values once the encoder's commands have been submitted,
/// and commands that are recorded after the run can read them.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
/// # let x = wgfc_program::Tensor::from_f32(vec![1], &[3.0]);
/// let mut encoder = gpu.device().create_command_encoder(&Default::default());
/// let mut run = session.encode_blocking(&mut encoder, &[("x", x.into())], &[])?;
/// gpu.queue().submit([encoder.finish()]);
/// // Only programs that compute sizes have shapes to wait for.
/// assert!(run.is_settled());
/// run.settle_blocking()?;
/// assert_eq!(run.outputs()[0].1.shape(), [1]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Encoded {
    outputs: Vec<(String, DeviceTensor)>,
    late: Option<Late>,
}

impl Encoded {
    /// The outputs, in the program's order. An output's memory is reserved while a clone of its tensor exists; afterwards later
    /// runs of the session may write to it.
    pub fn outputs(&self) -> &[(String, DeviceTensor)] {
        &self.outputs
    }
    /// The output with this name.
    pub fn output(&self, name: &str) -> Option<&DeviceTensor> {
        self.outputs.iter().find_map(|(n, t)| (n == name).then_some(t))
    }
    /// Whether the shapes of all outputs are known. A size that the run computes has its largest possible value until
    /// [`Encoded::settle`].
    pub fn is_settled(&self) -> bool {
        self.late.is_none()
    }
    /// Waits for the run and reads the sizes that it computed. The caller must have submitted the encoder's commands. This
    /// submits a copy and polls the device; it does nothing for a run that [is settled](Encoded::is_settled).
    pub async fn settle(&mut self) -> Result<(), RunError> {
        let Some(late) = self.late.take() else { return Ok(()) };
        for ((_, t), shape) in self.outputs.iter_mut().zip(late.read().await?) {
            t.shape = shape;
        }
        Ok(())
    }
}

impl Session {
    /// Records a run into `encoder` without submitting, polling or waiting. Commands that are recorded after it can read its
    /// outputs. An output that `outputs` names is written to the given tensor, any other to memory of the session. A tensor for
    /// an output whose size the run computes must have one axis with the largest possible number of elements.
    ///
    /// The caller must submit all encoders with runs of a session once each, in the order of recording, because each recorded run
    /// continues with the states' lengths and contents of the one before. If the program has states, the caller must also submit
    /// all recorded runs before the session runs by itself and before states are read, replaced, reset or [grown](Session::grow).
    /// One encoder may hold runs of several sessions and several runs of one session, with outputs of earlier runs as inputs.
    /// Inputs on the device are read when the commands execute; inputs on the host are copied to new memory during this call.
    ///
    /// Nothing has been recorded if an error is returned.
    ///
    /// # Errors
    /// [`RunError::Encode`] for a program with a loop whose condition the host must read, and for a session with
    /// [canaries](super::SessionOptions::canaries); [`RunError::Output`] for a tensor of the wrong type, shape or device, or one
    /// that shares memory with another input or output; [`RunError::DeviceLost`]; otherwise as [`Session::run_on_device`].
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::doubling()).await?;
    /// use wgfc_program::Tensor;
    /// let x = gpu.upload(&Tensor::from_f32(vec![1], &[3.0])).await?;
    /// let mut encoder = gpu.device().create_command_encoder(&Default::default());
    /// // … your passes, which may write x …
    /// let run = session.encode(&mut encoder, &[("x", x.into())], &[]).await?;
    /// // … and passes that bind `run.output("y")`'s buffer.
    /// gpu.queue().submit([encoder.finish()]);
    /// let y = run.output("y").expect("y is an output");
    /// assert_eq!(y.read().await?.to_f32s(), Some(vec![6.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn encode(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        inputs: &[(&str, Value)],
        outputs: &[(&str, DeviceTensor)],
    ) -> Result<Encoded, RunError> {
        self.can_encode()?;
        self.states.keep_old();
        self.encoded = true;
        let ready = self.prepare_into(&self.ordered(inputs)?, Some(outputs)).await?;
        let gpu = self.gpu.clone();
        let words: Vec<i32> = ready.prepared.values().iter().map(|v| *v as i32).collect();
        let dims = self.filled("dimensions", bytemuck::cast_slice(&words)).await?;
        let mut late = self.late(&ready, vec![]);
        if let Some(late) = &mut late {
            // The sizes are copied, as the next run overwrites the uniform.
            let capacity = self.dims.capacity;
            let buffer = gpu.storage("computed sizes", capacity).await?;
            let memory = Memory::of(buffer, capacity);
            late.dims = DeviceTensor { memory, ..late.dims.clone() };
        }
        if !words.is_empty() {
            encoder.copy_buffer_to_buffer(&dims.buffer, 0, &self.dims.buffer, 0, 4 * words.len() as u64);
        }
        self.record(&ready.prepared, encoder);
        if let Some(late) = &late {
            let (from, to) = (&self.dims.buffer, &late.dims.memory.buffer);
            encoder.copy_buffer_to_buffer(from, 0, to, 0, self.dims.capacity);
        }
        self.advance(&ready.lengths);
        let names = self.program.outputs.iter().map(|p| p.name.clone());
        Ok(Encoded { outputs: names.zip(ready.outputs).collect(), late })
    }

    fn can_encode(&self) -> Result<(), RunError> {
        let refused = |why: &str| Err(RunError::Encode { why: why.to_owned() });
        if self.canaries {
            return refused("with canaries each run is waited for");
        }
        match self.program.repeats.iter().find(|r| r.until.is_some()) {
            Some(r) => refused(&format!(
                "the host decides after each round of the loop of {} whether there is another; {}",
                crate::bind::origin(&self.program.dispatches[r.first].nodes),
                r.why
            )),
            None => Ok(()),
        }
    }

    /// A new buffer with these bytes, which commands submitted afterwards can read.
    pub(super) async fn filled(&self, what: &str, bytes: &[u8]) -> Result<Arc<Memory>, RunError> {
        let capacity = bytes.len().next_multiple_of(4).max(16) as u64;
        if capacity > self.gpu.profile().buffer_bytes {
            let have = self.gpu.profile().buffer_bytes;
            return Err(RunError::Limits {
                what: format!("{what} (one buffer, bytes)"),
                need: capacity,
                have,
            });
        }
        use wgpu::BufferUsages as U;
        let descriptor = wgpu::BufferDescriptor {
            label: Some(what),
            size: capacity,
            usage: U::STORAGE | U::COPY_SRC | U::COPY_DST,
            mapped_at_creation: true,
        };
        let made = self.gpu.scoped(what, || {
            let buffer = self.gpu.device().create_buffer(&descriptor);
            let filled = match buffer.get_mapped_range_mut(..) {
                Ok(mut view) => {
                    view.slice(..bytes.len()).copy_from_slice(bytes);
                    Ok(())
                }
                Err(e) => Err(e.to_string()),
            };
            buffer.unmap();
            filled.map(|()| buffer)
        });
        let buffer = match made.await? {
            Ok(buffer) => buffer,
            Err(message) => {
                self.gpu.health()?;
                return Err(RunError::Gpu { what: what.to_owned(), message });
            }
        };
        Ok(Memory::of(buffer, capacity))
    }

    /// The tensor that the caller gave for an output, if any, after checking that it fits.
    pub(super) fn given_output(
        &self,
        given: &[(&str, DeviceTensor)],
        name: &str,
        (dtype, shape): (DType, &[usize]),
        bytes: u64,
    ) -> Result<Option<DeviceTensor>, RunError> {
        let mut same = given.iter().filter(|(n, _)| *n == name);
        let Some((_, t)) = same.next() else { return Ok(None) };
        let refused = |why: String| Err(RunError::Output { name: name.to_owned(), why });
        if same.next().is_some() {
            return refused("it is given twice".to_owned());
        }
        if !t.gpu.is(&self.gpu) {
            return refused("it is on another device".to_owned());
        }
        if (t.dtype, t.shape.as_slice()) != (dtype, shape) {
            return refused(format!("it is {}{:?}, and the output is {dtype}{shape:?}", t.dtype, t.shape));
        }
        if t.memory.capacity < bytes {
            return refused(format!("its slice has {} bytes of {bytes}", t.memory.capacity));
        }
        Ok(Some(t.clone()))
    }

    /// Checks that the given outputs have names of the program's outputs and share no memory with each other or with the inputs
    /// `placed`.
    pub(super) fn outputs_apart(
        &self,
        given: &[(&str, DeviceTensor)],
        placed: &[Arc<Memory>],
    ) -> Result<(), RunError> {
        for (i, (name, t)) in given.iter().enumerate() {
            if !self.program.outputs.iter().any(|p| p.name == *name) {
                return Err(self.unknown("output", name, self.program.outputs.iter().map(|p| &p.name)));
            }
            let of_input = placed.iter().position(|m| m.buffer == t.memory.buffer);
            let other = match of_input {
                Some(p) => self.program.inputs.get(p).map(|p| format!("input \"{}\"", p.name)),
                None => given[..i]
                    .iter()
                    .find(|(n, o)| n != name && o.memory.buffer == t.memory.buffer)
                    .map(|(n, _)| format!("output \"{n}\"")),
            };
            if let Some(other) = other {
                let why = format!("it lies in the buffer of {other}, and kernels may write before they read");
                return Err(RunError::Output { name: (*name).to_owned(), why });
            }
        }
        Ok(())
    }
}
