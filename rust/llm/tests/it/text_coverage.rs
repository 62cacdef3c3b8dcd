//! Coverage of the texts that guardrails read: a text in any string of any golden request, response or event is read,
//! whatever its field is called. The exceptions are listed.

use std::{fs, path::Path};

use penstock_llm::texts::{TextPart, event::EventTexts, request_texts, response_texts};
use serde_json::Value;

/// Text in place of each string. It has a space, so that it is no identifier, address or base64.
const CANARY: &str = "a canary";
/// Fields whose strings are not read: lists of tokens, Google's HTML, and credentials for the servers of tools.
const UNREAD_FIELDS: [&str; 4] = ["logprobs", "logprobsResult", "renderedContent", "headers"];
/// Operations whose bodies have no texts of a conversation.
const OTHER_OPERATIONS: [&str; 12] = [
    "createBatch",
    "createFinetune",
    "createSpeech",
    "imageGenerate",
    "models",
    "moderate",
    "imageEdit",
    "listFiles",
    "retrieveFile",
    "deleteFile",
    "listFinetunes",
    "getBatchOutput",
];
/// Fields of a response of the Responses API that repeat the request.
const ECHOED_REQUEST_FIELDS: [&str; 6] = ["instructions", "metadata", "prompt", "text", "tools", "user"];

/// Adds the JSON pointers of all strings in a value.
fn collect_strings(value: &Value, at: &str, positions: &mut Vec<String>) {
    match value {
        Value::String(_) => positions.push(at.to_owned()),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_strings(item, &format!("{at}/{index}"), positions);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                collect_strings(value, &format!("{at}/{name}"), positions);
            }
        }
        _ => (),
    }
}

/// Puts the canary into each string of a body in turn. Returns the positions where `read` does not find it.
fn unread_positions(body: &Value, read: impl Fn(&Value) -> Vec<TextPart>) -> Vec<String> {
    let mut positions = Vec::new();
    collect_strings(body, "", &mut positions);
    positions.retain(|at| {
        let mut changed = body.clone();
        *changed.pointer_mut(at).unwrap() = CANARY.into();
        !read(&changed).iter().any(|part| part.text.contains(CANARY))
    });
    positions.retain(|at| !at.split('/').any(|step| UNREAD_FIELDS.contains(&step)));
    positions
}

/// Returns the golden inputs below a folder with this extension, except those of operations without a conversation.
fn inputs(folder: &str, extension: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/inputs").join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_str().unwrap().to_owned();
            if entry.is_dir() && !OTHER_OPERATIONS.contains(&name.as_str()) {
                folders.push(entry);
            } else if entry.extension().is_some_and(|own| own == extension) && !name.contains("error") {
                files.push((entry.display().to_string(), fs::read_to_string(&entry).unwrap()));
            }
        }
    }
    assert!(files.len() > 50, "{folder}: {}", files.len());
    files
}

#[test]
fn every_string_of_a_request_is_read() {
    let mut unread = Vec::new();
    for (name, text) in inputs("requests", "json") {
        let Ok(body @ Value::Object(_)) = serde_json::from_str(&text) else { continue };
        unread.extend(unread_positions(&body, request_texts).into_iter().map(|at| format!("{name} {at}")));
    }
    assert!(unread.is_empty(), "{unread:#?}");
}

#[test]
fn every_string_of_a_response_is_read() {
    let mut unread = Vec::new();
    for (name, text) in inputs("responses", "json") {
        let Ok(body @ Value::Object(_)) = serde_json::from_str(&text) else { continue };
        let is_response = body["object"] == "response";
        let positions = unread_positions(&body, response_texts).into_iter().filter(|at| {
            let first = at.split('/').nth(1).unwrap_or_default();
            !(is_response && ECHOED_REQUEST_FIELDS.contains(&first))
        });
        unread.extend(positions.map(|at| format!("{name} {at}")));
    }
    assert!(unread.is_empty(), "{unread:#?}");
}

#[test]
fn every_string_of_an_event_is_read() {
    let read = |event: &Value| {
        let texts = EventTexts::read(event);
        texts.deltas.into_iter().map(|(_, part)| part).chain(texts.copies).collect()
    };
    let mut unread = Vec::new();
    for (name, text) in inputs("responses", "sse") {
        for line in text.lines().filter_map(|line| line.strip_prefix("data:")) {
            let Ok(event @ Value::Object(_)) = serde_json::from_str(line) else { continue };
            if event.get("error").is_some() {
                continue;
            }
            let positions = unread_positions(&event, read).into_iter().filter(|at| {
                let inner = at.strip_prefix("/response/").unwrap_or_default();
                !ECHOED_REQUEST_FIELDS.contains(&inner.split('/').next().unwrap_or_default())
            });
            unread.extend(positions.map(|at| format!("{name} {at} of {}", line.chars().take(90).collect::<String>())));
        }
    }
    unread.dedup();
    assert!(unread.is_empty(), "{unread:#?}");
}
