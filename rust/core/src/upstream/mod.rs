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

pub use crate::upstream::metadata_service::MetadataService;
pub use crate::upstream::record_feed::RecordFeed;
pub use crate::upstream::response_body::{DeferredBody, ResponseBody};
pub use origin::{BaseUrl, Origin};
pub use resolver::LookupFn;
pub use websocket::{Handshake, MAX_MESSAGE_BYTES, ProviderWebSocket, UpgradeResult};

use crate::upstream::response_body::ReadTimeout;
use crate::{
    error::{Error, Problem, Result},
    ingress::{body::Body, headers::Headers},
    process::settings::Settings,
};
use connection::Connection;
use dialer::NewConnection;
use http2::Lease;
use pool::OriginPool;

/// A request ready to be written: its head rendered, its body as it came.
#[derive(Debug)]
pub struct OutgoingRequest {
    /// Request line and header fields, the blank line included.
    pub head: Vec<u8>,
    pub body: Body,
    pub body_framing: BodyFraming,
    /// Sending it twice does no harm (RFC 9110 §9.2.2, or an idempotency key).
    pub is_replayable: bool,
}

/// What the head says of the bodies either way.
#[derive(Debug, Clone, Copy, Default)]
pub struct BodyFraming {
    /// The request's length is unknown: it is sent chunked.
    pub is_chunked: bool,
    /// No body comes back, whatever the header fields say.
    pub is_bodiless: bool,
}

/// Status and header fields of an answer.
#[derive(Debug)]
pub struct ResponseHead {
    pub status: u16,
    pub headers: Headers,
}

/// An answer whose head has come.
#[derive(Debug)]
pub struct IncomingResponse {
    pub head: ResponseHead,
    pub body: ResponseBody,
}

/// Opens connections, keeps them, and speaks over them.
pub struct Upstream {
    pool: pool::Pool,
    dialer: dialer::Dialer,
    read_timeout: ReadTimeout,
}

impl Upstream {
    pub fn new(settings: &Settings) -> std::result::Result<Self, Vec<Problem>> {
        Self::with_resolver(settings, resolver::system_lookup())
    }

    /// With another way to look up names than the system's.
    pub fn with_resolver(settings: &Settings, look_up: LookupFn) -> std::result::Result<Self, Vec<Problem>> {
        Ok(Self {
            pool: pool::Pool::new(settings.http2),
            dialer: dialer::Dialer::new(settings, look_up)?,
            read_timeout: ReadTimeout::new(
                Duration::from_millis(settings.idle_timeout_ms),
                Duration::from_millis(settings.stream_timeout_ms),
            ),
        })
    }

    /// Sends a request and waits for the head of its answer. The caller bounds the wait.
    pub async fn send(&self, origin: &Origin, mut request: OutgoingRequest) -> Result<IncomingResponse> {
        if let Some(proxy) = self.dialer.forward_proxy(origin) {
            request.head = proxy.to_absolute_form(&request.head, origin);
        }
        let home = self.pool.origin_pool(origin);
        if let Some(mut connection) = home.take_idle() {
            let OutgoingRequest { head, body, body_framing: shape, is_replayable: replayable } = request;
            // A kept connection may have been closed while the request was on its way; what may be sent twice is.
            let again = if replayable { body.try_clone() } else { None };
            match (http1::exchange(&mut connection, &head, body, shape).await, again) {
                (Ok(head), _) => return Ok(self.build_response(head, connection, home)),
                (Err(error), None) => return Err(error),
                (Err(_), Some(body)) => {
                    request = OutgoingRequest { head, body, body_framing: shape, is_replayable: replayable }
                }
            }
        }
        // Boxed: what is seldom walked must not make room on every request's walk.
        match Box::pin(self.acquire_connection(origin, &home)).await? {
            RequestConnection::Exclusive(mut connection) => {
                let head = http1::exchange(&mut connection, &request.head, request.body, request.body_framing).await?;
                Ok(self.build_response(head, connection, home))
            }
            RequestConnection::Shared(lease) => Box::pin(self.send_over_http2(origin, &home, lease, request)).await,
        }
    }

    /// Whether an operator listed this host.
    pub fn is_trusted(&self, host: &str) -> bool {
        self.dialer.is_trusted(host)
    }

    /// Forgets the connections that were idle for too long.
    pub fn close_expired(&self) {
        self.pool.close_expired();
    }

    pub fn idle_connection_count(&self) -> usize {
        self.pool.connection_count()
    }

