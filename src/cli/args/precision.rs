//! In which type values are kept.

use clap::{Args, ValueEnum};
use wgfc::Error;
use wgfc::compiler::{Activations, CacheType, Precision, WeightBits};

/// The type of values of f32 in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// As the model says
    #[default]
    F32,
    /// f16, with sums and all arithmetic in f32; what f16 could not hold stays f32
    F16,
}

impl PrecisionArg {
    /// As the compiler takes it.
    pub fn of_compiler(self) -> Precision {
        match self {
            PrecisionArg::F32 => Precision::F32,
            PrecisionArg::F16 => Precision::F16,
        }
    }
}

/// Bits of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WeightArg {
    /// 8 bits
    Q8,
    /// 4 bits
    Q4,
}

/// Bits of what products multiply with quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ActivationArg {
    /// 8 bits
    Q8,
}

/// The type of caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheArg {
    /// As the model says, also with `--precision f16`
    F32,
    /// f16
    F16,
    /// 8 bits, with a scale for each 32 elements
    Q8,
}

/// In which type values are kept.
#[derive(Args, Clone, Debug, Default)]
pub struct PrecisionArgs {
    /// Keep weights, caches and, where the device has f16, the tensors between kernels of a model of f32 in this type
    #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
    pub precision: PrecisionArg,
    /// Round the weights of products to so many bits, to the nearest in blocks of 32 with a scale
    #[arg(long, value_enum, value_name = "BITS")]
    pub weights: Option<WeightArg>,
    /// Let products with quantised weights round what they multiply to so many bits, in groups of 32 with a scale, and multiply integers
    #[arg(long, value_enum, value_name = "BITS")]
    pub activations: Option<ActivationArg>,
    /// Keep the keys and values of a decoder's cache in this type [default: that of the activations]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub cache: Option<CacheArg>,
    /// Keep what this node of the model computes, and the weights that only it reads, in f32; may be repeated
    #[arg(long, value_name = "NODE")]
    pub keep_f32: Vec<String>,
}

impl PrecisionArgs {
    /// Nothing is to be kept where nothing is changed.
    pub fn check(&self) -> Result<(), Error> {
        if !self.keep_f32.is_empty() && self.precision == PrecisionArg::F32 && self.weights.is_none() {
            return Err(Error::usage(
                "--keep-f32 has no effect where everything is f32",
                "give it with --precision f16 or --weights",
            ));
        }
        Ok(())
    }

    /// The bits of activations, as the compiler takes them.
    pub fn activations(&self) -> Activations {
        match self.activations {
            None => Activations::Own,
            Some(ActivationArg::Q8) => Activations::Q8,
        }
    }

    /// The type of caches, as the compiler takes it.
    pub fn cache_type(&self) -> CacheType {
        match self.cache {
            None => CacheType::Own,
            Some(CacheArg::F32) => CacheType::F32,
            Some(CacheArg::F16) => CacheType::F16,
            Some(CacheArg::Q8) => CacheType::Q8,
        }
    }

    /// The bits of weights, as the compiler takes them.
    pub fn weight_bits(&self) -> WeightBits {
        match self.weights {
            None => WeightBits::Own,
            Some(WeightArg::Q8) => WeightBits::Q8,
            Some(WeightArg::Q4) => WeightBits::Q4,
        }
    }
}
