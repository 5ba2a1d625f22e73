//! Facts that hold over a whole domain: bounds, and comparisons of two expressions.

use super::{Atom, Domain, MAX_EXTENT, Poly, Repr, STANDS_FOR};

impl Poly {
    /// Whether `0 <= self < d` is proven over the domain.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// let n = Poly::sym("n");
    /// let domain = [n.clone()];
    /// assert!(Poly::var(0).in_range(&n, &domain));
    /// assert!(!(Poly::var(0) + 1).in_range(&n, &domain));
    /// ```
    pub fn in_range(&self, d: &Poly, domain: &Domain) -> bool {
        self.proves_nonneg(domain) && (&(d - self) - &Poly::ONE).proves_nonneg(domain)
    }

    /// Whether `self >= 0` is proven over the domain (symbols are at least 0; an empty domain proves everything).
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// // Symbols are sizes, which are never negative.
    /// assert!((Poly::sym("n") + 3).proves_nonneg(&[]));
    /// assert!(!(Poly::sym("n") - 1).proves_nonneg(&[]));
    /// ```
    pub fn proves_nonneg(&self, domain: &Domain) -> bool {
        match self.as_const() {
            Some(c) => c >= 0,
            None => self.bound(domain, false, 0).is_some_and(|lo| lo.nonneg_syms()),
        }
    }

    /// An inclusive upper bound over symbols only, with the domain variables eliminated.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// let domain = [Poly::sym("rows"), Poly::constant(8)];
    /// let last = (Poly::var(0) * 8 + Poly::var(1)).upper_bound(&domain);
    /// assert_eq!(last, Some(Poly::sym("rows") * 8 - 1));
    /// ```
    pub fn upper_bound(&self, domain: &Domain) -> Option<Poly> {
        self.bound(domain, true, 0)
    }

    /// An inclusive lower bound over symbols only, with the domain variables eliminated.
    pub fn lower_bound(&self, domain: &Domain) -> Option<Poly> {
        self.bound(domain, false, 0)
    }

