//! Snapshot updates. A new snapshot replaces the old one atomically, and requests in progress continue with theirs.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, TestResponse, chat_body, chat_request, get_request, sha256_hex, with_timeout,
};
use bytes::Bytes;
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::{Value, json};

/// Builds a snapshot whose key id, provider credential and custom host carry the epoch. The config slug is the same in
/// all epochs.
fn epoch_snapshot(name: &str, provider: &Server) -> Value {
    json!({"epoch": name,
        "keys": [{"id": format!("k-{name}"), "name": "dev", "sha256": sha256_hex("pk-1")}],
        "providers": [{"slug": "mine", "provider": "openai", "api_key": format!("sk-{name}"),
            "custom_host": format!("{}/{name}/v1", provider.url())}],
        "configs": [{"slug": "pc-main", "config": {"provider": "@mine"}}]})
}

fn gateway_with_epoch_a(provider: &Server) -> TestGateway {
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    gateway.apply_snapshot(&epoch_snapshot("a", provider));
    gateway
}

fn keyed_request() -> TestRequest {
    TestRequest::new("POST", CHAT_PATH)
        .header("x-gateway-api-key", "pk-1")
        .header("x-gateway-config", "pc-main")
        .body(chat_body("mock", false))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_under_load_uses_a_single_epoch() {
    let provider = Server::start().await;
    let gateway = gateway_with_epoch_a(&provider);
    let over = Arc::new(AtomicBool::new(false));
    let swapping = {
        let (state, over) = (Arc::clone(&gateway.state), Arc::clone(&over));
        let snapshots = ["a", "b"].map(|name| epoch_snapshot(name, &provider).to_string());
        tokio::spawn(async move {
            for snapshot in snapshots.iter().cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                state.apply_snapshot(snapshot.as_bytes()).unwrap();
                tokio::task::yield_now().await;
            }
        })
    };
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let state = Arc::clone(&gateway.state);
            tokio::spawn(async move {
                for index in 0..100 {
                    let request = keyed_request().header("x-gateway-trace-id", &format!("{caller}-{index}"));
                    let request = request.header("openai-organization", &format!("{caller}-{index}"));
                    assert_eq!(penstock_core::gateway::handle(&state, request.build()).await.head.status, 200);
                }
            })
        })
        .collect();
    for caller in callers {
        with_timeout(caller).await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    with_timeout(swapping).await.unwrap();
    let (records, entries) = (gateway.drain_records(), provider.ledger_entries());
    assert_eq!((records.len(), entries.len()), (400, 400));
    let mut counts = std::collections::HashMap::new();
    for entry in &entries {
        let name = entry.path.split('/').nth(1).unwrap().to_owned();
        assert_eq!(entry.header("authorization"), Some(format!("Bearer sk-{name}").as_str()));
        counts.insert(entry.header("openai-organization").unwrap().to_owned(), name);
    }
    for record in &records {
        let name = &counts[record["trace_id"].as_str().unwrap()];
        assert_eq!(record["api_key_id"], format!("k-{name}"));
    }
    assert!(["a", "b"].iter().all(|name| counts.values().any(|other| other == name)), "both were used");
}

#[tokio::test]
async fn a_request_in_progress_continues_with_its_snapshot() {
    let provider = Server::start().await;
    let gateway = gateway_with_epoch_a(&provider);
    let (feeder, feed) = feed_channel(|| ());
    let state = Arc::clone(&gateway.state);
    let request_task = tokio::spawn(async move {
        TestResponse::read(
            penstock_core::gateway::handle(&state, keyed_request().with_body(Body::Streamed(feed, None)).build()).await,
        )
        .await
    });
    tokio::task::yield_now().await;
    gateway.apply_snapshot(&epoch_snapshot("b", &provider));
    feeder.push(Bytes::from(chat_body("mock", false)));
    feeder.finish(BodyEnd::Complete);
    assert_eq!(with_timeout(request_task).await.unwrap().status, 200);
    gateway.send(keyed_request()).await;
    let paths: Vec<_> = provider.ledger_entries().iter().map(|entry| entry.path.clone()).collect();
    assert_eq!(paths, ["/a/v1/chat/completions", "/b/v1/chat/completions"]);
}

