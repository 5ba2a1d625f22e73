//! `wgfc report`: packs a file for an issue.

use super::args::{DataArgs, ReportArgs};
use super::terminal::Terminal;
use super::{adapter, device, inputs, profile, shown};
use prost::Message;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use wgfc::compiler::import::Format;
use wgfc::compiler::import::onnx::{
    DimensionValue, GraphProto, ModelProto, TypeValue, ValueInfoProto, attribute_type, data_type,
};
use wgfc::hollow::{Hollow, hollow};
use wgfc::inspect::{Report, Roof, Summary, bytes_text, table};
use wgfc::model::device_error;
use wgfc::output::write_whole;
use wgfc::runtime::Gpu;
use wgfc::{Error, Model, ModelFile, Options, SaveOptions};

/// The number of runs that are timed, and the most seconds that they may take.
const RUNS: (u32, f64) = (10, 20.0);

/// A file in the report.
struct Entry {
    name: String,
    /// A description of its content.
    about: &'static str,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Pack(Vec<Entry>);

impl Pack {
    fn add(&mut self, name: &str, about: &'static str, bytes: impl Into<Vec<u8>>) {
        self.0.push(Entry { name: name.into(), about, bytes: bytes.into() });
    }
    fn json(&mut self, name: &str, about: &'static str, v: &serde_json::Value) {
        self.add(name, about, format!("{v:#}\n"));
    }
}

/// Packs a report.
pub fn main(a: &ReportArgs, t: &Terminal) -> Result<(), Error> {
    let file = ModelFile::open(&a.model)?;
    let mut pack = Pack::default();
    let mut failures: Vec<String> = vec![];
    let gpu = Gpu::request_blocking(&adapter::choice(&a.adapter));
    let gpu = gpu.map_err(device_error).map_err(|e| failures.push(format!("the adapter: {e}"))).ok();
    pack.json(
        "report.json",
        "versions, system, adapter and its limits, options",
        &about(a, &file, gpu.as_ref()),
    );
    let onnx = file.format() == Format::Onnx;
    let mut left_out = None;
    match onnx {
        // Numbers of the program are in its kernels and may be weights, so kernels are not packed.
        false => {
            if let Err(e) = file.compile(&Options { graph_only: true, ..a.compile.options()? }) {
                failures.push(format!("compiling it:\n{}", without_numbers(&e.to_string())));
            }
        }
        true => {
            let h = hollow(&file, a.anonymous)?;
            of_model(a, &file, &h, gpu.as_ref(), &mut pack, &mut failures, t)?;
            left_out = Some(h);
        }
    }
    for log in &a.log {
        let text = wgfc::files::read(log).map_err(|m| Error::file_help(log, m, "give a text file"))?;
        pack.add(&format!("logs/{}", shown(log)), "a file that you added: look through it", text);
    }
    if !failures.is_empty() {
        pack.add("failure.txt", "what failed", failures.join("\n\n") + "\n");
    }
    write_whole(&a.output, &zipped(&pack)?)?;
    say(a, t, &pack, left_out.as_ref(), &failures);
    Ok(())
}

fn say(a: &ReportArgs, t: &Terminal, pack: &Pack, h: Option<&Hollow>, failures: &[String]) {
    let size = |e: &Entry| e.bytes.len() as u64;
    // Files in a folder, such as kernels, share one line.
    let mut lines: BTreeMap<String, (usize, u64, &str)> = BTreeMap::new();
    for e in &pack.0 {
        let name = e.name.rsplit_once('/').map_or(e.name.clone(), |(dir, _)| format!("{dir}/"));
        let l = lines.entry(name).or_insert((0, 0, e.about));
        (l.0, l.1) = (l.0 + 1, l.1 + size(e));
    }
    if t.json {
        let files: Vec<_> =
            pack.0.iter().map(|e| json!({ "name": e.name, "bytes": size(e), "about": e.about })).collect();
        t.print_json(&json!({
            "file": a.output.display().to_string(),
            "files": files,
            "left_out": h.map(|h| json!({ "tensors": h.left_out.tensors, "bytes": h.left_out.bytes })),
            "kept": h.map(|h| json!({ "tensors": h.kept.tensors, "bytes": h.kept.bytes })),
            "failures": failures,
        }));
        return;
    }
    let rows: Vec<Vec<String>> = lines
        .into_iter()
        .map(|(name, (n, bytes, about))| {
            let name = if n > 1 { format!("{name} ({n} files)") } else { name };
            vec![format!("  {name}"), bytes_text(bytes), about.to_owned()]
        })
        .collect();
    let mut s = format!("{}:\n{}", a.output.display(), table(&rows, &[false, true, false]));
    if let Some(h) = h {
        s += &format!(
            "  no weight and no input is in it: {} tensors of {} are left out; constants kept: {}, numbers such as 1e-5 and few integers\n",
            h.left_out.tensors,
            bytes_text(h.left_out.bytes),
            h.kept.tensors
        );
    } else {
        s += "  no weight and no input is in it; of an archive of torch.export its graph and kernels are left out too\n";
    }
    s += match (a.anonymous, h.is_some()) {
        (true, _) => "  names are replaced\n",
        (false, true) => "  names of nodes and tensors are in it; --anonymous replaces them\n",
        (false, false) => "",
    };
    match failures.is_empty() {
        true => s += "  nothing failed while it was made; --log FILE adds what did\n",
        false => {
            s += &format!(
                "  {} failed: see failure.txt in it\n",
                if failures.len() == 1 { "one thing" } else { "several things" }
            )
        }
    }
    s += "next: attach it to an issue, with what you expected and what you got\n";
    t.print(&s);
}

/// Versions, system, adapter and options.
fn about(a: &ReportArgs, file: &ModelFile, gpu: Option<&Gpu>) -> serde_json::Value {
    // The path of the model is left out, as it may be private.
    let options: Vec<String> = std::env::args()
        .skip(1)
        .filter(|x| Path::new(x) != a.model)
        .map(|x| if a.anonymous && x.contains(['/', '\\']) { "…".into() } else { x })
        .collect();
    let adapters: Vec<serde_json::Value> = Gpu::adapters_blocking().iter().map(device::json).collect();
    let m = wgfc::compiler::import::decode(file.bytes()).unwrap_or_default();
    let producer =
        if a.anonymous { String::new() } else { format!("{} {}", m.producer_name, m.producer_version) };
    json!({
        "wgfc": env!("CARGO_PKG_VERSION"),
        "built": if cfg!(debug_assertions) { "debug" } else { "release" },
        "system": { "os": std::env::consts::OS, "architecture": std::env::consts::ARCH,
            "threads": std::thread::available_parallelism().map_or(0, std::num::NonZero::get) },
        "adapter": gpu.map(|g| device::json(g.summary())),
        "adapters": adapters,
        "options": options,
        "model": {
            "bytes": file.bytes().len(), "ir_version": m.ir_version, "producer": producer.trim(),
            "opsets": m.opset_import.iter().map(|o| json!([o.domain, o.version])).collect::<Vec<_>>(),
        },
    })
}

/// Packs the graph, the plan and run times of a model without weights.
fn of_model(
    a: &ReportArgs,
    file: &ModelFile,
    h: &Hollow,
    gpu: Option<&Gpu>,
    pack: &mut Pack,
    failures: &mut Vec<String>,
    t: &Terminal,
) -> Result<(), Error> {
    let bytes = h.model.encode_to_vec();
    pack.add("graph.txt", "the nodes and their types", structure(&h.model));
    pack.add(
        "model.onnx",
        "the graph without weights: `wgfc run model.onnx --random-weights`",
        bytes.clone(),
    );
    let folder = tempfile::tempdir().map_err(|e| {
        Error::usage(format!("there is no room for temporary files: {e}"), "free some space, or set TMPDIR")
    })?;
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, &bytes).map_err(|e| {
        Error::file_help(&path, format!("cannot be written: {e}"), "give another place with --output")
    })?;
    let empty = ModelFile::open(&path)?;
    let mut options = a.compile.options()?;
    if let Some(gpu) = gpu {
        options.profile = options.profile.with_limits(gpu.profile());
    }
    // Errors contain the path of the temporary model, which is replaced.
    let clean = |e: &Error| e.to_string().replace(&path.display().to_string(), "model.onnx");
    let _progress = t.spinner(format!("compiling {}", shown(&a.model)));
    let program = empty.compile(&Options { graph_only: true, ..options.clone() });
    match &program {
        Err(e) => failures.push(format!("compiling it without weights:\n{}", clean(e))),
        Ok(program) => {
            let out = folder.path().join("program");
            wgfc::save(program, &out, &SaveOptions { force: true, ..SaveOptions::default() })?;
            add_folder(&out, "", pack)?;
            let sizes: Vec<(String, i64)> =
                a.compile.dims.iter().filter(|(n, _)| program.symbols.contains(n)).cloned().collect();
            let roof = Roof::of(&options.profile.speeds, None, None);
            if let Ok(summary) = Summary::new(program, &sizes, roof) {
                let report = Report {
                    dispatches: true,
                    ..Report::new("the model", program, &summary, roof, "adapter")
                };
                pack.add("inspect.txt", "kernels, traffic, bounds of time", report.text());
            }
        }
    }
    // The model may fail differently with its own weights. Numbers in the message are removed.
    if file.missing_weights().is_ok_and(|m| m.is_empty())
        && let Err(e) = file.compile(&options)
        && program.is_ok()
    {
        let words = match a.anonymous {
            true => e.findings().iter().map(|f| f.class.name()).collect::<Vec<_>>().join(", "),
            false => without_numbers(&e.to_string()),
        };
        failures.push(format!("compiling it with its weights, numbers replaced by #:\n{words}"));
    }
    if let (Some(gpu), true, false) = (gpu, program.is_ok(), a.no_run) {
        match times(a, empty.with_random_weights()?, &options, gpu, t) {
            Ok(v) => pack.json("times.json", "times of runs and kernels, on made-up weights and inputs", &v),
            Err(e) => failures.push(format!("running it on made-up weights and inputs:\n{}", clean(&e))),
        }
    }
    Ok(())
}

