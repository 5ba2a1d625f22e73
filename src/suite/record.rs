//! The record of a run of the suite.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use wgfc_runtime::{AdapterSummary, Estimate};

/// The version of the format of records.
const VERSION: u32 = 1;
/// The factor between the medians of two passes from which a row is not stable.
const APART: f64 = 1.05;
/// The least reach of an interval to each side, as a share of the median: runs of one device have differed by as much.
const REACH: f64 = 0.01;

/// The measurements of one device.
///
/// ```
/// use wgfc::suite::{Better, Host, Reading, Record, Unit};
/// # let device = wgfc::suite::Device::default();
/// let mut record = Record::new(device, Host::this(), true);
/// record.add("dispatch", 0, 1.5, vec![Reading::new("dispatch/one pass", Unit::Seconds, Better::Less, vec![4e-6, 5e-6, 4e-6])]);
/// assert!(record.has("dispatch", 0) && !record.has("dispatch", 1));
/// assert_eq!(record.row("dispatch/one pass").unwrap().measured().unwrap().median, 4e-6);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The version of the format.
    pub version: u32,
    /// The version of wgfc that made it: `wgfc 0.1.0`.
    pub producer: String,
    /// When the first measurement began, in seconds since 1970 (UTC).
    pub began: u64,
    /// Whether this is the short suite.
    pub quick: bool,
    /// The device.
    pub device: Device,
    /// The machine that the device is in.
    pub host: Host,
    /// The passes of tasks that are done, in the order in which they ran.
    pub tasks: Vec<Task>,
    /// The measurements, in the order of the suite.
    pub rows: Vec<Row>,
}

/// A device, as its driver or browser describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// The adapter's name.
    pub name: String,
    /// `discrete`, `integrated`, `virtual`, `software` or `other`.
    pub kind: String,
    /// The driver and its version.
    pub driver: String,
    /// The interface below WebGPU, such as `vulkan`.
    pub backend: String,
    /// The implementation of WebGPU: `wgpu`, or a browser with its version.
    pub implementation: String,
    /// The features that kernels may use, by WebGPU's names.
    pub features: Vec<String>,
    /// Limits, by WebGPU's names.
    pub limits: BTreeMap<String, u64>,
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The operating system, as Rust names it.
    pub os: String,
    /// The architecture, as Rust names it.
    pub architecture: String,
    /// The processor; empty if it is not known.
    pub processor: String,
    /// The number of hardware threads.
    pub threads: u64,
}

/// A pass of a task that is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The task's name.
    pub name: String,
    /// The number of the pass, from 0 on.
    pub pass: u32,
    /// How long it took.
    pub seconds: f64,
}

/// A quantity.
///
/// ```
/// use wgfc::suite::{Better, Found, Row, Unit};
/// let found = Found::Missing { missing: "no meter was found".into() };
/// let row = Row { id: "energy/at rest".into(), unit: Unit::Watts, better: Better::Less, found };
/// assert_eq!((row.group(), row.measured()), ("energy", None));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name: a path that begins with its group, as in `dispatch/one pass/wall`.
    pub id: String,
    /// Its unit.
    pub unit: Unit,
    /// The values that are better.
    pub better: Better,
    /// The measurements, or the reason why there are none.
    #[serde(flatten)]
    pub found: Found,
}

/// The unit of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Bytes per second.
    #[serde(rename = "B/s")]
    BytesPerSecond,
    /// Floating-point operations per second.
    #[serde(rename = "FLOP/s")]
    FlopsPerSecond,
    /// Tokens, runs or steps per second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Joules.
    #[serde(rename = "J")]
    Joules,
    /// Watts.
    #[serde(rename = "W")]
    Watts,
    /// A number, such as one of dispatches.
    #[serde(rename = "1")]
    One,
}

/// The values of a quantity that are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Smaller ones.
    Less,
    /// Larger ones.
    More,
}

/// Measurements of a quantity, or the reason why there are none. See the example of [`Row`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Found {
    /// It was measured.
    Measured(Measured),
    /// It was not measured.
    Missing {
        /// The reason, for people.
        missing: String,
    },
}

