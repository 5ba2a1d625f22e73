//! The rules that a kernel follows whatever the sizes.

use crate::interpret::levels;
use crate::text::{expr as shown, statement};
use crate::{Access, Expr, For, Kernel, Kind, Space, Stmt, Store, Write};
use std::collections::BTreeSet;
use wgfc_ir::{DType, Poly, ReduceOp};

/// The most points of a loop of kind [`Vector`](Kind::Vector), whose statements are written out for all of them together.
///
/// ```
/// assert_eq!(wgfc_loops::MOST_POINTS, 64);
/// ```
pub const MOST_POINTS: i64 = 64;

/// Checks that a kernel is well formed: names are unique and known where they are used, types fit, loops of workgroups and
/// invocations are outermost, only what is written is stored to, and barriers and subgroup operations are where all invocations
/// reach them. `Err` lists all violations.
///
/// A kernel that verifies ends: each loop has a number of points that is an index expression of what is known when the loop begins,
/// also one that may end earlier by a condition, and nothing changes that number.
///
/// ```
/// let text = "kernel
///   y: f32[n] storage read
///   for i in 0..n
///     y[i] = 1.0
/// ";
/// let wrong = wgfc_loops::verify(&wgfc_loops::text::parse(text).unwrap()).unwrap_err();
/// assert_eq!(wrong, ["`y[i] = 1.0`: writes `y`, which is only read"]);
/// ```
pub fn verify(kernel: &Kernel) -> Result<(), Vec<String>> {
    let mut c = Checker {
        kernel,
        errors: vec![],
        vars: BTreeSet::new(),
        values: BTreeSet::new(),
        bound: BTreeSet::new(),
        varying: Varying::default(),
    };
    c.names();
    c.tensors();
    let (grid, invocations, body) = levels(kernel);
    for l in grid.iter().chain(&invocations) {
        c.head(l);
    }
    c.varying.vars.extend(invocations.iter().map(|l| l.var));
    c.block(body, true);
    if c.errors.is_empty() { Ok(()) } else { Err(c.errors) }
}

/// The variables and values that may differ between invocations of a workgroup.
#[derive(Default)]
struct Varying {
    vars: BTreeSet<usize>,
    values: BTreeSet<u32>,
}

impl Varying {
    fn index(&self, p: &Poly) -> bool {
        p.vars().iter().any(|v| self.vars.contains(v)) || p.data().iter().any(|d| self.values.contains(d))
    }

    fn expr(&self, kernel: &Kernel, e: &Expr) -> bool {
        let mut found = false;
        e.visit(&mut |e| {
            found |= e.indices().iter().any(|p| self.index(p));
            found |= match e {
                Expr::Value(v) => self.values.contains(v),
                Expr::Load { tensor, .. } => {
                    let space = kernel.tensors.get(*tensor).map(|t| t.space);
                    space != Some(Space::Storage(Access::Read))
                }
                Expr::Subgroup(..) => true,
                _ => false,
            };
        });
        found
    }
}

struct Checker<'k> {
    kernel: &'k Kernel,
    errors: Vec<String>,
    /// The variables and values that are known here.
    vars: BTreeSet<usize>,
    values: BTreeSet<u32>,
    /// Variables that a loop has.
    bound: BTreeSet<usize>,
    varying: Varying,
}

