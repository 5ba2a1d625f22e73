//! The problems of `wgfc bench kernels`: patterns with the sizes in `benches/kernels.json`, and random sizes.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use wgfc::random::Rng;
use wgfc::{DType, Error};

const LIST: &str = include_str!("../../../benches/kernels.json");

/// An entry of the list: a computation over named sizes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pattern {
    family: String,
    name: String,
    /// Each input is `NAME TYPE[SIZE,…]`, for integers optionally followed by `< LIMIT`.
    inputs: Vec<String>,
    /// Operands that are constants of the model, in the same form.
    #[serde(default)]
    weights: Vec<String>,
    /// The nodes, in the syntax of [`super::onnx`].
    onnx: String,
    /// The computation as a Python expression over the inputs, with `torch` and `F` for its functions.
    #[serde(default)]
    torch: Option<String>,
    /// Whether PyTorch can record the computation as a CUDA graph.
    #[serde(default = "yes")]
    graph: bool,
    /// The number of floating-point operations; `None` stands for 0.
    #[serde(default)]
    flops: Option<String>,
    /// The bytes that must be moved; `None` stands for those of inputs, weights and outputs.
    #[serde(default)]
    bytes: Option<String>,
    /// The largest allowed ‖a − b‖ / ‖b‖, in place of the usual one of the type.
    #[serde(default)]
    tolerance: Option<f64>,
    /// The sizes of each listed problem, as in `t=f32 n=1024`.
    cases: Vec<String>,
    /// The distribution of random sizes, as in `t=f32|f16 n=1..1000`; `None` if no random problems are made.
    #[serde(default)]
    draw: Option<String>,
}

fn yes() -> bool {
    true
}

/// An input or a weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operand {
    pub name: String,
    #[serde(serialize_with = "as_text")]
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// The exclusive upper bound of integers; `None` stands for 2.
    pub below: Option<u64>,
}

fn as_text<S: serde::Serializer>(t: &DType, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(t)
}

/// A problem: a pattern with values of its sizes.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    pub family: String,
    pub name: String,
    /// Its sizes, as in `t=f32 n=1024`.
    pub sizes: String,
    /// Whether the sizes are random.
    pub drawn: bool,
    pub inputs: Vec<Operand>,
    pub weights: Vec<Operand>,
    pub onnx: String,
    pub torch: Option<String>,
    pub graph: bool,
    pub flops: u64,
    pub bytes: Option<u64>,
    pub tolerance: Option<f64>,
}

impl Problem {
    /// The name and sizes, for reports.
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.sizes)
    }
    /// The work of the problem: its operations, plus the bytes of its operands or those that must be moved if these are
    /// more.
    fn work(&self) -> u64 {
        let operands = self.inputs.iter().chain(&self.weights);
        let bytes = operands.map(|o| o.dtype.bytes_for(o.shape.iter().product()) as u64).sum::<u64>();
        self.flops.saturating_add(self.bytes.unwrap_or(0).max(bytes))
    }
    /// The type that determines the tolerance and the peak rate: that of the first floating-point operand.
    pub fn dtype(&self) -> DType {
        let mut all = self.inputs.iter().chain(&self.weights).map(|o| o.dtype);
        all.clone().find(|t| t.is_float()).or_else(|| all.next()).unwrap_or(DType::F32)
    }
}

/// All problems of the list. Sizes are halved until the work of each is at most `most`; problems that become equal are
/// listed once.
pub fn listed(most: u64) -> Result<Vec<Problem>, Error> {
    let mut all: Vec<Problem> = vec![];
    for p in patterns()? {
        for case in &p.cases {
            let one = p.problem(case, false, most)?;
            if !all.iter().any(|other| other.name == one.name && other.sizes == one.sizes) {
                all.push(one);
            }
        }
    }
    Ok(all)
}

