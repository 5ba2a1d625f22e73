//! Sorts of rows longer than a workgroup can sort, compared with the evaluator.

use std::collections::BTreeMap;
use wgfc_compiler::Options;
use wgfc_compiler::device::DeviceProfile;
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;
use wgfc_ir::{Border, DType, Dim, Graph, Op, Scalar, Tensor, TensorType, Value};
use wgfc_runtime::Session;
use wgfc_runtime::testing::gpus;

/// Elements with many duplicates; floats include both zeros, infinities and NaN, and 64-bit integers differ
/// in either word.
fn elements(dtype: DType, n: usize) -> Vec<Scalar> {
    let special = [-0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let one = |i: usize| {
        let v = (i.wrapping_mul(7919) % 1009) as i64;
        if dtype.is_float() {
            let v = special.get(v as usize).copied().unwrap_or(v as f64 / 8.0 - 50.0);
            return Scalar::from_f64(dtype, v);
        }
        let wide = dtype.bits() == 64 && i.is_multiple_of(3);
        let signed = dtype.class() == wgfc_ir::Class::Int;
        let v = if dtype.bits() == 8 { v % 100 } else { v } - if signed { 50 } else { 0 };
        Scalar::from_i64(dtype, if wide { v << 33 } else { v })
    };
    (0..n).map(one).collect()
}

fn graph(dtype: DType, shape: &[Dim], axis: usize, k: &Dim, largest: bool) -> Graph {
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(dtype, shape.to_vec()));
    let top = g.push(Op::TopK { axis, k: k.clone(), largest }, &[x], &["top_k".into()]).unwrap();
    for (port, name) in ["values", "positions"].into_iter().enumerate() {
        let value = Value { node: top, port: port as u32 };
        g.outputs.push(Border { name: name.into(), value });
    }
    g
}

fn check(g: &Graph, x: &Tensor, what: &str, options: &Options) {
    let given: BTreeMap<String, Tensor> = [("x".to_owned(), x.clone())].into();
    let want = evaluate(g, &given).unwrap();
    let program =
        wgfc_compiler::pipeline::compile_graph(g.clone(), Stats::default(), options, &mut |_, _| {}).unwrap();
    for gpu in gpus() {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let got = session.run_blocking(&[("x", x.clone())]).unwrap();
        for ((name, g), w) in got.iter().zip(&want) {
            assert_eq!(g.shape, w.shape, "{name}: {what}");
            let (g, w) = (g.scalars().unwrap(), w.scalars().unwrap());
            let same =
                |a: &Scalar, b: &Scalar| a.bits == b.bits || a.as_f64().is_nan() && b.as_f64().is_nan();
            let at = g.iter().zip(&w).position(|(a, b)| !same(a, b));
            assert!(
                at.is_none(),
                "{name} {at:?}: {:?}, not {:?}: {what} on {}",
                g[at.unwrap()],
                w[at.unwrap()],
                gpu.summary().name
            );
        }
    }
}

#[test]
fn rows_of_any_length_are_in_order() {
    let all: &[(DType, &[usize], usize, usize)] = &[
        (DType::F32, &[2, 129], 1, 129),
        (DType::F32, &[3, 5, 700], 2, 9),
        (DType::F32, &[9001, 3], 0, 9001),
        (DType::F32, &[2, 40_009], 1, 40_009),
        (DType::F32, &[2, 40_009], 1, 64),
        (DType::F32, &[40_009], 0, 3000),
        (DType::F16, &[2, 5003], 1, 5003),
        (DType::F16, &[2, 5003], 1, 7),
        (DType::I8, &[3, 2500], 1, 2500),
        (DType::U8, &[3, 2500], 1, 40),
        (DType::I32, &[1, 2049, 2], 1, 2049),
        (DType::U32, &[4, 2048], 1, 2048),
        (DType::I64, &[2, 5003], 1, 5003),
        (DType::I64, &[2, 5003], 1, 5),
        (DType::U64, &[4099], 0, 4099),
        (DType::F32, &[70_000, 130], 1, 1),
        (DType::F32, &[3, 60_007], 1, 500),
        (DType::F32, &[100_000], 0, 600),
    ];
    for (i, (dtype, shape, axis, k)) in all.iter().enumerate() {
        let dims: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
        let x = Tensor::from_scalars(*dtype, shape.to_vec(), &elements(*dtype, shape.iter().product()));
        let largest = i % 2 == 0;
        let what = format!("{k} of {dtype} {shape:?} along {axis}, largest {largest}");
        let software =
            Options { profile: DeviceProfile::named("software").unwrap_or_default(), ..Options::default() };
        // A device with one core uses longer parts.
        let longer = *k <= 512 && shape[*axis] > 4096;
        for options in [Options::default()].into_iter().chain(longer.then_some(software)) {
            check(&graph(*dtype, &dims, *axis, &Dim::from(*k), largest), &x, &what, &options);
        }
    }
}

#[test]
fn lengths_may_be_symbols() {
    for n in [1usize, 2, 130, 5003] {
        let dims = [Dim::from(2i64), Dim::sym("n")];
        let x = Tensor::from_scalars(DType::F32, vec![2, n], &elements(DType::F32, 2 * n));
        for (k, largest) in [(Dim::sym("n"), true), (Dim::ONE, false), (Dim::ONE, true)] {
            let what = format!("{k} of {n}, largest {largest}");
            check(&graph(DType::F32, &dims, 1, &k, largest), &x, &what, &Options::default());
        }
    }
}
