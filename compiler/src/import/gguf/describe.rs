//! Parameters of architectures from the metadata of a file.

use super::HELP;
use super::header::{Header, Item};
use crate::import::decoder::{Activation, Description, Experts, Positions, Rotary, Stretch};
use crate::{Diagnostic, Errors};
use wgfc_ir::tensor::checked_numel;

/// The maximum number of layers.
const MOST_LAYERS: usize = 1024;
/// The maximum number of elements along an axis.
const MOST: usize = 1 << 24;

/// An architecture by the name that files give it.
struct Architecture {
    name: &'static str,
    /// Whether the elements of a pair that rotates are adjacent.
    interleaved: bool,
    activation: Activation,
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "llama", interleaved: true, activation: Activation::Silu },
    Architecture { name: "qwen2", interleaved: false, activation: Activation::Silu },
    Architecture { name: "qwen3", interleaved: false, activation: Activation::Silu },
    Architecture { name: "qwen3moe", interleaved: false, activation: Activation::Silu },
    Architecture { name: "phi3", interleaved: false, activation: Activation::Silu },
    Architecture { name: "gemma2", interleaved: false, activation: Activation::GeluTanh },
    Architecture { name: "gemma3", interleaved: false, activation: Activation::GeluTanh },
    Architecture { name: "smollm3", interleaved: true, activation: Activation::Silu },
];

/// The metadata of an architecture, whose keys begin with its name.
struct Keys<'a> {
    header: &'a Header<'a>,
    prefix: &'a str,
    errors: Vec<Diagnostic>,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn wrong(&mut self, message: String) {
        self.errors.push(Diagnostic::model(message).help(HELP));
    }

    /// A count between 1 and `most`; `None` if the file does not have it. One count for each layer is one for all if they are equal.
    fn given(&mut self, key: &str, most: usize) -> Option<usize> {
        let key = self.key(key);
        let item = *self.header.items.get(&*key)?;
        let one = match item {
            Item::List(l) => {
                let mut items = l.items();
                let first = items.next();
                if items.any(|i| Some(i) != first) {
                    let d = Diagnostic::unsupported(format!("`{key}` differs from layer to layer"));
                    self.errors.push(d.help("use a model whose layers are alike"));
                    return Some(1);
                }
                first
            }
            item => Some(item),
        };
        match one.and_then(Item::as_i64).and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (1..=most).contains(&n) => Some(n),
            _ => {
                self.wrong(format!("`{key}` is no number between 1 and {most}"));
                Some(1)
            }
        }
    }

    fn count(&mut self, key: &str, most: usize) -> usize {
        match self.given(key, most) {
            Some(n) => n,
            None => {
                let key = self.key(key);
                self.wrong(format!("the file's metadata has no `{key}`"));
                1
            }
        }
    }

    /// A positive number.
    fn number(&mut self, key: &str) -> Option<f64> {
        let key = self.key(key);
        let item = *self.header.items.get(&*key)?;
        match item.as_f64().filter(|x| x.is_finite() && *x >= 0.0) {
            Some(x) => Some(x),
            None => {
                self.wrong(format!("`{key}` is no positive number"));
                None
            }
        }
    }

    /// The values of a small tensor of f32.
    fn values(&self, read: Read<'_>, name: &str, count: usize) -> Option<Vec<f64>> {
        let t = self.header.tensors.get(name).filter(|t| t.code == 0)?;
        let n = checked_numel(&t.shape).filter(|n| *n >= count)?;
        let bytes = read(t.offset, n.checked_mul(4)?)?;
        let values = bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        Some(values.take(count).collect())
    }
}

/// Reads bytes of the file: so many from an offset. `None` if the file has fewer.
pub type Read<'a> = &'a dyn Fn(u64, usize) -> Option<Vec<u8>>;

