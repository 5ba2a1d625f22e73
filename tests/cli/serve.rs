//! `wgfc serve` over its port.

use crate::{command, fixture, folder, mlp, wgfc};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

/// A server that is stopped at the end of the test.
struct Server {
    child: Child,
    /// The part of the printed address after the host.
    view: String,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A playground of one page, and a server for it.
fn serve(dir: &Path, words: &str) -> Server {
    std::fs::create_dir_all(dir.join("page/sub")).unwrap();
    std::fs::write(dir.join("page/index.html"), "<p>the page</p>").unwrap();
    std::fs::write(dir.join("page/sub/main.js"), "0123456789").unwrap();
    started(dir, &format!("serve|--playground|page|--no-open{words}"))
}

fn started(dir: &Path, words: &str) -> Server {
    let mut child = command(dir, words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let rest = line.trim().strip_prefix("http://127.0.0.1:").unwrap_or_else(|| panic!("{line}"));
    let (port, view) = rest.split_once('/').unwrap();
    Server { child, view: view.to_owned(), port: port.parse().unwrap() }
}

impl Server {
    fn raw(&self, request: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut all = vec![];
        stream.read_to_end(&mut all).unwrap();
        let end = all.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        (String::from_utf8(all[..end].to_vec()).unwrap(), all[end + 4..].to_vec())
    }
    fn get(&self, path: &str, headers: &str) -> (String, Vec<u8>) {
        self.raw(&format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{headers}\r\n", self.port))
    }
    /// The answer to a request as a page of the playground makes it: its status and its body.
    fn post(&self, path: &str, origin: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let (port, length) = (self.port, body.len());
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {length}\r\n{origin}\r\n"
        );
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut all = vec![];
        stream.read_to_end(&mut all).unwrap();
        let end = all.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let status = std::str::from_utf8(&all[9..12]).unwrap().parse().unwrap();
        (status, all[end + 4..].to_vec())
    }
    fn own(&self) -> String {
        format!("Origin: http://127.0.0.1:{}\r\n", self.port)
    }
    #[track_caller]
    fn status(&self, path: &str, headers: &str, status: u16) -> Vec<u8> {
        let (head, body) = self.get(path, headers);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {head}");
        body
    }
}

#[test]
fn files_are_served_whole_and_in_parts() {
    let d = folder();
    let s = serve(d.path(), "");
    assert_eq!(s.view, "");
    assert_eq!(s.status("/", "", 200), b"<p>the page</p>");
    let (head, body) = s.get("/sub/main.js?x=1", "Range: bytes=2-4\r\n");
    assert!(head.starts_with("HTTP/1.1 206 ") && head.contains("content-range: bytes 2-4/10"), "{head}");
    assert!(head.contains("content-type: text/javascript"), "{head}");
    assert_eq!(body, b"234");
    s.status("/sub/main.js", "Range: bytes=10-\r\n", 416);
    let (head, body) = s.raw(&format!("HEAD /sub/main.js HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", s.port));
    assert!(head.contains("content-length: 10") && body.is_empty(), "{head}");
}

#[test]
fn what_is_not_to_be_served_is_refused() {
    let d = folder();
    std::fs::write(d.path().join("secret"), "secret").unwrap();
    let s = serve(d.path(), "");
    for path in
        ["/missing", "/../secret", "/%2e%2e/secret", "/sub/../../secret", "/served/secret", "//etc/passwd"]
    {
        s.status(path, "", 404);
    }
    s.status("/%zz", "", 400);
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\n\r\n", 403),
        ("GET / HTTP/1.0\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: localhost:PORT.example.org\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: localhost:PORT\r\nHost: example.org\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: localhost:PORT\r\nRange: bytes=0-1\r\nrange: bytes=2-3\r\n\r\n", 400),
        ("GET http://example.org/ HTTP/1.1\r\nHost: localhost:PORT\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: localhost:PORT\r\nContent-Length: 3\r\n\r\nabc", 400),
        ("GET / HTTP/1.1\r\nHost: localhost:PORT\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: localhost:PORT\r\n Folded: x\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("nonsense\r\n\r\n", 400),
    ] {
        let (head, _) = s.raw(&request.replace("PORT", &s.port.to_string()));
        let answer = head.strip_prefix("HTTP/1.").and_then(|h| h.get(2..5));
        assert_eq!(answer, Some(&*status.to_string()), "{request}: {head}");
    }
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000));
    assert!(s.raw(&long).0.starts_with("HTTP/1.1 431 "));
}

