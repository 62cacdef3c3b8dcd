//! Transcoder of streams between API formats. Buffers only incomplete events.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::Deserialize;

use crate::{
    api_format::{anthropic_messages, format::ApiFormat},
    chat::{
        event::{EventSink, ResponseEvent},
        generated_text::GeneratedText,
        response_writer::{RecordingWriter, ResponseWriter},
    },
    error_response,
    provider_format::{EventFraming, StreamDecoder},
    stream::{
        aws_event_stream,
        sse::{self, Event, Splitter},
    },
    usage::Usage,
};

/// Maximum length of an event. The largest images arrive in events of 20 MB and more.
const MAX_EVENT_BYTES: usize = 32 * 1024 * 1024;

pub struct Transcoder {
    splitter: FrameSplitter,
    processor: PayloadProcessor,
    has_failed: bool,
}

/// Processing of the frame payloads.
enum PayloadProcessor {
    Translate {
        decoder: Box<dyn StreamDecoder>,
        writer: RecordingWriter,
    },
    /// Payloads that already have the client's format. They are only extracted from the frames of their host. The value
    /// is the output that was not taken yet.
    PassThrough(Vec<u8>),
}

enum FrameSplitter {
    Sse(Splitter),
    AwsEventStream(aws_event_stream::FrameDecoder),
}

impl Transcoder {
    pub(crate) fn new(frames: EventFraming, decoder: Box<dyn StreamDecoder>, writer: RecordingWriter) -> Self {
        Self {
            splitter: FrameSplitter::new(frames),
            processor: PayloadProcessor::Translate { decoder, writer },
            has_failed: false,
        }
    }

    /// Creates a transcoder that forwards the payloads of the frames without translation.
    pub(crate) fn passthrough(frames: EventFraming) -> Self {
        Self {
            splitter: FrameSplitter::new(frames),
            processor: PayloadProcessor::PassThrough(Vec::new()),
            has_failed: false,
        }
    }

    /// Holds back the end of a stream without usage, until an estimate is added.
    #[must_use]
    pub fn holding_end(mut self) -> Self {
        if let PayloadProcessor::Translate { decoder, writer } = self.processor {
            self.processor = PayloadProcessor::Translate { decoder, writer: writer.holding_end() };
        }
        self
    }

    /// Returns true if the stream has ended without usage.
    pub fn is_end_held(&self) -> bool {
        matches!(&self.processor, PayloadProcessor::Translate { writer, .. } if writer.is_end_held())
    }

    /// Ends a stream whose end was held back, with the usage that `estimate_usage` returns for its text.
    pub(crate) fn release_end(&mut self, estimate_usage: impl FnOnce(&GeneratedText) -> Usage) -> Bytes {
        match &mut self.processor {
            PayloadProcessor::Translate { writer, .. } => writer.release_end(estimate_usage).into(),
            PayloadProcessor::PassThrough(_) => Bytes::new(),
        }
    }

    /// Processes a chunk and returns the bytes to send. They are empty if no event is complete.
    pub fn push_chunk(&mut self, chunk: Bytes) -> Bytes {
        if let (FrameSplitter::Sse(_), PayloadProcessor::PassThrough(_)) = (&self.splitter, &self.processor) {
            return chunk;
        }
        if !self.has_failed
            && let Err(message) = self.process_chunk(chunk)
        {
            self.has_failed = true;
            self.processor.write_failure(message);
        }
        self.processor.take_output()
    }

