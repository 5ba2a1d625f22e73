//! Runs emitted kernels on every Vulkan adapter, and builds products to run.
#![expect(dead_code, reason = "each user needs a part of it")]

pub mod gemv;
pub mod units;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_compiler::emit::{self, EmitContext, EmittedKernel, Target};
use wgfc_compiler::kernel::*;
use wgfc_compiler::schedule::attention::{Matrices, Stream, Tiles};
use wgfc_compiler::schedule::cost::Expected;
use wgfc_compiler::schedule::products::problem::problem;
use wgfc_compiler::schedule::products::{self, CooperativeShape, Product, ThinShape, TileShape};
use wgfc_compiler::schedule::{Context, Schedule, attention, choose};
use wgfc_compiler::{DeviceProfile, Diagnostic, Tuning};
use wgfc_ir::program::Access;
use wgfc_ir::{BinaryOp, DType, Dim, Poly, Scalar, TensorType};

pub struct Gpu {
    pub name: String,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    /// The size of the adapter's subgroups.
    pub subgroup: Option<u32>,
    /// Whether the adapter can multiply f16 matrices in its subgroups.
    pub multiplies_matrices: bool,
    /// The number of calls of [`Gpu::takes_case`].
    asked: Cell<usize>,
}

impl Gpu {
    /// Whether the adapter runs the next case of a test with many kernels that are slow to compile.
    /// SwiftShader takes seconds for each, thirty times as long as llvmpipe: it runs one case in seven,
    /// beginning with the first, or all if `WGFC_THOROUGH` is set. Seven is odd, so both of two alternating
    /// forms are run.
    pub fn takes_case(&self) -> bool {
        let n = self.asked.replace(self.asked.get() + 1);
        !self.name.contains("SwiftShader")
            || n.is_multiple_of(7)
            || std::env::var_os("WGFC_THOROUGH").is_some()
    }
}

/// Every Vulkan adapter; `VK_DRIVER_FILES` selects the drivers.
pub fn gpus() -> Vec<Gpu> {
    let mut d = wgpu::InstanceDescriptor::new_without_display_handle();
    d.backends = wgpu::Backends::VULKAN;
    d.flags = wgpu::InstanceFlags::empty();
    let adapters = pollster::block_on(wgpu::Instance::new(d).enumerate_adapters(wgpu::Backends::all()));
    let mut out = vec![];
    for a in adapters {
        let matrices = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX | wgpu::Features::SHADER_F16;
        let features = a.features() & (matrices | wgpu::Features::SUBGROUP);
        let multiplies_matrices = features.contains(matrices);
        let info = a.get_info();
        let same = info.subgroup_min_size == info.subgroup_max_size;
        let subgroup =
            (same && features.contains(wgpu::Features::SUBGROUP)).then_some(info.subgroup_min_size);
        let opened = pollster::block_on(a.request_device(&wgpu::DeviceDescriptor {
            required_features: features,
            // SAFETY: only the kernels for matrix units use experimental features.
            experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
            required_limits: a.limits(),
            ..Default::default()
        }));
        if let Ok((device, queue)) = opened {
            out.push(Gpu {
                name: info.name,
                device,
                queue,
                subgroup,
                multiplies_matrices,
                asked: Cell::new(0),
            });
        }
    }
    if out.is_empty() {
        eprintln!("SKIPPED: no GPU adapter; set VK_DRIVER_FILES");
        assert!(std::env::var_os("CI").is_none(), "no GPU adapter");
    }
    out
}

/// A kernel with its tensors and symbols.
pub struct Case {
    pub graph: KernelGraph,
    pub symbols: Vec<(Arc<str>, i64)>,
    pub profile: DeviceProfile,
    pub expect: Expected,
}

