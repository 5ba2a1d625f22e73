//! Compiles a graph-only model and shows what each stage made: `stages MODEL [none|elementwise|full] [OUT]
//! [DIM=VALUE ...] [capacity=N]`; with a capacity, states stay on the device. 0 leaves it to the session.

use std::time::Instant;
use wgfc_compiler::import::NoExternalData;
use wgfc_compiler::options::States;
use wgfc_compiler::{Fusion, Options};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let bytes = std::fs::read(&args[1]).expect("a readable model");
    let fusion = match args.get(2).map(String::as_str) {
        Some("none") => Fusion::None,
        Some("elementwise") => Fusion::Elementwise,
        _ => Fusion::Full,
    };
    let mut options = Options { fusion, graph_only: true, ..Options::default() };
    options.profile.max_binding_bytes = 1 << 31;
    options.profile.max_storage_buffers = 16;
    for (name, value) in args.iter().skip(4).filter_map(|a| a.split_once('=')) {
        let value: i64 = value.parse().expect("a number");
        if name == "capacity" {
            options.states = States::Auto { capacity: usize::try_from(value).ok().filter(|n| *n > 0) };
        } else {
            options.dims.insert(name.to_owned(), value);
        }
    }
    let mut last = Instant::now();
    let result =
        wgfc_compiler::pipeline::compile_observed(&bytes, &NoExternalData, &options, &mut |stage, text| {
            println!("{stage}: {:.3} s", last.elapsed().as_secs_f64());
            if let Some(dir) = args.get(3) {
                std::fs::write(format!("{dir}/{stage}.txt"), text()).expect("a writable folder");
            }
            last = Instant::now();
        });
    println!("assemble: {:.3} s", last.elapsed().as_secs_f64());
    match result {
        Err(e) => println!("{e}"),
        Ok(p) => {
            println!("{} dispatches, {} kernels", p.dispatches.len(), p.kernels.len());
            for d in &p.dispatches {
                let k = &p.kernels[d.kernel];
                println!("{:<40} {:?} {}", k.name, d.workgroups, d.nodes.len());
            }
            if let Some(dir) = args.get(3) {
                for k in &p.kernels {
                    std::fs::write(format!("{dir}/{}.wgsl", k.name), &k.wgsl).expect("a writable folder");
                }
            }
        }
    }
}
