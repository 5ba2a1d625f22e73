//! Pulling: adds to a kernel's body the expression for the element of a graph's value at a position.

pub(crate) mod constant;
mod parts;
mod target;

pub use parts::Parts;

use crate::fuse::unit::is_small;
use crate::kernel::length;
use crate::kernel::{Body, Expr, ExprId, TensorId};
use rustc_hash::FxHashMap;
use wgfc_ir::{
    Atom, BinaryOp, DType, Dim, GatherAxis, Graph, NormKind, Op, Poly, Reg, Scalar, ScalarFn, ScalarNode,
    TensorType, UnaryOp, Value,
};

/// Gives the source of each value's elements, and holds the body of the kernel being built.
pub trait Resolver {
    /// The body so far.
    fn body(&self) -> &Body;
    /// The body so far, to add to.
    fn body_mut(&mut self) -> &mut Body;
    /// The source of element `index` of a value. Where `guard` is false the element is arbitrary and nothing is read.
    fn resolve(&mut self, v: Value, index: &[Poly], guard: Option<ExprId>) -> Result<Source, String>;
    /// Called when the kernel's expressions grow too large. `path` holds the values being computed, each for the one before it; giving
    /// one of them memory would help.
    fn too_large(&mut self, _path: &[Value]) {}
}

impl<R: Resolver> Resolver for &mut R {
    fn body(&self) -> &Body {
        (**self).body()
    }
    fn body_mut(&mut self) -> &mut Body {
        (**self).body_mut()
    }
    fn resolve(&mut self, v: Value, index: &[Poly], guard: Option<ExprId>) -> Result<Source, String> {
        (**self).resolve(v, index, guard)
    }
    fn too_large(&mut self, path: &[Value]) {
        (**self).too_large(path);
    }
}

/// The source of a value's element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is computed where it is read.
    Computed,
    /// A tensor with all elements in row-major order.
    Tensor(TensorId),
    /// A constant too large for one binding, cut into tensors; each with the flat offset at which it ends.
    Segments(Vec<(TensorId, i64)>),
    /// Attention with split keys, whose parts the reader combines.
    Parts(Parts),
    /// An expression of the body that the resolver made.
    Expr(ExprId),
}

impl Source {
    /// The tensors, in order.
    pub fn tensors(&self) -> Vec<TensorId> {
        match self {
            Source::Tensor(t) => vec![*t],
            Source::Segments(segments) => segments.iter().map(|(t, _)| *t).collect(),
            Source::Parts(parts) => vec![parts.sums, parts.scales],
            Source::Computed | Source::Expr(_) => vec![],
        }
    }

    /// The variant of the source, and the number of parts.
    pub fn kind(&self) -> (std::mem::Discriminant<Source>, u32) {
        let count = if let Source::Parts(parts) = self { parts.count } else { 0 };
        (std::mem::discriminant(self), count)
    }
}

/// The most expressions of a kernel, terms of an index expression, and nested inlined values: bounds on the kernel's text and on the
/// driver's compile time.
const MAX_EXPRS: usize = 8192;
const MAX_INDEX: u32 = 400;
const MAX_NESTED: usize = 100;

/// Builds one kernel's body.
pub struct Puller<'a, R: Resolver> {
    /// The graph.
    pub graph: &'a Graph,
    /// Where values come from, and the body so far.
    pub resolver: R,
    /// Extents of the kernel's variables.
    pub domain: Vec<Dim>,
    /// The norms met so far whose row scale is left to the epilogue; only for a product's first operand.
    pub deferred: Option<Vec<Deferred>>,
    /// Whether operators that combine elements are written out, and elements of small constants become literals.
    pub unroll: bool,
    /// The values being computed, each inside the one before it.
    path: Vec<Value>,
    memo: FxHashMap<(Value, Vec<Poly>, Option<ExprId>), ExprId>,
}

