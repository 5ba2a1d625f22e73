//! The device memory of sessions.

use super::{Session, SessionOptions, weight_place};
use crate::error::RunError;
use crate::state;
use std::collections::HashSet;
use std::fmt;
use wgfc_program::Program;
use wgfc_program::program::BufferKind;

/// Bytes of device memory in buffers. The memory that a driver allocates besides them is not known.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::summing())?;
/// use wgfc_runtime::session::DeviceMemory;
/// let memory = DeviceMemory::of([&session]);
/// println!("{} bytes, {} of them states", memory.total(), memory.states);
/// assert!(memory.states > 0 && memory.weights == 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the states, at their capacity.
    pub states: u64,
    /// Bytes of arenas, inputs, outputs and transfer buffers that are kept for later runs.
    pub activations: u64,
}

impl DeviceMemory {
    /// The memory of several sessions. Shared memory counts once.
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
                match &b.kind {
                    BufferKind::State { name } => {
                        sum.states += s.states.buffer(name).as_ref().map_or(0, &mut new);
                    }
                    _ => sum.weights += buffer.as_ref().map_or(0, &mut new),
                }
            }
            let ports = s.pools.iter().flatten().map(|m| &m.buffer);
            let kept = s.arenas.iter().chain(ports).chain([&s.dims.buffer]).chain(&s.staging);
            sum.activations += kept.map(&mut new).sum::<u64>();
        }
        sum
    }
    /// The memory of the weights and states of sessions of one [family](Session::family) or of a single program. That of activations
    /// depends on the inputs and is 0 here.
    ///
    /// # Errors
    /// As [`Session::with_options`] for states, and for weights that are absent.
    pub fn needed(programs: &[&Program], options: &SessionOptions) -> Result<DeviceMemory, RunError> {
        let mut sum = DeviceMemory::default();
        let mut seen = HashSet::new();
        for p in programs {
            for b in &p.buffers {
                let BufferKind::Weight { name } = &b.kind else { continue };
                let (place, _, len) = weight_place(p, name)?;
                if seen.insert(place) {
                    sum.weights += super::weight_bytes(len);
                }
            }
        }
        if let Some(p) = programs.first() {
            sum.states = state::bytes(p, options.capacity)?;
        }
        Ok(sum)
    }
    /// The sum of all parts.
    pub fn total(&self) -> u64 {
        self.weights + self.states + self.activations
    }
}

impl fmt::Display for DeviceMemory {
    /// The sum and its parts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes are needed, {} of weights and {} of states",
            self.total(),
            self.weights,
            self.states
        )?;
        if self.activations > 0 {
            write!(f, ", {} of activations", self.activations)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{gpus, summing};

    #[test]
    fn programs_that_do_not_fit_are_refused() {
        for gpu in gpus() {
            let with = |memory| SessionOptions { memory: Some(memory), ..SessionOptions::default() };
            let program = summing();
            let needs = DeviceMemory::needed(&[&program], &with(0)).unwrap();
            let made = Session::with_options_blocking(gpu, &program, with(needs.total())).unwrap();
            assert!(needs.states > 0 && DeviceMemory::of([&made]).states == needs.states);
            let few = needs.total() - 1;
            let refused = Session::with_options_blocking(gpu, &program, with(few)).unwrap_err();
            let text = format!("weights and states do not fit the device's memory: {needs}; there are {few}");
            assert!(
                matches!(&refused, RunError::DoesNotFit { needs: n, have } if (*n, *have) == (needs, Some(few)))
            );
            assert_eq!(refused.to_string(), text);
        }
    }
}
