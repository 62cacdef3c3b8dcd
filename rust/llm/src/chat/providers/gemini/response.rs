//! Decodes Gemini responses. A stream is a sequence of complete responses, each with the next part of the text.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{grounding::GroundingTracker, logprobs, request::NATIVE_PART_KINDS};
use crate::{
    api_format::format::ApiFormat,
    chat::{
        event::{self, EventSink, ResponseEvent},
        field_scope::FieldScope,
        finish_reason,
        providers::anthropic_messages::compact_json,
    },
    error_details::{ErrorDetails, parse_error},
    errors::MalformedResponse,
    json::lenient,
    provider_format::StreamDecoder,
    usage::UsageCounts,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GenerateContentResponse<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::list")]
    candidates: Vec<Candidate<'a>>,
    #[serde(default, borrow)]
    usage_metadata: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    model_version: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    response_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    prompt_feedback: Option<PromptFeedback<'a>>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate<'a> {
    #[serde(default, borrow)]
    content: Option<Content<'a>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    finish_reason: Option<Cow<'a, str>>,
    /// Describes what went wrong, for a finish reason that means a failure.
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    finish_message: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    grounding_metadata: Option<&'a RawValue>,
    #[serde(default, borrow)]
    url_context_metadata: Option<&'a RawValue>,
    #[serde(default, borrow)]
    citation_metadata: Option<&'a RawValue>,
    #[serde(default, borrow)]
    safety_ratings: Option<&'a RawValue>,
    #[serde(default, borrow)]
    logprobs_result: Option<&'a RawValue>,
}

impl<'a> Candidate<'a> {
    /// Returns the metadata of the candidate as JSON, with Gemini's field names.
    fn metadata_fields(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        let all = [
            ("groundingMetadata", self.grounding_metadata),
            ("urlContextMetadata", self.url_context_metadata),
            ("citationMetadata", self.citation_metadata),
            ("safetyRatings", self.safety_ratings),
        ];
        all.into_iter().filter_map(|(name, json)| Some((name, json?.get())))
    }
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::list")]
    parts: Vec<GeminiPart<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiPart<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::content")]
    text: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "lenient::flag")]
    thought: bool,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    thought_signature: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    function_call: Option<FunctionCall<'a>>,
    #[serde(default, borrow)]
    inline_data: Option<Blob<'a>>,
    #[serde(default, borrow)]
    executable_code: Option<&'a RawValue>,
    #[serde(default, borrow)]
    code_execution_result: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Blob<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    mime_type: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    data: Cow<'a, str>,
}

#[derive(Deserialize)]
struct FunctionCall<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "lenient::name_or_empty")]
    name: Cow<'a, str>,
    #[serde(default, borrow)]
    args: Option<&'a RawValue>,
}

/// Reason for which Gemini blocked the prompt.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PromptFeedback<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    block_reason: Option<Cow<'a, str>>,
}

pub fn decode_response(response: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
    let response: GenerateContentResponse<'_> = serde_json::from_slice(response)?;
    if response.candidates.is_empty() && response.prompt_feedback.is_none() {
        return Err(MalformedResponse("it has no candidates".into()));
    }
    let mut decoder = GeminiDecoder::default();
    decoder.process_chunk(&response, sink);
    decoder.finish_reason.get_or_insert_default();
    decoder.finish_stream(sink);
    Ok(())
}

/// Decodes streamed content.
#[derive(Default)]
pub struct GeminiDecoder {
    is_started: bool,
    call_count: usize,
    response_id: String,
    usage_counts: UsageCounts,
    finish_reason: Option<String>,
    finish_message: Option<String>,
    grounding: GroundingTracker,
}

impl StreamDecoder for GeminiDecoder {
    fn decode(&mut self, data: &[u8], sink: &mut dyn EventSink) {
        let Ok(response) = serde_json::from_slice::<GenerateContentResponse<'_>>(data) else {
            self.finish_reason = None;
            return event::report_unreadable_event(data, sink);
        };
        if response.error.is_some() {
            self.finish_reason = None;
            let ErrorDetails { message, kind, code, .. } = parse_error(data);
            let message = message.as_deref().unwrap_or("the provider failed");
            return sink.push_event(ResponseEvent::Failed { kind: kind.as_deref(), message, code: code.as_deref() });
        }
        self.process_chunk(&response, sink);
    }

    /// Gemini sends no end event; the response ends with the stream. Without a finish reason the stream was cut off, so
    /// no end is emitted.
    fn finish_stream(&mut self, sink: &mut dyn EventSink) {
        let Some(reason) = self.finish_reason.take() else { return };
        if finish_reason::is_failure(&reason, self.call_count > 0) {
            let message = self.finish_message.as_deref().unwrap_or("the model's response is malformed");
            return sink.push_event(ResponseEvent::Failed { kind: None, message, code: Some(&reason) });
        }
        if let Some(usage) = self.usage_counts.to_usage(ApiFormat::Gemini) {
            sink.push_event(ResponseEvent::Usage(usage));
        }
        // Gemini ends a function call with the same finish reason as text.
        let is_call = self.call_count > 0 && !matches!(finish_reason::to_openai(&reason), "length" | "content_filter");
        sink.push_event(ResponseEvent::Finish {
            reason: if is_call { "tool_calls" } else { &reason },
            stop_sequence: None,
        });
        sink.push_event(ResponseEvent::End);
    }
}

