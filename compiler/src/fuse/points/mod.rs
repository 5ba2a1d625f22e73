//! The positions of a kernel's results in the values behind its anchor.
//!
//! A kernel computes one or a few elements of its anchor's result at each position of its iteration
//! domain. A [`Point`] is one such element, followed into a value that comes after: its position there
//! and when it has one. A slice keeps the points inside it; a Map joins the points of its operands that
//! lie at one position; a Concat puts its operands' points side by side. The points of a value a unit
//! holds always cover the value, each element once.
//!
//! A product may make several columns at each position ([`Split`]): the columns that a rotary embedding
//! or a gated activation combines are then points of one position, and the combination is a Map.

pub mod invert;

use crate::device::DeviceProfile;
use crate::fuse::points::invert::{invert, locate};
use crate::fuse::pulling::{outside, unflatten};
use crate::fuse::unit::Split;
use crate::rewrite::quantised::is_quantised;
use crate::schedule::products::few_rows;
use wgfc_ir::{Atom, Contract, Dim, GatherAxis, Graph, NodeId, Op, Poly, Reg, Value};

/// An element of a value, made at each position of a kernel's domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its position in the value, over the kernel's variables.
    pub at: Vec<Poly>,
    /// The point exists where each of these lies in `0..extent`.
    pub when: Vec<(Poly, Dim)>,
    /// The point of each operand that it comes from; `None` for operands that are read from elsewhere.
    pub from: Vec<Option<usize>>,
}

impl Point {
    /// The part of a domain in which the point exists.
    fn domain(&self, domain: &[Dim]) -> Vec<Dim> {
        let mut out = domain.to_vec();
        for (p, d) in &self.when {
            if let Some(v) = p.as_var() {
                out[v] = d.clone();
            }
        }
        out
    }
}

/// Whether the anchor is a product with [few rows](crate::kernel::thin), for which the device does not use its matrix units.
pub fn is_thin(graph: &Graph, anchor: NodeId, device: &DeviceProfile) -> bool {
    let node = graph.node(anchor);
    let few = || few_rows(node.inputs.iter().any(|v| is_quantised(graph, *v)), device);
    node.outputs[0].dtype.reg() == Reg::F32
        && ProductDomain::of(graph, anchor, Split::NONE).is_some_and(|p| {
            let [batch, rows, ..] = &p.domain[..] else { return false };
            crate::kernel::thin(batch, rows) && rows.as_const().is_some_and(|rows| rows <= few())
        })
}

/// The extents of a product, and the positions at which its operands are read and its result is written.
#[derive(Clone, Debug)]
pub struct ProductDomain {
    /// Extents of batch, m, n (positions), k.
    pub domain: Vec<Dim>,
    /// The position of every label, for each part of the split.
    positions: Vec<Vec<(u8, Poly)>>,
}

impl ProductDomain {
    /// The domain of a Contract; `None` if its columns cannot be split by `split`.
    pub fn of(graph: &Graph, node: NodeId, split: Split) -> Option<ProductDomain> {
        let node = graph.node(node);
        let Op::Contract(c) = &node.op else { return None };
        let (ta, tb) = (graph.ty(node.inputs[0]), graph.ty(node.inputs[1]));
        let extent = |l: u8| {
            let find = |labels: &[u8], shape: &[Dim]| {
                labels.iter().position(|x| *x == l).and_then(|i| shape.get(i)).cloned()
            };
            find(&c.a, &ta.shape).or_else(|| find(&c.b, &tb.shape)).unwrap_or(Dim::ONE)
        };
        let mut groups = [c.batch(), c.m(), c.n(), c.k()];
        let mut dims = groups.each_ref().map(|g| g.iter().map(|l| extent(*l)).collect::<Vec<Dim>>());
        if let Some(k) = windows_first(graph, node.inputs[0], c, &dims) {
            groups[3] = k;
            dims[3] = groups[3].iter().map(|l| extent(*l)).collect();
        }
        let [batch, m, n, k] = dims.each_ref().map(|d| d.iter().product::<Dim>());
        let columns = if split.parts == 1 {
            n
        } else {
            let n = n.as_const()?;
            if n % (split.parts * split.stride) != 0 {
                return None;
            }
            Dim::from(n / split.parts)
        };
        let domain = vec![batch, m, columns, k];
        let positions = (0..split.parts)
            .map(|part| {
                let flat =
                    [Poly::var(0), Poly::var(1), split.column(part, &Poly::var(2), &domain), Poly::var(3)];
                let all = groups.iter().zip(&dims).zip(&flat);
                all.flat_map(|((g, d), f)| g.iter().copied().zip(unflatten(f, d, &domain))).collect()
            })
            .collect();
        Some(ProductDomain { domain, positions })
    }

