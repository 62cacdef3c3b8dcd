//! The way out: where a request goes, over which connection, and the answer as it comes. The only module that opens sockets to others, but for Redis's client.

mod address;
mod connection;
mod dialer;
mod http1;
mod http2;
pub(crate) mod metadata_service;
mod origin;
mod pool;
mod proxy;
pub(crate) mod record_feed;
mod resolver;
pub(crate) mod response_body;
pub(crate) mod tls;
mod websocket;

use std::{io, time::Duration};

use bytes::Bytes;

pub use crate::upstream::metadata_service::Service;
pub use crate::upstream::record_feed::Feed;
pub use crate::upstream::response_body::{AnswerBody, Later};
pub use origin::{Base, Origin};
pub use resolver::LookUp;
pub use websocket::{Handshake, LARGEST_MESSAGE, Socket, Upgraded};

use crate::upstream::response_body::Patience;
use crate::{
    error::{Error, Problem, Result},
    ingress::{body::Body, headers::Headers},
    process::settings::Settings,
};
use connection::Connection;
use dialer::Dialled;
use http2::Lease;
use pool::Home;

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

/// Status and header fields of an answer.
#[derive(Debug)]
pub struct AnswerHead {
    pub status: u16,
    pub headers: Headers,
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
    dialer: dialer::Dialer,
    patience: Patience,
}

impl Upstream {
    pub fn new(settings: &Settings) -> std::result::Result<Self, Vec<Problem>> {
        Self::with_look_up(settings, resolver::system())
    }

    /// With another way to look up names than the system's.
    pub fn with_look_up(settings: &Settings, look_up: LookUp) -> std::result::Result<Self, Vec<Problem>> {
        Ok(Self {
            pool: pool::Pool::new(settings.http2),
            dialer: dialer::Dialer::new(settings, look_up)?,
            patience: Patience::new(
                Duration::from_millis(settings.idle_timeout_ms),
                Duration::from_millis(settings.stream_timeout_ms),
            ),
        })
    }

    /// Sends a request and waits for the head of its answer. The caller bounds the wait.
    pub async fn send(&self, origin: &Origin, mut request: Outgoing) -> Result<Incoming> {
        if let Some(proxy) = self.dialer.plain_proxy(origin) {
            request.head = proxy.absolute(&request.head, origin);
        }
        let home = self.pool.home(origin);
        if let Some(mut connection) = home.take() {
            let Outgoing { head, body, shape, replayable } = request;
            // A kept connection may have been closed while the request was on its way; what may be sent twice is.
            let again = if replayable { body.again() } else { None };
            match (http1::exchange(&mut connection, &head, body, shape).await, again) {
                (Ok(head), _) => return Ok(self.incoming(head, connection, home)),
                (Err(error), None) => return Err(error),
                (Err(_), Some(body)) => request = Outgoing { head, body, shape, replayable },
            }
        }
        // Boxed: what is seldom walked must not make room on every request's walk.
        match Box::pin(self.line(origin, &home)).await? {
            Line::Own(mut connection) => {
                let head = http1::exchange(&mut connection, &request.head, request.body, request.shape).await?;
                Ok(self.incoming(head, connection, home))
            }
            Line::Shared(lease) => Box::pin(self.send_shared(origin, &home, lease, request)).await,
        }
    }

    /// Whether an operator listed this host.
    pub fn trusts(&self, host: &str) -> bool {
        self.dialer.trusts(host)
    }

    /// Forgets the connections that were idle for too long.
    pub fn reap(&self) {
        self.pool.reap();
    }

    pub fn idle_connections(&self) -> usize {
        self.pool.len()
    }

