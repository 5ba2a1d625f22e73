//! The order in memory of the axes of tensors between kernels, and of weights, chosen for the whole graph.
//!
//! Kernels read and write through index expressions, so that the order of a tensor's axes is free where nobody outside sees
//! the tensor. An [order](Order) is the usual one but for one axis, which lies innermost. [`arrange`] writes the index of each access as one
//! index an axis, with a proof that each is inside of its axis wherever the access happens, and moves the access.
//! A map, or a reduction with one result a row, whose results are moved goes over them in their new order.
//!
//! Orders are chosen by the estimated time of all kernels that read or write the tensors: first one axis for all tensors together, then
//! tensor by tensor. A convolution's operand over positions is read in vectors along the channels where these are innermost.

use crate::device::DeviceProfile;
use crate::kernel::bounds::compared;
use crate::kernel::substitute::{moved, substitute};
use crate::kernel::{
    Body, Capacity, Expr, ExprId, Family, Kernel, KernelGraph, KernelTensor, Map, Store, TensorId, TensorKind,
};
use crate::schedule::products::{self, problem};
use crate::schedule::{Context, cost::Expected, maps};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use wgfc_ir::tensor::gathered;
use wgfc_ir::{Atom, Dim, Poly, Tensor};

/// The part of the estimated time that a change of orders must save at least: estimates are no better.
const LEAST_GAIN: f64 = 0.15;
/// Times that every tensor's order is looked at again.
const ROUNDS: usize = 3;
/// Bytes of a weight that may be moved. Whoever compiles holds it twice then, in a page too, which otherwise leaves weights in their
/// files.
const MOST_BYTES: usize = 64 << 20;
/// Loads and stores of a map that reads most of what it reads several times.
const MANY_READS: usize = 8;
/// Bytes of memory that are read or written together.
const SECTOR: f64 = 32.0;

/// The axis that lies innermost, of `Axes`; `None` for the usual order.
pub type Order = Option<usize>;

/// A tensor's axes of more than one element.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Axes {
    extents: Vec<Dim>,
    /// Elements from one index to the next in the usual order.
    strides: Vec<i64>,
}

impl Axes {
    /// Those of a shape of which all but the first extent are numbers.
    fn of(shape: &[Dim]) -> Option<Axes> {
        let extents: Vec<Dim> = shape.iter().filter(|d| !d.is(1)).cloned().collect();
        let mut strides = vec![1i64; extents.len()];
        for i in (1..extents.len()).rev() {
            strides[i - 1] = strides[i].checked_mul(extents[i].as_const().filter(|n| *n > 0)?)?;
        }
        Some(Axes { extents, strides })
    }

    /// Elements from one index to the next where axis `last` lies innermost.
    fn moved_strides(&self, last: usize) -> Vec<i64> {
        let mut strides = vec![1i64; self.extents.len()];
        let mut each = self.extents[last].as_const().unwrap_or(1);
        for i in (0..self.extents.len()).rev().filter(|i| *i != last) {
            strides[i] = each;
            each = each.saturating_mul(self.extents[i].as_const().unwrap_or(1));
        }
        strides
    }

    /// The shape with axis `last` innermost, of as many axes as before.
    fn moved_shape(&self, shape: &[Dim], last: usize) -> Vec<Dim> {
        let ones = vec![Dim::ONE; shape.len() - self.extents.len()];
        let others = (0..self.extents.len()).filter(|i| *i != last);
        let mut new: Vec<Dim> = others.map(|i| self.extents[i].clone()).collect();
        new.extend(ones);
        new.push(self.extents[last].clone());
        new
    }

    /// The index along each axis of an offset, each certain to be inside of its axis where the guard holds; but for the first
    /// one where its extent is no number: it stays the outermost.
    fn indices(
        &self,
        offset: &Poly,
        body: &Body,
        guard: Option<ExprId>,
        domain: &[Dim],
    ) -> Option<Vec<Poly>> {
        let mut indices = vec![Poly::ZERO; self.extents.len()];
        for (m, c) in offset.terms() {
            if m.is_empty() {
                let mut left = c;
                for (index, stride) in indices.iter_mut().zip(&self.strides) {
                    *index = &*index + left / stride;
                    left %= stride;
                }
                continue;
            }
            let axis = self.strides.iter().position(|s| c % s == 0)?;
            let each =
                m.iter().fold(Poly::constant(c / self.strides[axis]), |t, a| &t * &Poly::atom(a.clone()));
            self.place(&mut indices, axis, &each, domain);
        }
        let inside = |i: usize| inside(&indices[i], &self.extents[i], body, guard, domain);
        let first = self.extents.first().is_some_and(|d| d.as_const().is_none());
        (usize::from(first)..indices.len()).all(inside).then_some(indices)
    }

