//! Importer of GGUF files, in which llama.cpp keeps language models.
//!
//! `header` reads metadata and the places of tensors, `blocks` their types, and `describe` the parameters of the architecture, from which
//! [`decoder`] makes the graph. Weights keep the blocks that they have in the file.

mod beside;
mod blocks;
mod describe;
mod header;
#[cfg(test)]
mod tests;
pub mod vocabulary;

pub use beside::{beside, end_tokens, special_tokens, tokenizer};
pub use header::{Header, Item, List, MAGIC};

use super::decoder::{self, LayerPart, Part, Weights};
use super::{ExternalData, Imported, OWN_FILE};
use crate::lower::{self, Lowering, OpError};
use crate::{Diagnostic, Errors, Options};
use blocks::Kind;
use header::Entry;
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{DType, Tensor, Value};

/// Advice on files that cannot be read.
const HELP: &str = "download the file again, or convert the model again";

/// Whether these bytes are those of a GGUF file.
pub fn is_gguf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Imports a GGUF file. All errors are collected.
///
/// # Errors
/// The faults of the file, or the parts that are not supported.
pub fn import(bytes: &[u8], external: &dyn ExternalData, options: &Options) -> Result<Imported, Errors> {
    let header = open(bytes)?;
    let read = |offset: u64, len: usize| match external.remote(OWN_FILE, offset, len as u64) {
        Some(remote) => Some(remote.ok()?.bytes()?.to_vec()),
        None => {
            let from = usize::try_from(offset).ok()?;
            bytes.get(from..from.checked_add(len)?).map(<[u8]>::to_vec)
        }
    };
    let description = describe::describe(&header, &read)?;
    let mut weights = File::new(bytes, &header, external, options.graph_only)?;
    decoder::build(&description, &mut weights, options, HELP)
}

/// Reads the header of a file.
///
/// # Errors
/// The fault of the file.
pub fn open(bytes: &[u8]) -> Result<Header<'_>, Errors> {
    Header::read(bytes).map_err(|m| Errors(vec![Diagnostic::model(m).help(HELP)]))
}

/// A tensor of a file as f32, by its name.
///
/// # Errors
/// There is no such tensor, its type is not supported, or the file ends before its last byte.
pub fn tensor(cx: &mut Lowering, bytes: &[u8], header: &Header<'_>, name: &str) -> Result<Value, Errors> {
    let file = File::new(bytes, header, &super::NoExternalData, false)?;
    file.value(cx, name).map_err(|e| Errors(vec![Diagnostic::model(e.message).help(HELP)]))
}

/// The tensors of a file.
struct File<'m> {
    tensors: &'m BTreeMap<&'m str, Entry>,
    /// The bytes of the file, or those at its beginning where the others are read on demand.
    owner: Arc<dyn ByteOwner>,
    external: &'m dyn ExternalData,
    /// Whether the values are left out.
    graph_only: bool,
}

impl<'m> File<'m> {
    fn new(
        bytes: &[u8],
        header: &'m Header<'m>,
        external: &'m dyn ExternalData,
        graph_only: bool,
    ) -> Result<File<'m>, Errors> {
        let mut errors = vec![];
        for (name, t) in &header.tensors {
            let wrong = match Kind::find(t.code) {
                None => {
                    let message = format!(
                        "the tensor `{name}` has elements of {}, which is not supported",
                        blocks::unsupported_name(t.code)
                    );
                    let kinds: Vec<&str> = blocks::KINDS.iter().map(|k| k.name).collect();
                    Some(Diagnostic::unsupported(message).help(format!("supported are {}", kinds.join(", "))))
                }
                Some(kind) => {
                    let whole = external.bytes().unwrap_or(bytes.len() as u64);
                    let e = kind.size(&t.shape).and_then(|n| match t.offset.checked_add(n as u64) {
                        Some(end) if end <= whole => Ok(()),
                        _ => Err("the file ends before its last byte".into()),
                    });
                    e.err().map(|m| Diagnostic::model(format!("the tensor `{name}`: {m}")).help(HELP))
                }
            };
            errors.extend(wrong);
        }
        if !errors.is_empty() {
            return Err(Errors(summed(errors)));
        }
        let owner = external
            .model()
            .filter(|o| std::ptr::eq((**o).as_ref(), bytes))
            .unwrap_or_else(|| Arc::new(bytes.to_vec()));
        Ok(File { tensors: &header.tensors, owner, external, graph_only })
    }
}

