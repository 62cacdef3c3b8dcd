//! Decodes responses of `OpenAI`-compatible providers, complete and streamed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{ReasoningReplay, citations::CitationTracker};
use crate::chat::providers::openai_chat::reasoning_details::ReasoningDetails;
use crate::{
    api_format::format::ApiFormat,
    chat::{
        call_ids,
        event::{EventSink, FieldScope, ResponseEvent},
        providers::{ErrorDetails, MalformedResponse, StreamDecoder},
        request::Source,
    },
    citations::TextIndex,
    usage::UsageCounts,
};

#[derive(Deserialize)]
struct ChatCompletion<'a> {
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    choices: Vec<Choice<'a>>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow)]
    service_tier: Option<&'a RawValue>,
    #[serde(default, borrow)]
    x_groq: Option<GroqExtension<'a>>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
    #[serde(default, borrow)]
    citations: Option<&'a RawValue>,
    #[serde(default, borrow)]
    search_results: Option<&'a RawValue>,
}

/// Groq's extension field, which holds the usage of a stream.
#[derive(Deserialize)]
struct GroqExtension<'a> {
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    #[serde(default, borrow)]
    delta: Option<ChoiceMessage<'a>>,
    /// Set in a complete response. Providers that send it next to `delta` in a stream repeat the same content.
    #[serde(default, borrow)]
    message: Option<ChoiceMessage<'a>>,
    #[serde(default, borrow)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    logprobs: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct ChoiceMessage<'a> {
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default, borrow)]
    refusal: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(default, borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(default, borrow)]
    reasoning_details: Option<&'a RawValue>,
    #[serde(default, borrow)]
    tool_calls: Option<Vec<ToolCall<'a>>>,
    #[serde(default, borrow)]
    annotations: Option<&'a RawValue>,
    #[serde(default, borrow)]
    audio: Option<&'a RawValue>,
    #[serde(default)]
    images: Option<Vec<Value>>,
    #[serde(default)]
    extra_content: Option<Value>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    function: Option<Function<'a>>,
    #[serde(default)]
    extra_content: Option<Value>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(default, borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    arguments: Option<Cow<'a, str>>,
}

impl ToolCall<'_> {
    /// Returns the id and the function name, empty if missing.
    fn id_and_name(&self) -> (&str, &str) {
        let name = self.function.as_ref().and_then(|function| function.name.as_deref());
        (self.id.as_deref().unwrap_or_default(), name.unwrap_or_default())
    }
}

pub fn decode_response(
    response: &[u8],
    thoughts: ReasoningReplay,
    sink: &mut dyn EventSink,
) -> Result<(), MalformedResponse> {
    let response: ChatCompletion<'_> = serde_json::from_slice(response)?;
    if response.choices.is_empty() {
        return Err(MalformedResponse("it has no choices".into()));
    }
    let mut decoder = ChatDecoder { is_complete_response: true, ..ChatDecoder::new(thoughts) };
    decoder.process_chunk(&response, sink);
    decoder.finish_stream(sink);
    Ok(())
}

/// Decodes a streamed chat completion. A complete response is decoded as a single chunk.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub struct ChatDecoder {
    /// True if one chunk holds the complete response.
    is_complete_response: bool,
    is_started: bool,
    has_finish_reason: bool,
    is_ended: bool,
    response_id: String,
    usage_counts: UsageCounts,
    tool_calls: Vec<StartedToolCall>,
    citations: CitationTracker,
    /// Structured reasoning that the client must send back; `None` if the provider sends reasoning as plain text only.
    reasoning_details: Option<ReasoningDetails>,
}

/// Tool call that has started, with the fields by which the provider identifies it.
struct StartedToolCall {
    index: Option<u64>,
    id: String,
    name: String,
}

impl StreamDecoder for ChatDecoder {
    fn decode(&mut self, data: &[u8], sink: &mut dyn EventSink) {
        if data.trim_ascii() == b"[DONE]" {
            return self.emit_end(sink);
        }
        // Ignores data that is not a chunk.
        let Ok(response) = serde_json::from_slice::<ChatCompletion<'_>>(data) else { return };
        match response.error {
            Some(error) if error.get() != "null" => self.emit_failure(error.get().as_bytes(), sink),
            _ => self.process_chunk(&response, sink),
        }
    }

