//! The line of JSON that a record becomes.

use std::{
    borrow::Cow,
    time::{Duration, UNIX_EPOCH},
};

use penstock_llm::{operation::Operation, usage::Usage};
use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::{
    masking::{Masked, masked_url},
    metadata::Metadata,
    prices::Cost,
    record::{Facts, Outcome, Record},
    routing::decision::Step,
};

#[derive(Serialize)]
#[allow(clippy::option_option, reason = "what is not said and what is null are two things")]
pub struct Line<'a> {
    id: Uuid,
    created_at: String,
    trace_id: Text<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    span_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    span_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<&'a str>,
    request_method: &'a str,
    request_url: Cow<'a, str>,
    response_status_code: u16,
    is_success: bool,
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// Milliseconds, as all times here.
    response_time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_to_first_byte: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_response_time: Option<f64>,
    ai_org: &'a str,
    ai_model: &'a str,
    operation: &'a str,
    mode: &'static str,
    is_proxy_call: bool,
    stream_mode: bool,
    #[serde(flatten)]
    units: Option<Units>,
    /// Null where tokens were used and no price of them is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_nanodollars: Option<Option<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_currency: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price_version: Option<&'a str>,
    cache_status: &'static str,
    retry_success_count: i32,
    last_used_option_index: &'a str,
    #[serde(skip_serializing_if = "<[Step]>::is_empty")]
    decisions: &'a [Step],
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a str>,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: &'a Metadata,
    bytes_out: u64,
    worker: u32,
    request_headers: Masked<'a>,
}

#[derive(Serialize)]
struct Units {
    #[serde(rename = "req_units")]
    request: u64,
    #[serde(rename = "res_units")]
    response: u64,
    #[serde(rename = "total_units")]
    total: u64,
    #[serde(rename = "usage", skip_serializing_if = "Option::is_none")]
    parts: Option<Parts>,
    /// Counted here, not by the provider.
    #[serde(rename = "units_estimated", skip_serializing_if = "std::ops::Not::not")]
    estimated: bool,
}

/// The parts of which the units are the sums, where they are more than text asked and text answered.
#[derive(Serialize, PartialEq, Eq, Default)]
struct Parts {
    #[serde(skip_serializing_if = "is_zero")]
    input: u64,
    #[serde(skip_serializing_if = "is_zero")]
    output: u64,
    #[serde(skip_serializing_if = "is_zero")]
    cache_read: u64,
    #[serde(skip_serializing_if = "is_zero")]
    cache_write_5m: u64,
    #[serde(skip_serializing_if = "is_zero")]
    cache_write_1h: u64,
    #[serde(skip_serializing_if = "is_zero")]
    reasoning: u64,
    #[serde(skip_serializing_if = "is_zero")]
    audio_in: u64,
    #[serde(skip_serializing_if = "is_zero")]
    audio_out: u64,
    #[serde(skip_serializing_if = "is_zero")]
    cache_read_audio: u64,
    #[serde(skip_serializing_if = "is_zero")]
    cache_read_image: u64,
    #[serde(skip_serializing_if = "is_zero")]
    image_in: u64,
    #[serde(skip_serializing_if = "is_zero")]
    image_out: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Parts {
    /// None where there are two at most, which the units tell.
    fn of(usage: &Usage) -> Option<Self> {
        let Usage { input, output, cache_read, cache_write_5m, cache_write_1h, reasoning, .. } = *usage;
        let Usage { audio_in, audio_out, cache_read_audio, cache_read_image, image_in, image_out, .. } = *usage;
        (input.saturating_add(output) != usage.total()).then_some(Self {
            input,
            output,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            reasoning,
            audio_in,
            audio_out,
            cache_read_audio,
            cache_read_image,
            image_in,
            image_out,
        })
    }
}

enum Text<'a> {
    Given(&'a str),
    Id(Uuid),
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Given(text) => serializer.serialize_str(text),
            Self::Id(id) => id.serialize(serializer),
        }
    }
}

impl<'a> Line<'a> {
    pub fn new(record: &'a Record, cost: Option<&'a Cost>, outcome: Outcome, took: Duration) -> Self {
        let Facts { status, usage, .. } = &*record.facts;
        let facts = &record.facts;
        let decision = facts.decision.as_deref();
        Self {
            id: record.id,
            created_at: humantime::format_rfc3339_millis(UNIX_EPOCH + record.created).to_string(),
            trace_id: facts.trace_id.as_deref().map_or(Text::Id(record.id), Text::Given),
            span_id: facts.span_id.as_deref(),
            span_name: facts.span_name.as_deref(),
            parent_span_id: facts.parent_span_id.as_deref(),
            request_method: &record.head.method,
            request_url: masked_url(&record.head),
            response_status_code: *status,
            is_success: ((200..300).contains(status) || *status == 101)
                && outcome == Outcome::Complete
                && facts.error.is_none(),
            outcome,
            error: facts.error,
            response_time: milliseconds(took),
            time_to_first_byte: facts.first_byte.map(milliseconds),
            upstream_response_time: facts.upstream.map(milliseconds),
            ai_org: facts.provider,
            ai_model: &facts.model,
            operation: facts.operation.map_or("", Operation::id),
            mode: decision.map_or("single", |decision| decision.strategy),
            is_proxy_call: facts.is_proxy,
            stream_mode: facts.stream,
            units: usage.as_ref().map(Units::of),
            cost_nanodollars: (usage.is_some() || cost.is_some()).then(|| cost.map(|cost| cost.nanodollars)),
            cost_currency: cost.map(|_| "USD"),
            price_version: cost.and_then(|cost| cost.price_version.as_deref()),
            cache_status: decision.map_or("disabled", |decision| decision.cache.name()),
            retry_success_count: decision.map_or(0, |decision| decision.retries),
            last_used_option_index: decision.map_or("config", |decision| &*decision.option),
            decisions: decision.map_or(&[], |decision| &decision.steps),
            api_key_id: facts.api_key_id.as_deref(),
            config: facts.config.as_deref(),
            metadata: &facts.metadata,
            bytes_out: facts.bytes_out,
            worker: record.sink.worker,
            request_headers: Masked {
                headers: &record.head.headers,
                listed: &facts.masked,
                always: &record.sink.sensitive,
            },
        }
    }
}

impl Units {
    fn of(usage: &Usage) -> Self {
        let (request, response) = (usage.total_in(), usage.total_out());
        let total = request.saturating_add(response);
        Self { request, response, total, parts: Parts::of(usage), estimated: usage.estimated }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_micros() as f64) / 1000.0
}
