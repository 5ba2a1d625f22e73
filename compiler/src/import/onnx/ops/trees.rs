//! `ai.onnx.ml`: ensembles of decision trees.

use super::features::{Transform, records};
use crate::import::onnx::prelude::*;
use crate::lower::trees::{Aggregate, Branch, Forest, Next, Test, Weights, leaves};
use std::collections::{BTreeSet, HashMap};
use wgfc_ir::{BinaryOp as B, DType, Op, ReduceOp, Scalar, Tensor, UnaryOp as U, Value};

/// The records as a matrix, in the type that nodes compare in.
fn matrix(cx: &mut Cx) -> Result<Value> {
    let (x, _) = records(cx)?;
    let x = if cx.rank(x) == 1 { cx.unsqueeze(x, &[0])? } else { x };
    let dtype = if cx.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 };
    Ok(cx.cast(x, dtype)?)
}

/// The numbers in an attribute, or in its tensor variant.
fn numbers(cx: &mut Cx, name: &str, tensor: &str) -> Result<Vec<f64>> {
    match cx.tensor(tensor)? {
        Some(t) => of_tensor(&t, tensor),
        None => Ok(cx.floats(name)?.unwrap_or_default().into_iter().map(f64::from).collect()),
    }
}

fn of_tensor(t: &Tensor, name: &str) -> Result<Vec<f64>> {
    let v = t.scalars().ok_or_else(|| OpError::model("has no values").attribute(name))?;
    Ok(v.into_iter().map(Scalar::as_f64).collect())
}

/// Checks that lists with one entry per item have the same length.
fn require_length(name: &str, have: usize, need: usize) -> Result<()> {
    if have == need {
        return Ok(());
    }
    Err(OpError::model(format!("it has {have} entries, the others have {need}")).attribute(name))
}

fn index(name: &str, v: i64) -> Result<usize> {
    usize::try_from(v).map_err(|_| OpError::model(format!("{v} is negative")).attribute(name))
}

/// Tests of nodes, with their names before version 5, ordered by their numbers in version 5.
const MODES: [(&str, Test); 6] = [
    ("BRANCH_LEQ", Test::Leq),
    ("BRANCH_LT", Test::Lt),
    ("BRANCH_GTE", Test::Gte),
    ("BRANCH_GT", Test::Gt),
    ("BRANCH_EQ", Test::Eq),
    ("BRANCH_NEQ", Test::Neq),
];
/// The number of the set membership test in version 5.
const MEMBER: f64 = 6.0;

/// Aggregations of trees, with their names before version 5, ordered by their numbers in version 5.
const AGGREGATES: [(&str, Aggregate); 4] = [
    ("AVERAGE", Aggregate::Average),
    ("SUM", Aggregate::Sum),
    ("MIN", Aggregate::Min),
    ("MAX", Aggregate::Max),
];

/// The entry that was found in a list, or an error about the attribute with the unknown value.
fn entry<T: Copy>(found: Option<&(&str, T)>, name: &str, value: impl std::fmt::Display) -> Result<T> {
    let found = found.map(|(_, v)| *v);
    found.ok_or_else(|| OpError::model(format!("unknown value `{value}`")).attribute(name))
}

/// The attributes of nodes, one entry per node.
struct Nodes {
    features: Vec<i64>,
    /// The successors of each node, if its test holds and if it does not.
    to: [Vec<i64>; 2],
    splits: Vec<f64>,
    missing: Vec<i64>,
}

/// The attributes that hold [`Nodes::to`].
const TO: [&str; 2] = ["nodes_truenodeids", "nodes_falsenodeids"];

impl Nodes {
    /// Reads the attributes; `splits` are the values that features are compared with, from attribute `name`.
    fn read(cx: &mut Cx, splits: Vec<f64>, name: &str) -> Result<Nodes> {
        let features = cx.ints_req("nodes_featureids")?;
        let n = features.len();
        let [yes, no] = TO;
        let to = [cx.ints_req(yes)?, cx.ints_req(no)?];
        for (name, ids) in TO.iter().zip(&to) {
            require_length(name, ids.len(), n)?;
        }
        require_length(name, splits.len(), n)?;
        let missing = cx.ints("nodes_missing_value_tracks_true")?.unwrap_or_default();
        if !missing.is_empty() {
            require_length("nodes_missing_value_tracks_true", missing.len(), n)?;
        }
        Ok(Nodes { features, to, splits, missing })
    }

