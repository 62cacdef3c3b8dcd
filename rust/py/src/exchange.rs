//! Response path to the client. Hands a response to the server chunk by chunk, no faster than the client reads.

use std::{
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use penstock_core::{
    gateway,
    gateway_state::GatewayState,
    process::edge::{
        disconnect::Disconnector,
        idle_connections::{ConnectionTracker, ParkedStream, RequestGuard},
    },
    response::{
        client_response::{ClientResponse, ClientResponseBody, ClientResponseHead},
        response_stream::{BodyTruncated, ResponseStream},
    },
};
use pyo3::{
    intern,
    prelude::*,
    types::{PyBytes, PyDict},
};
use tokio::sync::oneshot;

use crate::{
    callback::{self, WaitEvent},
    fields::header_list,
    peer,
    runtime::Job,
};

/// Channel through which the response of one request goes to the ASGI server.
pub struct Exchange {
    proto: Py<PyAny>,
    /// ASGI scope of the request. Dropped when a stream begins, because it is large and streams last long.
    scope: Option<Py<PyDict>>,
    /// Client of the stream. Set when a stream begins.
    stream_peer: Option<StreamPeer>,
    /// Ends the server's own task for the request, if there is one.
    completion: Option<Arc<CompletionGuard>>,
    /// Signal of another component, such as the body reader, that already detects the disconnect of the client.
    disconnect: Option<DisconnectSignal>,
    /// Response head to send before the first chunk.
    head: Option<ClientResponseHead>,
    is_answered: bool,
}

/// Guard that calls Python's `done` when the last owner drops it, which ends the server's own task.
pub struct CompletionGuard(Py<PyAny>);

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        Python::attach(|py| drop(self.0.call0(py)));
    }
}

/// Client of a stream, and whether the client checks the declared length.
struct StreamPeer {
    /// Address and port as the server reports them.
    client: Option<Py<PyAny>>,
    /// True if the client compares the body with the declared length (RFC 9113 §8.1.1). A shorter body is then an error
    /// of this stream only.
    checks_length: bool,
}

/// Resolves when the client has disconnected.
pub type DisconnectSignal = oneshot::Receiver<()>;

/// Conditions that stop a stream before its own end.
struct StopConditions<C> {
    disconnect: DisconnectSignal,
    shutdown: C,
    /// Maximum wait for a client that does not read.
    write_timeout: Duration,
    disconnector: Arc<Disconnector>,
    /// Marks the connection as busy until the last byte was handed to the server.
    request_guard: Option<RequestGuard>,
}

enum SendOutcome {
    Accepted,
    /// The client reads slowly. The receiver resolves when the server accepts more.
    Blocked(oneshot::Receiver<()>),
    Closed,
}

/// Response whose chunks are still to be sent.
pub struct StreamingResponse {
    exchange: Exchange,
    stream: Box<ResponseStream>,
    disconnect: DisconnectSignal,
    /// Marks the connection as busy until the last byte was handed to the server.
    request_guard: Option<RequestGuard>,
}

/// Serves one request until its complete response was sent, or until the response begins to stream. Returns a streaming
/// response, so that another future sends it: that lasts long and needs only a third of the memory.
pub async fn serve_request(
    state: &Arc<GatewayState>,
    callers: &Arc<ConnectionTracker>,
    job: Job,
) -> Option<StreamingResponse> {
    let Job { request, mut exchange } = job;
    let mut request_guard = None;
    let (response, disconnect_signal) = {
        let mut handling = pin!(gateway::handle(state, request));
        // A fast request is not watched for a disconnect, because watching costs more than it saves.
        let quick = tokio::select! {
            biased;
            answer = &mut handling => Some(answer),
            () = state.coarse_timer.wait_briefly() => None,
        };
        if let Some(response) = quick {
            (response, None)
        } else {
            request_guard = exchange.track_request(callers);
            let mut disconnect = exchange.watch_disconnect();
            tokio::select! {
                biased;
                answer = &mut handling => (answer, Some(disconnect)),
                _ = &mut disconnect => {
                    exchange.abandon();
                    return None;
                }
            }
        }
    };
    let ClientResponse { head: reply, body } = response;
    match body {
        // Drops Python objects while attached to the interpreter. Otherwise they stay in a queue until the next
        // attachment.
        ClientResponseBody::Complete(bytes) => {
            Python::attach(|py| {
                exchange.send_complete(py, reply, &bytes);
                drop(exchange);
            });
            None
        }
        ClientResponseBody::Stream(stream) => {
            let disconnect = disconnect_signal.unwrap_or_else(|| {
                request_guard = exchange.track_request(callers);
                exchange.watch_disconnect()
            });
            // Set here and not passed as an argument, because a future stores its arguments twice.
            exchange.head = Some(reply);
            Some(StreamingResponse { exchange, stream, disconnect, request_guard })
        }
    }
}

