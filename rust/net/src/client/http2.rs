//! HTTP/2 client. Many requests share a connection. Flow control pauses a response while its own reader is slow.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream, client};
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, timeout},
};

use super::incoming::IncomingResponse;
use super::message::BodyFraming;
use super::message::RemainingLength;
use super::message::ResponseHead;
use super::pool::MAX_IDLE_TIME;
use super::response_body::ReadTimeout;
use crate::{
    body::Body,
    error::{Error, Result},
    headers::{Headers, is_hop_by_hop},
};

/// Flow-control window of a stream: bytes of one response that the provider may send before they are read.
const STREAM_WINDOW_BYTES: u32 = 192 * 1024;
/// Flow-control window of a connection. It has the maximum size, so that a slow reader does not block other streams.
/// Each stream is bounded by its own window.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
const MAX_HEADER_LIST_BYTES: u32 = 64 * 1024;
/// Maximum number of bytes of a request body that are buffered while the provider reads slowly.
const SEND_BUFFER_BYTES: usize = 128 * 1024;
const MAX_HEADER_FIELDS: usize = 256;

/// Ping settings for detecting dead connections.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    interval: Duration,
    timeout: Duration,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { interval: Duration::from_secs(15), timeout: Duration::from_secs(10) }
    }
}

/// An HTTP/2 connection that many requests share.
pub struct SharedConnection {
    sender: client::SendRequest<Bytes>,
    open_streams: Arc<AtomicUsize>,
    last_used: Instant,
}

/// Permission to open one stream on a shared connection.
pub struct Lease {
    sender: client::SendRequest<Bytes>,
    slot: StreamSlot,
}

/// Guard that counts as one open stream until it is dropped.
#[derive(Debug)]
struct StreamSlot(Arc<AtomicUsize>);

impl StreamSlot {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SharedConnection {
    /// Returns true if the connection accepts requests: the provider has neither closed it nor sent GOAWAY.
    pub fn is_open(&mut self) -> bool {
        !matches!(self.sender.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }

    pub fn is_stale(&self) -> bool {
        self.open_streams.load(Ordering::Relaxed) == 0 && self.last_used.elapsed() > MAX_IDLE_TIME
    }

    /// Returns a lease if the provider allows one more stream.
    pub fn lease(&mut self) -> Option<Lease> {
        if self.open_streams.load(Ordering::Relaxed) >= self.sender.current_max_send_streams() {
            return None;
        }
        self.last_used = Instant::now();
        Some(Lease { sender: self.sender.clone(), slot: StreamSlot::new(&self.open_streams) })
    }
}

/// Performs the HTTP/2 handshake on a connection. Returns the connection with a lease for its first stream.
pub async fn handshake<S>(stream: S, beat: KeepAlive) -> Result<(SharedConnection, Lease)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES);
    let (sender, mut connection) = builder.handshake(stream).await.map_err(|error| upstream_error(&error))?;
    let pings = connection.ping_pong();
    let open = Arc::new(AtomicUsize::new(0));
    let watched = Arc::clone(&open);
    // The task ends when the pool and all streams have dropped the connection, or when either side fails.
    tokio::spawn(async move {
        tokio::select! {
            _ = connection => (),
            () = watch_pings(pings, &watched, beat) => (),
        }
    });
    let slot = StreamSlot::new(&open);
    Ok((
        SharedConnection { sender: sender.clone(), open_streams: open, last_used: Instant::now() },
        Lease { sender, slot },
    ))
}

