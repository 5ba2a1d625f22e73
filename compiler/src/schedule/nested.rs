//! A loop nest and the steps on it.

use wgfc_ir::Poly;
use wgfc_loops::steps::{Step, apply};
use wgfc_loops::{Kind, Name};

/// A nest under scheduling. Loops are known by their number, in the order of the text: any name may be taken by a symbol.
#[derive(Clone)]
pub(super) struct Nest {
    pub kernel: wgfc_loops::Kernel,
    pub steps: Vec<Step>,
}

impl Nest {
    pub fn new(kernel: wgfc_loops::Kernel) -> Nest {
        Nest { kernel, steps: vec![] }
    }

    pub fn name(&self, i: usize) -> Result<Name, String> {
        self.kernel.vars.get(i).cloned().ok_or_else(|| format!("there is no loop {i}"))
    }

    pub fn apply(mut self, step: Step) -> Result<Nest, String> {
        self.kernel = apply(&self.kernel, &step).map_err(|e| e.to_string())?;
        self.steps.push(step);
        Ok(self)
    }

    pub fn place(self, i: usize, kind: Kind) -> Result<Nest, String> {
        let name = self.name(i)?;
        self.apply(Step::Place(name, kind))
    }

    pub fn split(self, i: usize, by: impl Into<Poly>) -> Result<Nest, String> {
        let name = self.name(i)?;
        self.apply(Step::Split(name, by.into()))
    }

    /// Makes loop `i` and the one inside of it one.
    pub fn fuse(self, i: usize) -> Result<Nest, String> {
        let (outer, inner) = (self.name(i)?, self.name(i + 1)?);
        self.apply(Step::Fuse(outer, inner))
    }

    /// Makes an invocation of each point of the outermost loops, of which there are so many. They become loops 0 and 1.
    pub fn invocations(mut self, loops: usize, threads: u32) -> Result<Nest, String> {
        if loops == 0 {
            return Ok(self);
        }
        for _ in 1..loops {
            self = self.fuse(0)?;
        }
        self.split(0, i64::from(threads))?.place(0, Kind::Grid)?.place(1, Kind::Invocation)
    }

    /// Writes out so many points of loop `i` at a time, or fewer that divide their number.
    pub fn unrolled(self, i: usize, extent: Option<i64>, points: u32) -> Result<Nest, String> {
        let Some(extent) = extent else { return Ok(self) };
        if extent == i64::from(points) {
            return self.place(i, Kind::Unroll);
        }
        let Some(part) = (2..=i64::from(points)).rev().find(|part| extent % part == 0) else {
            return Ok(self);
        };
        self.split(i, part)?.place(i + 1, Kind::Unroll)
    }
}