/// `count` problems with random sizes, which are halved as in [`listed`].
pub fn drawn(count: usize, seed: u64, most: u64) -> Result<Vec<Problem>, Error> {
    let patterns: Vec<Pattern> = patterns()?.into_iter().filter(|p| p.draw.is_some()).collect();
    let mut rng = Rng::new(seed, "problems");
    // Each pattern is used once before any is used again.
    let mut order: Vec<usize> = vec![];
    let mut all = vec![];
    while all.len() < count && !patterns.is_empty() {
        if order.is_empty() {
            order = (0..patterns.len()).collect();
        }
        let p = &patterns[order.swap_remove((rng.bits() % order.len() as u64) as usize)];
        let sizes = sizes(p.draw.as_deref().unwrap_or_default(), &mut rng).map_err(|e| p.wrong(&e))?;
        all.push(p.problem(&sizes, true, most)?);
    }
    Ok(all)
}

/// The families, in the order of the list.
pub fn families() -> Result<Vec<String>, Error> {
    let mut all: Vec<String> = patterns()?.into_iter().map(|p| p.family).collect();
    all.dedup();
    Ok(all)
}

fn patterns() -> Result<Vec<Pattern>, Error> {
    serde_json::from_str(LIST).map_err(|e| Error::Internal(format!("the list of kernels: {e}")))
}

/// Random sizes from a distribution.
fn sizes(draw: &str, rng: &mut Rng) -> Result<String, String> {
    let mut out = vec![];
    for word in draw.split_whitespace() {
        let (name, from) = word.split_once('=').ok_or_else(|| format!("`{word}` is no name=range"))?;
        let value = match from.split_once("..") {
            None => {
                let choices: Vec<&str> = from.split('|').collect();
                choices[(rng.bits() % choices.len() as u64) as usize].to_owned()
            }
            Some((low, high)) => {
                let number = |s: &str| s.parse::<u64>().map_err(|_| format!("`{word}` has no numbers"));
                let (low, high) = (number(low)?.max(1), number(high)?);
                // The logarithm of the size is uniform.
                let share = (rng.bits() >> 11) as f64 / (1u64 << 53) as f64;
                let ratio = high.max(low) as f64 / low as f64;
                ((low as f64 * ratio.powf(share)).round() as u64).to_string()
            }
        };
        out.push(format!("{name}={value}"));
    }
    Ok(out.join(" "))
}

impl Pattern {
    fn wrong(&self, why: &str) -> Error {
        Error::Internal(format!("the list of kernels, {} {}: {why}", self.family, self.name))
    }

    /// The problem whose largest size is halved until its work is at most `most`, or no size can be halved.
    fn problem(&self, sizes: &str, drawn: bool, most: u64) -> Result<Problem, Error> {
        let mut sizes = sizes.to_owned();
        loop {
            let p = self.with(&sizes, drawn).map_err(|e| self.wrong(&e))?;
            match self.halved(&sizes) {
                Some(less) if p.work() > most => sizes = less,
                _ => return Ok(p),
            }
        }
    }

    /// The sizes with the largest one that a range allows halved; `None` if no size can be halved.
    fn halved(&self, sizes: &str) -> Option<String> {
        let low = |name: &str| match &self.draw {
            None => Some(1),
            Some(draw) => {
                let range = draw.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('='))?;
                range.split_once("..")?.0.parse::<u64>().ok()
            }
        };
        let words: Vec<(&str, &str)> = sizes.split_whitespace().filter_map(|w| w.split_once('=')).collect();
        let can = |(name, value): (&str, &str)| -> Option<u64> {
            let half = value.parse::<u64>().ok()? / 2;
            (half >= low(name)?.max(1)).then_some(half)
        };
        let (at, half) =
            words.iter().enumerate().filter_map(|(i, w)| Some((i, can(*w)?))).max_by_key(|(_, h)| *h)?;
        let half = half.to_string();
        let all =
            words.iter().enumerate().map(|(i, (n, v))| format!("{n}={}", if i == at { &half } else { *v }));
        Some(all.collect::<Vec<_>>().join(" "))
    }

    fn with(&self, sizes: &str, drawn: bool) -> Result<Problem, String> {
        let mut names: BTreeMap<&str, &str> = BTreeMap::new();
        for word in sizes.split_whitespace() {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is no name=value"))?;
            names.insert(name, value);
        }
        let operands = |list: &[String]| list.iter().map(|o| operand(&filled(o, &names)?)).collect();
        let inputs: Vec<Operand> = Result::from_iter::<Vec<Result<Operand, String>>>(operands(&self.inputs))?;
        let weights: Vec<Operand> =
            Result::from_iter::<Vec<Result<Operand, String>>>(operands(&self.weights))?;
        let size = inputs.first().map_or(4, |o| o.dtype.bits() / 8).to_string();
        names.insert("size", &size);
        let number = |s: &Option<String>| s.as_deref().map(|s| value(s, &names)).transpose();
        Ok(Problem {
            family: self.family.clone(),
            name: self.name.clone(),
            sizes: sizes.to_owned(),
            drawn,
            onnx: filled(&self.onnx, &names)?,
            torch: self.torch.as_deref().map(|t| filled(t, &names)).transpose()?,
            graph: self.graph,
            flops: number(&self.flops)?.unwrap_or(0),
            bytes: number(&self.bytes)?,
            tolerance: self.tolerance,
            inputs,
            weights,
        })
    }
}

