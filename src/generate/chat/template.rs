//! Templates by minijinja, with the additions that transformers makes to Jinja and bounds on what a template can take.

mod bounded;
mod python;
mod time;

use super::message::text_of;
use super::{ChatOptions, Content, Json, Message};
use crate::generate::apart::apart;
use crate::{Error, Problem};
use bounded::Program;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// The most bytes of a template.
const TEXT: usize = 1 << 18;
/// The most characters of a message of `raise_exception`.
const MESSAGE: usize = 2000;
/// The most bytes of a prompt.
const OUTPUT: usize = 1 << 26;
/// The steps that a template may make: a number, more for each message, and more for each 16 bytes of messages and tools. One
/// step pays for an instruction or 64 bytes that it makes.
const STEPS: (u64, u64) = (1_000_000, 4_000);
/// The most steps of a template, whatever the messages are.
const MOST_STEPS: u64 = 8_000_000;
/// The steps of a template that is tried out.
const TRIAL: u64 = 100_000;
/// The time limit of a template. Steps bound its time; this bound holds for operations that they count too low.
const PATIENCE: Duration = Duration::from_secs(10);
/// The text that a template that is tried out should write.
const NEEDLE: &str = "<NEEDLE>";
/// The name of the template in the engine.
const NAME: &str = "chat_template";

/// A template that has been read.
#[derive(Clone)]
pub struct Template(Arc<Inner>);

struct Inner {
    environment: Environment<'static>,
    program: Program,
    special: Vec<(String, String)>,
    takes: OnceLock<Takes>,
    /// The template has exceeded the time limit once. Its threads may still run, so that no more are started.
    endless: AtomicBool,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("special", &self.0.special).finish_non_exhaustive()
    }
}

/// The forms of content that a template writes.
#[derive(Clone, Copy)]
struct Takes {
    text: bool,
    parts: bool,
}

/// The message of `raise_exception`, as the source of an error.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

impl Template {
    /// Reads a template.
    pub fn parse(text: &str, special: Vec<(String, String)>) -> Result<Template, Error> {
        if text.len() > TEXT {
            let message = format!("the chat template has {} bytes; at most {TEXT} are allowed", text.len());
            return Err(Error::usage(message, CORRECT));
        }
        let text = without_generation(text).into_owned();
        let made = apart("template", PATIENCE, move || {
            environment(text).map_err(|e| format!("the chat template is not valid: {}", in_words(&e)))
        });
        let (environment, program) = made.map_err(|m| Error::usage(m, CORRECT))?;
        Ok(Template(Arc::new(Inner {
            environment,
            program,
            special,
            takes: OnceLock::new(),
            endless: AtomicBool::new(false),
        })))
    }

