//! Which models a request asks besides the one that it names: those that draw or advise for it, and those that may answer instead.

use std::borrow::Cow;

use memchr::memmem;

use crate::json::scan::{self, PeekError, elements_from, fields};

/// Lists of those that may answer instead, as `OpenRouter` and Perplexity take them, or that are asked together.
const LISTS: [&[u8]; 2] = [b"models", b"analysis_models"];
/// What a provider does itself on the way, and which model does it: of `OpenAI`, Anthropic, `OpenRouter` and Azure.
const DONE_THERE: [&[u8]; 3] = [b"tools", b"plugins", b"data_sources"];
/// Where tools of `OpenRouter` and sources of Azure are told more. What a caller's own function takes has a schema there, in which
/// no text is a model.
const TOLD: &[u8] = b"parameters";
/// Who embeds what is looked for in a source, and what that is called.
const EMBEDS: &[u8] = b"embedding_dependency";
const NAMES: [&[u8]; 2] = [b"model", b"deployment_name"];
/// Where a message over a WebSocket may say it all.
const SAID: &[u8] = b"response";
/// What a realtime session is, and where it says who writes down what it hears, now and as it used to.
const SESSION: &[u8] = b"session";
const WRITES_DOWN: [&[&[u8]]; 2] = [&[b"input_audio_transcription"], &[b"audio", b"input", b"transcription"]];
/// In each request that names some, unless letters of it are escaped.
const SIGNS: [&[u8]; 7] =
    [b"tools", b"models", b"plugins", b"data_sources", b"\"session\"", b"input_audio_transcription", b"\\u00"];

/// Those that it names, of each name in an object all that stand there. What cannot be read names none: its provider refuses it.
pub fn beside(request: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    if SIGNS.iter().any(|sign| memmem::find(request, sign).is_some()) {
        look(request, true, &mut found);
    }
    found
}

fn look(request: &[u8], may_be_message: bool, found: &mut Vec<String>) {
    ignore(fields(request, |key, at| {
        match key {
            SAID if may_be_message => look(&request[at], false, found),
            SESSION if may_be_message => {
                named(&request[at.clone()], false, found);
                look(&request[at], false, found);
            }
            _ if LISTS.contains(&key) => each(request, at.start, |name| found.extend(text(name))),
            _ if DONE_THERE.contains(&key) => each(request, at.start, |tool| named(tool, true, found)),
            _ => WRITES_DOWN.iter().for_each(|path| within(key, &request[at.clone()], path, found)),
        }
        Ok(())
    }));
}

/// What is named at the end of a path, where a value stands at its beginning.
fn within(key: &[u8], value: &[u8], path: &[&[u8]], found: &mut Vec<String>) {
    match path {
        [last] if *last == key => named(value, false, found),
        [first, rest @ ..] if *first == key => ignore(fields(value, |key, at| {
            within(key, &value[at], rest, found);
            Ok(())
        })),
        _ => (),
    }
}

/// What a tool names, and what it is told to name.
fn named(tool: &[u8], may_be_told: bool, found: &mut Vec<String>) {
    ignore(fields(tool, |key, at| {
        match key {
            TOLD if may_be_told => named(&tool[at], false, found),
            EMBEDS => named(&tool[at], false, found),
            _ if NAMES.contains(&key) => found.extend(text(&tool[at])),
            _ if LISTS.contains(&key) => each(tool, at.start, |name| found.extend(text(name))),
            _ => (),
        }
        Ok(())
    }));
}

fn each(json: &[u8], at: usize, mut take: impl FnMut(&[u8])) {
    ignore(elements_from(json, at, |item| {
        take(&json[item]);
        Ok(())
    }));
}

fn text(literal: &[u8]) -> Option<String> {
    scan::text(literal).map(Cow::into_owned)
}

/// What is none of this is for others to refuse.
fn ignore<T>(_: Result<T, PeekError>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_in_tools_and_instead_of_the_one_that_is_asked() {
        let of = |request: &str| beside(request.as_bytes()).join(" ");
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
            assert_eq!(of(request), models, "{request}");
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
            assert_eq!(of(none), "", "{none}");
        }
    }
}