impl StreamingResponse {
    /// Sends the chunks of the stream up to the last byte.
    pub async fn send_remaining(self, state: Arc<GatewayState>, disconnector: Arc<Disconnector>) {
        let Self { mut exchange, stream, disconnect, request_guard } = self;
        let write_timeout = Duration::from_millis(state.settings.write_stall_ms);
        exchange
            .send_stream(
                stream,
                StopConditions {
                    disconnect,
                    shutdown: state.wait_for_stream_shutdown(),
                    write_timeout,
                    disconnector,
                    request_guard,
                },
            )
            .await;
        Python::attach(|_| drop(exchange));
    }
}

impl Exchange {
    pub fn new(proto: Py<PyAny>, scope: Py<PyDict>, done: Option<Py<PyAny>>) -> Self {
        let completion = done.map(|done| Arc::new(CompletionGuard(done)));
        Self {
            proto,
            scope: Some(scope),
            stream_peer: None,
            completion,
            disconnect: None,
            head: None,
            is_answered: false,
        }
    }

    /// Sets a signal of another component that detects the disconnect of the client.
    pub fn with_disconnect_signal(mut self, disconnect: DisconnectSignal) -> Self {
        self.disconnect = Some(disconnect);
        self
    }

    pub fn proto(&self, py: Python<'_>) -> Py<PyAny> {
        self.proto.clone_ref(py)
    }

    pub fn completion(&self) -> Option<Arc<CompletionGuard>> {
        self.completion.clone()
    }

    /// Marks the client's connection as busy until the guard is dropped.
    fn track_request(&self, callers: &Arc<ConnectionTracker>) -> Option<RequestGuard> {
        Python::attach(|py| {
            let (caller, is_http2) = peer::client_address(self.scope.as_ref()?.bind(py))?;
            Some(callers.begin_request(caller, is_http2))
        })
    }

    fn watch_disconnect(&mut self) -> DisconnectSignal {
        if let Some(disconnect) = self.disconnect.take() {
            return disconnect;
        }
        let (sender, disconnect) = oneshot::channel();
        Python::attach(|py| callback::watch_disconnect(py, &self.proto, sender));
        disconnect
    }

    /// Suppresses the response, because the client has disconnected.
    fn abandon(&mut self) {
        self.is_answered = true;
    }

    fn send_complete(&mut self, py: Python<'_>, reply: ClientResponseHead, body: &[u8]) {
        self.head = Some(reply);
        drop(self.send_chunk(py, body, false));
    }

