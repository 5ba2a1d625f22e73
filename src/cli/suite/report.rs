//! `wgfc bench report`: records of the suite as a page and as Markdown.

use super::published::{self, Published};
use super::{cells, chart, value_text};
use crate::cli::args::BenchReportArgs;
use crate::cli::drawing::escape;
use crate::cli::terminal::Terminal;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};
use wgfc::suite::{Comparison, Found, Record, Row, Unit, compare};
use wgfc::{Error, output};

/// The probability below which a difference is marked.
const RARE: f64 = 0.05;

/// A section of a report.
struct Section {
    title: String,
    text: String,
    /// Pictures as SVG.
    pictures: Vec<String>,
    /// Rows of cells, the first of them the heading.
    table: Vec<Vec<String>>,
}

/// Writes the report.
pub fn main(a: &BenchReportArgs, t: &Terminal) -> Result<(), Error> {
    let mut records: Vec<(String, Record)> = vec![];
    for path in &a.files {
        let record = Record::read(path)?;
        let name = name_of(&record);
        let same = records.iter().filter(|(_, r)| name_of(r) == name).count();
        records.push((if same == 0 { name } else { format!("{name} ({})", same + 1) }, record));
    }
    let sections = sections(&records, a.brief)?;
    output::write_whole(&a.output, html(&sections, &a.title).as_bytes())?;
    if let Some(file) = &a.markdown {
        output::write_whole(file, markdown(&sections, a).as_bytes())?;
    }
    if t.json {
        let (_, base) = &records[0];
        let others = records[1..].iter().map(|(name, r)| {
            let rows = compare(base, r);
            let row = |c: &Comparison| serde_json::json!({ "id": c.id, "factor": c.factor, "p": c.p, "overlap": c.overlap, "unstable": c.unstable });
            serde_json::json!({ "device": name, "agree": agreement(&rows), "rows": rows.iter().map(row).collect::<Vec<_>>() })
        });
        t.print_json(&serde_json::json!({ "output": a.output.display().to_string(), "compared": others.collect::<Vec<_>>() }));
        return Ok(());
    }
    t.result(&format!("{}: {} tables, {} records\n", a.output.display(), sections.len(), records.len()));
    Ok(())
}

/// The name of a record: its device, and what ran there if that is not this program.
fn name_of(record: &Record) -> String {
    let (d, this) = (&record.device, "wgpu");
    match d.implementation.split(',').next().unwrap_or_default() {
        "" => d.name.clone(),
        first if first == this => d.name.clone(),
        first => format!("{}, {first}", d.name),
    }
}

/// The share of rows whose intervals overlap, or of which a record says that they are not stable or have few samples.
fn agreement(rows: &[Comparison]) -> Option<f64> {
    let agree = rows.iter().filter(|c| c.overlap || c.unstable).count();
    (!rows.is_empty()).then(|| agree as f64 / rows.len() as f64)
}

fn sections(records: &[(String, Record)], brief: bool) -> Result<Vec<Section>, Error> {
    let mut out = vec![devices(records)];
    if brief {
        // Agreement is a property of runs of one program, and a brief report compares different ones.
        out[0].text.clear();
    }
    let compared: Vec<BTreeMap<String, Comparison>> = records[1..]
        .iter()
        .map(|(_, r)| compare(&records[0].1, r).into_iter().map(|c| (c.id.clone(), c)).collect())
        .collect();
    // Groups and rows in the order of the first record that has them.
    let mut ids: Vec<(&str, &str, Unit)> = vec![];
    for row in records.iter().flat_map(|(_, r)| &r.rows) {
        if !ids.iter().any(|(_, id, _)| *id == row.id) {
            ids.push((row.group(), &row.id, row.unit));
        }
    }
    if brief {
        ids.retain(|(_, id, _)| compared.iter().any(|c| c.contains_key(*id)));
        out.push(in_short(&ids.iter().map(|i| i.1).collect::<Vec<_>>(), records, &compared));
    }
    let mut groups: Vec<&str> = vec![];
    for (group, ..) in &ids {
        if !groups.contains(group) {
            groups.push(group);
        }
    }
    for group in groups {
        let of: Vec<(&str, Unit)> = ids.iter().filter(|i| i.0 == group).map(|i| (i.1, i.2)).collect();
        out.push(match brief {
            true => brief_section(group, &of, records, &compared),
            false => section(group, &of, records, &compared)?,
        });
    }
    if !brief {
        out.push(others(&published::all()?, records));
    }
    Ok(out)
}

/// The part of a row's name by which rows are taken together: its group, and of kernels the family.
fn family(id: &str) -> &str {
    let parts = if id.starts_with("kernels/") { 2 } else { 1 };
    let end = id.match_indices('/').nth(parts - 1).map_or(id.len(), |(at, _)| at);
    &id[..end]
}

