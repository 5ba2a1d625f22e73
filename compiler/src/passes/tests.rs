use super::{After, PASSES, Section, State, check};
use crate::error::Kind;
use crate::options::Options;
use crate::pipeline::fuse_watched;
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::eval::evaluate;
use wgfc_ir::{Graph, Tensor};

/// A loop whose body has a product, a softmax, a concatenation and a reduction.
const TEXT: &str = include_str!("tests/model.wgir");

fn model() -> (Graph, BTreeMap<String, Tensor>) {
    let graph = wgfc_ir::text::parse(TEXT).unwrap_or_else(|e| panic!("{e}"));
    wgfc_ir::verify::verify(&graph).unwrap();
    let of = |b: &wgfc_ir::Border| {
        let shape: Vec<usize> =
            graph.ty(b.value).shape.iter().map(|d| d.eval_syms(&|_| Some(7)).unwrap() as usize).collect();
        let n = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..n).map(|i| (i * 37 % 19) as f32 / 10.0 - 0.9).collect();
        (b.name.to_string(), Tensor::from_f32(shape, &values))
    };
    let inputs = graph.inputs.iter().map(of).collect();
    (graph, inputs)
}

/// The passes that ran, with the outputs of the graph after each.
fn outputs(options: &Options) -> Vec<(&'static str, String, Vec<f32>)> {
    let (graph, inputs) = model();
    let mut all = vec![];
    let watch = &mut |a: After<'_>| {
        let State::Graph(g) = a.state else { return };
        let out = evaluate(g, &inputs).unwrap_or_else(|e| panic!("after {}: {e}", a.pass.name));
        all.push((a.pass.name, a.body.to_owned(), out.iter().flat_map(|t| t.to_f32s().unwrap()).collect()));
    };
    fuse_watched(graph, Default::default(), options, &mut |_, _| {}, watch).unwrap_or_else(|e| panic!("{e}"));
    all
}

#[test]
fn a_pass_has_a_name_and_a_sentence_and_sections_stand_together() {
    assert!(PASSES.is_sorted_by_key(|p| p.section), "sections stand together");
    for p in PASSES {
        let plain = |c: char| c.is_ascii_lowercase() || c == '-';
        assert!(!p.name.is_empty() && p.name.chars().all(plain), "{}", p.name);
        assert!(p.about.ends_with('.') && !p.about.contains('|'), "{}: {}", p.name, p.about);
        let same = PASSES.iter().filter(|q| q.name == p.name);
        assert!(same.clone().all(|q| q.needed == p.needed), "{} can be left out in one place only", p.name);
    }
}

#[test]
fn results_are_the_same_after_each_pass_and_without_each() {
    let (graph, inputs) = model();
    let want: Vec<f32> =
        evaluate(&graph, &inputs).unwrap().iter().flat_map(|t| t.to_f32s().unwrap()).collect();
    let close = |got: &[f32]| {
        got.len() == want.len() && got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()))
    };
    let names: BTreeSet<&str> = PASSES.iter().filter(|p| p.needed.is_none()).map(|p| p.name).collect();
    let whole = outputs(&Options::default());
    assert!(whole.iter().any(|(_, body, _)| !body.is_empty()), "bodies are rewritten");
    let ran: BTreeSet<&str> = whole.iter().map(|r| r.0).collect();
    for p in PASSES.iter().filter(|p| p.section < Section::Kernels && p.on.contains(&super::Scope::Model)) {
        assert!(ran.contains(p.name), "{} did not run", p.name);
    }
    for name in [None].into_iter().chain(names.iter().map(Some)) {
        let without_passes = name.iter().map(|n| n.to_string()).collect();
        let all = outputs(&Options { without_passes, ..Options::default() });
        assert!(name.is_none_or(|n| all.iter().all(|r| r.0 != *n)), "{name:?} was left out");
        for (pass, body, got) in &all {
            assert!(close(got), "without {name:?}, after {pass} in `{body}`: {got:?}, not {want:?}");
        }
    }
}

#[test]
fn an_output_that_is_a_reshape_becomes_what_it_reshapes() {
    let (graph, _) = model();
    let mut ranks = vec![];
    let watch = &mut |a: After<'_>| {
        let State::Graph(g) = a.state else { return };
        ranks.push((a.pass.name, g.ty(g.outputs[2].value).rank()));
    };
    fuse_watched(graph, Default::default(), &Options::default(), &mut |_, _| {}, watch).unwrap();
    let first = ranks.iter().position(|r| r.1 == 2).unwrap();
    assert!(ranks[first].0 == "reshaped-outputs" && ranks[first..].iter().all(|r| r.1 == 2), "{ranks:?}");
}

#[test]
fn a_pass_that_is_needed_or_unknown_cannot_be_left_out() {
    let without = |n: &str| check(&Options { without_passes: [n.into()].into(), ..Options::default() });
    assert!(without("attention").is_ok() && without("forms").is_ok());
    let e = without("clean").unwrap_err();
    assert!(e.to_string().contains("the pass `clean` cannot be left out: every other pass"), "{e}");
    let e = without("whirl").unwrap_err();
    assert!(e.0[0].kind == Kind::Model && e.to_string().contains("there are: nan-guards, attention"), "{e}");
}
