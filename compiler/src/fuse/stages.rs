//! Loops whose lanes take a workgroup each, what a lane carries in workgroup memory.
//!
//! The body is pulled for one lane as in [`lanes`](super::lanes), but what combines elements is no long expression
//! here: it becomes a *stage*, in which the workgroup's invocations compute an element each and put it into an
//! array, and so does what such a stage would compute again and again. Reading what another lane carries fails.

use super::expand::{accumulator, extent};
use super::lanes::Plan;
use super::price::summed;
use super::pull::{Memory, Parts, Puller, flat_offset, splat, unflatten};
use crate::emit::stages as emitted;
use crate::kernel::{
    Array, Body, Combined, Expr, ExprId, ReduceKind, Reduction, Stage, Store, TensorId, Write,
};
use rustc_hash::{FxHashMap, FxHashSet};
use wgfc_ir::{BinaryOp, DType, Dim, Graph, NodeId, Op, Poly, ReduceOp, ScalarNode, UnaryOp, Value};

/// Elements of a stage.
const MOST: i64 = 1 << 16;
/// Stages that combine.
const COMBINED: u32 = 50;
/// Terms that are written out: what they read from memory then stays in registers from step to step.
const TERMS: i64 = 64;
/// Words that a workgroup keeps in registers so.
const RESIDENT: i64 = 24 << 10;
/// Of the other terms so many are read at once, for none of them to be waited for.
const AT_ONCE: [i64; 4] = [16, 8, 4, 2];

/// What a workgroup does.
pub(super) struct Staged {
    /// What is carried, then what stages hand on.
    pub arrays: Vec<Array>,
    /// Before the first step.
    pub first: Vec<Stage>,
    /// In each step.
    pub each: Vec<Stage>,
    /// Of every output that is stacked, the number of its stage, where an element lies, and the element.
    pub stacked: Vec<(usize, Vec<Poly>, ExprId)>,
    /// The carried bool that a lane may stop at, if there is one.
    pub alive: Option<u32>,
}

impl Staged {
    /// Elements of the largest stage.
    pub fn widest(&self) -> u32 {
        self.first.iter().chain(&self.each).map(|s| s.elements).max().unwrap_or(1)
    }
}

impl Plan {
    /// The variables behind those of the lanes and the step.
    pub(super) fn element(&self) -> usize {
        self.lanes.len() + 1
    }
    pub(super) fn term(&self) -> usize {
        self.lanes.len() + 2
    }

    /// Extents of the variables in a stage.
    pub(super) fn inside(&self, elements: i64, terms: i64) -> Vec<Dim> {
        self.domain().into_iter().chain([elements, terms].map(Poly::constant)).collect()
    }

    /// How many elements a lane has of output `i`, and where element `%element` is.
    pub(super) fn own(&self, i: usize) -> Result<(i64, Vec<Poly>), String> {
        let shape = &self.output(i).shape;
        own(shape, self.axes_of(i), &Poly::var(self.element()), &|n| self.inside(n, 1))
    }

