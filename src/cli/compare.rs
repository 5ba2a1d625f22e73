//! `wgfc compare`: compares the tensors of a model with those of a reference.

use super::args::{CompareArgs, ReferenceArg};
use super::compile::{opened_file, say_random_weights};
use super::device_cache::DeviceCache;
use super::expected::Expected;
use super::load::without_weights;
use super::results::number;
use super::terminal::Terminal;
use super::{adapter, inputs, is_program, shown};
use std::collections::BTreeMap;
use wgfc::compiler::kernel::{Kernel, TensorKind};
use wgfc::compiler::{Activations, CacheType, Precision, WeightBits};
use wgfc::inspect::{nodes_of, table};
use wgfc::ir::program::Quantised;
use wgfc::runtime::Gpu;
use wgfc::{DType, Error, Fusion, Model, ModelFile, Options, Tensor};

/// A tensor that is compared.
#[derive(Clone)]
pub struct Looked {
    /// Its name.
    pub name: String,
    /// Its element type in memory between kernels; for an output, the output's type.
    pub memory: DType,
    /// The nodes that compute it.
    pub nodes: Vec<String>,
}

/// The difference of a tensor from the reference.
pub struct Difference {
    pub name: String,
    memory: DType,
    pub shape: Vec<usize>,
    pub nodes: Vec<String>,
    /// The largest magnitude of a finite value of the reference.
    pub largest: f64,
    /// ‖a − b‖ / ‖b‖ over the elements that are finite in both.
    pub relative: f64,
    /// The largest |a − b|.
    pub most: f64,
    /// The number of elements that are not finite, in the tensor and in the reference.
    pub not_finite: [usize; 2],
}

/// Runs a model and its reference, and compares their tensors. Returns the exit code.
pub fn main(a: &CompareArgs, t: &Terminal) -> u8 {
    match run(a, t) {
        Ok(code) => code,
        Err(e) => {
            t.error(&e);
            e.class().exit_code()
        }
    }
}

impl Difference {
    /// The difference in words.
    pub fn why(&self) -> String {
        match self.not_finite {
            [a, b] if a != b => format!("{a} values are not finite, and {b} of the reference"),
            _ if self.relative.is_infinite() && self.most.is_infinite() => "its shape is another".into(),
            _ if self.relative.is_nan() => "values are NaN".into(),
            _ => format!("a relative error of {:.1e}", self.relative),
        }
    }
}

/// The exit code if tensors differ by more than the tolerance.
pub const DIFFERS: u8 = 4;

