//! Quantised values as integers.
//!
//! Neighbouring elements of a quantised weight are often one expression of integers that share all but these:
//! `scale · (Σ factor · integer + zero) + offset`, where the integers are loads of at most 8 bits, or twice the value of a float of 4
//! bits, and scale and offset are the same for all of the elements. [`affine`] finds that form, so that products can be computed in integers.

use super::bindings::neighbours;
use super::{Body, Expr, ExprId, Family, KernelGraph};
use wgfc_ir::{BinaryOp, Class, DType, Scalar, UnaryOp};

/// Neighbouring elements as `scale · (integer + zero) + offset`. The integer of each element is a sum of the terms and lies
/// between -128 and 127.
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    /// The parts of the integers.
    pub terms: Vec<Term>,
    /// The number that is added to all integers.
    pub zero: i64,
    /// The factor of all elements; 1 if there is none.
    pub scale: Option<ExprId>,
    /// The number that is added to all elements; 0 if there is none.
    pub offset: Option<ExprId>,
}

/// Twice the greatest value of [`DType::F4E2M1`]; twice any of its values is an integer.
const TWICE_E2M1: i64 = 12;

/// One load for each element, times a factor.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Loads of one tensor at neighbouring offsets, the first of which is a multiple of their number.
    pub loads: Vec<ExprId>,
    /// Their type.
    pub dtype: DType,
    /// The factor.
    pub factor: i64,
    /// Whether the highest bit of each load is inverted, which moves its range: see [`Affine`].
    pub flipped: bool,
}

impl Term {
    /// The least and the greatest value of a product of the factor and a load.
    fn range(&self) -> (i64, i64) {
        if self.dtype == DType::F4E2M1 {
            let most = TWICE_E2M1 * self.factor.abs();
            return (-most, most);
        }
        let values = 1_i64 << self.dtype.bits();
        // Fields of less than 8 bits are unsigned once flipped, those of 8 bits are signed.
        let signed = (self.dtype.class() == Class::Int) != self.flipped;
        let (low, high) = if signed { (-values / 2, values / 2 - 1) } else { (0, values - 1) };
        let (p, q) = (low * self.factor, high * self.factor);
        (p.min(q), p.max(q))
    }
}

/// Elements under way: the same value for all of them, or an affine form.
enum Form {
    Same(ExprId),
    Affine(Affine),
}

/// The affine form of neighbouring elements, in order. Scale and offset are added to the arena.
pub fn affine(body: &mut Body, elements: &[ExprId]) -> Option<Affine> {
    let Form::Affine(mut form) = form(body, elements)? else { return None };
    for t in &mut form.terms {
        let top = 1_i64 << (t.dtype.bits() - 1);
        let signed = t.dtype.class() == Class::Int;
        match (t.dtype.bits(), signed) {
            // A byte is signed where it is multiplied.
            (8, false) => form.zero += top * t.factor,
            // A smaller field is not.
            (..8, true) => form.zero -= top * t.factor,
            _ => continue,
        }
        t.flipped = true;
    }
    let sum = form.terms.iter().map(Term::range).fold((0, 0), |s, t| (s.0 + t.0, s.1 + t.1));
    // Bytes are taken as they are, and other fields have room for a few bits beside them.
    let alone = form.terms.len() == 1 && form.terms[0].factor == 1;
    let field = |t: &Term| t.dtype.bits() < 8 && t.dtype.class() != Class::Float;
    let fields = form.terms.iter().all(|t| field(t) && t.factor > 0 && t.factor.count_ones() == 1);
    ((alone || fields) && (-128..=127).contains(&sum.0) && (-128..=127).contains(&sum.1)).then_some(form)
}

