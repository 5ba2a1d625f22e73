//! Tables of schedules.
//!
//! A [`Tuning`] holds schedules by what kernels are known by, their [`key`]: as measured on a device, which come before
//! what the models of the families prefer, or as somebody wrote them. What a measured table has of another kernel, or
//! of a schedule that is none of the [`candidates`](super::candidates), is ignored, so that no table makes a wrong
//! program.
//!
//! A key is text: what the choice obviously depends on, for people, and a fingerprint of all the kernel does, so that
//! what is computed before and after the sums counts. Names and numbers of tensors do not count, nor does where in a
//! state that grows a kernel reads and writes: caches of any capacity share their choices.

use super::products::problem::problem;
use super::{Context, Schedule, ScheduledGraph, locate, misfit};
use crate::cost::Expected;
use crate::device::DeviceProfile;
use crate::error::json_in_words;
use crate::kernel::{Capacity, Kernel, KernelGraph};
use crate::{Diagnostic, Errors};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the JSON form written and the only one read.
pub const VERSION: u32 = 3;

/// Schedules by [`key`].
///
/// ```
/// use wgfc_compiler::Tuning;
/// let text = Tuning::default().to_json(Some("my GPU"))?;
/// assert_eq!(Tuning::from_json(text.as_bytes())?, Tuning::default());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// The schedules.
    pub choices: BTreeMap<String, Schedule>,
}

#[derive(Serialize)]
struct File {
    version: u32,
    /// The device on which they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    choices: BTreeMap<String, Schedule>,
}

impl Tuning {
    /// The JSON form; `device` says for people what the choices were measured on.
    ///
    /// # Errors
    /// None that is known of.
    pub fn to_json(&self, device: Option<&str>) -> Result<String, String> {
        let file =
            File { version: VERSION, device: device.map(str::to_owned), choices: self.choices.clone() };
        serde_json::to_string_pretty(&file).map(|s| s + "\n").map_err(|e| e.to_string())
    }

    /// Reads the JSON form.
    ///
    /// # Errors
    /// The fault of the file, in words that follow its name.
    pub fn from_json(text: &[u8]) -> Result<Tuning, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u64,
        }
        match serde_json::from_slice(text) {
            Ok(Version { version }) if version == u64::from(VERSION) => {}
            Ok(Version { version }) => {
                return Err(format!(
                    "is a table of schedules of version {version}; this wgfc reads version {VERSION}"
                ));
            }
            Err(e) => return Err(format!("is no table of schedules: {e}")),
        }
        #[derive(Deserialize)]
        struct Read {
            choices: BTreeMap<String, String>,
        }
        let file: Read = serde_json::from_slice(text)
            .map_err(|e| format!("is no table of schedules: {}", json_in_words(&e)))?;
        let parsed = file.choices.into_iter().map(|(kernel, s)| match s.parse() {
            Ok(s) => Ok((kernel, s)),
            Err(why) => Err(format!("has a schedule for kernel `{kernel}` that is none: {why}")),
        });
        Ok(Tuning { choices: parsed.collect::<Result<_, String>>()? })
    }
}

/// The table's schedule for a kernel, if there is one that the device can run.
pub fn find(kernel: &Kernel, cx: &Context, tuning: &Tuning) -> Option<Schedule> {
    if tuning.choices.is_empty() {
        return None;
    }
    let choice = tuning.choices.get(&key(cx.graph, kernel))?;
    misfit(choice, kernel, cx).ok()?.is_none().then(|| choice.clone())
}

/// The schedules of all kernels, as a table that [`replace`] takes.
pub fn of(all: &ScheduledGraph) -> Tuning {
    let keys = all.graph.kernels.iter().map(|k| key(&all.graph, k));
    Tuning { choices: keys.zip(all.schedules.iter().cloned()).collect() }
}

