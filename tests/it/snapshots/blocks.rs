//! A block of each common kind of model: cut out of the graphs in `fixtures/`, with weights generated from
//! seeds.

use super::{agree, model};
use crate::backend::{Failure, run_session, session};
use crate::data::Folder;
use crate::spread::Layer;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use wgfc::random::{self, RandomWeights};
use wgfc_compiler::import::onnx::{DimensionValue, ModelProto, TypeProto, ValueInfoProto};
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::lower::recurrent::Cell;
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::{Options, States};
use wgfc_ir::eval::{StateValues, evaluate, evaluate_from};
use wgfc_ir::program::Stats;
use wgfc_ir::{DType, Graph, Program, Tensor};
use wgfc_runtime::{Gpu, Session};

/// Compiles a block, executes it on each adapter and returns the program.
type Case = fn(&[Gpu]) -> Result<Program, Failure>;

/// The cases by name.
pub const CASES: &[(&str, Case)] = &[
    ("resnet50", resnet50),
    ("mobilenetv2", mobilenetv2),
    ("bert-base", bert),
    ("qwen2.5-0.5b", qwen),
    ("phi3-shaped", phi3),
    ("lstm", lstm),
    ("cartpole", cartpole),
    ("sae-training-step", sae),
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// A part of a model: the nodes that compute the values `to` from the value `from`, an f32 tensor of the
/// given shape.
struct Part {
    model: &'static str,
    from: (&'static str, &'static str),
    to: &'static [&'static str],
    /// An input that replaces others which the part reads only for their shapes.
    shapes_of: Option<&'static str>,
}

