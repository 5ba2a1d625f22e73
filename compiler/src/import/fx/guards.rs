//! Conditions on the inputs as Python text: `L['past'][0][0].size()[2] == L['x'].size()[1] + 4`.

use super::expr::Expr;
use wgfc_ir::{Dim, Poly};

/// How deep expressions may be nested.
const DEPTH: usize = 64;

/// What two sizes must be to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Equal.
    Equal,
    /// Not equal.
    Different,
    /// The first at most the second.
    AtMost,
}

/// A condition that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    /// The left side.
    pub a: Dim,
    /// The right side.
    pub b: Dim,
    /// What they must be to each other.
    pub relation: Relation,
}

impl Guard {
    /// What an operator of Python says of two sizes.
    fn of(op: &str, a: Dim, b: Dim) -> Guard {
        let one = Poly::ONE;
        match op {
            "==" => Guard { a, b, relation: Relation::Equal },
            "!=" => Guard { a, b, relation: Relation::Different },
            "<=" => Guard { a, b, relation: Relation::AtMost },
            ">=" => Guard { a: b, b: a, relation: Relation::AtMost },
            "<" => Guard { a: &a + &one, b, relation: Relation::AtMost },
            _ => Guard { a: &b + &one, b: a, relation: Relation::AtMost },
        }
    }

    /// The conditions that an expression of sympy is, all of which must hold.
    ///
    /// # Errors
    /// What is not understood, in words.
    pub fn all(e: &Expr, symbols: &dyn Fn(&str) -> Dim) -> Result<Vec<Guard>, String> {
        let (head, args) = match e {
            Expr::Bool(true) => return Ok(vec![]),
            Expr::Call(head, args) => (head.as_str(), &args[..]),
            _ => return Err("it is no condition".into()),
        };
        let op = match (head, args) {
            ("And", _) => {
                let parts = args.iter().map(|a| Guard::all(a, symbols)).collect::<Result<Vec<_>, _>>()?;
                return Ok(parts.concat());
            }
            ("Equality", [_, _]) => "==",
            ("Unequality", [_, _]) => "!=",
            ("LessThan", [_, _]) => "<=",
            ("GreaterThan", [_, _]) => ">=",
            ("StrictLessThan", [_, _]) => "<",
            ("StrictGreaterThan", [_, _]) => ">",
            _ => return Err(format!("`{head}` is not understood")),
        };
        Ok(vec![Guard::of(op, args[0].size(symbols)?, args[1].size(symbols)?)])
    }
}

/// A step from an argument to what is in it: a key or a position.
pub type Path = Vec<String>;

/// Reads a condition: conditions of which one must hold. `size` gives an axis of the input at a path.
///
/// # Errors
/// What is not understood, in words.
pub fn parse(text: &str, size: &dyn Fn(&Path, usize) -> Option<Dim>) -> Result<Vec<Guard>, String> {
    let mut p = Parser { text, at: 0, size };
    let mut either = vec![];
    loop {
        let a = p.sum(0)?;
        p.space();
        let operators = ["==", "!=", "<=", ">=", "<", ">"];
        let op = operators.into_iter().find(|o| p.rest().starts_with(o)).ok_or("it compares nothing")?;
        p.at += op.len();
        either.push(Guard::of(op, a, p.sum(0)?));
        if !p.eat("or ") {
            break;
        }
    }
    p.space();
    if p.at < text.len() {
        return Err(format!("`{}` is left over", &text[p.at..]));
    }
    Ok(either)
}

