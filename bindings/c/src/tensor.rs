//! Tensors and their types in the C interface.

use crate::error::{argument, given, or, text};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use wgfc::ir::tensor::checked_numel;
use wgfc::value_info::ValueInfo;
use wgfc::{DType, Error, Tensor};

/// The element types; the index of a type is its number in C. New types are added at the end.
pub const DTYPES: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool,
    DType::F8E4M3,
    DType::F8E4M3Uz,
    DType::F8E5M2,
    DType::F8E5M2Uz,
    DType::F8E8M0,
    DType::F4E2M1,
    DType::I4,
    DType::I2,
    DType::U4,
    DType::U2,
];

fn number(d: DType) -> i32 {
    let at = DTYPES.iter().position(|x| *x == d).and_then(|i| i32::try_from(i).ok());
    at.unwrap_or(-1)
}

/// `wgfc_tensor`: a tensor on the host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WgfcTensor {
    /// The name of the input or output.
    pub name: *const c_char,
    /// The index of the type in [`DTYPES`].
    pub dtype: i32,
    /// The number of extents.
    pub rank: u32,
    /// The extents, outermost first.
    pub shape: *const i64,
    /// The elements, row by row.
    pub data: *const c_void,
    /// The number of bytes.
    pub bytes: usize,
}

/// `wgfc_port`: an input or output of a model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WgfcPort {
    /// The name.
    pub name: *const c_char,
    /// The index of the type in [`DTYPES`].
    pub dtype: i32,
    /// The number of extents.
    pub rank: u32,
    /// The extents, outermost first; −1 for symbolic ones.
    pub shape: *const i64,
    /// The extents as strings: `224`, `batch`, `past + seq`.
    pub extents: *const *const c_char,
    /// 1 for an input that a run may leave out, else 0.
    pub optional: i32,
}

/// A port, with the memory that it points to.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) raw: WgfcPort,
    _name: CString,
    _shape: Vec<i64>,
    _texts: Vec<CString>,
    _extents: Vec<*const c_char>,
}

impl Port {
    pub(crate) fn new(p: &ValueInfo) -> Port {
        let name = text(p.name.as_str());
        let shape: Vec<i64> = p.whole().iter().map(|d| d.as_const().unwrap_or(-1)).collect();
        let texts: Vec<CString> = p.whole().iter().map(|d| text(d.to_string())).collect();
        let extents: Vec<*const c_char> = texts.iter().map(|t| t.as_ptr()).collect();
        // The heap memory of vectors and strings keeps its address when these are moved.
        let raw = WgfcPort {
            name: name.as_ptr(),
            dtype: number(p.dtype),
            rank: shape.len() as u32,
            shape: shape.as_ptr(),
            extents: extents.as_ptr(),
            optional: i32::from(p.broadcast.is_some()),
        };
        Port { raw, _name: name, _shape: shape, _texts: texts, _extents: extents }
    }
}

/// The name and a copy of a tensor of the caller.
///
/// # Safety
/// The tensor's pointers are null or point to what the header says, for as long as the name is used.
pub(crate) unsafe fn read(t: &WgfcTensor) -> Result<(&str, Tensor), Error> {
    // SAFETY: the caller guarantees it.
    let name = unsafe { given(t.name, "the name of an input") }?;
    let bad = |message: String| argument(&format!("input \"{name}\": {message}"));
    let dtype = usize::try_from(t.dtype).ok().and_then(|i| DTYPES.get(i));
    let dtype = *dtype.ok_or_else(|| bad(format!("there is no type of the number {}", t.dtype)))?;
    if t.rank > 0 && t.shape.is_null() {
        return Err(bad(format!("it has {} extents, and `shape` is NULL", t.rank)));
    }
    let shape: &[i64] = match t.rank {
        0 => &[],
        // SAFETY: `shape` points to `rank` extents.
        n => unsafe { std::slice::from_raw_parts(t.shape, n as usize) },
    };
    let shape: Option<Vec<usize>> = shape.iter().map(|e| usize::try_from(*e).ok()).collect();
    let shape = shape.ok_or_else(|| bad("an extent is negative".to_owned()))?;
    let need = checked_numel(&shape).map(|n| dtype.bytes_for(n));
    let need = need.ok_or_else(|| bad(format!("its shape {shape:?} has too many elements")))?;
    if t.bytes != need {
        return Err(bad(format!("{dtype}{shape:?} has {need} bytes, and `bytes` is {}", t.bytes)));
    }
    if need > 0 && t.data.is_null() {
        return Err(bad("`data` is NULL".to_owned()));
    }
    let bytes = match need {
        0 => vec![],
        // SAFETY: `data` points to that many bytes.
        n => unsafe { std::slice::from_raw_parts(t.data.cast::<u8>(), n) }.to_vec(),
    };
    Ok((name, Tensor::new(dtype, shape, bytes).map_err(bad)?))
}

