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
    pubsub::{Ears, News},
    sticky_sessions::Wanted,
};
use crate::{
    error::Problem,
    features::cache::Key,
    process::{metrics::Counter, settings::Settings},
    upstream::tls,
};

/// To connect, and for what nobody waits for.
const PATIENCE: Duration = Duration::from_secs(1);
/// News and orders go out at least this often.
const TICK: Duration = Duration::from_millis(100);
/// While all is well it is looked at so often; once it was slow it is left alone for so long.
const LOOK: Duration = Duration::from_millis(500);
const REST: Duration = Duration::from_secs(1);
/// Orders that wait: so many, with answers of so many bytes; so many bytes go out at once.
const MOST_ORDERS: usize = 4096;
const MOST_WAITING: usize = 32 * 1024 * 1024;
const MOST_AT_ONCE: usize = 256 * 1024;
/// More open breakers than this are not learned.
const MOST_BREAKERS: isize = 10_000;
/// No breaker stays open for so long without being opened anew.
const FORGOTTEN_MS: i64 = 24 * 3600 * 1000;
/// No session is remembered for longer.
const LONGEST_SESSION: Duration = Duration::from_hours(365 * 24);
/// So long a note is there.
const NOTED: Duration = Duration::from_hours(24);
/// How an answer is written down; another version is not read.
const FORMAT: u8 = 1;

/// What is to be done there when there is time.
#[derive(Debug)]
pub enum Order {
    Keep {
        key: Key,
        kind: Arc<str>,
        body: Bytes,
        age: Duration,
        refreshes: bool,
    },
    /// A few words that workers leave for each other.
    Note {
        name: String,
        said: String,
    },
    /// Tells what was seen now rather than with the next tick.
    Tell,
    /// Asks for the right to try a target.
    Claim {
        target: u64,
        cooldown: Duration,
    },
    Opened {
        target: u64,
        at: Duration,
    },
    Closed {
        target: u64,
    },
}

impl Order {
    fn bytes(&self) -> usize {
        match self {
            Self::Keep { body, .. } => body.len(),
            Self::Note { name, said } => name.len() + said.len(),
            _ => 0,
        }
    }
}

/// What it has of an answer.
pub enum Found {
    Answer {
        kind: Arc<str>,
        body: Bytes,
        left: Duration,
    },
    Nothing,
    /// It did not say in time.
    Unknown,
}

/// What is counted of it.
#[derive(Debug, Default)]
pub struct Figures {
    pub lookups: Counter,
    pub hits: Counter,
    /// Look-ups that were given up, and commands that it refused.
    pub slow: Counter,
    pub refused: Counter,
    /// Orders that could not be kept, and connections that were lost.
    pub dropped: Counter,
    pub lost: Counter,
    /// Messages of other workers.
    pub heard: Counter,
}

pub struct Redis {
    client: Client,
    prefix: String,
    wait: Duration,
    /// Bytes of one answer.
    most: usize,
    /// There, and quick.
    near: ArcSwapOption<MultiplexedConnection>,
    /// Told when it is that no longer: whoever waits for it goes on.
    left: Notify,
    orders: mpsc::Sender<Order>,
    taken: Mutex<Option<mpsc::Receiver<Order>>>,
    waiting: AtomicUsize,
    /// What this worker's words are known by.
    from: u64,
    pub figures: Arc<Figures>,
}

impl fmt::Debug for Redis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its address may hold a password.
        formatter.write_str("Redis")
    }
}

