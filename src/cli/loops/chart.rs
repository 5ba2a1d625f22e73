//! A chart of generations per second over population, steps or dimensions, with a panel for each workload and a line for
//! each form.

use super::super::args::LoopForm;
use super::super::axes::{
    self, Canvas, Drawn, Frame, INK, decades, disc, entry, font, plot, power, stroke, text,
};
use super::form_name;
use super::measure::Row;
use super::workloads::{Size, Steps};
use plotters::prelude::{FontStyle, IntoLogRange, LineSeries};
use std::collections::BTreeMap;
use wgfc::Error;

/// The size of a panel.
const PANEL: (u32, u32) = (430, 300);
/// The height of the title and legend above the panels.
const HEAD: u32 = 66;
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
pub fn svg(device: &str, rows: &[Row]) -> Result<String, Error> {
    let mut panels: Vec<(&str, Vec<&Row>)> = vec![];
    for r in rows {
        match panels.last_mut() {
            Some((name, of)) if *name == r.workload.name => of.push(r),
            _ => panels.push((r.workload.name, vec![r])),
        }
    }
    let across = panels.len().clamp(1, ACROSS);
    let down = panels.len().div_ceil(across).max(1);
    let size = (PANEL.0 * across as u32, HEAD + PANEL.1 * down as u32);
    axes::chart(size, &format!("generations a second on {device}"), "", |on| {
        for (i, form) in [LoopForm::Fused, LoopForm::Split, LoopForm::ByHand].into_iter().enumerate() {
            entry(on, 20 + 90 * i as i32, 40, form_name(form), colour(form))?;
        }
        let below = on.margin(HEAD * axes::UNIT, 0, 0, 0);
        let places = below.split_evenly((down, across));
        places.iter().zip(&panels).map(|(on, (name, rows))| panel(on, name, rows)).collect()
    })
}

fn panel(on: &Canvas, name: &str, rows: &[&Row]) -> Drawn<String> {
    let axis = Axis::most(rows);
    let points = || {
        rows.iter().filter_map(|r| Some((*r, axis.of(r.size) as f64, r.measured.as_ref().ok()?.per_second())))
    };
    let mut discs = String::new();
    on.draw(&text(66, 17, name, font(12.0, INK, FontStyle::Bold)))?;
    if points().next().is_none() {
        return Ok(discs);
    }
    let frame = Frame { margins: [40, 20, 52, 66], names: [axis.name(), ""], values: [power, power] };
    let (x, y) = (decades(points().map(|p| p.1)), decades(points().map(|p| p.2)));
    let mut on = plot(on, &frame, x.log_scale(), y.log_scale())?;
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
        disc(&mut discs, on.backend_coord(&(x, y)), 3.0, colour(r.form), 1.0, &tip);
        lines.entry((r.form, other)).or_default().push((x, y));
    }
    for ((form, _), mut points) in lines {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        on.draw_series(LineSeries::new(points, stroke(colour(form), 1.6)))?;
    }
    Ok(discs)
}
