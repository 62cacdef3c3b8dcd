//! A second attempt where the first is slow: who wins, what it costs, and what becomes of the loser.

use std::time::{Duration, Instant};

use crate::harness::{Ask, CHAT, Rig, by, by_with, pick, settled, target, touchy, way, words};
use penstock_mock::{Outcome, Server};
use serde_json::{Value, json};

const SLOW: &str = "first_ms=4000";
/// Much longer than anything here takes, and much shorter than what is slow.
const SOON: Duration = Duration::from_secs(3);

fn hedged(hedge: &Value, targets: &[Value]) -> Value {
    json!({"strategy": {"mode": "fallback", "hedge": hedge}, "targets": targets})
}

fn always(after_ms: u64) -> Value {
    json!({"after_ms": after_ms, "max_ratio": 1})
}

fn steps(record: &Value) -> Vec<Value> {
    record["decisions"].as_array().unwrap().iter().map(|step| pick(step, ["step", "at", "status"])).collect()
}

#[tokio::test]
async fn the_second_target_answers_for_a_slow_first_whose_connection_is_closed() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = hedged(&always(60), &[target(SLOW), target("chunks=2")]);
    for stream in [false, true] {
        let began = Instant::now();
        let told = rig.send(by_with(&config, CHAT, words("mock", stream))).await;
        assert_eq!((told.status, way(&told)), (200, ["config.targets[1]", "0", "DISABLED"]), "{}", told.text());
        assert!((Duration::from_millis(60)..SOON).contains(&began.elapsed()), "{:?}", began.elapsed());
        let record = rig.record();
        assert_eq!(
            pick(&record, ["ai_model", "last_used_option_index", "outcome"]),
            json!(["mock?chunks=2", "config.targets[1]", "complete"])
        );
        let expected = [
            json!(["hedged", "config.targets[1]", null]),
            json!(["tried", "config.targets[1]", 200]),
            json!(["cancelled", "config.targets[0]", null]),
        ];
        assert_eq!(steps(&record), expected);
        let entries = settled(&provider, 2).await;
        let slow = entries.iter().find(|entry| entry.model.contains("4000")).unwrap();
        assert_eq!(slow.outcome, Outcome::ClientClosed);
        provider.clear_ledger();
    }
    assert_eq!(rig.gateway.record_sink.metrics.hedged.get(), 2);
}

#[tokio::test]
async fn a_first_that_answers_in_time_or_fails_at_once_is_not_raced() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (first, option) in [("chunks=1", "config.targets[0]"), ("status=503", "config.targets[1]")] {
        let told = rig.send(by(&hedged(&always(3000), &[target(first), target("chunks=2")]))).await;
        assert_eq!((told.status, way(&told)[0]), (200, option));
        assert!(!rig.record().to_string().contains("hedged"));
    }
    assert_eq!(rig.gateway.record_sink.metrics.hedged.get(), 0);
}

#[tokio::test]
async fn the_first_wins_where_it_answers_before_the_second() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = hedged(&always(30), &[target("first_ms=300"), target(SLOW)]);
    let told = rig.send(by(&config)).await;
    assert_eq!((told.status, way(&told)[0]), (200, "config.targets[0]"));
    let last = json!(["cancelled", "config.targets[1]", null]);
    assert_eq!(steps(&rig.record()).pop(), Some(last));
    assert_eq!(settled(&provider, 2).await[1].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn a_failure_of_either_leaves_it_to_the_other_and_of_both_to_the_next() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let late = |status| target(&format!("first_ms=150&status={status}"));
    for (targets, answered) in [
        ([late(503), target("first_ms=400&chunks=1"), target(SLOW)], 1),
        ([target("first_ms=400&chunks=1"), target("status=503"), target(SLOW)], 0),
        ([late(503), late(500), target("chunks=1")], 2),
    ] {
        let told = rig.send(by(&hedged(&always(30), &targets))).await;
        let option = format!("config.targets[{answered}]");
        assert_eq!((told.status, way(&told)[0]), (200, option.as_str()), "{targets:?}");
        assert!(!rig.record().to_string().contains("cancelled"));
    }
    let told = rig.send(by(&hedged(&always(30), &[late(503), late(429)]))).await;
    assert!([503, 429].contains(&told.status) && told.header("x-should-retry") == Some("false"));
}

