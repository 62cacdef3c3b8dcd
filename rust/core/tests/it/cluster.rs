//! Limits that several nodes share through Redis: none is exceeded, whatever happens to Redis.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use penstock_core::limits::{
    limiter::{Hold, Limiter, RuleRef},
    now_ms,
    rule::WorkspaceLimits,
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use crate::harness::{
    TestGateway,
    redis_server::{DelayingRelay, MAX_REDIS_WAIT, RedisServer, start_node_that_waits},
    wait_until,
};

const NODES: usize = 3;

fn rule(fields: &Value) -> RuleRef {
    let mut row =
        json!({"id": "l", "owner": {"kind": "policy", "id": "p", "slug": "p"}, "type": "requests", "limit": 10});
    row.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let limits = WorkspaceLimits::compile(serde_json::from_value(json!([row])).unwrap(), "$", &mut Vec::new());
    RuleRef { rules: limits.all.unwrap(), index: 0 }
}

/// A budget that no test shares with another.
fn budget(limit: u64, enforcement: &str) -> RuleRef {
    rule(&json!({"type": "cost", "limit": limit, "period": {"start": 1}, "enforcement": enforcement}))
}

/// Takes an amount as a request does: from the lease, from Redis, and at last what is there.
async fn admit(limiter: &Limiter, rule: &RuleRef, amount: u64) -> Option<Hold> {
    for _ in 0..2 {
        if let Ok((hold, _)) = limiter.take_once(rule.clone(), "", amount, false, now_ms()) {
            return Some(hold);
        }
        limiter.acquire(rule, "", amount).await;
    }
    limiter.take_once(rule.clone(), "", amount, true, now_ms()).ok().map(|(hold, _)| hold)
}

struct Nodes {
    nodes: Vec<TestGateway>,
    reports: JoinSet<()>,
}

impl Nodes {
    async fn start(url: &str) -> Self {
        Self::start_that_wait(url, MAX_REDIS_WAIT).await
    }

    /// Starts nodes that take Redis for unavailable after this time, and use their shares then.
    async fn start_that_wait(url: &str, max_wait: Duration) -> Self {
        let provider = Server::start().await;
        let (mut nodes, mut reports) = (Vec::new(), JoinSet::new());
        for _ in 0..NODES {
            let node = start_node_that_waits(&provider.url(), url, max_wait).await;
            let limiter = Arc::clone(&node.state.limiter);
            limiter.report_shared(false).await;
            reports.spawn(async move {
                loop {
                    limiter.report_shared(false).await;
                    sleep(Duration::from_millis(50)).await;
                }
            });
            nodes.push(node);
        }
        // All nodes know of each other.
        sleep(Duration::from_millis(600)).await;
        Self { nodes, reports }
    }

    fn limiters(&self) -> Vec<Arc<Limiter>> {
        self.nodes.iter().map(|node| Arc::clone(&node.state.limiter)).collect()
    }

    /// Spends from all nodes at once: each of `callers` on each node sends `count` requests. Returns what was used.
    async fn spend(&self, rule: &RuleRef, callers: usize, count: usize, max_spent: u64) -> u64 {
        let used = Arc::<AtomicU64>::default();
        let mut tasks = JoinSet::new();
        for limiter in self.limiters() {
            for caller in 0..callers {
                let (limiter, rule, used) = (Arc::clone(&limiter), rule.clone(), Arc::clone(&used));
                tasks.spawn(async move {
                    let mut random = fastrand::Rng::with_seed(caller as u64);
                    for _ in 0..count {
                        let Some(hold) = admit(&limiter, &rule, max_spent).await else { continue };
                        tokio::task::yield_now().await;
                        let spent = random.u64(1..=hold.amount);
                        used.fetch_add(spent, Ordering::Relaxed);
                        limiter.settle(&hold, spent, now_ms());
                    }
                });
            }
        }
        while tasks.join_next().await.is_some() {}
        used.load(Ordering::Relaxed)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.reports.abort_all();
    }
}

