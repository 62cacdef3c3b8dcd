//! Golden tests of every translation. The files can be checked by eye.
//!
//! Inputs are stored once, in `golden/inputs`: client requests in `requests/<operation>/` and upstream responses in
//! `responses/<provider>/<operation>/`, named after the first provider and operation that use them.
//! `golden/<provider>/<operation>/cases.json` names the inputs of each case.
//!
//! Expectations are in `golden/<provider>/<operation>/<case>/`: `upstream_request`, `client_response`, and the list
//! `dropped_params`. `rejection` replaces them if nothing is sent. Cases that pass through have `upstream_request` and
//! `client_response` only where these differ from the input. `UPDATE_GOLDEN=1` updates the expectations.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use crate::golden_cases::{
    Case, UpstreamBody, assemble_stream, files, merge_text_blocks, pass_through_cases, translated_cases,
};
use bytes::Bytes;
use penstock_llm::stream::include_usage;
use proptest::prelude::*;

#[test]
fn requests_and_responses_match_the_golden_files() {
    let cases = translated_cases();
    assert!(cases.len() > 20, "the cases are not where they should be");
    for case in cases {
        let translation = match case.translate_request() {
            Err(refusal) => {
                case.expect_file("rejection.txt", refusal.to_string().as_bytes());
                continue;
            }
            Ok((translation, sent)) => {
                match sent.first() {
                    None => (),
                    Some(b'{') => case.expect_json("upstream_request.json", &sent),
                    Some(_) => case.expect_file("upstream_request.txt", &sent),
                }
                translation
            }
        };
        match case.upstream_body() {
            UpstreamBody::Error(bytes) => {
                case.expect_json("client_response.json", &translation.translate_error(400, &bytes, None));
            }
            UpstreamBody::Complete(bytes) => {
                case.expect_json("client_response.json", &translation.translate_response(&bytes).unwrap());
            }
            UpstreamBody::Stream(bytes) => {
                let mut transcoder = translation.transcoder();
                let mut returned = transcoder.push_chunk(bytes).to_vec();
                returned.extend_from_slice(&transcoder.finish());
                let hidden = translation.should_hide_usage.then(|| include_usage::strip_usage(returned.clone().into()));
                case.expect_stream(hidden.as_deref().unwrap_or(&returned));
            }
        }
        if let Some(betas) = &translation.anthropic_betas {
            case.expect_file("betas.txt", betas.as_bytes());
        }
        let lost = translation.response_context.report.header_value(&translation.dropped_params);
        if lost.is_some() || case.has_file("dropped_params.txt") {
            case.expect_file("dropped_params.txt", lost.unwrap_or_default().as_bytes());
        }
    }
}

#[test]
fn pass_through_cases_change_only_as_the_golden_files_state() {
    let cases = pass_through_cases();
    assert!(cases.len() > 20, "the cases are not where they should be");
    for case in cases {
        let (sent, normaliser, hides) = case.prepare_pass_through();
        case.expect_if_changed("upstream_request.json", &case.client_request(), &sent);
        let lost = case.map_parameters().1;
        if !lost.is_empty() || case.has_file("dropped_params.txt") {
            case.expect_file("dropped_params.txt", lost.header_value().as_bytes());
        }
        match case.upstream_body() {
            UpstreamBody::Error(bytes) => {
                let result = normaliser.normalise_error(400, &bytes, None);
                case.expect_if_changed("client_response.json", &bytes, result.as_deref().unwrap_or(&bytes));
            }
            UpstreamBody::Complete(bytes) if normaliser.changes_responses() => {
                case.expect_if_changed("client_response.json", &bytes, &normaliser.normalise_body(bytes.clone()));
            }
            // The gateway does not change this response, so no expected response may exist.
            UpstreamBody::Complete(bytes) => case.expect_if_changed("client_response.json", &bytes, &bytes),
            UpstreamBody::Stream(bytes) => {
                let mut result = bytes.clone();
                if normaliser.changes_responses() {
                    let mut stream = normaliser.stream_normaliser();
                    result = [stream(Some(result)), stream(None)].concat().into();
                }
                let result = if hides { include_usage::strip_usage(result) } else { result };
                case.expect_if_changed("client_response.sse", &bytes, &result);
            }
        }
    }
}

