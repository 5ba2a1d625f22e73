//! The ranges of values in kernels.
//!
//! Three ranges are known of each expression. The first is proven: it follows from constants, positions, types and bounded functions. The
//! second is typical: it assumes that values from memory and sums of which nothing is proven lie within [`TYPICAL`]. So `x · 1e5` is
//! typically up to 1.6e6, though it may be 0. The third assumes that such values lie within 1: if it is large, that is because of
//! constants, not because of a product of many bounds.

use super::{LITTLE, MOST, TYPICAL};
use crate::kernel::{
    Body, Expr, ExprId, Family, Kernel, KernelGraph, ReduceKind, Reduction, TensorId, TensorKind,
};
use rustc_hash::FxHashMap;
use wgfc_ir::halved::Loss;
use wgfc_ir::{BinaryOp, Class, DType, Dim, Scalar, UnaryOp};

/// The lower and the upper end of a range.
type Range = (f64, f64);

const ALL: Range = (f64::NEG_INFINITY, f64::INFINITY);
const USUAL: Range = (-TYPICAL, TYPICAL);
const UNIT: Range = (-1.0, 1.0);
/// The largest integer constant whose elements are examined.
const MOST_INTEGERS: usize = 1 << 16;

/// The facts known of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The value lies in this range, or is NaN.
    pub proven: Range,
    /// The value lies in this range if values read and summed are within [`TYPICAL`].
    pub typical: Range,
    /// The value lies in this range if values read and summed are within 1.
    pub unit: Range,
    /// It is a whole number.
    pub whole: bool,
    /// It contains a square or an unbounded exponential of something.
    pub square: bool,
    /// It is a reinterpretation of other bits.
    pub bits: bool,
    /// It is computed of constants alone.
    pub constant: bool,
    /// It is a level of a quantised constant: a number of few bits that a scale is multiplied with, or a sum or product of such numbers.
    pub level: bool,
    /// The number of terms, constants not counted, of which it is the sum: 0 for constants, 1 for what is no sum.
    pub terms: u32,
}

impl Value {
    /// A value proven to be in this range.
    fn within(low: f64, high: f64) -> Value {
        let range = (low, high);
        Value {
            proven: range,
            typical: range,
            unit: range,
            whole: false,
            square: false,
            bits: false,
            constant: false,
            level: false,
            terms: 1,
        }
    }
    /// An unknown value of typical size.
    pub fn unknown() -> Value {
        Value { typical: USUAL, unit: UNIT, ..Value::within(ALL.0, ALL.1) }
    }
    /// A whole number proven to be in this range.
    fn whole(low: f64, high: f64) -> Value {
        Value { whole: true, ..Value::within(low, high) }
    }
    /// Any value of a type.
    fn of_type(t: DType) -> Value {
        match t.class() {
            Class::Float => Value::unknown(),
            Class::Bool => Value::whole(0.0, 1.0),
            Class::Int => Value::whole(-(2f64.powi(t.bits() as i32 - 1)), 2f64.powi(t.bits() as i32 - 1)),
            Class::Uint => Value::whole(0.0, 2f64.powi(t.bits() as i32)),
        }
    }
    /// The value when it is read again: of typical size if nothing is proven, unless constants make it large. Infinities exist in f16,
    /// too.
    fn stored(self) -> Value {
        let proven = self.proven;
        if proven.0.is_finite() && proven.1.is_finite() {
            return Value { typical: proven, unit: proven, ..self };
        }
        let large = |v: f64| v.abs() > MOST && v.abs() <= f64::from(f32::MAX);
        let again = |v: f64, unit: f64, usual: f64| if large(unit) && large(v) { v } else { usual };
        let (low, high) = (self.unit.0, self.unit.1);
        let within = |r: Range, usual: Range| {
            let r = (again(r.0, low, usual.0).min(usual.0), again(r.1, high, usual.1).max(usual.1));
            (proven.0.max(r.0).min(proven.1), proven.1.min(r.1).max(proven.0))
        };
        Value { typical: within(self.typical, USUAL), unit: within(self.unit, UNIT), ..self }
    }
    /// Whether it is the scale of a level, of which nothing is known: the product is a weight, and of typical size as other weights are,
    /// however large levels are.
    fn scales(&self, level: &Value) -> bool {
        let known = self.proven.0.is_finite() && self.proven.1.is_finite();
        self.constant && level.constant && level.level && !self.level && !known
    }
    /// The value if it is of typical size.
    fn usual(self) -> Value {
        Value { typical: clip(self.typical, USUAL), unit: clip(self.unit, UNIT), ..self }
    }
    /// The union of both values' ranges.
    fn or(self, o: Value) -> Value {
        Value {
            proven: hull(self.proven, o.proven),
            typical: hull(self.typical, o.typical),
            unit: hull(self.unit, o.unit),
            whole: self.whole && o.whole,
            square: self.square || o.square,
            bits: self.bits || o.bits,
            constant: self.constant && o.constant,
            level: self.level && o.level,
            terms: self.terms.max(o.terms),
        }
    }
    /// The value with a function applied to each of its ranges.
    fn map(self, f: impl Fn(Range) -> Range) -> Value {
        self.with(self, |r, _| f(r))
    }
    /// The value with a function applied to each pair of ranges.
    fn with(self, o: Value, f: impl Fn(Range, Range) -> Range) -> Value {
        let proven = ordered(f(self.proven, o.proven), ALL);
        let typical = clip(ordered(f(self.typical, o.typical), USUAL), proven);
        let unit = clip(ordered(f(self.unit, o.unit), UNIT), proven);
        let (whole, square) = (self.whole && o.whole, self.square || o.square);
        let (constant, level) = (self.constant && o.constant, self.level && o.level);
        let terms = self.terms.max(o.terms).min(1);
        Value { proven, typical, unit, whole, square, bits: false, constant, level, terms }
    }
}