/// The parameters of the model in a file.
///
/// # Errors
/// An unknown architecture; parameters that are missing, of another type, or not supported.
pub fn describe(header: &Header<'_>, read: Read<'_>) -> Result<Description, Errors> {
    let name = header.text("general.architecture").ok_or_else(|| {
        Errors(vec![Diagnostic::model("the file's metadata has no `general.architecture`").help(HELP)])
    })?;
    let names = || ARCHITECTURES.iter().map(|a| a.name).collect::<Vec<_>>().join(", ");
    let Some(architecture) = ARCHITECTURES.iter().find(|a| a.name == name) else {
        let d = Diagnostic::unsupported(format!("the architecture `{name}` is not supported"));
        return Err(Errors(vec![d.help(format!("supported are {}", names()))]));
    };
    let mut k = Keys { header, prefix: name, errors: vec![] };
    let layers = k.count("block_count", MOST_LAYERS);
    let width = k.count("embedding_length", MOST);
    let heads = k.count("attention.head_count", MOST);
    let kv_heads = k.given("attention.head_count_kv", MOST).unwrap_or(heads);
    let head = k.given("attention.key_length", MOST).unwrap_or((width / heads).max(1));
    let experts = k.given("expert_count", MOST);
    let expert_hidden = k.given("expert_feed_forward_length", MOST);
    let hidden = match (k.given("feed_forward_length", MOST), expert_hidden) {
        (Some(n), _) | (None, Some(n)) => n,
        (None, None) => k.count("feed_forward_length", MOST),
    };
    let experts = experts.map(|count| Experts {
        count,
        used: k.count("expert_used_count", count),
        hidden: expert_hidden.unwrap_or(hidden),
        normalised: true,
    });
    if k.given("attention.value_length", MOST).is_some_and(|v| v != head) {
        let d = Diagnostic::unsupported(format!("`{name}.attention.value_length` is not the length of keys"));
        k.errors.push(d.help("use a model whose keys and values are of one length"));
    }
    if !heads.is_multiple_of(kv_heads) {
        k.wrong(format!("{heads} query heads are not divided by {kv_heads} key-value heads"));
    }
    let epsilon = k.number("attention.layer_norm_rms_epsilon").unwrap_or(1e-5);
    let pairs = k.given("rope.dimension_count", head).unwrap_or(head) / 2;
    let base = k.number("rope.freq_base").filter(|b| *b > 0.0).unwrap_or(10000.0);
    let stretch = stretch(&mut k, read, pairs);
    let magnitude = magnitude(&mut k, &stretch);
    let global = Rotary { base, pairs, interleaved: architecture.interleaved, stretch, magnitude };
    let window = k.given("attention.sliding_window", i32::MAX as usize);
    let mut d = Description {
        width,
        layers,
        heads: (heads, kv_heads),
        head,
        hidden,
        epsilon,
        // Converters have added the 1 to the weights of Gemma's norms.
        norms_add_one: false,
        activation: architecture.activation,
        embedding_scale: 1.0,
        score_scale: k.number("attention.scale").unwrap_or(1.0 / (head as f64).sqrt()),
        score_cap: k.number("attn_logit_softcapping").unwrap_or(0.0),
        logit_cap: k.number("final_logit_softcapping").unwrap_or(0.0),
        positions: vec![Positions { rotary: Some(0), window: None }; layers],
        rotary: vec![global.clone()],
        experts,
    };
    match name {
        "gemma2" | "gemma3" => {
            d.embedding_scale = (width as f64).sqrt();
            // The models of 27 billion parameters scale by the width of a head's share of the state.
            let largest = (name, layers) == ("gemma2", 46) || (name, layers) == ("gemma3", 62);
            if largest {
                d.score_scale = 1.0 / (width as f64 / heads as f64).sqrt();
            }
            let every = if name == "gemma2" { 2 } else { 6 };
            if name == "gemma3" {
                let local = k.number("rope.freq_base_swa").filter(|b| *b > 0.0).unwrap_or(10000.0);
                let local = Rotary { base: local, stretch: Stretch::None, ..global };
                d.rotary.push(local);
            }
            let local = d.rotary.len() - 1;
            for (_, p) in d.positions.iter_mut().enumerate().filter(|(i, _)| !(i + 1).is_multiple_of(every)) {
                *p = Positions { rotary: Some(local), window };
            }
        }
        "phi3" => d.positions.iter_mut().for_each(|p| p.window = window),
        "smollm3" => d.positions.iter_mut().skip(3).step_by(4).for_each(|p| p.rotary = None),
        _ => {}
    }
    match k.errors.is_empty() {
        true => Ok(d),
        false => Err(Errors(k.errors)),
    }
}

/// The divisors of the frequencies.
fn stretch(k: &mut Keys<'_>, read: Read<'_>, pairs: usize) -> Stretch {
    if let Some(each) = k.values(read, "rope_freqs.weight", pairs) {
        return Stretch::Each(each);
    }
    let long = k.values(read, "rope_factors_long.weight", pairs);
    let short = k.values(read, "rope_factors_short.weight", pairs);
    if let (Some(long), Some(short)) = (long, short) {
        let key = "rope.scaling.original_context_length";
        let original = k.count(key, i32::MAX as usize) as i64;
        return Stretch::ByLength { original, short, long };
    }
    let factor = k.number("rope.scaling.factor").filter(|f| *f > 0.0);
    match (k.header.text(&k.key("rope.scaling.type")), factor) {
        (None | Some("none"), _) => Stretch::None,
        (Some("linear"), Some(f)) => Stretch::All(f),
        (Some("linear"), None) => Stretch::None,
        (Some("longrope"), _) => Stretch::None,
        (Some(other), _) => {
            let d = Diagnostic::unsupported(format!("rotary embeddings are scaled by the method `{other}`"));
            k.errors.push(d.help("`linear`, `longrope` and factors in a tensor are supported"));
            Stretch::None
        }
    }
}

/// The factor of cosines and sines.
fn magnitude(k: &mut Keys<'_>, stretch: &Stretch) -> f64 {
    let Stretch::ByLength { original, .. } = stretch else { return 1.0 };
    if let Some(given) = k.number("rope.scaling.attn_factor").filter(|f| *f > 0.0) {
        return given;
    }
    let context = k.given("context_length", i32::MAX as usize).unwrap_or(1);
    let factor = context as f64 / *original as f64;
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (*original as f64).ln()).sqrt() }
}
