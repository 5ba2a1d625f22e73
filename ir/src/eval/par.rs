//! Threads where there are any.

/// Calls `f(i, chunk)` for each `size` elements of `data`, `i` counting chunks, possibly at once.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn chunks<T: Send>(data: &mut [T], size: usize, f: impl Fn(usize, &mut [T]) + Send + Sync) {
    use rayon::prelude::*;
    if data.len() <= size {
        data.chunks_mut(size.max(1)).enumerate().for_each(|(i, c)| f(i, c));
    } else {
        data.par_chunks_mut(size.max(1)).enumerate().for_each(|(i, c)| f(i, c));
    }
}

/// Calls `f(i, chunk)` for each `size` elements of `data`, `i` counting chunks.
#[cfg(target_arch = "wasm32")]
pub(super) fn chunks<T: Send>(data: &mut [T], size: usize, f: impl Fn(usize, &mut [T]) + Send + Sync) {
    data.chunks_mut(size.max(1)).enumerate().for_each(|(i, c)| f(i, c));
}

/// How a matrix product may use threads.
pub(super) fn gemm_threads(worth_it: bool) -> gemm::Parallelism {
    #[cfg(not(target_arch = "wasm32"))]
    if worth_it {
        return gemm::Parallelism::Rayon(0);
    }
    let _ = worth_it;
    gemm::Parallelism::None
}
