//! Saturation of a graph, region by region.
//!
//! Nodes are taken in a depth-first order from the outputs, in which the nodes of a layer are close to each other.
//! That order is cut where few values are live, and each region is saturated on its own; a region that equals an
//! earlier one (except for its weights) reuses its solution. The time is therefore linear in the depth of a model, and
//! grows little with the depth of a stack of equal layers.

use super::canonical::topo;
use super::extract::extract;
use super::fold;
use super::number::{Exponents, Number};
use super::rules::Rule;
use super::term::{self, Attr, Head, Leaf, Table, Term, Terms, decode, is_term};
use crate::cost::Expected;
use egg::{Id, Language};
use petgraph::visit::DfsPostOrder;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use wgfc_ir::{BinaryOp, Dim, Graph, NodeId, Op, ReduceOp, Value};

#[cfg(test)]
mod rule_docs;
#[cfg(test)]
mod rule_tests;

/// The minimum and the maximum number of nodes of a region (the last one may have fewer).
const REGION: (usize, usize) = (60, 150);
/// The maximum number of rounds of rule application to one region.
const MAX_ROUNDS: usize = 12;
/// The maximum number of terms of an e-graph for each node of the region.
const GROWTH: usize = 60;
/// The maximum number of the model's names that a node keeps.
const MAX_ORIGINS: usize = 16;

/// The result of saturating a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The number of regions of the graph.
    pub regions: usize,
    /// The number of regions that were saturated; the others equal one of them.
    pub distinct: usize,
    /// The number of regions whose e-graph reached a limit.
    pub limited: usize,
    /// The number of times that each rule found something new in the distinct regions.
    pub fired: BTreeMap<String, usize>,
    /// The number of terms of the e-graphs of the distinct regions.
    pub terms: usize,
    /// The number of members of each merged product that was chosen.
    pub merged: Vec<usize>,
}

/// Rewrites `graph` with `rules`, keeping the types of all values that other nodes or the outputs read.
pub fn saturate(graph: &mut Graph, rules: &[Rule], expect: &Expected) -> Result<Outcome, String> {
    let order = depth_first(graph);
    let regions = cut(graph, &order);
    saturate_each(graph, regions, rules, expect, true)
}

/// Rewrites products that share an operand with `rules`, one region for each shared value. Layers far apart may read
/// the same value, such as an encoder's result or a time embedding. The rules do not compute with constants, whose
/// elements are not read.
pub fn saturate_products(graph: &mut Graph, rules: &[Rule], expect: &Expected) -> Result<Outcome, String> {
    let regions = products_of_one_operand(graph)?;
    saturate_each(graph, regions, rules, expect, false)
}

/// Rewrites region by region; `computing` states whether the rules compute with constants.
fn saturate_each(
    graph: &mut Graph,
    regions: Vec<Vec<NodeId>>,
    rules: &[Rule],
    expect: &Expected,
    computing: bool,
) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    let mut solved: FxHashMap<String, Arc<Solution>> = FxHashMap::default();
    for members in regions {
        let form = Form::new(graph, members, computing);
        outcome.regions += 1;
        let solution = match solved.get(&form.key) {
            Some(s) => s.clone(),
            None => {
                let s = Arc::new(solve(graph, &form, rules, expect, &mut outcome)?);
                outcome.distinct += 1;
                solved.insert(form.key.clone(), s.clone());
                s
            }
        };
        outcome.merged.extend(&solution.merged);
        replay(graph, &form, &solution)?;
    }
    graph.remove_dead();
    Ok(outcome)
}

/// Every node on which the results depend, operands first, each as late as its first reader allows.
fn depth_first(graph: &Graph) -> Vec<NodeId> {
    let mut order = vec![];
    let mut search = DfsPostOrder::empty(graph.operands());
    for v in graph.results() {
        search.move_to(v.node);
        order.extend(std::iter::from_fn(|| search.next(graph.operands())));
    }
    order
}

