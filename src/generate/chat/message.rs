//! Messages of a conversation, in the form of OpenAI's chat completions.

use super::Json;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// A message of a conversation. As JSON it has the form of OpenAI's chat completions.
///
/// ```
/// use wgfc::generate::{Content, Message};
/// let json = r#"{"role": "user", "content": [{"type": "text", "text": "Hello!"}], "name": "Ada"}"#;
/// let message: Message = serde_json::from_str(json).unwrap();
/// assert_eq!((message.role.as_str(), message.text().as_deref()), ("user", Some("Hello!")));
/// assert_eq!(message.other[0].0, "name");
/// assert_eq!(Message::user("Hello!").content, Some(Content::Text("Hello!".to_owned())));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or another role that the template knows.
    pub role: String,
    /// The text or the parts of the message; `None` where there are only calls.
    pub content: Option<Content>,
    /// The calls of tools, each `{"id": …, "type": "function", "function": {"name": …, "arguments": …}}`. Arguments are an
    /// object, or its JSON as a text.
    pub tool_calls: Vec<Json>,
    /// Further fields in their order, such as `name`, `tool_call_id` and `reasoning_content`.
    pub other: Vec<(String, Json)>,
}

/// The content of a message.
/// See the example of [`Message`].
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A text.
    Text(String),
    /// Parts, each an object with a `type`, such as `{"type": "text", "text": "Hello!"}`.
    Parts(Vec<Json>),
}

impl Message {
    /// A message with a text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Message {
        Message { role: role.into(), content: Some(Content::Text(text.into())), ..Message::default() }
    }
    /// Instructions to the model.
    pub fn system(text: impl Into<String>) -> Message {
        Message::new("system", text)
    }
    /// A message of the user.
    pub fn user(text: impl Into<String>) -> Message {
        Message::new("user", text)
    }
    /// A message of the user with this many pictures before the text: parts `{"type": "image"}`.
    ///
    /// ```
    /// use wgfc::generate::Message;
    /// let message = Message::user_with_images(1, "What is this?");
    /// let json = r#"{"role":"user","content":[{"type":"image"},{"type":"text","text":"What is this?"}]}"#;
    /// assert_eq!(serde_json::to_string(&message).unwrap(), json);
    /// assert!(message.has_images());
    /// ```
    pub fn user_with_images(images: usize, text: impl Into<String>) -> Message {
        let mut parts = vec![Message::image_part(); images];
        let text = [("type", "text".to_owned()), ("text", text.into())];
        parts.push(Json::Object(text.map(|(key, text)| (key.to_owned(), Json::Text(text))).to_vec()));
        Message { content: Some(Content::Parts(parts)), ..Message::new("user", "") }
    }
    /// The part of a content that stands for a picture.
    pub(crate) fn image_part() -> Json {
        Json::Object(vec![("type".to_owned(), Json::Text("image".to_owned()))])
    }
    /// Whether a part of the content is a picture.
    pub fn has_images(&self) -> bool {
        let is_image = |p: &Json| p.get("type").and_then(Json::as_str) == Some("image");
        matches!(&self.content, Some(Content::Parts(parts)) if parts.iter().any(is_image))
    }
    /// An answer of the model.
    pub fn assistant(text: impl Into<String>) -> Message {
        Message::new("assistant", text)
    }
    /// The result of the call with this id.
    pub fn tool(call: impl Into<String>, text: impl Into<String>) -> Message {
        let other = vec![("tool_call_id".to_owned(), Json::Text(call.into()))];
        Message { other, ..Message::new("tool", text) }
    }

    /// The text of the content, of which parts are lines. `None` if there is no content, or a part that is no text.
    pub fn text(&self) -> Option<String> {
        match self.content.as_ref()? {
            Content::Text(text) => Some(text.clone()),
            Content::Parts(parts) => {
                let texts: Option<Vec<&str>> = parts.iter().map(text_of).collect();
                Some(texts?.join("\n"))
            }
        }
    }
}

/// The text of a part; `None` if it is of another type.
pub fn text_of(part: &Json) -> Option<&str> {
    match part.get("type").and_then(Json::as_str) {
        Some("text") => part.get("text").and_then(Json::as_str),
        _ => None,
    }
}

impl TryFrom<Json> for Message {
    type Error = String;

    fn try_from(json: Json) -> Result<Message, String> {
        let Json::Object(pairs) = json else {
            return Err(format!("a message is {}, not an object", json.kind()));
        };
        let mut message = Message::default();
        let mut role = None;
        for (key, value) in pairs {
            match (key.as_str(), value) {
                ("role", Json::Text(text)) => role = Some(text),
                ("content", Json::Text(text)) => message.content = Some(Content::Text(text)),
                ("content", Json::List(parts)) => {
                    if let Some(bad) = parts.iter().find(|p| !matches!(p, Json::Object(_))) {
                        return Err(format!(
                            "a part of a message's content is {}, not an object",
                            bad.kind()
                        ));
                    }
                    message.content = Some(Content::Parts(parts));
                }
                ("content", Json::Null) => message.content = None,
                ("tool_calls", Json::List(calls)) => message.tool_calls = calls,
                ("tool_calls", Json::Null) => message.tool_calls = vec![],
                (key @ ("role" | "content" | "tool_calls"), value) => {
                    let want = match key {
                        "role" => "a string",
                        "content" => "a string or a list of parts",
                        _ => "a list",
                    };
                    return Err(format!("`{key}` of a message is {}, not {want}", value.kind()));
                }
                (_, value) => message.other.push((key, value)),
            }
        }
        message.role = role.ok_or("a message has no `role`")?;
        Ok(message)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Message, D::Error> {
        Message::try_from(Json::deserialize(d)?).map_err(D::Error::custom)
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        map.serialize_entry("role", &self.role)?;
        match &self.content {
            None => map.serialize_entry("content", &())?,
            Some(Content::Text(text)) => map.serialize_entry("content", text)?,
            Some(Content::Parts(parts)) => map.serialize_entry("content", parts)?,
        }
        if !self.tool_calls.is_empty() {
            map.serialize_entry("tool_calls", &self.tool_calls)?;
        }
        for (key, value) in &self.other {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_json() {
        for json in [
            r#"{"role":"user","content":"x"}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}"#,
            r#"{"role":"tool","content":"x","tool_call_id":"1","z":{"b":1,"a":2}}"#,
            r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"x"}]}"#,
        ] {
            let message: Message = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&message).unwrap(), json);
        }
        for (json, says) in [
            ("[]", "a message is a list, not an object"),
            ("{}", "no `role`"),
            (r#"{"role":1}"#, "`role` of a message is a number, not a string"),
            (r#"{"role":"user","content":{}}"#, "`content` of a message is an object"),
            (r#"{"role":"user","content":["x"]}"#, "a part of a message's content is a string"),
            (r#"{"role":"user","tool_calls":1}"#, "`tool_calls` of a message is a number, not a list"),
        ] {
            let e = serde_json::from_str::<Message>(json).unwrap_err().to_string();
            assert!(e.contains(says), "{e}");
        }
    }
}
