//! The types of the loop form.

use crate::Expr;
use std::sync::Arc;
use wgfc_ir::{Atom, DType, Dim, Poly, ReduceOp};

/// Index of a [`Tensor`] in its [`Kernel`].
pub type TensorId = usize;

/// The name of a tensor, a variable or a value: letters, digits, `_` and `.`.
pub type Name = Arc<str>;

/// Loops over tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kernel {
    /// The nodes of the model that it computes.
    pub nodes: Vec<Name>,
    /// The tensors that it reads and writes.
    pub tensors: Vec<Tensor>,
    /// The names of loop variables: `%i` of index expressions is variable `i`.
    pub vars: Vec<Name>,
    /// Named values: `@i` of index expressions is value `i`.
    pub values: Vec<Value>,
    /// Its statements.
    pub body: Vec<Stmt>,
}

/// A tensor in memory or registers.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its name.
    pub name: Name,
    /// The type of its elements.
    pub dtype: DType,
    /// Its extents. Elements are in row-major order. Those of tensors outside of storage are constants.
    pub shape: Vec<Dim>,
    /// The memory that holds it.
    pub space: Space,
}

/// The memory that holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// A buffer.
    Storage(Access),
    /// Memory that the invocations of a workgroup share.
    Workgroup,
    /// Registers, of each invocation its own.
    Register,
}

/// The use of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It is only read.
    Read,
    /// It is only written.
    Write,
    /// It is read and written.
    Update,
}

/// A named value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Its name.
    pub name: Name,
    /// Its type.
    pub dtype: DType,
}

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// A loop.
    For(For),
    /// One of two lists of statements.
    If {
        /// The condition, a bool.
        condition: Expr,
        /// Executed where it is true.
        then: Vec<Stmt>,
        /// Executed where it is false.
        otherwise: Vec<Stmt>,
    },
    /// A name for a value, known to the statements after it in its list and inside of these.
    Let {
        /// Its number in [`Kernel::values`].
        value: u32,
        /// The value.
        expr: Expr,
    },
    /// An element is written.
    Store(Store),
    /// A point that no invocation of a workgroup passes before all have reached it.
    Barrier {
        /// Whether what was stored in buffers becomes visible too.
        storage: bool,
    },
}

/// A loop.
#[derive(Clone, Debug, PartialEq)]
pub struct For {
    /// Its variable, which no other loop has.
    pub var: usize,
    /// The number of its points: the variable runs from 0 to below it.
    pub extent: Poly,
    /// The way in which its points are executed.
    pub kind: Kind,
    /// Whether it begins with the last point.
    pub down: bool,
    /// The condition before each point without which the loop ends, a bool.
    pub condition: Option<Expr>,
    /// The statements of a point.
    pub body: Vec<Stmt>,
}

/// The way in which the points of a loop are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Each a workgroup.
    Grid,
    /// Each an invocation of the workgroup.
    Invocation,
    /// One after another.
    Serial,
    /// In any order, or at the same time: no point accesses an element of a buffer that another one writes, unless both combine or
    /// [may replace](Write::Any) it. Steps rely on that.
    Parallel,
    /// One after another, each as statements of its own.
    Unroll,
    /// In any order, each statement for all points before the next one: neighbours become operations on vectors.
    Vector,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] =
        [Kind::Grid, Kind::Invocation, Kind::Serial, Kind::Parallel, Kind::Unroll, Kind::Vector];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Grid => "grid",
            Kind::Invocation => "invocation",
            Kind::Serial => "serial",
            Kind::Parallel => "parallel",
            Kind::Unroll => "unroll",
            Kind::Vector => "vector",
        }
    }
}

impl Access {
    /// All uses.
    pub const ALL: [Access; 3] = [Access::Read, Access::Write, Access::Update];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Update => "update",
        }
    }
}

/// An element that is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// Which tensor.
    pub tensor: TensorId,
    /// The position along each axis.
    pub at: Vec<Poly>,
    /// The value, of the tensor's type, or an f32 that is rounded to f16.
    pub value: Expr,
    /// The condition under which it is written, a bool.
    pub guard: Option<Expr>,
    /// The way in which the stored value and the old element become the new one.
    pub write: Write,
}