/// Cuts `order` into pieces at positions where few values are live.
fn cut(graph: &Graph, order: &[NodeId]) -> Vec<Vec<NodeId>> {
    let order: Vec<NodeId> =
        order.iter().copied().filter(|n| !matches!(graph.node(*n).op, Op::Input | Op::Const(_))).collect();
    let position: FxHashMap<NodeId, usize> = order.iter().enumerate().map(|(i, n)| (*n, i)).collect();
    let mut last_use: Vec<usize> = (0..order.len()).collect();
    for (i, n) in order.iter().enumerate() {
        for v in &graph.node(*n).inputs {
            if let Some(p) = position.get(&v.node) {
                last_use[*p] = last_use[*p].max(i);
            }
        }
    }
    // live[i]: the number of values made at or before i that something after i reads.
    let mut change = vec![0i64; order.len() + 1];
    for (p, l) in last_use.iter().enumerate() {
        change[p] += 1;
        change[*l] -= 1;
    }
    let live: Vec<i64> = change
        .iter()
        .scan(0, |sum, c| {
            *sum += c;
            Some(*sum)
        })
        .collect();
    let mut pieces = vec![];
    let mut start = 0;
    while order.len() - start > REGION.1 {
        let window = start + REGION.0 - 1..start + REGION.1;
        let end = window.min_by_key(|i| (live[*i], *i)).unwrap_or(start + REGION.1 - 1);
        pieces.push(order[start..=end].to_vec());
        start = end + 1;
    }
    pieces.push(order[start..].to_vec());
    pieces.into_iter().filter(|p| !p.is_empty()).collect()
}

/// For each non-constant value that several products read, in the order of their first products: these products, the
/// nodes that compute their other operands from constants, and the sums with constants that read the products.
fn products_of_one_operand(graph: &Graph) -> Result<Vec<Vec<NodeId>>, String> {
    let order = topo(graph)?;
    let position: FxHashMap<NodeId, usize> = order.iter().enumerate().map(|(i, n)| (*n, i)).collect();
    let product = |n: NodeId| matches!(graph.node(n).op, Op::Contract(_));
    let constant = |v: Value| matches!(graph.node(v.node).op, Op::Const(_));
    let mut regions: Vec<(usize, Vec<NodeId>)> = vec![];
    for n in &order {
        for port in 0..graph.node(*n).outputs.len() as u32 {
            let x = Value { node: *n, port };
            let mut region: Vec<NodeId> =
                graph.uses(x).iter().map(|(n, _)| *n).filter(|n| product(*n)).collect();
            region.sort_unstable_by_key(|n| position[n]);
            region.dedup();
            if constant(x) || region.len() < 2 {
                continue;
            }
            let products = region.clone();
            let first = position[&products[0]];
            for p in products {
                let mut stack: Vec<Value> =
                    graph.node(p).inputs.iter().copied().filter(|v| *v != x).collect();
                while let Some(v) = stack.pop() {
                    let node = graph.node(v.node);
                    if matches!(node.op, Op::View { .. } | Op::Map { .. }) && graph.uses(v).len() == 1 {
                        region.push(v.node);
                        stack.extend(&node.inputs);
                    }
                }
                if let [(sum, _)] = graph.uses(p.into())[..]
                    && graph.node(sum).inputs.iter().any(|v| constant(*v))
                {
                    region.push(sum);
                }
            }
            region.sort_unstable_by_key(|n| position[n]);
            region.dedup();
            regions.push((first, region));
        }
    }
    regions.sort_by_key(|(first, _)| *first);
    Ok(regions.into_iter().map(|(_, region)| region).collect())
}

/// The source of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ref {
    /// A value from outside the region, by its number.
    Leaf(usize),
    /// A node of the region, or a step of its solution.
    Made(usize),
}

/// A region in a normal form: equal regions have equal keys.
struct Form {
    key: String,
    nodes: Vec<NodeId>,
    operands: Vec<Vec<Ref>>,
    /// The nodes whose values are read outside the region.
    roots: Vec<usize>,
    /// The values from outside, in order of first use.
    leaves: Vec<Value>,
    facts: Vec<Leaf>,
}

