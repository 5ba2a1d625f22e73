//! Torch's schemas of its operators: arguments with their defaults, which results are views of an argument, and which arguments are
//! written.
//!
//! `scripts/aten_schemas.py` writes `schemas.txt`: one schema per line, sorted.

use super::messages::{Argument, Graph};

const TABLE: &str = include_str!("schemas.txt");

/// The schema of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// Its arguments, in order.
    pub arguments: Vec<Declared>,
    /// For each result its alias, if it shares memory with an argument.
    pub results: Vec<Option<Alias>>,
}

/// A declared argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// Its name.
    pub name: &'static str,
    /// Its type: `Tensor`, `SymInt[2]`, `ScalarType?`.
    pub kind: &'static str,
    /// Its default as text.
    pub default: Option<&'static str>,
    /// Its alias, if it shares memory with a result or is written.
    pub alias: Option<Alias>,
}

/// Memory that an argument and a result share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The letter of the alias set.
    pub set: char,
    /// Whether it is written.
    pub written: bool,
}

/// The schema of a target, such as `aten.add.Tensor` or `aten.relu.default`.
pub fn find(target: &str) -> Option<Schema> {
    let name = target.strip_suffix(".default").unwrap_or(target);
    // The first line states the origin of the table.
    let (_, lines) = TABLE.split_once('\n')?;
    let (mut from, mut to) = (0, lines.len());
    while from < to {
        let middle = lines[..(from + to) / 2].rfind('\n').map_or(0, |i| i + 1).max(from);
        let end = lines[middle..].find('\n').map_or(lines.len(), |i| middle + i);
        let line = &lines[middle..end];
        let (declared, rest) = line.split_once('(')?;
        match declared.cmp(name) {
            std::cmp::Ordering::Equal => return Schema::parse(rest),
            std::cmp::Ordering::Less => from = end + 1,
            std::cmp::Ordering::Greater => to = middle,
        }
    }
    None
}

impl Schema {
    /// Parses a line after the name and the opening parenthesis.
    fn parse(text: &'static str) -> Option<Schema> {
        let (arguments, results) = text.rsplit_once(") -> ")?;
        let arguments = pieces(arguments).into_iter().filter_map(Declared::parse).collect();
        let results = results.strip_prefix('(').map_or(results, |r| r.strip_suffix(')').unwrap_or(r));
        let results = pieces(results).into_iter().map(|r| alias(r).1).collect();
        Some(Schema { arguments, results })
    }

    /// The argument of a name.
    pub fn argument(&self, name: &str) -> Option<&Declared> {
        self.arguments.iter().find(|a| a.name == name)
    }

    /// The argument that shares memory with a result.
    pub fn aliased(&self, result: usize) -> Option<(&Declared, Alias)> {
        // A list of views is declared as a single result.
        let alias = (*self.results.get(result).or(self.results.first())?)?;
        let argument = self.arguments.iter().find(|a| a.alias.is_some_and(|b| b.set == alias.set))?;
        Some((argument, alias))
    }
}

