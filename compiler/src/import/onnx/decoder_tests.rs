//! Tests of decoders with inputs and attributes that they do not support.

use super::messages::*;
use super::testing::*;
use wgfc_ir::DType::{self, F32, I32, I64};

const MICROSOFT: &str = "com.microsoft";
const ML: &str = "ai.onnx.ml";

/// A model of one node: `inputs` are the types of its inputs, with `None` for one that is left out.
fn one(op: &str, domain: &str, inputs: &[Option<(DType, &str)>], outputs: usize, n: NodeProto) -> ModelProto {
    let name = |i: usize| format!("x{i}");
    let names: Vec<String> =
        inputs.iter().enumerate().map(|(i, t)| t.map_or(String::new(), |_| name(i))).collect();
    let made: Vec<String> = (0..outputs).map(|i| format!("y{i}")).collect();
    let declared =
        inputs.iter().enumerate().filter_map(|(i, t)| t.map(|(d, s)| value(&name(i), d, s))).collect();
    let n = NodeProto { op_type: op.into(), domain: domain.into(), input: names, output: made.clone(), ..n }
        .named("n");
    let mut m = model(graph(vec![n], declared, made.iter().map(|y| untyped(y)).collect()));
    m.opset_import[0].version = 24;
    m.opset_import.push(OperatorSetIdProto { domain: MICROSOFT.into(), version: 1 });
    m.opset_import.push(OperatorSetIdProto { domain: ML.into(), version: 5 });
    m
}

fn attributes() -> NodeProto {
    NodeProto::default()
}

const QUERY: Option<(DType, &str)> = Some((F32, "2 s 64"));
const KEY: Option<(DType, &str)> = Some((F32, "2 s 32"));

/// A model of `GroupQueryAttention` with four query heads and two key heads.
fn group_query(more: &[Option<(DType, &str)>], outputs: usize, n: NodeProto) -> ModelProto {
    let mut inputs = vec![QUERY, KEY, KEY, None, None, Some((I32, "2")), Some((I32, ""))];
    inputs.extend(more);
    one("GroupQueryAttention", MICROSOFT, &inputs, outputs, n.int("num_heads", 4).int("kv_num_heads", 2))
}

fn multi_head(more: &[Option<(DType, &str)>], outputs: usize, n: NodeProto) -> ModelProto {
    let mut inputs = vec![QUERY, QUERY, QUERY];
    inputs.extend(more);
    one("MultiHeadAttention", MICROSOFT, &inputs, outputs, n.int("num_heads", 4))
}

#[test]
fn what_is_left_out_is_refused_by_name() {
    for m in [group_query(&[], 3, attributes()), multi_head(&[], 1, attributes())] {
        assert!(import_it(&m).is_ok(), "{:?}", import_it(&m).err());
    }
    let scale = Some((F32, "1"));
    let table = Some((F32, "20 8"));
    let ids = Some((I64, "2 s"));
    let rotary = |n| one("RotaryEmbedding", MICROSOFT, &[QUERY, ids, table, table], 1, n);
    let skip = one(
        "SkipSimplifiedLayerNormalization",
        MICROSOFT,
        &[QUERY, QUERY, Some((F32, "64"))],
        2,
        attributes(),
    );
    let none = None;
    for (m, words) in [
        (
            group_query(&[none, none, none, none, none, scale], 3, attributes()),
            &["quantised keys", "x12"][..],
        ),
        (group_query(&[], 3, attributes().int("sliding_window_cache", 1)), &["sliding_window_cache"]),
        (group_query(&[], 3, attributes().int("qk_output", 1)), &["qk_output"]),
        (
            group_query(&[], 3, attributes().int("local_window_size", 0)),
            &["local_window_size", "window of 0"],
        ),
        (group_query(&[], 3, attributes().int("do_rotary", 1)), &["input"]),
        (multi_head(&[], 4, attributes()), &["scores as an output"]),
        (
            multi_head(&[none, none, none, none, none, Some((I32, ""))], 1, attributes()),
            &["past_sequence_length"],
        ),
        (multi_head(&[Some((F32, ""))], 1, attributes()), &["x3"]),
        (rotary(attributes().float("scale", 2.0)), &["scale"]),
        (rotary(attributes().int("is_packed_batching", 1)), &["is_packed_batching"]),
        (rotary(attributes().int("rotary_embedding_dim", 6)), &["rotary_embedding_dim", "[20, 8]"]),
        (skip, &["the mean as an output"]),
        (
            one(
                "Attention",
                "",
                &[QUERY, KEY, KEY],
                4,
                attributes().int("q_num_heads", 4).int("kv_num_heads", 2).int("qk_matmul_output_mode", 7),
            ),
            &["qk_matmul_output_mode", "mode 7"],
        ),
    ] {
        let e = errors(&m);
        for w in words {
            assert!(e.contains(w), "`{w}` is not in {e}");
        }
    }
}

