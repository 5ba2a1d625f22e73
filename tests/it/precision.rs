//! Models of f32 whose tensors are stored as f16.

use crate::backend::{Backend, run_session, session};
use crate::data::Folder;
use std::collections::BTreeMap;
use std::path::Path;
use wgfc::compiler::pipeline::compile_graph;
use wgfc::compiler::{Options, Precision, WeightBits};
use wgfc::generate::{Decoder, Generator, GeneratorOptions, Request};
use wgfc::runtime::Gpu;
use wgfc_ir::program::Stats;
use wgfc_ir::{
    BinaryOp, Border, Builder, DType, Dim, Graph, NormKind, Op, Poly, Program, Tensor, TensorType, UnaryOp,
    Value,
};

/// Numbers between -1 and 1.
fn numbers(shape: &[usize], scale: f32) -> Tensor {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let all: Vec<f32> = (0..shape.iter().product()).map(|_| scale * next()).collect();
    Tensor::from_f32(shape.to_vec(), &all)
}

/// |a - b| / |b|.
fn relative(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!((a.dtype, &a.shape), (b.dtype, &b.shape));
    let (a, b) = (a.to_f32s().unwrap(), b.to_f32s().unwrap());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut a.iter().zip(&b).filter(|(a, b)| a != b).map(|(a, b)| f64::from(a - b)));
    if error == 0.0 { 0.0 } else { error / norm(&mut b.iter().map(|b| f64::from(*b))) }
}

/// Options for a device, or for the default profile with f16 if there is none.
fn options(gpu: Option<&Gpu>, keep_f32: &[&str]) -> Options {
    let mut options = Options {
        precision: Precision::F16,
        keep_f32: keep_f32.iter().map(|n| (*n).to_owned()).collect(),
        ..Options::default()
    };
    match gpu {
        Some(gpu) => options.profile = options.profile.with_limits(gpu.profile()),
        None => options.profile.f16 = true,
    }
    options
}

fn compiled(g: &Graph, options: &Options) -> Program {
    compile_graph(g.clone(), Stats::default(), options, &mut |_, _| {}).unwrap()
}

/// Types of the weights of a program, by name.
fn weights(p: &Program) -> BTreeMap<&str, DType> {
    p.weights.iter().map(|(n, t)| (n.as_str(), t.dtype)).collect()
}

/// Runs a graph on all adapters and checks that the outputs are near the evaluator's.
fn near(g: &Graph, given: &BTreeMap<String, Tensor>, most: f64) {
    let want = wgfc_ir::eval::evaluate(g, given).unwrap();
    for gpu in &Backend::adapters() {
        let program = compiled(g, &options(Some(gpu), &[]));
        let got = run_session(&mut session(gpu, &program).unwrap(), given).unwrap();
        for ((got, want), o) in got.iter().zip(&want).zip(&g.outputs) {
            let error = relative(got, want);
            let name = &gpu.summary().name;
            assert!(error <= most, "{} on {name}: {error:e}\n{:?}", o.name, program.stats.halved);
        }
    }
}

fn node(g: &mut Graph, name: &str, f: impl FnOnce(&mut Builder<'_>) -> Value) -> Value {
    f(&mut Builder::new(g, name))
}

/// The graph `x[n, 96] · w[96, 160]`, a norm, `· v[160, 72]`, softmax.
fn layers(scale: f32) -> Graph {
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(DType::F32, vec![Dim::sym("n"), 96usize.into()]));
    let up = node(&mut g, "up", |b| {
        let w = b.constant(numbers(&[96, 160], scale));
        b.matmul(x, w).unwrap()
    });
    let norm = node(&mut g, "norm", |b| {
        let norm = Op::Norm { kind: NormKind::Layer, axes: vec![1], epsilon: 1e-5f32.to_bits() };
        b.push(norm, &[up]).unwrap()
    });
    let act = node(&mut g, "act", |b| {
        let s = b.unary(UnaryOp::Sigmoid, norm).unwrap();
        b.binary(BinaryOp::Mul, norm, s).unwrap()
    });
    let down = node(&mut g, "down", |b| {
        let v = b.constant(numbers(&[160, 72], 0.2));
        b.matmul(act, v).unwrap()
    });
    let y = node(&mut g, "softmax", |b| b.push(Op::Softmax { axis: 1, log: false }, &[down]).unwrap());
    g.outputs.push(Border { name: "y".into(), value: y });
    g
}

