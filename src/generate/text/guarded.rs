//! A tokenizer that neither panics nor runs for ever, whatever its file says.

use super::bounds::{Growth, look_through};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokenizers::Tokenizer;
use tokenizers::tokenizer::step_decode_stream;

/// The stack size in bytes of the threads on which a tokenizer is read and applied.
const STACK: usize = 64 << 20;
/// The time limit for reading a tokenizer or encoding a text: this duration, and as much again for each block of this many
/// bytes. No count bounds the time of regular expressions that backtrack; one that exceeds the limit is assumed not to end.
const PATIENCE: (Duration, usize) = (Duration::from_secs(60), 1 << 16);

/// A tokenizer whose file has been checked.
pub struct Guarded {
    inner: Arc<Tokenizer>,
    growth: Growth,
}

/// The state of [`Guarded::push`] between tokens.
#[derive(Default)]
pub struct Stream {
    ids: Vec<u32>,
    prefix: String,
    at: usize,
}

impl Guarded {
    /// Reads a `tokenizer.json`. Its padding and truncation, which concern batches, are ignored.
    pub fn read(json: Vec<u8>) -> Result<Guarded, String> {
        let growth = look_through(&json)?;
        let patience = patience(json.len() / 64);
        let mut inner = apart(patience, move || Tokenizer::from_bytes(json).map_err(|e| e.to_string()))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| e.to_string())?;
        Ok(Guarded { inner: Arc::new(inner), growth })
    }

    /// The ids of a text's tokens, including the special ones that the tokenizer adds.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.growth.allow(text.len())?;
        let (inner, text) = (self.inner.clone(), text.to_owned());
        apart(patience(text.len()), move || {
            inner.encode(text, true).map(|e| e.get_ids().to_vec()).map_err(|e| e.to_string())
        })
    }

    /// The text of tokens, without special ones.
    pub fn decode(&self, ids: &[u32]) -> Result<String, String> {
        caught(|| self.inner.decode(ids, true).map_err(|e| e.to_string()))
    }

    /// The text that one more token adds.
    pub fn push(&self, s: &mut Stream, id: u32) -> Result<Option<String>, String> {
        caught(|| {
            let (ids, prefix, at) = (&mut s.ids, &mut s.prefix, &mut s.at);
            step_decode_stream(&self.inner, vec![id], true, ids, prefix, at).map_err(|e| e.to_string())
        })
    }
}

fn patience(bytes: usize) -> Duration {
    PATIENCE.0 * u32::try_from(1 + bytes / PATIENCE.1).unwrap_or(u32::MAX)
}

/// Runs `f` and turns a panic of the library into an error.
fn caught<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| Err(panicked(p.as_ref())))
}

fn panicked(p: &(dyn Any + Send)) -> String {
    let text = p.downcast_ref::<&str>().copied().or_else(|| p.downcast_ref::<String>().map(String::as_str));
    format!("it contradicts itself ({})", text.unwrap_or("no reason is given"))
}

/// Runs [`caught`] on a thread with a large stack, as the library recurses. A thread that exceeds the time limit is
/// abandoned and ends with the process.
fn apart<T: Send + 'static>(
    patience: Duration,
    f: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (send, receive) = mpsc::channel();
    let run = move || drop(send.send(caught(f)));
    let thread = std::thread::Builder::new().name("tokenizer".into()).stack_size(STACK);
    thread.spawn(run).map_err(|e| format!("no thread: {e}"))?;
    receive
        .recv_timeout(patience)
        .unwrap_or_else(|_| Err(format!("it did not come to an end in {} seconds", patience.as_secs())))
}
