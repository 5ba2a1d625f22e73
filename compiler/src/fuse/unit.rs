//! Units: the nodes that one kernel computes, and the kernel family that a node requires.

use crate::kernel::combines;
use rustc_hash::FxHashSet;
use wgfc_ir::{Dim, GatherAxis, Graph, NodeId, Op, Value};

/// The split of columns over positions, of a product or of a row that is normalised: position `u` has the columns
/// `u / stride · (parts · stride) + i · stride + u % stride` for `i` in `0..parts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Columns of a position.
    pub parts: i64,
    /// The distance between them.
    pub stride: i64,
}

impl Split {
    /// One column at each position.
    pub const NONE: Split = Split { parts: 1, stride: 1 };
}

/// The minimum number of keys of a part that a separate kernel combines: those of a step of a workgroup.
pub const LEAST_KEYS: i64 = 64;

/// Into how many parts keys are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyParts {
    /// The maximum number of parts.
    pub most: u32,
    /// Whether few keys are split into fewer parts, each of at least [`LEAST_KEYS`].
    pub by_keys: bool,
}

impl KeyParts {
    /// Keys that are not split.
    pub const NONE: KeyParts = KeyParts { most: 1, by_keys: false };

    /// The number of parts of so many keys.
    pub fn count(self, keys: &Dim) -> Dim {
        let most = Dim::from(i64::from(self.most));
        if !self.by_keys {
            return most;
        }
        keys.ceil_div(LEAST_KEYS).max_of(&Dim::ONE, &[]).min_of(&most, &[])
    }
}

/// Index of a [`Unit`].
pub type UnitId = usize;

/// The nodes of one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The node that determines the kernel's family and domain.
    pub anchor: NodeId,
    /// The split of columns over positions.
    pub split: Split,
    /// The parts of attention's keys, which readers combine.
    pub parts: KeyParts,
    /// Nodes absorbed into the epilogue, producers first.
    pub members: Vec<NodeId>,
    /// The values it writes.
    pub outputs: Vec<Value>,
}

/// The result of grouping.
#[derive(Clone, Debug, Default)]
pub struct Grouping {
    /// The units, in topological order of their anchors.
    pub units: Vec<Unit>,
}

/// The decisions that an earlier attempt found impossible.
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
    /// The number of bans.
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

/// The most elements that are combined by the reader itself: as many as a vector holds.
const FEW: i64 = 4;
/// The most elements of a row of a softmax that its reader computes, as of the experts of a token, and the most elements of all rows: each
/// element evaluates its whole row.
const FEW_SHARES: [i64; 2] = [8, 4096];

/// Whether the node combines only a few elements, which needs no kernel of its own family.
pub fn is_small(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    let (axes, most) = match &node.op {
        Op::Reduce { axes, .. } => (&axes[..], FEW),
        Op::ArgReduce { axis, .. } => (std::slice::from_ref(axis), FEW),
        Op::Softmax { axis, .. } => {
            let [row, all] = FEW_SHARES;
            if node.outputs[0].numel().as_const().is_none_or(|n| n > all) {
                return false;
            }
            (std::slice::from_ref(axis), row)
        }
        _ => return false,
    };
    let shape = &graph.ty(node.inputs[0]).shape;
    let count: Dim = axes.iter().map(|a| shape[*a].clone()).product();
    count.as_const().is_some_and(|n| (1..=most).contains(&n))
}

/// Whether the node can be computed where it is read.
pub fn is_pointwise(graph: &Graph, n: NodeId) -> bool {
    matches!(graph.node(n).op, Op::Map { .. } | Op::Gather { .. } | Op::Concat { .. }) || is_small(graph, n)
}

/// The most updates that the elements look at in total, where each element looks for its own: about one for each invocation resident
/// on a large GPU. It is a constant, since it is needed where no device is known; the other form is correct for all sizes.
const FEW_LOOKS: i64 = 1 << 18;

/// For each axis of the updates, the axis of the data whose position it shares; `None` for axes along which an element must look at all
/// updates.
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

/// The number of updates that can go to one element.
pub fn searched(graph: &Graph, n: NodeId, index: &[GatherAxis]) -> Dim {
    let shape = &graph.ty(graph.node(n).inputs[1]).shape;
    let fixed = fixed(index, shape.len());
    shape.iter().zip(fixed).filter(|(_, f)| f.is_none()).map(|(d, _)| d.clone()).product()
}

/// Whether there are more updates than each element should look at.
pub fn is_large(graph: &Graph, n: NodeId, index: &[GatherAxis]) -> bool {
    let looks = &graph.ty(graph.node(n).inputs[0]).numel() * &searched(graph, n, index);
    looks.as_const().is_none_or(|p| p > FEW_LOOKS)
}

/// Whether a scatter copies its data and then writes or combines each update in place.
pub fn is_linear(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    let Op::Scatter { reduce, index } = &node.op else { return false };
    let can = reduce.is_none_or(|op| combines(op, node.outputs[0].dtype));
    can && graph.written_in_place(n).is_none() && is_large(graph, n, index)
}
