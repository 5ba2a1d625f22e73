//! Passes on graphs in text: `tests/filetests/<pass>/*.wgir`.
//!
//! A file holds a graph, then the line `// after`, then what the pass makes of it. Both graphs are
//! verified and evaluated on the same made-up inputs first; only then are the texts compared.
//! `UPDATE_EXPECT=1` writes what the pass made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use wgfc_compiler::rewrite::{canonical, merge, recognise, region, rewrite, rules};
use wgfc_compiler::{Options, States, states};
use wgfc_ir::tensor::Tensor;
use wgfc_ir::{DType, Graph, Scalar};

fn run(pass: &str, graph: &mut Graph) {
    let done = match pass {
        "clean" => canonical::clean(graph),
        "rules" => {
            let rules: Vec<_> =
                [rules::exact(), rules::approx(), rules::raise()].into_iter().flatten().collect();
            region::saturate(graph, &rules, &Default::default()).and_then(|_| canonical::clean(graph))
        }
        "nan_guard" => recognise::nan_guard::remove(graph).map(|_| ()),
        "attention" => recognise::attention::recognise(graph).map(|_| ()),
        "merge" => merge::merge(graph, 1 << 20).map(|_| ()),
        "rewrite" => rewrite(graph, &Options::default()).map(|_| ()).map_err(|e| e.to_string()),
        "states" => states::introduce(graph, &States::Auto { capacity: Some(17) }).map_err(|e| e.to_string()),
        other => panic!("no pass `{other}`"),
    };
    done.unwrap_or_else(|e| panic!("{e}"));
}

/// Inputs whose symbols are different odd numbers.
fn inputs(graph: &Graph) -> BTreeMap<String, Tensor> {
    let symbols: BTreeSet<_> =
        graph.inputs.iter().flat_map(|b| &graph.ty(b.value).shape).flat_map(|d| d.symbols()).collect();
    let extent = |s: &str| symbols.iter().position(|t| &**t == s).map(|i| 3 + 2 * i as i64);
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 24) as f64 * 2.0 - 1.0
    };
    let mut out = BTreeMap::new();
    for b in &graph.inputs {
        let ty = graph.ty(b.value);
        let shape: Vec<usize> = ty.shape.iter().map(|d| d.eval_syms(&extent).unwrap() as usize).collect();
        let values: Vec<Scalar> = (0..shape.iter().product())
            .map(|_| match ty.dtype {
                DType::Bool => Scalar::bool(next() > -0.5),
                d if d.is_int() => Scalar::from_i64(d, (next() * 9.0) as i64),
                d => Scalar::from_f64(d, next()),
            })
            .collect();
        out.insert(b.name.to_string(), Tensor::from_scalars(ty.dtype, shape, &values));
    }
    out
}

/// The outputs of three runs one after another: of the model, which is given what it returned, and of the
/// graph with states. The n-th output that is not among the second's is for the n-th state.
fn three_runs(
    before: &Graph,
    after: &Graph,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<(Tensor, Tensor)>, wgfc_ir::eval::EvalError> {
    let mut given = inputs.clone();
    let mut values = wgfc_ir::eval::StateValues::default();
    let is_kept = |name: &str| after.outputs.iter().any(|o| *o.name == *name);
    for s in &after.states {
        let b = before.inputs.iter().find(|b| b.name == s.name).unwrap();
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
        for (s, (_, t)) in after.states.iter().zip(carried) {
            given.insert(s.name.to_string(), t);
        }
    }
    Ok(pairs)
}

fn check(pass: &str, file: &Path) -> Result<(), String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| format!("{name}: {e}"))?;
    let (source, want) = text.split_once("// after\n").unwrap_or((&text, ""));
    let before = wgfc_ir::text::parse(source).map_err(|e| format!("{name}:{e}"))?;
    wgfc_ir::verify::verify(&before).map_err(|e| format!("{name}: {}", e.join("\n")))?;
    let mut after = before.clone();
    run(pass, &mut after);
    wgfc_ir::verify::verify(&after).map_err(|e| format!("{name}: {}\n{after}", e.join("\n")))?;

    let inputs = inputs(&before);
    let compared = if after.states.is_empty() {
        let a = wgfc_ir::eval::evaluate(&before, &inputs).map_err(|e| format!("{name}: before: {e}"))?;
        let b =
            wgfc_ir::eval::evaluate(&after, &inputs).map_err(|e| format!("{name}: after: {e}\n{after}"))?;
        a.into_iter().zip(b).collect()
    } else {
        three_runs(&before, &after, &inputs).map_err(|e| format!("{name}: {e}\n{after}"))?
    };
    for (a, b) in &compared {
        let tolerance = if a.dtype == DType::F16 { 4e-3 } else { 1e-5 };
        let (x, y) = (a.to_f32s().unwrap_or_default(), b.to_f32s().unwrap_or_default());
        let close = |(x, y): (&f32, &f32)| x == y || (x - y).abs() <= tolerance * (1.0 + x.abs());
        if a.shape != b.shape || a.dtype != b.dtype || !x.iter().zip(&y).all(close) {
            return Err(format!("{name}: {x:?} became {y:?}\n{after}"));
        }
    }

    let got = wgfc_ir::text::print(&after);
    if got.trim() == want.trim() {
        return Ok(());
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let new = format!("{}\n// after\n{}\n", source.trim_end(), got.trim_end());
        return std::fs::write(file, new).map_err(|e| format!("{name}: {e}"));
    }
    Err(format!("{name}: UPDATE_EXPECT=1 accepts\n{got}"))
}

#[test]
fn passes_do_what_their_files_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let list = |p: &Path| {
        let mut v: Vec<_> = std::fs::read_dir(p).unwrap().map(|e| e.unwrap().path()).collect();
        v.sort();
        v
    };
    let mut failures = vec![];
    let mut files = 0;
    for dir in list(&root) {
        let pass = dir.file_name().unwrap().to_string_lossy().into_owned();
        for file in list(&dir) {
            files += 1;
            failures.extend(check(&pass, &file).err());
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(files >= 15, "{files} files");
}
