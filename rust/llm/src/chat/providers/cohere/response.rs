//! Decodes Cohere's responses, complete and streamed.

use serde_json::{Value, json};

use super::citations::CitationTracker;
use crate::{
    api_format::format::ApiFormat,
    chat::{
        event::{EventSink, FieldScope, ResponseEvent},
        providers::{MalformedResponse, StreamDecoder},
    },
    usage::UsageCounts,
};

pub fn decode_response(response: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
    let response: Value = serde_json::from_slice(response)?;
    let Some(message) = response["message"].as_object() else {
        return Err(MalformedResponse("it has no message".into()));
    };
    sink.push_event(ResponseEvent::Start { id: as_text(&response["id"]), model: "" });
    if let Some(plan) = message.get("tool_plan").map(as_text).filter(|plan| !plan.is_empty()) {
        sink.push_event(ResponseEvent::Thinking(plan));
    }
    let mut citing = CitationTracker::default();
    for (at, part) in (0..).zip(as_items(message.get("content"))) {
        citing.add_text(at, as_text(&part["text"]));
        emit_content(part, sink);
    }
    for (at, call) in as_items(message.get("tool_calls")).iter().enumerate() {
        emit_call_start(call, sink);
        let arguments = as_text(&call["function"]["arguments"]);
        sink.push_event(ResponseEvent::ToolCallArguments {
            call_index: at,
            json: if arguments.is_empty() { "{}" } else { arguments },
        });
    }
    citing.emit_citations(message.get("citations").unwrap_or(&Value::Null), sink);
    emit_extra_data("logprobs", &response["logprobs"], FieldScope::Choice, sink);
    emit_end(&response, sink);
    Ok(())
}

fn emit_extra_data(name: &str, value: &Value, scope: FieldScope, sink: &mut dyn EventSink) {
    if value.as_array().is_some_and(|items| !items.is_empty()) {
        sink.push_event(ResponseEvent::ExtraField { scope, name, json: &value.to_string() });
    }
}

fn as_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn as_items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn emit_content(part: &Value, sink: &mut dyn EventSink) {
    match (as_text(&part["text"]), as_text(&part["thinking"])) {
        ("", "") => (),
        ("", thought) => sink.push_event(ResponseEvent::Thinking(thought)),
        (text, _) => sink.push_event(ResponseEvent::Text(text)),
    }
}

fn emit_call_start(call: &Value, sink: &mut dyn EventSink) {
    sink.push_event(ResponseEvent::ToolCall {
        id: as_text(&call["id"]),
        name: as_text(&call["function"]["name"]),
        signature: None,
    });
}

fn emit_end(response: &Value, sink: &mut dyn EventSink) {
    let mut counts = UsageCounts::default();
    counts.read_usage(response["usage"].to_string().as_bytes());
    if let Some(usage) = counts.to_usage(ApiFormat::OpenAi) {
        sink.push_event(ResponseEvent::Usage(usage));
    }
    sink.push_event(ResponseEvent::Finish { reason: as_text(&response["finish_reason"]), stop_sequence: None });
    sink.push_event(ResponseEvent::End);
}

/// Decodes a streamed response.
#[derive(Default)]
pub struct CohereDecoder {
    /// For each tool call in order, true once some of its arguments have arrived.
    calls_with_arguments: Vec<bool>,
    citations: CitationTracker,
}

impl StreamDecoder for CohereDecoder {
    fn decode(&mut self, data: &[u8], sink: &mut dyn EventSink) {
        // Ignores data that is not an event of this format.
        let Ok(event) = serde_json::from_slice::<Value>(data) else { return };
        let message = &event["delta"]["message"];
        match as_text(&event["type"]) {
            "message-start" => sink.push_event(ResponseEvent::Start { id: as_text(&event["id"]), model: "" }),
            "content-start" | "content-delta" => {
                self.citations
                    .add_text(event["index"].as_u64().unwrap_or_default(), as_text(&message["content"]["text"]));
                emit_content(&message["content"], sink);
                if event["logprobs"].is_object() {
                    emit_extra_data("logprobs", &json!([event["logprobs"]]), FieldScope::Choice, sink);
                }
            }
            "citation-start" => self.citations.emit_citations(&message["citations"], sink),
            "tool-plan-delta" => sink.push_event(ResponseEvent::Thinking(as_text(&message["tool_plan"]))),
            "tool-call-start" => {
                emit_call_start(&message["tool_calls"], sink);
                self.calls_with_arguments.push(false);
                self.emit_arguments(as_text(&message["tool_calls"]["function"]["arguments"]), sink);
            }
            "tool-call-delta" => self.emit_arguments(as_text(&message["tool_calls"]["function"]["arguments"]), sink),
            "tool-call-end" if self.calls_with_arguments.last() == Some(&false) => self.emit_arguments("{}", sink),
            "message-end" if event["delta"]["error"].is_string() => {
                sink.push_event(ResponseEvent::Failed {
                    kind: None,
                    message: as_text(&event["delta"]["error"]),
                    code: None,
                });
            }
            "message-end" => emit_end(&event["delta"], sink),
            _ => (),
        }
    }
}

impl CohereDecoder {
    /// Emits arguments of the latest tool call. Cohere streams one call after the other.
    fn emit_arguments(&mut self, json: &str, sink: &mut dyn EventSink) {
        let call = self.calls_with_arguments.len().saturating_sub(1);
        if let (Some(has_arguments), false) = (self.calls_with_arguments.last_mut(), json.is_empty()) {
            *has_arguments = true;
            sink.push_event(ResponseEvent::ToolCallArguments { call_index: call, json });
        }
    }
}