/// At most a few errors of one kind, so that a file with hundreds of tensors of an unknown type has a short report.
fn summed(mut errors: Vec<Diagnostic>) -> Vec<Diagnostic> {
    const MOST: usize = 5;
    let more = errors.len().saturating_sub(MOST);
    errors.truncate(MOST);
    if let (Some(last), 1..) = (errors.last_mut(), more) {
        last.message += &format!(" (and {more} more tensors have such faults)");
    }
    errors
}

impl Weights for File<'_> {
    fn name(&self, part: Part) -> String {
        name(part)
    }

    fn has(&self, part: Part) -> bool {
        let known = |part| self.tensors.contains_key(&*name(part));
        match part {
            // The projection up holds the gate, too, if there is no gate.
            Part::Layer(layer, LayerPart::GateUp) => {
                known(part) && !known(Part::Layer(layer, LayerPart::Gate))
            }
            _ => known(part),
        }
    }

    fn bytes(&self, part: Part) -> u64 {
        let entry = self.tensors.get(&*name(part));
        entry.and_then(|t| Kind::find(t.code)?.size(&t.shape).ok()).unwrap_or(0) as u64
    }

    fn load(&mut self, cx: &mut Lowering, part: Part) -> lower::Result<Value> {
        self.value(cx, &name(part))
    }
}

impl File<'_> {
    /// A tensor as f32.
    fn value(&self, cx: &mut Lowering, name: &str) -> lower::Result<Value> {
        let Some(t) = self.tensors.get(name) else {
            return Err(OpError::model(format!("the file has no tensor `{name}`")));
        };
        let kind = Kind::find(t.code).ok_or_else(|| OpError::internal("a type that was checked"))?;
        let len = kind.size(&t.shape)?;
        let bytes = match self.graph_only {
            true => Tensor::absent(DType::U8, vec![len]),
            false => match self.external.remote(OWN_FILE, t.offset, len as u64) {
                Some(remote) => Tensor::remote(DType::U8, vec![len], Arc::new(remote?))?,
                None => {
                    let offset = usize::try_from(t.offset).map_err(|_| "a file beyond memory".to_owned())?;
                    Tensor::shared(DType::U8, vec![len], self.owner.clone(), offset, len)?
                }
            },
        };
        kind.values(cx, name, &bytes, &t.shape)
    }
}

/// The name that a part has in files.
fn name(part: Part) -> String {
    use LayerPart as P;
    let (layer, part) = match part {
        Part::Embedding => return "token_embd.weight".into(),
        Part::FinalNorm => return "output_norm.weight".into(),
        Part::Head => return "output.weight".into(),
        Part::Layer(layer, part) => (layer, part),
    };
    let name = match part {
        P::AttentionNorm => "attn_norm.weight",
        P::Query => "attn_q.weight",
        P::Key => "attn_k.weight",
        P::Value => "attn_v.weight",
        P::QueryKeyValue => "attn_qkv.weight",
        P::QueryBias => "attn_q.bias",
        P::KeyBias => "attn_k.bias",
        P::ValueBias => "attn_v.bias",
        P::QueryNorm => "attn_q_norm.weight",
        P::KeyNorm => "attn_k_norm.weight",
        P::Output => "attn_output.weight",
        P::AttentionOutputNorm => "post_attention_norm.weight",
        P::FeedForwardNorm => "ffn_norm.weight",
        P::Gate => "ffn_gate.weight",
        P::Up | P::GateUp => "ffn_up.weight",
        P::Down => "ffn_down.weight",
        P::FeedForwardOutputNorm => "post_ffw_norm.weight",
        P::Router => "ffn_gate_inp.weight",
        P::ExpertGates => "ffn_gate_exps.weight",
        P::ExpertUps => "ffn_up_exps.weight",
        P::ExpertDowns => "ffn_down_exps.weight",
    };
    format!("blk.{layer}.{name}")
}
