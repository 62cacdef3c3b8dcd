//! The `thinking` parameter and reasoning efforts of a request, in any form that clients send: budgets as text,
//! fractions or negative numbers, names of levels, switches. Providers reject most of these, so they become a plain
//! budget.

use serde_json::{Value, json};

use crate::{chat::request::ChatRequest, errors::RequestError};

/// Reasoning efforts that clients can send, with the token budget of each.
pub(crate) const EFFORT_BUDGETS: [(&str, u64); 7] = [
    ("none", 0),
    ("minimal", 1024),
    ("low", 1024),
    ("medium", 8192),
    ("high", 16384),
    ("xhigh", 32768),
    ("max", 32768),
];

/// Budget value with which the model decides itself how much to think.
pub(crate) const DYNAMIC_BUDGET: i64 = -1;

/// Brings `thinking` to the form `{"type": "enabled" | "disabled" | "adaptive", "budget_tokens": n}`, where the budget
/// is positive, `DYNAMIC_BUDGET` or absent. Records what changes its meaning, or cannot be read, as dropped.
pub(crate) fn normalise_thinking(request: &mut ChatRequest) {
    let Some(thinking) = request.fields.get_mut("thinking").filter(|thinking| !thinking.is_null()) else { return };
    let mut changed = Vec::new();
    if !thinking.is_object() {
        changed.push("thinking");
        *thinking = expand_switch(thinking);
    }
    normalise_type(thinking, &mut changed);
    normalise_budget(thinking, &mut changed);
    for name in changed {
        request.record_dropped(name);
    }
}

/// Returns the object for a `thinking` parameter that is a switch, a type, a level or a budget; null for anything else.
fn expand_switch(thinking: &Value) -> Value {
    match thinking {
        Value::Bool(is_on) => json!({"type": if *is_on { "enabled" } else { "disabled" }}),
        Value::String(kind) if matches!(kind.as_str(), "enabled" | "disabled" | "adaptive" | "auto") => {
            json!({"type": kind})
        }
        budget if parse_budget(budget).0.is_some() => json!({"type": "enabled", "budget_tokens": budget}),
        _ => Value::Null,
    }
}

/// Replaces a missing or unknown type: with a budget, the type is `enabled`. Without one, the parameter is dropped,
/// because nothing shows what the client wants.
fn normalise_type(thinking: &mut Value, changed: &mut Vec<&str>) {
    let has_budget = !thinking["budget_tokens"].is_null();
    match thinking["type"].as_str() {
        _ if thinking.is_null() => (),
        Some("enabled" | "disabled" | "adaptive") => (),
        Some("auto") => thinking["type"] = "adaptive".into(),
        kind if has_budget => {
            changed.extend(kind.map(|_| "thinking.type"));
            thinking["type"] = "enabled".into();
        }
        _ => {
            changed.push("thinking");
            *thinking = Value::Null;
        }
    }
}

fn normalise_budget(thinking: &mut Value, changed: &mut Vec<&str>) {
    const NAME: &str = "thinking.budget_tokens";
    let is_off = thinking["type"] == "disabled";
    let Some(config) = thinking.as_object_mut() else { return };
    let Some(value) = config.get("budget_tokens") else { return };
    let (budget, is_exact) = parse_budget(value);
    let is_kept = budget.is_some_and(|budget| budget >= DYNAMIC_BUDGET && budget != 0) && !is_off;
    if !(is_exact && is_kept || value.is_null()) {
        changed.push(NAME);
    }
    match budget {
        Some(budget) if is_kept => drop(config.insert("budget_tokens".into(), budget.into())),
        Some(..0) if !is_off => drop(config.insert("budget_tokens".into(), DYNAMIC_BUDGET.into())),
        budget => {
            config.shift_remove("budget_tokens");
            if budget == Some(0) {
                config.insert("type".into(), "disabled".into());
            }
        }
    }
}

/// Parses a budget in tokens: a number, its text, or the name of a level. Also returns true if the value is an integer.
fn parse_budget(value: &Value) -> (Option<i64>, bool) {
    match value {
        Value::String(text) => {
            let level = find_level(text).map(|(_, budget)| budget.cast_signed());
            (level.or_else(|| whole_number(text.trim().parse().ok()?)), false)
        }
        number if number.is_i64() => (number.as_i64(), true),
        number => {
            let whole = number.as_f64().and_then(whole_number);
            (whole, number.as_f64().is_some_and(|number| number.fract() == 0.0 && number.abs() < MAX_EXACT_F64_INTEGER))
        }
    }
}

/// Maximum budget in tokens; larger ones are clamped to it. No model thinks nearly as long.
const MAX_EXACT_F64_INTEGER: f64 = 1e15;

/// Returns the number without its fraction, within the range of exact integers.
#[allow(clippy::cast_possible_truncation, reason = "the value is clamped and has no fraction")]
fn whole_number(number: f64) -> Option<i64> {
    (!number.is_nan()).then(|| number.trunc().clamp(-MAX_EXACT_F64_INTEGER, MAX_EXACT_F64_INTEGER) as i64)
}

fn find_level(text: &str) -> Option<(&'static str, u64)> {
    EFFORT_BUDGETS.into_iter().find(|(level, _)| text.trim().eq_ignore_ascii_case(level))
}

