//! Sharing through Redis: cached responses, circuit breakers and sticky sessions. No request fails or waits long if
//! Redis is unavailable.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use crate::harness::{
    CHAT_PATH, TestGateway, chat_body, chat_with_config,
    failing_provider::FailingProvider,
    mock_target, post_with_config,
    redis_server::{
        DelayingRelay, RedisServer, cacheable_request, is_redis_available, send_cacheable_requests, start_node,
        timed_out_lookups,
    },
    routing_headers, sensitive_breaker_config, sha256_hex, tls, wait_for_ledger_entries, wait_until, with_timeout,
};
use penstock_core::process::secret::Secret;
use penstock_mock::Server;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};

async fn fetch_cache_status(gateway: &TestGateway, text: &str) -> String {
    let response = gateway.send(cacheable_request(text)).await;
    assert_eq!(response.status, 200);
    routing_headers(&response)[2].to_owned()
}

async fn list_redis_keys(connection: &mut MultiplexedConnection, pattern: &str) -> Vec<String> {
    with_timeout(redis::cmd("KEYS").arg(pattern).query_async(connection)).await.unwrap()
}

/// Polls until exactly `count` keys match the pattern.
async fn wait_for_key_count(connection: &mut MultiplexedConnection, pattern: &str, count: usize) {
    for _ in 0..2_000 {
        if list_redis_keys(connection, pattern).await.len() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never {count} of {pattern}: {:?}", list_redis_keys(connection, "*").await);
}

/// Polls until a gateway has overwritten the value of this key.
async fn wait_until_overwritten(connection: &mut MultiplexedConnection, name: &str) {
    for _ in 0..2_000 {
        let stored: redis::RedisResult<Vec<u8>> = redis::cmd("GET").arg(name).query_async(connection).await;
        if stored.is_ok_and(|value| value.first() == Some(&1)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never written: {name}");
}

#[tokio::test]
async fn nodes_share_a_cached_response_until_it_expires() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (first_node, other) =
        (start_node(&provider.url(), &server.url()).await, start_node(&provider.url(), &server.url()).await);
    let mut connection = server.connect().await;
    let first = first_node.send(cacheable_request("hi")).await;
    wait_for_key_count(&mut connection, "penstock:answer:*", 1).await;
    let second = other.send(cacheable_request("hi")).await;
    assert_eq!((routing_headers(&first)[2], routing_headers(&second)[2]), ("MISS", "HIT"));
    assert_eq!((&first.body, first.header("content-type")), (&second.body, second.header("content-type")));
    wait_for_ledger_entries(&provider, 1).await;
    let name = list_redis_keys(&mut connection, "penstock:answer:*").await.remove(0);
    let remaining_ms: i64 = redis::cmd("PTTL").arg(&name).query_async(&mut connection).await.unwrap();
    assert!((1..=60_000).contains(&remaining_ms), "{remaining_ms}");
    // The stored value contains no data about the caller.
    let value: Vec<u8> = redis::cmd("GET").arg(&name).query_async(&mut connection).await.unwrap();
    assert!(value.ends_with(&first.body));
    // A local copy expires together with the entry in Redis. The extra second is needed because Redis reports whole
    // milliseconds and was queried slightly later.
    other.state.shared.clock.advance(Duration::from_millis(remaining_ms.unsigned_abs()) + Duration::from_secs(1));
    drop(redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await);
    assert_eq!(fetch_cache_status(&other, "hi").await, "MISS");
}

#[tokio::test]
async fn a_refreshed_response_replaces_the_old_one_on_all_nodes() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (first_node, other) =
        (start_node(&provider.url(), &server.url()).await, start_node(&provider.url(), &server.url()).await);
    let mut connection = server.connect().await;
    assert_eq!(fetch_cache_status(&first_node, "hi").await, "MISS");
    wait_for_key_count(&mut connection, "penstock:answer:*", 1).await;
    assert_eq!(fetch_cache_status(&other, "hi").await, "HIT");
    // From here on the response is cached in the process only.
    redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.unwrap();
    assert_eq!(fetch_cache_status(&other, "hi").await, "HIT");
    let reply = first_node.send(cacheable_request("hi").header("x-gateway-cache-force-refresh", "true")).await;
    assert_eq!(routing_headers(&reply)[2], "REFRESH");
    wait_for_key_count(&mut connection, "penstock:answer:*", 1).await;
    let name = list_redis_keys(&mut connection, "penstock:answer:*").await.remove(0);
    redis::cmd("SET").arg(&name).arg(b"\x01\x0a\0text/plainnewer").query_async::<()>(&mut connection).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while other.send(cacheable_request("hi")).await.body != b"newer" {
        assert!(Instant::now() < deadline, "the old answer still serves");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    wait_for_ledger_entries(&provider, 2).await;
}

#[tokio::test]
async fn caches_a_response_too_large_for_redis_in_the_process() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.redis_url = Some(Secret::new(server.url()));
        settings.redis_answer_bytes = 2_000;
    });
    let state = Arc::clone(&gateway.state);
    tokio::spawn(async move { state.shared.sync_with_redis().await });
    wait_until("Redis is there", || is_redis_available(&gateway)).await;
    let config = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 3600}});
    let build_request = || post_with_config(&config, CHAT_PATH, chat_body("mock?response_bytes=10000", false));
    for (minutes, expected) in [(0, "MISS"), (0, "HIT"), (2, "HIT"), (50, "HIT"), (60, "MISS")] {
        gateway.state.shared.clock.advance(Duration::from_secs(minutes * 60));
        assert_eq!(routing_headers(&gateway.send(build_request()).await)[2], expected, "{minutes}");
    }
    let mut connection = server.connect().await;
    assert!(list_redis_keys(&mut connection, "penstock:answer:*").await.is_empty());
}

