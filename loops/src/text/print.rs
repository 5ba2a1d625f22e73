//! Printing of kernels.

use super::INFIX;
use crate::{Combined, Expr, For, Kernel, Kind, Space, Stmt, Store, Write};
use std::fmt::{self, Display, Formatter};
use wgfc_ir::{BinaryOp, DType, Poly, Scalar};

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("kernel")?;
        for (i, n) in self.nodes.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { " " } else { ", " }, quoted(n))?;
        }
        writeln!(f)?;
        for t in &self.tensors {
            write!(f, "  {}: {}", t.name, t.dtype)?;
            if !t.shape.is_empty() {
                write!(f, "[{}]", list(&t.shape.iter().collect::<Vec<_>>()))?;
            }
            match t.space {
                Space::Storage(access) => writeln!(f, " storage {}", access.name())?,
                Space::Workgroup => writeln!(f, " workgroup")?,
                Space::Register => writeln!(f, " register")?,
            }
        }
        Printer(self).block(f, &self.body, 1)
    }
}

/// A statement without those inside of it, as one line of text.
pub fn statement(kernel: &Kernel, s: &Stmt) -> String {
    Printer(kernel).line(s)
}

/// An expression as text.
pub fn expr(kernel: &Kernel, e: &Expr) -> String {
    Printer(kernel).expr(e, 0)
}

/// Text in quotation marks, with `\` before quotation marks and backslashes; line ends become spaces.
fn quoted(s: &str) -> String {
    let mut out = String::from('"');
    for c in s.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(if c.is_control() { ' ' } else { c });
    }
    out.push('"');
    out
}

fn list<T: Display>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

/// A constant: an f32 without its type.
fn constant(s: Scalar) -> String {
    let value = s.as_f64();
    if s.dtype == DType::F32 && !value.is_nan() { format!("{value:?}") } else { s.to_string() }
}

struct Printer<'k>(&'k Kernel);

impl Printer<'_> {
    fn block(&self, f: &mut Formatter<'_>, body: &[Stmt], depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        for s in body {
            writeln!(f, "{indent}{}", self.line(s))?;
            match s {
                Stmt::For(l) => self.block(f, &l.body, depth + 1)?,
                Stmt::If { then, otherwise, .. } => {
                    self.block(f, then, depth + 1)?;
                    if !otherwise.is_empty() {
                        writeln!(f, "{indent}else")?;
                        self.block(f, otherwise, depth + 1)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn line(&self, s: &Stmt) -> String {
        match s {
            Stmt::For(l) => self.header(l),
            Stmt::If { condition, .. } => format!("if {}", self.expr(condition, 0)),
            Stmt::Let { value, expr } => {
                let (name, dtype) = self.0.values.get(*value as usize).map_or_else(
                    || (format!("@{value}"), String::new()),
                    |v| (v.name.to_string(), format!(": {}", v.dtype)),
                );
                format!("let {name}{dtype} = {}", self.expr(expr, 0))
            }
            Stmt::Store(s) => self.store(s),
            Stmt::Barrier { storage: false } => "barrier".into(),
            Stmt::Barrier { storage: true } => "barrier storage".into(),
        }
    }

    fn header(&self, l: &For) -> String {
        let name = self.0.vars.get(l.var).map_or_else(|| format!("%{}", l.var), |n| n.to_string());
        let mut out = format!("for {name} in 0..{}", self.index(&l.extent));
        if l.kind != Kind::Serial {
            out += &format!(" {}", l.kind.name());
        }
        if l.down {
            out += " down";
        }
        if let Some(c) = &l.condition {
            out += &format!(" while {}", self.expr(c, 0));
        }
        out
    }

    fn store(&self, s: &Store) -> String {
        let op = match s.write {
            Write::Replace => "=".into(),
            Write::Any => "any=".into(),
            Write::Combine(op) => format!("{}=", op.name()),
        };
        let guard = s.guard.as_ref().map_or_else(String::new, |g| format!(" if {}", self.expr(g, 0)));
        format!("{} {op} {}{guard}", self.element(s.tensor, &s.at, None), self.expr(&s.value, 0))
    }

    fn index(&self, p: &Poly) -> String {
        p.named(&|a| self.0.name_of(a)).to_string()
    }

    fn element(&self, tensor: usize, at: &[Poly], guard: Option<&Expr>) -> String {
        let name = self.0.tensors.get(tensor).map_or_else(|| format!("t{tensor}"), |t| t.name.to_string());
        let at: Vec<String> = at.iter().map(|p| self.index(p)).collect();
        match guard {
            None if at.is_empty() => name,
            None => format!("{name}[{}]", at.join(", ")),
            Some(g) => format!("{name}[{} if {}]", at.join(", "), self.expr(g, 0)),
        }
    }

    /// An expression as an operand of operators that bind as strongly as those of line `level` of [`INFIX`].
    fn expr(&self, e: &Expr, level: usize) -> String {
        let call = |name: &str, args: &[&Expr]| {
            let args: Vec<String> = args.iter().map(|a| self.expr(a, 0)).collect();
            format!("{name}({})", args.join(", "))
        };
        match e {
            Expr::Const(s) => constant(*s),
            Expr::Index(p) => format!("index({})", self.index(p)),
            Expr::Value(v) => {
                self.0.values.get(*v as usize).map_or_else(|| format!("@{v}"), |v| v.name.to_string())
            }
            Expr::Load { tensor, at, guard } => self.element(*tensor, at, guard.as_deref()),
            Expr::Unary(op, a) => call(op.name(), &[a]),
            Expr::Binary(op, a, b) => match infix(*op) {
                Some((own, symbol)) => {
                    // Comparisons do not follow one another.
                    let left = if own == 0 { 1 } else { own };
                    let text = format!("{} {symbol} {}", self.expr(a, left), self.expr(b, own + 1));
                    if own < level { format!("({text})") } else { text }
                }
                None => call(op.name(), &[a, b]),
            },
            Expr::Select(c, a, b) => call("select", &[c, a, b]),
            Expr::Cast(t, a) => format!("cast({t}, {})", self.expr(a, 0)),
            Expr::Bitcast(t, a) => format!("bitcast({t}, {})", self.expr(a, 0)),
            Expr::Subgroup(Combined::All(op), a) => call(&format!("subgroup_{}", op.name()), &[a]),
            Expr::Subgroup(Combined::Xor(bits), a) => format!("shuffle_xor({}, {bits})", self.expr(a, 0)),
        }
    }
}

/// The line of [`INFIX`] and the symbol of an operator that is written between its operands.
fn infix(op: BinaryOp) -> Option<(usize, &'static str)> {
    let at = |(i, all): (usize, &&[(&'static str, BinaryOp)])| {
        all.iter().find(|(_, o)| *o == op).map(|(symbol, _)| (i, *symbol))
    };
    INFIX.iter().enumerate().find_map(at)
}
