use super::*;
use crate::generate::head;
use wgfc_compiler::decoding::choose::{adjusted, masked};
use wgfc_ir::TensorType;
use wgfc_ir::{Builder, Dim};
use wgfc_runtime::{Session, testing::gpus};

/// The reference: the probability of each token.
fn probabilities(logits: &[f32], how: &Sampling) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let mut p: Vec<f64> = logits.iter().map(|l| f64::from((l - max) / how.temperature).exp()).collect();
    // Equal logits are all kept.
    let cut = |p: &mut Vec<f64>, last: f32| {
        p.iter_mut().zip(logits).filter(|(_, l)| **l < last).for_each(|(p, _)| *p = 0.0);
    };
    if let Some(k) = how.top_k.filter(|k| *k < order.len()) {
        cut(&mut p, logits[order[k - 1]]);
    }
    if let Some(share) = how.top_p.filter(|s| *s < 1.0) {
        let enough = f64::from(share) * p.iter().sum::<f64>();
        let mut sum = 0.0;
        let last = order.iter().find(|i| {
            sum += p[**i];
            sum >= enough
        });
        cut(&mut p, logits[*last.unwrap()]);
    }
    if let Some(least) = how.min_p {
        p.iter_mut().filter(|p| **p < f64::from(least)).for_each(|p| *p = 0.0);
    }
    let sum: f64 = p.iter().sum();
    p.iter().map(|p| p / sum).collect()
}

/// The reference of changed logits, in the order of transformers' and OpenAI's definitions.
fn changed(logits: &[f32], how: &Sampling, before: &[i64], generated: &[i64]) -> Vec<f32> {
    let one = |(token, x): (usize, &f32)| {
        let token = token as i64;
        let times = generated.iter().filter(|t| **t == token).count() as f32;
        let mut x = *x;
        if before.contains(&token) || times > 0.0 {
            x = if x < 0.0 { x * how.repetition_penalty } else { x / how.repetition_penalty };
        }
        x -= how.frequency_penalty * times + how.presence_penalty * times.min(1.0);
        x + how.logit_bias.iter().filter(|(t, _)| *t == token).map(|(_, b)| b).sum::<f32>()
    };
    logits.iter().enumerate().map(one).collect()
}

/// The outputs of a graph with these inputs: the evaluator's, and each adapter's.
fn outputs(graph: wgfc_ir::Graph, given: &[(String, Tensor)]) -> Vec<Tensor> {
    wgfc_ir::verify::verify(&graph).unwrap();
    let mut all = vec![wgfc_ir::eval::evaluate(&graph, &given.iter().cloned().collect()).unwrap().remove(0)];
    let options = crate::Options::default();
    let program =
        wgfc_compiler::pipeline::compile_graph(graph, Default::default(), &options, &mut |_, _| {}).unwrap();
    for gpu in gpus() {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let given: Vec<(&str, Tensor)> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        all.push(session.run_blocking(&given).unwrap().remove(0).1);
    }
    all
}

/// A mask in which these tokens are allowed.
fn mask(rows: &[Vec<bool>]) -> Tensor {
    let words = rows.iter().flat_map(|row| {
        row.chunks(32).map(|bits| bits.iter().rev().fold(0u32, |word, bit| word << 1 | u32::from(*bit)))
    });
    let words: Vec<Scalar> =
        words.map(|w| Scalar::from_i64(DType::I32, i64::from(w.cast_signed()))).collect();
    Tensor::from_scalars(DType::I32, vec![rows.len(), words.len() / rows.len()], &words)
}

