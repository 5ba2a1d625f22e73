//! Extraction: the choice of one term for each e-class.
//!
//! It is greedy from the leaves up, and counts shared subterms once: the cost of a choice is the sum over the *set* of
//! e-classes that it needs. Every term except a leaf has a positive cost, so that no class is chosen to need itself.
//! Sharing between the choices of *different* classes is considered afterwards: single choices are exchanged while
//! that makes the whole region cheaper, and choices that can share an expensive term are exchanged together, even if
//! none of them gains alone.

use super::term::{Head, Term, Terms, decode};
use super::views::elements;
use egg::{Id, Language};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use wgfc_ir::{BinaryOp, Dim, Op, ScalarNode, UnaryOp};

/// The maximum number of elements of constant terms that are computed while compiling, which bounds time and memory.
pub const MAX_FOLDED: f64 = (64 << 20) as f64;

/// The cost of one term without its operands: the elements moved, and arithmetic in the same unit. Elementwise
/// operators and views will be fused and have no traffic of their own. Eight multiply-adds cost as much as moving one
/// element, as on GPUs; this does not depend on the device, so that a model is rewritten in the same way for all
/// devices. Symbols have their expected values.
fn cost(g: &Terms, class: Id, term: &Term) -> Option<f64> {
    const STEP: f64 = 1.0;
    let facts = &g[class].data;
    if matches!(term.head, Head::Leaf(_) | Head::Attr(_)) {
        return Some(0.0);
    }
    if !facts.representable() {
        return None;
    }
    if matches!(term.head, Head::Lit(_)) {
        return Some(0.0);
    }
    let expect = &g.analysis.expect;
    let out = elements(facts.ty.as_ref()?, expect);
    // Concatenated constants are not copied, and of constants that are too large to be folded readers evaluate the views: joined weights cost
    // no more than their parts, which may be small enough.
    if facts.konst && (out <= MAX_FOLDED || matches!(term.head, Head::Join | Head::View)) {
        return Some(1e-3);
    }
    let (op, inputs) = decode(&g.analysis, term, &|id| &g[id].data)?;
    let read: f64 = inputs.iter().map(|i| g[*i].data.ty.as_ref().map_or(0.0, |t| elements(t, expect))).sum();
    Some(
        STEP + match &op {
            Op::Map { body, .. } => out * body.nodes.iter().map(weight).sum::<f64>(),
            Op::View { .. } => 0.01 * out,
            Op::Reduce { .. } => read,
            Op::Contract(c) => {
                let sizes = |labels: &[u8], of: Id| -> Vec<(u8, f64)> {
                    let Some(t) = g[of].data.ty.as_ref() else { return vec![] };
                    let extent = |d: &Dim| expect.estimate(d);
                    labels.iter().zip(&t.shape).map(|(l, d)| (*l, extent(d) as f64)).collect()
                };
                let [a, b] = inputs.as_slice() else { return None };
                let extents: BTreeMap<u8, f64> = sizes(&c.a, *a).into_iter().chain(sizes(&c.b, *b)).collect();
                read + out + extents.values().product::<f64>() / 8.0
            }
            Op::Softmax { .. } | Op::Norm { .. } => 2.0 * out,
            _ => read + out,
        },
    )
}

/// The arithmetic cost of a scalar operator, in additions.
fn weight(n: &ScalarNode) -> f64 {
    match n {
        ScalarNode::Arg(_) | ScalarNode::Const(_) => 0.0,
        ScalarNode::Unary(UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not, _) => 1.0,
        ScalarNode::Unary(UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Recip, _) => 2.0,
        ScalarNode::Unary(UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc, _) => 1.0,
        ScalarNode::Unary(UnaryOp::Special(_), _)
        | ScalarNode::Binary(BinaryOp::Special(_) | BinaryOp::Gcd, ..) => 40.0,
        ScalarNode::Unary(..) => 4.0,
        ScalarNode::Binary(BinaryOp::Div | BinaryOp::Quot | BinaryOp::Rem | BinaryOp::Mod, ..) => 2.5,
        ScalarNode::Binary(BinaryOp::Pow, ..) => 8.0,
        _ => 1.0,
    }
}

