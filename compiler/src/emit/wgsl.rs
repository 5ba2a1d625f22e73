//! Expressions as WGSL statements.
//!
//! A [`Module`] holds what a whole kernel needs (bindings, library functions, symbols); a [`Scope`]
//! is one block of statements under way. Values are made on demand: [`Module::value`] writes the
//! `let` statements that an expression needs and does not find in the scope, and returns its name.
//! [`Module::hoist`] writes what depends only on given variables, so that a loop made from
//! [`Scope::inner`] does not compute it again.
//!
//! Iteration variables are the `i32`s `v0, v1, …`, results of reductions are `acc0, acc1, …`, values
//! are `e0, e1, …` and index expressions `i0, i1, …`, numbered per scope.

use super::handle::Handle;
use super::tidy::tidy;
use super::{EmitContext, EmittedKernel, Legend};
use crate::Diagnostic;
use crate::kernel::bindings::Bindings;
use crate::kernel::dependence::{Dependence, Deps};
use crate::kernel::in_place::reads_of_written;
use crate::kernel::{Body, Expr, ExprId, Kernel};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;
use wgfc_ir::wgsl::{CHROMIUM_MATRICES, WGPU_MATRICES};
use wgfc_ir::{BinaryOp, DType, Dim, Poly, Reg, Scalar, UnaryOp};

/// An expression, or only the low word of a 64-bit one.
type Key = (ExprId, bool);

/// A block of statements under way.
#[derive(Clone, Default)]
pub struct Scope {
    /// The statements, each indented.
    pub text: String,
    indent: usize,
    next_expr: usize,
    next_index: usize,
    names: FxHashMap<Key, Handle>,
    polys: FxHashMap<Poly, String>,
    vars: FxHashMap<usize, String>,
    accs: FxHashMap<u32, Handle>,
    /// Values by their text, where that is kept.
    texts: FxHashMap<String, Handle>,
    /// The dependences that the enclosing scopes computed in advance, innermost last.
    ready: Vec<Deps>,
}

impl Scope {
    /// An empty block indented by `indent` spaces.
    pub fn new(indent: usize) -> Scope {
        Scope { indent, ..Scope::default() }
    }
    /// A block inside this one: it knows all names of this one.
    pub fn inner(&self, indent: usize) -> Scope {
        Scope { text: String::new(), indent, ..self.clone() }
    }
    /// Spaces before each statement.
    pub(super) fn indent(&self) -> usize {
        self.indent
    }
    /// Adds a line.
    pub fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:1$}{line}", "", self.indent);
    }
    /// Calls an expression `name` from here on.
    pub fn bind(&mut self, id: ExprId, name: Handle) {
        self.names.insert((id, false), name);
    }
    /// Calls variable `%i` `name`.
    pub fn bind_var(&mut self, i: usize, name: &str) {
        self.vars.insert(i, name.into());
    }
    /// Calls result `i` `name`.
    pub fn bind_acc(&mut self, i: u32, name: &str) {
        self.accs.insert(i, Handle::var(name));
    }
    /// Goes on behind the text of `other`, of the same block, without its names.
    pub(super) fn follow(&mut self, other: &Scope) {
        self.text.push_str(&other.text);
        self.number_after(other);
    }
    /// Gives no name that `other` gave.
    pub(super) fn number_after(&mut self, other: &Scope) {
        self.next_expr = self.next_expr.max(other.next_expr);
        self.next_index = self.next_index.max(other.next_index);
    }
    /// Takes over the names of values that `other`, of the same block, has beside its own.
    pub(super) fn learn(&mut self, other: &Scope) {
        for (key, name) in &other.names {
            self.names.entry(*key).or_insert_with(|| name.clone());
        }
    }
    /// Makes `text` a named index.
    pub(super) fn let_index(&mut self, text: &str) -> String {
        let name = format!("i{}", self.next_index);
        // `i32` is a type.
        self.next_index += if self.next_index == 31 { 2 } else { 1 };
        self.line(&format!("let {name} = {text};"));
        name
    }
    /// Makes `text` a named value.
    pub(super) fn let_value(&mut self, text: &str) -> Handle {
        let name = Handle::named(format!("e{}", self.next_expr));
        self.next_expr += 1;
        self.line(&format!("let {name} = {text};"));
        name
    }
    /// The name of `text`, written the first time only: for what equal texts read equal values of.
    pub(super) fn once(&mut self, text: &str) -> Handle {
        if let Some(n) = self.texts.get(text) {
            return n.clone();
        }
        let name = self.let_value(text);
        self.texts.insert(text.into(), name.clone());
        name
    }
    /// The name of `text`, as [`once`](Self::once), for texts that read equal values only if they are of one `kind`.
    pub(super) fn once_of(&mut self, kind: u32, text: &str) -> Handle {
        let key = format!("{kind}: {text}");
        if let Some(n) = self.texts.get(&key) {
            return n.clone();
        }
        let name = self.let_value(text);
        self.texts.insert(key, name.clone());
        name
    }
    /// Goes on in the text of `other`, of the same block: it is moved here, and no name is given twice.
    pub(super) fn resume(&mut self, other: &mut Scope) {
        self.text = std::mem::take(&mut other.text);
        self.next_expr = other.next_expr;
        self.next_index = other.next_index;
    }
    pub(super) fn known_poly(&self, p: &Poly) -> Option<&String> {
        self.polys.get(p)
    }
    pub(super) fn remember_poly(&mut self, p: &Poly, name: &str) {
        self.polys.insert(p.clone(), name.into());
    }
    pub(super) fn var(&self, i: usize) -> String {
        self.vars.get(&i).cloned().unwrap_or_else(|| format!("v{i}"))
    }
    pub(super) fn ready(&self) -> &[Deps] {
        &self.ready
    }
}

