//! A kernel in the loop form as a list of statements whose expressions are in one arena.
//!
//! Loops of the kinds `unroll` and `vector` are written out. A register whose elements are accessed at constant positions only
//! becomes a variable for each element. Each time that a register or workgroup memory may have changed, expressions that read it
//! become new ones, so that equal expressions have equal values wherever the statements between them are executed.

use crate::Diagnostic;
use crate::kernel::{self, Body, ExprId, TensorId};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly, ScalarFn};
use wgfc_loops::{Expr, For, Kernel, Kind, Space, Stmt, Store, Write, visit};

/// The statements of a kernel.
pub(super) struct Listing {
    /// Their expressions.
    pub body: Body,
    /// The loop variables: the name in the loop form and the extent.
    pub vars: Vec<(String, Dim)>,
    /// The statements inside of the loops of workgroups and invocations.
    pub items: Vec<Item>,
    /// The variables of [`kernel::Expr::Acc`], by its number.
    pub variables: Vec<Element>,
    /// The tensors of [`kernel::Expr::Shared`], by the number of its array.
    pub arrays: Vec<usize>,
    /// The variables that are used in a list only whose first use is that it sets them.
    pub local: BTreeSet<Element>,
}

/// A variable: an element of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element {
    /// The register.
    pub tensor: usize,
    /// The element's number.
    pub element: i64,
}

/// A statement.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// A loop.
    Loop {
        /// Its number in [`Listing::vars`].
        var: usize,
        /// Whether it begins with the last point.
        down: bool,
        /// The condition before each point without which it ends.
        condition: Option<ExprId>,
        /// The statements of a point.
        body: Vec<Item>,
    },
    /// One of two lists.
    If {
        /// The condition.
        condition: ExprId,
        /// Executed where it is true.
        then: Vec<Item>,
        /// Executed where it is false.
        otherwise: Vec<Item>,
    },
    /// A value that is computed here.
    Value(ExprId),
    /// Elements of a buffer, one behind the other.
    Store(Vec<kernel::Store>),
    /// Variables, one behind the other: the first one, and the values, none of which reads one of them that is set before.
    Set(Element, Vec<ExprId>),
    /// Elements of an array, one behind the other.
    Write {
        /// The tensor.
        tensor: usize,
        /// The first element.
        at: Poly,
        /// The values, none of which reads the array.
        values: Vec<ExprId>,
    },
    /// A barrier; whether it is one of storage too.
    Barrier(bool),
}

impl Item {
    /// Calls `f` for this statement and all inside.
    pub fn visit<'i>(&'i self, f: &mut dyn FnMut(&'i Item)) {
        f(self);
        match self {
            Item::Loop { body, .. } => body.iter().for_each(|i| i.visit(f)),
            Item::If { then, otherwise, .. } => then.iter().chain(otherwise).for_each(|i| i.visit(f)),
            _ => {}
        }
    }
}

/// The most statements of a kernel, those of loops that are written out once for each point: drivers take minutes for larger texts.
const MOST_STATEMENTS: usize = 1 << 16;

/// The most expressions of a value that are searched for what statements before it change.
const MOST_SEARCHED: usize = 64;

/// A listing under way.
struct Lister<'k> {
    kernel: &'k Kernel,
    tensors: &'k [TensorId],
    out: Listing,
    vars: FxHashMap<usize, Poly>,
    values: FxHashMap<u32, ExprId>,
    /// Whether a tensor becomes variables.
    scalars: Vec<bool>,
    /// Which change of each tensor is the last one.
    versions: Vec<u32>,
    changes: u32,
    variables: BTreeMap<(Element, u32), u32>,
    arrays: FxHashMap<(usize, u32), u32>,
    /// The list under way: those around it and itself, by number.
    path: Vec<u32>,
    lists: u32,
    /// The number of statements so far.
    statements: usize,
    uses: BTreeMap<Element, Uses>,
}

/// The uses of a variable.
struct Uses {
    /// The innermost list that has all of them.
    list: Vec<u32>,
    /// The list whose statement sets it, where that is the first use.
    set: Option<Vec<u32>>,
}

type Done<T> = Result<T, Diagnostic>;

fn wrong(what: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::internal(format!("a kernel in the loop form: {what}"))
}

