//! Tests with hand-written programs.

use super::super::NoExternalData;
use super::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_ir::{Dim, Tensor};

/// A program with the input `x: f32[s0, 4]`, the given nodes, and the result `y`.
fn program(nodes: Value, conditions: Value) -> Vec<u8> {
    let size = |e: &str| json!({"as_expr": {"expr_str": e}});
    let meta = json!({"dtype": 7, "sizes": [size("Symbol('s0')"), {"as_int": 4}], "layout": 7});
    let x = json!({"as_tensor": {"name": "x"}});
    let y = json!({"as_tensor": {"name": "y"}});
    let graph = json!({
        "inputs": [x], "outputs": [y], "nodes": nodes,
        "tensor_values": {"x": meta, "y": meta},
        "sym_bool_values": conditions,
    });
    let signature =
        json!({"input_specs": [{"user_input": {"arg": x}}], "output_specs": [{"user_output": {"arg": y}}]});
    let whole = json!({
        "graph_module": {"graph": graph, "signature": signature},
        "schema_version": {"major": 8, "minor": 0},
    });
    whole.to_string().into_bytes()
}

fn node(target: &str, inputs: Value, outputs: Value) -> Value {
    json!({"target": target, "inputs": inputs, "outputs": outputs, "metadata": {}})
}

fn relu() -> Value {
    let arg = json!([{"name": "self", "arg": {"as_tensor": {"name": "x"}}}]);
    node("torch.ops.aten.relu.default", arg, json!([{"as_tensor": {"name": "y"}}]))
}

fn run(nodes: Value, conditions: Value) -> Result<Imported, Errors> {
    import(&program(nodes, conditions), &NoExternalData, &Options::default())
}

#[test]
fn an_operator_without_results_is_not_passed_over() {
    let arg = json!([{"name": "to", "arg": {"as_tensor": {"name": "x"}}}]);
    let write = node("torch.ops.mine.write.default", arg, json!([]));
    let e = run(json!([write, relu()]), json!({})).unwrap_err().to_string();
    assert!(e.contains("operator mine.write.default is not supported"), "{e}");
    assert!(run(json!([relu()]), json!({})).is_ok());
}

#[test]
fn assertions_on_sizes_are_constraints() {
    let assert = || {
        let arg = json!([{"name": "self", "arg": {"as_sym_bool": {"as_name": "c"}}}, {"name": "assert_msg", "arg": {"as_string": "no"}}]);
        node("torch.ops.aten._assert_scalar.default", arg, json!([]))
    };
    let of = |text: &str| {
        let outputs = json!([{"as_sym_bool": {"as_name": "c"}}]);
        let compared = node("_operator.ge", json!([]), outputs);
        run(json!([compared, assert(), relu()]), json!({"c": {"as_expr": {"expr_str": text}}}))
    };
    let g = of("GreaterThan(Symbol('s0'), Integer(3))").unwrap().graph;
    assert_eq!(g.constraints.len(), 1);
    assert_eq!(
        (g.constraints[0].a.to_string(), g.constraints[0].b.to_string()),
        ("max(3, s0)".into(), "s0".into())
    );
    assert!(of("GreaterThan(Symbol('s0'), Integer(0))").unwrap().graph.constraints.is_empty());
    let both = |text: &str| {
        let c = of(text).unwrap().graph.constraints;
        assert_eq!(c.len(), 1, "{text}");
        (c[0].a.clone(), c[0].b.clone())
    };
    let holds = |(a, b): &(Dim, Dim), n: i64| a.eval_syms(&|_| Some(n)) == b.eval_syms(&|_| Some(n));
    let different = both("Unequality(Symbol('s0'), Integer(1))");
    assert!((0..9).all(|n| holds(&different, n) == (n != 1)), "{different:?}");
    let either = both("Or(GreaterThan(Symbol('s0'), Integer(3)), Equality(Symbol('s0'), Integer(1)))");
    assert!((0..9).all(|n| holds(&either, n) == (n >= 3 || n == 1)), "{either:?}");
    let e = of("Sin(Symbol('s0'))").unwrap_err().to_string();
    assert!(e.contains("is not understood"), "{e}");
}

/// The values of `y` for an `x` of `rows` rows with elements 0, 1, 2, ….
fn values(nodes: Value, rows: usize) -> Vec<f32> {
    let graph = import(&program_of_integers(nodes), &NoExternalData, &Options::default()).unwrap().graph;
    let x: Vec<f32> = (0..rows * 4).map(|i| i as f32).collect();
    let given = BTreeMap::from([("x".to_owned(), Tensor::from_f32(vec![rows, 4], &x))]);
    let got = evaluate_from(&graph, &given, &mut StateValues::default()).unwrap();
    got[0].to_f32s().unwrap()
}

/// [`program`] with an integer `k = s0 - 3`, and rows of `x`.
fn program_of_integers(nodes: Value) -> Vec<u8> {
    let mut whole: Value = serde_json::from_slice(&program(nodes, json!({}))).unwrap();
    let graph = &mut whole["graph_module"]["graph"];
    let k = json!({"as_expr": {"expr_str": "Add(Symbol('s0'), Integer(-3))"}});
    graph["sym_int_values"] = json!({"k": k});
    let x = graph["tensor_values"]["x"].clone();
    for name in ["a", "b"] {
        graph["tensor_values"][name] = x.clone();
    }
    graph["tensor_values"]["row"] = json!({"dtype": 7, "sizes": [{"as_int": 4}], "layout": 7});
    whole.to_string().into_bytes()
}

fn tensor(name: &str) -> Value {
    json!({"as_tensor": {"name": name}})
}

fn arguments(given: &[(&str, Value)]) -> Value {
    given.iter().map(|(name, arg)| json!({"name": name, "arg": arg})).collect()
}

#[test]
fn a_size_may_be_a_position_from_the_end() {
    let k = json!({"as_sym_int": {"as_name": "k"}});
    let select = arguments(&[("self", tensor("x")), ("dim", json!({"as_int": 0})), ("index", k)]);
    let add = arguments(&[("self", tensor("x")), ("other", tensor("row"))]);
    let nodes = json!([
        node("torch.ops.aten.select.int", select, json!([tensor("row")])),
        node("torch.ops.aten.add.Tensor", add, json!([tensor("y")])),
    ]);
    // Row 2 of 5, and row -1 of 2.
    assert_eq!(values(nodes.clone(), 5)[..4], [8.0, 10.0, 12.0, 14.0]);
    assert_eq!(values(nodes, 2)[..4], [4.0, 6.0, 8.0, 10.0]);
}

#[test]
fn operators_on_lists_are_those_on_tensors() {
    let list =
        |names: &[&str]| json!({"as_tensors": names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>()});
    let scalars = json!({"as_floats": [2.0, 3.0]});
    let product = arguments(&[("self", list(&["x", "x"])), ("scalars", scalars)]);
    let sum = arguments(&[("self", list(&["a"])), ("other", list(&["b"])), ("alpha", json!({"as_int": 10}))]);
    let relu = arguments(&[("self", tensor("a"))]);
    let nodes = json!([
        node("torch.ops.aten._foreach_mul.ScalarList", product, json!([list(&["a", "b"])])),
        node("torch.ops.aten._foreach_add_.List", sum, json!([])),
        node("torch.ops.aten.relu.default", relu, json!([tensor("y")])),
    ]);
    assert_eq!(values(nodes, 1), [0.0, 32.0, 64.0, 96.0]);
}
