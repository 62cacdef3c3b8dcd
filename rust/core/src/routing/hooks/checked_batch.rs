//! Batches of providers whose lines the control process checks, with the guardrails of the only target.

use penstock_llm::texts::TextPart;
use penstock_net::body::Body;
use serde_json::Value;

use super::reading::Reading;
use crate::{endpoints::management_proxy::is_batch_pass, routing::executor::RouteExecutor};

/// Decides which texts hooks can read in a request to a target. Those of a checked batch need no second check.
pub async fn read_request(executor: &RouteExecutor<'_>, request: &Value, texts: &[TextPart], body: &Body) -> Reading {
    let reading = Reading::of_request(executor.client_request, executor.is_websocket, request, texts, body);
    if reading == Reading::ProviderBatch && is_checked(executor).await {
        return Reading::Nothing;
    }
    reading
}

/// Returns true if the control process reads a batch whose lines it has checked. It checks the responses itself.
pub async fn reads_checked_batch(executor: &RouteExecutor<'_>) -> bool {
    executor.client_request.head.method == "GET" && is_checked(executor).await
}

async fn is_checked(executor: &RouteExecutor<'_>) -> bool {
    executor.plan.config.root.targets.is_empty()
        && is_batch_pass(executor.state, &executor.client_request.head.headers).await
}
