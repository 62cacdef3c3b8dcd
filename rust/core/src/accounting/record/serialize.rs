//! JSON line serialiser of records.

use std::{sync::atomic::Ordering, time::Duration};

use penstock_llm::{
    operation::Operation,
    usage::{ServiceTier, ToolUses, Usage},
};
use uuid::Uuid;

use crate::accounting::{
    prices::Cost,
    record::{
        Detail, Outcome, PendingUsage, Record, RequestLog,
        details::{RecordIdentity, write_sdk},
        json_writer::{ObjectWriter, write_object},
        masking::{mask_url, write_masked_headers},
        metadata,
    },
    routing_decision::{CacheStatus, RoutingStep},
    spool::{BodyStatus, SpoolEntry},
};
use crate::ingress::message::RequestHead;

/// Maximum length of a record. A longer one is written without its fields of variable length.
const MAX_RECORD_BYTES: usize = 128 * 1024;
/// Maximum length of a string in a record that the client chooses.
const MAX_TEXT_BYTES: usize = 8 * 1024;
/// Maximum length of a string from a client without a valid key, or in a record that would exceed `MAX_RECORD_BYTES`.
const MAX_STRANGER_TEXT_BYTES: usize = 256;

/// Maximum length of the results of guardrails, including the data of their checks. Longer results are written without
/// this data.
const MAX_HOOK_RESULT_BYTES: usize = 32 * 1024;

/// Appends the record as one JSON object. All durations are in milliseconds.
pub fn write_record(
    lines: &mut Vec<u8>,
    record: &Record,
    cost: Option<&Cost>,
    outcome: Outcome,
    elapsed: Duration,
    bodies: Option<BodyStatus>,
) {
    let start = lines.len();
    write_full_record(lines, record, cost, outcome, elapsed, bodies);
    if lines.len() - start > MAX_RECORD_BYTES {
        lines.truncate(start);
        write_object(lines, |line| {
            write_basics(line, record, MAX_STRANGER_TEXT_BYTES, outcome, elapsed);
            write_usage(line, record.log.billing.usage.as_ref(), cost);
            write_pending_usage(line, record);
            record.log.details.write_identity(line);
            write_source(line, &record.head);
            write_prompt(line, &record.head);
            line.optional_text("api_key_id", record.log.api_key_id.as_deref());
            let user = record.log.metadata.get(metadata::USER_KEY);
            line.optional_text("user", user.map(|user| cut_text(user, MAX_STRANGER_TEXT_BYTES)));
            write_limits(line, &record.log);
            line.optional_text("body", bodies.map(BodyStatus::name));
            write_peer(line, record);
            line.boolean("is_shortened", true);
        });
    }
}

/// Appends the record of a request without a valid key. It contains nothing from the headers, the query or the body.
pub fn write_refused_record(lines: &mut Vec<u8>, record: &Record, outcome: Outcome, elapsed: Duration) {
    write_object(lines, |line| {
        write_basics(line, record, MAX_STRANGER_TEXT_BYTES, outcome, elapsed);
        if let Some(peer) = record.head.peer_ip {
            line.text("peer", &peer.to_string());
        }
    });
}

/// Writes the fields that every record has. Strings are cut after `limit` bytes.
fn write_basics(line: &mut ObjectWriter<'_>, record: &Record, limit: usize, outcome: Outcome, elapsed: Duration) {
    let log = &record.log;
    let mut id = Uuid::encode_buffer();
    let id: &str = record.id.hyphenated().encode_lower(&mut id);
    line.text("id", id);
    line.timestamp("created_at", record.created_at);
    line.text("trace_id", cut_text(log.trace_id.as_deref().unwrap_or(id), limit));
    line.text("request_method", cut_text(&record.head.method, limit));
    line.text("request_url", cut_text(&record.head.path, limit));
    write_response_fields(line, log, outcome, elapsed);
    line.text("ai_org", log.provider);
    line.text("ai_model", cut_text(log.resolved_model(), limit));
    line.text("operation", log.operation.map_or("", Operation::id));
    line.number("bytes_out", log.bytes_out);
    line.number("worker", record.sink.worker);
}

