//! A model file that is ready to be compiled.

use crate::files::{ModelFolder, map_file};
use crate::random::RandomWeights;
use crate::{Error, Options, Program};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wgfc_compiler::decoding::joined;
use wgfc_compiler::import::{ExternalData, Format, Imported, NoExternalData, declared_inputs, fx, onnx};
use wgfc_compiler::passes::{After, State, Watch};
use wgfc_compiler::pipeline::{self, Amend, Fused, Observe};
use wgfc_compiler::{Diagnostic, Errors, Location};
use wgfc_ir::program::Stats;
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::{Dim, Graph};

/// A model's file, memory-mapped, and the source of its external data.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// use wgfc::{ModelFile, Options};
/// let file = ModelFile::open(&path)?;
/// let imported = file.import(&Options::default())?;
/// println!("{} nodes", imported.graph.len());
/// let program = file.compile(&Options::default())?;
/// assert_eq!(program.inputs[0].name, "x");
/// # Ok(()) }
/// ```
pub struct ModelFile {
    path: PathBuf,
    bytes: Arc<dyn ByteOwner>,
    folder: Option<ModelFolder>,
    random: Option<RandomWeights>,
    /// The model in front of it, such as the embedding of tokens of a decoder that takes embeddings.
    front: Option<Box<ModelFile>>,
}

impl ExternalData for ModelFile {
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String> {
        match (&self.random, &self.folder) {
            // In an archive, only missing files are generated at random.
            (Some(r), Some(folder)) if self.format() == Format::Archive => {
                r.open(location).or_else(|_| folder.open(location))
            }
            (Some(r), _) => r.open(location),
            (None, Some(folder)) => folder.open(location),
            (None, None) => NoExternalData.open(location),
        }
    }
    fn model(&self) -> Option<Arc<dyn ByteOwner>> {
        Some(self.bytes.clone())
    }
    fn made_up(&self, record: &str) -> Option<Arc<dyn ByteOwner>> {
        self.random.as_ref()?.open(record).ok()
    }
}

impl ModelFile {
    /// Opens a model. Its external data is read from its folder when it is compiled. Of a folder the model in it is opened:
    /// `model.onnx` or `onnx/model.onnx`, or the only `.onnx` or `.gguf` file, or `config.json` with weights in safetensors. The decoder of a
    /// vision-language model (`decoder_model_merged.onnx`, or one with the type of its weights behind that) has the model `embed_tokens`
    /// beside it joined in front, so that it takes token ids.
    ///
    /// # Errors
    /// A file that cannot be read or is empty; a folder with no model or several.
    pub fn open(path: &Path) -> Result<ModelFile, Error> {
        let path = &if path.is_dir() { crate::files::model_in(path)? } else { path.to_owned() };
        let bytes = map_file(path)?;
        if (*bytes).as_ref().is_empty() {
            return Err(Error::file_help(path, "is empty", "copy or export the model again"));
        }
        let folder = ModelFolder::of(path)?;
        let front = crate::files::part_beside(path, crate::files::EMBEDDING);
        let front = front.map(|path| ModelFile::open(&path).map(Box::new)).transpose()?;
        Ok(ModelFile { path: path.to_owned(), bytes, folder: Some(folder), random: None, front })
    }

    /// A model that is already in memory. It has no folder, so the bytes must contain all of its data.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// # let bytes = std::fs::read(path).unwrap();
    /// use std::sync::Arc;
    /// let file = wgfc::ModelFile::of_bytes(Arc::new(bytes));
    /// let program = file.compile(&wgfc::Options::default())?;
    /// assert_eq!(program.outputs[0].name, "probabilities");
    /// # Ok(()) }
    /// ```
    pub fn of_bytes(bytes: Arc<dyn ByteOwner>) -> ModelFile {
        ModelFile { path: PathBuf::new(), bytes, folder: None, random: None, front: None }
    }

    /// Generates all external weights of an ONNX model at random instead of reading them, or the weights that an archive of
    /// torch.export lacks; see [`RandomWeights`].
    ///
    /// ```no_run
    /// # fn main() -> Result<(), wgfc::Error> {
    /// // The model's external data was not downloaded.
    /// let file = wgfc::ModelFile::open("model.onnx".as_ref())?.with_random_weights()?;
    /// let program = file.compile(&wgfc::Options::default())?;
    /// # Ok(()) }
    /// ```
    pub fn with_random_weights(mut self) -> Result<ModelFile, Error> {
        self.random = Some(RandomWeights::of(self.bytes(), &self).map_err(|e| self.located(e))?);
        let front = self.front.take().map(|f| f.with_random_weights().map(Box::new));
        self.front = front.transpose()?;
        Ok(self)
    }

