//! The text form of polynomials: printing, parsing and serialisation.

use super::{Atom, Poly};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

impl Poly {
    /// Parses the text form. Names are `[A-Za-z_][A-Za-z0-9_.]*`.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// assert_eq!(Poly::parse("2*n + n")?.to_string(), "3*n");
    /// assert!(Poly::parse("2*").is_err());
    /// # Ok::<(), String>(())
    /// ```
    pub fn parse(s: &str) -> Result<Poly, String> {
        Poly::parse_named(s, &|_| None)
    }

    /// [`Poly::parse`] where `atom` gives the atoms for which names stand; the other names are symbols.
    ///
    /// ```
    /// use wgfc_program::{Atom, Poly};
    /// let row = |name: &str| (name == "row").then_some(Atom::Var(0));
    /// assert_eq!(Poly::parse_named("8*row + n", &row)?, Poly::var(0) * 8 + Poly::sym("n"));
    /// # Ok::<(), String>(())
    /// ```
    pub fn parse_named(s: &str, atom: &dyn Fn(&str) -> Option<Atom>) -> Result<Poly, String> {
        let mut p = Parser { s: s.as_bytes(), i: 0, depth: 0, atom };
        let v = p.sum()?;
        p.space();
        if v.is_too_large() {
            return Err(TOO_LARGE.into());
        }
        if p.i != p.s.len() {
            return Err(format!("unexpected `{}` in `{s}`", &s[p.i..]));
        }
        Ok(v)
    }
}

/// The names of atoms: `None` for those that are printed as [`Poly::parse`] reads them.
type Names<'a> = &'a dyn Fn(&Atom) -> Option<String>;

/// A part of an expression with the names of its atoms.
struct Named<'a, T: ?Sized>(&'a T, Names<'a>);

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Named(self, &|_| None).fmt(f)
    }
}

impl fmt::Display for Named<'_, Atom> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Named(atom, names) = *self;
        if let Some(name) = names(atom) {
            return f.write_str(&name);
        }
        match atom {
            Atom::Sym(s) => f.write_str(s),
            Atom::Var(i) => write!(f, "%{i}"),
            Atom::Data(i) => write!(f, "@{i}"),
            Atom::Div(x, y) => write!(f, "{}/{}", Factor(x, names), Factor(y, names)),
            Atom::Mod(x, y) => write!(f, "{}%{}", Factor(x, names), Factor(y, names)),
            Atom::TooLarge => f.write_str("(an expression of dimensions that is too large)"),
            Atom::Max(x, y) => write!(f, "max({}, {})", Named(x, names), Named(y, names)),
            Atom::Min(x, y) => write!(f, "min({}, {})", Named(x, names), Named(y, names)),
        }
    }
}

/// An operand of a division, printed in parentheses unless it is a single term.
struct Factor<'a>(&'a Poly, Names<'a>);

impl fmt::Display for Factor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let single = match self.0.as_atom() {
            Some(a) => !matches!(a, Atom::Div(..) | Atom::Mod(..)),
            None => self.0.as_const().is_some_and(|c| c >= 0),
        };
        let shown = Named(self.0, self.1);
        if single { shown.fmt(f) } else { write!(f, "({shown})") }
    }
}

impl Poly {
    /// The text form with names for atoms, which [`Poly::parse_named`] reads. `names` gives `None` for atoms that are
    /// printed as [`Poly::parse`] reads them.
    ///
    /// ```
    /// use wgfc_program::{Atom, Poly};
    /// let names = |a: &Atom| matches!(a, Atom::Var(0)).then(|| "row".to_owned());
    /// assert_eq!((Poly::var(0) * 8 + 3).named(&names).to_string(), "8*row + 3");
    /// ```
    pub fn named<'a>(&'a self, names: &'a dyn Fn(&Atom) -> Option<String>) -> impl fmt::Display + 'a {
        Named(self, names)
    }
}

impl fmt::Display for Poly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Named(self, &|_| None).fmt(f)
    }
}

impl fmt::Display for Named<'_, Poly> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Named(poly, names) = *self;
        let mut terms = poly.terms();
        if terms.is_empty() {
            return f.write_str("0");
        }
        // The constant term is printed last.
        terms.sort_by_key(|(m, _)| m.is_empty());
        for (i, (m, c)) in terms.iter().enumerate() {
            match (i, *c < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let k = c.unsigned_abs();
            if m.is_empty() {
                write!(f, "{k}")?;
                continue;
            }
            if k != 1 {
                write!(f, "{k}*")?;
            }
            for (j, a) in m.iter().enumerate() {
                if j > 0 {
                    f.write_str("*")?;
                }
                let shown = Named(a, names);
                match a {
                    Atom::Div(..) | Atom::Mod(..) if m.len() > 1 || k != 1 => write!(f, "({shown})")?,
                    _ => shown.fmt(f)?,
                }
            }
        }
        Ok(())
    }
}
impl fmt::Debug for Poly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

