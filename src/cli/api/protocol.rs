//! Requests and errors of OpenAI's protocol.

use super::forms::{Tools, response_format, structured_outputs};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::{Map, Value, json};
use wgfc::generate::{ChatOptions, Defaults, Form, Json, MOST_LOGPROBS, Message};
use wgfc::{Error, ErrorClass, Sampling};

/// The most stop strings of a request, as in OpenAI's protocol, and the most bytes of each.
const STOPS: usize = 4;
const STOP_BYTES: usize = 1024;
/// The most tokens of `logit_bias`, as in OpenAI's protocol.
const BIASES: usize = 300;
/// The most answers to one prompt.
const ANSWERS: usize = 128;
/// The new tokens of `/v1/completions` where the request does not say how many.
const DEFAULT_TOKENS: usize = 16;

/// An error in the protocol's form.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The status of HTTP.
    pub status: u16,
    /// The problem, in words.
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    /// A name for programs.
    pub code: Option<&'static str>,
}

impl Refusal {
    /// An error with this status, without a field.
    pub fn new(status: u16, message: impl Into<String>, code: Option<&'static str>) -> Refusal {
        Refusal { status, message: message.into(), param: None, code }
    }

    /// A field of the request that is wrong.
    pub fn param(name: &str, message: impl Into<String>, code: &'static str) -> Refusal {
        Refusal { status: 400, message: message.into(), param: Some(name.to_owned()), code: Some(code) }
    }

    /// An error of the engine; `param` is the field in which the cause is if it is the request.
    pub fn of(error: &Error, param: &str) -> Refusal {
        let texts: Vec<String> = error.findings().iter().map(|f| f.diagnostic.message.clone()).collect();
        let text = texts.join("; ");
        match error.class() {
            ErrorClass::Model => Refusal::param(param, text, "invalid_value"),
            _ => Refusal::new(500, text, Some("internal_error")),
        }
    }

    /// The `error` object of the protocol.
    pub fn json(&self) -> Value {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

/// The beginning of a sequence.
#[derive(Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    Tokens(Vec<i64>),
    /// The messages of a chat, of which the model's template makes a prompt.
    Chat(Box<Chat>),
}

/// The parts of a request of which a chat template makes a prompt. Keys of objects keep their order.
#[derive(Debug, Deserialize, PartialEq)]
pub struct Chat {
    pub messages: Vec<Message>,
    /// The functions that the model may call.
    #[serde(default)]
    tools: Option<Json>,
    /// Further variables of the template.
    #[serde(default, rename = "chat_template_kwargs")]
    extra: Option<Extra>,
}

#[derive(Debug, PartialEq)]
struct Extra(Vec<(String, Json)>);

impl<'de> Deserialize<'de> for Extra {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Extra, D::Error> {
        match Json::deserialize(d)? {
            Json::Object(extra) => Ok(Extra(extra)),
            _ => Err(D::Error::custom("chat_template_kwargs is not an object")),
        }
    }
}

impl Chat {
    /// The options of the template.
    pub fn options(&self) -> ChatOptions {
        let extra = self.extra.as_ref().map(|e| e.0.clone()).unwrap_or_default();
        ChatOptions { extra, tools: self.tools.clone(), ..ChatOptions::default() }
    }
}

/// A request for new tokens.
#[derive(Debug, PartialEq)]
pub struct Call {
    /// The name of the model.
    pub model: String,
    /// One for each sequence.
    pub prompts: Vec<Prompt>,
    /// The number of answers to each prompt.
    pub answers: usize,
    /// The number of likely tokens whose log-probabilities are reported with that of each token, if they are.
    pub logprobs: Option<usize>,
    /// The form of the answers.
    pub form: Option<Form>,
    /// The functions that answers may call.
    pub tools: Option<Tools>,
    /// The most new tokens of each sequence; `None` for as many as the cache has room for.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen; `None` is greedy.
    pub sampling: Option<Sampling>,
    /// Whether the request names the seed of the random numbers. Otherwise one is drawn.
    pub seeded: bool,
    /// Strings before which the text ends.
    pub stop: Vec<String>,
    /// Whether tokens that end a text are generated like others.
    pub ignore_eos: bool,
    pub stream: bool,
    /// Whether a stream ends with the number of tokens.
    pub include_usage: bool,
    /// Whether the answer holds the ids of the new tokens too.
    pub return_token_ids: bool,
}

impl Call {
    /// The name of the field that holds the prompt.
    pub fn prompt_param(&self) -> &'static str {
        match self.prompts.first() {
            Some(Prompt::Chat(_)) => "messages",
            _ => "prompt",
        }
    }