    fn len(&self) -> usize {
        self.features.len()
    }

    /// Node `i`; `next` resolves the ids of its two successors.
    fn branch(&self, i: usize, test: Test, next: &mut dyn FnMut(usize, i64) -> Result<Next>) -> Result<Branch> {
        Ok(Branch {
            feature: index("nodes_featureids", self.features[i])?,
            test,
            split: self.splits[i],
            missing: self.missing.get(i).is_some_and(|m| *m != 0),
            yes: next(0, self.to[0][i])?,
            no: next(1, self.to[1][i])?,
        })
    }
}

/// The number of a leaf in a forest, by its tree and its id in the tree.
type Numbers = HashMap<(i64, i64), usize>;

/// The forest in the format before version 5, and the number of each leaf by tree and node id.
fn forest(cx: &mut Cx) -> Result<(Forest, Numbers)> {
    let (trees, ids) = (cx.ints_req("nodes_treeids")?, cx.ints_req("nodes_nodeids")?);
    let modes = cx.strings("nodes_modes")?.unwrap_or_default();
    let splits = numbers(cx, "nodes_values", "nodes_values_as_tensor")?;
    let nodes = Nodes::read(cx, splits, "nodes_values")?;
    let n = nodes.len();
    require_length("nodes_treeids", trees.len(), n)?;
    require_length("nodes_nodeids", ids.len(), n)?;
    require_length("nodes_modes", modes.len(), n)?;
    let (mut at, mut of_leaf) = (HashMap::new(), HashMap::new());
    let mut f = Forest::default();
    let mut count = 0;
    for i in 0..n {
        let key = (trees[i], ids[i]);
        let next = if modes[i] == "LEAF" {
            of_leaf.insert(key, f.leaves);
            f.leaves += 1;
            Next::Leaf(f.leaves - 1)
        } else {
            count += 1;
            Next::Node(count - 1)
        };
        if at.insert(key, next).is_some() {
            let e = format!("node {} of tree {} is there twice", ids[i], trees[i]);
            return Err(OpError::model(e).attribute("nodes_nodeids"));
        }
    }
    let mut roots: BTreeSet<(i64, i64)> = trees.iter().copied().zip(ids.iter().copied()).collect();
    for i in (0..n).filter(|i| modes[*i] != "LEAF") {
        let test = entry(MODES.iter().find(|(m, _)| *m == modes[i]), "nodes_modes", &modes[i])?;
        f.branches.push(nodes.branch(i, test, &mut |way, id| {
            let key = (trees[i], id);
            roots.remove(&key);
            at.get(&key).copied().ok_or_else(|| {
                OpError::model(format!("tree {} has no node {id}", trees[i])).attribute(TO[way])
            })
        })?);
    }
    let mut last = None;
    for key in &roots {
        if last == Some(key.0) {
            let e = OpError::model(format!("tree {} has several roots", key.0));
            return Err(e.attribute("nodes_treeids"));
        }
        last = Some(key.0);
        f.roots.extend(at.get(key));
    }
    if f.roots.is_empty() {
        return Err(OpError::model("there is no tree with a root").attribute("nodes_treeids"));
    }
    Ok((f, of_leaf))
}

/// The weights of leaves, from the attributes with these names.
fn weights(
    cx: &mut Cx,
    [trees, nodes, ids, values, tensor]: [&str; 5],
    targets: usize,
    leaves: &Numbers,
) -> Result<Weights> {
    let (of_tree, of_node, of_target) = (cx.ints_req(trees)?, cx.ints_req(nodes)?, cx.ints_req(ids)?);
    let given = numbers(cx, values, tensor)?;
    require_length(nodes, of_node.len(), of_tree.len())?;
    require_length(ids, of_target.len(), of_tree.len())?;
    require_length(values, given.len(), of_tree.len())?;
    let mut w = Weights { given: vec![], targets };
    for i in 0..given.len() {
        let target = index(ids, of_target[i])?;
        if target >= targets {
            return Err(OpError::model(format!("{target} is none of {targets}")).attribute(ids));
        }
        // A weight of an inner node is never used.
        if let Some(leaf) = leaves.get(&(of_tree[i], of_node[i])) {
            w.given.push((*leaf, target, given[i]));
        }
    }
    Ok(w)
}

