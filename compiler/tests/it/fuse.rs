//! Tests of which nodes fuse with which.

use wgfc_compiler::kernel::{Family, KernelGraph, StagedLoop};
use wgfc_compiler::passes::fuse;
use wgfc_compiler::{Fusion, Options};
use wgfc_ir::scalar::Scalar;
use wgfc_ir::{BinaryOp, Border, Builder, DType, Dim, Graph, Op, Poly, ReduceOp, TensorType, UnaryOp, Value};

fn options(fusion: Fusion) -> Options {
    Options { fusion, ..Options::default() }
}

fn dims(shape: &[&str]) -> Vec<Dim> {
    shape.iter().map(|d| Poly::parse(d).unwrap()).collect()
}

fn f32s(shape: &[&str]) -> TensorType {
    TensorType::new(DType::F32, dims(shape))
}

fn families(k: &KernelGraph) -> Vec<&'static str> {
    k.kernels.iter().map(|k| k.family.name()).collect()
}

fn output(g: &mut Graph, v: Value) {
    g.outputs.push(Border { name: format!("y{}", g.outputs.len()).into(), value: v });
}

/// A 3×3 convolution of images of `size`, padded with zeros.
fn conv(b: &mut Builder, x: Value, w: Value, size: [i64; 2]) -> Value {
    let windows = size.map(|n| wgfc_ir::build::WindowAxis {
        kernel: 3usize.into(),
        stride: 1,
        dilation: 1,
        pad: Dim::ONE,
        out: n.into(),
    });
    let u = b.unfold(x, &windows, Scalar::from_f64(DType::F32, 0.0)).unwrap();
    let c = wgfc_ir::Contract { a: vec![0, 1, 2, 3, 4, 5], b: vec![6, 1, 4, 5], out: vec![0, 6, 2, 3] };
    b.push(Op::Contract(c), &[u, w]).unwrap()
}

/// relu(conv(x, w) + b) + x with a 3×3 convolution: one product with everything else in its epilogue.
fn residual_conv(g: &mut Graph) {
    let x = g.add_input("x", f32s(&["n", "6", "9", "7"]));
    let w = g.add_input("w", f32s(&["6", "6", "3", "3"]));
    let bias = g.add_input("b", f32s(&["6"]));
    let mut b = Builder::new(g, "conv");
    let y = conv(&mut b, x, w, [9, 7]);
    let bias = b.unsqueeze(bias, &[1, 2]).unwrap();
    let y = b.binary(BinaryOp::Add, y, bias).unwrap();
    let zero = b.scalar(DType::F32, 0.0);
    let y = b.binary(BinaryOp::Max, y, zero).unwrap();
    let y = b.binary(BinaryOp::Add, y, x).unwrap();
    output(g, y);
}

#[test]
fn bias_activation_and_residual_join_the_product() {
    let mut g = Graph::new();
    residual_conv(&mut g);
    let full = fuse(&g, &options(Fusion::Full)).unwrap();
    assert_eq!(families(&full), ["matmul"], "{full}");
    let elementwise = fuse(&g, &options(Fusion::Elementwise)).unwrap();
    assert_eq!(families(&elementwise), ["matmul", "map"], "{elementwise}");
    let none = fuse(&g, &options(Fusion::None)).unwrap();
    assert_eq!(families(&none), ["matmul", "map", "map", "map"], "{none}");
}

/// A 3×3 convolution of `parts` slices of x, normalised and concatenated along the height.
fn conv_of_pieces(parts: i64) -> Graph {
    let mut g = Graph::new();
    let x = g.add_input("x", f32s(&["n", "16", "48", "40"]));
    let mean = g.add_input("mean", f32s(&["16", "1", "1"]));
    let w = g.add_input("w", f32s(&["32", "16", "3", "3"]));
    let mut b = Builder::new(&mut g, "conv");
    let rows = 48 / parts;
    let pieces: Vec<Value> = (0..parts)
        .map(|i| {
            let index =
                vec![Poly::var(0), Poly::var(1), &Poly::var(2) + (parts - 1 - i) * rows, Poly::var(3)];
            let shape = vec![Poly::sym("n"), 16i64.into(), rows.into(), 40i64.into()];
            let piece = b.view(x, shape, index).unwrap();
            b.binary(BinaryOp::Sub, piece, mean).unwrap()
        })
        .collect();
    let joined = b.concat(&pieces, 2).unwrap();
    let y = conv(&mut b, joined, w, [48, 40]);
    output(&mut g, y);
    g
}

