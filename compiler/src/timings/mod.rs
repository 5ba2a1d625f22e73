//! Recorded times of schedules, by which choices are judged without the device.
//!
//! [`Timings`] holds what tuning measured on one device: its profile, and for each kernel the schedules that were timed.
//! The kernel graph of each problem is kept as text, so that a later compiler can choose a schedule for it and look up its
//! time: see [`regret`].
//!
//! The text has a JSON object in each line. The first describes the device and names the fields of the schedules; each of
//! the others is a problem:
//!
//! ```json
//! {"version":1,"device":"GPU","driver":"580","profile":{…},"fields":{"row":["threads","lanes",…]}}
//! {"name":"softmax","kernel":"t0: f32[7, 13] input 0\n…","times":[["row 64 32 …",5120,3,2]]}
//! ```
//! A time consists of the schedule with the values of its fields, nanoseconds (the median of several times, on software
//! adapters the shortest), how many times were taken, and the difference of the longest and the shortest in percent.

pub mod regret;

use crate::device::DeviceProfile;
use crate::error::json_in_words;
use crate::kernel::{self, Kernel, KernelGraph, KernelTensor, TensorId, TensorKind};
use crate::schedule::Schedule;
use crate::schedule::cost::Expected;
use crate::tuning::Values;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The version of the text that is written, and the only one that is read.
pub const VERSION: u64 = 1;

/// The times of schedules on one device.
#[derive(Clone, Debug)]
pub struct Timings {
    /// The name of the device.
    pub device: String,
    /// Its driver and the driver's version.
    pub driver: String,
    /// Its limits and speeds.
    pub profile: DeviceProfile,
    /// The kernels whose schedules were timed.
    pub problems: Vec<Problem>,
}

/// A kernel and the times of its schedules.
#[derive(Clone, Debug)]
pub struct Problem {
    /// A name for people.
    pub name: String,
    /// A graph of this kernel only.
    pub graph: KernelGraph,
    /// The values of the symbols for which it was timed.
    pub values: Values,
    /// The values of the symbols that the compiler expected.
    pub expect: Expected,
    /// The times, the shortest first.
    pub times: Vec<Timed>,
}

/// The time of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// The schedule.
    pub schedule: Schedule,
    /// Nanoseconds: the median of several times, on software adapters the shortest.
    pub ns: f64,
    /// The number of times that were taken.
    pub rounds: u32,
    /// The difference of the longest and the shortest of these, divided by `ns`.
    pub spread: f64,
}

/// A graph of one kernel of another graph, without names.
///
/// Tensors that other kernels write become inputs. Their numbers are the order in which the kernel uses them.
pub fn alone(graph: &KernelGraph, kernel: &Kernel) -> KernelGraph {
    let mut used = kernel.tensors();
    let mut next = 0;
    while let Some(t) = used.get(next) {
        if let Some(TensorKind::Under(over)) = graph.tensors.get(*t).map(|t| &t.kind)
            && !used.contains(over)
        {
            used.push(*over);
        }
        next += 1;
    }
    let number = |t: TensorId| used.iter().position(|u| *u == t).unwrap_or(t);
    let (reads, writes) = (kernel.reads(), kernel.writes());
    let tensor = |(i, t): (usize, &TensorId)| {
        let tensor = graph.tensors.get(*t)?;
        let kind = match &tensor.kind {
            TensorKind::Under(over) => TensorKind::Under(number(*over)),
            TensorKind::Intermediate | TensorKind::Output(_) if reads.contains(t) && !writes.contains(t) => {
                TensorKind::Input(i)
            }
            kind => kind.clone(),
        };
        Some(KernelTensor { ty: tensor.ty.clone(), kind, name: None })
    };
    let tensors: Vec<KernelTensor> = used.iter().enumerate().filter_map(tensor).collect();
    let kernel = Kernel { nodes: vec![], ..kernel.renumbered(&number) };
    let mut symbols = kernel.symbols();
    symbols.extend(tensors.iter().flat_map(|t| &t.ty.shape).flat_map(|d| d.symbols()));
    let bounds = graph.bounds.iter().filter(|(s, _)| symbols.contains(*s));
    let bounds = bounds.map(|(s, d)| (s.clone(), d.clone())).collect();
    KernelGraph { tensors, kernels: vec![kernel], bounds, ..KernelGraph::default() }
}

impl Problem {
    /// Its kernel.
    pub fn kernel(&self) -> Option<&Kernel> {
        self.graph.kernels.first()
    }

    fn json(&self) -> Value {
        let time = |t: &Timed| {
            let (words, fields) = t.schedule.fields();
            let text = fields.iter().fold(words.to_owned(), |text, (_, value)| text + " " + value);
            json!([text, rounded(t.ns), t.rounds, (100.0 * t.spread).round() as u64])
        };
        let mut all = Map::new();
        all.insert("name".into(), self.name.as_str().into());
        if !self.values.is_empty() {
            all.insert("at".into(), json!(self.values));
        }
        if !self.expect.0.is_empty() {
            all.insert("expect".into(), json!(self.expect));
        }
        all.insert("kernel".into(), self.graph.to_string().into());
        all.insert("times".into(), self.times.iter().map(time).collect());
        all.into()
    }