/// Lets products round an operand if the other one has elements of at most 8 bits.
pub fn allow(kernels: &mut KernelGraph) {
    let narrow = |body: &Body, root: ExprId| {
        let mut all = body.reachable(&[root]).into_iter();
        all.any(|e| matches!(body.expr(e), Expr::Load { .. }) && body.dtype(e).bits() <= 8)
    };
    for k in &mut kernels.kernels {
        if let Family::Matmul(m) = &mut k.family {
            let quantised = |roots: &[ExprId]| roots.iter().all(|r| narrow(&k.body, *r));
            m.rounded = quantised(&[m.a]) != quantised(&m.b);
        }
    }
}

/// The largest number of neighbours, 32 or 16, in which all of these elements have an affine form.
pub fn unit(body: &mut Body, elements: &[ExprId]) -> Option<usize> {
    let whole = |n: &usize| elements.len().is_multiple_of(*n);
    [32, 16].into_iter().filter(whole).find(|n| elements.chunks(*n).all(|e| affine(body, e).is_some()))
}

fn form(body: &mut Body, elements: &[ExprId]) -> Option<Form> {
    let first = *elements.first()?;
    if elements.iter().all(|e| *e == first) {
        return Some(Form::Same(first));
    }
    match body.expr(first).clone() {
        Expr::Cast(DType::F32, _) => {
            let loads = operands(elements, |e| match body.expr(e) {
                Expr::Cast(DType::F32, load) => Some(*load),
                _ => None,
            })?;
            integers(body, loads).map(Form::Affine)
        }
        Expr::Unary(UnaryOp::Neg, _) => {
            let of = operands(elements, |e| match body.expr(e) {
                Expr::Unary(UnaryOp::Neg, x) => Some(*x),
                _ => None,
            })?;
            let Form::Affine(f) = form(body, &of)? else { return None };
            f.negated(body).map(Form::Affine)
        }
        Expr::Binary(op, ..) => {
            let side = |right: bool| {
                operands(elements, |e| match body.expr(e) {
                    Expr::Binary(o, p, q) if *o == op => Some(if right { *q } else { *p }),
                    _ => None,
                })
            };
            let (p, q) = (side(false)?, side(true)?);
            let (p, q) = (form(body, &p)?, form(body, &q)?);
            binary(body, op, p, q).map(Form::Affine)
        }
        _ => None,
    }
}

fn operands(elements: &[ExprId], of: impl Fn(ExprId) -> Option<ExprId>) -> Option<Vec<ExprId>> {
    elements.iter().map(|e| of(*e)).collect()
}

/// Loads of integers that are neighbours in memory, or of floats of which twice the value is one.
fn integers(body: &mut Body, loads: Vec<ExprId>) -> Option<Affine> {
    let dtype = body.dtype(loads[0]);
    let halves = dtype == DType::F4E2M1;
    if dtype.bits() > 8 || !(halves || matches!(dtype.class(), Class::Int | Class::Uint)) {
        return None;
    }
    let mut offsets = vec![];
    for load in &loads {
        match (body.expr(*load), body.expr(loads[0])) {
            (Expr::Load { tensor, offset, guard: None }, Expr::Load { tensor: first, .. })
                if tensor == first =>
            {
                offsets.push(offset);
            }
            _ => return None,
        }
    }
    let terms = vec![Term { loads: loads.clone(), dtype, factor: 1, flipped: false }];
    let near = neighbours(offsets.into_iter());
    let scale = halves.then(|| body.push(Expr::Const(Scalar::from_f64(DType::F32, 0.5)), DType::F32));
    near.then_some(Affine { terms, zero: 0, scale, offset: None })
}

/// The integer that a constant is.
fn integer(body: &Body, e: ExprId) -> Option<i64> {
    let Expr::Const(c) = body.expr(e) else { return None };
    let c = c.as_f64();
    (c.fract() == 0.0 && c.abs() <= 4096.0).then_some(c as i64)
}

