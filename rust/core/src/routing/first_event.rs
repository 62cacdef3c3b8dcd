//! Beginning of a stream, read before anything is sent to the client: it may be an error, or end without content.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use penstock_llm::{
    operation::Operation,
    stream::{aws_event_stream::FrameDecoder, frame_meter::is_opening_frame, opening::is_without_content, sse},
    translation,
};
use penstock_net::{Deadline, ResponseBody};
use tokio::time::Instant;

use crate::{
    error::Result,
    response::{delivery::StreamFraming, response_meter::ResponseMeter},
};

/// Maximum length of a beginning that is buffered. An error is never longer.
const MAX_BUFFERED_BYTES: usize = 64 * 1024;
/// Time for which the client waits for content after the first bytes. A stream that consists of comments and pings must
/// still reach the client.
const MAX_WAIT_FOR_CONTENT: Duration = Duration::from_secs(2);

/// Beginning of a stream, up to the first event with content.
pub(super) struct StreamBeginning {
    pub bytes: Bytes,
    /// True if the provider has sent everything.
    pub has_ended: bool,
}

/// Reads up to the first event with content, for at most `max_wait`. Returns the bytes that were read, and puts them
/// back into `body`. `meter` decides whether there was content.
pub(super) async fn peek_beginning(
    body: &mut ResponseBody,
    deadline: &mut Deadline,
    meter: &mut ResponseMeter,
    max_wait: Duration,
) -> Result<StreamBeginning> {
    let (mut buffered, mut has_ended) = (BytesMut::new(), false);
    let (mut remaining, mut first_read_at) = (max_wait, None);
    while meter.is_undecided() && buffered.len() <= MAX_BUFFERED_BYTES {
        let has_begun = first_read_at.is_some();
        let reading = async {
            let next = async { body.next_chunk().await.transpose() };
            // The timeout of a request ends with the first bytes of its response.
            if has_begun { next.await } else { deadline.enforce(next).await }
        };
        // The stream starts after this time, whatever was read.
        let Ok(read) = tokio::time::timeout(remaining, Box::pin(reading)).await else { break };
        let Some(chunk) = read? else {
            has_ended = true;
            break;
        };
        meter.feed(&chunk);
        buffered.extend_from_slice(&chunk);
        let first_read_at: &mut Instant = first_read_at.get_or_insert_with(Instant::now);
        remaining = remaining.min(MAX_WAIT_FOR_CONTENT.saturating_sub(first_read_at.elapsed()));
    }
    let bytes = buffered.freeze();
    if !bytes.is_empty() {
        body.put_back(bytes.clone());
    }
    Ok(StreamBeginning { bytes, has_ended })
}

/// Returns the message of the first event that is an error, in whatever format, if it comes before any content.
pub(super) fn first_error_message(framing: StreamFraming, operation: Operation, stream: &[u8]) -> Option<String> {
    let error = match framing {
        StreamFraming::SseEvents => {
            let mut events = sse::split_events(stream).filter_map(sse::event_data);
            let first = events.find(|data| !is_without_content(data))?;
            translation::hidden_error_status(operation, &first)?;
            first
        }
        StreamFraming::AwsFrames => {
            let mut decoder = FrameDecoder::new(MAX_BUFFERED_BYTES);
            decoder.push_chunk(stream);
            let mut frames = std::iter::from_fn(|| decoder.next_frame()?.ok());
            let first = frames.find(|frame| frame.is_exception || !is_opening_frame(&frame.event_name))?;
            Some(first).filter(|frame| frame.is_exception)?.payload.to_vec().into()
        }
        StreamFraming::JsonArrayItems => {
            translation::hidden_error_status(operation, stream)?;
            stream.into()
        }
    };
    Some(translation::error_message(&error).unwrap_or_else(|| "it gave no reason".to_owned()))
}
