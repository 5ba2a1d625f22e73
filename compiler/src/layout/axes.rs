//! The axes of a tensor, and the conversion between offsets and indices along the axes.

use crate::kernel::bounds::compared;
use crate::kernel::{Body, ExprId};
use wgfc_ir::{Atom, Dim, Poly};

/// A tensor's axes of more than one element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Axes {
    pub extents: Vec<Dim>,
    /// Elements between consecutive indices in row-major order.
    pub strides: Vec<i64>,
}

impl Axes {
    /// The axes of a shape; `None` unless all extents but the first are constant.
    pub fn of(shape: &[Dim]) -> Option<Axes> {
        let extents: Vec<Dim> = shape.iter().filter(|d| !d.is(1)).cloned().collect();
        let mut strides = vec![1i64; extents.len()];
        for i in (1..extents.len()).rev() {
            strides[i - 1] = strides[i].checked_mul(extents[i].as_const().filter(|n| *n > 0)?)?;
        }
        Some(Axes { extents, strides })
    }

    /// The strides if axis `last` is innermost.
    pub fn moved_strides(&self, last: usize) -> Vec<i64> {
        let mut strides = vec![1i64; self.extents.len()];
        let mut each = self.extents[last].as_const().unwrap_or(1);
        for i in (0..self.extents.len()).rev().filter(|i| *i != last) {
            strides[i] = each;
            each = each.saturating_mul(self.extents[i].as_const().unwrap_or(1));
        }
        strides
    }

    /// The shape with axis `last` innermost, padded to the same number of axes.
    pub fn moved_shape(&self, shape: &[Dim], last: usize) -> Vec<Dim> {
        let ones = vec![Dim::ONE; shape.len() - self.extents.len()];
        let others = (0..self.extents.len()).filter(|i| *i != last);
        let mut new: Vec<Dim> = others.map(|i| self.extents[i].clone()).collect();
        new.extend(ones);
        new.push(self.extents[last].clone());
        new
    }

    /// The index along each axis that an offset stands for. Each is proven to be inside its axis where the guard holds, except for the
    /// outermost axis if its extent is symbolic, which always stays outermost.
    pub fn indices(
        &self,
        offset: &Poly,
        body: &Body,
        guard: Option<ExprId>,
        domain: &[Dim],
    ) -> Option<Vec<Poly>> {
        let mut indices = vec![Poly::ZERO; self.extents.len()];
        for (m, c) in offset.terms() {
            if m.is_empty() {
                let mut left = c;
                for (index, stride) in indices.iter_mut().zip(&self.strides) {
                    *index = &*index + left / stride;
                    left %= stride;
                }
                continue;
            }
            let axis = self.strides.iter().position(|s| c % s == 0)?;
            let each =
                m.iter().fold(Poly::constant(c / self.strides[axis]), |t, a| &t * &Poly::atom(a.clone()));
            self.place(&mut indices, axis, &each, domain);
        }
        let inside = |i: usize| inside(&indices[i], &self.extents[i], body, guard, domain);
        let first = self.extents.first().is_some_and(|d| d.as_const().is_none());
        (usize::from(first)..indices.len()).all(inside).then_some(indices)
    }

    /// Adds an index along an axis; its excess over the extent is carried to the axes before it.
    fn place(&self, indices: &mut [Poly], axis: usize, index: &Poly, domain: &[Dim]) {
        let extent = &self.extents[axis];
        if axis == 0 || index.in_range(extent, domain) {
            indices[axis] = &indices[axis] + index;
            return;
        }
        // Splitting the dividend of a remainder gives simpler parts.
        let (high, low) = match index.as_atom() {
            Some(Atom::Mod(x, d)) if d.modulo(extent, &[]).is(0) => {
                (x.div(extent, domain).modulo(&d.div(extent, &[]), domain), x.modulo(extent, domain))
            }
            _ => (index.div(extent, domain), index.modulo(extent, domain)),
        };
        indices[axis] = &indices[axis] + &low;
        self.place(indices, axis - 1, &high, domain);
    }

    /// The offset of an element in the order with axis `last` innermost.
    pub fn offset(&self, indices: &[Poly], last: usize, domain: &[Dim]) -> Poly {
        let strides = self.moved_strides(last);
        let sum = indices.iter().zip(strides).fold(Poly::ZERO, |sum, (i, s)| &sum + &(i * s));
        // Quotients and remainders that were split are merged again.
        sum.subst(&|_| None, domain)
    }

    /// The row-major offset of the element at offset `place` of the order with axis `last` innermost.
    pub fn usual(&self, place: &Poly, last: usize, domain: &[Dim]) -> Poly {
        let strides = self.moved_strides(last);
        let mut sum = Poly::ZERO;
        for (i, (extent, stride)) in self.extents.iter().zip(&strides).enumerate() {
            let whole = place.div(&Poly::constant(*stride), domain);
            let outermost = if last == 0 { 1 } else { 0 };
            let index = if i == outermost { whole } else { whole.modulo(extent, domain) };
            sum = &sum + &(&index * self.strides[i]);
        }
        sum
    }

    /// The axes that can be innermost instead of the last one.
    pub fn candidates(&self) -> std::ops::Range<usize> {
        let first = self.extents.first().is_some_and(|d| d.as_const().is_none());
        usize::from(first)..self.extents.len().saturating_sub(1)
    }
}

/// Whether an index is proven to be in `0..extent` where a guard holds.
fn inside(index: &Poly, extent: &Dim, body: &Body, guard: Option<ExprId>, domain: &[Dim]) -> bool {
    let compared = guard.map_or_else(Vec::new, |g| compared(body, g, true));
    let least = index.proves_nonneg(domain) || compared.iter().any(|(small, large)| large - small == *index);
    let below = &(extent - index) - 1;
    let most = below.proves_nonneg(domain) || compared.iter().any(|(small, large)| large - small == below);
    least && most
}
