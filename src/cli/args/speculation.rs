//! Arguments for speculation.

use clap::Args;
use std::path::PathBuf;

/// The tokens that are proposed for a run unless an option says otherwise.
const PROPOSED: usize = 7;

/// How tokens are guessed of which several are verified in one run.
#[derive(Args, Clone, Debug, Default)]
pub struct SpeculationArgs {
    /// Guess up to N tokens (7) and verify them in one run of the model: `lookup` takes those that followed where the last
    /// three tokens occurred before, `draft` those of --draft. The tokens are the same as without
    #[arg(long, value_name = "SOURCE[:N]", value_parser = parse)]
    pub speculate: Option<Source>,
    /// A smaller model with the same tokens, which guesses tokens as with `--speculate draft`
    #[arg(long, value_name = "MODEL|DIR")]
    pub draft: Option<PathBuf>,
}

/// A source of guesses, and the most tokens that are guessed for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The text so far.
    Lookup(usize),
    /// A smaller model.
    Draft(usize),
}

impl SpeculationArgs {
    /// The most tokens that are proposed for a run; 0 for no speculation.
    pub fn proposed(&self) -> usize {
        match self.speculate {
            Some(Source::Lookup(n) | Source::Draft(n)) => n,
            None if self.draft.is_some() => PROPOSED,
            None => 0,
        }
    }
}

fn parse(text: &str) -> Result<Source, String> {
    let (name, count) = text.split_once(':').unwrap_or((text, ""));
    let count = match count {
        "" if !text.ends_with(':') => PROPOSED,
        n => n.parse().ok().filter(|n| (1..=63).contains(n)).ok_or("N is a number from 1 to 63")?,
    };
    match name {
        "lookup" => Ok(Source::Lookup(count)),
        "draft" => Ok(Source::Draft(count)),
        _ => Err("the sources are `lookup` and `draft`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_a_number_of_tokens() {
        assert_eq!(parse("lookup"), Ok(Source::Lookup(7)));
        assert_eq!(parse("draft:3"), Ok(Source::Draft(3)));
        for wrong in ["", "lookup:", "lookup:0", "lookup:64", "lookup:x", "other:2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