    /// The prompt for messages.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, Error> {
        let takes = self.takes();
        let values: Vec<Value> =
            messages.iter().enumerate().map(|(i, m)| message(i, m, takes)).collect::<Result<_, Error>>()?;
        let given = messages.iter().map(bytes).chain(options.tools.iter().map(json_bytes));
        let given: u64 = given.chain(options.extra.iter().map(|(_, v)| json_bytes(v))).sum();
        let steps = STEPS.0 + (messages.len() as u64).saturating_mul(STEPS.1) + given / 16;
        self.write(values, options, steps.min(MOST_STEPS)).map_err(Error::from)
    }

    /// The forms of content that the template writes, found by trying it out.
    fn takes(&self) -> Takes {
        *self.0.takes.get_or_init(|| {
            let writes = |content: Value| {
                let one = Value::from_pairs([("role", Value::from("user")), ("content", content)]);
                let text = self.write(vec![one], &ChatOptions::default(), TRIAL);
                // A template that knows no parts may write the list itself.
                text.is_ok_and(|t| t.contains(NEEDLE) && !t.contains("'text'") && !t.contains("\"text\""))
            };
            let part = Value::from_pairs([("type", "text"), ("text", NEEDLE)]);
            let takes = Takes { text: writes(Value::from(NEEDLE)), parts: writes(Value::from(vec![part])) };
            // A template that writes neither refuses the message for another reason.
            if takes.text || takes.parts { takes } else { Takes { text: true, parts: true } }
        })
    }

    fn write(&self, messages: Vec<Value>, options: &ChatOptions, steps: u64) -> Result<String, Failure> {
        let endless =
            || Failure::Template(format!("has not come to an end in {} seconds", PATIENCE.as_secs()));
        if self.0.endless.load(Ordering::Relaxed) {
            return Err(endless());
        }
        let now = options.now.unwrap_or_else(SystemTime::now);
        let strftime = move |format: &str| time::strftime(format, now).map_err(failed);
        let pairs = self.0.special.iter().map(|(k, v)| (k.clone(), Value::from(v)));
        let pairs = pairs.chain([("strftime_now".to_owned(), Value::from_function(strftime))]);
        let pairs = pairs.chain(options.extra.iter().map(|(k, v)| (k.clone(), value(v))));
        let pairs = pairs.chain([
            ("messages".to_owned(), Value::from(messages)),
            ("tools".to_owned(), options.tools.as_ref().map_or(Value::from(()), value)),
            ("documents".to_owned(), Value::from(())),
            ("add_generation_prompt".to_owned(), Value::from(options.add_generation_prompt)),
        ]);
        let variables = Value::from_pairs(pairs);
        let inner = self.0.clone();
        let start = Instant::now();
        let made = apart("template", PATIENCE, move || {
            let mut environment = inner.environment.clone();
            environment.set_fuel(Some(steps));
            let made = inner.program.run(&environment, variables);
            Ok(made.map_err(|e| Failure::of(&e, steps)))
        });
        if made.is_err() && start.elapsed() >= PATIENCE {
            self.0.endless.store(true, Ordering::Relaxed);
            return Err(endless());
        }
        let text = made.unwrap_or_else(|why| Err(Failure::Template(format!("fails: {why}"))))?;
        if text.len() > OUTPUT {
            let message = format!("makes a prompt of {} bytes; at most {OUTPUT} are allowed", text.len());
            return Err(Failure::Template(message));
        }
        Ok(text)
    }
}

/// The reason why a template gives no prompt.
enum Failure {
    /// The template refuses the messages.
    Refused(String),
    /// The template is at fault.
    Template(String),
}

impl Failure {
    fn of(e: &minijinja::Error, steps: u64) -> Failure {
        let mut source = std::error::Error::source(e);
        while let Some(s) = source {
            if let Some(Raised(message)) = s.downcast_ref() {
                return Failure::Refused(message.clone());
            }
            source = s.source();
        }
        Failure::Template(match e.kind() {
            ErrorKind::OutOfFuel => {
                let line = e.line().map(|l| format!(", in line {l}")).unwrap_or_default();
                format!("takes more than the {steps} steps that are allowed{line}")
            }
            _ => format!("fails: {}", in_words(e)),
        })
    }
}

impl From<Failure> for Error {
    fn from(f: Failure) -> Error {
        Error::Usage(vec![match f {
            Failure::Refused(message) => Problem::with_help(
                format!("the chat template refuses the messages: {message}"),
                "the template is the model's; give messages with the roles that it takes, in their order",
            ),
            Failure::Template(message) => Problem::with_help(format!("the chat template {message}"), CORRECT),
        }])
    }
}

const CORRECT: &str =
    "correct the template: `chat_template` of tokenizer_config.json, or chat_template.jinja beside the model";

/// An error of the engine with its line.
fn in_words(e: &minijinja::Error) -> String {
    let line = e.line().map(|l| format!(" (line {l} of the template)")).unwrap_or_default();
    match e.detail() {
        Some(detail) => format!("{}: {detail}{line}", e.kind()),
        None => format!("{}{line}", e.kind()),
    }
}

fn failed(message: String) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, message)
}

/// The template, and an environment that is set up as transformers does.
fn environment(text: String) -> Result<(Environment<'static>, Program), minijinja::Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    environment.set_syntax(syntax.clone());
    environment.set_debug(true);
    environment.set_formatter(python::write);
    environment.set_unknown_method_callback(python::method);
    environment.add_filter("tojson", python::tojson);
    environment.add_test("sequence", python::is_sequence);
    environment.add_function("raise_exception", |message: Value, _: Kwargs| {
        let raised = Raised(message.to_string().chars().take(MESSAGE).collect());
        Err::<Value, _>(failed(raised.to_string()).with_source(raised))
    });
    let program = Program::new(text, syntax, &mut environment)?;
    Ok((environment, program))
}

