//! Environments, sessions, and their inputs and outputs. For the safety of all functions see [`super`].

use super::{array, create, guarded, nothing, path, put, set, set_all, string};
use crate::memory::text;
use crate::session::{Port, Session, SessionOptions};
use crate::tensor::Value;
use ort_sys::*;
use std::ffi::{c_char, c_void};
use std::{iter, ptr};

pub(super) unsafe extern "system" fn CreateEnv(
    _: OrtLoggingLevel,
    _: *const c_char,
    out: *mut *mut OrtEnv,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { nothing(out) }
}

pub(super) unsafe extern "system" fn CreateEnvWithCustomLogger(
    _: OrtLoggingFunction,
    _: *mut c_void,
    _: OrtLoggingLevel,
    _: *const c_char,
    out: *mut *mut OrtEnv,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { nothing(out) }
}

pub(super) unsafe extern "system" fn CreateSessionOptions(out: *mut *mut OrtSessionOptions) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { put(out, SessionOptions::default()) };
    OrtStatusPtr::default()
}

pub(super) unsafe extern "system" fn CloneSessionOptions(
    of: *const OrtSessionOptions,
    out: *mut *mut OrtSessionOptions,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { put(out, (*of.cast::<SessionOptions>()).clone()) };
    OrtStatusPtr::default()
}

pub(super) unsafe extern "system" fn SetSessionGraphOptimizationLevel(
    of: *mut OrtSessionOptions,
    level: GraphOptimizationLevel,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    let options = unsafe { &mut *of.cast::<SessionOptions>() };
    options.unfused = level == GraphOptimizationLevel::ORT_DISABLE_ALL;
    OrtStatusPtr::default()
}

pub(super) unsafe extern "system" fn AddFreeDimensionOverrideByName(
    of: *mut OrtSessionOptions,
    name: *const c_char,
    value: i64,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    let (options, name) = unsafe { (&mut *of.cast::<SessionOptions>(), string(name)) };
    options.dims.insert(name, value);
    OrtStatusPtr::default()
}

pub(super) unsafe extern "system" fn AddSessionConfigEntry(
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

pub(super) unsafe extern "system" fn CreateSession(
    _: *const OrtEnv,
    model: *const os_char,
    options: *const OrtSessionOptions,
    out: *mut *mut OrtSession,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        create(out, || {
            Session::open(&path(model), &*options.cast::<SessionOptions>()).map_err(|e| e.to_string())
        })
    }
}

pub(super) unsafe extern "system" fn CreateSessionFromArray(
    _: *const OrtEnv,
    model: *const c_void,
    len: usize,
    options: *const OrtSessionOptions,
    out: *mut *mut OrtSession,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe {
        create(out, || {
            let bytes = array(model.cast::<u8>(), len).to_vec();
            Session::of_bytes(bytes, &*options.cast::<SessionOptions>()).map_err(|e| e.to_string())
        })
    }
}

pub(super) unsafe extern "system" fn Run(
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

/// Values of `WHICH`: whether a function is about inputs or about outputs.
pub(super) const INPUT: bool = false;
pub(super) const OUTPUT: bool = true;

unsafe fn ports<'a, const WHICH: bool>(of: *const OrtSession) -> &'a [Port] {
    // SAFETY: see the module.
    let session = unsafe { &*of.cast::<Session>() };
    if WHICH == OUTPUT { &session.outputs } else { &session.inputs }
}

unsafe fn port<'a, const WHICH: bool>(of: *const OrtSession, index: usize) -> Result<&'a Port, String> {
    // SAFETY: see the module.
    let all = unsafe { ports::<WHICH>(of) };
    let which = if WHICH == OUTPUT { "outputs" } else { "inputs" };
    all.get(index)
        .ok_or_else(|| format!("index {index} is out of range: the model has {} {which}", all.len()))
}

pub(super) unsafe extern "system" fn port_count<const WHICH: bool>(
    of: *const OrtSession,
    out: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set(out, ports::<WHICH>(of).len()) }
}

pub(super) unsafe extern "system" fn port_type<const WHICH: bool>(
    of: *const OrtSession,
    index: usize,
    out: *mut *mut OrtTypeInfo,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { create(out, || Ok(port::<WHICH>(of, index)?.ty.clone())) }
}

pub(super) unsafe extern "system" fn port_name<const WHICH: bool>(
    of: *const OrtSession,
    index: usize,
    _: *mut OrtAllocator,
    out: *mut *mut c_char,
) -> OrtStatusPtr {
    guarded(|| {
        // SAFETY: see the module.
        unsafe { *out = text(&port::<WHICH>(of, index)?.name) };
        Ok(())
    })
}

/// Reports host memory for all inputs, or for all outputs.
pub(super) unsafe extern "system" fn memory_of_ports(
    _: *const OrtSession,
    out: *mut *const OrtMemoryInfo,
    len: usize,
) -> OrtStatusPtr {
    // SAFETY: see the module.
    unsafe { set_all(out, len, iter::repeat(ptr::dangling())) }
}