/// A norm that was pulled without its scale, `1 / sqrt(Σ square / count + epsilon)`.
#[derive(Clone, Debug)]
pub struct Deferred {
    /// The square of an element of the row.
    pub square: ExprId,
    /// Elements of a row.
    pub count: Dim,
    /// Added to the mean square.
    pub epsilon: f32,
}

impl<'a, R: Resolver> Puller<'a, R> {
    /// A puller that adds to the resolver's body, over the variables of `domain`.
    pub fn new(graph: &'a Graph, resolver: R, domain: Vec<Dim>) -> Self {
        Puller {
            graph,
            resolver,
            domain,
            deferred: None,
            unroll: false,
            path: vec![],
            memo: FxHashMap::default(),
        }
    }

    /// The body so far.
    pub fn body(&self) -> &Body {
        self.resolver.body()
    }

    /// The body so far, to change.
    pub fn body_mut(&mut self) -> &mut Body {
        self.resolver.body_mut()
    }

    /// Adds an expression to the body.
    pub fn push(&mut self, e: Expr, dtype: DType) -> ExprId {
        self.body_mut().push(e, dtype)
    }

    /// Replaces the extents of the variables. Returns the old ones.
    pub fn over(&mut self, domain: Vec<Dim>) -> Vec<Dim> {
        self.memo.clear();
        std::mem::replace(&mut self.domain, domain)
    }

    /// Value `v` at `index`; where `guard` is false the result is arbitrary and nothing is read.
    pub fn pull(&mut self, v: Value, index: &[Poly], guard: Option<ExprId>) -> Result<ExprId, String> {
        let key = (v, index.to_vec(), guard);
        if let Some(e) = self.memo.get(&key) {
            return Ok(*e);
        }
        let wide = |p: &Poly| p.is_too_large() || p.size() > MAX_INDEX;
        if self.path.len() > MAX_NESTED || self.body().len() > MAX_EXPRS || index.iter().any(wide) {
            self.resolver.too_large(&self.path);
            return Err(format!("`{}` makes its kernel too large", self.graph.node(v.node).op.name()));
        }
        let ty = self.graph.ty(v);
        let e = match splat(self.graph, v).or_else(|| self.element(v, index)) {
            Some(s) => self.constant(s),
            None => match self.resolver.resolve(v, index, guard)? {
                Source::Expr(e) => e,
                Source::Parts(parts) => self.join_parts(&parts, ty, index, guard),
                Source::Segments(segments) => {
                    let offset = self.offset(ty, index);
                    self.load_segments(&segments, &offset, ty.dtype, guard)
                }
                Source::Tensor(tensor) => {
                    let offset = self.offset(ty, index);
                    self.push(Expr::Load { tensor, offset, guard }, ty.dtype)
                }
                Source::Computed => {
                    self.path.push(v);
                    let e = self.compute(v, index, guard);
                    self.path.pop();
                    e?
                }
            },
        };
        self.memo.insert(key, e);
        Ok(e)
    }

    /// An element of a small constant at a constant position, as a number.
    fn element(&self, v: Value, index: &[Poly]) -> Option<Scalar> {
        const MOST: usize = 1024;
        let Op::Const(t) = &self.graph.node(v.node).op else { return None };
        if !self.unroll || t.numel() > MOST {
            return None;
        }
        let at = usize::try_from(self.offset(self.graph.ty(v), index).as_const()?).ok()?;
        t.element(at.min(t.numel().checked_sub(1)?))
    }

    /// Element `offset` of a constant cut into segments.
    fn load_segments(
        &mut self,
        segments: &[(TensorId, i64)],
        offset: &Poly,
        dtype: DType,
        guard: Option<ExprId>,
    ) -> ExprId {
        let mut result = None;
        for (i, (tensor, end)) in segments.iter().enumerate().rev() {
            let start = if i == 0 { 0 } else { segments[i - 1].1 };
            let local = offset - &Poly::constant(start);
            let last = i + 1 == segments.len();
            let below = if last { None } else { self.less(offset, &Poly::constant(*end)) };
            let above = if i == 0 { None } else { self.at_least_zero(&local) };
            let mine = self.and(above, below);
            let guard = self.and(guard, mine);
            let e = self.push(Expr::Load { tensor: *tensor, offset: local, guard }, dtype);
            result = Some(match (result, below) {
                (Some(r), Some(c)) => self.push(Expr::Select(c, e, r), dtype),
                _ => e,
            });
        }
        result.unwrap_or_default()
    }

