//! The operators: a file for each family decodes inputs and attributes, and calls [`lower`](crate::lower). Each file is one line in the
//! list below.

use super::op::OpDef;
use std::collections::HashMap;
use std::sync::OnceLock;

/// Declares the files of operators, and the table of their definitions.
macro_rules! operators {
    ($($file:ident,)*) => {
        $(mod $file;)*
        const TABLE: &[&[OpDef]] = &[$($file::OPS),*];
    };
}

operators! {
    activation,
    arg,
    attention,
    binary,
    bits,
    cast,
    compress,
    constant,
    control,
    conv,
    deform,
    dropout,
    einsum,
    encoders,
    features,
    flex,
    fourier,
    fused,
    gather,
    linalg,
    linear,
    linear_attention,
    loss,
    lp,
    matmul,
    nms,
    norm,
    packed_attention,
    placed,
    pool,
    qlinear,
    quantized,
    random,
    recurrent,
    reduce,
    resize,
    roi,
    rotary,
    sample,
    scatter,
    select,
    shape,
    slice,
    softmax,
    spectral,
    split,
    support_vectors,
    transposed,
    trees,
    unary,
    unique,
}

mod refused;
#[cfg(test)]
pub(in crate::import) mod supported;
mod window;

pub use refused::{REFUSED, instead, why};

/// All operators.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    TABLE.iter().flat_map(|f| f.iter())
}

/// The operator of a name; the domain of `ai.onnx` is empty.
pub fn find(domain: &str, name: &str) -> Option<&'static OpDef> {
    static INDEX: OnceLock<HashMap<(&'static str, &'static str), &'static OpDef>> = OnceLock::new();
    INDEX.get_or_init(|| all().map(|d| ((d.domain, d.name), d)).collect()).get(&(domain, name)).copied()
}