/// The choice for one class: the term, and all classes that it needs with their costs.
struct Choice {
    term: Term,
    total: f64,
    needs: BTreeMap<Id, f64>,
}

/// The chosen term of every class that has one, for a region with the results `roots`; children are canonical ids.
pub fn extract(g: &Terms, roots: &[Id]) -> FxHashMap<Id, Term> {
    let mut classes: Vec<Id> = g.classes().map(|c| c.id).collect();
    classes.sort_unstable();
    let mut best: FxHashMap<Id, Choice> = FxHashMap::default();
    let mut changed = true;
    while changed {
        changed = false;
        for &id in &classes {
            for node in &g[id].nodes {
                let Some(own) = cost(g, id, node) else { continue };
                let Some(choice) = consider(g, &best, id, node, own) else { continue };
                let better = best.get(&id).is_none_or(|b| choice.total < b.total * (1.0 - 1e-9));
                if better {
                    best.insert(id, choice);
                    changed = true;
                }
            }
        }
    }
    let mut chosen = best.into_iter().map(|(id, c)| (id, c.term)).collect();
    if g.analysis.joined.is_empty() {
        improve(g, roots, &mut chosen);
        share(g, roots, &mut chosen);
    } else {
        merge(g, roots, &mut chosen);
    }
    chosen
}

/// Replaces the members of each merged product by its slices if that makes the whole region cheaper. A single member
/// never gains, because it would pay for the whole merged product, so all members are exchanged at once; the time is
/// linear in their number.
fn merge(g: &Terms, roots: &[Id], chosen: &mut FxHashMap<Id, Term>) {
    let Some((mut total, _)) = whole(g, roots, chosen) else { return };
    for j in &g.analysis.joined {
        let of: FxHashSet<Id> = j.made.iter().map(|id| g.find(*id)).collect();
        let mut before: Vec<(Id, Term)> = vec![];
        for (product, sum) in &j.members {
            let id = g.find(sum.unwrap_or(*product));
            let terms = g[id].nodes.iter().map(|n| n.clone().map_children(|c| g.find(c)));
            let slice = terms
                .into_iter()
                .find(|t| t.head == Head::View && t.args[1..].iter().all(|a| of.contains(a)));
            if let Some(slice) = slice
                && let Some(old) = chosen.insert(id, slice)
            {
                before.push((id, old));
            }
        }
        match whole(g, roots, chosen) {
            Some((t, _)) if t < total * (1.0 - 1e-9) => total = t,
            _ => chosen.extend(before.into_iter().rev()),
        }
    }
}

/// Exchanges choices that together become cheaper by sharing an expensive term that none of them needs alone: for two
/// products of one operand with a constant scaled in two ways, one product and two scales are cheaper.
fn share(g: &Terms, roots: &[Id], chosen: &mut FxHashMap<Id, Term>) {
    let Some((mut total, mut needed)) = whole(g, roots, chosen) else { return };
    let expensive = |id: Id, term: &Term| cost(g, id, term).is_some_and(|c| c >= total * EXPENSIVE);
    let mut candidates: Vec<Id> =
        chosen.iter().filter(|(id, term)| expensive(**id, term)).map(|(id, _)| *id).collect();
    candidates.sort_unstable();
    for shared in candidates {
        if needed.binary_search(&shared).is_ok() {
            continue;
        }
        let with: Vec<Id> = roots.iter().copied().chain([shared]).collect();
        let Some((mut least, _)) = whole(g, &with, chosen) else { continue };
        let through = needing(g, shared, chosen);
        let mut before: Vec<(Id, Term)> = vec![];
        for id in &needed {
            for node in &g[*id].nodes {
                let term = node.clone().map_children(|c| g.find(c));
                let Some(old) = chosen.get(id).cloned() else { continue };
                if term == old
                    || !term.args.iter().any(|a| through.contains(a))
                    || !term.args.iter().all(|a| chosen.contains_key(a))
                {
                    continue;
                }
                chosen.insert(*id, term);
                match whole(g, &with, chosen) {
                    Some((t, _)) if t < least * (1.0 - 1e-9) => {
                        least = t;
                        before.push((*id, old));
                    }
                    _ => {
                        chosen.insert(*id, old);
                    }
                }
            }
        }
        match whole(g, roots, chosen) {
            Some((t, n)) if t < total * (1.0 - 1e-9) => (total, needed) = (t, n),
            _ => {
                for (id, old) in before.into_iter().rev() {
                    chosen.insert(id, old);
                }
            }
        }
    }
}

