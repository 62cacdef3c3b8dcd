//! Reads what a stream of Amazon's frames cost as they pass by.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{
    aws_event_stream::{Frame, Frames},
    meter::Metered,
};
use crate::{
    api_format::ApiFormat,
    json::scan::{for_each_field, unescape},
    usage::Counts,
};

/// A frame that is longer is none of Bedrock's.
const MAX_FRAME: usize = 16 * 1024 * 1024;

/// Reads a stream of frames, in chunks of any size.
#[derive(Debug)]
pub struct FrameMeter {
    frames: Frames,
    counts: Counts,
    model: Option<String>,
    terminated: bool,
    error_event: bool,
}

impl Default for FrameMeter {
    fn default() -> Self {
        let frames = Frames::new(MAX_FRAME);
        Self { frames, counts: Counts::default(), model: None, terminated: false, error_event: false }
    }
}

impl FrameMeter {
    /// Takes the next bytes of the stream.
    pub fn feed(&mut self, chunk: &[u8]) {
        self.frames.push(chunk);
        // What is no frame is for its reader to refuse.
        while let Some(Ok(frame)) = self.frames.take() {
            self.look(&frame);
        }
    }

    /// Whether the bytes so far end in the middle of a frame.
    pub fn is_within(&self) -> bool {
        self.frames.is_within()
    }

    /// Whether the provider has said what it cost.
    pub fn has_usage(&self) -> bool {
        self.counts.is_seen()
    }

    /// The stream is over.
    pub fn finish(self) -> Metered {
        Metered {
            usage: self.counts.settle(ApiFormat::Bedrock),
            terminated: self.terminated,
            finished: self.terminated,
            error_event: self.error_event,
            model: self.model,
            deltas: None,
            begun: None,
        }
    }

    fn look(&mut self, frame: &Frame) {
        match frame.name.as_str() {
            _ if frame.is_exception => self.error_event = true,
            "messageStop" => self.terminated = true,
            "metadata" => self.read(&frame.payload),
            "chunk" => {
                if let Some(event) = inner(&frame.payload) {
                    self.read(&event);
                }
            }
            _ => (),
        }
    }

    /// Reads what an event says of its cost and of the end; of a broken one, what stands before the fault.
    fn read(&mut self, event: &[u8]) {
        let _ = for_each_field(event, |key, at| {
            let value = &event[at];
            match key {
                b"usage" => self.counts.read(value),
                b"message" => self.read(value),
                b"model" if self.model.is_none() => self.model = unescape(value),
                b"type" => self.terminated |= value == b"\"message_stop\"",
                // The last event of every vendor's models has it.
                b"amazon-bedrock-invocationMetrics" => {
                    self.terminated = true;
                    self.counts.read(value);
                }
                _ => (),
            }
            Ok(())
        });
    }
}

/// The event that a chunk brings.
fn inner(payload: &[u8]) -> Option<Vec<u8>> {
    let mut found = None;
    let _ = for_each_field(payload, |key, at| {
        if key == b"bytes" {
            found = unescape(&payload[at]).and_then(|text| STANDARD.decode(text).ok());
        }
        Ok(())
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::aws_event_stream::encode;

    fn metered(bytes: &[u8], size: usize) -> Metered {
        let mut meter = FrameMeter::default();
        bytes.chunks(size).for_each(|chunk| meter.feed(chunk));
        meter.finish()
    }

    #[test]
    fn what_a_conversation_cost_is_read_however_its_frames_were_cut() {
        let usage = br#"{"usage":{"inputTokens":7,"outputTokens":5,"totalTokens":15,"cacheReadInputTokens":3}}"#;
        let stop = encode("event", "messageStop", br#"{"stopReason":"end_turn"}"#);
        let bytes = [stop, encode("event", "metadata", usage)].concat();
        for size in [1, 7, 4096] {
            let found = metered(&bytes, size);
            let usage = found.usage.unwrap();
            assert_eq!((usage.input, usage.cache_read, usage.output, usage.total()), (7, 3, 5, 15));
            assert!(found.terminated && !found.error_event);
        }
    }

    #[test]
    fn what_claude_says_in_chunks_is_read_too() {
        let chunk =
            |event: &str| encode("event", "chunk", format!("{{\"bytes\":\"{}\"}}", STANDARD.encode(event)).as_bytes());
        let start =
            r#"{"type":"message_start","message":{"model":"claude","usage":{"input_tokens":9,"output_tokens":1}}}"#;
        let delta = r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":4}}"#;
        let bytes = [chunk(start), chunk(delta), chunk(r#"{"type":"message_stop"}"#)].concat();
        let found = metered(&bytes, 5);
        assert_eq!((found.usage.unwrap().total(), found.terminated), (13, true));
        assert_eq!(found.model.as_deref(), Some("claude"));
        let failed = metered(&encode("exception", "throttlingException", b"{}"), 64);
        assert!(failed.error_event && !failed.terminated);
    }
}
