//! Partners that inspect AI traffic as part of network security: Akto, Cato Networks and Zscaler. Their policies decide.

use penstock_llm::texts::request_texts;
use serde_json::{Value, json};

use super::{BEARER, PARTNER, Partner, PartnerInput, PartnerReply, ROW, SHARED, SentText, compile, findings::Findings};
use crate::guardrails::check::CheckRow;

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "akto.scan",
        name: "Akto",
        description: "fails if a policy of Akto blocks the texts; uses the texts that it changes",
        schema: r#"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["apiDomain","apiKey"],"additionalProperties":false,"properties":{"apiDomain":{"type":"string","pattern":"^[A-Za-z0-9.-]+$","description":"host of the guardrails service, such as `1-guardrails.akto.io`"},"apiKey":{"type":"string","minLength":1}}}}}"#,
        shared: &["scope", "baseURL", "forwardHeaders", "timeout=5000"],
        compile: |parameters| {
            const AKTO: Partner = Partner {
                name: "Akto",
                base: "https://{credentials.apiDomain}",
                path: "/api/validate/request",
                headers: BEARER,
                build_body: build_payload,
                read_reply: read_validation,
                may_change: |_| true,
                ..PARTNER
            };
            compile(const { &AKTO }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "cato.analyze",
        name: "Cato Networks",
        description: "fails if a policy of Cato AI Security blocks the texts; uses the texts that it anonymises",
        schema: r#"{"required":["credentials"],"properties":{"userEmail":{"type":"string","minLength":1,"description":"user for whom policies apply"},"keyAlias":{"type":"string","minLength":1,"description":"name of the guard for which policies apply"}}}"#,
        shared: SHARED,
        compile: |parameters| {
            const CATO: Partner = Partner {
                name: "Cato",
                base: "https://api.aisec.catonetworks.com",
                path: "/fw/v1/analyze",
                headers: &[
                    ("authorization", "Bearer {credentials.apiKey}"),
                    ("x-cato-user-email", "{userEmail}"),
                    ("x-cato-gateway-key-alias", "{keyAlias}"),
                ],
                build_body: build_conversation,
                read_reply: read_cato_reply,
                may_change: |_| true,
                ..PARTNER
            };
            compile(const { &CATO }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "zscaler.guard",
        name: "Zscaler AI Guard",
        description: "fails if a policy of Zscaler AI Guard blocks the texts",
        schema: r#"{"required":["credentials","policyId"],"properties":{"policyId":{"type":"string","pattern":"^[0-9]{1,18}$","description":"number of the policy"}}}"#,
        shared: &["credentials", "scope", "baseURL", "forwardHeaders", "timeout=10000"],
        compile: |parameters| {
            const ZSCALER: Partner = Partner {
                name: "Zscaler",
                base: "https://api.us1.zseclipse.net",
                path: "/v1/detection/execute-policy",
                headers: BEARER,
                build_body: |input| {
                    let policy = input.parameters["policyId"].as_str().and_then(|id| id.parse::<u64>().ok());
                    json!({"content": input.text(), "direction": if input.is_output() { "OUT" } else { "IN" },
                        "policyId": policy})
                },
                read_reply: read_zscaler_reply,
                ..PARTNER
            };
            compile(const { &ZSCALER }, parameters)
        },
        ..ROW
    },
];

/// Returns the texts as a payload, which is JSON in a string. Releases of the service read it from different fields.
fn build_payload(input: &PartnerInput<'_>) -> Value {
    let payload = match input.texts()[..] {
        [text] => json!({"body": text}),
        ref texts => json!({"body": texts}),
    };
    let payload = payload.to_string();
    json!({"payload": payload, "requestPayload": payload, "method": "POST", "path": "/v1/chat/completions"})
}

/// Reads whether Akto allows a payload, and the payload with its changes. Releases of the service spell fields
/// differently.
fn read_validation(reply: &PartnerReply<'_>) -> Option<Findings> {
    let field = |names: [&str; 2]| names.into_iter().find_map(|name| reply.json.get(name));
    if !field(["Allowed", "allowed"])?.as_bool()? {
        return Some(Findings::failed(vec!["a violation of the policy".to_owned()]));
    }
    if field(["Modified", "modified"]) != Some(&json!(true)) {
        return Some(Findings::default());
    }
    let payload = field(["ModifiedPayload", "modifiedPayload"]).and_then(Value::as_str).unwrap_or_default();
    let payload: Value = serde_json::from_str(payload).unwrap_or_default();
    let replaced = match &payload["body"] {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(texts) => texts.iter().map(|text| text.as_str().map(ToOwned::to_owned)).collect(),
        _ => None,
    };
    Some(Findings { replaceable: vec!["sensitive data".to_owned()], replaced, ..Findings::default() })
}

/// Returns the texts as messages. The messages of a response follow those of its request.
fn build_conversation(input: &PartnerInput<'_>) -> Value {
    let mut messages = Vec::new();
    if input.is_output() {
        let request = request_texts(input.check.request);
        messages.extend(request.iter().enumerate().map(|(index, part)| SentText::new(index, part).to_message()));
    }
    messages.extend(input.messages());
    json!({"messages": messages})
}

fn read_cato_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let action = reply.json.get("required_action")?;
    match action["action_type"].as_str() {
        Some("block_action") => Some(Findings::failed(vec!["a violation of the policy".to_owned()])),
        Some("anonymize_action") => {
            let messages = reply.json["redacted_chat"]["all_redacted_messages"].as_array();
            // The texts of a response are the last messages.
            let own = messages.and_then(|all| all.get(all.len().checked_sub(reply.texts.len())?..));
            let replaced = own.and_then(|own| {
                own.iter().map(|message| message["content"].as_str().map(ToOwned::to_owned)).collect::<Option<Vec<_>>>()
            });
            Some(Findings { replaceable: vec!["sensitive data".to_owned()], replaced, ..Findings::default() })
        }
        _ => Some(Findings::default()),
    }
}

fn read_zscaler_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let is_blocked = match reply.json["action"].as_str()? {
        "BLOCK" => true,
        "ALLOW" | "DETECT" => false,
        _ => return None,
    };
    if !is_blocked {
        return Some(Findings::default());
    }
    let detectors = reply.json["detectorResponses"].as_object().into_iter().flatten();
    let mut names: Vec<String> =
        detectors.filter(|(_, detector)| detector["action"] == "BLOCK").map(|(name, _)| name.clone()).collect();
    if names.is_empty() {
        names.push("a violation of the policy".to_owned());
    }
    Some(Findings::failed(names))
}
