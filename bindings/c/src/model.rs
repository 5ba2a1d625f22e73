//! Compiled models on a device.

use crate::error::{WgfcError, argument, given, guarded, or, text};
use crate::tensor::{Port, WgfcPort, WgfcResults, WgfcTensor, read};
use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr;
use std::sync::Mutex;
use wgfc::model::device_error;
use wgfc::runtime::session::{SessionOptions, Value};
use wgfc::runtime::{AdapterChoice, Gpu, Plans, Session};
use wgfc::value_info::program_values;
use wgfc::{Error, Program, artefact};

/// A model that the caller frees.
#[derive(Debug)]
pub struct WgfcModel {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    adapter: CString,
    plans: Mutex<Plans>,
}

impl WgfcModel {
    fn open(path: &Path, adapter: &AdapterChoice) -> Result<WgfcModel, Error> {
        if !artefact::is_program(path) {
            return Err(Error::file_help(
                path,
                "is not a compiled program",
                "`wgfc compile model.onnx -o FOLDER` writes one",
            ));
        }
        let bundle = artefact::load_bundle(path)?;
        let gpu = Gpu::request_blocking(adapter).map_err(device_error)?;
        let plans = Plans::new_blocking(&gpu, &bundle, SessionOptions::default()).map_err(device_error)?;
        // The plans fix different extents. The one with the most symbolic extents describes the model.
        let open =
            |p: &&Program| p.inputs.iter().flat_map(|i| &i.shape).filter(|d| d.as_const().is_none()).count();
        let programs: Vec<&Program> = plans.sessions().map(Session::program).collect();
        let widest = programs.into_iter().rev().max_by_key(open);
        let widest = widest.ok_or_else(|| Error::Internal("a model without a plan".into()))?;
        let ports = |ports| program_values(ports).iter().map(Port::new).collect();
        Ok(WgfcModel {
            inputs: ports(&widest.inputs),
            outputs: ports(&widest.outputs),
            adapter: text(gpu.summary().name.as_str()),
            plans: Mutex::new(plans),
        })
    }

    /// Calls `f` while no other thread uses the model.
    fn with<T>(&self, f: impl FnOnce(&mut Plans) -> Result<T, Error>) -> Result<T, Error> {
        let panicked =
            |_| Error::Internal("an earlier call panicked: free the model and open it again".into());
        f(&mut *self.plans.lock().map_err(panicked)?)
    }

    /// Sets a size in all plans that have a symbol of this name.
    fn set_size(&self, name: &str, value: i64) -> Result<(), Error> {
        self.with(|plans| {
            let has = |s: &Session| s.program().symbols.iter().any(|n| n == name);
            let those: Vec<usize> =
                plans.sessions().enumerate().filter(|(_, s)| has(s)).map(|(i, _)| i).collect();
            // If no plan has it, the first plan's error lists the known symbols.
            let those = if those.is_empty() { vec![0] } else { those };
            for plan in those {
                let session = plans.session_mut(plan);
                let session = session.ok_or_else(|| Error::Internal("a plan without a session".into()))?;
                session.set_symbol(name, value).map_err(device_error)?;
            }
            Ok(())
        })
    }
}

/// The model at `model`.
///
/// # Safety
/// `model` is NULL or a model that is not freed during `'m`.
unsafe fn model<'m>(model: *const WgfcModel) -> Result<&'m WgfcModel, Error> {
    // SAFETY: it points to a model unless it is null.
    unsafe { model.as_ref() }.ok_or_else(|| argument("the model is NULL"))
}

/// See `wgfc.h`.
///
/// # Safety
/// `path` and `adapter` are NULL or texts that end with NUL; `out` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_open(
    path: *const c_char,
    adapter: *const c_char,
    out: *mut *mut WgfcModel,
) -> *mut WgfcError {
    guarded(|| {
        // SAFETY: it can be written unless it is null.
        let out = unsafe { out.as_mut() }.ok_or_else(|| argument("`model` is NULL"))?;
        *out = ptr::null_mut();
        // SAFETY: it is a text unless it is null.
        let path = unsafe { given(path, "the path") }?;
        let choice = match adapter.is_null() {
            true => AdapterChoice::from_env(),
            // SAFETY: it is a text.
            false => unsafe { given(adapter, "the adapter") }?.parse().unwrap_or_default(),
        };
        *out = Box::into_raw(Box::new(WgfcModel::open(Path::new(path), &choice)?));
        Ok(())
    })
}

