//! Adapts the conversation history of requests that are sent to Claude untranslated, in the Messages or Converse
//! format. Turns that other providers wrote may have tool call ids that Claude rejects, or no content.

use std::ops::Range;

use memchr::memmem;
use serde_json::Value;

use super::{call_ids::CLAUDE, unsigned_thinking};
use crate::{
    json::{
        scan::{ScanError, for_each_element_from, for_each_field_from},
        string_literal::decode_string,
    },
    reports::DroppedParams,
};

/// Fields in which a result names its call, in Messages and in Converse.
const RESULT_KEYS: [&[u8]; 2] = [b"\"tool_use_id\"", b"\"toolUseId\""];

/// Returns the adapted body and what was dropped; `None` if nothing changes. All other bytes stay unchanged.
pub(crate) fn adapt_history(body: &[u8], model: &str) -> Option<(Vec<u8>, DroppedParams)> {
    let (mut adapted, dropped) = unsigned_thinking::drop_unsigned_thinking(body, model).unzip();
    for adapt in [remove_empty_messages, replace_call_ids] {
        adapted = adapt(adapted.as_deref().unwrap_or(body)).or(adapted);
    }
    Some((adapted?, dropped.unwrap_or_default()))
}

/// Calls `each` with the range of every message.
fn for_each_message(body: &[u8], mut each: impl FnMut(Range<usize>) -> Result<(), ScanError>) -> Result<(), ScanError> {
    for_each_field_from(body, 0, |key, at| match key {
        b"messages" if body[at.start] == b'[' => for_each_element_from(body, at.start, &mut each).map(drop),
        _ => Ok(()),
    })
    .map(drop)
}

/// Returns the bytes after each occurrence of a key, without white space and the colon. Quotes inside strings are
/// escaped, so text in a string never matches.
fn list_values<'b>(body: &'b [u8], key: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
    memmem::find_iter(body, key)
        .filter_map(|at| Some(body[at + key.len()..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start()))
}

fn remove_empty_messages(body: &[u8]) -> Option<Vec<u8>> {
    let is_empty = |value: &[u8]| {
        value.starts_with(b"\"\"")
            || value.strip_prefix(b"[").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"]"))
    };
    if !list_values(body, b"\"content\"").any(is_empty) {
        return None;
    }
    let mut messages = Vec::new();
    for_each_message(body, |message| {
        let mut is_cut = false;
        if body[message.start] == b'{' {
            for_each_field_from(body, message.start, |key, at| {
                is_cut |= key == b"content" && is_empty(&body[at]);
                Ok(())
            })?;
        }
        messages.push((message, is_cut));
        Ok(())
    })
    .ok()?;
    // The last turn may be empty.
    if let Some((_, is_cut)) = messages.last_mut() {
        *is_cut = false;
    }
    let mut cuts = Vec::new();
    unsigned_thinking::cut_elements(&messages, &mut cuts);
    let edits = cuts.into_iter().map(|cut| (cut, String::new())).collect();
    apply_edits(body, edits)
}

fn replace_call_ids(body: &[u8]) -> Option<Vec<u8>> {
    let is_foreign = |value: &[u8]| {
        let id = value.strip_prefix(b"\"").unwrap_or_default();
        let id = id.split(|byte| *byte == b'"').next().unwrap_or_default();
        std::str::from_utf8(id).map_or(true, |id| CLAUDE.normalise_id(id) != id)
    };
    if !RESULT_KEYS.into_iter().any(|key| list_values(body, key).any(is_foreign)) {
        return None;
    }
    let mut ids = Vec::new();
    for_each_message(body, |message| {
        if body[message.start] != b'{' {
            return Ok(());
        }
        for_each_field_from(body, message.start, |key, at| {
            if key != b"content" || body[at.start] != b'[' {
                return Ok(());
            }
            for_each_element_from(body, at.start, |block| find_call_id(body, block.start, &mut ids)).map(drop)
        })
        .map(drop)
    })
    .ok()?;
    let edits = ids.into_iter().filter_map(|at| {
        let id = decode_string(&body[at.clone()])?;
        let replaced = CLAUDE.normalise_id(&id);
        (replaced != id).then(|| (at, Value::from(&*replaced).to_string()))
    });
    apply_edits(body, edits.collect())
}

/// Adds the range of the id of a block that is a tool call or the result of one.
fn find_call_id(body: &[u8], block: usize, ids: &mut Vec<Range<usize>>) -> Result<(), ScanError> {
    if body[block] != b'{' {
        return Ok(());
    }
    let (mut kind, mut call, mut result) = (&b""[..], None, None);
    for_each_field_from(body, block, |key, at| {
        match key {
            b"type" => kind = &body[at],
            b"id" => call = Some(at),
            b"tool_use_id" => result = Some(at),
            b"toolUse" | b"toolResult" if body[at.start] == b'{' => {
                return for_each_field_from(body, at.start, |key, at| {
                    if key == b"toolUseId" {
                        ids.push(at);
                    }
                    Ok(())
                })
                .map(drop);
            }
            _ => (),
        }
        Ok(())
    })?;
    ids.extend(match kind {
        b"\"tool_use\"" => call,
        b"\"tool_result\"" => result,
        _ => None,
    });
    Ok(())
}

