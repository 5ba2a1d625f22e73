//! `wgfc api` over its port.

use crate::{command, fixture, folder, mlp, wgfc};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A server that is stopped at the end of the test.
struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder `model` with a decoder and a tokenizer of its first tokens.
fn model(dir: &Path) {
    let model = dir.join("model");
    std::fs::create_dir_all(&model).unwrap();
    std::fs::copy(fixture("small/decoder-batch/model.onnx"), model.join("model.onnx")).unwrap();
    // The model knows 37 tokens; merges would make others.
    let mut tokenizer: Value =
        serde_json::from_slice(&std::fs::read(fixture("tokenizers/bpe.json")).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocab.retain(|_, id| id.as_u64().unwrap() < 32);
    for id in 32..37 {
        vocab.insert(format!("{}", id - 32), id.into());
    }
    tokenizer["model"]["merges"] = json!([]);
    std::fs::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

fn serve(dir: &Path, words: &str) -> Server {
    start(command(dir, &format!("api{words}")))
}

fn start(mut command: std::process::Command) -> Server {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().strip_prefix("http://127.0.0.1:").and_then(|rest| rest.strip_suffix("/v1"));
    Server { child, port: port.unwrap_or_else(|| panic!("{line}")).parse().unwrap() }
}

impl Server {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// The status, the head and the body of an answer.
    fn raw(&self, request: &[u8]) -> (u16, String, String) {
        let mut stream = self.connect();
        // The server may answer, and stop reading, before all has been sent.
        let _ = stream.write_all(request);
        let mut all = vec![];
        let _ = stream.read_to_end(&mut all);
        let end = all.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| panic!("{all:?}"));
        let head = String::from_utf8(all[..end].to_vec()).unwrap();
        let mut body = all[end + 4..].to_vec();
        if head.contains("transfer-encoding: chunked") {
            body = unchunked(&body);
        }
        (head[9..12].parse().unwrap(), head, String::from_utf8(body).unwrap())
    }

    fn head(&self, line: &str, headers: &str) -> String {
        format!("{line} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n{headers}\r\n", self.port)
    }

    fn get(&self, path: &str, headers: &str) -> (u16, Value) {
        let (status, _, body) = self.raw(self.head(&format!("GET {path}"), headers).as_bytes());
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    fn request(&self, path: &str, body: &str) -> String {
        let headers = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        self.head(&format!("POST {path}"), &headers) + body
    }

    fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let (status, _, body) = self.raw(self.request(path, body).as_bytes());
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// A completion that must succeed.
    #[track_caller]
    fn complete(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/v1/completions", &body.to_string());
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The events of a completion that is streamed.
    #[track_caller]
    fn stream(&self, body: &Value) -> Vec<Value> {
        self.stream_of("/v1/completions", body)
    }

    #[track_caller]
    fn stream_of(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, head, text) = self.raw(self.request(path, &body.to_string()).as_bytes());
        assert!(status == 200 && head.contains("content-type: text/event-stream"), "{head}");
        let mut events: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        events.iter().map(|e| serde_json::from_str(e.strip_prefix("data: ").unwrap()).unwrap()).collect()
    }

    /// A value of `/metrics`.
    #[track_caller]
    fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics", "");
        let text = text.as_str().unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
    }

    /// Waits until a value of `/metrics` is this one.
    #[track_caller]
    fn wait(&self, name: &str, value: f64) {
        let start = Instant::now();
        while self.metric(name) != value {
            assert!(start.elapsed() < Duration::from_secs(30), "{name} is {}", self.metric(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut all = vec![];
    loop {
        let end = body.windows(2).position(|w| w == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return all;
        }
        all.extend(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
    }
}

/// The output of `wgfc generate` for a prompt, with these options.
fn generated(dir: &Path, prompt: &str, options: &str) -> Value {
    wgfc(dir, &format!("generate|model|--prompt|{prompt}|--json|{options}")).exits(0).json()
}

#[test]
fn answers_equal_those_of_generate() {
    let d = folder();
    model(d.path());
    let s = serve(d.path(), "|model|--batch|3|--capacity|64|--prompt-chunk|4");
    assert_eq!(s.get("/health", ""), (200, json!({ "status": "ok" })));
    let (_, models) = s.get("/v1/models", "");
    assert_eq!(models["data"][0]["id"], "model");
    assert_eq!(s.get("/v1/models/model", "").1["object"], "model");
    for (prompt, options, fields) in [
        ("the sea", "--max-new-tokens|24", json!({ "temperature": 0, "max_tokens": 24 })),
        ("a", "--max-new-tokens|9", json!({ "temperature": 0.0, "max_tokens": 9 })),
        (
            "quick",
            "--max-new-tokens|12|--temperature|0.8|--top-k|9|--top-p|0.9|--seed|5",
            json!({ "temperature": 0.8, "top_k": 9, "top_p": 0.9, "seed": 5, "max_tokens": 12 }),
        ),
        ("z", "--max-new-tokens|16|--temperature|1|--seed|6", json!({ "seed": 6 })),
    ] {
        let want = generated(d.path(), prompt, options);
        let mut body = json!({ "model": "model", "prompt": prompt, "return_token_ids": true });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let whole = s.complete(&body);
        let choice = &whole["choices"][0];
        assert_eq!((&choice["token_ids"], &choice["finish_reason"]), (&want["tokens"], &json!("length")));
        let new = want["tokens"].as_array().unwrap().len();
        let prompt_tokens = want["prompt"].as_array().unwrap().len();
        let usage = json!({ "prompt_tokens": prompt_tokens, "completion_tokens": new, "total_tokens": prompt_tokens + new });
        assert_eq!((&whole["usage"], &whole["object"]), (&usage, &json!("text_completion")));
        // Token ids instead of text.
        let mut ids = body.clone();
        ids["prompt"] = want["prompt"].clone();
        assert_eq!(s.complete(&ids)["choices"], whole["choices"]);
        // In a stream.
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let mut events = s.stream(&body);
        let last = events.pop().unwrap();
        assert_eq!((&last["usage"], &last["choices"]), (&usage, &json!([])));
        assert!(events.iter().all(|e| e["usage"].is_null() && e["id"] == last["id"]));
        let text: String = events.iter().map(|e| e["choices"][0]["text"].as_str().unwrap()).collect();
        let tokens: Vec<Value> =
            events.iter().flat_map(|e| e["choices"][0]["token_ids"].as_array().unwrap().clone()).collect();
        assert_eq!((json!(text), json!(tokens)), (choice["text"].clone(), want["tokens"].clone()));
        let finish: Vec<&Value> = events.iter().map(|e| &e["choices"][0]["finish_reason"]).collect();
        assert!(
            finish.split_last().is_some_and(|(l, rest)| **l == "length" && rest.iter().all(|f| f.is_null()))
        );
        // Before a stop string.
        let text = choice["text"].as_str().unwrap();
        let stop: String = text.chars().skip(text.chars().count() / 2).take(2).collect();
        body["stop"] = json!([stop, "never"]);
        let events = s.stream(&body);
        let cut: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
        assert_eq!(cut, text[..text.find(&stop).unwrap()]);
        assert!(events.iter().any(|e| e["choices"][0]["finish_reason"] == "stop"));
    }
    // Several prompts in one request.
    let body = json!({ "model": "model", "prompt": ["the sea", "a"], "temperature": 0, "max_tokens": 5 });
    let both = s.complete(&body);
    for (i, prompt) in ["the sea", "a"].iter().enumerate() {
        let one =
            s.complete(&json!({ "model": "model", "prompt": prompt, "temperature": 0, "max_tokens": 5 }));
        assert_eq!(both["choices"][i]["text"], one["choices"][0]["text"]);
        assert_eq!(both["choices"][i]["index"], i);
    }
    assert!(s.metric("wgfc_generated_tokens_total") > 100.0);
    assert!(s.metric("wgfc_time_to_first_token_seconds_count") > 10.0);
    assert!(s.metric("wgfc_requests_total{path=\"/v1/completions\",status=\"200\"}") > 10.0);
    s.wait("wgfc_sequences_running", 0.0);
    assert_eq!(s.metric("wgfc_cancelled_total"), 0.0);
}

#[test]
fn chats_are_answered_by_the_template() {
    let d = folder();
    model(d.path());
    let template = "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\
                    {% for m in messages %}{{ m.content }}{{ sign }}{% endfor %}{% if add_generation_prompt %}z{% endif %}";
    std::fs::write(d.path().join("model/chat_template.jinja"), template).unwrap();
    let s = serve(d.path(), "|model|--batch|2|--capacity|40");
    let path = "/v1/chat/completions";
    let ask = |body: &Value| {
        let (status, answer) = s.post(path, &body.to_string());
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let mut body = json!({
        "model": "model", "temperature": 0, "max_completion_tokens": 6, "return_token_ids": true,
        "messages": [{ "role": "system", "content": "b" }, { "role": "user", "content": [{ "type": "text", "text": "a" }] }],
        "chat_template_kwargs": { "sign": "." },
    });
    let whole = ask(&body);
    let choice = &whole["choices"][0];
    let usage = json!({ "prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11 });
    assert_eq!((&whole["object"], &whole["usage"]), (&json!("chat.completion"), &usage));
    assert_eq!(choice["message"]["role"], "assistant");
    // The tokens of "b.a.z", without those that the tokenizer adds to a text.
    let prompt = json!([3, 28, 2, 28, 27]);
    let same =
        s.complete(&json!({ "model": "model", "prompt": prompt, "temperature": 0, "max_tokens": 6, "return_token_ids": true }));
    assert_eq!(same["choices"][0]["token_ids"], choice["token_ids"]);
    assert_eq!(same["choices"][0]["text"], choice["message"]["content"]);
    body["stream"] = true.into();
    let events = s.stream_of(path, &body);
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert!(events.iter().all(|e| e["object"] == "chat.completion.chunk"));
    let text: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(json!(text), choice["message"]["content"]);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    // Without a number of tokens the answer may fill the cache.
    let all =
        ask(&json!({ "model": "model", "messages": [{ "role": "user", "content": "a" }], "temperature": 0 }));
    assert_eq!(all["usage"]["total_tokens"], 40);
    for (messages, reason) in [
        (json!([{ "role": "tool", "content": "a" }]), "no tools"),
        (json!([{ "role": "user", "content": 3 }]), "content"),
        (
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] }]),
            "text",
        ),
    ] {
        let (status, answer) = s.post(path, &json!({ "model": "model", "messages": messages }).to_string());
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(reason), "{messages}: {answer}");
        assert_eq!(answer["error"]["param"], "messages");
    }
}

#[test]
fn pictures_of_chats_are_seen() {
    if crate::train::is_skipped("pictures_of_chats") {
        return;
    }
    let d = folder();
    let at = |name: &str| fixture(&format!("torch/vision-language/{name}"));
    let url = std::fs::read_to_string(at("picture.url")).unwrap();
    let expected = std::fs::read(at("llava/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let s = serve(d.path(), &format!("|{}|--batch|2|--capacity|64|--model-name|m", at("llava")));
    let ask = |url: &str| {
        let content = json!([
            { "type": "image_url", "image_url": { "url": url } }, { "type": "text", "text": " what is this ?" },
        ]);
        let messages = json!([{ "role": "user", "content": content }]);
        let body = json!({ "model": "m", "messages": messages, "temperature": 0, "max_tokens": 10, "ignore_eos": true,
            "return_token_ids": true });
        s.post("/v1/chat/completions", &body.to_string())
    };
    for _ in 0..2 {
        let (status, answer) = ask(&url);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["choices"][0]["token_ids"], expected["tokens"]);
        assert_eq!(answer["usage"]["prompt_tokens"], 26);
    }
    for (url, reason) in [
        ("https://localhost/cat.png", "fetches nothing"),
        ("data:image/png;base64,A-", "not valid base64"),
        ("data:image/png;base64,AAAA", "is not a picture"),
    ] {
        let (status, answer) = ask(url);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(reason), "{answer}");
        assert_eq!(answer["error"]["param"], "messages[0].content[0].image_url");
    }
}

/// A folder `model` with a decoder whose 37 tokens spell JSON, and a template that writes the names of functions.
fn model_of_json(dir: &Path) {
    model(dir);
    let path = dir.join("model/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let tokens = [
        "<s>", "</s>", "{", "}", "\"", ":", ",", "[", "]", "Ġ", "0", "1", "2", "3", "4", "5", "6", "7", "8",
        "9",
    ];
    let letters = ["t", "r", "u", "e", "f", "a", "l", "s", "n", "m", "g", "o", "b", "i", "-", "c", "k"];
    let vocab = tokens.iter().chain(&letters).enumerate().map(|(i, t)| ((*t).to_owned(), json!(i)));
    tokenizer["model"]["vocab"] = Value::Object(vocab.collect());
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let template = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}";
    std::fs::write(dir.join("model/chat_template.jinja"), template).unwrap();
    std::fs::write(dir.join("model/generation_config.json"), r#"{"eos_token_id": 1}"#).unwrap();
}

#[test]
fn answers_have_the_form_that_is_asked_for() {
    let d = folder();
    model_of_json(d.path());
    let s = serve(d.path(), "|model|--batch|3|--capacity|400");
    let chat = "/v1/chat/completions";
    let ask = |more: Value| {
        let mut body = json!({ "model": "model", "messages": [{ "role": "user", "content": "a" }], "temperature": 1.5, "seed": 4,
                               "max_tokens": 300 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let post = |body: &Value| {
        let (status, answer) = s.post(chat, &body.to_string());
        assert_eq!(status, 200, "{body}: {answer}");
        answer
    };
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "boolean" }, "n": { "type": "integer", "minimum": 0, "maximum": 99 } },
        "required": ["a", "n"],
        "additionalProperties": false,
    });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": schema } });
    let made = post(&ask(json!({ "response_format": format, "n": 3 })));
    assert_eq!(made["choices"].as_array().unwrap().len(), 3);
    for (i, choice) in made["choices"].as_array().unwrap().iter().enumerate() {
        let text = choice["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(value["a"].is_boolean() && value["n"].as_u64().is_some_and(|n| n < 100), "{text}");
        assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("stop"), &json!(i)));
    }
    let made = post(&ask(json!({ "structured_outputs": { "regex": "(true|fal){2}" } })));
    let text = made["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(
        ["true", "fal"].iter().any(|a| ["true", "fal"].iter().any(|b| text == format!("{a}{b}"))),
        "{text}"
    );

    // Calls of functions, whole and in a stream.
    let tools = json!([
        { "type": "function", "function": { "name": "sum", "parameters": schema } },
        { "type": "function", "function": { "name": "clock", "parameters": { "type": "object", "additionalProperties": false } } },
    ]);
    for (choice, name) in [
        (json!("required"), None),
        (json!({ "type": "function", "function": { "name": "sum" } }), Some("sum")),
    ] {
        let mut body = ask(json!({ "tools": tools, "tool_choice": choice }));
        let made = post(&body);
        let answer = &made["choices"][0];
        assert_eq!(
            (&answer["finish_reason"], &answer["message"]["content"]),
            (&json!("tool_calls"), &Value::Null),
            "{made}"
        );
        let call = &answer["message"]["tool_calls"][0];
        let function = &call["function"];
        assert!(name.is_none_or(|n| function["name"] == n) && call["type"] == "function", "{call}");
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments.get("n").is_some(), function["name"] == "sum", "{call}");
        body["stream"] = true.into();
        let events = s.stream_of(chat, &body);
        let last = &events.last().unwrap()["choices"][0];
        assert_eq!(
            (&last["finish_reason"], &last["delta"]["tool_calls"][0]["function"]),
            (&json!("tool_calls"), function)
        );
        assert!(
            events.iter().all(|e| e["choices"][0]["delta"]["content"].as_str().is_none_or(str::is_empty))
        );
    }
    let free = post(&ask(json!({ "tools": tools, "max_tokens": 9, "temperature": 0 })));
    assert!(free["choices"][0]["message"]["content"].is_string());
    assert_eq!(free["choices"][0]["message"].get("tool_calls"), None);

    // Log-probabilities.
    let made = post(&ask(json!({ "logprobs": true, "top_logprobs": 2, "temperature": 0, "max_tokens": 5 })));
    let content = made["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 5);
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["logprob"]), (2, &token["logprob"]), "{token}");
        assert!(
            token["logprob"].as_f64().unwrap() < 0.0
                && top[1]["logprob"].as_f64() <= top[0]["logprob"].as_f64()
        );
    }
    let body = json!({ "model": "model", "prompt": "a", "logprobs": 1, "temperature": 0, "max_tokens": 5, "stream": true });
    let parts = s.stream(&body);
    let own = parts.iter().flat_map(|p| p["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap());
    assert_eq!(own.count(), 5);

    // Descriptions that cannot be used.
    let deep = |n: usize| {
        (0..n).fold(json!({ "type": "null" }), |inner, _| json!({ "type": "array", "items": inner }))
    };
    let all_of: Vec<Value> =
        (0..400).map(|i| json!({ "anyOf": [{ "minimum": i }, { "multipleOf": i + 2 }] })).collect();
    for (field, value) in [
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": { "type": "strange" } } }),
        ),
        ("response_format", json!({ "type": "json_schema", "json_schema": { "schema": { "$ref": "#" } } })),
        ("response_format", json!({ "type": "json_schema", "json_schema": { "schema": deep(40), "x": 1 } })),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": { "type": "integer", "allOf": all_of } } }),
        ),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": { "type": "string", "pattern": "(a{1,999}){1,999}" } } }),
        ),
        ("structured_outputs", json!({ "regex": "(" })),
        ("structured_outputs", json!({ "regex": "a?".repeat(50_000) })),
        ("structured_outputs", json!({ "grammar": "start: b" })),
        (
            "tools",
            json!([{ "type": "function", "function": { "name": "f", "parameters": { "$ref": "http://example.com" } } }]),
        ),
    ] {
        let mut body = ask(json!({ "max_tokens": 3 }));
        body[field] = value;
        if field == "tools" {
            body["tool_choice"] = "required".into();
        }
        let start = Instant::now();
        let (status, answer) = s.post(chat, &body.to_string());
        assert!(start.elapsed() < Duration::from_secs(30), "{field}: {:?}", start.elapsed());
        let shown: String = body[field].to_string().chars().take(200).collect();
        assert!(
            status == 200 || answer["error"]["type"] == "invalid_request_error",
            "{shown}: {status} {answer}"
        );
        assert!(status == 400 || field == "response_format", "{shown}: {status} {answer}");
    }
    s.wait("wgfc_sequences_running", 0.0);
}

