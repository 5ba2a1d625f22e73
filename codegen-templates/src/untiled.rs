//! Products of matrices without tiles: a thread makes its results alone.
//!
//! [`Serial`] and [`Block`] expect in the module what [`matmul`](crate::matmul) describes, of operands that are read one by one;
//! [`Window`] is given its sums as text.

use crate::matmul::{Common, Extents};
use crate::{RenderError, Template, render};
use serde::Serialize;

/// Parameters of the product with one thread a result.
#[derive(Clone, Debug)]
pub struct Serial {
    /// Text before the entry point: declarations of the bindings, and functions.
    pub preamble: String,
    /// Statements that the extents need, indented by 4.
    pub setup: String,
    /// The extents of the product.
    pub extents: Extents,
    /// Invocations of a workgroup.
    pub threads: u32,
    /// The first so many `k` are written out one by one; no more than there are.
    pub unrolled: u32,
    /// There may be more than `unrolled`.
    pub rest: bool,
}

#[derive(Serialize)]
struct SerialSlots<'a> {
    #[serde(flatten)]
    common: Common<'a>,
    threads: u32,
    unrolled: Vec<u32>,
    rest: bool,
}

impl Template for SerialSlots<'_> {
    const NAME: &'static str = "matmul_serial.wgsl";
}

impl Serial {
    /// The module's text.
    ///
    /// # Errors
    /// A defect of the template.
    pub fn render(&self) -> Result<String, RenderError> {
        let slots = SerialSlots {
            common: self.extents.common(&self.preamble, &self.setup, "index", "rows * cols"),
            threads: self.threads,
            unrolled: (0..self.unrolled).collect(),
            rest: self.rest,
        };
        render(&slots)
    }
}

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
