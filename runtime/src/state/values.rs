//! The contents of states on the host, for example to save a prompt's cache and continue from it later.

use super::{Session, room};
use crate::error::RunError;
use crate::tensor::{self, DeviceTensor, Memory};
use crate::upload;
use std::collections::BTreeMap;
use wgfc_program::program::State;
use wgfc_program::{Scalar, Tensor, TensorType};

/// States are read together through one transfer buffer of at most this many bytes.
const TOGETHER: u64 = 256 << 20;

fn wrong(s: &State, message: String) -> RunError {
    RunError::State { state: s.name.clone(), message }
}

/// `t` truncated, or padded with zeros, to `extent` positions along an axis.
fn resized(t: &Tensor, axis: usize, extent: usize) -> Option<Tensor> {
    let have = *t.shape.get(axis)?;
    let mut shape = t.shape.clone();
    shape[axis] = extent;
    let inner: usize = t.shape[axis + 1..].iter().product();
    let (from, to, kept) = (have * inner, extent * inner, have.min(extent) * inner);
    let rows: usize = t.shape[..axis].iter().product();
    if !t.dtype.bits().is_multiple_of(8) {
        let old = t.scalars()?;
        let mut new = vec![Scalar::from_i64(t.dtype, 0); rows * to];
        for r in 0..rows {
            new[r * to..r * to + kept].copy_from_slice(old.get(r * from..r * from + kept)?);
        }
        return Some(Tensor::from_scalars(t.dtype, shape, &new));
    }
    let (old, size) = (t.bytes()?, t.dtype.bits() / 8);
    let mut new = vec![0u8; rows * to * size];
    for r in 0..rows {
        let kept = kept * size;
        new[r * to * size..][..kept].copy_from_slice(old.get(r * from * size..)?.get(..kept)?);
    }
    Tensor::new(t.dtype, shape, new).ok()
}

impl Session {
    /// The contents of the states, by name; only the positions in use of growing states. [`Session::set_states`] of any session
    /// on a program with the same states accepts them.
    pub async fn states(&self) -> Result<BTreeMap<String, Tensor>, RunError> {
        let all: Vec<&State> = self.program.states.iter().collect();
        self.read(&all).await
    }

    /// The contents of the named states, as in [`Session::states`]; other states are not read.
    ///
    /// # Errors
    /// [`RunError::Unknown`] for a name that no state has.
    pub async fn states_named(&self, names: &[&str]) -> Result<BTreeMap<String, Tensor>, RunError> {
        let all = &self.program.states;
        let find = |n: &&str| {
            let found = all.iter().find(|s| s.name == **n);
            found.ok_or_else(|| self.unknown("state", n, all.iter().map(|s| &s.name)))
        };
        self.read(&names.iter().map(find).collect::<Result<Vec<_>, _>>()?).await
    }

    async fn read(&self, states: &[&State]) -> Result<BTreeMap<String, Tensor>, RunError> {
        self.gpu.health()?;
        let now = self.states.now();
        let mut on_device = vec![];
        for s in states {
            let shape = room::shape(s, &now.capacities)?;
            let buffer = now.buffers.get(&s.name).cloned();
            let buffer = buffer.ok_or_else(|| wrong(s, "it has no memory".to_owned()))?;
            let capacity = buffer.size();
            let memory = Memory::of(buffer, capacity);
            on_device.push(DeviceTensor { dtype: s.dtype, shape, memory, gpu: self.gpu.clone() });
        }
        let mut all = vec![];
        while all.len() < on_device.len() {
            let rest = &on_device[all.len()..];
            let mut bytes = 0u64;
            let together = rest.iter().take_while(|t| {
                bytes += t.bytes();
                bytes <= TOGETHER
            });
            let count = together.count().max(1);
            all.extend(tensor::read_all(&self.gpu, &rest[..count], &mut None).await?);
        }
        let mut out = BTreeMap::new();
        for (s, t) in states.iter().zip(all) {
            let t = match &s.growth {
                None => t,
                Some(g) => {
                    let length = now.lengths.get(&g.length).and_then(|l| usize::try_from(*l).ok());
                    let held = resized(&t, g.axis, length.unwrap_or(0));
                    held.ok_or_else(|| wrong(s, "its values are not known".to_owned()))?
                }
            };
            out.insert(s.name.clone(), t);
        }
        Ok(out)
    }