    /// The positions along the axes of these labels, in part `part`.
    pub fn at(&self, labels: &[u8], part: usize) -> Vec<Poly> {
        let find = |l: &u8| self.positions[part].iter().find(|(x, _)| x == l).map(|(_, p)| p.clone());
        labels.iter().map(|l| find(l).unwrap_or_default()).collect()
    }

    /// The number of parts.
    pub fn parts(&self) -> usize {
        self.positions.len()
    }
}

/// The summed labels with those of windows first, if there are windows: neighbouring channels then share the position within the window,
/// so that its bounds are checked once for all of them.
fn windows_first(graph: &Graph, a: Value, c: &Contract, dims: &[Vec<Dim>; 4]) -> Option<Vec<u8>> {
    let Op::View { index, fill: Some(_), .. } = &graph.node(a.node).op else { return None };
    let few = |d: &[Dim]| d.iter().product::<Dim>().as_const().is_some_and(|d| d <= 8);
    if few(&dims[1]) || few(&dims[2]) {
        return None;
    }
    let (k, batch) = (c.k(), c.batch());
    // Channels of a group follow those of the groups before it.
    let first = |a: &Atom| match a {
        Atom::Var(v) if c.a.get(*v as usize).is_some_and(|l| batch.contains(l)) => Some(Poly::ZERO),
        _ => None,
    };
    let window = |l: &u8| {
        let axis = c.a.iter().position(|x| x == l);
        axis.is_some_and(|axis| {
            let with = |p: &&Poly| p.vars().contains(&axis);
            index.iter().filter(with).any(|p| p.subst(&first, &[]) != Poly::var(axis))
        })
    };
    let (windows, others): (Vec<u8>, Vec<u8>) = k.iter().partition(|l| window(l));
    let count: Option<i64> =
        k.iter().zip(&dims[3]).filter(|(l, _)| others.contains(l)).map(|(_, d)| d.as_const()).product();
    (!windows.is_empty() && count.is_some_and(|c| c % 8 == 0)).then(|| [windows, others].concat())
}

impl Split {
    /// The column of part `part` at position `u`.
    fn column(self, part: i64, u: &Poly, domain: &[Dim]) -> Poly {
        if self.parts == 1 {
            return u.clone();
        }
        let stride = Poly::constant(self.stride);
        let outer = &u.div(&stride, domain) * (self.parts * self.stride);
        &(&outer + &Poly::constant(part * self.stride)) + &u.modulo(&stride, domain)
    }
}

/// Splits a shape into rows, with `axes` along the row: the number of rows, their length, and the position of row `%0`, column `%1`.
pub fn rows_of(shape: &[Dim], axes: &[usize]) -> (Dim, Dim, Vec<Poly>) {
    let outer: Vec<Dim> = (0..shape.len()).filter(|d| !axes.contains(d)).map(|d| shape[d].clone()).collect();
    let inner: Vec<Dim> = axes.iter().map(|d| shape[*d].clone()).collect();
    let (rows, len): (Dim, Dim) = (outer.iter().product(), inner.iter().product());
    let domain = [rows.clone(), len.clone()];
    let o = unflatten(&Poly::var(0), &outer, &domain);
    let i = unflatten(&Poly::var(1), &inner, &domain);
    let (mut o, mut i) = (o.into_iter(), i.into_iter());
    let index = (0..shape.len())
        .map(|d| if axes.contains(&d) { i.next() } else { o.next() })
        .map(Option::unwrap_or_default)
        .collect();
    (rows, len, index)
}

/// The domain of a kernel whose results have the shape of its operand, rows and their positions, and the points of its result. If rows
/// are split, the first positions of a row have several points each and the others none.
pub fn row_points(shape: &[Dim], axes: &[usize], split: Split) -> Option<(Vec<Dim>, Vec<Point>)> {
    let (rows, len, at) = rows_of(shape, axes);
    let point = |at, when| Point { at, when, from: vec![] };
    if split == Split::NONE {
        return Some((vec![rows, len], vec![point(at, vec![])]));
    }
    let columns = len.as_const().filter(|n| n % (split.parts * split.stride) == 0)?;
    let first = Dim::from(columns / split.parts);
    let narrow = [rows.clone(), first.clone()];
    let points = (0..split.parts).map(|part| {
        let to = [Poly::var(0), split.column(part, &Poly::var(1), &narrow)];
        let at = at.iter().map(|p| p.subst_vars(&to, &[rows.clone(), len.clone()])).collect();
        point(at, vec![(Poly::var(1), first.clone())])
    });
    let points = points.collect();
    Some((vec![rows, len], points))
}

