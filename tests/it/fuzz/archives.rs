//! Mutated archives of torch.export: the headers of the zip file, its records, the program's JSON with the
//! expressions and conditions in it, and pickles.

use super::NUMBERS;
use super::models::{MAX_MODEL_BYTES, fuzz};
use serde_json::Value;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use wgfc_compiler::import::fx::ops;
use wgfc_ir::testing::Rng;
use zip::read::{ArchiveOffset, Config};
use zip::write::SimpleFileOptions;

const TEXTS: [&str; 26] = [
    "",
    "x",
    "é\u{0}",
    "../x",
    "/etc/passwd",
    "Infinity",
    "-Infinity",
    "NaN",
    "Symbol('s77')",
    "Symbol('s77', positive=True, integer=True)",
    "Symbol('u0', integer=True)",
    "Integer(0)",
    "Integer(-9223372036854775808)",
    "Add(Symbol('s77'), Integer(-9223372036854775808))",
    "Mul(Symbol('s77'), Integer(9223372036854775807))",
    "Pow(Add(Symbol('s77'), Symbol('s0'), Symbol('s1'), Integer(1)), Integer(8))",
    "FloorDiv(Symbol('s77'), Integer(0))",
    "FloorDiv(Integer(-9223372036854775808), Integer(-1))",
    "Mod(Symbol('s77'), Symbol('s77'))",
    "Max(Symbol('s77'), Min(Symbol('s0'), Integer(3)))",
    "9223372036854775807*s77 + s77",
    "L['x'].size()[0] == 9223372036854775807",
    "L['x'].size()[9] % 0 == 0",
    "-9223372036854775808 // -1 == L['x'].size()[0]",
    "torch.ops.higher_order.while_loop",
    "_operator.mul",
];

/// Opcodes that occur in pickles of tensors.
const OPCODES: &[u8] = b"\x80\x95.(})N\x88\x89KMJ\x8aX\x8cqr\x94hjt\x85\x86\x87c\x93QRusb";

type Records = Vec<(String, Vec<u8>)>;

fn unpacked(bytes: &[u8]) -> Option<Records> {
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let mut zip = zip::ZipArchive::with_config(config, Cursor::new(bytes)).ok()?;
    let mut out = vec![];
    for i in 0..zip.len() {
        let mut record = zip.by_index(i).ok()?;
        let name = record.name().ok()?.into_owned();
        let mut data = vec![];
        record.read_to_end(&mut data).ok()?;
        out.push((name, data));
    }
    Some(out)
}

fn packed(records: &Records, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(Cursor::new(vec![]));
    for (name, data) in records {
        let how = match rng.one_in(4) {
            true => zip::CompressionMethod::Deflated,
            false => zip::CompressionMethod::Stored,
        };
        // The archive holds each name once, so duplicates are skipped.
        if zip.start_file(name.as_str(), SimpleFileOptions::default().compression_method(how)).is_ok() {
            zip.write_all(data).ok()?;
        }
    }
    Some(zip.finish().ok()?.into_inner())
}

/// A random place in a JSON value, found by descending from the root.
fn place<'v>(v: &'v mut Value, rng: &mut Rng) -> &'v mut Value {
    let n = match &*v {
        Value::Array(list) => list.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    };
    if n == 0 || rng.one_in(12) {
        return v;
    }
    let i = rng.below(n);
    match v {
        Value::Array(list) => place(&mut list[i], rng),
        Value::Object(map) => place(map.values_mut().nth(i).expect("a value"), rng),
        v => v,
    }
}

/// A text similar to `old`: the name of an operator is replaced by the name of another one.
fn text(old: &str, rng: &mut Rng) -> String {
    if old.starts_with("torch.ops.") && !rng.one_in(6) {
        let i = rng.below(ops::targets().count());
        let target = ops::targets().nth(i).map_or(String::new(), |t| t.0);
        return format!("torch.ops.{target}");
    }
    match rng.below(4) {
        0 if !old.is_empty() => {
            let mut chars: Vec<char> = old.chars().collect();
            let i = rng.below(chars.len());
            match rng.below(3) {
                0 => _ = chars.remove(i),
                1 => chars.truncate(i),
                _ => chars[i] = *rng.pick(&['(', ')', '[', '-', '9', 'é', '\'', ',', '.']).unwrap_or(&'('),
            }
            chars.into_iter().collect()
        }
        1 if old.len() < 100 => old.repeat(1 + rng.below(300)),
        _ => (*rng.pick(&TEXTS).unwrap_or(&"")).to_owned(),
    }
}

pub(super) fn change(root: &mut Value, rng: &mut Rng) {
    let other = place(root, rng).clone();
    let v = place(root, rng);
    match (rng.below(8), &mut *v) {
        (0, _) => *v = other,
        (1, _) => *v = Value::Null,
        (2, Value::Object(map)) => {
            let key = map.keys().nth(rng.below(map.len().max(1))).cloned();
            key.and_then(|k| map.remove(&k));
        }
        (2 | 3, Value::Array(list)) if !list.is_empty() => {
            let (i, j) = (rng.below(list.len()), rng.below(list.len()));
            match rng.below(3) {
                0 => _ = list.remove(i),
                1 => list.swap(i, j),
                _ => list.extend(std::iter::repeat_n(list[i].clone(), 1 + rng.below(20))),
            }
        }
        (3, Value::Object(map)) => {
            // The value of one key is copied to another key.
            let keys: Vec<String> = map.keys().cloned().collect();
            if let (Some(a), Some(b)) = (rng.pick(&keys), rng.pick(&keys)) {
                let (x, y) = (map[a].clone(), map[b].clone());
                map.insert(a.clone(), y);
                map.insert(b.clone(), x);
            }
        }
        (4, _) if rng.one_in(6) => {
            let mut deep = other;
            for _ in 0..1 + rng.below(200) {
                deep = Value::Array(vec![deep]);
            }
            *v = deep;
        }
        (_, Value::Number(_)) => *v = Value::from(*rng.pick(&NUMBERS).unwrap_or(&0)),
        (_, Value::String(old)) => *v = text(old, rng).into(),
        (_, Value::Bool(b)) => *b = !*b,
        _ => {}
    }
}

