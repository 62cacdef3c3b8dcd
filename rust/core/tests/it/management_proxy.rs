//! Control process next to the engine. It serves management paths, receives metrics and publishes snapshots; the data
//! plane works without it.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::harness::{
    TestGateway, TestRequest, chat_request, get_request,
    scripted_server::{encode_chunks, json_response, read_request},
    wait_until,
};
use crate::spool::SpoolFolder;
use bytes::Bytes;
use penstock_core::endpoints::management_proxy;
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};

/// Request as the control process receives it.
#[derive(Debug, Clone)]
struct ReceivedRequest {
    /// Method and target.
    request_line: String,
    head: String,
    body: Vec<u8>,
}

type Responder = dyn Fn(&ReceivedRequest) -> Option<Vec<u8>> + Send + Sync;

/// Minimal control process. A request for which it has no response waits forever.
struct MockControl {
    socket_path: PathBuf,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    tasks: Vec<JoinHandle<()>>,
}

static SOCKET_COUNT: AtomicUsize = AtomicUsize::new(0);

impl MockControl {
    /// Creates a control process that does not listen yet.
    fn new_stopped() -> Self {
        let number = SOCKET_COUNT.fetch_add(1, Ordering::Relaxed);
        let socket_path = std::env::temp_dir().join(format!("penstock-core-{}-{number}.sock", std::process::id()));
        Self { socket_path, received: Arc::default(), tasks: Vec::new() }
    }

    fn start(responses: impl Fn(&ReceivedRequest) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        let mut control = Self::new_stopped();
        control.listen(responses);
        control
    }

    fn listen(&mut self, responses: impl Fn(&ReceivedRequest) -> Option<Vec<u8>> + Send + Sync + 'static) {
        let listener = UnixListener::bind(&self.socket_path).unwrap();
        let (responses, request): (Arc<Responder>, _) = (Arc::new(responses), Arc::clone(&self.received));
        self.tasks.push(tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((io, _)) = listener.accept().await {
                connections.spawn(serve_connection(io, Arc::clone(&responses), Arc::clone(&request)));
            }
        }));
    }

    /// Stops the process and closes its connections.
    async fn stop(&mut self) {
        for serving in self.tasks.drain(..) {
            serving.abort();
            drop(serving.await);
        }
        drop(std::fs::remove_file(&self.socket_path));
    }

    fn received_requests(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }

    fn request_lines(&self) -> Vec<String> {
        self.received_requests().into_iter().map(|request| request.request_line).collect()
    }

    fn gateway(&self, url: &str) -> TestGateway {
        let gateway =
            TestGateway::with_settings(url, |settings| settings.control_socket = Some(self.socket_path.clone()));
        gateway.apply_snapshot(&json!({"epoch": "0", "management": ["/v1/health", "/schema"]}));
        gateway
    }
}

impl Drop for MockControl {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        drop(std::fs::remove_file(&self.socket_path));
    }
}

async fn serve_connection(mut io: UnixStream, responses: Arc<Responder>, requests: Arc<Mutex<Vec<ReceivedRequest>>>) {
    while let Some(bytes) = read_request(&mut io).await {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
        let request = ReceivedRequest { request_line: line, head, body: bytes[end + 4..].to_vec() };
        requests.lock().unwrap().push(request.clone());
        let Some(response) = responses(&request) else { return std::future::pending().await };
        if io.write_all(&response).await.is_err() {
            return;
        }
    }
}

fn no_content_response() -> Vec<u8> {
    b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()
}

