//! The identity of a kernel: a hash of its structure.

use super::{
    Attention, Carry, Expr, ExprId, Family, Kernel, KernelTensor, Loop, Map, Matmul, Part, PrefixScan,
    ReduceKind, Reduction, Row, Sort, Stage, StagedLoop, Store, TensorId, TensorKind,
};
use rustc_hash::FxHashMap;
use wgfc_ir::{Atom, DType, Dim, Poly, Scalar};

/// Whether kernels that differ only in the capacities of states have the same hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// They differ.
    Counts,
    /// They are the same: shapes of growing states, offsets into them, and comparisons with their extents are ignored. This serves to
    /// cache choices that hold for any capacity.
    Ignored,
}

impl Kernel {
    /// The tensors it reads, then those it only writes, in order of first use.
    pub fn tensors(&self) -> Vec<TensorId> {
        let mut all = self.reads();
        for t in self.writes() {
            if !all.contains(&t) {
                all.push(t);
            }
        }
        all
    }

    /// A hash of a kernel's behaviour. Kernels have equal hashes if they differ only in node names, in the numbers of tensors of equal
    /// types, and in expressions that are not evaluated. `all` are the graph's tensors.
    ///
    /// It is the 128-bit FNV-1a hash of a fixed encoding, equal on all machines and in all versions with the same IR. Collisions between
    /// the kernels of a program are not expected.
    pub fn structural_hash(&self, all: &[KernelTensor], capacity: Capacity) -> u128 {
        let mut h = Structure::new(self, all, capacity);
        h.kernel(self);
        h.state
    }
}

struct Structure<'k> {
    state: u128,
    capacity: Capacity,
    all: &'k [KernelTensor],
    tensors: Vec<TensorId>,
    order: Vec<ExprId>,
    number: FxHashMap<ExprId, usize>,
    /// Extents of the growing states whose capacity is ignored.
    extents: Vec<Dim>,
}

