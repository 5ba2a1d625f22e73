use super::*;
use crate::generate::head;
use wgfc_ir::TensorType;
use wgfc_runtime::{Session, testing::gpus};

/// The probability of each token: the reference.
fn probabilities(logits: &[f32], how: &Sampling) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let mut p: Vec<f64> = logits.iter().map(|l| f64::from((l - max) / how.temperature).exp()).collect();
    // Of equals all stay.
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
    let sum: f64 = p.iter().sum();
    p.iter().map(|p| p / sum).collect()
}

/// The tokens drawn from many copies of a row: by the evaluator, then by each adapter.
fn drawn(rows: usize, logits: &[f32], dtype: DType, how: &Sampling) -> Vec<Vec<i64>> {
    let mut choice = Choice::new(Some(how), logits.len());
    let ty = TensorType::new(dtype, vec![rows.into(), logits.len().into()]);
    let graph = head::limited(ty, choice.limits(), DType::I64).unwrap();
    wgfc_ir::verify::verify(&graph).unwrap();
    let scalars: Vec<Scalar> = logits.iter().map(|l| Scalar::from_f64(dtype, f64::from(*l))).collect();
    let x = Tensor::from_scalars(dtype, vec![rows, logits.len()], &scalars.repeat(rows));
    let given = [(head::LOGITS.to_owned(), x), (head::CHOICE.to_owned(), choice.words())];
    let mut all = vec![wgfc_ir::eval::evaluate(&graph, &given.clone().into()).unwrap()[0].to_i64s().unwrap()];
    let options = crate::Options::default();
    let program = super::super::compile_graph(graph, Default::default(), &options, &mut |_, _| {}).unwrap();
    for gpu in gpus() {
        let mut session = Session::new_blocking(gpu, &program).unwrap();
        let given: Vec<(&str, Tensor)> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        all.push(session.run_blocking(&given).unwrap()[0].1.to_i64s().unwrap());
    }
    all
}

/// Pearson's test of the draws, expectations below five together.
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
    // Four deviations of a chi-square with so many degrees of freedom, about.
    let freedom: f64 = f64::max(classes - 1.0, 0.0);
    assert!(chi <= freedom + 4.0 * (2.0 * freedom).sqrt() + 1e-9, "{what:?}: {chi} of {freedom}");
}

#[test]
fn tokens_come_as_often_as_their_probabilities_say() {
    let few: Vec<f32> = [0.1f32, 0.4, 0.0, 0.2, 0.3].map(|p| 3.0 + p.ln()).to_vec();
    let many: Vec<f32> = (0..1201).map(|i| ((i * 7919 % 1201) as f32 * 0.003).sin() * 4.0).collect();
    let flat = vec![-2.5f32; 40];
    for (logits, rows) in [(&few, 3000), (&many, 24), (&flat, 600)] {
        for (temperature, top_k, top_p) in
            [(1.0, None, None), (0.5, Some(3), None), (1.0, None, Some(0.75)), (1.7, Some(40), Some(0.6))]
        {
            let how = Sampling { temperature, top_k, top_p, seed: 11 };
            let p = probabilities(logits, &how);
            let all = drawn(rows, logits, DType::F32, &how);
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
    let hot = Sampling { temperature: 3e38, ..Sampling::default() };
    let cold = Sampling { temperature: 1e-30, ..Sampling::default() };
    let one = |s: &Sampling| Sampling { top_k: Some(1), ..s.clone() };
    let limited = |s: &Sampling| Sampling { top_k: Some(2), top_p: Some(1e-6), ..s.clone() };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let wide: Vec<f32> = (0..1300).map(|i| if i == 1299 { nan } else { 1.0 }).collect();
    for (logits, dtype, how, want) in [
        (&[1.0, 2.0, -3e38][..], DType::F32, cold.clone(), Some(1)),
        (&[1.0, 2.0, -3e38], DType::F32, limited(&cold), Some(1)),
        (&[1.0, 2.0, -3e38], DType::F32, limited(&Sampling::default()), Some(1)),
        (&[5.0, 5.0], DType::F16, one(&hot), Some(0)),
        (&[-0.0, 0.0, -1.0], DType::F32, one(&hot), Some(0)),
        (&[-inf, 0.0], DType::F32, hot.clone(), Some(1)),
        (&[-inf, -inf, 0.5, -inf], DType::F16, limited(&hot), Some(2)),
        (&[1.0, nan], DType::F32, one(&hot), None),
        (&[1.0, -nan], DType::F32, hot.clone(), None),
        (&[1.0, nan, 0.0], DType::F16, limited(&hot), None),
        (&[0.0, inf], DType::F32, one(&hot), None),
        (&[inf, 0.0], DType::F16, hot.clone(), None),
        (&[-inf; 3], DType::F32, one(&hot), None),
        (&[-inf; 3], DType::F32, limited(&hot), None),
        (&wide, DType::F32, limited(&hot), None),
        (&wide, DType::F32, one(&hot), None),
    ] {
        for tokens in drawn(2, logits, dtype, &how) {
            let want = want.unwrap_or(NONE);
            assert_eq!(tokens, [want, want], "{logits:?} {how:?}");
        }
    }
}

#[test]
fn a_choice_takes_few_dispatches() {
    let mut counts = vec![];
    for (top_k, top_p) in [(false, false), (true, false), (false, true), (true, true)] {
        let ty = TensorType::new(DType::F32, [1i64, 1, 151_936].map(Dim::from).to_vec());
        let graph = head::limited(ty, Limits { top_k, top_p }, DType::I64).unwrap();
        let options = crate::Options::default();
        let program =
            super::super::compile_graph(graph, Default::default(), &options, &mut |_, _| {}).unwrap();
        counts.push(program.dispatches.len());
    }
    assert_eq!(counts, [2, 8, 8, 12]);
}