    /// Reads the body of a request for a completion, or for that of a chat.
    ///
    /// # Errors
    /// JSON that is not valid, fields of the wrong type or value, unknown fields, fields that are not supported.
    pub fn read(body: &[u8], chat: bool, defaults: &Defaults) -> Result<Call, Refusal> {
        let mut f = fields(body)?;
        let model = f.text("model")?.ok_or_else(|| missing("model"))?;
        let mut prompts = if chat {
            vec![messages(f.0.remove("messages"), body)?]
        } else {
            prompts(f.0.remove("prompt"), "prompt")?
        };
        let tools = match chat {
            true => {
                let tools = Tools::read(f.take("tools").as_ref(), f.take("tool_choice"))?;
                f.flag("parallel_tool_calls")?;
                tools
            }
            false => None,
        };
        if let (None, Some(Prompt::Chat(chat))) = (&tools, prompts.first_mut()) {
            chat.tools = None;
        }
        let answers = f.count("n", true)?.unwrap_or(1);
        if answers > ANSWERS {
            let message = format!("'n' is {answers}, more than {ANSWERS}");
            return Err(Refusal::param("n", message, "invalid_value"));
        }
        let logprobs = logprobs(&mut f, chat)?;
        let form = if chat { response_format(f.take("response_format"))? } else { None };
        let other = structured_outputs(f.take("structured_outputs"))?;
        let call = tools.as_ref().and_then(Tools::form);
        let mut asked = [form, other, call].into_iter().flatten();
        let form = asked.next();
        if asked.next().is_some() {
            let message = "'response_format', 'structured_outputs' and a required call of a function exclude each other";
            return Err(Refusal::param("response_format", message, "invalid_value"));
        }
        let most = match f.count("max_completion_tokens", chat)? {
            None => f.count("max_tokens", true)?,
            Some(n) => {
                f.0.remove("max_tokens");
                Some(n)
            }
        };
        if chat {
            match f.0.remove("chat_template_kwargs") {
                None | Some(Value::Null | Value::Object(_)) => {}
                Some(other) => return Err(wrong("chat_template_kwargs", "an object", &other)),
            }
        }
        let (sampling, seeded) = sampling(&mut f, defaults)?;
        let stop = stops(f.0.remove("stop"))?;
        let stream = f.flag("stream")?;
        let mut include_usage = false;
        match f.0.remove("stream_options") {
            None | Some(Value::Null) => {}
            Some(Value::Object(_)) if !stream => {
                let message = "'stream_options' is given without 'stream': true";
                return Err(Refusal::param("stream_options", message, "invalid_value"));
            }
            Some(Value::Object(options)) => {
                let mut options = Fields(options);
                include_usage = options.flag("include_usage")?;
                options.flag("include_obfuscation")?;
                options.finish("stream_options.")?;
            }
            Some(other) => return Err(wrong("stream_options", "an object", &other)),
        }
        let ignore_eos = f.flag("ignore_eos")?;
        let return_token_ids = f.flag("return_token_ids")?;
        unsupported(&mut f, chat)?;
        f.finish("")?;
        let max_tokens = if chat { most } else { most.or(Some(DEFAULT_TOKENS)) };
        Ok(Call {
            model,
            prompts,
            answers,
            logprobs,
            form,
            tools,
            max_tokens,
            sampling,
            seeded,
            stop,
            ignore_eos,
            stream,
            include_usage,
            return_token_ids,
        })
    }
}