impl Form {
    /// The magnitudes of constants are part of the key if rules are `computing` with them.
    fn new(graph: &Graph, members: Vec<NodeId>, computing: bool) -> Form {
        let nodes: Vec<NodeId> = members.into_iter().filter(|n| is_term(graph.node(*n))).collect();
        let made: FxHashMap<NodeId, usize> = nodes.iter().enumerate().map(|(i, n)| (*n, i)).collect();
        let mut leaf_of: FxHashMap<Value, usize> = FxHashMap::default();
        let mut f = Form {
            key: String::new(),
            nodes,
            operands: vec![],
            roots: vec![],
            leaves: vec![],
            facts: vec![],
        };
        for (i, n) in f.nodes.iter().enumerate() {
            let node = graph.node(*n);
            let _ = write!(f.key, "{:?}(", node.op);
            let mut operands = vec![];
            for v in &node.inputs {
                let r = match made.get(&v.node) {
                    Some(m) => Ref::Made(*m),
                    None => Ref::Leaf(*leaf_of.entry(*v).or_insert_with(|| {
                        let facts = leaf(graph, *v, computing);
                        let _ = write!(f.key, "{facts:?}");
                        f.leaves.push(*v);
                        f.facts.push(facts);
                        f.leaves.len() - 1
                    })),
                };
                let _ = write!(f.key, "{r:?},");
                operands.push(r);
            }
            f.operands.push(operands);
            let v = Value::from(*n);
            if graph.is_output(v) || graph.uses(v).iter().any(|(u, _)| !made.contains_key(u)) {
                f.roots.push(i);
                f.key.push('!');
            }
            if !alone(graph, v) {
                f.key.push('*');
            }
            f.key.push(')');
        }
        f
    }
}

/// Whether a value is read by exactly one operand and is not an output.
fn alone(graph: &Graph, v: Value) -> bool {
    graph.uses(v).len() == 1 && !graph.is_output(v)
}

/// Whether all readers of a value compute, through maps and views that nothing else reads, operands of one node: the scales and minima
/// of a quantised weight may be one constant.
fn meets(graph: &Graph, v: Value) -> bool {
    const MOST: usize = 8;
    let chain = |first: NodeId| {
        let mut all = vec![first];
        while let Some(n) = all.last().filter(|_| all.len() < MOST) {
            let inner = matches!(graph.node(*n).op, Op::Map { .. } | Op::View { .. });
            match graph.uses((*n).into())[..] {
                [(next, _)] if inner && !graph.is_output((*n).into()) => all.push(next),
                _ => break,
            }
        }
        all
    };
    let uses = graph.uses(v);
    if graph.is_output(v) || uses.len() > MOST {
        return false;
    }
    let mut chains = uses.iter().map(|(user, _)| chain(*user));
    let Some(first) = chains.next() else { return false };
    let others: Vec<Vec<NodeId>> = chains.collect();
    first.iter().any(|n| others.iter().all(|c| c.contains(n)))
}

fn leaf(graph: &Graph, v: Value, computing: bool) -> Leaf {
    let ty = graph.ty(v).clone();
    let alone = alone(graph, v);
    match &graph.node(v.node).op {
        Op::Const(t) => Leaf {
            ty,
            konst: true,
            scalar: (t.numel() == 1).then(|| t.scalars()?.first().copied()).flatten(),
            magnitudes: computing.then(|| Exponents::of(t)).flatten(),
            alone: alone || meets(graph, v),
        },
        _ => Leaf { ty, konst: false, scalar: None, magnitudes: None, alone },
    }
}

/// One node of a solution.
struct Step {
    op: Op,
    operands: Vec<Ref>,
    /// The node of the region that is equal to this step.
    kept: Option<usize>,
    /// The node of the region whose value this step computes, if there is one.
    stands_for: Option<usize>,
    /// The nodes of the region that were absorbed in this step.
    absorbed: Vec<usize>,
}

/// The rewritten form of a region.
struct Solution {
    steps: Vec<Step>,
    /// The sources of the form's roots, in their order.
    roots: Vec<Ref>,
    /// For each merged product, the number of its members.
    merged: Vec<usize>,
}

