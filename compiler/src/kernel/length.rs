//! The number of instructions of expressions after a driver has inlined the functions that they call.
//!
//! A driver's compile time grows faster than the length of a kernel: software drivers take about half a second for ten thousand
//! instructions, and half a minute for a hundred thousand.

use super::{Body, Expr, ExprId};
use std::collections::BTreeSet;
use wgfc_codegen_templates::library::instructions;
use wgfc_ir::{Atom, BinaryOp, DType, Poly, Reg, UnaryOp};

/// The limit, in instructions of an invocation, of transformations that make a kernel faster but longer.
pub const MOST_INSTRUCTIONS: usize = 2048;

/// The number of instructions that evaluate the roots, each expression once.
pub fn of(body: &Body, roots: &[ExprId]) -> usize {
    body.reachable(roots).into_iter().map(|id| of_expr(body, id)).fold(0, usize::saturating_add)
}

/// The instructions of a quotient or a remainder by a constant: a product of 64 bits, a shift and a difference.
const DIVISION: f64 = 6.0;
/// The instructions of a quotient or a remainder by a size that the kernel reads.
const DIVISION_BY_SIZE: f64 = 30.0;

/// The instructions of a quotient or a remainder in an index expression; 0 for other atoms.
pub fn of_division(a: &Atom) -> f64 {
    match a {
        Atom::Div(_, d) | Atom::Mod(_, d) if d.as_const().is_none() => DIVISION_BY_SIZE,
        Atom::Div(..) | Atom::Mod(..) => DIVISION,
        _ => 0.0,
    }
}

/// The quotients and remainders of an index expression.
pub fn divisions(p: &Poly, out: &mut BTreeSet<Atom>) {
    for a in p.terms().iter().flat_map(|(m, _)| m) {
        let (Atom::Div(x, y) | Atom::Mod(x, y) | Atom::Max(x, y) | Atom::Min(x, y)) = a else { continue };
        if matches!(a, Atom::Div(..) | Atom::Mod(..)) {
            out.insert(a.clone());
        }
        divisions(x, out);
        divisions(y, out);
    }
}

/// Instructions of an expression without its operands.
pub fn of_expr(body: &Body, id: ExprId) -> usize {
    match body.expr(id) {
        Expr::Const(_) => 0,
        Expr::Unary(op, a) => of_unary(*op, body.dtype(*a).reg()),
        Expr::Binary(BinaryOp::Pow, _, y) if matches!(body.expr(*y), Expr::Const(_)) => 2,
        Expr::Binary(op, a, b) => {
            let reg = body.dtype(*a).reg();
            match short_divisor(*op, reg, body.expr(*b)) {
                Some((function, _)) => named([function]),
                None => of_binary(*op, reg),
            }
        }
        Expr::Cast(to, a) => of_cast(body.dtype(*a), *to),
        _ => 1,
    }
}

/// The function for the division of a 64-bit integer by a constant of at most 24 bits, which takes few instructions, and the divisor.
pub fn short_divisor(op: BinaryOp, reg: Reg, divisor: &Expr) -> Option<(String, u32)> {
    let Expr::Const(c) = divisor else { return None };
    Some((short_division(op, reg, c.bits)?, c.bits as u32))
}

/// The function for the division by a constant with these bits; `None` if the division takes many instructions.
pub fn short_division(op: BinaryOp, reg: Reg, bits: u64) -> Option<String> {
    let digits = match bits {
        1..=0x1_0000 => "short",
        0x1_0001..=0x100_0000 => "medium",
        _ => return None,
    };
    let name = match (op, reg) {
        (BinaryOp::Div | BinaryOp::Quot, Reg::I64 | Reg::U64) => "div",
        (BinaryOp::Mod, Reg::I64) => "mod",
        (BinaryOp::Rem, Reg::I64) | (BinaryOp::Rem | BinaryOp::Mod, Reg::U64) => "rem",
        _ => return None,
    };
    Some(format!("{name}_{digits}_{}", suffix(reg)))
}

