//! Which extents would satisfy constraints that others violate.

use crate::poly::Dim;
use std::fmt::Write;

/// The largest number of which multiples are tried, and how many of each.
const MOST: i64 = 256;
const MULTIPLES: i64 = 64;
/// How far from a given value another is looked for.
const NEAR: i64 = 1024;

/// In words, values of symbols near the given ones for which the pairs are equal; `None` where no single symbol can be found to
/// decide it. Pairs of which the value of a symbol is not known do not count.
pub fn suggest<S: AsRef<str>>(values: &[(S, i64)], pairs: &[(&Dim, &Dim)]) -> Option<String> {
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
        let start = if text.is_empty() { "" } else { "; " };
        let every = (2..=MOST).find(|m| given % m != 0 && (1..=MULTIPLES).all(|k| holds(k * m)));
        _ = match (every, (1..=NEAR).find(|d| holds(given + d) || given >= *d && holds(given - d))) {
            (Some(m), _) if given > m => {
                let below = given - given % m;
                write!(
                    text,
                    "{start}{symbol} may be any multiple of {m}: {below} or {} instead of {given}",
                    below + m
                )
            }
            (Some(m), _) => {
                write!(text, "{start}{symbol} may be any multiple of {m}: {m} instead of {given}")
            }
            (None, Some(d)) => {
                let other = if given >= d && holds(given - d) { given - d } else { given + d };
                write!(text, "{start}{symbol} may be {other} instead of {given}")
            }
            (None, None) => Ok(()),
        };
    }
    (!text.is_empty()).then_some(text)
}
