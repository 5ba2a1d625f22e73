//! The families of kernels: the fields that each has beside the body and stores.

use super::{ExprId, Store};
use wgfc_ir::{DType, Dim, ReduceOp};

/// One reduction of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduction {
    /// The operation that combines elements.
    pub kind: ReduceKind,
    /// The reduced value, over `%0` and `%1`; may use earlier results as `Acc`.
    pub value: ExprId,
    /// Element type of the result.
    pub dtype: DType,
}

/// An array in workgroup memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Its element type.
    pub dtype: DType,
    /// The number of elements.
    pub len: u32,
}

/// The work of a workgroup's invocations between two barriers: all elements of some values.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The number of elements.
    pub elements: u32,
    /// The combination for each of them.
    pub combined: Option<Combined>,
    /// The values put into arrays.
    pub writes: Vec<Write>,
    /// The values written to memory.
    pub stores: Vec<Store>,
}

/// The terms that a stage combines for an element.
#[derive(Clone, Debug, PartialEq)]
pub struct Combined {
    /// The number of terms.
    pub terms: u32,
    /// The number of the `Acc` that holds the result; no other stage of the kernel has the same.
    pub acc: u32,
    /// The reduction of the terms.
    pub reduction: Reduction,
}

/// A write of a stage's element to an array in workgroup memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which array; the element is that of the stage.
    pub array: u32,
    /// The written value, of the array's element type.
    pub value: ExprId,
}

impl Stage {
    /// The expressions that it evaluates.
    pub fn roots(&self) -> Vec<ExprId> {
        let reduced = self.combined.iter().flat_map(|c| c.reduction.roots());
        let stored = self.stores.iter().flat_map(Store::reads);
        reduced.chain(self.writes.iter().map(|w| w.value)).chain(stored).collect()
    }
}

impl Reduction {
    /// The expressions that it evaluates.
    pub fn roots(&self) -> Vec<ExprId> {
        match self.kind {
            ReduceKind::Last { when, init } => vec![self.value, when, init],
            _ => vec![self.value],
        }
    }
}

/// A range of the steps of a [`Family::Loop`], for loops that one dispatch might run too long for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number of the first step (i32), which depends on no variable.
    pub first: ExprId,
    /// The most steps.
    pub most: u32,
}

/// A value that a lane of a [`Family::Loop`] carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carry {
    /// The value before the first step, over the lanes' variables.
    pub init: ExprId,
    /// The value after a step, over all variables and the carried values before it.
    pub next: ExprId,
}

/// How a [`Reduction`] combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceKind {
    /// Sum from 0.
    Sum,
    /// Product from 1.
    Prod,
    /// Largest from the type's least value; on bool, any.
    Max,
    /// Smallest from the type's greatest value; on bool, all.
    Min,
    /// Position (i64) of the largest (`largest`) or smallest, the first or (`last`) last of equal ones.
    Arg {
        /// Largest, or smallest.
        largest: bool,
        /// Last of equal ones.
        last: bool,
    },
    /// The value at the last position where `when` (a bool expression) holds, else `init`, in row order.
    Last {
        /// The condition.
        when: ExprId,
        /// The value when it never holds, over `%0` only.
        init: ExprId,
    },
}

impl ReduceKind {
    /// The operation that combines two values; `None` for what depends on positions.
    pub fn operation(self) -> Option<ReduceOp> {
        match self {
            ReduceKind::Sum => Some(ReduceOp::Sum),
            ReduceKind::Prod => Some(ReduceOp::Prod),
            ReduceKind::Max => Some(ReduceOp::Max),
            ReduceKind::Min => Some(ReduceOp::Min),
            ReduceKind::Arg { .. } | ReduceKind::Last { .. } => None,
        }
    }
}

/// One invocation computes one element, or a few neighbouring ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// Number of elements.
    pub elements: Dim,
}

/// Reductions over rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Number of rows.
    pub rows: Dim,
    /// Positions of a row.
    pub len: Dim,
    /// The reductions, in order.
    pub reductions: Vec<Reduction>,
    /// Stores once per row, over `%0` and the results.
    pub row_stores: Vec<Store>,
}

