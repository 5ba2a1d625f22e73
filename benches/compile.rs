//! Compile times without reading weights, for whole models and for one decoder of increasing depth.
//!
//! `cargo bench --bench compile`. The models are the graphs without weights in `fixtures/`.

use prost::Message;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};
use wgfc_compiler::import::NoExternalData;
use wgfc_compiler::import::onnx::ModelProto;
use wgfc_compiler::{Errors, Options, compile};

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/{name}.onnx"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn plan(model: &[u8]) -> Result<usize, Errors> {
    let options = Options { graph_only: true, ..Options::default() };
    Ok(compile(model, &NoExternalData, &options)?.dispatches.len())
}

/// Times a compilation at least ten times and for five seconds, and prints the median and the extremes.
fn time(what: &str, bytes: &[u8]) -> Result<(), Errors> {
    plan(bytes)?;
    let mut times = vec![];
    while times.len() < 10 || times.iter().sum::<Duration>() < Duration::from_secs(5) {
        let start = Instant::now();
        plan(bytes)?;
        times.push(start.elapsed());
    }
    times.sort();
    let (least, median, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    println!("{what:<24} {median:>10.1?}  ({least:.1?} to {most:.1?}, {} times)", times.len());
    Ok(())
}

fn main() {
    // Cargo passes `--bench`; another argument selects the names that contain it.
    let wanted = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    for name in ["resnet50", "mobilenetv2", "bert-base", "qwen2-2l", "qwen2.5-0.5b"] {
        if name.contains(&wanted)
            && let Err(e) = time(name, &fixture(name))
        {
            eprintln!("{name} is left out: {e}");
        }
    }
    for layers in [2, 6, 12, 24] {
        let what = format!("{layers} layers");
        if what.contains(&wanted) {
            let bytes = first_layers("qwen2.5-0.5b", layers);
            time(&what, &bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

/// The decoder `name` with its first `layers` layers only.
///
/// Each RMS norm starts with a `Pow` of the residual stream: two per layer, and one before the head. The
/// operand of the last one is replaced by that of the first norm after the kept layers.
fn first_layers(name: &str, layers: usize) -> Vec<u8> {
    let mut model = ModelProto::decode(fixture(name).as_slice()).expect("the fixture is an ONNX model");
    let graph = model.graph.as_mut().expect("it has a graph");
    let norms: Vec<String> =
        graph.node.iter().filter(|n| n.op_type == "Pow").map(|n| n.input[0].clone()).collect();
    let (last, cut) = (norms[norms.len() - 1].clone(), norms[2 * layers].clone());
    for input in graph.node.iter_mut().flat_map(|n| &mut n.input) {
        if *input == last {
            *input = cut.clone();
        }
    }
    graph.output.retain(|o| {
        let mut parts = o.name.split('.');
        match (parts.next(), parts.next().and_then(|n| n.parse::<usize>().ok())) {
            (Some("present"), Some(layer)) => layer < layers,
            _ => true,
        }
    });
    let producer: HashMap<&str, usize> = graph
        .node
        .iter()
        .enumerate()
        .flat_map(|(i, n)| n.output.iter().map(move |o| (o.as_str(), i)))
        .collect();
    let mut live = HashSet::new();
    let mut wanted: Vec<&str> = graph.output.iter().map(|o| o.name.as_str()).collect();
    while let Some(value) = wanted.pop() {
        if let Some(i) = producer.get(value)
            && live.insert(*i)
        {
            wanted.extend(graph.node[*i].input.iter().map(String::as_str));
        }
    }
    let mut index = 0;
    graph.node.retain(|_| {
        index += 1;
        live.contains(&(index - 1))
    });
    let read: HashSet<&String> = graph.node.iter().flat_map(|n| &n.input).collect();
    graph.initializer.retain(|t| read.contains(&t.name));
    graph.input.retain(|i| read.contains(&i.name));
    model.encode_to_vec()
}
