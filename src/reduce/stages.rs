//! The stages of a reduction, each of which removes or shrinks one kind of item.

use super::{Reducer, edits, graph, is_weight, store};
use std::collections::{BTreeSet, HashSet};
use wgfc_compiler::import::onnx::*;

impl Reducer<'_> {
    /// Bisects for the shortest prefix of the nodes that fails.
    pub(super) fn prefix(&mut self) {
        let base = self.graph();
        let (types, n) = (self.known.clone(), base.node.len());
        let (mut low, mut high) = (0, n);
        while high - low > 1 && !self.over() {
            let k = (low + high) / 2;
            let later: HashSet<&str> = base.node[k..].iter().flat_map(graph::reads).collect();
            let is_output = |o: &String| base.output.iter().any(|v| v.name == *o);
            let ends = base.node[..k].iter().flat_map(|n| &n.output);
            let ends = ends.filter(|o| later.contains(o.as_str()) || is_output(o)).cloned().collect();
            let best = std::mem::replace(&mut self.known, types.clone());
            let candidate = self.cut(&base, |i| i < k, ends);
            self.known = best;
            match candidate.is_some_and(|c| self.attempt(c)) {
                true => high = k,
                false => low = k,
            }
        }
    }

    /// Bisects for the shortest suffix of the nodes that fails.
    pub(super) fn suffix(&mut self) {
        let base = self.graph();
        let (types, n) = (self.known.clone(), base.node.len());
        let outputs: Vec<String> = base.output.iter().map(|o| o.name.clone()).collect();
        let (mut low, mut high) = (0, n);
        while high - low > 1 && !self.over() {
            let k = (low + high) / 2;
            let best = std::mem::replace(&mut self.known, types.clone());
            let candidate = self.cut(&base, |i| i >= k, outputs.clone());
            self.known = best;
            match candidate.is_some_and(|c| self.attempt(c)) {
                true => low = k,
                false => high = k,
            }
        }
    }

    /// Removes outputs: tries each alone, then removes chunks of them.
    pub(super) fn outputs(&mut self) -> bool {
        let mut helped = false;
        let one = |r: &mut Self| {
            let g = r.graph();
            if g.output.len() < 2 {
                return vec![];
            }
            let each = g.output.iter().rev();
            each.map(|o| r.with(GraphProto { output: vec![o.clone()], ..g.clone() })).collect()
        };
        if self.graph().output.len() <= 16 {
            helped |= self.all(one);
        }
        let mut size = self.graph().output.len() / 2;
        while size > 0 && !self.over() {
            helped |= self.chunks(
                size,
                |r, g, chunk| {
                    let mut g = g.clone();
                    if chunk.len() >= g.output.len() {
                        return None;
                    }
                    g.output.drain(chunk);
                    Some(r.with(g))
                },
                |g| g.output.len(),
            );
            size /= 2;
        }
        helped
    }

    /// Tries the best model without each chunk of `size` items, the last chunk first. Returns whether one was removed.
    fn chunks(
        &mut self,
        size: usize,
        without: impl Fn(&mut Self, &GraphProto, std::ops::Range<usize>) -> Option<ModelProto>,
        count: impl Fn(&GraphProto) -> usize,
    ) -> bool {
        let mut helped = false;
        let mut end = count(&self.graph());
        while end > 0 && !self.over() {
            let g = self.graph();
            end = end.min(count(&g));
            let start = end.saturating_sub(size);
            if let Some(m) = without(self, &g, start..end) {
                helped |= self.attempt(m);
            }
            end = start;
        }
        helped
    }

    /// Removes nodes by delta debugging (ddmin).
    pub(super) fn nodes(&mut self) -> bool {
        let mut helped = false;
        let mut size = self.graph().node.len() / 2;
        while size > 0 && !self.over() {
            let less = self.chunks(
                size,
                |r, g, chunk| {
                    let outputs: Vec<String> = g.output.iter().map(|o| o.name.clone()).collect();
                    let kept = |i: usize| !chunk.contains(&i);
                    r.cut(g, kept, outputs).or_else(|| {
                        // The chunk may contain all nodes that compute outputs; in that case its operands become the
                        // outputs.
                        let ends = g.node[chunk.clone()].iter().flat_map(graph::reads);
                        let ends = ends.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect();
                        r.cut(g, kept, ends)
                    })
                },
                |g| g.node.len(),
            );
            helped |= less;
            // Single nodes are tried again as long as one was removed, as this may make others superfluous.
            if size > 1 || !less {
                size /= 2;
            }
        }
        helped
    }

    /// Replaces nodes by an operand of the same type.
    pub(super) fn bypass(&mut self) -> bool {
        self.all(|r| {
            let g = r.graph();
            let made: HashSet<&str> = g.node.iter().flat_map(|n| &n.output).map(String::as_str).collect();
            let mut found = vec![];
            for (i, n) in g.node.iter().enumerate().rev() {
                let [o] = n.output.as_slice() else { continue };
                let Some(ty) = r.type_of(o) else { continue };
                for x in n.input.iter().filter(|x| !x.is_empty() && r.type_of(x).as_ref() == Some(&ty)) {
                    let is_output = g.output.iter().any(|v| v.name == *o);
                    if is_output && (!made.contains(x.as_str()) || g.output.iter().any(|v| v.name == *x)) {
                        continue;
                    }
                    let mut g = g.clone();
                    g.node.remove(i);
                    graph::rename_reads(&mut g.node, o, x);
                    g.output.iter_mut().filter(|v| v.name == *o).for_each(|v| v.name.clone_from(x));
                    found.push(r.with(g));
                }
            }
            found
        })
    }

    /// Makes extents smaller.
    pub(super) fn sizes(&mut self) -> bool {
        let mut helped = self.all(edits::symbols);
        for from in edits::present(&self.graph()) {
            // If half the extent still fails, the next round continues from it.
            for to in [1, 2, 4, 8, from / 2].into_iter().filter(|to| *to < from) {
                let candidates = edits::smaller(&self.best, from, to, &mut self.store);
                if candidates.into_iter().any(|c| self.attempt(c)) {
                    helped = true;
                    break;
                }
            }
        }
        let count = self.graph().initializer.len() + self.graph().input.len();
        for i in (0..count).rev() {
            for axis in 0..8 {
                if let Some(m) = edits::broadcast(&self.best, i, axis, &mut self.store) {
                    helped |= self.attempt(m);
                }
            }
        }
        helped
    }

    /// Replaces all weights by random ones at once.
    pub(super) fn made_up_all(&mut self) {
        let g = self.graph();
        let (mut new, own) = (g.clone(), self.own.clone());
        for t in new.initializer.iter_mut().filter(|t| own.contains(&t.name)) {
            if let Some(other) = self.made_up(&g, t) {
                *t = other;
            }
        }
        let changed = changed(&g, &new);
        if changed.is_empty() {
            return;
        }
        let m = self.with(new);
        if self.attempt(m) {
            self.own.retain(|n| !changed.contains(n));
        }
    }

    fn made_up(&mut self, g: &GraphProto, t: &TensorProto) -> Option<TensorProto> {
        let float = data_type::dtype(t.data_type).is_some_and(wgfc_ir::DType::is_float);
        let codes = matches!(t.data_type, 2 | 3 | 21 | 22 | 25 | 26);
        if !is_weight(t) || !(float || codes) || store::is_missing(t) {
            return None;
        }
        let x = crate::random::made_up(g, t)?;
        self.store.put(&t.name, &x).ok()
    }

    /// Replaces constants by ones, or by random values.
    pub(super) fn values(&mut self) -> bool {
        let mut helped = false;
        for i in 0..self.graph().initializer.len() {
            let g = self.graph();
            let Some(t) = g.initializer.get(i) else { break };
            let name = t.name.clone();
            let (Some(dtype), false) = (data_type::dtype(t.data_type), edits::is_ones(t, &self.store)) else {
                continue;
            };
            let shape: Option<Vec<usize>> = t.dims.iter().map(|d| usize::try_from(*d).ok()).collect();
            let Some(shape) = shape.filter(|_| is_weight(t) && store::bytes(t) < 1 << 28) else { continue };
            let mut others = vec![];
            if dtype.is_float() {
                others.extend(self.store.put(&name, &store::ones(dtype, shape)).ok());
            }
            if self.own.contains(&name) || store::is_missing(t) {
                let there = TensorProto { data_location: 0, external_data: vec![], ..t.clone() };
                others.extend(self.made_up(&g, &there));
            }
            for other in others {
                let mut g = g.clone();
                g.initializer[i] = other;
                let m = self.with(g);
                if self.attempt(m) {
                    self.own.remove(&name);
                    helped = true;
                    break;
                }
            }
        }
        helped
    }
}

fn changed(before: &GraphProto, after: &GraphProto) -> Vec<String> {
    let pairs = before.initializer.iter().zip(&after.initializer);
    pairs.filter(|(a, b)| a != b).map(|(a, _)| a.name.clone()).collect()
}
