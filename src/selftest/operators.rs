//! Single operators with random shapes, types and attributes.
//!
//! A table says how the cases of an operator are drawn: one line each. Around the node, inputs may come
//! through a transposition, and the first result leave through one; extents may be symbols. A case
//! follows from the operator's name and a seed.

mod elementwise;
mod features;
mod hard;
mod networks;
mod products;
mod reductions;
mod shapes;
mod trees;
mod windows;

use super::draw::{Case, Draw, model_text};
use super::failure::{Failure, caught};
use super::sequence::CaseId;
use super::subject::{Attempt, Outcome, Rule, Source, Subject};
use prost::Message;
use std::ops::RangeInclusive;
use wgfc_compiler::import::onnx::ModelProto;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::{Errors, Kind, Options, compile};
use wgfc_ir::DType;
use wgfc_ir::eval::evaluate;
use wgfc_runtime::Gpu;

/// How the cases of an operator are drawn. Other domains than `ai.onnx` are part of the name.
pub struct Line(pub &'static str, pub fn(&mut Draw));

const SINGLE: &str = "single elements";
const HARD: &str = "long axes, masked rows, halves";
const MOVED: &str = "moved elements, generators";

const FAMILIES: [(&str, &[Line]); 8] = [
    (SINGLE, elementwise::LINES),
    ("attention, recurrences", networks::LINES),
    ("features", features::LINES),
    ("products, convolutions, quantised", products::LINES),
    ("reductions, norms, losses", reductions::LINES),
    (MOVED, shapes::LINES),
    ("trees, support vectors", trees::LINES),
    ("windows, images", windows::LINES),
];

fn table() -> impl Iterator<Item = &'static Line> {
    FAMILIES.into_iter().flat_map(|(_, lines)| lines)
}

fn line(name: &str) -> Option<&'static Line> {
    table().chain(hard::LINES).find(|l| l.0 == name)
}

/// Cases of operators that drivers get wrong more often than others; what they are follows a colon.
pub(crate) fn hard() -> impl Iterator<Item = &'static str> {
    hard::LINES.iter().map(|l| l.0)
}

/// The operators that cases are drawn of; those of other domains than `ai.onnx` have it before their name.
pub fn operators() -> impl Iterator<Item = &'static str> {
    table().map(|l| l.0)
}

/// The family that an operator belongs to.
pub fn family(name: &str) -> &'static str {
    if name.contains(':') {
        return HARD;
    }
    let found = FAMILIES.iter().find(|(_, lines)| lines.iter().any(|l| l.0 == name));
    found.map_or("control flow, constants", |(family, _)| family)
}

/// Values that are NaN or not ordinary numbers. A computation may take the last two for 0.
const SPECIAL: &[f64] = &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e-40, -6e-8];

/// The special values among the floats of a case, one case in three.
fn specials(name: &str, seed: u64) -> &'static [f64] {
    match family(name) {
        HARD => &[],
        _ if !(seed + name.len() as u64).is_multiple_of(3) => &[],
        // Where a driver's exponential of NaN is no NaN, these have none either.
        _ if ["Cosh", "Exp", "Sinh"].contains(&name) => &[],
        // Numbers that are drawn.
        MOVED if name.starts_with("Random") || ["Bernoulli", "Multinomial"].contains(&name) => &[],
        // A device may take two numbers for equal of which one is subnormal.
        _ if COMPARING.contains(&name) || COMBINING.contains(&name) => &SPECIAL[..4],
        SINGLE => &SPECIAL[..4],
        MOVED => SPECIAL,
        _ => &[],
    }
}

/// Operators whose results hang on how floats compare that they do not combine.
const COMPARING: &[&str] = &["NonMaxSuppression", "TopK"];

/// Operators that combine numbers, some of them by looking for the largest.
const COMBINING: &[&str] = &[
    "ArgMax",
    "ArgMin",
    "CumProd",
    "CumSum",
    "GlobalMaxPool",
    "Hardmax",
    "MaxPool",
    "ReduceL1",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "ScatterElements",
    "ScatterND",
];

/// The outcome of a case that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// As it was drawn.
    Whole,
    /// Without names for extents, which kept it from being compiled.
    Unnamed,
    /// It is refused as unsupported.
    Refused,
}

