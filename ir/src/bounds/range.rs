//! The ranges of expressions as index expressions, and the comparisons that conditions imply.

use crate::{Atom, BinaryOp, Class, DType, Poly, Scalar, UnaryOp};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;

/// Expressions by number, which is that of [`Atom::Data`] in index expressions.
pub trait Values {
    /// The form of an expression.
    fn node(&self, e: u32) -> Node<'_>;
    /// The type of an expression.
    fn dtype(&self, e: u32) -> DType;
}

/// The form of an expression, as far as its range can depend on it.
#[derive(Clone, Copy, Debug)]
pub enum Node<'v> {
    /// An index expression as an `i32`.
    Index(&'v Poly),
    /// A constant.
    Const(Scalar),
    /// Conversion to a type.
    Cast(DType, u32),
    /// One operand.
    Unary(UnaryOp, u32),
    /// Two operands.
    Binary(BinaryOp, u32, u32),
    /// The second operand where the first one is true, else the third one.
    Select(u32, u32, u32),
    /// A sum of integers, each a value of this expression, over fewer than 2^31 positions.
    Sum(u32),
    /// Any other.
    Other,
}

/// `small <= large`.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The smaller one.
    pub small: Poly,
    /// The larger one.
    pub large: Poly,
}

/// The greatest depth of expressions that is examined.
const DEPTH: usize = 24;

/// An integer expression as an index expression; `@` if it is none.
fn as_index(values: &dyn Values, e: u32) -> Poly {
    match values.node(e) {
        Node::Index(p) => p.clone(),
        Node::Const(s) if s.dtype.is_int() => Poly::constant(s.as_i64()),
        // Conversions that keep 32 bits.
        Node::Cast(DType::I64 | DType::I32, a) if values.dtype(a) == DType::I32 => as_index(values, a),
        Node::Cast(DType::I32, a) if values.dtype(a) == DType::I64 => match values.node(a) {
            Node::Cast(DType::I64, b) if values.dtype(b) == DType::I32 => as_index(values, b),
            _ => Poly::atom(Atom::Data(e)),
        },
        // In 64 bits, sums of positions do not wrap.
        Node::Binary(op @ (BinaryOp::Add | BinaryOp::Sub), a, b) if values.dtype(e) == DType::I64 => {
            match (position(values, a), position(values, b)) {
                (Some(x), Some(y)) if op == BinaryOp::Add => &x + &y,
                (Some(x), Some(y)) => &x - &y,
                _ => Poly::atom(Atom::Data(e)),
            }
        }
        _ => Poly::atom(Atom::Data(e)),
    }
}

/// A 64-bit integer that is an index expression without data, or a small constant.
fn position(values: &dyn Values, e: u32) -> Option<Poly> {
    let p = as_index(values, e);
    let small = p.as_const().is_none_or(|c| c.abs() < 1 << 40);
    (p.data().is_empty() && small).then_some(p)
}

/// An index expression in which data that are index expressions themselves are substituted.
pub fn expanded(values: &dyn Values, p: &Poly) -> Poly {
    let mut p = p.clone();
    for _ in 0..DEPTH {
        let open = |e: &u32| as_index(values, *e) != Poly::atom(Atom::Data(*e));
        if !p.data().iter().any(open) {
            break;
        }
        let of = |a: &Atom| match a {
            Atom::Data(e) => Some(as_index(values, *e)),
            _ => None,
        };
        p = p.subst(&of, &[]);
    }
    p
}

/// The comparisons of integers that hold where `e` is `truth`.
pub fn conditions(values: &dyn Values, e: u32, truth: bool) -> Vec<Compared> {
    let (mut out, mut seen, mut stack) = (vec![], FxHashSet::default(), vec![(e, truth)]);
    while let Some((e, truth)) = stack.pop() {
        if seen.insert((e, truth)) {
            condition(values, e, truth, &mut stack, &mut out);
        }
    }
    out
}

