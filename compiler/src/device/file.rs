//! Profiles as files: JSON with a version, the limits and the speeds. What a file leaves out is as in `portable`.
//!
//! ```json
//! {"version": 1, "limits": {"max_invocations": 1024, "f16": true}, "speeds": {"bandwidth": 1e12}}
//! ```

use super::{DeviceProfile, Speeds};
use crate::error::json_in_words;
use serde_json::{Map, Value, json};

/// The version of the JSON form written and the only one read.
pub const VERSION: u64 = 1;

/// The kind of value that a field may have.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// At least 1 and at most this.
    Count(u64),
    Flag,
    /// As a count, a power of two, or null.
    OptionalPower,
    /// As a count, or null.
    OptionalCount,
    Speed,
    Seconds,
}

const U32: u64 = u32::MAX as u64;

const LIMITS: [(&str, Kind); 15] = [
    ("max_storage_buffers", Kind::Count(U32)),
    ("max_invocations", Kind::Count(U32)),
    ("max_workgroup_bytes", Kind::Count(U32)),
    ("max_binding_bytes", Kind::Count(i64::MAX as u64)),
    ("max_workgroups", Kind::Count(U32)),
    ("storage_alignment", Kind::Count(U32)),
    ("f16", Kind::Flag),
    ("subgroup", Kind::OptionalPower),
    ("cooperative_matrix", Kind::Flag),
    ("subgroup_matrix", Kind::Flag),
    ("loop_iterations", Kind::OptionalCount),
    ("longest_dispatch", Kind::Seconds),
    ("core_workgroup_bytes", Kind::Count(U32)),
    ("core_registers", Kind::Count(U32)),
    ("invocation_registers", Kind::Count(U32)),
];

/// The names of all speeds.
pub const SPEEDS: [&str; 14] = [
    "bandwidth",
    "flops_f32",
    "flops_f16",
    "flops_matrix",
    "dispatch_cost",
    "cores",
    "resident",
    "memory_latency",
    "operation",
    "barrier",
    "workgroup_bandwidth",
    "cache_bandwidth",
    "resident_workgroups",
    "exchange",
];

impl Kind {
    fn allowed(self) -> String {
        match self {
            Kind::Count(most) => format!("a whole number from 1 to {most}"),
            Kind::Flag => "true or false".into(),
            Kind::OptionalPower => format!("a power of two from 1 to {}, or null", 1u32 << 31),
            Kind::OptionalCount => format!("a whole number from 1 to {U32}, or null"),
            Kind::Speed => "a positive number from 1e-30 to 1e30".into(),
            Kind::Seconds => "a number of seconds from 1e-6 to 1e6".into(),
        }
    }

    fn admits(self, v: &Value) -> bool {
        let count = |most: u64| v.as_u64().is_some_and(|n| (1..=most).contains(&n));
        match self {
            Kind::Count(most) => count(most),
            Kind::Flag => v.is_boolean(),
            Kind::OptionalPower => v.is_null() || count(U32) && v.as_u64().is_some_and(u64::is_power_of_two),
            Kind::OptionalCount => v.is_null() || count(U32),
            Kind::Speed => v.as_f64().is_some_and(|x| (1e-30..=1e30).contains(&x)),
            Kind::Seconds => v.as_f64().is_some_and(|x| (1e-6..=1e6).contains(&x)),
        }
    }
}

fn fields(what: &str) -> Vec<(&'static str, Kind)> {
    match what {
        "limits" => LIMITS.to_vec(),
        _ => SPEEDS.map(|n| (n, Kind::Speed)).to_vec(),
    }
}

impl DeviceProfile {
    /// The JSON form. `device` is a description of the device for readers of the file.
    ///
    /// # Errors
    /// None known.
    pub fn to_json(&self, device: Option<&str>) -> Result<String, String> {
        let mut limits = object(serde_json::to_value(self))?;
        let speeds = limits.remove("speeds").ok_or("a profile without speeds")?;
        let mut file = json!({ "version": VERSION, "limits": limits, "speeds": speeds });
        if let Some(d) = device {
            file["device"] = d.into();
        }
        // Sorted keys, also if another crate asks `serde_json` to keep the order of insertion.
        file.sort_all_objects();
        serde_json::to_string_pretty(&file).map(|s| s + "\n").map_err(|e| e.to_string())
    }

