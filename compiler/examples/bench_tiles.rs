//! Times the products of well-known models with every sensible geometry on the first adapter.
//!
//! `bench_tiles [FILTER] [--each N]`: only cases whose name contains FILTER; at most N geometries a
//! case, best estimates first (default 8). `--limits` takes the workgroup limits of the adapter, not the
//! least ones. Each line: case, extents, geometry, microseconds, TFLOP/s (products with few rows: GB/s
//! of weights), the estimate in kilocycles (attention has none); `*` marks the geometry that would be chosen. Then a sum over each
//! model, chosen and best. `WGFC_UNCHECKED=1` compiles without bounds checks, as the runtime does for
//! programs it trusts.

#[path = "../tests/gpu/mod.rs"]
mod gpu;

use gpu::gemv::Gemv;
use gpu::*;
use std::collections::BTreeMap;
use std::time::Instant;
use wgfc_compiler::emit::geometry::{self, Geometry};
use wgfc_compiler::emit::{attention, matmul};
use wgfc_compiler::kernel::*;
use wgfc_ir::{DType, Poly};

/// Model, times it occurs in it, what.
struct Shape {
    model: &'static str,
    count: usize,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Conv(Conv),
    Product([i64; 4], Layout),
    /// Batch, s, t, d.
    Attention([i64; 4]),
    Gemv(Gemv),
}

fn shapes() -> Vec<Shape> {
    let mut out = vec![];
    let conv = |batch, cin, cout, size, kernel, stride| {
        What::Conv(Conv { batch, groups: 1, cin, cout, size, kernel, stride })
    };
    let b_turned = Layout { b: true, ..Layout::default() };
    for (model, n) in [("resnet50 b1", 1), ("resnet50 b32", 32)] {
        let mut add = |count, what| out.push(Shape { model, count, what });
        add(1, conv(n, 3, 64, 224, 7, 2));
        let mut cin = 64;
        for (width, size, blocks, stride) in
            [(64, 56, 3, 1), (128, 28, 4, 2), (256, 14, 6, 2), (512, 7, 3, 2)]
        {
            let wide = width * 4;
            let before = size * stride;
            add(1, conv(n, cin, width, before, 1, 1));
            add(1, conv(n, width, width, before, 3, stride));
            add(1, conv(n, cin, wide, before, 1, stride));
            add(blocks, conv(n, width, wide, size, 1, 1));
            add(blocks - 1, conv(n, wide, width, size, 1, 1));
            add(blocks - 1, conv(n, width, width, size, 3, 1));
            cin = wide;
        }
        add(1, What::Product([1, n, 1000, 2048], b_turned));
    }
    let mut add = |count, what| out.push(Shape { model: "mobilenetv2 b1", count, what });
    let depthwise = |groups, size, stride| {
        What::Conv(Conv { batch: 1, groups, cin: 1, cout: 1, size, kernel: 3, stride })
    };
    add(1, conv(1, 3, 32, 224, 3, 2));
    add(1, depthwise(32, 112, 1));
    add(1, conv(1, 32, 16, 112, 1, 1));
    let mut cin = 16;
    for (wide, cout, count, size, stride) in [
        (96, 24, 1, 112, 2),
        (144, 24, 1, 56, 1),
        (144, 32, 1, 56, 2),
        (192, 32, 2, 28, 1),
        (192, 64, 1, 28, 2),
        (384, 64, 3, 14, 1),
        (384, 96, 1, 14, 1),
        (576, 96, 2, 14, 1),
        (576, 160, 1, 14, 2),
        (960, 160, 2, 7, 1),
        (960, 320, 1, 7, 1),
    ] {
        add(count, conv(1, cin, wide, size, 1, 1));
        add(count, depthwise(wide, size, stride));
        add(count, conv(1, wide, cout, size / stride, 1, 1));
        cin = cout;
    }
    add(1, conv(1, 320, 1280, 7, 1, 1));
    add(1, What::Product([1, 1, 1000, 1280], b_turned));
    for (model, n) in [("bert 1x128", 1), ("bert 8x128", 8)] {
        let mut add = |count, what| out.push(Shape { model, count, what });
        for (count, cols, depth) in [(12, 2304, 768), (12, 768, 768), (12, 3072, 768), (12, 768, 3072)] {
            add(count, What::Product([1, 128 * n, cols, depth], Layout::default()));
        }
        add(12, What::Attention([12 * n, 128, 128, 64]));
    }
    let mut add = |what| out.push(Shape { model: "large", count: 1, what });
    add(What::Product([1, 1024, 1024, 1024], Layout::default()));
    add(What::Product([1, 4096, 4096, 4096], Layout::default()));
    add(What::Product([1, 4096, 4096, 4096], b_turned));
    add(What::Product([12, 512, 512, 64], b_turned));
    add(What::Attention([16, 2048, 2048, 64]));
    add(What::Attention([32, 1, 4096, 128]));
    let mut add = |count, what| out.push(Shape { model: "qwen2.5-0.5b decode", count, what });
    for (count, cols, depth) in
        [(24, 1152, 896), (24, 896, 896), (24, 9728, 896), (24, 896, 4864), (1, 151_936, 896)]
    {
        add(count, What::Product([1, 1, cols, depth], Layout::default()));
    }
    add(1, What::Product([1, 1, 151_936, 896], b_turned));
    add(24, What::Attention([14, 1, 512, 64]));
    let mut add = |what| out.push(Shape { model: "gemv", count: 1, what: What::Gemv(what) });
    for weights in [DType::F32, DType::F16, DType::U4] {
        let by_column = weights != DType::U4;
        let plain = |depth, cols| Gemv { weights, ..Gemv::plain(depth, cols, by_column) };
        if by_column {
            add(Gemv { products: 2, ..plain(896, 1152) });
            add(plain(896, 896));
        }
        add(Gemv { products: 2, norm: true, ..plain(896, 4864) });
        add(plain(4864, 896));
        if by_column {
            add(Gemv { by_column: false, ..plain(896, 151_936) });
        }
    }
    out
}

