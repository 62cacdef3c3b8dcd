//! Partners that read texts as messages with roles: Aporia, Lasso, Lakera and AIDR.

use penstock_llm::texts::request_texts;
use serde_json::{Value, json};

use super::{
    BEARER, PARTNER, Partner, PartnerInput, PartnerReply, ROW, SentText, compile,
    findings::Findings,
    text_spans::{TextSpan, replace_spans},
    true_keys, without_nulls,
};
use crate::guardrails::check::{CheckRow, Stage};

const SHARED: &[&str] = &["scope", "baseURL", "forwardHeaders", "timeout=5000"];

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "aporia.validateProject",
        name: "Aporia",
        description: "fails if the policies of an Aporia project do not let the texts pass",
        schema: r#"{"required":["credentials","projectID"],"properties":{"credentials":{"type":"object","required":["apiKey"],"additionalProperties":false,"properties":{"apiKey":{"type":"string","minLength":1},"apiEndpoint":{"type":"string","pattern":"^https?://","default":"https://gr-prd.aporia.com"}}},"projectID":{"type":"string","minLength":1}}}"#,
        shared: SHARED,
        compile: |parameters| {
            const APORIA: Partner = Partner {
                name: "Aporia",
                base: "{credentials.apiEndpoint}",
                path: "/{projectID}/validate",
                headers: &[("x-aporia-api-key", "{credentials.apiKey}")],
                build_body: build_validation,
                read_reply: |reply| {
                    let action = reply.json["action"].as_str()?;
                    Some(Findings::failed_if(action != "passthrough", "a violation of a policy"))
                },
                ..PARTNER
            };
            compile(const { &APORIA }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "lasso.classify",
        name: "Lasso",
        description: "fails if Lasso finds a violation",
        schema: r#"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["apiKey"],"additionalProperties":false,"properties":{"apiKey":{"type":"string","minLength":1},"apiEndpoint":{"type":"string","pattern":"^https?://","default":"https://server.lasso.security"}}},"conversationId":{"type":"string","minLength":1},"sessionId":{"type":"string","minLength":1,"description":"another name of `conversationId`"},"userId":{"type":"string","minLength":1},"messages":{"type":"array","description":"ignored: the messages of the request are sent"}}}"#,
        shared: SHARED,
        compile: |parameters| {
            const LASSO: Partner = Partner {
                name: "Lasso",
                base: "{credentials.apiEndpoint}",
                path: "/gateway/v2/classify",
                output_path: "/gateway/v3/classify",
                headers: &[
                    ("lasso-api-key", "{credentials.apiKey}"),
                    ("lasso-conversation-id", "{conversationId}"),
                    ("lasso-user-id", "{userId}"),
                ],
                prepare: |parameters| {
                    if parameters["conversationId"].is_null() {
                        parameters["conversationId"] = parameters["sessionId"].clone();
                    }
                    Ok(())
                },
                build_body: build_classification,
                read_reply: read_lasso_reply,
                ..PARTNER
            };
            compile(const { &LASSO }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "lakera.guard",
        name: "Lakera Guard",
        description: "fails if a policy of Lakera flags the texts; if only personal data is found, replaces it",
        schema: r#"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["apiKey"],"additionalProperties":false,"properties":{"apiKey":{"type":"string","minLength":1},"apiBase":{"type":"string","pattern":"^https?://","default":"https://api.lakera.ai"}}},"projectID":{"type":"string","minLength":1,"description":"project whose policy applies"},"endInclusive":{"type":"boolean","default":false,"description":"true: the end of a span is its last character"}}}"#,
        shared: &["scope", "baseURL", "forwardHeaders", "timeout=30000"],
        compile: |parameters| {
            const LAKERA: Partner = Partner {
                name: "Lakera",
                base: "{credentials.apiBase}",
                path: "/v2/guard",
                headers: BEARER,
                build_body: |input| {
                    without_nulls(json!({"messages": input.messages(), "breakdown": true, "payload": true,
                        "project_id": input.parameters["projectID"]}))
                },
                read_reply: read_lakera_reply,
                may_change: |_| true,
                ..PARTNER
            };
            compile(const { &LAKERA }, parameters)
        },
        ..ROW
    },
    CheckRow {
        id: "crowdstrike-aidr.guardChatCompletions",
        name: "CrowdStrike AIDR",
        description: "fails if a policy of CrowdStrike AIDR blocks the texts; uses the texts that it changes",
        schema: r#"{"required":["credentials"],"properties":{"credentials":{"type":"object","required":["apiKey","baseUrl"],"additionalProperties":false,"properties":{"apiKey":{"type":"string","minLength":1},"baseUrl":{"type":"string","pattern":"^https?://"}}}}}"#,
        shared: SHARED,
        compile: |parameters| {
            const AIDR: Partner = Partner {
                name: "CrowdStrike AIDR",
                base: "{credentials.baseUrl}",
                path: "/v1/guard_chat_completions",
                headers: BEARER,
                build_body: build_guard_input,
                read_reply: read_crowdstrike_reply,
                may_change: |_| true,
                ..PARTNER
            };
            compile(const { &AIDR }, parameters)
        },
        ..ROW
    },
];

fn build_validation(input: &PartnerInput<'_>) -> Value {
    if !input.is_output() {
        return json!({"messages": input.messages(), "validation_target": "prompt", "explain": false});
    }
    let texts = request_texts(input.check.request);
    let messages: Vec<Value> =
        texts.iter().enumerate().map(|(index, part)| SentText::new(index, part).to_message()).collect();
    json!({"messages": messages, "response": input.text(), "validation_target": "response", "explain": false})
}

/// Builds the body of a classification. Version 3 of the interface, which reads responses, takes the ids in the body.
fn build_classification(input: &PartnerInput<'_>) -> Value {
    if !input.is_output() {
        return json!({"messages": input.messages()});
    }
    let parameters = input.parameters;
    without_nulls(json!({"messages": input.messages(), "messageType": "COMPLETION",
        "sessionId": parameters["conversationId"], "userId": parameters["userId"]}))
}

fn read_lasso_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    if !reply.json["violations_detected"].as_bool()? {
        return Some(Findings::default());
    }
    if let Some(findings) = reply.json["findings"].as_object().filter(|findings| !findings.is_empty()) {
        // Version 3 lists findings that only warn, too.
        let stops = |finding: &Value| finding["action"] != "WARN";
        let has_stopped = |list: &Value| list.as_array().is_none_or(|list| list.iter().any(stops));
        let names = findings.iter().filter(|(_, list)| has_stopped(list)).map(|(name, _)| name.clone());
        return Some(Findings::failed(names.collect()));
    }
    let mut failed = true_keys(&reply.json["deputies"]);
    if failed.is_empty() {
        failed.push("a violation".to_owned());
    }
    Some(Findings::failed(failed))
}

/// Prefix of the types of detectors that find personal data. The reply contains the positions of such data.
const PERSONAL_DATA_PREFIX: &str = "pii";

fn read_lakera_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    if !reply.json["flagged"].as_bool()? {
        return Some(Findings::default());
    }
    let breakdown = reply.json["breakdown"].as_array().into_iter().flatten();
    let detected = breakdown.filter(|detector| detector["detected"] == true);
    let mut names: Vec<String> =
        detected.map(|detector| detector["detector_type"].as_str().unwrap_or("a detector").to_owned()).collect();
    if names.is_empty() {
        names.push("a violation of the policy".to_owned());
    }
    if !names.iter().all(|name| name.split('/').next() == Some(PERSONAL_DATA_PREFIX)) {
        return Some(Findings::failed(names));
    }
    Some(Findings { replaceable: names, replaced: replace_personal_data(reply), ..Findings::default() })
}