#[test]
fn listed_tokens_are_changed_and_masked_ones_excluded() {
    let how = Sampling {
        repetition_penalty: 1.3,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        logit_bias: vec![(0, 2.0), (4, -100.0)],
        ..Sampling::default()
    };
    for (len, dtype) in
        [(7, DType::F32), (32, DType::F32), (33, DType::F16), (1301, DType::F32), (65, DType::F32)]
    {
        let rows: Vec<Vec<f32>> = (0..3)
            .map(|r| (0..len).map(|i| ((i * 37 + r * 11) % 61) as f32 * 0.125 - 4.0).collect())
            .collect();
        let last = len as i64 - 1;
        let tokens: [(&[i64], &[i64]); 3] = [(&[1, 3, last], &[5, 1, 5, 0]), (&[], &[2]), (&[last, 6], &[])];
        let mut lists = vec![];
        let mut want = vec![];
        for (row, (before, generated)) in rows.iter().zip(tokens) {
            let mut all = Penalties::new(&how).unwrap();
            all.follow(before);
            generated.iter().for_each(|t| all.add(*t));
            lists.push(all.entries().to_vec());
            want.push(changed(row, &how, before, generated));
        }
        let allowed: Vec<Vec<bool>> =
            (0..3).map(|r| (0..len).map(|i| (i * 5 + r) % 3 != 0 || i + 1 == len).collect()).collect();
        let mut graph = wgfc_ir::Graph::new();
        let ty = |dtype, shape: [Dim; 2]| wgfc_ir::TensorType::new(dtype, shape);
        let logits = graph.add_input("x", ty(dtype, [3i64.into(), len.into()]));
        let shape = [Dim::constant(3), Dim::sym("n"), Dim::constant(3)];
        let list = graph.add_input("list", wgfc_ir::TensorType::new(DType::I32, shape));
        let words = mask_words(len as i64);
        let bits = graph.add_input("mask", ty(DType::I32, [3i64.into(), words.into()]));
        let mut b = Builder::new(&mut graph, "test");
        let y = adjusted(&mut b, logits, list).unwrap();
        let y = masked(&mut b, y, bits).unwrap();
        graph.outputs = vec![wgfc_ir::Border { name: "y".into(), value: y }];
        let x: Vec<Scalar> = rows.iter().flatten().map(|x| Scalar::from_f64(dtype, f64::from(*x))).collect();
        let lists: Vec<&[Entry]> = lists.iter().map(Vec::as_slice).collect();
        let given = [
            ("x".to_owned(), Tensor::from_scalars(dtype, vec![3, len], &x)),
            ("list".to_owned(), crate::generate::penalties::tensor(&lists).unwrap()),
            ("mask".to_owned(), mask(&allowed)),
        ];
        for got in outputs(graph, &given) {
            let got = got.to_f32s().unwrap();
            for (i, got) in got.iter().enumerate() {
                let (row, token) = (i / len, i % len);
                let want = if allowed[row][token] { want[row][token] } else { f32::NEG_INFINITY };
                assert!(
                    *got == want || (got - want).abs() <= 1e-6 * want.abs(),
                    "{len} {i}: {got} for {want}"
                );
            }
        }
    }
}

/// The tokens drawn from rows of logits: by the evaluator, then by each adapter.
fn drawn(rows: &[Vec<f32>], dtype: DType, how: &Sampling) -> Vec<Vec<i64>> {
    let len = rows[0].len();
    let mut choice = Choice::new(Some(how), len);
    let ty = TensorType::new(dtype, vec![rows.len().into(), len.into()]);
    let graph = head::limited(ty, choice.limits(), DType::I64).unwrap();
    wgfc_ir::verify::verify(&graph).unwrap();
    let scalars = rows.iter().flatten().map(|l| Scalar::from_f64(dtype, f64::from(*l)));
    let x = Tensor::from_scalars(dtype, vec![rows.len(), len], &scalars.collect::<Vec<_>>());
    let given = [(head::LOGITS.to_owned(), x), (head::CHOICE.to_owned(), choice.words())];
    let mut all = vec![wgfc_ir::eval::evaluate(&graph, &given.clone().into()).unwrap()[0].to_i64s().unwrap()];
    let options = crate::Options::default();
    let program =
        wgfc_compiler::pipeline::compile_graph(graph, Default::default(), &options, &mut |_, _| {}).unwrap();
    // SwiftShader takes a second to compile one of these programs, so it runs only some of them.
    let some = dtype == DType::F32 && len < 10;
    for gpu in gpus().iter().filter(|g| some || !g.summary().name.contains("SwiftShader")) {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let given: Vec<(&str, Tensor)> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        all.push(session.run_blocking(&given).unwrap()[0].1.to_i64s().unwrap());
    }
    all
}

