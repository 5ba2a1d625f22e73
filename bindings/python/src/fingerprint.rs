//! Fingerprints of arrays, which tell whether bytes on the host have changed since they were copied to the device.
//!
//! Equal bytes have equal fingerprints. A change within a single word always changes the fingerprint; other changes are missed
//! with a probability of about 2⁻⁶⁴. A fingerprint is not a cryptographic hash.

use crate::input;
use pyo3::prelude::*;
use std::num::NonZero;

/// The size in bytes of a piece. Several threads hash pieces; the fingerprint does not depend on their number.
const PIECE: usize = 1 << 20;
/// The number of independent hash states, so that consecutive multiplications do not depend on each other.
const LANES: usize = 8;
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The fingerprint of an array on the host, as two words.
#[pyfunction]
pub fn fingerprint(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    let tensor = input::tensor("array", array, None)?;
    Ok(py.detach(|| of_bytes(tensor.bytes().unwrap_or_default())))
}

fn of_bytes(bytes: &[u8]) -> (u64, u64) {
    let pieces: Vec<&[u8]> = bytes.chunks(PIECE).collect();
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(8);
    let share = pieces.len().div_ceil(threads).max(4);
    let of_pieces: Vec<u64> = if pieces.len() <= share {
        pieces.iter().flat_map(|p| of_piece(p)).collect()
    } else {
        std::thread::scope(|s| {
            let shares = pieces.chunks(share);
            let started: Vec<_> =
                shares.map(|some| s.spawn(|| some.iter().flat_map(|p| of_piece(p)).collect())).collect();
            // If a thread failed, its share has no words, and the array counts as changed.
            started.into_iter().flat_map(|t| t.join().unwrap_or_else(|_| vec![])).collect()
        })
    };
    let start = bytes.len() as u64;
    let step = |h, w: &u64| mixed(h, *w);
    (of_pieces.iter().fold(start, step), of_pieces.iter().rev().fold(!start, step))
}

/// Mixes a word into a hash. For either argument fixed, this is a bijection of the other.
fn mixed(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(ODD).rotate_left(29)
}

fn of_piece(piece: &[u8]) -> [u64; LANES] {
    let mut lanes: [u64; LANES] = std::array::from_fn(|i| i as u64);
    let mut take = |block: &[u8; 8 * LANES]| {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = mixed(*lane, u64::from_le_bytes(*word));
        }
    };
    let (blocks, rest) = piece.as_chunks::<{ 8 * LANES }>();
    blocks.iter().for_each(&mut take);
    if !rest.is_empty() {
        let mut last = [0; 8 * LANES];
        last[..rest.len()].copy_from_slice(rest);
        take(&last);
    }
    lanes
}