    /// Some providers close the stream without `OpenAI`'s `[DONE]` event.
    fn finish_stream(&mut self, sink: &mut dyn EventSink) {
        if self.has_finish_reason {
            self.emit_end(sink);
        }
    }
}

impl ChatDecoder {
    pub fn new(thoughts: ReasoningReplay) -> Self {
        Self {
            reasoning_details: (thoughts == ReasoningReplay::Details).then(ReasoningDetails::default),
            ..Self::default()
        }
    }

    fn process_chunk(&mut self, response: &ChatCompletion<'_>, sink: &mut dyn EventSink) {
        let id = response.id.as_deref().unwrap_or_default();
        let says_nothing = id.is_empty() && response.choices.is_empty();
        if !self.is_started && !says_nothing {
            self.is_started = true;
            id.clone_into(&mut self.response_id);
            sink.push_event(ResponseEvent::Start { id, model: response.model.as_deref().unwrap_or_default() });
        }
        if let Some(choice) = response.choices.iter().find(|choice| choice.index == 0) {
            if let Some(message) = choice.delta.as_ref().or(choice.message.as_ref()) {
                self.process_message(message, sink);
            }
            if let Some(json) = choice.logprobs.filter(|json| is_nonempty(json)) {
                sink.push_event(ResponseEvent::ExtraField {
                    scope: FieldScope::Choice,
                    name: "logprobs",
                    json: json.get(),
                });
            }
            if let Some(reason) = &choice.finish_reason {
                self.has_finish_reason = true;
                sink.push_event(ResponseEvent::Finish { reason, stop_sequence: None });
            }
        }
        let hints = response.x_groq.as_ref().and_then(|groq| groq.usage);
        if let Some(usage) = response.usage.or(hints) {
            self.usage_counts.read_usage(usage.get().as_bytes());
        }
        if let Some(tier) = response.service_tier {
            self.usage_counts.read_service_tier(b"service_tier", tier.get().as_bytes());
        }
        for (name, json) in [("citations", response.citations), ("search_results", response.search_results)] {
            let Some(json) = json.filter(|json| is_nonempty(json)) else { continue };
            self.citations.store_field(name, json);
        }
    }

    fn process_message(&mut self, message: &ChoiceMessage<'_>, sink: &mut dyn EventSink) {
        let more = self.reasoning_details.as_mut().zip(message.reasoning_details);
        let details_text = more
            .map(|(details, more)| details.append(more, self.is_complete_response))
            .filter(|added| !added.is_empty());
        let thought = message.reasoning_content.or(message.reasoning).and_then(extract_text);
        if let Some(thought) = thought.or(details_text.map(Cow::Owned)) {
            sink.push_event(ResponseEvent::Thinking(&thought));
        }
        self.flush_reasoning_details(message, sink);
        if let Some(content) = message.content {
            emit_content(content, &mut self.citations.text_index, sink);
        }
        if let Some(refusal) = message.refusal.as_deref().filter(|text| !text.is_empty()) {
            sink.push_event(ResponseEvent::Refusal(refusal));
        }
        for call in message.tool_calls.iter().flatten() {
            self.process_tool_call(call, sink);
        }
        if let Some(json) = message.annotations.filter(|json| is_nonempty(json)) {
            self.citations.emit_annotations(json.get(), sink);
        }
        if let Some(json) = message.audio.filter(|json| is_nonempty(json)) {
            sink.push_event(ResponseEvent::ExtraField { scope: FieldScope::Message, name: "audio", json: json.get() });
        }
        for image in message.images.iter().flatten() {
            emit_image(image, sink);
        }
        let seal =
            message.extra_content.as_ref().and_then(|extra| extra.pointer("/google/thought_signature")?.as_str());
        if let Some(seal) = seal {
            sink.push_event(ResponseEvent::TextSignature(seal));
        }
    }

