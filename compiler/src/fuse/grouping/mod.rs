//! Which values get memory of their own, and which kernel computes each.
//!
//! A *unit* becomes one kernel. It has an anchor — a reduction, a product, or simply an elementwise
//! root — and members absorbed behind the anchor as its epilogue. Everything else is *inlined*: computed
//! where it is read. The graph of units stays acyclic at every step.

mod absorb;

use crate::fuse::key_parts;
use crate::fuse::loops::lanes::Loops;
use crate::fuse::points::{ProductDomain, is_thin};
use crate::fuse::pulling::splat;
use crate::fuse::unit::{Bans, Grouping, KeyParts, Split, Unit, UnitId, is_anchor, is_linear, is_pointwise};
use crate::kernel::length::short_division;
use crate::options::{Fusion, Options, Precision, Technique};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use wgfc_ir::{BinaryOp, Graph, NodeId, Op, Reg, ScalarNode, UnaryOp, Value};

/// How often a reader evaluates each element it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Read {
    Once,
    /// A few passes over the same row.
    Passes,
    /// Again and again: tiles of a product, overlapping windows.
    Often,
}

/// How a unit reads a value that it may compute in place.
#[derive(Clone, Copy, Debug)]
struct Reader {
    how: Read,
    /// How often the value's text is emitted: once for all readers at the same position, and once for each reader at another position.
    same: usize,
    moved: usize,
    /// How many inlined values lie between this one and the unit's anchor.
    depth: u32,
    /// The anchor's operand that the value is part of, and how often each element of that operand is evaluated.
    operand: u32,
    evaluations: i64,
}

impl Reader {
    fn new(how: Read, operand: u32, evaluations: i64) -> Reader {
        Reader { how, same: 1, moved: 0, depth: 0, operand, evaluations }
    }

    fn copies(&self) -> usize {
        self.same.saturating_add(self.moved)
    }

    fn join(&mut self, o: Reader) {
        self.how = self.how.max(o.how);
        self.same = self.same.max(o.same);
        self.moved = self.moved.saturating_add(o.moved);
        self.depth = self.depth.max(o.depth);
        self.operand = self.operand.min(o.operand);
        self.evaluations = self.evaluations.max(o.evaluations);
    }

    /// The reader for an operand of the value, read at the same position or another one.
    fn inside(self, how: Read, same: bool) -> Reader {
        let (same, moved) = if same { (self.copies(), 0) } else { (0, self.copies()) };
        Reader { how, same, moved, depth: self.depth.saturating_add(1), ..self }
    }
}

/// The most scalar operations of a unit, each counted as often as its text is emitted: a bound on the text of a kernel. None of 102
/// models (the fixtures, and those of the zoo of at most 25 MB) has other dispatches with a limit of 400. A cubic Resize in two
/// dimensions with symbolic sizes is one dispatch with 4,000 and six with 1,000; a chain of Concats of a value with itself, which doubles
/// it each time (`fixtures/repro/concat-relu-fixed.onnx`), is estimated at an eighth of the time with 400, in a fifth of the text.
const MAX_OPERATIONS: usize = 4000;
/// The operation count of an operator that is a loop or takes hundreds of instructions.
const LONG_OPERATIONS: usize = MAX_OPERATIONS / 16;
/// An element with more scalar operations than this is not recomputed by [`MANY`] readers.
const HEAVY: usize = 128;
const MANY: i64 = 16;
/// How many copies of a Gather are allowed before they count as depth: enough for the taps of a cubic resampling in two dimensions.
const MAX_COPIES: usize = 64;
/// The most values inlined one inside another: fewer than [`Puller`](crate::fuse::pulling::Puller) allows.
const MAX_DEPTH: u32 = 64;
/// The columns (rows) of a product for which a tile of the other operand is evaluated once: the tile size of products on every device.
pub const TILE: i64 = 64;

fn takes_epilogue(op: &Op) -> bool {
    !matches!(op, Op::TopK { .. } | Op::Scatter { .. } | Op::Place { .. })
}

