//! Loops of kernels on drivers that end long loops early.
//!
//! Mesa's gallivm, on which llvmpipe is built, counts the iterations of all loops of an invocation together and ends the loops
//! after 65,535; the kernel continues with its values at that point. The number of iterations depends on sizes, so it is computed
//! when they are known: [`Loops::within`] finds an upper bound from the kernel's text and unrolls loops if the bound exceeds the
//! limit.

mod ranges;
mod unroll;

use naga::{Block, Expression, Function, Handle, Module, Statement};
use ranges::Ranges;
use std::collections::HashMap;
use std::ops::Range;

/// The text of a kernel and its parsed module.
#[derive(Debug)]
pub(crate) struct Loops {
    text: String,
    module: Module,
}

/// The reason for which a kernel cannot run on this driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The text cannot be parsed, or no bound was found for the loop that begins with these words.
    Unknown(String),
    /// It takes this many iterations.
    Needs(u64),
}

/// A loop in the text.
#[derive(Clone, Debug)]
struct Loop {
    span: Range<usize>,
    /// The largest number of evaluations of the condition: one more than of iterations.
    passes: u64,
    /// Whether the body has a `break` besides the one on the condition.
    has_other_break: bool,
    /// The loops and calls in its body.
    inside: Vec<Part>,
}

impl Loop {
    /// Whether unrolling by this factor leaves no loop.
    fn disappears_at(&self, factor: u64) -> bool {
        !self.has_other_break && factor > 1 && factor >= self.passes.saturating_sub(1)
    }
}

/// A part of a function that may have iterations.
#[derive(Clone, Debug)]
enum Part {
    Loop(Loop),
    Call(Handle<Function>),
}

/// The parts of functions.
type Functions = HashMap<Handle<Function>, Vec<Part>>;

/// Unroll factors of loops, by the position in the text at which they begin.
type Factors = HashMap<usize, u64>;

impl Loops {
    pub(crate) fn new(text: &str) -> Result<Loops, Refusal> {
        let module =
            naga::front::wgsl::parse_str(text).map_err(|e| Refusal::Unknown(e.message().to_owned()))?;
        Ok(Loops { text: text.to_owned(), module })
    }

    /// A text whose invocations have at most `most` iterations if the program's symbols are within `dims`; `None` if the kernel's
    /// own text is within that limit.
    pub(crate) fn within(&self, dims: &[(i64, i64)], most: u64) -> Result<Option<String>, Refusal> {
        let (main, functions) = self.all(dims)?;
        let mut factors = Factors::new();
        loop {
            let mut counted = HashMap::new();
            let total = count(&main, 1, &functions, &factors, &mut counted);
            if total <= most {
                return Ok((!factors.is_empty()).then(|| self.unrolled(&main, &functions, &factors)));
            }
            // Doubles the unroll factor of the loop with the most iterations.
            let worst = counted
                .iter()
                .filter(|(at, c)| factors.get(at).copied().unwrap_or(1) < c.passes)
                .max_by_key(|(at, c)| (c.taken, std::cmp::Reverse(**at)));
            if let Some((at, _)) = worst {
                *factors.entry(*at).or_insert(1) *= 2;
            }
            let grown = self.unrolled(&main, &functions, &factors).len();
            if worst.is_none() || grown > self.text.len() + unroll::MOST_TEXT {
                let own = count(&main, 1, &functions, &Factors::new(), &mut HashMap::new());
                return Err(Refusal::Needs(own));
            }
        }
    }

    /// The parts of the entry point and of the functions.
    fn all(&self, dims: &[(i64, i64)]) -> Result<(Vec<Part>, Functions), Refusal> {
        let mut functions = Functions::new();
        for (h, f) in self.module.functions.iter() {
            let ranges = Ranges::new(&self.module, f, None, dims);
            functions.insert(h, self.parts(&f.body, &ranges)?);
        }
        let Some(entry) = self.module.entry_points.first() else { return Ok((vec![], functions)) };
        let ranges = Ranges::new(&self.module, &entry.function, Some(entry), dims);
        Ok((self.parts(&entry.function.body, &ranges)?, functions))
    }

