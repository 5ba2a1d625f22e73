//! The roofline of all problems: the rate that each reaches, under the rate that the device allows.

use super::report::{Run, speed};
use crate::cli::axes::{Area, line, picture};
use crate::cli::drawing::escape;
use std::fmt::Write as _;
use wgfc::inspect::flops_text;

const AREA: Area = Area { width: 1100.0, height: 560.0, left: 120.0, right: 130.0, top: 60.0, bottom: 62.0 };
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
pub fn svg(run: &Run) -> String {
    let highest = run.speeds.flops_matrix.max(run.speeds.flops_f32);
    let bandwidth = run.speeds.bandwidth;
    let (low, high) = (-2.0, 4.0);
    let (bottom, top) = ((bandwidth * 10f64.powf(low)).log10().floor() - 2.0, (highest * 1.5).log10().ceil());
    let px = |x: f64| AREA.x((x.log10().clamp(low, high) - low) / (high - low));
    let py = |y: f64| AREA.y((y.max(1.0).log10().max(bottom) - bottom) / (top - bottom));
    let below = format!("lines: {}, {}/s in f32", speed(bandwidth), flops_text(run.speeds.flops_f32 as u64));
    let mut s = picture(AREA.width, AREA.height, "What problems reach under the roof", &below);
    for e in low as i32..=high as i32 {
        AREA.mark_x(&mut s, px(10f64.powi(e)), &format!("1e{e}"));
    }
    for e in bottom as i32..=top as i32 {
        AREA.mark_y(
            &mut s,
            py(10f64.powi(e)),
            &format!("{}/s", flops_text(10u64.pow(e.clamp(0, 18) as u32))),
        );
    }
    AREA.name_x(&mut s, "arithmetic intensity, FLOP per byte (without arithmetic: left, as if 0.02 to 0.08)");
    AREA.name_y(&mut s, "attained FLOP/s");
    for peak in [run.speeds.flops_f32, highest] {
        let roof = [10f64.powf(low), peak / bandwidth, 10f64.powf(high)];
        line(&mut s, roof.iter().map(|x| (px(*x), py((x * bandwidth).min(peak)))), "#1f2430", 1.4);
    }
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
        let colour = colour(&p.family);
        let _ = writeln!(
            s,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{colour}\" fill-opacity=\"0.6\" stroke=\"{colour}\">\
             <title>{}: {:.0} % of the bound</title></circle>",
            px(x),
            py(y),
            escape(&p.key()),
            100.0 * share
        );
    }
    for (i, f) in FAMILIES.iter().enumerate() {
        let y = AREA.top + 18.0 * i as f64;
        let x = AREA.x(1.0) + 16.0;
        let _ = writeln!(
            s,
            "<circle cx=\"{x:.0}\" cy=\"{:.0}\" r=\"5\" fill=\"{}\"/><text x=\"{:.0}\" y=\"{y:.0}\">{f}</text>",
            y - 4.0,
            colour(f),
            x + 12.0
        );
    }
    s + "</svg>\n"
}
