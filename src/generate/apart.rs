//! Work of libraries on files that are not trusted, on a thread of its own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

/// The stack size in bytes of the threads.
const STACK: usize = 64 << 20;

/// Runs `f` and turns a panic of the library into an error.
pub fn caught<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| Err(panicked(p.as_ref())))
}

fn panicked(p: &(dyn Any + Send)) -> String {
    let text = p.downcast_ref::<&str>().copied().or_else(|| p.downcast_ref::<String>().map(String::as_str));
    format!("it contradicts itself ({})", text.unwrap_or("no reason is given"))
}

/// Runs [`caught`] on a thread with a large stack, as the libraries recurse. A thread that exceeds the time limit is
/// abandoned and ends with the process.
pub fn apart<T: Send + 'static>(
    name: &str,
    patience: Duration,
    f: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (send, receive) = mpsc::channel();
    let run = move || drop(send.send(caught(f)));
    let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK);
    thread.spawn(run).map_err(|e| format!("no thread: {e}"))?;
    receive
        .recv_timeout(patience)
        .unwrap_or_else(|_| Err(format!("it did not come to an end in {} seconds", patience.as_secs())))
}
