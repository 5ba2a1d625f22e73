//! Arrays of the evaluator: a vector of the type in which the elements are computed.

use super::EvalError;
use crate::dtype::{Class, DType, Reg};
use crate::scalar::Scalar;
use crate::storage;
use crate::tensor::Tensor;
use half::{bf16, f16};
use std::sync::Arc;

/// Elements of one type. Narrow integers are held as `I32` and `U32`, narrow floats as `F32`, always with values that
/// their own type can represent.
#[derive(Clone, Debug)]
pub(super) enum Buf {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I64(Vec<i64>),
    U64(Vec<u64>),
    I32(Vec<i32>),
    U32(Vec<u32>),
    Bool(Vec<bool>),
}

/// Evaluates an expression for the vector in a [`Buf`], whatever its type.
macro_rules! each {
    ($buf:expr, $v:ident => $e:expr) => {
        match $buf {
            $crate::eval::array::Buf::F32($v) => $e,
            $crate::eval::array::Buf::F64($v) => $e,
            $crate::eval::array::Buf::I64($v) => $e,
            $crate::eval::array::Buf::U64($v) => $e,
            $crate::eval::array::Buf::I32($v) => $e,
            $crate::eval::array::Buf::U32($v) => $e,
            $crate::eval::array::Buf::Bool($v) => $e,
        }
    };
}
pub(super) use each;

/// An element of a [`Buf`].
pub(super) trait Elem: Copy + Default + PartialOrd + Send + Sync + 'static {
    fn wrap(v: Vec<Self>) -> Buf;
    fn slice(b: &Buf) -> Option<&[Self]>;
    fn slice_mut(b: &mut Buf) -> Option<&mut Vec<Self>>;
    fn from_scalar(s: Scalar) -> Self;
    fn to_scalar(self, dtype: DType) -> Scalar;
    fn to_f64(self) -> f64;
    fn to_f32(self) -> f32;
    /// The low 64 bits as an integer; floats are truncated.
    fn to_bits(self) -> u64;
    /// The value as an integer; floats out of range give the nearest integer in range.
    fn to_int(self) -> i64 {
        self.to_bits() as i64
    }
    /// The lowest 32 bits. Floats are clamped to −2³¹..2³² first.
    fn to_word(self) -> u32 {
        self.to_bits() as u32
    }
    fn plus(self, o: Self) -> Self;
    fn times(self, o: Self) -> Self;
    fn is_nan(self) -> bool;
    /// The larger operand; NaN if either is NaN.
    fn larger(self, o: Self) -> Self {
        if self.is_nan() || (!o.is_nan() && self >= o) { self } else { o }
    }
    /// The smaller operand; NaN if either is NaN.
    fn smaller(self, o: Self) -> Self {
        if self.is_nan() || (!o.is_nan() && self <= o) { self } else { o }
    }
}

