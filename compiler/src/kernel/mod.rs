//! The kernel graph: what fusion makes and emission reads.
//!
//! A [`Kernel`] computes over a few *flat* iteration variables `%0, %1, …` whose meaning and extents
//! its [`Family`] fixes. Its [`Body`] is one arena of scalar expressions; loads address buffers by a
//! flat element offset, an index expression over those variables. `@e` in an index expression
//! ([`Atom::Data`]) is the `i32` value of expression `e` of the same body.
//!
//! | family | variables | what a kernel does |
//! |---|---|---|
//! | `Map` | `%0` element | every element: stores |
//! | `Row` | `%0` row, `%1` position in the row | reductions over the row one after another (each may use the results before it as `Acc`), then row stores (once a row) and element stores (every position) |
//! | `Scan` | as `Row` | a running combination along each row |
//! | `Loop` | a variable for each axis of lanes, then the step | every lane repeats its steps: `Acc(i)` is what it carries; step stores in every step, stores after the last |
//! | `Stages` | as `Loop`, then the element and the term of a stage | a workgroup repeats a lane's steps, each in stages that hand on arrays in workgroup memory; `Acc(i)` is what one of them combines over its terms |
//! | `Matmul` | `%0` batch, `%1` m, `%2` n, `%3` k | `Acc(i) = Σₖ a·bᵢ`, after those `Acc(j) = Σₖ sumⱼ`, then stores over batch, m, n |
//! | `Attention` | `%0` batch, `%1` s, `%2` t, `%3` d, `%4` e, `%5` part | `Acc(0) = softmaxₜ(Σ_d q·k·scale + mask)·v` over a part of t, then stores over batch, s, e, part |

mod text;

use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use wgfc_ir::computed::Bounds;
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly, ReduceOp, Scalar, Tensor, TensorType, UnaryOp};

/// Index of an [`Expr`] in its [`Body`].
pub type ExprId = u32;
/// Index of a [`KernelTensor`] in its [`KernelGraph`].
pub type TensorId = usize;

/// A scalar expression of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A constant.
    Const(Scalar),
    /// An index expression as an `i32`.
    Index(Poly),
    /// Element `offset` of a tensor. Where `guard` (a bool) is false nothing is read and the value is arbitrary.
    Load {
        /// Which tensor.
        tensor: TensorId,
        /// Flat element offset; inside the tensor whenever `guard` holds.
        offset: Poly,
        /// When it may be read.
        guard: Option<ExprId>,
    },
    /// Result `i` of the kernel's reductions.
    Acc(u32),
    /// Element `at` of an array in workgroup memory. Where `guard` (a bool) is false the value is arbitrary.
    Shared {
        /// Which array.
        array: u32,
        /// Which element; inside the array whenever `guard` holds.
        at: Poly,
        /// When it may be read.
        guard: Option<ExprId>,
    },
    /// One operand.
    Unary(UnaryOp, ExprId),
    /// Two operands of one type.
    Binary(BinaryOp, ExprId, ExprId),
    /// `if c { a } else { b }`.
    Select(ExprId, ExprId, ExprId),
    /// Conversion, as [`ScalarNode::Cast`](wgfc_ir::ScalarNode::Cast).
    Cast(DType, ExprId),
    /// The same bits as another type.
    Bitcast(DType, ExprId),
}

impl Expr {
    /// The same over other operands: `of` numbers expressions anew, `index` rewrites index expressions.
    pub fn mapped(&self, of: impl Fn(ExprId) -> ExprId, mut index: impl FnMut(&Poly) -> Poly) -> Expr {
        match self {
            Expr::Const(_) | Expr::Acc(_) => self.clone(),
            Expr::Index(p) => Expr::Index(index(p)),
            Expr::Load { tensor, offset, guard } => {
                Expr::Load { tensor: *tensor, offset: index(offset), guard: guard.map(of) }
            }
            Expr::Shared { array, at, guard } => {
                Expr::Shared { array: *array, at: index(at), guard: guard.map(of) }
            }
            Expr::Unary(op, a) => Expr::Unary(*op, of(*a)),
            Expr::Binary(op, a, b) => Expr::Binary(*op, of(*a), of(*b)),
            Expr::Select(c, a, b) => Expr::Select(of(*c), of(*a), of(*b)),
            Expr::Cast(t, a) => Expr::Cast(*t, of(*a)),
            Expr::Bitcast(t, a) => Expr::Bitcast(*t, of(*a)),
        }
    }
}