/// A prefix scan of each row: `Acc(0)` at `%1` combines the positions up to it.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixScan {
    /// Number of rows.
    pub rows: Dim,
    /// Positions of a row.
    pub len: Dim,
    /// The reduction, such as `Sum` or `Prod`.
    pub reduction: Reduction,
    /// Whether the position itself is left out.
    pub exclusive: bool,
    /// Whether positions are combined from the end.
    pub reverse: bool,
}

/// Rows cut into parts, each of which is sorted.
#[derive(Clone, Debug, PartialEq)]
pub struct Sort {
    /// Number of rows.
    pub rows: Dim,
    /// Positions of a row.
    pub len: Dim,
    /// Places of a row in the result: `len`, or `keep` for each part.
    pub places: Dim,
    /// The length of runs within a part that are sorted already.
    pub sorted: i64,
    /// Positions of a part; the last of a row may have fewer.
    pub part: i64,
    /// The number of elements of a part that are kept.
    pub keep: i64,
    /// The key (u64) at `%0` and `%1`: the least comes first. `Acc(0)` is the key at place `%2`.
    pub key: ExprId,
}

/// A loop that every lane runs in one invocation.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// Extents of the lanes' axes, a variable each.
    pub lanes: Vec<Dim>,
    /// The number of steps; its variable follows those of the lanes.
    pub steps: Dim,
    /// The range of steps, unless all are run.
    pub part: Option<Part>,
    /// The values that a lane carries from step to step: `Acc(i)`.
    pub carries: Vec<Carry>,
    /// A condition over the lanes and the carried values. A lane may stop before a step in which it is false, since nothing changes after
    /// that.
    pub alive: Option<ExprId>,
    /// Stores of every step.
    pub step_stores: Vec<Store>,
}

/// A loop that a workgroup runs for each lane, with the carried values in workgroup memory.
#[derive(Clone, Debug, PartialEq)]
pub struct StagedLoop {
    /// Extents of the lanes' axes, a variable each.
    pub lanes: Vec<Dim>,
    /// The number of steps; its variable follows those of the lanes, and is followed by those of a stage's element and term.
    pub steps: Dim,
    /// The range of steps, unless all are run.
    pub part: Option<Part>,
    /// The arrays in workgroup memory.
    pub arrays: Vec<Array>,
    /// Stages before the first step.
    pub first: Vec<Stage>,
    /// Stages of each step, in order.
    pub each: Vec<Stage>,
    /// Stages after the last step.
    pub last: Vec<Stage>,
    /// The array of one bool that is false before a step at which the lane may stop, since nothing changes after that.
    pub alive: Option<u32>,
    /// The words through which several workgroups that share a lane synchronise: the offset of the lane's first word. Nothing is stored
    /// by it.
    pub meet: Option<Store>,
    /// The reason why a lane takes a workgroup.
    pub why: String,
}

/// Products of matrices that share their first operand, accumulated in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Matmul {
    /// Number of independent products.
    pub batch: Dim,
    /// Rows.
    pub m: Dim,
    /// Columns.
    pub n: Dim,
    /// The summed extent.
    pub k: Dim,
    /// First operand, over `%0 %1 %3`.
    pub a: ExprId,
    /// Second operands, over `%0 %3 %2`; several only where [`thin`] holds.
    pub b: Vec<ExprId>,
    /// Values summed over k beside the products, over `%0 %1 %3`; only if [`thin`] holds.
    pub sums: Vec<ExprId>,
    /// Whether the operand beside quantised weights may be rounded to 8 bits, in groups of [`GROUP`] along k that share a scale.
    pub rounded: bool,
}

/// Neighbouring k that share a scale where an operand of a [`Matmul`] is rounded: the greatest magnitude over 127.
pub const GROUP: u32 = 32;

