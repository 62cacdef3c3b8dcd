//! Requests are shared out by weight, and those that belong together stay together.

use std::{collections::HashMap, time::Duration};

use crate::harness::{Rig, by, target, way};
use penstock_mock::Server;
use serde_json::{Value, json};

fn weighted(weight: f64, behaviour: &str) -> Value {
    let mut target = target(behaviour);
    target["weight"] = json!(weight);
    target
}

fn balanced(targets: &[Value]) -> Value {
    json!({"strategy": {"mode": "loadbalance"}, "targets": targets})
}

#[tokio::test]
async fn shares_follow_the_weights_and_none_is_never() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = balanced(&[weighted(3.0, "chunks=1"), weighted(0.0, "chunks=2"), weighted(1.0, "chunks=3")]);
    let mut counts: HashMap<String, u32> = HashMap::new();
    for _ in 0..400 {
        let told = rig.send(by(&config)).await;
        assert_eq!(told.status, 200);
        *counts.entry(way(&told)[0].to_owned()).or_default() += 1;
    }
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert!((240..360).contains(&counts["config.targets[0]"]), "{counts:?}");
    assert_eq!(rig.record_of_many(400)["mode"], "loadbalance");
}

#[tokio::test]
async fn a_target_that_fails_is_not_replaced() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(by(&balanced(&[target("status=503"), weighted(0.0, "chunks=1")]))).await;
    assert_eq!((told.status, told.header("x-should-retry")), (503, None));
}

#[tokio::test]
async fn a_user_stays_with_a_target_in_every_worker() {
    let provider = Server::start().await;
    let (one, other) = (Rig::before(&provider), Rig::before(&provider));
    let mut config = balanced(&[target("chunks=1"), target("chunks=2"), target("chunks=3")]);
    config["strategy"]["sticky"] =
        json!({"enabled": true, "hash_fields": ["metadata.user_id", "params.user"], "ttl": 60});
    let mut seen = HashMap::new();
    for round in 0..3 {
        // No clock moves a session.
        one.gateway.shared.clock.advance(Duration::from_secs(45));
        for user in 0..30 {
            let metadata = json!({"user_id": format!("u{user}")}).to_string();
            let rig = if round % 2 == 0 { &one } else { &other };
            let told = rig.send(by(&config).header("x-gateway-metadata", &metadata)).await;
            let option = way(&told)[0].to_owned();
            assert_eq!(seen.entry(user).or_insert_with(|| option.clone()), &option);
        }
    }
    assert_eq!(seen.values().collect::<std::collections::HashSet<_>>().len(), 3);
}

#[tokio::test]
async fn a_fallback_within_a_share_holds() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let inner = json!({"strategy": {"mode": "fallback"}, "targets": [target("status=500"), target("chunks=1")]});
    let told = rig.send(by(&balanced(&[inner]))).await;
    assert_eq!((told.status, way(&told)[0]), (200, "config.targets[0].targets[1]"));
    let record = rig.record();
    assert_eq!(
        record["decisions"][0],
        json!({"step": "chose", "at": "config", "strategy": "loadbalance", "target": 0})
    );
}
