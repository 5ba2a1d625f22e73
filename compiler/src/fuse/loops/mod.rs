//! Loops: what is one kernel of independent lanes, and what is dispatched step by step.
//!
//! `prepare` brings loops into one form. `lanes` maps a loop whose steps are independent along some axes: an
//! invocation for each lane, or a workgroup (`stages`), whichever `price` estimates to be faster; `kernels` makes
//! the kernel. Where neither is possible or worth it, `split` makes a step's kernels, which are dispatched again and
//! again, in `rounds` where only running the loop tells how often.

pub(super) mod expand;
pub(super) mod kernels;
pub mod lanes;
pub(super) mod layout;
mod order;
pub(super) mod prepare;
mod price;
mod rounds;
pub(super) mod split;
pub(super) mod stages;
mod tidy;
