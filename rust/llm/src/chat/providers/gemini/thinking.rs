//! Thinking config for Gemini: a token budget before Gemini 3, a named level since.

use std::ops::RangeInclusive;

use serde_json::Value;

use crate::{
    chat::{
        request::ChatRequest,
        thinking_param::{DYNAMIC_BUDGET, parse_effort},
    },
    errors::RequestError,
    fields::Fields,
};

/// Way in which a model's thinking is configured.
enum ThinkingControl {
    /// The model does not think.
    Unsupported,
    /// A budget in tokens within this range. The flag is true if thinking can be disabled.
    Budget(RangeInclusive<i64>, bool),
    /// One of these levels, in ascending order. No level disables thinking.
    Levels(&'static [&'static str]),
}

const MINIMAL: &str = "minimal";
const LOW: &str = "low";
const MEDIUM: &str = "medium";
const HIGH: &str = "high";

/// All levels in ascending order.
const THINKING_LEVELS: [&str; 4] = [MINIMAL, LOW, MEDIUM, HIGH];

/// Token budget that corresponds to `LOW`. These budgets map a level to a budget and a client's budget to a level.
const LOW_BUDGET_TOKENS: i64 = 1024;
/// Token budget that corresponds to `MEDIUM`.
const MEDIUM_BUDGET_TOKENS: i64 = 8192;
/// Token budget that corresponds to `HIGH`.
const HIGH_BUDGET_TOKENS: i64 = 24576;

/// Returns true if a model rejects function calls that are sent back without their signatures.
pub fn requires_signatures(model: &str) -> bool {
    matches!(thinking_control(model), ThinkingControl::Levels(_)) || is_latest_alias(model)
}

/// Writes `thinkingConfig`. Reports settings that the model does not support as dropped.
pub fn write_config(request: &mut ChatRequest, config: &mut Fields) -> Result<(), RequestError> {
    let scale = thinking_control(&request.model);
    let effort = parse_effort(request)?.map(|(level, _)| level);
    let thinking = request.take_param("thinking");
    let is_free = |thinking: &Value| thinking["type"] == "adaptive" && thinking.get("budget_tokens").is_none();
    if let (Some(_), Some(level)) = (thinking.as_ref().filter(|thinking| is_free(thinking)), effort)
        && !matches!(scale, ThinkingControl::Unsupported)
        && level != "none"
    {
        // The client asks for adaptive thinking, and the effort sets its amount.
        let mut fields = config_from_effort(level, &scale, request);
        fields.insert("includeThoughts".into(), true.into());
        config.insert("thinkingConfig".into(), fields.into());
        return Ok(());
    }
    // An explicit `thinking` object takes precedence over the effort.
    request.record_dropped_if_set("reasoning_effort", effort.filter(|_| thinking.is_some()).as_ref());
    let fields = match (thinking, effort) {
        (Some(thinking), _) => config_from_thinking(&thinking, &scale, request),
        (None, Some(level)) => config_from_effort(level, &scale, request),
        (None, None) => return Ok(()),
    };
    if !fields.is_empty() {
        config.insert("thinkingConfig".into(), fields.into());
    }
    Ok(())
}

/// Converts a `thinking` object, which enables or disables thinking and may set a token budget.
fn config_from_thinking(thinking: &Value, scale: &ThinkingControl, request: &mut ChatRequest) -> Fields {
    let mut fields = Fields::new();
    if thinking["type"] == "disabled" {
        if !minimise_thinking(scale, &mut fields) {
            request.record_dropped("thinking");
        }
        return fields;
    }
    if matches!(scale, ThinkingControl::Unsupported) {
        request.record_dropped("thinking");
        return fields;
    }
    fields.insert("includeThoughts".into(), true.into());
    let Some(budget) = thinking.get("budget_tokens").and_then(Value::as_i64) else { return fields };
    match scale {
        ThinkingControl::Budget(within, _) => {
            let bound = budget.clamp(*within.start(), *within.end());
            let is_kept = bound == budget || budget == DYNAMIC_BUDGET;
            request.record_dropped_if_set("thinking.budget_tokens", (!is_kept).then_some(&()));
            fields.insert("thinkingBudget".into(), if is_kept { budget } else { bound }.into());
        }
        // Without a level, the model decides itself how much to think.
        ThinkingControl::Levels(_) if budget == DYNAMIC_BUDGET => (),
        ThinkingControl::Levels(levels) => {
            let level = match budget {
                little if little <= LOW_BUDGET_TOKENS => LOW,
                some if some <= MEDIUM_BUDGET_TOKENS => MEDIUM,
                _ => HIGH,
            };
            request.record_dropped("thinking.budget_tokens");
            fields.insert("thinkingLevel".into(), nearest_level(level, levels).into());
        }
        ThinkingControl::Unsupported => (),
    }
    fields
}

