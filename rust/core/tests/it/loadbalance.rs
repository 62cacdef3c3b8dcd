//! Load balancing. Targets are chosen by weight, and a sticky session keeps its target.

use std::{collections::HashMap, time::Duration};

use crate::harness::{TestGateway, chat_with_config, mock_target, routing_headers};
use penstock_mock::Server;
use serde_json::{Value, json};

fn weighted_target(weight: f64, behaviour: &str) -> Value {
    let mut target = mock_target(behaviour);
    target["weight"] = json!(weight);
    target
}

fn loadbalance_config(targets: &[Value]) -> Value {
    json!({"strategy": {"mode": "loadbalance"}, "targets": targets})
}

#[tokio::test]
async fn requests_follow_weights_and_zero_weight_gets_none() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = loadbalance_config(&[
        weighted_target(3.0, "chunks=1"),
        weighted_target(0.0, "chunks=2"),
        weighted_target(1.0, "chunks=3"),
    ]);
    let mut counts: HashMap<String, u32> = HashMap::new();
    for _ in 0..400 {
        let response = gateway.send(chat_with_config(&config)).await;
        assert_eq!(response.status, 200);
        *counts.entry(routing_headers(&response)[0].to_owned()).or_default() += 1;
    }
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert!((240..360).contains(&counts["config.targets[0]"]), "{counts:?}");
    assert_eq!(gateway.last_record(400)["mode"], "loadbalance");
}

#[tokio::test]
async fn failed_target_is_not_replaced() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway
        .send(chat_with_config(&loadbalance_config(&[mock_target("status=503"), weighted_target(0.0, "chunks=1")])))
        .await;
    assert_eq!((response.status, response.header("x-should-retry")), (503, None));
}

#[tokio::test]
async fn sticky_user_keeps_its_target_in_every_worker() {
    let provider = Server::start().await;
    let (first_gateway, other) = (TestGateway::for_provider(&provider), TestGateway::for_provider(&provider));
    let mut config = loadbalance_config(&[mock_target("chunks=1"), mock_target("chunks=2"), mock_target("chunks=3")]);
    config["strategy"]["sticky"] =
        json!({"enabled": true, "hash_fields": ["metadata.user_id", "params.user"], "ttl": 60});
    let mut counts = HashMap::new();
    for round in 0..3 {
        // A session keeps its target when the clock advances.
        first_gateway.state.shared.clock.advance(Duration::from_secs(45));
        for user in 0..30 {
            let metadata = json!({"user_id": format!("u{user}")}).to_string();
            let gateway = if round % 2 == 0 { &first_gateway } else { &other };
            let response = gateway.send(chat_with_config(&config).header("x-gateway-metadata", &metadata)).await;
            let option = routing_headers(&response)[0].to_owned();
            assert_eq!(counts.entry(user).or_insert_with(|| option.clone()), &option);
        }
    }
    assert_eq!(counts.values().collect::<std::collections::HashSet<_>>().len(), 3);
}

#[tokio::test]
async fn fallback_works_inside_a_load_balanced_target() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let inner =
        json!({"strategy": {"mode": "fallback"}, "targets": [mock_target("status=500"), mock_target("chunks=1")]});
    let response = gateway.send(chat_with_config(&loadbalance_config(&[inner]))).await;
    assert_eq!((response.status, routing_headers(&response)[0]), (200, "config.targets[0].targets[1]"));
    let record = gateway.single_record();
    assert_eq!(
        record["decisions"][0],
        json!({"step": "chose", "at": "config", "strategy": "loadbalance", "target": 0})
    );
}
