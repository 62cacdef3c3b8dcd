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
    model_call::{ModelAccess, RouteQuestion},
    reading::Reading,
    runner::{HookRunner, run_hooks},
    subject::HookSubject,
};
use crate::{
    error::Problem,
    gateway_state::GatewayState,
    guardrails::{checks::Stage, hook::Hook, results::ShownData, saved::compile_content},
    parse::{document_reader::Strictness, json_fault::describe_json_fault},
    process::{net_settings, settings::Settings},
    state::shared::check_hosts::CheckHosts,
};

/// Request or response that the guardrail is tried on.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TrialSubject {
    is_output: bool,
    /// Slug of the guardrail; empty if it is not saved.
    #[serde(default)]
    slug: String,
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

/// A guardrail, and the request or response that it is tried on.
pub struct Trial {
    hook: Hook,
    subject: TrialSubject,
    body_bytes: usize,
}

impl Trial {
    /// Parses a guardrail, given as the JSON of its checks and actions, and the JSON of its subject.
    ///
    /// # Errors
    /// All problems of the guardrail, or those of the subject.
    pub fn parse(content: &[u8], subject: &[u8]) -> Result<Self, Vec<Problem>> {
        let invalid = |error: serde_json::Error| {
            vec![Problem::new("$", format!("must be valid JSON: {}", describe_json_fault(&error)))]
        };
        let hook = compile_content(&serde_json::from_slice(content).map_err(invalid)?, Strictness::StrictWithLints)?;
        let body_bytes = subject.len();
        Ok(Self { hook, subject: serde_json::from_slice(subject).map_err(invalid)?, body_bytes })
    }

    /// Runs the guardrail with the settings of a gateway, whose policy for addresses applies. It cannot call models.
    /// Returns its results, and the texts and the body with all changes, as `POST /v1/guardrails/test` does.
    ///
    /// # Errors
    /// If the settings are not valid.
    pub async fn run(self, settings: &Settings) -> Result<Value, Vec<Problem>> {
        let upstream = Upstream::new(&net_settings::client_settings(settings)).map_err(|error| vec![error.into()])?;
        let runner = HookRunner {
            upstream: Arc::new(upstream),
            hosts: Arc::new(CheckHosts::default()),
            workspace: None,
            models: None,
        };
        Ok(self.run_with(&runner).await)
    }

    /// Runs the guardrail in a gateway, where it may call models of the workspace's saved providers. `caller_id` is the
    /// id of the key or user that requested the trial.
    pub async fn run_in(
        self,
        state: &Arc<GatewayState>,
        workspace: &str,
        caller_id: &str,
        route: RouteQuestion,
    ) -> Value {
        let workspace: Arc<str> = workspace.into();
        let models = ModelAccess::for_trial(Arc::clone(state), caller_id.into(), Arc::clone(&workspace), route);
        let runner = HookRunner {
            upstream: Arc::clone(&state.upstream),
            hosts: Arc::clone(&state.shared.check_hosts),
            workspace: Some(workspace),
            models: Some(models),
        };
        self.run_with(&runner).await
    }

    async fn run_with(self, runner: &HookRunner) -> Value {
        let Self { hook, subject: trial, body_bytes } = self;
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
            body_bytes,
            unreadable: None,
        };
        let run = run_hooks(runner, &[Arc::new(hook)], Arc::new(subject)).await;
        let subject = &run.subject;
        let body = if trial.is_output { &subject.response } else { &*subject.request };
        let texts: Vec<_> = subject.texts.iter().map(|part| part.text.as_str()).collect();
        let (mut verdict, mut denied, mut is_transformed, mut results) = (true, false, false, Vec::new());
        for mut result in run.results {
            verdict &= result.verdict;
            denied |= result.denies;
            is_transformed |= result.is_transformed;
            result.id.clone_from(&trial.slug);
            results.push(result.to_json(ShownData::All));
        }
        json!({"verdict": verdict, "denied": denied, "transformed": is_transformed, "texts": texts, "body": body,
            "results": results, "object": "guardrail_trial"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(content: &Value, subject: &Value) -> Value {
        let trial = Trial::parse(content.to_string().as_bytes(), subject.to_string().as_bytes()).unwrap();
        trial.run(&Settings::default()).await.unwrap()
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

    #[test]
    fn problems_are_those_of_the_guardrail() {
        let problems = Trial::parse(br#"{"checks": [{"id": "none"}]}"#, b"{}").err().unwrap();
        assert_eq!(problems[0].path, "$.checks[0].id");
    }
}