fn targets(cx: &Cx) -> Result<usize> {
    let n = cx.int("n_targets", 1)?;
    let n = usize::try_from(n).ok().filter(|n| *n > 0);
    n.ok_or_else(|| OpError::model("needs a positive number of targets").attribute("n_targets"))
}

/// Adds a base value per target.
fn add_base(cx: &mut Cx, y: Value, base: &[f64]) -> Result<Value> {
    if base.is_empty() {
        return Ok(y);
    }
    let dtype = cx.dtype(y);
    let base: Vec<Scalar> = base.iter().map(|v| Scalar::from_f64(dtype, *v)).collect();
    let base = cx.constant(Tensor::from_scalars(dtype, vec![base.len()], &base));
    Ok(cx.binary(B::Add, y, base)?)
}

/// The aggregated weights of the leaves that records reach, plus base values, transformed.
fn combined(
    cx: &mut Cx,
    x: Value,
    f: &Forest,
    w: &Weights,
    how: Aggregate,
    base: &[f64],
    transform: Transform,
) -> Result<Value> {
    if w.targets == 1 && !matches!(transform, Transform::None | Transform::Probit) {
        let help = "export the model without a transform (`NONE`, 0), and transform its result afterwards";
        let e = OpError::unsupported(
            "a transform of a single target, which ONNX Runtime leaves out and ONNX asks for",
            help,
        );
        return Err(e.attribute("post_transform"));
    }
    let extreme = matches!(how, Aggregate::Min | Aggregate::Max);
    if w.targets == 1 && extreme && !w.given_by_each_leaf(f.leaves) {
        let what = "MIN and MAX over leaves that give nothing, which count as 0 in ONNX Runtime and not in ONNX";
        let help = "give each leaf a weight, 0 for leaves that now have none";
        return Err(OpError::unsupported(what, help).attribute("aggregate_function"));
    }
    if w.targets > 1 && !base.is_empty() && !w.always_given(f) {
        let what = "base values of several targets, of which ONNX Runtime leaves out those that no leaf of a record gives to, and ONNX none";
        let help = "let a leaf of each record give 0 to each target, or add the base values behind the trees";
        return Err(OpError::unsupported(what, help).attribute("base_values"));
    }
    let leaf = leaves(cx, x, f)?;
    let dtype = cx.dtype(x);
    let y = w.aggregated(cx, leaf, f, dtype, how)?;
    let y = add_base(cx, y, base)?;
    transform.apply(cx, y)
}

fn regressor(cx: &mut Cx) -> Lowered {
    let x = matrix(cx)?;
    let (f, of_leaf) = forest(cx)?;
    let names =
        ["target_treeids", "target_nodeids", "target_ids", "target_weights", "target_weights_as_tensor"];
    let w = weights(cx, names, targets(cx)?, &of_leaf)?;
    let how = cx.string("aggregate_function", "SUM")?;
    let how = entry(AGGREGATES.iter().find(|(name, _)| *name == how), "aggregate_function", &how)?;
    let base = numbers(cx, "base_values", "base_values_as_tensor")?;
    if !base.is_empty() {
        require_length("base_values", base.len(), w.targets)?;
    }
    let transform = Transform::of(cx)?;
    let y = combined(cx, x, &f, &w, how, &base, transform)?;
    Ok(vec![cx.cast(y, DType::F32)?])
}