fn hull(a: Range, b: Range) -> Range {
    (a.0.min(b.0), a.1.max(b.1))
}

/// `otherwise` if an end is NaN.
fn ordered(r: Range, otherwise: Range) -> Range {
    if r.0 <= r.1 { r } else { otherwise }
}

/// `r` clamped to `of`.
fn clip(r: Range, of: Range) -> Range {
    (r.0.clamp(of.0, of.1), r.1.clamp(of.0, of.1))
}

/// The range of a function that is monotonic in each operand, from its values at the corners.
fn corners(a: Range, b: Range, f: impl Fn(f64, f64) -> f64) -> Range {
    let all = [f(a.0, b.0), f(a.0, b.1), f(a.1, b.0), f(a.1, b.1)];
    if all.iter().any(|v| v.is_nan()) {
        return (f64::NAN, f64::NAN);
    }
    all.into_iter().fold((f64::INFINITY, f64::NEG_INFINITY), |r, v| (r.0.min(v), r.1.max(v)))
}

/// A product, where 0 times infinity is 0.
fn times(x: f64, y: f64) -> f64 {
    if x == 0.0 || y == 0.0 { 0.0 } else { x * y }
}

/// The facts known of tensors, updated from kernel to kernel.
pub struct Values<'g> {
    graph: &'g KernelGraph,
    losses: FxHashMap<TensorId, Loss>,
    known: FxHashMap<TensorId, Value>,
}

