//! `wgfc chat`.

use super::adapter;
use super::args::ChatArgs;
use super::generate::{Further, constraint, sampling, set_up, weighted};
use super::pictures::Pictures;
use super::terminal::Terminal;
use std::io::{BufRead, IsTerminal, Read};
use std::time::Instant;
use wgfc::generate::{ChatOptions, ImageFeatures, Message};
use wgfc::{Decoder, Error, Generator, Request};

/// The most bytes of a line.
const LINE: u64 = 1 << 20;
/// The line that adds a picture to the next message begins so.
const PICTURE: &str = "/image ";

/// Answers the lines of stdin. On a terminal an error of a turn is printed and the next line is read; otherwise it ends the
/// command.
pub fn main(a: &ChatArgs, t: &Terminal) -> Result<(), Error> {
    a.decoder.precision.check()?;
    super::speculation::check(&a.speculation)?;
    let decoder = super::generate::open(&a.model, &a.decoder, t)?;
    let mut chat = Conversation::new(a);
    // A missing template or tokenizer, and a template that refuses the instructions, are errors before the model is compiled.
    let first: Vec<Message> = chat.messages.iter().cloned().chain([Message::user("x")]).collect();
    decoder.chat_prompt(&first, &chat.options)?;
    let decoder = weighted(decoder, &a.decoder, t)?;
    let gpu = adapter::open(&a.decoder.adapter, t)?;
    let mut pictures = Pictures::new(&gpu, &a.decoder);
    for path in &a.image {
        chat.waiting.push(pictures.read(path, &decoder, t)?);
    }
    let (mut generator, cache) =
        set_up(&gpu, &decoder, (a.capacity, Further::default()), (&a.decoder, &a.speculation), &a.model, t)?;
    chat.request.sampling = sampling(&a.sampling, &decoder);
    chat.request.constraint = constraint(&a.form, &decoder)?;

    let asks = std::io::stdin().is_terminal() && !t.json;
    if asks {
        let image = if decoder.has_image_encoder() { "/image FILE adds a picture, " } else { "" };
        t.note(&format!("each line is a message; {image}/reset begins a new conversation, /exit ends"));
    }
    let mut lines = std::io::stdin().lock();
    let ended = loop {
        if asks {
            t.print_to_stderr("> ");
        }
        let line = match line(&mut lines) {
            Ok(Some(line)) => line,
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        };
        match line.trim() {
            "" => {}
            "/exit" => break Ok(()),
            "/reset" => {
                if let Err(e) = chat.reset(&mut generator) {
                    break Err(e);
                }
                t.note("a new conversation begins");
            }
            text if text.starts_with(PICTURE) => {
                let path = text[PICTURE.len()..].trim();
                match pictures.read(path.as_ref(), &decoder, t) {
                    Ok(features) => {
                        chat.waiting.push(features);
                        t.note(&format!("{path} is in front of the next message"));
                    }
                    Err(e) if asks => t.error(&e),
                    Err(e) => break Err(e),
                }
            }
            text => match chat.answer(text, &mut generator, &decoder, t) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(e) if asks => t.error(&e),
                Err(e) => break Err(e),
            },
        }
    };
    cache.save(t);
    ended?;
    if t.json {
        t.print_json(&serde_json::json!({
            "ran_on": gpu.summary().name,
            "random_weights": a.decoder.random_weights,
            "turns": chat.turns,
            "messages": chat.messages,
        }));
    }
    Ok(())
}

/// The next line of the input; `None` at its end.
fn line(from: &mut impl BufRead) -> Result<Option<String>, Error> {
    let mut bytes = vec![];
    let read = from.take(LINE + 1).read_until(b'\n', &mut bytes);
    read.map_err(|e| Error::usage(format!("stdin cannot be read: {e}"), "give the messages as lines"))?;
    if bytes.len() as u64 > LINE {
        let message = format!("a line of the input has more than {LINE} bytes");
        return Err(Error::usage(message, "give shorter messages, one a line"));
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|_| Error::usage("a line of the input is not text in UTF-8", "convert the input"))
}