/// Replaces ranges of the body; `None` if there are none.
fn apply_edits(body: &[u8], mut edits: Vec<(Range<usize>, String)>) -> Option<Vec<u8>> {
    if edits.is_empty() {
        return None;
    }
    edits.sort_unstable_by_key(|(at, _)| at.start);
    let (mut out, mut from) = (Vec::with_capacity(body.len()), 0);
    for (at, text) in edits {
        out.extend_from_slice(&body[from..at.start]);
        out.extend_from_slice(text.as_bytes());
        from = at.end;
    }
    out.extend_from_slice(&body[from..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapt(body: &str) -> Option<String> {
        adapt_history(body.as_bytes(), "claude-sonnet-4-5").map(|(body, _)| String::from_utf8(body).unwrap())
    }

    #[test]
    fn foreign_call_ids_are_replaced_and_all_other_bytes_stay() {
        let body = |id: &str| {
            format!(
                r#"{{"n": 1.50, "messages":[{{"role":"assistant","content":[{{"type":"tool_use", "id":"{id}","name":"f","input":{{"id":"functions.f:0"}}}}]}},
                {{"role":"user","content":[{{"type":"tool_result","tool_use_id" : "{id}","content":"\"tool_use_id\":\"a.b\""}}]}}]}}"#
            )
        };
        let replaced = CLAUDE.normalise_id("functions.f:0").into_owned();
        assert_eq!(adapt(&body("functions.f:0")), Some(body(&replaced)));
        let long = "x".repeat(80);
        assert_eq!(adapt(&body(&long)), Some(body(&CLAUDE.normalise_id(&long))));
        assert_eq!(adapt(&body("caf\\u00e9")), Some(body(&CLAUDE.normalise_id("caf\u{e9}"))));
        for same in [&body("toolu_01A-b"), "{", "{\"tool_use_id\":1}", ""] {
            assert_eq!(adapt(same), None, "{same}");
        }
        let converse = |id: &str| {
            format!(
                r#"{{"messages":[{{"content":[{{"toolUse":{{"toolUseId":"{id}","input":{{}}}}}}]}},{{"content":[{{"toolResult":{{"toolUseId":"{id}"}}}}]}}]}}"#
            )
        };
        assert_eq!(adapt(&converse("a.b")), Some(converse(&CLAUDE.normalise_id("a.b"))));
        let server = r#"{"messages":[{"content":[{"type":"web_search_tool_result","tool_use_id":"a.b"}]}]}"#;
        assert_eq!(adapt(server), None);
    }

    #[test]
    fn empty_turns_are_left_out_except_the_last() {
        let user = r#"{"role":"user","content":"x"}"#;
        for empty in [r#"{"role":"assistant","content":""}"#, r#"{"content" : [ ],"role":"assistant"}"#] {
            let body = format!(r#"{{"messages":[{user}, {empty}, {user}],"max_tokens":9}}"#);
            assert_eq!(adapt(&body), Some(format!(r#"{{"messages":[{user}, {user}],"max_tokens":9}}"#)));
            assert_eq!(adapt(&format!(r#"{{"messages":[{user},{empty}]}}"#)), None);
        }
        // The result of a tool may be empty.
        let result =
            r#"{"messages":[{"content":[{"type":"tool_result","tool_use_id":"a","content":""}]},{"content":"y"}]}"#;
        assert_eq!(adapt(result), None);
    }

    #[test]
    fn unsigned_thinking_ids_and_empty_turns_are_adapted_together() {
        let body = r#"{"messages":[{"content":"a"},{"content":""},{"content":[{"type":"thinking","thinking":"t"},{"type":"tool_use","id":"f:0"}]},{"content":[{"type":"tool_result","tool_use_id":"f:0"}]}]}"#;
        let (adapted, dropped) = adapt_history(body.as_bytes(), "claude-sonnet-4-5").unwrap();
        let id = CLAUDE.normalise_id("f:0");
        let expected = format!(
            r#"{{"messages":[{{"content":"a"}},{{"content":[{{"type":"tool_use","id":"{id}"}}]}},{{"content":[{{"type":"tool_result","tool_use_id":"{id}"}}]}}]}}"#
        );
        assert_eq!((String::from_utf8(adapted).unwrap(), dropped.header_value()), (expected, "thinking".to_owned()));
    }
}
