//! Thinking budgets and efforts in any form, from every client format. What Claude and Gemini get is always valid.

use penstock_llm::{catalog, operation::Operation};
use serde_json::{Value, json};

use crate::equivalent_shapes::translate_request;

const MAX_TOKENS: u64 = 9000;

/// Budgets as clients send them. The flag is true if a provider needs another value.
fn budgets() -> Vec<(Value, bool)> {
    let odd = [
        json!(-1000),
        json!(0),
        json!(1),
        json!(2000.5),
        json!(9000),
        json!(1e300),
        json!("1024"),
        json!("high"),
        json!("none"),
        json!("turbo"),
        json!(true),
        json!({}),
    ];
    let fine = [json!(2000), json!(2000.0), json!(8191)];
    odd.into_iter().map(|budget| (budget, true)).chain(fine.into_iter().map(|budget| (budget, false))).collect()
}

/// Bodies of all client formats with this budget.
fn bodies_with_budget(model: &str, budget: &Value) -> Vec<(Operation, Value)> {
    let thinking = json!({"type": "enabled", "budget_tokens": budget});
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let contents = json!([{"role": "user", "parts": [{"text": "Hi"}]}]);
    let blocks = json!([{"role": "user", "content": [{"text": "Hi"}]}]);
    vec![
        (
            Operation::ChatComplete,
            json!({"model": model, "messages": messages, "max_tokens": MAX_TOKENS, "thinking": thinking}),
        ),
        (
            Operation::Messages,
            json!({"model": model, "messages": messages, "max_tokens": MAX_TOKENS, "thinking": thinking}),
        ),
        (
            Operation::GenerateContent,
            json!({"model": model, "contents": contents,
                "generationConfig": {"maxOutputTokens": MAX_TOKENS, "thinkingConfig": {"thinkingBudget": budget}}}),
        ),
        (
            Operation::Converse,
            json!({"model": model, "messages": blocks, "inferenceConfig": {"maxTokens": MAX_TOKENS},
                "additionalModelRequestFields": {"reasoning_config": thinking}}),
        ),
    ]
}

fn bodies_with_effort(model: &str, effort: &Value) -> Vec<(Operation, Value)> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    vec![
        (
            Operation::ChatComplete,
            json!({"model": model, "messages": messages, "max_tokens": MAX_TOKENS, "reasoning_effort": effort}),
        ),
        (
            Operation::CreateModelResponse,
            json!({"model": model, "input": "Hi", "max_output_tokens": MAX_TOKENS, "reasoning": {"effort": effort}}),
        ),
        (
            Operation::Messages,
            json!({"model": model, "messages": messages, "max_tokens": MAX_TOKENS, "output_config": {"effort": effort}}),
        ),
    ]
}

/// Checks that a request for Claude has a valid `thinking` object, if any.
fn assert_valid_for_claude(sent: &Value, case: &str) {
    let thinking = [&sent["thinking"], &sent["additionalModelRequestFields"]["thinking"]];
    for thinking in thinking.into_iter().filter(|thinking| !thinking.is_null()) {
        let budget = &thinking["budget_tokens"];
        let is_valid = match thinking["type"].as_str() {
            Some("enabled") => budget.as_u64().is_some_and(|budget| (1024..MAX_TOKENS).contains(&budget)),
            Some("disabled" | "adaptive") => budget.is_null(),
            _ => false,
        };
        assert!(is_valid, "{case}: {thinking}");
    }
}

/// Checks that a request for Gemini has a valid `thinkingConfig`, if any.
fn assert_valid_for_gemini(sent: &Value, case: &str) {
    let config = &sent["generationConfig"]["thinkingConfig"];
    let budget = &config["thinkingBudget"];
    assert!(
        budget.is_null() || budget.as_i64().is_some_and(|budget| (-1..=32_768).contains(&budget)),
        "{case}: {config}"
    );
    let level = &config["thinkingLevel"];
    assert!(
        level.is_null() || matches!(level.as_str(), Some("minimal" | "low" | "medium" | "high")),
        "{case}: {config}"
    );
    assert!(budget.is_null() || level.is_null(), "{case}: {config}");
}

const CLAUDE_TARGETS: [(&str, &str); 5] = [
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-opus-4-6"),
    ("anthropic", "claude-opus-4-7"),
    ("bedrock", "anthropic.claude-sonnet-4-5"),
    ("vertex-ai", "anthropic.claude-sonnet-4-5"),
];
const GEMINI_TARGETS: [(&str, &str); 5] = [
    ("google", "gemini-2.5-pro"),
    ("google", "gemini-2.5-flash"),
    ("google", "gemini-2.0-flash"),
    ("google", "gemini-3-pro"),
    ("vertex-ai", "gemini-2.5-flash"),
];

/// Translates a body and checks what is sent. Returns the dropped names; `None` if the format is forwarded unchanged.
fn translate_body(slug: &str, operation: Operation, body: &Value, is_claude: bool) -> Option<String> {
    let model = body["model"].as_str().unwrap();
    catalog::find_provider(slug).unwrap().provider_format(operation, model)?;
    let (translation, sent) = translate_request(slug, operation, body).unwrap();
    if translation.is_passthrough() {
        return None;
    }
    let case = format!("{slug} {} {body}", operation.id());
    if is_claude {
        assert_valid_for_claude(&sent, &case);
    } else {
        assert_valid_for_gemini(&sent, &case);
    }
    Some(translation.response_context.report.header_value(&translation.dropped_params).unwrap_or_default())
}

fn targets() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    let claude = CLAUDE_TARGETS.into_iter().map(|(slug, model)| (slug, model, true));
    claude.chain(GEMINI_TARGETS.into_iter().map(|(slug, model)| (slug, model, false)))
}

#[test]
fn budgets_of_any_form_are_valid_at_the_provider_and_changes_are_listed() {
    for (slug, model, is_claude) in targets() {
        for (budget, is_odd) in budgets() {
            let mut translated_count = 0;
            for (operation, body) in bodies_with_budget(model, &budget) {
                let dropped = translate_body(slug, operation, &body, is_claude);
                translated_count += usize::from(dropped.is_some());
                // A budget of 0 and a negative one have a meaning in Gemini's format.
                let has_meaning =
                    operation == Operation::GenerateContent && budget.as_i64().is_some_and(|budget| budget <= 0);
                let is_adapted = is_odd && !has_meaning && budget != 1 && (is_claude || budget != 9000);
                if is_adapted {
                    assert_ne!(dropped.as_deref(), Some(""), "{slug} {} {body}", operation.id());
                }
            }
            assert!(translated_count >= 2, "{slug} {model} {budget}");
        }
    }
}

#[test]
fn efforts_of_any_form_are_valid_at_the_provider() {
    for (slug, model, is_claude) in targets() {
        for effort in [json!("HIGH"), json!("2000"), json!(2000), json!(0), json!(-1), json!(0.5), json!("auto")] {
            for (operation, body) in bodies_with_effort(model, &effort) {
                translate_body(slug, operation, &body, is_claude);
            }
        }
    }
}
