//! Single operators with random shapes, types and attributes.
//!
//! A table has one line for each operator, which draws its cases. Inputs may pass through a transposition before the node,
//! and the first result after it. Extents may be symbolic. A case is determined by the operator's name and a seed.

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

/// An operator's name and the function that draws its cases. The name includes the domain unless it is `ai.onnx`.
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

/// Cases of operators that drivers get wrong more often than others. A suffix after a colon names the kind of case.
pub(crate) fn hard() -> impl Iterator<Item = &'static str> {
    hard::LINES.iter().map(|l| l.0)
}

/// The operators for which cases are drawn. Names include the domain unless it is `ai.onnx`.
///
/// ```
/// use wgfc_selftest::{describe, family, operators};
/// assert!(operators().any(|name| name == "Conv"));
/// println!("{}: {}", family("Conv"), describe("Conv", 1).unwrap());
/// ```
pub fn operators() -> impl Iterator<Item = &'static str> {
    table().map(|l| l.0)
}

/// The family of an operator.
pub fn family(name: &str) -> &'static str {
    if name.contains(':') {
        return HARD;
    }
    let found = FAMILIES.iter().find(|(_, lines)| lines.iter().any(|l| l.0 == name));
    found.map_or("control flow, constants", |(family, _)| family)
}

/// NaN, infinities, negative zero and subnormal numbers. A device may flush the last two to 0.
const SPECIAL: &[f64] = &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e-40, -6e-8];

/// The special values that are mixed into the floats of a case; for two cases in three there are none.
fn specials(name: &str, seed: u64) -> &'static [f64] {
    match family(name) {
        HARD => &[],
        _ if !(seed + name.len() as u64).is_multiple_of(3) => &[],
        // On some drivers the exponential of NaN is not NaN, nor are these functions of it.
        _ if ["Cosh", "Exp", "Sinh"].contains(&name) => &[],
        // The results of these are random numbers.
        MOVED if name.starts_with("Random") || ["Bernoulli", "Multinomial"].contains(&name) => &[],
        // A device may compare a subnormal number as equal to another one or to 0.
        _ if COMPARING.contains(&name) || COMBINING.contains(&name) => &SPECIAL[..4],
        SINGLE => &SPECIAL[..4],
        MOVED => SPECIAL,
        _ => &[],
    }
}

/// Operators that compare floats and whose results are elements or indices, not combinations of the floats.
const COMPARING: &[&str] = &["NonMaxSuppression", "TopK"];

/// Operators that combine numbers, some by their maximum.
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
    /// The case was run as it was drawn.
    Whole,
    /// The case could be compiled only with numbers in place of symbolic extents.
    Unnamed,
    /// The case is refused as unsupported.
    Refused,
}

/// The case of an operator with this seed.
fn case(line: &Line, seed: u64, symbols: bool) -> Case {
    let draw = || {
        let mut d = Draw::new(line.0, seed);
        d.special = specials(line.0, seed);
        d
    };
    let plain = draw().case(line.1, None, symbols);
    // The result's rank is known after the import.
    let rank = import(&plain.model.encode_to_vec(), &NoExternalData, &Options::default())
        .ok()
        .and_then(|i| i.graph.outputs.first().map(|o| i.graph.ty(o.value).rank()));
    draw().case(line.1, rank, symbols)
}

/// A model of a single node for each operator and seed, with both.
pub fn plain_cases(seeds: RangeInclusive<u64>) -> impl Iterator<Item = (&'static str, u64, ModelProto)> {
    table().flat_map(move |l| seeds.clone().map(|seed| (l.0, seed, Draw::new(l.0, seed).plain(l.1))))
}

/// The case `seed` of an operator; with `symbols`, extents may be symbolic.
pub(crate) fn drawn(name: &str, seed: u64, symbols: bool) -> Option<Case> {
    Some(case(line(name)?, seed, symbols))
}

/// A case without special values.
pub(crate) fn ordinary(name: &str, seed: u64, symbols: bool) -> Option<Case> {
    Some(Draw::new(name, seed).case(line(name)?.1, None, symbols))
}

/// Generators whose results are computed, so that the last bit depends on the device.
const COMPUTED: [&str; 5] = ["BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", "Range"];

/// Whether results must agree in every bit.
pub(crate) fn all_bits(name: &str, seed: u64) -> bool {
    // Specials that include subnormals are given only to operators that move elements.
    specials(name, seed).len() == SPECIAL.len() && !COMPUTED.contains(&name)
}

/// Runs a case of an operator. If it cannot be compiled with symbolic extents, it runs with numbers.
///
/// # Errors
/// The difference or failure, or an unknown operator.
pub fn run_operator(name: &str, seed: u64, gpu: &Gpu, options: &Options) -> Result<Ran, Failure> {
    let id = CaseId { name: name.to_owned(), seed };
    let done = id.try_on(gpu, &Attempt::new(options))?;
    Ok(match done.outcome {
        _ if done.unnamed => Ran::Unnamed,
        Outcome::Same(_) => Ran::Whole,
        Outcome::Refused(_) => Ran::Refused,
    })
}

/// Runs a case of an operator whose shapes have an axis without elements, fixed or symbolic. Such a model may be invalid;
/// but if the evaluator can run it, the device must too.
///
/// # Errors
/// As for [`run_operator`]; also an internal error of the compiler.
pub fn run_hollow(name: &str, seed: u64, gpu: &Gpu, options: &Options) -> Result<Ran, Failure> {
    let line = line(name).ok_or_else(|| Failure::error(format!("no cases are drawn of {name}")))?;
    let draw = || {
        let mut d = Draw::new(line.0, seed);
        d.hollow = true;
        Ok(d.case(line.1, None, true))
    };
    // Some lines panic when there is no element to choose from.
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

/// The text of a case: its inputs, constants and nodes. `None` if the operator is unknown.
pub fn describe(name: &str, seed: u64) -> Option<String> {
    let c = case(line(name)?, seed, true);
    Some(model_text(&c.model, &c.inputs.into_iter().collect()))
}

/// Float types of operands, in proportion to their use in models.
pub const FLOATS: &[DType] =
    &[DType::F32, DType::F32, DType::F32, DType::F16, DType::F16, DType::BF16, DType::F64];
/// Integer types of operands, in proportion to their use in models.
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

    /// The tensor as a device sees it that flushes subnormals to 0.
    fn flushed(t: &Tensor) -> Tensor {
        let least = if t.dtype == DType::F16 { 2f64.powi(-14) } else { 2f64.powi(-126) };
        let Some(mut v) = t.scalars().filter(|_| t.dtype.is_float()) else { return t.clone() };
        for x in v.iter_mut().filter(|x| x.as_f64().abs() < least) {
            *x = Scalar::from_f64(t.dtype, 0.0);
        }
        Tensor::from_scalars(t.dtype, t.shape.clone(), &v)
    }

    /// The case with its floats replaced.
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
                // The operator may refuse the changed constants.
                let (Some(want), Some(got)) = (want, got) else { continue };
                assert!(want == got, "{} {seed}: {want:?}\n{got:?}", line.0);
                tried += 1;
            }
        }
        assert!(tried > 100, "{tried}");
    }
}
