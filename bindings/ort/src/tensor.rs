//! Values and types of the interface.

use crate::memory::{release, zeros};
use ort_sys::ONNXTensorElementDataType as Element;
use std::ffi::{CString, c_void};
use wgfc::ir::tensor::checked_numel;
use wgfc::value_info::ValueInfo;
use wgfc::{DType, Tensor};

/// Pairs of element types, of wgfc and of the interface.
const TYPES: &[(DType, Element)] = &[
    (DType::F32, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT),
    (DType::U8, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8),
    (DType::I8, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8),
    (DType::U16, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16),
    (DType::I16, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16),
    (DType::I32, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32),
    (DType::I64, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64),
    (DType::Bool, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL),
    (DType::F16, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16),
    (DType::F64, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE),
    (DType::U32, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32),
    (DType::U64, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64),
    (DType::BF16, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16),
    (DType::F8E4M3, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN),
    (DType::F8E4M3Uz, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ),
    (DType::F8E5M2, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2),
    (DType::F8E5M2Uz, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ),
    (DType::U4, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4),
    (DType::I4, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4),
    (DType::F4E2M1, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1),
    (DType::U2, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2),
    (DType::I2, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2),
    (DType::F8E8M0, Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0),
];

/// wgfc's type for one of the interface's.
pub(crate) fn dtype(e: Element) -> Result<DType, String> {
    let found = TYPES.iter().find(|t| t.1 == e).map(|t| t.0);
    found.ok_or_else(|| format!("wgfc has no tensors of {e:?}"))
}

/// The interface's type for one of wgfc's.
pub(crate) fn element(d: DType) -> Element {
    let found = TYPES.iter().find(|t| t.0 == d).map(|t| t.1);
    found.unwrap_or(Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED)
}

/// A tensor on the host.
pub(crate) struct Value {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<i64>,
    /// The elements; memory that the tensor owns is aligned to 16 bytes.
    pub(crate) data: *mut c_void,
    pub(crate) bytes: usize,
    owned: bool,
}

impl Drop for Value {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: `zeros` allocated the memory.
            unsafe { release(self.data) };
        }
    }
}

/// The size in bytes of a tensor.
pub(crate) fn bytes_of(dtype: DType, shape: &[i64]) -> Result<usize, String> {
    let sizes: Option<Vec<usize>> = shape.iter().map(|e| usize::try_from(*e).ok()).collect();
    let numel = sizes.and_then(|s| checked_numel(&s));
    numel.map(|n| dtype.bytes_for(n)).ok_or_else(|| format!("{shape:?} is no shape of a tensor"))
}

impl Value {
    /// A tensor of zeros.
    pub(crate) fn zeros(dtype: DType, shape: Vec<i64>) -> Result<Value, String> {
        let bytes = bytes_of(dtype, &shape)?;
        let data = zeros(bytes);
        if data.is_null() {
            return Err(format!("there is no memory for {bytes} bytes"));
        }
        Ok(Value { dtype, shape, data, bytes, owned: true })
    }

    /// A tensor over the caller's memory of `room` bytes.
    pub(crate) fn borrowed(
        dtype: DType,
        shape: Vec<i64>,
        data: *mut c_void,
        room: usize,
    ) -> Result<Value, String> {
        let bytes = bytes_of(dtype, &shape)?;
        if bytes > room {
            return Err(format!("{dtype}{shape:?} has {bytes} bytes, and there are {room}"));
        }
        Ok(Value { dtype, shape, data, bytes, owned: false })
    }

    /// Copies a tensor of wgfc.
    pub(crate) fn of(t: &Tensor) -> Result<Value, String> {
        let shape = t.shape.iter().map(|e| i64::try_from(*e).unwrap_or(i64::MAX)).collect();
        let mut value = Value::zeros(t.dtype, shape)?;
        value.fill(t)?;
        Ok(value)
    }

    /// Copies the elements of a tensor of the same type and shape.
    pub(crate) fn fill(&mut self, t: &Tensor) -> Result<(), String> {
        let same = self.shape.iter().map(|e| usize::try_from(*e).ok()).eq(t.shape.iter().map(|e| Some(*e)));
        if t.dtype != self.dtype || !same {
            let (to, from) = (self.dtype, t.dtype);
            return Err(format!(
                "the value given is {to}{:?}, and the output is {from}{:?}",
                self.shape, t.shape
            ));
        }
        let from = t.bytes().filter(|b| b.len() == self.bytes).ok_or("the output has no bytes")?;
        // SAFETY: there is room for that many bytes, and memory that a value borrows does not belong to wgfc.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.data.cast::<u8>(), from.len()) };
        Ok(())
    }

    /// Copies to a tensor of wgfc.
    pub(crate) fn tensor(&self) -> Result<Tensor, String> {
        let shape = self.shape.iter().map(|e| usize::try_from(*e).unwrap_or(0)).collect();
        let bytes = match self.bytes {
            0 => vec![],
            // SAFETY: the tensor has that many bytes.
            n => unsafe { std::slice::from_raw_parts(self.data.cast::<u8>(), n) }.to_vec(),
        };
        Tensor::new(self.dtype, shape, bytes)
    }
}

/// The type of an input, an output or a value.
#[derive(Clone)]
pub(crate) struct Type {
    pub(crate) dtype: DType,
    /// The extents; −1 for symbolic ones.
    pub(crate) shape: Vec<i64>,
    /// The names of symbolic extents, empty for the others.
    pub(crate) names: Vec<CString>,
}

impl Type {
    pub(crate) fn new(dtype: DType, shape: Vec<i64>) -> Type {
        Type { dtype, names: vec![CString::default(); shape.len()], shape }
    }
    pub(crate) fn of_port(p: &ValueInfo) -> Type {
        let dims = p.whole();
        let name = |d: &wgfc::ir::Dim| match d.as_const() {
            Some(_) => CString::default(),
            None => CString::new(d.to_string()).unwrap_or_default(),
        };
        Type {
            dtype: p.dtype,
            shape: dims.iter().map(|d| d.as_const().unwrap_or(-1)).collect(),
            names: dims.iter().map(name).collect(),
        }
    }
}