#[test]
fn classical_models_that_mean_two_things_are_refused() {
    let x = Some((F32, "n 3"));
    let encoder = |op, n: NodeProto| one(op, ML, &[x], 1, n);
    let bytes =
        |v: &[u8]| TensorProto::of("m", &wgfc_ir::Tensor::new(DType::U8, vec![v.len()], v.to_vec()).unwrap());
    // A tree of one node with two leaves, for two targets.
    let ensemble = |post: i64| {
        let ids = ["nodes_featureids", "nodes_truenodeids", "tree_roots"].into_iter();
        let n = ids.fold(attributes(), |n, name| n.ints(name, &[0]));
        let ones = ["nodes_falsenodeids", "nodes_trueleafs", "nodes_falseleafs"].into_iter();
        let n = ones.fold(n, |n, name| n.ints(name, &[1]));
        let n = n.tensor("nodes_modes", bytes(&[0])).tensor("nodes_splits", floats("s", &[1], &[0.5]));
        let n = n.ints("leaf_targetids", &[0, 1]).tensor("leaf_weights", floats("w", &[2], &[1.0, 2.0]));
        one("TreeEnsemble", ML, &[x], 1, n.int("n_targets", 2).int("post_transform", post))
    };
    let regressor = |base: &[f32], given: &[i64]| {
        let zeros = ["nodes_treeids", "nodes_featureids"].into_iter();
        let n = zeros.fold(attributes(), |n, name| n.ints(name, &[0; 3]));
        let n = n.ints("nodes_nodeids", &[0, 1, 2]).texts("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF"]);
        let n = n.ints("nodes_truenodeids", &[1, 0, 0]).ints("nodes_falsenodeids", &[2, 0, 0]);
        let n = n.floats("nodes_values", &[0.5, 0.0, 0.0]).floats("target_weights", &vec![1.0; given.len()]);
        let n = n.ints("target_treeids", &vec![0; given.len()]).ints("target_nodeids", given);
        let targets: Vec<i64> = (0..given.len() as i64).map(|i| i % 2).collect();
        let n = n.ints("target_ids", &targets).int("n_targets", 2).floats("base_values", base);
        one("TreeEnsembleRegressor", ML, &[x], 1, n)
    };
    let least = |given: &[i64]| {
        let mut m = regressor(&[], given);
        let graph = m.graph.as_mut().unwrap();
        let n = graph.node.pop().unwrap().text("aggregate_function", "MIN");
        let mut n = n.ints("target_ids", &vec![0; given.len()]).int("n_targets", 1);
        // Among attributes of one name the last one counts.
        let mut seen = std::collections::BTreeSet::new();
        n.attribute.reverse();
        n.attribute.retain(|a| a.name != "base_values" && seen.insert(a.name.clone()));
        graph.node.push(n);
        m
    };
    let right = [
        ensemble(0),
        ensemble(3),
        regressor(&[], &[1, 2]),
        regressor(&[1.0, 2.0], &[1, 1, 2, 2]),
        least(&[1, 2]),
    ];
    for m in right {
        assert!(import_it(&m).is_ok(), "{:?}", import_it(&m).err());
    }
    for (m, words) in [
        (
            encoder("OneHotEncoder", attributes().texts("cats_strings", &["a"])),
            &["categories that are text"][..],
        ),
        (encoder("LabelEncoder", attributes().texts("keys_strings", &["a"])), &["keys that are text"]),
        (
            encoder("LabelEncoder", attributes().ints("keys_int64s", &[1]).ints("values_int64s", &[2])),
            &["keys of i64 for elements of f32"],
        ),
        (ensemble(1), &["takes for each other", "post_transform"]),
        (ensemble(2), &["takes for each other", "Sigmoid"]),
        (regressor(&[1.0, 2.0], &[1, 2]), &["base values of several targets"]),
        (least(&[1]), &["MIN and MAX over leaves that give nothing", "aggregate_function"]),
    ] {
        let e = errors(&m);
        for w in words {
            assert!(e.contains(w), "`{w}` is not in {e}");
        }
    }
}

