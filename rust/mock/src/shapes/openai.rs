//! `OpenAI` response shapes: chat completions, completions, embeddings, models, moderations and errors.

use serde_json::{Map, Value, json};

use super::{FaultEvents, ProviderFamily, ResponseContext, ResponseShape, StreamShape};

const DONE_EVENT: &str = "data: [DONE]\n\n";
const PING_EVENT: &str = ": ping\n\n";
const PROMPT_TOKENS: u32 = 12;
const DEFAULT_DIMENSIONS: usize = 8;

pub struct OpenAiChat;
pub struct Completion;

impl ResponseShape for OpenAiChat {
    fn family(&self) -> ProviderFamily {
        ProviderFamily::OpenAi
    }

    fn complete_body(&self, context: &ResponseContext<'_>, text: &str) -> Value {
        let mut response = json!({
            "id": "chatcmpl-mock", "object": "chat.completion", "created": context.created, "model": context.model,
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": null, "annotations": []},
                "logprobs": null,
                "finish_reason": "stop",
            }],
        });
        if let Some((name, arguments)) = context.tool_call() {
            response["choices"][0]["message"]["tool_calls"] = json!([tool_call_object(name, arguments)]);
            response["choices"][0]["finish_reason"] = "tool_calls".into();
        }
        if context.behaviour.usage != Some(false) {
            response["usage"] = usage_object(context);
        }
        response["service_tier"] = json!("default");
        response["system_fingerprint"] = json!("fp_mock");
        response
    }
}

impl StreamShape for OpenAiChat {
    fn opening_events(&self, context: &ResponseContext<'_>) -> String {
        chat_chunk_event(context, &json!({"role": "assistant", "content": "", "refusal": null}), &Value::Null)
    }

    fn chunk_event(&self, context: &ResponseContext<'_>, text: &str) -> String {
        chat_chunk_event(context, &json!({"content": text}), &Value::Null)
    }

    fn closing_events(&self, context: &ResponseContext<'_>) -> String {
        let mut last = String::new();
        if let Some((name, arguments)) = context.tool_call() {
            // Matches OpenAI's order: first the tool's name, then its arguments in chunks.
            let mut call = tool_call_object(name, "");
            call["index"] = 0.into();
            last += &chat_chunk_event(context, &json!({"tool_calls": [call]}), &Value::Null);
            let more = |text: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]});
            let (begin, end) = arguments.split_at(arguments.floor_char_boundary(arguments.len() / 2));
            last += &chat_chunk_event(context, &more(begin), &Value::Null);
            last += &chat_chunk_event(context, &more(end), &Value::Null);
        }
        let finish = if context.tool_call().is_some() { "tool_calls" } else { "stop" };
        last += &chat_chunk_event(context, &json!({}), &json!(finish));
        last + &usage_event(context, "chat.completion.chunk", "chatcmpl-mock")
    }

    fn end_event(&self, _context: &ResponseContext<'_>) -> String {
        DONE_EVENT.to_owned()
    }
}

impl FaultEvents for OpenAiChat {
    fn ping_event(&self) -> &'static str {
        PING_EVENT
    }

    fn error_event(&self) -> String {
        format_event(&overloaded_error())
    }

    fn malformed_event(&self) -> &'static str {
        "data: {\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"cont\n\n"
    }
}

impl ResponseShape for Completion {
    fn family(&self) -> ProviderFamily {
        ProviderFamily::OpenAi
    }

    fn complete_body(&self, context: &ResponseContext<'_>, text: &str) -> Value {
        let mut response = text_completion_object(context, text, &json!("stop"));
        if context.behaviour.usage != Some(false) {
            response["usage"] = usage_object(context);
        }
        response
    }
}

impl StreamShape for Completion {
    fn opening_events(&self, _context: &ResponseContext<'_>) -> String {
        String::new()
    }

    fn chunk_event(&self, context: &ResponseContext<'_>, text: &str) -> String {
        format_event(&text_completion_object(context, text, &Value::Null))
    }

    fn closing_events(&self, context: &ResponseContext<'_>) -> String {
        format_event(&text_completion_object(context, "", &json!("stop")))
            + &usage_event(context, "text_completion", "cmpl-mock")
    }

    fn end_event(&self, _context: &ResponseContext<'_>) -> String {
        DONE_EVENT.to_owned()
    }
}

impl FaultEvents for Completion {
    fn ping_event(&self) -> &'static str {
        PING_EVENT
    }

    fn error_event(&self) -> String {
        format_event(&overloaded_error())
    }

    fn malformed_event(&self) -> &'static str {
        "data: {\"id\":\"cmpl-mock\",\"object\":\"text_completion\",\"choices\":[{\"text\":\"brok\n\n"
    }
}

fn tool_call_object(name: &str, arguments: &str) -> Value {
    json!({"id": "call_mock", "type": "function", "function": {"name": name, "arguments": arguments}})
}

pub fn format_event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

