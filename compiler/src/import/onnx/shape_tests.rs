//! Tests of shapes that a model computes from other shapes.

use super::messages::*;
use super::testing::*;
use crate::Options;
use crate::import::{NoExternalData, import};
use prost::Message;
use wgfc_ir::DType::{F32, I64};

fn built(nodes: Vec<NodeProto>, x: &str, consts: Vec<TensorProto>) -> ModelProto {
    let mut g = graph(nodes, vec![value("x", F32, x)], vec![untyped("y")]);
    g.initializer = consts;
    model(g)
}

#[test]
fn reshape_against_symbols() {
    let reshape = |from: &str, to: &[i64]| {
        let m =
            built(vec![node("Reshape", &["x", "s"], &["y"])], from, vec![ints("s", &[to.len() as i64], to)]);
        output_type(&m)
    };
    assert_eq!(reshape("batch seq 12", &[0, 0, 3, -1]), "f32[batch, seq, 3, 4]");
    assert_eq!(reshape("batch seq 12", &[-1, 12]), "f32[batch*seq, 12]");
    assert_eq!(reshape("past seq seq+past 12", &[0, 0, -1]), "f32[past, seq, 12*past + 12*seq]");
    assert_eq!(reshape("n 6", &[-1, 4]), "f32[(3*n)/2, 4]");
    assert_eq!(reshape("3 0 2", &[-1, 5]), "f32[0, 5]");
    assert_eq!(reshape("1 1", &[]), "f32[]");
}

#[test]
fn shape_start_and_end() {
    // The shape of y is shape(x)[-3:-1] + [4].
    let nodes = vec![
        node("Shape", &["x"], &["s"]).int("start", -3).int("end", -1),
        node("Concat", &["s", "four"], &["to"]).int("axis", 0),
        node("ConstantOfShape", &["to"], &["y"]),
    ];
    let m = built(nodes, "b c h w", vec![ints("four", &[1], &[4])]);
    assert_eq!(output_type(&m), "f32[c, h, 4]");
}

#[test]
fn a_range_has_the_length_of_a_dimension() {
    let nodes = vec![
        node("Shape", &["x"], &["s"]),
        node("Gather", &["s", "one"], &["n"]).int("axis", 0),
        node("Add", &["n", "n"], &["m"]),
        node("Range", &["zero", "m", "two"], &["y"]),
    ];
    let consts = vec![ints("one", &[], &[1]), ints("zero", &[], &[0]), ints("two", &[], &[2])];
    assert_eq!(output_type(&built(nodes, "b seq", consts)), "i64[seq]");
}

#[test]
fn a_shape_slice_with_far_ends() {
    for (start, end, want) in [
        (1, i64::MAX, "f32[c, h, w]"),
        (i64::MIN, 2, "f32[b, c]"),
        (-2, i64::MAX, "f32[h, w]"),
        (i64::MIN + 1, -1, "f32[b, c, h]"),
    ] {
        let nodes = vec![
            node("Shape", &["x"], &["s"]),
            node("Slice", &["s", "from", "to"], &["part"]),
            node("ConstantOfShape", &["part"], &["y"]),
        ];
        let m = built(nodes, "b c h w", vec![ints("from", &[1], &[start]), ints("to", &[1], &[end])]);
        assert_eq!(output_type(&m), want, "[{start}:{end}]");
    }
}

#[test]
fn sizes_through_floats() {
    // An exporter writes upsampling as floor(float(h) * 1.5), converted to int.
    let nodes = vec![
        node("Shape", &["x"], &["s"]),
        node("Cast", &["s"], &["f"]).int("to", 1),
        node("Mul", &["f", "scale"], &["g"]),
        node("Floor", &["g"], &["h"]),
        node("Cast", &["h"], &["i"]).int("to", 7),
        node("ConstantOfShape", &["i"], &["y"]),
    ];
    let m = built(nodes, "h 5", vec![floats("scale", &[], &[1.5])]);
    assert_eq!(output_type(&m), "f32[(3*h)/2, 7]");
}

