//! Sizes that a model requires, wrongly declared sizes, and indices out of bounds.

use super::{fixture, folder, wgfc};
use prost::Message;
use wgfc::DType::{F32, I64};
use wgfc::runtime::Gpu;
use wgfc::{Tensor, npy};
use wgfc_compiler::import::onnx::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TypeProto, ValueInfoProto,
};

#[test]
fn a_choice_by_shape_is_made_for_the_inputs_given() {
    let dir = folder();
    let model = fixture("repro/if_squeeze.onnx");
    for n in [1, 4] {
        let x = Tensor::from_f32(vec![2, 3, n], &vec![1.0; 6 * n]);
        npy::write(&x, &dir.path().join(format!("x{n}.npy"))).unwrap();
        let ran = wgfc(dir.path(), &format!("run|{model}|--cpu|--input|x=x{n}.npy")).exits(0);
        let shape = if n == 1 { "f32[2, 3]" } else { "f32[2, 3, 4]" };
        ran.prints(shape).says(&format!("n = {n}")).says("sizes of the inputs");
    }
    // Without sizes there is one error, which names the missing size; errors in the branches are not
    // reported.
    let open = wgfc(dir.path(), &format!("check|{model}")).exits(2).says("not known: n").says("--dim");
    assert!(!open.err.contains("Squeeze"), "{}", open.err);
    wgfc(dir.path(), &format!("check|{model}|--dim|n=4")).exits(0).prints("everything in it is supported");
    wgfc(dir.path(), &format!("check|{model}|--like|x1.npy")).exits(0).prints("f32[2, 3]");
    wgfc(dir.path(), &format!("check|{model}|--like|x=x4.npy")).exits(0).prints("f32[2, 3, 4]");
    wgfc(dir.path(), &format!("check|{model}|--like|y=x4.npy")).exits(1).says("`y`");
    wgfc(dir.path(), &format!("inspect|{model}|--like|x4.npy")).exits(0);
}

/// A pyramid of five halvings, each then doubled and added to the level above.
#[test]
fn extents_that_do_not_fit_come_with_those_that_do() {
    let dir = folder();
    let model = fixture("repro/pyramid.onnx");
    for (h, w) in [(75, 96), (64, 96)] {
        let x = Tensor::from_f32(vec![1, 1, h, w], &vec![1.0; h * w]);
        npy::write(&x, &dir.path().join(format!("x{h}.npy"))).unwrap();
    }
    let fits = "may be any multiple of 32: 64 or 96 instead of 75";
    wgfc(dir.path(), &format!("run|{model}|--cpu|--input|x64.npy")).exits(0);
    let ran = wgfc(dir.path(), &format!("run|{model}|--cpu|--input|x75.npy")).exits(1).says(fits);
    ran.says("lateral4").says("height (axis 2 of input \"x\")").says("(here 5)").says("(here 6)");
    for command in ["check", "inspect", "compile|-o|program"] {
        let (name, rest) =
            command.split_once('|').map_or((command, String::new()), |(n, r)| (n, format!("|{r}")));
        let open = wgfc(dir.path(), &format!("{name}|{model}|--dim|height=75{rest}")).exits(1).says(fits);
        open.says("lateral4");
        wgfc(dir.path(), &format!("{name}|{model}|--dim|height=75|--dim|width=100{rest}"))
            .exits(1)
            .says(fits)
            .says("may be any multiple of 32: 96 or 128 instead of 100");
    }
    if !Gpu::adapters_blocking().iter().any(|a| a.is_software) {
        return;
    }
    wgfc(dir.path(), &format!("compile|{model}|-o|open")).exits(0);
    wgfc(dir.path(), "run|open|--adapter|software|--input|x75.npy").exits(1).says(fits).says("(here 6)");
    wgfc(dir.path(), "run|open|--adapter|software|--input|x64.npy").exits(0);
}