/// The domain of an [`Op::Sort`] (rows, positions, places) and the position in its result of row `%0`, place `%2`.
pub fn places_of(graph: &Graph, anchor: NodeId, axis: usize) -> (Vec<Dim>, Vec<Poly>) {
    let node = graph.node(anchor);
    let (rows, len, mut at) = rows_of(&graph.ty(node.inputs[0]).shape, &[axis]);
    at[axis] = Poly::var(2);
    (vec![rows, len, node.outputs[0].shape[axis].clone()], at)
}

/// The kernel's domain and the points of its anchor's result.
pub fn start(graph: &Graph, anchor: NodeId, split: Split) -> Option<(Vec<Dim>, Vec<Point>)> {
    let node = graph.node(anchor);
    let point = |at: Vec<Poly>| Point { at, when: vec![], from: vec![] };
    let rows = |axes: &[usize], reduced: bool| {
        let shape = &graph.ty(node.inputs[0]).shape;
        let (rows, len, mut at) = rows_of(shape, axes);
        if reduced {
            axes.iter().for_each(|a| at[*a] = Poly::ZERO);
        }
        Some((vec![rows, len], vec![point(at)]))
    };
    match &node.op {
        Op::Contract(c) if node.outputs[0].dtype.reg() == Reg::F32 => {
            let d = ProductDomain::of(graph, anchor, split)?;
            let points = (0..d.parts()).map(|i| point(d.at(&c.out, i))).collect();
            Some((d.domain, points))
        }
        Op::Contract(c) => {
            let d = ProductDomain::of(graph, anchor, Split::NONE)?;
            let [batch, m, n, k] = &d.domain[..] else { return None };
            let domain = vec![&(batch * m) * n, k.clone()];
            let at = unflatten(&Poly::var(0), &[batch.clone(), m.clone(), n.clone()], &domain);
            let at: Vec<Poly> = d.at(&c.out, 0).iter().map(|p| p.subst_vars(&at, &domain)).collect();
            Some((domain, vec![point(at)]))
        }
        Op::Attention { .. } => {
            let (q, v) = (graph.ty(node.inputs[0]), graph.ty(node.inputs[2]));
            let a = attention(&q.shape, &v.shape)?;
            let at = a.at(1, 4);
            Some((a.domain, vec![point(at)]))
        }
        Op::Softmax { axis, .. } => rows(&[*axis], false),
        Op::Norm { axes, .. } => row_points(&graph.ty(node.inputs[0]).shape, axes, split),
        Op::PrefixScan { axis, .. } => rows(&[*axis], false),
        Op::Reduce { axes, .. } => rows(axes, true),
        Op::ArgReduce { axis, .. } => rows(&[*axis], true),
        Op::Sort { axis, .. } => {
            let (domain, at) = places_of(graph, anchor, *axis);
            Some((domain, vec![point(at)]))
        }
        _ => None,
    }
}

/// Attention's domain and the positions at which its operands are read.
pub struct AttentionDomain {
    /// Extents of batch, s, t, d, e.
    pub domain: Vec<Dim>,
    base: Vec<Poly>,
}

impl AttentionDomain {
    /// The position over the batch axes, followed by two variables.
    pub fn at(&self, i: usize, j: usize) -> Vec<Poly> {
        self.base.iter().cloned().chain([Poly::var(i), Poly::var(j)]).collect()
    }
}

/// The domain of attention over queries and values of these shapes.
pub fn attention(q: &[Dim], v: &[Dim]) -> Option<AttentionDomain> {
    let r = q.len();
    let lead = q.get(..r.checked_sub(2)?)?;
    let batch: Dim = lead.iter().product();
    let domain =
        vec![batch, q[r - 2].clone(), v.get(r - 2)?.clone(), q[r - 1].clone(), v.get(r - 1)?.clone()];
    let base = unflatten(&Poly::var(0), lead, &domain);
    Some(AttentionDomain { domain, base })
}