/// The e-graph of a region, and the term and e-class of each of its nodes.
struct Loaded {
    g: Terms,
    terms: Vec<Term>,
    ids: Vec<Id>,
}

fn load(graph: &Graph, form: &Form, expect: &Expected) -> Result<Loaded, String> {
    let mut g = Terms::new(Table { leaves: form.facts.clone(), expect: expect.clone(), ..Table::default() });
    let leaf_ids: Vec<Id> = form
        .facts
        .iter()
        .enumerate()
        .map(|(i, l)| match l.scalar {
            Some(s) if l.ty.rank() == 0 => term::lit(&mut g, s.into()),
            _ => g.add(Term::new(Head::Leaf(i as u32), [])),
        })
        .collect();
    let mut terms: Vec<Term> = vec![];
    let mut ids: Vec<Id> = vec![];
    for (n, operands) in form.nodes.iter().zip(&form.operands) {
        let inputs: Vec<Id> = operands
            .iter()
            .map(|r| match r {
                Ref::Leaf(l) => leaf_ids[*l],
                Ref::Made(m) => ids[*m],
            })
            .collect();
        let node = graph.node(*n);
        let mut t = term::encode(&mut g, &node.op, &inputs);
        mean(&mut g, &mut t);
        let id = g.add(t.clone());
        if g[id].data.ty.as_deref() != node.outputs.first() {
            return Err(format!("`{}` does not type as a term", node.label()));
        }
        terms.push(t);
        ids.push(id);
        if !alone(graph, (*n).into()) {
            g.analysis.shared.push(id);
        }
    }
    let others = leaf_ids.iter().zip(&form.facts).filter(|(_, l)| !l.alone).map(|(id, _)| *id);
    g.analysis.shared.extend(others);
    g.rebuild();
    Ok(Loaded { g, terms, ids })
}

/// Replaces the factor of a mean (a sum over n elements times a rounded `1/n`) by the exact `1/n`.
fn mean(g: &mut Terms, t: &mut Term) {
    let (Head::Binary(BinaryOp::Mul), [a, b]) = (t.head, t.args.as_slice()) else { return };
    let (sum, factor, at) = if g[*a].data.value.is_some() { (*b, *a, 0) } else { (*a, *b, 1) };
    let Some(n) = g[sum].nodes.iter().find_map(|n| summed(g, n)) else { return };
    let Some(Number::Real(dtype, _)) = g[factor].data.value else { return };
    let literal = g[factor].data.ty.as_ref().is_some_and(|t| t.rank() == 0);
    let Some(one_over) = Number::one_over(dtype, n).filter(|_| literal) else { return };
    if one_over.rounded() == g[factor].data.value.as_ref().and_then(Number::rounded) {
        t.args[at] = term::lit(g, one_over);
    }
}

/// The number of elements that are summed for each element of a term.
fn summed(g: &Terms, t: &Term) -> Option<i64> {
    let (Head::Reduce(ReduceOp::Sum), [axes, x]) = (t.head, t.args.as_slice()) else { return None };
    let Attr::Axes(axes) = term::attr_of(g, *axes)? else { return None };
    let of = &g[*x].data.ty.as_ref()?.shape;
    let n: Dim = axes.iter().map(|a| of[*a].clone()).product();
    n.as_const()
}

fn solve(
    graph: &Graph,
    form: &Form,
    rules: &[Rule],
    expect: &Expected,
    outcome: &mut Outcome,
) -> Result<Solution, String> {
    let Loaded { mut g, terms, ids } = load(graph, form, expect)?;
    if run(&mut g, rules, form.nodes.len(), &mut outcome.fired)? {
        outcome.limited += 1;
    }
    outcome.terms += g.total_size();
    let roots: Vec<Id> = form.roots.iter().map(|r| ids[*r]).collect();
    let chosen = extract(&g, &roots);
    assemble(&g, form, &chosen, &terms, &ids)
}

