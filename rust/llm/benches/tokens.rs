//! Counting tokens of prose and of texts made to be slow, 100 KB each.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use penstock_llm::tokens::{Encoding, count_request_body, count_text};

const SIZE: usize = 100_000;

/// Numbers that look random and are the same in each run.
fn dice() -> impl FnMut(usize) -> usize {
    let mut state = 42u64;
    move |sides| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % sides
    }
}

/// Sentences of common words with some that are new each time, so that no cache of pieces sees them all again.
fn prose() -> String {
    const WORDS: &[&str] = &[
        "the",
        "gateway",
        "of",
        "streams",
        "a",
        "request",
        "is",
        "forwarded",
        "to",
        "provider",
        "and",
        "answers",
        "tokens",
        "counted",
        "in",
        "Paris",
        "when",
        "nobody",
        "waits",
    ];
    let mut roll = dice();
    let mut text = String::with_capacity(SIZE + 16);
    while text.len() < SIZE {
        text.push_str(WORDS[roll(WORDS.len())]);
        match roll(12) {
            0 => text.push_str(". "),
            1 => text.push_str(", "),
            2 => text.extend(["-", &format!("{:x}", roll(1 << 20)), " "]),
            _ => text.push(' '),
        }
    }
    text
}

/// Characters of these in no order and without a break.
fn drawn(alphabet: &str) -> String {
    let (mut roll, alphabet) = (dice(), alphabet.chars().collect::<Vec<_>>());
    let mut text = String::with_capacity(SIZE + 4);
    while text.len() < SIZE {
        text.push(alphabet[roll(alphabet.len())]);
    }
    text
}

fn tokens(c: &mut Criterion) {
    let mut group = c.benchmark_group("o200k_base, 100 KB");
    let cases = [
        ("prose", prose()),
        ("one letter", "a".repeat(SIZE)),
        ("letters without a break", drawn("abcdefghijklmnopqrstuvwxyz")),
        ("capitals without a break", drawn("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
        ("spaces", " ".repeat(SIZE)),
        ("line breaks", "\n".repeat(SIZE)),
        ("digits", "0".repeat(SIZE)),
        ("one symbol", "^".repeat(SIZE)),
        ("symbols without a break", drawn("!#$%&()*+,-.:;<=>?@[]^_{|}~")),
        ("one smiley", "🙂".repeat(SIZE / 4)),
        ("smileys", drawn("😀😁😂🤣😃😄😅🚀👍🎉🔥")),
        ("signs without a break", drawn("的一是不了人我在有他这中大来上国个到说们")),
        ("syllables without a break", drawn("가나다라마바사아자차카타파하거너더러머버서어")),
        (
            "words of 300 letters",
            drawn("abcdefghijklmnopqrstuvwxyz")
                .as_bytes()
                .chunks(300)
                .map(|word| str::from_utf8(word).unwrap_or_default())
                .collect::<Vec<_>>()
                .join(" "),
        ),
        ("both cases", drawn("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")),
        ("letters and signs", drawn("abcdefghi的一是不了人我在有他这")),
        ("spaces and tabs", drawn("                          \t")),
        ("everything mixed", drawn("aZ0 ^🙂é的\n'sTb9")),
    ];
    for (name, text) in &cases {
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(*name, |b| {
            b.iter(|| count_text(Encoding::O200K_BASE, black_box(text)));
        });
    }
    let body = serde_json::json!({"messages": [{"role": "user", "content": cases[0].1}]}).to_string();
    group.bench_function("prose as a request", |b| {
        b.iter(|| count_request_body(Encoding::O200K_BASE, black_box(body.as_bytes())));
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = tokens
}
criterion_main!(benches);
