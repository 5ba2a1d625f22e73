//! Tests of distributions and of seeds.

use crate::import::onnx::testing::*;
use crate::import::onnx::{NodeProto, TensorProto, data_type};
use std::collections::BTreeMap;
use wgfc_ir::eval::evaluate;
use wgfc_ir::{DType, Scalar, Tensor};

/// All outputs of a node with these inputs.
fn run(node: NodeProto, inputs: &[Tensor]) -> Vec<Vec<f64>> {
    let declared = node.input.iter().zip(inputs).map(|(name, t)| {
        let dims: Vec<String> = t.shape.iter().map(usize::to_string).collect();
        value(name, t.dtype, &dims.join(" "))
    });
    let outputs = node.output.iter().map(|o| untyped(o)).collect();
    let m = model(graph(vec![node.clone()], declared.collect(), outputs));
    let imported = import_it(&m).unwrap_or_else(|e| panic!("{e}"));
    let fed = node.input.iter().cloned().zip(inputs.iter().cloned()).collect();
    numbers(evaluate(&imported.graph, &fed).unwrap_or_else(|e| panic!("{e}")))
}

fn numbers(outputs: Vec<Tensor>) -> Vec<Vec<f64>> {
    let of = |t: &Tensor| t.scalars().expect("it is in memory").iter().map(|s| s.as_f64()).collect();
    outputs.iter().map(of).collect()
}

fn moments(v: &[f64]) -> (f64, f64) {
    let n = v.len() as f64;
    let mean = v.iter().sum::<f64>() / n;
    (mean, v.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n)
}

/// The autocorrelation of a sequence at a distance, for a distribution with this mean and variance.
fn correlation(v: &[f64], distance: usize, (mean, variance): (f64, f64)) -> f64 {
    let pairs = v.iter().zip(&v[distance..]);
    pairs.map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>() / variance / (v.len() - distance) as f64
}

fn floats_of(v: &[f64], shape: &[usize]) -> Tensor {
    let v: Vec<Scalar> = v.iter().map(|v| Scalar::from_f64(DType::F32, *v)).collect();
    Tensor::from_scalars(DType::F32, shape.to_vec(), &v)
}

const N: i64 = 100_000;

#[test]
fn uniform_numbers_are_even_and_independent() {
    for seed in [0.0, 1.0, 17.5] {
        let draw = node("RandomUniform", &[], &["y"]).ints("shape", &[N / 100, 100]).float("seed", seed);
        let v = &run(draw.float("low", -3.0).float("high", 5.0), &[])[0];
        assert!(v.iter().all(|x| (-3.0..5.0).contains(x)));
        let mut counts = [0.0; 64];
        for x in v {
            counts[((x + 3.0) * 8.0) as usize] += 1.0;
        }
        let expected = N as f64 / 64.0;
        let chi: f64 = counts.iter().map(|c: &f64| (c - expected).powi(2) / expected).sum();
        // With 63 degrees of freedom, chi-squared exceeds 111 with a probability of about one in ten thousand.
        assert!(chi < 111.0, "{chi}");
        for distance in [1, 2, 99, 100, 101] {
            let r = correlation(v, distance, (1.0, 64.0 / 12.0));
            assert!(r.abs() < 0.013, "{distance}: {r}");
        }
    }
}

#[test]
fn short_floats_stay_below_the_end() {
    for dtype in [10, 16] {
        let v = &run(node("RandomUniform", &[], &["y"]).ints("shape", &[N]).int("dtype", dtype), &[])[0];
        assert!(v.iter().all(|x| (0.0..1.0).contains(x)));
        assert!((moments(v).0 - 0.5).abs() < 0.01, "{:?}", moments(v));
    }
}

