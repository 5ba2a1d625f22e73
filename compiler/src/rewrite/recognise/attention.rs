//! `softmax(q·kᵀ·scale + mask)·v` → [`Op::Attention`].
//!
//! The matcher follows the data rather than the shapes of terms: a [`Contract`] names its axes, so whatever order and
//! grouping the exporter chose becomes a view of `q`, `k` or `v` that puts the axes in order, composed with the
//! existing views. Views between the two products (batches and heads merged to one axis and split again) are followed
//! from the probabilities back to the scores. Scales may be applied to the scores, to `q`, to `k`, or to several of
//! them; heads that share keys and values (GQA) are views, too. If the softmax is guarded against rows that see no key
//! (`unseen`), such rows are 0.
//!
//! Not matched: a scale applied after the mask, dropout, and a softmax whose result has other readers.

use super::scores::{Mask, Scores, mask_type, scores};
use super::simple::{Simple, factor, simple};
use super::unseen;
use crate::rewrite::canonical::topo;
use crate::rewrite::views::ViewMap;
use crate::schedule::attention::MAX_WIDTH;
use std::sync::Arc;
use wgfc_ir::op::broadcasts_to;
use wgfc_ir::{Contract, Dim, Graph, NodeId, Op, Poly, Value};

/// Replaces attentions by raised operators; returns their number.
pub fn recognise(graph: &mut Graph) -> Result<usize, String> {
    let mut found = 0;
    for n in topo(graph)? {
        if let Some(m) = match_at(graph, n) {
            m.replace(graph, n)?;
            found += 1;
        }
    }
    graph.remove_dead();
    Ok(found)
}

/// Moves factors of the queries and keys of existing attentions to the scale of their scores; returns the number of
/// changed attentions. If the factors were folded into weights, products of the same operand could not be merged.
pub fn scales(graph: &mut Graph) -> Result<usize, String> {
    let mut changed = 0;
    for n in topo(graph)? {
        let node = graph.node(n).clone();
        let Op::Attention { scale, empty_is_zero } = node.op else { continue };
        let before = f64::from(f32::from_bits(scale));
        let mut after = before;
        let mut inputs = node.inputs.clone();
        for x in &mut inputs[..2] {
            let (whole, own) = (ViewMap::identity(&graph.ty(*x).shape), after);
            let simple = Operand { value: *x, view: whole }.simplify(graph, Some(&mut after), &mut vec![]);
            if after != own {
                *x = simple.build(graph, &node.origin)?;
            }
        }
        if after == before || !(after as f32).is_finite() {
            continue;
        }
        let op = Op::Attention { scale: (after as f32).to_bits(), empty_is_zero };
        let made = graph.push(op, &inputs, &node.origin)?;
        graph.node_mut(made).names.clone_from(&node.names);
        graph.replace_uses(n.into(), made.into());
        changed += 1;
    }
    graph.remove_dead();
    Ok(changed)
}

/// A recognised attention.
struct Match {
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Vec<Mask>,
    scale: f64,
    empty_is_zero: bool,
    /// The view that reorders `[batch…, s, e]` to the contraction's result.
    out: ViewMap,
    absorbed: Vec<NodeId>,
}

/// A value, and the view that puts its axes in order.
struct Operand {
    value: Value,
    view: ViewMap,
}

impl Operand {
    /// Composes the views before the value. If a `scale` is given, factors are multiplied into it, as long as all
    /// fills of the views are zero.
    fn simplify(mut self, graph: &Graph, mut scale: Option<&mut f64>, absorbed: &mut Vec<NodeId>) -> Operand {
        loop {
            let v = self.value;
            let node = graph.node(v.node);
            if let Some(scale) = scale.as_deref_mut()
                && self.view.fill.is_none_or(|f| f.as_f64() == 0.0)
                && let Some((x, c)) = simple(graph, v).as_ref().and_then(factor)
                && graph.ty(x) == graph.ty(v)
            {
                *scale *= c;
                absorbed.push(v.node);
                self.value = x;
                continue;
            }
            if let Some(inner) = ViewMap::of(&node.op)
                && let Some(both) = inner.then(&self.view, &graph.ty(node.inputs[0]).shape)
            {
                self.view = both;
                self.value = node.inputs[0];
                continue;
            }
            return self;
        }
    }