impl Case {
    pub fn new(symbols: &[(&str, i64)]) -> Case {
        Case {
            graph: KernelGraph::default(),
            symbols: symbols.iter().map(|(n, v)| (Arc::from(*n), *v)).collect(),
            profile: DeviceProfile::default(),
            expect: Expected::default(),
        }
    }
    /// A case for a device with matrix units.
    pub fn on_matrix_units() -> Case {
        let profile = DeviceProfile {
            max_workgroup_bytes: 48 << 10,
            f16: true,
            subgroup: Some(32),
            cooperative_matrix: true,
            ..DeviceProfile::default()
        };
        Case { profile, ..Case::new(&[]) }
    }
    /// A case for a device with matrix units, of Chrome's extension if `i` is odd.
    pub fn on_units_of_either(i: usize) -> Case {
        let mut case = Case::on_matrix_units();
        case.profile.subgroup_matrix = i % 2 == 1;
        case.profile.cooperative_matrix = i.is_multiple_of(2);
        case
    }
    pub fn tensor(&mut self, shape: &[Dim], kind: TensorKind) -> TensorId {
        self.typed(DType::F32, shape, kind)
    }
    pub fn typed(&mut self, dtype: DType, shape: &[Dim], kind: TensorKind) -> TensorId {
        self.graph.tensors.push(KernelTensor {
            ty: TensorType::new(dtype, shape.to_vec()),
            kind,
            name: None,
        });
        self.graph.tensors.len() - 1
    }
    pub fn eval(&self, d: &Dim) -> usize {
        d.eval_syms(&|n| self.symbols.iter().find(|(s, _)| &**s == n).map(|s| s.1)).unwrap() as usize
    }
    pub fn names(&self) -> Vec<Arc<str>> {
        self.symbols.iter().map(|s| s.0.clone()).collect()
    }
    pub fn with_context<T>(&self, f: impl FnOnce(&Cx) -> T) -> T {
        let symbols = self.names();
        f(&Cx {
            schedule: Context { graph: &self.graph, device: &self.profile, expect: &self.expect },
            emit: EmitContext::new(&self.graph, &symbols, Target::from(&self.profile)),
        })
    }
    pub fn numel(&self, t: TensorId) -> usize {
        self.graph.tensors[t].ty.shape.iter().map(|d| self.eval(d)).product()
    }
}

/// The contexts for scheduling and emitting a case.
pub struct Cx<'a> {
    pub schedule: Context<'a>,
    pub emit: EmitContext<'a>,
}

/// A schedule without the parts that depend on the device.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Tiled(TileShape),
    /// A complete schedule.
    Exactly(Product),
    Cooperative(CooperativeShape),
    Thin(ThinShape),
    Integers(ThinShape),
    Serial,
    Queries(Tiles),
    Matrices(Matrices),
    Streamed(Stream),
    Decode,
}

impl Shape {
    fn on(self, kernel: &Kernel, device: &DeviceProfile) -> Schedule {
        let p = || problem(kernel).unwrap();
        let subgroup = device.subgroup.unwrap_or(1);
        match self {
            Shape::Tiled(shape) => {
                let buffers = shape.buffers(device.max_workgroup_bytes);
                let expect = Expected::default();
                let (cols, rows) = (expect.extent(&p().cols), expect.extent(&p().rows));
                let rows_first = cols > rows;
                let tiled = products::Tiled { shape, buffers, unroll: 1, rows_first };
                Schedule::Product(Product::Tiled(tiled))
            }
            Shape::Exactly(p) => Schedule::Product(p),
            Shape::Cooperative(shape) => {
                Schedule::Product(Product::Cooperative(products::Cooperative { shape, ahead: 1, subgroup }))
            }
            Shape::Thin(shape) => Schedule::Product(Product::Thin(products::thin(shape, &p(), device))),
            Shape::Integers(shape) => {
                let thin = products::integers::thin(shape, &p(), device).expect("room for the rows");
                Schedule::Product(Product::Thin(thin))
            }
            Shape::Serial => Schedule::Product(Product::Serial(products::serial(&p(), device))),
            Shape::Queries(tiles) => {
                let subgroup =
                    device.subgroup.filter(|s| *s >= tiles.lanes && tiles.threads().is_multiple_of(*s));
                let subgroup = subgroup.unwrap_or(1);
                Schedule::Attention(attention::Attention::Tiled(attention::Tiled { tiles, subgroup }))
            }
            Shape::Matrices(m) => Schedule::Attention(attention::Attention::Cooperative(m)),
            Shape::Streamed(s) => Schedule::Attention(attention::Attention::Streamed(s)),
            Shape::Decode => Schedule::Attention(attention::decode(device)),
        }
    }
}

/// Emits a kernel with a forced shape, or with the chosen schedule.
pub fn emit_as(kernel: &Kernel, cx: &Cx, forced: Option<Shape>) -> Result<EmittedKernel, Diagnostic> {
    let schedule = match forced {
        Some(s) => s.on(kernel, cx.schedule.device),
        None => choose(kernel, &cx.schedule, &Tuning::default())?,
    };
    emit::emit(kernel, &schedule, &cx.emit)
}