/// Converts a reasoning effort.
fn config_from_effort(effort: &'static str, scale: &ThinkingControl, request: &mut ChatRequest) -> Fields {
    let mut fields = Fields::new();
    let is_kept = match scale {
        _ if effort == "none" => minimise_thinking(scale, &mut fields),
        ThinkingControl::Unsupported => false,
        ThinkingControl::Levels(levels) => {
            let level = nearest_level(effort, levels);
            fields.insert("thinkingLevel".into(), level.into());
            level == effort
        }
        ThinkingControl::Budget(within, _) => {
            let budget = match effort {
                MINIMAL | LOW => LOW_BUDGET_TOKENS,
                MEDIUM => MEDIUM_BUDGET_TOKENS,
                _ => HIGH_BUDGET_TOKENS,
            };
            fields.insert("thinkingBudget".into(), budget.min(*within.end()).into());
            // Efforts above `high` have no equivalent.
            THINKING_LEVELS.contains(&effort)
        }
    };
    request.record_dropped_if_set("reasoning_effort", (!is_kept).then_some(&()));
    fields
}

/// Sets thinking to the minimum. Returns true if that disables it.
fn minimise_thinking(scale: &ThinkingControl, fields: &mut Fields) -> bool {
    match scale {
        ThinkingControl::Unsupported => true,
        ThinkingControl::Budget(_, true) => {
            fields.insert("thinkingBudget".into(), 0.into());
            true
        }
        ThinkingControl::Budget(within, false) => {
            fields.insert("thinkingBudget".into(), (*within.start()).into());
            false
        }
        ThinkingControl::Levels(levels) => {
            fields.insert("thinkingLevel".into(), levels[0].into());
            false
        }
    }
}

/// Returns the level itself if it is supported, else the next higher one, else the highest.
fn nearest_level(requested: &str, levels: &'static [&'static str]) -> &'static str {
    let at = THINKING_LEVELS.iter().position(|level| *level == requested).unwrap_or(THINKING_LEVELS.len());
    let is_enough =
        |level: &&&'static str| THINKING_LEVELS.iter().position(|candidate| candidate == *level) >= Some(at);
    levels.iter().find(is_enough).or(levels.last()).copied().unwrap_or(HIGH)
}

/// Returns how thinking is configured, according to Google's documentation of each model family.
fn thinking_control(model: &str) -> ThinkingControl {
    let is = |part: &str| model.contains(part);
    match model_generation(model) {
        Some(..=1) => ThinkingControl::Unsupported,
        Some(2) if is("image") || is("gemini-2.0") && !is("thinking") => ThinkingControl::Unsupported,
        Some(2) if is("pro") => ThinkingControl::Budget(128..=32768, false),
        Some(2) if is("lite") => ThinkingControl::Budget(512..=HIGH_BUDGET_TOKENS, true),
        Some(3..) if is("gemini-3-pro") => ThinkingControl::Levels(&[LOW, HIGH]),
        Some(3..) if is("pro") => ThinkingControl::Levels(&[LOW, MEDIUM, HIGH]),
        Some(3..) => ThinkingControl::Levels(&THINKING_LEVELS),
        _ => ThinkingControl::Budget(0..=HIGH_BUDGET_TOKENS, true),
    }
}

