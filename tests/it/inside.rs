//! Tensors inside models that are returned, replaced and added to: `Options::{taps, replaced, added}`.

use crate::backend::Backend;
use crate::data::Folder;
use crate::states::{CAPACITY, Reference, close, tokens};
use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;
use wgfc_compiler::import::onnx::{GraphProto, NodeProto, TensorProto, decode};
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::{Options, States, compile};
use wgfc_ir::eval::evaluate;
use wgfc_ir::{DType, Dim, Program, Scalar, Tensor};
use wgfc_runtime::error::BadInput;
use wgfc_runtime::{Gpu, RunError, Session};

type Tensors = BTreeMap<String, Tensor>;

/// A model, its bytes and the inputs of its first data set.
struct Model {
    bytes: Vec<u8>,
    graph: GraphProto,
    inputs: Tensors,
}

impl Model {
    fn small(name: &str) -> Model {
        let folder = Folder::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small"), name);
        let bytes = std::fs::read(folder.model_path()).unwrap();
        let graph = decode(&bytes).unwrap().graph.unwrap();
        let data = folder.data_set(0).unwrap().inputs;
        let names = graph.input.iter().map(|v| v.name.clone());
        let inputs = names.filter(|n| !graph.initializer.iter().any(|t| t.name == *n)).zip(data).collect();
        Model { bytes, graph, inputs }
    }

    fn compile(&self, options: &Options) -> Program {
        compile(&self.bytes, &NoExternalData, options).unwrap()
    }

    /// The evaluator's outputs for the model's own inputs and `more`.
    fn evaluate(&self, options: &Options, more: &Tensors) -> Result<Vec<Tensor>, String> {
        let graph = import(&self.bytes, &NoExternalData, options).map_err(|e| e.to_string())?.graph;
        wgfc_ir::verify::verify(&graph).map_err(|e| e.join("\n"))?;
        let inputs = self.inputs.iter().chain(more).map(|(n, t)| (n.clone(), t.clone())).collect();
        evaluate(&graph, &inputs).map_err(|e| e.to_string())
    }

    /// The model with a node `op` over these operands inserted between the producer of a tensor and all its
    /// readers.
    fn edited(&self, tensor: &str, op: &str, operands: &[&str], constants: &[(&str, &Tensor)]) -> Model {
        let mut proto = decode(&self.bytes).unwrap();
        let g = proto.graph.as_mut().unwrap();
        let made = g.node.iter_mut().flat_map(|n| &mut n.output).find(|o| *o == tensor);
        *made.expect("a node makes it") = "before".into();
        g.node.push(NodeProto {
            op_type: op.into(),
            input: strings(operands),
            output: strings(&[tensor]),
            ..Default::default()
        });
        g.initializer.extend(constants.iter().map(|(name, t)| initializer(name, t)));
        let graph = g.clone();
        Model { bytes: proto.encode_to_vec(), graph, inputs: self.inputs.clone() }
    }

    /// The names of the tensors that nodes produce.
    fn tensors(&self) -> Vec<String> {
        self.graph.node.iter().flat_map(|n| n.output.clone()).filter(|o| !o.is_empty()).collect()
    }
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

fn initializer(name: &str, t: &Tensor) -> TensorProto {
    let code = match t.dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        other => panic!("{other}"),
    };
    TensorProto {
        name: name.into(),
        dims: t.shape.iter().map(|d| *d as i64).collect(),
        data_type: code,
        raw_data: t.bytes().unwrap().to_vec().into(),
        ..Default::default()
    }
}

fn add(tensor: &str) -> Options {
    Options { added: strings(&[tensor]), ..Options::default() }
}
fn replace(tensor: &str) -> Options {
    Options { replaced: strings(&[tensor]), ..Options::default() }
}
fn tap(tensor: &str) -> Options {
    Options { taps: strings(&[tensor]), ..Options::default() }
}

