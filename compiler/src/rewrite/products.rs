//! Products that share an operand are merged to one product: Q, K and V; gate and up.
//!
//! `x @ w₁ + b₁` and `x @ w₂ + b₂` are slices of `y = x @ [w₁ w₂] + [b₁ b₂]`. If some products have a bias, the others
//! get one that changes nothing. The rule merges all products of an e-class that can be joined at once; merging pairs
//! would create a merged product for every subset.
//!
//! No data is duplicated: each weight is a constant that only its product reads, or is computed from such constants in
//! the same way (dequantised, transposed). The merged product reads `x` once, in one dispatch, and the slices become
//! part of the loads of their readers.

use super::guards::ty;
use super::term::{Attr, Head, Joined, Table, Term, Terms, attr, attr_of, lit};
use super::views::ViewMap;
use egg::{Applier, EGraph, Id, PatternAst, SearchMatches, Searcher, Subst, Symbol, Var};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt::Write;
use wgfc_ir::{BinaryOp, Contract, Dim, Poly, Scalar, ScalarNode};

/// The maximum number of terms between a weight and the constants from which it is computed.
const DEPTH: usize = 8;

/// The left-hand and the right-hand side of the rule. No merged weight exceeds `max_bytes`.
#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    /// The maximum binding size of the device.
    pub max_bytes: u64,
}

/// A product that can be merged with others.
struct Product {
    class: Id,
    labels: Id,
    weight: Id,
    bytes: usize,
}

/// The properties that mergeable products must share, besides the common operand.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    /// The contraction as [`numbered`].
    contract: Contract,
    /// Whether the first operand is the shared one.
    first: bool,
    /// The [description](Made::text) of the weight.
    weight: String,
}

/// The way in which a weight is computed from constants.
struct Made {
    /// A description that is equal for weights that can be [joined](join) along their axis, whose extent is left out.
    text: String,
    /// The number of bytes of the constants.
    bytes: usize,
    /// The term of the class from which this was derived.
    term: Term,
}

/// The product's own label in the operand that is not shared, and its axis there; `None` if a label common to both
/// operands and the result would make the weights' extents depend on the batch.
fn own(c: &Contract, first: bool) -> Option<(u8, usize)> {
    let (lx, lw) = if first { (&c.a, &c.b) } else { (&c.b, &c.a) };
    let alone: Vec<usize> = (0..lw.len()).filter(|i| !lx.contains(&lw[*i])).collect();
    let batch = lw.iter().any(|l| lx.contains(l) && c.out.contains(l));
    match alone[..] {
        [axis] if !batch => Some((lw[axis], axis)),
        _ => None,
    }
}

/// The contraction with its labels renumbered in the order of the shared operand.
fn numbered(c: &Contract, first: bool) -> Contract {
    let shared = if first { &c.a } else { &c.b };
    let number = |l: &u8| shared.iter().position(|x| x == l).unwrap_or(shared.len()) as u8;
    let renamed = |v: &[u8]| v.iter().map(number).collect::<Vec<u8>>();
    Contract { a: renamed(&c.a), b: renamed(&c.b), out: renamed(&c.out) }
}

/// The way in which the weight `id` is computed, for joining along `axis`; `None` if it cannot be joined.
fn made(g: &Terms, shared: &FxHashSet<Id>, id: Id, axis: usize, depth: usize) -> Option<Made> {
    if depth == 0 || shared.contains(&id) {
        return None;
    }
    g[id].nodes.iter().find_map(|term| made_by(g, shared, id, term, axis, depth))
}

fn made_by(
    g: &Terms,
    shared: &FxHashSet<Id>,
    id: Id,
    term: &Term,
    axis: usize,
    depth: usize,
) -> Option<Made> {
    let t = ty(g, id)?;
    t.shape.get(axis)?.as_const()?;
    let shape: Vec<String> =
        t.shape.iter().enumerate().map(|(i, d)| if i == axis { "_".into() } else { d.to_string() }).collect();
    let (mut text, mut bytes) = (format!("{} {shape:?} ", t.dtype), 0);
    match term.head {
        Head::Leaf(l) if g.analysis.leaves.get(l as usize)?.konst => {
            let dims = t.static_shape()?;
            let inner: usize = dims[axis + 1..].iter().product();
            // Packed elements are joined at byte boundaries.
            if t.dtype.bits() < 8 && (axis > 0 || !(inner * t.dtype.bits()).is_multiple_of(8)) {
                return None;
            }
            bytes = t.dtype.bytes_for(dims.iter().product());
            let _ = write!(text, "const {axis}; ");
        }
        Head::View => {
            let (Attr::View(map), [_, x]) = (attr_of(g, *term.args.first()?)?, &term.args[..]) else {
                return None;
            };
            let from = view_axis(map, &ty(g, *x)?.shape, axis)?;
            let of = made(g, shared, g.find(*x), from, depth - 1)?;
            let _ = write!(text, "{:?} {}", map.index, of.text);
            bytes = of.bytes;
        }
        Head::Unary(_) | Head::Binary(_) | Head::Select | Head::Cast | Head::Map => {
            let (how, operands) = elementwise(g, term)?;
            let _ = write!(text, "{how} (");
            let mut varies = false;
            for x in operands {
                match own_axis(&ty(g, *x)?.shape, t.rank(), axis) {
                    Some(axis) => {
                        let of = made(g, shared, g.find(*x), axis, depth - 1)?;
                        text.push_str(&of.text);
                        bytes += of.bytes;
                        varies = true;
                    }
                    // Operands that are the same for all members.
                    None => write!(text, "{} ", g.find(*x)).ok()?,
                }
            }
            text.push_str("); ");
            varies.then_some(())?;
        }
        _ => return None,
    }
    Some(Made { text, bytes, term: term.clone() })
}

