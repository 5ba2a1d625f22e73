//! Index expressions as `i32` arithmetic.

use super::wgsl::{Module, Scope};
use crate::Diagnostic;
use crate::kernel::dependence::Deps;
use std::sync::Arc;
use wgfc_ir::{Atom, Poly, Reg};

impl Module<'_> {
    /// The name or literal of an index expression's value.
    pub fn index(&mut self, s: &mut Scope, p: &Poly) -> Result<String, Diagnostic> {
        if let Some(c) = p.as_const() {
            return literal(c);
        }
        if let Some(n) = s.known_poly(p) {
            return Ok(n.clone());
        }
        let name = match p.as_atom() {
            Some(a) => self.atom(s, a)?,
            None => {
                let base = self.shared_sum(p);
                let text = match (p - &base).as_const() {
                    Some(c) if c != 0 => {
                        let (base, size) =
                            (self.index(s, &base)?, literal(c.checked_abs().unwrap_or(i64::MAX))?);
                        format!("{base} {} {size}", if c < 0 { '-' } else { '+' })
                    }
                    _ => self.sum(s, p)?,
                };
                s.let_index(&text)
            }
        };
        s.remember_poly(p, &name);
        Ok(name)
    }

    /// The index expression without its constant, if several expressions differ by their constants only; else the expression itself.
    pub(super) fn shared_sum(&self, p: &Poly) -> Poly {
        let base = p - &Poly::constant(constant(p));
        if self.sums.contains(&base) { base } else { p.clone() }
    }

    /// The part of a sum that an enclosing scope has computed, and the rest.
    fn split(&self, p: &Poly, ready: Deps) -> (Poly, Poly) {
        let (mut base, mut rest) = (Poly::ZERO, Poly::ZERO);
        for (m, c) in p.terms() {
            let t = m.iter().fold(Poly::constant(c), |t, a| &t * &Poly::atom(a.clone()));
            if self.poly_deps(&t) & !ready == 0 { base = &base + &t } else { rest = &rest + &t }
        }
        (base, rest)
    }

    fn sum(&mut self, s: &mut Scope, p: &Poly) -> Result<String, Diagnostic> {
        let mut rest = p.clone();
        let mut parts: Vec<(bool, String)> = vec![];
        for ready in s.ready().to_vec().into_iter().rev() {
            let (base, other) = self.split(&rest, ready);
            if let Some(n) = s.known_poly(&base) {
                parts.push((false, n.clone()));
                rest = other;
            }
        }
        for (m, c) in rest.terms() {
            let mut factors = vec![];
            for a in &m {
                factors.push(self.index(s, &Poly::atom(a.clone()))?);
            }
            let size = literal(c.checked_abs().unwrap_or(i64::MAX))?;
            if c.unsigned_abs() != 1 || factors.is_empty() {
                factors.push(size);
            }
            parts.push((c < 0, factors.join(" * ")));
        }
        parts.sort_by_key(|p| p.0);
        let mut text = String::new();
        for (i, (negative, part)) in parts.iter().enumerate() {
            text.push_str(match (i, negative) {
                (0, false) => "",
                (0, true) => "0 - ",
                (_, false) => " + ",
                (_, true) => " - ",
            });
            text.push_str(part);
        }
        Ok(text)
    }

    fn atom(&mut self, s: &mut Scope, a: &Atom) -> Result<String, Diagnostic> {
        let text = match a {
            Atom::Var(i) => return Ok(s.var(*i as usize)),
            Atom::Sym(name) => return self.symbol(name),
            Atom::Data(e) => return self.data(s, *e),
            Atom::TooLarge => {
                return Err(Diagnostic::unsupported("an index is an expression with too many terms")
                    .help("fix dimensions with --dim NAME=VALUE"));
            }
            Atom::Max(x, y) | Atom::Min(x, y) => {
                let name = if matches!(a, Atom::Max(..)) { "max" } else { "min" };
                let constant = x.as_const().is_some() || y.as_const().is_some();
                let nested = [x, y].iter().any(|p| p.has_extremes() || !p.data().is_empty());
                let (x, y) = (self.index(s, x)?, self.index(s, y)?);
                if constant || !nested {
                    format!("{name}({x}, {y})")
                } else {
                    self.call(&format!("{name}_i32"), &[&x, &y])?
                }
            }
            Atom::Div(x, y) | Atom::Mod(x, y) => {
                let div = matches!(a, Atom::Div(..));
                let nonneg = self.is_nonneg(x);
                let xs = self.index(s, x)?;
                match y.as_const() {
                    Some(c) if c > 0 && c & (c - 1) == 0 && div => format!("{xs} >> {}u", c.trailing_zeros()),
                    Some(c) if c > 0 && c & (c - 1) == 0 => format!("{xs} & {}", literal(c - 1)?),
                    c => {
                        let ys = self.index(s, y)?;
                        if nonneg {
                            let ys = if c.is_some() { format!("{ys}u") } else { format!("u32({ys})") };
                            let op = if div { '/' } else { '%' };
                            format!("i32(u32({xs}) {op} {ys})")
                        } else {
                            self.call(if div { "floor_div" } else { "floor_mod" }, &[&xs, &ys])?
                        }
                    }
                }
            }
        };
        Ok(s.let_index(&text))
    }

    /// Whether an index expression is not negative where the kernel evaluates it.
    fn is_nonneg(&self, p: &Poly) -> bool {
        if !p.has_extremes() {
            return p.proves_nonneg(&self.domain);
        }
        // A number of points less one, of which there are some.
        let last = |p: &Poly| {
            let some = |a: &Atom| match a {
                Atom::Sym(s) if self.positive.contains(s) => Some(&Poly::atom(a.clone()) + &Poly::ONE),
                _ => None,
            };
            p.vars().is_empty() && p.subst(&some, &[]).proves_nonneg(&[])
        };
        let known = |p: &Poly| p.proves_nonneg(&self.domain) || last(p);
        let held = |a: &Atom| match a {
            Atom::Min(x, y) if known(x) && known(y) => Some(Poly::sym("held")),
            _ => None,
        };
        p.subst(&held, &self.domain).proves_nonneg(&self.domain)
    }

    /// The uniform that holds a symbol.
    fn symbol(&mut self, name: &Arc<str>) -> Result<String, Diagnostic> {
        let i = self.cx.symbols.iter().position(|n| n == name).ok_or_else(|| {
            Diagnostic::internal(format!("the program has no symbol `{name}`, which a kernel uses"))
        })?;
        self.uses_dims = true;
        Ok(format!("dims.{}", self.field(i)))
    }

    /// The field of `Dims` for symbol `i`: a WGSL identifier that is unique among them.
    pub(super) fn field(&self, i: usize) -> String {
        let clean = |n: &str| -> String {
            n.chars().take(40).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
        };
        let names = self.cx.symbols;
        let mine = clean(&names[i]);
        if names.iter().filter(|n| clean(n) == mine).count() > 1 {
            return format!("n{i}_{mine}");
        }
        format!("n_{mine}")
    }

    fn data(&mut self, s: &mut Scope, e: u32) -> Result<String, Diagnostic> {
        Ok(match self.kernel.body.dtype(e).reg() {
            Reg::I32 => self.value(s, e)?.to_string(),
            Reg::U32 => format!("i32({})", self.value(s, e)?),
            Reg::I64 | Reg::U64 => format!("i32({})", self.low_word(s, e)?),
            Reg::Bool => format!("select(0, 1, {})", self.value(s, e)?),
            Reg::F32 => return Err(Diagnostic::internal("an index is read from floating-point data")),
        })
    }

    /// Writes the parts of an index expression for which `ready` suffices.
    pub(super) fn hoist_index(&mut self, s: &mut Scope, p: &Poly, ready: Deps) -> Result<(), Diagnostic> {
        for (m, _) in p.terms() {
            for a in m {
                if let Atom::Div(x, y) | Atom::Mod(x, y) | Atom::Max(x, y) | Atom::Min(x, y) = &a {
                    let whole = Poly::atom(a.clone());
                    if self.poly_deps(&whole) & !ready == 0 {
                        self.index(s, &whole)?;
                    } else {
                        self.hoist_index(s, x, ready)?;
                        self.hoist_index(s, y, ready)?;
                    }
                }
            }
        }
        let (base, _) = self.split(p, ready);
        if base.as_const().is_none() {
            self.index(s, &base)?;
        }
        Ok(())
    }
}

/// The constant term of an index expression.
pub(super) fn constant(p: &Poly) -> i64 {
    p.terms().into_iter().find(|(m, _)| m.is_empty()).map_or(0, |(_, c)| c)
}

/// An `i32` literal, in parentheses where negative.
fn literal(c: i64) -> Result<String, Diagnostic> {
    match i32::try_from(c) {
        Ok(i32::MIN) => Ok("(-2147483647 - 1)".into()),
        Ok(c) if c < 0 => Ok(format!("({c})")),
        Ok(c) => Ok(c.to_string()),
        Err(_) => Err(Diagnostic::unsupported(format!(
            "a kernel would compute the element offset {c}, which does not fit 31 bits"
        ))
        .help("split the model's largest tensors; one tensor may have at most 2147483647 elements")),
    }
}
