//! Combining scatters that sort their updates by row first. The updates of a row of the data are then adjacent, and each row combines its
//! own one after another, in their original order.
//!
//! A row is selected by one index; axes that the data and the updates share are its columns. A row with many updates would take one lane
//! a long time. So the sorted updates are cut into chunks: a chunk whose updates all go to one row is combined beforehand, by lanes of
//! its own, and the row uses the result for the whole chunk.

use super::{GatherAxis, Graph, Made, Op, Poly, ReduceOp, Scalar, Value, fixed, is_large};
use crate::Options;
use crate::fuse::unit::searched;
use crate::kernel::combines;
use crate::rewrite::sorts;
use crate::schedule::sorts::most_keys;
use wgfc_ir::build::Builder;
use wgfc_ir::{BinaryOp as B, Body, Border, Class, DType, Dim, NodeId, TensorType};

/// Updates of a chunk: about the square root of the number of updates, within these bounds; [`CHUNK`] if that number is not constant.
const CHUNKS: [i64; 2] = [32, 1024];
const CHUNK: i64 = 256;
/// The lanes of a row keep a device busy if it has at most this many resident invocations per lane.
const BUSY: f64 = 4.0;
/// The most updates that rows combine without chunks.
const FEW: i64 = 64;
/// Columns per lane, with the least number of lanes per resident invocation for which that is chosen: the cost of finding the updates is
/// then shared.
const WIDTHS: [(i64, f64); 2] = [(16, 64.0), (4, 0.0)];

/// Replaces scatters for which this form is estimated to be faster than that with updates in arbitrary order.
pub fn lower(graph: &mut Graph, options: &Options) -> Result<(), String> {
    let mut any = false;
    for n in graph.node_ids().collect::<Vec<_>>() {
        let Some(rows) = Rows::of(graph, n) else { continue };
        if rows.in_order(graph, options) < rows.in_any_order(graph, options) {
            let new = rows.combined(graph, options)?;
            crate::fuse::loops::prepare::replace(graph, n, &[new]);
            any = true;
        }
    }
    if any {
        graph.remove_dead();
        sorts::expand(graph, &options.profile, sorts::SHORT)?;
    }
    Ok(())
}

/// A scatter whose indices select whole rows.
struct Rows {
    node: NodeId,
    how: ReduceOp,
    index: Vec<GatherAxis>,
    /// The axes of the data that indices select along, and the other axes.
    chosen: Vec<usize>,
    columns: Vec<usize>,
    /// The axes of the updates that enumerate updates, and those that are columns, in the columns' order.
    listed: Vec<usize>,
    beside: Vec<usize>,
    /// The type in which elements are combined.
    dtype: DType,
}

impl Rows {
    fn of(graph: &Graph, n: NodeId) -> Option<Rows> {
        let node = graph.node(n);
        let Op::Scatter { reduce: Some(how), index } = &node.op else { return None };
        let (data, updates) = (graph.ty(node.inputs[0]), graph.ty(node.inputs[1]));
        let dtype = match data.dtype.class() {
            Class::Float => DType::F32,
            Class::Int if data.dtype.bits() < 64 => DType::I32,
            Class::Uint if data.dtype.bits() < 64 => DType::U32,
            Class::Bool => return None,
            _ => data.dtype,
        };
        if combines(*how, data.dtype) || combines(*how, dtype) || !is_large(graph, n, index) {
            return None;
        }
        let fixed = fixed(index, updates.rank());
        let alike =
            |(i, f): (usize, &Option<usize>)| f.is_none_or(|axis| data.shape[axis] == updates.shape[i]);
        if !fixed.iter().enumerate().all(alike) {
            return None;
        }
        let listed: Vec<usize> = (0..updates.rank()).filter(|i| fixed[*i].is_none()).collect();
        let mut beside: Vec<usize> = (0..updates.rank()).filter(|i| fixed[*i].is_some()).collect();
        beside.sort_by_key(|i| fixed[*i]);
        let columns: Vec<usize> = beside.iter().filter_map(|i| fixed[*i]).collect();
        let chosen: Vec<usize> = (0..data.rank()).filter(|d| !columns.contains(d)).collect();
        let over_listed = |p: &Poly| p.data().is_empty() && p.vars().iter().all(|v| listed.contains(v));
        let same = chosen.iter().all(|d| match &index[*d] {
            GatherAxis::Affine(p) => over_listed(p),
            GatherAxis::Data { input, at } => *input > 1 && at.iter().all(over_listed),
        });
        let (how, index) = (*how, index.clone());
        same.then_some(Rows { node: n, how, index, chosen, columns, listed, beside, dtype })
    }