/// Emits a kernel with the chosen schedule.
pub fn emit(kernel: &Kernel, cx: &Cx) -> Result<EmittedKernel, Diagnostic> {
    emit_as(kernel, cx, None)
}

/// A kernel as emitted for each adapter: without subgroups, and with the adapter's subgroups.
pub fn variants<'g>(
    gpus: &'g [Gpu],
    case: &mut Case,
    emit: impl Fn(&Cx) -> EmittedKernel,
) -> Vec<(&'g Gpu, EmittedKernel)> {
    let mut out = vec![];
    for gpu in gpus {
        for subgroup in [None, gpu.subgroup] {
            case.profile.subgroup = subgroup;
            let e = case.with_context(&emit);
            if subgroup.is_none() || e.subgroup_size.is_some() {
                out.push((gpu, e));
            }
        }
    }
    case.profile.subgroup = None;
    out
}

/// A pipeline with its buffers.
pub struct Ready {
    pub pipeline: wgpu::ComputePipeline,
    pub group: wgpu::BindGroup,
    pub counts: [u32; 3],
    pub buffers: BTreeMap<TensorId, wgpu::Buffer>,
}

pub fn prepare(gpu: &Gpu, case: &Case, k: &EmittedKernel, data: &BTreeMap<TensorId, Vec<f32>>) -> Ready {
    let bytes = |d: &Vec<f32>| d.iter().flat_map(|x| x.to_le_bytes()).collect();
    prepare_bytes(gpu, case, k, &data.iter().map(|(t, d)| (*t, bytes(d))).collect())
}

/// Prepares a kernel from packed bytes.
pub fn prepare_bytes(gpu: &Gpu, case: &Case, k: &EmittedKernel, data: &BTreeMap<TensorId, Vec<u8>>) -> Ready {
    use wgpu::BufferUsages as U;
    let buffer = |size: usize, usage| {
        gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: size.next_multiple_of(16).max(16) as u64,
            usage,
            mapped_at_creation: false,
        })
    };
    let mut buffers = BTreeMap::new();
    for (t, _) in &k.bindings {
        let size = case.graph.tensors[*t].ty.dtype.bytes_for(case.numel(*t));
        let b = buffer(size, U::STORAGE | U::COPY_DST | U::COPY_SRC);
        // Buffers without data are filled with garbage instead of zeros.
        let mut bytes = data.get(t).cloned().unwrap_or_else(|| vec![0xa5; size]);
        bytes.resize(size.next_multiple_of(4), 0);
        gpu.queue.write_buffer(&b, 0, &bytes);
        buffers.insert(*t, b);
    }
    let dims: Vec<u8> = case.symbols.iter().flat_map(|s| (s.1 as i32).to_le_bytes()).collect();
    let uniform = buffer(dims.len(), U::UNIFORM | U::COPY_DST);
    gpu.queue.write_buffer(&uniform, 0, &dims);
    let source = wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(wgfc_ir::wgsl::for_naga(&k.wgsl)),
    };
    let module = gpu.device.create_shader_module(source);
    let entry = |binding: usize, ty| wgpu::BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let mut entries: Vec<_> = k
        .bindings
        .iter()
        .enumerate()
        .map(|(i, b)| entry(i, wgpu::BufferBindingType::Storage { read_only: b.1 == Access::Read }))
        .collect();
    if k.uses_dims {
        entries.push(entry(k.bindings.len(), wgpu::BufferBindingType::Uniform));
    }
    let layout = gpu
        .device
        .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
    let pipeline_layout = gpu.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: None,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let mut binds: Vec<_> = k
        .bindings
        .iter()
        .enumerate()
        .map(|(i, b)| wgpu::BindGroupEntry { binding: i as u32, resource: buffers[&b.0].as_entire_binding() })
        .collect();
    if k.uses_dims {
        binds.push(wgpu::BindGroupEntry {
            binding: k.bindings.len() as u32,
            resource: uniform.as_entire_binding(),
        });
    }
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &layout,
        entries: &binds,
    });
    let counts = [0, 1, 2].map(|i| case.eval(&k.workgroups[i]) as u32);
    Ready { pipeline, group, counts, buffers }
}

