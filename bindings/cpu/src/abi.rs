//! The module's exports. Pages write into memory from [`allocate`], [`open`] a model and [`run`] it as often as they like. What both return
//! begins with numbers of 32 bits: the address and the length of the answer's JSON, the address and the length of its data, and for [`open`]
//! the model, which is 0 after an error. [`release`] frees the answer, [`close`] the model.

use crate::files::Page;
pub use crate::memory::allocate;
use crate::memory::taken;
use wgfc_compiler::requests::Answer;
use wgfc_compiler::requests::host::HostModel;

/// An answer in the module's memory. Pages read its first two fields.
#[repr(C)]
pub struct Given {
    places: [usize; 4],
    model: *mut HostModel,
    answer: Answer,
}

fn given(answer: Answer, model: Option<HostModel>) -> *mut Given {
    let model = model.map_or(std::ptr::null_mut(), |m| Box::into_raw(Box::new(m)));
    let places =
        [answer.json.as_ptr() as usize, answer.json.len(), answer.data.as_ptr() as usize, answer.data.len()];
    Box::into_raw(Box::new(Given { places, model, answer }))
}

/// Reads a model according to a request. Both are bytes in memory from [`allocate`], which this frees.
///
/// # Safety
/// Both came from [`allocate`] with these lengths, and nothing uses them any more.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn open(
    model: *mut u8,
    model_len: usize,
    request: *mut u8,
    request_len: usize,
) -> *mut Given {
    // SAFETY: as the caller promises.
    let (model, request) = unsafe { (taken(model, model_len), taken(request, request_len)) };
    let (answer, made) = HostModel::open(&model, &String::from_utf8_lossy(&request), Box::new(Page));
    given(answer, made)
}

/// Runs a model on the inputs of a request. Request and data are bytes in memory from [`allocate`], which this frees.
///
/// # Safety
/// As for [`open`], for the request and the data. The model came from [`open`] and has not been closed.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn run(
    model: *const HostModel,
    request: *mut u8,
    request_len: usize,
    data: *mut u8,
    data_len: usize,
) -> *mut Given {
    // SAFETY: as the caller promises.
    let (request, data) = unsafe { (taken(request, request_len), taken(data, data_len)) };
    // SAFETY: as the caller promises.
    let model = unsafe { &*model };
    given(model.run(&String::from_utf8_lossy(&request), data.into_vec()), None)
}

/// Frees an answer, but not the model that it names.
///
/// # Safety
/// `answer` came from [`open`] or [`run`], and nothing uses it any more.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn release(answer: *mut Given) {
    // SAFETY: as the caller promises.
    let given = unsafe { Box::from_raw(answer) };
    drop(given.answer);
}

/// Frees a model.
///
/// # Safety
/// `model` came from [`open`], and nothing uses it any more.
#[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
pub unsafe extern "C" fn close(model: *mut HostModel) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(model) });
}