impl Listing {
    /// The statements inside of the loops `head`, which are given variables first. `tensors` are the kernel's tensors in storage.
    pub fn new(kernel: &Kernel, head: &[&For], inside: &[Stmt], tensors: &[TensorId]) -> Done<Listing> {
        let out = Listing {
            body: Body::default(),
            vars: vec![],
            items: vec![],
            variables: vec![],
            arrays: vec![],
            local: BTreeSet::new(),
        };
        let mut lister = Lister {
            kernel,
            tensors,
            out,
            vars: FxHashMap::default(),
            values: FxHashMap::default(),
            scalars: scalars(kernel),
            versions: vec![0; kernel.tensors.len()],
            changes: 0,
            variables: BTreeMap::new(),
            arrays: FxHashMap::default(),
            path: vec![],
            lists: 0,
            statements: 0,
            uses: BTreeMap::new(),
        };
        for l in head {
            lister.open(l)?;
        }
        lister.out.items = lister.list(inside)?;
        let local = lister.uses.iter().filter(|(_, u)| u.set.as_ref() == Some(&u.list)).map(|(e, _)| *e);
        lister.out.local = local.collect();
        Ok(lister.out)
    }
}

/// Which registers have elements that are accessed at constant positions only, once loops are written out.
fn scalars(kernel: &Kernel) -> Vec<bool> {
    let mut constant: BTreeSet<usize> = BTreeSet::new();
    visit(&kernel.body, &mut |s| {
        if let Stmt::For(l) = s
            && is_written_out(l)
        {
            constant.insert(l.var);
        }
    });
    let mut out: Vec<bool> = kernel.tensors.iter().map(|t| t.space == Space::Register).collect();
    let mut access = |tensor: usize, at: &[Poly]| {
        let fixed = |p: &Poly| p.vars().iter().all(|v| constant.contains(v)) && p.data().is_empty();
        if !at.iter().all(fixed) {
            out[tensor] = false;
        }
    };
    visit(&kernel.body, &mut |s| {
        if let Stmt::Store(s) = s {
            access(s.tensor, &s.at);
        }
        s.exprs(&mut |e| {
            e.visit(&mut |e| {
                if let Expr::Load { tensor, at, .. } = e {
                    access(*tensor, at);
                }
            });
        });
    });
    out
}

/// Whether the points of a loop are statements of their own.
fn is_written_out(l: &For) -> bool {
    let one = l.extent.as_const().is_some_and(|n| n <= 1) && l.condition.is_none();
    matches!(l.kind, Kind::Unroll | Kind::Vector) || one
}