/// A conversation and how it goes on.
struct Conversation {
    system: Option<Message>,
    messages: Vec<Message>,
    /// The pictures in front of the next message.
    waiting: Vec<ImageFeatures>,
    options: ChatOptions,
    request: Request,
    capacity: usize,
    /// The statistics of each turn, for `--json`.
    turns: Vec<serde_json::Value>,
}

impl Conversation {
    fn new(a: &ChatArgs) -> Conversation {
        let system = a.system.clone().map(Message::system);
        Conversation {
            messages: system.iter().cloned().collect(),
            system,
            waiting: vec![],
            options: ChatOptions::default(),
            request: Request { max_new_tokens: a.max_new_tokens, ..Request::default() },
            capacity: a.capacity,
            turns: vec![],
        }
    }

    /// Removes all messages but the instructions.
    fn reset(&mut self, generator: &mut Generator) -> Result<(), Error> {
        self.messages = self.system.iter().cloned().collect();
        self.request.images.clear();
        generator.reset()
    }

    /// Adds a message and prints the answer as it arrives. Returns whether the reader of stdout still exists. After an error
    /// the message is not part of the conversation.
    fn answer(
        &mut self,
        text: &str,
        generator: &mut Generator,
        decoder: &Decoder,
        t: &Terminal,
    ) -> Result<bool, Error> {
        let (before, pictures) = (self.messages.len(), self.request.images.len());
        self.messages.push(match self.waiting.len() {
            0 => Message::user(text),
            n => Message::user_with_images(n, text),
        });
        self.request.images.extend(self.waiting.iter().cloned());
        let done = self.turn(generator, decoder, t);
        if done.is_err() {
            self.messages.truncate(before);
            self.request.images.truncate(pictures);
        } else {
            self.waiting.clear();
        }
        done
    }

    fn turn(&mut self, generator: &mut Generator, decoder: &Decoder, t: &Terminal) -> Result<bool, Error> {
        let started = Instant::now();
        let images = &self.request.images;
        let prompt = decoder.chat_prompt_with_images(&self.messages, &self.options, images)?;
        let room = self.capacity.saturating_sub(prompt.len());
        if room == 0 {
            return Err(Error::usage(
                format!(
                    "the conversation has {} tokens, and the cache may grow to {} positions",
                    prompt.len(),
                    self.capacity
                ),
                "begin a new one with /reset, or give more room with --capacity",
            ));
        }
        let cached = generator.in_common(&prompt);
        let before = generator.speculated();
        let mut request = self.request.clone();
        request.max_new_tokens = request.max_new_tokens.min(room);
        request.stop = decoder.stop_tokens();
        let mut stream = decoder.stream()?;
        let (mut tokens, mut first, mut reads) = (vec![], None, true);
        for token in generator.complete(&prompt, &request)? {
            let token = token.inspect_err(|_| {
                if !t.json && !tokens.is_empty() {
                    t.print_piece("\n");
                }
            })?;
            first.get_or_insert_with(|| started.elapsed().as_secs_f64());
            tokens.push(token);
            if request.stop.contains(&token) {
                break;
            }
            let piece = stream.push(token)?;
            if !t.json && !t.print_piece(&piece) {
                reads = false;
                break;
            }
        }
        let ended = tokens.last().is_some_and(|t| request.stop.contains(t));
        if !t.json {
            t.print_piece("\n");
            if !ended && reads && tokens.len() == request.max_new_tokens {
                let n = tokens.len();
                t.note(&format!(
                    "the answer was cut after {n} tokens; --max-new-tokens and --capacity allow more"
                ));
            }
        }
        let text = decoder.decode(&tokens[..tokens.len() - usize::from(ended)])?;
        let total = started.elapsed().as_secs_f64();
        self.turns.push(serde_json::json!({
            "prompt_tokens": prompt.len(),
            "cached_tokens": cached,
            "tokens": tokens.len(),
            "ended": ended,
            "first_token_seconds": first,
            "seconds": total,
            "speculation": super::speculation::json(&generator.speculated().since(&before)),
        }));
        self.messages.push(Message::assistant(text));
        Ok(reads)
    }
}