#[test]
fn a_model_is_served_with_what_is_beside_it() {
    let d = folder();
    let model = d.path().join("models/my model.onnx");
    std::fs::create_dir_all(model.parent().unwrap()).unwrap();
    std::fs::copy(mlp(), &model).unwrap();
    let s = serve(d.path(), "|models/my model.onnx");
    assert_eq!(s.view, "#model=./served/my%20model.onnx");
    assert_eq!(s.status("/served/my%20model.onnx", "", 200), std::fs::read(model).unwrap());
    s.status("/served/../page/index.html", "", 404);
    drop(s);
    wgfc(d.path(), &format!("compile|{}|-o|out", mlp())).exits(0);
    let s = serve(d.path(), "|out");
    assert_eq!(s.view, "#model=./served/");
    assert!(s.status("/served/plan.json", "", 200).starts_with(b"{"));
}

#[test]
fn a_program_is_served_with_the_model_that_its_weights_are_in() {
    let d = folder();
    let models = d.path().join("the models");
    std::fs::create_dir_all(&models).unwrap();
    for name in ["m.onnx", "other.onnx"] {
        std::fs::copy(fixture("small/attention/model.onnx"), models.join(name)).unwrap();
    }
    let model = std::fs::read(fixture("small/attention/model.onnx")).unwrap();
    let weights = |out: &str| {
        wgfc(d.path(), &format!("compile|the models/m.onnx|-o|{out}|--weights-from-model")).exits(0);
    };
    weights("the models/p.wgfc");
    let s = serve(d.path(), "|the models/p.wgfc");
    assert_eq!(s.view, "#model=./served/p.wgfc");
    s.status("/served/p.wgfc", "", 200);
    assert_eq!(s.status("/served/m.onnx", "", 200), model);
    s.status("/served/other.onnx", "", 404);
    drop(s);
    // Plan and model keep their relative positions in the served addresses.
    for out in ["out.wgfc", "out"] {
        weights(out);
        let s = serve(d.path(), &format!("|{out}"));
        let plan = if out == "out" { "out/" } else { out };
        assert_eq!(s.view, format!("#model=./served/{plan}"));
        s.status(&format!("/served/{plan}{}", if out == "out" { "plan.json" } else { "" }), "", 200);
        assert_eq!(s.status("/served/the%20models/m.onnx", "", 200), model);
        s.status("/served/the%20models/other.onnx", "", 404);
        s.status("/served/plan.json", "", 404);
    }
    // A changed model is not served to a program outside its folder.
    std::fs::copy(d.path().join("the models/p.wgfc"), d.path().join("the models/m.onnx")).unwrap();
    let s = serve(d.path(), "|out");
    assert_eq!(s.view, "#model=./served/");
    s.status("/served/plan.json", "", 200);
    s.status("/served/m.onnx", "", 404);
}

