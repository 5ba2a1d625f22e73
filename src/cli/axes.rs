//! Common parts of charts: plotters draws the axes, lines and texts; discs with a tooltip are added to its SVG.

use super::drawing::escape;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use wgfc::Error;

/// The units of the drawing in a pixel. There are several, as plotters rounds coordinates to integers.
pub const UNIT: u32 = 10;
const GREY: &str = "#6b7385";
pub const INK: &str = "#1f2430";

pub type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub type Drawn<T> = Result<T, DrawingAreaErrorKind<io::Error>>;
pub type Plot<'a, X, Y> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>;

/// Where a plot is in its canvas, and its texts.
pub struct Frame<'f> {
    /// The distances in pixels from the top, the right, the bottom and the left.
    pub margins: [u32; 4],
    /// The names of the axes.
    pub names: [&'f str; 2],
    /// The texts of values on the axes.
    pub values: [fn(&f64) -> String; 2],
}

/// Draws a chart of this size in pixels, with a title and a line of text below it. `draw` returns the SVG of discs, which are
/// in front of all else.
pub fn chart(
    (w, h): (u32, u32),
    title: &str,
    below: &str,
    draw: impl FnOnce(&Canvas) -> Drawn<String>,
) -> Result<String, Error> {
    let mut s = String::new();
    let drawn = |s| -> Drawn<String> {
        let root = SVGBackend::with_string(s, (w * UNIT, h * UNIT)).into_drawing_area();
        root.fill(&WHITE)?;
        root.draw(&text(20, 16, title, font(15.0, INK, FontStyle::Bold)))?;
        root.draw(&text(20, 36, below, font(12.0, GREY, FontStyle::Normal)))?;
        let discs = draw(&root)?;
        root.present()?;
        Ok(discs)
    };
    let discs = drawn(&mut s).map_err(|e| Error::Internal(format!("the chart “{title}”: {e}")))?;
    let body = s.split_once('>').map_or("", |(_, s)| s.trim_end().trim_end_matches("</svg>"));
    let (uw, uh) = (w * UNIT, h * UNIT);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {uw} {uh}\">{body}{discs}</svg>\n"
    ))
}

/// Draws the axes of a plot.
pub fn plot<'a, X, Y>(
    on: &Canvas<'a>,
    f: &Frame<'_>,
    x: X,
    y: Y,
) -> Drawn<Plot<'a, X::CoordDescType, Y::CoordDescType>>
where
    X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    let [top, right, bottom, left] = f.margins.map(|m| m * UNIT);
    let mut made = ChartBuilder::on(on)
        .margin_top(top)
        .margin_right(right)
        .margin_bottom(10 * UNIT)
        .margin_left(10 * UNIT)
        .x_label_area_size(bottom - 10 * UNIT)
        .y_label_area_size(left - 10 * UNIT)
        .build_cartesian_2d(x, y)?;
    made.configure_mesh()
        .bold_line_style(rgb("#eceff3").stroke_width(UNIT))
        .light_line_style(TRANSPARENT)
        .axis_style(TRANSPARENT)
        .set_all_tick_mark_size(6 * UNIT)
        .label_style(font(12.0, GREY, FontStyle::Normal))
        .axis_desc_style(font(12.0, INK, FontStyle::Normal))
        .x_desc(f.names[0])
        .y_desc(f.names[1])
        .x_label_formatter(&f.values[0])
        .y_label_formatter(&f.values[1])
        .draw()?;
    Ok(made)
}

/// The powers of ten that enclose numbers from 1e-150 to 1e150; they differ. The logarithmic axes of plotters need a finite
/// ratio of the ends.
pub fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(a, b), v| (a.min(v), b.max(v)));
    let [low, high] = [low.min(high), high].map(|v| v.clamp(1e-150, 1e150).log10());
    let (low, high) = (low.floor(), high.ceil());
    // A little more, so that the powers themselves are among the values with a text.
    10f64.powf(low) * 0.999..10f64.powf(high.max(low + 1.0)) * 1.001
}

