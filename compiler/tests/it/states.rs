//! States in kernels are written in place where possible.

use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::kernel::{Family, KernelGraph, Map, TensorKind};
use wgfc_compiler::{Options, States};
use wgfc_ir::program::Stats;

/// The kernels that write a state, and whether each writes all of it.
fn writers(k: &KernelGraph) -> Vec<bool> {
    let mut out = vec![];
    for kernel in &k.kernels {
        for t in kernel.writes() {
            if matches!(k.tensors[t].kind, TensorKind::State { .. }) {
                let all = k.tensors[t].ty.numel();
                out.push(matches!(&kernel.family, Family::Map(Map { elements }) if *elements == all));
            }
        }
    }
    out
}

/// The caches of a decoder are written in place, and nothing else in them moves.
#[test]
fn the_cache_of_a_decoder_is_written_in_place() {
    let path = format!("{}/../fixtures/qwen2-2l.onnx", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    for capacity in [Some(2048), None] {
        written_in_place(&bytes, &States::Auto { capacity });
    }
}

fn written_in_place(bytes: &[u8], states: &States) {
    let options = Options { graph_only: true, dims: [("seq".to_owned(), 1)].into(), ..Options::default() };
    let kernels = |states: &States| {
        let mut graph = import(bytes, &NoExternalData, &options).unwrap().graph;
        wgfc_compiler::states::introduce(&mut graph, states).unwrap();
        wgfc_ir::verify::verify(&graph).unwrap();
        wgfc_compiler::passes::rewrite(&mut graph, &options).unwrap();
        (wgfc_compiler::passes::fuse(&graph, &options).unwrap(), graph)
    };
    let (with, graph) = kernels(states);
    let (without, _) = kernels(&States::None);
    let names: Vec<&str> = graph.states.iter().map(|s| &*s.name).collect();
    assert_eq!(
        names,
        [
            "past_key_values.0.key",
            "past_key_values.0.value",
            "past_key_values.1.key",
            "past_key_values.1.value"
        ]
    );
    assert_eq!(graph.outputs.len(), 1);
    assert_eq!(writers(&with), [false; 4], "{with}");
    assert!(with.kernels.len() <= without.kernels.len(), "{with}");
    let program = wgfc_compiler::assemble::assemble(
        &graph,
        &wgfc_compiler::pipeline::schedule(with, &options).unwrap(),
        &options,
        Stats::default(),
    )
    .unwrap();
    // A position is 2 heads of 64 numbers; no dispatch that writes a cache moves more than a few rows.
    let writers = program.dispatches.iter().filter(|d| {
        let k = &program.kernels[d.kernel];
        d.bindings.iter().zip(&k.bindings).any(|(b, a)| {
            matches!(program.buffers[*b].kind, wgfc_ir::program::BufferKind::State { .. })
                && *a == wgfc_ir::program::Access::ReadWrite
        })
    });
    for d in writers {
        assert!(d.bytes.as_const().is_some(), "{} {:?}", d.bytes, d.nodes);
    }
}
