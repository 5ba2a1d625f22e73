//! Checkpoints: the states of a training in a file, with its progress.

use super::{Order, Trainer, counted};
use crate::model::device_error;
use crate::tensors::{self, Read, TrueTypes, Unread};
use crate::{Error, Problem, Tensor, output};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use wgfc_compiler::budget::Budget;
use wgfc_compiler::json_in_words;
use wgfc_ir::Program;
use wgfc_ir::TensorType;
use wgfc_ir::program::State;

/// The most steps or rows that a checkpoint may count, so that counting on from there cannot overflow.
const MOST_COUNTED: u64 = 1 << 53;

/// wgfc's metadata in a checkpoint.
#[derive(Serialize, Deserialize)]
struct Note<T> {
    /// Steps done.
    step: u64,
    /// The number of rows that they took.
    samples: u64,
    /// The seed by which rows are shuffled; `None` if they are not.
    seed: Option<u64>,
    /// The number of rows of the data.
    rows: usize,
    /// The true types of tensors whose type safetensors does not have.
    #[serde(default = "Option::default")]
    types: Option<T>,
}

fn damaged(path: &Path, problems: Vec<String>) -> Error {
    let help = "give a file of safetensors that is complete".to_owned();
    Error::File { path: path.to_owned(), problems, help: Some(help) }
}

fn read(path: &Path, budget: &Budget) -> Result<Read, Error> {
    let changed = std::cell::Cell::new(false);
    let types = |text: &str| {
        budget.take_json(text.as_bytes()).map_err(|d| d.message)?;
        let note = serde_json::from_str::<Note<TrueTypes>>(text);
        let plain = |_| serde_json::from_str::<TrueTypes>(text).map_err(|e| json_in_words(&e));
        let types = note.map(|n| n.types.unwrap_or_default()).or_else(plain);
        changed.set(types.is_err());
        types
    };
    tensors::read(path, budget, &types).map_err(|e| match e {
        Unread::File(e) => e,
        Unread::Damaged(problems) if changed.get() => {
            let help = "it was changed after it was written: give another checkpoint, or its tensors in a file without these metadata: --init";
            Error::File { path: path.to_owned(), problems, help: Some(help.to_owned()) }
        }
        Unread::Damaged(problems) => damaged(path, problems),
    })
}

/// Reads tensors by name from a safetensors file, which may be a checkpoint or come from another program. They are mapped
/// into memory, see [`map_file`](crate::files::map_file).
///
/// ```no_run
/// # fn main() -> Result<(), wgfc::Error> {
/// for (name, tensor) in wgfc::train::read_tensors("trained.safetensors".as_ref())? {
///     println!("{name}: {}{:?}", tensor.dtype, tensor.shape);
/// }
/// # Ok(()) }
/// ```
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, Tensor>, Error> {
    read_tensors_within(path, &Budget::of_data(None))
}

/// [`read_tensors`] within a budget, to which the size of the file is added.
/// See the example of [`npy::read_within`](crate::npy::read_within).
pub fn read_tensors_within(path: &Path, budget: &Budget) -> Result<BTreeMap<String, Tensor>, Error> {
    Ok(read(path, budget)?.tensors)
}

/// The faults of tensors that are not valid states of a program; with `all`, also the states without a tensor.
fn misfits(program: &Program, tensors: &BTreeMap<String, Tensor>, all: bool) -> Vec<String> {
    let ty = |s: &State| TensorType::new(s.dtype, s.shape.clone());
    let (mut problems, mut missing) = (vec![], vec![]);
    for s in &program.states {
        let Some(t) = tensors.get(&s.name) else {
            missing.push(s.name.as_str());
            continue;
        };
        let grows = s.growth.as_ref().map(|g| g.axis);
        let fits = t.shape.len() == s.shape.len()
            && t.shape.iter().zip(&s.shape).enumerate().all(|(axis, (n, d))| {
                Some(axis) == grows || d.as_const().is_none_or(|c| usize::try_from(c) == Ok(*n))
            });
        if !fits || t.dtype != s.dtype {
            problems.push(format!("`{}` is {}{:?}, and the model's {}", s.name, t.dtype, t.shape, ty(s)));
        }
    }
    let known = |n: &String| program.states.iter().any(|s| s.name == *n);
    let unknown: Vec<&str> = tensors.keys().filter(|n| !known(n)).map(String::as_str).collect();
    if all && !missing.is_empty() {
        problems.push(format!("it has no {}", some_of("state", &missing)));
    }
    if !unknown.is_empty() {
        problems.push(format!("the model has no {}", some_of("state", &unknown)));
    }
    problems
}

