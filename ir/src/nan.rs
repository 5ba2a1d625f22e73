//! Counting NaNs in weights.

use crate::dtype::DType;

/// The number of NaNs in f32, f16 and bf16 data; 0 for other types, which rarely hold any.
pub fn count_nan(dtype: DType, bytes: &[u8]) -> usize {
    fn wide(bytes: &[u8]) -> usize {
        let above = |c: &[u8]| u32::from_le_bytes([c[0], c[1], c[2], c[3]]) & 0x7fff_ffff > 0x7f80_0000;
        bytes.chunks_exact(4).map(|c| u32::from(above(c))).sum::<u32>() as usize
    }
    fn half<const INFINITY: u16>(bytes: &[u8]) -> usize {
        let above = |c: &[u8]| u16::from_le_bytes([c[0], c[1]]) & 0x7fff > INFINITY;
        bytes.chunks_exact(2).map(|c| u32::from(above(c))).sum::<u32>() as usize
    }
    let count = match dtype {
        DType::F32 => wide,
        DType::F16 => half::<0x7c00>,
        DType::BF16 => half::<0x7f80>,
        _ => return 0,
    };
    // This is often the first access to memory-mapped weights, which reads them from their file.
    const TASK: usize = 1 << 20;
    #[cfg(all(feature = "fast", not(target_arch = "wasm32")))]
    if bytes.len() > TASK {
        use rayon::prelude::*;
        return bytes.par_chunks(TASK).map(count).sum();
    }
    bytes.chunks(TASK).map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_counted() {
        for (dtype, nan, infinity) in [
            (DType::F32, 0x7fc0_0000u32, 0x7f80_0000),
            (DType::F16, 0x7e00, 0x7c00),
            (DType::BF16, 0x7fc0, 0x7f80),
        ] {
            let size = dtype.bits() / 8;
            let mut bytes = vec![0u8; size * 1_000_003];
            let mut put =
                |i: usize, v: u32| bytes[i * size..][..size].copy_from_slice(&v.to_le_bytes()[..size]);
            put(0, infinity);
            for i in [1, 500_000, 1_000_002] {
                put(i, nan | 1 << (dtype.bits() - 1));
            }
            assert_eq!(count_nan(dtype, &bytes), 3, "{dtype}");
            assert_eq!(count_nan(dtype, &bytes[..2 * size]), 1, "{dtype}");
        }
        assert_eq!(count_nan(DType::I32, &[0xff; 64]), 0);
    }
}