impl Serialize for Poly {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.as_const() {
            Some(c) => s.serialize_i64(c),
            None => s.collect_str(self),
        }
    }
}
impl<'de> Deserialize<'de> for Poly {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Poly, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Text(String),
        }
        match Form::deserialize(d)? {
            Form::Number(n) => Ok(Poly::constant(n)),
            Form::Text(t) => Poly::parse(&t).map_err(serde::de::Error::custom),
        }
    }
}

const TOO_LARGE: &str = "an expression with too many terms";

struct Parser<'a> {
    s: &'a [u8],
    i: usize,
    depth: usize,
    atom: &'a dyn Fn(&str) -> Option<Atom>,
}

impl Parser<'_> {
    fn space(&mut self) {
        while self.s.get(self.i).is_some_and(u8::is_ascii_whitespace) {
            self.i += 1;
        }
    }
    fn eat(&mut self, c: u8) -> bool {
        self.space();
        let hit = self.s.get(self.i) == Some(&c);
        self.i += usize::from(hit);
        hit
    }
    fn expect(&mut self, c: u8) -> Result<(), String> {
        if self.eat(c) { Ok(()) } else { Err(format!("expected `{}` at column {}", c as char, self.i + 1)) }
    }
    fn sum(&mut self) -> Result<Poly, String> {
        self.depth += 1;
        if self.depth > 64 {
            return Err("expression nested too deeply".into());
        }
        let mut v = if self.eat(b'-') { -&self.product()? } else { self.product()? };
        loop {
            if self.eat(b'+') {
                v = &v + &self.product()?;
            } else if self.eat(b'-') {
                v = &v - &self.product()?;
            } else {
                self.depth -= 1;
                return Ok(v);
            }
        }
    }
    fn product(&mut self) -> Result<Poly, String> {
        let mut v = self.factor()?;
        loop {
            if v.is_too_large() {
                return Err(TOO_LARGE.into());
            }
            if self.eat(b'*') {
                v = &v * &self.factor()?;
            } else if self.eat(b'/') {
                if self.s.get(self.i) == Some(&b'/') {
                    self.i += 1;
                }
                let d = self.divisor()?;
                v = v.div(&d, &[]);
            } else if self.eat(b'%') {
                let d = self.divisor()?;
                v = v.modulo(&d, &[]);
            } else {
                return Ok(v);
            }
        }
    }
    fn divisor(&mut self) -> Result<Poly, String> {
        let d = self.factor()?;
        if d.as_const().is_some_and(|c| c <= 0) {
            return Err(format!("division by {d}"));
        }
        Ok(d)
    }
    fn number(&mut self) -> Result<i64, String> {
        let start = self.i;
        while self.s.get(self.i).is_some_and(u8::is_ascii_digit) {
            self.i += 1;
        }
        let t = std::str::from_utf8(&self.s[start..self.i]).unwrap_or_default();
        t.parse().map_err(|_| format!("`{t}` is not a number"))
    }
    fn factor(&mut self) -> Result<Poly, String> {
        self.space();
        match self.s.get(self.i) {
            Some(b'(') => {
                self.i += 1;
                let v = self.sum()?;
                self.expect(b')')?;
                Ok(v)
            }
            Some(b'%') => {
                self.i += 1;
                let n = self.number()?;
                Ok(Poly::atom(Atom::Var(u32::try_from(n).map_err(|e| e.to_string())?)))
            }
            Some(b'@') => {
                self.i += 1;
                let n = self.number()?;
                Ok(Poly::atom(Atom::Data(u32::try_from(n).map_err(|e| e.to_string())?)))
            }
            Some(c) if c.is_ascii_digit() => Ok(Poly::constant(self.number()?)),
            Some(c) if c.is_ascii_alphabetic() || *c == b'_' => {
                let start = self.i;
                while self
                    .s
                    .get(self.i)
                    .is_some_and(|c| c.is_ascii_alphanumeric() || *c == b'_' || *c == b'.')
                {
                    self.i += 1;
                }
                let name = std::str::from_utf8(&self.s[start..self.i]).unwrap_or_default().to_owned();
                if matches!(name.as_str(), "max" | "min") && self.eat(b'(') {
                    let a = self.sum()?;
                    self.expect(b',')?;
                    let b = self.sum()?;
                    self.expect(b')')?;
                    return Ok(if name == "max" { a.max_of(&b, &[]) } else { a.min_of(&b, &[]) });
                }
                Ok((self.atom)(&name).map_or_else(|| Poly::sym(&name), Poly::atom))
            }
            Some(c) => Err(format!("unexpected `{}` at column {}", *c as char, self.i + 1)),
            None => Err("unexpected end".into()),
        }
    }
}