    /// `a` where `c` holds, else `b`. If both apply the same operator and it takes many instructions, its operands are selected and it is
    /// applied once.
    fn chosen(&mut self, c: ExprId, a: ExprId, b: ExprId) -> ExprId {
        const MANY: usize = 32;
        let body = self.body();
        let dtype = body.dtype(a);
        let alike = |x: ExprId, y: ExprId| body.dtype(x) == body.dtype(y);
        let long = alike(a, b) && [a, b].iter().all(|e| length::of_expr(body, *e) >= MANY);
        let e = match (body.expr(a).clone(), body.expr(b).clone()) {
            (Expr::Unary(op, x), Expr::Unary(other, y)) if long && op == other && alike(x, y) => {
                Expr::Unary(op, self.chosen(c, x, y))
            }
            (Expr::Binary(op, x, x2), Expr::Binary(other, y, y2))
                if long && op == other && alike(x, y) && alike(x2, y2) =>
            {
                Expr::Binary(op, self.chosen(c, x, y), self.chosen(c, x2, y2))
            }
            _ if a == b => return a,
            _ => Expr::Select(c, a, b),
        };
        self.push(e, dtype)
    }

    /// The inlined values read so far, each with one of its expressions.
    pub fn inlined(&self) -> Vec<(Value, ExprId)> {
        let mut out: Vec<_> = self
            .memo
            .iter()
            .filter(|((v, ..), e)| {
                let direct = matches!(self.body().expr(**e), Expr::Load { .. } | Expr::Const(_))
                    && matches!(self.graph.node(v.node).op, Op::Input | Op::Const(_));
                !direct
            })
            .map(|((v, ..), e)| (*v, *e))
            .collect();
        out.sort_unstable();
        out.dedup_by_key(|(v, _)| *v);
        out
    }

