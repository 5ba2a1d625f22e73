//! Common parts of diagrams drawn as SVG: the frame, the title and the axes.

use super::drawing::escape;
use std::fmt::Write as _;

/// The size of a diagram, and the margins around its plotting area, in pixels.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    pub width: f64,
    pub height: f64,
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
}

impl Area {
    /// The x coordinate of a position on the horizontal axis, given from 0 to 1.
    pub fn x(&self, share: f64) -> f64 {
        self.left + share * (self.width - self.left - self.right)
    }
    /// The y coordinate of a position on the vertical axis, given from 0 (bottom) to 1.
    pub fn y(&self, share: f64) -> f64 {
        self.height - self.bottom - share * (self.height - self.top - self.bottom)
    }

    /// Draws a vertical grid line at an x coordinate, with the value below it.
    pub fn mark_x(&self, s: &mut String, x: f64, value: &str) {
        let end = self.height - self.bottom;
        let _ = writeln!(
            s,
            "<line x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{end:.1}\" stroke=\"#eceff3\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#6b7385\">{value}</text>",
            self.top,
            end + 18.0
        );
    }
    /// Draws a horizontal grid line at a y coordinate, with the value to the left of it.
    pub fn mark_y(&self, s: &mut String, y: f64, value: &str) {
        let _ = writeln!(
            s,
            "<line x1=\"{}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#eceff3\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#6b7385\">{value}</text>",
            self.left,
            self.width - self.right,
            self.left - 8.0,
            y + 4.0
        );
    }
    /// Labels the horizontal axis.
    pub fn name_x(&self, s: &mut String, name: &str) {
        let _ = writeln!(
            s,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            self.x(0.5),
            self.height - self.bottom + 40.0,
            escape(name)
        );
    }
    /// Labels the vertical axis.
    pub fn name_y(&self, s: &mut String, name: &str) {
        let _ = writeln!(
            s,
            "<text transform=\"translate(20 {:.0}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            self.y(0.5),
            escape(name)
        );
    }
}

/// The beginning of an SVG picture of this size, with a title and a line of text below it.
pub fn picture(width: f64, height: f64, title: &str, below: &str) -> String {
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\" fill=\"#343a48\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"20\" y=\"28\" font-size=\"15\" font-weight=\"600\" fill=\"#1f2430\">{}</text>\n",
        escape(title)
    );
    if !below.is_empty() {
        let _ = writeln!(s, "<text x=\"20\" y=\"46\" fill=\"#6b7385\">{}</text>", escape(below));
    }
    s
}

/// Draws a polyline.
pub fn line(s: &mut String, points: impl Iterator<Item = (f64, f64)>, colour: &str, width: f64) {
    let path: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        s,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"/>",
        path.join(" ")
    );
}
