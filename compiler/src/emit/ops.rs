//! Scalar operators on registers as WGSL expressions.

use super::handle::Handle;
use super::wgsl::{Module, Text};
use crate::Diagnostic;
use crate::kernel::length::short_divisor;
use crate::kernel::{Body, Expr, ExprId};
use wgfc_ir::{BinaryOp, Class, DType, Reg, Scalar, UnaryOp};

type Result<T> = std::result::Result<T, Diagnostic>;

/// A finite number, not below 0. The shortest decimals of the greatest ones are above them, which WGSL refuses: those are hexadecimal.
fn f32_literal(v: f32) -> String {
    let decimal = format!("{v:?}");
    match decimal.parse::<f64>() {
        Ok(exact) if exact <= f64::from(f32::MAX) => decimal + "f",
        // 1.fffffe × 2^127: the significand's 23 bits and a zero make 6 digits.
        _ => format!("0x1.{:06x}p+{}f", (v.to_bits() & 0x7f_ffff) << 1, (v.to_bits() >> 23) as i32 - 127),
    }
}

impl Module<'_> {
    /// A constant.
    pub fn literal(&mut self, c: Scalar) -> Result<String> {
        Ok(match c.dtype.reg() {
            Reg::F32 => {
                let v = c.as_f64() as f32;
                if !v.is_finite() {
                    self.call("float_of_bits", &[&format!("{:#x}u", v.to_bits())])?
                } else if v.is_sign_negative() {
                    format!("(-{})", f32_literal(-v))
                } else {
                    f32_literal(v)
                }
            }
            Reg::I32 => match c.bits as i64 as i32 {
                i32::MIN => "i32(-2147483648)".into(),
                v if v < 0 => format!("({v}i)"),
                v => format!("{v}i"),
            },
            Reg::U32 => format!("{}u", c.bits as u32),
            Reg::I64 | Reg::U64 => format!("vec2<u32>({}u, {}u)", c.bits as u32, c.bits >> 32),
            Reg::Bool => (c.bits != 0).to_string(),
        })
    }

    /// An operator of one operand of type `t`.
    pub fn unary(&mut self, op: UnaryOp, t: DType, a: &Handle) -> Result<Text> {
        use UnaryOp::*;
        let reg = t.reg();
        if matches!(op, Floor | Ceil | Round | Trunc) && reg != Reg::F32 {
            return Ok(Text::Handle(a.clone()));
        }
        let text = match (reg, op) {
            (Reg::F32, Not) | (Reg::Bool, Neg | Abs | Sign) => return Err(mismatch(op.name(), t)),
            (Reg::F32, _) => match op {
                Neg => format!("-{a}"),
                Abs => format!("abs({a})"),
                Floor => format!("floor({a})"),
                Ceil => format!("ceil({a})"),
                Round => format!("round({a})"),
                Trunc => format!("trunc({a})"),
                Sqrt => format!("sqrt({a})"),
                Rsqrt => format!("inverseSqrt({a})"),
                Recip => format!("1.0 / {a}"),
                Exp => format!("exp({a})"),
                Erf => self.call("erf", &[a])?,
                Sigmoid => self.call("sigmoid", &[a])?,
                IsNan => self.call("is_nan", &[a])?,
                IsInf => self.call("is_inf", &[a])?,
                _ => self.call(&format!("{}_f32", op.name()), &[a])?,
            },
            (_, IsNan | IsInf) => return Ok(Text::Handle(Handle::inline("false"))),
            (Reg::Bool, Not) => format!("!{a}"),
            (Reg::I32, Neg) => return self.wrap(t, format!("-{a}")),
            (Reg::I32, Abs) => return self.wrap(t, format!("abs({a})")),
            (Reg::I32, Sign) => format!("sign({a})"),
            (Reg::I32, Not) => format!("~{a}"),
            (Reg::U32, Neg) => return self.wrap(t, format!("0u - {a}")),
            (Reg::U32 | Reg::U64, Abs) => return Ok(Text::Handle(a.clone())),
            (Reg::U32, Sign) => format!("min({a}, 1u)"),
            (Reg::U32, Not) => return self.wrap(t, format!("~{a}")),
            (Reg::I64 | Reg::U64, Neg) => self.call("neg_64", &[a])?,
            (Reg::I64, Abs) => self.call("abs_i64", &[a])?,
            (Reg::I64, Sign) => self.call("sign_i64", &[a])?,
            (Reg::U64, Sign) => self.call("sign_u64", &[a])?,
            (Reg::I64 | Reg::U64, Not) => format!("~{a}"),
            _ => return Err(mismatch(op.name(), t)),
        };
        Ok(Text::Compound(text))
    }

    /// `aʸ` for exponents that are a few products or a root.
    pub(super) fn pow_const(&mut self, a: &Handle, y: f64) -> Result<Option<Text>> {
        let text = match y {
            0.5 => format!("sqrt({a})"),
            -0.5 => format!("inverseSqrt({a})"),
            -1.0 => format!("1.0 / {a}"),
            1.0 => return Ok(Some(Text::Handle(a.clone()))),
            2.0 => format!("{a} * {a}"),
            3.0 => format!("{a} * {a} * {a}"),
            _ => return Ok(None),
        };
        Ok(Some(Text::Compound(text)))
    }

    /// An operator of two operands of type `t`, which `left` and `right` are as expressions.
    pub fn binary(
        &mut self,
        op: BinaryOp,
        t: DType,
        (a, b): (&str, &str),
        (left, right): (&Expr, &Expr),
    ) -> Result<Text> {
        use BinaryOp::*;
        if t.reg() == Reg::F32
            && let Some(text) = self.nothing(op, (a, b), (left, right))?
        {
            return Ok(Text::Compound(text));
        }
        let bits = format!("{}u", t.bits());
        let plain_divisor = matches!(right, Expr::Const(c) if c.bits as i64 > 0);
        let text = match t.reg() {
            Reg::F32 => match op {
                Add => format!("{a} + {b}"),
                Sub => format!("{a} - {b}"),
                Mul => format!("{a} * {b}"),
                Div => format!("{a} / {b}"),
                Quot => self.call("quotient_f32", &[a, b])?,
                Rem => self.call("rem_f32", &[a, b])?,
                Mod => self.call("mod_f32", &[a, b])?,
                Pow => self.call("pow_f32", &[a, b])?,
                Min | Max if matches!(right, Expr::Const(c) if !c.as_f64().is_nan()) => {
                    let less = if op == Max { "<" } else { ">" };
                    format!("select(select({a}, {b}, {a} {less} {b}), {a}, {})", nan(a))
                }
                Min | Max => self.call(&format!("{}_f32", op.name()), &[a, b])?,
                Special(f) => self.call(&format!("{}_f32", f.name()), &[a, b])?,
                And | Or | Xor | Shl | Shr | Gcd => return Err(mismatch(op.name(), t)),
                // A NaN is not equal to anything; drivers compare with `!=` as if it were.
                Ne => format!("!({a} == {b})"),
                _ => compare(op, a, b),
            },
            Reg::Bool => match op {
                And | Mul | Min => format!("{a} && {b}"),
                Or | Add | Max => format!("{a} || {b}"),
                Xor | Sub | Ne => format!("{a} != {b}"),
                Eq => format!("{a} == {b}"),
                Lt => format!("!{a} && {b}"),
                Le => format!("!{a} || {b}"),
                Gt => format!("{a} && !{b}"),
                Ge | Pow => format!("{a} || !{b}"),
                Div | Quot => format!("{a} && {b}"),
                Rem | Mod | Shl | Shr => return Ok(Text::Handle(Handle::inline("false"))),
                Gcd | Special(_) => return Err(mismatch(op.name(), t)),
            },
            reg @ (Reg::I32 | Reg::U32) => {
                let signed = reg == Reg::I32;
                let suffix = if signed { "i32" } else { "u32" };
                match op {
                    Add => return self.wrap(t, format!("{a} + {b}")),
                    Sub => return self.wrap(t, format!("{a} - {b}")),
                    Mul => return self.wrap(t, format!("{a} * {b}")),
                    Div | Quot if plain_divisor => format!("{a} / {b}"),
                    Rem if plain_divisor && !signed => format!("{a} % {b}"),
                    Mod if plain_divisor && !signed => format!("{a} % {b}"),
                    Div | Quot => {
                        let q = self.call(&format!("div_{suffix}"), &[a, b])?;
                        return self.wrap(t, q);
                    }
                    Rem => self.call(&format!("rem_{suffix}"), &[a, b])?,
                    Mod if signed => self.call("mod_i32", &[a, b])?,
                    Mod => self.call("rem_u32", &[a, b])?,
                    Pow => {
                        let p = self.call(&format!("pow_{suffix}"), &[a, b])?;
                        return self.wrap(t, p);
                    }
                    Gcd => {
                        let g = self.call(&format!("gcd_{suffix}"), &[a, b])?;
                        return self.wrap(t, g);
                    }
                    Special(_) => return Err(mismatch(op.name(), t)),
                    Min | Max if signed && !is_constant(left) && !is_constant(right) => {
                        self.call(&format!("{}_i32", op.name()), &[a, b])?
                    }
                    Min | Max => format!("{}({a}, {b})", op.name()),
                    And => format!("{a} & {b}"),
                    Or => format!("{a} | {b}"),
                    Xor => format!("{a} ^ {b}"),
                    Shl if signed => {
                        let v = self.call("shl_32", &[&format!("u32({a})"), &format!("u32({b})"), &bits])?;
                        return self.wrap(t, format!("i32({v})"));
                    }
                    Shl => {
                        let v = self.call("shl_32", &[a, b, &bits])?;
                        return self.wrap(t, v);
                    }
                    Shr => self.call(&format!("shr_{suffix}"), &[a, b, &bits])?,
                    _ => compare(op, a, b),
                }
            }
            reg @ (Reg::I64 | Reg::U64) => {
                let s = if reg == Reg::I64 { "i64" } else { "u64" };
                if let Some((function, by)) = short_divisor(op, reg, right) {
                    return self.call(&function, &[a, &format!("{by}u")]).map(Text::Compound);
                }
                match op {
                    Add => self.call("add_64", &[a, b])?,
                    Sub => self.call("sub_64", &[a, b])?,
                    Mul if let Some(by) = power_of_two(right) => {
                        self.call("shl_64", &[a, &format!("vec2<u32>({by}u, 0u)")])?
                    }
                    Mul => self.call("mul_64", &[a, b])?,
                    Mod if reg == Reg::U64 => self.call("rem_u64", &[a, b])?,
                    Shl => self.call("shl_64", &[a, b])?,
                    Quot => self.call(&format!("div_{s}"), &[a, b])?,
                    Special(_) => return Err(mismatch(op.name(), t)),
                    Div | Rem | Mod | Pow | Gcd | Min | Max | Shr => {
                        self.call(&format!("{}_{s}", op.name()), &[a, b])?
                    }
                    And => format!("{a} & {b}"),
                    Or => format!("{a} | {b}"),
                    Xor => format!("{a} ^ {b}"),
                    Eq => format!("all({a} == {b})"),
                    Ne => format!("any({a} != {b})"),
                    Lt => self.call(&format!("lt_{s}"), &[a, b])?,
                    Gt => self.call(&format!("lt_{s}"), &[b, a])?,
                    Le => format!("!{}", self.call(&format!("lt_{s}"), &[b, a])?),
                    Ge => format!("!{}", self.call(&format!("lt_{s}"), &[a, b])?),
                }
            }
        };
        Ok(Text::Compound(text))
    }

    /// Operators that give 0 for every number and NaN for NaN or an infinity, which drivers fold: `x · 0`, `x / ∞`, `0 / x`, `x − x`. And `x / x`, which is 1
    /// of every finite number but 0.
    fn nothing(
        &mut self,
        op: BinaryOp,
        (a, b): (&str, &str),
        (left, right): (&Expr, &Expr),
    ) -> Result<Option<String>> {
        let known = |e: &Expr| match e {
            Expr::Const(c) => Some(c.as_f64()),
            _ => None,
        };
        let (x, sign) = match (op, known(left), known(right)) {
            (BinaryOp::Mul, _, Some(c)) if c == 0.0 => (a.to_owned(), c),
            (BinaryOp::Mul, Some(c), _) if c == 0.0 => (b.to_owned(), c),
            (BinaryOp::Div | BinaryOp::Quot, _, Some(c)) if c.is_infinite() => (a.to_owned(), c),
            // Some drivers make this NaN of infinities.
            (BinaryOp::Div | BinaryOp::Quot, _, Some(c)) if c == 0.0 => {
                let infinity = Scalar::from_f64(DType::F32, f64::INFINITY.copysign(c));
                return Ok(Some(format!("{a} * {}", self.literal(infinity)?)));
            }
            (BinaryOp::Div | BinaryOp::Quot, Some(c), _) if c == 0.0 => (format!("1.0 / {b}"), c),
            (BinaryOp::Sub, None, None) if a == b => {
                return Ok(Some(format!("abs({})", self.call("times_zero", &[a])?)));
            }
            (BinaryOp::Div | BinaryOp::Quot, None, None) if a == b => {
                return Ok(Some(self.call("over_itself", &[a])?));
            }
            _ => return Ok(None),
        };
        let zero = self.call("times_zero", &[&x])?;
        Ok(Some(if sign.is_sign_negative() { format!("-{zero}") } else { zero }))
    }

    /// Cuts the result of 32-bit arithmetic to a narrow integer type.
    fn wrap(&mut self, t: DType, text: String) -> Result<Text> {
        Ok(Text::Compound(match (t.class(), t.bits()) {
            (Class::Int, b) if b < 32 => self.call("wrap_i32", &[&text, &format!("{b}u")])?,
            (Class::Uint, b) if b < 32 => format!("({text}) & {}u", (1u64 << b) - 1),
            _ => text,
        }))
    }

    /// A conversion.
    pub fn cast(&mut self, from: DType, to: DType, a: &Handle) -> Result<Text> {
        if from == to {
            return Ok(Text::Handle(a.clone()));
        }
        let text = match (from.reg(), to.reg()) {
            (Reg::Bool, Reg::Bool) => return Ok(Text::Handle(a.clone())),
            (Reg::F32, Reg::Bool) => self.call("bool_from_f32", &[a])?,
            (Reg::I32, Reg::Bool) => format!("{a} != 0"),
            (Reg::U32, Reg::Bool) => format!("{a} != 0u"),
            (_, Reg::Bool) => format!("any({a} != vec2<u32>(0u, 0u))"),
            (f, Reg::F32) => {
                let v = match f {
                    Reg::F32 => return self.round(from, to, a),
                    Reg::I32 => format!("f32({a})"),
                    Reg::U32 if from.bits() < 32 => format!("f32({a})"),
                    Reg::U32 => self.call("f32_from_u32", &[a])?,
                    Reg::I64 => self.call("f32_from_i64", &[a])?,
                    Reg::U64 => self.call("f32_from_u64", &[a])?,
                    Reg::Bool => format!("select(0.0, 1.0, {a})"),
                };
                return self
                    .round(DType::F32, to, &Handle::inline(v))
                    .map(|t| Text::Compound(t.into_string()));
            }
            (f, Reg::I32) => {
                let v = match f {
                    Reg::I32 if to.bits() >= from.bits() => return Ok(Text::Handle(a.clone())),
                    Reg::I32 => a.to_string(),
                    Reg::I64 | Reg::U64 => format!("i32({a}.x)"),
                    Reg::Bool => format!("select(0, 1, {a})"),
                    Reg::F32 => self.call("i32_from_f32", &[a])?,
                    Reg::U32 => format!("i32({a})"),
                };
                let fits = f == Reg::U32 && from.bits() < to.bits();
                return if fits { Ok(Text::Compound(v)) } else { self.wrap(to, v) };
            }
            (f, Reg::U32) => {
                let v = match f {
                    Reg::U32 if to.bits() >= from.bits() => return Ok(Text::Handle(a.clone())),
                    Reg::U32 => a.to_string(),
                    Reg::I64 | Reg::U64 => format!("{a}.x"),
                    Reg::Bool => format!("select(0u, 1u, {a})"),
                    Reg::I32 => format!("u32({a})"),
                    Reg::F32 => self.call("u32_from_f32", &[a])?,
                };
                return self.wrap(to, v);
            }
            (Reg::I64 | Reg::U64, Reg::I64 | Reg::U64) => return Ok(Text::Handle(a.clone())),
            (Reg::I32, _) => self.call("i64_from_i32", &[a])?,
            (Reg::U32, _) => format!("vec2<u32>({a}, 0u)"),
            (Reg::Bool, _) => format!("vec2<u32>(select(0u, 1u, {a}), 0u)"),
            (Reg::F32, Reg::I64) => self.call("i64_from_f32", &[a])?,
            (Reg::F32, Reg::U64) => self.call("u64_from_f32", &[a])?,
        };
        Ok(Text::Compound(text))
    }

    /// A float rounded to the values of another float type.
    fn round(&mut self, from: DType, to: DType, a: &Handle) -> Result<Text> {
        if matches!(to, DType::F32 | DType::F64) || from == to {
            return Ok(Text::Handle(a.clone()));
        }
        if to == DType::F16 {
            return self.call("round_f16", &[a]).map(Text::Compound);
        }
        let raw = self.encode(to, a)?;
        self.decode(to, &raw).map(Text::Compound)
    }

    /// The bits of `a` as another type.
    pub fn bitcast(&mut self, from: DType, to: DType, a: &Handle) -> Result<Text> {
        if from == to {
            return Ok(Text::Handle(a.clone()));
        }
        Ok(match from.bits() {
            64 => {
                let raw = if from == DType::F64 { self.call("encode_f64", &[a])? } else { a.to_string() };
                if to == DType::F64 {
                    Text::Compound(self.call("decode_f64", &[&raw])?)
                } else if from == DType::F64 {
                    Text::Compound(raw)
                } else {
                    Text::Handle(Handle::inline(raw))
                }
            }
            32 => Text::Compound(match to.reg() {
                Reg::F32 => format!("bitcast<f32>({a})"),
                Reg::I32 => format!("bitcast<i32>({a})"),
                _ => format!("bitcast<u32>({a})"),
            }),
            _ => {
                let raw = self.encode(from, a)?;
                Text::Compound(self.decode(to, &format!("({raw})"))?)
            }
        })
    }
}

