//! Copies of the device's results in host memory.
//!
//! Most of the time goes to page faults, one per 4 KiB of freshly allocated memory, and they take longer than the copy. Large
//! results therefore use pages of 2 MiB where the system offers them, and several threads copy.

use super::threads;
use std::sync::Arc;
use wgfc_program::tensor::ByteOwner;

/// The size in bytes of a large page.
const PAGE: usize = 2 << 20;
/// The largest number of copying threads. More threads help because each of them waits for page faults.
const THREADS: usize = 16;

/// A copy of bytes that the device wrote.
pub(crate) fn copied(bytes: &[u8]) -> Arc<dyn ByteOwner> {
    if bytes.len() < 2 * PAGE {
        return Arc::new(bytes.to_vec());
    }
    #[cfg(target_os = "linux")]
    if let Ok(mut out) = memmap2::MmapMut::map_anon(bytes.len()) {
        // An error is ignored: pages are small then.
        let _ = out.advise(memmap2::Advice::HugePage);
        copy(&mut out, bytes);
        return Arc::new(out);
    }
    let mut out = vec![0; bytes.len()];
    copy(&mut out, bytes);
    Arc::new(out)
}

fn copy(to: &mut [u8], from: &[u8]) {
    let threads = threads(from.len(), THREADS);
    if threads < 2 {
        return to.copy_from_slice(from);
    }
    // Each thread copies whole pages.
    let part = from.len().div_ceil(threads).next_multiple_of(PAGE);
    std::thread::scope(|s| {
        for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
            s.spawn(move || to.copy_from_slice(from));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::copied;

    #[test]
    fn copies_of_all_lengths_are_whole() {
        for n in [0, 1, 4093, 2 << 20, (4 << 20) - 1, 4 << 20, (9 << 20) + 5] {
            let bytes: Vec<u8> = (0..n).map(|i| (i * 7 + i / 251) as u8).collect();
            assert!((*copied(&bytes)).as_ref() == &bytes[..], "{n} bytes");
        }
    }
}
