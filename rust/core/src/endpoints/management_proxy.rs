//! The control process seen from here: management paths are forwarded to it, it takes records and counters, and it publishes snapshots.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use penstock_llm::api_format::Dialect;
use percent_encoding::utf8_percent_encode;
use tokio::{sync::oneshot, time::sleep};

use crate::{
    endpoints::batches,
    error::{Error, Result},
    gateway::Gateway,
    ingress::{
        body::Body,
        headers::{self, Head, Headers},
    },
    response::{
        delivery,
        outgoing::{Answer, Reply, Stream},
    },
    state::shared::{memory_budget::Share, node_store::Errand},
    upstream::{self, Feed, Incoming, Origin, Outgoing, Shape},
};

/// Longest wait for an answer of the control process, but for the one that waits for news.
const PATIENCE: Duration = Duration::from_secs(30);
/// Has the thread that calls it give way to those that serve requests, where both want the same core.
pub type StepBack = Arc<dyn Fn() + Send + Sync>;
/// Largest body of a management request but for files: whoever sends it is not known here yet.
const LARGEST_BODY: usize = 4 * 1024 * 1024;
/// What one brings beyond this counts towards the room that all of them share.
const SMALL_BODY: usize = 64 * 1024;
/// What workers tell each other, and the largest of what they do.
const NOTES: &str = "/internal/notes";
const LARGEST_NOTE: usize = 64 * 1024;
const LARGEST_SNAPSHOT: usize = 1 << 30;
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Forwards a management request and its answer, byte for byte.
pub async fn forward(gateway: &Gateway, head: Head, body: Body) -> Answer {
    gateway.sink.metrics.management.add(1);
    let answer = match forwarded(gateway, &head, body).await {
        Ok(Incoming { head: answered, body }) => {
            let mut passed = Headers::with_capacity(answered.headers.len());
            for (name, value) in answered.headers.iter().filter(|(name, _)| !headers::is_hop_by_hop(name)) {
                passed.push(name, value);
            }
            Answer { reply: Reply::new(answered.status, passed), body: Stream::plain(body).into() }
        }
        Err(error) => Answer::error(&error, Dialect::OpenAi),
    };
    delivery::labelled(answer, &head, &gateway.settings.header_aliases)
}

/// The whole body with the share of the room that it takes.
async fn gathered(gateway: &Gateway, head: &Head, body: Body) -> Result<(Bytes, Share)> {
    let mut limits = gateway.body_limits;
    if !batches::is_of_files(&head.path) {
        limits.bytes = limits.bytes.min(LARGEST_BODY);
    }
    let (mut body, mut share) = (body.limited(limits)?, gateway.shared.management.share());
    if let Body::Whole(bytes) = body {
        return Ok((bytes, share));
    }
    let mut whole = Vec::new();
    while let Some(piece) = body.next().await.transpose()? {
        whole.extend_from_slice(&piece);
        if whole.len() > SMALL_BODY && !share.grow(piece.len()) {
            gateway.sink.metrics.management_refused.add(1);
            return Err(Error::Overloaded);
        }
    }
    Ok((whole.into(), share))
}

async fn forwarded(gateway: &Gateway, head: &Head, body: Body) -> Result<Incoming> {
    let (body, _share) = gathered(gateway, head, body).await?;
    let mut fields = Headers::with_capacity(head.headers.len());
    for (name, value) in head.headers.iter() {
        // The caller's own framing and connection end here.
        if !headers::is_hop_by_hop(name) && !matches!(name, b"content-length" | b"expect") {
            fields.push(name, value);
        }
    }
    // Tells the control process that this is somebody else's request: what is the engine's own is not open to it.
    // It comes last, so that it cannot be mistaken for what the caller says of itself.
    let peer = head.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
    fields.push(b"x-forwarded-for", peer.as_bytes());
    let target = if head.query.is_empty() { head.path.clone() } else { format!("{}?{}", head.path, head.query) };
    ask(gateway, Question { method: &head.method, target: &target, fields: &fields, body }).await
}

/// A request to the control process.
struct Question<'q> {
    method: &'q str,
    target: &'q str,
    fields: &'q Headers,
    body: Bytes,
}

