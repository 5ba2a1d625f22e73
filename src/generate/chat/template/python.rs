//! Python's methods and functions, as far as templates use them and the engine lacks them.

use super::bounded::DEPTH;
use super::failed;
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, Output, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::fmt::Write;

/// The largest number in a format of `str.format`.
const WIDTH: usize = 10_000;

/// Writes a value to the output: floats as Python does, and all others as the engine does.
pub fn write(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Number if !value.is_integer() => out.write_str(&number(value)).map_err(Error::from),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// A method of a value that the engine does not know.
pub fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(s) = value.as_str() else { return unknown_method_callback(state, value, method, args) };
    let parted = |at: Option<usize>, by: &str, first: bool| {
        let parts = match at {
            Some(at) => [&s[..at], by, &s[at + by.len()..]],
            None if first => [s, "", ""],
            None => ["", "", s],
        };
        Value::from(Tuple::from(parts.map(Value::from)))
    };
    let text = |args| from_args::<(&str,)>(args).map(|(text,)| text);
    Ok(match method {
        "removeprefix" => Value::from(s.strip_prefix(text(args)?).unwrap_or(s)),
        "removesuffix" => Value::from(s.strip_suffix(text(args)?).unwrap_or(s)),
        "partition" => text(args).map(|by| parted(s.find(by), by, true))?,
        "rpartition" => text(args).map(|by| parted(s.rfind(by), by, false))?,
        "rsplit" => {
            let (by, most): (Option<&str>, Option<i64>) = from_args(args)?;
            let most = most.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            Value::from(rsplit(s, by, most).into_iter().rev().map(Value::from).collect::<Vec<_>>())
        }
        // The engine makes the text before it counts its bytes.
        "format" if longest_number(s) > WIDTH => {
            return Err(failed(format!("a format has a width of more than {WIDTH}")));
        }
        "casefold" => Value::from(s.to_lowercase()),
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = s.split_at(usize::from(s.starts_with(['-', '+'])));
            let more = width.saturating_sub(s.chars().count());
            state.consume_fuel(more as u64 / 64)?;
            Value::from(format!("{sign}{}{digits}", "0".repeat(more)))
        }
        _ => return unknown_method_callback(state, value, method, args),
    })
}

/// The largest number in a text.
fn longest_number(text: &str) -> usize {
    let digits = text.split(|c: char| !c.is_ascii_digit()).filter(|d| !d.is_empty());
    digits.map(|d| d.parse().unwrap_or(usize::MAX)).max().unwrap_or(0)
}

/// The parts of a text from its end on, of which the last one is the rest after `most` separators.
fn rsplit<'s>(s: &'s str, by: Option<&str>, most: usize) -> Vec<&'s str> {
    match by {
        Some(by) => s.rsplitn(most.saturating_add(1), by).collect(),
        None => {
            let (mut parts, mut rest) = (vec![], s.trim_end());
            while !rest.is_empty() && parts.len() < most {
                let at = rest.char_indices().rev().find(|(_, c)| c.is_whitespace());
                let at = at.map_or(0, |(i, c)| i + c.len_utf8());
                parts.push(&rest[at..]);
                rest = rest[..at].trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
            parts
        }
    }
}

/// Whether a value has a length and can be indexed, as Jinja defines it.
pub fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
}