fn suffix(reg: Reg) -> &'static str {
    match reg {
        Reg::F32 => "f32",
        Reg::I32 => "i32",
        Reg::U32 => "u32",
        Reg::I64 => "i64",
        Reg::U64 => "u64",
        Reg::Bool => "bool",
    }
}

/// The number of instructions of the first of these functions that exists; 1 if none does.
fn named<const N: usize>(names: [String; N]) -> usize {
    names.iter().find_map(|n| instructions(n)).unwrap_or(1)
}

fn of_unary(op: UnaryOp, reg: Reg) -> usize {
    match op {
        UnaryOp::Erf | UnaryOp::Sigmoid if reg == Reg::F32 => named([op.name().into()]),
        _ => named([format!("{}_{}", op.name(), suffix(reg))]),
    }
}

fn of_binary(op: BinaryOp, reg: Reg) -> usize {
    use BinaryOp::{Add, Div, Mod, Mul, Quot, Rem, Sub};
    let long = matches!(reg, Reg::I64 | Reg::U64);
    let name = match (op, reg) {
        (Add | Sub | Mul, _) if !long => return 1,
        (Div, Reg::F32) => return 1,
        (Quot, Reg::F32) => "quotient",
        (Quot, _) => "div",
        (Mod, Reg::U32 | Reg::U64) => Rem.name(),
        _ => op.name(),
    };
    let word = format!("{name}_64");
    if long {
        named([format!("{name}_{}", suffix(reg)), word])
    } else {
        named([format!("{name}_{}", suffix(reg))])
    }
}

fn of_cast(from: DType, to: DType) -> usize {
    match (from.reg(), to.reg()) {
        (a, b) if a == b => 1,
        (a, b) => named([format!("{}_from_{}", suffix(b), suffix(a))]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Activations, which often follow products, take few instructions; trigonometric functions and 64-bit divisions take many.
    #[test]
    fn activations_are_short_and_angles_are_long() {
        let (unary, binary) = (|op| of_unary(op, Reg::F32), |op| of_binary(op, Reg::I64));
        assert_eq!(unary(UnaryOp::Neg), 1);
        for op in [UnaryOp::Exp, UnaryOp::Sigmoid, UnaryOp::Erf, UnaryOp::Tanh, UnaryOp::Sqrt] {
            assert!(unary(op) <= 40, "{} {}", op.name(), unary(op));
        }
        for op in [UnaryOp::Sin, UnaryOp::Cos, UnaryOp::Tan] {
            assert!(unary(op) > 80, "{} {}", op.name(), unary(op));
        }
        for op in [BinaryOp::Div, BinaryOp::Rem, BinaryOp::Mod, BinaryOp::Quot] {
            assert!(binary(op) > 100, "{} {}", op.name(), binary(op));
        }
        assert!(binary(BinaryOp::Add) < 10);
        for op in [BinaryOp::Div, BinaryOp::Rem, BinaryOp::Mod, BinaryOp::Quot] {
            for dtype in [DType::I64, DType::U64] {
                let mut body = Body::default();
                let load = Expr::Load { tensor: 0, offset: wgfc_ir::Poly::var(0), guard: None };
                let a = body.push(load, dtype);
                let length = |body: &mut Body, by: i64| {
                    let by = body.push(Expr::Const(wgfc_ir::Scalar::from_i64(dtype, by)), dtype);
                    let e = body.push(Expr::Binary(op, a, by), dtype);
                    of_expr(body, e)
                };
                for (by, most) in [(1000, 55), (65537, 75), (1 << 24, 75)] {
                    let n = length(&mut body, by);
                    assert!(n < most, "{} by {by}: {n}", op.name());
                }
                assert!(length(&mut body, (1 << 24) + 1) > 100);
            }
        }
        assert!(of_cast(DType::F32, DType::I64) > 10);
    }
}
