//! Expressions of sizes, as sympy's `srepr` prints them: `Add(Mul(Integer(2), Symbol('s0')), Integer(-1))`.

use super::guards::Guard;
use super::threshold;
use wgfc_ir::{Dim, Poly};

/// The deepest nesting of an expression.
const DEPTH: usize = 64;

/// The tree of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A symbol.
    Symbol(String),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A bool.
    Bool(bool),
    /// An operand that is already known as a size.
    Size(Dim),
    /// A function by its name in sympy, with its arguments.
    Call(String, Vec<Expr>),
}

/// Parses an expression.
///
/// # Errors
/// A message about the part of the expression that cannot be read.
pub fn parse(text: &str) -> Result<Expr, String> {
    let mut p = Parser { text, at: 0 };
    let e = p.expr(0)?;
    p.space();
    if p.at < text.len() {
        return Err(format!("`{}` is left over behind an expression", p.rest(24)));
    }
    Ok(e)
}

/// Parses a size; `symbols` returns the value of each symbol.
///
/// # Errors
/// A message about the part of the expression that cannot be read.
pub fn size(text: &str, symbols: &dyn Fn(&str) -> Dim) -> Result<Dim, String> {
    // Up to torch 2.5 sizes are printed as Python, not by `srepr`.
    if !text.contains('(') || !text.starts_with(|c: char| c.is_ascii_uppercase()) {
        return super::guards::expression(text, symbols);
    }
    parse(text)?.size(symbols)
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

    /// Consumes the longest prefix of characters that `of` accepts.
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

    /// Skips a symbol's assumptions, `positive=True, integer=True`, after a comma.
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
        // `true`, `false` and constants such as `pi` have no parentheses.
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
                Expr::Float(n.parse().map_err(|_| format!("`{n}` is not a number"))?)
            }
            "Rational" => {
                let part = |p: &mut Self| {
                    let n = p.word(|c| c.is_ascii_digit() || c == '-');
                    n.parse::<i64>().map_err(|_| format!("`{n}` is no 64-bit integer"))
                };
                let over = part(self)?;
                self.expect(',')?;
                Expr::Call("IntTrueDiv".into(), vec![Expr::Int(over), Expr::Int(part(self)?)])
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

/// A quotient of sizes, `over / under`, which torch computes in f64. Rounding the exact fraction to an integer gives the same result as
/// torch's; expressions for which this is not certain are refused.
struct Fraction {
    over: Dim,
    /// The denominator; positive if it is a constant.
    under: Dim,
}

impl Fraction {
    fn whole(d: Dim) -> Fraction {
        Fraction { over: d, under: Dim::ONE }
    }

    /// Whether f64 divides by the denominator without rounding.
    fn is_exact(&self) -> bool {
        self.under.as_const().is_some_and(|u| u > 0 && u & (u - 1) == 0)
    }

    /// The denominator, which must be a constant.
    fn known_under(&self) -> Result<i64, String> {
        let known = self.under.as_const().filter(|u| (1..1 << 30).contains(u));
        known.ok_or_else(|| {
            "a sum or product with a quotient whose divisor is not a constant below 2^30".into()
        })
    }

    /// Two fractions with a common denominator: both numerators, and the denominator.
    fn common(&self, other: &Fraction) -> Result<(Dim, Dim, i64), String> {
        let (a, b) = (self.known_under()?, other.known_under()?);
        if a == b {
            return Ok((self.over.clone(), other.over.clone(), a));
        }
        let under = a.checked_mul(b).filter(|u| *u < 1 << 40).ok_or("fractions with too many digits")?;
        Ok((&self.over * b, &other.over * a, under))
    }

    fn plus(&self, other: &Fraction) -> Result<Fraction, String> {
        if !self.is_exact() && !other.is_exact() {
            return Err("a sum of two quotients that have both been rounded".into());
        }
        let (a, b, under) = self.common(other)?;
        Ok(Fraction { over: &a + &b, under: under.into() })
    }

    fn times(&self, other: &Fraction) -> Result<Fraction, String> {
        let (a, b) = (self.known_under()?, other.known_under()?);
        // If a factor shares a divisor with a rounded quotient's denominator, the exact product may be an integer that f64 misses.
        let misses = |rounded: &Fraction, by: &Fraction, under: i64| {
            let odd = under >> under.trailing_zeros();
            let factor = by.over.as_const().map(|c| c.unsigned_abs());
            !rounded.is_exact() && factor.is_none_or(|c| gcd(c, odd.unsigned_abs()) != 1)
        };
        if misses(self, other, a) || misses(other, self, b) || !self.is_exact() && !other.is_exact() {
            return Err("a product with a quotient that has been rounded".into());
        }
        let under = a.checked_mul(b).filter(|u| *u < 1 << 40).ok_or("factors with too many digits")?;
        Ok(Fraction { over: &self.over * &other.over, under: under.into() })
    }

    fn divided_by(&self, d: &Fraction) -> Result<Fraction, String> {
        if !d.is_exact() {
            return Err("a quotient by one that has been rounded".into());
        }
        let scale = d.known_under()?;
        Ok(match d.over.as_const() {
            Some(0) => return Err("a division by 0".into()),
            Some(c) => {
                let by = c.checked_abs().filter(|c| *c < 1 << 30).ok_or("a divisor with too many digits")?;
                let under = self.known_under()?.checked_mul(by).ok_or("a divisor with too many digits")?;
                Fraction { over: &self.over * (scale * c.signum()), under: under.into() }
            }
            None if self.under.is(1) && scale == 1 => {
                Fraction { over: self.over.clone(), under: d.over.clone() }
            }
            None => return Err("a quotient by a size that is not a constant".into()),
        })
    }

    fn max_or_min(&self, other: &Fraction, larger: bool) -> Result<Fraction, String> {
        let (a, b, under) = self.common(other)?;
        let over = if larger { a.max_of(&b, &[]) } else { a.min_of(&b, &[]) };
        Ok(Fraction { over, under: under.into() })
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Rounds a fraction by a function of sympy (`FloorToInt`, `CeilToInt`, …).
fn to_whole(head: &str, f: &Fraction) -> Option<Dim> {
    Some(match head {
        "TruncToInt" => f.over.trunc_div(&f.under),
        "FloorToInt" => f.over.floor_div(&f.under),
        "CeilToInt" => f.over.ceiling_div(&f.under),
        "RoundToInt" => f.over.round_div(&f.under),
        _ => return None,
    })
}

/// The comparison operator of Python for a relation of sympy.
pub fn comparison(head: &str) -> Option<&'static str> {
    Some(match head {
        "Equality" | "Eq" => "==",
        "Unequality" | "Ne" => "!=",
        "LessThan" | "Le" => "<=",
        "GreaterThan" | "Ge" => ">=",
        "StrictLessThan" | "Lt" => "<",
        "StrictGreaterThan" | "Gt" => ">",
        _ => return None,
    })
}

/// The size that a node computes from sizes (`_operator.floordiv`, `math.trunc`); `None` for operators that are not known.
pub fn of_operator(target: &str, mut args: Vec<Expr>) -> Option<Expr> {
    let minus = |e: Expr| Expr::Call("Mul".into(), vec![Expr::Int(-1), e]);
    let head = match (target, args.len()) {
        // With a constant operand, this node stands for an operator that torch does not serialise (the Python package writes it).
        ("_operator.neg", 1) if !matches!(args[0], Expr::Int(_)) => return args.pop().map(minus),
        ("_operator.sub", 2) => {
            let b = args.pop().map(minus)?;
            args.push(b);
            "Add"
        }
        ("_operator.add", 2) => "Add",
        ("_operator.mul", 2) => "Mul",
        ("_operator.floordiv", 2) if args[1] == Expr::Int(1) => {
            args.pop();
            "FloorToInt"
        }
        ("_operator.floordiv", 2) => "FloorDiv",
        ("_operator.mod", 2) => "PythonMod",
        ("_operator.truediv", 2) => "IntTrueDiv",
        ("_operator.pow", 2) => "FloatPow",
        ("_operator.and_", 2) => "BitwiseFn_bitwise_and",
        ("_operator.or_", 2) => "BitwiseFn_bitwise_or",
        ("_operator.lshift", 2) => "LShift",
        ("_operator.rshift", 2) => "RShift",
        ("torch.sym_max", 2) => "Max",
        ("torch.sym_min", 2) => "Min",
        ("torch.sym_float", 1) => "ToFloat",
        ("math.trunc" | "torch.sym_int", 1) => "TruncToInt",
        _ => return None,
    };
    Some(Expr::Call(head.into(), args))
}

/// Whether a function of sympy's is a condition.
pub fn is_condition(head: &str) -> bool {
    comparison(head).is_some() || matches!(head, "And" | "Or" | "Not")
}

impl Expr {
    /// Whether the expression rounds towards 0.
    pub fn truncates(&self) -> bool {
        matches!(self, Expr::Call(head, args) if head == "TruncToInt" || args.iter().any(Expr::truncates))
    }

    /// The value of the expression as a size.
    ///
    /// # Errors
    /// A message about the part that is no size.
    pub fn size(&self, symbols: &dyn Fn(&str) -> Dim) -> Result<Dim, String> {
        let d = self.unbounded_size(symbols)?;
        if d.is_too_large() { Err("the expression is too large".into()) } else { Ok(d) }
    }

    fn unbounded_size(&self, symbols: &dyn Fn(&str) -> Dim) -> Result<Dim, String> {
        let (head, args) = match self {
            Expr::Symbol(s) => return Ok(symbols(s)),
            Expr::Int(n) => return Ok(Poly::constant(*n)),
            Expr::Size(d) => return Ok(d.clone()),
            Expr::Float(x) if x.fract() == 0.0 && x.abs() < 2f64.powi(53) => {
                return Ok(Poly::constant(*x as i64));
            }
            Expr::Float(x) => return Err(format!("{x} is not a size")),
            Expr::Bool(b) => return Err(format!("{b} is not a size")),
            Expr::Call(head, args) => (head.as_str(), args),
        };
        let unknown = || format!("`{head}` of {} operands in a size is not understood", args.len());
        match (head, &args[..]) {
            ("TruncToInt" | "FloorToInt" | "CeilToInt" | "RoundToInt", [a]) => {
                return to_whole(head, &a.fraction(symbols)?).ok_or_else(unknown);
            }
            ("Where", [c, a, b]) => {
                let (c, a, b) = (c.truth(symbols)?, a.size(symbols)?, b.size(symbols)?);
                return Ok(&(&c * &a) + &(&(&Poly::ONE - &c) * &b));
            }
            // A Piecewise has the value of the first pair whose condition holds.
            ("Piecewise", pairs) => {
                let mut value = Poly::ZERO;
                for pair in pairs.iter().rev() {
                    let Expr::Call(_, pair) = pair else { return Err(unknown()) };
                    let [v, c] = &pair[..] else { return Err(unknown()) };
                    let (v, c) = (v.size(symbols)?, c.truth(symbols)?);
                    value = &(&c * &v) + &(&(&Poly::ONE - &c) * &value);
                }
                return Ok(value);
            }
            ("CastBoolToInt" | "cast_symbool_to_symint_guardless", [c]) => return c.truth(symbols),
            _ if args.is_empty() || comparison(head).is_some() => return Err(unknown()),
            _ => {}
        }
        let sizes = args.iter().map(|a| a.size(symbols)).collect::<Result<Vec<Dim>, String>>()?;
        let fold = |f: &dyn Fn(&Dim, &Dim) -> Dim| sizes[1..].iter().fold(sizes[0].clone(), |a, b| f(&a, b));
        let bits = |a: &Dim, b: &Dim| match (a.as_const(), b.as_const()) {
            (_, Some(mask)) => Some((a.clone(), mask, a.bit_and(mask)?)),
            (Some(mask), _) => Some((b.clone(), mask, b.bit_and(mask)?)),
            _ => None,
        };
        let power = |n: &Dim| n.as_const().filter(|n| (0..=8).contains(n));
        let shift = |n: &Dim| n.as_const().filter(|n| (0..31).contains(n)).map(|n| Poly::constant(1 << n));
        Ok(match (head, &sizes[..]) {
            ("Add", _) => sizes.iter().cloned().sum(),
            ("Mul", _) => sizes.iter().cloned().product(),
            ("Min", _) => fold(&|a, b| a.min_of(b, &[])),
            ("Max", _) => fold(&|a, b| a.max_of(b, &[])),
            ("Pow" | "PowByNatural" | "FloatPow", [base, exponent]) => match power(exponent) {
                Some(n) => (0..n).fold(Poly::ONE, |p, _| &p * base),
                None => {
                    return Err(format!(
                        "a size to the power {exponent}; only constants 0 to 8 are supported"
                    ));
                }
            },
            ("FloorDiv" | "CleanDiv" | "PythonFloorDiv", [a, b]) => a.floor_div(b),
            ("CeilDiv", [a, b]) => a.ceiling_div(b),
            ("Mod" | "PythonMod", [a, b]) => a.floor_mod(b),
            ("ModularIndexing", [a, b, c]) => a.floor_div(b).floor_mod(c),
            ("Abs", [a]) => a.magnitude(),
            ("sign", [a]) => &a.above_zero() - &(-a).above_zero(),
            ("LShift", [a, n]) => a * &shift(n).ok_or_else(unknown)?,
            ("RShift", [a, n]) => a.floor_div(&shift(n).ok_or_else(unknown)?),
            ("BitwiseFn_bitwise_and", [a, b]) => bits(a, b).ok_or_else(unknown)?.2,
            ("BitwiseFn_bitwise_or", [a, b]) => {
                let (x, mask, both) = bits(a, b).ok_or_else(unknown)?;
                &(&x + mask) - &both
            }
            ("BitwiseFn_bitwise_xor", [a, b]) => {
                let (x, mask, both) = bits(a, b).ok_or_else(unknown)?;
                &(&x + mask) - &(&both * 2)
            }
            // Conversions to float and back keep integers.
            ("ToFloat" | "Identity" | "TruncToFloat", [a]) => a.clone(),
            _ => return Err(unknown()),
        })
    }

    /// The expression as a fraction of sizes.
    fn fraction(&self, symbols: &dyn Fn(&str) -> Dim) -> Result<Fraction, String> {
        let (head, args) = match self {
            Expr::Float(x) => {
                // Factors have denominators of a few bits, so that their products with sizes are exact.
                let exact = |bits: &u32| (x * f64::from(1u32 << bits)).fract() == 0.0;
                let bits = (0..=16).find(exact).filter(|_| x.abs() < 1e6);
                let bits = bits.ok_or_else(|| {
                    format!("the factor {x} in a size, which f64 multiplies with rounding, is not understood")
                })?;
                let over = Dim::from((x * f64::from(1u32 << bits)) as i64);
                return Ok(Fraction { over, under: (1i64 << bits).into() });
            }
            Expr::Call(head, args) if !args.is_empty() => (head.as_str(), &args[..]),
            e => return e.size(symbols).map(Fraction::whole),
        };
        let of = |a: &Expr| a.fraction(symbols);
        let fold = |f: &dyn Fn(&Fraction, &Fraction) -> Result<Fraction, String>| {
            args[1..].iter().try_fold(of(&args[0])?, |a, b| f(&a, &of(b)?))
        };
        match (head, args) {
            ("Add", _) => fold(&Fraction::plus),
            ("Mul", _) => fold(&Fraction::times),
            ("Max", _) => fold(&|a, b| a.max_or_min(b, true)),
            ("Min", _) => fold(&|a, b| a.max_or_min(b, false)),
            ("IntTrueDiv" | "FloatTrueDiv", [a, b]) => of(a)?.divided_by(&of(b)?),
            ("ToFloat" | "Identity", [a]) => of(a),
            _ => self.size(symbols).map(Fraction::whole),
        }
    }

    /// The `n` of an integer square root, written `TruncToInt(FloatPow(ToFloat(n), 0.5))`.
    fn square_root_operand(&self, symbols: &dyn Fn(&str) -> Dim) -> Option<Dim> {
        let Expr::Call(head, args) = self else { return None };
        let [Expr::Call(root, of)] = &args[..] else { return None };
        let root = match (root.as_str(), &of[..]) {
            ("FloatPow" | "Pow", [x, Expr::Float(0.5)]) | ("OpaqueUnaryFn_sqrt", [x]) => x,
            _ => return None,
        };
        matches!(head.as_str(), "TruncToInt" | "FloorToInt").then(|| root.size(symbols).ok())?
    }

    /// Splits the comparison `self op other` into conditions that must all hold.
    fn compared(&self, op: &str, other: &Expr, symbols: &dyn Fn(&str) -> Dim) -> Result<Vec<Guard>, String> {
        if let Some(x) = self.square_root_operand(symbols) {
            let c = other.size(symbols)?.as_const().filter(|c| (0..1 << 15).contains(c));
            let c = c.ok_or(
                "the root of a size is compared with something other than a constant from 0 to 32767",
            )?;
            let least = |c: i64| Guard::of(">=", x.clone(), (c * c).into());
            let most = |c: i64| Guard::of("<", x.clone(), ((c + 1) * (c + 1)).into());
            return Ok(match op {
                "==" => vec![least(c), most(c)],
                "<=" => vec![most(c)],
                "<" => vec![most(c - 1)],
                ">=" => vec![least(c)],
                ">" => vec![least(c + 1)],
                _ => return Err(format!("the root of a size is compared by `{op}`, which is not supported")),
            });
        }
        let exact = self.fraction(symbols).and_then(|a| a.common(&other.fraction(symbols)?));
        match exact {
            Ok((a, b, _)) => Ok(vec![Guard::of(op, a, b)]),
            Err(e) => threshold::conditions(op, self, other, symbols).ok_or(e),
        }
    }

    /// Splits the expression into conditions that must all hold; `None` if it is no conjunction of comparisons.
    ///
    /// # Errors
    /// A message about the part of the expression that cannot be read.
    pub fn conditions(&self, symbols: &dyn Fn(&str) -> Dim) -> Result<Option<Vec<Guard>>, String> {
        let (head, args) = match self {
            Expr::Bool(true) => return Ok(Some(vec![])),
            Expr::Call(head, args) => (head.as_str(), &args[..]),
            _ => return Ok(None),
        };
        if head == "And" {
            let parts = args.iter().map(|a| a.conditions(symbols)).collect::<Result<Option<Vec<_>>, _>>()?;
            return Ok(parts.map(|p| p.concat()));
        }
        match (comparison(head), args) {
            (Some(op), [a, b]) => a.compared(op, b, symbols).map(Some),
            _ => Ok(None),
        }
    }

    /// A size that is 1 if the condition holds, else 0.
    ///
    /// # Errors
    /// A message about the part of the expression that cannot be read.
    pub fn truth(&self, symbols: &dyn Fn(&str) -> Dim) -> Result<Dim, String> {
        if let Some(all) = self.conditions(symbols)? {
            return Ok(all.iter().fold(Poly::ONE, |t, g| t.min_of(&g.truth(), &[])));
        }
        let (head, args) = match self {
            Expr::Bool(b) => return Ok(i64::from(*b).into()),
            Expr::Call(head, args) if !args.is_empty() => (head.as_str(), &args[..]),
            _ => return Err("the expression is not a condition".into()),
        };
        let parts = || args.iter().map(|a| a.truth(symbols)).collect::<Result<Vec<Dim>, String>>();
        Ok(match (head, args.len()) {
            ("And", _) => parts()?.iter().fold(Poly::ONE, |a, b| a.min_of(b, &[])),
            ("Or", _) => parts()?.iter().fold(Poly::ZERO, |a, b| a.max_of(b, &[])),
            ("Not", 1) => &Poly::ONE - &parts()?[0],
            _ => return Err(format!("`{head}` is not understood")),
        })
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
        let down = format!("TruncToInt(IntTrueDiv(Mul(Integer(-1), {s}), Integer(3)))");
        assert_eq!(read(&down).unwrap(), "-batch/3");
        assert_eq!(read(&format!("FloorDiv({s}, Integer(-2))")).unwrap(), "(-batch)/2");
        assert_eq!(read(&format!("PythonMod({s}, Integer(-5))")).unwrap(), "-(-batch)%5");
        assert_eq!(
            read(&format!("BitwiseFn_bitwise_or(BitwiseFn_bitwise_and({s}, Integer(3)), Integer(8))"))
                .unwrap(),
            "batch%4 + 8"
        );
        assert_eq!(
            read(&format!(
                "CeilToInt(Add(Mul(Float('-0.5', precision=53), ToFloat({s})), Float('1.0', precision=53)))"
            ))
            .unwrap(),
            "-batch/2 + 1"
        );
        let either = format!(
            "Piecewise(ExprCondPair(Integer(7), GreaterThan({s}, Integer(0))), ExprCondPair(Integer(0), true))"
        );
        assert_eq!(read(&either).unwrap(), "7");
        // Three times a third of n, computed in f64, need not be n.
        let back = format!("FloorToInt(Mul(Integer(3), IntTrueDiv({s}, Integer(3))))");
        assert!(read(&back).unwrap_err().contains("rounded"));
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
