//! Client of the control process. Forwards management requests to it, delivers counters, and receives snapshots.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use penstock_net::{
    BodyFraming, IncomingResponse, Origin, OutgoingRequest,
    body::Body,
    headers::{self, Headers},
    memory_budget::MemoryPermit,
};
use percent_encoding::utf8_percent_encode;
use tokio::{sync::oneshot, time::sleep};

use crate::{
    accounting::record,
    endpoints::batches,
    error::{Error, Result},
    gateway_state::GatewayState,
    ingress::{client_sdk, message::RequestHead},
    limits::now_ms,
    response::{
        client_response::{ClientResponse, ClientResponseHead},
        delivery,
        response_stream::ResponseStream,
    },
    state::shared::node_store::NodeStoreCommand,
};

/// Interval at which workers report their use of limits.
const LIMIT_REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which past counters of limits are removed.
const COUNTER_CLEANUP_INTERVAL: Duration = Duration::from_mins(10);
/// Timeout for a request to the control process. It exceeds the 20 seconds for which the control process holds a
/// snapshot poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that is reserved for a commit. The control process begins none when less than this is left of
/// `REQUEST_TIMEOUT`.
const COMMIT_TIME: Duration = Duration::from_secs(2);
/// Header with the Unix time in milliseconds after which the control process must not save a change.
const DEADLINE_HEADER: &[u8] = b"x-penstock-deadline-ms";
/// Header of a request to `IDENTITY_PATH` with the method and path of the client's request, for the audit log.
const REQUEST_HEADER: &[u8] = b"x-penstock-request";
/// Header of a request to `IDENTITY_PATH` with the client's `x-forwarded-for` and its address, for the audit log.
const CLIENT_HEADER: &[u8] = b"x-penstock-forwarded-for";
/// Lowers the priority of the calling thread, so that it yields to threads that serve requests on the same core.
pub type LowerPriority = Arc<dyn Fn() + Send + Sync>;
/// Maximum size of the body of a management request, except for files.
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size of the body of a sign-in request, whose client has no credential yet. All other bodies are read only
/// from authenticated clients.
const MAX_SIGN_IN_BODY_BYTES: usize = 8 * 1024;
/// Body bytes beyond this count towards the memory budget that all management requests share.
const UNMETERED_BODY_BYTES: usize = 4 * 1024;
/// Endpoint that authenticates the credential of a request whose body is still arriving.
const IDENTITY_PATH: &str = "/internal/identity";
/// Endpoint of the node store, through which workers share values.
const NODE_STORE_PATH: &str = "/internal/notes";
/// Maximum size of a value in the node store.
const MAX_NODE_STORE_VALUE_BYTES: usize = 64 * 1024;
const MAX_TRIAL_PLAN_BYTES: usize = 16 * 1024 * 1024;
const MAX_PROMPT_VERSION_BYTES: usize = 8 * 1024 * 1024;
const MAX_SNAPSHOT_BYTES: usize = 1 << 30;
/// Maximum size of a snapshot update that is compiled with normal priority, which takes some milliseconds.
const MAX_URGENT_BYTES: usize = 1024 * 1024;
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Forwards a management request, and returns the response byte for byte.
pub async fn forward_management_request(state: &GatewayState, head: RequestHead, body: Body) -> ClientResponse {
    state.record_sink.metrics.management_requests.add(1);
    let forwarded = match collect_body(state, &head, body).await {
        Ok(Collected::Body(body, share)) => {
            let sent = send_management_request(state, &head, body).await;
            drop(share);
            sent
        }
        Ok(Collected::Unauthenticated(refusal)) => Ok(*refusal),
        Err(error) => Err(error),
    };
    let response = match forwarded {
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
        Err(error) => ClientResponse::from_error(&error, client_sdk::shared_path_format(&head.headers)),
    };
    delivery::add_request_ids(response, &head, &state.settings.header_aliases)
}

