//! Runs that are recorded into the caller's command encoder.

use super::late::Late;
use super::{Session, Value};
use crate::error::RunError;
use crate::tensor::{DeviceTensor, Memory};
use std::sync::Arc;
use wgfc_program::DType;

/// A run that [`Session::encode`] has recorded. The outputs have their values once the encoder's commands have been submitted,
/// and commands recorded behind the run read them.
#[derive(Debug)]
pub struct Encoded {
    outputs: Vec<(String, DeviceTensor)>,
    late: Option<Late>,
}

impl Encoded {
    /// The outputs, in the program's order. An output's memory is its own for as long as one of its tensors lives: afterwards
    /// later runs of the session may write there.
    pub fn outputs(&self) -> &[(String, DeviceTensor)] {
        &self.outputs
    }
    /// The output of a name.
    pub fn output(&self, name: &str) -> Option<&DeviceTensor> {
        self.outputs.iter().find_map(|(n, t)| (n == name).then_some(t))
    }
    /// Whether the shapes of all outputs are known. Where the run itself computes a size, the shapes have the largest size
    /// that is possible until [`Encoded::settle`].
    pub fn is_settled(&self) -> bool {
        self.late.is_none()
    }
    /// Waits for the run and reads the sizes that it computed. The caller has submitted the encoder's commands. This submits a
    /// copy and polls the device, and does neither for a run that [is settled](Encoded::is_settled).
    pub async fn settle(&mut self) -> Result<(), RunError> {
        let Some(late) = self.late.take() else { return Ok(()) };
        for ((_, t), shape) in self.outputs.iter_mut().zip(late.read().await?) {
            t.shape = shape;
        }
        Ok(())
    }
}

impl Session {
    /// Records a run into `encoder`: nothing is submitted, polled or waited for. What is recorded behind it reads its outputs,
    /// which are in `outputs` where these name one, else in memory of the session's. A tensor for an output whose size the run computes
    /// has one axis, of the largest number of elements that is possible.
    ///
    /// Encoders into which a session is recorded are submitted in the order in which they were recorded, each once: a state has the
    /// length and the contents of the last recorded run for the next. Where there are states, all that is recorded is submitted
    /// before the session runs by itself, and before states are read, replaced, reset or [grown](Session::grow). Runs of several sessions may be in one encoder,
    /// each with outputs of those before as inputs, and so may several runs of one session. Inputs on the device are read when the
    /// commands run; those on the host are read now, each into new memory.
    ///
    /// Nothing has been recorded when an error is returned.
    ///
    /// # Errors
    /// [`RunError::Encode`] for a program with a loop whose end the host must look at, and for a session with
    /// [canaries](super::SessionOptions::canaries); [`RunError::Output`] for a tensor that is not as the output will be, is no tensor
    /// of this device, or lies where another input or output does; [`RunError::DeviceLost`]; else as [`Session::run_on_device`].
    pub async fn encode(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        inputs: &[(&str, Value)],
        outputs: &[(&str, DeviceTensor)],
    ) -> Result<Encoded, RunError> {
        self.can_encode()?;
        self.states.keep_old();
        self.encoded = true;
        let ready = self.prepare_into(inputs, Some(outputs)).await?;
        let gpu = self.gpu.clone();
        let words: Vec<i32> = ready.prepared.values().iter().map(|v| *v as i32).collect();
        let dims = self.filled("dimensions", bytemuck::cast_slice(&words)).await?;
        let mut late = self.late(&ready, vec![]);
        if let Some(late) = &mut late {
            // The uniform is the next run's too.
            let capacity = self.dims.capacity;
            let buffer = gpu.storage("computed sizes", capacity).await?;
            let memory = Arc::new(Memory { buffer, capacity });
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

    /// A new buffer with these bytes, which are there for what is submitted next.
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
        Ok(Arc::new(Memory { buffer, capacity }))
    }

    /// Where an output will be: in the tensor that the caller gave for it.
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
            return refused(format!("its buffer has {} bytes of {bytes}", t.memory.capacity));
        }
        Ok(Some(t.clone()))
    }

    /// Checks that the outputs given have names of outputs, and no memory in common with `placed` or each other.
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
