//! The roofline of all problems: the rate that each reaches, under the rate that the device allows.

use super::report::{Run, speed};
use crate::cli::axes::{Frame, INK, chart, decades, disc, entry, plot, stroke};
use plotters::prelude::{IntoLogRange, LineSeries};
use wgfc::Error;
use wgfc::inspect::flops_text;

const COLOURS: [&str; 10] = [
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0",
    "#e3116c",
];
const FAMILIES: [&str; 10] =
    ["map", "move", "reduce", "row", "scan", "sort", "product", "conv", "window", "attention"];

/// The colour of a family of problems.
pub fn colour(family: &str) -> &'static str {
    let i = FAMILIES.iter().position(|f| *f == family).unwrap_or(8);
    COLOURS[i % COLOURS.len()]
}

/// Draws the picture. Problems without arithmetic are at the left, in a column for each family.
pub fn svg(run: &Run) -> Result<String, Error> {
    let highest = run.speeds.flops_matrix.max(run.speeds.flops_f32);
    let bandwidth = run.speeds.bandwidth;
    let (intensity, rate) = (0.01..1e4, decades([bandwidth * 1e-4, highest * 1.5].into_iter()));
    let below = format!("lines: {}, {}/s in f32", speed(bandwidth), flops_text(run.speeds.flops_f32 as u64));
    chart((1100, 560), "What problems reach under the roof", &below, |on| {
        for (i, f) in FAMILIES.iter().enumerate() {
            entry(on, 981, 52 + 18 * i as i32, f, colour(f))?;
        }
        let x = "arithmetic intensity, FLOP per byte (without arithmetic: left, as if 0.02 to 0.08)";
        let values: [fn(&f64) -> String; 2] =
            [|v| format!("1e{:.0}", v.log10()), |v| format!("{}/s", flops_text(v.round() as u64))];
        let frame = Frame { margins: [60, 130, 62, 120], names: [x, "attained FLOP/s"], values };
        let mut on =
            plot(on, &frame, decades([0.01, 1e4].into_iter()).log_scale(), rate.clone().log_scale())?;
        for peak in [run.speeds.flops_f32, highest] {
            let roof = [0.01, peak / bandwidth, 1e4].map(|x| (x, (x * bandwidth).min(peak)));
            on.draw_series(LineSeries::new(roof, stroke(INK, 1.4)))?;
        }
        let mut discs = String::new();
        for r in &run.rows {
            let Ok(m) = &r.measured else { continue };
            let p = &r.problem;
            let share = run.share(p, m);
            let seconds = m.time.median * 1e-9;
            let (x, y) = match p.flops {
                0 => {
                    let column = FAMILIES.iter().position(|f| *f == p.family).unwrap_or(8) as f64;
                    let x = 0.02 * 10f64.powf(0.1 * column);
                    (x, x * m.bytes as f64 / seconds)
                }
                n => (n as f64 / m.bytes.max(1) as f64, n as f64 / seconds),
            };
            let tip = format!("{}: {:.0} % of the bound", p.key(), 100.0 * share);
            let at = on.backend_coord(&(x.clamp(intensity.start, intensity.end), y.max(rate.start)));
            disc(&mut discs, at, 5.0, colour(&p.family), 0.6, &tip);
        }
        Ok(discs)
    })
}