impl Redis {
    /// Where the settings name one; nothing is connected yet.
    pub fn of(settings: &Settings) -> Result<Option<Arc<Self>>, Problem> {
        let Some(url) = &settings.redis_url else { return Ok(None) };
        let refused = |_| Problem::new("$.redis_url", "must be an address such as `redis://host:6379`");
        let info = url.expose().into_connection_info().map_err(refused)?;
        let spoken = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(spoken);
        let client = match &settings.tls_ca {
            Some(path) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
                let unread = |error: io::Error| Problem::new("$.tls_ca", error.to_string());
                let root_cert = Some(tls::trusted(path).map_err(unread)?);
                Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })
            }
            _ => Client::open(info),
        };
        let client = client.map_err(refused)?;
        let (orders, taken) = mpsc::channel(MOST_ORDERS);
        Ok(Some(Arc::new(Self {
            client,
            prefix: settings.redis_prefix.clone(),
            wait: Duration::from_millis(settings.redis_wait_ms),
            most: settings.redis_answer_bytes,
            near: ArcSwapOption::empty(),
            left: Notify::new(),
            orders,
            taken: Mutex::new(Some(taken)),
            waiting: AtomicUsize::new(0),
            from: fastrand::u64(..),
            figures: Arc::default(),
        })))
    }

    /// Whether it answers, and in time.
    pub fn is_there(&self) -> bool {
        self.near.load().is_some()
    }

    /// From now on nobody asks it.
    fn leave(&self) {
        self.near.store(None);
        self.left.notify_waiters();
    }

    /// Puts something in the queue; what finds no room there is dropped.
    pub fn order(&self, order: Order) -> bool {
        let bytes = order.bytes();
        let is_too_much = bytes > self.most || self.waiting.load(Ordering::Relaxed) + bytes > MOST_WAITING;
        if is_too_much || !self.is_there() && bytes > 0 {
            self.figures.dropped.add(1);
            return false;
        }
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let is_taken = self.orders.try_send(order).is_ok();
        if !is_taken {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.figures.dropped.add(1);
        }
        is_taken
    }

    /// The answer that it has. A request waits for this, so it is given up soon.
    pub async fn find(&self, key: &Key) -> Found {
        if !self.is_there() {
            return Found::Unknown;
        }
        self.figures.lookups.add(1);
        let (name, mut asked) = (self.answer(key), pipe());
        asked.cmd("GET").arg(&name).cmd("PTTL").arg(&name);
        match self.ask::<(Option<Vec<u8>>, i64)>(&asked).await {
            Some((Some(value), left)) => {
                self.figures.hits.add(1);
                read(value, Duration::from_millis(left.try_into().unwrap_or(0)))
            }
            Some((None, _)) => Found::Nothing,
            None => Found::Unknown,
        }
    }

    /// The target that a session was given to and for how long that still holds; it is given to this one where it has none, or
    /// the old one is gone. Given up as soon as a look-up is.
    pub async fn give(&self, wanted: Wanted, replaces: bool) -> Option<(u64, Duration)> {
        let (name, mut asked) = (format!("{}session:{}", self.prefix, wanted.key), pipe());
        let ttl = wanted.ttl.min(LONGEST_SESSION).as_millis() as u64;
        let given = asked.cmd("SET").arg(&name).arg(wanted.target).arg("PX").arg(ttl);
        if replaces { given } else { given.arg("NX") }.ignore();
        asked.cmd("GET").arg(&name).cmd("PTTL").arg(&name);
        let (target, left) = self.ask::<(Option<u64>, i64)>(&asked).await?;
        Some((target?, Duration::from_millis(left.try_into().unwrap_or(0))))
    }

    /// Leaves a note for others.
    pub fn note(&self, name: String, said: impl Into<String>) {
        self.order(Order::Note { name, said: said.into() });
    }

    /// Likewise, and says what was noted there before; nothing where Redis does not say so in time. A request waits for this.
    pub async fn swap(&self, name: &str, said: &str) -> Option<String> {
        if !self.is_there() {
            return None;
        }
        let mut asked = pipe();
        let age = NOTED.as_millis() as u64;
        asked.cmd("SET").arg(self.name(name)).arg(said).arg("PX").arg(age).arg("GET");
        self.ask::<(Option<String>,)>(&asked).await?.0
    }

    /// What others noted under these names; nothing where it does not say so in time. A request waits for this.
    pub async fn noted(&self, names: &[String]) -> Vec<Option<String>> {
        if !self.is_there() || names.is_empty() {
            return Vec::new();
        }
        let mut asked = pipe();
        asked.cmd("MGET").arg(names.iter().map(|name| self.name(name)).collect::<Vec<_>>());
        self.ask::<(Vec<Option<String>>,)>(&asked).await.map(|(said,)| said).unwrap_or_default()
    }

    /// What it says, where it does in time. A request waits for this.
    async fn ask<T: FromRedisValue>(&self, asked: &Pipeline) -> Option<T> {
        // Before it is looked for: what is told after that is heard.
        let left = self.left.notified();
        let mut near = MultiplexedConnection::clone(&*self.near.load_full()?);
        let asking = timeout(self.wait, asked.query_async::<T>(&mut near));
        let told = tokio::select! {
            biased;
            () = left => return None,
            told = asking => told,
        };
        match told {
            Ok(Ok(told)) => Some(told),
            Ok(Err(_)) => {
                self.figures.refused.add(1);
                None
            }
            Err(_) => {
                // Whoever else waits, or comes next, need not wait as long to learn the same.
                self.leave();
                self.figures.slow.add(1);
                None
            }
        }
    }

    /// Keeps the connection and does what was ordered, for ever.
    pub async fn tend(&self, ears: &Ears) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut orders) = taken else { return };
        loop {
            if let Ok(Ok((connection, ahead))) = timeout(PATIENCE, self.connect(ears)).await {
                self.near.store(Some(Arc::new(connection.clone())));
                self.work(Link { connection, ahead }, &mut orders, ears).await;
                self.leave();
                self.figures.lost.add(1);
            }
            // Nobody is told of old news.
            while let Ok(order) = orders.try_recv() {
                self.waiting.fetch_sub(order.bytes(), Ordering::Relaxed);
                self.figures.dropped.add(1);
            }
            ears.breakers.untold();
            sleep(TICK).await;
        }
    }

    /// A connection on which news come in, and how far its clock is ahead of this worker's.
    async fn connect(&self, ears: &Ears) -> RedisResult<(MultiplexedConnection, i64)> {
        let (from, hearing, figures) = (self.from, ears.clone(), Arc::clone(&self.figures));
        let hear = move |push: PushInfo| {
            if let Some(news) = news(&push).filter(|news| news.from != from) {
                figures.heard.add(1);
                hearing.hear(&news);
            }
            Ok::<(), ()>(())
        };
        // Waits are bounded by who waits.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let config = config.set_push_sender(hear).set_pipeline_buffer_size(1024);
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        connection.subscribe(self.name("news")).await?;
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
        let now = seconds * 1000 + micros / 1000;
        let mut asked = pipe();
        asked.cmd("ZREMRANGEBYSCORE").arg(self.name("breakers")).arg("-inf").arg(now - FORGOTTEN_MS).ignore();
        asked.cmd("ZRANGEBYSCORE").arg(self.name("breakers")).arg("-inf").arg("+inf").arg("WITHSCORES");
        asked.arg("LIMIT").arg(0).arg(MOST_BREAKERS);
        let (opened,): (Vec<(u64, f64)>,) = asked.query_async(&mut connection).await?;
        let age = |at: f64| Duration::from_millis(u64::try_from(now - at as i64).unwrap_or(0));
        ears.learn(opened.into_iter().map(|(target, at)| (target, age(at))));
        Ok((connection, now - ears.clock.now().as_millis() as i64))
    }

    /// Until the connection is of no use any more.
    async fn work(&self, mut link: Link, orders: &mut mpsc::Receiver<Order>, ears: &Ears) {
        let (mut batch, mut looked) = (Vec::new(), Instant::now());
        loop {
            self.gather(orders, &mut batch).await;
            if !self.send(&mut link, &mut batch, ears).await {
                return;
            }
            let is_near = self.is_there();
            if looked.elapsed() < if is_near { LOOK } else { REST } {
                continue;
            }
            looked = Instant::now();
            if !matches!(timeout(PATIENCE, ping(&mut link.connection)).await, Ok(Ok(()))) {
                return;
            }
            match (is_near, looked.elapsed() <= self.wait) {
                (false, true) => self.near.store(Some(Arc::new(link.connection.clone()))),
                (true, false) => self.leave(),
                _ => (),
            }
        }
    }

    /// Orders that go out together: what waits, or comes within one tick.
    async fn gather(&self, orders: &mut mpsc::Receiver<Order>, batch: &mut Vec<Order>) {
        let mut next = timeout(TICK, orders.recv()).await.ok().flatten();
        let mut bytes = 0;
        while let Some(order) = next {
            self.waiting.fetch_sub(order.bytes(), Ordering::Relaxed);
            bytes += order.bytes() + 1024;
            batch.push(order);
            next = if bytes < MOST_AT_ONCE { orders.try_recv().ok() } else { None };
        }
    }

    /// Says whether it was heard.
    async fn send(&self, link: &mut Link, batch: &mut Vec<Order>, ears: &Ears) -> bool {
        let mut news = News { from: self.from, seen: ears.breakers.untold(), ..News::default() };
        let (mut asked, mut claims) = (pipe(), Vec::new());
        asked.ignore_errors();
        for order in batch.drain(..) {
            self.write(order, &mut asked, &mut news, (&mut claims, link.ahead));
        }
        if !news.is_empty()
            && let Ok(text) = serde_json::to_vec(&news)
        {
            asked.cmd("PUBLISH").arg(self.name("news")).arg(text);
        }
        if asked.is_empty() {
            return true;
        }
        let sent = asked.query_async::<Vec<RedisResult<Value>>>(&mut link.connection);
        let Ok(Ok(told)) = timeout(PATIENCE, sent).await else { return false };
        self.figures.refused.add(told.iter().filter(|result| result.is_err()).count() as u64);
        for (place, target) in claims {
            // Where it takes no writes everybody tries for themselves.
            let is_ours = !matches!(told.get(place), Some(Ok(Value::Nil)));
            ears.breakers.claimed(target, ears.clock.now(), is_ours);
        }
        true
    }

    fn write(
        &self,
        order: Order,
        asked: &mut Pipeline,
        news: &mut News,
        (claims, ahead): (&mut Vec<(usize, u64)>, i64),
    ) {
        let breakers = self.name("breakers");
        match order {
            Order::Keep { key, kind, body, age, refreshes } => {
                let Some(value) = written(&kind, &body) else { return };
                let age = age.as_millis().min(i64::MAX as u128) as i64;
                asked.cmd("SET").arg(self.answer(&key)).arg(value).arg("PX").arg(age);
                if refreshes {
                    news.refreshed.push(key);
                }
            }
            Order::Note { name, said } => {
                let age = NOTED.as_millis() as u64;
                asked.cmd("SET").arg(self.name(&name)).arg(said).arg("PX").arg(age);
            }
            // It woke who tells.
            Order::Tell => (),
            Order::Claim { target, cooldown } => {
                claims.push((asked.len(), target));
                let age = cooldown.as_millis() as u64;
                asked.cmd("SET").arg(self.claim(target)).arg(self.from).arg("NX").arg("PX").arg(age);
            }
            Order::Opened { target, at } => {
                asked.cmd("ZADD").arg(breakers).arg(ahead + at.as_millis() as i64).arg(target);
                asked.cmd("DEL").arg(self.claim(target));
                news.opened.push(target);
            }
            Order::Closed { target } => {
                asked.cmd("ZREM").arg(breakers).arg(target);
                asked.cmd("DEL").arg(self.claim(target));
                news.closed.push(target);
            }
        }
    }

    fn name(&self, of: &str) -> String {
        format!("{}{of}", self.prefix)
    }

    fn answer(&self, key: &Key) -> String {
        format!("{}answer:{key}", self.prefix)
    }

    fn claim(&self, target: u64) -> String {
        format!("{}try:{target}", self.prefix)
    }
}