async fn ask(gateway: &Gateway, question: Question<'_>) -> Result<Incoming> {
    let Question { method, target, fields, body } = question;
    let Some(socket) = &gateway.settings.control_socket else { return Err(Error::ControlDown) };
    let origin = Origin::Unix(Arc::new(socket.clone()));
    let mut head = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
    if fields.get("host").is_none() {
        head.extend_from_slice(b"host: control\r\n");
    }
    for (name, value) in fields.iter() {
        head.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
    }
    head.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    let shape = Shape { chunked: false, bodiless: method == "HEAD" };
    // Only what changes nothing is sent twice.
    let replayable = matches!(method, "GET" | "HEAD" | "OPTIONS");
    let outgoing = Outgoing { head, body: Body::Whole(body), shape, replayable };
    match tokio::time::timeout(PATIENCE, gateway.upstream.send(&origin, outgoing)).await {
        Ok(Ok(incoming)) => Ok(incoming),
        Ok(Err(_)) | Err(_) => Err(Error::ControlDown),
    }
}

/// Hands records over in batches. A batch that was not taken is kept and offered again.
/// A batch that is just being handed over is not left behind when `stop` is told.
pub async fn ship_records(gateway: Arc<Gateway>, mut stop: oneshot::Receiver<()>) {
    let Some(path) = gateway.settings.record_socket() else { return };
    let mut feed = Feed::new(path);
    loop {
        let lines = tokio::select! {
            biased;
            _ = &mut stop => return,
            lines = gateway.sink.outbox.batch() => lines,
        };
        if let Some(lines) = lines {
            hand_over(&gateway, &mut feed, lines).await;
        }
    }
}

/// Hands over what waits, within a deadline: the last thing before the process ends.
pub async fn flush_records(gateway: &Gateway, deadline: Duration) {
    let rest = async {
        gateway.sink.counting.settled().await;
        if let Some(path) = gateway.settings.record_socket() {
            let mut feed = Feed::new(path);
            while let Some(lines) = gateway.sink.outbox.take() {
                hand_over(gateway, &mut feed, lines).await;
            }
        }
        post(gateway, "/internal/metrics", counters(gateway)).await;
    };
    drop(tokio::time::timeout(deadline, rest).await);
}

