//! Chats, with a template that is given.

use super::routes::{self, Server, Template};
use super::{Engine, Metrics};
use crate::cli::connections::{self, Limits};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use tokio::sync::Semaphore;
use wgfc::generate::ContinuousGenerator;
use wgfc::{Decoder, Error, GeneratorOptions};

/// The address of a server of a decoder that takes token ids, whose template makes one token of each message.
fn started() -> SocketAddr {
    let path = format!("{}/fixtures/small/decoder-batch/model.onnx", env!("CARGO_MANIFEST_DIR"));
    let decoder = Decoder::open(path.as_ref()).unwrap();
    let options = GeneratorOptions { capacity: 32, ..GeneratorOptions::default() };
    let generator = ContinuousGenerator::new(&decoder, 2, &options).unwrap();
    let metrics = Arc::new(Metrics::default());
    let template: Arc<Template> = Arc::new(|messages: &[Value]| {
        let token = |m: &Value| m["content"].as_str().map(|c| c.len() as i64);
        let tokens: Option<Vec<i64>> = messages.iter().map(token).collect();
        tokens.ok_or_else(|| Error::usage("a message has no text", "give it one"))
    });
    let server = Arc::new(Server {
        decoder: Arc::new(decoder),
        template: Some(template),
        engine: Engine::start(generator, 4, metrics.clone()).unwrap(),
        metrics,
        model: "m".into(),
        created: 0,
        keys: vec![],
        hosts: None,
        max_body: 1 << 16,
        readers: Arc::new(Semaphore::new(routes::READERS)),
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let router = routes::router(server);
    std::thread::spawn(move || {
        let service = move |_| TowerToHyperService::new(router.clone());
        connections::serve(listener, Limits { idle: None, ..Limits::default() }, service)
    });
    address
}

/// The body of the answer to a chat.
fn ask(to: SocketAddr, body: &Value) -> String {
    let body = body.to_string();
    let mut stream = TcpStream::connect(to).unwrap();
    let head = "POST /v1/chat/completions HTTP/1.0\r\nHost: here\r\nContent-Type: application/json\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    all.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn chats_are_answered_whole_and_streamed() {
    if wgfc_runtime::testing::gpus().is_empty() {
        return;
    }
    let to = started();
    let messages = json!([{ "role": "system", "content": "four" }, { "role": "user", "content": "seven.." }]);
    let mut body =
        json!({ "model": "m", "messages": messages, "temperature": 0, "max_completion_tokens": 6 });
    let whole: Value = serde_json::from_str(&ask(to, &body)).unwrap();
    assert_eq!(whole["object"], "chat.completion");
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["message"]["role"], &choice["finish_reason"]),
        (&json!("assistant"), &json!("length"))
    );
    let usage = json!({ "prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8 });
    assert_eq!(whole["usage"], usage);
    body["stream"] = true.into();
    let text = ask(to, &body);
    let mut events: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(events.pop(), Some("data: [DONE]"));
    let events: Vec<Value> =
        events.iter().map(|e| serde_json::from_str(e.strip_prefix("data: ").unwrap()).unwrap()).collect();
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    let tokens = events.iter().filter_map(|e| e["choices"][0]["token_ids"].as_array()).flatten();
    assert_eq!(json!(tokens.collect::<Vec<_>>()), choice["token_ids"]);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    // Without a number of tokens the answer may fill the cache.
    let all = ask(to, &json!({ "model": "m", "messages": messages, "temperature": 0 }));
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(all["usage"]["total_tokens"], 32);
    // The template refuses a message.
    let refused = ask(to, &json!({ "model": "m", "messages": [{ "role": "user", "content": null }] }));
    let refused: Value = serde_json::from_str(&refused).unwrap();
    let error = json!({ "message": "a message has no text", "type": "invalid_request_error", "param": "messages", "code": "invalid_value" });
    assert_eq!(refused["error"], error);
}