/// The text of a power of ten.
pub fn power(v: &f64) -> String {
    let e = v.log10().round();
    format!("{:.*}", (-e).max(0.0) as usize, 10f64.powf(e))
}

/// The colour `#rrggbb`.
pub fn rgb(colour: &str) -> RGBColor {
    let n = u32::from_str_radix(colour.trim_start_matches('#'), 16).unwrap_or(0);
    RGBColor((n >> 16) as u8, (n >> 8) as u8, n as u8)
}

/// A line of a width in pixels.
pub fn stroke(colour: &str, width: f64) -> ShapeStyle {
    rgb(colour).stroke_width((width * f64::from(UNIT)) as u32)
}

pub fn font(size: f64, colour: &str, style: FontStyle) -> TextStyle<'static> {
    // The SVG has these sizes divided by 1.24.
    let size = size * 1.24 * f64::from(UNIT);
    ("system-ui, DejaVu Sans, sans-serif", size, style).into_font().color(&rgb(colour))
}

/// A text at a position in pixels. Control characters, which XML cannot contain, become `�`.
pub fn text(x: i32, y: i32, s: &str, style: TextStyle<'static>) -> Text<'static, (i32, i32), String> {
    Text::new(s.replace(char::is_control, "\u{fffd}"), (x * UNIT as i32, y * UNIT as i32), style)
}

/// An entry of a legend at a position in pixels.
pub fn entry(on: &Canvas, x: i32, y: i32, name: &str, colour: &str) -> Drawn<()> {
    let u = UNIT as i32;
    on.draw(&Circle::new(((x + 5) * u, (y + 6) * u), 5 * u, rgb(colour).filled()))?;
    on.draw(&text(x + 17, y, name, font(12.0, INK, FontStyle::Normal)))
}

/// Adds a disc with a tooltip at a position in units.
pub fn disc(s: &mut String, (x, y): (i32, i32), radius: f64, colour: &str, opacity: f64, tip: &str) {
    let _ = writeln!(
        s,
        "<circle cx=\"{x}\" cy=\"{y}\" r=\"{:.0}\" fill=\"{colour}\" fill-opacity=\"{opacity}\" stroke=\"{colour}\" \
         stroke-width=\"{UNIT}\"><title>{}</title></circle>",
        radius * f64::from(UNIT),
        escape(tip)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_powers_of_ten() {
        for (values, ends) in [
            (&[0.02, 3.0][..], ["0.01", "10"]),
            (&[5.0], ["1", "10"]),
            (&[100.0], ["100", "1000"]),
            (&[7.0, 70_000.0], ["1", "100000"]),
        ] {
            let range = decades(values.iter().copied());
            assert_eq!([power(&range.start), power(&range.end)], ends, "{values:?}");
        }
        for values in [&[][..], &[0.0], &[5e-324, f64::MAX], &[f64::NAN], &[f64::INFINITY]] {
            let range = decades(values.iter().copied());
            assert!(range.start > 0.0 && (range.end / range.start).is_finite(), "{values:?}: {range:?}");
        }
    }

    #[test]
    fn texts_are_valid_xml() {
        let s = chart((90, 60), "<a> & \u{1}b", "c\0", |on| {
            entry(on, 5, 5, "\u{8}<", INK)?;
            let mut s = String::new();
            disc(&mut s, (4, 5), 2.5, INK, 0.5, "d\u{2}<");
            Ok(s)
        });
        let s = s.unwrap();
        assert!(s.starts_with("<svg xmlns=") && s.ends_with("</svg>\n"), "{s}");
        assert!(s.contains("&lt;a&gt; &amp; \u{fffd}b") && s.contains("<title>d\u{fffd}&lt;</title>"), "{s}");
        assert!(s.chars().all(|c| c == '\n' || !c.is_control()), "{s}");
        assert_eq!(s.matches("<svg").count() + s.matches("</svg>").count(), 2, "{s}");
    }
}
