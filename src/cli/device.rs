//! `wgfc device`.

use super::adapter::choice;
use super::args::DeviceArgs;
use super::device_cache;
use super::terminal::Terminal;
use std::path::PathBuf;
use wgfc::compiler::device::Speeds;
use wgfc::inspect::{bytes_text, flops_text, table, time_text};
use wgfc::model::device_error;
use wgfc::runtime::{AdapterSummary, Gpu};
use wgfc::speeds::{self, Measurement, Source};
use wgfc::{Cache, Error, Problem};

/// Lists the adapters, and measures one if this is requested.
pub fn main(a: &DeviceArgs, t: &Terminal) -> Result<(), Error> {
    let adapters = Gpu::adapters_blocking();
    if adapters.is_empty() {
        return Err(Error::Device(Problem::with_help(
            "there is no GPU adapter",
            "install a Vulkan driver; `mesa-vulkan-drivers` has a software one",
        )));
    }
    let gpu = Gpu::request_blocking(&choice(&a.adapter)).map_err(device_error)?;
    let chosen = gpu.summary();
    let cache = Cache::of_user();
    let before = device_cache::speeds(cache.as_ref(), &gpu, t);
    let measured = if a.measure { Some(measure(&gpu, cache.as_ref(), before.clone(), t)?) } else { None };
    if t.json {
        let v = serde_json::json!({
            "adapters": adapters.iter().map(json).collect::<Vec<_>>(),
            "chosen": adapters.iter().position(|x| x == chosen),
            "device_profile": before.0.to_string(),
            "speeds": before.1,
            "measured": measured.as_ref().map(|m| serde_json::json!({
                "speeds": m.found.speeds,
                "passes": m.found.passes,
                "side_by_side": m.found.side_by_side,
                "doubts": m.found.doubts,
                "stored": m.stored.as_ref().map(|p| p.display().to_string()),
                "copy_bytes_per_second": m.found.beside.copy_bytes_per_second,
                "copy_bytes": m.found.beside.copy_bytes,
                "dispatch_ns": m.found.beside.dispatch_ns,
                "dispatch_pass_each_ns": m.found.beside.dispatch_pass_each_ns,
                "round_trip_ns": m.found.beside.round_trip_ns,
            })),
        });
        t.print_json(&v);
        return Ok(());
    }
    let mut rows = vec![["", "number", "name", "kind", "backend", "driver"].map(String::from).to_vec()];
    for (i, x) in adapters.iter().enumerate() {
        let mark = if x == chosen { "*" } else { "" };
        rows.push(vec![
            mark.into(),
            i.to_string(),
            x.name.clone(),
            x.kind.clone(),
            x.backend.clone(),
            x.driver.clone(),
        ]);
    }
    let mut s = table(&rows, &[false, true]);
    s += &format!("\n  {} (marked *)\n", chosen.name);
    s += &table(&limits(chosen), &[false, true]);
    match &measured {
        Some(m) => s += &measured_text(m),
        None => {
            s += &format!(
                "\n  device profile: {}; --measure measures how fast it is, and keeps that\n",
                before.0
            );
        }
    }
    t.print(&s);
    Ok(())
}

/// The measured speeds, and those that were known before.
struct Found {
    before: (Source, Speeds),
    found: Measurement,
    stored: Option<PathBuf>,
}

fn measure(gpu: &Gpu, cache: Option<&Cache>, before: (Source, Speeds), t: &Terminal) -> Result<Found, Error> {
    let found = {
        let name = &gpu.summary().name;
        let progress = t.spinner(format!("measuring {name}"));
        speeds::measure(gpu, &|what| progress.says(format!("measuring {name}: {what}")))?
    };
    let mut stored = None;
    match cache {
        Some(cache) => {
            cache.keep_speeds(gpu, found.speeds)?;
            stored = Some(cache.speeds_file(gpu.summary()));
        }
        None => t.note("there is no folder to store measurements in: name one in WGFC_CACHE_DIR"),
    }
    warn_of_doubts(&found, stored.is_some(), t);
    Ok(Found { before, found, stored })
}

fn warn_of_doubts(found: &Measurement, stored: bool, t: &Terminal) {
    if found.doubts.is_empty() {
        return;
    }
    let mut warnings: Vec<String> = found
        .doubts
        .iter()
        .map(|d| format!("{} passes of the measurement disagree: {d}", found.passes.len()))
        .collect();
    let kept = if stored { "; until then --no-tuning runs without the stored speeds" } else { "" };
    warnings.push(format!(
        "kernels chosen by wrong speeds can be slow: close other programs that use the device or the processor, and run \
         wgfc device --measure again{kept}"
    ));
    t.warnings(&warnings);
}

