//! Scheduling steps: changes of a kernel after which it computes the same.
//!
//! [`apply`] does one step, and refuses it where it cannot show that the result stays the same. So whatever order steps are applied
//! in, the kernel remains right; they decide how fast it is. A step names loops by their variables. It prints and parses:
//!
//! | text | what becomes of the kernel |
//! |---|---|
//! | `split k 16`, `split k 4*n` | loop `k` becomes `k.0` around `k.1`, which has 16 points; where 16 does not divide the extent, the last ones are guarded |
//! | `clamp k 16` | as `split`, but points behind the last one compute what that one does, and store nothing |
//! | `version k` | where the last point of loop `k` is inside of the conditions that all its stores have, the loop without them; elsewhere the loop as it was |
//! | `fetch k` | what a point of loop `k` loads is loaded before anything else, what addresses depend on first |
//! | `fill acc` | sums of products in register `acc` have no conditions: where one is false, the elements that are multiplied are 0, or nothing reads the sum |
//! | `swap i j` | loop `j`, the only statement in `i`, goes around it |
//! | `fuse i j` | loop `j`, the only statement in `i`, and `i` become one, `i` |
//! | `distribute i` | each statement in loop `i` gets a loop of its own, with copies of the named values that it reads; a value that cannot be computed again later is kept in a register for each point |
//! | `expand acc i` | register `acc`, used in loop `i` only, gets an axis with an element for each point |
//! | `stage x k`, `stage x k order 1,0 pad 1` | what a point of loop `k` reads of `x` is copied to workgroup memory at its beginning, by all invocations; `order` says which axis of the part each axis of the copy is, and `pad` by how many elements a row of the copy is longer |
//! | `stage x k position 1 row 32 by 4` | of several positions at which `x` is read, the one with this number, the first 0; the last axis of the part has 32 elements; an invocation copies 4 neighbours together |
//! | `stage x k order 1,0 rotate 4 by 4,4` | rows of the copy are rotated by groups of 4 elements, those that an invocation copies together by one group more than those before them; an invocation copies blocks of 4 × 4 neighbours |
//! | `ahead k` | what a point of loop `k` loads first is loaded for all points at the beginning of the list that the loop is in, and kept in registers |
//! | `double k` | copies at the beginning of loop `k` get two buffers in turn: a point copies what the next one reads, before the rest of it, with one barrier |
//! | `pipeline k` | copies at the beginning of loop `k` go through registers: a point loads what the next one copies, before the rest of it |
//! | `team 64` | each workgroup has 64 invocations, all of which compute everything, and the first of which writes it |
//! | `spread k` | the invocations of a team divide the points of loop `k` among them; what these combine in a register, each combines for its own points, and then all together through workgroup memory |
//! | `grid i`, `invocation j` | the points of the loop become workgroups, or the invocations of each |
//! | `serial i`, `unroll i`, `vector i` | how the loop is written |
//! | `parallel i` | the points of the loop are independent, which later steps then know |
//!
//! After each step guards stand as far inside as possible, so that barriers are outside of them.

mod ahead;
mod depend;
mod double;
mod fetch;
mod fill;
mod guards;
mod named;
mod nests;
mod pipeline;
mod stage;
mod team;
mod version;

pub use guards::lift;

use crate::{For, Kernel, Kind, Name, Stmt};
use std::fmt;
use std::str::FromStr;
use wgfc_ir::Poly;

