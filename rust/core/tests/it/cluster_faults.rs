//! Limits of several nodes while Redis fails: no request fails that the limits allow, no limit is exceeded, and everything
//! can be used afterwards.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use penstock_core::limits::{hold::RuleRef, limiter::Limiter, node_counters::NodeCounters, now_ms};
use redis::aio::MultiplexedConnection;
use serde_json::json;
use tokio::{task::JoinSet, time::sleep};

use crate::harness::{
    TestGateway,
    faulty_relay::{FaultyRelay, RelayMode},
    limited_nodes::{LimitedNodes, NODES, admit, budget, rule},
    redis_server::{MAX_REDIS_WAIT, RedisServer, is_redis_available, start_node_that_waits, timed_out_lookups},
    wait_until,
};

const LIMIT: u64 = 6000;
/// Requests that each node sends while Redis fails. That is less than what it has taken in advance.
const REQUESTS: usize = 40;
/// Maximum time after a fault until all nodes use Redis again.
const MAX_RECOVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Refused,
    Frozen,
    Blackholed,
    Slow,
    ReadOnly,
    OutOfMemory,
    Flushed,
    /// Scripts are not allowed.
    NoScripts,
}

struct FaultyRedis {
    server: RedisServer,
    relay: FaultyRelay,
    connection: MultiplexedConnection,
}

impl FaultyRedis {
    async fn start(options: &[&str]) -> Self {
        let server = RedisServer::start_with(options).await;
        let (relay, connection) = (FaultyRelay::start(server.addr()).await, server.connect().await);
        Self { server, relay, connection }
    }

    fn url(&self) -> String {
        format!("redis://{}/", self.relay.addr)
    }

    async fn run(&mut self, command: &str) {
        let mut words = command.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        for word in words {
            command.arg(word);
        }
        command.query_async::<()>(&mut self.connection).await.unwrap();
    }

    async fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Refused => self.relay.set_mode(RelayMode::Refuse),
            Fault::Frozen => self.server.suspend(),
            Fault::Blackholed => self.relay.set_mode(RelayMode::Hold),
            Fault::Slow => self.relay.set_mode(RelayMode::Delay(2 * MAX_REDIS_WAIT)),
            Fault::ReadOnly => self.run("REPLICAOF 127.0.0.1 1").await,
            Fault::OutOfMemory => self.run("CONFIG SET maxmemory 1").await,
            Fault::Flushed => self.run("FLUSHALL").await,
            Fault::NoScripts => {}
        }
    }

    async fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Frozen => self.server.resume(),
            Fault::ReadOnly => self.run("REPLICAOF NO ONE").await,
            Fault::OutOfMemory => self.run("CONFIG SET maxmemory 0").await,
            _ => self.relay.set_mode(RelayMode::Forward),
        }
    }
}

/// Sends requests from each node, one after the other. Returns how many were admitted.
async fn send_slowly(nodes: &LimitedNodes, rule: &RuleRef, count: usize) -> usize {
    let mut tasks = JoinSet::new();
    for limiter in nodes.limiters() {
        let rule = rule.clone();
        tasks.spawn(async move {
            let mut admitted = 0;
            for _ in 0..count {
                if let Some(hold) = admit(&limiter, &rule, 1).await {
                    admitted += 1;
                    limiter.settle(&hold, 1, now_ms());
                }
                sleep(Duration::from_millis(10)).await;
            }
            admitted
        });
    }
    let mut admitted = 0;
    while let Some(count) = tasks.join_next().await {
        admitted += count.unwrap();
    }
    admitted
}

/// Sends requests from each node until this many were admitted there: Redis may be slow on a busy machine. Returns how many
/// were admitted in all.
async fn use_from_each(nodes: &LimitedNodes, rule: &RuleRef, count: usize) -> usize {
    let deadline = Instant::now() + Duration::from_mins(1);
    for limiter in nodes.limiters() {
        let mut admitted = 0;
        while admitted < count {
            assert!(Instant::now() < deadline, "Redis grants nothing");
            match admit(&limiter, rule, 1).await {
                Some(hold) => {
                    admitted += 1;
                    limiter.settle(&hold, 1, now_ms());
                }
                None => sleep(Duration::from_millis(20)).await,
            }
        }
    }
    count * nodes.nodes.len()
}