#[tokio::test]
async fn connects_to_redis_over_tls_only_with_the_configured_ca() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let reached = |has_authority: bool| {
        let gateway = TestGateway::with_settings(&provider.url(), |settings| {
            settings.redis_url = Some(Secret::new(server.tls_url()));
            settings.redis_wait_ms = 5_000;
            settings.tls_ca = has_authority.then(|| tls::tls_file("authority.pem"));
        });
        let state = Arc::clone(&gateway.state);
        tokio::spawn(async move { state.shared.sync_with_redis().await });
        gateway
    };
    let (first, other, other_gateway) = (reached(true), reached(true), reached(false));
    wait_until("Redis is there", || is_redis_available(&first) && is_redis_available(&other)).await;
    assert_eq!(fetch_cache_status(&first, "hi").await, "MISS");
    wait_for_key_count(&mut server.connect().await, "penstock:answer:*", 1).await;
    assert_eq!(
        (fetch_cache_status(&other, "hi").await, fetch_cache_status(&other_gateway, "hi").await),
        ("HIT".into(), "MISS".into())
    );
    assert!(!is_redis_available(&other_gateway));
}

#[tokio::test]
async fn does_not_share_cached_responses_between_workspaces() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (first_node, other) =
        (start_node(&provider.url(), &server.url()).await, start_node(&provider.url(), &server.url()).await);
    let key =
        |id: &str, workspace: &str| json!({"id": id, "name": id, "sha256": sha256_hex(id), "workspace": workspace});
    for gateway in [&first_node, &other] {
        gateway.apply_snapshot(&json!({"epoch": "1", "keys": [key("a", "one"), key("b", "one"), key("c", "two")]}));
    }
    let from =
        |key: &str| cacheable_request("hi").header("x-gateway-api-key", key).header("x-gateway-cache-namespace", "n");
    let mut connection = server.connect().await;
    assert_eq!(routing_headers(&first_node.send(from("a")).await)[2], "MISS");
    wait_for_key_count(&mut connection, "penstock:answer:*", 1).await;
    for (caller, expected) in [("b", "HIT"), ("c", "MISS")] {
        assert_eq!(routing_headers(&other.send(from(caller)).await)[2], expected, "{caller}");
    }
}