/// An index expression whose data are numbered anew.
pub fn renumbered(p: &Poly, of: impl Fn(ExprId) -> ExprId, domain: &[Dim]) -> Poly {
    if p.data().is_empty() {
        return p.clone();
    }
    let rename = |a: &Atom| match a {
        Atom::Data(d) => Some(Poly::atom(Atom::Data(of(*d)))),
        _ => None,
    };
    p.subst(&rename, domain)
}

/// An arena of expressions, operands before users, equal ones once.
#[derive(Clone, Debug, Default)]
pub struct Body {
    exprs: Vec<(Expr, DType)>,
    known: FxHashMap<Expr, ExprId>,
}

impl Body {
    /// Adds an expression of element type `dtype`, or finds the equal one.
    pub fn push(&mut self, e: Expr, dtype: DType) -> ExprId {
        if let Some(id) = self.known.get(&e) {
            return *id;
        }
        let id = self.exprs.len() as ExprId;
        self.known.insert(e.clone(), id);
        self.exprs.push((e, dtype));
        id
    }
    /// The expression, if it is there.
    pub fn find(&self, e: &Expr) -> Option<ExprId> {
        self.known.get(e).copied()
    }
    /// An expression.
    pub fn expr(&self, id: ExprId) -> &Expr {
        &self.exprs[id as usize].0
    }
    /// Its element type.
    pub fn dtype(&self, id: ExprId) -> DType {
        self.exprs[id as usize].1
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.exprs.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty()
    }
    /// All expressions with their types, in evaluation order.
    pub fn iter(&self) -> impl Iterator<Item = (ExprId, &Expr, DType)> {
        self.exprs.iter().enumerate().map(|(i, (e, t))| (i as ExprId, e, *t))
    }
    /// The expressions that one reads directly, those inside its index expressions included.
    pub fn operands(&self, id: ExprId) -> Vec<ExprId> {
        match self.expr(id) {
            Expr::Const(_) | Expr::Acc(_) => vec![],
            Expr::Index(p) => p.data().into_iter().collect(),
            Expr::Load { offset: at, guard, .. } | Expr::Shared { at, guard, .. } => {
                at.data().into_iter().chain(*guard).collect()
            }
            Expr::Unary(_, a) | Expr::Cast(_, a) | Expr::Bitcast(_, a) => vec![*a],
            Expr::Binary(_, a, b) => vec![*a, *b],
            Expr::Select(a, b, c) => vec![*a, *b, *c],
        }
    }
    /// Everything the roots depend on, themselves included, in evaluation order.
    pub fn reachable(&self, roots: &[ExprId]) -> Vec<ExprId> {
        let mut seen = vec![false; self.exprs.len()];
        let mut stack = roots.to_vec();
        while let Some(id) = stack.pop() {
            if !std::mem::replace(&mut seen[id as usize], true) {
                stack.extend(self.operands(id));
            }
        }
        (0..self.exprs.len() as ExprId).filter(|i| seen[*i as usize]).collect()
    }
}

/// A result written to memory.
#[derive(Clone, Debug)]
pub struct Store {
    /// Which tensor.
    pub tensor: TensorId,
    /// Flat element offset.
    pub offset: Poly,
    /// What is written, of the tensor's element type.
    pub value: ExprId,
    /// When it is written; always if absent.
    pub guard: Option<ExprId>,
    /// How it combines with what is there, instead of replacing it: an operation in whose results the order of the
    /// stores makes no difference ([`combines`]). The kernel reads nothing of the tensor.
    pub combine: Option<ReduceOp>,
}