/// Different values, some of them negative where the type allows it.
fn values(dtype: DType, shape: Vec<usize>) -> Tensor {
    Tensor::generate(dtype, shape, |i| match dtype {
        DType::Bool => Scalar::bool(i % 3 != 1),
        d if d.is_float() => Scalar::from_f64(d, (i * 7 % 11) as f64 * 0.125 - 0.5),
        d => Scalar::from_i64(d, (i % 3) as i64),
    })
}

/// Shapes that broadcast to `whole`: itself, shapes with fewer axes, and shapes with extents of 1.
fn shapes(whole: &[usize]) -> Vec<Vec<usize>> {
    let alone = |axis: usize| (0..whole.len()).map(|i| if i == axis { whole[i] } else { 1 }).collect();
    let mut all = vec![whole.to_vec(), whole.iter().rev().take(1).copied().collect()];
    all.extend((0..whole.len()).map(alone));
    all.push(vec![]);
    all.dedup();
    all
}

fn run(gpu: &Gpu, program: &Program, inputs: &Tensors) -> Result<Vec<Tensor>, RunError> {
    let mut session = Session::new_blocking(gpu, program)?;
    ran(&mut session, inputs)
}

fn ran(session: &mut Session, inputs: &Tensors) -> Result<Vec<Tensor>, RunError> {
    let named: Vec<_> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    Ok(session.run_blocking(&named)?.into_iter().map(|o| o.1).collect())
}

const FIXTURES: &[&str] =
    &["attention", "booleans", "conv", "decoder", "half", "integers", "mlp", "recurrent"];

/// For each tensor of the models: with nothing given, the graph computes the same bytes; with values given,
/// it computes the same as a model edited by hand.
#[test]
fn any_tensor_can_be_added_to_and_replaced() {
    let (mut changed, mut refused) = (0, vec![]);
    for fixture in FIXTURES {
        let model = Model::small(fixture);
        let plain = model.evaluate(&Options::default(), &Tensors::new()).unwrap();
        let tensors = model.tensors();
        for (i, tensor) in tensors.iter().enumerate().filter(|(i, _)| i % 6 == 0 || tensors.len() < 40) {
            let tapped = model.evaluate(&tap(tensor), &Tensors::new()).unwrap();
            let position = model.graph.output.iter().position(|o| o.name == *tensor);
            let is = &tapped[position.unwrap_or(plain.len())];
            let all = shapes(&is.shape);
            let shape = all[i % all.len()].clone();
            let (d, w) =
                (values(is.dtype, shape.clone()), values(DType::Bool, all[(i + 1) % all.len()].clone()));
            if is.dtype != DType::Bool {
                match model.evaluate(&add(tensor), &Tensors::new()) {
                    Err(e) => {
                        assert!(!is.dtype.is_float(), "{fixture} {tensor}: {e}");
                        refused.push(format!("{fixture} {tensor}"));
                        continue;
                    }
                    Ok(left_out) => assert_eq!(left_out, plain, "{fixture} {tensor}"),
                }
                let by_hand = model.edited(tensor, "Add", &["before", "value"], &[("value", &d)]);
                let want = by_hand.evaluate(&Options::default(), &Tensors::new()).unwrap();
                let given = [(format!("{tensor}.add"), d.clone())].into();
                let got = model.evaluate(&add(tensor), &given).unwrap();
                assert_eq!(got, want, "{fixture} {tensor} + {shape:?}");
                changed += usize::from(got != plain);
            }
            let Ok(left_out) = model.evaluate(&replace(tensor), &Tensors::new()) else { continue };
            assert_eq!(left_out, plain, "{fixture} {tensor}");
            let by_hand = model.edited(
                tensor,
                "Where",
                &["at these", "value", "before"],
                &[("value", &d), ("at these", &w)],
            );
            let want = by_hand.evaluate(&Options::default(), &Tensors::new()).unwrap();
            let given = [(format!("{tensor}.replace"), d), (format!("{tensor}.where"), w)].into();
            let got = model.evaluate(&replace(tensor), &given).unwrap();
            assert_eq!(got, want, "{fixture} {tensor} replaced by {shape:?}");
            changed += usize::from(got != plain);
        }
    }
    // A tensor is refused only if it decides sizes.
    crate::say(format!("{changed} changed outputs, {} refused: {refused:?}", refused.len()));
    assert!(changed > 100 && refused.len() < 20, "{changed} changed, {refused:?}");
}

