//! Cohere response shapes: chat (complete or as events), embeddings, rerank results and errors. Also request
//! validation.

use serde_json::{Value, json};

use super::{FaultEvents, ProviderFamily, ResponseContext, ResponseShape, StreamShape};

const PROMPT_TOKENS: u32 = 12;

/// Fields that a chat request may have.
const ALLOWED_FIELDS: [&str; 21] = [
    "model",
    "messages",
    "stream",
    "tools",
    "tool_choice",
    "strict_tools",
    "documents",
    "citation_options",
    "response_format",
    "safety_mode",
    "max_tokens",
    "stop_sequences",
    "temperature",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "k",
    "p",
    "logprobs",
    "thinking",
    "priority",
];

pub struct CohereChat;

impl ResponseShape for CohereChat {
    fn family(&self) -> ProviderFamily {
        ProviderFamily::Cohere
    }

    fn complete_body(&self, context: &ResponseContext<'_>, text: &str) -> Value {
        let mut message = json!({"role": "assistant", "content": [{"type": "text", "text": text}]});
        if let Some((name, arguments)) = context.tool_call() {
            message["tool_calls"] = json!([tool_call_object(name, arguments)]);
        }
        let mut response = json!({"id": "mock", "finish_reason": finish_reason(context), "message": message});
        if let Some(usage) = usage_object(context) {
            response["usage"] = usage;
        }
        response
    }

    fn validation_error(&self, body: &Value) -> Option<String> {
        let fields = body.as_object()?;
        if let Some(unknown) = fields.keys().find(|key| !ALLOWED_FIELDS.contains(&key.as_str())) {
            return Some(format!("unknown field: parameter '{unknown}' is not a valid field"));
        }
        let Some(turns) = body["messages"].as_array().filter(|turns| !turns.is_empty()) else {
            return Some(
                "invalid request: message must be at least 1 token long or tool results must be specified.".into(),
            );
        };
        let tool_calls = turns.iter().filter_map(|turn| turn["tool_calls"].as_array()).flatten();
        let call_ids: Vec<_> = tool_calls.map(|call| &call["id"]).collect();
        turns.iter().find_map(|turn| match turn["role"].as_str() {
            Some("tool") if !call_ids.contains(&&turn["tool_call_id"]) => {
                Some("invalid request: tool call id not found in previous tool calls".into())
            }
            Some("tool" | "user" | "assistant" | "system") => None,
            _ => Some("invalid request: all elements in messages must have a role.".into()),
        })
    }
}

impl StreamShape for CohereChat {
    fn opening_events(&self, _context: &ResponseContext<'_>) -> String {
        let message = json!({"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []});
        let message_start = json!({"id": "mock", "type": "message-start", "delta": {"message": message}});
        let text = json!({"message": {"content": {"type": "text", "text": ""}}});
        format_event(&message_start) + &format_event(&json!({"type": "content-start", "index": 0, "delta": text}))
    }

    fn chunk_event(&self, _context: &ResponseContext<'_>, text: &str) -> String {
        format_event(&json!({"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}}))
    }

    fn closing_events(&self, context: &ResponseContext<'_>) -> String {
        let mut last = format_event(&json!({"type": "content-end", "index": 0}));
        if let Some((name, arguments)) = context.tool_call() {
            let tool_call_event = |kind: &str, call: Value| {
                format_event(&json!({"type": kind, "index": 0, "delta": {"message": {"tool_calls": call}}}))
            };
            let more = |text: &str| tool_call_event("tool-call-delta", json!({"function": {"arguments": text}}));
            let (begin, end) = arguments.split_at(arguments.floor_char_boundary(arguments.len() / 2));
            last += &tool_call_event("tool-call-start", tool_call_object(name, ""));
            last += &(more(begin) + &more(end));
            last += &format_event(&json!({"type": "tool-call-end", "index": 0}));
        }
        last
    }

    fn end_event(&self, context: &ResponseContext<'_>) -> String {
        let mut delta = json!({"finish_reason": finish_reason(context)});
        if let Some(usage) = usage_object(context) {
            delta["usage"] = usage;
        }
        format_event(&json!({"type": "message-end", "delta": delta}))
    }
}

impl FaultEvents for CohereChat {
    fn ping_event(&self) -> &'static str {
        ": ping\n\n"
    }

    fn error_event(&self) -> String {
        format_event(
            &json!({"type": "message-end", "delta": {"error": "The model is overloaded.", "finish_reason": "ERROR"}}),
        )
    }

    fn malformed_event(&self) -> &'static str {
        "event: content-delta\ndata: {\"type\":\"content-delta\",\"delta\":{\"message\":{\"cont\n\n"
    }
}

fn finish_reason(context: &ResponseContext<'_>) -> &'static str {
    if context.tool_call().is_some() { "TOOL_CALL" } else { "COMPLETE" }
}

/// Returns the usage. Fewer input tokens are billed than were read, because the preamble is free.
fn usage_object(context: &ResponseContext<'_>) -> Option<Value> {
    let output = context.behaviour.chunks;
    (context.behaviour.usage != Some(false)).then(|| {
        json!({"billed_units": {"input_tokens": PROMPT_TOKENS - 5, "output_tokens": output},
            "tokens": {"input_tokens": PROMPT_TOKENS, "output_tokens": output}})
    })
}

fn tool_call_object(name: &str, arguments: &str) -> Value {
    json!({"id": "call_mock", "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn format_event(data: &Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default())
}

/// Returns one vector per text.
pub fn embedding_response(request: &Value) -> Value {
    let texts = request["texts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let size = request["output_dimension"].as_u64().map_or(8, |size| size.clamp(1, 8192));
    let vector = || (0..size).map(|at| (at % 8) as f32 / 8.0 - 0.4375).collect::<Vec<_>>();
    let vectors: Vec<_> = texts.iter().map(|_| vector()).collect();
    json!({"id": "mock", "texts": texts, "embeddings": {"float": vectors}, "response_type": "embeddings_by_type",
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": PROMPT_TOKENS}}})
}

/// Ranks the documents in the order of the request.
pub fn rerank_response(request: &Value) -> Value {
    let all = request["documents"].as_array().map_or(0, Vec::len);
    let result_count =
        request["top_n"].as_u64().map_or(all, |max_results| all.min(usize::try_from(max_results).unwrap_or(all)));
    let results: Vec<_> =
        (0..result_count).map(|at| json!({"index": at, "relevance_score": 1.0 / (at as f64 + 2.0)})).collect();
    json!({"id": "mock", "results": results,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}})
}

pub fn error_body(message: &str) -> Value {
    json!({"id": "mock", "message": message})
}
