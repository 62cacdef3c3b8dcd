//! Evaluations of Qualifire.

use serde_json::{Value, json};

use super::{
    CREDENTIALS_ONLY, PARTNER, Partner, PartnerInput, PartnerReply, ROW, compile, findings::Findings, without_nulls,
};
use crate::guardrails::check::{CheckRow, Stages};

const QUALIFIRE: Partner = Partner {
    name: "Qualifire",
    base: "https://proxy.qualifire.ai",
    path: "/api/evaluation/evaluate",
    headers: &[("x-qualifire-api-key", "{credentials.apiKey}")],
    build_body: build_evaluation,
    read_reply: read_qualifire_reply,
    ..PARTNER
};

/// Fields that all rows of Qualifire have in common. The timeout is long, because an evaluation takes long.
const EVALUATION_ROW: CheckRow = CheckRow {
    schema: CREDENTIALS_ONLY,
    shared: &["credentials", "scope", "baseURL", "forwardHeaders", "timeout=60000"],
    ..ROW
};
const MODE_SCHEMA: &str = r#"{"required":["credentials"],"properties":{"mode":{"enum":["speed","balanced","quality"],"default":"balanced"}}}"#;

/// Builds the row of a check. `$check` is the name of the check, such as `pii_check`. A mode may follow, as in
/// `grounding_check:grounding_mode`.
macro_rules! evaluation_row {
    ($id:literal, $name:literal, $description:literal, $stages:expr, $schema:expr, $check:literal) => {
        CheckRow {
            id: $id,
            name: $name,
            description: $description,
            stages: $stages,
            schema: $schema,
            compile: |parameters| compile(const { &Partner { variant: $check, ..QUALIFIRE } }, parameters),
            ..EVALUATION_ROW
        }
    };
}

pub(super) const ROWS: &[CheckRow] = &[
    evaluation_row!(
        "qualifire.contentModeration",
        "Qualifire moderation",
        "fails if Qualifire finds harmful content",
        Stages::Both,
        CREDENTIALS_ONLY,
        "content_moderation_check"
    ),
    evaluation_row!(
        "qualifire.pii",
        "Qualifire personal data",
        "fails if Qualifire finds personal data",
        Stages::Both,
        CREDENTIALS_ONLY,
        "pii_check"
    ),
    evaluation_row!(
        "qualifire.promptInjections",
        "Qualifire prompt injections",
        "fails if Qualifire finds a prompt injection",
        Stages::Input,
        CREDENTIALS_ONLY,
        "prompt_injections"
    ),
    evaluation_row!(
        "qualifire.hallucinations",
        "Qualifire hallucinations",
        "fails if Qualifire finds a hallucination",
        Stages::Output,
        MODE_SCHEMA,
        "hallucinations_check:hallucinations_mode"
    ),
    evaluation_row!(
        "qualifire.grounding",
        "Qualifire grounding",
        "fails unless the response follows from the request",
        Stages::Output,
        MODE_SCHEMA,
        "grounding_check:grounding_mode"
    ),
    CheckRow {
        id: "qualifire.toolUseQuality",
        name: "Qualifire tool use",
        description: "fails if Qualifire finds that tools are used badly; checks chat completions only",
        stages: Stages::Output,
        schema: MODE_SCHEMA,
        shared: &["credentials", "baseURL", "forwardHeaders", "timeout=60000"],
        compile: |parameters| {
            const TOOLS: Partner = Partner {
                variant: "tool_selection_quality_check:tsq_mode",
                can_check: |check| {
                    check.request["messages"].is_array() && check.response["choices"][0]["message"].is_object()
                },
                build_body: build_tool_evaluation,
                ..QUALIFIRE
            };
            compile(const { &TOOLS }, parameters)
        },
        ..EVALUATION_ROW
    },
    CheckRow {
        id: "qualifire.policy",
        name: "Qualifire policies",
        description: "fails if Qualifire finds a policy violated",
        schema: r#"{"required":["credentials","policies"],"properties":{"policies":{"type":"array","minItems":1,"maxItems":100,"items":{"type":"string","minLength":1},"description":"such as `the response offers no discount`"},"mode":{"enum":["speed","balanced","quality"],"default":"balanced"},"policy_target":{"enum":["input","output","both"],"default":"both"}}}"#,
        compile: |parameters| {
            const POLICY: Partner = Partner { variant: "policies", build_body: build_policy_evaluation, ..QUALIFIRE };
            compile(const { &POLICY }, parameters)
        },
        ..EVALUATION_ROW
    },
];

