//! Benchmark of splitting an SSE stream into events and of metering it: one paced event at a time, and a burst.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use penstock_llm::{
    api_format::ApiFormat,
    operation::Operation,
    stream::{include_usage, meter::SseMeter, sse::Splitter},
};

const OPENAI_DELTA_EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-AbCdEf0123456789\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n";
const NULL_USAGE_EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-AbCdEf0123456789\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}],\"usage\":null}\n\n";
const ANTHROPIC_DELTA_EVENT: &[u8] = b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" word\"}}\n\n";
const USAGE_EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-AbCdEf0123456789\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":12,\"total_tokens\":21,\"prompt_tokens_details\":{\"cached_tokens\":0,\"audio_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":0,\"audio_tokens\":0}}}\n\n";

fn bench_split(c: &mut Criterion) {
    let mut group = c.benchmark_group("split");
    let paced = Bytes::from_static(OPENAI_DELTA_EVENT);
    let mut splitter = Splitter::new(1 << 20);
    group.throughput(Throughput::Elements(1));
    group.bench_function("paced event", |b| {
        b.iter(|| splitter.push(black_box(paced.clone())).count());
    });
    let halves = [paced.slice(..90), paced.slice(90..)];
    group.bench_function("event in two reads", |b| {
        b.iter(|| halves.iter().map(|half| splitter.push(black_box(half.clone())).count()).sum::<usize>());
    });
    let burst = Bytes::from(OPENAI_DELTA_EVENT.repeat(100));
    group.throughput(Throughput::Elements(100));
    group.bench_function("burst of 100", |b| {
        b.iter(|| splitter.push(black_box(burst.clone())).count());
    });
    group.finish();
}

fn bench_meter(c: &mut Criterion) {
    let mut group = c.benchmark_group("meter");
    let cases = [
        ("delta", ApiFormat::OpenAi, OPENAI_DELTA_EVENT),
        ("delta with null usage", ApiFormat::OpenAi, NULL_USAGE_EVENT),
        ("text_delta", ApiFormat::Anthropic, ANTHROPIC_DELTA_EVENT),
    ];
    for (name, format, chunk) in cases {
        let mut meter = warm_meter(format);
        group.bench_function(name, |b| b.iter(|| meter.feed(black_box(chunk))));
    }
    let mut meter = SseMeter::with_deltas(ApiFormat::OpenAi, Operation::ChatComplete);
    (0..8).for_each(|_| meter.feed(OPENAI_DELTA_EVENT));
    group.bench_function("delta with its text recorded", |b| b.iter(|| meter.feed(black_box(OPENAI_DELTA_EVENT))));
    let mut meter = warm_meter(ApiFormat::OpenAi);
    group.bench_function("delta in two reads", |b| {
        b.iter(|| {
            meter.feed(black_box(&OPENAI_DELTA_EVENT[..90]));
            meter.feed(black_box(&OPENAI_DELTA_EVENT[90..]));
        });
    });
    let burst = OPENAI_DELTA_EVENT.repeat(100);
    group.bench_function("burst of 100", |b| b.iter(|| meter.feed(black_box(&burst))));
    group.bench_function("event with usage", |b| {
        b.iter(|| meter.feed(black_box(USAGE_EVENT)));
    });
    group.bench_function("whole stream of 10", |b| {
        b.iter(|| {
            let mut meter = SseMeter::new(ApiFormat::OpenAi);
            (0..10).for_each(|_| meter.feed(black_box(OPENAI_DELTA_EVENT)));
            meter.feed(USAGE_EVENT);
            meter.feed(b"data: [DONE]\n\n");
            meter.finish()
        });
    });
    group.finish();
}

/// Measures the request for usage on behalf of a client, and its removal from the stream.
fn bench_injected_usage(c: &mut Criterion) {
    let mut group = c.benchmark_group("usage the client did not request");
    let parts = [
        b"{\"model\":\"gpt-4o\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"",
        [b'x'; 1000].as_slice(),
        b"\"}]}",
    ];
    let request = parts.concat();
    group.bench_function("add to the request", |b| b.iter(|| include_usage::request_usage(black_box(&request))));
    for (name, chunk) in
        [("delta", OPENAI_DELTA_EVENT), ("delta with null usage", NULL_USAGE_EVENT), ("event with usage", USAGE_EVENT)]
    {
        let chunk = Bytes::from_static(chunk);
        group.bench_function(name, |b| b.iter(|| include_usage::strip_usage(black_box(chunk.clone()))));
    }
    group.finish();
}

/// Returns a meter past the first events, in which it looks for the model name.
fn warm_meter(format: ApiFormat) -> SseMeter {
    let mut meter = SseMeter::new(format);
    (0..8).for_each(|_| meter.feed(OPENAI_DELTA_EVENT));
    meter
}

criterion_group!(benches, bench_split, bench_meter, bench_injected_usage);
criterion_main!(benches);
