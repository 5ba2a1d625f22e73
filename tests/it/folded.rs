//! Values that are computed at compile time instead of in every run.

use crate::backend::{Backend, run_session, session};
use std::collections::BTreeMap;
use wgfc_compiler::kernel::{Kernel, TensorKind};
use wgfc_compiler::lower::Lowering;
use wgfc_compiler::lower::sample::{GridSample, Mode, Padding, grid_sample};
use wgfc_compiler::passes::fuse;
use wgfc_compiler::pipeline::{compile_graph, fuse_amended};
use wgfc_compiler::{Fusion, Options};
use wgfc_ir::{BinaryOp, Border, Builder, DType, Dim, Graph, Op, ReduceOp, Tensor, TensorType};
use wgfc_selftest::{Tolerance, equal};

/// No kernel depends on weights alone, whether or not the weights' values are available. Exempt are kernels
/// in the steps of split loops, which read the tensors that they are given.
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

/// A constant table larger than its inputs is computed at run time instead of being stored.
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

/// Grid samples at constant coordinates that are whole numbers. If the fraction were folded at compile time
/// and the floor computed on the device, rounding could make them belong to neighbouring pixels.
#[test]
fn what_devices_round_is_not_folded_in_part() {
    const N: usize = 8;
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(DType::F32, [N * N, 1, N, N].map(Dim::from).to_vec()));
    let mut cx = Lowering::new(&mut g);
    let numbers = |shape: Vec<usize>, f: &dyn Fn(usize) -> f32| {
        let all: Vec<f32> = (0..shape.iter().product()).map(f).collect();
        Tensor::from_f32(shape, &all)
    };
    let places = numbers(vec![N * N, 1, 1, 2], &|i| if i % 2 == 0 { i / 2 % N } else { i / 2 / N } as f32);
    let offsets = numbers(vec![1, 7, 7, 2], &|i| if i % 2 == 0 { i / 14 } else { i / 2 % 7 } as f32 - 3.0);
    let (places, offsets) = (cx.constant(places), cx.constant(offsets));
    let at = cx.binary(BinaryOp::Add, places, offsets).unwrap();
    let at = cx.binary_scalar(BinaryOp::Mul, at, 2.0).unwrap();
    let at = cx.binary_scalar(BinaryOp::Quot, at, N as f64 - 1.0).unwrap();
    let grid = cx.binary_scalar(BinaryOp::Sub, at, 1.0).unwrap();
    let p = GridSample { mode: Mode::Linear, padding: Padding::Zeros, align_corners: true };
    let y = grid_sample(&mut cx, x, grid, &p).unwrap();
    g.outputs.push(Border { name: "y".into(), value: y });

    let x = numbers(vec![N * N, 1, N, N], &|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0);
    let given = BTreeMap::from([("x".to_owned(), x)]);
    let want = wgfc_ir::eval::evaluate(&g, &given).unwrap();
    let options = Options::default();
    let program = compile_graph(g, Default::default(), &options, &mut |_, _| {}).unwrap();
    for gpu in &Backend::adapters() {
        let got = run_session(&mut session(gpu, &program).unwrap(), &given).unwrap();
        equal(&got[0], &want[0], Tolerance { rtol: 1e-5, atol: 1e-5 }).unwrap();
    }
}
