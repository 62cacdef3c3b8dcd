//! Decodes responses of `OpenAI`-compatible providers, complete and streamed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{ReasoningReplay, citations::OpenAiCitationTracker};
use crate::{
    api_format::format::ApiFormat,
    chat::{
        call_ids,
        event::{self, EventSink, ResponseEvent},
        field_scope::FieldScope,
        providers::openai_chat::reasoning_details::ReasoningDetails,
        request::Source,
    },
    citations::TextIndex,
    error_details::parse_stream_error,
    errors::MalformedResponse,
    json::lenient,
    provider_format::StreamDecoder,
    usage::UsageCounts,
};

#[derive(Deserialize)]
struct ChatCompletion<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    model: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "lenient::list")]
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
    #[serde(default, deserialize_with = "lenient::index_or_zero")]
    index: u64,
    #[serde(default, borrow)]
    delta: Option<ChoiceMessage<'a>>,
    /// Set in a complete response. Providers that send it next to `delta` in a stream repeat the same content.
    #[serde(default, borrow)]
    message: Option<ChoiceMessage<'a>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    logprobs: Option<&'a RawValue>,
    /// Set by hosts of many vendors if the vendor failed.
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct ChoiceMessage<'a> {
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "lenient::content")]
    refusal: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(default, borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(default, borrow)]
    reasoning_details: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "lenient::list")]
    tool_calls: Vec<OpenAiToolCall<'a>>,
    #[serde(default, borrow)]
    annotations: Option<&'a RawValue>,
    #[serde(default, borrow)]
    audio: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "lenient::list")]
    images: Vec<Value>,
    #[serde(default)]
    extra_content: Option<Value>,
}

#[derive(Deserialize)]
struct OpenAiToolCall<'a> {
    #[serde(default, deserialize_with = "lenient::index")]
    index: Option<u64>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    function: Option<Function<'a>>,
    #[serde(default)]
    extra_content: Option<Value>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::name")]
    name: Option<Cow<'a, str>>,
    /// JSON in a string. Some servers send the object itself.
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
}

impl<'a> ChatCompletion<'a> {
    /// Returns the error that the response or its first choice reports instead of content.
    fn failure(&self) -> Option<&'a RawValue> {
        let of_choice = self.choices.first().and_then(|choice| choice.error);
        [self.error, of_choice].into_iter().flatten().find(|error| is_nonempty(error) && error.get() != "false")
    }
}

