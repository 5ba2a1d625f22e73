//! Decision trees. All trees of a model are evaluated together: a loop moves each record from node to node in every
//! tree.

use super::{Lowering, OpError, Result};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::{
    BinaryOp as B, Body, DType, Dim, GatherAxis, Op, Poly, ReduceOp, Scalar, Tensor, UnaryOp as U, Value,
};

/// The comparison of a feature with the threshold of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Test {
    /// Feature ≤ threshold.
    Leq,
    /// Feature < threshold.
    Lt,
    /// Feature ≥ threshold.
    Gte,
    /// Feature > threshold.
    Gt,
    /// Feature = threshold.
    Eq,
    /// Feature ≠ threshold.
    Neq,
}

/// The target of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A node, by its index.
    Node(usize),
    /// A leaf, by its number.
    Leaf(usize),
}

/// An inner node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Branch {
    /// The index of the compared feature.
    pub feature: usize,
    /// The comparison.
    pub test: Test,
    /// The threshold.
    pub split: f64,
    /// Whether NaN takes the branch `yes`, whatever the test.
    pub missing: bool,
    /// The target if the test holds.
    pub yes: Next,
    /// The target otherwise.
    pub no: Next,
}

/// Decision trees whose nodes are in one list.
#[derive(Clone, Debug, Default)]
pub struct Forest {
    /// The inner nodes.
    pub branches: Vec<Branch>,
    /// The number of leaves.
    pub leaves: usize,
    /// The root of each tree.
    pub roots: Vec<Next>,
}

impl Forest {
    /// The combined index of a node or a leaf: leaves follow the nodes.
    fn place(&self, n: Next) -> usize {
        match n {
            Next::Node(i) => i,
            Next::Leaf(i) => self.branches.len() + i,
        }
    }

    /// The number of branches on the longest path from a root to a leaf.
    ///
    /// # Errors
    /// If a target does not exist, or the branches form a cycle.
    pub fn depth(&self) -> Result<usize> {
        let count = self.branches.len();
        for n in self.branches.iter().flat_map(|b| [b.yes, b.no]).chain(self.roots.iter().copied()) {
            match n {
                Next::Node(i) if i >= count => {
                    return Err(OpError::model(format!("there is no node {i} of {count}")));
                }
                Next::Leaf(i) if i >= self.leaves => {
                    return Err(OpError::model(format!("there is no leaf {i} of {}", self.leaves)));
                }
                _ => {}
            }
        }
        // The depth below each node; `Some(None)` while the nodes below it are visited.
        let mut below: Vec<Option<Option<usize>>> = vec![None; count];
        for start in self.roots.iter() {
            let Next::Node(start) = *start else { continue };
            let mut open = vec![start];
            while let Some(&at) = open.last() {
                if below[at].is_some_and(|b| b.is_some()) {
                    open.pop();
                    continue;
                }
                let first = below[at].is_none();
                below[at] = Some(None);
                let mut deepest = Some(0);
                for next in [self.branches[at].yes, self.branches[at].no] {
                    let Next::Node(next) = next else { continue };
                    match below[next] {
                        Some(Some(d)) => deepest = deepest.map(|m| m.max(d)),
                        Some(None) => {
                            let e = format!("the branches of node {next} lead back to it");
                            return Err(OpError::model(e));
                        }
                        None if first => {
                            open.push(next);
                            deepest = None;
                        }
                        None => deepest = None,
                    }
                }
                if let Some(d) = deepest {
                    below[at] = Some(Some(d + 1));
                    open.pop();
                }
            }
        }
        let depth = |n: &Next| match n {
            Next::Node(i) => below[*i].flatten().unwrap_or(0),
            Next::Leaf(_) => 0,
        };
        Ok(self.roots.iter().map(depth).max().unwrap_or(0))
    }

