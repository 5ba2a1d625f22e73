//! Loops: as one kernel with independent lanes, or as kernels dispatched once per step.
//!
//! `prepare` brings loops into one form. `lanes` maps a loop whose steps are independent along some axes to an invocation per lane or a
//! workgroup per lane (`stages`), whichever `price` estimates to be faster; `kernels` builds the kernel. Where neither is possible or
//! faster, `split` builds the kernels of one step, which are dispatched repeatedly; in `rounds` where the number of steps is known only
//! by running the loop.

pub(super) mod expand;
pub(super) mod kernels;
pub mod lanes;
pub(crate) mod layout;
mod order;
pub(crate) mod prepare;
mod price;
mod rounds;
pub(super) mod split;
pub(super) mod stages;
mod tidy;
