//! Log-probabilities in the protocol's form.

use serde_json::{Map, Value, json};
use wgfc::Decoder;
use wgfc::generate::LogProbs;

/// The least number that is written: JSON has no infinity, and clients know this one.
const LEAST: f32 = -9999.0;

/// The tokens of a piece with their log-probabilities.
pub type Likely = Vec<(i64, LogProbs)>;

/// A token's text, or its id if there is no tokenizer.
fn text(token: i64, decoder: &Decoder) -> String {
    let text = if decoder.has_tokenizer() { decoder.decode(&[token]).ok() } else { None };
    text.unwrap_or_else(|| format!("token_id:{token}"))
}

/// The `logprobs` of a part of a chat's answer.
pub fn of_chat(all: &Likely, decoder: &Decoder) -> Value {
    let one = |token: i64, logprob: f32| {
        let text = text(token, decoder);
        json!({ "token": text, "logprob": logprob.max(LEAST), "bytes": text.as_bytes() })
    };
    let content = all.iter().map(|(token, p)| {
        let mut object = one(*token, p.chosen);
        object["top_logprobs"] = p.top.iter().map(|(t, p)| one(*t, *p)).collect();
        object
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// The `logprobs` of a part of a completion, whose text begins at `offset` of the whole.
pub fn of_completion(all: &Likely, decoder: &Decoder, mut offset: usize) -> Value {
    let (mut tokens, mut own, mut top, mut offsets) = (vec![], vec![], vec![], vec![]);
    for (token, p) in all {
        let text_ = text(*token, decoder);
        offsets.push(offset);
        offset += text_.chars().count();
        tokens.push(text_);
        own.push(p.chosen.max(LEAST));
        let likely = p.top.iter().map(|(t, p)| (text(*t, decoder), json!(p.max(LEAST))));
        top.push(likely.collect::<Map<String, Value>>());
    }
    json!({ "tokens": tokens, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets })
}
