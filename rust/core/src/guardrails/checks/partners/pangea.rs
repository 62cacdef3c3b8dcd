//! Pangea AI Guard and Redact.

use serde_json::{Value, json};

use super::{BEARER, PARTNER, Partner, PartnerReply, ROW, compile, findings::Findings, without_nulls};
use crate::guardrails::check::CheckRow;

const SHARED: &[&str] = &["scope", "baseURL", "forwardHeaders", "timeout=5000"];

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "pangea.textGuard",
        name: "Pangea AI Guard",
        description: "fails if a detector of Pangea AI Guard finds something",
        schema: r#"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["apiKey","domain"],"additionalProperties":false,"properties":{"apiKey":{"type":"string","minLength":1},"domain":{"type":"string","pattern":"^[A-Za-z0-9.-]+$"}}},"recipe":{"type":"string","minLength":1,"description":"key of a recipe of AI Guard"},"debug":{"type":"boolean"},"overrides":{"type":"object","description":"settings in place of those of the recipe"}}}"#,
        shared: SHARED,
        compile: |parameters| {
            const TEXT_GUARD: Partner = Partner {
                name: "Pangea AI Guard",
                base: "https://ai-guard.{credentials.domain}",
                path: "/v1/text/guard",
                headers: BEARER,
                build_body: |input| {
                    let parameters = input.parameters;
                    without_nulls(json!({"text": input.text(), "recipe": parameters["recipe"],
                        "debug": parameters["debug"], "overrides": parameters["overrides"]}))
                },
                read_reply: read_pangea_guard_reply,
                ..PARTNER
            };
            compile(const { &TEXT_GUARD }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "pangea.pii",
        name: "Pangea Redact",
        description: "fails if Pangea Redact finds something that its rules redact, or replaces it",
        schema: r#"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["apiKey","domain"],"additionalProperties":false,"properties":{"apiKey":{"type":"string","minLength":1},"domain":{"type":"string","pattern":"^[A-Za-z0-9.-]+$"}}},"redact":{"type":"boolean","default":false,"description":"true: replaces what is found, and passes"}}}"#,
        shared: SHARED,
        compile: |parameters| {
            const REDACT: Partner = Partner {
                name: "Pangea Redact",
                base: "https://redact.{credentials.domain}",
                path: "/v1/redact_structured",
                headers: BEARER,
                build_body: |input| json!({"data": input.texts()}),
                read_reply: read_pangea_redact_reply,
                may_change: |parameters| parameters["redact"] == true,
                ..PARTNER
            };
            compile(const { &REDACT }, parameters)
        },
        ..ROW
    },
];

fn read_pangea_guard_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    if reply.json["status"] != "Success" {
        return None;
    }
    let detectors = reply.json["result"]["detectors"].as_object()?;
    let detected = detectors.iter().filter(|(_, detector)| detector["detected"] == true);
    let mut failed: Vec<String> = detected.map(|(name, _)| name.clone()).collect();
    if failed.is_empty() && reply.json["result"]["blocked"] == true {
        failed.push("a blocked text".to_owned());
    }
    Some(Findings::failed(failed))
}

fn read_pangea_redact_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let result = &reply.json["result"];
    if result["count"].as_u64()? == 0 {
        return Some(Findings::default());
    }
    let texts = result["redacted_data"].as_array().into_iter().flatten();
    let replaced: Vec<String> = texts.filter_map(Value::as_str).map(ToOwned::to_owned).collect();
    let replaceable = vec!["personal data".to_owned()];
    Some(Findings { replaceable, replaced: reply.redacts().then_some(replaced), ..Findings::default() })
}
