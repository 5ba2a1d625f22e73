//! The form that a request asks for of its answer.

use super::protocol::{Refusal, kind, missing, wrong};
use serde_json::{Map, Value, json};
use wgfc::generate::Form;

/// The most functions of a request.
const TOOLS: usize = 128;

fn object(name: &str, value: Value) -> Result<Map<String, Value>, Refusal> {
    match value {
        Value::Object(fields) => Ok(fields),
        other => Err(wrong(name, "an object", &other)),
    }
}

/// The field `response_format`.
///
/// # Errors
/// A type that is not known, or without its schema.
pub fn response_format(value: Option<Value>) -> Result<Option<Form>, Refusal> {
    const NAME: &str = "response_format";
    let Some(value) = value else { return Ok(None) };
    let mut fields = object(NAME, value)?;
    let form = fields.remove("type").ok_or_else(|| missing("response_format.type"))?;
    match form.as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Form::JsonSchema(r#"{"type": "object"}"#.into()))),
        Some("json_schema") => {
            let described =
                fields.remove("json_schema").ok_or_else(|| missing("response_format.json_schema"))?;
            let mut described = object("response_format.json_schema", described)?;
            let schema =
                described.remove("schema").ok_or_else(|| missing("response_format.json_schema.schema"))?;
            let schema = object("response_format.json_schema.schema", schema)?;
            Ok(Some(Form::JsonSchema(Value::Object(schema).to_string())))
        }
        _ => {
            let form: String = form.to_string().chars().take(100).collect();
            let message =
                format!("'response_format.type' is {form}; text, json_object and json_schema are known");
            Err(Refusal::param(NAME, message, "invalid_value"))
        }
    }
}

/// The field `structured_outputs`: one of `json`, `regex` and `grammar`.
///
/// # Errors
/// None of them, or several.
pub fn structured_outputs(value: Option<Value>) -> Result<Option<Form>, Refusal> {
    const NAME: &str = "structured_outputs";
    let Some(value) = value else { return Ok(None) };
    let mut fields = object(NAME, value)?.into_iter().filter(|(_, v)| !v.is_null());
    let refused = || {
        let message = "'structured_outputs' holds one of 'json', 'regex' and 'grammar'";
        Refusal::param(NAME, message, "invalid_value")
    };
    let (Some((name, value)), None) = (fields.next(), fields.next()) else { return Err(refused()) };
    match (name.as_str(), value) {
        ("json", schema @ Value::Object(_)) => Ok(Some(Form::JsonSchema(schema.to_string()))),
        ("json", Value::String(schema)) => Ok(Some(Form::JsonSchema(schema))),
        ("regex", Value::String(expression)) => Ok(Some(Form::Regex(expression))),
        ("grammar", Value::String(grammar)) => Ok(Some(Form::Grammar(grammar))),
        ("json" | "regex" | "grammar", other) => Err(wrong(&format!("{NAME}.{name}"), "a string", &other)),
        _ => Err(refused()),
    }
}

/// The functions that an answer may call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    /// Their names and the schemas of their arguments.
    all: Vec<(String, Value)>,
    /// Whether the answer must be a call.
    pub required: bool,
}

impl Tools {
    /// The fields `tools` and `tool_choice`; `None` if no function may be called.
    ///
    /// # Errors
    /// Functions without a name, a choice that is not known.
    pub fn read(tools: Option<&Value>, choice: Option<Value>) -> Result<Option<Tools>, Refusal> {
        let list = match tools {
            None | Some(Value::Null) => &vec![],
            Some(Value::Array(list)) => list,
            Some(other) => return Err(wrong("tools", "an array", other)),
        };
        if list.len() > TOOLS {
            let message = format!("'tools' holds {} functions, more than {TOOLS}", list.len());
            return Err(Refusal::param("tools", message, "invalid_value"));
        }
        let mut all = vec![];
        for (i, tool) in list.iter().enumerate() {
            let name = format!("tools[{i}]");
            if tool.get("type").and_then(Value::as_str) != Some("function") {
                let message = format!("'{name}.type' is not 'function'");
                return Err(Refusal::param(&name, message, "unsupported_value"));
            }
            let function = tool.get("function").and_then(Value::as_object);
            let function = function.ok_or_else(|| missing(&format!("{name}.function")))?;
            let title = function.get("name").and_then(Value::as_str).filter(|n| !n.is_empty());
            let title = title.ok_or_else(|| missing(&format!("{name}.function.name")))?;
            let arguments = match function.get("parameters") {
                None | Some(Value::Null) => json!({ "type": "object" }),
                Some(schema @ Value::Object(_)) => schema.clone(),
                Some(other) => return Err(wrong(&format!("{name}.function.parameters"), "an object", other)),
            };
            all.push((title.to_owned(), arguments));
        }
        let without = |message: String| Err(Refusal::param("tool_choice", message, "invalid_value"));
        let required = match choice {
            None => false,
            Some(Value::String(s)) => match s.as_str() {
                "none" => return Ok(None),
                "auto" => false,
                "required" if all.is_empty() => {
                    return without("'tool_choice' is given without 'tools'".into());
                }
                "required" => true,
                _ => return without("'tool_choice' is none, auto, required or a function".into()),
            },
            Some(Value::Object(choice)) => {
                let name = choice.get("function").and_then(|f| f.get("name")).and_then(Value::as_str);
                let Some(name) = name else { return Err(missing("tool_choice.function.name")) };
                all.retain(|(n, _)| n == name);
                if all.is_empty() {
                    let name: String = name.chars().take(100).collect();
                    return without(format!(
                        "'tool_choice' names the function '{name}', which is not in 'tools'"
                    ));
                }
                true
            }
            Some(other) => {
                return without(format!("'tool_choice' is {}, not a string or a function", kind(&other)));
            }
        };
        Ok((!all.is_empty()).then_some(Tools { all, required }))
    }