#[tokio::test]
async fn forwards_management_request_and_response_unchanged() {
    let control =
        MockControl::start(|_| Some(json_response("418 Teapot", "x-own: 1\r\nset-cookie: a=1\r\n", "{\"ok\" : 1}")));
    let gateway = control.gateway("http://127.0.0.1:1");
    let request = TestRequest::new("PATCH", "/v1/health/deep?x=%20&y=/")
        .header("Host", "gateway.example")
        .header("authorization", "Bearer admin")
        .header("x-gateway-api-key", "pk-1")
        .header("content-type", "application/json")
        .header("content-length", "7")
        .header("connection", "keep-alive")
        .header("expect", "100-continue")
        .body("{\"a\":1}");
    let reply = gateway.send(request).await;
    assert_eq!((reply.status, reply.text().as_str(), reply.header("x-own")), (418, "{\"ok\" : 1}", Some("1")));
    let requests = control.received_requests().remove(0);
    assert_eq!(
        (requests.request_line.as_str(), &requests.body[..]),
        ("PATCH /v1/health/deep?x=%20&y=/", &b"{\"a\":1}"[..])
    );
    for line in ["host: gateway.example", "authorization: Bearer admin", "x-gateway-api-key: pk-1", "content-length: 7"]
    {
        assert_eq!(requests.head.lines().filter(|other| *other == line).count(), 1, "{line} in {}", requests.head);
    }
    assert!(!requests.head.contains("expect") && !requests.head.contains("connection"));
    assert!(gateway.drain_records().is_empty());
    // The response carries request ids under the header prefix that the client uses.
    assert_eq!(reply.header("x-request-id").map(str::len), Some(36));
    assert_eq!(reply.header("x-gateway-trace-id"), reply.header("x-request-id"));
    let control = MockControl::start(|_| Some(json_response("200 OK", "x-request-id: r-1\r\n", "{}")));
    let response = control.gateway("http://127.0.0.1:1").send(get_request("/v1/health")).await;
    for name in ["x-request-id", "request-id", "x-gateway-request-id", "x-gateway-trace-id"] {
        assert_eq!(response.header(name), Some("r-1"), "the id of the management API is the only one");
    }
    let traced = gateway.send(TestRequest::new("GET", "/v1/health/deep").header("x-portkey-trace-id", "t-1")).await;
    assert_eq!(traced.header("x-portkey-trace-id"), Some("t-1"));
}

#[tokio::test]
async fn streams_large_management_response() {
    let body = "x".repeat(700_000);
    let framed = [
        &b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"[..],
        &encode_chunks(body.as_bytes(), 9_999),
        b"0\r\n\r\n",
    ]
    .concat();
    let control = MockControl::start(move |_| Some(framed.clone()));
    let response = control.gateway("http://127.0.0.1:1").send(get_request("/schema/openapi.json")).await;
    assert!(response.is_streamed && !response.is_truncated && response.text() == body);
}

#[tokio::test]
async fn assembles_and_bounds_chunked_management_body() {
    let control = MockControl::start(respond_as_authenticated);
    let mut gateway = control.gateway("http://127.0.0.1:1");
    let (feeder, item) = feed_channel(|| ());
    feeder.push(Bytes::from_static(b"ab"));
    feeder.push(Bytes::from_static(b"cd"));
    feeder.finish(BodyEnd::Complete);
    let response = gateway.send(TestRequest::new("POST", "/v1/health").with_body(Body::Streamed(item, None))).await;
    let received = control.received_requests();
    assert_eq!((response.status, received.len(), received[1].body.as_slice()), (200, 2, &b"abcd"[..]));
    gateway = TestGateway::with_settings("", |settings| {
        settings.control_socket = Some(control.socket_path.clone());
        settings.max_body_bytes = 3;
    });
    gateway.apply_snapshot(&json!({"epoch": "0", "management": ["/v1/health"]}));
    assert_eq!(gateway.send(TestRequest::new("POST", "/v1/health").body("abcd")).await.status, 413);
    assert_eq!(control.received_requests().len(), 2);
}

/// Answers `/internal/identity` as for a valid key, and everything else with `{}`.
#[allow(clippy::unnecessary_wraps, reason = "a responder may also wait forever")]
fn respond_as_authenticated(request: &ReceivedRequest) -> Option<Vec<u8>> {
    let is_authenticating = request.request_line.contains("/internal/identity");
    let authenticated = || b"HTTP/1.1 204 No Content\r\n\r\n".to_vec();
    Some(if is_authenticating { authenticated() } else { json_response("200 OK", "", "{}") })
}

#[tokio::test]
async fn reads_no_body_before_the_client_is_authenticated() {
    let control = MockControl::start(|request| {
        let is_authenticating = request.request_line.contains("/internal/identity");
        Some(json_response(if is_authenticating { "401 Unauthorized" } else { "200 OK" }, "", "{}"))
    });
    let gateway = control.gateway("http://127.0.0.1:1");
    gateway.apply_snapshot(&json!({"epoch": "0", "management": ["/v1/health", "/v1/auth/sessions"]}));
    // Nothing of this body ever arrives.
    let (waiting, body) = feed_channel(|| ());
    let response = gateway.send(TestRequest::new("POST", "/v1/health").with_body(Body::Streamed(body, None))).await;
    let received = control.received_requests();
    assert_eq!((response.status, received.len()), (401, 1));
    assert!(received[0].head.contains("x-penstock-request: POST /v1/health\r\n"), "{}", received[0].head);
    drop(waiting);
    for (bytes, status) in [(8 * 1024, 200), (8 * 1024 + 1, 413)] {
        let (feeder, body) = feed_channel(|| ());
        feeder.push(vec![b' '; bytes].into());
        feeder.finish(BodyEnd::Complete);
        let request = TestRequest::new("POST", "/v1/auth/sessions").with_body(Body::Streamed(body, None));
        assert_eq!(gateway.send(request).await.status, status, "{bytes}");
    }
}

