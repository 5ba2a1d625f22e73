//! Kernels kept from one grouping attempt to the next: a unit is not rebuilt if it and the sources of its operands are unchanged.

use crate::fuse::pulling::Source;
use crate::fuse::tensors::Tensors;
use crate::fuse::unit::Unit;
use crate::kernel::{ExprId, Kernel, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};
use wgfc_ir::{NodeId, Op, Value};

/// A kernel, and the values inlined into it with their expressions.
pub(super) type Made = (Kernel, Vec<(Value, ExprId)>);

/// The kernels built for units, by the units' anchors.
#[derive(Default)]
pub(super) struct Kept(FxHashMap<NodeId, Entry>);

struct Entry {
    unit: Unit,
    /// The values whose source was asked for, in order, with the sources returned.
    asked: Vec<(Value, Source)>,
    made: Made,
}

impl Kept {
    /// The kernel built for this unit before, with the current tensor numbers; `None` if it cannot be reused.
    pub(super) fn again(&self, unit: &Unit, tensors: &mut Tensors) -> Option<Made> {
        let entry = self.0.get(&unit.anchor).filter(|e| e.unit == *unit)?;
        // The source of a constant never changes; asking for it may create its tensor.
        let constant = |v: &Value| matches!(tensors.graph.node(v.node).op, Op::Const(_));
        let others: Vec<&(Value, Source)> = entry.asked.iter().filter(|(v, _)| !constant(v)).collect();
        if others.into_iter().any(|(v, before)| tensors.source(*v).kind() != before.kind()) {
            return None;
        }
        tensors.take_asked();
        let mut number: FxHashMap<TensorId, TensorId> = FxHashMap::default();
        for (v, before) in &entry.asked {
            number.extend(before.tensors().into_iter().zip(tensors.source(*v).tensors()));
        }
        let (kernel, inlined) = &entry.made;
        let of = |t: TensorId| number.get(&t).copied().unwrap_or(t);
        let same = number.iter().all(|(old, new)| old == new);
        let kernel = if same { kernel.clone() } else { kernel.renumbered(&of) };
        Some((kernel, inlined.clone()))
    }

    /// Keeps the kernel of a unit, unless it uses tensors that hold no value of the graph. `asked` are the values whose source was asked
    /// for, with the sources.
    pub(super) fn keep(&mut self, unit: &Unit, asked: Vec<(Value, Source)>, made: Made) {
        let known: FxHashSet<TensorId> = asked.iter().flat_map(|(_, s)| s.tensors()).collect();
        let mut used = made.0.reads().into_iter().chain(made.0.writes());
        if used.all(|t| known.contains(&t)) {
            self.0.insert(unit.anchor, Entry { unit: unit.clone(), asked, made });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::build::Built;
    use crate::fuse::kernels::unit_kernel;
    use crate::fuse::loops::lanes::Loops;
    use crate::fuse::unit::{KeyParts, Split};
    use crate::kernel::TensorKind;
    use wgfc_ir::{Graph, text};

    /// `z = exp(x) + c` as one unit, with `y = exp(x)` inlined unless it is `held`; `others` further tensors come first.
    fn tensors(graph: &Graph, others: usize, held: bool) -> Tensors<'_> {
        let mut tensors = Tensors::new(graph, 1 << 20);
        let [x, y, z] = [0, 1, 3].map(|i| Value::from(NodeId::new(i)));
        for i in 0..others {
            tensors.add(None, graph.ty(x).clone(), TensorKind::Input(1 + i));
        }
        tensors.add(Some(x), graph.ty(x).clone(), TensorKind::Input(0));
        tensors.add(Some(z), graph.ty(z).clone(), TensorKind::Output(0));
        if held {
            tensors.add(Some(y), graph.ty(y).clone(), TensorKind::Intermediate);
        }
        tensors
    }

    fn build<'a>(graph: &'a Graph, unit: &Unit, tensors: &mut Tensors<'a>) -> Built {
        unit_kernel(graph, unit, &Loops::default(), tensors)
    }

    #[test]
    fn a_kernel_is_kept_while_what_it_reads_is_where_it_was() {
        let graph = text::parse(
            "graph (x: %0) -> (z: %3) {
  %0 = input : f32[n, 3] as \"x\"
  %1 = map [n, 3] { exp(a0) } (%0) : f32[n, 3]
  %2 = const [1.0, 2.0, 3.0] : f32[3]
  %3 = map [n, 3] { add(a0, a1) } (%1, %2) : f32[n, 3]
}",
        )
        .unwrap();
        let z = NodeId::new(3);
        let unit = Unit {
            anchor: z,
            split: Split::NONE,
            parts: KeyParts::NONE,
            members: vec![],
            outputs: vec![z.into()],
        };
        let mut kept = Kept::default();
        let mut first = tensors(&graph, 0, false);
        let made = build(&graph, &unit, &mut first).unwrap();
        kept.keep(&unit, first.take_asked(), made);

        let (mut moved, mut fresh) = (tensors(&graph, 2, false), tensors(&graph, 2, false));
        let (kernel, inlined) = kept.again(&unit, &mut moved).expect("it was kept");
        let (want, of_want) = build(&graph, &unit, &mut fresh).unwrap();
        assert_eq!((kernel.to_string(), inlined), (want.to_string(), of_want));
        assert_eq!(moved.list.len(), fresh.list.len());

        let mut held = tensors(&graph, 0, true);
        assert!(kept.again(&unit, &mut held).is_none(), "what was inlined is in memory now");
        assert_eq!(held.list.len(), 3, "no constant is added for a kernel that is built anew");
    }
}