    /// Value `v` at `index`, computed from its operands even if it is in memory.
    pub fn compute(&mut self, v: Value, index: &[Poly], guard: Option<ExprId>) -> Result<ExprId, String> {
        let graph = self.graph;
        let node = graph.node(v.node);
        match &node.op {
            Op::Map { body, shape } => {
                let mut args = vec![];
                for x in &node.inputs {
                    let at = broadcast_index(graph.ty(*x), shape, index);
                    args.push(self.pull(*x, &at, guard)?);
                }
                self.scalar_fn(body, &args, index)
            }
            Op::View { index: map, fill, .. } => {
                let from = graph.ty(node.inputs[0]);
                let at: Vec<Poly> = map.iter().map(|p| p.subst_vars(index, &self.domain)).collect();
                let Some(fill) = fill else { return self.pull(node.inputs[0], &at, guard) };
                let mut cond = None;
                for (p, d) in at.iter().zip(&from.shape) {
                    if outside(p, d, &self.domain) {
                        return Ok(self.constant(*fill));
                    }
                    let inside = self.inside(p, d);
                    cond = self.and(cond, inside);
                }
                let Some(cond) = cond else { return self.pull(node.inputs[0], &at, guard) };
                let inner_guard = self.and(guard, Some(cond));
                let inner = self.pull(node.inputs[0], &at, inner_guard)?;
                let fill = self.constant(*fill);
                Ok(self.push(Expr::Select(cond, inner, fill), from.dtype))
            }
            Op::Gather { index: axes, .. } => self.gather(&node.inputs, axes, index, guard, &|_| None),
            Op::Concat { axis } => {
                let mut start = Poly::ZERO;
                let mut parts = vec![];
                for x in &node.inputs {
                    let len = &graph.ty(*x).shape[*axis];
                    let local = &index[*axis] - &start;
                    if local.in_range(len, &self.domain) {
                        let mut at = index.to_vec();
                        at[*axis] = local;
                        return self.pull(*x, &at, guard);
                    }
                    parts.push((*x, start.clone(), len.clone()));
                    start = &start + len;
                }
                parts.retain(|(_, _, len)| !len.is(0));
                let mut result = None;
                for (i, (x, start, len)) in parts.iter().enumerate().rev() {
                    let mut at = index.to_vec();
                    at[*axis] = &at[*axis] - start;
                    let last = i + 1 == parts.len();
                    let below = if last { None } else { self.less(&at[*axis], len) };
                    let above = if i == 0 { None } else { self.at_least_zero(&at[*axis]) };
                    let mine = self.and(above, below);
                    let inner_guard = self.and(guard, mine);
                    let e = self.pull(*x, &at, inner_guard)?;
                    result = Some(match (result, below) {
                        (Some(r), Some(c)) => self.chosen(c, e, r),
                        _ => e,
                    });
                }
                match result {
                    Some(r) => Ok(r),
                    None => Ok(self.constant(Scalar::from_i64(node.outputs[0].dtype, 0))),
                }
            }
            Op::Norm { kind: NormKind::Rms, axes, epsilon } if self.deferred.is_some() => {
                let narrow = self.pull(node.inputs[0], index, guard)?;
                let x = self.cast(narrow, DType::F32);
                let square = self.binary(BinaryOp::Mul, x, x);
                let count = axes.iter().map(|a| node.outputs[0].shape[*a].clone()).product();
                let epsilon = f32::from_bits(*epsilon);
                self.deferred.get_or_insert_default().push(Deferred { square, count, epsilon });
                Ok(self.cast(narrow, node.outputs[0].dtype))
            }
            _ if self.unroll || is_small(graph, v.node) => self.expand(v, index, guard),
            op => Err(format!("`{}` cannot be computed in place", op.name())),
        }
    }

    /// The element of a Gather at `index`; `given` supplies operands whose value is already computed.
    pub fn gather(
        &mut self,
        inputs: &[Value],
        axes: &[GatherAxis],
        index: &[Poly],
        mut guard: Option<ExprId>,
        given: &dyn Fn(usize) -> Option<ExprId>,
    ) -> Result<ExprId, String> {
        let data = self.graph.ty(inputs[0]).shape.clone();
        let mut place = vec![];
        for (ax, d) in axes.iter().zip(&data) {
            place.push(match ax {
                GatherAxis::Affine(p) => p.subst_vars(index, &self.domain),
                GatherAxis::Data { input, at } => {
                    let e = match given(*input) {
                        Some(e) => self.saturated(e),
                        None => self.index_element(inputs[*input], at, index, guard)?,
                    };
                    let inside = self.wrap_and_clamp(e, d);
                    if inside != e {
                        // An axis of extent 0 has no element to clamp to.
                        let any = self.less(&Poly::ZERO, d);
                        guard = self.and(guard, any);
                    }
                    Poly::atom(Atom::Data(inside))
                }
            });
        }
        self.pull(inputs[0], &place, guard)
    }

