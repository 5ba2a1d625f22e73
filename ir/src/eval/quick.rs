//! Products for [`Prepared`](super::Prepared) graphs: in f32, by `gemm`, without copies of views that have steps along each axis, and with
//! only as much of other views as one product needs. A convolution is a product with the windows of its input, which is such a view.

use super::array::{Array, Buf, Elem, narrow, strides};
use super::index::{Index, merge};
use super::view::Rows;
use super::{Env, EvalError};
use crate::dtype::DType;
use crate::graph::{Graph, Node, NodeId, Value};
use crate::op::{Contract, Op};
use crate::poly::Poly;
use crate::storage;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// The views that their only reader, a product, evaluates.
pub(super) fn deferred(graph: &Graph, order: &[NodeId], reads: &HashMap<Value, usize>) -> HashSet<NodeId> {
    let products = order.iter().map(|n| graph.node(*n)).filter(|n| matches!(n.op, Op::Contract(_)));
    let operands = products.flat_map(|n| n.inputs.iter().copied()).filter(|v| in_f32(graph.ty(*v).dtype));
    operands
        .filter(|v| matches!(graph.node(v.node).op, Op::View { .. }) && reads.get(v) == Some(&1))
        .map(|v| v.node)
        .collect()
}

/// Whether elements of this type are held and computed in f32.
fn in_f32(dtype: DType) -> bool {
    dtype.is_float() && dtype != DType::F64
}

/// Evaluates a product of f32 or narrower floats; `None` for other nodes, and for products of views that have to be evaluated first.
pub(super) fn product(
    graph: &Graph,
    node: &Node,
    deferred: &HashSet<NodeId>,
    values: &HashMap<Value, Array>,
    env: &Env,
) -> Result<Option<Array>, EvalError> {
    let (Op::Contract(c), [a, b]) = (&node.op, node.inputs.as_slice()) else { return Ok(None) };
    let dtype = graph.ty(*a).dtype;
    if !in_f32(dtype) {
        return Ok(None);
    }
    let operand = |v: Value, labels| Operand::of(graph, v, labels, deferred, values, env);
    contract(c, &operand(*a, &c.a)?, &operand(*b, &c.b)?, dtype, env)
}

/// An operand of a product: an array, or a view of it.
struct Operand<'a> {
    x: &'a [f32],
    from: &'a [usize],
    shape: Vec<usize>,
    labels: &'a [u8],
    view: Option<(&'a [Poly], Option<f32>)>,
}

impl<'a> Operand<'a> {
    fn of(
        graph: &'a Graph,
        v: Value,
        labels: &'a [u8],
        deferred: &HashSet<NodeId>,
        values: &'a HashMap<Value, Array>,
        env: &Env,
    ) -> Result<Operand<'a>, EvalError> {
        let none = || EvalError::at("an operand has no value".into());
        let node = graph.node(v.node);
        match &node.op {
            Op::View { shape, index, fill } if deferred.contains(&v.node) => {
                let x = values.get(&node.inputs[0]).ok_or_else(none)?;
                let fill =
                    fill.map(|s| f32::from_scalar(storage::from_raw(x.dtype, storage::to_raw(x.dtype, s))));
                let view = Some((index.as_slice(), fill));
                Ok(Operand { x: floats(x)?, from: &x.shape, shape: env.shape(shape)?, labels, view })
            }
            _ => {
                let x = values.get(&v).ok_or_else(none)?;
                Ok(Operand { x: floats(x)?, from: &x.shape, shape: x.shape.clone(), labels, view: None })
            }
        }
    }

    fn extent(&self, label: u8) -> usize {
        self.labels.iter().zip(&self.shape).find(|(l, _)| **l == label).map_or(1, |(_, d)| *d)
    }

    /// The elements with the axes in this order; `None` if they are no rows.
    fn arranged(&self, order: &[u8], env: &Env) -> Result<Option<Rows<f32>>, EvalError> {
        let places: Vec<usize> =
            order.iter().filter_map(|l| self.labels.iter().position(|m| m == l)).collect();
        let shape: Vec<usize> = places.iter().map(|p| self.shape[*p]).collect();
        let mut vars = vec![Poly::ZERO; self.shape.len()];
        places.iter().enumerate().for_each(|(i, p)| vars[*p] = Poly::var(i));
        let Some((index, fill)) = self.view else {
            let axes = vars.iter().map(|v| Index::new(v, &shape, env)).collect::<Result<Vec<_>, _>>()?;
            return Ok(Rows::new(self.from, &axes, &shape, None));
        };
        let axes = index.iter().map(|p| Index::new(&p.subst_vars(&vars, &[]), &shape, env));
        Ok(Rows::new(self.from, &axes.collect::<Result<Vec<_>, _>>()?, &shape, fill))
    }
}

