//! Metadata of requests: short strings by name, collected from headers, baggage and body for later analysis of records.

use std::borrow::Cow;

use penstock_net::headers::Headers;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{
    error::{Error, Result},
    process::secret::is_secret_name,
};

/// Maximum length of a value, in characters.
const MAX_VALUE_CHARS: usize = 128;
/// Maximum length of a value that is stored with a key or workspace, in characters.
const MAX_STORED_VALUE_CHARS: usize = 512;
/// Maximum length of a key, in bytes.
const MAX_KEY_BYTES: usize = 256;
/// Maximum number of pairs of a request.
const MAX_PAIRS: usize = 64;
/// Key for the end user of a request.
pub const USER_KEY: &str = "_user";
/// Key for the session that groups several requests.
pub const SESSION_KEY: &str = "session_id";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    pairs: Vec<(String, String)>,
    /// Why the client's metadata is invalid. `None` if it is valid.
    problem: Option<String>,
}

impl Metadata {
    /// Parses `x-gateway-metadata`: a JSON object whose values are strings. Errors are reported by `validate`.
    pub fn parse(json: &str) -> Self {
        let Ok(map) = serde_json::from_str::<Map<String, Value>>(json) else {
            return Self { pairs: Vec::new(), problem: Some("must be a JSON object".into()) };
        };
        let mut metadata = Self::default();
        for (key, value) in map {
            match value {
                Value::String(_) if !metadata.has_space(&key) => {
                    let message = format!("may hold at most {MAX_PAIRS} keys of at most {MAX_KEY_BYTES} bytes");
                    metadata.problem.get_or_insert(message);
                }
                Value::String(text) if is_short(&text) => metadata.pairs.push((key, text)),
                _ => {
                    let key: String = key.chars().take(MAX_VALUE_CHARS).collect();
                    metadata.problem.get_or_insert_with(|| {
                        format!("`{key}` must be a string of at most {MAX_VALUE_CHARS} characters")
                    });
                }
            }
        }
        metadata
    }

    /// Adds a pair. Ignores it if the key is empty or already set, or if the value is too long. Values that the client
    /// set explicitly therefore take precedence.
    pub fn add_if_absent(&mut self, key: &str, value: &str) {
        if is_short(value)
            && !key.is_empty()
            && self.has_space(key)
            && !self.pairs.iter().any(|(existing, _)| existing == key)
        {
            self.pairs.push((key.to_owned(), value.to_owned()));
        }
    }

    /// Sets pairs that override those of the client, for example metadata of an API key or workspace.
    pub fn override_with(&mut self, pairs: &[(String, String)]) {
        // The management API limits pairs when it saves them. Pairs that were saved before this limit existed are cut
        // here.
        for (key, value) in pairs.iter().filter(|(key, _)| key.len() <= MAX_KEY_BYTES).take(MAX_PAIRS) {
            self.pairs.retain(|(existing, _)| existing != key);
            // Stored pairs displace those of the client, which are at the start of the list.
            if self.pairs.len() == MAX_PAIRS {
                self.pairs.remove(0);
            }
            self.pairs.push((key.clone(), value.chars().take(MAX_STORED_VALUE_CHARS).collect()));
        }
    }

    fn has_space(&self, key: &str) -> bool {
        self.pairs.len() < MAX_PAIRS && key.len() <= MAX_KEY_BYTES
    }

    /// Uses the `user` field of the body as the end user, unless one is already set.
    pub fn add_user(&mut self, user: &str) {
        self.add_if_absent(USER_KEY, user);
    }

    /// Adds W3C baggage: `key=value;property,…`, percent-encoded. Skips keys that may hold secrets.
    pub fn add_baggage(&mut self, headers: &Headers) {
        let fields = headers.iter().filter(|(name, _)| *name == b"baggage");
        let members =
            fields.filter_map(|(_, value)| std::str::from_utf8(value).ok()).flat_map(|value| value.split(','));
        for member in members {
            let (pair, _) = member.split_once(';').unwrap_or((member, ""));
            if let Some((key, value)) = pair.split_once('=')
                && !is_secret_name(key.to_ascii_lowercase())
            {
                self.add_if_absent(key.trim(), &percent_decode(value.trim()));
            }
        }
    }

    /// Adds the values of headers that the operator listed by their lower-case names.
    pub fn add_headers<'n>(&mut self, headers: &Headers, listed: impl Iterator<Item = &'n String>) {
        for name in listed {
            if let Some(value) = headers.get_str(name) {
                self.add_if_absent(name, value);
            }
        }
    }

    /// Returns all metadata as key-value pairs.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }

    /// Returns an error if the client's metadata was invalid.
    pub fn validate(&self) -> Result<()> {
        match &self.problem {
            None => Ok(()),
            Some(message) => Err(Error::HeaderInvalid { name: "x-gateway-metadata", message: message.clone() }),
        }
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(existing, _)| existing == key).map(|(_, value)| value.as_str())
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