impl<'k> Structure<'k> {
    fn new(kernel: &Kernel, all: &'k [KernelTensor], capacity: Capacity) -> Structure<'k> {
        let order = kernel.body.reachable(&kernel.roots());
        let number = order.iter().enumerate().map(|(i, e)| (*e, i)).collect();
        let state = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        let tensors = kernel.tensors();
        let mut h = Structure { state, capacity, all, tensors, order, number, extents: vec![] };
        let extents = |t: &TensorId| all.get(*t).map(|t| t.ty.shape.clone()).unwrap_or_default();
        h.extents = h.tensors.iter().filter(|t| h.is_open(**t)).flat_map(extents).collect();
        h
    }

    /// Whether the tensor is a growing state whose capacity is ignored.
    fn is_open(&self, t: TensorId) -> bool {
        let grows = matches!(self.all.get(t).map(|t| &t.kind), Some(TensorKind::State { grows: true, .. }));
        grows && self.capacity == Capacity::Ignored
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.state =
                (self.state ^ u128::from(*b)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
    fn number(&mut self, n: usize) {
        self.bytes(&(n as u64).to_le_bytes());
    }
    fn tag(&mut self, t: &str) {
        self.number(t.len());
        self.bytes(t.as_bytes());
    }
    fn dtype(&mut self, t: DType) {
        self.tag(t.name());
    }
    fn scalar(&mut self, s: Scalar) {
        self.dtype(s.dtype);
        self.bytes(&s.bits.to_le_bytes());
    }
    fn flag(&mut self, f: bool) {
        self.bytes(&[u8::from(f)]);
    }
    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.number(items.len());
        items.iter().for_each(|i| each(self, i));
    }
    fn option<T>(&mut self, item: Option<&T>, each: impl FnOnce(&mut Self, &T)) {
        self.flag(item.is_some());
        if let Some(i) = item {
            each(self, i);
        }
    }

    fn place(&mut self, e: ExprId) {
        let n = self.number.get(&e).copied().unwrap_or(usize::MAX);
        self.number(n);
    }
    fn tensor(&mut self, t: TensorId) {
        let n = self.tensors.iter().position(|x| *x == t).unwrap_or(usize::MAX);
        self.number(n);
    }

    fn poly(&mut self, p: &Poly) {
        let terms = p.terms();
        self.number(terms.len());
        for (monomial, c) in terms {
            self.bytes(&c.to_le_bytes());
            self.list(&monomial, |h, a| h.atom(a));
        }
    }
    fn atom(&mut self, a: &Atom) {
        let (tag, operands) = match a {
            Atom::Sym(s) => {
                self.tag("sym");
                return self.tag(s);
            }
            Atom::Var(i) => {
                self.tag("var");
                return self.number(*i as usize);
            }
            Atom::Data(e) => {
                self.tag("data");
                return self.place(*e);
            }
            Atom::TooLarge => return self.tag("too large"),
            Atom::Div(x, y) => ("div", [x, y]),
            Atom::Mod(x, y) => ("mod", [x, y]),
            Atom::Max(x, y) => ("max", [x, y]),
            Atom::Min(x, y) => ("min", [x, y]),
        };
        self.tag(tag);
        operands.into_iter().for_each(|p| self.poly(p));
    }
    /// An offset into a tensor.
    fn offset(&mut self, t: TensorId, p: &Poly) {
        self.tensor(t);
        if !self.is_open(t) {
            self.poly(p);
        }
    }

    fn kernel(&mut self, k: &Kernel) {
        for t in self.tensors.clone() {
            let Some(ty) = self.all.get(t).map(|t| &t.ty) else { continue };
            self.dtype(ty.dtype);
            if !self.is_open(t) {
                self.list(&ty.shape, |h, d| h.poly(d));
            }
        }
        self.number(self.order.len());
        for e in self.order.clone() {
            self.dtype(k.body.dtype(e));
            self.expr(k.body.expr(e));
        }
        self.family(&k.family);
        self.list(&k.stores, Self::store);
    }

    fn expr(&mut self, e: &Expr) {
        match e {
            Expr::Const(s) => {
                self.tag("const");
                self.scalar(*s);
            }
            Expr::Index(p) if self.extents.contains(p) => self.tag("extent"),
            Expr::Index(p) => {
                self.tag("index");
                self.poly(p);
            }
            Expr::Load { tensor, offset, guard } => {
                self.tag("load");
                self.offset(*tensor, offset);
                self.option(guard.as_ref(), |h, g| h.place(*g));
            }
            Expr::Acc(i) => {
                self.tag("acc");
                self.number(*i as usize);
            }
            Expr::Shared { array, at, guard } => {
                self.tag("shared");
                self.number(*array as usize);
                self.poly(at);
                self.option(guard.as_ref(), |h, g| h.place(*g));
            }
            Expr::Unary(op, a) => {
                self.tag(op.name());
                self.place(*a);
            }
            Expr::Binary(op, a, b) => {
                self.tag(op.name());
                self.place(*a);
                self.place(*b);
            }
            Expr::Select(c, a, b) => {
                self.tag("select");
                [c, a, b].into_iter().for_each(|e| self.place(*e));
            }
            Expr::Cast(_, a) => {
                self.tag("cast");
                self.place(*a);
            }
            Expr::Bitcast(_, a) => {
                self.tag("bitcast");
                self.place(*a);
            }
        }
    }

    fn store(&mut self, s: &Store) {
        self.offset(s.tensor, &s.offset);
        self.place(s.value);
        self.option(s.guard.as_ref(), |h, g| h.place(*g));
        self.option(s.combine.as_ref(), |h, op| h.tag(op.name()));
    }

    fn reduction(&mut self, r: &Reduction) {
        self.dtype(r.dtype);
        self.place(r.value);
        match r.kind {
            ReduceKind::Sum => self.tag("sum"),
            ReduceKind::Prod => self.tag("prod"),
            ReduceKind::Max => self.tag("max"),
            ReduceKind::Min => self.tag("min"),
            ReduceKind::Arg { largest, last } => {
                self.tag("arg");
                self.flag(largest);
                self.flag(last);
            }
            ReduceKind::Last { when, init } => {
                self.tag("last");
                self.place(when);
                self.place(init);
            }
        }
    }

    fn part(&mut self, p: &Part) {
        self.place(p.first);
        self.number(p.most as usize);
    }

    fn stage(&mut self, s: &Stage) {
        self.number(s.elements as usize);
        self.option(s.combined.as_ref(), |h, c| {
            h.number(c.terms as usize);
            h.number(c.acc as usize);
            h.reduction(&c.reduction);
        });
        self.list(&s.writes, |h, w| {
            h.number(w.array as usize);
            h.place(w.value);
        });
        self.list(&s.stores, Self::store);
    }

    fn family(&mut self, f: &Family) {
        self.tag(f.name());
        self.list(&f.domain(), |h, d| h.poly(d));
        match f {
            Family::Map(Map { elements: _ }) => {}
            Family::Row(Row { rows: _, len: _, reductions, row_stores }) => {
                self.list(reductions, Self::reduction);
                self.list(row_stores, Self::store);
            }
            Family::PrefixScan(PrefixScan { rows: _, len: _, reduction, exclusive, reverse }) => {
                self.reduction(reduction);
                self.flag(*exclusive);
                self.flag(*reverse);
            }
            Family::Sort(Sort { rows: _, len: _, places: _, sorted, part, keep, key }) => {
                [sorted, part, keep].into_iter().for_each(|n| self.number(*n as usize));
                self.place(*key);
            }
            Family::Loop(Loop { lanes: _, steps: _, part, carries, alive, step_stores }) => {
                self.option(part.as_ref(), Self::part);
                self.list(carries, |h, Carry { init, next }| {
                    h.place(*init);
                    h.place(*next);
                });
                self.option(alive.as_ref(), |h, e| h.place(*e));
                self.list(step_stores, Self::store);
            }
            Family::StagedLoop(l) => {
                let StagedLoop { lanes: _, steps: _, part, arrays, first, each, last, alive, meet, why: _ } =
                    l;
                self.option(part.as_ref(), Self::part);
                self.list(arrays, |h, a| {
                    h.dtype(a.dtype);
                    h.number(a.len as usize);
                });
                [first, each, last].into_iter().for_each(|stages| self.list(stages, Self::stage));
                self.option(alive.as_ref(), |h, a| h.number(*a as usize));
                if let Some(meet) = meet {
                    self.bytes(b"meet");
                    self.store(meet);
                }
            }
            Family::Matmul(Matmul { batch: _, m: _, n: _, k: _, a, b, sums, rounded }) => {
                self.place(*a);
                self.list(b, |h, e| h.place(*e));
                self.list(sums, |h, e| h.place(*e));
                if *rounded {
                    self.bytes(b"rounded");
                }
            }
            Family::Attention(Attention {
                q,
                k,
                v,
                mask,
                scale,
                empty_is_zero,
                parts: _,
                part_stores,
                ..
            }) => {
                [q, k, v].into_iter().for_each(|e| self.place(*e));
                self.option(mask.as_ref(), |h, e| h.place(*e));
                self.bytes(&scale.to_bits().to_le_bytes());
                if *empty_is_zero {
                    self.bytes(b"empty zero");
                }
                self.list(part_stores, Self::store);
            }
        }
    }
}