/// The points of the result of `node`, where `of` gives the points of its operands; `None` if they cannot be followed. `partial` also
/// follows slices and joins.
pub fn follow<'p>(
    graph: &Graph,
    node: NodeId,
    of: &dyn Fn(Value) -> Option<&'p [Point]>,
    domain: &[Dim],
    partial: bool,
) -> Option<Vec<Point>> {
    let in_place = graph.written_in_place(node).is_some();
    let node = graph.node(node);
    match &node.op {
        Op::View { shape, index, fill: None } => {
            let from = &graph.ty(node.inputs[0]).shape;
            let points = of(node.inputs[0])?;
            let back = invert(from, shape, index);
            let mut out = vec![];
            for (i, p) in points.iter().enumerate() {
                let mut when = p.when.clone();
                let at = match &back {
                    Some(back) => back.iter().map(|b| b.subst_vars(&p.at, domain)).collect(),
                    None if partial => {
                        let domain = &p.domain(domain);
                        let (at, conditions) = locate(shape, index, &p.at, domain)?;
                        if !hold(conditions, &mut when, domain) {
                            continue;
                        }
                        at
                    }
                    None => return None,
                };
                out.push(Point { at, when, from: vec![Some(i)] });
            }
            Some(out)
        }
        Op::Map { shape, .. } => {
            let inside: Vec<Option<&[Point]>> = node.inputs.iter().map(|x| of(*x)).collect();
            // The first operand inside leads: the other operands must have points at each of its positions.
            let lead = inside.iter().position(Option::is_some)?;
            for (x, points) in node.inputs.iter().zip(&inside) {
                if points.is_some() && !same_extents(&graph.ty(*x).shape, shape) {
                    return None;
                }
            }
            let rank = graph.ty(node.inputs[lead]).rank();
            let mut out = vec![];
            for p in inside[lead]? {
                let mut from = vec![];
                for (x, points) in node.inputs.iter().zip(&inside) {
                    let Some(points) = points else {
                        from.push(None);
                        continue;
                    };
                    let skip = rank.min(graph.ty(*x).rank());
                    let tail = |q: &Point| q.at[q.at.len() - skip..].to_vec();
                    let twin = points.iter().position(|q| tail(q) == tail(p) && q.when == p.when)?;
                    from.push(Some(twin));
                }
                let mut at = vec![Poly::ZERO; shape.len() - rank];
                at.extend(p.at.iter().cloned());
                out.push(Point { at, when: p.when.clone(), from });
            }
            Some(out)
        }
        // Elements at indices that the unit computes.
        Op::Gather { shape, index } => {
            let inside: Vec<usize> =
                (0..node.inputs.len()).filter(|i| of(node.inputs[*i]).is_some()).collect();
            let [operand] = inside[..] else { return None };
            let here = |at: &[Poly]| at.iter().enumerate().all(|(i, p)| p.as_var() == Some(i));
            let reads = |ax: &GatherAxis| match ax {
                GatherAxis::Data { input, at } if *input == operand => here(at),
                _ => true,
            };
            let whole = graph.ty(node.inputs[operand]).shape == *shape;
            if operand == 0 || !whole || !index.iter().all(reads) {
                return None;
            }
            let point = |(i, p): (usize, &Point)| {
                let mut from = vec![None; node.inputs.len()];
                from[operand] = Some(i);
                Point { at: p.at.clone(), when: p.when.clone(), from }
            };
            Some(of(node.inputs[operand])?.iter().enumerate().map(point).collect())
        }
        Op::Concat { axis } if partial => {
            let mut out = vec![];
            let mut start = Poly::ZERO;
            for (i, x) in node.inputs.iter().enumerate() {
                for (j, p) in of(*x)?.iter().enumerate() {
                    let mut at = p.at.clone();
                    at[*axis] = &at[*axis] + &start;
                    let mut from = vec![None; node.inputs.len()];
                    from[i] = Some(j);
                    out.push(Point { at, when: p.when.clone(), from });
                }
                start = &start + &graph.ty(*x).shape[*axis];
            }
            Some(out)
        }
        // The updates go to known positions.
        Op::Scatter { index, .. } if partial && in_place => {
            let mut out = vec![];
            for (i, p) in of(node.inputs[1])?.iter().enumerate() {
                let affine = |ax: &GatherAxis| match ax {
                    GatherAxis::Affine(q) => Some(q.subst_vars(&p.at, domain)),
                    GatherAxis::Data { .. } => None,
                };
                let at = index.iter().map(affine).collect::<Option<Vec<Poly>>>()?;
                let mut when = p.when.clone();
                let inside = at.iter().cloned().zip(node.outputs[0].shape.iter().cloned());
                if !hold(inside.collect(), &mut when, &p.domain(domain)) {
                    continue;
                }
                let mut from = vec![None; node.inputs.len()];
                from[1] = Some(i);
                out.push(Point { at, when, from });
            }
            Some(out)
        }
        _ => None,
    }
}

