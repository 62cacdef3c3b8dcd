//! Gateways share answers and breakers through Redis, and none of their requests fails or waits long when it is away.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use crate::harness::{
    Ask, CHAT, Rig, by, by_with,
    ill::Ill,
    in_time,
    redis_server::{RedisServer, Relay},
    settled, sha256, target, tls, touchy, until, way, words,
};
use penstock_core::process::secret::Secret;
use penstock_mock::Server;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};

/// Which requests wait for Redis at most.
const WAIT: Duration = Duration::from_millis(50);

/// One of several gateways that share.
async fn node(provider_url: &str, redis_url: &str) -> Rig {
    let rig = Rig::with(provider_url, |settings| {
        settings.redis_url = Some(Secret::new(redis_url));
        settings.redis_wait_ms = WAIT.as_millis() as u64;
    });
    let gateway = Arc::clone(&rig.gateway);
    tokio::spawn(async move { gateway.shared.sync_with_redis().await });
    until("Redis is there", || is_there(&rig)).await;
    rig
}

fn is_there(rig: &Rig) -> bool {
    rig.gateway.shared.redis.as_ref().unwrap().is_available()
}

fn slow(rig: &Rig) -> u64 {
    rig.gateway.shared.redis.as_ref().unwrap().metrics.timed_out_lookups.get()
}

fn kept(text: &str) -> Ask {
    let config = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 60}});
    by_with(&config, CHAT, words("mock?chunks=1", false).replace("hi", text))
}

async fn status(rig: &Rig, text: &str) -> String {
    let told = rig.send(kept(text)).await;
    assert_eq!(told.status, 200);
    way(&told)[2].to_owned()
}

async fn names(connection: &mut MultiplexedConnection, pattern: &str) -> Vec<String> {
    in_time(redis::cmd("KEYS").arg(pattern).query_async(connection)).await.unwrap()
}

