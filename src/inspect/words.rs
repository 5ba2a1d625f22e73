//! Numbers and tables as text.

use std::borrow::Cow;

/// The names of nodes, of which at most `most` are listed.
///
/// ```
/// let nodes = ["a", "b", "c"].map(str::to_owned);
/// println!("{}", wgfc::inspect::nodes_of(&nodes, 2));
/// ```
pub fn nodes_of(nodes: &[String], most: usize) -> String {
    let shown: Vec<&str> = nodes.iter().take(most).map(String::as_str).collect();
    let more = nodes.len() - shown.len();
    let list = shown.join(" + ");
    if more > 0 { format!("{list} + {more} more") } else { list }
}

/// A number of bytes to three digits: `512 MB`, `12.5 kB`. MB is 2^20 bytes.
///
/// ```
/// use wgfc::inspect::{bytes_text, flops_text, time_text};
/// assert_eq!(bytes_text(512 << 20), "512 MB");
/// assert_eq!(flops_text(8_180_000_000), "8.18 GFLOP");
/// assert_eq!(time_text(0.0016), "1.6 ms");
/// ```
pub fn bytes_text(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "kB", "MB", "GB", "TB"])
}

/// [`bytes_text`], or a dash if the number is unknown.
///
/// ```
/// use wgfc::inspect::known_bytes_text;
/// assert_eq!((known_bytes_text(Some(1 << 20)), known_bytes_text(None)), ("1.00 MB".into(), "-".into()));
/// ```
pub fn known_bytes_text(bytes: Option<u64>) -> String {
    bytes.map_or("-".into(), bytes_text)
}

/// A number of floating-point operations: `8.18 GFLOP`.
pub fn flops_text(flops: u64) -> String {
    scaled(flops as f64, 1000.0, &["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"])
}

/// A time to one decimal: `1.6 ms`.
pub fn time_text(seconds: f64) -> String {
    let (v, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 || s == 0.0 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    match v {
        // Beside times in milliseconds, 0.39 ms reads better than 390 µs.
        v if unit == "µs" && v >= 299.5 => format!("{:.1} ms", v / 1e3),
        v if v >= 99.5 => format!("{v:.0} {unit}"),
        v => format!("{v:.1} {unit}"),
    }
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut v, mut i) = (value, 0);
    while v >= step * 0.9995 && i + 1 < units.len() {
        v /= step;
        i += 1;
    }
    let unit = units[i];
    match v {
        v if i == 0 => format!("{v:.0} {unit}"),
        v if v >= 99.95 => format!("{v:.0} {unit}"),
        v if v >= 9.995 => format!("{v:.1} {unit}"),
        v => format!("{v:.2} {unit}"),
    }
}

/// Rows as aligned columns; `right` says which columns are right-aligned. The first row is the heading.
///
/// ```
/// let rows = [["kernel", "time"], ["matmul", "2 ms"]].map(|r| r.map(str::to_owned).to_vec());
/// println!("{}", wgfc::inspect::table(&rows, &[false, true]));
/// ```
pub fn table(rows: &[Vec<String>], right: &[bool]) -> String {
    // Control characters are escaped before the width is measured, as that makes names longer.
    let one_line = |cell: &String| clean(&cell.replace('\n', "\\n").replace('\t', "\\t")).into_owned();
    let rows: Vec<Vec<String>> = rows.iter().map(|r| r.iter().map(one_line).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::from(" ");
        for (c, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[c] - cell.chars().count());
            line.push(' ');
            if right.get(c).copied().unwrap_or(false) {
                line += &pad;
                line += cell;
            } else {
                line += cell;
                line += &pad;
            }
            line.push(' ');
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// Whether a terminal would interpret `c` instead of showing it. Line breaks and tabs are not counted, but marks of writing
/// direction are, as they can make a text look like another.
///
/// ```
/// use wgfc::inspect::is_control;
/// assert!(is_control('\u{1b}') && !is_control('\n'));
/// ```
pub fn is_control(c: char) -> bool {
    let direction = ['\u{200e}', '\u{200f}'].contains(&c)
        || ('\u{202a}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c);
    direction || c.is_control() && !matches!(c, '\n' | '\t')
}

/// `text` with every control character replaced by an escape sequence, as in `\u{1b}`.
///
/// ```
/// // A model's names cannot control the terminal.
/// assert_eq!(wgfc::inspect::clean("conv\u{1b}[2J"), r"conv\u{1b}[2J");
/// ```
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if is_control(c) { c.escape_unicode().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::Roof;
    use wgfc_compiler::device::Speeds;

    #[test]
    fn figures_read_well() {
        assert_eq!(bytes_text(512 << 20), "512 MB");
        assert_eq!(bytes_text((128 << 20) + 12_288), "128 MB");
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1 << 20), "1.00 MB");
        assert_eq!(bytes_text(97 << 20 | 1 << 19), "97.5 MB");
        assert_eq!(known_bytes_text(None), "-");
        assert_eq!(flops_text(8_178_000_000), "8.18 GFLOP");
        let roof = Roof::of(&Speeds::PORTABLE, Some(320.0), Some(1.0));
        assert_eq!(time_text(roof.seconds(512 << 20, 0)), "1.6 ms");
        assert_eq!(time_text(roof.seconds(128 << 20, 0)), "0.4 ms");
        assert_eq!(time_text(12.3e-6), "12.3 µs");
    }

    #[test]
    fn control_characters_are_shown() {
        assert_eq!(
            clean("a\u{1b}[2Jb\u{9b}c\u{202e}d\re\n\tf"),
            "a\\u{1b}[2Jb\\u{9b}c\\u{202e}d\\u{d}e\n\tf"
        );
        assert!(matches!(clean("näh, 日本"), Cow::Borrowed(_)));
    }
}
