//! Guards of rules, and right-hand sides that are code instead of a pattern.

use super::number::{Exponents, Number};
use super::term::{Attr, Facts, Head, Term, Terms, attr, attr_of, lit};
use super::views::ViewMap;
use egg::{Applier, Id, PatternAst, Subst, Symbol, Var};
use num_traits::Signed;
use wgfc_ir::{BinaryOp, DType, Dim, NormKind, Poly, Scalar, ScalarNode, TensorType};

/// A pattern variable of a rule in this crate's tables.
#[expect(clippy::expect_used, reason = "the names are literals of the rule tables, which the tests build")]
fn var(name: &str) -> Var {
    name.parse().expect("a pattern variable")
}

pub(super) fn ty(g: &Terms, id: Id) -> Option<&TensorType> {
    g[id].data.ty.as_deref()
}

/// All elements of `v` are `x`.
pub fn is(v: &str, x: f64) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let v = var(v);
    move |g, _, s| g[s[v]].data.value.as_ref().is_some_and(|c| c.is(x))
}
/// `v` depends on constants only.
pub fn konst(v: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let v = var(v);
    move |g, _, s| g[s[v]].data.konst
}
/// `v` has the same known value everywhere and rank 0, so that it broadcasts without adding axes.
pub fn scalar(v: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let v = var(v);
    move |g, _, s| g[s[v]].data.value.is_some() && ty(g, s[v]).is_some_and(|t| t.rank() == 0)
}
/// The constant `v` has no infinite or NaN element and is not −0; rules do not compute with such values.
pub fn finite(v: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let v = var(v);
    move |g, _, s| is_finite(&g[s[v]].data)
}

fn is_finite(f: &Facts) -> bool {
    let int = f.ty.as_ref().is_some_and(|t| !t.dtype.is_float());
    int || f.value.as_ref().map_or(f.magnitudes.is_some(), |v| v.rational().is_some())
}

/// All products of an element of the constant `a` and one of `b` are normal numbers of their type.
pub fn normal_product(a: &str, b: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let (a, b) = (var(a), var(b));
    move |g, root, s| {
        let Some(dtype) = ty(g, root).map(|t| t.dtype) else { return false };
        let (a, b) = (&g[s[a]].data, &g[s[b]].data);
        if !dtype.is_float() {
            return true;
        }
        if !is_finite(a) || !is_finite(b) || (a.value.is_some() && b.value.is_some()) {
            return is_finite(a) && is_finite(b);
        }
        let product = a.magnitudes.zip(b.magnitudes).map(|(a, b)| a.times(b));
        product.is_some_and(|p| p.fit(dtype) && p.are_normal(dtype))
    }
}

/// The reciprocals of all non-zero elements of the constant `c` are normal numbers of their type.
pub fn normal_reciprocal(c: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let c = var(c);
    move |g, root, s| {
        let Some(dtype) = ty(g, root).map(|t| t.dtype) else { return false };
        let c = &g[s[c]].data;
        let normal = |m: Exponents| {
            let recip = Exponents { zero: false, ..m }.recip();
            recip.is_some_and(|r| r.fit(dtype) && r.are_normal(dtype))
        };
        c.value.is_some() || c.magnitudes.is_none_or(normal)
    }
}

/// The constants `c` and `k` that are added to `x` (`c` is subtracted if `minus`) may be added to each other first. If
/// `x` nearly cancels their sum, a rounded sum of constants has a larger error than the original steps, so the sum
/// must be exact, or `x` a [`product`]. Constants of opposite signs are not combined: models round by adding and
/// subtracting a large number.
pub fn gather(x: &str, c: &str, k: &str, minus: bool) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let (x, c, k) = (var(x), var(c), var(k));
    move |g, root, s| {
        let (x, c, k) = (&g[s[x]].data, &g[s[c]].data, &g[s[k]].data);
        let float = ty(g, root).is_none_or(|t| t.dtype.is_float());
        let op = if minus { BinaryOp::Sub } else { BinaryOp::Add };
        let exact = match (&c.value, &k.value) {
            (Some(c), Some(k)) => {
                let negative = |n: &Number| n.rational().is_some_and(Signed::is_negative);
                if (negative(c) != minus) != negative(k) {
                    return !float;
                }
                Number::binary(op, k, c).is_some_and(|sum| sum.exact().is_some())
            }
            _ => false,
        };
        c.konst && k.konst && (!float || (is_finite(c) && is_finite(k) && (x.product || exact)))
    }
}

