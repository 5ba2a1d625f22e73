//! Builds the kernel of one unit: pulls the anchor's operands and applies the epilogue to its result.

use super::scatter;
use crate::fuse::build::{Built, P, acc, epilogue, existence, finish, follow_up, tensor_of};
use crate::fuse::key_parts::is_copy;
use crate::fuse::loops::kernels::looped;
use crate::fuse::loops::lanes::Loops;
use crate::fuse::points::{self, ProductDomain, rows_of};
use crate::fuse::pulling::{Parts, Puller, Source, broadcast_index, flat_offset, unflatten};
use crate::fuse::tensors::{InMemory, Tensors};
use crate::fuse::unit::Split;
use crate::fuse::unit::{Unit, is_linear, is_small};
use crate::kernel::{
    Attention, Expr, ExprId, Family, Map, Matmul, PrefixScan, ReduceKind, Reduction, Row, Sort, Store,
};
use wgfc_ir::{
    Atom, BinaryOp, Contract, DType, Dim, Graph, NormKind, Op, Poly, ReduceOp, Reg, Scalar, UnaryOp, Value,
};

/// The most parts of attention that one invocation combines.
const FEW_PARTS: u32 = 16;

/// The kernel of a unit, and the values inlined into it with their expressions.
pub fn unit_kernel<'a>(graph: &'a Graph, unit: &Unit, loops: &Loops, tensors: &mut Tensors<'a>) -> Built {
    let node = graph.node(unit.anchor);
    let x = node.inputs.first().copied();
    match &node.op {
        _ if is_small(graph, unit.anchor) => elementwise(graph, unit, tensors),
        Op::Map { body, .. } if is_copy(body) => match x.map(|x| tensors.source(x)) {
            Some(Source::Parts(parts))
                if parts.count > FEW_PARTS || !parts.len.is(i64::from(parts.count)) =>
            {
                join(graph, unit, &parts, tensors)
            }
            _ => elementwise(graph, unit, tensors),
        },
        Op::Map { .. } | Op::View { .. } | Op::Gather { .. } | Op::Concat { .. } => {
            elementwise(graph, unit, tensors)
        }
        Op::Contract(c) => contract(graph, unit, c, tensors),
        Op::Scan { carried, .. } => {
            let mapping = loops.get(&unit.anchor).ok_or("a loop without lanes")?;
            looped(graph, unit, mapping, *carried, tensors)
        }
        Op::Attention { .. } => attention(graph, unit, tensors),
        Op::Softmax { axis, log } => row(graph, unit, &[*axis], tensors, |p, x, ty| softmax(p, x, ty, *log)),
        Op::Norm { kind, axes, epsilon } => {
            let n: Dim = axes.iter().map(|a| node.outputs[0].shape[*a].clone()).product();
            row(graph, unit, axes, tensors, |p, x, ty| norm(p, x, ty, *kind, &n, f32::from_bits(*epsilon)))
        }
        Op::Reduce { op, axes } => {
            let kind = match op {
                ReduceOp::Sum => ReduceKind::Sum,
                ReduceOp::Prod => ReduceKind::Prod,
                ReduceOp::Max => ReduceKind::Max,
                ReduceOp::Min => ReduceKind::Min,
            };
            reduce(graph, unit, axes, kind, tensors)
        }
        Op::ArgReduce { op, axis, last } => {
            let kind = ReduceKind::Arg { largest: *op == ReduceOp::Max, last: *last };
            reduce(graph, unit, &[*axis], kind, tensors)
        }
        Op::PrefixScan { op, axis, exclusive, reverse } => {
            prefix_scan(graph, unit, *op, *axis, (*exclusive, *reverse), tensors)
        }
        Op::TopK { axis, k, largest } => top_k(graph, unit, *axis, k, *largest, tensors),
        Op::Sort { axis, sorted, part, keep } => sort(graph, unit, *axis, (*sorted, *part, *keep), tensors),
        Op::Scatter { index, .. } if graph.written_in_place(unit.anchor).is_some() => {
            scatter::place(graph, unit, node.inputs[1], None, index, tensors)
        }
        Op::Place { index, .. } => scatter::place(graph, unit, node.inputs[0], None, index, tensors),
        Op::Scatter { reduce, index } if is_linear(graph, unit.anchor) => {
            scatter::place(graph, unit, node.inputs[1], *reduce, index, tensors)
        }
        Op::Scatter { reduce, index } => scatter::scan(graph, unit, *reduce, index, tensors),
        op => Err(format!("`{}` has no kernel of its own ({x:?})", op.name())),
    }
}