    /// The tree of each leaf, `None` for a leaf in no tree. `None` altogether if trees share a node or a leaf.
    fn trees(&self) -> Option<Vec<Option<usize>>> {
        let mut tree: Vec<Option<usize>> = vec![None; self.branches.len() + self.leaves];
        for (t, root) in self.roots.iter().enumerate() {
            let mut open = vec![*root];
            while let Some(n) = open.pop() {
                if tree[self.place(n)].replace(t).is_some() {
                    return None;
                }
                if let Next::Node(i) = n {
                    open.extend([self.branches[i].yes, self.branches[i].no]);
                }
            }
        }
        Some(tree.split_off(self.branches.len()))
    }
}

/// The number (i32) of the leaf that each record of `x [N, F]` reaches in each tree: `[N, T]`.
pub fn leaves(cx: &mut Lowering, x: Value, f: &Forest) -> Result {
    let depth = f.depth()?;
    let shape = cx.shape(x);
    let [records, features] = &shape[..] else {
        return Err(OpError::model(format!("needs records by features, got {}", cx.ty(x))).operand(x));
    };
    if let Some(b) = f.branches.iter().max_by_key(|b| b.feature)
        && features.as_const().is_some_and(|n| b.feature as i64 >= n)
    {
        let e = format!("a node looks at feature {} of records with {features}", b.feature);
        return Err(OpError::model(e).operand(x));
    }
    let places = f.branches.len() + f.leaves;
    if i32::try_from(places).is_err() {
        return Err(OpError::unsupported(format!("{places} nodes"), "use fewer or smaller trees"));
    }
    let start = integers(cx, f.roots.iter().map(|r| f.place(*r)));
    let of_places = vec![records.clone(), Dim::from(f.roots.len())];
    let mut at = cx.expand(start, &of_places)?;
    if depth > 0 {
        at = cx.repeated(depth, at, x, |cx, at, x| step(cx, x, at, f))?;
    }
    let first = cx.int(DType::I32, f.branches.len() as i64);
    Ok(cx.binary(B::Sub, at, first)?)
}

/// An i32 vector.
fn integers(cx: &mut Lowering, v: impl Iterator<Item = usize>) -> Value {
    let v: Vec<Scalar> = v.map(|v| Scalar::from_i64(DType::I32, v as i64)).collect();
    cx.constant(Tensor::from_scalars(DType::I32, vec![v.len()], &v))
}

/// Moves each record one branch down. Leaves are their own targets.
fn step(cx: &mut Lowering, x: Value, at: Value, f: &Forest) -> Result {
    let dtype = cx.dtype(x);
    let leaf = |i: usize| f.place(Next::Leaf(i));
    let ints = |cx: &mut Lowering, of: &dyn Fn(&Branch) -> usize, at_leaf: &dyn Fn(usize) -> usize| {
        let table = integers(cx, f.branches.iter().map(of).chain((0..f.leaves).map(at_leaf)));
        cx.take(table, at, 0)
    };
    let feature = ints(cx, &|b| b.feature, &|_| 0)?;
    let splits: Vec<Scalar> = f
        .branches
        .iter()
        .map(|b| b.split)
        .chain(vec![0.0; f.leaves])
        .map(|v| Scalar::from_f64(dtype, v))
        .collect();
    let splits = cx.constant(Tensor::from_scalars(dtype, vec![splits.len()], &splits));
    let split = cx.take(splits, at, 0)?;
    let yes = ints(cx, &|b| f.place(b.yes), &leaf)?;
    let no = ints(cx, &|b| f.place(b.no), &leaf)?;
    let data = GatherAxis::Data { input: 1, at: vec![Poly::var(0), Poly::var(1)] };
    let index = vec![GatherAxis::Affine(Poly::var(0)), data];
    let shape = cx.shape(at);
    let value = cx.push(Op::Gather { shape, index }, &[x, feature])?;
    let mut args = vec![value, split, yes, no];
    let mut tests: Vec<Test> = f.branches.iter().map(|b| b.test).collect();
    tests.sort_unstable();
    tests.dedup();
    let mut body = Body::default();
    let [v, s, y, n] = [0, 1, 2, 3].map(|i| body.arg(i));
    let mut holds = None;
    let code = match &tests[..] {
        [_] => None,
        _ => {
            let of = |b: &Branch| tests.iter().position(|t| *t == b.test).unwrap_or(0);
            args.push(ints(cx, &of, &|_| 0)?);
            Some(body.arg(args.len() as u32 - 1))
        }
    };
    for (i, test) in tests.iter().enumerate() {
        let op = match test {
            Test::Leq => B::Le,
            Test::Lt => B::Lt,
            Test::Gte => B::Ge,
            Test::Gt => B::Gt,
            Test::Eq | Test::Neq => B::Eq,
        };
        let mut one = body.binary(op, v, s);
        if *test == Test::Neq {
            one = body.unary(U::Not, one);
        }
        holds = Some(match (holds, code) {
            (Some(before), Some(code)) => {
                let this = body.i32(i as i64);
                let this = body.binary(B::Eq, code, this);
                body.select(this, one, before)
            }
            _ => one,
        });
    }
    let holds = holds.ok_or_else(|| OpError::internal("trees without a node"))?;
    let next = body.select(holds, y, n);
    if f.branches.iter().any(|b| b.missing) {
        args.push(ints(cx, &|b| b.missing.into(), &|_| 0)?);
        let flag = body.arg(args.len() as u32 - 1);
        let (nan, one) = (body.unary(U::IsNan, v), body.i32(1));
        let tracked = body.binary(B::Eq, flag, one);
        let both = body.binary(B::And, nan, tracked);
        body.select(both, y, next);
    }
    Ok(cx.map(body.0, &args)?)
}

