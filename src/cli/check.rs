//! `wgfc check`: lists everything in a model that is wrong or unsupported.

use super::args::CheckArgs;
use super::shown;
use super::terminal::{Terminal, findings_json};
use std::collections::BTreeMap;
use std::path::Path;
use wgfc::compiler::import::check;
use wgfc::source::ModelFile;
use wgfc::{Error, ErrorClass, Options};

/// Lists everything in a model that is wrong or unsupported. Returns the exit code.
pub fn main(a: &CheckArgs, t: &Terminal) -> u8 {
    match run(a, t) {
        Ok(code) => code,
        Err(e) => {
            t.error(&e);
            e.class().exit_code()
        }
    }
}

fn run(a: &CheckArgs, t: &Terminal) -> Result<u8, Error> {
    let file = ModelFile::open(&a.model)?;
    let mut options = Options {
        dims: a.dims.iter().cloned().collect(),
        values: super::args::values(&a.fixed, a.memory_limit)?,
        memory_limit: a.memory_limit,
        ..Options::default()
    };
    options.dims = super::given_dims::dims(&a.model, &options, &a.like)?.into_iter().collect();
    let report = check(file.bytes(), &file, &options);
    let error = (!report.errors.is_empty()).then(|| Error::Compile {
        path: Some(a.model.clone()),
        errors: wgfc::compiler::Errors(report.errors.clone()),
    });
    let missing = file.missing_weights().unwrap_or_default();
    let code = error.as_ref().map_or(0, |e| e.class().exit_code());
    if t.json {
        let ports = |p: &[(String, String)]| -> serde_json::Value {
            p.iter().map(|(name, ty)| serde_json::json!({ "name": name, "type": ty })).collect()
        };
        t.print_json(&serde_json::json!({
            "ok": error.is_none(),
            "ir_version": report.ir_version,
            "schema_version": report.schema.map(|(major, minor)| format!("{major}.{minor}")),
            "opsets": report.opsets.iter().map(|(d, v)| (opset_name(d).to_owned(), serde_json::json!(v))).collect::<serde_json::Map<_, _>>(),
            "producer": report.producer,
            "operators": report.operators,
            "unsupported": report.unsupported.iter().map(|u| serde_json::json!({
                "operator": u.operator, "opset": u.opset, "reason": u.reason, "nodes": u.nodes,
            })).collect::<Vec<_>>(),
            "errors": error.as_ref().map_or_else(|| serde_json::json!([]), findings_json),
            "warnings": report.warnings,
            "shape_inputs": report.shape_inputs,
            "missing_weights": missing,
            "inputs": ports(&report.inputs),
            "outputs": ports(&report.outputs),
        }));
        return Ok(code);
    }
    let mut s = String::new();
    let opsets: Vec<String> = report.opsets.iter().map(|(d, v)| format!("{} {v}", opset_name(d))).collect();
    let by = if report.producer.is_empty() { String::new() } else { format!(", by {}", report.producer) };
    let nodes: usize = report.operators.values().sum();
    if report.ir_version > 0 || nodes > 0 {
        let format = match report.schema {
            Some((major, minor)) => format!("program of torch.export, schema {major}.{minor}"),
            None => format!("IR version {}, opset {}", report.ir_version, opsets.join(", ")),
        };
        s += &format!("{}: {format}{by}\n", shown(&a.model));
        s += &format!("  {nodes} nodes of {} operators", report.operators.len());
        let mut counts: Vec<(&String, &usize)> = report.operators.iter().collect();
        counts.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        let listed: Vec<String> = counts.iter().map(|(o, n)| format!("{o} {n}")).collect();
        s += &wrapped(&listed);
    }
    for (what, ports) in [("input ", &report.inputs), ("output", &report.outputs)] {
        for (name, ty) in ports {
            s += &format!("  {what} {name}: {ty}\n");
        }
    }
    if !report.shape_inputs.is_empty() {
        s += &format!("  to be given when compiling, with --fix: {}\n", report.shape_inputs.join(", "));
    }
    match &error {
        None => s += "  everything in it is supported\n",
        Some(e) => {
            let findings = e.findings();
            let count = |c: ErrorClass| findings.iter().filter(|f| f.class == c).count();
            let (wrong, unsupported) = (count(ErrorClass::Model), count(ErrorClass::Unsupported));
            s += &format!("  {unsupported} not supported, {wrong} wrong\n");
        }
    }
    t.print(&s);
    let mut warnings = report.warnings;
    if let Some(words) = missing_text(&missing, &a.model) {
        warnings.push(words);
    }
    t.warnings(&warnings);
    if let Some(e) = &error {
        t.error(e);
    }
    Ok(code)
}

/// The text about missing weights, which names the first files of many; `None` if none is missing.
fn missing_text(missing: &BTreeMap<String, usize>, model: &Path) -> Option<String> {
    if missing.is_empty() {
        return None;
    }
    let folder = model.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let files: Vec<String> = missing.keys().cloned().collect();
    let tensors: usize = missing.values().sum();
    Some(format!(
        "the weights of {tensors} tensors are missing: {} (looked for in {}); commands that need no weights still work, such as \
         `wgfc inspect`, and others with --random-weights",
        super::some_of(&files),
        folder.display()
    ))
}

fn opset_name(domain: &str) -> &str {
    if domain.is_empty() { "ai.onnx" } else { domain }
}

/// Items as lines of about a hundred characters, after a colon.
fn wrapped(items: &[String]) -> String {
    let mut s = String::from(":\n");
    let mut line = String::from("   ");
    for (i, item) in items.iter().enumerate() {
        if line.len() + item.len() > 98 {
            s += &line;
            s += "\n";
            line = String::from("   ");
        }
        line += &format!(" {item}{}", if i + 1 < items.len() { "," } else { "" });
    }
    s + &line + "\n"
}