fn elementwise<'a>(graph: &'a Graph, unit: &Unit, tensors: &mut Tensors<'a>) -> Built {
    let v = Value::from(unit.anchor);
    let ty = graph.ty(v).clone();
    let elements = ty.numel();
    let tensor = tensor_of(tensors, v)?;
    let mut p = Puller::new(graph, InMemory::new(tensors), vec![elements.clone()]);
    let index = unflatten(&Poly::var(0), &ty.shape, &p.domain);
    let value = p.compute(v, &index, None)?;
    let stores = vec![Store { tensor, offset: Poly::var(0), value, guard: None, combine: None }];
    finish(graph, unit, p, Family::Map(Map { elements }), stores)
}

/// A kernel that combines the partial results of attention, one row for each result: `Σ wᵢ·sumᵢ / Σ wᵢ·totalᵢ` with
/// `wᵢ = exp(highestᵢ − the maximum of all)`.
fn join<'a>(graph: &'a Graph, unit: &Unit, parts: &Parts, tensors: &mut Tensors<'a>) -> Built {
    let v = Value::from(unit.anchor);
    let ty = graph.ty(v).clone();
    let (rows, len) = (ty.numel(), parts.len.clone());
    let tensor = tensor_of(tensors, v)?;
    let mut p = Puller::new(graph, InMemory::new(tensors), vec![rows.clone(), len.clone()]);
    let index = unflatten(&Poly::var(0), &ty.shape, &p.domain);
    let [sum, highest, total] = p.part(parts, &ty, &index, &Poly::var(1), None);
    let f = DType::F32;
    let top = acc(&mut p, 0, f);
    let [sum, total] = p.weighted(highest, top, [sum, total]);
    let reduction = |kind, value| Reduction { kind, value, dtype: f };
    let reductions = vec![
        reduction(ReduceKind::Max, highest),
        reduction(ReduceKind::Sum, sum),
        reduction(ReduceKind::Sum, total),
    ];
    let [sum, total] = [1, 2].map(|i| acc(&mut p, i, f));
    let value = p.over_total(sum, total, ty.dtype);
    let row_stores = vec![Store { tensor, offset: Poly::var(0), value, guard: None, combine: None }];
    finish(graph, unit, p, Family::Row(Row { rows, len, reductions, row_stores }), vec![])
}

/// A row-wise kernel whose result has the shape of its operand.
fn row<'a>(
    graph: &'a Graph,
    unit: &Unit,
    axes: &[usize],
    tensors: &mut Tensors<'a>,
    program: impl Fn(&mut P, ExprId, DType) -> (Vec<Reduction>, ExprId),
) -> Built {
    let x = graph.node(unit.anchor).inputs[0];
    let ty = graph.ty(x).clone();
    let (rows, len, index) = rows_of(&ty.shape, axes);
    let (_, found) = points::row_points(&ty.shape, axes, unit.split).ok_or("rows that cannot be split")?;
    let mut p = Puller::new(graph, InMemory::new(tensors), vec![rows.clone(), len.clone()]);
    let e = p.pull(x, &index, None)?;
    let (reductions, _) = program(&mut p, e, ty.dtype);
    let mut results = vec![];
    for point in &found {
        let exists = existence(&mut p, point);
        let e = p.pull(x, &point.at, exists)?;
        results.push(program(&mut p, e, ty.dtype).1);
    }
    let stores = follow_up(graph, unit, &mut p, vec![(unit.anchor.into(), found, results)])?;
    finish(graph, unit, p, Family::Row(Row { rows, len, reductions, row_stores: vec![] }), stores)
}