#[test]
fn layers_are_near_those_of_f32() {
    let g = layers(0.1);
    let p = compiled(&g, &options(None, &[]));
    let halved = p.stats.halved.as_ref().unwrap();
    assert_eq!((halved.weights, halved.kept.len()), (2, 0), "{halved:?}");
    assert!(halved.between >= 1, "{halved:?}");
    assert!(weights(&p).values().all(|t| *t == DType::F16), "{:?}", weights(&p));
    // On a device without f16, only weights are stored as f16.
    let plain = Options { precision: Precision::F16, ..Options::default() };
    let halved = compiled(&g, &plain).stats.halved.unwrap();
    assert_eq!((halved.weights, halved.between), (2, 0));
    for n in [1, 7, 33, 130] {
        near(&g, &[("x".to_owned(), numbers(&[n, 96], 2.0))].into(), 2e-2);
    }
}

#[test]
fn named_nodes_stay_f32() {
    let g = layers(0.1);
    let p = compiled(&g, &options(None, &["up"]));
    let halved = p.stats.halved.unwrap();
    assert_eq!(halved.weights, 1, "{halved:?}");
    assert!(halved.kept.iter().any(|k| k.why == "--keep-f32 up" && k.nodes.contains(&"up".to_owned())));
    let e = compile_graph(g, Stats::default(), &options(None, &["dwn"]), &mut |_, _| {}).unwrap_err();
    let text = e.to_string();
    assert!(text.contains("the model has no node \"dwn\" (--keep-f32 dwn)"), "{text}");
    assert!(text.contains("close names: down"), "{text}");
}

/// Values beyond the range of f16 stay f32, and results are correct.
#[test]
fn what_overflows_stays_f32() {
    let mut g = Graph::new();
    let n = 100_000usize;
    let x = g.add_input("x", TensorType::new(DType::F32, vec![n.into()]));
    let range = node(&mut g, "range", |b| b.iota(&[n.into()], Poly::var(0), DType::F32).unwrap());
    let scaled = node(&mut g, "scaled", |b| b.binary_scalar(BinaryOp::Mul, x, 1e5).unwrap());
    let mut big = numbers(&[n], 3.0).to_f32s().unwrap();
    big[77] = 1e6;
    let shifted = node(&mut g, "shifted", |b| {
        let big = b.constant(Tensor::from_f32(vec![n], &big));
        b.binary(BinaryOp::Add, x, big).unwrap()
    });
    let tiny = node(&mut g, "tiny", |b| {
        let tiny = b.constant(numbers(&[n], 1e-7));
        let t = b.binary(BinaryOp::Mul, x, tiny).unwrap();
        b.binary_scalar(BinaryOp::Mul, t, 1e7).unwrap()
    });
    let mask = node(&mut g, "mask", |b| {
        let zero = b.scalar(DType::F32, 0.0);
        let low = b.scalar(DType::F32, f64::from(f32::MIN));
        let positive = b.binary(BinaryOp::Gt, x, zero).unwrap();
        b.select(positive, zero, low).unwrap()
    });
    for (name, v) in
        [("range", range), ("scaled", scaled), ("shifted", shifted), ("tiny", tiny), ("mask", mask)]
    {
        // Without fusion another kernel reads the value again.
        let y = node(&mut g, &format!("{name}_after"), |b| b.binary_scalar(BinaryOp::Mul, v, 0.5).unwrap());
        g.outputs.push(Border { name: format!("{name}.out").as_str().into(), value: y });
    }
    let given = BTreeMap::from([("x".to_owned(), numbers(&[n], 1.0))]);
    let want = wgfc_ir::eval::evaluate(&g, &given).unwrap();
    let unfused = |gpu: Option<&Gpu>| Options { fusion: wgfc::Fusion::None, ..options(gpu, &[]) };
    let halved = compiled(&g, &unfused(None)).stats.halved.unwrap();
    for (node, why) in [
        ("range", "whole numbers beyond 2048"),
        ("scaled", "its values may reach 1.600e6 where"),
        ("shifted", "its values reach from"),
        ("tiny", "its values are too small"),
        ("mask", "its values may reach 3.403e38"),
    ] {
        let found = halved.kept.iter().any(|k| k.why.contains(why) && k.nodes.iter().any(|n| n == node));
        assert!(found || node == "range", "{node}: {halved:?}");
    }
    for gpu in &Backend::adapters() {
        for options in [options(Some(gpu), &[]), unfused(Some(gpu))] {
            let program = compiled(&g, &options);
            let got = run_session(&mut session(gpu, &program).unwrap(), &given).unwrap();
            for ((got, want), o) in got.iter().zip(&want).zip(&g.outputs) {
                let all = got.to_f32s().unwrap();
                assert!(all.iter().all(|v| v.is_finite()), "{} on {}", o.name, gpu.summary().name);
                let error = relative(got, want);
                assert!(error < 2e-3, "{} on {}: {error:e}", o.name, gpu.summary().name);
                if o.name.starts_with("range") {
                    assert_eq!(all, want.to_f32s().unwrap());
                }
            }
        }
    }
}

