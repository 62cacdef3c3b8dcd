//! The time that a provider has: one type for every wait for its answer, on a clock that nobody sets.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep_until};

use crate::process::coarse_timer::Grace;

use crate::{
    error::{Error, Result},
    ingress::body::{Body, Upload},
};

/// Further away than anybody waits.
const FAR: Duration = Duration::from_hours(30 * 365 * 24);

/// The moment at which a provider's time is up. It counts from when the provider has the whole request; while that is
/// still on its way, from the last piece that the provider took. A wait for the caller's next piece does not count.
#[derive(Debug)]
pub struct Deadline {
    limit: Duration,
    at: Instant,
    upload: Option<Upload>,
    /// Most answers come within it, and need no timer.
    grace: Option<Grace>,
}

impl Deadline {
    /// From now on, for a request with this body.
    pub fn new(limit: Duration, body: &Body, grace: &Grace) -> Self {
        let grace = (limit > crate::process::coarse_timer::LONGEST).then(|| grace.clone());
        Self { limit, at: after(Instant::now(), limit), upload: body.upload(), grace }
    }

    /// Does some of the work of being answered, and fails where the time is up first.
    pub async fn bound<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            done = work => done,
            () = self.passed() => Err(Error::Timeout { milliseconds: self.limit.as_millis() as u64 }),
        }
    }

    /// The answer has begun: what is still to be uploaded, if anything, is of no more interest.
    #[must_use]
    pub fn answered(mut self) -> Self {
        self.set();
        self.upload = None;
        self
    }

    /// How long is waited in all.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// When the time of an answer that has begun is up.
    pub fn end(&self) -> Instant {
        self.at
    }

    async fn passed(&mut self) {
        if let Some(grace) = &self.grace {
            grace.over().await;
            self.grace = None;
        }
        loop {
            sleep_until(self.at).await;
            // The clock is set when it rings, not with every piece.
            self.set();
            if self.at <= Instant::now() {
                return;
            }
        }
    }

    fn set(&mut self) {
        if let Some(upload) = &self.upload {
            self.at = after(upload.last_taken().unwrap_or_else(Instant::now), self.limit);
        }
    }
}

/// A moment that may be too far away to be told.
pub fn after(start: Instant, limit: Duration) -> Instant {
    start.checked_add(limit).unwrap_or_else(|| start + FAR)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use bytes::Bytes;

    use super::*;
    use crate::ingress::body::{End, Feed, Feeder, feed};

    const LIMIT: Duration = Duration::from_millis(40);

    fn upload() -> (Feeder, Box<Feed>, Deadline) {
        let (feeder, feed) = feed(|| ());
        let body = Body::Fed(feed, None);
        let deadline = Deadline::new(LIMIT, &body, &Grace::default());
        let Body::Fed(feed, _) = body else { panic!("it is being fed") };
        (feeder, feed, deadline)
    }

    async fn time_is_up(deadline: &mut Deadline) -> bool {
        matches!(deadline.bound(pending::<Result<()>>()).await, Err(Error::Timeout { milliseconds: 40 }))
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_silent_has_its_time_and_no_more() {
        let start = Instant::now();
        assert!(time_is_up(&mut Deadline::new(LIMIT, &Body::empty(), &Grace::default())).await);
        assert!((LIMIT..LIMIT * 2).contains(&start.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_beyond_all_times_is_none() {
        let mut deadline = Deadline::new(Duration::MAX, &Body::empty(), &Grace::default());
        assert!(tokio::time::timeout(FAR / 2, time_is_up(&mut deadline)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_the_caller_does_not_count() {
        let (feeder, mut feed, mut deadline) = upload();
        let sending = async {
            while let Some(piece) = feed.next().await {
                piece?;
            }
            Ok(Instant::now())
        };
        let uploading = async {
            for _ in 0..5 {
                tokio::time::sleep(LIMIT * 2).await;
                feeder.push(Bytes::from_static(b"piece"));
            }
            feeder.end(End::Complete);
        };
        let (sent, ()) = tokio::join!(deadline.bound(sending), uploading);
        let sent = sent.unwrap();
        // From here on it is the provider who is waited for.
        assert!(time_is_up(&mut deadline).await);
        assert!(sent.elapsed() < LIMIT * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_began_before_the_end_of_the_upload_has_its_time_as_well() {
        let (_feeder, mut feed, mut deadline) = upload();
        let early = async {
            tokio::select! { _ = feed.next() => (), () = tokio::time::sleep(LIMIT * 3) => () }
            Ok(())
        };
        deadline.bound(early).await.unwrap();
        let start = Instant::now();
        assert!(time_is_up(&mut deadline.answered()).await);
        assert!((LIMIT..LIMIT * 2).contains(&start.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_takes_no_further_piece_is_not_waited_for_beyond_the_limit() {
        let (feeder, mut feed, mut deadline) = upload();
        feeder.push(Bytes::from_static(b"piece"));
        feeder.push(Bytes::from_static(b"piece"));
        let start = Instant::now();
        let stuck = async {
            drop(feed.next().await);
            pending::<Result<()>>().await
        };
        assert!(deadline.bound(stuck).await.is_err());
        assert!(start.elapsed() < LIMIT * 2);
    }
}