impl GeminiDecoder {
    fn process_chunk(&mut self, response: &GenerateContentResponse<'_>, sink: &mut dyn EventSink) {
        if !std::mem::replace(&mut self.is_started, true) {
            let id = response.response_id.as_deref().unwrap_or_default();
            id.clone_into(&mut self.response_id);
            let model = response.model_version.as_deref().unwrap_or_default();
            self.usage_counts.set_model(model.as_bytes());
            sink.push_event(ResponseEvent::Start { id, model });
        }
        for metadata in response.candidates.iter().filter_map(|candidate| candidate.grounding_metadata) {
            self.usage_counts.read_grounding(metadata.get().as_bytes());
        }
        if let Some(candidate) = response.candidates.first() {
            self.grounding.start_event();
            let parts = candidate.content.iter().flat_map(|content| &content.parts);
            let mut seal = None;
            for part in parts {
                if let Some(seal) = seal {
                    sink.push_event(ResponseEvent::TextSignature(seal));
                }
                self.process_part(part, sink);
                // The signature of a function call is emitted with the call.
                seal = part.thought_signature.as_deref().filter(|_| part.function_call.is_none());
            }
            for (name, json) in candidate.metadata_fields() {
                if !self.grounding.emit_citations(name, json, sink) {
                    sink.push_event(ResponseEvent::ExtraField { scope: FieldScope::Choice, name, json });
                }
            }
            // The signature ends the text block, so the citations of the text are emitted first.
            if let Some(seal) = seal {
                sink.push_event(ResponseEvent::TextSignature(seal));
            }
            if let Some(json) = candidate.logprobs_result.and_then(|json| logprobs::convert_logprobs(json.get())) {
                sink.push_event(ResponseEvent::ExtraField { scope: FieldScope::Choice, name: "logprobs", json: &json });
            }
            if let Some(reason) = &candidate.finish_reason {
                self.finish_reason = Some(reason.clone().into_owned());
                self.finish_message = candidate.finish_message.as_deref().map(ToOwned::to_owned);
            }
        }
        if let Some(reason) = response.prompt_feedback.as_ref().and_then(|feedback| feedback.block_reason.as_deref()) {
            // Every block reason means that the prompt was refused. Unknown reasons are reported as `SAFETY`.
            let is_known = finish_reason::to_openai(reason) == "content_filter";
            self.finish_reason = Some(if is_known { reason } else { "SAFETY" }.to_owned());
        }
        // Each chunk reports the totals so far.
        if let Some(usage) = response.usage_metadata {
            self.usage_counts.read_usage(usage.get().as_bytes());
        }
    }

    fn process_part(&mut self, part: &GeminiPart<'_>, sink: &mut dyn EventSink) {
        if let Some(call) = &part.function_call {
            self.emit_function_call(call, part.thought_signature.as_deref(), sink);
        }
        self.grounding.add_part(part.text.as_deref().filter(|_| !part.thought).unwrap_or_default());
        match part.text.as_deref() {
            None | Some("") => (),
            Some(text) if part.thought => sink.push_event(ResponseEvent::Thinking(text)),
            Some(text) => sink.push_event(ResponseEvent::Text(text)),
        }
        if let Some(Blob { mime_type, data }) = &part.inline_data {
            sink.push_event(ResponseEvent::Image { mime: mime_type, data });
        }
        for (kind, json) in NATIVE_PART_KINDS.into_iter().zip([part.executable_code, part.code_execution_result]) {
            if let Some(json) = json {
                sink.push_event(ResponseEvent::NativeBlock {
                    kind,
                    json: &format!("{{\"type\":\"{kind}\",\"{kind}\":{}}}", json.get()),
                });
            }
        }
    }

    fn emit_function_call(&mut self, call: &FunctionCall<'_>, signature: Option<&str>, sink: &mut dyn EventSink) {
        // Gemini usually sends no call ids. A generated id must be the same each time the response is decoded.
        let generated_id = format!("call_{}_{}", self.response_id, self.call_count);
        let id = call.id.as_deref().filter(|id| !id.is_empty()).unwrap_or(&generated_id);
        sink.push_event(ResponseEvent::ToolCall { id, name: &call.name, signature });
        sink.push_event(ResponseEvent::ToolCallArguments {
            call_index: self.call_count,
            json: &compact_json(&call.args.and_then(lenient::embedded_json).unwrap_or(Cow::Borrowed("{}"))),
        });
        self.call_count += 1;
    }
}
