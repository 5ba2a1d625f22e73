//! Loops with a workgroup for each lane, whose carried values are in workgroup memory.
//!
//! The body is pulled for one lane as in [`lanes`](crate::fuse::loops::lanes), but an operator that combines elements is not expanded. It
//! becomes a *stage*, in which each invocation computes an element and writes it to an array; so do values that such a stage would
//! compute repeatedly. Reading another lane's carried value fails.

mod body;
mod terms;

use crate::fuse::loops::lanes::Mapping;
use crate::fuse::pulling::{Puller, Resolver, unflatten};
use crate::kernel::{Array, Body, Expr, ExprId, Stage, Store, TensorId, Write};
use crate::schedule::loops::array_bytes;
use body::Frame;
use rustc_hash::{FxHashMap, FxHashSet};
pub(in crate::fuse) use terms::{in_blocks, is_written_out, reads_much};
use wgfc_ir::{DType, Dim, Graph, NodeId, Op, Poly};

/// The most elements of a stage: a bound on the time of a step, beyond which a split loop is no slower.
const MOST: i64 = 1 << 16;

/// The stages of a lane.
pub(in crate::fuse) struct Staged {
    /// The arrays of carried values, followed by those written by stages for later stages.
    pub arrays: Vec<Array>,
    /// Stages that run before the first step.
    pub first: Vec<Stage>,
    /// Stages of each step.
    pub each: Vec<Stage>,
    /// For every stacked output: the number of its stage, the position of an element, and its value.
    pub stacked: Vec<(usize, Vec<Poly>, ExprId)>,
    /// The carried flag at which a lane may stop, if there is one.
    pub alive: Option<u32>,
}

impl Staged {
    /// The number of elements of the largest stage.
    pub fn widest(&self) -> u32 {
        self.first.iter().chain(&self.each).map(|s| s.elements).max().unwrap_or(1)
    }
}

impl Mapping {
    /// The number of the variable of a stage's element, which follows the lanes' axes and the step.
    pub(in crate::fuse) fn element(&self) -> usize {
        self.lanes.len() + 1
    }
    pub(in crate::fuse) fn term(&self) -> usize {
        self.lanes.len() + 2
    }

    /// Extents of the variables in a stage.
    pub(in crate::fuse) fn inside(&self, elements: i64, terms: i64) -> Vec<Dim> {
        self.domain().into_iter().chain([elements, terms].map(Poly::constant)).collect()
    }

    /// The number of elements of output `i` that a lane has, and the position of element `%element`.
    pub(in crate::fuse) fn own(&self, i: usize) -> Result<(i64, Vec<Poly>), String> {
        let shape = &self.output(i).shape;
        own(shape, self.axes_of(i), &Poly::var(self.element()), &|n| self.inside(n, 1))
    }

