//! Who tells a caller: takes the pieces of an answer and gives bytes in the caller's dialect.

use super::signatures::ScopedSignatures;
use crate::{
    chat::{
        event::{EventSink, ResponseEvent},
        response_context::ResponseContext,
    },
    translation::dropped::DroppedFields,
};

pub trait ResponseWriter: EventSink + Send {
    /// What is to be sent so far; for a whole answer, all of it, once.
    fn take_output(&mut self) -> Vec<u8>;
}

/// Tells, and notes what it cost as the provider said it, and how calls are signed.
pub struct RecordingWriter {
    writer: Box<dyn ResponseWriter>,
    dropped_fields: DroppedFields,
    signatures: Option<ScopedSignatures>,
}

impl RecordingWriter {
    pub fn new(writer: Box<dyn ResponseWriter>, answering: &ResponseContext) -> Self {
        Self { writer, dropped_fields: answering.dropped_fields.clone(), signatures: answering.signatures.clone() }
    }
}

impl EventSink for RecordingWriter {
    fn push_event(&mut self, piece: ResponseEvent<'_>) {
        match (piece, &self.signatures) {
            (ResponseEvent::Usage(usage), _) => self.dropped_fields.set_usage(usage),
            (ResponseEvent::ToolCall { id, signature: Some(signature), .. }, Some(kept)) => kept.insert(id, signature),
            _ => (),
        }
        self.writer.push_event(piece);
    }
}

impl ResponseWriter for RecordingWriter {
    fn take_output(&mut self) -> Vec<u8> {
        self.writer.take_output()
    }
}
