//! Scalars and scalar functions: the body of a [`Map`](crate::Op::Map).

use crate::dtype::DType;
use crate::poly::Poly;
use crate::special::{Special, Special2};
pub use wgfc_program::scalar::Scalar;

macro_rules! named_ops {
    ($(#[$meta:meta])* $enum:ident of $special:ident { $($(#[$doc:meta])* $variant:ident $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $enum {
            $($(#[$doc])* $variant,)*
            /// A [special function](crate::special) of floats.
            Special($special),
        }
        impl $enum {
            /// Every operator with this number of operands, without special functions.
            pub const ALL: &'static [$enum] = &[$($enum::$variant,)*];
            /// The name in the text format.
            pub fn name(self) -> &'static str {
                match self { $($enum::$variant => $name,)* $enum::Special(f) => f.name() }
            }
            /// The operator of that name.
            pub fn from_name(s: &str) -> Option<$enum> {
                match s {
                    $($name => Some($enum::$variant),)*
                    _ => $special::from_name(s).map($enum::Special),
                }
            }
        }
    };
}

named_ops! {
    /// Scalar operators of one operand; the result has the operand's type unless said otherwise.
    UnaryOp of Special {
        /// `-x`.
        Neg "neg",
        /// `|x|`.
        Abs "abs",
        /// -1, 0 or 1.
        Sign "sign",
        /// Rounds towards -∞.
        Floor "floor",
        /// Rounds towards +∞.
        Ceil "ceil",
        /// Rounds to the nearest integer, ties to even.
        Round "round",
        /// Rounds towards zero.
        Trunc "trunc",
        /// Square root.
        Sqrt "sqrt",
        /// `1/√x`.
        Rsqrt "rsqrt",
        /// `1/x`.
        Recip "recip",
        /// eˣ.
        Exp "exp",
        /// Natural logarithm.
        Log "log",
        /// Sine.
        Sin "sin",
        /// Cosine.
        Cos "cos",
        /// Tangent.
        Tan "tan",
        /// Inverse sine.
        Asin "asin",
        /// Inverse cosine.
        Acos "acos",
        /// Inverse tangent.
        Atan "atan",
        /// Hyperbolic sine.
        Sinh "sinh",
        /// Hyperbolic cosine.
        Cosh "cosh",
        /// Hyperbolic tangent.
        Tanh "tanh",
        /// Inverse hyperbolic sine.
        Asinh "asinh",
        /// Inverse hyperbolic cosine.
        Acosh "acosh",
        /// Inverse hyperbolic tangent.
        Atanh "atanh",
        /// The error function.
        Erf "erf",
        /// `1/(1+e⁻ˣ)`, without overflow.
        Sigmoid "sigmoid",
        /// Logical not of a bool, bitwise not of an integer.
        Not "not",
        /// Whether the operand is NaN, as a bool.
        IsNan "is_nan",
        /// Whether the operand is plus or minus infinity, as a bool.
        IsInf "is_inf",
    }
}

named_ops! {
    /// Scalar operators with two operands of the same type; comparisons give bool.
    BinaryOp of Special2 {
        /// Sum.
        Add "add",
        /// Difference.
        Sub "sub",
        /// Product.
        Mul "mul",
        /// Quotient; integers truncate towards zero, and division by zero gives 0.
        Div "div",
        /// The quotient of floats, correctly rounded; `div` may be some units in the last place off.
        Quot "quot",
        /// Remainder with the sign of the dividend (C's `%`, `fmod`).
        Rem "rem",
        /// Remainder with the sign of the divisor (Python's `%`).
        Mod "mod",
        /// Power.
        Pow "pow",
        /// The greatest common divisor of two integers. It is not negative unless it overflows, and 0 for two zeros.
        Gcd "gcd",
        /// The smaller of both.
        Min "min",
        /// The larger of both.
        Max "max",
        /// Logical or bitwise and.
        And "and",
        /// Logical or bitwise or.
        Or "or",
        /// Logical or bitwise exclusive or.
        Xor "xor",
        /// Shift left; a shift by at least the width gives 0.
        Shl "shl",
        /// Shift right (arithmetic for signed types); a shift by at least the width gives 0.
        Shr "shr",
        /// Equal.
        Eq "eq",
        /// Not equal.
        Ne "ne",
        /// Less.
        Lt "lt",
        /// Less or equal.
        Le "le",
        /// Greater.
        Gt "gt",
        /// Greater or equal.
        Ge "ge",
    }
}

impl BinaryOp {
    /// Whether the result is a bool whatever the operands.
    pub fn is_comparison(self) -> bool {
        use BinaryOp::*;
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }
    /// Whether the operands may be swapped.
    pub fn is_commutative(self) -> bool {
        use BinaryOp::*;
        matches!(self, Add | Mul | Gcd | Min | Max | And | Or | Xor | Eq | Ne)
    }
}

/// A node of a [`ScalarFn`]; operands are indices of earlier nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ScalarNode {
    /// Operand `i` of the Map, at the element that broadcasting assigns to the output element.
    Arg(u32),
    /// A constant.
    Const(Scalar),
    /// An index expression over the variables of the output (`%d` is the position along axis `d`) and symbols, as an
    /// `i32`.
    Index(Poly),
    /// An operator of one operand.
    Unary(UnaryOp, u32),
    /// An operator with two operands of the same type.
    Binary(BinaryOp, u32, u32),
    /// `if c { a } else { b }`.
    Select(u32, u32, u32),
    /// A conversion. To bool: whether the operand is not 0. Floats are truncated to integers. Narrowing rounds or
    /// wraps; saturation must be expressed with Min and Max.
    Cast(DType, u32),
    /// The bits reinterpreted as another type of the same width.
    Bitcast(DType, u32),
}