/// Runs a kernel once and reads tensor `out`.
pub fn run(
    gpu: &Gpu,
    case: &Case,
    k: &EmittedKernel,
    data: &BTreeMap<TensorId, Vec<f32>>,
    out: TensorId,
) -> Vec<f32> {
    let r = prepare(gpu, case, k, data);
    let all = execute(gpu, &r, out);
    let all: Vec<f32> = all.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    all[..case.numel(out)].to_vec()
}

/// Dispatches once and reads the bytes of tensor `out`.
pub fn execute(gpu: &Gpu, r: &Ready, out: TensorId) -> Vec<u8> {
    dispatch(gpu, r);
    read(gpu, r, out)
}

/// Dispatches once.
pub fn dispatch(gpu: &Gpu, r: &Ready) {
    let mut e = gpu.device.create_command_encoder(&Default::default());
    {
        let mut p = e.begin_compute_pass(&Default::default());
        p.set_pipeline(&r.pipeline);
        p.set_bind_group(0, &r.group, &[]);
        p.dispatch_workgroups(r.counts[0], r.counts[1], r.counts[2]);
    }
    gpu.queue.submit([e.finish()]);
}

/// Reads the bytes of tensor `out`.
pub fn read(gpu: &Gpu, r: &Ready, out: TensorId) -> Vec<u8> {
    let buffer = &r.buffers[&out];
    let read = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: buffer.size(),
        usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
        mapped_at_creation: false,
    });
    let mut e = gpu.device.create_command_encoder(&Default::default());
    e.copy_buffer_to_buffer(buffer, 0, &read, 0, buffer.size());
    gpu.queue.submit([e.finish()]);
    read.map_async(wgpu::MapMode::Read, .., |r| r.unwrap());
    gpu.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    read.get_mapped_range(..).unwrap().to_vec()
}

/// Fails if results differ from those of plain loops by too much, relative to the largest result.
pub fn close(what: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-3, |s: f64, w| s.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() <= 1e-5 * scale, "{what}: element {i} is {g}, not {w}");
    }
}

/// Reproducible pseudo-random numbers in -1..1.
pub fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut s = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 17;
            s ^= s << 5;
            (s >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

pub fn c(v: i64) -> Poly {
    Poly::constant(v)
}
pub fn v(i: usize) -> Poly {
    Poly::var(i)
}

/// The operands of a product that are transposed in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub a: bool,
    pub b: bool,
    pub out: bool,
}

/// `out = a · b + bias[n]` with its tensors `[a, b, bias, out]`.
pub fn product(case: &mut Case, dims: [Dim; 4], l: Layout) -> (Kernel, [TensorId; 4]) {
    typed_product(case, DType::F32, dims, l)
}

/// A product whose factors have the given type.
pub fn typed_product(case: &mut Case, dtype: DType, dims: [Dim; 4], l: Layout) -> (Kernel, [TensorId; 4]) {
    let [batch, m, n, k] = dims;
    let ta = case.typed(dtype, &[batch.clone(), m.clone(), k.clone()], TensorKind::Input(0));
    let tb = case.typed(dtype, &[batch.clone(), k.clone(), n.clone()], TensorKind::Input(1));
    let tbias = case.tensor(std::slice::from_ref(&n), TensorKind::Input(2));
    let to = case.tensor(&[batch.clone(), m.clone(), n.clone()], TensorKind::Output(0));
    // The index of element (i, j) of the v0-th matrix, which is stored as i × j or transposed.
    let at = |i: usize, ie: &Dim, j: usize, je: &Dim, t: bool| {
        let base = &(&v(0) * ie) * je;
        if t { &(&base + &(&v(j) * ie)) + &v(i) } else { &(&base + &(&v(i) * je)) + &v(j) }
    };
    let mut body = Body::default();
    let mut factor = |tensor: TensorId, offset: Poly| {
        let load = body.push(Expr::Load { tensor, offset, guard: None }, dtype);
        if dtype == DType::F32 { load } else { body.push(Expr::Cast(DType::F32, load), DType::F32) }
    };
    let a = factor(ta, at(1, &m, 3, &k, l.a));
    let b = factor(tb, at(3, &k, 2, &n, l.b));
    let bias = body.push(Expr::Load { tensor: tbias, offset: v(2), guard: None }, DType::F32);
    let acc = body.push(Expr::Acc(0), DType::F32);
    let value = body.push(Expr::Binary(BinaryOp::Add, acc, bias), DType::F32);
    let stores =
        vec![Store { tensor: to, offset: at(1, &m, 2, &n, l.out), value, guard: None, combine: None }];
    let family = Family::Matmul(Matmul { batch, m, n, k, a, b: vec![b], sums: vec![], rounded: false });
    (Kernel { family, body, stores, nodes: vec![] }, [ta, tb, tbias, to])
}

