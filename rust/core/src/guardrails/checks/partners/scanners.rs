//! Security scanners: Prisma AIRS of Palo Alto Networks and F5 AI Guardrails.

use serde_json::{Value, json};

use super::{
    BEARER, PARTNER, Partner, PartnerInput, PartnerReply, ROW, compile, findings::Findings, true_keys, without_nulls,
};
use crate::guardrails::check::{CheckRow, Stage};

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "panw-prisma-airs.intercept",
        name: "Prisma AIRS",
        description: "fails if a security profile of Prisma AIRS blocks the text",
        schema: r#"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["AIRS_API_KEY"],"additionalProperties":false,"properties":{"AIRS_API_KEY":{"type":"string","minLength":1}}},"profile_name":{"type":"string","minLength":1,"description":"security profile; without it and `profile_id`, that of the key"},"profile_id":{"type":"string","minLength":1},"ai_model":{"type":"string","minLength":1,"description":"model in reports; the default is that of the request"},"app_user":{"type":"string","minLength":1,"description":"user in reports"},"app_name":{"type":"string","minLength":1,"description":"application in reports"},"scan_scope":{"enum":["last_message","last_user_message","user_messages","all_messages"],"description":"texts of a request that are scanned, in place of `scope`"}}}"#,
        shared: &["scope", "baseURL", "forwardHeaders", "timeout=5000"],
        compile: |parameters| {
            const PRISMA: Partner = Partner {
                name: "Prisma AIRS",
                base: "https://service.api.aisecurity.paloaltonetworks.com",
                path: "/v1/scan/sync/request",
                headers: &[("x-pan-token", "{credentials.AIRS_API_KEY}")],
                prepare: |parameters| {
                    set_request_scope(parameters);
                    Ok(())
                },
                build_body: build_scan,
                read_reply: read_prisma_airs_reply,
                ..PARTNER
            };
            compile(const { &PRISMA }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "f5-guardrails.scan",
        name: "F5 AI Guardrails",
        description: "fails unless F5 AI Guardrails clears the text; a single text can be replaced",
        schema: r#"{"required":["credentials","projectId"],"properties":{"credentials":{"type":"object","required":["apiKey"],"additionalProperties":false,"properties":{"apiKey":{"type":"string","minLength":1},"calypsoUrl":{"type":"string","pattern":"^https?://","default":"https://us1.calypsoai.app"}}},"projectId":{"type":"string","minLength":1},"redact":{"type":"boolean","default":false,"description":"true: uses the redacted text, and passes"}}}"#,
        shared: &["scope", "baseURL", "forwardHeaders", "timeout=5000"],
        compile: |parameters| {
            const F5: Partner = Partner {
                name: "F5 AI Guardrails",
                base: "{credentials.calypsoUrl}",
                path: "/backend/v1/scans",
                headers: BEARER,
                build_body: |input| json!({"input": input.text(), "project": input.parameters["projectId"]}),
                read_reply: read_f5_reply,
                may_change: |parameters| parameters["redact"] == true,
                ..PARTNER
            };
            compile(const { &F5 }, parameters)
        },
        ..ROW
    },
];

/// Translates `scan_scope` to a scope of the gateway.
fn set_request_scope(parameters: &mut Value) {
    let scope = match parameters["scan_scope"].as_str() {
        Some("user_messages") => "user",
        Some("all_messages") => "all",
        Some(name) => name,
        None => return,
    };
    parameters["requestScope"] = scope.to_owned().into();
}

fn build_scan(input: &PartnerInput<'_>) -> Value {
    let parameters = input.parameters;
    let known_model = if input.check.model.is_empty() { "unknown-model" } else { input.check.model };
    let model = parameters["ai_model"].as_str().unwrap_or(known_model);
    let trace = input.check.headers.get_str("x-gateway-trace-id").map(ToOwned::to_owned);
    let profile =
        without_nulls(json!({"profile_name": parameters["profile_name"], "profile_id": parameters["profile_id"]}));
    let has_profile = profile.as_object().is_some_and(|profile| !profile.is_empty());
    let metadata = without_nulls(
        json!({"ai_model": model, "app_user": parameters["app_user"], "app_name": parameters["app_name"]}),
    );
    let side = if input.is_output() { "response" } else { "prompt" };
    without_nulls(json!({
        "tr_id": trace.unwrap_or_else(|| uuid::Uuid::from_u128(fastrand::u128(..)).to_string()), "metadata": metadata,
        "ai_profile": if has_profile { profile } else { Value::Null }, "contents": [{side: input.text()}],
    }))
}

fn read_prisma_airs_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    if reply.json["action"].as_str()? != "block" {
        return Some(Findings::default());
    }
    let side = if reply.stage == Stage::Output { "response_detected" } else { "prompt_detected" };
    let mut failed = true_keys(&reply.json[side]);
    if failed.is_empty() {
        failed.push("a violation of the profile".to_owned());
    }
    Some(Findings::failed(failed))
}

/// Reads the outcome. All texts were sent as one, so a redacted text can replace only a single text.
fn read_f5_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let outcome = reply.json["result"]["outcome"].as_str()?;
    let redacted = reply.json["redactedInput"].as_str().filter(|_| reply.redacts() && reply.texts.len() == 1);
    Some(match (outcome, redacted) {
        ("cleared", _) => Findings::default(),
        ("redacted", redacted) => Findings {
            replaceable: vec!["redacted data".to_owned()],
            replaced: redacted.map(|text| vec![text.to_owned()]),
            ..Findings::default()
        },
        (_, _) => Findings::failed(vec!["a violation of the project's policy".to_owned()]),
    })
}