/// Looks again until there are so many names like this.
async fn stored(connection: &mut MultiplexedConnection, pattern: &str, count: usize) {
    for _ in 0..2_000 {
        if names(connection, pattern).await.len() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never {count} of {pattern}: {:?}", names(connection, "*").await);
}

/// Looks again until what is under this name was written by a gateway.
async fn written(connection: &mut MultiplexedConnection, name: &str) {
    for _ in 0..2_000 {
        let found: redis::RedisResult<Vec<u8>> = redis::cmd("GET").arg(name).query_async(connection).await;
        if found.is_ok_and(|value| value.first() == Some(&1)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never written: {name}");
}

#[tokio::test]
async fn an_answer_that_one_keeps_serves_on_another_for_as_long_as_it_may() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (one, other) = (node(&provider.url(), &server.url()).await, node(&provider.url(), &server.url()).await);
    let mut connection = server.connection().await;
    let first = one.send(kept("hi")).await;
    stored(&mut connection, "penstock:answer:*", 1).await;
    let second = other.send(kept("hi")).await;
    assert_eq!((way(&first)[2], way(&second)[2]), ("MISS", "HIT"));
    assert_eq!((&first.body, first.header("content-type")), (&second.body, second.header("content-type")));
    settled(&provider, 1).await;
    let name = names(&mut connection, "penstock:answer:*").await.remove(0);
    let left: i64 = redis::cmd("PTTL").arg(&name).query_async(&mut connection).await.unwrap();
    assert!((1..=60_000).contains(&left), "{left}");
    // It says nothing of whoever asked.
    let value: Vec<u8> = redis::cmd("GET").arg(&name).query_async(&mut connection).await.unwrap();
    assert!(value.ends_with(&first.body));
    // What came from there grows no older here. Redis tells whole milliseconds, and was asked a little later.
    other.gateway.shared.clock.advance(Duration::from_millis(left.unsigned_abs()) + Duration::from_secs(1));
    drop(redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await);
    assert_eq!(status(&other, "hi").await, "MISS");
}

#[tokio::test]
async fn a_new_answer_takes_the_place_of_the_old_everywhere() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (one, other) = (node(&provider.url(), &server.url()).await, node(&provider.url(), &server.url()).await);
    let mut connection = server.connection().await;
    assert_eq!(status(&one, "hi").await, "MISS");
    stored(&mut connection, "penstock:answer:*", 1).await;
    assert_eq!(status(&other, "hi").await, "HIT");
    // It is in the process now, and there alone.
    redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.unwrap();
    assert_eq!(status(&other, "hi").await, "HIT");
    let told = one.send(kept("hi").header("x-gateway-cache-force-refresh", "true")).await;
    assert_eq!(way(&told)[2], "REFRESH");
    stored(&mut connection, "penstock:answer:*", 1).await;
    let name = names(&mut connection, "penstock:answer:*").await.remove(0);
    redis::cmd("SET").arg(&name).arg(b"\x01\x0a\0text/plainnewer").query_async::<()>(&mut connection).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while other.send(kept("hi")).await.body != b"newer" {
        assert!(Instant::now() < deadline, "the old answer still serves");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    settled(&provider, 2).await;
}

#[tokio::test]
async fn what_redis_never_had_serves_here_for_as_long_as_it_may() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let rig = Rig::with(&provider.url(), |settings| {
        settings.redis_url = Some(Secret::new(server.url()));
        settings.redis_answer_bytes = 2_000;
    });
    let gateway = Arc::clone(&rig.gateway);
    tokio::spawn(async move { gateway.shared.sync_with_redis().await });
    until("Redis is there", || is_there(&rig)).await;
    let config = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 3600}});
    let ask = || by_with(&config, CHAT, words("mock?answer_bytes=10000", false));
    for (minutes, expected) in [(0, "MISS"), (0, "HIT"), (2, "HIT"), (50, "HIT"), (60, "MISS")] {
        rig.gateway.shared.clock.advance(Duration::from_secs(minutes * 60));
        assert_eq!(way(&rig.send(ask()).await)[2], expected, "{minutes}");
    }
    let mut connection = server.connection().await;
    assert!(names(&mut connection, "penstock:answer:*").await.is_empty());
}

#[tokio::test]
async fn over_tls_it_is_spoken_to_under_the_operators_own_authority_and_under_no_other() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let reached = |has_authority: bool| {
        let rig = Rig::with(&provider.url(), |settings| {
            settings.redis_url = Some(Secret::new(server.tls_url()));
            settings.redis_wait_ms = 5_000;
            settings.tls_ca = has_authority.then(|| tls::file("authority.pem"));
        });
        let gateway = Arc::clone(&rig.gateway);
        tokio::spawn(async move { gateway.shared.sync_with_redis().await });
        rig
    };
    let (one, other, stranger) = (reached(true), reached(true), reached(false));
    until("Redis is there", || is_there(&one) && is_there(&other)).await;
    assert_eq!(status(&one, "hi").await, "MISS");
    stored(&mut server.connection().await, "penstock:answer:*", 1).await;
    assert_eq!((status(&other, "hi").await, status(&stranger, "hi").await), ("HIT".into(), "MISS".into()));
    assert!(!is_there(&stranger));
}

#[tokio::test]
async fn tenants_get_nothing_of_each_other_through_it() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (one, other) = (node(&provider.url(), &server.url()).await, node(&provider.url(), &server.url()).await);
    let key = |id: &str, workspace: &str| json!({"id": id, "name": id, "sha256": sha256(id), "workspace": workspace});
    for rig in [&one, &other] {
        rig.apply(&json!({"epoch": "1", "keys": [key("a", "one"), key("b", "one"), key("c", "two")]}));
    }
    let from = |key: &str| kept("hi").header("x-gateway-api-key", key).header("x-gateway-cache-namespace", "n");
    let mut connection = server.connection().await;
    assert_eq!(way(&one.send(from("a")).await)[2], "MISS");
    stored(&mut connection, "penstock:answer:*", 1).await;
    for (caller, expected) in [("b", "HIT"), ("c", "MISS")] {
        assert_eq!(way(&other.send(from(caller)).await)[2], expected, "{caller}");
    }
}

