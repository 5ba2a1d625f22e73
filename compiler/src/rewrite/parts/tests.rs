use super::*;
use wgfc_ir::{Border, Tensor, TensorType, eval};

/// Speeds for which rows are cut at the slightest gain.
const EAGER: Speeds = Speeds { dispatch_cost: 1e-9, workgroup_bandwidth: 1e9, ..Speeds::DISCRETE };

fn same(dtype: DType, shape: &[usize], op: Op, v: &dyn Fn(usize) -> f64) {
    let what = format!("{op:?} of {dtype} {shape:?}");
    let mut g = Graph::new();
    let dims: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
    let x = g.add_input("x", TensorType::new(dtype, dims));
    let y = g.push(op, &[x], &[]).unwrap();
    g.outputs.push(Border { name: "y".into(), value: y.into() });
    let of = |i| match dtype.is_int() {
        true => Scalar::from_i64(dtype, v(i) as i64),
        false => Scalar::from_f64(dtype, v(i)),
    };
    let all: Vec<Scalar> = (0..shape.iter().product()).map(of).collect();
    let given = [("x".to_owned(), Tensor::from_scalars(dtype, shape.to_vec(), &all))].into();
    let want = eval::evaluate(&g, &given).unwrap();
    assert_eq!(cut(&mut g, &EAGER).unwrap(), 1, "{what}");
    wgfc_ir::verify::verify(&g).unwrap();
    let got = eval::evaluate(&g, &given).unwrap();
    assert_eq!(got[0].shape, want[0].shape, "{what}");
    for (a, b) in got[0].scalars().unwrap().iter().zip(want[0].scalars().unwrap()) {
        let (a, b) = (a.as_f64(), b.as_f64());
        let close = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 2e-3 * b.abs().max(1e-6);
        assert!(close, "{what}: {a}, not {b}");
    }
}

#[test]
fn adjacent_columns_count_together() {
    // A column has few bytes; the adjacent columns are read by the same workgroup.
    let fast = Speeds { workgroup_bandwidth: 2.0 * Speeds::DISCRETE.workgroup_bandwidth, ..Speeds::DISCRETE };
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(DType::F32, [4096usize, 4096].map(Dim::from).to_vec()));
    let scan = Op::PrefixScan { op: ReduceOp::Sum, axis: 0, exclusive: false, reverse: false };
    let y = g.push(scan, &[x], &[]).unwrap();
    g.outputs.push(Border { name: "y".into(), value: y.into() });
    assert_eq!(cut(&mut g, &fast), Ok(1));
}

const ALL: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];

#[test]
fn combinations_stay() {
    for (dtype, shape, axes) in [
        (DType::F32, vec![40_000], vec![0]),
        (DType::F32, vec![3, 20_011], vec![1]),
        (DType::F16, vec![20_011, 8], vec![0]),
        (DType::F32, vec![16, 5, 40, 40], vec![0, 2, 3]),
        (DType::I64, vec![2, 9001], vec![1]),
    ] {
        for op in ALL {
            let axes = axes.clone();
            let low = if op == ReduceOp::Prod { 1.0 } else { 0.25 };
            let v = |i: usize| if dtype.is_int() { (i % 7) as f64 } else { low + (i % 97) as f64 * 1e-6 };
            same(dtype, &shape, Op::Reduce { op, axes }, &v);
        }
    }
}

#[test]
fn running_combinations_stay() {
    for (dtype, shape, axis) in [
        (DType::F32, vec![40_000], 0),
        (DType::F32, vec![3, 20_011], 1),
        (DType::F32, vec![9001, 8], 0),
        (DType::I64, vec![2, 9001], 1),
    ] {
        for op in ALL {
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                let v = |i: usize| if dtype.is_int() { (i % 7) as f64 } else { 1.0 + (i % 97) as f64 * 1e-6 };
                same(dtype, &shape, Op::PrefixScan { op, axis, exclusive, reverse }, &v);
            }
        }
    }
}

#[test]
fn exponentials_stay() {
    let inf = f64::INFINITY;
    for log in [false, true] {
        for shape in [vec![2usize, 20_011], vec![40_000]] {
            let op = Op::Softmax { axis: shape.len() - 1, log };
            same(DType::F32, &shape, op.clone(), &|i| (i % 97) as f64 / 8.0);
            same(DType::F32, &shape, op.clone(), &|i| if i % 4000 < 3990 { -inf } else { 1.0 });
            same(DType::F32, &shape, op.clone(), &|i| if i == 7 { f64::NAN } else { 1.0 });
            same(DType::F32, &shape, op.clone(), &|_| -inf);
        }
    }
    same(DType::F32, &[20_011, 8], Op::Softmax { axis: 0, log: false }, &|i| (i % 97) as f64 / 8.0);
}