    /// Adds an index along an axis, what is beyond its end along those before it.
    fn place(&self, indices: &mut [Poly], axis: usize, index: &Poly, domain: &[Dim]) {
        let extent = &self.extents[axis];
        if axis == 0 || index.in_range(extent, domain) {
            indices[axis] = &indices[axis] + index;
            return;
        }
        // What a remainder is taken of gives simpler parts.
        let (high, low) = match index.as_atom() {
            Some(Atom::Mod(x, d)) if d.modulo(extent, &[]).is(0) => {
                (x.div(extent, domain).modulo(&d.div(extent, &[]), domain), x.modulo(extent, domain))
            }
            _ => (index.div(extent, domain), index.modulo(extent, domain)),
        };
        indices[axis] = &indices[axis] + &low;
        self.place(indices, axis - 1, &high, domain);
    }

    /// The offset of an element in the order with axis `last` innermost.
    fn offset(&self, indices: &[Poly], last: usize, domain: &[Dim]) -> Poly {
        let strides = self.moved_strides(last);
        let sum = indices.iter().zip(strides).fold(Poly::ZERO, |sum, (i, s)| &sum + &(i * s));
        // Quotients and remainders that came apart join again.
        sum.subst(&|_| None, domain)
    }

    /// The usual offset of the element at a place in the order with axis `last` innermost.
    fn usual(&self, place: &Poly, last: usize, domain: &[Dim]) -> Poly {
        let strides = self.moved_strides(last);
        let mut sum = Poly::ZERO;
        for (i, (extent, stride)) in self.extents.iter().zip(&strides).enumerate() {
            let whole = place.div(&Poly::constant(*stride), domain);
            let outermost = if last == 0 { 1 } else { 0 };
            let index = if i == outermost { whole } else { whole.modulo(extent, domain) };
            sum = &sum + &(&index * self.strides[i]);
        }
        sum
    }

    /// The axes that may lie innermost instead of the last one.
    fn candidates(&self) -> std::ops::Range<usize> {
        let first = self.extents.first().is_some_and(|d| d.as_const().is_none());
        usize::from(first)..self.extents.len().saturating_sub(1)
    }
}

/// Whether an index is certain to be at least 0 and below an extent where a guard holds.
fn inside(index: &Poly, extent: &Dim, body: &Body, guard: Option<ExprId>, domain: &[Dim]) -> bool {
    let compared = guard.map_or_else(Vec::new, |g| compared(body, g, true));
    let least = index.proves_nonneg(domain) || compared.iter().any(|(small, large)| large - small == *index);
    let below = &(extent - index) - 1;
    let most = below.proves_nonneg(domain) || compared.iter().any(|(small, large)| large - small == below);
    least && most
}

/// A kernel's accesses: the indices of each offset of a tensor.
type Indices = BTreeMap<(TensorId, Poly), Vec<Poly>>;

/// What is looked at.
struct Search<'a> {
    cx: Context<'a>,
    fitted: Fitted<'a>,
    /// Of tensors that may be moved.
    axes: Vec<Option<Axes>>,
    /// Of each kernel.
    indices: Vec<Indices>,
    hashes: Vec<u128>,
    known: FxHashMap<(u128, Vec<Order>), f64>,
}

/// What becomes of a kernel of this number once its tensors are in their orders.
pub type Fitted<'a> = &'a dyn Fn(usize, Kernel) -> Kernel;

/// What [`arrange`] did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arranged {
    /// Tensors in another order than before.
    pub moved: usize,
    /// Kernels that copy inputs into another order, before all others.
    pub copies: usize,
}

/// Gives tensors between kernels, and weights, the orders in which the kernels take the least estimated time. Inputs that products read
/// one element at a time are copied first where the products gain more than that takes.
pub fn arrange(
    graph: &mut KernelGraph,
    device: &DeviceProfile,
    expect: &Expected,
    fitted: Fitted<'_>,
) -> Arranged {
    let inputs = worth_copying(graph, device, expect, fitted);
    if !inputs.is_empty() {
        let mut with = with_copies(graph, &inputs);
        let copies = inputs.len();
        let own = |i: usize, k: Kernel| match i.checked_sub(copies) {
            Some(i) => fitted(i, k),
            None => k,
        };
        let orders = Search::new(Context { graph: &with, device, expect }, &own).choose();
        if orders.iter().skip(graph.tensors.len()).all(Option::is_some) {
            let moved = apply(&mut with, &orders);
            *graph = with;
            return Arranged { moved, copies };
        }
    }
    let orders = Search::new(Context { graph, device, expect }, fitted).choose();
    Arranged { moved: apply(graph, &orders), copies: 0 }
}

/// An input, and the products that read it one element at a time.
type Read = (TensorId, Vec<usize>);