/// Limits of further kinds: a sliding window of tokens, a hard budget in dollars, and a soft budget of tokens.
fn other_kinds() -> [RuleRef; 3] {
    [
        json!({"id": "t", "type": "tokens", "limit": LIMIT, "window": {"unit": "week", "sliding": true}}),
        json!({"id": "h", "type": "cost", "limit": LIMIT, "period": {"start": 1}, "enforcement": "hard"}),
        json!({"id": "s", "type": "tokens", "limit": LIMIT, "period": {"start": 1}}),
    ]
    .map(|fields| rule(&fields))
}

/// Uses up a limit of which this much is used.
async fn use_up(nodes: &LimitedNodes, rule: &RuleRef, mut used: usize, fault: Fault) {
    let mut rounds = 0;
    while used < LIMIT as usize && rounds < 200 {
        rounds += 1;
        used += nodes.spend(rule, 5, 50, 1).await as usize;
        assert!(used <= LIMIT as usize, "{fault:?} {}: {used}", rule.id);
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(used, LIMIT as usize, "{fault:?} {}", rule.id);
}

async fn check_fault(fault: Fault) {
    let options: &[&str] = if fault == Fault::NoScripts { &["--rename-command", "EVAL", ""] } else { &[] };
    let mut redis = FaultyRedis::start(options).await;
    let nodes = LimitedNodes::start(&redis.url()).await;
    let day = rule(&json!({"limit": LIMIT, "window": {"unit": "day"}}));
    let mut used = use_from_each(&nodes, &day, 3).await;
    let others = other_kinds();
    for rule in &others {
        use_from_each(&nodes, rule, 3).await;
    }
    let slow_before: Vec<u64> = nodes.nodes.iter().map(timed_out_lookups).collect();
    let began = Instant::now();
    redis.begin(fault).await;
    let admitted = send_slowly(&nodes, &day, REQUESTS).await;
    assert_eq!(admitted, REQUESTS * NODES, "{fault:?}");
    used += admitted;
    // A node waits for Redis once, and at most once again after each second.
    let max_slow = 1 + began.elapsed().as_secs();
    for (node, before) in nodes.nodes.iter().zip(slow_before) {
        let slow = timed_out_lookups(node) - before;
        assert!(slow <= max_slow, "{fault:?}: {slow} slow calls");
    }
    let admitted = join_all(others.iter().map(|rule| send_slowly(&nodes, rule, REQUESTS))).await;
    assert_eq!(admitted, [REQUESTS * NODES; 3], "{fault:?}");
    redis.end(fault).await;
    let ended = Instant::now();
    for node in &nodes.nodes {
        wait_until("Redis is well again", || is_redis_available(node)).await;
    }
    let recovery = ended.elapsed();
    assert!(recovery <= MAX_RECOVERY, "{fault:?}: {recovery:?}");
    // Three requests of each node came before the fault.
    let known = (3 + REQUESTS) * NODES;
    let others = join_all(others.iter().map(|rule| use_up(&nodes, rule, known, fault)));
    tokio::join!(use_up(&nodes, &day, used, fault), others);
}

#[tokio::test]
async fn limits_hold_while_redis_refuses_connections() {
    check_fault(Fault::Refused).await;
}

#[tokio::test]
async fn limits_hold_while_redis_is_frozen() {
    check_fault(Fault::Frozen).await;
}

#[tokio::test]
async fn limits_hold_while_redis_does_not_reply() {
    check_fault(Fault::Blackholed).await;
}

#[tokio::test]
async fn limits_hold_while_redis_is_slow() {
    check_fault(Fault::Slow).await;
}

#[tokio::test]
async fn limits_hold_while_redis_is_a_read_only_replica() {
    check_fault(Fault::ReadOnly).await;
}

#[tokio::test]
async fn limits_hold_while_redis_is_full() {
    check_fault(Fault::OutOfMemory).await;
}

#[tokio::test]
async fn limits_hold_after_redis_lost_everything() {
    check_fault(Fault::Flushed).await;
}

#[tokio::test]
async fn limits_hold_without_scripts() {
    check_fault(Fault::NoScripts).await;
}

/// Sends more requests from all nodes than the limit admits. Returns for each node how many were admitted, by the start
/// of their part of the window.
async fn overload(limiters: Vec<Arc<Limiter>>, rule: &RuleRef, time: Duration) -> Vec<HashMap<u64, u64>> {
    let is_over = Arc::<AtomicBool>::default();
    let mut tasks = JoinSet::new();
    let admitted: Vec<_> = (0..limiters.len()).map(|_| Arc::<Mutex<HashMap<u64, u64>>>::default()).collect();
    for (limiter, admitted) in limiters.into_iter().zip(&admitted) {
        for _ in 0..3 {
            let (limiter, rule, admitted) = (Arc::clone(&limiter), rule.clone(), Arc::clone(admitted));
            let is_over = Arc::clone(&is_over);
            tasks.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    if let Some(hold) = admit(&limiter, &rule, 1).await {
                        *admitted.lock().unwrap().entry(hold.start_ms).or_default() += 1;
                        limiter.settle(&hold, 1, now_ms());
                    }
                    sleep(Duration::from_millis(3)).await;
                }
            });
        }
    }
    sleep(time).await;
    is_over.store(true, Ordering::Relaxed);
    while tasks.join_next().await.is_some() {}
    admitted.iter().map(|node| node.lock().unwrap().clone()).collect()
}

