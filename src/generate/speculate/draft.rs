//! Proposals of a smaller model.

use super::Proposer;
use crate::generate::{Decoder, Generator, GeneratorOptions, Request};
use crate::{Error, Problem};

/// The number of tokens whose texts are compared.
const COMPARED: usize = 512;

/// A smaller model that proposes its most likely tokens. See the example of [`Generator::set_draft`].
pub struct Draft {
    generator: Generator,
}

impl Draft {
    /// Proposals of this generator, whose tokens are those of the model that verifies them.
    pub fn new(generator: Generator) -> Draft {
        Draft { generator }
    }
}

impl Proposer for Draft {
    fn propose(&mut self, tokens: &[i64], most: usize) -> Result<Vec<i64>, Error> {
        let known = 0..self.generator.vocabulary() as i64;
        let fits = tokens.len().saturating_add(most) <= self.generator.capacity();
        if !fits || most == 0 || !tokens.iter().all(|t| known.contains(t)) {
            return Ok(vec![]);
        }
        let request = Request { max_new_tokens: most, ..Request::default() };
        // Tokens that were rejected are removed, and only those that are new are processed.
        self.generator.complete(tokens, &request)?.collect()
    }
}

impl Generator {
    /// Takes proposals from a smaller model with the same tokens, which is compiled for this generator's device with `options`
    /// and this generator's capacity. `own` is the decoder of this generator. [`Generator::device_memory`] does not count the smaller model.
    ///
    /// # Errors
    /// Models whose tokens differ; a generator without [`GeneratorOptions::speculate`]; otherwise as for [`Generator::new`].
    ///
    /// ```no_run
    /// use wgfc::{Decoder, Generator, GeneratorOptions};
    /// # fn main() -> Result<(), wgfc::Error> {
    /// let (decoder, small) = (Decoder::open("qwen-7b".as_ref())?, Decoder::open("qwen-0.5b".as_ref())?);
    /// let mut generator = Generator::new(&decoder, &GeneratorOptions { speculate: 7, ..Default::default() })?;
    /// generator.set_draft(&decoder, &small, &GeneratorOptions::default())?;
    /// # Ok(()) }
    /// ```
    pub fn set_draft(
        &mut self,
        own: &Decoder,
        draft: &Decoder,
        options: &GeneratorOptions,
    ) -> Result<(), Error> {
        if self.speculation.is_none() {
            return Err(super::no_speculation());
        }
        // Texts are compared before the model is compiled.
        let compared = texts_differ(own, draft);
        if let Some(id) = compared.flatten() {
            return Err(other_tokens(format!("token {id} is another text in the model that proposes")));
        }
        let options = GeneratorOptions { capacity: self.capacity, speculate: 0, ..options.clone() };
        let generator = Generator::on_device(self.decode.gpu().clone(), draft, &options)?;
        let (here, there) = (self.vocabulary, generator.vocabulary());
        // Vocabularies with the same tokens may be padded to different sizes.
        if compared.is_none() && here != there {
            return Err(other_tokens(format!(
                "the model has {here} tokens and the one that proposes {there}"
            )));
        }
        self.set_proposer(Box::new(Draft::new(generator)))
    }
}

fn other_tokens(message: String) -> Error {
    Error::Usage(vec![Problem::with_help(
        message,
        "take a smaller model of the same family, which has the same tokenizer",
    )])
}

/// The first token whose text differs; `None` if one of the decoders has no tokenizer.
fn texts_differ(own: &Decoder, draft: &Decoder) -> Option<Option<i64>> {
    if !own.has_tokenizer() || !draft.has_tokenizer() {
        return None;
    }
    // Beyond the end of a vocabulary, both have no text.
    let text = |d: &Decoder, id: i64| d.decode(&[id]).unwrap_or_default();
    let size = |d: &Decoder| (0..31).map(|b| 1i64 << b).take_while(|id| !text(d, *id).is_empty()).last();
    let size = 2 * size(own).max(size(draft)).unwrap_or(1);
    let step = (size / COMPARED as i64).max(1);
    Some((0..size).step_by(step as usize).find(|id| text(own, *id) != text(draft, *id)))
}
