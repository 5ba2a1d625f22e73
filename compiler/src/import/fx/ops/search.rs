//! Searches in sorted sequences, and histograms.

use super::super::prelude::*;
use super::super::promote;
use crate::lower::histogram::{self, Ends};
use crate::lower::{gather, search};

/// The maximum number of bins if the program does not bound the values.
const PLACES: i64 = 1 << 16;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._histogramdd_bin_edges.default", cell_edges),
    OpDef::new("aten._histogramdd_from_bin_cts.default", |cx| {
        let edges = edges_of_counts(cx)?;
        cells(cx, &edges)
    }),
    OpDef::new("aten._histogramdd_from_bin_tensors.default", |cx| {
        let edges = cx.tensors("bins")?;
        cells(cx, &edges)
    }),
    OpDef::new("aten.bincount.default", bincount)
        .notes("Up to 65,536 places, unless the program says how many there are at most."),
    OpDef::new("aten.bucketize.Scalar|Tensor", |cx| searched(cx, "boundaries", "self")),
    OpDef::new("aten.histc.default", histc),
    OpDef::new("aten.histogram.bin_ct", |cx| {
        let x = cx.tensor("self")?;
        let (n, given) = (cx.int("bins")?, range(cx, 0)?);
        let ends = histogram::ends(cx, x, &Ends { given, apart: 0.5 })?;
        let edges = histogram::spaced(cx, ends, n + 1)?;
        counted(cx, x, edges)
    }),
    OpDef::new("aten.histogram.bins_tensor", |cx| {
        let (x, edges) = (cx.tensor("self")?, cx.tensor("bins")?);
        counted(cx, x, edges)
    }),
    OpDef::new("aten.histogramdd.TensorList_bins", |cx| {
        let edges = cx.tensors("bins")?;
        cells_and_edges(cx, edges)
    }),
    OpDef::new("aten.histogramdd.default|int_bins", |cx| {
        let edges = edges_of_counts(cx)?;
        cells_and_edges(cx, edges)
    }),
    OpDef::new("aten.searchsorted.Scalar|Tensor", |cx| searched(cx, "sorted_sequence", "self")),
];

fn searched(cx: &mut Cx, sequence: &str, values: &str) -> Lowered {
    let (mut s, v) = (cx.tensor(sequence)?, cx.operand(values)?);
    let right = cx.flag("right")? || cx.declares("side") && cx.text("side")?.as_deref() == Some("right");
    if cx.declares("sorter")
        && let Some(order) = cx.opt_tensor("sorter")?
    {
        let rank = cx.rank(s);
        s = gather::elements(cx, s, order, rank.saturating_sub(1))?;
    }
    let dtype = promote::common(&[promote::Kind::Tensor(cx.dtype(s)), cx.kind(&v)]);
    let (s, v) = (cx.converted(s, dtype)?, cx.in_type(&v, dtype)?);
    let at = search::place(cx, s, v, right)?;
    let to = cx.result_dtype(0)?;
    Ok(vec![cx.converted(at, to)?])
}

/// The range of an axis, if ranges are given.
fn range(cx: &Cx, axis: usize) -> Result<Option<[f64; 2]>> {
    let Some(v) = cx.opt_floats("range")? else { return Ok(None) };
    match v.get(2 * axis..2 * axis + 2) {
        Some(r) => Ok(Some([r[0], r[1]])),
        None => Err(OpError::model(format!("has {} numbers", v.len())).param("range")),
    }
}

fn histc(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let (n, low, high) = (cx.int("bins")?, cx.float("min")?, cx.float("max")?);
    let ends = histogram::ends(cx, x, &Ends { given: Some([low, high]), apart: 1.0 })?;
    let edges = histogram::spaced(cx, ends, n + 1)?;
    let count: Dim = cx.shape(x).iter().product();
    let points = cx.reshape(x, vec![count, Dim::ONE])?;
    Ok(vec![histogram::cells(cx, points, &[edges], None)?])
}