#[test]
fn what_a_convolution_loads_is_cheap() {
    // Fused into the convolution, all slices would be computed for each of its nine loads.
    for parts in [4, 8] {
        let k = fuse(&conv_of_pieces(parts), &options(Fusion::Full)).unwrap();
        let product = k.kernels.iter().find(|k| matches!(k.family, Family::Matmul(_))).unwrap();
        assert!(product.reads().len() <= 3 && product.body.len() < 32, "{product}");
    }
    // A single subtraction is not worth a separate pass.
    let k = fuse(&conv_of_pieces(1), &options(Fusion::Full)).unwrap();
    assert_eq!(families(&k), ["matmul"], "{k}");
}

#[test]
fn chains_that_double_are_cut() {
    // Each step reads the previous one at two positions; fused into one kernel, that would be 2^30 loads.
    for moved in [false, true] {
        let mut g = Graph::new();
        let mut v = g.add_input("x", f32s(&["n + 64"]));
        let mut b = Builder::new(&mut g, "step");
        for i in 1..=30i64 {
            v = if moved {
                let shape = vec![&Poly::sym("n") + (64 - i)];
                let near = b.view(v, shape.clone(), vec![Poly::var(0)]).unwrap();
                let far = b.view(v, shape, vec![&Poly::var(0) + 1]).unwrap();
                b.binary(BinaryOp::Add, near, far).unwrap()
            } else {
                b.concat(&[v, v], 0).unwrap()
            };
        }
        output(&mut g, v);
        let k = fuse(&g, &options(Fusion::Full)).unwrap();
        let most = k.kernels.iter().map(|k| k.body.len()).max().unwrap();
        assert!(k.kernels.len() <= 30 && most < 10_000, "{} kernels, {most} expressions", k.kernels.len());
    }
}

#[test]
fn an_epilogue_passes_through_head_splitting() {
    let mut g = Graph::new();
    let x = g.add_input("x", f32s(&["b", "s", "30"]));
    let w = g.add_input("w", f32s(&["30", "42"]));
    let mut b = Builder::new(&mut g, "q");
    let y = b.matmul(x, w).unwrap();
    let y = b.reshape(y, dims(&["b", "s", "6", "7"])).unwrap();
    let y = b.transpose(y, &[0, 2, 1, 3]).unwrap();
    let y = b.unary(UnaryOp::Sigmoid, y).unwrap();
    output(&mut g, y);
    let k = fuse(&g, &options(Fusion::Full)).unwrap();
    assert_eq!(families(&k), ["matmul"], "{k}");
}

#[test]
fn a_product_of_two_branches_does_not_make_a_cycle() {
    let mut g = Graph::new();
    let x = g.add_input("x", f32s(&["5", "8"]));
    let w1 = g.add_input("w1", f32s(&["8", "8"]));
    let w2 = g.add_input("w2", f32s(&["8", "8"]));
    let mut b = Builder::new(&mut g, "m");
    let p = b.matmul(x, w1).unwrap();
    let q = b.matmul(p, w2).unwrap();
    // p·q cannot join p's kernel: q needs p first.
    let r = b.binary(BinaryOp::Mul, p, q).unwrap();
    let s = b.reduce(ReduceOp::Sum, r, &[1], false).unwrap();
    output(&mut g, s);
    let k = fuse(&g, &options(Fusion::Full)).unwrap();
    assert_eq!(families(&k), ["matmul", "matmul", "row"], "{k}");
}

#[test]
fn a_kernel_never_binds_more_than_the_device_has() {
    let mut g = Graph::new();
    let xs: Vec<Value> = (0..20).map(|i| g.add_input(&format!("x{i}"), f32s(&["7", "13"]))).collect();
    let mut b = Builder::new(&mut g, "sum");
    let mut y = xs[0];
    for x in &xs[1..] {
        y = b.binary(BinaryOp::Add, y, *x).unwrap();
    }
    let c = b.concat(&xs, 1).unwrap();
    output(&mut g, y);
    output(&mut g, c);
    let k = fuse(&g, &options(Fusion::Full)).unwrap();
    for kernel in &k.kernels {
        assert!(kernel.reads().len() + kernel.writes().len() <= 8, "{kernel}");
    }
}

