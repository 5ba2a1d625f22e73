//! The kernel graph: what fusion makes, what is scheduled and written as WGSL. [`parse()`] reads it from text and
//! `Display` prints it; this page says what it means, so that one can write a kernel by hand.
//!
//! # A graph
//! A [`KernelGraph`] is a list of tensors in memory and of kernels that run one after another, each as if it were alone
//! and all it writes were there before the next begins. [`Repeat`]s run a range of kernels several times. Symbols
//! (`n`, `past`) are sizes that are known when the program runs; a *computed* symbol is read from a tensor that an earlier
//! kernel writes, and is at most its bound.
//!
//! # A kernel
//! A [`Kernel`] evaluates expressions at all points of an iteration domain. Its variables `%0, %1, …` run from 0 to below
//! the extents that its [`Family`] names. Points are computed in any order and at the same time; what one writes no
//! other may read, but for what the family says it hands on. A kernel with an extent of 0 does nothing, except that a
//! reduction over nothing has the value it begins with.
//!
//! | family | text | variables | what it does |
//! |---|---|---|---|
//! | [`Map`] | `map [elements]` | element | its stores, for each element |
//! | [`Row`] | `row [rows, len]` | row, position | its reductions over the positions of a row, one after another: `acc0`, `acc1`, … Each may read those before it. Then `row` stores, once a row, and stores, for each position |
//! | [`PrefixScan`] | `prefix_scan [rows, len]` | row, position | stores for each position, where `acc0` combines the positions up to this one; `exclusive`: without it; `reverse`: from this one to the end |
//! | [`Sort`] | `sort [rows, len, places] sorted s part p keep k` | row, position, place | cuts each row into parts of `p` positions, of which each `s` neighbours are in order already, and of each keeps the `k` least keys in order: `acc0` is the key (u64) at a place; stores for each row and place. Of parts that are kept whole places are positions; what others lack is the greatest key |
//! | [`Loop`] | `loop [lanes…] steps [n]` | one an axis of lanes, step | for each lane: `acc i` is what `init` gives; then for each step in order `step` stores, and all `acc` become what `next` gives of the old ones; stores after the last. `while`: a lane may stop before a step in which this is false, as no step changes anything from then on |
//! | [`StagedLoop`] | `staged_loop [lanes…] steps [n]` | as `Loop`, then element, term | the same by a workgroup for each lane, through arrays `s0, s1, …` in its memory: the stages `first` once, the stages `each` in every step, the stages `last` once. A stage computes all its elements before it writes: `acc` combines its terms, arrays and tensors are written at its element. `meet` says where words are in which several workgroups meet that share a lane, its first one; nothing is stored there |
//! | [`Matmul`] | `matmul [batch, m, n, k]` | batch, m, n, k | `acc i` is the sum over k of the first operand and the i-th second one, in f32; results behind those are sums of an expression over batch, m, k; then stores, for each batch, m, n. `rounded`: the operand beside weights that are integers may be rounded to 8 bits, in groups of 32 along k |
//! | [`Attention`] | `attention [batch, s, t, d, e] parts p` | batch, s, t, d, e, part | `acc0` is `Σₜ softmaxₜ(scale·Σ_d q·k + mask)·v` in f32, then stores, for each batch, s, e. Of several parts each has a range of keys: `acc0 = Σₜ exp(score − acc1)·v`, stores also for each part, and `part` stores once for each batch, s and part of `acc1`, the greatest score, and `acc2 = Σₜ exp(score − acc1)` |
//!
//! A loop `from e most p` is a part of one: it begins with the step that expression `e`, over nothing, gives, and does at
//! most `p` of them.
//!
//! # Expressions
//! A [`Body`] is a list of expressions, operands before users, each with its element type. Index expressions are
//! [`Poly`]s over the kernel's variables, symbols, and values of expressions: `@3` is the `i32` that `e3` has. Their
//! arithmetic is that of integers without a limit; what a device computes agrees, as every tensor has fewer than 2³¹
//! elements.
//!
//! | text | value |
//! |---|---|
//! | `1.5:f32`, `true` | a constant |
//! | `index(2*%0 + n)` | an index expression as `i32` |
//! | `t2[%0] if e1` | the element of tensor 2 at a flat offset. Where the guard `e1` is false nothing is read and the value is arbitrary |
//! | `acc0` | a result of the family |
//! | `s0[%2] if e1` | an element of an array of a `StagedLoop`, likewise |
//! | `add(e1, e2)`, `exp(e1)`, `select(e1, e2, e3)`, `cast(f16, e1)`, `bitcast(u32, e1)` | as [`ScalarFn`](wgfc_ir::ScalarFn) has them. Both values of a `select` are evaluated |
//!
//! A load whose guard holds, or that has none, is inside its tensor; so is a store. Of guards the evaluation of
//! others may depend: an expression that is read only where a condition is true may be arbitrary elsewhere.
//!
//! # Stores
//! `t3[offset] = e4 if e5` writes where its guard is true. No two points of a kernel write the same element, except that stores at
//! offsets from data (`@`) may coincide, in which case one of the values remains. A kernel may write a tensor *in place*, that is, one
//! whose memory it also reads, if each element is read only by the point that writes it, and before that: [`in_place`] defines the order
//! of reads and writes of a kernel, and [`verify()`] rejects a kernel that needs another order. `= sum e4` combines with the old value in
//! any order ([`combines`]); the kernel then reads nothing of the tensor. The value has the tensor's type; an f32 that is stored as f16
//! is rounded by the device to one of its two neighbours.
//!
//! # Text
//! ```text
//! t0: f32[n, 7] input 0 as "x"
//! t1: f32[7] const [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0] as "w"
//! t2: f32[n] output 0 as "y"
//!
//! kernel 0 row [n, 7] @ "product", "relu"
//!   e0: f32 = t0[7*%0 + %1]
//!   e1: f32 = t1[%1]
//!   e2: f32 = mul(e0, e1)
//!   e3: f32 = acc0
//!   e4: f32 = 0.0:f32
//!   e5: f32 = max(e3, e4)
//!   acc0 = sum(e2): f32
//!   row t2[%0] = e5
//! ```
//! Tensors come first, one per line: type, kind ([`TensorKind`]), name. `compute n = t3` and `bound n = 2*m` give the tensor that holds a
//! computed symbol, and its upper bound. Kernels and their expressions are numbered from 0; `@` names the model's nodes. `repeat 3..7
//! times [n] keeps [t2] until t5 rounds 100 as "why"` comes last.
//!
//! Printing a parsed graph gives the same text. Constants of up to [`INLINE_ELEMENTS`](wgfc_ir::text::INLINE_ELEMENTS) elements are
//! printed in full, others as `const hash …`, which is parsed as [`TensorKind::Withheld`].