impl Part {
    /// The part as a separate model, and its weights.
    fn cut(&self) -> Result<(Vec<u8>, RandomWeights), Failure> {
        let bytes = std::fs::read(fixtures().join(format!("{}.onnx", self.model))).map_err(words)?;
        let mut model = ModelProto::decode(bytes.as_slice()).map_err(words)?;
        let graph = model.graph.as_mut().ok_or_else(|| Failure::error("no graph"))?;
        let (from, shape) = self.from;
        // The nodes are sorted, so those that the outputs need are found in reverse order.
        let mut needed: BTreeSet<String> = self.to.iter().map(|t| (*t).to_owned()).collect();
        let mut nodes = vec![];
        for mut node in std::mem::take(&mut graph.node).into_iter().rev() {
            if !node.output.iter().any(|o| o != from && needed.contains(o)) {
                continue;
            }
            if let Some(one) = self.shapes_of
                && node.op_type == "Shape"
                && node.input[0].starts_with("past")
            {
                node.input[0] = one.to_owned();
            }
            needed.extend(node.input.iter().cloned());
            nodes.push(node);
        }
        nodes.reverse();
        graph.node = nodes;
        let dims = shape.split(' ').map(|d| match d.parse() {
            Ok(n) => DimensionValue::Value(n),
            Err(_) => DimensionValue::Param(d.to_owned()),
        });
        let ty = Some(TypeProto::tensor(DType::F32, dims));
        graph.input.retain(|i| needed.contains(&i.name));
        graph.input.push(ValueInfoProto { name: from.to_owned(), r#type: ty });
        let given = graph.output.clone();
        let typed = |name: &&str| given.iter().find(|o| o.name == **name).cloned();
        let untyped = |name: &str| ValueInfoProto { name: name.to_owned(), ..ValueInfoProto::default() };
        graph.output = self.to.iter().map(|t| typed(t).unwrap_or_else(|| untyped(t))).collect();
        graph.initializer.retain(|t| needed.contains(&t.name));
        // The weights of the part are stored one after another.
        let mut end = 0;
        for t in graph.initializer.iter_mut().filter(|t| t.data_location == 1) {
            for entry in t.external_data.iter_mut().filter(|e| e.key == "offset") {
                entry.value = end.to_string();
            }
            end += t.dims.iter().product::<i64>() * 4;
        }
        let bytes = model.encode_to_vec();
        let weights = RandomWeights::of(&bytes, &NoExternalData).map_err(words)?;
        Ok((bytes, weights))
    }
}

fn words(e: impl std::fmt::Display) -> Failure {
    Failure::error(e.to_string())
}

/// Inputs of a graph for these values of symbols. Elements of i64 inputs are 1 except for the last; other
/// inputs are random.
fn inputs(graph: &Graph, sizes: &[(&str, i64)]) -> BTreeMap<String, Tensor> {
    let size = |s: &str| sizes.iter().find(|(n, _)| *n == s).map(|(_, v)| *v);
    let values = graph.inputs.iter().map(|i| {
        let ty = graph.ty(i.value);
        let shape: Vec<usize> = ty.shape.iter().map(|d| d.eval_syms(&size).unwrap() as usize).collect();
        let n: usize = shape.iter().product();
        let tensor = match ty.dtype {
            DType::I64 => {
                let ones: Vec<i64> = (0..n).map(|i| i64::from(i + 1 < n)).collect();
                Tensor::from_i64(shape, &ones)
            }
            dtype => random::tensor(dtype, shape, &i.name, 1),
        };
        (i.name.to_string(), tensor)
    });
    values.collect()
}

/// Runs a part without states.
fn part(part: &Part, sizes: &[(&str, i64)], gpus: &[Gpu]) -> Result<Program, Failure> {
    let (bytes, weights) = part.cut()?;
    let options = Options::default();
    let graph = import(&bytes, &weights, &options)?.graph;
    let program = wgfc_compiler::compile(&bytes, &weights, &options)?;
    if gpus.is_empty() {
        return Ok(program);
    }
    let given = inputs(&graph, sizes);
    let want = evaluate(&graph, &given).map_err(words)?;
    for gpu in gpus {
        agree(&run_session(&mut session(gpu, &program)?, &given)?, &want, gpu)?;
    }
    Ok(program)
}

fn resnet50(gpus: &[Gpu]) -> Result<Program, Failure> {
    let shape = "batch 512 28 28";
    let of = Part { model: "resnet50", from: ("relu_12", shape), to: &["relu_15"], shapes_of: None };
    part(&of, &[("batch", 1)], gpus)
}

fn mobilenetv2(gpus: &[Gpu]) -> Result<Program, Failure> {
    let shape = "batch 32 28 28";
    let of = Part { model: "mobilenetv2", from: ("getitem_33", shape), to: &["add_1"], shapes_of: None };
    part(&of, &[("batch", 3)], gpus)
}

fn bert(gpus: &[Gpu]) -> Result<Program, Failure> {
    let from = ("layer_norm", "batch seq 768");
    let of = Part { model: "bert-base", from, to: &["layer_norm_2"], shapes_of: None };
    part(&of, &[("batch", 2), ("seq", 7)], gpus)
}

/// Runs a decoder layer that keeps keys and values on the device, on five positions, then on one. The
/// evaluator gets them as inputs.
fn layer(part: &Part, gpus: &[Gpu]) -> Result<Program, Failure> {
    let (bytes, weights) = part.cut()?;
    let graph = import(&bytes, &weights, &Options::default())?.graph;
    let options = Options { states: States::Auto { capacity: None }, ..Options::default() };
    let program = wgfc_compiler::compile(&bytes, &weights, &options)?;
    if gpus.is_empty() {
        return Ok(program);
    }
    // The weights fill whole bindings, so there is no room for canaries after them.
    let mut sessions =
        gpus.iter().map(|gpu| Session::new_blocking(gpu, &program)).collect::<Result<Vec<_>, _>>()?;
    let mut cache = BTreeMap::new();
    let mut past = 0;
    for seq in [5, 1] {
        let mut given = inputs(&graph, &[("seq", seq), ("past", past)]);
        let positions: Vec<i64> = (past..past + seq).collect();
        given.insert("position_ids".to_owned(), Tensor::from_i64(vec![1, seq as usize], &positions));
        let alone: BTreeMap<String, Tensor> = given.clone();
        given.extend(std::mem::take(&mut cache));
        let want = evaluate(&graph, &given).map_err(words)?;
        for (gpu, session) in gpus.iter().zip(&mut sessions) {
            let own = |n: &String| program.inputs.iter().any(|p| p.name == *n);
            let alone = alone.iter().filter(|(n, _)| own(n)).map(|(n, t)| (n.clone(), t.clone())).collect();
            agree(&run_session(session, &alone)?, &want[..1], gpu)?;
        }
        for (border, value) in graph.outputs.iter().zip(want).skip(1) {
            cache.insert(border.name.replace("present", "past_key_values"), value);
        }
        past += seq;
    }
    Ok(program)
}

const PAST: Option<&str> = Some("past_key_values.0.key");

fn qwen(gpus: &[Gpu]) -> Result<Program, Failure> {
    let to = &["add_10", "present.0.key", "present.0.value"];
    layer(&Part { model: "qwen2.5-0.5b", from: ("embedding", "1 seq 896"), to, shapes_of: PAST }, gpus)
}

fn phi3(gpus: &[Gpu]) -> Result<Program, Failure> {
    let to = &["layer0/out", "present.0.key", "present.0.value"];
    layer(&Part { model: "phi3-shaped", from: ("x", "1 seq 3072"), to, shapes_of: PAST }, gpus)
}

/// Executes a graph several times with its states carried over.
fn graph(
    graph: &Graph,
    program: Program,
    runs: &[BTreeMap<String, Tensor>],
    gpus: &[Gpu],
) -> Result<Program, Failure> {
    if gpus.is_empty() {
        return Ok(program);
    }
    let mut sessions = gpus.iter().map(|gpu| session(gpu, &program)).collect::<Result<Vec<_>, _>>()?;
    let mut states = StateValues::default();
    for given in runs {
        let want = evaluate_from(graph, given, &mut states).map_err(words)?;
        for (gpu, session) in gpus.iter().zip(&mut sessions) {
            agree(&run_session(session, given)?, &want, gpu)?;
        }
    }
    Ok(program)
}

/// A bidirectional layer over a symbolic number of positions.
fn lstm(gpus: &[Gpu]) -> Result<Program, Failure> {
    let layer = Layer { backwards: &[false, true], initial: true, ..Layer::new(Cell::Lstm, 23, 3, None) };
    let of = layer.graph();
    let program = compile_graph(of.clone(), Stats::default(), &Options::default(), &mut |_, _| {})?;
    graph(&of, program, &[layer.inputs(7)], gpus)
}

fn cartpole(gpus: &[Gpu]) -> Result<Program, Failure> {
    let folder = Folder::new(&fixtures().join("simulations"), "cartpole");
    model(&folder, gpus)
}

/// The loss of a sparse autoencoder, its gradients and the Adam update; the whole state stays on the device.
fn sae(gpus: &[Gpu]) -> Result<Program, Failure> {
    let bytes = std::fs::read(fixtures().join("torch/train_step.pt2")).map_err(words)?;
    let options = Options::default();
    let of = import(&bytes, &NoExternalData, &options)?.graph;
    let program = wgfc_compiler::compile(&bytes, &NoExternalData, &options)?;
    let given = inputs(&of, &[("s77", 7)]);
    graph(&of, program, &[given.clone(), given], gpus)
}