/// An unsigned element of at most 8 bits which is made a float, less a small integer: the element, and what to subtract from the float
/// of which it is the lowest bits of the mantissa, 2^23 and the integer. That is exact, and takes fewer steps than a conversion.
fn small_difference(body: &Body, op: BinaryOp, a: ExprId, b: ExprId) -> Option<(ExprId, u32)> {
    let (Expr::Cast(to, small), Expr::Const(less)) = (body.expr(a), body.expr(b)) else { return None };
    let loaded = matches!(body.expr(*small), Expr::Load { .. });
    let unsigned = body.dtype(*small).bits() <= 8 && body.dtype(*small).reg() == Reg::U32;
    let less = less.as_f64();
    let fits = (0.0..=f64::from(1u32 << 22)).contains(&less) && less.fract() == 0.0;
    let small_float = op == BinaryOp::Sub && *to == DType::F32 && loaded && unsigned && fits;
    small_float.then(|| (*small, (1 << 23) + less as u32))
}

/// A subtrahend that is an integer.
enum Integer {
    Value(ExprId),
    Const(i32),
}

/// The difference of two integers of at most 16 bits that are made floats before it is taken, which is exact either way. Taken before,
/// no driver can make `(x - a) * c` the sum `x * c - a * c`, which is not 0 where `x` is `a`.
fn integer_difference(body: &Body, op: BinaryOp, a: ExprId, b: ExprId) -> Option<(ExprId, Integer)> {
    let small = |id: ExprId| match body.expr(id) {
        Expr::Cast(DType::F32, x) => {
            let dtype = body.dtype(*x);
            let integer = matches!(dtype.reg(), Reg::I32 | Reg::U32) && dtype != DType::Bool;
            (integer && dtype.bits() <= 16).then_some(*x)
        }
        _ => None,
    };
    let x = (op == BinaryOp::Sub).then(|| small(a)).flatten()?;
    if let Some(y) = small(b) {
        return Some((x, Integer::Value(y)));
    }
    let Expr::Const(c) = body.expr(b) else { return None };
    let c = c.as_f64();
    (c.fract() == 0.0 && c.abs() <= 65535.0).then_some((x, Integer::Const(c as i32)))
}

/// The kernel that is being written.
pub struct Module<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) cx: EmitContext<'a>,
    /// Binding `i` of group 0.
    pub(super) bindings: Bindings,
    /// The name of each.
    pub(super) names: Vec<String>,
    /// Extents of the iteration variables.
    pub(super) domain: Vec<Poly>,
    /// Symbols that are known to be positive wherever a statement is executed.
    pub(super) positive: BTreeSet<Arc<str>>,
    pub(super) library: BTreeSet<&'static str>,
    pub(super) uses_dims: bool,
    /// Whether it uses `f16` beside its bindings.
    pub(super) uses_f16: bool,
    /// The size of the subgroups that the kernel works with.
    pub(super) subgroup: Option<u32>,
    /// The names of arrays; those behind the last one are `s0, s1, …`, by their number.
    pub(super) arrays: Vec<String>,
    /// The elements of the vectors of which arrays in workgroup memory are; 1 for those of elements.
    pub(super) vectors: Vec<u32>,
    /// Sums to which several indices add different constants; each has a name of its own.
    pub(super) sums: BTreeSet<Poly>,
    /// Whether it uses matrix units.
    pub(super) uses_cooperative: bool,
    deps: Dependence,
    /// Whether it reads memory that it writes.
    pub(super) in_place: bool,
    /// How many expressions are under way, each an operand of the one before.
    depth: usize,
}