#[test]
fn only_files_of_the_model_are_served_and_none_is_a_page() {
    let d = folder();
    let models = d.path().join("models");
    std::fs::create_dir_all(models.join("parts")).unwrap();
    for name in ["page.html", ".env", "parts/.key", "other.onnx", "notes.txt", "weights.data"] {
        std::fs::write(models.join(name), "private").unwrap();
    }
    std::fs::write(models.join("parts/a.data"), vec![0; 24]).unwrap();
    std::fs::write(models.join("model.onnx"), external("./parts/a.data")).unwrap();
    let s = serve(d.path(), "|models/model.onnx");
    s.status("/served/model.onnx", "", 200);
    assert_eq!(s.status("/served/parts/a.data", "", 200).len(), 24);
    for name in ["page.html", ".env", "parts/.key", "other.onnx", "notes.txt", "weights.data", "parts", "."] {
        s.status(&format!("/served/{name}"), "", 404);
    }
    drop(s);
    // A model file may have any name.
    std::fs::write(models.join("model.html"), "<script>alert(1)</script>").unwrap();
    let s = serve(d.path(), "|models/model.html");
    let (head, _) = s.get("/served/model.html", "");
    for header in [
        "content-type: text/plain",
        "x-content-type-options: nosniff",
        "cross-origin-resource-policy: same-origin",
        "content-security-policy: default-src 'none'",
        "sandbox",
    ] {
        assert!(head.contains(header), "{header} in {head}");
    }
    let (head, _) = s.get("/", "");
    assert!(head.contains("content-security-policy: default-src 'self'; script-src 'self'"), "{head}");
    drop(s);
    // From a compiled folder, only the compiler's own files are served.
    wgfc(d.path(), &format!("compile|{}|-o|out", mlp())).exits(0);
    for name in ["index.html", "kernels/page.html", ".secret", "kernels/.x.wgsl", "weights.txt"] {
        std::fs::write(d.path().join("out").join(name), "private").unwrap();
    }
    let s = serve(d.path(), "|out");
    let kernel = std::fs::read_dir(d.path().join("out/kernels")).unwrap();
    let kernel = kernel.map(|e| e.unwrap().file_name().into_string().unwrap());
    let kernel = kernel.into_iter().find(|n| n.ends_with(".wgsl") && !n.starts_with('.')).unwrap();
    s.status(&format!("/served/kernels/{kernel}"), "", 200);
    s.status("/served/weights.safetensors", "", 200);
    for name in ["index.html", "kernels/page.html", ".secret", "kernels/.x.wgsl", "weights.txt", "kernels"] {
        s.status(&format!("/served/{name}"), "", 404);
    }
}

/// The page, the demos' models and their programs are built in.
#[test]
fn the_playground_needs_no_files() {
    let d = folder();
    let s = started(d.path(), "serve|--no-open");
    let page = String::from_utf8(s.status("/", "", 200)).unwrap();
    assert!(page.contains("<meta name=\"wgfc-compiler\" content=\"./api/\" />"), "{page}");
    for name in ["main.js", "wgfc/index.js", "wgfc/compiler/index.js", "models/digits.onnx"] {
        assert!(!s.status(&format!("/{name}"), "", 200).is_empty());
    }
    let program = s.status("/models/digits.wgfc", "", 200);
    assert!(program.windows(9).any(|w| w == b"plan.json"));
    s.status("/models/other.wgfc", "", 404);
    s.status("/wgfc/compiler/compiler.wasm", "", 404);
}

/// A request for compilation: its length, it, and the model.
fn asked(request: &str, model: &[u8]) -> Vec<u8> {
    [&(request.len() as u32).to_le_bytes()[..], request.as_bytes(), model].concat()
}

#[test]
fn models_are_compiled_for_the_page() {
    let d = folder();
    let s = started(d.path(), "serve|--no-open");
    let json = |answer: &[u8]| -> serde_json::Value {
        let length = u32::from_le_bytes(*answer.first_chunk().unwrap()) as usize;
        serde_json::from_slice(&answer[4..4 + length]).unwrap()
    };
    // The kernels are those of `wgfc compile`, for the device that the page names.
    let (status, answer) = s.post("/api/compile", &s.own(), &asked("{}", &std::fs::read(mlp()).unwrap()));
    assert_eq!(status, 200);
    wgfc(d.path(), &format!("compile|{}|-o|out", mlp())).exits(0);
    let kernels = json(&answer)["kernels"].as_object().unwrap().clone();
    assert!(!kernels.is_empty());
    for (name, text) in kernels {
        let written = std::fs::read_to_string(d.path().join(format!("out/kernels/{name}.wgsl"))).unwrap();
        assert_eq!(text.as_str(), Some(written.as_str()));
    }
    // Bytes of files are asked for when the compiler reads them.
    let request = r#"{"files": [{"name": "a.data", "bytes": 24}]}"#;
    let (status, read) = s.post("/api/compile", &s.own(), &asked(request, &external("a.data")));
    assert_eq!(status, 202);
    let read: serde_json::Value = serde_json::from_slice(&read).unwrap();
    assert_eq!((&read["file"], &read["offset"]), (&0.into(), &0.into()));
    let path = format!("/api/compile/{}", read["job"]);
    let weights: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let (status, answer) = s.post(&path, &s.own(), &weights);
    assert_eq!((status, &json(&answer)["read"]), (200, &24.into()));
    assert_eq!(s.post(&path, &s.own(), &weights).0, 404);
    // A file that is shorter than it was is an error of the compilation.
    let (_, read) = s.post("/api/compile", &s.own(), &asked(request, &external("a.data")));
    let read: serde_json::Value = serde_json::from_slice(&read).unwrap();
    let (status, answer) = s.post(&format!("/api/compile/{}", read["job"]), &s.own(), &weights[..8]);
    assert_eq!(status, 200);
    assert!(json(&answer)["text"].as_str().unwrap().contains("cannot read the bytes of `a.data`"));
    // Pages that were closed keep no others out: the compilation that has waited longest makes room.
    let begun: Vec<serde_json::Value> = (0..6)
        .map(|_| {
            let (status, read) = s.post("/api/compile", &s.own(), &asked(request, &external("a.data")));
            assert_eq!(status, 202);
            serde_json::from_slice(&read).unwrap()
        })
        .collect();
    let statuses: Vec<u16> = begun
        .iter()
        .map(|read| s.post(&format!("/api/compile/{}", read["job"]), &s.own(), &weights).0)
        .collect();
    assert_eq!(statuses, [404, 404, 200, 200, 200, 200]);
}