/// Packs the plan and the kernels of a compiled program.
fn add_folder(dir: &Path, prefix: &str, pack: &mut Pack) -> Result<(), Error> {
    let failed = |e: std::io::Error| {
        Error::file_help(dir, format!("cannot be read: {e}"), "make it readable, or give the model")
    };
    let mut all: Vec<_> =
        std::fs::read_dir(dir).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    all.sort_by_key(std::fs::DirEntry::file_name);
    for e in all {
        let name = format!("{prefix}{}", e.file_name().to_string_lossy());
        let path = e.path();
        if path.is_dir() {
            add_folder(&path, &format!("{name}/"), pack)?;
        } else if name == wgfc::artefact::PLAN || name.ends_with(".wgsl") {
            let about = if name.ends_with(".wgsl") { "the kernels' WGSL" } else { "the plan" };
            pack.add(&name, about, std::fs::read(&path).map_err(failed)?);
        }
    }
    Ok(())
}

fn times(
    a: &ReportArgs,
    file: ModelFile,
    options: &Options,
    gpu: &Gpu,
    t: &Terminal,
) -> Result<serde_json::Value, Error> {
    let mut model = Model::compile_for(gpu.clone(), &file, options)?;
    let data = DataArgs {
        inputs: vec![],
        random_inputs: true,
        cast: false,
        random_weights: true,
        image_norm: super::args::ImageNorm::default(),
        trust: false,
    };
    let tensors = inputs::make_free(model.inputs(), &[], &data, a.compile.memory_limit, t)?;
    let shapes: BTreeMap<&str, &[usize]> = tensors.iter().map(|(n, x)| (n.as_str(), &x.shape[..])).collect();
    let shapes = json!(shapes);
    let p = profile::take(&mut model, &tensors, RUNS.0, RUNS.1, false, t)?;
    let mut v = profile::json(&p);
    v["input_shapes"] = shapes;
    Ok(v)
}

