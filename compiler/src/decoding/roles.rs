//! The roles of a decoder's inputs.

use crate::Diagnostic;
use wgfc_ir::{Border, DType, Dim, Graph};

/// The role of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Token ids, `[1, seq]`.
    Ids,
    /// The positions `past..past + seq`, `[1, seq]` or `[seq]`.
    Positions,
    /// Ones for all positions, `[1, past + seq]`.
    Mask,
    /// Zeros, `[1, seq]`: all tokens are of one segment.
    Segments,
    /// The pages of each sequence, `[batch, blocks]`.
    Pages,
    /// A tensor that is an input of all runs without a change, such as the output of an encoder.
    Context,
}

/// The role of an input of this name, type and rank, as far as its name tells.
pub fn role(name: &str, dtype: DType, rank: usize) -> Option<Role> {
    let name = name.to_lowercase();
    let row = rank == 1 || rank == 2;
    let integer = matches!(dtype, DType::I64 | DType::I32);
    match name.as_str() {
        n if n.contains("mask") && rank == 2 && row && dtype != DType::F64 => Some(Role::Mask),
        n if n.contains("position") && row && integer => Some(Role::Positions),
        n if (n.contains("token_type") || n.contains("segment")) && row && integer => Some(Role::Segments),
        "block_table" if rank == 2 && dtype == DType::I32 => Some(Role::Pages),
        n if (n.contains("input_id") || n.contains("token") || n == "ids" || n == "input")
            && rank == 2
            && row
            && integer =>
        {
            Some(Role::Ids)
        }
        _ => None,
    }
}

/// The symbolic extents of a decoder's token ids.
pub struct Symbols {
    /// The symbol for the number of sequences; `None` if it is 1.
    pub batch: Option<String>,
    /// The symbol for the number of tokens of a run; `None` if it is 1.
    pub seq: Option<String>,
}

/// Finds the symbols in the shape of the token ids.
///
/// # Errors
/// No input holds token ids, or tokens cannot be given one at a time.
pub fn symbols(graph: &Graph) -> Result<Symbols, Diagnostic> {
    let Some(ids) = ids(graph) else {
        let all: Vec<String> = graph.inputs.iter().map(|b| described(graph, b)).collect();
        return Err(Diagnostic::unsupported(format!(
            "the model is not a decoder that wgfc understands: none of its inputs holds token ids; there is {}",
            if all.is_empty() { "none".to_owned() } else { all.join(", ") }
        ))
        .help(match graph.inputs.iter().any(|b| *b.name == *super::joined::EMBEDDINGS) {
            true => "it takes embeddings: put embed_tokens.onnx, which makes them of token ids, beside decoder_model_merged.onnx",
            false => "token ids are integers [1, seq] in an input called input_ids or alike",
        }));
    };
    let symbol = |d: &Dim| match (d.as_const(), d.symbols().into_iter().next()) {
        (Some(1), _) => Ok(None),
        (None, Some(s)) if *d == Dim::sym(&s) => Ok(Some(s.to_string())),
        _ => Err(Diagnostic::unsupported(format!(
            "the model takes {}: tokens cannot be given one at a time",
            described(graph, ids)
        ))
        .help("export it with a symbolic sequence length, or for one token a run")),
    };
    match graph.ty(ids.value).shape.as_slice() {
        [batch, seq] => {
            let (batch, seq) = (symbol(batch)?, symbol(seq)?);
            let seq = if seq == batch { None } else { seq };
            Ok(Symbols { batch, seq })
        }
        _ => Err(Diagnostic::internal("token ids of another rank")),
    }
}

/// The input that holds the token ids, if one does.
pub fn ids(graph: &Graph) -> Option<&Border> {
    graph.inputs.iter().find(|b| {
        let ty = graph.ty(b.value);
        role(&b.name, ty.dtype, ty.shape.len()) == Some(Role::Ids)
    })
}

fn described(graph: &Graph, b: &Border) -> String {
    format!("input `{}` {}", b.name, graph.ty(b.value))
}
