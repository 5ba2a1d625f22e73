//! Kernels kept from one grouping to the next: a unit that is the same, and reads what is where it was, is not built again.

use crate::fuse::pulling::Source;
use crate::fuse::tensors::Tensors;
use crate::fuse::unit::Unit;
use crate::kernel::{ExprId, Kernel, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};
use wgfc_ir::{NodeId, Value};

/// A kernel, and the values inlined into it with their expressions.
pub(super) type Made = (Kernel, Vec<(Value, ExprId)>);

/// What units became, by their anchors.
#[derive(Default)]
pub(super) struct Kept(FxHashMap<NodeId, Entry>);

struct Entry {
    unit: Unit,
    /// The values whose place was asked for, in order, and what they were.
    asked: Vec<(Value, Source)>,
    made: Made,
}

impl Kept {
    /// What the unit became before, over the tensors of now.
    pub(super) fn again(&self, unit: &Unit, tensors: &mut Tensors) -> Option<Made> {
        let entry = self.0.get(&unit.anchor).filter(|e| e.unit == *unit)?;
        let mut number: FxHashMap<TensorId, TensorId> = FxHashMap::default();
        for (v, before) in &entry.asked {
            let now = tensors.source(*v);
            let (old, new) = (before.tensors(), now.tensors());
            if before.kind() != now.kind() || old.len() != new.len() {
                return None;
            }
            number.extend(old.into_iter().zip(new));
        }
        let (kernel, inlined) = &entry.made;
        let of = |t: TensorId| number.get(&t).copied().unwrap_or(t);
        let same = number.iter().all(|(old, new)| old == new);
        let kernel = if same { kernel.clone() } else { kernel.renumbered(&of) };
        Some((kernel, inlined.clone()))
    }

    /// Keeps what a unit became, unless it has tensors that hold no value of the graph. `asked` are the values whose place
    /// was asked for, and what they were.
    pub(super) fn keep(&mut self, unit: &Unit, asked: Vec<(Value, Source)>, made: Made) {
        let known: FxHashSet<TensorId> = asked.iter().flat_map(|(_, s)| s.tensors()).collect();
        let mut used = made.0.reads().into_iter().chain(made.0.writes());
        if used.all(|t| known.contains(&t)) {
            self.0.insert(unit.anchor, Entry { unit: unit.clone(), asked, made });
        }
    }
}