/// The measurements of a quantity.
///
/// ```
/// use wgfc::suite::{Better, Device, Host, Reading, Record, Unit};
/// let mut record = Record::new(Device::default(), Host::this(), true);
/// for (pass, time) in [(0, 1.0), (1, 2.0)] {
///     let samples = vec![time, time, time];
///     record.add("task", pass, 3.0, vec![Reading::new("task/step", Unit::Seconds, Better::Less, samples)]);
/// }
/// let measured = record.row("task/step").unwrap().measured().unwrap();
/// assert!(measured.unstable && !measured.is_scarce());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Samples")]
pub struct Measured {
    /// The median of all samples.
    pub median: f64,
    /// The lower end of the interval: the lowest one of the passes' 95 % intervals ([`Estimate::of`]), and at least 1 % below the median.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
    /// The coefficient of variation of all samples ([`Estimate::variation`]).
    pub variation: f64,
    /// The number of samples that lie far outside of the quartiles ([`Estimate::outliers`]).
    pub outliers: u64,
    /// Whether the intervals of two passes are apart and their medians differ by more than 5 %: another run may give other values.
    pub unstable: bool,
    /// All samples, by the passes of the suite, in the order in which they were taken.
    pub passes: Vec<Vec<f64>>,
}

/// The part of measurements from which the rest follows. A file may leave out the rest, and what it says there is not believed.
#[derive(Deserialize)]
struct Samples {
    passes: Vec<Vec<f64>>,
}

impl TryFrom<Samples> for Measured {
    type Error = &'static str;
    fn try_from(s: Samples) -> Result<Measured, &'static str> {
        Measured::of(s.passes).ok_or("a row has no passes, or a pass has no samples")
    }
}

/// Measurements of a quantity in one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    id: String,
    unit: Unit,
    better: Better,
    samples: Result<Vec<f64>, String>,
}

impl Reading {
    /// Measurements. The name begins with that of a group and a slash.
    ///
    /// ```
    /// use wgfc::suite::{Better, Reading, Unit};
    /// let reading = Reading::new("transfers/up 1 MB", Unit::BytesPerSecond, Better::More, vec![9e9]);
    /// # let _ = reading;
    /// ```
    pub fn new(id: impl Into<String>, unit: Unit, better: Better, samples: Vec<f64>) -> Reading {
        let samples = match samples {
            s if s.is_empty() => Err("it gave no samples".to_owned()),
            // JSON has no such numbers.
            s if s.iter().any(|v| !v.is_finite()) => Err("a sample is infinite or not a number".to_owned()),
            s => Ok(s),
        };
        Reading { id: id.into(), unit, better, samples }
    }

    /// A quantity that could not be measured, and why.
    ///
    /// ```
    /// use wgfc::suite::{Better, Reading, Unit};
    /// let reading = Reading::missing("energy/decode", Unit::Joules, Better::Less, "no meter was found");
    /// # let _ = reading;
    /// ```
    pub fn missing(id: impl Into<String>, unit: Unit, better: Better, why: impl Into<String>) -> Reading {
        Reading { id: id.into(), unit, better, samples: Err(why.into()) }
    }
}

impl Device {
    /// The description of an adapter of wgpu.
    ///
    /// ```
    /// # let Some(gpu) = wgfc::runtime::testing::gpus().first() else { return };
    /// let device = wgfc::suite::Device::of(gpu.summary());
    /// assert_eq!(device.implementation, "wgpu");
    /// ```
    pub fn of(a: &AdapterSummary) -> Device {
        let l = &a.limits;
        let features =
            [("shader-f16", l.f16), ("subgroups", l.subgroup.is_some()), ("timestamp-query", l.timestamps)]
                .into_iter()
                .chain([("wgpu-cooperative-matrix", l.cooperative_matrix)]);
        Device {
            name: a.name.clone(),
            kind: a.kind.clone(),
            driver: a.driver.clone(),
            backend: a.backend.clone(),
            implementation: "wgpu".into(),
            features: features.filter(|f| f.1).map(|f| f.0.to_owned()).collect(),
            limits: [
                ("maxBufferSize", l.buffer_bytes),
                ("maxStorageBufferBindingSize", l.binding_bytes),
                ("maxStorageBuffersPerShaderStage", l.storage_buffers.into()),
                ("maxComputeWorkgroupStorageSize", l.workgroup_bytes.into()),
                ("maxComputeInvocationsPerWorkgroup", l.invocations.into()),
                ("maxComputeWorkgroupsPerDimension", l.workgroups.into()),
            ]
            .map(|(name, n)| (name.to_owned(), n))
            .into(),
        }
    }
}

