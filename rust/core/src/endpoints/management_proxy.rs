//! Client of the control process. Forwards management requests to it, delivers records and counters, and receives
//! snapshots.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use penstock_llm::api_format::ApiFormat;
use percent_encoding::utf8_percent_encode;
use tokio::{sync::oneshot, time::sleep};

use crate::{
    endpoints::batches,
    error::{Error, Result},
    gateway_state::GatewayState,
    ingress::{
        body::Body,
        headers::{self, Headers, RequestHead},
    },
    process::memory_budget::MemoryPermit,
    response::{
        delivery,
        outgoing::{ClientResponse, ClientResponseHead, ResponseStream},
    },
    state::shared::node_store::NodeStoreCommand,
    upstream::{self, BodyFraming, IncomingResponse, Origin, OutgoingRequest, RecordFeed},
};

/// Timeout for a request to the control process. It exceeds the 20 seconds for which the control process holds a
/// snapshot poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Lowers the priority of the calling thread, so that it yields to threads that serve requests on the same core.
pub type LowerPriority = Arc<dyn Fn() + Send + Sync>;
/// Largest body of a management request, except for files. The caller is not authenticated at this point.
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// Body bytes beyond this count towards the memory budget that all management requests share.
const UNMETERED_BODY_BYTES: usize = 64 * 1024;
/// Endpoint of the node store, through which workers share values; below it, the largest value.
const NODE_STORE_PATH: &str = "/internal/notes";
const MAX_NODE_STORE_VALUE_BYTES: usize = 64 * 1024;
const MAX_SNAPSHOT_BYTES: usize = 1 << 30;
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Forwards a management request, and returns the response byte for byte.
pub async fn forward_management_request(state: &GatewayState, head: RequestHead, body: Body) -> ClientResponse {
    state.record_sink.metrics.management_requests.add(1);
    let response = match send_management_request(state, &head, body).await {
        Ok(IncomingResponse { head: response_head, body }) => {
            let mut passed = Headers::with_capacity(response_head.headers.len());
            for (name, value) in response_head.headers.iter().filter(|(name, _)| !headers::is_hop_by_hop(name)) {
                passed.push(name, value);
            }
            ClientResponse {
                head: ClientResponseHead::new(response_head.status, passed),
                body: ResponseStream::passthrough(body).into(),
            }
        }
        Err(error) => ClientResponse::from_error(&error, ApiFormat::OpenAi),
    };
    delivery::add_request_ids(response, &head, &state.settings.header_aliases)
}

/// Returns the complete body, with its share of the memory budget.
async fn collect_body(state: &GatewayState, head: &RequestHead, body: Body) -> Result<(Bytes, MemoryPermit)> {
    let mut limits = state.body_limits;
    if !batches::is_files_path(&head.path) {
        limits.max_bytes = limits.max_bytes.min(MAX_BODY_BYTES);
    }
    let (mut body, mut share) = (body.with_limits(limits)?, state.shared.management_memory.new_permit());
    if let Body::Complete(bytes) = body {
        return Ok((bytes, share));
    }
    let mut buffer = Vec::new();
    while let Some(chunk) = body.next().await.transpose()? {
        buffer.extend_from_slice(&chunk);
        if buffer.len() > UNMETERED_BODY_BYTES && !share.try_reserve(chunk.len()) {
            state.record_sink.metrics.management_rejected.add(1);
            return Err(Error::Overloaded);
        }
    }
    Ok((buffer.into(), share))
}

async fn send_management_request(state: &GatewayState, head: &RequestHead, body: Body) -> Result<IncomingResponse> {
    let (body, _share) = collect_body(state, head, body).await?;
    let mut fields = Headers::with_capacity(head.headers.len());
    for (name, value) in head.headers.iter() {
        // Framing and connection headers apply only to the client's connection.
        if !headers::is_hop_by_hop(name) && !matches!(name, b"content-length" | b"expect") {
            fields.push(name, value);
        }
    }
    // Marks the request as forwarded, so that the control process denies it the engine-only endpoints. Pushed last, so
    // that a header of the client cannot be mistaken for it.
    let peer = head.peer_ip.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
    fields.push(b"x-forwarded-for", peer.as_bytes());
    let target = if head.query.is_empty() { head.path.clone() } else { format!("{}?{}", head.path, head.query) };
    send_control_request(state, ControlRequest { method: &head.method, target: &target, headers: &fields, body }).await
}

/// A request to the control process.
struct ControlRequest<'q> {
    method: &'q str,
    target: &'q str,
    headers: &'q Headers,
    body: Bytes,
}