/// One case of an operator, as its seed has it.
fn case(line: &Line, seed: u64, symbols: bool) -> Case {
    let draw = || {
        let mut d = Draw::new(line.0, seed);
        d.special = specials(line.0, seed);
        d
    };
    let plain = draw().case(line.1, None, symbols);
    // The result's rank is known once the node is imported.
    let rank = import(&plain.model.encode_to_vec(), &NoExternalData, &Options::default())
        .ok()
        .and_then(|i| i.graph.outputs.first().map(|o| i.graph.ty(o.value).rank()));
    draw().case(line.1, rank, symbols)
}

/// Models of one node each, with the operator and the seed.
pub fn plain_cases(seeds: RangeInclusive<u64>) -> impl Iterator<Item = (&'static str, u64, ModelProto)> {
    table().flat_map(move |l| seeds.clone().map(|seed| (l.0, seed, Draw::new(l.0, seed).plain(l.1))))
}

/// Case `seed` of an operator; extents may have names where there are `symbols`.
pub(crate) fn drawn(name: &str, seed: u64, symbols: bool) -> Option<Case> {
    Some(case(line(name)?, seed, symbols))
}

/// A case with ordinary numbers only.
pub(crate) fn ordinary(name: &str, seed: u64, symbols: bool) -> Option<Case> {
    Some(Draw::new(name, seed).case(line(name)?.1, None, symbols))
}

/// Generators whose numbers are computed, which leaves the last bit to the device.
const COMPUTED: [&str; 5] = ["BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", "Range"];

/// Whether every bit of the results counts.
pub(crate) fn all_bits(name: &str, seed: u64) -> bool {
    // A NaN among them is equal to none.
    specials(name, seed).len() == SPECIAL.len() && !COMPUTED.contains(&name)
}

/// Runs a case of an operator. Where names for extents keep it from being compiled, it runs without.
///
/// # Errors
/// The difference or failure; also where there is no such operator.
pub fn run_operator(name: &str, seed: u64, gpu: &Gpu, options: &Options) -> Result<Ran, Failure> {
    let id = CaseId { name: name.to_owned(), seed };
    let (case, unnamed) =
        id.subjects().ok_or_else(|| Failure::error(format!("no cases are drawn of {name}")))?;
    let attempt = Attempt::new(options);
    Ok(match (case.try_on(gpu, &attempt), unnamed) {
        (Ok(Outcome::Refused(_)) | Err(Failure::Error(..)), Some(plain)) => {
            plain.try_on(gpu, &attempt)?;
            Ran::Unnamed
        }
        (result, _) => match result? {
            Outcome::Same(_) => Ran::Whole,
            Outcome::Refused(_) => Ran::Refused,
        },
    })
}

/// Runs a case of an operator whose shapes have an axis without elements, by number or by name. What the model
/// asks for may not be possible then; what the evaluator can tell, the device must.
///
/// # Errors
/// As [`run_operator`]; a bug of ours that is reported.
pub fn run_hollow(name: &str, seed: u64, gpu: &Gpu, options: &Options) -> Result<Ran, Failure> {
    let line = line(name).ok_or_else(|| Failure::error(format!("no cases are drawn of {name}")))?;
    let draw = || {
        let mut d = Draw::new(line.0, seed);
        d.hollow = true;
        Ok(d.case(line.1, None, true))
    };
    // Some lines take for granted that there is something to choose from.
    let Ok(case) = caught(draw) else { return Ok(Ran::Refused) };
    let bytes = case.model.encode_to_vec();
    let rule = Rule { loose: case.loose, ..Rule::default() };
    let inputs = case.inputs.into_iter().collect();
    let subject = Subject { source: Source::Model(Box::new(case.model)), inputs, rule };
    let possible = |e: &Errors| e.0.iter().all(|d| d.kind != Kind::Internal);
    let evaluated = match import(&bytes, &NoExternalData, options) {
        Err(e) if possible(&e) => return Ok(Ran::Refused),
        imported => evaluate(&imported?.graph, &subject.inputs),
    };
    match compile(&bytes, &NoExternalData, options) {
        Err(e) if possible(&e) => return Ok(Ran::Refused),
        compiled => _ = compiled?,
    }
    if evaluated.is_err() {
        return Ok(Ran::Refused);
    }
    Ok(match subject.try_on(gpu, &Attempt::new(options))? {
        Outcome::Same(_) => Ran::Whole,
        Outcome::Refused(_) => Ran::Refused,
    })
}