/// Options with which a tensor is replaced, added to and tapped.
fn all(tensor: &str) -> Options {
    Options { added: strings(&[tensor]), ..Options { replaced: strings(&[tensor]), ..tap(tensor) } }
}

/// On devices, given values have the same effect as in the evaluator. With nothing given, the results equal
/// those of the unmodified program, bit for bit if the tensor is stored between kernels anyway.
#[test]
fn devices_agree_with_the_evaluator() {
    let cases = [
        ("attention", "residual", true),
        ("attention", "weights", false),
        ("chosen", "found", true),
        ("half", "gate", true),
        ("integers", "quotient", true),
        ("mlp", "a", true),
        ("while", "gcd", true),
    ];
    for (fixture, tensor, same) in cases {
        let model = Model::small(fixture);
        let options = all(tensor);
        let (plain, program) = (model.compile(&Options::default()), model.compile(&options));
        // For the other fixtures one adapter is enough, as all adapters get the same program.
        let adapters = if ["integers", "mlp"].contains(&fixture) { usize::MAX } else { 1 };
        for gpu in Backend::adapters().into_iter().take(adapters) {
            let untouched = run(&gpu, &plain, &model.inputs).unwrap();
            let mut session = Session::new_blocking(&gpu, &program).unwrap();
            let got = ran(&mut session, &model.inputs).unwrap();
            let left_out = &got[..untouched.len()];
            if same {
                assert_eq!(left_out, untouched, "{fixture} {tensor}, nothing given");
            }
            let position = program.outputs.iter().position(|p| p.name == tensor);
            let is = &got[position.expect("a tap or an output")];
            for (i, shape) in shapes(&is.shape).into_iter().enumerate() {
                // A given value must have extent 1 along an axis whose size the run computes.
                let shape: Vec<usize> = if fixture == "chosen" { vec![] } else { shape };
                let (d, w) = (values(is.dtype, shape.clone()), values(DType::Bool, shape.clone()));
                let given = [("add", &d), ("replace", &d), ("where", &w)];
                // All three inputs first, then each subset without one of them.
                let given = given.iter().enumerate().filter(|(n, _)| i % 4 != *n + 1).map(|(_, g)| g);
                let more: Tensors = given.map(|(n, t)| (format!("{tensor}.{n}"), (*t).clone())).collect();
                let want = model.evaluate(&options, &more).unwrap();
                let inputs = model.inputs.iter().chain(&more).map(|(n, t)| (n.clone(), t.clone())).collect();
                let got = ran(&mut session, &inputs).unwrap();
                for ((got, want), port) in got.iter().zip(&want).zip(&program.outputs) {
                    let at = format!("{fixture} {tensor} {shape:?}: {} {:?}", port.name, more.keys());
                    assert_eq!(got.shape, want.shape, "{at}");
                    match got.dtype.is_float() {
                        true => assert!(near(got, want), "{at}: {got:?} for {want:?}"),
                        false => assert_eq!(got, want, "{at}"),
                    }
                }
            }
            assert_eq!(ran(&mut session, &model.inputs).unwrap(), got, "{fixture} {tensor}, afterwards");
        }
    }
}

/// Whether f32 or f16 results agree within the tolerance of their type.
fn near(got: &Tensor, want: &Tensor) -> bool {
    let error = if got.dtype == DType::F16 { 5e-3 } else { 1e-4 };
    let pairs = numbers(got).into_iter().zip(numbers(want));
    pairs.into_iter().all(|(g, w)| (g - w).abs() <= error * (1.0 + w.abs()))
}

fn numbers(t: &Tensor) -> Vec<f32> {
    t.scalars().unwrap().iter().map(|s| s.as_f64() as f32).collect()
}