#[test]
fn tables_of_angles_have_a_row_for_each_position() {
    let with = |s: &str, past: Option<&str>| {
        let (q, k, past) = (format!("1 {s} 64"), format!("1 {s} 32"), past.map(|p| format!("1 2 {p} 16")));
        let (q, k, past) = (Some((F32, &*q)), Some((F32, &*k)), past.as_deref().map(|p| (F32, p)));
        let table = Some((F32, "20 8"));
        let inputs = [q, k, k, past, past, Some((I32, "1")), Some((I32, "")), table, table];
        let heads = attributes().int("num_heads", 4).int("kv_num_heads", 2).int("do_rotary", 1);
        one("GroupQueryAttention", MICROSOFT, &inputs, 3, heads)
    };
    let above = |m: &ModelProto| {
        let graph = import_it(m).unwrap_or_else(|e| panic!("{e}")).graph;
        graph.constraints.iter().flat_map(|c| c.nonneg()).map(|d| d.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        above(&with("s", Some("p"))),
        ["-n_seqlens_k_5 + n_total_sequence_length_6 - 1", "-p - s + 20"]
    );
    assert_eq!(above(&with("s", None)), ["-s + 20"]);
    assert_eq!(above(&with("20", None)), [""; 0]);
    let e = errors(&with("21", None));
    assert!(e.contains("row 20 of a table of 20") && e.contains("x7"), "{e}");
}

/// An operator, its domain, valid operands, and its attributes.
type Fit = (&'static str, &'static str, Vec<(DType, &'static str)>, NodeProto);

fn that_fit() -> Vec<Fit> {
    let heads = || attributes().int("num_heads", 4).int("kv_num_heads", 2);
    let onnx_heads = || attributes().int("q_num_heads", 4).int("kv_num_heads", 2);
    let (q, k, past) = ((F32, "2 s 64"), (F32, "2 s 32"), (F32, "2 2 p 16"));
    let (table, ids, gain) = ((F32, "20 8"), (I64, "2 s"), (F32, "64"));
    let (length, total) = ((I32, "2"), (I32, ""));
    let group = vec![q, k, k, past, past, length, total, table, table, ids, (F32, "1 1 s 1"), (F32, "4")];
    let many = vec![q, q, q, (F32, "192"), length, (F32, "1 4 s 1"), (F32, "2 4 p 16"), (F32, "2 4 p 16")];
    let four = (F32, "2 2 s 16");
    vec![
        ("GroupQueryAttention", MICROSOFT, group, heads().int("do_rotary", 1)),
        ("MultiHeadAttention", MICROSOFT, many, attributes().int("num_heads", 4)),
        ("Attention", "", vec![q, k, k, (F32, "s 1"), past, past], onnx_heads().int("is_causal", 1)),
        ("Attention", "", vec![(F32, "2 4 s 16"), four, four], attributes()),
        ("RotaryEmbedding", "", vec![q, table, table, ids], attributes().int("num_heads", 4)),
        ("RotaryEmbedding", "", vec![four, (F32, "2 s 8"), (F32, "2 s 8")], attributes()),
        ("RotaryEmbedding", MICROSOFT, vec![q, ids, table, table], attributes()),
        ("RMSNormalization", "", vec![q, gain], attributes()),
        ("SkipLayerNormalization", MICROSOFT, vec![q, q, gain, gain, gain], attributes()),
        ("SkipSimplifiedLayerNormalization", MICROSOFT, vec![q, q, gain, gain], attributes()),
        ("BiasGelu", MICROSOFT, vec![q, gain], attributes()),
        ("FusedMatMul", MICROSOFT, vec![(F32, "2 64 s"), q], attributes().int("transA", 1).int("transB", 1)),
    ]
}

#[test]
fn operands_that_do_not_fit_are_refused_in_words() {
    let shapes = [
        "",
        "2",
        "s",
        "2 16",
        "20 8",
        "2 s",
        "2 s 64",
        "2 s 32",
        "b s 64",
        "2 4 s 16",
        "2 2 p 16",
        "2 s 4 3 16",
    ];
    let mut wrong = vec![];
    for (op, domain, fit, n) in that_fit() {
        let run = |inputs: &[Option<(DType, &str)>]| import_it(&one(op, domain, inputs, 1, n.clone()));
        let mut inputs: Vec<_> = fit.iter().copied().map(Some).collect();
        if let Err(e) = run(&inputs) {
            panic!("{op}: {e}");
        }
        let mut others: Vec<Option<(DType, &str)>> =
            shapes.iter().flat_map(|s| [F32, I32].map(|d| Some((d, *s)))).collect();
        others.push(None);
        for at in 0..fit.len() {
            for other in &others {
                inputs[at] = *other;
                let bad = match run(&inputs) {
                    Ok(i) => wgfc_ir::verify::verify(&i.graph).err().map(|e| format!("{e:?}")),
                    Err(e) => Some(e.to_string()).filter(|e| e.contains("[internal]")),
                };
                wrong.extend(bad.map(|e| format!("{op}, operand {at} is {other:?}: {e}")));
            }
            inputs[at] = Some(fit[at]);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
