//! `OpenAI`'s responses: items of output, whole or as typed events.

use serde_json::{Value, json};

use super::{Ask, Family, Shape, openai};

const INPUT_TOKENS: u32 = 12;

pub struct Responses;

impl Shape for Responses {
    fn family(&self) -> Family {
        Family::OpenAi
    }

    fn whole(&self, ask: &Ask<'_>, text: &str) -> Value {
        completed(ask, text)
    }

    fn opening(&self, ask: &Ask<'_>) -> String {
        let begun = response(ask, "in_progress", &json!([]));
        let item = message("in_progress", "");
        event(&json!({"type": "response.created", "sequence_number": 0, "response": begun}))
            + &event(
                &json!({"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": item}),
            )
            + &event(&json!({"type": "response.content_part.added", "sequence_number": 2, "item_id": "msg_mock",
                "output_index": 0, "content_index": 0, "part": {"type": "output_text", "text": "", "annotations": []}}))
    }

    fn piece(&self, _ask: &Ask<'_>, text: &str) -> String {
        event(&json!({"type": "response.output_text.delta", "sequence_number": 3, "item_id": "msg_mock",
            "output_index": 0, "content_index": 0, "delta": text, "logprobs": []}))
    }

    fn closing(&self, ask: &Ask<'_>) -> String {
        let text = super::text(ask.behaviour);
        let mut said = event(&json!({"type": "response.output_text.done", "sequence_number": 4, "item_id": "msg_mock",
            "output_index": 0, "content_index": 0, "text": text, "logprobs": []}))
            + &event(&json!({"type": "response.output_item.done", "sequence_number": 5, "output_index": 0,
                "item": message("completed", &text)}));
        if let Some((name, arguments)) = ask.call() {
            let item = function_call(name, "", "in_progress");
            said += &event(
                &json!({"type": "response.output_item.added", "sequence_number": 6, "output_index": 1, "item": item}),
            );
            said += &event(&json!({"type": "response.function_call_arguments.delta", "sequence_number": 7,
                "item_id": "fc_mock", "output_index": 1, "delta": arguments}));
            said += &event(&json!({"type": "response.function_call_arguments.done", "sequence_number": 8,
                "item_id": "fc_mock", "output_index": 1, "name": name, "arguments": arguments}));
            let item = function_call(name, arguments, "completed");
            said += &event(
                &json!({"type": "response.output_item.done", "sequence_number": 9, "output_index": 1, "item": item}),
            );
        }
        said
    }

    fn done(&self, ask: &Ask<'_>) -> String {
        let whole = completed(ask, &super::text(ask.behaviour));
        event(&json!({"type": "response.completed", "sequence_number": 10, "response": whole}))
    }

    fn ping(&self) -> &'static str {
        ": ping\n\n"
    }

    fn error_event(&self) -> String {
        event(
            &json!({"type": "error", "sequence_number": 3, "code": "server_error", "message": "overloaded", "param": null}),
        )
    }

    fn malformed(&self) -> &'static str {
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"del\n\n"
    }
}

fn completed(ask: &Ask<'_>, text: &str) -> Value {
    let mut output = vec![message("completed", text)];
    output.extend(ask.call().map(|(name, arguments)| function_call(name, arguments, "completed")));
    let mut response = response(ask, "completed", &output.into());
    if ask.behaviour.usage != Some(false) {
        response["usage"] = usage(ask.behaviour.chunks);
    }
    response
}

fn function_call(name: &str, arguments: &str, status: &str) -> Value {
    json!({"type": "function_call", "id": "fc_mock", "call_id": "call_mock", "name": name, "arguments": arguments,
        "status": status})
}

fn event(data: &Value) -> String {
    format!("event: {}\n{}", data["type"].as_str().unwrap_or_default(), openai::event(data))
}

fn message(status: &str, text: &str) -> Value {
    json!({"type": "message", "id": "msg_mock", "status": status, "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]})
}

fn response(ask: &Ask<'_>, status: &str, output: &Value) -> Value {
    json!({
        "id": "resp_mock", "object": "response", "created_at": ask.created, "status": status, "error": null,
        "incomplete_details": null, "instructions": null, "metadata": {}, "model": ask.model, "output": output,
        "parallel_tool_calls": true, "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
    })
}

fn usage(output: u32) -> Value {
    json!({
        "input_tokens": INPUT_TOKENS, "output_tokens": output, "total_tokens": INPUT_TOKENS.saturating_add(output),
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    })
}