/// Pearson's chi-squared test of the draws; classes with an expected count of less than five are merged.
#[track_caller]
fn fits(tokens: &[i64], p: &[f64], what: &Sampling) {
    let mut counts = vec![0.0; p.len()];
    tokens.iter().for_each(|t| counts[*t as usize] += 1.0);
    let (mut chi, mut classes, mut rest) = (0.0, 0.0, (0.0f64, 0.0f64));
    for (count, p) in counts.iter().zip(p) {
        let want = p * tokens.len() as f64;
        assert!(*p > 0.0 || *count == 0.0, "{what:?}: a token that cannot be");
        if want >= 5.0 {
            chi += (count - want).powi(2) / want;
            classes += 1.0;
        } else {
            rest = (rest.0 + count, rest.1 + want);
        }
    }
    if rest.1 >= 5.0 {
        chi += (rest.0 - rest.1).powi(2) / rest.1;
        classes += 1.0;
    }
    // The bound is about four standard deviations of a chi-squared variable with this many degrees of freedom.
    let freedom: f64 = f64::max(classes - 1.0, 0.0);
    assert!(chi <= freedom + 4.0 * (2.0 * freedom).sqrt() + 1e-9, "{what:?}: {chi} of {freedom}");
}

#[test]
fn tokens_come_as_often_as_their_probabilities_say() {
    let few: Vec<f32> = [0.1f32, 0.4, 0.0, 0.2, 0.3].map(|p| 3.0 + p.ln()).to_vec();
    let many: Vec<f32> = (0..1201).map(|i| ((i * 7919 % 1201) as f32 * 0.003).sin() * 4.0).collect();
    let flat = vec![-2.5f32; 40];
    let plain = (1.0, None, None);
    let both = (1.7, Some(40), Some(0.6));
    let share = (1.0, None, Some(0.75));
    for (logits, rows, ways) in [
        (&few, 3000, &[plain, share, (0.5, Some(3), None), (3.0, Some(3), Some(0.5))][..]),
        (&many, 24, &[share, both]),
        (&flat, 600, &[plain, both]),
    ] {
        let limits =
            ways.iter().map(|way| (*way, None)).chain([((1.3, None, None), Some(0.45)), (both, Some(0.7))]);
        for ((temperature, top_k, top_p), min_p) in limits {
            let how = Sampling { temperature, top_k, top_p, min_p, seed: 11, ..Sampling::default() };
            let p = probabilities(logits, &how);
            let all = drawn(&vec![logits.clone(); rows], DType::F32, &how);
            for tokens in &all {
                fits(tokens, &p, &how);
                let same = tokens.iter().zip(&all[0]).filter(|(a, b)| a == b).count();
                assert!(same * 1000 >= rows * 995, "{how:?}: {same} of {rows} as the evaluator's");
            }
        }
    }
}

