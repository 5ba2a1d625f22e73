//! Meters of energy: what the system tells of a GPU or of the processor.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a meter is watched for the power of a device at rest.
const REST: Duration = Duration::from_millis(500);

/// A counter of energy.
pub enum Meter {
    /// The counters of Linux's powercap interface for the processor's packages (RAPL), in microjoules.
    Packages(Vec<Package>),
    /// `nvidia-smi`, which tells the power that the GPU of this number draws.
    Nvidia(u32),
}

/// A package of the processor.
pub struct Package {
    counter: PathBuf,
    /// The value at which the counter begins again.
    end: u64,
}

/// The energy that was drawn between two readings.
pub struct Drawn {
    pub joules: f64,
    pub seconds: f64,
}

impl Meter {
    /// The meter of a device, or the reason why there is none.
    pub fn of(name: &str, software: bool) -> Result<Meter, String> {
        if software {
            return Meter::packages(Path::new("/sys/class/powercap"));
        }
        match name.to_lowercase().contains("nvidia") {
            true => Meter::nvidia(name),
            false => Err("this system tells nothing of the energy of this device".into()),
        }
    }

    /// The counters of all packages, which must be readable.
    fn packages(folder: &Path) -> Result<Meter, String> {
        let none = || {
            "the processor's energy counters cannot be read (/sys/class/powercap, which may need root)"
                .to_owned()
        };
        let mut packages = vec![];
        for entry in std::fs::read_dir(folder).map_err(|_| none())?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // intel-rapl:0 is a package, intel-rapl:0:1 a part of it.
            if name.starts_with("intel-rapl:") && name.matches(':').count() == 1 {
                let counter = entry.path().join("energy_uj");
                let end = number(&entry.path().join("max_energy_range_uj"));
                if let (Some(_), Some(end)) = (number(&counter), end) {
                    packages.push(Package { counter, end });
                }
            }
        }
        if packages.is_empty() { Err(none()) } else { Ok(Meter::Packages(packages)) }
    }

    /// The first GPU of this name.
    fn nvidia(name: &str) -> Result<Meter, String> {
        let listed = smi(&["--query-gpu=index,name,power.draw"])?;
        let found = listed.lines().find_map(|line| {
            let mut parts = line.split(',').map(str::trim);
            let (index, gpu, power) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
            (gpu == name && power.parse::<f64>().is_ok()).then_some(index)
        });
        found.map(Meter::Nvidia).ok_or_else(|| format!("nvidia-smi tells no power of {name}"))
    }

    /// Runs something and says what was drawn meanwhile. `nvidia-smi` samples the power beside it.
    ///
    /// # Errors
    /// The meter cannot be read any more.
    pub fn during<T>(&self, run: impl FnOnce() -> T) -> (T, Result<Drawn, String>) {
        match self {
            Meter::Packages(packages) => {
                let read = || packages.iter().map(|p| number(&p.counter)).collect::<Option<Vec<u64>>>();
                let (before, started) = (read(), Instant::now());
                let done = run();
                let (seconds, after) = (started.elapsed().as_secs_f64(), read());
                let drawn = before.zip(after).map(|(before, after)| {
                    let each =
                        packages.iter().zip(before.iter().zip(&after)).map(|(p, (b, a))| match a >= b {
                            true => a - b,
                            false => a + p.end.saturating_sub(*b),
                        });
                    Drawn { joules: each.sum::<u64>() as f64 * 1e-6, seconds }
                });
                (done, drawn.ok_or_else(|| "the energy counters could not be read again".into()))
            }
            Meter::Nvidia(index) => {
                let watcher = Command::new("nvidia-smi")
                    .args([
                        "--query-gpu=power.draw.instant",
                        "--format=csv,noheader,nounits",
                        "--loop-ms=50",
                        "-i",
                    ])
                    .arg(index.to_string())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .stdin(Stdio::null())
                    .spawn();
                let started = Instant::now();
                let done = run();
                let seconds = started.elapsed().as_secs_f64();
                let drawn = watcher.map_err(|e| format!("nvidia-smi cannot be started: {e}")).and_then(
                    |mut child| {
                        let _ = child.kill();
                        let output = child
                            .wait_with_output()
                            .map_err(|e| format!("nvidia-smi cannot be read: {e}"))?;
                        let text = String::from_utf8_lossy(&output.stdout);
                        let watts: Vec<f64> = text.lines().filter_map(|l| l.trim().parse().ok()).collect();
                        match watts.len() {
                            0 => Err("nvidia-smi told no power while it ran".to_owned()),
                            n => {
                                Ok(Drawn { joules: watts.iter().sum::<f64>() / n as f64 * seconds, seconds })
                            }
                        }
                    },
                );
                (done, drawn)
            }
        }
    }

    /// The power in watts of a device that has nothing to do.
    ///
    /// # Errors
    /// The meter cannot be read.
    pub fn at_rest(&self) -> Result<f64, String> {
        let ((), drawn) = self.during(|| std::thread::sleep(REST));
        drawn.map(|d| d.joules / d.seconds)
    }
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn smi(query: &[&str]) -> Result<String, String> {
    let made = Command::new("nvidia-smi")
        .args(query)
        .arg("--format=csv,noheader,nounits")
        .stdin(Stdio::null())
        .output();
    match made {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        _ => Err("nvidia-smi, which tells the GPU's power, cannot be run".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_packages_are_read_and_begin_again() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Meter::packages(dir.path()).is_err());
        for (name, start) in [("intel-rapl:0", "999000"), ("intel-rapl:1", "5"), ("intel-rapl:0:0", "7")] {
            let package = dir.path().join(name);
            std::fs::create_dir(&package).unwrap();
            std::fs::write(package.join("energy_uj"), start).unwrap();
            std::fs::write(package.join("max_energy_range_uj"), "1000000\n").unwrap();
        }
        let meter = Meter::packages(dir.path()).unwrap();
        let add = || {
            std::fs::write(dir.path().join("intel-rapl:0/energy_uj"), "1000").unwrap();
            std::fs::write(dir.path().join("intel-rapl:1/energy_uj"), "500005\n").unwrap();
        };
        let ((), drawn) = meter.during(add);
        assert!((drawn.unwrap().joules - 0.502).abs() < 1e-9);
        std::fs::remove_file(dir.path().join("intel-rapl:1/energy_uj")).unwrap();
        assert!(meter.at_rest().is_err());
        assert!(Meter::of("Apple M2", false).is_err());
    }
}