fn sum_between(admitted: &[HashMap<u64, u64>], first: u64, last: u64) -> u64 {
    let all = admitted.iter().flatten();
    all.filter(|(start, _)| (first..=last).contains(*start)).map(|(_, count)| count).sum()
}

/// One node loses its connection to Redis and gets it back, while the other nodes use everything that they get from
/// Redis.
async fn cut_off_one_node(mode: RelayMode) {
    let server = RedisServer::start().await;
    let relay = FaultyRelay::start(server.addr()).await;
    let cut_off = format!("redis://{}/", relay.addr);
    let nodes = LimitedNodes::start_each(&[&server.url(), &server.url(), &cut_off], MAX_REDIS_WAIT).await;
    for sliding in [false, true] {
        let rule =
            rule(&json!({"id": format!("w{sliding}"), "limit": 90, "window": {"unit": "second", "sliding": sliding}}));
        let control = async {
            sleep(Duration::from_millis(1200)).await;
            relay.set_mode(mode);
            sleep(Duration::from_millis(4500)).await;
            relay.set_mode(RelayMode::Forward);
        };
        let (admitted, ()) = tokio::join!(overload(nodes.limiters(), &rule, Duration::from_millis(8500)), control);
        let starts: Vec<u64> = admitted.iter().flat_map(HashMap::keys).copied().collect();
        for start in starts {
            // Admissions are counted in parts of 50 ms. Any 21 successive parts together contain at most the limit.
            let sum = sum_between(&admitted, start, if sliding { start + 1000 } else { start });
            assert!(sum <= 90, "{mode:?} {sliding}: {sum} from {start}");
        }
        // The node that was cut off used its share.
        let share: u64 = admitted[2].values().sum();
        assert!(share >= 60, "{mode:?} {sliding}: {share}");
        wait_until("Redis is well again", || is_redis_available(&nodes.nodes[2])).await;
    }
}

#[tokio::test]
async fn node_without_connection_uses_only_the_share_that_is_reserved_for_it() {
    cut_off_one_node(RelayMode::Refuse).await;
}

#[tokio::test]
async fn node_without_replies_uses_only_the_share_that_is_reserved_for_it() {
    cut_off_one_node(RelayMode::Hold).await;
}