    /// The random weights, if they were requested.
    pub fn random_weights(&self) -> Option<&RandomWeights> {
        self.random.as_ref()
    }
    /// The format of the model.
    pub fn format(&self) -> Format {
        Format::of(self.bytes())
    }
    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }
    /// The path of the model's file; empty if it was opened from memory.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// External files that were looked up and do not exist; for an archive of torch.export, the storages that it lacks.
    pub fn missing(&self) -> Vec<String> {
        if self.format() == Format::Archive {
            let storages = fx::missing_storages(self.bytes(), self, None).unwrap_or_default();
            return storages.into_iter().map(|s| s.record).collect();
        }
        self.folder.as_ref().map(ModelFolder::missing).unwrap_or_default()
    }

    /// The external files of an ONNX model, with the number of tensors in each.
    ///
    /// # Errors
    /// The model cannot be decoded.
    pub fn locations(&self) -> Result<BTreeMap<String, usize>, Error> {
        match self.format() {
            Format::Archive | Format::Gguf | Format::Checkpoint => Ok(BTreeMap::new()),
            Format::Onnx => {
                onnx::external_locations(self.bytes(), self, None).map_err(|e| self.located(Error::from(e)))
            }
        }
    }

    /// The files that the model has been read from so far, mapped into memory.
    pub(crate) fn originals(&self) -> crate::artefact::Originals {
        let mut all = vec![];
        if self.path.is_file() {
            all.push((self.path.clone(), self.bytes.clone()));
        }
        all.extend(self.folder.iter().flat_map(ModelFolder::opened));
        all.extend(self.front.iter().flat_map(|f| f.originals().0));
        crate::artefact::Originals(all)
    }

    /// Compiles the model. If the environment variable `WGFC_DUMP` names a folder, the text of each stage's result is
    /// written there.
    pub fn compile(&self, options: &Options) -> Result<Program, Error> {
        self.compile_amended(options, &mut |_| Ok(()))
    }

    /// [`ModelFile::compile`] that passes the name (as in `1-import`) and the text of each stage's result to `observe`.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// let mut stages = vec![];
    /// let file = wgfc::ModelFile::open(&path)?;
    /// file.compile_observed(&wgfc::Options::default(), &mut |stage, _text| stages.push(stage.to_owned()))?;
    /// assert_eq!(stages[0], "1-import");
    /// # Ok(()) }
    /// ```
    pub fn compile_observed(&self, options: &Options, observe: Observe<'_>) -> Result<Program, Error> {
        self.dumped(|dump, watch| {
            let mut both = |stage: &str, text: &dyn Fn() -> String| {
                dump(stage, text);
                observe(stage, text);
            };
            let fused = self.fused(options, &mut |_| Ok(()), &mut both, watch)?;
            pipeline::assemble(fused, options, &mut both)
        })
    }

    /// [`ModelFile::compile`] in which `amend` may change the graph after its states have been introduced.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// use wgfc::ir::{Border, DType};
    /// let file = wgfc::ModelFile::open(&path)?;
    /// // The program returns the inputs, too.
    /// let program = file.compile_amended(&wgfc::Options::default(), &mut |graph| {
    ///     let inputs = graph.inputs.iter().filter(|i| graph.ty(i.value).dtype == DType::F32);
    ///     let extra: Vec<Border> =
    ///         inputs.map(|i| Border { name: format!("{}_again", i.name).into(), value: i.value }).collect();
    ///     graph.outputs.extend(extra);
    ///     Ok(())
    /// })?;
    /// assert_eq!(program.outputs[1].name, "x_again");
    /// # Ok(()) }
    /// ```
    pub fn compile_amended(&self, options: &Options, amend: Amend<'_>) -> Result<Program, Error> {
        self.dumped(|observe, watch| {
            let fused = self.fused(options, amend, observe, watch)?;
            pipeline::assemble(fused, options, observe)
        })
    }

    /// [`ModelFile::compile_amended`] without the last stages: kernels are fused, but not generated.
    pub fn fuse_amended(&self, options: &Options, amend: Amend<'_>) -> Result<Fused, Error> {
        self.dumped(|observe, watch| self.fused(options, amend, observe, watch))
    }

    fn fused(
        &self,
        options: &Options,
        amend: Amend<'_>,
        observe: Observe<'_>,
        watch: Watch<'_>,
    ) -> Result<Fused, Errors> {
        let (graph, stats) = pipeline::imported_by(&|| self.read(options), options, amend, observe)?;
        pipeline::fuse_watched(graph, stats, options, observe, watch)
    }

    /// The graph on which the compiler's passes begin, with its states, and figures about the import.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// let (graph, stats) = wgfc::ModelFile::open(&path)?.imported(&wgfc::Options::default())?;
    /// assert_eq!((graph.outputs.len(), stats.model_nodes), (1, 4));
    /// # Ok(()) }
    /// ```
    pub fn imported(&self, options: &Options) -> Result<(Graph, Stats), Error> {
        pipeline::imported_by(&|| self.read(options), options, &mut |_| Ok(()), &mut |_, _| {})
            .map_err(|e| self.located(e.into()))
    }

    /// Runs the compiler. If `WGFC_DUMP` names a folder, results of stages are written to it, and the graph after each pass that
    /// changes it to its folder `passes`.
    fn dumped<T>(
        &self,
        stages: impl FnOnce(Observe<'_>, Watch<'_>) -> Result<T, Errors>,
    ) -> Result<T, Error> {
        let dump = std::env::var_os("WGFC_DUMP").filter(|d| !d.is_empty()).map(PathBuf::from);
        let failed = RefCell::new(None);
        let write = |dir: &Path, name: &str, text: &str| {
            if let Err(e) = crate::output::write_whole(&dir.join(format!("{name}.txt")), text.as_bytes()) {
                failed.borrow_mut().get_or_insert(e);
            }
        };
        let (mut number, mut last) = (0, String::new());
        let mut watch = |after: After<'_>| {
            let Some(dir) = &dump else { return };
            number += 1;
            let text = match &after.state {
                State::Graph(graph) => wgfc_ir::text::print(graph),
                State::Kernels(kernels) => kernels.to_string(),
            };
            if text != last {
                let inside = if after.body.is_empty() { "" } else { "-in-a-body" };
                write(&dir.join("passes"), &format!("{number:03}-{}{inside}", after.pass.name), &text);
                last = text;
            }
        };
        let mut observe = |stage: &str, text: &dyn Fn() -> String| {
            if let Some(dir) = &dump {
                write(dir, stage, &text());
            }
        };
        let made = stages(&mut observe, &mut watch).map_err(|e| self.located(e.into()))?;
        match failed.into_inner() {
            Some(e) => Err(e),
            None => Ok(made),
        }
    }

    /// Imports the model into a graph of core operators, as the reference evaluator takes it.
    pub fn import(&self, options: &Options) -> Result<Imported, Error> {
        self.read(options).map_err(|e| self.located(e.into()))
    }

    /// The graph of the model, and of the one in front of it.
    fn read(&self, options: &Options) -> Result<Imported, Errors> {
        let mut imported = wgfc_compiler::import::import(self.bytes(), self, options)?;
        if let Some(front) = &self.front {
            front.join(&mut imported, options).map_err(|e| front.named(e))?;
        }
        Ok(imported)
    }

    /// Joins this model in front of one that has been imported, if that takes what this one makes.
    fn join(&self, imported: &mut Imported, options: &Options) -> Result<(), Errors> {
        let open = Options { dims: BTreeMap::new(), taps: vec![], ..options.clone() };
        let inputs = declared_inputs(self.bytes(), self, &open)?;
        let symbols: BTreeSet<_> = inputs.iter().flat_map(|(_, t)| &t.shape).flat_map(Dim::symbols).collect();
        let dims = options.dims.iter().filter(|(s, _)| symbols.contains(s.as_str()));
        let own = Options { dims: dims.map(|(s, n)| (s.clone(), *n)).collect(), ..open };
        let front = wgfc_compiler::import::import(self.bytes(), self, &own)?;
        if !joined::are_joinable(&front.graph, &imported.graph) {
            return Ok(());
        }
        joined::join(&front.graph, &mut imported.graph)?;
        imported.model_nodes += front.model_nodes;
        imported.bytes_unfused = &imported.bytes_unfused + &front.bytes_unfused;
        imported.warnings.extend(front.warnings);
        imported.operators.extend(front.operators);
        Ok(())
    }

    /// Errors that name this model, which is in front of another.
    fn named(&self, mut errors: Errors) -> Errors {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        errors.0.iter_mut().for_each(|d| d.message = format!("{name}: {}", d.message));
        errors
    }

    fn located(&self, e: Error) -> Error {
        match e {
            Error::Compile { errors, .. } if self.folder.is_some() => {
                Error::Compile { path: Some(self.path.clone()), errors: self.without_repeats(errors) }
            }
            e => e,
        }
    }

    /// Replaces the errors of tensors in the same missing file by one error.
    fn without_repeats(&self, mut errors: Errors) -> Errors {
        let Some(folder) = &self.folder else { return errors };
        let archive = self.format() == Format::Archive;
        // A link that leaves the folder, or a file without read permission, is not missing.
        let absent =
            |d: &Diagnostic| d.message.contains("has no record") || d.message.ends_with("no such file");
        let of = |d: &Diagnostic, name: &str| absent(d) && d.message.contains(&format!("`{name}`"));
        let mut found: Vec<(Diagnostic, Vec<String>)> = vec![];
        for name in self.missing() {
            let (own, others) = errors.0.into_iter().partition::<Vec<_>, _>(|d| of(d, &name));
            errors.0 = others;
            let Some(first) = own.into_iter().next() else { continue };
            match found.first_mut().filter(|_| archive) {
                Some((_, names)) => names.push(name),
                None => found.push((first, vec![name])),
            }
        }
        let count = |name: &String| self.locations().ok()?.get(name).copied();
        for (mut d, names) in found {
            let tensors = |n: usize| if n == 1 { "1 tensor".to_owned() } else { format!("{n} tensors") };
            d.message = match &names[..] {
                [name] if !archive => format!(
                    "external data is missing: `{name}`, of {}, is not in {}",
                    count(name).map_or_else(|| "some tensors".into(), tensors),
                    folder.path().display()
                ),
                [first, others @ ..] => {
                    let more = match others.len() {
                        0 => String::new(),
                        n => format!(" and {n} more"),
                    };
                    format!("the weights are missing: the archive has no record `{first}`{more}")
                }
                [] => continue,
            };
            d.location = Location::default();
            errors.0.push(d);
        }
        errors
    }

    /// The external files that an ONNX model names and that cannot be opened, with the number of tensors in each; for an
    /// archive, the storages that it lacks.
    ///
    /// # Errors
    /// The model cannot be decoded.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
    /// let file = wgfc::ModelFile::open(&path)?;
    /// assert!(file.missing_weights()?.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn missing_weights(&self) -> Result<BTreeMap<String, usize>, Error> {
        if self.format() == Format::Archive {
            return Ok(self.missing().into_iter().map(|name| (name, 1)).collect());
        }
        let all = self.locations()?.into_iter();
        let own = all.filter(|(name, _)| self.open(name).is_err());
        let front = self.front.as_ref().map(|f| f.missing_weights()).transpose()?;
        Ok(own.chain(front.into_iter().flatten()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_compile_as_their_file_does_and_stages_are_told() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
        let bytes = Arc::new(std::fs::read(&path).unwrap());
        let (of_file, of_bytes) = (ModelFile::open(&path).unwrap(), ModelFile::of_bytes(bytes));
        let mut stages = vec![];
        let program = of_bytes
            .compile_observed(&Options::default(), &mut |stage, _| stages.push(stage.to_owned()))
            .unwrap();
        assert_eq!(stages, ["1-import", "2-rewrite", "3-fuse", "4-schedule"]);
        let same = of_file.compile(&Options::default()).unwrap();
        assert_eq!((&program.dispatches, &program.weights), (&same.dispatches, &same.weights));
        let bad = Options { taps: vec!["nowhere".into()], ..Options::default() };
        for (file, name) in [(&of_file, "model.onnx"), (&of_bytes, "")] {
            let e = file.compile(&bad).unwrap_err();
            let place =
                e.findings()[0].path.as_ref().and_then(|p| p.file_name()).unwrap_or_default().to_owned();
            assert_eq!(place, name, "{e}");
        }
    }
}
