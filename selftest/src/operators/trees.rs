//! Tree ensembles and support vector machines of `ai.onnx.ml`.

use super::Line;
use super::features::floats;
use crate::draw::Draw;
use wgfc_ir::DType::{self, *};
use wgfc_ir::{Scalar, Tensor};

const FEATURES: usize = 4;

fn records(d: &mut Draw, types: &[DType]) {
    let (t, n) = (d.pick(types), d.from(1..=9));
    d.within(t, &[n, FEATURES], -2.0, 2.0);
}

fn weights(d: &mut Draw, n: usize) -> Vec<f32> {
    (0..n).map(|_| d.below(20_000) as f32 / 10_000.0 - 1.0).collect()
}

/// The nodes of complete trees of random depths, as (tree, node, index of its first child), where leaves have 0 for the
/// child.
fn nodes(d: &mut Draw) -> Vec<(usize, usize, usize)> {
    let trees = d.from(1..=5);
    let mut all = vec![];
    for t in 0..trees {
        let depth = d.from(0..=4);
        let (inner, count) = ((1usize << depth) - 1, (2usize << depth) - 1);
        all.extend((0..count).map(|i| (t, i, if i < inner { 2 * i + 1 } else { 0 })));
    }
    all
}

/// Sets the node attributes of the operators before version 5 of `ai.onnx.ml`. Returns the leaves as (tree, node).
fn forest(d: &mut Draw) -> Vec<(usize, usize)> {
    let nodes = nodes(d);
    let one = d.pick(&["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]);
    let mixed = d.one_in(3);
    let modes: Vec<&str> = nodes
        .iter()
        .map(|n| match (n.2, mixed) {
            (0, _) => "LEAF",
            (_, true) => d.pick(&["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_NEQ"]),
            (_, false) => one,
        })
        .collect();
    d.set_texts("nodes_modes", &modes);
    let ints = |f: &dyn Fn(&(usize, usize, usize)) -> usize| -> Vec<i64> {
        nodes.iter().map(|n| f(n) as i64).collect()
    };
    d.set_ints("nodes_treeids", &ints(&|n| n.0));
    d.set_ints("nodes_nodeids", &ints(&|n| n.1));
    d.set_ints("nodes_truenodeids", &ints(&|n| n.2));
    d.set_ints("nodes_falsenodeids", &ints(&|n| if n.2 > 0 { n.2 + 1 } else { 0 }));
    let features: Vec<i64> = nodes.iter().map(|_| d.below(FEATURES) as i64).collect();
    d.set_ints("nodes_featureids", &features);
    let splits = floats(d, nodes.len());
    d.set_floats("nodes_values", &splits);
    if d.one_in(2) {
        let tracks: Vec<i64> = nodes.iter().map(|_| d.below(2) as i64).collect();
        d.set_ints("nodes_missing_value_tracks_true", &tracks);
    }
    nodes.into_iter().filter(|n| n.2 == 0).map(|(t, i, _)| (t, i)).collect()
}

/// One number from each record.
fn chosen<T>(records: &[T], number: impl Fn(&T) -> usize) -> Vec<i64> {
    records.iter().map(|r| number(r) as i64).collect()
}

/// Sets the weights of leaves, for all targets of each leaf or for one.
fn given(d: &mut Draw, leaves: &[(usize, usize)], targets: usize, of: &str, ids: &str) {
    let every = d.one_in(2);
    let each: Vec<((usize, usize), usize)> = leaves
        .iter()
        .flat_map(|leaf| {
            let one = d.below(targets);
            let targets = if every { 0..targets } else { one..one + 1 };
            targets.map(|t| (*leaf, t)).collect::<Vec<_>>()
        })
        .collect();
    d.set_ints(&format!("{of}_treeids"), &chosen(&each, |e| e.0.0));
    d.set_ints(&format!("{of}_nodeids"), &chosen(&each, |e| e.0.1));
    d.set_ints(ids, &chosen(&each, |e| e.1));
    let w = weights(d, each.len());
    d.set_floats(&format!("{of}_weights"), &w);
}

fn regressor(d: &mut Draw) {
    records(d, &[F32, I32, I64]);
    let leaves = forest(d);
    let targets = d.from(1..=3);
    d.set("n_targets", targets as i64);
    given(d, &leaves, targets, "target", "target_ids");
    let how = d.pick(&["SUM", "AVERAGE", "MIN", "MAX"]);
    d.set_text("aggregate_function", how);
    if targets > 1 {
        let transform = d.pick(&["NONE", "LOGISTIC", "SOFTMAX"]);
        d.set_text("post_transform", transform);
    }
    if d.one_in(2) {
        let base = floats(d, targets);
        d.set_floats("base_values", &base);
    }
}

fn classifier(d: &mut Draw) {
    records(d, &[F32]);
    let leaves = forest(d);
    let classes = d.from(2..=4);
    given(d, &leaves, if classes == 2 { 1 } else { classes }, "class", "class_ids");
    let labels: Vec<i64> = (0..classes as i64).map(|i| i * 3 - 2).collect();
    d.set_ints("classlabels_int64s", &labels);
    let transform = d.pick(&["NONE", "LOGISTIC"]);
    d.set_text("post_transform", transform);
    d.outputs(2);
}

fn numbers(v: &[f64], dtype: DType) -> Tensor {
    let v: Vec<Scalar> = v.iter().map(|v| Scalar::from_f64(dtype, *v)).collect();
    Tensor::from_scalars(dtype, vec![v.len()], &v)
}

fn ensemble(d: &mut Draw) {
    records(d, &[F32]);
    // The children of an inner node are two nodes of the next level or, at the last level, two leaves.
    let (mut roots, mut next, mut leaves) = (vec![], vec![], 0);
    for _ in 0..d.from(1..=4) {
        let depth = d.from(1..=4);
        let (first, inner) = (next.len(), (1usize << depth) - 1);
        roots.push(first as i64);
        for i in 0..inner {
            let child = |c: usize| if c < inner { (first + c, 0) } else { (leaves + c - inner, 1) };
            next.push((child(2 * i + 1), child(2 * i + 2)));
        }
        leaves += inner + 1;
    }
    d.set_ints("tree_roots", &roots);
    d.set_ints("nodes_truenodeids", &chosen(&next, |n| n.0.0));
    d.set_ints("nodes_trueleafs", &chosen(&next, |n| n.0.1));
    d.set_ints("nodes_falsenodeids", &chosen(&next, |n| n.1.0));
    d.set_ints("nodes_falseleafs", &chosen(&next, |n| n.1.1));
    let features: Vec<i64> = next.iter().map(|_| d.below(FEATURES) as i64).collect();
    d.set_ints("nodes_featureids", &features);
    let modes: Vec<f64> = next.iter().map(|_| d.below(7) as f64).collect();
    d.set_tensor("nodes_modes", &numbers(&modes, U8));
    let splits: Vec<f64> = floats(d, next.len()).into_iter().map(f64::from).collect();
    d.set_tensor("nodes_splits", &numbers(&splits, F32));
    let mut members = vec![];
    for _ in modes.iter().filter(|m| **m == 6.0) {
        let set = d.from(1..=6);
        members.extend(floats(d, set).into_iter().map(f64::from));
        members.push(f64::NAN);
    }
    if !members.is_empty() {
        d.set_tensor("membership_values", &numbers(&members, F32));
    }
    let targets = d.from(1..=3);
    d.set("n_targets", targets as i64);
    let of: Vec<i64> = (0..leaves).map(|_| d.below(targets) as i64).collect();
    d.set_ints("leaf_targetids", &of);
    let w: Vec<f64> = weights(d, leaves).into_iter().map(f64::from).collect();
    d.set_tensor("leaf_weights", &numbers(&w, F32));
    let how = d.below(4);
    d.set("aggregate_function", how as i64);
}

/// Sets the kernel and the support vectors of a machine.
fn machine(d: &mut Draw, vectors: usize) {
    records(d, &[F32]);
    let kernel = d.pick(&["LINEAR", "POLY", "RBF", "SIGMOID"]);
    d.set_text("kernel_type", kernel);
    let params = [d.from(1..=4) as f32 / 8.0, d.below(5) as f32 / 4.0, d.from(1..=3) as f32];
    d.set_floats("kernel_params", &params);
    let all = floats(d, vectors * FEATURES);
    d.set_floats("support_vectors", &all);
}

fn machine_regressor(d: &mut Draw) {
    let n = d.from(1..=9);
    machine(d, n);
    d.set("n_supports", n as i64);
    let w = weights(d, n);
    d.set_floats("coefficients", &w);
    d.set_floats("rho", &[0.3]);
}

fn machine_classifier(d: &mut Draw) {
    let classes = d.from(2..=4);
    let per_class: Vec<i64> = (0..classes).map(|_| d.from(1..=4) as i64).collect();
    let total = per_class.iter().sum::<i64>() as usize;
    machine(d, total);
    d.set_ints("vectors_per_class", &per_class);
    let labels: Vec<i64> = (0..classes as i64).map(|i| i * 3 - 2).collect();
    d.set_ints("classlabels_ints", &labels);
    let pairs = classes * (classes - 1) / 2;
    let (w, rho) = (weights(d, total * (classes - 1)), weights(d, pairs));
    d.set_floats("coefficients", &w);
    d.set_floats("rho", &rho);
    if d.one_in(2) {
        let (a, b) = (weights(d, pairs), weights(d, pairs));
        d.set_floats("prob_a", &a);
        d.set_floats("prob_b", &b);
    }
    d.outputs(2);
}

pub(super) const LINES: &[Line] = &[
    Line("ai.onnx.ml.SVMClassifier", machine_classifier),
    Line("ai.onnx.ml.SVMRegressor", machine_regressor),
    Line("ai.onnx.ml.TreeEnsemble", ensemble),
    Line("ai.onnx.ml.TreeEnsembleClassifier", classifier),
    Line("ai.onnx.ml.TreeEnsembleRegressor", regressor),
];