/// The scalar function of an elementwise term as text, and its operands; `None` if it depends on positions.
fn elementwise<'a>(g: &Terms, term: &'a Term) -> Option<(String, &'a [Id])> {
    match term.head {
        Head::Map => {
            let Attr::Body(body, _) = attr_of(g, *term.args.first()?)? else { return None };
            let placed = body.nodes.iter().any(|n| matches!(n, ScalarNode::Index(_)));
            (!placed).then(|| (format!("{body:?}"), &term.args[1..]))
        }
        Head::Cast => Some((format!("cast {}", g.find(*term.args.first()?)), &term.args[1..])),
        _ => Some((term.to_string(), &term.args)),
    }
}

/// The axis of an operand that corresponds to axis `axis` of an elementwise result of rank `rank`, if the operand
/// varies along it.
fn own_axis(operand: &[Dim], rank: usize, axis: usize) -> Option<usize> {
    let i = (operand.len() + axis).checked_sub(rank)?;
    (!operand[i].is(1)).then_some(i)
}

/// The axis of its operand that a view reads along its own axis `axis`, completely and in order.
fn view_axis(map: &ViewMap, from: &[Dim], axis: usize) -> Option<usize> {
    let mut along = (0..from.len()).filter(|i| map.index[*i].vars().contains(&axis));
    let (i, None) = (along.next()?, along.next()) else { return None };
    (map.fill.is_none() && map.index[i].as_var() == Some(axis) && from[i] == map.shape[axis]).then_some(i)
}

/// Joins weights that are [made] in the same way along an axis. Appends the new classes to `added`.
fn join(g: &mut Terms, shared: &FxHashSet<Id>, parts: &[Id], axis: usize, added: &mut Vec<Id>) -> Option<Id> {
    let terms: Vec<Term> =
        parts.iter().map(|p| Some(made(g, shared, g.find(*p), axis, DEPTH)?.term)).collect::<Option<_>>()?;
    let first = terms.first()?;
    let extent: Dim = parts.iter().filter_map(|p| Some(ty(g, *p)?.shape[axis].clone())).sum();
    let operand = |i: usize| terms.iter().map(|t| t.args.get(i).copied()).collect::<Option<Vec<Id>>>();
    let args = match first.head {
        Head::Leaf(_) => {
            let all = concatenation(g, axis, parts);
            added.push(all);
            return Some(all);
        }
        Head::View => {
            let Attr::View(mut map) = attr_of(g, *first.args.first()?)?.clone() else { return None };
            let from = view_axis(&map, &ty(g, *first.args.get(1)?)?.shape, axis)?;
            map.shape[axis] = extent;
            let x = join(g, shared, &operand(1)?, from, added)?;
            vec![attr(g, Attr::View(map)), x]
        }
        head => {
            let rank = ty(g, *parts.first()?)?.rank();
            let mut args = vec![];
            for (i, x) in first.args.iter().enumerate() {
                let own = ty(g, *x).and_then(|t| own_axis(&t.shape, rank, axis));
                args.push(match (attr_of(g, *x).cloned(), own) {
                    (Some(Attr::Body(body, mut shape)), _) if head == Head::Map => {
                        shape[axis] = extent.clone();
                        attr(g, Attr::Body(body, shape))
                    }
                    (None, Some(own)) => join(g, shared, &operand(i)?, own, added)?,
                    _ => *x,
                });
            }
            args
        }
    };
    let all = g.add(Term::new(first.head, args));
    added.push(all);
    Some(all)
}

fn concatenation(g: &mut Terms, axis: usize, parts: &[Id]) -> Id {
    let axis = attr(g, Attr::Axes(vec![axis]));
    g.add(Term::new(Head::Join, [axis].into_iter().chain(parts.iter().copied()).collect::<Vec<_>>()))
}

