//! Scalar expressions of kernels.

use super::TensorId;
use rustc_hash::FxHashMap;
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly, Scalar, UnaryOp};

/// Index of an [`Expr`] in its [`Body`].
pub type ExprId = u32;

/// A scalar expression of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A constant.
    Const(Scalar),
    /// An index expression as an `i32`.
    Index(Poly),
    /// Element `offset` of a tensor. Where `guard` (a bool) is false nothing is read and the value is arbitrary.
    Load {
        /// Which tensor.
        tensor: TensorId,
        /// Flat element offset; inside the tensor whenever `guard` holds.
        offset: Poly,
        /// When it may be read.
        guard: Option<ExprId>,
    },
    /// Result `i` of the kernel's reductions.
    Acc(u32),
    /// Element `at` of an array in workgroup memory. Where `guard` (a bool) is false the value is arbitrary.
    Shared {
        /// Which array.
        array: u32,
        /// Which element; inside the array whenever `guard` holds.
        at: Poly,
        /// When it may be read.
        guard: Option<ExprId>,
    },
    /// One operand.
    Unary(UnaryOp, ExprId),
    /// Two operands of one type.
    Binary(BinaryOp, ExprId, ExprId),
    /// `if c { a } else { b }`.
    Select(ExprId, ExprId, ExprId),
    /// Conversion, as [`ScalarNode::Cast`](wgfc_ir::ScalarNode::Cast).
    Cast(DType, ExprId),
    /// The bits of an expression as another type.
    Bitcast(DType, ExprId),
}

impl Expr {
    /// This expression with its operands renumbered by `of` and its index expressions rewritten by `index`.
    pub fn mapped(&self, of: impl Fn(ExprId) -> ExprId, mut index: impl FnMut(&Poly) -> Poly) -> Expr {
        match self {
            Expr::Const(_) | Expr::Acc(_) => self.clone(),
            Expr::Index(p) => Expr::Index(index(p)),
            Expr::Load { tensor, offset, guard } => {
                Expr::Load { tensor: *tensor, offset: index(offset), guard: guard.map(of) }
            }
            Expr::Shared { array, at, guard } => {
                Expr::Shared { array: *array, at: index(at), guard: guard.map(of) }
            }
            Expr::Unary(op, a) => Expr::Unary(*op, of(*a)),
            Expr::Binary(op, a, b) => Expr::Binary(*op, of(*a), of(*b)),
            Expr::Select(c, a, b) => Expr::Select(of(*c), of(*a), of(*b)),
            Expr::Cast(t, a) => Expr::Cast(*t, of(*a)),
            Expr::Bitcast(t, a) => Expr::Bitcast(*t, of(*a)),
        }
    }

    /// Its index expression, if it has one.
    pub fn index(&self) -> Option<&Poly> {
        match self {
            Expr::Index(p) | Expr::Load { offset: p, .. } | Expr::Shared { at: p, .. } => Some(p),
            _ => None,
        }
    }
}

/// An index expression with its data renumbered.
pub fn renumbered(p: &Poly, of: impl Fn(ExprId) -> ExprId, domain: &[Dim]) -> Poly {
    if p.data().is_empty() {
        return p.clone();
    }
    let rename = |a: &Atom| match a {
        Atom::Data(d) => Some(Poly::atom(Atom::Data(of(*d)))),
        _ => None,
    };
    p.subst(&rename, domain)
}

/// An arena of expressions without duplicates, operands before users.
#[derive(Clone, Debug, Default)]
pub struct Body {
    exprs: Vec<(Expr, DType)>,
    known: FxHashMap<Expr, ExprId>,
}

impl Body {
    /// The operand that equals an operation's result bit for bit: `a` of `a · 1`, `a / 1` and `a − 0`, and for integers of `a + 0`.
    pub fn unchanged(&self, op: BinaryOp, a: ExprId, b: ExprId) -> Option<ExprId> {
        let number = |e: ExprId, n: i64| match self.expr(e) {
            Expr::Const(s) if s.dtype.is_float() => s.bits == (n as f64).to_bits(),
            Expr::Const(s) if s.dtype.is_int() => s.as_i64() == n,
            _ => false,
        };
        match op {
            BinaryOp::Mul if number(a, 1) => Some(b),
            BinaryOp::Mul | BinaryOp::Div if number(b, 1) => Some(a),
            BinaryOp::Sub if number(b, 0) => Some(a),
            BinaryOp::Add if self.dtype(a).is_int() && number(b, 0) => Some(a),
            BinaryOp::Add if self.dtype(a).is_int() && number(a, 0) => Some(b),
            _ => None,
        }
    }

