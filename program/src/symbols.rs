//! The values of symbols, determined from known extents.
//!
//! An extent that is linear in one unknown symbol determines it: `past + seq` determines `seq` once `past` is known.

use crate::poly::{Atom, Dim};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The solution of an equation for its only unknown symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Solution {
    /// No solution: there is no unknown symbol, or several, or the equation is not linear in it.
    Open,
    /// No permitted value of the symbol satisfies the equation.
    Never(Arc<str>),
    /// The value of the symbol.
    Is(Arc<str>, i64),
}

/// Solves `dim == extent`. `value` returns the values of known symbols.
///
/// ```
/// use wgfc_program::{Dim, symbols::{Solution, solve}};
/// let heads = Dim::sym("heads") * 64;
/// assert_eq!(solve(&heads, 768, &|_| None), Solution::Is("heads".into(), 12));
/// assert_eq!(solve(&heads, 100, &|_| None), Solution::Never("heads".into()));
/// ```
pub fn solve(dim: &Dim, extent: i64, value: &dyn Fn(&str) -> Option<i64>) -> Solution {
    let mut unknown = dim.symbols().into_iter().filter(|s| value(s).is_none());
    let (Some(symbol), None) = (unknown.next(), unknown.next()) else { return Solution::Open };
    for (monomial, _) in dim.terms() {
        let mut times = 0;
        for atom in &monomial {
            match atom {
                Atom::Sym(s) => times += usize::from(*s == symbol),
                Atom::Div(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                    if a.symbols().contains(&symbol) || b.symbols().contains(&symbol) {
                        return Solution::Open;
                    }
                }
                Atom::Var(_) | Atom::Data(_) | Atom::TooLarge => return Solution::Open,
            }
        }
        if times > 1 {
            return Solution::Open;
        }
    }
    let at = |x: i64| dim.eval_syms(&|s| if *s == *symbol { Some(x) } else { value(s) });
    let (Some(zero), Some(one)) = (at(0), at(1)) else { return Solution::Open };
    let (Some(slope), Some(rest)) = (one.checked_sub(zero), extent.checked_sub(zero)) else {
        return Solution::Open;
    };
    match (rest.checked_rem(slope), slope) {
        (_, 0) => Solution::Open,
        (Some(0), _) if rest / slope >= 0 && at(rest / slope) == Some(extent) => {
            Solution::Is(symbol, rest / slope)
        }
        _ => Solution::Never(symbol),
    }
}

/// A symbol whose value has been found. See the example of [`bind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The symbol.
    pub symbol: Arc<str>,
    /// Its value, at least 0.
    pub value: i64,
    /// The index of the extent that determined it.
    pub extent: usize,
}

/// Determines the symbols to which `known` gives no value from the extents, in the order in which they are found.
/// Extents that are single symbols are used first, then those that are linear in one unknown symbol. The consistency
/// of the extents is not checked.
///
/// ```
/// use wgfc_program::{Dim, symbols::bind};
/// let (batch, total) = (Dim::sym("batch"), Dim::parse("past + seq")?);
/// let found = bind(&[(&batch, 2), (&total, 12)], &|s| (s == "past").then_some(7));
/// let values: Vec<(&str, i64)> = found.iter().map(|f| (&*f.symbol, f.value)).collect();
/// assert_eq!(values, [("batch", 2), ("seq", 5)]);
/// # Ok::<(), String>(())
/// ```
pub fn bind(extents: &[(&Dim, i64)], known: &dyn Fn(&str) -> Option<i64>) -> Vec<Found> {
    let mut found: Vec<Found> = vec![];
    let mut values: BTreeMap<Arc<str>, i64> = BTreeMap::new();
    for lone in [true, false] {
        loop {
            let before = found.len();
            for (i, (dim, extent)) in extents.iter().enumerate() {
                if lone && !matches!(dim.as_atom(), Some(Atom::Sym(_))) {
                    continue;
                }
                let value = |s: &str| values.get(s).copied().or_else(|| known(s));
                if let Solution::Is(symbol, value) = solve(dim, *extent, &value) {
                    values.insert(symbol.clone(), value);
                    found.push(Found { symbol, value, extent: i });
                }
            }
            // Single symbols do not depend on each other, so one pass is enough.
            if lone || found.len() == before {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(extents: &[(&str, i64)], known: &[(&str, i64)]) -> Vec<(String, i64, usize)> {
        let dims: Vec<(Dim, i64)> = extents.iter().map(|(d, n)| (Dim::parse(d).unwrap(), *n)).collect();
        let dims: Vec<(&Dim, i64)> = dims.iter().map(|(d, n)| (d, *n)).collect();
        let known = |s: &str| known.iter().find(|k| k.0 == s).map(|k| k.1);
        bind(&dims, &known).into_iter().map(|f| (f.symbol.to_string(), f.value, f.extent)).collect()
    }

    #[test]
    fn lone_symbols_come_first_then_what_follows_from_them() {
        let found = bound(&[("a + b", 9), ("b + c", 7), ("c", 3)], &[]);
        assert_eq!(found, [("c".into(), 3, 2), ("b".into(), 4, 1), ("a".into(), 5, 0)]);
        assert_eq!(bound(&[("a*b", 12), ("2*a + 1", 7)], &[]), [("a".into(), 3, 1), ("b".into(), 4, 0)]);
        // A known value is not determined again, even if an extent contradicts it.
        assert_eq!(bound(&[("a", 4), ("a + b", 5)], &[("a", 2)]), [("b".into(), 3, 1)]);
        assert_eq!(bound(&[("(k + 3)/4*n", 6)], &[("k", 5)]), [("n".into(), 3, 0)]);
    }

    #[test]
    fn what_is_not_determined_stays_open() {
        let none = |_: &str| None;
        let solved = |d: &str, n| solve(&Dim::parse(d).unwrap(), n, &none);
        for d in ["a*b", "a + b", "a*a", "a/2", "a%3", "max(a, 2)", "7"] {
            assert_eq!(solved(d, 4), Solution::Open, "{d}");
        }
        assert_eq!(solved("2*a + 1", 8), Solution::Never("a".into()));
        assert_eq!(solved("a + 5", 4), Solution::Never("a".into()));
        assert_eq!(solved("5 - a", 5), Solution::Is("a".into(), 0));
        // Overflow of 64 bits gives no solution rather than a panic.
        assert_eq!(solved("a + 9223372036854775807", i64::MIN), Solution::Open);
        assert_eq!(solved("0 - a", i64::MIN), Solution::Never("a".into()));
    }
}
