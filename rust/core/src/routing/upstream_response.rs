//! What came back from a target, as long as it is not decided whether the caller gets it.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use penstock_llm::{
    api_format::{Dialect, is_closed},
    operation::Operation,
    stream::sse,
    usage::Meter,
};

use crate::{
    error::{Error, Result},
    gateway,
    ingress::{body::Body, headers::Headers},
    process::{coarse_timer::Grace, deadline::Deadline},
    resolve::{target::Target, target_resolver::Call},
    response::{
        delivery::{self, Pieces, Served},
        outgoing::{Read, Reading},
    },
    state::shared::{
        memory_budget::{Share, Stored},
        response_cache::Kept,
    },
    upstream::{self, AnswerBody, AnswerHead, Incoming},
};

/// The rest of an answer that nobody wants is read up to this, so that its connection can be used again.
const MOST_DISCARDED: usize = 16 * 1024;
const DISCARD_WAIT: Duration = Duration::from_millis(50);

/// A length that is too short makes a whole answer of half of one.
fn refuse_fragment(head: &AnswerHead, bytes: &[u8]) -> Result<()> {
    let is_json = head.headers.is_json() && delivery::is_plain(&head.headers);
    if head.status < 300 && is_json && !bytes.is_empty() && !is_closed(bytes) {
        return Err(Error::UpstreamBroke { cause: "what it sent as JSON is none".into() });
    }
    Ok(())
}

/// How providers call it when their safety system refuses a request.
const POLICIES: [&str; 4] =
    ["content_policy_violation", "content_filter", "moderation_blocked", "ResponsibleAIPolicyViolation"];

fn names_policy(body: &[u8]) -> bool {
    let Ok(said) = serde_json::from_slice::<serde_json::Value>(body) else { return false };
    let error = &said["error"];
    [&error["code"], &error["type"], &error["innererror"]["code"]]
        .into_iter()
        .filter_map(serde_json::Value::as_str)
        .any(|code| POLICIES.contains(&code))
}

/// A stream that has come to its end without saying how it ended, or that said it failed.
fn refuse_unfinished(read: &Read, ends_with_event: bool, bytes: &[u8]) -> Result<()> {
    if read.failed {
        let told = last_error(bytes).unwrap_or_else(|| "it did not say why".to_owned());
        return Err(Error::UpstreamBroke { cause: format!("its stream ended in an error: {told}") });
    }
    if read.told == Some(true) || !ends_with_event {
        return Ok(());
    }
    Err(Error::UpstreamBroke { cause: "its stream ended before it was complete".into() })
}

/// So much of a provider's own words is told.
const MOST_TOLD: usize = 300;

fn last_error(events: &[u8]) -> Option<String> {
    let said = |event| serde_json::from_slice::<serde_json::Value>(&sse::data(event)?).ok();
    let message = |said: serde_json::Value| said["error"]["message"].as_str().map(ToOwned::to_owned);
    let told = sse::split(events).filter_map(|event| said(event).and_then(message)).last();
    told.map(|told| told.chars().take(MOST_TOLD).collect())
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
    pub(crate) async fn begin(&mut self, operation: Operation, patience: Duration) -> Result<()> {
        let Self { incoming: Incoming { head, body }, deadline, .. } = self;
        // Both pinned here: what an async function takes it keeps twice.
        if delivery::is_small(Pieces::of(operation, head, body.expected()), head, body.expected()) {
            let whole = {
                let collecting = pin!(upstream::collect(body, delivery::WHOLE));
                deadline.bound(collecting).await?
            };
            if let Some(bytes) = whole {
                refuse_fragment(head, &bytes)?;
                *body = AnswerBody::whole(bytes);
            }
        } else {
            let first = pin!(body.begun());
            let begun = pin!(deadline.bound(first));
            if let Ok(begun) = tokio::time::timeout(patience, begun).await {
                begun?;
            }
        }
        Ok(())
    }

    /// Whether it is a stream of events in the making.
    pub(crate) fn is_stream(&self) -> bool {
        self.status() == 200 && delivery::is_events(self.headers())
    }

    /// What it consists of, where it is a stream in the making.
    pub(crate) fn pieces(&self, operation: Operation) -> Option<Pieces> {
        let Incoming { head, body } = &self.incoming;
        Pieces::of(operation, head, body.expected()).filter(|_| head.status == 200)
    }

    /// Once all of its pieces are there, good to the end; and whether that was so. One for which there is no room goes on
    /// as it comes.
    pub(crate) async fn hold(&mut self, pieces: Pieces, asked: Operation, mut share: Share) -> Result<bool> {
        let Self { incoming: Incoming { head, body }, dialect, .. } = self;
        let mut reading = match pieces {
            Pieces::Events => Reading::Events(Meter::of(*dialect, asked).into()),
            Pieces::Frames => Reading::Frames(Box::default()),
            Pieces::Items => Reading::Items(Box::default()),
        };
        let is_plain = delivery::is_plain(&head.headers);
        let mut bytes = Vec::new();
        while let Some(piece) = body.next().await.transpose()? {
            if is_plain {
                reading.feed(&piece);
            }
            bytes.extend_from_slice(&piece);
            if !share.grow(piece.len()) {
                body.put_back(bytes.into());
                return Ok(false);
            }
        }
        if is_plain {
            refuse_unfinished(&reading.finish(*dialect, false), asked.ends_with_event(), &bytes)?;
        }
        *body = AnswerBody::whole(Bytes::from_owner(Stored { bytes, share }));
        Ok(true)
    }

    /// Whether its provider refused what was asked, and not only to answer it: others are not to be asked instead.
    pub(crate) fn is_policy_refusal(&self) -> bool {
        let body = || self.incoming.body.at_hand();
        matches!(self.status(), 400 | 403) && body().is_some_and(|body| names_policy(body))
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
        let mut headers = Headers::with_capacity(16);
        headers.push(b"content-type", kind.as_bytes());
        let incoming = Incoming { head: AnswerHead { status: 200, headers }, body: AnswerBody::whole(body) };
        // There is nothing to wait for.
        Self::new(incoming, dialect, Deadline::new(Duration::MAX, &Body::empty(), grace))
    }
}
