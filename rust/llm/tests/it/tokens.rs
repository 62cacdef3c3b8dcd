//! Token counts compared with the public cases of tiktoken.

use penstock_llm::tokens::{Encoding, count_request_body, count_text, encoding_for_model};
use proptest::prelude::*;

const ALL_ENCODINGS: [Encoding; 4] =
    [Encoding::O200K_BASE, Encoding::CL100K_BASE, Encoding::P50K_BASE, Encoding::R50K_BASE];

/// Cases of openai/tiktoken, `tests/test_encoding.py`: texts and their number of tokens in each encoding.
#[test]
fn counts_the_public_cases() {
    let zeros: Vec<String> = (1..=17).map(|length| "0".repeat(length)).collect();
    for (length, tokens) in (1..=17).zip([1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 1, 3]) {
        assert_eq!(count_text(Encoding::R50K_BASE, &zeros[length - 1]), tokens, "{length} zeros");
    }
    for (text, tokens) in
        [("rer", 1), ("'rer", 2), ("today\n ", 3), ("today\n \n", 2), ("today\n  \n", 2), (" \u{85}0", 4), ("👍", 3)]
    {
        assert_eq!(count_text(Encoding::CL100K_BASE, text), tokens, "{text:?}");
    }
    for encoding in ALL_ENCODINGS {
        assert_eq!(count_text(encoding, "hello world"), 2, "{}", encoding.name());
        assert_eq!(count_text(encoding, ""), 0, "{}", encoding.name());
        assert!(count_text(encoding, "<|endoftext|>") > 1, "{}", encoding.name());
    }
}

/// Repetitive texts of the same file. The counts come from the Python package, in the order of `ALL_ENCODINGS`.
#[test]
fn counts_highly_repetitive_texts() {
    type Counts = [usize; 3];
    const CASES: [(&str, [Counts; 4]); 6] = [
        ("^", [[1250, 1253, 1254], [2500, 2502, 2503], [2500, 2502, 2503], [2500, 2502, 2503]]),
        ("0", [[3334, 3335, 3336], [3334, 3335, 3336], [625, 626, 627], [625, 626, 627]]),
        ("a", [[1250, 1252, 1253], [1250, 1252, 1253], [2500, 2501, 2502], [2500, 2501, 2502]]),
        ("'s", [[10000, 10001, 10002], [10000, 10001, 10002], [10000, 10001, 10002], [10000, 10001, 10002]]),
        (" ", [[79, 79, 79], [79, 79, 79], [625, 625, 626], [10000, 10001, 10002]]),
        ("\n", [[625, 627, 627], [313, 314, 315], [5000, 5001, 5002], [5000, 5001, 5002]]),
    ];
    for (part, expected) in CASES {
        let text = part.repeat(10_000);
        for (encoding, expected) in ALL_ENCODINGS.into_iter().zip(expected) {
            let counts =
                [text.clone(), format!(" {text}"), format!(" {text}\n")].map(|text| count_text(encoding, &text));
            assert_eq!(counts, expected, "{} {part:?}", encoding.name());
        }
    }
    for encoding in ALL_ENCODINGS {
        assert_eq!(count_text(encoding, &"x".repeat(1_000_000)), 125_000, "{}", encoding.name());
    }
    assert_eq!(ALL_ENCODINGS.map(|encoding| count_text(encoding, "请考试我的软件！12345")), [7, 9, 19, 19]);
}

