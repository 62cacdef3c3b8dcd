//! Redis client for cached responses, circuit breakers and sticky sessions shared between workers and nodes. Requests
//! wait for it only briefly, and while it is unavailable each worker uses its local state.

use std::{
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, FromRedisValue, IntoConnectionInfo, Pipeline, ProtocolVersion,
    PushInfo, PushKind, RedisResult, TlsCertificates, Value, aio::MultiplexedConnection, pipe,
};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, timeout},
};

use crate::state::shared::{
    pubsub::{PubSubHandler, PubSubMessage},
    sticky_sessions::SessionAssignment,
};
use crate::{
    error::Problem,
    features::cache::CacheKey,
    process::{metrics::Counter, settings::Settings},
};

/// Timeout for connecting, pinging and sending a batch, none of which a request waits for.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time between two flushes of messages and commands.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between pings while Redis is available.
const PING_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between pings after Redis was too slow.
const UNAVAILABLE_PING_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of queued commands.
const MAX_QUEUED_COMMANDS: usize = 4096;
/// Maximum size of the bodies of all queued commands.
const MAX_QUEUED_BYTES: usize = 32 * 1024 * 1024;
/// Size from which no further commands are added to a batch.
const MAX_BATCH_BYTES: usize = 256 * 1024;
/// Maximum number of open breakers that a worker loads when it connects.
const MAX_LOADED_BREAKERS: isize = 10_000;
/// Age after which an open breaker is deleted from Redis, unless it was opened again.
const BREAKER_EXPIRY_MS: i64 = 24 * 3600 * 1000;
/// Maximum time for which a sticky session is stored.
const MAX_SESSION_TTL: Duration = Duration::from_hours(365 * 24);
/// How long values of `put` and `swap` are stored.
const VALUE_TTL: Duration = Duration::from_hours(24);
/// Version of the stored response format. Responses of another version are treated as misses.
const FORMAT_VERSION: u8 = 1;

/// Command that is queued and sent in the background.
#[derive(Debug)]
pub enum RedisCommand {
    StoreResponse {
        key: CacheKey,
        content_type: Arc<str>,
        body: Bytes,
        ttl: Duration,
        is_refresh: bool,
    },
    /// Stores a short value for other workers.
    Put {
        key: String,
        value: String,
    },
    /// Flushes the breaker deltas now instead of at the next `FLUSH_INTERVAL`.
    Flush,
    /// Claims the right to probe a half-open target.
    ClaimProbe {
        target: u64,
        cooldown: Duration,
    },
    BreakerOpened {
        target: u64,
        opened_at: Duration,
    },
    BreakerClosed {
        target: u64,
    },
}

impl RedisCommand {
    fn size_bytes(&self) -> usize {
        match self {
            Self::StoreResponse { body, .. } => body.len(),
            Self::Put { key: name, value } => name.len() + value.len(),
            _ => 0,
        }
    }
}

/// Result of a response lookup in Redis.
pub enum CachedLookup {
    Hit {
        content_type: Arc<str>,
        body: Bytes,
        remaining_ttl: Duration,
    },
    Miss,
    /// Redis is unavailable, or did not reply in time.
    Unavailable,
}

/// Why a pipeline has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryError {
    /// The pipeline was not sent, or Redis replied with an error.
    Rejected,
    /// Redis may have run the pipeline, or may still run it.
    Unknown,
}

/// Counters of the Redis client, exported as metrics.
#[derive(Debug, Default)]
pub struct RedisMetrics {
    pub lookups: Counter,
    pub hits: Counter,
    /// Number of lookups that timed out.
    pub timed_out_lookups: Counter,
    /// Number of commands that Redis rejected.
    pub rejected_commands: Counter,
    /// Number of commands that were dropped because the queue was full or the connection was lost.
    pub dropped_commands: Counter,
    /// Number of connections that were lost.
    pub lost_connections: Counter,
    /// Pub/sub messages received from other workers.
    pub received_messages: Counter,
}

pub struct RedisClient {
    client: Client,
    key_prefix: String,
    request_timeout: Duration,
    /// Maximum size of a response body that is stored, in bytes.
    max_response_bytes: usize,
    /// Connection that replies in time. Empty while Redis is unavailable.
    healthy_connection: ArcSwapOption<MultiplexedConnection>,
    /// Notified when Redis becomes unavailable, so that waiting requests stop waiting.
    became_unavailable: Notify,
    commands: mpsc::Sender<RedisCommand>,
    receiver: Mutex<Option<mpsc::Receiver<RedisCommand>>>,
    queued_bytes: AtomicUsize,
    /// Random id of this worker in pub/sub messages and probe claims.
    worker_id: u64,
    pub metrics: Arc<RedisMetrics>,
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may contain a password, so no field is printed.
        formatter.write_str("RedisClient")
    }
}