/// OpenAI-compatible providers require the result of each tool call directly after the message with the calls.
#[test]
fn sent_chat_histories_are_valid_for_openai_compatible_apis() {
    let mut histories = 0;
    for case in translated_cases() {
        let Ok((_, sent)) = case.translate_request() else { continue };
        let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap_or_default();
        let mut messages = sent["messages"].as_array().into_iter().flatten().peekable();
        while let Some(message) = messages.next().filter(|message| message["role"].is_string()) {
            let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
            let content = message["content"].to_string();
            let says = !matches!(content.as_str(), "null" | "[]" | "\"\"");
            assert!(message["role"] != "assistant" || says || !calls.is_empty(), "{}: {message}", case.name());
            assert_ne!(message["role"], "tool", "{}: nobody called {message}", case.name());
            let mut request: Vec<_> = calls.iter().map(|call| &call["id"]).collect();
            while let Some(result) = messages.next_if(|next| !request.is_empty() && next["role"] == "tool") {
                let at = request.iter().position(|id| **id == result["tool_call_id"]);
                request.remove(at.unwrap_or_else(|| panic!("{}: {result}", case.name())));
            }
            assert!(request.is_empty(), "{}: {request:?} are not answered", case.name());
            histories += usize::from(!calls.is_empty());
        }
    }
    assert!(histories > 5, "{histories} histories with tools");
}

#[test]
fn translating_a_request_twice_gives_the_same_bytes() {
    for case in translated_cases() {
        let written = || case.translate_request().map(|(_, sent)| sent).ok();
        assert_eq!(written(), written(), "{}", case.name());
    }
}

/// Streams without a complete counterpart: they fail midway, or have events that only streams have.
const STREAMS_WITHOUT_COUNTERPART: [&str; 15] = [
    "anthropic/chatComplete/corrected_usage_stream",
    "anthropic/chatComplete/overloaded_stream",
    "anthropic/chatComplete/restarted_stream",
    "anthropic/createModelResponse/overloaded_stream",
    "bedrock/chatComplete/exception_stream",
    "bedrock/messages/native_error_midway",
    "google/chatComplete/logprobs_one_by_one_stream",
    "google/chatComplete/rejects_mid_stream",
    "google/createModelResponse/limited_stream",
    "google/messages/limited_stream",
    "openai/converseStream/limited_stream",
    "openai/messages/limited_stream",
    "openai/streamGenerateContent/limited_stream",
    "openrouter/messages/details_within_a_call_stream",
    "triton/complete/fails_midway_stream",
];

#[test]
fn an_assembled_stream_equals_the_complete_response() {
    let (mut alone, mut late) = (Vec::new(), 0);
    for case in translated_cases() {
        let UpstreamBody::Stream(bytes) = case.upstream_body() else { continue };
        let Some(complete) = case.complete_counterpart() else {
            alone.push(case.name());
            continue;
        };
        let (Ok((streamed, _)), Ok((translation, _)), UpstreamBody::Complete(answer)) =
            (case.translate_request(), complete.translate_request(), complete.upstream_body())
        else {
            panic!("{} has no complete response to compare with", case.name());
        };
        let mut transcoder = streamed.transcoder();
        let mut returned = transcoder.push_chunk(bytes).to_vec();
        returned.extend_from_slice(&transcoder.finish());
        let expected: serde_json::Value =
            serde_json::from_slice(&translation.translate_response(&answer).unwrap()).unwrap();
        let (mut assembled, mut expected) = (assemble_stream(&case.operation, &returned), strip_object_field(expected));
        if LATE_CITATION_STREAMS.contains(&case.name().as_str()) {
            late += 1;
            (assembled, expected) = (merge_text_blocks(assembled), merge_text_blocks(expected));
        }
        assert_eq!(assembled, expected, "{}", case.name());
    }
    assert_eq!(late, LATE_CITATION_STREAMS.len());
    assert_eq!(alone, STREAMS_WITHOUT_COUNTERPART, "a stream has a case of the same name that is not streamed");
}

