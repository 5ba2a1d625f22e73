//! Whether a decoder fits the memory of a device, and in which form it would.

use super::GeneratorOptions;
use crate::inspect::bytes_text;
use crate::{Error, Problem};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use wgfc_compiler::states::GROUP;
use wgfc_compiler::weights::BLOCK;
use wgfc_compiler::{CacheType, Precision, WeightBits};
use wgfc_ir::{DType, Dim, Graph, Op};

/// The fewest rows and columns of a weight that is quantised.
const MATRIX: usize = 64;

/// Numbers of elements of one type.
#[derive(Clone, Copy, Debug)]
struct Elements {
    dtype: DType,
    number: u64,
    /// Whether they are a weight of a matrix product that can be quantised.
    matrix: bool,
}

/// The sizes of a decoder's weights, and of a position in its cache. No weight is read.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    weights: Vec<Elements>,
    /// The elements of a position of each state that grows.
    position: Vec<Elements>,
}

impl Sizes {
    /// The sizes of an imported graph with states, which grow by `positions` positions at a time.
    pub fn of(graph: &Graph, positions: usize) -> Sizes {
        let mut places = HashSet::new();
        let mut weights = vec![];
        for n in graph.node_ids() {
            let Op::Const(t) = &graph.node(n).op else { continue };
            let mut place = DefaultHasher::new();
            t.hash_place(&mut place);
            let known = t.is_present() && !places.insert((place.finish(), t.byte_len()));
            if known || graph.uses(n.into()).is_empty() {
                continue;
            }
            let float = matches!(t.dtype, DType::F32 | DType::F16 | DType::BF16);
            let matrix = float && matches!(t.shape[..], [a, b] if a >= MATRIX && b >= MATRIX);
            weights.push(Elements { dtype: t.dtype, number: t.numel() as u64, matrix });
        }
        let position = graph.states.iter().filter_map(|s| {
            let (ty, axis) = (graph.ty(s.before), s.growth.as_ref()?.axis);
            let others = ty.shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, d)| d.clone());
            let number = u64::try_from(others.product::<Dim>().as_const()?).ok()?;
            Some(Elements { dtype: ty.dtype, number: number / positions.max(1) as u64, matrix: false })
        });
        Sizes { position: position.collect(), weights }
    }

    /// The bytes of the weights, at least.
    fn weights(&self, precision: Precision, bits: WeightBits) -> u64 {
        let one = |e: &Elements| match bits.bits() {
            bits @ 1.. if e.matrix => {
                e.number.div_ceil(BLOCK as u64) * (BLOCK as u64 * u64::from(bits) / 8 + 2)
            }
            _ => bytes(e, precision),
        };
        self.weights.iter().map(one).fold(0, u64::saturating_add)
    }

    /// The bytes of a cache.
    fn cache(&self, precision: Precision, cache: CacheType, positions: usize) -> u64 {
        let of = |e: &Elements| match cache {
            CacheType::Own => bytes(e, precision),
            CacheType::F32 => bytes(e, Precision::F32),
            CacheType::F16 => bytes(e, Precision::F16),
            CacheType::Q8 => e.number.saturating_add(4 * e.number.div_ceil(GROUP as u64)),
        };
        let one = self.position.iter().map(of).fold(0, u64::saturating_add);
        one.saturating_mul(positions as u64)
    }

    /// Refuses a decoder that does not fit `have` bytes even with room for `least` positions.
    pub fn check(&self, options: &GeneratorOptions, have: Option<u64>, least: usize) -> Result<(), Error> {
        let Some(have) = have else { return Ok(()) };
        let (precision, bits) = (options.precision, options.weights);
        let need = self.weights(precision, bits).saturating_add(self.cache(precision, options.cache, least));
        if need > have { Err(self.refused(options, Some(have), least)) } else { Ok(()) }
    }

    /// The memory that the weights and the whole cache leave.
    pub fn room(&self, options: &GeneratorOptions, have: Option<u64>) -> Option<u64> {
        let weights = self.weights(options.precision, options.weights);
        let cache = self.cache(options.precision, options.cache, options.capacity);
        Some(have?.saturating_sub(weights).saturating_sub(cache))
    }

    /// A warning if the whole cache does not fit beside the weights.
    pub fn warning(&self, options: &GeneratorOptions, have: Option<u64>) -> Option<String> {
        let left = have?.saturating_sub(self.weights(options.precision, options.weights));
        let fits = left / self.cache(options.precision, options.cache, 1).max(1);
        (fits < options.capacity as u64).then(|| {
            format!(
                "the cache may grow to {} positions, of which the device's memory holds about {fits} beside the weights",
                options.capacity
            )
        })
    }

    /// The error that a decoder does not fit, with what would. The memory of the device is unknown if it refused to reserve what is needed.
    pub fn refused(&self, options: &GeneratorOptions, have: Option<u64>, least: usize) -> Error {
        let needs =
            |precision, bits, cache| (self.weights(precision, bits), self.cache(precision, cache, least));
        let (weights, cache) = needs(options.precision, options.weights, options.cache);
        let has =
            have.map_or_else(|| "refused to reserve it".to_owned(), |b| format!("has {}", bytes_text(b)));
        let message = format!(
            "the model does not fit the device: its weights need {} and a cache of {least} positions {}, and the device {has}",
            bytes_text(weights),
            bytes_text(cache)
        );
        let forms = [
            ("--precision f16", Precision::F16, options.weights, options.cache),
            ("--weights q8", options.precision, WeightBits::Q8, options.cache),
            ("--weights q4", options.precision, WeightBits::Q4, options.cache),
            ("--weights q4 --precision f16", Precision::F16, WeightBits::Q4, options.cache),
            ("--weights q4 --precision f16 --cache q8", Precision::F16, WeightBits::Q4, CacheType::Q8),
        ];
        let mut smallest = weights + cache;
        let mut fitting = vec![];
        for (flags, precision, bits, cache) in forms {
            let (weights, cache) = needs(precision, bits, cache);
            let need = weights + cache;
            if need < smallest {
                smallest = need;
                if have.is_none_or(|have| need <= have) {
                    fitting.push(format!("{flags} ({})", bytes_text(need)));
                }
            }
        }
        let help = match (fitting.is_empty(), have) {
            (false, Some(_)) => format!("these fit: {}", fitting.join(", ")),
            (false, None) => format!("these need less: {}", fitting.join(", ")),
            (true, _) => {
                "take a smaller model, a file with fewer bits to a weight, or another adapter".to_owned()
            }
        };
        Error::Device(Problem::with_help(message, help))
    }
}