    /// The body of a Map with its operands at `args`.
    pub fn scalar_fn(&mut self, f: &ScalarFn, args: &[ExprId], index: &[Poly]) -> Result<ExprId, String> {
        let types: Vec<DType> = args.iter().map(|a| self.body().dtype(*a)).collect();
        let types = f.types(&types)?;
        let mut ids: Vec<ExprId> = Vec::with_capacity(f.nodes.len());
        for (n, ty) in f.nodes.iter().zip(types) {
            let at = |i: &u32| ids[*i as usize];
            let e = match n {
                ScalarNode::Arg(i) => {
                    ids.push(args[*i as usize]);
                    continue;
                }
                ScalarNode::Const(s) => Expr::Const(*s),
                ScalarNode::Index(p) => Expr::Index(p.subst_vars(index, &self.domain)),
                ScalarNode::Unary(op, a) => Expr::Unary(*op, at(a)),
                ScalarNode::Binary(op, a, b) => {
                    if let Some(same) = self.body().unchanged(*op, at(a), at(b)) {
                        ids.push(same);
                        continue;
                    }
                    match self.known(*op, at(a), at(b)) {
                        Some(known) => Expr::Const(Scalar::bool(known)),
                        None => Expr::Binary(*op, at(a), at(b)),
                    }
                }
                ScalarNode::Select(c, a, b) => match self.body().expr(at(c)) {
                    Expr::Const(c) => {
                        ids.push(if c.bits != 0 { at(a) } else { at(b) });
                        continue;
                    }
                    _ => Expr::Select(at(c), at(a), at(b)),
                },
                ScalarNode::Cast(to, a) => {
                    if self.body().dtype(at(a)) == *to {
                        ids.push(at(a));
                        continue;
                    }
                    match self.as_index(at(a)).and_then(|p| p.as_const()) {
                        // Only integers that f32 is sure to represent exactly.
                        Some(n) if *to == DType::F32 && n.abs() <= 1 << 24 => {
                            Expr::Const(Scalar::from_i64(*to, n))
                        }
                        _ => Expr::Cast(*to, at(a)),
                    }
                }
                ScalarNode::Bitcast(to, a) => Expr::Bitcast(*to, at(a)),
            };
            ids.push(self.push(e, ty));
        }
        ids.last().copied().ok_or_else(|| "empty body".into())
    }

    /// The flat element offset of `index` in a row-major tensor.
    pub fn offset(&self, ty: &TensorType, index: &[Poly]) -> Poly {
        flat_offset(&ty.shape, index, &self.domain)
    }

    /// An element of an index operand as an `i32`, saturated.
    pub fn index_element(
        &mut self,
        indices: Value,
        at: &[Poly],
        index: &[Poly],
        guard: Option<ExprId>,
    ) -> Result<ExprId, String> {
        let at: Vec<Poly> = at.iter().map(|p| p.subst_vars(index, &self.domain)).collect();
        let e = self.pull(indices, &at, guard)?;
        Ok(self.saturated(e))
    }

    /// An integer saturated to `i32`.
    fn saturated(&mut self, e: ExprId) -> ExprId {
        let i32 = DType::I32;
        if self.body().dtype(e) != DType::I64 {
            return self.cast(e, i32);
        }
        match *self.body().expr(e) {
            Expr::Const(s) => {
                let v = s.as_i64().clamp(i64::from(i32::MIN), i64::from(i32::MAX));
                return self.constant(Scalar::from_i64(i32, v));
            }
            // A value converted from at most 32 bits fits.
            Expr::Cast(_, a) if self.body().dtype(a).reg() == Reg::I32 => return self.cast(a, i32),
            _ => {}
        }
        let low = self.cast(e, i32);
        let back = self.cast(low, DType::I64);
        let fits = self.push(Expr::Binary(BinaryOp::Eq, back, e), DType::Bool);
        let zero = self.constant(Scalar::from_i64(DType::I64, 0));
        let negative = self.push(Expr::Binary(BinaryOp::Lt, e, zero), DType::Bool);
        let [least, most] = [i32::MIN, i32::MAX].map(|v| self.constant(Scalar::from_i64(i32, v.into())));
        let end = self.push(Expr::Select(negative, least, most), i32);
        self.push(Expr::Select(fits, low, end), i32)
    }

    /// A conversion, if one is needed.
    pub fn cast(&mut self, e: ExprId, to: DType) -> ExprId {
        if self.body().dtype(e) == to {
            return e;
        }
        if let Expr::Const(s) = self.body().expr(e)
            && s.dtype.is_int()
            && to.is_int()
            && to.bits() >= 32
        {
            let s = wgfc_ir::storage::from_raw(to, wgfc_ir::storage::to_raw(to, *s));
            return self.constant(s);
        }
        self.push(Expr::Cast(to, e), to)
    }