    /// Reads the JSON form.
    ///
    /// # Errors
    /// A description of the fault, to be printed after the file's name; for a field, with the allowed values.
    pub fn from_json(text: &[u8]) -> Result<DeviceProfile, String> {
        let file: Value = serde_json::from_slice(text)
            .map_err(|e| format!("is not a device profile: {}", json_in_words(&e)))?;
        let file = file.as_object().ok_or("is not a device profile: it holds no JSON object")?;
        match file.get("version").map(|v| (v, v.as_u64())) {
            Some((_, Some(VERSION))) => {}
            Some((v, _)) => {
                return Err(format!("is a device profile of version {v}; this wgfc reads version {VERSION}"));
            }
            None => {
                return Err(format!("is not a device profile: `version` is missing, it must be {VERSION}"));
            }
        }
        let known = ["version", "device", "limits", "speeds"];
        if let Some(name) = file.keys().find(|k| !known.contains(&k.as_str())) {
            return Err(unknown(name, "a profile", &known));
        }
        let mut all = object(serde_json::to_value(DeviceProfile::default()))?;
        overwrite(&mut all, "limits", file.get("limits"))?;
        let mut speeds = object(serde_json::to_value(Speeds::PORTABLE))?;
        overwrite(&mut speeds, "speeds", file.get("speeds"))?;
        all.insert("speeds".into(), speeds.into());
        serde_json::from_value(all.into())
            .map_err(|e| format!("is not a device profile: {}", json_in_words(&e)))
    }
}

impl Speeds {
    /// These speeds with the one of this name multiplied by `factor`.
    ///
    /// # Errors
    /// A message if no speed has this name.
    pub fn scaled(&self, name: &str, factor: f64) -> Result<Speeds, String> {
        let mut all = object(serde_json::to_value(self))?;
        let speed = all.get_mut(name).ok_or_else(|| unknown(name, "the speeds", &SPEEDS))?;
        *speed = (speed.as_f64().unwrap_or_default() * factor).into();
        serde_json::from_value(all.into()).map_err(|e| json_in_words(&e))
    }
}