#[tokio::test]
async fn what_it_refuses_or_cannot_be_read_costs_nobody_an_answer() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (one, other) = (node(&provider.url(), &server.url()).await, node(&provider.url(), &server.url()).await);
    let mut connection = server.connection().await;
    // Neither bytes that nobody wrote down so, nor another type, to which Redis itself says no.
    for spoil in ["SET", "LPUSH"] {
        assert_eq!(status(&one, spoil).await, "MISS");
        stored(&mut connection, "penstock:answer:*", 1).await;
        let name = names(&mut connection, "penstock:answer:*").await.remove(0);
        let mut both = redis::pipe();
        both.del(&name).cmd(spoil).arg(&name).arg("something else");
        both.query_async::<()>(&mut connection).await.unwrap();
        assert_eq!(status(&other, spoil).await, "MISS");
        written(&mut connection, &name).await;
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.unwrap();
    }
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query_async::<()>(&mut connection).await.unwrap();
    for expected in ["MISS", "HIT"] {
        assert_eq!(status(&one, "full").await, expected);
    }
    let refused = || one.gateway.shared.redis.as_ref().unwrap().metrics.rejected_commands.get();
    until("the refusal is counted", || refused() > 0).await;
    assert!(is_there(&one));
    // Nor does it keep a target closed off: where it gives nobody the right to try, each tries.
    let config = guarded("status=503", 1);
    one.send(by(&config)).await;
    one.gateway.shared.clock.advance(Duration::from_secs(31));
    let tried = || one.gateway.record_sink.metrics.breakers_opened.get() == 2;
    let deadline = Instant::now() + Duration::from_secs(5);
    while !tried() {
        assert!(Instant::now() < deadline, "nobody tries");
        assert_eq!(one.send(by(&config)).await.status, 200);
    }
}

/// Closed off after so many failures.
fn guarded(failing: &str, failures: u32) -> Value {
    let breaker = match failures {
        1 => touchy(),
        _ => json!({"failure_threshold": failures - 1, "cooldown_interval": 30_000}),
    };
    json!({"strategy": {"mode": "fallback", "cb_config": breaker}, "targets": [target(failing), target("chunks=1")]})
}

fn open(rig: &Rig) -> usize {
    rig.gateway.shared.breakers.open_count()
}

#[tokio::test]
async fn a_target_that_one_closed_off_is_passed_over_by_all_and_by_who_comes_later() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (one, other) = (node(&provider.url(), &server.url()).await, node(&provider.url(), &server.url()).await);
    let config = guarded("status=503", 1);
    one.send(by(&config)).await;
    until("the other knows", || open(&other) == 1).await;
    let mut connection = server.connection().await;
    stored(&mut connection, "penstock:breakers", 1).await;
    let later = node(&provider.url(), &server.url()).await;
    assert_eq!(open(&later), 1);
    for rig in [&one, &other, &later] {
        assert_eq!(way(&rig.send(by(&config)).await)[0], "config.targets[1]");
    }
    // One failed, four answered.
    settled(&provider, 5).await;
}

#[tokio::test]
async fn failures_of_all_count_together() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (one, other) = (node(&provider.url(), &server.url()).await, node(&provider.url(), &server.url()).await);
    let config = guarded("status=503", 3);
    let heard = || other.gateway.shared.redis.as_ref().unwrap().metrics.received_messages.get();
    for failures in [1, 2] {
        one.send(by(&config)).await;
        until("the other has heard", || heard() == failures).await;
    }
    // Two are not enough; the third may be anybody's.
    assert_eq!((open(&one), open(&other)), (0, 0));
    other.send(by(&config)).await;
    assert_eq!(open(&other), 1);
    until("the first knows", || open(&one) == 1).await;
}