/// The weights of the leaves for each target.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    /// Triples of a leaf, a target, and the weight that the leaf adds to the target.
    pub given: Vec<(usize, usize, f64)>,
    /// The number of targets.
    pub targets: usize,
}

/// The combination of the weights of all trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// The sum.
    Sum,
    /// The sum, divided by the number of trees.
    Average,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
}

/// The maximum number of elements of a table of leaves by targets.
const MOST_WEIGHTS: usize = 1 << 28;

/// The table rows of the reached leaves, reduced over the trees: `[N, targets]`.
fn gathered(cx: &mut Lowering, leaf: Value, table: Tensor, op: ReduceOp) -> Result {
    let table = cx.constant(table);
    let rows = cx.take(table, leaf, 0)?;
    Ok(cx.reduce(op, rows, &[1], false)?)
}

impl Weights {
    fn table(&self, leaves: usize, dtype: DType, op: Option<ReduceOp>) -> Result<Tensor> {
        let n = leaves.checked_mul(self.targets).filter(|n| *n <= MOST_WEIGHTS);
        let n = n.ok_or_else(|| {
            let e = format!("{leaves} leaves by {} targets are more than 2^28 weights", self.targets);
            OpError::unsupported(e, "use fewer or smaller trees, or share the targets out to several")
        })?;
        let identity = op.map_or(0.0, |op| op.identity(dtype).as_f64());
        let mut all = vec![identity; n];
        for (leaf, target, w) in &self.given {
            let at = all.get_mut(leaf * self.targets + target);
            let at =
                at.ok_or_else(|| OpError::model(format!("there is no target {target} or leaf {leaf}")))?;
            *at = match op {
                Some(ReduceOp::Min) => at.min(*w),
                Some(ReduceOp::Max) => at.max(*w),
                _ => *at + w,
            };
        }
        let all: Vec<Scalar> = all.into_iter().map(|v| Scalar::from_f64(dtype, v)).collect();
        Ok(Tensor::from_scalars(dtype, vec![leaves, self.targets], &all))
    }