#[tokio::test]
async fn corrupt_entries_or_a_full_redis_fail_no_request() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (first_node, other) =
        (start_node(&provider.url(), &server.url()).await, start_node(&provider.url(), &server.url()).await);
    let mut connection = server.connect().await;
    // Covers malformed bytes, and a value of another Redis type, for which Redis itself returns an error.
    for spoil in ["SET", "LPUSH"] {
        assert_eq!(fetch_cache_status(&first_node, spoil).await, "MISS");
        wait_for_key_count(&mut connection, "penstock:answer:*", 1).await;
        let name = list_redis_keys(&mut connection, "penstock:answer:*").await.remove(0);
        let mut both = redis::pipe();
        both.del(&name).cmd(spoil).arg(&name).arg("something else");
        both.query_async::<()>(&mut connection).await.unwrap();
        assert_eq!(fetch_cache_status(&other, spoil).await, "MISS");
        wait_until_overwritten(&mut connection, &name).await;
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.unwrap();
    }
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query_async::<()>(&mut connection).await.unwrap();
    for expected in ["MISS", "HIT"] {
        assert_eq!(fetch_cache_status(&first_node, "full").await, expected);
    }
    let refused = || first_node.state.shared.redis.as_ref().unwrap().metrics.rejected_commands.get();
    wait_until("the refusal is counted", || refused() > 0).await;
    assert!(is_redis_available(&first_node));
    // The breaker does not stay open either: if Redis cannot grant the right to probe, every node may probe.
    let config = circuit_breaker_config("status=503", 1);
    first_node.send(chat_with_config(&config)).await;
    first_node.state.shared.clock.advance(Duration::from_secs(31));
    let tried = || first_node.state.record_sink.metrics.breakers_opened.get() == 2;
    let deadline = Instant::now() + Duration::from_secs(5);
    while !tried() {
        assert!(Instant::now() < deadline, "nobody tries");
        assert_eq!(first_node.send(chat_with_config(&config)).await.status, 200);
    }
}

/// Fallback config whose circuit breaker opens after this many failures.
fn circuit_breaker_config(failing: &str, failures: u32) -> Value {
    let breaker = match failures {
        1 => sensitive_breaker_config(),
        _ => json!({"failure_threshold": failures - 1, "cooldown_interval": 30_000}),
    };
    json!({"strategy": {"mode": "fallback", "cb_config": breaker}, "targets": [mock_target(failing), mock_target("chunks=1")]})
}

fn open_breaker_count(gateway: &TestGateway) -> usize {
    gateway.state.shared.breakers.open_count()
}

#[tokio::test]
async fn an_open_breaker_applies_to_existing_and_new_nodes() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (first_node, other) =
        (start_node(&provider.url(), &server.url()).await, start_node(&provider.url(), &server.url()).await);
    let config = circuit_breaker_config("status=503", 1);
    first_node.send(chat_with_config(&config)).await;
    wait_until("the other knows", || open_breaker_count(&other) == 1).await;
    let mut connection = server.connect().await;
    wait_for_key_count(&mut connection, "penstock:breakers", 1).await;
    let later = start_node(&provider.url(), &server.url()).await;
    assert_eq!(open_breaker_count(&later), 1);
    for gateway in [&first_node, &other, &later] {
        assert_eq!(routing_headers(&gateway.send(chat_with_config(&config)).await)[0], "config.targets[1]");
    }
    // One upstream request failed and four succeeded.
    wait_for_ledger_entries(&provider, 5).await;
}

#[tokio::test]
async fn counts_failures_of_all_nodes_together() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    let (first_node, other) =
        (start_node(&provider.url(), &server.url()).await, start_node(&provider.url(), &server.url()).await);
    let config = circuit_breaker_config("status=503", 3);
    let received_count = || other.state.shared.redis.as_ref().unwrap().metrics.received_messages.get();
    for failures in [1, 2] {
        first_node.send(chat_with_config(&config)).await;
        wait_until("the other worker received all deltas", || received_count() == failures).await;
    }
    // Two failures are not enough; any node may report the third.
    assert_eq!((open_breaker_count(&first_node), open_breaker_count(&other)), (0, 0));
    other.send(chat_with_config(&config)).await;
    assert_eq!(open_breaker_count(&other), 1);
    wait_until("the first knows", || open_breaker_count(&first_node) == 1).await;
}