/// See `wgfc.h`.
///
/// # Safety
/// `model` is NULL or a model that has not been freed and that no other call is using.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_model_free(model: *mut WgfcModel) {
    if !model.is_null() {
        // SAFETY: it was made by `wgfc_open`, and is not used any more.
        or((), || drop(unsafe { Box::from_raw(model) }));
    }
}

/// See `wgfc.h`.
///
/// # Safety
/// `model` is NULL or a model that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_adapter(model: *const WgfcModel) -> *const c_char {
    // SAFETY: it points to a model unless it is null.
    unsafe { model.as_ref() }.map_or(c"".as_ptr(), |m| m.adapter.as_ptr())
}

/// See `wgfc.h`.
///
/// # Safety
/// `model` is NULL or a model that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_input_count(model: *const WgfcModel) -> usize {
    // SAFETY: it points to a model unless it is null.
    unsafe { model.as_ref() }.map_or(0, |m| m.inputs.len())
}

/// See `wgfc.h`.
///
/// # Safety
/// `model` is NULL or a model that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_input(model: *const WgfcModel, index: usize) -> *const WgfcPort {
    // SAFETY: it points to a model unless it is null.
    let found = unsafe { model.as_ref() }.and_then(|m| m.inputs.get(index));
    found.map_or(ptr::null(), |p| &raw const p.raw)
}

/// See `wgfc.h`.
///
/// # Safety
/// `model` is NULL or a model that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_output_count(model: *const WgfcModel) -> usize {
    // SAFETY: it points to a model unless it is null.
    unsafe { model.as_ref() }.map_or(0, |m| m.outputs.len())
}

/// See `wgfc.h`.
///
/// # Safety
/// `model` is NULL or a model that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_output(model: *const WgfcModel, index: usize) -> *const WgfcPort {
    // SAFETY: it points to a model unless it is null.
    let found = unsafe { model.as_ref() }.and_then(|m| m.outputs.get(index));
    found.map_or(ptr::null(), |p| &raw const p.raw)
}

/// See `wgfc.h`.
///
/// # Safety
/// `of` is NULL or a model that has not been freed, and `name` NULL or a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_set_size(
    of: *mut WgfcModel,
    name: *const c_char,
    value: i64,
) -> *mut WgfcError {
    guarded(|| {
        // SAFETY: it is a model unless it is null.
        let of = unsafe { model(of) }?;
        // SAFETY: it is a text unless it is null.
        let name = unsafe { given(name, "the name of a size") }?;
        of.set_size(name, value)
    })
}

/// See `wgfc.h`.
///
/// # Safety
/// `of` is NULL or a model that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_reset(of: *mut WgfcModel) -> *mut WgfcError {
    guarded(|| {
        // SAFETY: it is a model unless it is null.
        let of = unsafe { model(of) }?;
        of.with(|plans| {
            // The plans share their states, so resetting those of one is enough.
            let first = plans.session_mut(0);
            let first = first.ok_or_else(|| Error::Internal("a model without a plan".into()))?;
            first.reset_blocking().map_err(device_error)
        })
    })
}

/// See `wgfc.h`.
///
/// # Safety
/// `of` is NULL or a model that has not been freed; `inputs` points to `count` tensors, whose pointers are NULL or point to what the
/// header says; `out` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_run(
    of: *mut WgfcModel,
    inputs: *const WgfcTensor,
    count: usize,
    out: *mut *mut WgfcResults,
) -> *mut WgfcError {
    guarded(|| {
        // SAFETY: it can be written unless it is null.
        let out = unsafe { out.as_mut() }.ok_or_else(|| argument("`results` is NULL"))?;
        *out = ptr::null_mut();
        // SAFETY: it is a model unless it is null.
        let of = unsafe { model(of) }?;
        if count > 0 && inputs.is_null() {
            return Err(argument("`inputs` is NULL"));
        }
        let inputs: &[WgfcTensor] = match count {
            0 => &[],
            // SAFETY: the caller guarantees that `inputs` points to this many tensors.
            n => unsafe { std::slice::from_raw_parts(inputs, n) },
        };
        let mut values: Vec<(&str, Value)> = Vec::with_capacity(count);
        for t in inputs {
            // SAFETY: the caller guarantees that its pointers are as the header says.
            let (name, tensor) = unsafe { read(t) }?;
            values.push((name, tensor.into()));
        }
        let outputs = of.with(|plans| {
            let plan = plans.select(&values).map_err(device_error)?;
            let session = plans.session_mut(plan);
            let session = session.ok_or_else(|| Error::Internal("a plan without a session".into()))?;
            session.run_values_blocking(&values, None).map_err(device_error)
        })?;
        *out = Box::into_raw(Box::new(WgfcResults::new(outputs)?));
        Ok(())
    })
}
