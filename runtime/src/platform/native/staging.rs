//! Large uploads: threads write the bytes into mapped staging buffers, from which the device copies them. The buffers are reused,
//! because writing to freshly allocated memory takes five times as long.
//!
//! Bytes may be computed while they are written, so there is a thread for each core. Each fills a buffer after the other; this thread
//! submits the copies of the buffers that are full and leaves at least one buffer to each thread.

use super::threads;
use crate::error::RunError;
use crate::gpu::Gpu;
use crate::upload::{Piece, through_queue};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Uploads of fewer bytes go through the queue's own staging memory.
const SMALL: usize = 256 << 10;
/// The size in bytes of a staging buffer, and of the pieces into which an upload is split.
pub(crate) const PIECE: usize = 2 << 20;
/// The largest number of threads. Memory bandwidth limits the use of more.
const THREADS: usize = 16;
/// The largest number of staging buffers: while one of a thread is copied, it fills another. They leave room in a block of [`BLOCK`] bytes:
/// if they filled it, each small upload would allocate another block and free it again, which takes milliseconds on GPUs.
const BUFFERS: usize = (BLOCK - ROOM) / PIECE;
/// The bytes of a block in which wgpu allocates memory that the host writes, on Vulkan and Direct3D 12.
const BLOCK: usize = 64 << 20;
/// The bytes of a block that are left to small uploads.
const ROOM: usize = 8 << 20;
/// How long this thread waits for a full buffer before it asks again which buffers the device has read.
const PATIENCE: Duration = Duration::from_millis(10);

/// Buffers of [`PIECE`] bytes that are mapped for writing: at most [`BUFFERS`], until they are cleared.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Vec<wgpu::Buffer>>>);

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Vec<wgpu::Buffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, gpu: &Gpu) -> wgpu::Buffer {
        let kept = self.lock().pop();
        kept.unwrap_or_else(|| {
            gpu.device().create_buffer(&wgpu::BufferDescriptor {
                label: Some("upload"),
                size: PIECE as u64,
                usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: true,
            })
        })
    }

    /// Frees the buffers that no upload is using.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn give(&self, buffer: wgpu::Buffer) {
        let mut all = self.lock();
        if all.len() < BUFFERS {
            all.push(buffer);
        }
    }
}

/// The mapped buffers of an upload that wait for a thread.
struct Waiting {
    state: Mutex<State>,
    changed: Condvar,
    /// The pool to which buffers go when the upload has ended.
    pool: Pool,
}

struct State {
    buffers: Vec<wgpu::Buffer>,
    ended: bool,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next buffer; `None` if the upload has ended.
    fn take(&self) -> Option<wgpu::Buffer> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(buffer) = state.buffers.pop() {
                return Some(buffer);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give(&self, buffer: wgpu::Buffer) {
        let mut state = self.lock();
        match state.ended {
            true => self.pool.give(buffer),
            false => state.buffers.push(buffer),
        }
        self.changed.notify_one();
    }

    /// Lets the threads end and returns the buffers to the pool.
    fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.buffers.drain(..).for_each(|b| self.pool.give(b));
        self.changed.notify_all();
    }
}

/// Pieces that share a staging buffer, each with its byte offset in it.
type Load<'p> = Vec<(Piece<'p>, usize)>;