    /// Gives all states new contents, in the form that [`Session::states`] returns. Growing states are enlarged if necessary.
    /// This affects all sessions on these states.
    ///
    /// # Errors
    /// [`RunError::Unknown`] for an unknown state; [`RunError::State`] for a state that is missing, of another type or shape, or
    /// of another length than states with the same length symbol; otherwise as [`Session::grow`]. Nothing has changed after such
    /// an error.
    pub async fn set_states(&mut self, to: &BTreeMap<String, Tensor>) -> Result<(), RunError> {
        self.write_states(to, false).await
    }

    /// Gives the states in `to` new contents, as [`Session::set_states`] does; other states keep theirs. A growing state must be
    /// as long as the other states with the same length symbol, unless those are given, too.
    ///
    /// # Errors
    /// As [`Session::set_states`].
    pub async fn update_states(&mut self, to: &BTreeMap<String, Tensor>) -> Result<(), RunError> {
        self.write_states(to, true).await
    }

    /// Gives states new contents. Unless `others_stay`, `to` must have all of them.
    async fn write_states(
        &mut self,
        to: &BTreeMap<String, Tensor>,
        others_stay: bool,
    ) -> Result<(), RunError> {
        self.gpu.health()?;
        if let Some(name) = to.keys().find(|n| !self.program.states.iter().any(|s| s.name == **n)) {
            return Err(self.unknown("state", name, self.program.states.iter().map(|s| &s.name)));
        }
        let now = self.states.now();
        let mut lengths: Vec<(String, i64)> = vec![];
        let mut longest = 0;
        for s in &self.program.states {
            let Some(t) = to.get(&s.name) else {
                if others_stay {
                    continue;
                }
                return Err(wrong(s, "its contents are missing".to_owned()));
            };
            let shape = room::shape(s, &now.capacities)?;
            let axis = s.growth.as_ref().map(|g| g.axis);
            let fits = |(d, (a, b)): (usize, (&usize, &usize))| a == b || Some(d) == axis;
            let same = t.shape.len() == shape.len() && t.shape.iter().zip(&shape).enumerate().all(fits);
            if !same || t.dtype != s.dtype || !t.is_present() {
                let ty = TensorType::new(s.dtype, s.shape.clone());
                return Err(wrong(s, format!("it is {ty} and cannot become {}{:?}", t.dtype, t.shape)));
            }
            let Some(g) = &s.growth else { continue };
            let held = t.shape[g.axis];
            if s.is_window() && held > shape[g.axis] {
                let message = format!("it is a window of {} positions, not of {held}", shape[g.axis]);
                return Err(wrong(s, message));
            }
            if !s.is_window() {
                longest = longest.max(held);
            }
            let length = i64::try_from(held).unwrap_or(i64::MAX);
            match lengths.iter().find(|(l, _)| *l == g.length) {
                Some((_, other)) if *other != length => {
                    let message = format!(
                        "it has {length} positions and others {other}, which must be as many (`{}`)",
                        g.length
                    );
                    return Err(wrong(s, message));
                }
                Some(_) => {}
                None => lengths.push((g.length.clone(), length)),
            }
        }
        let kept = self.program.states.iter().filter(|s| !to.contains_key(&s.name));
        for (s, g) in kept.filter_map(|s| Some((s, s.growth.as_ref()?))) {
            let have = now.lengths.get(&g.length).copied().unwrap_or(0);
            if let Some((_, length)) = lengths.iter().find(|(l, n)| *l == g.length && *n != have) {
                let message = format!(
                    "it has {have} positions and others would have {length}, which must be as many (`{}`)",
                    g.length
                );
                return Err(wrong(s, message));
            }
        }
        self.grow(longest).await?;
        let now = self.states.now();
        let mut writes = vec![];
        for s in &self.program.states {
            let (Some(t), Some(buffer)) = (to.get(&s.name), now.buffers.get(&s.name)) else { continue };
            let shape = room::shape(s, &now.capacities)?;
            let whole = match &s.growth {
                None => Some(t.clone()),
                Some(g) => resized(t, g.axis, shape[g.axis]),
            };
            let whole = whole.ok_or_else(|| wrong(s, "its values are not known".to_owned()))?;
            writes.push((s.name.as_str(), whole, buffer.clone()));
        }
        let writes: Vec<(&str, &Tensor, wgpu::Buffer)> =
            writes.iter().map(|(name, t, buffer)| (*name, t, buffer.clone())).collect();
        upload::tensors(&self.gpu, &writes).await?;
        self.states.set_lengths(&lengths);
        Ok(())
    }
}
