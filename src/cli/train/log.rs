//! A log of the losses of all steps, which is written as they arrive.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use wgfc::train::Step;
use wgfc::{Error, output};

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A heading `step,loss`, and one line for each step.
    Csv,
    /// One JSON object in each line.
    Jsonl,
}

/// The losses so far.
pub struct Log {
    losses: Vec<(u64, f64)>,
    to: Option<(PathBuf, Kind, BufWriter<File>)>,
}

const HEAD: &str = "step,loss\n";

impl Log {
    /// The format that the file's extension selects.
    pub fn kind(path: &Path) -> Result<Kind, Error> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => Ok(Kind::Csv),
            Some("jsonl") => Ok(Kind::Jsonl),
            _ => Err(Error::usage(
                format!("{}: logs of this kind are not written", path.display()),
                "give FILE.csv or FILE.jsonl",
            )),
        }
    }

    /// Starts a file or, if `done` steps precede, continues an existing one after these steps.
    pub fn open(to: Option<(&Path, Kind)>, done: u64) -> Result<Log, Error> {
        let Some((path, kind)) = to else { return Ok(Log { losses: vec![], to: None }) };
        let before = if done > 0 && path.exists() { read(path, kind)? } else { vec![] };
        let losses: Vec<(u64, f64)> = before.into_iter().filter(|(s, _)| *s <= done).collect();
        let mut text = if kind == Kind::Csv { HEAD.to_owned() } else { String::new() };
        losses.iter().for_each(|(s, l)| text += &line(kind, *s, *l));
        output::write_whole(path, text.as_bytes())?;
        let file = File::options().append(true).open(path).map_err(|e| unwritable(path, &e))?;
        Ok(Log { losses, to: Some((path.to_owned(), kind, BufWriter::new(file))) })
    }

    /// Adds a step.
    pub fn add(&mut self, step: Step) -> Result<(), Error> {
        self.losses.push((step.number, step.loss));
        let Some((path, kind, file)) = &mut self.to else { return Ok(()) };
        let text = line(*kind, step.number, step.loss);
        file.write_all(text.as_bytes()).map_err(|e| unwritable(path, &e))
    }

    /// Writes buffered lines to the file.
    pub fn flush(&mut self) -> Result<(), Error> {
        let Some((path, _, file)) = &mut self.to else { return Ok(()) };
        file.flush().map_err(|e| unwritable(path, &e))
    }

    /// All losses, including those that the file contained.
    pub fn losses(&self) -> &[(u64, f64)] {
        &self.losses
    }
}

fn unwritable(path: &Path, e: &std::io::Error) -> Error {
    Error::file_help(
        path,
        format!("cannot be written: {e}"),
        "free some space there, or choose another place",
    )
}

fn line(kind: Kind, step: u64, loss: f64) -> String {
    // A loss that f32 represents exactly is written with the digits of an f32.
    let short = loss as f32;
    let text = if f64::from(short) == loss { short.to_string() } else { loss.to_string() };
    match (kind, loss.is_finite()) {
        (Kind::Csv, _) => format!("{step},{text}\n"),
        (Kind::Jsonl, true) => format!("{{\"step\":{step},\"loss\":{text}}}\n"),
        (Kind::Jsonl, false) => format!("{{\"step\":{step},\"loss\":null}}\n"),
    }
}

fn read(path: &Path, kind: Kind) -> Result<Vec<(u64, f64)>, Error> {
    #[derive(serde::Deserialize)]
    struct Line {
        step: u64,
        loss: Option<f64>,
    }
    let bytes = wgfc::files::read(path).map_err(|m| {
        Error::file_help(path, m, "name another file with --log, or leave --resume out to begin one")
    })?;
    let text = String::from_utf8_lossy(&bytes);
    // If a process was killed, the last line may be incomplete. Its step is later than the checkpoint, so the line is
    // dropped.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parsed =
        whole.lines().enumerate().filter(|(i, l)| !(*i == 0 && kind == Kind::Csv && *l == HEAD.trim_end()));
    let parsed = parsed.map(|(i, l)| {
        let found = match kind {
            Kind::Csv => l.split_once(',').and_then(|(s, l)| Some((s.parse().ok()?, l.parse().ok()?))),
            Kind::Jsonl => serde_json::from_str::<Line>(l).ok().map(|l| (l.step, l.loss.unwrap_or(f64::NAN))),
        };
        found.ok_or_else(|| {
            let message = format!("line {} is not a step and its loss", i + 1);
            Error::file_help(path, message, "give the log of the training that is resumed, or another file")
        })
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resumed_logs_go_on_behind_the_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        for (name, kind) in [("l.csv", Kind::Csv), ("l.jsonl", Kind::Jsonl)] {
            let path = dir.path().join(name);
            assert_eq!(Log::kind(&path).unwrap(), kind);
            let mut log = Log::open(Some((&path, kind)), 0).unwrap();
            for number in 1..=5 {
                log.add(Step { number, loss: 1.0 / f64::from(3 - number as i32).abs() }).unwrap();
            }
            log.flush().unwrap();
            std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"6,0.").unwrap();
            let log = Log::open(Some((&path, kind)), 4).unwrap();
            let steps: Vec<u64> = log.losses().iter().map(|l| l.0).collect();
            assert_eq!((steps, log.losses()[1].1), (vec![1, 2, 3, 4], 1.0));
            std::fs::write(&path, "step,loss\nnothing\n").unwrap();
            assert!(Log::open(Some((&path, kind)), 4).is_err());
            assert_eq!(Log::open(Some((&path, kind)), 0).unwrap().losses(), []);
        }
        assert!(Log::kind("l.txt".as_ref()).is_err());
    }
}
