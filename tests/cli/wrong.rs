//! `wgfc reduce`, `wgfc report` and `wgfc compare` with saved tensors.

use super::{fixture, folder, mlp, wgfc};
use prost::Message;
use std::io::Read;
use std::path::Path;
use wgfc::compiler::import::decode;
use wgfc::compiler::import::onnx::*;
use wgfc::{DType, Tensor, npy};

fn read(path: &Path) -> ModelProto {
    decode(&std::fs::read(path).unwrap()).unwrap()
}

fn operators(m: &ModelProto) -> Vec<String> {
    fn all(nodes: &[NodeProto], found: &mut Vec<String>) {
        for n in nodes {
            found.push(n.op_type.clone());
            n.attribute.iter().filter_map(|a| a.g.as_ref()).for_each(|g| all(&g.node, found));
        }
    }
    let mut found = vec![];
    m.graph.iter().for_each(|g| all(&g.node, &mut found));
    found
}

/// Whether a graph contains the pattern of an injected fault.
fn has(fault: &str, g: &GraphProto) -> bool {
    let maker = |name: &str| g.node.iter().find(|n| n.output.iter().any(|o| o == name));
    let made_by = |name: &str, op: &str| maker(name).is_some_and(|n| n.op_type == op);
    let nodes = |op: &'static str| g.node.iter().filter(move |n| n.op_type == op);
    match fault {
        // A softmax of scores whose keys were transposed or scaled.
        "softmax" => nodes("Softmax").any(|n| {
            let mut from = maker(&n.input[0]);
            while let Some(n) = from.filter(|n| n.op_type != "MatMul") {
                from = n.input.iter().find_map(|i| maker(i));
            }
            from.is_some_and(|n| n.input.iter().any(|i| made_by(i, "Transpose") || made_by(i, "Mul")))
        }),
        "strided" => nodes("Relu").any(|n| {
            let strided = |a: &AttributeProto| a.name == "strides" && a.ints == [2, 2];
            maker(&n.input[0]).is_some_and(|c| c.op_type == "Conv" && c.attribute.iter().any(strided))
        }),
        "shared" => nodes("Mul").any(|n| {
            let twice = |i: &String| nodes("Mul").filter(|m| m.input.contains(i)).count() > 1;
            n.input.iter().any(|i| maker(i).is_some() && twice(i))
        }),
        "body" => nodes("Loop").any(|n| {
            let body = n.attribute.iter().find_map(|a| a.g.as_ref());
            body.is_some_and(|b| {
                let cos = |i: &String| b.node.iter().any(|n| n.op_type == "Cos" && n.output.contains(i));
                b.node.iter().any(|n| n.op_type == "Mul" && n.input.iter().any(cos))
            })
        }),
        "quantised" => nodes("Add").any(|n| n.input.iter().any(|i| made_by(i, "MatMulNBits"))),
        other => panic!("no fault {other}"),
    }
}

/// The predicate command of the tests below. It fails if a model contains the pattern and either is large or
/// has a result that is not zero.
#[test]
fn predicate() {
    let var = |name: &str| std::env::var(name).ok();
    let (Some(path), Some(fault)) = (var("WGFC_TEST_CANDIDATE"), var("WGFC_TEST_FAULT")) else { return };
    let model = read(Path::new(&path));
    let fails = has(&fault, model.graph.as_ref().unwrap()) && {
        let d = folder();
        let run = format!(
            "run|{path}|--cpu|--random-weights|--random-inputs|--iteration-limit|1000|--quiet|--json"
        );
        operators(&model).len() > 12 || {
            let ran = wgfc(d.path(), &run);
            let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap_or_default();
            let any = |o: &serde_json::Value| o["max"].as_f64().is_some_and(|m| m != 0.0);
            ran.code == 0 && json["outputs"].as_array().is_some_and(|o| o.iter().any(any))
        }
    };
    assert!(!fails, "the fault is there");
}