    /// `e` with negative values counted from the end, clamped to `0..d`.
    fn wrap_and_clamp(&mut self, e: ExprId, d: &Dim) -> ExprId {
        let i32 = DType::I32;
        if let Some(i) = self.as_index(e)
            && i.in_range(d, &self.domain)
        {
            return e;
        }
        if self.is_masked(e) {
            let last = self.push(Expr::Index(d - &Poly::ONE), i32);
            return self.push(Expr::Binary(BinaryOp::Min, e, last), i32);
        }
        let wrapped = self.wrap(e, d);
        let zero = self.constant(Scalar::from_i64(i32, 0));
        let last = self.push(Expr::Index(d - &Poly::ONE), i32);
        let low = self.push(Expr::Binary(BinaryOp::Min, wrapped, last), i32);
        self.push(Expr::Binary(BinaryOp::Max, low, zero), i32)
    }

    /// Whether the sign bit of `e` is masked off.
    fn is_masked(&self, e: ExprId) -> bool {
        let Expr::Binary(BinaryOp::And, _, mask) = self.body().expr(e) else { return false };
        matches!(self.body().expr(*mask), Expr::Const(s) if s.dtype == DType::I32 && s.as_i64() >= 0)
    }

    /// `e` with negative values counted from the end.
    pub fn wrap(&mut self, e: ExprId, d: &Dim) -> ExprId {
        let i32 = DType::I32;
        let zero = self.constant(Scalar::from_i64(i32, 0));
        let negative = self.push(Expr::Binary(BinaryOp::Lt, e, zero), DType::Bool);
        let extent = self.push(Expr::Index(d.clone()), i32);
        let from_end = self.push(Expr::Binary(BinaryOp::Add, e, extent), i32);
        self.push(Expr::Select(negative, from_end, e), i32)
    }

    /// The result of comparing two index expressions, if it is the same all over the domain.
    fn known(&self, op: BinaryOp, a: ExprId, b: ExprId) -> Option<bool> {
        let (small, large, strict) = match op {
            BinaryOp::Lt => (a, b, 1),
            BinaryOp::Gt => (b, a, 1),
            BinaryOp::Le => (a, b, 0),
            BinaryOp::Ge => (b, a, 0),
            _ => return None,
        };
        if !matches!(self.body().dtype(a), DType::I32 | DType::I64) {
            return None;
        }
        let (small, large) = (self.as_index(small)?, self.as_index(large)?);
        if (&(&large - &small) - &Poly::constant(strict)).proves_nonneg(&self.domain) {
            return Some(true);
        }
        (&(&small - &large) - &Poly::constant(1 - strict)).proves_nonneg(&self.domain).then_some(false)
    }

    fn as_index(&self, e: ExprId) -> Option<Poly> {
        match self.body().expr(e) {
            Expr::Index(p) => Some(p.clone()),
            Expr::Const(s) if s.dtype.is_int() => Some(Poly::constant(s.as_i64())),
            Expr::Cast(to, a) => {
                let p = self.as_index(*a)?;
                let kept = match (to, p.as_const()) {
                    (DType::I64 | DType::F32, _) => true,
                    (DType::I32, c) => c.is_none_or(|c| i32::try_from(c).is_ok()),
                    _ => false,
                };
                kept.then_some(p)
            }
            _ => None,
        }
    }

