//! Parameters of `map_tiled.wgsl`.

use crate::Template;
use serde::Serialize;

/// An axis beside those of a tile.
#[derive(Clone, Debug, Serialize)]
pub struct Axis {
    /// The name of its variable.
    pub name: String,
    /// Its extent, an `i32` expression; of the last one none is needed.
    pub extent: Option<String>,
}

/// An array in workgroup memory.
#[derive(Clone, Debug, Serialize)]
pub struct Tile {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub ty: String,
}

/// The work of an invocation in one turn.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// When it does, if not always.
    pub when: Option<String>,
    /// Statements, indented by 4, or by 8 where there is a condition.
    pub body: String,
}

/// A kernel in which every workgroup computes a tile of two axes.
#[derive(Clone, Debug, Serialize)]
pub struct Tiled {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// The arrays of a tile.
    pub tiles: Vec<Tile>,
    /// Elements of each.
    pub len: u32,
    /// Statements that the extents need, indented by 4.
    pub extents: String,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Elements of a tile along the axis that is staged.
    pub rows: u32,
    /// Elements of a tile along the axis of the stores.
    pub cols: u32,
    /// Tiles along the axis that is staged, an `i32` expression.
    pub row_tiles: String,
    /// Tiles along the axis of the stores, likewise.
    pub col_tiles: String,
    /// All tiles, likewise.
    pub count: String,
    /// The other axes, innermost first.
    pub axes: Vec<Axis>,
    /// Statements before any element, indented by 4.
    pub setup: String,
    /// Statements that read from memory, indented by 4.
    pub staging: String,
    /// Writes to workgroup memory.
    pub steps: Vec<Step>,
    /// The results that are computed then.
    pub results: Vec<Step>,
}

impl Template for Tiled {
    const NAME: &'static str = "map_tiled.wgsl";
}
