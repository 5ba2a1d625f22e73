//! Models that ask for the impossible, such as enormous tensors. Each is refused at once, with an error that
//! says whose fault it is and without allocating the memory, or its cost is bounded.

use crate::backend::{Backend, run_session, session};
use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;
use wgfc::{Model, ModelFile, Options, Place, Tensor};
use wgfc_compiler::import::onnx::*;
use wgfc_compiler::import::{NoExternalData, check};
use wgfc_compiler::{Errors, Fusion, Kind, compile};
use wgfc_ir::eval::{Limits, evaluate_within};
use wgfc_selftest::{Tolerance, equal};

fn repro(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read(root.join(format!("fixtures/repro/{name}.onnx"))).expect("a fixture")
}

fn refusal(bytes: &[u8]) -> Errors {
    match compile(bytes, &NoExternalData, &Options::default()) {
        Ok(_) => panic!("it compiles"),
        Err(e) => e,
    }
}

#[test]
fn what_cannot_be_is_the_models_fault() {
    for (name, kind, says) in [
        ("loop_2_62", Kind::Model, "i64[4611686018427387904] has more than 2^40 elements"),
        ("pad_edge0", Kind::Model, "mode `edge` has nothing to repeat along axis 0 of f32[0]"),
        ("dup-outputs", Kind::Model, "is listed twice"),
        ("resize", Kind::Model, "has more than 2^40 elements"),
        ("loops-10", Kind::Unsupported, "branches and bodies of loops are nested more than 8 deep"),
    ] {
        let errors = refusal(&repro(name));
        let hit = errors.0.iter().find(|d| d.message.contains(says));
        let d = hit.unwrap_or_else(|| panic!("{name}: {errors}"));
        assert_eq!(d.kind, kind, "{name}: {errors}");
        assert!(errors.0.iter().all(|d| d.kind != Kind::Internal), "{name}: {errors}");
        assert!(d.location.node.is_some() || d.location.part.is_some(), "{name}: {errors}");
    }
}

