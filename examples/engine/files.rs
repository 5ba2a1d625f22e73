//! Reads a plan, its kernels and the bytes of its weights from a folder or a single file.

use safetensors::SafeTensors;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

pub struct Files {
    /// The folder that file names are relative to.
    folder: PathBuf,
    /// The single file that holds everything, if there is one.
    bundle: Option<PathBuf>,
}

/// The locations of the weights, as `weights` in `plan.json` lists them.
#[derive(Default, Deserialize)]
pub struct Recipes {
    files: Vec<Source>,
    tensors: BTreeMap<String, Recipe>,
}

#[derive(Deserialize)]
struct Source {
    name: String,
}

#[derive(Deserialize)]
struct Recipe {
    #[serde(default = "one_row")]
    rows: usize,
    /// The type of the elements in the files, if it differs from the weight's.
    from: Option<String>,
    parts: Vec<Part>,
}

/// An engine that does not trust its files should compare the hashes too.
#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    column: usize,
    file: usize,
    offset: u64,
    bytes: u64,
}

fn one_row() -> usize {
    1
}

impl Files {
    pub fn at(path: &Path) -> Files {
        match path.is_dir() {
            true => Files { folder: path.to_owned(), bundle: None },
            false => {
                let folder = path.parent().map(Path::to_owned).unwrap_or_default();
                Files { folder, bundle: Some(path.to_owned()) }
            }
        }
    }

    /// The text of `plan.json` or of a kernel. A bundle has them in its header.
    pub fn text(&self, name: &str) -> Result<String, Box<dyn Error>> {
        let Some(bundle) = &self.bundle else { return Ok(std::fs::read_to_string(self.folder.join(name))?) };
        let bytes = std::fs::read(bundle)?;
        let (_, header) = SafeTensors::read_metadata(&bytes)?;
        let text = header.metadata().as_ref().and_then(|texts| texts.get(name));
        Ok(text.ok_or_else(|| format!("{} has no {name}", bundle.display()))?.clone())
    }

    /// The bytes of a weight.
    pub fn weight(&self, recipes: &Recipes, name: &str) -> Result<Vec<u8>, Box<dyn Error>> {
        let Some(recipe) = recipes.tensors.get(name) else {
            let beside = self.folder.join("weights.safetensors");
            let bytes = std::fs::read(self.bundle.as_ref().unwrap_or(&beside))?;
            return Ok(SafeTensors::deserialize(&bytes)?.tensor(name)?.data().to_vec());
        };
        let mut columns: Vec<Vec<u8>> = vec![];
        for part in &recipe.parts {
            let source = recipes.files.get(part.file).ok_or("there is no such file")?;
            let path = match (&self.bundle, source.name.as_str()) {
                (Some(bundle), "") => bundle.clone(),
                // A relative URL; this example reads no escaped characters and nothing from the web.
                (_, name) => self.folder.join(name),
            };
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(part.offset))?;
            if part.column == columns.len() {
                columns.push(vec![]);
            }
            let column = columns.get_mut(part.column).ok_or("a column is left out")?;
            if file.take(part.bytes).read_to_end(column)? as u64 != part.bytes {
                return Err(format!("weight `{name}` is cut short").into());
            }
        }
        if recipe.from.is_some() {
            return Err(format!("this example does not round weights, as `{name}` needs it").into());
        }
        // The rows are interleaved: for each row, one piece of every column.
        let row = |c: &Vec<u8>, i: usize| i * c.len() / recipe.rows..(i + 1) * c.len() / recipe.rows;
        Ok((0..recipe.rows).flat_map(|i| columns.iter().flat_map(move |c| c[row(c, i)].to_vec())).collect())
    }
}
