//! Symbolic integers: one canonical form for dimensions and for index expressions.
//!
//! A [`Poly`] is a sum of integer multiples of products of [`Atom`]s. A *dimension* uses only
//! symbols (`past + seq`); an *index expression* also uses the variables of an iteration domain.
//! The form is canonical: equal sums compare equal whatever order they were written in.
//!
//! Arithmetic saturates at the ends of `i64` instead of wrapping, so absurd model dimensions stay
//! absurd and are refused by the verifier.
//!
//! # Text
//! `past + seq`, `2*batch*heads`, `(h + 1)/2` (floor division), `h % 4`, `max(a, b)`, `min(a, b)`.
//! Domain variables print as `%0`, `%1`, data-dependent values as `@0`.

mod bound;
mod divide;
mod text;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

/// A dimension of a tensor: a [`Poly`] over symbols only, never negative.
pub type Dim = Poly;

/// The extents of an iteration domain: variable `%i` runs over `0..domain[i]`.
pub type Domain = [Poly];

/// An indivisible factor of a [`Poly`].
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
    /// The larger of two.
    Max(Poly, Poly),
    /// The smaller of two.
    Min(Poly, Poly),
}

/// A product of atoms, sorted, repeated for powers. Empty is 1.
pub type Monomial = Vec<Atom>;

/// A symbolic integer in canonical form. See the [module](self).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Poly(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Const(i64),
    /// Sorted by monomial, no zero coefficient, at least one non-empty monomial.
    Sum(Arc<Vec<(Monomial, i64)>>),
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
        Poly(Repr::Sum(Arc::new(vec![(vec![a], 1)])))
    }

    fn from_terms(mut t: Terms) -> Poly {
        t.retain(|_, c| *c != 0);
        if t.is_empty() {
            return Poly::ZERO;
        }
        if t.len() == 1
            && let Some(c) = t.get(&Vec::new())
        {
            return Poly::constant(*c);
        }
        Poly(Repr::Sum(Arc::new(t.into_iter().collect())))
    }

    /// The terms: each a monomial and its coefficient.
    pub fn terms(&self) -> Vec<(Monomial, i64)> {
        match &self.0 {
            Repr::Const(0) => vec![],
            Repr::Const(c) => vec![(vec![], *c)],
            Repr::Sum(t) => t.as_ref().clone(),
        }
    }

    fn term_map(&self) -> Terms {
        self.terms().into_iter().collect()
    }

    fn term_count(&self) -> usize {
        match &self.0 {
            Repr::Const(0) => 0,
            Repr::Const(_) => 1,
            Repr::Sum(t) => t.len(),
        }
    }

    /// The value, where it is a constant.
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
    /// The single atom, if that is all there is.
    pub fn as_atom(&self) -> Option<&Atom> {
        match &self.0 {
            Repr::Sum(t) if t.len() == 1 && t[0].1 == 1 && t[0].0.len() == 1 => Some(&t[0].0[0]),
            _ => None,
        }
    }
    /// The variable, if it is exactly one.
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

    /// The names of the symbols it depends on.
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

    /// Evaluates with the given values; `None` when one is missing, on overflow or division by zero.
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

    /// Evaluates a dimension with symbols bound by name.
    pub fn eval_syms(&self, env: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
        self.eval(&|a| match a {
            Atom::Sym(s) => env(s),
            _ => None,
        })
    }

    /// Replaces atoms. Divisions are simplified again under `domain`, the domain of the result.
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
            (Repr::Sum(a), Repr::Sum(b)) => a.cmp(b),
        }
    }
}

impl Add for &Poly {
    type Output = Poly;
    fn add(self, o: &Poly) -> Poly {
        if let (Some(a), Some(b)) = (self.as_const(), o.as_const()) {
            return Poly::constant(a.saturating_add(b));
        }
        let mut t = self.term_map();
        for (m, c) in o.terms() {
            let e = t.entry(m).or_insert(0);
            *e = e.saturating_add(c);
        }
        Poly::from_terms(t)
    }
}
impl Sub for &Poly {
    type Output = Poly;
    fn sub(self, o: &Poly) -> Poly {
        self + &-o
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
        if let (Some(a), Some(b)) = (self.as_const(), o.as_const()) {
            return Poly::constant(a.saturating_mul(b));
        }
        let mut t = Terms::new();
        for (ma, ca) in self.terms() {
            for (mb, cb) in o.terms() {
                let mut m = ma.clone();
                m.extend(mb);
                m.sort();
                let e = t.entry(m).or_insert(0);
                *e = e.saturating_add(ca.saturating_mul(cb));
            }
        }
        Poly::from_terms(t)
    }
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
    fn constant_divisors_cancel_common_factors() {
        let dom = [p("5"), p("4")];
        assert_eq!(p("8*%0 + 2*%1").div(&p("4"), &dom).to_string(), "2*%0 + (%1)/(2)");
        assert_eq!(p("4*%0 + %1").div(&p("8"), &dom).to_string(), "(%0)/(2)");
        assert_eq!(p("4*%0 + %1 - 1").modulo(&p("4"), &dom).to_string(), "(%1 + 3)%(4)");
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