/// Returns the major version in the model's name.
fn model_generation(model: &str) -> Option<u32> {
    let (_, rest) = model.split_once("gemini-")?;
    let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Returns true if a model name is an alias for the newest model.
fn is_latest_alias(model: &str) -> bool {
    model.contains("gemini-") && model.ends_with("-latest") && model_generation(model).is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the written thinking config and the names of the dropped parameters.
    fn thinking_config(model: &str, fields: &Value) -> (Value, String) {
        let fields = fields.as_object().unwrap().clone();
        let mut request = ChatRequest { model: model.to_owned(), fields, ..ChatRequest::default() };
        let mut config = Fields::new();
        write_config(&mut request, &mut config).unwrap();
        (config.shift_remove("thinkingConfig").unwrap_or_default(), request.into_dropped_params().header_value())
    }

    #[test]
    fn maps_effort_to_budget_or_level() {
        let efforts = ["none", "minimal", "low", "medium", "high", "max"];
        let (tokens, levels) = ("thinkingBudget", "thinkingLevel");
        for (model, key, expected, dropped) in [
            ("gemini-2.5-pro", tokens, json!([128, 1024, 1024, 8192, 24576, 24576]), &[0, 5][..]),
            ("gemini-2.5-flash", tokens, json!([0, 1024, 1024, 8192, 24576, 24576]), &[5]),
            ("gemini-2.5-flash-lite", tokens, json!([0, 1024, 1024, 8192, 24576, 24576]), &[5]),
            (
                "google.gemini-3-pro-preview",
                levels,
                json!(["low", "low", "low", "high", "high", "high"]),
                &[0, 1, 3, 5],
            ),
            ("gemini-3.1-pro-preview", levels, json!(["low", "low", "low", "medium", "high", "high"]), &[0, 1, 5]),
            ("gemini-3-flash", levels, json!(["minimal", "minimal", "low", "medium", "high", "high"]), &[0, 5]),
        ] {
            for (at, effort) in efforts.iter().enumerate() {
                let (config, dropped_names) = thinking_config(model, &json!({"reasoning_effort": effort}));
                assert_eq!(config, json!({key: expected[at]}), "{model} {effort}");
                assert_eq!(
                    dropped_names == "reasoning_effort",
                    dropped.contains(&at),
                    "{model} {effort} {dropped_names}"
                );
            }
        }
        assert_eq!(
            thinking_config("gemini-2.0-flash", &json!({"reasoning_effort": "low"})),
            (Value::Null, "reasoning_effort".into())
        );
        assert_eq!(
            thinking_config("gemini-2.0-flash", &json!({"reasoning_effort": "none"})),
            (Value::Null, String::new())
        );
    }

    #[test]
    fn clamps_budget_or_maps_it_to_level() {
        let budget = "thinking.budget_tokens";
        for (model, requested, key, expected, dropped) in [
            ("gemini-2.5-pro", 1, "thinkingBudget", json!(128), budget),
            ("gemini-2.5-pro", 2000, "thinkingBudget", json!(2000), ""),
            ("gemini-2.5-flash", 99999, "thinkingBudget", json!(24576), budget),
            ("gemini-2.5-flash-lite", 100, "thinkingBudget", json!(512), budget),
            ("gemini-2.5-flash-lite", -1, "thinkingBudget", json!(-1), ""),
            ("gemini-3-flash", 1024, "thinkingLevel", json!("low"), budget),
            ("gemini-3-flash", 2048, "thinkingLevel", json!("medium"), budget),
            ("gemini-3-pro", 2048, "thinkingLevel", json!("high"), budget),
        ] {
            let expected = (json!({"includeThoughts": true, key: expected}), dropped.to_owned());
            let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": requested}});
            assert_eq!(thinking_config(model, &thinking), expected, "{model} {requested}");
        }
        let off = json!({"thinking": {"type": "disabled"}});
        for (model, expected, dropped) in [
            ("gemini-2.5-flash", json!({"thinkingBudget": 0}), ""),
            ("gemini-2.5-pro", json!({"thinkingBudget": 128}), "thinking"),
            ("gemini-3-flash", json!({"thinkingLevel": "minimal"}), "thinking"),
            ("gemini-3.1-pro", json!({"thinkingLevel": "low"}), "thinking"),
            ("gemini-1.5-pro", Value::Null, ""),
        ] {
            assert_eq!(thinking_config(model, &off), (expected, dropped.to_owned()), "{model}");
        }
    }

    #[test]
    fn requires_signatures_since_gemini_3() {
        for model in ["gemini-3-pro-preview", "google.gemini-3.1-flash-lite", "gemini-flash-latest", "gemini-12-pro"] {
            assert!(requires_signatures(model), "{model}");
        }
        for model in ["gemini-2.5-pro", "gemini-2.0-flash", "gemma-3-27b", "gemini-1.5-pro-latest", ""] {
            assert!(!requires_signatures(model), "{model}");
        }
    }
}
