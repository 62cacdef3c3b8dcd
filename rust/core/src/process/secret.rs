//! The only definition of "secret": by field name, by the form of a value, and inside JSON. Records, the explanation of
//! a request, credential hosts and the management API use it. Also the type `Secret`, a string that debug output masks.

use serde::Deserialize;
use serde_json::Value;

/// Text that replaces a secret wherever it would be shown.
pub const MASK: &str = "***";

#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the secret in clear. Only for writing it into a request.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("••••")
    }
}

/// Returns true if fields with this lower-case name may hold credentials. Prefers false positives.
pub fn is_secret_name(name: impl AsRef<[u8]>) -> bool {
    let name = name.as_ref();
    // Dispatches on the first letter, because this runs for many headers.
    name == WEBSOCKET_PROTOCOL_HEADER
        || name.iter().enumerate().any(|(at, first)| {
            let parts: &[&[u8]] = match first {
                b'a' => &[b"auth"],
                b'c' => &[b"cookie", b"credential"],
                b'k' => &[b"key"],
                b'p' => &[b"passw", b"passphrase"],
                b's' => &[b"secret", b"service-account", b"signature"],
                b't' => &[b"token"],
                _ => return false,
            };
            parts.iter().any(|part| name[at..].starts_with(part))
        })
}

/// Header whose subprotocols may include API keys.
const WEBSOCKET_PROTOCOL_HEADER: &[u8] = b"sec-websocket-protocol";

/// Names that look like those of credentials but are not, in lower case with hyphens.
const NON_SECRET_NAMES: [&str; 19] = [
    "amz-server-side-encryption-aws-kms-key-id",
    "author",
    "authors",
    "aws-auth-type",
    "aws-s3-object-key",
    "azure-auth-mode",
    "azure-authority-host",
    "bos-token",
    "eos-token",
    "is-key-required",
    "keyword",
    "keywords",
    "pad-token",
    "prompt-cache-key",
    "stop-token",
    "stop-tokens",
    "tokenizer",
    "vertex-auth-type",
    "virtual-key",
];

/// Returns true if a JSON field of this name holds a secret, in any letter case and with any separator.
pub fn is_secret_field(name: &str) -> bool {
    let plain = name.replace('_', "-").to_ascii_lowercase();
    // Limits such as `max-completion-tokens` are numbers.
    let is_token_limit = plain == "max-tokens" || plain.starts_with("max-") && plain.ends_with("-tokens");
    is_secret_name(&plain) && !is_token_limit && !NON_SECRET_NAMES.contains(&&*plain)
}

/// Beginnings of well-known kinds of credentials.
const TOKEN_PREFIXES: [&str; 22] = [
    "sk-",
    "pk-",
    "rk-",
    "sk_",
    "pk_",
    "rk_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "akia",
    "asia",
    "aiza",
    "ya29.",
    "hf_",
    "gsk_",
    "eyj",
];
/// Minimum length of an unbroken run of letters and digits that counts as a token.
const MIN_TOKEN_CHARS: usize = 20;
/// Minimum length of a word with a known prefix that counts as a token.
const MIN_PREFIXED_TOKEN_CHARS: usize = 12;

/// Returns true if a text contains something that looks like a token: a known prefix, a long run of letters mixed with
/// digits, or a bearer token.
pub fn looks_like_token(text: &str) -> bool {
    let is_bearer = text.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("bearer "));
    is_bearer || split_token_candidates(text.as_bytes()).any(|word| has_token_prefix(word) || has_token_run(word))
}

/// Splits a text at characters that tokens do not contain. Short words are skipped.
fn split_token_candidates(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_separator = |byte: &u8| !byte.is_ascii_graphic() || b"\"'`,;:()[]{}<>&?=".contains(byte);
    text.split(is_separator).filter(|word| word.len() >= MIN_PREFIXED_TOKEN_CHARS)
}