#[cfg(unix)]
#[test]
fn real_models_with_a_fault_become_a_few_nodes() {
    let d = folder();
    let exe = std::env::current_exe().unwrap();
    std::thread::scope(|s| {
        for (fault, model, within) in [
            ("softmax", "bert-base.onnx", 10),
            ("strided", "resnet50.onnx", 2),
            ("shared", "qwen2-2l.onnx", 10),
            ("body", "simulations/acrobot/model.onnx", 10),
            ("quantised", "qwen2-2l-q4", 2),
        ] {
            let (d, exe) = (d.path(), exe.display());
            s.spawn(move || {
                let model = match model {
                    "qwen2-2l-q4" => fixture("qwen2.5-0.5b-q4f16.onnx"),
                    m => fixture(m),
                };
                let fails = format!(
                    "WGFC_TEST_FAULT={fault} WGFC_TEST_CANDIDATE={{}} '{exe}' wrong::predicate --exact -q"
                );
                let out = format!("{fault}.onnx");
                let words =
                    format!("reduce|{model}|--fails|{fails}|--message|the fault is there|-o|{out}|--json");
                let v = wgfc(d, &words).exits(0).json();
                let small = read(&d.join(&out));
                assert!(has(fault, small.graph.as_ref().unwrap()), "{v}");
                assert_eq!(v["nodes"]["after"].as_u64().unwrap() as usize, operators(&small).len());
                assert!(operators(&small).len() <= within, "{v:#}");
                assert_eq!(v["weights_of_the_model"], serde_json::json!([]));
                assert!(v["bytes"]["after"].as_u64() < Some(64 << 10), "{v:#}");
                println!(
                    "{fault}: {} → {} nodes, {} attempts, {:.1} s",
                    v["nodes"]["before"],
                    v["nodes"]["after"],
                    v["attempts"],
                    v["seconds"].as_f64().unwrap()
                );
            });
        }
    });
}

#[cfg(unix)]
#[test]
fn the_command_decides_what_failing_is() {
    let d = folder();
    let reduce = |more: &str| wgfc(d.path(), &format!("reduce|{}|{more}", mlp()));
    // Two runs give identical files.
    let softmax = "--fails|grep -q Softmax {} && exit 7";
    for out in ["a.onnx", "b.onnx"] {
        reduce(&format!("{softmax}|-o|{out}")).exits(0).prints("→  1 node,").prints("wgfc report");
    }
    let bytes = |name: &str| std::fs::read(d.path().join(name)).unwrap();
    assert_eq!(bytes("a.onnx"), bytes("b.onnx"));
    assert_eq!(operators(&read(&d.path().join("a.onnx"))), ["Softmax"]);
    // The default output file, and a number in place of `batch`.
    reduce(&format!("{softmax}|--dim|batch=3|--quiet")).exits(0);
    assert!(d.path().join("model.reduced.onnx").is_file());
    reduce(&format!("{softmax}|--dim|bach=3"))
        .exits(1)
        .says("no symbolic dimension `bach`")
        .says("it has: batch");
    reduce("--fails|exit 0")
        .exits(1)
        .says("does not say where the model's file comes")
        .says("write {} in its place");
    reduce("--fails|: {}").exits(1).says("ends with exit code 0").says("failing is another code than 0");
    reduce("--fails|echo no 1>&2 ; false {}|--exit-code|3")
        .exits(1)
        .says("exit code 1, not with 3")
        .says("no");
    reduce("--fails|false {}|--message|whirl").exits(1).says("the text `whirl`");
    reduce("--fails|sleep 20 # {}|--timeout|0.05|-o|hangs.onnx|--budget|2")
        .exits(0)
        .prints("does not end in time");
    reduce(&format!("{softmax}|-o|{}", mlp())).exits(1).says("is the model itself");
    wgfc(d.path(), &format!("reduce|{}|--fails|false {{}}", fixture("torch/residual.pt2")))
        .exits(1)
        .says("only ONNX models can be reduced");
    wgfc(d.path(), &format!("reduce|{}", fixture("mobilenetv2.onnx"))).exits(1).says("--random-weights");
}

#[test]
fn without_a_command_the_program_is_compared_with_the_evaluator() {
    if wgfc::runtime::Gpu::adapters_blocking().is_empty() {
        return;
    }
    let d = folder();
    wgfc(d.path(), &format!("reduce|{}", mlp()))
        .exits(1)
        .says("its outputs are those of the reference evaluator");
    // Rounding to f16 counts as a difference under a small tolerance.
    let adapters = wgfc::runtime::Gpu::adapters_blocking();
    if let Some(able) = adapters.iter().find(|a| a.limits.f16) {
        let words =
            format!("reduce|{}|--tolerance|0.00002|--json|--|--precision|f16|--adapter|{}", mlp(), able.name);
        let v = wgfc(d.path(), &words).exits(0).json();
        assert_eq!(v["fails"], "outputs differ from the reference evaluator's");
        assert!(v["nodes"]["after"].as_u64() <= v["nodes"]["before"].as_u64(), "{v}");
    }
    wgfc(d.path(), &format!("reduce|{}|--|--dim|nobody=3", mlp()))
        .exits(1)
        .says("cannot say whether")
        .says("nobody");
}