/// Replaces the schedules of the kernels that a table somebody wrote names.
///
/// # Errors
/// `Model` for each entry that names no kernel, or gives a kernel what the device cannot run on it.
pub fn replace(
    all: &mut ScheduledGraph,
    given: &Tuning,
    device: &DeviceProfile,
    expect: &Expected,
) -> Result<(), Errors> {
    if given.choices.is_empty() {
        return Ok(());
    }
    let cx = Context { graph: &all.graph, device, expect };
    // Whether the schedule given for a key fits; layers repeat.
    let (mut errors, mut known) = (vec![], BTreeMap::new());
    for (k, own) in all.graph.kernels.iter().zip(&mut all.schedules) {
        let key = key(&all.graph, k);
        let Some(s) = given.choices.get(&key) else { continue };
        let fits = known.entry(key).or_insert_with_key(|key| {
            let why = match misfit(s, k, &cx) {
                Ok(why) => why.map(|why| {
                    let what = format!("the schedule given for kernel `{key}` does not fit it: {why}");
                    Diagnostic::model(what)
                        .help("wgfc inspect --schedule prints what is chosen without the file")
                }),
                Err(d) => Some(d),
            };
            let fits = why.is_none();
            errors.extend(why.map(|d| locate(d, k)));
            fits
        });
        if *fits {
            *own = s.clone();
        }
    }
    for key in given.choices.keys().filter(|k| !known.contains_key(*k)) {
        let d =
            Diagnostic::model(format!("a schedule is given for `{key}`, which is no kernel of this model"));
        errors.push(d.help(
            "compile with the options that the schedule was written for; wgfc inspect --schedule prints the kernels there are",
        ));
    }
    if errors.is_empty() { Ok(()) } else { Err(Errors(errors)) }
}

/// The key of a kernel in a table. See the [module](self).
pub fn key(graph: &KernelGraph, kernel: &Kernel) -> String {
    format!("{} #{:032x}", title(kernel), fingerprint(graph, kernel))
}

/// A hash of all that a kernel does.
pub fn fingerprint(graph: &KernelGraph, kernel: &Kernel) -> u128 {
    kernel.structural_hash(&graph.tensors, Capacity::Ignored)
}

