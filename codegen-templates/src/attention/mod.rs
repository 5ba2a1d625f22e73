//! Attention: the tiled template, that for matrix units, and two for few queries.
//!
//! All compute `out[batch, s, e] = Σₜ softmaxₜ(scale · Σ_d q·k + mask) · v` in f32 with a running
//! maximum and sum, so no score ever leaves the workgroup. They expect in the preamble, for each of
//! `q` (over `s` and `d`), `k` (over `t` and `d`) and `v` (over `t` and `e`), the functions that
//! [`matmul`](crate::matmul) describes for `x`, and
//!
//! ```wgsl
//! fn load_mask(batch: i32, s: i32, t: i32) -> f32        // where there is a mask
//! fn store(batch: i32, s: i32, e: i32, acc0: f32)        // those for few queries: (batch, s, e, part, acc0)
//! fn store_part(batch: i32, s: i32, part: i32, acc1: f32, acc2: f32) // where the keys are in parts
//! ```
//!
//! Scores are clamped to the finite range, so a row all of whose scores are the least finite number
//! averages `v`, as softmax does, or gives 0 where `empty_is_zero`.

mod cooperative;
mod decode;
mod streamed;
mod tiled;

pub use cooperative::{Cooperative, Matrices};
pub use decode::Decode;
pub use streamed::{Stream, Streamed};
pub use tiled::{Attention, Tiles};

use serde::Serialize;

/// The parameters that all templates need.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub setup: String,
    /// Independent problems, an `i32` expression, as are `s`, `t` and `d`.
    pub batch: String,
    /// Number of queries.
    pub s: String,
    /// Number of keys.
    pub t: String,
    /// Width of queries and keys.
    pub d: String,
    /// Width of a value, in elements.
    pub e: u32,
    /// Whether the preamble has `load_mask`.
    pub mask: bool,
    /// The factor of the scores, an `f32` literal.
    pub scale: String,
    /// A key whose score is not above the least finite number has no weight.
    pub empty_is_zero: bool,
}

/// Bounds of the keys that the queries from `first` to `last` may see: statements over those, `batch` and `keys`.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Statements, indented by 4, that the others need.
    pub setup: String,
    /// The first key that is seen, where the mask says it.
    pub from: Vec<String>,
    /// The last keys that are seen, likewise: none is seen behind one of them.
    pub to: Vec<String>,
    /// The first key from which on, and the last up to which, the mask is 0, where that is known.
    pub free: Option<(Vec<String>, Vec<String>)>,
    /// Keys are hidden by the least finite number of f16.
    pub half: bool,
    /// Queries that see none of the keys that the mask leaves must go through all of them.
    pub again: bool,
}

/// The slots that a [`Window`] fills.
#[derive(Serialize)]
struct WindowSlots {
    bounded: bool,
    free: bool,
    again: bool,
    unseen: &'static str,
    window: String,
}

impl Window {
    fn slots(&self) -> WindowSlots {
        WindowSlots {
            bounded: !self.from.is_empty() || !self.to.is_empty(),
            free: self.free.is_some(),
            again: self.again,
            // The bound that the highest score of a query without any key does not exceed.
            unseen: if self.half { "-32752.0" } else { "LOWEST" },
            window: self.text(),
        }
    }
    pub(super) fn text(&self) -> String {
        let extreme = |of: &str, all: &[String], start: &str| {
            all.iter().fold(start.to_owned(), |r, next| format!("{of}({r}, {next})"))
        };
        let after = |all: &[String]| all.iter().map(|k| format!("{k} + 1")).collect::<Vec<_>>();
        let var = if self.again { "var" } else { "let" };
        let mut out = self.setup.clone();
        out += &format!("    {var} from_key = {};\n", extreme("max", &self.from, "0"));
        out += &format!("    {var} to_key = {};\n", extreme("min", &after(&self.to), "keys"));
        if let Some((from, to)) = &self.free {
            out += &format!("    let free_from = {};\n", extreme("max", from, "0"));
            out += &format!("    let free_to = {};\n", extreme("min", &after(to), "keys"));
        }
        out
    }
}
