//! `OpenAI` Responses API shapes: output items, complete or as typed events.

use serde_json::{Value, json};

use super::{FaultEvents, ProviderFamily, ResponseContext, ResponseShape, StreamShape, openai};

const INPUT_TOKENS: u32 = 12;

pub struct Responses;

impl ResponseShape for Responses {
    fn family(&self) -> ProviderFamily {
        ProviderFamily::OpenAi
    }

    fn complete_body(&self, context: &ResponseContext<'_>, text: &str) -> Value {
        completed_response(context, text)
    }
}

impl StreamShape for Responses {
    fn opening_events(&self, context: &ResponseContext<'_>) -> String {
        let response = response_object(context, "in_progress", &json!([]));
        let item = message_item("in_progress", "");
        format_event(&json!({"type": "response.created", "sequence_number": 0, "response": response}))
            + &format_event(
                &json!({"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": item}),
            )
            + &format_event(&json!({"type": "response.content_part.added", "sequence_number": 2, "item_id": "msg_mock",
                "output_index": 0, "content_index": 0, "part": {"type": "output_text", "text": "", "annotations": []}}))
    }

    fn chunk_event(&self, _context: &ResponseContext<'_>, text: &str) -> String {
        format_event(&json!({"type": "response.output_text.delta", "sequence_number": 3, "item_id": "msg_mock",
            "output_index": 0, "content_index": 0, "delta": text, "logprobs": []}))
    }

    fn closing_events(&self, context: &ResponseContext<'_>) -> String {
        let text = super::complete_text(context.behaviour);
        let mut events =
            format_event(&json!({"type": "response.output_text.done", "sequence_number": 4, "item_id": "msg_mock",
            "output_index": 0, "content_index": 0, "text": text, "logprobs": []}))
                + &format_event(&json!({"type": "response.output_item.done", "sequence_number": 5, "output_index": 0,
                "item": message_item("completed", &text)}));
        if let Some((name, arguments)) = context.tool_call() {
            let item = function_call_item(name, "", "in_progress");
            events += &format_event(
                &json!({"type": "response.output_item.added", "sequence_number": 6, "output_index": 1, "item": item}),
            );
            events += &format_event(&json!({"type": "response.function_call_arguments.delta", "sequence_number": 7,
                "item_id": "fc_mock", "output_index": 1, "delta": arguments}));
            events += &format_event(&json!({"type": "response.function_call_arguments.done", "sequence_number": 8,
                "item_id": "fc_mock", "output_index": 1, "name": name, "arguments": arguments}));
            let item = function_call_item(name, arguments, "completed");
            events += &format_event(
                &json!({"type": "response.output_item.done", "sequence_number": 9, "output_index": 1, "item": item}),
            );
        }
        events
    }

    fn end_event(&self, context: &ResponseContext<'_>) -> String {
        let response = completed_response(context, &super::complete_text(context.behaviour));
        format_event(&json!({"type": "response.completed", "sequence_number": 10, "response": response}))
    }
}

impl FaultEvents for Responses {
    fn ping_event(&self) -> &'static str {
        ": ping\n\n"
    }

    fn error_event(&self) -> String {
        format_event(
            &json!({"type": "error", "sequence_number": 3, "code": "server_error", "message": "overloaded", "param": null}),
        )
    }

    fn malformed_event(&self) -> &'static str {
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"del\n\n"
    }
}

fn completed_response(context: &ResponseContext<'_>, text: &str) -> Value {
    let mut output = vec![message_item("completed", text)];
    output.extend(context.tool_call().map(|(name, arguments)| function_call_item(name, arguments, "completed")));
    let mut response = response_object(context, "completed", &output.into());
    if context.behaviour.usage != Some(false) {
        response["usage"] = usage_object(context.behaviour.chunks);
    }
    response
}

fn function_call_item(name: &str, arguments: &str, status: &str) -> Value {
    json!({"type": "function_call", "id": "fc_mock", "call_id": "call_mock", "name": name, "arguments": arguments,
        "status": status})
}

fn format_event(data: &Value) -> String {
    format!("event: {}\n{}", data["type"].as_str().unwrap_or_default(), openai::format_event(data))
}

fn message_item(status: &str, text: &str) -> Value {
    json!({"type": "message", "id": "msg_mock", "status": status, "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]})
}

fn response_object(context: &ResponseContext<'_>, status: &str, output: &Value) -> Value {
    json!({
        "id": "resp_mock", "object": "response", "created_at": context.created, "status": status, "error": null,
        "incomplete_details": null, "instructions": null, "metadata": {}, "model": context.model, "output": output,
        "parallel_tool_calls": true, "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
    })
}

fn usage_object(output: u32) -> Value {
    json!({
        "input_tokens": INPUT_TOKENS, "output_tokens": output, "total_tokens": INPUT_TOKENS.saturating_add(output),
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    })
}
