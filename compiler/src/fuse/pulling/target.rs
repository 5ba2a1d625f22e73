//! The target positions of updates.

use super::{Puller, Resolver, flat_offset};
use crate::kernel::ExprId;
use wgfc_ir::{Atom, BinaryOp, Dim, GatherAxis, Poly, Value};

impl<R: Resolver> Puller<'_, R> {
    /// The flat offset in a tensor of `shape` of the element that the update at `from` goes to, and the condition that it is inside.
    /// Indices supplied by `given` are not read.
    pub fn target(
        &mut self,
        inputs: &[Value],
        index: &[GatherAxis],
        shape: &[Dim],
        from: &[Poly],
        given: &dyn Fn(usize) -> Option<ExprId>,
    ) -> Result<(Poly, Option<ExprId>), String> {
        let (mut to, mut guard) = (vec![], None);
        for (ax, d) in index.iter().zip(shape) {
            to.push(match ax {
                GatherAxis::Affine(q) => q.subst_vars(from, &self.domain),
                GatherAxis::Data { input, at } => {
                    let e = match given(*input) {
                        Some(e) => self.saturated(e),
                        None => self.index_element(inputs[*input], at, from, None)?,
                    };
                    let e = self.wrap(e, d);
                    let (zero, end) = (self.index(Poly::ZERO), self.index(d.clone()));
                    let (low, high) = (self.binary(BinaryOp::Ge, e, zero), self.binary(BinaryOp::Lt, e, end));
                    let inside = self.and(Some(low), Some(high));
                    guard = self.and(guard, inside);
                    Poly::atom(Atom::Data(e))
                }
            });
        }
        Ok((flat_offset(shape, &to, &self.domain), guard))
    }
}