fn softmax(p: &mut P, x: ExprId, ty: DType, log: bool) -> (Vec<Reduction>, ExprId) {
    let x = p.cast(x, DType::F32);
    let max = acc(p, 0, DType::F32);
    let sum = acc(p, 1, DType::F32);
    let shifted = p.binary(BinaryOp::Sub, x, max);
    let e = p.unary(UnaryOp::Exp, shifted);
    let reductions = vec![
        Reduction { kind: ReduceKind::Max, value: x, dtype: DType::F32 },
        Reduction { kind: ReduceKind::Sum, value: e, dtype: DType::F32 },
    ];
    let r = if log {
        let l = p.unary(UnaryOp::Log, sum);
        p.binary(BinaryOp::Sub, shifted, l)
    } else {
        p.binary(BinaryOp::Div, e, sum)
    };
    (reductions, p.cast(r, ty))
}

fn norm(p: &mut P, x: ExprId, ty: DType, kind: NormKind, n: &Dim, epsilon: f32) -> (Vec<Reduction>, ExprId) {
    let f = DType::F32;
    let x = p.cast(x, f);
    let mut reductions = vec![];
    let centred = match kind {
        NormKind::Rms => x,
        NormKind::Layer => {
            reductions.push(Reduction { kind: ReduceKind::Sum, value: x, dtype: f });
            let sum = acc(p, 0, f);
            let count = p.index(n.clone());
            let count = p.cast(count, f);
            let mean = p.binary(BinaryOp::Div, sum, count);
            p.binary(BinaryOp::Sub, x, mean)
        }
    };
    let square = p.binary(BinaryOp::Mul, centred, centred);
    let i = reductions.len() as u32;
    reductions.push(Reduction { kind: ReduceKind::Sum, value: square, dtype: f });
    let sum = acc(p, i, f);
    let scale = inverse_root(p, sum, n, epsilon);
    let r = p.binary(BinaryOp::Mul, centred, scale);
    (reductions, p.cast(r, ty))
}

/// `1 / sqrt(sum / count + epsilon)`.
fn inverse_root(p: &mut P, sum: ExprId, count: &Dim, epsilon: f32) -> ExprId {
    let count = p.index(count.clone());
    let count = p.cast(count, DType::F32);
    let mean = p.binary(BinaryOp::Div, sum, count);
    let epsilon = p.f32(f64::from(epsilon));
    let v = p.binary(BinaryOp::Add, mean, epsilon);
    p.unary(UnaryOp::Rsqrt, v)
}

fn reduce<'a>(
    graph: &'a Graph,
    unit: &Unit,
    axes: &[usize],
    kind: ReduceKind,
    tensors: &mut Tensors<'a>,
) -> Built {
    let node = graph.node(unit.anchor);
    let ty = graph.ty(node.inputs[0]).clone();
    let (rows, len, index) = rows_of(&ty.shape, axes);
    let mut p = Puller::new(graph, InMemory::new(tensors), vec![rows.clone(), len.clone()]);
    let value = p.pull(node.inputs[0], &index, None)?;
    // Float sums accumulate in f32, whatever the storage type.
    let accumulate = if ty.dtype.is_float() { DType::F32 } else { ty.dtype };
    let value = if matches!(kind, ReduceKind::Arg { .. }) { value } else { p.cast(value, accumulate) };
    let out = node.outputs[0].dtype;
    let dtype = if matches!(kind, ReduceKind::Arg { .. }) { out } else { accumulate };
    let result = acc(&mut p, 0, dtype);
    let result = p.cast(result, out);
    let at =
        index.into_iter().enumerate().map(|(d, i)| if axes.contains(&d) { Poly::ZERO } else { i }).collect();
    let row_stores = epilogue(graph, unit, &mut p, &[result], &[at])?;
    let reductions = vec![Reduction { kind, value, dtype }];
    finish(graph, unit, p, Family::Row(Row { rows, len, reductions, row_stores }), vec![])
}

