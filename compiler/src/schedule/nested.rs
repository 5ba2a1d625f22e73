//! A loop nest and the steps on it.

use std::collections::BTreeSet;
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

    /// Brings perfectly nested loops into another order.
    pub fn ordered(mut self, order: &mut [Name], want: &[Name]) -> Result<Nest, String> {
        for (i, name) in want.iter().enumerate() {
            let mut at =
                order.iter().position(|n| n == name).ok_or_else(|| format!("there is no loop `{name}`"))?;
            while at > i {
                self = self.apply(Step::Swap(order[at - 1].clone(), order[at].clone()))?;
                order.swap(at - 1, at);
                at -= 1;
            }
        }
        Ok(self)
    }

    /// Makes two loops of one, which is number `at` of `of`.
    pub fn divided(
        self,
        order: &mut Vec<Name>,
        of: &mut Vec<Name>,
        at: usize,
        step: impl Fn(Name) -> Step,
    ) -> Result<Nest, String> {
        let name = of[at].clone();
        let before: BTreeSet<Name> = self.kernel.vars.iter().cloned().collect();
        let out = self.apply(step(name.clone()))?;
        let new: Vec<Name> = out.kernel.vars.iter().filter(|v| !before.contains(*v)).cloned().collect();
        for list in [order, of] {
            if let Some(at) = list.iter().position(|n| *n == name) {
                list.splice(at..=at, new.iter().cloned());
            }
        }
        Ok(out)
    }
}
