//! Reads the usage from an Amazon event stream as it is forwarded.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{
    aws_event_stream::{Frame, FrameDecoder},
    meter::StreamSummary,
};
use crate::{
    api_format::format::ApiFormat,
    json::{scan::for_each_field, string_literal::unescape},
    usage::UsageCounts,
};

/// Maximum length of a frame; Bedrock sends no longer ones.
const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;
/// Maximum depth at which the delta of an event has text.
const MAX_DELTA_DEPTH: usize = 4;

/// Usage meter for a stream of frames, in chunks of any size.
#[derive(Debug)]
pub struct FrameMeter {
    decoder: FrameDecoder,
    counts: UsageCounts,
    model: Option<String>,
    /// True after the first frame with content or a finish reason.
    has_content: bool,
    is_terminated: bool,
    has_error_event: bool,
    text_bytes: u64,
}

impl Default for FrameMeter {
    fn default() -> Self {
        let frames = FrameDecoder::new(MAX_FRAME_BYTES);
        Self {
            decoder: frames,
            counts: UsageCounts::default(),
            model: None,
            has_content: false,
            is_terminated: false,
            has_error_event: false,
            text_bytes: 0,
        }
    }
}

impl FrameMeter {
    /// Reads the next bytes of the stream.
    pub fn feed(&mut self, chunk: &[u8]) {
        self.decoder.push_chunk(chunk);
        // The reader of the stream rejects an invalid frame; the meter stops there.
        while let Some(Ok(frame)) = self.decoder.next_frame() {
            self.read_frame(&frame);
        }
    }

    /// Returns true if the bytes so far end within a frame.
    pub fn has_partial_frame(&self) -> bool {
        self.decoder.has_partial_frame()
    }

    /// Returns true if a frame with content, a finish reason or a failure was read.
    pub fn has_content(&self) -> bool {
        self.has_content
    }

    /// Returns true if the frame that ends the response was read.
    pub fn is_terminated(&self) -> bool {
        self.is_terminated
    }

    /// Returns the length of the generated text so far, in bytes of JSON.
    pub fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// Returns true if the provider has reported usage.
    pub fn has_usage(&self) -> bool {
        self.counts.has_counts()
    }

    /// Ends the stream and returns what the meter has read.
    pub fn finish(self) -> StreamSummary {
        StreamSummary {
            usage: self.counts.to_usage(ApiFormat::Bedrock),
            is_terminated: self.is_terminated,
            has_finish_reasons: self.is_terminated,
            has_error_event: self.has_error_event,
            model: self.model,
            deltas: None,
            background_response_id: None,
        }
    }

    fn read_frame(&mut self, frame: &Frame) {
        self.has_content |= frame.is_exception || !is_opening_frame(&frame.event_name);
        match frame.event_name.as_str() {
            _ if frame.is_exception => self.has_error_event = true,
            "messageStop" => self.is_terminated = true,
            "metadata" => self.read_event(&frame.payload),
            "contentBlockDelta" => self.text_bytes += text_length(&frame.payload, MAX_DELTA_DEPTH),
            "chunk" => {
                if let Some(event) = decode_chunk_event(&frame.payload) {
                    self.read_event(&event);
                }
            }
            _ => (),
        }
    }

    /// Reads the usage and the end of the stream from an event. If the JSON is invalid, the fields before the error
    /// count.
    fn read_event(&mut self, event: &[u8]) {
        let _ = for_each_field(event, |key, at| {
            let value = &event[at];
            match key {
                b"usage" => self.counts.read_usage(value),
                b"message" => self.read_event(value),
                b"delta" => self.text_bytes += text_length(value, MAX_DELTA_DEPTH),
                b"model" if self.model.is_none() => self.model = unescape(value),
                b"type" => {
                    self.is_terminated |= value == b"\"message_stop\"";
                    self.has_error_event |= value == b"\"error\"";
                }
                // The last event has this field for models of every vendor.
                b"amazon-bedrock-invocationMetrics" => {
                    self.is_terminated = true;
                    self.counts.read_usage(value);
                }
                _ => (),
            }
            Ok(())
        });
    }
}

