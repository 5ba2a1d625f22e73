//! The chat template of a decoder and its special tokens, from the files beside the model.

use super::{ADDED_TEMPLATE, TOKENIZER_CONFIG};
use crate::Error;
use crate::generate::chat::{ChatOptions, ChatTemplate, Json};
use std::path::Path;
#[cfg(feature = "tokenizers")]
use wgfc_compiler::import::gguf::{Header, special_tokens};

/// The chat templates and special tokens of a decoder's files.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// The templates by their names. One that is not valid keeps its error until it is used.
    templates: Vec<(String, Result<ChatTemplate, Error>)>,
    /// The special tokens by the names of their variables, such as `bos_token`.
    special: Vec<(String, String)>,
}

impl Chat {
    /// Reads `tokenizer_config.json` and `chat_template.jinja`, whose template takes the place of the default one.
    pub fn read(folder: &Path, config: Option<&[u8]>, template: Option<&[u8]>) -> Result<Chat, Error> {
        let path = folder.join(TOKENIZER_CONFIG);
        let wrong = |why: String| Error::file_help(&path, why, "correct or remove the file");
        let config = match config {
            None => Json::Null,
            Some(bytes) => {
                serde_json::from_slice(bytes).map_err(|e| wrong(wgfc_compiler::json_in_words(&e)))?
            }
        };
        let special = special(&config);
        let mut templates = vec![];
        let mut put = |name: &str, path: &Path, text: &str| {
            let made = ChatTemplate::parse(text, special.clone()).map_err(|e| of_file(path, e));
            templates.retain(|(n, _)| n != name);
            templates.push((name.to_owned(), made));
        };
        match config.get("chat_template") {
            None | Some(Json::Null) => {}
            Some(Json::Text(text)) => put(DEFAULT, &path, text),
            Some(Json::List(list)) if list.len() > MOST => {
                let n = list.len();
                return Err(wrong(format!(
                    "`chat_template` lists {n} templates; at most {MOST} are allowed"
                )));
            }
            Some(Json::List(list)) => {
                for one in list {
                    let text = |key| one.get(key).and_then(Json::as_str);
                    match (text("name"), text("template")) {
                        (Some(name), Some(text)) => put(name, &path, text),
                        _ => {
                            return Err(wrong(
                                "`chat_template` has an entry without `name` or `template`".into(),
                            ));
                        }
                    }
                }
            }
            Some(other) => {
                let kind = other.kind();
                return Err(wrong(format!("`chat_template` is {kind}, not a string or a list of templates")));
            }
        }
        if let Some(bytes) = template {
            let path = folder.join(ADDED_TEMPLATE);
            let text = std::str::from_utf8(bytes);
            let text = text.map_err(|_| {
                Error::file_help(&path, "is not text in UTF-8", "save it in UTF-8, or remove it")
            })?;
            put(DEFAULT, &path, text);
        }
        Ok(Chat { templates, special })
    }

    /// The template and the special tokens in the metadata of a GGUF file.
    #[cfg(feature = "tokenizers")]
    pub fn of_gguf(header: &Header<'_>, path: &Path) -> Chat {
        let special = special_tokens(header);
        let text = header.text("tokenizer.chat_template");
        let made = text.map(|t| ChatTemplate::parse(t, special.clone()).map_err(|e| of_file(path, e)));
        Chat { templates: made.into_iter().map(|t| (DEFAULT.to_owned(), t)).collect(), special }
    }

    /// The template for a conversation: `tool_use` if there is one and tools are given, otherwise `default`.
    pub fn template(&self, options: &ChatOptions, path: &Path) -> Result<&ChatTemplate, Error> {
        let named = |name: &str| self.templates.iter().find(|(n, _)| n == name);
        let found = options.tools.as_ref().and_then(|_| named(TOOLS)).or_else(|| named(DEFAULT));
        match found {
            Some((_, template)) => template.as_ref().map_err(Clone::clone),
            None if self.templates.is_empty() => Err(Error::file_help(
                path,
                "has no chat template: the model may not be made for conversations",
                "continue a text instead (`wgfc generate --prompt`), or put the model's tokenizer_config.json with \
                 `chat_template`, or chat_template.jinja, beside it",
            )),
            None => {
                let names: Vec<&str> = self.templates.iter().map(|(n, _)| n.as_str()).collect();
                Err(Error::file_help(
                    path,
                    format!("has no chat template `{DEFAULT}`, only {}", names.join(", ")),
                    format!("call one of them `{DEFAULT}` in tokenizer_config.json"),
                ))
            }
        }
    }

    /// Replaces the templates by this one.
    pub fn set(&mut self, template: ChatTemplate) {
        self.templates = vec![(DEFAULT.to_owned(), Ok(template))];
    }

    /// Whether there is a template for conversations without tools.
    pub fn is_there(&self) -> bool {
        self.templates.iter().any(|(n, _)| n == DEFAULT)
    }

    /// The text of a special token, such as `eos_token`.
    pub fn special(&self, name: &str) -> Option<&str> {
        self.special.iter().find(|(n, _)| n == name).map(|(_, text)| text.as_str())
    }
}

/// The name of the template for conversations without tools.
const DEFAULT: &str = "default";
/// The name of the template for conversations with tools.
const TOOLS: &str = "tool_use";
/// The most templates of a file.
const MOST: usize = 16;

/// The special tokens of a `tokenizer_config.json`: strings, or objects with `content`.
fn special(config: &Json) -> Vec<(String, String)> {
    let Json::Object(pairs) = config else { return vec![] };
    let text = |v: &Json| v.as_str().or_else(|| v.get("content").and_then(Json::as_str)).map(str::to_owned);
    let names = pairs.iter().filter(|(k, _)| k.ends_with("_token"));
    names.filter_map(|(k, v)| Some((k.clone(), text(v)?))).collect()
}

/// The problems of a template as those of its file.
fn of_file(path: &Path, e: Error) -> Error {
    match e {
        Error::Usage(problems) => Error::File {
            path: path.to_owned(),
            help: problems.iter().find_map(|p| p.help.clone()),
            problems: problems.into_iter().map(|p| p.message).collect(),
        },
        e => e,
    }
}
