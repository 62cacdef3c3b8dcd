//! CPU time of one request over a kept connection, compared with hyper's connection API. Both clients run on the thread
//! that measures; the server has a thread of its own, which is not counted.
#![allow(clippy::unwrap_used, reason = "a benchmark may panic on failure")]

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use penstock_net::{BaseUrl, BodyFraming, OutgoingRequest, Settings, Upstream, body::Body};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

const BODY: &[u8] = &[b'x'; 1024];
/// Header fields that a provider's SDK sends, besides `host` and `content-length`.
const FIELDS: [(&str, &str); 6] = [
    ("authorization", "Bearer sk-0123456789abcdef0123456789abcdef"),
    ("content-type", "application/json"),
    ("accept", "application/json"),
    ("user-agent", "OpenAI/Python 2.9.0"),
    ("x-stainless-lang", "python"),
    ("x-stainless-runtime-version", "3.11.9"),
];

/// Returns a complete response with a body of 1 KB.
fn complete_response() -> Vec<u8> {
    let body = "y".repeat(1024);
    format!("HTTP/1.1 200 OK\r\n{RESPONSE_FIELDS}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Returns a stream of 100 events, each in a chunk of its own.
fn streamed_response() -> Vec<u8> {
    let event = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "z".repeat(20));
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    format!("HTTP/1.1 200 OK\r\n{RESPONSE_FIELDS}transfer-encoding: chunked\r\n\r\n{}0\r\n\r\n", chunk.repeat(100))
        .into_bytes()
}

const RESPONSE_FIELDS: &str = "content-type: application/json\r\ndate: Sun, 29 Nov 2026 12:00:00 GMT\r\n\
    x-request-id: req_0123456789abcdef\r\nopenai-processing-ms: 12\r\nserver: mock\r\n";

/// Starts a server that answers each request of each connection with the same bytes.
fn start_server(response: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let (response, connection) = (response.clone(), connection.unwrap());
            std::thread::spawn(move || serve(connection, &response));
        }
    });
    address
}

fn serve(mut connection: TcpStream, response: &[u8]) {
    connection.set_nodelay(true).unwrap();
    let (mut received, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    loop {
        // All requests have the same body.
        let end = received.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| at + 4 + BODY.len());
        if let Some(end) = end.filter(|end| received.len() >= *end) {
            received.drain(..end);
            if connection.write_all(response).is_err() {
                return;
            }
            continue;
        }
        match connection.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => received.extend_from_slice(&buffer[..count]),
        }
    }
}

async fn send_with_penstock(client: &Upstream, base: &BaseUrl) -> usize {
    let mut head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\n", base.origin.authority()).into_bytes();
    for (name, value) in FIELDS {
        head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    head.extend_from_slice(format!("content-length: {}\r\n\r\n", BODY.len()).as_bytes());
    let body = Body::Complete(Bytes::from_static(BODY));
    let request = OutgoingRequest { head, body, body_framing: BodyFraming::default(), is_replayable: false };
    let mut response = client.send(&base.origin, request).await.unwrap();
    let mut length = 0;
    while let Some(chunk) = response.body.next_chunk().await {
        length += chunk.unwrap().len();
    }
    length
}

async fn connect_with_hyper(address: SocketAddr) -> SendRequest<Full<Bytes>> {
    let connection = tokio::net::TcpStream::connect(address).await.unwrap();
    connection.set_nodelay(true).unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(connection)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn send_with_hyper(sender: &mut SendRequest<Full<Bytes>>, host: &str) -> usize {
    sender.ready().await.unwrap();
    let mut request = hyper::Request::post("/v1/chat/completions").header("host", host);
    for (name, value) in FIELDS {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from_static(BODY))).unwrap();
    let mut body = sender.send_request(request).await.unwrap().into_body();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame.unwrap().data_ref().map_or(0, Bytes::len);
    }
    length
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Returns the CPU time of this thread for so many calls.
fn measure_cpu(runtime: &Runtime, count: u64, mut call: impl AsyncFnMut() -> usize) -> Duration {
    let began = thread_cpu_time();
    runtime.block_on(async {
        for _ in 0..count {
            assert!(call().await > 0);
        }
    });
    thread_cpu_time().saturating_sub(began)
}

fn bench_requests(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settings = Settings { trusted_hosts: vec!["127.0.0.1".into()], ..Settings::default() };
    for (name, response) in [("response of 1 KB", complete_response()), ("stream of 100 events", streamed_response())] {
        let address = start_server(response);
        let base = BaseUrl::parse(&format!("http://{address}")).unwrap();
        let client = Upstream::new(&settings).unwrap();
        let mut group = c.benchmark_group(name);
        group.bench_function("penstock", |b| {
            b.iter_custom(|count| measure_cpu(&runtime, count, async || send_with_penstock(&client, &base).await));
        });
        let mut sender = runtime.block_on(connect_with_hyper(address));
        let host = address.to_string();
        group.bench_function("hyper", |b| {
            b.iter_custom(|count| measure_cpu(&runtime, count, async || send_with_hyper(&mut sender, &host).await));
        });
        group.finish();
    }
}

criterion_group!(benches, bench_requests);
criterion_main!(benches);