/// The bytes of elements that are kept in this precision.
fn bytes(e: &Elements, precision: Precision) -> u64 {
    let dtype = if (e.dtype, precision) == (DType::F32, Precision::F16) { DType::F16 } else { e.dtype };
    dtype.bytes_of(e.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decoder, Generator};

    #[test]
    fn a_decoder_that_does_not_fit_is_refused_with_what_would() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
        let decoder = Decoder::open(&path).unwrap();
        for gpu in wgfc_runtime::testing::gpus().iter().take(1) {
            let with = |bytes, capacity| GeneratorOptions {
                device_memory: Some(bytes),
                capacity,
                ..GeneratorOptions::default()
            };
            let made = |o: GeneratorOptions| Generator::on_device(gpu.clone(), &decoder, &o);
            let needs = made(with(u64::MAX, 64)).unwrap().device_memory();
            let fits = needs.weights + needs.states;
            let whole = made(with(fits, 64)).unwrap();
            assert!(whole.warnings().is_empty(), "{:?}", whole.warnings());
            let long = made(with(fits, 4096)).unwrap();
            assert!(long.warnings().iter().any(|w| w.contains("may grow to 4096 positions")));
            let Err(Error::Device(p)) = made(with(fits / 2 + 100, 64)) else { panic!("it does not fit") };
            assert!(p.message.starts_with("the model does not fit the device: its weights need "), "{p:?}");
            assert!(p.help.unwrap().starts_with("these fit: --precision f16 ("));
            let Err(Error::Device(p)) = made(with(10, 64)) else { panic!("it does not fit") };
            assert!(p.help.unwrap().starts_with("take a smaller model"));
        }
    }

    #[test]
    fn forms_need_what_they_take() {
        let matrix = |dtype, number| Elements { dtype, number, matrix: true };
        let plain = |dtype, number| Elements { dtype, number, matrix: false };
        let sizes = Sizes {
            weights: vec![matrix(DType::F32, 6400), matrix(DType::BF16, 3200), plain(DType::F32, 10)],
            position: vec![plain(DType::F32, 5)],
        };
        let of = |precision, bits| sizes.weights(precision, bits);
        assert_eq!(of(Precision::F32, WeightBits::Own), 4 * 6400 + 2 * 3200 + 40);
        assert_eq!(of(Precision::F16, WeightBits::Own), 2 * 6400 + 2 * 3200 + 20);
        assert_eq!(of(Precision::F32, WeightBits::Q8), 300 * 34 + 40);
        assert_eq!(of(Precision::F16, WeightBits::Q4), 300 * 18 + 20);
        let of = |precision, cache| sizes.cache(precision, cache, 3);
        assert_eq!((of(Precision::F32, CacheType::Own), of(Precision::F16, CacheType::Own)), (60, 30));
        assert_eq!((of(Precision::F16, CacheType::F32), of(Precision::F32, CacheType::Q8)), (60, 27));
    }
}
