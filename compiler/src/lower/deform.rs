//! Deformable convolution: an input shifts the positions at which the windows sample.

use super::conv::{Conv, Groups, channel_bias};
use super::sample::{Mode, Padding, Sampled, spread, weighted};
use super::window::Windows;
use super::{Lowering, OpError, Result};
use wgfc_ir::op::{GatherAxis, show};
use wgfc_ir::{BinaryOp as B, DType, Dim, Poly, ReduceOp, Value};

/// `x [N, C, spatial…]`, `w [M, C/G, kernel…]`, `offset [N, groups·kernel·axes, out…]` and optionally a bias `[M]` and
/// a mask `[N, groups·kernel, out…]`, where `groups` is the number of offset groups.
pub fn deform_conv(
    cx: &mut Lowering,
    [x, w, offset]: [Value; 3],
    bias: Option<Value>,
    mask: Option<Value>,
    groups: i64,
    p: &Conv,
) -> Result {
    let given = offset;
    let (sx, sw, so) = (cx.shape(x), cx.shape(w), cx.shape(offset));
    let rank = sx.len();
    if rank < 3 || sw.len() != rank || so.len() != rank {
        return Err(OpError::model(format!(
            "weights {} and offsets {} for an input {}",
            show(&sw),
            show(&so),
            show(&sx)
        )));
    }
    let n = rank - 2;
    let Some(per_group) = sx[1].as_const().filter(|c| groups > 0 && c % groups == 0).map(|c| c / groups)
    else {
        let e = OpError::model(format!("{groups} groups of {} channels", sx[1]));
        return Err(e.param("offset_group"));
    };
    let channels = Groups::of(cx, x, w, p.groups)?;
    let windows = Windows::over(&sx[2..], sw[2..].to_vec(), &p.window)?;
    let (kernel, out) = (&sw[2..], &windows.out);
    let mut split = vec![sx[0].clone(), groups.into()];
    split.extend(kernel.iter().cloned());
    let mut with_axis = split.clone();
    with_axis.push(Dim::from(n));
    with_axis.extend(out.iter().cloned());
    let offset = cx.reshape(offset, with_axis).map_err(|e| OpError::from(e).operand(given))?;
    let offset = cx.cast(offset, DType::F32)?;
    split.extend(out.iter().cloned());

    // The axes of the samples: batch, channel, kernel, output positions, then one tap axis for each spatial axis.
    let mut shape = vec![sx[0].clone(), sx[1].clone()];
    shape.extend(split[2..].iter().cloned());
    let columns = shape.clone();
    shape.extend(std::iter::repeat_n(Dim::from(2i64), n));
    let group = Poly::var(1).div(&per_group.into(), &shape);
    let mut taps = vec![];
    for i in 0..n {
        let mut index: Vec<Poly> = (0..2 + n).map(Poly::var).collect();
        index.push(Poly::from(i));
        index.extend((2 + n..2 + 2 * n).map(Poly::var));
        let moved = spread(cx, offset, &split, &index)?;
        let (o, k) = (Poly::var(2 + n + i) * windows.strides[i], Poly::var(2 + i) * windows.dilations[i]);
        let at = cx.iota(&split, &(&o + &k) - &windows.before[i], DType::F32)?;
        let at = cx.binary(B::Add, at, moved)?;
        let axis = Sampled {
            extent: sx[2 + i].clone(),
            mode: Mode::Linear,
            padding: Padding::Zeros,
            align_corners: false,
        };
        let t = axis.taps(cx, at)?;
        let mut at = vec![Poly::var(0), group.clone()];
        at.extend((2..2 + 2 * n).map(Poly::var));
        at.push(Poly::var(2 + 2 * n + i));
        taps.push((t, at));
    }
    let lead = vec![GatherAxis::Affine(Poly::var(0)), GatherAxis::Affine(Poly::var(1))];
    let parts = weighted(cx, x, &shape, lead, &[], &taps)?;
    let mut sampled = cx.reduce(ReduceOp::Sum, parts, &(2 + 2 * n..2 + 3 * n).collect::<Vec<_>>(), false)?;
    if let Some(given) = mask {
        let mask = cx.reshape(given, split).map_err(|e| OpError::from(e).operand(given))?;
        let mask = cx.cast(mask, DType::F32)?;
        let mut index = vec![Poly::var(0), group];
        index.extend((2..2 + 2 * n).map(Poly::var));
        let mask = spread(cx, mask, &columns, &index)?;
        sampled = cx.binary(B::Mul, sampled, mask)?;
    }
    let dtype = cx.dtype(x);
    let sampled = cx.cast(sampled, dtype)?;
    // The axis order of an unfolded input: channel, output positions, kernel.
    let perm: Vec<usize> = (0..2).chain(2 + n..2 + 2 * n).chain(2..2 + n).collect();
    let unfolded = cx.transpose(sampled, &perm)?;
    let split = channels.split(&cx.shape(unfolded));
    let unfolded = cx.reshape(unfolded, split)?;
    let y = channels.product(cx, unfolded, w)?;
    match bias {
        Some(b) => channel_bias(cx, y, b),
        None => Ok(y),
    }
}
