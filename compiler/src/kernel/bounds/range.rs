//! The expressions of kernels, for proofs about their ranges.

use crate::kernel::places::Place;
use crate::kernel::{Body, Expr, ExprId, ReduceKind};
use wgfc_ir::DType;
use wgfc_ir::bounds::{Node, Values};

/// Without the results of a family.
impl Values for Body {
    fn node(&self, e: ExprId) -> Node<'_> {
        match self.expr(e) {
            Expr::Index(p) => Node::Index(p),
            Expr::Const(s) => Node::Const(*s),
            Expr::Cast(to, a) => Node::Cast(*to, *a),
            Expr::Unary(op, a) => Node::Unary(*op, *a),
            Expr::Binary(op, a, b) => Node::Binary(*op, *a, *b),
            Expr::Select(c, a, b) => Node::Select(*c, *a, *b),
            _ => Node::Other,
        }
    }
    fn dtype(&self, e: ExprId) -> DType {
        Body::dtype(self, e)
    }
}

/// The expressions at a place, where results of the family have a range.
pub struct At<'k> {
    pub body: &'k Body,
    pub place: &'k Place<'k>,
}

impl Values for At<'_> {
    fn node(&self, e: ExprId) -> Node<'_> {
        let Expr::Acc(acc) = self.body.expr(e) else { return self.body.node(e) };
        let result = self.place.results.iter().find(|r| r.acc == *acc);
        match result.and_then(|r| r.reduction) {
            Some(r) if matches!(r.kind, ReduceKind::Sum) && r.dtype.is_int() => Node::Sum(r.value),
            _ => Node::Other,
        }
    }
    fn dtype(&self, e: ExprId) -> DType {
        self.body.dtype(e)
    }
}
