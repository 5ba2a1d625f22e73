//! Loops of kernels on drivers that end long loops early.
//!
//! Mesa's gallivm, on which llvmpipe is built, counts the iterations of all loops of an invocation together and ends
//! them after 65,535; the kernel continues with the values it has then. The number of iterations depends on sizes, so it is
//! computed when they are known: [`Loops::within`] bounds the iterations by the text of the kernel and, where there may be more,
//! unrolls loops.

mod ranges;
mod unroll;

use naga::{Block, Expression, Function, Handle, Module, Statement};
use ranges::Ranges;
use std::collections::HashMap;
use std::ops::Range;

/// The text of a kernel, parsed to look at its loops.
#[derive(Debug)]
pub(crate) struct Loops {
    text: String,
    module: Module,
}

/// Why a kernel cannot run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The text cannot be parsed, or no bound was found for the loop that begins with these words.
    Unknown(String),
    /// It takes this many iterations.
    Needs(u64),
}

/// A loop in the text.
#[derive(Clone, Debug)]
struct Loop {
    span: Range<usize>,
    /// Iterations at most, the one included that finds the end.
    passes: u64,
    /// Whether it can be left from inside too.
    left: bool,
    /// How often it begins for each time that its function is called or the loop around it goes round.
    inside: Vec<Part>,
}

impl Loop {
    /// Whether unrolling by this factor leaves no loop.
    fn straight(&self, factor: u64) -> bool {
        !self.left && factor > 1 && factor >= self.passes.saturating_sub(1)
    }
}

/// A part of a function that takes iterations.
#[derive(Clone, Debug)]
enum Part {
    Loop(Loop),
    Call(Handle<Function>),
}

/// The parts of functions.
type Functions = HashMap<Handle<Function>, Vec<Part>>;

/// How many iterations loops do in one, by where they begin.
type Factors = HashMap<usize, u64>;

impl Loops {
    pub(crate) fn new(text: &str) -> Result<Loops, Why> {
        let module = naga::front::wgsl::parse_str(text).map_err(|e| Why::Unknown(e.message().to_owned()))?;
        Ok(Loops { text: text.to_owned(), module })
    }

    /// The text whose invocations take at most `most` iterations where the program's symbols are within `dims`;
    /// `None` where that is the kernel's own.
    pub(crate) fn within(&self, dims: &[(i64, i64)], most: u64) -> Result<Option<String>, Why> {
        let (main, functions) = self.all(dims)?;
        let mut factors = Factors::new();
        loop {
            let mut counted = HashMap::new();
            let total = count(&main, 1, &functions, &factors, &mut counted);
            if total <= most {
                return Ok((!factors.is_empty()).then(|| self.unrolled(&main, &functions, &factors)));
            }
            // The loop with most of them takes half as many.
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
                return Err(Why::Needs(own));
            }
        }
    }

    /// The parts of the entry point and of the functions.
    fn all(&self, dims: &[(i64, i64)]) -> Result<(Vec<Part>, Functions), Why> {
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
    fn parts(&self, block: &Block, ranges: &Ranges<'_>) -> Result<Vec<Part>, Why> {
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
                        Why::Unknown(text.lines().next().unwrap_or_default().to_owned())
                    };
                    let trips = ranges.trips(body, continuing).ok_or_else(unknown)?;
                    let mut inside = self.parts(body, ranges)?;
                    inside.extend(self.parts(continuing, ranges)?);
                    // One is behind the condition.
                    let left = breaks(body) + breaks(continuing) > 1;
                    out.push(Part::Loop(Loop { passes: trips.saturating_add(1), span, left, inside }));
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
    /// Iterations for one time that it begins, as its text is.
    passes: u64,
    /// Iterations that it takes in all.
    taken: u64,
}

/// The iterations of parts that are done `times` times.
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
            // Functions call only those declared before them: there is no recursion in WGSL.
            Part::Call(f) => functions.get(f).map_or(0, |p| count(p, times, functions, factors, counted)),
            Part::Loop(l) => {
                let factor = factors.get(&l.span.start).copied().unwrap_or(1);
                let rounds = l.passes.div_ceil(factor);
                let gone_through = times.saturating_mul(rounds).saturating_mul(factor);
                let taken = if l.straight(factor) { 0 } else { times.saturating_mul(rounds) };
                let c = counted.entry(l.span.start).or_default();
                c.passes = c.passes.max(l.passes);
                c.taken = c.taken.saturating_add(taken);
                // Masked iterations are still gone through.
                let inner = count(&l.inside, gone_through, functions, factors, counted);
                taken.saturating_add(inner)
            }
        };
        total = total.saturating_add(more);
    }
    total
}

/// How many statements of a block leave the loop that it is of.
fn breaks(block: &Block) -> usize {
    let of = |s: &Statement| match s {
        Statement::Break => 1,
        Statement::Block(b) => breaks(b),
        Statement::If { accept, reject, .. } => breaks(accept) + breaks(reject),
        _ => 0,
    };
    block.iter().map(of).sum()
}

/// The variable that an expression is the value of.
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