    /// Whether each record gets a weight for each target, whatever leaves it reaches: for each target some tree has a
    /// weight in all of its leaves. For trees that share nodes this is only true if all leaves have weights for all
    /// targets.
    pub fn always_given(&self, f: &Forest) -> bool {
        let mut given: Vec<(usize, usize)> =
            self.given.iter().map(|(leaf, target, _)| (*target, *leaf)).collect();
        given.sort_unstable();
        given.dedup();
        let Some(trees) = f.trees() else { return given.len() == self.targets * f.leaves };
        let mut leaves = vec![0usize; f.roots.len()];
        trees.iter().flatten().for_each(|t| leaves[*t] += 1);
        let mut counts = BTreeMap::<(usize, usize), usize>::new();
        for (target, leaf) in given {
            trees.get(leaf).into_iter().flatten().for_each(|t| *counts.entry((target, *t)).or_default() += 1);
        }
        let mut always = vec![false; self.targets];
        for ((target, t), n) in counts {
            always[target] |= n == leaves[t];
        }
        always.into_iter().all(|a| a)
    }

    /// Whether each of the first `leaves` leaves has a weight for some target.
    pub fn given_by_each_leaf(&self, leaves: usize) -> bool {
        let given: BTreeSet<usize> = self.given.iter().map(|(leaf, ..)| *leaf).collect();
        (0..leaves).all(|leaf| given.contains(&leaf))
    }

    /// Whether a record gets a weight for each target: a bool `[N, targets]`.
    pub fn are_given(&self, cx: &mut Lowering, leaf: Value, leaves: usize) -> Result {
        let ones = self.given.iter().map(|(leaf, target, _)| (*leaf, *target, 1.0)).collect();
        let ones = Weights { given: ones, targets: self.targets };
        let table = ones.table(leaves, DType::F32, None)?;
        let count = gathered(cx, leaf, table, ReduceOp::Max)?;
        Ok(cx.binary_scalar(B::Gt, count, 0.0)?)
    }

    /// The combined weights of each target, 0 where no leaf has one: `[N, targets]`, from the [`leaves`] that the
    /// records reach.
    pub fn aggregated(
        &self,
        cx: &mut Lowering,
        leaf: Value,
        f: &Forest,
        dtype: DType,
        how: Aggregate,
    ) -> Result {
        let op = match how {
            Aggregate::Sum | Aggregate::Average => ReduceOp::Sum,
            Aggregate::Min => ReduceOp::Min,
            Aggregate::Max => ReduceOp::Max,
        };
        let extreme = op != ReduceOp::Sum;
        let table = self.table(f.leaves, dtype, extreme.then_some(op))?;
        let mut y = gathered(cx, leaf, table, op)?;
        if how == Aggregate::Average {
            y = cx.binary_scalar(B::Div, y, f.roots.len() as f64)?;
        }
        if extreme && !self.always_given(f) {
            let given = self.are_given(cx, leaf, f.leaves)?;
            let zero = cx.scalar(dtype, 0.0);
            y = cx.select(given, y, zero)?;
        }
        Ok(y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many roots of one shared tree: the work grows with the number of nodes, not with nodes times trees.
    #[test]
    fn shared_nodes_are_seen_once() {
        let n = 200_000;
        let at = |i: usize| if i + 1 < n { Next::Node(i + 1) } else { Next::Leaf(n) };
        let branch = |i: usize| Branch {
            feature: 0,
            test: Test::Leq,
            split: i as f64,
            missing: false,
            yes: Next::Leaf(i),
            no: at(i),
        };
        let branches: Vec<Branch> = (0..n).map(branch).collect();
        let mut f = Forest { branches, leaves: n + 1, roots: vec![Next::Node(0); n] };
        assert_eq!(f.depth().unwrap(), n);
        let mut w = Weights { given: (0..=n).map(|i| (i, 0, 1.0)).collect(), targets: 1 };
        assert!(w.always_given(&f));
        w.given.pop();
        assert!(!w.always_given(&f));
        // A single tree whose leaves all have a weight for the second target, and one leaf also for the first.
        f.roots.truncate(1);
        w = Weights { given: (0..=n).map(|i| (i, 1, 1.0)).collect(), targets: 2 };
        assert!(!w.always_given(&f));
        w.given.extend((0..=n).map(|i| (i, 0, 1.0)));
        assert!(w.always_given(&f));
    }
}
