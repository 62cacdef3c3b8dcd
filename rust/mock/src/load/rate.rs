//! Open-loop load. Requests are due at a fixed rate regardless of earlier ones, and latency counts from the due time.
//!
//! Uses one thread with a blocking socket per connection. A thread wakes within microseconds of its time, whereas an
//! event loop's timer rounds to milliseconds.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::histogram::Histogram;
use super::options::LoadOptions;
use super::reply::{Failure, ResponseReader};
use super::report::{ErrorCounts, per_second, rounded_seconds};
use super::{CONNECT_TIMEOUT, DRAIN_TIMEOUT};

#[derive(Default)]
struct RunStats {
    requests: u64,
    errors: ErrorCounts,
    latency: Histogram,
    /// Delay between the due time of a request and the wake-up of its thread. Measured only if the connection was free
    /// at the due time.
    wake_delay: Histogram,
}

struct Schedule {
    start: Instant,
    next_index: AtomicU64,
    count: u64,
    interval_seconds: f64,
    deadline: Instant,
}

impl Schedule {
    fn next_due(&self) -> Option<Instant> {
        let at = self.next_index.fetch_add(1, Ordering::Relaxed);
        (at < self.count).then(|| self.start + Duration::from_secs_f64(at as f64 * self.interval_seconds))
    }
}

pub fn run(options: &LoadOptions) -> io::Result<Value> {
    // Makes sleeping threads wake on time. If this write fails, they wake up to 50 µs late.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1");
    let start = Instant::now() + Duration::from_millis(20);
    #[expect(clippy::cast_sign_loss, reason = "both factors are positive")]
    let count = (options.rate * options.seconds).round() as u64;
    let hard_stop = start + Duration::from_secs_f64(options.seconds) + DRAIN_TIMEOUT;
    let schedule = Schedule {
        start,
        next_index: AtomicU64::new(0),
        count,
        interval_seconds: 1.0 / options.rate,
        deadline: hard_stop,
    };
    let mut sum = RunStats::default();
    thread::scope(|scope| -> io::Result<()> {
        let mut threads = Vec::with_capacity(options.connections);
        for _ in 0..options.connections {
            let worker = || run_connection(&schedule, options);
            threads.push(thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, worker)?);
        }
        for stats in threads.into_iter().filter_map(|thread| thread.join().ok()) {
            sum.requests += stats.requests;
            sum.errors.merge(&stats.errors);
            sum.latency.merge(&stats.latency);
            sum.wake_delay.merge(&stats.wake_delay);
        }
        Ok(())
    })?;
    Ok(build_report(options, &sum, start.elapsed()))
}

fn build_report(options: &LoadOptions, sum: &RunStats, time: Duration) -> Value {
    let mut out = Map::new();
    out.insert("requests".into(), json!(sum.requests));
    sum.errors.write_json(&mut out);
    out.insert("seconds".into(), json!(rounded_seconds(time)));
    out.insert("rate".into(), json!(options.rate));
    out.insert("rps".into(), json!(per_second(sum.requests, time)));
    sum.latency.write_json("", &mut out);
    sum.wake_delay.write_json("wake_", &mut out);
    Value::Object(out)
}

fn run_connection(schedule: &Schedule, options: &LoadOptions) -> RunStats {
    let (mut stats, mut client) = (RunStats::default(), BlockingClient { stream: None, buffer: Vec::new() });
    // Connects first, because connecting does not count as latency here.
    let _ = client.connect(options);
    while let Some(due) = schedule.next_due() {
        if Instant::now() >= schedule.deadline {
            stats.errors.add(Failure::Timeout);
            continue;
        }
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            thread::sleep(wait);
            stats.wake_delay.add(due.elapsed().as_nanos() as u64);
        }
        match client.send_request(options, schedule.deadline) {
            Ok(()) => {
                stats.requests += 1;
                stats.latency.add(due.elapsed().as_nanos() as u64);
            }
            Err(failure) => {
                stats.errors.add(failure);
                if !matches!(failure, Failure::Status(_)) {
                    client.stream = None;
                }
            }
        }
    }
    stats
}

struct BlockingClient {
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl BlockingClient {
    fn connect(&mut self, options: &LoadOptions) -> Result<(), Failure> {
        if self.stream.is_none() {
            let stream = TcpStream::connect_timeout(&options.address, CONNECT_TIMEOUT).map_err(|_| Failure::Connect)?;
            let _ = stream.set_nodelay(true);
            self.stream = Some(stream);
        }
        Ok(())
    }

    fn send_request(&mut self, options: &LoadOptions, hard_stop: Instant) -> Result<(), Failure> {
        self.connect(options)?;
        let stream = self.stream.as_mut().ok_or(Failure::Connect)?;
        let remaining = hard_stop.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let _ = stream.set_write_timeout(Some(remaining));
        stream.write_all(&options.request_bytes).map_err(|error| classify_error(&error))?;
        self.buffer.clear();
        let mut reply = ResponseReader::default();
        while !reply.is_done() {
            if !read_chunk(stream, &mut self.buffer, hard_stop)? {
                reply.handle_close()?;
                break;
            }
            let used = reply.feed(&self.buffer, |_| {})?;
            self.buffer.drain(..used);
        }
        if reply.should_close {
            self.stream = None;
        }
        reply.check_status()
    }
}

fn read_chunk(stream: &mut TcpStream, buffer: &mut Vec<u8>, hard_stop: Instant) -> Result<bool, Failure> {
    let remaining = hard_stop.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let _ = stream.set_read_timeout(Some(remaining));
    let mut part = [0; 16 * 1024];
    let got = stream.read(&mut part).map_err(|error| classify_error(&error))?;
    buffer.extend_from_slice(&part[..got]);
    Ok(got > 0)
}

fn classify_error(error: &io::Error) -> Failure {
    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        Failure::Timeout
    } else {
        Failure::Truncated
    }
}
