//! Anthropic response shapes: messages, models and errors.

use serde_json::{Value, json};

use super::{FaultEvents, ProviderFamily, ResponseContext, ResponseShape, StreamShape};

const INPUT_TOKENS: u32 = 12;

pub struct Messages;

impl ResponseShape for Messages {
    fn family(&self) -> ProviderFamily {
        ProviderFamily::Anthropic
    }

    fn complete_body(&self, context: &ResponseContext<'_>, text: &str) -> Value {
        let mut blocks = vec![json!({"type": "text", "text": text})];
        blocks.extend(context.tool_call_with_input().map(|(name, input)| tool_use_block(name, &input)));
        message_object(context, &blocks.into(), &json!(stop_reason(context)), context.behaviour.chunks)
    }
}

impl StreamShape for Messages {
    fn opening_events(&self, context: &ResponseContext<'_>) -> String {
        let start = json!({"type": "message_start", "message": message_object(context, &json!([]), &Value::Null, 1)});
        let block = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
        format_event(&start) + &format_event(&block) + self.ping_event()
    }

    fn chunk_event(&self, _context: &ResponseContext<'_>, text: &str) -> String {
        format_event(&json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}))
    }

    fn closing_events(&self, context: &ResponseContext<'_>) -> String {
        let mut delta =
            json!({"type": "message_delta", "delta": {"stop_reason": stop_reason(context), "stop_sequence": null}});
        if context.behaviour.usage != Some(false) {
            delta["usage"] = usage_object(context.behaviour.chunks);
        }
        let mut call = String::new();
        if let Some((name, arguments)) = context.tool_call() {
            let block = tool_use_block(name, &json!({}));
            call += &format_event(&json!({"type": "content_block_start", "index": 1, "content_block": block}));
            let (begin, end) = arguments.split_at(arguments.floor_char_boundary(arguments.len() / 2));
            for part in [begin, end] {
                let delta = json!({"type": "input_json_delta", "partial_json": part});
                call += &format_event(&json!({"type": "content_block_delta", "index": 1, "delta": delta}));
            }
            call += &format_event(&json!({"type": "content_block_stop", "index": 1}));
        }
        format_event(&json!({"type": "content_block_stop", "index": 0})) + &call + &format_event(&delta)
    }

    fn end_event(&self, _context: &ResponseContext<'_>) -> String {
        format_event(&json!({"type": "message_stop"}))
    }
}

impl FaultEvents for Messages {
    fn ping_event(&self) -> &'static str {
        "event: ping\ndata: {\"type\": \"ping\"}\n\n"
    }

    fn error_event(&self) -> String {
        format_event(&error_body(529, "Overloaded"))
    }

    fn malformed_event(&self) -> &'static str {
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_de\n\n"
    }
}

pub fn stop_reason(context: &ResponseContext<'_>) -> &'static str {
    if context.tool_call().is_some() { "tool_use" } else { "end_turn" }
}

fn tool_use_block(name: &str, input: &Value) -> Value {
    json!({"type": "tool_use", "id": "toolu_mock", "name": name, "input": input})
}

// The event name is always the event's type.
fn format_event(data: &Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or("message"))
}

fn message_object(context: &ResponseContext<'_>, blocks: &Value, stop: &Value, output_tokens: u32) -> Value {
    let mut message = json!({
        "id": "msg_mock", "type": "message", "role": "assistant", "model": context.model,
        "content": blocks, "stop_reason": stop, "stop_sequence": null,
    });
    if context.behaviour.usage != Some(false) {
        message["usage"] = usage_object(output_tokens);
        message["usage"]["service_tier"] = "standard".into();
    }
    message
}

fn usage_object(output_tokens: u32) -> Value {
    json!({"input_tokens": INPUT_TOKENS, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens": output_tokens})
}

pub fn error_body(status: u32, message: &str) -> Value {
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_0000000000000000"})
}

pub fn model_list() -> Value {
    let data = ["mock", "mock-mini", "mock-large"].map(model_object);
    json!({"data": data, "has_more": false, "first_id": "mock", "last_id": "mock-large"})
}

pub fn model_object(id: &str) -> Value {
    json!({"type": "model", "id": id, "display_name": id, "created_at": "2026-01-01T00:00:00Z"})
}
