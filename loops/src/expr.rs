//! Expressions.

use crate::{Kernel, TensorId};
use std::sync::Arc;
use wgfc_ir::{BinaryOp, DType, Poly, ReduceOp, Scalar, ScalarFn, UnaryOp};

/// A value that a statement computes. It has no effect.
///
/// ```
/// use wgfc_ir::{BinaryOp, DType, Scalar};
/// use wgfc_loops::Expr;
/// let two = Expr::Const(Scalar::from_f64(DType::F32, 2.0));
/// let four = Expr::binary(BinaryOp::Mul, two.clone(), two);
/// assert!(matches!(four, Expr::Binary(BinaryOp::Mul, ..)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A constant.
    Const(Scalar),
    /// An index expression as an `i32`. [`Atom::Data`](wgfc_ir::Atom::Data) are named values.
    Index(Poly),
    /// A named value: its number in [`Kernel::values`].
    Value(u32),
    /// An element of a tensor. Where `guard` (a bool) is false nothing is read and the value is arbitrary.
    Load {
        /// Which tensor.
        tensor: TensorId,
        /// The position along each axis, inside the tensor whenever `guard` holds.
        at: Vec<Poly>,
        /// When it may be read.
        guard: Option<Arc<Expr>>,
    },
    /// One operand.
    Unary(UnaryOp, Arc<Expr>),
    /// Two operands of one type.
    Binary(BinaryOp, Arc<Expr>, Arc<Expr>),
    /// `if c { a } else { b }`; both values are computed.
    Select(Arc<Expr>, Arc<Expr>, Arc<Expr>),
    /// Conversion, as [`ScalarNode::Cast`](wgfc_ir::ScalarNode::Cast).
    Cast(DType, Arc<Expr>),
    /// The bits as another type of the same width.
    Bitcast(DType, Arc<Expr>),
    /// A value made of those of a subgroup.
    Subgroup(Combined, Arc<Expr>),
}

/// The result of a subgroup operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combined {
    /// The values of all invocations combined.
    All(ReduceOp),
    /// The value of the invocation whose number in the subgroup differs in these bits.
    Xor(u32),
}

impl Expr {
    /// `op(a)`.
    pub fn unary(op: UnaryOp, a: Expr) -> Expr {
        Expr::Unary(op, Arc::new(a))
    }
    /// `op(a, b)`.
    pub fn binary(op: BinaryOp, a: Expr, b: Expr) -> Expr {
        Expr::Binary(op, Arc::new(a), Arc::new(b))
    }
    /// `if c { a } else { b }`.
    pub fn select(c: Expr, a: Expr, b: Expr) -> Expr {
        Expr::Select(Arc::new(c), Arc::new(a), Arc::new(b))
    }
    /// Conversion to another type.
    pub fn cast(to: DType, a: Expr) -> Expr {
        Expr::Cast(to, Arc::new(a))
    }
    /// An element of a tensor.
    pub fn load(tensor: TensorId, at: Vec<Poly>) -> Expr {
        Expr::Load { tensor, at, guard: None }
    }
    /// A comparison of two index expressions.
    pub fn compare(op: BinaryOp, a: Poly, b: Poly) -> Expr {
        Expr::binary(op, Expr::Index(a), Expr::Index(b))
    }

    /// The operands, guards included.
    pub fn operands(&self) -> Vec<&Expr> {
        match self {
            Expr::Const(_) | Expr::Index(_) | Expr::Value(_) => vec![],
            Expr::Load { guard, .. } => guard.iter().map(|g| &**g).collect(),
            Expr::Unary(_, a) | Expr::Cast(_, a) | Expr::Bitcast(_, a) | Expr::Subgroup(_, a) => vec![a],
            Expr::Binary(_, a, b) => vec![a, b],
            Expr::Select(c, a, b) => vec![c, a, b],
        }
    }

