//! Benchmark of the most common request (known key, named provider, short response) and of one stream chunk. It runs
//! over a real connection, so that the complete request path is measured. `CONTRIBUTING.md` describes how the
//! instructions of each are counted.

use std::{fmt::Write, hint::black_box, sync::Arc};

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use penstock_core::{
    gateway_state::GatewayState,
    ingress::{Request, message::RequestHead},
    process::settings::Settings,
    response::client_response::ClientResponseBody,
};
use penstock_mock::Server;
use penstock_net::{body::Body, headers::Headers};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

const API_KEY: &str = "pk-0123456789abcdef0123456789abcdef";
/// Number of content chunks in a stream; framing chunks come in addition.
const STREAM_CHUNKS: usize = 100;

/// Gateway with one API key, and the mock provider that it forwards to.
struct BenchGateway {
    runtime: Runtime,
    state: Arc<GatewayState>,
    _provider: Server,
}

impl BenchGateway {
    fn new() -> Option<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let provider = runtime.block_on(Server::start());
        let settings = Settings {
            mock_host: Some(provider.url()),
            control_socket: Some("/nonexistent".into()),
            records: true,
            header_aliases: vec!["x-portkey-".into()],
            ..Settings::default()
        };
        let state = Arc::new(GatewayState::new(settings).ok()?);
        let mut digest = String::new();
        for byte in Sha256::digest(API_KEY) {
            let _ = write!(digest, "{byte:02x}");
        }
        let keys = json!([{"id": "k-1", "name": "bench", "sha256": digest}]);
        let management = json!(["/v1/health", "/schema", "/metrics", "/api-keys", "/configs", "/providers", "/logs"]);
        let published = json!({"epoch": "1", "keys": keys, "management": management});
        state.apply_snapshot(published.to_string().as_bytes()).ok()?;
        Some(Self { runtime, state, _provider: provider })
    }

    /// Builds a request as the server passes it to the core. Drains the waiting records first, as the control process
    /// would.
    fn build_request(&self, body: &Bytes) -> Request {
        if let Some(lines) = self.state.record_sink.outbox.take_pending() {
            self.state.record_sink.outbox.acknowledge(lines);
        }
        let mut headers = Headers::with_capacity(6);
        for (name, value) in [
            ("host", "127.0.0.1:8787"),
            ("content-length", "961"),
            ("authorization", "Bearer sk-pretend"),
            ("x-gateway-api-key", API_KEY),
            ("x-gateway-provider", "mock"),
            ("content-type", "application/json"),
        ] {
            headers.push(name.as_bytes(), value.as_bytes());
        }
        let (method, path) = ("POST".into(), "/v1/chat/completions".into());
        let head = RequestHead { method, path, query: String::new(), headers, ..RequestHead::default() };
        Request { head, body: Body::Complete(body.clone()) }
    }
}

fn build_body(model: &str, streams: bool, bytes: usize) -> Bytes {
    let content = "Tell me more. ".repeat(bytes / 14);
    let mut body = json!({"model": model, "messages": [{"role": "user", "content": content}]});
    if streams {
        body["stream"] = true.into();
    }
    body.to_string().into()
}

/// Sends one request and returns the size of the complete response. Instructions are counted from the call to the
/// return of this function.
#[inline(never)]
fn one_request(bench: &BenchGateway, request: Request) -> usize {
    match bench.runtime.block_on(penstock_core::gateway::handle(&bench.state, request)).body {
        ClientResponseBody::Complete(bytes) => black_box(bytes).len(),
        ClientResponseBody::Stream(_) => 0,
    }
}

/// Sends one streaming request and returns the number of chunks received.
#[inline(never)]
fn one_stream(bench: &BenchGateway, request: Request) -> usize {
    bench.runtime.block_on(async {
        let ClientResponseBody::Stream(mut stream) = penstock_core::gateway::handle(&bench.state, request).await.body
        else {
            return 0;
        };
        let mut chunk_count = 0;
        while let Ok(Some(chunk)) = stream.next().await {
            chunk_count += usize::from(!black_box(chunk).is_empty());
        }
        chunk_count
    })
}

fn bench_plain_requests(c: &mut Criterion) {
    let Some(bench) = BenchGateway::new() else { return };
    let mut group = c.benchmark_group("plain");
    let streamed = format!("mock?chunks={STREAM_CHUNKS}&chunk_ms=1");
    for (name, body) in [
        ("a request", build_body("mock?response_bytes=1041", false, 890)),
        ("a request of a megabyte", build_body("mock?response_bytes=1041", false, 1_000_000)),
    ] {
        group.bench_function(name, |b| {
            let send = |request| assert!(one_request(&bench, request) > 1000);
            b.iter_batched(|| bench.build_request(&body), send, BatchSize::PerIteration);
        });
    }
    let body = build_body(&streamed, true, 100);
    group.bench_function("a stream of 100 chunks", |b| {
        let send = |request| assert!(one_stream(&bench, request) >= STREAM_CHUNKS / 2);
        b.iter_batched(|| bench.build_request(&body), send, BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, bench_plain_requests);
criterion_main!(benches);
