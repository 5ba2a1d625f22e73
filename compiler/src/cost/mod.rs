//! What choices between equal programs are compared by: the sizes that are expected, and the time that work takes.

mod expected;
mod work;

pub use expected::{ASSUMED, Expected};
pub use work::Work;