/// Body of a management request.
enum Collected {
    /// The complete body, with its share of the memory budget.
    Body(Bytes, MemoryPermit),
    /// The response of the control process to a client without a valid credential. The rest of its body was not read.
    Unauthenticated(Box<IncomingResponse>),
}

/// Collects the body after the control process has authenticated the client, so that clients without a key cannot
/// occupy memory.
async fn collect_body(state: &GatewayState, head: &RequestHead, body: Body) -> Result<Collected> {
    let (mut limits, signs_in) = (state.body_limits, is_sign_in_path(&head.path));
    if signs_in {
        limits.max_bytes = limits.max_bytes.min(MAX_SIGN_IN_BODY_BYTES);
    } else if !batches::is_files_path(&head.path) {
        limits.max_bytes = limits.max_bytes.min(MAX_BODY_BYTES);
    }
    let (mut body, mut share) = (body.with_limits(limits)?, state.shared.management_memory.new_permit());
    if let Body::Complete(bytes) = body {
        return Ok(Collected::Body(bytes, share));
    }
    if !signs_in {
        let response = authenticate_client(state, head).await?;
        if response.head.status != 204 {
            return Ok(Collected::Unauthenticated(Box::new(response)));
        }
    }
    let mut buffer = Vec::new();
    while let Some(chunk) = body.next().await.transpose()? {
        buffer.extend_from_slice(&chunk);
        if !signs_in && buffer.len() > UNMETERED_BODY_BYTES && !share.try_reserve(chunk.len()) {
            state.record_sink.metrics.management_rejected.add(1);
            return Err(Error::Overloaded);
        }
    }
    Ok(Collected::Body(buffer.into(), share))
}

/// Returns true if the path belongs to sessions, invitations and passwords, which clients without a credential use too.
fn is_sign_in_path(path: &str) -> bool {
    path.split('/').any(|segment| segment == "auth")
}

/// Asks the control process whether the client's credential is valid. The control process returns 204 if it is.
async fn authenticate_client(state: &GatewayState, head: &RequestHead) -> Result<IncomingResponse> {
    let mut fields = Headers::with_capacity(head.headers.len());
    // Drops `x-forwarded-for`, by which the endpoint recognises and rejects requests that the edge forwards.
    for (name, value) in head.headers.iter().filter(|(name, _)| is_forwardable(name) && *name != b"x-forwarded-for") {
        fields.push(name, value);
    }
    fields.push(REQUEST_HEADER, format!("{} {}", head.method, head.path).as_bytes());
    let forwarded = head.headers.iter().filter(|(name, _)| *name == b"x-forwarded-for").map(|(_, value)| value);
    let peer = peer_address(head);
    let addresses: Vec<_> = forwarded.chain([peer.as_bytes()]).collect();
    fields.push(CLIENT_HEADER, &addresses.join(&b", "[..]));
    let control_request = ControlRequest { method: "GET", target: IDENTITY_PATH, headers: &fields, body: Bytes::new() };
    send_control_request(state, control_request).await
}

/// Returns true unless a header applies only to the client's connection or frames its body.
fn is_forwardable(name: &[u8]) -> bool {
    let is_internal = [DEADLINE_HEADER, REQUEST_HEADER, CLIENT_HEADER].contains(&name);
    !headers::is_hop_by_hop(name) && !matches!(name, b"content-length" | b"expect") && !is_internal
}

fn peer_address(head: &RequestHead) -> String {
    head.peer_ip.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
}