/// Groups the nodes of a graph into units. `order` is the graph's topological order.
pub fn group(graph: &Graph, order: &[NodeId], loops: &Loops, options: &Options, bans: &Bans) -> Grouping {
    let mut places = vec![usize::MAX; order.iter().map(|n| n.index() + 1).max().unwrap_or(0)];
    order.iter().enumerate().for_each(|(i, n)| places[n.index()] = i);
    let mut g = Grouper {
        graph,
        loops,
        options,
        fusion: options.fusion,
        bans,
        unit_of: FxHashMap::default(),
        units: vec![],
        readers: FxHashMap::default(),
        sizes: FxHashMap::default(),
        prologues: FxHashMap::default(),
        places,
        reaches: (0..order.len()).collect(),
        deferred: FxHashSet::default(),
    };
    if options.fuses(Technique::WaitingScales) {
        for n in order {
            if let Some(path) = g.scale_can_wait(*n) {
                g.deferred.extend(path);
            }
        }
    }
    // A node that only updates a state may be absorbed by the unit that computes the update, and a Place by the unit that computes its
    // indices.
    let (updates, anchors): (Vec<NodeId>, Vec<NodeId>) =
        order.iter().filter(|n| is_anchor(graph, **n) && !g.deferred.contains(n)).partition(|n| {
            graph.written_in_place(**n).is_some() || matches!(graph.node(**n).op, Op::Place { .. })
        });
    for n in anchors {
        g.new_unit(n);
    }
    if options.fusion == Fusion::Full {
        for u in 0..g.units.len() {
            if options.fuses(Technique::KeyParts) {
                let banned = |v: Value| g.bans.materialise.contains(&v);
                g.units[u].parts = key_parts::of(graph, g.units[u].anchor, options, &banned);
            }
            let whole = g.loops.get(&g.units[u].anchor).is_none_or(|l| l.part.is_none());
            let epilogue = options.fuses(Technique::Epilogues) && g.units[u].parts.most == 1 && whole;
            if epilogue && takes_epilogue(&graph.node(g.units[u].anchor).op) {
                g.absorb(u);
            }
        }
    }
    for n in updates {
        if !g.unit_of.contains_key(&n) {
            g.new_unit(n);
        }
    }
    for u in 0..g.units.len() {
        g.register_reads(u);
    }
    for n in order.iter().rev() {
        g.decide(*n);
    }
    g.finish(order)
}

struct Grouper<'a> {
    graph: &'a Graph,
    loops: &'a Loops,
    options: &'a Options,
    fusion: Fusion,
    bans: &'a Bans,
    unit_of: FxHashMap<NodeId, UnitId>,
    units: Vec<Unit>,
    /// The units that read a value, directly or through inlined values.
    readers: FxHashMap<Value, BTreeMap<UnitId, Reader>>,
    /// Scalar operations inlined into each unit so far.
    sizes: FxHashMap<UnitId, usize>,
    /// The operations inlined into the prologue of an operand that is read often.
    prologues: FxHashMap<(UnitId, u32), usize>,
    /// The position of each node in the graph's order.
    places: Vec<usize>,
    /// For each position, the last position of any unit that has a node up to there.
    reaches: Vec<usize>,
    /// Norms whose readers are all products, which multiply their results by the row's scale, and the nodes in between.
    deferred: FxHashSet<NodeId>,
}

