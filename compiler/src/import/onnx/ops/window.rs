//! Sliding windows: what convolutions and pools have in common.

use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, OpError};
use wgfc_ir::build::WindowAxis;
use wgfc_ir::{Dim, Op, Poly, Scalar, Value};

/// Kernel, strides, dilations and padding of a node, one each per spatial axis.
pub(super) struct Windows {
    /// Extents of the window.
    pub kernel: Vec<Dim>,
    /// Distances between windows.
    pub strides: Vec<i64>,
    /// Distances between elements of a window.
    pub dilations: Vec<i64>,
    /// Padding before.
    pub before: Vec<Dim>,
    /// Padding after.
    pub after: Vec<Dim>,
    /// Numbers of windows.
    pub out: Vec<Dim>,
}

impl Windows {
    /// Reads `strides`, `dilations`, `pads`, `auto_pad` and `ceil_mode`. `spatial` are the extents of the input.
    pub fn read(cx: &Cx, spatial: &[Dim], kernel: Vec<Dim>) -> Result<Windows, OpError> {
        let n = spatial.len();
        if kernel.len() != n {
            return Err(OpError::model(format!("a window of {} axes over {n} spatial axes", kernel.len()))
                .attribute("kernel_shape"));
        }
        let list = |name: &str, default: i64, len: usize, least: i64| -> Result<Vec<i64>, OpError> {
            let v = cx.ints(name)?.unwrap_or_else(|| vec![default; len]);
            if v.len() != len {
                let e = OpError::model(format!("{} values for {n} spatial axes", v.len()));
                return Err(e.attribute(name));
            }
            match v.iter().find(|x| **x < least || **x > 1 << 31) {
                Some(x) => Err(OpError::model(format!("value {x}")).attribute(name)),
                None => Ok(v),
            }
        };
        let strides = list("strides", 1, n, 1)?;
        let dilations = list("dilations", 1, n, 1)?;
        let auto = cx.string("auto_pad", "NOTSET")?;
        let ceil = cx.flag("ceil_mode", false)?;
        let pads: Vec<Dim> = match auto.as_str() {
            "NOTSET" | "" => {
                list("pads", 0, 2 * n, i64::from(i32::MIN))?.into_iter().map(Poly::constant).collect()
            }
            "VALID" | "SAME_UPPER" | "SAME_LOWER" => vec![Dim::ZERO; 2 * n],
            other => {
                return Err(OpError::model(format!("auto_pad `{other}`")).attribute("auto_pad"));
            }
        };
        let mut w = Windows {
            kernel,
            strides,
            dilations,
            before: pads[..n].to_vec(),
            after: pads[n..].to_vec(),
            out: vec![],
        };
        for (i, d) in spatial.iter().enumerate() {
            let (s, reach) = (w.strides[i], w.reach(i));
            if auto.starts_with("SAME") {
                let out = d.ceil_div(s);
                let total = &(&(&(&out - 1) * s) + &reach) - d;
                let total = total.max_of(&Dim::ZERO, &[]);
                let half = total.div(&Poly::constant(2), &[]);
                let rest = &total - &half;
                (w.before[i], w.after[i]) = if auto == "SAME_UPPER" { (half, rest) } else { (rest, half) };
                w.out.push(out);
                continue;
            }
            let room = &(&(d + &w.before[i]) + &w.after[i]) - &reach;
            let out = if ceil {
                // A window must start inside the input or the padding before it.
                let most = (d + &w.before[i]).ceil_div(s);
                (&room.ceil_div(s) + 1).min_of(&most, &[])
            } else {
                &room.div(&Poly::constant(s), &[]) + 1
            };
            if out.as_const().is_some_and(|c| c < 1) {
                return Err(OpError::model(format!(
                    "the window ({reach} wide) is larger than the input ({d})"
                )));
            }
            w.out.push(out);
        }
        Ok(w)
    }

    /// How far a window reaches along spatial axis `i`.
    pub fn reach(&self, i: usize) -> Dim {
        &(&(&self.kernel[i] - 1) * self.dilations[i]) + 1
    }

    /// As the builder wants them.
    pub fn axes(&self) -> Vec<WindowAxis> {
        (0..self.kernel.len())
            .map(|i| WindowAxis {
                kernel: self.kernel[i].clone(),
                stride: self.strides[i],
                dilation: self.dilations[i],
                pad: self.before[i].clone(),
                out: self.out[i].clone(),
            })
            .collect()
    }
}

/// `kernel_shape` as extents.
pub(super) fn kernel_attr(cx: &Cx) -> Result<Option<Vec<Dim>>, OpError> {
    let Some(k) = cx.ints("kernel_shape")? else { return Ok(None) };
    if let Some(bad) = k.iter().find(|k| **k < 1 || **k > 1 << 31) {
        return Err(OpError::model(format!("extent {bad}")).attribute("kernel_shape"));
    }
    Ok(Some(k.into_iter().map(Poly::constant).collect()))
}