/// The factor `c` may be moved across a sum of products: neither position can leave the range of the type, unless the
/// other nearly does. A factor of 16-bit floats is not moved: models put it where the sum does not overflow.
pub fn moderate(c: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    const MOST: i64 = 32;
    let c = var(c);
    move |g, root, s| {
        let Some(dtype) = ty(g, root).map(|t| t.dtype) else { return false };
        let c = &g[s[c]].data;
        let within = c.magnitudes.is_none_or(|m| m.least >= -MOST && m.most <= MOST);
        !dtype.is_float() || (dtype.bits() >= 32 && is_finite(c) && within)
    }
}

/// `v` is a matrix product, possibly times a constant or moved by a view. Its terms were rounded before they were
/// summed, so that multiplying the terms loses no more than multiplying the sum.
pub fn product(v: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let v = var(v);
    move |g, _, s| g[s[v]].data.product
}
/// The product of the view `m` and `c` has the view's shape.
pub fn same_mul(m: &str, c: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let (m, c) = (var(m), var(c));
    move |g, root, s| {
        let Some(Attr::View(m)) = attr_of(g, s[m]) else { return false };
        ty(g, s[c]).is_some() && ty(g, root).is_some_and(|t| t.shape == m.shape)
    }
}
/// `v` has the type of the replaced term.
pub fn same_type(v: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let v = var(v);
    move |g, root, s| ty(g, root).is_some() && ty(g, root) == ty(g, s[v])
}
/// The replaced term is a float.
pub fn float() -> impl Fn(&mut Terms, Id, &Subst) -> bool {
    move |g, root, _| ty(g, root).is_some_and(|t| t.dtype.is_float())
}
/// `v` has the same known value everywhere: a finite power of two, as is its reciprocal.
pub fn power_of_two(v: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let v = var(v);
    move |g, _, s| g[s[v]].data.value.as_ref().is_some_and(|c| exact_reciprocal(c).is_some())
}
/// Every value of `x` is preserved by the conversion to type `t` and back.
pub fn widens(x: &str, t: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let (x, t) = (var(x), var(t));
    move |g, _, s| {
        let Some(Attr::Type(to)) = attr_of(g, s[t]) else { return false };
        ty(g, s[x]).is_some_and(|x| lossless(x.dtype, *to))
    }
}
/// `b` should be the first operand of the commutative operator whose first operand is `a`: it has the shape of the
/// result and `a` does not, or `a` is a constant and `b` is not. Never true in both directions.
pub fn goes_first(b: &str, a: &str) -> impl Fn(&mut Terms, Id, &Subst) -> bool + use<> {
    let (b, a) = (var(b), var(a));
    move |g, root, s| {
        let rank = |v| (ty(g, v) == ty(g, root), !g[v].data.konst);
        rank(s[b]) > rank(s[a])
    }
}

fn lossless(from: DType, to: DType) -> bool {
    use DType::*;
    match (from, to) {
        (a, b) if a == b => true,
        (F16 | BF16 | F8E4M3 | F8E4M3Uz | F8E5M2 | F8E5M2Uz | F8E8M0 | F4E2M1, F32 | F64) | (F32, F64) => {
            true
        }
        (Bool, _) => true,
        (I8 | I4 | I2 | U8 | U4 | U2, F16 | F32 | F64) => true,
        (I16 | U16, F32 | F64) => true,
        (a, b) if a.is_int() && b.is_int() => {
            let signed = |d: DType| d.class() == wgfc_ir::Class::Int;
            match (signed(a), signed(b)) {
                (x, y) if x == y => a.bits() <= b.bits(),
                (false, true) => a.bits() < b.bits(),
                _ => false,
            }
        }
        _ => false,
    }
}