impl Lister<'_> {
    fn open(&mut self, l: &For) -> Done<usize> {
        let extent = self.index(&l.extent)?;
        let name = self.kernel.vars.get(l.var).ok_or_else(|| wrong("a loop without a variable"))?;
        let var = self.out.vars.len();
        self.out.vars.push((name.to_string(), extent));
        self.vars.insert(l.var, Poly::var(var));
        Ok(var)
    }

    /// Counts all that reads these tensors as changed.
    fn change(&mut self, tensors: impl IntoIterator<Item = usize>) {
        for t in tensors {
            self.changes += 1;
            self.versions[t] = self.changes;
        }
    }

    fn index(&self, p: &Poly) -> Done<Poly> {
        if let Some(v) = p.vars().into_iter().find(|v| !self.vars.contains_key(v)) {
            return Err(wrong(format!("variable {v} is read outside of its loop")));
        }
        if let Some(d) = p.data().into_iter().find(|d| !self.values.contains_key(d)) {
            return Err(wrong(format!("value {d} is read before it is computed")));
        }
        let atom = |a: &Atom| match a {
            Atom::Var(v) => self.vars.get(&(*v as usize)).cloned(),
            Atom::Data(d) => self.values.get(d).map(|id| Poly::atom(Atom::Data(*id))),
            _ => None,
        };
        let extents: Vec<Dim> = self.out.vars.iter().map(|v| v.1.clone()).collect();
        Ok(p.subst(&atom, &extents))
    }

    fn offset(&self, tensor: usize, at: &[Poly]) -> Done<Poly> {
        let at = at.iter().map(|p| self.index(p)).collect::<Done<Vec<Poly>>>()?;
        Ok(self.kernel.tensors[tensor].offset(&at))
    }

    fn element(&self, tensor: usize, at: &[Poly]) -> Done<Element> {
        let at = self.offset(tensor, at)?;
        let element = at.as_const().ok_or_else(|| wrong("an element of a register that is none"))?;
        Ok(Element { tensor, element })
    }

    /// Counts a use of a variable here.
    fn used(&mut self, e: Element, sets: bool) {
        let path = &self.path;
        let new = || Uses { list: path.clone(), set: sets.then(|| path.clone()) };
        let list = &mut self.uses.entry(e).or_insert_with(new).list;
        let common = list.iter().zip(path).take_while(|(a, b)| a == b).count();
        list.truncate(common);
    }

    /// Statements in a list of their own.
    fn inner(&mut self, body: &[Stmt]) -> Done<Vec<Item>> {
        self.lists += 1;
        self.path.push(self.lists);
        let items = self.list(body);
        self.path.pop();
        items
    }

    fn variable(&mut self, e: Element) -> ExprId {
        self.used(e, false);
        let next = self.out.variables.len() as u32;
        let acc = *self.variables.entry((e, self.versions[e.tensor])).or_insert(next);
        if acc == next {
            self.out.variables.push(e);
        }
        self.out.body.push(kernel::Expr::Acc(acc), self.kernel.tensors[e.tensor].dtype)
    }

    fn load(&mut self, tensor: usize, at: &[Poly], guard: Option<ExprId>) -> Done<ExprId> {
        let t = self.kernel.tensors.get(tensor).ok_or_else(|| wrong("a tensor that does not exist"))?;
        if self.scalars[tensor] {
            let e = self.element(tensor, at)?;
            return Ok(self.variable(e));
        }
        let at = self.offset(tensor, at)?;
        let e = if let Space::Storage(_) = t.space {
            let tensor = *self.tensors.get(tensor).ok_or_else(|| wrong("an unknown buffer"))?;
            kernel::Expr::Load { tensor, offset: at, guard }
        } else {
            let next = self.out.arrays.len() as u32;
            let array = *self.arrays.entry((tensor, self.versions[tensor])).or_insert(next);
            if array == next {
                self.out.arrays.push(tensor);
            }
            kernel::Expr::Shared { array, at, guard }
        };
        Ok(self.out.body.push(e, t.dtype))
    }

    fn typed(&self, f: ScalarFn, of: &[ExprId]) -> Done<DType> {
        let types: Vec<DType> = of.iter().map(|e| self.out.body.dtype(*e)).collect();
        let all = f.types(&types).map_err(wrong)?;
        all.last().copied().ok_or_else(|| wrong("an empty function"))
    }

    fn expr(&mut self, e: &Expr) -> Done<ExprId> {
        let (expr, dtype) = match e {
            Expr::Const(s) => (kernel::Expr::Const(*s), s.dtype),
            Expr::Index(p) => (kernel::Expr::Index(self.index(p)?), DType::I32),
            Expr::Value(v) => {
                return self.values.get(v).copied().ok_or_else(|| wrong("a value that is not computed"));
            }
            Expr::Load { tensor, at, guard } => {
                let guard = guard.as_ref().map(|g| self.expr(g)).transpose()?;
                return self.load(*tensor, at, guard);
            }
            Expr::Unary(op, a) => {
                let a = self.expr(a)?;
                (kernel::Expr::Unary(*op, a), self.typed(ScalarFn::unary(*op), &[a])?)
            }
            Expr::Binary(op, a, b) => {
                if let (Expr::Index(a), Expr::Index(b)) = (&**a, &**b) {
                    let (a, b) = (self.index(a)?, self.index(b)?);
                    let (a, b) = compared(*op, a, b);
                    let [a, b] = [a, b].map(|p| self.out.body.push(kernel::Expr::Index(p), DType::I32));
                    return self.binary(*op, a, b);
                }
                let (a, b) = (self.expr(a)?, self.expr(b)?);
                return self.binary(*op, a, b);
            }
            Expr::Select(c, a, b) => {
                let (c, a, b) = (self.expr(c)?, self.expr(a)?, self.expr(b)?);
                (kernel::Expr::Select(c, a, b), self.out.body.dtype(a))
            }
            Expr::Cast(t, a) => (kernel::Expr::Cast(*t, self.expr(a)?), *t),
            Expr::Bitcast(t, a) => (kernel::Expr::Bitcast(*t, self.expr(a)?), *t),
            Expr::Subgroup(..) => return Err(wrong("subgroup operations have no text yet")),
        };
        Ok(self.out.body.push(expr, dtype))
    }

    fn binary(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> Done<ExprId> {
        let dtype = self.typed(ScalarFn::binary(op), &[a, b])?;
        Ok(self.out.body.push(kernel::Expr::Binary(op, a, b), dtype))
    }

    fn list(&mut self, body: &[Stmt]) -> Done<Vec<Item>> {
        let mut out = vec![];
        for s in body {
            let items = self.statement(s)?;
            items.into_iter().for_each(|i| self.join(&mut out, i));
        }
        Ok(out)
    }

    fn statement(&mut self, s: &Stmt) -> Done<Vec<Item>> {
        self.statements += 1;
        if self.statements > MOST_STATEMENTS {
            return Err(Diagnostic::unsupported(format!(
                "a kernel of more than {MOST_STATEMENTS} statements once its loops are written out"
            ))
            .help("unroll fewer loops, or loops of fewer points"));
        }
        Ok(match s {
            Stmt::Let { value, expr } => {
                let id = self.expr(expr)?;
                self.values.insert(*value, id);
                vec![Item::Value(id)]
            }
            Stmt::Store(s) => vec![self.store(s)?],
            Stmt::Barrier { storage } => {
                let shared = |t: &usize| self.kernel.tensors[*t].space == Space::Workgroup;
                let all: Vec<usize> = (0..self.kernel.tensors.len()).filter(shared).collect();
                self.change(all);
                vec![Item::Barrier(*storage)]
            }
            Stmt::If { condition, then, otherwise } => {
                let condition = self.expr(condition)?;
                let known = self.values.clone();
                let before = self.versions.clone();
                let then_items = self.inner(then)?;
                (self.values, self.versions) = (known.clone(), before);
                let otherwise_items = self.inner(otherwise)?;
                self.values = known;
                self.change(written(then).chain(written(otherwise)).collect::<BTreeSet<_>>());
                vec![Item::If { condition, then: then_items, otherwise: otherwise_items }]
            }
            Stmt::For(l) if l.kind == Kind::Vector => self.vector(l)?,
            Stmt::For(l) if is_written_out(l) => {
                let points = l.extent.as_const().ok_or_else(|| wrong("copies without a number"))?;
                let mut out = vec![];
                for i in 0..points {
                    let i = if l.down { points - 1 - i } else { i };
                    self.vars.insert(l.var, Poly::constant(i));
                    let items = self.list(&l.body)?;
                    items.into_iter().for_each(|i| self.join(&mut out, i));
                }
                out
            }
            Stmt::For(l) => {
                let var = self.open(l)?;
                let changed: BTreeSet<usize> = written(&l.body).collect();
                self.change(changed.iter().copied());
                let condition = l.condition.as_ref().map(|c| self.expr(c)).transpose()?;
                let known = self.values.clone();
                let body = self.inner(&l.body)?;
                self.values = known;
                self.change(changed);
                vec![Item::Loop { var, down: l.down, condition, body }]
            }
        })
    }

    /// Points that are neighbours: each statement for all of them before the next one.
    fn vector(&mut self, l: &For) -> Done<Vec<Item>> {
        let points = l.extent.as_const().ok_or_else(|| wrong("a vector without a number of elements"))?;
        let known = self.values.clone();
        let mut lanes = vec![known.clone(); usize::try_from(points).unwrap_or(0)];
        let mut out = vec![];
        for s in &l.body {
            for (i, values) in lanes.iter_mut().enumerate() {
                self.vars.insert(l.var, Poly::constant(i as i64));
                std::mem::swap(&mut self.values, values);
                let items = self.statement(s)?;
                std::mem::swap(&mut self.values, values);
                items.into_iter().for_each(|i| self.join(&mut out, i));
            }
        }
        self.values = known;
        Ok(out)
    }

    fn store(&mut self, s: &Store) -> Done<Item> {
        let guard = s.guard.as_ref().map(|g| self.expr(g)).transpose()?;
        let mut value = self.expr(&s.value)?;
        let t = self.kernel.tensors.get(s.tensor).ok_or_else(|| wrong("a tensor that does not exist"))?;
        let item = if let Space::Storage(_) = t.space {
            let tensor = *self.tensors.get(s.tensor).ok_or_else(|| wrong("an unknown buffer"))?;
            let combine = match s.write {
                Write::Combine(op) => Some(op),
                Write::Replace | Write::Any => None,
            };
            let offset = self.offset(s.tensor, &s.at)?;
            Item::Store(vec![kernel::Store { tensor, offset, value, guard: None, combine }])
        } else {
            if let Write::Combine(op) = s.write {
                if t.space == Space::Workgroup {
                    return Err(wrong("combinations in workgroup memory have no text yet"));
                }
                let old = self.load(s.tensor, &s.at, None)?;
                value = self.binary(op.operator(), old, value)?;
            }
            let item = if self.scalars[s.tensor] {
                let e = self.element(s.tensor, &s.at)?;
                self.lists += 1;
                self.path.extend(guard.map(|_| self.lists));
                self.used(e, true);
                guard.and_then(|_| self.path.pop());
                Item::Set(e, vec![value])
            } else {
                Item::Write { tensor: s.tensor, at: self.offset(s.tensor, &s.at)?, values: vec![value] }
            };
            self.change([s.tensor]);
            item
        };
        Ok(match guard {
            Some(condition) => Item::If { condition, then: vec![item], otherwise: vec![] },
            None => item,
        })
    }

    /// Adds a statement. Those that follow each other under one condition are under it together, and stores to neighbours are one.
    fn join(&self, list: &mut Vec<Item>, item: Item) {
        match (list.last_mut(), item) {
            (
                Some(Item::If { condition, then, otherwise }),
                Item::If { condition: c, then: others, otherwise: o },
            ) if *condition == c && otherwise.is_empty() && o.is_empty() => {
                others.into_iter().for_each(|i| self.join(then, i));
            }
            (Some(Item::Store(row)), Item::Store(next)) if follows(row, &next) => row.extend(next),
            (Some(Item::Write { tensor, at, values }), Item::Write { tensor: t, at: next, values: more })
                if *tensor == t
                    && next == &*at + &Poly::constant(values.len() as i64)
                    && !self.reads(&more, t, 0..0) =>
            {
                values.extend(more);
            }
            (Some(Item::Set(first, values)), Item::Set(next, more))
                if first.tensor == next.tensor
                    && next.element == first.element + values.len() as i64
                    && !self.reads(&more, first.tensor, first.element..next.element) =>
            {
                values.extend(more);
            }
            (_, item) => list.push(item),
        }
    }

    /// Whether expressions read an array, or one of these elements of what are variables. True where they are too many to be searched.
    fn reads(&self, of: &[ExprId], tensor: usize, elements: Range<i64>) -> bool {
        let (mut seen, mut stack) = (BTreeSet::new(), of.to_vec());
        while let Some(id) = stack.pop() {
            let found = match self.out.body.expr(id) {
                kernel::Expr::Shared { array, .. } => self.out.arrays.get(*array as usize) == Some(&tensor),
                kernel::Expr::Acc(i) => self
                    .out
                    .variables
                    .get(*i as usize)
                    .is_some_and(|v| v.tensor == tensor && elements.contains(&v.element)),
                _ => false,
            };
            if found || seen.len() > MOST_SEARCHED {
                return true;
            }
            if seen.insert(id) {
                stack.extend(self.out.body.operands(id));
            }
        }
        false
    }
}

