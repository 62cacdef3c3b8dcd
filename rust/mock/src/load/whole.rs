//! Closed-loop load. Each connection sends its next request when the response to the previous one is complete.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Duration, Instant, sleep, timeout, timeout_at};

use super::histogram::Histogram;
use super::options::LoadOptions;
use super::reply::{Failure, ResponseReader};
use super::report::{ErrorCounts, per_second, rounded_seconds};
use super::{CONNECT_TIMEOUT, DRAIN_TIMEOUT};

/// Pause after a failed request, so that a server that refuses connections is not flooded.
const RETRY_DELAY: Duration = Duration::from_millis(5);

#[derive(Default)]
struct RequestStats {
    finished_requests: u64,
    errors: ErrorCounts,
    latency: Histogram,
}

/// Client connection that reconnects when it is needed.
#[derive(Default)]
pub struct LoadConnection {
    stream: Option<TcpStream>,
    pub buffer: BytesMut,
}

impl LoadConnection {
    pub async fn send_request(&mut self, options: &LoadOptions) -> Result<(), Failure> {
        if self.stream.is_none() {
            let connect = timeout(CONNECT_TIMEOUT, TcpStream::connect(options.address));
            let stream = connect.await.map_err(|_| Failure::Connect)?.map_err(|_| Failure::Connect)?;
            let _ = stream.set_nodelay(true);
            self.buffer.clear();
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().ok_or(Failure::Connect)?;
        stream.write_all(&options.request_bytes).await.map_err(|_| Failure::Truncated)
    }

    /// Reads more of a response; returns `false` at the end of the stream.
    pub async fn read_more(&mut self) -> Result<bool, Failure> {
        let stream = self.stream.as_mut().ok_or(Failure::Truncated)?;
        self.buffer.reserve(16 * 1024);
        stream.read_buf(&mut self.buffer).await.map(|got| got > 0).map_err(|_| Failure::Truncated)
    }

    pub fn drop_stream(&mut self) {
        self.stream = None;
        self.buffer.clear();
    }

    async fn run_request(&mut self, options: &LoadOptions) -> Result<(), Failure> {
        self.send_request(options).await?;
        let mut reply = ResponseReader::default();
        while !reply.is_done() {
            if !self.read_more().await? {
                reply.handle_close()?;
                break;
            }
            let used = reply.feed(&self.buffer, |_| {})?;
            self.buffer.advance(used);
        }
        if reply.should_close {
            self.drop_stream();
        }
        reply.check_status()
    }
}

pub async fn run(options: &LoadOptions) -> Value {
    let own_stats = Rc::new(RefCell::new(RequestStats::default()));
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(options.seconds);
    let options = Rc::new(options.clone());
    let clients = (0..options.connections)
        .map(|_| spawn_local(run_client(Rc::clone(&options), Rc::clone(&own_stats), end)))
        .collect();
    for _ in 0..join_all_until(clients, end + DRAIN_TIMEOUT).await {
        own_stats.borrow_mut().errors.add(Failure::Timeout);
    }
    let (stats, time) = (own_stats.borrow(), start.elapsed());
    let mut out = Map::new();
    out.insert("requests".into(), json!(stats.finished_requests));
    stats.errors.write_json(&mut out);
    out.insert("seconds".into(), json!(rounded_seconds(time)));
    out.insert("rps".into(), json!(per_second(stats.finished_requests, time)));
    stats.latency.write_json("", &mut out);
    Value::Object(out)
}

async fn run_client(options: Rc<LoadOptions>, stats: Rc<RefCell<RequestStats>>, end: Instant) {
    let mut connection = LoadConnection::default();
    loop {
        let started_at = Instant::now();
        if started_at >= end {
            return;
        }
        let result = connection.run_request(&options).await;
        stats.borrow_mut().record_result(result, started_at);
        if result.is_err_and(|failure| !matches!(failure, Failure::Status(_))) {
            connection.drop_stream();
            sleep(RETRY_DELAY).await;
        }
    }
}

impl RequestStats {
    fn record_result(&mut self, result: Result<(), Failure>, started_at: Instant) {
        match result {
            Ok(()) => {
                self.finished_requests += 1;
                self.latency.add(started_at.elapsed().as_nanos() as u64);
            }
            Err(failure) => self.errors.add(failure),
        }
    }
}

/// Waits for all clients until `deadline` and returns how many had to be aborted.
pub async fn join_all_until(clients: Vec<JoinHandle<()>>, deadline: Instant) -> usize {
    let mut given_up = 0;
    for mut client in clients {
        if timeout_at(deadline, &mut client).await.is_err() {
            client.abort();
            given_up += 1;
        }
    }
    given_up
}