    /// The value with its axes reordered.
    fn build(&self, graph: &mut Graph, origin: &[Arc<str>]) -> Result<Value, String> {
        if self.view.is_identity(&graph.ty(self.value).shape) {
            return Ok(self.value);
        }
        Ok(graph.push(self.view.clone().op(), &[self.value], origin)?.into())
    }
}

/// Operand `x` with its axes `labels`, each read at the position that `place` gives, as a view of the extents `shape`.
fn arranged(x: Value, labels: &[u8], place: impl Fn(u8) -> Option<Poly>, shape: Vec<Dim>) -> Option<Operand> {
    let index = labels.iter().map(|l| place(*l)).collect::<Option<Vec<_>>>()?;
    Some(Operand { value: x, view: ViewMap { shape, index, fill: None } })
}

fn match_at(graph: &Graph, n: NodeId) -> Option<Match> {
    let node = graph.node(n);
    let Op::Contract(pv) = &node.op else { return None };
    (0..2).find_map(|which| {
        let (p, v) = (node.inputs[which], node.inputs[1 - which]);
        let (lp, lv) = if which == 0 { (&pv.a, &pv.b) } else { (&pv.b, &pv.a) };
        // The axis of the queries is one that the values do not have; if there are several, the others are batch axes.
        let own: Vec<u8> = lp.iter().copied().filter(|l| !lv.contains(l)).collect();
        own.iter().rev().find_map(|s| match_with(graph, n, pv, (p, lp), (v, lv), *s))
    })
}

/// The nodes between the scores and the second product.
struct Probabilities {
    scores: Value,
    /// The view through which the scores are read.
    place: ViewMap,
    empty_is_zero: bool,
    absorbed: Vec<NodeId>,
}

/// Strips views, casts and a guard from the probabilities `p` that `n` reads, and then the softmax.
fn probabilities(graph: &Graph, n: NodeId, p: Value, place: ViewMap) -> Option<Probabilities> {
    let (mut p, mut place) = (p, place);
    let mut absorbed = vec![];
    let mut guard = None;
    // The readers that will be replaced.
    let mut known = vec![n];
    loop {
        let node = graph.node(p.node);
        if graph.is_output(p) || !graph.uses(p).iter().all(|(u, _)| known.contains(u)) {
            return None;
        }
        absorbed.push(p.node);
        known.push(p.node);
        if let Op::Softmax { axis, log: false } = node.op {
            let s = node.inputs[0];
            let (t, at) = (place.shape.len() - 1, place.index.get(axis)?);
            let rows = place.index.iter().enumerate().all(|(i, p)| i == axis || !p.vars().contains(&t));
            let last = axis + 1 == place.index.len() && is_axis(at, t, &place.shape);
            if !last || !rows || graph.ty(s).shape[axis] != place.shape[t] || graph.is_output(s) {
                return None;
            }
            let guarded = guard.as_ref().is_none_or(|g: &unseen::Guard| match g.scores {
                Some(tested) => tested == s && g.softmax == p,
                None => g.softmax == p,
            });
            if !guarded || !graph.uses(s).iter().all(|(u, _)| known.contains(u)) {
                return None;
            }
            return Some(Probabilities { scores: s, place, empty_is_zero: guard.is_some(), absorbed });
        }
        if let Some(view) = ViewMap::of(&node.op) {
            p = node.inputs[0];
            place = view.then(&place, &graph.ty(p).shape).filter(|v| v.fill.is_none())?;
            continue;
        }
        // Probabilities cast to the narrower type of v.
        if let Some(Simple::Cast(x)) = simple(graph, p)
            && graph.ty(x).dtype.is_float()
        {
            p = x;
            continue;
        }
        if guard.is_some() {
            return None;
        }
        let g = unseen::guard(graph, p)?;
        if graph.ty(g.softmax).shape != graph.ty(p).shape {
            return None;
        }
        p = g.softmax;
        known.extend(&g.nodes);
        guard = Some(g);
    }
}