/// Microseconds of one of `n` dispatches in one pass: by the GPU's clock where it has one, else from
/// submission to the end.
fn pass(gpu: &Gpu, r: &Ready, n: u32) -> f64 {
    use wgpu::BufferUsages as U;
    let buffer = |usage| {
        let d = wgpu::BufferDescriptor { label: None, size: 256, usage, mapped_at_creation: false };
        gpu.device.create_buffer(&d)
    };
    let queries = gpu.timestamps.then(|| {
        gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count: 2,
        })
    });
    let (resolved, read) = (buffer(U::QUERY_RESOLVE | U::COPY_SRC), buffer(U::COPY_DST | U::MAP_READ));
    let mut e = gpu.device.create_command_encoder(&Default::default());
    {
        let mut p = e.begin_compute_pass(&Default::default());
        p.set_pipeline(&r.pipeline);
        p.set_bind_group(0, &r.group, &[]);
        if let Some(q) = &queries {
            p.write_timestamp(q, 0);
        }
        for _ in 0..n {
            p.dispatch_workgroups(r.counts[0], r.counts[1], r.counts[2]);
        }
        if let Some(q) = &queries {
            p.write_timestamp(q, 1);
        }
    }
    if let Some(q) = &queries {
        e.resolve_query_set(q, 0..2, &resolved, 0);
        e.copy_buffer_to_buffer(&resolved, 0, &read, 0, 16);
    }
    let start = Instant::now();
    gpu.queue.submit([e.finish()]);
    gpu.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device answers");
    let wall = start.elapsed().as_secs_f64() * 1e6 / f64::from(n);
    if queries.is_none() {
        return wall;
    }
    read.map_async(wgpu::MapMode::Read, .., |r| r.expect("readable"));
    gpu.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device answers");
    let view = read.get_mapped_range(..).expect("mapped");
    let tick = |i: usize| {
        let mut b = [0; 8];
        b.copy_from_slice(&view[i * 8..i * 8 + 8]);
        u64::from_le_bytes(b)
    };
    let ticks = tick(1).saturating_sub(tick(0));
    if ticks == 0 {
        wall
    } else {
        ticks as f64 * f64::from(gpu.queue.get_timestamp_period()) / 1e3 / f64::from(n)
    }
}

/// Microseconds of one dispatch: the median of five passes of about 10 ms each.
fn time(gpu: &Gpu, r: &Ready) -> f64 {
    pass(gpu, r, 2);
    let n = (10_000.0 / pass(gpu, r, 10)).clamp(3.0, 300.0) as u32;
    let mut all: Vec<f64> = (0..5).map(|_| pass(gpu, r, n)).collect();
    all.sort_by(f64::total_cmp);
    all[2]
}

