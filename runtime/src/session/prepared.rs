//! Preparation of a run from its inputs: values of symbols, memory, bind groups and dispatches.

use super::{Session, Value, canaries};
use crate::bind::{self, Bound, Given, Rounds};
use crate::error::{BadInput, RunError};
use crate::kernel::Pipeline;
use crate::state;
use crate::tensor::{DeviceTensor, Memory};
use crate::upload;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use wgfc_program::program::{Buffer, BufferKind};

/// The largest numbers of shape bindings, of prepared runs, and of bind groups per dispatch that are kept.
const KEPT_BOUND: usize = 256;
const KEPT_RUNS: usize = 4;
const KEPT_GROUPS: usize = 8;

/// A bound range of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Piece {
    pub(super) buffer: wgpu::Buffer,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// A dispatch with everything that recording needs.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    /// Index into [`Program::dispatches`].
    pub(crate) number: usize,
    /// Index into [`Program::kernels`].
    pub(crate) kernel: usize,
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) group: wgpu::BindGroup,
    pub(crate) workgroups: [u32; 3],
}

/// The dispatches for one binding of the symbols and one choice of buffers for inputs and outputs.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(super) bound: Arc<Bound>,
    /// The memory of the inputs and the outputs.
    pub(super) ports: Vec<Piece>,
    pub(crate) dispatches: Vec<Dispatch>,
    segments: Vec<Segment>,
}

/// Consecutive dispatches that can be one compute pass: none depends on a size that another one of them computes, and the host
/// need not read anything in between.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The range in [`Prepared::dispatches`].
    pub(crate) dispatches: Range<usize>,
    /// Computed sizes to copy to the `Dims` uniform afterwards: source buffer, its offset, and offset in the uniform.
    pub(super) sizes: Vec<(wgpu::Buffer, u64, u64)>,
    /// The word that the host reads afterwards, if the segment ends a round of a loop.
    pub(super) condition: Option<ConditionRead>,
}

/// The end of a round.
#[derive(Debug)]
pub(super) struct ConditionRead {
    /// The index of the segment with which a round begins.
    pub(super) first: usize,
    /// The buffer and the offset of the word, which is 0 if the loop has ended.
    pub(super) word: (wgpu::Buffer, u64),
    /// Index into [`Program::repeats`](wgfc_program::Program::repeats).
    pub(super) repeat: usize,
}

impl Prepared {
    /// The segments in order of execution; at least one.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }
    /// The values of the program's symbols.
    pub(crate) fn values(&self) -> &[i64] {
        &self.bound.values
    }
}

/// The resources of one run once its inputs are in place.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) outputs: Vec<DeviceTensor>,
    /// The lengths of the states after the run.
    pub(super) lengths: Vec<(String, i64)>,
    /// References that keep pooled input buffers from being reused before the run is submitted.
    _inputs: Vec<Arc<Memory>>,
}
impl Session {
    /// Binds the symbols, uploads the inputs, and finds or creates the buffers and dispatches of the run.
    pub(crate) async fn prepare(&mut self, inputs: &[(&str, Value)]) -> Result<Ready, RunError> {
        self.prepare_into(&self.ordered(inputs)?, None).await
    }

