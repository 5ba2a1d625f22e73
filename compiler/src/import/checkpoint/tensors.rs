//! Weights in files of safetensors.

use super::HELP;
use super::config::Family;
use crate::budget::Budget;
use crate::import::ExternalData;
use crate::import::decoder::{LayerPart, Part, Weights};
use crate::lower::{self, Lowering, OpError};
use crate::{Diagnostic, Errors};
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{DType, Tensor, Value};

/// The file of a checkpoint in one part.
const ONE: &str = "model.safetensors";
/// The file that names the parts of a checkpoint in several.
const INDEX: &str = "model.safetensors.index.json";
/// The end of the embedding's name.
const EMBEDDING: &str = "embed_tokens.weight";

/// The names of a checkpoint's tensors.
pub struct Names {
    /// How the architecture names them.
    pub family: Family,
    /// The beginning of the names of all tensors but the head: `model.`.
    pub prefix: String,
}

/// The tensors of a checkpoint.
pub struct Tensors {
    names: Names,
    files: Vec<Arc<dyn ByteOwner>>,
    tensors: BTreeMap<String, Entry>,
    graph_only: bool,
}

struct Entry {
    file: usize,
    dtype: DType,
    shape: Vec<usize>,
    offset: usize,
    len: usize,
}

impl Tensors {
    /// Reads the headers of all files of a checkpoint.
    ///
    /// # Errors
    /// The files that are missing or not valid, and the tensors of types that are not supported.
    pub fn open(
        family: Family,
        external: &dyn ExternalData,
        budget: &Budget,
        graph_only: bool,
    ) -> Result<Tensors, Errors> {
        let names = Names { family, prefix: String::new() };
        let mut out = Tensors { names, files: vec![], tensors: BTreeMap::new(), graph_only };
        let mut errors = vec![];
        for name in files(external, budget)? {
            if let Err(d) = out.add(&name, external, budget) {
                errors.push(d);
            }
        }
        if !errors.is_empty() {
            return Err(Errors(errors));
        }
        let embedding = out.tensors.keys().filter_map(|n| n.strip_suffix(EMBEDDING)).min_by_key(|p| p.len());
        match embedding {
            Some(prefix) => out.names.prefix = prefix.to_owned(),
            None => {
                let d = Diagnostic::model(format!(
                    "the checkpoint has no tensor whose name ends with `{EMBEDDING}`"
                ));
                return Err(d.help(HELP).into());
            }
        }
        Ok(out)
    }

    fn add(&mut self, name: &str, external: &dyn ExternalData, budget: &Budget) -> Result<(), Diagnostic> {
        let at = |m: String| Diagnostic::model(format!("the file `{name}` {m}")).help(HELP);
        let owner = external.open(name).map_err(|m| at(format!("cannot be opened: {m}")))?;
        let bytes = (*owner).as_ref();
        let header = bytes.first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b)).min(bytes.len() as u64);
        budget.add_file(bytes.len() as u64);
        budget.take(header.saturating_mul(4), format_args!("reading the header of `{name}`"))?;
        let all = SafeTensors::deserialize(bytes).map_err(|e| at(format!("is no valid safetensors: {e}")))?;
        let file = self.files.len();
        for (tensor, view) in all.iter() {
            let Some(dtype) = dtype(view.dtype()) else {
                let message = format!(
                    "the tensor `{tensor}` has elements of {:?}, which is not supported",
                    view.dtype()
                );
                return Err(Diagnostic::unsupported(message).help("convert the model to bf16, f16 or f32"));
            };
            let offset = view.data().as_ptr().addr() - bytes.as_ptr().addr();
            let entry = Entry { file, dtype, shape: view.shape().to_vec(), offset, len: view.data().len() };
            if self.tensors.insert(tensor.to_owned(), entry).is_some() {
                return Err(at(format!("has a tensor `{tensor}`, which another file has, too")));
            }
        }
        self.files.push(owner.clone());
        Ok(())
    }

    /// A tensor of the files.
    fn tensor(&self, name: &str) -> lower::Result<Tensor> {
        let t = self
            .tensors
            .get(name)
            .ok_or_else(|| OpError::model(format!("the checkpoint has no tensor `{name}`")))?;
        if self.graph_only {
            return Ok(Tensor::absent(t.dtype, t.shape.clone()));
        }
        let owner = self.files.get(t.file).ok_or_else(|| OpError::internal("a file that was opened"))?;
        Ok(Tensor::shared(t.dtype, t.shape.clone(), owner.clone(), t.offset, t.len)?)
    }

    /// The names of the tensors of a part.
    fn names(&self, part: Part) -> Vec<String> {
        self.names.of(part, &|_, name| self.tensors.contains_key(name))
    }
}

