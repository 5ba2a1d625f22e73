//! Answers to requests for tokens: whole, or as a stream of server-sent events.

use super::engine::Event;
use super::forms::Held;
use super::likely::{self, Likely};
use super::protocol::{Call, Refusal};
use super::routes::random;
use super::text::{Assembler, Finish, Piece};
use axum::body::Body;
use axum::response::Response;
use hyper::body::{Bytes, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use wgfc::Decoder;

/// A request whose sequences have been handed to the engine.
pub struct Asked {
    pub call: Call,
    pub chat: bool,
    /// The field of the request that holds the prompts, and their number.
    pub param: &'static str,
    pub count: usize,
    /// The name of the answer.
    pub id: String,
    /// The time of the request, in seconds since 1970.
    pub created: u64,
    /// The number of tokens of all prompts.
    pub prompt_tokens: usize,
    pub decoder: Arc<Decoder>,
    /// A mark for each sequence, which is set when no more of it is needed.
    pub enough: Vec<Arc<AtomicBool>>,
    /// The events of the sequences, with their indices. Dropping it gives the sequences up.
    pub events: UnboundedReceiver<(usize, Event)>,
}

impl Asked {
    /// Takes the events until all sequences have ended. `each` is given the pieces that are not empty, with the sequences'
    /// indices. Returns the number of new tokens.
    async fn pieces(&mut self, mut each: impl FnMut(usize, Piece) + Send) -> Result<usize, Refusal> {
        let param = self.param;
        let decoder = self.decoder.clone();
        let all =
            (0..self.count).map(|_| Assembler::new(&decoder, &self.call.stop)).collect::<Result<Vec<_>, _>>();
        let mut all = all.map_err(|e| Refusal::of(&e, param))?;
        while !all.iter().all(|a| a.done) {
            let Some((index, event)) = self.events.recv().await else {
                return Err(Refusal::new(500, "the engine has ended", Some("internal_error")));
            };
            let Some(one) = all.get_mut(index) else { continue };
            let piece = match event {
                Event::Token(token, p, end) => one.push(token, p, end),
                Event::Failed(e) => Err(e),
            };
            let piece = piece.map_err(|e| Refusal::of(&e, param))?;
            if piece.finish.is_some()
                && let Some(enough) = self.enough.get(index)
            {
                enough.store(true, Ordering::Release);
            }
            if piece != Piece::default() {
                each(index, piece);
            }
        }
        Ok(all.iter().map(|a| a.tokens).sum())
    }

    /// Whether pieces hold the ids of tokens.
    fn shows_tokens(&self) -> bool {
        self.call.return_token_ids || !self.decoder.has_tokenizer()
    }

    /// The log-probabilities of a piece, whose text begins at `offset` of the whole.
    fn likely(&self, likely: &Likely, offset: usize) -> Value {
        likely_of(self.call.logprobs, self.chat, likely, &self.decoder, offset)
    }

    fn usage(&self, new: usize) -> Value {
        let prompt = self.prompt_tokens;
        json!({ "prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new })
    }

    /// An answer, or a part of one.
    fn object(&self, kind: &str, choices: &[Value], usage: Option<Value>) -> Value {
        let mut object = json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.call.model,
            "choices": choices,
        });
        if let Some(usage) = usage {
            object["usage"] = usage;
        }
        object
    }

    /// The answer with all tokens.
    ///
    /// # Errors
    /// The device or the tokenizer fails.
    pub async fn whole(mut self) -> Result<Value, Refusal> {
        let mut all: Vec<Piece> = (0..self.count).map(|_| Piece::default()).collect();
        let new = self
            .pieces(|index, piece| {
                if let Some(one) = all.get_mut(index) {
                    one.text += &piece.text;
                    one.tokens.extend(piece.tokens);
                    one.likely.extend(piece.likely);
                    one.finish = piece.finish;
                }
            })
            .await?;
        let choice = |(index, piece): (usize, &Piece)| {
            let (text, calls) = match &self.call.tools {
                Some(tools) if piece.finish == Some(Finish::Stop) => tools.calls(&piece.text),
                _ => (piece.text.as_str(), vec![]),
            };
            let finish = if calls.is_empty() { piece.finish } else { Some(Finish::Calls) };
            let finish = finish.map(|f| f.name());
            let logprobs = self.likely(&piece.likely, 0);
            let mut choice = match self.chat {
                true => {
                    let mut message = json!({ "role": "assistant", "content": text });
                    if !calls.is_empty() {
                        message["tool_calls"] = calls.iter().map(|c| called(c, None)).collect();
                        if text.is_empty() {
                            message["content"] = Value::Null;
                        }
                    }
                    json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish })
                }
                false => {
                    json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish })
                }
            };
            if self.shows_tokens() {
                choice["token_ids"] = piece.tokens.clone().into();
            }
            choice
        };
        let choices: Vec<Value> = all.iter().enumerate().map(choice).collect();
        let kind = if self.chat { "chat.completion" } else { "text_completion" };
        Ok(self.object(kind, &choices, Some(self.usage(new))))
    }

    /// The answer as a stream of server-sent events, which ends with `[DONE]`, or with an error.
    pub fn streamed(self) -> Response {
        let (send, events) = unbounded_channel();
        let pump = Box::pin(self.send(send));
        let mut response = Response::new(Body::new(Stream { pump: Some(pump), events }));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    async fn send(mut self, to: UnboundedSender<Bytes>) {
        let kind = if self.chat { "chat.completion.chunk" } else { "text_completion" };
        // All parts have the same fields beside their choices; the events are taken while they are read.
        let frame = self.object(kind, &[], self.call.include_usage.then_some(Value::Null));
        let shows_tokens = self.shows_tokens();
        let chat = self.chat;
        let (wanted, decoder, tools) = (self.call.logprobs, self.decoder.clone(), self.call.tools.clone());
        let mut held: Vec<Held> = (0..self.count).map(|_| Held::default()).collect();
        let mut offsets = vec![0; self.count];
        let part = |choice: Value| {
            let mut object = frame.clone();
            object["choices"] = json!([choice]);
            let _ = to.send(event(&object));
        };
        let delta = |index: usize, delta: Value, finish: Option<&str>| json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish });
        if chat {
            (0..self.count).for_each(|i| part(delta(i, json!({ "role": "assistant", "content": "" }), None)));
        }
        let each = |index: usize, mut piece: Piece| {
            let mut calls = vec![];
            if let (Some(tools), Some(held)) = (&tools, held.get_mut(index)) {
                piece.text = held.push(&piece.text);
                if let Some(finish) = piece.finish {
                    // An answer that was cut is no call.
                    let (rest, found) = match finish {
                        Finish::Stop => held.finish(tools),
                        _ => (held.rest(), vec![]),
                    };
                    piece.text += &rest;
                    if !found.is_empty() {
                        (calls, piece.finish) = (found, Some(Finish::Calls));
                    }
                }
            }
            let finish = piece.finish.map(|f| f.name());
            let is_shown = !piece.text.is_empty() || shows_tokens || wanted.is_some();
            if !is_shown && finish.is_none() {
                return;
            }
            let likely = likely_of(wanted, chat, &piece.likely, &decoder, offsets[index]);
            offsets[index] += piece.text.chars().count();
            let mut choice = match chat {
                true if !calls.is_empty() => {
                    let calls = calls.iter().enumerate().map(|(i, c)| called(c, Some(i)));
                    let mut parts = json!({ "tool_calls": calls.collect::<Vec<_>>() });
                    if !piece.text.is_empty() {
                        parts["content"] = piece.text.into();
                    }
                    delta(index, parts, finish)
                }
                true if is_shown => delta(index, json!({ "content": piece.text }), finish),
                true => delta(index, json!({}), finish),
                false => {
                    json!({ "index": index, "text": piece.text, "logprobs": null, "finish_reason": finish })
                }
            };
            choice["logprobs"] = likely;
            if shows_tokens {
                choice["token_ids"] = piece.tokens.into();
            }
            part(choice);
        };
        match self.pieces(each).await {
            Ok(new) => {
                if self.call.include_usage {
                    let _ = to.send(event(&self.object(kind, &[], Some(self.usage(new)))));
                }
                let _ = to.send(Bytes::from_static(b"data: [DONE]\n\n"));
            }
            Err(refusal) => drop(to.send(event(&refusal.json()))),
        }
    }
}