fn prefix_scan<'a>(
    graph: &'a Graph,
    unit: &Unit,
    op: ReduceOp,
    axis: usize,
    (exclusive, reverse): (bool, bool),
    tensors: &mut Tensors<'a>,
) -> Built {
    let x = graph.node(unit.anchor).inputs[0];
    let ty = graph.ty(x).clone();
    let (rows, len, index) = rows_of(&ty.shape, &[axis]);
    let mut p = Puller::new(graph, InMemory::new(tensors), vec![rows.clone(), len.clone()]);
    let value = p.pull(x, &index, None)?;
    let dtype = if ty.dtype.is_float() { DType::F32 } else { ty.dtype };
    let value = p.cast(value, dtype);
    let result = acc(&mut p, 0, dtype);
    let result = p.cast(result, ty.dtype);
    let stores = epilogue(graph, unit, &mut p, &[result], &[index])?;
    let kind = match op {
        ReduceOp::Sum => ReduceKind::Sum,
        ReduceOp::Prod => ReduceKind::Prod,
        ReduceOp::Max => ReduceKind::Max,
        ReduceOp::Min => ReduceKind::Min,
    };
    let reduction = Reduction { kind, value, dtype };
    finish(
        graph,
        unit,
        p,
        Family::PrefixScan(PrefixScan { rows, len, reduction, exclusive, reverse }),
        stores,
    )
}

fn contract<'a>(graph: &'a Graph, unit: &Unit, c: &Contract, tensors: &mut Tensors<'a>) -> Built {
    let node = graph.node(unit.anchor);
    let out = node.outputs[0].dtype;
    if out.reg() != Reg::F32 {
        return integer_contract(graph, unit, c, tensors);
    }
    let product = ProductDomain::of(graph, unit.anchor, unit.split).ok_or("columns that cannot be split")?;
    let [batch, m, n, k] = &product.domain[..] else { return Err("a product has four extents".into()) };
    let (batch, m, n, k) = (batch.clone(), m.clone(), n.clone(), k.clone());
    let mut p = Puller::new(graph, InMemory::new(tensors), product.domain.clone());
    p.deferred = Some(vec![]);
    let a = p.pull(node.inputs[0], &product.at(&c.a, 0), None)?;
    let a = widened(&mut p, a);
    let (mut sums, mut scales) = (vec![], vec![]);
    for (i, norm) in p.deferred.take().unwrap_or_default().into_iter().enumerate() {
        sums.push(norm.square);
        let sum = acc(&mut p, (product.parts() + i) as u32, DType::F32);
        scales.push(inverse_root(&mut p, sum, &norm.count, norm.epsilon));
    }
    let (mut b, mut results, mut at) = (vec![], vec![], vec![]);
    for part in 0..product.parts() {
        let e = p.pull(node.inputs[1], &product.at(&c.b, part), None)?;
        b.push(widened(&mut p, e));
        let mut result = acc(&mut p, part as u32, DType::F32);
        for scale in &scales {
            result = p.binary(BinaryOp::Mul, result, *scale);
        }
        results.push(p.cast(result, out));
        at.push(product.at(&c.out, part));
    }
    let stores = epilogue(graph, unit, &mut p, &results, &at)?;
    finish(graph, unit, p, Family::Matmul(Matmul { batch, m, n, k, a, b, sums, rounded: false }), stores)
}

/// An operand of a product in f32, without a rounding that only storing it would require.
fn widened(p: &mut P, e: ExprId) -> ExprId {
    match *p.body().expr(e) {
        Expr::Cast(to, x) if to.is_float() && p.body().dtype(x) == DType::F32 => x,
        _ => p.cast(e, DType::F32),
    }
}

