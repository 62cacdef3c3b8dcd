//! Events that open a stream and have neither content nor a finish reason. A stream that ends after such events is not
//! a response: the provider failed without reporting an error.

use crate::json::scan::{for_each_element_from, for_each_field, for_each_field_from};

/// Fields of events without content. An event with any other field may have content.
const METADATA_FIELDS: [&[u8]; 17] = [
    b"id",
    b"object",
    b"created",
    b"model",
    b"provider",
    b"usage",
    b"usageMetadata",
    b"modelVersion",
    b"responseId",
    b"createTime",
    b"service_tier",
    b"system_fingerprint",
    b"prompt_filter_results",
    b"x_groq",
    b"index",
    b"obfuscation",
    b"role",
];

/// Returns true if the data of an event has neither content nor a finish reason. Data of an unknown format is content.
pub fn is_without_content(data: &[u8]) -> bool {
    if data.trim_ascii() == b"[DONE]" {
        return true;
    }
    let (mut event_type, mut has_content, mut is_known) = (None, false, false);
    let read = for_each_field(data, |key, at| {
        let value = &data[at.clone()];
        match key {
            b"type" => event_type = Some(value),
            b"choices" => {
                is_known = true;
                has_content |= has_item(data, at.start, choice_has_content);
            }
            b"candidates" => {
                is_known = true;
                has_content |= has_item(data, at.start, candidate_has_content);
            }
            b"promptFeedback" => has_content |= has_field(value, |key, _| key == b"blockReason"),
            b"content_block" if is_empty_block(value) => (),
            b"message" | b"response" | b"delta" if value.starts_with(b"{") => (),
            b"sequence_number" => (),
            b"usage" | b"usageMetadata" => is_known = true,
            key => has_content |= !METADATA_FIELDS.contains(&key) && !is_blank(value),
        }
        Ok(())
    });
    match (read, event_type) {
        (Err(_), _) => false,
        (Ok(()), None) => is_known && !has_content,
        (Ok(()), Some(event_type)) => is_opening_type(event_type, data) && !has_content,
    }
}

/// Returns true for the types of events that open a stream of Messages or Responses, or end it without content.
fn is_opening_type(event_type: &[u8], data: &[u8]) -> bool {
    match event_type {
        b"\"ping\""
        | b"\"message_start\""
        | b"\"content_block_start\""
        | b"\"content_block_stop\""
        | b"\"message_stop\""
        | b"\"response.created\""
        | b"\"response.queued\""
        | b"\"response.in_progress\"" => true,
        b"\"message_delta\"" => !has_field(data, |key, value| {
            key == b"delta" && has_field(value, |key, value| key == b"stop_reason" && !is_blank(value))
        }),
        _ => false,
    }
}

fn choice_has_content(choice: &[u8]) -> bool {
    has_field(choice, |key, value| match key {
        b"finish_reason" | b"text" => !is_blank(value),
        b"delta" | b"message" => has_field(value, |key, value| key != b"role" && !is_blank(value)),
        _ => false,
    })
}

fn candidate_has_content(candidate: &[u8]) -> bool {
    has_field(candidate, |key, value| match key {
        b"finishReason" => !is_blank(value),
        b"content" => has_field(value, |key, value| key == b"parts" && !is_blank(value)),
        _ => false,
    })
}

/// Returns true for the empty start of a text or thinking block, whose content follows in deltas.
fn is_empty_block(block: &[u8]) -> bool {
    !has_field(block, |key, value| match key {
        b"type" => !matches!(value, b"\"text\"" | b"\"thinking\""),
        _ => !is_blank(value),
    })
}

fn is_blank(value: &[u8]) -> bool {
    matches!(value, b"null" | b"\"\"" | b"[]" | b"{}")
}

/// Returns true if a field of the object fulfils the condition, or if a value cannot be read.
fn has_field(object: &[u8], is_it: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    if !object.starts_with(b"{") {
        return !is_blank(object);
    }
    let mut is_found = false;
    let read = for_each_field_from(object, 0, |key, at| {
        is_found |= is_it(key, &object[at]);
        Ok(())
    });
    is_found || read.is_err()
}

/// Returns true if an item of the array at this position fulfils the condition, or if a value cannot be read.
fn has_item(json: &[u8], at: usize, is_it: impl Fn(&[u8]) -> bool) -> bool {
    if json[at] != b'[' {
        return !json[at..].starts_with(b"null");
    }
    let mut is_found = false;
    let read = for_each_element_from(json, at, |item| {
        is_found |= is_it(&json[item]);
        Ok(())
    });
    is_found || read.is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_open_a_stream_have_no_content() {
        for data in [
            "[DONE]",
            r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]}"#,
            r#"{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
            r#"{"choices":[{"index":0,"text":"","finish_reason":null}]}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"message_start","message":{"content":[],"usage":{"input_tokens":1}}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":1}}"#,
            r#"{"type":"message_stop"}"#,
            r#"{"type":"response.created","response":{"output":[]},"sequence_number":0}"#,
            r#"{"candidates":[{"content":{"role":"model","parts":[]},"index":0}],"usageMetadata":{},"modelVersion":"m"}"#,
            r#"{"usageMetadata":{"promptTokenCount":1}}"#,
        ] {
            assert!(is_without_content(data.as_bytes()), "{data}");
        }
    }

    #[test]
    fn content_finish_reasons_and_unknown_data_are_content() {
        for data in [
            "",
            "{}",
            "1",
            "{\"choices\":[{",
            r#"{"half":1}"#,
            r#"{"error":{"message":"m"}}"#,
            r#"{"type":"error","error":{}}"#,
            r#"{"choices":[{"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"{"choices":[{"delta":{"audio":{"id":"a"}}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"text":"a"}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant"}},{"delta":{"content":"a"}}]}"#,
            r#"{"choices":[],"citations":["u"]}"#,
            r#"{"type":"content_block_start","content_block":{"type":"tool_use","id":"i","name":"f","input":{}}}"#,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
            r#"{"type":"response.completed","response":{"output":[]}}"#,
            r#"{"candidates":[{"content":{"parts":[{"text":"a"}]}}]}"#,
            r#"{"candidates":[{"finishReason":"STOP"}]}"#,
            r#"{"promptFeedback":{"blockReason":"SAFETY"}}"#,
        ] {
            assert!(!is_without_content(data.as_bytes()), "{data}");
        }
    }
}
