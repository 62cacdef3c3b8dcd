//! The way out: where a request goes, over which connection, and the answer as it comes. The only module that opens sockets.

mod address;
mod connection;
mod http1;
mod origin;
mod pool;
mod tls;

use std::{io, time::Duration};

use bytes::Bytes;

pub use http1::{AnswerBody, AnswerHead};
pub use origin::{Base, Origin};

use crate::{
    body::Body,
    error::{Error, Problem, Result},
    settings::Settings,
};
use connection::Connection;

/// A request ready to be written: its head rendered, its body as it came.
#[derive(Debug)]
pub struct Outgoing {
    /// Request line and header fields, the blank line included.
    pub head: Vec<u8>,
    pub body: Body,
    pub shape: Shape,
    /// Sending it twice does no harm (RFC 9110 §9.2.2, or an idempotency key).
    pub replayable: bool,
}

/// What the head says of the bodies either way.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shape {
    /// The request's length is unknown: it is sent chunked.
    pub chunked: bool,
    /// No body comes back, whatever the header fields say.
    pub bodiless: bool,
}

/// An answer whose head has come.
#[derive(Debug)]
pub struct Incoming {
    pub head: AnswerHead,
    pub body: AnswerBody,
}

/// Opens connections, keeps them, and speaks over them.
pub struct Upstream {
    pool: pool::Pool,
    dialer: connection::Dialer,
    idle: Duration,
}

impl Upstream {
    pub fn new(settings: &Settings) -> std::result::Result<Self, Vec<Problem>> {
        Ok(Self {
            pool: pool::Pool::default(),
            dialer: connection::Dialer::new(settings)?,
            idle: Duration::from_millis(settings.idle_timeout_ms),
        })
    }

    /// Sends a request and waits for the head of its answer. The caller bounds the wait.
    pub async fn send(&self, origin: &Origin, request: Outgoing) -> Result<Incoming> {
        let Outgoing { head, body, shape, replayable } = request;
        let home = self.pool.home(origin);
        if let Some(mut connection) = home.take() {
            // A kept connection may have been closed while the request was on its way; what may be sent twice is.
            let again = match &body {
                Body::Whole(bytes) if replayable => Some(Body::Whole(bytes.clone())),
                _ => None,
            };
            match (http1::exchange(&mut connection, &head, body, shape).await, again) {
                (Ok(head), _) => return Ok(self.incoming(head, connection, home)),
                (Err(error), None) => return Err(error),
                (Err(_), Some(body)) => return self.send_fresh(origin, &head, body, shape).await,
            }
        }
        self.send_fresh(origin, &head, body, shape).await
    }

    /// Forgets the connections that were idle for too long.
    pub fn reap(&self) {
        self.pool.reap();
    }

    pub fn idle_connections(&self) -> usize {
        self.pool.len()
    }

    async fn send_fresh(&self, origin: &Origin, head: &[u8], body: Body, shape: Shape) -> Result<Incoming> {
        let mut connection = self.dialer.connect(origin).await?;
        let head = http1::exchange(&mut connection, head, body, shape).await?;
        Ok(self.incoming(head, connection, self.pool.home(origin)))
    }

    fn incoming(&self, head: AnswerHead, connection: Connection, home: pool::Home) -> Incoming {
        let home = head.reusable.then_some(home);
        let body = AnswerBody::new(connection, head.framing, home, self.idle);
        Incoming { head, body }
    }
}

/// Reads a body to its end; `None` where it is longer than `limit` (what was read is put back to be read again).
pub async fn collect(body: &mut AnswerBody, limit: usize) -> Result<Option<Bytes>> {
    let Some(first) = body.next().await.transpose()? else { return Ok(Some(Bytes::new())) };
    if body.is_done() {
        return Ok(Some(first));
    }
    let mut whole = Vec::with_capacity(body.expected().unwrap_or(first.len() * 2).min(limit));
    whole.extend_from_slice(&first);
    while let Some(piece) = body.next().await.transpose()? {
        whole.extend_from_slice(&piece);
        if whole.len() > limit {
            body.put_back(Bytes::from(whole));
            return Ok(None);
        }
    }
    Ok(Some(Bytes::from(whole)))
}

fn broke(error: &io::Error) -> Error {
    Error::UpstreamBroke { cause: error.to_string() }
}
