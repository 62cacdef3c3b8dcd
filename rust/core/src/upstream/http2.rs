//! HTTP/2 as a client: many requests over one connection, each answer held back by its own reader.

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

use super::{AnswerHead, Incoming, Owed, Shape, pool::LONGEST_IDLE};
use crate::upstream::response_body::Patience;
use crate::{
    error::{Error, Result},
    ingress::{
        body::Body,
        headers::{Headers, is_hop_by_hop},
    },
};

/// What a provider may send of one answer beyond what was read of it.
const WINDOW: u32 = 192 * 1024;
/// No reader holds up the others of a connection: each is bounded by its own window.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const LARGEST_HEAD: u32 = 64 * 1024;
/// What waits of a request's body where the provider reads slowly.
const SEND_BUFFER: usize = 128 * 1024;
const MOST_FIELDS: usize = 256;

/// How it is found out that a connection leads nowhere any more.
#[derive(Debug, Clone, Copy)]
pub struct Beat {
    every: Duration,
    patience: Duration,
}

impl Default for Beat {
    fn default() -> Self {
        Self { every: Duration::from_secs(15), patience: Duration::from_secs(10) }
    }
}

/// A connection that many requests share.
pub struct Shared {
    sender: client::SendRequest<Bytes>,
    open: Arc<AtomicUsize>,
    used: Instant,
}

/// A place on a shared connection.
pub struct Lease {
    sender: client::SendRequest<Bytes>,
    slot: Slot,
}

/// Counts as an open stream as long as it lives.
#[derive(Debug)]
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// Whether it takes further requests: the other side has not said that it is going away, nor gone.
    pub fn is_open(&mut self) -> bool {
        !matches!(self.sender.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }

    pub fn is_stale(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0 && self.used.elapsed() > LONGEST_IDLE
    }

    /// A place where the other side has one left.
    pub fn lease(&mut self) -> Option<Lease> {
        if self.open.load(Ordering::Relaxed) >= self.sender.current_max_send_streams() {
            return None;
        }
        self.used = Instant::now();
        Some(Lease { sender: self.sender.clone(), slot: Slot::new(&self.open) })
    }
}

/// Begins HTTP/2 on a connection, and takes the first place on it.
pub async fn open<S>(stream: S, beat: Beat) -> Result<(Shared, Lease)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(LARGEST_HEAD)
        .max_send_buffer_size(SEND_BUFFER);
    let (sender, mut connection) = builder.handshake(stream).await.map_err(|error| broke(&error))?;
    let pings = connection.ping_pong();
    let open = Arc::new(AtomicUsize::new(0));
    let watched = Arc::clone(&open);
    // It ends with the last place and the pool's own handle, or when either side fails.
    tokio::spawn(async move {
        tokio::select! {
            _ = connection => (),
            () = watch(pings, &watched, beat) => (),
        }
    });
    let slot = Slot::new(&open);
    Ok((Shared { sender: sender.clone(), open, used: Instant::now() }, Lease { sender, slot }))
}

/// Ends when an answer is awaited and the other side does not answer a ping.
async fn watch(pings: Option<PingPong>, open: &AtomicUsize, beat: Beat) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        sleep(beat.every).await;
        let is_awaited = open.load(Ordering::Relaxed) > 0;
        if is_awaited && !matches!(timeout(beat.patience, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// Why there was no answer.
#[derive(Debug)]
pub struct Failed {
    pub error: Error,
    /// The provider did not begin to work on the request (RFC 9113 §8.7).
    pub untouched: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, untouched: false }
    }
}

impl From<h2::Error> for Failed {
    fn from(error: h2::Error) -> Self {
        let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        Self { untouched: error.is_remote() && (error.is_go_away() || is_refused), error: broke(&error) }
    }
}

