//! Division and rounding for operands of any sign, comparisons as 0 or 1, and bit masks, each expressed with the
//! existing atoms.
//!
//! Atoms only divide by positive numbers. For a divisor that is known to be negative, both signs are flipped; if the
//! sign of the divisor `d` is unknown, `x·d` is divided by `d·d`. A division by 0 has no value.

use super::{Atom, Poly};

impl Poly {
    /// A quotient equal to `self / d` whose divisor is positive unless it is 0: its dividend and divisor.
    fn over_positive(&self, d: &Poly) -> (Poly, Poly) {
        let certain = |d: &Poly| match d.as_const() {
            Some(c) => c > 0,
            None => d.proves_nonneg(&[]),
        };
        match (-d, d) {
            (_, d) if certain(d) => (self.clone(), d.clone()),
            (opposite, _) if certain(&opposite) => (-self, opposite),
            (_, d) => (self * d, d * d),
        }
    }

    /// `⌊self / d⌋`, like Python's integer division.
    ///
    /// ```
    /// use wgfc_program::Poly;
    /// let (a, b) = (Poly::constant(-7), Poly::constant(2));
    /// let quotients = [a.floor_div(&b), a.ceiling_div(&b), a.trunc_div(&b), a.round_div(&b)];
    /// assert_eq!(quotients.map(|q| q.as_const()), [Some(-4), Some(-3), Some(-3), Some(-4)]);
    /// assert_eq!((a.floor_mod(&b).as_const(), a.trunc_mod(&b).as_const()), (Some(1), Some(-1)));
    /// ```
    pub fn floor_div(&self, d: &Poly) -> Poly {
        if let (Some(a), Some(b)) = (self.as_const(), d.as_const())
            && b != 0
        {
            let down = i128::from(a).div_euclid(i128::from(b))
                - i128::from(b < 0 && i128::from(a) % i128::from(b) != 0);
            return Poly::constant(i64::try_from(down).unwrap_or(i64::MAX));
        }
        if let Some(q) = self.exact_quotient(d) {
            return q;
        }
        let (x, d) = self.over_positive(d);
        x.quotient(&d)
    }

    /// `⌈self / d⌉`.
    pub fn ceiling_div(&self, d: &Poly) -> Poly {
        -&(-self).floor_div(d)
    }

    /// `self − d·⌊self / d⌋`, like Python's `%`: its sign is that of `d`.
    pub fn floor_mod(&self, d: &Poly) -> Poly {
        match d.as_const() {
            Some(c) if c > 0 => self.modulo(d, &[]),
            Some(c) if c < 0 && c != i64::MIN => -&(-self).modulo(&Poly::constant(-c), &[]),
            None if d.proves_nonneg(&[]) => self.modulo(d, &[]),
            None if (-d).proves_nonneg(&[]) => -&(-self).modulo(&-d, &[]),
            _ => self - &(d * &self.floor_div(d)),
        }
    }

    /// `self / d`, rounded towards 0.
    pub fn trunc_div(&self, d: &Poly) -> Poly {
        if let Some(q) = self.exact_quotient(d) {
            return q;
        }
        let (x, d) = self.over_positive(d);
        let opposite = -&x;
        if x.proves_nonneg(&[]) {
            x.quotient(&d)
        } else if opposite.proves_nonneg(&[]) {
            -&opposite.quotient(&d)
        } else {
            let up = |x: &Poly| x.max_of(&Poly::ZERO, &[]).quotient(&d);
            &up(&x) - &up(&opposite)
        }
    }

    /// `self − d·trunc(self / d)`, like C's `%`: its sign is that of `self`.
    pub fn trunc_mod(&self, d: &Poly) -> Poly {
        self - &(d * &self.trunc_div(d))
    }

    /// `self / d`, rounded to the nearest integer, ties to even.
    pub fn round_div(&self, d: &Poly) -> Poly {
        if let Some(q) = self.exact_quotient(d) {
            return q;
        }
        let (x, d) = self.over_positive(d);
        let (above, twice) = (&(&x * 2) + &d, &d * 2);
        let nearest = above.quotient(&twice);
        if d.as_const().is_some_and(|c| c % 2 != 0) {
            return nearest;
        }
        let tie = (&Poly::ONE - &above.modulo(&twice, &[])).max_of(&Poly::ZERO, &[]);
        let odd = nearest.modulo(&Poly::constant(2), &[]);
        &nearest - &(&tie * &odd)
    }

    /// The quotient, if `d` divides every term.
    fn exact_quotient(&self, d: &Poly) -> Option<Poly> {
        if d.is(0) || d.is_too_large() || self.is_too_large() {
            return None;
        }
        let (q, r) = self.div_rem(d);
        r.is(0).then_some(q)
    }