/// Whether `p` is the variable `i` of a domain.
fn is_axis(p: &Poly, i: usize, domain: &[Dim]) -> bool {
    p.as_var() == Some(i) || (p.is(0) && domain[i].is(1))
}

fn match_with(
    graph: &Graph,
    n: NodeId,
    pv: &Contract,
    (p, lp): (Value, &[u8]),
    (v, lv): (Value, &[u8]),
    s_label: u8,
) -> Option<Match> {
    let [t_label] = pv.k()[..] else { return None };
    if !lp.contains(&t_label) || !pv.out.contains(&s_label) {
        return None;
    }
    // The positions of the probabilities have the order batch…, s, t.
    let batch: Vec<u8> = lp.iter().copied().filter(|l| ![s_label, t_label].contains(l)).collect();
    let order: Vec<u8> = batch.iter().copied().chain([s_label, t_label]).collect();
    let extent = |x: Value, labels: &[u8], l: u8| {
        labels.iter().position(|m| *m == l).map(|i| graph.ty(x).shape[i].clone())
    };
    let domain = order.iter().map(|l| extent(p, lp, *l)).collect::<Option<Vec<_>>>()?;
    let var = |l: u8| order.iter().position(|o| *o == l).map(Poly::var);
    let Operand { view, .. } = arranged(p, lp, var, domain.clone())?;
    let found = probabilities(graph, n, p, view)?;
    let mut absorbed = found.absorbed;
    let mut s = scores(graph, found.scores, found.place, 0)?;
    absorbed.append(&mut s.absorbed);
    let mask = std::mem::take(&mut s.mask);

    let (b, si, ti) = (batch.len(), batch.len(), batch.len() + 1);
    let with = |last: [Dim; 2]| -> Vec<Dim> { domain[..b].iter().cloned().chain(last).collect() };
    let (q, k, d) = queries_and_keys(graph, &s, (si, ti), &domain)?;
    let q = arranged(q.0, q.1, q.2, with([domain[si].clone(), d.clone()]))?;
    let k = arranged(k.0, k.1, k.2, with([domain[ti].clone(), d]))?;

    // In the second product t is summed, s and the batch axes are kept, and e is new.
    let e: Vec<u8> = lv.iter().copied().filter(|l| !lp.contains(l)).collect();
    let [e] = e[..] else { return None };
    let width = extent(v, lv, e)?;
    if pv.out.len() != b + 2 || width.as_const().is_none_or(|w| w > MAX_WIDTH) {
        return None;
    }
    let place = |l: u8| match l {
        l if l == t_label => Some(Poly::var(si)),
        l if l == e => Some(Poly::var(ti)),
        l => var(l),
    };
    let v = arranged(v, lv, place, with([domain[ti].clone(), width.clone()]))?;
    let made = with([domain[si].clone(), width]);
    let order: Vec<u8> = batch.iter().copied().chain([s_label, e]).collect();
    let perm = pv.out.iter().map(|l| order.iter().position(|o| o == l)).collect::<Option<Vec<_>>>()?;
    let out = ViewMap::permutation(&made, &perm);

    let mut scale = s.scale;
    let q = q.simplify(graph, Some(&mut scale), &mut absorbed);
    let k = k.simplify(graph, Some(&mut scale), &mut absorbed);
    let v = v.simplify(graph, None, &mut absorbed);
    let dtype = |o: &Operand| graph.ty(o.value).dtype;
    let fits = (scale as f32).is_finite() && dtype(&q) == dtype(&k) && dtype(&k) == dtype(&v);
    let mask_fits = mask.iter().all(|m| broadcasts_to(m.shape(), &domain));
    (fits && mask_fits).then_some(Match {
        q,
        k,
        v,
        mask,
        scale,
        empty_is_zero: found.empty_is_zero,
        out,
        absorbed,
    })
}

/// An operand of the first product, its labels, and the position at which each is read.
type Placed<'a> = (Value, &'a [u8], Box<dyn Fn(u8) -> Option<Poly> + 'a>);