    /// The form of an answer that must be a call.
    pub fn form(&self) -> Option<Form> {
        let one = |(name, arguments): &(String, Value)| {
            json!({
                "type": "object",
                "properties": { "name": { "const": name }, "arguments": arguments },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        };
        // Definitions are looked up from the root of a schema, where those of the only function lie.
        let mut schema = match self.all.as_slice() {
            [only] => one(only),
            all => json!({ "anyOf": all.iter().map(one).collect::<Vec<_>>() }),
        };
        for (_, arguments) in &self.all {
            for key in ["$defs", "definitions"] {
                if let Some(definitions) = arguments.get(key) {
                    schema[key] = definitions.clone();
                }
            }
        }
        self.required.then(|| Form::JsonSchema(schema.to_string()))
    }

    /// The calls of an answer: objects with `name` and `arguments` or `parameters`, alone, in a list, or between `<tool_call>` and `</tool_call>`; and the text before
    /// them. Without calls, the whole is text.
    pub fn calls<'t>(&self, text: &'t str) -> (&'t str, Vec<(String, String)>) {
        let (before, rest) = match text.find(OPEN) {
            Some(at) => text.split_at(at),
            None => ("", text),
        };
        let parts: Vec<&str> = match rest.starts_with(OPEN) {
            true => rest.split(OPEN).skip(1).map(|p| p.split(CLOSE).next().unwrap_or(p)).collect(),
            false => vec![rest],
        };
        let mut calls = vec![];
        for part in parts {
            let Ok(value) = serde_json::from_str::<Value>(part.trim()) else { return (text, vec![]) };
            let all = if let Value::Array(all) = value { all } else { vec![value] };
            for call in all {
                let name = call.get("name").and_then(Value::as_str);
                let arguments = call.get("arguments").or_else(|| call.get("parameters"));
                match (name, arguments) {
                    (Some(name), Some(arguments)) if self.all.iter().any(|(n, _)| n == name) => {
                        calls.push((name.to_owned(), arguments.to_string()));
                    }
                    _ => return (text, vec![]),
                }
            }
        }
        if calls.is_empty() { (text, calls) } else { (before.trim_end(), calls) }
    }
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Text that is not part of a call, as it arrives.
#[derive(Debug, Default)]
pub struct Held {
    all: String,
    /// The number of bytes of `all` that have been shown.
    shown: usize,
}

impl Held {
    /// The text that is certain not to belong to a call after more has come.
    pub fn push(&mut self, text: &str) -> String {
        self.all += text;
        let is_call = self.all.trim_start().starts_with(['{', '[']) || self.all.trim_start().is_empty();
        let certain = match self.all.find(OPEN) {
            _ if is_call => 0,
            Some(at) => self.all[..at].trim_end().len(),
            None => {
                let begins = |at: &usize| OPEN.starts_with(&self.all[*at..]);
                let places =
                    self.all.char_indices().map(|(at, _)| at).filter(|at| at + OPEN.len() > self.all.len());
                let end = places.into_iter().find(begins).unwrap_or(self.all.len());
                self.all[..end].trim_end().len()
            }
        };
        let more = self.all.get(self.shown..certain).unwrap_or_default().to_owned();
        self.shown = self.shown.max(certain);
        more
    }

    /// The text that has not been shown.
    pub fn rest(&self) -> String {
        self.all.get(self.shown..).unwrap_or_default().to_owned()
    }

    /// The rest of the text, and the calls, when no more can come.
    pub fn finish(&self, tools: &Tools) -> (String, Vec<(String, String)>) {
        let (text, calls) = tools.calls(&self.all);
        (text.get(self.shown..).unwrap_or_default().to_owned(), calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(required: bool) -> Tools {
        Tools {
            all: vec![("clock".into(), json!({ "type": "object" })), ("sum".into(), json!({}))],
            required,
        }
    }

    #[test]
    fn calls_are_found_wherever_text_is_cut() {
        let one = r#"{"name": "clock", "arguments": {"zone": "UTC", "a": 1}}"#;
        let call = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
        let clock = serde_json::from_str::<Value>(r#"{"zone": "UTC", "a": 1}"#).unwrap().to_string();
        let clock = || call("clock", &clock);
        for (text, before, calls) in [
            (one.to_owned(), "", vec![clock()]),
            (format!("[{one}, {one}]"), "", vec![clock(), clock()]),
            (r#" {"name": "sum", "parameters": []}"#.into(), "", vec![call("sum", "[]")]),
            (
                format!("Let me see.\n<tool_call>\n{one}\n</tool_call>\n<tool_call>{one}</tool_call>"),
                "Let me see.",
                vec![clock(), clock()],
            ),
            (format!("<tool_call>{one}"), "", vec![clock()]),
            ("a < b <tool_ but no call".into(), "a < b <tool_ but no call", vec![]),
            (r#"{"name": "other", "arguments": {}}"#.into(), r#"{"name": "other", "arguments": {}}"#, vec![]),
            ("{ is a brace".into(), "{ is a brace", vec![]),
            ("x <tool_call>{</tool_call>".into(), "x <tool_call>{</tool_call>", vec![]),
        ] {
            for size in 1..8 {
                let chars: Vec<char> = text.chars().collect();
                let mut held = Held::default();
                let mut shown: String =
                    chars.chunks(size).map(|c| held.push(&c.iter().collect::<String>())).collect();
                let (rest, found) = held.finish(&tools(false));
                shown += &rest;
                assert_eq!((shown.as_str(), &found), (before, &calls), "{text} {size}");
            }
        }
    }

    #[test]
    fn fields_are_read_or_named() {
        let format = |text: &str| response_format(Some(serde_json::from_str(text).unwrap()));
        assert_eq!(format(r#"{"type": "text"}"#), Ok(None));
        assert!(format(r#"{"type": "json_object"}"#).unwrap().is_some());
        let schema = r#"{"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"type": "null"}}}"#;
        assert_eq!(format(schema), Ok(Some(Form::JsonSchema(r#"{"type":"null"}"#.into()))));
        for wrong in [
            r#"3"#,
            "{}",
            r#"{"type": "xml"}"#,
            r#"{"type": "json_schema"}"#,
            r#"{"type": "json_schema", "json_schema": {}}"#,
        ] {
            let refusal = format(wrong).unwrap_err();
            assert!(refusal.param.unwrap().starts_with("response_format"), "{wrong}");
        }
        let outputs = |text: &str| structured_outputs(Some(serde_json::from_str(text).unwrap()));
        assert_eq!(outputs(r#"{"regex": "a+"}"#), Ok(Some(Form::Regex("a+".into()))));
        for wrong in ["[]", "{}", r#"{"regex": 1}"#, r#"{"choice": []}"#, r#"{"regex": "a", "json": "{}"}"#] {
            assert!(outputs(wrong).unwrap_err().param.unwrap().starts_with("structured_outputs"), "{wrong}");
        }
        let list =
            json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }]);
        let read = |choice: Value| Tools::read(Some(&list), Some(choice));
        assert_eq!(read(json!("none")), Ok(None));
        assert!(!read(json!("auto")).unwrap().unwrap().required);
        let named = read(json!({ "type": "function", "function": { "name": "f" } })).unwrap().unwrap();
        assert!(named.form().is_some());
        assert!(read(json!({ "type": "function", "function": { "name": "g" } })).is_err());
        assert!(read(json!(3)).is_err() && read(json!("sometimes")).is_err());
        assert!(Tools::read(None, Some(json!("required"))).is_err());
        for wrong in [
            json!([1]),
            json!([{ "type": "function" }]),
            json!([{ "type": "function", "function": { "name": "" } }]),
            json!({}),
        ] {
            assert!(Tools::read(Some(&wrong), None).unwrap_err().param.unwrap().starts_with("tools"));
        }
    }
}