/// For an [`Op::Place`] with exactly one index operand inside the unit: that operand, and for each of its points the position of the
/// element. Each element occurs once.
pub fn placed<'p>(
    graph: &Graph,
    node: NodeId,
    of: &dyn Fn(Value) -> Option<&'p [Point]>,
) -> Option<(usize, Vec<Vec<Poly>>)> {
    let node = graph.node(node);
    let Op::Place { index, .. } = &node.op else { return None };
    let known: Vec<usize> = (0..node.inputs.len()).filter(|i| of(node.inputs[*i]).is_some()).collect();
    let [operand] = known[..] else { return None };
    if operand == 0 {
        return None;
    }
    let mut all = index.iter().filter_map(|ax| match ax {
        GatherAxis::Data { input, at } if *input == operand => Some(at),
        _ => None,
    });
    let (Some(at), None) = (all.next(), all.next()) else { return None };
    let (elements, indices) = (&graph.ty(node.inputs[0]).shape, &graph.ty(node.inputs[operand]).shape);
    // The index axis along which each element axis lies.
    let axes: Vec<Option<usize>> =
        (0..elements.len()).map(|d| at.iter().position(|p| p.as_var() == Some(d))).collect();
    let whole = elements.iter().zip(&axes).all(|(d, axis)| match axis {
        Some(axis) => indices[*axis] == *d,
        None => d.is(1),
    });
    if !whole || axes.iter().flatten().count() != at.len() {
        return None;
    }
    let position = |p: &Point| axes.iter().map(|a| a.map_or(Poly::ZERO, |a| p.at[a].clone())).collect();
    Some((operand, of(node.inputs[operand])?.iter().map(position).collect()))
}

/// Whether a value of shape `x` is unchanged by broadcasting to `shape`.
fn same_extents(x: &[Dim], shape: &[Dim]) -> bool {
    let skip = shape.len().saturating_sub(x.len());
    shape[..skip].iter().all(|d| d.is(1)) && shape[skip..] == *x
}

/// Adds conditions that are not known to hold to `when`; false if one is known not to hold.
fn hold(conditions: Vec<(Poly, Dim)>, when: &mut Vec<(Poly, Dim)>, domain: &[Dim]) -> bool {
    for (p, d) in conditions {
        if outside(&p, &d, domain) {
            return false;
        }
        if !p.in_range(&d, domain) && !when.contains(&(p.clone(), d.clone())) {
            when.push((p, d));
        }
    }
    true
}

/// The distances between slices of an anchor's result, or of a value that follows it.
pub fn strides(graph: &Graph, anchor: NodeId) -> Vec<i64> {
    let mut seen = vec![anchor];
    let mut offsets: Vec<(Vec<Dim>, Value, Vec<i64>)> = vec![];
    let mut next = 0;
    while let Some(n) = seen.get(next).copied() {
        next += 1;
        for (c, _) in graph.uses(Value::from(n)) {
            let node = graph.node(c);
            let (Op::View { .. } | Op::Map { .. }) = &node.op else { continue };
            if let Op::View { shape, index, fill: None } = &node.op {
                let constant = |p: &Poly| {
                    let free = |a: &Atom| matches!(a, Atom::Var(_)).then_some(Poly::ZERO);
                    p.subst(&|a| free(a), shape).as_const().unwrap_or(0)
                };
                offsets.push((shape.clone(), node.inputs[0], index.iter().map(constant).collect()));
            }
            if seen.len() < 64 && !seen.contains(&c) {
                seen.push(c);
            }
        }
    }
    let mut out = vec![];
    for (i, (shape, of, a)) in offsets.iter().enumerate() {
        for (s, o, b) in &offsets[i + 1..] {
            if s != shape || o != of {
                continue;
            }
            let differ: Vec<i64> = a.iter().zip(b).map(|(x, y)| (x - y).abs()).filter(|d| *d > 0).collect();
            if let [d] = differ[..]
                && !out.contains(&d)
                && out.len() < 8
            {
                out.push(d);
            }
        }
    }
    out.sort_unstable();
    out
}