fn main() {
    let mut filter = String::new();
    let mut each = 8;
    let mut limits = false;
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        if a == "--each" {
            each = args.next().and_then(|n| n.parse().ok()).unwrap_or(each);
        } else if a == "--limits" {
            limits = true;
        } else {
            filter = a;
        }
    }
    let Some(gpu) = gpus().into_iter().next() else { return };
    println!("{}", gpu.name);
    let mut sums: BTreeMap<&str, [f64; 2]> = BTreeMap::new();
    for shape in shapes() {
        let mut case = Case::new(&[]);
        if limits {
            let l = gpu.device.limits();
            case.profile.max_invocations = l.max_compute_invocations_per_workgroup;
            case.profile.max_workgroup_bytes = l.max_compute_workgroup_storage_size;
        }
        let (kernel, dims) = match shape.what {
            What::Conv(s) => (convolution(&mut case, s).0, s.dims().to_vec()),
            What::Product(d, l) => (product(&mut case, d.map(c), l).0, d.to_vec()),
            What::Attention(d) => (attention_kernel(&mut case, d), d.to_vec()),
            What::Gemv(g) => (g.kernel(&mut case).0, vec![g.rows, g.cols, g.depth]),
        };
        let name = match shape.what {
            What::Conv(s) => format!("{} conv{}x{}/{}", shape.model, s.kernel, s.kernel, s.stride),
            What::Product(_, l) => format!("{} product{}", shape.model, if l.b { " bT" } else { "" }),
            What::Attention(_) => format!("{} attention", shape.model),
            What::Gemv(g) => {
                let order = if g.by_column { "kn" } else { "nk" };
                let norm = if g.norm { " norm" } else { "" };
                format!("gemv {} {order} b{}{norm}", g.weights, g.products)
            }
        };
        if !name.contains(&filter) {
            continue;
        }
        let flops = 2.0
            * dims.iter().map(|d| *d as f64).product::<f64>()
            * if matches!(shape.what, What::Attention(_)) { 2.0 } else { 1.0 };
        let mut runs = vec![];
        case.with_context(|cx| {
            if let What::Attention(_) = shape.what {
                let text = attention::emit_as(&kernel, cx, None).map(|k| k.wgsl);
                for g in attention::TILED.iter().chain([&attention::Geometry::Decode]) {
                    if *g == attention::Geometry::Decode && dims[1] > 16 {
                        continue;
                    }
                    if let Ok(k) = attention::emit_as(&kernel, cx, Some(*g)) {
                        runs.push((text.as_ref() == Ok(&k.wgsl), 0.0, format!("{g:?}"), k));
                    }
                }
                return;
            }
            let p = matmul::problem(&kernel).expect("a product");
            let chosen = geometry::choose(&p, cx.profile);
            let mut all: Vec<(f64, Geometry)> = geometry::candidates(&p, cx.profile)
                .into_iter()
                .map(|g| (geometry::cycles(g, &p), g))
                .collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (estimate, g) in all.into_iter().take(each) {
                if let Ok(k) = matmul::emit_as(&kernel, cx, Some(g)) {
                    runs.push((g == chosen, estimate, short(g), k));
                }
            }
        });
        let (mut chosen, mut best) = (f64::INFINITY, f64::INFINITY);
        for (is_chosen, estimate, geometry, k) in runs {
            let t = time(&gpu, &prepare(&gpu, &case, &k, &BTreeMap::new()));
            best = best.min(t);
            if is_chosen {
                chosen = t;
            }
            let speed = match shape.what {
                What::Gemv(g) => format!("{:>7.0} GB/s", g.bytes() / t / 1e3),
                _ => format!("{:>7.2} TFLOP/s", flops / t / 1e6),
            };
            println!(
                "{} {:<32} {:<24} {:<28} {:>10.2} us {speed} {:>9.1} kcycles",
                if is_chosen { '*' } else { ' ' },
                name,
                format!("{dims:?}"),
                geometry,
                t,
                estimate / 1e3
            );
        }
        let s = sums.entry(shape.model).or_default();
        s[0] += chosen * shape.count as f64;
        s[1] += best * shape.count as f64;
    }
    for (model, [chosen, best]) in sums {
        println!("{model}: {:.3} ms as chosen, {:.3} ms at best", chosen / 1e3, best / 1e3);
    }
}

fn short(g: Geometry) -> String {
    match g {
        Geometry::Cooperative(s) => {
            format!("units {}x{}x{} / {}x{}", s.rows, s.cols, s.k, s.sub_rows, s.sub_cols)
        }
        Geometry::Tiled(t) => {
            format!("{}x{}x{} {}x{} /{}", t.rows, t.cols, t.k, t.thread_rows, t.thread_cols, t.split)
        }
        Geometry::Thin(t) => {
            format!("thin {}x{} /{}x{} u{}", t.k, t.cols, t.across, t.lanes, t.unroll)
        }
        Geometry::Serial => "serial".into(),
    }
}

/// Attention with `[batch, s, t, d]`, values of width d.
fn attention_kernel(case: &mut Case, dims: [i64; 4]) -> Kernel {
    let [batch, s, t, d] = dims.map(c);
    let tq = case.tensor(&[batch.clone(), s.clone(), d.clone()], TensorKind::Input(0));
    let tk = case.tensor(&[batch.clone(), t.clone(), d.clone()], TensorKind::Input(1));
    let tv = case.tensor(&[batch.clone(), t.clone(), d.clone()], TensorKind::Input(2));
    let to = case.tensor(&[batch.clone(), s.clone(), d.clone()], TensorKind::Output(0));
    let mut body = Body::default();
    let row = |i: usize, ie: &Poly, j: usize| (v(0) * ie + v(i)) * &d + v(j);
    let q = body.push(Expr::Load { tensor: tq, offset: row(1, &s, 3), guard: None }, DType::F32);
    let k = body.push(Expr::Load { tensor: tk, offset: row(2, &t, 3), guard: None }, DType::F32);
    let val = body.push(Expr::Load { tensor: tv, offset: row(2, &t, 4), guard: None }, DType::F32);
    let value = body.push(Expr::Acc(0), DType::F32);
    let stores = vec![Store { tensor: to, offset: row(1, &s, 4), value, guard: None }];
    let e = d.clone();
    let family = Family::Attention {
        batch,
        s,
        t,
        d,
        e,
        q,
        k,
        v: val,
        mask: None,
        scale: 0.125,
        parts: 1,
        part_stores: vec![],
    };
    Kernel { family, body, stores, nodes: vec![] }
}
