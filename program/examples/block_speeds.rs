//! Prints how fast one core takes blocks of weights apart, quantises and finds exponents, in GB/s of what is read:
//! `cargo run --release -p wgfc-program --example block_speeds`.

use std::hint::black_box;
use std::time::Instant;
use wgfc_program::derived::{planes, quantise};
use wgfc_program::{DType, Tensor};

type Make = fn(&[u8], &mut [u8]);
/// A type of blocks: its name, the bytes of a block, and its planes with the bytes that a block makes.
type Kind = (&'static str, usize, &'static [(usize, Make)]);

/// The bytes that are read at a time, as in uploads.
const STEP: usize = 64 << 10;

/// The seconds that `f` takes for all of `bytes`, from the shortest time of a piece: others may use the core, too.
fn seconds(bytes: &[u8], step: usize, mut f: impl FnMut(&[u8])) -> f64 {
    let time = |piece| {
        let start = Instant::now();
        f(piece);
        start.elapsed().as_secs_f64()
    };
    bytes.chunks_exact(step).map(time).fold(f64::INFINITY, f64::min) * bytes.len() as f64 / step as f64
}

fn main() {
    let bytes: Vec<u8> =
        (0..32u32 << 20).map(|i| (i.wrapping_mul(2_654_435_769) >> 24) as u8 & 0xbf).collect();
    let print =
        |name: &str, seconds: f64| println!("{name:20} {:6.2} GB/s", bytes.len() as f64 / seconds / 1e9);
    let kinds: [Kind; 12] = [
        ("Q4_0", 18, &[(16, planes::q4_0_elements), (2, planes::q4_0_scales)]),
        ("Q4_1", 20, &[(16, planes::q4_1_elements), (4, planes::q4_1_scales)]),
        ("Q5_0", 22, &[(16, planes::q5_0_low), (8, planes::q5_0_high), (2, planes::q5_0_scales)]),
        ("Q5_1", 24, &[(16, planes::q5_1_low), (8, planes::q5_1_high), (4, planes::q5_1_scales)]),
        ("Q8_0", 34, &[(32, planes::q8_0_elements), (2, planes::q8_0_scales)]),
        ("Q2_K", 84, &[(64, planes::q2_k_elements), (16, planes::q2_k_factors), (4, planes::q2_k_scales)]),
        ("Q3_K", 110, &[(128, planes::q3_k_elements), (16, planes::q3_k_factors), (2, planes::q3_k_scales)]),
        ("Q4_K", 144, &[(128, planes::q4_k_elements), (16, planes::q4_k_factors), (4, planes::q4_k_scales)]),
        (
            "Q5_K",
            176,
            &[
                (128, planes::q5_k_low),
                (64, planes::q5_k_high),
                (16, planes::q5_k_factors),
                (4, planes::q5_k_scales),
            ],
        ),
        (
            "Q6_K",
            210,
            &[
                (128, planes::q6_k_low),
                (64, planes::q6_k_high),
                (16, planes::q6_k_factors),
                (2, planes::q6_k_scales),
            ],
        ),
        ("IQ4_NL", 18, &[(32, planes::iq4_nl_elements), (2, planes::q4_0_scales)]),
        ("MXFP4", 17, &[(16, planes::mxfp4_elements), (1, planes::mxfp4_scales)]),
    ];
    for (name, block, makes) in kinds {
        let step = STEP / block * block;
        let mut to: Vec<Vec<u8>> = makes.iter().map(|(m, _)| vec![0; step / block * m]).collect();
        let time = seconds(&bytes, step, |b| {
            for ((_, make), to) in makes.iter().zip(&mut to) {
                make(black_box(b), to);
                black_box(&*to);
            }
        });
        print(name, time);
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        // So few bytes that one thread reads them.
        let few = bytes[..1 << 20].to_vec();
        let Ok(t) = Tensor::new(dtype, vec![few.len() * 8 / dtype.bits()], few.clone()) else { continue };
        print(
            &format!("exponents of {dtype}"),
            seconds(&few.repeat(20), few.len(), |_| {
                black_box(t.exponents());
            }) * bytes.len() as f64
                / (20 * few.len()) as f64,
        );
        for (q4, bits) in [(true, 4), (false, 8)] {
            let Some(both) = quantise::derivations(dtype, q4) else { continue };
            let mut to = both.map(|d| vec![0; STEP / d.block * d.makes]);
            let time = seconds(&bytes, STEP, |b| {
                for (d, to) in both.iter().zip(&mut to) {
                    (d.make)(black_box(b), to);
                    black_box(&*to);
                }
            });
            print(&format!("{dtype} in {bits} bits"), time);
            let time = seconds(&bytes, STEP, |b| {
                black_box(quantise::error(dtype, q4, black_box(b)));
            });
            print("  error", time);
            let time = seconds(&bytes, STEP, |b| {
                black_box(quantise::columns(dtype, q4, black_box(b)));
            });
            print("  columns", time);
        }
    }
}