/// Resolves when a response is pending and the provider does not acknowledge a ping.
async fn watch_pings(pings: Option<PingPong>, open: &AtomicUsize, beat: KeepAlive) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        sleep(beat.interval).await;
        let is_awaited = open.load(Ordering::Relaxed) > 0;
        if is_awaited && !matches!(timeout(beat.timeout, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// Why a request got no response.
#[derive(Debug)]
pub struct RequestFailure {
    pub error: Error,
    /// True if the provider did not process the request (RFC 9113 §8.7).
    pub is_unprocessed: bool,
}

impl From<Error> for RequestFailure {
    fn from(error: Error) -> Self {
        Self { error, is_unprocessed: false }
    }
}

impl From<h2::Error> for RequestFailure {
    fn from(error: h2::Error) -> Self {
        let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        Self { is_unprocessed: error.is_remote() && (error.is_go_away() || is_refused), error: upstream_error(&error) }
    }
}

/// Sends a request and waits for the head of the response. `head` is in HTTP/1.1 form.
pub async fn exchange(
    lease: Lease,
    head: &[u8],
    body: Body,
    body_framing: BodyFraming,
    max_wait: ReadTimeout,
) -> std::result::Result<IncomingResponse, RequestFailure> {
    let Lease { mut sender, slot } = lease;
    let request = build_request(head)?;
    let is_empty = matches!(&body, Body::Complete(bytes) if bytes.is_empty());
    let sent = sender.send_request(request, is_empty);
    let (response, stream) =
        sent.map_err(|error| RequestFailure { is_unprocessed: true, error: upstream_error(&error) })?;
    drop(sender);
    let mut sending = pin!(send_body(stream, body, body_framing));
    let mut response = pin!(response);
    let (mut is_sent, mut early) = (is_empty, None);
    let response = loop {
        tokio::select! {
            biased;
            sent = &mut sending, if !is_sent => {
                sent?;
                is_sent = true;
            }
            answered = &mut response, if early.is_none() => early = Some(answered?),
        }
        // A provider may respond before it has read the whole request. If the status is a success, it still needs the
        // rest of the body.
        let is_final = |response: &mut Response<RecvStream>| is_sent || response.status().as_u16() >= 300;
        if let Some(response) = early.take_if(is_final) {
            break response;
        }
    };
    Ok(build_response(response, body_framing, max_wait, slot))
}

fn build_response(
    response: Response<RecvStream>,
    body_framing: BodyFraming,
    max_wait: ReadTimeout,
    slot: StreamSlot,
) -> IncomingResponse {
    let (parts, stream) = response.into_parts();
    let mut headers = Headers::with_capacity(parts.headers.len());
    for (name, value) in &parts.headers {
        headers.push(name.as_str().as_bytes(), value.as_bytes());
    }
    let status = parts.status.as_u16();
    let is_empty = stream.is_end_stream() || body_framing.is_bodiless || matches!(status, 204 | 304);
    let declared = headers.get_str("content-length").and_then(|text| text.parse().ok());
    let expected = if is_empty { Some(0) } else { declared };
    let reading = Http2BodyReader {
        stream,
        unread: Bytes::new(),
        failure: None,
        has_ended: is_empty,
        content_length: expected,
        read_timeout: max_wait,
        _slot: slot,
    };
    IncomingResponse { head: ResponseHead { status, headers }, body: reading.into() }
}

/// Sends a body as fast as the provider accepts it. A provider that stops reading is no error here, because its
/// response contains the reason.
async fn send_body(mut stream: SendStream<Bytes>, body: Body, body_framing: BodyFraming) -> Result<()> {
    match body {
        Body::Complete(bytes) if bytes.is_empty() => (),
        Body::Complete(bytes) => drop(send_chunk(&mut stream, bytes, true).await),
        Body::Streamed(mut feed, length) => {
            let mut remaining = RemainingLength(length.filter(|_| !body_framing.is_chunked));
            while let Some(chunk) = feed.next().await.transpose()? {
                remaining.subtract(&chunk)?;
                if send_chunk(&mut stream, chunk, false).await.is_none() {
                    return Ok(());
                }
            }
            remaining.check_complete()?;
            // An error here also breaks the response, so the reader of the response reports it.
            drop(stream.send_data(Bytes::new(), true));
        }
    }
    Ok(())
}

/// Sends one chunk. `None` if the provider accepts no more of the body.
async fn send_chunk(stream: &mut SendStream<Bytes>, mut rest: Bytes, is_last: bool) -> Option<()> {
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let capacity = poll_fn(|context| stream.poll_capacity(context)).await?.ok()?;
        let chunk = rest.split_to(capacity.min(rest.len()));
        stream.send_data(chunk, is_last && rest.is_empty()).ok()?;
    }
    Some(())
}

/// Converts an HTTP/1.1 head to an HTTP/2 request. Removes hop-by-hop fields and marks secrets as sensitive, so that
/// header compression does not index them.
fn build_request(head: &[u8]) -> Result<Request<()>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADER_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let is_whole = parsed.parse(head).is_ok_and(|status| status.is_complete());
    let (true, Some(method), Some(path)) = (is_whole, parsed.method, parsed.path) else {
        return Err(invalid_header_error("head"));
    };
    let host = parsed.headers.iter().find(|field| field.name == "host").map_or(&b""[..], |field| field.value);
    let uri = Uri::builder().scheme("https").authority(host).path_and_query(path).build();
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|_| invalid_header_error("method"))?;
    *request.uri_mut() = uri.map_err(|_| invalid_header_error("path"))?;
    for field in parsed.headers.iter().filter(|field| field.name != "host") {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| invalid_header_error("header name"))?;
        if is_hop_by_hop(name.as_str().as_bytes()) {
            continue;
        }
        let mut value = HeaderValue::from_bytes(field.value).map_err(|_| invalid_header_error("header value"))?;
        value.set_sensitive(matches!(name.as_str(), "authorization" | "x-api-key" | "api-key" | "cookie"));
        request.headers_mut().append(name, value);
    }
    Ok(request)
}

fn invalid_header_error(name: &'static str) -> Error {
    Error::HeadInvalid { name, message: "cannot be sent over HTTP/2".into() }
}

fn upstream_error(error: &h2::Error) -> Error {
    Error::ResponseBroken { cause: error.to_string() }
}

/// Reads the body of a response. Dropping it before the end resets the stream, so that the provider stops at once.
pub struct Http2BodyReader {
    stream: RecvStream,
    /// Received bytes that were not returned yet.
    unread: Bytes,
    /// Error that is returned after the remaining bytes.
    failure: Option<Error>,
    has_ended: bool,
    content_length: Option<usize>,
    read_timeout: ReadTimeout,
    _slot: StreamSlot,
}

