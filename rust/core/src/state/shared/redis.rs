//! The way to the Redis through which workers and nodes share answers and breakers. Nobody waits long for it, and while it
//! is away each worker goes on with what it has.

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
    upstream::tls,
};

/// To connect, and for what nobody waits for.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(1);
/// News and orders go out at least this often.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// While all is well it is looked at so often; once it was slow it is left alone for so long.
const PING_INTERVAL: Duration = Duration::from_millis(500);
const UNAVAILABLE_PING_INTERVAL: Duration = Duration::from_secs(1);
/// Orders that wait: so many, with answers of so many bytes; so many bytes go out at once.
const MAX_QUEUED_COMMANDS: usize = 4096;
const MAX_QUEUED_BYTES: usize = 32 * 1024 * 1024;
const MAX_BATCH_BYTES: usize = 256 * 1024;
/// More open breakers than this are not learned.
const MAX_LOADED_BREAKERS: isize = 10_000;
/// No breaker stays open for so long without being opened anew.
const BREAKER_EXPIRY_MS: i64 = 24 * 3600 * 1000;
/// No session is remembered for longer.
const MAX_SESSION_TTL: Duration = Duration::from_hours(365 * 24);
/// So long a note is there.
const VALUE_TTL: Duration = Duration::from_hours(24);
/// How an answer is written down; another version is not read.
const FORMAT_VERSION: u8 = 1;

/// What is to be done there when there is time.
#[derive(Debug)]
pub enum RedisCommand {
    StoreResponse {
        key: CacheKey,
        content_type: Arc<str>,
        body: Bytes,
        ttl: Duration,
        is_refresh: bool,
    },
    /// A few words that workers leave for each other.
    Put {
        key: String,
        value: String,
    },
    /// Tells what was seen now rather than with the next tick.
    Flush,
    /// Asks for the right to try a target.
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
            Self::Put { key: name, value: said } => name.len() + said.len(),
            _ => 0,
        }
    }
}

/// What it has of an answer.
pub enum CachedLookup {
    Hit {
        content_type: Arc<str>,
        body: Bytes,
        remaining_ttl: Duration,
    },
    Miss,
    /// It did not say in time.
    Unavailable,
}

/// What is counted of it.
#[derive(Debug, Default)]
pub struct RedisMetrics {
    pub lookups: Counter,
    pub hits: Counter,
    /// Look-ups that were given up, and commands that it refused.
    pub timed_out_lookups: Counter,
    pub rejected_commands: Counter,
    /// Orders that could not be kept, and connections that were lost.
    pub dropped_commands: Counter,
    pub lost_connections: Counter,
    /// Messages of other workers.
    pub received_messages: Counter,
}

pub struct RedisClient {
    client: Client,
    key_prefix: String,
    request_timeout: Duration,
    /// Bytes of one answer.
    max_response_bytes: usize,
    /// There, and quick.
    healthy_connection: ArcSwapOption<MultiplexedConnection>,
    /// Told when it is that no longer: whoever waits for it goes on.
    became_unavailable: Notify,
    commands: mpsc::Sender<RedisCommand>,
    receiver: Mutex<Option<mpsc::Receiver<RedisCommand>>>,
    queued_bytes: AtomicUsize,
    /// What this worker's words are known by.
    worker_id: u64,
    pub metrics: Arc<RedisMetrics>,
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its address may hold a password.
        formatter.write_str("Redis")
    }
}