/// Adds the comparison that one expression states; conditions that follow from it are pushed to `stack`.
fn condition(
    values: &dyn Values,
    e: u32,
    truth: bool,
    stack: &mut Vec<(u32, bool)>,
    out: &mut Vec<Compared>,
) {
    match values.node(e) {
        Node::Binary(BinaryOp::And, a, b) if truth => {
            stack.push((a, true));
            stack.push((b, true));
        }
        Node::Binary(BinaryOp::Or, a, b) if !truth => {
            stack.push((a, false));
            stack.push((b, false));
        }
        Node::Unary(UnaryOp::Not, a) => stack.push((a, !truth)),
        Node::Select(c, a, b) => {
            // `c && a` or `c || b`, written as a selection.
            let known = |e: u32| match values.node(e) {
                Node::Const(s) => Some(s.bits != 0),
                _ => None,
            };
            if known(b) == Some(!truth) {
                stack.push((c, true));
                stack.push((a, truth));
            } else if known(a) == Some(!truth) {
                stack.push((c, false));
                stack.push((b, truth));
            }
        }
        Node::Binary(op, a, b) if matches!(values.dtype(a), DType::I32 | DType::I64) => {
            let (x, y) = (as_index(values, a), as_index(values, b));
            let one = Poly::ONE;
            let (less, more) = ((&x + &one, y.clone()), (&y + &one, x.clone()));
            let (at_most, at_least) = ((x.clone(), y.clone()), (y.clone(), x.clone()));
            let both: Vec<(Poly, Poly)> = match (op, truth) {
                (BinaryOp::Lt, true) | (BinaryOp::Ge, false) => vec![less],
                (BinaryOp::Le, true) | (BinaryOp::Gt, false) => vec![at_most],
                (BinaryOp::Gt, true) | (BinaryOp::Le, false) => vec![more],
                (BinaryOp::Ge, true) | (BinaryOp::Lt, false) => vec![at_least],
                (BinaryOp::Eq, true) | (BinaryOp::Ne, false) => vec![at_most, at_least],
                _ => vec![],
            };
            out.extend(both.into_iter().map(|(small, large)| Compared { small, large }));
        }
        _ => {}
    }
}

/// The bounds of one end of a range, each of which holds; empty if nothing is known.
pub type Ends = Vec<Poly>;

/// The ranges found so far at one place.
pub type Known = RefCell<FxHashMap<u32, (Ends, Ends)>>;

/// The lower and upper bounds of integer `e`, for all inputs. The bounds are values of 32 bits.
pub fn range(values: &dyn Values, e: u32, known: &Known) -> (Ends, Ends) {
    range_at(values, e, known, 0)
}

