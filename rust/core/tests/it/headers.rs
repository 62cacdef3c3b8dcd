//! Requests that may be understood in two ways are refused before anybody is asked, and leave a record.

use crate::harness::{Ask, CHAT, Rig, chat, get, pick, words};
use penstock_mock::Server;
use serde_json::json;

#[tokio::test]
async fn a_header_that_may_be_understood_in_two_ways_is_refused_by_its_name() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (name, value, said) in [
        ("x-gateway-provider", "openai", "`x-gateway-provider` is sent twice"),
        ("x-gateway-provider", "mock", "`x-gateway-provider` is sent twice"),
        ("x-portkey-provider", "openai", "`x-gateway-provider` and `x-portkey-provider` differ"),
        ("x_gateway_api_key", "gk", "`x_gateway_api_key` is written with hyphens: `x-gateway-api-key`"),
        ("X-Portkey_Config", "{}", "`x-portkey_config` is written with hyphens"),
        ("content-type", "text/plain", "chatComplete takes application/json"),
    ] {
        let told = rig.send(chat("mock").header(name, value)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_header"), "{name}");
        assert!(told.text().contains(said), "{}", told.text());
        assert_eq!(pick(&rig.record(), ["outcome", "error"]), json!(["refused", "invalid_header"]));
    }
    let twice = chat("mock").header("authorization", "Bearer a").header("authorization", "Bearer b");
    assert!(rig.send(twice).await.text().contains("authorization: is sent twice"));
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn what_is_said_twice_in_the_same_way_or_belongs_to_others_passes() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (name, value) in [("x-portkey-provider", "mock"), ("x_team", "red"), ("x-gatewayed_by", "us"), ("host", "a:80")]
    {
        assert_eq!(rig.send(chat("mock").header(name, value)).await.status, 200, "{name}");
    }
    assert_eq!(provider.ledger_entries().len(), 4);
}

#[tokio::test]
async fn json_that_its_caller_gave_no_name_goes_on_under_its_own_and_what_is_not_read_goes_on_as_it_came() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let untold = |path: &str| Ask::new("POST", path).header("x-gateway-provider", "mock").body(words("mock", false));
    for (path, kind) in [
        (CHAT, Some("application/json")),
        ("/v1/moderations", Some("application/json")),
        ("/v1/proxy/chat/completions", None),
        ("/v1/some/thing", None),
    ] {
        assert_eq!(rig.send(untold(path)).await.status, 200, "{path}");
        let sent = provider.ledger_entries().pop().unwrap();
        let kinds: Vec<_> = sent.headers.iter().filter(|(name, _)| name == "content-type").collect();
        assert_eq!(kinds.iter().map(|(_, kind)| kind.as_str()).collect::<Vec<_>>(), Vec::from_iter(kind), "{path}");
    }
}

#[tokio::test]
async fn a_host_that_is_none_is_refused_on_every_path() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for path in [CHAT, "/live", "/ready", "/v1/models", "/v1/proxy/x", "/nowhere"] {
        for host in ["", "a b", "a/b", "u@a", "a:b"] {
            let told = rig.send(get(path).header("host", host)).await;
            assert_eq!((told.status, told.code().as_str()), (400, "invalid_header"), "{path} {host}");
        }
        let told = rig.send(get(path).header("host", "a").header("host", "a")).await;
        assert_eq!(told.status, 400, "{path}");
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn a_large_body_is_looked_through_elsewhere_with_the_same_result() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let body = |rest: &str| format!(r#"{{"model":"mock","messages":[],"x":"{}"{rest}"#, "y".repeat(300_000));
    let told = rig.send(crate::harness::post(CHAT, body("}"))).await;
    assert_eq!(told.status, 200, "{}", told.text());
    assert_eq!(rig.record()["ai_model"], "mock");
    let told = rig.send(crate::harness::post(CHAT, body(",}"))).await;
    assert_eq!((told.status, told.code().as_str()), (400, "invalid_json"));
    assert!(told.text().contains("at byte 300037"), "{}", told.text());
}
