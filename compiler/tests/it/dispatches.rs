//! The numbers of kernels of real models.

use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::kernel::{Family, KernelGraph};
use wgfc_compiler::options::States;
use wgfc_compiler::{CacheType, Fusion, Options, Technique};
use wgfc_ir::{DType, Dim};

fn kernels(model: &str, fusion: Fusion) -> KernelGraph {
    kernels_with(model, Options { fusion, ..Options::default() })
}

fn kernels_with(model: &str, options: Options) -> KernelGraph {
    let path = format!("{}/../fixtures/{model}.onnx", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let options = Options { graph_only: true, ..options };
    let mut graph = import(&bytes, &NoExternalData, &options).unwrap_or_else(|e| panic!("{e}")).graph;
    wgfc_compiler::states::introduce(&mut graph, &options.states).unwrap_or_else(|e| panic!("{e}"));
    wgfc_compiler::states::narrow(&mut graph, options.cache).unwrap();
    wgfc_compiler::passes::rewrite(&mut graph, &options).unwrap_or_else(|e| panic!("{e}"));
    wgfc_compiler::passes::fuse(&graph, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Every convolution with bias, activation and residual is one dispatch.
#[test]
fn resnet50() {
    // A Winograd convolution takes three dispatches.
    let k = kernels_with("resnet50", Options { without: [Technique::Winograd].into(), ..Options::default() });
    assert!(k.kernels.len() <= 56, "{}\n{k}", k.kernels.len());
}

#[test]
fn mobilenetv2() {
    let k = kernels("mobilenetv2", Fusion::Full);
    assert!(k.kernels.len() <= 55, "{}\n{k}", k.kernels.len());
}

/// Seven dispatches per layer: merged QKV, attention, projection, norm, two in the MLP, norm.
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

/// Packed weights are read only by products, which dequantise them in registers.
#[test]
fn packed_weights_stay_packed() {
    for model in ["qwen2.5-0.5b-q4f32", "qwen2.5-0.5b-q4f16"] {
        let k = kernels(model, Fusion::Full);
        let packed = |t: &usize| k.tensors.get(*t).is_some_and(|t| t.ty.dtype == DType::U4);
        let readers: Vec<_> = k.kernels.iter().filter(|k| k.reads().iter().any(packed)).collect();
        assert!(readers.len() >= 24 * 4, "{model}: {} kernels read packed weights", readers.len());
        for r in readers {
            assert!(matches!(r.family, Family::Matmul(_)), "{model}: {:?}", r.nodes);
        }
    }
}

/// Options for one token, with a binding limit that keeps the output head in one piece.
fn decoding_options() -> Options {
    let mut options = Options {
        dims: [("seq".to_owned(), 1)].into(),
        states: States::Auto { capacity: Some(2048) },
        ..Options::default()
    };
    options.profile.max_binding_bytes = 1 << 31;
    options
}

/// A cache in f16 takes no further dispatch. One in 8 bits takes up to eight of each layer, which round keys and values; attention reads the
/// integers.
#[test]
fn decoding_with_a_narrow_cache() {
    for (model, layers) in [("qwen2-2l", 2), ("qwen2.5-0.5b", 24)] {
        let count = |cache| kernels_with(model, Options { cache, ..decoding_options() }).kernels.len();
        let own = count(CacheType::Own);
        assert_eq!(count(CacheType::F16), own, "{model}");
        let k = kernels_with(model, Options { cache: CacheType::Q8, ..decoding_options() });
        assert!(k.kernels.len() <= own + 8 * layers, "{model}: {} after {own}\n{k}", k.kernels.len());
        let attention: Vec<_> =
            k.kernels.iter().filter(|k| matches!(k.family, Family::Attention(_))).collect();
        assert_eq!(attention.len(), layers);
        for a in attention {
            let integers = a.reads().into_iter().filter(|t| k.tensors[*t].ty.dtype == DType::I8).count();
            assert_eq!(integers, 2, "{model}: {:?}", a.nodes);
        }
        // Keys are split over as many workgroups as without the option.
        let parts = |k: &KernelGraph| -> Vec<Dim> {
            let of = |k: &wgfc_compiler::kernel::Kernel| match &k.family {
                Family::Attention(a) => Some(a.parts.clone()),
                _ => None,
            };
            k.kernels.iter().filter_map(of).collect()
        };
        let own = parts(&kernels_with(model, decoding_options()));
        assert!(own.iter().all(|n| !n.is(1)), "{own:?}");
        assert_eq!(parts(&k), own, "{model}");
    }
}

/// Decoding one token takes five dispatches per layer, and the output head.
#[test]
fn decoding() {
    for (model, layers) in
        [("qwen2-2l", 2), ("qwen2.5-0.5b", 24), ("qwen2.5-0.5b-f16", 24), ("phi3-shaped", 32)]
    {
        // A symbolic capacity costs nothing: no additional kernel, and the keys are still divided into parts.
        let mut tensors = vec![];
        for capacity in [Some(2048), None] {
            let k = kernels_with(model, Options { states: States::Auto { capacity }, ..decoding_options() });
            assert!(k.kernels.len() <= layers * 5 + 1, "{model}: {}\n{k}", k.kernels.len());
            tensors.push(k.tensors.len());
        }
        assert_eq!(tensors[0], tensors[1], "{model}");
    }
}

/// Each part of full fusion can be disabled: the rest still works, with more dispatches.
#[test]
fn parts_of_fusion_left_out() {
    let count = |without: &[Technique]| {
        let without = without.iter().copied().collect();
        kernels_with("qwen2-2l", Options { without, ..decoding_options() }).kernels.len()
    };
    let all = [Technique::Approximate, Technique::Merge, Technique::Epilogues, Technique::WaitingScales];
    let full = count(&[]);
    for t in all {
        assert!(count(&[t]) > full, "{t:?}: {} and {full}", count(&[t]));
    }
    // The parts of the keys belong to one dispatch.
    assert_eq!(count(&[Technique::KeyParts]), full);
}