/// Whether stores of `t` can combine with what is there: integers of 32 bits, and sums of those of 64.
pub fn combines(op: ReduceOp, t: DType) -> bool {
    match op {
        ReduceOp::Sum => matches!(t, DType::I32 | DType::U32 | DType::I64 | DType::U64),
        ReduceOp::Max | ReduceOp::Min => matches!(t, DType::I32 | DType::U32),
        ReduceOp::Prod => false,
    }
}

impl Store {
    /// The expressions that it reads.
    pub fn reads(&self) -> impl Iterator<Item = ExprId> + '_ {
        self.offset.data().into_iter().chain(self.guard).chain([self.value])
    }
}

/// One reduction of a row.
#[derive(Clone, Debug)]
pub struct Reduction {
    /// How elements combine.
    pub kind: ReduceKind,
    /// What is reduced, over `%0` and `%1`; may use earlier results as `Acc`.
    pub value: ExprId,
    /// Element type of the result.
    pub dtype: DType,
}

/// An array in workgroup memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Its element type.
    pub dtype: DType,
    /// How many elements.
    pub len: u32,
}

/// What the invocations of a workgroup do before they wait for each other: all elements of some values.
#[derive(Clone, Debug)]
pub struct Stage {
    /// How many elements.
    pub elements: u32,
    /// What is combined for each of them.
    pub combined: Option<Combined>,
    /// What is put into arrays.
    pub writes: Vec<Write>,
    /// What is written to memory.
    pub stores: Vec<Store>,
}

/// What a stage combines for an element.
#[derive(Clone, Debug)]
pub struct Combined {
    /// How many terms.
    pub terms: u32,
    /// The result is `Acc` of this number, of which each kernel has one only.
    pub acc: u32,
    /// How.
    pub reduction: Reduction,
}

/// An element of an array in workgroup memory that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which array; the element is that of the stage.
    pub array: u32,
    /// What is written, of the array's element type.
    pub value: ExprId,
}

impl Stage {
    /// The expressions that it evaluates.
    pub fn roots(&self) -> Vec<ExprId> {
        let reduced = self.combined.iter().map(|c| c.reduction.value);
        let stored = self.stores.iter().flat_map(Store::reads);
        reduced.chain(self.writes.iter().map(|w| w.value)).chain(stored).collect()
    }
}

/// Some of the steps of a [`Family::Loop`]: a dispatch that takes long may be ended by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first step (i32), over nothing.
    pub first: ExprId,
    /// How many there are at most.
    pub most: u32,
}

/// A value that a lane of a [`Family::Loop`] carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carry {
    /// Before the first step, over the lanes' variables.
    pub init: ExprId,
    /// After a step, over all variables and what is carried into the step.
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

