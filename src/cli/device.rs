//! `wgfc device`.

use super::adapter::choice;
use super::args::DeviceArgs;
use super::summary::{bytes_text, table, time_text};
use super::terminal::Terminal;
use wgfc::model::device_error;
use wgfc::runtime::measure::{Measured, measure_blocking};
use wgfc::runtime::{AdapterSummary, Gpu};
use wgfc::{Error, Problem};

/// Lists the adapters; measures one.
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
    let measured = if a.measure {
        let _progress = t.spinner(format!("measuring {}", chosen.name));
        Some(measure_blocking(&gpu).map_err(device_error)?)
    } else {
        None
    };
    if t.json {
        let v = serde_json::json!({
            "adapters": adapters.iter().map(json).collect::<Vec<_>>(),
            "chosen": adapters.iter().position(|x| x == chosen),
            "measured": measured.as_ref().map(|m| serde_json::json!({
                "copy_bytes_per_second": m.copy_bytes_per_second,
                "copy_bytes": m.copy_bytes,
                "dispatch_ns": m.dispatch_ns,
                "dispatch_pass_each_ns": m.dispatch_pass_each_ns,
                "round_trip_ns": m.round_trip_ns,
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
        None => s += "\n  --measure measures bandwidth and the cost of a dispatch\n",
    }
    t.print(&s);
    Ok(())
}

fn measured_text(m: &Measured) -> String {
    let ns = |v: f64| time_text(v * 1e-9);
    let rows = [
        ("bandwidth", format!("{:.1} GB/s", m.copy_bytes_per_second / (1u64 << 30) as f64)),
        ("one dispatch of many in a pass", ns(m.dispatch_ns)),
        ("one dispatch in a pass of its own", ns(m.dispatch_pass_each_ns)),
        ("one dispatch, submitted and waited for", ns(m.round_trip_ns)),
    ];
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(k, v)| vec![format!("  {k}"), v]).collect();
    let many = m.round_trip_ns / m.dispatch_ns.max(1.0);
    format!(
        "\n  measured, copying {} (GB is 2^30 bytes)\n{}  waiting for each dispatch makes it look {many:.0} times as dear as it is\n",
        bytes_text(m.copy_bytes),
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

fn json(a: &AdapterSummary) -> serde_json::Value {
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
