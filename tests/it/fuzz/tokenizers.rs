//! Mutated `tokenizer.json` files are read and applied, or refused. `WGFC_FUZZ_TOKENIZERS` sets their number,
//! which is 160 by default.

use super::NUMBERS;
use super::first_seed;
use crate::backend::caught;
use serde_json::Value;
use std::path::Path;
use std::time::Instant;
use wgfc::generate::Decoder;
use wgfc_ir::testing::Rng;

const TEXTS: [&str; 12] =
    ["", "a", "▁", " ", "(a+)+$", "(?=(a*)*)b", "(((((((((a", "\\p{L}+", "AAAA", "[X]", "##", "\u{0}"];

/// Collects the path to every place in a value.
fn places(v: &Value, here: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
    out.push(here.clone());
    let mut inside = |key: String, v: &Value| {
        here.push(key);
        places(v, here, out);
        here.pop();
    };
    match v {
        // A few entries of a long list are enough.
        Value::Array(list) => list.iter().enumerate().take(6).for_each(|(i, v)| inside(i.to_string(), v)),
        Value::Object(map) => map.iter().take(24).for_each(|(k, v)| inside(k.clone(), v)),
        _ => {}
    }
}

fn at<'v>(mut v: &'v mut Value, place: &[String]) -> Option<&'v mut Value> {
    for key in place {
        v = match v {
            Value::Array(list) => list.get_mut(key.parse::<usize>().ok()?)?,
            Value::Object(map) => map.get_mut(key)?,
            _ => return None,
        };
    }
    Some(v)
}

fn mutate(root: &mut Value, rng: &mut Rng) {
    let mut all = vec![];
    places(root, &mut vec![], &mut all);
    // Changes near the root mostly make the file another format, so most are made deeper inside.
    let inside: Vec<&Vec<String>> = all.iter().filter(|p| p.len() > 1 || rng.one_in(6)).collect();
    let Some(place) = rng.pick(&inside).map(|p| (*p).clone()) else { return };
    let other = all[rng.below(all.len())].clone();
    let grafted = at(root, &other).map(|v| v.clone()).unwrap_or(Value::Null);
    let Some(v) = at(root, &place) else { return };
    // Most changes keep the kind of the value, which the format requires.
    let how = if rng.one_in(4) { rng.below(8) } else { 2 + rng.below(2) * 3 };
    match (how, &mut *v) {
        (2 | 5, Value::Number(_)) => *v = Value::from(*rng.pick(&NUMBERS).unwrap_or(&0)),
        (2, Value::String(_)) => *v = Value::from(*rng.pick(&TEXTS).unwrap_or(&"")),
        (2 | 5, Value::Bool(b)) => *b = !*b,
        // An element is repeated many times.
        (5, Value::Array(list)) if (1..200).contains(&list.len()) => {
            let one = list[rng.below(list.len())].clone();
            list.extend(std::iter::repeat_n(one, 1 + rng.below(40)));
        }
        (0, _) => *v = grafted,
        (1, _) => *v = Value::Null,
        (2, Value::Object(map)) => {
            let key = map.keys().nth(rng.below(map.len().max(1))).cloned();
            key.and_then(|k| map.remove(&k));
        }
        (2, Value::Array(list)) => _ = list.pop(),
        (4, _) => *v = Value::from(*rng.pick(&TEXTS).unwrap_or(&"")),
        (5, Value::String(s)) if s.len() < 100 => *s = s.repeat(1 + rng.below(5000)),
        (5, Value::Object(map)) => {
            // Two values are swapped.
            let keys: Vec<String> = map.keys().cloned().collect();
            if keys.len() > 1 {
                let (a, b) = (&keys[rng.below(keys.len())], &keys[rng.below(keys.len())]);
                let (x, y) = (map.get(a).cloned(), map.get(b).cloned());
                if let (Some(x), Some(y)) = (x, y) {
                    map.insert(a.clone(), y);
                    map.insert(b.clone(), x);
                }
            }
        }
        _ => *v = Value::from(*rng.pick(&NUMBERS).unwrap_or(&0)),
    }
}

fn apply(folder: &Path) -> Result<bool, String> {
    let used = caught(|| {
        let Ok(d) = Decoder::open(folder) else { return Ok(false) };
        for text in
            ["", "The quick brown fox, 12 aaaaaaaaaaaaaaaaaaaa!", "\u{fdfa}e\u{301} \u{1f98a}<s>[CLS]"]
        {
            let Ok(tokens) = d.encode(text) else { continue };
            let _ = d.decode(&tokens);
        }
        if let Ok(mut stream) = d.stream() {
            for t in 0..40 {
                let _ = stream.push(t);
            }
        }
        Ok(true)
    });
    used.map_err(|f| f.message().to_owned())
}

#[test]
fn mutated_tokenizers_are_applied_or_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = root.join("fixtures/small/mlp/model.onnx");
    std::fs::copy(model, folder.path().join("model.onnx")).expect("a fixture");
    let file = folder.path().join("tokenizer.json");
    let read =
        |name: &str| std::fs::read(root.join(format!("fixtures/tokenizers/{name}.json"))).expect("a fixture");
    let kinds = ["bpe", "wordpiece", "unigram", "wordlevel"].map(read);
    for whole in &kinds {
        std::fs::write(&file, whole).expect("a temporary folder");
        let d = Decoder::open(folder.path()).expect("a tokenizer");
        let tokens = d.encode("the fox and the fox.").expect("a text");
        assert!(d.decode(&tokens).expect("its tokens").contains("fox"));
    }
    let many = std::env::var("WGFC_FUZZ_TOKENIZERS").ok().and_then(|n| n.parse().ok()).unwrap_or(160);
    let (mut used, mut failures) = (0, vec![]);
    for seed in first_seed()..first_seed() + many {
        let mut rng = Rng::new(seed);
        let mut v: Value = serde_json::from_slice(&kinds[rng.below(4)]).expect("JSON");
        (0..1 + rng.below(3)).for_each(|_| mutate(&mut v, &mut rng));
        std::fs::write(&file, v.to_string()).expect("a temporary folder");
        let start = Instant::now();
        match apply(folder.path()) {
            Ok(applied) => used += u64::from(applied),
            Err(e) => failures.push(format!("seed {seed}: {e}")),
        }
        if start.elapsed().as_secs() > 20 {
            failures.push(format!("seed {seed}: took {:?}", start.elapsed()));
        }
    }
    crate::say(format!("{many} mutated tokenizers, {used} of them applied"));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