/// How many times as good other records are, over the rows of a group or of a family of kernels.
fn in_short(
    ids: &[&str],
    records: &[(String, Record)],
    compared: &[BTreeMap<String, Comparison>],
) -> Section {
    let mut heading = vec![String::new()];
    heading.extend(
        records[1..].iter().flat_map(|(name, _)| [name.clone(), "rows".into(), "least to greatest".into()]),
    );
    let mut table = vec![heading];
    let mut families: Vec<&str> = vec![];
    for id in ids {
        if !families.contains(&family(id)) {
            families.push(family(id));
        }
    }
    for name in families {
        let mut line = vec![name.to_owned()];
        for compared in compared {
            let factors: Vec<f64> = compared
                .values()
                .filter(|c| family(&c.id) == name && c.factor > 0.0)
                .map(|c| c.factor)
                .collect();
            let mean = (factors.iter().map(|f| f.ln()).sum::<f64>() / factors.len().max(1) as f64).exp();
            let (least, most) =
                factors.iter().fold((f64::INFINITY, 0.0), |(a, b): (f64, f64), f| (a.min(*f), b.max(*f)));
            line.extend(match factors.is_empty() {
                true => [String::new(), String::new(), String::new()],
                false => {
                    [format!("{mean:.2}"), factors.len().to_string(), format!("{least:.2} to {most:.2}")]
                }
            });
        }
        table.push(line);
    }
    let text = format!(
        "How many times as good the others are as {}: geometric means over the rows that both have. Below 1 they are worse.",
        records[0].0
    );
    Section { title: "In short".into(), text, pictures: vec![], table }
}

/// Medians, and how many times as good they are as the first record's.
fn brief_section(
    group: &str,
    ids: &[(&str, Unit)],
    records: &[(String, Record)],
    compared: &[BTreeMap<String, Comparison>],
) -> Section {
    let mut heading = vec![String::new(), records[0].0.clone()];
    heading.extend(records[1..].iter().flat_map(|(name, _)| [name.clone(), "times as good".into()]));
    let mut table = vec![heading];
    for (id, unit) in ids {
        let mut line = vec![id.split_once('/').map_or(*id, |(_, rest)| rest).to_owned()];
        for (i, (_, r)) in records.iter().enumerate() {
            let median = r.row(id).and_then(Row::measured).map(|m| value_text(*unit, m.median));
            line.push(median.unwrap_or_default());
            if let Some(compared) = i.checked_sub(1).and_then(|i| compared.get(i)) {
                line.push(compared.get(*id).map(factor_text).unwrap_or_default());
            }
        }
        table.push(line);
    }
    Section { title: group.to_owned(), text: rare(records), pictures: vec![], table }
}

fn factor_text(c: &Comparison) -> String {
    format!("{:.2}{}", c.factor, if c.p < RARE { " *" } else { "" })
}

/// The meaning of the mark of a difference, where several records are compared.
fn rare(records: &[(String, Record)]) -> String {
    match records.len() {
        1 => String::new(),
        _ => format!("\\* p < {RARE}: the samples are unlikely to be of equal devices."),
    }
}

fn devices(records: &[(String, Record)]) -> Section {
    let heading = ["device", "kind", "driver", "WebGPU", "system", "processor", "measured", "parts"];
    let mut table = vec![heading.map(String::from).to_vec()];
    for (name, r) in records {
        let (d, h) = (&r.device, &r.host);
        let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(r.began.min(1 << 36)));
        table.push(vec![
            name.clone(),
            d.kind.clone(),
            d.driver.clone(),
            format!("{}, {}", d.implementation, d.backend),
            format!("{}, {}", h.os, h.architecture),
            format!("{} ({} threads)", h.processor, h.threads),
            format!("{time}, {}", r.producer),
            format!("{}{}", r.tasks.len(), if r.quick { ", short" } else { "" }),
        ]);
    }
    let mut text = String::new();
    for (name, r) in &records[1..] {
        let rows = compare(&records[0].1, r);
        if let Some(share) = agreement(&rows) {
            let _ = write!(
                text,
                "{name} has {} rows in common with {}: {:.0} % of them agree within their intervals, or say that they are not stable or have few samples. ",
                rows.len(),
                records[0].0,
                100.0 * share
            );
        }
    }
    Section { title: "Machines".into(), text, pictures: vec![], table }
}

