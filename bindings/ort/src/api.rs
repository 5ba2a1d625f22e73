//! The table of functions, which behave as ONNX Runtime's C API documents them. Functions that are not implemented return
//! `ORT_NOT_IMPLEMENTED`.
//!
//! Safety of all functions: `ort` calls them as that API demands. Pointers to objects come from this table and have not been released,
//! strings end with NUL, arrays have the given lengths, and out-pointers can be written.

#![expect(non_snake_case, reason = "the names are those of the C API")]

use crate::memory::{ALLOCATOR, text};
use crate::session::{Port, Session, SessionOptions};
use crate::tensor::{Type, Value, dtype, element};
use ort_sys::stub::Error;
use ort_sys::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr;

/// An error for the caller; NULs in the message are removed.
fn status(code: OrtErrorCode, message: &str) -> OrtStatusPtr {
    Error::new_sys(code, message.replace('\0', " "))
}

/// Runs `f`; a panic becomes an error.
fn guarded(f: impl FnOnce() -> Result<(), String>) -> OrtStatusPtr {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => OrtStatusPtr::default(),
        Ok(Err(message)) => status(OrtErrorCode::ORT_FAIL, &message),
        Err(_) => status(OrtErrorCode::ORT_RUNTIME_EXCEPTION, "a panic in wgfc; this is a bug in wgfc"),
    }
}

/// Allocates an object and writes its address.
unsafe fn put<T, H>(out: *mut *mut H, value: T) {
    // SAFETY: see the module.
    unsafe { *out = Box::into_raw(Box::new(value)).cast() };
}

/// Frees an object.
unsafe fn free<T>(p: *mut T) {
    if !p.is_null() {
        // SAFETY: `put` has made it.
        drop(unsafe { Box::from_raw(p) });
    }
}

unsafe fn string(s: *const c_char) -> String {
    // SAFETY: see the module.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}

/// An array; the pointer may be null if the array is empty.
unsafe fn array<'a, T>(p: *const T, len: usize) -> &'a [T] {
    // SAFETY: see the module.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(p, len) } }
}

unsafe fn path(p: *const os_char) -> PathBuf {
    #[cfg(windows)]
    {
        use std::os::windows::ffi::OsStringExt;
        // SAFETY: see the module.
        let len = (0..).take_while(|i| unsafe { *p.add(*i) } != 0).count();
        // SAFETY: the loop above has read that many elements.
        std::ffi::OsString::from_wide(unsafe { array(p, len) }).into()
    }
    #[cfg(not(windows))]
    {
        // SAFETY: see the module.
        let bytes = unsafe { CStr::from_ptr(p.cast()) }.to_bytes().to_vec();
        // SAFETY: `ort` has made the bytes from an `OsStr`.
        unsafe { std::ffi::OsString::from_encoded_bytes_unchecked(bytes) }.into()
    }
}

/// Writes the address of an object without content, which the interface demands.
unsafe fn nothing<H>(out: *mut *mut H) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = ptr::dangling_mut() };
    OrtStatusPtr::default()
}

unsafe extern "system" fn CreateEnv(
    _: OrtLoggingLevel,
    _: *const c_char,
    out: *mut *mut OrtEnv,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { nothing(out) }
}

unsafe extern "system" fn CreateEnvWithCustomLogger(
    _: OrtLoggingFunction,
    _: *mut c_void,
    _: OrtLoggingLevel,
    _: *const c_char,
    out: *mut *mut OrtEnv,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { nothing(out) }
}

unsafe extern "system" fn CreateSessionOptions(out: *mut *mut OrtSessionOptions) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { put(out, SessionOptions::default()) };
    OrtStatusPtr::default()
}

unsafe extern "system" fn CloneSessionOptions(
    of: *const OrtSessionOptions,
    out: *mut *mut OrtSessionOptions,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { put(out, (*of.cast::<SessionOptions>()).clone()) };
    OrtStatusPtr::default()
}

