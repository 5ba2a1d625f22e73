//! The memory order of the axes of tensors between kernels, and of weights, chosen for the whole graph.
//!
//! Kernels access tensors through index expressions, so the order of the axes of a tensor that is not visible outside
//! can be chosen freely. An [order](Order) is row-major except for one axis that is moved to the innermost position.
//! [`arrange`] rewrites each access as one index per axis, with a proof that each index is in range wherever the
//! access happens, and permutes the strides. A map, or a reduction with one result per row, iterates over moved
//! results in their new order.
//!
//! Orders are chosen by the estimated time of all kernels that access the tensors: first one axis for all tensors
//! together, then tensor by tensor. If the channels are innermost, the operand of a convolution over positions is read
//! in vectors along the channels.

mod axes;
mod copies;
mod search;

use crate::cost::Expected;
use crate::device::DeviceProfile;
use crate::kernel::substitute::{moved, substitute};
use crate::kernel::{Body, Expr, ExprId, Family, Kernel, KernelGraph, Store, TensorId, TensorKind};
use crate::schedule::Context;
use crate::schedule::products;
use axes::Axes;
use copies::{with_copies, worth_copying};
use rustc_hash::{FxHashMap, FxHashSet};
use search::{Search, along_batch};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use wgfc_ir::tensor::gathered;
use wgfc_ir::{Atom, Dim, Poly, Tensor};

/// The maximum number of bytes of a weight that may be permuted. The compiler then holds the weight twice in memory;
/// in a web page it would otherwise leave weights in their files.
const MOST_BYTES: usize = 64 << 20;

/// The index of the innermost axis among those of `Axes`; `None` for row-major order.
pub type Order = Option<usize>;

/// The accesses of a kernel: for each tensor and offset, the indices along the axes.
type Indices = BTreeMap<(TensorId, Poly), Vec<Poly>>;

/// Adapts the kernel with this number to the orders of its tensors.
pub type Fitted<'a> = &'a dyn Fn(usize, Kernel) -> Kernel;

/// The result of [`arrange`].
#[derive(Clone, Debug, Default)]
pub struct Arranged {
    /// The tensors whose order changed.
    pub moved: BTreeMap<TensorId, Moved>,
    /// The tensors that hold copies of inputs in another order, each with the input. As many kernels, before all others, make them.
    pub copies: Vec<(TensorId, TensorId)>,
}

/// The order in memory of a tensor whose axes are not in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The extents of the axes, the innermost last.
    pub extents: Vec<Dim>,
    /// For each of them, the elements between consecutive indices in row-major order.
    pub strides: Vec<usize>,
}

impl Moved {
    fn of(axes: &Axes, last: usize) -> Moved {
        let order: Vec<usize> = (0..axes.extents.len()).filter(|i| *i != last).chain([last]).collect();
        Moved {
            extents: order.iter().map(|i| axes.extents[*i].clone()).collect(),
            strides: order.iter().map(|i| axes.strides[*i] as usize).collect(),
        }
    }

    /// The elements of a tensor in this order, as one axis; `None` if it has no values, or if a size is unknown.
    pub fn applied(&self, t: &Tensor, symbol: &dyn Fn(&str) -> Option<i64>) -> Option<Tensor> {
        let extent = |d: &Dim| d.eval_syms(symbol).and_then(|n| usize::try_from(n).ok());
        let counts: Vec<usize> = self.extents.iter().map(extent).collect::<Option<_>>()?;
        let moved = gathered(t.bytes()?, t.dtype.bits() / 8, &counts, &self.strides);
        let (len, owner) = (moved.len(), Arc::new(moved));
        let data = wgfc_ir::tensor::Data::Bytes { owner, offset: 0, len };
        Some(Tensor { dtype: t.dtype, shape: vec![t.numel()], data })
    }
}

/// Gives tensors between kernels, and weights, the orders with the least estimated time of all kernels. Inputs that
/// products read one element at a time are first copied if that saves more time than it costs.
pub fn arrange(
    graph: &mut KernelGraph,
    device: &DeviceProfile,
    expect: &Expected,
    fitted: Fitted<'_>,
) -> Arranged {
    let mut known = search::Known::default();
    let inputs = worth_copying(graph, device, expect, fitted, &mut known);
    if !inputs.is_empty() {
        let mut with = with_copies(graph, &inputs);
        let first = graph.tensors.len();
        let copies: Vec<_> = inputs.iter().enumerate().map(|(i, (t, _))| (first + i, *t)).collect();
        let own = behind(copies.len(), fitted);
        let orders = Search::new(Context { graph: &with, device, expect }, &own, &mut known).choose();
        if orders.iter().skip(graph.tensors.len()).all(Option::is_some) {
            let moved = applied(&mut with, &orders);
            *graph = with;
            return Arranged { moved, copies };
        }
    }
    let orders = Search::new(Context { graph, device, expect }, fitted, &mut known).choose();
    Arranged { moved: applied(graph, &orders), copies: vec![] }
}