/// A change of a kernel.
///
/// ```
/// use wgfc_loops::steps::{Step, apply};
/// let kernel = wgfc_loops::text::parse("kernel
///   x: f32[n] storage read
///   y: f32[n] storage write
///   for i in 0..n
///     y[i] = x[i] * 2.0
/// ").unwrap();
/// let steps: Vec<Step> = ["split i 64", "grid i.0", "invocation i.1"].map(|s| s.parse().unwrap()).into();
/// let scheduled = steps.iter().try_fold(kernel, |k, s| apply(&k, s)).unwrap();
/// assert_eq!(scheduled.to_string(), "kernel
///   x: f32[n] storage read
///   y: f32[n] storage write
///   for i.0 in 0..(n + 63)/64 grid
///     for i.1 in 0..64 invocation
///       y[64*i.0 + i.1] = x[64*i.0 + i.1] * 2.0 if index(64*i.0 + i.1) < index(n)
/// ");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A loop becomes two, of which the inner one has this number of points.
    Split(Name, Poly),
    /// A loop becomes two, of which the inner one has this number of points. Points behind the last one compute what that one does,
    /// and store nothing.
    Clamp(Name, i64),
    /// A loop becomes two, one of which is executed: one without the conditions of its stores, where these hold at the last point, and so
    /// at all, or one with them.
    Version(Name),
    /// Loads from buffers are the first statements of a loop's points.
    Fetch(Name),
    /// The loads with which the points of a loop begin get a loop of their own, at the beginning of the list that the loop is in.
    Ahead(Name),
    /// Sums into a register lose their conditions, which become those of the elements that are multiplied.
    Fill(Name),
    /// The second loop, the only statement in the first one, goes around it.
    Swap(Name, Name),
    /// The second loop, the only statement in the first one, and this become one.
    Fuse(Name, Name),
    /// Each statement in a loop gets a loop of its own.
    Distribute(Name),
    /// A register gets an axis with an element for each point of a loop.
    Expand(Name, Name),
    /// The part of a tensor that a point of a loop reads is copied to workgroup memory first, in this layout.
    Stage(Name, Name, Layout),
    /// Copies at the beginning of a loop get two buffers in turn.
    Double(Name),
    /// Copies at the beginning of a loop are loaded into registers during the point before.
    Pipeline(Name),
    /// Each workgroup has this number of invocations, of which the first one writes.
    Team(i64),
    /// The invocations of a team divide the points of a loop among them.
    Spread(Name),
    /// A loop becomes one of this kind.
    Place(Name, Kind),
}

/// The layout of a copy in workgroup memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The axis of the part that each axis of the copy is; empty if they are the same. Neighbours along the last axis of the part are the
    /// closest in the tensor.
    pub order: Vec<usize>,
    /// The number of elements along the last axis of the part; 0 if it is as many as there are in a row in the tensor.
    pub row: i64,
    /// The number of elements at the end of each row of the copy that nothing reads: rows of other lengths are in other banks.
    pub pad: i64,
    /// The number of neighbours along each axis of the part that an invocation copies together; a single number is that along the last
    /// axis, and empty is 1.
    pub by: Vec<i64>,
    /// The number of elements of the groups by which rows of the copy are rotated: those that an invocation copies together by one group
    /// more than those before them, so that invocations store to different banks. 0 if they are not.
    pub rotate: i64,
    /// Which of the different positions at which the tensor is read is copied; `None` where it is read at one.
    pub position: Option<usize>,
}

/// A step that does not apply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{step}`: {why}")]
pub struct Refused {
    /// The step.
    pub step: String,
    /// The reason.
    pub why: String,
}

