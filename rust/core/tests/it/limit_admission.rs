//! Rate limits and budgets of callers and targets.

use penstock_mock::Server;
use serde_json::{Value, json};

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body, sha256_hex, wait_for_ledger_entries,
};

/// Price of a token in pico-dollars.
const TOKEN_PRICE: u64 = 1_000_000;

fn limit(kind: &str, id: &str, fields: &Value) -> Value {
    let mut limit = json!({"id": format!("{kind}-{id}"), "owner": {"kind": kind, "id": id, "slug": id}, "limit": 1});
    limit.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    limit
}

async fn gateway(limits: Value) -> (Server, TestGateway) {
    let provider = Server::start().await;
    let rig = TestGateway::with_settings(&provider.url(), |_| ());
    let rates = json!({"input": [[0, TOKEN_PRICE]], "output": [[0, TOKEN_PRICE]]});
    let price = json!({"provider": "mock", "model": "mock", "prices": [{"version": "v1", "rates": rates}]});
    rig.apply_snapshot(&json!({"epoch": "1", "prices": {"overrides": [price]},
        "workspaces": [{"id": "w", "slug": "here", "organisation_id": "o"}],
        "keys": [{"id": "k", "name": "dev", "workspace": "w", "sha256": sha256_hex("pk")}],
        "providers": [{"id": "p", "integration_id": "i", "slug": "mine", "provider": "mock", "workspace": "w"}],
        "parts": [{"name": "limits/00", "limits": [{"workspace": "w", "limits": limits}]}]}));
    (provider, rig)
}

fn chat(provider: &str) -> TestRequest {
    let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", "pk");
    request.header("content-type", "application/json").header("x-gateway-provider", provider)
}

fn plain_chat() -> TestRequest {
    chat("mock").body(chat_body("mock", false))
}

#[tokio::test]
async fn counts_requests_of_keys_and_workspaces() {
    for owner in [("api_key", "k"), ("workspace", "w"), ("policy", "any")] {
        let fields = json!({"type": "requests", "limit": 2, "window": {"unit": "week"}});
        let (provider, rig) = gateway(json!([limit(owner.0, owner.1, &fields)])).await;
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(rig.send(plain_chat()).await.status);
        }
        assert_eq!(statuses, [200, 200, 429, 429], "{owner:?}");
        wait_for_ledger_entries(&provider, 2).await;
    }
}

#[tokio::test]
async fn rejection_has_the_format_of_the_client() {
    let fields = json!({"type": "requests", "limit": 0, "window": {"unit": "week"}});
    let (_provider, rig) = gateway(json!([limit("api_key", "k", &fields)])).await;
    let body = json!({"model": "mock", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]});
    let request = TestRequest::new("POST", MESSAGES_PATH).header("x-gateway-api-key", "pk");
    let request = request.header("content-type", "application/json").header("x-gateway-provider", "mock");
    let response = rig.send(request.body(body.to_string())).await;
    assert_eq!((response.status, response.header("x-should-retry")), (429, Some("false")));
    let error = response.json();
    assert_eq!((error["type"].as_str(), error["error"]["type"].as_str()), (Some("error"), Some("rate_limit_error")));
    assert!(error["error"]["message"].as_str().unwrap().contains("API key `k`"), "{error}");
}

#[tokio::test]
async fn limit_of_a_provider_applies_to_its_attempts() {
    for owner in [("provider", "p"), ("integration", "i")] {
        let fields = json!({"type": "requests", "limit": 1, "window": {"unit": "week"}});
        let (_provider, rig) = gateway(json!([limit(owner.0, owner.1, &fields)])).await;
        let config = json!({"strategy": {"mode": "fallback", "on_status_codes": [429]},
            "targets": [{"provider": "@mine"}, {"provider": "mock"}]});
        let mut used = Vec::new();
        for _ in 0..3 {
            let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", "pk");
            let request =
                request.header("content-type", "application/json").header("x-gateway-config", &config.to_string());
            let response = rig.send(request.body(chat_body("mock", false))).await;
            used.push(response.header("x-gateway-last-used-option-index").unwrap().to_owned());
        }
        assert_eq!(used, ["config.targets[0]", "config.targets[1]", "config.targets[1]"], "{owner:?}");
        assert_eq!(rig.send(chat("@mine").body(chat_body("mock", false))).await.status, 429);
    }
}

#[tokio::test]
async fn budget_in_dollars_counts_the_real_cost() {
    let fields = json!({"type": "cost", "limit": 100_000, "period": {"start": 1}});
    let (_provider, rig) = gateway(json!([limit("api_key", "k", &fields)])).await;
    let mut spent = 0;
    for _ in 0..100 {
        let response = rig.send(plain_chat()).await;
        if response.status != 200 {
            assert_eq!((response.status, response.json()["error"]["code"].as_str()), (412, Some("04")));
            break;
        }
        spent += response.json()["usage"]["total_tokens"].as_u64().unwrap() * TOKEN_PRICE / 1000;
    }
    assert!((50_000..=120_000).contains(&spent), "{spent}");
}

#[tokio::test]
async fn hard_budget_bounds_the_response_and_is_never_exceeded() {
    let fields = json!({"type": "tokens", "limit": 3000, "period": {"start": 1}, "enforcement": "hard"});
    let (provider, rig) = gateway(json!([limit("policy", "any", &fields)])).await;
    let unbounded = json!({"model": "mock", "messages": [{"role": "user", "content": "x"}]}).to_string();
    let response = rig.send(chat("mock").body(unbounded.clone())).await;
    let cap: u64 = response.header("x-gateway-max-tokens").unwrap().parse().unwrap();
    assert!((2000..3000).contains(&cap), "{cap}");
    wait_for_ledger_entries(&provider, 1).await;
    // A request that may use more than is left is not sent.
    let large = json!({"model": "mock", "max_tokens": 5000, "messages": [{"role": "user", "content": "x"}]});
    assert_eq!(rig.send(chat("mock").body(large.to_string())).await.status, 412);
    assert_eq!(rig.send(chat("mock").body(unbounded)).await.status, 200);
}

#[tokio::test]
async fn dry_run_counts_and_admits() {
    let fields = json!({"type": "requests", "limit": 1, "window": {"unit": "week"}, "dry_run": true});
    let (_provider, rig) = gateway(json!([limit("policy", "any", &fields)])).await;
    for _ in 0..3 {
        assert_eq!(rig.send(plain_chat()).await.status, 200);
    }
    assert_eq!(rig.state.limiter.metrics.would_reject.get(), 2);
}

#[tokio::test]
async fn invalid_request_counts_for_nothing() {
    let fields = json!({"type": "requests", "limit": 1, "window": {"unit": "week"}});
    let (_provider, rig) = gateway(json!([limit("api_key", "k", &fields)])).await;
    for _ in 0..3 {
        assert_eq!(rig.send(chat("mock").body("{")).await.status, 400);
    }
    assert_eq!(rig.send(plain_chat()).await.status, 200);
}