/// The sides of a comparison without a common factor and what makes no difference: of `4·x + 3 < 4·y` they are `x` and `y`.
fn compared(op: BinaryOp, a: Poly, b: Poly) -> (Poly, Poly) {
    // `a < b` is `1 <= b - a`, and `a >= b` is not.
    let (low, high) = match op {
        BinaryOp::Lt | BinaryOp::Ge => (&a, &b),
        BinaryOp::Gt | BinaryOp::Le => (&b, &a),
        _ => return (a, b),
    };
    let apart = high - low;
    let (mut factor, mut rest) = (0i64, 0i64);
    for (m, c) in apart.terms() {
        if m.is_empty() {
            rest = c;
            continue;
        }
        let mut other = c.saturating_abs();
        while other != 0 {
            (factor, other) = (other, factor % other);
        }
    }
    if factor < 2 {
        return (a, b);
    }
    // `1 <= factor·x + rest` is `1 <= x + constant`.
    let constant = (rest - 1).div_euclid(factor) + 1;
    let (mut less, mut more) = (Poly::ZERO, Poly::constant(constant));
    for (m, c) in apart.terms() {
        if m.is_empty() {
            continue;
        }
        let term = m.iter().fold(Poly::constant(c.abs() / factor), |t, a| &t * &Poly::atom(a.clone()));
        if c < 0 { less = &less + &term } else { more = &more + &term }
    }
    match op {
        BinaryOp::Lt | BinaryOp::Ge => (less, more),
        _ => (more, less),
    }
}

/// The tensors outside of storage that statements write, some several times.
fn written(body: &[Stmt]) -> impl Iterator<Item = usize> {
    let mut out = vec![];
    visit(body, &mut |s| {
        if let Stmt::Store(s) = s {
            out.push(s.tensor);
        }
    });
    out.into_iter()
}

/// Whether stores are those of the elements behind the last one.
fn follows(row: &[kernel::Store], next: &[kernel::Store]) -> bool {
    let (Some(last), Some(next)) = (row.last(), next.first()) else { return false };
    let plain = last.combine.is_none() && next.combine.is_none();
    plain && last.tensor == next.tensor && next.offset == &last.offset + &Poly::ONE
}