/// What kind of kernel it is, with what only that kind has.
#[derive(Clone, Debug)]
pub enum Family {
    /// One invocation computes one element, or a few neighbouring ones.
    Map {
        /// Number of elements.
        elements: Dim,
    },
    /// Reductions over rows.
    Row {
        /// Number of rows.
        rows: Dim,
        /// Positions of a row.
        len: Dim,
        /// In order.
        reductions: Vec<Reduction>,
        /// Written once a row, over `%0` and the results.
        row_stores: Vec<Store>,
    },
    /// A running combination along a row: `Acc(0)` at `%1` combines positions up to it.
    Scan {
        /// Number of rows.
        rows: Dim,
        /// Positions of a row.
        len: Dim,
        /// `Sum`, `Prod`, ….
        reduction: Reduction,
        /// The position itself is left out.
        exclusive: bool,
        /// From the end.
        reverse: bool,
    },
    /// Steps that every lane repeats on its own.
    Loop {
        /// Extents of the lanes' axes, a variable each.
        lanes: Vec<Dim>,
        /// How many steps; the variable behind those of the lanes counts them.
        steps: Dim,
        /// Which of them, where they are not all.
        part: Option<Part>,
        /// What a lane carries from step to step: `Acc(i)`.
        carries: Vec<Carry>,
        /// A lane may stop before a step in which this, over the lanes and what is carried, is false:
        /// nothing changes any more.
        alive: Option<ExprId>,
        /// Written in every step.
        step_stores: Vec<Store>,
    },
    /// Steps that a workgroup repeats for each lane, what the lane carries in workgroup memory.
    Stages {
        /// Extents of the lanes' axes, a variable each.
        lanes: Vec<Dim>,
        /// How many steps; the variable behind those of the lanes counts them, the next two are a stage's element
        /// and term.
        steps: Dim,
        /// Which of them, where they are not all.
        part: Option<Part>,
        /// The arrays.
        arrays: Vec<Array>,
        /// Before the first step.
        first: Vec<Stage>,
        /// In each step, one after another.
        each: Vec<Stage>,
        /// After the last step.
        last: Vec<Stage>,
        /// An array of one bool: before a step in which it is false the lane may stop, nothing changes any more.
        alive: Option<u32>,
        /// Why a lane takes a workgroup.
        why: String,
    },
    /// Products of matrices that share their first operand, accumulated in f32.
    Matmul {
        /// Number of independent products.
        batch: Dim,
        /// Rows.
        m: Dim,
        /// Columns.
        n: Dim,
        /// Summed over.
        k: Dim,
        /// First operand, over `%0 %1 %3`.
        a: ExprId,
        /// Second operands, over `%0 %3 %2`; several only where [`thin`] holds.
        b: Vec<ExprId>,
        /// Summed over k beside the products, over `%0 %1 %3`; only where [`thin`] holds.
        sums: Vec<ExprId>,
    },
    /// Attention with online softmax, accumulated in f32.
    Attention {
        /// Independent problems (batch × heads).
        batch: Dim,
        /// Queries.
        s: Dim,
        /// Keys.
        t: Dim,
        /// Width of queries and keys.
        d: Dim,
        /// Width of values.
        e: Dim,
        /// Over `%0 %1 %3`.
        q: ExprId,
        /// Over `%0 %2 %3`.
        k: ExprId,
        /// Over `%0 %2 %4`.
        v: ExprId,
        /// Added to the scaled scores, over `%0 %1 %2`.
        mask: Option<ExprId>,
        /// Scores are multiplied by it.
        scale: f32,
        /// Equal parts of the keys (the last ones shorter). Of more than one, which needs few queries,
        /// each has results of its own: `Acc(0)` is then `Σₜ exp(score − Acc(1))·v`.
        parts: u32,
        /// Written once for each query and part: `Acc(1)`, the highest score, and `Acc(2)`,
        /// `Σₜ exp(score − Acc(1))`.
        part_stores: Vec<Store>,
    },
}

/// Whether a product has few rows enough for every workgroup to make all of them.
pub fn thin(batch: &Dim, m: &Dim) -> bool {
    batch.is(1) && m.as_const().is_some_and(|m| (1..=8).contains(&m))
}

/// One dispatch to be.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its kind.
    pub family: Family,
    /// Its expressions.
    pub body: Body,
    /// Element stores.
    pub stores: Vec<Store>,
    /// The model's nodes it computes.
    pub nodes: Vec<Arc<str>>,
}

/// Memory a kernel reads or writes.
#[derive(Clone, Debug)]
pub struct KernelTensor {
    /// Element type and shape.
    pub ty: TensorType,
    /// What it is.
    pub kind: TensorKind,
    /// The model's name for it, if it has one.
    pub name: Option<Arc<str>>,
}