    /// The given inputs in the program's order; `None` for an optional input that is not given.
    pub(super) fn ordered<'v>(
        &self,
        inputs: &'v [(&str, Value)],
    ) -> Result<Vec<Option<&'v Value>>, RunError> {
        let given: Vec<Given<'_>> =
            inputs.iter().map(|(name, v)| Given { name, dtype: v.dtype(), shape: v.shape() }).collect();
        let order = bind::match_inputs(&self.program, &given)?;
        Ok(order.into_iter().map(|i| Some(&inputs.get(i?)?.1)).collect())
    }

    /// [`Session::prepare`] for inputs in the program's order, of its types and ranks; if `recorded` is given, for a run that is
    /// recorded into the caller's encoder, with outputs in the tensors of `recorded`. In that case nothing is submitted, and the
    /// caller of this function records the write of the `Dims` uniform.
    pub(super) async fn prepare_into(
        &mut self,
        inputs: &[Option<&Value>],
        recorded: Option<&[(&str, DeviceTensor)]>,
    ) -> Result<Ready, RunError> {
        self.gpu.health()?;
        if self.placed != self.states.version() {
            self.place_states(self.states.clone());
            self.forget_groups();
        }
        let values = self.symbol_values(inputs)?;
        let lengths = state::lengths_after(&self.program, &values)?;
        let bound = self.bind(values)?;
        let arenas_changed = self.grow_arenas(&bound).await?;
        if arenas_changed {
            self.forget_groups();
        }
        let mut placed = Vec::with_capacity(inputs.len());
        for (port, value) in inputs.iter().enumerate() {
            placed.push(match value {
                Some(value) => self.place_input(port, value, recorded.is_some()).await?,
                // An optional input that is not given gets a buffer without elements, as no kernel reads one.
                None => {
                    let size = Buffer::byte_size(self.program.inputs[port].dtype, 0);
                    self.take_buffer(port, size + self.slack()).await?
                }
            });
        }
        let given = recorded.unwrap_or_default();
        self.outputs_apart(given, &placed)?;
        let mut outputs = Vec::with_capacity(self.program.outputs.len());
        for i in 0..self.program.outputs.len() {
            let port = &self.program.outputs[i];
            let (dtype, size) = (port.dtype, bound.memory.bytes[port.buffer] + self.slack());
            if let Some(t) = self.given_output(given, &port.name, (dtype, &bound.outputs[i]), size)? {
                outputs.push(t);
                continue;
            }
            let memory = self.take_buffer(self.program.inputs.len() + i, size).await?;
            let shape = bound.outputs[i].clone();
            outputs.push(DeviceTensor { dtype, shape, memory, gpu: self.gpu.clone() });
        }
        // After a recorded run the contents of the uniform are unknown, as the caller may submit commands that write it at any
        // time.
        let known = self.dims_written.as_ref().filter(|_| !self.encoded);
        if recorded.is_none() && known != Some(&bound.values) {
            let words: Vec<i32> = bound.values.iter().map(|v| *v as i32).collect();
            let gpu = &self.gpu;
            gpu.scoped("writing the dimensions", || {
                gpu.queue().write_buffer(&self.dims.buffer, 0, bytemuck::cast_slice(&words));
            })
            .await?;
            self.dims_written = Some(bound.values.clone());
        }
        let prepared = self.prepared(bound, &placed, &outputs).await?;
        Ok(Ready { prepared, outputs, lengths, _inputs: placed })
    }

    /// The values of the symbols for inputs in the program's order, of its types and ranks.
    fn symbol_values(&self, inputs: &[Option<&Value>]) -> Result<Vec<i64>, RunError> {
        let given: Vec<Option<&[usize]>> = inputs.iter().map(|v| Some((*v)?.shape())).collect();
        let shapes = bind::input_shapes(&self.program, &given);
        let mut fixed = self.symbols.clone();
        fixed.extend(self.states.symbols());
        let extents: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let values = bind::bind_symbols(&self.program, &extents, &fixed)?;
        bind::check_broadcasts(&self.program, &shapes, &values)?;
        Ok(values)
    }

    /// Checks that the program accepts inputs of these types and shapes. Nothing is run or allocated.
    ///
    /// # Errors
    /// [`RunError::Inputs`] and [`RunError::Constraint`] with the reason.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
    /// use wgfc_program::Tensor;
    /// assert!(session.fits(&[("x", Tensor::from_f32(vec![2], &[1.0, 2.0]).into())]).is_ok());
    /// assert!(session.fits(&[("x", Tensor::from_f32(vec![1, 2], &[1.0, 2.0]).into())]).is_err());
    /// # Ok(()) }
    /// ```
    pub fn fits(&self, inputs: &[(&str, Value)]) -> Result<(), RunError> {
        let values = self.symbol_values(&self.ordered(inputs)?)?;
        bind::check_sizes(&self.program, &values)
    }

    fn bind(&mut self, values: Vec<i64>) -> Result<Arc<Bound>, RunError> {
        if let Some(b) = self.bound.get(&values) {
            return Ok(b.clone());
        }
        let mut bound = bind::bind(&self.program, values.clone(), self.gpu.profile())?;
        if self.canaries {
            canaries::spread(&mut bound.memory);
        }
        let bound = Arc::new(bound);
        if self.bound.len() >= KEPT_BOUND {
            self.bound.clear();
        }
        self.bound.insert(values, bound.clone());
        Ok(bound)
    }

    /// Enlarges arenas that are too small; returns whether any changed. Arenas never shrink, so that alternating shapes can share
    /// them.
    async fn grow_arenas(&mut self, bound: &Bound) -> Result<bool, RunError> {
        let mut changed = false;
        for (i, need) in bound.memory.arenas.iter().enumerate() {
            let have = self.arenas.get(i).map(wgpu::Buffer::size);
            if have.is_some_and(|h| h >= *need) {
                continue;
            }
            // An arena that has grown once gets an eighth more than it needs, as it will probably grow again.
            let ahead = have.map_or(0, |_| need / 8).next_multiple_of(256);
            let size = need.saturating_add(ahead).min(self.gpu.profile().buffer_bytes).max(*need).max(256);
            let what = format!("arena {i}");
            if let Some(old) = self.arenas.get(i) {
                // Bind groups of the old arena are dropped, too, so that its memory is free before the new one is allocated. It
                // is not destroyed if commands that the caller has not submitted yet may use it.
                if !self.encoded {
                    old.destroy();
                }
                self.prepared.clear();
                self.groups.iter_mut().for_each(HashMap::clear);
            }
            let new = self.gpu.storage(&what, size).await;
            match (new, self.arenas.get_mut(i)) {
                (Ok(b), Some(slot)) => *slot = b,
                (Ok(b), None) => self.arenas.push(b),
                (Err(e), _) => {
                    self.arenas.truncate(i);
                    return Err(e);
                }
            }
            changed = true;
        }
        Ok(changed)
    }

    /// The memory of an input. If the run is `recorded`, an input from the host gets new memory, because recorded runs that have
    /// not been submitted may still read pooled memory.
    async fn place_input(
        &mut self,
        port: usize,
        value: &Value,
        recorded: bool,
    ) -> Result<Arc<Memory>, RunError> {
        let name = &self.program.inputs[port].name;
        let bad = |message: &str| {
            RunError::Inputs(vec![BadInput { name: name.clone(), message: message.to_owned() }])
        };
        match value {
            Value::Device(t) if t.gpu.is(&self.gpu) => Ok(t.memory.clone()),
            Value::Device(_) => Err(bad("it is on another device")),
            Value::Host(t) => {
                let bytes = t.bytes().ok_or_else(|| bad("its values are not known"))?;
                let name = name.clone();
                if recorded {
                    return self.filled(&format!("input \"{name}\""), bytes).await;
                }
                let size = Buffer::byte_size(t.dtype, t.numel()) + self.slack();
                let memory = self.take_buffer(port, size).await?;
                upload::bytes(&self.gpu, &name, bytes, &memory.buffer).await?;
                Ok(memory)
            }
        }
    }

    /// A buffer of at least `need` bytes from a pool that is not in use elsewhere.
    pub(super) async fn take_buffer(&mut self, pool: usize, need: u64) -> Result<Arc<Memory>, RunError> {
        let fits = |m: &Arc<Memory>| m.capacity >= need && m.capacity / 2 <= need.max(4096);
        let free = |m: &Arc<Memory>| Arc::strong_count(m) == 1;
        if let Some(m) = self.pools[pool].iter().find(|m| free(m) && fits(m)) {
            return Ok(m.clone());
        }
        // The first buffer has the exact size. If sizes vary from run to run, buffers are made up to about an eighth larger.
        let varies = self.pools[pool].iter().any(|m| !fits(m));
        let step = (need / 8).next_power_of_two().max(4);
        let rounded = if varies { need.next_multiple_of(step) } else { need };
        let capacity = rounded.min(self.gpu.profile().buffer_bytes).max(need);
        self.pools[pool].retain(|m| !free(m) || fits(m));
        let inputs = &self.program.inputs;
        let what = match inputs.get(pool) {
            Some(p) => format!("input \"{}\"", p.name),
            None => format!("output \"{}\"", self.program.outputs[pool - inputs.len()].name),
        };
        let buffer = self.gpu.storage(&what, capacity).await?;
        let memory = Memory::of(buffer, capacity);
        // The pool tracks at most four buffers, so that it does not grow if the caller keeps tensors.
        if self.pools[pool].len() >= 4 {
            self.pools[pool].remove(0);
        }
        self.pools[pool].push(memory.clone());
        Ok(memory)
    }

    /// The dispatches of a run, reused if they have been prepared before.
    async fn prepared(
        &mut self,
        bound: Arc<Bound>,
        inputs: &[Arc<Memory>],
        outputs: &[DeviceTensor],
    ) -> Result<Arc<Prepared>, RunError> {
        let memories = inputs.iter().chain(outputs.iter().map(|o| &o.memory));
        let piece = |m: &Arc<Memory>| Piece { buffer: m.buffer.clone(), offset: m.offset, size: m.capacity };
        let ports: Vec<Piece> = memories.map(piece).collect();
        let kept = self.prepared.iter().position(|p| Arc::ptr_eq(&p.bound, &bound) && p.ports == ports);
        if let Some(i) = kept {
            self.prepared[..=i].rotate_right(1);
            return Ok(self.prepared[0].clone());
        }
        let gpu = self.gpu.clone();
        let longer = self.longer.pipelines(&gpu, &self.program, self.checks, &bound).await?;
        let (dispatches, rounds) =
            gpu.scoped("binding buffers", || self.dispatches(&bound, &ports, &longer)).await?;
        let segments = self.segments(&bound, &ports, &dispatches, &rounds);
        let prepared = Arc::new(Prepared { bound, ports, dispatches, segments });
        self.prepared.truncate(KEPT_RUNS - 1);
        self.prepared.insert(0, prepared.clone());
        Ok(prepared)
    }

    /// The location of a buffer of the program.
    pub(super) fn piece(&self, bound: &Bound, ports: &[Piece], b: usize) -> Option<Piece> {
        let port = |index: usize| {
            let p = &ports[index];
            (&p.buffer, p.offset, p.offset + p.size)
        };
        let (buffer, offset, end) = match &self.program.buffers[b].kind {
            BufferKind::Input { index } => port(*index),
            BufferKind::Output { index } => port(self.program.inputs.len() + index),
            BufferKind::Weight { .. } | BufferKind::State { .. } => {
                let buffer = self.resident[b].as_ref()?;
                (buffer, 0, buffer.size())
            }
            BufferKind::Arena { .. } => {
                let (arena, offset) = bound.memory.slots[b]?;
                (&self.arenas[arena], offset, self.arenas[arena].size())
            }
        };
        let bytes = bound.memory.bytes[b];
        let slack = self.slack().min(end.saturating_sub(offset + bytes));
        Some(Piece { buffer: buffer.clone(), offset, size: bytes + slack })
    }

    /// Splits the dispatches after each computed size and at the beginning and the end of rounds.
    fn segments(
        &self,
        bound: &Bound,
        ports: &[Piece],
        dispatches: &[Dispatch],
        rounds: &[Rounds],
    ) -> Vec<Segment> {
        let mut cuts: Vec<usize> = rounds.iter().flat_map(|r| [r.range.start, r.range.end]).collect();
        let mut sizes = vec![];
        for c in &self.program.computed {
            let end = dispatches.partition_point(|s| s.number < c.after);
            let place = self.program.symbols.iter().position(|s| *s == c.symbol);
            let (Some(from), Some(place)) = (self.piece(bound, ports, c.buffer), place) else { continue };
            sizes.push((end, (from.buffer, from.offset, 4 * place as u64)));
            cuts.push(end);
        }
        cuts.push(dispatches.len());
        cuts.sort_unstable();
        cuts.dedup();
        let (mut segments, mut begins): (Vec<Segment>, Vec<(usize, usize)>) = (vec![], vec![]);
        let mut start = 0;
        for end in cuts {
            let sizes: Vec<_> = sizes.iter().filter(|s| s.0 == end).map(|s| s.1.clone()).collect();
            if end > start {
                begins.push((start, segments.len()));
            }
            if end > start || !sizes.is_empty() {
                segments.push(Segment { dispatches: start..end, sizes, condition: None });
            }
            // The end of each round needs its own segment, which may have no dispatches.
            for r in rounds.iter().filter(|r| r.range.end == end) {
                let until = self.program.repeats[r.repeat].until.as_ref();
                let word = until.and_then(|u| self.piece(bound, ports, u.buffer));
                let first = begins.iter().find(|b| b.0 == r.range.start).map(|b| b.1);
                let (Some(word), Some(first)) = (word, first) else { continue };
                let condition =
                    Some(ConditionRead { first, word: (word.buffer, word.offset), repeat: r.repeat });
                match segments.last_mut() {
                    Some(p) if p.condition.is_none() => p.condition = condition,
                    _ => segments.push(Segment { dispatches: end..end, sizes: vec![], condition }),
                }
            }
            start = end;
        }
        if segments.is_empty() {
            segments.push(Segment { dispatches: 0..0, sizes: vec![], condition: None });
        }
        segments
    }

    /// Records the copies of computed sizes after a segment.
    pub(crate) fn record_sizes(&self, segment: &Segment, encoder: &mut wgpu::CommandEncoder) {
        for (from, offset, to) in &segment.sizes {
            encoder.copy_buffer_to_buffer(from, *offset, &self.dims.buffer, *to, 4);
        }
    }

    /// The dispatches, and the ranges of them that run in rounds.
    fn dispatches(
        &mut self,
        bound: &Bound,
        ports: &[Piece],
        longer: &BTreeMap<usize, Pipeline>,
    ) -> (Vec<Dispatch>, Vec<Rounds>) {
        let device = self.gpu.device();
        let mut dispatches: Vec<Dispatch> = Vec::with_capacity(bound.order.len());
        let mut made: Vec<Option<usize>> = vec![None; self.program.dispatches.len()];
        let mut places = Vec::with_capacity(bound.order.len() + 1);
        for i in bound.order.iter().copied() {
            places.push(dispatches.len());
            let d = &self.program.dispatches[i];
            if bound.workgroups[i].contains(&0) {
                continue;
            }
            if let Some(s) = made[i] {
                dispatches.push(dispatches[s].clone());
                continue;
            }
            made[i] = Some(dispatches.len());
            let pieces: Vec<Piece> = d.bindings.iter().filter_map(|b| self.piece(bound, ports, *b)).collect();
            let kernel = &self.program.kernels[d.kernel];
            let Pipeline { pipeline, layout } = longer.get(&d.kernel).unwrap_or(&self.pipelines[d.kernel]);
            if self.groups[i].len() >= KEPT_GROUPS && !self.groups[i].contains_key(&pieces) {
                self.groups[i].clear();
            }
            let group = self.groups[i].entry(pieces).or_insert_with_key(|pieces| {
                let mut entries: Vec<wgpu::BindGroupEntry<'_>> = pieces
                    .iter()
                    .enumerate()
                    .map(|(i, p)| wgpu::BindGroupEntry {
                        binding: i as u32,
                        resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                            buffer: &p.buffer,
                            offset: p.offset,
                            size: std::num::NonZeroU64::new(p.size),
                        }),
                    })
                    .collect();
                if kernel.uses_dims {
                    entries.push(wgpu::BindGroupEntry {
                        binding: pieces.len() as u32,
                        resource: self.dims.buffer.as_entire_binding(),
                    });
                }
                let label = Some(kernel.name.as_str());
                device.create_bind_group(&wgpu::BindGroupDescriptor { label, layout, entries: &entries })
            });
            let (group, workgroups) = (group.clone(), bound.workgroups[i]);
            let pipeline = pipeline.clone();
            dispatches.push(Dispatch { number: i, kernel: d.kernel, pipeline, group, workgroups });
        }
        places.push(dispatches.len());
        let place = |r: &Rounds| Rounds { range: places[r.range.start]..places[r.range.end], ..r.clone() };
        let rounds = bound.rounds.iter().map(place).filter(|r| !r.range.is_empty()).collect();
        (dispatches, rounds)
    }
}
