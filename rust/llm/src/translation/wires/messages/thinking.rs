//! How much Claude may think, from whichever word a caller has for it.

use serde_json::{Value, json};

use crate::translation::{
    asked::{Asked, Choice, Fields, Message, Part, Role},
    lost::Lost,
};

/// Fewer tokens for thinking are refused.
const LEAST: u64 = 1024;

/// Writes `thinking`, and takes back what does not go with it.
pub fn write(asked: &mut Asked, out: &mut Fields, may: bool) {
    let effort = asked.take("reasoning_effort");
    let Some(thinking) = asked.take("thinking").or_else(|| effort.as_ref().and_then(of_effort)) else { return };
    if thinking["type"] == "disabled" {
        out.insert("thinking".into(), thinking);
        return;
    }
    let word = if effort.is_some() { "reasoning_effort" } else { "thinking" };
    let Some(thinking) = within(thinking, out).filter(|_| may) else { return asked.lose(word) };
    out.insert("thinking".into(), thinking);
    unsuited(out, &mut asked.lost);
}

/// Whether this request may be thought about: not where a tool is called in any case.
pub fn may(asked: &Asked) -> bool {
    !matches!(asked.choice, Some(Choice::Any | Choice::Tool(_))) && !continues_without(asked)
}

fn of_effort(effort: &Value) -> Option<Value> {
    let budget = match effort.as_str()? {
        "none" => return Some(json!({"type": "disabled"})),
        "minimal" | "low" => 1024,
        "medium" => 8192,
        "high" => 16384,
        "xhigh" | "max" => 32768,
        _ => return None,
    };
    Some(json!({"type": "enabled", "budget_tokens": budget}))
}

/// The budget is part of what may be said at all.
fn within(mut thinking: Value, out: &mut Fields) -> Option<Value> {
    let Some(budget) = thinking["budget_tokens"].as_u64() else { return Some(thinking) };
    let most = out.get("max_tokens").and_then(Value::as_u64).unwrap_or_default();
    if budget >= most {
        let less = most.saturating_sub(1);
        if less < LEAST {
            return None;
        }
        thinking["budget_tokens"] = less.into();
    }
    Some(thinking)
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