#[test]
fn clients_at_the_same_time_do_not_change_each_other() {
    let d = folder();
    model(d.path());
    // The cache is full again and again.
    let s = serve(d.path(), "|model|--batch|3|--capacity|40|--prompt-chunk|4");
    let requests: Vec<Value> = (0..12)
        .map(|i| {
            let prompt: Vec<i64> = (0..1 + i * 5 % 13).map(|j| (i * 11 + j * 7) % 37).collect();
            json!({ "model": "model", "prompt": prompt, "max_tokens": 3 + i * 7 % 19, "temperature": 0,
                    "ignore_eos": true, "return_token_ids": true })
        })
        .collect();
    let alone: Vec<Value> = requests.iter().map(|r| s.complete(r)["choices"].clone()).collect();
    let before = s.metric("wgfc_recomputed_total");
    std::thread::scope(|scope| {
        let client = |first: usize| {
            let (s, requests, alone) = (&s, &requests, &alone);
            scope.spawn(move || {
                for i in (0..requests.len()).map(|i| (i + first) % requests.len()) {
                    assert_eq!(s.complete(&requests[i])["choices"], alone[i]);
                }
            })
        };
        let clients: Vec<_> = [0, 3, 5, 7].into_iter().map(client).collect();
        clients.into_iter().for_each(|c| c.join().unwrap());
    });
    assert!(s.metric("wgfc_recomputed_total") > before);
}

