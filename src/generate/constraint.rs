//! Output of a given form: by a JSON schema, a regular expression or a grammar.
//!
//! For each step the crate llguidance computes which tokens may follow, as a mask of one bit a token, while the device runs the
//! model. The choice of the token takes the mask.

#[cfg_attr(not(feature = "constraints"), path = "constraint/without.rs")]
mod matching;
#[cfg(all(test, feature = "constraints"))]
mod tests;

use super::text::Decoder;
use crate::Error;
use matching::Factory;
pub(super) use matching::Matching;
use std::sync::Arc;

/// The most bytes of a schema, an expression or a grammar.
const LONGEST: usize = 1 << 18;
/// The most bytes of a regular expression, of a pattern in a schema and of a line of a grammar. The time that the library takes for
/// one grows with the square of its length.
const LONGEST_PATTERN: usize = 1 << 12;
/// The deepest nesting of brackets in them.
const DEEPEST: usize = 200;

/// The forms that the output of a decoder may be held to. It knows the bytes of the tokenizer's tokens.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # if !cfg!(feature = "constraints") { return Ok(()) }
/// # let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
/// # let folder = tempfile::tempdir().unwrap();
/// # std::fs::copy(root.join("fixtures/small/decoder/model.onnx"), folder.path().join("model.onnx")).unwrap();
/// # std::fs::copy(root.join("fixtures/tokenizers/bpe.json"), folder.path().join("tokenizer.json")).unwrap();
/// use wgfc::{Decoder, Request};
/// let decoder = Decoder::open(folder.path())?;
/// let forms = decoder.forms()?;
/// let words = forms.regex("(sea|the| )+")?;
/// let request = Request { max_new_tokens: 20, constraint: Some(words), ..Request::default() };
/// assert!(forms.json_schema(r#"{"type": "strange"}"#).is_err());
/// # drop(request);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Forms(Arc<Factory>);

/// The description of a form of the output, as text; [`Form::constraint`] compiles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A JSON schema.
    JsonSchema(String),
    /// A regular expression.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Grammar(String),
}

impl Form {
    /// The constraint that holds output to the form.
    ///
    /// # Errors
    /// As for [`Forms::json_schema`], [`Forms::regex`] and [`Forms::grammar`].
    ///
    /// ```
    /// use wgfc::generate::{Constraint, Form, Forms};
    /// fn words(forms: &Forms) -> Result<Constraint, wgfc::Error> {
    ///     Form::Regex("(sea|the| )+".into()).constraint(forms)
    /// }
    /// ```
    pub fn constraint(&self, forms: &Forms) -> Result<Constraint, Error> {
        match self {
            Form::JsonSchema(schema) => forms.json_schema(schema),
            Form::Regex(expression) => forms.regex(expression),
            Form::Grammar(lark) => forms.grammar(lark),
        }
    }
}

/// A form of the output of a decoder, for its [`Request`](super::Request). See the example of [`Forms`]. Clones are equal; others are not.
#[derive(Clone)]
pub struct Constraint(Arc<matching::Start>);

impl PartialEq for Constraint {
    fn eq(&self, other: &Constraint) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constraint {
    /// The state at the beginning of a sequence that ends at any of the tokens `stop`.
    pub(super) fn begin(&self, stop: &[i64], vocabulary: usize) -> Result<Matching, Error> {
        self.0.begin(stop, vocabulary)
    }
}

impl Decoder {
    /// The forms that the output may be held to.
    ///
    /// # Errors
    /// There is no tokenizer, or one whose tokens are no pieces of a text (WordPiece); wgfc was built without the feature `constraints`.
    pub fn forms(&self) -> Result<Forms, Error> {
        let unfit = |e: String| {
            let help = "constraints need a byte-level or SentencePiece tokenizer";
            Error::usage(format!("the tokenizer cannot be used for constraints: {e}"), help)
        };
        Ok(Forms(Arc::new(Factory::new(self.pieces()?, &self.stop_tokens()).map_err(unfit)?)))
    }
}

impl Forms {
    /// JSON that a schema (its text) describes. Keywords that cannot be enforced are errors.
    ///
    /// # Errors
    /// A text that is no JSON schema, is not supported, or exceeds a limit of size, nesting or work.
    pub fn json_schema(&self, schema: &str) -> Result<Constraint, Error> {
        self.make(matching::Kind::JsonSchema, "JSON schema", schema)
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// As for [`Forms::json_schema`].
    pub fn json_object(&self) -> Result<Constraint, Error> {
        self.json_schema(r#"{"type": "object"}"#)
    }

    /// A text that matches a regular expression as a whole, in the syntax of the crate `regex` without anchors, word boundaries and
    /// lazy repetition.
    ///
    /// # Errors
    /// As for [`Forms::json_schema`].
    pub fn regex(&self, expression: &str) -> Result<Constraint, Error> {
        self.make(matching::Kind::Regex, "regular expression", expression)
    }

    /// A text that a context-free grammar describes, in llguidance's dialect of Lark's language; its rule `start` is the whole.
    ///
    /// # Errors
    /// As for [`Forms::json_schema`].
    pub fn grammar(&self, lark: &str) -> Result<Constraint, Error> {
        self.make(matching::Kind::Lark, "grammar", lark)
    }

    fn make(&self, kind: matching::Kind, name: &str, text: &str) -> Result<Constraint, Error> {
        if text.len() > LONGEST {
            let message = format!("the {name} has {} bytes, and may have {LONGEST}", text.len());
            return Err(Error::usage(message, "give a smaller one"));
        }
        let longest = match kind {
            matching::Kind::Regex => text.len(),
            matching::Kind::Lark => text.lines().map(str::len).max().unwrap_or(0),
            matching::Kind::JsonSchema => 0,
        };
        if longest > LONGEST_PATTERN {
            let message =
                format!("a pattern of the {name} has {longest} bytes, and may have {LONGEST_PATTERN}");
            return Err(Error::usage(message, "give a smaller one"));
        }
        if nesting(text) > DEEPEST {
            let message = format!("the {name} nests brackets more than {DEEPEST} deep");
            return Err(Error::usage(message, "name its parts, and refer to them"));
        }
        let made = Factory::begin(&self.0, kind, text.to_owned());
        let wrong = |e: String| {
            let e: String = e.chars().take(1000).collect();
            Error::usage(
                format!("the {name} cannot be used: {e}"),
                "see docs/language-models.md for what is supported",
            )
        };
        Ok(Constraint(Arc::new(made.map_err(wrong)?)))
    }
}

/// The deepest nesting of brackets, or more. Brackets in strings count too.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for b in text.bytes() {
        match b {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}
