//! The line of JSON that a record becomes.

use std::time::Duration;

use penstock_llm::{
    operation::Operation,
    usage::{Tools, Usage},
};
use uuid::Uuid;

use crate::{
    accounting::{
        prices::Cost,
        record::{
            Detail, Facts, Outcome, Record,
            json_writer::{Members, write_object},
            masking::{masked_headers, masked_url},
        },
    },
    routing::decision::Step,
};

/// Writes it. All times are milliseconds.
pub fn write(lines: &mut Vec<u8>, record: &Record, cost: Option<&Cost>, outcome: Outcome, took: Duration) {
    write_object(lines, |line| {
        ids(line, record);
        line.text("request_method", &record.head.method);
        line.text("request_url", &masked_url(&record.head));
        answered(line, &record.facts, outcome, took);
        asked(line, &record.facts);
        used(line, record.facts.paid.usage.as_ref(), cost);
        decided(line, &record.facts);
        happened(line, &record.facts);
        some(line, "api_key_id", record.facts.api_key_id.as_deref());
        some(line, "config", record.facts.config.as_deref());
        if !record.facts.metadata.is_empty() {
            line.value("metadata", &record.facts.metadata);
        }
        line.number("bytes_out", record.facts.bytes_out);
        line.number("worker", record.sink.worker);
        if record.facts.detail == Detail::Figures {
            line.flag("debug", false);
        } else {
            line.object("request_headers", |fields| {
                masked_headers(fields, &record.head.headers, &[&record.facts.masked, &record.sink.sensitive]);
            });
        }
    });
}

fn ids(line: &mut Members<'_>, record: &Record) {
    let Facts { trace_id, span_id, span_name, parent_span_id, .. } = &*record.facts;
    let mut id = Uuid::encode_buffer();
    let id: &str = record.id.hyphenated().encode_lower(&mut id);
    line.text("id", id);
    line.moment("created_at", record.created);
    line.text("trace_id", trace_id.as_deref().unwrap_or(id));
    some(line, "span_id", span_id.as_deref());
    some(line, "span_name", span_name.as_deref());
    some(line, "parent_span_id", parent_span_id.as_deref());
}

fn answered(line: &mut Members<'_>, facts: &Facts, outcome: Outcome, took: Duration) {
    let Facts { status, error, first_byte, upstream, .. } = facts;
    let is_good = (200..300).contains(status) || *status == 101;
    line.number("response_status_code", *status);
    line.flag("is_success", is_good && outcome == Outcome::Complete && error.is_none());
    line.text("outcome", outcome.name());
    some(line, "error", *error);
    line.milliseconds("response_time", took);
    for (key, duration) in [("time_to_first_byte", first_byte), ("upstream_response_time", upstream)] {
        if let Some(duration) = duration {
            line.milliseconds(key, *duration);
        }
    }
}

fn asked(line: &mut Members<'_>, facts: &Facts) {
    line.text("ai_org", facts.provider);
    line.text("ai_model", facts.model_told());
    line.text("operation", facts.operation.map_or("", Operation::id));
    line.text("mode", facts.decision.as_ref().map_or("single", |decision| decision.strategy));
    line.flag("is_proxy_call", facts.is_proxy);
    line.flag("stream_mode", facts.stream);
    if let Some(recorded) = facts.recorded {
        line.milliseconds("audio_file_duration", recorded);
    }
}

fn used(line: &mut Members<'_>, usage: Option<&Usage>, cost: Option<&Cost>) {
    if let Some(usage) = usage {
        let (request, response) = (usage.total_in(), usage.total_out());
        line.number("req_units", request);
        line.number("res_units", response);
        line.number("total_units", request.saturating_add(response));
        // Where there are two parts at most the units tell them.
        if usage.input.saturating_add(usage.output) != usage.total() || usage.tools != Tools::default() {
            line.object("usage", |parts| tell_parts(parts, usage));
        }
        if usage.estimated {
            line.flag("units_estimated", true);
        }
    }
    let Some(cost) = cost else {
        // Tokens were used, and no price of them is known.
        if usage.is_some() {
            line.null("cost_nanodollars");
        }
        return;
    };
    line.number("cost_nanodollars", cost.nanodollars);
    line.text("cost_currency", "USD");
    some(line, "price_version", cost.price_version.as_deref());
}

/// The parts of which the units are the sums, and what was used besides.
fn tell_parts(parts: &mut Members<'_>, usage: &Usage) {
    let counts = [
        ("input", usage.input),
        ("output", usage.output),
        ("cache_read", usage.cache_read),
        ("cache_write_5m", usage.cache_write_5m),
        ("cache_write_1h", usage.cache_write_1h),
        ("reasoning", usage.reasoning),
        ("audio_in", usage.audio_in),
        ("audio_out", usage.audio_out),
        ("cache_read_audio", usage.cache_read_audio),
        ("cache_read_image", usage.cache_read_image),
        ("image_in", usage.image_in),
        ("image_out", usage.image_out),
        ("web_searches", usage.tools.web_searches),
        ("file_searches", usage.tools.file_searches),
        ("x_searches", usage.tools.x_searches),
        ("code_executions", usage.tools.code_executions),
        ("attachment_searches", usage.tools.attachment_searches),
        ("maps", usage.tools.maps),
        ("rankings", usage.tools.rankings),
    ];
    for (key, count) in counts {
        if count > 0 {
            parts.number(key, count);
        }
    }
}

fn decided(line: &mut Members<'_>, facts: &Facts) {
    let decision = facts.decision.as_deref();
    line.text("cache_status", decision.map_or("disabled", |decision| decision.cache.name()));
    line.number("retry_success_count", decision.map_or(0, |decision| decision.retries));
    line.text("last_used_option_index", decision.map_or("config", |decision| &decision.option));
    match (decision, facts.named_by) {
        (Some(decision), _) if !decision.steps.is_empty() => {
            line.list("decisions", &decision.steps, |out, step| step.write(out));
        }
        (None, Some(by)) => {
            let step = Step::Named { at: "config", provider: facts.provider, by };
            line.list("decisions", &[step], |out, step| step.write(out));
        }
        _ => (),
    }
}

/// How a session stood, what its responses used and what went wrong in it, in the order in which it came.
fn happened(line: &mut Members<'_>, facts: &Facts) {
    let Some(events) = &facts.events else { return };
    line.list("events", &events.told, |out, (after, mark)| {
        write_object(out, |event| {
            event.text("type", &mark.kind);
            event.milliseconds("after", *after);
            some(event, "word", mark.word.as_deref());
            if let Some(usage) = &mark.usage {
                event.number("req_units", usage.total_in());
                event.number("res_units", usage.total_out());
            }
        });
    });
    if events.left_out > 0 {
        line.number("events_left_out", events.left_out);
    }
}

fn some(line: &mut Members<'_>, key: &str, value: Option<&str>) {
    if let Some(value) = value {
        line.text(key, value);
    }
}