fn change_json(data: &mut Vec<u8>, rng: &mut Rng) -> Option<()> {
    let mut root: Value = serde_json::from_slice(data).ok()?;
    (0..1 + rng.below(4)).for_each(|_| change(&mut root, rng));
    *data = root.to_string().into_bytes();
    Some(())
}

pub(super) fn change_bytes(data: &mut Vec<u8>, alphabet: &[u8], rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        if data.is_empty() {
            return;
        }
        let i = rng.below(data.len());
        match rng.below(6) {
            0 => data.truncate(i),
            1 => _ = data.remove(i),
            2 => data.insert(i, *rng.pick(alphabet).unwrap_or(&0)),
            3 => data[i] = rng.bits() as u8,
            4 => {
                let end = (i + 1 + rng.below(40)).min(data.len());
                let part = data[i..end].repeat(1 + rng.below(50));
                data.splice(i..i, part);
            }
            _ => data[i] = *rng.pick(alphabet).unwrap_or(&0),
        }
    }
}

/// Changes some fields in the headers of a zip file.
fn change_headers(bytes: &mut [u8], rng: &mut Rng) {
    let is_header = |i: &usize| bytes[*i..].starts_with(b"PK") && bytes[*i + 2] < 9;
    let headers: Vec<usize> = (0..bytes.len().saturating_sub(64)).filter(is_header).collect();
    for _ in 0..1 + rng.below(3) {
        let Some(at) = rng.pick(&headers) else { return };
        let (field, width) = (at + 4 + rng.below(44), 1 << rng.below(4));
        let value = rng.pick(&NUMBERS).unwrap_or(&0).wrapping_add(rng.below(3) as i64);
        if let Some(place) = bytes.get_mut(field..field + width) {
            place.copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }
}

fn change_records(records: &mut Records, rng: &mut Rng) -> Option<()> {
    let i = rng.below(records.len().max(1));
    let n = records.len();
    match rng.below(7) {
        0 => drop(records.remove(i)),
        1 => {
            let name =
                (*rng.pick(&["../x", "/x", "a/../../b", "x:y", "x\\y", "", "data/", "models/model.json"])?)
                    .to_owned();
            records[i].0 = name;
        }
        2 => {
            let data = records[rng.below(n)].1.clone();
            records[i].1 = data;
        }
        3 => {
            let keep = rng.below(records[i].1.len() + 1);
            records[i].1.truncate(keep);
        }
        // A large amount of data that compresses well.
        4 => records[i].1 = vec![b' '; 1 << (10 + rng.below(12))],
        5 => {
            let one = records[i].clone();
            records.push((format!("{}/{}", one.0, one.0), one.1));
        }
        _ => change_bytes(&mut records[i].1, OPCODES, rng),
    }
    Some(())
}

fn mutated(archive: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let kind = rng.below(10);
    if kind == 0 {
        let mut bytes = archive.to_vec();
        change_headers(&mut bytes, rng);
        if rng.one_in(4) {
            change_bytes(&mut bytes, OPCODES, rng);
        }
        return Some(bytes);
    }
    let mut records = unpacked(archive)?;
    match kind {
        1 => change_records(&mut records, rng)?,
        2 | 3 => {
            // Tables of tensors: as JSON, or as a pickle in a nested archive.
            let tables: Vec<usize> = (0..records.len())
                .filter(|i| records[*i].0.ends_with("_config.json") || records[*i].0.ends_with(".pt"))
                .collect();
            let data = &mut records[*rng.pick(&tables)?].1;
            match unpacked(data) {
                Some(mut inner) => {
                    match inner.iter_mut().find(|(n, _)| n.ends_with("data.pkl")) {
                        Some((_, pickle)) if !rng.one_in(5) => change_bytes(pickle, OPCODES, rng),
                        _ => change_records(&mut inner, rng)?,
                    }
                    *data = packed(&inner, rng)?;
                }
                None => change_json(data, rng)?,
            }
        }
        _ => {
            let is_program = |n: &str| n.ends_with("model.json") || n.ends_with("exported_program.json");
            let data = &mut records.iter_mut().find(|(n, _)| is_program(n))?.1;
            match rng.one_in(20) {
                true => change_bytes(data, b"{}[]\":,-0123456789eE. \\", rng),
                false => change_json(data, rng)?,
            }
        }
    }
    packed(&records, rng)
}

/// The archives to mutate: the fixture and those unpacked by `scripts/aten_cases.py`.
fn archives() -> Vec<(String, Vec<u8>)> {
    let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch/residual.pt2")];
    for kind in ["whole", "graphs"] {
        let folder = crate::folder("WGFC_FX", "target/fx").join(kind);
        files.extend(std::fs::read_dir(folder).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())));
    }
    files.sort();
    let small =
        |p: &PathBuf| std::fs::metadata(p).is_ok_and(|m| m.is_file() && m.len() < MAX_MODEL_BYTES / 4);
    let name = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    files
        .into_iter()
        .filter(|p| p.extension().is_some_and(|x| x == "pt2") && crate::selected(&name(p)) && small(p))
        .map(|p| (name(&p), std::fs::read(&p).expect("a readable archive")))
        .collect()
}

#[test]
fn programs_of_mutated_archives_are_compiled_or_refused() {
    fuzz("archives", "pt2", &archives(), mutated);
}
