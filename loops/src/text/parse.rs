//! Parsing of kernels.

use super::{INFIX, TextError};
use crate::{Access, Combined, Expr, For, Kernel, Kind, Name, Space, Stmt, Store, Tensor, Value, Write};
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::{Atom, BinaryOp, DType, Poly, ReduceOp, Scalar, UnaryOp};

/// Expressions nested more deeply are refused.
const MAX_DEPTH: usize = 200;

/// Parses a kernel. It need not pass the verifier.
///
/// # Errors
/// The first line that is no part of a kernel, and why.
///
/// ```
/// let text = "kernel \"double\"
///   x: f32[n] storage read
///   y: f32[n] storage write
///   for i in 0..n
///     y[i] = x[i] * 2.0
/// ";
/// assert_eq!(wgfc_loops::text::parse(text)?.to_string(), text);
/// # Ok::<(), wgfc_loops::text::TextError>(())
/// ```
pub fn parse(text: &str) -> Result<Kernel, TextError> {
    let lines =
        text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.trim_start().starts_with("//"));
    let lines: Vec<Line> = lines
        .map(|(i, l)| Line { number: i + 1, indent: l.len() - l.trim_start().len(), text: l.trim() })
        .collect();
    let mut p = Parser { lines: &lines, next: 0, kernel: Kernel::default(), names: BTreeMap::new() };
    p.kernel()?;
    Ok(p.kernel)
}

struct Line<'t> {
    number: usize,
    indent: usize,
    text: &'t str,
}

/// The meaning of a name.
#[derive(Clone, Copy)]
enum Known {
    Tensor(usize),
    Var(usize),
    Value(u32),
}

struct Parser<'t> {
    lines: &'t [Line<'t>],
    next: usize,
    kernel: Kernel,
    names: BTreeMap<Name, Known>,
}

type Parsed<T> = Result<T, String>;

impl<'t> Parser<'t> {
    fn at<T>(line: &Line, r: Parsed<T>) -> Result<T, TextError> {
        r.map_err(|message| TextError { line: line.number, message })
    }

    fn kernel(&mut self) -> Result<(), TextError> {
        let lines = self.lines;
        let first = lines.first().ok_or(TextError { line: 1, message: "an empty text".into() })?;
        let mut c = Cursor::new(first.text);
        let header = (|| {
            c.word("kernel")?;
            while !c.is_done() {
                self.kernel.nodes.push(c.quoted()?.into());
                if !c.eat(",") {
                    break;
                }
            }
            c.done()
        })();
        Self::at(first, header)?;
        self.next = 1;
        while let Some(line) = lines.get(self.next) {
            match Self::at(line, self.tensor(line.text))? {
                true => self.next += 1,
                false => break,
            }
        }
        let indent = lines.get(self.next).map_or(0, |l| l.indent);
        self.kernel.body = self.block(indent, 0)?;
        match lines.get(self.next) {
            None => Ok(()),
            Some(l) => Self::at(l, Err("is indented less than the statements before it".into())),
        }
    }

    /// Whether the line declares a tensor, which is added.
    fn tensor(&mut self, text: &'t str) -> Parsed<bool> {
        let mut c = Cursor::new(text);
        let Ok(name) = c.name() else { return Ok(false) };
        if !c.eat(":") {
            return Ok(false);
        }
        let dtype: DType = c.name()?.parse()?;
        let mut shape = vec![];
        if c.eat("[") {
            shape = c.indices(&mut |t| Poly::parse(t))?;
            c.expect("]")?;
        }
        let space = match c.name()? {
            "workgroup" => Space::Workgroup,
            "register" => Space::Register,
            "storage" => {
                let word = c.name()?;
                let access = Access::ALL.into_iter().find(|a| a.name() == word);
                Space::Storage(access.ok_or_else(|| format!("`{word}` is not read, write or update"))?)
            }
            other => return Err(format!("`{other}` is not storage, workgroup or register")),
        };
        c.done()?;
        self.define(name, Known::Tensor(self.kernel.tensors.len()))?;
        self.kernel.tensors.push(Tensor { name: name.into(), dtype, shape, space });
        Ok(true)
    }

    fn define(&mut self, name: &str, known: Known) -> Parsed<()> {
        if crate::kernel::RESERVED.contains(&name) {
            return Err(format!("`{name}` cannot be a name"));
        }
        match self.names.insert(name.into(), known) {
            None => Ok(()),
            Some(_) => Err(format!("`{name}` is the name of something else already")),
        }
    }

