//! How much Claude may think, from whichever word a caller has for it.

use serde_json::{Value, json};

use crate::translation::{
    asked::{Asked, Choice, Fields, Message, Part, Refusal, Role},
    lost::Lost,
};

/// Efforts that callers know, and as many tokens as they stand for.
const EFFORTS: [(&str, u64); 7] = [
    ("none", 0),
    ("minimal", 1024),
    ("low", 1024),
    ("medium", 8192),
    ("high", 16384),
    ("xhigh", 32768),
    ("max", 32768),
];

/// Fewer tokens for thinking are refused.
const LEAST: u64 = 1024;
/// As many at least are left to the answer where the caller has one word for how much is thought.
const ROOM: u64 = 256;

/// Writes `thinking`, and takes back what does not go with it.
pub fn write(asked: &mut Asked, out: &mut Fields, may: bool) -> Result<(), Refusal> {
    let effort = effort(asked)?;
    let (thinking, word, room) = match (asked.take("thinking"), effort) {
        (Some(thinking), effort) => {
            // What was said in so many words holds.
            asked.lose_some("reasoning_effort", effort.as_ref());
            (thinking, "thinking", 1)
        }
        (None, Some((_, 0))) => (json!({"type": "disabled"}), "reasoning_effort", 0),
        (None, Some((_, budget))) => (json!({"type": "enabled", "budget_tokens": budget}), "reasoning_effort", ROOM),
        (None, None) => return Ok(()),
    };
    if thinking["type"] == "disabled" {
        out.insert("thinking".into(), thinking);
        return Ok(());
    }
    match within(thinking, out, room).filter(|_| may) {
        Some((thinking, is_less)) => {
            asked.lose_some(word, is_less.then_some(&()));
            out.insert("thinking".into(), thinking);
            unsuited(out, &mut asked.lost);
        }
        None => asked.lose(word),
    }
    Ok(())
}

/// One of the words for how much is to be thought, and its tokens.
pub fn effort(asked: &mut Asked) -> Result<Option<(&'static str, u64)>, Refusal> {
    let Some(said) = asked.take("reasoning_effort") else { return Ok(None) };
    let found = EFFORTS.into_iter().find(|(word, _)| said == *word);
    let unknown = || {
        let words = EFFORTS.map(|(word, _)| word).join(", ");
        let said = said.as_str().map_or_else(|| said.to_string(), ToOwned::to_owned);
        Refusal::new("reasoning_effort", format!("`{said}` is not known here: it must be one of {words}"))
    };
    found.map(Some).ok_or_else(unknown)
}

/// Whether this request may be thought about: not where a tool is called in any case.
pub fn may(asked: &Asked) -> bool {
    !matches!(asked.choice, Some(Choice::Any | Choice::Tool(_))) && !continues_without(asked)
}

/// The budget is part of what may be said at all; one that leaves less room than this to the answer becomes half of that. And
/// whether it did.
fn within(mut thinking: Value, out: &mut Fields, room: u64) -> Option<(Value, bool)> {
    let Some(budget) = thinking["budget_tokens"].as_u64() else { return Some((thinking, false)) };
    let most = out.get("max_tokens").and_then(Value::as_u64).unwrap_or_default();
    if budget.saturating_add(room) <= most {
        return Some((thinking, false));
    }
    let half = most / 2;
    thinking["budget_tokens"] = half.into();
    (half >= LEAST).then_some((thinking, true))
}

/// Sampling cannot be steered while it thinks.
fn unsuited(out: &mut Fields, lost: &mut Lost) {
    for key in ["temperature", "top_k"] {
        if out.shift_remove(key).is_some_and(|value| value != 1 && value != 1.0) {
            lost.add(key);
        }
    }
}

/// Whether the last turn called tools and its thoughts are not here: it may not go on thinking.
fn continues_without(asked: &Asked) -> bool {
    let is_result = |part: &Part| matches!(part, Part::Result { .. });
    let thought = |part: &Part| matches!(part, Part::Thinking { signature: Some(_), .. } | Part::Redacted { .. });
    let answers = |message: &&Message| message.role == Role::User && message.parts.iter().any(is_result);
    if !asked.messages.last().is_some_and(|last| answers(&last)) {
        return false;
    }
    // A turn may come in several messages.
    let turn = asked.messages.iter().rev().skip_while(answers).take_while(|message| message.role == Role::Assistant);
    !turn.flat_map(|message| &message.parts).any(thought)
}