impl RedisClient {
    /// Returns a client if the settings contain a Redis URL. Does not connect yet.
    pub fn from_settings(settings: &Settings) -> Result<Option<Arc<Self>>, Problem> {
        let Some(url) = &settings.redis_url else { return Ok(None) };
        let refused = |_| Problem::new("$.redis_url", "must be an address such as `redis://host:6379`");
        let info = url.expose().into_connection_info().map_err(refused)?;
        let connection_settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(connection_settings);
        let client = match &settings.tls_ca {
            Some(path) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
                let unread = |error: io::Error| Problem::new("$.tls_ca", error.to_string());
                let root_cert = Some(penstock_net::trusted_roots_pem(path).map_err(unread)?);
                Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })
            }
            _ => Client::open(info),
        };
        let client = client.map_err(refused)?;
        let (commands, receiver) = mpsc::channel(MAX_QUEUED_COMMANDS);
        Ok(Some(Arc::new(Self {
            client,
            key_prefix: settings.redis_prefix.clone(),
            request_timeout: Duration::from_millis(settings.redis_wait_ms),
            max_response_bytes: settings.redis_answer_bytes,
            healthy_connection: ArcSwapOption::empty(),
            became_unavailable: Notify::new(),
            commands,
            receiver: Mutex::new(Some(receiver)),
            queued_bytes: AtomicUsize::new(0),
            worker_id: fastrand::u64(..),
            metrics: Arc::default(),
        })))
    }

    /// Returns true while Redis replies in time.
    pub fn is_available(&self) -> bool {
        self.healthy_connection.load().is_some()
    }

    /// Marks Redis as unavailable and wakes the requests that wait for it.
    fn mark_unavailable(&self) {
        self.healthy_connection.store(None);
        self.became_unavailable.notify_waiters();
    }

    /// Queues a command. Drops it and returns false if the queue is full or the body is too large.
    pub fn enqueue(&self, command: RedisCommand) -> bool {
        let bytes = command.size_bytes();
        let is_too_much =
            bytes > self.max_response_bytes || self.queued_bytes.load(Ordering::Relaxed) + bytes > MAX_QUEUED_BYTES;
        if is_too_much || !self.is_available() && bytes > 0 {
            self.metrics.dropped_commands.add(1);
            return false;
        }
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_taken = self.commands.try_send(command).is_ok();
        if !is_taken {
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.metrics.dropped_commands.add(1);
        }
        is_taken
    }

    /// Looks up a cached response. A request waits for this, so the wait is short.
    pub async fn find_response(&self, key: &CacheKey) -> CachedLookup {
        if !self.is_available() {
            return CachedLookup::Unavailable;
        }
        self.metrics.lookups.add(1);
        let (name, mut pipeline) = (self.response_key(key), pipe());
        pipeline.cmd("GET").arg(&name).cmd("PTTL").arg(&name);
        match self.query::<(Option<Vec<u8>>, i64)>(&pipeline).await {
            Some((Some(value), remaining_ttl)) => {
                self.metrics.hits.add(1);
                decode_response(value, Duration::from_millis(remaining_ttl.try_into().unwrap_or(0)))
            }
            Some((None, _)) => CachedLookup::Miss,
            None => CachedLookup::Unavailable,
        }
    }

    /// Returns the target of a sticky session and how long the assignment is still valid. Assigns `assignment.target`
    /// if the session has no target, or if `replaces` is set. Times out like a lookup.
    pub async fn assign_session(&self, assignment: SessionAssignment, replaces: bool) -> Option<(u64, Duration)> {
        let (name, mut pipeline) = (format!("{}session:{}", self.key_prefix, assignment.key), pipe());
        let ttl = assignment.ttl.min(MAX_SESSION_TTL).as_millis() as u64;
        let set_command = pipeline.cmd("SET").arg(&name).arg(assignment.target).arg("PX").arg(ttl);
        if replaces { set_command } else { set_command.arg("NX") }.ignore();
        pipeline.cmd("GET").arg(&name).cmd("PTTL").arg(&name);
        let (target, remaining_ttl) = self.query::<(Option<u64>, i64)>(&pipeline).await?;
        Some((target?, Duration::from_millis(remaining_ttl.try_into().unwrap_or(0))))
    }

    /// Stores a value for other workers without waiting.
    pub fn put(&self, name: String, value: impl Into<String>) {
        self.enqueue(RedisCommand::Put { key: name, value: value.into() });
    }

    /// Stores a value and returns the one that it replaces; `None` if there was none or Redis did not reply in time. A
    /// client's request waits until this returns.
    pub async fn swap(&self, name: &str, value: &str) -> Option<String> {
        if !self.is_available() {
            return None;
        }
        let mut pipeline = pipe();
        let age = VALUE_TTL.as_millis() as u64;
        pipeline.cmd("SET").arg(self.prefixed_key(name)).arg(value).arg("PX").arg(age).arg("GET");
        self.query::<(Option<String>,)>(&pipeline).await?.0
    }

    /// Returns the values stored under these names; empty if Redis did not reply in time. A client's request waits
    /// until this returns.
    pub async fn get_many(&self, names: &[String]) -> Vec<Option<String>> {
        if !self.is_available() || names.is_empty() {
            return Vec::new();
        }
        let mut pipeline = pipe();
        pipeline.cmd("MGET").arg(names.iter().map(|name| self.prefixed_key(name)).collect::<Vec<_>>());
        self.query::<(Vec<Option<String>>,)>(&pipeline).await.map(|(values,)| values).unwrap_or_default()
    }

    /// Runs a pipeline; `None` if it fails or Redis does not reply within `request_timeout`. A client's request waits
    /// until this returns.
    pub(super) async fn query<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Option<T> {
        self.try_query(pipeline).await.ok()
    }

    /// Runs a pipeline as `query` does. The error shows if Redis may have run it nevertheless.
    ///
    /// # Errors
    /// If it fails or Redis does not reply within `request_timeout`.
    pub(super) async fn try_query<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, QueryError> {
        // Registered before the connection is loaded, so that no notification in between is missed.
        let unavailable = self.became_unavailable.notified();
        let connection = self.healthy_connection.load_full().ok_or(QueryError::Rejected)?;
        let mut connection = MultiplexedConnection::clone(&*connection);
        let querying = timeout(self.request_timeout, pipeline.query_async::<T>(&mut connection));
        let outcome = tokio::select! {
            biased;
            () = unavailable => return Err(QueryError::Unknown),
            outcome = querying => outcome,
        };
        match outcome {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                self.metrics.rejected_commands.add(1);
                Err(if error.code().is_some() { QueryError::Rejected } else { QueryError::Unknown })
            }
            Err(_) => {
                // Marks Redis as unavailable at once, so that other requests do not wait for the same timeout.
                self.mark_unavailable();
                self.metrics.timed_out_lookups.add(1);
                Err(QueryError::Unknown)
            }
        }
    }

    /// Keeps a connection open and sends queued commands. Never returns.
    pub async fn run(&self, handler: &PubSubHandler) {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut commands) = receiver else { return };
        loop {
            if let Ok(Ok((connection, ahead))) = timeout(BACKGROUND_TIMEOUT, self.connect(handler)).await {
                self.healthy_connection.store(Some(Arc::new(connection.clone())));
                self.serve_connection(ActiveConnection { connection, clock_offset_ms: ahead }, &mut commands, handler)
                    .await;
                self.mark_unavailable();
                self.metrics.lost_connections.add(1);
            }
            // Queued commands are stale after a lost connection, so they are dropped.
            while let Ok(command) = commands.try_recv() {
                self.queued_bytes.fetch_sub(command.size_bytes(), Ordering::Relaxed);
                self.metrics.dropped_commands.add(1);
            }
            handler.breakers.drain_deltas();
            sleep(FLUSH_INTERVAL).await;
        }
    }

    /// Returns a connection that is subscribed to pub/sub messages, and the offset of Redis's clock to this worker's in
    /// milliseconds.
    async fn connect(&self, handler: &PubSubHandler) -> RedisResult<(MultiplexedConnection, i64)> {
        let (from, push_handler, figures) = (self.worker_id, handler.clone(), Arc::clone(&self.metrics));
        let on_push = move |push: PushInfo| {
            if let Some(message) = parse_message(&push).filter(|message| message.from != from) {
                figures.received_messages.add(1);
                push_handler.apply(&message);
            }
            Ok::<(), ()>(())
        };
        // No timeouts here: every request to Redis sets its own.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let config = config.set_push_sender(on_push).set_pipeline_buffer_size(1024);
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        connection.subscribe(self.prefixed_key("worker_updates")).await?;
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
        let now = seconds * 1000 + micros / 1000;
        let mut pipeline = pipe();
        pipeline
            .cmd("ZREMRANGEBYSCORE")
            .arg(self.prefixed_key("breakers"))
            .arg("-inf")
            .arg(now - BREAKER_EXPIRY_MS)
            .ignore();
        pipeline.cmd("ZRANGEBYSCORE").arg(self.prefixed_key("breakers")).arg("-inf").arg("+inf").arg("WITHSCORES");
        pipeline.arg("LIMIT").arg(0).arg(MAX_LOADED_BREAKERS);
        let (opened,): (Vec<(u64, f64)>,) = pipeline.query_async(&mut connection).await?;
        let age = |at: f64| Duration::from_millis(u64::try_from(now - at as i64).unwrap_or(0));
        handler.restore_open_breakers(opened.into_iter().map(|(target, at)| (target, age(at))));
        Ok((connection, now - handler.clock.now().as_millis() as i64))
    }

    /// Sends batches and pings Redis until the connection fails.
    async fn serve_connection(
        &self,
        mut link: ActiveConnection,
        commands: &mut mpsc::Receiver<RedisCommand>,
        handler: &PubSubHandler,
    ) {
        let (mut batch, mut last_ping) = (Vec::new(), Instant::now());
        loop {
            self.collect_batch(commands, &mut batch).await;
            if !self.send_batch(&mut link, &mut batch, handler).await {
                return;
            }
            let was_available = self.is_available();
            if last_ping.elapsed() < if was_available { PING_INTERVAL } else { UNAVAILABLE_PING_INTERVAL } {
                continue;
            }
            last_ping = Instant::now();
            if !matches!(timeout(BACKGROUND_TIMEOUT, ping(&mut link.connection)).await, Ok(Ok(()))) {
                return;
            }
            match (was_available, last_ping.elapsed() <= self.request_timeout) {
                (false, true) => self.healthy_connection.store(Some(Arc::new(link.connection.clone()))),
                (true, false) => self.mark_unavailable(),
                _ => (),
            }
        }
    }

    /// Collects the commands of one batch: those that are queued, or the first one within `FLUSH_INTERVAL`.
    async fn collect_batch(&self, commands: &mut mpsc::Receiver<RedisCommand>, batch: &mut Vec<RedisCommand>) {
        let mut next = timeout(FLUSH_INTERVAL, commands.recv()).await.ok().flatten();
        let mut bytes = 0;
        while let Some(command) = next {
            self.queued_bytes.fetch_sub(command.size_bytes(), Ordering::Relaxed);
            bytes += command.size_bytes() + 1024;
            batch.push(command);
            next = if bytes < MAX_BATCH_BYTES { commands.try_recv().ok() } else { None };
        }
    }

    /// Sends one batch. Returns false if Redis did not reply.
    async fn send_batch(
        &self,
        link: &mut ActiveConnection,
        batch: &mut Vec<RedisCommand>,
        handler: &PubSubHandler,
    ) -> bool {
        let mut message = PubSubMessage {
            from: self.worker_id,
            breaker_deltas: handler.breakers.drain_deltas(),
            ..PubSubMessage::default()
        };
        let (mut pipeline, mut claims) = (pipe(), Vec::new());
        pipeline.ignore_errors();
        for command in batch.drain(..) {
            self.append_command(command, &mut pipeline, &mut message, &mut claims, link.clock_offset_ms);
        }
        if !message.is_empty()
            && let Ok(text) = serde_json::to_vec(&message)
        {
            pipeline.cmd("PUBLISH").arg(self.prefixed_key("worker_updates")).arg(text);
        }
        if pipeline.is_empty() {
            return true;
        }
        let sent = pipeline.query_async::<Vec<RedisResult<Value>>>(&mut link.connection);
        let Ok(Ok(replies)) = timeout(BACKGROUND_TIMEOUT, sent).await else { return false };
        self.metrics.rejected_commands.add(replies.iter().filter(|result| result.is_err()).count() as u64);
        for (index, target) in claims {
            // If Redis accepts no writes, every worker probes for itself.
            let is_ours = !matches!(replies.get(index), Some(Ok(Value::Nil)));
            handler.breakers.apply_claim_reply(target, handler.clock.now(), is_ours);
        }
        true
    }

    fn append_command(
        &self,
        command: RedisCommand,
        pipeline: &mut Pipeline,
        message: &mut PubSubMessage,
        claims: &mut Vec<(usize, u64)>,
        clock_offset_ms: i64,
    ) {
        let breakers = self.prefixed_key("breakers");
        match command {
            RedisCommand::StoreResponse { key, content_type: kind, body, ttl: age, is_refresh: refreshes } => {
                let Some(value) = encode_response(&kind, &body) else { return };
                let age = age.as_millis().min(i64::MAX as u128) as i64;
                pipeline.cmd("SET").arg(self.response_key(&key)).arg(value).arg("PX").arg(age);
                if refreshes {
                    message.refreshed.push(key);
                }
            }
            RedisCommand::Put { key: name, value: text } => {
                let age = VALUE_TTL.as_millis() as u64;
                pipeline.cmd("SET").arg(self.prefixed_key(&name)).arg(text).arg("PX").arg(age);
            }
            // Nothing to send: queueing the command has already woken the sender.
            RedisCommand::Flush => (),
            RedisCommand::ClaimProbe { target, cooldown } => {
                claims.push((pipeline.len(), target));
                let age = cooldown.as_millis() as u64;
                pipeline.cmd("SET").arg(self.claim_key(target)).arg(self.worker_id).arg("NX").arg("PX").arg(age);
            }
            RedisCommand::BreakerOpened { target, opened_at: at } => {
                pipeline.cmd("ZADD").arg(breakers).arg(clock_offset_ms + at.as_millis() as i64).arg(target);
                pipeline.cmd("DEL").arg(self.claim_key(target));
                message.opened.push(target);
            }
            RedisCommand::BreakerClosed { target } => {
                pipeline.cmd("ZREM").arg(breakers).arg(target);
                pipeline.cmd("DEL").arg(self.claim_key(target));
                message.closed.push(target);
            }
        }
    }

    pub(super) fn prefixed_key(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.key_prefix)
    }

    fn response_key(&self, key: &CacheKey) -> String {
        format!("{}answer:{key}", self.key_prefix)
    }

    fn claim_key(&self, target: u64) -> String {
        format!("{}try:{target}", self.key_prefix)
    }
}