    /// A constant.
    pub fn constant(&mut self, s: Scalar) -> ExprId {
        self.push(Expr::Const(s), s.dtype)
    }
    /// An `f32` constant.
    pub fn f32(&mut self, v: f64) -> ExprId {
        self.constant(Scalar::from_f64(DType::F32, v))
    }
    /// An operator of one operand.
    pub fn unary(&mut self, op: UnaryOp, a: ExprId) -> ExprId {
        let ty = self.body().dtype(a);
        self.push(Expr::Unary(op, a), ty)
    }
    /// An operator of two operands of one type.
    pub fn binary(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
        let ty = if op.is_comparison() { DType::Bool } else { self.body().dtype(a) };
        self.push(Expr::Binary(op, a, b), ty)
    }
    /// An index expression.
    pub fn index(&mut self, p: Poly) -> ExprId {
        self.push(Expr::Index(p), DType::I32)
    }
    /// The conjunction of the conditions that are present.
    pub fn and(&mut self, a: Option<ExprId>, b: Option<ExprId>) -> Option<ExprId> {
        match (a, b) {
            (Some(a), Some(b)) if a != b => Some(self.push(Expr::Binary(BinaryOp::And, a, b), DType::Bool)),
            (a, b) => a.or(b),
        }
    }

    fn less(&mut self, p: &Poly, d: &Dim) -> Option<ExprId> {
        let below = |p: &Poly| (&(d - p) - &Poly::ONE).proves_nonneg(&self.domain);
        if below(p) || matches!(p.as_atom(), Some(Atom::Min(x, y)) if below(x) || below(y)) {
            return None;
        }
        let (a, b) = (self.index(p.clone()), self.index(d.clone()));
        Some(self.binary(BinaryOp::Lt, a, b))
    }
    fn at_least_zero(&mut self, p: &Poly) -> Option<ExprId> {
        if p.proves_nonneg(&self.domain) {
            return None;
        }
        let a = self.index(p.clone());
        let zero = self.constant(Scalar::from_i64(DType::I32, 0));
        Some(self.binary(BinaryOp::Ge, a, zero))
    }
    /// The condition that `p` lies in `0..d`; `None` if it always does.
    pub fn inside(&mut self, p: &Poly, d: &Dim) -> Option<ExprId> {
        let low = self.at_least_zero(p);
        let high = self.less(p, d);
        self.and(low, high)
    }
}

/// Whether `p` provably lies outside `0..d` all over the domain.
pub fn outside(p: &Poly, d: &Dim, domain: &[Dim]) -> bool {
    (p - d).proves_nonneg(domain) || (&-p - &Poly::ONE).proves_nonneg(domain)
}

/// The single value of a constant whose elements are all equal, if it is small.
pub fn splat(graph: &Graph, v: Value) -> Option<Scalar> {
    let Op::Const(t) = &graph.node(v.node).op else { return None };
    if t.numel() == 0 || t.numel() > 4096 {
        return None;
    }
    let s = t.scalars()?;
    s.iter().all(|x| *x == s[0]).then_some(s[0])
}

/// The position in an operand of type `x` that broadcasting pairs with `index` in `shape`.
pub fn broadcast_index(x: &TensorType, shape: &[Dim], index: &[Poly]) -> Vec<Poly> {
    let skip = shape.len() - x.rank();
    x.shape
        .iter()
        .enumerate()
        .map(|(i, d)| if d.is(1) { Poly::ZERO } else { index[skip + i].clone() })
        .collect()
}

/// The flat element offset of `index` in a row-major tensor of this shape.
pub fn flat_offset(shape: &[Dim], index: &[Poly], domain: &[Dim]) -> Poly {
    let mut flat = Poly::ZERO;
    for (d, p) in shape.iter().zip(index) {
        flat = &(&flat * d) + p;
    }
    // Substituting nothing simplifies divisions against remainders.
    flat.subst(&|_| None, domain)
}

/// The position of flat element `flat` in a row-major tensor of this shape.
pub fn unflatten(flat: &Poly, shape: &[Dim], domain: &[Dim]) -> Vec<Poly> {
    let mut out = vec![Poly::ZERO; shape.len()];
    let mut rest = flat.clone();
    let outermost = shape.iter().position(|d| !d.is(1)).unwrap_or(0);
    for i in (0..shape.len()).rev() {
        if shape[i].is(1) {
            continue;
        }
        if i == outermost {
            out[i] = rest.clone();
        } else {
            out[i] = rest.modulo(&shape[i], domain);
            rest = rest.div(&shape[i], domain);
        }
    }
    out
}
