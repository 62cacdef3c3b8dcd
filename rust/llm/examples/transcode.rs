//! Translator of Anthropic streams to chat completions, for comparison with other programs. `transcode ROUNDS` reads
//! one stream's events and prints the translated stream once. It then prints the nanoseconds that each round took; each
//! round translates all bytes again.

use std::{
    io::{self, Read as _, Write as _},
    process::ExitCode,
    time::Instant,
};

use bytes::Bytes;
use penstock_llm::{
    catalog,
    operation::Operation,
    translation::Translation,
    translation_input::{RequestHints, TranslationInput},
};

const REQUEST_BODY: &[u8] =
    br#"{"model":"claude","max_tokens":1024,"messages":[{"role":"user","content":"Hello"}],"stream":true}"#;

fn main() -> ExitCode {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    match rounds.ok_or_else(|| io::Error::other("usage: transcode ROUNDS")).and_then(run_rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn run_rounds(rounds: usize) -> io::Result<()> {
    let mut stream = Vec::new();
    io::stdin().read_to_end(&mut stream)?;
    let events: Vec<Bytes> = split_events(&stream).map(Bytes::copy_from_slice).collect();
    let translation = build_translation().ok_or_else(|| io::Error::other("no translation for anthropic"))?;
    let mut output = io::stdout().lock();
    for round in 0..=rounds {
        let started_at = Instant::now();
        let mut transcoder = translation.transcoder();
        let mut chunks: Vec<Bytes> = events.iter().map(|event| transcoder.push_chunk(event.clone())).collect();
        chunks.push(transcoder.finish());
        let elapsed = started_at.elapsed().as_nanos();
        if round == 0 {
            let texts: Vec<_> = chunks.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
            writeln!(output, "{}", serde_json::to_string(&texts.concat())?)?;
        } else {
            writeln!(output, "{elapsed}")?;
        }
    }
    output.flush()
}

/// Splits a stream into its events, one by one as a slow provider sends them.
fn split_events(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = std::str::from_utf8(stream).unwrap_or_default();
    text.split_inclusive("\n\n").map(str::as_bytes)
}

fn build_translation() -> Option<Translation> {
    let (operation, provider) = (Operation::ChatComplete, catalog::find_provider("anthropic")?);
    let provider_format = provider.provider_format(operation, "claude")?;
    let input = TranslationInput {
        operation,
        provider: provider.row(),
        body: REQUEST_BODY,
        model: "claude",
        hints: RequestHints::default(),
        strict: true,
        now_ms: 1_700_000_000_000,
        nonce: 7,
    };
    Translation::translate_request(&input, provider_format).ok().map(|(translation, _)| translation)
}