#[test]
fn inputs_constants_and_repeated_outputs_are_copied() {
    let mut g = Graph::new();
    let x = g.add_input("x", f32s(&["3", "n"]));
    let mut b = Builder::new(&mut g, "id");
    let y = b.unary(UnaryOp::Neg, x).unwrap();
    let t = b.transpose(x, &[1, 0]).unwrap();
    let c = b.scalar(DType::F32, 2.0);
    for v in [x, y, y, t, c] {
        output(&mut g, v);
    }
    let k = fuse(&g, &options(Fusion::Full)).unwrap();
    // Kernels that read the same memory share a dispatch.
    assert_eq!(k.kernels.len(), 3, "{k}");
}

#[test]
fn a_constant_too_large_for_a_binding_is_cut() {
    let mut g = Graph::new();
    let x = g.add_input("x", f32s(&["7", "13"]));
    let mut b = Builder::new(&mut g, "add");
    let values: Vec<f32> = (0..91).map(|i| i as f32).collect();
    let c = b.constant(wgfc_ir::Tensor::from_f32(vec![7, 13], &values));
    let y = b.binary(BinaryOp::Add, x, c).unwrap();
    output(&mut g, y);
    let mut options = options(Fusion::Full);
    options.profile.max_binding_bytes = 256;
    let k = fuse(&g, &options).unwrap();
    let parts: Vec<Vec<f32>> = k
        .tensors
        .iter()
        .filter_map(|t| match &t.kind {
            wgfc_compiler::kernel::TensorKind::Const(t) => t.to_f32s(),
            _ => None,
        })
        .collect();
    assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [64, 27]);
    assert_eq!(parts.concat(), values);
}

/// tanh(h·w) with h [batch, n], repeated in a loop.
fn recurrence(batch: &str, n: &str) -> Graph {
    let mut body = Graph::new();
    let h = body.add_input("h", f32s(&[batch, n]));
    body.add_input("x", f32s(&[]));
    let w = body.add_input("w", f32s(&[n, n]));
    let mut b = Builder::new(&mut body, "step");
    let y = b.matmul(h, w).unwrap();
    let y = b.unary(UnaryOp::Tanh, y).unwrap();
    output(&mut body, y);
    let mut g = Graph::new();
    let all = [("h", f32s(&[batch, n])), ("x", f32s(&["100"])), ("w", f32s(&[n, n]))];
    let all = all.map(|(name, ty)| g.add_input(name, ty));
    let op = Op::Scan {
        body: Box::new(body),
        carried: 1,
        scanned: 1,
        reverse_inputs: vec![false],
        reverse_outputs: vec![],
    };
    let node = g.push(op, &all, &["the loop".into()]).unwrap();
    output(&mut g, node.into());
    g
}

#[test]
fn what_runs_a_lane_is_chosen_by_cost() {
    let made = |batch: &str, n: &str, cost: f64| {
        let mut options = options(Fusion::Full);
        options.profile.speeds.dispatch_cost = cost / 2.5;
        fuse(&recurrence(batch, n), &options).unwrap()
    };
    // With a few products per lane, an invocation runs each lane if there are enough lanes to fill the
    // device. With more products, a workgroup does.
    assert_eq!(families(&made("4096", "4", 10e-6)), ["loop"]);
    assert_eq!(families(&made("3", "48", 10e-6)), ["staged_loop"]);
    // A workgroup is estimated to be faster than one invocation.
    let k = made("1", "24", 10e-6);
    let Family::StagedLoop(StagedLoop { why, .. }) = &k.kernels[0].family else { panic!("{k}") };
    assert!(why.contains("is estimated to take an invocation"), "{why}");
    // With 4 MB of weights in every step, one workgroup takes longer than the whole device and another
    // dispatch.
    let k = made("1", "1024", 10e-6);
    let [repeat] = &k.repeats[..] else { panic!("{k}") };
    assert!(repeat.why.contains("a workgroup for each lane") && repeat.why.contains("dispatches"), "{k}");
    // A loop in one kernel is worth less where dispatches are nearly free.
    assert!(made("3", "256", 10e-6).repeats.is_empty());
    assert_eq!(made("3", "256", 0.1e-6).repeats.len(), 1);
}
