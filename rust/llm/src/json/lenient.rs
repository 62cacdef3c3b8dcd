//! Lenient deserialisation of the fields of provider responses. Servers write ids as numbers, or arguments as objects;
//! one field of an unexpected type must not make the whole response unreadable. Content that cannot be read is an
//! error.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use crate::json::string_literal::decode_string;

/// Reads a string that is not content, such as an id. A number or a boolean becomes its JSON text; any other value
/// counts as absent.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?;
    match raw.get().as_bytes().first() {
        Some(b'n' | b'{' | b'[') | None => Ok(None),
        Some(b'"') => string_literal(raw).map(Some).map_err(D::Error::custom),
        Some(_) => Ok(Some(Cow::Borrowed(raw.get()))),
    }
}

/// Reads a string as `text` does; an absent string is empty.
pub(crate) fn text_or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'de, str>, D::Error> {
    text(deserializer).map(Option::unwrap_or_default)
}

/// Reads the name of a tool. A number or a boolean becomes its JSON text. Fails on a list or an object, because the
/// client could not make the call.
pub(crate) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?;
    match raw.get().as_bytes().first() {
        Some(b'n') | None => Ok(None),
        Some(b'"') => string_literal(raw).map(Some).map_err(D::Error::custom),
        Some(b'{' | b'[') => Err(D::Error::custom("a name must be a string")),
        Some(_) => Ok(Some(Cow::Borrowed(raw.get()))),
    }
}

/// Reads a tool name as `name` does; an absent name is empty.
pub(crate) fn name_or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'de, str>, D::Error> {
    name(deserializer).map(Option::unwrap_or_default)
}

/// Reads text that belongs to the content of the response. Fails if the value holds no text, because the response would
/// lack it.
pub(crate) fn content<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?;
    content_text(raw).map_err(D::Error::custom)
}

/// Reads text as `content` does; absent text is empty.
pub(crate) fn content_or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'de, str>, D::Error> {
    content(deserializer).map(Option::unwrap_or_default)
}

/// Returns the text of a content field: a string, a number or a boolean, an object with a text, or a list of these.
pub(crate) fn content_text(raw: &RawValue) -> Result<Option<Cow<'_, str>>, &'static str> {
    match raw.get().as_bytes().first() {
        Some(b'n') | None => Ok(None),
        Some(b'"') => string_literal(raw).map(Some),
        Some(b'{' | b'[') => {
            let value: Value = serde_json::from_str(raw.get()).map_err(|_| UNREADABLE_TEXT)?;
            let mut text = String::new();
            append_text(&value, &mut text)?;
            Ok(Some(Cow::Owned(text)))
        }
        Some(_) => Ok(Some(Cow::Borrowed(raw.get()))),
    }
}

const UNREADABLE_TEXT: &str = "a text of the content must be a string";

/// Appends the text of a parsed content field.
fn append_text(value: &Value, text: &mut String) -> Result<(), &'static str> {
    match value {
        Value::Null => Ok(()),
        Value::String(part) => {
            text.push_str(part);
            Ok(())
        }
        Value::Number(_) | Value::Bool(_) => {
            text.push_str(&value.to_string());
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(|item| append_text(item, text)),
        Value::Object(fields) => {
            let inner = fields.get("text").or_else(|| fields.get("value")).ok_or(UNREADABLE_TEXT)?;
            append_text(inner, text)
        }
    }
}

/// Returns the text of a parsed content field; empty for null.
pub(crate) fn value_text(value: &Value) -> Result<Cow<'_, str>, &'static str> {
    if let Value::String(text) = value {
        return Ok(Cow::Borrowed(text));
    }
    let mut text = String::new();
    append_text(value, &mut text)?;
    Ok(Cow::Owned(text))
}

fn string_literal(raw: &RawValue) -> Result<Cow<'_, str>, &'static str> {
    decode_string(raw.get().as_bytes()).ok_or("a string has an invalid escape")
}

/// Reads an index. A string of digits counts as the number; any other value counts as absent.
pub(crate) fn index<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = text(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

/// Reads an index as `index` does; an absent index is 0.
pub(crate) fn index_or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    index(deserializer).map(Option::unwrap_or_default)
}

/// Reads a boolean; any other value counts as false.
pub(crate) fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let text = text(deserializer)?;
    Ok(text.is_some_and(|text| text == "true"))
}

/// Reads a list. A single object counts as a list of one, and null as an empty list.
pub(crate) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_any(ListVisitor(PhantomData))
}

/// Returns nested JSON: the content of a string that contains JSON, or any other value unchanged.
pub(crate) fn embedded_json(raw: &RawValue) -> Option<Cow<'_, str>> {
    match raw.get().as_bytes().first() {
        Some(b'"') => decode_string(raw.get().as_bytes()),
        Some(b'n') | None => None,
        Some(_) => Some(Cow::Borrowed(raw.get())),
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
        T::deserialize(serde::de::value::MapAccessDeserializer::new(fields)).map(|element| vec![element])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Fields<'a> {
        #[serde(default, borrow, deserialize_with = "text")]
        id: Option<Cow<'a, str>>,
        #[serde(default, borrow, deserialize_with = "content")]
        content: Option<Cow<'a, str>>,
    }

    fn read(json: &str) -> Option<(Option<String>, Option<String>)> {
        let fields: Fields<'_> = serde_json::from_str(json).ok()?;
        Some((fields.id.map(Cow::into_owned), fields.content.map(Cow::into_owned)))
    }

    #[test]
    fn content_of_another_type_is_text_or_an_error() {
        let content = |json: &str| read(&format!("{{\"content\":{json}}}")).map(|(_, content)| content);
        let some = |text: &str| Some(Some(text.to_owned()));
        for (json, text) in [
            ("\"a\\n\"", some("a\n")),
            ("12345678901234567890123.50", some("12345678901234567890123.50")),
            ("true", some("true")),
            ("null", Some(None)),
            (r#"["a",{"type":"text","text":"b"},1]"#, some("ab1")),
            (r#"{"text":{"value":"a"}}"#, some("a")),
            (r#"{"type":"image"}"#, None),
            (r#"[{"text":[{}]}]"#, None),
        ] {
            assert_eq!(content(json), text, "{json}");
        }
    }

    #[test]
    fn other_fields_of_another_type_count_as_absent() {
        let id = |json: &str| read(&format!("{{\"id\":{json}}}")).unwrap().0;
        assert_eq!(id("12345678901234567890123").as_deref(), Some("12345678901234567890123"));
        assert_eq!(id("\"a\"").as_deref(), Some("a"));
        assert_eq!((id("{\"a\":1}"), id("[1]"), id("null")), (None, None, None));
    }
}
