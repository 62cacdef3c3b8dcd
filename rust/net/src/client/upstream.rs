//! Client for providers and the control process. Chooses the connection of a request, and returns the response as it
//! arrives.

use super::{
    http1,
    http2::{self, Lease},
    incoming::IncomingResponse,
    message::OutgoingRequest,
    pool::{self, OriginPool},
    response_body::ReadTimeout,
};
use crate::{
    connect::{
        connection::Connection,
        dialer::{self, NewConnection},
        origin::Origin,
        resolver::{self, LookupFn},
    },
    error::{Error, Result, SettingError},
    settings::Settings,
};

/// HTTP client for providers and the control process, with a connection pool.
pub struct Upstream {
    pool: pool::Pool,
    pub(super) dialer: dialer::Dialer,
    pub(super) read_timeout: ReadTimeout,
}

impl Upstream {
    pub fn new(settings: &Settings) -> Result<Self, SettingError> {
        Self::with_resolver(settings, resolver::system_lookup())
    }

    /// Creates a client that resolves names with `look_up` instead of the system's resolver.
    pub fn with_resolver(settings: &Settings, look_up: LookupFn) -> Result<Self, SettingError> {
        Ok(Self {
            pool: pool::Pool::new(settings.http2),
            dialer: dialer::Dialer::new(settings, look_up)?,
            read_timeout: ReadTimeout::new(settings.idle_timeout, settings.stream_timeout),
        })
    }

    /// Sends a request and waits for the head of the response. Has no timeout of its own.
    pub async fn send(&self, origin: &Origin, mut request: OutgoingRequest) -> Result<IncomingResponse> {
        if let Some(proxy) = self.dialer.forward_proxy(origin) {
            request.head = proxy.to_absolute_form(&request.head, origin);
        }
        let origin_pool = self.pool.origin_pool(origin);
        if let Some(mut connection) = origin_pool.take_idle() {
            let OutgoingRequest { head, body, body_framing, is_replayable } = request;
            // The provider may have closed the pooled connection meanwhile, so a replayable request is sent again.
            let replay_body = if is_replayable { body.try_clone() } else { None };
            match (http1::exchange(&mut connection, &head, body, body_framing).await, replay_body) {
                (Ok(head), _) => return Ok(self.build_response(head, connection, origin_pool)),
                (Err(error), None) => return Err(error),
                (Err(_), Some(body)) => request = OutgoingRequest { head, body, body_framing, is_replayable },
            }
        }
        // Boxed: this path is rare and would enlarge the future of every request.
        match Box::pin(self.acquire_connection(origin, &origin_pool)).await? {
            RequestConnection::Exclusive(mut connection) => {
                let head = http1::exchange(&mut connection, &request.head, request.body, request.body_framing).await?;
                Ok(self.build_response(head, connection, origin_pool))
            }
            RequestConnection::Shared(lease) => {
                Box::pin(self.send_over_http2(origin, &origin_pool, lease, request)).await
            }
        }
    }

    /// Resolves the host of an origin without connecting. Fails if the host has no address, or one that may not be
    /// called.
    pub async fn check_origin(&self, origin: &Origin) -> Result<()> {
        self.dialer.check_origin(origin).await
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
    async fn acquire_connection(&self, origin: &Origin, origin_pool: &OriginPool) -> Result<RequestConnection> {
        if let Some(lease) = origin_pool.lease() {
            return Ok(RequestConnection::Shared(lease));
        }
        let turn = if origin_pool.is_shareable() { Some(origin_pool.lock_connect().await?) } else { None };
        if let Some(lease) = origin_pool.lease() {
            return Ok(RequestConnection::Shared(lease));
        }
        // The request that held the lock before may have found that the origin does not support HTTP/2. Then requests
        // need not wait for each other.
        let mut turn = turn.filter(|_| origin_pool.is_shareable());
        let opened = self.open_connection(origin, origin_pool).await;
        if let (Some(turn), Err(error @ Error::ConnectTimeout { .. })) = (&mut turn, &opened) {
            turn.record_failure(error);
        }
        opened
    }

    async fn open_connection(&self, origin: &Origin, origin_pool: &OriginPool) -> Result<RequestConnection> {
        let dialled = self.dialer.connect(origin).await;
        origin_pool.set_shareable(matches!(dialled, Ok(NewConnection::Http2(_))));
        match dialled? {
            NewConnection::Http1(connection) => Ok(RequestConnection::Exclusive(connection)),
            NewConnection::Http2(stream) => {
                let (shared, lease) = http2::handshake(stream, http2::KeepAlive::default()).await?;
                origin_pool.add_shared(shared);
                Ok(RequestConnection::Shared(lease))
            }
        }
    }

    /// Sends a request over HTTP/2. Sends it once more if the provider did not process it, or if it is replayable.
    async fn send_over_http2(
        &self,
        origin: &Origin,
        origin_pool: &OriginPool,
        lease: Lease,
        request: OutgoingRequest,
    ) -> Result<IncomingResponse> {
        let OutgoingRequest { head, body, body_framing, is_replayable } = request;
        let again = body.try_clone();
        let failed = match http2::exchange(lease, &head, body, body_framing, self.read_timeout).await {
            Ok(incoming) => return Ok(incoming),
            Err(failed) => failed,
        };
        let Some(body) = again.filter(|_| failed.is_unprocessed || is_replayable) else { return Err(failed.error) };
        match self.acquire_connection(origin, origin_pool).await? {
            RequestConnection::Exclusive(mut connection) => {
                let head = http1::exchange(&mut connection, &head, body, body_framing).await?;
                Ok(self.build_response(head, connection, self.pool.origin_pool(origin)))
            }
            RequestConnection::Shared(lease) => http2::exchange(lease, &head, body, body_framing, self.read_timeout)
                .await
                .map_err(|failed| failed.error),
        }
    }

    fn build_response(
        &self,
        head: http1::MessageHead,
        connection: Connection,
        origin_pool: OriginPool,
    ) -> IncomingResponse {
        let origin_pool = head.is_reusable.then_some(origin_pool);
        let body = http1::Http1BodyReader::new(connection, head.framing, origin_pool, self.read_timeout).into();
        IncomingResponse { head: head.response, body }
    }
}

/// Connection that a request is sent over.
enum RequestConnection {
    Exclusive(Connection),
    Shared(Lease),
}