/// The fields of a request's body.
///
/// # Errors
/// JSON that is not valid, or no object.
pub fn fields(body: &[u8]) -> Result<Fields, Refusal> {
    let fields: Value = serde_json::from_slice(body).map_err(|e| {
        Refusal::new(400, format!("the body of the request is not valid JSON: {e}"), Some("invalid_json"))
    })?;
    let Value::Object(fields) = fields else {
        let message = format!("the body of the request is {}, not an object", kind(&fields));
        return Err(Refusal::new(400, message, Some("invalid_json")));
    };
    Ok(Fields(fields))
}

/// The fields of an object that have not been read yet.
pub struct Fields(Map<String, Value>);

impl Fields {
    /// A value that is present and not null.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|v| !v.is_null())
    }

    pub fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(wrong(name, "a string", &other)),
        }
    }

    fn flag(&mut self, name: &str) -> Result<bool, Refusal> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(b)) => Ok(b),
            Some(other) => Err(wrong(name, "a boolean", &other)),
        }
    }

    /// A number within bounds.
    fn number(&mut self, name: &str, least: f64, most: f64) -> Result<Option<f64>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let x = value.as_f64().ok_or_else(|| wrong(name, "a number", &value))?;
        if !(least..=most).contains(&x) {
            return Err(Refusal::param(
                name,
                format!("'{name}' is {x}, not in {least} to {most}"),
                "invalid_value",
            ));
        }
        Ok(Some(x))
    }

    fn integer(&mut self, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        Ok(Some(value.as_i64().ok_or_else(|| wrong(name, "an integer", &value))?))
    }

    /// A count of at least 1. A field that is not `known` is left.
    pub fn count(&mut self, name: &str, known: bool) -> Result<Option<usize>, Refusal> {
        let Some(n) = (if known { self.integer(name)? } else { None }) else { return Ok(None) };
        let count = usize::try_from(n).ok().filter(|n| *n > 0);
        let few = || Refusal::param(name, format!("'{name}' is {n}, which is less than 1"), "invalid_value");
        count.map(Some).ok_or_else(few)
    }

    /// Refuses fields that have not been read.
    pub fn finish(self, within: &str) -> Result<(), Refusal> {
        let Some(name) = self.0.keys().next() else { return Ok(()) };
        let name: String = format!("{within}{name}").chars().take(200).collect();
        let message = format!("Unrecognized request argument supplied: {name}");
        Err(Refusal::param(&name, message, "unknown_parameter"))
    }
}

/// The number of likely tokens whose log-probabilities a request asks for.
fn logprobs(f: &mut Fields, chat: bool) -> Result<Option<usize>, Refusal> {
    let count = |f: &mut Fields, name: &str| {
        let Some(n) = f.integer(name)? else { return Ok(None) };
        let count = usize::try_from(n).ok().filter(|n| *n <= MOST_LOGPROBS);
        let message = || format!("'{name}' is {n}, not in 0 to {MOST_LOGPROBS}");
        count.map(Some).ok_or_else(|| Refusal::param(name, message(), "invalid_value"))
    };
    if !chat {
        return count(f, "logprobs");
    }
    let (wanted, most) = (f.flag("logprobs")?, count(f, "top_logprobs")?);
    match most {
        Some(1..) if !wanted => {
            let message = "'top_logprobs' is given without 'logprobs': true";
            Err(Refusal::param("top_logprobs", message, "invalid_value"))
        }
        most => Ok(wanted.then(|| most.unwrap_or(0))),
    }
}

/// A value's type, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(n) if n.is_f64() => "a number with a fraction",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The refusal of a field whose value has the wrong type.
pub fn wrong(name: &str, want: &str, got: &Value) -> Refusal {
    let message = format!("Invalid type for '{name}': expected {want}, but got {} instead.", kind(got));
    Refusal::param(name, message, "invalid_type")
}

/// The refusal of a request without this field.
pub fn missing(name: &str) -> Refusal {
    Refusal::param(name, format!("Missing required parameter: '{name}'."), "missing_required_parameter")
}

