//! Generations a second over population, steps or dimensions: a panel for each workload, a line for each form.

use super::super::args::LoopForm;
use super::super::drawing::escape;
use super::form_name;
use super::measure::Row;
use super::workloads::{Size, Steps};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const WIDTH: f64 = 430.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 46.0;
const HEAD: f64 = 66.0;
/// Panels in a row.
const ACROSS: usize = 2;

/// What is along the horizontal axis.
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
    /// The one with most values among these rows; where none has several, steps or dimensions.
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

/// Draws it; both axes are logarithmic.
pub fn svg(device: &str, rows: &[Row]) -> String {
    let mut panels: Vec<(&str, Vec<&Row>)> = vec![];
    for r in rows {
        match panels.last_mut() {
            Some((name, of)) if *name == r.workload.name => of.push(r),
            _ => panels.push((r.workload.name, vec![r])),
        }
    }
    let across = panels.len().clamp(1, ACROSS);
    let (width, height) = (WIDTH * across as f64, HEAD + HEIGHT * panels.len().div_ceil(across) as f64);
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\" fill=\"#343a48\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"20\" y=\"26\" font-size=\"15\" font-weight=\"600\" fill=\"#1f2430\">generations a second on {}</text>\n",
        escape(device)
    );
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
        let at = (WIDTH * (i % across) as f64, HEAD + HEIGHT * (i / across) as f64);
        let _ = writeln!(s, "<g transform=\"translate({} {})\">\n{}</g>", at.0, at.1, panel(name, rows));
    }
    s + "</svg>\n"
}

/// Powers of ten around positive numbers, one apart at least.
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
    let mut s =
        format!("<text x=\"{LEFT}\" y=\"26\" font-weight=\"600\" fill=\"#1f2430\">{}</text>\n", escape(name));
    if points().next().is_none() {
        return s;
    }
    let (x0, x1) = decades(points().map(|p| p.1));
    let (y0, y1) = decades(points().map(|p| p.2));
    let px = |x: f64| LEFT + (x.log10() - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    let py = |y: f64| HEIGHT - BOTTOM - (y.log10() - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
    for e in x0 as i32..=x1 as i32 {
        let x = px(10f64.powi(e));
        let _ = writeln!(
            s,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#eceff3\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#6b7385\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 16.0,
            10f64.powi(e)
        );
    }
    for e in y0 as i32..=y1 as i32 {
        let y = py(10f64.powi(e));
        let _ = writeln!(
            s,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#eceff3\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#6b7385\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            10f64.powi(e)
        );
    }
    let _ = writeln!(
        s,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0,
        axis.name()
    );
    // A line for each form and each value of what is not along the axis.
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
    for ((form, _), mut line) in lines {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> = line.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            s,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"/>",
            path.join(" "),
            colour(form)
        );
        for (x, y, tip) in &line {
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