/// Writes the client's network address, if the settings ask for it.
fn write_peer(line: &mut ObjectWriter<'_>, record: &Record) {
    if let Some(peer) = record.head.peer_ip.filter(|_| record.sink.records_peers) {
        line.text("peer", &peer.to_string());
    }
}

/// Returns the beginning of a text, of at most this many bytes.
fn cut_text(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

/// Appends the beginning of a record: the fields that are known before the request is sent. If the process is killed,
/// the record has no other fields.
pub fn write_begin(out: &mut Vec<u8>, entry: &SpoolEntry, head: &RequestHead, log: &RequestLog, worker: u32) {
    write_object(out, |line| {
        write_ids(line, entry.id, entry.created_at, log, head);
        line.text("request_method", cut_text(&head.method, MAX_STRANGER_TEXT_BYTES));
        line.text("request_url", cut_text(&mask_url(head), MAX_TEXT_BYTES));
        write_request_fields(line, log);
        write_caller(line, log);
        write_prompt(line, head);
        write_limits(line, log);
        line.number("worker", worker);
    });
}

/// Appends the fields that became known after the end of a record was written.
pub fn write_amendment(out: &mut Vec<u8>, record: &Record, cost: Option<&Cost>, shows_data: bool) {
    let log = &record.log;
    write_object(out, |line| {
        line.text("ai_model", cut_text(log.resolved_model(), MAX_TEXT_BYTES));
        write_usage(line, log.billing.usage.as_ref(), cost);
        // Repeated here, because the ledger adds the usage of an amendment without reading its record.
        write_limits(line, log);
        if log.details.has_late_hooks() {
            // Repeated here, because feedback of guardrails is stored without reading the record.
            let RecordIdentity { organisation_id, workspace_id, .. } = &log.details.identity;
            line.timestamp("created_at", record.created_at);
            line.optional_text("trace_id", log.trace_id.as_deref());
            line.optional_text("organisation_id", organisation_id.as_deref());
            line.optional_text("workspace_id", workspace_id.as_deref());
            write_hook_results(line, log, shows_data);
        }
    });
}

/// Writes who sent the request, and with which config.
fn write_caller(line: &mut ObjectWriter<'_>, log: &RequestLog) {
    log.details.write_identity(line);
    line.optional_text("api_key_id", log.api_key_id.as_deref());
    line.optional_text("user", log.metadata.get(metadata::USER_KEY));
    if !log.metadata.is_empty() {
        line.serialize_value("metadata", &log.metadata);
    }
}

/// Writes the source of the request: `comparison` for a comparison of prompts, else `gateway`.
fn write_source(line: &mut ObjectWriter<'_>, head: &RequestHead) {
    let is_comparison = head.prompt.as_ref().is_some_and(|prompt| prompt.is_comparison);
    line.text("source", if is_comparison { "comparison" } else { "gateway" });
}

/// Writes the prompt from which the request was rendered.
fn write_prompt(line: &mut ObjectWriter<'_>, head: &RequestHead) {
    let Some(prompt) = &head.prompt else { return };
    line.text("prompt_id", &prompt.id);
    line.text("prompt_slug", &prompt.slug);
    line.text("prompt_version_id", &prompt.version_id);
    line.number("prompt_version", prompt.version);
    line.optional_text("prompt_label", prompt.label.as_deref());
}

/// Writes the variables of the prompt. Without `keeps_values`, writes only their names.
fn write_prompt_variables(line: &mut ObjectWriter<'_>, head: &RequestHead, keeps_values: bool) {
    let variables = head.prompt.as_ref().and_then(|prompt| prompt.variables.as_object());
    let Some(variables) = variables.filter(|variables| !variables.is_empty()) else { return };
    if keeps_values {
        line.serialize_value("prompt_variables", variables);
    } else {
        line.object("prompt_variables", |fields| variables.keys().for_each(|name| fields.null(name)));
    }
}

/// Writes the limits that rejected the request, and the budgets that it counts for.
fn write_limits(line: &mut ObjectWriter<'_>, log: &RequestLog) {
    let Some(holds) = &log.limits else { return };
    let budgets: Vec<_> = holds.budget_uses().collect();
    if budgets.is_empty() && holds.rejections().is_empty() {
        return;
    }
    line.object("limits", |fields| {
        fields.optional_text("rejected_by", holds.rejected_by());
        if !holds.would_reject().is_empty() {
            fields.serialize_value("would_reject", &holds.would_reject());
        }
        if !holds.rejections().is_empty() {
            fields.list("rejections", holds.rejections(), |out, rejection| {
                write_object(out, |row| {
                    row.text("id", &rejection.limit_id);
                    row.text("group", &rejection.group);
                    if rejection.is_dry_run {
                        row.boolean("dry_run", true);
                    }
                });
            });
        }
        fields.list("budgets", &budgets, |out, budget| {
            write_object(out, |row| {
                row.text("id", budget.limit_id);
                row.text("group", budget.group);
                row.number("period_start", budget.period_start_ms);
                row.text("type", budget.measure.name());
                if budget.is_failed_attempt {
                    row.boolean("is_failed_attempt", true);
                }
                if let Some(amount) = budget.discarded_amount {
                    row.number("amount", amount.min(i64::MAX.unsigned_abs()));
                }
            });
        });
    });
}

/// Writes the results of guardrails. The data of the checks may contain parts of texts. It is left out if bodies are not
/// recorded, or if a guardrail of another target redacts them.
fn write_hook_results(line: &mut ObjectWriter<'_>, log: &RequestLog, shows_data: bool) {
    let Some(shared) = log.details.hook_results() else { return };
    let results = shared.lock();
    if results.is_empty() {
        return;
    }
    let shows_data = shows_data && log.detail != Detail::MetricsOnly && !log.bodies.hides_unredacted_texts();
    let is_short = line.serialize_if_short("hook_results", &results.log_view(shows_data), MAX_HOOK_RESULT_BYTES);
    if !is_short {
        line.serialize_value("hook_results", &results.log_view(false));
    }
}

fn write_full_record(
    lines: &mut Vec<u8>,
    record: &Record,
    cost: Option<&Cost>,
    outcome: Outcome,
    elapsed: Duration,
    bodies: Option<BodyStatus>,
) {
    write_object(lines, |line| {
        write_ids(line, record.id, record.created_at, &record.log, &record.head);
        line.text("request_method", cut_text(&record.head.method, MAX_TEXT_BYTES));
        line.text("request_url", cut_text(&mask_url(&record.head), MAX_TEXT_BYTES));
        write_response_fields(line, &record.log, outcome, elapsed);
        record.log.details.write_timings(line, record.log.time_to_first_byte.unwrap_or(elapsed));
        write_request_fields(line, &record.log);
        record.log.details.write_attempts(line);
        write_usage(line, record.log.billing.usage.as_ref(), cost);
        write_pending_usage(line, record);
        write_decision(line, &record.log);
        write_events(line, &record.log);
        write_caller(line, &record.log);
        write_prompt(line, &record.head);
        let shows_bodies = bodies.is_some_and(|bodies| bodies != BodyStatus::Off);
        write_prompt_variables(line, &record.head, shows_bodies && !record.log.bodies.hides_client_request());
        write_limits(line, &record.log);
        write_hook_results(line, &record.log, shows_bodies);
        write_sdk(line, &record.head, &record.sink.control_prefixes);
        write_peer(line, record);
        line.optional_text("body", bodies.map(BodyStatus::name));
        if let Some(entry) = &record.log.spool {
            line.number("request_bytes", entry.request_bytes.load(Ordering::Relaxed));
        }
        line.number("response_bytes", record.log.bytes_out);
        line.number("bytes_out", record.log.bytes_out);
        line.number("worker", record.sink.worker);
        if record.log.detail == Detail::MetricsOnly {
            line.boolean("debug", false);
        } else {
            line.object("request_headers", |fields| {
                write_masked_headers(
                    fields,
                    record.head.headers.iter(),
                    &[&record.log.masked_headers, &record.sink.sensitive_headers],
                    &record.sink.control_prefixes,
                );
            });
            record.log.details.write_response_headers(line);
        }
    });
}

fn write_ids(line: &mut ObjectWriter<'_>, id: Uuid, created_at: Duration, log: &RequestLog, head: &RequestHead) {
    let RequestLog { trace_id, span_id, span_name, parent_span_id, .. } = log;
    let mut buffer = Uuid::encode_buffer();
    let id: &str = id.hyphenated().encode_lower(&mut buffer);
    line.text("id", id);
    line.timestamp("created_at", created_at);
    write_source(line, head);
    line.text("trace_id", trace_id.as_deref().unwrap_or(id));
    line.optional_text("span_id", span_id.as_deref());
    line.optional_text("span_name", span_name.as_deref());
    line.optional_text("parent_span_id", parent_span_id.as_deref());
}

fn write_response_fields(line: &mut ObjectWriter<'_>, log: &RequestLog, outcome: Outcome, elapsed: Duration) {
    let RequestLog { status, error_code: error, time_to_first_byte: first_byte, upstream_latency: upstream, .. } = log;
    let is_good = (200..300).contains(status) || *status == 101;
    line.number("response_status_code", *status);
    line.boolean("is_success", is_good && outcome == Outcome::Complete && error.is_none());
    line.text("outcome", outcome.name());
    line.optional_text("error", *error);
    line.milliseconds("response_time", elapsed);
    for (key, duration) in [("time_to_first_byte", first_byte), ("upstream_response_time", upstream)] {
        if let Some(duration) = duration {
            line.milliseconds(key, *duration);
        }
    }
}

fn write_request_fields(line: &mut ObjectWriter<'_>, log: &RequestLog) {
    line.text("ai_org", log.provider);
    line.text("ai_model", cut_text(log.resolved_model(), MAX_TEXT_BYTES));
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
        // Log fields call tokens units (`python/penstock/logs/columns.py`).
        line.number("req_units", request);
        line.number("res_units", response);
        line.number("total_units", request.saturating_add(response));
        // The units already contain plain input and output. So `usage` is written only for other kinds of tokens, for
        // tool uses, or for another service tier.
        let has_parts = usage.input.saturating_add(usage.output) != usage.total();
        if has_parts || usage.tool_uses != ToolUses::default() || usage.service_tier != ServiceTier::Standard {
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
    line.optional_text("price_version", cost.price_version.as_deref());
}

/// Writes the usage that an amendment will confirm. It is empty if the tokens are still to be counted.
fn write_pending_usage(line: &mut ObjectWriter<'_>, record: &Record) {
    let Some(pending) = &record.pending_usage else { return };
    line.object("pending_usage", |fields| {
        if let PendingUsage::Known(usage, cost) = pending {
            write_usage(fields, Some(usage), cost.as_ref());
        }
    });
}

/// Writes the tool uses, and the token counts whose sum the units are.
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
    if usage.service_tier != ServiceTier::Standard {
        parts.text("service_tier", usage.service_tier.name());
    }
}

fn write_decision(line: &mut ObjectWriter<'_>, log: &RequestLog) {
    let decision = log.decision.as_deref();
    let cache_status = decision.map_or(CacheStatus::Disabled, |decision| decision.cache_status);
    line.text("cache_status", cache_status.name());
    if cache_status != CacheStatus::Disabled {
        line.text("cache_type", "simple");
    }
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
            event.optional_text("word", mark.status.as_deref());
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
