//! `RoiAlign`: samples of regions, averaged or their largest.

use super::gather::indices;
use super::heads::as_shape;
use super::sample::{Mode, Padding, Sampled, weighted};
use crate::import::Cx;
use crate::import::op::{Lowered, OpDef, OpError};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, ReduceOp, Value};

type Result<T = Value> = std::result::Result<T, OpError>;

/// The attributes.
struct Pool {
    /// Height and width of the result.
    out: [i64; 2],
    /// Samples along each axis of a bin.
    samples: i64,
    scale: f64,
    half_pixel: bool,
}

fn read(cx: &Cx) -> Result<Pool> {
    let extent = |name: &str| match cx.int(name, 1)? {
        v if (1..=1 << 20).contains(&v) => Ok(v),
        v => Err(OpError::model(format!("extent {v}")).attribute(name)),
    };
    let samples = match cx.int("sampling_ratio", 0)? {
        v if (1..=1 << 10).contains(&v) => v,
        0 => {
            let e = "0: as many samples as the regions are large, which depends on data";
            return Err(OpError::unsupported(e)
                .attribute("sampling_ratio")
                .help("export the model with a fixed `sampling_ratio`"));
        }
        v => return Err(OpError::model(format!("{v} samples")).attribute("sampling_ratio")),
    };
    let half_pixel = match cx.string("coordinate_transformation_mode", "half_pixel")?.as_str() {
        _ if cx.since < 16 => false,
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => {
            let e = OpError::model(format!("`{other}`"));
            return Err(e.attribute("coordinate_transformation_mode"));
        }
    };
    Ok(Pool {
        out: [extent("output_height")?, extent("output_width")?],
        samples,
        scale: cx.float("spatial_scale", 1.0)?.into(),
        half_pixel,
    })
}

impl Pool {
    /// Positions `[regions, bins, samples]` along one axis; `rois [R, 4]` has its bounds in these columns.
    fn positions(&self, cx: &mut Cx, rois: Value, columns: [usize; 2], bins: i64) -> Result {
        let regions = cx.shape(rois)[0].clone();
        let bound = |cx: &mut Cx, column: usize| -> Result {
            let v = cx.view(
                rois,
                vec![regions.clone(), Dim::ONE, Dim::ONE],
                vec![Poly::var(0), Poly::from(column)],
            )?;
            let v = cx.binary_scalar(B::Mul, v, self.scale)?;
            Ok(if self.half_pixel { cx.binary_scalar(B::Sub, v, 0.5)? } else { v })
        };
        let (start, end) = (bound(cx, columns[0])?, bound(cx, columns[1])?);
        let mut size = cx.binary(B::Sub, end, start)?;
        if !self.half_pixel {
            size = cx.binary_scalar(B::Max, size, 1.0)?;
        }
        let bin = cx.binary_scalar(B::Div, size, bins as f64)?;
        let shape = [regions, bins.into(), self.samples.into()];
        let first = cx.iota(&shape, Poly::var(1), DType::F32)?;
        let offset = cx.iota(&shape, &(Poly::var(2) * 2) + 1, DType::F32)?;
        let offset = cx.binary_scalar(B::Div, offset, 2.0 * self.samples as f64)?;
        let offset = cx.binary(B::Add, first, offset)?;
        let offset = cx.binary(B::Mul, offset, bin)?;
        Ok(cx.binary(B::Add, start, offset)?)
    }
}

fn roi_align(cx: &mut Cx) -> Lowered {
    let (x, rois) = (cx.input_of_rank(0, 4)?, cx.input_of_rank(1, 2)?);
    let sx = cx.shape(x);
    let sr = [cx.shape(rois)[0].clone(), 4i64.into()];
    let rois = as_shape(cx, rois, &sr).map_err(|e| cx.at_input(1, e))?;
    cx.input_of_rank(2, 1)?;
    let batch = indices(cx, 2)?;
    let of_batch = cx.shape(batch)[0].clone();
    cx.require_equal(&of_batch, &sr[0]);
    let largest = match cx.string("mode", "avg")?.as_str() {
        "avg" => false,
        "max" => true,
        other => return Err(OpError::model(format!("`{other}`")).attribute("mode")),
    };
    let pool = read(cx)?;
    let rois = cx.cast(rois, DType::F32)?;
    // Result: region, channel, bins, samples, taps.
    let mut shape = vec![sr[0].clone(), sx[1].clone()];
    shape.extend(pool.out.map(Dim::from));
    shape.extend([Dim::from(pool.samples), pool.samples.into(), 2i64.into(), 2i64.into()]);
    let mut taps = vec![];
    for (i, columns) in [[1, 3], [0, 2]].into_iter().enumerate() {
        let at = pool.positions(cx, rois, columns, pool.out[i])?;
        let extent = sx[2 + i].clone();
        let axis = Sampled {
            extent: extent.clone(),
            mode: Mode::Linear,
            padding: Padding::Border,
            align_corners: false,
        };
        let mut t = axis.taps(cx, at)?;
        // More than an element outside, nothing is sampled.
        let limit = cx.dim_scalar(&extent, DType::F32)?;
        let (above, below) = (cx.binary_scalar(B::Ge, at, -1.0)?, cx.binary(B::Le, at, limit)?);
        let inside = cx.binary(B::And, above, below)?;
        let inside = cx.unsqueeze(inside, &[3])?;
        let zero = cx.scalar(DType::F32, 0.0);
        t.weight = cx.select(inside, t.weight, zero)?;
        let at = vec![Poly::var(0), Poly::var(2 + i), Poly::var(4 + i), Poly::var(6 + i)];
        taps.push((t, at));
    }
    let lead = vec![GatherAxis::Data { input: 1, at: vec![Poly::var(0)] }, GatherAxis::Affine(Poly::var(1))];
    let parts = weighted(cx, x, &shape, lead, &[batch], &taps)?;
    let inner: Vec<usize> = (4..8).collect();
    let y = if largest {
        cx.reduce(ReduceOp::Max, parts, &inner, false)?
    } else {
        let sum = cx.reduce(ReduceOp::Sum, parts, &inner, false)?;
        cx.binary_scalar(B::Div, sum, (pool.samples * pool.samples) as f64)?
    };
    let dtype = cx.dtype(x);
    Ok(vec![cx.cast(y, dtype)?])
}

/// `RoiAlign`.
pub const OPS: &[OpDef] = &[OpDef::new("RoiAlign", &[10, 16, 22], roi_align)
    .cases(&["test_roialign_"])
    .notes("`sampling_ratio` must be positive")];