    fn extents(&self, graph: &Graph) -> [Dim; 3] {
        let node = graph.node(self.node);
        let of = |v: Value, axes: &[usize]| axes.iter().map(|d| graph.ty(v).shape[*d].clone()).product();
        let (data, updates) = (node.inputs[0], node.inputs[1]);
        [of(data, &self.chosen), of(updates, &self.listed), of(data, &self.columns)]
    }

    /// The estimated seconds of this form.
    fn in_order(&self, graph: &Graph, options: &Options) -> f64 {
        let s = &options.profile.speeds;
        let extents = self.extents(graph);
        let [rows, n, columns] = [0, 1, 2].map(|i| options.expect.extent(&extents[i]));
        let chunk = chunk(&extents[1]) as f64;
        let bits = graph.ty(graph.node(self.node).inputs[0]).dtype.bits() as f64;
        let moved = (2.0 * rows + n) * columns * bits / 8.0;
        // Each pass over the keys reads and writes them, and searches for places.
        let passes = (n / most_keys(&options.profile) as f64).log2().max(0.0).ceil() + 2.0;
        let sorted = passes * n * SORTED / s.bandwidth;
        // The number of updates that one row waits for, if all rows have equally many.
        let each = n / rows;
        let waits = each.min(chunk + each / chunk) + if each > chunk { chunk } else { 0.0 };
        let waits = waits * 2.0 * s.memory_latency * s.cycle();
        moved / s.bandwidth + sorted + waits + (passes + 4.0) * s.dispatch_cost
    }

    /// The estimated seconds of the form with updates in arbitrary order.
    fn in_any_order(&self, graph: &Graph, options: &Options) -> f64 {
        let s = &options.profile.speeds;
        let extents = self.extents(graph);
        let [rows, n, columns] = [0, 1, 2].map(|i| options.expect.extent(&extents[i]));
        // Bytes moved per element of the data and per update, and the number of dispatches.
        let (data, update, dispatches) = match (self.how, self.dtype.class()) {
            (ReduceOp::Sum, _) => (40.0, 40.0, 5.0),
            (ReduceOp::Prod, Class::Float) => (72.0, 80.0, 9.0),
            (ReduceOp::Prod, _) => (48.0, 56.0, 7.0),
            _ if self.dtype.bits() == 64 => (40.0, 40.0, 5.0),
            _ => (16.0, 12.0, 3.0),
        };
        (rows * data + n * update) * columns / s.bandwidth + dispatches * s.dispatch_cost
    }

    /// Builds this form. Returns the scatter's result.
    fn combined(&self, graph: &mut Graph, options: &Options) -> Made {
        let node = graph.node(self.node).clone();
        let [rows, n, columns] = self.extents(graph);
        let most = searched(graph, self.node, &self.index);
        debug_assert_eq!(most, n);
        let b = &mut Builder { graph, origin: node.origin.clone() };
        let (data, updates) = (node.inputs[0], node.inputs[1]);
        let (shape, dtype) = (b.shape(data), b.dtype(data));
        let width = width(options.expect.extent(&rows), &columns, options);
        let columns = vec![columns.div(&Poly::constant(width), &[]), Dim::from(width)];
        let wide = |extent: &Dim| [std::slice::from_ref(extent), &columns].concat();

        let perm = [&self.chosen[..], &self.columns].concat();
        let data = b.transpose(data, &perm)?;
        let moved = b.shape(data);
        let data = b.cast(data, self.dtype)?;
        let data = b.reshape(data, wide(&rows))?;
        let updates = b.transpose(updates, &[&self.listed[..], &self.beside].concat())?;
        let updates = b.reshape(updates, wide(&n))?;

        let places = self.places(b, &node.inputs, &shape)?;
        let sorted = b.push(Op::TopK { axis: 0, k: n.clone(), largest: false }, &[places])?.node;
        let order = b.cast(Value { node: sorted, port: 1 }, DType::I32)?;
        let sorted = Value { node: sorted, port: 0 };

        // If one row has enough lanes to keep the device busy, each lane may take long, and chunks are not needed.
        let lanes = columns[0].as_const().unwrap_or(1) as f64;
        let few = n.as_const().is_some_and(|n| n <= FEW) || lanes * BUSY >= options.profile.speeds.resident;
        let chunk = if few { None } else { Some(chunk(&n)) };
        let l = Listed { n: n.clone(), rows: rows.clone(), chunk, sorted, order };
        let begins = l.begins(b)?;
        let sources = l.sources(b)?;
        let chunks = match chunk {
            Some(chunk) => Some(l.chunks(b, updates, chunk, self)?),
            None => None,
        };
        let all = l.rows(b, data, begins, sources, updates, chunks, self)?;
        let all = b.cast(all, dtype)?;
        let all = b.reshape(all, moved)?;
        let mut back = vec![0; perm.len()];
        for (i, d) in perm.iter().enumerate() {
            back[*d] = i;
        }
        b.transpose(all, &back)
    }