fn run(a: &CompareArgs, t: &Terminal) -> Result<u8, Error> {
    if is_program(&a.model) {
        return Err(Error::usage(
            "a compiled program has no names of its tensors",
            "give the model that it was compiled from, with the same options",
        ));
    }
    let file = opened_file(&a.model, a.data.random_weights, t)?;
    say_random_weights(&file, t);
    let mut data = super::args::DataArgs { random_inputs: true, ..a.data.clone() };
    let expected = match a.expected.is_empty() {
        true => None,
        false => Some(Expected::read(&file, &a.expected, a.compile.memory_limit, t)?),
    };
    if let Some(e) = &expected {
        let given = |i: &&String| !data.inputs.iter().any(|d| d.split('=').next() == i.split('=').next());
        let more: Vec<String> = e.inputs.iter().filter(given).cloned().collect();
        data.inputs.extend(more);
    }
    let gpu = adapter::open(&a.adapter, t)?;
    let mut cache = DeviceCache::open(&a.cache, &gpu, t);
    let mut options = a.compile.options()?;
    options.tuning = std::mem::take(&mut cache.tuning);
    options.profile.speeds = cache.speeds;
    options.profile = options.profile.with_limits(gpu.profile());
    let changed = options.changes_values();
    let what = a.reference.unwrap_or(if changed { ReferenceArg::F32 } else { ReferenceArg::Evaluator });
    let clear = |e| without_weights(e, &file);

    let all = match &expected {
        _ if a.outputs_only => vec![],
        Some(e) => e.inside.clone(),
        None => tensors(&file, &options).map_err(clear)?,
    };
    let model = Model::compile_for(gpu.clone(), &file, &options).map_err(clear)?;
    t.warnings(model.warnings());
    let quantised = match options.weights {
        WeightBits::Own => None,
        _ => Some(quantised(&file, &options, &model).map_err(clear)?),
    };
    if let Some(q) = &quantised {
        t.note(&q.text());
    }
    let given = inputs::make_free(model.inputs(), &a.compile.dims, &data, a.compile.memory_limit, t)?;
    // The model without taps is compared itself if there is nothing to tap; otherwise it is dropped to free memory.
    let mut model = Some(model).filter(|_| all.is_empty());
    let mut found: Vec<Difference> = vec![];
    let mut lost = vec![];
    // There is at least one run, as outputs are compared in any case.
    let each = a.at_once as usize;
    let runs = all.len().div_ceil(each).max(1);
    for i in 0..runs {
        let _progress = t.spinner(format!("comparing {}, {} of {}", shown(&a.model), i + 1, runs));
        let looked = &all[all.len().min(i * each)..all.len().min((i + 1) * each)];
        let (mut own, left_out) = match model.take() {
            Some(model) => (model, vec![]),
            None => with_taps(&gpu, &file, &options, looked).map_err(clear)?,
        };
        lost.extend(left_out.iter().cloned());
        let kept: Vec<&Looked> = looked.iter().filter(|l| !left_out.contains(&l.name)).collect();
        let outputs: Vec<String> = own.outputs().iter().map(|p| p.name.clone()).collect();
        let mut reference = match &expected {
            Some(_) => None,
            None => Some(reference(&gpu, &file, &options, what, &kept).map_err(clear)?),
        };
        let a = own.run(&given)?;
        let saved = reference.as_mut().map(|r| r.run(&given)).transpose()?;
        let b = |name: &str| match (&saved, &expected) {
            (Some(saved), _) => saved.get(name),
            (None, Some(e)) => e.tensors.get(name),
            (None, None) => None,
        };
        let differ = |name: &str, memory: DType, nodes: &[String]| {
            difference(name, memory, nodes, a.get(name)?, b(name)?)
        };
        found.extend(kept.iter().filter_map(|l| differ(&l.name, l.memory, &l.nodes)));
        if i + 1 == runs {
            let own = outputs.iter().filter(|o| !kept.iter().any(|l| l.name == **o));
            found.extend(own.filter_map(|o| differ(o, a.get(o)?.dtype, &["output".to_owned()])));
        }
    }
    if !lost.is_empty() {
        t.note(&format!("{} tensors inside of branches, loops or functions are left out", lost.len()));
    }
    let against = match what {
        _ if expected.is_some() => "the saved tensors",
        ReferenceArg::F32 => "the program in f32",
        ReferenceArg::Unfused => "kernels of one operator each, in f32",
        ReferenceArg::Evaluator => "the reference evaluator",
    };
    let usual = if changed { 5e-2 } else { 1e-3 };
    let first = match (a.tolerance, &expected) {
        (None, None) => None,
        (e, _) => found.iter().position(|d| parts(d, e.unwrap_or(usual))),
    };
    let code = if first.is_some() && a.tolerance.is_some() { DIFFERS } else { 0 };
    if t.json {
        let mut v = json(against, &found);
        if let Some(v) = v.as_object_mut() {
            if let Some(q) = &quantised {
                let left = &q.left;
                v.insert("quantised".into(), serde_json::json!({ "weights": q.all.weights, "left": left }));
            }
            v.insert("differs_first".into(), first.map(|i| found[i].name.clone()).into());
        }
        t.print_json(&v);
        return Ok(code);
    }
    t.print(&text(&shown(&a.model), against, &found));
    match (first, &expected) {
        (Some(i), _) => {
            let why = found[i].why();
            let before = found[..i].iter().rev().map(|d| d.name.as_str()).next();
            let before = before.map_or("nothing is compared before it".to_owned(), |n| {
                format!("all before agree, \"{n}\" the last of them")
            });
            t.print(&format!(
                "  differs first at \"{}\" ({}): {why}; {before}\n",
                found[i].name,
                nodes_of(&found[i].nodes, 2)
            ));
        }
        (None, Some(_)) => t.print("  all agree\n"),
        _ => {}
    }
    Ok(code)
}