/// Returns the texts without the personal data that the reply lists; `None` if the reply lacks positions.
fn replace_personal_data(reply: &PartnerReply<'_>) -> Option<Vec<String>> {
    let payload = reply.json["payload"].as_array().filter(|payload| !payload.is_empty())?;
    let after_end = u64::from(reply.parameters["endInclusive"] == true);
    let mut spans: Vec<Vec<TextSpan>> = vec![Vec::new(); reply.texts.len()];
    for item in payload {
        let message = match item["message_id"].as_u64() {
            Some(message) => usize::try_from(message).ok()?,
            None if reply.texts.len() == 1 => 0,
            None => return None,
        };
        let kind = item["detector_type"].as_str()?.rsplit('/').next()?;
        let end = item["end"].as_u64()?.checked_add(after_end);
        spans.get_mut(message)?.push(TextSpan::new(item["start"].as_u64(), end, format!("[{}]", kind.to_uppercase()))?);
    }
    reply.texts.iter().zip(spans).map(|(sent, spans)| replace_spans(&sent.text, spans)).collect()
}

fn build_guard_input(input: &PartnerInput<'_>) -> Value {
    let messages = input.messages();
    let (guard_input, event_type) = if input.is_output() {
        let choices: Vec<Value> = messages
            .into_iter()
            .enumerate()
            .map(|(number, message)| json!({"index": number, "message": message}))
            .collect();
        (json!({"choices": choices}), "output")
    } else {
        (json!({"messages": messages}), "input")
    };
    let metadata = |names: [&str; 2]| {
        names
            .into_iter()
            .find_map(|name| input.check.metadata.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()))
    };
    let model = Some(input.check.model).filter(|model| !model.is_empty());
    let extra_info = without_nulls(json!({"user_name": metadata(["_user_name", "user_name"])}));
    without_nulls(json!({
        "guard_input": guard_input, "event_type": event_type, "app_id": "Penstock", "extra_info": extra_info,
        "user_id": metadata(["_user", "user_id"]), "llm_provider": input.check.provider, "model": model,
    }))
}

fn read_crowdstrike_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    if reply.json["status"] != "Success" {
        return None;
    }
    let result = &reply.json["result"];
    if result["blocked"].as_bool()? {
        return Some(Findings::failed(vec!["a violation of the policy".to_owned()]));
    }
    if result["transformed"] != true {
        return Some(Findings::default());
    }
    let output = &result["guard_output"];
    let contents = |number: usize| match reply.stage {
        Stage::Input => output["messages"][number]["content"].as_str(),
        Stage::Output => output["choices"][number]["message"]["content"].as_str(),
    };
    let replaced: Option<Vec<String>> =
        (0..reply.texts.len()).map(|number| contents(number).map(ToOwned::to_owned)).collect();
    Some(Findings { replaceable: vec!["sensitive data".to_owned()], replaced, ..Findings::default() })
}