fn is_constant(e: &Expr) -> bool {
    match e {
        Expr::Const(_) => true,
        Expr::Index(i) => i.as_const().is_some(),
        _ => false,
    }
}

/// The exponent of a constant that is a power of two.
fn power_of_two(e: &Expr) -> Option<u32> {
    match e {
        Expr::Const(c) if c.bits.is_power_of_two() => Some(c.bits.trailing_zeros()),
        _ => None,
    }
}

fn compare(op: BinaryOp, a: &str, b: &str) -> String {
    let op = match op {
        BinaryOp::Eq => "==",
        BinaryOp::Ne => "!=",
        BinaryOp::Lt => "<",
        BinaryOp::Le => "<=",
        BinaryOp::Gt => ">",
        _ => ">=",
    };
    format!("{a} {op} {b}")
}

fn mismatch(op: &str, t: DType) -> Diagnostic {
    Diagnostic::internal(format!("a kernel computes `{op}` of {t}"))
}

/// `x + −x` as `x − x`, and `x · 1/x` as `x / x`, in which drivers see what is no number.
pub(super) fn inverses(body: &Body, op: BinaryOp, a: ExprId, b: ExprId) -> (BinaryOp, ExprId, ExprId) {
    let (inverse, plain) = match op {
        BinaryOp::Add => (UnaryOp::Neg, BinaryOp::Sub),
        BinaryOp::Mul => (UnaryOp::Recip, BinaryOp::Div),
        _ => return (op, a, b),
    };
    let is_of = |x: ExprId, y: ExprId| matches!(body.expr(x), Expr::Unary(o, z) if *o == inverse && *z == y);
    match (is_of(a, b), is_of(b, a)) {
        (true, _) => (plain, b, b),
        (_, true) => (plain, a, a),
        _ => (op, a, b),
    }
}

