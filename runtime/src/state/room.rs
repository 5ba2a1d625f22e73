//! The capacity of states, and how it grows.
//!
//! WebGPU has no sparse buffers, and a cache in blocks would put an indirection into every kernel that reads it. So a state is
//! one buffer, and growing copies its rows of positions to a larger buffer on the device. With doubling, each position is copied
//! less than once on average.

use super::Session;
use crate::error::RunError;
use std::collections::BTreeMap;
use wgfc_program::program::{Buffer, State};
use wgfc_program::{Atom, Dim};

/// The memory layout of a state with respect to the axis along which it grows.
pub(super) struct Rows {
    /// The number of rows, which is the product of the extents of the axes before it.
    pub(super) count: u64,
    /// The size in bits of one position in a row.
    pub(super) bits: u64,
}

fn too_large(s: &State) -> RunError {
    let message = "its capacity makes it larger than 2147483647 elements".to_owned();
    RunError::State { state: s.name.clone(), message }
}

/// The symbol for a state's capacity; `None` if the capacity is fixed or the state does not grow.
fn symbol(s: &State) -> Option<&str> {
    match s.shape.get(s.growth.as_ref()?.axis)?.as_atom()? {
        Atom::Sym(name) => Some(name),
        _ => None,
    }
}

/// The capacity in positions of a growing state; `None` if it does not grow or the symbol has no value.
pub(super) fn positions(s: &State, capacities: &BTreeMap<String, i64>) -> Option<i64> {
    s.shape.get(s.growth.as_ref()?.axis)?.eval_syms(&|c| capacities.get(c).copied())
}

/// A state's extents.
///
/// # Errors
/// [`RunError::State`] for an extent without a value.
pub(super) fn shape(s: &State, capacities: &BTreeMap<String, i64>) -> Result<Vec<usize>, RunError> {
    let extent = |d: &Dim| usize::try_from(d.eval_syms(&|c| capacities.get(c).copied()).unwrap_or(-1)).ok();
    let shape: Option<Vec<usize>> = s.shape.iter().map(extent).collect();
    shape.ok_or_else(|| too_large(s))
}

/// A state's bytes.
///
/// # Errors
/// [`RunError::State`] for more elements than an `i32` counts.
pub(super) fn bytes(s: &State, capacities: &BTreeMap<String, i64>) -> Result<u64, RunError> {
    let n = s.shape.iter().product::<Dim>().eval_syms(&|c| capacities.get(c).copied());
    let n = n.and_then(|n| i32::try_from(n).ok()).and_then(|n| usize::try_from(n).ok());
    Ok(Buffer::byte_size(s.dtype, n.ok_or_else(|| too_large(s))?))
}

pub(super) fn rows(s: &State) -> Option<Rows> {
    let axis = s.growth.as_ref()?.axis;
    let product = |d: &[Dim]| u64::try_from(d.iter().product::<Dim>().as_const()?).ok();
    let bits = product(s.shape.get(axis + 1..)?)?.checked_mul(s.dtype.bits() as u64)?;
    Some(Rows { count: product(&s.shape[..axis])?, bits })
}

/// Values for the capacities that a program leaves open: `capacity`, rounded up so that rows begin at whole words, as buffer
/// copies require.
///
/// # Errors
/// [`RunError::State`] for a capacity that is 0 or too large.
pub(super) fn capacities(states: &[State], capacity: usize) -> Result<BTreeMap<String, i64>, RunError> {
    let mut out = BTreeMap::new();
    for s in states {
        let (Some(symbol), Some(rows)) = (symbol(s), rows(s)) else { continue };
        // The smallest number of positions whose size is a multiple of a word; a power of two.
        let step = if rows.count > 1 { 32 >> rows.bits.trailing_zeros().min(5) } else { 1 };
        let n = capacity.checked_next_multiple_of(step).and_then(|n| i32::try_from(n).ok());
        let n = n.filter(|n| *n > 0).ok_or_else(|| {
            let message = format!("it cannot have room for {capacity} positions");
            RunError::State { state: s.name.clone(), message }
        })?;
        let most: &mut i64 = out.entry(symbol.to_owned()).or_insert(0);
        *most = (*most).max(n.into());
    }
    Ok(out)
}

