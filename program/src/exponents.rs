//! The exponents of the elements of float tensors.

use crate::{DType, Tensor};

/// The number of bytes that a thread reads at a time.
const PIECE: usize = 1 << 20;

/// The biased exponents that occur in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biased {
    /// The least exponent other than 0; `None` if there is none.
    pub least: Option<u16>,
    /// The largest exponent. The largest that the type has is that of infinities and NaN.
    pub most: u16,
    /// Whether the exponent 0 occurs, which zeros and subnormal numbers have.
    pub zero: bool,
}

impl Tensor {
    /// The biased exponents of all elements, which all cores read; `None` if they cannot be read, or the type is not f64, f32, f16 or
    /// bf16.
    ///
    /// ```
    /// use wgfc_program::Tensor;
    /// let t = Tensor::from_f32(vec![3], &[0.5, 0.0, -2.0]);
    /// let e = t.exponents().unwrap();
    /// assert_eq!((e.least, e.most, e.zero), (Some(126), 128, true));
    /// ```
    pub fn exponents(&self) -> Option<Biased> {
        let found = match self.dtype {
            DType::F16 => self.scan(PIECE, |b| least_and_most(b, |e| u16::from_le_bytes(e) >> 10 & 0x1f)),
            DType::BF16 => self.scan(PIECE, |b| least_and_most(b, |e| u16::from_le_bytes(e) >> 7 & 0xff)),
            DType::F32 => self.scan(PIECE, |b| {
                least_and_most(b, |e: [u8; 4]| u16::from_le_bytes([e[2], e[3]]) >> 7 & 0xff)
            }),
            DType::F64 => self.scan(PIECE, |b| {
                least_and_most(b, |e: [u8; 8]| u16::from_le_bytes([e[6], e[7]]) >> 4 & 0x7ff)
            }),
            _ => None,
        }?;
        let least = found.iter().map(|f| f.least).min().unwrap_or(NONE);
        Some(Biased {
            least: (least != NONE).then_some(least as u16 + 1),
            most: found.iter().map(|f| f.most).max().unwrap_or(0) as u16,
            zero: found.iter().any(|f| f.lowest == 0),
        })
    }
}

/// The least exponent less 1 where there is none but 0.
const NONE: i16 = i16::MAX;

struct Found {
    /// The least exponent other than 0, less 1.
    least: i16,
    lowest: i16,
    most: i16,
}

/// Written without branches, and with signed numbers of 16 bits, for which all vector units have a minimum and a maximum.
fn least_and_most<const W: usize>(bytes: &[u8], exponent: impl Fn([u8; W]) -> u16) -> Found {
    let none = Found { least: NONE, lowest: NONE, most: 0 };
    bytes.as_chunks::<W>().0.iter().fold(none, |f, e| {
        let e = exponent(*e);
        // The exponent 0 becomes the largest number.
        let less = (e.wrapping_sub(1) & NONE as u16) as i16;
        let e = e as i16;
        Found { least: f.least.min(less), lowest: f.lowest.min(e), most: f.most.max(e) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_found_in_all_types() {
        let values = [0.0f32, 1.5, -0.25, 6e4, -0.0];
        let of = |bytes: Vec<u8>, dtype: DType| {
            let n = bytes.len() * 8 / dtype.bits();
            Tensor::new(dtype, vec![n], bytes).unwrap().exponents().unwrap()
        };
        let le = |f: &dyn Fn(f32) -> Vec<u8>| values.iter().flat_map(|v| f(*v)).collect::<Vec<u8>>();
        let f16 = of(le(&|v| half::f16::from_f32(v).to_le_bytes().to_vec()), DType::F16);
        assert_eq!(f16, Biased { least: Some(13), most: 30, zero: true });
        let bf16 = of(le(&|v| half::bf16::from_f32(v).to_le_bytes().to_vec()), DType::BF16);
        assert_eq!(bf16, Biased { least: Some(125), most: 142, zero: true });
        assert_eq!(of(le(&|v| v.to_le_bytes().to_vec()), DType::F32), bf16);
        let f64 = of(le(&|v| f64::from(v).to_le_bytes().to_vec()), DType::F64);
        assert_eq!(f64, Biased { least: Some(1021), most: 1038, zero: true });
        let zeros = Tensor::zeros(DType::F16, vec![9]).exponents();
        assert_eq!(zeros, Some(Biased { least: None, most: 0, zero: true }));
        let odd = Tensor::from_f32(vec![2], &[f32::NEG_INFINITY, 1e-45]).exponents();
        assert_eq!(odd, Some(Biased { least: Some(255), most: 255, zero: true }));
        assert_eq!(Tensor::from_i64(vec![1], &[1]).exponents(), None);
    }

    #[test]
    fn every_exponent_of_f16_is_found_alone() {
        for bits in 0..=u16::MAX {
            let e = bits >> 10 & 0x1f;
            let t = Tensor::new(DType::F16, vec![1], bits.to_le_bytes().to_vec()).unwrap();
            let want = Biased { least: (e != 0).then_some(e), most: e, zero: e == 0 };
            assert_eq!(t.exponents(), Some(want));
        }
    }
}
