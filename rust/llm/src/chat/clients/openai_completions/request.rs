//! Parser of completion requests.

use serde_json::Value;

use crate::{
    chat::request::{ChatRequest, Message, Part, Role},
    errors::RequestError,
    fields::{parse_body, take_string},
};

pub fn parse_request(json: &[u8]) -> Result<ChatRequest, RequestError> {
    let mut fields = parse_body(json)?;
    let mut request = ChatRequest {
        model: take_string(&mut fields, "model").unwrap_or_default(),
        stream: fields.shift_remove("stream") == Some(Value::Bool(true)),
        ..ChatRequest::default()
    };
    let prompt = parse_prompt(fields.shift_remove("prompt"))?;
    request.messages.push(Message { role: Role::User, parts: vec![Part::text(prompt)] });
    // Usage is always requested from the provider; `include_usage` only decides if the client sees it.
    if let Some(Value::Object(mut options)) = fields.shift_remove("stream_options") {
        options.shift_remove("include_usage");
        request.record_dropped_fields("stream_options", &options);
    }
    for (key, reason) in [
        ("suffix", "this provider does not support text after the completion; remove `suffix`"),
        ("echo", "this provider does not repeat the prompt; remove `echo`"),
    ] {
        if fields.shift_remove(key).is_some_and(|value| !value.is_null() && value != false) {
            return Err(RequestError::new(key, reason));
        }
    }
    // Dropped, because `logprobs` is an integer here but a boolean in chat completions. The response format differs as
    // well.
    if fields.shift_remove("logprobs").is_some_and(|value| !value.is_null()) {
        request.record_dropped("logprobs");
    }
    // `best_of: 1` is the same as the default.
    if fields.get("best_of").is_some_and(|best| *best == 1) {
        fields.shift_remove("best_of");
    }
    request.fields = fields;
    Ok(request)
}

/// Parses the prompt: one string, or an array of one string. Rejects token arrays, because other providers use other
/// tokenizers.
fn parse_prompt(value: Option<Value>) -> Result<String, RequestError> {
    let wrong = || RequestError::new("prompt", "must be a string; this provider supports one prompt");
    match value.ok_or_else(wrong)? {
        Value::String(text) => Ok(text),
        Value::Array(mut items) if items.len() == 1 => match items.remove(0) {
            Value::String(text) => Ok(text),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}