fn chat_chunk_event(context: &ResponseContext<'_>, delta: &Value, finish: &Value) -> String {
    let mut chunk = json!({
        "id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": context.created, "model": context.model,
        "service_tier": "default", "system_fingerprint": "fp_mock",
        "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}],
    });
    if should_send_usage(context) {
        chunk["usage"] = Value::Null;
    }
    format_event(&chunk)
}

fn text_completion_object(context: &ResponseContext<'_>, text: &str, finish: &Value) -> Value {
    json!({
        "id": "cmpl-mock", "object": "text_completion", "created": context.created, "model": context.model,
        "choices": [{"text": text, "index": 0, "logprobs": null, "finish_reason": finish}],
    })
}

fn should_send_usage(context: &ResponseContext<'_>) -> bool {
    context.behaviour.usage.unwrap_or(context.include_usage)
}

fn usage_event(context: &ResponseContext<'_>, object: &str, id: &str) -> String {
    if !should_send_usage(context) {
        return String::new();
    }
    format_event(&json!({
        "id": id, "object": object, "created": context.created, "model": context.model,
        "choices": [], "usage": usage_object(context),
    }))
}

fn usage_object(context: &ResponseContext<'_>) -> Value {
    let completion = context.behaviour.chunks;
    json!({
        "prompt_tokens": PROMPT_TOKENS, "completion_tokens": completion, "total_tokens": PROMPT_TOKENS.saturating_add(completion),
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0, "audio_tokens": 0,
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    })
}

pub fn error_body(status: u32, message: &str) -> Value {
    let (kind, code) = match status {
        401 => ("invalid_request_error", json!("invalid_api_key")),
        404 => ("invalid_request_error", json!("model_not_found")),
        429 => ("requests", json!("rate_limit_exceeded")),
        500.. => ("server_error", Value::Null),
        _ => ("invalid_request_error", Value::Null),
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

pub fn overloaded_error() -> Value {
    let message = "The server is currently overloaded with other requests.";
    json!({"error": {"message": message, "type": "overloaded_error", "param": null, "code": "overloaded"}})
}

/// Returns one vector per input, as numbers or as base64 of little-endian floats.
pub fn embedding_response(model: &str, body: &[u8]) -> Value {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let as_text = request["encoding_format"] == "base64";
    let size = request["dimensions"].as_u64().map_or(DEFAULT_DIMENSIONS, |size| size.clamp(1, 8192) as usize);
    let data: Vec<Value> = (0..count_inputs(&request["input"]))
        .map(|index| {
            let vector: Vec<f32> = (0..size).map(|at| ((index + at) % 8) as f32 / 8.0 - 0.4375).collect();
            let embedding = if as_text { json!(encode_base64(&encode_floats(&vector))) } else { json!(vector) };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let tokens = data.len() * 4;
    json!({"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
}

// An array of numbers is one input of token ids.
fn count_inputs(input: &Value) -> usize {
    match input {
        Value::Array(items) if !items.iter().any(Value::is_number) => items.len(),
        _ => 1,
    }
}

fn encode_floats(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn encode_base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let group_bits = group.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for index in 0..4 {
            let letter = ALPHABET[(group_bits >> (18 - 6 * index) & 63) as usize];
            out.push(if index <= group.len() { letter as char } else { '=' });
        }
    }
    out
}

pub fn model_list() -> Value {
    let data = ["mock", "mock-mini", "mock-large"].map(model_object);
    json!({"object": "list", "data": data})
}

pub fn model_object(id: &str) -> Value {
    json!({"id": id, "object": "model", "created": 1_700_000_000, "owned_by": "penstock"})
}

pub fn moderation_response(model: &str, body: &[u8]) -> Value {
    const CATEGORIES: [&str; 13] = [
        "harassment",
        "harassment/threatening",
        "sexual",
        "hate",
        "hate/threatening",
        "illicit",
        "illicit/violent",
        "self-harm/intent",
        "self-harm/instructions",
        "self-harm",
        "sexual/minors",
        "violence",
        "violence/graphic",
    ];
    let each = |value: Value| -> Map<String, Value> {
        CATEGORIES.iter().map(|name| ((*name).to_owned(), value.clone())).collect()
    };
    let result = json!({
        "flagged": false, "categories": each(json!(false)), "category_scores": each(json!(0.0001)),
        "category_applied_input_types": each(json!(["text"])),
    });
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let results = vec![result; count_inputs(&request["input"])];
    json!({"id": "modr-mock", "model": if model.is_empty() { "omni-moderation-latest" } else { model }, "results": results})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_base64() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(encode_base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn returns_one_vector_per_input() {
        let count = |input: &str| {
            embedding_response("m", format!("{{\"input\":{input}}}").as_bytes())["data"].as_array().unwrap().len()
        };
        assert_eq!([count("\"a\""), count("[\"a\",\"b\"]"), count("[1,2,3]"), count("[[1],[2]]")], [1, 2, 1, 2]);
    }
}