/// The filter `tojson`, which is Python's `json.dumps` without escapes of HTML and, unless asked for, of Unicode.
pub fn tojson(state: &State, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let indent = match indent.filter(|i| !i.is_none()) {
        None => None,
        Some(i) => Some(match (i.as_str(), i.as_i64()) {
            (Some(text), _) => text.to_owned(),
            (_, Some(n)) if n <= 64 => " ".repeat(usize::try_from(n).unwrap_or_default()),
            _ => return Err(failed("`indent` of tojson is neither a small number nor a text".into())),
        }),
    };
    let separators: Option<Value> = options.get("separators")?;
    let separators = match separators.filter(|s| !s.is_none()) {
        None => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
        Some(s) => {
            let texts: Vec<Option<String>> = s.try_iter()?.map(|v| v.as_str().map(str::to_owned)).collect();
            match <[Option<String>; 2]>::try_from(texts) {
                Ok([Some(a), Some(b)]) => [a, b],
                _ => return Err(failed("`separators` of tojson are not two texts".into())),
            }
        }
    };
    let flag = |name| options.get::<Option<bool>>(name).map(Option::unwrap_or_default);
    let (ascii, sorted) = (flag("ensure_ascii")?, flag("sort_keys")?);
    options.assert_all_used()?;
    let mut writer = Writer { state, out: String::new(), paid: 0, indent, separators, ascii, sorted };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'s, 't, 'e> {
    state: &'s State<'t, 'e>,
    out: String,
    /// The bytes of `out` that are paid for with steps.
    paid: usize,
    indent: Option<String>,
    separators: [String; 2],
    ascii: bool,
    sorted: bool,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(failed(format!("a value is nested more than {DEPTH} times")));
        }
        self.state.consume_fuel(1 + (self.out.len() - self.paid) as u64 / 16)?;
        self.paid = self.out.len();
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut empty = true;
                for one in value.try_iter()? {
                    self.next(&mut empty, depth + 1);
                    self.value(&one, depth + 1)?;
                }
                self.end(']', empty, depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                self.state.consume_fuel(keys.len() as u64)?;
                if self.sorted {
                    keys.sort();
                }
                self.out.push('{');
                let mut empty = true;
                for key in keys {
                    self.next(&mut empty, depth + 1);
                    match key.kind() {
                        ValueKind::String => self.text(key.as_str().unwrap_or_default()),
                        ValueKind::None => self.out.push_str("\"null\""),
                        ValueKind::Bool | ValueKind::Number => {
                            self.out.push('"');
                            self.value(&key, depth + 1)?;
                            self.out.push('"');
                        }
                        kind => return Err(failed(format!("a key is {kind}, which JSON has not"))),
                    }
                    self.out.push_str(&self.separators[1]);
                    self.value(&value.get_item(&key)?, depth + 1)?;
                }
                self.end('}', empty, depth);
            }
            kind => return Err(failed(format!("a value is {kind}, which JSON has not"))),
        }
        Ok(())
    }

    fn next(&mut self, empty: &mut bool, depth: usize) {
        if !std::mem::take(empty) {
            self.out.push_str(&self.separators[0]);
        }
        self.line(depth);
    }

    fn end(&mut self, close: char, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
        self.out.push(close);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || self.ascii && c > '~' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A number as Python writes it.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        _ if value.is_integer() => value.to_string(),
        Ok(v) => float(v),
        Err(_) => value.to_string(),
    }
}

/// The shortest decimal number for a float, with an exponent where Python has one.
fn float(v: f64) -> String {
    match v {
        _ if v.is_nan() => return "NaN".into(),
        _ if v.is_infinite() => return if v > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        _ => {}
    }
    let text = format!("{v:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>() {
        Ok(e) if v != 0.0 && !(-4..16).contains(&e) => {
            format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs())
        }
        _ => format!("{v:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (v, want) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-1.25e100, "-1.25e+100"),
            (123456789.125, "123456789.125"),
        ] {
            assert_eq!(float(v), want);
        }
    }

    #[test]
    fn texts_are_split_from_the_end() {
        let parts = |s, by, most| rsplit(s, by, most).into_iter().rev().collect::<Vec<_>>();
        assert_eq!(parts(" a  b c ", None, usize::MAX), ["a", "b", "c"]);
        assert_eq!(parts(" a  b c ", None, 1), [" a  b", "c"]);
        assert_eq!(parts("a,b,c", Some(","), 1), ["a,b", "c"]);
        assert!(parts("  ", None, 3).is_empty());
    }
}
