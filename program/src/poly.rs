//! Symbolic integers: one canonical form for dimensions and index expressions.
//!
//! A [`Poly`] is a sum of integer multiples of products of [`Atom`]s. A *dimension* uses only
//! symbols (`past + seq`); an *index expression* also uses the variables of an iteration domain.
//! The form is canonical: equal sums compare equal in whatever order they were written.
//!
//! Arithmetic of constants saturates at the ends of `i64` instead of wrapping, so that absurd model dimensions stay
//! absurd and the verifier rejects them. An expression with more than [`MAX_SIZE`] parts, more than [`MAX_DEPTH`]
//! levels or a coefficient outside of `i64` becomes [`Atom::TooLarge`], and so does everything computed from it; the
//! importer, the verifier and fusion reject it.
//!
//! # Text
//! `past + seq`, `2*batch*heads`, `(h + 1)/2` (floor division), `h % 4`, `max(a, b)`, `min(a, b)`.
//! Domain variables print as `%0`, `%1`, data-dependent values as `@0`.

mod bound;
mod divide;
mod signed;
mod text;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

/// A dimension of a tensor: a [`Poly`] over symbols only, never negative.
pub type Dim = Poly;

/// The extents of an iteration domain: variable `%i` runs over `0..domain[i]`.
pub type Domain = [Poly];

/// The maximum number of terms and atoms of an expression, including those inside atoms.
pub const MAX_SIZE: u32 = 2048;
/// The maximum nesting depth of divisions, remainders, minima and maxima.
pub const MAX_DEPTH: u32 = 64;
/// The first character of names of symbols that stand for an expression, whose value may exceed that of a dimension.
/// No symbol of a model begins with it.
pub const STANDS_FOR: char = '\'';
/// The maximum value of a symbol: devices count elements in 32 bits.
pub const MAX_EXTENT: i64 = i32::MAX as i64;

/// An indivisible factor of a [`Poly`].
///
/// ```
/// use wgfc_program::{Atom, Poly};
/// let halves = Poly::parse("n/2")?;
/// let Some(Atom::Div(n, two)) = halves.as_atom() else { panic!("a quotient is one atom") };
/// assert_eq!((n, two.as_const()), (&Poly::sym("n"), Some(2)));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Atom {
    /// A symbolic dimension, at least 0.
    Sym(Arc<str>),
    /// A variable of the surrounding iteration domain.
    Var(u32),
    /// A value read from data; what the number refers to depends on the context.
    Data(u32),
    /// Floor division; the divisor is positive.
    Div(Poly, Poly),
    /// Remainder of floor division, in `0..divisor`.
    Mod(Poly, Poly),
    /// The larger of two expressions.
    Max(Poly, Poly),
    /// The smaller of two expressions.
    Min(Poly, Poly),
    /// An expression beyond the limits, about which nothing is known.
    TooLarge,
}

/// A product of atoms, sorted, with repetitions for powers. The empty product is 1.
pub type Monomial = Vec<Atom>;

/// A symbolic integer in canonical form. See the [module](self).
///
/// ```
/// use wgfc_program::{Dim, Poly};
/// let total = Dim::sym("past") + Dim::sym("seq");
/// assert_eq!(total, Poly::parse("seq + past")?);
/// assert_eq!((&total * &total).to_string(), Poly::parse("(past + seq)*(past + seq)")?.to_string());
/// assert_eq!(total.eval_syms(&|s| (s == "past").then_some(7).or(Some(5))), Some(12));
/// assert_eq!((total.clone() - total).as_const(), Some(0));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Poly(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Const(i64),
    /// At least one non-empty monomial.
    Sum(Arc<Sum>),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Sum {
    /// Sorted by monomial, without zero coefficients.
    terms: Vec<(Monomial, i64)>,
    /// The number of terms and atoms at all depths.
    size: u32,
    /// The nesting depth of its atoms.
    depth: u32,
    /// Whether it consists only of symbols, sums, products and divisions.
    plain: bool,
}

impl std::ops::Deref for Sum {
    type Target = [(Monomial, i64)];
    fn deref(&self) -> &Self::Target {
        &self.terms
    }
}

type Terms = BTreeMap<Monomial, i64>;