#[test]
fn windows_of_any_size_end_with_their_tensor() {
    let numbers: Vec<f32> = (0..64).map(|i| i as f32 - 32.0).collect();
    for (name, shape, want) in [
        ("pool_kernel_1e6", vec![1, 1, 8, 8], Tensor::from_f32(vec![1, 1, 9, 9], &[31.0; 81])),
        ("lrn_size", vec![1, 4, 4, 4], Tensor::from_f32(vec![1, 4, 4, 4], &numbers)),
    ] {
        let program = compile(&repro(name), &NoExternalData, &Options::default()).unwrap();
        let x = Tensor::from_f32(shape, &numbers);
        for gpu in Backend::adapters() {
            let inputs = BTreeMap::from([("x".to_owned(), x.clone())]);
            let got = run_session(&mut session(&gpu, &program).unwrap(), &inputs).unwrap();
            equal(&got[0], &want, Tolerance { rtol: 1e-5, atol: 1e-5 })
                .unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

/// A model with `count` functions, each of which calls the next one `times` times.
fn calls(count: usize, times: usize) -> Vec<u8> {
    let set = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    let node = |op: String, domain: &str, from: &str, to: &str| NodeProto {
        op_type: op,
        domain: domain.into(),
        input: vec![from.into()],
        output: vec![to.into()],
        ..Default::default()
    };
    let function = |i: usize| FunctionProto {
        name: format!("F{i}"),
        domain: "f".into(),
        input: vec!["x".into()],
        output: vec!["y".into()],
        opset_import: vec![set("", 21), set("f", 1)],
        node: if i + 1 == count {
            vec![node("Relu".into(), "", "x", "y")]
        } else {
            let inner = (1..times).map(|t| node(format!("F{}", i + 1), "f", "x", &format!("t{t}")));
            inner.chain([node(format!("F{}", i + 1), "f", "x", "y")]).collect()
        },
        ..Default::default()
    };
    let extent = DimensionProto { value: Some(DimensionValue::Value(3)) };
    let ty = TensorTypeProto { elem_type: 1, shape: Some(TensorShapeProto { dim: vec![extent] }) };
    let port = |name: &str, ty| ValueInfoProto { name: name.into(), r#type: ty };
    let ty = TypeProto { value: Some(TypeValue::Tensor(ty)) };
    let graph = GraphProto {
        node: vec![node("F0".into(), "f", "x", "y")],
        name: "g".into(),
        input: vec![port("x", Some(ty))],
        output: vec![port("y", None)],
        ..Default::default()
    };
    let model = ModelProto {
        ir_version: 10,
        graph: Some(graph),
        opset_import: vec![set("", 21), set("f", 1)],
        functions: (0..count).map(function).collect(),
        ..Default::default()
    };
    model.encode_to_vec()
}

#[test]
fn functions_that_call_one_another_are_bounded() {
    assert!(compile(&calls(60, 1), &NoExternalData, &Options::default()).is_ok());
    let deep = calls(20_000, 1);
    let says = "functions, branches and bodies of loops are nested more than 64 deep";
    assert!(refusal(&deep).to_string().contains(says));
    let report = check(&deep, &NoExternalData, &Options::default());
    assert!(report.errors.iter().any(|d| d.message.contains(says)), "{:?}", report.errors);
}

#[test]
fn an_extent_of_zero_needs_no_kernel() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mlp = std::fs::read(root.join("fixtures/small/mlp/model.onnx")).expect("a fixture");
    for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Full] {
        let dims = [("batch".to_owned(), 0)].into();
        for (bytes, dims) in [(&mlp, dims), (&repro("matmul-0"), BTreeMap::new())] {
            let options = Options { fusion, dims, ..Options::default() };
            let program = compile(bytes, &NoExternalData, &options).expect("it compiles");
            assert_eq!(program.dispatches.len(), 0, "{fusion:?}");
            for gpu in Backend::adapters() {
                let shape: Option<Vec<usize>> =
                    program.inputs[0].shape.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect();
                let x = Tensor::zeros(program.inputs[0].dtype, shape.expect("extents are known"));
                let given = [(program.inputs[0].name.clone(), x)].into();
                let mut session = session(&gpu, &program).expect("a session");
                let out = run_session(&mut session, &given).expect("it runs");
                assert_eq!(out[0].numel(), 0);
            }
        }
    }
}

#[test]
fn the_evaluator_asks_for_memory_before_it_takes_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = ModelFile::open(&root.join("fixtures/small/mlp/model.onnx")).expect("a fixture");
    let imported = file.import(&Options::default()).expect("it imports");
    let given: BTreeMap<String, Tensor> =
        [("x".to_owned(), Tensor::zeros(wgfc::DType::F32, vec![1000, 13]))].into();
    let with =
        |bytes, work| evaluate_within(&imported.graph, &given, Limits { bytes, work, ..Limits::default() });
    assert!(with(1 << 20, u64::MAX).is_ok());
    assert!(with(100_000, u64::MAX).unwrap_err().to_string().contains("the evaluator may use 0 MB"));
    assert!(with(1 << 20, 1000).unwrap_err().to_string().contains("longer than it may"));
    // An operation on a tensor without elements also counts as work, as does an endless loop of it.
    let none: BTreeMap<String, Tensor> =
        [("x".to_owned(), Tensor::zeros(wgfc::DType::F32, vec![0, 13]))].into();
    let few = Limits { work: 10, ..Limits::default() };
    assert!(
        evaluate_within(&imported.graph, &none, few).unwrap_err().to_string().contains("longer than it may")
    );
    assert!(evaluate_within(&imported.graph, &none, Limits { work: 10_000, ..few }).is_ok());
}

#[test]
fn an_edited_folder_is_the_folders_fault() {
    let Some(_) = Backend::adapters().first() else {
        return crate::skip("an_edited_folder_is_the_folders_fault", "there is no adapter");
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = ModelFile::open(&root.join("fixtures/small/mlp/model.onnx")).expect("a fixture");
    let program = file.compile(&Options::default()).expect("it compiles");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("mlp");
    wgfc::save(&program, &dir, &Default::default()).expect("it is written");
    let kernel = dir.join("kernels").join(format!("{}.wgsl", program.kernels[0].name));
    let text = std::fs::read_to_string(&kernel).expect("a kernel");
    std::fs::write(&kernel, text.replace("@compute", "fn other() -> u32 { return nothing; }\n@compute"))
        .expect("it is written");
    let e = Model::load(&dir, &Options::default(), Place::default()).err().expect("it is refused");
    assert_eq!(e.class(), wgfc::ErrorClass::Model, "{e}");
    assert!(e.to_string().contains("edited or damaged"), "{e}");
}
