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
        event::{Piece, Taker},
        providers::{self, Listener},
        response_writer::{Noting, Teller},
    },
    translation::errors,
};

/// An event that is longer is not one. Images in the largest size come in events of 20 MB and more.
const MAX_EVENT: usize = 32 * 1024 * 1024;

pub struct Transcoder {
    frames: Frames,
    work: Work,
    failed: bool,
}

/// What is done with what the frames hold.
enum Work {
    Tell {
        listener: Box<dyn Listener>,
        teller: Noting,
    },
    /// It is what the caller gets, out of its host's frames.
    Carry(Vec<u8>),
}

enum Frames {
    Events(Splitter),
    AwsEventStream(aws_event_stream::Frames),
}

impl Transcoder {
    pub(crate) fn new(frames: providers::Frames, listener: Box<dyn Listener>, teller: Noting) -> Self {
        Self { frames: Frames::of(frames), work: Work::Tell { listener, teller }, failed: false }
    }

    /// Passes on what the frames hold.
    pub(crate) fn carrying(frames: providers::Frames) -> Self {
        Self { frames: Frames::of(frames), work: Work::Carry(Vec::new()), failed: false }
    }

    /// Takes what came and gives what is to be sent; nothing where no event is complete.
    pub fn push(&mut self, chunk: Bytes) -> Bytes {
        if let (Frames::Events(_), Work::Carry(_)) = (&self.frames, &self.work) {
            return chunk;
        }
        if !self.failed
            && let Err(message) = self.hear(chunk)
        {
            self.failed = true;
            self.work.fail(message);
        }
        self.work.told()
    }

    fn hear(&mut self, chunk: Bytes) -> Result<(), &'static str> {
        match &mut self.frames {
            Frames::Events(splitter) => {
                for event in splitter.push(chunk) {
                    let event = event.map_err(|_| "an event of the stream is too long")?;
                    if let Some(data) = event.data() {
                        self.work.hear("", &data);
                    }
                }
            }
            Frames::AwsEventStream(frames) => {
                frames.push(&chunk);
                while let Some(frame) = frames.take() {
                    let frame = frame.map_err(aws_event_stream::Fault::message)?;
                    self.work.hear(&frame.name, &frame.payload);
                }
            }
        }
        Ok(())
    }

    /// The provider's stream is over: what is still to be said of it. A stream that was cut gets no proper end.
    pub fn finish(&mut self) -> Bytes {
        let Work::Tell { .. } = &self.work else { return Bytes::new() };
        if self.failed {
            return Bytes::new();
        }
        if let Frames::Events(splitter) = &mut self.frames {
            let last = splitter.finish();
            if let Some(data) = last.as_ref().and_then(Event::data) {
                self.work.hear("", &data);
            }
            // Some end without the blank line that ends their last event.
            if let Some(data) = sse::data(splitter.pending()) {
                self.work.hear("", &data);
            }
        }
        if let Work::Tell { listener, teller } = &mut self.work {
            listener.over(teller);
        }
        self.work.told()
    }
}

impl Frames {
    fn of(frames: providers::Frames) -> Self {
        match frames {
            providers::Frames::Events => Self::Events(Splitter::new(MAX_EVENT)),
            providers::Frames::AwsEventStream => Self::AwsEventStream(aws_event_stream::Frames::new(MAX_EVENT)),
        }
    }
}

impl Work {
    fn hear(&mut self, name: &str, data: &[u8]) {
        match self {
            Self::Tell { listener, teller } if name.is_empty() => listener.hear(data, teller),
            Self::Tell { listener, teller } => listener.named(name, data, teller),
            Self::Carry(out) => carry(name, data, out),
        }
    }

    fn fail(&mut self, message: &str) {
        match self {
            Self::Tell { teller, .. } => teller.take(Piece::Failed { kind: None, message, code: None }),
            Self::Carry(out) => fail(None, message, out),
        }
    }

    fn told(&mut self) -> Bytes {
        match self {
            Self::Tell { teller, .. } => teller.told().into(),
            Self::Carry(out) => std::mem::take(out).into(),
        }
    }
}

/// The event inside of one of Amazon's frames, as Anthropic sends it.
fn carry(name: &str, data: &[u8], out: &mut Vec<u8>) {
    #[derive(Deserialize)]
    struct Frame<'a> {
        #[serde(default, borrow)]
        bytes: Cow<'a, str>,
        #[serde(default, borrow)]
        message: Option<Cow<'a, str>>,
    }
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
    }
    let Ok(frame) = serde_json::from_slice::<Frame<'_>>(data) else { return };
    if name != "chunk" {
        return fail(Some(name), frame.message.as_deref().unwrap_or(name), out);
    }
    let Ok(event) = STANDARD.decode(frame.bytes.as_bytes()) else { return };
    let Ok(Kind { kind }) = serde_json::from_slice(&event) else { return };
    for part in [b"event: ".as_slice(), kind.as_bytes(), b"\ndata: ", &event, b"\n\n"] {
        out.extend_from_slice(part);
    }
}

fn fail(name: Option<&str>, message: &str, out: &mut Vec<u8>) {
    let failure = errors::on_the_way(ApiFormat::Anthropic, None, message, name);
    out.extend_from_slice(&anthropic_messages::error_event(&failure));
}