/// For integer products the domain is rows (batch, m, n) and columns (k).
fn integer_contract<'a>(graph: &'a Graph, unit: &Unit, c: &Contract, tensors: &mut Tensors<'a>) -> Built {
    let node = graph.node(unit.anchor);
    let out = node.outputs[0].dtype;
    let product = ProductDomain::of(graph, unit.anchor, Split::NONE).ok_or("not a product")?;
    let [batch, m, n, k] = &product.domain[..] else { return Err("a product has four extents".into()) };
    let (rows, len) = (&(batch * m) * n, k.clone());
    let domain = vec![rows.clone(), len.clone()];
    let mut flat = unflatten(&Poly::var(0), &[batch.clone(), m.clone(), n.clone()], &domain);
    flat.push(Poly::var(1));
    let at = |labels: &[u8]| -> Vec<Poly> {
        product.at(labels, 0).iter().map(|p| p.subst_vars(&flat, &domain)).collect()
    };
    let mut p = Puller::new(graph, InMemory::new(tensors), domain.clone());
    let a = p.pull(node.inputs[0], &at(&c.a), None)?;
    let b = p.pull(node.inputs[1], &at(&c.b), None)?;
    let value = p.binary(BinaryOp::Mul, a, b);
    let result = acc(&mut p, 0, out);
    let row_stores = epilogue(graph, unit, &mut p, &[result], &[at(&c.out)])?;
    let reductions = vec![Reduction { kind: ReduceKind::Sum, value, dtype: out }];
    finish(graph, unit, p, Family::Row(Row { rows, len, reductions, row_stores }), vec![])
}

fn attention<'a>(graph: &'a Graph, unit: &Unit, tensors: &mut Tensors<'a>) -> Built {
    let node = graph.node(unit.anchor);
    let Op::Attention { scale, empty_is_zero } = node.op else { return Err("not attention".into()) };
    let shape = |i: usize| graph.ty(node.inputs[i]).shape.clone();
    let (sq, sv) = (shape(0), shape(2));
    let r = sq.len();
    let place = points::attention(&sq, &sv).ok_or("attention needs matrices")?;
    let (domain, at) = (place.domain.clone(), |i, j| place.at(i, j));
    let mut p = Puller::new(graph, InMemory::new(tensors), domain.clone());
    let f = DType::F32;
    let q = p.pull(node.inputs[0], &at(1, 3), None)?;
    let k = p.pull(node.inputs[1], &at(2, 3), None)?;
    let v = p.pull(node.inputs[2], &at(2, 4), None)?;
    let (q, k, v) = (p.cast(q, f), p.cast(k, f), p.cast(v, f));
    let mask = match node.inputs.get(3) {
        None => None,
        Some(m) => {
            let mut scores = sq.clone();
            scores[r - 1] = domain[2].clone();
            let at = broadcast_index(graph.ty(*m), &scores, &at(1, 2));
            let e = p.pull(*m, &at, None)?;
            let zero = matches!(p.body().expr(e), Expr::Const(s) if s.as_f64() == 0.0);
            (!zero).then(|| p.cast(e, f))
        }
    };
    let result = acc(&mut p, 0, f);
    let (mut stores, mut part_stores, mut parts_len) = (vec![], vec![], Dim::ONE);
    if let Source::Parts(parts) = p.resolver.tensors.source(unit.anchor.into()) {
        let count = i64::from(parts.count);
        p.domain.push(parts.len.clone());
        parts_len = parts.len;
        let row = flat_offset(&sq[..r - 1], &at(1, 4)[..r - 1], &p.domain);
        let row = &(&row * count) + &Poly::var(5);
        let offset = &(&row * &domain[4]) + &Poly::var(4);
        stores.push(Store { tensor: parts.sums, offset, value: result, guard: None, combine: None });
        let row = &row * 2;
        for i in 0..2 {
            let value = acc(&mut p, 1 + i, f);
            let offset = &row + &Poly::constant(i64::from(i));
            part_stores.push(Store { tensor: parts.scales, offset, value, guard: None, combine: None });
        }
    } else {
        let result = p.cast(result, node.outputs[0].dtype);
        stores = epilogue(graph, unit, &mut p, &[result], &[at(1, 4)])?;
    }
    let Ok([batch, s, t, d, e]) = <[Dim; 5]>::try_from(domain) else {
        return Err("attention has five extents".into());
    };
    let scale = f32::from_bits(scale);
    let family = Family::Attention(Attention {
        batch,
        s,
        t,
        d,
        e,
        q,
        k,
        v,
        mask,
        scale,
        empty_is_zero,
        parts: parts_len,
        part_stores,
    });
    finish(graph, unit, p, family, stores)
}

