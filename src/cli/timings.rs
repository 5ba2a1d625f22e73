//! The files that `--record` writes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use wgfc::compiler::DeviceProfile;
use wgfc::compiler::device::Speeds;
use wgfc::compiler::pipeline::Fused;
use wgfc::compiler::schedule::cost::Expected;
use wgfc::compiler::timings::{Problem, Timings, alone};
use wgfc::compiler::tuning::{Values, complete};
use wgfc::files::map_file;
use wgfc::runtime::Gpu;
use wgfc::tune::Measured;
use wgfc::{Error, Options, output};

/// A file of recorded times that grows.
pub struct Record {
    file: PathBuf,
    timings: Timings,
    /// The places of its kernels, by their text and the values of their symbols.
    known: BTreeMap<(String, Values), usize>,
}

impl Record {
    /// A file for the times of a device, to which those of a file that exists belong. It is written when times are added.
    pub fn open(file: &Path, gpu: &Gpu, speeds: Speeds) -> Result<Record, Error> {
        let profile = DeviceProfile { speeds, ..DeviceProfile::default() }.with_limits(gpu.profile());
        let (device, driver) = (gpu.summary().name.clone(), gpu.summary().driver.clone());
        let own = Timings { device, driver, profile, problems: vec![] };
        let mut problems = vec![];
        if file.exists() {
            let wrong = |why: String| Error::file_help(file, why, "give another file for --record");
            let old = read(file)?.map_err(wrong)?;
            // Speeds may change in the last digit when they are read.
            let text = own.to_text().map_err(Error::Internal)?;
            let same = Timings::from_text(&text).map_err(Error::Internal)?;
            if (&old.device, &old.driver, &old.profile) != (&same.device, &same.driver, &same.profile) {
                let why = format!("has the times of another device, driver or profile ({})", old.device);
                return Err(wrong(why));
            }
            problems = old.problems;
        }
        let mut record = Record { file: file.to_owned(), timings: own, known: BTreeMap::new() };
        record.insert(problems);
        Ok(record)
    }

    fn insert(&mut self, problems: Vec<Problem>) {
        let all = &mut self.timings.problems;
        for p in problems {
            match self.known.entry((p.graph.to_string(), p.values.clone())) {
                Entry::Occupied(place) => all[*place.get()] = p,
                Entry::Vacant(place) => {
                    place.insert(all.len());
                    all.push(p);
                }
            }
        }
    }

    /// Adds the times of kernels, in place of those that it has of the same kernels, and writes the file.
    pub fn add(&mut self, problems: Vec<Problem>) -> Result<(), Error> {
        self.insert(problems);
        let text = self.timings.to_text().map_err(Error::Internal)?;
        output::write_whole(&self.file, text.as_bytes())
    }
}

/// The recorded times of a file; the inner error says why they cannot be used.
pub fn read(file: &Path) -> Result<Result<Timings, String>, Error> {
    let bytes = map_file(file)?;
    let Ok(text) = std::str::from_utf8((*bytes).as_ref()) else {
        return Ok(Err("has no recorded times: it is not text".into()));
    };
    Ok(Timings::from_text(text))
}

/// The measured kernels of a model or a problem with the times of all their schedules. `at` are the values of symbols that
/// the command line gives; without a name, a kernel has that of a node.
pub fn recorded(
    fused: &Fused,
    options: &Options,
    at: &Values,
    measured: &[Measured],
    name: Option<&str>,
) -> Result<Vec<Problem>, Error> {
    let values = complete(fused, at, &options.expect)?;
    let problem = |m: &Measured| {
        let graph = alone(&fused.kernels, fused.kernels.kernels.get(m.tunable.kernel)?);
        let mut used: BTreeSet<_> = graph.kernels.iter().flat_map(|k| k.symbols()).collect();
        used.extend(graph.tensors.iter().flat_map(|t| &t.ty.shape).flat_map(|d| d.symbols()));
        let only = |all: &Values| -> Values {
            all.iter().filter(|(s, _)| used.contains(s.as_str())).map(|(s, v)| (s.clone(), *v)).collect()
        };
        let name = match name {
            None => m.node.clone(),
            Some(name) if measured.len() > 1 => format!("{name}: {}", m.node),
            Some(name) => name.to_owned(),
        };
        let (values, expect) = (only(&values), Expected(only(&options.expect.0)));
        Some(Problem { name, graph, values, expect, times: m.times() })
    };
    Ok(measured.iter().filter_map(problem).collect())
}
