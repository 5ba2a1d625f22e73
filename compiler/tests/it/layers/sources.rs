//! The uses of crates and modules in Rust's source text.

use std::fs;
use std::path::{Path, PathBuf};

/// A source file of a crate.
#[derive(Clone)]
pub struct Source {
    /// The crate, as other crates name it.
    pub krate: String,
    /// The path from the workspace's root.
    pub file: String,
    /// The path of the module, `["schedule", "products", "cost"]`; empty for the crate's root.
    pub module: Vec<String>,
    pub text: String,
}

/// A path that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The line, from 1 on.
    pub line: usize,
    /// The path, which begins with the name of a crate.
    pub path: Vec<String>,
}

/// The sources of a crate without those of unit tests.
pub fn read(root: &Path, folder: &str, krate: &str) -> Vec<Source> {
    let mut out = vec![];
    let from = match folder {
        "." => PathBuf::from("src"),
        _ => Path::new(folder).join("src"),
    };
    files(root, &from, &mut |file, text| {
        let inside = Path::new(&file).strip_prefix(&from).unwrap().with_extension("");
        let mut module: Vec<String> = inside.iter().map(|p| p.to_str().unwrap().to_owned()).collect();
        module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
        out.push(Source { krate: krate.to_owned(), file, module, text });
    });
    out
}

fn files(root: &Path, folder: &Path, each: &mut dyn FnMut(String, String)) {
    let mut entries: Vec<_> = fs::read_dir(root.join(folder)).unwrap().map(|e| e.unwrap()).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for e in entries {
        let path = folder.join(e.file_name());
        let tests = path.file_stem().unwrap().to_str().unwrap().ends_with("tests");
        if e.path().is_dir() {
            files(root, &path, each);
        } else if path.extension().is_some_and(|e| e == "rs") && !tests {
            each(path.to_str().unwrap().to_owned(), fs::read_to_string(e.path()).unwrap());
        }
    }
}

/// The text without comments and without the module of unit tests, which ends a file, line by line.
fn code(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(|l| l.split("//").next().unwrap_or_default()).collect();
    let is_test = |i: &usize| {
        let item = lines.get(i + 1).unwrap_or(&"").trim();
        lines[*i] == "#[cfg(test)]" && item.starts_with("mod ") && item.ends_with('{')
    };
    let end = (0..lines.len()).find(is_test).unwrap_or(lines.len());
    lines[..end].join("\n")
}

impl Source {
    /// The uses of this crate's own modules and of crates whose names begin with `wgfc`.
    pub fn uses(&self) -> Vec<Use> {
        let code = code(&self.text);
        let mut out = vec![];
        let mut from = 0;
        while let Some(at) = code[from..].find("::").map(|i| from + i) {
            from = at + 2;
            let before = &code[..at];
            let start = before
                .rfind(|c: char| !is_word(c))
                .map_or(0, |i| i + before[i..].chars().next().unwrap().len_utf8());
            // A path is read from its first segment.
            if before[..start].ends_with("::") {
                continue;
            }
            let Some((mut path, mut rest)) = self.base(&before[start..], &code[from..]) else { continue };
            while path.len() > 1 {
                let Some(more) = rest.strip_prefix("super::") else { break };
                path.pop();
                rest = more;
            }
            let line = |rest: &str| code[..code.len() - rest.len()].matches('\n').count() + 1;
            expand(&path, rest, &mut |path, rest| out.push(Use { line: line(rest), path }));
        }
        out
    }

    /// The path for which a first segment stands, and the text behind it.
    fn base<'a>(&self, first: &str, rest: &'a str) -> Option<(Vec<String>, &'a str)> {
        let own = || [&[self.krate.clone()][..], &self.module].concat();
        match first {
            "crate" => Some((vec![self.krate.clone()], rest)),
            "super" => {
                let mut path = own();
                path.pop_if(|_| !self.module.is_empty());
                Some((path, rest))
            }
            name if name == "wgfc" || name.starts_with("wgfc_") => Some((vec![name.to_owned()], rest)),
            _ => None,
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths of `prefix::text` with the groups of a `use` written out, each with the text at its last segment.
fn expand<'a>(prefix: &[String], text: &'a str, each: &mut dyn FnMut(Vec<String>, &'a str)) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if let Some(behind) = rest.strip_prefix('}') {
                return behind;
            }
            let before = rest;
            rest = expand(prefix, rest, each);
            // The name behind `as`, and all that is no list of paths.
            rest = rest.find([',', '}']).map_or("", |i| &rest[i..]);
            if rest.is_empty() || rest == before {
                return "";
            }
        }
    }
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    let word = &text[..end];
    let path = match word {
        "" => {
            each(prefix.to_vec(), text);
            return text;
        }
        "self" => prefix.to_vec(),
        _ => [prefix, &[word.to_owned()]].concat(),
    };
    match text[end..].strip_prefix("::") {
        // `::<T>` is no path.
        Some(rest) if rest.starts_with(|c| is_word(c) || c == '{') => expand(&path, rest, each),
        _ => {
            each(path, text);
            &text[end..]
        }
    }
}

#[test]
fn uses_are_found() {
    let source = |module: &[&str], text: &str| Source {
        krate: "wgfc_compiler".into(),
        file: String::new(),
        module: module.iter().map(|s| (*s).to_owned()).collect(),
        text: text.to_owned(),
    };
    let found = |s: Source| -> Vec<(usize, String)> {
        s.uses().into_iter().map(|u| (u.line, u.path.join("::"))).collect()
    };
    let text = "\
//! As crate::no::thing.
use crate::{a::b, c::{d, self, e as E}, f};
use std::fmt;
use wgfc_ir::{
    DType,
    text::parse, // crate::neither
};
let x = crate::g::h::<T>(crate::i);
use super::super::j::k;
use super::l;
#[cfg(test)]
mod tests {
    use crate::not::this;
}
";
    let own = |s: &str| format!("wgfc_compiler::{s}");
    let all = [
        (2, own("a::b")),
        (2, own("c::d")),
        (2, own("c")),
        (2, own("c::e")),
        (2, own("f")),
        (5, "wgfc_ir::DType".into()),
        (6, "wgfc_ir::text::parse".into()),
        (8, own("g::h")),
        (8, own("i")),
        (9, own("j::k")),
        (10, own("m::l")),
    ];
    assert_eq!(found(source(&["m", "n"], text)), all);
    // An item of tests does not end what is read.
    let text = "#[cfg(test)]\nuse crate::a;\nuse crate::b;\n";
    assert_eq!(found(source(&[], text)), [(2, own("a")), (3, own("b"))]);
}