impl<'g> Values<'g> {
    /// The values of constants. Constants in external files are read only if they are small.
    pub fn new(graph: &'g KernelGraph) -> Values<'g> {
        let (mut losses, mut known) = (FxHashMap::default(), FxHashMap::default());
        let mut looked_at: FxHashMap<usize, Option<Loss>> = FxHashMap::default();
        for (i, t) in graph.tensors.iter().enumerate() {
            let TensorKind::Const(data) = &t.kind else { continue };
            if data.is_remote() && data.numel() as i64 >= LITTLE {
                continue;
            }
            let address = std::sync::Arc::as_ptr(data) as usize;
            if let Some(loss) = *looked_at.entry(address).or_insert_with(|| data.loss_in_half()) {
                let v = Value::within(loss.range.0, loss.range.1);
                known.insert(i, Value { whole: loss.whole, constant: true, terms: 0, ..v });
                losses.insert(i, loss);
            } else if data.numel() <= MOST_INTEGERS
                && let Some(all) = data.to_i64s().filter(|all| !all.is_empty())
            {
                let ends = all.iter().fold((i64::MAX, i64::MIN), |r, v| (r.0.min(*v), r.1.max(*v)));
                known.insert(i, Value::whole(ends.0 as f64, ends.1 as f64));
            }
        }
        Values { graph, losses, known }
    }

    /// The loss in f16 of each f32 constant whose values are known.
    pub fn losses(&self) -> Vec<(TensorId, Loss)> {
        let mut all: Vec<(TensorId, Loss)> = self.losses.iter().map(|(t, l)| (*t, *l)).collect();
        all.sort_by_key(|(t, _)| *t);
        all
    }

    /// The values of all expressions of the next kernel; the values that it stores become known.
    pub fn kernel(&mut self, k: &Kernel) -> Vec<Value> {
        let domain = k.domain();
        let mut all: Vec<Value> = vec![];
        for (_, e, dtype) in k.body.iter() {
            let v = self.of(k, e, dtype, &domain, &all);
            all.push(v);
        }
        for s in k.all_stores() {
            let Some(v) = all.get(s.value as usize).copied() else { continue };
            let v = if s.combine.is_some() { Value::of_type(k.body.dtype(s.value)) } else { v };
            self.known.entry(s.tensor).and_modify(|old| *old = old.or(v)).or_insert(v);
        }
        all
    }

    fn of(&self, k: &Kernel, e: &Expr, dtype: DType, domain: &[Dim], all: &[Value]) -> Value {
        let at = |e: ExprId| all.get(e as usize).copied().unwrap_or_else(Value::unknown);
        match e {
            Expr::Const(s) if dtype.is_float() => {
                let v = s.as_f64();
                Value {
                    whole: v.fract() == 0.0,
                    constant: true,
                    level: true,
                    terms: 0,
                    ..Value::within(v, v)
                }
            }
            Expr::Const(s) => Value { constant: true, level: true, ..Value::whole(s.as_f64(), s.as_f64()) },
            Expr::Index(p) => {
                let ends = [p.lower_bound(domain), p.upper_bound(domain)].map(|d| d?.as_const());
                let [low, high] = ends.map(|d| d.map(|d| d as f64));
                Value::whole(low.unwrap_or(ALL.0), high.unwrap_or(ALL.1))
            }
            Expr::Load { tensor, .. } => match self.known.get(tensor) {
                Some(v) => v.stored(),
                None => {
                    let t = self.graph.tensors.get(*tensor);
                    let constant = t.is_some_and(|t| matches!(t.kind, TensorKind::Const(_)));
                    let t = t.map_or(dtype, |t| t.ty.dtype);
                    let number = t.class() != Class::Bool && t != DType::F8E8M0;
                    let level = constant && number && t.bits() <= 8;
                    Value { constant, level, terms: u32::from(!constant), ..Value::of_type(t) }
                }
            },
            Expr::Acc(i) => self.result(k, *i, dtype, domain, all),
            Expr::Shared { .. } => Value::of_type(dtype),
            Expr::Unary(op, a) => {
                let value = unary(*op, at(*a), dtype);
                Value { level: value.level && *op == UnaryOp::Neg, ..value }
            }
            // The terms of a softmax: a value minus the maximum of its row is at most 0, and a value that is not negative divided by the sum
            // of its row at most 1.
            Expr::Binary(BinaryOp::Sub, a, b) if reduces(k, *b, ReduceKind::Max, *a) => {
                let below = |(low, _): Range, (_, high): Range| (low - high, 0.0);
                at(*a).with(at(*b), below)
            }
            Expr::Binary(BinaryOp::Div | BinaryOp::Quot, a, b)
                if dtype.is_float() && reduces(k, *b, ReduceKind::Sum, *a) && at(*a).proven.0 >= 0.0 =>
            {
                Value::within(0.0, 1.0)
            }
            Expr::Binary(op, a, b) => {
                let same = a == b;
                let power = match k.body.expr(*b) {
                    Expr::Const(s) => Some(*s),
                    _ => None,
                };
                let (x, y) = (at(*a), at(*b));
                let value = Value { terms: terms(*op, x, y), ..binary(*op, x, y, same, power, dtype) };
                if *op == BinaryOp::Mul && dtype.is_float() && (x.scales(&y) || y.scales(&x)) {
                    return value.usual();
                }
                let level = matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul);
                Value { level: value.level && level, ..value }
            }
            Expr::Select(_, a, b) => at(*a).or(at(*b)),
            Expr::Cast(to, a) if to.is_float() => at(*a),
            Expr::Cast(to, a) => {
                let (own, v) = (Value::of_type(*to), at(*a));
                let fits = own.proven.0 <= v.proven.0 && v.proven.1 <= own.proven.1;
                if fits { Value::whole(v.proven.0, v.proven.1) } else { own }
            }
            Expr::Bitcast(to, a) if *to == k.body.dtype(*a) => at(*a),
            Expr::Bitcast(to, _) => Value { bits: to.is_float(), ..Value::of_type(*to) },
        }
    }