/// No page of another site makes this machine work.
#[test]
fn only_the_playground_sends_models() {
    let d = folder();
    let s = started(d.path(), "serve|--no-open");
    let body = asked("{}", b"");
    for origin in ["", "Origin: http://example.com\r\n", "Origin: null\r\n", "Origin: http://127.0.0.1\r\n"] {
        assert_eq!(s.post("/api/compile", origin, &body).0, 403, "{origin}");
    }
    assert_eq!(s.post("/index.html", &s.own(), b"").0, 405);
    assert_eq!(s.post("/api/", &s.own(), b"").0, 404);
    assert_eq!(s.post("/api/compile", &s.own(), b"").0, 400);
    let head = |more: &str| {
        let host = format!("localhost:{}", s.port);
        format!("POST /api/compile HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n{more}\r\n")
    };
    let (answer, _) = s.raw(&head("Transfer-Encoding: chunked\r\n"));
    assert!(answer.starts_with("HTTP/1.1 411 "), "{answer}");
    let (answer, _) = s.raw(&head("Content-Length: 99999999999\r\n"));
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

/// A model of one external tensor of six elements.
fn external(location: &str) -> Vec<u8> {
    use prost::Message;
    use wgfc_compiler::import::onnx::*;
    let entry = StringStringEntryProto { key: "location".into(), value: location.into() };
    let tensor = TensorProto {
        name: "w".into(),
        dims: vec![6],
        data_type: 1,
        data_location: 1,
        external_data: vec![entry],
        ..Default::default()
    };
    let port = |name: &str| ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto::of(wgfc::DType::F32, &[6])),
    };
    let add = NodeProto {
        op_type: "Add".into(),
        input: vec!["x".into(), "w".into()],
        output: vec!["y".into()],
        ..Default::default()
    };
    let graph = GraphProto {
        name: "g".into(),
        node: vec![add],
        initializer: vec![tensor],
        input: vec![port("x")],
        output: vec![port("y")],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { version: 21, ..Default::default() }];
    ModelProto { ir_version: 10, opset_import, graph: Some(graph), ..Default::default() }.encode_to_vec()
}

#[test]
fn slow_connections_do_not_keep_others_out() {
    let d = folder();
    let s = serve(d.path(), "");
    let slow: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", s.port)).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: l").unwrap();
            stream
        })
        .collect();
    let start = std::time::Instant::now();
    s.status("/", "", 200);
    assert!(start.elapsed() < std::time::Duration::from_secs(5));
    drop(slow);
}

#[test]
fn what_cannot_be_served_is_explained() {
    let d = folder();
    wgfc(d.path(), "serve|--no-open|--playground|.").exits(1).says("it has no index.html");
    std::fs::write(d.path().join("index.html"), "").unwrap();
    let words = |model: &str| format!("serve|--no-open|--playground|.|{model}");
    wgfc(d.path(), &words("missing.onnx")).exits(1).says("missing.onnx");
    wgfc(d.path(), &words(".")).exits(1).says("without plan.json");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    wgfc(d.path(), &format!("serve|--no-open|--playground|.|--port|{port}"))
        .exits(1)
        .says("cannot be listened to");
}