/// A sum of a product that nothing else reads and a constant that varies only along the product's axis `own`: the
/// class of the sum, and the constant.
fn bias(g: &Terms, shared: &FxHashSet<Id>, product: Id, own: usize) -> Option<(Id, Id)> {
    if shared.contains(&product) {
        return None;
    }
    let t = ty(g, product)?;
    let along = (t.rank() - own).checked_sub(1)?;
    let fits = |c: Id| {
        let constant = |n: &Term| matches!(n.head, Head::Leaf(l) if g.analysis.leaves[l as usize].konst);
        let ct = ty(g, c)?;
        let shape = &ct.shape;
        let one = shape.iter().rev().enumerate().all(|(i, d)| d.is(1) || i == along);
        let whole = shape.len() > along && shape[shape.len() - 1 - along] == t.shape[own];
        (g[c].nodes.iter().any(constant) && one && whole && ct.dtype == t.dtype).then_some(())
    };
    let sums: FxHashMap<Id, Id> = g[product]
        .parents()
        .map(|p| g.find(p))
        .filter(|p| ty(g, *p) == Some(t))
        .flat_map(|p| g[p].nodes.iter().map(move |n| (p, n)))
        .filter_map(|(p, n)| match (n.head, n.args.as_slice()) {
            (Head::Binary(BinaryOp::Add), [a, b]) if g.find(*a) == product => {
                fits(g.find(*b)).map(|()| (p, g.find(*b)))
            }
            (Head::Binary(BinaryOp::Add), [a, b]) if g.find(*b) == product => {
                fits(g.find(*a)).map(|()| (p, g.find(*a)))
            }
            _ => None,
        })
        .collect();
    match sums.len() {
        1 => sums.into_iter().next(),
        _ => None,
    }
}

impl Sharing {
    /// The groups of mergeable products that read `x`.
    fn groups(&self, g: &Terms, shared: &FxHashSet<Id>, x: Id) -> Vec<Vec<Product>> {
        if g[x].data.konst || g[x].data.ty.is_none() {
            return vec![];
        }
        let mut readers: Vec<Id> = g[x].parents().map(|p| g.find(p)).collect();
        let mut seen = FxHashSet::default();
        readers.retain(|p| seen.insert(*p));
        let mut keys: Vec<Key> = vec![];
        let mut groups: FxHashMap<Key, Vec<Product>> = FxHashMap::default();
        for class in readers {
            let found = g[class].nodes.iter().filter(|n| n.head == Head::Contract).find_map(|n| {
                let [labels, a, b] = n.args[..] else { return None };
                let (first, weight) = if g.find(a) == x { (true, b) } else { (false, a) };
                if !first && g.find(b) != x {
                    return None;
                }
                let Attr::Labels(c) = attr_of(g, labels)? else { return None };
                let (_, axis) = own(c, first)?;
                let weight = g.find(weight);
                let of = made(g, shared, weight, axis, DEPTH)?;
                let key = Key { contract: numbered(c, first), first, weight: of.text };
                Some((key, Product { class, labels: g.find(labels), weight, bytes: of.bytes }))
            });
            let Some((key, product)) = found else { continue };
            let group = groups.entry(key.clone()).or_default();
            if group.is_empty() {
                keys.push(key);
            }
            group.push(product);
        }
        let groups = keys.iter().filter_map(|key| groups.remove(key));
        let fits = |group: &Vec<Product>| {
            let bytes: usize = group.iter().map(|p| p.bytes).sum();
            group.len() > 1 && bytes as u64 <= self.max_bytes
        };
        groups.filter(fits).collect()
    }

    fn search(&self, g: &Terms, shared: &FxHashSet<Id>, x: Id) -> Option<SearchMatches<'static, Term>> {
        let of = |group: Vec<Product>| {
            let mut s = Subst::with_capacity(3 * group.len());
            for (i, p) in group.iter().enumerate() {
                for (k, id) in [p.class, p.labels, p.weight].into_iter().enumerate() {
                    s.insert(Var::from_u32(3 * i as u32 + k as u32), id);
                }
            }
            s
        };
        let substs: Vec<Subst> = self.groups(g, shared, x).into_iter().map(of).collect();
        (!substs.is_empty()).then_some(SearchMatches { eclass: x, substs, ast: None })
    }
}

/// The classes that are read by anything besides a single term of the region.
fn shared(g: &Terms) -> FxHashSet<Id> {
    g.analysis.shared.iter().map(|id| g.find(*id)).collect()
}