unsafe extern "system" fn ReleaseSessionOptions(p: *mut OrtSessionOptions) {
    // SAFETY: see the module.
    unsafe { free(p.cast::<SessionOptions>()) };
}

unsafe extern "system" fn SetSessionGraphOptimizationLevel(
    of: *mut OrtSessionOptions,
    level: GraphOptimizationLevel,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    let options = unsafe { &mut *of.cast::<SessionOptions>() };
    options.unfused = level == GraphOptimizationLevel::ORT_DISABLE_ALL;
    OrtStatusPtr::default()
}

unsafe extern "system" fn AddFreeDimensionOverrideByName(
    of: *mut OrtSessionOptions,
    name: *const c_char,
    value: i64,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    let (options, name) = unsafe { (&mut *of.cast::<SessionOptions>(), string(name)) };
    options.dims.insert(name, value);
    OrtStatusPtr::default()
}

unsafe extern "system" fn AddSessionConfigEntry(
    of: *mut OrtSessionOptions,
    key: *const c_char,
    value: *const c_char,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    let (options, key, value) = unsafe { (&mut *of.cast::<SessionOptions>(), string(key), string(value)) };
    // Other keys configure parts of ONNX Runtime.
    if key == "wgfc.adapter" {
        options.adapter = Some(value);
    }
    OrtStatusPtr::default()
}

unsafe extern "system" fn CreateSession(
    _: *const OrtEnv,
    model: *const os_char,
    options: *const OrtSessionOptions,
    out: *mut *mut OrtSession,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        let (path, options) = unsafe { (path(model), &*options.cast::<SessionOptions>()) };
        let session = Session::open(&path, options).map_err(|e| e.to_string())?;
        // SAFETY: see the module.
        unsafe { put(out, session) };
        Ok(())
    })
}

unsafe extern "system" fn CreateSessionFromArray(
    _: *const OrtEnv,
    model: *const c_void,
    len: usize,
    options: *const OrtSessionOptions,
    out: *mut *mut OrtSession,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        let (bytes, options) =
            unsafe { (array(model.cast::<u8>(), len).to_vec(), &*options.cast::<SessionOptions>()) };
        let session = Session::of_bytes(bytes, options).map_err(|e| e.to_string())?;
        // SAFETY: see the module.
        unsafe { put(out, session) };
        Ok(())
    })
}

unsafe extern "system" fn ReleaseSession(p: *mut OrtSession) {
    // SAFETY: see the module.
    unsafe { free(p.cast::<Session>()) };
}

unsafe extern "system" fn Run(
    session: *mut OrtSession,
    _: *const OrtRunOptions,
    input_names: *const *const c_char,
    inputs: *const *const OrtValue,
    input_len: usize,
    output_names: *const *const c_char,
    output_len: usize,
    outputs: *mut *mut OrtValue,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        unsafe {
            let session = &*session.cast::<Session>();
            let named = array(input_names, input_len).iter().zip(array(inputs, input_len));
            let given: Vec<(String, &Value)> =
                named.map(|(n, v)| (string(*n), &*v.cast::<Value>())).collect();
            let names: Vec<String> = array(output_names, output_len).iter().map(|n| string(*n)).collect();
            let outputs: &mut [*mut Value] = match output_len {
                0 => &mut [],
                n => std::slice::from_raw_parts_mut(outputs.cast(), n),
            };
            session.run(&given, &names, outputs)
        }
    })
}

unsafe extern "system" fn SessionGetInputCount(of: *const OrtSession, out: *mut usize) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = (*of.cast::<Session>()).inputs.len() };
    OrtStatusPtr::default()
}

unsafe extern "system" fn SessionGetOutputCount(of: *const OrtSession, out: *mut usize) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = (*of.cast::<Session>()).outputs.len() };
    OrtStatusPtr::default()
}

unsafe extern "system" fn SessionGetOverridableInitializerCount(
    _: *const OrtSession,
    out: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = 0 };
    OrtStatusPtr::default()
}

fn port(all: &[Port], index: usize) -> Result<&Port, String> {
    all.get(index).ok_or_else(|| format!("there are {} of them, and none of the number {index}", all.len()))
}

