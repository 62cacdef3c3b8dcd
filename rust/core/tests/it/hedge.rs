//! Hedged requests: a second request if the first is slow. Covers the winner, its cost and the cancelled attempt.

use std::time::{Duration, Instant};

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, chat_body, chat_with_config, mock_target, pick_fields, post_with_config,
    routing_headers, sensitive_breaker_config, wait_for_ledger_entries,
};
use penstock_mock::{Outcome, Server};
use serde_json::{Value, json};

/// Slower than the timeout of a test, so a request that waits for this response fails.
const SLOW_BEHAVIOUR: &str = "first_ms=30000";

fn hedge_config(hedge: &Value, targets: &[Value]) -> Value {
    json!({"strategy": {"mode": "fallback", "hedge": hedge}, "targets": targets})
}

fn hedge_every_request(after_ms: u64) -> Value {
    json!({"after_ms": after_ms, "max_ratio": 1})
}

fn decision_steps(record: &Value) -> Vec<Value> {
    record["decisions"].as_array().unwrap().iter().map(|step| pick_fields(step, ["step", "at", "status"])).collect()
}

#[tokio::test]
async fn second_target_wins_and_slow_first_is_closed() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = hedge_config(&hedge_every_request(60), &[mock_target(SLOW_BEHAVIOUR), mock_target("chunks=2")]);
    for stream in [false, true] {
        let began = Instant::now();
        let response = gateway.send(post_with_config(&config, CHAT_PATH, chat_body("mock", stream))).await;
        assert_eq!(
            (response.status, routing_headers(&response)),
            (200, ["config.targets[1]", "0", "DISABLED"]),
            "{}",
            response.text()
        );
        assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
        let record = gateway.single_record();
        assert_eq!(
            pick_fields(&record, ["ai_model", "last_used_option_index", "outcome"]),
            json!(["mock?chunks=2", "config.targets[1]", "complete"])
        );
        let expected = [
            json!(["hedged", "config.targets[1]", null]),
            json!(["tried", "config.targets[1]", 200]),
            json!(["cancelled", "config.targets[0]", null]),
        ];
        assert_eq!(decision_steps(&record), expected);
        let entries = wait_for_ledger_entries(&provider, 2).await;
        let slow = entries.iter().find(|entry| entry.model.contains(SLOW_BEHAVIOUR)).unwrap();
        assert_eq!(slow.outcome, Outcome::ClientClosed);
        provider.clear_ledger();
    }
    assert_eq!(gateway.state.record_sink.metrics.hedged.get(), 2);
}

#[tokio::test]
async fn does_not_hedge_if_first_responds_or_fails_early() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (first, option) in [("chunks=1", "config.targets[0]"), ("status=503", "config.targets[1]")] {
        let response = gateway
            .send(chat_with_config(&hedge_config(
                &hedge_every_request(3000),
                &[mock_target(first), mock_target("chunks=2")],
            )))
            .await;
        assert_eq!((response.status, routing_headers(&response)[0]), (200, option));
        assert!(!gateway.single_record().to_string().contains("hedged"));
    }
    assert_eq!(gateway.state.record_sink.metrics.hedged.get(), 0);
}

#[tokio::test]
async fn first_target_wins_if_it_responds_before_the_second() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = hedge_config(&hedge_every_request(30), &[mock_target("first_ms=300"), mock_target(SLOW_BEHAVIOUR)]);
    let response = gateway.send(chat_with_config(&config)).await;
    assert_eq!((response.status, routing_headers(&response)[0]), (200, "config.targets[0]"));
    let last = json!(["cancelled", "config.targets[1]", null]);
    assert_eq!(decision_steps(&gateway.single_record()).pop(), Some(last));
    assert_eq!(wait_for_ledger_entries(&provider, 2).await[1].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn failed_attempt_defers_to_the_other_then_next_target() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let late = |status| mock_target(&format!("first_ms=150&status={status}"));
    for (targets, responded) in [
        ([late(503), mock_target("first_ms=400&chunks=1"), mock_target(SLOW_BEHAVIOUR)], 1),
        ([mock_target("first_ms=400&chunks=1"), mock_target("status=503"), mock_target(SLOW_BEHAVIOUR)], 0),
        ([late(503), late(500), mock_target("chunks=1")], 2),
    ] {
        let response = gateway.send(chat_with_config(&hedge_config(&hedge_every_request(30), &targets))).await;
        let option = format!("config.targets[{responded}]");
        assert_eq!((response.status, routing_headers(&response)[0]), (200, option.as_str()), "{targets:?}");
        assert!(!gateway.single_record().to_string().contains("cancelled"));
    }
    let response =
        gateway.send(chat_with_config(&hedge_config(&hedge_every_request(30), &[late(503), late(429)]))).await;
    assert!([503, 429].contains(&response.status) && response.header("x-should-retry") == Some("false"));
}

#[tokio::test]
async fn max_ratio_bounds_hedged_requests() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = hedge_config(
        &json!({"after_ms": 5, "max_ratio": 0.25}),
        &[mock_target("first_ms=40"), mock_target(SLOW_BEHAVIOUR)],
    );
    for _ in 0..20 {
        assert_eq!(gateway.send(chat_with_config(&config)).await.status, 200);
    }
    // One hedge is allowed in any case. The ratio allows hedges for a quarter of the twenty requests.
    let hedged_count = gateway.state.record_sink.metrics.hedged.get();
    assert!((5..=6).contains(&hedged_count), "{hedged_count}");
    // A hedge that was cancelled at once did not always reach the provider.
    let arrived_count = provider.wait_until_settled(20, Duration::from_secs(5)).await.len();
    assert!((20..=20 + hedged_count as usize).contains(&arrived_count), "{arrived_count}");
}

