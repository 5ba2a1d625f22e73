//! Sizes that are computed at run time, and their bounds.

use crate::build::Builder;
use crate::graph::{Computed, Value};
use crate::poly::{Atom, Dim, Poly};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Builder<'_> {
    /// Declares a dimension whose value is that of an integer tensor of one element, in `0..=bound`. Its symbol is
    /// `n_` followed by the letters and digits of `name`, and a number if that symbol is in use.
    pub fn computed(&mut self, name: &str, value: Value, bound: Dim) -> Dim {
        let g = &mut *self.graph;
        let given = g.inputs.iter().map(|b| b.value).chain(g.states.iter().map(|s| s.before));
        let mut used: BTreeSet<Arc<str>> =
            given.flat_map(|v| &g.ty(v).shape).flat_map(Poly::symbols).collect();
        used.extend(g.states.iter().filter_map(|s| Some(s.growth.as_ref()?.length.clone())));
        used.extend(g.computed.iter().map(|c| c.symbol.clone()));
        let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let base = format!("n_{}", name.chars().map(word).collect::<String>());
        let numbered = (2..).map(|i| format!("{base}_{i}"));
        let fresh = std::iter::once(base.clone()).chain(numbered).find(|s| !used.contains(s.as_str()));
        let symbol: Arc<str> = fresh.unwrap_or(base).into();
        g.computed.push(Computed { symbol: symbol.clone(), value, bound });
        Dim::sym(&symbol)
    }

    /// Whether a dimension depends on a computed size. Unlike other dimensions, such a size is often 0.
    pub fn is_computed(&self, d: &Dim) -> bool {
        let symbols = d.symbols();
        self.graph.computed.iter().any(|c| symbols.contains(&c.symbol))
    }
}

/// The upper bounds of computed symbols, as expressions of symbols that are known before a run.
#[derive(Clone, Debug, Default)]
pub struct Bounds(Vec<(Arc<str>, Dim)>);

impl Bounds {
    /// The bounds of symbols listed in the order in which they are computed.
    pub fn of(computed: &[Computed]) -> Bounds {
        let mut bounds = Bounds::default();
        for c in computed {
            let bound = bounds.most(&c.bound);
            bounds.0.push((c.symbol.clone(), bound));
        }
        bounds
    }

    /// The bounds, in the order in which the symbols are computed.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Dim)> {
        self.0.iter().map(|(s, d)| (s, d))
    }

    /// The bound of a computed symbol.
    pub fn get(&self, symbol: &str) -> Option<&Dim> {
        self.0.iter().find_map(|(s, b)| (**s == *symbol).then_some(b))
    }

    /// Whether an expression uses a computed symbol.
    pub fn concern(&self, d: &Poly) -> bool {
        !self.0.is_empty() && d.symbols().iter().any(|s| self.get(s).is_some())
    }

    /// The upper bound of a size over all values of computed symbols: each occurrence of a computed symbol is replaced
    /// by the extreme that makes the expression larger, assuming that no factor of a product is negative.
    pub fn most(&self, d: &Dim) -> Dim {
        self.extreme(d, true)
    }

    fn extreme(&self, d: &Poly, most: bool) -> Poly {
        if !self.concern(d) {
            return d.clone();
        }
        let mut sum = Poly::ZERO;
        for (monomial, c) in d.terms() {
            let product: Poly = monomial.iter().map(|a| self.atom(a, most == (c > 0))).product();
            sum = &sum + &(&product * c);
        }
        sum
    }

    fn atom(&self, a: &Atom, most: bool) -> Poly {
        let whole = Poly::atom(a.clone());
        if !self.concern(&whole) {
            return whole;
        }
        match a {
            Atom::Sym(s) if most => self.get(s).cloned().unwrap_or(whole),
            Atom::Sym(_) => Poly::ZERO,
            Atom::Div(a, b) => {
                let b = self.extreme(b, !most).max_of(&Poly::ONE, &[]);
                self.extreme(a, most).div(&b, &[])
            }
            Atom::Mod(_, b) if most => &self.extreme(b, true).max_of(&Poly::ONE, &[]) - 1,
            Atom::Mod(..) => Poly::ZERO,
            Atom::Max(a, b) => self.extreme(a, most).max_of(&self.extreme(b, most), &[]),
            Atom::Min(a, b) => self.extreme(a, most).min_of(&self.extreme(b, most), &[]),
            Atom::Var(_) | Atom::Data(_) | Atom::TooLarge => whole,
        }
    }
}

/// Bounds that are expressions of symbols known before a run.
impl FromIterator<(Arc<str>, Dim)> for Bounds {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Dim)>>(bounds: I) -> Bounds {
        Bounds(bounds.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bounded_from_both_sides() {
        let mut g = crate::Graph::new();
        let value = g.add_input("x", crate::TensorType::new(crate::DType::I32, vec![]));
        let entry = |s: &str, b: &str| Computed { symbol: s.into(), value, bound: Poly::parse(b).unwrap() };
        let bounds = Bounds::of(&[entry("n", "4*m"), entry("k", "2*n + 1")]);
        for (d, want) in [
            ("3*n + m", "13*m"),
            ("k", "8*m + 1"),
            ("n*k", "32*m*m + 4*m"),
            ("100 - n", "100"),
            ("max(7 - n, n)", "max(4*m, 7)"),
            ("(n + 63)/64", "(4*m + 63)/64"),
            ("m/n", "m"),
            ("n % 8", "7"),
            ("m + 2", "m + 2"),
        ] {
            let most = bounds.most(&Poly::parse(d).unwrap());
            for m in 0..5i64 {
                let at = |p: &Poly, n: i64, k: i64| {
                    p.eval_syms(&|s| {
                        Some(match s {
                            "m" => m,
                            "n" => n,
                            _ => k,
                        })
                    })
                };
                let highest = at(&most, 0, 0).unwrap();
                for n in 0..=4 * m {
                    let exact = at(&Poly::parse(d).unwrap(), n, 2 * n + 1);
                    assert!(exact.is_none_or(|e| e <= highest), "{d} at {m} {n}");
                }
            }
            assert_eq!(most.to_string(), Poly::parse(want).unwrap().to_string(), "{d}");
        }
    }
}
