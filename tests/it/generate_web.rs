//! `web/test/generate.json` holds tokens and texts that the npm package must also produce; this test compares
//! them with the results of this crate. `UPDATE_EXPECT=1` writes them.

use crate::generate::{generators, tokens};
use serde_json::{Value, json};
use std::path::Path;
use wgfc::generate::{ChatOptions, Message};
use wgfc::{Decoder, Fusion, Generator, Request, Sampling};

fn request(r: &Value) -> (Vec<i64>, Request) {
    let list = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect();
    let temperature = r["temperature"].as_f64().unwrap() as f32;
    let sampling = Sampling {
        temperature,
        top_k: r["topK"].as_u64().map(|k| k as usize),
        top_p: r["topP"].as_f64().map(|p| p as f32),
        min_p: r["minP"].as_f64().map(|p| p as f32),
        repetition_penalty: r["repetitionPenalty"].as_f64().unwrap_or(1.0) as f32,
        presence_penalty: r["presencePenalty"].as_f64().unwrap_or(0.0) as f32,
        frequency_penalty: r["frequencyPenalty"].as_f64().unwrap_or(0.0) as f32,
        logit_bias: r["logitBias"].as_object().into_iter().flatten().map(bias).collect(),
        seed: r["seed"].as_u64().unwrap_or(0),
    };
    let max_new_tokens = r["maxTokens"].as_u64().unwrap() as usize;
    let sampling = if temperature > 0.0 {
        Some(sampling)
    } else {
        Sampling { temperature: 1.0, ..sampling }.without_chance()
    };
    (list(&r["prompt"]), Request { max_new_tokens, sampling, ..Request::default() })
}

fn bias((token, amount): (&String, &Value)) -> (i64, f32) {
    (token.parse().unwrap(), amount.as_f64().unwrap() as f32)
}

/// The small decoder with a chat template and the tokenizer that it is for.
fn chatting(root: &Path) -> Decoder {
    let folder = tempfile::tempdir().unwrap();
    for file in
        ["small/decoder/model.onnx", "chat/decoder/tokenizer.json", "chat/decoder/tokenizer_config.json"]
    {
        let from = root.join("fixtures").join(file);
        std::fs::copy(&from, folder.path().join(from.file_name().unwrap())).unwrap();
    }
    Decoder::open(folder.path()).unwrap()
}

/// The prompt of a conversation, and the tokens and the text of the answer.
fn answered(g: &mut Generator, decoder: &Decoder, chat: &Value) -> (String, Vec<i64>, String) {
    let list = chat["messages"].as_array().unwrap().iter();
    let messages: Vec<Message> = list.map(|m| serde_json::from_value(m.clone()).unwrap()).collect();
    let tools = chat["tools"].as_array().map(|t| json!(t).to_string().parse().unwrap());
    let options = ChatOptions { tools, ..ChatOptions::default() };
    let request = Request { max_new_tokens: 6, ..Request::default() };
    let tokens = g.chat(decoder, &messages, &options, &request).unwrap();
    let tokens: Vec<i64> = tokens.collect::<Result<_, _>>().unwrap();
    let stop = decoder.stop_tokens();
    let said: Vec<i64> = tokens.iter().copied().filter(|t| !stop.contains(t)).collect();
    (decoder.chat_text(&messages, &options).unwrap(), tokens, decoder.decode(&said).unwrap())
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
    let decoder = chatting(root);
    for mut g in generators(Fusion::Full, 64) {
        for r in made["requests"].as_array_mut().unwrap() {
            g.reset().unwrap();
            let (prompt, request) = request(r);
            r["tokens"] = json!(tokens(&mut g, &prompt, &request));
        }
        for c in made["chats"].as_array_mut().unwrap() {
            g.reset().unwrap();
            let (prompt, tokens, text) = answered(&mut g, &decoder, c);
            (c["prompt"], c["tokens"], c["text"]) = (json!(prompt), json!(tokens), json!(text));
        }
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            let lines = |of: &str| {
                let all = made[of].as_array().unwrap().iter();
                all.map(|x| format!("    {x}")).collect::<Vec<_>>().join(",\n")
            };
            let list = |of: &str| format!("  \"{of}\": [\n{}\n  ]", lines(of));
            std::fs::write(
                &path,
                format!("{{\n{}\n}}\n", ["requests", "chats", "texts"].map(list).join(",\n")),
            )
            .unwrap();
        } else {
            assert_eq!(made, known);
        }
    }
}
