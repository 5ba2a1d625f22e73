//! Advice on violated constraints: their conditions in words, and extents that would satisfy them.

use crate::poly::{Atom, Dim};
use std::fmt::Write;

/// The relation required of two dimensions. See the example of [`relation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Equal.
    Equal,
    /// The first must not be greater than the second.
    AtMost,
    /// The first must not be less than the second, which is a number.
    AtLeast,
}

/// The relation that the equality of two dimensions expresses: `max(low, x) = x` says that `x` is at least `low`.
///
/// ```
/// use wgfc_program::{Dim, suggest};
/// // The least size of an image is expressed as an equation of dimensions.
/// let (a, b) = (Dim::parse("max(5, width)")?, Dim::sym("width"));
/// let (relation, x, least) = suggest::relation(&a, &b);
/// assert_eq!(relation, suggest::Relation::AtLeast);
/// let said = suggest::needed(relation, (&x.to_string(), 3), (&least.to_string(), 5));
/// assert_eq!(said, "needs width (here 3) to be at least 5");
/// # Ok::<(), String>(())
/// ```
pub fn relation<'d>(a: &'d Dim, b: &'d Dim) -> (Relation, &'d Dim, &'d Dim) {
    let at_most = [(a, b), (b, a)].into_iter().find_map(|(extreme, other)| match extreme.as_atom()? {
        Atom::Max(x, y) if y == other => Some((x, other)),
        Atom::Max(x, y) if x == other => Some((y, other)),
        Atom::Min(x, y) if y == other => Some((other, x)),
        Atom::Min(x, y) if x == other => Some((other, y)),
        _ => None,
    });
    match at_most {
        Some((low, high)) if low.as_const().is_some() => (Relation::AtLeast, high, low),
        Some((low, high)) => (Relation::AtMost, low, high),
        None => (Relation::Equal, a, b),
    }
}

/// The condition in words, from each dimension as text and its value.
pub fn needed(relation: Relation, (a, x): (&str, i64), (b, y): (&str, i64)) -> String {
    let here = |d: &str, v: i64| if d == v.to_string() { d.to_owned() } else { format!("{d} (here {v})") };
    let (a, b) = (here(a, x), here(b, y));
    match relation {
        Relation::Equal => format!("needs {a} and {b} to be equal"),
        Relation::AtMost => format!("needs {a} to be at most {b}"),
        Relation::AtLeast => format!("needs {a} to be at least {b}"),
    }
}

/// The largest divisor that is tried, and the number of its multiples that must satisfy the constraints.
const MOST: i64 = 256;
const MULTIPLES: i64 = 64;
/// The maximum distance from a given value at which another value is searched.
const NEAR: i64 = 1024;

/// Describes values of symbols, near the given ones, for which the pairs are equal; `None` if changing any single
/// symbol does not help. Pairs with a symbol without a value are ignored. `called` names the input and the axis whose
/// extent a symbol is.
///
/// ```
/// use wgfc_program::{Dim, suggest::{axis_of, suggest}};
/// let (a, b) = (Dim::sym("n"), Dim::parse("2*(n/2)")?);
/// let shape = [Dim::constant(4), a.clone()];
/// let called = |s: &str| axis_of([("x", &shape[..])], s);
/// let said = suggest(&[("n", 9)], &[(&a, &b)], &called).unwrap();
/// assert_eq!(said, "n (axis 1 of input \"x\") may be any multiple of 2: 8 or 10 instead of 9");
/// # Ok::<(), String>(())
/// ```
pub fn suggest<S: AsRef<str>>(
    values: &[(S, i64)],
    pairs: &[(&Dim, &Dim)],
    called: &dyn Fn(&str) -> Option<String>,
) -> Option<String> {
    let place = |s: &str| values.iter().position(|v| v.0.as_ref() == s);
    let known = |d: &Dim| d.symbols().iter().all(|s| place(s).is_some());
    let pairs: Vec<_> = pairs.iter().filter(|(a, b)| known(a) && known(b)).collect();
    let mut text = String::new();
    for (i, (symbol, given)) in values.iter().enumerate() {
        let (symbol, given) = (symbol.as_ref(), *given);
        let concerns = |d: &Dim| d.symbols().iter().any(|s| **s == *symbol);
        let mine: Vec<_> = pairs.iter().filter(|(a, b)| concerns(a) || concerns(b)).collect();
        let at =
            |d: &Dim, x: i64| d.eval_syms(&|s| place(s).map(|at| if at == i { x } else { values[at].1 }));
        let holds = |x: i64| {
            mine.iter().all(|(a, b)| {
                let v = at(a, x);
                v.is_some() && v == at(b, x)
            })
        };
        if holds(given) {
            continue;
        }
        let near = (1..=NEAR).find(|d| holds(given + d) || given >= *d && holds(given - d));
        let near = near.map(|d| if given >= d && holds(given - d) { given - d } else { given + d });
        let ends = near.map(|n| (n, (n..n + MULTIPLES).take_while(|x| holds(*x)).last().unwrap_or(n)));
        let begins = near.map(|n| (0..=n).rev().take_while(|x| holds(*x)).last().unwrap_or(n));
        // Numbers between the multiples must violate the constraints; otherwise there is a lower bound rather than a
        // divisor.
        let every = (2..=MOST)
            .find(|m| given % m != 0 && (1..=MULTIPLES).all(|k| holds(k * m)))
            .filter(|m| (*m..m * MULTIPLES).any(|x| !holds(x)));
        let may = match (every, near, begins, ends) {
            (Some(m), ..) => match given - given % m {
                below if below > 0 => format!("any multiple of {m}: {below} or {}", below + m),
                _ => format!("any multiple of {m}: {m}"),
            },
            (None, Some(n), _, Some((_, end))) if n > given && end > n => match end - n < MULTIPLES - 1 {
                true => format!("{n} to {end}"),
                false => format!("{n} or more"),
            },
            (None, Some(n), Some(begin), _) if n < given && begin < n => match begin > 1 {
                true => format!("{begin} to {n}"),
                false => format!("at most {n}"),
            },
            (None, Some(n), ..) => n.to_string(),
            (None, None, ..) => continue,
        };
        let start = if text.is_empty() { "" } else { "; " };
        let of = called(symbol).map(|c| format!(" ({c})")).unwrap_or_default();
        _ = write!(text, "{start}{symbol}{of} may be {may} instead of {given}");
    }
    (!text.is_empty()).then_some(text)
}