/// `y` has the shape `f(float(n))`, where `f` applies `steps`: operators of one operand, or of one operand and a constant.
fn through_floats(steps: &[(&str, Option<f32>)], x: &str) -> ModelProto {
    let mut nodes =
        vec![node("Shape", &["x"], &["s"]).int("end", 1), node("Cast", &["s"], &["f0"]).int("to", 1)];
    let mut consts = vec![];
    for (i, (op, with)) in steps.iter().enumerate() {
        let (from, to, c) = (format!("f{i}"), format!("f{}", i + 1), format!("c{i}"));
        match with {
            Some(v) => {
                nodes.push(node(op, &[&from, &c], &[&to]));
                consts.push(floats(&c, &[], &[*v]));
            }
            None => nodes.push(node(op, &[&from], &[&to])),
        }
    }
    nodes.push(node("Cast", &[&format!("f{}", steps.len())], &["to"]).int("to", 7));
    nodes.push(node("ConstantOfShape", &["to"], &["y"]));
    built(nodes, x, consts)
}

#[test]
fn float_arithmetic_of_dimensions_is_exact_or_unknown() {
    for (steps, want) in [
        (&[("Div", Some(2.0)), ("Ceil", None)][..], "f32[(n + 1)/(2)]"),
        (&[("Div", Some(3.0)), ("Floor", None), ("Mul", Some(3.0))], "f32[3*((n)/(3))]"),
        (&[("Mul", Some(6.0)), ("Div", Some(3.0))], "f32[2*n]"),
        (&[("Mul", Some(0.5)), ("Add", Some(1.5)), ("Floor", None)], "f32[(n + 1)/(2) + 1]"),
        (&[("Pow", Some(2.0)), ("Sqrt", None)], "f32[n]"),
        (&[("Div", Some(4.0)), ("Mul", Some(4.0))], "f32[n]"),
    ] {
        let i = import_it(&through_floats(steps, "n")).unwrap_or_else(|e| panic!("{steps:?}: {e}"));
        let g = &i.graph;
        let y = g.ty(g.outputs[0].value);
        for n in [1, 2, 3, 7, 8, 31] {
            let want = want.trim_start_matches("f32[").trim_end_matches(']');
            let want = wgfc_ir::Poly::parse(want).unwrap();
            let at = |p: &wgfc_ir::Poly| p.eval_syms(&|_| Some(n));
            assert_eq!(at(&y.shape[0]), at(&want), "{steps:?} of {n}: {y}");
        }
    }
    // f32 rounds the quotient before it is multiplied by its divisor; 0.1 is not a fraction with a small denominator.
    for steps in [&[("Div", Some(7.0)), ("Mul", Some(7.0))][..], &[("Mul", Some(0.1))]] {
        assert!(errors(&through_floats(steps, "n")).contains("must be known"), "{steps:?}");
    }
    // Constant sizes are computed in f32.
    assert_eq!(output_type(&through_floats(&[("Mul", Some(0.1))], "30")), "f32[3]");
    // Narrower floats cannot represent all sizes: 2049 is rounded to 2048 in f16.
    let narrow = |to: i64, x: &str| {
        let nodes = vec![
            node("Shape", &["x"], &["s"]).int("end", 1),
            node("Cast", &["s"], &["f"]).int("to", to),
            node("Cast", &["f"], &["to"]).int("to", 7),
            node("ConstantOfShape", &["to"], &["y"]),
        ];
        built(nodes, x, vec![])
    };
    for to in [10, 16] {
        assert!(errors(&narrow(to, "n")).contains("must be known"), "{to}");
        assert_eq!(output_type(&narrow(to, "2049")), "f32[2048]", "{to}");
    }
}

#[test]
fn ranges_of_floats_have_dimensions_as_bounds() {
    for (from, to, by, want) in [
        (Some(0.0), None, 1.0, "f32[n]"),
        (Some(0.0), None, 0.5, "f32[2*n]"),
        (Some(1.5), None, 2.0, "f32[max(0, (2*n)/(4))]"),
        (None, Some(0.0), -1.0, "f32[n]"),
    ] {
        let nodes = vec![
            node("Shape", &["x"], &["s"]),
            node("Gather", &["s", "zero"], &["d"]),
            node("Cast", &["d"], &["f"]).int("to", 1),
            node("Range", &[from.map_or("f", |_| "from"), to.map_or("f", |_| "to"), "by"], &["y"]),
        ];
        let number = |name: &str, v: Option<f32>| floats(name, &[], &[v.unwrap_or_default()]);
        let consts =
            vec![ints("zero", &[], &[0]), number("from", from), number("to", to), number("by", Some(by))];
        let i = import_it(&built(nodes, "n", consts)).unwrap();
        let y = i.graph.ty(i.graph.outputs[0].value).clone();
        let want = wgfc_ir::Poly::parse(want.trim_start_matches("f32[").trim_end_matches(']')).unwrap();
        for n in 1..9 {
            let at = |p: &wgfc_ir::Poly| p.eval_syms(&|_| Some(n));
            assert_eq!(at(&y.shape[0]), at(&want), "{from:?} {to:?} {by} of {n}: {y}");
        }
    }
}

