//! How many kernels real models become.

use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::kernel::KernelGraph;
use wgfc_compiler::{Fusion, Options};

fn kernels(model: &str, fusion: Fusion) -> KernelGraph {
    let path = format!("{}/../fixtures/{model}.onnx", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let options = Options { fusion, graph_only: true, ..Options::default() };
    let mut graph = import(&bytes, &NoExternalData, &options).unwrap_or_else(|e| panic!("{e}")).graph;
    wgfc_compiler::rewrite::rewrite(&mut graph, &options).unwrap_or_else(|e| panic!("{e}"));
    wgfc_compiler::fuse::fuse(&graph, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Every convolution with bias, activation and residual is one dispatch.
#[test]
fn resnet50() {
    let k = kernels("resnet50", Fusion::Full);
    assert!(k.kernels.len() <= 56, "{}\n{k}", k.kernels.len());
}

#[test]
fn mobilenetv2() {
    let k = kernels("mobilenetv2", Fusion::Full);
    assert!(k.kernels.len() <= 55, "{}\n{k}", k.kernels.len());
}

/// Seven a layer: merged QKV, attention, projection, norm, two of the MLP, norm.
#[test]
fn bert_base() {
    let k = kernels("bert-base", Fusion::Full);
    assert!(k.kernels.len() <= 100, "{}\n{k}", k.kernels.len());
}

#[test]
fn qwen2_2l() {
    let k = kernels("qwen2-2l", Fusion::Full);
    assert!(k.kernels.len() <= 40, "{}\n{k}", k.kernels.len());
}