/// The texts of the field `name`: a text, token ids, or an array of either.
pub fn prompts(value: Option<Value>, name: &str) -> Result<Vec<Prompt>, Refusal> {
    const WANT: &str = "a string, an array of strings, an array of token ids or an array of such arrays";
    let empty = || Refusal::param(name, format!("'{name}' is an empty array"), "invalid_value");
    match value {
        None | Some(Value::Null) => Err(missing(name)),
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(all)) => match all.first() {
            None => Err(empty()),
            Some(Value::Number(_)) => Ok(vec![Prompt::Tokens(tokens(&all, name)?)]),
            Some(Value::String(_) | Value::Array(_)) => all
                .into_iter()
                .map(|one| match one {
                    Value::String(text) => Ok(Prompt::Text(text)),
                    Value::Array(ids) => Ok(Prompt::Tokens(tokens(&ids, name)?)),
                    other => Err(wrong(name, WANT, &other)),
                })
                .collect(),
            Some(other) => Err(wrong(name, WANT, other)),
        },
        Some(other) => Err(wrong(name, WANT, &other)),
    }
}

fn tokens(all: &[Value], name: &str) -> Result<Vec<i64>, Refusal> {
    all.iter().map(|id| id.as_i64().ok_or_else(|| wrong(name, "token ids (integers)", id))).collect()
}

/// The messages of a chat: objects with a `role`. `value` is that of the field, and `body` the whole request.
fn messages(value: Option<Value>, body: &[u8]) -> Result<Prompt, Refusal> {
    let all = match value {
        None | Some(Value::Null) => return Err(missing("messages")),
        Some(Value::Array(all)) => all,
        Some(other) => return Err(wrong("messages", "an array", &other)),
    };
    if all.is_empty() {
        return Err(Refusal::param("messages", "'messages' is an empty array", "invalid_value"));
    }
    for (i, message) in all.iter().enumerate() {
        let name = format!("messages[{i}]");
        let Value::Object(fields) = message else { return Err(wrong(&name, "an object", message)) };
        match fields.get("role") {
            Some(Value::String(_)) => {}
            Some(other) => return Err(wrong(&format!("{name}.role"), "a string", other)),
            None => return Err(missing(&format!("{name}.role"))),
        }
    }
    // Values have lost the order of their keys, which templates show.
    let chat = serde_json::from_slice(body);
    let wrong =
        |e: serde_json::Error| Refusal::param("messages", format!("the messages: {e}"), "invalid_type");
    Ok(Prompt::Chat(Box::new(chat.map_err(wrong)?)))
}

fn stops(value: Option<Value>) -> Result<Vec<String>, Refusal> {
    let all = match value {
        None | Some(Value::Null) => return Ok(vec![]),
        Some(Value::Array(all)) => all,
        Some(one) => vec![one],
    };
    if all.len() > STOPS {
        let message = format!("'stop' holds {} strings, more than {STOPS}", all.len());
        return Err(Refusal::param("stop", message, "invalid_value"));
    }
    let one = |value: Value| match value {
        Value::String(s) if s.is_empty() => {
            Err(Refusal::param("stop", "'stop' holds an empty string", "invalid_value"))
        }
        Value::String(s) if s.len() > STOP_BYTES => {
            let message = format!("'stop' holds a string of {} bytes, more than {STOP_BYTES}", s.len());
            Err(Refusal::param("stop", message, "invalid_value"))
        }
        Value::String(s) => Ok(s),
        other => Err(wrong("stop", "a string or an array of strings", &other)),
    };
    all.into_iter().map(one).collect()
}

