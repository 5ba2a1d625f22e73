//! Errors of a compilation, worded for the user of the model.

use std::fmt;
use std::sync::Arc;

/// The kind of an error. See the example of [`Diagnostic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The model is wrong.
    Model,
    /// The model is valid and wgfc does not support it.
    Unsupported,
    /// A bug in wgfc.
    Internal,
}

/// The place in the model that an error is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// The node's name, or a description if it has none (`#12 (Conv)`).
    pub node: Option<Arc<str>>,
    /// Its operator, with the domain unless that is `ai.onnx`.
    pub operator: Option<Arc<str>>,
    /// The opset version that applies to it.
    pub opset: Option<i64>,
    /// The input, output or attribute of the node: `input B`, `attribute axis`.
    pub part: Option<String>,
    /// The source of the node, as far as the model records it: `module layers.0.mlp, model.py:12: x = self.up(x)`.
    pub source: Option<String>,
}

/// A single error: its message, place, reason and advice.
///
/// ```
/// use wgfc_compiler::{Diagnostic, Location};
/// let location = Location { node: Some("conv1".into()), operator: Some("Conv".into()), ..Location::default() };
/// let d = Diagnostic::unsupported("strings cannot be computed with").at(location).help("remove the node");
/// println!("{d}");
/// assert!(d.to_string().contains("node \"conv1\" (Conv)"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The kind of an error.
    pub kind: Kind,
    /// The fault and its reason: `MatMul inner dimensions differ: 512 and 768`.
    pub message: String,
    /// The place in the model that the error is about, as far as it is known.
    pub location: Location,
    /// Advice on how to fix it.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error in the model.
    pub fn model(message: impl Into<String>) -> Diagnostic {
        Diagnostic { kind: Kind::Model, message: message.into(), location: Location::default(), help: None }
    }
    /// An error that is a limit of wgfc.
    pub fn unsupported(message: impl Into<String>) -> Diagnostic {
        Diagnostic { kind: Kind::Unsupported, ..Diagnostic::model(message) }
    }
    /// An error that is a bug in wgfc.
    pub fn internal(message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            kind: Kind::Internal,
            help: Some("this is a bug in wgfc; please report it with the model's graph".into()),
            ..Diagnostic::model(message)
        }
    }
    /// This error with a location.
    pub fn at(mut self, location: Location) -> Diagnostic {
        self.location = location;
        self
    }
    /// Sets the advice.
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tag = match self.kind {
            Kind::Model => "error",
            Kind::Unsupported => "error[unsupported]",
            Kind::Internal => "error[internal]",
        };
        write!(f, "{tag}: {}", self.message)?;
        let l = &self.location;
        if let Some(n) = &l.node {
            write!(f, "\n  --> node \"{n}\"")?;
            match (&l.operator, l.opset) {
                (Some(o), Some(v)) => write!(f, " ({o}, opset {v})")?,
                (Some(o), None) => write!(f, " ({o})")?,
                _ => {}
            }
        }
        if let Some(p) = &l.part {
            write!(f, "{}{p}", if l.node.is_some() { ", " } else { "\n  --> " })?;
        }
        if let Some(s) = &l.source {
            write!(f, "\n  in {s}")?;
        }
        if let Some(h) = &self.help {
            write!(f, "\n  help: {h}")?;
        }
        Ok(())
    }
}

/// All errors of one stage; never empty. See the example of [`import`](crate::import::import()).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<Diagnostic>);

impl From<Diagnostic> for Errors {
    fn from(d: Diagnostic) -> Errors {
        Errors(vec![d])
    }
}
impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{d}")?;
        }
        Ok(())
    }
}
impl std::error::Error for Errors {}

/// The message of a JSON error, without the names of Rust types.
///
/// ```
/// use wgfc_compiler::json_in_words;
/// let e = serde_json::from_str::<Vec<u32>>("{}").unwrap_err();
/// println!("{}", json_in_words(&e));
/// ```
pub fn json_in_words(e: &serde_json::Error) -> String {
    const FORMS: [(&str, &str); 13] = [
        ("tuple struct ", "an array"),
        ("newtype struct ", "a value"),
        ("unit struct ", "null"),
        ("struct variant ", "an object"),
        ("tuple variant ", "an array"),
        ("newtype variant ", "a value"),
        ("unit variant ", "a name"),
        ("internally tagged enum ", "an object"),
        ("adjacently tagged enum ", "an object"),
        ("variant of untagged enum ", "form that is known"),
        ("untagged enum ", "a known form"),
        ("enum ", "a name or an object"),
        ("struct ", "an object"),
    ];
    let mut text = e.to_string();
    for (form, words) in FORMS {
        // The form must occur in serde's own words, not in a quotation from the file.
        let Some(i) = text.find(&format!("expected {form}")).map(|i| i + 9).or_else(|| {
            let i = text.find(&format!("any {form}"))?;
            Some(i + 4)
        }) else {
            continue;
        };
        let name = text[i + form.len()..].find(|c: char| !c.is_alphanumeric() && !"_:<>".contains(c));
        let end = name.map_or(text.len(), |n| i + form.len() + n);
        text.replace_range(i..end, words);
    }
    text
}

/// Up to five names that resemble `wanted`: names that contain it, and names within a small edit distance.
///
/// ```
/// use wgfc_compiler::error::close_names;
/// assert_eq!(close_names("batchs", ["batch", "seq"].into_iter()), ["batch"]);
/// ```
pub fn close_names<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let low = wanted.to_lowercase();
    let mut scored: Vec<(usize, &str)> = names
        .filter_map(|n| {
            let m = n.to_lowercase();
            let d = if m.contains(&low) || (m.len() > 2 && low.contains(&m)) { 1 } else { edits(&low, &m) };
            (d <= 2 + wanted.len() / 4).then_some((d, n))
        })
        .collect();
    scored.sort_unstable();
    scored.into_iter().take(5).map(|(_, n)| n).collect()
}

fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(200).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(200).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_json_name_no_types_of_ours() {
        #[derive(serde::Deserialize, Debug)]
        #[expect(dead_code, reason = "only read")]
        struct Inner {
            a: u32,
        }
        #[derive(serde::Deserialize, Debug)]
        #[serde(untagged)]
        #[expect(dead_code, reason = "only read")]
        enum Form {
            One(Inner),
            Two(u8),
        }
        #[derive(serde::Deserialize, Debug)]
        enum Named {
            First,
        }
        let words = |e: serde_json::Error| json_in_words(&e);
        assert_eq!(
            words(serde_json::from_str::<Inner>("7").unwrap_err()),
            "invalid type: integer `7`, expected an object at line 1 column 1"
        );
        assert_eq!(
            words(serde_json::from_str::<Form>("[]").unwrap_err()),
            "data did not match any form that is known"
        );
        let named = words(serde_json::from_str::<Named>("[1]").unwrap_err());
        assert!(!named.contains("Named") && !named.contains("enum"), "{named}");
    }
}
