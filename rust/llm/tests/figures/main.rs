//! Time limits of translation (from chat completions to Anthropic and back, and per chunk of a stream) and of token
//! counts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use bytes::Bytes;
use penstock_llm::{
    catalog,
    operation::Operation,
    tokens::{Encoding, count_text},
    translation::Translation,
    translation_input::{RequestHints, TranslationInput},
};

const CHAT_REQUEST: &[u8] = include_bytes!("../golden/inputs/requests/chatComplete/complete-anthropic.json");
const ANTHROPIC_RESPONSE: &[u8] = include_bytes!("../golden/inputs/responses/anthropic/chatComplete/complete.json");
const MESSAGE_START_EVENT: &[u8] = b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_01\",\"model\":\"claude-sonnet-4-5\",\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
const TEXT_DELTA_EVENT: &[u8] = b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" word\"}}\n\n";

const MAX_BODY_TIME: Duration = Duration::from_micros(15);
const MAX_CHUNK_TIME: Duration = Duration::from_micros(2);
/// Maximum time for counting the tokens of a hostile text of up to a megabyte.
const MAX_COUNT_TIME: Duration = Duration::from_secs(10);
/// Debug builds may take this many times longer.
const DEBUG_FACTOR: u32 = if cfg!(debug_assertions) { 20 } else { 1 };
/// Number of rounds. The fastest one counts, because other load on the machine slows down the others.
const ROUNDS: u32 = 40;
const RUNS_PER_ROUND: u32 = 50;

fn measure_best_time(mut work: impl FnMut()) -> Duration {
    let round = |_| {
        let begun = Instant::now();
        (0..RUNS_PER_ROUND).for_each(|_| work());
        begun.elapsed() / RUNS_PER_ROUND
    };
    (0..ROUNDS).map(round).min().unwrap()
}

fn translate_request() -> (Translation, Vec<u8>) {
    let (operation, provider) = (Operation::ChatComplete, catalog::find_provider("anthropic").unwrap());
    let (body, model, hints) = (black_box(CHAT_REQUEST), "", RequestHints::default());
    let input = TranslationInput {
        operation,
        provider: provider.row(),
        body,
        model,
        hints,
        strict: true,
        now_ms: 1_700_000_000_000,
        nonce: 7,
    };
    Translation::translate_request(&input, provider.provider_format(operation, "m").unwrap()).unwrap()
}

#[test]
fn translation_stays_within_its_time_limits() {
    let (translation, _) = translate_request();
    let mut transcoder = translation.transcoder();
    transcoder.push_chunk(Bytes::from_static(MESSAGE_START_EVENT));
    let request = measure_best_time(|| drop(black_box(translate_request())));
    let reply =
        measure_best_time(|| drop(black_box(translation.translate_response(black_box(ANTHROPIC_RESPONSE)).unwrap())));
    let chunk =
        measure_best_time(|| drop(black_box(transcoder.push_chunk(Bytes::from_static(black_box(TEXT_DELTA_EVENT))))));
    for (what, elapsed, most) in
        [("request", request, MAX_BODY_TIME), ("answer", reply, MAX_BODY_TIME), ("chunk", chunk, MAX_CHUNK_TIME)]
    {
        println!("{what}: {elapsed:?}");
        assert!(elapsed <= most * DEBUG_FACTOR, "{what}: {elapsed:?}");
    }
}

#[test]
fn counting_repetitions_takes_bounded_time() {
    let hostile = [
        "a".repeat(100_000),
        "ab".repeat(50_000),
        " ".repeat(1_000_000),
        "\n".repeat(200_000),
        "^".repeat(200_000),
        "0".repeat(200_000),
        "🙂".repeat(50_000),
        "'s".repeat(50_000),
        " a".repeat(50_000),
        "你好".repeat(50_000),
        format!("a {}", "b".repeat(200_000)),
    ];
    for encoding in [Encoding::O200K_BASE, Encoding::CL100K_BASE, Encoding::P50K_BASE, Encoding::R50K_BASE] {
        for text in &hostile {
            let start = Instant::now();
            black_box(count_text(encoding, text));
            assert!(start.elapsed() < MAX_COUNT_TIME, "{} {:?}", encoding.name(), text.get(..8));
        }
    }
}