    /// Writes out the stages of a lane into the body of `outer`. What is carried is in the tensors `resumed`, or
    /// is what the loop begins with.
    pub(super) fn stage<M: Memory>(
        &self,
        graph: &Graph,
        node: NodeId,
        resumed: Option<&[TensorId]>,
        outer: &mut Puller<'_, M>,
    ) -> Result<Staged, String> {
        let node = graph.node(node);
        let Op::Scan { carried, scanned, reverse_inputs, reverse_outputs, .. } = &node.op else {
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
                    outer.body.push(Expr::Load { tensor: *tensor, offset, guard: None }, ty.dtype)
                }
                None => outer.pull(node.inputs[i], &at, None)?,
            };
            arrays.push(Array { dtype: ty.dtype, len: n as u32 });
            plain(&mut first, n).writes.push(Write { array: i as u32, value });
        }
        let mut frame = Frame {
            plan: self,
            inputs: &node.inputs,
            carried: *carried,
            scanned: *scanned,
            reverse: reverse_inputs,
            kept: kept(self.body()),
            most: i64::from(self.profile.max_invocations),
            arrays,
            made: FxHashMap::default(),
            stages: vec![],
            combined: 0,
            outer,
        };
        // What is carried and stacked is computed when all stages it needs are there.
        let mut results = vec![];
        for i in 0..self.body().outputs.len() {
            let (n, at) = self.own(i)?;
            let v = self.body().outputs[i].value;
            let value = frame.pull(self.inside(n, 1), |p| p.pull(v, &at, None))?;
            results.push((n, at, value));
        }
        let Frame { mut arrays, stages: mut each, .. } = frame;
        self.check_apart(&outer.body, *carried, &each, &results)?;
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
        let alive = flags.find(|f| super::lanes::ends_with(&outer.body, &next, *f, &held)).map(|f| f as u32);
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
            let t = Poly::var(self.lanes.len());
            let back = reverse_outputs.get(i - carried) == Some(&true);
            let t = if back { &(&self.steps - &Poly::ONE) - &t } else { t };
            stacked.push((stage, std::iter::once(t).chain(at).collect(), value));
        }
        self.separate(&mut outer.body, *carried, &mut arrays, &mut each, &stacked);
        let bytes: u32 = arrays.iter().map(emitted::bytes).fold(0, u32::saturating_add);
        if bytes > self.profile.max_workgroup_bytes {
            return Err(format!(
                "a lane needs {bytes} bytes of workgroup memory, the device has {}",
                self.profile.max_workgroup_bytes
            ));
        }
        Ok(Staged { arrays, first, each, stacked, alive })
    }

    /// What a stage carries on while others still read what it was goes through an array of its own.
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
        // A stage with nothing left to do is one barrier less.
        let busy = |i: usize, s: &Stage| !s.writes.is_empty() || stacked.iter().any(|x| x.0 == i);
        while each.len() > 1 && !busy(each.len() - 1, &each[each.len() - 1]) {
            each.pop();
        }
    }

    /// What several lanes hold must be the same in all of them.
    fn check_apart(
        &self,
        body: &Body,
        carried: usize,
        each: &[Stage],
        results: &[(i64, Vec<Poly>, ExprId)],
    ) -> Result<(), String> {
        // The lanes that each array depends on.
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
                return Err(format!("`{name}` combines what lanes along `{}` carry", self.lanes[l]));
            }
        }
        Ok(())
    }
}

/// The elements of a shape without the axes that are lanes: how many, and where number `element` is.
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
            d.as_const().ok_or_else(|| format!("`{d}` elements of a lane are no known number"))?,
        );
        mine.push(d.clone());
    }
    if !(1..=MOST).contains(&n) {
        return Err(format!("a lane has {n} elements of a value, at most {MOST}"));
    }
    let mut at = unflatten(element, &mine, &domain(n)).into_iter();
    let place = |l: &Option<usize>| match l {
        Some(l) => Poly::var(*l),
        None => at.next().unwrap_or_default(),
    };
    Ok((n, axes.iter().map(place).collect()))
}

/// The stage of `n` elements that combines nothing, made where there is none.
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

/// Adds stores to stages, to the one of `n` elements.
pub(super) fn store(stages: &mut Vec<Stage>, n: i64, store: Store) {
    plain(stages, n).stores.push(store);
}

/// What products would compute again for each of their elements, unless it is cheap or the same in every step.
fn kept(body: &Graph) -> FxHashSet<Value> {
    let mut out = FxHashSet::default();
    for n in body.node_ids() {
        let Op::Contract(_) = &body.node(n).op else { continue };
        for x in &body.node(n).inputs {
            let mut v = *x;
            while let Op::View { .. } = &body.node(v.node).op {
                v = body.node(v.node).inputs[0];
            }
            let costly = |node: NodeId| match &body.node(node).op {
                Op::Map { body: f, .. } => {
                    let slow = |n: &ScalarNode| match n {
                        ScalarNode::Unary(op, _) => !matches!(op, UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not),
                        ScalarNode::Binary(op, ..) => matches!(op, BinaryOp::Pow | BinaryOp::Div),
                        _ => false,
                    };
                    f.nodes.iter().any(slow) || f.nodes.len() > 4
                }
                _ => false,
            };
            if costly(v.node) || is_chain(body, v) {
                out.insert(v);
            }
        }
    }
    out
}