#[test]
fn small_models_are_near_those_of_f32() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small");
    for folder in Folder::all(&root) {
        let file = wgfc::source::ModelFile::open(&folder.model_path()).unwrap();
        // On a device without f16 only weights are f16, for which a few models are enough.
        let told = |gpu: &&Gpu| gpu.profile().f16 || ["conv", "mlp"].contains(&folder.name.as_str());
        for gpu in Backend::adapters().iter().filter(told) {
            let program = file.compile(&options(Some(gpu), &[])).unwrap();
            let mut session = session(gpu, &program).unwrap();
            for n in 0..folder.data_sets() {
                let data = folder.data_set(n).unwrap();
                let given = program.inputs.iter().map(|p| p.name.clone()).zip(data.inputs).collect();
                let got = run_session(&mut session, &given).unwrap();
                for ((got, want), port) in got.iter().zip(&data.outputs).zip(&program.outputs) {
                    let at = format!("{}: {} on {}", folder.name, port.name, gpu.summary().name);
                    if want.dtype.is_float() {
                        let error = relative(got, want);
                        assert!(error < 2e-2, "{at}: {error:e}");
                    } else {
                        assert_eq!(got, want, "{at}");
                    }
                }
            }
        }
    }
}

#[test]
fn caches_of_decoders_are_f16() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
    let decoder = Decoder::open(&path).unwrap();
    for gpu in Backend::adapters() {
        let mut tokens = vec![];
        let mut memory = vec![];
        for precision in [Precision::F32, Precision::F16] {
            let options = GeneratorOptions { capacity: 64, precision, ..GeneratorOptions::default() };
            let mut generator = Generator::on_device(gpu.clone(), &decoder, &options).unwrap();
            let request = Request { max_new_tokens: 12, ..Request::default() };
            let all: Result<Vec<i64>, _> = generator.generate(&[3, 1, 36], &request).unwrap().collect();
            tokens.push(all.unwrap());
            memory.push(generator.device_memory().states);
        }
        assert_eq!(tokens[0], tokens[1], "{}", gpu.summary().name);
        assert!(memory[1] < memory[0], "{memory:?}");
    }
}

/// A sum beyond the range of f16 is reported.
#[test]
fn outputs_that_overflow_are_told() {
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(DType::F32, vec![64usize.into(), 500usize.into()]));
    let y = node(&mut g, "sum", |b| {
        let w = b.constant(Tensor::from_f32(vec![500, 70], &[1.0; 35000]));
        b.matmul(x, w).unwrap()
    });
    let z = node(&mut g, "after", |b| b.binary_scalar(BinaryOp::Mul, y, 0.5).unwrap());
    g.outputs.push(Border { name: "z".into(), value: z });
    for gpu in Backend::adapters().iter().filter(|gpu| gpu.profile().f16) {
        for (precision, keep, value, told) in [
            (Precision::F16, &[][..], 200.0, true),
            (Precision::F16, &[], 100.0, false),
            (Precision::F16, &["sum"], 200.0, false),
            (Precision::F32, &[], 200.0, false),
        ] {
            let options = Options { fusion: wgfc::Fusion::None, precision, ..options(Some(gpu), keep) };
            let program = compiled(&g, &options);
            let x = Tensor::from_f32(vec![64, 500], &[value; 32000]);
            let given = BTreeMap::from([("x".to_owned(), x)]);
            let got = run_session(&mut session(gpu, &program).unwrap(), &given).unwrap();
            let said = wgfc::overflow::overflow(&program, [("z", &got[0])]);
            assert_eq!(said.is_some(), told, "{precision:?} {keep:?} {value}: {said:?}");
            assert_eq!(got[0].to_f32s().unwrap()[0].is_finite(), !told);
        }
    }
}

