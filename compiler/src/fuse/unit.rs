//! Units: the nodes that one kernel computes, and what kind of kernel a node asks for.

use crate::kernel::combines;
use rustc_hash::FxHashSet;
use wgfc_ir::{Dim, GatherAxis, Graph, NodeId, Op, Value};

/// How a product's columns are shared out: position `u` has columns
/// `u / stride · (parts · stride) + i · stride + u % stride` for `i` in `0..parts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Columns of a position.
    pub parts: i64,
    /// How far apart they are.
    pub stride: i64,
}

impl Split {
    /// One column at each position.
    pub const NONE: Split = Split { parts: 1, stride: 1 };
}

/// Index of a [`Unit`].
pub type UnitId = usize;

/// The nodes of one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The node that the kernel iterates for.
    pub anchor: NodeId,
    /// How a product's columns are shared out.
    pub split: Split,
    /// Parts that attention's keys are cut into, for the readers to put together.
    pub parts: u32,
    /// Nodes absorbed behind it, producers first.
    pub members: Vec<NodeId>,
    /// The values it writes.
    pub outputs: Vec<Value>,
}

/// The decisions.
#[derive(Clone, Debug, Default)]
pub struct Grouping {
    /// The kernels to be, anchors in topological order.
    pub units: Vec<Unit>,
}

/// The groupings that an earlier attempt found impossible.
#[derive(Clone, Debug, Default)]
pub struct Bans {
    /// Values that must be in memory.
    pub materialise: FxHashSet<Value>,
    /// Nodes that must not be absorbed.
    pub absorb: FxHashSet<NodeId>,
    /// Loops that must not be one kernel.
    pub one_kernel: FxHashSet<NodeId>,
}

impl Bans {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.materialise.len() + self.absorb.len() + self.one_kernel.len()
    }
}

/// Whether the node needs a kernel family of its own.
pub fn is_anchor(graph: &Graph, n: NodeId) -> bool {
    let anchor = matches!(
        graph.node(n).op,
        Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::PrefixScan { .. }
            | Op::Contract(_)
            | Op::Scatter { .. }
            | Op::Place { .. }
            | Op::TopK { .. }
            | Op::Sort { .. }
            | Op::Softmax { .. }
            | Op::Norm { .. }
            | Op::Attention { .. }
            | Op::Scan { .. }
    );
    anchor && !is_small(graph, n)
}

/// Elements that are combined where the result is read: as many as a vector holds.
const FEW: i64 = 4;

/// Whether the node combines a few elements only, which needs no kernel of its own kind.
pub fn is_small(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    let axes = match &node.op {
        Op::Reduce { axes, .. } => &axes[..],
        Op::ArgReduce { axis, .. } => std::slice::from_ref(axis),
        _ => return false,
    };
    let shape = &graph.ty(node.inputs[0]).shape;
    let count: Dim = axes.iter().map(|a| shape[*a].clone()).product();
    count.as_const().is_some_and(|n| (1..=FEW).contains(&n))
}

/// Whether the node can be computed where it is read.
pub fn is_pointwise(graph: &Graph, n: NodeId) -> bool {
    matches!(graph.node(n).op, Op::Map { .. } | Op::Gather { .. } | Op::Concat { .. }) || is_small(graph, n)
}

/// So many times may elements look at updates, all together: about once for each invocation that a large GPU has under
/// way. It does not follow from the device, as it is asked where none is known; the other form is right for all sizes.
const FEW_LOOKS: i64 = 1 << 18;

/// Where the updates of an element can be: for each axis of the updates the axis of the data whose position it has, of
/// those that look through all the others none.
pub fn fixed(index: &[GatherAxis], rank: usize) -> Vec<Option<usize>> {
    let mut out = vec![None; rank];
    for (axis, ax) in index.iter().enumerate() {
        if let GatherAxis::Affine(p) = ax
            && let Some(i) = p.as_var()
            && out.get(i) == Some(&None)
        {
            out[i] = Some(axis);
        }
    }
    out
}

/// How many updates can go to one element.
pub fn searched(graph: &Graph, n: NodeId, index: &[GatherAxis]) -> Dim {
    let shape = &graph.ty(graph.node(n).inputs[1]).shape;
    let fixed = fixed(index, shape.len());
    shape.iter().zip(fixed).filter(|(_, f)| f.is_none()).map(|(d, _)| d.clone()).product()
}

/// Whether there are more updates than elements should look at.
pub fn is_large(graph: &Graph, n: NodeId, index: &[GatherAxis]) -> bool {
    let looks = &graph.ty(graph.node(n).inputs[0]).numel() * &searched(graph, n, index);
    looks.as_const().is_none_or(|p| p > FEW_LOOKS)
}

/// Whether a scatter is a copy of its data, over which every update then writes its place or combines with it.
pub fn is_linear(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    let Op::Scatter { reduce, index } = &node.op else { return false };
    let can = reduce.is_none_or(|op| combines(op, node.outputs[0].dtype));
    can && graph.written_in_place(n).is_none() && is_large(graph, n, index)
}
