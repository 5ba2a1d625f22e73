//! The ways in which a case fails, and running a case so that its failures are caught.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use wgfc_compiler::{Errors, Kind};
use wgfc_ir::{Program, Tensor};
use wgfc_runtime::session::SessionOptions;
use wgfc_runtime::{Gpu, RunError, Session};

/// The reason why a case did not pass.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The model needs something that is not supported: the operator, if there is one, and the reason.
    Unsupported(Option<String>, String),
    /// Compiling or running failed: the operator, if there is one, and the reason.
    Error(Option<String>, String),
    /// The results differ.
    Wrong(String),
    /// A panic, with its message and place.
    Panic(String),
    /// The device was lost.
    Lost(String),
    /// The case did not end: the part that has not ended.
    Hang(String),
}

impl Failure {
    /// The name of the failure in reports.
    pub fn status(&self) -> &'static str {
        match self {
            Failure::Unsupported(..) => "unsupported",
            Failure::Error(..) => "error",
            Failure::Wrong(_) => "wrong",
            Failure::Panic(_) => "panic",
            Failure::Lost(_) => "device lost",
            Failure::Hang(_) => "hang",
        }
    }
    /// The whole message.
    pub fn message(&self) -> &str {
        let (Failure::Unsupported(_, m)
        | Failure::Error(_, m)
        | Failure::Wrong(m)
        | Failure::Panic(m)
        | Failure::Lost(m)
        | Failure::Hang(m)) = self;
        m
    }
    /// The first line of the message.
    pub fn first_line(&self) -> &str {
        self.message().lines().next().unwrap_or("")
    }
    /// The operator that the compiler names.
    pub fn operator(&self) -> Option<&str> {
        match self {
            Failure::Unsupported(o, _) | Failure::Error(o, _) => o.as_deref(),
            _ => None,
        }
    }
    /// An error without an operator.
    pub fn error(message: impl Into<String>) -> Failure {
        Failure::Error(None, message.into())
    }
}

impl From<Errors> for Failure {
    fn from(errors: Errors) -> Failure {
        let operator = errors.0.iter().find_map(|d| d.location.operator.as_ref()).map(|o| o.to_string());
        if errors.0.iter().all(|d| d.kind == Kind::Unsupported) {
            Failure::Unsupported(operator, errors.to_string())
        } else {
            Failure::Error(operator, errors.to_string())
        }
    }
}

impl From<RunError> for Failure {
    fn from(e: RunError) -> Failure {
        match e {
            RunError::DeviceLost(m) => Failure::Lost(m),
            e => Failure::error(e.to_string()),
        }
    }
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
    static CATCHING: RefCell<bool> = const { RefCell::new(false) };
}

/// Runs `f`. A panic becomes [`Failure::Panic`] and prints nothing.
///
/// # Errors
/// The failure of `f`, or its panic.
pub fn caught<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHING.with(|c| *c.borrow()) {
                LAST_PANIC.with(|p| *p.borrow_mut() = info.to_string().replace('\n', " "));
            } else {
                default(info);
            }
        }));
    });
    let before = CATCHING.with(|c| c.replace(true));
    let result = catch_unwind(AssertUnwindSafe(f));
    CATCHING.with(|c| c.replace(before));
    result.unwrap_or_else(|_| Err(Failure::Panic(LAST_PANIC.with(|p| p.take()))))
}

/// A session for a program that detects writes beyond the ends of tensors.
///
/// # Errors
/// An error of the device.
pub fn session(gpu: &Gpu, program: &Program) -> Result<Session, Failure> {
    let options = SessionOptions { canaries: true, ..SessionOptions::default() };
    Ok(Session::with_options_blocking(gpu, program, options)?)
}

/// Runs a session on named inputs. The outputs are in the program's order.
///
/// # Errors
/// An error of the device or of the inputs.
pub fn run_session(session: &mut Session, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<Tensor>, Failure> {
    let inputs: Vec<(&str, Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    let outputs = session.run_blocking(&inputs)?;
    Ok(outputs.into_iter().map(|(_, t)| t).collect())
}
