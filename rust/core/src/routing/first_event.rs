//! First event of a stream, read before anything is sent to the client, because it may be an error.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use penstock_llm::{
    operation::Operation,
    stream::{
        aws_event_stream::FrameDecoder,
        frame_meter::FrameMeter,
        sse::{self, Splitter},
    },
    translation,
};
use penstock_net::{Deadline, ResponseBody};

use crate::{error::Result, response::delivery::StreamFraming};

/// Maximum length of a beginning that is buffered. An error is never longer.
const MAX_BUFFERED_BYTES: usize = 64 * 1024;
/// Maximum number of comments and pings that are skipped. A stream that consists of them must still reach the client.
const MAX_SKIPPED_EVENTS: usize = 4;

/// Reads up to the end of the first event that is no ping, for at most `max_wait`. Returns the bytes so far, and puts
/// them back.
pub(super) async fn peek_first_event(
    body: &mut ResponseBody,
    deadline: &mut Deadline,
    framing: StreamFraming,
    max_wait: Duration,
) -> Result<Bytes> {
    let (mut buffered, mut detector) = (BytesMut::new(), EventDetector::new(framing));
    let reading = async {
        while let Some(chunk) = deadline.enforce(async { body.next_chunk().await.transpose() }).await? {
            buffered.extend_from_slice(&chunk);
            if detector.feed(chunk) || buffered.len() > MAX_BUFFERED_BYTES {
                break;
            }
        }
        Result::Ok(())
    };
    // The stream starts after `max_wait`, whatever was read.
    if let Ok(read) = tokio::time::timeout(max_wait, Box::pin(reading)).await {
        read?;
    }
    let buffered = buffered.freeze();
    if !buffered.is_empty() {
        body.put_back(buffered.clone());
    }
    Ok(buffered)
}

/// Detects the end of the first event that is no ping.
enum EventDetector {
    SseEvents { splitter: Splitter, skipped: usize },
    AwsFrames(Box<FrameMeter>),
    JsonArrayItems,
}

impl EventDetector {
    fn new(framing: StreamFraming) -> Self {
        match framing {
            StreamFraming::SseEvents => Self::SseEvents { splitter: Splitter::new(MAX_BUFFERED_BYTES), skipped: 0 },
            StreamFraming::AwsFrames => Self::AwsFrames(Box::default()),
            StreamFraming::JsonArrayItems => Self::JsonArrayItems,
        }
    }

    /// Returns true if the bytes so far contain the event.
    fn feed(&mut self, chunk: Bytes) -> bool {
        match self {
            Self::SseEvents { splitter, skipped } => splitter.push(chunk).any(|event| {
                let is_ping = event.is_ok_and(|event| event.data().is_none() || event.name() == Some(b"ping"));
                *skipped += usize::from(is_ping);
                !is_ping || *skipped > MAX_SKIPPED_EVENTS
            }),
            Self::AwsFrames(meter) => {
                meter.feed(&chunk);
                !meter.has_partial_frame()
            }
            // The first key tells an error.
            Self::JsonArrayItems => chunk.contains(&b':'),
        }
    }
}

/// Returns the message of the first event if that is an error, in whatever format.
pub(super) fn first_error_message(framing: StreamFraming, operation: Operation, stream: &[u8]) -> Option<String> {
    let error = match framing {
        StreamFraming::SseEvents => {
            let data = sse::split_events(stream).find_map(sse::event_data)?;
            translation::hidden_error_status(operation, &data)?;
            data
        }
        StreamFraming::AwsFrames => {
            let mut decoder = FrameDecoder::new(MAX_BUFFERED_BYTES);
            decoder.push_chunk(stream);
            decoder.next_frame()?.ok().filter(|frame| frame.is_exception)?.payload.to_vec().into()
        }
        StreamFraming::JsonArrayItems => {
            translation::hidden_error_status(operation, stream)?;
            stream.into()
        }
    };
    Some(translation::error_message(&error).unwrap_or_else(|| "it gave no reason".to_owned()))
}
