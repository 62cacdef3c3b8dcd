//! JSON line serialiser of records.

use std::time::Duration;

use penstock_llm::{
    operation::Operation,
    usage::{ToolUses, Usage},
};
use uuid::Uuid;

use crate::accounting::{
    prices::Cost,
    record::{
        Detail, Outcome, Record, RequestLog,
        json_writer::{ObjectWriter, write_object},
        masking::{mask_url, write_masked_headers},
    },
    routing_decision::RoutingStep,
};

/// Appends the record as one JSON object. All durations are in milliseconds.
pub fn write_record(lines: &mut Vec<u8>, record: &Record, cost: Option<&Cost>, outcome: Outcome, took: Duration) {
    write_object(lines, |line| {
        write_ids(line, record);
        line.text("request_method", &record.head.method);
        line.text("request_url", &mask_url(&record.head));
        write_response_fields(line, &record.log, outcome, took);
        write_request_fields(line, &record.log);
        write_usage(line, record.log.billing.usage.as_ref(), cost);
        write_decision(line, &record.log);
        write_events(line, &record.log);
        write_optional_text(line, "api_key_id", record.log.api_key_id.as_deref());
        write_optional_text(line, "config", record.log.config_slug.as_deref());
        if !record.log.metadata.is_empty() {
            line.serialize_value("metadata", &record.log.metadata);
        }
        line.number("bytes_out", record.log.bytes_out);
        line.number("worker", record.sink.worker);
        if record.log.detail == Detail::MetricsOnly {
            line.boolean("debug", false);
        } else {
            line.object("request_headers", |fields| {
                write_masked_headers(
                    fields,
                    &record.head.headers,
                    &[&record.log.masked_headers, &record.sink.sensitive_headers],
                );
            });
        }
    });
}

fn write_ids(line: &mut ObjectWriter<'_>, record: &Record) {
    let RequestLog { trace_id, span_id, span_name, parent_span_id, .. } = &*record.log;
    let mut id = Uuid::encode_buffer();
    let id: &str = record.id.hyphenated().encode_lower(&mut id);
    line.text("id", id);
    line.timestamp("created_at", record.created_at);
    line.text("trace_id", trace_id.as_deref().unwrap_or(id));
    write_optional_text(line, "span_id", span_id.as_deref());
    write_optional_text(line, "span_name", span_name.as_deref());
    write_optional_text(line, "parent_span_id", parent_span_id.as_deref());
}

fn write_response_fields(line: &mut ObjectWriter<'_>, log: &RequestLog, outcome: Outcome, took: Duration) {
    let RequestLog { status, error_code: error, time_to_first_byte: first_byte, upstream_latency: upstream, .. } = log;
    let is_good = (200..300).contains(status) || *status == 101;
    line.number("response_status_code", *status);
    line.boolean("is_success", is_good && outcome == Outcome::Complete && error.is_none());
    line.text("outcome", outcome.name());
    write_optional_text(line, "error", *error);
    line.milliseconds("response_time", took);
    for (key, duration) in [("time_to_first_byte", first_byte), ("upstream_response_time", upstream)] {
        if let Some(duration) = duration {
            line.milliseconds(key, *duration);
        }
    }
}

fn write_request_fields(line: &mut ObjectWriter<'_>, log: &RequestLog) {
    line.text("ai_org", log.provider);
    line.text("ai_model", log.resolved_model());
    line.text("operation", log.operation.map_or("", Operation::id));
    line.text("mode", log.decision.as_ref().map_or("single", |decision| decision.strategy));
    line.boolean("is_proxy_call", log.is_proxy);
    line.boolean("stream_mode", log.is_streaming);
    if let Some(recorded) = log.audio_duration {
        line.milliseconds("audio_file_duration", recorded);
    }
}

fn write_usage(line: &mut ObjectWriter<'_>, usage: Option<&Usage>, cost: Option<&Cost>) {
    if let Some(usage) = usage {
        let (request, response) = (usage.total_input(), usage.total_output());
        line.number("req_units", request);
        line.number("res_units", response);
        line.number("total_units", request.saturating_add(response));
        // Input and output alone are already given by the units.
        if usage.input.saturating_add(usage.output) != usage.total() || usage.tool_uses != ToolUses::default() {
            line.object("usage", |parts| write_usage_parts(parts, usage));
        }
        if usage.is_estimated {
            line.boolean("units_estimated", true);
        }
    }
    let Some(cost) = cost else {
        // Tokens were used, but no price for them is known.
        if usage.is_some() {
            line.null("cost_nanodollars");
        }
        return;
    };
    line.number("cost_nanodollars", cost.nanodollars);
    line.text("cost_currency", "USD");
    write_optional_text(line, "price_version", cost.price_version.as_deref());
}

/// Writes the parts of which the units are sums, and the tool uses.
fn write_usage_parts(parts: &mut ObjectWriter<'_>, usage: &Usage) {
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
        ("web_searches", usage.tool_uses.web_searches),
        ("file_searches", usage.tool_uses.file_searches),
        ("x_searches", usage.tool_uses.x_searches),
        ("code_executions", usage.tool_uses.code_executions),
        ("attachment_searches", usage.tool_uses.attachment_searches),
        ("maps", usage.tool_uses.maps),
        ("rankings", usage.tool_uses.rankings),
    ];
    for (key, count) in counts {
        if count > 0 {
            parts.number(key, count);
        }
    }
}

fn write_decision(line: &mut ObjectWriter<'_>, log: &RequestLog) {
    let decision = log.decision.as_deref();
    line.text("cache_status", decision.map_or("disabled", |decision| decision.cache_status.name()));
    line.number("retry_success_count", decision.map_or(0, |decision| decision.retry_count));
    line.text("last_used_option_index", decision.map_or("config", |decision| &decision.selected_target));
    match (decision, log.provider_source) {
        (Some(decision), _) if !decision.steps.is_empty() => {
            line.list("decisions", &decision.steps, |out, step| step.write_json(out));
        }
        (None, Some(by)) => {
            let step = RoutingStep::Named { at: "config", provider: log.provider, by };
            line.list("decisions", &[step], |out, step| step.write_json(out));
        }
        _ => (),
    }
}

/// Writes the session events in order: session states, usage of its responses, and errors.
fn write_events(line: &mut ObjectWriter<'_>, log: &RequestLog) {
    let Some(events) = &log.events else { return };
    line.list("events", &events.entries, |out, (after, mark)| {
        write_object(out, |event| {
            event.text("type", &mark.event_type);
            event.milliseconds("after", *after);
            write_optional_text(event, "word", mark.status.as_deref());
            if let Some(usage) = &mark.usage {
                event.number("req_units", usage.total_input());
                event.number("res_units", usage.total_output());
            }
        });
    });
    if events.dropped_count > 0 {
        line.number("events_left_out", events.dropped_count);
    }
}

fn write_optional_text(line: &mut ObjectWriter<'_>, key: &str, value: Option<&str>) {
    if let Some(value) = value {
        line.text(key, value);
    }
}
