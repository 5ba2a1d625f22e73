//! `wgfc device`.

use super::args::DeviceArgs;
use super::compile::choice;
use super::summary::{bytes_text, table};
use super::terminal::Terminal;
use wgfc::model::device_error;
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
    let gpu = Gpu::request_blocking(&choice(a.adapter.adapter.as_deref())).map_err(device_error)?;
    let chosen = gpu.summary();
    if t.json {
        let v = serde_json::json!({
            "adapters": adapters.iter().map(json).collect::<Vec<_>>(),
            "chosen": adapters.iter().position(|x| x == chosen),
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
    t.print(&s);
    Ok(())
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
            "f16": l.f16, "subgroup": l.subgroup, "timestamps": l.timestamps, "timestamps_in_pass": l.timestamps_in_pass,
        },
    })
}