    /// The statements of lines with this indent.
    fn block(&mut self, indent: usize, depth: usize) -> Result<Vec<Stmt>, TextError> {
        let lines = self.lines;
        let mut out = vec![];
        while let Some(line) = lines.get(self.next).filter(|l| l.indent >= indent) {
            if line.indent > indent {
                return Self::at(line, Err("is indented more than the statements before it".into()));
            }
            if depth > MAX_DEPTH {
                return Self::at(line, Err("is nested too deeply".into()));
            }
            if line.text == "else" {
                break;
            }
            self.next += 1;
            let mut s = Self::at(line, self.statement(line.text))?;
            let inside = |p: &Self| lines.get(p.next).map(|l| l.indent).filter(|i| *i > indent);
            match &mut s {
                Stmt::For(l) => {
                    if let Some(i) = inside(self) {
                        l.body = self.block(i, depth + 1)?;
                    }
                }
                Stmt::If { then, otherwise, .. } => {
                    if let Some(i) = inside(self) {
                        *then = self.block(i, depth + 1)?;
                    }
                    let has_else = |l: &&Line| l.indent == indent && l.text == "else";
                    if lines.get(self.next).filter(has_else).is_some() {
                        self.next += 1;
                        if let Some(i) = inside(self) {
                            *otherwise = self.block(i, depth + 1)?;
                        }
                    }
                }
                _ => {}
            }
            out.push(s);
        }
        Ok(out)
    }

    fn statement(&mut self, text: &'t str) -> Parsed<Stmt> {
        let mut c = Cursor::new(text);
        if c.eat_word("barrier") {
            let storage = c.eat_word("storage");
            c.done()?;
            return Ok(Stmt::Barrier { storage });
        }
        if c.eat_word("if") {
            let condition = self.expr(&mut c, 0, 0)?;
            c.done()?;
            return Ok(Stmt::If { condition, then: vec![], otherwise: vec![] });
        }
        if c.eat_word("let") {
            let name = c.name()?;
            c.expect(":")?;
            let dtype = c.name()?.parse()?;
            c.expect("=")?;
            let expr = self.expr(&mut c, 0, 0)?;
            c.done()?;
            let value = self.kernel.values.len() as u32;
            self.define(name, Known::Value(value))?;
            self.kernel.values.push(Value { name: name.into(), dtype });
            return Ok(Stmt::Let { value, expr });
        }
        if c.eat_word("for") {
            let name = c.name()?;
            c.word("in")?;
            c.expect("0..")?;
            let words = |w: &str| Kind::ALL.iter().any(|k| k.name() == w) || matches!(w, "down" | "while");
            let extent = self.poly(c.until_word(&words))?;
            let var = self.kernel.vars.len();
            let mut l = For::new(var, extent, Kind::Serial, vec![]);
            if let Some(kind) = Kind::ALL.into_iter().find(|k| c.eat_word(k.name())) {
                l.kind = kind;
            }
            l.down = c.eat_word("down");
            self.define(name, Known::Var(var))?;
            self.kernel.vars.push(name.into());
            if c.eat_word("while") {
                l.condition = Some(self.expr(&mut c, 0, 0)?);
            }
            c.done()?;
            return Ok(Stmt::For(l));
        }
        let name = c.name()?;
        let Some(Known::Tensor(tensor)) = self.names.get(name).copied() else {
            return Err(format!("`{name}` is neither a statement nor a tensor"));
        };
        let mut at = vec![];
        if c.eat("[") {
            at = c.indices(&mut |t| self.poly(t))?;
            c.expect("]")?;
        }
        let write = if c.eat("=") {
            Write::Replace
        } else if c.eat("any=") {
            Write::Any
        } else {
            let op = ReduceOp::ALL.into_iter().find(|op| c.eat(&format!("{}=", op.name())));
            Write::Combine(op.ok_or("expected `=`, `any=`, `sum=`, `prod=`, `max=` or `min=`")?)
        };
        let value = self.expr(&mut c, 0, 0)?;
        let guard = if c.eat_word("if") { Some(self.expr(&mut c, 0, 0)?) } else { None };
        c.done()?;
        Ok(Stmt::Store(Store { tensor, at, value, guard, write }))
    }

    fn poly(&self, text: &str) -> Parsed<Poly> {
        Poly::parse_named(text.trim(), &|name| match self.names.get(name)? {
            Known::Var(i) => Some(Atom::Var(*i as u32)),
            Known::Value(i) => Some(Atom::Data(*i)),
            Known::Tensor(_) => None,
        })
    }

