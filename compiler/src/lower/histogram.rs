//! Histograms.

use super::search::place;
use super::{Lowering, OpError, Result};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp as B, Body, DType, Dim, Op, Poly, ReduceOp, Scalar, Value};

/// The ends of the range of a histogram.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The ends; `None`, or two equal ends, stand for the minimum and the maximum of the data.
    pub given: Option<[f64; 2]>,
    /// The distance by which each end moves outwards if both are equal.
    pub apart: f64,
}

/// The ends of a range around the numbers of `x`, as scalars.
pub fn ends(cx: &mut Lowering, x: Value, p: &Ends) -> Result<[Value; 2]> {
    let dtype = cx.dtype(x);
    if let Some([low, high]) = p.given.filter(|[low, high]| low != high) {
        return Ok([cx.scalar(dtype, low), cx.scalar(dtype, high)]);
    }
    if p.given.is_none() && cx.ty(x).numel().is(0) {
        return Ok([cx.scalar(dtype, 0.0), cx.scalar(dtype, 1.0)]);
    }
    let axes: Vec<usize> = (0..cx.rank(x)).collect();
    let [low, high] = match p.given {
        Some([low, high]) if cx.ty(x).numel().is(0) => [cx.scalar(dtype, low), cx.scalar(dtype, high)],
        _ => [cx.reduce(ReduceOp::Min, x, &axes, false)?, cx.reduce(ReduceOp::Max, x, &axes, false)?],
    };
    let moved = |cx: &mut Lowering, v: Value, by: f64| {
        let mut f = Body::default();
        let (l, h, v0, by) = (f.arg(0), f.arg(1), f.arg(2), f.number(dtype, by));
        let one = f.binary(B::Eq, l, h);
        let away = f.binary(B::Add, v0, by);
        f.select(one, away, v0);
        cx.map(f.0, &[low, high, v])
    };
    Ok([moved(cx, low, -p.apart)?, moved(cx, high, p.apart)?])
}

/// `count` evenly spaced numbers from `low` to `high`, each computed from the nearer end.
pub fn spaced(cx: &mut Lowering, [low, high]: [Value; 2], count: i64) -> Result {
    let dtype = cx.dtype(low);
    let mut f = Body::default();
    let (l, h) = (f.arg(0), f.arg(1));
    let parts = f.number(dtype, (count - 1).max(1) as f64);
    let span = f.binary(B::Sub, h, l);
    let step = f.binary(B::Div, span, parts);
    let far = |f: &mut Body, p: Poly| {
        let i = f.index(p);
        let i = f.cast(dtype, i);
        f.binary(B::Mul, i, step)
    };
    let (up, down) = (far(&mut f, Poly::var(0)), far(&mut f, &Poly::from(count - 1) - &Poly::var(0)));
    let (up, down) = (f.binary(B::Add, l, up), f.binary(B::Sub, h, down));
    let (i, half) = (f.index(Poly::var(0)), f.i32(count / 2));
    let nearer = f.binary(B::Lt, i, half);
    if count > 1 {
        f.select(nearer, up, down);
    } else {
        let zero = f.number(dtype, 0.0);
        f.binary(B::Add, l, zero);
    }
    Ok(cx.map_to(f.0, &[low, high], vec![count.into()])?)
}

/// The bin of each number between sorted edges (i32), or -1 if it is in none. The last bin includes its upper edge.
fn bin(cx: &mut Lowering, x: Value, edges: Value) -> Result {
    let n = cx.shape(edges)[0].clone();
    let at = place(cx, edges, x, true)?;
    let last = cx.view(edges, vec![], vec![&n - 1])?;
    let mut f = Body::default();
    let (at0, x0, last0) = (f.arg(0), f.arg(1), f.arg(2));
    let (one, nowhere, bins) = (f.i32(1), f.i32(-1), f.index(&n - 1));
    let before = f.binary(B::Sub, at0, one);
    let is_last = f.binary(B::Eq, x0, last0);
    let inner = f.binary(B::Sub, bins, one);
    let before = f.select(is_last, inner, before);
    let behind = f.binary(B::Ge, before, bins);
    f.select(behind, nowhere, before);
    Ok(cx.map(f.0, &[at, x, last])?)
}