#[tokio::test]
async fn no_more_than_its_share_of_requests_is_sent_twice() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = hedged(&json!({"after_ms": 5, "max_ratio": 0.25}), &[target("first_ms=40"), target(SLOW)]);
    for _ in 0..20 {
        assert_eq!(rig.send(by(&config)).await.status, 200);
    }
    // One is free, and a quarter of twenty.
    let made = rig.gateway.record_sink.metrics.hedged.get();
    assert!((5..=6).contains(&made), "{made}");
    assert_eq!(settled(&provider, 20 + made as usize).await.len(), 20 + made as usize);
}

#[tokio::test]
async fn a_percentile_is_learned_from_the_first_targets_own_answers() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    // What is asked decides how long the first takes: its mark is the same.
    let config = hedged(&json!({"percentile": 90, "max_ratio": 1}), &[json!({"provider": "mock"}), target("chunks=2")]);
    let ask = |model: &str| by_with(&config, CHAT, words(model, false));
    for _ in 0..20 {
        rig.send(ask("mock?chunks=1")).await;
    }
    assert_eq!(rig.gateway.record_sink.metrics.hedged.get(), 0);
    let began = Instant::now();
    let told = rig.send(ask(&format!("mock?{SLOW}"))).await;
    assert_eq!(way(&told)[0], "config.targets[1]");
    assert!(began.elapsed() < SOON);
}

#[tokio::test]
async fn what_fails_or_was_kept_says_nothing_of_how_long_answers_take() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let first = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 60}});
    let config = hedged(&json!({"percentile": 50, "max_ratio": 1}), &[first, target("chunks=2")]);
    let ask = |model: &str| by_with(&config, CHAT, words(model, false));
    for _ in 0..30 {
        rig.send(ask("mock?status=503")).await;
        rig.send(ask("mock?chunks=1")).await;
    }
    // One answer is all that is known: nothing follows from it.
    assert_eq!(way(&rig.send(ask("mock?first_ms=300")).await)[0], "config.targets[0]");
    assert_eq!(rig.gateway.record_sink.metrics.hedged.get(), 0);
}

#[tokio::test]
async fn nothing_is_raced_beyond_the_callers_time_or_past_a_breaker() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = hedged(&always(2000), &[target(SLOW), target("chunks=2")]);
    let told = rig.send(by(&config).header("x-stainless-timeout", "0.2")).await;
    assert_eq!((told.status, settled(&provider, 1).await.len()), (408, 1));
    provider.clear_ledger();
    let mut closed = target("status=503");
    closed["cb_config"] = touchy();
    let config = hedged(&always(30), &[target("first_ms=120"), closed]);
    for expected in [2, 1] {
        assert_eq!(rig.send(by(&config)).await.status, 200);
        assert_eq!(settled(&provider, expected).await.len(), expected);
        provider.clear_ledger();
    }
}

#[tokio::test]
async fn explain_says_when_a_second_would_be_sent() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = hedged(&json!({"percentile": 95, "after_ms": 400}), &[target("chunks=1"), target("chunks=2")]);
    let asked = json!({"path": CHAT, "headers": {"x-gateway-config": config.to_string()}, "body": {"model": "m"}});
    let ask = Ask::new("POST", "/v1/explain").header("content-type", "application/json").body(asked.to_string());
    let step = json!({"step": "would_hedge", "at": "config.targets[1]", "after": "p95, at first 400 ms"});
    assert_eq!(rig.send(ask).await.json()["decisions"], json!([step]));
}

#[tokio::test]
async fn what_it_cost_is_the_price_of_the_target_that_won() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
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
    rig.apply(&json!({"epoch": "1", "models": models, "providers": providers}));
    let at = |slug: &str, model: &str| json!({"provider": format!("@{slug}"), "override_params": {"model": model}});
    for (first, second, won) in
        [(at("dear", slow), at("cheap", quick), "cheap"), (at("dear", late), at("cheap", slow), "dear")]
    {
        let told = rig.send(by(&hedged(&always(30), &[first, second]))).await;
        assert_eq!((told.status, &rig.record()["price_version"]), (200, &json!(won)), "{}", told.text());
    }
}

#[tokio::test]
async fn it_needs_a_fallback() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for mode in ["single", "loadbalance"] {
        let config = json!({"strategy": {"mode": mode, "hedge": always(5)}, "targets": [target("chunks=1")]});
        let told = rig.send(by(&config)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_config"));
        assert!(told.text().contains("strategy.hedge") && told.text().contains("fallback"), "{}", told.text());
    }
}
