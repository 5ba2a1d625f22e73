//! Adapters and devices.

use crate::error::RunError;
use crate::platform;
use crate::wait;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use wgfc_program::DeviceLimits;

/// Which adapter to use.
///
/// ```
/// use wgfc_runtime::AdapterChoice;
/// // As in the environment variable `WGFC_ADAPTER`.
/// let choice: AdapterChoice = "llvmpipe".parse().unwrap();
/// assert_eq!(choice, AdapterChoice::Name("llvmpipe".to_owned()));
/// assert_eq!("1".parse(), Ok(AdapterChoice::Index(1)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdapterChoice {
    /// The most capable adapter: discrete, then integrated, then virtual, then others, then software.
    #[default]
    Best,
    /// The most capable adapter whose name or driver contains this text, ignoring case.
    Name(String),
    /// By position in [`Gpu::adapters`].
    Index(usize),
    /// The first adapter that runs on the CPU.
    Software,
}

impl AdapterChoice {
    /// From the environment variable `WGFC_ADAPTER`, [`AdapterChoice::Best`] without it.
    pub fn from_env() -> AdapterChoice {
        std::env::var("WGFC_ADAPTER").map_or(AdapterChoice::Best, |v| v.parse().unwrap_or_default())
    }
    /// The position in [`Gpu::adapters`] of the chosen adapter; `None` if none fits.
    pub fn pick(&self, adapters: &[AdapterSummary]) -> Option<usize> {
        let fitting = adapters.iter().enumerate().filter(|(i, a)| self.picks(*i, a));
        fitting.min_by_key(|(i, a)| (rank(a), *i)).map(|(i, _)| i)
    }
    fn picks(&self, index: usize, a: &AdapterSummary) -> bool {
        match self {
            AdapterChoice::Best => true,
            AdapterChoice::Index(i) => *i == index,
            AdapterChoice::Software => a.is_software,
            AdapterChoice::Name(n) => {
                let n = n.to_lowercase();
                a.name.to_lowercase().contains(&n) || a.driver.to_lowercase().contains(&n)
            }
        }
    }
}

impl FromStr for AdapterChoice {
    type Err = std::convert::Infallible;
    /// A number is an index, `software` or `cpu` means a software adapter, `best` or an empty string the best one, and any other
    /// text is a name.
    fn from_str(s: &str) -> Result<AdapterChoice, Self::Err> {
        let s = s.trim();
        Ok(match (s.to_lowercase().as_str(), s.parse()) {
            ("" | "best", _) => AdapterChoice::Best,
            ("software" | "cpu", _) => AdapterChoice::Software,
            (_, Ok(i)) => AdapterChoice::Index(i),
            _ => AdapterChoice::Name(s.to_owned()),
        })
    }
}

impl std::fmt::Display for AdapterChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AdapterChoice::Best => f.write_str("any"),
            AdapterChoice::Name(n) => write!(f, "one named \"{n}\""),
            AdapterChoice::Index(i) => write!(f, "number {i}"),
            AdapterChoice::Software => f.write_str("a software one"),
        }
    }
}

/// The description of an adapter.
///
/// ```
/// # if wgfc_runtime::testing::gpus().is_empty() { return }
/// use wgfc_runtime::{AdapterChoice, Gpu};
/// let adapters = Gpu::adapters_blocking();
/// for a in &adapters {
///     println!("{} ({}, {})", a.name, a.backend, a.driver);
/// }
/// // The adapter that is used if none is chosen.
/// assert!(AdapterChoice::Best.pick(&adapters).is_some());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSummary {
    /// The device's name.
    pub name: String,
    /// `vulkan`, `metal`, `dx12`, `gl`, `webgpu`.
    pub backend: String,
    /// The driver and its version.
    pub driver: String,
    /// `discrete`, `integrated`, `virtual`, `software` or `other`.
    pub kind: String,
    /// Whether it runs on the CPU.
    pub is_software: bool,
    /// The device's limits.
    pub limits: DeviceLimits,
}

impl AdapterSummary {
    /// The description of a wgpu adapter of the caller, with the limits of a device that requests everything the adapter has.
    pub fn of(adapter: &wgpu::Adapter) -> AdapterSummary {
        summary(adapter)
    }
}