#[test]
fn the_first_tensor_that_differs_from_saved_ones_is_named() {
    let d = folder();
    let x = Tensor::from_f32(vec![2, 13], &(0..26).map(|i| i as f32 * 0.1 - 1.0).collect::<Vec<_>>());
    npy::write(&x, &d.path().join("saved/x.npy")).unwrap();
    wgfc(d.path(), &format!("run|{}|--cpu|--input|x=saved/x.npy|--tap|a|--tap|logits|-o|saved", mlp()))
        .exits(0);
    if wgfc::runtime::Gpu::adapters_blocking().is_empty() {
        return;
    }
    // The input is also read from the folder.
    let compare = |more: &str| wgfc(d.path(), &format!("compare|{}|{more}", mlp()));
    let agree = compare("--expected|saved|--tolerance|1e-3").exits(0).prints("all agree");
    for tensor in ["a", "logits", "probabilities"] {
        assert!(agree.out.contains(&format!("\n  {tensor} ")), "{}", agree.out);
    }
    let mut v = npy::read(&d.path().join("saved/logits.npy")).unwrap().to_f32s().unwrap();
    v[3] += 0.5;
    npy::write(&Tensor::from_f32(vec![2, 5], &v), &d.path().join("saved/logits.npy")).unwrap();
    compare("--expected|saved")
        .exits(0)
        .prints("differs first at \"logits\"")
        .prints("\"a\" the last of them");
    let json = compare("--expected|saved|--tolerance|1e-3|--json").exits(4).json();
    assert_eq!(json["differs_first"], "logits");
    compare("--expected|a=saved/logits.npy|--input|x=saved/x.npy").exits(0).prints("its shape is another");
    compare("--expected|logitz=saved/logits.npy")
        .exits(1)
        .says("no tensor \"logitz\"")
        .says("close names: logits");
    compare("--expected|gone.npy").exits(1);
    std::fs::create_dir(d.path().join("empty")).unwrap();
    compare("--expected|empty").exits(1).says("no tensor to compare with");
}

/// A model with marked values in every place that can hold values.
fn marked(marks: &[f32; 6]) -> ModelProto {
    let node = |op: &str, input: &[&str], output: &str, attribute: Vec<AttributeProto>| NodeProto {
        op_type: op.into(),
        name: format!("secret/{op}"),
        input: input.iter().map(|s| (*s).to_owned()).collect(),
        output: vec![output.into()],
        attribute,
        ..NodeProto::default()
    };
    let float = |name: &str, f: f32| AttributeProto {
        name: name.into(),
        f,
        r#type: attribute_type::FLOAT,
        ..AttributeProto::default()
    };
    let tensor = |name: &str, shape: Vec<usize>, v: f32| {
        let n = shape.iter().product();
        TensorProto::of(name, &Tensor::from_f32(shape, &vec![v; n]))
    };
    let typed = TensorProto {
        name: "secret.typed".into(),
        dims: vec![4],
        data_type: data_type::code(DType::F32),
        float_data: vec![marks[3]; 4],
        ..TensorProto::default()
    };
    let value = |name: &str, cols: i64| ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto::tensor(
            DType::F32,
            [DimensionValue::Param("secret_rows".into()), DimensionValue::Value(cols)],
        )),
    };
    let graph = GraphProto {
        name: "secret".into(),
        node: vec![
            node("MatMul", &["secret.x", "secret.w"], "secret.p", vec![]),
            node("Mul", &["secret.p", "secret.scale"], "secret.q", vec![]),
            node("Add", &["secret.q", "secret.typed"], "secret.r", vec![]),
            node(
                "Constant",
                &[],
                "secret.c",
                vec![AttributeProto {
                    name: "value".into(),
                    t: Some(tensor("", vec![4], marks[2])),
                    r#type: attribute_type::TENSOR,
                    ..AttributeProto::default()
                }],
            ),
            node("Add", &["secret.r", "secret.c"], "secret.s", vec![]),
            node("LeakyRelu", &["secret.s"], "secret.t", vec![float("alpha", marks[4])]),
            node("Constant", &[], "secret.f", vec![float("value_float", marks[5])]),
            node("Mul", &["secret.t", "secret.f"], "secret.u", vec![]),
            node(
                "Gather",
                &["secret.u", "secret.table"],
                "secret.y",
                vec![AttributeProto {
                    name: "axis".into(),
                    i: 1,
                    r#type: attribute_type::INT,
                    ..AttributeProto::default()
                }],
            ),
        ],
        input: vec![value("secret.x", 3)],
        output: vec![value("secret.y", 100)],
        initializer: vec![
            tensor("secret.w", vec![3, 4], marks[0]),
            tensor("secret.scale", vec![], marks[1]),
            typed,
            TensorProto::of("secret.table", &Tensor::from_i64(vec![100], &[3; 100])),
        ],
        ..GraphProto::default()
    };
    ModelProto {
        ir_version: 8,
        producer_name: "secret producer".into(),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 17 }],
        metadata_props: vec![StringStringEntryProto { key: "secret".into(), value: "note".into() }],
        ..ModelProto::default()
    }
}

