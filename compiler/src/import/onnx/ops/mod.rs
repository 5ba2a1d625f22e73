//! The operators: one file each (elementwise ones share `unary` and `binary`), one line each below.

use super::op::OpDef;
use std::collections::HashMap;
use std::sync::OnceLock;

mod activation;
mod arg;
mod attention;
mod binary;
mod cast;
mod constant;
mod control;
mod conv;
mod counters;
mod deform;
mod dropout;
mod flex;
mod fourier;
mod fused;
mod gather;
mod heads;
mod interpolate;
mod linear;
mod linear_attention;
mod matmul;
mod nms;
mod norm;
mod packed_attention;
mod pool;
mod qlinear;
mod quantized;
mod recurrent;
mod reduce;
mod refused;
mod resize;
mod roi;
mod rotary;
mod sample;
mod scatter;
mod select;
mod shape;
mod slice;
mod softmax;
mod split;
#[cfg(test)]
mod supported;
mod transposed;
mod unary;
mod unique;
mod window;

mod bits;
mod compress;
mod einsum;
mod features;
mod linalg;
mod loss;
mod lp;
mod placed;
mod random;
mod spectral;

pub use refused::{REFUSED, why};

/// Every operator, by file.
const TABLE: &[&[OpDef]] = &[
    activation::OPS,
    arg::OPS,
    attention::OPS,
    binary::OPS,
    cast::OPS,
    constant::OPS,
    control::OPS,
    conv::OPS,
    deform::OPS,
    dropout::OPS,
    flex::OPS,
    fourier::OPS,
    fused::OPS,
    gather::OPS,
    linear::OPS,
    linear_attention::OPS,
    matmul::OPS,
    nms::OPS,
    norm::OPS,
    packed_attention::OPS,
    pool::OPS,
    qlinear::OPS,
    quantized::OPS,
    recurrent::OPS,
    reduce::OPS,
    resize::OPS,
    roi::OPS,
    rotary::OPS,
    sample::OPS,
    scatter::OPS,
    select::OPS,
    shape::OPS,
    slice::OPS,
    softmax::OPS,
    split::OPS,
    transposed::OPS,
    unary::OPS,
    unique::OPS,
    bits::OPS,
    compress::OPS,
    einsum::OPS,
    features::OPS,
    linalg::OPS,
    loss::OPS,
    lp::OPS,
    placed::OPS,
    random::OPS,
    spectral::OPS,
];

/// Every operator.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    TABLE.iter().flat_map(|f| f.iter())
}

/// The operator of that name; the domain of `ai.onnx` is empty.
pub fn find(domain: &str, name: &str) -> Option<&'static OpDef> {
    static INDEX: OnceLock<HashMap<(&'static str, &'static str), &'static OpDef>> = OnceLock::new();
    INDEX.get_or_init(|| all().map(|d| ((d.domain, d.name), d)).collect()).get(&(domain, name)).copied()
}
