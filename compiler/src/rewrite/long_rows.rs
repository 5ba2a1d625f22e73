//! Arg-reductions of few long rows: one workgroup per row would leave most of a device idle, so each row is cut into
//! parts.
//!
//! The position of an extreme element is found by one reduction of keys whose order is that of the elements, ties
//! broken by position: `key = order(x) · 2³² + position`, with the position complemented if the first of equal
//! elements is wanted. `order` flips the sign bit of a float, and all bits of negative floats.

use super::canonical::topo;
use crate::device::Speeds;
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::{
    BinaryOp, Body, DType, Dim, Graph, NodeId, Op, Poly, ReduceOp, Scalar, ScalarFn, UnaryOp, Value,
};

/// The number of elements of a part: four for each invocation of a workgroup of 256.
const PART: i64 = 1024;

/// Cuts the rows of ArgReduce operators into parts; returns the number of operators changed.
pub fn cut(graph: &mut Graph, speeds: &Speeds) -> Result<usize, String> {
    let mut count = 0;
    for n in topo(graph)? {
        if let Some(new) = cut_arg(graph, n, speeds)? {
            let names = graph.node(n).names.clone();
            graph.node_mut(new.node).names = names;
            graph.replace_uses(n.into(), new);
            count += 1;
        }
    }
    graph.remove_dead();
    Ok(count)
}

fn cut_arg(graph: &mut Graph, n: NodeId, speeds: &Speeds) -> Result<Option<Value>, String> {
    let node = graph.node(n);
    let Op::ArgReduce { op, axis, last } = node.op else { return Ok(None) };
    let x = node.inputs[0];
    let ty = graph.ty(x).clone();
    let (Some(len), Some(all)) = (ty.shape[axis].as_const(), ty.numel().as_const()) else { return Ok(None) };
    let float = matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16);
    // Only rows that would leave seven of eight cores idle, and that a workgroup does not read in negligible time.
    let few = all / len.max(1) <= (speeds.cores / 8.0) as i64;
    let long = speeds.little_bytes() / 4;
    if !float || !few || !(long.max(PART + 1)..=i64::from(i32::MAX)).contains(&len) {
        return Ok(None);
    }
    let origin = node.origin.first().map(|o| o.to_string()).unwrap_or_default();
    let mut b = Builder::new(graph, &origin);
    build(&mut b, x, &ty.shape, axis, op == ReduceOp::Max, last).map(Some)
}

fn build(b: &mut Builder, x: Value, shape: &[Dim], axis: usize, largest: bool, last: bool) -> Built {
    let len = shape[axis].clone();
    let x = b.cast(x, DType::F32)?;
    let keys = b.map_to(key(axis, largest, last), &[x], shape.to_vec())?;
    // `[.., parts, PART, ..]`; the last part may be shorter.
    let parts = len.ceil_div(PART);
    let mut cut = shape.to_vec();
    cut.splice(axis..=axis, [parts, PART.into()]);
    let position = |i: usize| match i.cmp(&axis) {
        std::cmp::Ordering::Less => Poly::var(i),
        std::cmp::Ordering::Equal => &(&Poly::var(axis) * PART) + &Poly::var(axis + 1),
        std::cmp::Ordering::Greater => Poly::var(i + 1),
    };
    let index = (0..shape.len()).map(position).collect();
    let fill = Some(Scalar::from_i64(DType::U64, 0));
    let keys = b.push(Op::View { shape: cut, index, fill }, &[keys])?;
    let tops = b.reduce(ReduceOp::Max, keys, &[axis + 1], false)?;
    let top = b.reduce(ReduceOp::Max, tops, &[axis], true)?;
    let mut f = Body::default();
    let key = f.arg(0);
    let low = f.cast(DType::U32, key);
    let low = if last { low } else { f.flipped(low, u32::MAX) };
    f.cast(DType::I64, low);
    b.map(f.0, &[top])
}

/// The key of an element of a row along `axis`.
fn key(axis: usize, largest: bool, last: bool) -> ScalarFn {
    let mut f = Body::default();
    let x = f.arg(0);
    let mut order = f.float_order(x);
    if !largest {
        // NaN is chosen before all numbers for the minimum, too.
        let (nan, top) = (f.unary(UnaryOp::IsNan, x), f.u32(i64::from(u32::MAX)));
        let least = f.flipped(order, u32::MAX);
        order = f.select(nan, top, least);
    }
    let high = f.cast(DType::U64, order);
    let by = f.u64(32);
    let high = f.binary(BinaryOp::Shl, high, by);
    let at = f.index(Poly::var(axis));
    let at = f.cast(DType::U32, at);
    let at = if last { at } else { f.flipped(at, u32::MAX) };
    let low = f.cast(DType::U64, at);
    f.binary(BinaryOp::Or, high, low);
    f.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::{Border, Tensor, TensorType, eval};

    #[test]
    fn positions_stay() {
        let (rows, len) = (4usize, 20_011usize);
        let mut v: Vec<f32> = (0..rows * len).map(|i| ((i * 7919) % 1009) as f32 - 504.0).collect();
        v[5] = -0.0;
        v[len + 17] = f32::INFINITY;
        v[2 * len + 20_000] = f32::NEG_INFINITY;
        (v[3 * len + 9_000], v[3 * len + 19_000], v[3 * len + 7]) = (f32::NAN, -f32::NAN, f32::INFINITY);
        let x = Tensor::from_f32(vec![rows, len], &v);
        for (op, last) in
            [(ReduceOp::Max, false), (ReduceOp::Max, true), (ReduceOp::Min, false), (ReduceOp::Min, true)]
        {
            let mut g = Graph::new();
            let i = g.add_input("x", TensorType::new(DType::F32, [rows, len].map(Dim::from)));
            let y = g.push(Op::ArgReduce { op, axis: 1, last }, &[i], &[]).unwrap();
            g.outputs.push(Border { name: "y".into(), value: y.into() });
            let inputs = [("x".to_owned(), x.clone())].into();
            let want = eval::evaluate(&g, &inputs).unwrap();
            // Rows that keep the cores busy are not cut, and neither are rows that are read in negligible time.
            let few_cores = Speeds { cores: 8.0 * rows as f64 - 1.0, ..Speeds::PORTABLE };
            assert_eq!(cut(&mut g, &few_cores).unwrap(), 0);
            let slow_dispatch = Speeds { dispatch_cost: 1e-3, ..Speeds::PORTABLE };
            assert_eq!(cut(&mut g, &slow_dispatch).unwrap(), 0);
            assert_eq!(cut(&mut g, &Speeds::PORTABLE).unwrap(), 1);
            wgfc_ir::verify::verify(&g).unwrap();
            assert_eq!(eval::evaluate(&g, &inputs).unwrap(), want, "{op:?} {last}");
        }
    }
}
