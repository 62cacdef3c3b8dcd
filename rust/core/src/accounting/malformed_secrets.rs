//! Masks secrets in recorded text that is not JSON, such as a malformed request or the parts of a form. It finds fields
//! by their names alone, so it may also mask what is not a secret.

use memchr::{memchr, memmem};
use serde_json::Value;

use crate::{
    accounting::cut_json::find_string_end,
    process::secret::{MASK, is_secret_field, mask_named_secrets},
};

/// Maximum length of the name of a secret. Bounds the work for text with many quotation marks.
const MAX_NAME_BYTES: usize = 64;

/// Returns the text with its secrets masked, or `None` if it contains no secrets.
pub(super) fn mask_malformed(text: &[u8]) -> Option<Vec<u8>> {
    let mut masked = Vec::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(next) = memchr(b'"', &text[at..]) {
        at += next + 1;
        // Any quotation mark may begin a name, because a missing one would turn names into values.
        let Some((name, start)) = read_name(&text[at..]).map(|(name, length)| (name, at + length)) else { continue };
        let Some((end, value)) = mask_value(name, text, start) else { continue };
        masked.extend_from_slice(&text[copied..start]);
        masked.extend_from_slice(&value);
        (copied, at) = (end, end);
    }
    if copied == 0 {
        return None;
    }
    masked.extend_from_slice(&text[copied..]);
    Some(masked)
}

/// Reads the rest of a name in quotation marks, and the colon after it. Returns the name, and the offset of the value.
fn read_name(text: &[u8]) -> Option<(&str, usize)> {
    let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.$".contains(byte);
    let length = text.iter().take(MAX_NAME_BYTES).take_while(|byte| is_name_byte(byte)).count();
    let rest = text[length..].strip_prefix(b"\"")?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    Some((std::str::from_utf8(&text[..length]).ok()?, text.len() - rest.len()))
}

/// Returns the end of the value that begins at `start`, and the value with its secrets masked. Returns `None` if it has
/// none.
fn mask_value(name: &str, text: &[u8], start: usize) -> Option<(usize, Vec<u8>)> {
    let is_secret = is_secret_field(name);
    match text.get(start)? {
        b'"' => {
            let end = find_string_end(text, start + 1).unwrap_or(text.len());
            let masked = if is_secret { format!("\"{MASK}\"") } else { mask_url(&text[start..end])? };
            Some((end, masked.into_bytes()))
        }
        b'{' if is_secret || name.to_ascii_lowercase().ends_with("headers") => {
            Some((find_container_end(text, start), b"{}".to_vec()))
        }
        b'[' if is_secret => Some((find_container_end(text, start), b"[]".to_vec())),
        _ => None,
    }
}

/// Masks the secrets of a string that is a URL. Other texts are content.
fn mask_url(literal: &[u8]) -> Option<String> {
    let is_url = memmem::find(literal, b"://").is_some() && !literal.contains(&b' ');
    let mut value: Value = is_url.then(|| serde_json::from_slice(literal).ok()).flatten()?;
    mask_named_secrets("", &mut value).then(|| value.to_string())
}

/// Returns the offset after the end of the object or list that begins at `start`; the end of the text if it has none.
fn find_container_end(text: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => at = find_string_end(text, at).unwrap_or(text.len()),
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return at,
            b'}' | b']' => depth -= 1,
            _ => (),
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_values_with_the_name_of_a_secret() {
        for (text, expected) in [
            (r#"{"api_key":"C-1",}"#, r#"{"api_key":"***",}"#),
            (r#""a":"b, "Authorization" : "C\"-1" x"#, r#""a":"b, "Authorization" : "***" x"#),
            (r#"{'a':1,"client_secret":{"value":"C}-1","b":{}},'c':2"#, r#"{'a':1,"client_secret":{},'c':2"#),
            (r#"'a',"extraHeaders":{"X-A":"C-1"#, r#"'a',"extraHeaders":{}"#),
            (r#"'a',"tokens":["C-1","C-2"],"b":1"#, r#"'a',"tokens":[],"b":1"#),
            (r#"'a',"url":"https://u:C-password@h/?sig=C-signature""#, r#"'a',"url":"https://u:***@h/?sig=***""#),
        ] {
            assert_eq!(mask_malformed(text.as_bytes()).as_deref(), Some(expected.as_bytes()), "{text}");
        }
        for text in [
            r#"{"text":"my \"api_key\": \"none\"",}"#,
            r#"{"max_tokens":5,"a":"see https://h/?token=x",}"#,
            r#"{"url":"https://h/",}"#,
            "the secret",
            "\"api_key\"",
            "",
        ] {
            assert_eq!(mask_malformed(text.as_bytes()), None, "{text}");
        }
    }
}
