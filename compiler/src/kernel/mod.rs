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
//! | `PrefixScan` | as `Row` | a running combination along each row |
//! | `Loop` | a variable for each axis of lanes, then the step | every lane repeats its steps: `Acc(i)` is what it carries; step stores in every step, stores after the last |
//! | `StagedLoop` | as `Loop`, then the element and the term of a stage | a workgroup repeats a lane's steps, each in stages that hand on arrays in workgroup memory; `Acc(i)` is what one of them combines over its terms |
//! | `Matmul` | `%0` batch, `%1` m, `%2` n, `%3` k | `Acc(i) = Σₖ a·bᵢ`, after those `Acc(j) = Σₖ sumⱼ`, then stores over batch, m, n |
//! | `Attention` | `%0` batch, `%1` s, `%2` t, `%3` d, `%4` e, `%5` part | `Acc(0) = softmaxₜ(Σ_d q·k·scale + mask)·v` over a part of t, then stores over batch, s, e, part |

mod body;
mod family;
mod text;

pub use body::{Body, Expr, ExprId, renumbered};
pub use family::{
    Array, Attention, Carry, Combined, Family, Loop, Map, Matmul, Part, PrefixScan, ReduceKind, Reduction,
    Row, Stage, StagedLoop, Write, thin,
};

use std::collections::BTreeSet;
use std::sync::Arc;
use wgfc_ir::computed::Bounds;
use wgfc_ir::{DType, Dim, Poly, ReduceOp, Tensor, TensorType};

/// Index of a [`KernelTensor`] in its [`KernelGraph`].
pub type TensorId = usize;

/// A result written to memory.
#[derive(Clone, Debug, PartialEq)]
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

impl Store {
    /// The same with another body's expressions: `of` numbers expressions anew, `index` rewrites index expressions.
    pub fn mapped(&self, of: impl Fn(ExprId) -> ExprId, mut index: impl FnMut(&Poly) -> Poly) -> Store {
        let (offset, value, guard) = (index(&self.offset), of(self.value), self.guard.map(of));
        Store { offset, value, guard, ..self.clone() }
    }
}

impl Kernel {
    /// The extents of its variables.
    pub fn domain(&self) -> Vec<Dim> {
        self.family.domain()
    }

    /// The symbols it uses.
    pub fn symbols(&self) -> BTreeSet<Arc<str>> {
        let mut out: BTreeSet<Arc<str>> = self.domain().iter().flat_map(Poly::symbols).collect();
        out.extend(self.all_stores().flat_map(|s| s.offset.symbols()));
        for e in self.body.reachable(&self.roots()) {
            out.extend(self.body.expr(e).index().into_iter().flat_map(Poly::symbols));
        }
        out
    }

    /// All stores, those once a row or part, or in every step or stage, first.
    pub fn all_stores(&self) -> impl Iterator<Item = &Store> {
        self.family.parts().1.into_iter().chain(&self.stores)
    }

    /// [`Kernel::all_stores`] to be changed.
    pub fn all_stores_mut(&mut self) -> impl Iterator<Item = &mut Store> {
        self.family.parts_mut().1.into_iter().chain(&mut self.stores)
    }

    /// The expressions that the kernel evaluates.
    pub fn roots(&self) -> Vec<ExprId> {
        let (exprs, own) = self.family.parts();
        let stores = own.into_iter().chain(&self.stores);
        exprs.into_iter().copied().chain(stores.flat_map(Store::reads)).collect()
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

    /// The same kernel with its tensors numbered otherwise.
    pub fn renumbered(&self, number: &dyn Fn(TensorId) -> TensorId) -> Kernel {
        self.moved(&|t, offset| (number(t), offset.clone()))
    }

    /// The same kernel reading and writing elsewhere: `to` gives the new place of an element of a tensor.
    pub fn moved(&self, to: &dyn Fn(TensorId, &Poly) -> (TensorId, Poly)) -> Kernel {
        let mut k = self.clone();
        k.body.move_loads(to);
        for s in k.all_stores_mut() {
            (s.tensor, s.offset) = to(s.tensor, &s.offset);
        }
        k
    }

    /// The same kernel over `body`, in which `of` is the number of each expression and `index` what an index expression
    /// of a store has become.
    pub fn over(
        &self,
        body: Body,
        of: &dyn Fn(ExprId) -> ExprId,
        index: &mut dyn FnMut(&Poly) -> Poly,
    ) -> Kernel {
        let mut k = Kernel { body, ..self.clone() };
        let (exprs, own) = k.family.parts_mut();
        for e in exprs {
            *e = of(*e);
        }
        for s in own.into_iter().chain(&mut k.stores) {
            *s = s.mapped(of, &mut *index);
        }
        k
    }
}
