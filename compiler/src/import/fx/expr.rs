//! Expressions of sizes, as sympy's `srepr` prints them: `Add(Mul(Integer(2), Symbol('s0')), Integer(-1))`.

use std::collections::BTreeMap;
use wgfc_ir::{Dim, Poly};

/// How deep expressions may be nested.
const DEPTH: usize = 64;

/// A size, or what else sizes are compared with.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// An integer expression of symbols.
    Size(Dim),
    /// A number that is no integer.
    Float(f64),
    /// A comparison: its name and both sides.
    Compared(String, Dim, Dim),
}

/// Reads an expression; symbols are called as `names` says, others as they are.
///
/// # Errors
/// What is not understood, in words.
pub fn parse(text: &str, names: &BTreeMap<String, String>) -> Result<Expr, String> {
    let mut p = Parser { text, at: 0, names };
    let e = p.expr(0)?;
    p.space();
    if p.at < text.len() {
        return Err(format!("`{}` is left over behind an expression", p.rest(24)));
    }
    Ok(e)
}

/// [`parse`] of what must be a size.
///
/// # Errors
/// What is not understood, in words.
pub fn size(text: &str, names: &BTreeMap<String, String>) -> Result<Dim, String> {
    match parse(text, names)? {
        Expr::Size(d) if d.is_too_large() => Err(format!("`{text}` is too large an expression")),
        Expr::Size(d) => Ok(d),
        _ => Err(format!("`{text}` is no size")),
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    names: &'t BTreeMap<String, String>,
}

impl Parser<'_> {
    fn rest(&self, most: usize) -> String {
        self.text[self.at..].chars().take(most).collect()
    }

    fn space(&mut self) {
        self.at += self.text[self.at..].len() - self.text[self.at..].trim_start().len();
    }

    fn eat(&mut self, c: char) -> bool {
        self.space();
        let found = self.text[self.at..].starts_with(c);
        self.at += if found { c.len_utf8() } else { 0 };
        found
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.eat(c) { Ok(()) } else { Err(format!("`{c}` is expected before `{}`", self.rest(24))) }
    }

    /// The longest prefix of such characters.
    fn word(&mut self, of: impl Fn(char) -> bool) -> String {
        self.space();
        let word: String = self.text[self.at..].chars().take_while(|c| of(*c)).collect();
        self.at += word.len();
        word
    }

    fn string(&mut self) -> Result<String, String> {
        self.space();
        let quote = if self.eat('\'') { '\'' } else { self.expect('"').map(|()| '"')? };
        let text = &self.text[self.at..];
        let end = text.find(quote).ok_or("a string without an end")?;
        self.at += end + 1;
        Ok(text[..end].to_owned())
    }

    fn expr(&mut self, depth: usize) -> Result<Expr, String> {
        if depth > DEPTH {
            return Err(format!("expressions are nested more than {DEPTH} deep"));
        }
        let head = self.word(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        self.expect('(')?;
        let e = match head.as_str() {
            "Symbol" => {
                let name = self.string()?;
                while self.eat(',') {
                    // Assumptions: `positive=True`.
                    self.word(|c| c.is_ascii_alphanumeric() || c == '_' || c == '=');
                }
                Expr::Size(Dim::sym(self.names.get(&name).map_or(&name, |n| n)))
            }
            "Integer" => {
                let n = self.word(|c| c.is_ascii_digit() || c == '-');
                Expr::Size(Poly::constant(n.parse().map_err(|_| format!("`{n}` is no 64-bit integer"))?))
            }
            "Float" => {
                let n = if self.text[self.at..].starts_with(['\'', '"']) {
                    self.string()?
                } else {
                    self.word(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
                };
                while self.eat(',') {
                    self.word(|c| c.is_ascii_alphanumeric() || c == '_' || c == '=');
                }
                Expr::Float(n.parse().map_err(|_| format!("`{n}` is no number"))?)
            }
            _ => {
                let mut args = vec![];
                while !self.eat(')') {
                    if !args.is_empty() {
                        self.expect(',')?;
                    }
                    args.push(self.expr(depth + 1)?);
                }
                return apply(&head, args);
            }
        };
        self.expect(')')?;
        Ok(e)
    }
}

fn apply(head: &str, args: Vec<Expr>) -> Result<Expr, String> {
    let unknown = || format!("`{head}` of {} operands in a size is not understood", args.len());
    let sizes: Option<Vec<&Dim>> =
        args.iter().map(|a| if let Expr::Size(d) = a { Some(d) } else { None }).collect();
    let Some(sizes) = sizes else { return Err(unknown()) };
    let fold = |f: &dyn Fn(&Dim, &Dim) -> Dim| {
        let (first, others) = sizes.split_first().ok_or_else(unknown)?;
        Ok::<Dim, String>(others.iter().fold((*first).clone(), |a, b| f(&a, b)))
    };
    Ok(Expr::Size(match (head, &sizes[..]) {
        ("Add", _) => sizes.iter().copied().sum(),
        ("Mul", _) => sizes.iter().copied().product(),
        ("Min", _) => fold(&|a, b| a.min_of(b, &[]))?,
        ("Max", _) => fold(&|a, b| a.max_of(b, &[]))?,
        ("Pow" | "PowByNatural", [base, exponent]) => {
            let n = exponent.as_const().filter(|n| (0..=8).contains(n)).ok_or_else(unknown)?;
            (0..n).fold(Poly::ONE, |p, _| &p * *base)
        }
        // Of sizes, which are not negative, all of these round down.
        ("FloorDiv" | "CleanDiv" | "PythonFloorDiv", [a, b]) => a.div(b, &[]),
        ("CeilDiv", [a, b]) => (&(*a + *b) - &Poly::ONE).div(b, &[]),
        ("Mod" | "PythonMod", [a, b]) => a.modulo(b, &[]),
        // Whole numbers that pass through floats and back.
        ("ToFloat" | "TruncToInt" | "FloorToInt" | "CeilToInt" | "RoundToInt" | "Identity", [a]) => (*a).clone(),
        (
            "GreaterThan" | "LessThan" | "StrictGreaterThan" | "StrictLessThan" | "Equality" | "Unequality",
            [a, b],
        ) => return Ok(Expr::Compared(head.to_owned(), (*a).clone(), (*b).clone())),
        _ => return Err(unknown()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        let names = BTreeMap::from([("s77".to_owned(), "batch".to_owned())]);
        size(text, &names).map(|d| d.to_string())
    }

    #[test]
    fn sizes_are_read() {
        let s = "Symbol('s77', positive=True, integer=True)";
        assert_eq!(read(s).unwrap(), "batch");
        assert_eq!(read(&format!("Add(Mul(Integer(2), {s}), Integer(-1))")).unwrap(), "2*batch - 1");
        assert_eq!(read(&format!("FloorDiv(Add({s}, Integer(3)), Integer(4))")).unwrap(), "(batch + 3)/4");
        assert_eq!(read(&format!("Pow({s}, Integer(2))")).unwrap(), "batch*batch");
        assert_eq!(read(&format!("Mod({s}, Integer(8))")).unwrap(), "batch%8");
        assert_eq!(read("Min(Symbol('u0'), Integer(7))").unwrap(), "min(u0, 7)");
    }

    #[test]
    fn what_is_no_size_is_named() {
        assert!(read("Sin(Symbol('s0'))").unwrap_err().contains("`Sin` of 1 operand"));
        assert!(read("Integer(99999999999999999999)").unwrap_err().contains("64-bit"));
        assert!(read("Integer(1) x").unwrap_err().contains("left over"));
        assert!(read(&"Add(".repeat(1000)).unwrap_err().contains("deep"));
        assert!(read("GreaterThan(Symbol('s0'), Integer(1))").unwrap_err().contains("no size"));
        for end in 0..30 {
            assert!(read(&"Add(Symbol('s0'), Integer(10))"[..end]).is_err(), "{end}");
        }
    }
}