    /// Emits the reasoning details as soon as other content begins, because that ends the reasoning.
    fn flush_reasoning_details(&mut self, message: &ChoiceMessage<'_>, sink: &mut dyn EventSink) {
        if self.reasoning_details.is_none() {
            return;
        }
        // More arguments for a started call are not new content.
        let is_new = |call: &ToolCall<'_>| self.find_tool_call(call).is_none();
        let is_over = message.content.is_some_and(is_nonempty) || message.tool_calls.iter().flatten().any(is_new);
        if let Some(details) = self.reasoning_details.as_mut().filter(|_| is_over) {
            details.emit_signature(sink);
        }
    }

    fn process_tool_call(&mut self, call: &ToolCall<'_>, sink: &mut dyn EventSink) {
        let at = self.find_tool_call(call).unwrap_or_else(|| {
            let (id, name) = call.id_and_name();
            let signature = call.extra_content.as_ref();
            let signature = signature.and_then(|extra| extra.pointer("/google/thought_signature")?.as_str());
            // Generates an id if the provider sends none. Decoding the same response again must produce the same id.
            let raw_id = format!("call_{}_{}", self.response_id, self.tool_calls.len());
            // The client may send the id back in a request that is not translated, so it must fit `OpenAI`'s limit.
            let generated_id = call_ids::OPENAI.normalise_id(&raw_id);
            sink.push_event(ResponseEvent::ToolCall {
                id: if id.is_empty() { &generated_id } else { id },
                name,
                signature,
            });
            self.tool_calls.push(StartedToolCall { index: call.index, id: id.to_owned(), name: name.to_owned() });
            self.tool_calls.len() - 1
        });
        let arguments = call.function.as_ref().and_then(|function| function.arguments.as_deref());
        if let Some(json) = arguments.filter(|json| !json.is_empty()) {
            sink.push_event(ResponseEvent::ToolCallArguments { call_index: at, json });
        }
    }

    /// Returns the started call that this delta continues. Some providers give every call the index 0 and distinguish
    /// calls by id. Providers without ids begin each call with its name. In a complete response every entry is a new
    /// call.
    fn find_tool_call(&self, call: &ToolCall<'_>) -> Option<usize> {
        let (index, (id, name)) = (call.index, call.id_and_name());
        let is_it = |started: &StartedToolCall| {
            let is_more = match (id, name) {
                ("", "") => true,
                ("", name) => index.is_some() && started.name == name,
                (id, _) => started.id == id,
            };
            !self.is_complete_response && is_more && (index.is_none() || started.index == index)
        };
        self.tool_calls.iter().rposition(is_it)
    }

    fn emit_end(&mut self, sink: &mut dyn EventSink) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        if let Some(details) = &mut self.reasoning_details {
            details.emit_signature(sink);
        }
        self.citations.emit_citations(sink);
        if let Some(usage) = self.usage_counts.to_usage(ApiFormat::OpenAi) {
            sink.push_event(ResponseEvent::Usage(usage));
        }
        sink.push_event(ResponseEvent::End);
    }

    fn emit_failure(&mut self, error: &[u8], sink: &mut dyn EventSink) {
        self.is_ended = true;
        let found = parse_stream_error(error);
        let message = found.message.unwrap_or_else(|| String::from_utf8_lossy(error).into_owned());
        sink.push_event(ResponseEvent::Failed {
            kind: found.kind.as_deref(),
            message: &message,
            code: found.code.as_deref(),
        });
    }
}

fn is_nonempty(json: &RawValue) -> bool {
    !matches!(json.get(), "null" | "[]" | "{}" | "\"\"")
}

/// Emits a generated image, either its bytes or its URL.
fn emit_image(image: &Value, sink: &mut dyn EventSink) {
    let url = image["image_url"]["url"].as_str().or_else(|| image["url"].as_str()).unwrap_or_default();
    if let Source::Data { mime, data } = Source::from_url(url.to_owned(), None) {
        sink.push_event(ResponseEvent::Image { mime: &mime, data: &data });
    } else {
        let json = json!([image]).to_string();
        sink.push_event(ResponseEvent::ExtraField { scope: FieldScope::Message, name: "images", json: &json });
    }
}

