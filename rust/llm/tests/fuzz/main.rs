//! Fuzz test of provider responses: complete, streamed and errors, corrupted as a network or a fault would do it. No
//! reader may panic, and memory must stay proportional to the input.
//!
//! The seed is fixed, so that a failure is reproducible. `FUZZ_ROUNDS` sets a higher number of rounds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

#[path = "../it/golden_cases/mod.rs"]
mod golden_cases;

use std::{collections::BTreeMap, hint::black_box};

use bytes::Bytes;
use fastrand::Rng;
use golden_cases::{Case, UpstreamBody, translated_cases};
use peak_alloc::PeakAlloc;
use penstock_llm::{
    api_format::{self, ApiFormat},
    catalog::{self, Provider},
    operation::Operation,
    stream::{
        aws_event_stream::{FrameDecoder, encode_frame},
        frame_meter::FrameMeter,
        include_usage,
        meter::SseMeter,
        session::SessionMeter,
        skim::ResponseSkimmer,
        splice::{PriorUsage, StreamSplicer},
        sse::Splitter,
        transcript::{StreamFormat, Transcript},
    },
    translation::Translation,
    translation_input::{RequestHints, TranslationInput},
    usage::Usage,
};
use serde_json::{Value, json};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const SEED: u64 = 0x0050_656e_7374_6f63;
/// Corrupted variants per response.
const ROUNDS_PER_RESPONSE: usize = 5;
/// Memory that any input may use: for tables that are built on first use, and for the largest value that is inserted.
const BASE_MEMORY_BYTES: usize = 256 * 1024;
/// Memory that each byte of input may use. Parsed JSON takes many times the memory of its text, and so do the
/// structures built from it.
const MEMORY_PER_INPUT_BYTE: usize = 64;

const EXTREME_NUMBERS: [&str; 9] = [
    "1e999",
    "-1e999",
    "99999999999999999999999999999999999999",
    "18446744073709551615",
    "-9223372036854775808",
    "1e-400",
    "4294967296",
    "-0.0",
    "0.1e308",
];
const UNUSUAL_STRINGS: [&str; 6] =
    [r#""\ud800""#, r#""\u0000""#, r#""""#, "\"\u{feff}\"", r#""data: x\n\nevent: y""#, "\"ä\u{202e}\""];

/// Corrupts bytes in one random way; `other` is another response to take bytes from.
fn corrupt_bytes(content: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut out = content.to_vec();
    let at = rng.usize(..=out.len());
    let end = rng.usize(at..=out.len());
    match rng.u8(..10) {
        0 => out.truncate(at),
        1 => (0..rng.usize(1..8)).for_each(|_| flip_bit(&mut out, rng)),
        2 => {
            out.truncate(at);
            out.extend_from_slice(&other[rng.usize(..=other.len())..]);
        }
        3 => drop(out.splice(at..at, content[at..end].to_vec())),
        4 => drop(out.drain(at..end)),
        5 => drop(out.splice(at..at, random_bytes(rng))),
        6 => replace_random_value(&mut out, deeply_nested_json(rng).as_bytes(), rng),
        7 => replace_random_value(&mut out, rng.choice(EXTREME_NUMBERS).unwrap().as_bytes(), rng),
        8 => replace_random_value(&mut out, rng.choice(UNUSUAL_STRINGS).unwrap().as_bytes(), rng),
        _ => replace_random_value(&mut out, format!("\"{}\"", "x".repeat(rng.usize(..40_000))).as_bytes(), rng),
    }
    out
}

fn random_bytes(rng: &mut Rng) -> Vec<u8> {
    let mut noise = vec![0; rng.usize(..64)];
    rng.fill(&mut noise);
    noise
}

fn flip_bit(bytes: &mut [u8], rng: &mut Rng) {
    if !bytes.is_empty() {
        let at = rng.usize(..bytes.len());
        bytes[at] ^= 1 << rng.u8(..8);
    }
}

/// Returns JSON that is nested deeper than any reader accepts, with or without closing brackets.
fn deeply_nested_json(rng: &mut Rng) -> String {
    let depth = rng.usize(1..5000);
    let (open, close) = if rng.bool() { ("[", "]") } else { ("{\"a\":", "}") };
    let ends = if rng.bool() { close.repeat(depth) } else { String::new() };
    format!("{}1{ends}", open.repeat(depth))
}

/// Replaces the value of a random key, up to the next comma or bracket.
fn replace_random_value(out: &mut Vec<u8>, value: &[u8], rng: &mut Rng) {
    let colons: Vec<_> = out.windows(2).enumerate().filter(|(_, pair)| *pair == b"\":").map(|(at, _)| at + 2).collect();
    let Some(at) = rng.choice(colons) else { return };
    let end =
        out[at..].iter().position(|byte| matches!(byte, b',' | b'}' | b']')).map_or(out.len(), |length| at + length);
    out.splice(at..end, value.iter().copied());
}

/// Encodes the frames of an AWS event stream again, one of them with a corrupted payload. The checksums are valid,
/// because readers reject all others.
fn corrupt_one_frame(content: &[u8], other: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frames = FrameDecoder::new(1 << 20);
    frames.push_chunk(content);
    let read: Vec<_> = std::iter::from_fn(|| frames.next_frame()?.ok()).collect();
    let chosen = rng.usize(..read.len().max(1));
    let kinds = ["event", "exception", "error", ""];
    let write = |(index, frame): (usize, penstock_llm::stream::aws_event_stream::Frame)| {
        if index != chosen {
            return encode_frame("event", &frame.event_name, &frame.payload);
        }
        encode_frame(rng.choice(kinds).unwrap(), &frame.event_name, &corrupt_bytes(&frame.payload, other, rng))
    };
    (!read.is_empty()).then(|| read.into_iter().enumerate().flat_map(write).collect())
}

/// Splits bytes into chunks of random size.
fn split_into_chunks(bytes: &[u8], rng: &mut Rng) -> Vec<Bytes> {
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let size = if rng.bool() { rng.usize(1..32) } else { rng.usize(1..4096) };
        chunks.push(rest.split_to(size.min(rest.len())));
    }
    chunks
}

