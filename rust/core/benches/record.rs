//! Benchmark of one request record, from opening it to its line in the outbox.

use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use penstock_core::{
    accounting::record::{Billing, Outcome, Record, RecordSink, RequestLog},
    ingress::message::RequestHead,
    process::settings::Settings,
};
use penstock_llm::{operation::Operation, usage::Usage};

fn build_sink(records: bool) -> Arc<RecordSink> {
    Arc::new(RecordSink::new(&Settings {
        control_socket: Some("/nonexistent".into()),
        outbox_bytes: 1 << 30,
        records,
        sensitive_headers: vec!["x-team".into()],
        ..Settings::default()
    }))
}

fn build_head() -> Arc<RequestHead> {
    let fields = [
        ("host", "127.0.0.1:8787"),
        ("accept", "application/json"),
        ("content-type", "application/json"),
        ("user-agent", "OpenAI/Python 2.8.1"),
        ("authorization", "Bearer sk-0123456789abcdef0123456789abcdef"),
        ("x-gateway-api-key", "pk-0123456789abcdef0123456789abcdef"),
        ("x-gateway-provider", "openai"),
        ("x-stainless-lang", "python"),
        ("x-team", "red"),
        ("content-length", "412"),
    ];
    Arc::new(RequestHead {
        method: "POST".into(),
        path: "/v1/chat/completions".into(),
        query: String::new(),
        headers: fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect(),
        ..RequestHead::default()
    })
}

fn build_request_log() -> RequestLog {
    RequestLog {
        operation: Some(Operation::ChatComplete),
        provider: "openai",
        model: "gpt-4o-mini".into(),
        api_key_id: Some("k-1".into()),
        status: 200,
        billing: Billing { usage: Some(Usage { input: 12, output: 8, ..Usage::default() }), ..Billing::default() },
        bytes_out: 1024,
        ..RequestLog::default()
    }
}

fn bench_record(c: &mut Criterion) {
    let mut group = c.benchmark_group("record");
    let head = build_head();
    for (name, records) in [("written to the outbox", true), ("counted only", false)] {
        let sink = build_sink(records);
        group.bench_function(name, |b| {
            let open = || {
                // Drains the outbox as often as the control process would, so that the lines do not grow without bound.
                if let Some(batch) = sink.outbox.take_pending() {
                    sink.outbox.acknowledge(batch);
                }
                Box::new(build_request_log())
            };
            let close = |log| {
                let mut record = Record::open(Arc::clone(&head), Arc::clone(&sink));
                record.log = log;
                record.close(Outcome::Complete);
            };
            b.iter_batched(open, close, BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, bench_record);
criterion_main!(benches);