/// A [`Fitted`] function for graphs with `others` additional kernels in front, which it leaves unchanged.
pub fn behind(others: usize, fitted: impl Fn(usize, Kernel) -> Kernel) -> impl Fn(usize, Kernel) -> Kernel {
    move |i, k| match i.checked_sub(others) {
        Some(i) => fitted(i, k),
        None => k,
    }
}

/// The form of a kernel for the chosen orders. The sums of batched products whose batch elements are adjacent in
/// memory, as in a depthwise convolution with innermost channels, are unrolled, so that the kernel becomes a map over
/// adjacent results. The same applies to sums over windows.
pub fn flattened(k: Kernel) -> Kernel {
    let map = match &k.family {
        Family::Matmul(_) if along_batch(&k) => products::window::flattened(&k),
        Family::Row(_) => products::window::flattened_rows(&k),
        _ => None,
    };
    map.unwrap_or(k)
}

/// Applies these orders; tensors that cannot have theirs are left unchanged. Returns the number of moved tensors.
pub fn apply(graph: &mut KernelGraph, orders: &[Order]) -> usize {
    applied(graph, orders).len()
}

/// [`apply`] that returns the new orders.
fn applied(graph: &mut KernelGraph, orders: &[Order]) -> BTreeMap<TensorId, Moved> {
    let (axes, indices) = movable(graph);
    let orders: Vec<Order> = axes
        .iter()
        .zip(orders)
        .map(|(a, o)| o.filter(|o| a.as_ref().is_some_and(|a| a.candidates().contains(o))))
        .collect();
    if orders.iter().all(Option::is_none) {
        return BTreeMap::new();
    }
    let kernels: Vec<Kernel> =
        graph.kernels.iter().zip(&indices).map(|(k, i)| moved_kernel(k, &axes, i, &orders)).collect();
    graph.kernels = kernels;
    let mut data: FxHashMap<(usize, usize), Arc<Tensor>> = FxHashMap::default();
    let mut all = BTreeMap::new();
    for (t, (axes, order)) in axes.iter().zip(&orders).enumerate() {
        let (Some(axes), Some(last)) = (axes, order) else { continue };
        all.insert(t, Moved::of(axes, *last));
        graph.tensors[t].ty.shape = axes.moved_shape(&graph.tensors[t].ty.shape, *last);
        if let TensorKind::Const(own) = &mut graph.tensors[t].kind {
            let key = (Arc::as_ptr(own) as usize, *last);
            *own = data.entry(key).or_insert_with(|| Arc::new(permuted(own, axes, *last))).clone();
        }
    }
    all
}

/// The axes of tensors whose order can change, and the kernels' accesses to them.
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

/// The kernel with its accesses rewritten for the new orders.
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
    // If the kernel has one result for each value of the first variable, it iterates in the order of the results.
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

/// New variables for a product whose row or column variable counts the axis that the order moves innermost as its slow
/// digit: the new variable counts it as the fast one, so that adjacent values of the variable are adjacent in memory.
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

/// The kernel with its variables replaced by expressions.
fn over_variables(k: &Kernel, vars: &[Poly]) -> Kernel {
    let domain = k.domain();
    let mut body = Body::default();
    let ids = substitute(&k.body, &mut body, &k.roots(), vars, &domain);
    let of = |id: ExprId| ids.get(id as usize).copied().flatten().unwrap_or(0);
    k.over(body, &of, &mut |p| moved(p, &ids, vars, &domain))
}

/// A constant in another order, which is permuted when its bytes are requested.
fn permuted(t: &Tensor, axes: &Axes, last: usize) -> Tensor {
    let extents: Vec<usize> = axes.extents.iter().map(|d| d.as_const().unwrap_or(0) as usize).collect();
    // The axes from the outermost to the innermost, in the new order.
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
    /// The number of elements along each axis, and their strides in the original tensor.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse;

    /// A map, and a convolution with padding of its result.
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
        // In both operands, adjacent summands are adjacent in memory.
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
        // Two adjacent positions of each of four channels.
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
        // Without the guard, elements beyond a row belong to the next row.
        let mut graph = parse(&TEXT.replace(" if e5", "")).unwrap();
        assert_eq!(apply(&mut graph, &[None, Some(1), None, None]), 0);
        // The orders of inputs and outputs are fixed.
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
        assert_eq!(arrange(&mut none, &device, &Expected::default(), &|_, k| k).moved.len(), 0);
        assert_eq!(none.to_string(), graph.to_string());
    }
}