    /// A place on a connection that is shared, or a new connection.
    async fn line(&self, origin: &Origin, home: &Home) -> Result<Line> {
        if let Some(lease) = home.lease() {
            return Ok(Line::Shared(lease));
        }
        let turn = if home.shares() { Some(home.turn().await?) } else { None };
        if let Some(lease) = home.lease() {
            return Ok(Line::Shared(lease));
        }
        // Whoever had the turn before may have found that there is nothing to share: then nobody waits for nobody.
        let mut turn = turn.filter(|_| home.shares());
        let made = self.new_line(origin, home).await;
        if let (Some(turn), Err(error @ Error::ConnectTimeout { .. })) = (&mut turn, &made) {
            turn.fail(error);
        }
        made
    }

    async fn new_line(&self, origin: &Origin, home: &Home) -> Result<Line> {
        let dialled = self.dialer.connect(origin).await;
        home.set_shares(matches!(dialled, Ok(Dialled::Http2(_))));
        match dialled? {
            Dialled::Http1(connection) => Ok(Line::Own(connection)),
            Dialled::Http2(stream) => {
                let (shared, lease) = http2::open(stream, http2::Beat::default()).await?;
                home.share(shared);
                Ok(Line::Shared(lease))
            }
        }
    }

    /// Over HTTP/2. What the provider did not begin to work on, or what may be done twice, is sent once more.
    async fn send_shared(&self, origin: &Origin, home: &Home, lease: Lease, request: Outgoing) -> Result<Incoming> {
        let Outgoing { head, body, shape, replayable } = request;
        let again = body.again();
        let failed = match http2::exchange(lease, &head, body, shape, self.patience).await {
            Ok(incoming) => return Ok(incoming),
            Err(failed) => failed,
        };
        let Some(body) = again.filter(|_| failed.untouched || replayable) else { return Err(failed.error) };
        match self.line(origin, home).await? {
            Line::Own(mut connection) => {
                let head = http1::exchange(&mut connection, &head, body, shape).await?;
                Ok(self.incoming(head, connection, self.pool.home(origin)))
            }
            Line::Shared(lease) => {
                http2::exchange(lease, &head, body, shape, self.patience).await.map_err(|failed| failed.error)
            }
        }
    }

    fn incoming(&self, head: http1::Head, connection: Connection, home: Home) -> Incoming {
        let home = head.reusable.then_some(home);
        let body = http1::Reading::new(connection, head.framing, home, self.patience).into();
        Incoming { head: head.answer, body }
    }
}

/// What a body that still comes owes of the length that the head declares. One that is shorter or longer would make what
/// follows on its connection part of it, or part of it a request.
struct Owed(Option<u64>);

impl Owed {
    fn pay(&mut self, piece: &[u8]) -> Result<()> {
        let Some(owed) = &mut self.0 else { return Ok(()) };
        *owed = owed.checked_sub(piece.len() as u64).ok_or(Error::BadFraming)?;
        Ok(())
    }

    fn end(&self) -> Result<()> {
        if self.0.is_none_or(|owed| owed == 0) { Ok(()) } else { Err(Error::BrokenBody) }
    }
}

/// What a request is sent over.
enum Line {
    Own(Connection),
    Shared(Lease),
}

/// What is collected before others are let in.
const TURN: usize = 256 * 1024;
/// What a provider declares reserves no more than this: it has yet to send it.
const MOST_RESERVED: usize = 1024 * 1024;

/// Reads a body to its end; `None` where it is longer than `limit` (what was read is put back to be read again).
pub async fn collect(body: &mut AnswerBody, limit: usize) -> Result<Option<Bytes>> {
    let Some(first) = body.next().await.transpose()? else { return Ok(Some(Bytes::new())) };
    if first.len() > limit {
        body.put_back(first);
        return Ok(None);
    }
    if body.is_done() {
        return Ok(Some(first));
    }
    let mut whole = Vec::with_capacity(body.expected().unwrap_or(first.len() * 2).min(limit).min(MOST_RESERVED));
    whole.extend_from_slice(&first);
    let mut turn = 0;
    while let Some(piece) = body.next().await.transpose()? {
        whole.extend_from_slice(&piece);
        if whole.len() - turn > TURN {
            // A snapshot is large, and all of it is there at once: others are let in between.
            turn = whole.len();
            tokio::task::yield_now().await;
        }
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
