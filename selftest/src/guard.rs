//! Runs cases so that neither a lost device nor a hang ends the whole run.

use super::failure::{Failure, caught};
use super::subject::Phase;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wgfc_runtime::{AdapterChoice, AdapterSummary, Gpu, RunError};

/// A device that is opened again when it is lost.
pub(crate) struct Device {
    choice: AdapterChoice,
    /// The number of times that it was opened again, and the device.
    current: Mutex<(u64, Gpu)>,
    /// The time limit of a case.
    limit: Duration,
    gone: AtomicBool,
    /// The time at which waiting for any case ends.
    end: OnceLock<Instant>,
    /// The cases in the driver that were not waited for because of `end`, and when their time limit ends.
    unfinished: Mutex<Vec<(JoinHandle<()>, Instant)>>,
}

/// A driver that still compiles while the process ends may crash: drivers on the CPU take down their compiler at exit. Cases
/// that are in the driver get the rest of their time limit, at most a minute.
impl Drop for Device {
    fn drop(&mut self) {
        let last = Instant::now() + Duration::from_secs(60);
        let unfinished = self.unfinished.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (thread, end) in unfinished.drain(..) {
            while !thread.is_finished() && Instant::now() < end.min(last) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

impl Device {
    /// Opens the adapter. `limit` replaces the usual time limit of a case.
    pub fn open(choice: AdapterChoice, limit: Option<Duration>) -> Result<Device, RunError> {
        let gpu = Gpu::request_blocking(&choice)?;
        // A software adapter runs on the CPU, which may be busy with other work.
        let usual = Duration::from_secs(if gpu.summary().is_software { 180 } else { 30 });
        let limit = limit.unwrap_or(usual);
        Ok(Device {
            choice,
            current: Mutex::new((0, gpu)),
            limit,
            gone: AtomicBool::new(false),
            end: OnceLock::new(),
            unfinished: Mutex::default(),
        })
    }

    /// The adapter's summary.
    pub fn summary(&self) -> AdapterSummary {
        self.gpu().1.summary().clone()
    }

    /// From now on, waits for no case beyond `end`.
    pub fn ends_at(&self, end: Instant) {
        let _ = self.end.set(end);
    }

    /// Whether the time set by [`Device::ends_at`] is past.
    pub fn is_over(&self) -> bool {
        self.end.get().is_some_and(|e| Instant::now() >= *e)
    }

    fn gpu(&self) -> (u64, Gpu) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the device again, unless another thread has done so since `generation`.
    fn renew(&self, generation: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != generation {
            return;
        }
        match Gpu::request_blocking(&self.choice) {
            Ok(gpu) => *current = (generation + 1, gpu),
            Err(_) => self.gone.store(true, Ordering::Relaxed),
        }
    }

    /// Whether the device was lost and could not be opened again.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Runs `f` on a new thread. A panic, a lost device and exceeding the time limit become failures; after the last two the
    /// device is opened again. A thread that does not end is abandoned.
    ///
    /// # Errors
    /// The failure of `f`, or one of these.
    pub fn run<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Gpu, &dyn Fn(Phase)) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (generation, gpu) = self.gpu();
        let phase = Arc::new(AtomicU8::new(Phase::Compiler as u8));
        let (tx, rx) = channel();
        let inner = phase.clone();
        let work = move || {
            let result = caught(|| f(&gpu, &|p| inner.store(p as u8, Ordering::Relaxed)));
            // The receiver may have given up waiting.
            let _ = tx.send(result);
        };
        let start = Instant::now();
        let started = std::thread::Builder::new().stack_size(8 << 20).spawn(work);
        let thread = started.map_err(|e| Failure::error(format!("no thread can be started: {e}")))?;
        let left = self.end.get().map(|e| e.saturating_duration_since(Instant::now()));
        let limit = left.map_or(self.limit, |left| left.min(self.limit));
        let result = match rx.recv_timeout(limit) {
            Ok(result) => {
                // The result is the last thing that the thread sends, and panics are caught before it.
                let _ = thread.join();
                result
            }
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Panic("the thread of the case ended".into())),
            Err(RecvTimeoutError::Timeout) => {
                let phase = phase.load(Ordering::Relaxed);
                if phase == Phase::Device as u8 && limit < self.limit {
                    let mut unfinished = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
                    unfinished.push((thread, start + self.limit));
                }
                let at = match phase {
                    p if p == Phase::Compiler as u8 => "the compiler",
                    p if p == Phase::Evaluator as u8 => "the evaluator",
                    _ => "the device",
                };
                Err(Failure::Hang(format!("{at} has not ended after {} s", limit.as_secs())))
            }
        };
        if matches!(result, Err(Failure::Lost(_) | Failure::Hang(_))) && !self.is_over() {
            self.renew(generation);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_after_a_panic_a_lost_device_and_a_hang() {
        let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return };
        let mut d = Device::open(AdapterChoice::Name(gpu.summary().name.clone()), None).unwrap();
        let fine = |d: &Device| d.run(|gpu, _| Ok(gpu.summary().name.clone())).is_ok();
        let panics = d.run(|_, _| -> Result<(), Failure> { panic!("no") });
        assert!(matches!(&panics, Err(Failure::Panic(m)) if m.contains("no")), "{panics:?}");
        assert_eq!(d.gpu().0, 0);
        let lost = d.run(|_, _| -> Result<(), Failure> { Err(Failure::Lost("gone".into())) });
        assert!(matches!(lost, Err(Failure::Lost(_))));
        assert!(d.gpu().0 == 1 && fine(&d));
        // On a busy machine the thread may not have reached the device within a short limit.
        let mut renewed = 1;
        for limit in [20, 200, 2_000, 20_000] {
            d.limit = Duration::from_millis(limit);
            let (keep, ends) = channel::<()>();
            let hangs = d.run(move |_, phase| {
                phase(Phase::Device);
                let _ = ends.recv();
                Ok(())
            });
            drop(keep);
            renewed += 1;
            let Err(Failure::Hang(m)) = &hangs else { panic!("{hangs:?}") };
            if m.starts_with("the device") {
                break;
            }
            assert!(limit < 20_000, "{m}");
        }
        d.limit = Duration::from_secs(600);
        assert!(d.gpu().0 == renewed && fine(&d) && !d.is_gone());
    }
}