/// The sum of the weights (or the number) of the points `[count, axes]` in each cell of a grid with these edges along
/// each axis.
pub fn cells(cx: &mut Lowering, points: Value, edges: &[Value], weights: Option<Value>) -> Result {
    let dtype = cx.dtype(points);
    let count = cx.shape(cx.require_rank(points, 2)?)[0].clone();
    let shape: Vec<Dim> = edges.iter().map(|e| &cx.shape(*e)[0] - 1).collect();
    let total: Dim = shape.iter().product();
    let mut flat: Option<Value> = None;
    for (d, (e, extent)) in edges.iter().zip(&shape).enumerate() {
        let x = cx.slice(points, 1, &Poly::from(d), 1, &Dim::ONE)?;
        let x = cx.squeeze(x, &[1])?;
        let e = cx.cast(*e, dtype)?;
        let at = bin(cx, x, e)?;
        flat = Some(match flat {
            None => at,
            Some(before) => {
                let mut f = Body::default();
                let (b, a, n, none) = (f.arg(0), f.arg(1), f.index(extent.clone()), f.i32(-1));
                let row = f.binary(B::Mul, b, n);
                let cell = f.binary(B::Add, row, a);
                let first = f.binary(B::Min, b, a);
                let outside = f.binary(B::Le, first, none);
                f.select(outside, none, cell);
                cx.map(f.0, &[before, at])?
            }
        });
    }
    let Some(flat) = flat else { return Err(OpError::model("needs an axis")) };
    let weights = match weights {
        Some(w) => cx.cast(w, dtype)?,
        None => cx.full(&[count], Scalar::from_f64(dtype, 1.0))?,
    };
    let sums = counted(cx, flat, weights, &total)?;
    Ok(cx.reshape(sums, shape)?)
}

/// The sums of the weights `[n]` by place, for places below `total`; negative places are skipped.
pub fn counted(cx: &mut Lowering, places: Value, weights: Value, total: &Dim) -> Result {
    let mut f = Body::default();
    let (at, zero, end) = (f.arg(0), f.i32(0), f.index(total.clone()));
    // A scatter would count negative places from the end, so they are moved out of range.
    let outside = f.binary(B::Lt, at, zero);
    f.select(outside, end, at);
    let places = cx.map(f.0, &[places])?;
    let dtype = cx.dtype(weights);
    let none = cx.full(std::slice::from_ref(total), Scalar::from_i64(dtype, 0))?;
    let index = vec![GatherAxis::Data { input: 2, at: vec![Poly::var(0)] }];
    Ok(cx.push(Op::Scatter { reduce: Some(ReduceOp::Sum), index }, &[none, weights, places])?)
}

/// Normalises cells to a density: each divided by the total and by its volume.
pub fn density(cx: &mut Lowering, cells: Value, edges: &[Value]) -> Result {
    let axes: Vec<usize> = (0..edges.len()).collect();
    let sum = cx.reduce(ReduceOp::Sum, cells, &axes, true)?;
    let mut y = cx.binary(B::Div, cells, sum)?;
    for (d, e) in edges.iter().enumerate() {
        let n = &cx.shape(*e)[0] - 1;
        let (low, high) = (cx.slice(*e, 0, &Poly::ZERO, 1, &n)?, cx.slice(*e, 0, &Poly::ONE, 1, &n)?);
        let width = cx.binary(B::Sub, high, low)?;
        let mut shape = vec![Dim::ONE; edges.len()];
        shape[d] = n;
        let width = cx.reshape(width, shape)?;
        let dtype = cx.dtype(y);
        let width = cx.cast(width, dtype)?;
        y = cx.binary(B::Div, y, width)?;
    }
    Ok(y)
}

/// For each integer from 0 to `total - 1`, how often it occurs in `x`, or the sum of its weights.
pub fn of_integers(cx: &mut Lowering, x: Value, weights: Option<Value>, total: &Dim) -> Result {
    let places = cx.nearest_i32(x)?;
    let weights = match weights {
        Some(w) => w,
        None => {
            let n = cx.shape(x);
            cx.full(&n, Scalar::from_i64(DType::I64, 1))?
        }
    };
    counted(cx, places, weights, total)
}