/// The classes whose choices need `shared`, including itself.
fn needing(g: &Terms, shared: Id, chosen: &FxHashMap<Id, Term>) -> FxHashSet<Id> {
    let mut readers: FxHashMap<Id, Vec<Id>> = FxHashMap::default();
    for (id, term) in chosen {
        for a in &term.args {
            readers.entry(g.find(*a)).or_default().push(*id);
        }
    }
    let mut all = FxHashSet::from_iter([shared]);
    let mut stack = vec![shared];
    while let Some(id) = stack.pop() {
        for r in readers.get(&id).into_iter().flatten() {
            if all.insert(*r) {
                stack.push(*r);
            }
        }
    }
    all
}

/// The minimum share of the whole cost that makes a term worth sharing.
const EXPENSIVE: f64 = 1e-2;
/// The number of rounds of exchanges; each considers every alternative once.
const ROUNDS: usize = 3;

/// Exchanges single choices while that makes the whole region cheaper.
fn improve(g: &Terms, roots: &[Id], chosen: &mut FxHashMap<Id, Term>) {
    let Some((mut total, _)) = whole(g, roots, chosen) else { return };
    for _ in 0..ROUNDS {
        let before = total;
        let Some((_, needed)) = whole(g, roots, chosen) else { return };
        for id in needed {
            let class = &g[id];
            if class.nodes.len() < 2
                || !class.nodes.iter().any(|n| cost(g, id, n).is_some_and(|c| c >= total * 1e-3))
            {
                continue;
            }
            for node in &class.nodes {
                let term = node.clone().map_children(|c| g.find(c));
                let Some(old) = chosen.get(&id).cloned() else { continue };
                if term == old || !term.args.iter().all(|a| chosen.contains_key(a)) {
                    continue;
                }
                chosen.insert(id, term);
                match whole(g, roots, chosen) {
                    Some((t, _)) if t < total * (1.0 - 1e-9) => total = t,
                    _ => {
                        chosen.insert(id, old);
                    }
                }
            }
        }
        if total >= before {
            return;
        }
    }
}

/// The cost of everything that the roots need, and the needed classes; `None` if a class needs itself.
pub(super) fn whole(g: &Terms, roots: &[Id], chosen: &FxHashMap<Id, Term>) -> Option<(f64, Vec<Id>)> {
    let mut done: FxHashMap<Id, bool> = FxHashMap::default();
    let mut order = vec![];
    let mut total = 0.0;
    let mut stack: Vec<(Id, bool)> = roots.iter().rev().map(|r| (g.find(*r), false)).collect();
    while let Some((id, leave)) = stack.pop() {
        if leave {
            done.insert(id, true);
            continue;
        }
        match done.get(&id) {
            Some(true) => continue,
            Some(false) => return None,
            None => {}
        }
        let term = chosen.get(&id)?;
        total += cost(g, id, term)?;
        done.insert(id, false);
        order.push(id);
        stack.push((id, true));
        for a in &term.args {
            match done.get(a) {
                Some(true) => {}
                Some(false) => return None,
                None => stack.push((*a, false)),
            }
        }
    }
    order.sort_unstable();
    Some((total, order))
}

fn consider(g: &Terms, best: &FxHashMap<Id, Choice>, id: Id, node: &Term, own: f64) -> Option<Choice> {
    let term = node.clone().map_children(|c| g.find(c));
    let mut needs = BTreeMap::new();
    // Concatenated constants count as one constant, however many parts they have.
    let one = term.head == Head::Join && g[id].data.konst;
    for c in term.args.iter().filter(|_| !one) {
        for (k, v) in &best.get(c)?.needs {
            needs.insert(*k, *v);
        }
    }
    if needs.contains_key(&id) {
        return None;
    }
    if own > 0.0 {
        needs.insert(id, own);
    }
    Some(Choice { term, total: needs.values().sum(), needs })
}