/// A pure function of scalars: a DAG in evaluation order whose last node is the result.
///
/// ```
/// use wgfc_ir::{BinaryOp, DType, ScalarFn, ScalarNode};
/// let less = ScalarFn::binary(BinaryOp::Lt);
/// assert_eq!(less.root(), Some(&ScalarNode::Binary(BinaryOp::Lt, 0, 1)));
/// assert_eq!(less.types(&[DType::F32, DType::F32])?.last(), Some(&DType::Bool));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScalarFn {
    /// The nodes in evaluation order.
    pub nodes: Vec<ScalarNode>,
}

impl ScalarFn {
    /// Adds a node, or returns an equal one that exists already.
    pub fn push(&mut self, n: ScalarNode) -> u32 {
        if let Some(i) = self.nodes.iter().position(|m| *m == n) {
            return i as u32;
        }
        self.nodes.push(n);
        (self.nodes.len() - 1) as u32
    }
    /// `op(arg0)`.
    pub fn unary(op: UnaryOp) -> ScalarFn {
        ScalarFn { nodes: vec![ScalarNode::Arg(0), ScalarNode::Unary(op, 0)] }
    }
    /// `op(arg0, arg1)`.
    pub fn binary(op: BinaryOp) -> ScalarFn {
        ScalarFn { nodes: vec![ScalarNode::Arg(0), ScalarNode::Arg(1), ScalarNode::Binary(op, 0, 1)] }
    }
    /// `arg0` converted.
    pub fn cast(to: DType) -> ScalarFn {
        ScalarFn { nodes: vec![ScalarNode::Arg(0), ScalarNode::Cast(to, 0)] }
    }
    /// `if arg0 { arg1 } else { arg2 }`.
    pub fn select() -> ScalarFn {
        use ScalarNode::*;
        ScalarFn { nodes: vec![Arg(0), Arg(1), Arg(2), Select(0, 1, 2)] }
    }

    /// The node of the result.
    pub fn root(&self) -> Option<&ScalarNode> {
        self.nodes.last()
    }

    /// The type of every node, given the operands' types.
    pub fn types(&self, args: &[DType]) -> Result<Vec<DType>, String> {
        let mut t: Vec<DType> = Vec::with_capacity(self.nodes.len());
        let at = |t: &[DType], i: u32| {
            t.get(i as usize).copied().ok_or_else(|| format!("node {i} is used before it is made"))
        };
        for n in &self.nodes {
            let ty = match n {
                ScalarNode::Arg(i) => {
                    *args.get(*i as usize).ok_or_else(|| format!("operand {i} of {}", args.len()))?
                }
                ScalarNode::Const(s) => s.dtype,
                ScalarNode::Index(_) => DType::I32,
                ScalarNode::Unary(op, a) => {
                    let a = at(&t, *a)?;
                    use UnaryOp::*;
                    match op {
                        IsNan | IsInf => DType::Bool,
                        Not if a.is_float() => return Err(format!("`not` of {a}")),
                        Neg | Abs | Sign if a == DType::Bool => {
                            return Err(format!("`{}` of bool", op.name()));
                        }
                        Neg | Abs | Sign | Not | Floor | Ceil | Round | Trunc => a,
                        _ if !a.is_float() => return Err(format!("`{}` of {a}", op.name())),
                        _ => a,
                    }
                }
                ScalarNode::Binary(op, a, b) => {
                    let (a, b) = (at(&t, *a)?, at(&t, *b)?);
                    let wrong = match op {
                        BinaryOp::Special(_) => !a.is_float(),
                        BinaryOp::Gcd => !a.is_int(),
                        _ => false,
                    };
                    if a != b || wrong {
                        return Err(format!("`{}` of {a} and {b}", op.name()));
                    }
                    if op.is_comparison() { DType::Bool } else { a }
                }
                ScalarNode::Select(c, a, b) => {
                    let (c, a, b) = (at(&t, *c)?, at(&t, *a)?, at(&t, *b)?);
                    if c != DType::Bool || a != b {
                        return Err(format!("select of {c}, {a} and {b}"));
                    }
                    a
                }
                ScalarNode::Cast(to, a) => {
                    at(&t, *a)?;
                    *to
                }
                ScalarNode::Bitcast(to, a) => {
                    let a = at(&t, *a)?;
                    if a.bits() != to.bits() {
                        return Err(format!("bitcast of {a} to {to}"));
                    }
                    *to
                }
            };
            t.push(ty);
        }
        if t.is_empty() { Err("empty body".into()) } else { Ok(t) }
    }
}
