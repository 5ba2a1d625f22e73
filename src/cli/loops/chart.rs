//! A chart of generations per second over population, steps or dimensions, with a panel for each workload and a line for
//! each form.

use super::super::args::LoopForm;
use super::super::axes::{Area, line, picture};
use super::super::drawing::escape;
use super::form_name;
use super::measure::Row;
use super::workloads::{Size, Steps};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The size of a panel.
const AREA: Area = Area { width: 430.0, height: 300.0, left: 66.0, right: 20.0, top: 40.0, bottom: 46.0 };
/// The height of the title and legend above the panels.
const HEAD: f64 = 66.0;
/// The number of panels in a row.
const ACROSS: usize = 2;

/// The quantity on the horizontal axis.
#[derive(Clone, Copy)]
enum Axis {
    Population,
    Steps,
    Dims,
}

impl Axis {
    fn of(self, s: Size) -> usize {
        match self {
            Axis::Population => s.population,
            Axis::Steps => s.steps,
            Axis::Dims => s.dims,
        }
    }
    fn name(self) -> &'static str {
        match self {
            Axis::Population => "population",
            Axis::Steps => "steps",
            Axis::Dims => "dimensions",
        }
    }
    /// The quantity with the most distinct values in these rows; if none has several, steps or dimensions.
    fn most(rows: &[&Row]) -> Axis {
        let values = |a: Axis| {
            let mut v: Vec<usize> = rows.iter().map(|r| a.of(r.size)).collect();
            v.sort_unstable();
            v.dedup();
            v.len()
        };
        let loops = rows.first().is_some_and(|r| r.workload.steps != Steps::None);
        let other = if loops { Axis::Steps } else { Axis::Dims };
        if values(Axis::Population) > values(other) { Axis::Population } else { other }
    }
}

fn colour(f: LoopForm) -> &'static str {
    match f {
        LoopForm::Fused => "#2f6fb5",
        LoopForm::Split => "#b5651d",
        LoopForm::ByHand => "#5b6577",
    }
}

/// Draws the chart, with logarithmic axes.
pub fn svg(device: &str, rows: &[Row]) -> String {
    let mut panels: Vec<(&str, Vec<&Row>)> = vec![];
    for r in rows {
        match panels.last_mut() {
            Some((name, of)) if *name == r.workload.name => of.push(r),
            _ => panels.push((r.workload.name, vec![r])),
        }
    }
    let across = panels.len().clamp(1, ACROSS);
    let (width, height) =
        (AREA.width * across as f64, HEAD + AREA.height * panels.len().div_ceil(across) as f64);
    let mut s = picture(width, height, &format!("generations a second on {device}"), "");
    for (i, form) in [LoopForm::Fused, LoopForm::Split, LoopForm::ByHand].into_iter().enumerate() {
        let x = 20.0 + 90.0 * i as f64;
        let _ = writeln!(
            s,
            "<rect x=\"{x}\" y=\"40\" width=\"11\" height=\"11\" rx=\"3\" fill=\"{}\"/><text x=\"{}\" y=\"50\">{}</text>",
            colour(form),
            x + 17.0,
            form_name(form)
        );
    }
    for (i, (name, rows)) in panels.iter().enumerate() {
        let at = (AREA.width * (i % across) as f64, HEAD + AREA.height * (i / across) as f64);
        let _ = writeln!(s, "<g transform=\"translate({} {})\">\n{}</g>", at.0, at.1, panel(name, rows));
    }
    s + "</svg>\n"
}

/// The exponents of powers of ten that enclose positive numbers; they differ by at least one.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(a, b), v| (a.min(v), b.max(v)));
    let (low, high) = (low.min(high).log10().floor(), high.log10().ceil());
    (low, high.max(low + 1.0))
}

fn panel(name: &str, rows: &[&Row]) -> String {
    let axis = Axis::most(rows);
    let points = || {
        rows.iter().filter_map(|r| Some((*r, axis.of(r.size) as f64, r.measured.as_ref().ok()?.per_second())))
    };
    let mut s = format!(
        "<text x=\"{}\" y=\"26\" font-weight=\"600\" fill=\"#1f2430\">{}</text>\n",
        AREA.left,
        escape(name)
    );
    if points().next().is_none() {
        return s;
    }
    let (x0, x1) = decades(points().map(|p| p.1));
    let (y0, y1) = decades(points().map(|p| p.2));
    let px = |x: f64| AREA.x((x.log10() - x0) / (x1 - x0));
    let py = |y: f64| AREA.y((y.log10() - y0) / (y1 - y0));
    for e in x0 as i32..=x1 as i32 {
        let x = 10f64.powi(e);
        AREA.mark_x(&mut s, px(x), &x.to_string());
    }
    for e in y0 as i32..=y1 as i32 {
        let y = 10f64.powi(e);
        AREA.mark_y(&mut s, py(y), &y.to_string());
    }
    AREA.name_x(&mut s, axis.name());
    // One line for each form and each combination of the other sizes.
    let mut lines: BTreeMap<(LoopForm, [usize; 2]), Vec<_>> = BTreeMap::new();
    for (r, x, y) in points() {
        let z = r.size;
        let other = match axis {
            Axis::Population => [z.steps, z.dims],
            Axis::Steps => [z.population, z.dims],
            Axis::Dims => [z.population, z.steps],
        };
        let tip = format!(
            "{}, population {}, {} steps, {} dimensions: {y:.3}/s",
            form_name(r.form),
            z.population,
            z.steps,
            z.dims
        );
        lines.entry((r.form, other)).or_default().push((px(x), py(y), tip));
    }
    for ((form, _), mut points) in lines {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        line(&mut s, points.iter().map(|(x, y, _)| (*x, *y)), colour(form), 1.6);
        for (x, y, tip) in &points {
            let _ = writeln!(
                s,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{}\"><title>{}</title></circle>",
                colour(form),
                escape(tip)
            );
        }
    }
    s
}