/// Returns the smallest effort that covers a token budget.
pub(crate) fn effort_for_budget(budget: u64) -> &'static str {
    EFFORT_BUDGETS[2..6].iter().find(|(_, tokens)| budget <= *tokens).map_or("xhigh", |(level, _)| *level)
}

/// Takes the reasoning effort out of the request and returns it with its token budget. A number is a budget in tokens.
/// Rejects an unknown effort.
pub(crate) fn parse_effort(request: &mut ChatRequest) -> Result<Option<(&'static str, u64)>, RequestError> {
    let Some(effort) = request.take_param("reasoning_effort") else { return Ok(None) };
    if let Some(level) = effort.as_str().and_then(find_level) {
        return Ok(Some(level));
    }
    let is_default = effort.as_str().is_some_and(|effort| matches!(effort, "auto" | "default"));
    let (budget, _) = parse_budget(&effort);
    if budget.is_none() && !is_default {
        let allowed = EFFORT_BUDGETS.map(|(level, _)| level).join(", ");
        let requested = effort.as_str().map_or_else(|| effort.to_string(), ToOwned::to_owned);
        let message = format!("`{requested}` is not supported; must be one of {allowed}");
        return Err(RequestError::new("reasoning_effort", message));
    }
    request.record_dropped("reasoning_effort");
    let budget = budget.and_then(|budget| u64::try_from(budget).ok());
    Ok(budget.and_then(|budget| find_level(if budget == 0 { "none" } else { effort_for_budget(budget) })))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the normalised parameter and the names of the dropped ones.
    fn normalised(thinking: &Value) -> (Value, String) {
        let mut request = ChatRequest::default();
        request.fields.insert("thinking".into(), thinking.clone());
        normalise_thinking(&mut request);
        (request.fields["thinking"].clone(), request.dropped_params.header_value())
    }

    #[test]
    fn budgets_of_any_form_become_integers() {
        for (budget, expected, is_reported) in [
            (json!(2000), json!(2000), false),
            (json!(2000.0), json!(2000), false),
            (json!(2000.9), json!(2000), true),
            (json!("2000"), json!(2000), true),
            (json!(" 1e4 "), json!(10_000), true),
            (json!("high"), json!(16_384), true),
            (json!("LOW"), json!(1024), true),
            (json!(-1), json!(-1), false),
            (json!(-7), json!(-1), true),
            (json!("-7"), json!(-1), true),
            (json!(1e300), json!(1_000_000_000_000_000_i64), true),
            (json!("turbo"), Value::Null, true),
            (json!(true), Value::Null, true),
            (json!([]), Value::Null, true),
            (Value::Null, Value::Null, false),
        ] {
            let (thinking, dropped) = normalised(&json!({"type": "enabled", "budget_tokens": budget}));
            assert_eq!((&thinking["type"], &thinking["budget_tokens"]), (&json!("enabled"), &expected), "{budget}");
            assert_eq!(dropped, if is_reported { "thinking.budget_tokens" } else { "" }, "{budget}");
        }
        for zero in [json!(0), json!(0.5), json!("0"), json!("none")] {
            let expected = (json!({"type": "disabled"}), "thinking.budget_tokens".to_owned());
            assert_eq!(normalised(&json!({"type": "enabled", "budget_tokens": zero})), expected, "{zero}");
        }
    }

    #[test]
    fn switches_and_unknown_types_become_known_ones() {
        let enabled = |budget: u64| json!({"type": "enabled", "budget_tokens": budget});
        for (thinking, expected, dropped) in [
            (json!(true), json!({"type": "enabled"}), "thinking"),
            (json!(false), json!({"type": "disabled"}), "thinking"),
            (json!("adaptive"), json!({"type": "adaptive"}), "thinking"),
            (json!(4000), enabled(4000), "thinking"),
            (json!([]), Value::Null, "thinking"),
            (json!({}), Value::Null, "thinking"),
            (json!({"type": "turbo"}), Value::Null, "thinking"),
            (json!({"budget_tokens": 4000}), enabled(4000), ""),
            (json!({"type": "turbo", "budget_tokens": 4000}), enabled(4000), "thinking.type"),
            (json!({"type": "auto"}), json!({"type": "adaptive"}), ""),
            (json!({"type": "disabled", "budget_tokens": 1}), json!({"type": "disabled"}), "thinking.budget_tokens"),
        ] {
            assert_eq!(normalised(&thinking), (expected, dropped.to_owned()), "{thinking}");
        }
    }

    #[test]
    fn efforts_are_levels_or_budgets() {
        let parsed = |effort: Value| {
            let mut request = ChatRequest::default();
            request.fields.insert("reasoning_effort".into(), effort);
            let effort = parse_effort(&mut request);
            (effort.map_err(|error| error.path), request.dropped_params.header_value())
        };
        let name = "reasoning_effort".to_owned();
        assert_eq!(parsed(json!("HIGH")), (Ok(Some(("high", 16_384))), String::new()));
        assert_eq!(parsed(json!("1024")), (Ok(Some(("low", 1024))), name.clone()));
        assert_eq!(parsed(json!(9000.5)), (Ok(Some(("high", 16_384))), name.clone()));
        assert_eq!(parsed(json!(0)), (Ok(Some(("none", 0))), name.clone()));
        assert_eq!(parsed(json!(-1)), (Ok(None), name.clone()));
        assert_eq!(parsed(json!("auto")), (Ok(None), name.clone()));
        assert_eq!(parsed(json!("turbo")), (Err(name), String::new()));
    }
}
