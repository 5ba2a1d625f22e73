//! Products of matrices without tiles: a thread makes its results alone.
//!
//! [`Block`] expects in the module what [`matmul`](crate::matmul) describes, of operands that are read one by one;
//! [`BlockOfVectors`] reads `y` by fours; [`Window`] is given its sums as text.

use crate::matmul::{Access, Common, Extents};
use crate::{RenderError, Template, render};
use serde::Serialize;

/// Parameters of the product with a block of results a thread.
#[derive(Clone, Debug)]
pub struct Block {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub setup: String,
    /// The extents of the product.
    pub extents: Extents,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Rows and columns that an invocation makes.
    pub block: [u32; 2],
    /// Whether rows and columns are multiples of the block's.
    pub whole: [bool; 2],
    /// `store` is called once in the text, in a loop, as it is long.
    pub rolled: bool,
}

#[derive(Serialize)]
struct BlockSlots<'a> {
    #[serde(flatten)]
    common: Common<'a>,
    threads: u32,
    block_rows: u32,
    block_cols: u32,
    whole_rows: bool,
    whole_cols: bool,
    rolled: bool,
}

impl Template for BlockSlots<'_> {
    const NAME: &'static str = "matmul_block.wgsl";
}

impl Block {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let slots = BlockSlots {
            common: self.extents.common(&self.preamble, &self.setup, "index", "row_blocks * col_blocks"),
            threads: self.threads,
            block_rows: self.block[0],
            block_cols: self.block[1],
            whole_rows: self.whole[0],
            whole_cols: self.whole[1],
            rolled: self.rolled,
        };
        render(&slots)
    }
}

/// Parameters of the product with a block of vectors of results a thread.
#[derive(Clone, Debug)]
pub struct BlockOfVectors {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub setup: String,
    /// The extents of the product; there are whole fours of columns.
    pub extents: Extents,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Rows that an invocation makes, whole fours where `x` has vectors of rows, and columns, whole fours.
    pub block: [u32; 2],
    /// Whether rows and columns are multiples of the block's.
    pub whole: [bool; 2],
    /// How `x` is read; `y` is read in vectors of columns.
    pub x: Access,
    /// `store` takes vectors of columns.
    pub store_vectors: bool,
    /// `store` is called once in the text, in a loop, as it is long: only where it takes one result.
    pub rolled: bool,
}

/// A term of the sums in a turn of the loop: the number of its k, and the elements of `x` of each row.
#[derive(Serialize)]
struct Term {
    k: String,
    xs: Vec<String>,
}

#[derive(Serialize)]
struct BlockOfVectorsSlots<'a> {
    #[serde(flatten)]
    common: Common<'a>,
    threads: u32,
    block_rows: u32,
    block_vectors: u32,
    whole_rows: bool,
    whole_cols: bool,
    x_vectors: bool,
    x_depth: bool,
    x_lines: Vec<String>,
    terms: Vec<Term>,
    store_vectors: bool,
    rolled: bool,
}

impl Template for BlockOfVectorsSlots<'_> {
    const NAME: &'static str = "matmul_block_vectors.wgsl";
}

impl BlockOfVectors {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let rows = self.block[0];
        let (along_depth, vectors) = (self.x.along_depth, self.x.vectors);
        // Rows of `x` that a load brings.
        let each = if vectors && !along_depth { 4 } else { 1 };
        let line = |i: u32| {
            let first = if each == 1 { "row0".to_owned() } else { format!("row0 / {each}") };
            let at = if i == 0 { first } else { format!("{first} + {i}") };
            let last = if each == 1 { "rows - 1".to_owned() } else { format!("rows / {each} - 1") };
            if self.whole[0] || i == 0 { at } else { format!("min({at}, {last})") }
        };
        let term = |(q, lane): (usize, &str)| {
            let x = |r: u32| match (vectors, along_depth) {
                (false, _) => format!("x{r}"),
                (true, true) => format!("x{r}.{lane}"),
                (true, false) => format!("x{}[{}]", r / 4, r % 4),
            };
            let k = match (vectors && along_depth, q) {
                (false, _) => "k".to_owned(),
                (true, 0) => "k * 4".to_owned(),
                (true, q) => format!("k * 4 + {q}"),
            };
            Term { k, xs: (0..rows).map(x).collect() }
        };
        let terms = if vectors && along_depth { 4 } else { 1 };
        let slots = BlockOfVectorsSlots {
            common: self.extents.common(&self.preamble, &self.setup, "index", "row_blocks * col_blocks"),
            threads: self.threads,
            block_rows: rows,
            block_vectors: self.block[1] / 4,
            whole_rows: self.whole[0],
            whole_cols: self.whole[1],
            x_vectors: vectors,
            x_depth: along_depth,
            x_lines: (0..rows / each).map(line).collect(),
            terms: ["x", "y", "z", "w"].into_iter().enumerate().take(terms).map(term).collect(),
            store_vectors: self.store_vectors,
            rolled: self.rolled,
        };
        render(&slots)
    }
}

/// Parameters of the product whose sums are written out.
#[derive(Clone, Debug)]
pub struct Window {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub setup: String,
    /// The extents of the product; the depth is in the body.
    pub extents: Extents,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// Rows and columns that an invocation makes.
    pub block: [u32; 2],
    /// The numbers of the variables that count blocks of rows and of columns.
    pub vars: [usize; 2],
    /// Statements over the variables that store a block, indented by 4.
    pub body: String,
}

#[derive(Serialize)]
struct WindowSlots<'a> {
    #[serde(flatten)]
    common: Common<'a>,
    threads: u32,
    block_rows: u32,
    block_cols: u32,
    row_var: usize,
    col_var: usize,
    body: String,
}

impl Template for WindowSlots<'_> {
    const NAME: &'static str = "matmul_window.wgsl";
}

impl Window {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let slots = WindowSlots {
            common: self.extents.common(&self.preamble, &self.setup, "index", "rows * cols"),
            threads: self.threads,
            block_rows: self.block[0],
            block_cols: self.block[1],
            row_var: self.vars[0],
            col_var: self.vars[1],
            body: self.body.clone(),
        };
        render(&slots)
    }
}