fn summary(a: &wgpu::Adapter) -> AdapterSummary {
    let info = a.get_info();
    let kind = match info.device_type {
        _ if is_software(&info) => "software",
        wgpu::DeviceType::DiscreteGpu => "discrete",
        wgpu::DeviceType::IntegratedGpu => "integrated",
        wgpu::DeviceType::VirtualGpu => "virtual",
        wgpu::DeviceType::Cpu | wgpu::DeviceType::Other => "other",
    };
    AdapterSummary {
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        backend: info.backend.to_str().to_owned(),
        kind: kind.to_owned(),
        is_software: is_software(&info),
        limits: device_limits(&a.limits(), a.features(), &info),
        name: info.name,
    }
}

fn device_limits(l: &wgpu::Limits, f: wgpu::Features, info: &wgpu::AdapterInfo) -> DeviceLimits {
    DeviceLimits {
        storage_buffers: l.max_storage_buffers_per_shader_stage,
        binding_bytes: l.max_storage_buffer_binding_size,
        buffer_bytes: l.max_buffer_size,
        workgroup_bytes: l.max_compute_workgroup_storage_size,
        invocations: l.max_compute_invocations_per_workgroup,
        workgroup_size: [
            l.max_compute_workgroup_size_x,
            l.max_compute_workgroup_size_y,
            l.max_compute_workgroup_size_z,
        ],
        workgroups: l.max_compute_workgroups_per_dimension,
        f16: f.contains(wgpu::Features::SHADER_F16),
        subgroup: f
            .contains(wgpu::Features::SUBGROUP)
            .then_some((info.subgroup_min_size, info.subgroup_max_size)),
        cooperative_matrix: f.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
        // Mesa's gallivm limits them: LP_MAX_TGSI_LOOP_ITERATIONS.
        loop_iterations: info.name.starts_with("llvmpipe").then_some(65_535),
        timestamps: f.contains(wgpu::Features::TIMESTAMP_QUERY),
        timestamps_in_pass: f.contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES),
    }
}

/// Whether its subgroups can multiply 16 × 16 matrices of f16 and accumulate in f32.
fn multiplies_matrices(a: &wgpu::Adapter) -> bool {
    use wgpu::CooperativeScalarType::{F16, F32};
    a.features().contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX | wgpu::Features::SHADER_F16)
        && a.cooperative_matrix_properties()
            .iter()
            .any(|p| [p.m_size, p.n_size, p.k_size] == [16; 3] && p.ab_type == F16 && p.cr_type == F32)
}

/// Whether it computes on the CPU. With OpenGL only the name tells.
fn is_software(info: &wgpu::AdapterInfo) -> bool {
    let name = info.name.to_lowercase();
    info.device_type == wgpu::DeviceType::Cpu
        || ["llvmpipe", "softpipe", "swiftshader", "swrast"].iter().any(|s| name.contains(s))
}

fn rank(a: &AdapterSummary) -> (usize, bool) {
    let kinds = ["discrete", "integrated", "virtual", "other", "software"];
    let kind = kinds.iter().position(|k| *k == a.kind).unwrap_or(kinds.len());
    // SwiftShader takes up to thirty times as long as lavapipe to compile a kernel.
    (kind, a.name.contains("SwiftShader"))
}

pub(crate) fn instance(backends: wgpu::Backends) -> wgpu::Instance {
    let mut d = wgpu::InstanceDescriptor::new_without_display_handle();
    d.backends = backends;
    // Validation layers are off, as they cost time and this crate checks the plan; WGPU_VALIDATION=1 turns them on.
    d.flags = wgpu::InstanceFlags::empty();
    wgpu::Instance::new(d.with_env())
}

/// The bytes of weights and initial states that were copied to a device: see [`Gpu::uploads`].
///
/// ```
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return };
/// let before = gpu.uploads();
/// // Sessions are created here.
/// let copied = gpu.uploads().bytes - before.bytes;
/// # assert_eq!(copied, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uploads {
    /// The bytes that have been copied.
    pub bytes: u64,
    /// These and the bytes that are still to be copied.
    pub wanted: u64,
    /// The time that the uploads took that have ended. It is 0 in browsers.
    pub time: Duration,
}

/// Errors that the device's callbacks reported.
#[derive(Default)]
struct Health {
    lost: Option<String>,
    uncaptured: Option<String>,
}