/// Emits the content of a message: a string, or an array of parts that may contain reasoning.
fn emit_content(content: &RawValue, text_index: &mut TextIndex, sink: &mut dyn EventSink) {
    if !content.get().contains("\"thinking\"") || content.get().starts_with('"') {
        if let Some(chunk) = extract_text(content) {
            text_index.push_str(&chunk);
            sink.push_event(ResponseEvent::Text(&chunk));
        }
        return;
    }
    for part in serde_json::from_str::<Vec<Value>>(content.get()).unwrap_or_default() {
        let thought: String = match &part["thinking"] {
            Value::String(text) => text.clone(),
            Value::Array(inner) => inner.iter().filter_map(|one| one["text"].as_str()).collect(),
            _ => String::new(),
        };
        if !thought.is_empty() {
            sink.push_event(ResponseEvent::Thinking(&thought));
        }
        if let Some(chunk) = part["text"].as_str().filter(|text| !text.is_empty()) {
            text_index.push_str(chunk);
            sink.push_event(ResponseEvent::Text(chunk));
        }
    }
}

/// Returns the text of a string or of an array of parts; `None` if it is empty.
fn extract_text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let json = raw.get();
    if json.starts_with('"') {
        // Borrows the string if it contains no escape.
        let inner = json.get(1..json.len() - 1).filter(|inner| !inner.contains('\\'));
        let text = inner.map(Cow::Borrowed).or_else(|| serde_json::from_str(json).ok().map(Cow::Owned))?;
        return Some(text).filter(|text| !text.is_empty());
    }
    let parts: Vec<Value> = serde_json::from_str(json).ok()?;
    let text: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    (!text.is_empty()).then_some(Cow::Owned(text))
}

/// Parses the error body of any `OpenAI`-compatible provider; these differ in where they put the fields.
pub fn parse_error(response: &[u8]) -> ErrorDetails {
    // Some providers wrap the error in an array.
    let body = match serde_json::from_slice(response) {
        Ok(Value::Array(mut items)) if !items.is_empty() => items.swap_remove(0),
        Ok(Value::String(message)) => return ErrorDetails { message: Some(message), ..ErrorDetails::default() },
        Ok(body) => body,
        Err(_) => return ErrorDetails::default(),
    };
    match &body["error"] {
        // The other fields are next to the message, not below it.
        Value::String(message) => ErrorDetails { message: Some(message.clone()), ..parse_error_fields(&body) },
        Value::Object(_) => parse_error_fields(&body["error"]),
        _ => parse_error_fields(&body),
    }
}

fn parse_stream_error(error: &[u8]) -> ErrorDetails {
    match serde_json::from_slice::<Value>(error) {
        Ok(Value::String(message)) => ErrorDetails { message: Some(message), ..ErrorDetails::default() },
        Ok(error) => parse_error_fields(&error),
        Err(_) => ErrorDetails::default(),
    }
}

fn parse_error_fields(error: &Value) -> ErrorDetails {
    let fault = &error["fault"];
    let detail = match &error["detail"] {
        Value::Array(items) => items.first().map(describe_validation_error),
        detail => string_or_number(detail),
    };
    ErrorDetails {
        message: string_or_number(&error["message"])
            .or(detail)
            .or_else(|| string_or_number(&fault["faultstring"]))
            .or_else(|| string_or_number(&error["err_msg"]))
            .or_else(|| join_errors(&error["errors"])),
        kind: string_or_number(&error["type"])
            // A numeric status is not an error type.
            .or_else(|| error["status"].as_str().map(ToOwned::to_owned))
            .or_else(|| string_or_number(&error["detail"][0]["type"]))
            .or_else(|| string_or_number(&error["name"])),
        // Stability sends the error type as `name`, next to the `id` of this occurrence of the error.
        param: string_or_number(&error["param"]).or_else(|| {
            let is_stabilitys = error["errors"].is_array() && error["name"].is_string();
            string_or_number(&error["id"]).filter(|_| is_stabilitys)
        }),
        code: string_or_number(&error["code"])
            .or_else(|| string_or_number(&fault["detail"]["errorcode"]))
            .or_else(|| string_or_number(&error["err_code"])),
    }
}

