//! Building graphs with numpy-like operations, for the lowering of operators.

use crate::dtype::DType;
use crate::graph::{Constraint, Graph, TensorType, Value};
use crate::op::{Contract, GatherAxis, Op, ReduceOp, show};
use crate::poly::{Dim, Poly};
use crate::scalar::{BinaryOp, Scalar, ScalarFn, UnaryOp};
use crate::tensor::Tensor;
use std::sync::Arc;

/// The result of the builder's methods: a value, or an error message that is meant to follow the node's name.
pub type Built<T = Value> = Result<T, String>;

/// Appends nodes to a graph on behalf of one node of the model.
///
/// ```
/// use wgfc_ir::{BinaryOp, Builder, DType, Dim, Graph, ReduceOp, TensorType};
/// let mut graph = Graph::new();
/// let x = graph.add_input("x", TensorType::new(DType::F32, [Dim::sym("n"), Dim::constant(8)]));
/// let mut b = Builder::new(&mut graph, "normalise");
/// let sum = b.reduce(ReduceOp::Sum, x, &[1], true)?;
/// let y = b.binary(BinaryOp::Div, x, sum)?;
/// let columns = b.transpose(y, &[1, 0])?;
/// assert_eq!(graph.ty(columns).to_string(), "f32[8, n]");
/// # Ok::<(), String>(())
/// ```
pub struct Builder<'g> {
    /// The graph that nodes are added to.
    pub graph: &'g mut Graph,
    /// Recorded on every node added.
    pub origin: Vec<Arc<str>>,
}

/// A sliding window along one spatial axis.
///
/// ```
/// use wgfc_ir::{Builder, DType, Dim, Graph, Scalar, TensorType, build::WindowAxis};
/// let mut graph = Graph::new();
/// let x = graph.add_input("x", TensorType::new(DType::F32, [Dim::constant(10)]));
/// // Windows of 3 elements, one at each second position.
/// let [kernel, pad, out] = [3, 0, 4].map(Dim::constant);
/// let windows = [WindowAxis { kernel, stride: 2, dilation: 1, pad, out }];
/// let zero = Scalar::from_f64(DType::F32, 0.0);
/// let y = Builder::new(&mut graph, "windows").unfold(x, &windows, zero)?;
/// assert_eq!(graph.ty(y).to_string(), "f32[4, 3]");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowAxis {
    /// Elements in the window.
    pub kernel: Dim,
    /// Distance between windows.
    pub stride: i64,
    /// Distance between elements of a window.
    pub dilation: i64,
    /// Padding before the first element.
    pub pad: Dim,
    /// Number of windows.
    pub out: Dim,
}

impl WindowAxis {
    /// The elements of each window that can lie inside of an axis of this extent: the first one, for the window
    /// counted by variable `window`, and their number. A window larger than the axis has fewer of them than elements.
    pub fn inside(&self, extent: &Dim, window: usize, shape: &[Dim]) -> (Poly, Dim) {
        let most = extent.ceil_div(self.dilation);
        let left = &self.kernel - &most;
        if !(&left - 1).proves_nonneg(&[]) {
            return (Poly::ZERO, self.kernel.clone());
        }
        let before = &self.pad - &(&Poly::var(window) * self.stride);
        (before.ceil_div(self.dilation).max_of(&Poly::ZERO, shape).min_of(&left, shape), most)
    }
}

