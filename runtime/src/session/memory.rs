//! The device memory of sessions.

use super::Session;
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
    /// The sum of all parts.
    pub fn total(&self) -> u64 {
        self.weights + self.states + self.activations
    }
}
