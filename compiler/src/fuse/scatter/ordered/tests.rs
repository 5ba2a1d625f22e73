use super::*;
use std::collections::BTreeMap;
use wgfc_ir::eval::evaluate;
use wgfc_ir::{Poly, Tensor};

/// `updates[a, n, c]` combine with `data[first, c, second]` at `index[n, 2]`, with the column axis in the middle; `a` repeats the
/// updates.
fn graph(t: DType, how: ReduceOp, [first, second, n, columns]: [Dim; 4]) -> Graph {
    let mut g = Graph::new();
    let data = g.add_input("data", TensorType::new(t, vec![first, columns.clone(), second]));
    let updates = g.add_input("updates", TensorType::new(t, vec![n.clone(), columns]));
    let places = g.add_input("index", TensorType::new(DType::I64, vec![n, 2usize.into()]));
    let at = |i: i64| GatherAxis::Data { input: 2, at: vec![Poly::var(0), Poly::constant(i)] };
    let index = vec![at(0), GatherAxis::Affine(Poly::var(1)), at(1)];
    let y = g.push(Op::Scatter { reduce: Some(how), index }, &[data, updates, places], &[]).unwrap();
    g.outputs.push(Border { name: "y".into(), value: y.into() });
    g
}

/// The graph with its scatter in sorted form.
fn ordered(graph: &Graph) -> Graph {
    let mut g = graph.clone();
    let n = g.node_ids().find(|n| matches!(g.node(*n).op, Op::Scatter { .. })).unwrap();
    let rows = Rows::of(&g, n).unwrap();
    let new = rows.combined(&mut g, &Options::default()).unwrap();
    crate::fuse::loops::prepare::replace(&mut g, n, &[new]);
    g.remove_dead();
    wgfc_ir::verify::verify(&g).unwrap();
    g
}

/// Data are small multiples of a quarter, or arbitrary bits. Half of the indices are equal, and some are out of bounds.
fn inputs(t: DType, [first, second, n, columns]: [usize; 4]) -> BTreeMap<String, Tensor> {
    let mut seed = 7u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as i64
    };
    let mut tensor = |shape: Vec<usize>| {
        let v: Vec<Scalar> = (0..shape.iter().product())
            .map(|_| match t.is_float() {
                true => Scalar::from_f64(t, (next() % 9) as f64 / 4.0 - 1.0),
                false => Scalar::from_i64(t, next() << 20),
            })
            .collect();
        Tensor::from_scalars(t, shape, &v)
    };
    let (data, updates) = (tensor(vec![first, columns, second]), tensor(vec![n, columns]));
    let ends = [first, second].map(|d| d as i64);
    let index: Vec<i64> = (0..n)
        .flat_map(|_| {
            let kind = next() % 8;
            ends.map(|d| match kind {
                0..4 => 1.min(d - 1),
                4 => -1 - next() % d,
                5 => d + next() % 3 - 1,
                _ => next() % d,
            })
        })
        .collect();
    let index = Tensor::from_i64(vec![n, 2], &index);
    [("data".to_owned(), data), ("updates".to_owned(), updates), ("index".to_owned(), index)].into()
}

#[test]
fn rows_combine_in_order() {
    for (sizes, named) in
        [([23, 9, 300, 12], 0), ([400, 1, 130, 7], 0), ([60, 40, 50, 8], 0), ([23, 9, 300, 12], 4)]
    {
        for t in [DType::F32, DType::F16, DType::I32, DType::U64, DType::I64] {
            for how in ReduceOp::ALL {
                let names = ["a", "b", "n", "c"];
                let dims = [0, 1, 2, 3].map(|i| if i < named { Dim::sym(names[i]) } else { sizes[i].into() });
                let g = graph(t, how, dims);
                let any = combines(how, t);
                let x = inputs(t, sizes);
                let n = g.node_ids().find(|n| matches!(g.node(*n).op, Op::Scatter { .. })).unwrap();
                assert_eq!(Rows::of(&g, n).is_none(), any, "{t} {how:?}");
                if any {
                    continue;
                }
                let want = evaluate(&g, &x).unwrap().remove(0).scalars().unwrap();
                let got = evaluate(&ordered(&g), &x).unwrap().remove(0).scalars().unwrap();
                for (i, (a, b)) in want.iter().zip(&got).enumerate() {
                    let (x, y) = (a.as_f64(), b.as_f64());
                    let off = if how == ReduceOp::Prod && t == DType::F16 { 0.02 } else { 0.0 };
                    let close = a.bits == b.bits || t.is_float() && (x - y).abs() <= off * x.abs();
                    assert!(close, "{t} {how:?} {sizes:?}: {x} and {y} at {i}");
                }
            }
        }
    }
}

#[test]
fn columns_of_their_own_indices_stay() {
    let mut g = Graph::new();
    let data = g.add_input("data", TensorType::new(DType::F32, vec![900usize.into(), 8usize.into()]));
    let updates = g.add_input("updates", TensorType::new(DType::F32, vec![900usize.into(), 8usize.into()]));
    let places = g.add_input("index", TensorType::new(DType::I64, vec![900usize.into(), 8usize.into()]));
    let at = vec![Poly::var(0), Poly::var(1)];
    let index = vec![GatherAxis::Data { input: 2, at }, GatherAxis::Affine(Poly::var(1))];
    let op = Op::Scatter { reduce: Some(ReduceOp::Sum), index };
    let n = g.push(op, &[data, updates, places], &[]).unwrap();
    assert!(Rows::of(&g, n).is_none());
}