/// Fusion stops only at the tensors that are looked into: the additional dispatches for adding, replacing and
/// tapping.
#[test]
fn looking_inside_takes_hardly_more_dispatches() {
    let cases = [
        // The residual stream.
        ("decoder", "x0", [0, 1, 1]),
        ("decoder", "layer0/out", [0, 0, 0]),
        ("decoder", "layer0/q/rotated", [0, 1, 1]),
        ("decoder", "present.0.key", [0, 0, 0]),
        // Inside attention, which then becomes products, softmax and products again.
        ("decoder", "layer0/weights", [3, 3, 3]),
        ("attention", "residual", [0, 0, 0]),
        ("mlp", "a", [0, 0, 0]),
    ];
    let mut untouched: BTreeMap<&str, usize> = BTreeMap::new();
    for (fixture, tensor, most) in cases {
        let model = Model::small(fixture);
        let dispatches = |o: &Options| model.compile(o).dispatches.len();
        let plain = *untouched.entry(fixture).or_insert_with(|| dispatches(&Options::default()));
        for (options, most) in [add(tensor), replace(tensor), tap(tensor)].iter().zip(most) {
            let with = dispatches(options);
            assert!(with <= plain + most, "{fixture} {tensor}: {with} for {plain}, {options:?}");
        }
    }
    // Everything at once along a residual stream.
    let model = Model::small("decoder");
    let stream = strings(&["layer0/middle", "layer0/out", "layer1/middle", "layer1/out"]);
    let all = Options { added: stream.clone(), taps: stream, ..Options::default() };
    let with = model.compile(&all);
    assert_eq!(with.dispatches.len(), untouched["decoder"]);
    assert_eq!(with.proof.count(), with.kernels.len(), "kernels that need no run-time checks");
}