impl Grouper<'_> {
    fn new_unit(&mut self, anchor: NodeId) -> UnitId {
        let id = self.units.len();
        self.units.push(Unit {
            anchor,
            split: Split::NONE,
            parts: KeyParts::NONE,
            members: vec![],
            outputs: vec![],
        });
        self.unit_of.insert(anchor, id);
        id
    }

    fn add_reader(&mut self, v: Value, u: UnitId, r: Reader) {
        self.readers.entry(v).or_default().entry(u).and_modify(|e| e.join(r)).or_insert(r);
    }

    /// How often operand `i` of an anchor is evaluated in total.
    fn evaluations(&self, anchor: NodeId, i: usize) -> i64 {
        let Some(p) = ProductDomain::of(self.graph, anchor, Split::NONE) else { return i64::MAX };
        let [batch, m, n, k] =
            [0, 1, 2, 3].map(|d| p.domain.get(d).map_or(1, |d| self.options.expect.estimate(d)));
        let (own, others) = if i == 0 { (m, n) } else { (n, m) };
        let tiles = others.saturating_add(TILE - 1) / TILE;
        batch.saturating_mul(own).saturating_mul(k).saturating_mul(tiles)
    }

    fn register_reads(&mut self, u: UnitId) {
        let unit = self.units[u].clone();
        let node = self.graph.node(unit.anchor);
        let in_place =
            self.graph.written_in_place(unit.anchor).is_some() || is_linear(self.graph, unit.anchor);
        for (i, v) in node.inputs.iter().enumerate() {
            let how = match &node.op {
                Op::Scatter { .. } if in_place => Read::Once,
                Op::Scan { carried, .. } if i >= *carried => Read::Often,
                Op::Contract(_) | Op::Scatter { .. } | Op::TopK { .. } => Read::Often,
                // Merging sorted runs searches them.
                Op::Sort { sorted, .. } if *sorted > 1 => Read::Often,
                Op::Attention { .. } if i > 0 => Read::Often,
                Op::Attention { .. } | Op::Softmax { .. } | Op::Norm { .. } => Read::Passes,
                _ => Read::Once,
            };
            let evaluations = if how == Read::Often { self.evaluations(unit.anchor, i) } else { 0 };
            self.add_reader(*v, u, Reader::new(how, i as u32, evaluations));
        }
        for m in &unit.members {
            for v in self.graph.node(*m).inputs.clone() {
                if self.unit_of.get(&v.node) != Some(&u) {
                    self.add_reader(v, u, Reader::new(Read::Once, u32::MAX, 0));
                }
            }
        }
    }

    /// Decides whether a node outside all units is inlined or becomes a root. Its readers must be decided already.
    fn decide(&mut self, n: NodeId) {
        if self.unit_of.contains_key(&n) {
            return;
        }
        let node = self.graph.node(n);
        let v = Value::from(n);
        let pointwise = is_pointwise(self.graph, n);
        let view = matches!(node.op, Op::View { .. });
        if self.deferred.contains(&n) {
            let inputs = node.inputs.clone();
            for (u, r) in self.readers.get(&v).cloned().unwrap_or_default() {
                inputs.iter().for_each(|x| self.add_reader(*x, u, r.inside(r.how, true)));
            }
            return;
        }
        if !pointwise && !view {
            return;
        }
        let wanted = self.graph.is_output(v) || self.bans.materialise.contains(&v);
        let readers = self.readers.get(&v).cloned().unwrap_or_default();
        if readers.is_empty() && !wanted {
            return;
        }
        let deep = readers.values().any(|r| r.depth > MAX_DEPTH);
        let inlined = if view { self.inline_view(n) } else { self.inline_pointwise(n, &readers) };
        // A Map reads its operands at its own position; reads at other positions are separate copies of the text.
        let same = matches!(node.op, Op::Map { .. });
        if wanted || deep || !inlined {
            let u = self.new_unit(n);
            for (i, x) in node.inputs.clone().into_iter().enumerate() {
                let r = Reader::new(Read::Once, i as u32, 0);
                self.add_reader(x, u, if same { r } else { Reader { same: 0, moved: 1, ..r } });
            }
            return;
        }
        let weight = self.weight(n);
        for (u, r) in &readers {
            // A Gather's indices are computed before the position, and the position before the element: this counts as further depth.
            let further = match node.op {
                Op::Gather { .. } if r.copies() > MAX_COPIES => r.copies(),
                Op::Gather { .. } => 4,
                _ => 0,
            };
            let r = &Reader {
                depth: r.depth.saturating_add(u32::try_from(further).unwrap_or(u32::MAX / 2)),
                ..*r
            };
            let size = self.sizes.entry(*u).or_insert(0);
            *size = size.saturating_add(weight.saturating_mul(r.copies()));
            if r.how == Read::Often {
                let own = self.prologues.entry((*u, r.operand)).or_insert(0);
                *own = own.saturating_add(weight.saturating_mul(r.copies()));
            }
            for x in node.inputs.clone() {
                let repeats = view && self.estimate(v) > self.estimate(x);
                let how = if repeats { Read::Often } else { r.how };
                // How often a window meets an element is known of products only.
                let evaluations = if repeats && r.how != Read::Often { i64::MAX } else { r.evaluations };
                self.add_reader(x, *u, Reader { evaluations, ..r.inside(how, same) });
            }
        }
    }

    /// Scalar operations for each element: of a join, those of choosing among its operands.
    fn weight(&self, n: NodeId) -> usize {
        let node = self.graph.node(n);
        match node.op {
            Op::Concat { .. } => 2 * node.inputs.len().max(2),
            _ => cost(&node.op).0 + LONG_OPERATIONS * long_operators(self.graph, n),
        }
    }

    /// Whether unit `u` emits the operators of `n` once for each of many results of an invocation and some of them are long: drivers
    /// inline them, and take seconds to minutes to compile such kernels.
    pub(super) fn too_long_for(&self, n: NodeId, u: UnitId) -> bool {
        let product = matches!(self.graph.node(self.units[u].anchor).op, Op::Contract(_));
        product && long_operators(self.graph, n) > 0
    }

    /// Whether inlining `n` into operands that are read often takes longer than a pass over memory, together with all that is inlined
    /// there already.
    fn is_heaped(&self, n: NodeId, readers: &BTreeMap<UnitId, Reader>) -> bool {
        /// The work per evaluation that is always acceptable, and the work that never is.
        const LITTLE: i64 = 4;
        const MUCH: i64 = 32;
        let elements = self.estimate(n.into()).max(1);
        let pass = self.options.profile.speeds.pass_operations();
        readers.iter().filter(|(_, r)| r.how == Read::Often).any(|(u, r)| {
            let own = self.prologues.get(&(*u, r.operand)).copied().unwrap_or(0);
            let all = own.saturating_add(self.weight(n).saturating_mul(r.copies()));
            let again = r.evaluations.saturating_sub(elements).max(1);
            let most = pass.saturating_mul(elements) / again;
            all as i64 > most.clamp(LITTLE, MUCH)
        })
    }

    /// A view is folded into the loads that read it. Without fusion, only if it moves no element or is part of an operator.
    fn inline_view(&self, n: NodeId) -> bool {
        if self.fusion != Fusion::None {
            return true;
        }
        let node = self.graph.node(n);
        let x = node.inputs[0];
        crate::fuse::is_reshape(self.graph, n)
            || matches!(self.graph.node(x.node).op, Op::Const(_))
            || self.estimate(Value::from(n)) > self.estimate(x)
    }

    fn inline_pointwise(&self, n: NodeId, readers: &BTreeMap<UnitId, Reader>) -> bool {
        let node = self.graph.node(n);
        if self.fusion == Fusion::None {
            // Step numbers are only counters of a loop.
            let counted = |(c, _): &(NodeId, _)| matches!(self.graph.node(*c).op, Op::Scan { .. });
            return node.inputs.is_empty() && self.graph.uses(n.into()).iter().all(counted);
        }
        let (weight, heavy) = cost(&node.op);
        let speeds = &self.options.profile.speeds;
        let result = self.bytes(n.into(), self.estimate(n.into()));
        let loaded: i64 =
            node.inputs.iter().filter(|x| splat(self.graph, **x).is_none()).map(|x| self.loaded(n, *x)).sum();
        if loaded == 0 && !heavy {
            return readers.iter().all(|(u, r)| self.grows(*u, r, n) <= 4 * MAX_OPERATIONS);
        }
        if self.fusion == Fusion::Elementwise
            && readers.keys().any(|u| is_anchor(self.graph, self.units[*u].anchor))
        {
            return false;
        }
        if readers.iter().any(|(u, r)| self.grows(*u, r, n) > MAX_OPERATIONS || self.too_long_for(n, *u)) {
            return false;
        }
        if readers.iter().any(|(u, r)| self.is_for_matrix_units(*u, r, weight)) {
            return false;
        }
        // Expensive values that many elements share, such as the keys of random numbers, are computed once.
        let elements = self.estimate(n.into()).max(1);
        let repeated = |u: &UnitId| self.estimate(self.units[*u].anchor.into()) / elements >= MANY;
        if weight > HEAVY && readers.keys().any(repeated) {
            return false;
        }
        let often = readers.values().any(|r| r.how == Read::Often);
        // Reading the operands costs no more than reading the result would, or far less, as for weights that are dequantised where they
        // are read.
        let (pass, little) = (speeds.pass_operations() as usize, speeds.little_bytes());
        let expanding = !heavy && weight <= pass && loaded <= result;
        if expanding && loaded <= result / 2 {
            return true;
        }
        // Memory for a value that is larger than its operands, and of which every element is evaluated about once, costs a pass and
        // saves nothing.
        if !heavy && loaded <= result && self.evaluated(readers) <= elements.saturating_add(elements / 8) {
            return true;
        }
        if self.is_heaped(n, readers) {
            return false;
        }
        // Behind a product with few rows there is little to compute, and the product waits for memory anyway.
        let thin = readers.keys().all(|u| is_thin(self.graph, self.units[*u].anchor, &self.options.profile));
        if !often && thin && weight <= pass && loaded <= little {
            return true;
        }
        // A dispatch takes longer than recomputing so little in a few readers.
        if !often && !heavy && weight <= pass && loaded.saturating_mul(readers.len() as i64) <= little {
            return true;
        }
        // The limits on recomputation, as shares of the cost of a pass: three eighths with two or three readers, three quarters with
        // more, a quarter if tiles repeat it.
        match (often, readers.len()) {
            (false, 1) => true,
            (false, 2..=3) => !heavy && weight <= pass * 3 / 8 && loaded <= result + result / 4,
            (false, _) => expanding && weight <= pass * 3 / 4,
            (true, 1..=3) => !heavy && weight <= pass / 4 && loaded <= result + result / 4,
            (true, _) => expanding && loaded < result,
        }
    }

    /// Whether unit `u` is an attention of many queries that matrix units may compute once its operands are f16 in memory, and reads a value
    /// that is computed, such as queries that a rotary embedding has turned.
    fn is_for_matrix_units(&self, u: UnitId, r: &Reader, weight: usize) -> bool {
        /// The number of queries from which matrix units are worth a pass over the operand.
        const QUERIES: i64 = 32;
        let anchor = self.units[u].anchor;
        let device = &self.options.profile;
        let half = self.options.precision == Precision::F16 && device.has_matrix_units();
        let attention = matches!(self.graph.node(anchor).op, Op::Attention { .. }) && r.operand < 3;
        let queries =
            || self.graph.ty(anchor.into()).shape.get(2).map_or(0, |s| self.options.expect.estimate(s));
        half && attention && weight > 1 && queries() >= QUERIES
    }

    /// How many elements of a value its readers evaluate in total.
    fn evaluated(&self, readers: &BTreeMap<UnitId, Reader>) -> i64 {
        let of = |(u, r): (&UnitId, &Reader)| match r.how {
            Read::Often => r.evaluations,
            Read::Passes | Read::Once => self.estimate(self.units[*u].anchor.into()),
        };
        readers.iter().map(of).fold(0, i64::saturating_add)
    }

    /// Scalar operations of unit `u` after inlining `n`.
    fn grows(&self, u: UnitId, r: &Reader, n: NodeId) -> usize {
        let so_far = self.sizes.get(&u).copied().unwrap_or(0);
        so_far.saturating_add(self.weight(n).saturating_mul(r.copies()))
    }

    /// Bytes of operand `x` that evaluating all of `n` reads; elements that a view repeats count once.
    fn loaded(&self, n: NodeId, x: Value) -> i64 {
        if self.is_index(x, 8) {
            return 0;
        }
        let mut e = self.estimate(x);
        if let Op::Gather { .. } = self.graph.node(n).op {
            e = e.min(self.estimate(n.into()));
        }
        let mut source = x.node;
        while let (Op::View { .. }, Some(from)) =
            (&self.graph.node(source).op, self.graph.node(source).inputs.first())
        {
            e = e.min(self.estimate(*from));
            source = from.node;
        }
        self.bytes(x, e)
    }

    /// Whether a value is computed from positions and constants only, by at most `depth` operators.
    fn is_index(&self, v: Value, depth: u32) -> bool {
        let node = self.graph.node(v.node);
        match &node.op {
            Op::Map { .. } | Op::View { .. } if depth > 0 => {
                !cost(&node.op).1
                    && !self.bans.materialise.contains(&v)
                    && node.inputs.iter().all(|x| self.is_index(*x, depth - 1))
            }
            _ => splat(self.graph, v).is_some(),
        }
    }

    /// Bytes of `n` elements of the type of `v`.
    fn bytes(&self, v: Value, n: i64) -> i64 {
        n.saturating_mul(self.graph.ty(v).dtype.bits() as i64) / 8
    }

    fn estimate(&self, v: Value) -> i64 {
        self.options.expect.estimate(&self.graph.ty(v).numel())
    }

    fn finish(mut self, order: &[NodeId]) -> Grouping {
        let position: FxHashMap<NodeId, usize> = order.iter().enumerate().map(|(i, n)| (*n, i)).collect();
        for u in 0..self.units.len() {
            let unit = &mut self.units[u];
            unit.members.sort_by_key(|m| position.get(m).copied());
            let mut outputs = vec![];
            for n in std::iter::once(unit.anchor).chain(unit.members.iter().copied()) {
                for port in 0..self.graph.node(n).outputs.len() as u32 {
                    let v = Value { node: n, port };
                    let outside = self.graph.uses(v).iter().any(|(c, _)| self.unit_of.get(c) != Some(&u));
                    if outside || self.graph.is_output(v) {
                        outputs.push(v);
                    }
                }
            }
            unit.outputs = outputs;
        }
        self.units.retain(|u| !u.outputs.is_empty());
        self.units.sort_by_key(|u| position.get(&u.anchor).copied());
        Grouping { units: self.units }
    }
}

