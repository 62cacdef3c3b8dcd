//! Promptfoo: jailbreaks, personal data and harm. It takes no credential.

use serde_json::{Value, json};

use super::{
    PARTNER, Partner, PartnerReply, ROW, compile,
    findings::Findings,
    text_spans::{TextSpan, replace_joined_spans},
    true_keys,
};
use crate::guardrails::check::{CheckRow, Stages};

const SHARED: &[&str] = &["scope", "baseURL", "forwardHeaders", "timeout=5000"];

const PROMPTFOO: Partner = Partner {
    name: "Promptfoo",
    base: "https://api.promptfoo.dev",
    build_body: |input| json!({"input": input.text()}),
    ..PARTNER
};

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "promptfoo.guard",
        name: "Promptfoo guard",
        description: "fails if Promptfoo finds a jailbreak in the prompt",
        stages: Stages::Input,
        secrets: &[],
        schema: "{}",
        shared: SHARED,
        compile: |parameters| {
            const GUARD: Partner = Partner {
                path: "/v1/guard",
                read_reply: |reply| {
                    let is_found = reply.json["results"][0]["categories"]["jailbreak"].as_bool()?;
                    Some(Findings::failed_if(is_found, "a jailbreak"))
                },
                ..PROMPTFOO
            };
            compile(const { &GUARD }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "promptfoo.pii",
        name: "Promptfoo personal data",
        description: "fails if Promptfoo finds personal data, or replaces it",
        secrets: &[],
        schema: r#"{"properties":{"redact":{"type":"boolean","default":false,"description":"true: replaces what is found, such as by `[EMAIL]`, and passes"}}}"#,
        shared: SHARED,
        compile: |parameters| {
            const PII: Partner = Partner {
                path: "/v1/pii",
                read_reply: read_promptfoo_pii_reply,
                may_change: |parameters| parameters["redact"] == true,
                ..PROMPTFOO
            };
            compile(const { &PII }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "promptfoo.harm",
        name: "Promptfoo harm",
        description: "fails if Promptfoo finds harmful content",
        secrets: &[],
        schema: "{}",
        shared: SHARED,
        compile: |parameters| {
            const HARM: Partner = Partner { path: "/v1/harm", read_reply: read_promptfoo_harm_reply, ..PROMPTFOO };
            compile(const { &HARM }, parameters)
        },
        ..ROW
    },
];

fn read_promptfoo_pii_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let result = &reply.json["results"][0];
    if !result["flagged"].as_bool()? {
        return Some(Findings::default());
    }
    let entities: &[Value] = result["payload"]["pii"].as_array().map_or(&[], Vec::as_slice);
    let spans: Option<Vec<TextSpan>> = entities
        .iter()
        .map(|entity| {
            let label = format!("[{}]", entity["entity_type"].as_str()?.to_uppercase());
            TextSpan::new(entity["start"].as_u64(), entity["end"].as_u64(), label)
        })
        .collect();
    let mut findings = Findings::default();
    let names = entities.iter().filter_map(|entity| entity["entity_type"].as_str());
    findings.replaceable.extend(names.map(ToOwned::to_owned));
    if findings.replaceable.is_empty() {
        findings.replaceable.push("personal data".to_owned());
    }
    findings.replaced = spans.filter(|_| reply.redacts()).and_then(|spans| replace_joined_spans(reply.texts, &spans));
    Some(findings)
}

fn read_promptfoo_harm_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let result = &reply.json["results"][0];
    if !result["flagged"].as_bool()? {
        return Some(Findings::default());
    }
    let mut failed = true_keys(&result["categories"]);
    if failed.is_empty() {
        failed.push("harmful content".to_owned());
    }
    Some(Findings::failed(failed))
}
