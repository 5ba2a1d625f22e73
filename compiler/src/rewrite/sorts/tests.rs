use super::*;
use wgfc_ir::{Border, Scalar, Tensor, TensorType, eval};

/// Elements with many duplicates, both zeros, infinities and NaN.
fn mixed(n: usize) -> Vec<f32> {
    let mut v: Vec<f32> = (0..n).map(|i| ((i * 7919) % 211) as f32 - 105.0).collect();
    for (i, special) in
        [-0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN].into_iter().enumerate()
    {
        for at in [i, n / 2 + i, n.saturating_sub(1 + i)] {
            v[at] = special;
        }
    }
    v
}

fn graph(dtype: DType, shape: &[Dim], axis: usize, k: &Dim, largest: bool) -> Graph {
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(dtype, shape.to_vec()));
    let top = g.push(Op::TopK { axis, k: k.clone(), largest }, &[x], &[]).unwrap();
    for (port, name) in ["values", "positions"].into_iter().enumerate() {
        let value = Value { node: top, port: port as u32 };
        g.outputs.push(Border { name: name.into(), value });
    }
    g
}

fn same(mut g: Graph, x: &Tensor, what: &str) -> Graph {
    let inputs = [("x".to_owned(), x.clone())].into();
    let want = eval::evaluate(&g, &inputs).unwrap();
    let small = DeviceProfile { max_workgroup_bytes: 512, ..DeviceProfile::default() };
    for device in [&small, &DeviceProfile::default()] {
        let mut new = g.clone();
        assert_eq!(expand(&mut new, device, SHORT).unwrap(), 1, "{what}");
        wgfc_ir::verify::verify(&new).unwrap();
        let got = eval::evaluate(&new, &inputs).unwrap();
        assert_eq!(format!("{got:?}"), format!("{want:?}"), "{what}");
        g = if std::ptr::eq(device, &small) { g } else { new };
    }
    g
}

#[test]
fn orders_stay() {
    let n = 1003usize;
    for k in [1usize, 5, 64, 500, 1003] {
        for largest in [false, true] {
            let shape = [3, n].map(Dim::from);
            let x = Tensor::from_f32(vec![3, n], &mixed(3 * n));
            let g = graph(DType::F32, &shape, 1, &Dim::from(k), largest);
            same(g, &x, &format!("{k} of {n}, {largest}"));
        }
    }
}

#[test]
fn any_axis_and_type() {
    let n = 301usize;
    let shape = [2, n, 3].map(Dim::from);
    for dtype in [DType::F16, DType::I8, DType::U8, DType::I32, DType::U32, DType::I64, DType::U64] {
        let spread = 2 * n * 3;
        let v: Vec<Scalar> = (0..spread)
            .map(|i| {
                let v = ((i * 7919) % 97) as i64 - if dtype == DType::U8 { 0 } else { 48 };
                let wide = matches!(dtype, DType::I64 | DType::U64) && i % 3 == 0;
                Scalar::from_i64(dtype, if wide { v << 33 } else { v })
            })
            .collect();
        let x = Tensor::from_scalars(dtype, vec![2, n, 3], &v);
        for k in [4usize, n] {
            same(graph(dtype, &shape, 1, &Dim::from(k), true), &x, &format!("{k} of {dtype}"));
            same(graph(dtype, &shape, 1, &Dim::from(k), false), &x, &format!("{k} least of {dtype}"));
        }
    }
}

#[test]
fn any_length() {
    let shape = [Dim::sym("n")];
    for n in [1usize, 2, 700] {
        let x = Tensor::from_f32(vec![n], &mixed(n.max(24))[..n]);
        same(graph(DType::F32, &shape, 0, &Dim::sym("n"), true), &x, &format!("{n}"));
        same(graph(DType::F32, &shape, 0, &Dim::ONE, false), &x, &format!("one of {n}"));
    }
}

#[test]
fn short_rows_stay() {
    let shape = [Dim::from(1000i64), Dim::from(SHORT)];
    let mut g = graph(DType::F32, &shape, 1, &Dim::ONE, true);
    assert_eq!(expand(&mut g, &DeviceProfile::default(), SHORT).unwrap(), 0);
}