/// How tokens are chosen, and whether the request has a seed. Where the request does not say, the publisher's recommendation
/// applies, and otherwise a temperature of 1, as in the protocol.
fn sampling(f: &mut Fields, defaults: &Defaults) -> Result<(Option<Sampling>, bool), Refusal> {
    let given = f.number("temperature", 0.0, 2.0)?;
    let top_p = f.number("top_p", f64::MIN_POSITIVE, 1.0)?;
    let top_k = f.integer("top_k")?;
    let min_p = f.number("min_p", 0.0, 1.0)?;
    let presence_penalty = f.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0) as f32;
    let frequency_penalty = f.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(0.0) as f32;
    let repetition_penalty = f.number("repetition_penalty", 1e-3, 1e3)?.map(|r| r as f32);
    let repetition_penalty = repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0);
    let logit_bias = biases(f.take("logit_bias"))?;
    let seed = f.integer("seed")?;
    let d = if defaults.sample { defaults.clone() } else { Defaults::default() };
    let temperature = given.map(|t| t as f32).or(d.temperature).unwrap_or(1.0);
    let top_k = match top_k {
        // As in other servers, -1 and 0 stand for all tokens.
        Some(-1 | 0) => None,
        Some(k) => match usize::try_from(k) {
            Ok(k) => Some(k),
            Err(_) => {
                let message = format!("'top_k' is {k}: it is a count, or -1 for all tokens");
                return Err(Refusal::param("top_k", message, "invalid_value"));
            }
        },
        None => d.top_k,
    };
    // A share that rounds to 0 keeps the most likely token.
    let top_p = top_p.map(|p| (p as f32).max(f32::MIN_POSITIVE)).or(d.top_p);
    let seeded = seed.is_some();
    let seed = seed.unwrap_or_default().cast_unsigned();
    let min_p = min_p.map(|p| p as f32).or(d.min_p);
    let sampling = Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        logit_bias,
        seed,
    };
    Ok((if temperature > 0.0 { Some(sampling) } else { sampling.without_chance() }, seeded))
}

/// Numbers by token id, in the order of the ids.
fn biases(value: Option<Value>) -> Result<Vec<(i64, f32)>, Refusal> {
    let all = match value {
        None => return Ok(vec![]),
        Some(Value::Object(all)) => all,
        Some(other) => return Err(wrong("logit_bias", "an object of numbers by token id", &other)),
    };
    let refused = |message| Err(Refusal::param("logit_bias", message, "invalid_value"));
    if all.len() > BIASES {
        return refused(format!("'logit_bias' holds {} tokens, more than {BIASES}", all.len()));
    }
    let mut biases = vec![];
    for (token, bias) in all {
        let Ok(id) = token.parse() else {
            let token: String = token.chars().take(100).collect();
            return refused(format!("'logit_bias' has the key '{token}', which is no token id"));
        };
        match bias.as_f64() {
            Some(b) if (-100.0..=100.0).contains(&b) => biases.push((id, b as f32)),
            Some(b) => return refused(format!("'logit_bias' of token {id} is {b}, not in -100 to 100")),
            None => return Err(wrong("logit_bias", "an object of numbers by token id", &bias)),
        }
    }
    biases.sort_by_key(|(id, _)| *id);
    Ok(biases)
}

/// Reads fields that must have the one value that is supported, and those that change nothing.
fn unsupported(f: &mut Fields, chat: bool) -> Result<(), Refusal> {
    let neutral = |name: &str, value: &Value| match name {
        "best_of" => value.as_i64() == Some(1),
        "suffix" => value.as_str().is_some_and(str::is_empty),
        "functions" => value.as_array().is_some_and(Vec::is_empty),
        "function_call" => value.as_str() == Some("none"),
        "modalities" => value.as_array().is_some_and(|m| m.iter().all(|m| m.as_str() == Some("text"))),
        "echo" => value.as_bool() == Some(false),
        _ => false,
    };
    let completion = ["best_of", "suffix", "echo"];
    let talk = ["functions", "function_call", "modalities"];
    for name in if chat { &talk[..] } else { &completion[..] } {
        if let Some(value) = f.take(name)
            && !neutral(name, &value)
        {
            let message = format!("'{name}' has a value that is not supported; leave it out");
            return Err(Refusal::param(name, message, "unsupported_value"));
        }
    }
    let ignored = ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"];
    ignored.iter().for_each(|name| drop(f.0.remove(*name)));
    Ok(())
}

