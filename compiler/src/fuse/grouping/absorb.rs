//! The nodes that join a unit's epilogue, and norms whose scale is applied in the epilogues of products.

use super::Grouper;
use crate::fuse::points::{self, Point, is_thin};
use crate::fuse::unit::{Split, UnitId};
use petgraph::visit::{Dfs, GraphBase, GraphRef, IntoNeighbors};
use rustc_hash::{FxHashMap, FxHashSet};
use wgfc_ir::{BinaryOp, Dim, NodeId, NormKind, Op, ScalarNode, Value};

/// A value and its points.
type Followed = (Value, Vec<Point>);

impl Grouper<'_> {
    /// Grows a unit forward over the nodes through which its [points](points) can be followed. Among the possible splits, the one that
    /// stores the fewest elements is taken, then the one that absorbs the most nodes.
    pub(super) fn absorb(&mut self, u: UnitId) {
        let anchor = self.units[u].anchor;
        let mut ways = vec![(Split::NONE, false)];
        if matches!(self.graph.node(anchor).op, Op::Contract(_) | Op::Scan { .. }) {
            ways.push((Split::NONE, true));
        }
        let norm = matches!(self.graph.node(anchor).op, Op::Norm { .. });
        if norm || is_thin(self.graph, anchor, &self.options.profile) {
            let strides = points::strides(self.graph, anchor).into_iter();
            ways.extend(strides.map(|stride| (Split { parts: 2, stride }, true)));
        }
        let mut best: Option<(i64, Split, Vec<NodeId>)> = None;
        for (split, partial) in ways {
            // A split that does not divide the columns evenly is impossible.
            let Some(members) = self.grow(u, split, partial) else { continue };
            let stored = self.stored(anchor, &members);
            for m in &members {
                self.unit_of.remove(m);
            }
            let better = |(least, _, most): &(i64, Split, Vec<NodeId>)| {
                stored < *least || stored == *least && members.len() > most.len()
            };
            if best.as_ref().is_none_or(better) {
                best = Some((stored, split, members));
            }
        }
        if let Some((_, split, members)) = best {
            self.unit_of.extend(members.iter().map(|m| (*m, u)));
            self.units[u].split = split;
            self.units[u].members = members;
            self.extend_reach(u);
        }
    }

    /// Elements that a unit of these nodes writes.
    fn stored(&self, anchor: NodeId, members: &[NodeId]) -> i64 {
        let all: FxHashSet<NodeId> = members.iter().copied().chain([anchor]).collect();
        let own = |n: &NodeId| all.contains(n);
        // Values that another unit or the caller reads.
        let escapes =
            |v: &Value| self.graph.is_output(*v) || self.graph.uses(*v).iter().any(|(c, _)| !own(c));
        let mut sum = 0i64;
        for n in std::iter::once(anchor).chain(members.iter().copied()) {
            for v in self.results(n).filter(escapes) {
                let written = match self.graph.written_in_place(n) {
                    Some(_) => self.graph.node(n).inputs[1],
                    None => v,
                };
                sum = sum.saturating_add(self.estimate(written));
            }
        }
        sum
    }

    /// The members that unit `u` absorbs with its columns split by `split`; `None` if that split is impossible. The members are marked as
    /// part of `u`.
    fn grow(&mut self, u: UnitId, split: Split, partial: bool) -> Option<Vec<NodeId>> {
        self.units[u].members.clear();
        let anchor = self.units[u].anchor;
        let scans = matches!(self.graph.node(anchor).op, Op::PrefixScan { .. });
        let Some((domain, known)) = self.start(anchor, split) else {
            return (split == Split::NONE).then(Vec::new);
        };
        let mut known: FxHashMap<Value, Vec<Point>> = known.into_iter().collect();
        let mut frontier: Vec<Value> = self.results(anchor).filter(|v| known.contains_key(v)).collect();
        while let Some(v) = frontier.pop() {
            // A unit computes only some elements of a state that is written in place, and nothing can follow the others in it.
            let partly = self.graph.written_in_place(v.node).is_some();
            if partly || self.bans.materialise.contains(&v) {
                continue;
            }
            for (c, _) in self.graph.uses(v) {
                if self.unit_of.contains_key(&c) || self.bans.absorb.contains(&c) || self.too_long_for(c, u) {
                    continue;
                }
                let node = self.graph.node(c);
                let outside = |x: &Value| !known.contains_key(x);
                let operands = node.inputs.iter().copied().filter(outside);
                let symbols = self.graph.computed_in(c).into_iter().map(|c| c.value);
                if operands.chain(symbols).any(|x| self.depends_on(x, u)) {
                    continue;
                }
                let of = |x: Value| known.get(&x).map(Vec::as_slice);
                // The positions are known only at run time, so that nothing can follow this node.
                if scans && points::placed(self.graph, c, &of).is_some() {
                    self.unit_of.insert(c, u);
                    self.units[u].members.push(c);
                    continue;
                }
                if let Some(found) = points::follow(self.graph, c, &of, &domain, partial) {
                    known.insert(c.into(), found);
                    self.unit_of.insert(c, u);
                    self.units[u].members.push(c);
                    // Refused nodes may fit now if they read the new member.
                    frontier.extend([v, c.into()]);
                    break;
                }
            }
        }
        self.drop_trailing_views(u);
        Some(std::mem::take(&mut self.units[u].members))
    }

    /// The kernel's domain and the points of each of its anchor's results.
    fn start(&self, anchor: NodeId, split: Split) -> Option<(Vec<Dim>, Vec<Followed>)> {
        if let (Some(plan), Op::Scan { carried, .. }) = (self.loops.get(&anchor), &self.graph.node(anchor).op)
        {
            return Some((plan.domain(), plan.points(anchor, *carried)));
        }
        let (domain, first) = points::start(self.graph, anchor, split)?;
        Some((domain, vec![(anchor.into(), first)]))
    }

    fn results(&self, n: NodeId) -> impl Iterator<Item = Value> {
        (0..self.graph.node(n).outputs.len() as u32).map(move |port| Value { node: n, port })
    }

    /// Whether `n` normalises rows by their root mean square and is read, scaled by constants at most,
    /// as the first operand of products with few rows that sum over just those rows: `Σₖ xₖ·s·wₖ` is
    /// `s·Σₖ xₖ·wₖ`, and `s` needs only another sum over the same k. Returns what is computed in the
    /// products then: the norm and the scaling.
    pub(super) fn scale_can_wait(&self, n: NodeId) -> Option<Vec<NodeId>> {
        let Op::Norm { kind: NormKind::Rms, axes, .. } = &self.graph.node(n).op else { return None };
        let mut path = vec![n];
        let mut stack = vec![Value::from(n)];
        let mut products = 0;
        while let Some(v) = stack.pop() {
            if self.graph.is_output(v) || self.bans.materialise.contains(&v) {
                return None;
            }
            for (c, _) in self.graph.uses(v) {
                let node = self.graph.node(c);
                match &node.op {
                    Op::Map { body, shape } if *shape == self.graph.ty(v).shape => {
                        let rest_const = node
                            .inputs
                            .iter()
                            .all(|x| *x == v || matches!(self.graph.node(x.node).op, Op::Const(_)));
                        let scales = match &body.nodes[..] {
                            [ScalarNode::Arg(0), ScalarNode::Cast(t, 0)] => t.is_float(),
                            [
                                ScalarNode::Arg(_),
                                ScalarNode::Arg(_),
                                ScalarNode::Binary(BinaryOp::Mul, 0, 1),
                            ] => node.inputs.iter().filter(|x| **x == v).count() == 1,
                            _ => false,
                        };
                        if !rest_const || !scales {
                            return None;
                        }
                        path.push(c);
                        stack.push(c.into());
                    }
                    Op::Contract(contract) => {
                        let k: Vec<u8> = contract.k();
                        let at = contract.a.iter().enumerate().filter(|(_, l)| k.contains(l)).map(|(i, _)| i);
                        let own = node.inputs[0] == v && node.inputs[1] != v;
                        if !own
                            || !at.eq(axes.iter().copied())
                            || !is_thin(self.graph, c, &self.options.profile)
                        {
                            return None;
                        }
                        products += 1;
                    }
                    _ => return None,
                }
            }
        }
        (products > 0).then_some(path)
    }

    /// Removes views and joins at the end of the unit: it is cheaper for their readers to compute them.
    fn drop_trailing_views(&mut self, u: UnitId) {
        loop {
            let drop = self.units[u].members.iter().position(|m| {
                let v = Value::from(*m);
                matches!(self.graph.node(*m).op, Op::View { .. } | Op::Concat { .. })
                    && !self.graph.is_output(v)
                    && self.graph.uses(v).iter().all(|(c, _)| self.unit_of.get(c) != Some(&u))
            });
            let Some(i) = drop else { return };
            let m = self.units[u].members.remove(i);
            self.unit_of.remove(&m);
        }
    }

    /// Whether computing `v` requires that unit `u` has run.
    fn depends_on(&self, v: Value, u: UnitId) -> bool {
        let behind = Behind { units: self, first: self.place(self.units[u].anchor), end: u };
        let start = behind.entered(v.node).into_iter().collect();
        let mut search = Dfs::from_parts(start, FxHashSet::default());
        std::iter::from_fn(|| search.next(behind)).any(|n| self.unit_of.get(&n) == Some(&u))
    }

    fn place(&self, n: NodeId) -> usize {
        self.places.get(n.index()).copied().unwrap_or(usize::MAX)
    }

    /// The last position in the graph's order of any node needed to compute the nodes up to `place`, where units are computed as a whole.
    fn reach(&self, mut place: usize) -> usize {
        while let Some(next) = self.reaches.get(place).filter(|next| **next > place) {
            place = *next;
        }
        place
    }

    /// Updates the reaches for the unit's last member.
    fn extend_reach(&mut self, u: UnitId) {
        let first = self.place(self.units[u].anchor);
        let last = self.units[u].members.iter().map(|m| self.place(*m)).max().unwrap_or(first);
        for r in self.reaches.iter_mut().take(last).skip(first) {
            *r = (*r).max(last);
        }
    }
}

