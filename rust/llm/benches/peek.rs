//! Benchmark of scanning a request body and a complete response without building a tree, compared with a parser that
//! builds one.
#![allow(clippy::unwrap_used, reason = "a benchmark may panic on failure")]

use std::{borrow::Cow, hint::black_box};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use penstock_llm::{
    api_format::{ApiFormat, peek},
    json::edit::{json_field, set_fields},
    usage::Usage,
};
use serde::Deserialize;

/// Builds a chat request of about `bytes` bytes from short messages.
fn chat_body(bytes: usize) -> String {
    let message =
        r#"{"role":"user","content":"What is the capital of France, and how many people live there today?"},"#;
    let messages = message.repeat(bytes.saturating_sub(120).div_ceil(message.len()));
    let messages = messages.trim_end_matches(',');
    format!(
        r#"{{"model":"gpt-4o-mini","messages":[{messages}],"temperature":0.7,"stream":true,"stream_options":{{"include_usage":true}}}}"#
    )
}

/// Builds a request with one message of `bytes` bytes of text. Escapes are as frequent as line breaks in prose.
fn document_body(bytes: usize) -> String {
    let text =
        r"The quick brown fox jumps over the lazy dog, and over the fence, and over the hill.\n".repeat(bytes / 85);
    format!(r#"{{"model":"gpt-4o-mini","messages":[{{"role":"user","content":"{text}"}}]}}"#)
}

fn unescaped_string_body(bytes: usize) -> String {
    format!(r#"{{"model":"gpt-4o-mini","messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(bytes))
}

fn bench_request_bodies(c: &mut Criterion) {
    let mut group = c.benchmark_group("peek");
    let cases = [
        ("chat of 1 KB", chat_body(1024)),
        ("chat of 1 MB", chat_body(1 << 20)),
        ("document of 1 MB", document_body(1 << 20)),
        ("one string of 1 MB", unescaped_string_body(1 << 20)),
    ];
    for (name, body) in cases {
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| peek(black_box(body.as_bytes())).unwrap());
        });
    }
    let body = chat_body(1024);
    group.throughput(Throughput::Bytes(body.len() as u64));
    group.bench_function("chat of 1 KB, as a tree", |b| {
        b.iter(|| serde_json::from_str::<serde_json::Value>(black_box(&body)).unwrap());
    });
    group.bench_function("chat of 1 KB, as a struct", |b| {
        b.iter(|| serde_json::from_str::<PeekedFields<'_>>(black_box(&body)).unwrap());
    });
    group.finish();
}

/// The fields that `peek` reads, for a general parser that skips all others.
#[derive(Deserialize)]
#[allow(dead_code, reason = "the benchmark only parses")]
struct PeekedFields<'j> {
    #[serde(borrow)]
    model: Cow<'j, str>,
    #[serde(default)]
    stream: bool,
}

fn bench_edits(c: &mut Criterion) {
    let mut group = c.benchmark_group("set the model");
    let body = chat_body(1024);
    let model = serde_json::Value::from("gpt-5");
    group.bench_function("in place", |b| {
        let fields = [json_field("model", &model)];
        b.iter(|| set_fields(black_box(body.as_bytes()), &[], &fields).unwrap());
    });
    group.bench_function("in a tree", |b| {
        b.iter(|| {
            let mut tree: serde_json::Value = serde_json::from_str(black_box(&body)).unwrap();
            tree["model"] = model.clone();
            serde_json::to_vec(&tree).unwrap()
        });
    });
    group.finish();
}

fn bench_response_usage(c: &mut Criterion) {
    let mut group = c.benchmark_group("usage of a response");
    for (name, size) in [("1 KB", 600), ("100 KB", 100_000)] {
        let text = r"The quick brown fox jumps over the lazy dog.\n".repeat(size / 46);
        let response = format!(
            r#"{{"id":"chatcmpl-1","object":"chat.completion","model":"gpt-4o-mini","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21,"prompt_tokens_details":{{"cached_tokens":0,"audio_tokens":0}},"completion_tokens_details":{{"reasoning_tokens":0,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}},"service_tier":"default","system_fingerprint":"fp_1"}}"#
        );
        group.bench_function(name, |b| {
            b.iter(|| Usage::from_response(ApiFormat::OpenAi, black_box(response.as_bytes())).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, bench_request_bodies, bench_edits, bench_response_usage);
criterion_main!(benches);
