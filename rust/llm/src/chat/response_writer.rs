//! Response writers: take the events of a response and produce bytes in the client's format.

use super::signatures::ScopedSignatures;
use crate::{
    chat::{
        event::{EventSink, ResponseEvent},
        response_context::ResponseContext,
    },
    translation::dropped::DroppedFields,
};

pub trait ResponseWriter: EventSink + Send {
    /// Removes and returns the bytes that can be sent so far. A complete response is returned once, after its last
    /// event.
    fn take_output(&mut self) -> Vec<u8>;
}

/// Response writer that also records the usage that the provider reported and the signatures of tool calls.
pub struct RecordingWriter {
    writer: Box<dyn ResponseWriter>,
    dropped_fields: DroppedFields,
    signatures: Option<ScopedSignatures>,
}

impl RecordingWriter {
    pub fn new(writer: Box<dyn ResponseWriter>, context: &ResponseContext) -> Self {
        Self { writer, dropped_fields: context.dropped_fields.clone(), signatures: context.signatures.clone() }
    }
}

impl EventSink for RecordingWriter {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        match (event, &self.signatures) {
            (ResponseEvent::Usage(usage), _) => self.dropped_fields.set_usage(usage),
            (ResponseEvent::ToolCall { id, signature: Some(signature), .. }, Some(signatures)) => {
                signatures.insert(id, signature);
            }
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