/// Returns the length of the texts in an object and its inner objects, up to a depth. Names of types and the padding (`p`)
/// of frames are no text of the model.
fn text_length(object: &[u8], depth: usize) -> u64 {
    let mut length = 0;
    let _ = for_each_field(object, |key, at| {
        let value = &object[at];
        match value.first() {
            Some(b'"') if !matches!(key, b"type" | b"p" | b"stop_reason") => {
                length += value.len().saturating_sub(2) as u64;
            }
            Some(b'{') if depth > 1 => length += text_length(value, depth - 1),
            _ => (),
        }
        Ok(())
    });
    length
}

/// Returns true for the names of frames without content and without a finish reason.
pub fn is_opening_frame(name: &str) -> bool {
    matches!(name, "messageStart" | "contentBlockStop" | "metadata")
}

/// Decodes the event in the payload of a `chunk` frame.
fn decode_chunk_event(payload: &[u8]) -> Option<Vec<u8>> {
    let mut counts = None;
    let _ = for_each_field(payload, |key, at| {
        if key == b"bytes" {
            counts = unescape(&payload[at]).and_then(|text| STANDARD.decode(text).ok());
        }
        Ok(())
    });
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::aws_event_stream::encode_frame;

    fn meter_stream(bytes: &[u8], size: usize) -> StreamSummary {
        let mut meter = FrameMeter::default();
        bytes.chunks(size).for_each(|chunk| meter.feed(chunk));
        meter.finish()
    }

    #[test]
    fn reads_converse_usage_from_chunks_of_any_size() {
        let usage = br#"{"usage":{"inputTokens":7,"outputTokens":5,"totalTokens":15,"cacheReadInputTokens":3}}"#;
        let stop = encode_frame("event", "messageStop", br#"{"stopReason":"end_turn"}"#);
        let bytes = [stop, encode_frame("event", "metadata", usage)].concat();
        for size in [1, 7, 4096] {
            let summary = meter_stream(&bytes, size);
            let usage = summary.usage.unwrap();
            assert_eq!((usage.input, usage.cache_read, usage.output, usage.total()), (7, 3, 5, 15));
            assert!(summary.is_terminated && !summary.has_error_event);
        }
    }

    #[test]
    fn measures_the_generated_text() {
        let mut meter = FrameMeter::default();
        let delta = |content: &str| {
            let payload = format!("{{\"contentBlockIndex\":0,\"delta\":{content},\"p\":\"abcdefgh\"}}");
            encode_frame("event", "contentBlockDelta", payload.as_bytes())
        };
        meter.feed(&delta(r#"{"text":"hello"}"#));
        meter.feed(&delta(r#"{"toolUse":{"input":"{}"}}"#));
        let event = STANDARD.encode(r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":" you"}}"#);
        meter.feed(&encode_frame("event", "chunk", format!("{{\"bytes\":\"{event}\"}}").as_bytes()));
        meter.feed(&encode_frame("event", "messageStart", br#"{"role":"assistant"}"#));
        assert_eq!(meter.text_bytes(), 11);
    }

    #[test]
    fn reads_claude_events_in_chunk_frames() {
        let chunk = |event: &str| {
            encode_frame("event", "chunk", format!("{{\"bytes\":\"{}\"}}", STANDARD.encode(event)).as_bytes())
        };
        let start =
            r#"{"type":"message_start","message":{"model":"claude","usage":{"input_tokens":9,"output_tokens":1}}}"#;
        let delta = r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":4}}"#;
        let bytes = [chunk(start), chunk(delta), chunk(r#"{"type":"message_stop"}"#)].concat();
        let summary = meter_stream(&bytes, 5);
        assert_eq!((summary.usage.unwrap().total(), summary.is_terminated), (13, true));
        assert_eq!(summary.model.as_deref(), Some("claude"));
        let failed = meter_stream(&encode_frame("exception", "throttlingException", b"{}"), 64);
        assert!(failed.has_error_event && !failed.is_terminated);
    }
}
