//! The dispatches of a program: each is a kernel, or several that are linked.

use super::packed;
use crate::Diagnostic;
use crate::device::DeviceProfile;
use crate::emit::link::{Bound, Part, Place, link};
use crate::emit::{EmitContext, EmittedKernel, emit};
use crate::kernel::{Capacity, Kernel, KernelTensor, TensorId, TensorKind};
use crate::schedule::sequences::{self, Buffers, Sequence};
use crate::schedule::{Schedule, ScheduledGraph};
use rustc_hash::FxHashMap;
use std::ops::Range;
use wgfc_ir::{Dim, TensorType};

/// The kernels of a dispatch, as one text.
pub(super) struct Unit {
    pub kernels: Range<usize>,
    pub emitted: EmittedKernel,
}

/// All dispatches.
#[derive(Default)]
pub(super) struct Units {
    pub list: Vec<Unit>,
    /// Tensors beside those of the kernels, in which sequences keep several.
    pub tensors: Vec<KernelTensor>,
}

impl Units {
    /// The dispatches of kernels.
    pub fn of(&self, kernels: &Range<usize>) -> Range<usize> {
        let before = |at: usize| self.list.partition_point(|u| u.kernels.end <= at);
        before(kernels.start)..before(kernels.end)
    }
}

/// Writes kernels, equal ones once.
pub(super) struct Emitter<'a> {
    cx: &'a EmitContext<'a>,
    device: &'a DeviceProfile,
    known: FxHashMap<(u128, Schedule), (EmittedKernel, Vec<TensorId>)>,
}

impl<'a> Emitter<'a> {
    /// An emitter for kernels of a graph on a device.
    pub fn new(cx: &'a EmitContext<'a>, device: &'a DeviceProfile) -> Emitter<'a> {
        Emitter { cx, device, known: FxHashMap::default() }
    }

    fn emit(&mut self, k: &Kernel, schedule: &Schedule) -> Result<EmittedKernel, Diagnostic> {
        let hash = k.structural_hash(&self.cx.graph.tensors, Capacity::Counts);
        let (key, tensors) = ((hash, schedule.clone()), k.tensors());
        if let Some((e, theirs)) = self.known.get(&key) {
            return Ok(rebound(e, theirs, &tensors));
        }
        let e = emit(k, schedule, self.cx)?;
        self.known.insert(key, (e.clone(), tensors));
        Ok(e)
    }

    /// The kernels and sequences in order.
    pub fn units(&mut self, scheduled: &ScheduledGraph) -> Result<Units, Vec<Diagnostic>> {
        let kernels = &scheduled.graph.kernels;
        let mut units = Units::default();
        let mut errors = vec![];
        let buffers = (!scheduled.sequences.is_empty()).then(|| Buffers::new(&scheduled.graph));
        // The sequence that comes next is the last one of the list.
        let mut sequences: Vec<Sequence> = scheduled.sequences.iter().rev().cloned().collect();
        let mut at = 0;
        while at < kernels.len() {
            if let Some(buffers) = &buffers
                && let Some(s) = sequences.pop_if(|s| s.kernels.start == at)
            {
                match self.sequence(&s, buffers, kernels, units.tensors.len()) {
                    Ok((emitted, tensors)) => {
                        units.tensors.extend(tensors);
                        at = s.kernels.end;
                        units.list.push(Unit { kernels: s.kernels, emitted });
                        continue;
                    }
                    Err(why) => {
                        tracing::debug!(why, kernels = s.kernels.len(), "a sequence is split");
                        let [first, second] = s.halves();
                        sequences.extend([second, first].into_iter().filter(|s| s.kernels.len() > 1));
                        if sequences.last().is_some_and(|s| s.kernels.start == at) {
                            continue;
                        }
                    }
                }
            }
            match self.emit(&kernels[at], &scheduled.schedules[at]) {
                Ok(emitted) => units.list.push(Unit { kernels: at..at + 1, emitted }),
                Err(d) => errors.push(d),
            }
            at += 1;
        }
        if errors.is_empty() { Ok(units) } else { Err(errors) }
    }

    /// A sequence as one kernel, and the tensors that it has beside those of its kernels, of which there are so many `before`.
    fn sequence(
        &mut self,
        s: &Sequence,
        buffers: &Buffers,
        kernels: &[Kernel],
        before: usize,
    ) -> Result<(EmittedKernel, Vec<KernelTensor>), String> {
        let own = &kernels[s.kernels.clone()];
        let emitted = own.iter().zip(&s.schedules).map(|(k, schedule)| self.emit(k, schedule));
        let emitted: Vec<EmittedKernel> = emitted.collect::<Result<_, _>>().map_err(|d| d.message)?;
        let tensors = &self.cx.graph.tensors;
        let mut bound: Vec<(sequences::Key, TensorId)> = vec![];
        let parts = emitted.iter().map(|e| {
            let places = e.bindings.iter().map(|(t, _)| {
                let key = buffers.key(*t);
                let whole = if let sequences::Key::Tensor(whole) = key { whole } else { *t };
                let at = bound.iter().position(|b| b.0 == key).unwrap_or_else(|| {
                    bound.push((key, whole));
                    bound.len() - 1
                });
                match key {
                    sequences::Key::Constant(_) => Place::Constant(at),
                    _ if buffers.is_within(key, &s.kernels) => {
                        let ty = &tensors[whole].ty;
                        let bytes = packed(ty.dtype, &ty.numel()).as_const().unwrap_or(0);
                        Place::Within(at, bytes as u64)
                    }
                    _ => Place::Buffer(at),
                }
            });
            let places = places.collect();
            let numbers = e.workgroups.clone().map(|w| w.as_const().and_then(|w| u32::try_from(w).ok()));
            let [Some(x), Some(y), Some(z)] = numbers else {
                return Err(String::from("a number of workgroups that is known only when the program runs"));
            };
            Ok(Part { kernel: e, places, workgroups: [x, y, z] })
        });
        let parts: Vec<Part> = parts.collect::<Result<_, _>>()?;
        let linked = link(&parts)?;
        let mut more = vec![];
        let mut kernel = linked.kernel;
        if kernel.workgroup_bytes > self.device.max_workgroup_bytes {
            return Err(format!("{} bytes of workgroup memory", kernel.workgroup_bytes));
        }
        if kernel.bindings.len() > self.device.max_storage_buffers as usize {
            return Err(format!("{} buffers", kernel.bindings.len()));
        }
        for ((tensor, _), bound_to) in kernel.bindings.iter_mut().zip(&linked.bindings) {
            *tensor = match bound_to {
                Bound::Buffer(i) => bound[*i].1,
                Bound::Within(dtype, elements) => {
                    let ty = TensorType::new(*dtype, vec![Dim::from(*elements as usize)]);
                    more.push(KernelTensor { ty, kind: TensorKind::Intermediate, name: None });
                    tensors.len() + before + more.len() - 1
                }
            };
        }
        #[cfg(feature = "validate")]
        kernel.check().map_err(|d| d.message)?;
        Ok((kernel, more))
    }
}

/// A kernel with the same structure, bound to other tensors.
fn rebound(e: &EmittedKernel, theirs: &[TensorId], mine: &[TensorId]) -> EmittedKernel {
    let mut e = e.clone();
    for (t, _) in &mut e.bindings {
        if let Some(i) = theirs.iter().position(|x| x == t) {
            *t = mine[i];
        }
    }
    e
}