/// Returns true if a word has a known prefix of tokens, at its start or after a hyphen.
fn has_token_prefix(word: &[u8]) -> bool {
    let is_prefix_of = |start: &[u8], prefix: &str| {
        start.get(..prefix.len()).is_some_and(|start_bytes| start_bytes.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    let hyphens = word.iter().enumerate().filter(|(_, byte)| **byte == b'-').map(|(at, _)| at + 1);
    [0].into_iter().chain(hyphens).map(|at| &word[at..]).any(|start| {
        start.len() >= MIN_PREFIXED_TOKEN_CHARS && TOKEN_PREFIXES.iter().any(|prefix| is_prefix_of(start, prefix))
    })
}

/// Returns true if a word contains a long run of letters mixed with digits.
fn has_token_run(word: &[u8]) -> bool {
    word.split(|byte| !byte.is_ascii_alphanumeric()).any(|run| {
        run.len() >= MIN_TOKEN_CHARS && run.iter().any(u8::is_ascii_digit) && run.iter().any(u8::is_ascii_alphabetic)
    })
}

/// Returns the user information of a URL, and the values of its query parameters that grant access. They are
/// percent-encoded.
fn url_secrets(text: &str) -> Vec<&str> {
    let Some((_, rest)) = text.split_once("://") else { return Vec::new() };
    let (location, query) = rest.split_once(['?', '#']).unwrap_or((rest, ""));
    let authority = location.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map(|(user, _)| user.split_once(':').map_or(user, |(_, password)| password));
    let secret_value = |pair: &'_ str| {
        let name = pair.split('=').next().unwrap_or_default();
        let name = percent_encoding::percent_decode_str(name).decode_utf8_lossy();
        matches!(&*name, "sig" | "code" | "pwd" | MASK) || is_secret_field(&name)
    };
    let params = query.split(['?', '&', '#', ';']).filter(|pair| secret_value(pair));
    user.into_iter().chain(params.map(|pair| pair.split_once('=').map_or("", |(_, value)| value))).collect()
}

/// Maximum number of nested JSON strings (JSON in a string of JSON) that are searched.
const MAX_EMBEDDED_JSON_DEPTH: usize = 3;

/// Decides by the form of a string whether it is a secret.
type SecretPredicate = fn(&str) -> bool;

/// Masks all secret strings of a JSON value. These are fields with a secret name, and all values of an object named
/// `…headers`. They are also the `value` of an object whose `name` or `key` is a secret name, URLs with credentials,
/// and tokens.
pub fn mask_json(value: &mut Value) {
    visit_value(value, false, looks_like_token, MAX_EMBEDDED_JSON_DEPTH, &mut |text, _| MASK.clone_into(text));
}

/// Masks the strings of a field that its name or a name within it marks as secret, and the secret parts of URLs. Texts
/// that only look like tokens stay. Returns true if something was masked.
pub fn mask_named_secrets(name: &str, value: &mut Value) -> bool {
    let mut is_masked = false;
    let is_secret = marks_secret(name, value);
    visit_value(value, is_secret, |_| false, MAX_EMBEDDED_JSON_DEPTH, &mut |text, is_secret| {
        let masked = if is_secret { MASK.to_owned() } else { mask_url_parts(text) };
        is_masked |= masked != *text;
        *text = masked;
    });
    is_masked
}

/// Masks the secret parts of a URL, and the secrets in a JSON document. Any other text, and a URL with a part that is too
/// short to be found safely, is masked as a whole.
fn mask_url_parts(text: &str) -> String {
    if let Some(mut document) = parse_document(text) {
        return if mask_named_secrets("", &mut document) { document.to_string() } else { text.to_owned() };
    }
    let parts = url_secrets(text);
    let is_short = |part: &&str| part.len() < MIN_SECRET_BYTES && *part != MASK;
    if parts.is_empty() || parts.iter().any(is_short) {
        return MASK.to_owned();
    }
    // Parts may be masked already.
    parts.into_iter().filter(|part| *part != MASK).fold(text.to_owned(), |masked, part| masked.replace(part, MASK))
}

/// Returns true if the name of a field marks all strings in its value as secret.
fn marks_secret(name: &str, value: &Value) -> bool {
    // A list below `headers` holds names of headers, or rows with a value each.
    is_secret_field(name) || value.is_object() && name.to_ascii_lowercase().ends_with("headers")
}

/// Minimum bytes of a secret that is searched for. Shorter values would occur by chance.
pub const MIN_SECRET_BYTES: usize = 8;

/// Returns the secrets of a JSON value: of a URL its password and signature, of a text the token in it. If only the
/// form of a value suggests a secret, only well-known kinds of credentials count, because others may be identifiers.
pub fn find_secrets(value: &Value) -> Vec<String> {
    find_secrets_within(value, MAX_EMBEDDED_JSON_DEPTH)
}

fn find_secrets_within(value: &Value, remaining_depth: usize) -> Vec<String> {
    let mut secrets = Vec::new();
    let is_secret_text: SecretPredicate = |text| split_token_candidates(text.as_bytes()).any(has_token_prefix);
    visit_value(&mut value.clone(), false, is_secret_text, remaining_depth, &mut |text, is_secret| {
        let parts = if is_secret { Vec::new() } else { secret_parts(text, remaining_depth) };
        // Without a part that is long enough to be searched for, the complete text is the secret.
        let is_complete = parts.is_empty() || parts.iter().any(|part| part.len() < MIN_SECRET_BYTES);
        secrets.extend(parts);
        secrets.extend(is_complete.then(|| text.clone()));
    });
    secrets
}

/// Returns the secrets within a text that is not a secret as a whole.
fn secret_parts(text: &str, remaining_depth: usize) -> Vec<String> {
    if let (Some(document), true) = (parse_document(text), remaining_depth > 0) {
        return find_secrets_within(&document, remaining_depth - 1);
    }
    let mut parts: Vec<String> = url_secrets(text).into_iter().map(ToOwned::to_owned).collect();
    for part in parts.clone() {
        let decoded = percent_encoding::percent_decode_str(&part).decode_utf8_lossy().into_owned();
        parts.extend((decoded != part).then_some(decoded));
    }
    let tokens = split_token_candidates(text.as_bytes()).filter(|word| has_token_prefix(word));
    parts.extend(tokens.map(|word| String::from_utf8_lossy(word).into_owned()));
    parts
}

/// Calls `visit` with each text that is or contains a secret. Its second argument is true if the name of the field
/// marks the text as secret.
fn visit_value(
    value: &mut Value,
    is_secret: bool,
    is_secret_text: SecretPredicate,
    remaining_depth: usize,
    visit: &mut dyn FnMut(&mut String, bool),
) {
    match value {
        Value::String(text) if text.is_empty() => (),
        Value::String(text) => {
            if is_secret
                || !url_secrets(text).is_empty()
                || is_secret_text(text)
                || holds_secret_document(text, is_secret_text, remaining_depth)
            {
                visit(text, is_secret);
            }
        }
        // A shorter number is probably a limit, not a secret.
        Value::Number(number) if is_secret && number.to_string().len() >= MIN_SECRET_BYTES => {
            let mut text = number.to_string();
            visit(&mut text, is_secret);
            *value = Value::String(text);
        }
        Value::Array(items) => {
            for item in items {
                visit_value(item, is_secret, is_secret_text, remaining_depth, visit);
            }
        }
        Value::Object(fields) => {
            let names_secret = |name: &str| fields.get(name).and_then(Value::as_str).is_some_and(is_secret_field);
            let is_secret_row = names_secret("name") || names_secret("key");
            for (name, item) in fields.iter_mut() {
                let is_row_value = is_secret_row && name.eq_ignore_ascii_case("value");
                let is_secret = is_secret || marks_secret(name, item) || is_row_value;
                visit_value(item, is_secret, is_secret_text, remaining_depth, visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => (),
    }
}

/// Returns true if a string is a JSON document that contains a secret.
fn holds_secret_document(text: &str, is_secret_text: SecretPredicate, remaining_depth: usize) -> bool {
    let (Some(mut document), true) = (parse_document(text), remaining_depth > 0) else { return false };
    let mut is_found = false;
    visit_value(&mut document, false, is_secret_text, remaining_depth - 1, &mut |_, _| is_found = true);
    is_found
}

/// Parses a text that is a JSON object or array; `None` for any other text.
fn parse_document(text: &str) -> Option<Value> {
    text.trim_start().starts_with(['{', '[']).then(|| serde_json::from_str(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_secrets_in_documents() {
        let mut document = json!({
            "model": "gpt-5-mini", "max_completion_tokens": "9", "stop_token": "x", "prompt_cache_key": "k",
            "tools": [{"type": "mcp", "server_url": "https://crm.example/mcp?sig=S1", "authorization": "S2",
                "headers": {"X-Team": "S3"}, "allowed_headers": ["x-team"]}],
            "rows": [{"name": "X-Api-Key", "value": "S4"}, {"name": "x", "value": "y"}],
            "url": "https://user:S5@host/", "plain": "https://host/a?page=2", "api_key": ["S6"],
            "inner": "{\"password\":\"S7\"}", "text": "use sk-proj-0123456789abcdef please",
            "id": "0b9c1e6e-8f3a-4f6d-9a55-0f7f3a1f2b3c",
        });
        assert_eq!(find_secrets(&document).len(), 11, "{:?}", find_secrets(&document));
        mask_json(&mut document);
        let text = document.to_string();
        for harmless in ["gpt-5-mini", "x-team", "page=2", "0b9c1e6e", "\"y\"", "\"9\""] {
            assert!(text.contains(harmless), "{harmless} in {text}");
        }
        assert!((1..8).all(|number| !text.contains(&format!("S{number}"))) && !text.contains("sk-proj"), "{text}");
    }

    #[test]
    fn finds_the_secret_part_of_a_text() {
        for (document, secrets) in [
            (json!("https://crm.example/mcp?page=2&sig=0123%2B4567"), vec!["0123%2B4567", "0123+4567"]),
            (json!("https://ann:password-1@host/a"), vec!["password-1"]),
            (json!("{\"a\":{\"api_key\":\"stored-key-1\"}}"), vec!["stored-key-1"]),
            (json!("use sk-proj-0123456789abcdef please"), vec!["sk-proj-0123456789abcdef"]),
            (json!({"headers": {"x-pin": 1_234_567_890_u64}}), vec!["1234567890"]),
            (json!({"budget_tokens": 32_000}), vec![]),
            (json!("https://host/?sig=short"), vec!["short", "https://host/?sig=short"]),
        ] {
            assert_eq!(find_secrets(&document), secrets, "{document}");
        }
        let mut document = json!({"pin_token": 1_234_567_890_u64, "budget_tokens": 32_000});
        mask_json(&mut document);
        assert_eq!(document, json!({"pin_token": MASK, "budget_tokens": 32_000}));
    }

    #[test]
    fn recognises_tokens_by_their_look() {
        for token in [
            "CANARY00-eyJhbGciOiJSUzI1NiJ9.e30.c2ln",
            "Bearer abc",
            "sk-0123456789",
            "8f14e45fceea167a5a36dedd4bea2543ff00",
            "a=AKIA2345ABCD6789EFGH",
        ] {
            assert!(looks_like_token(token), "{token}");
        }
        for plain in [
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0",
            "application/json; charset=utf-8",
            "OpenAI/Python 1.99.1",
            "0b9c1e6e-8f3a-4f6d-9a55-0f7f3a1f2b3c",
            "claude-sonnet-4-20250514",
            "interleaved-thinking-2025-05-14,prompt-caching-2024-07-31",
        ] {
            assert!(!looks_like_token(plain), "{plain}");
        }
    }

    #[test]
    fn debug_output_is_masked() {
        assert_eq!(format!("{:?}", Secret::new("sk-1")), "••••");
    }
}
