//! How many kernels real models become.

use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::kernel::{Family, KernelGraph};
use wgfc_compiler::{Fusion, Options};
use wgfc_ir::DType;

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

/// Packed weights are read by products only, which dequantise them in registers.
#[test]
fn packed_weights_stay_packed() {
    for model in ["qwen2.5-0.5b-q4f32", "qwen2.5-0.5b-q4f16"] {
        let k = kernels(model, Fusion::Full);
        let packed = |t: &usize| k.tensors.get(*t).is_some_and(|t| t.ty.dtype == DType::U4);
        let readers: Vec<_> = k.kernels.iter().filter(|k| k.reads().iter().any(packed)).collect();
        assert!(readers.len() >= 24 * 4, "{model}: {} kernels read packed weights", readers.len());
        for r in readers {
            assert!(matches!(r.family, Family::Matmul { .. }), "{model}: {:?}", r.nodes);
        }
    }
}