/// Joins a list of errors, which are strings or objects with a code and a message.
fn join_errors(errors: &Value) -> Option<String> {
    let one = |error: &Value| match (error, string_or_number(&error["code"]), string_or_number(&error["message"])) {
        (Value::String(text), ..) => Some(text.clone()),
        (_, Some(code), Some(message)) => Some(format!("Error {code}:{message}")),
        (_, _, message) => message,
    };
    let all: Vec<_> = errors.as_array()?.iter().filter_map(one).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn string_or_number(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Formats a validation error with its location in the request.
fn describe_validation_error(item: &Value) -> String {
    let location: Vec<_> = item["loc"].as_array().into_iter().flatten().filter_map(string_or_number).collect();
    let message = item["msg"].as_str().unwrap_or_default();
    if location.is_empty() { message.to_owned() } else { format!("{}: {message}", location.join(".")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct CallIdSink(Vec<String>);

    impl EventSink for CallIdSink {
        fn push_event(&mut self, event: ResponseEvent<'_>) {
            if let ResponseEvent::ToolCall { id, .. } = event {
                self.0.push(id.to_owned());
            }
        }
    }

    #[test]
    fn generated_call_ids_are_stable_and_within_the_length_limit() {
        let ids = |id: &str| {
            let calls = json!([{"function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g"}}]);
            let response = json!({"id": id, "choices": [{"message": {"tool_calls": calls}}]});
            let mut ids = CallIdSink::default();
            decode_response(response.to_string().as_bytes(), ReasoningReplay::Dropped, &mut ids).unwrap();
            ids.0
        };
        assert_eq!(ids("c-1"), ["call_c-1_0", "call_c-1_1"]);
        let long = ids("chatcmpl-9b0f6c5e-5d0e-4a5c-9e5b-0d7a3f1c2b4e");
        assert!(long.iter().all(|id| id.len() <= 40) && long[0] != long[1], "{long:?}");
        assert_eq!(long, ids("chatcmpl-9b0f6c5e-5d0e-4a5c-9e5b-0d7a3f1c2b4e"));
    }

    #[test]
    fn parses_errors_of_every_compatible_format() {
        for (body, message, kind, code) in [
            (json!({"error": {"message": "m", "type": "t", "code": "c"}}), "m", Some("t"), Some("c")),
            (json!({"object": "error", "message": "m", "type": "t", "code": 3051}), "m", Some("t"), Some("3051")),
            (json!({"error": {"code": 400, "message": "m", "status": "S"}}), "m", Some("S"), Some("400")),
            (json!([{"error": {"code": 400, "message": "m", "status": "S"}}]), "m", Some("S"), Some("400")),
            (json!({"error": "m"}), "m", None, None),
            (json!({"code": "c", "error": "m"}), "m", None, Some("c")),
            (json!("m"), "m", None, None),
            (json!({"message": "m"}), "m", None, None),
            (json!({"detail": "m"}), "m", None, None),
            (json!({"detail": [{"loc": ["body", 0], "msg": "m", "type": "t"}]}), "body.0: m", Some("t"), None),
            (json!({"success": false, "errors": [{"code": 7003, "message": "m"}]}), "Error 7003:m", None, None),
            (json!({"id": "e1", "name": "bad_request", "errors": ["a", "b"]}), "a; b", Some("bad_request"), None),
            (json!({"fault": {"faultstring": "m", "detail": {"errorcode": "c"}}}), "m", None, Some("c")),
        ] {
            let found = parse_error(body.to_string().as_bytes());
            assert_eq!(found.message.as_deref(), Some(message), "{body}");
            assert_eq!((found.kind.as_deref(), found.code.as_deref()), (kind, code), "{body}");
        }
        assert_eq!(parse_error(b"<html>"), ErrorDetails::default());
        assert_eq!(parse_error(b"{\"unknown\":1}").message, None);
    }
}