#[test]
fn normal_numbers_have_their_moments() {
    let draw = node("RandomNormal", &[], &["y"]).ints("shape", &[N]).float("mean", 2.0).float("scale", 3.0);
    let v = &run(draw, &[])[0];
    let (mean, variance) = moments(v);
    assert!((mean - 2.0).abs() < 0.04 && (variance - 9.0).abs() < 0.2, "{mean} {variance}");
    let z: Vec<f64> = v.iter().map(|x| (x - 2.0) / 3.0).collect();
    let share = |f: &dyn Fn(f64) -> bool| z.iter().filter(|x| f(**x)).count() as f64 / N as f64;
    // The shares within one, two and three standard deviations.
    for (limit, expected) in [(1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)] {
        let got = share(&|x| x.abs() < limit);
        assert!((got - expected).abs() < 0.006, "{limit}: {got}");
    }
    assert!((share(&|x| x > 0.0) - 0.5).abs() < 0.007);
    assert!(correlation(&z, 1, (0.0, 1.0)).abs() < 0.013);
}

#[test]
fn seeds_and_names_decide() {
    let draw = |name: &str| node("RandomNormal", &[], &["y"]).ints("shape", &[100]).named(name);
    let same = |a: NodeProto, b: NodeProto| run(a, &[]) == run(b, &[]);
    assert!(same(draw("a"), draw("a")));
    assert!(!same(draw("a"), draw("b")));
    assert!(same(draw("a").float("seed", 3.0), draw("b").float("seed", 3.0)));
    assert!(!same(draw("a").float("seed", 3.0), draw("a").float("seed", 4.0)));
}

#[test]
fn classes_come_as_often_as_they_are_likely() {
    let p = [0.5, 0.25, 0.2, 0.05, 0.0];
    let mut rows: Vec<f64> = p.iter().map(|p: &f64| p.ln()).collect();
    rows.extend([7.0; 5]);
    let draw = node("Multinomial", &["x"], &["y"]).int("sample_size", 20_000).int("dtype", 7);
    let v = &run(draw, &[floats_of(&rows, &[2, 5])])[0];
    for (row, p) in v.chunks(20_000).zip([p, [0.2; 5]]) {
        for (class, p) in p.into_iter().enumerate() {
            let share = row.iter().filter(|c| **c == class as f64).count() as f64 / 20_000.0;
            assert!((share - p).abs() < 0.015, "{class}: {share} for {p}");
        }
    }
}

/// Many samples of many classes are drawn by a search in the cumulative probabilities.
#[test]
fn many_classes_come_as_often_as_they_are_likely() {
    let likely = |class: usize| match class {
        3 => 0.5,
        4..=599 => 0.0,
        _ => 0.5 / 103.0,
    };
    let rows: Vec<f64> = (0..1400).map(|i| if i < 700 { f64::ln(likely(i)) } else { 7.0 }).collect();
    let draw = node("Multinomial", &["x"], &["y"]).int("sample_size", 20_000).int("dtype", 7);
    let v = &run(draw, &[floats_of(&rows, &[2, 700])])[0];
    for (row, p) in v.chunks(20_000).zip([&likely as &dyn Fn(usize) -> f64, &|_| 1.0 / 700.0]) {
        for class in 0..700 {
            let share = row.iter().filter(|c| **c == class as f64).count() as f64 / 20_000.0;
            assert!((share - p(class)).abs() < if p(class) > 0.0 { 0.015 } else { 1e-9 }, "{class}: {share}");
        }
    }
}

#[test]
fn bernoulli_takes_its_probabilities() {
    let p: Vec<f64> = (0..=4).flat_map(|i| vec![f64::from(i) / 4.0; 10_000]).collect();
    let v = &run(node("Bernoulli", &["x"], &["y"]), &[floats_of(&p, &[5, 10_000])])[0];
    for (i, row) in v.chunks(10_000).enumerate() {
        let share = row.iter().sum::<f64>() / 10_000.0;
        let expected = i as f64 / 4.0;
        let slack = if i % 4 == 0 { 0.0 } else { 0.02 };
        assert!((share - expected).abs() <= slack, "{share} for {expected}");
    }
}

