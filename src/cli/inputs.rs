//! Converts `--input NAME=SOURCE` to tensors.

use super::args::DataArgs;
use super::image;
use super::terminal::Terminal;
use std::collections::BTreeMap;
use std::path::PathBuf;
use wgfc::compiler::budget::Budget;
use wgfc::ir::Scalar;
use wgfc::value_info::{ValueInfo, bind, no_such_input};
use wgfc::{DType, Error, Model, Problem, Tensor, memory, npy, random};

/// The source of an input's values.
#[derive(Clone, Debug, PartialEq)]
enum Source {
    Npy(PathBuf),
    Pb(PathBuf),
    Picture(PathBuf),
    Random(u64),
    Number(f64),
    Iota,
}

impl Source {
    fn parse(text: &str) -> Result<Source, Problem> {
        let path = PathBuf::from(text);
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
        let seed = |s: &str| {
            s.parse::<u64>().map_err(|_| {
                let m = format!("`{text}`: the seed `{s}` is not a whole number");
                Problem::with_help(m, "write as in random:7")
            })
        };
        Ok(match text {
            "random" => Source::Random(0),
            "zeros" => Source::Number(0.0),
            "ones" => Source::Number(1.0),
            "iota" => Source::Iota,
            _ if text.starts_with("random:") => Source::Random(seed(&text["random:".len()..])?),
            _ => match (extension.as_str(), text.parse::<f64>()) {
                ("npy", _) => Source::Npy(path),
                ("pb", _) => Source::Pb(path),
                ("png" | "jpg" | "jpeg", _) => Source::Picture(path),
                (_, Ok(v)) => Source::Number(v),
                _ => {
                    return Err(Problem::with_help(
                        format!("`{text}` is not a source for an input"),
                        "give a .npy, .pb, .png or .jpg file, random, random:SEED, zeros, ones, iota, or a number",
                    ));
                }
            },
        })
    }
}

/// Random inputs of a model. `size` gives the values of symbolic dimensions; those that it does not give are 1.
pub fn random_inputs(model: &Model, size: &dyn Fn(&str) -> Option<i64>) -> BTreeMap<String, Tensor> {
    let given = model.inputs().iter().filter(|p| p.broadcast.is_none());
    let made = given.map(|p| {
        let shape = p.shape.iter().map(|d| d.eval_syms(size).unwrap_or(1).max(0) as usize).collect();
        (p.name.to_string(), random::tensor(p.dtype, shape, &p.name, 1))
    });
    made.collect()
}

/// Parses `--fix NAME=VALUE`, which makes an input of the model constant. `VALUE` is a file or integers: a single one is a
/// scalar, several with commas are a list. A comma at the end makes a list of one.
pub fn fixed(text: &str, budget: &Budget) -> Result<(String, Tensor), Error> {
    given(text, "--fix", budget)
}

/// Parses `NAME=VALUE` of an option, where `VALUE` is as for [`fixed`].
pub fn given(text: &str, option: &str, budget: &Budget) -> Result<(String, Tensor), Error> {
    let help = format!("write {option} NAME=FILE.npy, NAME=FILE.pb, or integers as in NAME=1,2");
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| Error::usage(format!("`{option} {text}` has no value"), help.as_str()))?;
    let value = match value {
        v if v.ends_with(".npy") => npy::read_within(v.as_ref(), budget)?,
        v if v.ends_with(".pb") => wgfc::pb::read_within(v.as_ref(), budget)?,
        v => {
            let list = v.contains(',');
            let numbers: Option<Vec<i64>> =
                v.trim_end_matches(',').split(',').map(|n| n.trim().parse().ok()).collect();
            let numbers = numbers.ok_or_else(|| {
                Error::usage(
                    format!("`{option} {text}`: `{v}` is neither a file nor integers"),
                    help.as_str(),
                )
            })?;
            Tensor::from_i64(if list { vec![numbers.len()] } else { vec![] }, &numbers)
        }
    };
    Ok((name.to_owned(), value))
}

/// Makes all inputs of a model. The error lists everything that is missing or wrong.
///
/// Shapes of files determine symbols first, then `--dim`. Generated inputs take their shapes from both.
pub fn make(
    ports: &[ValueInfo],
    given: &[(String, i64)],
    a: &DataArgs,
    memory_limit: Option<u64>,
    t: &Terminal,
) -> Result<BTreeMap<String, Tensor>, Error> {
    make_of(ports, given, a, memory_limit, (true, false), t)
}

/// [`make`] that chooses small values for dimensions that are not determined, with a note.
pub fn make_free(
    ports: &[ValueInfo],
    given: &[(String, i64)],
    a: &DataArgs,
    memory_limit: Option<u64>,
    t: &Terminal,
) -> Result<BTreeMap<String, Tensor>, Error> {
    make_of(ports, given, a, memory_limit, (true, true), t)
}