/// What a [`KernelTensor`] is.
#[derive(Clone, Debug)]
pub enum TensorKind {
    /// Input `i` of the program.
    Input(usize),
    /// Output `i` of the program.
    Output(usize),
    /// A constant.
    Const(Arc<Tensor>),
    /// State `state` of the graph. What it is before a run and what it becomes are two tensors that
    /// share their memory: who reads the first comes before who writes the second.
    State {
        /// Which state.
        state: usize,
        /// What it becomes.
        after: bool,
    },
    /// Made and read by kernels only.
    Intermediate,
    /// What lies in the memory of another tensor before that is written: its writer comes first, and nothing
    /// reads it.
    Under(TensorId),
}

/// Kernels in an order in which they can run, and the tensors between them.
#[derive(Clone, Debug, Default)]
pub struct KernelGraph {
    /// The tensors.
    pub tensors: Vec<KernelTensor>,
    /// The kernels.
    pub kernels: Vec<Kernel>,
    /// Kernels that run again and again; of two that overlap, the one inside is the later.
    pub repeats: Vec<Repeat>,
    /// The tensor that holds the value of each computed symbol.
    pub computed: Vec<(Arc<str>, TensorId)>,
    /// What computed symbols are at most.
    pub bounds: Bounds,
}

/// Kernels that run one after another, all of them several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Which.
    pub kernels: std::ops::Range<usize>,
    /// How often.
    pub times: Dim,
    /// What they leave for the next time, and what all times fill together.
    pub keeps: Vec<TensorId>,
    /// Why they are not one kernel.
    pub why: String,
    /// What ends them, where `times` is only a round.
    pub until: Option<Until>,
}

/// What ends kernels that run in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until {
    /// An i32 that is 0 after the round in which they ended.
    pub word: TensorId,
    /// Rounds after which it is an error that they have not.
    pub rounds: u64,
}

impl Kernel {
    /// The extents of its variables.
    pub fn domain(&self) -> Vec<Dim> {
        match &self.family {
            Family::Map { elements } => vec![elements.clone()],
            Family::Row { rows, len, .. } | Family::Scan { rows, len, .. } => vec![rows.clone(), len.clone()],
            Family::Loop { lanes, steps, .. } => lanes.iter().chain([steps]).cloned().collect(),
            Family::Stages { lanes, steps, .. } => {
                let elements = self.stages().map(|s| s.elements).max().unwrap_or(1);
                let terms = self.stages().filter_map(|s| Some(s.combined.as_ref()?.terms)).max().unwrap_or(1);
                let inside = [elements, terms].map(|n| Dim::from(i64::from(n)));
                lanes.iter().chain([steps]).cloned().chain(inside).collect()
            }
            Family::Matmul { batch, m, n, k, .. } => vec![batch.clone(), m.clone(), n.clone(), k.clone()],
            Family::Attention { batch, s, t, d, e, parts, .. } => {
                let parts = Dim::from(i64::from(*parts));
                vec![batch.clone(), s.clone(), t.clone(), d.clone(), e.clone(), parts]
            }
        }
    }

    /// The stages of [`Family::Stages`], in order.
    pub fn stages(&self) -> impl Iterator<Item = &Stage> {
        let all: [&[Stage]; 3] = match &self.family {
            Family::Stages { first, each, last, .. } => [first, each, last],
            _ => [&[]; 3],
        };
        all.into_iter().flatten()
    }

    /// The symbols it uses.
    pub fn symbols(&self) -> BTreeSet<Arc<str>> {
        let mut out: BTreeSet<Arc<str>> = self.domain().iter().flat_map(Poly::symbols).collect();
        out.extend(self.all_stores().flat_map(|s| s.offset.symbols()));
        for e in self.body.reachable(&self.roots()) {
            if let Expr::Index(p) | Expr::Load { offset: p, .. } | Expr::Shared { at: p, .. } =
                self.body.expr(e)
            {
                out.extend(p.symbols());
            }
        }
        out
    }

