//! Decoders that generate text: [`roles`] of their inputs, an embedding model that is [`joined`] in front, and their last nodes ([`head`]), which [`choose`](mod@choose) the next token.

pub mod choose;
pub mod head;
pub mod joined;
pub mod roles;

use crate::{Diagnostic, Errors, Options, States, states};
use wgfc_ir::Graph;

/// The number of tokens of a run for prompts that a decoder is optimised for unless the caller expects another.
pub const PROMPT: i64 = 512;

/// The options of the programs that generate one sequence, with their names: `decode` takes a single token, and `prefill`, unless the model takes
/// one token at a time, prompts.
pub fn plans(symbols: &roles::Symbols, common: Options) -> Vec<(String, Options)> {
    let mut long = common;
    long.dims.extend(symbols.batch.iter().map(|b| (b.clone(), 1)));
    let mut single = long.clone();
    single.dims.extend(symbols.seq.iter().map(|s| (s.clone(), 1)));
    let prefill = symbols.seq.clone().map(|seq| {
        long.expect.0.entry(seq).or_insert(PROMPT);
        ("prefill".to_owned(), long)
    });
    [("decode".to_owned(), single)].into_iter().chain(prefill).collect()
}

/// Turns the cache of an imported decoder into states that grow, and its outputs into the logits and the chosen token of the last position, and
/// `taps` of all positions.
///
/// # Errors
/// The graph is no such decoder.
pub fn generate(graph: &mut Graph, taps: &[String]) -> Result<(), Errors> {
    states::introduce(graph, &States::Auto { capacity: None })?;
    if let Some(s) = graph.states.iter().find(|s| s.growth.is_none()) {
        let message =
            format!("state \"{}\" has a fixed size, and so does not tell how many tokens there were", s.name);
        return Err(Diagnostic::unsupported(message)
            .help("export the decoder with a cache that grows")
            .into());
    }
    let ids = roles::ids(graph).map(|b| graph.ty(b.value).dtype);
    let ids = ids.ok_or_else(|| Diagnostic::internal("a decoder without token ids"))?;
    head::replace_outputs(graph, ids, head::Chosen::Last, taps)
}
