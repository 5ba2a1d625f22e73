//! Reports of indices that are out of range.

use super::Env;
use super::array::Array;
use super::index::{advance, concrete};
use crate::graph::Node;
use crate::op::{GatherAxis, Op};
use std::collections::BTreeMap;

/// The number of indices kept for each node; the others are only counted.
const KEPT: usize = 4;

/// An index outside its axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// Its position in the tensor of indices.
    pub position: Vec<usize>,
    /// The index.
    pub value: i64,
    /// The extent of the axis: indices from `-extent` to `extent - 1` are in range.
    pub extent: usize,
}

/// The indices of one node of the model that are out of range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutOfRanges {
    /// The first few of them.
    pub first: Vec<OutOfRange>,
    /// The total number of them.
    pub count: usize,
    /// Whether the indices are written to, which drops the updates; reads are clamped to the nearest element.
    pub writes: bool,
}

/// The indices out of range, by the name of the model's node.
pub type Found = BTreeMap<String, OutOfRanges>;

/// Records the indices of a node that are out of range.
pub(super) fn look(node: &Node, args: &[&Array], env: &Env, found: &mut Found) {
    let (index, extents, writes) = match &node.op {
        Op::Gather { index, .. } => (index, args[0].shape.clone(), false),
        Op::Scatter { index, .. } => (index, args[0].shape.clone(), true),
        Op::Place { shape, index } => match env.shape(shape) {
            Ok(shape) => (index, shape, true),
            Err(_) => return,
        },
        _ => return,
    };
    for (axis, extent) in index.iter().zip(extents) {
        let GatherAxis::Data { input, at } = axis else { continue };
        let Some((indices, values)) = args.get(*input).and_then(|a| Some((*a, a.ints()?))) else { continue };
        // The coordinate of this axis, if the index tensor holds several coordinates per position.
        let fixed: Vec<Option<i64>> = at.iter().map(|p| concrete(p, &[], env).as_const()).collect();
        let reach = i64::try_from(extent).unwrap_or(i64::MAX);
        let mut position = vec![0; indices.shape.len()];
        for value in values {
            let meant = position.iter().zip(&fixed).all(|(p, f)| f.is_none_or(|f| *p as i64 == f));
            if meant && !(-reach..reach).contains(&value) {
                let all = found.entry(node.label().to_string()).or_default();
                all.count += 1;
                all.writes = writes;
                if all.first.len() < KEPT {
                    all.first.push(OutOfRange { position: position.clone(), value, extent });
                }
            }
            advance(&mut position, &indices.shape);
        }
    }
}