/// The files in an archive, and the archive itself.
fn unzipped(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut zip = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut all = vec![("the archive".to_owned(), std::fs::read(path).unwrap())];
    for i in 0..zip.len() {
        let mut entry = zip.by_index(i).unwrap();
        let mut bytes = vec![];
        entry.read_to_end(&mut bytes).unwrap();
        all.push((entry.name().unwrap().into_owned(), bytes));
    }
    all
}

#[test]
fn a_report_holds_no_weight_and_no_name_that_is_to_be_hidden() {
    let d = folder();
    let marks = [0.731_058_6, 17.654_321, -3.217_654_7, 0.012_345_679, 0.213_456_8, 5.678_912_6];
    let path = d.path().join("secret-model.onnx");
    std::fs::write(&path, marked(&marks).encode_to_vec()).unwrap();
    wgfc(d.path(), "check|secret-model.onnx").exits(0);
    wgfc(d.path(), "report|secret-model.onnx|-o|named.zip")
        .exits(0)
        .prints("no weight and no input is in it")
        .prints("--anonymous replaces them");
    wgfc(d.path(), "report|secret-model.onnx|-o|hidden.zip|--anonymous")
        .exits(0)
        .prints("names are replaced");
    for file in ["named.zip", "hidden.zip"] {
        let all = unzipped(&d.path().join(file));
        for wanted in ["report.json", "graph.txt", "model.onnx", "plan.json", "inspect.txt"] {
            assert!(all.iter().any(|(n, _)| n == wanted), "{wanted}");
        }
        assert!(all.iter().any(|(n, _)| n.starts_with("kernels/") && n.ends_with(".wgsl")));
        assert!(!all.iter().any(|(n, _)| n.contains("safetensors")));
        for (name, bytes) in &all {
            let find = |what: &[u8]| bytes.windows(what.len()).any(|w| w == what);
            for m in marks {
                assert!(!find(&m.to_le_bytes()), "{m} in {name} of {file}");
                // The first digits of the value, as a text would contain them.
                let text: String = format!("{}", m.abs()).chars().take(6).collect();
                assert!(!find(text.as_bytes()), "{text} in {name} of {file}");
            }
            if file == "hidden.zip" {
                assert!(!find(b"secret"), "a name in {name}");
            }
        }
        // The packed model can be compiled, and run with random weights.
        let (_, model) = all.iter().find(|(n, _)| n == "model.onnx").unwrap();
        std::fs::write(d.path().join("packed.onnx"), model).unwrap();
        wgfc(d.path(), "run|packed.onnx|--cpu|--random-weights|--random-inputs|--quiet")
            .exits(1)
            .says("--dim");
        let rows = if file == "named.zip" { "secret_rows" } else { "d0" };
        wgfc(d.path(), &format!("run|packed.onnx|--cpu|--random-weights|--random-inputs|--dim|{rows}=2"))
            .exits(0);
    }
    std::fs::write(d.path().join("log.txt"), "it said so").unwrap();
    let v = wgfc(d.path(), &format!("report|{}|--log|log.txt|--no-run|--json", mlp())).exits(0).json();
    let names: Vec<&str> = v["files"].as_array().unwrap().iter().filter_map(|f| f["name"].as_str()).collect();
    assert!(names.contains(&"logs/log.txt") && !names.contains(&"times.json"), "{names:?}");
    // The report of a model that does not compile contains the error.
    let mut broken = marked(&marks);
    broken.graph.as_mut().unwrap().node[0].op_type = "Whirl".into();
    std::fs::write(&path, broken.encode_to_vec()).unwrap();
    wgfc(d.path(), "report|secret-model.onnx|-o|broken.zip").exits(0).prints("failure.txt");
    let all = unzipped(&d.path().join("broken.zip"));
    let (_, failure) = all.iter().find(|(n, _)| n == "failure.txt").unwrap();
    assert!(String::from_utf8_lossy(failure).contains("Whirl"));
}