async fn send_management_request(state: &GatewayState, head: &RequestHead, body: Bytes) -> Result<IncomingResponse> {
    let mut fields = Headers::with_capacity(head.headers.len());
    for (name, value) in head.headers.iter().filter(|(name, _)| is_forwardable(name)) {
        fields.push(name, value);
    }
    // Marks the request as forwarded, so that the control process denies it the engine-only endpoints. Pushed last, so
    // that a header of the client cannot be mistaken for it.
    fields.push(b"x-forwarded-for", peer_address(head).as_bytes());
    // The deadline prevents a commit after the client has received the error that the control process is unavailable.
    let deadline = record::unix_time() + REQUEST_TIMEOUT.saturating_sub(COMMIT_TIME);
    fields.push(DEADLINE_HEADER, deadline.as_millis().to_string().as_bytes());
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

async fn send_control_request(state: &GatewayState, control_request: ControlRequest<'_>) -> Result<IncomingResponse> {
    let ControlRequest { method, target, headers: fields, body } = control_request;
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
    let body_framing = BodyFraming { is_chunked: false, is_bodiless: method == "HEAD" };
    // Only requests without side effects may be sent twice.
    let is_replayable = matches!(method, "GET" | "HEAD" | "OPTIONS");
    let outgoing = OutgoingRequest { head, body: Body::Complete(body), body_framing, is_replayable };
    match tokio::time::timeout(REQUEST_TIMEOUT, state.upstream.send(&origin, outgoing)).await {
        Ok(Ok(incoming)) => Ok(incoming),
        Ok(Err(_)) | Err(_) => Err(Error::ControlUnavailable),
    }
}

/// Writes the remaining records to the spool and reports the counters within `deadline`, just before the process exits.
pub async fn flush_records(state: &GatewayState, deadline: Duration) {
    let rest = async {
        state.record_sink.token_counter.wait_until_idle().await;
        if let Some(spool) = &state.record_sink.spool {
            spool.maintain();
        }
        state.limiter.report_shared(true).await;
        post_to_control(state, "/internal/metrics", collect_counters(state)).await;
    };
    drop(tokio::time::timeout(deadline, rest).await);
}

/// Sends the counters to the control process every second, forever. Also closes upstream connections that were idle for
/// too long.
pub async fn report_metrics(state: Arc<GatewayState>) {
    loop {
        sleep(Duration::from_secs(1)).await;
        state.upstream.close_expired();
        if let Some(spool) = &state.record_sink.spool {
            spool.maintain();
        }
        post_to_control(&state, "/internal/metrics", collect_counters(&state)).await;
    }
}

fn collect_counters(state: &GatewayState) -> Bytes {
    let mut read = state.record_sink.metrics.to_json();
    read["worker"] = state.settings.worker.into();
    read["pid"] = std::process::id().into();
    read["held"] = serde_json::json!(state.limiter.list_held(crate::limits::now_ms()));
    read["tokens"] = state.limiter.seen_tokens.take_report(crate::limits::now_ms()).into();
    if let Some(spool) = &state.record_sink.spool {
        let counters = spool.counters();
        read["records"] = counters.records.into();
        read["records_dropped"] = counters.records_dropped.into();
        read["refused_records"] = counters.refused_records.into();
        read["refused_records_dropped"] = counters.refused_records_dropped.into();
        read["outbox_bytes"] = counters.waiting_bytes.into();
        read["record_bodies_dropped"] = counters.bodies_dropped.into();
        read["spool_bytes"] = counters.used_bytes.into();
        read["spool_syncs"] = counters.syncs.into();
        read["spool_sync_failures"] = counters.sync_failures.into();
    }
    let limits = &state.limiter.metrics;
    read["limits_rejected"] = limits.rejected.get().into();
    read["limits_would_reject"] = limits.would_reject.get().into();
    read["limit_counter_updates"] = limits.counter_updates.get().into();
    read["limit_counter_failures"] = limits.counter_failures.get().into();
    if let Some(cluster) = state.limiter.cluster() {
        read["limit_redis_trips"] = cluster.trips.get().into();
        read["limit_redis_failures"] = cluster.failed_trips.get().into();
    }
    read["limit_groups_shared"] = limits.shared_groups.get().into();
    read["idle_connections"] = state.upstream.idle_connection_count().into();
    read["buffered_body_bytes"] = state.shared.body_memory.used_bytes().into();
    read["epoch"] = state.snapshot_epoch().into();
    read["breakers_open"] = state.shared.breakers.open_count().into();
    if let Some(node_store) = &state.shared.node_store {
        read["node_store_dropped"] = node_store.dropped_count().into();
        read["node_store_unanswered"] = node_store.unanswered_count().into();
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
        read["redis_messages"] = figures.received_messages.get().into();
    }
    read.to_string().into()
}

/// Maintains the state that is shared with other workers, forever.
pub async fn maintain_shared_state(state: Arc<GatewayState>) {
    tokio::join!(state.shared.sync_with_redis(), run_node_store_commands(&state), maintain_limits(&state));
}

/// Returns unused leases of limits and removes past counters, forever.
async fn maintain_limits(state: &GatewayState) {
    let mut cleaned_at = Instant::now();
    loop {
        // Windows start at full seconds. A worker announces itself early in each of them.
        let interval_ms = LIMIT_REPORT_INTERVAL.as_millis() as u64;
        sleep(Duration::from_millis(interval_ms - now_ms() % interval_ms)).await;
        state.limiter.report_shared(false).await;
        if cleaned_at.elapsed() > COUNTER_CLEANUP_INTERVAL {
            cleaned_at = Instant::now();
            let limiter = Arc::clone(&state.limiter);
            drop(
                tokio::task::spawn_blocking(move || {
                    limiter.forget_unused(now_ms());
                    limiter.remove_past(now_ms());
                })
                .await,
            );
        }
    }
}

/// Executes node store commands at the control process, forever and in order. While the control process cannot be
/// reached, a write is repeated until it is stored, and a read until its requester stops waiting.
async fn run_node_store_commands(state: &GatewayState) {
    let commands = state.shared.node_store.as_ref().and_then(|node_store| node_store.take_command_receiver());
    let Some(mut commands) = commands else { return };
    while let Some(command) = commands.recv().await {
        let mut pause = MIN_BACKOFF;
        while !command.is_abandoned() {
            if let Some(value) = execute_node_store_command(state, &command).await {
                command.send_reply(value);
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_BACKOFF);
        }
    }
}

/// Executes a command. Returns the stored or replaced value, or `Some(None)` if there was none; `None` if the control
/// process cannot be reached.
async fn execute_node_store_command(state: &GatewayState, command: &NodeStoreCommand) -> Option<Option<String>> {
    let headers = Headers::default();
    match command {
        NodeStoreCommand::Put { key, value, .. } => {
            let body = serde_json::json!({"name": key, "value": value}).to_string().into();
            let request = ControlRequest { method: "POST", target: NODE_STORE_PATH, headers: &headers, body };
            send_node_store_request(state, request).await
        }
        NodeStoreCommand::Get { key, .. } => {
            let name = utf8_percent_encode(key, batches::PATH_SEGMENT_ENCODE_SET);
            let target = format!("{NODE_STORE_PATH}?name={name}");
            let request = ControlRequest { method: "GET", target: &target, headers: &headers, body: Bytes::new() };
            send_node_store_request(state, request).await
        }
    }
}

async fn send_node_store_request(state: &GatewayState, request: ControlRequest<'_>) -> Option<Option<String>> {
    let IncomingResponse { head, mut body } = send_control_request(state, request).await.ok()?;
    let value = penstock_net::collect(&mut body, MAX_NODE_STORE_VALUE_BYTES).await.ok()??;
    Some((head.status == 200).then(|| String::from_utf8_lossy(&value).into_owned()))
}

/// Waits for new snapshots and applies them, forever. The last snapshot stays in force while the control process is
/// down.
pub async fn follow_snapshots(state: Arc<GatewayState>, lower_priority: LowerPriority) {
    let mut pause = MIN_BACKOFF;
    let mut epoch = state.snapshot_epoch();
    loop {
        match poll_snapshot(&state, &epoch, &lower_priority).await {
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

async fn poll_snapshot(state: &Arc<GatewayState>, epoch: &str, lower_priority: &LowerPriority) -> Result<()> {
    let target = format!("/internal/snapshot?worker={}&epoch={epoch}", state.settings.worker);
    let IncomingResponse { head, mut body } = send_control_request(
        state,
        ControlRequest { method: "GET", target: &target, headers: &Headers::default(), body: Bytes::new() },
    )
    .await?;
    let bytes = penstock_net::collect(&mut body, MAX_SNAPSHOT_BYTES).await?.unwrap_or_default();
    match head.status {
        // A snapshot that does not compile is rejected as a whole. The publisher validates it first, so this indicates
        // a bug in the gateway.
        200 => apply_snapshot(state, bytes, lower_priority).await,
        204 => Ok(()),
        _ => Err(Error::ControlUnavailable),
    }
}

/// Compiles a snapshot on its own thread, because compiling here would block the runtime. A large one has a low
/// priority, so that it delays no requests. A small one has not, because a busy machine could delay it by many seconds.
async fn apply_snapshot(state: &Arc<GatewayState>, bytes: Bytes, lower_priority: &LowerPriority) -> Result<()> {
    let (state, lower_priority) = (Arc::clone(state), Arc::clone(lower_priority));
    let (done, applied) = oneshot::channel();
    let compiling = std::thread::Builder::new().name("compile".into()).spawn(move || {
        if bytes.len() > MAX_URGENT_BYTES {
            lower_priority();
        }
        drop(done.send(state.apply_snapshot(&bytes)));
    });
    compiling.map_err(|_| Error::Overloaded)?;
    applied.await.map_err(|_| Error::Panicked)?.map_err(Error::ConfigInvalid)
}

/// Fetches a version of a prompt from the control process. `None` if it does not exist.
pub async fn fetch_prompt_version(state: &GatewayState, prompt_id: &str, number: u32) -> Result<Option<Bytes>> {
    let id = utf8_percent_encode(prompt_id, batches::PATH_SEGMENT_ENCODE_SET);
    let target = format!("/internal/prompts/{id}/{number}");
    let control_request =
        ControlRequest { method: "GET", target: &target, headers: &Headers::default(), body: Bytes::new() };
    let IncomingResponse { head, mut body } = send_control_request(state, control_request).await?;
    let json = penstock_net::collect(&mut body, MAX_PROMPT_VERSION_BYTES).await?;
    match (head.status, json) {
        (200, Some(json)) => Ok(Some(json)),
        (404, _) => Ok(None),
        _ => Err(Error::ControlUnavailable),
    }
}

/// Fetches a trial plan (guardrails and the texts to try them on) from the control process, which deletes it there.
/// `None` if no plan has this name.
pub async fn take_trial_plan(state: &GatewayState, name: &str) -> Result<Option<Bytes>> {
    let name = utf8_percent_encode(name, batches::PATH_SEGMENT_ENCODE_SET);
    let target = format!("/internal/trial-plans/{name}");
    let control_request =
        ControlRequest { method: "POST", target: &target, headers: &Headers::default(), body: Bytes::new() };
    let IncomingResponse { head, mut body } = send_control_request(state, control_request).await?;
    let json = penstock_net::collect(&mut body, MAX_TRIAL_PLAN_BYTES).await?;
    Ok(json.filter(|_| head.status == 201))
}

/// Posts a body to the control process. Returns the response status, or `None` without a response.
async fn post_to_control(state: &GatewayState, target: &str, body: Bytes) -> Option<u16> {
    let mut fields = Headers::with_capacity(1);
    fields.push(b"content-type", b"application/octet-stream");
    let control_request = ControlRequest { method: "POST", target, headers: &fields, body };
    let IncomingResponse { head, mut body } = send_control_request(state, control_request).await.ok()?;
    penstock_net::collect(&mut body, 64 * 1024).await.ok()?;
    Some(head.status)
}