impl RedisClient {
    /// Where the settings name one; nothing is connected yet.
    pub fn from_settings(settings: &Settings) -> Result<Option<Arc<Self>>, Problem> {
        let Some(url) = &settings.redis_url else { return Ok(None) };
        let refused = |_| Problem::new("$.redis_url", "must be an address such as `redis://host:6379`");
        let info = url.expose().into_connection_info().map_err(refused)?;
        let spoken = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(spoken);
        let client = match &settings.tls_ca {
            Some(path) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
                let unread = |error: io::Error| Problem::new("$.tls_ca", error.to_string());
                let root_cert = Some(tls::trusted_roots_pem(path).map_err(unread)?);
                Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })
            }
            _ => Client::open(info),
        };
        let client = client.map_err(refused)?;
        let (orders, taken) = mpsc::channel(MAX_QUEUED_COMMANDS);
        Ok(Some(Arc::new(Self {
            client,
            key_prefix: settings.redis_prefix.clone(),
            request_timeout: Duration::from_millis(settings.redis_wait_ms),
            max_response_bytes: settings.redis_answer_bytes,
            healthy_connection: ArcSwapOption::empty(),
            became_unavailable: Notify::new(),
            commands: orders,
            receiver: Mutex::new(Some(taken)),
            queued_bytes: AtomicUsize::new(0),
            worker_id: fastrand::u64(..),
            metrics: Arc::default(),
        })))
    }

    /// Whether it answers, and in time.
    pub fn is_available(&self) -> bool {
        self.healthy_connection.load().is_some()
    }

    /// From now on nobody asks it.
    fn mark_unavailable(&self) {
        self.healthy_connection.store(None);
        self.became_unavailable.notify_waiters();
    }

    /// Puts something in the queue; what finds no room there is dropped.
    pub fn enqueue(&self, order: RedisCommand) -> bool {
        let bytes = order.size_bytes();
        let is_too_much =
            bytes > self.max_response_bytes || self.queued_bytes.load(Ordering::Relaxed) + bytes > MAX_QUEUED_BYTES;
        if is_too_much || !self.is_available() && bytes > 0 {
            self.metrics.dropped_commands.add(1);
            return false;
        }
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_taken = self.commands.try_send(order).is_ok();
        if !is_taken {
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.metrics.dropped_commands.add(1);
        }
        is_taken
    }

    /// The answer that it has. A request waits for this, so it is given up soon.
    pub async fn find_response(&self, key: &CacheKey) -> CachedLookup {
        if !self.is_available() {
            return CachedLookup::Unavailable;
        }
        self.metrics.lookups.add(1);
        let (name, mut asked) = (self.response_key(key), pipe());
        asked.cmd("GET").arg(&name).cmd("PTTL").arg(&name);
        match self.query::<(Option<Vec<u8>>, i64)>(&asked).await {
            Some((Some(value), left)) => {
                self.metrics.hits.add(1);
                decode_response(value, Duration::from_millis(left.try_into().unwrap_or(0)))
            }
            Some((None, _)) => CachedLookup::Miss,
            None => CachedLookup::Unavailable,
        }
    }

    /// The target that a session was given to and for how long that still holds; it is given to this one where it has none, or
    /// the old one is gone. Given up as soon as a look-up is.
    pub async fn assign_session(&self, wanted: SessionAssignment, replaces: bool) -> Option<(u64, Duration)> {
        let (name, mut asked) = (format!("{}session:{}", self.key_prefix, wanted.key), pipe());
        let ttl = wanted.ttl.min(MAX_SESSION_TTL).as_millis() as u64;
        let given = asked.cmd("SET").arg(&name).arg(wanted.target).arg("PX").arg(ttl);
        if replaces { given } else { given.arg("NX") }.ignore();
        asked.cmd("GET").arg(&name).cmd("PTTL").arg(&name);
        let (target, left) = self.query::<(Option<u64>, i64)>(&asked).await?;
        Some((target?, Duration::from_millis(left.try_into().unwrap_or(0))))
    }

    /// Leaves a note for others.
    pub fn put(&self, name: String, said: impl Into<String>) {
        self.enqueue(RedisCommand::Put { key: name, value: said.into() });
    }

    /// Likewise, and says what was noted there before; nothing where Redis does not say so in time. A request waits for this.
    pub async fn swap(&self, name: &str, said: &str) -> Option<String> {
        if !self.is_available() {
            return None;
        }
        let mut asked = pipe();
        let age = VALUE_TTL.as_millis() as u64;
        asked.cmd("SET").arg(self.prefixed_key(name)).arg(said).arg("PX").arg(age).arg("GET");
        self.query::<(Option<String>,)>(&asked).await?.0
    }

    /// What others noted under these names; nothing where it does not say so in time. A request waits for this.
    pub async fn get_many(&self, names: &[String]) -> Vec<Option<String>> {
        if !self.is_available() || names.is_empty() {
            return Vec::new();
        }
        let mut asked = pipe();
        asked.cmd("MGET").arg(names.iter().map(|name| self.prefixed_key(name)).collect::<Vec<_>>());
        self.query::<(Vec<Option<String>>,)>(&asked).await.map(|(said,)| said).unwrap_or_default()
    }

    /// What it says, where it does in time. A request waits for this.
    async fn query<T: FromRedisValue>(&self, asked: &Pipeline) -> Option<T> {
        // Before it is looked for: what is told after that is heard.
        let left = self.became_unavailable.notified();
        let mut near = MultiplexedConnection::clone(&*self.healthy_connection.load_full()?);
        let asking = timeout(self.request_timeout, asked.query_async::<T>(&mut near));
        let told = tokio::select! {
            biased;
            () = left => return None,
            told = asking => told,
        };
        match told {
            Ok(Ok(told)) => Some(told),
            Ok(Err(_)) => {
                self.metrics.rejected_commands.add(1);
                None
            }
            Err(_) => {
                // Whoever else waits, or comes next, need not wait as long to learn the same.
                self.mark_unavailable();
                self.metrics.timed_out_lookups.add(1);
                None
            }
        }
    }

    /// Keeps the connection and does what was ordered, for ever.
    pub async fn run(&self, ears: &PubSubHandler) {
        let taken = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut orders) = taken else { return };
        loop {
            if let Ok(Ok((connection, ahead))) = timeout(BACKGROUND_TIMEOUT, self.connect(ears)).await {
                self.healthy_connection.store(Some(Arc::new(connection.clone())));
                self.serve_connection(ActiveConnection { connection, clock_offset_ms: ahead }, &mut orders, ears).await;
                self.mark_unavailable();
                self.metrics.lost_connections.add(1);
            }
            // Nobody is told of old news.
            while let Ok(order) = orders.try_recv() {
                self.queued_bytes.fetch_sub(order.size_bytes(), Ordering::Relaxed);
                self.metrics.dropped_commands.add(1);
            }
            ears.breakers.drain_deltas();
            sleep(FLUSH_INTERVAL).await;
        }
    }

    /// A connection on which news come in, and how far its clock is ahead of this worker's.
    async fn connect(&self, ears: &PubSubHandler) -> RedisResult<(MultiplexedConnection, i64)> {
        let (from, hearing, figures) = (self.worker_id, ears.clone(), Arc::clone(&self.metrics));
        let hear = move |push: PushInfo| {
            if let Some(news) = parse_message(&push).filter(|news| news.from != from) {
                figures.received_messages.add(1);
                hearing.apply(&news);
            }
            Ok::<(), ()>(())
        };
        // Waits are bounded by who waits.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let config = config.set_push_sender(hear).set_pipeline_buffer_size(1024);
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        connection.subscribe(self.prefixed_key("news")).await?;
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
        let now = seconds * 1000 + micros / 1000;
        let mut asked = pipe();
        asked
            .cmd("ZREMRANGEBYSCORE")
            .arg(self.prefixed_key("breakers"))
            .arg("-inf")
            .arg(now - BREAKER_EXPIRY_MS)
            .ignore();
        asked.cmd("ZRANGEBYSCORE").arg(self.prefixed_key("breakers")).arg("-inf").arg("+inf").arg("WITHSCORES");
        asked.arg("LIMIT").arg(0).arg(MAX_LOADED_BREAKERS);
        let (opened,): (Vec<(u64, f64)>,) = asked.query_async(&mut connection).await?;
        let age = |at: f64| Duration::from_millis(u64::try_from(now - at as i64).unwrap_or(0));
        ears.restore_open_breakers(opened.into_iter().map(|(target, at)| (target, age(at))));
        Ok((connection, now - ears.clock.now().as_millis() as i64))
    }

    /// Until the connection is of no use any more.
    async fn serve_connection(
        &self,
        mut link: ActiveConnection,
        orders: &mut mpsc::Receiver<RedisCommand>,
        ears: &PubSubHandler,
    ) {
        let (mut batch, mut looked) = (Vec::new(), Instant::now());
        loop {
            self.collect_batch(orders, &mut batch).await;
            if !self.send_batch(&mut link, &mut batch, ears).await {
                return;
            }
            let is_near = self.is_available();
            if looked.elapsed() < if is_near { PING_INTERVAL } else { UNAVAILABLE_PING_INTERVAL } {
                continue;
            }
            looked = Instant::now();
            if !matches!(timeout(BACKGROUND_TIMEOUT, ping(&mut link.connection)).await, Ok(Ok(()))) {
                return;
            }
            match (is_near, looked.elapsed() <= self.request_timeout) {
                (false, true) => self.healthy_connection.store(Some(Arc::new(link.connection.clone()))),
                (true, false) => self.mark_unavailable(),
                _ => (),
            }
        }
    }

    /// Orders that go out together: what waits, or comes within one tick.
    async fn collect_batch(&self, orders: &mut mpsc::Receiver<RedisCommand>, batch: &mut Vec<RedisCommand>) {
        let mut next = timeout(FLUSH_INTERVAL, orders.recv()).await.ok().flatten();
        let mut bytes = 0;
        while let Some(order) = next {
            self.queued_bytes.fetch_sub(order.size_bytes(), Ordering::Relaxed);
            bytes += order.size_bytes() + 1024;
            batch.push(order);
            next = if bytes < MAX_BATCH_BYTES { orders.try_recv().ok() } else { None };
        }
    }

    /// Says whether it was heard.
    async fn send_batch(
        &self,
        link: &mut ActiveConnection,
        batch: &mut Vec<RedisCommand>,
        ears: &PubSubHandler,
    ) -> bool {
        let mut news =
            PubSubMessage { from: self.worker_id, seen: ears.breakers.drain_deltas(), ..PubSubMessage::default() };
        let (mut asked, mut claims) = (pipe(), Vec::new());
        asked.ignore_errors();
        for order in batch.drain(..) {
            self.append_command(order, &mut asked, &mut news, (&mut claims, link.clock_offset_ms));
        }
        if !news.is_empty()
            && let Ok(text) = serde_json::to_vec(&news)
        {
            asked.cmd("PUBLISH").arg(self.prefixed_key("news")).arg(text);
        }
        if asked.is_empty() {
            return true;
        }
        let sent = asked.query_async::<Vec<RedisResult<Value>>>(&mut link.connection);
        let Ok(Ok(told)) = timeout(BACKGROUND_TIMEOUT, sent).await else { return false };
        self.metrics.rejected_commands.add(told.iter().filter(|result| result.is_err()).count() as u64);
        for (place, target) in claims {
            // Where it takes no writes everybody tries for themselves.
            let is_ours = !matches!(told.get(place), Some(Ok(Value::Nil)));
            ears.breakers.apply_claim_reply(target, ears.clock.now(), is_ours);
        }
        true
    }

    fn append_command(
        &self,
        order: RedisCommand,
        asked: &mut Pipeline,
        news: &mut PubSubMessage,
        (claims, ahead): (&mut Vec<(usize, u64)>, i64),
    ) {
        let breakers = self.prefixed_key("breakers");
        match order {
            RedisCommand::StoreResponse { key, content_type: kind, body, ttl: age, is_refresh: refreshes } => {
                let Some(value) = encode_response(&kind, &body) else { return };
                let age = age.as_millis().min(i64::MAX as u128) as i64;
                asked.cmd("SET").arg(self.response_key(&key)).arg(value).arg("PX").arg(age);
                if refreshes {
                    news.refreshed.push(key);
                }
            }
            RedisCommand::Put { key: name, value: said } => {
                let age = VALUE_TTL.as_millis() as u64;
                asked.cmd("SET").arg(self.prefixed_key(&name)).arg(said).arg("PX").arg(age);
            }
            // It woke who tells.
            RedisCommand::Flush => (),
            RedisCommand::ClaimProbe { target, cooldown } => {
                claims.push((asked.len(), target));
                let age = cooldown.as_millis() as u64;
                asked.cmd("SET").arg(self.claim_key(target)).arg(self.worker_id).arg("NX").arg("PX").arg(age);
            }
            RedisCommand::BreakerOpened { target, opened_at: at } => {
                asked.cmd("ZADD").arg(breakers).arg(ahead + at.as_millis() as i64).arg(target);
                asked.cmd("DEL").arg(self.claim_key(target));
                news.opened.push(target);
            }
            RedisCommand::BreakerClosed { target } => {
                asked.cmd("ZREM").arg(breakers).arg(target);
                asked.cmd("DEL").arg(self.claim_key(target));
                news.closed.push(target);
            }
        }
    }

    fn prefixed_key(&self, of: &str) -> String {
        format!("{}{of}", self.key_prefix)
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
    /// Milliseconds.
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

fn decode_response(value: Vec<u8>, left: Duration) -> CachedLookup {
    let value = Bytes::from(value);
    let Some((&[FORMAT_VERSION, low, high], rest)) = value.split_first_chunk() else { return CachedLookup::Miss };
    let length = usize::from(u16::from_le_bytes([low, high]));
    match rest.get(..length).and_then(|kind| std::str::from_utf8(kind).ok()) {
        Some(kind) => {
            CachedLookup::Hit { content_type: kind.into(), body: value.slice(3 + length..), remaining_ttl: left }
        }
        None => CachedLookup::Miss,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_what_it_encodes_and_rejects_other_bytes() {
        let left = Duration::from_secs(7);
        let value = encode_response("text/plain", b"words").unwrap();
        let CachedLookup::Hit { content_type: kind, body, remaining_ttl: found } = decode_response(value, left) else {
            panic!()
        };
        assert_eq!((&*kind, &body[..], found), ("text/plain", &b"words"[..], left));
        for odd in [&b""[..], b"\x01", b"\x02\x01\0ab", b"\x01\x09\0ab", b"\x01\x01\0\xff"] {
            assert!(matches!(decode_response(odd.to_vec(), left), CachedLookup::Miss), "{odd:?}");
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