#[test]
fn shapes_may_be_i32() {
    let small = |name: &str, v: &[i64]| {
        let bytes: Vec<u8> = v.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect();
        TensorProto {
            name: name.into(),
            dims: vec![v.len() as i64],
            data_type: data_type::code(wgfc_ir::DType::I32),
            raw_data: Vec::into(bytes),
            ..Default::default()
        }
    };
    for (n, consts, want) in [
        (node("Reshape", &["x", "a"], &["y"]), vec![small("a", &[2, -1])], "f32[2, 6]"),
        (node("Expand", &["x", "a"], &["y"]), vec![small("a", &[2, 1, 1])], "f32[2, 3, 4]"),
        (node("Tile", &["x", "a"], &["y"]), vec![small("a", &[2, 1])], "f32[6, 4]"),
        (node("Unsqueeze", &["x", "a"], &["y"]), vec![small("a", &[0])], "f32[1, 3, 4]"),
        (node("Pad", &["x", "a"], &["y"]), vec![small("a", &[0, 1, 0, 1])], "f32[3, 6]"),
        (node("ReduceSum", &["x", "a"], &["y"]), vec![small("a", &[1])], "f32[3, 1]"),
        (node("Resize", &["x", "", "", "a"], &["y"]), vec![small("a", &[6, 8])], "f32[6, 8]"),
        (node("TopK", &["x", "a"], &["y", "i"]), vec![small("a", &[2])], "f32[3, 2]"),
    ] {
        let m = built(vec![n.clone()], "3 4", consts);
        assert_eq!(output_type(&m), want);
        let warnings = import_it(&m).unwrap().warnings;
        assert!(warnings.iter().any(|w| w.contains("i32") && w.contains(&n.op_type)), "{warnings:?}");
    }
}

#[test]
fn wrong_declared_shapes_are_worth_a_warning() {
    for (declared, known) in [("1 k 3", "batch 7"), ("batch 8", "batch 7"), ("7", "batch 7")] {
        let mut m = built(vec![node("Relu", &["x"], &["y"])], known, vec![]);
        m.graph.as_mut().unwrap().output = vec![value("y", F32, declared)];
        assert_eq!(output_type(&m), "f32[batch, 7]");
        let warnings = import_it(&m).unwrap().warnings;
        assert!(warnings.iter().any(|w| w.contains("\"y\"") && w.contains("declared")), "{warnings:?}");
    }
}

#[test]
fn a_choice_by_dimensions_waits_for_them() {
    // torch's squeeze: if x.shape[-1] == 1, the axis is removed. The other branch is invalid for all shapes.
    let broken = graph(vec![node("Reshape", &["x", "no"], &["e"])], vec![], vec![untyped("e")]);
    let squeezed = graph(vec![node("Squeeze", &["x", "last"], &["t"])], vec![], vec![untyped("t")]);
    let nodes = vec![
        node("Shape", &["x"], &["s"]),
        node("Gather", &["s", "last"], &["n"]),
        node("Equal", &["n", "one"], &["c"]),
        node("If", &["c"], &["y"]).named("if").graph("then_branch", squeezed).graph("else_branch", broken),
    ];
    let consts = vec![ints("last", &[1], &[-1]), ints("one", &[], &[1]), ints("no", &[2], &[-1, -1])];
    let m = built(nodes, "b c n", consts);
    let open = errors(&m);
    assert!(open.contains("not known: n") && open.contains("--dim"), "{open}");
    assert!(!open.contains("Reshape") && !open.contains("Squeeze"), "{open}");
    let at = |n: i64| {
        let options = Options { dims: [("n".to_owned(), n)].into(), ..Default::default() };
        import(&m.encode_to_vec(), &NoExternalData, &options)
    };
    let chosen = at(1).unwrap();
    assert_eq!(chosen.graph.ty(chosen.graph.outputs[0].value).to_string(), "f32[b, c]");
    let other = at(2).unwrap_err().to_string();
    assert!(other.contains("Reshape") && !other.contains("Squeeze"), "{other}");
}