#[tokio::test]
async fn learns_percentile_from_first_targets_latency() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    // The requested model decides how slow the first target is; the target keeps the same latency histogram.
    let config = hedge_config(
        &json!({"percentile": 90, "max_ratio": 1}),
        &[json!({"provider": "mock"}), mock_target("chunks=2")],
    );
    let send_request = |model: &str| post_with_config(&config, CHAT_PATH, chat_body(model, false));
    for _ in 0..20 {
        gateway.send(send_request("mock?chunks=1")).await;
    }
    assert_eq!(gateway.state.record_sink.metrics.hedged.get(), 0);
    let response = gateway.send(send_request(&format!("mock?{SLOW_BEHAVIOUR}"))).await;
    assert_eq!(routing_headers(&response)[0], "config.targets[1]");
}

#[tokio::test]
async fn errors_and_cache_hits_do_not_count_as_latency() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let first = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 60}});
    let config = hedge_config(&json!({"percentile": 50, "max_ratio": 1}), &[first, mock_target("chunks=2")]);
    let send_request = |model: &str| post_with_config(&config, CHAT_PATH, chat_body(model, false));
    for _ in 0..30 {
        gateway.send(send_request("mock?status=503")).await;
        gateway.send(send_request("mock?chunks=1")).await;
    }
    // A single measured response is not enough for a percentile.
    assert_eq!(routing_headers(&gateway.send(send_request("mock?first_ms=300")).await)[0], "config.targets[0]");
    assert_eq!(gateway.state.record_sink.metrics.hedged.get(), 0);
}

#[tokio::test]
async fn does_not_hedge_past_client_timeout_or_open_breaker() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = hedge_config(&hedge_every_request(2000), &[mock_target(SLOW_BEHAVIOUR), mock_target("chunks=2")]);
    let response = gateway.send(chat_with_config(&config).header("x-stainless-timeout", "0.2")).await;
    assert_eq!((response.status, wait_for_ledger_entries(&provider, 1).await.len()), (408, 1));
    provider.clear_ledger();
    let mut closed = mock_target("status=503");
    closed["cb_config"] = sensitive_breaker_config();
    let config = hedge_config(&hedge_every_request(30), &[mock_target("first_ms=120"), closed]);
    for expected in [2, 1] {
        assert_eq!(gateway.send(chat_with_config(&config)).await.status, 200);
        assert_eq!(wait_for_ledger_entries(&provider, expected).await.len(), expected);
        provider.clear_ledger();
    }
}

#[tokio::test]
async fn explain_shows_when_a_hedge_would_be_sent() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config =
        hedge_config(&json!({"percentile": 95, "after_ms": 400}), &[mock_target("chunks=1"), mock_target("chunks=2")]);
    let client_request =
        json!({"path": CHAT_PATH, "headers": {"x-gateway-config": config.to_string()}, "body": {"model": "m"}});
    let request = TestRequest::new("POST", "/v1/explain")
        .header("content-type", "application/json")
        .body(client_request.to_string());
    let step = json!({"step": "would_hedge", "at": "config.targets[1]", "after": "p95, at first 400 ms"});
    assert_eq!(gateway.send(request).await.json()["decisions"], json!([step]));
}

#[tokio::test]
async fn charges_the_price_of_the_winning_target() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let (slow, late, quick) = ("mock?first_ms=4000", "mock?first_ms=200", "mock?chunks=2");
    let priced = |slug: &str| {
        let rates = json!({"input": [[0, 1000]], "output": [[0, 1000]]});
        let model =
            |model: &str| json!({"slug": model, "enabled": true, "prices": [{"version": slug, "rates": rates}]});
        let models = [slow, late, quick].map(model);
        json!({"id": slug, "allow_all": true, "models": models})
    };
    let saved = |slug: &str| json!({"slug": slug, "provider": "mock", "models": slug});
    let both = ["dear", "cheap"];
    let (models, providers) = (both.map(priced), both.map(saved));
    gateway.apply_snapshot(&json!({"epoch": "1", "models": models, "providers": providers}));
    let at = |slug: &str, model: &str| json!({"provider": format!("@{slug}"), "override_params": {"model": model}});
    for (first, second, won) in
        [(at("dear", slow), at("cheap", quick), "cheap"), (at("dear", late), at("cheap", slow), "dear")]
    {
        let response = gateway.send(chat_with_config(&hedge_config(&hedge_every_request(30), &[first, second]))).await;
        assert_eq!(
            (response.status, &gateway.single_record()["price_version"]),
            (200, &json!(won)),
            "{}",
            response.text()
        );
    }
}

#[tokio::test]
async fn hedging_requires_a_fallback_strategy() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for mode in ["single", "loadbalance"] {
        let config =
            json!({"strategy": {"mode": mode, "hedge": hedge_every_request(5)}, "targets": [mock_target("chunks=1")]});
        let response = gateway.send(chat_with_config(&config)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_config"));
        assert!(
            response.text().contains("strategy.hedge") && response.text().contains("fallback"),
            "{}",
            response.text()
        );
    }
}
