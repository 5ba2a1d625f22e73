//! The text of a sequence as its tokens arrive, up to a stop string.

use super::likely::Likely;
use wgfc::Error;
use wgfc::generate::{Decoder, End, LogProbs, TextStream};

/// Why a sequence ended, in the protocol's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// At a stop token or before a stop string.
    Stop,
    /// At the number of tokens that were asked for.
    Length,
    /// After calls of functions.
    Calls,
}

impl Finish {
    /// The name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Calls => "tool_calls",
        }
    }
}

/// A part of an answer.
#[derive(Debug, Default, PartialEq)]
pub struct Piece {
    pub text: String,
    pub tokens: Vec<i64>,
    /// The log-probabilities of the tokens, if they are asked for.
    pub likely: Likely,
    /// Set in the last piece of a sequence.
    pub finish: Option<Finish>,
}

/// The text of one sequence.
pub struct Assembler {
    /// Absent for a decoder without a tokenizer, which has no text.
    stream: Option<TextStream>,
    cut: Cut,
    /// The number of tokens so far.
    pub tokens: usize,
    /// Whether the last piece has been made.
    pub done: bool,
}

impl Assembler {
    /// The text of a sequence that ends before any of the strings `stop`.
    ///
    /// # Errors
    /// The tokenizer cannot be used.
    pub fn new(decoder: &Decoder, stop: &[String]) -> Result<Assembler, Error> {
        let stream = if decoder.has_tokenizer() { Some(decoder.stream()?) } else { None };
        Ok(Assembler { stream, cut: Cut::new(stop), tokens: 0, done: false })
    }

    /// The piece that a token adds. A stop token adds no text.
    ///
    /// # Errors
    /// The tokenizer does not know the token.
    pub fn push(&mut self, token: i64, p: Option<LogProbs>, end: Option<End>) -> Result<Piece, Error> {
        if self.done {
            return Ok(Piece::default());
        }
        self.tokens += 1;
        let text = match &mut self.stream {
            Some(stream) if end != Some(End::Stop) => stream.push(token)?,
            _ => String::new(),
        };
        let (mut text, stopped) = self.cut.push(&text);
        let finish = match end {
            _ if stopped => Some(Finish::Stop),
            Some(End::Stop | End::Complete) => Some(Finish::Stop),
            Some(End::Length) => Some(Finish::Length),
            None => None,
        };
        self.done = finish.is_some();
        if self.done && !stopped {
            text += &self.cut.rest();
        }
        let likely = p.map(|p| (token, p)).into_iter().collect();
        Ok(Piece { text, tokens: vec![token], likely, finish })
    }
}

/// Text up to a stop string. Text that may be the beginning of one is held back.
struct Cut {
    stop: Vec<String>,
    held: String,
}

impl Cut {
    fn new(stop: &[String]) -> Cut {
        Cut { stop: stop.to_vec(), held: String::new() }
    }

    /// The text that is certain after more text has come, and whether a stop string has been met.
    fn push(&mut self, text: &str) -> (String, bool) {
        self.held += text;
        if let Some(at) = self.stop.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.held.truncate(at);
            return (self.rest(), true);
        }
        let begins = |at: &usize| self.stop.iter().any(|s| s.starts_with(&self.held[*at..]));
        let longest = self.stop.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let places = self.held.char_indices().map(|(at, _)| at).filter(|at| *at >= from);
        let kept = places.into_iter().find(begins).unwrap_or(self.held.len());
        let held = self.held.split_off(kept);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// The text that was held back.
    fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a text that comes in these parts, and whether it was stopped.
    fn cut(stop: &[&str], parts: &[&str]) -> (Vec<String>, bool) {
        let stop: Vec<String> = stop.iter().map(|s| (*s).to_owned()).collect();
        let mut cut = Cut::new(&stop);
        let mut pieces = vec![];
        for part in parts {
            let (piece, stopped) = cut.push(part);
            pieces.push(piece);
            if stopped {
                return (pieces, true);
            }
        }
        pieces.push(cut.rest());
        (pieces, false)
    }

    #[test]
    fn text_ends_before_a_stop_string_wherever_it_is_cut() {
        let text = "Une pensée, naïve: END of it";
        for stop in [&["END"][..], &["naïve: E", "END"], &["zzz", "ï"], &["e"], &["Une"], &["missing", "it!"]]
        {
            let end = stop.iter().filter_map(|s| text.find(s)).min();
            let want = &text[..end.unwrap_or(text.len())];
            for size in 1..6 {
                let chars: Vec<char> = text.chars().collect();
                let parts: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
                let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
                let (pieces, stopped) = cut(stop, &parts);
                assert_eq!((pieces.concat().as_str(), stopped), (want, end.is_some()), "{stop:?} {size}");
            }
        }
    }

    #[test]
    fn only_what_may_begin_a_stop_string_is_held_back() {
        assert_eq!(cut(&["abc"], &["xa", "b", "d"]).0, ["x", "", "abd", ""]);
        assert_eq!(
            cut(&["aab"], &["a", "a", "a", "b"]),
            (vec!["".into(), "".into(), "a".into(), "".into()], true)
        );
        assert_eq!(cut(&[], &["x", "y"]).0, ["x", "y", ""]);
    }
}
