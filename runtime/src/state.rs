//! States: tensors that stay on the device from run to run. Several sessions may share them.

mod moved;
mod room;
mod values;

pub use moved::Place;

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::session::Session;
use crate::upload;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wgfc_program::program::{BufferKind, State};
use wgfc_program::{Program, Tensor, TensorType};

/// The states of one or several sessions.
#[derive(Debug, Default)]
pub(crate) struct StateSet {
    /// The name, type, shape and growth of each state.
    states: Vec<State>,
    /// Contents before the first run, by name, of states that do not begin as zeros. They are kept on the host for resets.
    initial: BTreeMap<String, Tensor>,
    contents: Mutex<Contents>,
    /// Whether replaced buffers may be in use by commands that have not been submitted.
    keeps_old: AtomicBool,
}

/// The buffers, lengths and capacities of the states.
#[derive(Clone, Debug, Default)]
struct Contents {
    buffers: BTreeMap<String, wgpu::Buffer>,
    /// The number of positions in use, by symbol.
    lengths: BTreeMap<String, i64>,
    /// The number of positions that fit, by symbol, for capacities that the program leaves open.
    capacities: BTreeMap<String, i64>,
    /// How often the buffers have been replaced.
    version: u64,
}

impl StateSet {
    /// The states of a program before its first run, with `slack` bytes behind each buffer.
    pub(crate) async fn new(
        gpu: &Gpu,
        program: &Program,
        capacity: usize,
        slack: u64,
    ) -> Result<StateSet, RunError> {
        let states = states_of(program);
        let mut initial = BTreeMap::new();
        for s in &states {
            let Some(weight) = &s.initial else { continue };
            let known = program.weights.get(weight).filter(|t| t.is_present());
            let tensor = known.ok_or_else(|| RunError::WeightAbsent { name: weight.clone() })?;
            initial.insert(s.name.clone(), tensor.clone());
        }
        let capacities = room::capacities(&states, capacity)?;
        let mut buffers = BTreeMap::new();
        for s in &states {
            let size = room::bytes(s, &capacities)? + slack;
            // WebGPU buffers start as zeros.
            buffers.insert(s.name.clone(), gpu.resident(&format!("state \"{}\"", s.name), size).await?);
        }
        let symbols = states.iter().filter_map(|s| s.growth.as_ref());
        let lengths = symbols.map(|g| (g.length.clone(), 0)).collect();
        let contents = Mutex::new(Contents { buffers, lengths, capacities, version: 0 });
        let set = StateSet { states, initial, contents, keeps_old: AtomicBool::new(false) };
        set.begin(gpu, None).await?;
        Ok(set)
    }

    /// Writes the initial contents of one state, or of all, into zeroed buffers.
    async fn begin(&self, gpu: &Gpu, only: Option<&str>) -> Result<(), RunError> {
        let wanted = self.initial.iter().filter(|(name, _)| only.is_none_or(|o| o == *name));
        let writes: Vec<(&str, &Tensor, wgpu::Buffer)> =
            wanted.filter_map(|(name, t)| Some((name.as_str(), t, self.buffer(name)?))).collect();
        if writes.is_empty() { Ok(()) } else { upload::tensors(gpu, &writes).await }
    }

    /// A copy of all states, made on the device.
    async fn copied(&self, gpu: &Gpu) -> Result<StateSet, RunError> {
        let from = self.now();
        let mut buffers = BTreeMap::new();
        for (name, b) in &from.buffers {
            buffers.insert(name.clone(), gpu.resident(&format!("state \"{name}\""), b.size()).await?);
        }
        gpu.scoped("copying the states", || {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            for (from, to) in from.buffers.values().zip(buffers.values()) {
                encoder.copy_buffer_to_buffer(from, 0, to, 0, from.size());
            }
            gpu.queue().submit([encoder.finish()]);
        })
        .await?;
        let contents = Mutex::new(Contents { buffers, ..from });
        let (states, initial) = (self.states.clone(), self.initial.clone());
        Ok(StateSet { states, initial, contents, keeps_old: AtomicBool::new(false) })
    }