/// `1/c` if both are powers of two and normal in the type.
fn exact_reciprocal(c: &Number) -> Option<Number> {
    c.rational()?;
    let v = c.exact()?.as_f64();
    let limit = if c.dtype() == DType::F16 { 1 << 13 } else { 1 << 30 } as f64;
    let two = v.is_normal() && v.to_bits() << 12 == 0 && (1.0 / limit..=limit).contains(&v.abs());
    two.then(|| Scalar::from_f64(c.dtype(), 1.0 / v).into())
}

/// A right-hand side in code: the e-class that equals the matched one, or `None` if the rule does not apply.
pub struct Make<F>(pub F);

impl<F> Applier<Term, super::term::Table> for Make<F>
where
    F: Fn(&mut Terms, Id, &Subst) -> Option<Id>,
{
    fn apply_one(
        &self,
        g: &mut Terms,
        root: Id,
        s: &Subst,
        _: Option<&PatternAst<Term>>,
        _: Symbol,
    ) -> Vec<Id> {
        match (self.0)(g, root, s) {
            // A term without a type, or with another type than the replaced one, indicates a bug in the rule and is
            // ignored.
            Some(id) if ty(g, id).is_some() && ty(g, id) == ty(g, root) && g.union(root, id) => vec![id],
            _ => vec![],
        }
    }
}

/// `x · (1/c)` for a power of two `c`.
pub fn times_reciprocal(x: &str, c: &str) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (x, c) = (var(x), var(c));
    Make(move |g: &mut Terms, _, s: &Subst| {
        let r = exact_reciprocal(g[s[c]].data.value.as_ref()?)?;
        let r = lit(g, r);
        Some(g.add(Term::new(Head::Binary(BinaryOp::Mul), [s[x], r])))
    })
}

/// The composition of the view `inner` and then `outer`, as one view of `x`.
pub fn composed(
    outer: &str,
    inner: &str,
    x: &str,
) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (outer, inner, x) = (var(outer), var(inner), var(x));
    Make(move |g: &mut Terms, _, s: &Subst| {
        let of = ty(g, s[x])?.shape.clone();
        let (Attr::View(o), Attr::View(i)) = (attr_of(g, s[outer])?, attr_of(g, s[inner])?) else {
            return None;
        };
        let map = i.then(o, &of)?;
        if map.is_identity(&of) {
            return Some(s[x]);
        }
        let m = attr(g, Attr::View(map));
        Some(g.add(Term::new(Head::View, [m, s[x]])))
    })
}

/// `x`, if its view `m` is the identity.
pub fn unless_moved(m: &str, x: &str) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (m, x) = (var(m), var(x));
    Make(move |g: &mut Terms, _, s: &Subst| {
        let Attr::View(m) = attr_of(g, s[m])? else { return None };
        m.is_identity(&ty(g, s[x])?.shape).then_some(s[x])
    })
}

/// `(view m (mul x c))` as `(mul (view m x) c)`, for a constant `c` with one value and a view without fill.
pub fn mul_after_view(
    m: &str,
    x: &str,
    c: &str,
) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (m, x, c) = (var(m), var(x), var(c));
    Make(move |g: &mut Terms, _, s: &Subst| {
        let Attr::View(ViewMap { index, fill: None, .. }) = attr_of(g, s[m])? else { return None };
        if index.len() != ty(g, s[x])?.rank() {
            return None;
        }
        let value = g[s[c]].data.value.clone()?;
        let value = lit(g, value);
        let v = g.add(Term::new(Head::View, [s[m], s[x]]));
        Some(g.add(Term::new(Head::Binary(BinaryOp::Mul), [v, value])))
    })
}

