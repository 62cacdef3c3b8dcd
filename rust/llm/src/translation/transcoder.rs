//! A stream between dialects: bytes in, bytes out, nothing waits but an event that is not complete.

use bytes::Bytes;

use super::{
    piece::Piece,
    teller::Teller,
    wires::{self, Listener},
};
use crate::stream::{
    aws_event_stream,
    sse::{self, Event, Splitter},
};

/// An event that is longer is not one.
const MAX_EVENT: usize = 8 * 1024 * 1024;

pub struct Transcoder {
    frames: Frames,
    listener: Box<dyn Listener>,
    teller: Box<dyn Teller>,
    failed: bool,
}

enum Frames {
    Events(Splitter),
    AwsEventStream(aws_event_stream::Frames),
}

impl Transcoder {
    pub(super) fn new(frames: wires::Frames, listener: Box<dyn Listener>, teller: Box<dyn Teller>) -> Self {
        let frames = match frames {
            wires::Frames::Events => Frames::Events(Splitter::new(MAX_EVENT)),
            wires::Frames::AwsEventStream => Frames::AwsEventStream(aws_event_stream::Frames::new(MAX_EVENT)),
        };
        Self { frames, listener, teller, failed: false }
    }

    /// Takes what came and gives what is to be sent; nothing where no event is complete.
    pub fn push(&mut self, chunk: Bytes) -> Bytes {
        if !self.failed
            && let Err(message) = self.hear(chunk)
        {
            self.failed = true;
            self.teller.take(Piece::Failed { kind: None, message, code: None });
        }
        self.teller.told().into()
    }

    fn hear(&mut self, chunk: Bytes) -> Result<(), &'static str> {
        match &mut self.frames {
            Frames::Events(splitter) => {
                for event in splitter.push(chunk) {
                    let event = event.map_err(|_| "an event of the stream is too long")?;
                    if let Some(data) = event.data() {
                        self.listener.hear(&data, &mut *self.teller);
                    }
                }
            }
            Frames::AwsEventStream(frames) => {
                frames.push(&chunk);
                while let Some(frame) = frames.take() {
                    let frame = frame.map_err(aws_event_stream::Fault::message)?;
                    self.listener.named(&frame.name, &frame.payload, &mut *self.teller);
                }
            }
        }
        Ok(())
    }

    /// The provider's stream is over: what is still to be said of it. A stream that was cut gets no proper end.
    pub fn finish(&mut self) -> Bytes {
        if self.failed {
            return Bytes::new();
        }
        if let Frames::Events(splitter) = &mut self.frames {
            let last = splitter.finish();
            if let Some(data) = last.as_ref().and_then(Event::data) {
                self.listener.hear(&data, &mut *self.teller);
            }
            // Some end without the blank line that ends their last event.
            if let Some(data) = sse::data(splitter.pending()) {
                self.listener.hear(&data, &mut *self.teller);
            }
        }
        self.listener.over(&mut *self.teller);
        self.teller.told().into()
    }
}