fn section(
    group: &str,
    ids: &[(&str, Unit)],
    records: &[(String, Record)],
    compared: &[BTreeMap<String, Comparison>],
) -> Result<Section, Error> {
    let mut heading = vec![String::new()];
    for (i, (name, _)) in records.iter().enumerate() {
        heading.extend([name.clone(), "95 % interval".into(), "variation".into()]);
        if i > 0 {
            heading.extend(["times as good".into(), "p".into()]);
        }
    }
    let mut table = vec![heading];
    for (id, _) in ids {
        let mut line = vec![id.split_once('/').map_or(*id, |(_, rest)| rest).to_owned()];
        for (i, (_, r)) in records.iter().enumerate() {
            line.extend(match r.row(id) {
                Some(row) => cells(row),
                None => ["-".into(), "not part of this record".into(), String::new()],
            });
            if let Some(compared) = i.checked_sub(1).and_then(|i| compared.get(i)) {
                line.extend(match compared.get(*id) {
                    Some(c) => {
                        [factor_text(c), if c.p < 1e-4 { "< 0.0001".into() } else { format!("{:.4}", c.p) }]
                    }
                    None => [String::new(), String::new()],
                });
            }
        }
        table.push(line);
    }
    let mut units: Vec<Unit> = vec![];
    for (_, unit) in ids {
        if !units.contains(unit) {
            units.push(*unit);
        }
    }
    let measured = |id: &str| records.iter().any(|(_, r)| r.row(id).is_some_and(|r| r.measured().is_some()));
    let mut pictures = vec![];
    for unit in units {
        let rows: Vec<&str> = ids.iter().filter(|(id, u)| *u == unit && measured(id)).map(|i| i.0).collect();
        if !rows.is_empty() && unit != Unit::One {
            pictures.push(chart::svg(group, &rows, unit, records)?);
        }
    }
    Ok(Section { title: group.to_owned(), text: rare(records), pictures, table })
}

/// Published figures, beside the rows that measure the same.
fn others(published: &[Published], records: &[(String, Record)]) -> Section {
    let mut heading = ["source", "device", "figure", "published"].map(String::from).to_vec();
    heading.extend(records.iter().map(|(name, _)| name.clone()));
    let mut table = vec![heading];
    for p in published {
        let values: Vec<String> = p.values.iter().map(|v| value_text(p.unit, *v)).collect();
        let mut line = vec![p.source.clone(), p.device.clone(), p.what.clone(), values.join(" to ")];
        for (_, r) in records {
            let row = p.row.as_deref().and_then(|id| r.row(id));
            line.push(match (row.map(|r: &Row| &r.found), &p.missing) {
                (Some(Found::Measured(m)), _) => value_text(p.unit, m.median),
                (Some(Found::Missing { missing }), _) => missing.clone(),
                (None, Some(why)) => why.clone(),
                (None, None) => "not part of this record".into(),
            });
        }
        table.push(line);
    }
    let text =
        "Devices differ, so that these figures say how far things are apart, not which is better.".to_owned();
    Section { title: "Published by others".into(), text, pictures: vec![], table }
}

/// A title that begins with a capital.
fn capital(title: &str) -> String {
    let mut chars = title.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

fn html(sections: &[Section], title: &str) -> String {
    let mut s = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>wgfc: measurements</title>\n<style>\n\
         body { font: 14px/1.4 system-ui, sans-serif; margin: 24px; color: #343a48; max-width: 1400px }\n\
         table { border-collapse: collapse; margin: 12px 0 }\n\
         td, th { padding: 3px 8px; border-bottom: 1px solid #eceff3; text-align: left; font-weight: normal }\n\
         th { color: #6b7385 } td + td { font-variant-numeric: tabular-nums; white-space: nowrap }\n\
         div { overflow-x: auto } svg { max-width: 100%; height: auto }\n\
         </style></head><body>\n<h1>TITLE</h1>\n<p>Medians of all samples with their 95 % intervals, which span those of all passes of \
         the suite. Variation: the standard deviation over the mean.</p>\n"
        .replace("TITLE", &escape(title));
    for section in sections {
        let _ =
            writeln!(s, "<h2>{}</h2>\n<p>{}</p>", escape(&capital(&section.title)), escape(&section.text));
        section.pictures.iter().for_each(|p| s += p);
        s += "<div><table>\n";
        for (i, row) in section.table.iter().enumerate() {
            let cell = if i == 0 { "th" } else { "td" };
            let cells: String = row.iter().map(|c| format!("<{cell}>{}</{cell}>", escape(c))).collect();
            let _ = writeln!(s, "<tr>{cells}</tr>");
        }
        s += "</table></div>\n";
    }
    s + "</body></html>\n"
}

fn markdown(sections: &[Section], a: &BenchReportArgs) -> String {
    let plain = |c: &String| c.replace('|', "\\|").replace(char::is_control, " ");
    let figures = match a.brief {
        true => "Medians of all samples.",
        false => {
            "Medians of all samples with their 95 % intervals, which span those of all passes; variation is the standard deviation over the mean."
        }
    };
    let mut s = format!(
        "# {}\n\nWhat `wgfc bench suite` measured, as `wgfc bench report` writes it. {figures}\n\n",
        plain(&a.title)
    );
    for section in sections {
        let _ = writeln!(s, "## {}\n", capital(&section.title));
        if !section.text.is_empty() {
            let _ = writeln!(s, "{}\n", section.text);
        }
        for (i, row) in section.table.iter().enumerate() {
            let _ = writeln!(s, "| {} |", row.iter().map(plain).collect::<Vec<_>>().join(" | "));
            if i == 0 {
                let rule: Vec<&str> =
                    row.iter().enumerate().map(|(c, _)| if c == 0 { "---" } else { "--:" }).collect();
                let _ = writeln!(s, "|{}|", rule.join("|"));
            }
        }
        s.push('\n');
    }
    s
}