    /// An expression of operators that bind at least as strongly as those of line `level` of [`INFIX`].
    fn expr(&self, c: &mut Cursor<'t>, level: usize, depth: usize) -> Parsed<Expr> {
        if depth > MAX_DEPTH {
            return Err("an expression is nested too deeply".into());
        }
        let Some(operators) = INFIX.get(level) else { return self.operand(c, depth + 1) };
        let mut left = self.expr(c, level + 1, depth + 1)?;
        let mut length = 0;
        while let Some((_, op)) = operators.iter().find(|(symbol, _)| c.eat(symbol)) {
            let right = self.expr(c, level + 1, depth + 1)?;
            left = Expr::binary(*op, left, right);
            length += 1;
            if length > MAX_DEPTH {
                return Err("an expression has too many operators in a row".into());
            }
            // Comparisons do not follow one another.
            if level == 0 {
                break;
            }
        }
        Ok(left)
    }

    fn operand(&self, c: &mut Cursor<'t>, depth: usize) -> Parsed<Expr> {
        if c.eat("(") {
            let e = self.expr(c, 0, depth)?;
            c.expect(")")?;
            return Ok(e);
        }
        if c.starts_number() {
            return c.number().map(Expr::Const);
        }
        let name = c.name()?;
        match (name, self.names.get(name)) {
            ("true" | "false", _) => return Ok(Expr::Const(Scalar::bool(name == "true"))),
            (_, Some(Known::Value(v))) => return Ok(Expr::Value(*v)),
            (_, Some(Known::Var(_))) => {
                return Err(format!("`{name}` is a loop variable; its value is `index({name})`"));
            }
            (_, Some(Known::Tensor(tensor))) => {
                let (mut at, mut guard) = (vec![], None);
                if c.eat("[") {
                    at = c.indices(&mut |t| self.poly(t))?;
                    if c.eat_word("if") {
                        guard = Some(Arc::new(self.expr(c, 0, depth)?));
                    }
                    c.expect("]")?;
                }
                return Ok(Expr::Load { tensor: *tensor, at, guard });
            }
            _ => {}
        }
        if let Some(e) = c.special(name)? {
            return Ok(Expr::Const(e));
        }
        c.expect("(").map_err(|_| format!("`{name}` is neither a tensor, a value nor an operator"))?;
        let e = match name {
            "index" => Expr::Index(self.poly(c.until_close())?),
            "cast" | "bitcast" => {
                let to: DType = c.name()?.parse()?;
                c.expect(",")?;
                let a = self.expr(c, 0, depth)?;
                if name == "cast" { Expr::cast(to, a) } else { Expr::Bitcast(to, Arc::new(a)) }
            }
            "shuffle_xor" => {
                let a = self.expr(c, 0, depth)?;
                c.expect(",")?;
                let bits = u32::try_from(c.number()?.as_i64()).map_err(|e| e.to_string())?;
                Expr::Subgroup(Combined::Xor(bits), Arc::new(a))
            }
            "select" => {
                let condition = self.expr(c, 0, depth)?;
                c.expect(",")?;
                let a = self.expr(c, 0, depth)?;
                c.expect(",")?;
                Expr::select(condition, a, self.expr(c, 0, depth)?)
            }
            _ => {
                let a = self.expr(c, 0, depth)?;
                let whole = name.strip_prefix("subgroup_");
                let op = whole.and_then(|n| ReduceOp::ALL.into_iter().find(|op| op.name() == n));
                if let Some(op) = op {
                    Expr::Subgroup(Combined::All(op), Arc::new(a))
                } else if c.eat(",") {
                    let b = self.expr(c, 0, depth)?;
                    let op = BinaryOp::from_name(name);
                    Expr::binary(op.ok_or_else(|| format!("no operator `{name}` of two operands"))?, a, b)
                } else {
                    let op = UnaryOp::from_name(name);
                    Expr::unary(op.ok_or_else(|| format!("no operator `{name}` of one operand"))?, a)
                }
            }
        };
        c.expect(")")?;
        Ok(e)
    }
}

/// A position in a line.
struct Cursor<'t> {
    rest: &'t str,
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