fn binary(body: &mut Body, op: BinaryOp, p: Form, q: Form) -> Option<Affine> {
    use BinaryOp::{Add, Mul, Sub};
    match (op, p, q) {
        (Add, Form::Affine(p), Form::Affine(q)) => p.plus(q),
        (Sub, Form::Affine(p), Form::Affine(q)) => q.negated(body).and_then(|q| p.plus(q)),
        (Add, Form::Affine(f), Form::Same(c)) | (Add, Form::Same(c), Form::Affine(f)) => {
            Some(f.moved(body, Add, c))
        }
        (Sub, Form::Affine(f), Form::Same(c)) => Some(f.moved(body, Sub, c)),
        (Sub, Form::Same(c), Form::Affine(f)) => Some(f.negated(body)?.moved(body, Add, c)),
        (Mul, Form::Affine(f), Form::Same(c)) | (Mul, Form::Same(c), Form::Affine(f)) => {
            Some(f.scaled(body, c))
        }
        _ => None,
    }
}

impl Affine {
    /// Whether it is integers and nothing else.
    fn is_plain(&self) -> bool {
        self.scale.is_none() && self.offset.is_none()
    }

    fn plus(mut self, mut other: Affine) -> Option<Affine> {
        if !self.is_plain() || !other.is_plain() {
            return None;
        }
        self.terms.append(&mut other.terms);
        self.zero += other.zero;
        Some(self)
    }

    fn negated(mut self, body: &mut Body) -> Option<Affine> {
        if self.is_plain() {
            self.terms.iter_mut().for_each(|t| t.factor = -t.factor);
            self.zero = -self.zero;
            return Some(self);
        }
        let mut minus = |e: ExprId| body.push(Expr::Unary(UnaryOp::Neg, e), DType::F32);
        self.scale = Some(match self.scale {
            Some(s) => minus(s),
            None => body.push(Expr::Const(Scalar::from_f64(DType::F32, -1.0)), DType::F32),
        });
        self.offset = self.offset.map(|o| body.push(Expr::Unary(UnaryOp::Neg, o), DType::F32));
        Some(self)
    }

    /// With `c` added or subtracted.
    fn moved(mut self, body: &mut Body, op: BinaryOp, c: ExprId) -> Affine {
        match (integer(body, c), self.is_plain()) {
            (Some(n), true) => self.zero += if op == BinaryOp::Sub { -n } else { n },
            _ => {
                self.offset = Some(match (self.offset, op) {
                    (Some(o), _) => body.push(Expr::Binary(op, o, c), DType::F32),
                    (None, BinaryOp::Sub) => body.push(Expr::Unary(UnaryOp::Neg, c), DType::F32),
                    (None, _) => c,
                });
            }
        }
        self
    }