    fn bound(&self, domain: &Domain, upper: bool, depth: usize) -> Option<Poly> {
        if depth > 8 {
            return None;
        }
        let Repr::Sum(t) = &self.0 else { return Some(self.clone()) };
        if t.plain {
            return Some(self.clone());
        }
        let mut sum = Poly::ZERO;
        for (m, c) in t.iter() {
            let want_upper = upper == (*c > 0);
            let mut p = Poly::constant(*c);
            for a in m {
                // Factors of a product are only bounded independently if none can be negative.
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

    /// Whether it is non-negative for all non-negative symbols, judged by the signs of its coefficients.
    fn nonneg_syms(&self) -> bool {
        match &self.0 {
            Repr::Const(c) => *c >= 0,
            Repr::Sum(t) => t.iter().all(|(m, c)| *c >= 0 && m.iter().all(atom_nonneg)),
        }
    }

    /// The larger of two expressions.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// let n = Poly::sym("n");
    /// assert_eq!(n.max_of(&Poly::ZERO, &[]), n);
    /// assert_eq!(n.max_of(&Poly::constant(5), &[]), Poly::parse("max(5, n)")?);
    /// # Ok::<(), String>(())
    /// ```
    pub fn max_of(&self, o: &Poly, domain: &Domain) -> Poly {
        self.extreme(o, domain, true)
    }
    /// The smaller of two expressions.
    pub fn min_of(&self, o: &Poly, domain: &Domain) -> Poly {
        self.extreme(o, domain, false)
    }

    fn extreme(&self, o: &Poly, domain: &Domain, larger: bool) -> Poly {
        if self.is_too_large() || o.is_too_large() {
            return Poly::too_large();
        }
        let mut parts = vec![];
        self.operands(larger, &mut parts);
        o.operands(larger, &mut parts);
        let wins = |a: &Poly, b: &Poly| {
            let d = if larger { a - b } else { b - a };
            d.proves_nonneg(domain) || d.range().is_some_and(|(low, _)| low >= 0)
        };
        let mut kept: Vec<Poly> = vec![];
        for p in parts {
            if kept.contains(&p) || kept.iter().any(|k| wins(k, &p)) {
                continue;
            }
            kept.retain(|k| !wins(&p, k));
            kept.push(p);
        }
        kept.sort();
        let both = |b: Poly, a: Poly| Poly::atom(if larger { Atom::Max(a, b) } else { Atom::Min(a, b) });
        kept.into_iter().rev().reduce(both).unwrap_or(Poly::ZERO)
    }

    /// The operands of a nested maximum (`larger`) or minimum.
    fn operands(&self, larger: bool, out: &mut Vec<Poly>) {
        match self.as_atom() {
            Some(Atom::Max(a, b)) if larger => [a, b].into_iter().for_each(|x| x.operands(larger, out)),
            Some(Atom::Min(a, b)) if !larger => [a, b].into_iter().for_each(|x| x.operands(larger, out)),
            _ => out.push(self.clone()),
        }
    }

    /// The greatest value that it can have, with symbols at most [`MAX_EXTENT`]. `None` if it depends on anything but such symbols.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// assert_eq!(Poly::parse("min(64, n/16 + 1)")?.greatest(), Some(64));
    /// # Ok::<(), String>(())
    /// ```
    pub fn greatest(&self) -> Option<i64> {
        self.range().and_then(|(_, high)| i64::try_from(high).ok())
    }

    /// The range of its values, with symbols at most [`MAX_EXTENT`]. `None` if it depends on anything but such
    /// symbols, or the range overflows.
    fn range(&self) -> Option<(i128, i128)> {
        let Repr::Sum(t) = &self.0 else { return self.as_const().map(|c| (c.into(), c.into())) };
        let (mut low, mut high) = (0i128, 0i128);
        for (m, c) in t.iter() {
            let (mut l, mut h) = (i128::from(*c), i128::from(*c));
            for a in m {
                let (x, y) = atom_range(a)?;
                let ends = [l.checked_mul(x)?, l.checked_mul(y)?, h.checked_mul(x)?, h.checked_mul(y)?];
                (l, h) = (ends.into_iter().min()?, ends.into_iter().max()?);
            }
            (low, high) = (low.checked_add(l)?, high.checked_add(h)?);
        }
        Some((low, high))
    }
}

fn atom_range(a: &Atom) -> Option<(i128, i128)> {
    Some(match a {
        // A symbol that stands for an expression is only known to be non-negative.
        Atom::Sym(s) if s.starts_with(STANDS_FOR) => return None,
        Atom::Sym(_) => (0, MAX_EXTENT.into()),
        Atom::Var(_) | Atom::Data(_) | Atom::TooLarge => return None,
        Atom::Div(x, d) => {
            let ((l, h), (least, most)) = (x.range()?, d.range()?);
            let (least, most) = (least.max(1), most.max(1));
            let ends = [l.div_euclid(least), l.div_euclid(most), h.div_euclid(least), h.div_euclid(most)];
            (ends.into_iter().min()?, ends.into_iter().max()?)
        }
        Atom::Mod(_, d) => (0, d.range()?.1.max(1) - 1),
        Atom::Max(x, y) => {
            let (x, y) = (x.range()?, y.range()?);
            (x.0.max(y.0), x.1.max(y.1))
        }
        Atom::Min(x, y) => {
            let (x, y) = (x.range()?, y.range()?);
            (x.0.min(y.0), x.1.min(y.1))
        }
    })
}

fn atom_nonneg(a: &Atom) -> bool {
    match a {
        Atom::Sym(_) | Atom::Mod(..) => true,
        Atom::Var(_) => true,
        Atom::Data(_) | Atom::TooLarge => false,
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
        Atom::Data(_) | Atom::TooLarge => None,
        Atom::Mod(_, d) => {
            if !upper {
                Some(Poly::ZERO)
            } else {
                Some(&d.bound(domain, true, depth)? - &Poly::ONE)
            }
        }
        Atom::Div(x, d) => {
            let b = x.bound(domain, upper, depth)?;
            if !d.vars().is_empty() {
                return None;
            }
            // Simplification asks for bounds again; for plain expressions that recursion is short.
            Some(if b.is_plain() { b.div(d, &[]) } else { Poly::atom(Atom::Div(b, d.clone())) })
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