struct Link {
    connection: MultiplexedConnection,
    /// Milliseconds.
    ahead: i64,
}

async fn ping(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    redis::cmd("PING").query_async(connection).await
}

fn news(push: &PushInfo) -> Option<News> {
    match (&push.kind, push.data.last()?) {
        (PushKind::Message, Value::BulkString(text)) => serde_json::from_slice(text).ok(),
        _ => None,
    }
}

fn written(kind: &str, body: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(kind.len()).ok()?.to_le_bytes();
    Some([&[FORMAT], &length[..], kind.as_bytes(), body].concat())
}

fn read(value: Vec<u8>, left: Duration) -> Found {
    let value = Bytes::from(value);
    let Some((&[FORMAT, low, high], rest)) = value.split_first_chunk() else { return Found::Nothing };
    let length = usize::from(u16::from_le_bytes([low, high]));
    match rest.get(..length).and_then(|kind| std::str::from_utf8(kind).ok()) {
        Some(kind) => Found::Answer { kind: kind.into(), body: value.slice(3 + length..), left },
        None => Found::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_can_be_read_and_nothing_else() {
        let left = Duration::from_secs(7);
        let value = written("text/plain", b"words").unwrap();
        let Found::Answer { kind, body, left: found } = read(value, left) else { panic!() };
        assert_eq!((&*kind, &body[..], found), ("text/plain", &b"words"[..], left));
        for odd in [&b""[..], b"\x01", b"\x02\x01\0ab", b"\x01\x09\0ab", b"\x01\x01\0\xff"] {
            assert!(matches!(read(odd.to_vec(), left), Found::Nothing), "{odd:?}");
        }
    }

    #[test]
    fn an_address_that_is_none_is_refused_without_being_repeated() {
        let settings =
            Settings { redis_url: Some(crate::process::secret::Secret::new("nonsense:secret")), ..Settings::default() };
        let problem = Redis::of(&settings).unwrap_err();
        assert!(problem.path == "$.redis_url" && !problem.message.contains("secret"));
    }
}