    /// The row (i32) of each update; the number of rows if it is out of bounds.
    fn places(&self, b: &mut Builder<'_>, inputs: &[Value], shape: &[Dim]) -> Made {
        let mut dims: Vec<Dim> = vec![];
        let mut vars = vec![Poly::ZERO; b.rank(inputs[1])];
        for (i, d) in self.listed.iter().enumerate() {
            vars[*d] = Poly::var(i);
            dims.push(b.shape(inputs[1])[*d].clone());
        }
        let mut f = Body::default();
        let mut args = vec![];
        let (mut row, mut inside) = (None, None);
        let mut rows = Dim::ONE;
        for d in self.chosen.iter().rev() {
            let extent = &shape[*d];
            let at = match &self.index[*d] {
                GatherAxis::Affine(p) => f.index(p.subst_vars(&vars, &dims)),
                GatherAxis::Data { input, at } => {
                    let at = at.iter().map(|p| p.subst_vars(&vars, &dims)).collect();
                    let index = b.view(inputs[*input], dims.clone(), at)?;
                    let mut e = f.arg(args.len() as u32);
                    args.push(index);
                    if b.dtype(index) != DType::I32 {
                        let t = b.dtype(index);
                        let [least, most] = [i32::MIN, i32::MAX].map(|v| f.int(t, i64::from(v)));
                        e = f.binary(B::Max, e, least);
                        e = f.binary(B::Min, e, most);
                        e = f.cast(DType::I32, e);
                    }
                    let (zero, from_end) = (f.i32(0), f.index(extent.clone()));
                    let negative = f.binary(B::Lt, e, zero);
                    let from_end = f.binary(B::Add, e, from_end);
                    f.select(negative, from_end, e)
                }
            };
            let (zero, end, step) = (f.i32(0), f.index(extent.clone()), f.index(rows.clone()));
            let (low, high) = (f.binary(B::Ge, at, zero), f.binary(B::Lt, at, end));
            let here = f.binary(B::And, low, high);
            inside = Some(inside.map_or(here, |i| f.binary(B::And, i, here)));
            let part = f.binary(B::Mul, at, step);
            row = Some(row.map_or(part, |r| f.binary(B::Add, r, part)));
            rows = &rows * extent;
        }
        let nowhere = f.index(rows);
        match (inside, row) {
            (Some(inside), Some(row)) => f.select(inside, row, nowhere),
            _ => f.i32(0),
        };
        let places = b.map_to(f.0, &args, dims.clone())?;
        b.reshape(places, vec![dims.iter().product()])
    }

    fn identity(&self) -> Scalar {
        self.how.identity(self.dtype)
    }

    fn combine(&self) -> B {
        self.how.operator()
    }
}

/// Bytes per key and pass, including the search.
const SORTED: f64 = 48.0;

/// Columns that a lane takes.
fn width(rows: f64, columns: &Dim, options: &Options) -> i64 {
    let Some(columns) = columns.as_const() else { return 1 };
    let lanes = |width: i64| rows * columns as f64 / width as f64 / options.profile.speeds.resident;
    let fits = |(width, least): &&(i64, f64)| columns % width == 0 && lanes(*width) >= *least;
    WIDTHS.iter().find(fits).map_or(1, |(width, _)| *width)
}

/// The number of updates of a chunk.
fn chunk(n: &Dim) -> i64 {
    let Some(n) = n.as_const() else { return CHUNK };
    let root = 1i64 << (n.max(1).ilog2() / 2);
    root.clamp(CHUNKS[0], CHUNKS[1])
}