    /// Builds the stages of a lane in the body of `outer`. The initial carried values are read from the tensors `resumed` if given, else
    /// they are the loop's operands.
    pub(in crate::fuse) fn stage<R: Resolver>(
        &self,
        graph: &Graph,
        node: NodeId,
        resumed: Option<&[TensorId]>,
        outer: &mut Puller<'_, R>,
    ) -> Result<Staged, String> {
        let node = graph.node(node);
        let Op::Scan { carried, reverse_outputs, .. } = &node.op else {
            return Err("not a scan".into());
        };
        outer.unroll = true;
        let (mut arrays, mut first) = (vec![], vec![]);
        for i in 0..*carried {
            let (n, at) = self.own(i)?;
            outer.over(self.inside(n, 1));
            let ty = graph.ty(node.inputs[i]);
            let value = match resumed.and_then(|r| r.get(i)) {
                Some(tensor) => {
                    let offset = outer.offset(ty, &at);
                    outer.push(Expr::Load { tensor: *tensor, offset, guard: None }, ty.dtype)
                }
                None => outer.pull(node.inputs[i], &at, None)?,
            };
            arrays.push(Array { dtype: ty.dtype, len: n as u32 });
            plain(&mut first, n).writes.push(Write { array: i as u32, value });
        }
        let mut frame = Frame::new(self, node, arrays, outer);
        // Carried and stacked values are computed after all stages that they need.
        let mut results = vec![];
        for i in 0..self.body().outputs.len() {
            let (n, at) = self.own(i)?;
            let v = self.body().outputs[i].value;
            let value = frame.pull(self.inside(n, 1), |p| p.pull(v, &at, None))?;
            results.push((n, at, value));
        }
        let (mut arrays, mut each) = frame.made();
        self.check_shared_values(outer.body(), *carried, &each, &results)?;
        let element = Poly::var(self.element());
        let held = |e: &Expr| match e {
            Expr::Shared { array, at, guard: None } if *array < *carried as u32 => {
                (*at == element || *at == Poly::ZERO && arrays[*array as usize].len == 1).then_some(*array)
            }
            _ => None,
        };
        let next: Vec<ExprId> = results[..*carried].iter().map(|r| r.2).collect();
        let single = |i: &usize| arrays[*i] == Array { dtype: DType::Bool, len: 1 };
        let mut flags = (0..*carried).filter(single);
        let alive = flags
            .find(|f| crate::fuse::loops::lanes::ends_with(outer.body(), &next, *f, &held))
            .map(|f| f as u32);
        let (mut stacked, inner) = (vec![], each.len());
        for (i, (n, at, value)) in results.into_iter().enumerate() {
            let last = &mut each[inner..];
            let stage = match last.iter().position(|s| i64::from(s.elements) == n) {
                Some(found) => inner + found,
                None => {
                    each.push(Stage { elements: n as u32, combined: None, writes: vec![], stores: vec![] });
                    each.len() - 1
                }
            };
            if i < *carried {
                each[stage].writes.push(Write { array: i as u32, value });
                continue;
            }
            let t = self.step(reverse_outputs.get(i - carried) == Some(&true));
            stacked.push((stage, std::iter::once(t).chain(at).collect(), value));
        }
        self.separate(outer.body_mut(), *carried, &mut arrays, &mut each, &stacked);
        let bytes: u32 = arrays.iter().map(array_bytes).fold(0, u32::saturating_add);
        if bytes > self.profile.max_workgroup_bytes {
            return Err(format!(
                "a lane needs {bytes} bytes of workgroup memory, the device has {}",
                self.profile.max_workgroup_bytes
            ));
        }
        Ok(Staged { arrays, first, each, stacked, alive })
    }

    /// Where a stage writes a carried value whose old elements are still read, makes it write to a new array instead. A stage at the end of
    /// the step then copies the array to the carried value.
    fn separate(
        &self,
        body: &mut Body,
        carried: usize,
        arrays: &mut Vec<Array>,
        each: &mut Vec<Stage>,
        stacked: &[(usize, Vec<Poly>, ExprId)],
    ) {
        let element = Poly::var(self.element());
        let mut copies = vec![];
        for c in 0..carried as u32 {
            let Some((at, w)) = each
                .iter()
                .enumerate()
                .find_map(|(i, s)| s.writes.iter().position(|w| w.array == c).map(|w| (i, w)))
            else {
                continue;
            };
            let same = Expr::Shared { array: c, at: element.clone(), guard: None };
            if *body.expr(each[at].writes[w].value) == same {
                each[at].writes.remove(w);
                continue;
            }
            let reads = |i: usize, own: bool| {
                let mut roots = each[i].roots();
                roots.extend(stacked.iter().filter(|s| s.0 == i).map(|s| s.2));
                body.reachable(&roots).into_iter().any(|e| match body.expr(e) {
                    Expr::Shared { array, at, .. } => *array == c && (own || *at != element),
                    _ => false,
                })
            };
            if reads(at, false) || (at + 1..each.len()).any(|i| reads(i, true)) {
                let next = arrays.len() as u32;
                arrays.push(arrays[c as usize]);
                each[at].writes[w].array = next;
                copies.push((c, next));
            }
        }
        let from = each.len();
        for (to, next) in copies {
            let Array { dtype, len } = arrays[to as usize];
            let value = body.push(Expr::Shared { array: next, at: element.clone(), guard: None }, dtype);
            let found = each[from..].iter().position(|s| s.elements == len);
            let stage = match found {
                Some(i) => from + i,
                None => {
                    each.push(Stage { elements: len, combined: None, writes: vec![], stores: vec![] });
                    each.len() - 1
                }
            };
            each[stage].writes.push(Write { array: to, value });
        }
        // Removing a stage with nothing left to do saves a barrier.
        let busy = |i: usize, s: &Stage| !s.writes.is_empty() || stacked.iter().any(|x| x.0 == i);
        while each.len() > 1 && !busy(each.len() - 1, &each[each.len() - 1]) {
            each.pop();
        }
    }

