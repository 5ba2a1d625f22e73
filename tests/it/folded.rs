//! What the compiler computes so that no run has to.

use wgfc_compiler::fuse::fuse;
use wgfc_compiler::kernel::{Kernel, TensorKind};
use wgfc_compiler::pipeline::fuse_amended;
use wgfc_compiler::{Fusion, Options};
use wgfc_ir::{BinaryOp, Border, Builder, DType, Dim, Graph, Op, ReduceOp, Tensor, TensorType};

/// What depends on weights alone is no kernel, whether they are there or not. Steps of split loops read what they are
/// given.
#[test]
fn nothing_is_computed_from_constants_alone() {
    let model = include_bytes!("../../fixtures/small/recurrent/model.onnx");
    for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Full] {
        let mut counts = vec![];
        for graph_only in [false, true] {
            let options = Options { graph_only, fusion, ..Options::default() };
            let no_files = wgfc_compiler::import::NoExternalData;
            let fused = fuse_amended(model, &no_files, &options, &mut |_| Ok(()), &mut |_, _| {});
            let kernels = fused.unwrap().kernels;
            let fixed = |k: &Kernel| {
                let constant = |t: &usize| matches!(kernels.tensors[*t].kind, TensorKind::Const(_));
                !k.reads().is_empty() && k.reads().iter().all(constant) && k.symbols().is_empty()
            };
            let of_step = |i: usize| kernels.repeats.iter().any(|r| r.kernels.contains(&i));
            let mut outside = kernels.kernels.iter().enumerate().filter(|(i, _)| !of_step(*i));
            assert!(!outside.any(|(_, k)| fixed(k)), "{fusion:?}: {kernels}");
            counts.push(kernels.kernels.len());
        }
        assert_eq!(counts[0], counts[1], "{fusion:?}");
    }
}

/// A table that is larger than what it is made from stays what computes it.
#[test]
fn programs_do_not_grow_by_what_is_folded() {
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(DType::F32, vec![2048usize.into(), Dim::sym("n")]));
    let mut b = Builder::new(&mut g, "table");
    let row = b.constant(Tensor::from_f32(
        vec![2048],
        &(0..2048).map(|i| 1.0 - i as f32 / 4096.0).collect::<Vec<f32>>(),
    ));
    let column = b.reshape(row, vec![2048usize.into(), Dim::ONE]).unwrap();
    let table = b.binary(BinaryOp::Pow, row, column).unwrap();
    let sums = b
        .push(Op::PrefixScan { op: ReduceOp::Sum, axis: 1, exclusive: false, reverse: false }, &[table])
        .unwrap();
    let y = b.matmul(sums, x).unwrap();
    g.outputs.push(Border { name: "y".into(), value: y });
    let kernels = fuse(&g, &Options::default()).unwrap();
    let bytes = |k: &TensorKind| if let TensorKind::Const(t) = k { t.dtype.bytes_for(t.numel()) } else { 0 };
    let all: usize = kernels.tensors.iter().map(|t| bytes(&t.kind)).sum();
    assert!(all < 1 << 18, "{all} bytes of constants");
    assert!(kernels.kernels.len() > 1, "{kernels}");
}
