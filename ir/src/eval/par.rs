//! Data-parallel loops, with threads if they are available.

/// The minimum number of elements of a task.
const TASK: usize = 1 << 14;

/// Calls `f(i, chunk)` for each chunk of `size` elements of `data`, where `i` is the chunk's number; calls may run in
/// parallel.
pub(super) fn chunks<T: Send>(data: &mut [T], size: usize, f: impl Fn(usize, &mut [T]) + Send + Sync) {
    let size = size.max(1);
    let per_task = TASK.div_ceil(size);
    let run = |first: usize, part: &mut [T]| {
        part.chunks_mut(size).enumerate().for_each(|(i, c)| f(first + i, c));
    };
    if data.len() <= per_task * size {
        return run(0, data);
    }
    let run = &run;
    let tasks = data.chunks_mut(per_task * size).enumerate();
    all(tasks.map(|(t, part)| -> Task<'_> { Box::new(move || run(t * per_task, part)) }).collect());
}

type Task<'a> = Box<dyn FnOnce() + Send + 'a>;

#[cfg(all(feature = "fast", not(target_arch = "wasm32")))]
fn all(tasks: Vec<Task<'_>>) {
    rayon::scope(|s| tasks.into_iter().for_each(|t| s.spawn(|_| t())));
}

#[cfg(not(all(feature = "fast", not(target_arch = "wasm32"))))]
fn all(tasks: Vec<Task<'_>>) {
    tasks.into_iter().for_each(|t| t());
}