/// The part of a [`key`] that says to people what is computed.
pub fn title(kernel: &Kernel) -> String {
    match problem(kernel) {
        Some(p) => format!("product {p}"),
        None => kernel.family.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::attention::{Matrices, Stream, Tiles};
    use crate::schedule::products::{CooperativeShape, ThinShape, TileShape};
    use crate::schedule::text::misfit;
    use crate::schedule::{attention, loops, maps, prefix_scans, products, rows, sorts};
    use proptest::prelude::*;

    fn any_schedule() -> impl Strategy<Value = Schedule> {
        (any::<[u32; 8]>(), any::<[bool; 3]>(), 0..23usize).prop_map(
            |([a, b, c, d, e, f, g, h], [p, q, r], which)| {
                use {attention::Attention, products::Product};
                let tile = TileShape { rows: a, cols: b, k: c, thread_rows: d, thread_cols: e, split: f };
                let blocks = CooperativeShape { rows: a, cols: b, k: c, sub_rows: d, sub_cols: e };
                let few =
                    ThinShape { rows: a, k: b, cols: c, across: d, lanes: e, unroll: f, depth_first: p };
                match which {
                    0 => Schedule::Map(maps::Map::Flat(maps::Flat { threads: a, elements: b, unroll: c })),
                    1 => Schedule::Row(rows::Row {
                        threads: a,
                        lanes: b,
                        rows_first: q,
                        width: c,
                        steps: d,
                        kept: p,
                        subgroup: e,
                    }),
                    2 => Schedule::PrefixScan(prefix_scans::PrefixScan { threads: a, lanes: b, each: c }),
                    12 => Schedule::Sort(sorts::Sort::Block(sorts::Block { threads: a, each: b })),
                    13 => Schedule::Sort(sorts::Sort::Merge(sorts::Merge { threads: a })),
                    14 => Schedule::Sort(sorts::Sort::Select(sorts::Block { threads: a, each: b })),
                    15 => Schedule::Sort(sorts::Sort::Path(sorts::Block { threads: a, each: b })),
                    3 => Schedule::Loop(loops::Loop { threads: a }),
                    21 => Schedule::Steps(
                        format!("split:i:{a},unroll:i.0,stage:x:i.1,team:{b},spread:k").parse().unwrap(),
                    ),
                    4 => Schedule::StagedLoop(loops::Loop { threads: a }),
                    20 => Schedule::BlockedLoop(loops::Blocked { threads: a, block: b, subgroup: c }),
                    17 => Schedule::SpreadLoop(loops::Spread {
                        threads: a,
                        groups: b,
                        lanes: c,
                        kept: p,
                        polls: d,
                    }),
                    5 => Schedule::Product(Product::Tiled(products::Tiled {
                        shape: tile,
                        buffers: g,
                        unroll: h,
                        rows_first: q,
                    })),
                    6 => Schedule::Product(Product::Cooperative(products::Cooperative {
                        shape: blocks,
                        ahead: h,
                        subgroup: g,
                    })),
                    22 => Schedule::Product(Product::TiledIntegers(products::TiledIntegers {
                        shape: tile,
                        buffers: g,
                        rows_first: q,
                    })),
                    7 => Schedule::Product(Product::Thin(products::Thin {
                        shape: few,
                        staged: r,
                        integers: q,
                        bytes: g,
                        subgroup: h,
                    })),
                    19 => Schedule::Product(Product::Block(products::Block {
                        threads: a,
                        rows: b,
                        cols: c,
                        width: d,
                    })),
                    8 => Schedule::Product(Product::Serial(products::Serial { threads: a, unrolled: b })),
                    9 => {
                        let tiles = Tiles {
                            queries: a,
                            thread_queries: b,
                            keys: c,
                            lanes: d,
                            depth: e,
                            kept: p,
                            ahead: q,
                        };
                        Schedule::Attention(Attention::Tiled(attention::Tiled { tiles, subgroup: f }))
                    }
                    10 => Schedule::Map(maps::Map::Tiled(maps::Tiled {
                        threads: a,
                        axis: b,
                        rows: c,
                        cols: d,
                        elements: e,
                        lines: f,
                        pitch: g,
                    })),
                    16 => Schedule::Attention(Attention::Cooperative(Matrices {
                        queries: a,
                        sub_queries: b,
                        keys: c,
                        ahead: p,
                        subgroup: d,
                    })),
                    11 => Schedule::Attention(Attention::Streamed(Stream {
                        threads: a,
                        lanes: b,
                        unroll: c,
                        heads: d,
                        run: e,
                        subgroup: f,
                    })),
                    _ => {
                        Schedule::Attention(Attention::Decode(attention::Decode { threads: a, subgroup: b }))
                    }
                }
            },
        )
    }

    proptest! {
        #[test]
        fn schedules_print_and_parse(s in any_schedule()) {
            prop_assert_eq!(s.to_string().parse::<Schedule>(), Ok(s));
        }

        #[test]
        fn what_does_not_fit_is_named(s in any_schedule(), allowed in proptest::collection::vec(any_schedule(), 1..6)) {
            prop_assert_eq!(misfit(&s, &allowed).is_none(), allowed.contains(&s));
        }

        #[test]
        fn tables_round_trip(choices in proptest::collection::btree_map(".*", any_schedule(), 0..8)) {
            let table = Tuning { choices };
            let text = table.to_json(Some("a device")).unwrap();
            prop_assert_eq!(Tuning::from_json(text.as_bytes()).unwrap(), table);
        }

        #[test]
        fn damaged_tables_are_refused_in_words(
            choices in proptest::collection::btree_map("[a-z]{1,8}", any_schedule(), 1..4),
            at in any::<proptest::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<bool>(),
        ) {
            let mut text = Tuning { choices }.to_json(None).unwrap().into_bytes();
            let i = at.index(text.len());
            if cut { text.truncate(i) } else { text[i] = byte }
            if let Err(e) = Tuning::from_json(&text) {
                prop_assert!(e.starts_with("is ") || e.starts_with("has "), "{}", e);
            }
        }

        #[test]
        fn anything_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Tuning::from_json(&bytes);
        }
    }

    #[test]
    fn other_versions_are_named() {
        let e = Tuning::from_json(br#"{"version": 7, "choices": {"x": {"unheard": 1}}}"#).unwrap_err();
        assert!(e.contains("version 7") && e.contains(&format!("version {VERSION}")), "{e}");
    }
}
