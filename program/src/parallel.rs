//! Work that all cores share.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The most threads. More of them wait for memory.
const THREADS: usize = 16;
/// The number of bytes that are worth a thread.
const WORTH: usize = 2 << 20;

/// The results of `f` for the numbers below `n`, in order. Several threads compute them if `bytes`, which all of them read, are many. A
/// system without threads, such as a web page, computes them one after the other.
///
/// # Panics
/// If `f` does.
///
/// ```
/// use wgfc_program::parallel::each;
/// assert_eq!(each(5, 100 << 20, |i| i * i), [0, 1, 4, 9, 16]);
/// ```
pub fn each<T: Send>(n: usize, bytes: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let most = THREADS.min(bytes / WORTH).min(n);
    let threads = if most < 2 { 1 } else { cores().min(most) };
    if threads < 2 {
        return (0..n).map(f).collect();
    }
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut mine = vec![];
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                return mine;
            }
            mine.push((i, f(i)));
        }
    };
    let mut all: Vec<(usize, T)> = std::thread::scope(|s| {
        let others: Vec<_> =
            (1..threads).filter_map(|_| std::thread::Builder::new().spawn_scoped(s, worker).ok()).collect();
        let mut all = worker();
        for thread in others {
            match thread.join() {
                Ok(results) => all.extend(results),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_unstable_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, r)| r).collect()
}

#[cfg(test)]
mod tests {
    use super::each;

    #[test]
    fn results_are_in_order() {
        for n in [0, 1, 2, 1000] {
            for bytes in [0, 100 << 20] {
                assert_eq!(each(n, bytes, |i| 3 * i), (0..n).map(|i| 3 * i).collect::<Vec<_>>());
            }
        }
    }
}