/// Sends a request, whose head is in the form of HTTP/1.1, and waits for the head of its answer.
pub async fn exchange(
    lease: Lease,
    head: &[u8],
    body: Body,
    shape: Shape,
    patience: Patience,
) -> std::result::Result<Incoming, Failed> {
    let Lease { mut sender, slot } = lease;
    let request = request(head)?;
    let is_empty = matches!(&body, Body::Whole(bytes) if bytes.is_empty());
    let sent = sender.send_request(request, is_empty);
    let (answer, stream) = sent.map_err(|error| Failed { untouched: true, error: broke(&error) })?;
    drop(sender);
    let mut sending = pin!(send(stream, body, shape));
    let mut answer = pin!(answer);
    let (mut is_sent, mut early) = (is_empty, None);
    let answer = loop {
        tokio::select! {
            biased;
            sent = &mut sending, if !is_sent => {
                sent?;
                is_sent = true;
            }
            answered = &mut answer, if early.is_none() => early = Some(answered?),
        }
        // A provider may answer before it has read everything; where it accepts, it still wants the rest.
        let is_final = |answer: &mut Response<RecvStream>| is_sent || answer.status().as_u16() >= 300;
        if let Some(answer) = early.take_if(is_final) {
            break answer;
        }
    };
    Ok(incoming(answer, shape, patience, slot))
}

fn incoming(answer: Response<RecvStream>, shape: Shape, patience: Patience, slot: Slot) -> Incoming {
    let (parts, stream) = answer.into_parts();
    let mut headers = Headers::with_capacity(parts.headers.len());
    for (name, value) in &parts.headers {
        headers.push(name.as_str().as_bytes(), value.as_bytes());
    }
    let status = parts.status.as_u16();
    let is_empty = stream.is_end_stream() || shape.bodiless || matches!(status, 204 | 304);
    let declared = headers.text("content-length").and_then(|text| text.parse().ok());
    let expected = if is_empty { Some(0) } else { declared };
    let reading =
        Reading { stream, rest: Bytes::new(), failed: None, ended: is_empty, expected, patience, _slot: slot };
    Incoming { head: AnswerHead { status, headers }, body: reading.into() }
}

/// Sends a body as fast as it is taken. Where it is not taken, the answer says why.
async fn send(mut stream: SendStream<Bytes>, body: Body, shape: Shape) -> Result<()> {
    match body {
        Body::Whole(bytes) if bytes.is_empty() => (),
        Body::Whole(bytes) => drop(send_piece(&mut stream, bytes, true).await),
        Body::Fed(mut feed, length) => {
            let mut owed = Owed(length.filter(|_| !shape.chunked));
            while let Some(piece) = feed.next().await.transpose()? {
                owed.pay(&piece)?;
                if send_piece(&mut stream, piece, false).await.is_none() {
                    return Ok(());
                }
            }
            owed.end()?;
            // An error here is told by the answer too.
            drop(stream.send_data(Bytes::new(), true));
        }
    }
    Ok(())
}

/// `None` where the other side takes no more of it.
async fn send_piece(stream: &mut SendStream<Bytes>, mut rest: Bytes, is_last: bool) -> Option<()> {
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let room = poll_fn(|context| stream.poll_capacity(context)).await?.ok()?;
        let piece = rest.split_to(room.min(rest.len()));
        stream.send_data(piece, is_last && rest.is_empty()).ok()?;
    }
    Some(())
}

/// The same request in HTTP/2's terms: without what belongs to a connection, its secrets kept out of compression.
fn request(head: &[u8]) -> Result<Request<()>> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let is_whole = parsed.parse(head).is_ok_and(|status| status.is_complete());
    let (true, Some(method), Some(path)) = (is_whole, parsed.method, parsed.path) else { return Err(illegal("head")) };
    let host = parsed.headers.iter().find(|field| field.name == "host").map_or(&b""[..], |field| field.value);
    let uri = Uri::builder().scheme("https").authority(host).path_and_query(path).build();
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|_| illegal("method"))?;
    *request.uri_mut() = uri.map_err(|_| illegal("path"))?;
    for field in parsed.headers.iter().filter(|field| field.name != "host") {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| illegal("header name"))?;
        if is_hop_by_hop(name.as_str().as_bytes()) {
            continue;
        }
        let mut value = HeaderValue::from_bytes(field.value).map_err(|_| illegal("header value"))?;
        value.set_sensitive(matches!(name.as_str(), "authorization" | "x-api-key" | "api-key" | "cookie"));
        request.headers_mut().append(name, value);
    }
    Ok(request)
}

fn illegal(name: &'static str) -> Error {
    Error::HeaderInvalid { name, message: "cannot be sent over HTTP/2".into() }
}

fn broke(error: &h2::Error) -> Error {
    Error::UpstreamBroke { cause: error.to_string() }
}

