//! Formats a finding for a terminal: the message, the node on its own line with the relevant part underlined, and the
//! advice.

use std::fmt::Write;
use unicode_width::UnicodeWidthStr;
use wgfc::{ErrorClass, Finding};

/// The column at which messages are wrapped.
const WIDTH: usize = 100;

/// Wraps texts in SGR sequences if colour is enabled.
struct Paint(bool);

impl Paint {
    const RED: &'static str = "31";
    const CYAN: &'static str = "36";
    const MAGENTA: &'static str = "35;1";
    const DIM: &'static str = "2";

    fn of(&self, style: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{style}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// The location as text, and the byte offset of the part to underline.
fn place(finding: &Finding) -> Option<(String, usize)> {
    let l = &finding.diagnostic.location;
    let mut line = String::new();
    if let Some(n) = &l.node {
        line += &format!("node \"{n}\"");
        match (&l.operator, l.opset) {
            (Some(o), Some(v)) => line += &format!(" ({o}, opset {v})"),
            (Some(o), None) => line += &format!(" ({o})"),
            _ => {}
        }
    }
    let mut at = 0;
    if let Some(p) = &l.part {
        if !line.is_empty() {
            line += ", ";
        }
        at = line.len();
        line += p;
    }
    (!line.is_empty()).then_some((line, at))
}

/// Wraps a text between words. The first line has one prefix, the others have another.
fn wrapped(text: &str, first: &str, others: &str) -> String {
    let mut out = String::new();
    let mut prefix = first;
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            if !line.is_empty() && others.width() + line.width() + 1 + word.width() > WIDTH {
                _ = writeln!(out, "{prefix}{line}");
                (prefix, line) = (others, String::new());
            } else if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        _ = writeln!(out, "{prefix}{line}");
        prefix = others;
    }
    out
}

/// The text of one finding.
pub fn fancy(finding: &Finding, colour: bool) -> String {
    let paint = Paint(colour);
    let d = &finding.diagnostic;
    let mut out = String::new();
    if finding.class != ErrorClass::Model {
        _ = write!(out, "{}\n\n", paint.of(Paint::RED, finding.class.name()));
    }
    let place = place(finding);
    let message = match (&place, &finding.path) {
        (None, Some(p)) => format!("{}: {}", p.display(), d.message),
        _ => d.message.clone(),
    };
    let bar = |text: &str| paint.of(Paint::RED, text);
    // The text is wrapped before colour is added, as escape sequences would count as width.
    let text = wrapped(&message, "  × ", "  │ ");
    for (i, line) in text.lines().enumerate() {
        let mark = if i == 0 { "×" } else { "│" };
        _ = writeln!(out, "{}", line.replacen(mark, &bar(mark), 1));
    }
    if let Some((line, at)) = place {
        let path = finding.path.as_ref().map_or("model".into(), |p| p.display().to_string());
        let (column, len) = (line[..at].width(), line[at..].width().max(1));
        let (before, after) = (len / 2, len - len / 2 - 1);
        let label = format!("{}┬{}", "─".repeat(before), "─".repeat(after));
        _ = writeln!(out, "   ╭─[{}]", paint.of(Paint::CYAN, &path));
        _ = writeln!(out, " {} │ {line}", paint.of(Paint::DIM, "1"));
        _ = writeln!(out, "   · {}{}", " ".repeat(column), paint.of(Paint::MAGENTA, &label));
        let here = paint.of(Paint::MAGENTA, "╰── here");
        _ = writeln!(out, "   · {}{here}", " ".repeat(column + before));
        out += "   ╰────\n";
    }
    if let Some(source) = &d.location.source {
        out += &wrapped(source, "    in: ", "        ");
    }
    if let Some(help) = &d.help {
        let text = wrapped(help, "  help: ", "        ");
        out += &text.replacen("help:", &paint.of(Paint::CYAN, "help:"), 1);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc::compiler::{Diagnostic, Location};

    #[test]
    fn long_messages_are_broken_between_words() {
        let d = Diagnostic::model("word ".repeat(30).trim_end()).help("advice ".repeat(20).trim_end());
        let finding = |d| Finding { class: ErrorClass::Model, path: None, diagnostic: d };
        let text = fancy(&finding(d), false);
        assert!(text.lines().all(|l| l.width() <= WIDTH), "{text}");
        let starts: Vec<&str> = text.lines().map(|l| l.split(['w', 'a']).next().unwrap_or("")).collect();
        assert_eq!(starts, ["  × ", "  │ ", "  help: ", "        "]);
        // The underline has the width that the characters take on a terminal.
        let part = Some("入力 B".to_owned());
        let d = Diagnostic::model("no").at(Location { part, ..Location::default() });
        let text = fancy(&finding(d), true);
        assert!(text.contains("───┬──") && text.contains("\u{1b}[36mmodel\u{1b}[0m"), "{text}");
    }
}