/// Whether a tensor differs by more than rounding. A float tensor must exceed the relative error `tolerance` and, as it may
/// consist of rounding errors only, the absolute error `tolerance` / 100. Integers that result from rounding may differ by
/// one, and one boolean in a hundred may differ.
pub fn parts(d: &Difference, tolerance: f64) -> bool {
    if d.relative.is_nan() || d.not_finite[0] != d.not_finite[1] {
        return true;
    }
    let least = match d.memory {
        DType::Bool => return d.relative > 0.1,
        t if t.is_float() => tolerance / 100.0,
        _ => 1.0,
    };
    d.relative > tolerance && d.most > least
}

/// The quantisation of a model's weights.
struct Quantising {
    all: Quantised,
    /// The names of the weights that are not quantised.
    left: Vec<String>,
}

impl Quantising {
    fn text(&self) -> String {
        let left = match self.left.len() {
            0 => "no other is left as it is".to_owned(),
            n => format!("{n} are left as they are: {}", super::some_of(&self.left)),
        };
        format!("{}; {left}", wgfc::inspect::quantised_text(&self.all))
    }
}

/// Finds which weights are quantised.
///
/// # Errors
/// No weight is quantised, so there would be nothing to compare.
fn quantised(file: &ModelFile, options: &Options, model: &Model) -> Result<Quantising, Error> {
    let graph = file.import(options)?.graph;
    let left = wgfc::compiler::weights::left(&graph, options);
    let all = model.session().and_then(|s| s.program().stats.quantised).unwrap_or_default();
    if all.weights > 0 {
        return Ok(Quantising { all, left });
    }
    let why = match left.len() {
        0 => "the model has no weights of floats".to_owned(),
        n => format!("{n} are left as they are: {}", super::some_of(&left)),
    };
    Err(Error::usage(
        format!("no weight is quantised: {why}"),
        "quantised are matrices of at least 64 × 64 floats that only products and lookups read, all along the same axis; leave \
         --weights out to compare the model as it is",
    ))
}

/// The intermediate tensors that kernels write and that have a name in the model, in the order in which they are written.
fn tensors(file: &ModelFile, options: &Options) -> Result<Vec<Looked>, Error> {
    let fused = file.fuse_amended(options, &mut |_| Ok(()))?;
    let kernels = &fused.kernels;
    let mut out: Vec<Looked> = vec![];
    for (k, id) in kernels.kernels.iter().flat_map(|k| k.writes().into_iter().map(move |id| (k, id))) {
        let tensor = &kernels.tensors[id];
        let Some(name) = tensor.name.as_deref().filter(|_| matches!(tensor.kind, TensorKind::Intermediate))
        else {
            continue;
        };
        if !out.iter().any(|l| l.name == name) {
            let nodes = |k: &Kernel| k.nodes.iter().map(|n| n.to_string()).collect();
            out.push(Looked { name: name.to_owned(), memory: tensor.ty.dtype, nodes: nodes(k) });
        }
    }
    Ok(out)
}

/// The model with tensors as additional outputs, and the names of those that cannot become outputs.
fn with_taps(
    gpu: &Gpu,
    file: &ModelFile,
    options: &Options,
    looked: &[Looked],
) -> Result<(Model, Vec<String>), Error> {
    let compile =
        |taps: Vec<String>| Model::compile_for(gpu.clone(), file, &Options { taps, ..options.clone() });
    let names: Vec<String> = looked.iter().map(|l| l.name.clone()).collect();
    let e = match compile(names.clone()) {
        Ok(model) => return Ok((model, vec![])),
        Err(e) => e,
    };
    let Error::Compile { errors, .. } = &e else { return Err(e) };
    let named = |n: &String| errors.0.iter().any(|d| d.message.contains(&format!("\"{n}\"")));
    let (without, rest): (Vec<String>, Vec<String>) = names.into_iter().partition(named);
    if without.is_empty() {
        return Err(e);
    }
    Ok((compile(rest)?, without))
}

