//! Distributions: frequencies in large samples, and properties that each must have.

use super::*;
use std::collections::BTreeMap;
use wgfc_ir::eval::evaluate;
use wgfc_ir::{Border, Graph, Scalar, Tensor};

const N: usize = 20_000;

fn drawn_by(f: impl FnOnce(&mut Lowering) -> Result) -> Vec<f64> {
    let mut g = Graph::new();
    let mut cx = Lowering::new(&mut g);
    let value = f(&mut cx).unwrap_or_else(|e| panic!("{e:?}"));
    g.outputs.push(Border { name: "y".into(), value });
    let y = evaluate(&g, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    y[0].scalars().expect("it is in memory").iter().map(|s| s.as_f64()).collect()
}

fn shape() -> Vec<Dim> {
    vec![N.into()]
}

fn share(v: &[f64], f: impl Fn(f64) -> bool) -> f64 {
    v.iter().filter(|x| f(**x)).count() as f64 / v.len() as f64
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() < 0.015, "{got}, not {want}");
}

#[test]
fn shares_are_those_of_the_distribution() {
    let v = drawn_by(|cx| of(cx, shape(), DType::F32, Distribution::Exponential(2.0), Seed::Given([1, 2])));
    near(share(&v, |x| x > 0.5), (-1.0f64).exp());
    assert!(v.iter().all(|x| *x >= 0.0));
    let v = drawn_by(|cx| of(cx, shape(), DType::F32, Distribution::Cauchy(1.0, 3.0), Seed::Given([3, 4])));
    near(share(&v, |x| x < 1.0), 0.5);
    near(share(&v, |x| (-2.0..4.0).contains(&x)), 0.5);
    let v = drawn_by(|cx| of(cx, shape(), DType::I64, Distribution::Geometric(0.25), Seed::Given([5, 6])));
    near(share(&v, |x| x == 1.0), 0.25);
    near(share(&v, |x| x == 3.0), 0.75 * 0.75 * 0.25);
    assert!(v.iter().all(|x| *x >= 1.0));
}

#[test]
fn integers_are_even_over_their_range() {
    let v = drawn_by(|cx| integers(cx, shape(), DType::I32, (-3, 5), Seed::Given([7, 8])));
    for n in -3..5 {
        near(share(&v, |x| x == f64::from(n)), 0.125);
    }
    let far = i64::MAX / 2;
    let v = drawn_by(|cx| integers(cx, shape(), DType::I64, (-far, far), Seed::Given([9, 10])));
    near(share(&v, |x| x < 0.0), 0.5);
}

#[test]
fn a_permutation_has_every_number_once() {
    let mut v = drawn_by(|cx| permutation(cx, 1000i64.into(), DType::I64, Seed::Given([1, 1])));
    let moved = v.iter().enumerate().filter(|(i, x)| *i as f64 != **x).count();
    v.sort_by(f64::total_cmp);
    assert!(moved > 900 && v.iter().enumerate().all(|(i, x)| i as f64 == *x));
}

#[test]
fn what_is_drawn_once_follows_the_weights() {
    let weights = [0.5f64, 0.3, 0.2, 0.0];
    let row: Vec<Scalar> = weights.iter().map(|w| Scalar::from_f64(DType::F32, w.ln())).collect();
    let rows: Vec<Scalar> = std::iter::repeat_n(row, 5000).flatten().collect();
    let v = drawn_by(|cx| {
        let x = cx.constant(Tensor::from_scalars(DType::F32, vec![5000, 4], &rows));
        distinct(cx, x, &3i64.into(), DType::I64, Seed::Given([2, 3]))
    });
    let first: Vec<f64> = v.chunks(3).map(|r| r[0]).collect();
    for (class, w) in weights.iter().enumerate() {
        near(share(&first, |x| x == class as f64), *w);
    }
    assert!(v.chunks(3).all(|r| r[0] != r[1] && r[1] != r[2] && r[0] != r[2] && !r.contains(&3.0)));
}

/// The numbers that operators of these names draw in a run with this seed and offset.
fn of_run(names: &[&str], seed: i64, offset: i64) -> Vec<Vec<f64>> {
    let mut g = Graph::new();
    let mut cx = Lowering::new(&mut g);
    let drawn: Vec<Value> = names
        .iter()
        .map(|n| uniform(&mut cx, shape(), DType::F32, (0.0, 1.0), named_seed(n.bytes())))
        .collect::<super::super::Lowered>()
        .unwrap_or_else(|e| panic!("{e:?}"));
    for value in drawn {
        g.outputs.push(Border { name: "y".into(), value });
    }
    let given = [("seed", seed), ("offset", offset)].into_iter().filter(|(_, v)| *v != 0);
    let given = given.map(|(n, v)| (n.to_owned(), Tensor::from_i64(vec![], &[v]))).collect();
    let y = evaluate(&g, &given).unwrap_or_else(|e| panic!("{e}"));
    let numbers = |t: &Tensor| t.scalars().expect("it is in memory").iter().map(|s| s.as_f64()).collect();
    y.iter().map(numbers).collect()
}

/// The correlation of two sequences of uniform numbers in `[0, 1)`.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - 0.5) * (b - 0.5)).sum::<f64>() * 12.0 / a.len() as f64
}

