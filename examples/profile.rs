//! Times a graph-only model with random weights, kernel by kernel, and compares it with the evaluator.
//!
//! `profile MODEL [--fusion none|elementwise|full] [--dim name=value]... [--runs N] [--check] [--csv FILE]`

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::{Fusion, Options};
use wgfc_ir::program::Stats;
use wgfc_ir::{DType, Graph, Op, Tensor};
use wgfc_runtime::{AdapterChoice, Gpu, Session};

/// Normal numbers from a counter: the sum of uniform ones.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32
    }
    fn normal(&mut self) -> f32 {
        (0..4).map(|_| self.uniform() - 0.5).sum::<f32>() * 1.732
    }
}

/// Gives absent weights numbers whose scale keeps activations finite.
fn fill(graph: &mut Graph) {
    let ids: Vec<_> = graph.node_ids().collect();
    for id in ids {
        let name = graph.node(id).names.first().cloned().flatten();
        let Op::Const(t) = &graph.node(id).op else { continue };
        if t.is_present() || t.dtype != DType::F32 {
            continue;
        }
        let dims = t.shape.clone();
        let fan_in: usize = dims.iter().skip(1).product();
        let norm = name.is_some_and(|n| n.to_lowercase().contains("norm") && n.contains("weight"));
        let (base, scale) = match dims.len() {
            0 | 1 => (if norm { 1.0 } else { 0.0 }, 0.02),
            2 => (0.0, (1.0 / dims[0].min(dims[1]) as f32).sqrt().min(0.05)),
            _ => (0.0, (2.0 / fan_in as f32).sqrt()),
        };
        let mut noise = Noise(id.index() as u64 * 1_000_003);
        let v: Vec<f32> = (0..t.numel()).map(|_| base + scale * noise.normal()).collect();
        graph.node_mut(id).op = Op::Const(Arc::new(Tensor::from_f32(dims, &v)));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let model = args.first().ok_or("which model?")?;
    let mut dims = BTreeMap::new();
    for (i, a) in args.iter().enumerate() {
        if a == "--dim" {
            let (n, v) = args.get(i + 1).and_then(|d| d.split_once('=')).ok_or("--dim name=value")?;
            dims.insert(n.to_owned(), v.parse::<i64>()?);
        }
    }
    let runs: usize = option("--runs").map_or(Ok(20), |r| r.parse())?;
    let fusion = match option("--fusion").map(String::as_str) {
        Some("none") => Fusion::None,
        Some("elementwise") => Fusion::Elementwise,
        _ => Fusion::Full,
    };
    let options = Options { fusion, graph_only: true, dims, ..Options::default() };
    let start = std::time::Instant::now();
    let imported = import(&std::fs::read(model)?, &NoExternalData, &options)?;
    let mut graph = imported.graph;
    println!("import {:.3} s", start.elapsed().as_secs_f64());
    fill(&mut graph);
    let reference = graph.clone();
    let start = std::time::Instant::now();
    wgfc_compiler::rewrite::rewrite(&mut graph, &options)?;
    let kernels = wgfc_compiler::fuse::fuse(&graph, &options)?;
    let program = wgfc_compiler::assemble::assemble(&graph, &kernels, &options, Stats::default())?;
    println!("compile {:.3} s", start.elapsed().as_secs_f64());

    let gpu = Gpu::request_blocking(&AdapterChoice::from_env())?;
    let start = std::time::Instant::now();
    let mut session = Session::new_blocking(&gpu, &program)?;
    println!("{}: session {:.3} s", gpu.summary().name, start.elapsed().as_secs_f64());
    let mut inputs = vec![];
    for (i, p) in program.inputs.iter().enumerate() {
        let shape: Vec<usize> = p
            .shape
            .iter()
            .map(|d| d.as_const().map(|c| c as usize).ok_or(format!("give --dim {d}=…")))
            .collect::<Result<_, _>>()?;
        let n: usize = shape.iter().product();
        let mut noise = Noise(77 + i as u64);
        let t = match p.dtype {
            DType::I64 if p.name.contains("mask") => Tensor::from_i64(shape, &vec![1; n]),
            DType::I64 if p.name.contains("position") => {
                Tensor::from_i64(shape, &(0..n as i64).collect::<Vec<_>>())
            }
            DType::I64 => {
                let v: Vec<i64> = (0..n).map(|_| (noise.uniform() * 1000.0) as i64).collect();
                Tensor::from_i64(shape, &v)
            }
            _ => Tensor::from_f32(shape, &(0..n).map(|_| noise.normal()).collect::<Vec<_>>()),
        };
        inputs.push((p.name.clone(), t));
    }
    let given: Vec<(&str, Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    let start = std::time::Instant::now();
    let outputs = session.run_blocking(&given)?;
    println!("first run {:.3} s", start.elapsed().as_secs_f64());
    if args.iter().any(|a| a == "--check") {
        let start = std::time::Instant::now();
        let expected = wgfc_ir::eval::evaluate(&reference, &inputs.iter().cloned().collect())?;
        println!("evaluator {:.3} s", start.elapsed().as_secs_f64());
        for ((name, got), want) in outputs.iter().zip(&expected) {
            let (a, b) = (got.to_f32s().ok_or("absent")?, want.to_f32s().ok_or("absent")?);
            let diff: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(x - y).powi(2)).sum();
            let norm: f64 = b.iter().map(|y| f64::from(*y).powi(2)).sum();
            println!("{name}: relative error {:.3e} (norm {:.3e})", (diff / norm).sqrt(), norm.sqrt());
        }
    }
    let p = session.profile_blocking(&given, runs)?;
    let ms = |ns: Option<f64>| ns.map_or("-".into(), |n| format!("{:.3}", n / 1e6));
    println!(
        "{} dispatches, {} kernels: gpu {} record {} submit {} wall {} round trip {} ms",
        program.dispatches.len(),
        program.kernels.len(),
        ms(p.gpu_ns),
        ms(p.record_ns),
        ms(p.submit_ns),
        ms(p.wall_ns),
        ms(p.round_trip_ns)
    );
    if let Some(csv) = option("--csv") {
        let mut f = std::fs::File::create(csv)?;
        writeln!(f, "kernel,workgroups,us,gflops,gbytes_per_s,problem")?;
        for (d, k) in p.dispatches.iter().zip(&kernels.kernels) {
            let us = d.gpu_ns.unwrap_or(0.0) / 1e3;
            let per = |n: u64| if us > 0.0 { n as f64 / us / 1e3 } else { 0.0 };
            let w = d.workgroups;
            writeln!(
                f,
                "{},{}x{}x{},{us:.1},{:.0},{:.0},\"{}\"",
                d.kernel,
                w[0],
                w[1],
                w[2],
                per(d.flops),
                per(d.bytes),
                k.family
            )?;
        }
    }
    Ok(())
}
