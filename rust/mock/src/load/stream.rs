//! Streaming load. Opens many streams, counts their events exactly and measures how late each time-stamped event
//! arrives.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Buf;
use serde_json::{Map, Value, json};
use tokio::task::spawn_local;
use tokio::time::{Duration, Instant, sleep};

use super::DRAIN_TIMEOUT;
use super::events::EventCounter;
use super::histogram::Histogram;
use super::options::{LoadOptions, Mode};
use super::reply::{Failure, ResponseReader};
use super::report::{ErrorCounts, rounded_seconds};
use super::whole::{LoadConnection, join_all_until};
use crate::clock;
use crate::precise_timer::PreciseTimer;

const RETRY_DELAY: Duration = Duration::from_millis(5);

#[derive(Default)]
struct StreamStats {
    finished_streams: u64,
    received_chunks: u64,
    received_bytes: u64,
    miscounted_streams: u64,
    errors: ErrorCounts,
    first_byte_latency: Histogram,
    event_lateness: Histogram,
}

pub async fn run(options: &LoadOptions) -> Value {
    let own_stats = Rc::new(RefCell::new(StreamStats::default()));
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(options.seconds);
    let options = Rc::new(options.clone());
    let clients = (0..options.connections)
        .map(|number| {
            let begins = start + options.ramp_up * number as u32 / options.connections as u32;
            spawn_local(run_client(Rc::clone(&options), Rc::clone(&own_stats), begins, end))
        })
        .collect();
    for _ in 0..join_all_until(clients, end + DRAIN_TIMEOUT).await {
        own_stats.borrow_mut().errors.add(Failure::Timeout);
    }
    let stats = own_stats.borrow();
    build_report(&options, &stats, start.elapsed())
}

fn build_report(options: &LoadOptions, stats: &StreamStats, time: Duration) -> Value {
    let mut out = Map::new();
    if options.mode == Mode::Hold {
        let good = stats.finished_streams - stats.miscounted_streams;
        out.insert("finished".into(), json!(good));
        out.insert("failed".into(), json!((options.connections as u64).saturating_sub(good)));
    } else {
        out.insert("streams".into(), json!(stats.finished_streams));
    }
    out.insert("chunks".into(), json!(stats.received_chunks));
    out.insert("bytes".into(), json!(stats.received_bytes));
    stats.errors.write_json(&mut out);
    out.insert("incomplete".into(), json!(stats.miscounted_streams + stats.errors.unfinished_count()));
    out.insert("seconds".into(), json!(rounded_seconds(time)));
    stats.first_byte_latency.write_json("first_byte_", &mut out);
    stats.event_lateness.write_json("late_", &mut out);
    Value::Object(out)
}

async fn run_client(options: Rc<LoadOptions>, stats: Rc<RefCell<StreamStats>>, begins: Instant, end: Instant) {
    if let Ok(timer) = PreciseTimer::new() {
        drop(timer.wait_until(begins).await);
    }
    let mut connection = LoadConnection::default();
    let mut rounds = options.rounds.unwrap_or(u64::MAX);
    while rounds > 0 && Instant::now() < end {
        rounds -= 1;
        if let Err(failure) = run_one_stream(&mut connection, &options, &stats).await {
            stats.borrow_mut().errors.add(failure);
            connection.drop_stream();
            sleep(RETRY_DELAY).await;
        }
    }
}

async fn run_one_stream(
    connection: &mut LoadConnection,
    options: &LoadOptions,
    own_stats: &RefCell<StreamStats>,
) -> Result<(), Failure> {
    let started_at = Instant::now();
    connection.send_request(options).await?;
    let (mut reply, mut events, mut first) = (ResponseReader::default(), EventCounter::default(), true);
    while !reply.is_done() {
        if !connection.read_more().await? {
            reply.handle_close()?;
            break;
        }
        let mut stats = own_stats.borrow_mut();
        if std::mem::take(&mut first) {
            stats.first_byte_latency.add(started_at.elapsed().as_nanos() as u64);
        }
        let used = process_received(&mut reply, &mut events, &connection.buffer, &mut stats)?;
        connection.buffer.advance(used);
    }
    if reply.should_close {
        connection.drop_stream();
    }
    reply.check_status()?;
    let mut stats = own_stats.borrow_mut();
    stats.finished_streams += 1;
    stats.miscounted_streams += u64::from(options.expect_chunks.is_some_and(|expected| expected != events.count));
    Ok(())
}

fn process_received(
    reply: &mut ResponseReader,
    events: &mut EventCounter,
    bytes: &[u8],
    stats: &mut StreamStats,
) -> Result<usize, Failure> {
    let (now_ns, before) = (clock::now_ns(), events.count);
    let (received, late) = (&mut stats.received_bytes, &mut stats.event_lateness);
    let used = reply.feed(bytes, |data| {
        *received += data.len() as u64;
        events.feed(data, |stamp| late.add(now_ns.saturating_sub(stamp)));
    });
    stats.received_chunks += events.count - before;
    used
}
