//! Conditions on the inputs as Python text: `L['past'][0][0].size()[2] == L['x'].size()[1] + 4`.

use super::expr::{self, Expr};
use wgfc_ir::{Dim, Poly};

/// The deepest nesting of an expression.
const DEPTH: usize = 64;

/// The relation that two sizes must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Equal.
    Equal,
    /// Not equal.
    Different,
    /// The first is less than or equal to the second.
    AtMost,
}

/// A condition on two sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    /// The left side.
    pub a: Dim,
    /// The right side.
    pub b: Dim,
    /// The relation that they must have.
    pub relation: Relation,
}

impl Guard {
    /// The guard for a comparison operator of Python, such as `<`, between two sizes.
    pub fn of(op: &str, a: Dim, b: Dim) -> Guard {
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

    /// 1 where it holds, else 0.
    pub fn truth(&self) -> Dim {
        let difference = &self.b - &self.a;
        match self.relation {
            Relation::Equal => difference.is_zero(),
            Relation::Different => &Poly::ONE - &difference.is_zero(),
            Relation::AtMost => (&difference + 1).above_zero(),
        }
    }

    /// Splits an expression into conditions that must all hold.
    ///
    /// # Errors
    /// A message about the part of the expression that cannot be read.
    pub fn all(e: &Expr, symbols: &dyn Fn(&str) -> Dim) -> Result<Vec<Guard>, String> {
        match e.conditions(symbols)? {
            Some(all) => Ok(all),
            None => Ok(vec![Guard { a: Poly::ONE, b: e.truth(symbols)?, relation: Relation::AtMost }]),
        }
    }
}

/// The way from the arguments to a tensor in them: keys and positions, as in `['past'][0][0]`.
pub type Path = Vec<String>;

/// Parses a condition. `size` returns the extent of an axis of the input at a path.
///
/// # Errors
/// A message about the part of the expression that cannot be read.
pub fn parse(text: &str, size: &dyn Fn(&Path, usize) -> Option<Dim>) -> Result<Vec<Guard>, String> {
    let e = read(text, size)?;
    match e {
        Expr::Bool(_) => {}
        Expr::Call(ref head, _) if expr::is_condition(head) => {}
        _ => return Err("the expression is not a comparison".into()),
    }
    let all = Guard::all(&e, &|s| Poly::sym(s))?;
    match all.iter().any(|g| g.a.is_too_large() || g.b.is_too_large()) {
        true => Err("the expression is too large".into()),
        false => Ok(all),
    }
}

/// Parses an expression over names, such as `2*s39`; `symbols` returns the value of each name.
///
/// # Errors
/// A message about the part of the expression that cannot be read.
pub fn expression(text: &str, symbols: &dyn Fn(&str) -> Dim) -> Result<Dim, String> {
    read(text, &|_, _| None)?.size(symbols)
}

fn read(text: &str, size: &dyn Fn(&Path, usize) -> Option<Dim>) -> Result<Expr, String> {
    let mut p = Parser { text, at: 0, size };
    let e = p.level(0, 0)?;
    p.space();
    if p.at < text.len() { Err(format!("`{}` is left over", &text[p.at..])) } else { Ok(e) }
}

/// The binary operators of Python with their names in sympy, by precedence, the lowest first.
const LEVELS: [&[(&str, &str)]; 9] = [
    &[("or ", "Or")],
    &[("and ", "And")],
    &[
        ("==", "Equality"),
        ("!=", "Unequality"),
        ("<=", "LessThan"),
        (">=", "GreaterThan"),
        ("<", "StrictLessThan"),
        (">", "StrictGreaterThan"),
    ],
    &[("|", "BitwiseFn_bitwise_or")],
    &[("^", "BitwiseFn_bitwise_xor")],
    &[("&", "BitwiseFn_bitwise_and")],
    &[("<<", "LShift"), (">>", "RShift")],
    &[("+", "Add"), ("-", "Sub")],
    &[("//", "FloorDiv"), ("/", "IntTrueDiv"), ("%", "PythonMod"), ("*", "Mul")],
];
/// The precedence of `not`: an index into [`LEVELS`].
const NOT: usize = 2;

/// The name in sympy of a function of Python or torch.
fn function(name: &str) -> &str {
    let name = name.strip_prefix("torch.sym_").or(name.strip_prefix("torch._sym_")).unwrap_or(name);
    match name.strip_prefix("math.").unwrap_or(name) {
        "trunc" | "int" => "TruncToInt",
        "floor" => "FloorToInt",
        "ceil" => "CeilToInt",
        "round" => "RoundToInt",
        "float" => "ToFloat",
        "max" => "Max",
        "min" => "Min",
        "abs" => "Abs",
        "sum" => "Add",
        "not" => "Not",
        "ite" => "Where",
        "sqrt" => "OpaqueUnaryFn_sqrt",
        name => name,
    }
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

    /// Consumes an operator of this precedence, if one follows.
    fn operator(&mut self, level: usize) -> Option<&'static str> {
        self.space();
        // `**` is not a product, and `<<` and `>>` are not comparisons.
        if self.rest().starts_with("**")
            || level == NOT && ["<<", ">>"].iter().any(|o| self.rest().starts_with(o))
        {
            return None;
        }
        let (sign, name) = LEVELS[level].iter().find(|(sign, _)| self.rest().starts_with(sign))?;
        self.at += sign.len();
        Some(name)
    }