/// The template without `{% generation %}`: these blocks mark the assistant's tokens for training and are written as they
/// are. `{% if true %}` in their place keeps the control of white space.
fn without_generation(text: &str) -> Cow<'_, str> {
    let mut made = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        let name = tag.trim_start_matches(['-', '+']);
        let (sign, name) = (&tag[..tag.len() - name.len()], name.trim_start());
        let found =
            [("generation", " if true"), ("endgeneration", " endif")].into_iter().find_map(|(n, to)| {
                let after = name.strip_prefix(n)?;
                after.trim_start().trim_start_matches(['-', '+']).starts_with("%}").then_some((to, after))
            });
        made += before;
        rest = match found {
            None => tag,
            Some((to, after)) => {
                made += sign;
                made += to;
                made.push(' ');
                after.trim_start()
            }
        };
    }
    if made.is_empty() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(made + rest)
}

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (_, Some(n)) => Value::from(n),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::Text(text) => Value::from(text),
        Json::List(list) => Value::from(list.iter().map(value).collect::<Vec<_>>()),
        Json::Object(pairs) => Value::from_pairs(pairs.iter().map(|(k, v)| (k.clone(), value(v)))),
    }
}

/// The bytes of the texts in a value, and some for each value in it.
fn json_bytes(json: &Json) -> u64 {
    8 + match json {
        Json::Text(text) => text.len() as u64,
        Json::List(list) => list.iter().map(json_bytes).sum(),
        Json::Object(pairs) => pairs.iter().map(|(k, v)| k.len() as u64 + json_bytes(v)).sum(),
        _ => 0,
    }
}

fn bytes(m: &Message) -> u64 {
    let content = match &m.content {
        None => 0,
        Some(Content::Text(text)) => text.len() as u64,
        Some(Content::Parts(parts)) => parts.iter().map(json_bytes).sum(),
    };
    let fields = m.tool_calls.iter().chain(m.other.iter().map(|(_, v)| v));
    content + fields.map(json_bytes).sum::<u64>()
}

/// A message as the template sees it.
fn message(i: usize, m: &Message, takes: Takes) -> Result<Value, Error> {
    let content = match &m.content {
        None => Value::from(()),
        Some(Content::Text(text)) if takes.text => Value::from(text),
        Some(Content::Text(text)) => {
            Value::from(vec![Value::from_pairs([("type", "text"), ("text", text.as_str())])])
        }
        Some(Content::Parts(parts)) if takes.parts => {
            Value::from(parts.iter().map(value).collect::<Vec<_>>())
        }
        Some(Content::Parts(parts)) => match m.text() {
            Some(text) => Value::from(text),
            None => {
                let other = parts.iter().find(|p| text_of(p).is_none()).and_then(|p| p.get("type"));
                let other = other.and_then(Json::as_str).unwrap_or("no type");
                return Err(Error::usage(
                    format!(
                        "message {} has a part of type `{other}`, and the chat template takes texts alone",
                        i + 1
                    ),
                    "give parts of type `text`",
                ));
            }
        },
    };
    let mut pairs = vec![("role".to_owned(), Value::from(&m.role)), ("content".to_owned(), content)];
    if !m.tool_calls.is_empty() {
        let calls: Vec<Value> = m.tool_calls.iter().map(call).collect();
        pairs.push(("tool_calls".to_owned(), Value::from(calls)));
    }
    pairs.extend(m.other.iter().map(|(k, v)| (k.clone(), value(v))));
    Ok(Value::from_pairs(pairs))
}

/// A call of a tool, its arguments as values if they are the JSON of an object.
fn call(json: &Json) -> Value {
    let Json::Object(pairs) = json else { return value(json) };
    let one = |(key, v): &(String, Json)| {
        let v = match (key.as_str(), v) {
            ("function", v @ Json::Object(_)) => call(v),
            ("arguments", Json::Text(text)) => match text.parse() {
                Ok(parsed @ Json::Object(_)) => value(&parsed),
                _ => value(v),
            },
            _ => value(v),
        };
        (key.clone(), v)
    };
    Value::from_pairs(pairs.iter().map(one))
}
