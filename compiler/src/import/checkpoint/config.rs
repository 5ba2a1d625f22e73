//! Parameters of architectures from `config.json`.

use super::HELP;
use crate::import::decoder::{Activation, Description, Experts, Positions, Rotary, Stretch};
use crate::{Diagnostic, Errors};
use serde_json::{Map, Value as Json};

/// The maximum number of layers.
const MOST_LAYERS: usize = 1024;
/// The maximum number of elements along an axis.
const MOST: usize = 1 << 24;

/// How checkpoints of an architecture name their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// As Llama does.
    Plain,
    /// With norms before and behind attention and feed-forward layers, as Gemma has them.
    Sandwiched,
    /// With experts named as in Mixtral.
    Mixtral,
}

/// The values of `model_type`.
const TYPES: &[&str] = &[
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "phi3",
    "gemma2",
    "gemma3_text",
    "smollm3",
];

/// A configuration, and the errors so far.
struct Keys<'a> {
    all: &'a Map<String, Json>,
    errors: Vec<Diagnostic>,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Json> {
        self.all.get(key).filter(|v| !v.is_null())
    }

    fn wrong(&mut self, message: String) {
        self.errors.push(Diagnostic::model(message).help(HELP));
    }

    fn unsupported(&mut self, message: String, help: &str) {
        self.errors.push(Diagnostic::unsupported(message).help(help));
    }

    /// A count between 1 and `most`; `None` if there is none.
    fn given(&mut self, key: &str, most: usize) -> Option<usize> {
        let v = self.get(key)?;
        match v.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (1..=most).contains(&n) => Some(n),
            _ => {
                let message = format!("`{key}` is {v}, not a number between 1 and {most}");
                self.wrong(message);
                Some(1)
            }
        }
    }

    fn count(&mut self, key: &str, most: usize) -> usize {
        self.given(key, most).unwrap_or_else(|| {
            self.wrong(format!("the configuration has no `{key}`"));
            1
        })
    }

    fn number(&mut self, key: &str) -> Option<f64> {
        let v = self.get(key)?;
        match v.as_f64().filter(|x| x.is_finite() && *x >= 0.0) {
            Some(x) => Some(x),
            None => {
                let message = format!("`{key}` is {v}, not a positive number");
                self.wrong(message);
                None
            }
        }
    }

    fn truth(&self, key: &str) -> Option<bool> {
        self.get(key)?.as_bool()
    }
}