    fn level(&mut self, level: usize, depth: usize) -> Result<Expr, String> {
        if depth > DEPTH {
            return Err(format!("it is nested more than {DEPTH} deep"));
        }
        if level == NOT && self.eat("not ") {
            return Ok(Expr::Call("Not".into(), vec![self.level(level, depth + 1)?]));
        }
        if level == LEVELS.len() {
            return self.power(depth);
        }
        let mut e = self.level(level + 1, depth)?;
        let mut sum = vec![];
        while let Some(name) = self.operator(level) {
            let next = self.level(level + 1, depth)?;
            match name {
                // The terms of a sum are the arguments of one `Add`, so that long sums are not nested deeply.
                "Add" => sum.push(next),
                "Sub" => sum.push(Expr::Call("Mul".into(), vec![Expr::Int(-1), next])),
                "Or" | "And" if matches!(&e, Expr::Call(head, _) if head == name) => {
                    if let Expr::Call(_, args) = &mut e {
                        args.push(next);
                    }
                }
                _ => e = Expr::Call(name.into(), vec![e, next]),
            }
            if LEVELS[level][0].0 == "==" {
                break;
            }
        }
        if !sum.is_empty() {
            sum.insert(0, e);
            e = Expr::Call("Add".into(), sum);
        }
        Ok(e)
    }

    fn power(&mut self, depth: usize) -> Result<Expr, String> {
        if self.eat("-") {
            if depth > DEPTH {
                return Err(format!("it is nested more than {DEPTH} deep"));
            }
            return Ok(match self.power(depth + 1)? {
                Expr::Int(n) => Expr::Int(-n),
                Expr::Float(x) => Expr::Float(-x),
                e => Expr::Call("Mul".into(), vec![Expr::Int(-1), e]),
            });
        }
        let base = self.atom(depth)?;
        match self.eat("**") {
            true => Ok(Expr::Call("FloatPow".into(), vec![base, self.power(depth + 1)?])),
            false => Ok(base),
        }
    }

