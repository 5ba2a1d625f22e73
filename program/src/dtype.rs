//! Element types and the registers that hold them.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal $class:ident $reg:ident;)*) => {
        /// The element type of a tensor.
        ///
        /// Only the types with a [`Reg`] of the same name are used for computation; the others are *storage types*,
        /// which are widened when loaded and narrowed when stored.
        ///
        /// ```
        /// use wgfc_program::DType;
        /// assert_eq!("bf16".parse(), Ok(DType::BF16));
        /// assert_eq!((DType::BF16.name(), DType::BF16.bits()), ("bf16", 16));
        /// assert!(DType::BF16.is_float() && !DType::BF16.is_int());
        /// assert_eq!(DType::ALL.len(), 23);
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum DType {
            $(#[doc = $name] #[serde(rename = $name)] $variant,)*
        }

        impl DType {
            /// Every element type.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// The name used in the text format and in `plan.json`.
            pub fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Bits of one stored element.
            pub const fn bits(self) -> usize {
                match self { $(DType::$variant => $bits,)* }
            }

            /// The kind of number.
            pub fn class(self) -> Class {
                match self { $(DType::$variant => Class::$class,)* }
            }

            /// The register an element occupies while it is computed with.
            pub fn reg(self) -> Reg {
                match self { $(DType::$variant => Reg::$reg,)* }
            }
        }

        impl std::str::FromStr for DType {
            type Err = String;
            fn from_str(s: &str) -> Result<Self, String> {
                match s { $($name => Ok(DType::$variant),)* _ => Err(format!("unknown element type `{s}`")) }
            }
        }
    };
}

dtypes! {
    F32 "f32" 32 Float F32;
    F16 "f16" 16 Float F32;
    BF16 "bf16" 16 Float F32;
    F64 "f64" 64 Float F32;
    F8E4M3 "f8e4m3" 8 Float F32;
    F8E4M3Uz "f8e4m3uz" 8 Float F32;
    F8E5M2 "f8e5m2" 8 Float F32;
    F8E5M2Uz "f8e5m2uz" 8 Float F32;
    F8E8M0 "f8e8m0" 8 Float F32;
    F4E2M1 "f4e2m1" 4 Float F32;
    I64 "i64" 64 Int I64;
    I32 "i32" 32 Int I32;
    I16 "i16" 16 Int I32;
    I8 "i8" 8 Int I32;
    I4 "i4" 4 Int I32;
    I2 "i2" 2 Int I32;
    U64 "u64" 64 Uint U64;
    U32 "u32" 32 Uint U32;
    U16 "u16" 16 Uint U32;
    U8 "u8" 8 Uint U32;
    U4 "u4" 4 Uint U32;
    U2 "u2" 2 Uint U32;
    Bool "bool" 8 Bool Bool;
}

/// The kind of number a [`DType`] stores.
///
/// ```
/// use wgfc_program::{Class, DType};
/// assert_eq!(DType::BF16.class(), Class::Float);
/// assert_eq!(DType::U8.class(), Class::Uint);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// IEEE-like floating point.
    Float,
    /// Signed integer in two's complement.
    Int,
    /// Unsigned integer.
    Uint,
    /// True or false, one byte in memory (0 or 1).
    Bool,
}

/// A value in a register of the generated code.
///
/// `I64` and `U64` are word pairs (`vec2<u32>`, low word first): exact, as WGSL has no 64-bit integer.
///
/// ```
/// use wgfc_program::{DType, Reg};
/// // Storage types are widened before anything is computed with them.
/// assert_eq!(DType::BF16.reg(), Reg::F32);
/// assert_eq!(DType::I8.reg(), Reg::I32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Reg {
    F32,
    I32,
    U32,
    I64,
    U64,
    Bool,
}

impl DType {
    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        self.class() == Class::Float
    }
    /// Whether this is a signed or unsigned integer.
    pub fn is_int(self) -> bool {
        matches!(self.class(), Class::Int | Class::Uint)
    }
    /// The number of bytes of `n` packed elements (4-bit types: two to a byte, low nibble first).
    ///
    /// ```
    /// use wgfc_program::DType;
    /// assert_eq!(DType::F16.bytes_for(3), 6);
    /// // Two elements of 4 bits share a byte.
    /// assert_eq!(DType::U4.bytes_for(3), 2);
    /// ```
    pub fn bytes_for(self, n: usize) -> usize {
        usize::try_from(self.bytes_of(n as u64)).unwrap_or(usize::MAX)
    }
    /// [`DType::bytes_for`] in 64 bits on every platform.
    pub fn bytes_of(self, n: u64) -> u64 {
        // The number of bits may overflow even if the number of bytes does not.
        let bits = self.bits() as u64;
        (n / 8).saturating_mul(bits).saturating_add((n % 8 * bits).div_ceil(8))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_in_64_bits() {
        assert_eq!(DType::F32.bytes_of((1 << 32) + 1), (1 << 34) + 4);
        assert_eq!(DType::U4.bytes_of(5), 3);
        assert_eq!(DType::U2.bytes_of(u64::MAX), 1 << 62);
        assert_eq!(DType::F64.bytes_of(1 << 61), u64::MAX);
        for n in 0..70 {
            for d in DType::ALL {
                assert_eq!(d.bytes_for(n), (n * d.bits()).div_ceil(8), "{n} x {d}");
            }
        }
    }
}
