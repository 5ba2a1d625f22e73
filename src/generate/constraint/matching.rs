//! Constraints by the crate llguidance, within limits of time and memory.

use super::LONGEST_PATTERN;
use crate::Error;
use crate::generate::apart::{apart, caught};
use crate::generate::choose::mask_words;
use crate::generate::text::SPECIAL;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time in which a grammar must be compiled. The limits below end its compilation before; this is for what they miss.
const PATIENCE: Duration = Duration::from_secs(20);

/// The limits of one constraint. A step that exceeds its limits is an error of that sequence.
fn limits() -> ParserLimits {
    ParserLimits {
        max_grammar_size: 200_000,
        // At one to two kilobytes each.
        max_lexer_states: 30_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// The key of a schema with the library's options, and the space between two parts of JSON.
const OPTIONS: &str = "x-guidance";
const SPACE: &str = r"[\x20\x0A\x0D\x09]{1,20}";

/// The form of a description.
pub enum Kind {
    JsonSchema,
    Regex,
    Lark,
}

/// Makes constraints for one tokenizer.
pub struct Factory {
    inner: ParserFactory,
    /// The token by which the library names the end of a text.
    end: u32,
}

impl Factory {
    /// For tokens of these bytes, of which `stop` end a text.
    pub fn new(mut pieces: Vec<Vec<u8>>, stop: &[i64]) -> Result<Factory, String> {
        let known = |t: &i64| u32::try_from(*t).ok().filter(|t| (*t as usize) < pieces.len());
        let end = stop.iter().find_map(known);
        let too_many = |_| "it has too many tokens".to_owned();
        let end = match end {
            Some(end) => {
                let piece = &mut pieces[end as usize];
                if piece.first() != Some(&SPECIAL) {
                    piece.insert(0, SPECIAL);
                }
                end
            }
            // The library needs one; this one is beyond the vocabulary.
            None => {
                pieces.push([&[SPECIAL][..], b"<|end of text|>"].concat());
                u32::try_from(pieces.len() - 1).map_err(too_many)?
            }
        };
        let count = u32::try_from(pieces.len()).map_err(too_many)?;
        apart("tokens", PATIENCE, move || {
            let trie = TokTrie::from(&TokRxInfo::new(count, end), &pieces);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let mut inner = ParserFactory::new_simple(&env).map_err(|e| e.to_string())?;
            inner.quiet();
            *inner.limits_mut() = limits();
            Ok(Factory { inner, end })
        })
    }

    /// Compiles a constraint.
    pub fn begin(this: &Arc<Factory>, kind: Kind, text: String) -> Result<Start, String> {
        let factory = this.clone();
        apart("grammar", PATIENCE, move || {
            let grammar = match kind {
                Kind::JsonSchema => {
                    let schema: Value =
                        serde_json::from_str(&text).map_err(|e| format!("it is not JSON: {e}"))?;
                    if longest_pattern(&schema) > LONGEST_PATTERN {
                        return Err(format!("a pattern has more than {LONGEST_PATTERN} bytes"));
                    }
                    TopLevelGrammar::from_json_schema(with_little_space(schema))
                }
                Kind::Regex => TopLevelGrammar::from_regex(&text),
                Kind::Lark => TopLevelGrammar::from_lark(text),
            };
            let mut matcher = Matcher::new(factory.inner.create_parser(grammar));
            if let Some(e) = matcher.get_error() {
                return Err(e);
            }
            // The first mask is computed here, so that what exceeds the limits at once is an error of the description.
            matcher.compute_mask_or_eos().map_err(|e| e.to_string())?;
            Ok(Start { matcher: Mutex::new(matcher), end: factory.end })
        })
    }
}

/// The length of the longest regular expression in a schema. The depth of a schema is bounded.
fn longest_pattern(schema: &Value) -> usize {
    let of = |(key, value): (&String, &Value)| {
        let own = match (key.as_str(), value) {
            ("pattern", Value::String(pattern)) => pattern.len(),
            ("patternProperties", Value::Object(all)) => all.keys().map(String::len).max().unwrap_or(0),
            _ => 0,
        };
        own.max(longest_pattern(value))
    };
    match schema {
        Value::Object(fields) => fields.iter().map(of).max().unwrap_or(0),
        Value::Array(all) => all.iter().map(longest_pattern).max().unwrap_or(0),
        _ => 0,
    }
}

/// The schema with a bound on the space between two parts of its JSON, which models could otherwise write without end.
fn with_little_space(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.entry(OPTIONS).or_insert_with(|| serde_json::json!({ "whitespace_pattern": SPACE }));
    }
    schema
}

/// A constraint at the beginning of a text.
pub struct Start {
    matcher: Mutex<Matcher>,
    end: u32,
}

impl Start {
    /// The state at the beginning of a sequence that ends at any of the tokens `stop`, whose model has this vocabulary.
    pub fn begin(&self, stop: &[i64], vocabulary: usize) -> Result<Matching, Error> {
        let matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner);
        let matcher = caught(|| Ok(matcher.deep_clone())).map_err(failed)?;
        Ok(Matching { matcher, end: self.end, stop: stop.to_vec(), vocabulary, mask: vec![] })
    }
}

/// The state of a sequence.
pub struct Matching {
    matcher: Matcher,
    end: u32,
    stop: Vec<i64>,
    vocabulary: usize,
    mask: Vec<u32>,
}

impl Matching {
    /// Computes which tokens may follow.
    ///
    /// # Errors
    /// None may, or the work exceeds a limit.
    pub fn prepare(&mut self) -> Result<(), Error> {
        let words =
            caught(|| self.matcher.compute_mask_or_eos().map_err(|e| e.to_string())).map_err(failed)?;
        let ends = words.len() > self.end as usize && words.is_allowed(self.end);
        self.mask = words.into();
        let len = usize::try_from(mask_words(self.vocabulary as i64)).unwrap_or(0);
        self.mask.resize(len, 0);
        let own = self.end as usize;
        let mut set = |token: usize, to: bool| {
            if let Some(word) = self.mask.get_mut(token / 32) {
                *word = *word & !(1 << (token % 32)) | u32::from(to) << (token % 32);
            }
        };
        set(own, false);
        if ends {
            self.stop.iter().filter_map(|t| usize::try_from(*t).ok()).for_each(|t| set(t, true));
        }
        // Bits beyond the vocabulary stand for no token.
        if let Some(last) = self.mask.last_mut().filter(|_| !self.vocabulary.is_multiple_of(32)) {
            *last &= (1 << (self.vocabulary % 32)) - 1;
        }
        match self.mask.iter().all(|w| *w == 0) {
            true => Err(Error::usage(
                "the constraint allows none of the model's tokens",
                "give one that the tokenizer's tokens can spell",
            )),
            false => Ok(()),
        }
    }

    /// The tokens that may follow, as bits, the lowest of a word first.
    pub fn mask(&self) -> &[u32] {
        &self.mask
    }

    /// Takes a token. Returns whether the text is complete, so that none can follow.
    ///
    /// # Errors
    /// The token may not follow, or the work exceeds a limit.
    pub fn add(&mut self, token: i64) -> Result<bool, Error> {
        if self.stop.contains(&token) {
            return Ok(true);
        }
        let id = u32::try_from(token).map_err(|_| failed(format!("there is no token {token}")))?;
        caught(|| self.matcher.consume_token(id).map_err(|e| e.to_string())).map_err(failed)?;
        Ok(self.matcher.is_stopped())
    }
}

fn failed(e: String) -> Error {
    let e: String = e.chars().take(1000).collect();
    Error::usage(format!("the constraint cannot be followed: {e}"), "give a simpler one")
}