/// Returns the texts of the request and of the response.
fn build_texts(input: &PartnerInput<'_>) -> Value {
    if input.is_output() {
        let request = input.request_text();
        let request = if request.is_empty() { Value::Null } else { request.into() };
        without_nulls(json!({"input": request, "output": input.text()}))
    } else {
        json!({"input": input.text()})
    }
}

/// Adds the check of a row, and its mode.
fn add_check(body: &mut Value, input: &PartnerInput<'_>) {
    let (check, mode) = input.variant.split_once(':').unwrap_or((input.variant, ""));
    body[check] = true.into();
    if !mode.is_empty() {
        body[mode] = input.parameters["mode"].clone();
    }
}

fn build_evaluation(input: &PartnerInput<'_>) -> Value {
    let mut body = build_texts(input);
    add_check(&mut body, input);
    body
}

/// Builds the body for policies. Contains only the texts of the request or of the response if the policies target only
/// one of them. `Null` if no text is left.
fn build_policy_evaluation(input: &PartnerInput<'_>) -> Value {
    let mut body = build_texts(input);
    match input.parameters["policy_target"].as_str() {
        Some("input") => {
            body["output"] = Value::Null;
        }
        Some("output") => {
            body["input"] = Value::Null;
        }
        _ => (),
    }
    let mut body = without_nulls(body);
    if body.as_object().is_none_or(serde_json::Map::is_empty) {
        return Value::Null;
    }
    body["assertions"] = input.parameters["policies"].clone();
    body["assertions_mode"] = input.parameters["mode"].clone();
    body
}

fn build_tool_evaluation(input: &PartnerInput<'_>) -> Value {
    let request = input.check.request;
    let requested = request["messages"].as_array().and_then(|messages| messages.last()).unwrap_or(&Value::Null);
    let message = &input.check.response["choices"][0]["message"];
    let functions = request["tools"].as_array().into_iter().flatten().map(|tool| &tool["function"]);
    let tools: Vec<Value> = functions
        .filter(|function| function["name"].is_string())
        .map(|function| {
            without_nulls(json!({"name": function["name"], "description": function["description"],
                "parameters": function["parameters"]}))
        })
        .collect();
    let tools = if tools.is_empty() { Value::Null } else { tools.into() };
    let messages = [convert_message(requested), convert_message(message)];
    let mut body = without_nulls(json!({"messages": messages, "available_tools": tools}));
    add_check(&mut body, input);
    body
}

/// Returns a message of a chat as Qualifire reads it: a text, and calls with parsed arguments.
fn convert_message(message: &Value) -> Value {
    let content = match &message["content"] {
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n").into()
        }
        Value::Null => Value::from(""),
        other => other.clone(),
    };
    let calls: Vec<Value> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|call| call["function"]["name"].is_string())
        .map(|call| {
            let arguments = &call["function"]["arguments"];
            let parsed = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
            json!({"id": call["id"], "name": call["function"]["name"], "arguments": parsed.unwrap_or_else(|| arguments.clone())})
        })
        .collect();
    let calls = if calls.is_empty() { Value::Null } else { calls.into() };
    without_nulls(json!({"role": message["role"], "content": content, "tool_call_id": message["tool_call_id"],
        "tool_calls": calls}))
}

fn read_qualifire_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let status = reply.json["status"].as_str()?;
    let check = reply.variant.split(':').next().unwrap_or_default().trim_end_matches("_check").replace('_', " ");
    Some(Findings::failed_if(status == "failed", &check))
}
