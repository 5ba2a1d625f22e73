//! `/v1/embeddings`: requests, the thread that makes vectors, and answers.

use super::protocol::{Fields, Prompt, Refusal, fields, missing, prompts};
use super::routes::{Server, Work, encode, text};
use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use wgfc::Error;
use wgfc::generate::{Accepts, Embedder, normalised};

/// The most texts of a request, and the most tokens of all of them, as in OpenAI's protocol.
const TEXTS: usize = 2048;
const TOKENS: usize = 300_000;
/// Requests that wait are joined up to this number of tokens.
const JOINED: usize = 16_384;

/// A request for embeddings.
#[derive(Debug, PartialEq)]
struct Asked {
    model: String,
    input: Vec<Prompt>,
    base64: bool,
    /// The number of first elements that are wanted; `None` for all.
    dimensions: Option<usize>,
}

impl Asked {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// JSON that is not valid, fields of the wrong type or value, unknown fields.
    fn read(body: &[u8]) -> Result<Asked, Refusal> {
        let mut f: Fields = fields(body)?;
        let model = f.text("model")?.ok_or_else(|| missing("model"))?;
        let input = prompts(f.take("input"), "input")?;
        if input.len() > TEXTS {
            let message = format!("'input' holds {} texts, more than {TEXTS}", input.len());
            return Err(Refusal::param("input", message, "invalid_value"));
        }
        let base64 = match f.text("encoding_format")?.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => {
                let other: String = other.chars().take(100).collect();
                let message = format!("'encoding_format' is '{other}', neither 'float' nor 'base64'");
                return Err(Refusal::param("encoding_format", message, "invalid_value"));
            }
        };
        let dimensions = f.count("dimensions", true)?;
        f.text("user")?;
        f.finish("")?;
        Ok(Asked { model, input, base64, dimensions })
    }
}

type Vectors = Vec<Vec<f32>>;

/// Sequences of one request.
struct Job {
    sequences: Vec<Vec<i64>>,
    sink: oneshot::Sender<Result<Vectors, Error>>,
    /// The request's place among those that run or wait.
    place: OwnedSemaphorePermit,
}

impl Job {
    fn tokens(&self) -> usize {
        self.sequences.iter().map(Vec::len).sum()
    }

    /// Hands the client its vectors. The place is free before.
    fn end(self, made: Result<Vectors, Error>) {
        drop(self.place);
        let _ = self.sink.send(made);
    }
}

/// The thread that makes vectors, as the server sees it.
pub struct Embeddings {
    jobs: Sender<Job>,
    places: Arc<Semaphore>,
    accepts: Accepts,
    healthy: Arc<AtomicBool>,
}

impl Embeddings {
    /// Starts the thread. `queue` requests may wait beside one that runs.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(embedder: Embedder, queue: usize) -> std::io::Result<Embeddings> {
        let (send, receive) = channel();
        let accepts = embedder.accepts();
        let healthy = Arc::new(AtomicBool::new(true));
        let works = healthy.clone();
        let thread = std::thread::Builder::new().name("embeddings".into());
        thread.spawn(move || serve(embedder, &receive, &works))?;
        Ok(Embeddings { jobs: send, places: Arc::new(Semaphore::new(queue + 1)), accepts, healthy })
    }

    /// The sequences that are accepted.
    pub fn accepts(&self) -> Accepts {
        self.accepts
    }

    /// Whether the device can run the model.
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Acquire)
    }

    fn check(&self, sequence: &[i64]) -> Result<(), Refusal> {
        if sequence.len() > self.accepts.capacity {
            let message = format!(
                "This model's maximum context length is {} tokens, however you requested {} tokens. Please reduce your prompt.",
                self.accepts.capacity,
                sequence.len()
            );
            return Err(Refusal::param("input", message, "context_length_exceeded"));
        }
        self.accepts.check(sequence).map_err(|e| Refusal::of(&e, "input"))
    }
}

/// Makes vectors until no more requests can come.
fn serve(mut embedder: Embedder, jobs: &Receiver<Job>, healthy: &AtomicBool) {
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            match jobs.recv() {
                Ok(job) => waiting.push_back(job),
                Err(_) => return,
            }
        }
        waiting.extend(jobs.try_iter());
        waiting.retain(|job: &Job| !job.sink.is_closed());
        let mut tokens = 0;
        let mut together = vec![];
        while let Some(job) = waiting.pop_front() {
            tokens += job.tokens();
            if tokens > JOINED && !together.is_empty() {
                waiting.push_front(job);
                break;
            }
            together.push(job);
        }
        run(&mut embedder, together, healthy);
    }
}

/// Makes the vectors of several requests in the same runs.
fn run(embedder: &mut Embedder, jobs: Vec<Job>, healthy: &AtomicBool) {
    let all: Vec<Vec<i64>> = jobs.iter().flat_map(|j| &j.sequences).cloned().collect();
    match embedder.embed(&all) {
        Ok(vectors) => {
            let mut vectors = vectors.into_iter();
            for job in jobs {
                let own = vectors.by_ref().take(job.sequences.len()).collect();
                job.end(Ok(own));
            }
        }
        // A request whose vectors cannot be made does not disturb others.
        Err(_) if jobs.len() > 1 => jobs.into_iter().for_each(|job| run(embedder, vec![job], healthy)),
        Err(e) => {
            tracing::error!("{e}");
            healthy.store(!embedder.session().gpu().is_lost(), Ordering::Release);
            jobs.into_iter().for_each(|job| job.end(Err(e.clone())));
        }
    }
}