    /// A result of the family.
    fn result(&self, k: &Kernel, i: u32, dtype: DType, domain: &[Dim], all: &[Value]) -> Value {
        if let Family::Matmul(m) = &k.family
            && let Some(b) = m.b.get(i as usize)
            && dtype.is_float()
        {
            let at = |e: ExprId| all.get(e as usize).copied().unwrap_or_else(Value::unknown);
            return sum_of_products(at(m.a), at(*b));
        }
        let reduction: Option<(&Reduction, &Dim)> = match &k.family {
            Family::Row(r) => r.reductions.get(i as usize).map(|x| (x, &r.len)),
            Family::PrefixScan(p) => Some((&p.reduction, &p.len)),
            _ => None,
        };
        let Some((r, len)) = reduction.filter(|(r, _)| (r.value as usize) < all.len()) else {
            return Value::of_type(dtype);
        };
        let v = all[r.value as usize];
        let n = len.upper_bound(domain).and_then(|d| d.as_const());
        match r.kind {
            ReduceKind::Max | ReduceKind::Min if r.dtype.is_float() => {
                let inside = padded(&k.body, r.value).and_then(|e| all.get(e as usize));
                inside.unwrap_or(&v).stored()
            }
            ReduceKind::Last { .. } if r.dtype.is_float() => v.stored(),
            ReduceKind::Sum if r.dtype.is_float() => {
                let n = n.map_or(f64::INFINITY, |n| n as f64);
                let sum = Value { whole: v.whole, square: v.square, ..Value::unknown() };
                let proven = (times(v.proven.0.min(0.0), n), times(v.proven.1.max(0.0), n));
                Value { proven: ordered(proven, ALL), ..sum }.stored()
            }
            ReduceKind::Arg { .. } => Value::whole(0.0, n.map_or(f64::INFINITY, |n| n as f64)),
            _ => Value { square: v.square, ..Value::of_type(dtype) },
        }
    }
}

/// The number of terms of a result.
fn terms(op: BinaryOp, a: Value, b: Value) -> u32 {
    match op {
        BinaryOp::Add | BinaryOp::Sub => a.terms.saturating_add(b.terms),
        BinaryOp::Max | BinaryOp::Min => a.terms.max(b.terms),
        BinaryOp::Mul | BinaryOp::Div if a.constant || b.constant => a.terms.max(b.terms),
        _ => a.terms.max(b.terms).min(1),
    }
}

/// Whether `e` is the result of a reduction of the values of `of`.
fn reduces(k: &Kernel, e: ExprId, kind: ReduceKind, of: ExprId) -> bool {
    let (Expr::Acc(i), Family::Row(row)) = (k.body.expr(e), &k.family) else { return false };
    row.reductions.get(*i as usize).is_some_and(|r| r.kind == kind && r.value == of)
}