/// Training in f16 gives a warning that gradients may vanish.
#[test]
fn states_that_change_are_told() {
    for (n, told) in [(5000, true), (50, false)] {
        let text = "graph (x: %0) -> (y: %3) {
            state s: %1 -> %3
            %0 = input : f32[N] as \"x\"
            %1 = input : f32[N] as \"s\"
            %2 = map [N] { tanh(a0) } (%0) : f32[N]
            %3 = map [N] { add(a0, a1) } (%1, %2) : f32[N]
        }";
        let g = wgfc_ir::text::parse(&text.replace('N', &n.to_string())).unwrap();
        let options = Options { fusion: wgfc::Fusion::None, ..options(None, &[]) };
        let warnings = compiled(&g, &options).stats.warnings;
        assert_eq!(warnings.iter().any(|w| w.contains("gradients may be too small")), told, "{warnings:?}");
    }
}

/// A table that is both indexed and multiplied with, as a weight that is read directly and transposed.
fn tied(rows: usize, columns: usize) -> Graph {
    let mut g = Graph::new();
    let i = g.add_input("i", TensorType::new(DType::I64, vec![Dim::sym("n")]));
    let mut b = Builder::new(&mut g, "all");
    let table = b.constant(numbers(&[rows, columns], 1.0));
    let x = b.take(table, i, 0).unwrap();
    let w = b.constant(numbers(&[columns, columns], 0.1));
    let x = b.matmul(x, w).unwrap();
    let columns = b.transpose(table, &[1, 0]).unwrap();
    let y = b.matmul(x, columns).unwrap();
    g.outputs.push(Border { name: "y".into(), value: y });
    g
}

#[test]
fn weights_of_few_bits_are_near() {
    let g = tied(130, 96);
    // Rows that begin inside a byte and end with a partial block.
    let odd = tied(131, 97);
    for (n, g) in [(1usize, &g), (5, &g), (70, &g), (5, &odd), (70, &odd)] {
        let rows: Vec<i64> = (0..n as i64).map(|i| i * 37 % 130).collect();
        let given = BTreeMap::from([("i".to_owned(), Tensor::from_i64(vec![n], &rows))]);
        let want = wgfc_ir::eval::evaluate(g, &given).unwrap();
        for (weights, most) in [(WeightBits::Q8, 2e-2), (WeightBits::Q4, 0.25)] {
            for gpu in &Backend::adapters() {
                for precision in [Precision::F32, Precision::F16] {
                    let options = Options { weights, precision, ..options(Some(gpu), &[]) };
                    let program = compiled(g, &options);
                    let q = program.stats.quantised.unwrap();
                    assert_eq!((q.weights, q.bits), (2, weights.bits()));
                    assert!(
                        q.bytes * 3 < q.bytes_before && q.relative_error < most && q.worst > 0.0,
                        "{q:?}"
                    );
                    let got = run_session(&mut session(gpu, &program).unwrap(), &given).unwrap();
                    let error = relative(&got[0], &want[0]);
                    let name = &gpu.summary().name;
                    assert!(error < most, "{weights:?} {precision:?} of {n} on {name}: {error:e}");
                }
            }
        }
    }
    let kept = Options { weights: WeightBits::Q4, keep_f32: vec!["all".into()], ..Options::default() };
    assert_eq!(compiled(&g, &kept).stats.quantised.unwrap().weights, 0);
    let e = Options { keep_f32: vec!["al".into()], ..kept };
    let e = compile_graph(g, Stats::default(), &e, &mut |_, _| {}).unwrap_err().to_string();
    assert!(e.contains("the model has no node \"al\" (--keep-f32 al)"), "{e}");
}
