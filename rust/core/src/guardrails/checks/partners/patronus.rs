//! Evaluators of Patronus. They judge responses, together with the request.

use serde_json::{Value, json};

use super::{
    CREDENTIALS_ONLY, PARTNER, Partner, PartnerInput, PartnerReply, ROW, compile,
    findings::Findings,
    text_spans::{REDACTED, TextSpan, replace_joined_spans},
    without_nulls,
};
use crate::guardrails::check::{CheckRow, Stages};

const PATRONUS: Partner = Partner {
    name: "Patronus",
    base: "https://api.patronus.ai",
    path: "/v1/evaluate",
    headers: &[("x-api-key", "{credentials.apiKey}")],
    build_body: build_evaluation,
    read_reply: read_patronus_reply,
    ..PARTNER
};

/// Fields that all rows of Patronus have in common.
const OUTPUT_ROW: CheckRow = CheckRow {
    stages: Stages::Output,
    schema: CREDENTIALS_ONLY,
    shared: &["credentials", "scope", "baseURL", "forwardHeaders", "timeout=15000"],
    ..ROW
};

/// Builds the row of an evaluator, which is written like `judge:patronus:is-concise`.
macro_rules! evaluator_row {
    ($id:literal, $name:literal, $description:literal, $evaluator:literal) => {
        CheckRow {
            id: $id,
            name: $name,
            description: $description,
            compile: |parameters| compile(const { &Partner { variant: $evaluator, ..PATRONUS } }, parameters),
            ..OUTPUT_ROW
        }
    };
}

/// Builds the row of an evaluator that finds spans of text.
macro_rules! redacting_row {
    ($id:literal, $name:literal, $description:literal, $evaluator:literal) => {
        CheckRow {
            id: $id,
            name: $name,
            description: $description,
            schema: r#"{"required":["credentials"],"properties":{"redact":{"type":"boolean","default":false,"description":"true: replaces what is found, and passes"}}}"#,
            compile: |parameters| {
                const REDACTING: Partner = Partner {
                    variant: $evaluator,
                    may_change: |parameters| parameters["redact"] == true,
                    read_reply: read_patronus_pii_reply,
                    ..PATRONUS
                };
                compile(const { &REDACTING }, parameters)
            },
            ..OUTPUT_ROW
        }
    };
}

pub(super) const ROWS: &[CheckRow] = &[
    redacting_row!(
        "patronus.pii",
        "Patronus personal data",
        "fails if Patronus finds personal data, or replaces it",
        "pii"
    ),
    redacting_row!(
        "patronus.phi",
        "Patronus health data",
        "fails if Patronus finds health data, or replaces it",
        "phi"
    ),
    evaluator_row!("patronus.toxicity", "Patronus toxicity", "fails if the response is toxic", "toxicity"),
    evaluator_row!(
        "patronus.isConcise",
        "Patronus concise",
        "fails unless the response is concise",
        "judge:patronus:is-concise"
    ),
    evaluator_row!(
        "patronus.isHelpful",
        "Patronus helpful",
        "fails unless the response is helpful",
        "judge:patronus:is-helpful"
    ),
    evaluator_row!(
        "patronus.isPolite",
        "Patronus polite",
        "fails unless the response is polite",
        "judge:patronus:is-polite"
    ),
    evaluator_row!(
        "patronus.noApologies",
        "Patronus apologies",
        "fails if the response apologises",
        "judge:patronus:no-apologies"
    ),
    evaluator_row!(
        "patronus.noGenderBias",
        "Patronus gender bias",
        "fails if the response has gender bias",
        "judge:patronus:no-gender-bias"
    ),
    evaluator_row!(
        "patronus.noRacialBias",
        "Patronus racial bias",
        "fails if the response has racial bias",
        "judge:patronus:no-racial-bias"
    ),
    evaluator_row!(
        "patronus.retrievalAnswerRelevance",
        "Patronus relevance",
        "fails unless the response is relevant to the request",
        "answer-relevance"
    ),
    evaluator_row!(
        "patronus.retrievalHallucination",
        "Patronus hallucination",
        "fails if the response is not supported by the request",
        "hallucination:patronus:hallucination"
    ),
    CheckRow {
        id: "patronus.custom",
        name: "Patronus profile",
        description: "fails if an evaluator of Patronus with own criteria fails the response",
        schema: r#"{"required":["credentials","profile"],"properties":{"profile":{"type":"string","minLength":1,"description":"`evaluator:criteria`, or criteria of the evaluator `judge`"}}}"#,
        compile: |parameters| {
            const PROFILE: Partner = Partner {
                prepare: |parameters| {
                    let profile = parameters["profile"].as_str().unwrap_or_default();
                    if !profile.contains(':') {
                        parameters["profile"] = format!("judge:{profile}").into();
                    }
                    Ok(())
                },
                ..PATRONUS
            };
            compile(const { &PROFILE }, parameters)
        },
        ..OUTPUT_ROW
    },
];

/// Returns the evaluator and its criteria: those of the row, or else those in the parameter `profile`.
fn find_evaluator<'p>(variant: &'p str, parameters: &'p Value) -> (&'p str, Option<&'p str>) {
    let profile = if variant.is_empty() { parameters["profile"].as_str().unwrap_or_default() } else { variant };
    match profile.split_once(':') {
        Some((evaluator, criteria)) => (evaluator, Some(criteria)),
        None => (profile, None),
    }
}

fn build_evaluation(input: &PartnerInput<'_>) -> Value {
    let (evaluator, criteria) = find_evaluator(input.variant, input.parameters);
    let evaluator = without_nulls(json!({"evaluator": evaluator, "criteria": criteria, "explain_strategy": "never"}));
    let mut body = json!({"evaluators": [evaluator], "evaluated_model_output": input.text()});
    let request = input.request_text();
    if !request.is_empty() {
        body["evaluated_model_input"] = request.into();
    }
    body
}

fn read_patronus_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let is_passed = reply.json["results"][0]["evaluation_result"]["pass"].as_bool()?;
    let (evaluator, criteria) = find_evaluator(reply.variant, reply.parameters);
    Some(Findings::failed_if(!is_passed, &format!("{} failed", criteria.unwrap_or(evaluator))))
}

/// Reads an evaluation that contains the positions of personal data.
fn read_patronus_pii_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let result = &reply.json["results"][0]["evaluation_result"];
    if result["pass"].as_bool()? {
        return Some(Findings::default());
    }
    let positions = result["additional_info"]["positions"].as_array();
    let spans: Option<Vec<TextSpan>> = positions
        .into_iter()
        .flatten()
        .map(|position| TextSpan::new(position[0].as_u64(), position[1].as_u64(), REDACTED.to_owned()))
        .collect();
    let name = if reply.variant == "phi" { "health data" } else { "personal data" };
    let replaced = spans.filter(|_| reply.redacts()).and_then(|spans| replace_joined_spans(reply.texts, &spans));
    Some(Findings { replaceable: vec![name.to_owned()], replaced, ..Findings::default() })
}
