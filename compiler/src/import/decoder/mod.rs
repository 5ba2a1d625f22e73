//! Language models that are described by parameters and named weights.
//!
//! Files that hold no graph, such as GGUF and checkpoints with `config.json`, name an architecture. A [`Description`] gives what
//! decoders differ in; [`build`](build()) makes the graph of it, with the inputs and outputs that exporters give such models:
//!
//! ```text
//! input_ids i64[batch, seq]                  logits f32[batch, seq, vocabulary]
//! position_ids i64[batch, seq]               present.N.key, present.N.value f32[batch, kv heads, past + seq, head]
//! attention_mask i64[batch, past + seq]
//! past_key_values.N.key, past_key_values.N.value f32[batch, kv heads, past, head]
//! ```
//!
//! With a batch of 1 there are no `position_ids` and no `attention_mask`: tokens follow those of the past, and all are visible.
//!
//! With [`Options::page`](crate::Options::page) caches are pools of pages, which sequences share (Kwon et al., *Efficient Memory Management
//! for Large Language Model Serving with PagedAttention*, 2023). Each sequence begins at position 0, and page `i` of sequence `b` is
//! `block_table[b, i]`:
//!
//! ```text
//! input_ids i64[batch, seq]                  logits f32[batch, seq, vocabulary]
//! position_ids i64[batch, seq]               present.N.key, present.N.value f32[pages, kv heads, page, head]
//! block_table i32[batch, blocks]
//! past_key_values.N.key, past_key_values.N.value f32[pages, kv heads, page, head]
//! ```

mod build;
mod experts;
mod pages;
mod rotary;

pub use build::build;
pub use experts::Experts;
pub use rotary::{Rotary, Stretch};

use crate::lower::{Lowering, Result};
use wgfc_ir::Value;

/// The parameters of a decoder.
#[derive(Clone, Debug)]
pub struct Description {
    /// The number of elements of a token's state.
    pub width: usize,
    /// The number of layers.
    pub layers: usize,
    /// The numbers of query heads and of key-value heads.
    pub heads: (usize, usize),
    /// The number of elements of a head.
    pub head: usize,
    /// The number of hidden elements of a feed-forward layer.
    pub hidden: usize,
    /// The ε that norms add to the mean square.
    pub epsilon: f64,
    /// Whether norms multiply by 1 + weight instead of by the weight.
    pub norms_add_one: bool,
    /// The activation of feed-forward layers.
    pub activation: Activation,
    /// The factor of embeddings.
    pub embedding_scale: f64,
    /// The scale of attention scores.
    pub score_scale: f64,
    /// Soft cap of attention scores; 0 means none.
    pub score_cap: f64,
    /// Soft cap of logits; 0 means none.
    pub logit_cap: f64,
    /// The treatment of positions of each layer.
    pub positions: Vec<Positions>,
    /// Rotary embeddings, to which [`Positions`] refers.
    pub rotary: Vec<Rotary>,
    /// Experts in place of a feed-forward layer.
    pub experts: Option<Experts>,
}

/// How a layer treats positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// The rotary embedding of queries and keys, an index into [`Description::rotary`].
    pub rotary: Option<usize>,
    /// The number of latest positions that a query sees, its own included.
    pub window: Option<usize>,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// The GELU.
    Gelu,
    /// The GELU by its approximation with tanh.
    GeluTanh,
}

/// A weight of a decoder. Matrices are `[to, from]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The embedding, `[vocabulary, width]`.
    Embedding,
    /// The norm before the logits.
    FinalNorm,
    /// The output head, `[vocabulary, width]`; without one the embedding is used.
    Head,
    /// A weight of a layer.
    Layer(usize, LayerPart),
}

/// A weight of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the parts of a transformer")]
pub enum LayerPart {
    AttentionNorm,
    Query,
    Key,
    Value,
    /// Queries, keys and values, one below the other.
    QueryKeyValue,
    QueryBias,
    KeyBias,
    ValueBias,
    /// A norm of each query.
    QueryNorm,
    /// A norm of each key.
    KeyNorm,
    Output,
    /// A norm of the attention's output.
    AttentionOutputNorm,
    FeedForwardNorm,
    Gate,
    Up,
    /// Gate and up, one below the other.
    GateUp,
    Down,
    /// A norm of the feed-forward layer's output.
    FeedForwardOutputNorm,
    /// `[experts, width]`.
    Router,
    /// `[experts, hidden, width]`.
    ExpertGates,
    /// `[experts, hidden, width]`.
    ExpertUps,
    /// `[experts, width, hidden]`.
    ExpertDowns,
}

/// The weights of a model.
pub trait Weights {
    /// The name of a part in the words of the model.
    fn name(&self, part: Part) -> String;
    /// Whether the model has a part.
    fn has(&self, part: Part) -> bool;
    /// The number of bytes of a part; 0 if the model does not have it.
    fn bytes(&self, part: Part) -> u64;
    /// A part as f32.
    ///
    /// # Errors
    /// The model does not have it, or its bytes cannot be read.
    fn load(&mut self, cx: &mut Lowering, part: Part) -> Result<Value>;
}