impl Host {
    /// This machine.
    ///
    /// ```
    /// assert!(wgfc::suite::Host::this().threads > 0);
    /// ```
    pub fn this() -> Host {
        let linux = || {
            let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
            let line = text.lines().find(|l| l.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Host {
            os: std::env::consts::OS.into(),
            architecture: std::env::consts::ARCH.into(),
            processor: linux().unwrap_or_default(),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        }
    }
}

impl Measured {
    /// The statistics of samples, by passes of which none is empty.
    fn of(passes: Vec<Vec<f64>>) -> Option<Measured> {
        let each: Vec<Estimate> = passes.iter().map(|p| Estimate::of(p.clone())).collect::<Option<_>>()?;
        let all = Estimate::of(passes.concat())?;
        let apart = |a: &Estimate, b: &Estimate| {
            let (less, more) = if a.median < b.median { (a, b) } else { (b, a) };
            less.high < more.low && more.median > APART * less.median
        };
        let ends = |of: fn(&Estimate) -> f64| each.iter().map(of).collect::<Vec<_>>();
        Some(Measured {
            median: all.median,
            low: ends(|e| e.low).into_iter().fold(all.median * (1.0 - REACH), f64::min),
            high: ends(|e| e.high).into_iter().fold(all.median * (1.0 + REACH), f64::max),
            variation: all.variation(),
            outliers: all.outliers() as u64,
            unstable: each.iter().enumerate().any(|(i, a)| each[..i].iter().any(|b| apart(a, b))),
            passes,
        })
    }

    /// Whether there are fewer samples than an interval of 95 % needs, so that it says little.
    pub fn is_scarce(&self) -> bool {
        self.samples().count() < 6
    }

    /// All samples.
    pub fn samples(&self) -> impl Iterator<Item = f64> {
        self.passes.iter().flatten().copied()
    }
}

impl Row {
    /// Its group: the first part of its name.
    pub fn group(&self) -> &str {
        self.id.split('/').next().unwrap_or_default()
    }
    /// The measurements, if there are any.
    pub fn measured(&self) -> Option<&Measured> {
        match &self.found {
            Found::Measured(m) => Some(m),
            Found::Missing { .. } => None,
        }
    }
}

impl Record {
    /// An empty record, which begins now.
    pub fn new(device: Device, host: Host, quick: bool) -> Record {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let producer = concat!("wgfc ", env!("CARGO_PKG_VERSION")).to_owned();
        Record { version: VERSION, producer, began, quick, device, host, tasks: vec![], rows: vec![] }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The file cannot be read, is no record, or has another version of the format.
    ///
    /// ```no_run
    /// let record = wgfc::suite::Record::read("h100.json".as_ref())?;
    /// println!("{} has {} rows", record.device.name, record.rows.len());
    /// # Ok::<(), wgfc::Error>(())
    /// ```
    pub fn read(path: &Path) -> Result<Record, Error> {
        const HELP: &str = "give a file that `wgfc bench suite` wrote";
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let bytes = crate::files::read(path).map_err(|m| Error::file_help(path, m, HELP))?;
        let wrong =
            |e: serde_json::Error| Error::file_help(path, format!("is no record of the suite: {e}"), HELP);
        let Version { version } = serde_json::from_slice(&bytes).map_err(wrong)?;
        if version != VERSION {
            let message = format!("has version {version} of the format; this wgfc reads version {VERSION}");
            return Err(Error::file_help(
                path,
                message,
                "run the suite again, or use the wgfc that wrote the file",
            ));
        }
        serde_json::from_slice(&bytes).map_err(wrong)
    }

    /// Writes the record. A file that is there is replaced as a whole.
    ///
    /// # Errors
    /// The file cannot be written.
    ///
    /// ```no_run
    /// # fn save(record: wgfc::suite::Record) -> Result<(), wgfc::Error> {
    /// record.write("suite.json".as_ref())
    /// # }
    /// ```
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text =
            serde_json::to_string(self).map_err(|e| Error::Internal(format!("a record is no JSON: {e}")))?;
        crate::output::write_whole(path, format!("{text}\n").as_bytes())
    }

    /// Whether a pass of a task is done.
    pub fn has(&self, task: &str, pass: u32) -> bool {
        self.tasks.iter().any(|t| t.name == task && t.pass == pass)
    }

    /// The row of a name.
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|r| r.id == id)
    }