/// The inputs whose copies in another order save more time than they take.
fn worth_copying(
    graph: &KernelGraph,
    device: &DeviceProfile,
    expect: &Expected,
    fitted: Fitted<'_>,
) -> Vec<Read> {
    let mut reads: Vec<Read> = vec![];
    let gathering = graph.kernels.iter().enumerate().filter(|(_, k)| graph.repeats.is_empty() && gathers(k));
    for (i, k) in gathering {
        for t in k.reads() {
            let shape = &graph.tensors[t].ty.shape;
            let axes = Axes::of(shape).filter(|a| !a.candidates().is_empty());
            if !matches!(graph.tensors[t].kind, TensorKind::Input(_)) || axes.is_none() {
                continue;
            }
            match reads.iter_mut().find(|r| r.0 == t) {
                Some((_, kernels)) => kernels.push(i),
                None => reads.push((t, vec![i])),
            }
        }
    }
    reads.retain(|(t, kernels)| {
        let alone = KernelGraph {
            kernels: kernels.iter().map(|k| graph.kernels[*k].clone()).collect(),
            ..KernelGraph { kernels: vec![], ..graph.clone() }
        };
        let with = with_copies(&alone, &[(*t, (0..kernels.len()).collect())]);
        let total = |graph: &KernelGraph, copies: usize| {
            let own = |i: usize, k: Kernel| match i.checked_sub(copies) {
                Some(i) => fitted(kernels[i], k),
                None => k,
            };
            let mut search = Search::new(Context { graph, device, expect }, &own);
            let orders = search.choose();
            (search.total(&orders), orders.last().is_some_and(Option::is_some))
        };
        let (usual, _) = total(&alone, 0);
        let (copied, moved) = total(&with, 1);
        let copied = copied + device.speeds.dispatch() / device.speeds.cycle();
        tracing::debug!(usual, copied, moved, "copy of an input in another order");
        moved && copied < usual * (1.0 - LEAST_GAIN)
    });
    reads
}

/// The graph with copies of inputs that these kernels read instead: kernels and tensors of their own, the former before all others.
fn with_copies(graph: &KernelGraph, inputs: &[Read]) -> KernelGraph {
    let mut new = graph.clone();
    let mut copies = vec![];
    for (t, readers) in inputs {
        let own = new.tensors.len();
        let ty = graph.tensors[*t].ty.clone();
        let mut body = Body::default();
        let value = body.push(Expr::Load { tensor: *t, offset: Poly::var(0), guard: None }, ty.dtype);
        let store = Store { tensor: own, offset: Poly::var(0), value, guard: None, combine: None };
        let family = Family::Map(Map { elements: ty.numel() });
        let nodes = readers.first().map(|k| graph.kernels[*k].nodes.clone()).unwrap_or_default();
        copies.push(Kernel { family, body, stores: vec![store], nodes });
        new.tensors.push(KernelTensor { ty, kind: TensorKind::Intermediate, name: None });
        for k in readers {
            let moved = |u: TensorId, offset: &Poly| (if u == *t { own } else { u }, offset.clone());
            new.kernels[*k] = new.kernels[*k].moved(&moved);
        }
    }
    copies.append(&mut new.kernels);
    new.kernels = copies;
    new
}

/// Moves tensors to these orders; those that cannot have theirs stay. How many were moved.
pub fn apply(graph: &mut KernelGraph, orders: &[Order]) -> usize {
    let (axes, indices) = movable(graph);
    let orders: Vec<Order> = axes
        .iter()
        .zip(orders)
        .map(|(a, o)| o.filter(|o| a.as_ref().is_some_and(|a| a.candidates().contains(o))))
        .collect();
    if orders.iter().all(Option::is_none) {
        return 0;
    }
    let kernels: Vec<Kernel> =
        graph.kernels.iter().zip(&indices).map(|(k, i)| moved_kernel(k, &axes, i, &orders)).collect();
    graph.kernels = kernels;
    let mut data: FxHashMap<(usize, usize), Arc<Tensor>> = FxHashMap::default();
    let mut count = 0;
    for (t, (axes, order)) in axes.iter().zip(&orders).enumerate() {
        let (Some(axes), Some(last)) = (axes, order) else { continue };
        count += 1;
        graph.tensors[t].ty.shape = axes.moved_shape(&graph.tensors[t].ty.shape, *last);
        if let TensorKind::Const(own) = &mut graph.tensors[t].kind {
            let key = (Arc::as_ptr(own) as usize, *last);
            *own = data.entry(key).or_insert_with(|| Arc::new(permuted(own, axes, *last))).clone();
        }
    }
    count
}