/// The sizes of a convolution; the padding is `kernel / 2`.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    pub batch: i64,
    pub groups: i64,
    /// The number of input channels of a group.
    pub cin: i64,
    /// The number of output channels of a group.
    pub cout: i64,
    pub size: i64,
    pub kernel: i64,
    pub stride: i64,
}

impl Conv {
    pub fn out_size(&self) -> i64 {
        (self.size + 2 * (self.kernel / 2) - self.kernel) / self.stride + 1
    }
    /// The sizes `[batch, m, n, k]` of the product.
    pub fn dims(&self) -> [i64; 4] {
        let o = self.out_size();
        [self.groups, self.cout, self.batch * o * o, self.cin * self.kernel * self.kernel]
    }
}

/// A convolution as a product of weights and gathered input, NCHW, and its tensors `[x, w, out]`.
pub fn convolution(case: &mut Case, s: Conv) -> (Kernel, [TensorId; 3]) {
    let [batch, m, n, k] = s.dims();
    let o = s.out_size();
    let tx = case.tensor(&[c(s.batch), c(s.groups * s.cin), c(s.size), c(s.size)], TensorKind::Input(0));
    let tw = case.tensor(&[c(batch), c(m), c(k)], TensorKind::Input(1));
    let to = case.tensor(&[c(s.batch), c(s.groups * s.cout), c(o), c(o)], TensorKind::Output(0));
    let domain = [c(batch), c(m), c(n), c(k)];
    let mut body = Body::default();
    let at = &(&(&v(0) * m) + &v(1)) * k + v(3);
    let a = body.push(Expr::Load { tensor: tw, offset: at, guard: None }, DType::F32);
    let (image, place) = (v(2).div(&c(o * o), &domain), v(2).modulo(&c(o * o), &domain));
    let (oy, ox) = (place.div(&c(o), &domain), place.modulo(&c(o), &domain));
    let taps = s.kernel * s.kernel;
    let (channel, tap) = (v(3).div(&c(taps), &domain), v(3).modulo(&c(taps), &domain));
    let (ky, kx) = (tap.div(&c(s.kernel), &domain), tap.modulo(&c(s.kernel), &domain));
    let iy = oy * s.stride + ky - s.kernel / 2;
    let ix = ox * s.stride + kx - s.kernel / 2;
    let plane = &image * s.groups * s.cin + v(0) * s.cin + channel;
    let offset = (plane * s.size + iy.clone()) * s.size + ix.clone();
    let mut guard = None;
    if s.kernel > 1 {
        for p in [iy, ix] {
            let p = body.push(Expr::Index(p), DType::I32);
            let zero = body.push(Expr::Const(Scalar::from_i64(DType::I32, 0)), DType::I32);
            let end = body.push(Expr::Const(Scalar::from_i64(DType::I32, s.size)), DType::I32);
            for (op, bound) in [(BinaryOp::Ge, zero), (BinaryOp::Lt, end)] {
                let g = body.push(Expr::Binary(op, p, bound), DType::Bool);
                guard = Some(match guard {
                    None => g,
                    Some(f) => body.push(Expr::Binary(BinaryOp::And, f, g), DType::Bool),
                });
            }
        }
    }
    let mut b = body.push(Expr::Load { tensor: tx, offset, guard }, DType::F32);
    if let Some(g) = guard {
        let zero = body.push(Expr::Const(Scalar::from_f64(DType::F32, 0.0)), DType::F32);
        b = body.push(Expr::Select(g, b, zero), DType::F32);
    }
    let value = body.push(Expr::Acc(0), DType::F32);
    let channel = &(image * s.groups + v(0)) * s.cout + v(1);
    let stores =
        vec![Store { tensor: to, offset: channel * (o * o) + place, value, guard: None, combine: None }];
    let [batch, m, n, k] = [batch, m, n, k].map(c);
    let family = Family::Matmul(Matmul { batch, m, n, k, a, b: vec![b], sums: vec![], rounded: false });
    (Kernel { family, body, stores, nodes: vec![] }, [tx, tw, to])
}