struct Inner {
    device: wgpu::Device,
    queue: wgpu::Queue,
    summary: AdapterSummary,
    health: Arc<Mutex<Health>>,
    /// Whether the device's callbacks report to `health`. The callbacks of an adopted device belong to its owner.
    watched: bool,
    /// The key for caching compiled pipelines; `None` if the backend cannot cache them.
    pipeline_key: Option<String>,
    pipelines: OnceLock<wgpu::PipelineCache>,
    /// The number of kernels that have been compiled, and of all that were requested.
    compiled: [AtomicUsize; 2],
    uploads: Mutex<Uploads>,
    /// The pool of staging buffers for uploads.
    staging: platform::Pool,
    /// The transfer buffer for reads outside of sessions' runs.
    transfer: Mutex<Option<wgpu::Buffer>>,
    /// The bytes of the device's memory, if known.
    memory: Option<u64>,
}

/// An open device. Clones are the same device.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # if wgfc_runtime::testing::gpus().is_empty() { return Ok(()) }
/// use wgfc_program::Tensor;
/// use wgfc_runtime::{AdapterChoice, Gpu};
/// let gpu = Gpu::request_blocking(&AdapterChoice::from_env())?;
/// println!("{}", gpu.summary().name);
/// let x = gpu.upload_blocking(&Tensor::from_f32(vec![2], &[1.0, 2.0]))?;
/// assert_eq!(x.read_blocking()?.to_f32s(), Some(vec![1.0, 2.0]));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({}, {})", self.0.summary.name, self.0.summary.backend)
    }
}

impl Gpu {
    /// The adapters of this machine; in a browser, the one that it offers.
    pub async fn adapters() -> Vec<AdapterSummary> {
        platform::adapters().await.iter().map(summary).collect()
    }

