//! Which extents would satisfy the constraints that those of the inputs violate.

use std::fmt::Write;
use wgfc_program::{Dim, Program};

/// The largest number of which multiples are tried, and how many of each.
const MOST: i64 = 256;
const MULTIPLES: i64 = 64;
/// How far from a given value another is looked for.
const NEAR: i64 = 1024;

/// In words, values of symbols near those given for which the pairs are equal; `None` where no single
/// symbol can be found to decide it.
pub fn suggest(program: &Program, values: &[i64], pairs: &[(&Dim, &Dim)]) -> Option<String> {
    let mut text = String::new();
    for (i, symbol) in program.symbols.iter().enumerate() {
        if program.computed.iter().any(|c| c.symbol == *symbol) {
            continue;
        }
        let concerns = |d: &Dim| d.symbols().iter().any(|s| **s == **symbol);
        let mine: Vec<_> = pairs.iter().filter(|(a, b)| concerns(a) || concerns(b)).collect();
        let Some(given) = values.get(i).copied() else { continue };
        let at = |d: &Dim, x: i64| {
            d.eval_syms(&|s| {
                let at = program.symbols.iter().position(|n| n == s)?;
                if at == i { Some(x) } else { values.get(at).copied() }
            })
        };
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