unsafe extern "system" fn SessionGetInputTypeInfo(
    of: *const OrtSession,
    index: usize,
    out: *mut *mut OrtTypeInfo,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        unsafe { put(out, port(&(*of.cast::<Session>()).inputs, index)?.ty.clone()) };
        Ok(())
    })
}

unsafe extern "system" fn SessionGetOutputTypeInfo(
    of: *const OrtSession,
    index: usize,
    out: *mut *mut OrtTypeInfo,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        unsafe { put(out, port(&(*of.cast::<Session>()).outputs, index)?.ty.clone()) };
        Ok(())
    })
}

unsafe extern "system" fn SessionGetInputName(
    of: *const OrtSession,
    index: usize,
    _: *mut OrtAllocator,
    out: *mut *mut c_char,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        unsafe { *out = text(&port(&(*of.cast::<Session>()).inputs, index)?.name) };
        Ok(())
    })
}

unsafe extern "system" fn SessionGetOutputName(
    of: *const OrtSession,
    index: usize,
    _: *mut OrtAllocator,
    out: *mut *mut c_char,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        unsafe { *out = text(&port(&(*of.cast::<Session>()).outputs, index)?.name) };
        Ok(())
    })
}

/// Reports host memory for all inputs, or for all outputs.
unsafe extern "system" fn on_the_host(
    _: *const OrtSession,
    out: *mut *const OrtMemoryInfo,
    len: usize,
) -> OrtStatusPtr {
    for i in 0..len {
        // SAFETY: see the module.
        unsafe { *out.add(i) = ptr::dangling() };
    }
    OrtStatusPtr::default()
}

unsafe extern "system" fn CreateTensorAsOrtValue(
    _: *mut OrtAllocator,
    shape: *const i64,
    rank: usize,
    ty: ONNXTensorElementDataType,
    out: *mut *mut OrtValue,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        unsafe { put(out, Value::zeros(dtype(ty)?, array(shape, rank).to_vec())?) };
        Ok(())
    })
}

unsafe extern "system" fn CreateTensorWithDataAsOrtValue(
    _: *const OrtMemoryInfo,
    data: *mut c_void,
    len: usize,
    shape: *const i64,
    rank: usize,
    ty: ONNXTensorElementDataType,
    out: *mut *mut OrtValue,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        unsafe { put(out, Value::borrowed(dtype(ty)?, array(shape, rank).to_vec(), data, len)?) };
        Ok(())
    })
}

unsafe extern "system" fn ReleaseValue(p: *mut OrtValue) {
    // SAFETY: see the module.
    unsafe { free(p.cast::<Value>()) };
}

unsafe extern "system" fn IsTensor(_: *const OrtValue, out: *mut c_int) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = 1 };
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetTensorMutableData(of: *mut OrtValue, out: *mut *mut c_void) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = (*of.cast::<Value>()).data };
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetTensorSizeInBytes(of: *const OrtValue, out: *mut usize) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = (*of.cast::<Value>()).bytes };
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetTensorElementTypeAndShapeDataReference(
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

unsafe extern "system" fn GetTensorTypeAndShape(
    of: *const OrtValue,
    out: *mut *mut OrtTensorTypeAndShapeInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        let value = &*of.cast::<Value>();
        put(out, Type::new(value.dtype, value.shape.clone()));
    }
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetTypeInfo(of: *const OrtValue, out: *mut *mut OrtTypeInfo) -> OrtStatusPtr {
    // SAFETY: see the module. A type of a tensor is one object under both names.
    unsafe { GetTensorTypeAndShape(of, out.cast()) }
}

unsafe extern "system" fn GetValueType(_: *const OrtValue, out: *mut ONNXType) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = ONNXType::ONNX_TYPE_TENSOR };
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetOnnxTypeFromTypeInfo(_: *const OrtTypeInfo, out: *mut ONNXType) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = ONNXType::ONNX_TYPE_TENSOR };
    OrtStatusPtr::default()
}

