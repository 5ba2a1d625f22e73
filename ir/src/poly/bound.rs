//! What is certain over a domain: bounds, and which of two is the larger.

use super::{Atom, Domain, Poly, Repr};

impl Poly {
    /// Whether `0 <= self < d` is certain over the domain.
    pub fn in_range(&self, d: &Poly, domain: &Domain) -> bool {
        self.proves_nonneg(domain) && (&(d - self) - &Poly::ONE).proves_nonneg(domain)
    }

    /// Whether `self >= 0` is certain over the domain (symbols are at least 0; an empty domain proves all).
    pub fn proves_nonneg(&self, domain: &Domain) -> bool {
        match self.as_const() {
            Some(c) => c >= 0,
            None => self.bound(domain, false, 0).is_some_and(|lo| lo.nonneg_syms()),
        }
    }

    /// An inclusive bound over symbols only, with the domain variables eliminated.
    pub fn upper_bound(&self, domain: &Domain) -> Option<Poly> {
        self.bound(domain, true, 0)
    }

    /// The inclusive lower bound likewise.
    pub fn lower_bound(&self, domain: &Domain) -> Option<Poly> {
        self.bound(domain, false, 0)
    }

    fn bound(&self, domain: &Domain, upper: bool, depth: usize) -> Option<Poly> {
        if depth > 8 {
            return None;
        }
        let Repr::Sum(t) = &self.0 else { return Some(self.clone()) };
        let mut sum = Poly::ZERO;
        for (m, c) in t.iter() {
            let want_upper = upper == (*c > 0);
            let mut p = Poly::constant(*c);
            for a in m {
                // Factors of a product are only bounded independently when none can be negative.
                let b = atom_bound(a, domain, want_upper, depth + 1)?;
                if m.len() > 1 && !matches!(a, Atom::Sym(_)) {
                    let lo = atom_bound(a, domain, false, depth + 1)?;
                    if !lo.nonneg_syms() {
                        return None;
                    }
                }
                p = &p * &b;
            }
            sum = &sum + &p;
        }
        Some(sum)
    }

    /// Non-negative for every assignment of non-negative symbols, by the signs of its coefficients.
    fn nonneg_syms(&self) -> bool {
        match &self.0 {
            Repr::Const(c) => *c >= 0,
            Repr::Sum(t) => t.iter().all(|(m, c)| *c >= 0 && m.iter().all(atom_nonneg)),
        }
    }

    /// The larger of two.
    pub fn max_of(&self, o: &Poly, domain: &Domain) -> Poly {
        if (self - o).proves_nonneg(domain) {
            self.clone()
        } else if (o - self).proves_nonneg(domain) {
            o.clone()
        } else if self < o {
            Poly::atom(Atom::Max(self.clone(), o.clone()))
        } else {
            Poly::atom(Atom::Max(o.clone(), self.clone()))
        }
    }
    /// The smaller of two.
    pub fn min_of(&self, o: &Poly, domain: &Domain) -> Poly {
        if (self - o).proves_nonneg(domain) {
            o.clone()
        } else if (o - self).proves_nonneg(domain) {
            self.clone()
        } else if self < o {
            Poly::atom(Atom::Min(self.clone(), o.clone()))
        } else {
            Poly::atom(Atom::Min(o.clone(), self.clone()))
        }
    }
}

fn atom_nonneg(a: &Atom) -> bool {
    match a {
        Atom::Sym(_) | Atom::Mod(..) => true,
        Atom::Var(_) => true,
        Atom::Data(_) => false,
        Atom::Div(x, _) => x.nonneg_syms(),
        Atom::Max(x, y) => x.nonneg_syms() || y.nonneg_syms(),
        Atom::Min(x, y) => x.nonneg_syms() && y.nonneg_syms(),
    }
}

fn atom_bound(a: &Atom, domain: &Domain, upper: bool, depth: usize) -> Option<Poly> {
    match a {
        Atom::Sym(_) => Some(Poly::atom(a.clone())),
        Atom::Var(i) => {
            if upper {
                Some(domain.get(*i as usize)? - &Poly::ONE)
            } else {
                Some(Poly::ZERO)
            }
        }
        Atom::Data(_) => None,
        Atom::Mod(_, d) => {
            if !upper {
                Some(Poly::ZERO)
            } else {
                Some(&d.bound(domain, true, depth)? - &Poly::ONE)
            }
        }
        Atom::Div(x, d) => {
            let b = x.bound(domain, upper, depth)?;
            if d.vars().is_empty() { Some(b.div(d, &[])) } else { None }
        }
        Atom::Max(x, y) => {
            let (bx, by) = (x.bound(domain, upper, depth), y.bound(domain, upper, depth));
            if upper {
                let (bx, by) = (bx?, by?);
                if (&bx - &by).nonneg_syms() {
                    Some(bx)
                } else if (&by - &bx).nonneg_syms() {
                    Some(by)
                } else {
                    Some(Poly::atom(Atom::Max(bx, by)))
                }
            } else {
                match (bx, by) {
                    (Some(bx), Some(by)) => Some(if (&by - &bx).nonneg_syms() { by } else { bx }),
                    (b, None) | (None, b) => b,
                }
            }
        }
        Atom::Min(x, y) => {
            let (bx, by) = (x.bound(domain, upper, depth), y.bound(domain, upper, depth));
            if !upper {
                let (bx, by) = (bx?, by?);
                if (&bx - &by).nonneg_syms() {
                    Some(by)
                } else if (&by - &bx).nonneg_syms() {
                    Some(bx)
                } else {
                    Some(Poly::atom(Atom::Min(bx, by)))
                }
            } else {
                match (bx, by) {
                    (Some(bx), Some(by)) => Some(if (&by - &bx).nonneg_syms() { bx } else { by }),
                    (b, None) | (None, b) => b,
                }
            }
        }
    }
}