/// Attention with online softmax, accumulated in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Independent problems (batch × heads).
    pub batch: Dim,
    /// Queries.
    pub s: Dim,
    /// Keys.
    pub t: Dim,
    /// Width of queries and keys.
    pub d: Dim,
    /// Width of values.
    pub e: Dim,
    /// Queries, over `%0 %1 %3`.
    pub q: ExprId,
    /// Keys, over `%0 %2 %3`.
    pub k: ExprId,
    /// Values, over `%0 %2 %4`.
    pub v: ExprId,
    /// Added to the scaled scores, over `%0 %1 %2`.
    pub mask: Option<ExprId>,
    /// The factor of the scores.
    pub scale: f32,
    /// Whether keys whose score is at most the least finite number have no weight; a query without other keys gives 0.
    pub empty_is_zero: bool,
    /// The number of equal parts of the keys; the last ones may be shorter. Several parts require few queries.
    pub parts: Dim,
    /// Stores once per query and part, of `Acc(1)`, the highest score, and `Acc(2)`, `Σₜ exp(score − Acc(1))`. If there are any, each part has
    /// its own results: `Acc(0)` is then `Σₜ exp(score − Acc(1))·v`.
    pub part_stores: Vec<Store>,
}

/// The kind of a kernel, with the fields that only that kind has.
#[derive(Clone, Debug, PartialEq)]
pub enum Family {
    /// One invocation computes one element, or a few neighbouring ones.
    Map(Map),
    /// Reductions over rows.
    Row(Row),
    /// A prefix scan of each row: `Acc(0)` at `%1` combines the positions up to it.
    PrefixScan(PrefixScan),
    /// Rows cut into parts, each of which is sorted.
    Sort(Sort),
    /// A loop that every lane runs in one invocation.
    Loop(Loop),
    /// A loop that a workgroup runs for each lane, with the carried values in workgroup memory.
    StagedLoop(StagedLoop),
    /// Products of matrices that share their first operand, accumulated in f32.
    Matmul(Matmul),
    /// Attention with online softmax, accumulated in f32.
    Attention(Attention),
}

/// Whether a product has so few rows that every workgroup computes all of them.
pub fn thin(batch: &Dim, m: &Dim) -> bool {
    batch.is(1) && m.as_const().is_some_and(|m| (1..=8).contains(&m))
}

/// The expressions and stores of a [`Family`], by reference (`iter`) or by mutable reference (`iter_mut`): the only code that knows which
/// fields of a family are expressions and which are stores.
macro_rules! parts {
    ($family:expr, $iter:ident) => {{
        let (mut exprs, mut stores) = (vec![], vec![]);
        match $family {
            Family::Map(_) => {}
            Family::Row(Row { reductions, row_stores, .. }) => {
                for Reduction { kind, value, .. } in reductions.$iter() {
                    exprs.push(value);
                    if let ReduceKind::Last { when, init } = kind {
                        exprs.extend([when, init]);
                    }
                }
                stores.extend(row_stores.$iter());
            }
            Family::PrefixScan(PrefixScan { reduction, .. }) => {
                let Reduction { kind, value, .. } = reduction;
                exprs.push(value);
                if let ReduceKind::Last { when, init } = kind {
                    exprs.extend([when, init]);
                }
            }
            Family::Sort(Sort { key, .. }) => exprs.push(key),
            Family::Loop(Loop { carries, alive, part, step_stores, .. }) => {
                for Carry { init, next } in carries.$iter() {
                    exprs.extend([init, next]);
                }
                exprs.extend(alive.$iter());
                for Part { first, .. } in part.$iter() {
                    exprs.push(first);
                }
                stores.extend(step_stores.$iter());
            }
            Family::StagedLoop(StagedLoop { part, first, each, last, meet, .. }) => {
                stores.extend(meet.$iter());
                for Part { first, .. } in part.$iter() {
                    exprs.push(first);
                }
                for Stage { combined, writes, stores: own, .. } in
                    first.$iter().chain(each.$iter()).chain(last.$iter())
                {
                    for Combined { reduction: Reduction { kind, value, .. }, .. } in combined.$iter() {
                        exprs.push(value);
                        if let ReduceKind::Last { when, init } = kind {
                            exprs.extend([when, init]);
                        }
                    }
                    for Write { value, .. } in writes.$iter() {
                        exprs.push(value);
                    }
                    stores.extend(own.$iter());
                }
            }
            Family::Matmul(Matmul { a, b, sums, .. }) => {
                exprs.push(a);
                exprs.extend(b.$iter().chain(sums.$iter()));
            }
            Family::Attention(Attention { q, k, v, mask, part_stores, .. }) => {
                exprs.extend([q, k, v]);
                exprs.extend(mask.$iter());
                stores.extend(part_stores.$iter());
            }
        }
        (exprs, stores)
    }};
}