/// The kind and the names for a message, which lists the first ones of many.
pub(super) fn some_of(kind: &str, names: &[&str]) -> String {
    let shown = |names: &[&str]| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    match names {
        [one] => format!("{kind} `{one}`"),
        [a @ .., _, _] if names.len() > 6 => {
            format!("{kind}s {} and {} more", shown(&a[..4]), names.len() - 4)
        }
        _ => format!("{kind}s {}", shown(names)),
    }
}

impl Trainer {
    /// Writes all states by name as safetensors, with the training's progress in the file's metadata. The file either has
    /// the new content or is unchanged, even if the machine stops.
    ///
    /// # Errors
    /// A file that cannot be written, or an error of the device.
    ///
    /// ```no_run
    /// # fn save(trainer: &mut wgfc::Trainer, again: &mut wgfc::Trainer) -> Result<(), wgfc::Error> {
    /// trainer.save("trained.safetensors".as_ref())?;
    /// // In another process, with a trainer of the same program and data:
    /// again.resume("trained.safetensors".as_ref())?;
    /// assert_eq!(again.step(), trainer.step());
    /// # Ok(()) }
    /// ```
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let states = self.session.states_blocking().map_err(device_error)?;
        let (step, samples, seed, rows) = (self.step, self.samples, self.seed(), self.roles.rows);
        let metadata = |types: &TrueTypes| {
            let types = Some(types).filter(|t| !t.is_empty());
            serde_json::to_string(&Note { step, samples, seed, rows, types })
        };
        output::write_through(path, |new| tensors::write((new, path), &states, &metadata))
    }

    /// Resumes training from a checkpoint: its states, its step count, its position in the data and the seed of the row
    /// order. The following steps are the ones that would have followed in the original training.
    ///
    /// # Errors
    /// A file that is no checkpoint, or one of another model or of other data. Nothing is changed in this case.
    pub fn resume(&mut self, path: &Path) -> Result<(), Error> {
        self.resume_within(path, &Budget::of_data(None))
    }

    /// [`Trainer::resume`] within a budget, to which the size of the file is added.
    ///
    /// # Errors
    /// As for [`Trainer::resume`].
    pub fn resume_within(&mut self, path: &Path, budget: &Budget) -> Result<(), Error> {
        let Read { tensors, metadata } = read(path, budget)?;
        let note = metadata.and_then(|text| serde_json::from_str::<Note<TrueTypes>>(&text).ok());
        let Some(note) = note else {
            let message = "is not a checkpoint: it does not state after which step it was written";
            return Err(Error::file_help(path, message, "begin with its tensors: --init"));
        };
        let mut problems = misfits(self.session.program(), &tensors, true);
        let of_another = !problems.is_empty();
        if note.rows != self.roles.rows {
            let (was, is) = (note.rows, self.roles.rows);
            problems.push(format!(
                "it was written when the data had {}, and there {} {is}",
                counted(was, "row"),
                if is == 1 { "is" } else { "are" }
            ));
        }
        let counted_up = note.step.max(note.samples);
        if counted_up > MOST_COUNTED {
            let message = format!(
                "says that {} went into {}, more than a training can reach",
                format_args!("{} rows", note.samples),
                format_args!("{} steps", note.step)
            );
            return Err(Error::file_help(
                path,
                message,
                "it was changed after it was written: begin with its states: --init",
            ));
        }
        if !problems.is_empty() {
            let help = match of_another {
                true => "it is of another model: give one that this model's training wrote",
                false => "give the same data, or begin anew with its states: --init instead of --resume",
            };
            return Err(Error::File { path: path.to_owned(), problems, help: Some(help.to_owned()) });
        }
        self.session.set_states_blocking(&tensors).map_err(device_error)?;
        self.order = Order::new(self.roles.rows, note.seed);
        (self.step, self.samples) = (note.step, note.samples);
        Ok(())
    }

    /// Sets states before the first step; the others keep the model's initial values.
    ///
    /// # Errors
    /// Every tensor that is no state of the model or does not have its type.
    ///
    /// ```no_run
    /// # fn begin(trainer: &mut wgfc::Trainer) -> Result<(), wgfc::Error> {
    /// use wgfc::train::read_tensors;
    /// // From parameters that another program has trained.
    /// trainer.begin_with(&read_tensors("pretrained.safetensors".as_ref())?)?;
    /// # Ok(()) }
    /// ```
    pub fn begin_with(&mut self, tensors: &BTreeMap<String, Tensor>) -> Result<(), Error> {
        let problems = misfits(self.session.program(), tensors, false);
        if !problems.is_empty() {
            let names: Vec<&str> = self.session.program().states.iter().map(|s| s.name.as_str()).collect();
            let help = format!("the model has the {}", some_of("state", &names));
            let problem = |m| Problem::with_help(m, help.clone());
            return Err(Error::Usage(problems.into_iter().map(problem).collect()));
        }
        self.session.update_states_blocking(tensors).map_err(device_error)
    }
}
