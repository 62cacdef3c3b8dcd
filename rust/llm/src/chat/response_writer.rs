//! Response writers: take the events of a response and produce bytes in the client's format.

use std::sync::Arc;

use serde::de::IgnoredAny;

use super::{
    client_tools::{self, ClientTools},
    finish_reason,
    tool_call_signatures::ScopedSignatures,
    tool_names::{self, RenamedTool},
};
use crate::{
    chat::{
        event::{self, EventSink, ResponseEvent},
        generated_text::GeneratedText,
        response_context::ResponseContext,
    },
    reports::ResponseReport,
    usage::Usage,
};

pub trait ResponseWriter: EventSink + Send {
    /// Removes and returns the bytes that can be sent so far. A complete response is returned once, after its last
    /// event.
    fn take_output(&mut self) -> Vec<u8>;
}

/// Response writer that also records the usage that the provider reported and the signatures of tool calls. It corrects
/// what depends on the whole response: the finish reason, and the names and arguments of the client's own tools.
pub struct RecordingWriter {
    writer: Box<dyn ResponseWriter>,
    report: ResponseReport,
    tool_call_signatures: Option<ScopedSignatures>,
    renamed_tools: Arc<[RenamedTool]>,
    client_tools: Arc<ClientTools>,
    /// For each tool call, the arguments so far if it calls a custom tool.
    custom_calls: Vec<Option<String>>,
    /// For each tool call, the arguments so far. `None` if the client receives arguments as the provider wrote them.
    object_arguments: Option<Vec<String>>,
    failure: Option<String>,
    /// True after the first event with content or a finish reason.
    has_content: bool,
    /// Generated text, from which the usage is estimated if the provider reports none. The end of the response is then
    /// held back. `None` if the usage is known, or is not to be estimated.
    uncounted_text: Option<GeneratedText>,
    is_end_held: bool,
}

impl RecordingWriter {
    pub fn new(writer: Box<dyn ResponseWriter>, context: &ResponseContext) -> Self {
        Self {
            writer,
            report: context.report.clone(),
            tool_call_signatures: context.tool_call_signatures.clone(),
            renamed_tools: Arc::clone(&context.renamed_tools),
            client_tools: Arc::clone(&context.client_tools),
            custom_calls: Vec::new(),
            object_arguments: None,
            failure: None,
            has_content: false,
            uncounted_text: None,
            is_end_held: false,
        }
    }

    /// Holds back the end of a response without usage, until `release_end` adds an estimate.
    pub fn holding_end(mut self) -> Self {
        self.uncounted_text = Some(GeneratedText::default());
        self
    }

    /// Returns true if the response has ended without usage.
    pub fn is_end_held(&self) -> bool {
        self.is_end_held
    }

    /// Returns the remaining output. If the end was held back, ends the response with the usage that `estimate_usage`
    /// returns for its text.
    pub fn release_end(&mut self, estimate_usage: impl FnOnce(&GeneratedText) -> Usage) -> Vec<u8> {
        if let Some(text) = self.uncounted_text.take() {
            self.push_event(ResponseEvent::Usage(estimate_usage(&text)));
        }
        if std::mem::take(&mut self.is_end_held) {
            self.push_event(ResponseEvent::End);
        }
        self.take_output()
    }

    /// Makes a complete response without content and without a finish reason a failure.
    pub fn reject_empty_response(&mut self) {
        if !self.has_content && self.failure.is_none() {
            event::report_empty_response(self);
        }
    }

    /// Records generated text, in case that its tokens must be counted.
    fn record_text(&mut self, event: &ResponseEvent<'_>) {
        let Some(uncounted_text) = &mut self.uncounted_text else { return };
        if let ResponseEvent::Text(text)
        | ResponseEvent::Refusal(text)
        | ResponseEvent::Thinking(text)
        | ResponseEvent::ToolCallArguments { json: text, .. } = event
        {
            uncounted_text.push_text(text);
        }
    }

    /// If `are_objects` is true, arguments of tool calls that are not objects are a failure. The client would otherwise
    /// make the call without them.
    pub fn with_object_arguments(mut self, are_objects: bool) -> Self {
        self.object_arguments = are_objects.then(Vec::new);
        self
    }