    /// Opens the chosen adapter and requests all of its limits.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # if wgfc_runtime::testing::gpus().is_empty() { return Ok(()) }
    /// use wgfc_runtime::{AdapterChoice, Gpu};
    /// let gpu = Gpu::request(&AdapterChoice::from_env()).await?;
    /// assert!(!gpu.is_lost());
    /// # Ok(()) }) }
    /// ```
    pub async fn request(choice: &AdapterChoice) -> Result<Gpu, RunError> {
        let adapters = platform::adapters().await;
        let summaries: Vec<_> = adapters.iter().map(summary).collect();
        let picked = choice.pick(&summaries).and_then(|i| Some((i, adapters.get(i)?)));
        let Some((index, adapter)) = picked else {
            let found: Vec<_> =
                summaries.iter().enumerate().map(|(i, s)| format!("{i} = {} ({})", s.name, s.kind)).collect();
            return Err(RunError::NoAdapter {
                wanted: format!("{choice} is wanted"),
                found: if found.is_empty() { "none".to_owned() } else { found.join(", ") },
            });
        };
        let useful = wgpu::Features::SHADER_F16
            | wgpu::Features::SUBGROUP
            | wgpu::Features::PIPELINE_CACHE
            | wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES;
        let mut features = adapter.features() & useful;
        let mut experimental_features = wgpu::ExperimentalFeatures::disabled();
        if multiplies_matrices(adapter) {
            features |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
            // SAFETY: only kernels for matrix units use experimental features, and they load and store whole matrices inside
            // workgroup memory.
            experimental_features = unsafe { wgpu::ExperimentalFeatures::enabled() };
        }
        let mut summary = summaries[index].clone();
        let (device, queue) = adapter
            .request_device(&wgpu::DeviceDescriptor {
                label: Some("wgfc"),
                required_features: features,
                experimental_features,
                required_limits: adapter.limits(),
                memory_hints: wgpu::MemoryHints::Performance,
                ..Default::default()
            })
            .await
            .map_err(|e| RunError::NoDevice { adapter: summary.name.clone(), message: e.to_string() })?;
        summary.limits = device_limits(&device.limits(), device.features(), &adapter.get_info());
        let health = Arc::new(Mutex::new(Health::default()));
        let h = health.clone();
        device.set_device_lost_callback(move |reason, message| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                h.lock().unwrap_or_else(PoisonError::into_inner).lost = Some(message);
            }
        });
        let h = health.clone();
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            tracing::error!("wgpu: {e}");
            h.lock().unwrap_or_else(PoisonError::into_inner).uncaptured.get_or_insert(e.to_string());
        }));
        tracing::debug!(adapter = summary.name, backend = summary.backend, "device opened");
        Ok(Gpu::of(device, queue, summary, &adapter.get_info(), health, true))
    }

    /// Adopts an existing device, such as that of a game engine. Sessions on it can share buffers with its owner: see
    /// [`Gpu::adopt`] and [`Session::encode`](crate::Session::encode).
    ///
    /// The device's callbacks `on_uncaptured_error` and `set_device_lost_callback` are left to the owner. Natively the next call
    /// notices that the device is lost; in a browser this requires the owner's callback to call [`Gpu::report_lost`].
    ///
    /// [`Requirements`](crate::Requirements) are the features and limits to request for a program. A device with less is adopted,
    /// too, but making a session of a program that needs more is an error.
    ///
    /// ```no_run
    /// use wgfc_runtime::{Gpu, wgpu};
    /// # fn adopt(adapter: wgpu::Adapter) -> Result<(), Box<dyn std::error::Error>> {
    /// // The adapter and the device are those of your engine.
    /// let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()))?;
    /// let gpu = Gpu::from_wgpu(&adapter, device, queue);
    /// # Ok(()) }
    /// ```
    pub fn from_wgpu(adapter: &wgpu::Adapter, device: wgpu::Device, queue: wgpu::Queue) -> Gpu {
        let (mut summary, info) = (summary(adapter), adapter.get_info());
        summary.limits = device_limits(&device.limits(), device.features(), &info);
        summary.limits.cooperative_matrix &= multiplies_matrices(adapter);
        Gpu::of(device, queue, summary, &info, Arc::default(), false)
    }

    fn of(
        device: wgpu::Device,
        queue: wgpu::Queue,
        summary: AdapterSummary,
        info: &wgpu::AdapterInfo,
        health: Arc<Mutex<Health>>,
        watched: bool,
    ) -> Gpu {
        let keeps = device.features().contains(wgpu::Features::PIPELINE_CACHE);
        let pipeline_key = wgpu::util::pipeline_cache_key(info).filter(|_| keeps);
        let discrete = info.device_type == wgpu::DeviceType::DiscreteGpu;
        Gpu(Arc::new(Inner {
            memory: discrete.then(|| platform::memory(&device)).flatten(),
            device,
            queue,
            summary,
            health,
            watched,
            pipeline_key,
            pipelines: OnceLock::new(),
            compiled: Default::default(),
            uploads: Mutex::default(),
            staging: Default::default(),
            transfer: Mutex::default(),
        }))
    }

    /// The summary of this device.
    pub fn summary(&self) -> &AdapterSummary {
        &self.0.summary
    }
    /// The limits of this device.
    pub fn profile(&self) -> &DeviceLimits {
        &self.0.summary.limits
    }
    /// The bytes of the device's own memory; `None` if they are not known, or the device shares the host's memory. Other programs may
    /// use a part of them.
    ///
    /// ```
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return };
    /// if let Some(bytes) = gpu.memory() {
    ///     println!("{} has {bytes} bytes", gpu.summary().name);
    /// }
    /// ```
    pub fn memory(&self) -> Option<u64> {
        self.0.memory
    }
    /// The wgpu device, for the caller's own commands.
    pub fn device(&self) -> &wgpu::Device {
        &self.0.device
    }
    /// The wgpu queue, for the caller's own commands.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }
    /// A key, to be combined with the adapter's name and driver, for storing the data of [`Gpu::pipeline_data`]; `None` if the
    /// backend has no pipeline cache (all but native Vulkan).
    pub fn pipeline_key(&self) -> Option<&str> {
        self.0.pipeline_key.as_deref()
    }

    /// Collects all pipelines that are compiled after this call for [`Gpu::pipeline_data`], and reuses pipelines found in `data`.
    /// A second call, or one on a backend without a pipeline cache, has no effect.
    ///
    /// # Safety
    /// `data` must be bytes that [`Gpu::pipeline_data`] returned for the same adapter and driver, possibly in an earlier process;
    /// the driver may not validate them.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let gpu = wgfc_runtime::testing::gpus()[0].clone();
    /// let file = "pipelines.bin";
    /// // SAFETY: nobody else writes the file, and it is of this adapter and driver.
    /// unsafe { gpu.keep_pipelines(std::fs::read(file).ok().as_deref()) };
    /// // … make sessions …
    /// if let Some(data) = gpu.pipeline_data() {
    ///     std::fs::write(file, data)?;
    /// }
    /// # Ok(()) }
    /// ```
    pub unsafe fn keep_pipelines(&self, data: Option<&[u8]>) {
        if self.pipeline_key().is_none() {
            return;
        }
        self.0.pipelines.get_or_init(|| {
            let d = wgpu::PipelineCacheDescriptor { label: Some("wgfc"), data, fallback: true };
            // SAFETY: the caller vouches for the data.
            unsafe { self.0.device.create_pipeline_cache(&d) }
        });
    }

    /// The pipelines compiled since [`Gpu::keep_pipelines`] and those given to it, in the driver's format.
    pub fn pipeline_data(&self) -> Option<Vec<u8>> {
        self.0.pipelines.get()?.get_data()
    }

    /// The uploads of weights so far, for progress displays on other threads.
    ///
    /// ```
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return };
    /// let uploads = gpu.uploads();
    /// println!("{} of {} bytes in {:?}", uploads.bytes, uploads.wanted, uploads.time);
    /// ```
    pub fn uploads(&self) -> Uploads {
        *self.0.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_uploads(&self, count: impl FnOnce(&mut Uploads)) {
        count(&mut self.0.uploads.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The number of kernels that have been compiled, and of all that were requested so far, for progress displays on other
    /// threads.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// let session = wgfc_runtime::Session::new_blocking(gpu, &wgfc_runtime::testing::doubling())?;
    /// let (done, all) = gpu.compiled();
    /// assert_eq!(done, all);
    /// # drop(session);
    /// # Ok(()) }
    /// ```
    pub fn compiled(&self) -> (usize, usize) {
        let [done, all] = &self.0.compiled;
        (done.load(Ordering::Relaxed), all.load(Ordering::Relaxed))
    }
    pub(crate) fn compiles(&self, done: usize, more: usize) {
        self.0.compiled[0].fetch_add(done, Ordering::Relaxed);
        self.0.compiled[1].fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn pipeline_cache(&self) -> Option<&wgpu::PipelineCache> {
        self.0.pipelines.get()
    }

    /// Whether both are the same device.
    pub fn is(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.device == other.0.device
    }

    /// Reports that the device is lost. The owner of an [adopted](Gpu::from_wgpu) device calls this in its device-lost callback.
    ///
    /// ```no_run
    /// use wgfc_runtime::{Gpu, wgpu};
    /// # fn callback(gpu: Gpu, device: &wgpu::Device) {
    /// // In the program that made the device.
    /// device.set_device_lost_callback(move |_reason, message| gpu.report_lost(&message));
    /// # }
    /// ```
    pub fn report_lost(&self, message: &str) {
        self.0.health.lock().unwrap_or_else(PoisonError::into_inner).lost.get_or_insert(message.to_owned());
    }

    /// Checks whether an adopted device is lost, since its callbacks do not report here.
    fn probe(&self) {
        if !self.0.watched && !self.is_lost() && platform::is_lost(&self.0.device) {
            self.report_lost("its owner destroyed it, or the driver reset it");
        }
    }

    /// Whether the device is lost, for example by a driver reset. Nothing can run on a lost device.
    pub fn is_lost(&self) -> bool {
        self.0.health.lock().unwrap_or_else(PoisonError::into_inner).lost.is_some()
    }

    /// Checks that the device is not lost and that no uncaptured error has occurred.
    pub(crate) fn health(&self) -> Result<(), RunError> {
        self.probe();
        let mut h = self.0.health.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(m) = &h.lost {
            return Err(RunError::DeviceLost(m.clone()));
        }
        match h.uncaptured.take() {
            Some(message) => Err(RunError::Gpu { what: "in the background".to_owned(), message }),
            None => Ok(()),
        }
    }

    /// Runs `f` in error scopes and returns the error that wgpu raised, if any.
    pub(crate) async fn scoped<T>(&self, what: &str, f: impl FnOnce() -> T) -> Result<T, RunError> {
        let d = &self.0.device;
        let memory = d.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = d.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = d.push_error_scope(wgpu::ErrorFilter::Internal);
        let value = f();
        let errors = (internal.pop(), validation.pop(), memory.pop());
        let errors = [errors.0.await, errors.1.await, errors.2.await];
        // An out-of-memory error is the last of them and takes precedence, as it causes the others.
        match errors.into_iter().flatten().last() {
            None => Ok(value),
            Some(wgpu::Error::OutOfMemory { .. }) => Err(RunError::OutOfMemory { what: what.to_owned() }),
            Some(e) => {
                self.health()?;
                Err(RunError::Gpu { what: what.to_owned(), message: e.to_string() })
            }
        }
    }

    /// A buffer of `bytes` bytes, checked against the device's limits.
    pub(crate) async fn buffer(
        &self,
        what: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, RunError> {
        let have = self.profile().buffer_bytes;
        if bytes > have {
            return Err(RunError::Limits { what: format!("{what} (one buffer, bytes)"), need: bytes, have });
        }
        let describe = format!("{what} ({bytes} bytes)");
        self.scoped(&describe, || {
            self.0.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(what),
                size: bytes,
                usage,
                mapped_at_creation: false,
            })
        })
        .await
    }

    /// [`Gpu::storage`] for a buffer that is bound as a whole, checked against the limit of a binding.
    pub(crate) async fn resident(&self, what: &str, size: u64) -> Result<wgpu::Buffer, RunError> {
        let have = self.profile().binding_bytes;
        if size > have {
            return Err(RunError::Limits { what: format!("{what} (one binding, bytes)"), need: size, have });
        }
        self.storage(what, size).await
    }

    /// A buffer that kernels can bind and that is a source and a target of copies.
    pub(crate) async fn storage(&self, what: &str, bytes: u64) -> Result<wgpu::Buffer, RunError> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        self.buffer(what, bytes, usage).await
    }

    pub(crate) fn staging(&self) -> &platform::Pool {
        &self.0.staging
    }

    /// Takes the kept transfer buffer; `None` if there is none or another read is using it.
    pub(crate) fn take_transfer(&self) -> Option<wgpu::Buffer> {
        self.0.transfer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps a transfer buffer of at most 64 MiB for the next reads, as allocating a new one takes longer than the transfer.
    pub(crate) fn keep_transfer(&self, buffer: Option<wgpu::Buffer>) {
        const MOST: u64 = 64 << 20;
        *self.0.transfer.lock().unwrap_or_else(PoisonError::into_inner) = buffer.filter(|b| b.size() <= MOST);
    }

    /// Waits until all work submitted so far is done. In a browser this yields to the event loop meanwhile.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc_runtime::RunError> { pollster::block_on(async {
    /// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
    /// # let mut session = wgfc_runtime::Session::new(gpu, &wgfc_runtime::testing::doubling()).await?;
    /// # let x = wgfc_program::Tensor::from_f32(vec![1], &[1.0]);
    /// let started = std::time::Instant::now();
    /// session.run_on_device(&[("x", x.into())]).await?;
    /// gpu.wait().await?;
    /// println!("the run took {:?}", started.elapsed());
    /// # Ok(()) }) }
    /// ```
    pub async fn wait(&self) -> Result<(), RunError> {
        let (tx, rx) = wait::channel();
        self.0.queue.on_submitted_work_done(move || tx.send(()));
        self.drive(None)?;
        rx.await;
        self.health()
    }

    /// [`platform::poll`] with errors as [`RunError`].
    pub(crate) fn drive(&self, up_to: Option<wgpu::SubmissionIndex>) -> Result<(), RunError> {
        platform::poll(&self.0.device, up_to).or_else(|e| {
            self.health()?;
            Err(RunError::DeviceLost(e.to_string()))
        })
    }

    /// Maps the first `bytes` bytes of a `MAP_READ` buffer, passes them to `f`, and unmaps it. `written` is the submission that
    /// writes the buffer, or a later one.
    pub(crate) async fn map_read<T>(
        &self,
        buffer: &wgpu::Buffer,
        bytes: u64,
        written: Option<wgpu::SubmissionIndex>,
        f: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, RunError> {
        let (tx, rx) = wait::channel();
        buffer.map_async(wgpu::MapMode::Read, ..bytes, move |r| tx.send(r));
        self.drive(written)?;
        let failed = |message: String| RunError::Gpu { what: "reading results".to_owned(), message };
        match rx.await {
            Some(Ok(())) => {}
            Some(Err(e)) => {
                self.health()?;
                return Err(failed(e.to_string()));
            }
            None => {
                self.health()?;
                return Err(failed("the read was abandoned".to_owned()));
            }
        }
        let value = {
            let view = buffer.get_mapped_range(..bytes).map_err(|e| failed(e.to_string()))?;
            f(&view)
        };
        buffer.unmap();
        self.health()?;
        Ok(value)
    }
}