/// At this depth the operands of an expression are written one after another, not by recursion.
const DEEP: usize = 32;

impl<'a> Module<'a> {
    /// Assigns bindings. Stores of a packed type go through atomics.
    pub fn new(kernel: &'a Kernel, cx: &EmitContext<'a>) -> Result<Module<'a>, Diagnostic> {
        let bindings = Bindings::of(kernel, cx.graph, cx.target.f16, false)?;
        let in_place = !reads_of_written(kernel, &kernel.roots(), &cx.graph.tensors).is_empty();
        Ok(Module { in_place, ..Module::with(kernel, bindings, cx) })
    }

    /// A kernel with these bindings.
    pub(super) fn with(kernel: &'a Kernel, bindings: Bindings, cx: &EmitContext<'a>) -> Module<'a> {
        let names = Legend::names(cx.legend, &bindings);
        Module {
            kernel,
            cx: *cx,
            bindings,
            names,
            domain: kernel.domain(),
            positive: BTreeSet::new(),
            library: BTreeSet::new(),
            uses_dims: false,
            uses_f16: false,
            subgroup: None,
            arrays: vec![],
            vectors: vec![],
            sums: BTreeSet::new(),
            uses_cooperative: false,
            deps: Dependence::of(kernel),
            in_place: false,
            depth: 0,
        }
    }

    /// The dependences of the expressions.
    pub(super) fn dependence(&self) -> &Dependence {
        &self.deps
    }
    /// The dependences of an expression.
    pub fn deps(&self, id: ExprId) -> Deps {
        self.deps.expr(id)
    }
    /// The dependences of an index expression.
    pub fn poly_deps(&self, p: &Poly) -> Deps {
        self.deps.poly(p)
    }

    /// The name of a library function, which the kernel then contains.
    pub fn lib(&mut self, name: &str) -> Result<&'static str, Diagnostic> {
        let name = wgfc_codegen_templates::library::find(name)
            .ok_or_else(|| Diagnostic::internal(format!("there is no library function `{name}`")))?;
        self.library.insert(name);
        Ok(name)
    }

    /// A call of a library function.
    pub fn call(&mut self, name: &str, args: &[&str]) -> Result<String, Diagnostic> {
        Ok(format!("{}({})", self.lib(name)?, args.join(", ")))
    }

    /// The name of an expression's value, after writing what it needs into the scope.
    pub fn value(&mut self, s: &mut Scope, id: ExprId) -> Result<Handle, Diagnostic> {
        self.get(s, (id, false))
    }

    /// The low word (`u32`) of an expression with a 64-bit register.
    pub fn low_word(&mut self, s: &mut Scope, id: ExprId) -> Result<Handle, Diagnostic> {
        self.get(s, (id, true))
    }

    fn get(&mut self, s: &mut Scope, key: Key) -> Result<Handle, Diagnostic> {
        if let Some(n) = s.names.get(&key) {
            return Ok(n.clone());
        }
        self.depth += 1;
        let made = self.make(s, key);
        self.depth -= 1;
        made
    }

    /// The text of an expression's value, which is a name only where it has one already: for a single use.
    pub(super) fn inline(&mut self, s: &mut Scope, id: ExprId) -> Result<String, Diagnostic> {
        if let Some(n) = s.names.get(&(id, false)) {
            return Ok(n.to_string());
        }
        self.text(s, id).map(Text::into_string)
    }

    fn make(&mut self, s: &mut Scope, key: Key) -> Result<Handle, Diagnostic> {
        if self.depth == DEEP {
            for operand in self.demand(&[key]).into_iter().filter(|k| *k != key) {
                self.get(s, operand)?;
            }
        }
        let text = if key.1 { self.low_text(s, key.0)? } else { self.text(s, key.0)? };
        let name = match text {
            Text::Handle(h) => h,
            Text::Compound(t) => s.let_value(&t),
        };
        s.names.insert(key, name.clone());
        Ok(name)
    }

    fn text(&mut self, s: &mut Scope, id: ExprId) -> Result<Text, Diagnostic> {
        let body = &self.kernel.body;
        let dtype = body.dtype(id);
        Ok(match body.expr(id) {
            Expr::Const(c) => Text::Handle(Handle::inline(self.literal(Scalar { dtype, bits: c.bits })?)),
            Expr::Index(p) => Text::Handle(Handle::inline(self.index(s, p)?)),
            Expr::Acc(i) => {
                Text::Handle(s.accs.get(i).cloned().unwrap_or_else(|| Handle::var(format!("acc{i}"))))
            }
            Expr::Load { tensor, offset, guard } => self.load(s, *tensor, offset, *guard)?,
            Expr::Shared { array, at, guard } => self.shared(s, *array, at, *guard, dtype)?,
            Expr::Unary(op @ (UnaryOp::Sin | UnaryOp::Cos), a) if self.both_ways(*a) => {
                let angle = self.value(s, *a)?;
                let pair = self.call("sin_cos_f32", &[&angle])?;
                let pair = s.once(&pair);
                Text::Handle(pair.component(if *op == UnaryOp::Sin { "x" } else { "y" }))
            }
            Expr::Unary(op, a) => {
                let from = body.dtype(*a);
                use UnaryOp::{Ceil, Floor, IsInf, Round, Sign, Trunc};
                let a = match op {
                    Floor | Ceil | Round | Trunc | Sign | IsInf => self.settled(s, *a, self.is_const(*a))?,
                    _ => self.operand(s, *a, self.is_const(*a))?,
                };
                self.unary(*op, from, &a)?
            }
            Expr::Binary(op, a, b) => {
                let from = body.dtype(*a);
                let (op, a, b) = match from.reg() {
                    Reg::F32 => super::ops::inverses(body, *op, *a, *b),
                    _ => (*op, *a, *b),
                };
                if let Some((small, offset)) = small_difference(body, op, a, b)
                    && self.only_scales(id)
                {
                    let small = self.value(s, small)?;
                    return Ok(Text::Compound(format!("bitcast<f32>({small} | 0x4b000000u) - {offset}.0f")));
                }
                if let Some((x, y)) = integer_difference(body, op, a, b) {
                    let x = self.value(s, x)?;
                    let y = match y {
                        Integer::Value(y) => format!("i32({})", self.value(s, y)?),
                        Integer::Const(y) => format!("({y}i)"),
                    };
                    return Ok(Text::Compound(format!("f32(i32({x}) - {y})")));
                }
                let fixed = self.is_const(a) && self.is_const(b);
                if op == BinaryOp::Pow
                    && from.reg() == Reg::F32
                    && let Expr::Const(y) = body.expr(b)
                {
                    let y = y.as_f64();
                    let a = self.operand(s, a, fixed)?;
                    if let Some(t) = self.pow_const(&a, y)? {
                        return Ok(t);
                    }
                }
                let (x, y) = if !fixed && self.sees_rounding(op, a, b) {
                    (self.settled(s, a, false)?, self.settled(s, b, false)?)
                } else {
                    (self.operand(s, a, fixed)?, self.operand(s, b, fixed)?)
                };
                self.binary(op, from, (&x, &y), (body.expr(a), body.expr(b)))?
            }
            Expr::Select(c, a, b) => {
                // Drivers make one instruction of this that leaves NaN out; no comparison with NaN holds.
                let of_compared = matches!(
                    body.expr(*c),
                    Expr::Binary(BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge, p, q)
                        if [(p, q), (q, p)].contains(&(a, b)) && body.dtype(*a).reg() == Reg::F32
                );
                let mut nan = vec![];
                for x in [*a, *b] {
                    if of_compared && !self.is_const(x) {
                        nan.push(super::ops::nan(&self.value(s, x)?));
                    }
                }
                // Without `||`, which branches.
                let nan = nan.join(" | ");
                let (c, a, b) = (self.value(s, *c)?, self.value(s, *a)?, self.value(s, *b)?);
                let chosen = format!("select({b}, {a}, {c})");
                Text::Compound(if nan.is_empty() { chosen } else { format!("select({chosen}, {b}, {nan})") })
            }
            Expr::Cast(to, a) => {
                let from = body.dtype(*a);
                if matches!(from.reg(), Reg::I64 | Reg::U64) && matches!(to.reg(), Reg::I32 | Reg::U32) {
                    let low = self.low_word(s, *a)?;
                    return self.cast(DType::U32, *to, &low);
                }
                let a = if to.is_float() {
                    self.operand(s, *a, self.is_const(*a))?
                } else {
                    self.settled(s, *a, self.is_const(*a))?
                };
                self.cast(from, *to, &a)?
            }
            Expr::Bitcast(to, a) => {
                let from = body.dtype(*a);
                let a = self.operand(s, *a, self.is_const(*a))?;
                self.bitcast(from, *to, &a)?
            }
        })
    }

    /// Whether the kernel wants both the sine and the cosine of an angle.
    fn both_ways(&self, id: ExprId) -> bool {
        let body = &self.kernel.body;
        body.dtype(id).reg() == Reg::F32
            && !self.is_const(id)
            && [UnaryOp::Sin, UnaryOp::Cos].iter().all(|op| body.find(&Expr::Unary(*op, id)).is_some())
    }

    /// Whether all that reads a value multiplies it by something that differs between invocations. Drivers move other constants past
    /// the offset of a float made of bits: `(x - a) * c` may become `x * c - a * c`, and `b - (x - a)` may become `(b + a) - x`,
    /// which a large `a` makes inexact.
    fn only_scales(&self, id: ExprId) -> bool {
        let body = &self.kernel.body;
        let varies = |other: ExprId| other != id && self.deps(other) != 0;
        let mut readers = body.iter().filter(|(reader, ..)| body.operands(*reader).contains(&id)).peekable();
        readers.peek().is_some()
            && readers.all(|(_, e, _)| match e {
                Expr::Binary(BinaryOp::Mul, a, b) => varies(if *a == id { *b } else { *a }),
                _ => false,
            })
    }

    /// Whether an operator tells values apart that rounding to their type makes equal: comparisons, remainders, and differences of
    /// a value that is rounded and one that is not.
    fn sees_rounding(&self, op: BinaryOp, a: ExprId, b: ExprId) -> bool {
        let constant = self.is_const(a) || self.is_const(b);
        match op {
            BinaryOp::Rem | BinaryOp::Mod => true,
            BinaryOp::Sub => {
                let narrow = self.is_narrow(a) && self.is_narrow(b);
                narrow && !constant && self.is_loose(a, 0) != self.is_loose(b, 0)
            }
            _ => op.is_comparison(),
        }
    }

    /// Whether a value is of a narrow float type, or what a cast makes an f32 of it.
    fn is_narrow(&self, id: ExprId) -> bool {
        let body = &self.kernel.body;
        let narrow = |d: DType| d.is_float() && d.bits() < 32;
        narrow(body.dtype(id)) || matches!(body.expr(id), Expr::Cast(DType::F32, a) if narrow(body.dtype(*a)))
    }

    /// Whether a value of a narrow float type, or what a cast makes an f32 of it, is held in more digits than its type has: arithmetic
    /// of such types is done in f32, and rounded where a tensor is stored.
    fn is_loose(&self, id: ExprId, depth: usize) -> bool {
        let body = &self.kernel.body;
        let dtype = body.dtype(id);
        let narrow = dtype.is_float() && dtype.bits() < 32;
        if depth == DEEP {
            return narrow;
        }
        let of = |x: ExprId| self.is_loose(x, depth + 1);
        use UnaryOp::{Abs, Ceil, Floor, Neg, Round, Sign, Trunc};
        match body.expr(id) {
            Expr::Cast(DType::F32, a) => of(*a),
            _ if !narrow => false,
            Expr::Const(_) | Expr::Load { .. } | Expr::Bitcast(..) => false,
            Expr::Cast(_, a) => body.dtype(*a) == dtype && of(*a),
            Expr::Unary(Floor | Ceil | Round | Trunc | Sign, _) => false,
            Expr::Unary(Neg | Abs, a) => of(*a),
            Expr::Binary(BinaryOp::Min | BinaryOp::Max, a, b) | Expr::Select(_, a, b) => of(*a) || of(*b),
            _ => true,
        }
    }

    /// An [`operand`](Self::operand) as its type rounds it, which is what a tensor of the type would hold.
    fn settled(&mut self, s: &mut Scope, id: ExprId, named: bool) -> Result<Handle, Diagnostic> {
        if !self.is_loose(id, 0) {
            return self.operand(s, id, named);
        }
        let body = &self.kernel.body;
        let inner = match body.expr(id) {
            Expr::Cast(DType::F32, a) => *a,
            _ => id,
        };
        let dtype = body.dtype(inner);
        let v = self.value(s, inner)?;
        let rounded = self.cast(DType::F32, dtype, &v)?.into_string();
        Ok(if v.is_let() { s.once(&rounded) } else { s.let_value(&rounded) })
    }

    fn is_const(&self, id: ExprId) -> bool {
        matches!(self.kernel.body.expr(id), Expr::Const(_))
    }

    /// An operand; `named` keeps WGSL from folding constants, which it refuses where they overflow.
    pub(super) fn operand(&mut self, s: &mut Scope, id: ExprId, named: bool) -> Result<Handle, Diagnostic> {
        let v = self.value(s, id)?;
        if named && !v.is_let() {
            let v = s.let_value(&v);
            s.bind(id, v.clone());
            return Ok(v);
        }
        Ok(v)
    }

    /// Sums and products of 64-bit numbers of which only the low word is wanted.
    fn low_text(&mut self, s: &mut Scope, id: ExprId) -> Result<Text, Diagnostic> {
        let body = &self.kernel.body;
        Ok(match body.expr(id) {
            Expr::Const(c) => Text::Handle(Handle::inline(format!("{}u", c.bits as u32))),
            Expr::Cast(_, a) if matches!(body.dtype(*a).reg(), Reg::I32 | Reg::U32) => {
                let from = body.dtype(*a);
                let a = self.value(s, *a)?;
                self.cast(from, DType::U32, &a)?
            }
            Expr::Cast(_, a) if matches!(body.dtype(*a).reg(), Reg::I64 | Reg::U64) => {
                Text::Handle(self.low_word(s, *a)?)
            }
            Expr::Unary(UnaryOp::Neg, a) => Text::Compound(format!("0u - {}", self.low_word(s, *a)?)),
            Expr::Binary(op, a, b) if low_operator(*op).is_some() => {
                let (a, b) = (self.low_word(s, *a)?, self.low_word(s, *b)?);
                let op = low_operator(*op).unwrap_or("+");
                Text::Compound(format!("{a} {op} {b}"))
            }
            Expr::Select(c, a, b) => {
                let (c, a, b) = (self.value(s, *c)?, self.low_word(s, *a)?, self.low_word(s, *b)?);
                Text::Compound(format!("select({b}, {a}, {c})"))
            }
            _ => Text::Handle(self.value(s, id)?.component("x")),
        })
    }

    /// Writes into the scope whatever the roots need and `ready` suffices for.
    pub fn hoist(&mut self, s: &mut Scope, roots: &[ExprId], ready: Deps) -> Result<(), Diagnostic> {
        s.ready.push(ready);
        let roots: Vec<Key> = roots.iter().map(|r| (*r, false)).collect();
        for key in self.demand(&roots) {
            let id = key.0;
            let expr = self.kernel.body.expr(id);
            if self.deps(id) & !ready == 0 {
                if !matches!(expr, Expr::Const(_) | Expr::Acc(_)) {
                    self.get(s, key)?;
                }
            } else if let Expr::Index(p) = expr {
                self.hoist_index(s, p, ready)?;
            } else if let Expr::Load { tensor, offset, .. } = expr {
                let at = self.address(*tensor, offset)?;
                self.hoist_index(s, &at, ready)?;
            }
        }
        Ok(())
    }

    /// The keys that evaluating the roots will ask for, operands first.
    fn demand(&self, roots: &[Key]) -> Vec<Key> {
        let mut seen: BTreeSet<Key> = BTreeSet::new();
        let mut stack: Vec<Key> = roots.to_vec();
        let body = &self.kernel.body;
        while let Some(key) = stack.pop() {
            if !seen.insert(key) {
                continue;
            }
            let low = |id: ExprId| matches!(body.dtype(id).reg(), Reg::I64 | Reg::U64);
            match (body.expr(key.0), key.1) {
                (Expr::Cast(to, a), false) if low(*a) && matches!(to.reg(), Reg::I32 | Reg::U32) => {
                    stack.push((*a, true));
                }
                (Expr::Cast(_, a), true) if low(*a) => stack.push((*a, true)),
                (Expr::Cast(_, a), true) if matches!(body.dtype(*a).reg(), Reg::I32 | Reg::U32) => {
                    stack.push((*a, false));
                }
                (Expr::Unary(UnaryOp::Neg, a), true) => stack.push((*a, true)),
                (Expr::Binary(op, a, b), true) if low_operator(*op).is_some() => {
                    stack.extend([(*a, true), (*b, true)]);
                }
                (Expr::Select(c, a, b), true) => stack.extend([(*c, false), (*a, true), (*b, true)]),
                (_, true) => stack.push((key.0, false)),
                (Expr::Index(p), false) => stack.extend(p.data().into_iter().map(|d| (d, low(d)))),
                (Expr::Load { offset, guard, .. } | Expr::Shared { at: offset, guard, .. }, false) => {
                    stack.extend(offset.data().into_iter().map(|d| (d, low(d))));
                    stack.extend(guard.map(|g| (g, false)));
                }
                _ => stack.extend(body.operands(key.0).into_iter().map(|o| (o, false))),
            }
        }
        seen.into_iter().collect()
    }

    /// A function `name(v…: i32, …) -> T` over the given variables, whose value is `root`. Results of
    /// reductions may not occur in it.
    pub fn function(&mut self, name: &str, vars: &[usize], root: ExprId) -> Result<String, Diagnostic> {
        let mut s = Scope::new(4);
        let v = self.value(&mut s, root)?;
        let args: Vec<String> = vars.iter().map(|i| format!("v{i}: i32")).collect();
        let ty = reg_type(self.kernel.body.dtype(root).reg());
        Ok(format!("fn {name}({}) -> {ty} {{\n{}    return {v};\n}}\n", args.join(", "), s.text))
    }

    /// The text before the entry point: bindings, the `Dims` uniform, library functions.
    pub fn preamble(&self) -> String {
        let mut out = self.declarations();
        out.push_str(&wgfc_codegen_templates::library::text(self.library.iter().copied()));
        out
    }
}

