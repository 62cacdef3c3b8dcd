//! Detection of background responses, which the provider returns before they are complete.

use crate::json::{scan::for_each_field, string_literal::decode_string};

/// Returns the id of a response that is queued or in progress; `None` if it is complete or is not a response object.
pub fn unfinished_response_id(response: &[u8]) -> Option<String> {
    let (mut id, mut is_begun) = (None, false);
    for_each_field(response, |key, at| {
        let value = &response[at];
        match key {
            b"id" => id = decode_string(value).map(std::borrow::Cow::into_owned),
            b"status" => is_begun = matches!(value, b"\"queued\"" | b"\"in_progress\""),
            _ => (),
        }
        Ok(())
    })
    .ok()?;
    id.filter(|_| is_begun)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_id_only_for_queued_or_running_responses() {
        for (response, expected) in [
            (r#"{"id":"resp_1","status":"queued","output":[]}"#, Some("resp_1")),
            (r#"{"status": "in_progress" , "id": "resp_2"}"#, Some("resp_2")),
            (r#"{"id":"resp_1","status":"completed","output":[{"status":"in_progress"}]}"#, None),
            (r#"{"id":"resp_1","output":[{"status":"in_progress"}]}"#, None),
            (r#"{"status":"queued"}"#, None),
            (r#"{"id":"resp_1","status":"queued""#, None),
            ("[]", None),
        ] {
            assert_eq!(unfinished_response_id(response.as_bytes()).as_deref(), expected, "{response}");
        }
    }
}