#[tokio::test]
async fn replies_that_are_often_late_admit_no_more_than_the_limit() {
    let server = RedisServer::start().await;
    // Many replies take longer than the nodes wait for them.
    let nodes = LimitedNodes::start_that_wait(&server.url(), Duration::from_millis(1)).await;
    let rule = rule(&json!({"limit": 90, "window": {"unit": "second"}}));
    let admitted = overload(nodes.limiters(), &rule, Duration::from_secs(5)).await;
    for start in admitted.iter().flat_map(HashMap::keys) {
        let sum = sum_between(&admitted, *start, *start);
        assert!(sum <= 90, "{sum} from {start}");
    }
}

#[tokio::test]
async fn soft_budget_is_shared_further_while_redis_is_away() {
    let redis = FaultyRedis::start(&[]).await;
    let nodes = LimitedNodes::start(&redis.url()).await;
    let soft = budget(9000, "soft");
    redis.relay.set_mode(RelayMode::Refuse);
    for node in &nodes.nodes {
        wait_until("Redis is away", || !is_redis_available(node)).await;
    }
    // Each node may use half of its share at once.
    assert_eq!(nodes.spend(&soft, 1, 9000, 1).await, 4500);
}

/// Worker whose process can be killed. Its files stay.
struct KillableWorker {
    folder: PathBuf,
    client: TestGateway,
    reports: JoinSet<()>,
}

impl KillableWorker {
    async fn start(redis_url: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("penstock-worker-{:x}", fastrand::u128(..)));
        std::fs::create_dir(&folder).unwrap();
        let client = start_node_that_waits("http://127.0.0.1:18080", redis_url, MAX_REDIS_WAIT).await;
        Self { folder, client, reports: JoinSet::new() }
    }

    /// Writes the file `members`, which reports to this worker how many workers all nodes have.
    fn set_members(&self, count: u64, seen_ms: u64, from_ms: u64) {
        std::fs::write(self.folder.join("members"), format!("{count} {seen_ms} {from_ms}")).unwrap();
    }

    /// Starts a process of this worker, in the place of the one before.
    fn restart(&mut self) -> Arc<Limiter> {
        self.reports.abort_all();
        let counters = NodeCounters::new(Some(&self.folder));
        let limiter = Arc::new(
            Limiter::new(counters, fastrand::u64(..), 1).with_redis(self.client.state.shared.redis.as_ref(), 0),
        );
        let reporter = Arc::clone(&limiter);
        self.reports.spawn(async move {
            loop {
                reporter.report_shared(false).await;
                sleep(Duration::from_millis(50)).await;
            }
        });
        limiter
    }
}