/// A cache stays on the device, and a direction is added in one of the steps.
#[test]
fn a_decoder_with_its_cache_on_the_device_is_steered() {
    let model = Model::small("decoder");
    let options = Options { states: States::Auto { capacity: Some(CAPACITY) }, ..add("layer0/out") };
    let program = model.compile(&options);
    let plain = import(&model.bytes, &NoExternalData, &add("layer0/out")).unwrap().graph;
    let direction = values(DType::F32, vec![24]);
    for gpu in Backend::adapters().iter().take(1) {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let mut past = Reference::new().past;
        let mut length = 0;
        for (ids, steered) in [(vec![3, 1, 36, 0, 8], false), (vec![5], true), (vec![9, 11], false)] {
            let mut given: Tensors = tokens(&ids, length).into_iter().collect();
            if steered {
                given.insert("layer0/out.add".into(), direction.clone());
            }
            let got = ran(&mut session, &given).unwrap();
            given.append(&mut past);
            let want = evaluate(&plain, &given).unwrap();
            close(&numbers(&got[0]), &numbers(&want[0]));
            let presents = plain.outputs.iter().zip(want).skip(1);
            past = presents.map(|(b, t)| (b.name.replace("present", "past_key_values"), t)).collect();
            length += ids.len();
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let model = Model::small("mlp");
    let program = model.compile(&add("a"));
    let rows = model.inputs["x"].shape[0];
    let Some(gpu) = Backend::adapters().into_iter().next() else { return };
    let mut session = Session::new_blocking(&gpu, &program).unwrap();
    let width = program.inputs[1].broadcast.as_ref().unwrap()[1].as_const().unwrap() as usize;
    let mut say = |t: Tensor| {
        let mut inputs = model.inputs.clone();
        inputs.insert("a.add".into(), t.clone());
        let cli = wgfc::value_info::check_inputs(&wgfc::value_info::program_values(&program.inputs), &inputs);
        match ran(&mut session, &inputs) {
            Err(RunError::Inputs(bad)) => {
                assert!(cli.is_err(), "{t:?}");
                assert!(model.evaluate(&add("a"), &[("a.add".to_owned(), t)].into()).is_err());
                bad.iter().map(BadInput::to_string).collect::<Vec<_>>().join("\n")
            }
            other => panic!("{t:?}: {other:?}"),
        }
    };
    let zeros = |shape: &[usize]| Tensor::zeros(DType::F32, shape.to_vec());
    let e = say(zeros(&[width + 1]));
    assert!(
        e.contains(&format!(
            "broadcast to [batch, {width}] = [{rows}, {width}], and axis 1 has {} elements",
            width + 1
        )),
        "{e}"
    );
    let e = say(zeros(&[rows + 1, 1]));
    assert!(e.contains("axis 0 has"), "{e}");
    assert!(say(zeros(&[1, 1, 1])).contains("must not have shape"));
    assert!(say(Tensor::zeros(DType::F16, vec![1])).contains("must be f32"));
    // An input without elements counts as omitted.
    let mut inputs = model.inputs.clone();
    inputs.insert("a.add".into(), zeros(&[0, 3]));
    assert_eq!(ran(&mut session, &inputs).unwrap(), ran(&mut session, &model.inputs).unwrap());
}

#[test]
fn names_that_cannot_be_looked_into() {
    let model = Model::small("while");
    let names = |list: &[&str]| strings(list);
    let options = Options {
        added: names(&["gdc", "square", "large", "limit"]),
        replaced: names(&["gdc", "mean"]),
        taps: names(&["sizes", "size2"]),
        ..Options::default()
    };
    let e = import(&model.bytes, &NoExternalData, &options).unwrap_err().to_string();
    for part in [
        "the model has no tensor \"gdc\" (--add gdc --replace gdc)\n  help: close names: c, gcd",
        "tensor \"square\" is inside of a branch, the body of a loop, or a function (--add square)",
        "tensor \"mean\" is inside",
        "the model has no tensor \"size2\" (--tap size2)\n  help: close names: size, sizes",
        "tensor \"large\", bool[]: nothing can be added to elements of type bool\n  help: replace it instead: --replace large",
    ] {
        assert!(e.contains(part), "{part}\nis not in\n{e}");
    }
    assert_eq!(e.matches("error").count(), 5, "{e}");
}

/// Plans record which inputs are optional; contradictory plans are refused.
#[test]
fn plans_with_optional_inputs() {
    let program = Model::small("mlp").compile(&all("a"));
    let text = serde_json::to_string(&program).unwrap();
    let read: Program = serde_json::from_str(&text).unwrap();
    assert_eq!(read.inputs, program.inputs);
    assert_eq!(program.inputs[0].broadcast, None);
    let shapes: Vec<_> = program.inputs[1..].iter().map(|p| (&*p.name, p.broadcast.is_some())).collect();
    assert_eq!(shapes, [("a.replace", true), ("a.where", true), ("a.add", true)]);
    assert_eq!(wgfc::runtime::check::check(&program), Vec::<String>::new());
    type Spoil = fn(&mut Program);
    let cases: [(Spoil, &str); 6] = [
        (|p| p.inputs[1].broadcast = Some(vec![]), "has 2 axes and is broadcast to 0"),
        (|p| p.inputs[1].broadcast = Some(vec![Dim::ONE; 3]), "has 2 axes and is broadcast to 3"),
        (|p| p.inputs[1].broadcast = Some(vec![Dim::sym("gone"), Dim::ONE]), "gone"),
        (|p| p.inputs[0].broadcast = Some(p.inputs[0].shape.clone()), "are not symbols of its own"),
        (|p| p.inputs[2].shape[0] = p.inputs[1].shape[0].clone(), "are not symbols of its own"),
        (|p| p.outputs[0].broadcast = Some(p.outputs[0].shape.clone()), "which only an input is"),
    ];
    for (spoil, message) in cases {
        let mut p = program.clone();
        spoil(&mut p);
        let errors = wgfc::runtime::check::check(&p).join("\n");
        assert!(errors.contains(message), "{message}: {errors}");
    }
}

/// Modules of a PyTorch program selected by name, compared with torch's hooks on the same module:
/// `fixtures/torch/residual.py`.
#[test]
fn modules_of_pytorch_are_hooked() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch/residual.pt2");
    let bytes = std::fs::read(path).unwrap();
    let x = Tensor::generate(DType::F32, vec![2, 3, 6], |i| {
        Scalar::from_f64(DType::F32, (i * 7 % 11) as f64 * 0.125 - 0.5)
    });
    let d = Tensor::from_f32(vec![6], &[-0.5, -0.25, 0.0, 0.25, 0.5, 0.75]);
    let first = [-1.077133, -0.364843, -0.142904, 0.922955, 2.723492, 1.192267, -0.15502, -0.438833];
    let cases: [(&[&str], [f32; 8]); 7] = [
        (&[], [-0.473134, -0.223636, -0.142904, 0.542494, 1.717955, -0.589944, 0.643262, -0.315652]),
        (&["layers.0.add"], first),
        // This module adds in place.
        (
            &["layers.1.add"],
            [-0.841622, -0.342909, -0.142904, 0.895833, 2.572666, 0.28727, 0.227715, -0.419352],
        ),
        (
            &["layers.0.add", "layers.1.replace"],
            [-0.536314, -0.431128, -0.132397, 0.039228, 1.052758, 0.902034, -0.536314, -0.431128],
        ),
        (
            &["layers.1.inner.add"],
            [-0.674733, -0.266837, -0.142904, 0.573344, 1.88861, 0.169253, 0.411479, -0.35327],
        ),
        // A view.
        (&["rows.add"], [-0.775596, -0.477051, -0.142904, 0.792254, 2.340321, 0.326059, 0.3408, -0.569067]),
        // The graph's own name for the result of the first module.
        (&["add_1.add"], first),
    ];
    let options = Options {
        added: strings(&["layers.0", "layers.1", "layers.1.inner", "rows", "add_1"]),
        replaced: strings(&["layers.1"]),
        taps: strings(&["layers.1"]),
        ..Options::default()
    };
    let program = compile(&bytes, &NoExternalData, &options).unwrap();
    let graph = import(&bytes, &NoExternalData, &options).unwrap().graph;
    let gpu = Backend::adapters().into_iter().next();
    let mut session = gpu.map(|gpu| Session::new_blocking(&gpu, &program).unwrap());
    for (given, want) in cases {
        let mut inputs: Tensors = [("x".to_owned(), x.clone())].into();
        inputs.extend(given.iter().map(|n| ((*n).to_owned(), d.clone())));
        let mut results = vec![evaluate(&graph, &inputs).unwrap()];
        results.extend(session.as_mut().map(|s| ran(s, &inputs).unwrap()));
        for out in results {
            close(&numbers(&out[0])[..8], &want);
            assert_eq!(out[1].shape, [2, 3, 6]);
        }
    }
    // Inputs and outputs under the names that the user sees.
    let names = ["x", "output"];
    let options = Options {
        added: strings(&names),
        replaced: strings(&names),
        taps: strings(&names),
        ..Options::default()
    };
    let graph = import(&bytes, &NoExternalData, &options).unwrap().graph;
    let plain: Tensors = [("x".to_owned(), x.clone())].into();
    let unchanged = evaluate(&graph, &plain).unwrap();
    close(&numbers(&unchanged[0])[..8], &cases[0].1);
    assert_eq!(graph.outputs.iter().map(|o| &*o.name).collect::<Vec<_>>(), ["output", "x"]);
    assert_eq!(numbers(&unchanged[1]), numbers(&x));
    let with = |name: &str| {
        let inputs = plain.clone().into_iter().chain([(name.to_owned(), Tensor::from_f32(vec![1], &[2.0]))]);
        evaluate(&graph, &inputs.collect()).unwrap()
    };
    let moved: Vec<f32> = numbers(&unchanged[0]).iter().map(|v| v + 2.0).collect();
    close(&numbers(&with("output.add")[0]), &moved);
    assert!(numbers(&with("x.replace")[1]).iter().all(|v| *v == 2.0));
    let wrong = Options { added: strings(&["layers.3"]), taps: strings(&["tan"]), ..Options::default() };
    let e = import(&bytes, &NoExternalData, &wrong).unwrap_err().to_string();
    assert!(
        e.contains("no tensor or module \"layers.3\" (--add layers.3)\n  help: close names: layers.0"),
        "{e}"
    );
    assert!(e.contains("no tensor or module \"tan\" (--tap tan)"), "{e}");
}
