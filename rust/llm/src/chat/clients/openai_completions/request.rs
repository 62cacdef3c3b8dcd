//! Reads a request for a completion.

use serde_json::Value;

use crate::chat::request::{ChatRequest, Message, Part, RequestError, Role, parse_body, take_string};

pub fn parse_request(json: &[u8]) -> Result<ChatRequest, RequestError> {
    let mut fields = parse_body(json)?;
    let mut asked = ChatRequest {
        model: take_string(&mut fields, "model").unwrap_or_default(),
        stream: fields.shift_remove("stream") == Some(Value::Bool(true)),
        ..ChatRequest::default()
    };
    let prompt = parse_prompt(fields.shift_remove("prompt"))?;
    asked.messages.push(Message { role: Role::User, parts: vec![Part::text(prompt)] });
    // Usage is always asked for; who wants to see it says this.
    if let Some(Value::Object(mut options)) = fields.shift_remove("stream_options") {
        options.shift_remove("include_usage");
        asked.record_dropped_fields("stream_options", &options);
    }
    for (key, why) in [
        ("suffix", "this provider cannot be told what comes after the completion"),
        ("echo", "this provider does not repeat the prompt"),
    ] {
        if fields.shift_remove(key).is_some_and(|value| !value.is_null() && value != false) {
            return Err(RequestError::new(key, why));
        }
    }
    // A number here, where it is yes or no in chat completions: and the answer would have another shape.
    if fields.shift_remove("logprobs").is_some_and(|value| !value.is_null()) {
        asked.record_dropped("logprobs");
    }
    // The best of one is that one.
    if fields.get("best_of").is_some_and(|best| *best == 1) {
        fields.shift_remove("best_of");
    }
    asked.fields = fields;
    Ok(asked)
}

/// One text. Tokens say nothing to who has others.
fn parse_prompt(value: Option<Value>) -> Result<String, RequestError> {
    let wrong = || RequestError::new("prompt", "this provider takes one prompt: it must be a string");
    match value.ok_or_else(wrong)? {
        Value::String(text) => Ok(text),
        Value::Array(mut items) if items.len() == 1 => match items.remove(0) {
            Value::String(text) => Ok(text),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}