fn floats(x: &Array) -> Result<&[f32], EvalError> {
    f32::slice(&x.data).ok_or_else(|| EvalError::at("an operand is not f32".into()))
}

/// The number of elements of a copied part of a matrix: 256 KiB, which second-level caches hold.
const CACHED: usize = 1 << 16;

/// An operand as matrices of some rows and columns, one for each element of the batch.
enum Matrices<'a> {
    /// Elements in memory: the offset of each matrix, and the steps from row to row and from column to column.
    Placed { x: &'a [f32], starts: Vec<usize>, row: usize, col: usize },
    /// Elements to copy, matrix by matrix, row by row.
    Copied { x: &'a [f32], rows: Rows<f32>, size: usize, cols: usize },
}

impl<'a> Matrices<'a> {
    fn new(
        o: &Operand<'a>,
        [batch, rows, cols]: [&[u8]; 3],
        env: &Env,
    ) -> Result<Option<Matrices<'a>>, EvalError> {
        let order = [batch, rows, cols].concat();
        let Some(copied) = o.arranged(&order, env)? else { return Ok(None) };
        let size = |ls: &[u8]| ls.iter().map(|l| o.extent(*l)).product::<usize>();
        let columns = size(cols);
        if let Some((base, steps)) = copied.steps() {
            let (over, steps) = steps.split_at(batch.len());
            let walk = |ls: &[u8], steps: &[usize]| {
                merge(
                    ls.iter()
                        .map(|l| o.extent(*l))
                        .zip(steps.iter().copied())
                        .collect::<Vec<_>>()
                        .into_iter(),
                )
            };
            let (r, c) = (walk(rows, &steps[..rows.len()]), walk(cols, &steps[rows.len()..]));
            if let ([row], [col]) = (r.as_slice(), c.as_slice()) {
                let starts = starts(base, batch.iter().map(|l| o.extent(*l)).zip(over.iter().copied()));
                return Ok(Some(Matrices::Placed { x: o.x, starts, row: row.1, col: col.1 }));
            }
        }
        let size = size(rows) * size(cols);
        Ok(Some(Matrices::Copied { x: o.x, rows: copied, size, cols: columns }))
    }

    /// The number of columns that are taken together: of copied ones only so many as stay in a cache.
    fn width(&self, rows: usize, columns: usize) -> usize {
        match self {
            Matrices::Placed { .. } => columns,
            Matrices::Copied { .. } => (CACHED / rows).next_multiple_of(64).max(256).min(columns),
        }
    }

    /// Some columns of matrix `i`: elements, and the steps from row to row and from column to column.
    fn columns<'m>(
        &'m self,
        i: usize,
        columns: Range<usize>,
        buffer: &'m mut Vec<f32>,
    ) -> (&'m [f32], usize, usize) {
        match self {
            Matrices::Placed { x, starts, row, col } => (&x[starts[i] + columns.start * col..], *row, *col),
            Matrices::Copied { x, rows, size, cols } => {
                let width = columns.len();
                buffer.resize(size / cols * width, 0.0);
                for (row, to) in buffer.chunks_mut(width).enumerate() {
                    rows.copy(x, i * size + row * cols + columns.start, to);
                }
                (buffer, width, 1)
            }
        }
    }
}

/// The offsets of the points of a domain in row-major order.
fn starts(base: usize, axes: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    axes.fold(vec![base], |starts, (n, step)| {
        starts.iter().flat_map(|s| (0..n).map(move |i| s + i * step)).collect()
    })
}