    /// A place on a connection that is shared, or a new connection.
    async fn acquire_connection(&self, origin: &Origin, home: &OriginPool) -> Result<RequestConnection> {
        if let Some(lease) = home.lease() {
            return Ok(RequestConnection::Shared(lease));
        }
        let turn = if home.is_shareable() { Some(home.lock_connect().await?) } else { None };
        if let Some(lease) = home.lease() {
            return Ok(RequestConnection::Shared(lease));
        }
        // Whoever had the turn before may have found that there is nothing to share: then nobody waits for nobody.
        let mut turn = turn.filter(|_| home.is_shareable());
        let made = self.open_connection(origin, home).await;
        if let (Some(turn), Err(error @ Error::ConnectTimeout { .. })) = (&mut turn, &made) {
            turn.record_failure(error);
        }
        made
    }

    async fn open_connection(&self, origin: &Origin, home: &OriginPool) -> Result<RequestConnection> {
        let dialled = self.dialer.connect(origin).await;
        home.set_shareable(matches!(dialled, Ok(NewConnection::Http2(_))));
        match dialled? {
            NewConnection::Http1(connection) => Ok(RequestConnection::Exclusive(connection)),
            NewConnection::Http2(stream) => {
                let (shared, lease) = http2::handshake(stream, http2::KeepAlive::default()).await?;
                home.add_shared(shared);
                Ok(RequestConnection::Shared(lease))
            }
        }
    }

    /// Over HTTP/2. What the provider did not begin to work on, or what may be done twice, is sent once more.
    async fn send_over_http2(
        &self,
        origin: &Origin,
        home: &OriginPool,
        lease: Lease,
        request: OutgoingRequest,
    ) -> Result<IncomingResponse> {
        let OutgoingRequest { head, body, body_framing: shape, is_replayable: replayable } = request;
        let again = body.try_clone();
        let failed = match http2::exchange(lease, &head, body, shape, self.read_timeout).await {
            Ok(incoming) => return Ok(incoming),
            Err(failed) => failed,
        };
        let Some(body) = again.filter(|_| failed.is_unprocessed || replayable) else { return Err(failed.error) };
        match self.acquire_connection(origin, home).await? {
            RequestConnection::Exclusive(mut connection) => {
                let head = http1::exchange(&mut connection, &head, body, shape).await?;
                Ok(self.build_response(head, connection, self.pool.origin_pool(origin)))
            }
            RequestConnection::Shared(lease) => {
                http2::exchange(lease, &head, body, shape, self.read_timeout).await.map_err(|failed| failed.error)
            }
        }
    }

    fn build_response(&self, head: http1::MessageHead, connection: Connection, home: OriginPool) -> IncomingResponse {
        let home = head.is_reusable.then_some(home);
        let body = http1::BodyReader::new(connection, head.framing, home, self.read_timeout).into();
        IncomingResponse { head: head.response, body }
    }
}

/// What a body that still comes owes of the length that the head declares. One that is shorter or longer would make what
/// follows on its connection part of it, or part of it a request.
struct RemainingLength(Option<u64>);

impl RemainingLength {
    fn subtract(&mut self, piece: &[u8]) -> Result<()> {
        let Some(owed) = &mut self.0 else { return Ok(()) };
        *owed = owed.checked_sub(piece.len() as u64).ok_or(Error::InvalidFraming)?;
        Ok(())
    }

    fn check_complete(&self) -> Result<()> {
        if self.0.is_none_or(|owed| owed == 0) { Ok(()) } else { Err(Error::IncompleteBody) }
    }
}

/// What a request is sent over.
enum RequestConnection {
    Exclusive(Connection),
    Shared(Lease),
}

/// What is collected before others are let in.
const YIELD_INTERVAL_BYTES: usize = 256 * 1024;
/// What a provider declares reserves no more than this: it has yet to send it.
const MAX_RESERVED_BYTES: usize = 1024 * 1024;

/// Reads a body to its end; `None` where it is longer than `limit` (what was read is put back to be read again).
pub async fn collect(body: &mut ResponseBody, limit: usize) -> Result<Option<Bytes>> {
    let Some(first) = body.next_chunk().await.transpose()? else { return Ok(Some(Bytes::new())) };
    if first.len() > limit {
        body.put_back(first);
        return Ok(None);
    }
    if body.is_done() {
        return Ok(Some(first));
    }
    let mut whole =
        Vec::with_capacity(body.content_length().unwrap_or(first.len() * 2).min(limit).min(MAX_RESERVED_BYTES));
    whole.extend_from_slice(&first);
    let mut turn = 0;
    while let Some(piece) = body.next_chunk().await.transpose()? {
        whole.extend_from_slice(&piece);
        if whole.len() - turn > YIELD_INTERVAL_BYTES {
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

fn upstream_error(error: &io::Error) -> Error {
    Error::UpstreamResponseBroken { cause: error.to_string() }
}