/// The histogram along one axis, and its bin edges.
fn counted(cx: &mut Cx, x: Value, edges: Value) -> Lowered {
    let count: Dim = cx.shape(x).iter().product();
    let points = cx.reshape(x, vec![count, Dim::ONE])?;
    Ok(vec![weighed(cx, points, &[edges])?, edges])
}

fn weighed(cx: &mut Cx, points: Value, edges: &[Value]) -> Result {
    let count = cx.shape(points)[0].clone();
    let weights = match cx.opt_tensor("weight")? {
        Some(w) => Some(cx.reshape(w, vec![count])?),
        None => None,
    };
    let sums = histogram::cells(cx, points, edges, weights)?;
    if cx.flag("density")? { histogram::density(cx, sums, edges) } else { Ok(sums) }
}

/// The points as rows; the extent of the last axis is the number of coordinates.
fn points(cx: &mut Cx) -> Result {
    let x = cx.tensor("self")?;
    let shape = cx.shape(x);
    let Some((last, lead)) = shape.split_last() else {
        return Err(OpError::model("needs an axis of points").operand(x));
    };
    Ok(cx.reshape(x, vec![lead.iter().product(), last.clone()])?)
}

fn edges_of_counts(cx: &mut Cx) -> Lowered {
    let points = points(cx)?;
    let mut edges = vec![];
    let mut bins = cx.ints("bins")?;
    if let ([n], Some(axes)) = (&bins[..], cx.shape(points)[1].as_const()) {
        bins = vec![*n; usize::try_from(axes).unwrap_or(1)];
    }
    for (d, n) in bins.into_iter().enumerate() {
        let x = cx.slice(points, 1, &d.into(), 1, &Dim::ONE)?;
        let given = range(cx, d)?;
        let ends = histogram::ends(cx, x, &Ends { given, apart: 0.5 })?;
        edges.push(histogram::spaced(cx, ends, n + 1)?);
    }
    Ok(edges)
}

fn cell_edges(cx: &mut Cx) -> Lowered {
    edges_of_counts(cx)
}

fn cells_and_edges(cx: &mut Cx, edges: Vec<Value>) -> Lowered {
    let mut out = cells(cx, &edges)?;
    out.extend(edges);
    Ok(out)
}

fn cells(cx: &mut Cx, edges: &[Value]) -> Lowered {
    let points = points(cx)?;
    Ok(vec![weighed(cx, points, edges)?])
}

/// Counts of integers. The number of bins is the maximum plus 1, and at least `minlength`.
fn bincount(cx: &mut Cx) -> Lowered {
    let (x, least) = (cx.tensor("self")?, cx.size("minlength")?);
    let weights = cx.opt_tensor("weights")?;
    let to = cx.result_dtype(0)?;
    let weights = match weights {
        Some(w) => Some(cx.converted(w, to)?),
        None => None,
    };
    let n = cx.shape(x);
    let total = match cx.numbers(x) {
        Some(known) => {
            let most = known.iter().fold(-1.0f64, |a, b| a.max(*b)) as i64 + 1;
            Dim::from(most).max_of(&least, &[])
        }
        None if n.iter().any(|d| d.is(0)) => least,
        None => {
            let bound = cx.most(0, 0).unwrap_or(PLACES.into());
            cx.require_open_sizes(x)?;
            let most = cx.reduce(wgfc_ir::ReduceOp::Max, x, &[0], false)?;
            let most = cx.cast(most, DType::I64)?;
            let most = cx.binary_scalar(BinaryOp::Add, most, 1.0)?;
            let least = cx.dim_scalar(&least, DType::I64)?;
            let most = cx.binary(BinaryOp::Max, most, least)?;
            cx.computed_size(most, bound)
        }
    };
    let y = histogram::of_integers(cx, x, weights, &total)?;
    Ok(vec![cx.converted(y, to)?])
}
