//! A model file ready to be compiled.

use crate::files::{ModelFolder, map_file};
use crate::random::RandomWeights;
use crate::{Error, Options, Program};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wgfc_compiler::Errors;
use wgfc_compiler::import::{ExternalData, Imported};
use wgfc_compiler::pipeline::{Amend, Fused, Observe};
use wgfc_ir::tensor::ByteOwner;

/// An ONNX file, memory-mapped, and where its external data comes from.
pub struct ModelFile {
    path: PathBuf,
    bytes: Arc<dyn ByteOwner>,
    folder: ModelFolder,
    random: Option<RandomWeights>,
}

impl ModelFile {
    /// Opens a model. Its external data is looked for in its folder when it is compiled.
    pub fn open(path: &Path) -> Result<ModelFile, Error> {
        let bytes = map_file(path)?;
        if (*bytes).as_ref().is_empty() {
            return Err(Error::file_help(path, "is empty", "copy or export the model again"));
        }
        let folder = ModelFolder::of(path)?;
        Ok(ModelFile { path: path.to_owned(), bytes, folder, random: None })
    }

    /// Makes up all external weights instead of reading them; see [`RandomWeights`].
    pub fn with_random_weights(mut self) -> Result<ModelFile, Error> {
        self.random = Some(RandomWeights::of(self.bytes()).map_err(|e| self.located(e))?);
        Ok(self)
    }

    /// The generated weights, if they were asked for.
    pub fn random_weights(&self) -> Option<&RandomWeights> {
        self.random.as_ref()
    }
    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }
    /// The path of the model's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// External files that were looked for and are not there.
    pub fn missing(&self) -> Vec<String> {
        self.folder.missing()
    }

    /// Compiles it. Where the environment variable `WGFC_DUMP` names a folder, what each stage made is
    /// written there as text.
    pub fn compile(&self, options: &Options) -> Result<Program, Error> {
        self.compile_amended(options, &mut |_| Ok(()))
    }

    /// [`ModelFile::compile`] of what `amend` makes of the graph once its states are introduced.
    pub fn compile_amended(&self, options: &Options, amend: Amend<'_>) -> Result<Program, Error> {
        self.dumped(|observe| {
            let (model, external) = (self.bytes(), self.external());
            wgfc_compiler::pipeline::compile_amended(model, external, options, amend, observe)
        })
    }

    /// [`ModelFile::compile_amended`] up to the kernels, which are not written yet.
    pub fn fuse_amended(&self, options: &Options, amend: Amend<'_>) -> Result<Fused, Error> {
        self.dumped(|observe| {
            let (model, external) = (self.bytes(), self.external());
            wgfc_compiler::pipeline::fuse_amended(model, external, options, amend, observe)
        })
    }

    fn dumped<T>(&self, stages: impl FnOnce(Observe<'_>) -> Result<T, Errors>) -> Result<T, Error> {
        let dump = std::env::var_os("WGFC_DUMP").filter(|d| !d.is_empty()).map(PathBuf::from);
        let mut failed = None;
        let made = stages(&mut |stage, text| {
            let Some(dir) = &dump else { return };
            let path = dir.join(format!("{stage}.txt"));
            if let Err(e) = crate::output::write_whole(&path, text().as_bytes()) {
                failed.get_or_insert(e);
            }
        });
        let made = made.map_err(|e| self.located(e.into()))?;
        match failed {
            Some(e) => Err(e),
            None => Ok(made),
        }
    }

    /// Imports it only: the graph in core operators, for the reference evaluator.
    pub fn import(&self, options: &Options) -> Result<Imported, Error> {
        wgfc_compiler::import::import(self.bytes(), self.external(), options)
            .map_err(|e| self.located(e.into()))
    }

    fn external(&self) -> &dyn ExternalData {
        match &self.random {
            Some(r) => r,
            None => &self.folder,
        }
    }

    fn located(&self, e: Error) -> Error {
        match e {
            Error::Compile { errors, .. } => Error::Compile { path: Some(self.path.clone()), errors },
            e => e,
        }
    }
}