impl<'g> Builder<'g> {
    /// A builder that marks its nodes with `origin`.
    pub fn new(graph: &'g mut Graph, origin: &str) -> Builder<'g> {
        Builder { graph, origin: vec![origin.into()] }
    }

    /// A value's type.
    pub fn ty(&self, v: Value) -> &TensorType {
        self.graph.ty(v)
    }
    /// A value's shape.
    pub fn shape(&self, v: Value) -> Vec<Dim> {
        self.graph.ty(v).shape.clone()
    }
    /// A value's element type.
    pub fn dtype(&self, v: Value) -> DType {
        self.graph.ty(v).dtype
    }
    /// A value's rank.
    pub fn rank(&self, v: Value) -> usize {
        self.graph.ty(v).rank()
    }
    /// The tensor, if the value is a constant.
    pub fn as_const(&self, v: Value) -> Option<&Arc<Tensor>> {
        match &self.graph.node(v.node).op {
            Op::Const(t) => Some(t),
            _ => None,
        }
    }

    /// Adds a node with one output.
    pub fn push(&mut self, op: Op, inputs: &[Value]) -> Built {
        Ok(self.graph.push(op, inputs, &self.origin)?.into())
    }

    /// A constant tensor.
    pub fn constant(&mut self, t: Tensor) -> Value {
        self.shared_constant(Arc::new(t))
    }
    /// A constant tensor that is shared.
    pub fn shared_constant(&mut self, t: Arc<Tensor>) -> Value {
        let ty = TensorType::new(t.dtype, t.shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>());
        self.graph
            .add_node(crate::graph::Node {
                op: Op::Const(t),
                inputs: vec![],
                outputs: vec![ty],
                origin: self.origin.clone(),
                names: vec![None],
            })
            .into()
    }
    /// A rank-0 constant.
    pub fn scalar(&mut self, dtype: DType, v: f64) -> Value {
        self.constant(Tensor::scalar(Scalar::from_f64(dtype, v)))
    }
    /// A rank-0 integer constant, exact.
    pub fn int(&mut self, dtype: DType, v: i64) -> Value {
        self.constant(Tensor::scalar(Scalar::from_i64(dtype, v)))
    }
    /// A tensor filled with one value.
    pub fn full(&mut self, shape: &[Dim], s: Scalar) -> Built {
        let c = self.constant(Tensor::scalar(s));
        self.expand(c, shape)
    }

    /// The common shape of operands broadcast against each other. Two unequal symbolic extents
    /// become a constraint that a run checks; unequal constants are an error.
    pub fn broadcast_shape(&mut self, vs: &[Value]) -> Built<Vec<Dim>> {
        let rank = vs.iter().map(|v| self.rank(*v)).max().unwrap_or(0);
        let mut out = vec![Dim::ONE; rank];
        for v in vs {
            let s = self.shape(*v);
            for (i, d) in s.iter().enumerate() {
                let o = rank - s.len() + i;
                out[o] = self.merge_dims(&out[o].clone(), d).ok_or_else(|| {
                    let shapes: Vec<String> = vs.iter().map(|v| show(&self.shape(*v))).collect();
                    format!("shapes {} do not broadcast: {} against {d}", shapes.join(" and "), out[o])
                })?;
            }
        }
        Ok(out)
    }

    fn merge_dims(&mut self, a: &Dim, b: &Dim) -> Option<Dim> {
        if a == b || b.is(1) {
            return Some(a.clone());
        }
        if a.is(1) {
            return Some(b.clone());
        }
        if a.as_const().is_some() && b.as_const().is_some() {
            return None;
        }
        self.require_equal(a, b);
        Some(if b.as_const().is_some() { b.clone() } else { a.clone() })
    }

    /// Records that two dimensions must be equal at run time.
    pub fn require_equal(&mut self, a: &Dim, b: &Dim) {
        let origin = self.origin.first().cloned().unwrap_or_else(|| "".into());
        let c = Constraint { a: a.clone(), b: b.clone(), origin };
        if a != b && !self.graph.constraints.iter().any(|x| x.a == c.a && x.b == c.b) {
            self.graph.constraints.push(c);
        }
    }

    /// Records that dimension `a` must be at most `b` at run time, as the constraint `max(a, b) = b`.
    pub fn require_at_most(&mut self, a: &Dim, b: &Dim) {
        self.require_equal(&a.max_of(b, &[]), b);
    }

    /// Elementwise, with operands broadcast against each other.
    pub fn map(&mut self, body: ScalarFn, args: &[Value]) -> Built {
        let shape = self.broadcast_shape(args)?;
        self.map_to(body, args, shape)
    }
    /// Elementwise, to a given shape to which every operand broadcasts.
    pub fn map_to(&mut self, body: ScalarFn, args: &[Value], shape: Vec<Dim>) -> Built {
        let args = args.iter().map(|a| self.assume_broadcast(*a, &shape)).collect::<Built<Vec<_>>>()?;
        self.push(Op::Map { body, shape }, &args)
    }
    /// Replaces extents of `v` that a constraint made equal to those of `shape` by the expressions in `shape`.
    fn assume_broadcast(&mut self, v: Value, shape: &[Dim]) -> Built {
        let s = self.shape(v);
        if s.len() > shape.len() {
            return Err(format!("shape {} does not broadcast to {}", show(&s), show(shape)));
        }
        let skip = shape.len() - s.len();
        let want: Vec<Dim> =
            s.iter().zip(&shape[skip..]).map(|(d, t)| if d.is(1) { d.clone() } else { t.clone() }).collect();
        if s == want {
            return Ok(v);
        }
        if s.iter().zip(&want).any(|(d, t)| d != t && d.as_const().is_some() && t.as_const().is_some()) {
            return Err(format!("shape {} does not broadcast to {}", show(&s), show(shape)));
        }
        let index = (0..s.len()).map(Poly::var).collect();
        self.push(Op::View { shape: want, index, fill: None }, &[v])
    }

    /// One scalar operator of one operand.
    pub fn unary(&mut self, op: UnaryOp, x: Value) -> Built {
        self.map(ScalarFn::unary(op), &[x])
    }
    /// One scalar operator of two operands.
    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Built {
        self.map(ScalarFn::binary(op), &[a, b])
    }
    /// A scalar operator applied to a tensor and a constant of its type.
    pub fn binary_scalar(&mut self, op: BinaryOp, a: Value, b: f64) -> Built {
        let c = self.scalar(self.dtype(a), b);
        self.binary(op, a, c)
    }
    /// `if c { a } else { b }`, elementwise.
    pub fn select(&mut self, c: Value, a: Value, b: Value) -> Built {
        self.map(ScalarFn::select(), &[c, a, b])
    }
    /// Converts to another type; the value itself if it has the type already.
    pub fn cast(&mut self, x: Value, to: DType) -> Built {
        if self.dtype(x) == to {
            return Ok(x);
        }
        self.map(ScalarFn::cast(to), &[x])
    }
    /// A tensor of `dtype` whose elements are an index expression over the variables of `shape`.
    pub fn iota(&mut self, shape: &[Dim], index: Poly, dtype: DType) -> Built {
        let mut body = ScalarFn::default();
        let mut r = body.push(crate::scalar::ScalarNode::Index(index));
        if dtype != DType::I32 {
            r = body.push(crate::scalar::ScalarNode::Cast(dtype, r));
        }
        debug_assert_eq!(r as usize + 1, body.nodes.len());
        self.push(Op::Map { body, shape: shape.to_vec() }, &[])
    }

    /// A view whose index expressions are always inside `x`.
    pub fn view(&mut self, x: Value, shape: Vec<Dim>, index: Vec<Poly>) -> Built {
        let same = shape == self.shape(x) && index.iter().enumerate().all(|(i, p)| p.as_var() == Some(i));
        if same {
            return Ok(x);
        }
        self.push(Op::View { shape, index, fill: None }, &[x])
    }

    /// Reshapes in row-major order. The numbers of elements must be equal; if only a run can tell, a constraint is
    /// recorded.
    pub fn reshape(&mut self, x: Value, shape: Vec<Dim>) -> Built {
        let from = self.shape(x);
        if from == shape {
            return Ok(x);
        }
        let (n, m): (Dim, Dim) = (from.iter().product(), shape.iter().product());
        if n != m {
            if n.as_const().is_some() && m.as_const().is_some() {
                return Err(format!(
                    "cannot reshape {} ({n} elements) to {} ({m} elements)",
                    show(&from),
                    show(&shape)
                ));
            }
            self.require_equal(&n, &m);
        }
        let index = reshape_index(&from, &shape);
        self.push(Op::View { shape, index, fill: None }, &[x])
    }

    /// Axis `i` of the result is axis `perm[i]` of `x`.
    pub fn transpose(&mut self, x: Value, perm: &[usize]) -> Built {
        let s = self.shape(x);
        let mut seen = vec![false; s.len()];
        for p in perm {
            if *p >= s.len() || std::mem::replace(&mut seen[*p], true) {
                return Err(format!("{perm:?} is not a permutation of {} axes", s.len()));
            }
        }
        if perm.len() != s.len() {
            return Err(format!("{perm:?} is not a permutation of {} axes", s.len()));
        }
        let shape = perm.iter().map(|p| s[*p].clone()).collect();
        let mut index = vec![Poly::ZERO; s.len()];
        for (i, p) in perm.iter().enumerate() {
            index[*p] = Poly::var(i);
        }
        self.view(x, shape, index)
    }

    /// Broadcasts `x` to exactly `shape`.
    pub fn expand(&mut self, x: Value, shape: &[Dim]) -> Built {
        let s = self.shape(x);
        if s == shape {
            return Ok(x);
        }
        if s.len() > shape.len() {
            return Err(format!("shape {} does not broadcast to {}", show(&s), show(shape)));
        }
        let skip = shape.len() - s.len();
        let mut index = vec![];
        for (i, d) in s.iter().enumerate() {
            let to = &shape[skip + i];
            if d.is(1) {
                index.push(Poly::ZERO);
                continue;
            }
            if d != to {
                if d.as_const().is_some() && to.as_const().is_some() {
                    return Err(format!("shape {} does not broadcast to {}", show(&s), show(shape)));
                }
                self.require_equal(d, to);
            }
            index.push(Poly::var(skip + i));
        }
        self.push(Op::View { shape: shape.to_vec(), index, fill: None }, &[x])
    }

    /// Inserts axes of extent 1 at these positions of the result (sorted).
    pub fn unsqueeze(&mut self, x: Value, axes: &[usize]) -> Built {
        let mut shape = self.shape(x);
        for a in axes {
            if *a > shape.len() {
                return Err(format!("axis {a} of a tensor of rank {}", shape.len() + 1));
            }
            shape.insert(*a, Dim::ONE);
        }
        let index = (0..shape.len()).filter(|i| !axes.contains(i)).map(Poly::var).collect();
        self.view(x, shape, index)
    }

    /// Removes axes of extent 1.
    pub fn squeeze(&mut self, x: Value, axes: &[usize]) -> Built {
        let s = self.shape(x);
        let mut shape = vec![];
        let mut index = vec![];
        for (i, d) in s.iter().enumerate() {
            if axes.contains(&i) {
                if d.as_const().is_some_and(|c| c != 1) {
                    return Err(format!("cannot squeeze axis {i} of {}", show(&s)));
                }
                self.require_equal(d, &Dim::ONE);
                index.push(Poly::ZERO);
            } else {
                index.push(Poly::var(shape.len()));
                shape.push(d.clone());
            }
        }
        self.view(x, shape, index)
    }

    /// `len` elements along an axis from `start` with a distance of `step`; all must be inside.
    pub fn slice(&mut self, x: Value, axis: usize, start: &Poly, step: i64, len: &Dim) -> Built {
        let mut shape = self.shape(x);
        let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
        index[axis] = start + &(Poly::var(axis) * step);
        shape[axis] = len.clone();
        self.view(x, shape, index)
    }

    /// Pads (or crops, by negative amounts) each axis.
    pub fn pad(&mut self, x: Value, before: &[Dim], after: &[Dim], fill: Scalar) -> Built {
        let s = self.shape(x);
        if before.iter().chain(after).all(|p| p.is(0)) {
            return Ok(x);
        }
        let shape = s.iter().zip(before).zip(after).map(|((d, b), a)| d + b + a).collect();
        let index = before.iter().enumerate().map(|(i, b)| &Poly::var(i) - b).collect();
        self.push(Op::View { shape, index, fill: Some(fill) }, &[x])
    }

    /// Reduces axes; with `keepdims` they are kept with extent 1.
    pub fn reduce(&mut self, op: ReduceOp, x: Value, axes: &[usize], keepdims: bool) -> Built {
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        axes.dedup();
        let r = if axes.is_empty() { x } else { self.push(Op::Reduce { op, axes: axes.clone() }, &[x])? };
        if keepdims { Ok(r) } else { self.squeeze(r, &axes) }
    }

    /// Casts floats narrower than f32 to f32, so that sums and squares of them neither overflow nor are rounded; other
    /// types are unchanged.
    pub fn widened(&mut self, x: Value) -> Built {
        let dtype = self.dtype(x);
        if dtype.is_float() && dtype.bits() < 32 { self.cast(x, DType::F32) } else { Ok(x) }
    }

    /// The mean along axes, which are kept with extent 1. Integers divide towards zero.
    pub fn mean(&mut self, x: Value, axes: &[usize]) -> Built {
        let (dtype, x) = (self.dtype(x), self.widened(x)?);
        let n: Dim = axes.iter().map(|a| self.shape(x)[*a].clone()).product();
        let sum = self.reduce(ReduceOp::Sum, x, axes, true)?;
        let n = self.dim_scalar(&n, self.dtype(x))?;
        let mean = self.binary(BinaryOp::Div, sum, n)?;
        self.cast(mean, dtype)
    }

    /// A dimension as a rank-0 tensor of `dtype`.
    pub fn dim_scalar(&mut self, d: &Dim, dtype: DType) -> Built {
        match d.as_const() {
            Some(c) => Ok(self.int(dtype, c)),
            None => self.iota(&[], d.clone(), dtype),
        }
    }

    /// numpy's `matmul`.
    pub fn matmul(&mut self, a: Value, b: Value) -> Built {
        let (ra, rb) = (self.rank(a), self.rank(b));
        if ra == 0 || rb == 0 {
            return Err("matmul of a scalar".into());
        }
        let a = if ra == 1 { self.unsqueeze(a, &[0])? } else { a };
        let b = if rb == 1 { self.unsqueeze(b, &[1])? } else { b };
        let (sa, sb) = (self.shape(a), self.shape(b));
        let (ka, kb) = (sa[sa.len() - 1].clone(), sb[sb.len() - 2].clone());
        let mut b = b;
        if ka != kb {
            if ka.as_const().is_some() && kb.as_const().is_some() {
                return Err(format!(
                    "inner dimensions differ: {ka} and {kb} (shapes {} and {})",
                    show(&sa),
                    show(&sb)
                ));
            }
            self.require_equal(&ka, &kb);
            let mut s = sb.clone();
            s[sb.len() - 2] = ka;
            let index = (0..s.len()).map(Poly::var).collect();
            b = self.push(Op::View { shape: s, index, fill: None }, &[b])?;
        }
        // Each batch axis gets a label; an operand that is broadcast along it lacks that label.
        let batch = sa.len().max(sb.len()) - 2;
        let (mut la, mut lb, mut lo) = (vec![], vec![], vec![]);
        let (mut drop_a, mut drop_b) = (vec![], vec![]);
        let mut want_b = vec![];
        for i in 0..batch {
            let l = i as u8;
            let da = (i + sa.len()).checked_sub(batch + 2).map(|j| (j, sa[j].clone()));
            let db = (i + sb.len()).checked_sub(batch + 2).map(|j| (j, sb[j].clone()));
            match (da, db) {
                (Some((ja, da)), Some((jb, db))) => {
                    if db.is(1) && !da.is(1) {
                        drop_b.push(jb);
                        la.push(l);
                    } else if da.is(1) && !db.is(1) {
                        drop_a.push(ja);
                        lb.push(l);
                        want_b.push((jb, db));
                    } else {
                        if da != db {
                            if da.as_const().is_some() && db.as_const().is_some() {
                                return Err(format!(
                                    "shapes {} and {} do not broadcast",
                                    show(&sa),
                                    show(&sb)
                                ));
                            }
                            self.require_equal(&da, &db);
                        }
                        la.push(l);
                        lb.push(l);
                        want_b.push((jb, da));
                    }
                }
                (Some(_), None) => la.push(l),
                (None, Some((jb, db))) => {
                    lb.push(l);
                    want_b.push((jb, db));
                }
                (None, None) => {}
            }
            lo.push(l);
        }
        let mut s = self.shape(b);
        for (j, d) in want_b {
            s[j] = d;
        }
        let index = (0..s.len()).map(Poly::var).collect();
        let b = self.view(b, s, index)?;
        let a = self.squeeze(a, &drop_a)?;
        let b = self.squeeze(b, &drop_b)?;
        let (m, n, k) = (batch as u8, batch as u8 + 1, batch as u8 + 2);
        la.extend([m, k]);
        lb.extend([k, n]);
        lo.extend([m, n]);
        let out = self.push(Op::Contract(Contract { a: la, b: lb, out: lo }), &[a, b])?;
        let mut drop = vec![];
        if ra == 1 {
            drop.push(batch);
        }
        if rb == 1 {
            drop.push(batch + 1);
        }
        self.squeeze(out, &drop)
    }

    /// Elements of `data` along `axis` at `indices` (numpy's `take`).
    pub fn take(&mut self, data: Value, indices: Value, axis: usize) -> Built {
        let (sd, si) = (self.shape(data), self.shape(indices));
        if axis >= sd.len() {
            return Err(format!("axis {axis} of a tensor of rank {}", sd.len()));
        }
        let mut shape = sd[..axis].to_vec();
        shape.extend(si.iter().cloned());
        shape.extend(sd[axis + 1..].iter().cloned());
        let index = (0..sd.len())
            .map(|d| match d.cmp(&axis) {
                std::cmp::Ordering::Less => GatherAxis::Affine(Poly::var(d)),
                std::cmp::Ordering::Equal => {
                    GatherAxis::Data { input: 1, at: (axis..axis + si.len()).map(Poly::var).collect() }
                }
                std::cmp::Ordering::Greater => GatherAxis::Affine(Poly::var(d + si.len() - 1)),
            })
            .collect();
        self.push(Op::Gather { shape, index }, &[data, indices])
    }

    /// Concatenates along an axis.
    pub fn concat(&mut self, xs: &[Value], axis: usize) -> Built {
        if xs.len() == 1 {
            return Ok(xs[0]);
        }
        self.push(Op::Concat { axis }, xs)
    }

    /// Sliding windows over the last axes of `x [lead…, spatial…]`, giving `[lead…, out…, kernel…]`;
    /// positions in the padding read `fill`.
    pub fn unfold(&mut self, x: Value, windows: &[WindowAxis], fill: Scalar) -> Built {
        Ok(self.windows(x, windows, fill, false)?.0)
    }

    /// [`Builder::unfold`] for reductions of which `fill` is the identity: where a window is larger than its axis,
    /// elements that lie in the padding are left out. Also returns the positions in `x` that are read, over the
    /// variables of the result.
    pub fn unfold_inside(
        &mut self,
        x: Value,
        windows: &[WindowAxis],
        fill: Scalar,
    ) -> Built<(Value, Vec<Poly>)> {
        self.windows(x, windows, fill, true)
    }

    fn windows(
        &mut self,
        x: Value,
        windows: &[WindowAxis],
        fill: Scalar,
        inside: bool,
    ) -> Built<(Value, Vec<Poly>)> {
        let s = self.shape(x);
        let lead = s.len().checked_sub(windows.len()).ok_or("more windows than axes")?;
        let mut shape = s[..lead].to_vec();
        shape.extend(windows.iter().map(|w| w.out.clone()));
        let mut first = vec![];
        for (i, w) in windows.iter().enumerate() {
            let (from, count) = match inside {
                true => w.inside(&s[lead + i], lead + i, &shape[..lead + windows.len()]),
                false => (Poly::ZERO, w.kernel.clone()),
            };
            first.push(from);
            shape.push(count);
        }
        let mut index: Vec<Poly> = (0..lead).map(Poly::var).collect();
        for (i, (w, first)) in windows.iter().zip(first).enumerate() {
            let o = Poly::var(lead + i) * w.stride;
            let k = &(&first + &Poly::var(lead + windows.len() + i)) * w.dilation;
            index.push(&(&o + &k) - &w.pad);
        }
        let whole = index.iter().zip(&s).all(|(p, d)| p.in_range(d, &shape));
        let fill = if whole { None } else { Some(fill) };
        Ok((self.push(Op::View { shape, index: index.clone(), fill }, &[x])?, index))
    }
}

/// The index expressions that read a row-major tensor of shape `from` as shape `to`, with the same number of elements.
///
/// ```
/// use wgfc_ir::{Dim, Poly, build::reshape_index};
/// // Element i of a list is row i/8 and column i % 8 of the matrix that it was.
/// let index = reshape_index(&[Dim::sym("rows"), Dim::constant(8)], &[Dim::sym("rows") * 8]);
/// assert_eq!(index, [Poly::parse("%0/8")?, Poly::parse("%0 % 8")?]);
/// # Ok::<(), String>(())
/// ```
pub fn reshape_index(from: &[Dim], to: &[Dim]) -> Vec<Poly> {
    let mut flat = Poly::ZERO;
    for (i, d) in to.iter().enumerate() {
        flat = &(&flat * d) + &Poly::var(i);
    }
    let mut index = vec![Poly::ZERO; from.len()];
    let mut rest = flat;
    let outermost = from.iter().position(|d| !d.is(1)).unwrap_or(0);
    for i in (0..from.len()).rev() {
        if from[i].is(1) {
            continue;
        }
        if i == outermost {
            index[i] = rest.clone();
        } else {
            index[i] = rest.modulo(&from[i], to);
            rest = rest.div(&from[i], to);
        }
    }
    index
}