#[tokio::test]
async fn rejects_all_parts_of_an_invalid_snapshot() {
    let provider = Server::start().await;
    let gateway = gateway_with_epoch_a(&provider);
    let mut bad = epoch_snapshot("b", &provider);
    bad["keys"] = json!([{"id": "k-b", "name": "dev", "sha256": "short"}]);
    bad["configs"][0]["config"]["retry"] = json!(9);
    bad["management"] = json!(["/v1/health", "v1", "/internal", "/", ""]);
    let problems = gateway.state.apply_snapshot(bad.to_string().as_bytes()).unwrap_err();
    let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "$.keys[0].sha256",
            "$.configs[0].config.retry",
            "$.management[1]",
            "$.management[2]",
            "$.management[3]",
            "$.management[4]"
        ]
    );
    for json in ["", "null", "[]", "{}", r#"{"epoch":1}"#, r#"{"epoch":"b","odd":1}"#, r#"{"epoch":"b""#] {
        assert!(gateway.state.apply_snapshot(json.as_bytes()).is_err(), "{json}");
    }
    assert_eq!(gateway.state.snapshot_epoch(), "a");
    assert_eq!(gateway.send(keyed_request()).await.status, 200);
    assert_eq!(provider.ledger_entries()[0].path, "/a/v1/chat/completions");
}

#[tokio::test]
async fn rejects_a_revoked_or_expired_key_at_once() {
    let provider = Server::start().await;
    let gateway = gateway_with_epoch_a(&provider);
    assert_eq!(gateway.send(keyed_request()).await.status, 200);
    let mut revoked = epoch_snapshot("b", &provider);
    revoked["keys"] = json!([{"id": "k-2", "name": "other", "sha256": sha256_hex("pk-2")}]);
    gateway.apply_snapshot(&revoked);
    let response = gateway.send(keyed_request()).await;
    assert_eq!((response.status, response.error_code().as_str()), (401, "03"));
    let mut expired = epoch_snapshot("c", &provider);
    expired["keys"][0]["expires_at"] = json!(1);
    gateway.apply_snapshot(&expired);
    assert_eq!(gateway.send(keyed_request()).await.status, 401);
    let mut lasting = epoch_snapshot("d", &provider);
    lasting["keys"][0]["expires_at"] = json!(u32::MAX);
    gateway.apply_snapshot(&lasting);
    assert_eq!(gateway.send(keyed_request()).await.status, 200);
}

/// Builds a snapshot part with one key and one config for each number.
fn snapshot_part(name: &str, numbers: &[usize]) -> Value {
    let keys =
        numbers.iter().map(|n| json!({"id": format!("k-{n}"), "name": "n", "sha256": sha256_hex(format!("pk-{n}"))}));
    let configs = numbers
        .iter()
        .map(|n| json!({"id": format!("c-{n}"), "slug": format!("pc-{n}"), "config": {"provider": "@mine"}}));
    json!({"name": name, "keys": keys.collect::<Vec<_>>(), "configs": configs.collect::<Vec<_>>()})
}

/// Sends requests with each numbered key and config, by slug and by id. Returns the higher status of each pair.
async fn request_statuses<const N: usize>(gateway: &TestGateway, numbers: [usize; N]) -> [u16; N] {
    let mut counts = [0; N];
    for (status, n) in counts.iter_mut().zip(numbers) {
        for config in [format!("pc-{n}"), format!("c-{n}")] {
            let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", &format!("pk-{n}"));
            let response =
                gateway.send(request.header("x-gateway-config", &config).body(chat_body("mock", false))).await;
            *status = (*status).max(response.status);
        }
    }
    counts
}