    /// The index expressions of this expression itself, without its operands'.
    pub fn indices(&self) -> &[Poly] {
        match self {
            Expr::Index(p) => std::slice::from_ref(p),
            Expr::Load { at, .. } => at,
            _ => &[],
        }
    }

    /// Calls `f` for this expression and all below it, operands first.
    pub fn visit<'e>(&'e self, f: &mut dyn FnMut(&'e Expr)) {
        self.operands().into_iter().for_each(|e| e.visit(f));
        f(self);
    }

    /// This expression with `index` applied to all index expressions and then `change` to all expressions, operands first.
    pub fn map(&self, index: &dyn Fn(&Poly) -> Poly, change: &dyn Fn(Expr) -> Expr) -> Expr {
        let of = |e: &Arc<Expr>| Arc::new(e.map(index, change));
        change(match self {
            Expr::Const(_) | Expr::Value(_) => self.clone(),
            Expr::Index(p) => Expr::Index(index(p)),
            Expr::Load { tensor, at, guard } => Expr::Load {
                tensor: *tensor,
                at: at.iter().map(index).collect(),
                guard: guard.as_ref().map(of),
            },
            Expr::Unary(op, a) => Expr::Unary(*op, of(a)),
            Expr::Binary(op, a, b) => Expr::Binary(*op, of(a), of(b)),
            Expr::Select(c, a, b) => Expr::Select(of(c), of(a), of(b)),
            Expr::Cast(t, a) => Expr::Cast(*t, of(a)),
            Expr::Bitcast(t, a) => Expr::Bitcast(*t, of(a)),
            Expr::Subgroup(op, a) => Expr::Subgroup(*op, of(a)),
        })
    }

    /// Its type in a kernel.
    ///
    /// # Errors
    /// The operation that its operands' types do not allow, or what the kernel does not have.
    pub fn dtype(&self, kernel: &Kernel) -> Result<DType, String> {
        let only = |f: ScalarFn, args: &[&Arc<Expr>]| {
            let types: Vec<DType> = args.iter().map(|a| a.dtype(kernel)).collect::<Result<_, _>>()?;
            f.types(&types)?.last().copied().ok_or_else(|| "an empty function".to_owned())
        };
        match self {
            Expr::Const(s) => Ok(s.dtype),
            Expr::Index(_) => Ok(DType::I32),
            Expr::Value(v) => {
                let named = kernel.values.get(*v as usize).ok_or_else(|| format!("there is no value {v}"))?;
                Ok(named.dtype)
            }
            Expr::Load { tensor, at, guard } => {
                let t = kernel.tensors.get(*tensor).ok_or_else(|| format!("there is no tensor {tensor}"))?;
                if at.len() != t.shape.len() {
                    return Err(format!(
                        "`{}` has {} axes and is read at {} positions",
                        t.name,
                        t.shape.len(),
                        at.len()
                    ));
                }
                match guard.as_ref().map(|g| g.dtype(kernel)).transpose()? {
                    None | Some(DType::Bool) => Ok(t.dtype),
                    Some(other) => Err(format!("`{}` is read under a guard of type {other}", t.name)),
                }
            }
            Expr::Unary(op, a) => only(ScalarFn::unary(*op), &[a]),
            Expr::Binary(op, a, b) => only(ScalarFn::binary(*op), &[a, b]),
            Expr::Select(c, a, b) => only(ScalarFn::select(), &[c, a, b]),
            Expr::Cast(t, a) => a.dtype(kernel).map(|_| *t),
            Expr::Bitcast(t, a) => {
                let from = a.dtype(kernel)?;
                if from.bits() == t.bits() { Ok(*t) } else { Err(format!("bitcast of {from} to {t}")) }
            }
            Expr::Subgroup(_, a) => {
                let t = a.dtype(kernel)?;
                let held = t.bits() == 32 && t != DType::Bool;
                if held { Ok(t) } else { Err(format!("a subgroup operation on {t}")) }
            }
        }
    }
}