impl Searcher<Term, Table> for Sharing {
    fn search_eclass_with_limit(&self, g: &Terms, x: Id, _: usize) -> Option<SearchMatches<'_, Term>> {
        self.search(g, &shared(g), x)
    }

    fn search_with_limit(&self, g: &EGraph<Term, Table>, _: usize) -> Vec<SearchMatches<'_, Term>> {
        let shared = shared(g);
        g.classes_for_op(&Head::Contract)
            .into_iter()
            .flatten()
            .flat_map(|product| g[product].nodes.iter())
            .filter(|n| n.head == Head::Contract)
            .flat_map(|n| n.args[1..].iter().map(|x| g.find(*x)))
            .collect::<std::collections::BTreeSet<Id>>()
            .into_iter()
            .filter_map(|x| self.search(g, &shared, x))
            .collect()
    }

    fn vars(&self) -> Vec<Var> {
        vec![]
    }
}

impl Applier<Term, Table> for Sharing {
    fn apply_one(&self, g: &mut Terms, x: Id, s: &Subst, _: Option<&PatternAst<Term>>, _: Symbol) -> Vec<Id> {
        let product = |i: u32| {
            let at = |k: u32| s.get(Var::from_u32(3 * i + k)).copied();
            Some((at(0)?, at(1)?, at(2)?))
        };
        let group: Vec<(Id, Id, Id)> = (0..).map_while(product).collect();
        merge(g, x, &group).unwrap_or_default()
    }
}

/// Adds the merged product of a group of (product, labels, weight), and adds its slices to the classes of the
/// products.
fn merge(g: &mut Terms, x: Id, group: &[(Id, Id, Id)]) -> Option<Vec<Id>> {
    let shared = shared(g);
    let (_, labels, weight) = *group.first()?;
    let Attr::Labels(c) = attr_of(g, labels)?.clone() else { return None };
    let first = g.lookup(Term::new(Head::Contract, [labels, x, weight])).is_some();
    let (label, axis) = own(&c, first)?;
    let at = c.out.iter().position(|l| *l == label)?;
    let weights: Vec<Id> = group.iter().map(|(_, _, w)| *w).collect();
    let extents: Vec<Dim> =
        weights.iter().map(|w| Some(ty(g, *w)?.shape[axis].clone())).collect::<Option<_>>()?;
    let biases: Vec<Option<(Id, Id)>> =
        group.iter().map(|(p, ..)| bias(g, &shared, g.find(*p), at)).collect();
    let mut made = vec![];
    let w = join(g, &shared, &weights, axis, &mut made)?;
    let labels = attr(g, Attr::Labels(numbered(&c, first)));
    let operands = if first { [labels, x, w] } else { [labels, w, x] };
    let product = g.add(Term::new(Head::Contract, operands));
    let mut y = product;
    made.push(product);
    let rank = ty(g, product)?.rank();
    if let Some((_, c)) = biases.iter().flatten().next() {
        let t = ty(g, *c)?.clone();
        let along = t.rank() - (rank - at);
        let mut rows = vec![];
        for (b, extent) in biases.iter().zip(&extents) {
            let mut shape = vec![Dim::ONE; t.rank()];
            shape[along] = extent.clone();
            rows.push(match b {
                Some((_, c)) => {
                    // The numbers of leading axes of extent 1 may differ.
                    let from = ty(g, *c)?.shape.clone();
                    let back = from.len() - (rank - at);
                    let mut index = vec![Poly::ZERO; from.len()];
                    index[back] = Poly::var(along);
                    moved(g, *c, ViewMap { shape, index, fill: None })?
                }
                None => {
                    // The identity of addition is -0: adding +0 would turn -0 into +0.
                    let none = lit(g, Scalar::from_f64(t.dtype, -0.0).into());
                    moved(g, none, ViewMap { shape, index: vec![], fill: None })?
                }
            });
        }
        let c = concatenation(g, along, &rows);
        y = g.add(Term::new(Head::Binary(BinaryOp::Add), [product, c]));
        made.extend([c, y]);
    }
    let mut changed = vec![];
    let mut start = Poly::ZERO;
    let mut members = vec![];
    for (((p, ..), b), extent) in group.iter().zip(&biases).zip(&extents) {
        let whole = b.map_or(*p, |(sum, _)| sum);
        let mut map = ViewMap::identity(&ty(g, whole)?.shape.clone());
        map.index[at] = &map.index[at] + &start;
        start = &start + extent;
        let map = attr(g, Attr::View(map));
        let slice = g.add(Term::new(Head::View, [map, y]));
        if ty(g, slice).is_none() || ty(g, slice) != ty(g, whole) {
            return Some(changed);
        }
        if g.union(whole, slice) {
            changed.push(slice);
        }
        members.push((*p, b.map(|(sum, _)| sum)));
    }
    g.analysis.joined.push(Joined { product, made, members });
    Some(changed)
}

fn moved(g: &mut Terms, x: Id, map: ViewMap) -> Option<Id> {
    if map.is_identity(&ty(g, x)?.shape) {
        return Some(x);
    }
    let map = attr(g, Attr::View(map));
    Some(g.add(Term::new(Head::View, [map, x])))
}