/// The axes along which a tensor of shape `s`, aligned at the last axis, varies in a result of shape `out`: pairs of
/// an axis of `s` and one of the result.
fn varying(s: &[Dim], out: usize) -> Option<Vec<(usize, usize)>> {
    let skip = out.checked_sub(s.len())?;
    Some((0..s.len()).filter(|i| !s[*i].is(1)).map(|i| (i, skip + i)).collect())
}

/// `(mul (view m y) c)` as `(view m (mul y c'))` for a constant `c`.
///
/// Each axis along which `c` varies must consist of whole axes of `y`, in row-major order: the channel axis of a
/// convolution's result consists of its groups and the channels of a group.
pub fn mul_before_view(
    m: &str,
    y: &str,
    c: &str,
) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (m, y, c) = (var(m), var(y), var(c));
    Make(move |g: &mut Terms, _, s: &Subst| {
        let Attr::View(map @ ViewMap { fill: None, .. }) = attr_of(g, s[m])? else { return None };
        if !g[s[y]].nodes.iter().any(|n| matches!(n.head, Head::Contract | Head::View)) {
            return None;
        }
        let of = ty(g, s[y])?.shape.clone();
        let cs = ty(g, s[c])?.shape.clone();
        let mut shape = vec![Dim::ONE; of.len()];
        let mut index = vec![Poly::ZERO; cs.len()];
        for (i, d) in varying(&cs, map.shape.len())? {
            let mut stride = Poly::ONE;
            let mut read = Poly::ZERO;
            for e in (0..of.len()).rev() {
                let vars = map.index[e].vars();
                if !vars.contains(&d) {
                    continue;
                }
                if vars.len() > 1 {
                    return None;
                }
                read = &read + &(&map.index[e] * &stride);
                index[i] = &index[i] + &(&Poly::var(e) * &stride);
                stride = &stride * &of[e];
                shape[e] = of[e].clone();
            }
            if stride != map.shape[d] || read.subst(&|_| None, &map.shape) != Poly::var(d) {
                return None;
            }
        }
        let c = reread(g, s[c], ViewMap { shape, index, fill: None })?;
        let scaled = g.add(Term::new(Head::Binary(BinaryOp::Mul), [s[y], c]));
        Some(g.add(Term::new(Head::View, [s[m], scaled])))
    })
}

/// The constant `c` viewed through `map`, as a rank-0 constant if it has one value.
fn reread(g: &mut Terms, c: Id, map: ViewMap) -> Option<Id> {
    if let Some(v) = g[c].data.value.clone() {
        return Some(lit(g, v));
    }
    if map.is_identity(&ty(g, c)?.shape) {
        return Some(c);
    }
    let m = attr(g, Attr::View(map));
    Some(g.add(Term::new(Head::View, [m, c])))
}

/// `(mul (contract l a b) c)` with the constant `c` multiplied into operand `which` (0: a, 1: b)
/// instead. `c` may vary along that operand's labels only.
pub fn mul_into_operand(
    l: &str,
    a: &str,
    b: &str,
    c: &str,
    which: usize,
) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (l, a, b, c) = (var(l), var(a), var(b), var(c));
    Make(move |g: &mut Terms, _, s: &Subst| {
        let Attr::Labels(labels) = attr_of(g, s[l])? else { return None };
        let (operand, own) = if which == 0 { (s[a], labels.a.clone()) } else { (s[b], labels.b.clone()) };
        let out = labels.out.clone();
        let beside = scaled(g, s[a]) || scaled(g, s[b]);
        if beside || !scalable(&g[operand].data, &g[s[c]].data) {
            return None;
        }
        let cs = ty(g, s[c])?.shape.clone();
        let mut shape = vec![Dim::ONE; own.len()];
        let mut index = vec![Poly::ZERO; cs.len()];
        for (i, d) in varying(&cs, out.len())? {
            let at = own.iter().position(|o| *o == out[d])?;
            shape[at] = cs[i].clone();
            index[i] = Poly::var(at);
        }
        let c = reread(g, s[c], ViewMap { shape, index, fill: None })?;
        let scaled = g.add(Term::new(Head::Binary(BinaryOp::Mul), [operand, c]));
        let args = if which == 0 { [s[l], scaled, s[b]] } else { [s[l], s[a], scaled] };
        Some(g.add(Term::new(Head::Contract, args)))
    })
}

