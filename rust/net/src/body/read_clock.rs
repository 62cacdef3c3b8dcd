//! Clock that measures how long the gateway has waited for the client to send a request body.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

/// Measures the time spent waiting for the client.
#[derive(Default)]
pub(crate) struct WaitClock {
    /// Total wait before the current chunk.
    pub(crate) total_wait: Duration,
    waiting_since: Option<Instant>,
    /// One timer for the whole body, because one per chunk would cost more. If chunks have arrived since it was set, it
    /// fires too early and is reset.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WaitClock {
    pub(crate) fn stop_waiting(&mut self) {
        if let Some(since) = self.waiting_since.take() {
            self.total_wait += since.elapsed();
        }
    }

    pub(crate) fn poll_expired(&mut self, context: &mut Context<'_>, max_wait: Duration) -> Poll<()> {
        let deadline = *self.waiting_since.get_or_insert_with(Instant::now) + max_wait;
        let alarm = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if deadline < alarm.deadline() {
            alarm.as_mut().reset(deadline);
        }
        loop {
            ready!(alarm.as_mut().poll(context));
            if alarm.deadline() >= deadline {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(deadline);
        }
    }
}
