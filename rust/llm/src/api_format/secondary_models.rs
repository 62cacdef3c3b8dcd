//! Secondary models of a request: models of server-side tools, plugins and transcription, and fallback models. The
//! allow-list must cover them too.

use std::borrow::Cow;

use memchr::memmem;

use crate::json::scan::{self, ScanError, for_each_element_from, for_each_field};

/// Keys of model lists: fallback models at `OpenRouter` and Perplexity, and models that are queried together.
const MODEL_LIST_KEYS: [&[u8]; 2] = [b"models", b"analysis_models"];
/// Keys of server-side tools and data sources, which may name a model, at `OpenAI`, Anthropic, `OpenRouter` and Azure.
const SERVER_TOOL_KEYS: [&[u8]; 3] = [b"tools", b"plugins", b"data_sources"];
/// Key of the parameters of `OpenRouter` tools and Azure data sources. Under a client-side function this key holds a
/// JSON schema, where no string value is a model.
const PARAMETERS_KEY: &[u8] = b"parameters";
/// Key of the embedding model that a data source uses for its search.
const EMBEDDING_KEY: &[u8] = b"embedding_dependency";
const MODEL_KEYS: [&[u8]; 2] = [b"model", b"deployment_name"];
/// Key under which a WebSocket message may carry the whole request.
const RESPONSE_KEY: &[u8] = b"response";
/// Key of a realtime session, and the old and new paths of its transcription model.
const SESSION_KEY: &[u8] = b"session";
const TRANSCRIPTION_PATHS: [&[&[u8]]; 2] = [&[b"input_audio_transcription"], &[b"audio", b"input", b"transcription"]];
/// Substrings for a fast pre-check: every request with secondary models contains one of them. `\u00` covers keys with
/// escaped letters.
const PREFILTER_SUBSTRINGS: [&[u8]; 7] =
    [b"tools", b"models", b"plugins", b"data_sources", b"\"session\"", b"input_audio_transcription", b"\\u00"];

/// Returns all secondary models of a request, including those under duplicate keys. A body that cannot be parsed yields
/// none, because the provider rejects it.
pub fn secondary_models(request: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    if PREFILTER_SUBSTRINGS.iter().any(|sign| memmem::find(request, sign).is_some()) {
        collect_from_request(request, true, &mut found);
    }
    found
}

fn collect_from_request(request: &[u8], may_be_message: bool, found: &mut Vec<String>) {
    ignore_error(for_each_field(request, |key, at| {
        match key {
            RESPONSE_KEY if may_be_message => collect_from_request(&request[at], false, found),
            SESSION_KEY if may_be_message => {
                collect_from_tool(&request[at.clone()], false, found);
                collect_from_request(&request[at], false, found);
            }
            _ if MODEL_LIST_KEYS.contains(&key) => {
                for_each_element(request, at.start, |name| found.extend(decode_owned_string(name)));
            }
            _ if SERVER_TOOL_KEYS.contains(&key) => {
                for_each_element(request, at.start, |tool| collect_from_tool(tool, true, found));
            }
            _ => TRANSCRIPTION_PATHS.iter().for_each(|path| collect_at_path(key, &request[at.clone()], path, found)),
        }
        Ok(())
    }));
}

/// Collects the models at the end of `path`, given the key and value where the path begins.
fn collect_at_path(key: &[u8], value: &[u8], path: &[&[u8]], found: &mut Vec<String>) {
    match path {
        [last] if *last == key => collect_from_tool(value, false, found),
        [first, rest @ ..] if *first == key => ignore_error(for_each_field(value, |key, at| {
            collect_at_path(key, &value[at], rest, found);
            Ok(())
        })),
        _ => (),
    }
}

/// Collects the models that a tool names, either directly or in its parameters.
fn collect_from_tool(tool: &[u8], may_be_told: bool, found: &mut Vec<String>) {
    ignore_error(for_each_field(tool, |key, at| {
        match key {
            PARAMETERS_KEY if may_be_told => collect_from_tool(&tool[at], false, found),
            EMBEDDING_KEY => collect_from_tool(&tool[at], false, found),
            _ if MODEL_KEYS.contains(&key) => found.extend(decode_owned_string(&tool[at])),
            _ if MODEL_LIST_KEYS.contains(&key) => {
                for_each_element(tool, at.start, |name| found.extend(decode_owned_string(name)));
            }
            _ => (),
        }
        Ok(())
    }));
}

fn for_each_element(json: &[u8], at: usize, mut visit: impl FnMut(&[u8])) {
    ignore_error(for_each_element_from(json, at, |item| {
        visit(&json[item]);
        Ok(())
    }));
}

fn decode_owned_string(literal: &[u8]) -> Option<String> {
    scan::decode_string(literal).map(Cow::into_owned)
}

/// Discards scan errors; malformed values are rejected elsewhere.
fn ignore_error<T>(_: Result<T, ScanError>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_models_in_tools_sessions_and_fallback_lists() {
        let find_models = |request: &str| secondary_models(request.as_bytes()).join(" ");
        for (request, models) in [
            (
                r#"{"model":"m","tools":[{"type":"image_generation","model":"a"}, {"model":"b","type":"advisor"}]}"#,
                "a b",
            ),
            (
                r#"{"tools":[{"type":"image_generation","model":"a","mod\u0065l":"b"}],"t\u006fols":[{"model":"c"}]}"#,
                "a b c",
            ),
            (r#"{"model":"m","models":["a", "b", 1]}"#, "a b"),
            (r#"{"plugins":[{"id":"x","model":"a"}],"tools":[{"parameters":{"model":"b","models":["c"]}}]}"#, "a b c"),
            (
                r#"{"type":"response.create","response":{"tools":[{"model":"a"}],"response":{"tools":[{"model":"b"}]}}}"#,
                "a",
            ),
            (r#"{"plugins":[{"id":"fusion","model":"a","analysis_models":["b"]}]}"#, "a b"),
            (
                r#"{"data_sources":[{"parameters":{"embedding_dependency":{"type":"deployment_name","deployment_name":"a"}}}]}"#,
                "a",
            ),
            (
                r#"{"type":"session.update","session":{"model":"a","audio":{"input":{"transcription":{"model":"b"}}}}}"#,
                "a b",
            ),
            (r#"{"session":{"input_audio_transcription":{"model":"a"},"session":{"model":"b"}}}"#, "a"),
            (r#"{"model":"m","input_audio_transcription":{"model":"a"}}"#, "a"),
        ] {
            assert_eq!(find_models(request), models, "{request}");
        }
        for none in [
            r#"{"model":"m","messages":[{"content":"models tools","tools":[{"model":"a"}]}],"metadata":{"models":["a"]}}"#,
            r#"{"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"model":{"type":"string"}}}}]}"#,
            r#"{"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"model":{"default":"a"}}}}}]}"#,
            r#"{"tools":{"model":"a"},"models":"a","plugins":null}"#,
            r#"{"session":{"audio":{"transcription":{"model":"a"},"input":[{"model":"a"}]},"transcription":{"model":"a"}}}"#,
            r#"{"tools":[{"model":null}, "model", [] ]}"#,
            "[",
            "",
        ] {
            assert_eq!(find_models(none), "", "{none}");
        }
    }
}
