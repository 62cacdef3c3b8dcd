//! Figures of one request for the code that sent it. A comparison of prompts reports what each of its requests cost, which
//! is known only when the record closes.

use std::{sync::OnceLock, time::Duration};

use tokio::sync::Notify;
use uuid::Uuid;

/// Figures of a request whose record is closed.
#[derive(Debug, Clone, Copy)]
pub struct RecordFigures {
    /// Id of the record, by which its log is found.
    pub id: Uuid,
    pub took: Duration,
    /// `None` if the model has no price.
    pub nanodollars: Option<u64>,
    /// Tokens of input and output; `None` if they are not known.
    pub tokens: Option<(u64, u64)>,
}

/// Receives the figures of one request.
#[derive(Debug, Default)]
pub struct RecordObserver {
    figures: OnceLock<RecordFigures>,
    closed: Notify,
}

impl RecordObserver {
    /// Stores the figures. Called once, when the record closes.
    pub fn report(&self, figures: RecordFigures) {
        self.figures.set(figures).ok();
        self.closed.notify_one();
    }

    /// Waits for the figures: tokens that the provider did not report are counted after the response was sent.
    pub async fn wait(&self, limit: Duration) -> Option<RecordFigures> {
        if self.figures.get().is_none() {
            tokio::time::timeout(limit, self.closed.notified()).await.ok();
        }
        self.figures.get().copied()
    }
}