/// Returns the same request in each client format.
fn request_body(operation: Operation) -> Value {
    match operation {
        Operation::GenerateContent | Operation::StreamGenerateContent => {
            json!({"contents": [{"parts": [{"text": "Hi"}]}]})
        }
        Operation::Converse | Operation::ConverseStream => {
            json!({"messages": [{"role": "user", "content": [{"text": "Hi"}]}]})
        }
        Operation::CreateModelResponse => json!({"input": "Hi", "stream": true}),
        _ => json!({"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "stream": true}),
    }
}

const CLIENT_OPERATIONS: [Operation; 8] = [
    Operation::ChatComplete,
    Operation::Messages,
    Operation::CreateModelResponse,
    Operation::GenerateContent,
    Operation::StreamGenerateContent,
    Operation::ConverseStream,
    Operation::InvokeModel,
    Operation::InvokeModelStream,
];

/// Returns all translations that apply to a case: its own, and for chat operations those of every other client format.
fn translations_for(case: &Case) -> Vec<Translation> {
    let mut all: Vec<_> = case.translate_request().ok().map(|(translation, _)| translation).into_iter().collect();
    let provider = catalog::find_provider(&case.provider).unwrap();
    if case.operation().is_chat() {
        let model = case.model();
        let result = |operation: Operation| {
            let (provider_format, body) =
                (provider.provider_format(operation, &model)?, request_body(operation).to_string());
            let hints = RequestHints::default();
            let input = TranslationInput {
                operation,
                provider: provider.row(),
                body: body.as_bytes(),
                model: &model,
                hints,
                strict: false,
                now_ms: 0,
                nonce: 0,
            };
            Some(Translation::translate_request(&input, provider_format).ok()?.0)
        };
        all.extend(CLIENT_OPERATIONS.into_iter().filter_map(result));
    }
    all
}

/// Reads the bytes as a response that is translated.
fn read_as_translated(translation: &Translation, bytes: &[u8], chunks: &[Bytes]) {
    let _ = black_box((translation.translate_response(bytes), translation.translate_error(500, bytes, None)));
    let mut transcoder = translation.transcoder();
    for chunk in chunks {
        black_box(transcoder.push_chunk(chunk.clone()));
    }
    black_box(transcoder.finish());
}

/// Reads the bytes as a response that passes through, and as one that is resumed.
fn read_as_passed_through(bytes: &[u8], chunks: &[Bytes]) {
    for api_format in [ApiFormat::OpenAi, ApiFormat::Anthropic, ApiFormat::Gemini, ApiFormat::Bedrock] {
        black_box(Usage::from_response(api_format, bytes));
        let (mut meter, mut skim) =
            (SseMeter::with_deltas(api_format, Operation::ChatComplete), ResponseSkimmer::default());
        for chunk in chunks {
            meter.feed(chunk);
            skim.feed(chunk);
        }
        let metered = meter.finish();
        black_box((skim.finish(api_format), metered.deltas.map(|deltas| deltas.buffered_text())));
    }
    let (mut frames, mut session) = (FrameMeter::default(), SessionMeter::default());
    let mut splitter = Splitter::new(1 << 16);
    for chunk in chunks {
        frames.feed(chunk);
        session.read_event(chunk);
        black_box(include_usage::strip_usage(chunk.clone()));
        splitter
            .push(chunk.clone())
            .for_each(|event| _ = black_box(event.map(|event| event.data().map(|data| data.len()))));
    }
    black_box((frames.finish(), splitter.finish(), api_format::peek(bytes).is_ok()));
    for form in [StreamFormat::Chat, StreamFormat::Completions, StreamFormat::Messages, StreamFormat::Responses] {
        let mut content = Transcript::new(form);
        for chunk in chunks {
            content.record_events(chunk.clone());
        }
        black_box(content.build_resume_request(bytes).map(|again| again.body));
        let mut seam =
            StreamSplicer::new(&content, PriorUsage { input: u64::MAX, output: 1 }, content.text().to_owned());
        for chunk in chunks {
            black_box(seam.push(Some(chunk.clone())));
        }
        black_box(seam.push(None));
    }
}

/// Runs a reader and returns the peak increase of heap memory in bytes.
fn measure_peak_bytes(read: impl FnOnce()) -> usize {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    read();
    HEAP.peak_usage().saturating_sub(before)
}

fn response_bytes(case: &Case) -> Bytes {
    let (UpstreamBody::Complete(bytes) | UpstreamBody::Stream(bytes) | UpstreamBody::Error(bytes)) =
        case.upstream_body();
    bytes
}

#[test]
fn corrupted_responses_cause_no_panic_and_bounded_memory() {
    let rounds =
        std::env::var("FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS_PER_RESPONSE);
    let mut rng = Rng::with_seed(SEED);
    let all: Vec<_> = translated_cases().into_iter().filter(|case| !case.has_file("rejection.txt")).collect();
    let responses: Vec<_> = all.iter().map(response_bytes).collect();
    let mut read = BTreeMap::<&str, usize>::new();
    for (case, content) in all.iter().zip(&responses) {
        let translations = translations_for(case);
        for round in 0..rounds {
            let other = &responses[rng.usize(..responses.len())];
            let bytes = corrupt_one_frame(content, other, &mut rng)
                .filter(|_| rng.bool())
                .unwrap_or_else(|| corrupt_bytes(content, other, &mut rng));
            let chunks = split_into_chunks(&bytes, &mut rng);
            let max_bytes = BASE_MEMORY_BYTES + MEMORY_PER_INPUT_BYTE * bytes.len();
            for translation in &translations {
                let peak_bytes = measure_peak_bytes(|| read_as_translated(translation, &bytes, &chunks));
                assert!(
                    peak_bytes < max_bytes,
                    "{} in round {round}: {peak_bytes} bytes for {}",
                    case.name(),
                    bytes.len()
                );
            }
            let peak_bytes = measure_peak_bytes(|| read_as_passed_through(&bytes, &chunks));
            assert!(
                peak_bytes < max_bytes,
                "{} passing by in round {round}: {peak_bytes} bytes for {}",
                case.name(),
                bytes.len()
            );
        }
        *read.entry(case.provider.as_str()).or_default() += rounds;
    }
    // The mock provider uses OpenAI's API format.
    let is_translated = |provider: &&dyn Provider| {
        provider.slug() != "mock"
            && Operation::ALL.iter().any(|operation| provider.provider_format(*operation, "").is_some())
    };
    let unread = catalog::all_providers().filter(is_translated).map(<dyn Provider>::slug);
    let unread: Vec<_> = unread.filter(|slug| !read.contains_key(slug)).collect();
    assert!(unread.is_empty(), "nothing that these answer was read: {unread:?}");
}