/// Reads an expression of plain names: `2*s39`.
///
/// # Errors
/// What is not understood, in words.
pub fn expression(text: &str) -> Result<Dim, String> {
    let mut p = Parser { text, at: 0, size: &|_, _| None };
    let d = p.sum(0)?;
    p.space();
    if p.at < text.len() { Err(format!("`{}` is left over", &text[p.at..])) } else { Ok(d) }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    size: &'t dyn Fn(&Path, usize) -> Option<Dim>,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn eat(&mut self, word: &str) -> bool {
        self.space();
        let found = self.rest().starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        if self.eat(word) {
            Ok(())
        } else {
            Err(format!("`{word}` is expected before `{}`", self.rest().chars().take(24).collect::<String>()))
        }
    }

    fn word(&mut self, of: impl Fn(char) -> bool) -> String {
        self.space();
        let word: String = self.rest().chars().take_while(|c| of(*c)).collect();
        self.at += word.len();
        word
    }

    fn sum(&mut self, depth: usize) -> Result<Dim, String> {
        if depth > DEPTH {
            return Err(format!("it is nested more than {DEPTH} deep"));
        }
        let mut total = self.product(depth)?;
        loop {
            if self.eat("+") {
                total = &total + &self.product(depth)?;
            } else if self.eat("-") {
                total = &total - &self.product(depth)?;
            } else {
                return Ok(total);
            }
        }
    }

    fn product(&mut self, depth: usize) -> Result<Dim, String> {
        let mut total = self.factor(depth)?;
        loop {
            if self.eat("**") {
                let n = self.factor(depth)?.as_const().filter(|n| (0..=8).contains(n));
                let n = n.ok_or("a power that is no small number")?;
                total = (0..n).fold(Poly::ONE, |p, _| &p * &total);
            } else if self.eat("*") {
                total = &total * &self.factor(depth)?;
            } else if self.eat("//") {
                total = total.div(&self.factor(depth)?, &[]);
            } else if self.eat("%") {
                total = total.modulo(&self.factor(depth)?, &[]);
            } else {
                return Ok(total);
            }
            if total.is_too_large() {
                return Err("it is too large an expression".into());
            }
        }
    }

    fn factor(&mut self, depth: usize) -> Result<Dim, String> {
        if self.eat("(") {
            let inside = self.sum(depth + 1)?;
            self.expect(")")?;
            return Ok(inside);
        }
        if self.eat("-") {
            if depth > DEPTH {
                return Err(format!("it is nested more than {DEPTH} deep"));
            }
            return Ok(-&self.factor(depth + 1)?);
        }
        let digits = self.word(|c| c.is_ascii_digit());
        if !digits.is_empty() {
            return digits.parse().map(Poly::constant).map_err(|_| format!("`{digits}` is too large"));
        }
        if self.rest().starts_with("L[") {
            return self.size();
        }
        let name = self.word(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
        let name = name.strip_prefix("torch.sym_").unwrap_or(&name);
        match name {
            "" => Err(format!("`{}` is not understood", self.rest().chars().take(24).collect::<String>())),
            "max" | "min" | "Max" | "Min" => {
                self.expect("(")?;
                let mut all = self.sum(depth + 1)?;
                while self.eat(",") {
                    let next = self.sum(depth + 1)?;
                    all = if name.eq_ignore_ascii_case("max") {
                        all.max_of(&next, &[])
                    } else {
                        all.min_of(&next, &[])
                    };
                }
                self.expect(")")?;
                Ok(all)
            }
            _ if self.rest().starts_with('(') => Err(format!("`{name}` is not understood")),
            _ if name.contains('.') => Err(format!("`{name}` is not understood")),
            _ => Ok(Poly::sym(name)),
        }
    }

    /// `L['past'][0][0].size()[2]`.
    fn size(&mut self) -> Result<Dim, String> {
        self.expect("L")?;
        let mut path = vec![];
        while self.eat("[") {
            let quote = self.rest().chars().next().filter(|c| matches!(c, '\'' | '"'));
            let key = match quote {
                Some(q) => {
                    self.at += 1;
                    let end = self.rest().find(q).ok_or("a text without an end")?;
                    let key = self.rest()[..end].to_owned();
                    self.at += end + 1;
                    key
                }
                None => self.word(|c| c.is_ascii_alphanumeric() || c == '_'),
            };
            path.push(key);
            self.expect("]")?;
        }
        self.expect(".size()[")?;
        let axis = self.word(|c| c.is_ascii_digit());
        self.expect("]")?;
        let axis = axis.parse().map_err(|_| "an axis that is no number")?;
        (self.size)(&path, axis).ok_or_else(|| format!("`{}` has no such axis", path.join(".")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<Guard>, String> {
        parse(text, &|path, axis| Some(Poly::sym(&format!("{}_{axis}", path.join("_")))))
    }

    fn read(text: &str) -> Result<Guard, String> {
        all(text).map(|g| g.into_iter().next().unwrap())
    }

    #[test]
    fn conditions_are_read() {
        let g = read("L['past'][0][1].size()[2] + L['x'].size()[1] + ((-1)*L['m'].size()[1]) <= 0").unwrap();
        assert_eq!((g.a.to_string(), g.relation), ("-m_1 + past_0_1_2 + x_1".into(), Relation::AtMost));
        let g = read("(L['x'].size()[1] // 2) == 4").unwrap();
        assert_eq!(
            (g.a.to_string(), g.b.to_string(), g.relation),
            ("x_1/2".into(), "4".into(), Relation::Equal)
        );
        let g = read("L['x'].size()[0] > 3").unwrap();
        assert_eq!(
            (g.a.to_string(), g.b.to_string(), g.relation),
            ("4".into(), "x_0".into(), Relation::AtMost)
        );
        let g = all("torch.sym_max(1, L['x'].size()[0]) == 4 or L['x'].size()[1] == 1").unwrap();
        let texts: Vec<_> = g.iter().map(|g| format!("{} {}", g.a, g.b)).collect();
        assert_eq!(texts, ["max(1, x_0) 4", "x_1 1"]);
        assert_eq!(expression("2*s39").unwrap().to_string(), "2*s39");
    }

    #[test]
    fn conditions_of_sympy_are_read() {
        let e = super::super::expr::parse(
            "And(StrictLessThan(Symbol('u0'), Integer(4)), Unequality(Symbol('s0'), Integer(1)))",
        );
        let guards = Guard::all(&e.unwrap(), &|s| Poly::sym(s)).unwrap();
        let texts: Vec<_> = guards.iter().map(|g| (g.a.to_string(), g.b.to_string(), g.relation)).collect();
        let wanted =
            [("u0 + 1".into(), "4".into(), Relation::AtMost), ("s0".into(), "1".into(), Relation::Different)];
        assert_eq!(texts, wanted);
        assert!(Guard::all(&Expr::Call("Or".into(), vec![]), &|s| Poly::sym(s)).is_err());
    }

    #[test]
    fn what_is_not_read_is_an_error() {
        let good = "L['past'][0].size()[2] == L['x'].size()[1] + 4";
        for end in 0..good.len() - 1 {
            _ = read(&good[..end]);
        }
        assert!(read("math.pi == 3").is_err());
        assert!(read("__import__('os').system('ls') == 1").is_err());
        assert!(read(&format!("{}1 == 1", "(".repeat(100_000))).unwrap_err().contains("deep"));
        assert!(read(&format!("{}1 == 1", "-".repeat(100_000))).unwrap_err().contains("deep"));
        assert!(read("L['x'].size()[1]").unwrap_err().contains("compares"));
    }
}