    fn of_json(v: &Value, fields: &Fields) -> Result<Problem, String> {
        let text = v.get("kernel").and_then(Value::as_str).ok_or("`kernel` is missing")?;
        let graph = kernel::parse(text).map_err(|e| format!("the kernel cannot be read: {e}"))?;
        kernel::verify(&graph).map_err(|e| format!("the kernel is not valid: {}", e.join("; ")))?;
        if graph.kernels.len() != 1 {
            return Err(format!("`kernel` has {} kernels, not one", graph.kernels.len()));
        }
        let numbers = |name: &str| -> Result<BTreeMap<String, i64>, String> {
            let Some(given) = v.get(name) else { return Ok(BTreeMap::new()) };
            serde_json::from_value(given.clone()).map_err(|e| format!("`{name}`: {}", json_in_words(&e)))
        };
        let times = v.get("times").and_then(Value::as_array).ok_or("`times` is missing")?;
        let mut times = times.iter().map(|t| timed(t, fields)).collect::<Result<Vec<_>, _>>()?;
        if times.is_empty() {
            return Err("`times` is empty".into());
        }
        times.sort_by(|a, b| a.ns.total_cmp(&b.ns));
        let name = v.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Problem { name, graph, values: numbers("at")?, expect: Expected(numbers("expect")?), times })
    }
}

/// The names of the fields of schedules, by the words that say which schedule it is.
type Fields = BTreeMap<String, Vec<String>>;

/// Reads a time: `["map 256 4 1", 5120, 3, 2]`.
fn timed(v: &Value, fields: &Fields) -> Result<Timed, String> {
    let wrong = || format!("`{v}` is not a time: a schedule, nanoseconds, rounds and a spread in percent");
    let parts = v.as_array().filter(|a| a.len() == 4).ok_or_else(wrong)?;
    let text = parts[0].as_str().ok_or_else(wrong)?;
    let ns = parts[1].as_f64().filter(|ns| *ns > 0.0 && ns.is_finite()).ok_or_else(wrong)?;
    let rounds = parts[2].as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(wrong)?;
    let spread = parts[3].as_f64().ok_or_else(wrong)? / 100.0;
    let all: Vec<&str> = text.split(' ').collect();
    let is_value = |t: &&str| matches!(*t, "true" | "false") || t.starts_with(|c: char| c.is_ascii_digit());
    let (words, values) = all.split_at(all.iter().position(is_value).unwrap_or(all.len()));
    let words = words.join(" ");
    let names = fields.get(&words).ok_or_else(|| format!("the fields of `{words}` are missing"))?;
    if names.len() != values.len() {
        return Err(format!(
            "`{text}` has {} values, but `{words}` has {} fields",
            values.len(),
            names.len()
        ));
    }
    let long = names.iter().zip(values).fold(words, |text, (name, value)| format!("{text} {name}={value}"));
    let schedule = long.parse().map_err(|e| format!("`{long}` is not a schedule: {e}"))?;
    Ok(Timed { schedule, ns, rounds, spread })
}

/// A number with four significant digits: times are not more exact.
fn rounded(x: f64) -> Value {
    let unit = 10f64.powi((x.abs().max(1e-30).log10().floor() as i32 - 3).max(-3));
    let x = ((x / unit).round() * unit).max(0.001);
    if x.fract() == 0.0 { json!(x as u64) } else { json!((x * 1000.0).round() / 1000.0) }
}

