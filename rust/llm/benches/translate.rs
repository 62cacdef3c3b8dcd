//! Benchmark of translating a request, a complete response and the chunks of a stream, from chat completions to
//! Anthropic and back.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use penstock_llm::{
    catalog,
    operation::Operation,
    translation::Translation,
    translation_input::{RequestHints, TranslationInput},
};

const CHAT_REQUEST: &[u8] = include_bytes!("../tests/golden/inputs/requests/chatComplete/tools.json");
const ANTHROPIC_RESPONSE: &[u8] = include_bytes!("../tests/golden/inputs/responses/anthropic/chatComplete/tools.json");
const ANTHROPIC_DELTA_EVENT: &[u8] = b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" word\"}}\n\n";
const ANTHROPIC_START_EVENT: &[u8] = b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_01\",\"model\":\"claude-sonnet-4-5\",\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
const MESSAGES_REQUEST: &[u8] = include_bytes!("../tests/golden/inputs/requests/messages/tools.json");
const CHAT_RESPONSE: &[u8] = include_bytes!("../tests/golden/inputs/responses/openai/messages/tools.json");
const CHAT_DELTA_EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-AbCdEf0123456789\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n";

fn start_translation(provider: &str, operation: Operation, body: &[u8]) -> Option<(Translation, Vec<u8>)> {
    let provider = catalog::find_provider(provider)?;
    let provider_format = provider.provider_format(operation, "m")?;
    Translation::translate_request(
        &TranslationInput {
            operation,
            provider: provider.row(),
            body,
            model: "",
            hints: RequestHints::default(),
            strict: true,
            now_ms: 1_700_000_000_000,
            nonce: 7,
        },
        provider_format,
    )
    .ok()
}

fn bench_format_pair(
    c: &mut Criterion,
    name: &str,
    request: (&str, Operation, &[u8]),
    response: &[u8],
    events: [&'static [u8]; 2],
) {
    let mut group = c.benchmark_group(name);
    let (provider, operation, body) = request;
    group.bench_function("request", |b| b.iter(|| start_translation(provider, operation, black_box(body))));
    let Some((translation, _)) = start_translation(provider, operation, body) else { return };
    group.bench_function("whole answer", |b| b.iter(|| translation.translate_response(black_box(response))));
    let [start, chunk] = events.map(Bytes::from_static);
    let begin = || {
        let mut transcoder = translation.transcoder();
        transcoder.push_chunk(start.clone());
        transcoder
    };
    let mut transcoder = begin();
    group.throughput(Throughput::Elements(1));
    group.bench_function("paced chunk", |b| b.iter(|| transcoder.push_chunk(black_box(chunk.clone()))));
    let burst = Bytes::from(chunk.repeat(100));
    group.throughput(Throughput::Elements(100));
    group.bench_function("burst of 100", |b| {
        b.iter_batched(begin, |mut transcoder| transcoder.push_chunk(black_box(burst.clone())), BatchSize::SmallInput);
    });
    group.finish();
}

fn bench_translation(c: &mut Criterion) {
    bench_format_pair(
        c,
        "chat to anthropic",
        ("anthropic", Operation::ChatComplete, CHAT_REQUEST),
        ANTHROPIC_RESPONSE,
        [ANTHROPIC_START_EVENT, ANTHROPIC_DELTA_EVENT],
    );
    bench_format_pair(
        c,
        "messages to openai",
        ("openai", Operation::Messages, MESSAGES_REQUEST),
        CHAT_RESPONSE,
        [CHAT_DELTA_EVENT, CHAT_DELTA_EVENT],
    );
}

criterion_group!(benches, bench_translation);
criterion_main!(benches);
