//! What an answer consists of, whoever gives it and however it comes: whole or streamed, it is the same pieces.

use crate::citations::CitationSet;
use crate::usage::Usage;

/// The next of an answer. Text comes in runs of any size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ResponseEvent<'a> {
    Start {
        id: &'a str,
        model: &'a str,
    },
    Text(&'a str),
    /// The text that follows is a block of its own.
    TextBlockStart,
    Refusal(&'a str),
    Thinking(&'a str),
    /// Ends the thinking before it.
    ThinkingSignature(&'a str),
    RedactedThinking(&'a str),
    /// A call of a tool begins. Calls are numbered from 0.
    ToolCall {
        id: &'a str,
        name: &'a str,
        signature: Option<&'a str>,
    },
    /// More of the arguments of a call, as JSON.
    ToolCallArguments {
        call_index: usize,
        json: &'a str,
    },
    /// An image that the model made, its bytes as base64.
    Image {
        mime: &'a str,
        data: &'a str,
    },
    /// Seals the text before it: its provider wants that back, unread.
    TextSignature(&'a str),
    /// What stands beside the words, such as where they are from, as JSON.
    ExtraField {
        scope: FieldScope,
        name: &'a str,
        json: &'a str,
    },
    /// Where stretches of what was said are from.
    Citations(CitationSet<'a>),
    /// A block that only its provider knows, as JSON.
    NativeBlock {
        kind: &'a str,
        json: &'a str,
    },
    Usage(Usage),
    /// In the provider's own word.
    Finish {
        reason: &'a str,
        stop_sequence: Option<&'a str>,
    },
    /// It failed on the way.
    Failed {
        kind: Option<&'a str>,
        message: &'a str,
        code: Option<&'a str>,
    },
    /// It came to its proper end.
    End,
}

impl ResponseEvent<'_> {
    /// As who has no words for citations takes it.
    pub fn without_citations(self) -> Self {
        match self {
            Self::Citations(CitationSet { scope: place, name, json, .. }) => {
                Self::ExtraField { scope: place, name, json }
            }
            other => other,
        }
    }
}

/// What an aside belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldScope {
    Response,
    Choice,
    Message,
    /// The text before it.
    Block,
}

/// Who takes the pieces of an answer.
pub trait EventSink {
    fn push_event(&mut self, piece: ResponseEvent<'_>);
}
