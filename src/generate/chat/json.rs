//! JSON values that keep the order of keys, which templates print.

use crate::Error;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A JSON value. The keys of objects keep their order, because a chat template writes them in this order.
///
/// ```
/// use wgfc::generate::Json;
/// # fn main() -> Result<(), wgfc::Error> {
/// let json: Json = r#"{"zeta": 1, "alpha": [true, null]}"#.parse()?;
/// assert_eq!(json.to_string(), r#"{"zeta":1,"alpha":[true,null]}"#);
/// assert_eq!(json.get("zeta"), Some(&Json::from(1)));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(serde_json::Number),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// An object, as its keys and values in order. Of equal keys the last one counts.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The value of a key; `None` if this is no object or lacks the key.
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(pairs) => pairs.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }
    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }
    /// The kind of value, for messages.
    pub(in crate::generate) fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "a number",
            Json::Text(_) => "a string",
            Json::List(_) => "a list",
            Json::Object(_) => "an object",
        }
    }
}

impl FromStr for Json {
    type Err = Error;

    fn from_str(text: &str) -> Result<Json, Error> {
        serde_json::from_str(text)
            .map_err(|e| Error::usage(format!("the text is not JSON: {e}"), "correct the text"))
    }
}

impl fmt::Display for Json {
    /// Compact JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json::Text(text.to_owned())
    }
}
impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::Text(text)
    }
}
impl From<bool> for Json {
    fn from(b: bool) -> Json {
        Json::Bool(b)
    }
}
impl From<i64> for Json {
    fn from(n: i64) -> Json {
        Json::Number(n.into())
    }
}
impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Json {
        use serde_json::Value;
        match value {
            Value::Null => Json::Null,
            Value::Bool(b) => Json::Bool(b),
            Value::Number(n) => Json::Number(n),
            Value::String(s) => Json::Text(s),
            Value::Array(list) => Json::List(list.into_iter().map(Json::from).collect()),
            Value::Object(map) => Json::Object(map.into_iter().map(|(k, v)| (k, Json::from(v))).collect()),
        }
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Null => s.serialize_unit(),
            Json::Bool(b) => s.serialize_bool(*b),
            Json::Number(n) => n.serialize(s),
            Json::Text(text) => s.serialize_str(text),
            Json::List(list) => s.collect_seq(list),
            Json::Object(pairs) => s.collect_map(pairs.iter().map(|(k, v)| (k, v))),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Json, D::Error> {
        d.deserialize_any(Values)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }
    fn visit_none<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Json, D::Error> {
        Json::deserialize(d)
    }
    fn visit_bool<E>(self, b: bool) -> Result<Json, E> {
        Ok(Json::Bool(b))
    }
    fn visit_i64<E>(self, n: i64) -> Result<Json, E> {
        Ok(Json::Number(n.into()))
    }
    fn visit_u64<E>(self, n: u64) -> Result<Json, E> {
        Ok(Json::Number(n.into()))
    }
    fn visit_f64<E>(self, n: f64) -> Result<Json, E> {
        Ok(serde_json::Number::from_f64(n).map_or(Json::Null, Json::Number))
    }
    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }
    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Json, A::Error> {
        let mut list = vec![];
        while let Some(one) = all.next_element()? {
            list.push(one);
        }
        Ok(Json::List(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Json, A::Error> {
        let mut pairs = vec![];
        while let Some(pair) = all.next_entry()? {
            pairs.push(pair);
        }
        Ok(Json::Object(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_values_are_kept() {
        let text = r#"{"b":[1,-2,2.5,1e-07,true,null],"a":{"é":"x\n"},"b2":{}}"#;
        let json: Json = text.parse().unwrap();
        assert_eq!(json.to_string(), text.replace("1e-07", "1e-7"));
        assert_eq!(json.get("a").and_then(|a| a.get("é")).and_then(Json::as_str), Some("x\n"));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(text).map(Json::from).unwrap().get("b"),
            json.get("b")
        );
        assert!(Json::from_str(&"[".repeat(100_000)).is_err());
    }
}
