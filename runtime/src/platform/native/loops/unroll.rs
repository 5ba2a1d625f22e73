//! Unrolls loops in the text of a kernel.

use super::{Factors, Loop, Part};
use std::fmt::Write;
use std::ops::Range;

/// The largest number of bytes by which unrolling may lengthen a text: the drivers' compile times grow faster than the text.
pub(super) const MOST_TEXT: usize = 40 << 10;

/// The text with loops unrolled by `factors`.
pub(super) fn rewrite(text: &str, mut loops: Vec<Loop>, factors: &Factors) -> String {
    loops.sort_by_key(|l| l.span.start);
    part(text, 0..text.len(), &loops, factors)
}

fn part(text: &str, range: Range<usize>, loops: &[Loop], factors: &Factors) -> String {
    let mut out = String::new();
    let mut at = range.start;
    for l in loops {
        if l.span.start < at || l.span.end > range.end {
            continue;
        }
        out.push_str(text.get(at..l.span.start).unwrap_or_default());
        out.push_str(&one(text, l, factors));
        at = l.span.end;
    }
    out.push_str(text.get(at..range.end).unwrap_or_default());
    out
}

fn one(text: &str, l: &Loop, factors: &Factors) -> String {
    let mut inside: Vec<Loop> = l.inside.iter().filter_map(Part::as_loop).cloned().collect();
    inside.sort_by_key(|l| l.span.start);
    let factor = factors.get(&l.span.start).copied().unwrap_or(1);
    let head = if factor > 1 { head(text, l.span.clone()) } else { None };
    let Some(Head { first, condition, update, body }) = head else {
        return part(text, l.span.clone(), &inside, factors);
    };
    let body = part(text, body, &inside, factors);
    if l.disappears_at(factor) {
        let mut out = format!("{{ {first}\n");
        for _ in 1..l.passes {
            let _ = writeln!(out, "if ({condition}) {{ {body} {update} }}");
        }
        out.push('}');
        return out;
    }
    let mut out = format!("{{ {first} loop {{\n");
    for _ in 0..factor {
        let _ = writeln!(out, "if (!({condition})) {{ break; }} {body} {update}");
    }
    out.push_str("} }");
    out
}

/// The parts of `for (first; condition; update) body` or of `while (condition) body`.
struct Head<'t> {
    first: String,
    condition: &'t str,
    update: String,
    body: Range<usize>,
}

fn head(text: &str, span: Range<usize>) -> Option<Head<'_>> {
    let all = text.get(span.clone())?;
    let end = span.start + all.rfind('}')? + 1;
    let statement = |s: &str| if s.is_empty() { String::new() } else { format!("{s};") };
    if let Some(rest) = all.strip_prefix("while") {
        let open = rest.find('{')?;
        let body = span.start + "while".len() + open..end;
        return Some(Head {
            first: String::new(),
            condition: rest[..open].trim(),
            update: String::new(),
            body,
        });
    }
    let open = all.strip_prefix("for")?.find('(')? + "for".len();
    let (mut depth, mut cuts) = (0, vec![open]);
    for (i, c) in all.char_indices().skip_while(|(i, _)| *i < open) {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ';' if depth == 1 => cuts.push(i),
            _ => {}
        }
        if depth == 0 {
            cuts.push(i);
            break;
        }
    }
    let [open, a, b, close] = cuts[..] else { return None };
    let body = span.start + close + all[close..].find('{')?..end;
    let (first, condition, update) = (&all[open + 1..a], &all[a + 1..b], &all[b + 1..close]);
    Some(Head {
        first: statement(first.trim()),
        condition: condition.trim(),
        update: statement(update.trim()),
        body,
    })
}