/// The log-probabilities of a piece in the protocol's form; null if they are not `wanted`.
fn likely_of(wanted: Option<usize>, chat: bool, likely: &Likely, decoder: &Decoder, offset: usize) -> Value {
    match (wanted, chat) {
        (None, _) => Value::Null,
        (Some(_), true) => likely::of_chat(likely, decoder),
        (Some(_), false) => likely::of_completion(likely, decoder, offset),
    }
}

/// A call of a function: its name and its arguments; in a stream with its place among the calls.
fn called((name, arguments): &(String, String), place: Option<usize>) -> Value {
    let id = format!("call_{:016x}", random());
    let mut call =
        json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    if let Some(place) = place {
        call["index"] = place.into();
    }
    call
}

/// A server-sent event with an object.
fn event(object: &Value) -> Bytes {
    format!("data: {object}\n\n").into()
}

/// The body of a streamed answer. It makes the events as they are read, so that the sequences are given up when the client
/// goes away and the body is dropped.
struct Stream {
    /// Sends the events; `None` when it has ended.
    pump: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    events: UnboundedReceiver<Bytes>,
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        if body.pump.as_mut().is_some_and(|pump| pump.as_mut().poll(cx).is_ready()) {
            body.pump = None;
        }
        // The channel closes when the pump is dropped.
        body.events.poll_recv(cx).map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}
