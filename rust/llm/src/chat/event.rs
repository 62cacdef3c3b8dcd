//! Response events: the canonical form of a model's response. It is the same for all providers, and for complete and
//! streamed responses.

use crate::citations::CitationSet;
use crate::usage::Usage;

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
    /// Signature of the thinking before it, which it ends.
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
    /// Signature of the text before it. The provider expects it back unchanged.
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

/// Part of the response that an extra field belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldScope {
    Response,
    Choice,
    Message,
    /// The text block before the field.
    Block,
}

/// Receiver of the events of a response.
pub trait EventSink {
    fn push_event(&mut self, piece: ResponseEvent<'_>);
}