/// The class of each record, and the scores of all classes.
fn classifier(cx: &mut Cx) -> Lowered {
    let x = matrix(cx)?;
    let Some(labels) = cx.ints("classlabels_int64s")?.filter(|l| !l.is_empty()) else {
        let help = "number the classes before training; their names are of no use to a device";
        let e = OpError::unsupported("classes that are not integers", help);
        return Err(e.attribute("classlabels_int64s"));
    };
    let (f, of_leaf) = forest(cx)?;
    let names = ["class_treeids", "class_nodeids", "class_ids", "class_weights", "class_weights_as_tensor"];
    let mut w = weights(cx, names, labels.len(), &of_leaf)?;
    let base = numbers(cx, "base_values", "base_values_as_tensor")?;
    let transform = Transform::of(cx)?;
    let leaf = leaves(cx, x, &f)?;
    let dtype = cx.dtype(x);
    let (best, scores) = if labels.len() == 2 {
        let positive = w.given.iter().all(|(_, _, v)| *v >= 0.0);
        let class = w.given.first().map_or(0, |g| g.1);
        let one = w.given.iter().all(|g| g.1 == class);
        let bases = if class == 0 { base.len() < 2 } else { base.is_empty() };
        if !one || !bases {
            let what = "two classes with scores of their own, of which ONNX and ONNX Runtime make different classes";
            let help = "give the scores of one class only, as skl2onnx does, with at most one base value";
            return Err(OpError::unsupported(what, help).attribute("class_ids"));
        }
        w.given.iter_mut().for_each(|g| g.1 = 0);
        w.targets = 1;
        let sum = w.aggregated(cx, leaf, &f, dtype, Aggregate::Sum)?;
        let sum = add_base(cx, sum, &base)?;
        let above = cx.binary_scalar(B::Gt, sum, if positive { 0.5 } else { 0.0 })?;
        let above = cx.squeeze(above, &[1])?;
        let best = cx.cast(above, DType::I32)?;
        let scores = single(cx, sum, class, positive, transform)?;
        (best, scores)
    } else {
        if !base.is_empty() {
            require_length("base_values", base.len(), labels.len())?;
        }
        let sums = w.aggregated(cx, leaf, &f, dtype, Aggregate::Sum)?;
        let sums = add_base(cx, sums, &base)?;
        // A class that gets no score from any leaf of a record is not chosen, even if all other scores are negative.
        let among = if base.is_empty() && !w.always_given(&f) {
            let given = w.are_given(cx, leaf, f.leaves)?;
            let never = cx.scalar(dtype, f64::NEG_INFINITY);
            cx.select(given, sums, never)?
        } else {
            sums
        };
        let best = cx.push(Op::ArgReduce { op: ReduceOp::Max, axis: 1, last: false }, &[among])?;
        (cx.squeeze(best, &[1])?, transform.apply(cx, sums)?)
    };
    let labels = cx.constant(Tensor::from_i64(vec![labels.len()], &labels));
    Ok(vec![cx.take(labels, best, 0)?, cx.cast(scores, DType::F32)?])
}

/// The scores of two classes from one sum. If only the second class has weights, the first scores 0. Otherwise the first scores `1 − sum`
/// if all weights are positive, as for probabilities, else `−sum`.
fn single(cx: &mut Cx, sum: Value, class: usize, positive: bool, transform: Transform) -> Result<Value> {
    let dtype = cx.dtype(sum);
    if class == 1 {
        let shape = cx.shape(sum);
        let zero = cx.full(&shape, Scalar::from_f64(dtype, 0.0))?;
        let scores = cx.concat(&[zero, sum], 1)?;
        return transform.apply(cx, scores);
    }
    if positive {
        let unity = cx.scalar(dtype, 1.0);
        let first = cx.binary(B::Sub, unity, sum)?;
        return Ok(cx.concat(&[first, sum], 1)?);
    }
    let minus = cx.unary(U::Neg, sum)?;
    let both = cx.concat(&[minus, sum], 1)?;
    match transform {
        Transform::Logistic => transform.apply(cx, both),
        Transform::Probit => {
            let help = "export the model with `NONE`, and transform the scores afterwards";
            let e = OpError::unsupported("post_transform PROBIT of a single score", help);
            Err(e.attribute("post_transform"))
        }
        _ => Ok(both),
    }
}