#[tokio::test]
async fn of_all_one_tries_and_all_learn_how_it_ended() {
    let (ill, server) = (Ill::start().await, RedisServer::start().await);
    let url = ill.provider.url();
    let nodes = [node(&url, &server.url()).await, node(&url, &server.url()).await];
    let config = guarded("ill", 1);
    nodes[0].send(by(&config)).await;
    until("both know", || nodes.iter().all(|node| open(node) == 1)).await;
    let count = || ill.asked().len();
    for expected in [2, 3] {
        ill.is_failing.store(expected == 2, Ordering::Relaxed);
        for node in &nodes {
            node.gateway.shared.clock.advance(Duration::from_secs(31));
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while count() < expected {
            assert!(Instant::now() < deadline, "nobody tries");
            for node in &nodes {
                assert_eq!(node.send(by(&config)).await.status, 200);
            }
        }
        if expected == 3 {
            break;
        }
        // It failed: for as long again nobody tries.
        for node in nodes.iter().cycle().take(20) {
            node.send(by(&config)).await;
        }
        assert_eq!(count(), expected);
    }
    until("both go there again", || nodes.iter().all(|node| open(node) == 0)).await;
    for node in &nodes {
        assert_eq!(way(&node.send(by(&config)).await)[0], "config.targets[0]");
    }
}

#[tokio::test]
async fn the_same_go_to_the_same_target_on_every_node() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    // One shares, the other has nothing to do with it: the answer follows from the request alone.
    let (one, other) = (node(&provider.url(), &server.url()).await, Rig::before(&provider));
    let config = json!({"strategy": {"mode": "loadbalance",
        "sticky_session": {"enabled": true, "hash_fields": ["metadata.user"], "ttl": 60}},
        "targets": [target("chunks=1"), target("chunks=2"), target("chunks=3")]});
    let mut used = std::collections::HashSet::new();
    for number in 0..200 {
        let ask = || by(&config).header("x-gateway-metadata", &json!({"user": format!("u-{number}")}).to_string());
        one.gateway.shared.clock.advance(Duration::from_secs(7));
        let (here, there) = (one.send(ask()).await, other.send(ask()).await);
        assert_eq!(way(&here)[0], way(&there)[0], "{number}");
        used.insert(way(&here)[0].to_owned());
    }
    assert_eq!(used.len(), 3);
}

