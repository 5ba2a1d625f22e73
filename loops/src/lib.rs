//! The loop form of kernels: loops over tensors in the levels of a device's memory.
//!
//! A [`Kernel`] is a nest of loops around stores. Written without regard to a device it runs one point after another. Scheduling
//! [steps] turn it into the form that a device runs: some of its loops become workgroups, invocations, unrolled copies or vectors,
//! and parts of its tensors are staged in faster memory. Both are the same language, which [prints and parses](text), is [verified](verify()) and is executed by an
//! [interpreter](interpret) with all invocations of a workgroup.
//!
//! Three proofs are for all sizes: that every access is [inside](bounds()) of its tensor, that invocations do not [race](races()) in
//! workgroup memory, and that each element of a result is stored [once](once()).
//!
//! # A kernel
//! ```text
//! kernel "fc1", "gelu"
//!   x: f32[n, 768] storage read
//!   w: f32[768, 3072] storage read
//!   y: f32[n, 3072] storage write
//!   acc: f32 register
//!   for i in 0..n grid
//!     for j in 0..3072 invocation
//!       acc = 0.0
//!       for k in 0..768
//!         acc sum= x[i, k] * w[k, j]
//!       y[i, j] = max(acc, 0.0)
//! ```
//! The nodes of the model that it computes come first, then its [tensors](Tensor), then its [statements](Stmt). Names in index
//! expressions are loop variables and [named values](Stmt::Let), or else symbols, whose values are known when the kernel runs.
//!
//! # Workgroups and invocations
//! Loops of kind [`grid`](Kind::Grid) are outermost: each of their points is a workgroup, and workgroups run in any order and at the
//! same time. Loops of kind [`invocation`](Kind::Invocation) follow them directly and have constant extents: each of their points is
//! an invocation of the workgroup. All invocations execute the statements inside; a [`Barrier`](Stmt::Barrier) is passed by none
//! before it is reached by all. A kernel without loops of these kinds is executed by one invocation.
//!
//! The kinds [`unroll`](Kind::Unroll) and [`vector`](Kind::Vector) say how a loop is written and change nothing of what it computes.
//!
//! # Tensors
//! | space | shared by | text |
//! |---|---|---|
//! | [`Storage`](Space::Storage) | all invocations | `x: f32[n, 768] storage read`, `write`, `update` |
//! | [`Workgroup`](Space::Workgroup) | the invocations of a workgroup | `xs: f32[16, 64] workgroup` |
//! | [`Register`](Space::Register) | nobody: each invocation has its own | `acc: f32[4] register` |
//!
//! Elements in workgroup memory and in registers are undefined before they are stored.
//!
//! # Statements
//! | text | meaning |
//! |---|---|
//! | `for i in 0..n`, then the statements of the loop | for each value of `i` in order; `down`: from the last to the first; `while e1`: until this is false before a point |
//! | `if e1`, then statements, perhaps `else` and others | one of them |
//! | `let e1: f32 = x[i] * 2.0` | a name for a value that is computed once |
//! | `y[i, j] = acc if i < 7` | stores where the guard is true |
//! | `y[i] sum= acc` | combines with the element that is there: `sum`, `prod`, `max`, `min`. In storage and workgroup memory invocations may combine at the same time |
//! | `y[e1] any= acc` | stores where others may store at the same time; one of the values remains |
//! | `barrier`, `barrier storage` | waits for all invocations of the workgroup, and makes what they stored in workgroup memory, or in storage too, visible to them |
//!
//! # Expressions
//! `1.5` is an f32 and `3:i64` an i64; `index(2*i + n)` is an index expression as an i32; `x[i, k]` is an element, and
//! `x[i, k if e1]` one that is read only where the guard holds, and arbitrary elsewhere. `a + b`, `-`, `*`, `/` and comparisons are
//! written between their operands; other operators are calls: `max(a, b)`, `exp(a)`, `select(c, a, b)`, `cast(f16, a)`,
//! `bitcast(u32, a)`. `subgroup_sum(a)`, `subgroup_max(a)`, `subgroup_min(a)` combine the values of a subgroup, and
//! `shuffle_xor(a, 4)` is the value of the invocation whose number in the subgroup differs in these bits; all invocations of the
//! subgroup must execute them together.

mod bounds;
mod expr;
pub mod interpret;
mod kernel;
mod once;
mod races;
pub mod steps;
pub mod text;
mod verify;

pub use bounds::{Outside, Witness, bounds};
pub use expr::{Combined, Expr};
pub use interpret::levels;
pub use kernel::{
    Access, For, Kernel, Kind, Name, Space, Stmt, Store, Tensor, TensorId, Value, Write, visit,
};
pub use once::once;
pub use races::races;
pub use verify::{MOST_POINTS, verify};
