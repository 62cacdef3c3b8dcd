//! Meter of a response: reads its usage, and whether it is complete, as the bytes pass through.

use penstock_llm::{
    api_format::ApiFormat,
    stream::{
        frame_meter::FrameMeter,
        item_meter::ItemMeter,
        meter::{SseMeter, StreamSummary},
        skim::ResponseSkimmer,
    },
    usage::Usage,
};

use crate::accounting::{
    compressed_response::CompressedResponse,
    record::{Outcome, Record},
    token_counting::CountableResponse,
};

/// Meter of one response, chosen by its framing and compression.
#[derive(Default)]
pub enum ResponseMeter {
    SseEvents(Box<SseMeter>),
    /// AWS event stream of binary frames.
    AwsFrames(Box<FrameMeter>),
    /// Stream in the form of one JSON array.
    ArrayItems(Box<(ItemMeter, ResponseSkimmer)>),
    /// Complete response that is too large to buffer.
    LargeBody(ResponseSkimmer),
    Compressed(CompressedResponse),
    #[default]
    Unmetered,
}

/// Result of metering a response.
#[derive(Default)]
pub struct MeteredResponse {
    usage: Option<Usage>,
    /// Content from which tokens are counted if `usage` is `None`.
    countable_content: Option<CountableResponse>,
    pub(super) is_event_stream: bool,
    /// True if the response contained its end marker; `None` if this kind of response has no end marker.
    pub has_end_marker: Option<bool>,
    pub has_failed: bool,
    /// Number of generated images.
    image_count: Option<u64>,
    /// ID of the response that continues in the background.
    background_response_id: Option<String>,
}

impl MeteredResponse {
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Closes the record with the metered values. Defers billing if the response continues in the background without
    /// usage so far.
    pub(super) fn settle_record(self, mut record: Record, outcome: Outcome) {
        let Self { usage, countable_content, image_count, background_response_id, .. } = self;
        record.log.billing.image_count = image_count;
        // The provider bills the input of a stream that was cancelled before its first output.
        let is_cancelled = outcome == Outcome::Aborted || record.log.error_code == Some("idle_timeout");
        let countable_content = countable_content
            .or_else(|| (is_cancelled && record.log.is_sent).then_some(CountableResponse::ByteLength(0)));
        let is_charge_deferred =
            usage.is_none() && background_response_id.is_some_and(|id| record.log.defer_charge(&id));
        record.finish(usage, countable_content.filter(|_| !is_charge_deferred), outcome);
    }
}

impl ResponseMeter {
    pub fn feed(&mut self, bytes: &[u8]) {
        match self {
            Self::SseEvents(meter) => meter.feed(bytes),
            Self::AwsFrames(meter) => meter.feed(bytes),
            Self::ArrayItems(read) => {
                read.0.feed(bytes);
                read.1.feed(bytes);
            }
            Self::LargeBody(skim) => skim.feed(bytes),
            Self::Compressed(packed) => packed.feed(bytes),
            Self::Unmetered => (),
        }
    }

    /// Returns true if nothing decides yet whether the stream is a response: no content, no finish reason, no failure and
    /// no end.
    pub fn is_undecided(&self) -> bool {
        match self {
            Self::SseEvents(meter) => !meter.has_content() && !meter.has_error_event() && !meter.has_empty_end(),
            Self::AwsFrames(meter) => !meter.has_content(),
            Self::ArrayItems(read) => !read.0.has_items(),
            Self::LargeBody(_) | Self::Compressed(_) | Self::Unmetered => false,
        }
    }

    /// Returns true if the stream ended without content.
    pub fn has_empty_end(&self) -> bool {
        matches!(self, Self::SseEvents(meter) if meter.has_empty_end())
    }

    /// Returns how many of the bytes read last belong to an incomplete event.
    pub fn incomplete_bytes(&self) -> usize {
        if let Self::SseEvents(meter) = self { meter.incomplete_bytes() } else { 0 }
    }

    /// Returns the metered values. `is_cut` is true if the response was truncated.
    pub fn finish(self, api_format: ApiFormat, is_cut: bool) -> MeteredResponse {
        match self {
            Self::Unmetered => MeteredResponse::default(),
            Self::Compressed(packed) => MeteredResponse {
                countable_content: Some(CountableResponse::Compressed(packed)),
                ..MeteredResponse::default()
            },
            Self::LargeBody(mut skim) => {
                let image_count = skim.take_image_count();
                let countable_content = Some(CountableResponse::ByteLength(skim.length()));
                MeteredResponse {
                    usage: skim.finish(api_format),
                    countable_content,
                    image_count,
                    ..MeteredResponse::default()
                }
            }
            Self::AwsFrames(meter) => {
                // Usage comes at the end, so a truncated stream has none.
                let text_bytes = Some(meter.text_bytes()).filter(|length| is_cut && *length > 0);
                let countable_content = text_bytes.map(CountableResponse::ByteLength);
                let StreamSummary { usage, is_terminated: terminated, has_error_event: failed, .. } = meter.finish();
                MeteredResponse {
                    usage,
                    countable_content: countable_content.filter(|_| usage.is_none() && !failed),
                    is_event_stream: true,
                    has_end_marker: Some(failed || terminated),
                    has_failed: failed,
                    ..MeteredResponse::default()
                }
            }
            Self::ArrayItems(read) => {
                let (meter, skim) = *read;
                let countable_content = Some(CountableResponse::ByteLength(skim.length()));
                let (has_end_marker, failed) = (Some(meter.has_ended()), meter.has_failed());
                MeteredResponse {
                    usage: skim.finish(api_format),
                    countable_content,
                    has_end_marker,
                    has_failed: failed,
                    ..MeteredResponse::default()
                }
            }
            Self::SseEvents(meter) => summarise_event_stream(meter.finish(), is_cut),
        }
    }
}

/// Returns the metered values of an event stream. `is_cut` is true if the stream was truncated.
fn summarise_event_stream(summary: StreamSummary, is_cut: bool) -> MeteredResponse {
    let StreamSummary {
        usage, is_terminated, has_finish_reasons, has_error_event, deltas, background_response_id, ..
    } = summary;
    // A response that failed before its first output has cost nothing.
    let deltas = deltas.filter(|deltas| !deltas.is_empty() || (is_terminated && !has_error_event));
    // After the event that ends the response, it does not matter how the connection ends.
    let has_end_marker = has_error_event || is_terminated || (has_finish_reasons && !is_cut);
    MeteredResponse {
        usage,
        countable_content: deltas.map(CountableResponse::Deltas),
        is_event_stream: true,
        has_end_marker: Some(has_end_marker),
        has_failed: has_error_event,
        background_response_id,
        ..MeteredResponse::default()
    }
}
