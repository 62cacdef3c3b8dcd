//! Harness of all engine tests: a gateway in front of a provider, request builders, and complete responses.
#![allow(dead_code, reason = "no test file needs all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

pub mod failing_provider;
pub mod faulty_relay;
pub mod golden_provider;
pub mod issuer;
pub mod limited_nodes;
pub mod realtime_client;
pub mod redis_server;
pub mod scripted_server;
pub mod spellings;
pub mod tls;

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use penstock_core::{
    gateway_state::GatewayState,
    ingress::{Request, message::RequestHead},
    process::{net_settings, settings::Settings},
    response::{
        client_response::{ClientResponse, ClientResponseBody},
        response_stream::ResponseStream,
    },
};
use penstock_mock::{Entry, Server};
use penstock_net::{LookupFn, Upstream, body::Body, headers::Headers};
use serde_json::{Value, json};

pub const CHAT_PATH: &str = "/v1/chat/completions";
pub const MESSAGES_PATH: &str = "/v1/messages";

/// Timeout of each wait. It is longer than any operation of a test needs, so that only a hanging test fails.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn with_timeout<F: Future>(work: F) -> F::Output {
    tokio::time::timeout(TEST_TIMEOUT, work).await.expect("it ends in time")
}

/// Circuit breaker config that opens on the first failure.
pub fn sensitive_breaker_config() -> Value {
    json!({"failure_threshold": 1, "failure_threshold_percentage": 1, "minimum_requests": 1, "cooldown_interval": 30_000})
}

/// Polls until `holds` returns true; panics with `description` after the timeout.
pub async fn wait_until(description: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {description}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A gateway whose provider `mock` is at an address that the test chooses.
pub struct TestGateway {
    pub state: Arc<GatewayState>,
}

impl TestGateway {
    pub fn for_provider(provider: &Server) -> Self {
        Self::with_settings(&provider.url(), |_| ())
    }

    pub fn for_url(url: &str) -> Self {
        Self::with_settings(url, |_| ())
    }

    pub fn with_settings(url: &str, change: impl FnOnce(&mut Settings)) -> Self {
        Self::build(Self::test_settings(url, change), None)
    }

    /// Creates a gateway that has no mock provider and resolves names with this function.
    pub fn with_resolver(look_up: LookupFn, change: impl FnOnce(&mut Settings)) -> Self {
        Self::build(Self::test_settings("", change), Some(look_up))
    }

    fn test_settings(url: &str, change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings {
            // Records are written only if a control socket is set. Nothing listens on this socket.
            control_socket: Some("/nonexistent/penstock/control.sock".into()),
            connect_timeout_ms: 2_000,
            idle_timeout_ms: 5_000,
            request_timeout_ms: 8_000,
            mock_host: (!url.is_empty()).then(|| url.to_owned()),
            ..Settings::default()
        };
        change(&mut settings);
        settings
    }

    fn build(settings: Settings, look_up: Option<LookupFn>) -> Self {
        let client_settings = net_settings::client_settings(&settings);
        let upstream =
            look_up.map(|look_up| Upstream::with_resolver(&client_settings, look_up).expect("good settings"));
        let mut state = GatewayState::new(settings).unwrap_or_else(|problems| panic!("{problems:?}"));
        if let Some(upstream) = upstream {
            state.upstream = upstream.into();
        }
        let gateway = Self { state: Arc::new(state) };
        gateway.apply_snapshot(&json!({"epoch": "0"}));
        gateway
    }

    pub fn apply_snapshot(&self, snapshot: &Value) {
        self.state.apply_snapshot(snapshot.to_string().as_bytes()).unwrap_or_else(|problems| panic!("{problems:?}"));
    }

    /// Returns the response as the server receives it; its stream is not read.
    pub async fn handle_request(&self, request: TestRequest) -> ClientResponse {
        with_timeout(penstock_core::gateway::handle(&self.state, request.build())).await
    }

    /// Sends a request and reads the response to its end.
    pub async fn send(&self, request: TestRequest) -> TestResponse {
        TestResponse::read(self.handle_request(request).await).await
    }

    /// Returns the records since the last call. Waits until all token counting has finished.
    pub fn drain_records(&self) -> Vec<Value> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.state.record_sink.token_counter.pending_jobs() > 0 {
            assert!(Instant::now() < deadline, "counting never ends");
            std::thread::sleep(Duration::from_millis(1));
        }
        let sink = &self.state.record_sink;
        let mut records = Vec::new();
        for outbox in [&sink.outbox, &sink.refused_outbox] {
            if let Some(pending) = outbox.take_pending() {
                records.extend(parse_json_lines(&pending));
                outbox.acknowledge(pending);
            }
        }
        records
    }

    /// Returns the last record since the last call; panics unless there are exactly `count`.
    pub fn last_record(&self, count: usize) -> Value {
        let mut records = self.drain_records();
        assert_eq!(records.len(), count);
        records.pop().unwrap_or_default()
    }

    /// Returns the record since the last call; panics unless there is exactly one.
    pub fn single_record(&self) -> Value {
        let mut records = self.drain_records();
        assert_eq!(records.len(), 1, "{records:#?}");
        records.remove(0)
    }
}