/// Whether a value is made by several pointwise operators.
fn is_chain(body: &Graph, v: Value) -> bool {
    let mut stack = vec![v];
    let mut seen = FxHashSet::default();
    let mut maps = 0;
    while let Some(v) = stack.pop() {
        if !seen.insert(v) {
            continue;
        }
        match &body.node(v.node).op {
            Op::Map { .. } => {
                maps += 1;
                stack.extend(&body.node(v.node).inputs);
            }
            Op::View { .. } | Op::Concat { .. } | Op::Gather { .. } => {
                stack.extend(&body.node(v.node).inputs)
            }
            _ => {}
        }
    }
    maps > 1
}

/// A value that a stage computes.
struct Made {
    array: u32,
    /// Which lane each axis is.
    axes: Vec<Option<usize>>,
}

/// Gives the body of a loop what it reads from outside and from other stages.
struct Frame<'f, 'a, M: Memory> {
    plan: &'f Plan,
    inputs: &'f [Value],
    carried: usize,
    scanned: usize,
    reverse: &'f [bool],
    kept: FxHashSet<Value>,
    /// Invocations of a workgroup.
    most: i64,
    arrays: Vec<Array>,
    made: FxHashMap<Value, Made>,
    stages: Vec<Stage>,
    combined: u32,
    outer: &'f mut Puller<'a, M>,
}

impl<M: Memory> Memory for Frame<'_, '_, M> {
    fn tensor(&mut self, _: Value) -> Option<TensorId> {
        None
    }
    fn segments(&mut self, _: Value) -> Option<Vec<(TensorId, i64)>> {
        None
    }
    fn parts(&mut self, _: Value) -> Option<Parts> {
        None
    }

    fn given(
        &mut self,
        v: Value,
        index: &[Poly],
        guard: Option<ExprId>,
        body: &mut Body,
    ) -> Option<Result<ExprId, String>> {
        let graph = self.plan.body();
        let input = graph.inputs.iter().position(|b| b.value == v);
        let node = graph.node(v.node);
        let staged = matches!(node.op, Op::Reduce { .. } | Op::ArgReduce { .. } | Op::Contract(_))
            && !super::group::is_small(graph, v.node)
            || self.kept.contains(&v);
        if input.is_none() && !staged || splat(graph, v).is_some() {
            return None;
        }
        std::mem::swap(body, &mut self.outer.body);
        let result = match input {
            Some(i) => self.input(i, index, guard),
            None => self.staged(v, index, guard),
        };
        std::mem::swap(body, &mut self.outer.body);
        Some(result)
    }
}

