//! Removes thinking without a signature from Messages and Converse requests to Claude. The gateway returns the thinking
//! of other models without a signature, and Claude rejects a conversation that contains it.

use std::{borrow::Cow, ops::Range};

use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    chat::claude_version::is_adaptive_only,
    json::{
        edit::{self, FieldPath},
        scan::{ScanError, for_each_element_from, for_each_field_from},
    },
    reports::DroppedParams,
};

/// Block of a message, as far as it decides whether it is thinking without a signature.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockHead<'b> {
    #[serde(rename = "type", default, borrow)]
    kind: Option<Cow<'b, str>>,
    #[serde(default)]
    signature: Option<Value>,
    /// Reasoning in Converse's format.
    #[serde(default)]
    reasoning_content: Option<Value>,
}

/// Returns the body without unsigned thinking blocks, and what was dropped; `None` if there are none. All other bytes
/// stay unchanged. Also disables thinking in the middle of a tool turn that has no other thinking, because Claude would
/// reject it.
pub(crate) fn drop_unsigned_thinking(body: &[u8], model: &str) -> Option<(Vec<u8>, DroppedParams)> {
    let kept_bytes = cut_unsigned_blocks(body)?;
    let mut dropped = DroppedParams::default();
    dropped.add("thinking");
    if is_adaptive_only(model) || !continues_without_thinking(&kept_bytes) {
        return Some((kept_bytes, dropped));
    }
    let paths = ["thinking", "additionalModelRequestFields.thinking"];
    let paths: Vec<FieldPath> = paths.into_iter().filter_map(|path| FieldPath::parse(path).ok()).collect();
    let without = edit::remove_paths(&kept_bytes, &paths).ok().flatten();
    Some((without.unwrap_or(kept_bytes), dropped))
}

/// Returns true if the request returns tool results to a turn of the assistant that has no thinking.
fn continues_without_thinking(body: &[u8]) -> bool {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let has_block = |message: &Value, is_it: fn(&Value) -> bool| {
        message["content"].as_array().is_some_and(|blocks| blocks.iter().any(is_it))
    };
    let is_result = |block: &Value| block["type"] == "tool_result" || block["toolResult"].is_object();
    let is_thinking = |block: &Value| {
        matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
            || block["reasoningContent"].is_object()
    };
    let returns_results = |message: &&Value| message["role"] == "user" && has_block(message, is_result);
    if !messages.last().is_some_and(|last| returns_results(&last)) {
        return false;
    }
    let turn = messages.iter().rev().skip_while(returns_results).take_while(|message| message["role"] == "assistant");
    !turn.into_iter().any(|message| has_block(message, is_thinking))
}

fn cut_unsigned_blocks(body: &[u8]) -> Option<Vec<u8>> {
    let may_think = KINDS.iter().any(|kind| memmem::find(body, kind).is_some());
    memmem::find(body, b"\"messages\"").filter(|_| may_think)?;
    let mut cuts = Vec::new();
    for_each_field_from(body, 0, |key, at| match key {
        b"messages" if body[at.start] == b'[' => cut_messages(body, at, &mut cuts),
        _ => Ok(()),
    })
    .ok()?;
    if cuts.is_empty() {
        return None;
    }
    let mut kept_bytes = Vec::with_capacity(body.len());
    let mut from = 0;
    for cut in cuts {
        kept_bytes.extend_from_slice(&body[from..cut.start]);
        from = cut.end;
    }
    kept_bytes.extend_from_slice(&body[from..]);
    Some(kept_bytes)
}

/// Cuts the unsigned thinking blocks of each message. Cuts messages that have no other blocks, because Anthropic
/// rejects a message without content.
fn cut_messages(body: &[u8], messages: Range<usize>, cuts: &mut Vec<Range<usize>>) -> Result<(), ScanError> {
    let mut elements = Vec::new();
    for_each_element_from(body, messages.start, |message| {
        let first_cut = cuts.len();
        let is_emptied = body[message.start] == b'{' && cut_blocks(body, message.start, cuts)?;
        if is_emptied {
            cuts.truncate(first_cut);
        }
        elements.push((message, is_emptied));
        Ok(())
    })?;
    cut_elements(&elements, cuts);
    cuts.sort_unstable_by_key(|cut| cut.start);
    Ok(())
}

/// Cuts the unsigned thinking blocks of a message. Returns true if it has no other blocks.
fn cut_blocks(body: &[u8], message: usize, cuts: &mut Vec<Range<usize>>) -> Result<bool, ScanError> {
    let mut is_emptied = false;
    for_each_field_from(body, message, |key, at| {
        if key != b"content" || body[at.start] != b'[' {
            return Ok(());
        }
        let mut blocks = Vec::new();
        for_each_element_from(body, at.start, |block| {
            let is_cut = is_unsigned(&body[block.clone()]);
            blocks.push((block, is_cut));
            Ok(())
        })?;
        is_emptied = !blocks.is_empty() && blocks.iter().all(|(_, is_cut)| *is_cut);
        cut_elements(&blocks, cuts);
        Ok(())
    })?;
    Ok(is_emptied)
}

