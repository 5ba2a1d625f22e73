//! Tensors and their types. For the safety of all functions see [`super`].

use super::{array, create, guarded, put, set, set_all};
use crate::tensor::{Type, Value, dtype, element};
use ort_sys::*;
use std::ffi::{c_char, c_int, c_void};

pub(super) unsafe extern "system" fn CreateTensorAsOrtValue(
    _: *mut OrtAllocator,
    shape: *const i64,
    rank: usize,
    ty: ONNXTensorElementDataType,
    out: *mut *mut OrtValue,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { create(out, || Value::zeros(dtype(ty)?, array(shape, rank).to_vec())) }
}

pub(super) unsafe extern "system" fn CreateTensorWithDataAsOrtValue(
    _: *const OrtMemoryInfo,
    data: *mut c_void,
    len: usize,
    shape: *const i64,
    rank: usize,
    ty: ONNXTensorElementDataType,
    out: *mut *mut OrtValue,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { create(out, || Value::borrowed(dtype(ty)?, array(shape, rank).to_vec(), data, len)) }
}

pub(super) unsafe extern "system" fn IsTensor(_: *const OrtValue, out: *mut c_int) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, 1) }
}

pub(super) unsafe extern "system" fn GetTensorMutableData(
    of: *mut OrtValue,
    out: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, (*of.cast::<Value>()).data) }
}

pub(super) unsafe extern "system" fn GetTensorSizeInBytes(
    of: *const OrtValue,
    out: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, (*of.cast::<Value>()).bytes) }
}

pub(super) unsafe extern "system" fn GetTensorElementTypeAndShapeDataReference(
    of: *const OrtValue,
    ty: *mut ONNXTensorElementDataType,
    shape: *mut *const i64,
    rank: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        let value = &*of.cast::<Value>();
        *ty = element(value.dtype);
        *shape = value.shape.as_ptr();
        *rank = value.shape.len();
    }
    OrtStatusPtr::default()
}

/// The type of a value. One object serves as `OrtTypeInfo` and as `OrtTensorTypeAndShapeInfo`.
pub(super) unsafe extern "system" fn value_type<H>(of: *const OrtValue, out: *mut *mut H) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        let value = &*of.cast::<Value>();
        put(out, Type::new(value.dtype, value.shape.clone()));
    }
    OrtStatusPtr::default()
}

pub(super) unsafe extern "system" fn always_a_tensor<H>(_: *const H, out: *mut ONNXType) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, ONNXType::ONNX_TYPE_TENSOR) }
}

pub(super) unsafe extern "system" fn CastTypeInfoToTensorInfo(
    of: *const OrtTypeInfo,
    out: *mut *const OrtTensorTypeAndShapeInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, of.cast()) }
}

pub(super) unsafe extern "system" fn CreateTensorTypeAndShapeInfo(
    out: *mut *mut OrtTensorTypeAndShapeInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { put(out, Type::new(wgfc::DType::F32, vec![])) };
    OrtStatusPtr::default()
}

pub(super) unsafe extern "system" fn SetTensorElementType(
    of: *mut OrtTensorTypeAndShapeInfo,
    ty: ONNXTensorElementDataType,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        unsafe { (*of.cast::<Type>()).dtype = dtype(ty)? };
        Ok(())
    })
}

pub(super) unsafe extern "system" fn SetDimensions(
    of: *mut OrtTensorTypeAndShapeInfo,
    shape: *const i64,
    rank: usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        let ty = &mut *of.cast::<Type>();
        *ty = Type::new(ty.dtype, array(shape, rank).to_vec());
    }
    OrtStatusPtr::default()
}

pub(super) unsafe extern "system" fn GetTensorElementType(
    of: *const OrtTensorTypeAndShapeInfo,
    out: *mut ONNXTensorElementDataType,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, element((*of.cast::<Type>()).dtype)) }
}

pub(super) unsafe extern "system" fn GetDimensionsCount(
    of: *const OrtTensorTypeAndShapeInfo,
    out: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, (*of.cast::<Type>()).shape.len()) }
}

pub(super) unsafe extern "system" fn GetDimensions(
    of: *const OrtTensorTypeAndShapeInfo,
    out: *mut i64,
    len: usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set_all(out, len, (*of.cast::<Type>()).shape.iter().copied()) }
}

pub(super) unsafe extern "system" fn GetSymbolicDimensions(
    of: *const OrtTensorTypeAndShapeInfo,
    out: *mut *const c_char,
    len: usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set_all(out, len, (*of.cast::<Type>()).names.iter().map(|n| n.as_ptr())) }
}

pub(super) unsafe extern "system" fn GetTensorShapeElementCount(
    of: *const OrtTensorTypeAndShapeInfo,
    out: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        let shape = &(*of.cast::<Type>()).shape;
        *out = shape.iter().fold(1, |n, e| n.saturating_mul(usize::try_from(*e).unwrap_or(0)));
    }
    OrtStatusPtr::default()
}
