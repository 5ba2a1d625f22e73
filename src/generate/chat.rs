//! Chat messages, and the templates that make a prompt of them.
//!
//! A model that was trained on conversations has a template, a program in Jinja that writes messages in the form that the
//! model knows. Templates come with models and are not trusted: their size, their work and their output are bounded.

mod json;
mod message;
#[cfg(all(test, feature = "chat", feature = "tokenizers"))]
mod talk;
#[cfg_attr(not(feature = "chat"), path = "chat/without.rs")]
mod template;
#[cfg(all(test, feature = "chat"))]
mod tests;

pub use json::Json;
pub use message::{Content, Message};

use crate::Error;
use std::time::SystemTime;

/// A chat template: a program in Jinja, as `chat_template` of a `tokenizer_config.json`, that makes a prompt of messages.
///
/// It sees what transformers gives to one: `messages`, `tools`, `documents`, `add_generation_prompt`, the special tokens by
/// their names, `raise_exception` and `strftime_now`. Blocks are trimmed (`trim_blocks`, `lstrip_blocks`), loops have `break`
/// and `continue`, strings and dictionaries have Python's methods, and `tojson` keeps the order of keys and escapes no HTML.
///
/// ```
/// # #[cfg(feature = "chat")]
/// # fn main() -> Result<(), wgfc::Error> {
/// use wgfc::generate::{ChatOptions, ChatTemplate, Message};
/// let text = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
/// let template = ChatTemplate::parse(text, [("bos_token", "<s>")])?;
/// let messages = [Message::system("Be brief."), Message::user("Hello!")];
/// let prompt = template.render(&messages, &ChatOptions::default())?;
/// assert_eq!(prompt, "<s>[system] Be brief.\n[user] Hello!\n");
/// # Ok(()) }
/// # #[cfg(not(feature = "chat"))]
/// # fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate(template::Template);

/// The tools and further variables of a template, which it gets beside the messages.
///
/// ```
/// use wgfc::generate::{ChatOptions, Json};
/// # fn main() -> Result<(), wgfc::Error> {
/// let tools: Json = r#"[{"type": "function", "function": {"name": "clock"}}]"#.parse()?;
/// let extra = vec![("enable_thinking".to_owned(), Json::Bool(false))];
/// let options = ChatOptions { tools: Some(tools), extra, ..ChatOptions::default() };
/// assert!(options.add_generation_prompt);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// The functions that the model may call: a list, each of OpenAI's form, `{"type": "function", "function": {…}}`.
    pub tools: Option<Json>,
    /// Whether the prompt ends with the beginning of the assistant's next message.
    pub add_generation_prompt: bool,
    /// Further variables of the template, such as `enable_thinking`.
    pub extra: Vec<(String, Json)>,
    /// The time that `strftime_now` writes, in UTC; `None` for the time of rendering.
    pub now: Option<SystemTime>,
}

impl Default for ChatOptions {
    /// No tools, and a prompt that ends with the beginning of the assistant's message.
    fn default() -> ChatOptions {
        ChatOptions { tools: None, add_generation_prompt: true, extra: vec![], now: None }
    }
}

impl ChatTemplate {
    /// Reads a template. `special` are the variables for special tokens, such as `bos_token` and `eos_token`, with their
    /// texts.
    ///
    /// # Errors
    /// A template that is too large or not valid; a build without the feature `chat`.
    pub fn parse<K: Into<String>, V: Into<String>>(
        text: &str,
        special: impl IntoIterator<Item = (K, V)>,
    ) -> Result<ChatTemplate, Error> {
        let special = special.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        Ok(ChatTemplate(template::Template::parse(text, special)?))
    }

    /// The prompt for `messages`. The content of a message may be a text or a list of parts; of parts that are all texts, a
    /// template that takes texts alone gets the lines together, and a text becomes a part for a template that takes parts
    /// alone. Arguments of calls that are given as JSON in a text, as OpenAI's form has them, become values.
    ///
    /// # Errors
    /// The template refuses the messages (`raise_exception`), fails, or takes more than the bounds on its work, its memory
    /// and its output allow; parts other than texts for a template that takes texts alone.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, Error> {
        self.0.render(messages, options)
    }
}
