//! Measures uploads to the device and reads from it.

use crate::error::RunError;
use crate::gpu::Gpu;
use crate::stats::Estimate;
use crate::tensor::read_all;
use crate::upload;
use std::time::Instant;
use wgfc_program::Tensor;

/// The times of uploading and reading a tensor of some size, in nanoseconds. See the example of [`measure`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Transfer {
    /// The tensor's size.
    pub bytes: u64,
    /// The time of an upload until the call returns.
    pub host_ns: Estimate,
    /// The time of an upload until the device has the bytes.
    pub upload_ns: Estimate,
    /// The time of a readback until the host has the bytes.
    pub read_ns: Estimate,
}

/// The sizes in bytes of the measured tensors. Sizes above the device's limit of a binding are skipped.
pub const SIZES: [u64; 5] = [256, 64 << 10, 1 << 20, 16 << 20, 256 << 20];

/// Uploads and reads tensors of all [`SIZES`], `samples` times each after two warm-ups, into device memory that is already
/// allocated.
///
/// # Errors
/// An error of the device; [`RunError::Gpu`] if other bytes come back.
///
/// ```no_run
/// use wgfc_runtime::{AdapterChoice, Gpu, transfers::measure_blocking};
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// let gpu = Gpu::request_blocking(&AdapterChoice::Best)?;
/// for t in measure_blocking(&gpu, 10)? {
///     println!("{} bytes: {} ns to the device, {} ns back", t.bytes, t.upload_ns.median, t.read_ns.median);
/// }
/// # Ok(()) }
/// ```
pub async fn measure(gpu: &Gpu, samples: usize) -> Result<Vec<Transfer>, RunError> {
    let mut all = vec![];
    for bytes in SIZES.into_iter().filter(|b| *b <= gpu.profile().binding_bytes) {
        all.push(one(gpu, bytes, samples.max(1)).await?);
    }
    Ok(all)
}

async fn one(gpu: &Gpu, bytes: u64, samples: usize) -> Result<Transfer, RunError> {
    let broken =
        |message: &str| RunError::Gpu { what: "measuring transfers".to_owned(), message: message.to_owned() };
    let words: Vec<f32> = (0..bytes / 4).map(|i| i as f32).collect();
    let tensor = Tensor::from_f32(vec![words.len()], &words);
    let content = tensor.bytes().ok_or_else(|| broken("the tensor has no bytes"))?;
    let device = gpu.upload(&tensor).await?;
    let (mut host, mut up, mut down, mut staging) = (vec![], vec![], vec![], None);
    for _ in 0..samples + 2 {
        gpu.wait().await?;
        let begin = Instant::now();
        upload::bytes(gpu, "sample", content, device.buffer()).await?;
        host.push(begin.elapsed().as_nanos() as f64);
        gpu.queue().submit([]);
        gpu.wait().await?;
        up.push(begin.elapsed().as_nanos() as f64);
        let begin = Instant::now();
        let back = read_all(gpu, std::slice::from_ref(&device), &mut staging).await?;
        down.push(begin.elapsed().as_nanos() as f64);
        if back.first().and_then(Tensor::bytes) != Some(content) {
            return Err(broken("other bytes came back"));
        }
    }
    let of = |all: Vec<f64>| Estimate::of(all[2..].to_vec()).ok_or_else(|| broken("nothing was measured"));
    Ok(Transfer { bytes, host_ns: of(host)?, upload_ns: of(up)?, read_ns: of(down)? })
}

/// [`measure`] for callers without an executor.
pub fn measure_blocking(gpu: &Gpu, samples: usize) -> Result<Vec<Transfer>, RunError> {
    pollster::block_on(measure(gpu, samples))
}