    /// Adds an expression of element type `dtype`, or returns the equal one.
    pub fn push(&mut self, e: Expr, dtype: DType) -> ExprId {
        if let Some(id) = self.known.get(&e) {
            return *id;
        }
        self.append(e, dtype)
    }
    /// Adds an expression even if there is an equal one.
    pub(super) fn append(&mut self, e: Expr, dtype: DType) -> ExprId {
        let id = self.exprs.len() as ExprId;
        self.known.insert(e.clone(), id);
        self.exprs.push((e, dtype));
        id
    }
    /// Redirects loads: `to` maps an element of a tensor to its new place.
    pub(super) fn move_loads(&mut self, to: &dyn Fn(TensorId, &Poly) -> (TensorId, Poly)) {
        for (e, _) in &mut self.exprs {
            if let Expr::Load { tensor, offset, .. } = e {
                (*tensor, *offset) = to(*tensor, offset);
            }
        }
        self.known = self.exprs.iter().enumerate().map(|(i, (e, _))| (e.clone(), i as ExprId)).collect();
    }
    /// The expression, if it is there.
    pub fn find(&self, e: &Expr) -> Option<ExprId> {
        self.known.get(e).copied()
    }
    /// An expression.
    pub fn expr(&self, id: ExprId) -> &Expr {
        &self.exprs[id as usize].0
    }
    /// Its element type.
    pub fn dtype(&self, id: ExprId) -> DType {
        self.exprs[id as usize].1
    }
    /// The number of expressions.
    pub fn len(&self) -> usize {
        self.exprs.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty()
    }
    /// All expressions with their types, in evaluation order.
    pub fn iter(&self) -> impl Iterator<Item = (ExprId, &Expr, DType)> {
        self.exprs.iter().enumerate().map(|(i, (e, t))| (i as ExprId, e, *t))
    }
    /// The expressions that one reads directly, including those inside its index expressions.
    pub fn operands(&self, id: ExprId) -> Vec<ExprId> {
        match self.expr(id) {
            Expr::Const(_) | Expr::Acc(_) => vec![],
            Expr::Index(p) => p.data().into_iter().collect(),
            Expr::Load { offset: at, guard, .. } | Expr::Shared { at, guard, .. } => {
                at.data().into_iter().chain(*guard).collect()
            }
            Expr::Unary(_, a) | Expr::Cast(_, a) | Expr::Bitcast(_, a) => vec![*a],
            Expr::Binary(_, a, b) => vec![*a, *b],
            Expr::Select(a, b, c) => vec![*a, *b, *c],
        }
    }
    /// Everything from which the roots' values are computed, themselves included, in evaluation order: [`Body::reachable`] without the
    /// positions of loads.
    pub fn values(&self, roots: &[ExprId]) -> Vec<ExprId> {
        let mut seen = vec![false; self.exprs.len()];
        let mut stack = roots.to_vec();
        while let Some(id) = stack.pop() {
            if !std::mem::replace(&mut seen[id as usize], true) {
                match self.expr(id) {
                    Expr::Load { guard, .. } | Expr::Shared { guard, .. } => stack.extend(*guard),
                    _ => stack.extend(self.operands(id)),
                }
            }
        }
        (0..self.exprs.len() as ExprId).filter(|i| seen[*i as usize]).collect()
    }
    /// Everything the roots depend on, themselves included, in evaluation order.
    pub fn reachable(&self, roots: &[ExprId]) -> Vec<ExprId> {
        let mut seen = vec![false; self.exprs.len()];
        let mut stack = roots.to_vec();
        while let Some(id) = stack.pop() {
            if !std::mem::replace(&mut seen[id as usize], true) {
                stack.extend(self.operands(id));
            }
        }
        (0..self.exprs.len() as ExprId).filter(|i| seen[*i as usize]).collect()
    }
}