    async fn send_stream(&mut self, mut stream: Box<ResponseStream>, ends: StopConditions<impl Future<Output = ()>>) {
        let StopConditions { mut disconnect, shutdown: closing, write_timeout, disconnector, request_guard } = ends;
        let mut closing = std::pin::pin!(closing);
        if Python::attach(|py| self.begin_stream(py)).is_err() {
            return;
        }
        loop {
            let chunk = tokio::select! {
                biased;
                // Checked first, so that a provider that always has more chunks does not hide the disconnect.
                _ = &mut disconnect => return self.abandon(),
                chunk = stream.next() => chunk,
                () = &mut closing => stream.stop_for_drain(),
            };
            let sent = match chunk {
                Ok(Some(bytes)) if stream.is_ended() => {
                    // The last chunk is ready too, so both are sent in one call into Python.
                    let Ok(rest) = stream.next().await else {
                        Python::attach(|py| drop(self.send_chunk(py, &bytes, true)));
                        return self
                            .abort_response(disconnect, closing, request_guard, write_timeout, &disconnector)
                            .await;
                    };
                    self.send_last(&bytes, rest.as_deref())
                }
                Ok(Some(bytes)) => Python::attach(|py| self.send_chunk(py, &bytes, true)),
                Ok(None) => return Python::attach(|py| drop(self.send_chunk(py, &[], false))),
                Err(BodyTruncated) => {
                    return self.abort_response(disconnect, closing, request_guard, write_timeout, &disconnector).await;
                }
            };
            match sent {
                SendOutcome::Accepted => (),
                SendOutcome::Closed => return,
                SendOutcome::Blocked(mut writable) => {
                    let parked = tokio::select! {
                        biased;
                        _ = &mut disconnect => return,
                        _ = &mut writable => continue,
                        () = &mut closing => None,
                        () = tokio::time::sleep(write_timeout) => request_guard.and_then(RequestGuard::park),
                    };
                    let ends = if let Some(parked_stream) = parked {
                        let end = stream.stop_unread(write_timeout);
                        drop(stream);
                        // Boxed, because it would enlarge the future of every stream.
                        Box::pin(self.park_stream(end, disconnect, writable, closing, parked_stream)).await
                    } else {
                        // Dropped now, so that the record does not wait for the end of the connection.
                        drop(stream);
                        true
                    };
                    if ends && let Some(client) = self.end_truncated() {
                        Box::pin(disconnector.disconnect_client(client)).await;
                    }
                    return;
                }
            }
        }
    }

    /// Prepares for sending a stream to the client. Sends the head of an event stream at once. Any other head is sent
    /// together with the first chunk, which is already available.
    fn begin_stream(&mut self, py: Python<'_>) -> PyResult<()> {
        let head = self.head.as_ref();
        let is_event_stream = head.is_some_and(ClientResponseHead::is_event_stream);
        let has_length = head.is_some_and(|head| head.headers.get("content-length").is_some());
        self.stream_peer = self.scope.take().map(|scope| StreamPeer::from_scope(scope.bind(py), has_length));
        if is_event_stream { self.send_head(py) } else { Ok(()) }
    }

    /// Waits until the client of a parked HTTP/2 stream (see `RequestGuard::park`) reads again, while the other streams
    /// of its connection continue. Returns true if the connection must still be closed. A client that reads on could
    /// otherwise not notice the truncation.
    async fn park_stream(
        &mut self,
        end: Result<Option<Bytes>, BodyTruncated>,
        disconnect: DisconnectSignal,
        writable: oneshot::Receiver<()>,
        closing: Pin<&mut impl Future<Output = ()>>,
        parked: ParkedStream,
    ) -> bool {
        // Waits for the pending chunk, because the server may send the later of two waiting chunks first.
        tokio::select! {
            biased;
            _ = disconnect => return false,
            () = closing => return true,
            _ = writable => drop(parked),
        }
        let last = match end {
            Ok(last) => last.unwrap_or_default(),
            Err(BodyTruncated) => return true,
        };
        Python::attach(|py| drop(self.send_chunk(py, &last, false)));
        false
    }

    fn send_last(&mut self, bytes: &[u8], rest: Option<&[u8]>) -> SendOutcome {
        let Some(more) = rest else {
            Python::attach(|py| drop(self.send_chunk(py, bytes, false)));
            return SendOutcome::Closed;
        };
        let joined = [bytes, more].concat();
        Python::attach(|py| self.send_chunk(py, &joined, true))
    }