    fn unrolled(&self, main: &[Part], functions: &Functions, factors: &Factors) -> String {
        let loops = functions.values().flatten().chain(main).filter_map(Part::as_loop).cloned();
        unroll::rewrite(&self.text, loops.collect(), factors)
    }

    /// The loops and calls of a block.
    fn parts(&self, block: &Block, ranges: &Ranges<'_>) -> Result<Vec<Part>, Refusal> {
        let mut out = vec![];
        for (statement, span) in block.span_iter() {
            match statement {
                Statement::Block(b) => out.extend(self.parts(b, ranges)?),
                Statement::If { accept, reject, .. } => {
                    out.extend(self.parts(accept, ranges)?);
                    out.extend(self.parts(reject, ranges)?);
                }
                Statement::Switch { cases, .. } => {
                    for case in cases {
                        out.extend(self.parts(&case.body, ranges)?);
                    }
                }
                Statement::Loop { body, continuing, .. } => {
                    let span = span.to_range().unwrap_or_default();
                    let unknown = || {
                        let text = self.text.get(span.clone()).unwrap_or_default();
                        Refusal::Unknown(text.lines().next().unwrap_or_default().to_owned())
                    };
                    let trips = ranges.trips(body, continuing).ok_or_else(unknown)?;
                    let mut inside = self.parts(body, ranges)?;
                    inside.extend(self.parts(continuing, ranges)?);
                    // One `break` belongs to the loop's condition.
                    let has_other_break = breaks(body) + breaks(continuing) > 1;
                    out.push(Part::Loop(Loop {
                        passes: trips.saturating_add(1),
                        span,
                        has_other_break,
                        inside,
                    }));
                }
                Statement::Call { function, .. } => out.push(Part::Call(*function)),
                _ => {}
            }
        }
        Ok(out)
    }
}

impl Part {
    fn as_loop(&self) -> Option<&Loop> {
        match self {
            Part::Loop(l) => Some(l),
            Part::Call(_) => None,
        }
    }
}

/// The iterations of a loop.
#[derive(Default)]
struct Counted {
    /// Iterations of one execution, without unrolling.
    passes: u64,
    /// Iterations of all executions, with unrolling.
    taken: u64,
}

/// The iterations of parts that are executed `times` times.
fn count(
    parts: &[Part],
    times: u64,
    functions: &Functions,
    factors: &Factors,
    counted: &mut HashMap<usize, Counted>,
) -> u64 {
    let mut total = 0u64;
    for part in parts {
        let more = match part {
            // WGSL has no recursion, so this terminates.
            Part::Call(f) => functions.get(f).map_or(0, |p| count(p, times, functions, factors, counted)),
            Part::Loop(l) => {
                let factor = factors.get(&l.span.start).copied().unwrap_or(1);
                let rounds = l.passes.div_ceil(factor);
                let gone_through = times.saturating_mul(rounds).saturating_mul(factor);
                let taken = if l.disappears_at(factor) { 0 } else { times.saturating_mul(rounds) };
                let c = counted.entry(l.span.start).or_default();
                c.passes = c.passes.max(l.passes);
                c.taken = c.taken.saturating_add(taken);
                // An inner loop counts for every unrolled copy of the body, even if the copy is skipped.
                let inner = count(&l.inside, gone_through, functions, factors, counted);
                taken.saturating_add(inner)
            }
        };
        total = total.saturating_add(more);
    }
    total
}

/// The number of statements in a block that leave the enclosing loop.
fn breaks(block: &Block) -> usize {
    let of = |s: &Statement| match s {
        Statement::Break => 1,
        Statement::Block(b) => breaks(b),
        Statement::If { accept, reject, .. } => breaks(accept) + breaks(reject),
        _ => 0,
    };
    block.iter().map(of).sum()
}

/// The local variable that an expression loads.
fn local(f: &Function, e: Handle<Expression>) -> Option<Handle<naga::LocalVariable>> {
    match f.expressions[e] {
        Expression::Load { pointer } => pointee(f, pointer),
        _ => None,
    }
}

/// The variable that a pointer points to.
fn pointee(f: &Function, e: Handle<Expression>) -> Option<Handle<naga::LocalVariable>> {
    match f.expressions[e] {
        Expression::LocalVariable(v) => Some(v),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
