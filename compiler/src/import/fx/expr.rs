//! Expressions of sizes, as sympy's `srepr` prints them: `Add(Mul(Integer(2), Symbol('s0')), Integer(-1))`.

use wgfc_ir::{Dim, Poly};

/// How deep expressions may be nested.
const DEPTH: usize = 64;

/// An expression as it is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A symbol.
    Symbol(String),
    /// An integer.
    Int(i64),
    /// A number that is no integer.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A function of others.
    Call(String, Vec<Expr>),
}

/// Reads an expression.
///
/// # Errors
/// What is not understood, in words.
pub fn parse(text: &str) -> Result<Expr, String> {
    let mut p = Parser { text, at: 0 };
    let e = p.expr(0)?;
    p.space();
    if p.at < text.len() {
        return Err(format!("`{}` is left over behind an expression", p.rest(24)));
    }
    Ok(e)
}

/// [`parse`] of what must be a size; `symbols` says what each symbol is.
///
/// # Errors
/// What is not understood, in words.
pub fn size(text: &str, symbols: &dyn Fn(&str) -> Dim) -> Result<Dim, String> {
    // Up to torch 2.5 these were not `srepr`.
    if !text.contains('(') || !text.starts_with(|c: char| c.is_ascii_uppercase()) {
        let plain = super::guards::expression(text)?;
        let named = |a: &wgfc_ir::Atom| if let wgfc_ir::Atom::Sym(s) = a { Some(symbols(s)) } else { None };
        return Ok(plain.subst(&named, &[]));
    }
    match parse(text)?.size(symbols)? {
        d if d.is_too_large() => Err(format!("`{text}` is too large an expression")),
        d => Ok(d),
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
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

    /// `positive=True, integer=True`, after a comma.
    fn assumptions(&mut self) {
        while self.eat(',') {
            self.word(|c| c.is_ascii_alphanumeric() || c == '_' || c == '=');
        }
    }

    fn expr(&mut self, depth: usize) -> Result<Expr, String> {
        if depth > DEPTH {
            return Err(format!("expressions are nested more than {DEPTH} deep"));
        }
        let head = self.word(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        // `true`, `false` and constants such as `pi` stand alone.
        if !self.eat('(') {
            return match head.as_str() {
                "true" | "True" => Ok(Expr::Bool(true)),
                "false" | "False" => Ok(Expr::Bool(false)),
                "pi" => Ok(Expr::Float(std::f64::consts::PI)),
                _ => Err(format!("`(` is expected before `{}`", self.rest(24))),
            };
        }
        let e = match head.as_str() {
            "Symbol" => {
                let name = self.string()?;
                self.assumptions();
                Expr::Symbol(name)
            }
            "Integer" => {
                let n = self.word(|c| c.is_ascii_digit() || c == '-');
                Expr::Int(n.parse().map_err(|_| format!("`{n}` is no 64-bit integer"))?)
            }
            "Float" => {
                let n = if self.text[self.at..].starts_with(['\'', '"']) {
                    self.string()?
                } else {
                    self.word(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
                };
                self.assumptions();
                Expr::Float(n.parse().map_err(|_| format!("`{n}` is no number"))?)
            }
            "Rational" => {
                let part = |p: &mut Self| {
                    let n = p.word(|c| c.is_ascii_digit() || c == '-');
                    n.parse::<i64>().map_err(|_| format!("`{n}` is no 64-bit integer"))
                };
                let over = part(self)?;
                self.expect(',')?;
                Expr::Float(over as f64 / part(self)? as f64)
            }
            _ => {
                let mut args = vec![];
                while !self.eat(')') {
                    if !args.is_empty() {
                        self.expect(',')?;
                    }
                    args.push(self.expr(depth + 1)?);
                }
                return Ok(Expr::Call(head, args));
            }
        };
        self.expect(')')?;
        Ok(e)
    }
}

impl Expr {
    /// As a size.
    ///
    /// # Errors
    /// What in it is none, in words.
    pub fn size(&self, symbols: &dyn Fn(&str) -> Dim) -> Result<Dim, String> {
        let (head, args) = match self {
            Expr::Symbol(s) => return Ok(symbols(s)),
            Expr::Int(n) => return Ok(Poly::constant(*n)),
            Expr::Float(x) => return Err(format!("{x} is no size")),
            Expr::Bool(b) => return Err(format!("{b} is no size")),
            Expr::Call(head, args) => (head.as_str(), args),
        };
        let unknown = || format!("`{head}` of {} operands in a size is not understood", args.len());
        if args.is_empty() || head.contains("Than") || head.ends_with("equality") {
            return Err(unknown());
        }
        if let ("TruncToInt" | "FloorToInt" | "CeilToInt", [a]) = (head, &args[..]) {
            let (over, under) = a.fraction(symbols)?;
            return Ok(if head == "CeilToInt" { over.ceil_div(under) } else { over.div(&under.into(), &[]) });
        }
        let sizes = args.iter().map(|a| a.size(symbols)).collect::<Result<Vec<Dim>, String>>()?;
        let fold = |f: &dyn Fn(&Dim, &Dim) -> Dim| sizes[1..].iter().fold(sizes[0].clone(), |a, b| f(&a, b));
        Ok(match (head, &sizes[..]) {
            ("Add", _) => sizes.iter().cloned().sum(),
            ("Mul", _) => sizes.iter().cloned().product(),
            ("Min", _) => fold(&|a, b| a.min_of(b, &[])),
            ("Max", _) => fold(&|a, b| a.max_of(b, &[])),
            ("Pow" | "PowByNatural", [base, exponent]) => {
                let n = exponent.as_const().filter(|n| (0..=8).contains(n)).ok_or_else(unknown)?;
                (0..n).fold(Poly::ONE, |p, _| &p * base)
            }
            // Of sizes, which are not negative, all of these round down.
            ("FloorDiv" | "CleanDiv" | "PythonFloorDiv", [a, b]) => a.div(b, &[]),
            ("CeilDiv", [a, b]) => (&(a + b) - &Poly::ONE).div(b, &[]),
            ("Mod" | "PythonMod", [a, b]) => a.modulo(b, &[]),
            // Whole numbers that pass through floats and back.
            ("ToFloat" | "RoundToInt" | "Identity", [a]) => a.clone(),
            _ => return Err(unknown()),
        })
    }
}

impl Expr {
    /// As a size divided by a whole number. Factors that are no whole numbers have denominators of a few bits, so that their
    /// products are exact.
    fn fraction(&self, symbols: &dyn Fn(&str) -> Dim) -> Result<(Dim, i64), String> {
        match self {
            Expr::Float(x) => {
                let exact = |bits: &u32| (x * f64::from(1u32 << bits)).fract() == 0.0;
                let bits = (0..=10).find(exact).filter(|_| x.abs() < 1e6);
                let bits = bits.ok_or_else(|| format!("the factor {x} in a size is not understood"))?;
                Ok((Dim::from((x * f64::from(1u32 << bits)) as i64), 1 << bits))
            }
            Expr::Call(head, args) if head == "Mul" && !args.is_empty() => {
                args.iter().try_fold((Dim::ONE, 1i64), |(over, under), a| {
                    let (o, u) = a.fraction(symbols)?;
                    let under = under.checked_mul(u).filter(|u| *u < 1 << 30);
                    Ok((&over * &o, under.ok_or("factors in a size have too many digits")?))
                })
            }
            Expr::Call(head, args) if head == "IntTrueDiv" && args.len() == 2 => {
                let under = args[1].size(symbols)?.as_const().filter(|u| (1..1 << 20).contains(u));
                let under = under.ok_or("a quotient by what is not known in a size is not understood")?;
                Ok((args[0].size(symbols)?, under))
            }
            Expr::Call(head, args) if head == "ToFloat" && args.len() == 1 => Ok((args[0].size(symbols)?, 1)),
            e => Ok((e.size(symbols)?, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        let named = |s: &str| Dim::sym(if s == "s77" { "batch" } else { s });
        size(text, &named).map(|d| d.to_string())
    }

    #[test]
    fn sizes_are_read() {
        let s = "Symbol('s77', positive=True, integer=True)";
        assert_eq!(read(s).unwrap(), "batch");
        assert_eq!(read(&format!("Add(Mul(Integer(2), {s}), Integer(-1))")).unwrap(), "2*batch - 1");
        assert_eq!(read(&format!("FloorDiv(Add({s}, Integer(3)), Integer(4))")).unwrap(), "(batch + 3)/4");
        assert_eq!(read(&format!("Pow({s}, Integer(2))")).unwrap(), "batch*batch");
        assert_eq!(read(&format!("Mod({s}, Integer(8))")).unwrap(), "batch%8");
        assert_eq!(read("2*s77 + 1").unwrap(), "2*batch + 1");
        assert_eq!(
            read(&format!("TruncToInt(Mul(Float('1.5', precision=53), ToFloat({s})))")).unwrap(),
            "(3*batch)/2"
        );
        assert_eq!(read(&format!("TruncToInt(IntTrueDiv({s}, Integer(3)))")).unwrap(), "batch/3");
        assert!(read(&format!("TruncToInt(Mul(Float('0.3', precision=53), ToFloat({s})))")).is_err());
        assert_eq!(read("Min(Symbol('u0'), Integer(7))").unwrap(), "min(7, u0)");
    }

    #[test]
    fn what_is_no_size_is_named() {
        assert!(read("Sin(Symbol('s0'))").unwrap_err().contains("`Sin` of 1 operand"));
        assert!(read("Integer(99999999999999999999)").unwrap_err().contains("64-bit"));
        assert!(read("Integer(1) x").unwrap_err().contains("left over"));
        assert!(read(&"Add(".repeat(1000)).unwrap_err().contains("deep"));
        assert!(read("GreaterThan(Symbol('s0'), Integer(1))").unwrap_err().contains("not understood"));
        for end in 4..30 {
            assert!(read(&"Add(Symbol('s0'), Integer(10))"[..end]).is_err(), "{end}");
        }
    }
}