    /// Checks that values which several lanes share are equal in all of them.
    fn check_shared_values(
        &self,
        body: &Body,
        carried: usize,
        each: &[Stage],
        results: &[(i64, Vec<Poly>, ExprId)],
    ) -> Result<(), String> {
        // The lane axes that each array depends on.
        let mut arrays: FxHashMap<u32, FxHashSet<usize>> = FxHashMap::default();
        for i in 0..carried {
            arrays.insert(i as u32, self.axes_of(i).iter().flatten().copied().collect());
        }
        let lanes_of = |arrays: &FxHashMap<u32, FxHashSet<usize>>, roots: &[ExprId]| {
            let mut all: FxHashSet<usize> = FxHashSet::default();
            for e in body.reachable(roots) {
                let vars = match body.expr(e) {
                    Expr::Index(p) | Expr::Load { offset: p, .. } => p.vars(),
                    Expr::Shared { array, at, .. } => {
                        all.extend(arrays.get(array).into_iter().flatten());
                        at.vars()
                    }
                    _ => continue,
                };
                all.extend(vars.into_iter().filter(|v| *v < self.lanes.len()));
            }
            all
        };
        for stage in each {
            let on = lanes_of(&arrays, &stage.roots());
            for w in &stage.writes {
                arrays.insert(w.array, on.clone());
            }
        }
        for (i, (.., value)) in results.iter().enumerate() {
            let on = lanes_of(&arrays, &[*value]);
            if let Some(l) = self.missing(i).into_iter().find(|l| on.contains(l)) {
                let name = &self.body().outputs[i].name;
                return Err(format!(
                    "`{name}` depends on values that other lanes along `{}` carry",
                    self.lanes[l]
                ));
            }
        }
        Ok(())
    }
}

/// The elements of a shape along the axes that are not lanes: their number, and the position of number `element`.
fn own(
    shape: &[Dim],
    axes: &[Option<usize>],
    element: &Poly,
    domain: &dyn Fn(i64) -> Vec<Dim>,
) -> Result<(i64, Vec<Poly>), String> {
    let mut mine = vec![];
    let mut n = 1i64;
    for (d, _) in shape.iter().zip(axes).filter(|(_, l)| l.is_none()) {
        n = n.saturating_mul(
            d.as_const()
                .ok_or_else(|| format!("the number of elements per lane, `{d}`, is not a constant"))?,
        );
        mine.push(d.clone());
    }
    if !(1..=MOST).contains(&n) {
        return Err(format!("a value has {n} elements per lane, which is not in 1..={MOST}"));
    }
    let mut at = unflatten(element, &mine, &domain(n)).into_iter();
    let place = |l: &Option<usize>| match l {
        Some(l) => Poly::var(*l),
        None => at.next().unwrap_or_default(),
    };
    Ok((n, axes.iter().map(place).collect()))
}

/// The stage of `n` elements that combines nothing; it is added if there is none.
fn plain(stages: &mut Vec<Stage>, n: i64) -> &mut Stage {
    let i = match stages.iter().position(|s| i64::from(s.elements) == n) {
        Some(i) => i,
        None => {
            stages.push(Stage { elements: n as u32, combined: None, writes: vec![], stores: vec![] });
            stages.len() - 1
        }
    };
    &mut stages[i]
}

/// Adds a store to the stage of `n` elements.
pub(in crate::fuse) fn store(stages: &mut Vec<Stage>, n: i64, store: Store) {
    plain(stages, n).stores.push(store);
}
