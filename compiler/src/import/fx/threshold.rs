//! Turns comparisons of floats that depend on a size into comparisons of the size.
//!
//! PyTorch's guards hold conditions such as `sqrt(ToFloat(s0)) / 3.0 < 2.5`. Such a float is monotonic in sizes of at least 0, so one
//! threshold separates the sizes for which the condition holds from the others. A binary search evaluates the condition in f64, as Python
//! does. Nothing is concluded about sizes below 0, where powers and quotients may not be monotonic.

use super::expr::Expr;
use super::guards::Guard;
use wgfc_ir::{Dim, Poly};

/// An arithmetic operation with a constant.
#[derive(Clone, Copy)]
enum Step {
    Plus(f64),
    Times(f64),
    /// `x / c`
    By(f64),
    /// `c / x`
    Over(f64),
    Power(f64),
}

impl Step {
    fn at(self, x: f64) -> f64 {
        match self {
            Step::Plus(c) => x + c,
            Step::Times(c) => x * c,
            Step::By(c) => x / c,
            Step::Over(c) => c / x,
            Step::Power(c) => x.powf(c),
        }
    }
}

/// A float that is a monotonic function of a size of at least 0: the operations are applied to `of` in order.
struct Monotone {
    of: Dim,
    steps: Vec<Step>,
}

/// The upper end of the search for a threshold.
const MOST: i64 = 1 << 31;

impl Monotone {
    fn read(e: &Expr, symbols: &dyn Fn(&str) -> Dim) -> Option<Monotone> {
        if let Ok(of) = e.size(symbols) {
            return of.as_const().is_none().then(|| Monotone { of, steps: vec![] });
        }
        let Expr::Call(head, args) = e else { return None };
        let read = |e: &Expr| Monotone::read(e, symbols);
        match (head.as_str(), &args[..]) {
            ("ToFloat" | "Identity", [a]) => read(a),
            ("OpaqueUnaryFn_sqrt", [a]) => read(a)?.then(Step::Power(0.5)),
            ("FloatPow" | "Pow", [a, e]) => read(a)?.then(Step::Power(number(e)?)),
            ("IntTrueDiv" | "FloatTrueDiv", [a, b]) => match (number(a), number(b)) {
                (Some(a), None) => read(b)?.then(Step::Over(a)),
                (None, Some(b)) => read(a)?.then(Step::By(b)),
                _ => None,
            },
            ("Mul", [a, b]) => match (number(a), number(b)) {
                (Some(c), None) => read(b)?.then(Step::Times(c)),
                (None, Some(c)) => read(a)?.then(Step::Times(c)),
                _ => None,
            },
            ("Add", [a, b]) => match (number(a), number(b)) {
                (Some(c), None) => read(b)?.then(Step::Plus(c)),
                (None, Some(c)) => read(a)?.then(Step::Plus(c)),
                _ => None,
            },
            _ => None,
        }
    }

    fn at(&self, n: i64) -> f64 {
        self.steps.iter().fold(n as f64, |x, step| step.at(x))
    }

    /// Appends an operation if the result stays monotonic: quotients and powers require a float that is not negative.
    fn then(mut self, step: Step) -> Option<Monotone> {
        let positive = self.at(0) >= 0.0 && self.at(MOST) >= 0.0;
        let (Step::Plus(c) | Step::Times(c) | Step::By(c) | Step::Over(c) | Step::Power(c)) = step;
        let needed = matches!(step, Step::Over(_) | Step::Power(_));
        if !c.is_finite() || c == 0.0 || needed && !positive {
            return None;
        }
        self.steps.push(step);
        Some(self)
    }
}

fn number(e: &Expr) -> Option<f64> {
    match e {
        Expr::Int(n) => Some(*n as f64),
        Expr::Float(x) => Some(*x),
        _ => None,
    }
}

/// The conditions on sizes, all of which must hold, that are equivalent to `a op b`. `None` unless one side is a constant and the other a
/// monotonic function of a size.
pub fn conditions(op: &str, a: &Expr, b: &Expr, symbols: &dyn Fn(&str) -> Dim) -> Option<Vec<Guard>> {
    let mirrored = match op {
        "<" => ">",
        ">" => "<",
        "<=" => ">=",
        ">=" => "<=",
        _ => return None,
    };
    let (op, float, limit) = match (number(a), number(b)) {
        (None, Some(limit)) => (op, a, limit),
        (Some(limit), None) => (mirrored, b, limit),
        _ => return None,
    };
    let float = Monotone::read(float, symbols)?;
    let holds = |n: i64| match op {
        "<" => float.at(n) < limit,
        "<=" => float.at(n) <= limit,
        ">" => float.at(n) > limit,
        _ => float.at(n) >= limit,
    };
    let (first, last) = (holds(0), holds(MOST));
    let (mut below, mut above) = (0, MOST);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if holds(middle) == first {
            below = middle;
        } else {
            above = middle;
        }
    }
    let from = |n: i64| Guard::of(">=", float.of.clone(), n.into());
    match (first, last) {
        (true, true) => Some(vec![from(0)]),
        (false, true) => Some(vec![from(above)]),
        (true, false) => Some(vec![from(0), Guard::of("<", float.of, above.into())]),
        // No size meets the condition.
        (false, false) => Some(vec![Guard::of("==", Poly::ZERO, Poly::ONE)]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::expr;
    use super::*;

    /// The conditions that a text is equivalent to, as `a <= b` and `a == b`.
    fn read(text: &str) -> Option<Vec<String>> {
        let e = expr::parse(text).unwrap();
        let Expr::Call(head, args) = &e else { panic!("{text}") };
        let op = expr::comparison(head).unwrap();
        let guards = conditions(op, &args[0], &args[1], &|s| Dim::sym(s))?;
        Some(guards.iter().map(|g| format!("{} {:?} {}", g.a, g.relation, g.b)).collect())
    }

    #[test]
    fn a_size_parts_the_sizes_for_which_a_condition_holds() {
        let root = "OpaqueUnaryFn_sqrt(ToFloat(Symbol('n')))";
        let two = "Float('2.0', precision=53)";
        assert_eq!(read(&format!("StrictGreaterThan({root}, {two})")).unwrap(), ["5 AtMost n"]);
        assert_eq!(read(&format!("StrictLessThan({two}, {root})")).unwrap(), ["5 AtMost n"]);
        assert_eq!(read(&format!("LessThan({root}, {two})")).unwrap(), ["0 AtMost n", "n + 1 AtMost 5"]);
        assert_eq!(read(&format!("GreaterThan({root}, Integer(0))")).unwrap(), ["0 AtMost n"]);
        assert_eq!(read(&format!("StrictLessThan({root}, Integer(0))")).unwrap(), ["0 Equal 1"]);
    }

    #[test]
    fn nothing_is_said_of_sizes_below_0() {
        // 1 / n is above 0.5 for n = 1, and below it for n = −1.
        let over = "StrictGreaterThan(IntTrueDiv(Integer(1), Add(Symbol('n'), Integer(-4))), Float('0.5', precision=53))";
        assert_eq!(read(over).unwrap(), ["0 AtMost n - 4", "n - 3 AtMost 2"]);
    }
}
