//! Times greedy decoding with a graph-only decoder and random weights: one token a run; the cache, the
//! argmax and the token stay on the device, the host reads each token while the next is made.
//!
//! `decode MODEL [--fusion none|elementwise|full] [--past N]... [--capacity N] [--tokens N] [--guarded] [--check]
//! [--csv FILE]`; with `--guarded` kernels run with WebGPU's run-time checks.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;
use wgfc::compiler::options::States;
use wgfc::ir::build::Builder;
use wgfc::ir::program::Stats;
use wgfc::ir::{Graph, Op, ReduceOp};
use wgfc::runtime::kernel::Checks;
use wgfc::runtime::session::{SessionOptions, Started, Value};
use wgfc::runtime::{AdapterChoice, Estimate, Gpu, Session};
use wgfc::{Fusion, ModelFile, Options, Tensor};

/// Replaces the first output, logits `[…, vocabulary]`, by the position of the largest of each row.
fn argmax(graph: &mut Graph, keep: bool) -> Result<(), String> {
    let logits = graph.outputs.first().ok_or("no outputs")?.value;
    let mut b = Builder::new(graph, "argmax");
    let axis = b.rank(logits).checked_sub(1).ok_or("scalar logits")?;
    let token = b.push(Op::ArgReduce { op: ReduceOp::Max, axis, last: false }, &[logits])?;
    let shape = b.shape(logits)[..axis].to_vec();
    let token = b.reshape(token, shape)?;
    let border = wgfc::ir::Border { name: "token".into(), value: token };
    if keep {
        graph.outputs.push(border);
    } else {
        graph.outputs[0] = border;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let all = |name: &str| -> Vec<String> {
        args.windows(2).filter(|w| w[0] == name).map(|w| w[1].clone()).collect()
    };
    let number = |name: &str, default: usize| -> Result<usize, std::num::ParseIntError> {
        all(name).first().map_or(Ok(default), |v| v.parse())
    };
    let capacity = number("--capacity", 2304)?;
    let tokens = number("--tokens", 64)?;
    let fusion = match all("--fusion").first().map(String::as_str) {
        Some("none") => Fusion::None,
        Some("elementwise") => Fusion::Elementwise,
        _ => Fusion::Full,
    };
    let gpu = Gpu::request_blocking(&AdapterChoice::from_env())?;
    let options = Options {
        fusion,
        dims: BTreeMap::from([("seq".to_owned(), 1)]),
        states: States::Auto { capacity },
        profile: wgfc::model::device_profile(gpu.profile(), &Default::default()),
        ..Options::default()
    };
    let start = Instant::now();
    let path = std::path::PathBuf::from(args.first().ok_or("which model?")?);
    let file = ModelFile::open(&path)?.with_random_weights()?;
    println!("weights {:.3} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let mut graph = file.import(&options)?.graph;
    argmax(&mut graph, args.iter().any(|a| a == "--check"))?;
    let compiled = |graph: &Graph, options: &Options| {
        let mut graph = graph.clone();
        wgfc::compiler::states::introduce(&mut graph, &options.states)?;
        wgfc::compiler::rewrite::rewrite(&mut graph, options)?;
        let kernels = wgfc::compiler::fuse::fuse(&graph, options)?;
        let program = wgfc::compiler::assemble::assemble(&graph, &kernels, options, Stats::default())?;
        Ok::<_, wgfc::compiler::Errors>((program, kernels))
    };
    let (program, kernels) = compiled(&graph, &options)?;
    println!("compile {:.3} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let checks = if args.iter().any(|a| a == "--guarded") { Checks::All } else { Checks::Trusted };
    let mut session = pollster::block_on(Session::with_options(&gpu, &program, SessionOptions { checks }))?;
    println!("{}: session {:.3} s", gpu.summary().name, start.elapsed().as_secs_f64());

    let inputs = |token: i64, past: usize| -> Vec<(&str, Tensor)> {
        let value = |name: &str| match name {
            n if n.contains("position") => past as i64,
            n if n.contains("mask") => 1,
            _ => token,
        };
        program
            .inputs
            .iter()
            .map(|p| (p.name.as_str(), Tensor::from_i64(vec![1; p.shape.len()], &[value(&p.name)])))
            .collect()
    };
    if args.iter().any(|a| a == "--check") {
        check(&gpu, &compiled, &graph, &options, &mut session, &inputs)?;
    }
    for past in all("--past") {
        let past: usize = past.parse()?;
        let mut token = 7;
        let mut times = vec![];
        // Clocks rise under load.
        let warm = Instant::now();
        while warm.elapsed().as_secs_f64() < 0.5 {
            session.set_symbol("past", past as i64)?;
            session.run_blocking(&inputs(token, past))?;
        }
        // The token of one run is an input of the next before anybody has read it.
        let ids = inputs(token, past).iter().position(|(n, _)| n.contains("ids")).ok_or("no token input")?;
        let mut before: Option<Started> = None;
        for i in 0..tokens + 8 {
            let start = Instant::now();
            let mut given: Vec<(&str, Value)> =
                inputs(token, past + i).into_iter().map(|(n, t)| (n, t.into())).collect();
            if let Some(t) = before.as_ref().and_then(|b| b.output("token")) {
                given[ids].1 = Value::Device(t.clone());
            }
            session.set_symbol("past", (past + i) as i64)?;
            let next = pollster::block_on(session.start(&given, Some(&["token"])))?;
            if let Some(run) = before.replace(next) {
                pollster::block_on(run.read())?;
            }
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        if let Some(run) = before {
            let out = pollster::block_on(run.read())?;
            token = out[0].1.scalars().and_then(|s| s.first().map(|s| s.as_i64())).ok_or("no token")?;
        }
        let mut times = times.split_off(8);
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        println!(
            "past {past}: {} dispatches, {median:.3} ms a token ({:.0} tokens/s), fastest {:.3} ms",
            program.dispatches.len(),
            1e3 / median,
            times[0]
        );
        session.set_symbol("past", past as i64)?;
        let p = session.profile_blocking(&inputs(token, past), 10)?;
        let ms = |ns: Option<Estimate>| ns.map_or("-".into(), |n| format!("{:.3}", n.median / 1e6));
        println!(
            "  gpu {} record {} submit {} wall {} round trip {} ms",
            ms(p.gpu_ns),
            ms(p.record_ns),
            ms(p.submit_ns),
            ms(p.wall_ns),
            ms(p.round_trip_ns)
        );
        if let Some(csv) = all("--csv").first() {
            let mut f = std::fs::File::create(format!("{csv}.{past}.csv"))?;
            writeln!(f, "kernel,workgroups,us,gbytes_per_s,problem")?;
            for (d, k) in p.dispatches.iter().zip(&kernels.kernels) {
                let us = d.gpu_ns.map_or(0.0, |e| e.median) / 1e3;
                let rate = if us > 0.0 { d.bytes as f64 / us / 1e3 } else { 0.0 };
                let w = d.workgroups;
                writeln!(f, "{},{}x{}x{},{us:.2},{rate:.0},\"{}\"", d.kernel, w[0], w[1], w[2], k.family)?;
            }
        }
    }
    Ok(())
}

type Compiled = (wgfc::Program, wgfc::compiler::kernel::KernelGraph);

/// Compares eight steps of the fused program with the unfused one's.
fn check<'a>(
    gpu: &Gpu,
    compiled: &dyn Fn(&Graph, &Options) -> Result<Compiled, wgfc::compiler::Errors>,
    graph: &Graph,
    options: &Options,
    session: &mut Session,
    inputs: &dyn Fn(i64, usize) -> Vec<(&'a str, Tensor)>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (plain, _) = compiled(graph, &Options { fusion: Fusion::None, ..options.clone() })?;
    let mut reference = Session::new_blocking(gpu, &plain)?;
    let mut worst = 0f64;
    let mut token = 7;
    for past in 0..8 {
        let mut outputs = vec![];
        for s in [&mut *session, &mut reference] {
            s.set_symbol("past", past as i64)?;
            outputs.push(s.run_blocking(&inputs(token, past))?);
        }
        let floats =
            |i: usize| outputs[i].iter().find_map(|(n, t)| (n != "token").then(|| t.to_f32s())).flatten();
        let (a, b) = (floats(0).ok_or("no logits")?, floats(1).ok_or("no logits")?);
        let diff: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(x - y).powi(2)).sum();
        let norm: f64 = b.iter().map(|y| f64::from(*y).powi(2)).sum();
        worst = worst.max((diff / norm).sqrt());
        let tokens: Vec<i64> = outputs
            .iter()
            .filter_map(|o| o.iter().find(|(n, _)| n == "token")?.1.scalars()?.first().map(|s| s.as_i64()))
            .collect();
        if tokens.len() != 2 || tokens[0] != tokens[1] {
            println!("step {past}: tokens {tokens:?} differ");
        }
        token = tokens[0];
    }
    println!("fused and unfused differ by {worst:.2e} over 8 steps");
    Ok(())
}