/// The axes of tensors that may have another order, and how kernels access them.
fn movable(graph: &KernelGraph) -> (Vec<Option<Axes>>, Vec<Indices>) {
    let mut axes: Vec<Option<Axes>> = graph
        .tensors
        .iter()
        .map(|t| {
            let free = match &t.kind {
                TensorKind::Intermediate => true,
                TensorKind::Const(data) => data.numel().saturating_mul(data.dtype.bits() / 8) <= MOST_BYTES,
                _ => false,
            };
            let whole = t.ty.dtype.bits() >= 8;
            Axes::of(&t.ty.shape).filter(|a| free && whole && !a.candidates().is_empty())
        })
        .collect();
    let mut fixed: FxHashSet<TensorId> = graph.computed.iter().map(|c| c.1).collect();
    fixed.extend(graph.repeats.iter().flat_map(|r| r.keeps.iter().copied().chain(r.until.map(|u| u.word))));
    fixed.extend(graph.tensors.iter().enumerate().flat_map(|(i, t)| match t.kind {
        TensorKind::Under(over) => vec![i, over],
        _ => vec![],
    }));
    let mut all: Vec<Indices> = vec![];
    for (i, k) in graph.kernels.iter().enumerate() {
        let repeated = graph.repeats.iter().any(|r| r.kernels.contains(&i));
        let taken = matches!(k.family, Family::Map(_) | Family::Row(_) | Family::Matmul(_)) && !repeated;
        let mut indices = Indices::default();
        let domain = k.domain();
        let loads = k.body.reachable(&k.roots()).into_iter().filter_map(|e| match k.body.expr(e) {
            Expr::Load { tensor, offset, guard } => Some((*tensor, offset, *guard, true)),
            _ => None,
        });
        let stores = k.all_stores().map(|s| (s.tensor, &s.offset, s.guard, s.combine.is_none()));
        for (t, offset, guard, free) in loads.chain(stores) {
            let Some(Some(own)) = axes.get(t) else { continue };
            match own.indices(offset, &k.body, guard, &domain).filter(|_| taken && free) {
                Some(found) => _ = indices.insert((t, offset.clone()), found),
                None => _ = fixed.insert(t),
            }
        }
        all.push(indices);
    }
    for t in fixed {
        if let Some(own) = axes.get_mut(t) {
            *own = None;
        }
    }
    (axes, all)
}

/// The kernel with tensors in other orders.
fn moved_kernel(k: &Kernel, axes: &[Option<Axes>], indices: &Indices, orders: &[Order]) -> Kernel {
    let of = |t: TensorId| axes.get(t)?.as_ref().zip(*orders.get(t)?);
    if k.tensors().into_iter().all(|t| of(t).is_none()) {
        return k.clone();
    }
    let domain = k.domain();
    let mut new = k.moved(&|t, offset| {
        let place = of(t).zip(indices.get(&(t, offset.clone())));
        (t, place.map_or_else(|| offset.clone(), |((axes, last), i)| axes.offset(i, last, &domain)))
    });
    if let Some(vars) = counted_innermost(k, indices, &of) {
        return over_variables(&new, &vars);
    }
    // One result for each of the first variable's values, in the results' order.
    let Some(result) = k.all_stores().position(|s| s.offset == Poly::var(0) && of(s.tensor).is_some()) else {
        return new;
    };
    let order = k.all_stores().nth(result).and_then(|s| of(s.tensor));
    let Some((axes, last)) = order.filter(|_| matches!(k.family, Family::Map(_) | Family::Row(_))) else {
        return new;
    };
    let elements = axes.extents.iter().fold(Poly::ONE, |n, d| &n * d);
    if domain.first() != Some(&elements) {
        return new;
    }
    let mut vars: Vec<Poly> = (0..domain.len()).map(Poly::var).collect();
    vars[0] = axes.usual(&vars[0], last, &domain);
    let same = |s: &Store| s.offset == Poly::var(0) && of(s.tensor) == Some((axes, last));
    let first: Vec<bool> = k.all_stores().map(same).collect();
    new = over_variables(&new, &vars);
    for (s, _) in new.all_stores_mut().zip(first).filter(|(_, first)| *first) {
        s.offset = Poly::var(0);
    }
    new
}