impl Drop for KillableWorker {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

#[tokio::test]
async fn worker_with_a_lease_reads_no_counter_of_the_node() {
    let server = RedisServer::start().await;
    let node = start_node_that_waits("http://127.0.0.1:18080", &server.url(), Duration::from_secs(5)).await;
    let (limiter, rule, ledger) = (&node.state.limiter, budget(1000, "soft"), NodeCounters::new(None));
    admit(limiter, &rule, 10).await.unwrap();
    let cluster = limiter.cluster().unwrap();
    let NodeCounters::Memory(counters) = &ledger else { unreachable!() };
    let (sender, receiver) = mpsc::channel();
    let remaining = thread::scope(|scope| {
        let locked_counters = counters.lock().unwrap();
        scope.spawn(|| sender.send(cluster.remaining(&rule, "", &ledger, now_ms())).unwrap());
        let remaining = receiver.recv_timeout(Duration::from_secs(10));
        drop(locked_counters);
        remaining
    });
    assert_eq!(remaining.expect("it waits for the counters").left, 990);
}

fn second(id: &str, sliding: bool) -> RuleRef {
    rule(&json!({"id": format!("{id}{sliding}"), "limit": 90, "window": {"unit": "second", "sliding": sliding}}))
}

/// Checks that no window of a second was exceeded.
fn check_windows(admitted: &[HashMap<u64, u64>], sliding: bool) {
    for start in admitted.iter().flat_map(HashMap::keys) {
        // Admissions are counted in parts of 50 ms. Any 21 successive parts together contain at most the limit.
        let sum = sum_between(admitted, *start, if sliding { start + 1000 } else { *start });
        assert!(sum <= 90, "{sliding}: {sum} from {start}");
    }
}

#[tokio::test]
async fn worker_that_is_killed_and_restarted_without_redis_admits_no_more_than_its_share() {
    let server = RedisServer::start().await;
    let relay = FaultyRelay::start(server.addr()).await;
    let nodes = LimitedNodes::start_each(&[&server.url(), &server.url()], MAX_REDIS_WAIT).await;
    let mut worker = KillableWorker::start(&format!("redis://{}/", relay.addr)).await;
    for sliding in [false, true] {
        let (rule, day) = (second("r", sliding), rule(&json!({"id": "d", "limit": 900, "window": {"unit": "day"}})));
        worker.restart();
        sleep(Duration::from_millis(800)).await;
        // The nodes use everything that they get, while the worker is killed and restarted often.
        let restarts = async {
            let mut admitted = Vec::new();
            for number in 0..16 {
                match number {
                    2 => relay.set_mode(RelayMode::Refuse),
                    12 => relay.set_mode(RelayMode::Forward),
                    _ => {}
                }
                let limiter = worker.restart();
                admitted.append(&mut overload(vec![limiter], &rule, Duration::from_millis(430)).await);
                if number == 11 {
                    // This window began when the worker could reach Redis, so no share of it is reserved.
                    let limiter = worker.restart();
                    assert!(admit(&limiter, &day, 1).await.is_none());
                }
            }
            admitted
        };
        let (mut admitted, of_worker) =
            tokio::join!(overload(nodes.limiters(), &rule, Duration::from_secs(7)), restarts);
        let share: u64 = of_worker.iter().flat_map(HashMap::values).sum();
        admitted.extend(of_worker);
        check_windows(&admitted, sliding);
        assert!(share >= 30, "{sliding}: {share}");
        let client = &worker.client;
        wait_until("Redis is well again", || is_redis_available(client)).await;
    }
}

/// Writes the file `members` of each worker: all nodes together have `count` workers now.
fn set_members(workers: &[KillableWorker], count: u64) {
    for worker in workers {
        worker.set_members(count, now_ms(), 0);
    }
}

#[tokio::test]
async fn node_that_starts_without_redis_uses_only_shares_that_the_others_leave_for_it() {
    let server = RedisServer::start().await;
    let relay = FaultyRelay::start(server.addr()).await;
    let mut known = [KillableWorker::start(&server.url()).await, KillableWorker::start(&server.url()).await];
    let mut new = KillableWorker::start(&format!("redis://{}/", relay.addr)).await;
    relay.set_mode(RelayMode::Refuse);
    let client = &new.client;
    wait_until("Redis is away", || !is_redis_available(client)).await;
    for sliding in [false, true] {
        let rule = second("n", sliding);
        let from_ms = now_ms() / 1000 * 1000 + 4000;
        set_members(&known, 2);
        new.set_members(3, now_ms(), from_ms);
        let mut limiters: Vec<_> = known.iter_mut().map(KillableWorker::restart).collect();
        limiters.push(new.restart());
        sleep(Duration::from_millis(600)).await;
        let control = async {
            sleep(Duration::from_millis(700)).await;
            set_members(&known, 3);
            sleep(Duration::from_millis(5800)).await;
            // The node store no longer sees this node, so the other nodes will take its shares.
            new.set_members(3, now_ms() - 120_000, from_ms);
            now_ms()
        };
        let (admitted, unseen_ms) = tokio::join!(overload(limiters, &rule, Duration::from_millis(9500)), control);
        check_windows(&admitted, sliding);
        assert!(admitted[2].keys().all(|start| (from_ms..=unseen_ms).contains(start)), "{:?}", admitted[2]);
        assert!(admitted[2].values().sum::<u64>() >= 30, "{:?}", admitted[2]);
    }
}
