//! The common parser of the text forms of graphs and of kernel graphs: words, numbers, strings, types and dimensions.

use super::TextError;
use crate::dtype::{Class, DType};
use crate::graph::TensorType;
use crate::poly::Poly;
use crate::scalar::Scalar;
use crate::tensor::Tensor;
use std::sync::Arc;

/// The maximum nesting depth of subgraphs and of expressions.
const MAX_DEPTH: usize = 200;

/// A parser for the text forms of graphs and of kernel graphs. Comments (`//`) count as space.
#[derive(Debug)]
pub struct Parser<'a> {
    text: &'a str,
    /// The position in bytes, at which errors are reported.
    pub at: usize,
    depth: usize,
}

/// The result of a parser, or a message about the current position.
pub type Parsed<T> = Result<T, String>;

impl<'a> Parser<'a> {
    /// Parses a whole text with `f`.
    ///
    /// # Errors
    /// If `f` fails, or text remains after it.
    pub fn whole<T>(text: &'a str, f: impl FnOnce(&mut Self) -> Parsed<T>) -> Result<T, TextError> {
        let mut p = Parser { text, at: 0, depth: 0 };
        let parsed = f(&mut p).and_then(|v| if p.is_at_end() { Ok(v) } else { Err(p.unexpected("the end")) });
        parsed.map_err(|message| {
            let before = text.get(..p.at).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let column = before.len() - before.rfind('\n').map_or(0, |i| i + 1) + 1;
            TextError { line, column, message }
        })
    }
    /// Whether only space is left.
    pub fn is_at_end(&mut self) -> bool {
        self.space();
        self.rest().is_empty()
    }
    pub(super) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }
    /// Skips space and comments.
    pub fn space(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }
    /// The message that `wanted` was expected at the current position.
    pub fn unexpected(&mut self, wanted: &str) -> String {
        self.space();
        match self.rest().split_whitespace().next() {
            Some(t) => format!("expected {wanted}, found `{t}`"),
            None => format!("expected {wanted}, found the end"),
        }
    }
    /// Consumes the punctuation if it comes next.
    pub fn eat(&mut self, t: &str) -> bool {
        self.space();
        let hit = self.rest().starts_with(t);
        if hit {
            self.at += t.len();
        }
        hit
    }
    /// Consumes the punctuation, which must come next.
    pub fn expect(&mut self, t: &str) -> Parsed<()> {
        if self.eat(t) { Ok(()) } else { Err(self.unexpected(&format!("`{t}`"))) }
    }
    /// The next word, which is not consumed.
    pub fn peek(&mut self) -> &'a str {
        self.space();
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        &rest[..end]
    }
    /// Consumes the word if it comes next.
    pub fn eat_word(&mut self, w: &str) -> bool {
        let hit = self.peek() == w;
        if hit {
            self.at += w.len();
        }
        hit
    }
    /// Consumes the word, which must come next.
    pub fn expect_word(&mut self, w: &str) -> Parsed<()> {
        if self.eat_word(w) { Ok(()) } else { Err(self.unexpected(&format!("`{w}`"))) }
    }
    /// Consumes the next word; `what` describes it in the error if there is none.
    pub fn word(&mut self, what: &str) -> Parsed<&'a str> {
        let w = self.peek();
        if w.is_empty() {
            return Err(self.unexpected(what));
        }
        self.at += w.len();
        Ok(w)
    }
    /// An unsigned decimal number.
    pub fn integer(&mut self) -> Parsed<usize> {
        let w = self.peek();
        let n = w.parse().map_err(|_| self.unexpected("a number"))?;
        self.at += w.len();
        Ok(n)
    }
    /// A number of elements.
    pub fn count(&mut self) -> Parsed<i64> {
        Ok(i64::try_from(self.integer()?).unwrap_or(i64::MAX))
    }
    /// A string in quotes; `\` escapes.
    pub fn string(&mut self) -> Parsed<Arc<str>> {
        if !self.eat("\"") {
            return Err(self.unexpected("a string"));
        }
        let mut out = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(out.into());
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, c)) => out.push(c),
                    None => break,
                },
                c => out.push(c),
            }
        }
        Err("the string does not end".into())
    }
    /// `open item, item close`.
    pub fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        self.expect(open)?;
        let mut out = vec![];
        if self.eat(close) {
            return Ok(out);
        }
        loop {
            out.push(item(self)?);
            if self.eat(close) {
                return Ok(out);
            }
            if !self.eat(",") {
                return Err(self.unexpected(&format!("`,` or `{close}`")));
            }
        }
    }
    /// A symbolic integer, up to the first of `stops` outside of parentheses.
    pub fn poly(&mut self, stops: &str) -> Parsed<Poly> {
        self.space();
        let rest = self.rest();
        let mut depth = 0;
        let mut end = rest.len();
        for (i, c) in rest.char_indices() {
            if depth == 0 && stops.contains(c) {
                end = i;
                break;
            }
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                '\n' => {
                    end = i;
                    break;
                }
                _ => {}
            }
        }
        let p = Poly::parse(rest[..end].trim())?;
        self.at += end;
        Ok(p)
    }
    /// A list of symbolic integers in brackets.
    pub fn polys(&mut self) -> Parsed<Vec<Poly>> {
        self.list("[", "]", |p| p.poly(",]"))
    }
    /// Consumes an element type, which must come next.
    pub fn dtype(&mut self) -> Parsed<DType> {
        let start = self.at;
        let w = self.word("an element type")?;
        w.parse().inspect_err(|_| self.at = start)
    }
    /// An element type and a shape.
    pub fn ty(&mut self) -> Parsed<TensorType> {
        let dtype = self.dtype()?;
        Ok(TensorType::new(dtype, self.polys()?))
    }
    /// The characters of a number (`-1.5e-7`, `inf`, `nan`, `true`).
    pub(super) fn literal(&mut self) -> Parsed<&'a str> {
        self.space();
        let rest = self.rest();
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+')))
            .unwrap_or(rest.len());
        if end == 0 {
            return Err(self.unexpected("a number"));
        }
        self.at += end;
        Ok(&rest[..end])
    }
    /// A float without its type.
    pub fn f32(&mut self) -> Parsed<f32> {
        let start = self.at;
        let t = self.literal()?;
        t.parse().map_err(|_| {
            self.at = start;
            format!("`{t}` is not a number")
        })
    }
    /// A number of this type.
    pub fn number(&mut self, dtype: DType) -> Parsed<Scalar> {
        let start = self.at;
        let t = self.literal()?;
        let bits = match dtype.class() {
            Class::Float if dtype == DType::F64 => t.parse::<f64>().ok().map(f64::to_bits),
            Class::Float => t.parse::<f32>().ok().map(|v| f64::from(v).to_bits()),
            Class::Int => t.parse::<i64>().ok().map(|v| v as u64),
            Class::Uint => t.parse::<u64>().ok(),
            Class::Bool => t.parse::<bool>().ok().map(u64::from),
        };
        bits.map(|bits| Scalar { dtype, bits }).ok_or_else(|| {
            self.at = start;
            format!("`{t}` is not a number of type {dtype}")
        })
    }
    /// A number followed by its type.
    pub fn scalar(&mut self) -> Parsed<Scalar> {
        if let w @ ("true" | "false") = self.peek() {
            self.at += w.len();
            return Ok(Scalar::bool(w == "true"));
        }
        let start = self.at;
        self.literal()?;
        self.expect(":")?;
        let dtype = self.dtype()?;
        let end = self.at;
        self.at = start;
        let s = self.number(dtype)?;
        self.at = end;
        Ok(s)
    }

    /// Calls `f` one nesting level deeper.
    pub fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("nested too deeply".into());
        }
        let r = f(self);
        self.depth -= 1;
        r
    }

    /// A name: a word, or any quoted string.
    pub fn name(&mut self) -> Parsed<Arc<str>> {
        self.space();
        if self.rest().starts_with('"') { self.string() } else { Ok(self.word("a name")?.into()) }
    }

    /// The numbers of a constant of `n` elements, in brackets.
    pub fn numbers(&mut self, ty: &TensorType, shape: Vec<usize>, n: usize) -> Parsed<Tensor> {
        self.space();
        let at = self.at;
        let v = self.list("[", "]", |p| p.number(ty.dtype))?;
        if v.len() != n {
            self.at = at;
            return Err(format!("{} numbers for {ty}", v.len()));
        }
        Ok(Tensor::from_scalars(ty.dtype, shape, &v))
    }
}
