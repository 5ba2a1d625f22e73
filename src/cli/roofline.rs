//! The roofline picture: the arithmetic intensity of each dispatch, and the rate that the device allows for it.

use super::axes::{Frame, INK, chart, decades, disc, entry, plot, power, stroke};
use super::drawing::colours;
use plotters::prelude::{DashedLineSeries, IntoLogRange, LineSeries};
use wgfc::Error;
use wgfc::inspect::{Roof, Summary, bytes_text, family, flops_text, time_text};
use wgfc::ir::Program;

/// Draws the picture for a model's name and the name of the device profile. The area of a dot is the dispatch's share of the
/// time bound. Dispatches without arithmetic are at the left edge. Kernels on matrix units have their own roof.
pub fn svg(
    (name, profile): (&str, &str),
    program: &Program,
    summary: &Summary,
    roof: Roof,
) -> Result<String, Error> {
    let points: Vec<(f64, usize)> = summary
        .dispatches
        .iter()
        .enumerate()
        .map(|(i, f)| (f.flops as f64 / (f.bytes.max(1)) as f64, i))
        .collect();
    let roofs: Vec<Roof> = program.dispatches.iter().map(|d| roof.above(program, d.kernel)).collect();
    let highest = roofs.iter().map(|r| r.peak).fold(roof.peak, f64::max);
    let (ridge, highest_ridge) = (roof.peak / roof.bandwidth, highest / roof.bandwidth);
    let positive = points.iter().map(|p| p.0).filter(|x| *x > 0.0);
    let x = decades(positive.chain([0.1, ridge * 4.0, highest_ridge * 1.5]));
    let under = |roof: Roof, x: f64| (x * roof.bandwidth).min(roof.peak);
    let y = decades([under(roof, x.start * 1.01), highest * 1.5].into_iter());

    let title = format!("{name}: {} dispatches under the roof", program.dispatches.len());
    let matrix = match highest > roof.peak {
        true => format!(" ({}/s on matrix units)", flops_text(highest as u64)),
        false => String::new(),
    };
    let below = format!(
        "at least {} under {}/s and {}/s{matrix}; areas of dots are shares of it; device profile {profile}",
        time_text(summary.seconds),
        bytes_text(roof.bandwidth as u64),
        flops_text(roof.peak as u64),
    );
    let mut families: Vec<&str> = (0..program.dispatches.len()).map(|i| family(program, i)).collect();
    families.sort_unstable();
    families.dedup();
    chart((860, 520), &title, &below, |on| {
        for (n, f) in families.iter().rev().enumerate() {
            entry(on, 726, 436 - 16 * n as i32, f, colours(Some(f)).0)?;
        }
        let names = ["arithmetic intensity, FLOP per byte", "attainable FLOP/s"];
        let frame = Frame { margins: [60, 24, 62, 86], names, values: [power, rate_text] };
        let mut on = plot(on, &frame, x.clone().log_scale(), y.log_scale())?;
        let line = |roof: Roof| [x.start, roof.peak / roof.bandwidth, x.end].map(|x| (x, under(roof, x)));
        if highest > roof.peak {
            let line = line(Roof { peak: highest, ..roof });
            on.draw_series(DashedLineSeries::new(line, 50, 40, stroke(INK, 1.2)))?;
        }
        on.draw_series(LineSeries::new(line(roof), stroke(INK, 1.6)))?;
        let mut discs = String::new();
        let mut dots: Vec<(f64, f64, usize)> = points
            .iter()
            .map(|(x, i)| (summary.dispatches[*i].seconds / summary.seconds.max(f64::MIN_POSITIVE), *x, *i))
            .collect();
        // Small dots are drawn last, so that large ones do not hide them.
        dots.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (share, at, i) in dots {
            let (f, d) = (&summary.dispatches[i], &program.dispatches[i]);
            let Some(k) = program.kernels.get(d.kernel) else { continue };
            let family = family(program, i);
            let (line, _) = colours(Some(family));
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
            let (x, radius) = (at.max(x.start), 3.0 + 40.0 * share.sqrt());
            disc(&mut discs, on.backend_coord(&(x, under(roofs[i], x))), radius, line, 0.45, &tip);
        }
        Ok(discs)
    })
}

fn rate_text(v: &f64) -> String {
    let e = v.log10().round() as usize;
    let unit = ["", "k", "M", "G", "T", "P"].get(e / 3).copied().unwrap_or("?");
    format!("{} {unit}", 10u64.pow(e as u32 % 3))
}
