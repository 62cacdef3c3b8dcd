//! Checks of a request before it is sent: its denial, its changes, and its body in the log.

use std::sync::Arc;

use penstock_llm::{json::edit::pick_values, texts::TextPart};
use penstock_net::body::Body;
use serde_json::Value;

use super::{
    TargetHooks, count,
    effective::{find_hooks, has_defaults},
    find_denial,
    reading::Reading,
    rewriting::{has_rewritten, needs_rewritten_body},
    runner,
};
use crate::{
    accounting::{record::recorded_bodies::RedactingHooks, routing_decision::RoutingStep},
    config::{Config, Node},
    endpoints::management_proxy::is_batch_pass,
    error::{Error, PromptError, Result},
    gateway_state::GatewayState,
    guardrails::{checks::Stage, hook::Hook},
    resolve::target_resolver::TargetResolver,
    response::{delivery::UpstreamResponse, offload::run_offloaded},
    routing::{executor::RouteExecutor, replay_body::PreparedBody},
};

/// Returns the guardrails that may redact the request at any target, for which its log must wait.
pub(crate) fn find_redacting_hooks(resolver: &TargetResolver<'_>, config: &Config) -> RedactingHooks {
    let mut redacting = RedactingHooks::new();
    if config.has_guardrails {
        add_redacting_hooks(resolver, &config.root, &mut redacting);
    } else if has_defaults(resolver) {
        // They are the same at each of perhaps a thousand targets.
        add_hooks_of_target(resolver, &config.root, &mut redacting);
    }
    redacting
}

fn add_redacting_hooks(resolver: &TargetResolver<'_>, node: &Node, redacting: &mut RedactingHooks) {
    for target in &node.targets {
        add_redacting_hooks(resolver, target, redacting);
    }
    if !node.targets.is_empty() {
        // Only targets without further targets get requests. They have inherited the guardrails of this node.
        return;
    }
    add_hooks_of_target(resolver, node, redacting);
}

fn add_hooks_of_target(resolver: &TargetResolver<'_>, node: &Node, redacting: &mut RedactingHooks) {
    let Ok(hooks) = find_hooks(resolver, node, Stage::Input) else {
        // A guardrail is missing or cannot run, so no target can run it.
        return redacting.push(None);
    };
    for (hook, _) in hooks {
        let fingerprint = Some(hook.fingerprint);
        if !hook.is_async && hook.may_redact() && !redacting.contains(&fingerprint) {
            redacting.push(fingerprint);
        }
    }
}

impl TargetHooks {
    /// Runs the hooks before the request, and applies their changes to its body. Returns the response to the client if
    /// they deny the request.
    pub async fn check_request(
        &mut self,
        executor: &mut RouteExecutor<'_>,
        node: &Node,
        prepared: &mut PreparedBody,
    ) -> Result<Option<UpstreamResponse>> {
        self.report_unreadable_output(executor.state);
        let run = self.run(executor.state, &self.before, Arc::clone(&self.subject)).await;
        let denial = {
            let results = self.results.lock();
            find_denial(&results.before).or_else(|| find_denial(&results.after)).cloned()
        };
        self.subject = run.subject;
        self.restorations = run.restorations;
        let is_redacted = self.results.lock().has_redacted(Stage::Input);
        if let Some(denied_by) = denial {
            if is_redacted {
                // The log shows the denied request without the texts that were redacted.
                self.replace_request(prepared).await?;
            }
            self.record_checked_request(executor, prepared, is_redacted).await;
            let at = node.path.clone();
            executor.record_step(|| RoutingStep::Failed { at, error: "guardrail_denied" });
            let api_format = executor.client_request.api_format;
            return Ok(Some(self.deny(executor.state, &denied_by, api_format)));
        }
        if let Some(prompt) = &self.sharing_prompt
            && has_rewritten(&self.results.lock().before)
        {
            return Err(Error::Prompt(PromptError::field_of_owner(prompt, "messages")));
        }
        // A provider may read a duplicate key differently from these hooks, so it gets the JSON that they read.
        let is_checked = self.before.iter().any(|hook| needs_rewritten_body(hook)) && self.subject.request.is_object();
        if run.is_changed || is_checked {
            self.replace_request(prepared).await?;
        }
        self.record_checked_request(executor, prepared, is_redacted).await;
        Ok(None)
    }

    /// Records the request in the log: as the client sent it, or without the texts that guardrails redacted.
    async fn record_checked_request(
        &self,
        executor: &mut RouteExecutor<'_>,
        prepared: &PreparedBody,
        is_redacted: bool,
    ) {
        let redacted = match &prepared.body {
            Body::Complete(bytes) if is_redacted => Some(bytes.clone()),
            _ => None,
        };
        let has_hook = |fingerprint| self.before.iter().any(|hook| !hook.is_async && hook.fingerprint == fingerprint);
        let bodies = &mut executor.log.bodies;
        bodies.set_checked_request(redacted, has_hook).await;
        // The log has the response to the client, too.
        self.results.lock().hides_request |= bodies.hides_unredacted_texts();
    }

    /// Reports the hooks after the response as skipped, if they will not be able to read the response.
    fn report_unreadable_output(&self, gateway: &GatewayState) {
        let reading = self.subject.reading;
        let Some(reason) = reading.unreadable_reason() else { return };
        let result = |hook: &Arc<Hook>| runner::skipped_result(hook, reason, reading.is_denied_by(hook));
        let results: Vec<_> = self.after.iter().map(result).collect();
        count(&gateway.record_sink, &results);
        self.results.lock().add(Stage::Output, results);
    }

    /// Replaces the body of the request by the changed one. The model stays, because target and credential belong to
    /// it.
    async fn replace_request(&mut self, prepared: &mut PreparedBody) -> Result<()> {
        let Body::Complete(body) = &prepared.body else { return Ok(()) };
        let (body, mut subject) = (body.clone(), Arc::clone(&self.subject));
        let length = body.len().max(subject.body_bytes);
        let write = move || {
            let before = pick_values(&body, &["model".to_owned()]).into_iter().next().flatten();
            if subject.request.get("model") != before.as_ref()
                && let Some(fields) = Arc::make_mut(&mut Arc::make_mut(&mut subject).request).as_object_mut()
            {
                match before {
                    Some(model) => drop(fields.insert("model".to_owned(), model)),
                    None => drop(fields.shift_remove("model")),
                }
            }
            (subject.request.to_string(), subject)
        };
        let (bytes, subject) = run_offloaded(length, write).await?;
        (prepared.body, self.subject) = (Body::Complete(bytes.into()), subject);
        Ok(())
    }
}

/// Decides which texts hooks can read in a request to a target. Those of a batch of a provider need no second check if
/// the control process has checked its lines. It checks them only if the config has one target.
pub async fn read_request(executor: &RouteExecutor<'_>, request: &Value, texts: &[TextPart], body: &Body) -> Reading {
    let reading = Reading::of_request(executor.client_request, executor.is_websocket, request, texts, body);
    if reading == Reading::ProviderBatch && is_checked_batch(executor).await {
        return Reading::Nothing;
    }
    reading
}

/// Returns true if the control process reads a batch whose lines it has checked. It checks the responses itself.
pub async fn reads_checked_batch(executor: &RouteExecutor<'_>) -> bool {
    executor.client_request.head.method == "GET" && is_checked_batch(executor).await
}

async fn is_checked_batch(executor: &RouteExecutor<'_>) -> bool {
    executor.plan.config.root.targets.is_empty()
        && is_batch_pass(executor.state, &executor.client_request.head.headers).await
}