    /// All stores, those once a row or part, or in every step, first.
    pub fn all_stores(&self) -> impl Iterator<Item = &Store> {
        let row: &[Store] = match &self.family {
            Family::Row { row_stores, .. } => row_stores,
            Family::Loop { step_stores, .. } => step_stores,
            Family::Attention { part_stores, .. } => part_stores,
            _ => &[],
        };
        self.stages().flat_map(|s| &s.stores).chain(row).chain(&self.stores)
    }

    /// The expressions that the kernel evaluates.
    pub fn roots(&self) -> Vec<ExprId> {
        let mut r: Vec<ExprId> = self.all_stores().flat_map(Store::reads).collect();
        r.extend(self.stages().flat_map(Stage::roots));
        match &self.family {
            Family::Map { .. } => {}
            Family::Row { reductions, .. } => {
                for x in reductions {
                    r.push(x.value);
                    if let ReduceKind::Last { when, init } = x.kind {
                        r.extend([when, init]);
                    }
                }
            }
            Family::Scan { reduction, .. } => r.push(reduction.value),
            Family::Loop { carries, alive, part, .. } => {
                let first = part.iter().map(|p| p.first);
                r.extend(carries.iter().flat_map(|c| [c.init, c.next]).chain(*alive).chain(first));
            }
            Family::Stages { part, .. } => r.extend(part.iter().map(|p| p.first)),
            Family::Matmul { a, b, sums, .. } => r.extend([*a].iter().chain(b).chain(sums)),
            Family::Attention { q, k, v, mask, .. } => r.extend([*q, *k, *v].into_iter().chain(*mask)),
        }
        r
    }

    /// The tensors it reads, in order of first use, each once.
    pub fn reads(&self) -> Vec<TensorId> {
        let mut out = vec![];
        for id in self.body.reachable(&self.roots()) {
            if let Expr::Load { tensor, .. } = self.body.expr(id)
                && !out.contains(tensor)
            {
                out.push(*tensor);
            }
        }
        out
    }
    /// The same kernel with its tensors numbered otherwise.
    pub fn renumbered(&self, number: &dyn Fn(TensorId) -> TensorId) -> Kernel {
        self.moved(&|t, offset| (number(t), offset.clone()))
    }

    /// The same kernel reading and writing elsewhere: `to` gives the new place of an element of a tensor.
    pub fn moved(&self, to: &dyn Fn(TensorId, &Poly) -> (TensorId, Poly)) -> Kernel {
        let mut k = self.clone();
        for (e, _) in &mut k.body.exprs {
            if let Expr::Load { tensor, offset, .. } = e {
                (*tensor, *offset) = to(*tensor, offset);
            }
        }
        k.body.known = k.body.exprs.iter().enumerate().map(|(i, (e, _))| (e.clone(), i as ExprId)).collect();
        let mut staged = vec![];
        if let Family::Stages { first, each, last, .. } = &mut k.family {
            let all = first.iter_mut().chain(each).chain(last);
            staged.extend(all.flat_map(|s| &mut s.stores));
        }
        for s in staged {
            (s.tensor, s.offset) = to(s.tensor, &s.offset);
        }
        let row = match &mut k.family {
            Family::Row { row_stores, .. } => row_stores.as_mut_slice(),
            Family::Loop { step_stores, .. } => step_stores.as_mut_slice(),
            Family::Attention { part_stores, .. } => part_stores.as_mut_slice(),
            _ => &mut [],
        };
        for s in row.iter_mut().chain(&mut k.stores) {
            (s.tensor, s.offset) = to(s.tensor, &s.offset);
        }
        k
    }

    /// The tensors it writes, each once.
    pub fn writes(&self) -> Vec<TensorId> {
        let mut out = vec![];
        for s in self.all_stores() {
            if !out.contains(&s.tensor) {
                out.push(s.tensor);
            }
        }
        out
    }
}