/// New variables of a product whose columns or rows count the axis that now lies innermost in their high digits: neighbours are
/// then neighbours in memory.
fn counted_innermost<'a>(
    k: &Kernel,
    indices: &Indices,
    of: &dyn Fn(TensorId) -> Option<(&'a Axes, usize)>,
) -> Option<Vec<Poly>> {
    let store = k.stores.iter().find(|s| of(s.tensor).is_some());
    let (domain, s) = (k.domain(), store.filter(|_| matches!(k.family, Family::Matmul(_)))?);
    let index = &indices.get(&(s.tensor, s.offset.clone()))?[of(s.tensor)?.1];
    let Some(Atom::Div(variable, stride)) = index.as_atom() else { return None };
    let Some(Atom::Var(var)) = variable.as_atom() else { return None };
    let (var, stride) = (*var as usize, stride.as_const()?);
    let total = domain.get(var)?.as_const()?;
    let extent = total.checked_div(stride).filter(|e| e * stride == total)?;
    let mut vars: Vec<Poly> = (0..domain.len()).map(Poly::var).collect();
    let (old, extent) = (vars[var].clone(), Poly::constant(extent));
    vars[var] = &(&old.modulo(&extent, &domain) * stride) + &old.div(&extent, &domain);
    Some(vars)
}

/// The kernel with its variables replaced.
fn over_variables(k: &Kernel, vars: &[Poly]) -> Kernel {
    let domain = k.domain();
    let mut body = Body::default();
    let ids = substitute(&k.body, &mut body, &k.roots(), vars, &domain);
    let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
    k.over(body, &of, &mut |p| moved(p, &ids, vars, &domain))
}

/// A constant in another order, put there when its bytes are asked for.
fn permuted(t: &Tensor, axes: &Axes, last: usize) -> Tensor {
    let extents: Vec<usize> = axes.extents.iter().map(|d| d.as_const().unwrap_or(0) as usize).collect();
    // Axes from the outermost, in the new order.
    let order: Vec<usize> = (0..extents.len()).filter(|i| *i != last).chain([last]).collect();
    let whole: Vec<Dim> = t.shape.iter().map(|n| Dim::constant(*n as i64)).collect();
    let shape = axes.moved_shape(&whole, last).iter().map(|d| d.as_const().unwrap_or(0) as usize).collect();
    let from: Vec<usize> = order.iter().map(|i| axes.strides[*i] as usize).collect();
    let counts: Vec<usize> = order.iter().map(|i| extents[*i]).collect();
    let data = match t.byte_len().filter(|_| t.is_present()) {
        None => wgfc_ir::tensor::Data::Absent,
        Some(len) => {
            let owner = Permuted { of: t.clone(), counts, from, bytes: OnceLock::new() };
            wgfc_ir::tensor::Data::Bytes { owner: Arc::new(owner), offset: 0, len }
        }
    };
    Tensor { dtype: t.dtype, shape, data }
}

/// The elements of a tensor in another order.
struct Permuted {
    of: Tensor,
    /// Elements along each axis, and between neighbours there in the tensor.
    counts: Vec<usize>,
    from: Vec<usize>,
    bytes: OnceLock<Vec<u8>>,
}

impl AsRef<[u8]> for Permuted {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get_or_init(|| {
            let own = self.of.bytes().unwrap_or_default();
            gathered(own, self.of.dtype.bits() / 8, &self.counts, &self.from)
        })
    }
}

