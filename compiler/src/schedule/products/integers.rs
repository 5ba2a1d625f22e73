//! Products with quantised weights, computed in integers.
//!
//! Rows are rounded to 8 bits in groups of [`GROUP`] elements with a scale each (the greatest magnitude over 127), which is what
//! llama.cpp and the accuracy level 4 of ONNX Runtime's `MatMulNBits` do. Four products of bytes are then one instruction,
//! `dot4I8Packed`, and a weight of 4 bits needs no conversion.

use super::problem::{Operands, Problem};
use super::{Room, Thin, ThinShape, TileShape, TiledIntegers};
use crate::device::DeviceProfile;
use crate::kernel::integers::affine;
use crate::kernel::substitute::{K, substitute};
use crate::kernel::{Body, GROUP, Kernel};
use wgfc_ir::{Class, Dim, Poly};

/// The least number of elements that share a scale.
pub const LEAST: u32 = 16;

/// How the weights of a product are integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integers {
    /// Neighbouring k whose weights share a scale, 32 or 16.
    pub unit: u32,
    /// Whether weights have less than 8 bits: then bytes are the even and the odd elements of eight neighbours.
    pub pairs: bool,
    /// Whether they are floats of 4 bits, of which a word of signs is multiplied beside one of magnitudes.
    pub floats: bool,
    /// Whether a number is added to them, for which sums of the rows are needed.
    pub offsets: bool,
}

impl Integers {
    /// In blocks of `k`.
    pub fn in_blocks(self, k: u32) -> Integers {
        Integers { unit: self.unit.min(k), ..self }
    }

    /// Bytes of workgroup memory of so many rows of `depth` integers with the scales of their units.
    pub fn bytes(self, rows: u32, depth: u32) -> u32 {
        rows * (depth + depth / self.unit * self.scale_bytes())
    }

    /// Bytes of what is kept for a unit: its scale, and its sum where that is needed.
    pub fn scale_bytes(self) -> u32 {
        if self.offsets { 8 } else { 4 }
    }
}

impl TiledIntegers {
    /// Whether a product of this depth has whole steps for it, and its parts are whole.
    pub fn suits(&self, depth: &Dim) -> bool {
        let TileShape { rows, cols, k, thread_rows, thread_cols, split } = self.shape;
        let whole = |n: u32, of: u32| n > 0 && of > 0 && of.is_multiple_of(n);
        split == 1
            && matches!(self.buffers, 1 | 2)
            && whole(GROUP, k)
            && whole(4, thread_rows)
            && whole(4, thread_cols)
            && whole(thread_rows, rows)
            && whole(thread_cols, cols)
            && depth.as_const().is_some_and(|depth| depth % i64::from(k) == 0)
    }

    /// Bytes of workgroup memory, with scales, and maybe offsets, of so many neighbours along k.
    pub fn workgroup_bytes(&self, unit: u32, offsets: bool) -> u32 {
        let TileShape { rows, cols, k, .. } = self.shape;
        let (groups, units) = (k / GROUP, k / unit.max(1));
        let sums = if offsets { units * (rows + cols) } else { 0 };
        self.buffers * ((rows + cols) * k + 4 * (groups * rows + units * cols + sums))
    }
}

/// How the weights of a product whose rows may be rounded are integers, if all are.
pub fn integers(kernel: &Kernel, o: &Operands) -> Option<Integers> {
    let group = Poly::constant(GROUP.into());
    if !o.depth.modulo(&group, &[]).is(0) || o.depth.as_const().is_none() {
        return None;
    }
    let mut domain = kernel.domain();
    let variables = domain.len();
    domain[K] = o.depth.div(&group, &[]);
    let mut out = Integers { unit: GROUP, pairs: true, floats: false, offsets: false };
    let (mut bytes, mut fields, mut floats) = (false, false, false);
    for root in &o.ys {
        let mut body = Body::default();
        let mut elements = vec![];
        for i in 0..i64::from(GROUP) {
            let mut vars: Vec<Poly> = (0..variables).map(Poly::var).collect();
            vars[K] = &(&vars[K] * i64::from(GROUP)) + &i.into();
            let ids = substitute(&kernel.body, &mut body, &[*root], &vars, &domain);
            elements.push(ids.get(*root as usize).copied().flatten()?);
        }
        let unit = crate::kernel::integers::unit(&mut body, &elements)?;
        out.unit = out.unit.min(unit as u32);
        for elements in elements.chunks(unit) {
            let form = affine(&mut body, elements)?;
            out.offsets |= form.zero != 0 || form.offset.is_some();
            for dtype in form.terms.iter().map(|t| t.dtype) {
                match dtype.bits() {
                    8 => bytes = true,
                    _ if dtype.class() == Class::Float => floats = true,
                    _ => fields = true,
                }
            }
        }
    }
    (out.pairs, out.floats) = (!bytes, floats);
    ([bytes, fields, floats].iter().filter(|kind| **kind).count() == 1).then_some(out)
}

/// Blocks for few rows whose rows are rounded, where the device has room for them.
pub fn thin(shape: ThinShape, p: &Problem, device: &DeviceProfile) -> Option<Thin> {
    let integers = p.integers?.in_blocks(shape.k);
    let depth = p.depth.as_const().and_then(|k| u32::try_from(k).ok()).filter(|k| *k <= 1 << 16)?;
    if !shape.depth_first || shape.k < LEAST {
        return None;
    }
    let subgroup = device.subgroup.unwrap_or(1);
    let bytes = device.max_workgroup_bytes.checked_sub(integers.bytes(shape.rows, depth))?;
    let room = Room { bytes, subgroup };
    (shape.round(p.results, room) >= shape.accumulators(p.results).min(8)).then_some(Thin {
        shape,
        staged: true,
        integers: true,
        bytes,
        subgroup,
    })
}
