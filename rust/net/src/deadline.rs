//! Deadline for a provider's response, on the monotonic clock. All steps of an exchange with a provider use it.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep_until};

use crate::{
    body::{Body, UploadProgress},
    coarse_timer::{self, CoarseTimer},
    error::Error,
};

/// Time limit that is used instead of one whose end is so late that the clock cannot represent it.
const FAR_FUTURE: Duration = Duration::from_hours(30 * 365 * 24);

/// Time at which a provider's response is overdue. The limit counts from when the provider has the complete request.
/// During the upload, it counts from the last chunk that the provider accepted. The wait for the client's next chunk
/// does not count.
#[derive(Debug)]
pub struct Deadline {
    limit: Duration,
    expires_at: Instant,
    upload: Option<UploadProgress>,
    /// Coarse timer that runs before the exact one; `None` once it has ended. Most responses arrive before that and
    /// need no exact timer.
    coarse_timer: Option<CoarseTimer>,
}

impl Deadline {
    /// Starts a deadline now, for a request with this body.
    pub fn new(limit: Duration, body: &Body, timer: &CoarseTimer) -> Self {
        let coarse_timer = (limit > coarse_timer::MAX_WAIT).then(|| timer.clone());
        Self { limit, expires_at: saturating_add(Instant::now(), limit), upload: body.upload_progress(), coarse_timer }
    }

    /// Runs a part of the exchange with the provider. Returns `Error::Timeout` if the deadline passes first.
    pub async fn enforce<T, E: From<Error>>(&mut self, future: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        tokio::select! {
            biased;
            done = future => done,
            () = self.wait_expired() => Err(Error::Timeout { milliseconds: self.limit.as_millis() as u64 }.into()),
        }
    }

    /// Marks the response as begun. The deadline no longer depends on the rest of the upload.
    #[must_use]
    pub fn response_started(mut self) -> Self {
        self.refresh();
        self.upload = None;
        self
    }

    /// Returns the total time limit.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the time at which a response that has begun is overdue.
    pub fn expires_at(&self) -> Instant {
        self.expires_at
    }

    async fn wait_expired(&mut self) {
        if let Some(timer) = &self.coarse_timer {
            timer.wait_briefly().await;
            self.coarse_timer = None;
        }
        loop {
            sleep_until(self.expires_at).await;
            // The deadline is recalculated when its timer fires, not with every chunk.
            self.refresh();
            if self.expires_at <= Instant::now() {
                return;
            }
        }
    }

    fn refresh(&mut self) {
        if let Some(upload) = &self.upload {
            self.expires_at = saturating_add(upload.last_read_at().unwrap_or_else(Instant::now), self.limit);
        }
    }
}

/// Returns `start + limit`, or a time far in the future if the clock cannot represent the sum.
pub fn saturating_add(start: Instant, limit: Duration) -> Instant {
    start.checked_add(limit).unwrap_or_else(|| start + FAR_FUTURE)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use bytes::Bytes;

    use super::*;
    use crate::body::{BodyEnd, Feed, Feeder, feed_channel};

    const LIMIT: Duration = Duration::from_millis(40);

    fn start_upload() -> (Feeder, Box<Feed>, Deadline) {
        let (feeder, feed) = feed_channel(|| ());
        let body = Body::Streamed(feed, None);
        let deadline = Deadline::new(LIMIT, &body, &CoarseTimer::default());
        let Body::Streamed(feed, _) = body else { panic!("it is being fed") };
        (feeder, feed, deadline)
    }

    async fn is_timed_out(deadline: &mut Deadline) -> bool {
        matches!(deadline.enforce(pending::<Result<(), Error>>()).await, Err(Error::Timeout { milliseconds: 40 }))
    }

    #[tokio::test(start_paused = true)]
    async fn silent_provider_times_out_at_the_limit() {
        let start = Instant::now();
        assert!(is_timed_out(&mut Deadline::new(LIMIT, &Body::empty(), &CoarseTimer::default())).await);
        assert!((LIMIT..LIMIT * 2).contains(&start.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn unrepresentable_limit_never_expires() {
        let mut deadline = Deadline::new(Duration::MAX, &Body::empty(), &CoarseTimer::default());
        assert!(tokio::time::timeout(FAR_FUTURE / 2, is_timed_out(&mut deadline)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_client_does_not_count() {
        let (feeder, mut feed, mut deadline) = start_upload();
        let sending = async {
            while let Some(chunk) = feed.next().await {
                chunk?;
            }
            Ok::<_, Error>(Instant::now())
        };
        let uploading = async {
            for _ in 0..5 {
                tokio::time::sleep(LIMIT * 2).await;
                feeder.push(Bytes::from_static(b"piece"));
            }
            feeder.finish(BodyEnd::Complete);
        };
        let (sent, ()) = tokio::join!(deadline.enforce(sending), uploading);
        let sent = sent.unwrap();
        // From here on, the wait is for the provider.
        assert!(is_timed_out(&mut deadline).await);
        assert!(sent.elapsed() < LIMIT * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn early_response_gets_the_full_limit() {
        let (_feeder, mut feed, mut deadline) = start_upload();
        let early = async {
            tokio::select! { _ = feed.next() => (), () = tokio::time::sleep(LIMIT * 3) => () }
            Ok::<_, Error>(())
        };
        deadline.enforce(early).await.unwrap();
        let start = Instant::now();
        assert!(is_timed_out(&mut deadline.response_started()).await);
        assert!((LIMIT..LIMIT * 2).contains(&start.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_upload_times_out_at_the_limit() {
        let (feeder, mut feed, mut deadline) = start_upload();
        feeder.push(Bytes::from_static(b"piece"));
        feeder.push(Bytes::from_static(b"piece"));
        let start = Instant::now();
        let stuck = async {
            drop(feed.next().await);
            pending::<Result<(), Error>>().await
        };
        assert!(deadline.enforce(stuck).await.is_err());
        assert!(start.elapsed() < LIMIT * 2);
    }
}
