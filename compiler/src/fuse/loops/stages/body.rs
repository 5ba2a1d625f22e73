//! Resolves the inputs of a loop's body while it is pulled: operands of the loop, carried values, and values of other stages, which are
//! built when they are first read.

use super::own;
use super::terms::{in_blocks, kind_of, reads_much, reduced, term_of, terms, written_out};
use crate::fuse::loops::lanes::{Mapping, Outside};
use crate::fuse::pulling::{Puller, Resolver, Source, flat_offset, splat};
use crate::fuse::unit::is_small;
use crate::kernel::{Array, Body, Combined, Expr, ExprId, ReduceKind, Reduction, Stage, Write};
use petgraph::visit::{Dfs, NodeFiltered, Walker};
use rustc_hash::{FxHashMap, FxHashSet};
use wgfc_ir::{BinaryOp, DType, Dim, Graph, Node, NodeId, Op, Poly, ReduceOp, ScalarNode, UnaryOp, Value};

/// The most stages that combine: a bound on the text of a kernel.
const COMBINED: u32 = 50;
/// The unroll factors of the loop over terms, whose loads are then issued together. Larger ones would take more registers than GPUs have.
const AT_ONCE: [i64; 4] = [16, 8, 4, 2];
/// The unroll factor for sums in blocks: four neighbouring terms, which are loaded as a vector.
const SIDE_BY_SIDE: [i64; 1] = [4];
/// The most parts of an element that one invocation combines in one expression: drivers take seconds to compile hundreds, and the
/// invocation waits for each.
const PARTS: i64 = 64;
/// The least number of a product's elements for which its sums are computed in blocks.
const BLOCKS: i64 = 32;

/// Values that products would recompute for each of their elements, except those that are cheap or the same in every step.
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
                        ScalarNode::Binary(op, ..) => {
                            matches!(
                                op,
                                BinaryOp::Pow
                                    | BinaryOp::Div
                                    | BinaryOp::Quot
                                    | BinaryOp::Gcd
                                    | BinaryOp::Special(_)
                            )
                        }
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

/// Whether a value is computed by several pointwise operators.
fn is_chain(body: &Graph, v: Value) -> bool {
    let is_map = |n: &NodeId| matches!(body.node(*n).op, Op::Map { .. });
    let moves =
        |n: NodeId| matches!(body.node(n).op, Op::View { .. } | Op::Concat { .. } | Op::Gather { .. });
    let search = NodeFiltered::from_fn(body.operands(), |n| is_map(&n) || moves(n));
    Dfs::new(&search, v.node).iter(&search).filter(is_map).nth(1).is_some()
}

/// A value that a stage computes.
struct Made {
    array: u32,
    /// The lane axis that each axis is, if any.
    axes: Vec<Option<usize>>,
}

/// Resolves the inputs of a loop's body and the values of other stages.
pub(super) struct Frame<'f, 'a, R: Resolver> {
    mapping: &'f Mapping,
    outside: Outside<'f>,
    kept: FxHashSet<Value>,
    /// The invocations of a workgroup.
    most: i64,
    /// Whether several workgroups may share a lane; the schedule then decides how many terms are unrolled.
    shared: bool,
    /// Whether invocations share blocks of the operands of products.
    blocks: bool,
    arrays: Vec<Array>,
    made: FxHashMap<Value, Made>,
    stages: Vec<Stage>,
    combined: u32,
    outer: &'f mut Puller<'a, R>,
}

impl<'f, 'a, R: Resolver> Frame<'f, 'a, R> {
    /// The frame of the body of loop `node`, mapped by `mapping`. `arrays` are those of carried values.
    pub(super) fn new(
        mapping: &'f Mapping,
        node: &'f Node,
        arrays: Vec<Array>,
        outer: &'f mut Puller<'a, R>,
    ) -> Frame<'f, 'a, R> {
        Frame {
            mapping,
            outside: Outside::of(node),
            kept: kept(mapping.body()),
            most: i64::from(mapping.profile.loop_invocations()),
            shared: mapping.room() >= 2.0 && reads_much(mapping.body(), &mapping.profile),
            blocks: in_blocks(mapping.body(), Outside::of(node).changing(), &mapping.profile),
            arrays,
            made: FxHashMap::default(),
            stages: vec![],
            combined: 0,
            outer,
        }
    }

    /// All arrays, and the stages that fill those which are not carried.
    pub(super) fn made(self) -> (Vec<Array>, Vec<Stage>) {
        (self.arrays, self.stages)
    }
}

impl<R: Resolver> Resolver for Frame<'_, '_, R> {
    fn body(&self) -> &Body {
        self.outer.body()
    }

    fn body_mut(&mut self) -> &mut Body {
        self.outer.body_mut()
    }

    fn resolve(&mut self, v: Value, index: &[Poly], guard: Option<ExprId>) -> Result<Source, String> {
        let graph = self.mapping.body();
        let input = graph.inputs.iter().position(|b| b.value == v);
        let node = graph.node(v.node);
        let staged = matches!(node.op, Op::Reduce { .. } | Op::ArgReduce { .. } | Op::Contract(_))
            && !is_small(graph, v.node)
            || self.kept.contains(&v);
        if input.is_none() && !staged || splat(graph, v).is_some() {
            return Ok(Source::Computed);
        }
        let e = match input {
            Some(i) => self.input(i, index, guard),
            None => self.staged(v, index, guard),
        };
        e.map(Source::Expr)
    }
}