/// The text of a case: its inputs, constants and nodes. `None` where there is no such operator.
pub fn describe(name: &str, seed: u64) -> Option<String> {
    let c = case(line(name)?, seed, true);
    Some(model_text(&c.model, &c.inputs.into_iter().collect()))
}

/// Floats that operators take, those most often that models have.
pub const FLOATS: &[DType] =
    &[DType::F32, DType::F32, DType::F32, DType::F16, DType::F16, DType::BF16, DType::F64];
/// Integers likewise.
pub const INTS: &[DType] = &[
    DType::I32,
    DType::I64,
    DType::I64,
    DType::U8,
    DType::I8,
    DType::U32,
    DType::U64,
    DType::I16,
    DType::U16,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use wgfc_compiler::import::onnx::data_type;
    use wgfc_ir::testing::Rng;
    use wgfc_ir::{Scalar, Tensor};

    /// The floats as a device has them that knows no subnormals.
    fn flushed(t: &Tensor) -> Tensor {
        let least = if t.dtype == DType::F16 { 2f64.powi(-14) } else { 2f64.powi(-126) };
        let Some(mut v) = t.scalars().filter(|_| t.dtype.is_float()) else { return t.clone() };
        for x in v.iter_mut().filter(|x| x.as_f64().abs() < least) {
            *x = Scalar::from_f64(t.dtype, 0.0);
        }
        Tensor::from_scalars(t.dtype, t.shape.clone(), &v)
    }

    /// The case with other floats.
    fn with(
        case: &Case,
        mut floats: impl FnMut(&Tensor) -> Tensor,
    ) -> (ModelProto, BTreeMap<String, Tensor>) {
        let mut model = case.model.clone();
        for t in model.graph.iter_mut().flat_map(|g| &mut g.initializer) {
            let shape = t.dims.iter().map(|d| *d as usize).collect();
            let dtype = data_type::dtype(t.data_type).unwrap();
            let given = Tensor::new(dtype, shape, t.raw_data.to_vec()).unwrap();
            t.raw_data = floats(&given).bytes().unwrap_or(&[]).to_vec().into();
        }
        (model, case.inputs.iter().map(|(n, t)| (n.clone(), floats(t))).collect())
    }

    #[test]
    fn where_every_bit_counts_no_result_hangs_on_how_subnormals_compare() {
        const TINY: &[f64] = &[0.0, -0.0, 1e-40, -1e-40, -6e-8, 1.0];
        let results = |(model, inputs): &(ModelProto, _)| {
            let g = import(&model.encode_to_vec(), &NoExternalData, &Options::default()).ok()?.graph;
            Some(evaluate(&g, inputs).ok()?.iter().map(flushed).collect::<Vec<_>>())
        };
        let mut tried = 0;
        for line in table().filter(|l| (0..3).any(|seed| all_bits(l.0, seed))) {
            for seed in 1..=12 {
                let case = Draw::new(line.0, seed).case(line.1, None, false);
                let [mut rng, mut same] = [Rng::new(seed), Rng::new(seed)];
                let tiny = |rng: &mut Rng, t: &Tensor| match t.dtype.is_float() {
                    false => t.clone(),
                    true => {
                        let mut one = || Scalar::from_f64(t.dtype, TINY[rng.below(TINY.len())]);
                        let v: Vec<Scalar> = t.scalars().into_iter().flatten().map(|_| one()).collect();
                        Tensor::from_scalars(t.dtype, t.shape.clone(), &v)
                    }
                };
                let want = results(&with(&case, |t| tiny(&mut rng, t)));
                let got = results(&with(&case, |t| flushed(&tiny(&mut same, t))));
                // Constants may be none that the operator takes.
                let (Some(want), Some(got)) = (want, got) else { continue };
                assert!(want == got, "{} {seed}: {want:?}\n{got:?}", line.0);
                tried += 1;
            }
        }
        assert!(tried > 100, "{tried}");
    }
}