impl OpenAiToolCall<'_> {
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
    if let Some(error) = response.failure() {
        let message = parse_stream_error(error.get().as_bytes()).message;
        return Err(MalformedResponse(message.unwrap_or_else(|| error.get().to_owned())));
    }
    if response.choices.iter().all(|choice| choice.message.is_none() && choice.delta.is_none()) {
        return Err(MalformedResponse("its choices have no message".into()));
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
    citations: OpenAiCitationTracker,
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
        if self.is_ended {
            return;
        }
        let Ok(response) = serde_json::from_slice::<ChatCompletion<'_>>(data) else {
            // After the finish reason, only usage is missing.
            if !self.has_finish_reason {
                event::report_unreadable_event(data, sink);
            }
            return;
        };
        match response.failure() {
            Some(error) => self.emit_failure(error.get().as_bytes(), sink),
            None => self.process_chunk(&response, sink),
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
            // Perplexity sends both. In a complete response, `delta` is empty; in a stream, `message` repeats all text.
            let (first, second) = (choice.delta.as_ref(), choice.message.as_ref());
            let message = if self.is_complete_response { second.or(first) } else { first.or(second) };
            if let Some(message) = message {
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
        let thought = match message.reasoning_content.or(message.reasoning).map(lenient::content_text).transpose() {
            Ok(thought) => thought.flatten().filter(|thought| !thought.is_empty()),
            Err(reason) => return event::report_unreadable_content(reason, sink),
        };
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
        for call in &message.tool_calls {
            self.process_tool_call(call, sink);
        }
        if let Some(json) = message.annotations.filter(|json| is_nonempty(json)) {
            self.citations.emit_annotations(json.get(), sink);
        }
        if let Some(json) = message.audio.filter(|json| is_nonempty(json)) {
            sink.push_event(ResponseEvent::ExtraField { scope: FieldScope::Message, name: "audio", json: json.get() });
        }
        for image in &message.images {
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
        let is_new = |call: &OpenAiToolCall<'_>| self.find_tool_call(call).is_none();
        let is_over = message.content.is_some_and(is_nonempty) || message.tool_calls.iter().any(is_new);
        if let Some(details) = self.reasoning_details.as_mut().filter(|_| is_over) {
            details.emit_signature(sink);
        }
    }

    fn process_tool_call(&mut self, call: &OpenAiToolCall<'_>, sink: &mut dyn EventSink) {
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
        let arguments = call.function.as_ref().and_then(|function| function.arguments);
        if let Some(json) = arguments.and_then(lenient::embedded_json).filter(|json| !json.is_empty()) {
            sink.push_event(ResponseEvent::ToolCallArguments { call_index: at, json: &json });
        }
    }

    /// Returns the started call that this delta continues. Some providers give every call the index 0 and distinguish
    /// calls by id. Providers without ids begin each call with its name. In a complete response every entry is a new
    /// call.
    fn find_tool_call(&self, call: &OpenAiToolCall<'_>) -> Option<usize> {
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
        let error_details = parse_stream_error(error);
        let message = error_details.message.unwrap_or_else(|| String::from_utf8_lossy(error).into_owned());
        sink.push_event(ResponseEvent::Failed {
            kind: error_details.kind.as_deref(),
            message: &message,
            code: error_details.code.as_deref(),
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

/// Emits the content of a message: a string, or parts that may contain reasoning, a refusal or an image.
fn emit_content(content: &RawValue, text_index: &mut TextIndex, sink: &mut dyn EventSink) {
    let emitted = match content.get().as_bytes().first() {
        Some(b'{' | b'[') => emit_parts(content.get(), text_index, sink),
        _ => lenient::content_text(content).map(|text| emit_text(&text.unwrap_or_default(), text_index, sink)),
    };
    if let Err(reason) = emitted {
        event::report_unreadable_content(reason, sink);
    }
}

fn emit_text(text: &str, text_index: &mut TextIndex, sink: &mut dyn EventSink) {
    if !text.is_empty() {
        text_index.push_str(text);
        sink.push_event(ResponseEvent::Text(text));
    }
}

fn emit_parts(json: &str, text_index: &mut TextIndex, sink: &mut dyn EventSink) -> Result<(), &'static str> {
    let parts: Value = serde_json::from_str(json).map_err(|_| "the content is not valid JSON")?;
    let parts = match parts {
        Value::Array(parts) => parts,
        part => vec![part],
    };
    for part in parts {
        let Value::Object(fields) = &part else {
            emit_text(&lenient::value_text(&part)?, text_index, sink);
            continue;
        };
        let text_field = ["thinking", "refusal", "text"].into_iter().find(|key| fields.contains_key(*key));
        match text_field.map(|key| (key, &part[key])) {
            Some(("thinking", thought)) => {
                let thought = lenient::value_text(thought)?;
                if !thought.is_empty() {
                    sink.push_event(ResponseEvent::Thinking(&thought));
                }
            }
            Some(("refusal", refusal)) => sink.push_event(ResponseEvent::Refusal(&lenient::value_text(refusal)?)),
            Some((_, text)) => emit_text(&lenient::value_text(text)?, text_index, sink),
            None if fields.contains_key("image_url") => emit_image(&part, sink),
            None if fields.is_empty() => (),
            // Content without text, such as Mistral's references to documents.
            None => {
                let kind = part["type"].as_str().ok_or("a part of the content needs a text or a type")?;
                sink.push_event(ResponseEvent::NativeBlock { kind, json: &part.to_string() });
            }
        }
    }
    Ok(())
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
}
