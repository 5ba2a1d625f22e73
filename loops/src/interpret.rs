//! Execution of kernels on the CPU, with all invocations of a workgroup in step.
//!
//! The invocations of a workgroup execute each statement together; those for which a condition is false or whose loop has ended wait
//! until the others have finished. Workgroups run one after another. What a device may do in any order is checked instead of tried:
//!
//! - an access is inside its tensor, and what is read from registers and workgroup memory has been stored before;
//! - two invocations access an element of which one writes it only with a barrier between them, and never from two workgroups, unless
//!   both combine it with the same operation or both [may replace it](crate::Write::Any);
//! - a barrier and a subgroup operation are reached by all invocations that they concern.
//!
//! A violation ends the run with a [`Fault`]. A kernel that runs without one computes the same on every device for these sizes
//! and inputs, up to rounding and the order of combinations.

mod machine;
mod memory;

use crate::{Kernel, Kind, Name, Space, Stmt};
use std::fmt;
use wgfc_ir::{Atom, Poly, Scalar};

/// Limits of a run and the properties of the device that it depends on.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Invocations of a subgroup: consecutive ones.
    pub subgroup: usize,
    /// The most statements that are executed, those of a loop once for each point.
    pub max_statements: u64,
}

impl Default for Options {
    /// Subgroups of 32 invocations and 100 million statements.
    fn default() -> Options {
        Options { subgroup: 32, max_statements: 100_000_000 }
    }
}

/// Elements of the tensors of a kernel in row-major order, those in storage; for the others nothing.
pub type Buffers = Vec<Vec<Scalar>>;

/// The work of a run, summed over all invocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Elements that were read of each tensor.
    pub loads: Vec<u64>,
    /// Elements that were written of each tensor.
    pub stores: Vec<u64>,
    /// Operations on values, conversions included.
    pub operations: u64,
    /// Barriers, one for each workgroup that passes it.
    pub barriers: u64,
    /// Workgroups.
    pub workgroups: u64,
    /// Statements, each once for all invocations of a workgroup.
    pub statements: u64,
}

/// A violation of the rules of a kernel, or a limit of the interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A sentence that says which rule was violated, or which limit was reached.
    pub message: String,
    /// The statement.
    pub statement: String,
    /// The invocation's number in its workgroup.
    pub invocation: usize,
    /// The loop variables of the invocation.
    pub point: Vec<(Name, i64)>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.statement, self.message)?;
        let point: Vec<String> = self.point.iter().map(|(n, v)| format!("{n} = {v}")).collect();
        write!(f, " (invocation {}", self.invocation)?;
        if !point.is_empty() {
            write!(f, ", {}", point.join(", "))?;
        }
        f.write_str(")")
    }
}
impl std::error::Error for Fault {}

/// Runs a kernel that [verifies](crate::verify()). `symbols` gives the values of symbols, `buffers` the elements of tensors in
/// storage, which are changed.
///
/// # Errors
/// The first [`Fault`].
///
/// ```
/// use wgfc_ir::{DType, Scalar};
/// use wgfc_loops::interpret::{Options, run};
/// let kernel = wgfc_loops::text::parse("kernel
///   x: f32[n] storage read
///   y: f32[n] storage write
///   for i in 0..n
///     y[i] = x[i] * 2.0
/// ").unwrap();
/// let number = |v| Scalar::from_f64(DType::F32, v);
/// let mut buffers = vec![vec![number(1.0), number(4.0)], vec![number(0.0); 2]];
/// let counts = run(&kernel, &|n| (n == "n").then_some(2), &mut buffers, &Options::default()).unwrap();
/// assert_eq!(buffers[1], [number(2.0), number(8.0)]);
/// assert_eq!((counts.loads[0], counts.operations), (2, 2));
/// ```
pub fn run(
    kernel: &Kernel,
    symbols: &dyn Fn(&str) -> Option<i64>,
    buffers: &mut Buffers,
    options: &Options,
) -> Result<Counts, Fault> {
    let size = |a: &Atom| match a {
        Atom::Sym(s) => symbols(s).map(Poly::constant),
        _ => None,
    };
    let index = |p: &Poly| p.subst(&size, &[]);
    let mut known = kernel.clone();
    for t in &mut known.tensors {
        t.shape.iter_mut().for_each(|d| *d = index(d));
    }
    known.body = kernel.body.iter().map(|s| s.map(&index, &|e| e)).collect();
    machine::Machine::new(&known, buffers, options)?.run(buffers)
}

/// The loops of workgroups and those of invocations, outermost first, and the statements inside of them.
pub fn levels(kernel: &Kernel) -> (Vec<&crate::For>, Vec<&crate::For>, &[Stmt]) {
    let (mut grid, mut invocations, mut body) = (vec![], vec![], &kernel.body[..]);
    while let [Stmt::For(l)] = body {
        match l.kind {
            Kind::Grid if invocations.is_empty() => grid.push(l),
            Kind::Invocation => invocations.push(l),
            _ => break,
        }
        body = &l.body;
    }
    (grid, invocations, body)
}

/// Whether invocations share a tensor.
fn is_shared(space: Space) -> bool {
    space != Space::Register
}