pub mod bindings;
mod body;
pub mod bounds;
pub mod dependence;
mod family;
mod hash;
pub mod in_place;
pub mod integers;
pub mod length;
mod parse;
pub mod passes;
pub mod places;
mod print;
pub mod substitute;
#[cfg(test)]
mod tests;
mod verify;
pub mod window;

pub use body::{Body, Expr, ExprId, renumbered};
pub use family::{
    Array, Attention, Carry, Combined, Family, GROUP, Loop, Map, Matmul, Part, PrefixScan, ReduceKind,
    Reduction, Row, Sort, Stage, StagedLoop, Write, thin,
};
pub use hash::Capacity;
pub use parse::parse;
pub use verify::verify;

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
    /// The stored value, of the tensor's element type, or f32 that is rounded to f16.
    pub value: ExprId,
    /// The condition under which it is written; always if absent.
    pub guard: Option<ExprId>,
    /// The operation that combines the value with the old one, instead of replacing it. Its result must not depend on the order of the
    /// stores ([`combines`]), and the kernel must not read the tensor.
    pub combine: Option<ReduceOp>,
}

/// Whether stores of type `t` can combine with the old value: 32-bit integers, and sums of 64-bit integers.
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

/// A kernel, which becomes one dispatch.
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
    /// The kind of the tensor.
    pub kind: TensorKind,
    /// The model's name for it, if it has one.
    pub name: Option<Arc<str>>,
}

