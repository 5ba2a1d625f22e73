//! Logarithms, exponentials and angles.

pub(super) use libm::{atan2, exp2, expm1, hypot, log1p, log2, log10};
