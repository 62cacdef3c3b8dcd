//! Limits that several nodes share through Redis: none is exceeded, and everything can be used.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use penstock_core::limits::{
    hold::{Hold, RuleRef, TakeTurn},
    limiter::Limiter,
    node_counters::NodeCounters,
    now_ms,
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use crate::{
    harness::{
        CHAT_PATH, TestGateway, TestRequest, chat_body,
        limited_nodes::{LimitedNodes, NODES, admit, budget, rule},
        redis_server::{DelayingRelay, RedisServer, is_redis_available, start_node_that_waits},
        wait_until,
    },
    limit_admission::{chat, limit, set_limits},
};

#[tokio::test]
async fn hard_budget_of_several_nodes_is_used_up_and_never_exceeded() {
    let server = RedisServer::start().await;
    let nodes = LimitedNodes::start(&server.url()).await;
    let rule = budget(1_000_000, "hard");
    let mut used = 0;
    // Each node returns within a second what it took in advance and did not use, so that the other nodes can use it.
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
    // The nodes wait long for Redis, so that a busy machine does not look like an outage, for which shares of nodes are
    // reserved.
    let nodes = LimitedNodes::start_that_wait(&server.url(), Duration::from_secs(5)).await;
    for (sliding, tokens) in [(false, 1), (true, 1), (false, 7), (true, 7)] {
        let measure = if tokens > 1 { "tokens" } else { "requests" };
        let window = json!({"unit": "second", "sliding": sliding});
        let id = format!("{measure}{sliding}");
        let rule = rule(&json!({"id": id, "type": measure, "limit": 100 * tokens, "window": window}));
        let admitted = Arc::new(Mutex::new(Vec::new()));
        let is_over = Arc::<AtomicBool>::default();
        let mut tasks = JoinSet::new();
        for limiter in nodes.limiters() {
            let (rule, admitted, is_over) = (rule.clone(), Arc::clone(&admitted), Arc::clone(&is_over));
            tasks.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    if let Some(hold) = admit(&limiter, &rule, tokens).await {
                        // Some requests use less than they reserved.
                        let used = fastrand::u64(1..=hold.amount);
                        admitted.lock().unwrap().push((hold.start_ms, used));
                        limiter.settle(&hold, used, now_ms());
                    }
                    sleep(Duration::from_millis(2)).await;
                }
            });
        }
        sleep(Duration::from_millis(3500)).await;
        is_over.store(true, Ordering::Relaxed);
        while tasks.join_next().await.is_some() {}
        let admitted = admitted.lock().unwrap();
        let mut windows: HashMap<u64, u64> = HashMap::new();
        admitted.iter().for_each(|(start, used)| *windows.entry(*start).or_default() += used);
        let limit = 100 * tokens;
        if sliding {
            // Admissions are counted in parts of 50 ms. Any 21 successive parts together contain at most the limit.
            for start in windows.keys() {
                let sum: u64 =
                    windows.iter().filter(|(at, _)| (*start..=start + 1000).contains(*at)).map(|(_, n)| n).sum();
                assert!(sum <= limit, "{measure}: {sum} from {start}");
            }
        } else {
            assert!(windows.values().all(|used| *used <= limit), "{windows:?}");
            assert!(tokens > 1 || windows.values().filter(|used| **used == limit).count() >= 2, "{windows:?}");
        }
        assert!(admitted.len() >= 250, "{measure} {sliding}: {}", admitted.len());
    }
}

#[tokio::test]
async fn soft_budget_is_exceeded_by_one_request_of_each_node_at_most() {
    const COST: u64 = 100;
    let server = RedisServer::start().await;
    let nodes = LimitedNodes::start_that_wait(&server.url(), Duration::from_secs(5)).await;
    for limit in [20_000, 20_001, 30_099] {
        let rule = rule(&json!({"id": format!("s{limit}"), "type": "cost", "limit": limit, "period": {"start": 1}}));
        let used = Arc::<AtomicU64>::default();
        let mut tasks = JoinSet::new();
        for limiter in nodes.limiters() {
            for _ in 0..20 {
                let (limiter, rule, used) = (Arc::clone(&limiter), rule.clone(), Arc::clone(&used));
                tasks.spawn(async move {
                    for _ in 0..40 {
                        let Some(hold) = admit(&limiter, &rule, COST).await else { continue };
                        sleep(Duration::from_millis(fastrand::u64(1..10))).await;
                        used.fetch_add(COST, Ordering::Relaxed);
                        limiter.settle(&hold, COST, now_ms());
                    }
                });
            }
        }
        while tasks.join_next().await.is_some() {}
        let used = used.load(Ordering::Relaxed);
        assert!((limit - COST..=limit + NODES as u64 * COST).contains(&used), "{used} of {limit}");
    }
}

