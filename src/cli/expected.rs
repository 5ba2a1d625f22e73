//! Saved tensors of another program, with which a model's tensors are compared.

use super::compare::Looked;
use super::terminal::Terminal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wgfc::compiler::budget::Budget;
use wgfc::compiler::import::{Format, close_names, decode};
use wgfc::{Error, ModelFile, Options, Tensor, npy};

/// The saved tensors that a model is compared with.
pub struct Expected {
    /// Outputs and intermediate tensors, by the model's names.
    pub tensors: BTreeMap<String, Tensor>,
    /// The intermediate tensors, in the model's order.
    pub inside: Vec<Looked>,
    /// Files of inputs, in the form of `--input`.
    pub inputs: Vec<String>,
}

/// The names in a model: of inputs, of outputs, and of tensors with the nodes that compute them, in the model's order.
struct Names {
    inputs: Vec<String>,
    outputs: Vec<String>,
    made: Vec<(String, String)>,
}

impl Names {
    fn of(file: &ModelFile) -> Result<Names, Error> {
        if file.format() != Format::Onnx {
            let g = file.import(&Options { graph_only: true, ..Options::default() })?.graph;
            let names = |all: &[wgfc::ir::Border]| all.iter().map(|b| b.name.to_string()).collect();
            let mut made = vec![];
            for id in g.topo().unwrap_or_default() {
                let n = g.node(id);
                let node = n.origin.first().map(ToString::to_string).unwrap_or_default();
                made.extend(n.names.iter().flatten().map(|name| (name.to_string(), node.clone())));
            }
            return Ok(Names { inputs: names(&g.inputs), outputs: names(&g.outputs), made });
        }
        let model = decode(file.bytes())?;
        let g = model.graph.unwrap_or_default();
        let mut made = vec![];
        for n in &g.node {
            let node = match n.name.is_empty() {
                true => n.op_type.clone(),
                false => format!("{} ({})", n.name, n.op_type),
            };
            made.extend(n.output.iter().filter(|o| !o.is_empty()).map(|o| (o.clone(), node.clone())));
        }
        let initial = |name: &str| g.initializer.iter().any(|t| t.name == name);
        Ok(Names {
            inputs: g.input.into_iter().map(|i| i.name).filter(|n| !initial(n)).collect(),
            outputs: g.output.into_iter().map(|o| o.name).collect(),
            made,
        })
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        let made = self.made.iter().map(|m| m.0.as_str());
        self.inputs.iter().chain(&self.outputs).map(String::as_str).chain(made)
    }

    /// The name in the model that corresponds to the name of a file, in which other characters than letters and digits may
    /// be replaced.
    fn find(&self, name: &str) -> Option<&str> {
        let plain = |n: &str| {
            let n: String = n.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
            n.trim_matches('_').to_owned()
        };
        self.all().find(|n| *n == name).or_else(|| {
            let wanted = plain(name);
            let mut fit: Vec<&str> = self.all().filter(|n| plain(n) == wanted).collect();
            fit.dedup();
            // If several names differ only in such characters, none of them is chosen.
            if fit.iter().all(|n| *n == fit[0]) { fit.first().copied() } else { None }
        })
    }
}

impl Expected {
    /// Reads the tensors in these files and folders.
    pub fn read(
        file: &ModelFile,
        sources: &[String],
        memory_limit: Option<u64>,
        t: &Terminal,
    ) -> Result<Expected, Error> {
        let names = Names::of(file)?;
        let budget = Budget::of_data(memory_limit);
        let (mut tensors, mut inputs, mut unknown) = (BTreeMap::new(), vec![], vec![]);
        for (name, path) in files(sources)? {
            let Some(found) = names.find(&name) else {
                unknown.push(name);
                continue;
            };
            if names.inputs.iter().any(|i| i == found) {
                inputs.push(format!("{found}={}", path.display()));
                continue;
            }
            let value = match path.extension().is_some_and(|e| e == "pb") {
                true => wgfc::pb::read_within(&path, &budget)?,
                false => npy::read_within(&path, &budget)?,
            };
            tensors.insert(found.to_owned(), value);
        }
        if tensors.is_empty() {
            let first = unknown.first().map(String::as_str).unwrap_or_default();
            let close = close_names(first, names.all());
            let (message, help) = match (unknown.is_empty(), close.is_empty()) {
                (true, _) => (
                    "--expected has no tensor to compare with".to_owned(),
                    "save each as NAME.npy (numpy.save), NAME that of an output or of a tensor inside"
                        .to_owned(),
                ),
                (false, false) => (
                    format!("the model has no tensor \"{first}\", as a file of --expected is called"),
                    format!("close names: {}", close.join(", ")),
                ),
                (false, true) => (
                    format!("the model has no tensor \"{first}\", as a file of --expected is called"),
                    format!("its outputs are {}; give another name as NAME=FILE", names.outputs.join(", ")),
                ),
            };
            return Err(Error::usage(message, help));
        }
        if !unknown.is_empty() {
            t.note(&format!(
                "the model has no tensors of these names, which are left out: {}",
                super::some_of(&unknown)
            ));
        }
        let is_inside = |name: &str| tensors.contains_key(name) && !names.outputs.iter().any(|o| o == name);
        let inside = names.made.iter().filter(|(name, _)| is_inside(name)).map(|(name, node)| Looked {
            name: name.clone(),
            memory: tensors[name].dtype,
            nodes: vec![node.clone()],
        });
        let mut inside: Vec<Looked> = inside.collect();
        inside.dedup_by(|a, b| a.name == b.name);
        Ok(Expected { inside, tensors, inputs })
    }
}

/// The files of the sources, with the names that they stand for.
fn files(sources: &[String]) -> Result<Vec<(String, PathBuf)>, Error> {
    let mut all = vec![];
    for s in sources {
        let path = Path::new(s);
        match s.split_once('=') {
            Some((name, file)) if !path.exists() => all.push((name.to_owned(), file.into())),
            _ if path.is_dir() => folder(path, path, 0, &mut all)?,
            _ => {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                all.push((name, path.to_owned()));
            }
        }
    }
    Ok(all)
}

/// The deepest nesting of folders that is searched, as names with slashes become folders.
const DEEPEST: usize = 32;

fn folder(root: &Path, dir: &Path, depth: usize, all: &mut Vec<(String, PathBuf)>) -> Result<(), Error> {
    let failed = |e: std::io::Error| {
        Error::file_help(dir, format!("cannot be read: {e}"), "give a folder of .npy or .pb files")
    };
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir)
        .map_err(failed)?
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    entries.sort();
    for path in entries {
        let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && depth < DEEPEST {
            folder(root, &path, depth + 1, all)?;
        } else if matches!(extension.as_str(), "npy" | "pb") {
            let name = path.strip_prefix(root).unwrap_or(&path).with_extension("");
            all.push((name.to_string_lossy().replace('\\', "/"), path));
        }
    }
    Ok(())
}
