//! Errors as values.

use std::any::Any;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use wgfc::{Error, ErrorClass};

/// The code of no error.
pub const OK: i32 = 0;
/// The code of a bug in wgfc.
pub const INTERNAL: i32 = 4;

/// An error that the caller frees.
#[derive(Debug)]
pub struct WgfcError {
    code: i32,
    message: CString,
}

/// A string for C. NULs in it become spaces, as C strings end at the first NUL.
pub(crate) fn text(s: impl Into<String>) -> CString {
    let s: String = s.into();
    CString::new(s.replace('\0', " ")).unwrap_or_default()
}

impl From<Error> for WgfcError {
    fn from(e: Error) -> WgfcError {
        WgfcError { code: code(e.class()), message: text(e.to_string()) }
    }
}

fn code(class: ErrorClass) -> i32 {
    i32::from(class.exit_code())
}

/// The error of an invalid argument.
pub(crate) fn argument(message: &str) -> Error {
    Error::usage(message, "wgfc.h says what the function takes")
}

fn panicked(payload: &(dyn Any + Send)) -> WgfcError {
    let said = payload.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason is known");
    WgfcError::from(Error::Internal(format!("a panic: {said}")))
}

/// Runs `f` and returns null on success; otherwise, also after a panic, an error that the caller frees.
pub(crate) fn guarded(f: impl FnOnce() -> Result<(), Error>) -> *mut WgfcError {
    let error = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => return ptr::null_mut(),
        Ok(Err(e)) => WgfcError::from(e),
        Err(payload) => panicked(&*payload),
    };
    Box::into_raw(Box::new(error))
}

/// The value of `f`, or `otherwise` if it panics.
pub(crate) fn or<T>(otherwise: T, f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(otherwise)
}

/// The caller's string at `s`; `what` is its name in errors.
///
/// # Safety
/// `s` is null or a string that ends with NUL and does not change during `'t`.
pub(crate) unsafe fn given<'t>(s: *const c_char, what: &str) -> Result<&'t str, Error> {
    if s.is_null() {
        return Err(argument(&format!("{what} is NULL")));
    }
    // SAFETY: it is a text that ends with NUL.
    let s = unsafe { CStr::from_ptr(s) };
    s.to_str().map_err(|_| argument(&format!("{what} is not UTF-8")))
}

/// See `wgfc.h`.
///
/// # Safety
/// `error` is NULL or an error that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_error_code(error: *const WgfcError) -> i32 {
    // SAFETY: it points to an error unless it is null.
    unsafe { error.as_ref() }.map_or(OK, |e| e.code)
}

/// See `wgfc.h`.
///
/// # Safety
/// `error` is NULL or an error that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_error_message(error: *const WgfcError) -> *const c_char {
    // SAFETY: it points to an error unless it is null.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |e| e.message.as_ptr())
}

/// See `wgfc.h`.
///
/// # Safety
/// `error` is NULL or an error that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgfc_error_free(error: *mut WgfcError) {
    if !error.is_null() {
        // SAFETY: it was made by `guarded`, and is not used any more.
        or((), || drop(unsafe { Box::from_raw(error) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_a_text_has_no_nul() {
        let error = guarded(|| panic!("the sky fell"));
        // SAFETY: `guarded` has made it.
        unsafe {
            assert_eq!(wgfc_error_code(error), INTERNAL);
            let message = CStr::from_ptr(wgfc_error_message(error)).to_str().unwrap();
            assert!(message.contains("a panic: the sky fell"), "{message}");
            wgfc_error_free(error);
            assert_eq!(wgfc_error_code(ptr::null()), OK);
            assert_eq!(CStr::from_ptr(wgfc_error_message(ptr::null())), c"");
            wgfc_error_free(ptr::null_mut());
        }
        assert!(guarded(|| Ok(())).is_null());
        assert_eq!(or(3, || panic!()), 3);
        assert_eq!(text("a\0b").as_c_str(), c"a b");
    }
}
