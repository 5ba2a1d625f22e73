//! Passes on graphs in text.
//!
//! A file holds a graph, then the line `// after`, then the output of the pass. Both graphs are verified and
//! evaluated on the same generated inputs before the texts are compared.

use crate::run::inputs;
use std::collections::BTreeMap;
use std::path::Path;
use wgfc_compiler::passes::{Context, PASSES, Run, rewrite};
use wgfc_compiler::rewrite::{canonical, flattened, recognise, region, rules};
use wgfc_compiler::{CacheType, Options, States, states};
use wgfc_ir::graph::State;
use wgfc_ir::tensor::Tensor;
use wgfc_ir::{DType, Graph};

fn run(pass: &str, graph: &mut Graph) {
    let done = match pass {
        "clean" => canonical::clean(graph),
        "rules" => {
            let rules: Vec<_> =
                [rules::exact(), rules::approx(), rules::raise()].into_iter().flatten().collect();
            region::saturate(graph, &rules, &Default::default()).and_then(|_| canonical::clean(graph))
        }
        "flattened" => flattened::unflatten(graph).map(|_| ()),
        "nan_guard" => recognise::nan_guard::remove(graph).map(|_| ()),
        "attention" => recognise::attention::recognise(graph).map(|_| ()),
        "scales" => recognise::attention::scales(graph).and_then(|_| canonical::clean(graph)),
        "merge" => region::saturate_products(graph, &rules::share(1 << 20), &Default::default()).map(|_| ()),
        "rewrite" => rewrite(graph, &Options::default()).map(|_| ()).map_err(|e| e.to_string()),
        "states" => states::introduce(graph, &States::Auto { capacity: Some(17) }).map_err(|e| e.to_string()),
        "cache-q8" => cache(graph, CacheType::Q8),
        "cache-f16" => cache(graph, CacheType::F16),
        other => {
            let named = PASSES.iter().find(|p| p.name == other);
            let pass = named.unwrap_or_else(|| panic!("no pass `{other}`"));
            let Run::Graph(run) = pass.run else { panic!("`{other}` is a pass on kernels") };
            let options = Options::default();
            let mut cx = Context::new(&options, pass.on[0], Default::default());
            run(graph, &mut cx).map_err(|e| e.to_string())
        }
    };
    done.unwrap_or_else(|e| panic!("{e}"));
}

/// States in fewer bits.
fn cache(graph: &mut Graph, to: CacheType) -> Result<(), String> {
    states::introduce(graph, &States::Auto { capacity: Some(17) }).map_err(|e| e.to_string())?;
    states::narrow(graph, to).map(|_| ())
}

/// The outputs of three successive runs, in pairs: of the model, whose returned states are fed back, and of
/// the graph with states. The n-th output of the model that the graph with states lacks belongs to the n-th
/// state of a name that an input has.
fn three_runs(
    before: &Graph,
    after: &Graph,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<(Tensor, Tensor)>, wgfc_ir::eval::EvalError> {
    let mut given = inputs.clone();
    let mut values = wgfc_ir::eval::StateValues::default();
    let is_kept = |name: &str| after.outputs.iter().any(|o| *o.name == *name);
    let border = |s: &State| before.inputs.iter().find(|b| b.name == s.name);
    for s in &after.states {
        let Some(b) = border(s) else { continue };
        let zero = |symbol: &str| s.growth.as_ref().is_some_and(|g| *g.length == *symbol).then_some(0);
        let shape = before.ty(b.value).shape.iter().map(|d| d.eval_syms(&zero).unwrap() as usize);
        given.insert(s.name.to_string(), Tensor::zeros(before.ty(b.value).dtype, shape.collect()));
    }
    let rest: BTreeMap<String, Tensor> = inputs
        .iter()
        .filter(|(n, _)| after.inputs.iter().any(|b| *b.name == ***n))
        .map(|(n, t)| (n.clone(), t.clone()))
        .collect();
    let mut pairs = vec![];
    for _ in 0..3 {
        let a = wgfc_ir::eval::evaluate(before, &given)?;
        let b = wgfc_ir::eval::evaluate_from(after, &rest, &mut values)?;
        let (kept, carried): (Vec<_>, Vec<_>) =
            before.outputs.iter().zip(a).partition(|(o, _)| is_kept(&o.name));
        pairs.extend(kept.into_iter().map(|(_, t)| t).zip(b));
        for (s, (_, t)) in after.states.iter().filter(|s| border(s).is_some()).zip(carried) {
            given.insert(s.name.to_string(), t);
        }
    }
    Ok(pairs)
}

/// Checks one file of a pass; returns the expected content of the file if it differs.
pub fn check(pass: &str, file: &Path) -> Result<Option<String>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string())?;
    let (source, want) = text.split_once("// after\n").unwrap_or((&text, ""));
    let before = wgfc_ir::text::parse(source).map_err(|e| e.to_string())?;
    wgfc_ir::verify::verify(&before).map_err(|e| e.join("\n"))?;
    let mut after = before.clone();
    run(pass, &mut after);
    wgfc_ir::verify::verify(&after).map_err(|e| format!("{}\n{after}", e.join("\n")))?;

    let inputs = inputs(&before, &BTreeMap::new());
    let compared = if after.states.is_empty() {
        let a = wgfc_ir::eval::evaluate(&before, &inputs).map_err(|e| format!("before: {e}"))?;
        let b = wgfc_ir::eval::evaluate(&after, &inputs).map_err(|e| format!("after: {e}\n{after}"))?;
        a.into_iter().zip(b).collect()
    } else {
        three_runs(&before, &after, &inputs).map_err(|e| format!("{e}\n{after}"))?
    };
    for (a, b) in &compared {
        let tolerance = match pass {
            "cache-q8" => 2e-2,
            "cache-f16" => 2e-3,
            _ if a.dtype == DType::F16 => 4e-3,
            _ => 1e-5,
        };
        let (x, y) = (a.to_f32s().unwrap_or_default(), b.to_f32s().unwrap_or_default());
        let close = |(x, y): (&f32, &f32)| x == y || (x - y).abs() <= tolerance * (1.0 + x.abs());
        if a.shape != b.shape || a.dtype != b.dtype || !x.iter().zip(&y).all(close) {
            return Err(format!("{x:?} became {y:?}\n{after}"));
        }
    }
    let got = wgfc_ir::text::print(&after);
    let new = format!("{}\n// after\n{}\n", source.trim_end(), got.trim_end());
    Ok((got.trim() != want.trim()).then_some(new))
}