#[tokio::test]
async fn limits_management_bodies_individually_and_in_total() {
    let control = MockControl::start(respond_as_authenticated);
    let gateway = TestGateway::with_settings("", |settings| {
        settings.control_socket = Some(control.socket_path.clone());
        settings.max_body_bytes = 6 * 1024 * 1024;
    });
    gateway.apply_snapshot(&json!({"epoch": "0", "management": ["/v1/health", "/v1/files"]}));
    let fed = |path: &str, bytes: usize| {
        let (feeder, body) = feed_channel(|| ());
        feeder.push(vec![b' '; bytes].into());
        feeder.finish(BodyEnd::Complete);
        TestRequest::new("POST", path).with_body(Body::Streamed(body, None))
    };
    let large = 5 * 1024 * 1024;
    let response = gateway.send(fed("/v1/health", large)).await;
    assert_eq!((response.status, response.error_code().as_str()), (413, "body_too_large"));
    assert_eq!(gateway.send(TestRequest::new("POST", "/v1/health").body(" ".repeat(large))).await.status, 413);
    assert_eq!(gateway.send(fed("/v1/files", large)).await.status, 200);
    let management_memory = &gateway.state.shared.management_memory;
    let mut shares = Vec::new();
    loop {
        let mut share = management_memory.new_permit();
        if !share.try_reserve(1024 * 1024) {
            break;
        }
        shares.push(share);
    }
    let response = gateway.send(fed("/v1/health", 1024 * 1024)).await;
    assert_eq!(
        (response.status, response.error_code().as_str(), response.header("retry-after")),
        (503, "overloaded", Some("1"))
    );
    assert_eq!(gateway.state.record_sink.metrics.management_rejected.get(), 1);
    assert_eq!(gateway.send(fed("/v1/health", 1024)).await.status, 200);
    shares.clear();
    assert_eq!(gateway.send(fed("/v1/health", 1024 * 1024)).await.status, 200);
    assert_eq!(management_memory.used_bytes(), 0);
}

#[tokio::test]
async fn internal_paths_are_never_forwarded() {
    let control = MockControl::start(|_| Some(no_content_response()));
    let gateway = control.gateway("http://127.0.0.1:1");
    for path in [
        "/internal",
        "/internal/records",
        "/internal/snapshot?epoch=0",
        "//internal/records",
        "/Internal/records",
        "/%69nternal/records",
        "/v1/health/../internal/records",
        "/v1/health/../../internal/records",
        "/v1/health/%2e%2e/%2e%2e/internal/records",
        "/v1/health/..%2f..%2finternal/records",
        "/v1/health/..%5c..%5cinternal/records",
        "/v1/healthy/internal/records",
        "/schema.json",
    ] {
        for method in ["GET", "POST"] {
            let response = gateway.send(TestRequest::new(method, path)).await;
            assert!((400..500).contains(&response.status), "{method} {path}: {}", response.status);
        }
    }
    assert!(control.request_lines().is_empty(), "{:?}", control.request_lines());
    for management in ["/internal", "/internal/records", "/", "", "internal"] {
        let snapshot = json!({"epoch": "1", "management": [management]});
        assert!(gateway.state.apply_snapshot(snapshot.to_string().as_bytes()).is_err(), "{management}");
    }
}

#[tokio::test]
async fn data_plane_works_without_control_process() {
    let provider = Server::start().await;
    let mut control = MockControl::new_stopped();
    let gateway = control.gateway(&provider.url());
    for _ in 0..2 {
        let response = gateway.send(get_request("/v1/health")).await;
        assert_eq!((response.status, response.error_code().as_str()), (503, "management_unavailable"));
        assert_eq!(response.header("retry-after"), Some("1"));
        assert_eq!(gateway.send(chat_request("mock")).await.status, 200);
        control.listen(|_| Some(json_response("200 OK", "", "{}")));
        assert_eq!(gateway.send(get_request("/v1/health")).await.status, 200);
        assert_eq!(gateway.send(TestRequest::new("POST", "/v1/health").body("{}")).await.status, 200);
        control.stop().await;
    }
    let unset = TestGateway::with_settings("", |settings| settings.control_socket = None);
    unset.apply_snapshot(&json!({"epoch": "0", "management": ["/v1/health"]}));
    assert_eq!(unset.send(get_request("/v1/health")).await.status, 503);
}

#[tokio::test]
async fn reconnects_to_restarted_control_process() {
    let mut control = MockControl::new_stopped();
    let gateway = control.gateway("http://127.0.0.1:1");
    for _ in 0..3 {
        control.listen(|_| Some(json_response("200 OK", "", "{}")));
        // The pooled connection from before the restart is closed by now.
        for _ in 0..3 {
            assert_eq!(gateway.send(get_request("/v1/health")).await.status, 200);
        }
        control.stop().await;
    }
}