#[tokio::test]
async fn rejection_reports_reservations_of_other_nodes() {
    let server = RedisServer::start().await;
    let nodes = LimitedNodes::start_that_wait(&server.url(), Duration::from_secs(5)).await;
    let (rule, limiters) = (budget(1000, "hard"), nodes.limiters());
    let hold = admit(&limiters[0], &rule, 900).await.unwrap();
    assert!(admit(&limiters[1], &rule, 200).await.is_none());
    let remaining = limiters[1].take(rule.clone(), "", 200, now_ms()).unwrap_err();
    assert!(remaining.held >= 900 && remaining.left + remaining.held <= 1000, "{remaining:?}");
    limiters[0].settle(&hold, 100, now_ms());
    let deadline = Instant::now() + Duration::from_secs(20);
    while admit(&limiters[1], &rule, 200).await.is_none() {
        assert!(Instant::now() < deadline, "nothing came back");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Starts a node with these limits of the workspace `w`, and waits patiently for Redis.
async fn start_limited_node(server: &RedisServer, limits: &Value) -> (Server, TestGateway) {
    let provider = Server::start().await;
    let gateway = start_node_that_waits(&provider.url(), &server.url(), Duration::from_secs(5)).await;
    set_limits(&gateway, limits);
    (provider, gateway)
}

#[tokio::test]
async fn first_request_gets_leases_of_many_limits_at_once() {
    let server = RedisServer::start().await;
    let policy = |number: usize| {
        let (measure, limit_units) = if number.is_multiple_of(2) { ("requests", 100) } else { ("tokens", 1_000_000) };
        let fields = json!({"type": measure, "limit": limit_units, "window": {"unit": "week"}, "dry_run": number.is_multiple_of(5)});
        limit("policy", &format!("p{number}"), &fields)
    };
    let (_provider, gateway) = start_limited_node(&server, &(0..40).map(policy).collect()).await;
    for _ in 0..3 {
        let response = gateway.send(chat("mock").body(chat_body("mock", false))).await;
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(gateway.single_record()["limits"], Value::Null);
    }
    assert_eq!(gateway.state.limiter.cluster().unwrap().trips.get(), 40);
}

#[tokio::test]
async fn hedged_request_counts_although_its_first_attempt_waits_for_redis() {
    let server = RedisServer::start().await;
    let relay = DelayingRelay::start(&server).await;
    let provider = Server::start().await;
    let url = format!("redis://{}/", relay.addr);
    let gateway = start_node_that_waits(&provider.url(), &url, Duration::from_secs(5)).await;
    let requests = json!({"type": "requests", "limit": 1000, "period": {"start": 1}});
    let limits = json!([limit("policy", "any", &requests), limit("provider", "p", &requests)]);
    set_limits(&gateway, &limits);
    let hedge = json!({"after_ms": 20, "max_ratio": 1});
    let config = json!({"strategy": {"mode": "fallback", "hedge": hedge},
        "targets": [{"provider": "@mine"}, {"provider": "mock"}]});
    let request = |config: &Value| {
        let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", "pk");
        let request =
            request.header("content-type", "application/json").header("x-gateway-config", &config.to_string());
        request.body(chat_body("mock", false))
    };
    // Gets a lease of the workspace's budget, but none of the provider's.
    assert_eq!(gateway.send(request(&json!({"provider": "mock"}))).await.status, 200);
    gateway.single_record();
    relay.set_delay(Duration::from_secs(3));
    let response = gateway.send(request(&config)).await;
    let record = gateway.single_record();
    assert_eq!((response.status, &record["last_used_option_index"]), (200, &json!("config.targets[1]")), "{record}");
    let budgets: Vec<_> = record["limits"]["budgets"].as_array().unwrap().iter().map(|budget| &budget["id"]).collect();
    assert_eq!(budgets, ["policy-any"], "{record}");
}

#[tokio::test]
async fn concurrent_requests_use_all_of_a_limit() {
    let server = RedisServer::start().await;
    let week = json!({"type": "requests", "limit": 60, "window": {"unit": "week"}});
    let (_provider, gateway) = start_limited_node(&server, &json!([limit("policy", "any", &week)])).await;
    let statuses =
        join_all((0..60).map(async |_| gateway.send(chat("mock").body(chat_body("mock", false))).await.status)).await;
    assert_eq!(statuses, [200; 60]);
    assert_eq!(gateway.send(chat("mock").body(chat_body("mock", false))).await.status, 429);
}

#[tokio::test]
async fn limit_that_is_lowered_holds_at_once() {
    let server = RedisServer::start().await;
    let nodes = LimitedNodes::start_that_wait(&server.url(), Duration::from_secs(5)).await;
    let limited = |limit: u64| rule(&json!({"id": "lowered", "limit": limit, "window": {"unit": "week"}}));
    let mut admitted = 0;
    for limiter in nodes.limiters() {
        admitted += usize::from(admit(&limiter, &limited(9000), 1).await.is_some());
    }
    for limiter in nodes.limiters().into_iter().cycle().take(30) {
        admitted += usize::from(admit(&limiter, &limited(8), 1).await.is_some());
    }
    assert!((NODES..=8).contains(&admitted), "{admitted}");
}

#[tokio::test]
async fn flushed_counters_are_restored_and_nothing_is_admitted_twice() {
    let server = RedisServer::start().await;
    let nodes = LimitedNodes::start(&server.url()).await;
    let rule = budget(100_000, "hard");
    let mut connection = server.connect().await;
    let mut used = nodes.spend(&rule, 5, 10, 200).await;
    for _ in 0..30 {
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.unwrap();
        used += nodes.spend(&rule, 5, 10, 200).await;
        assert!(used <= 100_000, "{used}");
        sleep(Duration::from_millis(30)).await;
    }
    // Afterwards the nodes can use the rest of the limit.
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
    let nodes = LimitedNodes::start(&server.url()).await;
    let (hard, soft) = (budget(100_000, "hard"), rule(&json!({"id": "s", "limit": 300, "window": {"unit": "day"}})));
    let before = nodes.spend(&hard, 2, 2, 200).await;
    let first = nodes.spend(&soft, 1, 10, 1).await;
    assert!(before > 0 && first == 30);
    server.kill();
    let mut used = before + nodes.spend(&hard, 5, 50, 200).await;
    assert!(used > before && used < 100_000, "{used}");
    let shared = first + nodes.spend(&soft, 5, 100, 1).await;
    // Without Redis, the nodes used the leases and shares that they had, but no more than the limit.
    assert!((31..=300).contains(&shared), "{shared}");
    server.restart().await;
    for node in &nodes.nodes {
        wait_until("Redis is there again", || is_redis_available(node)).await;
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
    let nodes = LimitedNodes::start(&format!("redis://{}/", relay.addr)).await;
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
    server.suspend();
    used += nodes.spend(&rule, 5, 20, 1).await;
    server.resume();
    relay.set_delay(Duration::from_millis(100));
    used += nodes.spend(&rule, 5, 20, 1).await;
    relay.set_delay(Duration::ZERO);
    assert!(used <= 3000, "{used}");
    for node in &nodes.nodes {
        wait_until("Redis is well again", || is_redis_available(node)).await;
    }
    for _ in 0..40 {
        sleep(Duration::from_millis(50)).await;
        used += nodes.spend(&rule, 5, 50, 1).await;
        assert!(used <= 3000, "{used}");
    }
    assert_eq!(used, 3000);
}

const SIMULATED_LIMIT: u64 = 40;

/// Nodes that share Redis under a simulated clock, and the naive log of what they admitted.
struct SimulatedNodes {
    limiters: Vec<Limiter>,
    /// Contains no budgets, so that nothing is recorded.
    ledger: NodeCounters,
    /// Time and amount of each admission.
    log: Vec<(u64, u64)>,
    open: Vec<(usize, usize, Hold)>,
    _clients: Vec<TestGateway>,
}

impl SimulatedNodes {
    async fn start(server: &RedisServer) -> Self {
        let connect =
            async || start_node_that_waits("http://127.0.0.1:18080", &server.url(), Duration::from_secs(5)).await;
        let clients = vec![connect().await, connect().await, connect().await];
        let new_limiter = |client: &TestGateway| {
            let redis = client.state.shared.redis.as_ref();
            Limiter::new(NodeCounters::new(None), fastrand::u64(..), 1).with_redis(redis, 0)
        };
        let limiters = clients.iter().map(new_limiter).collect();
        Self { limiters, ledger: NodeCounters::new(None), log: Vec::new(), open: Vec::new(), _clients: clients }
    }

    async fn report(&self, now: u64) {
        for limiter in &self.limiters {
            limiter.cluster().unwrap().report(&self.ledger, now, false).await;
        }
    }

    async fn send(&mut self, random: &mut fastrand::Rng, rule: &RuleRef, amount: u64, now: u64) {
        let node = random.usize(..self.limiters.len());
        let (limiter, mut turn) = (&self.limiters[node], TakeTurn::default());
        let hold = loop {
            match limiter.take_once(rule.clone(), "", amount, turn, now) {
                Ok((hold, _)) => break hold,
                Err(_) if turn.is_last => return,
                Err(_) => {
                    limiter.cluster().unwrap().acquire(rule, "", amount, &self.ledger, now).await;
                    turn = TakeTurn::LAST;
                }
            }
        };
        self.log.push((now, hold.amount));
        self.open.push((node, self.log.len() - 1, hold));
    }

    /// Settles a request that may have used less than it reserved.
    fn end_one(&mut self, random: &mut fastrand::Rng, now: u64) {
        if !self.open.is_empty() {
            let (node, entry, hold) = self.open.swap_remove(random.usize(..self.open.len()));
            let used = random.u64(1..=hold.amount);
            self.limiters[node].settle(&hold, used, now);
            self.log[entry].1 = used;
        }
    }

    /// Compares the window that ends now with the log. The fullest window ends with the newest admission.
    fn check(&self, now: u64, is_sliding: bool) {
        let start = if is_sliding { now + 1 - 1000 } else { now - now % 1000 };
        let sum: u64 = self.log.iter().rev().take_while(|(at, _)| *at >= start).map(|(_, amount)| amount).sum();
        assert!(sum <= SIMULATED_LIMIT, "{sum} in the window from {start} to {now}");
    }
}

#[tokio::test]
async fn leases_admit_no_more_than_a_naive_log_allows() {
    let server = RedisServer::start().await;
    let mut nodes = SimulatedNodes::start(&server).await;
    for (seed, (measure, is_sliding)) in
        [("requests", false), ("requests", true), ("tokens", false), ("tokens", true)].into_iter().enumerate()
    {
        let mut random = fastrand::Rng::with_seed(seed as u64);
        let window = json!({"unit": "second", "sliding": is_sliding});
        let id = format!("{measure}-{is_sliding}");
        let rule = rule(&json!({"id": id, "type": measure, "limit": SIMULATED_LIMIT, "window": window}));
        let max_amount: u64 = if measure == "tokens" { 5 } else { 1 };
        nodes.log.clear();
        nodes.open.clear();
        let begin = now_ms().next_multiple_of(1000) + 1000 * seed as u64 * 20;
        let (mut now, mut reported) = (begin, 0);
        // Requests at twice the limit, in fifteen windows.
        while now < begin + 15_000 {
            now += random.u64(0..=24 * max_amount.div_ceil(2));
            if now >= reported + 50 {
                reported = now;
                nodes.report(now).await;
            }
            let amount = random.u64(1..=max_amount);
            nodes.send(&mut random, &rule, amount, now).await;
            nodes.check(now, is_sliding);
            if measure == "tokens" && random.bool() {
                nodes.end_one(&mut random, now);
            }
        }
        let admitted: u64 = nodes.log.iter().map(|(_, amount)| amount).sum();
        assert!(admitted >= 15 * SIMULATED_LIMIT / 2, "{admitted} {measure} {is_sliding}");
    }
}