impl<'a> Search<'a> {
    fn new(cx: Context<'a>, fitted: Fitted<'a>) -> Search<'a> {
        let (axes, indices) = movable(cx.graph);
        let hash = |k: &Kernel| k.structural_hash(&cx.graph.tensors, Capacity::Counts);
        let all = cx.graph.kernels.iter().enumerate();
        let hashes = all.map(|(i, k)| hash(&fitted(i, k.clone())).wrapping_mul(3) ^ hash(k)).collect();
        Search { cx, fitted, axes, indices, hashes, known: FxHashMap::default() }
    }

    fn choose(&mut self) -> Vec<Order> {
        let none = vec![None; self.axes.len()];
        if self.axes.iter().all(Option::is_none) {
            return none;
        }
        let usual = self.total(&none);
        // Nothing else gains enough.
        let gathered = (0..self.indices.len()).filter(|k| gathers(&self.cx.graph.kernels[*k]));
        let gathered: f64 = gathered.collect::<Vec<_>>().into_iter().map(|k| self.cycles(k, &none)).sum();
        if gathered < usual * LEAST_GAIN {
            return none;
        }
        let mut best = (usual * (1.0 - LEAST_GAIN), none.clone());
        for var in [1, 2] {
            let mut orders = self.along(var);
            self.without_impossible(&mut orders);
            self.improve(&mut orders);
            let total = self.total(&orders);
            tracing::debug!(var, usual, total, "order of axes");
            if total < best.0 {
                best = (total, orders);
            }
        }
        best.1
    }

    /// The results of all products with the axis innermost that a variable counts, its rows or columns.
    fn along(&self, var: usize) -> Vec<Order> {
        let mut orders = vec![None; self.axes.len()];
        for (k, indices) in self.cx.graph.kernels.iter().zip(&self.indices) {
            let product = matches!(k.family, Family::Matmul(_));
            for s in k.stores.iter().filter(|_| product) {
                let found = self.axes[s.tensor].as_ref().zip(indices.get(&(s.tensor, s.offset.clone())));
                let Some((axes, indices)) = found else { continue };
                let counts = |i: &usize| (&indices[*i] - &Poly::var(var)).as_const().is_some();
                orders[s.tensor] = axes.candidates().find(counts);
            }
        }
        self.follow(&mut orders);
        orders
    }

    /// Gives tensors that kernels go over together with one whose order is another than usual the axis innermost that the same
    /// index counts.
    fn follow(&self, orders: &mut [Order]) {
        for indices in &self.indices {
            let moved = indices.iter().filter_map(|((t, _), i)| orders[*t].map(|axis| &i[axis]));
            let inner: Vec<Poly> = moved.filter(|p| p.as_const().is_none()).cloned().collect();
            for ((t, _), i) in indices.iter().filter(|_| !inner.is_empty()) {
                let Some(axes) = self.axes[*t].as_ref().filter(|_| orders[*t].is_none()) else { continue };
                let same = |axis: &usize| inner.iter().any(|p| (&i[*axis] - p).as_const().is_some());
                orders[*t] = axes.candidates().find(same);
            }
        }
    }

    /// Leaves tensors in their usual order that a kernel could not have otherwise.
    fn without_impossible(&mut self, orders: &mut [Order]) {
        for k in 0..self.indices.len() {
            if self.cycles(k, orders).is_infinite() {
                self.cx.graph.kernels[k].tensors().into_iter().for_each(|t| orders[t] = None);
            }
        }
        // A kernel may have become impossible by what another one wanted.
        if (0..self.indices.len()).any(|k| self.cycles(k, orders).is_infinite()) {
            orders.fill(None);
        }
    }

    /// Changes the order of single tensors as long as that saves time.
    fn improve(&mut self, orders: &mut [Order]) {
        let mut users: Vec<Vec<usize>> = vec![vec![]; orders.len()];
        for (i, k) in self.cx.graph.kernels.iter().enumerate() {
            k.tensors().into_iter().for_each(|t| users[t].push(i));
        }
        for _ in 0..ROUNDS {
            let mut changed = false;
            for t in 0..orders.len() {
                let Some(axes) = &self.axes[t] else { continue };
                for order in [None].into_iter().chain(axes.candidates().map(Some)) {
                    let old = orders[t];
                    if order == old {
                        continue;
                    }
                    let before: f64 = users[t].iter().map(|k| self.cycles(*k, orders)).sum();
                    orders[t] = order;
                    let after: f64 = users[t].iter().map(|k| self.cycles(*k, orders)).sum();
                    match after < before {
                        true => changed = true,
                        false => orders[t] = old,
                    }
                }
            }
            if !changed {
                break;
            }
        }
    }

    fn total(&mut self, orders: &[Order]) -> f64 {
        (0..self.indices.len()).map(|k| self.cycles(k, orders)).sum()
    }

    /// The estimated time of a kernel; infinite where its families have no good way.
    fn cycles(&mut self, k: usize, orders: &[Order]) -> f64 {
        let kernel = &self.cx.graph.kernels[k];
        let own: Vec<Order> = kernel.tensors().into_iter().map(|t| orders[t]).collect();
        let usual = own.iter().all(Option::is_none);
        let key = (self.hashes[k], own);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let new = moved_kernel(kernel, &self.axes, &self.indices[k], orders);
        let new = (self.fitted)(k, new);
        let cycles = if usual || !along_batch(&new) { estimate(&new, &self.cx) } else { f64::INFINITY };
        self.known.insert(key, cycles);
        cycles
    }
}

/// Whether it is a product that reads an operand's elements one by one.
fn gathers(k: &Kernel) -> bool {
    problem::problem(k).is_some_and(|p| !p.fours.iter().all(|f| *f))
}

/// Whether neighbours in memory are of different products, which no schedule reads as vectors.
fn along_batch(k: &Kernel) -> bool {
    let Family::Matmul(m) = &k.family else { return false };
    let along = |p: &Poly| step(p, 0) == Some(1) && step(p, 1) != Some(1) && step(p, 2) != Some(1);
    !m.batch.is(1) && accesses(k).iter().any(|(_, p)| along(p))
}

/// A kernel as it is computed where its tensors are in their orders: of products that lie beside each other in memory, as those of a depthwise
/// convolution with channels innermost, the sums are written out, and neighbouring results are of a map. So are those of windows.
pub fn flattened(k: Kernel) -> Kernel {
    let map = match &k.family {
        Family::Matmul(_) if along_batch(&k) => products::window::flattened(&k),
        Family::Row(_) => products::window::flattened_rows(&k),
        _ => None,
    };
    map.unwrap_or(k)
}