#[test]
fn models_that_were_wrong_or_refused() {
    let dir = folder();
    let run = |name: &str, rest: &str| {
        wgfc(dir.path(), &format!("run|{}|--cpu|--json{rest}", fixture(&format!("repro/{name}.onnx"))))
    };
    npy::write(&Tensor::from_f32(vec![4, 4], &[1.0; 16]), &dir.path().join("x.npy")).unwrap();
    let zeros = run("trilu", "|--input|x=x.npy|-o|out").exits(0);
    assert_eq!(
        npy::read(&dir.path().join("out/y.npy")).unwrap().to_f32s(),
        Some(vec![0.0; 16]),
        "{}",
        zeros.out
    );
    run("int64-wrap", "|-o|out").exits(0);
    assert_eq!(npy::read(&dir.path().join("out/y.npy")).unwrap().to_i64s(), Some(vec![0]));
    run("range_float", "|--input|x=zeros|--dim|b=1|--dim|n=3|-o|out").exits(0);
    assert_eq!(npy::read(&dir.path().join("out/y.npy")).unwrap().to_f32s(), Some(vec![0.0, 1.0, 2.0]));
    npy::write(&Tensor::from_f32(vec![2, 1, 2], &[1.0; 4]), &dir.path().join("x.npy")).unwrap();
    let declared =
        wgfc(dir.path(), &format!("run|{}|--cpu|--input|x=x.npy", fixture("repro/declared_rank.onnx")));
    declared.exits(0).prints("f32[2, 1, 2]").says("declared with rank 2");
}

#[test]
fn indices_outside_are_reported() {
    let dir = folder();
    let model = fixture("repro/gather.onnx");
    let far = [3, 1 << 32, -1, -11, 10];
    npy::write(&Tensor::from_i64(vec![5], &far), &dir.path().join("x.npy")).unwrap();
    wgfc(dir.path(), &format!("run|{model}|--cpu|--input|x=x.npy|-o|out")).exits(0);
    let y = npy::read(&dir.path().join("out/y.npy")).unwrap();
    assert_eq!(y.to_f32s(), Some(vec![103.0, 109.0, 109.0, 100.0, 109.0]));
    wgfc(dir.path(), &format!("run|{model}|--cpu|--input|x=x.npy|--check-indices"))
        .exits(1)
        .says("(Gather)")
        .says("4294967296 at [1] (the axis has 10), -11 at [3] (the axis has 10), 10 at [4]");
    npy::write(&Tensor::from_i64(vec![2], &[9, -10]), &dir.path().join("x.npy")).unwrap();
    wgfc(dir.path(), &format!("run|{model}|--cpu|--input|x=x.npy|--check-indices")).exits(0);
    // The second call of a function has the wrong index.
    let model = fixture("repro/gather-twice.onnx");
    npy::write(&Tensor::from_i64(vec![2], &[3, 7]), &dir.path().join("x.npy")).unwrap();
    wgfc(dir.path(), &format!("run|{model}|--cpu|--input|x=x.npy|--check-indices"))
        .exits(1)
        .says("node \"second/take\" (Gather): indices outside: 7 at [1] (the axis has 4)");
}

/// `y = Reshape(x, shape)` where `shape` is an input.
#[test]
fn values_that_decide_shapes_are_those_of_the_run() {
    let dir = folder();
    let node = NodeProto {
        op_type: "Reshape".into(),
        input: vec!["x".into(), "shape".into()],
        output: vec!["y".into()],
        ..Default::default()
    };
    let port = |name: &str, r#type| ValueInfoProto { name: name.into(), r#type };
    let graph = GraphProto {
        name: "g".into(),
        node: vec![node],
        input: vec![
            port("x", Some(TypeProto::of(F32, &[2, 6]))),
            port("shape", Some(TypeProto::of(I64, &[2]))),
        ],
        output: vec![port("y", None)],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { version: 20, ..Default::default() }];
    let model = ModelProto { ir_version: 9, opset_import, graph: Some(graph), ..Default::default() };
    std::fs::write(dir.path().join("m.onnx"), model.encode_to_vec()).unwrap();
    npy::write(&Tensor::from_f32(vec![2, 6], &[1.0; 12]), &dir.path().join("x.npy")).unwrap();
    for (shape, printed) in [([3, 4], "f32[3, 4]"), ([-1, 2], "f32[6, 2]")] {
        npy::write(&Tensor::from_i64(vec![2], &shape), &dir.path().join("shape.npy")).unwrap();
        let ran = wgfc(dir.path(), "run|m.onnx|--cpu|--input|x=x.npy|--input|shape=shape.npy").exits(0);
        ran.prints(printed).says("the value of shape");
        wgfc(dir.path(), "run|m.onnx|--cpu|--check-indices|--input|x=x.npy|--input|shape=shape.npy").exits(0);
    }
    npy::write(&Tensor::from_i64(vec![2], &[5, 2]), &dir.path().join("shape.npy")).unwrap();
    wgfc(dir.path(), "run|m.onnx|--cpu|--input|x=x.npy|--input|shape=shape.npy").exits(1).says("Reshape");
    // A random value must not decide a shape.
    wgfc(dir.path(), "run|m.onnx|--cpu|--random-inputs")
        .exits(2)
        .says("the data of input shape")
        .says("--fix");
}
