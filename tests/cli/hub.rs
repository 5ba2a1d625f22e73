//! `--from-hub` with a server on this machine that answers as the Hub does.

use crate::{command, fixture, folder, ran};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A model `org/small` of the Hub: names and bytes of its files, and the requests so far.
struct Server {
    files: BTreeMap<String, Vec<u8>>,
    /// The list says so many bytes of `model.onnx`; `None` for the right number.
    lie: Option<usize>,
    /// `model.onnx` is cut off after so many bytes, once.
    cut: Mutex<Option<usize>>,
    asked: Mutex<Vec<String>>,
}

impl Server {
    /// Serves until the process ends. Returns the address.
    fn start(self: &Arc<Server>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = server.answer(stream.unwrap());
            }
        });
        address
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let (mut from, mut token) = (None, false);
        for line in lines {
            let line = line?.to_lowercase();
            if line.is_empty() {
                break;
            }
            let range = line.strip_prefix("range: bytes=").and_then(|r| r.strip_suffix('-'));
            from = range.map(|r| r.parse::<usize>().unwrap()).or(from);
            token |= line == "authorization: bearer secret";
        }
        self.asked.lock().unwrap().push(format!("{path} {from:?} {token}"));
        let mut say = |status: &str, headers: &str, body: &[u8], length: usize| {
            write!(
                stream,
                "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
            )?;
            stream.write_all(body)
        };
        if path.starts_with("/api/models/org/small/revision/main") {
            let sibling = |(name, bytes): (&String, &Vec<u8>)| {
                let size = self.lie.filter(|_| name == "model.onnx").unwrap_or(bytes.len());
                serde_json::json!({ "rfilename": name, "size": size })
            };
            let all: Vec<_> = self.files.iter().map(sibling).collect();
            let list = serde_json::json!({ "sha": "abc123", "siblings": all }).to_string();
            return say("200 OK", "", list.as_bytes(), list.len());
        }
        if let Some(name) = path.strip_prefix("/org/small/resolve/abc123/") {
            // Large files are on another server.
            let location = format!("location: /cdn/{name}\r\n");
            return say("302 Found", &location, b"", 0);
        }
        match path.strip_prefix("/cdn/").and_then(|name| self.files.get(name)) {
            None => say("404 Not Found", "", b"no", 2),
            Some(bytes) => {
                let rest = &bytes[from.unwrap_or(0).min(bytes.len())..];
                let cut = if path.ends_with("model.onnx") { self.cut.lock().unwrap().take() } else { None };
                let sent = &rest[..cut.unwrap_or(rest.len())];
                say(if from.is_some() { "206 Partial Content" } else { "200 OK" }, "", sent, rest.len())
            }
        }
    }
}

/// A server with the small decoder.
fn server(lie: Option<usize>, cut: Option<usize>) -> Arc<Server> {
    let read = |name: &str| std::fs::read(fixture(name)).unwrap();
    let files = [
        ("model.onnx", read("small/decoder/model.onnx")),
        ("tokenizer.json", read("chat/decoder/tokenizer.json")),
        ("tokenizer_config.json", read("chat/decoder/tokenizer_config.json")),
        ("README.md", b"not fetched".to_vec()),
        ("../evil.onnx", b"not fetched".to_vec()),
    ];
    let files = files.map(|(n, b)| (n.to_owned(), b)).into();
    Arc::new(Server { files, lie, cut: Mutex::new(cut), asked: Mutex::default() })
}

#[test]
fn models_of_the_hub_are_fetched_once() {
    let d = folder();
    let server = server(None, Some(1000));
    let address = server.start();
    let run = |words: &str| {
        let mut command = command(d.path(), words);
        ran(command.env("HF_ENDPOINT", &address).env("HF_TOKEN", "secret").env("WGFC_CACHE_DIR", d.path()))
    };
    let words = "generate|--from-hub|org/small|--prompt|why is|--max-new-tokens|3|--adapter|software|--json";
    let model = d.path().join("hub/org/small/abc123");
    // The connection ends in the middle, and the next run goes on from there.
    let broken = run(words).exits(1);
    broken.prints("model.onnx cannot be fetched");
    assert_eq!(std::fs::metadata(model.join("model.onnx.part")).unwrap().len(), 1000);
    let names = |at: &Path| {
        let all = std::fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        all.collect::<std::collections::BTreeSet<_>>()
    };
    if !crate::train::is_skipped("models_of_the_hub") {
        let first = run(words).exits(0).json();
        let before = server.asked.lock().unwrap().len();
        assert_eq!(run(words).exits(0).json()["text"], first["text"]);
        // Only the list is asked for again.
        assert_eq!(server.asked.lock().unwrap().len(), before + 1);
        let whole = std::fs::read(fixture("small/decoder/model.onnx")).unwrap();
        assert_eq!(std::fs::read(model.join("model.onnx")).unwrap(), whole);
        let want = ["model.onnx", "tokenizer.json", "tokenizer_config.json"].map(str::to_owned);
        assert_eq!(names(&model), want.into());
        let asked = server.asked.lock().unwrap();
        assert!(asked.iter().any(|a| a == "/cdn/model.onnx Some(1000) true"), "{asked:?}");
    }
    run(&words.replace("org/small", "org/none")).exits(1).prints("has no model org/none");
    run(&words.replace("org/small", "../../etc")).exits(1).prints("no name of a model");
    run(&words.replace("org/small", "org/small:q4.gguf")).exits(1).prints("no GGUF file");
}

#[test]
fn files_that_are_not_as_listed_are_refused() {
    for size in [10, 1 << 20] {
        let d = folder();
        let address = server(Some(size), None).start();
        let words = "generate|--from-hub|org/small|--tokens|1|--json";
        let mut command = command(d.path(), words);
        let refused = ran(command.env("HF_ENDPOINT", &address).env("WGFC_CACHE_DIR", d.path()));
        refused.exits(1).prints("of the list");
        assert!(!d.path().join("hub/org/small/abc123/model.onnx").exists());
    }
    let d = folder();
    let mut command = command(d.path(), "generate|--from-hub|org/small|--tokens|1");
    let nobody = ran(command.env("HF_ENDPOINT", "http://127.0.0.1:1").env("WGFC_CACHE_DIR", d.path()));
    nobody.exits(1).says("cannot be fetched");
}