/// The parameters of a model, and how its weights are named.
///
/// # Errors
/// An unknown architecture; parameters that are missing, of another type, or not supported.
pub fn describe(all: &Map<String, Json>) -> Result<(Description, Family), Errors> {
    let kind = all.get("model_type").and_then(Json::as_str).unwrap_or_default();
    if !TYPES.contains(&kind) {
        let d = Diagnostic::unsupported(format!("models of the type `{kind}` are not supported"));
        return Err(d.help(format!("supported are {}", TYPES.join(", "))).into());
    }
    let mut k = Keys { all, errors: vec![] };
    if k.get("quantization_config").is_some() {
        let message = "the checkpoint's weights are quantised (`quantization_config`)".to_owned();
        k.unsupported(message, "use the model's GGUF file, or the original checkpoint with --weights q4");
    }
    let layers = k.count("num_hidden_layers", MOST_LAYERS);
    let width = k.count("hidden_size", MOST);
    let heads = k.count("num_attention_heads", MOST);
    let kv_heads = k.given("num_key_value_heads", MOST).unwrap_or(heads);
    let head = k.given("head_dim", MOST).unwrap_or((width / heads).max(1));
    if !heads.is_multiple_of(kv_heads) {
        k.wrong(format!("{heads} query heads are not divided by {kv_heads} key-value heads"));
    }
    let hidden = k.count("intermediate_size", MOST);
    let count = k.given("num_local_experts", MOST).or_else(|| k.given("num_experts", MOST));
    let experts = count.map(|count| Experts {
        count,
        used: k.count("num_experts_per_tok", count),
        hidden: k.given("moe_intermediate_size", MOST).unwrap_or(hidden),
        normalised: kind == "mixtral" || k.truth("norm_topk_prob").unwrap_or(false),
    });
    let activation = match k.get("hidden_act").or(k.get("hidden_activation")).and_then(Json::as_str) {
        // Models of Gemma compute the approximation under either name.
        Some("gelu") if !kind.starts_with("gemma") => Activation::Gelu,
        Some("gelu" | "gelu_pytorch_tanh" | "gelu_new") => Activation::GeluTanh,
        Some("silu" | "swish") => Activation::Silu,
        None if kind.starts_with("gemma") => Activation::GeluTanh,
        None => Activation::Silu,
        Some(other) => {
            let message = format!("the activation `{other}` is not supported");
            k.unsupported(message, "silu, gelu and gelu_pytorch_tanh are supported");
            Activation::Silu
        }
    };
    let scalar = k.number("query_pre_attn_scalar").filter(|s| *s > 0.0);
    let gemma = kind.starts_with("gemma");
    let (rotary, local) = rotary(&mut k, head);
    let positions = positions(&mut k, kind, layers, local);
    let d = Description {
        width,
        layers,
        heads: (heads, kv_heads),
        head,
        hidden,
        epsilon: k.number("rms_norm_eps").unwrap_or(1e-6),
        norms_add_one: gemma,
        activation,
        embedding_scale: if gemma { (width as f64).sqrt() } else { 1.0 },
        score_scale: 1.0 / scalar.unwrap_or(head as f64).sqrt(),
        score_cap: k.number("attn_logit_softcapping").unwrap_or(0.0),
        logit_cap: k.number("final_logit_softcapping").unwrap_or(0.0),
        positions,
        rotary,
        experts,
    };
    let family = match kind {
        "mixtral" => Family::Mixtral,
        _ if gemma => Family::Sandwiched,
        _ => Family::Plain,
    };
    match k.errors.is_empty() {
        true => Ok((d, family)),
        false => Err(Errors(k.errors)),
    }
}

/// How each layer treats positions; `local` is the rotary embedding of layers with a window.
fn positions(k: &mut Keys<'_>, kind: &str, layers: usize, local: usize) -> Vec<Positions> {
    let window = k.given("sliding_window", i32::MAX as usize);
    let used = match kind {
        "qwen2" | "qwen3" | "qwen3_moe" | "smollm3" => k.truth("use_sliding_window").unwrap_or(false),
        _ => true,
    };
    let window = window.filter(|_| used);
    let types: Option<Vec<bool>> = k
        .get("layer_types")
        .and_then(Json::as_array)
        .map(|all| all.iter().map(|t| t.as_str() == Some("sliding_attention")).collect());
    let every = k.given("sliding_window_pattern", MOST_LAYERS).unwrap_or(match kind {
        "gemma2" => 2,
        _ => 6,
    });
    let first = k.given("max_window_layers", MOST_LAYERS).unwrap_or(0);
    let slides = |i: usize| match (&types, kind) {
        (Some(types), _) => types.get(i).copied().unwrap_or(false),
        (None, "gemma2" | "gemma3_text") => !(i + 1).is_multiple_of(every),
        (None, "qwen2" | "qwen3" | "qwen3_moe") => i >= first,
        (None, _) => true,
    };
    let without: Vec<bool> = match k.get("no_rope_layers").and_then(Json::as_array) {
        Some(all) => all.iter().map(|r| r.as_i64() == Some(0)).collect(),
        None if kind == "smollm3" => (0..layers).map(|i| (i + 1) % 4 == 0).collect(),
        None => vec![],
    };
    let of = |i: usize| {
        let window = window.filter(|_| slides(i));
        let rotary = if slides(i) { local } else { 0 };
        Positions { rotary: Some(rotary).filter(|_| !without.get(i).is_some_and(|w| *w)), window }
    };
    (0..layers).map(of).collect()
}