/// Scalar operations per element, and whether some are expensive.
fn cost(op: &Op) -> (usize, bool) {
    match op {
        Op::Map { body, .. } => {
            let mut weight = 0;
            let mut heavy = false;
            for n in &body.nodes {
                match n {
                    ScalarNode::Arg(_) | ScalarNode::Const(_) => {}
                    ScalarNode::Unary(u, _) => {
                        use UnaryOp::*;
                        let slow = !matches!(
                            u,
                            Neg | Abs
                                | Sign
                                | Floor
                                | Ceil
                                | Round
                                | Trunc
                                | Not
                                | IsNan
                                | IsInf
                                | Sqrt
                                | Rsqrt
                                | Recip
                        );
                        heavy |= slow;
                        weight += if slow { 8 } else { 1 };
                    }
                    ScalarNode::Binary(b, ..) => {
                        let special = matches!(b, BinaryOp::Pow | BinaryOp::Gcd | BinaryOp::Special(_));
                        let slow = special || *b == BinaryOp::Quot;
                        heavy |= special;
                        weight += if slow { 8 } else { 1 };
                    }
                    _ => weight += 1,
                }
            }
            (weight, heavy)
        }
        Op::Gather { .. } => (3, false),
        Op::Concat { .. } | Op::Reduce { .. } | Op::ArgReduce { .. } => (4, false),
        // A row of eight elements takes eight exponentials, each of about eight operations, and their sum and maximum.
        Op::Softmax { .. } => (96, true),
        _ => (0, false),
    }
}