macro_rules! elem_common {
    ($t:ty, $variant:ident) => {
        fn wrap(v: Vec<Self>) -> Buf {
            Buf::$variant(v)
        }
        fn slice(b: &Buf) -> Option<&[Self]> {
            match b {
                Buf::$variant(v) => Some(v),
                _ => None,
            }
        }
        fn slice_mut(b: &mut Buf) -> Option<&mut Vec<Self>> {
            match b {
                Buf::$variant(v) => Some(v),
                _ => None,
            }
        }
    };
}
macro_rules! elem_float {
    ($t:ty, $variant:ident) => {
        impl Elem for $t {
            elem_common!($t, $variant);
            fn from_scalar(s: Scalar) -> Self {
                s.as_f64() as $t
            }
            fn to_scalar(self, dtype: DType) -> Scalar {
                Scalar { dtype, bits: f64::from(self).to_bits() }
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn to_f32(self) -> f32 {
                self as f32
            }
            fn to_bits(self) -> u64 {
                if self >= 0.0 { self as u64 } else { self as i64 as u64 }
            }
            fn to_int(self) -> i64 {
                self as i64
            }
            fn to_word(self) -> u32 {
                if self >= 0.0 { self as u32 } else { self as i32 as u32 }
            }
            fn plus(self, o: Self) -> Self {
                self + o
            }
            fn times(self, o: Self) -> Self {
                self * o
            }
            fn is_nan(self) -> bool {
                self.is_nan()
            }
        }
    };
}
macro_rules! elem_int {
    ($t:ty, $variant:ident) => {
        impl Elem for $t {
            elem_common!($t, $variant);
            fn from_scalar(s: Scalar) -> Self {
                if s.dtype.is_float() { Elem::to_bits(s.as_f64()) as $t } else { s.bits as $t }
            }
            fn to_scalar(self, dtype: DType) -> Scalar {
                Scalar { dtype, bits: self as i64 as u64 }
            }
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn to_f32(self) -> f32 {
                self as f32
            }
            fn to_bits(self) -> u64 {
                self as u64
            }
            fn plus(self, o: Self) -> Self {
                self.wrapping_add(o)
            }
            fn times(self, o: Self) -> Self {
                self.wrapping_mul(o)
            }
            fn is_nan(self) -> bool {
                false
            }
        }
    };
}
elem_float!(f32, F32);
elem_float!(f64, F64);
elem_int!(i64, I64);
elem_int!(u64, U64);
elem_int!(i32, I32);
elem_int!(u32, U32);
impl Elem for bool {
    elem_common!(bool, Bool);
    fn from_scalar(s: Scalar) -> Self {
        if s.dtype.is_float() { s.as_f64() != 0.0 } else { s.bits != 0 }
    }
    fn to_scalar(self, dtype: DType) -> Scalar {
        Scalar { dtype, bits: u64::from(self) }
    }
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn to_f32(self) -> f32 {
        f32::from(u8::from(self))
    }
    fn to_bits(self) -> u64 {
        u64::from(self)
    }
    fn plus(self, o: Self) -> Self {
        self | o
    }
    fn times(self, o: Self) -> Self {
        self & o
    }
    fn is_nan(self) -> bool {
        false
    }
}

impl Buf {
    /// `n` zeros of the vector type that computes `dtype`.
    pub(super) fn zeros(dtype: DType, n: usize) -> Buf {
        match dtype.reg() {
            _ if dtype == DType::F64 => Buf::F64(vec![0.0; n]),
            Reg::F32 => Buf::F32(vec![0.0; n]),
            Reg::I64 => Buf::I64(vec![0; n]),
            Reg::U64 => Buf::U64(vec![0; n]),
            Reg::I32 => Buf::I32(vec![0; n]),
            Reg::U32 => Buf::U32(vec![0; n]),
            Reg::Bool => Buf::Bool(vec![false; n]),
        }
    }

    /// `n` copies of one value.
    pub(super) fn full(s: Scalar, n: usize) -> Buf {
        let s = storage::from_raw(s.dtype, storage::to_raw(s.dtype, s));
        let mut b = Buf::zeros(s.dtype, n);
        each!(&mut b, v => v.fill(Elem::from_scalar(s)));
        b
    }

    pub(super) fn len(&self) -> usize {
        each!(self, v => v.len())
    }
}

/// Wraps integers to the width of `dtype`.
pub(super) fn wrap_ints(dtype: DType, b: &mut Buf) {
    let bits = dtype.bits() as u32;
    match b {
        Buf::I32(v) if bits < 32 => {
            let s = 32 - bits;
            v.iter_mut().for_each(|x| *x = (*x << s) >> s);
        }
        Buf::U32(v) if bits < 32 => {
            let m = (1u32 << bits) - 1;
            v.iter_mut().for_each(|x| *x &= m);
        }
        _ => {}
    }
}

/// Makes every element representable in `dtype`: integers wrap, floats round.
pub(super) fn narrow(dtype: DType, b: &mut Buf) {
    match b {
        Buf::F32(v) => narrow_f32(dtype, v),
        _ => wrap_ints(dtype, b),
    }
}

pub(super) fn narrow_f32(dtype: DType, v: &mut [f32]) {
    match dtype {
        DType::F32 => {}
        DType::F16 => v.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
        DType::BF16 => v.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
        d => v.iter_mut().for_each(|x| {
            *x = storage::from_raw(d, storage::to_raw(d, x.to_scalar(d))).as_f64() as f32;
        }),
    }
}

/// A dense row-major array; clones share their elements.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: Arc<Buf>,
}

impl Array {
    pub(super) fn new(dtype: DType, shape: Vec<usize>, data: Buf) -> Array {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Array { dtype, shape, data: Arc::new(data) }
    }

    pub(super) fn numel(&self) -> usize {
        self.data.len()
    }

    /// The bytes of its elements in the evaluator's representation.
    pub(super) fn bytes(&self) -> u64 {
        each!(&*self.data, v => size_of_val(v.as_slice()) as u64)
    }