/// Applies a step to a kernel.
///
/// # Errors
/// A step that does not apply, or after which the kernel might compute something else: with the loop and the reason.
pub fn apply(kernel: &Kernel, step: &Step) -> Result<Kernel, Refused> {
    let mut out = kernel.clone();
    let done = match step {
        Step::Split(l, by) => nests::split(&mut out, l, by),
        Step::Clamp(l, by) => fetch::clamp(&mut out, l, *by),
        Step::Version(l) => version::version(&mut out, l),
        Step::Fetch(l) => fetch::fetch(&mut out, l),
        Step::Ahead(l) => ahead::ahead(&mut out, l),
        Step::Fill(t) => fill::fill(&mut out, t),
        Step::Swap(a, b) => nests::swap(&mut out, a, b),
        Step::Fuse(a, b) => nests::fuse(&mut out, a, b),
        Step::Distribute(l) => nests::distribute(&mut out, l),
        Step::Expand(t, l) => nests::expand(&mut out, t, l),
        Step::Stage(t, l, layout) => stage::stage(&mut out, t, l, layout),
        Step::Double(l) => double::double(&mut out, l),
        Step::Pipeline(l) => pipeline::pipeline(&mut out, l),
        Step::Team(n) => team::team(&mut out, *n),
        Step::Spread(l) => team::spread(&mut out, l),
        Step::Place(l, kind) => nests::place(&mut out, l, *kind),
    };
    done.and_then(|()| {
        out.body = guards::sink(std::mem::take(&mut out.body));
        out = out.in_order();
        crate::verify(&out).map_err(|e| e.join("; "))
    })
    .map_err(|why| Refused { step: step.to_string(), why })?;
    Ok(out)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Split(l, by) => write!(f, "split {l} {}", by.to_string().replace(' ', "")),
            Step::Clamp(l, by) => write!(f, "clamp {l} {by}"),
            Step::Version(l) => write!(f, "version {l}"),
            Step::Fetch(l) => write!(f, "fetch {l}"),
            Step::Ahead(l) => write!(f, "ahead {l}"),
            Step::Fill(t) => write!(f, "fill {t}"),
            Step::Swap(a, b) => write!(f, "swap {a} {b}"),
            Step::Fuse(a, b) => write!(f, "fuse {a} {b}"),
            Step::Distribute(l) => write!(f, "distribute {l}"),
            Step::Expand(t, l) => write!(f, "expand {t} {l}"),
            Step::Stage(t, l, Layout { order, row, pad, by, rotate, position }) => {
                write!(f, "stage {t} {l}")?;
                if let Some(position) = position {
                    write!(f, " position {position}")?;
                }
                if *row != 0 {
                    write!(f, " row {row}")?;
                }
                if !order.is_empty() {
                    let order: Vec<String> = order.iter().map(usize::to_string).collect();
                    write!(f, " order {}", order.join(","))?;
                }
                if *pad != 0 {
                    write!(f, " pad {pad}")?;
                }
                if *rotate != 0 {
                    write!(f, " rotate {rotate}")?;
                }
                if !by.is_empty() {
                    let by: Vec<String> = by.iter().map(i64::to_string).collect();
                    write!(f, " by {}", by.join(","))?;
                }
                Ok(())
            }
            Step::Double(l) => write!(f, "double {l}"),
            Step::Pipeline(l) => write!(f, "pipeline {l}"),
            Step::Team(n) => write!(f, "team {n}"),
            Step::Spread(l) => write!(f, "spread {l}"),
            Step::Place(l, kind) => write!(f, "{} {l}", kind.name()),
        }
    }
}

impl FromStr for Step {
    type Err = String;
    fn from_str(s: &str) -> Result<Step, String> {
        let words: Vec<&str> = s.split_whitespace().collect();
        let name = |w: &str| Name::from(w);
        Ok(match words[..] {
            ["split", l, by] => {
                Step::Split(name(l), Poly::parse(by).map_err(|_| format!("`{by}` is no number of points"))?)
            }
            ["clamp", l, by] => {
                Step::Clamp(name(l), by.parse().map_err(|_| format!("`{by}` is no number of points"))?)
            }
            ["version", l] => Step::Version(name(l)),
            ["fetch", l] => Step::Fetch(name(l)),
            ["ahead", l] => Step::Ahead(name(l)),
            ["fill", t] => Step::Fill(name(t)),
            ["swap", a, b] => Step::Swap(name(a), name(b)),
            ["fuse", a, b] => Step::Fuse(name(a), name(b)),
            ["distribute", l] => Step::Distribute(name(l)),
            ["expand", t, l] => Step::Expand(name(t), name(l)),
            ["stage", t, l, ref rest @ ..] => Step::Stage(name(t), name(l), layout(rest)?),
            ["double", l] => Step::Double(name(l)),
            ["pipeline", l] => Step::Pipeline(name(l)),
            ["team", n] => Step::Team(n.parse().map_err(|_| format!("`{n}` is no number of invocations"))?),
            ["spread", l] => Step::Spread(name(l)),
            [kind, l] if Kind::ALL.iter().any(|k| k.name() == kind) => {
                let kind = Kind::ALL.into_iter().find(|k| k.name() == kind);
                Step::Place(name(l), kind.unwrap_or(Kind::Serial))
            }
            _ => return Err(format!("`{s}` is no step")),
        })
    }
}

