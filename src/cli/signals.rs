//! Signals that end the process, put off until what goes on has come to a good end.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static GENTLE: AtomicBool = AtomicBool::new(false);
/// The signal that was put off; 0 for none.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// While it lives, the first signal is only remembered.
pub struct Gently(());

/// From now on the first signal is only remembered; the second ends the process.
pub fn gently() -> Gently {
    GENTLE.store(true, Ordering::Release);
    Gently(())
}

impl Drop for Gently {
    fn drop(&mut self) {
        GENTLE.store(false, Ordering::Release);
    }
}

/// A signal has come. Whether it is put off.
#[cfg_attr(not(unix), expect(dead_code, reason = "there are signals on Unix only"))]
pub fn put_off(signal: i32) -> bool {
    GENTLE.load(Ordering::Acquire)
        && ASKED.compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// The signal that was put off.
pub fn asked() -> Option<i32> {
    Some(ASKED.load(Ordering::Acquire)).filter(|s| *s != 0)
}
