//! Work before conditions are evaluated that takes too long for the thread of a request: picking fields of a large body,
//! and matching expensive patterns.

use penstock_llm::json::edit::pick_values;

use super::{executor::RouteExecutor, pattern_jobs::PatternJobs};
use crate::{error::Result, response::offload::run_blocking};

impl RouteExecutor<'_> {
    /// Picks the fields that conditions read, and matches expensive patterns.
    pub async fn prepare_conditions(&mut self) -> Result<()> {
        self.pick_condition_fields().await?;
        if self.plan.config.has_patterns && self.pattern_results.is_none() {
            let jobs = PatternJobs::collect(&self.plan.config.root, &self.condition_input())?;
            if let Some(jobs) = jobs {
                // Boxed, because an inline future would enlarge the future of every request.
                self.pattern_results = Some(Box::pin(jobs.run(self.resolver.caller.workspace())).await?.into());
            }
        }
        Ok(())
    }

    /// Picks the fields that conditions read from a large body on another thread.
    pub async fn pick_condition_fields(&mut self) -> Result<()> {
        if self.condition_params.is_none() {
            let (bytes, names) = (self.replay_body.as_json().cloned(), self.plan.config.condition_params.clone());
            let pick = move || pick_values(&bytes.unwrap_or_default(), &names);
            // Boxed, because an inline future would enlarge the future of every request.
            self.condition_params = Some(Box::pin(run_blocking(pick)).await?);
        }
        Ok(())
    }
}