/// Whether a value is known to be a multiple by a single number. A product with such an operand equals a product
/// without the factor, whose operands can take other factors; if this product took them itself, it would collect
/// powers of the factor without end: `(a · c) @ (b / c)` is `a @ b`.
fn scaled(g: &Terms, v: Id) -> bool {
    let one = |id: Id| g[id].data.value.is_some() && ty(g, id).is_some_and(|t| t.rank() == 0);
    let by_one =
        |t: &Term| matches!((t.head, t.args.as_slice()), (Head::Binary(BinaryOp::Mul), [_, c]) if one(*c));
    g[v].nodes.iter().any(by_one)
}

/// Whether the elements of a constant operand times `c` keep their precision. For a computed operand, [`moderate`]
/// decides.
fn scalable(operand: &Facts, c: &Facts) -> bool {
    let Some(dtype) = operand.ty.as_ref().map(|t| t.dtype) else { return false };
    match (operand.magnitudes, c.magnitudes) {
        (Some(w), Some(c)) => w.times(c).fit(dtype) && w.stay_normal(c, dtype),
        (None, _) if operand.konst && dtype.is_float() => false,
        // All elements are 0.
        _ => true,
    }
}

/// `(reduce.sum axes (contract l a b))` with sums taken as early as possible: over labels of only one operand, in that
/// operand; over labels of both, in the contraction.
pub fn sum_of_product(
    axes: &str,
    l: &str,
    a: &str,
    b: &str,
) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (axes, l, a, b) = (var(axes), var(l), var(a), var(b));
    Make(move |g: &mut Terms, root, s: &Subst| {
        // A sum of f16 may overflow where its products do not.
        let dtype = ty(g, root)?.dtype;
        if dtype.is_float() && dtype.bits() < 32 {
            return None;
        }
        let (Attr::Labels(labels), Attr::Axes(over)) = (attr_of(g, s[l])?, attr_of(g, s[axes])?) else {
            return None;
        };
        let out = labels.out.clone();
        let over: Vec<u8> = over.iter().filter_map(|i| out.get(*i).copied()).collect();
        let mut labels = labels.clone();
        let both = |label: &u8| labels.a.contains(label) && labels.b.contains(label);
        labels.out = out.iter().copied().filter(|label| !(over.contains(label) && both(label))).collect();
        let mut sum = |own: &[u8], other: &[u8], operand: Id| {
            let alone = |i: &usize| over.contains(&own[*i]) && !other.contains(&own[*i]);
            let along: Vec<usize> = (0..own.len()).filter(alone).collect();
            if along.is_empty() {
                return operand;
            }
            let along = attr(g, Attr::Axes(along));
            g.add(Term::new(Head::Reduce(wgfc_ir::ReduceOp::Sum), [along, operand]))
        };
        let (a, b) = (sum(&labels.a, &labels.b, s[a]), sum(&labels.b, &labels.a, s[b]));
        let kept = labels.out.clone();
        let labels = attr(g, Attr::Labels(labels));
        let product = g.add(Term::new(Head::Contract, [labels, a, b]));
        if kept.len() == out.len() {
            return Some(product);
        }
        let index = kept.iter().filter_map(|l| out.iter().position(|o| o == l)).map(Poly::var).collect();
        let shape = ty(g, root)?.shape.clone();
        let map = attr(g, Attr::View(ViewMap { shape, index, fill: None }));
        Some(g.add(Term::new(Head::View, [map, product])))
    })
}

