//! The operators: one file each (elementwise ones share [`unary`] and [`binary`]), one line each below.

use super::op::OpDef;
use std::collections::HashMap;
use std::sync::OnceLock;

mod binary;
mod unary;

/// Every operator, by file.
const TABLE: &[&[OpDef]] = &[
    binary::OPS,
    unary::OPS,
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
