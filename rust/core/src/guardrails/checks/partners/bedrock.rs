//! Guardrails of Amazon Bedrock.

use serde_json::{Value, json};

use super::{PARTNER, Partner, PartnerReply, ROW, compile, findings::Findings};
use crate::guardrails::check::{AwsSignature, CheckRow};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "bedrock.guard",
    name: "Amazon Bedrock guardrail",
    description: "fails if a guardrail of Amazon Bedrock blocks the texts; replaces personal data if asked to",
    schema: r#"{"required":["credentials","guardrailId","guardrailVersion"],"properties":{"credentials":{"type":"object","required":["accessKeyId","accessKeySecret","region"],"additionalProperties":false,"properties":{"accessKeyId":{"type":"string","minLength":1},"accessKeySecret":{"type":"string","minLength":1},"awsSessionToken":{"type":"string","minLength":1},"region":{"type":"string","pattern":"^[a-z0-9-]+$"}}},"guardrailId":{"type":"string","minLength":1,"description":"id or ARN"},"guardrailVersion":{"type":"string","minLength":1,"description":"a number, or `DRAFT`"},"redact":{"type":"boolean","default":false,"description":"true: replaces personal data, and passes"}}}"#,
    shared: &["scope", "baseURL", "forwardHeaders", "timeout=5000"],
    compile: |parameters| {
        const GUARD: Partner = Partner {
            name: "Amazon Bedrock",
            base: "https://bedrock-runtime.{credentials.region}.amazonaws.com",
            path: "/guardrail/{guardrailId}/version/{guardrailVersion}/apply",
            build_body: |input| {
                let content: Vec<_> = input.texts().iter().map(|text| json!({"text": {"text": text}})).collect();
                json!({"source": if input.is_output() { "OUTPUT" } else { "INPUT" }, "content": content})
            },
            read_reply: read_bedrock_reply,
            may_change: |parameters| parameters["redact"] == true,
            sign: signing_keys,
            ..PARTNER
        };
        compile(const { &GUARD }, parameters)
    },
    ..ROW
}];

fn signing_keys(parameters: &Value) -> Option<AwsSignature> {
    let credential = |name: &str| parameters["credentials"][name].as_str().map(ToOwned::to_owned);
    Some(AwsSignature {
        service: "bedrock",
        region: credential("region")?,
        access_key_id: credential("accessKeyId")?,
        secret_access_key: credential("accessKeySecret")?,
        session_token: credential("awsSessionToken"),
    })
}

/// Lists of an assessment that contain personal data.
const PERSONAL_DATA: [&str; 2] = ["piiEntities", "regexes"];

/// Reads assessments. The check fails if an action is `BLOCKED`. Matches that Bedrock only detects or masks do not make
/// it fail.
fn read_bedrock_reply(reply: &PartnerReply<'_>) -> Option<Findings> {
    let action = reply.json["action"].as_str()?;
    let mut findings = Findings::default();
    let mut texts: Vec<String> = reply.texts.iter().map(|sent| sent.text.clone()).collect();
    let mut has_action = false;
    for (policy, list, item) in iter_assessed(&reply.json) {
        let action = item["action"].as_str().unwrap_or_default();
        has_action |= !action.is_empty();
        let is_personal = policy == "sensitiveInformationPolicy" && PERSONAL_DATA.contains(&list);
        let name = ["type", "name"].into_iter().find_map(|key| item[key].as_str()).unwrap_or(list);
        match action {
            "BLOCKED" if !(is_personal && reply.redacts()) => findings.failed.push(name.to_owned()),
            "BLOCKED" | "ANONYMIZED" if is_personal && reply.redacts() => {
                findings.replaceable.push(name.to_owned());
                let match_text = item["match"].as_str().unwrap_or_default();
                if match_text.is_empty() || !reply.texts.iter().any(|sent| sent.text.contains(match_text)) {
                    // The match cannot be replaced, so it makes the check fail.
                    findings.failed.push(name.to_owned());
                    continue;
                }
                let label = format!("{{{name}}}");
                for text in &mut texts {
                    *text = text.replace(match_text, &label);
                }
            }
            _ => (),
        }
    }
    if action == "GUARDRAIL_INTERVENED" && !has_action {
        findings.failed.push("a policy".to_owned());
    }
    findings.replaced = reply.redacts().then_some(texts);
    Some(findings)
}

/// Yields the name of the policy, the name of the list and the item for each item of all assessments.
fn iter_assessed(reply: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let assessments = reply["assessments"].as_array().into_iter().flatten();
    let policies = assessments.flat_map(|assessment| assessment.as_object().into_iter().flatten());
    let lists = policies.flat_map(|(policy, lists)| {
        lists.as_object().into_iter().flatten().map(move |(list, items)| (policy.as_str(), list.as_str(), items))
    });
    lists.flat_map(|(policy, list, items)| items.as_array().into_iter().flatten().map(move |item| (policy, list, item)))
}