impl<'t> Cursor<'t> {
    fn new(text: &'t str) -> Cursor<'t> {
        Cursor { rest: text }
    }
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }
    fn is_done(&mut self) -> bool {
        self.space();
        self.rest.is_empty()
    }
    fn done(&mut self) -> Parsed<()> {
        if self.is_done() { Ok(()) } else { Err(format!("unexpected `{}`", self.rest)) }
    }
    fn eat(&mut self, symbol: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(symbol) {
            // `a < b` is not the beginning of `a <= b`, nor `=` of `==`.
            Some(rest) if !(matches!(symbol, "<" | ">" | "=") && rest.starts_with('=')) => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }
    fn expect(&mut self, symbol: &str) -> Parsed<()> {
        if self.eat(symbol) { Ok(()) } else { Err(format!("expected `{symbol}` before `{}`", self.rest)) }
    }
    fn eat_word(&mut self, word: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(word) {
            Some(rest) if !rest.starts_with(is_name) => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }
    fn word(&mut self, word: &str) -> Parsed<()> {
        if self.eat_word(word) { Ok(()) } else { Err(format!("expected `{word}` before `{}`", self.rest)) }
    }
    fn name(&mut self) -> Parsed<&'t str> {
        self.space();
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        if end == 0 || self.rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return Err(format!("expected a name before `{}`", self.rest));
        }
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(name)
    }
    fn quoted(&mut self) -> Parsed<String> {
        self.expect("\"")?;
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[i + 1..];
                    return Ok(out);
                }
                '\\' => out.extend(chars.next().map(|(_, c)| c)),
                c => out.push(c),
            }
        }
        Err("a quotation mark is not closed".into())
    }

    /// The text up to where `ends` says, outside of parentheses and brackets.
    fn until(&mut self, ends: impl Fn(&str, bool) -> bool) -> &'t str {
        let (mut depth, mut before) = (0usize, ' ');
        for (i, c) in self.rest.char_indices() {
            let start = !is_name(before);
            if depth == 0 && ends(&self.rest[i..], start) {
                let (out, rest) = self.rest.split_at(i);
                self.rest = rest;
                return out;
            }
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            before = c;
        }
        std::mem::take(&mut self.rest)
    }
    fn until_close(&mut self) -> &'t str {
        self.until(|rest, _| rest.starts_with(')'))
    }
    /// The text up to a word for which `is` holds.
    fn until_word(&mut self, is: &dyn Fn(&str) -> bool) -> &'t str {
        self.until(|rest, start| {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            start && end > 0 && is(&rest[..end])
        })
    }
    /// Index expressions up to a bracket or the word `if`.
    fn indices(&mut self, read: &mut dyn FnMut(&'t str) -> Parsed<Poly>) -> Parsed<Vec<Poly>> {
        let mut out = vec![];
        loop {
            let ends = |rest: &str, start: bool| {
                let word = start && rest.starts_with("if") && !rest[2..].starts_with(is_name);
                rest.starts_with([',', ']']) || word
            };
            out.push(read(self.until(ends))?);
            if !self.eat(",") {
                return Ok(out);
            }
        }
    }

    fn starts_number(&mut self) -> bool {
        self.space();
        let digits = self.rest.strip_prefix('-').unwrap_or(self.rest);
        digits.starts_with(|c: char| c.is_ascii_digit()) || digits.starts_with("inf")
    }
    /// A number: an f32, or of the type that follows it.
    fn number(&mut self) -> Parsed<Scalar> {
        self.space();
        let (mut end, mut before) = (0, ' ');
        for (i, c) in self.rest.char_indices() {
            let sign = matches!(c, '-' | '+') && (i == 0 || before == 'e');
            if !(sign || c.is_ascii_alphanumeric() || c == '.') {
                break;
            }
            end = i + c.len_utf8();
            before = c;
        }
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        let wrong = || format!("`{digits}` is not a number");
        let dtype: DType = if self.eat(":") { self.name()?.parse()? } else { DType::F32 };
        if dtype.is_float() {
            return Ok(Scalar::from_f64(dtype, digits.parse().map_err(|_| wrong())?));
        }
        let value: i128 = digits.parse().map_err(|_| wrong())?;
        let low = i64::try_from(value).ok().or_else(|| u64::try_from(value).ok().map(|v| v as i64));
        Ok(Scalar { dtype, bits: low.ok_or_else(wrong)? as u64 })
    }
    /// A constant that is written as a word, such as `nan:f32`.
    fn special(&mut self, name: &str) -> Parsed<Option<Scalar>> {
        if name != "nan" && name != "inf" {
            return Ok(None);
        }
        let dtype: DType = if self.eat(":") { self.name()?.parse()? } else { DType::F32 };
        let value = if name == "nan" { f64::NAN } else { f64::INFINITY };
        Ok(Some(Scalar::from_f64(dtype, value)))
    }
}