unsafe extern "system" fn CastTypeInfoToTensorInfo(
    of: *const OrtTypeInfo,
    out: *mut *const OrtTensorTypeAndShapeInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = of.cast() };
    OrtStatusPtr::default()
}

unsafe extern "system" fn CreateTensorTypeAndShapeInfo(
    out: *mut *mut OrtTensorTypeAndShapeInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { put(out, Type::new(wgfc::DType::F32, vec![])) };
    OrtStatusPtr::default()
}

unsafe extern "system" fn SetTensorElementType(
    of: *mut OrtTensorTypeAndShapeInfo,
    ty: ONNXTensorElementDataType,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        unsafe { (*of.cast::<Type>()).dtype = dtype(ty)? };
        Ok(())
    })
}

unsafe extern "system" fn SetDimensions(
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

unsafe extern "system" fn GetTensorElementType(
    of: *const OrtTensorTypeAndShapeInfo,
    out: *mut ONNXTensorElementDataType,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = element((*of.cast::<Type>()).dtype) };
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetDimensionsCount(
    of: *const OrtTensorTypeAndShapeInfo,
    out: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = (*of.cast::<Type>()).shape.len() };
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetDimensions(
    of: *const OrtTensorTypeAndShapeInfo,
    out: *mut i64,
    len: usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        let ty = &*of.cast::<Type>();
        for (i, extent) in ty.shape.iter().take(len).enumerate() {
            *out.add(i) = *extent;
        }
    }
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetSymbolicDimensions(
    of: *const OrtTensorTypeAndShapeInfo,
    out: *mut *const c_char,
    len: usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        let ty = &*of.cast::<Type>();
        for (i, name) in ty.names.iter().take(len).enumerate() {
            *out.add(i) = name.as_ptr();
        }
    }
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetTensorShapeElementCount(
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

unsafe extern "system" fn ReleaseTypeInfo(p: *mut OrtTypeInfo) {
    // SAFETY: see the module.
    unsafe { free(p.cast::<Type>()) };
}

unsafe extern "system" fn ReleaseTensorTypeAndShapeInfo(p: *mut OrtTensorTypeAndShapeInfo) {
    // SAFETY: see the module.
    unsafe { free(p.cast::<Type>()) };
}

unsafe extern "system" fn CreateMemoryInfo(
    name: *const c_char,
    _: OrtAllocatorType,
    _: c_int,
    _: OrtMemType,
    out: *mut *mut OrtMemoryInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        match string(name).as_str() {
            "Cpu" => nothing(out),
            other => status(
                OrtErrorCode::ORT_NOT_IMPLEMENTED,
                &format!("values are in the host's memory, not in that of \"{other}\""),
            ),
        }
    }
}

unsafe extern "system" fn CreateCpuMemoryInfo(
    _: OrtAllocatorType,
    _: OrtMemType,
    out: *mut *mut OrtMemoryInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { nothing(out) }
}

unsafe extern "system" fn CompareMemoryInfo(
    _: *const OrtMemoryInfo,
    _: *const OrtMemoryInfo,
    out: *mut c_int,
) -> OrtStatusPtr {
    // SAFETY: see the module. All are the same.
    unsafe { *out = 0 };
    OrtStatusPtr::default()
}

unsafe extern "system" fn MemoryInfoGetName(
    _: *const OrtMemoryInfo,
    out: *mut *const c_char,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = c"Cpu".as_ptr() };
    OrtStatusPtr::default()
}

unsafe extern "system" fn MemoryInfoGetId(_: *const OrtMemoryInfo, out: *mut c_int) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = 0 };
    OrtStatusPtr::default()
}

unsafe extern "system" fn MemoryInfoGetMemType(
    _: *const OrtMemoryInfo,
    out: *mut OrtMemType,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = OrtMemType::OrtMemTypeDefault };
    OrtStatusPtr::default()
}