fn loads(pieces: Vec<Piece<'_>>) -> Vec<Load<'_>> {
    let (mut loads, mut end): (Vec<Load<'_>>, usize) = (vec![], PIECE);
    for p in pieces {
        let len = p.padded();
        if end + len > PIECE {
            loads.push(vec![]);
            end = 0;
        }
        if let Some(load) = loads.last_mut() {
            load.push((p, end));
        }
        // Mapped ranges and copies begin at multiples of eight.
        end += len.next_multiple_of(8);
    }
    loads
}

pub(crate) async fn upload(gpu: &Gpu, pieces: Vec<Piece<'_>>) -> Result<(), RunError> {
    let bytes = pieces.iter().map(|p| p.range.len()).sum::<usize>();
    if bytes < SMALL {
        return through_queue(gpu, pieces).await;
    }
    let loads = loads(pieces);
    let threads = threads(bytes, THREADS).min(loads.len());
    let count = loads.len().min(BUFFERS);
    let pool = gpu.staging().clone();
    let buffers = gpu.scoped("uploading", || (0..count).map(|_| pool.take(gpu)).collect()).await?;
    let state = Mutex::new(State { buffers, ended: false });
    let waiting = Arc::new(Waiting { state, changed: Condvar::new(), pool });
    let next = AtomicUsize::new(0);
    let (full, filled) = channel();
    let worker = |full: std::sync::mpsc::Sender<_>| {
        while let Some(load) = loads.get(next.fetch_add(1, Ordering::Relaxed))
            && let Some(buffer) = waiting.take()
        {
            let result = fill(gpu, load, &buffer).map(|()| (load, buffer));
            // The other end is gone after an error.
            if full.send(result).is_err() {
                break;
            }
        }
    };
    std::thread::scope(|s| {
        // The system may refuse some of the threads.
        let mut started = 0;
        for _ in 0..threads {
            let (full, worker) = (full.clone(), &worker);
            let thread = std::thread::Builder::new().spawn_scoped(s, move || worker(full));
            started += usize::from(thread.is_ok());
        }
        drop(full);
        let mut left = loads.len();
        let mut sent: VecDeque<(wgpu::SubmissionIndex, usize)> = VecDeque::new();
        let mut copying = 0;
        let mut copy = || {
            while left > 0 {
                while copying + threads.min(left) > count
                    && let Some((index, n)) = sent.pop_front()
                {
                    gpu.drive(Some(index))?;
                    copying -= n;
                }
                let first = match filled.recv_timeout(PATIENCE) {
                    Ok(first) => first,
                    Err(RecvTimeoutError::Timeout) => {
                        gpu.health()?;
                        // Nothing is polled if there is a buffer for each load.
                        if copying + left > count {
                            gpu.device().poll(wgpu::PollType::Poll).map_err(|e| failed(e.to_string()))?;
                        }
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        let why = if started == 0 {
                            "the system starts no thread"
                        } else {
                            "a thread that copies panicked"
                        };
                        return Err(failed(why.to_owned()));
                    }
                };
                let batch = [first].into_iter().chain(filled.try_iter()).collect::<Result<Vec<_>, _>>()?;
                sent.push_back((pollster::block_on(submit(gpu, &batch, &waiting))?, batch.len()));
                copying += batch.len();
                left -= batch.len();
            }
            Ok(())
        };
        let done = copy();
        waiting.end();
        done
    })?;
    gpu.health()
}

/// Copies from buffers that are full, which afterwards wait for a thread again.
async fn submit(
    gpu: &Gpu,
    batch: &[(&Load<'_>, wgpu::Buffer)],
    waiting: &Arc<Waiting>,
) -> Result<wgpu::SubmissionIndex, RunError> {
    let index = gpu
        .scoped("uploading", || {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            for (load, from) in batch {
                from.unmap();
                for (p, at) in *load {
                    let (to, start) = (p.source.buffer, p.range.start as u64);
                    encoder.copy_buffer_to_buffer(from, *at as u64, to, start, p.padded() as u64);
                }
            }
            gpu.queue().submit([encoder.finish()])
        })
        .await?;
    for (_, buffer) in batch {
        let (waiting, kept) = (waiting.clone(), buffer.clone());
        buffer.map_async(wgpu::MapMode::Write, .., move |mapped| {
            // A buffer of a lost device cannot be mapped; waiting for its submission fails.
            if mapped.is_ok() {
                waiting.give(kept);
            }
        });
    }
    Ok(index)
}

fn failed(message: String) -> RunError {
    RunError::Gpu { what: "uploading".to_owned(), message }
}

fn fill(gpu: &Gpu, load: &Load<'_>, buffer: &wgpu::Buffer) -> Result<(), RunError> {
    for (p, at) in load {
        let range = *at as u64..(*at + p.padded()) as u64;
        let mut view = buffer.get_mapped_range_mut(range).map_err(|e| failed(e.to_string()))?;
        if !p.put(view.slice(..)) {
            return Err(p.absent());
        }
        p.done(gpu);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::copied;
    use super::*;
    use crate::testing::gpus;
    use crate::upload::{Bytes, Source, pieces};

    #[test]
    fn sources_of_all_lengths_arrive() {
        for gpu in gpus() {
            // Twice: buffers are used again.
            for round in 0..2u8 {
                let lens = [0, 1, 4, 7, 4093, SMALL, PIECE - 1, PIECE + 3, 5 * PIECE + 6];
                let all: Vec<Vec<u8>> =
                    lens.iter().map(|n| (0..*n).map(|i| (i * 7 + i / 251) as u8 ^ round).collect()).collect();
                pollster::block_on(async {
                    let mut buffers = vec![];
                    for b in &all {
                        let size = b.len().next_multiple_of(4).max(16) as u64;
                        buffers.push(gpu.storage("test", size).await.unwrap());
                    }
                    let sources: Vec<Source<'_>> = all
                        .iter()
                        .zip(&buffers)
                        .map(|(b, buffer)| Source { name: "x", bytes: Bytes::Slice(b), buffer })
                        .collect();
                    upload(gpu, pieces(&sources)).await.unwrap();
                    for (b, buffer) in all.iter().zip(&buffers) {
                        use wgpu::BufferUsages as U;
                        let size = buffer.size();
                        let mapped = gpu.buffer("back", size, U::MAP_READ | U::COPY_DST).await.unwrap();
                        let mut e = gpu.device().create_command_encoder(&Default::default());
                        e.copy_buffer_to_buffer(buffer, 0, &mapped, 0, size);
                        let sent = gpu.queue().submit([e.finish()]);
                        let got = gpu.map_read(&mapped, size, Some(sent), copied);
                        let got = got.await.unwrap();
                        assert!((*got).as_ref()[..b.len()] == b[..], "{} bytes", b.len());
                    }
                });
            }
            let kept = |pool: &Pool| pool.0.lock().unwrap().len();
            assert!((1..=BUFFERS).contains(&kept(gpu.staging())));
            gpu.staging().clear();
            assert_eq!(kept(gpu.staging()), 0);
        }
    }
}