impl Module<'_> {
    /// The finished kernel.
    pub fn finish(
        self,
        family: &'static str,
        wgsl: String,
        workgroup_size: [u32; 3],
        workgroup_bytes: u32,
        workgroups: [Dim; 3],
    ) -> EmittedKernel {
        let features = [
            ("shader-f16", self.uses_f16 || self.bindings.use_f16()),
            ("subgroups", self.subgroup.is_some()),
            (WGPU_MATRICES, self.uses_cooperative && !self.cx.target.chromium_matrices),
            (CHROMIUM_MATRICES, self.uses_cooperative && self.cx.target.chromium_matrices),
        ];
        let features: Vec<String> = features.into_iter().filter(|f| f.1).map(|f| f.0.to_owned()).collect();
        let wgsl = wgfc_ir::wgsl::enabled(&wgsl, &features);
        EmittedKernel {
            family,
            wgsl: tidy(&wgsl),
            workgroup_size,
            bindings: self.bindings.list.iter().map(|b| (b.tensor, b.access)).collect(),
            uses_dims: self.uses_dims,
            workgroup_bytes,
            features,
            subgroup_size: self.subgroup,
            workgroups,
        }
    }
}

/// Text of a value.
pub enum Text {
    /// A value that can be written as often as it is read.
    Handle(Handle),
    /// Anything else, which is worth a `let`.
    Compound(String),
}

impl Text {
    /// The text as it is.
    pub fn into_string(self) -> String {
        match self {
            Text::Handle(h) => h.to_string(),
            Text::Compound(s) => s,
        }
    }
}

/// The operators whose low word depends on low words only.
fn low_operator(op: BinaryOp) -> Option<&'static str> {
    Some(match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::And => "&",
        BinaryOp::Or => "|",
        BinaryOp::Xor => "^",
        _ => return None,
    })
}

/// The WGSL type of a register.
pub fn reg_type(r: Reg) -> &'static str {
    match r {
        Reg::F32 => "f32",
        Reg::I32 => "i32",
        Reg::U32 => "u32",
        Reg::I64 | Reg::U64 => "vec2<u32>",
        Reg::Bool => "bool",
    }
}

/// The WGSL type of a register's value in workgroup memory: a bool is a word, since drivers exist that lose bools
/// there.
pub fn stored_type(r: Reg) -> &'static str {
    if r == Reg::Bool { "u32" } else { reg_type(r) }
}
