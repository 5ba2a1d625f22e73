//! Mutated plans, headers of bundles and weight files are either read, and then consistent, or refused with a
//! proper error.

use super::archives::{change, change_bytes};
use super::{duration, first_seed};
use crate::backend::caught;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use wgfc::artefact::{ReadOptions, load_bundle_with};
use wgfc::{Bundle, Error, SaveOptions};
use wgfc_ir::testing::Rng;
use wgfc_runtime::bind;

/// Reads a plan and checks that it is consistent. `Err` if the plan should have been refused, or if the
/// refusal lacks problems or help.
fn attempt(path: &Path) -> Result<bool, String> {
    let bundle = match load_bundle_with(path, &ReadOptions { verify: false, ..ReadOptions::default() }) {
        Ok(b) => b,
        Err(Error::File { problems, help, .. }) if !problems.is_empty() && help.is_some() => {
            return Ok(false);
        }
        Err(e) => return Err(format!("refused in other words: {e}")),
    };
    for plan in &bundle.plans {
        let p = &plan.program;
        for t in p.weights.values().filter(|t| t.is_present()) {
            let need = t.dtype.bytes_for(t.numel());
            if t.byte_len() != Some(need) || t.pieces(0..need).map(<[u8]>::len).sum::<usize>() != need {
                return Err(format!("{t:?} has not the bytes that it needs"));
            }
        }
        // Sizes are bound without a device, or refused.
        let values = vec![3; p.symbols.len()];
        let _ = bind::check_sizes(p, &values);
        let value = |s: &str| p.symbols.iter().position(|n| n == s).map(|_| 3);
        let _ = wgfc_ir::memory::plan(p, &value);
    }
    Ok(true)
}

/// Replaces the header of a bundle.
fn with_header(bundle: &[u8], header: &Value) -> Option<Vec<u8>> {
    let n = usize::try_from(u64::from_le_bytes(bundle.get(..8)?.try_into().ok()?)).ok()?;
    let mut text = header.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    Some([&(text.len() as u64).to_le_bytes()[..], &text, bundle.get(8 + n..)?].concat())
}

fn header(bundle: &[u8]) -> Option<Value> {
    let n = usize::try_from(u64::from_le_bytes(bundle.get(..8)?.try_into().ok()?)).ok()?;
    serde_json::from_slice(bundle.get(8..8 + n)?).ok()
}

/// Changes the plan's JSON, which is stored as text in the header.
fn change_plan(header: &mut Value, rng: &mut Rng) -> Option<()> {
    let text = header.get_mut("__metadata__")?.get_mut("plan.json")?;
    let mut plan: Value = serde_json::from_str(text.as_str()?).ok()?;
    let part = match rng.below(3) {
        0 => &mut plan,
        1 => plan.get_mut("weights")?,
        _ => plan.get_mut("plans")?,
    };
    (0..1 + rng.below(3)).for_each(|_| change(part, rng));
    *text = plan.to_string().into();
    Some(())
}

fn mutated(bundle: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let mut bytes = bundle.to_vec();
    match rng.below(8) {
        0 => bytes.truncate(rng.below(bytes.len())),
        1 => bytes.extend(std::iter::repeat_n(0, 1 + rng.below(100))),
        2 => change_bytes(&mut bytes, b"{}[]\",:09-", rng),
        3 => {
            let mut h = header(bundle)?;
            change(&mut h, rng);
            return with_header(bundle, &h);
        }
        _ => {
            let mut h = header(bundle)?;
            change_plan(&mut h, rng)?;
            return with_header(bundle, &h);
        }
    }
    Some(bytes)
}

#[test]
fn mutated_plans_are_read_or_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plans = |name: &str, dims: &[&[(&str, i64)]]| {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/small/{name}/model.onnx"));
        let one = |(i, dims): (usize, &&[(&str, i64)])| {
            let dims: BTreeMap<String, i64> = dims.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
            let options = wgfc::Options { dims, ..wgfc::Options::default() };
            (i.to_string(), wgfc::compile_file(&model, &options).expect("it compiles"))
        };
        let path = dir.path().join(format!("{name}.wgfc"));
        let bundle = Bundle::new(dims.iter().enumerate().map(one).collect());
        wgfc::save_bundle(&bundle, &path, &SaveOptions::default()).expect("it is written");
        std::fs::read(path).expect("it was written")
    };
    let good = [
        plans("mlp", &[&[("batch", 1)], &[]]),
        plans("while", &[&[]]),
        plans("chosen", &[&[]]),
        plans("attention", &[&[]]),
    ];
    let path = dir.path().join("mutated.wgfc");
    let end = Instant::now() + duration();
    let (mut tried, mut read, mut failures) = (0, 0, vec![]);
    for seed in first_seed().. {
        if Instant::now() >= end || failures.len() >= 3 {
            break;
        }
        let mut rng = Rng::new(seed);
        let Some(bytes) = mutated(&good[rng.below(good.len())], &mut rng) else { continue };
        std::fs::write(&path, bytes).expect("it is written");
        tried += 1;
        match caught(|| attempt(&path).map_err(crate::backend::Failure::Wrong)) {
            Ok(was) => read += usize::from(was),
            Err(f) => failures.push(format!("seed {seed}: {}: {}", f.status(), f.message())),
        }
    }
    crate::say(format!("plans: {tried} mutated, {read} of them read"));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
