//! Tests of rendered errors for broken models.

use super::messages::*;
use super::testing::*;
use crate::Options;
use crate::import::{ExternalData, NoExternalData, import};
use prost::Message;
use std::fmt::Write;
use std::sync::Arc;
use wgfc_ir::DType::{F32, I64};
use wgfc_ir::tensor::ByteOwner;

fn x() -> Vec<ValueInfoProto> {
    vec![value("x", F32, "batch 7")]
}

fn one(n: NodeProto) -> ModelProto {
    model(graph(vec![n], x(), vec![untyped("y")]))
}

fn with(m: &ModelProto, f: impl FnOnce(&mut GraphProto)) -> ModelProto {
    let mut m = m.clone();
    f(m.graph.as_mut().unwrap());
    m
}

#[test]
fn rendered_errors() {
    let mut all = String::new();
    let mut case = |title: &str, text: String| write!(all, "# {title}\n{text}\n\n").unwrap();
    let relu = one(node("Relu", &["x"], &["y"]).named("act"));

    let mut broken = relu.encode_to_vec();
    broken.truncate(broken.len() - 3);
    case("cut short", import(&broken, &NoExternalData, &Options::default()).unwrap_err().to_string());
    case("future file format", errors(&ModelProto { ir_version: 99, ..relu.clone() }));
    let mut future = relu.clone();
    future.opset_import[0].version = 29;
    case("future opset", errors(&future));
    let mut old = one(node("LayerNormalization", &["x", "x"], &["y"]).named("ln"));
    old.opset_import[0].version = 13;
    case("old opset", errors(&old));
    case("no graph", errors(&ModelProto { graph: None, ..relu.clone() }));
    let unknown = vec![
        node("Frobnicate", &["x"], &["a"]).named("frob/0"),
        node("Frobnicate", &["a"], &["b"]).named("frob/1"),
        node("FancyNorm", &["b"], &["c"]).of("com.example"),
        node("MatMul", &["c", "missing"], &["y"]).named("mm"),
    ];
    let mut m = model(graph(unknown, x(), vec![untyped("y")]));
    m.opset_import.push(OperatorSetIdProto { domain: "com.example".into(), version: 1 });
    case("unsupported operators, all of them, and nothing that follows from them", errors(&m));
    case("unknown domain", errors(&one(node("Relu", &["x"], &["y"]).of("org.nobody"))));
    let nodes = vec![
        node("Neg", &["b"], &["d"]).named("behind it"),
        node("Add", &["x", "c"], &["b"]).named("first"),
        node("Relu", &["b"], &["c"]).named("second"),
    ];
    case("a cycle", errors(&model(graph(nodes, x(), vec![untyped("b"), untyped("d")]))));
    let nodes = vec![node("Relu", &["x"], &["y"]), node("Neg", &["x"], &["y"])];
    case("a name twice", errors(&model(graph(nodes, x(), vec![untyped("y")]))));
    case("no such output", errors(&with(&relu, |g| g.output = vec![untyped("z")])));
    case("wrong declared type", errors(&with(&relu, |g| g.output = vec![value("y", I64, "batch 7")])));
    case("inner dimensions", {
        let w = floats("w", &[5, 2], &[0.5; 10]);
        errors(&with(&one(node("MatMul", &["x", "w"], &["y"]).named("head")), |g| g.initializer = vec![w]))
    });
    case("wrong kind of attribute", errors(&one(node("Softmax", &["x"], &["y"]).float("axis", 1.0))));
    case("axis", errors(&one(node("Softmax", &["x"], &["y"]).int("axis", 2))));
    case("missing input", errors(&one(node("Add", &["x"], &["y"]))));
    case("missing attribute", errors(&one(node("Concat", &["x"], &["y"]))));
    case("a shape that depends on data", {
        let m = one(node("Reshape", &["x", "shape"], &["y"]).named("view"));
        errors(&with(&m, |g| g.input.push(value("shape", I64, "2"))))
    });
    case("impossible reshape", {
        let m = model(graph(
            vec![node("Reshape", &["a", "s"], &["y"])],
            vec![value("a", F32, "3 7")],
            vec![untyped("y")],
        ));
        errors(&with(&m, |g| g.initializer = vec![ints("s", &[2], &[4, -1])]))
    });
    case("an initializer of the wrong size", {
        let m = one(node("Add", &["x", "w"], &["y"]));
        errors(&with(&m, |g| g.initializer = vec![floats("w", &[7], &[1.0; 6])]))
    });
    case("an initializer of strings", {
        let m = one(node("Add", &["x", "w"], &["y"]));
        let w = TensorProto { name: "w".into(), data_type: data_type::STRING, ..Default::default() };
        errors(&with(&m, |g| g.initializer = vec![w]))
    });
    case("a sequence", {
        let t = TypeProto { value: Some(TypeValue::Sequence(ElemTypeProto::default())) };
        let v = ValueInfoProto { name: "x".into(), r#type: Some(t) };
        errors(&with(&relu, |g| g.input = vec![v]))
    });
    case("absurd dimensions", {
        let big = format!("{0} {0} {0}", 1i64 << 40);
        errors(&with(&relu, |g| g.input = vec![value("x", F32, &big)]))
    });
    case("a negative dimension", errors(&with(&relu, |g| g.input = vec![value("x", F32, "-7")])));
    let f = FunctionProto {
        name: "Twice".into(),
        domain: "local".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: vec![node("Twice", &["a"], &["b"]).of("local")],
        opset_import: vec![OperatorSetIdProto { domain: "local".into(), version: 1 }],
        ..Default::default()
    };
    let mut m = one(node("Twice", &["x"], &["y"]).of("local").named("call"));
    m.functions = vec![f];
    m.opset_import.push(OperatorSetIdProto { domain: "local".into(), version: 1 });
    case("a function that calls itself", errors(&m));
    let run =
        |options: Options| import(&relu.encode_to_vec(), &NoExternalData, &options).unwrap_err().to_string();
    case("no such tap", run(Options { taps: vec!["yy".into()], ..Default::default() }));
    case("no such dimension", run(Options { dims: [("seq".to_owned(), 3)].into(), ..Default::default() }));
    for one in all.split("\nerror").skip(1) {
        assert!(one.contains("\n  help: "), "this does not say what to do:\nerror{one}");
    }
    insta::assert_snapshot!(all);
}

struct Folder(Vec<u8>);
impl ExternalData for Folder {
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String> {
        if location == "w.bin" { Ok(Arc::new(self.0.clone())) } else { Err("no such file".into()) }
    }
}

fn external(entries: &[(&str, &str)]) -> ModelProto {
    let entry = |(k, v): &(&str, &str)| StringStringEntryProto { key: (*k).into(), value: (*v).into() };
    let w = TensorProto {
        name: "w".into(),
        dims: vec![7],
        data_type: data_type::code(F32),
        data_location: 1,
        external_data: entries.iter().map(entry).collect(),
        ..Default::default()
    };
    with(&one(node("Add", &["x", "w"], &["y"])), |g| g.initializer = vec![w])
}

#[test]
fn external_data_stays_inside_the_folder_and_the_file() {
    let try_it = |entries: &[(&str, &str)], graph_only| {
        let options = Options { graph_only, ..Default::default() };
        import(&external(entries).encode_to_vec(), &Folder(vec![0; 40]), &options)
            .map(|_| "ok".to_owned())
            .unwrap_or_else(|e| e.0.iter().map(|d| d.message.clone()).collect::<Vec<_>>().join("; "))
    };
    assert_eq!(try_it(&[("location", "w.bin"), ("offset", "12"), ("length", "28")], false), "ok");
    assert_eq!(try_it(&[("location", "gone.bin")], true), "ok");
    let mut all = String::new();
    for entries in [
        &[("location", "w.bin"), ("offset", "13"), ("length", "28")][..],
        &[("location", "w.bin"), ("length", "27")],
        &[("location", "w.bin"), ("offset", "18446744073709551615")],
        &[("location", "w.bin"), ("offset", "-1")],
        &[("location", "../w.bin")],
        &[("location", "a/../../w.bin")],
        &[("location", "/etc/passwd")],
        &[("location", "C:\\w.bin")],
        &[("location", "gone.bin")],
        &[("offset", "0")],
    ] {
        writeln!(all, "{}", try_it(entries, false)).unwrap();
    }
    insta::assert_snapshot!(all);
}

/// Errors about forbidden attributes and inputs name them, the node and the operator.
#[test]
fn forbidden_attributes_are_named() {
    let xy = |op: &str| node(op, &["x", "i"], &["y"]);
    let xyz = |op: &str| node(op, &["x", "i", "x"], &["y"]);
    let x1 = |op: &str| node(op, &["x"], &["y"]);
    let cases = [
        (x1("Einsum"), "equation"),
        (x1("Einsum").text("equation", "ijk->i"), "equation"),
        (x1("Einsum").text("equation", "ij->k"), "equation"),
        (x1("Einsum").int("equation", 1), "equation"),
        (node("BitShift", &["i", "i"], &["y"]), "direction"),
        (node("BitShift", &["i", "i"], &["y"]).text("direction", "UP"), "direction"),
        (xy("BitShift").text("direction", "LEFT"), ""),
        (x1("BitCast"), "to"),
        (x1("BitCast").int("to", 7), "to"),
        (x1("LpNormalization").int("p", 3), "p"),
        (x1("LpNormalization").int("axis", 2), ""),
        (x1("LpPool").ints("kernel_shape", &[2]), "input 0"),
        (x1("GlobalLpPool").int("p", 0), "p"),
        (x1("InstanceNormalization"), "input 0"),
        (node("GroupNormalization", &["x", "x", "x"], &["y"]), "num_groups"),
        (node("GroupNormalization", &["x", "x", "x"], &["y"]).int("num_groups", 3), "num_groups"),
        (x1("MeanVarianceNormalization").ints("axes", &[2]), "axes"),
        (xy("NegativeLogLikelihoodLoss").text("reduction", "max"), "reduction"),
        (xyz("SoftmaxCrossEntropyLoss"), "input 2"),
        (node("Det", &["i"], &["y"]), "input 0"),
        (x1("EyeLike").int("dtype", 8), "dtype"),
        (xy("ReverseSequence").int("time_axis", 2), "time_axis"),
        (xy("ReverseSequence").int("time_axis", 1), "batch_axis"),
        (node("OneHot", &["x", "n", "n"], &["y"]), "input 2"),
        (node("OneHot", &["x", "n", "w"], &["y"]).int("axis", 4), "axis"),
        (node("CenterCropPad", &["x", "w"], &["y"]).ints("axes", &[0, 0]), "axes"),
        (node("CenterCropPad", &["x", "w"], &["y"]).ints("axes", &[0]), "input 1"),
        (node("HannWindow", &["w"], &["y"]), "input 0"),
        (node("HannWindow", &["n"], &["y"]).int("output_datatype", 8), "output_datatype"),
        (node("Multinomial", &["x"], &["y"]).int("dtype", 1), "dtype"),
        (node("Bernoulli", &["i"], &["y"]), "input 0"),
        (node("RandomUniform", &[], &["y"]), "shape"),
    ];
    for (n, part) in cases {
        let mut m = model(graph(vec![n.clone().named("it")], x(), vec![untyped("y")]));
        m.opset_import[0].version = 27;
        let g = m.graph.as_mut().unwrap();
        g.input.push(value("i", I64, "batch"));
        g.initializer = vec![ints("n", &[], &[5]), ints("w", &[2], &[5, 7])];
        let e = match import_it(&m) {
            Ok(_) => panic!("{} imports without a word of {part}", n.op_type),
            Err(e) => e.to_string(),
        };
        assert!(
            e.contains("\"it\"") && e.contains(&n.op_type) && e.contains(part),
            "{}: {part}: {e}",
            n.op_type
        );
    }
}
