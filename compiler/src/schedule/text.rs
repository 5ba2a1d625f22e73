//! The text form of a [`Schedule`]: words that say which, then fields.
//!
//! ```text
//! row threads=64 lanes=32 rows_first=false width=4 steps=0 kept=false subgroup=32
//! product tiled rows=64 cols=64 k=16 thread_rows=4 thread_cols=4 split=1 buffers=2 unroll=1 rows_first=false
//! ```

use super::attention::{Matrices, Stream, Tiles};
use super::products::{CooperativeShape, ThinShape, TileShape};
use super::{Schedule, attention, loops, maps, prefix_scans, products, rows, sorts, steps};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Fields by their names, as they are read.
type Given = BTreeMap<String, String>;

/// A field of a schedule, or several together.
trait Part: Sized {
    /// Adds it under its name.
    fn write(&self, name: &'static str, out: &mut Vec<(&'static str, String)>);
    /// Takes it out of what was given.
    fn read(name: &str, given: &mut Given) -> Result<Self, String>;
}

fn take<T: FromStr>(name: &str, given: &mut Given, what: &str) -> Result<T, String> {
    let value = given.remove(name).ok_or_else(|| format!("`{name}` is missing"))?;
    value.parse().map_err(|_| format!("`{name}` is `{value}`, not {what}"))
}

impl Part for u32 {
    fn write(&self, name: &'static str, out: &mut Vec<(&'static str, String)>) {
        out.push((name, self.to_string()));
    }
    fn read(name: &str, given: &mut Given) -> Result<u32, String> {
        take(name, given, "a number of 32 bits")
    }
}

impl Part for bool {
    fn write(&self, name: &'static str, out: &mut Vec<(&'static str, String)>) {
        out.push((name, self.to_string()));
    }
    fn read(name: &str, given: &mut Given) -> Result<bool, String> {
        take(name, given, "true or false")
    }
}

impl Part for steps::Steps {
    fn write(&self, name: &'static str, out: &mut Vec<(&'static str, String)>) {
        out.push((name, self.to_string()));
    }
    fn read(name: &str, given: &mut Given) -> Result<steps::Steps, String> {
        let text = given.remove(name).ok_or_else(|| format!("`{name}` is missing"))?;
        text.parse().map_err(|why| format!("`{name}`: {why}"))
    }
}

/// Types as their fields in order: `field = value` is a field that texts may leave out, and `; field: value` one that no text has.
macro_rules! fields {
    ($($ty:ty { $($field:ident $(= $missing:literal)?),+ $(; $fixed:ident: $value:literal)? })+) => {$(
        impl Part for $ty {
            fn write(&self, _: &'static str, out: &mut Vec<(&'static str, String)>) {
                $(self.$field.write(stringify!($field), out);)+
            }
            fn read(_: &str, given: &mut Given) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        $(if !given.contains_key(stringify!($field)) { $missing } else)? {
                            Part::read(stringify!($field), given)?
                        }
                    },)+
                    $($fixed: $value)?
                })
            }
        }
    )+};
}

fields! {
    maps::Flat { threads, elements, unroll }
    maps::Tiled { threads, axis, rows, cols, elements, lines, pitch }
    rows::Row { threads, lanes, rows_first, width, steps, kept, subgroup }
    prefix_scans::PrefixScan { threads, lanes, each }
    sorts::Block { threads, each }
    sorts::Merge { threads }
    loops::Loop { threads }
    loops::Blocked { threads, block, subgroup }
    loops::Spread { threads, groups, lanes, kept, polls }
    TileShape { rows, cols, k, thread_rows, thread_cols, split }
    CooperativeShape { rows, cols, k, sub_rows, sub_cols }
    ThinShape { rows, k, cols, across, lanes, unroll, depth_first }
    products::Tiled { shape, buffers, unroll, rows_first }
    products::Cooperative { shape, ahead = 1, subgroup }
    products::TiledIntegers { shape, buffers, rows_first }
    // The words before the fields say whether it computes in integers.
    products::Thin { shape, staged, bytes, subgroup; integers: false }
    products::window::Window { threads, rows, cols }
    products::Block { threads, rows, cols, width }
    products::Serial { threads, unrolled }
    Tiles { queries, thread_queries, keys, lanes, depth, kept, ahead }
    attention::Tiled { tiles, subgroup }
    attention::Decode { threads, subgroup }
    Stream { threads, lanes, unroll, heads, run, subgroup }
    Matrices { queries, sub_queries, keys, ahead, subgroup }
}