    fn scaled(mut self, body: &mut Body, c: ExprId) -> Affine {
        if let (Some(n @ 1..=64), true) = (integer(body, c), self.is_plain()) {
            self.terms.iter_mut().for_each(|t| t.factor *= n);
            self.zero *= n;
            return self;
        }
        self.scale = Some(match self.scale {
            Some(s) => body.push(Expr::Binary(BinaryOp::Mul, s, c), DType::F32),
            None => c,
        });
        self.offset = self.offset.map(|o| body.push(Expr::Binary(BinaryOp::Mul, o, c), DType::F32));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::Poly;

    /// Sixteen neighbours of what `element` makes of the number of each.
    fn sixteen(body: &mut Body, element: impl Fn(&mut Body, i64) -> ExprId) -> Vec<ExprId> {
        (0..16).map(|i| element(body, i)).collect()
    }

    fn load(body: &mut Body, tensor: usize, dtype: DType, offset: Poly) -> ExprId {
        let l = body.push(Expr::Load { tensor, offset, guard: None }, dtype);
        body.push(Expr::Cast(DType::F32, l), DType::F32)
    }

    fn number(body: &mut Body, x: f64) -> ExprId {
        body.push(Expr::Const(Scalar::from_f64(DType::F32, x)), DType::F32)
    }

    fn op(body: &mut Body, op: BinaryOp, p: ExprId, q: ExprId) -> ExprId {
        body.push(Expr::Binary(op, p, q), DType::F32)
    }

    /// `%3` counts blocks of 16 elements.
    fn at(i: i64) -> Poly {
        &(&Poly::var(3) * 16) + &i.into()
    }

    #[test]
    fn blocks_with_a_zero_and_a_scale() {
        let mut b = Body::default();
        let elements = sixteen(&mut b, |b, i| {
            let (q, s, eight) =
                (load(b, 0, DType::U4, at(i)), load(b, 1, DType::F16, Poly::var(3)), number(b, 8.0));
            let q = op(b, BinaryOp::Sub, q, eight);
            op(b, BinaryOp::Mul, q, s)
        });
        let form = affine(&mut b, &elements).unwrap();
        assert_eq!((form.zero, form.offset, form.terms.len()), (-8, None, 1));
        assert_eq!(form.scale, Some(load(&mut b, 1, DType::F16, Poly::var(3))));
        assert_eq!(unit(&mut b, &elements), Some(16));
    }

    #[test]
    fn six_bits_in_two_fields_with_a_minimum() {
        let mut b = Body::default();
        let elements = sixteen(&mut b, |b, i| {
            let (low, high) = (load(b, 0, DType::U4, at(i)), load(b, 1, DType::U2, at(i)));
            let (sixteen, s, m) =
                (number(b, 16.0), load(b, 2, DType::F16, Poly::var(3)), load(b, 3, DType::U8, Poly::var(3)));
            let high = op(b, BinaryOp::Mul, high, sixteen);
            let q = op(b, BinaryOp::Add, low, high);
            let q = op(b, BinaryOp::Mul, s, q);
            op(b, BinaryOp::Sub, q, m)
        });
        let form = affine(&mut b, &elements).unwrap();
        let factors: Vec<i64> = form.terms.iter().map(|t| t.factor).collect();
        assert_eq!((factors, form.zero, form.offset.is_some()), (vec![1, 16], 0, true));
    }

    #[test]
    fn ranges_are_those_of_bytes() {
        for (dtype, zero) in [(DType::I8, 0), (DType::U8, 128), (DType::I4, -8), (DType::U4, 0)] {
            let mut b = Body::default();
            let elements = sixteen(&mut b, |b, i| load(b, 0, dtype, at(i)));
            let form = affine(&mut b, &elements).unwrap();
            assert_eq!((form.zero, form.scale, form.offset), (zero, None, None), "{dtype}");
        }
    }

    #[test]
    fn floats_of_four_bits_are_halves_of_integers() {
        let mut b = Body::default();
        let elements = sixteen(&mut b, |b, i| {
            let (x, s) = (load(b, 0, DType::F4E2M1, at(i)), load(b, 1, DType::F8E8M0, Poly::var(3)));
            op(b, BinaryOp::Mul, x, s)
        });
        let form = affine(&mut b, &elements).unwrap();
        let (half, s) = (number(&mut b, 0.5), load(&mut b, 1, DType::F8E8M0, Poly::var(3)));
        assert_eq!((form.zero, form.offset), (0, None));
        assert_eq!(form.scale, Some(op(&mut b, BinaryOp::Mul, half, s)));
    }

    #[test]
    fn others_have_no_form() {
        let mut b = Body::default();
        let apart = sixteen(&mut b, |b, i| load(b, 0, DType::I8, at(2 * i)));
        let floats = sixteen(&mut b, |b, i| load(b, 1, DType::F8E4M3, at(i)));
        let wide = sixteen(&mut b, |b, i| load(b, 2, DType::I16, at(i)));
        let large = sixteen(&mut b, |b, i| {
            let (x, factor) = (load(b, 3, DType::U4, at(i)), number(b, 16.0));
            op(b, BinaryOp::Mul, x, factor)
        });
        let own_scales = sixteen(&mut b, |b, i| {
            let (x, s) = (load(b, 4, DType::U4, at(i)), load(b, 5, DType::F16, at(i)));
            op(b, BinaryOp::Mul, x, s)
        });
        for elements in [apart, floats, wide, large, own_scales] {
            assert_eq!(affine(&mut b, &elements), None);
        }
    }
}
