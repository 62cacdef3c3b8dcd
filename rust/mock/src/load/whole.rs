//! Closed loop: each connection sends its next request when the answer to the last one is complete.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Duration, Instant, sleep, timeout, timeout_at};

use super::histogram::Histogram;
use super::options::Options;
use super::reply::{Failure, Reply};
use super::report::{Errors, per_second, seconds};
use super::{CONNECT_LIMIT, GRACE};

/// So that a server that refuses is not run over.
const AFTER_FAILURE: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Seen {
    requests: u64,
    errors: Errors,
    latency: Histogram,
}

/// A connection that comes back when it is needed.
#[derive(Default)]
pub struct Connection {
    stream: Option<TcpStream>,
    pub buffer: BytesMut,
}

impl Connection {
    pub async fn send(&mut self, options: &Options) -> Result<(), Failure> {
        if self.stream.is_none() {
            let connect = timeout(CONNECT_LIMIT, TcpStream::connect(options.address));
            let stream = connect.await.map_err(|_| Failure::Connect)?.map_err(|_| Failure::Connect)?;
            let _ = stream.set_nodelay(true);
            self.buffer.clear();
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().ok_or(Failure::Connect)?;
        stream.write_all(&options.request).await.map_err(|_| Failure::Short)
    }

    /// Reads more of an answer; `false` at its end.
    pub async fn read(&mut self) -> Result<bool, Failure> {
        let stream = self.stream.as_mut().ok_or(Failure::Short)?;
        self.buffer.reserve(16 * 1024);
        stream.read_buf(&mut self.buffer).await.map(|got| got > 0).map_err(|_| Failure::Short)
    }

    pub fn drop_stream(&mut self) {
        self.stream = None;
        self.buffer.clear();
    }

    async fn call(&mut self, options: &Options) -> Result<(), Failure> {
        self.send(options).await?;
        let mut reply = Reply::default();
        while !reply.is_done() {
            if !self.read().await? {
                reply.closed()?;
                break;
            }
            let used = reply.feed(&self.buffer, |_| {})?;
            self.buffer.advance(used);
        }
        if reply.close {
            self.drop_stream();
        }
        reply.verdict()
    }
}

pub async fn run(options: &Options) -> Value {
    let seen = Rc::new(RefCell::new(Seen::default()));
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(options.seconds);
    let options = Rc::new(options.clone());
    let clients =
        (0..options.connections).map(|_| spawn_local(repeat(Rc::clone(&options), Rc::clone(&seen), end))).collect();
    for _ in 0..join_until(clients, end + GRACE).await {
        seen.borrow_mut().errors.add(Failure::Timeout);
    }
    let (seen, time) = (seen.borrow(), start.elapsed());
    let mut out = Map::new();
    out.insert("requests".into(), json!(seen.requests));
    seen.errors.describe(&mut out);
    out.insert("seconds".into(), json!(seconds(time)));
    out.insert("rps".into(), json!(per_second(seen.requests, time)));
    seen.latency.describe("", &mut out);
    Value::Object(out)
}

async fn repeat(options: Rc<Options>, seen: Rc<RefCell<Seen>>, end: Instant) {
    let mut connection = Connection::default();
    loop {
        let begun = Instant::now();
        if begun >= end {
            return;
        }
        let result = connection.call(&options).await;
        seen.borrow_mut().note(result, begun);
        if result.is_err_and(|failure| !matches!(failure, Failure::Status(_))) {
            connection.drop_stream();
            sleep(AFTER_FAILURE).await;
        }
    }
}

impl Seen {
    fn note(&mut self, result: Result<(), Failure>, begun: Instant) {
        match result {
            Ok(()) => {
                self.requests += 1;
                self.latency.add(begun.elapsed().as_nanos() as u64);
            }
            Err(failure) => self.errors.add(failure),
        }
    }
}

/// Waits for all and returns how many had to be given up.
pub async fn join_until(clients: Vec<JoinHandle<()>>, deadline: Instant) -> usize {
    let mut given_up = 0;
    for mut client in clients {
        if timeout_at(deadline, &mut client).await.is_err() {
            client.abort();
            given_up += 1;
        }
    }
    given_up
}