impl<R: Resolver> Frame<'_, '_, R> {
    /// Calls `f` with a puller over the body of the loop, for a stage of these extents.
    pub(super) fn pull<T>(
        &mut self,
        domain: Vec<Dim>,
        f: impl FnOnce(&mut Puller<'_, &mut Self>) -> Result<T, String>,
    ) -> Result<T, String> {
        let mapping = self.mapping;
        let before = self.outer.over(domain.clone());
        let mut inner = Puller::new(mapping.body(), &mut *self, domain);
        inner.unroll = true;
        let result = f(&mut inner);
        self.outer.over(before);
        result
    }

    /// An element of an input of the body.
    fn input(&mut self, i: usize, index: &[Poly], guard: Option<ExprId>) -> Result<ExprId, String> {
        if i < self.outside.carried {
            let input = &self.mapping.body().inputs[i];
            let made = Made { array: i as u32, axes: self.mapping.axes_of(i).to_vec() };
            return self.element(input.value, &made, index, guard);
        }
        let (v, at) = self.outside.place(self.mapping, i, index);
        self.outer.pull(v, &at, guard)
    }

    /// An element of an array.
    fn element(
        &mut self,
        v: Value,
        made: &Made,
        index: &[Poly],
        guard: Option<ExprId>,
    ) -> Result<ExprId, String> {
        let ty = self.mapping.body().ty(v);
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
        Ok(self.outer.push(Expr::Shared { array: made.array, at, guard }, ty.dtype))
    }

    /// An element of a value with a stage of its own, which is built when it is first read.
    fn staged(&mut self, v: Value, index: &[Poly], guard: Option<ExprId>) -> Result<ExprId, String> {
        if !self.made.contains_key(&v) {
            let shape = &self.mapping.body().ty(v).shape;
            let mut free = vec![true; self.mapping.lanes.len()];
            let mut lane = |(p, d): (&Poly, &Dim)| {
                let l = p.as_var().filter(|l| free.get(*l) == Some(&true) && self.mapping.lanes[*l] == *d)?;
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

    /// Whether invocations share blocks of the operands of the product `v` with `n` elements.
    fn in_blocks(&self, v: Value, n: i64) -> bool {
        let product = matches!(self.mapping.body().node(v.node).op, Op::Contract(_));
        self.blocks && product && (BLOCKS..=self.most).contains(&n)
    }

    /// Adds the stage of a value; two if its terms are split.
    fn make(&mut self, v: Value, axes: &[Option<usize>]) -> Result<u32, String> {
        let mapping = self.mapping;
        let graph = mapping.body();
        let ty = graph.ty(v);
        let element = Poly::var(mapping.element());
        let (n, at) = own(&ty.shape, axes, &element, &|n| mapping.inside(n, 1))?;
        let Some(terms) = terms(graph, v)? else {
            let value = self.pull(mapping.inside(n, 1), |p| p.compute(v, &at, None))?;
            return Ok(self.push(n, ty.dtype, None, value));
        };
        let blocks = self.in_blocks(v, n);
        if !self.shared && !blocks && written_out(n, terms, &self.mapping.profile) == terms {
            let value = self.pull(mapping.inside(n, 1), |p| p.expand(v, &at, None))?;
            return Ok(self.push(n, ty.dtype, None, value));
        }
        // With few elements of many terms most invocations would be idle: each combines a part of the terms, and another stage combines
        // the parts.
        let parts = match &graph.node(v.node).op {
            Op::ArgReduce { .. } => 1,
            _ if self.shared || blocks => 1,
            _ => (2..=self.most / n).rev().find(|p| terms % p == 0 && terms / p >= 2).unwrap_or(1),
        };
        if parts == 1 {
            let (combined, value) = self.sum(v, (n, terms), &at, &Poly::clone)?;
            let value = self.outer.cast(value, ty.dtype);
            return Ok(self.push(n, ty.dtype, combined, value));
        }
        let domain = mapping.inside(n * parts, terms / parts);
        let part = element.modulo(&Poly::constant(parts), &domain);
        let whole = element.div(&Poly::constant(parts), &domain);
        let (_, at) = own(&ty.shape, axes, &whole, &|_| domain.clone())?;
        let (combined, value) = self.sum(v, (n * parts, terms / parts), &at, &|t| &(t * parts) + &part)?;
        let wide = self.outer.body().dtype(value);
        let array = self.push(n * parts, wide, combined, value);
        let op = reduced(graph, v).ok_or("the operator is not a reduction")?;
        let (combined, value) = self.join(array, (n, parts), op)?;
        let value = self.outer.cast(value, ty.dtype);
        Ok(self.push(n, ty.dtype, combined, value))
    }

    /// Combines `parts` neighbouring elements of an array for each of `n` elements: in one expression if they are few, else through
    /// further stages, or one after another if their number has no suitable divisors.
    fn join(
        &mut self,
        mut array: u32,
        (n, mut parts): (i64, i64),
        op: ReduceOp,
    ) -> Result<(Option<Combined>, ExprId), String> {
        let dtype = self.arrays[array as usize].dtype;
        let element = Poly::var(self.mapping.element());
        while parts > PARTS {
            let divides = |fewer: &i64| parts % fewer == 0 && parts / fewer <= PARTS;
            let Some(fewer) = (2..parts).filter(divides).min_by_key(|fewer| fewer + parts / fewer) else {
                break;
            };
            let each = parts / fewer;
            let value = self.together(op, array, &(&element * each), each);
            array = self.push(n * fewer, dtype, None, value);
            parts = fewer;
        }
        let first = &element * parts;
        if parts <= PARTS {
            return Ok((None, self.together(op, array, &first, parts)));
        }
        let group = AT_ONCE[0];
        let rest = self.together(op, array, &first, parts % group);
        let next = &(&first + &Poly::constant(parts % group)) + &(&Poly::var(self.mapping.term()) * group);
        let each = self.together(op, array, &next, group);
        let (combined, acc) = self.combine(parts / group, kind_of(op), each)?;
        Ok((Some(combined), self.outer.all(op, &[acc, rest], dtype)))
    }

    /// The combination of `count` neighbouring elements of an array from `first` on.
    fn together(&mut self, op: ReduceOp, array: u32, first: &Poly, count: i64) -> ExprId {
        let dtype = self.arrays[array as usize].dtype;
        let at = |i: i64| Expr::Shared { array, at: first + &Poly::constant(i), guard: None };
        let all: Vec<ExprId> = (0..count).map(|i| self.outer.push(at(i), dtype)).collect();
        self.outer.all(op, &all, dtype)
    }

    /// The combination of `v`'s terms for each of `n` elements: the first terms unrolled, the others in a loop.
    fn sum(
        &mut self,
        v: Value,
        (n, terms): (i64, i64),
        at: &[Poly],
        place: &dyn Fn(&Poly) -> Poly,
    ) -> Result<(Option<Combined>, ExprId), String> {
        let mapping = self.mapping;
        let term = Poly::var(mapping.term());
        let Some(op) = reduced(mapping.body(), v) else {
            let (value, kind) = self.pull(mapping.inside(n, terms), |p| term_of(p, v, at, &place(&term)))?;
            let (combined, acc) = self.combine(terms, kind, value)?;
            return Ok((Some(combined), acc));
        };
        let blocks = self.in_blocks(v, n);
        let written = if self.shared || blocks { 0 } else { written_out(n, terms, &self.mapping.profile) };
        let rest = terms - written;
        let groups = if blocks { &SIDE_BY_SIDE[..] } else { &AT_ONCE };
        let group = groups.iter().copied().find(|g| *g <= rest).unwrap_or(1);
        let written = written + rest % group;
        let times = rest / group;
        let mut first = vec![];
        for i in 0..written {
            let here = place(&Poly::constant(i));
            first.push(self.pull(mapping.inside(n, times.max(1)), |p| term_of(p, v, at, &here))?.0);
        }
        let dtype = first.first().map(|e| self.outer.body().dtype(*e));
        if times == 0 {
            let dtype = dtype.ok_or("a reduction of no elements")?;
            return Ok((None, self.outer.all(op, &first, dtype)));
        }
        let mut each = vec![];
        for i in 0..group {
            let here = place(&(&(&term * group) + &Poly::constant(written + i)));
            each.push(self.pull(mapping.inside(n, times), |p| term_of(p, v, at, &here))?);
        }
        let kind = each[0].1;
        let each: Vec<ExprId> = each.into_iter().map(|e| e.0).collect();
        let dtype = self.outer.body().dtype(each[0]);
        let value = self.outer.all(op, &each, dtype);
        let (combined, acc) = self.combine(times, kind, value)?;
        first.insert(0, acc);
        Ok((Some(combined), self.outer.all(op, &first, dtype)))
    }

    fn combine(&mut self, terms: i64, kind: ReduceKind, value: ExprId) -> Result<(Combined, ExprId), String> {
        let dtype = match kind {
            ReduceKind::Arg { .. } => DType::I64,
            _ => self.outer.body().dtype(value),
        };
        let acc = self.combined;
        self.combined += 1;
        if self.combined > COMBINED {
            return Err(format!("a step combines more than {COMBINED} times"));
        }
        let result = self.outer.push(Expr::Acc(acc), dtype);
        let reduction = Reduction { kind, value, dtype };
        Ok((Combined { terms: terms as u32, acc, reduction }, result))
    }

    /// Adds a stage that writes `value` to a new array.
    fn push(&mut self, n: i64, dtype: DType, combined: Option<Combined>, value: ExprId) -> u32 {
        let array = self.arrays.len() as u32;
        self.arrays.push(Array { dtype, len: n as u32 });
        let writes = vec![Write { array, value }];
        self.stages.push(Stage { elements: n as u32, combined, writes, stores: vec![] });
        array
    }
}