fn is_short(text: &str) -> bool {
    text.len() <= MAX_VALUE_CHARS || text.chars().count() <= MAX_VALUE_CHARS
}

/// Percent-decodes a text. A plus sign is not decoded to a space.
fn percent_decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let escaped = text.replace('+', "%2B");
    url::form_urlencoded::parse(escaped.as_bytes())
        .next()
        .map_or(Cow::Borrowed(""), |(decoded, _)| Cow::Owned(decoded.into_owned()))
}

/// Serialises as two parallel arrays, `key` and `value`.
impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.pairs.iter().map(|(key, value)| (key, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_headers(fields: &[(&str, &str)]) -> Headers {
        fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
    }

    fn to_json(metadata: &Metadata) -> String {
        serde_json::to_string(metadata).unwrap()
    }

    #[test]
    fn serializes_as_two_parallel_lists() {
        let metadata = Metadata::parse(r#"{"_user":"ann","team":"red"}"#);
        assert!(metadata.validate().is_ok());
        assert_eq!(to_json(&metadata), r#"{"_user":"ann","team":"red"}"#);
    }

    #[test]
    fn rejects_values_that_are_not_short_strings_by_key() {
        let longest = "é".repeat(128);
        assert!(Metadata::parse(&format!(r#"{{"a":"{longest}"}}"#)).validate().is_ok());
        for (json, expected) in [
            (format!(r#"{{"a":"1","b":"{longest}x"}}"#), "`b`"),
            (r#"{"a":1}"#.into(), "`a`"),
            (r#"{"a":null}"#.into(), "`a`"),
            (r#"{"a":{"b":"c"}}"#.into(), "`a`"),
            ("[]".into(), "object"),
            ("{".into(), "object"),
        ] {
            let error = Metadata::parse(&json).validate().unwrap_err();
            assert_eq!(
                (error.status(), error.message().contains(expected)),
                (400, true),
                "{json}: {}",
                error.message()
            );
        }
    }

    #[test]
    fn stored_pairs_are_bounded() {
        let mut metadata = Metadata::default();
        let pairs: Vec<_> = (0..100).map(|number| (format!("k{number}"), "é".repeat(190_000))).collect();
        metadata.override_with(&pairs);
        assert!(to_json(&metadata).len() < 80_000, "{}", to_json(&metadata).len());
        let many: serde_json::Map<_, _> = (0..65).map(|number| (format!("k{number}"), "v".into())).collect();
        let error = Metadata::parse(&Value::Object(many).to_string()).validate().unwrap_err();
        assert!(error.message().contains("64"), "{}", error.message());
    }

    #[test]
    fn stored_pairs_displace_those_of_the_client() {
        let many: Map<_, _> = (0..MAX_PAIRS).map(|number| (format!("k{number}"), "v".into())).collect();
        let mut metadata = Metadata::parse(&Value::Object(many).to_string());
        metadata.override_with(&[("team".into(), "red".into())]);
        metadata.override_with(&[("workspace".into(), "w".into()), ("k9".into(), "stored".into())]);
        let values = ["team", "workspace", "k9"].map(|key| metadata.get(key));
        assert_eq!((values, metadata.pairs.len()), ([Some("red"), Some("w"), Some("stored")], MAX_PAIRS));
    }

    #[test]
    fn merges_baggage_but_explicit_metadata_wins() {
        let mut metadata = Metadata::parse(r#"{"team":"red"}"#);
        metadata.add_baggage(&build_headers(&[
            ("baggage", "team=blue , userId=Am%C3%A9lie%20%2B;prop=1;x"),
            ("baggage", "isProduction=a+b,broken,=empty,api_key=sk-1"),
        ]));
        assert_eq!(to_json(&metadata), r#"{"team":"red","userId":"Amélie +","isProduction":"a+b"}"#);
    }

    #[test]
    fn uses_user_of_body_if_none_is_set() {
        let mut metadata = Metadata::default();
        metadata.add_user("bob");
        metadata.add_user("eve");
        assert_eq!(to_json(&metadata), r#"{"_user":"bob"}"#);
    }

    #[test]
    fn adds_listed_headers_that_fit() {
        let mut metadata = Metadata::default();
        let headers = build_headers(&[("X-Team", "red"), ("x-long", &"l".repeat(129))]);
        let listed = ["x-team", "x-long", "x-absent"].map(String::from);
        metadata.add_headers(&headers, listed.iter());
        assert_eq!(to_json(&metadata), r#"{"x-team":"red"}"#);
    }
}