#[test]
fn sequences_of_clients_that_go_away_are_given_up() {
    let d = folder();
    model(d.path());
    let s = serve(d.path(), "|model|--batch|1|--queue|2|--capacity|100000");
    let long = |stream: bool| {
        json!({ "model": "model", "prompt": [3, 1], "max_tokens": 90_000, "temperature": 0, "ignore_eos": true, "stream": stream })
            .to_string()
    };
    for (gone, stream) in [true, false].into_iter().enumerate() {
        let mut running = s.connect();
        running.write_all(s.request("/v1/completions", &long(stream)).as_bytes()).unwrap();
        s.wait("wgfc_sequences_running", 1.0);
        let waiting: Vec<TcpStream> = (0..2)
            .map(|_| {
                let mut waiting = s.connect();
                waiting.write_all(s.request("/v1/completions", &long(stream)).as_bytes()).unwrap();
                waiting
            })
            .collect();
        s.wait("wgfc_sequences_waiting", 2.0);
        // The queue is full.
        let (status, answer) = s.post("/v1/completions", &long(false));
        assert_eq!((status, &answer["error"]["type"]), (429, &json!("rate_limit_error")), "{answer}");
        assert_eq!(answer["error"]["code"], "queue_full");
        drop(waiting);
        s.wait("wgfc_sequences_waiting", 0.0);
        drop(running);
        s.wait("wgfc_sequences_running", 0.0);
        assert_eq!(s.metric("wgfc_cancelled_total"), 3.0 * (gone + 1) as f64);
        let after = s.complete(&json!({ "model": "model", "prompt": [3, 1], "max_tokens": 2 }));
        assert_eq!(after["usage"]["completion_tokens"], 2);
    }
}