/// The updates sorted by row.
struct Listed {
    /// The number of updates and of rows.
    n: Dim,
    rows: Dim,
    chunk: Option<i64>,
    /// The row of each update, and its original number.
    sorted: Value,
    order: Value,
}

impl Listed {
    /// The row of the update `by` positions later; −1 beyond the last.
    fn beyond(&self, b: &mut Builder<'_>, by: i64) -> Made {
        let fill = Some(Scalar::from_i64(DType::I32, -1));
        let index = vec![&Poly::var(0) + by];
        b.push(Op::View { shape: vec![self.n.clone()], index, fill }, &[self.sorted])
    }

    /// The position of each row's first update; −1 if it has none.
    fn begins(&self, b: &mut Builder<'_>) -> Made {
        let none = b.full(std::slice::from_ref(&self.rows), Scalar::from_i64(DType::I32, -1))?;
        let before = self.beyond(b, -1)?;
        let mut f = Body::default();
        let (own, other, nowhere) = (f.arg(0), f.arg(1), f.i32(i64::from(i32::MAX)));
        let same = f.binary(B::Eq, own, other);
        f.select(same, nowhere, own);
        let to = b.map(f.0, &[self.sorted, before])?;
        let number = b.iota(std::slice::from_ref(&self.n), Poly::var(0), DType::I32)?;
        let index = vec![GatherAxis::Data { input: 2, at: vec![Poly::var(0)] }];
        b.push(Op::Scatter { reduce: None, index }, &[none, number, to])
    }

    /// The sources that a row combines at each position: the number of an update, or the number of updates plus that of a whole chunk.
    /// The sign bit marks the last source of a row.
    fn sources(&self, b: &mut Builder<'_>) -> Made {
        let next = self.beyond(b, 1)?;
        let mut f = Body::default();
        let (own, number, next_row) = (f.arg(0), f.arg(1), f.arg(2));
        let mut args = vec![self.sorted, self.order, next];
        let (mut source, mut follows) = (number, next_row);
        if let Some(chunk) = self.chunk {
            args.push(self.beyond(b, chunk - 1)?);
            args.push(self.beyond(b, chunk)?);
            let (last, behind) = (f.arg(3), f.arg(4));
            let (i, by, zero) = (f.index(Poly::var(0)), f.i32(chunk), f.i32(0));
            let rest = f.binary(B::Mod, i, by);
            let begins = f.binary(B::Eq, rest, zero);
            let same = f.binary(B::Eq, own, last);
            let whole = f.binary(B::And, begins, same);
            let (of, n) = (f.binary(B::Div, i, by), f.index(self.n.clone()));
            let of = f.binary(B::Add, of, n);
            source = f.select(whole, of, source);
            follows = f.select(whole, behind, follows);
        }
        let (more, sign) = (f.binary(B::Eq, own, follows), f.i32(i64::from(i32::MIN)));
        let last = f.binary(B::Or, source, sign);
        f.select(more, source, last);
        b.map(f.0, &args)
    }