#[tokio::test]
async fn one_node_probes_and_all_nodes_learn_the_result() {
    let (failing_provider, server) = (FailingProvider::start().await, RedisServer::start().await);
    let url = failing_provider.server.url();
    let nodes = [start_node(&url, &server.url()).await, start_node(&url, &server.url()).await];
    let config = circuit_breaker_config("ill", 1);
    nodes[0].send(chat_with_config(&config)).await;
    wait_until("both know", || nodes.iter().all(|node| open_breaker_count(node) == 1)).await;
    let count = || failing_provider.request_times().len();
    for expected in [2, 3] {
        failing_provider.is_failing.store(expected == 2, Ordering::Relaxed);
        for node in &nodes {
            node.state.shared.clock.advance(Duration::from_secs(31));
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while count() < expected {
            assert!(Instant::now() < deadline, "nobody tries");
            for node in &nodes {
                assert_eq!(node.send(chat_with_config(&config)).await.status, 200);
            }
        }
        if expected == 3 {
            break;
        }
        // The probe failed, so no node probes again before the next cooldown ends.
        for node in nodes.iter().cycle().take(20) {
            node.send(chat_with_config(&config)).await;
        }
        assert_eq!(count(), expected);
    }
    wait_until("both go there again", || nodes.iter().all(|node| open_breaker_count(node) == 0)).await;
    for node in &nodes {
        assert_eq!(routing_headers(&node.send(chat_with_config(&config)).await)[0], "config.targets[0]");
    }
}

#[tokio::test]
async fn a_sticky_session_maps_to_the_same_target_on_every_node() {
    let (provider, server) = (Server::start().await, RedisServer::start().await);
    // Only one node uses Redis. The target follows from the request alone.
    let (first_node, other) = (start_node(&provider.url(), &server.url()).await, TestGateway::for_provider(&provider));
    let config = json!({"strategy": {"mode": "loadbalance",
        "sticky_session": {"enabled": true, "hash_fields": ["metadata.user"], "ttl": 60}},
        "targets": [mock_target("chunks=1"), mock_target("chunks=2"), mock_target("chunks=3")]});
    let mut used = std::collections::HashSet::new();
    for number in 0..200 {
        let build_request = || {
            chat_with_config(&config).header("x-gateway-metadata", &json!({"user": format!("u-{number}")}).to_string())
        };
        first_node.state.shared.clock.advance(Duration::from_secs(7));
        let (here, first_response) = (first_node.send(build_request()).await, other.send(build_request()).await);
        assert_eq!(routing_headers(&here)[0], routing_headers(&first_response)[0], "{number}");
        used.insert(routing_headers(&here)[0].to_owned());
    }
    assert_eq!(used.len(), 3);
}

#[tokio::test]
async fn a_sticky_session_lasts_its_ttl_despite_weight_changes() {
    let (provider, mut server) = (Server::start().await, RedisServer::start().await);
    let nodes = [start_node(&provider.url(), &server.url()).await, start_node(&provider.url(), &server.url()).await];
    let weighted = |epoch: &str, weights: [f64; 2]| {
        let [mut first, mut second] = [mock_target("chunks=1"), mock_target("chunks=2")];
        (first["name"], first["weight"]) = (json!("a"), json!(weights[0]));
        (second["name"], second["weight"]) = (json!("b"), json!(weights[1]));
        let strategy = json!({"mode": "loadbalance", "sticky": {"hash_fields": ["metadata.user"], "ttl": 2}});
        let config = json!({"strategy": strategy, "targets": [first, second]});
        for gateway in &nodes {
            gateway.apply_snapshot(&json!({"epoch": epoch, "configs": [{"slug": "pc-s", "config": config}]}));
        }
    };
    let location = async |gateway: &TestGateway, user: &str| {
        let metadata = json!({"user": user}).to_string();
        let request =
            crate::harness::post_request(CHAT_PATH, chat_body("mock", false)).header("x-gateway-config", "pc-s");
        let response = gateway.send(request.header("x-gateway-metadata", &metadata)).await;
        assert_eq!(response.status, 200);
        routing_headers(&response)[0].strip_prefix("config.targets").unwrap().to_owned()
    };
    weighted("1", [1.0, 1e-9]);
    let began = Instant::now();
    assert_eq!(location(&nodes[0], "ann").await, "[0]");
    assert_eq!(location(&nodes[0], "leaves").await, "[0]");
    weighted("2", [1e-9, 1.0]);
    // The session is new to the second node, but not to the first one. Both use the original target.
    assert_eq!((location(&nodes[1], "ann").await.as_str(), location(&nodes[0], "ann").await.as_str()), ("[0]", "[0]"));
    assert_eq!(location(&nodes[1], "bob").await, "[1]");
    with_timeout(async {
        while location(&nodes[1], "ann").await == "[0]" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(began.elapsed() > Duration::from_millis(1_900), "{:?}", began.elapsed());
    assert_eq!(location(&nodes[0], "ann").await, "[1]");
    // A session leaves a target whose weight is set to 0.
    weighted("3", [1.0, 0.0]);
    assert_eq!((location(&nodes[0], "ann").await.as_str(), location(&nodes[1], "ann").await.as_str()), ("[0]", "[0]"));
    // A node remembers its sessions without Redis; the target of a new session follows from the request.
    weighted("4", [1e-9, 1.0]);
    server.kill();
    assert_eq!(location(&nodes[0], "ann").await, "[0]");
    assert_eq!((location(&nodes[0], "new").await.as_str(), location(&nodes[1], "new").await.as_str()), ("[1]", "[1]"));
}

/// The delay of the requests is measured in `tests/figures`.
#[tokio::test]
async fn redis_outage_fails_no_request_and_times_out_one_lookup() {
    let (provider, mut server) = (Server::start().await, RedisServer::start().await);
    let relay = DelayingRelay::start(&server).await;
    let gateway = start_node(&provider.url(), &format!("redis://{}/", relay.addr)).await;
    let noticed = async |name: &str| {
        let before = timed_out_lookups(&gateway);
        send_cacheable_requests(&gateway, name, 20).await;
        // When the first lookup times out, all waiting requests give up with it, and later ones skip Redis.
        assert!(timed_out_lookups(&gateway) - before <= 1, "{name}: {}", timed_out_lookups(&gateway) - before);
    };
    server.suspend();
    noticed("frozen").await;
    assert!(!is_redis_available(&gateway));
    server.resume();
    wait_until("it is back", || is_redis_available(&gateway)).await;
    relay.set_delay(Duration::from_millis(200));
    noticed("slowed").await;
    relay.set_delay(Duration::ZERO);
    wait_until("it is quick again", || is_redis_available(&gateway)).await;
    server.kill();
    noticed("killed").await;
    wait_until("the loss is seen", || !is_redis_available(&gateway)).await;
    let late =
        TestGateway::with_settings(&provider.url(), |settings| settings.redis_url = Some(Secret::new(server.url())));
    let state = Arc::clone(&late.state);
    tokio::spawn(async move { state.shared.sync_with_redis().await });
    assert_eq!(
        (fetch_cache_status(&late, "late").await, fetch_cache_status(&late, "late").await),
        ("MISS".into(), "HIT".into())
    );
    server.restart().await;
    wait_until("the new one is used", || is_redis_available(&gateway) && is_redis_available(&late)).await;
    assert_eq!(fetch_cache_status(&gateway, "again").await, "MISS");
    wait_for_key_count(&mut server.connect().await, "penstock:answer:*", 1).await;
}
