//! Streams: events counted exactly, and how late each stamped one was.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Buf;
use serde_json::{Map, Value, json};
use tokio::task::spawn_local;
use tokio::time::{Duration, Instant, sleep};

use super::GRACE;
use super::events::Events;
use super::histogram::Histogram;
use super::options::{Mode, Options};
use super::reply::{Failure, Reply};
use super::report::{Errors, seconds};
use super::whole::{Connection, join_until};
use crate::alarm::Alarm;
use crate::clock;

const AFTER_FAILURE: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Seen {
    finished: u64,
    chunks: u64,
    bytes: u64,
    miscounted: u64,
    errors: Errors,
    first_byte: Histogram,
    late: Histogram,
}

pub async fn run(options: &Options) -> Value {
    let seen = Rc::new(RefCell::new(Seen::default()));
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(options.seconds);
    let options = Rc::new(options.clone());
    let clients = (0..options.connections)
        .map(|number| {
            let begins = start + options.within * number as u32 / options.connections as u32;
            spawn_local(repeat(Rc::clone(&options), Rc::clone(&seen), (begins, end)))
        })
        .collect();
    for _ in 0..join_until(clients, end + GRACE).await {
        seen.borrow_mut().errors.add(Failure::Timeout);
    }
    let seen = seen.borrow();
    describe(&options, &seen, start.elapsed())
}

fn describe(options: &Options, seen: &Seen, time: Duration) -> Value {
    let mut out = Map::new();
    if options.mode == Mode::Hold {
        let good = seen.finished - seen.miscounted;
        out.insert("finished".into(), json!(good));
        out.insert("failed".into(), json!((options.connections as u64).saturating_sub(good)));
    } else {
        out.insert("streams".into(), json!(seen.finished));
    }
    out.insert("chunks".into(), json!(seen.chunks));
    out.insert("bytes".into(), json!(seen.bytes));
    seen.errors.describe(&mut out);
    out.insert("incomplete".into(), json!(seen.miscounted + seen.errors.unfinished()));
    out.insert("seconds".into(), json!(seconds(time)));
    seen.first_byte.describe("first_byte_", &mut out);
    seen.late.describe("late_", &mut out);
    Value::Object(out)
}

async fn repeat(options: Rc<Options>, seen: Rc<RefCell<Seen>>, (begins, end): (Instant, Instant)) {
    if let Ok(alarm) = Alarm::new() {
        drop(alarm.ring(begins).await);
    }
    let mut connection = Connection::default();
    let mut rounds = options.rounds.unwrap_or(u64::MAX);
    while rounds > 0 && Instant::now() < end {
        rounds -= 1;
        if let Err(failure) = one(&mut connection, &options, &seen).await {
            seen.borrow_mut().errors.add(failure);
            connection.drop_stream();
            sleep(AFTER_FAILURE).await;
        }
    }
}

async fn one(connection: &mut Connection, options: &Options, seen: &RefCell<Seen>) -> Result<(), Failure> {
    let begun = Instant::now();
    connection.send(options).await?;
    let (mut reply, mut events, mut first) = (Reply::default(), Events::default(), true);
    while !reply.is_done() {
        if !connection.read().await? {
            reply.closed()?;
            break;
        }
        let mut seen = seen.borrow_mut();
        if std::mem::take(&mut first) {
            seen.first_byte.add(begun.elapsed().as_nanos() as u64);
        }
        let used = take(&mut reply, &mut events, &connection.buffer, &mut seen)?;
        connection.buffer.advance(used);
    }
    if reply.close {
        connection.drop_stream();
    }
    reply.verdict()?;
    let mut seen = seen.borrow_mut();
    seen.finished += 1;
    seen.miscounted += u64::from(options.expect_chunks.is_some_and(|expected| expected != events.count));
    Ok(())
}

fn take(reply: &mut Reply, events: &mut Events, bytes: &[u8], seen: &mut Seen) -> Result<usize, Failure> {
    let (now_ns, before) = (clock::now_ns(), events.count);
    let (received, late) = (&mut seen.bytes, &mut seen.late);
    let used = reply.feed(bytes, |data| {
        *received += data.len() as u64;
        events.feed(data, |stamp| late.add(now_ns.saturating_sub(stamp)));
    });
    seen.chunks += events.count - before;
    used
}