impl std::fmt::Debug for Http2BodyReader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Reading")
    }
}

impl Http2BodyReader {
    pub fn is_done(&self) -> bool {
        self.unread.is_empty() && self.failure.is_none() && (self.has_ended || self.stream.is_end_stream())
    }

    pub fn content_length(&self) -> Option<usize> {
        self.content_length
    }

    pub fn read_timeout_mut(&mut self) -> &mut ReadTimeout {
        &mut self.read_timeout
    }

    /// Returns all bytes that are ready, in one chunk of at most `max_bytes` bytes. Only returned bytes reopen the
    /// flow-control window.
    pub async fn next_chunk(&mut self, max_bytes: usize) -> Option<Result<Bytes>> {
        if self.unread.is_empty() && self.failure.is_none() {
            if self.has_ended {
                return None;
            }
            let mut max_wait = self.read_timeout;
            let waited = max_wait.wait_for(poll_fn(|context| self.poll_frame(context))).await;
            self.read_timeout = max_wait;
            match waited {
                Ok(Some(())) => (),
                Ok(None) => return Some(Ok(Bytes::new())),
                Err(silence) => self.fail(silence),
            }
        }
        let chunk = match self.join_ready_frames(max_bytes) {
            chunk if !chunk.is_empty() => chunk,
            _ => return self.failure.take().map(Err),
        };
        if let Err(error) = self.stream.flow_control().release_capacity(chunk.len()) {
            return Some(Err(upstream_error(&error)));
        }
        Some(Ok(chunk))
    }

    /// Stores the next data frame in `unread`, or records the end or the failure of the stream.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.unread.is_empty() && !self.has_ended {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => self.unread = data,
                Some(Err(error)) => self.fail(upstream_error(&error)),
                None => self.has_ended = true,
            }
        }
        Poll::Ready(())
    }

    fn fail(&mut self, error: Error) {
        self.failure = Some(error);
        self.has_ended = true;
    }

    /// Joins the data frames that have already arrived, without waiting.
    fn join_ready_frames(&mut self, max_bytes: usize) -> Bytes {
        let first = self.unread.split_to(max_bytes.min(self.unread.len()));
        // A no-op waker is enough here: the next read that waits registers a real one.
        let mut context = Context::from_waker(Waker::noop());
        let mut more = BytesMut::new();
        let mut remaining = max_bytes - first.len();
        while remaining > 0 && self.poll_frame(&mut context).is_ready() && !self.unread.is_empty() {
            if more.is_empty() {
                more.extend_from_slice(&first);
            }
            let next = self.unread.split_to(remaining.min(self.unread.len()));
            more.extend_from_slice(&next);
            remaining -= next.len();
        }
        if more.is_empty() { first } else { more.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    const HEAD: &[u8] = b"POST /v1/x HTTP/1.1\r\nhost: llm.example\r\n\r\n";
    const READ_TIMEOUT: Duration = Duration::from_secs(5);
    const SHORT_KEEP_ALIVE: KeepAlive =
        KeepAlive { interval: Duration::from_millis(30), timeout: Duration::from_millis(30) };

    async fn send_to_test_server(
        beat: KeepAlive,
        responses: bool,
    ) -> std::result::Result<IncomingResponse, RequestFailure> {
        let (client_end, server_end) = duplex(64 * 1024);
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(server_end).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            tokio::spawn(async move {
                sleep(Duration::from_millis(200)).await;
                respond.send_response(Response::new(()), true).unwrap();
            });
            if responses {
                while connection.accept().await.is_some() {}
            }
            // Simulates a cut cable: the connection stays open, but no data arrives.
            std::future::pending::<()>().await;
        });
        let (_shared, lease) = handshake(client_end, beat).await?;
        exchange(lease, HEAD, Body::empty(), BodyFraming::default(), ReadTimeout::new(READ_TIMEOUT, READ_TIMEOUT)).await
    }

    #[tokio::test(start_paused = true)]
    async fn detects_a_dead_connection() {
        assert_eq!(send_to_test_server(SHORT_KEEP_ALIVE, true).await.unwrap().head.status, 200);
        let started_at = tokio::time::Instant::now();
        let failed = send_to_test_server(SHORT_KEEP_ALIVE, false).await.unwrap_err();
        assert!(matches!(failed.error, Error::ResponseBroken { .. }) && !failed.is_unprocessed, "{failed:?}");
        assert!((50..1_000).contains(&started_at.elapsed().as_millis()), "{:?}", started_at.elapsed());
    }

    #[test]
    fn rejects_a_head_that_http2_cannot_carry() {
        assert!(build_request(HEAD).is_ok());
        for head in
            ["GET /a<b HTTP/1.1\r\nhost: a\r\n\r\n", "GET /a HTTP/1.1\r\nhost: a b\r\n\r\n", "GET /a HTTP/1.1\r\n"]
        {
            assert!(matches!(build_request(head.as_bytes()), Err(Error::HeadInvalid { .. })), "{head}");
        }
    }
}
