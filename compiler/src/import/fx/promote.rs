//! Type promotion: the common element type of operands of different types.
//!
//! The rule is that of torch ("Type promotion" in its documentation of tensor attributes). There are three kinds of operands: tensors
//! with axes, tensors of rank 0, and numbers. A kind affects the result only if its category (bool, integer, float) is higher than that
//! of the kinds before it.

use wgfc_ir::{Class, DType};

/// The type of float constants in torch.
pub const DEFAULT: DType = DType::F32;

/// The kind of an operand for type promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor with axes.
    Tensor(DType),
    /// A tensor of rank 0.
    Scalar(DType),
    /// A number in the program's text: bool, i64 or [`DEFAULT`].
    Number(DType),
}

/// The type in which operands are combined.
pub fn common(operands: &[Kind]) -> DType {
    let all = |pick: fn(&Kind) -> Option<DType>| operands.iter().filter_map(pick).reduce(pair);
    let tensors = all(|k| if let Kind::Tensor(d) = k { Some(*d) } else { None });
    let scalars = all(|k| if let Kind::Scalar(d) = k { Some(*d) } else { None });
    let numbers = all(|k| if let Kind::Number(d) = k { Some(*d) } else { None });
    combined(tensors, combined(scalars, numbers)).unwrap_or(DEFAULT)
}

fn combined(higher: Option<DType>, lower: Option<DType>) -> Option<DType> {
    match (higher, lower) {
        (Some(h), Some(l)) if h.is_float() || h != DType::Bool && !l.is_float() => Some(h),
        (Some(h), Some(l)) => Some(pair(h, l)),
        (h, l) => h.or(l),
    }
}

/// The promoted type of two element types of the same kind of operand, as in torch.
pub fn pair(a: DType, b: DType) -> DType {
    let (ca, cb) = (a.class(), b.class());
    match (ca, cb) {
        _ if a == b => a,
        (Class::Bool, _) => b,
        (_, Class::Bool) => a,
        (Class::Float, Class::Float) => match (a.bits(), b.bits()) {
            (16, 16) => DType::F32,
            (x, y) => {
                if x > y {
                    a
                } else {
                    b
                }
            }
        },
        (Class::Float, _) => a,
        (_, Class::Float) => b,
        _ if ca == cb => {
            if a.bits() > b.bits() {
                a
            } else {
                b
            }
        }
        _ => {
            let (unsigned, signed) = if ca == Class::Uint { (a, b) } else { (b, a) };
            if signed.bits() > unsigned.bits() {
                return signed;
            }
            match unsigned.bits() {
                8 => DType::I16,
                16 => DType::I32,
                _ => DType::I64,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;
    use Kind::*;

    #[test]
    fn types_are_those_of_torch() {
        assert_eq!(common(&[Tensor(I64), Number(F32)]), F32);
        assert_eq!(common(&[Tensor(F16), Scalar(F32)]), F16);
        assert_eq!(common(&[Tensor(F16), Number(F32)]), F16);
        assert_eq!(common(&[Tensor(F16), Tensor(BF16)]), F32);
        assert_eq!(common(&[Tensor(I32), Scalar(I64)]), I32);
        assert_eq!(common(&[Tensor(I32), Scalar(F16)]), F16);
        assert_eq!(common(&[Tensor(Bool), Number(I64)]), I64);
        assert_eq!(common(&[Tensor(Bool), Scalar(U8)]), U8);
        assert_eq!(common(&[Tensor(U8), Tensor(I8)]), I16);
        assert_eq!(common(&[Scalar(F64), Number(F32)]), F64);
        assert_eq!(common(&[Tensor(I64), Scalar(Bool)]), I64);
    }
}