/// Splits a text at the commas outside of brackets and quotes.
fn pieces(text: &'static str) -> Vec<&'static str> {
    let (mut out, mut depth, mut from, mut quoted) = (vec![], 0, 0, false);
    for (i, c) in text.char_indices() {
        match c {
            '\'' | '"' => quoted = !quoted,
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 && !quoted => {
                out.push(text[from..i].trim());
                from = i + 1;
            }
            _ => {}
        }
    }
    out.push(text[from..].trim());
    out.retain(|p| !p.is_empty());
    out
}

/// Splits `Tensor(a!) self` into the text around the alias, and the alias.
fn alias(text: &'static str) -> (Option<(&'static str, &'static str)>, Option<Alias>) {
    let Some((before, rest)) = text.split_once('(') else { return (None, None) };
    let Some((inside, after)) = rest.split_once(')') else { return (None, None) };
    let set = inside.chars().next().filter(char::is_ascii_lowercase);
    (Some((before, after)), set.map(|set| Alias { set, written: inside.contains('!') }))
}

impl Declared {
    /// Parses `Tensor(a!) self` or `Scalar alpha=1`; `None` for the `*` that precedes keyword-only arguments.
    fn parse(text: &'static str) -> Option<Declared> {
        let (declared, default) = match text.split_once('=') {
            Some((declared, default)) => (declared, Some(default)),
            None => (text, None),
        };
        let (kind, name) = declared.rsplit_once(' ')?;
        let (parts, alias) = alias(kind);
        Some(Declared { name, kind: parts.map_or(kind, |(before, _)| before), default, alias })
    }

    /// The default as an argument; `None` for a required argument.
    pub fn default(&self) -> Option<Argument> {
        let text = self.default?;
        let list = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let numbers = |t: &str| t.split(',').map(|n| n.trim().parse().ok()).collect::<Option<Vec<i64>>>();
        Some(match (text, list) {
            ("None", _) => Argument::None,
            ("True", _) => Argument::Bool(true),
            ("False", _) => Argument::Bool(false),
            (_, Some("")) => Argument::Ints(vec![]),
            (_, Some(list)) => match numbers(list) {
                Some(n) => Argument::Ints(n),
                None => Argument::Bools(list.split(',').map(|b| b.trim() == "True").collect()),
            },
            _ => match (text.parse(), text.parse(), text.strip_prefix(['\'', '"'])) {
                (Ok(n), ..) => Argument::Int(n),
                (_, Ok(x), _) => Argument::Float(x),
                (_, _, Some(t)) => Argument::String(t.trim_end_matches(['\'', '"']).to_owned()),
                // Named constants: reductions of losses, memory formats.
                _ if text == "Mean" => Argument::Int(1),
                _ if text == "Sum" => Argument::Int(2),
                _ => Argument::None,
            },
        })
    }
}

/// The number of nodes of a graph, inner graphs included.
pub fn nodes(g: &Graph) -> usize {
    let inner = |a: &Argument| if let Argument::Graph(g) = a { nodes(&g.graph) } else { 0 };
    g.nodes.iter().map(|n| 1 + n.inputs.iter().map(|i| inner(&i.arg)).sum::<usize>()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declaration_is_found_and_read() {
        let mut seen = 0;
        for line in TABLE.lines().skip(1) {
            let (name, rest) = line.split_once('(').unwrap();
            let schema = find(name).unwrap_or_else(|| panic!("{name} is not found"));
            let stars = usize::from(rest.contains("*, ") || rest.starts_with("*)"));
            assert!(schema.arguments.len() + stars >= 1 || rest.starts_with(')'), "{line}");
            for a in &schema.arguments {
                assert!(a.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line}: {a:?}");
                assert!(a.default.is_none() || a.default().is_some(), "{line}: {a:?}");
            }
            seen += 1;
        }
        assert!(seen > 1500, "{seen}");
        assert!(find("aten.nothing.default").is_none());
    }

    #[test]
    fn defaults_and_aliases_are_read() {
        let s = find("aten.slice.Tensor").unwrap();
        let names: Vec<&str> = s.arguments.iter().map(|a| a.name).collect();
        assert_eq!(names, ["self", "dim", "start", "end", "step"]);
        assert!(matches!(s.arguments[1].default(), Some(Argument::Int(0))));
        assert!(matches!(s.arguments[2].default(), Some(Argument::None)));
        let (of, alias) = s.aliased(0).unwrap();
        assert!(of.name == "self" && !alias.written);
        let (of, alias) = find("aten.add_.Tensor").unwrap().aliased(0).map(|(d, a)| (d.name, a)).unwrap();
        assert!(of == "self" && alias.written);
        assert!(find("aten.split.Tensor").unwrap().aliased(3).is_some());
        assert!(find("aten.add.Tensor").unwrap().aliased(0).is_none());
        let eps = find("aten.layer_norm.default").unwrap();
        assert!(matches!(eps.argument("eps").unwrap().default(), Some(Argument::Float(e)) if e == 1e-5));
        assert!(matches!(eps.argument("cudnn_enable").unwrap().default(), Some(Argument::Bool(true))));
    }
}