#[tokio::test]
async fn hard_budget_of_several_nodes_is_used_up_and_never_exceeded() {
    let server = RedisServer::start().await;
    let nodes = Nodes::start(&server.url()).await;
    let rule = budget(1_000_000, "hard");
    let mut used = 0;
    // What a node has taken in advance comes back within a second, and the others can use it.
    for _ in 0..40 {
        used += nodes.spend(&rule, 20, 5, 1000).await;
        assert!(used <= 1_000_000, "{used}");
        if used > 999_000 {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("only {used} were used");
}

#[tokio::test]
async fn windows_of_several_nodes_hold_exactly_the_limit() {
    let server = RedisServer::start().await;
    // A busy machine must not look like a Redis that is lost: a node that is cut off alone uses its share as well.
    let nodes = Nodes::start_that_wait(&server.url(), Duration::from_secs(5)).await;
    for sliding in [false, true] {
        let rule =
            rule(&json!({"id": format!("w{sliding}"), "limit": 100, "window": {"unit": "second", "sliding": sliding}}));
        let admitted = Arc::new(std::sync::Mutex::new(Vec::new()));
        let is_over = Arc::<AtomicBool>::default();
        let mut tasks = JoinSet::new();
        for limiter in nodes.limiters() {
            let (rule, admitted, is_over) = (rule.clone(), Arc::clone(&admitted), Arc::clone(&is_over));
            tasks.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    if let Some(hold) = admit(&limiter, &rule, 1).await {
                        admitted.lock().unwrap().push(hold.start_ms);
                        limiter.settle(&hold, 1, now_ms());
                    }
                    sleep(Duration::from_millis(2)).await;
                }
            });
        }
        sleep(Duration::from_millis(3500)).await;
        is_over.store(true, Ordering::Relaxed);
        while tasks.join_next().await.is_some() {}
        let admitted = admitted.lock().unwrap();
        let mut windows: HashMap<u64, usize> = HashMap::new();
        admitted.iter().for_each(|start| *windows.entry(*start).or_default() += 1);
        if sliding {
            // Parts of 50 ms: every 21 of them hold at most the limit.
            for start in windows.keys() {
                let sum: usize =
                    windows.iter().filter(|(at, _)| (*start..=start + 1000).contains(*at)).map(|(_, n)| n).sum();
                assert!(sum <= 100, "{sum} from {start}");
            }
        } else {
            assert!(windows.values().all(|count| *count <= 100), "{windows:?}");
            assert!(windows.values().filter(|count| **count == 100).count() >= 2, "{windows:?}");
        }
        assert!(admitted.len() >= 250, "{sliding}: {}", admitted.len());
    }
}

#[tokio::test]
async fn flushed_counters_are_restored_and_nothing_is_admitted_twice() {
    let server = RedisServer::start().await;
    let nodes = Nodes::start(&server.url()).await;
    let rule = budget(100_000, "hard");
    let mut connection = server.connect().await;
    let mut used = nodes.spend(&rule, 5, 10, 200).await;
    for _ in 0..30 {
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.unwrap();
        used += nodes.spend(&rule, 5, 10, 200).await;
        assert!(used <= 100_000, "{used}");
        sleep(Duration::from_millis(30)).await;
    }
    // Afterwards the rest can be used.
    for _ in 0..60 {
        sleep(Duration::from_millis(100)).await;
        used += nodes.spend(&rule, 5, 10, 200).await;
        assert!(used <= 100_000, "{used}");
    }
    assert!(used > 99_000, "{used}");
}

#[tokio::test]
async fn without_redis_nodes_use_their_leases_and_shares() {
    let mut server = RedisServer::start().await;
    let nodes = Nodes::start(&server.url()).await;
    let (hard, soft) = (budget(100_000, "hard"), rule(&json!({"id": "s", "limit": 300, "window": {"unit": "day"}})));
    let before = nodes.spend(&hard, 2, 2, 200).await;
    let first = nodes.spend(&soft, 1, 10, 1).await;
    assert!(before > 0 && first == 30);
    server.kill();
    let mut used = before + nodes.spend(&hard, 5, 50, 200).await;
    assert!(used > before && used < 100_000, "{used}");
    let shared = first + nodes.spend(&soft, 5, 100, 1).await;
    // Each node used what it had taken before.
    assert!((31..=300).contains(&shared), "{shared}");
    server.restart().await;
    for node in &nodes.nodes {
        wait_until("Redis is there again", || crate::harness::redis_server::is_redis_available(node)).await;
    }
    for _ in 0..60 {
        sleep(Duration::from_millis(100)).await;
        used += nodes.spend(&hard, 5, 10, 200).await;
        assert!(used <= 100_000, "{used}");
    }
    assert!(used > 99_000, "{used}");
}

#[tokio::test]
async fn faulty_redis_admits_no_more_than_the_limit() {
    let server = RedisServer::start().await;
    let relay = DelayingRelay::start(&server).await;
    let nodes = Nodes::start(&format!("redis://{}/", relay.addr)).await;
    let rule = rule(&json!({"limit": 3000, "window": {"unit": "day"}}));
    let mut connection = server.connect().await;
    let mut used = nodes.spend(&rule, 2, 5, 1).await;
    let config = |name: &str, value: &str| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg(name).arg(value);
        command
    };
    // Redis is full, then a read-only replica, then frozen, then slow.
    config("maxmemory", "1").query_async::<()>(&mut connection).await.unwrap();
    used += nodes.spend(&rule, 5, 20, 1).await;
    config("maxmemory", "0").query_async::<()>(&mut connection).await.unwrap();
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query_async::<()>(&mut connection).await.unwrap();
    used += nodes.spend(&rule, 5, 20, 1).await;
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").query_async::<()>(&mut connection).await.unwrap();
    server.freeze();
    used += nodes.spend(&rule, 5, 20, 1).await;
    server.thaw();
    relay.set_delay(Duration::from_millis(100));
    used += nodes.spend(&rule, 5, 20, 1).await;
    relay.set_delay(Duration::ZERO);
    assert!(used <= 3000, "{used}");
    for node in &nodes.nodes {
        wait_until("Redis is well again", || crate::harness::redis_server::is_redis_available(node)).await;
    }
    for _ in 0..40 {
        sleep(Duration::from_millis(50)).await;
        used += nodes.spend(&rule, 5, 50, 1).await;
        assert!(used <= 3000, "{used}");
    }
    assert_eq!(used, 3000);
}