/// The way in which a stored value and the old element become the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// It is replaced. No other invocation may write it at the same time.
    Replace,
    /// It is replaced. Others may replace it at the same time; one of the values remains.
    Any,
    /// It is combined with the value. Others may combine at the same time.
    Combine(ReduceOp),
}

impl For {
    /// A loop of this kind from the first point to the last.
    pub fn new(var: usize, extent: impl Into<Poly>, kind: Kind, body: Vec<Stmt>) -> For {
        For { var, extent: extent.into(), kind, down: false, condition: None, body }
    }
}

impl Store {
    /// A store that replaces an element.
    pub fn new(tensor: TensorId, at: Vec<Poly>, value: Expr) -> Store {
        Store { tensor, at, value, guard: None, write: Write::Replace }
    }
}

impl Tensor {
    /// The number of elements.
    pub fn elements(&self) -> Dim {
        self.shape.iter().product()
    }
    /// The offset of an element in row-major order.
    pub fn offset(&self, at: &[Poly]) -> Poly {
        at.iter().zip(&self.shape).fold(Poly::ZERO, |sum, (p, d)| &(&sum * d) + p)
    }
}

impl Kernel {
    /// A new variable. Its name is `name`, changed if something else has it.
    pub fn add_var(&mut self, name: &str) -> usize {
        let name = self.unused(name);
        self.vars.push(name);
        self.vars.len() - 1
    }
    /// A new named value. Its name is `name`, changed if something else has it.
    pub fn add_value(&mut self, name: &str, dtype: DType) -> u32 {
        let name = self.unused(name);
        self.values.push(Value { name, dtype });
        self.values.len() as u32 - 1
    }
    /// A new tensor. Its name is `name`, changed if something else has it.
    pub fn add_tensor(&mut self, name: &str, dtype: DType, shape: Vec<Dim>, space: Space) -> TensorId {
        let name = self.unused(name);
        self.tensors.push(Tensor { name, dtype, shape, space });
        self.tensors.len() - 1
    }

    /// This kernel with variables and values numbered in the order in which statements have them, without those that none has. A
    /// printed kernel is parsed as this one.
    pub fn in_order(&self) -> Kernel {
        let (mut vars, mut values) = (vec![], vec![]);
        visit(&self.body, &mut |s| match s {
            Stmt::For(l) => vars.push(l.var),
            Stmt::Let { value, .. } => values.push(*value),
            _ => {}
        });
        let var = |v: usize| vars.iter().position(|o| *o == v).unwrap_or(usize::MAX);
        let value = |v: u32| values.iter().position(|o| *o == v).map_or(u32::MAX, |i| i as u32);
        Kernel {
            vars: vars.iter().filter_map(|v| self.vars.get(*v).cloned()).collect(),
            values: values.iter().filter_map(|v| self.values.get(*v as usize).cloned()).collect(),
            body: self.body.iter().map(|s| numbered(s, &var, &value)).collect(),
            ..self.clone()
        }
    }

    /// `name`, or this name with a number that nothing else has: no tensor, variable, value or symbol.
    fn unused(&self, name: &str) -> Name {
        let names = self.vars.iter().chain(self.values.iter().map(|v| &v.name));
        let mut taken: std::collections::BTreeSet<Name> =
            names.chain(self.tensors.iter().map(|t| &t.name)).cloned().collect();
        self.indices(&mut |p| taken.extend(p.symbols()));
        let free = |n: &str| !taken.contains(n) && !RESERVED.contains(&n);
        if free(name) {
            return name.into();
        }
        let mut numbered = (1..).map(|i| format!("{name}_{i}")).filter(|n| free(n));
        numbered.next().unwrap_or_default().into()
    }

    /// Calls `f` for all index expressions: of shapes, extents, statements and expressions.
    pub fn indices(&self, f: &mut dyn FnMut(&Poly)) {
        self.tensors.iter().flat_map(|t| &t.shape).for_each(&mut *f);
        visit(&self.body, &mut |s| {
            match s {
                Stmt::For(l) => f(&l.extent),
                Stmt::Store(s) => s.at.iter().for_each(&mut *f),
                _ => {}
            }
            s.exprs(&mut |e| e.visit(&mut |e| e.indices().iter().for_each(&mut *f)));
        });
    }

