//! What running a plan costs beside its kernels: `overhead [products] [rows] [columns]`.
//!
//! A chain of matrix-vector products with a weight each, as one decode step of a language model is
//! (the default: 124 of 896 × 3584, f32). Prints the times of a run with and without guards in the
//! kernels, on the adapter that `WGFC_ADAPTER` names.

use std::collections::BTreeMap;
use std::time::Instant;
use wgfc_ir::program::{Access, Buffer, BufferKind, Dispatch, FORMAT_VERSION, Kernel, Port, Program, Stats};
use wgfc_ir::{DType, Dim, Tensor};
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::{SessionOptions, Value};
use wgfc_runtime::{AdapterChoice, Gpu, RunError, Session, measure};

/// One workgroup of 64 makes one row: each thread sums every 64th vector, then the partial sums fold.
const PRODUCT: &str = "
@group(0) @binding(0) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
var<workgroup> part: array<f32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) row: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    var s = 0.0;
    for (var j = t; j < COLSu; j += 64u) {
        s += dot(w[row.x * COLSu + j], x[j]);
    }
    part[t] = s;
    workgroupBarrier();
    for (var k = 32u; k > 0u; k >>= 1u) {
        if (t < k) {
            part[t] += part[t + k];
        }
        workgroupBarrier();
    }
    if (t == 0u) {
        y[row.x] = part[0];
    }
}
";

fn chain(products: usize, rows: usize, columns: usize) -> Result<Program, String> {
    let dim = |n: usize| Dim::constant(n as i64);
    let width = columns.max(rows);
    let buffer = |kind, n| Buffer { kind, dtype: DType::F32, elements: dim(n) };
    let port = |name: &str, buffer| Port {
        name: name.to_owned(),
        dtype: DType::F32,
        shape: vec![dim(width)],
        buffer,
    };
    let mut p = Program {
        version: FORMAT_VERSION,
        producer: "overhead".to_owned(),
        inputs: vec![port("x", 0)],
        outputs: vec![port("y", 1)],
        states: vec![],
        symbols: vec![],
        constraints: vec![],
        buffers: vec![
            buffer(BufferKind::Input { index: 0 }, width),
            buffer(BufferKind::Output { index: 0 }, width),
        ],
        kernels: vec![Kernel {
            name: "product".to_owned(),
            family: "gemv".to_owned(),
            wgsl: PRODUCT.replace("COLS", &(columns / 4).to_string()),
            workgroup_size: [64, 1, 1],
            bindings: vec![Access::Read, Access::Read, Access::ReadWrite],
            uses_dims: false,
            workgroup_bytes: 256,
            features: vec![],
        }],
        dispatches: vec![],
        stats: Stats::default(),
        weights: BTreeMap::new(),
    };
    let mut from = 0;
    for i in 0..products {
        let name = format!("w{i}");
        let w = Tensor::new(DType::F32, vec![rows, columns], vec![0; 4 * rows * columns])?;
        p.weights.insert(name.clone(), w);
        p.buffers.push(buffer(BufferKind::Weight { name }, rows * columns));
        let weight = p.buffers.len() - 1;
        let to = if i + 1 == products {
            1
        } else {
            p.buffers.push(buffer(BufferKind::Arena { arena: i % 2, first: i, last: i + 1 }, width));
            weight + 1
        };
        p.dispatches.push(Dispatch {
            kernel: 0,
            bindings: vec![weight, from, to],
            workgroups: [dim(rows), Dim::ONE, Dim::ONE],
            nodes: vec![],
            bytes: dim(4 * rows * columns),
            flops: dim(2 * rows * columns),
        });
        from = to;
    }
    Ok(p)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<usize> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    let at = |i: usize, default| args.get(i).copied().unwrap_or(default);
    let (products, rows, columns) = (at(0, 124), at(1, 896), at(2, 3584));
    let gpu = Gpu::request_blocking(&AdapterChoice::from_env())?;
    println!("{gpu:?}: {:#?}", measure::measure_blocking(&gpu)?);
    let program = chain(products, rows, columns)?;
    for checks in [Checks::All, Checks::Trusted] {
        report(&gpu, &program, checks)?;
    }
    Ok(())
}

fn report(gpu: &Gpu, program: &Program, checks: Checks) -> Result<(), RunError> {
    const RUNS: u32 = 30;
    let start = Instant::now();
    let mut session = pollster::block_on(Session::with_options(gpu, program, SessionOptions { checks }))?;
    println!("{checks:?}: loaded in {:.1?}", start.elapsed());
    let width = session.program().inputs[0].shape[0].as_const().unwrap_or(0) as usize;
    let x = Tensor::from_f32(vec![width], &vec![1.0; width]);
    let p = session.profile_blocking(&[("x", x.clone())], RUNS as usize)?;
    let us = |ns: Option<f64>| ns.map_or("-".to_owned(), |v| format!("{:.1} µs", v / 1000.0));
    println!("  kernels    {}", us(p.gpu_ns));
    println!("  record     {}", us(p.record_ns));
    println!("  submit     {}", us(p.submit_ns));
    println!("  until done {}", us(p.wall_ns));
    println!("  and read   {}", us(p.round_trip_ns));
    let x = [("x", Value::from(gpu.upload_blocking(&x)?))];
    let start = Instant::now();
    for _ in 0..RUNS {
        session.run_on_device_blocking(&x)?;
    }
    let cpu = start.elapsed() / RUNS;
    pollster::block_on(gpu.wait())?;
    println!("  back to back, on the device: {:.1?} each, {cpu:.1?} of it CPU", start.elapsed() / RUNS);
    Ok(())
}