impl Timings {
    /// The text form.
    ///
    /// # Errors
    /// None known.
    pub fn to_text(&self) -> Result<String, String> {
        let mut fields = Fields::new();
        for t in self.problems.iter().flat_map(|p| &p.times) {
            let (words, names) = t.schedule.fields();
            fields
                .entry(words.to_owned())
                .or_insert_with(|| names.into_iter().map(|f| f.0.to_owned()).collect());
        }
        let profile: Value =
            serde_json::from_str(&self.profile.to_json(None)?).map_err(|e| json_in_words(&e))?;
        // Sorted keys, also if another crate asks `serde_json` to keep the order of insertion.
        let sorted = |mut v: Value| {
            v.sort_all_objects();
            v.to_string()
        };
        let mut out = sorted(json!({
            "version": VERSION,
            "device": self.device,
            "driver": self.driver,
            "profile": profile,
            "fields": fields,
        }));
        for p in &self.problems {
            out += &format!("\n{}", sorted(p.json()));
        }
        Ok(out + "\n")
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// A description of the fault, to be printed after the file's name.
    pub fn from_text(text: &str) -> Result<Timings, String> {
        let mut lines = text.lines().enumerate().map(|(i, l)| {
            let v: Result<Value, String> = serde_json::from_str(l).map_err(|e| json_in_words(&e));
            (i + 1, v)
        });
        let (_, head) = lines.next().ok_or("has no recorded times: it is empty")?;
        let head = head.map_err(|e| format!("has no recorded times: {e}"))?;
        match head.get("version").map(|v| (v, v.as_u64())) {
            Some((_, Some(VERSION))) => {}
            Some((v, _)) => {
                return Err(format!("has times of version {v}; this wgfc reads version {VERSION}"));
            }
            None => {
                return Err(format!("has no recorded times: `version` is missing, it must be {VERSION}"));
            }
        }
        let string = |name: &str| head.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let profile = head.get("profile").ok_or("has no device: `profile` is missing")?;
        let profile = DeviceProfile::from_json(profile.to_string().as_bytes())
            .map_err(|e| format!("has a profile that {e}"))?;
        let fields: Fields = serde_json::from_value(head.get("fields").cloned().unwrap_or_default())
            .map_err(|e| format!("has no fields of schedules: {}", json_in_words(&e)))?;
        let problem = |(line, v): (usize, Result<Value, String>)| {
            let p = v.and_then(|v| Problem::of_json(&v, &fields));
            p.map_err(|e| format!("has an error in line {line}: {e}"))
        };
        let problems = lines.map(problem).collect::<Result<Vec<_>, _>>()?;
        Ok(Timings { device: string("device"), driver: string("driver"), profile, problems })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::table;

    const GRAPH: &str = "\
t0: f32[n, 13] input 4 as \"unused\"
t1: f32[n, 7] intermediate as \"x\"
t2: f32[7] const [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
t3: f32[n] output 0 as \"y\"

kernel 0 row [n, 7] @ \"product\"
  e0: f32 = t1[7*%0 + %1]
  e1: f32 = t2[%1]
  e2: f32 = mul(e0, e1)
  e3: f32 = acc0
  acc0 = sum(e2): f32
  row t3[%0] = e3
";

    fn timings() -> Timings {
        let graph = kernel::parse(GRAPH).unwrap();
        let schedule = |text: &str| text.parse::<Schedule>().unwrap();
        let row = "row threads=64 lanes=8 rows_first=false width=1 steps=1 kept=false subgroup=1";
        let time = |text: &str, ns: f64| Timed { schedule: schedule(text), ns, rounds: 3, spread: 0.02 };
        let problem = Problem {
            name: "sum \"7\"".into(),
            graph: alone(&graph, &graph.kernels[0]),
            values: [("n".to_owned(), 9)].into(),
            expect: Expected([("n".to_owned(), 5)].into()),
            times: vec![time(row, 12.5), time(&row.replace("=8", "=4"), 5120.0)],
        };
        let profile = DeviceProfile::default();
        Timings { device: "a card".into(), driver: "1.0".into(), profile, problems: vec![problem] }
    }

    #[test]
    fn files_round_trip() {
        let timings = timings();
        let text = timings.to_text().unwrap();
        let back = Timings::from_text(&text).unwrap();
        assert_eq!(
            (&back.device, &back.driver, &back.profile),
            (&timings.device, &timings.driver, &timings.profile)
        );
        assert_eq!(back.problems[0].times, timings.problems[0].times);
        assert_eq!(
            (&back.problems[0].values, &back.problems[0].expect),
            (&timings.problems[0].values, &timings.problems[0].expect)
        );
        assert_eq!(back.to_text().unwrap(), text);
        assert!(text.contains(r#"["row 64 8 false 1 1 false 1",12.5,3,2]"#), "{text}");
    }

    #[test]
    fn a_kernel_alone_has_the_fingerprint_that_it_had() {
        let graph = kernel::parse(GRAPH).unwrap();
        let alone = alone(&graph, &graph.kernels[0]);
        assert_eq!(alone.tensors.len(), 3);
        kernel::verify(&alone).unwrap();
        let read = kernel::parse(&alone.to_string()).unwrap();
        for g in [&alone, &read] {
            assert_eq!(table::key(g, &g.kernels[0]), table::key(&graph, &graph.kernels[0]));
        }
    }

    #[test]
    fn times_have_four_digits() {
        let text = |x: f64| rounded(x).to_string();
        assert_eq!([12_345.678, 5120.0, 985.36, 1.234_56].map(text), ["12350", "5120", "985.4", "1.235"]);
    }

    #[test]
    fn errors_say_what_is_wrong_and_where() {
        let text = timings().to_text().unwrap();
        for (from, to, says) in [
            ("\"version\":1", "\"version\":7", "version 7; this wgfc reads version 1"),
            ("mul(e0", "mull(e0", "line 2: the kernel cannot be read: "),
            ("t1[%1]", "t9[%1]", "line 2: the kernel is not valid: "),
            ("row 64 8 false", "row 64 8 9 false", "has 8 values, but `row` has 7 fields"),
            ("\"lanes\"", "\"threads\"", "is not a schedule: `threads` is given twice"),
            ("12.5", "\"fast\"", "is not a time"),
        ] {
            let wrong = text.replace(from, to);
            assert_ne!(wrong, text, "{from}");
            let e = Timings::from_text(&wrong).unwrap_err();
            assert!(e.starts_with("has ") && e.contains(says), "{e}");
        }
        assert!(Timings::from_text("").unwrap_err().contains("it is empty"));
        assert!(Timings::from_text("{}").unwrap_err().contains("`version` is missing"));
    }
}
