//! How long a body's caller has been waited for.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

/// Measures how long is waited for a caller.
#[derive(Default)]
pub(crate) struct WaitClock {
    /// In all, before the piece that is waited for now.
    pub(crate) total_wait: Duration,
    waiting_since: Option<Instant>,
    /// One for a body, not one for each piece: where pieces came meanwhile it rings too early and is set again.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WaitClock {
    pub(crate) fn stop_waiting(&mut self) {
        if let Some(since) = self.waiting_since.take() {
            self.total_wait += since.elapsed();
        }
    }

    pub(crate) fn poll_expired(&mut self, context: &mut Context<'_>, patience: Duration) -> Poll<()> {
        let deadline = *self.waiting_since.get_or_insert_with(Instant::now) + patience;
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
