//! The cost of equal programs, by which the compiler chooses between them: expected sizes of symbols, and the time that work takes.

mod expected;
mod launch;
pub mod memory;
mod stage;
mod work;

pub use expected::{ASSUMED, Expected};
pub use launch::Launch;
pub use stage::{Stage, barrier_between_few};
pub use work::Work;