async fn send_control_request(state: &GatewayState, question: ControlRequest<'_>) -> Result<IncomingResponse> {
    let ControlRequest { method, target, headers: fields, body } = question;
    let Some(socket) = &state.settings.control_socket else { return Err(Error::ControlUnavailable) };
    let origin = Origin::Unix(Arc::new(socket.clone()));
    let mut head = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
    if fields.get("host").is_none() {
        head.extend_from_slice(b"host: control\r\n");
    }
    for (name, value) in fields.iter() {
        head.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
    }
    head.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    let shape = BodyFraming { is_chunked: false, is_bodiless: method == "HEAD" };
    // Only requests without side effects may be sent twice.
    let replayable = matches!(method, "GET" | "HEAD" | "OPTIONS");
    let outgoing = OutgoingRequest { head, body: Body::Complete(body), body_framing: shape, is_replayable: replayable };
    match tokio::time::timeout(REQUEST_TIMEOUT, state.upstream.send(&origin, outgoing)).await {
        Ok(Ok(incoming)) => Ok(incoming),
        Ok(Err(_)) | Err(_) => Err(Error::ControlUnavailable),
    }
}

/// Delivers records to the control process in batches, until `stop` fires. A batch that is not accepted is retained and
/// sent again. A delivery in progress is finished even after `stop` fires.
pub async fn ship_records(state: Arc<GatewayState>, mut stop: oneshot::Receiver<()>) {
    let Some(path) = state.settings.record_socket() else { return };
    let mut feed = RecordFeed::new(path);
    loop {
        let lines = tokio::select! {
            biased;
            _ = &mut stop => return,
            lines = state.record_sink.outbox.next_batch() => lines,
        };
        if let Some(lines) = lines {
            deliver_batch(&state, &mut feed, lines).await;
        }
    }
}

/// Delivers the remaining records and counters within `deadline`, just before the process exits.
pub async fn flush_records(state: &GatewayState, deadline: Duration) {
    let rest = async {
        state.record_sink.token_counter.wait_until_idle().await;
        if let Some(path) = state.settings.record_socket() {
            let mut feed = RecordFeed::new(path);
            while let Some(lines) = state.record_sink.outbox.take_pending() {
                deliver_batch(state, &mut feed, lines).await;
            }
        }
        post_to_control(state, "/internal/metrics", collect_counters(state)).await;
    };
    drop(tokio::time::timeout(deadline, rest).await);
}

async fn deliver_batch(state: &GatewayState, feed: &mut RecordFeed, lines: Vec<u8>) {
    let (mut pause, mut again) = (MIN_BACKOFF, false);
    while !matches!(tokio::time::timeout(REQUEST_TIMEOUT, feed.send_batch(&lines, again)).await, Ok(Ok(true))) {
        sleep(pause).await;
        // The batch may have been written and only the acknowledgement lost. `again` makes the control process check
        // for duplicates.
        again = true;
        pause = (pause * 2).min(MAX_BACKOFF);
    }
    state.record_sink.outbox.acknowledge(lines);
}

/// Sends the counters to the control process every second, forever. Also closes upstream connections that were idle for
/// too long.
pub async fn report_metrics(state: Arc<GatewayState>) {
    loop {
        sleep(Duration::from_secs(1)).await;
        state.upstream.close_expired();
        post_to_control(&state, "/internal/metrics", collect_counters(&state)).await;
    }
}

fn collect_counters(state: &GatewayState) -> Bytes {
    let mut read = state.record_sink.metrics.to_json();
    let outbox = &state.record_sink.outbox;
    read["worker"] = state.settings.worker.into();
    read["pid"] = std::process::id().into();
    read["records"] = outbox.accepted_lines().into();
    read["records_dropped"] = outbox.dropped_lines().into();
    read["outbox_bytes"] = outbox.unacknowledged_bytes().into();
    read["idle_connections"] = state.upstream.idle_connection_count().into();
    read["buffered_body_bytes"] = state.shared.body_memory.used_bytes().into();
    read["epoch"] = state.snapshot_epoch().into();
    read["breakers_open"] = state.shared.breakers.open_count().into();
    if let Some(neighbours) = &state.shared.node_store {
        read["notes_dropped"] = neighbours.dropped_count().into();
    }
    if let Some(redis) = &state.shared.redis {
        let figures = &redis.metrics;
        read["redis_up"] = u64::from(redis.is_available()).into();
        read["redis_lookups"] = figures.lookups.get().into();
        read["redis_hits"] = figures.hits.get().into();
        read["redis_slow"] = figures.timed_out_lookups.get().into();
        read["redis_refused"] = figures.rejected_commands.get().into();
        read["redis_dropped"] = figures.dropped_commands.get().into();
        read["redis_lost"] = figures.lost_connections.get().into();
        read["redis_heard"] = figures.received_messages.get().into();
    }
    read.to_string().into()
}

/// Maintains the state that is shared with other workers, forever.
pub async fn maintain_shared_state(state: Arc<GatewayState>) {
    tokio::join!(state.shared.sync_with_redis(), run_node_store_commands(&state));
}