/// `(softmax axis x)` if the reduction `axes` has a single axis.
pub fn softmax_over(
    axes: &str,
    x: &str,
    log: bool,
) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (axes, x) = (var(axes), var(x));
    Make(move |g: &mut Terms, _, s: &Subst| {
        let Attr::Axes(axes) = attr_of(g, s[axes])? else { return None };
        let [axis] = axes.as_slice() else { return None };
        let axis = attr(g, Attr::Softmax(*axis, log));
        Some(g.add(Term::new(Head::Softmax, [axis, s[x]])))
    })
}

/// The logarithm of the softmax along `axis`.
pub fn log_softmax(axis: &str, x: &str) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (axis, x) = (var(axis), var(x));
    Make(move |g: &mut Terms, _, s: &Subst| {
        let Attr::Softmax(axis, false) = attr_of(g, s[axis])? else { return None };
        let axis = attr(g, Attr::Softmax(*axis, true));
        Some(g.add(Term::new(Head::Softmax, [axis, s[x]])))
    })
}

/// `(div sum n)`, if the factor `r` is `1/n`.
pub fn mean_over(
    axes: &str,
    x: &str,
    r: &str,
) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (axes, x, r) = (var(axes), var(x), var(r));
    Make(move |g: &mut Terms, _, s: &Subst| {
        let r = g[s[r]].data.value.as_ref()?;
        let dtype = r.dtype();
        let Attr::Axes(over) = attr_of(g, s[axes])? else { return None };
        let t = ty(g, s[x])?;
        let n: Dim = over.iter().map(|a| t.shape[*a].clone()).product();
        let n = n.as_const()?;
        if Number::one_over(dtype, n)? != *r {
            return None;
        }
        let n = Number::integer(dtype, n)?;
        let n = lit(g, n);
        let sum = g.add(Term::new(Head::Reduce(wgfc_ir::ReduceOp::Sum), [s[axes], s[x]]));
        Some(g.add(Term::new(Head::Binary(BinaryOp::Div), [sum, n])))
    })
}

/// A number known while compiling: a constant, or a dimension given by an index map.
fn number(g: &Terms, id: Id) -> Option<Poly> {
    if let Some(n) = &g[id].data.value {
        let v = n.exact()?.as_f64();
        return (v.fract() == 0.0 && v.abs() < 9e15).then(|| Poly::constant(v as i64));
    }
    g[id].nodes.iter().find_map(|n| match (n.head, n.args.as_slice()) {
        (Head::Map, [body]) => match attr_of(g, *body)? {
            Attr::Body(f, _) => match f.nodes.split_first()? {
                (ScalarNode::Index(p), rest) if rest.iter().all(|n| matches!(n, ScalarNode::Cast(..))) => {
                    Some(p.clone())
                }
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

/// The norm of `x` over `axes`, if `n` is the product of their extents and `eps` a positive constant.
pub fn norm_over(
    kind: NormKind,
    axes: &str,
    n: &str,
    eps: &str,
    x: &str,
) -> Make<impl Fn(&mut Terms, Id, &Subst) -> Option<Id> + use<>> {
    let (axes, n, eps, x) = (var(axes), var(n), var(eps), var(x));
    Make(move |g: &mut Terms, _, s: &Subst| {
        let Attr::Axes(over) = attr_of(g, s[axes])? else { return None };
        let t = ty(g, s[x])?;
        let extent: Dim = over.iter().map(|a| t.shape[*a].clone()).product();
        let e = g[s[eps]].data.value.as_ref()?.rounded()?.as_f64() as f32;
        if number(g, s[n])? != extent || !e.is_finite() || e < 0.0 {
            return None;
        }
        let e = attr(g, Attr::Epsilon(e.to_bits()));
        Some(g.add(Term::new(Head::Norm(kind), [s[axes], e, s[x]])))
    })
}