    /// Ends the response so that no client mistakes it for a complete one. If the connection must be closed for that,
    /// its other streams may finish first, within the time `longest`.
    async fn abort_response(
        &mut self,
        disconnect: DisconnectSignal,
        closing: Pin<&mut impl Future<Output = ()>>,
        request_guard: Option<RequestGuard>,
        longest: Duration,
        disconnector: &Disconnector,
    ) {
        let Some(client) = self.end_truncated() else { return };
        // Boxed, because it would enlarge the future of every stream.
        let termination = Box::pin(async move {
            if let Some(parked) = request_guard.and_then(RequestGuard::park) {
                tokio::select! {
                    biased;
                    _ = disconnect => return,
                    () = parked.wait_for_other_requests() => (),
                    () = closing => (),
                    () = tokio::time::sleep(longest) => (),
                }
            }
            disconnector.disconnect_client(client).await;
        });
        termination.await;
    }

    /// Ends the body if the client detects the truncation by its declared length. Otherwise returns the client whose
    /// connection must be closed.
    fn end_truncated(&mut self) -> Option<SocketAddr> {
        let StreamPeer { client, checks_length: counts } = self.stream_peer.take()?;
        Python::attach(|py| {
            if counts {
                drop(self.send_chunk(py, &[], false));
                return None;
            }
            peer::parse_address(client?.bind(py))
        })
    }

    /// Sends the response head unless it was already sent.
    fn send_head(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(reply) = self.head.take() else { return Ok(()) };
        let message = PyDict::new(py);
        message.set_item(intern!(py, "type"), intern!(py, "http.response.start"))?;
        message.set_item(intern!(py, "status"), reply.status)?;
        message.set_item(intern!(py, "headers"), header_list(py, &reply.headers)?)?;
        self.is_answered = true;
        self.proto.bind(py).call_method1(intern!(py, "send"), (message,)).map(drop)
    }

    fn send_chunk(&mut self, py: Python<'_>, body: &[u8], more: bool) -> SendOutcome {
        match self.try_send_chunk(py, body, more) {
            Ok(future) if more && is_pending(&future) => {
                let (sender, writable) = oneshot::channel();
                callback::wait_for_future(&future, WaitEvent::Writable(sender));
                SendOutcome::Blocked(writable)
            }
            Ok(_) => SendOutcome::Accepted,
            Err(_) => SendOutcome::Closed,
        }
    }

    fn try_send_chunk<'py>(&mut self, py: Python<'py>, body: &[u8], more: bool) -> PyResult<Bound<'py, PyAny>> {
        self.send_head(py)?;
        let message = PyDict::new(py);
        message.set_item(intern!(py, "type"), intern!(py, "http.response.body"))?;
        message.set_item(intern!(py, "body"), PyBytes::new(py, body))?;
        message.set_item(intern!(py, "more_body"), more)?;
        self.proto.bind(py).call_method1(intern!(py, "send"), (message,))
    }
}

impl StreamPeer {
    fn from_scope(scope: &Bound<'_, PyDict>, declares: bool) -> Self {
        let py = scope.py();
        let field = |name| scope.get_item(name).ok().flatten();
        let is_http2 = || field(intern!(py, "http_version")).is_some_and(|version| version.eq("2").unwrap_or(false));
        Self { client: field(intern!(py, "client")).map(Bound::unbind), checks_length: declares && is_http2() }
    }
}

/// Returns true if the server's future is not yet complete. Completed results have a type of their own, without
/// callbacks. That type is cached, because a look-up of a missing attribute raises an exception, which is slow.
fn is_pending(future: &Bound<'_, PyAny>) -> bool {
    static READY_TYPE: AtomicUsize = AtomicUsize::new(0);
    let kind = future.get_type().as_ptr() as usize;
    if kind == READY_TYPE.load(Ordering::Relaxed) {
        return false;
    }
    let pending = future.hasattr(intern!(future.py(), "add_done_callback")).unwrap_or(false);
    if !pending {
        READY_TYPE.store(kind, Ordering::Relaxed);
    }
    pending
}

impl Drop for Exchange {
    /// Sends an internal error if no response was sent.
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let ClientResponse { head: reply, body } = ClientResponse::internal_error();
        if let ClientResponseBody::Complete(body) = body {
            Python::attach(|py| self.send_complete(py, reply, &body));
        }
    }
}
