//! Which models a request asks besides the one that it names: those that draw or advise for it, and those that may answer instead.

use std::borrow::Cow;

use memchr::memmem;

use super::scan::{self, PeekError, elements_from, fields};

/// Lists of those that may answer instead, as `OpenRouter` and Perplexity take them.
const INSTEAD: &[u8] = b"models";
/// What a provider does itself on the way, and which model does it: of `OpenAI`, Anthropic and `OpenRouter`.
const DONE_THERE: [&[u8]; 2] = [b"tools", b"plugins"];
/// Where tools of `OpenRouter` are told more. What a caller's own function takes has a schema there, in which no text is a model.
const TOLD: &[u8] = b"parameters";
/// Where a message over a WebSocket may say it all.
const SAID: &[u8] = b"response";

/// Those that it names, of each name in an object all that stand there. What cannot be read names none: its provider refuses it.
pub fn beside(request: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    if may_name_some(request) {
        look(request, true, &mut found);
    }
    found
}

/// Whether one of the names stands anywhere, perhaps with letters of it escaped.
fn may_name_some(request: &[u8]) -> bool {
    let names = [DONE_THERE[0], INSTEAD, DONE_THERE[1], b"\\u00"];
    names.iter().any(|name| memmem::find(request, name).is_some())
}

fn look(request: &[u8], may_be_message: bool, found: &mut Vec<String>) {
    ignore(fields(request, |key, at| {
        match key {
            INSTEAD => each(request, at.start, |name| found.extend(text(name))),
            SAID if may_be_message => look(&request[at], false, found),
            _ if DONE_THERE.contains(&key) => each(request, at.start, |tool| named(tool, true, found)),
            _ => (),
        }
        Ok(())
    }));
}

/// What a tool names, and what it is told to name.
fn named(tool: &[u8], may_be_told: bool, found: &mut Vec<String>) {
    ignore(fields(tool, |key, at| {
        match key {
            b"model" => found.extend(text(&tool[at])),
            INSTEAD => each(tool, at.start, |name| found.extend(text(name))),
            TOLD if may_be_told => named(&tool[at], false, found),
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
        ] {
            assert_eq!(of(request), models, "{request}");
        }
        for none in [
            r#"{"model":"m","messages":[{"content":"models tools","tools":[{"model":"a"}]}],"metadata":{"models":["a"]}}"#,
            r#"{"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"model":{"type":"string"}}}}]}"#,
            r#"{"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"model":{"default":"a"}}}}}]}"#,
            r#"{"tools":{"model":"a"},"models":"a","plugins":null}"#,
            r#"{"tools":[{"model":null}, "model", [] ]}"#,
            "[",
            "",
        ] {
            assert_eq!(of(none), "", "{none}");
        }
    }
}
