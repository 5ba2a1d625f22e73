//! The files that `--record` writes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use wgfc::compiler::DeviceProfile;
use wgfc::compiler::device::Speeds;
use wgfc::compiler::pipeline::Fused;
use wgfc::compiler::schedule::cost::Expected;
use wgfc::compiler::timings::{Problem, Timings, alone};
use wgfc::compiler::tuning::{Values, complete};
use wgfc::runtime::Gpu;
use wgfc::tune::Measured;
use wgfc::{Error, Options, output};

/// A file of recorded times that grows.
pub struct Record {
    file: PathBuf,
    timings: Timings,
    /// The kernels that it has, with the values of their symbols.
    known: BTreeSet<(String, Values)>,
}

impl Record {
    /// A file with the times of a device, which is written when times are added.
    pub fn new(file: &Path, gpu: &Gpu, speeds: Speeds) -> Record {
        let profile = DeviceProfile { speeds, ..DeviceProfile::default() }.with_limits(gpu.profile());
        let (device, driver) = (gpu.summary().name.clone(), gpu.summary().driver.clone());
        let timings = Timings { device, driver, profile, problems: vec![] };
        Record { file: file.to_owned(), timings, known: BTreeSet::new() }
    }

    /// Adds kernels that it does not have, and writes the file.
    pub fn add(&mut self, problems: Vec<Problem>) -> Result<(), Error> {
        for p in problems {
            if self.known.insert((p.graph.to_string(), p.values.clone())) {
                self.timings.problems.push(p);
            }
        }
        let text = self.timings.to_text().map_err(Error::Internal)?;
        output::write_whole(&self.file, text.as_bytes())
    }
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
