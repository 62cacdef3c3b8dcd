//! Position in one fallback group while its targets are tried, and the last failure, which is returned if no later
//! target can be tried.

use std::sync::Arc;

use crate::{
    config::Node, error::Result, limits::now_ms, response::delivery::UpstreamResponse,
    routing::executor::RouteExecutor, strategies::fallback::FallbackPolicy,
};

/// Fallback group on the current path, whose targets are tried in order.
pub(super) struct FallbackLevel<'w> {
    pub node: &'w Node,
    pub policy: &'w FallbackPolicy,
    /// Index of the next target; all before it were tried or skipped.
    pub next_index: usize,
    pub has_tried_any: bool,
    /// True if no target is available, so that breakers are ignored; also true if the group has no breaker.
    pub ignores_breakers: bool,
}

impl<'w> FallbackLevel<'w> {
    pub fn new(node: &'w Node, policy: &'w FallbackPolicy) -> Self {
        Self { node, policy, next_index: 0, has_tried_any: false, ignores_breakers: !node.subtree.has_breaker }
    }

    pub fn has_next(&self) -> bool {
        self.next_index < self.node.targets.len()
    }
}

/// Failure of a target that was tried, with the log fields that describe this target.
pub(super) struct TriedFailure {
    result: Result<UpstreamResponse>,
    path: Arc<str>,
    retry_count: i32,
    provider: &'static str,
    model: String,
}

impl TriedFailure {
    /// Returns the failure to remember after one more result. Discards the response of the previous failure.
    pub async fn replace(
        before: Option<Box<Self>>,
        executor: &RouteExecutor<'_>,
        result: Result<UpstreamResponse>,
    ) -> Option<Box<Self>> {
        if let Some(Ok(response)) = before.map(|failure| failure.result) {
            response.discard().await;
        }
        let result = match result {
            Ok(response) => Ok(response.release_connection().await),
            Err(error) if error.is_untried() => return None,
            Err(error) => Err(error),
        };
        let decision = executor.log.decision.as_ref()?;
        Some(Box::new(Self {
            result,
            path: Arc::clone(&decision.selected_target),
            retry_count: decision.retry_count,
            provider: executor.log.provider,
            model: executor.log.model.clone(),
        }))
    }

    /// Returns the result, and makes the log describe its target again.
    pub fn restore(self, executor: &mut RouteExecutor<'_>) -> Result<UpstreamResponse> {
        let Self { result, path, retry_count, provider, model } = self;
        executor.update_decision(|decision| (decision.selected_target, decision.retry_count) = (path, retry_count));
        (executor.log.provider, executor.log.model) = (provider, model);
        // The response was charged when the next target was tried.
        if let Some(holds) = &mut executor.log.limits {
            holds.end_attempt(now_ms());
            executor.log.is_sent = false;
        }
        result
    }
}