#[test]
fn products_of_dimensions_are_64_bits_wide() {
    // The index expression would wrap in 32 bits.
    let nodes = vec![
        node("Shape", &["x"], &["s"]),
        node("Mul", &["s", "s"], &["q"]),
        node("Mul", &["q", "q"], &["y"]),
    ];
    let m = built(nodes, "n", vec![]);
    let g = import_it(&m).unwrap().graph;
    let x = wgfc_ir::Tensor::from_f32(vec![3000], &[0.0; 3000]);
    let y = wgfc_ir::eval::evaluate(&g, &[("x".to_owned(), x)].into()).unwrap();
    assert_eq!(y[0].to_i64s(), Some(vec![81_000_000_000_000]));
}

#[test]
fn a_decided_choice() {
    // torch's expand: where(size == -1, 1, size)
    let nodes = vec![
        node("Shape", &["x"], &["s"]),
        node("Equal", &["s", "minus"], &["c"]),
        node("Where", &["c", "ones", "s"], &["to"]),
        node("Expand", &["x", "to"], &["y"]),
    ];
    let m = built(nodes, "b seq", vec![ints("minus", &[], &[-1]), ints("ones", &[2], &[1, 1])]);
    assert_eq!(output_type(&m), "f32[b, seq]");
}

#[test]
fn a_shape_as_data_is_a_map_without_operands() {
    let m = built(vec![node("Shape", &["x"], &["y"])], "b seq", vec![]);
    let i = import_it(&m).unwrap();
    assert_eq!(i.graph.ty(i.graph.outputs[0].value), &wgfc_ir::TensorType::new(I64, vec![2i64.into()]));
    // The graph consists of the input and the map.
    assert_eq!(i.graph.len(), 2);
}

#[test]
fn dimensions_by_text() {
    let types = |dims: &str, fix: &[(&str, i64)]| {
        let m = model(graph(
            vec![node("Identity", &["x"], &["y"])],
            vec![value("x", F32, dims), value("past_in", F32, "past")],
            vec![untyped("y")],
        ));
        let dims = fix.iter().map(|(k, v)| (k.to_string(), *v)).collect();
        let i = import(&m.encode_to_vec(), &NoExternalData, &Options { dims, ..Default::default() }).unwrap();
        i.graph.ty(i.graph.outputs[0].value).to_string()
    };
    assert_eq!(types("batch past+seq", &[]), "f32[batch, past + seq]");
    assert_eq!(types("batch past+seq", &[("past", 3)]), "f32[batch, seq + 3]");
    // An expression with two undetermined symbols becomes one symbol.
    assert_eq!(types("a*b 2", &[]), "f32[a_b, 2]");
    assert_eq!(types("? 2 dyn::0", &[]), "f32[x_0, 2, dyn__0]");
}

#[test]
fn functions_are_inlined_with_their_attributes() {
    let leaf = FunctionProto {
        name: "Last".into(),
        domain: "local".into(),
        input: vec!["a".into(), "bias".into()],
        output: vec!["b".into()],
        attribute: vec!["along".into()],
        node: vec![
            node("Softmax", &["a"], &["t"]).by_ref("axis", "along"),
            node("Clip", &["t", "bias"], &["b"]),
        ],
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 18 }],
        ..Default::default()
    };
    let outer = FunctionProto {
        name: "Outer".into(),
        node: vec![
            node("Last", &["a"], &["t"]).of("local").int("along", 1),
            node("Transpose", &["t"], &["b"]),
        ],
        opset_import: vec![
            OperatorSetIdProto { domain: String::new(), version: 18 },
            OperatorSetIdProto { domain: "local".into(), version: 1 },
        ],
        attribute: vec![],
        input: vec!["a".into()],
        ..leaf.clone()
    };
    let mut m = model(graph(
        vec![node("Outer", &["x"], &["y"]).of("local").named("call")],
        vec![value("x", F32, "2 3 5")],
        vec![untyped("y")],
    ));
    m.functions = vec![leaf, outer];
    m.opset_import.push(OperatorSetIdProto { domain: "local".into(), version: 1 });
    assert_eq!(output_type(&m), "f32[5, 3, 2]");
    let i = import_it(&m).unwrap();
    let softmax = i.graph.node_ids().find(|n| i.graph.node(*n).op.name() == "softmax").unwrap();
    assert_eq!(i.graph.node(softmax).label(), "call/#0 (Last)/#0 (Softmax)");
    assert!(matches!(i.graph.node(softmax).op, wgfc_ir::Op::Softmax { axis: 1, log: false }));
}