    /// Leaves it to wgpu to free replaced buffers once no command uses them, instead of destroying them at once.
    pub(crate) fn keep_old(&self) {
        self.keeps_old.store(true, Ordering::Relaxed);
    }
    fn keeps_old(&self) -> bool {
        self.keeps_old.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn now(&self) -> Contents {
        self.lock().clone()
    }
    /// How often the buffers have been replaced.
    pub(crate) fn version(&self) -> u64 {
        self.lock().version
    }
    pub(crate) fn buffer(&self, name: &str) -> Option<wgpu::Buffer> {
        self.lock().buffers.get(name).cloned()
    }
    fn lengths(&self) -> BTreeMap<String, i64> {
        self.lock().lengths.clone()
    }
    /// The values of the symbols for lengths and capacities of states.
    pub(crate) fn symbols(&self) -> BTreeMap<String, i64> {
        let now = self.lock();
        now.lengths.iter().chain(&now.capacities).map(|(s, v)| (s.clone(), *v)).collect()
    }
    fn set_lengths(&self, to: &[(String, i64)]) {
        self.lock().lengths.extend(to.iter().cloned());
    }
}

/// The states of a program. A plan may omit states that have only a size: they become states of one axis without growth.
fn states_of(program: &Program) -> Vec<State> {
    let mut states = program.states.clone();
    for (i, b) in program.buffers.iter().enumerate() {
        let BufferKind::State { name } = &b.kind else { continue };
        if !states.iter().any(|s| s.name == *name) {
            let (name, shape) = (name.clone(), vec![b.elements.clone()]);
            states.push(State { name, dtype: b.dtype, shape, buffer: i, growth: None, initial: None });
        }
    }
    states
}

/// The bytes of a program's states with room for `capacity` positions.
///
/// # Errors
/// [`RunError::State`] for a state that is too large.
pub(crate) fn bytes(program: &Program, capacity: usize) -> Result<u64, RunError> {
    let states = states_of(program);
    let capacities = room::capacities(&states, capacity)?;
    states.iter().map(|s| room::bytes(s, &capacities)).sum()
}

/// The lengths of the states after a run with these values of the symbols, by symbol.
///
/// # Errors
/// [`RunError::StateFull`] for the first state that has no room.
pub(crate) fn lengths_after(program: &Program, values: &[i64]) -> Result<Vec<(String, i64)>, RunError> {
    let value = |s: &str| values.get(program.symbols.iter().position(|n| n == s)?).copied();
    let mut after: Vec<(String, i64)> = vec![];
    for s in &program.states {
        let Some(g) = &s.growth else { continue };
        let length = value(&g.length).unwrap_or(0);
        let request = g.by.eval_syms(&value).unwrap_or(i64::MAX);
        let capacity = s.shape.get(g.axis).and_then(|c| c.eval_syms(&value)).unwrap_or(0);
        let sum = length.saturating_add(request);
        if sum > capacity || request < 0 {
            return Err(RunError::StateFull { state: s.name.clone(), length, request, capacity });
        }
        if !after.iter().any(|(l, _)| *l == g.length) {
            after.push((g.length.clone(), sum));
        }
    }
    Ok(after)
}

impl Session {
    /// The largest number of positions in use of any growing state; 0 if there is none.
    pub fn state_len(&self) -> usize {
        self.states.lengths().into_values().max().and_then(|l| usize::try_from(l).ok()).unwrap_or(0)
    }

    /// The smallest capacity in positions of any growing state; `None` if there is none. Windows do not count: they accept any
    /// number of positions and keep the latest.
    pub fn capacity(&self) -> Option<usize> {
        let now = self.states.lock();
        let all = self.program.states.iter().filter(|s| !s.is_window());
        let growing = all.filter_map(|s| room::positions(s, &now.capacities));
        growing.min().and_then(|c| usize::try_from(c).ok())
    }

    /// Gives all states their initial contents, which are zeros unless the program says otherwise, and sets their lengths to
    /// zero. If several sessions share the states, the initial contents are those of the first session's program.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::summing()).await?;
    /// use wgfc_program::Tensor;
    /// let x = Tensor::from_f32(vec![1], &[3.0]);
    /// session.run(&[("x", x.clone())]).await?;
    /// session.reset().await?;
    /// assert_eq!(session.run(&[("x", x)]).await?[0].1.to_f32s(), Some(vec![3.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn reset(&mut self) -> Result<(), RunError> {
        let gpu = self.gpu.clone();
        gpu.scoped("resetting the states", || {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            for s in self.states.lock().buffers.values() {
                encoder.clear_buffer(s, 0, None);
            }
            gpu.queue().submit([encoder.finish()]);
        })
        .await?;
        self.states.begin(&self.gpu, None).await?;
        self.set_all_lengths(0);
        Ok(())
    }