/// The layout that words say.
fn layout(words: &[&str]) -> Result<Layout, String> {
    let mut out = Layout::default();
    let mut rest = words;
    if let ["position", position, more @ ..] = rest {
        out.position = Some(position.parse().map_err(|_| format!("`{position}` is no position"))?);
        rest = more;
    }
    let number = |w: &str| w.parse().map_err(|_| format!("`{w}` is no number of elements"));
    if let ["row", row, more @ ..] = rest {
        out.row = number(row)?;
        rest = more;
    }
    if let ["order", order, more @ ..] = rest {
        let axis = |w: &str| w.parse().map_err(|_| format!("`{w}` is no axis"));
        out.order = order.split(',').map(axis).collect::<Result<_, _>>()?;
        rest = more;
    }
    if let ["pad", pad, more @ ..] = rest {
        out.pad = number(pad)?;
        rest = more;
    }
    if let ["rotate", group, more @ ..] = rest {
        out.rotate = number(group)?;
        rest = more;
    }
    if let ["by", by, more @ ..] = rest {
        out.by = by.split(',').map(number).collect::<Result<_, _>>()?;
        rest = more;
    }
    if rest.is_empty() { Ok(out) } else { Err(format!("`{}` is no layout", rest.join(" "))) }
}

/// The number of the variable with this name.
fn variable(kernel: &Kernel, name: &str) -> Result<usize, String> {
    let found = kernel.vars.iter().position(|v| &**v == name);
    found.filter(|v| find(&kernel.body, *v).is_some()).ok_or_else(|| {
        let mut loops = vec![];
        crate::visit(&kernel.body, &mut |s| {
            if let Stmt::For(l) = s {
                loops.push(kernel.vars[l.var].to_string());
            }
        });
        format!("there is no loop `{name}`; the loops are {}", loops.join(", "))
    })
}

/// The number of the tensor with this name.
fn tensor(kernel: &Kernel, name: &str) -> Result<usize, String> {
    kernel.tensors.iter().position(|t| &*t.name == name).ok_or_else(|| {
        let all: Vec<&str> = kernel.tensors.iter().map(|t| &*t.name).collect();
        format!("there is no tensor `{name}`; the tensors are {}", all.join(", "))
    })
}

/// The loop with a variable.
fn find(body: &[Stmt], var: usize) -> Option<&For> {
    let mut found = None;
    crate::visit(body, &mut |s| {
        if let Stmt::For(l) = s
            && l.var == var
        {
            found = Some(l);
        }
    });
    found
}

/// Replaces the loop with a variable by the statements that `to` makes of it.
fn replace(
    body: Vec<Stmt>,
    var: usize,
    to: &mut dyn FnMut(For) -> Result<Vec<Stmt>, String>,
) -> Result<Vec<Stmt>, String> {
    let mut out = vec![];
    for s in body {
        match s {
            Stmt::For(l) if l.var == var => out.extend(to(l)?),
            Stmt::For(mut l) => {
                l.body = replace(l.body, var, to)?;
                out.push(Stmt::For(l));
            }
            Stmt::If { condition, then, otherwise } => {
                let (then, otherwise) = (replace(then, var, to)?, replace(otherwise, var, to)?);
                out.push(Stmt::If { condition, then, otherwise });
            }
            s => out.push(s),
        }
    }
    Ok(out)
}

/// The extents of all variables; 0 for those of no loop.
pub(crate) fn domain(kernel: &Kernel) -> Vec<wgfc_ir::Dim> {
    let mut out = vec![Poly::ZERO; kernel.vars.len()];
    crate::visit(&kernel.body, &mut |s| {
        if let Stmt::For(l) = s {
            out[l.var] = l.extent.clone();
        }
    });
    out
}