#[tokio::test]
async fn reports_metrics_every_second() {
    let provider = Server::start().await;
    let control = MockControl::start(|_| Some(no_content_response()));
    let spool = SpoolFolder::new();
    let gateway =
        spool.gateway(&provider.url(), |settings| settings.control_socket = Some(control.socket_path.clone()));
    gateway.apply_snapshot(&json!({"epoch": "0", "management": ["/v1/health"]}));
    gateway.send(chat_request("mock")).await;
    gateway.send(get_request("/v1/health")).await;
    let telling = tokio::spawn(management_proxy::report_metrics(Arc::clone(&gateway.state)));
    wait_until("the metrics were posted", || control.request_lines().contains(&"POST /internal/metrics".to_owned()))
        .await;
    telling.abort();
    let response: Value = serde_json::from_slice(&control.received_requests().last().unwrap().body).unwrap();
    let names = ["worker", "management", "records", "records_dropped", "idle_connections", "epoch", "in_flight"];
    assert_eq!(crate::harness::pick_fields(&response, names), json!([1, 1, 1, 0, 2, "0", 0]));
    assert_eq!((&response["requests"]["2xx"], &response["pid"]), (&json!(1), &json!(std::process::id())));
}

#[tokio::test]
async fn follows_snapshots_and_ignores_invalid_ones() {
    let published: Arc<Mutex<Vec<u8>>> = Arc::default();
    let current = Arc::clone(&published);
    let control = MockControl::start(move |_| {
        let body = std::mem::take(&mut *current.lock().unwrap());
        let published = || json_response("200 OK", "x-penstock-epoch: x\r\n", std::str::from_utf8(&body).unwrap());
        Some(if body.is_empty() { no_content_response() } else { published() })
    });
    let gateway = control.gateway("http://127.0.0.1:1");
    let following = tokio::spawn(management_proxy::follow_snapshots(Arc::clone(&gateway.state), Arc::new(|| {})));
    let publish = |json: Value| *published.lock().unwrap() = json.to_string().into_bytes();
    publish(json!({"epoch": "1"}));
    wait_until("the first comes", || gateway.state.snapshot_epoch() == "1").await;
    publish(json!({"epoch": "2", "keys": [{"id": "k"}]}));
    wait_until("the bad one is seen", || published.lock().unwrap().is_empty()).await;
    publish(json!({"epoch": "3", "management": ["/v1/health"]}));
    wait_until("the next comes", || gateway.state.snapshot_epoch() == "3").await;
    publish(json!({"epoch": "4", "since": "1"}));
    wait_until("what fits to something else is seen", || published.lock().unwrap().is_empty()).await;
    publish(json!({"epoch": "5", "since": "3"}));
    wait_until("what fits comes", || gateway.state.snapshot_epoch() == "5").await;
    following.abort();
    let lines = control.request_lines();
    assert_eq!(lines[0], "GET /internal/snapshot?worker=1&epoch=0");
    assert!(lines.contains(&"GET /internal/snapshot?worker=1&epoch=1".to_owned()));
    assert!(!lines.contains(&"GET /internal/snapshot?worker=1&epoch=2".to_owned()));
    let last = lines.iter().rposition(|line| line.ends_with("epoch=3")).unwrap();
    assert!(lines[last..].contains(&"GET /internal/snapshot?worker=1&epoch=".to_owned()), "it is asked for whole");
}

#[tokio::test]
async fn keeps_last_snapshot_while_control_process_is_down() {
    let provider = Server::start().await;
    let mut control = MockControl::new_stopped();
    let gateway = control.gateway(&provider.url());
    let following = tokio::spawn(management_proxy::follow_snapshots(Arc::clone(&gateway.state), Arc::new(|| {})));
    tokio::time::sleep(Duration::from_millis(120)).await;
    assert_eq!((gateway.state.snapshot_epoch().as_str(), gateway.send(chat_request("mock")).await.status), ("0", 200));
    control.listen(|request| {
        if request.request_line.ends_with("epoch=0") {
            Some(json_response("200 OK", "", r#"{"epoch":"1"}"#))
        } else {
            None
        }
    });
    wait_until("the new one comes", || gateway.state.snapshot_epoch() == "1").await;
    // The gateway waits for changes in one long poll and does not poll repeatedly.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        control.request_lines(),
        ["GET /internal/snapshot?worker=1&epoch=0", "GET /internal/snapshot?worker=1&epoch=1"]
    );
    following.abort();
}