#[test]
fn hostile_requests_are_refused_in_the_form_of_the_protocol() {
    let d = folder();
    model(d.path());
    let s = serve(d.path(), "|model|--batch|2|--capacity|32|--max-body|64KB");
    let ask = |fields: &str| format!(r#"{{"model": "model", {fields}}}"#);
    let path = "/v1/completions";
    let deep = format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000));
    let long = format!("\"{}\"", "the ".repeat(12_000));
    for (path, body, status, param, code) in [
        (path, String::new(), 400, None, "invalid_json"),
        (path, "{\"model\"".into(), 400, None, "invalid_json"),
        (path, "\u{0}\u{1}".into(), 400, None, "invalid_json"),
        (path, deep.clone(), 400, None, "invalid_json"),
        (path, ask(&format!("\"prompt\": {deep}")), 400, None, "invalid_json"),
        (path, "[1]".into(), 400, None, "invalid_json"),
        (path, "{}".into(), 400, Some("model"), "missing_required_parameter"),
        (path, r#"{"model": "other", "prompt": "a"}"#.into(), 404, Some("model"), "model_not_found"),
        (path, ask(r#""prompt": {"a": 1}"#), 400, Some("prompt"), "invalid_type"),
        (path, ask(r#""prompt": [37]"#), 400, Some("prompt"), "invalid_value"),
        (path, ask(r#""prompt": [-9223372036854775808]"#), 400, Some("prompt"), "invalid_value"),
        (path, ask(r#""prompt": [[]]"#), 400, Some("prompt"), "invalid_value"),
        (path, ask(&format!("\"prompt\": {long}")), 400, Some("prompt"), "context_length_exceeded"),
        (
            path,
            ask(r#""prompt": "a", "max_tokens": 9223372036854775807"#),
            400,
            Some("prompt"),
            "context_length_exceeded",
        ),
        (path, ask(r#""prompt": "a", "temperature": 1e400"#), 400, None, "invalid_json"),
        (path, ask(r#""prompt": "a", "best_of": 3"#), 400, Some("best_of"), "unsupported_value"),
        (path, ask(r#""prompt": "a", "n": 129"#), 400, Some("n"), "invalid_value"),
        (path, ask(r#""prompt": ["a", "b"], "n": 120"#), 400, Some("prompt"), "invalid_value"),
        (path, ask(r#""prompt": "a", "logit_bias": {"37": 1}"#), 400, Some("prompt"), "invalid_value"),
        (path, ask(r#""prompt": "a", "logprobs": -1"#), 400, Some("logprobs"), "invalid_value"),
        (
            path,
            ask(r#""prompt": "a", "structured_outputs": {"regex": "((a{1,999}){1,999}"}"#),
            400,
            Some("structured_outputs"),
            "invalid_value",
        ),
        (path, ask(r#""prompt": "a", "colour": 1"#), 400, Some("colour"), "unknown_parameter"),
        (
            path,
            ask(&format!("\"prompt\": [{}\"a\"]", "\"a\", ".repeat(999))),
            400,
            Some("prompt"),
            "invalid_value",
        ),
        (path, ask(&format!("\"prompt\": \"{}\"", "a".repeat(70_000))), 413, None, "request_too_large"),
        (
            "/v1/chat/completions",
            ask(r#""messages": [{"role": "user", "content": "a"}]"#),
            400,
            Some("messages"),
            "unsupported_value",
        ),
        (
            "/v1/chat/completions",
            ask(r#""prompt": "a""#),
            400,
            Some("messages"),
            "missing_required_parameter",
        ),
        ("/v1/other", "{}".into(), 404, None, "unknown_url"),
        ("/health", "{}".into(), 405, None, "method_not_allowed"),
    ] {
        let (got, answer) = s.post(path, &body);
        let error = &answer["error"];
        let start: String = body.chars().take(100).collect();
        assert_eq!(
            (got, error["code"].as_str(), error["param"].as_str()),
            (status, Some(code), param),
            "{start}: {answer}"
        );
        assert!(
            error["message"].as_str().is_some_and(|m| !m.is_empty()) && error["type"].is_string(),
            "{answer}"
        );
    }
    let headers = |h: &str| s.head("POST /v1/completions", h);
    let json = "Content-Type: application/json\r\n";
    for (request, status) in [
        (headers("Content-Type: text/plain\r\nContent-Length: 2\r\n") + "{}", 415),
        (headers("Content-Length: 2\r\n") + "{}", 415),
        // The length alone is enough to refuse it.
        (headers(&format!("{json}Content-Length: 99999999999\r\n")), 413),
        (headers(&format!("{json}Transfer-Encoding: chunked\r\n")) + "2\r\n{}\r\n0\r\n\r\n", 400),
        (headers(&format!("{json}Transfer-Encoding: chunked\r\n")) + "zz\r\n{}\r\n", 400),
        ("GET /v1/models HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n".into(), 403),
        ("GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n".into(), 403),
        (s.head("GET /v1/models/other", ""), 404),
        (s.head("GET /v1/models/%ff", ""), 400),
        ("nonsense\r\n\r\n".into(), 400),
    ] {
        let (got, head, _) = s.raw(request.as_bytes());
        assert_eq!(got, status, "{request}: {head}");
    }
    // Many bytes without a length.
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x1_0000));
    let endless = headers(&format!("{json}Transfer-Encoding: chunked\r\n")) + &chunk.repeat(100);
    assert_eq!(s.raw(endless.as_bytes()).0, 413);
    // Heads that never end do not keep others out.
    let slow: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = s.connect();
            stream.write_all(headers(&format!("{json}Content-Length: 9\r\n")).as_bytes()).unwrap();
            stream
        })
        .collect();
    let body = json!({ "model": "model", "prompt": "a", "max_tokens": 3, "temperature": 0 });
    assert_eq!(s.complete(&body)["usage"]["completion_tokens"], 3);
    drop(slow);
}

#[test]
fn keys_are_asked_for() {
    let d = folder();
    model(d.path());
    std::fs::write(d.path().join("keys.txt"), "first\n\nsecond\n").unwrap();
    let s = serve(d.path(), "|model|--batch|1|--api-key|keys.txt|--model-name|my-model");
    let (status, answer) = s.get("/v1/models", "");
    assert_eq!((status, &answer["error"]["code"]), (401, &json!("invalid_api_key")));
    for wrong in ["Bearer", "Bearer third", "Basic first", "first", "Bearer first second"] {
        assert_eq!(s.get("/v1/models", &format!("Authorization: {wrong}\r\n")).0, 401, "{wrong}");
    }
    for key in ["first", "second"] {
        let (status, models) = s.get("/v1/models", &format!("Authorization: Bearer {key}\r\n"));
        assert_eq!((status, &models["data"][0]["id"]), (200, &json!("my-model")));
    }
    assert_eq!(s.get("/health", "").0, 200);
    assert_eq!(s.get("/metrics", "").0, 401);
    drop(s);
    // Without a tokenizer there are token ids; the key is in the environment.
    std::fs::remove_file(d.path().join("model/tokenizer.json")).unwrap();
    let mut command = command(d.path(), "api|model|--batch|1");
    command.env("WGFC_API_KEY", "third");
    let s = start(command);
    let post = |body: &str| {
        let headers = format!(
            "Authorization: Bearer third\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        );
        let (status, _, answer) = s.raw((s.head("POST /v1/completions", &headers) + body).as_bytes());
        (status, serde_json::from_str::<Value>(&answer).unwrap())
    };
    let (status, answer) = post(r#"{"model": "model", "prompt": [3, 1], "max_tokens": 4, "temperature": 0}"#);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"][0]["token_ids"].as_array().unwrap().len(), 4);
    let (status, answer) = post(r#"{"model": "model", "prompt": "a"}"#);
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("prompt")), "{answer}");
}

#[test]
fn servers_that_cannot_start_say_why() {
    let d = folder();
    model(d.path());
    wgfc(d.path(), "api|missing").exits(1).says("missing");
    wgfc(d.path(), &format!("api|{}", mlp())).exits(2).says("token ids");
    wgfc(d.path(), "api|model|--host|example.org").exits(1);
    wgfc(d.path(), "api|model|--batch|0").exits(1);
    wgfc(d.path(), "api|model|--capacity|0").exits(1).says("0 positions");
    wgfc(d.path(), &format!("api|{}|--batch|2", fixture("small/decoder/model.onnx")))
        .exits(1)
        .says("one sequence at a time");
    std::fs::write(d.path().join("empty"), "\n").unwrap();
    for keys in ["empty", "absent", "."] {
        wgfc(d.path(), &format!("api|model|--api-key|{keys}")).exits(1).says("one a line");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    wgfc(d.path(), &format!("api|model|--port|{port}")).exits(1).says("cannot be listened to");
}

#[test]
fn embeddings_are_served() {
    let d = folder();
    let dir = d.path();
    model(dir);
    let server = serve(dir, "|model|--embeddings|--pooling|last|--capacity|40|--queue|4");
    let ask = |fields: Value| {
        let mut body = json!({ "model": "model" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        server.post("/v1/embeddings", &body.to_string())
    };
    let vectors = |fields: Value| {
        let (status, answer) = ask(fields);
        assert_eq!((status, &answer["object"]), (200, &json!("list")), "{answer}");
        let all = answer["data"].as_array().unwrap();
        assert!(all.iter().enumerate().all(|(i, d)| d["index"] == i && d["object"] == "embedding"));
        let floats = |d: &Value| {
            let all = d["embedding"].as_array().unwrap();
            all.iter().map(|x| x.as_f64().unwrap() as f32).collect::<Vec<f32>>()
        };
        (all.iter().map(floats).collect::<Vec<_>>(), answer["usage"]["prompt_tokens"].clone())
    };
    let same =
        |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    let (three, tokens) = vectors(json!({ "input": ["the sea", "a", "the sea the sea"] }));
    assert!(three.len() == 3 && tokens.as_u64().unwrap() > 20 && !same(&three[0], &three[1]));
    let (one, _) = vectors(json!({ "input": "a", "encoding_format": "float", "user": "u" }));
    assert!(same(&one[0], &three[1]));
    let (ids, tokens) = vectors(json!({ "input": [[3, 1, 36], [5]] }));
    assert!(tokens == 4 && same(&vectors(json!({ "input": [3, 1, 36] })).0[0], &ids[0]));
    let (short, _) = vectors(json!({ "input": "a", "dimensions": 3 }));
    let length: f32 = short[0].iter().map(|x| x * x).sum();
    assert!(short[0].len() == 3 && (length - 1.0).abs() < 1e-5);
    let (_, answer) = ask(json!({ "input": "a", "encoding_format": "base64" }));
    // Four bytes of each element, in digits of six bits.
    let text = answer["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(text.len(), (one[0].len() * 4).div_ceil(3) * 4);

    for (fields, code, param) in [
        (json!({ "input": [[37]] }), "invalid_value", json!("input")),
        (json!({ "input": [[]] }), "invalid_value", json!("input")),
        (json!({ "input": [vec![1; 41]] }), "context_length_exceeded", json!("input")),
        (json!({ "input": "a", "dimensions": 5000 }), "invalid_value", json!("dimensions")),
        (json!({ "input": "a", "colour": "red" }), "unknown_parameter", json!("colour")),
    ] {
        let (status, answer) = ask(fields);
        assert_eq!(
            (status, &answer["error"]["code"], &answer["error"]["param"]),
            (400, &json!(code), &param)
        );
    }
    let (status, answer) = server.post("/v1/completions", r#"{"model": "model", "prompt": "a"}"#);
    assert!(status == 404 && answer["error"]["code"] == "unsupported_endpoint", "{answer}");
    let models = server.get("/v1/models", "").1;
    assert_eq!(models["data"][0]["max_model_len"], 40);

    let generating = serve(dir, "|model|--batch|1");
    let (status, answer) = generating.post("/v1/embeddings", r#"{"model": "model", "input": "a"}"#);
    assert!(status == 404 && answer["error"]["code"] == "unsupported_endpoint", "{answer}");
}
