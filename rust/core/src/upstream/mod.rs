//! Outgoing requests: which connection a request uses, and its response as it arrives. Apart from the Redis client,
//! this is the only module that opens outgoing connections.

mod address;
mod connection;
pub mod deadline;
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
pub use websocket::{Handshake, MAX_MESSAGE_BYTES, ProviderWebSocket, UpgradeResult, UpstreamWebSocket};

use crate::{
    error::{Error, Problem, Result},
    ingress::{body::Body, headers::Headers},
    process::settings::Settings,
    upstream::response_body::ReadTimeout,
};
use connection::Connection;
use dialer::NewConnection;
use http2::Lease;
use pool::OriginPool;

/// A request ready to send: its rendered head and its body.
#[derive(Debug)]
pub struct OutgoingRequest {
    /// Request line and header fields, including the blank line.
    pub head: Vec<u8>,
    pub body: Body,
    pub body_framing: BodyFraming,
    /// True if the request may be sent twice (RFC 9110 §9.2.2, or an idempotency key).
    pub is_replayable: bool,
}

/// What the head says about the bodies of request and response.
#[derive(Debug, Clone, Copy, Default)]
pub struct BodyFraming {
    /// True if the length of the request body is unknown, so that it is sent chunked.
    pub is_chunked: bool,
    /// True if the response has no body, whatever its header fields say.
    pub is_bodiless: bool,
}

/// Status and header fields of a response.
#[derive(Debug)]
pub struct ResponseHead {
    pub status: u16,
    pub headers: Headers,
}

/// A response whose head was received.
#[derive(Debug)]
pub struct IncomingResponse {
    pub head: ResponseHead,
    pub body: ResponseBody,
}

/// HTTP client for providers and the control process, with a connection pool.
pub struct Upstream {
    pool: pool::Pool,
    dialer: dialer::Dialer,
    read_timeout: ReadTimeout,
}

impl Upstream {
    pub fn new(settings: &Settings) -> std::result::Result<Self, Vec<Problem>> {
        Self::with_resolver(settings, resolver::system_lookup())
    }

    /// Creates a client that resolves names with `look_up` instead of the system's resolver.
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

    /// Sends a request and waits for the head of the response. Has no timeout of its own.
    pub async fn send(&self, origin: &Origin, mut request: OutgoingRequest) -> Result<IncomingResponse> {
        if let Some(proxy) = self.dialer.forward_proxy(origin) {
            request.head = proxy.to_absolute_form(&request.head, origin);
        }
        let home = self.pool.origin_pool(origin);
        if let Some(mut connection) = home.take_idle() {
            let OutgoingRequest { head, body, body_framing: shape, is_replayable: replayable } = request;
            // The provider may have closed the pooled connection meanwhile, so a replayable request is sent again.
            let again = if replayable { body.try_clone() } else { None };
            match (http1::exchange(&mut connection, &head, body, shape).await, again) {
                (Ok(head), _) => return Ok(self.build_response(head, connection, home)),
                (Err(error), None) => return Err(error),
                (Err(_), Some(body)) => {
                    request = OutgoingRequest { head, body, body_framing: shape, is_replayable: replayable }
                }
            }
        }
        // Boxed: this path is rare and would enlarge the future of every request.
        match Box::pin(self.acquire_connection(origin, &home)).await? {
            RequestConnection::Exclusive(mut connection) => {
                let head = http1::exchange(&mut connection, &request.head, request.body, request.body_framing).await?;
                Ok(self.build_response(head, connection, home))
            }
            RequestConnection::Shared(lease) => Box::pin(self.send_over_http2(origin, &home, lease, request)).await,
        }
    }

    /// Returns true if the operator listed this host as trusted.
    pub fn is_trusted(&self, host: &str) -> bool {
        self.dialer.is_trusted(host)
    }

    /// Closes connections that were idle for too long.
    pub fn close_expired(&self) {
        self.pool.close_expired();
    }

    pub fn idle_connection_count(&self) -> usize {
        self.pool.connection_count()
    }

    /// Returns a lease on a shared connection, or a new connection.
    async fn acquire_connection(&self, origin: &Origin, home: &OriginPool) -> Result<RequestConnection> {
        if let Some(lease) = home.lease() {
            return Ok(RequestConnection::Shared(lease));
        }
        let turn = if home.is_shareable() { Some(home.lock_connect().await?) } else { None };
        if let Some(lease) = home.lease() {
            return Ok(RequestConnection::Shared(lease));
        }
        // The previous holder of the lock may have found that the origin does not support HTTP/2. Then no request waits
        // for another.
        let mut turn = turn.filter(|_| home.is_shareable());
        let opened = self.open_connection(origin, home).await;
        if let (Some(turn), Err(error @ Error::ConnectTimeout { .. })) = (&mut turn, &opened) {
            turn.record_failure(error);
        }
        opened
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

    /// Sends a request over HTTP/2. Sends it once more if the provider did not process it, or if it is replayable.
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

/// Bytes that a streamed request body must still send to match its `content-length`. A mismatch would let the next
/// request on the connection be read as part of the body, or the reverse.
struct RemainingLength(Option<u64>);

impl RemainingLength {
    fn subtract(&mut self, chunk: &[u8]) -> Result<()> {
        let Some(owed) = &mut self.0 else { return Ok(()) };
        *owed = owed.checked_sub(chunk.len() as u64).ok_or(Error::InvalidFraming)?;
        Ok(())
    }

    fn check_complete(&self) -> Result<()> {
        if self.0.is_none_or(|owed| owed == 0) { Ok(()) } else { Err(Error::IncompleteBody) }
    }
}

/// Connection that a request is sent over.
enum RequestConnection {
    Exclusive(Connection),
    Shared(Lease),
}

/// Number of bytes after which `collect` yields to other tasks.
const YIELD_INTERVAL_BYTES: usize = 256 * 1024;
/// Most memory that is reserved for a declared length, because the provider may not send that much.
const MAX_RESERVED_BYTES: usize = 1024 * 1024;

/// Reads a body to its end. `None` if it is longer than `limit` bytes; what was read is then put back.
pub async fn collect(body: &mut ResponseBody, limit: usize) -> Result<Option<Bytes>> {
    let Some(first) = body.next_chunk().await.transpose()? else { return Ok(Some(Bytes::new())) };
    if first.len() > limit {
        body.put_back(first);
        return Ok(None);
    }
    if body.is_done() {
        return Ok(Some(first));
    }
    let mut buffer =
        Vec::with_capacity(body.content_length().unwrap_or(first.len() * 2).min(limit).min(MAX_RESERVED_BYTES));
    buffer.extend_from_slice(&first);
    let mut turn = 0;
    while let Some(chunk) = body.next_chunk().await.transpose()? {
        buffer.extend_from_slice(&chunk);
        if buffer.len() - turn > YIELD_INTERVAL_BYTES {
            // A snapshot is large and arrives without waits, so other tasks get to run in between.
            turn = buffer.len();
            tokio::task::yield_now().await;
        }
        if buffer.len() > limit {
            body.put_back(Bytes::from(buffer));
            return Ok(None);
        }
    }
    Ok(Some(Bytes::from(buffer)))
}

fn upstream_error(error: &io::Error) -> Error {
    Error::UpstreamResponseBroken { cause: error.to_string() }
}
