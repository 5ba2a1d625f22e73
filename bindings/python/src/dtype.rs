//! The names of element types in NumPy, ml_dtypes and torch.

use wgfc::DType;
use wgfc::ir::dtype::Class;

/// The name of a type: `float32`, `bfloat16`, `float8_e4m3fn`, `int4`.
pub fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F64 => "float64",
        DType::F8E4M3 => "float8_e4m3fn",
        DType::F8E4M3Uz => "float8_e4m3fnuz",
        DType::F8E5M2 => "float8_e5m2",
        DType::F8E5M2Uz => "float8_e5m2fnuz",
        DType::F8E8M0 => "float8_e8m0fnu",
        DType::F4E2M1 => "float4_e2m1fn",
        DType::I64 => "int64",
        DType::I32 => "int32",
        DType::I16 => "int16",
        DType::I8 => "int8",
        DType::I4 => "int4",
        DType::I2 => "int2",
        DType::U64 => "uint64",
        DType::U32 => "uint32",
        DType::U16 => "uint16",
        DType::U8 => "uint8",
        DType::U4 => "uint4",
        DType::U2 => "uint2",
        DType::Bool => "bool",
    }
}

/// The type with this name.
pub fn named(text: &str) -> Option<DType> {
    DType::ALL.iter().copied().find(|d| name(*d) == text)
}

/// Whether several elements share a byte.
pub fn is_packed(dtype: DType) -> bool {
    dtype.bits() < 8
}

/// The unsigned integer type for the bits of a type that NumPy lacks; `None` for other types.
pub fn raw(dtype: DType) -> Option<DType> {
    match dtype {
        DType::BF16 => Some(DType::U16),
        d if d.is_float() && d.bits() <= 8 => Some(DType::U8),
        _ => None,
    }
}

/// The type of 8 bits that represents elements of less than a byte, one per byte; other types are returned unchanged.
pub fn unpacked(dtype: DType) -> DType {
    match dtype {
        d if !is_packed(d) => d,
        d if d.class() == Class::Int => DType::I8,
        _ => DType::U8,
    }
}