/// Adds to `cuts` the ranges of the elements whose flag is true. Each range includes one comma, so that the array stays
/// valid.
pub(super) fn cut_elements(elements: &[(Range<usize>, bool)], cuts: &mut Vec<Range<usize>>) {
    let mut last_retained = None;
    for (index, (element, is_cut)) in elements.iter().enumerate() {
        if !is_cut {
            last_retained = Some(index);
            continue;
        }
        cuts.push(match (last_retained, elements.get(index + 1)) {
            (Some(_), _) => elements[index - 1].0.end..element.end,
            (None, Some((next, _))) => element.start..next.start,
            (None, None) => element.clone(),
        });
    }
}

/// Names of thinking in Messages and in Converse, as JSON.
const KINDS: [&[u8]; 2] = [b"\"thinking\"", b"\"reasoningText\""];

fn is_unsigned(block: &[u8]) -> bool {
    if KINDS.iter().all(|kind| memmem::find(block, kind).is_none()) {
        return false;
    }
    let Ok(head) = serde_json::from_slice::<BlockHead<'_>>(block) else { return false };
    let is_blank = |signature: Option<&Value>| signature.and_then(Value::as_str).is_none_or(str::is_empty);
    match head.reasoning_content.as_ref().and_then(|content| content.get("reasoningText")) {
        Some(thought) => is_blank(thought.get("signature")),
        None => head.kind.as_deref() == Some("thinking") && is_blank(head.signature.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_linear_time() {
        let block = r#"{"type":"thinking"}"#;
        let body =
            format!(r#"{{"messages":[{{"content":[{}{{"type":"text"}}]}}]}}"#, format!("{block},").repeat(200_000));
        assert_eq!(cut_unsigned_blocks(body.as_bytes()).unwrap(), br#"{"messages":[{"content":[{"type":"text"}]}]}"#);
    }

    #[test]
    fn removes_unsigned_thinking_and_keeps_all_other_bytes() {
        let dropped =
            |body: &str| cut_unsigned_blocks(body.as_bytes()).map(|kept_bytes| String::from_utf8(kept_bytes).unwrap());
        let thought = r#"{"type":"thinking","thinking":"t","signature":""}"#;
        let signed = r#"{"type":"thinking","thinking":"t","signature":"s"}"#;
        let text = r#"{"type":"text", "text":"x"}"#;
        let body = |blocks: &str| format!(r#"{{"n": 1.50, "messages":[{{"role":"assistant","content":[{blocks}]}}]}}"#);
        assert_eq!(dropped(&body(&format!("{thought},{text}"))), Some(body(text)));
        assert_eq!(dropped(&body(&format!("{signed},{thought},{text}"))), Some(body(&format!("{signed},{text}"))));
        assert_eq!(dropped(&body(&format!("{text}, {thought} ,{thought}"))), Some(body(text)));
        assert_eq!(dropped(&body(thought)), Some(r#"{"n": 1.50, "messages":[]}"#.to_owned()));
        let user = r#"{"role":"user","content":"x"}"#;
        let both = format!(r#"{{"messages":[{{"content":[{thought}]}}, {user},{{"content":[{thought},{text}]}}]}}"#);
        assert_eq!(dropped(&both), Some(format!(r#"{{"messages":[{user},{{"content":[{text}]}}]}}"#)));
        for same in [body(&format!("{signed},{text}")), body(text), "{".to_owned(), "{\"thinking\":{}}".to_owned()] {
            assert_eq!(dropped(&same), None, "{same}");
        }
        let reasoning = |rest: &str| format!(r#"{{"reasoningContent":{{"reasoningText":{{"text":"t"{rest}}}}}}}"#);
        let converse = |blocks: &str| format!(r#"{{"messages":[{{"role":"assistant","content":[{blocks}]}}]}}"#);
        let signed = reasoning(r#","signature":"s""#);
        assert_eq!(
            dropped(&converse(&format!(r#"{signed},{},{{"text":"x"}}"#, reasoning("")))),
            Some(converse(&format!(r#"{signed},{{"text":"x"}}"#)))
        );
    }

    #[test]
    fn thinking_is_off_in_a_tool_turn_without_thinking() {
        let body = |first: &str, block: &str, switch: &str| {
            format!(
                r#"{{{switch}"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","content":[{first}{block}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c"}}]}}]}}"#
            )
        };
        let (thought, signed) =
            (r#"{"type":"thinking","thinking":"t","signature":""},"#, r#"{"type":"redacted_thinking","data":"d"},"#);
        let (call, on) = (r#"{"type":"tool_use","id":"c"}"#, r#""thinking":{"type":"enabled"},"#);
        let stripped = |body: &str, model: &str| {
            let (kept_bytes, dropped) = drop_unsigned_thinking(body.as_bytes(), model)?;
            Some((String::from_utf8(kept_bytes).unwrap(), dropped.header_value()))
        };
        let model = "claude-sonnet-4-5";
        assert_eq!(stripped(&body(thought, call, on), model), Some((body("", call, ""), "thinking".into())));
        assert_eq!(
            stripped(&body(&format!("{thought}{signed}"), call, on), model),
            Some((body(signed, call, on), "thinking".into()))
        );
        assert_eq!(
            stripped(&body(thought, call, on), "claude-opus-4-7").map(|(stripped, _)| stripped),
            Some(body("", call, on))
        );
        assert_eq!(stripped(&body("", call, on), model), None);
    }
}
