//! Benchmark of counting the tokens of prose and of texts built to be slow, 100 KB each.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use penstock_llm::tokens::{Encoding, count_request_body, count_text};

const TEXT_BYTES: usize = 100_000;

/// Returns a generator of pseudo-random numbers that are the same in each run.
fn seeded_random() -> impl FnMut(usize) -> usize {
    let mut state = 42u64;
    move |sides| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % sides
    }
}

/// Generates sentences of common words mixed with unique ones, so that a cache of word tokens cannot cover all of them.
fn generate_prose() -> String {
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
    let mut roll = seeded_random();
    let mut text = String::with_capacity(TEXT_BYTES + 16);
    while text.len() < TEXT_BYTES {
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

/// Generates random characters of `alphabet` without a break.
fn random_characters(alphabet: &str) -> String {
    let (mut roll, alphabet) = (seeded_random(), alphabet.chars().collect::<Vec<_>>());
    let mut text = String::with_capacity(TEXT_BYTES + 4);
    while text.len() < TEXT_BYTES {
        text.push(alphabet[roll(alphabet.len())]);
    }
    text
}

fn bench_token_count(c: &mut Criterion) {
    let mut group = c.benchmark_group("o200k_base, 100 KB");
    let cases = [
        ("prose", generate_prose()),
        ("one letter", "a".repeat(TEXT_BYTES)),
        ("letters without a break", random_characters("abcdefghijklmnopqrstuvwxyz")),
        ("capitals without a break", random_characters("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
        ("spaces", " ".repeat(TEXT_BYTES)),
        ("line breaks", "\n".repeat(TEXT_BYTES)),
        ("digits", "0".repeat(TEXT_BYTES)),
        ("one symbol", "^".repeat(TEXT_BYTES)),
        ("symbols without a break", random_characters("!#$%&()*+,-.:;<=>?@[]^_{|}~")),
        ("one smiley", "🙂".repeat(TEXT_BYTES / 4)),
        ("smileys", random_characters("😀😁😂🤣😃😄😅🚀👍🎉🔥")),
        ("Chinese characters without a break", random_characters("的一是不了人我在有他这中大来上国个到说们")),
        ("Hangul syllables without a break", random_characters("가나다라마바사아자차카타파하거너더러머버서어")),
        (
            "words of 300 letters",
            random_characters("abcdefghijklmnopqrstuvwxyz")
                .as_bytes()
                .chunks(300)
                .map(|word| str::from_utf8(word).unwrap_or_default())
                .collect::<Vec<_>>()
                .join(" "),
        ),
        ("both cases", random_characters("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")),
        ("letters and Chinese characters", random_characters("abcdefghi的一是不了人我在有他这")),
        ("spaces and tabs", random_characters("                          \t")),
        ("everything mixed", random_characters("aZ0 ^🙂é的\n'sTb9")),
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
    targets = bench_token_count
}
criterion_main!(benches);
