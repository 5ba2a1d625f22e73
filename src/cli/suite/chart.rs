//! Medians with their intervals, one line for each row and device.

use super::value_text;
use crate::cli::axes::{Frame, INK, chart, decades, disc, entry, font, plot, stroke, text};
use plotters::prelude::{FontStyle, IntoLogRange, LineSeries};
use wgfc::Error;
use wgfc::suite::{Record, Row, Unit};

const COLOURS: [&str; 6] = ["#4269d0", "#ff725c", "#3ca951", "#efb118", "#a463f2", "#9c6b4e"];
/// The height of a row, and the widths of the chart and of the names in it, in pixels.
const ROW: u32 = 18;
const WIDTH: u32 = 1100;
const NAMES: u32 = 400;
const HEAD: u32 = 80;
/// The height of the axis below the rows.
const FOOT: u32 = 52;
/// The most characters of a name.
const MOST: usize = 58;

/// Draws the rows of these names, which all have one unit, of all records.
pub fn svg(title: &str, ids: &[&str], unit: Unit, records: &[(String, Record)]) -> Result<String, Error> {
    let value = |row: &Row| row.measured().map(|m| [m.low, m.median, m.high]);
    let found = |id: &str, r: &Record| r.row(id).and_then(value).filter(|v| v[0] > 0.0);
    let all = || ids.iter().flat_map(|id| records.iter().filter_map(move |(_, r)| found(id, r)));
    let size = (WIDTH, HEAD + ROW * ids.len() as u32 + FOOT);
    chart(size, title, "medians and 95 % intervals", |on| {
        let mut discs = String::new();
        for (i, (name, _)) in records.iter().enumerate() {
            entry(on, 20 + 260 * (i % 4) as i32, 56, name, COLOURS[i % COLOURS.len()])?;
        }
        for (i, id) in ids.iter().enumerate() {
            let name: String = id.split_once('/').map_or(*id, |(_, rest)| rest).chars().take(MOST).collect();
            on.draw(&text(
                20,
                (HEAD + ROW * i as u32 + 2) as i32,
                &name,
                font(11.0, INK, FontStyle::Normal),
            ))?;
        }
        let values: [fn(&f64) -> String; 2] = [
            match unit {
                Unit::Seconds => |v| value_text(Unit::Seconds, *v),
                Unit::BytesPerSecond => |v| value_text(Unit::BytesPerSecond, *v),
                Unit::FlopsPerSecond => |v| value_text(Unit::FlopsPerSecond, *v),
                Unit::Joules => |v| value_text(Unit::Joules, *v),
                Unit::Watts => |v| value_text(Unit::Watts, *v),
                Unit::PerSecond => |v| value_text(Unit::PerSecond, *v),
                Unit::One => |v| value_text(Unit::One, *v),
            },
            |_| String::new(),
        ];
        let frame = Frame { margins: [HEAD, 30, FOOT, NAMES], names: ["", ""], values };
        let rows = ids.len() as f64;
        let mut on = plot(on, &frame, decades(all().flatten()).log_scale(), 0.0..rows)?;
        for (i, id) in ids.iter().enumerate() {
            for (k, (name, r)) in records.iter().enumerate() {
                let Some([low, median, high]) = found(id, r) else { continue };
                let share = (k as f64 + 1.0) / (records.len() as f64 + 1.0);
                let (y, colour) = (rows - i as f64 - share, COLOURS[k % COLOURS.len()]);
                on.draw_series(LineSeries::new([(low, y), (high, y)], stroke(colour, 1.6)))?;
                let tip = format!(
                    "{name}, {id}: {}, {} to {}",
                    value_text(unit, median),
                    value_text(unit, low),
                    value_text(unit, high)
                );
                disc(&mut discs, on.backend_coord(&(median, y)), 3.0, colour, 0.9, &tip);
            }
        }
        Ok(discs)
    })
}
