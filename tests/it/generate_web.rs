//! `web/test/generate.json` holds tokens and texts that the npm package must also produce; this test compares
//! them with the results of this crate. `UPDATE_EXPECT=1` writes them.

use crate::generate::{generators, tokens};
use serde_json::{Value, json};
use std::path::Path;
use wgfc::{Decoder, Fusion, Request, Sampling};

fn request(r: &Value) -> (Vec<i64>, Request) {
    let list = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect();
    let temperature = r["temperature"].as_f64().unwrap() as f32;
    let sampling = Sampling {
        temperature,
        top_k: r["topK"].as_u64().map(|k| k as usize),
        top_p: r["topP"].as_f64().map(|p| p as f32),
        seed: r["seed"].as_u64().unwrap_or(0),
        ..Sampling::default()
    };
    let max_new_tokens = r["maxTokens"].as_u64().unwrap() as usize;
    let sampling = (temperature > 0.0).then_some(sampling);
    (list(&r["prompt"]), Request { max_new_tokens, sampling, ..Request::default() })
}

/// The token ids of a text, and the piece of text that each adds when streamed.
fn streamed(root: &Path, t: &Value) -> (Vec<i64>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = root.join(format!("fixtures/tokenizers/{}.json", t["tokenizer"].as_str().unwrap()));
    std::fs::copy(tokenizer, folder.path().join("tokenizer.json")).unwrap();
    let model = root.join("fixtures/small/decoder/model.onnx");
    std::fs::copy(model, folder.path().join("model.onnx")).unwrap();
    let decoder = Decoder::open(folder.path()).unwrap();
    let ids = decoder.encode(t["text"].as_str().unwrap()).unwrap();
    let mut stream = decoder.stream().unwrap();
    let pieces = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    (ids, pieces)
}

#[test]
fn the_npm_package_generates_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("web/test/generate.json");
    let known: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut made = known.clone();
    for t in made["texts"].as_array_mut().unwrap() {
        let (ids, pieces) = streamed(root, t);
        (t["ids"], t["pieces"]) = (json!(ids), json!(pieces));
    }
    for mut g in generators(Fusion::Full, 64) {
        for r in made["requests"].as_array_mut().unwrap() {
            g.reset().unwrap();
            let (prompt, request) = request(r);
            r["tokens"] = json!(tokens(&mut g, &prompt, &request));
        }
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            let lines = |of: &str| {
                let all = made[of].as_array().unwrap().iter();
                all.map(|x| format!("    {x}")).collect::<Vec<_>>().join(",\n")
            };
            let list = |of: &str| format!("  \"{of}\": [\n{}\n  ]", lines(of));
            std::fs::write(&path, format!("{{\n{},\n{}\n}}\n", list("requests"), list("texts"))).unwrap();
        } else {
            assert_eq!(made, known);
        }
    }
}