/// The model that computes the reference.
fn reference(
    gpu: &Gpu,
    file: &ModelFile,
    options: &Options,
    what: ReferenceArg,
    looked: &[&Looked],
) -> Result<Model, Error> {
    let taps = looked.iter().map(|l| l.name.clone()).collect();
    let plain = Options {
        taps,
        precision: Precision::F32,
        weights: WeightBits::Own,
        activations: Activations::Own,
        cache: CacheType::Own,
        keep_f32: vec![],
        ..options.clone()
    };
    match what {
        ReferenceArg::F32 => Model::compile_for(gpu.clone(), file, &plain),
        ReferenceArg::Unfused => {
            Model::compile_for(gpu.clone(), file, &Options { fusion: Fusion::None, ..plain })
        }
        ReferenceArg::Evaluator => Model::on_cpu(file, &plain),
    }
}

/// The difference of a tensor from the reference; `None` if one of them has no values.
pub fn difference(name: &str, memory: DType, nodes: &[String], a: &Tensor, b: &Tensor) -> Option<Difference> {
    let values = |t: &Tensor| match t.dtype {
        DType::F32 => Some(t.to_f32s()?.into_iter().map(f64::from).collect::<Vec<f64>>()),
        _ => Some(t.scalars()?.into_iter().map(wgfc::ir::Scalar::as_f64).collect()),
    };
    let (x, y) = (values(a)?, values(b)?);
    let (mut error, mut norm, mut most, mut largest) = (0.0, 0.0, 0.0f64, 0.0f64);
    if a.shape != b.shape {
        // Shapes may depend on values. If they differ, no element has a counterpart.
        (error, most) = (f64::INFINITY, f64::INFINITY);
    }
    let mut not_finite = [0, 0];
    for (x, y) in x.iter().zip(&y) {
        not_finite[0] += usize::from(!x.is_finite());
        not_finite[1] += usize::from(!y.is_finite());
        if x.is_finite() && y.is_finite() {
            error += (x - y) * (x - y);
            norm += y * y;
            most = most.max((x - y).abs());
        }
        if y.is_finite() {
            largest = largest.max(y.abs());
        }
    }
    // NaN where the reference has a number makes the difference NaN.
    if x.iter().zip(&y).any(|(x, y)| x.is_nan() && !y.is_nan()) {
        (error, most) = (f64::NAN, f64::NAN);
    }
    // Infinite if all of the reference is 0.
    let relative = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
    let (name, nodes, shape) = (name.to_owned(), nodes.to_vec(), b.shape.clone());
    Some(Difference { name, memory, shape, nodes, largest, relative, most, not_finite })
}

/// The most tensors that are named for the growth of the error.
const STEPS: usize = 3;

/// The tensors whose error exceeds that of all earlier ones by the largest factors. Tensors before the first error are
/// skipped.
fn growth(all: &[Difference]) -> Vec<(&Difference, f64)> {
    let mut before = 0.0f64;
    let mut out = vec![];
    for d in all {
        if before > 0.0 && d.relative > 1.5 * before && d.relative > 1e-6 {
            out.push((d, d.relative / before));
        }
        before = before.max(d.relative);
    }
    out.sort_by(|a, b| b.1.total_cmp(&a.1));
    out.truncate(STEPS);
    out
}

/// Whether more elements are not finite than in the reference.
fn overflows(d: &Difference) -> bool {
    d.not_finite[0] > d.not_finite[1]
}