fn sort<'a>(
    graph: &'a Graph,
    unit: &Unit,
    axis: usize,
    (sorted, part, keep): (i64, i64, i64),
    tensors: &mut Tensors<'a>,
) -> Built {
    let x = graph.node(unit.anchor).inputs[0];
    let (_, _, index) = points::rows_of(&graph.ty(x).shape, &[axis]);
    let (domain, at) = points::places_of(graph, unit.anchor, axis);
    let mut p = Puller::new(graph, InMemory::new(tensors), domain.clone());
    let key = p.pull(x, &index, None)?;
    let result = acc(&mut p, 0, DType::U64);
    let stores = epilogue(graph, unit, &mut p, &[result], &[at])?;
    let Ok([rows, len, places]) = <[Dim; 3]>::try_from(domain) else {
        return Err("an order has three extents".into());
    };
    finish(graph, unit, p, Family::Sort(Sort { rows, len, places, sorted, part, keep, key }), stores)
}

/// Each element counts the elements that precede it in the order, which gives its rank. NaN counts as the greatest: without a total order
/// some ranks would stay empty.
fn top_k<'a>(
    graph: &'a Graph,
    unit: &Unit,
    axis: usize,
    k: &Dim,
    largest: bool,
    tensors: &mut Tensors<'a>,
) -> Built {
    let node = graph.node(unit.anchor);
    let x = node.inputs[0];
    let ty = graph.ty(x).clone();
    let (rows, len) = (ty.numel(), ty.shape[axis].clone());
    let domain = vec![rows.clone(), len.clone()];
    let mut p = Puller::new(graph, InMemory::new(tensors), domain);
    let mine_at = unflatten(&Poly::var(0), &ty.shape, &p.domain);
    let mut other_at = mine_at.clone();
    other_at[axis] = Poly::var(1);
    let mine = p.pull(x, &mine_at, None)?;
    let other = p.pull(x, &other_at, None)?;
    let mut before = p.binary(if largest { BinaryOp::Gt } else { BinaryOp::Lt }, other, mine);
    let mut equal = p.binary(BinaryOp::Eq, other, mine);
    if ty.dtype.is_float() {
        let [other, mine] = [other, mine].map(|x| p.push(Expr::Unary(UnaryOp::IsNan, x), DType::Bool));
        let greater = p.binary(if largest { BinaryOp::Gt } else { BinaryOp::Lt }, other, mine);
        let both = p.binary(BinaryOp::And, other, mine);
        before = p.binary(BinaryOp::Or, before, greater);
        equal = p.binary(BinaryOp::Or, equal, both);
    }
    let (i, j) = (p.index(mine_at[axis].clone()), p.index(Poly::var(1)));
    let earlier = p.binary(BinaryOp::Lt, j, i);
    let tie = p.binary(BinaryOp::And, equal, earlier);
    let counts = p.binary(BinaryOp::Or, before, tie);
    let (one, zero) =
        (p.constant(Scalar::from_i64(DType::I32, 1)), p.constant(Scalar::from_i64(DType::I32, 0)));
    let value = p.push(Expr::Select(counts, one, zero), DType::I32);
    let rank = acc(&mut p, 0, DType::I32);
    let limit = p.index(k.clone());
    let guard = Some(p.binary(BinaryOp::Lt, rank, limit));
    let mut to = mine_at;
    to[axis] = Poly::atom(Atom::Data(rank));
    let offset = flat_offset(&node.outputs[0].shape, &to, &p.domain);
    let position = p.cast(i, DType::I64);
    let mut row_stores = vec![];
    for v in &unit.outputs {
        let value = if v.port == 0 { mine } else { position };
        row_stores.push(Store {
            tensor: tensor_of(p.resolver.tensors, *v)?,
            offset: offset.clone(),
            value,
            guard,
            combine: None,
        });
    }
    let reductions = vec![Reduction { kind: ReduceKind::Sum, value, dtype: DType::I32 }];
    finish(graph, unit, p, Family::Row(Row { rows, len, reductions, row_stores }), vec![])
}