/// The outputs of a run, which the caller frees.
#[derive(Debug)]
pub struct WgfcResults {
    all: Vec<Held>,
}

/// A tensor, with the memory that it points to.
#[derive(Debug)]
struct Held {
    raw: WgfcTensor,
    name: CString,
    _shape: Vec<i64>,
    _tensor: Tensor,
    /// A copy of the bytes, if those of the tensor are not aligned for the type.
    _aligned: Vec<u64>,
}

impl Held {
    fn new(name: &str, tensor: Tensor) -> Result<Held, Error> {
        let absent = || Error::Internal(format!("output \"{name}\" has no bytes"));
        let bytes = tensor.bytes().ok_or_else(absent)?;
        let (mut data, len) = (bytes.as_ptr(), bytes.len());
        let mut aligned: Vec<u64> = vec![];
        if !data.addr().is_multiple_of(align_of::<u64>()) || len == 0 {
            let word = |b: &[u8]| {
                let mut w = [0; 8];
                w[..b.len()].copy_from_slice(b);
                u64::from_ne_bytes(w)
            };
            aligned = bytes.chunks(8).map(word).collect();
            data = aligned.as_ptr().cast();
        }
        let shape: Vec<i64> = tensor.shape.iter().map(|e| i64::try_from(*e).unwrap_or(i64::MAX)).collect();
        let own_name = text(name);
        let raw = WgfcTensor {
            name: own_name.as_ptr(),
            dtype: number(tensor.dtype),
            rank: shape.len() as u32,
            shape: shape.as_ptr(),
            data: data.cast(),
            bytes: len,
        };
        Ok(Held { raw, name: own_name, _shape: shape, _tensor: tensor, _aligned: aligned })
    }
}

impl WgfcResults {
    pub(crate) fn new(outputs: Vec<(String, Tensor)>) -> Result<WgfcResults, Error> {
        let all = outputs.into_iter().map(|(name, t)| Held::new(&name, t)).collect::<Result<_, _>>()?;
        Ok(WgfcResults { all })
    }
}

/// See `wgfc.h`.
///
/// # Safety
/// `results` is NULL or results that have not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_result_count(results: *const WgfcResults) -> usize {
    // SAFETY: it points to results unless it is null.
    unsafe { results.as_ref() }.map_or(0, |r| r.all.len())
}

/// See `wgfc.h`.
///
/// # Safety
/// `results` is NULL or results that have not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_result(results: *const WgfcResults, index: usize) -> *const WgfcTensor {
    // SAFETY: it points to results unless it is null.
    let found = unsafe { results.as_ref() }.and_then(|r| r.all.get(index));
    found.map_or(ptr::null(), |h| &raw const h.raw)
}

/// See `wgfc.h`.
///
/// # Safety
/// `results` is NULL or results that have not been freed, and `name` NULL or a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_result_named(
    results: *const WgfcResults,
    name: *const c_char,
) -> *const WgfcTensor {
    // SAFETY: it points to results unless it is null.
    let Some(results) = (unsafe { results.as_ref() }) else { return ptr::null() };
    if name.is_null() {
        return ptr::null();
    }
    // SAFETY: it is a text that ends with NUL.
    let name = unsafe { CStr::from_ptr(name) };
    let found = results.all.iter().find(|h| h.name.as_c_str() == name);
    found.map_or(ptr::null(), |h| &raw const h.raw)
}

/// See `wgfc.h`.
///
/// # Safety
/// `results` is NULL or results that have not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_results_free(results: *mut WgfcResults) {
    if !results.is_null() {
        // SAFETY: it was made by `wgfc_run`, and is not used any more.
        or((), || drop(unsafe { Box::from_raw(results) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_number() {
        for d in DType::ALL {
            assert_eq!(DTYPES.iter().filter(|x| *x == d).count(), 1, "{d}");
            assert_eq!(DTYPES[number(*d) as usize], *d);
        }
    }

    #[test]
    fn bytes_of_results_are_aligned() {
        let owner: std::sync::Arc<Vec<u8>> = std::sync::Arc::new((0..40).collect());
        for offset in 0..8 {
            let t = Tensor::shared(DType::U8, vec![11], owner.clone(), offset, 11).unwrap();
            let held = Held::new("x", t).unwrap();
            assert!(held.raw.data.addr().is_multiple_of(8));
            // SAFETY: `data` points to that many bytes.
            let got = unsafe { std::slice::from_raw_parts(held.raw.data.cast::<u8>(), held.raw.bytes) };
            assert!(got.iter().map(|b| usize::from(*b)).eq(offset..offset + 11));
        }
    }
}