    /// Gives one state its initial contents. Its length is kept, as other states may share it.
    pub async fn reset_state(&mut self, name: &str) -> Result<(), RunError> {
        let known = || self.states.states.iter().map(|s| &s.name);
        let state = self.states.buffer(name).ok_or_else(|| self.unknown("state", name, known()))?;
        self.gpu
            .scoped("resetting a state", || {
                let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
                encoder.clear_buffer(&state, 0, None);
                self.gpu.queue().submit([encoder.finish()]);
            })
            .await?;
        self.states.begin(&self.gpu, Some(name)).await
    }

    /// Truncates the states to their first `length` positions, after which the next run continues.
    ///
    /// # Errors
    /// [`RunError::State`] if fewer positions are in use, or if the program has a state that cannot be truncated: one that every
    /// run overwrites, or a full window. For such programs call [`Session::fork`] before a run that may be undone.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::summing())?;
    /// use wgfc_program::Tensor;
    /// // y is the sum of all numbers so far, which are in a state.
    /// let mut add = |x: f32| session.run_blocking(&[("x", Tensor::from_f32(vec![1], &[x]))]);
    /// add(1.0)?;
    /// add(2.0)?;
    /// session.rewind(1)?;
    /// let y = session.run_blocking(&[("x", Tensor::from_f32(vec![1], &[10.0]))])?;
    /// assert_eq!(y[0].1.to_f32s(), Some(vec![11.0]));
    /// assert_eq!(session.state_len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn rewind(&mut self, length: usize) -> Result<(), RunError> {
        if let Some(s) = self.program.states.iter().find(|s| s.growth.is_none()) {
            let message = "it does not grow, so its earlier values were overwritten; fork the session before a run that is to be undone".to_owned();
            return Err(RunError::State { state: s.name.clone(), message });
        }
        let lengths = self.states.lengths();
        for s in &self.program.states {
            let now = s.growth.as_ref().and_then(|g| lengths.get(&g.length)).copied().unwrap_or(0);
            let to = i64::try_from(length).unwrap_or(i64::MAX);
            if to > now {
                let message = format!("it holds {now} positions, which are fewer than {length}");
                return Err(RunError::State { state: s.name.clone(), message });
            }
            let room = room::positions(s, &self.states.lock().capacities).unwrap_or(0);
            if to < now && s.is_window() && now >= room {
                let message = format!(
                    "it is a full window of {room} positions, whose oldest positions were overwritten; fork the session before a run that is to be undone"
                );
                return Err(RunError::State { state: s.name.clone(), message });
            }
        }
        self.set_all_lengths(length as i64);
        Ok(())
    }

    fn set_all_lengths(&self, to: i64) {
        let all: Vec<_> = self.states.lengths().into_keys().map(|s| (s, to)).collect();
        self.states.set_lengths(&all);
    }

    /// Sets the length of states that a symbol stands for; `false` if the symbol is no such length.
    pub(crate) fn set_length(&self, symbol: &str, to: i64) -> Result<bool, RunError> {
        let states = self.program.states.iter();
        let mut found = false;
        for s in states.filter(|s| s.growth.as_ref().is_some_and(|g| g.length == symbol)) {
            found = true;
            let capacity = room::positions(s, &self.states.lock().capacities).unwrap_or(0);
            if !(0..=capacity).contains(&to) {
                let message = format!("its length cannot be {to}: it has room for {capacity} positions");
                return Err(RunError::State { state: s.name.clone(), message });
            }
        }
        if found {
            self.states.set_lengths(&[(symbol.to_owned(), to)]);
        }
        Ok(found)
    }

    /// Records the lengths of the states after a run that has been submitted.
    pub(crate) fn advance(&self, lengths: &[(String, i64)]) {
        self.states.set_lengths(lengths);
    }

    /// An independent session with the same current states: pipelines and weights are shared, states are copied on the device.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::summing()).await?;
    /// use wgfc_program::Tensor;
    /// let number = |x: f32| Tensor::from_f32(vec![1], &[x]);
    /// session.run(&[("x", number(1.0))]).await?;
    /// // Both continue from 1, independently.
    /// let mut other = session.fork().await?;
    /// assert_eq!(other.run(&[("x", number(10.0))]).await?[0].1.to_f32s(), Some(vec![11.0]));
    /// assert_eq!(session.run(&[("x", number(2.0))]).await?[0].1.to_f32s(), Some(vec![3.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn fork(&self) -> Result<Session, RunError> {
        let states = Arc::new(self.states.copied(&self.gpu).await?);
        self.twin(states).await
    }

    /// A session of this session's program on the states of `other`, on the same device: runs of either session change the states
    /// of both. Pipelines and weights are shared with this session.
    ///
    /// # Errors
    /// [`RunError::State`] if the states differ.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # use wgfc_runtime::{Session, testing::summing};
    /// use wgfc_program::Tensor;
    /// let number = |x: f32| Tensor::from_f32(vec![1], &[x]);
    /// let (mut a, b) = (Session::new(gpu, &summing()).await?, Session::new(gpu, &summing()).await?);
    /// a.run(&[("x", number(1.0))]).await?;
    /// // The program of `b` continues what `a` has begun.
    /// let mut continued = b.on_states_of(&a).await?;
    /// assert_eq!(continued.run(&[("x", number(2.0))]).await?[0].1.to_f32s(), Some(vec![3.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn on_states_of(&self, other: &Session) -> Result<Session, RunError> {
        fit(&self.program, &other.program)?;
        if !self.gpu.is(&other.gpu) {
            let message = "the other session is on another device".to_owned();
            let state = self.program.states.first().map_or_else(String::new, |s| s.name.clone());
            return Err(RunError::State { state, message });
        }
        self.twin(other.states.clone()).await
    }

    /// A session of another program on the same device and the same states: runs of either session change the states of both.
    /// Equal kernels are shared, and so are weights whose bytes are the same memory on the host.
    ///
    /// # Errors
    /// [`RunError::State`] if a state of `program` does not match one of this session's in name, type, shape, and the axis and
    /// length symbol of its growth; otherwise as [`Session::new`].
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let (prompt, token) = (wgfc_runtime::testing::summing(), wgfc_runtime::testing::summing());
    /// # use wgfc_runtime::Session;
    /// use wgfc_program::Tensor;
    /// let number = |x: f32| Tensor::from_f32(vec![1], &[x]);
    /// // Two programs of one model: what one run appends to the states, the other continues.
    /// let mut first = Session::new(gpu, &prompt).await?;
    /// let mut second = first.sibling(&token).await?;
    /// first.run(&[("x", number(1.0))]).await?;
    /// assert_eq!(second.run(&[("x", number(2.0))]).await?[0].1.to_f32s(), Some(vec![3.0]));
    /// # Ok(()) }) }
    /// ```
    pub async fn sibling(&self, program: &Program) -> Result<Session, RunError> {
        fit(program, &self.program)?;
        let mut one = Session::build(&self.gpu, &[program], self.options(), Some(self)).await?;
        one.pop().ok_or_else(|| RunError::Plan(vec!["there is no program".to_owned()]))
    }
}

/// Checks that every state of `program` matches one of `other`'s.
pub(crate) fn fit(program: &Program, other: &Program) -> Result<(), RunError> {
    for s in &program.states {
        let grows = |s: &State| s.growth.as_ref().map(|g| (g.axis, g.length.clone()));
        let message = match other.states.iter().find(|o| o.name == s.name) {
            None => "the other session has no such state".to_owned(),
            Some(o) if o.dtype != s.dtype || o.shape != s.shape => {
                let ty = |s: &State| TensorType::new(s.dtype, s.shape.clone());
                format!("it is {} here and {} in the other session", ty(s), ty(o))
            }
            Some(o) if grows(o) != grows(s) => "it grows differently in the other session".to_owned(),
            Some(_) => continue,
        };
        return Err(RunError::State { state: s.name.clone(), message });
    }
    Ok(())
}