/// The operands of nodes, with each unit as one node, its anchor.
#[derive(Clone, Copy)]
struct Behind<'s, 'g> {
    units: &'s Grouper<'g>,
    /// Nodes whose reach ends before this position are left out.
    first: usize,
    /// The unit searched for; the search does not continue to its operands.
    end: UnitId,
}

impl Behind<'_, '_> {
    /// The node that stands for `n`: the anchor of its unit if it has one; `None` if its reach ends too early.
    fn entered(&self, n: NodeId) -> Option<NodeId> {
        let of = self.units;
        let unit = of.unit_of.get(&n).map(|u| of.units[*u].anchor);
        (of.reach(of.place(n)) >= self.first).then_some(unit.unwrap_or(n))
    }
}

impl GraphBase for Behind<'_, '_> {
    type NodeId = NodeId;
    type EdgeId = ();
}

impl GraphRef for Behind<'_, '_> {}

impl IntoNeighbors for Behind<'_, '_> {
    type Neighbors = std::vec::IntoIter<NodeId>;
    fn neighbors(self, n: NodeId) -> Self::Neighbors {
        let unit = self.units.unit_of.get(&n);
        if unit == Some(&self.end) {
            return vec![].into_iter();
        }
        let unit = unit.map(|u| &self.units.units[*u]);
        let members = unit.into_iter().flat_map(|u| u.members.iter().copied());
        let needed = std::iter::once(n).chain(members).flat_map(|m| self.units.graph.needs(m));
        needed.filter_map(|n| self.entered(n)).collect::<Vec<_>>().into_iter()
    }
}