/// Executes node store commands at the control process, forever.
async fn run_node_store_commands(state: &GatewayState) {
    let errands = state.shared.node_store.as_ref().and_then(|neighbours| neighbours.take_command_receiver());
    let Some(mut errands) = errands else { return };
    while let Some(command) = errands.recv().await {
        match command {
            NodeStoreCommand::Put { key: name, value, reply } => {
                let note = serde_json::json!({"name": name, "said": value}).to_string();
                let before = write_node_value(state, note.into()).await;
                reply.map(|reply| reply.send(before));
            }
            // The requester has stopped waiting, so the lookup is skipped.
            NodeStoreCommand::Get { reply, .. } if reply.is_closed() => (),
            NodeStoreCommand::Get { key: name, reply } => drop(reply.send(read_node_value(state, &name).await)),
        }
    }
}

async fn read_node_value(state: &GatewayState, name: &str) -> Option<String> {
    let target = format!("{NODE_STORE_PATH}?name={}", utf8_percent_encode(name, batches::PATH_SEGMENT_ENCODE_SET));
    send_node_store_request(
        state,
        ControlRequest { method: "GET", target: &target, headers: &Headers::default(), body: Bytes::new() },
    )
    .await
}

/// Writes a value to the node store, and returns the value that it replaces.
async fn write_node_value(state: &GatewayState, body: Bytes) -> Option<String> {
    send_node_store_request(
        state,
        ControlRequest { method: "POST", target: NODE_STORE_PATH, headers: &Headers::default(), body },
    )
    .await
}

async fn send_node_store_request(state: &GatewayState, question: ControlRequest<'_>) -> Option<String> {
    let IncomingResponse { head, mut body } = send_control_request(state, question).await.ok()?;
    let value = upstream::collect(&mut body, MAX_NODE_STORE_VALUE_BYTES).await.ok()??;
    (head.status == 200).then(|| String::from_utf8_lossy(&value).into_owned())
}

/// Waits for new snapshots and applies them, forever. The last snapshot stays in force while the control process is
/// down.
pub async fn follow_snapshots(state: Arc<GatewayState>, step_back: LowerPriority) {
    let mut pause = MIN_BACKOFF;
    let mut epoch = state.snapshot_epoch();
    loop {
        match poll_snapshot(&state, &epoch, &step_back).await {
            Ok(()) => {
                pause = MIN_BACKOFF;
                epoch = state.snapshot_epoch();
                continue;
            }
            // The changes do not apply to the current snapshot, so the next poll requests a complete one.
            Err(Error::ConfigInvalid(_)) => epoch.clear(),
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (pause * 2).min(MAX_BACKOFF);
    }
}

async fn poll_snapshot(state: &Arc<GatewayState>, epoch: &str, step_back: &LowerPriority) -> Result<()> {
    let target = format!("/internal/snapshot?worker={}&epoch={epoch}", state.settings.worker);
    let IncomingResponse { head, mut body } = send_control_request(
        state,
        ControlRequest { method: "GET", target: &target, headers: &Headers::default(), body: Bytes::new() },
    )
    .await?;
    let bytes = upstream::collect(&mut body, MAX_SNAPSHOT_BYTES).await?.unwrap_or_default();
    match head.status {
        // A snapshot that does not compile is rejected as a whole. The publisher validates it first, so this indicates
        // a bug in the gateway.
        200 => apply_snapshot(state, bytes, step_back).await,
        204 => Ok(()),
        _ => Err(Error::ControlUnavailable),
    }
}

/// Compiles a snapshot on its own thread, because compiling here would block the runtime.
async fn apply_snapshot(state: &Arc<GatewayState>, bytes: Bytes, step_back: &LowerPriority) -> Result<()> {
    let (state, step_back) = (Arc::clone(state), Arc::clone(step_back));
    let (done, applied) = oneshot::channel();
    let compiling = std::thread::Builder::new().name("compile".into()).spawn(move || {
        step_back();
        drop(done.send(state.apply_snapshot(&bytes)));
    });
    compiling.map_err(|_| Error::Overloaded)?;
    applied.await.map_err(|_| Error::Panicked)?.map_err(Error::ConfigInvalid)
}

/// Posts a body to the control process. Returns the response status, or `None` without a response.
async fn post_to_control(state: &GatewayState, target: &str, body: Bytes) -> Option<u16> {
    let mut fields = Headers::with_capacity(1);
    fields.push(b"content-type", b"application/octet-stream");
    let question = ControlRequest { method: "POST", target, headers: &fields, body };
    let IncomingResponse { head, mut body } = send_control_request(state, question).await.ok()?;
    upstream::collect(&mut body, 64 * 1024).await.ok()?;
    Some(head.status)
}