/// How far the first two values of a variable are apart in an offset.
fn step(p: &Poly, var: usize) -> Option<i64> {
    let at = |i: i64| {
        p.eval(&|a| match a {
            Atom::Var(v) => Some(if *v as usize == var { i } else { 0 }),
            Atom::Sym(_) => Some(crate::schedule::cost::ASSUMED),
            Atom::Data(_) => Some(0),
            _ => None,
        })
    };
    Some((at(1)? - at(0)?).abs())
}

/// What a kernel reads and writes: the tensor and the offset.
fn accesses(k: &Kernel) -> Vec<(TensorId, &Poly)> {
    let loads = k.body.reachable(&k.roots()).into_iter().filter_map(|e| match k.body.expr(e) {
        Expr::Load { tensor, offset, .. } => Some((*tensor, offset)),
        _ => None,
    });
    loads.chain(k.all_stores().map(|s| (s.tensor, &s.offset))).collect()
}

/// Estimated cycles of a kernel whose family may be moved; of others 0.
fn estimate(k: &Kernel, cx: &Context) -> f64 {
    let memory = cx.device.speeds.bytes_per_cycle();
    let extent = |d: &Dim| cx.expect.extent(d);
    // Elements that are read one by one, of a sector each.
    let scattered = |(t, p): &(TensorId, &Poly), along: &[usize]| {
        let bytes = cx.graph.tensors.get(*t).map_or(4.0, |t| t.ty.dtype.bits() as f64 / 8.0);
        let near = along.iter().filter_map(|v| step(p, *v)).any(|s| (s as f64) * bytes < SECTOR && s > 0);
        let same = along.iter().all(|v| step(p, *v).is_none_or(|s| s == 0));
        if near || same { bytes } else { SECTOR }
    };
    match &k.family {
        Family::Matmul(_) => {
            let Some((p, (_, cols))) = problem::problem(k).zip(problem::sides(k)) else { return 0.0 };
            let chosen = products::choose(&p, cx.device, cx.expect);
            let [batch, m, n] = [&p.batch, &p.rows, &p.cols].map(extent);
            let roots: Vec<ExprId> = k.stores.iter().map(|s| s.value).collect();
            let beside = k.body.reachable(&roots).into_iter().filter_map(|e| match k.body.expr(e) {
                Expr::Load { tensor, offset, .. } => Some((*tensor, offset)),
                _ => None,
            });
            let stored = k.stores.iter().map(|s| (s.tensor, &s.offset));
            let bytes: f64 = beside.chain(stored).map(|a| scattered(&a, &[cols.var])).sum();
            products::cost::cycles(&chosen, &p, cx.device, cx.expect).max(batch * m * n * bytes / memory)
        }
        Family::Map(_) if accesses(k).len() > MANY_READS => {
            // What is read again and again comes from a cache.
            let points: f64 = k.domain().iter().map(extent).product();
            let bits = |t: TensorId| cx.graph.tensors.get(t).map_or(32, |t| t.ty.dtype.bits()) as f64;
            let all = accesses(k);
            let tensors: FxHashSet<TensorId> = all.iter().map(|a| a.0).collect();
            let once: f64 = tensors.into_iter().map(bits).sum();
            let cached: f64 = all.iter().map(|a| bits(a.0)).sum::<f64>() * cx.device.speeds.bandwidth
                / cx.device.speeds.cache_bandwidth;
            let operations = k.body.reachable(&k.roots()).len() as f64 / 2.0;
            points * (once.max(cached) / 8.0 / memory).max(operations / (128.0 * cx.device.speeds.cores))
        }
        Family::Map(_) | Family::Row(_) => {
            let domain = k.domain();
            let points: f64 = domain.iter().map(extent).product();
            let along: Vec<usize> = (0..domain.len()).collect();
            // What is read across goes through workgroup memory.
            let map = matches!(k.family, Family::Map(_)).then(|| maps::choose(k, cx));
            if let Some(Ok(maps::Map::Tiled(_))) = map {
                let bits = |t: TensorId| cx.graph.tensors.get(t).map_or(32, |t| t.ty.dtype.bits());
                let all: usize = accesses(k).iter().map(|a| bits(a.0)).sum();
                return points * all as f64 / 8.0 / memory;
            }
            let bytes: f64 = accesses(k).iter().map(|a| scattered(a, &along)).sum();
            points * bytes / memory
        }
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse;

    /// A map, and a convolution with padding of what it writes.
    const TEXT: &str = "t0: f32[n, 4, 5, 6] input 0
t1: f32[n, 4, 5, 6] intermediate
t2: f32[2, 4, 1, 3] const [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0]
t3: f32[n, 2, 5, 6] output 0

kernel 0 map [120*n]
  e0: f32 = t0[%0]
  e1: f32 = exp(e0)
  t1[%0] = e1

kernel 1 matmul [1, 30*n, 2, 12]
  e0: i32 = index(%1%6 + %3/4 - 1)
  e1: i32 = 0:i32
  e2: bool = ge(e0, e1)
  e3: i32 = index(6)
  e4: bool = lt(e0, e3)
  e5: bool = and(e2, e4)
  e6: f32 = t1[120*(%1/30) + 30*(%3%4) + %1%30 + %3/4 - 1] if e5
  e7: f32 = 0.0:f32
  e8: f32 = select(e5, e6, e7)
  e9: f32 = t2[12*%2 + 3*(%3%4) + %3/4]
  e10: f32 = acc0
  acc0 = sum(e8 * e9)
  t3[30*%2 + 60*(%1/30) + %1%30] = e10
";

    #[test]
    fn channels_become_innermost() {
        let mut graph = parse(TEXT).unwrap();
        assert_eq!(apply(&mut graph, &[Some(1), Some(1), Some(1), Some(1)]), 2);
        crate::kernel::verify(&graph).unwrap();
        let text = graph.to_string();
        // Neighbours along the sum are neighbours in memory, in both operands.
        for line in ["t1[4*%1 + %3 - 4] if e5", "t2[12*%2 + %3]", "t1: f32[n, 5, 6, 4]", "  t1[%0] = e"] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
        let TensorKind::Const(weights) = &graph.tensors[2].kind else { panic!() };
        let want = [1.0, 4.0, 7.0, 10.0, 2.0, 5.0, 8.0, 11.0, 3.0, 6.0, 9.0, 12.0];
        assert_eq!(weights.to_f32s().unwrap()[..12], want);
        assert_eq!(weights.shape, [2, 3, 1, 4]);
    }

    #[test]
    fn columns_count_the_innermost_axis_first() {
        // Two neighbouring places of each of four channels.
        let text = "t0: f32[15, 3] input 0
t1: f32[3, 8] const [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0]
t2: f32[4, 5, 6] intermediate
t3: f32[120] output 0

kernel 0 matmul [1, 15, 8, 3]
  e0: f32 = t0[3*%1 + %3]
  e1: f32 = t1[8*%3 + %2]
  e2: f32 = acc0
  acc0 = sum(e0 * e1)
  t2[2*%1 + 30*(%2/2) + %2%2] = e2

kernel 1 map [120]
  e0: f32 = t2[%0]
  t3[%0] = e0
";
        let mut graph = parse(text).unwrap();
        assert_eq!(apply(&mut graph, &[None, None, Some(0), None]), 1);
        crate::kernel::verify(&graph).unwrap();
        let text = graph.to_string();
        for line in ["t1[8*%3 + %2/4 + 2*(%2%4)]", "t2[8*%1 + %2] = e2"] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }

    #[test]
    fn what_is_not_certain_to_be_inside_of_an_axis_stays() {
        // Without the guard, elements beyond a row are those of the next.
        let mut graph = parse(&TEXT.replace(" if e5", "")).unwrap();
        assert_eq!(apply(&mut graph, &[None, Some(1), None, None]), 0);
        // Inputs and outputs are as they are given and returned.
        let mut graph = parse(TEXT).unwrap();
        assert_eq!(apply(&mut graph, &[Some(1), None, None, Some(1)]), 0);
    }

    #[test]
    fn copies_come_before_their_readers() {
        let (tensors, kernels) = TEXT.split_once("kernel 0").unwrap();
        let (_, convolution) = kernels.split_once("kernel 1").unwrap();
        let tensors = tensors.replace("t1: f32[n, 4, 5, 6] intermediate", "t1: f32[n, 4, 5, 6] input 1");
        let graph = parse(&format!("{tensors}kernel 0{convolution}")).unwrap();
        let mut with = with_copies(&graph, &[(1, vec![0])]);
        let mut orders = vec![None; with.tensors.len()];
        orders[4] = Some(1);
        assert_eq!(apply(&mut with, &orders), 1);
        crate::kernel::verify(&with).unwrap();
        let text = with.to_string();
        for line in [
            "kernel 0 map [120*n]",
            "t4: f32[n, 5, 6, 4] intermediate",
            "t4[%0] = e0",
            "t4[4*%1 + %3 - 4] if e5",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }

    #[test]
    fn orders_stay_where_others_do_not_pay() {
        let graph = parse(TEXT).unwrap();
        let (mut none, device) = (graph.clone(), DeviceProfile::default());
        assert_eq!(arrange(&mut none, &device, &Expected::default(), &|_, k| k).moved, 0);
        assert_eq!(none.to_string(), graph.to_string());
    }
}