/// The expression that is padded by a constant: a window of a maximum contains more than padding.
fn padded(body: &Body, e: ExprId) -> Option<ExprId> {
    let Expr::Select(c, a, b) = *body.expr(e) else { return None };
    let constant = |e: ExprId| matches!(body.expr(e), Expr::Const(_));
    let placed =
        |e: &ExprId| !matches!(body.expr(*e), Expr::Load { .. } | Expr::Acc(_) | Expr::Shared { .. });
    if !body.reachable(&[c]).iter().all(placed) {
        return None;
    }
    match (constant(a), constant(b)) {
        (false, true) => Some(a),
        (true, false) => Some(b),
        _ => None,
    }
}

/// A sum of typical size, or larger if constants make its terms larger.
fn sum_of_products(a: Value, b: Value) -> Value {
    let one = a.stored().with(b.stored(), |x, y| corners(x, y, times));
    let larger =
        |r: Range, usual: Range| if r.0.is_finite() && r.1.is_finite() { hull(r, usual) } else { usual };
    Value { typical: larger(one.typical, USUAL), unit: larger(one.unit, UNIT), ..Value::unknown() }
}

fn unary(op: UnaryOp, a: Value, dtype: DType) -> Value {
    use UnaryOp::*;
    if !dtype.is_float() {
        return match op {
            Neg => a.map(|(l, h)| (-h, -l)),
            Abs => a.map(|(l, h)| (0.0, h.max(-l))),
            IsNan | IsInf => Value::whole(0.0, 1.0),
            _ => Value::of_type(dtype),
        };
    }
    let bounded = |low, high| Value::within(low, high);
    match op {
        Neg => a.map(|(l, h)| (-h, -l)),
        Abs => a.map(|(l, h)| {
            (if l <= 0.0 && h >= 0.0 { 0.0 } else { l.abs().min(h.abs()) }, h.abs().max(l.abs()))
        }),
        Sign => Value::whole(-1.0, 1.0),
        Floor | Ceil | Round | Trunc => Value { whole: true, ..a.map(|(l, h)| (l.floor(), h.ceil())) },
        Sqrt => {
            let root = a.map(|(l, h)| (l.max(0.0).sqrt(), h.max(0.0).sqrt()));
            Value { whole: false, square: false, ..root }
        }
        Exp => {
            let e = a.map(|(l, h)| (l.exp(), h.exp()));
            Value { whole: false, square: e.proven.1 > MOST, ..e }
        }
        Sinh | Cosh => {
            let e = a.map(|(l, h)| (-l.abs().max(h.abs()).exp(), l.abs().max(h.abs()).exp()));
            Value { whole: false, square: true, ..e }
        }
        Sin | Cos | Tanh | Erf => bounded(-1.0, 1.0),
        Sigmoid => bounded(0.0, 1.0),
        Atan | Asin => bounded(-1.6, 1.6),
        Acos => bounded(0.0, 3.2),
        Recip => Value { square: false, ..quotient(Value::within(1.0, 1.0), a) },
        _ => Value::unknown(),
    }
}

/// A quotient; nothing is known of it if the divisor may be 0. A divisor of typical size is assumed to be as large as possible: the root
/// of a variance is seldom just that of the epsilon added to it.
fn quotient(a: Value, b: Value) -> Value {
    let apart = |y: Range| y.0 > 0.0 || y.1 < 0.0;
    let over = |x: Range, y: Range| {
        let over = |x: f64, y: f64| if y.is_infinite() { 0.0 } else { x / y };
        if apart(y) { corners(x, y, over) } else { (f64::NAN, f64::NAN) }
    };
    let most = |y: Range| match apart(y) {
        true if y.0 > 0.0 => (y.1, y.1),
        true => (y.0, y.0),
        false => y,
    };
    let usual = Value { typical: most(b.typical), unit: most(b.unit), ..b };
    Value { whole: false, ..a.with(usual, over) }
}

