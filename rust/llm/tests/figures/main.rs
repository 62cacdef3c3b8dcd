//! How long a translation may take: from chat completions to Anthropic and back, and what comes of each chunk of a stream.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use bytes::Bytes;
use penstock_llm::{
    catalog,
    operation::Operation,
    translation::{RequestHints, Translation, TranslationInput},
};

const CHAT: &[u8] = include_bytes!("../golden/anthropic/chatComplete/whole/asked.json");
const MESSAGE: &[u8] = include_bytes!("../golden/anthropic/chatComplete/whole/answered.json");
const START: &[u8] = b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_01\",\"model\":\"claude-sonnet-4-5\",\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
const TEXT: &[u8] = b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" word\"}}\n\n";

const WHOLE: Duration = Duration::from_micros(15);
const CHUNK: Duration = Duration::from_micros(2);
/// What was not made for speed is so many times slower.
const SLACK: u32 = if cfg!(debug_assertions) { 20 } else { 1 };
/// Of so many rounds, each of so many times, the best counts: whoever else works on the machine makes the others slower.
const ROUNDS: u32 = 40;
const TIMES: u32 = 50;

fn best(mut work: impl FnMut()) -> Duration {
    let round = |_| {
        let begun = Instant::now();
        (0..TIMES).for_each(|_| work());
        begun.elapsed() / TIMES
    };
    (0..ROUNDS).map(round).min().unwrap()
}

fn asked() -> (Translation, Vec<u8>) {
    let (operation, provider) = (Operation::ChatComplete, catalog::find_provider("anthropic").unwrap());
    let (body, model, beside) = (black_box(CHAT), "", RequestHints::default());
    let question = TranslationInput {
        operation,
        provider,
        body,
        model,
        hints: beside,
        strict: true,
        now_ms: 1_700_000_000_000,
        nonce: 7,
    };
    Translation::translate_request(&question, provider.provider_format(operation, "m").unwrap()).unwrap()
}

#[test]
fn a_translation_takes_no_longer_than_it_may() {
    let (translation, _) = asked();
    let mut transcoder = translation.transcoder();
    transcoder.push_chunk(Bytes::from_static(START));
    let request = best(|| drop(black_box(asked())));
    let answer = best(|| drop(black_box(translation.translate_response(black_box(MESSAGE)).unwrap())));
    let chunk = best(|| drop(black_box(transcoder.push_chunk(Bytes::from_static(black_box(TEXT))))));
    for (what, took, most) in [("request", request, WHOLE), ("answer", answer, WHOLE), ("chunk", chunk, CHUNK)] {
        println!("{what}: {took:?}");
        assert!(took <= most * SLACK, "{what}: {took:?}");
    }
}