impl Checker<'_> {
    fn error(&mut self, at: &str, why: impl std::fmt::Display) {
        self.errors.push(format!("`{at}`: {why}"));
    }

    fn names(&mut self) {
        let k = self.kernel;
        let mut taken = BTreeSet::new();
        let names = k.tensors.iter().map(|t| &t.name).chain(&k.vars).chain(k.values.iter().map(|v| &v.name));
        for n in names {
            if !taken.insert(n.clone()) {
                self.error(n, "is the name of two things");
            }
        }
        let mut symbols = BTreeSet::new();
        k.indices(&mut |p| symbols.extend(p.symbols()));
        for s in symbols.intersection(&taken) {
            self.error(s, "is the name of a symbol and of something else");
        }
    }

    fn tensors(&mut self) {
        for t in &self.kernel.tensors {
            let storage = matches!(t.space, Space::Storage(_));
            for d in &t.shape {
                if !storage && d.as_const().is_none_or(|n| n < 0) {
                    self.error(
                        &t.name,
                        format!("the extent {d} of a tensor outside of storage is no constant"),
                    );
                }
                if !d.vars().is_empty() || !d.data().is_empty() {
                    self.error(&t.name, format!("the extent {d} depends on where it is read"));
                }
            }
        }
    }

    /// A loop of workgroups or invocations.
    fn head(&mut self, l: &For) {
        let at = statement(self.kernel, &Stmt::For(For { body: vec![], ..l.clone() }));
        if l.condition.is_some() || l.down {
            self.error(&at, format!("a loop of kind {} has no order", l.kind.name()));
        }
        if l.kind == Kind::Invocation && l.extent.as_const().is_none_or(|n| n < 1) {
            self.error(&at, "the number of invocations is no positive constant");
        }
        self.ends(&at, l);
        if !l.extent.vars().is_empty() || !l.extent.data().is_empty() {
            self.error(&at, "the number of workgroups depends on the workgroup");
        }
        self.bind(&at, l.var);
    }

    /// The number of points of a loop is known.
    fn ends(&mut self, at: &str, l: &For) {
        if l.extent.is_too_large() {
            self.error(at, "the loop has no known number of points");
        }
    }

    fn bind(&mut self, at: &str, var: usize) {
        if var >= self.kernel.vars.len() {
            self.error(at, "the loop has no variable");
        }
        if !self.bound.insert(var) {
            self.error(at, "another loop has this variable");
        }
        self.vars.insert(var);
    }

    /// Statements that all invocations of a workgroup execute together, if `uniform`.
    fn block(&mut self, body: &[Stmt], uniform: bool) {
        let before = self.values.clone();
        for s in body {
            self.statement(s, uniform);
        }
        self.values = before;
    }

    fn statement(&mut self, s: &Stmt, uniform: bool) {
        let at = statement(self.kernel, s);
        match s {
            Stmt::For(l) => {
                self.index(&at, &l.extent);
                self.ends(&at, l);
                if matches!(l.kind, Kind::Grid | Kind::Invocation) {
                    self.error(
                        &at,
                        format!("a loop of kind {} is inside of other statements", l.kind.name()),
                    );
                }
                let constant = l.extent.as_const();
                if l.kind == Kind::Vector && !constant.is_some_and(|n| (1..=MOST_POINTS).contains(&n)) {
                    self.error(&at, format!("a vector has 1 to {MOST_POINTS} points"));
                }
                if l.kind == Kind::Unroll && constant.is_none() {
                    self.error(&at, "the number of copies is no constant");
                }
                if self.varying.index(&l.extent) {
                    self.varying.vars.insert(l.var);
                }
                self.bind(&at, l.var);
                let mut alike = !self.varying.index(&l.extent);
                if let Some(c) = &l.condition {
                    self.bool(&at, c, uniform);
                    alike &= !self.varying.expr(self.kernel, c);
                }
                self.block(&l.body, uniform && alike);
                self.vars.remove(&l.var);
            }
            Stmt::If { condition, then, otherwise } => {
                self.bool(&at, condition, uniform);
                let alike = !self.varying.expr(self.kernel, condition);
                self.block(then, uniform && alike);
                self.block(otherwise, uniform && alike);
            }
            Stmt::Let { value, expr } => {
                let dtype = self.expr(&at, expr, uniform);
                match self.kernel.values.get(*value as usize) {
                    None => self.error(&at, "the value has no name"),
                    Some(v) if dtype.is_some_and(|t| t != v.dtype) => {
                        self.error(&at, format!("the value is of type {}", dtype.unwrap_or(v.dtype)));
                    }
                    Some(_) => {}
                }
                if !self.values.insert(*value) {
                    self.error(&at, "the value is computed already");
                }
                if self.varying.expr(self.kernel, expr) {
                    self.varying.values.insert(*value);
                }
            }
            Stmt::Store(s) => self.store(&at, s, uniform),
            Stmt::Barrier { .. } => {
                if !uniform {
                    self.error(&at, "not all invocations of the workgroup reach it together");
                }
            }
        }
    }

    fn store(&mut self, at: &str, s: &Store, uniform: bool) {
        s.at.iter().for_each(|p| self.index(at, p));
        if let Some(g) = &s.guard {
            self.bool(at, g, uniform);
        }
        let dtype = self.expr(at, &s.value, uniform);
        let Some(t) = self.kernel.tensors.get(s.tensor) else {
            return self.error(at, "the tensor does not exist");
        };
        if t.shape.len() != s.at.len() {
            self.error(
                at,
                format!("`{}` has {} axes and is written at {} positions", t.name, t.shape.len(), s.at.len()),
            );
        }
        if t.space == Space::Storage(Access::Read) {
            self.error(at, format!("writes `{}`, which is only read", t.name));
        }
        let rounded = dtype == Some(DType::F32) && t.dtype == DType::F16;
        if dtype.is_some_and(|d| d != t.dtype) && !rounded {
            let d = dtype.unwrap_or(t.dtype);
            self.error(at, format!("a value of type {d} for `{}` of type {}", t.name, t.dtype));
        }
        if let Write::Combine(op) = s.write
            && t.space != Space::Register
        {
            let known = match op {
                ReduceOp::Sum => matches!(t.dtype, DType::I32 | DType::U32 | DType::I64 | DType::U64),
                ReduceOp::Max | ReduceOp::Min => matches!(t.dtype, DType::I32 | DType::U32),
                ReduceOp::Prod => false,
            };
            if !known {
                self.error(
                    at,
                    format!("invocations cannot combine values of type {} by {}", t.dtype, op.name()),
                );
            }
        }
    }

    fn index(&mut self, at: &str, p: &Poly) {
        if p.is_too_large() {
            self.error(at, "an index expression has too many terms");
        }
        for v in p.vars() {
            if !self.vars.contains(&v) {
                let name = self.kernel.vars.get(v).map_or_else(|| format!("%{v}"), |n| n.to_string());
                self.error(at, format!("`{name}` is the variable of no loop around it"));
            }
        }
        for d in p.data() {
            if !self.values.contains(&d) {
                self.unknown(at, d);
            }
            if self.kernel.values.get(d as usize).is_some_and(|v| v.dtype.is_float()) {
                self.error(at, "an index is a floating-point value");
            }
        }
    }

    fn unknown(&mut self, at: &str, value: u32) {
        let name = self
            .kernel
            .values
            .get(value as usize)
            .map_or_else(|| format!("@{value}"), |v| v.name.to_string());
        self.error(at, format!("`{name}` is not computed before it"));
    }

    fn bool(&mut self, at: &str, e: &Expr, uniform: bool) {
        if self.expr(at, e, uniform).is_some_and(|t| t != DType::Bool) {
            self.error(at, format!("`{}` is no condition", shown(self.kernel, e)));
        }
    }

    fn expr(&mut self, at: &str, e: &Expr, uniform: bool) -> Option<DType> {
        e.visit(&mut |e| {
            e.indices().iter().for_each(|p| self.index(at, p));
            match e {
                Expr::Value(v) if !self.values.contains(v) => self.unknown(at, *v),
                Expr::Load { tensor, .. } => {
                    if let Some(t) = self.kernel.tensors.get(*tensor)
                        && t.space == Space::Storage(Access::Write)
                    {
                        self.error(at, format!("reads `{}`, which is only written", t.name));
                    }
                }
                Expr::Subgroup(..) if !uniform => {
                    self.error(
                        at,
                        "not all invocations of the workgroup reach a subgroup operation together",
                    );
                }
                _ => {}
            }
        });
        match e.dtype(self.kernel) {
            Ok(t) => Some(t),
            Err(why) => {
                self.error(at, why);
                None
            }
        }
    }
}