async fn hand_over(gateway: &Gateway, feed: &mut Feed, lines: Vec<u8>) {
    let (mut pause, mut again) = (SHORTEST_PAUSE, false);
    while !matches!(tokio::time::timeout(PATIENCE, feed.hand_over(&lines, again)).await, Ok(Ok(true))) {
        sleep(pause).await;
        // It may have been written, and only the word of it been lost: the control process looks.
        again = true;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    gateway.sink.outbox.acknowledge(lines);
}

/// Tells the counters once a second, for ever, and tidies up on the way.
pub async fn tell_metrics(gateway: Arc<Gateway>) {
    loop {
        sleep(Duration::from_secs(1)).await;
        gateway.upstream.reap();
        post(&gateway, "/internal/metrics", counters(&gateway)).await;
    }
}

fn counters(gateway: &Gateway) -> Bytes {
    let mut read = gateway.sink.metrics.read();
    let outbox = &gateway.sink.outbox;
    read["worker"] = gateway.settings.worker.into();
    read["pid"] = std::process::id().into();
    read["records"] = outbox.accepted().into();
    read["records_dropped"] = outbox.dropped().into();
    read["outbox_bytes"] = outbox.held().into();
    read["idle_connections"] = gateway.upstream.idle_connections().into();
    read["gathered_bytes"] = gateway.shared.bodies.used().into();
    read["epoch"] = gateway.epoch().into();
    read["breakers_open"] = gateway.shared.breakers.open_now().into();
    if let Some(neighbours) = &gateway.shared.neighbours {
        read["notes_dropped"] = neighbours.dropped().into();
    }
    if let Some(redis) = &gateway.shared.redis {
        let figures = &redis.figures;
        read["redis_up"] = u64::from(redis.is_there()).into();
        read["redis_lookups"] = figures.lookups.get().into();
        read["redis_hits"] = figures.hits.get().into();
        read["redis_slow"] = figures.slow.get().into();
        read["redis_refused"] = figures.refused.get().into();
        read["redis_dropped"] = figures.dropped.get().into();
        read["redis_lost"] = figures.lost.get().into();
        read["redis_heard"] = figures.heard.get().into();
    }
    read.to_string().into()
}

/// Looks after what is shared with other workers, for ever.
pub async fn tend_shared(gateway: Arc<Gateway>) {
    tokio::join!(gateway.shared.tend(), run_errands(&gateway));
}

/// Brings notes to the control process and looks for those of others, for ever.
async fn run_errands(gateway: &Gateway) {
    let errands = gateway.shared.neighbours.as_ref().and_then(|neighbours| neighbours.errands());
    let Some(mut errands) = errands else { return };
    while let Some(errand) = errands.recv().await {
        match errand {
            Errand::Note { name, said, told } => {
                let note = serde_json::json!({"name": name, "said": said}).to_string();
                let before = left(gateway, note.into()).await;
                told.map(|told| told.send(before));
            }
            // Whoever has gone need not be told.
            Errand::Look { told, .. } if told.is_closed() => (),
            Errand::Look { name, told } => drop(told.send(noted(gateway, &name).await)),
        }
    }
}

async fn noted(gateway: &Gateway, name: &str) -> Option<String> {
    let target = format!("{NOTES}?name={}", utf8_percent_encode(name, batches::SEGMENT));
    note(gateway, Question { method: "GET", target: &target, fields: &Headers::default(), body: Bytes::new() }).await
}

/// Leaves a note, and says what it takes the place of.
async fn left(gateway: &Gateway, body: Bytes) -> Option<String> {
    note(gateway, Question { method: "POST", target: NOTES, fields: &Headers::default(), body }).await
}

async fn note(gateway: &Gateway, question: Question<'_>) -> Option<String> {
    let Incoming { head, mut body } = ask(gateway, question).await.ok()?;
    let said = upstream::collect(&mut body, LARGEST_NOTE).await.ok()??;
    (head.status == 200).then(|| String::from_utf8_lossy(&said).into_owned())
}

/// Waits for new snapshots and applies them, for ever. While the control process is away the last one holds.
pub async fn follow_snapshots(gateway: Arc<Gateway>, step_back: StepBack) {
    let mut pause = SHORTEST_PAUSE;
    let mut known = gateway.epoch();
    loop {
        match news(&gateway, &known, &step_back).await {
            Ok(()) => {
                pause = SHORTEST_PAUSE;
                known = gateway.epoch();
                continue;
            }
            // What changed does not fit to what is here: from now on it is asked for whole.
            Err(Error::ConfigInvalid(_)) => known.clear(),
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn news(gateway: &Arc<Gateway>, known: &str, step_back: &StepBack) -> Result<()> {
    let target = format!("/internal/snapshot?worker={}&epoch={known}", gateway.settings.worker);
    let Incoming { head, mut body } =
        ask(gateway, Question { method: "GET", target: &target, fields: &Headers::default(), body: Bytes::new() })
            .await?;
    let bytes = upstream::collect(&mut body, LARGEST_SNAPSHOT).await?.unwrap_or_default();
    match head.status {
        // What does not compile is refused whole; the publisher checks it before, so this is a fault of ours.
        200 => apply(gateway, bytes, step_back).await,
        204 => Ok(()),
        _ => Err(Error::ControlDown),
    }
}

/// Compiles on a thread of its own: here others wait.
async fn apply(gateway: &Arc<Gateway>, bytes: Bytes, step_back: &StepBack) -> Result<()> {
    let (gateway, step_back) = (Arc::clone(gateway), Arc::clone(step_back));
    let (done, applied) = oneshot::channel();
    let compiling = std::thread::Builder::new().name("compile".into()).spawn(move || {
        step_back();
        drop(done.send(gateway.apply(&bytes)));
    });
    compiling.map_err(|_| Error::Overloaded)?;
    applied.await.map_err(|_| Error::Panicked)?.map_err(Error::ConfigInvalid)
}

/// The status of the answer; `None` where none came.
async fn post(gateway: &Gateway, target: &str, body: Bytes) -> Option<u16> {
    let mut fields = Headers::with_capacity(1);
    fields.push(b"content-type", b"application/octet-stream");
    let question = Question { method: "POST", target, fields: &fields, body };
    let Incoming { head, mut body } = ask(gateway, question).await.ok()?;
    upstream::collect(&mut body, 64 * 1024).await.ok()?;
    Some(head.status)
}