#[test]
fn dropout_keeps_the_mean() {
    let x: Vec<f64> = vec![3.0; 20_000];
    let train = node("Dropout", &["x", "ratio", "training"], &["y", "kept"]).int("seed", 5);
    let mut g =
        graph(vec![train], vec![value("x", DType::F32, "20000")], vec![untyped("y"), untyped("kept")]);
    g.initializer.push(floats("ratio", &[], &[0.75]));
    let on = TensorProto {
        data_type: data_type::code(DType::Bool),
        int32_data: vec![1],
        ..ints("training", &[], &[])
    };
    g.initializer.push(on);
    let imported = import_it(&model(g)).unwrap_or_else(|e| panic!("{e}"));
    let fed = BTreeMap::from([("x".to_owned(), floats_of(&x, &[20_000]))]);
    let got = numbers(evaluate(&imported.graph, &fed).expect("it runs"));
    let (y, kept) = (&got[0], &got[1]);
    assert!(y.iter().zip(kept).all(|(y, k)| *y == 12.0 * k));
    assert!((moments(kept).0 - 0.25).abs() < 0.015);
}

#[test]
fn wrong_attributes_are_named() {
    let wrong = |n: NodeProto| errors(&model(graph(vec![n.named("draw")], vec![], vec![untyped("y")])));
    let e = wrong(node("RandomNormal", &[], &["y"]).ints("shape", &[2, -3]));
    assert!(e.contains("draw") && e.contains("`shape`") && e.contains("-3"), "{e}");
    let e = wrong(node("RandomUniform", &[], &["y"]).ints("shape", &[2]).int("dtype", 7));
    assert!(e.contains("`dtype`") && e.contains("i64"), "{e}");
    let e = wrong(node("RandomUniform", &[], &["y"]).ints("shape", &[2]).int("seed", 7));
    assert!(e.contains("`seed`"), "{e}");
}

/// Every iteration of a loop, and of a nested loop, draws different numbers.
#[test]
fn iterations_draw_their_own() {
    let drawing = |name: &str| node("RandomUniform", &[], &[name]).ints("shape", &[50]).float("seed", 7.0);
    let keep = || node("Identity", &["c"], &["c2"]);
    let inner = graph(
        vec![keep(), drawing("r")],
        vec![untyped("i"), untyped("c")],
        vec![untyped("c2"), untyped("r")],
    );
    let outer_body = graph(
        vec![keep(), node("Loop", &["three"], &["rs"]).graph("body", inner.clone()), drawing("own")],
        vec![untyped("i"), untyped("c")],
        vec![untyped("c2"), untyped("rs"), untyped("own")],
    );
    let scanning = graph(vec![drawing("r")], vec![untyped("x")], vec![untyped("r")]);
    let scan = node("Scan", &["rows"], &["scanned"]).int("num_scan_inputs", 1).graph("body", scanning);
    let two = node("Loop", &["two"], &["nested", "single"]).graph("body", outer_body);
    let mut g = graph(
        vec![scan, two],
        vec![value("rows", DType::F32, "4 1")],
        vec![untyped("scanned"), untyped("nested"), untyped("single")],
    );
    g.initializer = vec![ints("two", &[], &[2]), ints("three", &[], &[3])];
    let imported = import_it(&model(g)).unwrap_or_else(|e| panic!("{e}"));
    let fed = [("rows".to_owned(), Tensor::from_f32(vec![4, 1], &[0.0; 4]))].into();
    let got = numbers(evaluate(&imported.graph, &fed).unwrap_or_else(|e| panic!("{e}")));
    assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [200, 300, 100]);
    for draws in got {
        let mut rows: Vec<&[f64]> = draws.chunks(50).collect();
        let count = rows.len();
        rows.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
        rows.dedup();
        assert_eq!(rows.len(), count);
        let (mean, variance) = moments(&draws);
        assert!((mean - 0.5).abs() < 0.1 && (variance - 1.0 / 12.0).abs() < 0.03, "{mean} {variance}");
    }
}