fn text(name: &str, against: &str, all: &[Difference]) -> String {
    let heading =
        ["tensor", "shape", "memory", "largest", "relative error", "max error", "not finite", "nodes"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for d in all {
        let shape: Vec<String> = d.shape.iter().map(ToString::to_string).collect();
        let not_finite = match d.not_finite {
            [0, 0] => String::new(),
            [a, b] if a == b => a.to_string(),
            [a, b] => format!("{a}, not {b}"),
        };
        rows.push(vec![
            d.name.clone(),
            format!("[{}]", shape.join(", ")),
            d.memory.to_string(),
            number(d.largest),
            format!("{:.1e}", d.relative),
            format!("{:.1e}", d.most),
            not_finite,
            nodes_of(&d.nodes, 2),
        ]);
    }
    let mut out = format!("{name}, compared with {against}\n\n");
    out += &table(&rows, &[false, false, false, true, true, true, false, false]);
    out.push('\n');
    if let Some(d) = all.iter().find(|d| overflows(d)) {
        out += &format!(
            "  not finite first in \"{}\", which {} computes; --keep-f32 keeps it in f32\n",
            d.name,
            nodes_of(&d.nodes, 2)
        );
    }
    for (d, times) in growth(all) {
        let times = number((times * 10.0).round() / 10.0);
        out += &format!("  the error grows {times} times at \"{}\" ({})\n", d.name, nodes_of(&d.nodes, 2));
    }
    out
}

fn json(against: &str, all: &[Difference]) -> serde_json::Value {
    let one = |d: &Difference| {
        serde_json::json!({
            "name": d.name,
            "shape": d.shape,
            "memory": d.memory.name(),
            "nodes": d.nodes,
            "largest": d.largest,
            "relative_error": if d.relative.is_finite() { Some(d.relative) } else { None },
            "max_error": d.most,
            "not_finite": d.not_finite[0],
            "reference_not_finite": d.not_finite[1],
        })
    };
    let grows: Vec<&str> = growth(all).into_iter().map(|(d, _)| d.name.as_str()).collect();
    let tensors: BTreeMap<&str, serde_json::Value> = BTreeMap::from([
        ("reference", against.into()),
        ("tensors", all.iter().map(one).collect()),
        ("error_grows_at", grows.into()),
        ("not_finite_first", all.iter().find(|d| overflows(d)).map(|d| d.name.clone()).into()),
    ]);
    serde_json::json!(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_differ_by_value_and_by_shape() {
        let of = |values: &[f32]| Tensor::from_f32(vec![values.len()], values);
        let compared = |a: &[f32], b: &[f32]| difference("t", DType::F16, &[], &of(a), &of(b)).unwrap();
        let d = compared(&[3.0, 4.5, f32::INFINITY], &[3.0, 4.0, 7.0]);
        assert_eq!((d.relative, d.most, d.largest, d.not_finite), (0.1, 0.5, 7.0, [1, 0]));
        assert!(overflows(&d));
        let d = compared(&[3.0, f32::NAN], &[3.0, 4.0]);
        assert!(d.relative.is_nan() && d.most.is_nan());
        assert_eq!(compared(&[3.0, f32::NAN], &[3.0, f32::NAN]).relative, 0.0);
        let d = compared(&[1.0, 2.0], &[1.0, 2.0, 3.0]);
        assert!(d.relative.is_infinite() && d.most.is_infinite() && d.shape == [3]);
        assert_eq!(compared(&[1.0], &[0.0]).relative, f64::INFINITY);
        assert_eq!(compared(&[], &[]).relative, 0.0);
    }

    #[test]
    fn rounding_is_no_difference() {
        let of = |values: &[f32]| Tensor::from_f32(vec![values.len()], values);
        let differs =
            |a: &[f32], b: &[f32]| parts(&difference("t", DType::F32, &[], &of(a), &of(b)).unwrap(), 1e-3);
        assert!(!differs(&[1.0, 2.0], &[1.0, 2.0001]) && differs(&[1.0, 2.0], &[1.0, 2.1]));
        // The difference of equal numbers consists of rounding errors only.
        assert!(!differs(&[1e-7], &[0.0]) && differs(&[1e-3], &[0.0]));
        assert!(
            differs(&[f32::NAN], &[0.0])
                && differs(&[f32::INFINITY], &[0.0])
                && differs(&[0.0], &[f32::INFINITY])
        );
        assert!(!differs(&[f32::INFINITY], &[f32::INFINITY]));
        assert!(differs(&[1.0, 1.0], &[1.0]));
        let ints = |a: &[i64], b: &[i64]| {
            let of = |v: &[i64]| Tensor::from_i64(vec![v.len()], v);
            parts(&difference("t", DType::I64, &[], &of(a), &of(b)).unwrap(), 1e-3)
        };
        assert!(!ints(&[4], &[5]) && ints(&[4], &[7]));
    }
}