/// The body of an answer. When it is dropped before its end, the provider is told at once.
pub struct Reading {
    stream: RecvStream,
    /// What has come and does not fit into one piece.
    rest: Bytes,
    /// How it broke off after the bytes that were handed on.
    failed: Option<Error>,
    ended: bool,
    expected: Option<usize>,
    patience: Patience,
    _slot: Slot,
}

impl std::fmt::Debug for Reading {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Reading")
    }
}

impl Reading {
    pub fn is_done(&self) -> bool {
        self.rest.is_empty() && self.failed.is_none() && (self.ended || self.stream.is_end_stream())
    }

    pub fn expected(&self) -> Option<usize> {
        self.expected
    }

    pub fn patience(&mut self) -> &mut Patience {
        &mut self.patience
    }

    /// All that is ready, in one piece of at most `most` bytes. Only what is handed on makes room for more.
    pub async fn next(&mut self, most: usize) -> Option<Result<Bytes>> {
        if self.rest.is_empty() && self.failed.is_none() {
            if self.ended {
                return None;
            }
            let mut patience = self.patience;
            let waited = patience.bound(poll_fn(|context| self.poll_frame(context))).await;
            self.patience = patience;
            match waited {
                Ok(Some(())) => (),
                Ok(None) => return Some(Ok(Bytes::new())),
                Err(silence) => self.fail(silence),
            }
        }
        let piece = match self.joined(most) {
            piece if !piece.is_empty() => piece,
            _ => return self.failed.take().map(Err),
        };
        if let Err(error) = self.stream.flow_control().release_capacity(piece.len()) {
            return Some(Err(broke(&error)));
        }
        Some(Ok(piece))
    }

    /// Puts the next frame of data into `rest`, or sees the end.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.rest.is_empty() && !self.ended {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(error)) => self.fail(broke(&error)),
                None => self.ended = true,
            }
        }
        Poll::Ready(())
    }

    fn fail(&mut self, error: Error) {
        self.failed = Some(error);
        self.ended = true;
    }

    /// What has come already, without waiting.
    fn joined(&mut self, most: usize) -> Bytes {
        let first = self.rest.split_to(most.min(self.rest.len()));
        // Who waits next will wait with a waker.
        let mut context = Context::from_waker(Waker::noop());
        let mut more = BytesMut::new();
        let mut room = most - first.len();
        while room > 0 && self.poll_frame(&mut context).is_ready() && !self.rest.is_empty() {
            if more.is_empty() {
                more.extend_from_slice(&first);
            }
            let next = self.rest.split_to(room.min(self.rest.len()));
            more.extend_from_slice(&next);
            room -= next.len();
        }
        if more.is_empty() { first } else { more.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    const HEAD: &[u8] = b"POST /v1/x HTTP/1.1\r\nhost: llm.example\r\n\r\n";
    const SOON: Duration = Duration::from_secs(5);
    const SHORT: Beat = Beat { every: Duration::from_millis(30), patience: Duration::from_millis(30) };

    async fn asked(beat: Beat, answers: bool) -> std::result::Result<Incoming, Failed> {
        let (here, there) = duplex(64 * 1024);
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(there).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            tokio::spawn(async move {
                sleep(Duration::from_millis(200)).await;
                respond.send_response(Response::new(()), true).unwrap();
            });
            if answers {
                while connection.accept().await.is_some() {}
            }
            // As if the cable had been pulled: it is open, and nothing comes.
            std::future::pending::<()>().await;
        });
        let (_shared, lease) = open(here, beat).await?;
        exchange(lease, HEAD, Body::empty(), Shape::default(), Patience::new(SOON, SOON)).await
    }

    #[tokio::test]
    async fn a_connection_that_leads_nowhere_is_noticed() {
        assert_eq!(asked(SHORT, true).await.unwrap().head.status, 200);
        let began = Instant::now();
        let failed = asked(SHORT, false).await.unwrap_err();
        assert!(matches!(failed.error, Error::UpstreamBroke { .. }) && !failed.untouched, "{failed:?}");
        assert!((50..1_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        assert!(request(HEAD).is_ok());
        for head in
            ["GET /a<b HTTP/1.1\r\nhost: a\r\n\r\n", "GET /a HTTP/1.1\r\nhost: a b\r\n\r\n", "GET /a HTTP/1.1\r\n"]
        {
            assert!(matches!(request(head.as_bytes()), Err(Error::HeaderInvalid { .. })), "{head}");
        }
    }
}
