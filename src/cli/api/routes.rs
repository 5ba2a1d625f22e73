//! The paths of the server, and what guards them.

use super::answers::Asked;
use super::embeddings::{self, Embeddings};
use super::engine::{Engine, Job};
use super::images::Images;
use super::metrics::Metrics;
use super::protocol::{Call, Prompt, Refusal};
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::StatusCode;
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::future::poll_fn;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use wgfc::generate::{Constraint, Forms};
use wgfc::{Decoder, Error};

/// The time in which the body of a request must be complete.
const BODY_TIME: Duration = Duration::from_secs(30);
/// The number of requests that are read and turned into tokens at a time.
pub const READERS: usize = 4;

/// The thread that runs the model.
pub enum Work {
    /// It generates text.
    Generate(Engine),
    /// It makes embeddings.
    Embed(Embeddings),
}

/// The decoder, the thread that runs it, and the limits of a server.
pub struct Server {
    pub decoder: Arc<Decoder>,
    /// The forms of answers, which are made when first needed.
    pub forms: Arc<OnceLock<Result<Forms, Error>>>,
    /// The vision encoder for pictures in messages.
    pub images: Arc<Images>,
    pub work: Work,
    pub metrics: Arc<Metrics>,
    /// The name of the model.
    pub model: String,
    /// The time at which the server was started, in seconds since 1970.
    pub created: u64,
    /// The hashes of the keys of which requests must have one; empty if they need none.
    pub keys: Vec<[u8; 32]>,
    /// The values of the header `Host` that requests may have; `None` for any.
    pub hosts: Option<Vec<String>>,
    /// The most bytes of a request's body.
    pub max_body: usize,
    /// Permits to read a request, [`READERS`] of them.
    pub readers: Arc<Semaphore>,
}

