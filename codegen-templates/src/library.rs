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
}

static ITEMS: LazyLock<Vec<Item>> = LazyLock::new(|| {
    let mut items: Vec<Item> = FILES
        .iter()
        .flat_map(|f| f.split("\n\n"))
        .filter_map(|text| {
            let text = text.trim();
            let code = text.lines().find(|l| !l.starts_with("//"))?;
            let name = code.strip_prefix("fn ").or(code.strip_prefix("var<private> "))?;
            let name = name.split(['(', ':']).next()?;
            Some(Item { name, text, uses: vec![] })
        })
        .collect();
    let names: Vec<&str> = items.iter().map(|i| i.name).collect();
    for (at, item) in items.iter_mut().enumerate() {
        let words: BTreeSet<&str> =
            item.text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).collect();
        item.uses = (0..names.len()).filter(|i| *i != at && words.contains(names[*i])).collect();
    }
    items
});

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
    use super::ITEMS;

    /// Some drivers take seconds over a few arrays that are indexed by what is not constant.
    #[test]
    fn functions_have_no_arrays() {
        let has = |text: &str| text.lines().any(|l| !l.starts_with("//") && l.contains("array<"));
        let arrays: Vec<&str> = ITEMS.iter().filter(|i| has(i.text)).map(|i| i.name).collect();
        assert_eq!(arrays, Vec::<&str>::new());
    }
}