unsafe extern "system" fn MemoryInfoGetType(
    _: *const OrtMemoryInfo,
    out: *mut OrtAllocatorType,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = OrtAllocatorType::OrtDeviceAllocator };
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetTensorMemoryInfo(
    _: *const OrtValue,
    out: *mut *const OrtMemoryInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = ptr::dangling() };
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetAllocatorWithDefaultOptions(out: *mut *mut OrtAllocator) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = (&raw const ALLOCATOR.0).cast_mut() };
    OrtStatusPtr::default()
}

unsafe extern "system" fn CreateAllocator(
    _: *const OrtSession,
    _: *const OrtMemoryInfo,
    out: *mut *mut OrtAllocator,
) -> OrtStatusPtr {
    // SAFETY: see the module. It has no state and is never freed.
    unsafe { GetAllocatorWithDefaultOptions(out) }
}

unsafe extern "system" fn AllocatorAlloc(
    _: *mut OrtAllocator,
    size: usize,
    out: *mut *mut c_void,
) -> OrtStatusPtr {
    let p = crate::memory::zeros(size);
    // SAFETY: see the module.
    unsafe { *out = p };
    match p.is_null() {
        true => status(OrtErrorCode::ORT_FAIL, &format!("there is no memory for {size} bytes")),
        false => OrtStatusPtr::default(),
    }
}

unsafe extern "system" fn AllocatorFree(_: *mut OrtAllocator, p: *mut c_void) -> OrtStatusPtr {
    // SAFETY: the caller has it from this allocator.
    unsafe { crate::memory::release(p) };
    OrtStatusPtr::default()
}

unsafe extern "system" fn AllocatorGetInfo(
    _: *const OrtAllocator,
    out: *mut *const OrtMemoryInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { *out = ptr::dangling() };
    OrtStatusPtr::default()
}

unsafe extern "system" fn GetBuildInfoString() -> *const c_char {
    concat!("ORT Build Info: backend=wgfc, version=", env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The functions of the backend, for `ort::set_api`.
pub fn api() -> OrtApi {
    OrtApi {
        CreateEnv,
        CreateEnvWithCustomLogger,
        CreateSessionOptions,
        CloneSessionOptions,
        ReleaseSessionOptions,
        SetSessionGraphOptimizationLevel,
        AddFreeDimensionOverrideByName,
        AddSessionConfigEntry,
        CreateSession,
        CreateSessionFromArray,
        ReleaseSession,
        Run,
        SessionGetInputCount,
        SessionGetOutputCount,
        SessionGetOverridableInitializerCount,
        SessionGetInputTypeInfo,
        SessionGetOutputTypeInfo,
        SessionGetInputName,
        SessionGetOutputName,
        SessionGetMemoryInfoForInputs: on_the_host,
        SessionGetMemoryInfoForOutputs: on_the_host,
        CreateTensorAsOrtValue,
        CreateTensorWithDataAsOrtValue,
        ReleaseValue,
        IsTensor,
        GetTensorMutableData,
        GetTensorSizeInBytes,
        GetTensorElementTypeAndShapeDataReference,
        GetTensorTypeAndShape,
        GetTypeInfo,
        GetValueType,
        GetOnnxTypeFromTypeInfo,
        CastTypeInfoToTensorInfo,
        CreateTensorTypeAndShapeInfo,
        SetTensorElementType,
        SetDimensions,
        GetTensorElementType,
        GetDimensionsCount,
        GetDimensions,
        GetSymbolicDimensions,
        GetTensorShapeElementCount,
        ReleaseTypeInfo,
        ReleaseTensorTypeAndShapeInfo,
        CreateMemoryInfo,
        CreateCpuMemoryInfo,
        CompareMemoryInfo,
        MemoryInfoGetName,
        MemoryInfoGetId,
        MemoryInfoGetMemType,
        MemoryInfoGetType,
        GetTensorMemoryInfo,
        GetAllocatorWithDefaultOptions,
        CreateAllocator,
        AllocatorAlloc,
        AllocatorFree,
        AllocatorGetInfo,
        GetBuildInfoString,
        ..ort_sys::stub::api()
    }
}