impl Session {
    /// # Errors
    /// [`RunError::State`] for a symbol that is a state's capacity.
    pub(crate) fn no_capacity(&self, name: &str) -> Result<(), RunError> {
        match self.program.states.iter().find(|s| symbol(s) == Some(name)) {
            None => Ok(()),
            Some(s) => {
                let message = format!("`{name}` is its capacity, which Session::grow sets");
                Err(RunError::State { state: s.name.clone(), message })
            }
        }
    }

    /// Gives growing states room for at least `capacity` positions and keeps their contents. This affects all sessions on these
    /// states, none of which may be in the middle of a run. States with enough room are left alone. Growing copies the states on
    /// the device, which holds both copies for a moment.
    ///
    /// # Errors
    /// [`RunError::State`] for a program whose capacity was fixed when it was compiled, [`RunError::Limits`] for a state larger
    /// than a binding may be, and [`RunError::OutOfMemory`]. The states are unchanged after an error.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::summing()).await?;
    /// session.grow(5000).await?;
    /// assert!(session.capacity() >= Some(5000));
    /// # Ok(()) }) }
    /// ```
    pub async fn grow(&mut self, capacity: usize) -> Result<(), RunError> {
        self.gpu.health()?;
        let from = self.states.now();
        let states = &self.states.states;
        let want = i64::try_from(capacity).unwrap_or(i64::MAX);
        let little = |s: &&State| positions(s, &from.capacities).is_some_and(|c| c < want);
        let mut small = states.iter().filter(|s| !s.is_window()).filter(little);
        let Some(first) = small.next() else { return Ok(()) };
        if let Some(s) = std::iter::once(first).chain(small).find(|s| symbol(s).is_none()) {
            let have = positions(s, &from.capacities).unwrap_or(0);
            let message = format!(
                "it has room for {have} positions, which was fixed when the program was compiled: leave the capacity to the session (States with capacity None)"
            );
            return Err(RunError::State { state: s.name.clone(), message });
        }
        let mut to = from.clone();
        for (symbol, n) in capacities(states, capacity)? {
            to.capacities.entry(symbol).and_modify(|have| *have = n.max(*have));
        }
        to.version += 1;
        // (old buffer, bytes of its rows, new buffer, bytes of its rows, bytes in use of a row, number of rows)
        let mut copies = vec![];
        for s in states {
            let (Some(rows), Some(old)) = (symbol(s).and_then(|_| rows(s)), from.buffers.get(&s.name)) else {
                continue;
            };
            let size = bytes(s, &to.capacities)? + self.slack();
            let new = self.gpu.resident(&format!("state \"{}\"", s.name), size).await?;
            let bytes = |positions: i64| (positions.max(0) as u64).saturating_mul(rows.bits).div_ceil(8);
            let [had, has] = [&from, &to].map(|c| bytes(positions(s, &c.capacities).unwrap_or(0)));
            let length = s.growth.as_ref().and_then(|g| from.lengths.get(&g.length)).copied().unwrap_or(0);
            let used = bytes(length).next_multiple_of(4).min(if rows.count > 1 { had } else { old.size() });
            copies.push((old.clone(), had, new.clone(), has, used, rows.count));
            to.buffers.insert(s.name.clone(), new);
        }
        let gpu = &self.gpu;
        gpu.scoped("growing the states", || {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            for (old, had, new, has, used, rows) in &copies {
                for r in 0..if *used > 0 { *rows } else { 0 } {
                    encoder.copy_buffer_to_buffer(old, r * had, new, r * has, *used);
                }
            }
            gpu.queue().submit([encoder.finish()]);
        })
        .await?;
        *self.states.lock() = to;
        if !self.states.keeps_old() {
            copies.iter().for_each(|(old, ..)| old.destroy());
        }
        Ok(())
    }
}
