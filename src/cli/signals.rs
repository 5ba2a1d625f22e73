//! Signals that end the process (SIGINT, SIGTERM), deferred while a command must not stop halfway.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static DEFERRED: AtomicBool = AtomicBool::new(false);
/// The signal that arrived while signals were deferred; 0 for none.
static PENDING: AtomicI32 = AtomicI32::new(0);

/// Defers signals until it is dropped.
pub struct Deferral(());

/// Defers the next signal. A second one ends the process at once.
pub fn defer() -> Deferral {
    DEFERRED.store(true, Ordering::Release);
    Deferral(())
}

impl Drop for Deferral {
    fn drop(&mut self) {
        DEFERRED.store(false, Ordering::Release);
    }
}

/// Records a signal. Returns whether it is deferred.
#[cfg_attr(not(unix), expect(dead_code, reason = "there are signals on Unix only"))]
pub fn record(signal: i32) -> bool {
    DEFERRED.load(Ordering::Acquire)
        && PENDING.compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// The deferred signal, if one has arrived.
pub fn pending() -> Option<i32> {
    Some(PENDING.load(Ordering::Acquire)).filter(|s| *s != 0)
}
