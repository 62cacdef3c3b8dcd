//! Partners that moderate a text and only report what they found, such as Mistral, Javelin and Pillar.

use serde_json::{Value, json};

use super::{BEARER, PARTNER, Partner, PartnerReply, ROW, compile, findings::Findings, without_nulls};
use crate::guardrails::check::{CheckRow, Stages};

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "mistral.moderateContent",
        name: "Mistral moderation",
        description: "fails if Mistral's moderation finds one of the categories",
        schema: r#"{"required":["credentials","categories"],"properties":{"categories":{"type":"array","minItems":1,"items":{"enum":["sexual","hate_and_discrimination","violence_and_threats","dangerous_and_criminal_content","selfharm","health","financial","law","pii"]}},"model":{"type":"string","minLength":1,"default":"mistral-moderation-latest"}}}"#,
        compile: |parameters| {
            const MISTRAL: Partner = Partner {
                name: "Mistral",
                base: "https://api.mistral.ai",
                path: "/v1/moderations",
                headers: BEARER,
                build_body: |input| json!({"model": input.parameters["model"], "input": input.texts()}),
                read_reply: read_mistral_reply,
                ..PARTNER
            };
            compile(const { &MISTRAL }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "sydelabs.sydeguard",
        name: "SydeGuard",
        description: "fails if SydeGuard's score of prompt injection, toxicity or evasion is above its threshold",
        stages: Stages::Input,
        schema: r#"{"required":["credentials"],"properties":{"prompt_injection_threshold":{"type":"number","minimum":0,"maximum":1,"default":0.5},"toxicity_threshold":{"type":"number","minimum":0,"maximum":1,"default":0.5},"evasion_threshold":{"type":"number","minimum":0,"maximum":1,"default":0.5}}}"#,
        compile: |parameters| {
            const SYDEGUARD: Partner = Partner {
                name: "SydeGuard",
                base: "https://guard.sydelabs.ai",
                path: "/api/v1/guard/generate-score",
                headers: &[("x-api-key", "{credentials.apiKey}")],
                build_body: |input| json!({"prompt": input.text()}),
                read_reply: read_sydeguard_reply,
                ..PARTNER
            };
            compile(const { &SYDEGUARD }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "walledai.walledprotect",
        name: "Walled AI",
        description: "fails if Walled AI finds the text unsafe",
        schema: r#"{"required":["credentials"],"properties":{"generic_safety_check":{"type":"boolean","default":true},"greetings_list":{"type":"array","items":{"enum":["Casual & Friendly","Professional & Polite"]},"default":["Casual & Friendly"]},"pii_list":{"type":"array","items":{"enum":["Person's Name","Address","Email Id","Contact No","Date Of Birth","Unique Id","Financial Data"]},"default":["Person's Name","Address","Email Id","Contact No","Date Of Birth","Unique Id","Financial Data"]},"compliance_list":{"type":"array","maxItems":100,"items":{"type":"string","minLength":1},"default":[]}}}"#,
        compile: |parameters| {
            const WALLED: Partner = Partner {
                name: "Walled AI",
                base: "https://services.walled.ai",
                path: "/v1/walled-protect",
                headers: &[("x-api-key", "{credentials.apiKey}")],
                build_body: |input| {
                    let parameters = input.parameters;
                    json!({"text": input.text(), "generic_safety_check": parameters["generic_safety_check"],
                        "greetings_list": parameters["greetings_list"], "pii_list": parameters["pii_list"],
                        "compliance_list": parameters["compliance_list"]})
                },
                read_reply: |reply| {
                    let safety = reply.json["data"]["safety"].as_array()?;
                    let safe: Vec<bool> =
                        safety.iter().map(|answer| answer["isSafe"].as_bool()).collect::<Option<_>>()?;
                    Some(Findings::failed_if(safe.contains(&false), "unsafe content"))
                },
                ..PARTNER
            };
            compile(const { &WALLED }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "javelin.guardrails",
        name: "Javelin guardrails",
        description: "fails if a guardrail of a Javelin application rejects the text",
        schema: r#"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["apiKey","application"],"additionalProperties":false,"properties":{"apiKey":{"type":"string","minLength":1},"application":{"type":"string","minLength":1},"domain":{"type":"string","pattern":"^[A-Za-z0-9.-]+$","default":"api-dev.javelin.live"}}}}}"#,
        shared: &["scope", "baseURL", "forwardHeaders", "timeout=5000"],
        compile: |parameters| {
            const JAVELIN: Partner = Partner {
                name: "Javelin",
                base: "https://{credentials.domain}",
                path: "/v1/guardrails/apply",
                headers: &[
                    ("x-javelin-apikey", "{credentials.apiKey}"),
                    ("x-javelin-application", "{credentials.application}"),
                ],
                build_body: |input| json!({"input": {"text": input.text()}, "config": {}, "metadata": {}}),
                read_reply: read_javelin_reply,
                ..PARTNER
            };
            compile(const { &JAVELIN }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "promptsecurity.protectPrompt",
        name: "Prompt Security for prompts",
        description: "fails if Prompt Security does not let the prompt pass",
        stages: Stages::Input,
        schema: PROMPT_SECURITY_SCHEMA,
        shared: &["scope", "baseURL", "forwardHeaders", "timeout=5000"],
        compile: |parameters| {
            const PROMPT: Partner = Partner { variant: "prompt", ..PROMPT_SECURITY };
            compile(const { &PROMPT }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "promptsecurity.protectResponse",
        name: "Prompt Security for responses",
        description: "fails if Prompt Security does not let the response pass",
        stages: Stages::Output,
        schema: PROMPT_SECURITY_SCHEMA,
        shared: &["scope", "baseURL", "forwardHeaders", "timeout=5000"],
        compile: |parameters| {
            const RESPONSE: Partner = Partner { variant: "response", ..PROMPT_SECURITY };
            compile(const { &RESPONSE }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "pillar.scanPrompt",
        name: "Pillar for prompts",
        description: "fails if a scanner of Pillar finds something in the prompt",
        stages: Stages::Input,
        schema: r#"{"required":["credentials","scanners"],"properties":{"scanners":{"type":"array","minItems":1,"items":{"enum":["prompt_injection","pii","secrets","toxic_language","invisible_characters"]}}}}"#,
        compile: |parameters| {
            const PROMPT: Partner = Partner { path: "/api/v1/scan/prompt", ..PILLAR };
            compile(const { &PROMPT }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "pillar.scanResponse",
        name: "Pillar for responses",
        description: "fails if a scanner of Pillar finds something in the response",
        stages: Stages::Output,
        schema: r#"{"required":["credentials","scanners"],"properties":{"scanners":{"type":"array","minItems":1,"items":{"enum":["pii","secrets","toxic_language"]}}}}"#,
        compile: |parameters| {
            const RESPONSE: Partner = Partner { path: "/api/v1/scan/response", ..PILLAR };
            compile(const { &RESPONSE }, parameters)
        },
        ..ROW
    },
];

const PROMPT_SECURITY_SCHEMA: &str = r#"{"required":["credentials"],"properties":{"redact":{"type":"boolean","default":false,"description":"true: uses the text that Prompt Security returns, and passes"},"user":{"type":"string","minLength":1,"description":"user in reports"},"credentials":{"type":"object","required":["apiDomain","apiKey"],"additionalProperties":false,"properties":{"apiDomain":{"type":"string","pattern":"^[A-Za-z0-9.-]+$"},"apiKey":{"type":"string","minLength":1}}}}}"#;

const PROMPT_SECURITY: Partner = Partner {
    name: "Prompt Security",
    base: "https://{credentials.apiDomain}",
    path: "/api/protect",
    headers: &[("app-id", "{credentials.apiKey}")],
    build_body: |input| without_nulls(json!({input.variant: input.text(), "user": input.parameters["user"]})),
    read_reply: read_prompt_security_reply,
    may_change: |parameters| parameters["redact"] == true,
    ..PARTNER
};

/// Reads the verdict. All texts were sent as one, so a changed text can replace only a single text.
fn read_prompt_security_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    const VIOLATION: &str = "a violation of its policy";
    let result = &reply.json["result"][reply.variant];
    if result["passed"].as_bool()? {
        return Some(Findings::default());
    }
    let changed = result["modified_text"].as_str().filter(|_| reply.redacts() && reply.texts.len() == 1);
    Some(match changed {
        Some(text) => Findings {
            replaceable: vec![VIOLATION.to_owned()],
            replaced: Some(vec![text.to_owned()]),
            ..Findings::default()
        },
        None => Findings::failed(vec![VIOLATION.to_owned()]),
    })
}

const PILLAR: Partner = Partner {
    name: "Pillar",
    base: "https://api.pillarseclabs.com",
    headers: BEARER,
    build_body: |input| {
        let names = input.parameters["scanners"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let scanners: serde_json::Map<String, Value> = names.map(|name| (name.to_owned(), true.into())).collect();
        json!({"message": input.text(), "scanners": scanners})
    },
    read_reply: read_pillar_reply,
    ..PARTNER
};

/// Reads the results of the scanners. A scanner that did not run is null.
fn read_pillar_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let fields = reply.json.as_object()?;
    let names = reply.parameters["scanners"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let results: Vec<_> = names.filter_map(|name| Some((name, fields.get(name)?))).collect();
    if results.is_empty() {
        return None;
    }
    let flagged = results.into_iter().filter(|(_, result)| !result.is_null() && **result != false);
    Some(Findings::failed(flagged.map(|(name, _)| name.to_owned()).collect()))
}

fn read_mistral_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let listed = reply.parameters["categories"].as_array()?;
    let results = reply.json["results"].as_array().filter(|results| !results.is_empty())?;
    let mut failed = Vec::new();
    for result in results {
        let categories = result["categories"].as_object()?;
        let flagged = categories.iter().filter(|(name, is_found)| **is_found == true && listed.contains(&json!(name)));
        failed.extend(flagged.map(|(name, _)| name.clone()));
    }
    Some(Findings::failed(failed))
}

fn read_sydeguard_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let scores = reply.json["category_scores"].as_array().filter(|scores| !scores.is_empty())?;
    let mut failed = Vec::new();
    for (category, parameter, name) in [
        ("PROMPT_INJECT", "prompt_injection_threshold", "prompt injection"),
        ("TOXIC", "toxicity_threshold", "toxicity"),
        ("EVASION", "evasion_threshold", "evasion"),
    ] {
        let threshold = reply.parameters[parameter].as_f64()?;
        let is_above = |score: &Value| score["score"].as_f64().is_some_and(|score| score > threshold);
        if scores.iter().any(|score| score["category"] == category && is_above(score)) {
            failed.push(name.to_owned());
        }
    }
    Some(Findings::failed(failed))
}

fn read_javelin_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let assessments = reply.json["assessments"].as_array().filter(|assessments| !assessments.is_empty())?;
    let kinds = assessments.iter().flat_map(|assessment| assessment.as_object().into_iter().flatten());
    let rejected = kinds.filter(|(_, assessment)| assessment["request_reject"] == true);
    Some(Findings::failed(rejected.map(|(kind, _)| kind.clone()).collect()))
}
