//! Runs a guardrail without a client's request, so that an operator can try it before it denies anything.

use std::{collections::BTreeMap, sync::Arc};

use penstock_llm::{
    catalog::find_provider,
    operation::Operation,
    texts::{request_texts, response_texts},
};
use penstock_net::{Upstream, headers::Headers};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    reading::Reading,
    runner::{HookRunner, run_hooks},
    subject::HookSubject,
};
use crate::{
    error::Problem,
    guardrails::{checks::Stage, saved::compile_content},
    parse::{document_reader::Strictness, json_fault::describe_json_fault},
    process::{net_settings, settings::Settings},
    state::shared::check_hosts::CheckHosts,
};

/// What the guardrail is tried on.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TrialSubject {
    is_output: bool,
    request: Value,
    #[serde(default)]
    response: Value,
    #[serde(default)]
    provider: String,
    #[serde(default)]
    model: String,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

/// Runs a guardrail, given as the JSON of its checks and actions. Returns its result and the body with all changes.
///
/// Checks that ask other hosts do so with the settings of the gateway, so its policy for addresses applies.
///
/// # Errors
/// All problems of the guardrail, of the subject, or of the settings.
pub async fn run_trial(settings: &Settings, content: &[u8], subject: &[u8]) -> Result<Value, Vec<Problem>> {
    let invalid = |error: serde_json::Error| {
        vec![Problem::new("$", format!("must be valid JSON: {}", describe_json_fault(&error)))]
    };
    let hook = compile_content(&serde_json::from_slice(content).map_err(invalid)?, Strictness::StrictWithLints)?;
    let trial: TrialSubject = serde_json::from_slice(subject).map_err(invalid)?;
    let upstream = Upstream::new(&net_settings::client_settings(settings)).map_err(|error| vec![error.into()])?;
    let runner = HookRunner {
        upstream: Arc::new(upstream),
        hosts: Arc::new(CheckHosts::default()),
        workspace: None,
        models: None,
    };
    let texts = if trial.is_output { response_texts(&trial.response) } else { request_texts(&trial.request) };
    let subject = HookSubject {
        stage: if trial.is_output { Stage::Output } else { Stage::Input },
        operation: Operation::ChatComplete,
        reading: Reading::Conversation,
        provider: find_provider(&trial.provider).map_or("", |provider| provider.slug()),
        model: trial.model,
        is_streaming: false,
        metadata: trial.metadata.into_iter().collect(),
        headers: Headers::default(),
        added_headers: Vec::new(),
        request: Arc::new(trial.request),
        response: trial.response,
        texts,
        body_bytes: subject.len(),
        unreadable: None,
    };
    let run = run_hooks(&runner, &[Arc::new(hook)], Arc::new(subject)).await;
    let subject = &run.subject;
    let body = if trial.is_output { &subject.response } else { &*subject.request };
    let texts: Vec<_> = subject.texts.iter().map(|part| part.text.as_str()).collect();
    let results: Vec<_> = run.results.iter().map(|result| result.to_json(true)).collect();
    Ok(json!({"results": results, "texts": texts, "body": body}))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(content: &Value, subject: &Value) -> Value {
        run_trial(&Settings::default(), content.to_string().as_bytes(), subject.to_string().as_bytes()).await.unwrap()
    }

    #[tokio::test]
    async fn shows_the_verdict_and_the_redacted_text() {
        let content = json!({"checks": [{"id": "gateway.pii", "parameters": {"categories": ["EMAIL_ADDRESS"], "redact": true}}],
            "actions": {"deny": true}});
        let request = json!({"messages": [{"role": "user", "content": "write to ann@example.com"}]});
        let trial = run(&content, &json!({"is_output": false, "request": request})).await;
        assert_eq!(trial["results"][0]["transformed"], true);
        let text = trial["texts"][0].as_str().unwrap();
        assert!(!text.contains("ann@example.com"), "{text}");
        assert_eq!(trial["body"]["messages"][0]["content"], text);
    }

    #[tokio::test]
    async fn checks_responses_and_reports_denials() {
        let content = json!({"checks": [{"id": "default.contains", "parameters": {"words": ["secret"], "operator": "none"}}],
            "actions": {"deny": true, "async": false}});
        let response = |text: &str| json!({"choices": [{"message": {"role": "assistant", "content": text}}]});
        for (text, is_denied) in [("a secret", true), ("nothing", false)] {
            let subject = json!({"is_output": true, "request": {"messages": []}, "response": response(text)});
            let trial = run(&content, &subject).await;
            assert_eq!(
                (&trial["results"][0]["deny"], &trial["results"][0]["verdict"]),
                (&json!(is_denied), &json!(!is_denied))
            );
        }
    }

    #[tokio::test]
    async fn private_hosts_are_not_called() {
        let content = json!({"checks": [{"id": "default.webhook", "parameters": {"webhookURL": "http://127.0.0.1:28080/x"}}], "actions": {"deny": true}});
        let request = json!({"messages": [{"role": "user", "content": "x"}]});
        let trial = run(&content, &json!({"is_output": false, "request": request})).await;
        assert!(
            trial["results"][0]["checks"][0]["error"]["message"].as_str().unwrap().contains("could not be reached")
        );
    }

    #[tokio::test]
    async fn problems_are_those_of_the_guardrail() {
        let problems = run_trial(&Settings::default(), br#"{"checks": [{"id": "none"}]}"#, b"{}").await.unwrap_err();
        assert_eq!(problems[0].path, "$.checks[0].id");
    }
}