/// The bits of infinity.
pub(super) const INFINITY: &str = "0x7f800000u";

/// Whether an f32 is NaN, by its bits and without a call: drivers take comparisons for those of numbers, and some take
/// minutes over a kernel with hundreds of calls.
pub(super) fn nan(x: &str) -> String {
    format!("((bitcast<u32>({x}) & 0x7fffffffu) > {INFINITY})")
}

#[cfg(test)]
mod tests {
    #[test]
    fn literals_are_in_range_and_give_their_value() {
        for v in
            [0.0, 1.5, 1e-45, f32::MIN_POSITIVE, 3.4e38, f32::from_bits(f32::MAX.to_bits() - 1), f32::MAX]
        {
            let text = super::f32_literal(v);
            let module = naga::front::wgsl::parse_str(&format!("const C = {text};")).unwrap();
            let (_, c) = module.constants.iter().next().unwrap();
            let literal = naga::Expression::Literal(naga::Literal::F32(v));
            assert!(
                matches!(&module.global_expressions[c.init], e if format!("{e:?}") == format!("{literal:?}")),
                "{text}"
            );
            let exact: Option<f64> = text.trim_end_matches('f').parse().ok();
            assert!(exact.is_none_or(|exact| exact <= f64::from(f32::MAX)), "{text}");
        }
    }
}