fn range_at(values: &dyn Values, e: u32, known: &Known, depth: usize) -> (Ends, Ends) {
    if depth > DEPTH {
        return of_type(values.dtype(e));
    }
    if let Some(found) = known.borrow().get(&e) {
        return found.clone();
    }
    let of = |e: u32| range_at(values, e, known, depth + 1);
    let numbers = |e: u32| {
        let (low, high) = of(e);
        let low = low.iter().filter_map(Poly::as_const).max()?;
        Some((low, high.iter().filter_map(Poly::as_const).min()?))
    };
    let between = |low: i64, high: i64| (vec![Poly::constant(low)], vec![Poly::constant(high)]);
    let dtype = values.dtype(e);
    let (mut low, mut high) = match values.node(e) {
        Node::Index(p) => {
            let p = expanded(values, p);
            (vec![p.clone()], vec![p])
        }
        Node::Const(s) if s.dtype.is_int() && i32::try_from(s.as_i64()).is_ok() => {
            between(s.as_i64(), s.as_i64())
        }
        Node::Const(s) if s.dtype == DType::Bool => between(i64::from(s.bits != 0), i64::from(s.bits != 0)),
        Node::Cast(to, a) if to.is_int() && (values.dtype(a).is_int() || values.dtype(a) == DType::Bool) => {
            let (low, high) = of(a);
            // A value with both bounds known is one of 32 bits, which wider types preserve.
            let fits = !low.is_empty() && !high.is_empty();
            let kept = match to {
                DType::I64 | DType::I32 => fits,
                _ => false,
            };
            if kept { (low, high) } else { (vec![], vec![]) }
        }
        Node::Binary(BinaryOp::Max, a, b) if dtype.is_int() => {
            let ((la, ha), (lb, hb)) = (of(a), of(b));
            let high = match (ha.first(), hb.first()) {
                (Some(x), Some(y)) => vec![x.max_of(y, &[])],
                _ => vec![],
            };
            (la.into_iter().chain(lb).collect(), high)
        }
        Node::Binary(BinaryOp::Min, a, b) if dtype.is_int() => {
            let ((la, ha), (lb, hb)) = (of(a), of(b));
            let low = match (la.first(), lb.first()) {
                (Some(x), Some(y)) => vec![x.min_of(y, &[])],
                _ => vec![],
            };
            (low, ha.into_iter().chain(hb).collect())
        }
        Node::Select(_, a, b) => {
            let ((la, ha), (lb, hb)) = (of(a), of(b));
            let low = match (la.first(), lb.first()) {
                (Some(x), Some(y)) => vec![x.min_of(y, &[])],
                _ => vec![],
            };
            let high = match (ha.first(), hb.first()) {
                (Some(x), Some(y)) => vec![x.max_of(y, &[])],
                _ => vec![],
            };
            (low, high)
        }
        Node::Binary(BinaryOp::Mod, _, d) if dtype.is_int() => match numbers(d) {
            Some((least, most)) if least >= 1 => between(0, most - 1),
            _ => (vec![], vec![]),
        },
        Node::Binary(BinaryOp::Rem, a, d) if dtype.is_int() => match (numbers(a), numbers(d)) {
            (Some((low, high)), Some((least, most))) if least >= 1 => {
                let most = most - 1;
                between(low.clamp(-most, 0), high.clamp(0, most))
            }
            (None, Some((least, most))) if least >= 1 => between(1 - most, most - 1),
            _ => (vec![], vec![]),
        },
        Node::Binary(BinaryOp::And, a, b) if dtype.is_int() => {
            let mask =
                [a, b].into_iter().filter_map(numbers).filter(|(low, _)| *low >= 0).map(|(_, h)| h).min();
            mask.map_or((vec![], vec![]), |m| between(0, m))
        }
        Node::Binary(op @ (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul), a, b) if dtype.is_int() => {
            let ends = numbers(a).zip(numbers(b)).and_then(|((a, b), (c, d))| {
                let f = |x: i64, y: i64| match op {
                    BinaryOp::Add => x.checked_add(y),
                    BinaryOp::Sub => x.checked_sub(y),
                    _ => x.checked_mul(y),
                };
                let all = [f(a, c)?, f(a, d)?, f(b, c)?, f(b, d)?];
                let (low, high) = (all.into_iter().min()?, all.into_iter().max()?);
                (i32::try_from(low).is_ok() && i32::try_from(high).is_ok()).then_some((low, high))
            });
            ends.filter(|_| matches!(dtype, DType::I32 | DType::I64))
                .map_or((vec![], vec![]), |(l, h)| between(l, h))
        }
        // Sums of numbers in 0..=1 count positions, of which there are fewer than 2^31.
        Node::Sum(value) if dtype.is_int() => {
            let (low, high) = of(value);
            let ones = low.iter().any(|l| l.as_const() >= Some(0))
                && high.iter().any(|h| h.as_const().is_some_and(|h| h <= 1));
            (if ones { vec![Poly::ZERO] } else { vec![] }, vec![])
        }
        _ => (vec![], vec![]),
    };
    let (least, most) = of_type(dtype);
    low.extend(least);
    high.extend(most);
    known.borrow_mut().insert(e, (low.clone(), high.clone()));
    (low, high)
}

/// The range of an integer type of less than 32 bits.
fn of_type(t: DType) -> (Ends, Ends) {
    let bits = t.bits();
    let ends = match t.class() {
        Class::Bool => Some((0, 1)),
        Class::Uint if bits <= 16 => Some((0, (1i64 << bits) - 1)),
        Class::Int if bits <= 16 => Some((-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1)),
        _ => None,
    };
    ends.map_or((vec![], vec![]), |(low, high)| (vec![Poly::constant(low)], vec![Poly::constant(high)]))
}