    /// The name of an atom of an index expression.
    pub fn name_of(&self, a: &Atom) -> Option<String> {
        match a {
            Atom::Var(i) => self.vars.get(*i as usize).map(|n| n.to_string()),
            Atom::Data(i) => self.values.get(*i as usize).map(|v| v.name.to_string()),
            _ => None,
        }
    }
}

/// A statement whose loops and named values are renumbered.
pub(crate) fn numbered(s: &Stmt, var: &dyn Fn(usize) -> usize, value: &dyn Fn(u32) -> u32) -> Stmt {
    fn own(s: Stmt, var: &dyn Fn(usize) -> usize, value: &dyn Fn(u32) -> u32) -> Stmt {
        let all = |b: Vec<Stmt>| b.into_iter().map(|s| own(s, var, value)).collect();
        match s {
            Stmt::For(l) => Stmt::For(For { var: var(l.var), body: all(l.body), ..l }),
            Stmt::If { condition, then, otherwise } => {
                Stmt::If { condition, then: all(then), otherwise: all(otherwise) }
            }
            Stmt::Let { value: v, expr } => Stmt::Let { value: value(v), expr },
            s => s,
        }
    }
    let atom = |a: &Atom| match a {
        Atom::Var(v) => Some(Poly::var(var(*v as usize))),
        Atom::Data(d) => Some(Poly::atom(Atom::Data(value(*d)))),
        _ => None,
    };
    let expr = |e: Expr| match e {
        Expr::Value(v) => Expr::Value(value(v)),
        e => e,
    };
    own(s.map(&|p| p.subst(&atom, &[]), &expr), var, value)
}

/// Names that text gives a meaning of its own.
pub(crate) const RESERVED: [&str; 21] = [
    "for", "in", "if", "else", "let", "barrier", "storage", "while", "down", "index", "select", "cast",
    "bitcast", "max", "min", "any", "sum", "prod", "true", "false", "kernel",
];

/// Calls `f` for all statements, a loop before those inside.
pub fn visit<'s>(body: &'s [Stmt], f: &mut dyn FnMut(&'s Stmt)) {
    for s in body {
        f(s);
        match s {
            Stmt::For(l) => visit(&l.body, f),
            Stmt::If { then, otherwise, .. } => {
                visit(then, f);
                visit(otherwise, f);
            }
            _ => {}
        }
    }
}

impl Stmt {
    /// Calls `f` for the expressions of this statement itself, without those of statements inside.
    pub fn exprs<'s>(&'s self, f: &mut dyn FnMut(&'s Expr)) {
        match self {
            Stmt::For(l) => l.condition.iter().for_each(f),
            Stmt::If { condition, .. } => f(condition),
            Stmt::Let { expr, .. } => f(expr),
            Stmt::Store(s) => {
                f(&s.value);
                s.guard.iter().for_each(f);
            }
            Stmt::Barrier { .. } => {}
        }
    }

    /// This statement with `index` applied to all index expressions and `change` to all expressions, those inside included.
    pub fn map(&self, index: &dyn Fn(&Poly) -> Poly, change: &dyn Fn(Expr) -> Expr) -> Stmt {
        let expr = |e: &Expr| e.map(index, change);
        let all = |b: &[Stmt]| b.iter().map(|s| s.map(index, change)).collect::<Vec<_>>();
        match self {
            Stmt::For(l) => Stmt::For(For {
                extent: index(&l.extent),
                condition: l.condition.as_ref().map(expr),
                body: all(&l.body),
                ..*l
            }),
            Stmt::If { condition, then, otherwise } => {
                Stmt::If { condition: expr(condition), then: all(then), otherwise: all(otherwise) }
            }
            Stmt::Let { value, expr: e } => Stmt::Let { value: *value, expr: expr(e) },
            Stmt::Store(s) => Stmt::Store(Store {
                at: s.at.iter().map(index).collect(),
                value: expr(&s.value),
                guard: s.guard.as_ref().map(expr),
                ..*s
            }),
            Stmt::Barrier { storage } => Stmt::Barrier { storage: *storage },
        }
    }
}