/// The kind of a [`KernelTensor`].
#[derive(Clone, Debug)]
pub enum TensorKind {
    /// Input `i` of the program.
    Input(usize),
    /// Output `i` of the program.
    Output(usize),
    /// A constant.
    Const(Arc<Tensor>),
    /// A constant that a text leaves out: the hash of its bytes. Such kernels can be looked at and verified; their
    /// program has no values for it.
    Withheld(u64),
    /// State `state` of the graph. Its contents before and after a run are two tensors that share their memory: readers of the first come
    /// before the writer of the second.
    State {
        /// Which state.
        state: usize,
        /// Whether it grows along an axis, whose extent a hash may ignore ([`Capacity`]).
        grows: bool,
        /// Whether it is the contents after the run.
        after: bool,
    },
    /// Written and read by kernels only.
    Intermediate,
    /// A tensor that shares the memory of another one, before that is written: its writer comes first, and nothing reads it.
    Under(TensorId),
}

/// Kernels in an order in which they can run, and the tensors between them.
#[derive(Clone, Debug, Default)]
pub struct KernelGraph {
    /// The tensors.
    pub tensors: Vec<KernelTensor>,
    /// The kernels.
    pub kernels: Vec<Kernel>,
    /// Ranges of kernels that run repeatedly; of two nested ranges, the inner one comes later in the list.
    pub repeats: Vec<Repeat>,
    /// The tensor that holds the value of each computed symbol.
    pub computed: Vec<(Arc<str>, TensorId)>,
    /// The upper bounds of computed symbols.
    pub bounds: Bounds,
}

/// A range of kernels that runs several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The range.
    pub kernels: std::ops::Range<usize>,
    /// The number of times.
    pub times: Dim,
    /// The tensors that are kept from one time to the next, and those to which every time adds.
    pub keeps: Vec<TensorId>,
    /// The reason why they are not one kernel.
    pub why: String,
    /// The condition that ends the repetition, if `times` is only one round.
    pub until: Option<Until>,
}

/// The condition that ends kernels that run in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until {
    /// An i32 that is 0 after the round in which the kernels ended.
    pub word: TensorId,
    /// The number of rounds after which it is an error that they have not ended.
    pub rounds: u64,
}

impl Store {
    /// This store over another body: `of` renumbers expressions, `index` rewrites index expressions.
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

    /// All stores; those once per row or part, or in every step or stage, come first.
    pub fn all_stores(&self) -> impl Iterator<Item = &Store> {
        self.family.parts().1.into_iter().chain(&self.stores)
    }

    /// [`Kernel::all_stores`] by mutable reference.
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

    /// This kernel with its tensors renumbered.
    pub fn renumbered(&self, number: &dyn Fn(TensorId) -> TensorId) -> Kernel {
        self.moved(&|t, offset| (number(t), offset.clone()))
    }

    /// This kernel with its accesses redirected: `to` maps an element of a tensor to its new place.
    pub fn moved(&self, to: &dyn Fn(TensorId, &Poly) -> (TensorId, Poly)) -> Kernel {
        let mut k = self.clone();
        k.body.move_loads(to);
        for s in k.all_stores_mut() {
            (s.tensor, s.offset) = to(s.tensor, &s.offset);
        }
        k
    }

    /// This kernel over `body`, in which `of` gives the number of each expression and `index` rewrites the index expressions of stores.
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
