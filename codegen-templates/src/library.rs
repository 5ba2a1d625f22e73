//! The scalar functions that kernels call: `lib/*.wgsl` and `lib/special/*.wgsl`, of which a kernel gets what it uses.

use std::collections::BTreeSet;
use std::sync::LazyLock;

/// The files, in the order in which their items appear in a kernel.
const FILES: &[&str] = &[
    include_str!("../templates/lib/float.wgsl"),
    include_str!("../templates/lib/special/elementary.wgsl"),
    include_str!("../templates/lib/special/error.wgsl"),
    include_str!("../templates/lib/special/gamma.wgsl"),
    include_str!("../templates/lib/special/bessel.wgsl"),
    include_str!("../templates/lib/special/polynomials.wgsl"),
    include_str!("../templates/lib/int32.wgsl"),
    include_str!("../templates/lib/int64.wgsl"),
    include_str!("../templates/lib/storage.wgsl"),
];

/// A function or a private variable, its comment included, and the items it uses.
struct Item {
    name: &'static str,
    text: &'static str,
    uses: Vec<usize>,
    /// The operators and calls of a call of it, with those of the functions that it calls.
    instructions: usize,
}

static ITEMS: LazyLock<Vec<Item>> = LazyLock::new(|| collect(FILES));

/// The items of files, which an empty line separates.
fn collect(files: &[&'static str]) -> Vec<Item> {
    let mut items: Vec<Item> = files
        .iter()
        .flat_map(|f| f.split("\n\n"))
        .filter_map(|text| {
            let text = text.trim();
            let code = text.lines().find(|l| !l.starts_with("//"))?;
            let name = code.strip_prefix("fn ").or(code.strip_prefix("var<private> "))?;
            let name = name.split(['(', ':']).next()?;
            Some(Item { name, text, uses: vec![], instructions: 0 })
        })
        .collect();
    let names: Vec<&str> = items.iter().map(|i| i.name).collect();
    for (at, item) in items.iter_mut().enumerate() {
        let words: BTreeSet<&str> =
            item.text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).collect();
        item.uses = (0..names.len()).filter(|i| *i != at && words.contains(names[*i])).collect();
    }
    let mut lengths = vec![None; items.len()];
    (0..items.len()).for_each(|i| _ = length(&items, i, &mut lengths));
    for (item, n) in items.iter_mut().zip(lengths) {
        item.instructions = n.unwrap_or(1);
    }
    items
}

/// The operators and calls of an item, with those of the items that it calls. No function of WGSL calls itself.
fn length(items: &[Item], at: usize, known: &mut [Option<usize>]) -> usize {
    if let Some(n) = known[at] {
        return n;
    }
    known[at] = Some(1);
    let lines = items[at].text.lines().filter(|l| !l.trim_start().starts_with("//"));
    let text = lines.collect::<Vec<_>>().join("\n");
    let body = text.split_once('{').map_or("", |b| b.1);
    // Operators of two signs count once, and the sign of an exponent in a number not at all.
    let sign = |c: char| "+-*/%&|<>!~^".contains(c);
    let mut before = ' ';
    let mut n = 0;
    for c in body.chars() {
        n += usize::from(sign(c) && !sign(before) && before != 'e');
        before = c;
    }
    // A call is a name directly before a parenthesis; a parenthesis without one groups, and a keyword calls nothing.
    let end_of_name =
        |text: &str| text.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |i| i + 1);
    let before = body.match_indices('(').map(|(at, _)| &body[..at]);
    let called = before.map(|text| &text[end_of_name(text)..]).filter(|name| !name.is_empty());
    for name in called {
        n += match items.iter().position(|i| i.name == name) {
            Some(i) => length(items, i, known),
            None => 1,
        };
    }
    known[at] = Some(n.max(1));
    n.max(1)
}

/// About how many instructions a call of the named function is where it is inlined, which drivers do: its operators and calls.
/// `None` where there is no such function.
pub fn instructions(name: &str) -> Option<usize> {
    ITEMS.iter().find(|i| i.name == name).map(|i| i.instructions)
}

/// The name of a library item as it is kept, if there is one.
pub fn find(name: &str) -> Option<&'static str> {
    ITEMS.iter().find(|i| i.name == name).map(|i| i.name)
}

/// The text of the named items and of all they use, in the library's order.
pub fn text<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut wanted = vec![false; ITEMS.len()];
    let mut stack: Vec<usize> = names.filter_map(|n| ITEMS.iter().position(|i| i.name == n)).collect();
    while let Some(i) = stack.pop() {
        if !std::mem::replace(&mut wanted[i], true) {
            stack.extend(&ITEMS[i].uses);
        }
    }
    let mut out = String::new();
    for (item, _) in ITEMS.iter().zip(wanted).filter(|(_, w)| *w) {
        out.push('\n');
        out.push_str(item.text);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{ITEMS, instructions};

    #[test]
    fn calls_count_as_often_as_they_are_inlined() {
        let of = |name| instructions(name).unwrap();
        assert!((60..250).contains(&of("sin_f32")), "{}", of("sin_f32"));
        assert!((100..400).contains(&of("div_i64")), "{}", of("div_i64"));
        assert!(of("div_i64") > 2 * of("divide_by_word"));
        assert!(of("divide_by_word") > 2 * of("digit_of_quotient"));
        assert!(of("add_64") < 10);
        // A call inside parentheses that group is a call.
        let grouped = super::collect(&[
            "fn a(x: f32) -> f32 { return 1.0 - (b(x)); }\n\nfn b(x: f32) -> f32 { return x * x * x * x; }",
        ]);
        assert_eq!(grouped.iter().map(|i| i.instructions).collect::<Vec<_>>(), [4, 3]);
        assert_eq!(instructions("no_function"), None);
    }

    /// Some drivers take seconds over a few arrays that are indexed by what is not constant.
    #[test]
    fn functions_have_no_arrays() {
        let has = |text: &str| text.lines().any(|l| !l.starts_with("//") && l.contains("array<"));
        let arrays: Vec<&str> = ITEMS.iter().filter(|i| has(i.text)).map(|i| i.name).collect();
        assert_eq!(arrays, Vec::<&str>::new());
    }
}