    /// The combined updates of each chunk whose updates all go to one row.
    fn chunks(&self, b: &mut Builder<'_>, updates: Value, chunk: i64, of: &Rows) -> Made {
        let shape = b.shape(updates);
        let count = self.n.div(&Poly::constant(chunk), &[]);
        let whole = [std::slice::from_ref(&count), &shape[1..]].concat();
        let row = |b: &mut Builder<'_>, at: i64| {
            b.view(self.sorted, vec![count.clone(), Dim::ONE, Dim::ONE], vec![&(&Poly::var(0) * chunk) + at])
        };
        let (first, last) = (row(b, 0)?, row(b, chunk - 1)?);
        let alive = b.binary(B::Eq, first, last)?;
        let none = b.full(&whole, of.identity())?;
        let index = vec![&(&Poly::var(1) * chunk) + &Poly::var(0)];
        let order = b.view(self.order, vec![chunk.into(), count], index)?;
        let inputs = [alive, none, order, updates];
        let body = step(b, &inputs, 2, |s, v| {
            let number = number(s, v[2])?;
            let update = s.take(v[3], number, 0)?;
            let update = s.cast(update, of.dtype)?;
            let sum = s.binary(of.combine(), v[1], update)?;
            Ok(vec![v[0], s.select(v[0], sum, v[1])?])
        })?;
        let node = b.push(scan(body, 2), &inputs)?.node;
        Ok(Value { node, port: 1 })
    }

    /// Each row of the data combined with its updates.
    #[expect(clippy::too_many_arguments, reason = "each is a tensor that the loop reads")]
    fn rows(
        &self,
        b: &mut Builder<'_>,
        data: Value,
        begins: Value,
        sources: Value,
        updates: Value,
        chunks: Option<Value>,
        of: &Rows,
    ) -> Made {
        let begins = b.reshape(begins, vec![self.rows.clone(), Dim::ONE, Dim::ONE])?;
        let alive = b.binary_scalar(B::Ge, begins, 0.0)?;
        // A row's updates: those before its first whole chunk, its whole chunks, and those after them.
        let steps = match self.chunk {
            Some(chunk) => &self.n.div(&Poly::constant(chunk), &[]) + 2 * chunk,
            None => self.n.clone(),
        };
        let numbers = b.iota(&[steps], Poly::var(0), DType::I32)?;
        let inputs: Vec<Value> =
            [alive, begins, data, numbers, sources, updates].into_iter().chain(chunks).collect();
        let body = step(b, &inputs, 3, |s, v| {
            let at = s.reshape(v[1], vec![self.rows.clone()])?;
            let at = number(s, at)?;
            let source = s.take(v[4], at, 0)?;
            let more = s.binary_scalar(B::Ge, source, 0.0)?;
            let number = number(s, source)?;
            let mut all = s.cast(v[5], of.dtype)?;
            if let Some(chunks) = v.get(6) {
                all = s.concat(&[all, *chunks], 0)?;
            }
            let one = s.take(all, number, 0)?;
            let sum = s.binary(of.combine(), v[2], one)?;
            let mut f = Body::default();
            let (number_0, n, single) = (f.arg(0), f.index(self.n.clone()), f.i32(1));
            let (is_chunk, chunk) = (f.binary(B::Ge, number_0, n), f.i32(self.chunk.unwrap_or(1)));
            f.select(is_chunk, chunk, single);
            let by = s.map(f.0, &[number])?;
            let lane = vec![self.rows.clone(), Dim::ONE, Dim::ONE];
            let (by, more) = (s.reshape(by, lane.clone())?, s.reshape(more, lane)?);
            let further = s.binary(B::Add, v[1], by)?;
            let alive = s.binary(B::And, v[0], more)?;
            Ok(vec![alive, s.select(v[0], further, v[1])?, s.select(v[0], sum, v[2])?])
        })?;
        let node = b.push(scan(body, 3), &inputs)?.node;
        Ok(Value { node, port: 2 })
    }
}

/// The body of a loop over `inputs`, of which the first `carried` are carried and the next one is scanned; `make` computes the new
/// carried values.
fn step(
    b: &Builder<'_>,
    inputs: &[Value],
    carried: usize,
    make: impl FnOnce(&mut Builder<'_>, &[Value]) -> Made<Vec<Value>>,
) -> Made<Graph> {
    let mut g = Graph::new();
    let of = |(i, v): (usize, &Value)| {
        let ty = b.ty(*v);
        let shape = if i == carried { ty.shape[1..].to_vec() } else { ty.shape.clone() };
        g.add_input(&format!("x{i}"), TensorType::new(ty.dtype, shape))
    };
    let values: Vec<Value> = inputs.iter().enumerate().map(of).collect();
    let after = make(&mut Builder { graph: &mut g, origin: b.origin.clone() }, &values)?;
    for (i, value) in after.into_iter().enumerate() {
        g.outputs.push(Border { name: format!("y{i}").into(), value });
    }
    Ok(g)
}

/// `x` without its sign bit, which makes it known to be non-negative.
fn number(b: &mut Builder<'_>, x: Value) -> Made {
    let mut f = Body::default();
    let (x_0, mask) = (f.arg(0), f.i32(i64::from(i32::MAX)));
    f.binary(B::And, x_0, mask);
    b.map(f.0, &[x])
}

fn scan(body: Graph, carried: usize) -> Op {
    let body = Box::new(body);
    Op::Scan { body, carried, scanned: 1, reverse_inputs: vec![false], reverse_outputs: vec![] }
}

#[cfg(test)]
mod tests;