    fn atom(&mut self, depth: usize) -> Result<Expr, String> {
        if self.eat("(") {
            let inside = self.level(0, depth + 1)?;
            self.expect(")")?;
            return Ok(inside);
        }
        let number = self.word(|c| c.is_ascii_digit() || c == '.');
        if !number.is_empty() {
            let exponent = self.rest().strip_prefix('e').map(|r| {
                let signed = r.strip_prefix(['-', '+']).unwrap_or(r);
                let digits = signed.chars().take_while(char::is_ascii_digit).count();
                if digits == 0 { 0 } else { 1 + (r.len() - signed.len()) + digits }
            });
            let end = exponent.unwrap_or(0);
            let number = format!("{number}{}", &self.rest()[..end]);
            self.at += end;
            return match number.contains(['.', 'e']) {
                true => number.parse().map(Expr::Float).map_err(|_| format!("`{number}` is not a number")),
                false => number.parse().map(Expr::Int).map_err(|_| format!("`{number}` is too large")),
            };
        }
        if self.rest().starts_with("L[") {
            return self.size().map(Expr::Size);
        }
        let name = self.word(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
        if name.is_empty() {
            return Err(format!("`{}` is not understood", self.rest().chars().take(24).collect::<String>()));
        }
        if !self.eat("(") {
            return match name.as_str() {
                "True" => Ok(Expr::Bool(true)),
                "False" => Ok(Expr::Bool(false)),
                _ if name.contains('.') => Err(format!("`{name}` is not understood")),
                _ => Ok(Expr::Symbol(name)),
            };
        }
        let mut args = vec![];
        while !self.eat(")") {
            if !args.is_empty() {
                self.expect(",")?;
            }
            // Arguments may be lists or `None`: `torch.sym_sum([a, b])`, `round(x, None)`.
            if self.eat("[") {
                while !self.eat("]") {
                    if !args.is_empty() {
                        self.expect(",")?;
                    }
                    args.push(self.level(0, depth + 1)?);
                }
            } else if !self.eat("None") {
                args.push(self.level(0, depth + 1)?);
            }
        }
        Ok(Expr::Call(function(&name).into(), args))
    }

    /// Parses an extent of an input: `L['past'][0][0].size()[2]`.
    fn size(&mut self) -> Result<Dim, String> {
        self.expect("L")?;
        let mut path = vec![];
        while self.eat("[") {
            let quote = self.rest().chars().next().filter(|c| matches!(c, '\'' | '"'));
            let key = match quote {
                Some(q) => {
                    self.at += 1;
                    let end = self.rest().find(q).ok_or("a string without an end")?;
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
        let axis = axis.parse().map_err(|_| "the axis is not a number")?;
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
        assert_eq!(expression("2*s39", &|s| Poly::sym(s)).unwrap().to_string(), "2*s39");
    }

    #[test]
    fn conditions_mean_what_python_means() {
        // The values of a size from 0 to 40 for which each condition holds.
        type Holds = fn(i64) -> bool;
        let cases: [(&str, Holds); 17] = [
            ("torch.sym_max(1, L['x'].size()[0]) == 4 or L['x'].size()[0] == 1", |n| n.max(1) == 4 || n == 1),
            ("(L['x'].size()[0] % 2) != 0", |n| n % 2 != 0),
            ("L['x'].size()[0] % -5 == -2", |n| n % 5 == 3),
            ("math.trunc(0.5*torch.sym_float(L['x'].size()[0])) == 6", |n| n / 2 == 6),
            ("math.ceil((L['x'].size()[0] / 4)) == 3", |n| (n + 3) / 4 == 3),
            ("math.trunc(torch.sym_float(L['x'].size()[0]) ** 0.5) == 3", |n| (9..16).contains(&n)),
            ("not (L['x'].size()[0] < 7) and L['x'].size()[0] != 9", |n| n >= 7 && n != 9),
            ("torch.sym_min(8, L['x'].size()[0] - 3) >= 5", |n| (n - 3).min(8) >= 5),
            ("math.floor((L['x'].size()[0] - 20) / 3.0) < -2", |n| (n - 20).div_euclid(3) < -2),
            ("round((L['x'].size()[0] / 2), None) == 6", |n| n == 11 || n == 12 || n == 13),
            ("2*L['x'].size()[0]**2 - 3*(L['x'].size()[0] + 1) > 0", |n| 2 * n * n - 3 * (n + 1) > 0),
            ("(L['x'].size()[0] & 3 | 8) << 1 == 22", |n| ((n & 3) | 8) << 1 == 22),
            ("L['x'].size()[0] / 3 > 1.5", |n| n >= 5),
            ("10.0*torch.sym_float(3*L['x'].size()[0]) ** 0.145 > 15.0", |n| n >= 6),
            ("((1.0 / (torch.sym_float(L['x'].size()[0]) ** 0.5))) >= 0.0", |_| true),
            ("0.3 >= (1.0 / (torch.sym_float(L['x'].size()[0]) ** 0.5))", |n| n >= 12),
            ("(L['x'].size()[0] == 3 or L['x'].size()[0] > 20) and L['x'].size()[0] < 30", |n| {
                n == 3 || (21..30).contains(&n)
            }),
        ];
        for (text, holds) in cases {
            let guards = all(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            for n in 0..40 {
                let at = |d: &Dim| d.eval_syms(&|_| Some(n)).unwrap();
                let here = guards.iter().all(|g| match g.relation {
                    Relation::Equal => at(&g.a) == at(&g.b),
                    Relation::Different => at(&g.a) != at(&g.b),
                    Relation::AtMost => at(&g.a) <= at(&g.b),
                });
                assert_eq!(here, holds(n), "{text} at {n}: {guards:?}");
                assert!(guards.iter().all(|g| at(&g.truth()) <= 1));
                assert_eq!(guards.iter().all(|g| at(&g.truth()) == 1), holds(n), "{text} at {n}");
            }
        }
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
        assert!(read("L['x'].size()[1]").unwrap_err().contains("comparison"));
    }
}