/// Answers a request.
pub async fn embed(State(server): State<Arc<Server>>, request: Request) -> Result<Response, Refusal> {
    let (body, permit) = server.read(request).await?;
    let asked = Asked::read(&body)?;
    drop(body);
    server.knows(&asked.model)?;
    let Work::Embed(embeddings) = &server.work else {
        let message = "this server generates text: one that is started with --embeddings makes embeddings";
        return Err(Refusal::new(404, message, Some("unsupported_endpoint")));
    };
    let Asked { model, input, base64, dimensions } = asked;
    let width = embeddings.accepts().width;
    if let Some(n) = dimensions.filter(|n| *n > width) {
        let message = format!("'dimensions' is {n}, and the model makes vectors of {width} elements");
        return Err(Refusal::param("dimensions", message, "invalid_value"));
    }
    if input.iter().any(|p| matches!(p, Prompt::Text(_))) && !server.decoder.has_tokenizer() {
        let message = "the model comes without a tokenizer: give token ids";
        return Err(Refusal::param("input", message, "unsupported_value"));
    }
    let place = embeddings.places.clone().try_acquire_owned().map_err(|_| {
        let message = "The server is at its limit: as many requests wait as may. Try again later.";
        Refusal::new(429, message, Some("queue_full"))
    })?;
    let gone = || Refusal::new(500, "the server ends", Some("internal_error"));
    let decoder = server.decoder.clone();
    // A client that goes away does not end this, so the permit is kept until it ends.
    let encoded = tokio::task::spawn_blocking(move || {
        let tokens = input.iter().map(|p| encode(p, &decoder, "input")).collect::<Result<Vec<_>, _>>();
        drop(permit);
        tokens
    });
    let sequences = encoded.await.map_err(|_| gone())??;
    sequences.iter().try_for_each(|s| embeddings.check(s))?;
    let tokens: usize = sequences.iter().map(Vec::len).sum();
    if tokens > TOKENS {
        let message = format!("'input' holds {tokens} tokens, more than {TOKENS}");
        return Err(Refusal::param("input", message, "invalid_value"));
    }
    server.metrics.prompt_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    let (sink, made) = oneshot::channel();
    let _ = embeddings.jobs.send(Job { sequences, sink, place });
    let vectors = made.await.map_err(|_| gone())?.map_err(|e| Refusal::of(&e, "input"))?;
    let body = tokio::task::spawn_blocking(move || answer(vectors, dimensions, base64, model, tokens));
    Ok(text(200, body.await.map_err(|_| gone())??))
}

#[derive(Serialize)]
struct Answer {
    object: &'static str,
    data: Vec<One>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct One {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    /// The bytes of the floats, the least significant first.
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// The body of an answer.
fn answer(
    vectors: Vectors,
    dimensions: Option<usize>,
    base64: bool,
    model: String,
    tokens: usize,
) -> Result<String, Refusal> {
    let one = |(index, mut vector): (usize, Vec<f32>)| {
        if let Some(n) = dimensions.filter(|n| *n < vector.len()) {
            vector = normalised(&vector[..n]).ok_or_else(|| {
                let message = format!("the first {n} elements of a vector are zeros");
                Refusal::param("dimensions", message, "invalid_value")
            })?;
        }
        let embedding = match base64 {
            false => Vector::Floats(vector),
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Vector::Base64(STANDARD.encode(&bytes))
            }
        };
        Ok(One { object: "embedding", index, embedding })
    };
    let data = vectors.into_iter().enumerate().map(one).collect::<Result<_, Refusal>>()?;
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    serde_json::to_string(&Answer { object: "list", data, model, usage })
        .map_err(|e| Refusal::new(500, e.to_string(), Some("internal_error")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let asked = Asked::read(
            br#"{"model": "m", "input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 3, "user": "u"}"#,
        );
        let input = vec![Prompt::Text("a".into()), Prompt::Tokens(vec![1, 2])];
        assert_eq!(asked, Ok(Asked { model: "m".into(), input, base64: true, dimensions: Some(3) }));
        let many = format!(r#""input": [{}]"#, ["\"a\""; TEXTS + 1].join(","));
        for (fields, param) in [
            (r#""input": 3"#, "input"),
            (r#""input": []"#, "input"),
            (r#""input": [1, "a"]"#, "input"),
            (r#""input": [[1], 2]"#, "input"),
            (r#""input": [null]"#, "input"),
            (r#""user": "u""#, "input"),
            (many.as_str(), "input"),
            (r#""input": "x", "encoding_format": "int8""#, "encoding_format"),
            (r#""input": "x", "dimensions": 0"#, "dimensions"),
            (r#""input": "x", "dimensions": "3""#, "dimensions"),
            (r#""input": "x", "prompt": "y""#, "prompt"),
        ] {
            let refusal = Asked::read(format!(r#"{{"model": "m", {fields}}}"#).as_bytes()).unwrap_err();
            let got = (refusal.status, refusal.param.as_deref());
            assert_eq!(got, (400, Some(param)), "{refusal:?}");
        }
    }

    /// Bodies of requests with some bytes changed are read or refused.
    #[test]
    fn changed_requests_are_read_or_refused() {
        let body = br#"{"model": "m", "input": ["a", [1, 2]], "encoding_format": "float", "dimensions": 3}"#;
        crate::cli::api::protocol::changed(body, 10_000, |body| match Asked::read(body) {
            Ok(asked) => assert!(!asked.input.is_empty()),
            Err(refusal) => assert!((400..500).contains(&refusal.status) && !refusal.message.is_empty()),
        });
    }
}
