use super::*;
use std::collections::BTreeMap;
use wgfc_ir::eval::evaluate;
use wgfc_ir::{Border, Builder, Graph, Tensor, TensorType};

/// The elementwise products of the rows, computed through their parts.
fn products(parts: &Parts, rows: &[Tensor]) -> Tensor {
    let n = rows[0].shape[0];
    let mut g = Graph::new();
    let inputs: Vec<_> = (0..rows.len())
        .map(|i| g.add_input(&format!("x{i}"), TensorType::new(rows[i].dtype, vec![n.into()])))
        .collect();
    let mut b = Builder::new(&mut g, "product");
    let mut sums = vec![];
    for of in &parts.of {
        let terms: Vec<_> = inputs.iter().map(|x| b.map(of.clone(), &[*x]).unwrap()).collect();
        sums.push(terms.into_iter().reduce(|a, c| b.binary(B::Add, a, c).unwrap()).unwrap());
    }
    let value = b.map(parts.product.clone(), &sums).unwrap();
    g.outputs.push(Border { name: "y".into(), value });
    wgfc_ir::verify::verify(&g).unwrap();
    let given: BTreeMap<String, Tensor> =
        rows.iter().enumerate().map(|(i, t)| (format!("x{i}"), t.clone())).collect();
    evaluate(&g, &given).unwrap().remove(0)
}

#[test]
fn logarithms_are_those_of_the_table() {
    for (i, c) in (1..).zip(LOGS) {
        let exact = 2f64.powi(-i).ln_1p() / std::f64::consts::LN_2 * 2f64.powi(POINT as i32);
        assert!((c as f64 - exact).abs() < exact * 1e-15 + 1.0, "{i}: {c}, not {exact}");
    }
}

#[test]
fn products_of_integers_are_exact() {
    let mut all: Vec<i64> =
        vec![0, 1, -1, 2, 3, 4, 5, 6, 7, 1 << 31, -(1 << 31), i64::MIN, i64::MAX, 1 << 32, 0x5555_5555];
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    for shift in 0..60 {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        all.push((x >> shift) as i64);
    }
    let pairs: Vec<(i64, i64)> = all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))).collect();
    let column = |of: &dyn Fn(&(i64, i64)) -> i64, t: DType| {
        let cut =
            |v: i64| wgfc_ir::Scalar::from_i64(t, if t == DType::U32 { i64::from(v as u32) } else { v });
        let v: Vec<_> = pairs.iter().map(|p| cut(of(p))).collect();
        Tensor::from_scalars(t, vec![pairs.len()], &v)
    };
    for t in [DType::U32, DType::U64] {
        let rows = [column(&|p| p.0, t), column(&|p| p.1, t), column(&|p| p.0 ^ p.1, t)];
        let got = products(&Parts::of_integers(t), &rows);
        let want = column(&|p| p.0.wrapping_mul(p.1).wrapping_mul(p.0 ^ p.1), t);
        assert_eq!(got.bytes(), want.bytes(), "{t:?}");
    }
}

#[test]
fn products_of_floats_are_rounded_once() {
    let all = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        3.0,
        -7.0,
        1.5,
        0.1,
        1e-3,
        -1e20,
        3e38,
        1e-38,
        1e-40,
        1e-45,
        1.999_999_9,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        16_777_215.0,
    ];
    let pairs: Vec<(f32, f32)> = all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))).collect();
    let n = pairs.len();
    let (a, b): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    for most in [1i64, 2, 1 << 20] {
        let got = products(
            &Parts::of_floats(&most.into()),
            &[Tensor::from_f32(vec![n], &a), Tensor::from_f32(vec![n], &b)],
        );
        for (got, (a, b)) in got.to_f32s().unwrap().into_iter().zip(&pairs) {
            let want = a * b;
            let near = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            // Ties may be rounded the other way.
            let finite = got.is_finite() && want.is_finite();
            let close = finite && (got - want).abs() <= want.abs() * f32::EPSILON + 2e-45;
            assert!(near || close, "{a} · {b}: {got}, not {want}, where {most} meet");
        }
    }
}
