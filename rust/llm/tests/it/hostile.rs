//! Robustness against malformed input: values of unexpected types in requests and responses, and events that never end.
//! Nothing panics, and no more than the maximum size of an event is buffered.

use crate::golden_cases::{Case, UpstreamBody, translated_cases};
use bytes::Bytes;
use penstock_llm::{
    catalog,
    stream::aws_event_stream::FrameDecoder,
    translation::Translation,
    translation_input::{RequestHints, TranslationInput},
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Returns a value to put where another type is expected.
fn unexpected_value(kind: usize) -> Value {
    match kind % 6 {
        0 => Value::Null,
        1 => json!(-1),
        2 => json!("ä\u{0}"),
        3 => json!([[], {}]),
        4 => json!({"": {"type": 1}}),
        _ => json!(true),
    }
}

/// Counts the values in a document, including the document itself.
fn count_values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count_values).sum(),
        Value::Object(fields) => fields.values().map(count_values).sum(),
        _ => 0,
    }
}

/// Replaces the value with this index, in depth-first order.
fn replace_value_at(value: &mut Value, at: &mut usize, by: &Value) {
    if *at == 0 {
        *value = by.clone();
    }
    *at = at.wrapping_sub(1);
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| replace_value_at(item, at, by)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace_value_at(field, at, by)),
        _ => (),
    }
}

fn replace_value_in_json(json: &[u8], at: usize, kind: usize) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(json) else { return json.to_vec() };
    let mut at = at % count_values(&value);
    replace_value_at(&mut value, &mut at, &unexpected_value(kind));
    value.to_string().into_bytes()
}

/// Replaces one value in each event of a stream.
fn replace_value_in_events(stream: &[u8], at: usize, kind: usize) -> Vec<u8> {
    let text = String::from_utf8_lossy(stream);
    let change = |line: &str| match line.strip_prefix("data: ") {
        Some(data) => format!("data: {}\n", String::from_utf8_lossy(&replace_value_in_json(data.as_bytes(), at, kind))),
        None => format!("{line}\n"),
    };
    text.lines().map(change).collect::<String>().into_bytes()
}

fn translate_changed_response(translation: &Translation, case: &Case, at: usize, kind: usize) {
    match case.upstream_body() {
        UpstreamBody::Complete(bytes) => drop(translation.translate_response(&replace_value_in_json(&bytes, at, kind))),
        UpstreamBody::Error(bytes) => {
            drop(translation.translate_error(500, &replace_value_in_json(&bytes, at, kind), None));
        }
        UpstreamBody::Stream(bytes) => {
            let mut transcoder = translation.transcoder();
            transcoder.push_chunk(replace_value_in_events(&bytes, at, kind).into());
            transcoder.finish();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn values_of_a_wrong_type_never_panic(at in 0_usize..400, kind in 0_usize..6) {
        for case in translated_cases() {
            let provider = catalog::find_provider(&case.provider).unwrap();
            let body = replace_value_in_json(&case.client_request(), at, kind);
            let model = case.model();
            let Some(provider_format) = provider.provider_format(case.operation(), &model) else { continue };
            let question = TranslationInput { operation: case.operation(), provider: provider.row(), body: &body, model: &model, hints: RequestHints { anthropic_betas: Some("a,,b"), ..RequestHints::default() }, strict: at % 2 == 0, now_ms: 0, nonce: 0 };
            if let Ok((translation, _)) = Translation::translate_request(&question, provider_format) {
                translate_changed_response(&translation, &case, at, kind);
            }
            if let Ok((translation, _)) = case.translate_request() {
                translate_changed_response(&translation, &case, at, kind);
            }
        }
    }

    #[test]
    fn no_bytes_make_amazons_frames_panic(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..40)) {
        let mut frames = FrameDecoder::new(1024);
        for chunk in chunks {
            frames.push_chunk(&chunk);
            // Each chunk completes a bounded number of frames. Then the decoder waits for more bytes or has failed for
            // good.
            prop_assert!((0..100).any(|_| frames.next_frame().is_none()));
        }
    }
}

#[test]
fn gives_up_on_an_endless_event_without_buffering_it() {
    let endless = Bytes::from(vec![b'a'; 1024 * 1024]);
    for name in ["anthropic/chatComplete/stream", "google/messages/stream", "bedrock/chatComplete/stream"] {
        let case = translated_cases().into_iter().find(|case| case.name() == name).unwrap();
        let (translation, _) = case.translate_request().unwrap();
        let mut transcoder = translation.transcoder();
        let mut result = transcoder.push_chunk("data: ".into()).to_vec();
        for _ in 0..40 {
            result.extend_from_slice(&transcoder.push_chunk(endless.clone()));
        }
        let text = String::from_utf8(result).unwrap();
        assert!(text.contains("error") && text.len() < 1000, "{name}: {}", text.len());
        assert!(transcoder.push_chunk(endless.clone()).is_empty() && transcoder.finish().is_empty(), "{name}: once");
    }
}
