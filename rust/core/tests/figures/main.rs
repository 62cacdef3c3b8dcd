//! Time limits of the engine: circuit breakers under load, guardrails, limits, prompts, and an outage of Redis.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod guardrails;
#[allow(unused_imports, reason = "shared with the engine tests, which use the rest")]
#[path = "../it/harness/mod.rs"]
mod harness;
mod limits;
mod prompts;

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use harness::{
    TestGateway,
    failing_provider::{FailingProvider, median, send_at_rate},
    mock_target,
    redis_server::{
        DelayingRelay, MAX_REDIS_WAIT, RedisServer, is_redis_available, send_cacheable_requests, start_node,
    },
    routing_headers, wait_until,
};
use penstock_mock::Server;
use serde_json::json;

#[tokio::test]
async fn circuit_breaker_opens_within_one_second_and_recovers_within_five() {
    let failing_provider = FailingProvider::start().await;
    let gateway = TestGateway::for_url(&failing_provider.server.url());
    let mut config = json!({
        "strategy": {"mode": "fallback", "cb_config": {"failure_threshold": 4, "cooldown_interval": 30_000}},
        "targets": [mock_target("ill"), mock_target("well")],
    });
    config["retry"] = json!({"attempts": 3, "on_status_codes": [503]});
    let usual =
        send_at_rate(&gateway, &json!({"strategy": {"mode": "fallback"}, "targets": [mock_target("well")]}), 300, 300)
            .await;
    let began = Instant::now();
    let responses = send_at_rate(&gateway, &config, 300, 600).await;
    assert!(responses.iter().all(|(_, _, response)| response.status == 200));
    let last = failing_provider.request_times().into_iter().max().unwrap();
    assert!(last - began < Duration::from_secs(1), "{:?}", last - began);
    let open = responses.iter().filter(|(at, ..)| *at > last);
    let elapsed = median(open.map(|(_, elapsed, _)| *elapsed).collect());
    let usually = median(usual.iter().map(|(_, elapsed, _)| *elapsed).collect());
    assert!(elapsed < usually + Duration::from_millis(5), "{elapsed:?}, without {usually:?}");
    // From here on the provider does not fail any more, and the cooldown of the breaker passes.
    failing_provider.is_failing.store(false, Ordering::Relaxed);
    gateway.state.shared.clock.advance(Duration::from_secs(30));
    let (ended, before) = (Instant::now(), failing_provider.request_times().len());
    let responses = send_at_rate(&gateway, &config, 300, 300).await;
    let back = responses
        .iter()
        .filter(|(_, _, response)| routing_headers(response)[0] == "config.targets[0]")
        .map(|(at, ..)| *at)
        .min();
    assert!(back.unwrap() - ended < Duration::from_secs(5));
    assert!(failing_provider.request_times().len() - before > 250);
}

#[tokio::test]
async fn redis_outage_delays_requests_by_the_redis_timeout_at_most() {
    let (provider, mut server) = (Server::start().await, RedisServer::start().await);
    let relay = DelayingRelay::start(&server).await;
    let gateway = start_node(&provider.url(), &format!("redis://{}/", relay.addr)).await;
    let usual = send_cacheable_requests(&gateway, "well", 20).await;
    let bound = MAX_REDIS_WAIT + usual * 4 + Duration::from_millis(200);
    let check_latency = async |name: &str| {
        let longest = send_cacheable_requests(&gateway, name, 20).await;
        println!("{name}: {longest:?}, usually {usual:?}");
        assert!(longest < bound, "{name}: {longest:?}, usually {usual:?}");
    };
    server.suspend();
    check_latency("frozen").await;
    server.resume();
    wait_until("Redis is back", || is_redis_available(&gateway)).await;
    relay.set_delay(Duration::from_millis(200));
    check_latency("slowed").await;
    relay.set_delay(Duration::ZERO);
    wait_until("Redis is fast again", || is_redis_available(&gateway)).await;
    server.kill();
    check_latency("killed").await;
}