#[test]
fn a_known_condition_selects_its_branch() {
    let branch = |op: &str| graph(vec![node(op, &["x"], &["r"])], vec![], vec![untyped("r")]);
    let nodes = vec![
        node("Shape", &["x"], &["s"]).int("start", 1),
        node("Equal", &["s", "seven"], &["c"]),
        node("If", &["c"], &["y"])
            .graph("then_branch", branch("Sigmoid"))
            .graph("else_branch", branch("Transpose")),
    ];
    let m = |x: &str| output_type(&built(nodes.clone(), x, vec![ints("seven", &[1], &[7])]));
    assert_eq!(m("b 7"), "f32[b, 7]");
    assert_eq!(m("b 8"), "f32[8, b]");
}

#[test]
fn a_condition_on_data_keeps_both_branches() {
    let branch = |op: &str| graph(vec![node(op, &["x"], &["r"])], vec![], vec![untyped("r")]);
    let nodes = vec![
        node("ReduceMax", &["x"], &["m"]).int("keepdims", 0),
        node("Greater", &["m", "m"], &["c"]),
        node("If", &["c"], &["y"])
            .graph("then_branch", branch("Sigmoid"))
            .graph("else_branch", branch("Neg")),
    ];
    assert_eq!(output_type(&built(nodes, "b 7", vec![])), "f32[b, 7]");
}

#[test]
fn an_input_that_decides_a_shape_can_be_given() {
    let mut g = graph(
        vec![
            node("Neg", &["size"], &["n"]),
            node("Neg", &["n"], &["m"]),
            node("Expand", &["x", "m"], &["y"]),
        ],
        vec![value("x", F32, "3 1"), value("size", I64, "2")],
        vec![untyped("y")],
    );
    let bytes = model(g.clone()).encode_to_vec();
    let mut options = Options::default();
    assert_eq!(super::shape_inputs(&bytes, &NoExternalData, &options), ["size"]);
    options.values.insert("size".into(), wgfc_ir::Tensor::from_i64(vec![2], &[3, 5]));
    let m = import(&bytes, &NoExternalData, &options).unwrap();
    assert_eq!(m.graph.ty(m.graph.outputs[0].value).to_string(), "f32[3, 5]");
    assert_eq!(m.graph.inputs.len(), 1);
    // A value of another type is refused.
    g.input[1] = value("size", F32, "2");
    assert!(import(&model(g).encode_to_vec(), &NoExternalData, &options).is_err());
}

#[test]
fn a_given_value_comes_before_an_initializer() {
    let mut g = graph(
        vec![node("Expand", &["x", "size"], &["y"])],
        vec![value("x", F32, "3 1"), value("size", I64, "2")],
        vec![untyped("y")],
    );
    g.initializer = vec![ints("size", &[2], &[3, 4])];
    let bytes = model(g).encode_to_vec();
    let mut options = Options::default();
    let shape = |options: &Options| {
        let m = import(&bytes, &NoExternalData, options).unwrap();
        m.graph.ty(m.graph.outputs[0].value).to_string()
    };
    assert_eq!(shape(&options), "f32[3, 4]");
    options.values.insert("size".into(), wgfc_ir::Tensor::from_i64(vec![2], &[3, 5]));
    assert_eq!(shape(&options), "f32[3, 5]");
}

/// A loop body that returns the condition, the carried value `acc + i`, and the slice `2·(acc + i)`.
fn summing_body(condition: NodeProto) -> GraphProto {
    let nodes = vec![
        condition,
        node("Cast", &["i"], &["f"]).int("to", 1),
        node("Add", &["acc", "f"], &["next"]),
        node("Mul", &["next", "scale"], &["slice"]),
    ];
    graph(
        nodes,
        vec![untyped("i"), untyped("c"), untyped("acc")],
        vec![untyped("c2"), untyped("next"), untyped("slice")],
    )
}