/// Random texts of 30 KB without a break. The counts come from the Python package, in the order of `ALL_ENCODINGS`.
#[test]
fn counts_random_texts_without_a_break() {
    const CASES: [(&str, [usize; 4]); 11] = [
        ("abcdefghijklmnopqrstuvwxyz", [15589, 16283, 17902, 17902]),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", [17194, 17844, 19212, 19212]),
        ("abcXYZ", [18119, 19257, 21421, 21421]),
        ("0123456789", [10000, 10000, 12951, 12951]),
        ("!#$%&()*+,-.:;<=>?@[]^_{|}~", [20289, 20105, 24813, 24813]),
        ("    \t", [5057, 4984, 10997, 30000]),
        ("\n\n\r", [10461, 11836, 22122, 22122]),
        ("😀😁😂🤣😃😄😅🚀👍🎉🔥", [10997, 18303, 17621, 17621]),
        ("的一是不了人我在有他这中大来上国个到说们", [9054, 9885, 16023, 16023]),
        ("가나다라마바사아자차카타파하", [9484, 14195, 27884, 27884]),
        ("abcde的一是", [11425, 12189, 12768, 12768]),
    ];
    for (alphabet, expected) in CASES {
        let text = random_text(&alphabet.chars().collect::<Vec<_>>(), 30_000);
        assert_eq!(ALL_ENCODINGS.map(|encoding| count_text(encoding, &text)), expected, "{alphabet:?}");
    }
}

fn random_text(alphabet: &[char], size: usize) -> String {
    let (mut state, mut text) = (42_u64, String::new());
    while text.len() < size {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push(alphabet[(state >> 33) as usize % alphabet.len()]);
    }
    text
}

#[test]
fn finds_the_encoding_of_a_model() {
    assert_eq!(encoding_for_model("gpt-4o-mini"), Encoding::O200K_BASE);
    assert_eq!(encoding_for_model("gpt-4-0613"), Encoding::CL100K_BASE);
    assert_eq!(encoding_for_model("@my-openai/gpt-3.5-turbo"), Encoding::CL100K_BASE);
    assert_eq!(encoding_for_model("text-davinci-003"), Encoding::P50K_BASE);
    assert_eq!(encoding_for_model("davinci"), Encoding::R50K_BASE);
    assert_eq!(encoding_for_model("meta-llama/Llama-3.3-70B").name(), "llama3");
    assert_eq!(encoding_for_model("claude-sonnet-4-5"), Encoding::O200K_BASE);
    assert_eq!(Encoding::from_name("nothing"), None);
}

/// The run time of the same texts is measured in `tests/figures`.
#[test]
fn counts_long_repetitions() {
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
    for encoding in ALL_ENCODINGS {
        for text in &hostile {
            let tokens = count_text(encoding, text);
            assert!(tokens > 0 && tokens <= text.len());
        }
    }
}

#[test]
fn counts_runs_of_one_character_like_the_python_package() {
    for (text, tokens) in [("a", 12_500), (" ", 782), ("0", 33_334), ("^", 12_500), ("\n", 6_250), ("🙂", 100_000)] {
        assert_eq!(count_text(Encoding::O200K_BASE, &text.repeat(100_000)), tokens, "{text:?}");
    }
}

#[test]
fn counts_long_texts_completely() {
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(30_000);
    let tokens = count_text(Encoding::O200K_BASE, &text);
    assert!((300_000..=300_001).contains(&tokens), "{tokens}");
}

