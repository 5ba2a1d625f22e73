//! The roofline picture: the arithmetic intensity of each dispatch, and the rate that the device allows for it.

use super::axes::{Area, picture};
use super::drawing::{colours, escape};
use std::fmt::Write as _;
use wgfc::inspect::{Roof, Summary, bytes_text, family, flops_text, time_text};
use wgfc::ir::Program;

const AREA: Area = Area { width: 860.0, height: 520.0, left: 86.0, right: 24.0, top: 60.0, bottom: 62.0 };

/// Draws the picture for a model's name and the name of the device profile. The area of a dot is the dispatch's share of the
/// time bound. Dispatches without arithmetic are at the left edge. Kernels on matrix units have their own roof.
pub fn svg((name, profile): (&str, &str), program: &Program, summary: &Summary, roof: Roof) -> String {
    let points: Vec<(f64, usize)> = summary
        .dispatches
        .iter()
        .enumerate()
        .map(|(i, f)| (f.flops as f64 / (f.bytes.max(1)) as f64, i))
        .collect();
    let roofs: Vec<Roof> = program.dispatches.iter().map(|d| roof.above(program, d.kernel)).collect();
    let highest = roofs.iter().map(|r| r.peak).fold(roof.peak, f64::max);
    let (ridge, highest_ridge) = (roof.peak / roof.bandwidth, highest / roof.bandwidth);
    let positive = || points.iter().map(|p| p.0).filter(|x| *x > 0.0);
    let low = positive().fold(ridge, f64::min).min(0.1).log10().floor();
    let high = positive().fold((ridge * 4.0).max(highest_ridge * 1.5), f64::max).log10().ceil();
    let under = |roof: Roof, x: f64| (x * roof.bandwidth).min(roof.peak);
    let rate = |x: f64| under(roof, x);
    let (bottom, top) = (rate(10f64.powf(low)).log10().floor(), (highest * 1.5).log10().ceil());
    let px = |x: f64| AREA.x((x.log10().max(low) - low) / (high - low));
    let py = |y: f64| AREA.y((y.log10().max(bottom) - bottom) / (top - bottom));

    let title = format!("{name}: {} dispatches under the roof", program.dispatches.len());
    let below = format!(
        "at least {} under {}/s and {}/s, by the device profile {profile}; the area of a dot is its share of that time",
        time_text(summary.seconds),
        bytes_text(roof.bandwidth as u64),
        flops_text(roof.peak as u64),
    );
    let mut s = picture(AREA.width, AREA.height, &title, &below);
    for e in low as i32..=high as i32 {
        AREA.mark_x(&mut s, px(10f64.powi(e)), &plain(e));
    }
    for e in bottom as i32..=top as i32 {
        AREA.mark_y(&mut s, py(10f64.powi(e)), &rate_text(e));
    }
    AREA.name_x(&mut s, "arithmetic intensity, FLOP per byte");
    AREA.name_y(&mut s, "attainable FLOP/s");
    let start = 10f64.powf(low);
    let _ = writeln!(
        s,
        "<polyline points=\"{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}\" fill=\"none\" stroke=\"#1f2430\" stroke-width=\"1.6\"/>",
        px(start),
        py(rate(start)),
        px(ridge),
        py(roof.peak),
        AREA.x(1.0),
        py(roof.peak)
    );
    if highest > roof.peak {
        let _ = writeln!(
            s,
            "<polyline points=\"{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}\" fill=\"none\" stroke=\"#1f2430\" stroke-width=\"1.2\" \
             stroke-dasharray=\"5 4\"><title>matrix units: {}/s</title></polyline>",
            px(ridge),
            py(roof.peak),
            px(highest_ridge),
            py(highest),
            AREA.x(1.0),
            py(highest),
            flops_text(highest as u64)
        );
    }
    let mut dots: Vec<(f64, f64, usize)> = points
        .iter()
        .map(|(x, i)| (summary.dispatches[*i].seconds / summary.seconds.max(f64::MIN_POSITIVE), *x, *i))
        .collect();
    // Small dots are drawn last, so that large ones do not hide them.
    dots.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (share, x, i) in dots {
        let (f, d) = (&summary.dispatches[i], &program.dispatches[i]);
        let Some(k) = program.kernels.get(d.kernel) else { continue };
        let family = family(program, i);
        let (line, _) = colours(Some(family));
        let x = x.max(start);
        let tip = format!(
            "dispatch {i}: {} ({})\n{}\n{}, {}\nat least {} ({}-bound), {:.1}% of the whole",
            k.name,
            family,
            wgfc::inspect::nodes_of(&d.nodes, 6),
            bytes_text(f.bytes),
            flops_text(f.flops),
            time_text(f.seconds),
            f.bound,
            100.0 * share
        );
        let _ = writeln!(
            s,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{:.1}\" fill=\"{line}\" fill-opacity=\"0.45\" stroke=\"{line}\"><title>{}</title></circle>",
            px(x),
            py(under(roofs[i], x)),
            3.0 + 40.0 * share.sqrt(),
            escape(&tip)
        );
    }
    let mut families: Vec<&str> = (0..program.dispatches.len()).map(|i| family(program, i)).collect();
    families.sort_unstable();
    families.dedup();
    for (n, f) in families.iter().enumerate() {
        let y = AREA.y(0.0) - 16.0 * (families.len() - n) as f64 + 4.0;
        let (line, fill) = colours(Some(f));
        let _ = writeln!(
            s,
            "<rect x=\"{:.0}\" y=\"{:.1}\" width=\"11\" height=\"11\" rx=\"3\" fill=\"{fill}\" stroke=\"{line}\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\">{}</text>",
            AREA.x(1.0) - 110.0,
            y - 9.0,
            AREA.x(1.0) - 93.0,
            y + 1.0,
            escape(f)
        );
    }
    s + "</svg>\n"
}

fn plain(e: i32) -> String {
    if e >= 0 {
        format!("{}", 10u64.pow(e.min(18) as u32))
    } else {
        format!("{:.*}", -e as usize, 10f64.powi(e))
    }
}

fn rate_text(e: i32) -> String {
    let unit = ["", "k", "M", "G", "T", "P"].get((e.max(0) / 3) as usize).copied().unwrap_or("?");
    format!("{} {unit}", 10u64.pow((e.max(0) % 3) as u32))
}