struct ActiveConnection {
    connection: MultiplexedConnection,
    /// Offset of Redis's clock to this worker's, in milliseconds.
    clock_offset_ms: i64,
}

async fn ping(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    redis::cmd("PING").query_async(connection).await
}

fn parse_message(push: &PushInfo) -> Option<PubSubMessage> {
    match (&push.kind, push.data.last()?) {
        (PushKind::Message, Value::BulkString(text)) => serde_json::from_slice(text).ok(),
        _ => None,
    }
}

fn encode_response(kind: &str, body: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(kind.len()).ok()?.to_le_bytes();
    Some([&[FORMAT_VERSION], &length[..], kind.as_bytes(), body].concat())
}

fn decode_response(value: Vec<u8>, remaining_ttl: Duration) -> CachedLookup {
    let value = Bytes::from(value);
    let Some((&[FORMAT_VERSION, low, high], rest)) = value.split_first_chunk() else { return CachedLookup::Miss };
    let length = usize::from(u16::from_le_bytes([low, high]));
    match rest.get(..length).and_then(|kind| std::str::from_utf8(kind).ok()) {
        Some(kind) => CachedLookup::Hit { content_type: kind.into(), body: value.slice(3 + length..), remaining_ttl },
        None => CachedLookup::Miss,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_what_it_encodes_and_rejects_other_bytes() {
        let remaining_ttl = Duration::from_secs(7);
        let value = encode_response("text/plain", b"words").unwrap();
        let CachedLookup::Hit { content_type: kind, body, remaining_ttl: decoded_ttl } =
            decode_response(value, remaining_ttl)
        else {
            panic!()
        };
        assert_eq!((&*kind, &body[..], decoded_ttl), ("text/plain", &b"words"[..], remaining_ttl));
        for malformed in [&b""[..], b"\x01", b"\x02\x01\0ab", b"\x01\x09\0ab", b"\x01\x01\0\xff"] {
            assert!(matches!(decode_response(malformed.to_vec(), remaining_ttl), CachedLookup::Miss), "{malformed:?}");
        }
    }

    #[test]
    fn rejects_an_invalid_url_without_repeating_it() {
        let settings =
            Settings { redis_url: Some(crate::process::secret::Secret::new("nonsense:secret")), ..Settings::default() };
        let problem = RedisClient::from_settings(&settings).unwrap_err();
        assert!(problem.path == "$.redis_url" && !problem.message.contains("secret"));
    }
}