/// Streams whose citations arrive after the cited text. The text block is already sent and cannot be split any more.
const LATE_CITATION_STREAMS: [&str; 14] = [
    "cohere/converseStream/cited_stream",
    "cohere/messages/citations_stream",
    "cohere/messages/cited_stream",
    "cohere/messages/non_strict_citations_stream",
    "cohere/messages/non_strict_cited_stream",
    "cometapi/converseStream/cited_stream",
    "cometapi/messages/cited_stream",
    "google/converseStream/cited_stream",
    "google/messages/cited_stream",
    "google/messages/non_strict_cited_stream",
    "perplexity-ai/converseStream/cited_stream",
    "perplexity-ai/messages/cited_stream",
    "perplexity-ai/messages/non_strict_citations_stream",
    "perplexity-ai/messages/non_strict_cited_stream",
];

/// Removes `object`, which assembled chat completions do not have.
fn strip_object_field(mut complete: serde_json::Value) -> serde_json::Value {
    if let Some(object) = complete.as_object_mut()
        && object.get("object").is_some_and(|kind| kind == "chat.completion")
    {
        object.remove("object");
    }
    complete
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chunk_boundaries_do_not_change_the_output(cuts in prop::collection::vec(1_usize..60, 1..40)) {
        for case in translated_cases() {
            let UpstreamBody::Stream(bytes) = case.upstream_body() else { continue };
            // Each run needs its own translation, because a dropped field is reported only once.
            let (entire, chunks) = (case.translate_request().unwrap().0, case.translate_request().unwrap().0);
            prop_assert_eq!(translate_in_chunks(&entire, &bytes, &[bytes.len()]), translate_in_chunks(&chunks, &bytes, &cuts), "{}", case.name());
        }
    }

    #[test]
    fn no_answer_makes_it_panic(noise in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..4000) {
        for case in translated_cases() {
            let Ok((translation, _)) = case.translate_request() else { continue };
            let (UpstreamBody::Stream(bytes) | UpstreamBody::Complete(bytes) | UpstreamBody::Error(bytes)) = case.upstream_body();
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

fn translate_in_chunks(
    translation: &penstock_llm::translation::Translation,
    bytes: &Bytes,
    lengths: &[usize],
) -> Vec<u8> {
    let mut transcoder = translation.transcoder();
    let mut returned = Vec::new();
    let mut rest = bytes.clone();
    for length in lengths.iter().cycle() {
        let chunk = rest.split_to((*length).min(rest.len()));
        if chunk.is_empty() {
            break;
        }
        returned.extend_from_slice(&transcoder.push_chunk(chunk));
    }
    returned.extend_from_slice(&transcoder.finish());
    returned
}

#[test]
fn translates_stream_content_before_the_stream_ends() {
    for case in
        translated_cases().into_iter().filter(|case: &Case| matches!(case.upstream_body(), UpstreamBody::Stream(_)))
    {
        let UpstreamBody::Stream(bytes) = case.upstream_body() else { continue };
        let (translation, _) = case.translate_request().unwrap();
        let mut transcoder = translation.transcoder();
        let begun = transcoder.push_chunk(bytes.slice(..bytes.len() * 3 / 4));
        assert!(!begun.is_empty(), "{} waits for its end", case.name());
    }
}

/// A file that no case uses would be checked by no test.
#[test]
fn every_golden_file_belongs_to_a_case() {
    let mut used = BTreeSet::new();
    for provider in files::list_providers() {
        for operation in files::list_folders(&files::golden_root().join(&provider)) {
            let manifest = files::read_manifest(&provider, &operation);
            for row in manifest.values() {
                used.extend(["request", "response"].iter().filter_map(|key| row[key].as_str().map(ToOwned::to_owned)));
            }
            let mut folders = files::list_folders(&files::golden_root().join(&provider).join(&operation));
            folders.retain(|case| !manifest.contains_key(case));
            assert_eq!(folders, [""; 0], "{provider}/{operation}/cases.json lacks these cases");
        }
    }
    let (mut used_files, mut contents) = (BTreeSet::new(), BTreeMap::new());
    let mut folders = vec![files::inputs_root()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(files::inputs_root()).unwrap().to_str().unwrap().to_owned();
            let kind = (name.split('/').next().unwrap().to_owned(), path.extension().unwrap().to_owned());
            let twin = contents.insert((kind, fs::read(&path).unwrap()), name.clone());
            assert_eq!(twin, None, "{name} has the same content");
            used_files.insert(name);
        }
    }
    // A manifest that names a missing file panics where it is read.
    let unused: Vec<_> = used_files.difference(&used).collect();
    assert!(unused.is_empty(), "no manifest names these files of golden/inputs: {unused:?}");
}