/// Parses an operand: `NAME TYPE[SIZE,…]`, optionally followed by `< LIMIT`.
fn operand(text: &str) -> Result<Operand, String> {
    let wrong = || format!("`{text}` is no operand");
    let (what, below) = match text.split_once('<') {
        Some((what, limit)) => (what.trim(), Some(limit.trim().parse().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let (name, ty) = what.split_once(' ').ok_or_else(wrong)?;
    let (dtype, shape) = ty.trim_end_matches(']').split_once('[').ok_or_else(wrong)?;
    let shape = shape.split(',').map(|d| d.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
    let dtype = DType::ALL.iter().find(|t| t.to_string() == dtype).ok_or_else(wrong)?;
    Ok(Operand { name: name.to_owned(), dtype: *dtype, shape, below })
}

/// The text with each expression in braces replaced by its value.
fn filled(text: &str, names: &BTreeMap<&str, &str>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, after) = after.split_once('}').ok_or_else(|| format!("a brace of `{text}` is open"))?;
        out += before;
        match names.get(inside) {
            Some(word) => out += word,
            None => out += &value(inside, names)?.to_string(),
        }
        rest = after;
    }
    Ok(out + rest)
}

/// The value of a sum of products of names and numbers.
fn value(text: &str, names: &BTreeMap<&str, &str>) -> Result<u64, String> {
    let factor = |f: &str| -> Result<u64, String> {
        let f = f.trim();
        let number = names.get(f).copied().unwrap_or(f);
        number.parse().map_err(|_| format!("`{f}` in `{text}` is no number"))
    };
    let mut sum = 0u64;
    for term in text.split('+') {
        let mut product = 1u64;
        for f in term.split('*') {
            product = product.saturating_mul(factor(f)?);
        }
        sum = sum.saturating_add(product);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_whole() {
        let all = listed(u64::MAX).unwrap();
        assert!(all.len() >= 80, "{}", all.len());
        let titles: std::collections::BTreeSet<String> = all.iter().map(Problem::title).collect();
        assert_eq!(titles.len(), all.len());
    }

    #[test]
    fn sizes_are_halved() {
        const MOST: u64 = 100_000_000;
        let all = listed(MOST).unwrap();
        assert!(all.len() >= 80, "{}", all.len());
        for p in &all {
            assert!(p.work() <= MOST, "{} takes {}", p.title(), p.work());
        }
        let product = all.iter().find(|p| p.name == "matmul" && p.dtype() == DType::F32).unwrap();
        assert_eq!(product.sizes, "t=f32 m=512 k=256 n=256");
    }

    #[test]
    fn sizes_are_drawn_from_the_seed() {
        let titles = |seed| -> Vec<String> {
            drawn(100, seed, u64::MAX).unwrap().iter().map(Problem::title).collect()
        };
        assert_eq!(titles(1), titles(1));
        assert_ne!(titles(1), titles(2));
    }

    #[test]
    fn names_are_filled_in() {
        let names = BTreeMap::from([("n", "6"), ("t", "f16")]);
        assert_eq!(filled("x {t}[{n},{2*n+1}]", &names).unwrap(), "x f16[6,13]");
        assert!(filled("{m}", &names).is_err());
        assert!(filled("{n", &names).is_err());
        let o = operand("i i64[2,3] < 5").unwrap();
        assert_eq!((o.dtype, o.shape, o.below), (DType::I64, vec![2, 3], Some(5)));
    }
}