/// [`make`] for only those inputs that are given.
pub fn make_given(
    ports: &[ValueInfo],
    given: &[(String, i64)],
    a: &DataArgs,
    memory_limit: Option<u64>,
    t: &Terminal,
) -> Result<BTreeMap<String, Tensor>, Error> {
    make_of(ports, given, a, memory_limit, (false, false), t)
}

fn make_of(
    ports: &[ValueInfo],
    given: &[(String, i64)],
    a: &DataArgs,
    memory_limit: Option<u64>,
    (all, free): (bool, bool),
    t: &Terminal,
) -> Result<BTreeMap<String, Tensor>, Error> {
    let mut problems = Vec::new();
    let mut sources: BTreeMap<&str, Source> = BTreeMap::new();
    let needed: Vec<&ValueInfo> = ports.iter().filter(|p| p.broadcast.is_none()).collect();
    for text in &a.inputs {
        let (port, source) = match (named(ports, text), text.split_once('='), needed.as_slice()) {
            (Some((p, s)), _, _) => (p, s),
            (None, None, [only]) => (*only, text.as_str()),
            (None, Some((name, _)), _) => {
                problems.push(no_such_input(name, ports));
                continue;
            }
            (None, None, _) => {
                problems.push(Problem::with_help(
                    format!("`--input {text}` does not say which input it is for"),
                    "write --input NAME=SOURCE",
                ));
                continue;
            }
        };
        match Source::parse(source) {
            Ok(_) if sources.contains_key(port.name.as_str()) => {
                problems.push(Problem::with_help(
                    format!("input `{}` is given twice", port.name),
                    "give it once",
                ));
            }
            Ok(s) => drop(sources.insert(&port.name, s)),
            Err(p) => {
                problems.push(Problem { message: format!("input `{}`: {}", port.name, p.message), ..p })
            }
        }
    }
    for port in ports.iter().filter(|_| all) {
        if !sources.contains_key(port.name.as_str()) && port.broadcast.is_none() {
            if a.random_inputs {
                sources.insert(&port.name, Source::Random(0));
            } else {
                problems.push(Problem::with_help(
                    format!("input `{}` is {} and was not given", port.name, port.type_text()),
                    format!("--input {}={}, or --random-inputs for all", port.name, suggestion(port)),
                ));
            }
        }
    }
    if !problems.is_empty() {
        return Err(Error::Usage(problems));
    }
    fill(ports, given, &sources, free, a, &Budget::of_data(memory_limit), t)
}

/// The input that `NAME=…` names, and the text after the `=`. Names may contain `=`: the longest one that fits is chosen.
pub fn named<'p, 't>(ports: &'p [ValueInfo], text: &'t str) -> Option<(&'p ValueInfo, &'t str)> {
    let fit = |p: &'p ValueInfo| Some((p, text.strip_prefix(p.name.as_str())?.strip_prefix('=')?));
    ports.iter().filter_map(fit).max_by_key(|(p, _)| p.name.len())
}

/// A suggested source for the port's type.
fn suggestion(port: &ValueInfo) -> &'static str {
    match (port.dtype.is_float(), port.shape.len()) {
        (true, 4) => "FILE.npy|FILE.png|random",
        (false, 2) => "FILE.npy|iota|random",
        _ => "FILE.npy|random",
    }
}