pub fn parse_json_lines(bytes: &[u8]) -> Vec<Value> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Builder of a client request.
pub struct TestRequest {
    head: RequestHead,
    body: Body,
}

impl TestRequest {
    /// Creates a request from a method and a path with its query. It names no provider.
    pub fn new(method: &str, target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (path, query) = (path.to_owned(), query.to_owned());
        Self { head: RequestHead { method: method.into(), path, query, ..RequestHead::default() }, body: Body::empty() }
    }

    pub fn method(mut self, method: &str) -> Self {
        method.clone_into(&mut self.head.method);
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.head.headers.push(name.as_bytes(), value.as_bytes());
        self
    }

    pub fn peer(mut self, peer: IpAddr) -> Self {
        self.head.peer_ip = Some(peer);
        self
    }

    pub fn body(self, bytes: impl Into<Bytes>) -> Self {
        self.with_body(Body::Complete(bytes.into()))
    }

    pub fn with_body(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    pub fn build(self) -> Request {
        Request { head: self.head, body: self.body }
    }
}

pub fn get_request(target: &str) -> TestRequest {
    TestRequest::new("GET", target).header("x-gateway-provider", "mock")
}

pub fn post_request(target: &str, json: impl Into<Bytes>) -> TestRequest {
    TestRequest::new("POST", target)
        .header("x-gateway-provider", "mock")
        .header("content-type", "application/json")
        .body(json)
}

/// Builds a request that names no provider.
pub fn request_without_provider(path: &str) -> TestRequest {
    TestRequest::new("POST", path).header("content-type", "application/json").body(chat_body("mock", false))
}

pub fn chat_body(model: &str, stream: bool) -> String {
    json!({"model": model, "stream": stream, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})
        .to_string()
}

/// Body of a streamed request that asks for usage, so that the gateway removes nothing from the response.
pub fn chat_body_with_usage(model: &str) -> String {
    chat_body(model, true).replacen('{', r#"{"stream_options":{"include_usage":true},"#, 1)
}

/// Requests a complete chat response.
pub fn chat_request(model: &str) -> TestRequest {
    post_request(CHAT_PATH, chat_body(model, false))
}

/// Requests a stream of chat completions or of messages.
pub fn stream_request(path: &str, model: &str) -> TestRequest {
    post_request(path, chat_body_with_usage(model))
}

/// Requests a chat response with an inline config.
pub fn chat_with_config(config: &Value) -> TestRequest {
    post_with_config(config, CHAT_PATH, chat_body("mock", false))
}

/// Posts JSON to `target` with an inline config.
pub fn post_with_config(config: &Value, target: &str, json: impl Into<Bytes>) -> TestRequest {
    let request = TestRequest::new("POST", target).header("x-gateway-config", &config.to_string());
    request.header("content-type", "application/json").body(json)
}

/// Target whose mock provider behaves as described, such as `status=503`.
pub fn mock_target(behaviour: &str) -> Value {
    json!({"provider": "mock", "override_params": {"model": format!("mock?{behaviour}")}})
}

/// Returns the response headers that name the target, the retry count and the cache status.
pub fn routing_headers(response: &TestResponse) -> [&str; 3] {
    ["x-gateway-last-used-option-index", "x-gateway-retry-attempt-count", "x-gateway-cache-status"]
        .map(|name| response.header(name).unwrap_or_default())
}

/// A response that was read to its end.
#[derive(Debug)]
pub struct TestResponse {
    pub status: u16,
    pub headers: Headers,
    pub body: Vec<u8>,
    /// Chunks of the body; a single one if the response was not streamed.
    pub chunks: Vec<Bytes>,
    pub is_streamed: bool,
    /// True if the body ended in a way that every client recognises as an error.
    pub is_truncated: bool,
}

impl TestResponse {
    pub async fn read(response: ClientResponse) -> Self {
        let ClientResponse { head: reply, body } = response;
        let (parts, streamed, cut) = match body {
            ClientResponseBody::Complete(bytes) => (vec![bytes], false, false),
            ClientResponseBody::Stream(stream) => {
                let (parts, cut) = read_stream(*stream).await;
                (parts, true, cut)
            }
        };
        Self {
            status: reply.status,
            headers: reply.headers,
            body: parts.concat(),
            chunks: parts,
            is_streamed: streamed,
            is_truncated: cut,
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get_str(name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// Returns the error code if the response is one of the gateway's own errors.
    pub fn error_code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns name and data of the last event.
    pub fn last_event(&self) -> (Option<String>, Value) {
        let text = self.text();
        let event = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(ToOwned::to_owned);
        (field("event: "), serde_json::from_str(&field("data: ").unwrap_or_default()).unwrap_or_default())
    }
}

/// Returns all chunks of a stream, and true if it was truncated.
pub async fn read_stream(mut stream: ResponseStream) -> (Vec<Bytes>, bool) {
    let mut chunks = Vec::new();
    loop {
        match with_timeout(stream.next()).await {
            Ok(Some(piece)) => chunks.push(piece),
            Ok(None) => return (chunks, false),
            Err(_) => return (chunks, true),
        }
    }
}

/// Returns the stream of a response; panics if it is not streamed.
pub fn into_stream(response: ClientResponse) -> ResponseStream {
    match response.body {
        ClientResponseBody::Stream(stream) => *stream,
        ClientResponseBody::Complete(bytes) => panic!("whole: {}", String::from_utf8_lossy(&bytes)),
    }
}

/// Waits until `count` requests have arrived and ended; returns the provider's ledger.
pub async fn wait_for_ledger_entries(provider: &Server, count: usize) -> Vec<Entry> {
    let entries = provider.wait_until_settled(count, TEST_TIMEOUT).await;
    assert_eq!(entries.len(), count, "{entries:#?}");
    entries
}

/// Returns the only request that reached the provider since the last call. Panics if it contains the gateway's key or
/// headers.
pub fn single_sent_request(provider: &Server) -> Entry {
    let mut entries = provider.ledger_entries();
    provider.clear_ledger();
    assert_eq!(entries.len(), 1, "{entries:#?}");
    let entry = entries.remove(0);
    assert!(!format!("{entry:?}").contains("canary"), "{entry:#?}");
    assert!(!entry.headers.iter().any(|(name, _)| name.starts_with("x-gateway") || name.starts_with("x-portkey")));
    entry
}

/// Sends the same request to the provider without a gateway; returns the response body.
pub async fn fetch_directly(addr: SocketAddr, target: &str, body: &str) -> Vec<u8> {
    let head = format!(
        "POST {target} HTTP/1.1\r\nhost: {addr}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    with_timeout(scripted_server::fetch_body(addr, [head.as_bytes(), body.as_bytes()].concat())).await
}

/// Returns these fields of a record, in this order.
pub fn pick_fields<const N: usize>(record: &Value, names: [&str; N]) -> Value {
    names.map(|name| record[name].clone()).to_vec().into()
}

/// Returns the digest in hexadecimal, as in snapshots and in the mock provider's echo.
pub fn sha256_hex(bytes: impl AsRef<[u8]>) -> String {
    use sha2::Digest;
    let digits = |hex: String, byte: &u8| hex + &format!("{byte:02x}");
    sha2::Sha256::digest(bytes).iter().fold(String::new(), digits)
}