    /// Row-major strides in elements.
    pub(super) fn strides(&self) -> Vec<usize> {
        strides(&self.shape)
    }

    pub(super) fn from_tensor(t: &Tensor) -> Option<Array> {
        let bytes = t.bytes()?;
        let n = t.numel();
        if bytes.len() != t.dtype.bytes_for(n) {
            return None;
        }
        let data = match t.dtype {
            DType::F32 => Buf::F32(pods(bytes)),
            DType::F64 => Buf::F64(pods(bytes)),
            DType::I64 => Buf::I64(pods(bytes)),
            DType::U64 => Buf::U64(pods(bytes)),
            DType::I32 => Buf::I32(pods(bytes)),
            DType::U32 => Buf::U32(pods(bytes)),
            DType::Bool => Buf::Bool(bytes.iter().map(|b| *b != 0).collect()),
            DType::U8 => Buf::U32(bytes.iter().map(|b| u32::from(*b)).collect()),
            DType::F16 => {
                Buf::F32(bytes.chunks_exact(2).map(|c| f16::from_le_bytes([c[0], c[1]]).to_f32()).collect())
            }
            DType::BF16 => {
                Buf::F32(bytes.chunks_exact(2).map(|c| bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect())
            }
            d => {
                let s = storage::decode(d, bytes, n);
                let mut b = Buf::zeros(d, n);
                each!(&mut b, v => v.iter_mut().zip(&s).for_each(|(x, s)| *x = Elem::from_scalar(*s)));
                b
            }
        };
        Some(Array::new(t.dtype, t.shape.clone(), data))
    }

    pub(super) fn to_tensor(&self) -> Result<Tensor, String> {
        let d = self.dtype;
        let bytes: Vec<u8> = match &*self.data {
            Buf::F32(v) if d == DType::F32 => bytemuck::cast_slice(v).to_vec(),
            Buf::F64(v) => bytemuck::cast_slice(v).to_vec(),
            Buf::I64(v) => bytemuck::cast_slice(v).to_vec(),
            Buf::U64(v) => bytemuck::cast_slice(v).to_vec(),
            Buf::I32(v) if d == DType::I32 => bytemuck::cast_slice(v).to_vec(),
            Buf::U32(v) if d == DType::U32 => bytemuck::cast_slice(v).to_vec(),
            b => each!(b, v => storage::encode(d, v.iter().map(|x| x.to_scalar(d)))),
        };
        Tensor::new(d, self.shape.clone(), bytes)
    }

    /// The elements as integers; `None` for floats.
    pub(super) fn ints(&self) -> Option<Vec<i64>> {
        if self.dtype.class() == Class::Float {
            return None;
        }
        Some(each!(&*self.data, v => v.iter().map(|x| x.to_bits() as i64).collect()))
    }

    /// The only element, as a bool.
    pub(super) fn truth(&self) -> Result<bool, EvalError> {
        match &*self.data {
            Buf::Bool(v) if v.len() == 1 => Ok(v[0]),
            _ => Err(EvalError::at(format!(
                "a condition must be one bool, got {}{:?}",
                self.dtype, self.shape
            ))),
        }
    }

    /// The elements as f64.
    pub(super) fn f64s(&self) -> Vec<f64> {
        each!(&*self.data, v => v.iter().map(|x| x.to_f64()).collect())
    }

    /// An array of `dtype` from floats, which are rounded.
    pub(super) fn from_f64s(dtype: DType, shape: Vec<usize>, v: Vec<f64>) -> Array {
        let data = if dtype == DType::F64 {
            Buf::F64(v)
        } else {
            let mut v: Vec<f32> = v.iter().map(|x| *x as f32).collect();
            narrow_f32(dtype, &mut v);
            Buf::F32(v)
        };
        Array::new(dtype, shape, data)
    }
}

pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut s = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        s[i - 1] = usize::wrapping_mul(s[i], shape[i]);
    }
    s
}

/// Splits a shape at an axis: the number of slices before it, its extent, and the number of elements after it.
pub(super) fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    // The other extents of an empty tensor may have a product that overflows.
    let n = |s: &[usize]| s.iter().fold(1, |n: usize, d| n.wrapping_mul(*d));
    (n(&shape[..axis]), shape[axis], n(&shape[axis + 1..]))
}

/// Packed bytes as elements, whatever their alignment.
fn pods<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    let mut v = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut v).copy_from_slice(bytes);
    v
}