/// `TreeEnsemble` of version 5, with separate lists of nodes and leaves.
fn ensemble(cx: &mut Cx) -> Lowered {
    let x = matrix(cx)?;
    let numbers = |cx: &mut Cx, name: &'static str| -> Result<Vec<f64>> {
        cx.tensor(name)?.map_or(Ok(vec![]), |t| of_tensor(&t, name))
    };
    let (modes, splits) = (numbers(cx, "nodes_modes")?, numbers(cx, "nodes_splits")?);
    let nodes = Nodes::read(cx, splits, "nodes_splits")?;
    let n = nodes.len();
    let to_leaf = [cx.ints_req("nodes_trueleafs")?, cx.ints_req("nodes_falseleafs")?];
    require_length("nodes_trueleafs", to_leaf[0].len(), n)?;
    require_length("nodes_falseleafs", to_leaf[1].len(), n)?;
    require_length("nodes_modes", modes.len(), n)?;
    let members = numbers(cx, "membership_values")?;
    // The sets of the membership tests are separated by NaN.
    let mut sets = members.split(|v| v.is_nan());
    let mut f = Forest::default();
    let mut sets_of = vec![];
    for i in 0..n {
        let test = if modes[i] == MEMBER {
            let set = sets.next().filter(|s| !s.is_empty());
            let set = set.ok_or_else(|| {
                OpError::model(format!("node {i} has no members")).attribute("membership_values")
            })?;
            sets_of.push((i, set.to_vec()));
            Test::Eq
        } else {
            let number = (0..MODES.len()).find(|m| *m as f64 == modes[i]);
            entry(number.map(|m| &MODES[m]), "nodes_modes", modes[i])?
        };
        f.branches.push(nodes.branch(i, test, &mut |way, id| {
            let id = index(TO[way], id)?;
            Ok(if to_leaf[way][i] != 0 { Next::Leaf(id) } else { Next::Node(id) })
        })?);
    }
    for (i, mut set) in sets_of {
        set.sort_by(f64::total_cmp);
        set.dedup();
        among(&mut f, i, &set);
    }
    let roots = cx.ints_req("tree_roots")?;
    f.roots = roots.iter().map(|r| Ok(Next::Node(index("tree_roots", *r)?))).collect::<Result<_>>()?;
    let of_leaf = cx.ints_req("leaf_targetids")?;
    let given = numbers(cx, "leaf_weights")?;
    require_length("leaf_weights", given.len(), of_leaf.len())?;
    f.leaves = given.len();
    let targets = targets(cx)?;
    let mut w = Weights { given: vec![], targets };
    for (leaf, (target, v)) in of_leaf.iter().zip(given).enumerate() {
        let target = index("leaf_targetids", *target)?;
        if target >= targets {
            return Err(OpError::model(format!("{target} is none of {targets}")).attribute("leaf_targetids"));
        }
        w.given.push((leaf, target, v));
    }
    let (how, transform) = (cx.int("aggregate_function", 1)?, cx.int("post_transform", 0)?);
    let how_is = usize::try_from(how).ok().and_then(|i| AGGREGATES.get(i));
    let how = entry(how_is, "aggregate_function", how)?;
    let is = usize::try_from(transform).ok().and_then(|i| Transform::ALL.get(i)).copied();
    let transform = is.ok_or_else(|| {
        OpError::model(format!("unknown value `{transform}`")).attribute("post_transform")
    })?;
    if targets > 1 && matches!(transform, Transform::Softmax | Transform::Logistic) {
        let what = "SOFTMAX (1) and LOGISTIC (2) of trees, which ONNX Runtime takes for each other";
        let help = "export the trees with 0 (NONE), with a Softmax or a Sigmoid behind them";
        return Err(OpError::unsupported(what, help).attribute("post_transform"));
    }
    Ok(vec![combined(cx, x, &f, &w, how, &[], transform)?])
}

/// Replaces a set membership test by a binary search in the sorted set.
fn among(f: &mut Forest, node: usize, set: &[f64]) {
    // Nodes to fill in, with the range of the set that each searches.
    let mut open = vec![(node, 0..set.len())];
    let whole = f.branches[node];
    while let Some((at, range)) = open.pop() {
        if range.len() == 1 {
            f.branches[at] = Branch { test: Test::Eq, split: set[range.start], ..whole };
            continue;
        }
        let middle = range.start + range.len() / 2;
        let (low, high) = (f.branches.len(), f.branches.len() + 1);
        f.branches.extend([whole, whole]);
        let (yes, no) = (Next::Node(low), Next::Node(high));
        // NaN fails this test, and finally reaches an equality test.
        f.branches[at] = Branch { test: Test::Lt, split: set[middle], missing: false, yes, no, ..whole };
        open.extend([(low, range.start..middle), (high, middle..range.end)]);
    }
}

const fn op(name: &'static str, since: &'static [i64], lower: fn(&mut Cx) -> Lowered) -> OpDef {
    OpDef::new(name, since, lower).domain("ai.onnx.ml")
}

/// Trees.
pub const OPS: &[OpDef] = &[
    op("TreeEnsemble", &[5], ensemble)
        .notes("SOFTMAX and LOGISTIC; transforms of a single target")
        .cases(&["test_ai_onnx_ml_tree_ensemble"]),
    op("TreeEnsembleClassifier", &[1, 3], classifier)
        .notes("classes as text; two classes with scores of their own"),
    op("TreeEnsembleRegressor", &[1, 3], regressor)
        .notes("transforms of a single target; MIN and MAX over leaves without weights; base values of targets that leaves do not give to"),
];