/// The number of operators of a node that are a loop or hundreds of instructions at each call, as drivers inline functions: 64-bit
/// integer divisions, powers and greatest common divisors, and remainders of floats.
fn long_operators(graph: &Graph, n: NodeId) -> usize {
    let node = graph.node(n);
    let Op::Map { body, .. } = &node.op else { return 0 };
    let operands: Vec<_> = node.inputs.iter().map(|x| graph.ty(*x).dtype).collect();
    let Ok(types) = body.types(&operands) else { return 0 };
    let short = |op: BinaryOp, reg: Reg, by: u32| match body.nodes.get(by as usize) {
        Some(ScalarNode::Const(c)) => short_division(op, reg, c.bits).is_some(),
        _ => false,
    };
    let long = |n: &&ScalarNode| {
        use BinaryOp::{Div, Gcd, Mod, Pow, Quot, Rem};
        let ScalarNode::Binary(op, a, b) = n else { return false };
        match types.get(*a as usize).map(|t| t.reg()) {
            Some(reg @ (Reg::I64 | Reg::U64)) if short(*op, reg, *b) => false,
            Some(Reg::I64 | Reg::U64) => matches!(op, Div | Quot | Rem | Mod | Gcd | Pow),
            Some(Reg::F32) => matches!(op, Rem | Mod),
            _ => false,
        }
    };
    body.nodes.iter().filter(long).count()
}