#[tokio::test]
async fn a_session_stays_where_it_was_given_for_its_time_and_no_longer_whatever_becomes_of_the_weights() {
    let (provider, mut server) = (Server::start().await, RedisServer::start().await);
    let nodes = [node(&provider.url(), &server.url()).await, node(&provider.url(), &server.url()).await];
    let weighted = |epoch: &str, weights: [f64; 2]| {
        let [mut first, mut second] = [target("chunks=1"), target("chunks=2")];
        (first["name"], first["weight"]) = (json!("a"), json!(weights[0]));
        (second["name"], second["weight"]) = (json!("b"), json!(weights[1]));
        let strategy = json!({"mode": "loadbalance", "sticky": {"hash_fields": ["metadata.user"], "ttl": 2}});
        let config = json!({"strategy": strategy, "targets": [first, second]});
        for rig in &nodes {
            rig.apply(&json!({"epoch": epoch, "configs": [{"slug": "pc-s", "config": config}]}));
        }
    };
    let place = async |rig: &Rig, user: &str| {
        let metadata = json!({"user": user}).to_string();
        let ask = crate::harness::post(CHAT, words("mock", false)).header("x-gateway-config", "pc-s");
        let told = rig.send(ask.header("x-gateway-metadata", &metadata)).await;
        assert_eq!(told.status, 200);
        way(&told)[0].strip_prefix("config.targets").unwrap().to_owned()
    };
    weighted("1", [1.0, 1e-9]);
    let began = Instant::now();
    assert_eq!(place(&nodes[0], "ann").await, "[0]");
    assert_eq!(place(&nodes[0], "leaves").await, "[0]");
    let given = Instant::now();
    weighted("2", [1e-9, 1.0]);
    // Neither has the other node seen it, nor is the second of its requests its first.
    assert_eq!((place(&nodes[1], "ann").await.as_str(), place(&nodes[0], "ann").await.as_str()), ("[0]", "[0]"));
    assert_eq!(place(&nodes[1], "bob").await, "[1]");
    while place(&nodes[1], "ann").await == "[0]" {
        assert!(given.elapsed() < Duration::from_secs(5), "it stays for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(began.elapsed() > Duration::from_millis(1_900), "{:?}", began.elapsed());
    assert_eq!(place(&nodes[0], "ann").await, "[1]");
    // Nobody is held to a target that nobody is sent to any more.
    weighted("3", [1.0, 0.0]);
    assert_eq!((place(&nodes[0], "ann").await.as_str(), place(&nodes[1], "ann").await.as_str()), ("[0]", "[0]"));
    // What a node knows it knows without Redis; all else follows from the request.
    weighted("4", [1e-9, 1.0]);
    server.kill();
    assert_eq!(place(&nodes[0], "ann").await, "[0]");
    assert_eq!((place(&nodes[0], "new").await.as_str(), place(&nodes[1], "new").await.as_str()), ("[1]", "[1]"));
}

/// Sends this many at once, all new, several times; gives the longest time that one took.
async fn load(rig: &Rig, name: &str, rounds: usize) -> Duration {
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..10 {
            let gateway = Arc::clone(&rig.gateway);
            let ask = kept(&format!("{name} {round} {number}"));
            waiting.spawn(async move {
                let began = Instant::now();
                let answer = in_time(gateway.handle(ask.request())).await;
                (answer.head.status, began.elapsed())
            });
        }
        while let Some(done) = waiting.join_next().await {
            let (status, took) = done.unwrap();
            assert_eq!(status, 200, "{name}");
            longest = longest.max(took);
        }
    }
    longest
}

#[tokio::test]
async fn a_redis_that_is_frozen_slowed_or_killed_fails_no_request_and_delays_those_alone_that_first_notice() {
    let (provider, mut server) = (Server::start().await, RedisServer::start().await);
    let relay = Relay::before(&server).await;
    let rig = node(&provider.url(), &format!("redis://{}/", relay.addr)).await;
    let usual = load(&rig, "well", 20).await;
    let bound = WAIT + usual * 4 + Duration::from_millis(200);
    let noticed = async |name: &str| {
        let before = slow(&rig);
        let longest = load(&rig, name, 20).await;
        assert!(longest < bound, "{name}: {longest:?}, usually {usual:?}");
        // With the first all who wait give up, and all others do not ask.
        assert!(slow(&rig) - before <= 1, "{name}: {}", slow(&rig) - before);
    };
    server.freeze();
    noticed("frozen").await;
    assert!(!is_there(&rig));
    server.thaw();
    until("it is back", || is_there(&rig)).await;
    relay.slow_down(Duration::from_millis(200));
    noticed("slowed").await;
    relay.slow_down(Duration::ZERO);
    until("it is quick again", || is_there(&rig)).await;
    server.kill();
    noticed("killed").await;
    until("the loss is seen", || !is_there(&rig)).await;
    let late = Rig::with(&provider.url(), |settings| settings.redis_url = Some(Secret::new(server.url())));
    let gateway = Arc::clone(&late.gateway);
    tokio::spawn(async move { gateway.shared.sync_with_redis().await });
    assert_eq!((status(&late, "late").await, status(&late, "late").await), ("MISS".into(), "HIT".into()));
    server.restart().await;
    until("the new one is used", || is_there(&rig) && is_there(&late)).await;
    assert_eq!(status(&rig, "again").await, "MISS");
    stored(&mut server.connection().await, "penstock:answer:*", 1).await;
}