fn object(v: Result<Value, serde_json::Error>) -> Result<Map<String, Value>, String> {
    match v {
        Ok(Value::Object(m)) => Ok(m),
        Ok(_) => Err("no object".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// Overwrites the fields that a section of a file gives.
fn overwrite(into: &mut Map<String, Value>, part: &str, given: Option<&Value>) -> Result<(), String> {
    let Some(given) = given else { return Ok(()) };
    let given = given.as_object().ok_or_else(|| format!("`{part}` is {given}; it must be an object"))?;
    let fields = fields(part);
    for (name, v) in given {
        let Some((_, kind)) = fields.iter().find(|f| f.0 == name) else {
            let names: Vec<&str> = fields.iter().map(|f| f.0).collect();
            return Err(unknown(&format!("{part}.{name}"), &format!("`{part}`"), &names));
        };
        if !kind.admits(v) {
            return Err(format!("`{part}.{name}` is {v}; it must be {}", kind.allowed()));
        }
        into.insert(name.clone(), v.clone());
    }
    Ok(())
}

fn unknown(name: &str, of: &str, known: &[&str]) -> String {
    format!("has a field `{name}` that is none of {of}: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn profiles() -> impl Strategy<Value = DeviceProfile> {
        // As many digits as measurements have: JSON readers may be off in the last bit with seventeen digits.
        let speed =
            || (1..10_000u32, -12..15i32).prop_map(|(m, e)| format!("{m}e{e}").parse::<f64>().unwrap());
        let speeds = proptest::collection::vec(speed(), SPEEDS.len()).prop_map(|v| {
            let all: Map<String, Value> =
                SPEEDS.iter().zip(v).map(|(n, x)| (n.to_string(), x.into())).collect();
            serde_json::from_value::<Speeds>(all.into()).unwrap()
        });
        let count = || 1..=u32::MAX;
        let limits = (count(), count(), count(), 1..=i64::MAX as u64, count(), count());
        let power = proptest::option::of((0..32u32).prop_map(|e| 1 << e));
        let core = (count(), count(), count());
        let rest = (any::<bool>(), power, any::<(bool, bool)>(), proptest::option::of(count()), core);
        (limits, rest, speeds).prop_map(|(l, r, speeds)| DeviceProfile {
            max_storage_buffers: l.0,
            max_invocations: l.1,
            max_workgroup_bytes: l.2,
            max_binding_bytes: l.3,
            max_workgroups: l.4,
            storage_alignment: l.5,
            f16: r.0,
            subgroup: r.1,
            cooperative_matrix: r.2.0,
            subgroup_matrix: r.2.1,
            loop_iterations: r.3,
            longest_dispatch: format!("{}e-3", l.0 % 10_000 + 1).parse().unwrap(),
            core_workgroup_bytes: r.4.0,
            core_registers: r.4.1,
            invocation_registers: r.4.2,
            speeds,
        })
    }

    proptest! {
        #[test]
        fn files_round_trip(p in profiles(), named in any::<bool>()) {
            let text = p.to_json(named.then_some("a card")).unwrap();
            prop_assert_eq!(DeviceProfile::from_json(text.as_bytes()), Ok(p));
        }

        #[test]
        fn any_bytes_are_read_or_refused(text in "\\PC{0,60}") {
            let _ = DeviceProfile::from_json(text.as_bytes());
        }
    }

    /// The files of `profiles/` are profiles, and its table names them.
    #[test]
    fn contributed_profiles_are_read() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiles");
        // The folder is not a part of the published crate.
        let Ok(table) = std::fs::read_to_string(folder.join("README.md")) else { return };
        for entry in std::fs::read_dir(&folder).unwrap() {
            let (path, name) = entry.map(|e| (e.path(), e.file_name().into_string().unwrap())).unwrap();
            if name == "README.md" {
                continue;
            }
            assert!(table.contains(&format!("| `{name}` |")), "{name} is not in the table");
            let read = DeviceProfile::from_json(&std::fs::read(path).unwrap());
            let profile = read.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_ne!(profile.speeds, DeviceProfile::default().speeds, "{name} has no speeds of its own");
        }
    }

    #[test]
    fn every_field_is_known() {
        let mut limits = object(serde_json::to_value(DeviceProfile::default())).unwrap();
        let speeds = object(Ok(limits.remove("speeds").unwrap())).unwrap();
        let names = |f: Vec<(&str, Kind)>| -> Vec<String> {
            let mut all: Vec<String> = f.iter().map(|f| f.0.to_owned()).collect();
            all.sort();
            all
        };
        assert_eq!(
            limits.keys().cloned().collect::<std::collections::BTreeSet<_>>(),
            names(fields("limits")).into_iter().collect()
        );
        assert_eq!(
            speeds.keys().cloned().collect::<std::collections::BTreeSet<_>>(),
            names(fields("speeds")).into_iter().collect()
        );
        for name in DeviceProfile::NAMES {
            let p = DeviceProfile::named(name).unwrap();
            assert_eq!(DeviceProfile::from_json(p.to_json(None).unwrap().as_bytes()), Ok(p));
        }
        assert_eq!(DeviceProfile::named("fast"), None);
        assert_eq!(DeviceProfile::from_json(br#"{"version":1}"#), Ok(DeviceProfile::default()));
    }

    #[test]
    fn errors_name_the_field_and_what_it_may_be() {
        for (text, says) in [
            ("", "is not a device profile"),
            ("[1]", "no JSON object"),
            ("{}", "`version` is missing, it must be 1"),
            (r#"{"version":2}"#, "version 2; this wgfc reads version 1"),
            (r#"{"version":"1"}"#, "version \"1\""),
            (
                r#"{"version":1,"speed":{}}"#,
                "`speed` that is none of a profile: version, device, limits, speeds",
            ),
            (r#"{"version":1,"speeds":3}"#, "`speeds` is 3; it must be an object"),
            (
                r#"{"version":1,"speeds":{"bandwith":3}}"#,
                "`speeds.bandwith` that is none of `speeds`: bandwidth, flops_f32",
            ),
            (r#"{"version":1,"speeds":{"cores":0}}"#, "`speeds.cores` is 0; it must be a positive number"),
            (r#"{"version":1,"speeds":{"cores":-1.5}}"#, "`speeds.cores` is -1.5"),
            (r#"{"version":1,"speeds":{"cores":"8"}}"#, "`speeds.cores` is \"8\""),
            (r#"{"version":1,"speeds":{"cores":null}}"#, "`speeds.cores` is null"),
            (r#"{"version":1,"limits":{"max_invocations":0}}"#, "a whole number from 1 to 4294967295"),
            (r#"{"version":1,"limits":{"max_invocations":1.5}}"#, "`limits.max_invocations` is 1.5"),
            (r#"{"version":1,"limits":{"f16":1}}"#, "`limits.f16` is 1; it must be true or false"),
            (r#"{"version":1,"limits":{"subgroup":12}}"#, "a power of two from 1 to 2147483648, or null"),
        ] {
            let e = DeviceProfile::from_json(text.as_bytes()).unwrap_err();
            assert!(e.contains(says), "{text}: {e}");
        }
    }
}