    /// Adds what a pass of a task gave. Samples join those of the passes before; a reason why there are none replaces nothing.
    pub fn add(&mut self, task: &str, pass: u32, seconds: f64, readings: Vec<Reading>) {
        self.tasks.push(Task { name: task.to_owned(), pass, seconds });
        for Reading { id, unit, better, samples } in readings {
            let at = self.rows.iter().position(|r| r.id == id);
            let before =
                at.and_then(|i| self.rows[i].measured()).map(|m| m.passes.clone()).unwrap_or_default();
            let found = match samples {
                Ok(samples) => Measured::of([before, vec![samples]].concat()).map(Found::Measured),
                Err(_) if !before.is_empty() => continue,
                Err(missing) => Some(Found::Missing { missing }),
            };
            let found = found.unwrap_or(Found::Missing { missing: "it gave no samples".into() });
            let row = Row { id, unit, better, found };
            match at {
                Some(i) => self.rows[i] = row,
                None => self.rows.push(row),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn record() -> Record {
        Record::new(Device::default(), Host::default(), true)
    }

    fn reading(id: &str, samples: &[f64]) -> Reading {
        Reading::new(id, Unit::Seconds, Better::Less, samples.to_vec())
    }

    #[test]
    fn passes_join_and_disagreement_is_said() {
        let mut r = record();
        r.add("t", 0, 1.0, vec![reading("t/a", &[1.0, 1.25, 1.5]), reading("t/b", &[1.0, 1.01, 1.02])]);
        r.add("t", 1, 1.0, vec![reading("t/a", &[1.25, 1.5, 1.75]), reading("t/b", &[2.0, 2.01, 2.02])]);
        let of = |id: &str| r.row(id).unwrap().measured().unwrap().clone();
        assert_eq!(
            (of("t/a").median, of("t/a").low, of("t/a").high, of("t/a").unstable),
            (1.375, 1.0, 1.75, false)
        );
        assert_eq!((of("t/b").low, of("t/b").high, of("t/b").unstable), (1.0, 2.02, true));
        assert_eq!(of("t/b").passes.len(), 2);
    }

    #[test]
    fn reasons_give_way_to_samples_and_not_the_reverse() {
        let mut r = record();
        let none = || Reading::missing("t/a", Unit::Seconds, Better::Less, "no meter");
        r.add("t", 0, 1.0, vec![none()]);
        assert_eq!(r.row("t/a").unwrap().found, Found::Missing { missing: "no meter".into() });
        r.add("t", 1, 1.0, vec![reading("t/a", &[1.0])]);
        r.add("t", 2, 1.0, vec![none(), reading("t/none", &[]), reading("t/wrong", &[1.0, f64::INFINITY])]);
        assert!(r.row("t/wrong").unwrap().measured().is_none());
        let one = r.row("t/a").unwrap().measured().unwrap();
        assert_eq!((one.low, one.high, one.is_scarce()), (0.99, 1.01, true));
        assert_eq!(r.row("t/a").unwrap().measured().unwrap().median, 1.0);
        assert_eq!(r.row("t/none").unwrap().found, Found::Missing { missing: "it gave no samples".into() });
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        let mut r = record();
        r.add(
            "t",
            0,
            1.0,
            // Numbers with as many digits as they may have.
            vec![
                reading("t/a", &[1.353_120_000_000_000_1e-6, 3.489_200_000_000_000_3e-7]),
                Reading::missing("t/b", Unit::Joules, Better::Less, "no"),
            ],
        );
        r.write(&path).unwrap();
        assert_eq!(Record::read(&path).unwrap(), r);
        let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let row = file["rows"][0].as_object_mut().unwrap();
        row.retain(|key, _| matches!(key.as_str(), "id" | "unit" | "better" | "passes"));
        row.insert("median".into(), Value::from(0.0));
        std::fs::write(&path, file.to_string()).unwrap();
        assert_eq!(Record::read(&path).unwrap(), r);
        for (text, says) in
            [("{}", "no record"), ("{\"version\":9}", "version 9"), ("{\"version\":1}", "no record")]
        {
            std::fs::write(&path, text).unwrap();
            assert!(Record::read(&path).unwrap_err().to_string().contains(says), "{text}");
        }
    }
}