impl Schedule {
    /// The name of its family.
    pub fn family(&self) -> &'static str {
        match self {
            Schedule::Map(_) => "map",
            Schedule::Row(_) => "row",
            Schedule::PrefixScan(_) => "prefix_scan",
            Schedule::Sort(_) => "sort",
            Schedule::Loop(_) => "loop",
            Schedule::StagedLoop(_) | Schedule::BlockedLoop(_) | Schedule::SpreadLoop(_) => "staged_loop",
            Schedule::Product(_) => "product",
            Schedule::Attention(_) => "attention",
            Schedule::Steps(_) => "steps",
        }
    }

    /// The words that say which schedule it is, and its fields in order.
    pub fn fields(&self) -> (&'static str, Vec<(&'static str, String)>) {
        use {attention::Attention, products::Product};
        let mut out = vec![];
        let words = match self {
            Schedule::Map(maps::Map::Flat(s)) => (s.write("", &mut out), "map"),
            Schedule::Map(maps::Map::Tiled(s)) => (s.write("", &mut out), "map tiled"),
            Schedule::Row(s) => (s.write("", &mut out), "row"),
            Schedule::PrefixScan(s) => (s.write("", &mut out), "prefix_scan"),
            Schedule::Sort(sorts::Sort::Block(s)) => (s.write("", &mut out), "sort block"),
            Schedule::Sort(sorts::Sort::Select(s)) => (s.write("", &mut out), "sort select"),
            Schedule::Sort(sorts::Sort::Path(s)) => (s.write("", &mut out), "sort path"),
            Schedule::Sort(sorts::Sort::Merge(s)) => (s.write("", &mut out), "sort merge"),
            Schedule::Loop(s) => (s.write("", &mut out), "loop"),
            Schedule::StagedLoop(s) => (s.write("", &mut out), "staged_loop"),
            Schedule::BlockedLoop(s) => (s.write("", &mut out), "staged_loop blocked"),
            Schedule::SpreadLoop(s) => (s.write("", &mut out), "staged_loop spread"),
            Schedule::Product(Product::Tiled(s)) => (s.write("", &mut out), "product tiled"),
            Schedule::Product(Product::Cooperative(s)) => (s.write("", &mut out), "product cooperative"),
            Schedule::Product(Product::TiledIntegers(s)) => (s.write("", &mut out), "product tiled integers"),
            Schedule::Product(Product::Thin(s)) => {
                (s.write("", &mut out), if s.integers { "product integers" } else { "product thin" })
            }
            Schedule::Product(Product::Window(s)) => (s.write("", &mut out), "product window"),
            Schedule::Product(Product::Block(s)) => (s.write("", &mut out), "product block"),
            Schedule::Product(Product::Serial(s)) => (s.write("", &mut out), "product serial"),
            Schedule::Attention(Attention::Tiled(s)) => (s.write("", &mut out), "attention tiled"),
            Schedule::Attention(Attention::Decode(s)) => (s.write("", &mut out), "attention decode"),
            Schedule::Attention(Attention::Streamed(s)) => (s.write("", &mut out), "attention streamed"),
            Schedule::Attention(Attention::Cooperative(s)) => {
                (s.write("", &mut out), "attention cooperative")
            }
            Schedule::Steps(s) => (s.write("list", &mut out), "steps"),
        };
        (words.1, out)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (words, fields) = self.fields();
        f.write_str(words)?;
        fields.iter().try_for_each(|(k, v)| write!(f, " {k}={v}"))
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Schedule, String> {
        let (mut words, mut given) = (vec![], Given::new());
        for token in text.split_whitespace() {
            match token.split_once('=') {
                None if given.is_empty() => words.push(token),
                None => return Err(format!("`{token}` is no field: fields are written NAME=VALUE")),
                Some((name, value)) => {
                    if given.insert(name.to_owned(), value.to_owned()).is_some() {
                        return Err(format!("`{name}` is given twice"));
                    }
                }
            }
        }
        let g = &mut given;
        let s = match &words[..] {
            ["map"] => Schedule::Map(maps::Map::Flat(Part::read("", g)?)),
            ["map", "tiled"] => Schedule::Map(maps::Map::Tiled(Part::read("", g)?)),
            ["row"] => Schedule::Row(Part::read("", g)?),
            ["prefix_scan"] => Schedule::PrefixScan(Part::read("", g)?),
            ["loop"] => Schedule::Loop(Part::read("", g)?),
            ["staged_loop"] => Schedule::StagedLoop(Part::read("", g)?),
            ["staged_loop", "blocked"] => Schedule::BlockedLoop(Part::read("", g)?),
            ["staged_loop", "spread"] => Schedule::SpreadLoop(Part::read("", g)?),
            ["product", "tiled"] => Schedule::Product(products::Product::Tiled(Part::read("", g)?)),
            ["product", "tiled", "integers"] => {
                Schedule::Product(products::Product::TiledIntegers(Part::read("", g)?))
            }
            ["product", "cooperative"] => {
                Schedule::Product(products::Product::Cooperative(Part::read("", g)?))
            }
            ["sort", "block"] => Schedule::Sort(sorts::Sort::Block(Part::read("", g)?)),
            ["sort", "select"] => Schedule::Sort(sorts::Sort::Select(Part::read("", g)?)),
            ["sort", "path"] => Schedule::Sort(sorts::Sort::Path(Part::read("", g)?)),
            ["sort", "merge"] => Schedule::Sort(sorts::Sort::Merge(Part::read("", g)?)),
            ["product", "thin"] => Schedule::Product(products::Product::Thin(Part::read("", g)?)),
            ["product", "integers"] => {
                let thin = products::Thin { integers: true, ..Part::read("", g)? };
                Schedule::Product(products::Product::Thin(thin))
            }
            ["product", "window"] => Schedule::Product(products::Product::Window(Part::read("", g)?)),
            ["product", "block"] => Schedule::Product(products::Product::Block(Part::read("", g)?)),
            ["product", "serial"] => Schedule::Product(products::Product::Serial(Part::read("", g)?)),
            ["attention", "tiled"] => Schedule::Attention(attention::Attention::Tiled(Part::read("", g)?)),
            ["attention", "decode"] => Schedule::Attention(attention::Attention::Decode(Part::read("", g)?)),
            ["attention", "cooperative"] => {
                Schedule::Attention(attention::Attention::Cooperative(Part::read("", g)?))
            }
            ["steps"] => Schedule::Steps(Part::read("list", g)?),
            ["attention", "streamed"] => {
                Schedule::Attention(attention::Attention::Streamed(Part::read("", g)?))
            }
            _ => {
                return Err(format!(
                    "`{}` is no schedule: there are map, map tiled, row, prefix_scan, sort (block, select, path, merge), loop, staged_loop, staged_loop blocked, staged_loop spread, product (tiled, tiled integers, cooperative, \
                     thin, integers, window, block, serial), attention (tiled, decode, streamed, cooperative) and steps",
                    words.join(" ")
                ));
            }
        };
        match given.keys().next() {
            Some(unknown) => {
                let names: Vec<&str> = s.fields().1.into_iter().map(|(k, _)| k).collect();
                Err(format!("`{unknown}` is no field of it: there are {}", names.join(", ")))
            }
            None => Ok(s),
        }
    }
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Schedule, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

/// Why a schedule is none of those that a device can run on a kernel: the first field that none of them has so, and the
/// values that it may have.
pub fn misfit(s: &Schedule, allowed: &[Schedule]) -> Option<String> {
    if allowed.contains(s) {
        return None;
    }
    let (words, fields) = s.fields();
    let mut rest: Vec<_> = allowed.iter().map(Schedule::fields).collect();
    let list = |mut all: Vec<String>| {
        all.sort_by_key(|v| (v.parse::<u64>().unwrap_or(0), v.clone()));
        all.dedup();
        all.join(", ")
    };
    if !rest.iter().any(|(w, _)| *w == words) {
        let all = rest.into_iter().map(|(w, _)| w.to_owned()).collect();
        return Some(format!("`{words}` does not fit the kernel: it may be {}", list(all)));
    }
    rest.retain(|(w, _)| *w == words);
    for (i, (name, value)) in fields.iter().enumerate() {
        let has = |f: &[(&str, String)]| f.get(i).is_some_and(|(_, v)| v == value);
        if !rest.iter().any(|(_, f)| has(f)) {
            let all = rest.into_iter().filter_map(|(_, f)| Some(f.get(i)?.1.clone())).collect();
            return Some(format!("`{name}` is {value}: with the fields before it, it may be {}", list(all)));
        }
        rest.retain(|(_, f)| has(f));
    }
    None
}
