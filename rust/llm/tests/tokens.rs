//! Counts against the public cases of tiktoken, and against texts made to be slow.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends where it fails")]

use std::time::{Duration, Instant};

use penstock_llm::tokens::{Encoding, count, count_messages, encoding_for};
use proptest::prelude::*;

/// How many tokens slicing may add to or take from a hostile text of ten thousand repetitions.
const SLACK: usize = 3;

const ALL: [Encoding; 4] = [Encoding::O200K_BASE, Encoding::CL100K_BASE, Encoding::P50K_BASE, Encoding::R50K_BASE];

/// From openai/tiktoken, `tests/test_encoding.py`: texts, and how many tokens each encoding makes of them.
#[test]
fn counts_the_public_cases() {
    let zeros: Vec<String> = (1..=17).map(|length| "0".repeat(length)).collect();
    for (length, tokens) in (1..=17).zip([1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 1, 3]) {
        assert_eq!(count(Encoding::R50K_BASE, &zeros[length - 1]), tokens, "{length} zeros");
    }
    for (text, tokens) in
        [("rer", 1), ("'rer", 2), ("today\n ", 3), ("today\n \n", 2), ("today\n  \n", 2), (" \u{85}0", 4), ("👍", 3)]
    {
        assert_eq!(count(Encoding::CL100K_BASE, text), tokens, "{text:?}");
    }
    for encoding in ALL {
        assert_eq!(count(encoding, "hello world"), 2, "{}", encoding.name());
        assert_eq!(count(encoding, ""), 0, "{}", encoding.name());
        assert!(count(encoding, "<|endoftext|>") > 1, "{}", encoding.name());
    }
}

/// The same file's repetitive texts, counted in slices here and in one piece there.
#[test]
fn counts_the_catastrophically_repetitive_cases() {
    for encoding in ALL {
        let whole = tiktoken::get_encoding(encoding.name()).unwrap();
        for part in ["^", "0", "a", "'s", " ", "\n"] {
            let text = part.repeat(10_000);
            for text in [text.clone(), format!(" {text}"), format!(" {text}\n")] {
                assert!(count(encoding, &text).abs_diff(whole.count(&text)) <= SLACK, "{} {part:?}", encoding.name());
            }
        }
    }
}

#[test]
fn finds_the_encoding_of_a_model() {
    assert_eq!(encoding_for("gpt-4o-mini"), Encoding::O200K_BASE);
    assert_eq!(encoding_for("gpt-4-0613"), Encoding::CL100K_BASE);
    assert_eq!(encoding_for("@my-openai/gpt-3.5-turbo"), Encoding::CL100K_BASE);
    assert_eq!(encoding_for("text-davinci-003"), Encoding::P50K_BASE);
    assert_eq!(encoding_for("davinci"), Encoding::R50K_BASE);
    assert_eq!(encoding_for("meta-llama/Llama-3.3-70B").name(), "llama3");
    assert_eq!(encoding_for("claude-sonnet-4-5"), Encoding::O200K_BASE);
    assert_eq!(Encoding::named("nothing"), None);
}

#[test]
fn repetition_takes_bounded_time() {
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
    for encoding in ALL {
        for text in &hostile {
            let start = Instant::now();
            let tokens = count(encoding, text);
            assert!(tokens > 0 && tokens <= text.len());
            assert!(start.elapsed() < Duration::from_secs(10), "{} {:?}", encoding.name(), text.get(..8));
        }
    }
}

/// Slices of a run hold as many tokens as the run, where it is the same all over.
#[test]
fn runs_of_one_character_are_still_exact() {
    for (text, tokens) in [("a", 12_500), (" ", 782), ("0", 33_334), ("^", 12_500), ("\n", 6_250), ("🙂", 100_000)] {
        assert_eq!(count(Encoding::O200K_BASE, &text.repeat(100_000)), tokens, "{text:?}");
    }
}

#[test]
fn long_texts_are_counted_whole() {
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(30_000);
    let tokens = count(Encoding::O200K_BASE, &text);
    assert!((300_000..=300_001).contains(&tokens), "{tokens}");
}

#[test]
fn counts_what_a_model_reads_of_a_request() {
    let count = |body: &str| count_messages(Encoding::CL100K_BASE, body.as_bytes());
    assert_eq!(count(r#"{"model":"gpt-4","messages":[{"role":"user","content":"hello world"}]}"#), Some(3 + 3 + 1 + 2));
    assert_eq!(
        count(r#"{"messages":[{"role":"user","name":"user","content":"hello world"}]}"#),
        Some(3 + 3 + 1 + 2 + 1 + 1)
    );
    let image = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello world"},{"type":"image_url","image_url":{"url":"data:AAAA"}}]}]}"#;
    assert_eq!(count(image), Some(9));
    assert_eq!(count(r#"{"input":["hello world","hello"]}"#), Some(3));
    assert_eq!(count(r#"{"input":[[1,2,3],[4]]}"#), Some(4));
    assert_eq!(count(r#"{"system":"hello","messages":[]}"#), Some(4));
    assert_eq!(count("[]"), None);
}

/// The cookbook's example for gpt-4: 129 tokens by the provider's own count.
#[test]
fn counts_the_example_of_the_cookbook() {
    let body = serde_json::json!({"messages": [
        {"role": "system", "content": "You are a helpful, pattern-following assistant that translates corporate jargon into plain English."},
        {"role": "system", "name": "example_user", "content": "New synergies will help drive top-line growth."},
        {"role": "system", "name": "example_assistant", "content": "Things working well together will increase revenue."},
        {"role": "system", "name": "example_user", "content": "Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage."},
        {"role": "system", "name": "example_assistant", "content": "Let's talk later when we're less busy about how to do better."},
        {"role": "user", "content": "This late pivot means we don't have time to boil the ocean for the client deliverable."},
    ]});
    assert_eq!(count_messages(Encoding::CL100K_BASE, body.to_string().as_bytes()), Some(129));
    assert_eq!(count_messages(Encoding::O200K_BASE, body.to_string().as_bytes()), Some(124));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_makes_it_panic(parts in prop::collection::vec(("\\PC{1,3}", 1..2000usize), 1..4)) {
        let text: String = parts.iter().map(|(part, times)| part.repeat(*times)).collect();
        prop_assert!(count(Encoding::O200K_BASE, &text) <= text.len());
    }

    #[test]
    fn short_texts_are_counted_exactly(text in "\\PC{0,200}") {
        let exact = tiktoken::get_encoding("o200k_base").unwrap().count(&text);
        prop_assert_eq!(count(Encoding::O200K_BASE, &text), exact);
    }
}