impl<M: Memory> Frame<'_, '_, M> {
    /// `f` over the body of the loop, for a stage of these extents.
    fn pull<T>(
        &mut self,
        domain: Vec<Dim>,
        f: impl FnOnce(&mut Puller<'_, Self>) -> Result<T, String>,
    ) -> Result<T, String> {
        let plan = self.plan;
        let before = self.outer.over(domain.clone());
        let body = std::mem::take(&mut self.outer.body);
        let mut inner = Puller::new(plan.body(), self, domain);
        inner.unroll = true;
        inner.body = body;
        let result = f(&mut inner);
        let body = std::mem::take(&mut inner.body);
        self.outer.body = body;
        self.outer.over(before);
        result
    }

    /// An element of what the body is given.
    fn input(&mut self, i: usize, index: &[Poly], guard: Option<ExprId>) -> Result<ExprId, String> {
        if i < self.carried {
            let input = &self.plan.body().inputs[i];
            let made = Made { array: i as u32, axes: self.plan.axes_of(i).to_vec() };
            return self.element(input.value, &made, index, guard);
        }
        let mut at = vec![];
        if i < self.carried + self.scanned {
            let t = Poly::var(self.plan.lanes.len());
            let back = self.reverse.get(i - self.carried) == Some(&true);
            at.push(if back { &(&self.plan.steps - &Poly::ONE) - &t } else { t });
        }
        at.extend(index.iter().cloned());
        self.outer.pull(self.inputs[i], &at, guard)
    }

    /// An element of an array.
    fn element(
        &mut self,
        v: Value,
        made: &Made,
        index: &[Poly],
        guard: Option<ExprId>,
    ) -> Result<ExprId, String> {
        let ty = self.plan.body().ty(v);
        let (mut shape, mut at) = (vec![], vec![]);
        for ((p, d), lane) in index.iter().zip(&ty.shape).zip(&made.axes) {
            match lane {
                Some(l) if *p != Poly::var(*l) => {
                    return Err(format!("a step reads `{p}` along `{d}`, where another lane carries it"));
                }
                Some(_) => {}
                None => {
                    shape.push(d.clone());
                    at.push(p.clone());
                }
            }
        }
        let at = flat_offset(&shape, &at, &self.outer.domain);
        Ok(self.outer.body.push(Expr::Shared { array: made.array, at, guard }, ty.dtype))
    }

    /// An element of what has a stage of its own, which is made when it is first read.
    fn staged(&mut self, v: Value, index: &[Poly], guard: Option<ExprId>) -> Result<ExprId, String> {
        if !self.made.contains_key(&v) {
            let shape = &self.plan.body().ty(v).shape;
            let mut free = vec![true; self.plan.lanes.len()];
            let mut lane = |(p, d): (&Poly, &Dim)| {
                let l = p.as_var().filter(|l| free.get(*l) == Some(&true) && self.plan.lanes[*l] == *d)?;
                free[l] = false;
                Some(l)
            };
            let axes: Vec<Option<usize>> = index.iter().zip(shape).map(&mut lane).collect();
            let array = self.make(v, &axes)?;
            self.made.insert(v, Made { array, axes });
        }
        let made = &self.made[&v];
        let made = Made { array: made.array, axes: made.axes.clone() };
        self.element(v, &made, index, guard)
    }

    /// Adds the stage of a value, or two.
    fn make(&mut self, v: Value, axes: &[Option<usize>]) -> Result<u32, String> {
        let plan = self.plan;
        let graph = plan.body();
        let ty = graph.ty(v);
        let element = Poly::var(plan.element());
        let (n, at) = own(&ty.shape, axes, &element, &|n| plan.inside(n, 1))?;
        let Some(terms) = terms(graph, v)? else {
            let value = self.pull(plan.inside(n, 1), |p| p.compute(v, &at, None))?;
            return Ok(self.push(n, ty.dtype, None, value));
        };
        if written_out(n, terms, self.most) == terms {
            let value = self.pull(plan.inside(n, 1), |p| p.expand(v, &at, None))?;
            return Ok(self.push(n, ty.dtype, None, value));
        }
        // Few elements of many terms leave most invocations idle: each combines some terms, another stage the rest.
        let parts = match &graph.node(v.node).op {
            Op::ArgReduce { .. } => 1,
            _ => (2..=self.most / n).rev().find(|p| terms % p == 0 && terms / p >= 2).unwrap_or(1),
        };
        if parts == 1 {
            let (combined, value) = self.sum(v, (n, terms), &at, &Poly::clone)?;
            let value = self.outer.cast(value, ty.dtype);
            return Ok(self.push(n, ty.dtype, combined, value));
        }
        let domain = plan.inside(n * parts, terms / parts);
        let part = element.modulo(&Poly::constant(parts), &domain);
        let whole = element.div(&Poly::constant(parts), &domain);
        let (_, at) = own(&ty.shape, axes, &whole, &|_| domain.clone())?;
        let (combined, value) = self.sum(v, (n * parts, terms / parts), &at, &|t| &(t * parts) + &part)?;
        let wide = self.outer.body.dtype(value);
        let array = self.push(n * parts, wide, combined, value);
        let mut all = vec![];
        for i in 0..parts {
            let at = &(&element * parts) + &Poly::constant(i);
            all.push(self.outer.body.push(Expr::Shared { array, at, guard: None }, wide));
        }
        let op = reduced(graph, v).ok_or("it combines nothing")?;
        let value = self.outer.all(op, &all, wide);
        let value = self.outer.cast(value, ty.dtype);
        Ok(self.push(n, ty.dtype, None, value))
    }

    /// What `v` combines for each of `n` elements: the first terms written out, the others some at a time.
    fn sum(
        &mut self,
        v: Value,
        (n, terms): (i64, i64),
        at: &[Poly],
        place: &dyn Fn(&Poly) -> Poly,
    ) -> Result<(Option<Combined>, ExprId), String> {
        let plan = self.plan;
        let term = Poly::var(plan.term());
        let Some(op) = reduced(plan.body(), v) else {
            let (value, kind) = self.pull(plan.inside(n, terms), |p| term_of(p, v, at, &place(&term)))?;
            let (combined, acc) = self.combine(terms, kind, value)?;
            return Ok((Some(combined), acc));
        };
        let written = written_out(n, terms, self.most);
        let rest = terms - written;
        let group = AT_ONCE.into_iter().find(|g| *g <= rest).unwrap_or(1);
        let written = written + rest % group;
        let times = rest / group;
        let mut first = vec![];
        for i in 0..written {
            let here = place(&Poly::constant(i));
            first.push(self.pull(plan.inside(n, times.max(1)), |p| term_of(p, v, at, &here))?.0);
        }
        let dtype = first.first().map(|e| self.outer.body.dtype(*e));
        if times == 0 {
            let dtype = dtype.ok_or("a sum of nothing")?;
            return Ok((None, self.outer.all(op, &first, dtype)));
        }
        let mut each = vec![];
        for i in 0..group {
            let here = place(&(&(&term * group) + &Poly::constant(written + i)));
            each.push(self.pull(plan.inside(n, times), |p| term_of(p, v, at, &here))?);
        }
        let kind = each[0].1;
        let each: Vec<ExprId> = each.into_iter().map(|e| e.0).collect();
        let dtype = self.outer.body.dtype(each[0]);
        let value = self.outer.all(op, &each, dtype);
        let (combined, acc) = self.combine(times, kind, value)?;
        first.insert(0, acc);
        Ok((Some(combined), self.outer.all(op, &first, dtype)))
    }

    fn combine(&mut self, terms: i64, kind: ReduceKind, value: ExprId) -> Result<(Combined, ExprId), String> {
        let dtype = match kind {
            ReduceKind::Arg { .. } => DType::I64,
            _ => self.outer.body.dtype(value),
        };
        let acc = self.combined;
        self.combined += 1;
        if self.combined > COMBINED {
            return Err(format!("a step combines more than {COMBINED} times"));
        }
        let result = self.outer.body.push(Expr::Acc(acc), dtype);
        let reduction = Reduction { kind, value, dtype };
        Ok((Combined { terms: terms as u32, acc, reduction }, result))
    }

    /// Adds a stage that puts `value` into a new array.
    fn push(&mut self, n: i64, dtype: DType, combined: Option<Combined>, value: ExprId) -> u32 {
        let array = self.arrays.len() as u32;
        self.arrays.push(Array { dtype, len: n as u32 });
        let writes = vec![Write { array, value }];
        self.stages.push(Stage { elements: n as u32, combined, writes, stores: vec![] });
        array
    }
}

/// How many terms a stage of `n` elements writes out.
fn written_out(n: i64, terms: i64, invocations: i64) -> i64 {
    if n > invocations { 0 } else { (RESIDENT / n.max(1)).min(TERMS).min(terms) }
}

/// Whether the terms of a product in a body are written out, as far as that is known before the lanes are: of those
/// a product has fewer elements.
pub(super) fn is_written_out(graph: &Graph, n: NodeId, invocations: i64) -> bool {
    let Op::Contract(c) = &graph.node(n).op else { return false };
    let operand = graph.ty(graph.node(n).inputs[1]);
    let extent = |l: &u8| c.b.iter().position(|x| x == l).and_then(|i| operand.shape[i].as_const());
    let elements = c.n().iter().try_fold(1i64, |n, l| Some(n.saturating_mul(extent(l)?)));
    let terms = c.k().iter().try_fold(1i64, |n, l| Some(n.saturating_mul(extent(l)?)));
    elements.zip(terms).is_some_and(|(n, k)| written_out(n, k, invocations) == k)
}

/// How a value combines terms, if their order is of no matter.
fn reduced(graph: &Graph, v: Value) -> Option<ReduceOp> {
    match &graph.node(v.node).op {
        Op::Reduce { op, .. } => Some(*op),
        Op::Contract(_) => Some(ReduceOp::Sum),
        _ => None,
    }
}

/// How many terms a value combines for each of its elements, if it does.
fn terms(graph: &Graph, v: Value) -> Result<Option<i64>, String> {
    let node = graph.node(v.node);
    let along = |x: Value, axes: &[usize]| {
        let shape = &graph.ty(x).shape;
        axes.iter().try_fold(1i64, |n, a| Ok::<i64, String>(n.saturating_mul(extent(&shape[*a])?)))
    };
    let n = match &node.op {
        Op::Reduce { axes, .. } => along(node.inputs[0], axes)?,
        Op::ArgReduce { axis, .. } => along(node.inputs[0], &[*axis])?,
        Op::Contract(c) => along(node.inputs[0], &summed(c))?,
        _ => return Ok(None),
    };
    if !(1..=MOST).contains(&n) {
        return Err(format!("{n} elements are combined in a step"));
    }
    Ok(Some(n))
}

/// Term `term` of what `v` combines for the element at `at`, and how.
fn term_of<M: Memory>(
    p: &mut Puller<'_, M>,
    v: Value,
    at: &[Poly],
    term: &Poly,
) -> Result<(ExprId, ReduceKind), String> {
    let graph = p.graph;
    let node = graph.node(v.node);
    let wide = accumulator(node.outputs[0].dtype);
    let along = |x: Value, axes: &[usize], domain: &[Dim]| {
        let shape: Vec<Dim> = axes.iter().map(|a| graph.ty(x).shape[*a].clone()).collect();
        unflatten(term, &shape, domain)
    };
    match &node.op {
        Op::Reduce { op, axes } => {
            let x = node.inputs[0];
            let mut from = at.to_vec();
            axes.iter().zip(along(x, axes, &p.domain)).for_each(|(a, t)| from[*a] = t);
            let e = p.pull(x, &from, None)?;
            let kind = match op {
                ReduceOp::Sum => ReduceKind::Sum,
                ReduceOp::Prod => ReduceKind::Prod,
                ReduceOp::Max => ReduceKind::Max,
                ReduceOp::Min => ReduceKind::Min,
            };
            Ok((p.cast(e, wide), kind))
        }
        Op::ArgReduce { op, axis, last } => {
            let mut from = at.to_vec();
            from[*axis] = term.clone();
            let e = p.pull(node.inputs[0], &from, None)?;
            Ok((e, ReduceKind::Arg { largest: *op == ReduceOp::Max, last: *last }))
        }
        Op::Contract(c) => {
            let (a, b) = (node.inputs[0], node.inputs[1]);
            let summed = along(a, &summed(c), &p.domain);
            let place = |labels: &[u8]| -> Option<Vec<Poly>> {
                let of = |l: &u8| match c.out.iter().position(|x| x == l) {
                    Some(i) => at.get(i).cloned(),
                    None => c.k().iter().position(|x| x == l).and_then(|i| summed.get(i).cloned()),
                };
                labels.iter().map(of).collect()
            };
            let (Some(at_a), Some(at_b)) = (place(&c.a), place(&c.b)) else {
                return Err("a product whose labels do not fit".into());
            };
            let (x, y) = (p.pull(a, &at_a, None)?, p.pull(b, &at_b, None)?);
            let (x, y) = (p.cast(x, wide), p.cast(y, wide));
            Ok((p.binary(BinaryOp::Mul, x, y), ReduceKind::Sum))
        }
        op => Err(format!("`{}` combines nothing", op.name())),
    }
}
