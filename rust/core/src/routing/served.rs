//! What came back from a target, as long as it is not decided whether the caller gets it.

use std::time::Duration;

use bytes::Bytes;
use penstock_llm::dialect::Dialect;

use crate::{
    body::Body,
    call::{Call, Target},
    deadline::Deadline,
    delivery::{self, Served},
    error::{Error, Result},
    gateway,
    grace::Grace,
    headers::{self, Headers},
    shared::answers::Kept,
    upstream::{self, AnswerBody, AnswerHead, Incoming},
};

/// The rest of an answer that nobody wants is read up to this, so that its connection can be used again.
const MOST_DISCARDED: usize = 16 * 1024;
const DISCARD_WAIT: Duration = Duration::from_millis(50);

/// A length that is too short makes a whole answer of half of one.
fn refuse_fragment(head: &AnswerHead, bytes: &[u8]) -> Result<()> {
    let is_json = head.headers.get("content-type").is_some_and(headers::is_json) && delivery::is_plain(&head.headers);
    let is_whole = || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
    if head.status < 300 && is_json && !bytes.is_empty() && !is_whole() {
        return Err(Error::UpstreamBroke { cause: "what it sent as JSON is none".into() });
    }
    Ok(())
}

impl Served {
    pub(crate) fn status(&self) -> u16 {
        self.incoming.head.status
    }

    pub(crate) fn headers(&self) -> &Headers {
        &self.incoming.head.headers
    }

    /// Once there is something of its body, or all of it where it is small: until then nothing is passed on, and what
    /// breaks off has failed. A stream that says nothing for so long has begun all the same.
    pub(crate) async fn begun(mut self, patience: Duration) -> Result<Self> {
        let Self { incoming: Incoming { head, body }, deadline, .. } = &mut self;
        if delivery::is_small(&head.headers, body.expected()) {
            if let Some(bytes) = deadline.bound(upstream::collect(body, delivery::WHOLE)).await? {
                refuse_fragment(head, &bytes)?;
                *body = AnswerBody::whole(bytes);
            }
        } else if let Ok(begun) = tokio::time::timeout(patience, deadline.bound(body.begun())).await {
            begun?;
        }
        Ok(self)
    }

    /// Nobody wants it: its connection may still serve others.
    pub(crate) async fn discard(mut self) {
        let body = &mut self.incoming.body;
        if body.expected().is_some_and(|length| length <= MOST_DISCARDED) {
            drop(tokio::time::timeout(DISCARD_WAIT, upstream::collect(body, MOST_DISCARDED)).await);
        }
    }

    /// An answer that was kept.
    pub(crate) fn kept(kept: Kept, call: &Call<'_>, target: &Target<'_>, grace: &Grace) -> Self {
        Self::at_hand(&kept.kind, kept.body, gateway::dialect_of(call, target), grace)
    }

    /// An answer of the gateway's own.
    pub(crate) fn ours(json: Bytes, dialect: Dialect, grace: &Grace) -> Self {
        Self::at_hand("application/json", json, dialect, grace)
    }

    fn at_hand(kind: &str, body: Bytes, dialect: Dialect, grace: &Grace) -> Self {
        let mut headers = Headers::with_capacity(12);
        headers.push(b"content-type", kind.as_bytes());
        let incoming = Incoming { head: AnswerHead { status: 200, headers }, body: AnswerBody::whole(body) };
        // There is nothing to wait for.
        Self { incoming, dialect, deadline: Deadline::new(Duration::MAX, &Body::empty(), grace) }
    }
}
