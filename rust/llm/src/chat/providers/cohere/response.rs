//! Decodes Cohere's responses, complete and streamed.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::citations::CohereCitationTracker;
use crate::{
    api_format::format::ApiFormat,
    chat::{
        event::{self, EventSink, ResponseEvent},
        field_scope::FieldScope,
    },
    errors::MalformedResponse,
    json::lenient,
    provider_format::StreamDecoder,
    usage::UsageCounts,
};

pub fn decode_response(response: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
    let response: Value = serde_json::from_slice(response)?;
    let Some(message) = response["message"].as_object() else {
        return Err(MalformedResponse("it has no message".into()));
    };
    sink.push_event(ResponseEvent::Start { id: &as_id(&response["id"]), model: "" });
    let unreadable = |reason: &str| MalformedResponse(reason.to_owned());
    let plan = lenient::value_text(message.get("tool_plan").unwrap_or(&Value::Null)).map_err(unreadable)?;
    if !plan.is_empty() {
        sink.push_event(ResponseEvent::Thinking(&plan));
    }
    let mut citing = CohereCitationTracker::default();
    let content = message.get("content").unwrap_or(&Value::Null);
    for (at, part) in (0..).zip(content.as_array().map_or(std::slice::from_ref(content), Vec::as_slice)) {
        emit_content(at, part, &mut citing, sink).map_err(unreadable)?;
    }
    for (at, call) in as_items(message.get("tool_calls")).iter().enumerate() {
        emit_call_start(call, sink).map_err(unreadable)?;
        let arguments = as_embedded_json(&call["function"]["arguments"]);
        let json = if arguments.is_empty() { "{}" } else { &*arguments };
        sink.push_event(ResponseEvent::ToolCallArguments { call_index: at, json });
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

/// Returns an id. Some servers send it as a number.
fn as_id(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Number(number) => Cow::Owned(number.to_string()),
        other => Cow::Borrowed(as_text(other)),
    }
}

/// Returns the JSON in a string, or another value as JSON.
fn as_embedded_json(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Null => Cow::Borrowed(""),
        Value::String(json) => Cow::Borrowed(json),
        other => Cow::Owned(other.to_string()),
    }
}

fn as_items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Emits a part of the content. `part_index` is its position among the parts.
fn emit_content(
    part_index: u64,
    part: &Value,
    citations: &mut CohereCitationTracker,
    sink: &mut dyn EventSink,
) -> Result<(), &'static str> {
    let field = |key: &str| part.get(key).filter(|value| !value.is_null());
    if let Some(thought) = field("thinking") {
        let thought = lenient::value_text(thought)?;
        if !thought.is_empty() {
            sink.push_event(ResponseEvent::Thinking(&thought));
        }
    }
    match field("text").or_else(|| Some(part).filter(|part| !part.is_object())) {
        Some(text) => {
            let text = lenient::value_text(text)?;
            citations.add_text(part_index, &text);
            if !text.is_empty() {
                sink.push_event(ResponseEvent::Text(&text));
            }
        }
        None if part.get("text").is_some() || part.get("thinking").is_some() => (),
        None if part.as_object().is_some_and(serde_json::Map::is_empty) => (),
        None => {
            let kind = part["type"].as_str().ok_or("a part of the content needs a text or a type")?;
            sink.push_event(ResponseEvent::NativeBlock { kind, json: &part.to_string() });
        }
    }
    Ok(())
}

fn emit_call_start(call: &Value, sink: &mut dyn EventSink) -> Result<(), &'static str> {
    let name = match &call["function"]["name"] {
        Value::Object(_) | Value::Array(_) => return Err("the name of a tool must be a string"),
        name => lenient::value_text(name)?,
    };
    sink.push_event(ResponseEvent::ToolCall { id: &as_id(&call["id"]), name: &name, signature: None });
    Ok(())
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
    citations: CohereCitationTracker,
}

impl StreamDecoder for CohereDecoder {
    fn decode(&mut self, data: &[u8], sink: &mut dyn EventSink) {
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            return event::report_unreadable_event(data, sink);
        };
        let message = &event["delta"]["message"];
        match as_text(&event["type"]) {
            "message-start" => sink.push_event(ResponseEvent::Start { id: &as_id(&event["id"]), model: "" }),
            "content-start" | "content-delta" => {
                let part_index = event["index"].as_u64().unwrap_or_default();
                if let Err(reason) = emit_content(part_index, &message["content"], &mut self.citations, sink) {
                    return event::report_unreadable_content(reason, sink);
                }
                if event["logprobs"].is_object() {
                    emit_extra_data("logprobs", &json!([event["logprobs"]]), FieldScope::Choice, sink);
                }
            }
            "citation-start" => self.citations.emit_citations(&message["citations"], sink),
            "tool-plan-delta" => match lenient::value_text(&message["tool_plan"]) {
                Ok(plan) => sink.push_event(ResponseEvent::Thinking(&plan)),
                Err(reason) => event::report_unreadable_content(reason, sink),
            },
            "tool-call-start" => {
                if let Err(reason) = emit_call_start(&message["tool_calls"], sink) {
                    return event::report_unreadable_content(reason, sink);
                }
                self.calls_with_arguments.push(false);
                self.emit_arguments(&as_embedded_json(&message["tool_calls"]["function"]["arguments"]), sink);
            }
            "tool-call-delta" => {
                self.emit_arguments(&as_embedded_json(&message["tool_calls"]["function"]["arguments"]), sink);
            }
            "tool-call-end" if self.calls_with_arguments.last() == Some(&false) => self.emit_arguments("{}", sink),
            "message-end" if event["delta"]["error"].is_string() => {
                sink.push_event(ResponseEvent::Failed {
                    kind: None,
                    message: as_text(&event["delta"]["error"]),
                    code: None,
                });
            }
            "message-end" => emit_end(&event["delta"], sink),
            _ if !event["type"].is_string() => event::report_unreadable_event(data, sink),
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
