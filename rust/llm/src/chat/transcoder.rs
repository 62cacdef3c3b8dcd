//! A stream between dialects: bytes in, bytes out, nothing waits but an event that is not complete.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::Deserialize;

use crate::{
    api_format::{ApiFormat, anthropic_messages},
    stream::{
        aws_event_stream,
        sse::{self, Event, Splitter},
    },
};
use crate::{
    chat::{
        event::{EventSink, ResponseEvent},
        providers::{self, StreamDecoder},
        response_writer::{RecordingWriter, ResponseWriter},
    },
    translation::errors,
};

/// An event that is longer is not one. Images in the largest size come in events of 20 MB and more.
const MAX_EVENT_BYTES: usize = 32 * 1024 * 1024;

pub struct Transcoder {
    splitter: FrameSplitter,
    processor: PayloadProcessor,
    has_failed: bool,
}

/// What is done with what the frames hold.
enum PayloadProcessor {
    Translate {
        decoder: Box<dyn StreamDecoder>,
        writer: RecordingWriter,
    },
    /// It is what the caller gets, out of its host's frames.
    PassThrough(Vec<u8>),
}

enum FrameSplitter {
    Sse(Splitter),
    AwsEventStream(aws_event_stream::FrameDecoder),
}

impl Transcoder {
    pub(crate) fn new(
        frames: providers::EventFraming,
        listener: Box<dyn StreamDecoder>,
        teller: RecordingWriter,
    ) -> Self {
        Self {
            splitter: FrameSplitter::new(frames),
            processor: PayloadProcessor::Translate { decoder: listener, writer: teller },
            has_failed: false,
        }
    }

    /// Passes on what the frames hold.
    pub(crate) fn passthrough(frames: providers::EventFraming) -> Self {
        Self {
            splitter: FrameSplitter::new(frames),
            processor: PayloadProcessor::PassThrough(Vec::new()),
            has_failed: false,
        }
    }

    /// Takes what came and gives what is to be sent; nothing where no event is complete.
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

    /// The provider's stream is over: what is still to be said of it. A stream that was cut gets no proper end.
    pub fn finish(&mut self) -> Bytes {
        let PayloadProcessor::Translate { .. } = &self.processor else { return Bytes::new() };
        if self.has_failed {
            return Bytes::new();
        }
        if let FrameSplitter::Sse(splitter) = &mut self.splitter {
            let last = splitter.finish();
            if let Some(data) = last.as_ref().and_then(Event::data) {
                self.processor.process_payload("", &data);
            }
            // Some end without the blank line that ends their last event.
            if let Some(data) = sse::event_data(splitter.pending()) {
                self.processor.process_payload("", &data);
            }
        }
        if let PayloadProcessor::Translate { decoder: listener, writer: teller } = &mut self.processor {
            listener.finish_stream(teller);
        }
        self.processor.take_output()
    }
}

impl FrameSplitter {
    fn new(frames: providers::EventFraming) -> Self {
        match frames {
            providers::EventFraming::ServerSentEvents => Self::Sse(Splitter::new(MAX_EVENT_BYTES)),
            providers::EventFraming::AwsEventStream => {
                Self::AwsEventStream(aws_event_stream::FrameDecoder::new(MAX_EVENT_BYTES))
            }
        }
    }
}

impl PayloadProcessor {
    fn process_payload(&mut self, name: &str, data: &[u8]) {
        match self {
            Self::Translate { decoder: listener, writer: teller } if name.is_empty() => listener.decode(data, teller),
            Self::Translate { decoder: listener, writer: teller } => listener.decode_named(name, data, teller),
            Self::PassThrough(out) => write_unwrapped_event(name, data, out),
        }
    }

    fn write_failure(&mut self, message: &str) {
        match self {
            Self::Translate { writer: teller, .. } => {
                teller.push_event(ResponseEvent::Failed { kind: None, message, code: None })
            }
            Self::PassThrough(out) => write_error_event(None, message, out),
        }
    }

    fn take_output(&mut self) -> Bytes {
        match self {
            Self::Translate { writer: teller, .. } => teller.take_output().into(),
            Self::PassThrough(out) => std::mem::take(out).into(),
        }
    }
}

/// The event inside of one of Amazon's frames, as Anthropic sends it.
fn write_unwrapped_event(name: &str, data: &[u8], out: &mut Vec<u8>) {
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
    let Ok(frame) = serde_json::from_slice::<AwsFrame<'_>>(data) else { return };
    if name != "chunk" {
        return write_error_event(Some(name), frame.message.as_deref().unwrap_or(name), out);
    }
    let Ok(event) = STANDARD.decode(frame.bytes.as_bytes()) else { return };
    let Ok(EventType { kind }) = serde_json::from_slice(&event) else { return };
    for part in [b"event: ".as_slice(), kind.as_bytes(), b"\ndata: ", &event, b"\n\n"] {
        out.extend_from_slice(part);
    }
}

fn write_error_event(name: Option<&str>, message: &str, out: &mut Vec<u8>) {
    let failure = errors::stream_failure(ApiFormat::Anthropic, None, message, name);
    out.extend_from_slice(&anthropic_messages::error_event(&failure));
}