impl Poly {
    /// Zero.
    pub const ZERO: Poly = Poly(Repr::Const(0));
    /// One.
    pub const ONE: Poly = Poly(Repr::Const(1));

    /// A constant.
    pub fn constant(v: i64) -> Poly {
        Poly(Repr::Const(v))
    }
    /// A symbolic dimension. The name should be an identifier.
    pub fn sym(name: &str) -> Poly {
        Poly::atom(Atom::Sym(name.into()))
    }
    /// Variable `%i` of the domain.
    pub fn var(i: usize) -> Poly {
        Poly::atom(Atom::Var(i as u32))
    }
    /// A single atom.
    pub fn atom(a: Atom) -> Poly {
        Poly::from_sorted(vec![(vec![a], 1)])
    }

    /// The polynomial that replaces an expression beyond [`MAX_SIZE`] or [`MAX_DEPTH`].
    pub fn too_large() -> Poly {
        let terms = vec![(vec![Atom::TooLarge], 1)];
        Poly(Repr::Sum(Arc::new(Sum { terms, size: 1, depth: 0, plain: false })))
    }
    /// Whether it stands for an expression beyond the limits.
    pub fn is_too_large(&self) -> bool {
        matches!(self.as_atom(), Some(Atom::TooLarge))
    }

    /// The number of terms and atoms, including those inside atoms.
    pub fn size(&self) -> u32 {
        match &self.0 {
            Repr::Const(_) => 1,
            Repr::Sum(t) => t.size,
        }
    }

    fn nesting(&self) -> u32 {
        match &self.0 {
            Repr::Const(_) => 0,
            Repr::Sum(t) => t.depth,
        }
    }

    /// Whether it consists only of symbols, sums, products and divisions.
    fn is_plain(&self) -> bool {
        match &self.0 {
            Repr::Const(_) => true,
            Repr::Sum(t) => t.plain,
        }
    }

    fn from_terms(t: Terms) -> Poly {
        Poly::from_sorted(t.into_iter().collect())
    }

    /// The sum of terms sorted by their monomials, which must be distinct.
    fn from_sorted(mut terms: Vec<(Monomial, i64)>) -> Poly {
        terms.retain(|(_, c)| *c != 0);
        match terms.as_slice() {
            [] => return Poly::ZERO,
            [(m, c)] if m.is_empty() => return Poly::constant(*c),
            _ => {}
        }
        let (mut size, mut depth, mut plain) = (0u32, 0, true);
        for (m, _) in &terms {
            size = size.saturating_add(1);
            for a in m {
                let inside = match a {
                    Atom::Sym(_) => 0,
                    Atom::Var(_) | Atom::Data(_) => {
                        plain = false;
                        0
                    }
                    Atom::TooLarge => return Poly::too_large(),
                    Atom::Div(x, y) | Atom::Mod(x, y) | Atom::Max(x, y) | Atom::Min(x, y) => {
                        if x.is_too_large() || y.is_too_large() {
                            return Poly::too_large();
                        }
                        plain &= matches!(a, Atom::Div(..)) && x.is_plain() && y.is_plain();
                        depth = depth.max(1 + x.nesting().max(y.nesting()));
                        x.size() + y.size()
                    }
                };
                size = size.saturating_add(1 + inside);
            }
        }
        if size > MAX_SIZE || depth > MAX_DEPTH {
            return Poly::too_large();
        }
        Poly(Repr::Sum(Arc::new(Sum { terms, size, depth, plain })))
    }

    /// The terms: each a monomial and its coefficient.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// let terms = (Poly::sym("n") * 3 + 2).terms();
    /// let coefficients: Vec<i64> = terms.iter().map(|t| t.1).collect();
    /// assert!(coefficients.contains(&3) && coefficients.contains(&2));
    /// ```
    pub fn terms(&self) -> Vec<(Monomial, i64)> {
        match &self.0 {
            Repr::Const(0) => vec![],
            Repr::Const(c) => vec![(vec![], *c)],
            Repr::Sum(t) => t.terms.clone(),
        }
    }

    fn term_count(&self) -> usize {
        match &self.0 {
            Repr::Const(0) => 0,
            Repr::Const(_) => 1,
            Repr::Sum(t) => t.len(),
        }
    }