/// The axis and the input whose extent a symbol is, in words.
pub fn axis_of<'d>(inputs: impl IntoIterator<Item = (&'d str, &'d [Dim])>, symbol: &str) -> Option<String> {
    let is = |d: &Dim| matches!(d.as_atom(), Some(Atom::Sym(s)) if **s == *symbol);
    let axis = |(name, shape): (&str, &[Dim])| {
        Some(format!("axis {} of input \"{name}\"", shape.iter().position(is)?))
    };
    inputs.into_iter().find_map(axis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dim(text: &str) -> Dim {
        Dim::parse(text).unwrap()
    }

    fn said(given: i64, pairs: &[(&str, &str)]) -> String {
        let pairs: Vec<(Dim, Dim)> = pairs.iter().map(|(a, b)| (dim(a), dim(b))).collect();
        let pairs: Vec<(&Dim, &Dim)> = pairs.iter().map(|(a, b)| (a, b)).collect();
        let shape = [dim("4"), dim("n")];
        suggest(&[("n", given)], &pairs, &|s| axis_of([("x", &shape[..])], s)).unwrap_or_default()
    }

    #[test]
    fn bounds_are_no_multiples() {
        assert_eq!(said(3, &[("max(5, n)", "n")]), "n (axis 1 of input \"x\") may be 5 or more instead of 3");
        let both = [("max(5, n)", "n"), ("max(8, n)", "8")];
        assert_eq!(said(3, &both), "n (axis 1 of input \"x\") may be 5 to 8 instead of 3");
        assert_eq!(said(9, &both), "n (axis 1 of input \"x\") may be 5 to 8 instead of 9");
        assert_eq!(said(9, &[("min(8, n)", "n")]), "n (axis 1 of input \"x\") may be at most 8 instead of 9");
        assert_eq!(said(9, &[("8", "n")]), "n (axis 1 of input \"x\") may be 8 instead of 9");
        let halves = [("n", "2*(n/2)")];
        let want = "n (axis 1 of input \"x\") may be any multiple of 2: 8 or 10 instead of 9";
        assert_eq!(said(9, &halves), want);
        let halves = [("n", "2*(n/2)"), ("max(6, n)", "n")];
        assert_eq!(said(3, &halves), "n (axis 1 of input \"x\") may be any multiple of 6: 6 instead of 3");
    }

    #[test]
    fn what_is_needed_is_said_as_it_was_meant() {
        let needs = |a: &str, b: &str, n: i64| {
            let (a, b) = (dim(a), dim(b));
            let (relation, a, b) = relation(&a, &b);
            let value = |d: &Dim| d.eval_syms(&|s| Some(if s == "n" { n } else { 7 })).unwrap();
            needed(relation, (&a.to_string(), value(a)), (&b.to_string(), value(b)))
        };
        assert_eq!(needs("max(5, n)", "n", 3), "needs n (here 3) to be at least 5");
        assert_eq!(needs("n", "max(5, n)", 3), "needs n (here 3) to be at least 5");
        assert_eq!(needs("max(8, n)", "8", 9), "needs n (here 9) to be at most 8");
        assert_eq!(needs("min(8, n)", "n", 9), "needs n (here 9) to be at most 8");
        assert_eq!(needs("min(8, n)", "8", 3), "needs n (here 3) to be at least 8");
        assert_eq!(needs("max(m, n)", "m", 9), "needs n (here 9) to be at most m (here 7)");
        assert_eq!(needs("n", "m", 9), "needs n (here 9) and m (here 7) to be equal");
    }
}