#[test]
fn extremes_are_safe() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    // Rows that have one possible result for every kind of choice.
    let mut rows = vec![
        (vec![1.0, 2.0, -3e38, -inf], 1),
        (vec![-inf, 0.0, -inf, -inf], 1),
        (vec![-inf, -inf, 0.5, -inf], 2),
        (vec![1.0, nan, 0.0, 0.0], NONE),
        (vec![1.0, -nan, 0.0, 0.0], NONE),
        (vec![0.0, 0.0, 0.0, inf], NONE),
        (vec![inf, -inf, nan, 0.0], NONE),
        (vec![-inf; 4], NONE),
    ];
    let cold = Sampling { temperature: 1e-30, ..Sampling::default() };
    let hot = Sampling { temperature: 3e38, ..Sampling::default() };
    let greedy = Sampling { top_k: Some(1), ..hot.clone() };
    let limited = Sampling { top_k: Some(2), top_p: Some(1e-6), ..Sampling::default() };
    #[track_caller]
    fn same(rows: &[(Vec<f32>, i64)], dtype: DType, how: &Sampling) {
        let logits: Vec<Vec<f32>> = rows.iter().map(|(l, _)| l.clone()).collect();
        let want: Vec<i64> = rows.iter().map(|(_, t)| *t).collect();
        for tokens in drawn(&logits, dtype, how) {
            assert_eq!(tokens, want, "{how:?}");
        }
    }
    same(&rows, DType::F16, &limited);
    same(&rows, DType::F32, &limited);
    same(&rows, DType::F32, &cold);
    // The first one among equals.
    rows.extend([(vec![5.0; 4], 0), (vec![-1.0, -0.0, 0.0, -2.0], 1)]);
    same(&rows, DType::F16, &greedy);
    let mut wide = vec![1.0; 1300];
    wide[1299] = nan;
    same(&[(wide, NONE)], DType::F32, &limited);
    same(&[(vec![-inf, 0.0], 1)], DType::F32, &Sampling { top_k: None, ..hot });
}

/// Rows with words of their own draw what each draws alone, wherever it is in the batch.
#[test]
fn rows_have_their_own_choices() {
    let logits: Vec<f32> = (0..61).map(|i| ((i * 31 % 61) as f32 * 0.11).sin() * 3.0).collect();
    let sampled =
        |top_k, top_p, seed| Some(Sampling { temperature: 0.8, top_k, top_p, seed, ..Sampling::default() });
    let ways = [
        None,
        sampled(None, None, 1),
        sampled(Some(5), None, 2),
        sampled(None, Some(0.6), 3),
        sampled(Some(9), Some(0.8), 4),
        sampled(Some(1), None, 5),
    ];
    let token = |rows: usize, limits: Limits, words: Tensor| {
        let ty = TensorType::new(DType::F32, vec![rows.into(), logits.len().into()]);
        let graph = head::limited(ty, limits, DType::I64).unwrap();
        let x = Tensor::from_f32(vec![rows, logits.len()], &logits.repeat(rows));
        let given = [(head::LOGITS.to_owned(), x), (head::CHOICE.to_owned(), words)];
        wgfc_ir::eval::evaluate(&graph, &given.into()).unwrap()[0].to_i64s().unwrap()
    };
    let choices = || ways.iter().map(|how| Choice::new(how.as_ref(), logits.len()));
    let (mut alone, mut together): (Vec<_>, Vec<_>) = (choices().collect(), choices().collect());
    for _ in 0..20 {
        let want: Vec<i64> = alone.iter_mut().map(|c| token(1, c.limits(), c.words())[0]).collect();
        let words: Vec<Words> = together.iter_mut().map(Choice::row).collect();
        let limits = Limits { top_k: true, top_p: true, ..Limits::rows() };
        assert_eq!(token(ways.len(), limits, rows(&words)), want);
    }
}

#[test]
fn a_choice_takes_few_dispatches() {
    let mut counts = vec![];
    for (top_k, top_p) in [(false, false), (true, false), (false, true), (true, true)] {
        let ty = TensorType::new(DType::F32, [1i64, 1, 151_936].map(Dim::from).to_vec());
        let graph = head::limited(ty, Limits { top_k, top_p, ..Limits::default() }, DType::I64).unwrap();
        let options = crate::Options::default();
        let program =
            wgfc_compiler::pipeline::compile_graph(graph, Default::default(), &options, &mut |_, _| {})
                .unwrap();
        counts.push(program.dispatches.len());
    }
    assert_eq!(counts, [2, 9, 9, 13]);
}
