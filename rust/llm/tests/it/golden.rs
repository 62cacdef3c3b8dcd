//! Every translation as files that a reader can check by eye: golden/<provider>/<operation>/<case>.
//!
//! `asked` is what the caller sends, `sent` what the provider gets, `answered` what it says, `returned` what the caller
//! gets; `lost` names what could not be said, `refused` stands in the place of all that where nothing is sent. Of what passes in
//! the caller's own dialect, `sent` and `returned` stand only where they differ from what came.
//! `UPDATE_GOLDEN=1` writes what is.

use crate::golden_cases::{Answered, Case, cases, in_one_text, passing, reassembled};
use bytes::Bytes;
use penstock_llm::stream::include_usage;
use proptest::prelude::*;

#[test]
fn every_request_is_sent_and_every_answer_returned_as_the_files_say() {
    let cases = cases();
    assert!(cases.len() > 20, "the cases are not where they should be");
    for case in cases {
        let translation = match case.translation() {
            Err(refusal) => {
                case.expect("refused.txt", refusal.to_string().as_bytes());
                continue;
            }
            Ok((translation, sent)) => {
                match sent.first() {
                    None => (),
                    Some(b'{') => case.expect_json("sent.json", &sent),
                    Some(_) => case.expect("sent.txt", &sent),
                }
                translation
            }
        };
        match case.answered() {
            Answered::Error(bytes) => {
                case.expect_json("returned.json", &translation.translate_error(400, &bytes, None))
            }
            Answered::Whole(bytes) => {
                case.expect_json("returned.json", &translation.translate_response(&bytes).unwrap())
            }
            Answered::Stream(bytes) => {
                let mut transcoder = translation.transcoder();
                let mut returned = transcoder.push_chunk(bytes).to_vec();
                returned.extend_from_slice(&transcoder.finish());
                let hidden = translation.should_hide_usage.then(|| include_usage::strip_usage(returned.clone().into()));
                case.expect_stream(hidden.as_deref().unwrap_or(&returned));
            }
        }
        if let Some(betas) = &translation.anthropic_betas {
            case.expect("betas.txt", betas.as_bytes());
        }
        let lost = translation.response_context.dropped_fields.header_value(&translation.dropped_params);
        if lost.is_some() || case.has("lost.txt") {
            case.expect("lost.txt", lost.unwrap_or_default().as_bytes());
        }
    }
}

#[test]
fn what_passes_passes_as_it_came_but_for_what_the_files_say() {
    let cases = passing();
    assert!(cases.len() > 20, "the cases are not where they should be");
    for case in cases {
        let (sent, mending, hides) = case.passed();
        case.expect_changed("sent.json", &case.asked(), &sent);
        let lost = case.worded().1;
        if !lost.is_empty() || case.has("lost.txt") {
            case.expect("lost.txt", lost.header_value().as_bytes());
        }
        match case.answered() {
            Answered::Error(bytes) => {
                let told = mending.normalise_error(400, &bytes, None);
                case.expect_changed("returned.json", &bytes, told.as_deref().unwrap_or(&bytes));
            }
            Answered::Whole(bytes) if mending.changes_responses() => {
                case.expect_changed("returned.json", &bytes, &mending.normalise_body(bytes.clone()));
            }
            // Nobody looks at it.
            Answered::Whole(bytes) => case.expect_changed("returned.json", &bytes, &bytes),
            Answered::Stream(bytes) => {
                let mut told = bytes.clone();
                if mending.changes_responses() {
                    let mut stream = mending.stream_normaliser();
                    told = [stream(Some(told)), stream(None)].concat().into();
                }
                let told = if hides { include_usage::strip_usage(told) } else { told };
                case.expect_changed("returned.sse", &bytes, &told);
            }
        }
    }
}

/// As those who speak `OpenAI` take it: what calls tools is followed by what each of them gave back.
#[test]
fn every_history_that_is_sent_is_one_that_providers_take() {
    let mut histories = 0;
    for case in cases() {
        let Ok((_, sent)) = case.translation() else { continue };
        let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap_or_default();
        let mut messages = sent["messages"].as_array().into_iter().flatten().peekable();
        while let Some(message) = messages.next().filter(|message| message["role"].is_string()) {
            let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
            let content = message["content"].to_string();
            let says = !matches!(content.as_str(), "null" | "[]" | "\"\"");
            assert!(message["role"] != "assistant" || says || !calls.is_empty(), "{}: {message}", case.name());
            assert_ne!(message["role"], "tool", "{}: nobody called {message}", case.name());
            let mut asked: Vec<_> = calls.iter().map(|call| &call["id"]).collect();
            while let Some(result) = messages.next_if(|next| !asked.is_empty() && next["role"] == "tool") {
                let at = asked.iter().position(|id| **id == result["tool_call_id"]);
                asked.remove(at.unwrap_or_else(|| panic!("{}: {result}", case.name())));
            }
            assert!(asked.is_empty(), "{}: {asked:?} are not answered", case.name());
            histories += usize::from(!calls.is_empty());
        }
    }
    assert!(histories > 5, "{histories} histories with tools");
}

#[test]
fn the_same_request_is_written_the_same_way_twice() {
    for case in cases() {
        let written = || case.translation().map(|(_, sent)| sent).ok();
        assert_eq!(written(), written(), "{}", case.name());
    }
}