impl Names {
    /// The names of the tensors of a part: one for each expert, as long as `has` says that there is one of this number and name, or one.
    pub fn of(&self, part: Part, has: &dyn Fn(usize, &str) -> bool) -> Vec<String> {
        use LayerPart as P;
        let prefix = &self.prefix;
        let (layer, part) = match part {
            Part::Embedding => return vec![format!("{prefix}{EMBEDDING}")],
            Part::FinalNorm => return vec![format!("{prefix}norm.weight")],
            Part::Head => return vec![self.head()],
            Part::Layer(layer, part) => (layer, part),
        };
        let sandwiched = self.family == Family::Sandwiched;
        let mixtral = self.family == Family::Mixtral;
        let name = match part {
            P::AttentionNorm => "input_layernorm.weight",
            P::Query => "self_attn.q_proj.weight",
            P::Key => "self_attn.k_proj.weight",
            P::Value => "self_attn.v_proj.weight",
            P::QueryKeyValue => "self_attn.qkv_proj.weight",
            P::QueryBias => "self_attn.q_proj.bias",
            P::KeyBias => "self_attn.k_proj.bias",
            P::ValueBias => "self_attn.v_proj.bias",
            P::QueryNorm => "self_attn.q_norm.weight",
            P::KeyNorm => "self_attn.k_norm.weight",
            P::Output => "self_attn.o_proj.weight",
            P::AttentionOutputNorm if sandwiched => "post_attention_layernorm.weight",
            P::FeedForwardNorm if sandwiched => "pre_feedforward_layernorm.weight",
            P::FeedForwardOutputNorm if sandwiched => "post_feedforward_layernorm.weight",
            P::FeedForwardNorm => "post_attention_layernorm.weight",
            P::AttentionOutputNorm | P::FeedForwardOutputNorm => return vec![],
            P::Gate => "mlp.gate_proj.weight",
            P::Up => "mlp.up_proj.weight",
            P::GateUp => "mlp.gate_up_proj.weight",
            P::Down => "mlp.down_proj.weight",
            P::Router if mixtral => "block_sparse_moe.gate.weight",
            P::Router => "mlp.gate.weight",
            P::ExpertGates if mixtral => return self.experts(layer, has, "w1"),
            P::ExpertUps if mixtral => return self.experts(layer, has, "w3"),
            P::ExpertDowns if mixtral => return self.experts(layer, has, "w2"),
            P::ExpertGates => return self.experts(layer, has, "gate_proj"),
            P::ExpertUps => return self.experts(layer, has, "up_proj"),
            P::ExpertDowns => return self.experts(layer, has, "down_proj"),
        };
        vec![format!("{prefix}layers.{layer}.{name}")]
    }

    /// The name of the output head, which stands beside the other weights or before them.
    fn head(&self) -> String {
        let outer = self.prefix.strip_suffix("model.").unwrap_or_default();
        format!("{outer}lm_head.weight")
    }

    /// The names of a matrix of all experts of a layer.
    fn experts(&self, layer: usize, has: &dyn Fn(usize, &str) -> bool, matrix: &str) -> Vec<String> {
        let of = if self.family == Family::Mixtral { "block_sparse_moe" } else { "mlp" };
        let name = |i: usize| format!("{}layers.{layer}.{of}.experts.{i}.{matrix}.weight", self.prefix);
        (0..).map(|i| (i, name(i))).take_while(|(i, n)| has(*i, n)).map(|(_, n)| n).collect()
    }
}

/// The names of the files with weights.
fn files(external: &dyn ExternalData, budget: &Budget) -> Result<BTreeSet<String>, Errors> {
    let Ok(index) = external.open(INDEX) else { return Ok([ONE.to_owned()].into()) };
    let bytes = (*index).as_ref();
    budget.add_file(bytes.len() as u64);
    budget.take_json(bytes)?;
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(bytes)
        .map_err(|e| Diagnostic::model(format!("the file `{INDEX}` cannot be read: {e}")).help(HELP))?;
    Ok(index.weight_map.into_values().collect())
}

fn dtype(d: Dtype) -> Option<DType> {
    match d {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        Dtype::F64 => Some(DType::F64),
        _ => None,
    }
}

impl Weights for Tensors {
    fn name(&self, part: Part) -> String {
        self.names(part).into_iter().next().unwrap_or_else(|| format!("{part:?}"))
    }

    fn has(&self, part: Part) -> bool {
        self.names(part).iter().any(|n| self.tensors.contains_key(n))
    }

    fn bytes(&self, part: Part) -> u64 {
        let all = self.names(part);
        all.iter().filter_map(|n| self.tensors.get(n)).map(|t| t.len as u64).sum()
    }

    fn load(&mut self, cx: &mut Lowering, part: Part) -> lower::Result<Value> {
        let names = self.names(part);
        let mut all = names.iter().map(|n| self.tensor(n)).collect::<lower::Result<Vec<Tensor>>>()?;
        let experts = matches!(
            part,
            Part::Layer(_, LayerPart::ExpertGates | LayerPart::ExpertUps | LayerPart::ExpertDowns)
        );
        let t = match (experts, all.len()) {
            (true, 1..) => {
                for t in &mut all {
                    t.shape.insert(0, 1);
                }
                Tensor::joined(&all.iter().collect::<Vec<_>>(), 0)?
            }
            (false, 1) => all.remove(0),
            _ => return Err(OpError::model(format!("the checkpoint has no tensor for {part:?}"))),
        };
        let v = cx.constant(t);
        cx.graph.node_mut(v.node).names = vec![names.first().map(|n| n.as_str().into())];
        Ok(cx.cast(v, DType::F32)?)
    }
}