impl Family {
    /// The name in the IR's text and in programs.
    pub fn name(&self) -> &'static str {
        match self {
            Family::Map(_) => "map",
            Family::Row(_) => "row",
            Family::PrefixScan(_) => "prefix_scan",
            Family::Sort(_) => "sort",
            Family::Loop(_) => "loop",
            Family::StagedLoop(_) => "staged_loop",
            Family::Matmul(_) => "matmul",
            Family::Attention(_) => "attention",
        }
    }

    /// The expressions that the family itself evaluates, without those of stores, and the family's own stores: those once per row or
    /// part, or in every step or stage.
    pub fn parts(&self) -> (Vec<&ExprId>, Vec<&Store>) {
        parts!(self, iter)
    }

    /// [`Family::parts`] by mutable reference.
    pub fn parts_mut(&mut self) -> (Vec<&mut ExprId>, Vec<&mut Store>) {
        parts!(self, iter_mut)
    }

    /// The roles of its expressions, in words.
    pub fn roles(&self) -> Vec<(&'static str, ExprId)> {
        let named = |name: &'static str, ids: &[ExprId]| ids.iter().map(|id| (name, *id)).collect::<Vec<_>>();
        match self {
            Family::Map(_) => vec![],
            Family::Row(k) => k.reductions.iter().flat_map(|r| named("reduced", &r.roots())).collect(),
            Family::PrefixScan(k) => named("combined", &k.reduction.roots()),
            Family::Sort(k) => named("key", &[k.key]),
            Family::Loop(k) => {
                let carries = k.carries.iter().flat_map(|c| [("initial", c.init), ("each step", c.next)]);
                carries.chain(k.part.iter().map(|p| ("first step", p.first))).collect()
            }
            Family::StagedLoop(k) => {
                let of = |name: &'static str, all: &[Stage]| {
                    all.iter().flat_map(|s| named(name, &s.roots())).collect::<Vec<_>>()
                };
                let part = k.part.iter().map(|p| ("first step", p.first)).collect();
                [of("initial", &k.first), of("each step", &k.each), of("result", &k.last), part].concat()
            }
            Family::Matmul(k) => {
                [named("first operand", &[k.a]), named("second operand", &k.b), named("summed", &k.sums)]
                    .concat()
            }
            Family::Attention(k) => {
                let mask = k.mask.map(|m| ("mask", m));
                [("queries", k.q), ("keys", k.k), ("values", k.v)].into_iter().chain(mask).collect()
            }
        }
    }

    /// The extents of the iteration variables.
    pub fn domain(&self) -> Vec<Dim> {
        match self {
            Family::Map(Map { elements }) => vec![elements.clone()],
            Family::Row(Row { rows, len, .. }) | Family::PrefixScan(PrefixScan { rows, len, .. }) => {
                vec![rows.clone(), len.clone()]
            }
            Family::Sort(Sort { rows, len, places, .. }) => [rows, len, places].map(Dim::clone).into(),
            Family::Loop(Loop { lanes, steps, .. }) => lanes.iter().chain([steps]).cloned().collect(),
            Family::StagedLoop(l) => {
                let elements = l.stages().map(|s| s.elements).max().unwrap_or(1);
                let terms = l.stages().filter_map(|s| Some(s.combined.as_ref()?.terms)).max().unwrap_or(1);
                let inside = [elements, terms].map(|n| Dim::from(i64::from(n)));
                l.lanes.iter().chain([&l.steps]).cloned().chain(inside).collect()
            }
            Family::Matmul(Matmul { batch, m, n, k, .. }) => [batch, m, n, k].map(Dim::clone).into(),
            Family::Attention(Attention { batch, s, t, d, e, parts, .. }) => {
                [batch, s, t, d, e, parts].map(Dim::clone).into()
            }
        }
    }
}

impl StagedLoop {
    /// All stages, in order.
    pub fn stages(&self) -> impl Iterator<Item = &Stage> {
        self.first.iter().chain(&self.each).chain(&self.last)
    }
}