/// Streams that no whole answer says: they fail on their way, or come in pieces of which only a stream has so many.
const ALONE: [&str; 13] = [
    "anthropic/chatComplete/overloaded_stream",
    "anthropic/createModelResponse/overloaded_stream",
    "bedrock/chatComplete/exception_stream",
    "bedrock/messages/carried_fails_on_the_way",
    "google/chatComplete/logprobs_one_by_one_stream",
    "google/chatComplete/refused_mid_stream",
    "google/createModelResponse/limited_stream",
    "google/messages/limited_stream",
    "openai/converseStream/limited_stream",
    "openai/messages/limited_stream",
    "openai/streamGenerateContent/limited_stream",
    "openrouter/messages/details_within_a_call_stream",
    "triton/complete/fails_on_the_way_stream",
];

#[test]
fn a_stream_put_together_again_is_the_whole_answer() {
    let (mut alone, mut late) = (Vec::new(), 0);
    for case in cases() {
        let Answered::Stream(bytes) = case.answered() else { continue };
        let Some(whole) = case.sibling() else {
            alone.push(case.name());
            continue;
        };
        let (Ok((streamed, _)), Ok((translation, _)), Answered::Whole(answer)) =
            (case.translation(), whole.translation(), whole.answered())
        else {
            panic!("{} has no whole to compare with", case.name());
        };
        let mut transcoder = streamed.transcoder();
        let mut returned = transcoder.push_chunk(bytes).to_vec();
        returned.extend_from_slice(&transcoder.finish());
        let expected: serde_json::Value =
            serde_json::from_slice(&translation.translate_response(&answer).unwrap()).unwrap();
        let (mut found, mut expected) = (reassembled(&case.operation, &returned), reassembled_whole(expected));
        if LATE.contains(&case.name().as_str()) {
            late += 1;
            (found, expected) = (in_one_text(found), in_one_text(expected));
        }
        assert_eq!(found, expected, "{}", case.name());
    }
    assert_eq!(late, LATE.len());
    assert_eq!(alone, ALONE, "a stream has a case of the same name that is answered whole");
}

/// What is cited is known there when its words have been told, and a block that was told is not cut any more.
const LATE: [&str; 14] = [
    "cohere/converseStream/cited_stream",
    "cohere/messages/citations_stream",
    "cohere/messages/cited_stream",
    "cohere/messages/loose_citations_stream",
    "cohere/messages/loose_cited_stream",
    "cometapi/converseStream/cited_stream",
    "cometapi/messages/cited_stream",
    "google/converseStream/cited_stream",
    "google/messages/cited_stream",
    "google/messages/loose_cited_stream",
    "perplexity-ai/converseStream/cited_stream",
    "perplexity-ai/messages/cited_stream",
    "perplexity-ai/messages/loose_citations_stream",
    "perplexity-ai/messages/loose_cited_stream",
];

/// Without what only one of the two has.
fn reassembled_whole(mut whole: serde_json::Value) -> serde_json::Value {
    if let Some(object) = whole.as_object_mut()
        && object.get("object").is_some_and(|kind| kind == "chat.completion")
    {
        object.remove("object");
    }
    whole
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn however_a_stream_is_cut_the_same_comes_out(cuts in prop::collection::vec(1_usize..60, 1..40)) {
        for case in cases() {
            let Answered::Stream(bytes) = case.answered() else { continue };
            // One for each: what was lost is named once.
            let (entire, pieces) = (case.translation().unwrap().0, case.translation().unwrap().0);
            prop_assert_eq!(cut(&entire, &bytes, &[bytes.len()]), cut(&pieces, &bytes, &cuts), "{}", case.name());
        }
    }

    #[test]
    fn no_answer_makes_it_panic(noise in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..4000) {
        for case in cases() {
            let Ok((translation, _)) = case.translation() else { continue };
            let (Answered::Stream(bytes) | Answered::Whole(bytes) | Answered::Error(bytes)) = case.answered();
            let mut broken = bytes.to_vec();
            let at = at.min(broken.len());
            broken.splice(at..at, noise.iter().copied());
            let _ = (translation.translate_response(&broken), translation.translate_error(500, &broken, None));
            let mut transcoder = translation.transcoder();
            transcoder.push_chunk(Bytes::from(broken));
            transcoder.finish();
        }
    }
}

fn cut(translation: &penstock_llm::translation::Translation, bytes: &Bytes, lengths: &[usize]) -> Vec<u8> {
    let mut transcoder = translation.transcoder();
    let mut returned = Vec::new();
    let mut rest = bytes.clone();
    for length in lengths.iter().cycle() {
        let piece = rest.split_to((*length).min(rest.len()));
        if piece.is_empty() {
            break;
        }
        returned.extend_from_slice(&transcoder.push_chunk(piece));
    }
    returned.extend_from_slice(&transcoder.finish());
    returned
}

#[test]
fn what_a_stream_says_is_said_before_it_is_over() {
    for case in cases().into_iter().filter(|case: &Case| matches!(case.answered(), Answered::Stream(_))) {
        let Answered::Stream(bytes) = case.answered() else { continue };
        let (translation, _) = case.translation().unwrap();
        let mut transcoder = translation.transcoder();
        let begun = transcoder.push_chunk(bytes.slice(..bytes.len() * 3 / 4));
        assert!(!begun.is_empty(), "{} waits for its end", case.name());
    }
}