/// The operands of the scores that are the queries and the keys, and the width of both. `at` are the axes of queries
/// and keys among the positions.
fn queries_and_keys<'a>(
    graph: &Graph,
    s: &'a Scores,
    at: (usize, usize),
    domain: &[Dim],
) -> Option<(Placed<'a>, Placed<'a>, Dim)> {
    let (a, b, out) = (&s.contract.a[..], &s.contract.b[..], &s.contract.out);
    let [ld] = s.contract.k()[..] else { return None };
    let made: Vec<Dim> = out.iter().map(|l| label_extent(graph, s, *l)).collect::<Option<_>>()?;
    // The label that is read at this position and occurs in only one operand.
    let find = |i: usize, mine: &[u8], other: &[u8]| -> Option<u8> {
        let is = |j: &usize| is_axis(&s.place.index[*j], i, domain) && made[*j] == domain[i];
        let own = |j: &usize| mine.contains(&out[*j]) && !other.contains(&out[*j]);
        (0..out.len()).rev().find(|j| is(j) && own(j)).map(|j| out[j])
    };
    let (ls, lt, swapped) = match (find(at.0, a, b), find(at.1, b, a)) {
        (Some(ls), Some(lt)) => (ls, lt, false),
        _ => (find(at.0, b, a)?, find(at.1, a, b)?, true),
    };
    // The positions at which other labels are read must not depend on the query or the key.
    let apart = out.iter().zip(&s.place.index).all(|(l, p)| {
        let vars = p.vars();
        *l == ls || *l == lt || !(vars.contains(&at.0) || vars.contains(&at.1))
    });
    apart.then_some(())?;
    let placed = move |own: u8| {
        Box::new(move |l: u8| match l {
            l if l == own => Some(Poly::var(at.0)),
            l if l == ld => Some(Poly::var(at.1)),
            l => out.iter().position(|o| *o == l).map(|i| s.place.index[i].clone()),
        })
    };
    let (q, k) =
        if swapped { ((s.inputs.1, b), (s.inputs.0, a)) } else { ((s.inputs.0, a), (s.inputs.1, b)) };
    let d = label_extent(graph, s, ld)?;
    Some(((q.0, q.1, placed(ls)), (k.0, k.1, placed(lt)), d))
}

fn label_extent(graph: &Graph, s: &Scores, l: u8) -> Option<Dim> {
    let of =
        |x: Value, labels: &[u8]| labels.iter().position(|m| *m == l).map(|i| graph.ty(x).shape[i].clone());
    of(s.inputs.0, &s.contract.a).or_else(|| of(s.inputs.1, &s.contract.b))
}

impl Match {
    fn replace(self, graph: &mut Graph, n: NodeId) -> Result<(), String> {
        let mut origin = graph.node(n).origin.clone();
        for a in &self.absorbed {
            for o in &graph.node(*a).origin {
                if !origin.contains(o) {
                    origin.push(o.clone());
                }
            }
        }
        let (q, k, v) =
            (self.q.build(graph, &origin)?, self.k.build(graph, &origin)?, self.v.build(graph, &origin)?);
        let dtype = graph.ty(q).dtype;
        let mut inputs = vec![q, k, v];
        let dtype = mask_type(graph, &self.mask, dtype);
        let mut sum: Option<Value> = None;
        for m in &self.mask {
            sum = Some(m.build(graph, sum, dtype, self.empty_is_zero, &origin)?);
        }
        inputs.extend(sum);
        let op = Op::Attention { scale: (self.scale as f32).to_bits(), empty_is_zero: self.empty_is_zero };
        let made = graph.push(op, &inputs, &origin)?;
        let out: Value = if self.out.is_identity(&graph.ty(made.into()).shape) {
            made.into()
        } else {
            graph.push(self.out.op(), &[made.into()], &origin)?.into()
        };
        if graph.ty(out) != graph.ty(n.into()) {
            return Err(format!("an attention of type {} for {}", graph.ty(out), graph.ty(n.into())));
        }
        graph.node_mut(out.node).names = graph.node(n).names.clone();
        graph.replace_uses(n.into(), out);
        Ok(())
    }
}