fn binary(op: BinaryOp, a: Value, b: Value, same: bool, power: Option<Scalar>, dtype: DType) -> Value {
    use BinaryOp::*;
    if op.is_comparison() {
        return Value::whole(0.0, 1.0);
    }
    match op {
        Add => a.with(b, |x, y| (x.0 + y.0, x.1 + y.1)),
        Sub => a.with(b, |x, y| (x.0 - y.1, x.1 - y.0)),
        Mul if same => {
            let square = a.map(|(l, h)| {
                let most = l.abs().max(h.abs());
                (0.0, times(most, most))
            });
            Value { square: dtype.is_float(), ..square }
        }
        Mul => a.with(b, |x, y| corners(x, y, times)),
        Min => a.with(b, |x, y| (x.0.min(y.0), x.1.min(y.1))),
        Max => a.with(b, |x, y| (x.0.max(y.0), x.1.max(y.1))),
        Div | Quot if dtype.is_float() => Value { square: a.square, ..quotient(a, b) },
        Pow if dtype.is_float() => match power.map(Scalar::as_f64) {
            Some(y) if y > 1.0 => {
                let raised = a.map(|(l, h)| {
                    let most = l.abs().max(h.abs()).powf(y);
                    (-most, most)
                });
                Value { whole: false, square: true, ..raised }
            }
            Some(y) if y > 0.0 => Value { whole: false, square: false, ..a },
            _ => Value::unknown(),
        },
        _ if dtype.is_float() => Value::unknown(),
        _ => Value::of_type(dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse;
    use std::sync::Arc;
    use wgfc_ir::Tensor;

    /// The last value stored by the last kernel of a text.
    fn last(text: &str) -> Value {
        let graph = parse(text).unwrap();
        let mut values = Values::new(&graph);
        let all: Vec<Vec<Value>> = graph.kernels.iter().map(|k| values.kernel(k)).collect();
        let store = graph.kernels.last().unwrap().stores.last().unwrap();
        all.last().unwrap()[store.value as usize]
    }

    fn map(body: &str) -> Value {
        let tensors = "t0: f32[9000] input 0 as \"x\"\nt1: f32[9000] output 0 as \"y\"\n\n";
        let body = body.lines().map(|l| format!("  {}\n", l.trim())).collect::<String>();
        last(&format!("{tensors}kernel 0 map [9000] @ \"n\"\n{body}"))
    }

    #[test]
    fn shares_of_a_softmax_are_at_most_one() {
        let softmax = "t0: f32[30, 300] input 0 as \"x\"\nt1: f32[30, 300] output 0 as \"y\"\n\nkernel 0 row [30, 300] @ \"n\"\n  \
            e0: f32 = t0[300*%0 + %1]\n  e1: f32 = acc0\n  e2: f32 = acc1\n  e3: f32 = sub(e0, e1)\n  e4: f32 = exp(e3)\n  \
            e5: f32 = div(e4, e2)\n  acc0 = max(e0): f32\n  acc1 = sum(e4): f32\n  t1[300*%0 + %1] = e5\n";
        let v = last(softmax);
        assert_eq!((v.proven, v.square), ((0.0, 1.0), false));
        // The exponential of anything else may be huge, and so may a quotient by the sum of something else.
        let v = last(&softmax.replace("sub(e0, e1)", "sub(e1, e0)").replace("sum(e4)", "sum(e0)"));
        assert!(v.square && v.proven.1 > MOST);
    }

    /// Levels of a constant times scales of a constant are weights, whatever their types allow; times anything else they are not.
    #[test]
    fn levels_times_scales_are_weights() {
        let product_of = |level: &str, scale: &str, body: &str| {
            let text = format!(
                "t0: {level}[9000] input 0 as \"q\"\nt1: {scale}[9000] input 1 as \"s\"\nt2: f32[9000] input 2 as \"x\"\n\
                 t3: f32[9000] output 0 as \"y\"\n\nkernel 0 map [9000] @ \"n\"\n  e0: {level} = t0[%0]\n  e1: f32 = cast(f32, e0)\n  \
                 e2: {scale} = t1[%0]\n  e3: f32 = cast(f32, e2)\n  e4: f32 = t2[%0]\n{body}"
            );
            let mut graph = parse(&text).unwrap();
            for t in &mut graph.tensors[..2] {
                t.kind = TensorKind::Const(Arc::new(Tensor::absent(t.ty.dtype, vec![9000])));
            }
            let mut values = Values::new(&graph);
            let all = values.kernel(&graph.kernels[0]);
            all[graph.kernels[0].stores[0].value as usize].typical
        };
        let product = |body: &str| product_of("i8", "f16", body);
        let weight = "  e5: f32 = mul(e3, e1)\n  e6: f32 = mul(e5, e1)\n";
        assert_eq!(product(&format!("{weight}  t3[%0] = e6\n")), USUAL);
        // Floats of few bits are levels too, but for those that have no bits beside their exponent: these are scales.
        let once = "  e5: f32 = mul(e3, e1)\n  t3[%0] = e5\n";
        assert_eq!(product_of("f4e2m1", "f8e8m0", once), USUAL);
        assert_ne!(product_of("f8e8m0", "f8e8m0", once), USUAL);
        // A factor that is no constant may be large, and so may a function of levels that is no sum or product.
        let large =
            "  e5: f32 = 100000.0:f32\n  e6: f32 = mul(e4, e5)\n  e7: f32 = mul(e6, e1)\n  t3[%0] = e7\n";
        assert!(product(large).1 > MOST);
        let raised = "  e5: f32 = exp(e1)\n  e6: f32 = mul(e5, e3)\n  t3[%0] = e6\n";
        assert!(product(raised).1 > MOST);
    }

    #[test]
    fn values_have_ranges() {
        let v = map(
            "e0: f32 = t0[%0]\ne1: f32 = sigmoid(e0)\ne2: f32 = 3.0:f32\ne3: f32 = mul(e1, e2)\nt1[%0] = e3",
        );
        assert_eq!((v.proven, v.square), ((0.0, 3.0), false));
        let v = map("e0: i32 = index(2*%0 + 1)\ne1: f32 = cast(f32, e0)\nt1[%0] = e1");
        assert_eq!((v.proven, v.whole), ((1.0, 17999.0), true));
        let v = map("e0: f32 = t0[%0]\ne1: f32 = 1e5:f32\ne2: f32 = mul(e0, e1)\nt1[%0] = e2");
        assert_eq!(v.typical, (-1.6e6, 1.6e6));
        assert!(v.typical.1 > MOST && v.proven == ALL);
        let v = map("e0: f32 = t0[%0]\ne1: f32 = 1e-6:f32\ne2: f32 = div(e0, e1)\nt1[%0] = e2");
        assert!(v.typical.1 > MOST && v.stored().typical == v.typical);
        // A norm with an epsilon, and a product of many bounds.
        let norm = "e0: f32 = t0[%0]\ne1: f32 = mul(e0, e0)\ne2: f32 = 1e-12:f32\ne3: f32 = add(e1, e2)";
        let v = map(&format!("{norm}\ne4: f32 = sqrt(e3)\ne5: f32 = div(e0, e4)\nt1[%0] = e5"));
        assert!(v.typical.1 < MOST);
        let v = map(
            "e0: f32 = t0[%0]\ne1: f32 = mul(e0, e0)\ne2: f32 = mul(e1, e1)\ne3: f32 = mul(e2, e0)\nt1[%0] = e3",
        );
        assert!(v.typical.1 > MOST && v.stored().typical.1 == TYPICAL);
        let v = map("e0: f32 = t0[%0]\ne1: f32 = mul(e0, e0)\nt1[%0] = e1");
        assert!(v.square && v.proven == (0.0, f64::INFINITY));
        let v = map("e0: u32 = 1065353216:u32\ne1: f32 = bitcast(f32, e0)\nt1[%0] = e1");
        assert!(v.bits);
        let v = map(
            "e0: f32 = t0[%0]\ne1: f32 = -3.4e38:f32\ne2: f32 = 0.0:f32\ne3: bool = gt(e0, e2)\ne4: f32 = select(e3, e2, e1)\nt1[%0] = e4",
        );
        assert!(v.typical.0 < -3e38 && v.typical.1 == 0.0);
    }
}