/// The rotary embeddings, and which of them layers with a window have.
fn rotary(k: &mut Keys<'_>, head: usize) -> (Vec<Rotary>, usize) {
    let all = k.all;
    let object = |key: &str| all.get(key).and_then(Json::as_object);
    let base = k.number("rope_theta").filter(|b| *b > 0.0).unwrap_or(10000.0);
    let none = Map::new();
    let parameters = object("rope_parameters");
    if let Some(p) = parameters
        && let (Some(full), Some(sliding)) = (p.get("full_attention"), p.get("sliding_attention"))
    {
        let both = [full, sliding].map(|p| one(k, p.as_object().unwrap_or(&none), base, head));
        return (both.into(), 1);
    }
    let global = one(k, parameters.or(object("rope_scaling")).unwrap_or(&none), base, head);
    match k.number("rope_local_base_freq").filter(|b| *b > 0.0) {
        Some(base) => {
            let local = one(k, &none, base, head);
            (vec![global, local], 1)
        }
        None => (vec![global], 0),
    }
}

/// A rotary embedding by its parameters; `base` is the frequencies' base where they have none.
fn one(k: &mut Keys<'_>, p: &Map<String, Json>, base: f64, head: usize) -> Rotary {
    let number = |key: &str| p.get(key).and_then(Json::as_f64).filter(|x| x.is_finite() && *x > 0.0);
    let base = number("rope_theta").unwrap_or(base);
    let part = number("partial_rotary_factor").or(k.number("partial_rotary_factor")).unwrap_or(1.0);
    let pairs = ((head as f64 * part) as usize / 2).clamp(1, (head / 2).max(1));
    let mut magnitude = 1.0;
    let kind = p.get("rope_type").or(p.get("type")).and_then(Json::as_str).unwrap_or("default");
    let original = || {
        let own = number("original_max_position_embeddings");
        own.or_else(|| k.all.get("original_max_position_embeddings")?.as_f64())
    };
    let missing = |k: &mut Keys<'_>, key: &str| {
        k.wrong(format!("the rotary embedding `{kind}` has no `{key}`"));
        Stretch::None
    };
    let stretch = match kind {
        "default" => Stretch::None,
        "linear" => match number("factor") {
            Some(f) => Stretch::All(f),
            None => missing(k, "factor"),
        },
        "llama3" => {
            let [factor, low, high] = ["factor", "low_freq_factor", "high_freq_factor"].map(number);
            match (factor, low, high, original()) {
                (Some(f), Some(low), Some(high), Some(original)) if high > low => {
                    Stretch::by_wavelength(base, pairs, f, original, [low, high])
                }
                _ => missing(
                    k,
                    "factor, low_freq_factor, high_freq_factor or original_max_position_embeddings",
                ),
            }
        }
        "longrope" | "su" => {
            let list = |key: &str| {
                let all = p.get(key)?.as_array()?;
                all.iter().map(Json::as_f64).collect::<Option<Vec<f64>>>().filter(|l| l.len() == pairs)
            };
            match (list("short_factor"), list("long_factor"), original()) {
                (Some(short), Some(long), Some(original)) if original >= 1.0 => {
                    let most = k.all.get("max_position_embeddings").and_then(Json::as_f64);
                    let factor = number("factor").or(most.map(|m| m / original)).unwrap_or(1.0);
                    let grown = (1.0 + factor.ln() / original.ln()).sqrt();
                    magnitude = number("attention_factor").unwrap_or(if factor <= 1.0 { 1.0 } else { grown });
                    Stretch::ByLength { original: original as i64, short, long }
                }
                _ => missing(k, "short_factor, long_factor or original_max_position_embeddings"),
            }
        }
        other => {
            let message = format!("rotary embeddings of the type `{other}` are not supported");
            k.unsupported(message, "default, linear, llama3 and longrope are supported");
            Stretch::None
        }
    };
    Rotary { base, pairs, interleaved: false, stretch, magnitude }
}