/// The text with each number replaced by #, as values of weights may be among them.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for c in text.chars() {
        let digit = c.is_ascii_digit() || (inside && c == '.');
        if digit && !inside {
            out.push('#');
        }
        if !digit {
            out.push(c);
        }
        inside = digit;
    }
    out
}

/// The nodes of a model, one in each line.
fn structure(m: &ModelProto) -> String {
    let mut s = String::new();
    for o in &m.opset_import {
        s += &format!("opset {} {}\n", if o.domain.is_empty() { "ai.onnx" } else { &o.domain }, o.version);
    }
    if let Some(g) = &m.graph {
        graph_text(g, 0, &mut s);
    }
    for f in &m.functions {
        s +=
            &format!("function {}.{}({}) -> {}\n", f.domain, f.name, f.input.join(", "), f.output.join(", "));
        let g = GraphProto { node: f.node.clone(), ..GraphProto::default() };
        graph_text(&g, 1, &mut s);
    }
    s
}

fn graph_text(g: &GraphProto, depth: usize, s: &mut String) {
    let indent = "  ".repeat(depth);
    for (what, all) in [("input", &g.input), ("output", &g.output)] {
        for v in all {
            *s += &format!("{indent}{what} {}\n", value_text(v));
        }
    }
    for t in &g.initializer {
        *s += &format!("{indent}constant {}: {}{:?}\n", t.name, data_type::name(t.data_type), t.dims);
    }
    for n in &g.node {
        let mut attributes = vec![];
        for a in n.attribute.iter().filter(|a| a.g.is_none()) {
            attributes.push(match a.r#type {
                attribute_type::FLOAT => format!("{}={}", a.name, a.f),
                attribute_type::INT => format!("{}={}", a.name, a.i),
                attribute_type::STRING => format!("{}={}", a.name, String::from_utf8_lossy(&a.s)),
                attribute_type::INTS if a.ints.len() <= 16 => format!("{}={:?}", a.name, a.ints),
                attribute_type::FLOATS if a.floats.len() <= 16 => format!("{}={:?}", a.name, a.floats),
                other => format!("{}={}", a.name, attribute_type::name(other)),
            });
        }
        let domain = if n.domain.is_empty() { String::new() } else { format!("{}.", n.domain) };
        *s += &format!(
            "{indent}{} = {domain}{}({}) {}  # {}\n",
            n.output.join(", "),
            n.op_type,
            n.input.join(", "),
            attributes.join(" "),
            n.name
        );
        for a in &n.attribute {
            if let Some(g) = &a.g {
                *s += &format!("{indent}  {}:\n", a.name);
                graph_text(g, depth + 2, s);
            }
        }
    }
}

