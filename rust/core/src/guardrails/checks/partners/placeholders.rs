//! Templates of URLs and header fields: `{credentials.domain}` stands for the parameter with this path.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// Characters that are encoded in a path or query.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Replaces the placeholders of a template by parameters. `encodes`: percent-encodes the values.
///
/// # Errors
/// The path of the first parameter that has no value.
pub(super) fn fill_placeholders<'t>(template: &'t str, parameters: &Value, encodes: bool) -> Result<String, &'t str> {
    let mut output = String::with_capacity(template.len());
    for (number, part) in template.split(['{', '}']).enumerate() {
        if number % 2 == 0 {
            output.push_str(part);
            continue;
        }
        let parameter = part.split('.').fold(parameters, |value, key| &value[key]);
        match parameter.as_str() {
            Some(text) if encodes => {
                let _ = write!(output, "{}", utf8_percent_encode(text, ENCODED));
            }
            Some(text) => output.push_str(text),
            None => return Err(part),
        }
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn placeholders_are_replaced_and_encoded() {
        let parameters = json!({"id": "arn:a/b", "credentials": {"domain": "eu.example"}});
        let fill = |template, encodes| fill_placeholders(template, &parameters, encodes);
        assert_eq!(fill("https://a.{credentials.domain}/v1", false).unwrap(), "https://a.eu.example/v1");
        assert_eq!(fill("/x/{id}?v={credentials.domain}", true).unwrap(), "/x/arn%3Aa%2Fb?v=eu.example");
        assert_eq!(fill("{credentials.key}", false), Err("credentials.key"));
    }
}