    fn process_chunk(&mut self, chunk: Bytes) -> Result<(), &'static str> {
        match &mut self.splitter {
            FrameSplitter::Sse(splitter) => {
                for event in splitter.push(chunk) {
                    let event = event.map_err(|_| "an event of the stream is too long")?;
                    if let Some(data) = event.data() {
                        self.processor.process_payload("", &data);
                    }
                }
            }
            FrameSplitter::AwsEventStream(frames) => {
                frames.push_chunk(&chunk);
                while let Some(frame) = frames.next_frame() {
                    let frame = frame.map_err(aws_event_stream::FrameError::message)?;
                    self.processor.process_payload(&frame.event_name, &frame.payload);
                }
            }
        }
        Ok(())
    }

    /// Ends the provider's stream and returns the remaining output. A stream that was cut off gets no final event.
    pub fn finish(&mut self) -> Bytes {
        let PayloadProcessor::Translate { .. } = &self.processor else { return Bytes::new() };
        if self.has_failed {
            return Bytes::new();
        }
        if let FrameSplitter::Sse(splitter) = &mut self.splitter {
            let last = splitter.finish();
            if let Some(data) = last.as_ref().and_then(Event::data).filter(|data| is_whole_payload(data)) {
                self.processor.process_payload("", &data);
            }
            // Some streams omit the blank line after their last event.
            if let Some(data) = sse::event_data(splitter.pending()).filter(|data| is_whole_payload(data)) {
                self.processor.process_payload("", &data);
            }
        }
        if let PayloadProcessor::Translate { decoder, writer } = &mut self.processor {
            decoder.finish_stream(writer);
        }
        self.processor.take_output()
    }
}

/// Returns true if the last event of a stream is complete. An incomplete event means that the connection was lost,
/// which is not an error of the provider's format.
fn is_whole_payload(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]" || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
}

impl FrameSplitter {
    fn new(frames: EventFraming) -> Self {
        match frames {
            EventFraming::ServerSentEvents => Self::Sse(Splitter::new(MAX_EVENT_BYTES)),
            EventFraming::AwsEventStream => Self::AwsEventStream(aws_event_stream::FrameDecoder::new(MAX_EVENT_BYTES)),
        }
    }
}

impl PayloadProcessor {
    fn process_payload(&mut self, name: &str, data: &[u8]) {
        match self {
            Self::Translate { decoder, writer } if name.is_empty() => decoder.decode(data, writer),
            Self::Translate { decoder, writer } => decoder.decode_named(name, data, writer),
            Self::PassThrough(out) => write_aws_frame_as_sse(name, data, out),
        }
    }

    fn write_failure(&mut self, message: &str) {
        match self {
            Self::Translate { writer, .. } => {
                writer.push_event(ResponseEvent::Failed { kind: None, message, code: None });
            }
            Self::PassThrough(out) => write_error_event(None, message, out),
        }
    }

    fn take_output(&mut self) -> Bytes {
        match self {
            Self::Translate { writer, .. } => writer.take_output().into(),
            Self::PassThrough(out) => std::mem::take(out).into(),
        }
    }
}

/// Writes the Anthropic event inside an AWS event stream frame as a server-sent event.
fn write_aws_frame_as_sse(name: &str, data: &[u8], out: &mut Vec<u8>) {
    #[derive(Deserialize)]
    struct AwsFrame<'a> {
        #[serde(default, borrow)]
        bytes: Cow<'a, str>,
        #[serde(default, borrow)]
        message: Option<Cow<'a, str>>,
    }
    #[derive(Deserialize)]
    struct EventType<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
    }
    let unreadable = "an event of the provider's stream cannot be read; it is not valid for its API format";
    let Ok(frame) = serde_json::from_slice::<AwsFrame<'_>>(data) else {
        return write_error_event(None, unreadable, out);
    };
    if name != "chunk" {
        return write_error_event(Some(name), frame.message.as_deref().unwrap_or(name), out);
    }
    let Ok(event) = STANDARD.decode(frame.bytes.as_bytes()) else {
        return write_error_event(None, unreadable, out);
    };
    let Ok(EventType { kind }) = serde_json::from_slice(&event) else {
        return write_error_event(None, unreadable, out);
    };
    for part in [b"event: ".as_slice(), kind.as_bytes(), b"\ndata: ", &event, b"\n\n"] {
        out.extend_from_slice(part);
    }
}

fn write_error_event(name: Option<&str>, message: &str, out: &mut Vec<u8>) {
    let failure = error_response::stream_failure(ApiFormat::Anthropic, None, message, name);
    out.extend_from_slice(&anthropic_messages::error_event(&failure));
}
