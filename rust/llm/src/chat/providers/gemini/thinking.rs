//! How much Gemini may think: in tokens before its third generation, in words since.

use std::ops::RangeInclusive;

use serde_json::Value;

use crate::chat::{
    providers::anthropic_messages::thinking::effort,
    request::{ChatRequest, Fields, RequestError},
};

/// What a model can be told.
enum Scale {
    /// Nothing: it does not think.
    None,
    /// So many tokens; and whether it can be told not to think at all.
    Tokens(RangeInclusive<i64>, bool),
    /// One of these words, from little to much. No word stands for nothing.
    Words(&'static [&'static str]),
}

const MINIMAL: &str = "minimal";
const LOW: &str = "low";
const MEDIUM: &str = "medium";
const HIGH: &str = "high";

/// All words, from little to much.
const LEVELS: [&str; 4] = [MINIMAL, LOW, MEDIUM, HIGH];

/// As many tokens stand for a word, and as a caller's word stands for them.
const LITTLE: i64 = 1024;
const SOME: i64 = 8192;
const MUCH: i64 = 24576;

/// It thinks as much as it likes.
const AS_IT_LIKES: i64 = -1;

/// Whether a model refuses calls of functions that come back without their signatures.
pub fn wants_signatures(model: &str) -> bool {
    matches!(scale(model), Scale::Words(_)) || is_newest(model)
}

/// Writes `thinkingConfig`; what the model cannot be told is named.
pub fn write(asked: &mut ChatRequest, config: &mut Fields) -> Result<(), RequestError> {
    let scale = scale(&asked.model);
    let effort = effort(asked)?.map(|(word, _)| word);
    let thinking = asked.take_param("thinking");
    let is_free = |thinking: &Value| thinking["type"] == "adaptive" && thinking.get("budget_tokens").is_none();
    if let (Some(_), Some(word)) = (thinking.as_ref().filter(|thinking| is_free(thinking)), effort)
        && !matches!(scale, Scale::None)
        && word != "none"
    {
        // As much as it likes, and the effort says how much that is.
        let mut told = worded(word, &scale, asked);
        told.insert("includeThoughts".into(), true.into());
        config.insert("thinkingConfig".into(), told.into());
        return Ok(());
    }
    // What was said in so many words holds.
    asked.record_dropped_if_set("reasoning_effort", effort.filter(|_| thinking.is_some()).as_ref());
    let told = match (thinking, effort) {
        (Some(thinking), _) => budgeted(&thinking, &scale, asked),
        (None, Some(word)) => worded(word, &scale, asked),
        (None, None) => return Ok(()),
    };
    if !told.is_empty() {
        config.insert("thinkingConfig".into(), told.into());
    }
    Ok(())
}

/// Of a caller that says whether there is to be thought, and perhaps for how many tokens.
fn budgeted(thinking: &Value, scale: &Scale, asked: &mut ChatRequest) -> Fields {
    let mut told = Fields::new();
    if thinking["type"] == "disabled" {
        if !rest(scale, &mut told) {
            asked.record_dropped("thinking");
        }
        return told;
    }
    if matches!(scale, Scale::None) {
        asked.record_dropped("thinking");
        return told;
    }
    told.insert("includeThoughts".into(), true.into());
    let Some(budget) = thinking.get("budget_tokens").and_then(Value::as_i64) else { return told };
    match scale {
        Scale::Tokens(within, _) => {
            let bound = budget.clamp(*within.start(), *within.end());
            let is_kept = bound == budget || budget == AS_IT_LIKES;
            asked.record_dropped_if_set("thinking.budget_tokens", (!is_kept).then_some(&()));
            told.insert("thinkingBudget".into(), if is_kept { budget } else { bound }.into());
        }
        // It thinks as much as it likes unless it is told.
        Scale::Words(_) if budget == AS_IT_LIKES => (),
        Scale::Words(words) => {
            let word = match budget {
                little if little <= LITTLE => LOW,
                some if some <= SOME => MEDIUM,
                _ => HIGH,
            };
            asked.record_dropped("thinking.budget_tokens");
            told.insert("thinkingLevel".into(), nearest(word, words).into());
        }
        Scale::None => (),
    }
    told
}

/// Of a caller that has one word for it.
fn worded(word: &'static str, scale: &Scale, asked: &mut ChatRequest) -> Fields {
    let mut told = Fields::new();
    let is_kept = match scale {
        _ if word == "none" => rest(scale, &mut told),
        Scale::None => false,
        Scale::Words(words) => {
            let level = nearest(word, words);
            told.insert("thinkingLevel".into(), level.into());
            level == word
        }
        Scale::Tokens(within, _) => {
            let budget = match word {
                MINIMAL | LOW => LITTLE,
                MEDIUM => SOME,
                _ => MUCH,
            };
            told.insert("thinkingBudget".into(), budget.min(*within.end()).into());
            // More than much is not known here.
            LEVELS.contains(&word)
        }
    };
    asked.record_dropped_if_set("reasoning_effort", (!is_kept).then_some(&()));
    told
}

/// As little as there can be, and whether that is none.
fn rest(scale: &Scale, told: &mut Fields) -> bool {
    match scale {
        Scale::None => true,
        Scale::Tokens(_, true) => {
            told.insert("thinkingBudget".into(), 0.into());
            true
        }
        Scale::Tokens(within, false) => {
            told.insert("thinkingBudget".into(), (*within.start()).into());
            false
        }
        Scale::Words(words) => {
            told.insert("thinkingLevel".into(), words[0].into());
            false
        }
    }
}