fn run_loop(body: GraphProto, trips: &[i64]) -> (Vec<&'static str>, Vec<Vec<f32>>) {
    let nodes = vec![node("Loop", &["trips", "yes", "x"], &["last", "y"]).graph("body", body)];
    let mut g = graph(nodes, vec![value("x", F32, "3")], vec![untyped("last"), untyped("y")]);
    let yes = TensorProto { name: "yes".into(), data_type: 9, int32_data: vec![1], ..Default::default() };
    g.initializer = vec![ints("trips", &[], trips), yes, floats("scale", &[], &[2.0])];
    let m = import_it(&model(g)).unwrap_or_else(|e| panic!("{e}"));
    let x = wgfc_ir::Tensor::from_f32(vec![3], &[0.5, 1.0, -1.0]);
    let out = wgfc_ir::eval::evaluate(&m.graph, &[("x".to_owned(), x)].into()).unwrap();
    let ops = m.graph.node_ids().map(|n| m.graph.node(n).op.name()).collect();
    (ops, out.iter().map(|t| t.to_f32s().unwrap()).collect())
}

#[test]
fn a_loop_that_runs_to_its_end_is_a_scan() {
    let (ops, out) = run_loop(summing_body(node("Identity", &["c"], &["c2"])), &[4]);
    assert!(ops.contains(&"scan") && !ops.contains(&"while"), "{ops:?}");
    assert_eq!(out[0], [6.5, 7.0, 5.0]);
    assert_eq!(out[1], [1.0, 2.0, -2.0, 3.0, 4.0, 0.0, 7.0, 8.0, 4.0, 13.0, 14.0, 10.0]);
}

#[test]
fn a_loop_that_may_stop_stays_one() {
    let mut body = summing_body(node("ReduceMax", &["acc"], &["m"]).int("keepdims", 0));
    body.node.insert(1, node("Less", &["m", "scale"], &["c2"]));
    let (ops, out) = run_loop(body, &[9]);
    assert!(ops.contains(&"while"), "{ops:?}");
    // The largest carried value is 1, 1, 2: the third iteration is the last.
    assert_eq!(out[0], [3.5, 4.0, 2.0]);
    assert_eq!(out[1].len(), 9);
}

#[test]
fn a_loop_whose_carried_shape_grows_is_unrolled() {
    let body = graph(
        vec![node("Identity", &["c"], &["c2"]), node("Concat", &["acc", "x"], &["next"]).int("axis", 0)],
        vec![untyped("i"), untyped("c"), untyped("acc")],
        vec![untyped("c2"), untyped("next")],
    );
    let nodes = vec![node("Loop", &["trips", "", "x"], &["y"]).graph("body", body)];
    assert_eq!(output_type(&built(nodes, "3 n", vec![ints("trips", &[], &[4])])), "f32[15, n]");
}

#[test]
fn damaged_models_are_refused_without_a_panic() {
    use proptest::prelude::*;
    let nodes = vec![
        node("Shape", &["x"], &["s"]),
        node("Slice", &["s", "k", "far"], &["t"]),
        node("Concat", &["t", "k"], &["u"]).int("axis", 0),
        node("Reshape", &["x", "u"], &["v"]).named("r"),
        node("Softmax", &["v"], &["w"]).int("axis", 1),
        node("MaxPool", &["z"], &["p"]).ints("kernel_shape", &[3, 2]).ints("pads", &[1, 0, 1, 1]),
        node("Unsqueeze", &["x", "zk"], &["z"]),
        node("Conv", &["z", "f"], &["y"]).ints("strides", &[2, 1]),
    ];
    let mut g = graph(nodes, vec![value("x", F32, "n 4 7")], vec![untyped("y"), untyped("w"), untyped("p")]);
    g.initializer = vec![
        ints("k", &[1], &[1]),
        ints("zk", &[1], &[1]),
        ints("far", &[1], &[i64::MAX]),
        floats("f", &[2, 1, 2, 3], &[0.5; 12]),
    ];
    let bytes = model(g).encode_to_vec();
    import(&bytes, &NoExternalData, &Options::default()).unwrap();
    proptest!(ProptestConfig::with_cases(400), |(flips in prop::collection::vec((0..bytes.len(), any::<u8>()), 0..4), cut in 0..bytes.len() * 2)| {
        let mut b = bytes.clone();
        for (at, to) in flips {
            b[at] = to;
        }
        b.truncate(cut.max(1));
        let _ = import(&b, &NoExternalData, &Options::default());
    });
}