fn contract(
    c: &Contract,
    a: &Operand<'_>,
    b: &Operand<'_>,
    dtype: DType,
    env: &Env,
) -> Result<Option<Array>, EvalError> {
    let mut extent: BTreeMap<u8, usize> = BTreeMap::new();
    for (l, d) in a.labels.iter().zip(&a.shape).chain(b.labels.iter().zip(&b.shape)) {
        if extent.insert(*l, *d).is_some_and(|e| e != *d) {
            return Err(EvalError::at(format!("inner dimensions of {:?} and {:?} differ", a.shape, b.shape)));
        }
    }
    let shape: Vec<usize> = c.out.iter().map(|l| extent.get(l).copied().unwrap_or(0)).collect();
    let total = env.numel(&shape)?;
    let (batch, mut m, mut n, k) = (c.batch(), c.m(), c.n(), c.k());
    let seen = batch.len() + k.len();
    if seen + m.len() != c.a.len() || seen + n.len() != c.b.len() {
        return Ok(None);
    }
    let size = |ls: &[u8]| ls.iter().map(|l| extent[l]).product::<usize>();
    env.spend((total as u64).saturating_mul(size(&k) as u64))?;
    let mut out = vec![0f32; total];
    // The second operand has the labels that the result ends with, so that rows of the result are contiguous.
    let (mut a, mut b) = (a, b);
    if c.out.last().is_some_and(|l| m.contains(l)) {
        ((a, m), (b, n)) = ((b, n), (a, m));
    }
    let places: BTreeMap<u8, usize> = c.out.iter().copied().zip(strides(&shape)).collect();
    let walk = |ls: &[u8]| merge(ls.iter().map(|l| (extent[l], places[l])).collect::<Vec<_>>().into_iter());
    let (r, s) = (walk(&m), walk(&n));
    let ([row], [col]) = (r.as_slice(), s.as_slice()) else { return Ok(None) };
    if total > 0 && size(&k) > 0 {
        let to = starts(0, batch.iter().map(|l| (extent[l], places[l])));
        let x = Matrices::new(a, [&batch, &m, &k], env)?;
        let y = Matrices::new(b, [&batch, &k, &n], env)?;
        let (Some(x), Some(y)) = (x, y) else { return Ok(None) };
        products(&x, &y, &mut out, (&to, row.1, col.1), (size(&m), size(&n), size(&k)));
    }
    let mut out = Buf::F32(out);
    narrow(dtype, &mut out);
    Ok(Some(Array::new(dtype, shape, out)))
}

fn products(
    x: &Matrices<'_>,
    y: &Matrices<'_>,
    out: &mut [f32],
    (to, row, col): (&[usize], usize, usize),
    (nm, nn, nk): (usize, usize, usize),
) {
    let (mut left, mut right) = (vec![], vec![]);
    let width = y.width(nk, nn);
    for (i, to) in to.iter().enumerate() {
        let (x, x_row, x_col) = x.columns(i, 0..nk, &mut left);
        // The windows of one channel alone.
        if let (1, 1, Matrices::Copied { x: y, rows, size, cols }) = (nm, col, y) {
            let dst = &mut out[*to..to + nn];
            (0..nk).for_each(|l| rows.add(y, i * size + l * cols, x[l * x_col], dst));
            continue;
        }
        for begin in (0..nn).step_by(width) {
            let n = width.min(nn - begin);
            let (y, y_row, y_col) = y.columns(i, begin..begin + n, &mut right);
            let dst = &mut out[to + begin * col..];
            if nm == 1 && col == 1 && y_col == 1 {
                combine(&mut dst[..n], (0..nk).map(|l| (x[l * x_col], &y[l * y_row..l * y_row + n])));
            } else {
                super::fast::gemm((nm, n, nk), (dst, row, col), (x, x_row, x_col), (y, y_row, y_col));
            }
        }
    }
}

/// The number of elements that are summed together, which stay in the fastest cache.
const STRIP: usize = 1024;

/// The sum of rows, each times a number.
fn combine<'a>(out: &mut [f32], terms: impl Iterator<Item = (f32, &'a [f32])> + Clone) {
    for (s, strip) in out.chunks_mut(STRIP).enumerate() {
        for (factor, row) in terms.clone() {
            let row = &row[s * STRIP..][..strip.len()];
            strip.iter_mut().zip(row).for_each(|(o, r)| *o += factor * r);
        }
    }
}