/// The word itself, else the next one that means more, else the last.
fn nearest(word: &str, words: &'static [&'static str]) -> &'static str {
    let at = LEVELS.iter().position(|level| *level == word).unwrap_or(LEVELS.len());
    let is_enough = |level: &&&'static str| LEVELS.iter().position(|known| known == *level) >= Some(at);
    words.iter().find(is_enough).or(words.last()).copied().unwrap_or(HIGH)
}

/// As Google documents it of each family.
fn scale(model: &str) -> Scale {
    let is = |part: &str| model.contains(part);
    match generation(model) {
        Some(..=1) => Scale::None,
        Some(2) if is("image") || is("gemini-2.0") && !is("thinking") => Scale::None,
        Some(2) if is("pro") => Scale::Tokens(128..=32768, false),
        Some(2) if is("lite") => Scale::Tokens(512..=MUCH, true),
        Some(3..) if is("gemini-3-pro") => Scale::Words(&[LOW, HIGH]),
        Some(3..) if is("pro") => Scale::Words(&[LOW, MEDIUM, HIGH]),
        Some(3..) => Scale::Words(&LEVELS),
        _ => Scale::Tokens(0..=MUCH, true),
    }
}

/// The number before the dot in the model's name.
fn generation(model: &str) -> Option<u32> {
    let (_, rest) = model.split_once("gemini-")?;
    let digits = rest.find(|one: char| !one.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Whether a name stands for whichever model is the newest.
fn is_newest(model: &str) -> bool {
    model.contains("gemini-") && model.ends_with("-latest") && generation(model).is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is told of it, and what is lost.
    fn told(model: &str, fields: &Value) -> (Value, String) {
        let fields = fields.as_object().unwrap().clone();
        let mut asked = ChatRequest { model: model.to_owned(), fields, ..ChatRequest::default() };
        let mut config = Fields::new();
        write(&mut asked, &mut config).unwrap();
        (config.shift_remove("thinkingConfig").unwrap_or_default(), asked.into_dropped_params().header_value())
    }

    #[test]
    fn each_model_is_told_in_what_it_takes_how_much_to_think() {
        let words = ["none", "minimal", "low", "medium", "high", "max"];
        let (tokens, levels) = ("thinkingBudget", "thinkingLevel");
        for (model, key, expected, lost) in [
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
            for (at, word) in words.iter().enumerate() {
                let (told, named) = told(model, &json!({"reasoning_effort": word}));
                assert_eq!(told, json!({key: expected[at]}), "{model} {word}");
                assert_eq!(named == "reasoning_effort", lost.contains(&at), "{model} {word} {named}");
            }
        }
        assert_eq!(
            told("gemini-2.0-flash", &json!({"reasoning_effort": "low"})),
            (Value::Null, "reasoning_effort".into())
        );
        assert_eq!(told("gemini-2.0-flash", &json!({"reasoning_effort": "none"})), (Value::Null, String::new()));
    }

    #[test]
    fn a_budget_is_within_what_a_model_takes_or_a_word_for_it() {
        let budget = "thinking.budget_tokens";
        for (model, said, key, expected, lost) in [
            ("gemini-2.5-pro", 1, "thinkingBudget", json!(128), budget),
            ("gemini-2.5-pro", 2000, "thinkingBudget", json!(2000), ""),
            ("gemini-2.5-flash", 99999, "thinkingBudget", json!(24576), budget),
            ("gemini-2.5-flash-lite", 100, "thinkingBudget", json!(512), budget),
            ("gemini-2.5-flash-lite", -1, "thinkingBudget", json!(-1), ""),
            ("gemini-3-flash", 1024, "thinkingLevel", json!("low"), budget),
            ("gemini-3-flash", 2048, "thinkingLevel", json!("medium"), budget),
            ("gemini-3-pro", 2048, "thinkingLevel", json!("high"), budget),
        ] {
            let expected = (json!({"includeThoughts": true, key: expected}), lost.to_owned());
            let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": said}});
            assert_eq!(told(model, &thinking), expected, "{model} {said}");
        }
        let off = json!({"thinking": {"type": "disabled"}});
        for (model, expected, lost) in [
            ("gemini-2.5-flash", json!({"thinkingBudget": 0}), ""),
            ("gemini-2.5-pro", json!({"thinkingBudget": 128}), "thinking"),
            ("gemini-3-flash", json!({"thinkingLevel": "minimal"}), "thinking"),
            ("gemini-3.1-pro", json!({"thinkingLevel": "low"}), "thinking"),
            ("gemini-1.5-pro", Value::Null, ""),
        ] {
            assert_eq!(told(model, &off), (expected, lost.to_owned()), "{model}");
        }
    }

    #[test]
    fn signatures_are_wanted_since_the_third_generation() {
        for model in ["gemini-3-pro-preview", "google.gemini-3.1-flash-lite", "gemini-flash-latest", "gemini-12-pro"] {
            assert!(wants_signatures(model), "{model}");
        }
        for model in ["gemini-2.5-pro", "gemini-2.0-flash", "gemma-3-27b", "gemini-1.5-pro-latest", ""] {
            assert!(!wants_signatures(model), "{model}");
        }
    }
}