#[test]
fn runs_and_operators_are_independent() {
    let names = ["a", "b", "a_1"];
    let mut all: Vec<Vec<f64>> = vec![];
    for (seed, offset) in [(0, 0), (0, 1), (0, 2), (0, 1 << 40), (1, 0), (1, 1), (-1, 0), (1 << 32, 0)] {
        let drawn = of_run(&names, seed, offset);
        assert_eq!(drawn, of_run(&names, seed, offset), "seed {seed}, offset {offset}");
        all.extend(drawn);
    }
    for (i, a) in all.iter().enumerate() {
        near(a.iter().sum::<f64>() / N as f64, 0.5);
        near(a.iter().map(|x| (x - 0.5) * (x - 0.5)).sum::<f64>() / N as f64, 1.0 / 12.0);
        let mut counts = [0.0; 64];
        a.iter().for_each(|x| counts[(x * 64.0) as usize] += 1.0);
        let expected = N as f64 / 64.0;
        let chi: f64 = counts.iter().map(|c: &f64| (c - expected).powi(2) / expected).sum();
        // With 63 degrees of freedom the statistic exceeds 111 with a probability of one in ten thousand.
        assert!(chi < 111.0, "{chi}");
        // Five standard deviations, also for sequences shifted by one element.
        let most = 5.0 / (N as f64).sqrt();
        for b in &all[..i] {
            for (a, b) in [(&a[..], &b[..]), (&a[1..], &b[..]), (&a[..], &b[1..])] {
                assert!(correlation(a, b).abs() < most, "{}", correlation(a, b));
            }
        }
    }
}

/// The numbers drawn at one position in consecutive runs are a random sequence.
#[test]
fn offsets_are_a_sequence_of_its_own() {
    let mut g = Graph::new();
    let mut cx = Lowering::new(&mut g);
    let value = uniform(&mut cx, vec![3i64.into()], DType::F32, (0.0, 1.0), named_seed("a".bytes())).unwrap();
    g.outputs.push(Border { name: "y".into(), value });
    let drawn: Vec<f64> = (0..4000)
        .map(|offset| {
            let given = [("offset".to_owned(), Tensor::from_i64(vec![], &[offset]))].into();
            evaluate(&g, &given).unwrap()[0].to_f32s().unwrap()[1].into()
        })
        .collect();
    near(share(&drawn, |x| x < 0.5), 0.5);
    for distance in [1, 2, 16] {
        assert!(correlation(&drawn, &drawn[distance..]).abs() < 0.08, "{distance}");
    }
}

/// The known answers of Random123 for Philox4x32-10.
#[test]
fn philox_is_as_published() {
    let most = u32::MAX;
    for (counter, key, want) in [
        ([0; 4], [0; 2], [0x6627_e8d5u32, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([most; 4], [most; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ] {
        for (i, want) in want.into_iter().enumerate() {
            let mut g = Graph::new();
            let mut cx = Lowering::new(&mut g);
            let mut f = Body::default();
            let (counter, key) = (counter.map(|w| f.u32(w.into())), key.map(|w| f.u32(w.into())));
            let out = f.philox(counter, key)[i];
            let none = f.u32(0);
            f.binary(BinaryOp::Or, none, out);
            let value = cx.map_to(f.0, &[], vec![]).unwrap();
            g.outputs.push(Border { name: "y".into(), value });
            let got = evaluate(&g, &BTreeMap::new()).unwrap()[0].scalars().unwrap()[0];
            assert_eq!(got.bits as u32, want, "word {i}");
        }
    }
}

#[test]
fn inputs_of_a_model_keep_their_names() {
    let mut g = Graph::new();
    g.add_input("seed", wgfc_ir::TensorType::new(DType::F32, vec![]));
    let mut cx = Lowering::new(&mut g);
    run_key(&mut cx).unwrap();
    let names: Vec<&str> = g.inputs.iter().map(|b| &*b.name).collect();
    assert_eq!(names, ["seed", "random.seed", "random.offset"]);
}

#[test]
fn a_seed_of_the_graph_decides_alone() {
    let draw = |seed: i64, names: [&str; 2]| {
        let mut g = Graph::new();
        let mut cx = Lowering::new(&mut g);
        let seed = cx.full(&[], Scalar::from_i64(DType::I64, seed)).unwrap();
        reseed(&mut cx, seed).unwrap();
        let values = names.map(|name| {
            let own = next_seed(&mut cx, name.bytes());
            uniform(&mut cx, shape(), DType::F32, (0.0, 1.0), own).unwrap()
        });
        g.outputs = values.into_iter().map(|value| Border { name: "y".into(), value }).collect();
        assert!(g.inputs.is_empty());
        let y = evaluate(&g, &BTreeMap::new()).unwrap();
        [0, 1].map(|i| y[i].scalars().unwrap().iter().map(|s| s.as_f64()).collect::<Vec<_>>())
    };
    let first = draw(7, ["a", "b"]);
    assert_eq!(first, draw(7, ["other", "names"]));
    assert_ne!(first[0], first[1]);
    assert_ne!(first[0], draw(8, ["a", "b"])[0]);
}
