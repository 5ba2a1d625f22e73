//! Integers at the limits of their types and indices out of bounds: adapters compute the same as the
//! evaluator.

use crate::backend::Backend;
use std::collections::BTreeMap;
use wgfc_compiler::import::onnx::*;
use wgfc_compiler::import::{NoExternalData, import_model};
use wgfc_compiler::{Options, pipeline};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::{DType, Tensor};

fn node(op: &str, inputs: &[&str], output: String) -> NodeProto {
    let input = inputs.iter().map(|s| s.to_string()).collect();
    NodeProto { op_type: op.into(), input, output: vec![output], ..Default::default() }
}

fn initializer(name: &str, t: &Tensor) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: t.shape.iter().map(|d| *d as i64).collect(),
        data_type: data_type::code(t.dtype),
        raw_data: t.bytes().expect("it is there").to_vec().into(),
        ..Default::default()
    }
}

fn declared(name: &str, t: Option<&Tensor>) -> ValueInfoProto {
    let tensor = |t: &Tensor| TypeProto {
        value: Some(TypeValue::Tensor(TensorTypeProto {
            elem_type: data_type::code(t.dtype),
            shape: Some(TensorShapeProto {
                dim: t
                    .shape
                    .iter()
                    .map(|d| DimensionProto { value: Some(DimensionValue::Value(*d as i64)) })
                    .collect(),
            }),
        })),
    };
    ValueInfoProto { name: name.into(), r#type: t.map(tensor) }
}

/// Compares all outputs of the nodes on every adapter with the evaluator's, and returns the latter.
fn agree(
    nodes: Vec<NodeProto>,
    inputs: &[(&str, Tensor)],
    constants: &[(&str, Tensor)],
) -> BTreeMap<String, Tensor> {
    let model = ModelProto {
        ir_version: 9,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 20 }],
        graph: Some(GraphProto {
            name: "g".into(),
            output: nodes.iter().map(|n| declared(&n.output[0], None)).collect(),
            node: nodes,
            input: inputs.iter().map(|(n, t)| declared(n, Some(t))).collect(),
            initializer: constants.iter().map(|(n, t)| initializer(n, t)).collect(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let options = Options::default();
    let graph = import_model(&model, &NoExternalData, &options).expect("it imports").graph;
    let given: BTreeMap<String, Tensor> = inputs.iter().map(|(n, t)| (n.to_string(), t.clone())).collect();
    let want = evaluate(&graph, &given).expect("it can be evaluated");
    let names: Vec<String> = graph.outputs.iter().map(|o| o.name.to_string()).collect();
    let want: BTreeMap<String, Tensor> = names.into_iter().zip(want).collect();
    let program =
        pipeline::compile_graph(graph, Stats::default(), &options, &mut |_, _| {}).expect("it compiles");
    for gpu in Backend::adapters() {
        let mut session = wgfc_runtime::Session::new_blocking(&gpu, &program).expect("it loads");
        let values: Vec<(&str, Tensor)> = inputs.iter().map(|(n, t)| (*n, t.clone())).collect();
        for (name, got) in session.run_blocking(&values).expect("it runs") {
            let want = &want[&name];
            assert_eq!(
                (got.dtype, &got.shape),
                (want.dtype, &want.shape),
                "{name} on {}",
                gpu.summary().name
            );
            assert_eq!(got.scalars(), want.scalars(), "{name} on {}", gpu.summary().name);
        }
    }
    want
}

#[test]
fn integers_wrap_as_constants_and_as_inputs() {
    let far =
        [0, 1, -1, 2, 7, i64::MAX, i64::MIN, i64::MIN + 1, 1 << 62, 1 << 32, (1 << 53) + 1, -(1 << 31) - 1];
    let n = far.len();
    let all =
        |f: &dyn Fn(usize) -> i64| Tensor::from_i64(vec![n * n], &(0..n * n).map(f).collect::<Vec<_>>());
    let (a, b) = (all(&|i| far[i / n]), all(&|i| far[i % n]));
    let mut nodes = vec![];
    for (kind, x, y) in [("input", "a", "b"), ("constant", "ca", "cb")] {
        for op in ["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "BitwiseXor"] {
            nodes.push(node(op, &[x, y], format!("{op} {kind}")));
        }
        for op in ["Neg", "Abs", "Sign", "BitwiseNot"] {
            nodes.push(node(op, &[x], format!("{op} {kind}")));
        }
        nodes.push(node("CumSum", &[y, "axis"], format!("CumSum {kind}")));
        nodes.push(node("ReduceSum", &[y], format!("ReduceSum {kind}")));
    }
    let axis = Tensor::from_i64(vec![], &[0]);
    let constants = [("ca", a.clone()), ("cb", b.clone()), ("axis", axis)];
    let outputs = agree(nodes, &[("a", a), ("b", b)], &constants);
    for (name, t) in outputs.iter().filter_map(|(n, t)| Some((n.strip_suffix(" input")?, t))) {
        assert_eq!(t.to_i64s(), outputs[&format!("{name} constant")].to_i64s(), "{name}");
    }
}

#[test]
fn indices_outside_give_the_same_everywhere() {
    let x = Tensor::from_f32(vec![4, 3], &(0..12).map(|v| v as f32).collect::<Vec<_>>());
    let table = Tensor::from_f32(vec![4], &[10.0, 11.0, 12.0, 13.0]);
    for dtype in [DType::I32, DType::I64] {
        let mut far = vec![0, -1, 1, -2, 4, -5, i64::from(i32::MAX), i64::from(i32::MIN)];
        if dtype == DType::I64 {
            far.extend([1 << 31, 1 << 32, (1 << 32) + 1, -(1 << 32) - 1, i64::MAX, i64::MIN]);
        }
        let n = far.len();
        let ints = |shape: Vec<usize>, v: &[i64]| {
            let s: Vec<_> = v.iter().map(|v| wgfc_ir::Scalar::from_i64(dtype, *v)).collect();
            Tensor::from_scalars(dtype, shape, &s)
        };
        let wide = |v: &[i64]| Tensor::from_i64(vec![n, 1], v);
        let up = Tensor::from_f32(vec![n], &(0..n).map(|v| v as f32 + 100.0).collect::<Vec<_>>());
        let nodes = vec![
            node("Gather", &["x", "i"], "rows".into()),
            node("GatherElements", &["t", "i"], "elements".into()),
            node("GatherND", &["x", "p"], "points".into()),
            node("ScatterElements", &["t", "i", "u"], "scattered".into()),
            node("ScatterND", &["t", "p", "u"], "placed".into()),
        ];
        let inputs = [
            ("x", x.clone()),
            ("t", table.clone()),
            ("i", ints(vec![n], &far)),
            ("p", wide(&far)),
            ("u", up),
        ];
        let out = agree(nodes, &inputs, &[]);
        let read: Vec<f32> = far
            .iter()
            .map(|i| 10.0 + (if *i < 0 { i.saturating_add(4) } else { *i }).clamp(0, 3) as f32)
            .collect();
        assert_eq!(out["elements"].to_f32s(), Some(read));
        assert_eq!(out["scattered"].to_f32s(), Some(vec![100.0, 102.0, 103.0, 101.0]));
    }
}