#[tokio::test]
async fn a_delta_snapshot_replaces_only_its_parts() {
    let provider = Server::start().await;
    let gateway = gateway_with_epoch_a(&provider);
    let response = |epoch: &str, since: Option<&str>, parts: Value| {
        let host = format!("{}/v1", provider.url());
        let mine = json!({"slug": "mine", "provider": "openai", "api_key": "sk", "custom_host": host});
        let mut response = json!({"epoch": epoch, "providers": [mine], "parts": parts});
        if let Some(since) = since {
            response["since"] = since.into();
        }
        response
    };
    gateway.apply_snapshot(&response("b", None, json!([snapshot_part("1", &[1, 2]), snapshot_part("2", &[3])])));
    assert_eq!(request_statuses(&gateway, [1, 2, 3, 4]).await, [200, 200, 200, 401]);
    gateway.apply_snapshot(&response("c", Some("b"), json!([snapshot_part("1", &[1, 4])])));
    assert_eq!(request_statuses(&gateway, [1, 2, 3, 4]).await, [200, 401, 200, 200]);
    gateway.apply_snapshot(&response("d", Some("c"), json!([{"name": "2", "keys": []}, {"name": "1", "configs": []}])));
    assert_eq!(request_statuses(&gateway, [1, 2, 3, 4]).await, [400, 401, 401, 400]);
    let problems =
        gateway.state.apply_snapshot(response("f", Some("c"), json!([])).to_string().as_bytes()).unwrap_err();
    assert_eq!(problems[0].path, "$.since");
    assert_eq!(gateway.state.snapshot_epoch(), "d");
    let mut bad = response("e", Some("d"), json!([snapshot_part("1", &[1])]));
    bad["parts"][0]["configs"][0]["config"]["retry"] = json!(9);
    let problems = gateway.state.apply_snapshot(bad.to_string().as_bytes()).unwrap_err();
    assert_eq!(problems[0].path, "$.parts[0].configs[0].config.retry");
    gateway.apply_snapshot(&response("g", None, json!([snapshot_part("1", &[1])])));
    assert_eq!(request_statuses(&gateway, [1, 2, 3, 4]).await, [200, 401, 401, 401]);
}

#[tokio::test]
async fn a_file_key_applies_again_once_the_store_removes_it() {
    let provider = Server::start().await;
    let gateway = gateway_with_epoch_a(&provider);
    let response = |name: &str, parts: Value| {
        let mut response = epoch_snapshot(name, &provider);
        response["parts"] = parts;
        response
    };
    let key = json!({"id": "k-store", "name": "n", "sha256": sha256_hex("pk-1")});
    gateway.apply_snapshot(&response("b", json!([{"name": "1", "keys": [key]}])));
    gateway.send(keyed_request()).await;
    assert_eq!(gateway.single_record()["api_key_id"], "k-store");
    let mut gone = response("c", json!([{"name": "1", "keys": []}]));
    gone["since"] = "b".into();
    gateway.apply_snapshot(&gone);
    gateway.send(keyed_request()).await;
    assert_eq!(gateway.drain_records().last().unwrap()["api_key_id"], "k-c");
}

#[tokio::test]
async fn a_stream_survives_the_revocation_of_its_key() {
    let provider = Server::start().await;
    let gateway = gateway_with_epoch_a(&provider);
    let mut first = epoch_snapshot("a", &provider);
    first["providers"][0]["custom_host"] = json!(format!("{}/v1", provider.url()));
    gateway.apply_snapshot(&first);
    let response_body = gateway.handle_request(keyed_request().body(chat_body("mock?chunk_ms=5", true))).await;
    gateway
        .apply_snapshot(&json!({"epoch": "b", "keys": [{"id": "k-2", "name": "other", "sha256": sha256_hex("pk-2")}]}));
    let response = TestResponse::read(response_body).await;
    assert!(response.body.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(gateway.single_record()["api_key_id"], "k-a");
}

#[tokio::test]
async fn is_ready_from_the_first_snapshot_until_drain() {
    let settings = penstock_core::process::settings::Settings::default();
    let state =
        penstock_core::gateway_state::GatewayState::new(settings).unwrap_or_else(|problems| panic!("{problems:?}"));
    let gateway = TestGateway { state: Arc::new(state) };
    let status = async |path| gateway.send(get_request(path)).await.status;
    assert_eq!((status("/ready").await, status("/live").await), (503, 200));
    gateway.apply_snapshot(&json!({"epoch": "1"}));
    assert_eq!((status("/ready").await, status("/live").await), (200, 200));
    assert!(gateway.state.apply_snapshot(b"{").is_err());
    assert_eq!(status("/ready").await, 200);
    gateway.state.drain();
    assert_eq!((status("/ready").await, status("/live").await), (503, 200));
    // Requests that arrive during the drain are still served.
    assert_ne!(gateway.send(chat_request("m")).await.status, 503);
}