    /// The value, if it is a constant.
    pub fn as_const(&self) -> Option<i64> {
        match &self.0 {
            Repr::Const(c) => Some(*c),
            Repr::Sum(_) => None,
        }
    }
    /// Whether it is the constant `v`.
    pub fn is(&self, v: i64) -> bool {
        self.as_const() == Some(v)
    }
    /// The atom, if the expression is a single atom.
    pub fn as_atom(&self) -> Option<&Atom> {
        match &self.0 {
            Repr::Sum(t) if t.len() == 1 && t[0].1 == 1 && t[0].0.len() == 1 => Some(&t[0].0[0]),
            _ => None,
        }
    }
    /// The variable, if the expression is a single variable.
    pub fn as_var(&self) -> Option<usize> {
        match self.as_atom() {
            Some(Atom::Var(i)) => Some(*i as usize),
            _ => None,
        }
    }

    fn visit_atoms(&self, f: &mut dyn FnMut(&Atom)) {
        if let Repr::Sum(t) = &self.0 {
            for (m, _) in t.iter() {
                for a in m {
                    f(a);
                    match a {
                        Atom::Div(x, y) | Atom::Mod(x, y) | Atom::Max(x, y) | Atom::Min(x, y) => {
                            x.visit_atoms(f);
                            y.visit_atoms(f);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Whether it contains a minimum or a maximum.
    pub fn has_extremes(&self) -> bool {
        let mut found = false;
        self.visit_atoms(&mut |a| found |= matches!(a, Atom::Max(..) | Atom::Min(..)));
        found
    }

    /// Adds its quotients and remainders whose divisor is not a constant.
    pub fn divisions_by_sizes(&self, out: &mut BTreeSet<Atom>) {
        self.visit_atoms(&mut |a| {
            if let Atom::Div(_, d) | Atom::Mod(_, d) = a
                && d.as_const().is_none()
            {
                out.insert(a.clone());
            }
        });
    }

    /// The names of the symbols it depends on.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// let symbols = Poly::parse("past + seq/2")?.symbols();
    /// assert_eq!(symbols.iter().map(|s| &**s).collect::<Vec<_>>(), ["past", "seq"]);
    /// # Ok::<(), String>(())
    /// ```
    pub fn symbols(&self) -> BTreeSet<Arc<str>> {
        let mut out = BTreeSet::new();
        self.visit_atoms(&mut |a| {
            if let Atom::Sym(s) = a {
                out.insert(s.clone());
            }
        });
        out
    }
    /// The domain variables it depends on.
    pub fn vars(&self) -> BTreeSet<usize> {
        let mut out = BTreeSet::new();
        self.visit_atoms(&mut |a| {
            if let Atom::Var(i) = a {
                out.insert(*i as usize);
            }
        });
        out
    }
    /// The data values it depends on.
    pub fn data(&self) -> BTreeSet<u32> {
        let mut out = BTreeSet::new();
        self.visit_atoms(&mut |a| {
            if let Atom::Data(i) = a {
                out.insert(*i);
            }
        });
        out
    }

    /// Evaluates with the given values; `None` if one is missing, on overflow, or on division by zero.
    ///
    /// ```
    /// use wgfc_program::{Atom, Poly};
    /// // Row 2 and column 3 of a matrix of 8 columns.
    /// let index = Poly::var(0) * 8 + Poly::var(1);
    /// let at = |a: &Atom| match a { Atom::Var(i) => Some([2, 3][*i as usize]), _ => None };
    /// assert_eq!(index.eval(&at), Some(19));
    /// ```
    pub fn eval(&self, value: &dyn Fn(&Atom) -> Option<i64>) -> Option<i64> {
        match &self.0 {
            Repr::Const(c) => Some(*c),
            Repr::Sum(t) => {
                let mut sum = 0i64;
                for (m, c) in t.iter() {
                    let mut p = *c;
                    for a in m {
                        let v = match a {
                            Atom::Div(x, y) => {
                                let (x, y) = (x.eval(value)?, y.eval(value)?);
                                if y <= 0 {
                                    return None;
                                }
                                x.div_euclid(y)
                            }
                            Atom::Mod(x, y) => {
                                let (x, y) = (x.eval(value)?, y.eval(value)?);
                                if y <= 0 {
                                    return None;
                                }
                                x.rem_euclid(y)
                            }
                            Atom::Max(x, y) => x.eval(value)?.max(y.eval(value)?),
                            Atom::Min(x, y) => x.eval(value)?.min(y.eval(value)?),
                            a => value(a)?,
                        };
                        p = p.checked_mul(v)?;
                    }
                    sum = sum.checked_add(p)?;
                }
                Some(sum)
            }
        }
    }

    /// Evaluates a dimension with the given values of symbols.
    ///
    /// ```
    /// use wgfc_program::Dim;
    /// let groups = Dim::parse("(rows + 63)/64")?;
    /// assert_eq!(groups.eval_syms(&|_| Some(100)), Some(2));
    /// assert_eq!(groups.eval_syms(&|_| None), None);
    /// # Ok::<(), String>(())
    /// ```
    pub fn eval_syms(&self, env: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
        self.eval(&|a| match a {
            Atom::Sym(s) => env(s),
            _ => None,
        })
    }

    /// Replaces atoms. Divisions are simplified again with `domain`, the domain of the result.
    ///
    /// ```
    /// use wgfc_program::{Atom, Poly};
    /// let n = |a: &Atom| (*a == Atom::Sym("n".into())).then(|| Poly::sym("heads") * 64);
    /// // A quotient is simplified with the value.
    /// assert_eq!(Poly::parse("n/64")?.subst(&n, &[]), Poly::sym("heads"));
    /// # Ok::<(), String>(())
    /// ```
    pub fn subst(&self, f: &dyn Fn(&Atom) -> Option<Poly>, domain: &Domain) -> Poly {
        let Repr::Sum(t) = &self.0 else { return self.clone() };
        let mut sum = Poly::ZERO;
        for (m, c) in t.iter() {
            let mut p = Poly::constant(*c);
            for a in m {
                let v = match f(a) {
                    Some(v) => v,
                    None => match a {
                        Atom::Div(x, y) => x.subst(f, domain).div(&y.subst(f, domain), domain),
                        Atom::Mod(x, y) => x.subst(f, domain).modulo(&y.subst(f, domain), domain),
                        Atom::Max(x, y) => x.subst(f, domain).max_of(&y.subst(f, domain), domain),
                        Atom::Min(x, y) => x.subst(f, domain).min_of(&y.subst(f, domain), domain),
                        a => Poly::atom(a.clone()),
                    },
                };
                p = &p * &v;
            }
            sum = &sum + &p;
        }
        sum.recombine()
    }

    /// Replaces variable `%i` by `vars[i]`.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// // Element i of a row-major matrix of 8 columns, where i = 8·row + column.
    /// let index = Poly::var(0) * 8 + Poly::var(1);
    /// let domain = [Poly::sym("rows"), Poly::constant(8)];
    /// assert_eq!(Poly::parse("%0/8")?.subst_vars(&[index], &domain), Poly::var(0));
    /// # Ok::<(), String>(())
    /// ```
    pub fn subst_vars(&self, vars: &[Poly], domain: &Domain) -> Poly {
        self.subst(
            &|a| match a {
                Atom::Var(i) => vars.get(*i as usize).cloned(),
                _ => None,
            },
            domain,
        )
    }
}

impl PartialOrd for Poly {
    fn partial_cmp(&self, o: &Poly) -> Option<Ordering> {
        Some(self.cmp(o))
    }
}
impl Ord for Poly {
    fn cmp(&self, o: &Poly) -> Ordering {
        match (&self.0, &o.0) {
            (Repr::Const(a), Repr::Const(b)) => a.cmp(b),
            (Repr::Const(_), _) => Ordering::Less,
            (_, Repr::Const(_)) => Ordering::Greater,
            (Repr::Sum(a), Repr::Sum(b)) if Arc::ptr_eq(a, b) => Ordering::Equal,
            (Repr::Sum(a), Repr::Sum(b)) => a.terms.cmp(&b.terms),
        }
    }
}

/// `a + sign·b`.
fn add_signed(a: &Poly, b: &Poly, sign: i64) -> Poly {
    if a.is_too_large() || b.is_too_large() {
        return Poly::too_large();
    }
    let (mut x, mut y) = (a.terms().into_iter().peekable(), b.terms().into_iter().peekable());
    let mut out = Vec::with_capacity(a.term_count() + b.term_count());
    loop {
        let order = match (x.peek(), y.peek()) {
            (Some((m, _)), Some((n, _))) => m.cmp(n),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return Poly::from_sorted(out),
        };
        let left = if order.is_le() { x.next() } else { None };
        let right = if order.is_ge() { y.next() } else { None };
        let c = left.as_ref().map_or(0, |t| t.1);
        let d = right.as_ref().map_or(0, |t| t.1);
        let Some(m) = left.or(right).map(|t| t.0) else { return Poly::from_sorted(out) };
        let Some(sum) = coefficient(&m, i128::from(c) + i128::from(sign) * i128::from(d)) else {
            return Poly::too_large();
        };
        out.push((m, sum));
    }
}

/// The coefficient of `m` as an `i64`: that of the constant term saturates, others give `None` if they overflow.
fn coefficient(m: &Monomial, c: i128) -> Option<i64> {
    match i64::try_from(c) {
        Ok(c) => Some(c),
        Err(_) if m.is_empty() => Some(if c < 0 { i64::MIN } else { i64::MAX }),
        Err(_) => None,
    }
}

impl Add for &Poly {
    type Output = Poly;
    fn add(self, o: &Poly) -> Poly {
        match (self.as_const(), o.as_const()) {
            (Some(a), Some(b)) => Poly::constant(a.saturating_add(b)),
            (Some(0), _) => o.clone(),
            (_, Some(0)) => self.clone(),
            _ => add_signed(self, o, 1),
        }
    }
}
impl Sub for &Poly {
    type Output = Poly;
    fn sub(self, o: &Poly) -> Poly {
        match (self.as_const(), o.as_const()) {
            (Some(a), Some(b)) => Poly::constant(a.saturating_sub(b)),
            (_, Some(0)) => self.clone(),
            _ => add_signed(self, o, -1),
        }
    }
}
impl Neg for &Poly {
    type Output = Poly;
    fn neg(self) -> Poly {
        self * &Poly::constant(-1)
    }
}
impl Mul for &Poly {
    type Output = Poly;
    fn mul(self, o: &Poly) -> Poly {
        let (c, p) = match (self.as_const(), o.as_const()) {
            (Some(a), Some(b)) => return Poly::constant(a.saturating_mul(b)),
            (Some(c), _) => (c, o),
            (_, Some(c)) => (c, self),
            _ => return product(self, o),
        };
        if p.is_too_large() {
            return p.clone();
        }
        match c {
            0 => Poly::ZERO,
            1 => p.clone(),
            _ => {
                let scaled = p.terms().into_iter().map(|(m, k)| {
                    let k = coefficient(&m, i128::from(k) * i128::from(c))?;
                    Some((m, k))
                });
                scaled.collect::<Option<_>>().map_or_else(Poly::too_large, Poly::from_sorted)
            }
        }
    }
}

fn product(a: &Poly, b: &Poly) -> Poly {
    if a.term_count() * b.term_count() > MAX_SIZE as usize {
        return Poly::too_large();
    }
    let mut t = Terms::new();
    for (ma, ca) in &a.terms() {
        for (mb, cb) in &b.terms() {
            let mut m = ma.clone();
            m.extend_from_slice(mb);
            if m.len() > MAX_SIZE as usize {
                return Poly::too_large();
            }
            m.sort();
            let more = i128::from(*ca) * i128::from(*cb);
            let sum = i128::from(t.get(&m).copied().unwrap_or(0)) + more;
            let Some(c) = coefficient(&m, sum) else { return Poly::too_large() };
            t.insert(m, c);
        }
    }
    Poly::from_terms(t)
}

macro_rules! owned_ops {
    ($($tr:ident $f:ident),*) => {$(
        impl $tr for Poly { type Output = Poly; fn $f(self, o: Poly) -> Poly { $tr::$f(&self, &o) } }
        impl $tr<i64> for Poly { type Output = Poly; fn $f(self, o: i64) -> Poly { $tr::$f(&self, &Poly::constant(o)) } }
        impl $tr<i64> for &Poly { type Output = Poly; fn $f(self, o: i64) -> Poly { $tr::$f(self, &Poly::constant(o)) } }
        impl $tr<&Poly> for Poly { type Output = Poly; fn $f(self, o: &Poly) -> Poly { $tr::$f(&self, o) } }
        impl $tr<Poly> for &Poly { type Output = Poly; fn $f(self, o: Poly) -> Poly { $tr::$f(self, &o) } }
    )*};
}
owned_ops!(Add add, Sub sub, Mul mul);

impl From<i64> for Poly {
    fn from(v: i64) -> Poly {
        Poly::constant(v)
    }
}
impl From<usize> for Poly {
    fn from(v: usize) -> Poly {
        Poly::constant(i64::try_from(v).unwrap_or(i64::MAX))
    }
}
impl std::iter::Product for Poly {
    fn product<I: Iterator<Item = Poly>>(it: I) -> Poly {
        it.fold(Poly::ONE, |a, b| &a * &b)
    }
}
impl<'a> std::iter::Product<&'a Poly> for Poly {
    fn product<I: Iterator<Item = &'a Poly>>(it: I) -> Poly {
        it.fold(Poly::ONE, |a, b| &a * b)
    }
}
impl std::iter::Sum for Poly {
    fn sum<I: Iterator<Item = Poly>>(it: I) -> Poly {
        it.fold(Poly::ZERO, |a, b| &a + &b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(s: &str) -> Poly {
        Poly::parse(s).unwrap()
    }

    #[test]
    fn sums_are_canonical() {
        assert_eq!(p("past + seq"), p("seq + past"));
        assert_eq!(p("2*(a + b) - a"), p("a + 2*b"));
        assert_eq!(p("a - a"), Poly::ZERO);
        for s in ["past + seq", "2*batch*heads - 1", "(h + 1)/(2)", "3*((h)%(4))", "max(a, b)"] {
            assert_eq!(p(&p(s).to_string()), p(s), "{s}");
        }
    }

    #[test]
    fn a_reshape_and_its_inverse_vanish() {
        // flat = (%0·(p+s) + %1)·64 + %2 over [b, p+s, 64]
        let dom = [p("b"), p("p + s"), p("64")];
        let flat = p("(%0*(p+s) + %1)*64 + %2");
        assert_eq!(flat.modulo(&p("64"), &dom), p("%2"));
        let row = flat.div(&p("64"), &dom);
        assert_eq!(row, p("%0*(p+s) + %1"));
        assert_eq!(row.div(&p("p+s"), &dom), p("%0"));
        assert_eq!(row.modulo(&p("p+s"), &dom), p("%1"));
        assert_eq!(flat.div(&p("(p+s)*64"), &dom), p("%0"));
    }

    #[test]
    fn sizes_of_pyramids_are_short() {
        let half = |p: &Poly| (p + 1).div(&Poly::constant(2), &[]);
        let levels = (0..5).fold(p("h"), |p, _| half(&p));
        assert_eq!(levels.to_string(), "(h + 31)/32");
        assert_eq!(p("(2*h + 3)/4").to_string(), "(h + 1)/2");
        let i32s = Poly::constant(i64::from(i32::MAX));
        let cut = |p: &Poly| p.min_of(&i32s, &[]).min_of(&Poly::constant(i64::MAX), &[]);
        assert_eq!(cut(&cut(&p("h"))), p("h"));
        assert_eq!(cut(&cut(&p("2*h"))).to_string(), "min(2147483647, 2*h)");
        assert_eq!(p("max(a, max(b, max(a, 0)))").to_string(), "max(a, b)");
        assert_eq!(p("min(7, min(a, 5))").to_string(), "min(5, a)");
        for text in ["(h + 1)/2", "(a + b)%4", "h/(2*n)", "2*(h/2) + h%2*n", "max(a, h/2)", "(h%4)/n"] {
            assert_eq!(p(&p(text).to_string()), p(text), "{text}: {}", p(text));
        }
    }

    #[test]
    fn simplified_divisions_and_extremes_mean_the_same() {
        let at = |p: &Poly, h: i64, w: i64| p.eval_syms(&|s| Some(if s == "h" { h } else { w })).unwrap();
        for (text, direct) in [
            ("((h + 1)/2 + 1)/2", (|h, _| ((h + 1) / 2 + 1) / 2) as fn(i64, i64) -> i64),
            ("((h + 2)/3 + 7)/5", |h, _| ((h + 2) / 3 + 7) / 5),
            ("(h/w1 - 5)/3", |h, w| (h / (w + 1) - 5).div_euclid(3)),
            ("(6*h + 5)/4", |h, _| (6 * h + 5) / 4),
            ("(4*h - 3)/6", |h, _| (4 * h - 3).div_euclid(6)),
            ("min(h, min(w, min(h, 7)))", |h, w| h.min(w).min(7)),
            ("max(3, max(h - w, max(w, 2)))", |h, w| (h - w).max(w).max(3)),
        ] {
            let q = p(&text.replace("w1", "(w + 1)"));
            for h in 0..40 {
                for w in 0..12 {
                    assert_eq!(at(&q, h, w), direct(h, w), "{text} = {q} at {h}, {w}");
                }
            }
        }
    }

    #[test]
    fn too_large_expressions_stay_so_and_take_no_time() {
        let sum: Poly = (0..12).map(|i| Poly::sym(&format!("s{i}"))).sum();
        let power = (0..12).fold(Poly::ONE, |p, _| &p * &sum);
        assert!(power.is_too_large());
        assert!((&power - &power).is_too_large() && (&Poly::ZERO * &power).is_too_large());
        assert!(power.div(&p("n"), &[]).is_too_large() && p("n").modulo(&power, &[]).is_too_large());
        assert!(power.min_of(&p("n"), &[]).is_too_large() && !power.proves_nonneg(&[]));
        assert!(Poly::parse(&power.to_string()).is_err());
        assert!(Poly::parse(format!("({sum})*").repeat(11).trim_end_matches('*')).is_err());
        let square = (0..40).fold(p("n"), |p, _| &p * &p);
        assert!(square.is_too_large());
        let large = (0..40).fold(p("n"), |p, _| &p * 1_000_003);
        assert!(large.is_too_large());
        let (n, m) = (p("n"), p("m"));
        let mixed =
            (0..60).fold(n.clone(), |p, i| (&(&p * &m) + i).div(&(&m + 1), &[]).max_of(&(&n + i), &[]));
        assert!(mixed.size() <= MAX_SIZE);
        let nested =
            (0..200).fold(n.clone(), |p, i| (&p.modulo(&Poly::constant(i + 7), &[]) * &p).min_of(&m, &[]));
        assert!(nested.size() <= MAX_SIZE);
    }

    #[test]
    fn quotient_and_remainder_recombine() {
        let dom = [p("12*n")];
        let q = p("%0").div(&p("3*n"), &dom);
        let r = p("%0").modulo(&p("3*n"), &dom);
        let back = &(&q * &p("3*n")) + &r;
        assert_eq!(back.recombine(), p("%0"));
        let (q, r) = (p("%0").div(&p("7"), &dom), p("%0").modulo(&p("7"), &dom));
        assert_eq!((&(&q * 14) + &(&r * 2)).recombine(), p("2*%0"));
        assert_eq!(p("378*(%0/378) + 63*((%0/63)%6) + 7*((%0/7)%9) + %0%7").recombine(), p("%0"));
    }

    #[test]
    fn remainders_are_parted_and_joined() {
        let p = |s: &str| Poly::parse(s).unwrap();
        let d = |s: &str, m: i64| p(s).modulo(&m.into(), &[]).to_string();
        assert_eq!(d("4*%0 + 3", 56), "4*(%0%14) + 3");
        assert_eq!(d("6*%0 + 9*%1 + 2", 12), "3*((2*%0 + 3*%1)%4) + 2");
        assert_eq!(d("6*%0 + %1", 12), "(6*%0 + %1)%12");
        for (parts, whole) in [
            ("%0%56 + 56*((%0/56)%56)", "%0%3136"),
            ("3*s*(%0%7) + 21*s*((%0/7)%2)", "3*s*(%0%14)"),
            ("%0%56 + 57*((%0/56)%56)", "%0%56 + 57*((%0/56)%56)"),
        ] {
            assert_eq!(p(parts).recombine(), p(whole), "{parts}");
        }
    }

    #[test]
    fn constant_divisors_cancel_common_factors() {
        let dom = [p("5"), p("4")];
        assert_eq!(p("8*%0 + 2*%1").div(&p("4"), &dom).to_string(), "2*%0 + %1/2");
        assert_eq!(p("4*%0 + %1").div(&p("8"), &dom).to_string(), "%0/2");
        assert_eq!(p("4*%0 + %1 - 1").modulo(&p("4"), &dom).to_string(), "(%1 + 3)%4");
    }

    #[test]
    fn symbolic_divisors_cancel_common_factors() {
        let dom = [p("9*n*m"), p("n")];
        let div = |x: &str, d: &str| p(x).div(&p(d), &dom).to_string();
        let rem = |x: &str, d: &str| p(x).modulo(&p(d), &dom).to_string();
        assert_eq!(div("8*%0 + 3", "32*n*m"), "%0/(4*m*n)");
        assert_eq!(div("8*%0 + 8", "32*n"), "(%0 + 1)/(4*n)");
        assert_eq!(div("m*n*%0 + n*m", "n*m"), "%0 + 1");
        assert_eq!(div("n*%0 + %1", "3*n*m"), "%0/(3*m)");
        assert_eq!(div("n*%0 + %0", "3*n"), p("(n*%0 + %0)/(3*n)").to_string());
        assert_eq!(rem("8*%0 + 3", "16*n"), "8*(%0%(2*n)) + 3");
        assert_eq!(rem("n*%0 + %1", "n*m"), "n*(%0%m) + %1");
        let long: Poly = (0..90).map(|i| &Poly::sym(&format!("s{i}")) * &p("n")).sum();
        let short: Poly = (0..90).map(|i| Poly::sym(&format!("s{i}"))).sum();
        assert_eq!(long.div(&p("n*m"), &dom), short.div(&p("m"), &dom));
        for (x, d) in
            [("8*%0 + 3", "32*n*m"), ("n*%0 + %1", "3*n*m"), ("6*%0 + n", "9*n"), ("n*%0 - %1", "n*m")]
        {
            let (x, d) = (p(x), p(d));
            let (q, r) = (x.div(&d, &dom), x.modulo(&d, &dom));
            for (n, m) in [(1, 1), (2, 3), (5, 2), (3, 7)] {
                for (i, j) in (0..9 * n * m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let env = |a: &Atom| match a {
                        Atom::Var(v) => Some([i, j][*v as usize]),
                        Atom::Sym(s) => Some(if &**s == "n" { n } else { m }),
                        _ => None,
                    };
                    let (a, b) = (x.eval(&env).unwrap(), d.eval(&env).unwrap());
                    assert_eq!(q.eval(&env), Some(a.div_euclid(b)), "{x} / {d} = {q} at {i}, {j}, {n}, {m}");
                    assert_eq!(r.eval(&env), Some(a.rem_euclid(b)), "{x} % {d} = {r} at {i}, {j}, {n}, {m}");
                }
            }
        }
    }

    #[test]
    fn division_agrees_with_integers() {
        let dom = [p("6"), p("5"), p("4")];
        for text in ["20*%0 + 4*%1 + %2", "4*%1 + %2 + 3", "%0 - %1 + 2*%2", "3*%0 + 7", "12*%0 - 5*%1"] {
            for d in 1..30 {
                let (x, d) = (p(text), Poly::constant(d));
                let (q, r) = (x.div(&d, &dom), x.modulo(&d, &dom));
                for i in 0..6 {
                    for j in 0..5 {
                        for k in 0..4 {
                            let env = |a: &Atom| match a {
                                Atom::Var(v) => Some([i, j, k][*v as usize]),
                                _ => None,
                            };
                            let (x, d) = (x.eval(&env).unwrap(), d.as_const().unwrap());
                            assert_eq!(
                                q.eval(&env),
                                Some(x.div_euclid(d)),
                                "{text} / {d} = {q} at {i},{j},{k}"
                            );
                            assert_eq!(
                                r.eval(&env),
                                Some(x.rem_euclid(d)),
                                "{text} % {d} = {r} at {i},{j},{k}"
                            );
                        }
                    }
                }
            }
        }
    }
}