fn value_text(v: &ValueInfoProto) -> String {
    let ty = v.r#type.as_ref().and_then(|t| t.value.as_ref());
    let Some(TypeValue::Tensor(t)) = ty else { return v.name.clone() };
    let dims = t.shape.iter().flat_map(|s| &s.dim).map(|d| match &d.value {
        Some(DimensionValue::Value(n)) => n.to_string(),
        Some(DimensionValue::Param(p)) => p.clone(),
        None => "?".into(),
    });
    format!("{}: {}[{}]", v.name, data_type::name(t.elem_type), dims.collect::<Vec<_>>().join(", "))
}

fn zipped(pack: &Pack) -> Result<Vec<u8>, Error> {
    let failed = |e: &dyn std::fmt::Display| Error::Internal(format!("the report cannot be packed: {e}"));
    let mut bytes = vec![];
    let mut zip = rawzip::ZipArchiveWriter::new(&mut bytes);
    for e in &pack.0 {
        let started = zip.new_file(&e.name).compression_method(rawzip::CompressionMethod::DEFLATE).start();
        let (mut entry, config) = started.map_err(|e| failed(&e))?;
        let encoder = flate2::write::DeflateEncoder::new(&mut entry, flate2::Compression::default());
        let mut writer = config.wrap(encoder);
        writer.write_all(&e.bytes).map_err(|e| failed(&e))?;
        let (encoder, descriptor) = writer.finish().map_err(|e| failed(&e))?;
        encoder.finish().map_err(|e| failed(&e))?;
        entry.finish(descriptor).map_err(|e| failed(&e))?;
    }
    zip.finish().map_err(|e| failed(&e))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_leave_a_message() {
        assert_eq!(without_numbers("class 12: 0.5 and 3. 7e-3"), "class #: # and # #e-#");
    }
}