    /// Floor division by a divisor that is positive or 0; a division by 0 remains as an atom without a value.
    fn quotient(&self, d: &Poly) -> Poly {
        if d.is(0) {
            return Poly::atom(Atom::Div(self.clone(), d.clone()));
        }
        self.div(d, &[])
    }

    /// The absolute value.
    pub fn magnitude(&self) -> Poly {
        self.max_of(&-self, &[])
    }

    /// 1 if it is above 0, else 0.
    pub fn above_zero(&self) -> Poly {
        self.max_of(&Poly::ZERO, &[]).min_of(&Poly::ONE, &[])
    }

    /// 1 if it is 0, else 0.
    pub fn is_zero(&self) -> Poly {
        match self.as_const() {
            Some(c) => Poly::constant(i64::from(c == 0)),
            None => &Poly::ONE - &self.magnitude().above_zero(),
        }
    }

    /// The bitwise AND with a mask, which must not be negative.
    pub fn bit_and(&self, mask: i64) -> Option<Poly> {
        if mask < 0 {
            return None;
        }
        let bit = |k: i64| self.div(&Poly::constant(1 << k), &[]).modulo(&Poly::constant(2), &[]);
        let mut sum = Poly::ZERO;
        let mut k = 0;
        while k < 63 && mask >> k != 0 {
            let ones = (mask >> k).trailing_ones();
            if ones == 0 {
                k += 1;
                continue;
            }
            // A run of adjacent bits is one remainder.
            let field = match ones {
                1 => bit(k),
                n => self.div(&Poly::constant(1 << k), &[]).modulo(&Poly::constant(1i64 << n.min(62)), &[]),
            };
            sum = &sum + &(&field * (1i64 << k));
            k += i64::from(ones);
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A sequence of pseudorandom numbers.
    struct Draw(u64);

    impl Draw {
        fn next(&mut self, below: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % below
        }
        fn number(&mut self) -> i64 {
            [1, 2, 3, 4, 5, 7, 8, 12, 16, 60][self.next(10) as usize] * [1, 1, -1][self.next(3) as usize]
        }
    }

    /// An expression over sizes, as an unsimplified tree.
    #[derive(Debug)]
    enum Written {
        Size(&'static str),
        Number(i64),
        Two(&'static str, Box<Written>, Box<Written>),
        Bits(Box<Written>, i64),
    }

    const OPERATORS: [&str; 17] = [
        "+", "-", "*", "//", "%", "trunc", "rem", "ceil", "round", "min", "max", "<", "<=", "==", "!=",
        "abs", "**",
    ];

    fn written(draw: &mut Draw, depth: u32) -> Written {
        match draw.next(if depth == 0 { 2 } else { 7 }) {
            0 => Written::Size(["n", "m"][draw.next(2) as usize]),
            1 => Written::Number(draw.number()),
            2 => Written::Bits(Box::new(written(draw, depth - 1)), draw.next(300) as i64),
            _ => {
                let op = OPERATORS[draw.next(OPERATORS.len() as u64) as usize];
                let (a, b) = (written(draw, depth - 1), written(draw, depth - 1));
                let b = match (op, b) {
                    ("**", _) => Written::Number(draw.next(4) as i64),
                    // Most divisors are constants, as in models.
                    ("//" | "%" | "trunc" | "rem" | "ceil" | "round", b) if draw.next(3) == 0 => b,
                    ("//" | "%" | "trunc" | "rem" | "ceil" | "round", _) => Written::Number(draw.number()),
                    (_, b) => b,
                };
                Written::Two(op, Box::new(a), Box::new(b))
            }
        }
    }

    /// Converts the tree to a polynomial.
    fn made(w: &Written) -> Poly {
        match w {
            Written::Size(s) => Poly::sym(s),
            Written::Number(n) => Poly::constant(*n),
            Written::Bits(a, mask) => made(a).bit_and(*mask).unwrap(),
            Written::Two(op, a, b) => {
                let (a, b) = (made(a), made(b));
                match *op {
                    "+" => &a + &b,
                    "-" => &a - &b,
                    "*" => &a * &b,
                    "//" => a.floor_div(&b),
                    "%" => a.floor_mod(&b),
                    "trunc" => a.trunc_div(&b),
                    "rem" => a.trunc_mod(&b),
                    "ceil" => a.ceiling_div(&b),
                    "round" => a.round_div(&b),
                    "min" => a.min_of(&b, &[]),
                    "max" => a.max_of(&b, &[]),
                    "<" => (&b - &a).above_zero(),
                    "<=" => &Poly::ONE - &(&a - &b).above_zero(),
                    "==" => (&a - &b).is_zero(),
                    "!=" => &Poly::ONE - &(&a - &b).is_zero(),
                    "abs" => (&a - &b).magnitude(),
                    _ => (0..b.as_const().unwrap()).fold(Poly::ONE, |p, _| &p * &a),
                }
            }
        }
    }

    /// Evaluates the tree directly in 128 bits; `None` on division by 0, or beyond the compared range.
    fn direct(w: &Written, sizes: &BTreeMap<&str, i128>) -> Option<i128> {
        let floor = |a: i128, b: i128| a.div_euclid(b) - i128::from(b < 0 && a % b != 0);
        let v = match w {
            Written::Size(s) => sizes[s],
            Written::Number(n) => i128::from(*n),
            Written::Bits(a, mask) => direct(a, sizes)? & i128::from(*mask),
            Written::Two(op, a, b) => {
                let (a, b) = (direct(a, sizes)?, direct(b, sizes)?);
                if b == 0 && ["//", "%", "trunc", "rem", "ceil", "round"].contains(op) {
                    return None;
                }
                match *op {
                    "+" => a + b,
                    "-" => a - b,
                    "*" => a * b,
                    "//" => floor(a, b),
                    "%" => a - b * floor(a, b),
                    "trunc" => a / b,
                    "rem" => a % b,
                    "ceil" => -floor(-a, b),
                    "round" => {
                        let (down, twice) = (floor(a, b), 2 * (a - b * floor(a, b)));
                        let up = twice.abs() > b.abs() || twice.abs() == b.abs() && down % 2 != 0;
                        down + i128::from(up)
                    }
                    "min" => a.min(b),
                    "max" => a.max(b),
                    "<" => (a < b).into(),
                    "<=" => (a <= b).into(),
                    "==" => (a == b).into(),
                    "!=" => (a != b).into(),
                    "abs" => (a - b).abs(),
                    _ => a.pow(u32::try_from(b).unwrap()),
                }
            }
        };
        (v.abs() < 1 << 20).then_some(v)
    }

    #[test]
    fn drawn_expressions_are_what_integers_say() {
        let seed = std::env::var("WGFC_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261);
        let count = std::env::var("WGFC_EXPRESSIONS").ok().and_then(|s| s.parse().ok()).unwrap_or(4_000);
        let mut draw = Draw(seed | 1);
        let mut compared = 0u64;
        for i in 0..count {
            let w = written(&mut draw, 1 + i % 4);
            let p = made(&w);
            if p.is_too_large() {
                continue;
            }
            // The text of a plan, parsed again, must have the same value.
            let read = Poly::parse(&p.to_string());
            for (n, m) in [(0, 0), (1, 1), (2, 3), (3, 2), (5, 9), (12, 7), (13, 64), (60, 1), (97, 30)] {
                let sizes = BTreeMap::from([("n", n), ("m", m)]);
                let Some(want) = direct(&w, &sizes) else { continue };
                let at = |p: &Poly| p.eval_syms(&|s| i64::try_from(sizes[s]).ok()).map(i128::from);
                assert_eq!(at(&p), Some(want), "seed {seed}, {w:?} = {p} at n = {n}, m = {m}");
                match &read {
                    Ok(q) => assert_eq!(at(q), Some(want), "seed {seed}, {w:?} = {p}, read as {q}"),
                    Err(e) => assert!(e.contains("division by 0") || e.contains("deep"), "{w:?} = {p}: {e}"),
                }
                compared += 1;
            }
        }
        assert!(compared > 3 * u64::from(count), "{compared}");
    }

    #[test]
    fn signs_of_divisors_change_sides() {
        let p = |s: &str| Poly::parse(s).unwrap();
        let (n, two) = (p("n"), Poly::constant(-2));
        assert_eq!(n.floor_div(&two).to_string(), "(-n)/2");
        assert_eq!(n.floor_mod(&Poly::constant(-5)).to_string(), "-(-n)%5");
        assert_eq!((-&n).trunc_div(&Poly::constant(3)).to_string(), "-n/3");
        assert_eq!(p("4*n*m").floor_div(&p("0 - 2*n")).to_string(), "-2*m");
        assert_eq!(n.floor_div(&p("n - 20")).to_string(), "(20*n - 400)/(-40*n + n*n + 400) + 1");
        assert_eq!(n.bit_and(3).unwrap().to_string(), "n%4");
        assert_eq!(n.bit_and(-1), None);
    }
}