/// Descriptions of the fields of speeds, in the order of [`speeds::fields`].
const MEANINGS: [&str; 14] = [
    "memory bandwidth",
    "f32 arithmetic",
    "f16 arithmetic",
    "f16 on matrix units",
    "one tiny dispatch of many in a pass",
    "cores",
    "invocations under way together",
    "latency of memory",
    "an operation that waits for another",
    "a barrier in a workgroup",
    "cache bandwidth of a workgroup",
    "cache bandwidth of all",
    "workgroups that certainly run together",
    "what one hands on, until all have it",
];

fn speeds_text(m: &Found) -> String {
    let source = m.before.0.to_string();
    let mut rows = vec![vec!["  measured".to_owned(), "now".into(), source]];
    let (mut now, mut then) = (m.found.speeds, m.before.1);
    let fields = speeds::fields(&mut now).into_iter().zip(speeds::fields(&mut then));
    for (((_, unit, now), (_, _, then)), name) in fields.zip(MEANINGS) {
        let shown = |v: f64| match unit {
            "B/s" => format!("{}/s", bytes_text(v as u64)),
            "FLOP/s" => format!("{}/s", flops_text(v as u64)),
            "s" => time_text(v),
            "" => format!("{v:.0}"),
            unit => format!("{v:.0} {unit}"),
        };
        rows.push(vec![format!("  {name}"), shown(*now), shown(*then)]);
    }
    let mut s = format!("\n{}", table(&rows, &[false, true, true]));
    match &m.stored {
        Some(p) => s += &format!("  stored in {}\n", p.display()),
        None => s += "  nothing was stored\n",
    }
    s
}

fn measured_text(found: &Found) -> String {
    let m = &found.found.beside;
    let ns = |v: f64| time_text(v * 1e-9);
    let rows = [
        ("one dispatch of many in a pass", ns(m.dispatch_ns)),
        ("one dispatch in a pass of its own", ns(m.dispatch_pass_each_ns)),
        ("one dispatch, submitted and waited for", ns(m.round_trip_ns)),
    ];
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(k, v)| vec![format!("  {k}"), v]).collect();
    let many = m.round_trip_ns / m.dispatch_ns.max(1.0);
    format!(
        "{}\n  what a dispatch costs\n{}  if each dispatch is waited for, it appears to take {many:.0} times as long as it does\n",
        speeds_text(found),
        table(&rows, &[false, true])
    )
}

fn limits(a: &AdapterSummary) -> Vec<Vec<String>> {
    let l = &a.limits;
    let size = |v: [u32; 3]| format!("{} × {} × {}", v[0], v[1], v[2]);
    let yes = |b: bool| if b { "yes" } else { "no" }.to_owned();
    let rows = [
        ("storage buffers a kernel", l.storage_buffers.to_string()),
        ("bytes of a binding", bytes_text(l.binding_bytes)),
        ("bytes of a buffer", bytes_text(l.buffer_bytes)),
        ("workgroup memory", bytes_text(u64::from(l.workgroup_bytes))),
        ("invocations of a workgroup", l.invocations.to_string()),
        ("size of a workgroup", size(l.workgroup_size)),
        ("workgroups a dimension", l.workgroups.to_string()),
        ("f16 in kernels", yes(l.f16)),
        (
            "subgroups",
            l.subgroup
                .map_or("no".into(), |(a, b)| if a == b { a.to_string() } else { format!("{a} to {b}") }),
        ),
        ("matrix units for f16", yes(l.cooperative_matrix)),
        ("timestamps", yes(l.timestamps)),
        ("timestamps within a pass", yes(l.timestamps_in_pass)),
    ];
    rows.into_iter().map(|(k, v)| vec![format!("  {k}"), v]).collect()
}

/// An adapter with its limits and features, as JSON.
pub fn json(a: &AdapterSummary) -> serde_json::Value {
    let l = &a.limits;
    serde_json::json!({
        "name": a.name, "backend": a.backend, "driver": a.driver, "kind": a.kind, "is_software": a.is_software,
        "limits": {
            "storage_buffers": l.storage_buffers, "binding_bytes": l.binding_bytes, "buffer_bytes": l.buffer_bytes,
            "workgroup_bytes": l.workgroup_bytes, "invocations": l.invocations, "workgroup_size": l.workgroup_size,
            "workgroups": l.workgroups,
        },
        "features": {
            "f16": l.f16, "subgroup": l.subgroup, "cooperative_matrix": l.cooperative_matrix,
            "timestamps": l.timestamps, "timestamps_in_pass": l.timestamps_in_pass,
        },
    })
}