fn fill(
    ports: &[ValueInfo],
    dimensions: &[(String, i64)],
    sources: &BTreeMap<&str, Source>,
    free: bool,
    a: &DataArgs,
    budget: &Budget,
    t: &Terminal,
) -> Result<BTreeMap<String, Tensor>, Error> {
    let mut dims: BTreeMap<String, i64> = BTreeMap::new();
    let mut tensors = BTreeMap::new();
    let mut problems = Vec::new();
    for port in ports {
        let tensor = match sources.get(port.name.as_str()) {
            Some(Source::Npy(path)) => npy::read_within(path, budget)?,
            Some(Source::Pb(path)) => wgfc::pb::read_within(path, budget)?,
            _ => continue,
        };
        match npy::fit(tensor, port.dtype, a.cast) {
            Ok((x, changed)) => {
                if let Some(c) = changed {
                    t.note(&format!("input `{}`: {c}", port.name));
                }
                tensors.insert(port.name.clone(), x);
            }
            Err(p) => {
                problems
                    .push(Problem { message: format!("input `{}`: its file {}", port.name, p.message), ..p });
            }
        }
    }
    if !problems.is_empty() {
        return Err(Error::Usage(problems));
    }
    let given: Vec<_> = ports
        .iter()
        .filter_map(|p| Some((p, tensors.get(&p.name).map(|t: &Tensor| t.shape.as_slice())?)))
        .collect();
    bind(&given, &mut dims);
    let used = |name: &String| {
        ports.iter().flat_map(|p| p.shape.iter()).any(|d| d.symbols().iter().any(|s| **s == **name))
    };
    for (name, value) in dimensions.iter().filter(|(n, _)| used(n)) {
        if let Some(v) = dims.insert(name.clone(), *value).filter(|v| v != value) {
            problems.push(Problem::with_help(
                format!("--dim {name}={value}, but the inputs' files have {name} = {v}"),
                format!("leave out --dim {name}, or give other files"),
            ));
        }
    }
    for port in ports {
        if let Some(Source::Picture(path)) = sources.get(port.name.as_str()) {
            let t = image::read(path, port.dtype, &port.shape, &dims, a.image_norm, budget)?;
            bind(&[(port, &t.shape)], &mut dims);
            tensors.insert(port.name.clone(), t);
        }
    }
    if free {
        let made = ports.iter().filter(|p| sources.contains_key(p.name.as_str()));
        choose_free_dims(made.filter(|p| !tensors.contains_key(&p.name)), &mut dims, t);
    }
    let mut missing: Vec<String> = Vec::new();
    let generated = |p: &&ValueInfo| sources.contains_key(p.name.as_str()) && !tensors.contains_key(&p.name);
    for port in ports.iter().filter(generated).collect::<Vec<_>>() {
        let shape = match port.shape_at(&dims) {
            Ok(s) => match memory::afford(random::cost(port.dtype, &s)) {
                Ok(()) => s,
                Err(e) => {
                    problems.push(Problem::with_help(
                        format!("input `{}` of shape {s:?} is too large to generate: it {e}", port.name),
                        "give smaller dimensions with --dim, or a file",
                    ));
                    continue;
                }
            },
            Err(names) if names.is_empty() => {
                problems.push(Problem::with_help(
                    format!("input `{}`: {} has no valid shape here", port.name, port.type_text()),
                    "give other dimensions with --dim",
                ));
                continue;
            }
            Err(names) => {
                missing.extend(names);
                continue;
            }
        };
        let tensor = match sources.get(port.name.as_str()) {
            Some(Source::Number(v)) => constant(port.dtype, shape, *v),
            Some(Source::Iota) => iota(port.dtype, shape),
            Some(Source::Random(seed)) => random::tensor(port.dtype, shape, &port.name, *seed),
            _ => continue,
        };
        tensors.insert(port.name.clone(), tensor);
    }
    missing.sort();
    missing.dedup();
    for name in missing {
        let users: Vec<String> = ports
            .iter()
            .filter(|p| p.shape.iter().any(|d| d.symbols().iter().any(|s| **s == *name)))
            .map(|p| format!("`{}` {}", p.name, p.type_text()))
            .collect();
        problems.push(Problem::with_help(
            format!("the dimension `{name}` of input {} has no value", users.join(", ")),
            format!("--dim {name}=1"),
        ));
    }
    if problems.is_empty() { Ok(tensors) } else { Err(Error::Usage(problems)) }
}

/// The value of a free dimension that is not the first one of a tensor.
const DEFAULT_EXTENT: i64 = 64;

/// Chooses values for the undetermined dimensions of inputs: 1 for a dimension that comes first in some input, as batches
/// do, else `DEFAULT_EXTENT`.
fn choose_free_dims<'p>(
    ports: impl Iterator<Item = &'p ValueInfo>,
    dims: &mut BTreeMap<String, i64>,
    t: &Terminal,
) {
    let (mut first, mut others) = (vec![], vec![]);
    for p in ports {
        for (axis, d) in p.shape.iter().enumerate() {
            let list = if axis == 0 && p.shape.len() > 1 { &mut first } else { &mut others };
            list.extend(d.symbols().iter().map(ToString::to_string));
        }
    }
    let mut chosen: BTreeMap<String, i64> = others.into_iter().map(|s| (s, DEFAULT_EXTENT)).collect();
    chosen.extend(first.into_iter().map(|s| (s, 1)));
    chosen.retain(|s, _| !dims.contains_key(s));
    if !chosen.is_empty() {
        let all: Vec<String> = chosen.iter().map(|(s, v)| format!("--dim {s}={v}")).collect();
        t.note(&format!(
            "using {} for dimensions that nothing determines; change them with --dim",
            all.join(" ")
        ));
    }
    dims.extend(chosen);
}

fn constant(dtype: DType, shape: Vec<usize>, v: f64) -> Tensor {
    Tensor::generate(dtype, shape, |_| Scalar::from_f64(dtype, v))
}

/// The numbers 0, 1, 2, … along the last axis.
fn iota(dtype: DType, shape: Vec<usize>) -> Tensor {
    let period = shape.last().copied().unwrap_or(1).max(1);
    Tensor::generate(dtype, shape, |i| Scalar::from_i64(dtype, (i % period) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_values_are_files_or_integers() {
        let none = Budget::of_data(None);
        let (name, t) = fixed("axes=1,-2", &none).unwrap();
        assert_eq!((name.as_str(), t.shape.clone(), t.to_i64s()), ("axes", vec![2], Some(vec![1, -2])));
        assert_eq!(fixed("k=3", &none).unwrap().1.shape, Vec::<usize>::new());
        assert_eq!(fixed("k=3,", &none).unwrap().1.shape, [1]);
        for bad in ["k", "k=x", "k=", "k=gone.npy"] {
            assert_eq!(fixed(bad, &none).unwrap_err().class().exit_code(), 1, "{bad}");
        }
    }
}