/// The seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The hash of a key. Keys are compared by it, so that the time of a comparison tells nothing of them.
pub fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Random bits, which nobody may rely on to be secret.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = object(self.status, &self.json());
        if self.status == 401 {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == 429 {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

fn object(status: u16, value: &Value) -> Response {
    text(status, value.to_string())
}

/// An answer of this JSON.
pub fn text(status: u16, json: String) -> Response {
    let mut response = Response::new(Body::from(json));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// All paths.
pub fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .route("/v1/completions", post(|s, r| generate(s, r, false)))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/chat/completions", post(|s, r| generate(s, r, true)))
        .fallback(async |r: Request| {
            let message = format!("there is no {}", shortened(r.uri().path()));
            Refusal::new(404, message, Some("unknown_url"))
        })
        .method_not_allowed_fallback(async |r: Request| {
            let message =
                format!("{} does not take {}", shortened(r.uri().path()), shortened(r.method().as_str()));
            Refusal::new(405, message, Some("method_not_allowed"))
        })
        .layer(from_fn_with_state(server.clone(), guard))
        .with_state(server)
}

/// Text of a client, for a message.
fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}

/// The path under which an answer is counted.
fn counted(path: &str) -> &'static str {
    let known =
        ["/health", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/embeddings"];
    match known.iter().find(|k| **k == path) {
        Some(known) => known,
        None if path.starts_with("/v1/models/") => "/v1/models/{name}",
        None => "other",
    }
}

/// Refuses requests that come by another name of this machine, and those without a key; counts answers.
async fn guard(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let path = counted(request.uri().path());
    let response = match server.refused(request.headers(), path) {
        Some(refusal) => refusal.into_response(),
        None => next.run(request).await,
    };
    server.metrics.answered(path, response.status().as_u16());
    response
}

async fn health(State(server): State<Arc<Server>>) -> Response {
    let healthy = match &server.work {
        Work::Generate(engine) => engine.is_healthy(),
        Work::Embed(embeddings) => embeddings.is_healthy(),
    };
    match healthy {
        true => object(200, &json!({ "status": "ok" })),
        false => Refusal::new(503, "the device has failed", Some("device_failed")).into_response(),
    }
}

async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let mut response = Response::new(Body::from(server.metrics.text()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

async fn models(State(server): State<Arc<Server>>) -> Response {
    object(200, &json!({ "object": "list", "data": [server.described()] }))
}

async fn model(
    State(server): State<Arc<Server>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Refusal> {
    server.knows(&name.map_err(|e| Refusal::new(400, e.body_text(), Some("invalid_url")))?)?;
    Ok(object(200, &server.described()))
}

async fn generate(
    State(server): State<Arc<Server>>,
    request: Request,
    chat: bool,
) -> Result<Response, Refusal> {
    let asked = server.ask(request, chat).await?;
    match asked.call.stream {
        true => Ok(asked.streamed()),
        false => Ok(object(200, &asked.whole().await?)),
    }
}

impl Server {
    /// Why a request with these headers is refused whatever it asks for.
    fn refused(&self, headers: &HeaderMap, path: &str) -> Option<Refusal> {
        let value = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
        // Checking the host prevents a web page whose name resolves to this machine from using the model.
        if let Some(hosts) = &self.hosts
            && !value(HOST).is_some_and(|h| hosts.iter().any(|k| h.eq_ignore_ascii_case(k)))
        {
            let message = format!("this is served to {} only", hosts.join(", "));
            return Some(Refusal::new(403, message, Some("wrong_host")));
        }
        if self.keys.is_empty() || path == "/health" {
            return None;
        }
        let key = value(AUTHORIZATION).and_then(|v| v.split_once(' '));
        let key =
            key.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| hash(key.trim()));
        match key {
            Some(key) if self.keys.contains(&key) => None,
            Some(_) => Some(Refusal::new(401, "Incorrect API key provided.", Some("invalid_api_key"))),
            None => Some(Refusal::new(
                401,
                "You didn't provide an API key: give it in the header 'Authorization: Bearer KEY'.",
                Some("invalid_api_key"),
            )),
        }
    }

    fn described(&self) -> Value {
        let length = match &self.work {
            Work::Generate(engine) => engine.bounds().capacity,
            Work::Embed(embeddings) => embeddings.accepts().capacity,
        };
        json!({ "id": self.model, "object": "model", "created": self.created, "owned_by": "wgfc", "max_model_len": length })
    }

    /// Refuses the name of another model.
    pub fn knows(&self, name: &str) -> Result<(), Refusal> {
        if name == self.model {
            return Ok(());
        }
        let message =
            format!("The model '{}' does not exist; this server has '{}'.", shortened(name), self.model);
        Err(Refusal { status: 404, ..Refusal::param("model", message, "model_not_found") })
    }

    /// The body of a request of JSON, and the permit to turn it into tokens.
    pub async fn read(&self, request: Request) -> Result<(Vec<u8>, OwnedSemaphorePermit), Refusal> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        // Web pages of others can send JSON with another type only.
        if !kind.split(';').next().is_some_and(|k| k.trim().eq_ignore_ascii_case("application/json")) {
            let message = "the header 'Content-Type' must be application/json";
            return Err(Refusal::new(415, message, Some("invalid_content_type")));
        }
        let read = timeout(BODY_TIME, body(request.into_body(), self.max_body)).await;
        let slow = |_| Refusal::new(408, "the body of the request did not arrive in time", Some("timeout"));
        let body = read.map_err(slow)??;
        let gone = |_| Refusal::new(500, "the server ends", Some("internal_error"));
        Ok((body, self.readers.clone().acquire_owned().await.map_err(gone)?))
    }

    /// Reads a request and hands its sequences to the engine.
    async fn ask(&self, request: Request, chat: bool) -> Result<Asked, Refusal> {
        let arrived = Instant::now();
        let (body, permit) = self.read(request).await?;
        let gone = || Refusal::new(500, "the server ends", Some("internal_error"));
        let Work::Generate(engine) = &self.work else {
            let message =
                "this server makes embeddings: one that is started without --embeddings generates text";
            return Err(Refusal::new(404, message, Some("unsupported_endpoint")));
        };
        let mut call = Call::read(&body, chat, self.decoder.defaults())?;
        drop(body);
        self.knows(&call.model)?;
        let param = call.prompt_param();
        let count = call.prompts.len().saturating_mul(call.answers);
        let text = call.prompts.iter().any(|p| matches!(p, Prompt::Text(_) | Prompt::Chat(_)));
        if (text || !call.stop.is_empty()) && !self.decoder.has_tokenizer() {
            let message =
                "the model comes without a tokenizer: give /v1/completions token ids, and no stop strings";
            return Err(Refusal::param(if text { param } else { "stop" }, message, "unsupported_value"));
        }
        if count > engine.most() {
            let message =
                format!("there are {count} sequences, and at most {} can run or wait", engine.most());
            return Err(Refusal::param(param, message, "invalid_value"));
        }
        let places = engine.places(count).ok_or_else(|| {
            let message = "The server is at its limit: as many sequences wait as may. Try again later.";
            Refusal::new(429, message, Some("queue_full"))
        })?;
        let (decoder, forms, form) = (self.decoder.clone(), self.forms.clone(), call.form.clone());
        let images = self.images.clone();
        let form_param =
            if call.tools.as_ref().is_some_and(|t| t.required) { "tools" } else { "response_format" };
        let form_param = if chat { form_param } else { "structured_outputs" };
        let prompts = std::mem::take(&mut call.prompts);
        // Turning text into tokens takes its time, in which other requests are answered. A client that goes away does not end
        // it, so the permit is kept until it ends.
        let encoded = tokio::task::spawn_blocking(move || {
            let tokens = prompts.iter().map(|p| match p {
                Prompt::Chat(chat) if decoder.has_chat_template() => images.encode(chat, &decoder),
                p => Ok((encode(p, &decoder, "prompt")?, vec![])),
            });
            let tokens = tokens.collect::<Result<Vec<_>, Refusal>>();
            let constraint = form.map(|form| {
                let forms = forms.get_or_init(|| decoder.forms());
                let made = forms.as_ref().map_err(Error::clone).and_then(|forms| form.constraint(forms));
                made.map_err(|e| Refusal::of(&e, form_param))
            });
            drop(permit);
            Ok::<_, Refusal>((tokens?, constraint.transpose()?))
        });
        let (tokens, constraint): (Vec<_>, Option<Constraint>) = encoded.await.map_err(|_| gone())??;
        let bounds = engine.bounds();
        let stop = match (call.ignore_eos, chat) {
            (true, _) => vec![],
            (false, true) => self.decoder.stop_tokens(),
            (false, false) => self.decoder.defaults().stop.clone(),
        };
        let seed = if call.seeded { None } else { Some(random()) };
        let (send, events) = unbounded_channel();
        let mut jobs = vec![];
        let prompt_tokens = tokens.iter().map(|(prompt, _)| prompt.len()).sum();
        let prompts = tokens.iter().flat_map(|prompt| std::iter::repeat_n(prompt, call.answers));
        for (index, ((prompt, images), place)) in prompts.cloned().zip(places).enumerate() {
            let left = bounds.capacity.saturating_sub(prompt.len());
            let most = call.max_tokens.unwrap_or(left.max(1));
            if most > left {
                let message = format!(
                    "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in your prompt; {most} for the completion). Please reduce your prompt or completion length.",
                    bounds.capacity,
                    prompt.len().saturating_add(most),
                    prompt.len()
                );
                return Err(Refusal::param(param, message, "context_length_exceeded"));
            }
            let mut sampling = call.sampling.clone();
            if let Some(s) = &mut sampling {
                // Answers to one prompt differ; the first one to each has the seed of the request.
                s.seed = match seed {
                    Some(seed) => seed.wrapping_add(index as u64),
                    None => s.seed.wrapping_add((index % call.answers) as u64),
                };
            }
            let request = wgfc::Request {
                max_new_tokens: most,
                sampling,
                stop: stop.clone(),
                logprobs: call.logprobs,
                constraint: constraint.clone(),
                images,
            };
            bounds.check(&prompt, &request).map_err(|e| Refusal::of(&e, param))?;
            let enough = Arc::default();
            jobs.push(Job { prompt, request, sink: send.clone(), index, enough, arrived, place });
        }
        let enough = jobs.iter().map(|j| j.enough.clone()).collect();
        jobs.into_iter().for_each(|job| engine.submit(job));
        let id = format!("{}-{:016x}{:016x}", if chat { "chatcmpl" } else { "cmpl" }, random(), random());
        let (decoder, created) = (self.decoder.clone(), now());
        Ok(Asked { call, chat, param, count, id, created, prompt_tokens, decoder, enough, events })
    }
}

/// The tokens of a prompt, which is in the field `name`.
pub fn encode(prompt: &Prompt, decoder: &Decoder, name: &str) -> Result<Vec<i64>, Refusal> {
    match prompt {
        Prompt::Tokens(ids) => Ok(ids.clone()),
        Prompt::Text(text) => decoder.encode(text).map_err(|e| Refusal::of(&e, name)),
        Prompt::Chat(_) if !decoder.has_chat_template() => {
            let message = "the model has no chat template: use /v1/completions";
            Err(Refusal::param("messages", message, "unsupported_value"))
        }
        Prompt::Chat(chat) => {
            let tokens = decoder.chat_prompt(&chat.messages, &chat.options());
            tokens.map_err(|e| Refusal::of(&e, "messages"))
        }
    }
}

/// The bytes of a body that has at most `limit` of them.
async fn body(mut body: Body, limit: usize) -> Result<Vec<u8>, Refusal> {
    let large = || {
        let message = format!("the body of the request has more than {limit} bytes (--max-body)");
        Refusal::new(413, message, Some("request_too_large"))
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(large());
    }
    let mut bytes = vec![];
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let broken = |_| Refusal::new(400, "the body of the request is incomplete", Some("invalid_body"));
        let data = frame.map_err(broken)?.into_data().unwrap_or_else(|_| Bytes::new());
        if bytes.len() + data.len() > limit {
            return Err(large());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}
