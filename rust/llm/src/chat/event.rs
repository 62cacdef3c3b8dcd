//! Response events: the canonical form of a model's response. It is the same for all providers, and for complete and
//! streamed responses.

use crate::{chat::field_scope::FieldScope, citations::CitationSet, usage::Usage};

/// Event of a response. Text arrives in chunks of any size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ResponseEvent<'a> {
    Start {
        id: &'a str,
        model: &'a str,
    },
    Text(&'a str),
    /// The text that follows begins a new block.
    TextBlockStart,
    Refusal(&'a str),
    Thinking(&'a str),
    /// Signature of the preceding thinking, which ends with it.
    ThinkingSignature(&'a str),
    RedactedThinking(&'a str),
    /// Start of a tool call. Calls are numbered from 0.
    ToolCall {
        id: &'a str,
        name: &'a str,
        signature: Option<&'a str>,
    },
    /// Next part of the JSON arguments of a tool call.
    ToolCallArguments {
        call_index: usize,
        json: &'a str,
    },
    /// Image that the model generated, as base64.
    Image {
        mime: &'a str,
        data: &'a str,
    },
    /// Signature of the preceding text. The provider expects it back unchanged.
    TextSignature(&'a str),
    /// Field that accompanies the content, such as citations or log probabilities, as JSON.
    ExtraField {
        scope: FieldScope,
        name: &'a str,
        json: &'a str,
    },
    /// Citations of ranges of the text.
    Citations(CitationSet<'a>),
    /// Content block that only this provider has, as JSON.
    NativeBlock {
        kind: &'a str,
        json: &'a str,
    },
    Usage(Usage),
    /// Finish reason, as the provider reported it.
    Finish {
        reason: &'a str,
        stop_sequence: Option<&'a str>,
    },
    /// The response failed after it had started.
    Failed {
        kind: Option<&'a str>,
        message: &'a str,
        code: Option<&'a str>,
    },
    /// The response ended regularly.
    End,
}

impl ResponseEvent<'_> {
    /// Converts citations to the provider's own field, for client formats without citations.
    pub fn without_citations(self) -> Self {
        match self {
            Self::Citations(CitationSet { scope, name, json, .. }) => Self::ExtraField { scope, name, json },
            other => other,
        }
    }
}

/// Reports an event of a stream that cannot be read. The response would lack its content, so it must not end as a
/// success. Blank data is only a keep-alive.
pub(crate) fn report_unreadable_event(data: &[u8], sink: &mut dyn EventSink) {
    if !matches!(data.trim_ascii(), b"" | b"null") {
        let message = "an event of the provider's stream cannot be read; it is not valid for its API format";
        sink.push_event(ResponseEvent::Failed { kind: None, message, code: Some("unreadable_event") });
    }
}

/// Reports content of a response that cannot be read. The response would lack it, so it must not end as a success.
pub(crate) fn report_unreadable_content(reason: &str, sink: &mut dyn EventSink) {
    let message = format!("content of the provider's response cannot be read; {reason}");
    sink.push_event(ResponseEvent::Failed { kind: None, message: &message, code: Some("unreadable_content") });
}

/// Reports a response that ends without content and without a finish reason.
pub(crate) fn report_empty_response(sink: &mut dyn EventSink) {
    let message = "the provider's response ended without content and without a finish reason";
    sink.push_event(ResponseEvent::Failed { kind: None, message, code: Some("empty_response") });
}

/// Receiver of the events of a response.
pub trait EventSink {
    fn push_event(&mut self, event: ResponseEvent<'_>);
}