    fn has_unreadable_arguments(&self) -> bool {
        let is_object = |json: &str| json.starts_with('{') && serde_json::from_str::<IgnoredAny>(json).is_ok();
        self.object_arguments.iter().flatten().map(|json| json.trim()).any(|json| !json.is_empty() && !is_object(json))
    }

    /// Returns the message of the failure that ended the response.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn has_calls(&self) -> bool {
        !self.custom_calls.is_empty()
    }

    /// Writes the complete inputs of the custom tool calls. An input is decoded from JSON arguments, which must be
    /// complete.
    fn flush_custom_calls(&mut self) {
        for (call_index, call) in self.custom_calls.iter_mut().enumerate() {
            if let Some(arguments) = call.take() {
                let input = client_tools::custom_input(&arguments);
                self.writer.push_event(ResponseEvent::ToolCallArguments { call_index, json: &input });
            }
        }
    }
}

/// Returns true if the event is content or a finish reason.
fn has_content(event: &ResponseEvent<'_>) -> bool {
    match event {
        ResponseEvent::Text(text)
        | ResponseEvent::Refusal(text)
        | ResponseEvent::Thinking(text)
        | ResponseEvent::Finish { reason: text, .. } => !text.is_empty(),
        ResponseEvent::Start { .. } | ResponseEvent::TextBlockStart | ResponseEvent::Usage(_) | ResponseEvent::End => {
            false
        }
        _ => true,
    }
}

impl EventSink for RecordingWriter {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        if self.failure.is_some() {
            // A failed generation is billed too.
            if let ResponseEvent::Usage(usage) = event {
                self.report.set_usage(usage);
            }
            return;
        }
        self.has_content |= has_content(&event);
        self.record_text(&event);
        match event {
            // A provider that fails early may send an empty response instead of an error.
            ResponseEvent::End if !self.has_content => {
                return event::report_empty_response(self);
            }
            ResponseEvent::Usage(usage) => {
                self.report.set_usage(usage);
                self.uncounted_text = None;
            }
            ResponseEvent::ToolCall { id, name, signature } => {
                if let (Some(signature), Some(signatures)) = (signature, &self.tool_call_signatures) {
                    signatures.insert(id, signature);
                }
                let name = tool_names::original_name(&self.renamed_tools, name);
                self.custom_calls.push(self.client_tools.is_custom(name).then(String::new));
                if let Some(arguments) = &mut self.object_arguments {
                    arguments.push(String::new());
                }
                return self.writer.push_event(ResponseEvent::ToolCall { id, name, signature });
            }
            ResponseEvent::ToolCallArguments { call_index, json } => {
                if let Some(Some(arguments)) = self.custom_calls.get_mut(call_index) {
                    return arguments.push_str(json);
                }
                let arguments = self.object_arguments.as_mut().and_then(|calls| calls.get_mut(call_index));
                if let Some(arguments) = arguments {
                    arguments.push_str(json);
                }
            }
            ResponseEvent::Finish { reason, .. } if finish_reason::is_failure(reason, self.has_calls()) => {
                let message = format!("the provider ended the response with the finish reason `{reason}`");
                return self.push_event(ResponseEvent::Failed { kind: None, message: &message, code: Some(reason) });
            }
            // Arguments that a limit cut off are no failure, because the client learns of the limit from the finish
            // reason.
            ResponseEvent::Finish { reason, .. }
                if !matches!(finish_reason::to_openai(reason), "length" | "content_filter")
                    && self.has_unreadable_arguments() =>
            {
                return event::report_unreadable_content("the arguments of a tool call must be a JSON object", self);
            }
            ResponseEvent::Finish { reason, stop_sequence } => {
                self.flush_custom_calls();
                let reason = finish_reason::match_calls(reason, self.has_calls());
                return self.writer.push_event(ResponseEvent::Finish { reason, stop_sequence });
            }
            ResponseEvent::End if self.uncounted_text.is_some() => {
                self.is_end_held = true;
                return;
            }
            ResponseEvent::End => self.flush_custom_calls(),
            ResponseEvent::Failed { message, .. } => self.failure = Some(message.to_owned()),
            _ => (),
        }
        self.writer.push_event(event);
    }
}

impl ResponseWriter for RecordingWriter {
    fn take_output(&mut self) -> Vec<u8> {
        self.writer.take_output()
    }
}