/// Applies rules until nothing changes; returns true if a limit was reached. It is an error if two unequal constants
/// become equal.
fn run(
    g: &mut Terms,
    rules: &[Rule],
    nodes: usize,
    fired: &mut BTreeMap<String, usize>,
) -> Result<bool, String> {
    let limit = nodes * GROWTH + 1000;
    for _ in 0..MAX_ROUNDS {
        let size = g.total_size();
        let matches: Vec<_> = rules.iter().map(|r| r.search_with_limit(g, limit)).collect();
        let mut changes = 0;
        for (rule, found) in rules.iter().zip(matches) {
            let n = rule.apply(g, &found).len();

            if n > 0 {
                *fired.entry(rule.name.to_string()).or_default() += n;
            }
            changes += n;
            if g.total_size() > limit {
                g.rebuild();
                return consistent(g, fired).map(|()| true);
            }
        }
        g.rebuild();
        consistent(g, fired)?;
        if changes == 0 && g.total_size() == size {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Fails if rules made two unequal constants equal.
fn consistent(g: &Terms, fired: &BTreeMap<String, usize>) -> Result<(), String> {
    match &g.analysis.contradiction {
        None => Ok(()),
        Some((a, b)) => {
            let rules: Vec<&str> = fired.keys().map(String::as_str).collect();
            Err(format!("the rewrite rules make {a:?} and {b:?} equal; those used are {}", rules.join(", ")))
        }
    }
}

/// Converts the chosen terms to steps, operands first.
fn assemble(
    g: &Terms,
    form: &Form,
    chosen: &FxHashMap<Id, Term>,
    terms: &[Term],
    ids: &[Id],
) -> Result<Solution, String> {
    let mut by_class: FxHashMap<Id, Vec<usize>> = FxHashMap::default();
    for (i, id) in ids.iter().enumerate() {
        by_class.entry(g.find(*id)).or_default().push(i);
    }
    let mut steps: Vec<Step> = vec![];
    let mut made: FxHashMap<Id, Ref> = FxHashMap::default();
    let mut stack: Vec<(Id, bool)> = vec![];
    // The slices of merged products are ordered like the products.
    let wanted: Vec<Id> = form.roots.iter().map(|r| g.find(ids[*r])).collect();
    let members = g.analysis.joined.iter().flat_map(|j| &j.members);
    let results: FxHashSet<Id> = wanted.iter().copied().collect();
    let slices =
        members.map(|(product, sum)| g.find(sum.unwrap_or(*product))).filter(|id| results.contains(id));
    let order: Vec<Id> = slices.chain(wanted.iter().copied()).collect();
    for id in order {
        stack.push((id, false));
        while let Some((id, ready)) = stack.pop() {
            if made.contains_key(&id) {
                continue;
            }
            let t = chosen.get(&id).ok_or("a term without a cost")?;
            if let Head::Leaf(l) = t.head {
                made.insert(id, Ref::Leaf(l as usize));
                continue;
            }
            let (op, inputs) = decode(&g.analysis, t, &|i| &g[i].data).ok_or("a term without an operator")?;
            if !ready {
                stack.push((id, true));
                stack.extend(inputs.iter().rev().map(|i| (g.find(*i), false)));
                continue;
            }
            let operands = inputs
                .iter()
                .map(|i| made.get(&g.find(*i)).copied().ok_or("a term that needs itself"))
                .collect::<Result<Vec<_>, _>>()?;
            let originals = by_class.get(&id).map(Vec::as_slice).unwrap_or_default();
            let unchanged = |i: &&usize| {
                let same = terms[**i].clone().map_children(|c| g.find(c)) == *t;
                same && form.operands[**i].iter().all(|r| match r {
                    Ref::Leaf(_) => true,
                    Ref::Made(m) => match made.get(&g.find(ids[*m])) {
                        Some(Ref::Made(s)) => steps[*s].kept == Some(*m),
                        _ => false,
                    },
                })
            };
            let kept = originals.iter().find(unchanged).copied();
            let stands_for = kept.or(originals.last().copied());
            made.insert(id, Ref::Made(steps.len()));
            steps.push(Step { op, operands, kept, stands_for, absorbed: vec![] });
        }
    }
    let root = |id: &Id| made.get(id).copied().ok_or("a root without a term");
    let roots = wanted.iter().map(root).collect::<Result<Vec<_>, _>>()?;
    // A merged product, its weight and its sum get the names of all members.
    let mut merged = vec![];
    let mut counted = vec![];
    let mut in_product: Vec<bool> = vec![false; ids.len()];
    for j in &g.analysis.joined {
        let Some(Ref::Made(s)) = made.get(&g.find(j.product)).copied() else { continue };
        if counted.contains(&s) {
            continue;
        }
        counted.push(s);
        merged.push(j.members.len());
        let classes = j.members.iter().flat_map(|(p, sum)| [Some(*p), *sum]).flatten();
        let of: Vec<usize> =
            classes.flat_map(|c| by_class.get(&g.find(c)).into_iter().flatten().copied()).collect();
        for class in &j.made {
            if let Some(Ref::Made(s)) = made.get(&g.find(*class)).copied()
                && steps[s].stands_for.is_none()
            {
                steps[s].absorbed.clone_from(&of);
            }
        }
        for (p, sum) in &j.members {
            if sum.is_some() {
                by_class.get(&g.find(*p)).into_iter().flatten().for_each(|i| in_product[*i] = true);
            }
        }
    }
    // The names of a removed node are added to its reader.
    let mut into: Vec<Option<usize>> = vec![None; ids.len()];
    let mut reader: Vec<Option<usize>> = vec![None; ids.len()];
    for (i, operands) in form.operands.iter().enumerate().rev() {
        for r in operands {
            if let Ref::Made(m) = r {
                reader[*m] = Some(i);
            }
        }
        into[i] = match made.get(&g.find(ids[i])) {
            Some(Ref::Made(s)) => Some(*s),
            _ => reader[i].and_then(|r| into[r]),
        };
    }
    for (i, s) in into.iter().enumerate() {
        if let Some(s) = s
            && steps[*s].stands_for != Some(i)
            && !in_product[i]
        {
            steps[*s].absorbed.push(i);
        }
    }
    Ok(Solution { steps, roots, merged })
}

/// Replaces the region in the graph by the solution.
fn replay(graph: &mut Graph, form: &Form, solution: &Solution) -> Result<(), String> {
    let mut made: Vec<Value> = vec![];
    let value = |made: &[Value], r: &Ref| match r {
        Ref::Leaf(l) => form.leaves[*l],
        Ref::Made(m) => made[*m],
    };
    for s in &solution.steps {
        if let Some(k) = s.kept {
            made.push(form.nodes[k].into());
            continue;
        }
        let inputs: Vec<Value> = s.operands.iter().map(|r| value(&made, r)).collect();
        let mut origin = vec![];
        for o in s.stands_for.iter().chain(&s.absorbed) {
            for name in &graph.node(form.nodes[*o]).origin {
                if origin.len() < MAX_ORIGINS && !origin.contains(name) {
                    origin.push(name.clone());
                }
            }
        }
        let constant = s.stands_for.is_none().then(|| fold::joined(graph, &s.op, &inputs)).flatten();
        let n = match constant {
            Some(t) => fold::add(graph, t, &origin),
            None => graph.push(s.op.clone(), &inputs, &origin)?,
        };
        if let Some(o) = s.stands_for {
            graph.node_mut(n).names = graph.node(form.nodes[o]).names.clone();
        }
        made.push(n.into());
    }
    for (root, r) in form.roots.iter().zip(&solution.roots) {
        let (old, new) = (Value::from(form.nodes[*root]), value(&made, r));
        if old == new {
            continue;
        }
        if graph.ty(old) != graph.ty(new) {
            return Err(format!(
                "`{}` of type {} became one of type {}",
                graph.node(old.node).label(),
                graph.ty(old),
                graph.ty(new)
            ));
        }
        graph.replace_uses(old, new);
    }
    Ok(())
}