#[test]
fn counts_the_tokens_of_a_request() {
    let count = |body: &str| count_request_body(Encoding::CL100K_BASE, body.as_bytes());
    assert_eq!(count(r#"{"model":"gpt-4","messages":[{"role":"user","content":"hello world"}]}"#), Some(3 + 3 + 1 + 2));
    assert_eq!(
        count(r#"{"messages":[{"role":"user","name":"user","content":"hello world"}]}"#),
        Some(3 + 3 + 1 + 2 + 1 + 1)
    );
    let image = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hello world"},{"type":"image_url","image_url":{"url":"data:AAAA"}}]}]}"#;
    assert_eq!(count(image), Some(9));
    assert_eq!(count(r#"{"input":["hello world","hello"]}"#), Some(3));
    assert_eq!(count(r#"{"input":[[1,2,3],[4]]}"#), Some(4));
    assert_eq!(count(r#"{"input":[123456789,-1,0.25]}"#), Some(1));
    assert_eq!(count(r#"{"system":"hello","messages":[]}"#), Some(4));
    assert_eq!(count("[]"), None);
}

/// Example of the `OpenAI` cookbook for gpt-4, which the provider counts as 129 tokens.
#[test]
fn counts_the_cookbook_example() {
    let body = serde_json::json!({"messages": [
        {"role": "system", "content": "You are a helpful, pattern-following assistant that translates corporate jargon into plain English."},
        {"role": "system", "name": "example_user", "content": "New synergies will help drive top-line growth."},
        {"role": "system", "name": "example_assistant", "content": "Things working well together will increase revenue."},
        {"role": "system", "name": "example_user", "content": "Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage."},
        {"role": "system", "name": "example_assistant", "content": "Let's talk later when we're less busy about how to do better."},
        {"role": "user", "content": "This late pivot means we don't have time to boil the ocean for the client deliverable."},
    ]});
    assert_eq!(count_request_body(Encoding::CL100K_BASE, body.to_string().as_bytes()), Some(129));
    assert_eq!(count_request_body(Encoding::O200K_BASE, body.to_string().as_bytes()), Some(124));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_makes_it_panic(parts in prop::collection::vec(("\\PC{1,3}", 1..2000usize), 1..4)) {
        let text: String = parts.iter().map(|(part, times)| part.repeat(*times)).collect();
        prop_assert!(count_text(Encoding::O200K_BASE, &text) <= text.len());
    }

    #[test]
    fn short_texts_are_counted_exactly(text in "\\PC{0,200}") {
        let exact = tiktoken::get_encoding("o200k_base").unwrap().count(&text);
        prop_assert_eq!(count_text(Encoding::O200K_BASE, &text), exact);
    }

    #[test]
    fn long_runs_are_counted_as_in_one_piece(parts in prop::collection::vec(text_part(), 1..8)) {
        let text = parts.concat();
        for name in ["o200k_base", "cl100k_base", "llama3", "qwen2", "p50k_base", "r50k_base", "deepseek_v3"] {
            let exact = tiktoken::get_encoding(name).unwrap().count(&text);
            prop_assert_eq!(count_text(Encoding::from_name(name).unwrap(), &text), exact, "{}", name);
        }
    }
}

/// Generates a long run of one kind of characters, random or repeating, or a short text between runs.
fn text_part() -> impl Strategy<Value = String> {
    let kinds = [
        "abcdefghijklmnopqrstuvwxyz",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "aAbBeEtTéÄßЖжωΩ",
        " \t",
        " ",
        "\n\r",
        "\n",
        "!#$%&()*+,-.:;<=>?@[]^_{|}~'/\"",
        "/",
        "-=",
        "😀😁🙂🚀👍",
        "的一是不了人我在有他这",
        "ひらがなカタカナ",
        "가나다라마바사",
        "ابتثجحخدذرز",
        "abcdeабвгд的一是",
        "ABCDEabcdeÀàßΑα",
        "abcdefghijABCDEFGHIJ",
        "abcdefghijX",
        "0123456789",
    ];
    let length = prop_oneof![20..300usize, 100..3000usize];
    let run = (prop::sample::select(kinds.to_vec()), length, any::<u64>(), any::<bool>());
    let run = run.prop_map(|(kind, length, seed, repeats)| {
        let kind: Vec<char> = kind.chars().collect();
        let mut state = seed;
        let pick = |index: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if repeats { kind[index % kind.len()] } else { kind[(state >> 33) as usize % kind.len()] }
        };
        (0..length).map(pick).collect()
    });
    let between = prop::sample::select(vec![
        "", " ", " ", "  ", "\n", "a ", "a\n", "a", "A", "'s", "Ab", "1", "!", "/", "\u{301}", "中", "\u{a0}", "。",
        "ы", "!\n", " \n ",
    ]);
    prop_oneof![3 => run, 2 => between.prop_map(str::to_owned)]
}
