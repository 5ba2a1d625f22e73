//! Speculation on the command line.

use super::args::{Source, SpeculationArgs};
use wgfc::generate::Speculated;
use wgfc::{Decoder, Error, Generator, GeneratorOptions};

/// Gives a generator that was created with [`SpeculationArgs::proposed`] its source of proposals. The model that proposes is
/// compiled with `options`.
pub fn set_up(
    generator: &mut Generator,
    decoder: &Decoder,
    a: &SpeculationArgs,
    memory_limit: Option<u64>,
    options: &GeneratorOptions,
) -> Result<(), Error> {
    let Some(path) = &a.draft else { return Ok(()) };
    let draft = Decoder::open_within(path, memory_limit)?;
    generator.set_draft(decoder, &draft, options)
}

/// Checks that the options fit together.
pub fn check(a: &SpeculationArgs) -> Result<(), Error> {
    match (a.speculate, &a.draft) {
        (Some(Source::Draft(_)), None) => {
            Err(Error::usage("`--speculate draft` needs a smaller model", "name it with --draft"))
        }
        (Some(Source::Lookup(_)), Some(_)) => Err(Error::usage(
            "guesses come either from the text (--speculate lookup) or from a smaller model (--draft)",
            "leave one of both out",
        )),
        _ => Ok(()),
    }
}

/// The counts in words.
pub fn text(s: &Speculated) -> String {
    format!(
        "{:.2} tokens a run, {} of {} guessed tokens accepted in {} of {} runs",
        s.tokens_per_run(),
        s.accepted,
        s.proposed,
        s.runs,
        s.runs + s.steps
    )
}

/// The counts for `--json`.
pub fn json(s: &Speculated) -> serde_json::Value {
    serde_json::json!({
        "verifying_runs": s.runs,
        "single_runs": s.steps,
        "proposed_tokens": s.proposed,
        "accepted_tokens": s.accepted,
        "tokens_per_run": s.tokens_per_run(),
    })
}