/// Calls `check` with a body in which some bytes are changed, many times.
#[cfg(test)]
pub fn changed(body: &[u8], times: usize, check: impl Fn(&[u8])) {
    let mut rng = wgfc::random::Rng::new(1, "bodies");
    let signs = b"{}[]\",:0-9.eE+ntf\\u\xff\x00 ";
    for _ in 0..times {
        let mut body = body.to_vec();
        for _ in 0..1 + rng.bits() % 4 {
            let at = rng.bits() as usize % body.len();
            let sign = signs[rng.bits() as usize % signs.len()];
            match rng.bits() % 4 {
                0 => body.insert(at, sign),
                1 if body.len() > 1 => drop(body.remove(at)),
                2 => body.truncate(at.max(1)),
                _ => body[at] = sign,
            }
        }
        check(&body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, chat: bool) -> Result<Call, Refusal> {
        Call::read(body.as_bytes(), chat, &Defaults::default())
    }

    #[test]
    fn requests_are_read() {
        let call = read(
            r#"{"model": "m", "prompt": [[1, 2], "x"], "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": -1,
                "seed": -1, "stop": "end", "stream": true, "stream_options": {"include_usage": true}, "n": 1, "user": "u",
                "logit_bias": null, "frequency_penalty": 0}"#,
            false,
        )
        .unwrap();
        let sampling = Sampling {
            temperature: 0.5,
            top_p: Some(0.9),
            top_k: None,
            seed: u64::MAX,
            ..Sampling::default()
        };
        assert_eq!(call.prompts, [Prompt::Tokens(vec![1, 2]), Prompt::Text("x".into())]);
        assert_eq!((call.sampling, call.max_tokens, call.seeded), (Some(sampling), Some(7), true));
        assert_eq!(call.stop, ["end"]);
        assert!(call.stream && call.include_usage);
        let call = read(r#"{"model": "m", "prompt": "x", "temperature": 0}"#, false).unwrap();
        assert_eq!((call.sampling, call.max_tokens), (None, Some(16)));
        let call = read(
            r#"{"model": "m", "prompt": "x", "temperature": 0, "logit_bias": {"11": -100, "2": 1.5}, "presence_penalty": 1, "min_p": 0.1}"#,
            false,
        )
        .unwrap();
        let want = Sampling {
            top_k: Some(1),
            presence_penalty: 1.0,
            logit_bias: vec![(2, 1.5), (11, -100.0)],
            ..Sampling::default()
        };
        assert_eq!(call.sampling, Some(want));
        let call = read(r#"{"model": "m", "messages": [{"role": "user", "content": "x"}]}"#, true).unwrap();
        assert_eq!((call.prompts.len(), call.max_tokens), (1, None));
        assert_eq!(call.sampling, Some(Sampling::default()));
    }

    #[test]
    fn the_publishers_recommendation_applies_where_the_request_does_not_say() {
        let recommended =
            Defaults { sample: true, temperature: Some(0.6), top_k: Some(20), ..Defaults::default() };
        let call = Call::read(br#"{"model": "m", "prompt": "x", "top_k": 3}"#, false, &recommended).unwrap();
        let want = Sampling { temperature: 0.6, top_k: Some(3), ..Sampling::default() };
        assert_eq!(call.sampling, Some(want));
    }

    /// Bodies of requests with some bytes changed are read or refused.
    #[test]
    fn changed_requests_are_read_or_refused() {
        let bodies = [
            r#"{"model": "m", "prompt": [[1, 2], "x"], "max_tokens": 7, "temperature": 0.5, "seed": 1, "stop": ["a", "b"]}"#,
            r#"{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "stream": true,
                "stream_options": {"include_usage": false}, "tools": [], "response_format": {"type": "text"}, "n": 1}"#,
        ];
        for body in bodies {
            changed(body.as_bytes(), 10_000, |body| {
                for chat in [false, true] {
                    if let Err(refusal) = Call::read(body, chat, &Defaults::default()) {
                        assert!((400..500).contains(&refusal.status) && !refusal.message.is_empty());
                    }
                }
            });
        }
    }

    #[test]
    fn fields_that_are_wrong_are_named() {
        for (fields, param) in [
            (r#""prompt": 3"#, "prompt"),
            (r#""prompt": []"#, "prompt"),
            (r#""prompt": [1, "a"]"#, "prompt"),
            (r#""prompt": [[1], 2]"#, "prompt"),
            (r#""prompt": [1.5]"#, "prompt"),
            (r#""prompt": [99999999999999999999]"#, "prompt"),
            (r#""max_tokens": 5"#, "prompt"),
            (r#""prompt": "x", "max_tokens": 0"#, "max_tokens"),
            (r#""prompt": "x", "max_tokens": "5""#, "max_tokens"),
            (r#""prompt": "x", "temperature": 2.5"#, "temperature"),
            (r#""prompt": "x", "temperature": "hot""#, "temperature"),
            (r#""prompt": "x", "top_p": 0"#, "top_p"),
            (r#""prompt": "x", "top_k": -2"#, "top_k"),
            (r#""prompt": "x", "seed": 1.5"#, "seed"),
            (r#""prompt": "x", "stop": [""]"#, "stop"),
            (r#""prompt": "x", "stop": ["a", "b", "c", "d", "e"]"#, "stop"),
            (r#""prompt": "x", "stop": [1]"#, "stop"),
            (r#""prompt": "x", "n": 0"#, "n"),
            (r#""prompt": "x", "n": 129"#, "n"),
            (r#""prompt": "x", "best_of": 2"#, "best_of"),
            (r#""prompt": "x", "logprobs": 21"#, "logprobs"),
            (r#""prompt": "x", "logprobs": true"#, "logprobs"),
            (r#""prompt": "x", "tools": []"#, "tools"),
            (r#""prompt": "x", "structured_outputs": {}"#, "structured_outputs"),
            (r#""prompt": "x", "logit_bias": {"1": 500}"#, "logit_bias"),
            (r#""prompt": "x", "logit_bias": {"a": 5}"#, "logit_bias"),
            (r#""prompt": "x", "logit_bias": {"1": "5"}"#, "logit_bias"),
            (r#""prompt": "x", "min_p": 1.5"#, "min_p"),
            (r#""prompt": "x", "repetition_penalty": 0"#, "repetition_penalty"),
            (r#""prompt": "x", "presence_penalty": -2.5"#, "presence_penalty"),
            (r#""prompt": "x", "frequency_penalty": "1""#, "frequency_penalty"),
            (r#""prompt": "x", "stream": 1"#, "stream"),
            (r#""prompt": "x", "stream_options": {}"#, "stream_options"),
            (r#""prompt": "x", "stream": true, "stream_options": {"x": 1}"#, "stream_options.x"),
            (r#""prompt": "x", "colour": "red""#, "colour"),
            (r#""prompt": "x", "messages": []"#, "messages"),
        ] {
            let refusal = read(&format!(r#"{{"model": "m", {fields}}}"#), false).unwrap_err();
            assert_eq!(
                (refusal.status, refusal.param.as_deref()),
                (400, Some(param)),
                "{fields}: {refusal:?}"
            );
        }
        for (messages, param) in [
            ("null", "messages"),
            ("[]", "messages"),
            ("\"hello\"", "messages"),
            ("[1]", "messages[0]"),
            (r#"[{"role": "user"}, {"content": "x"}]"#, "messages[1].role"),
            (r#"[{"role": 1}]"#, "messages[0].role"),
        ] {
            let refusal = read(&format!(r#"{{"model": "m", "messages": {messages}}}"#), true).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some(param), "{messages}");
        }
        let deep = format!(r#"{{"model": {}"#, "[".repeat(100_000));
        for body in ["", "{", "[]", "nonsense", "{\"model\": \"\u{1}\"}", &deep] {
            assert_eq!(read(body, false).unwrap_err().code, Some("invalid_json"));
        }
        assert_eq!(read("{}", false).unwrap_err().param.as_deref(), Some("model"));
    }
}
