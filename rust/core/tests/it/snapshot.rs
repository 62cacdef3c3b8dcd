//! A snapshot takes the other's place whole, at once, and under no request's feet.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::harness::{Ask, CHAT, Rig, Told, chat, get, in_time, sha256, words};
use bytes::Bytes;
use penstock_core::ingress::body::{Body, BodyEnd, feed_channel};
use penstock_mock::Server;
use serde_json::{Value, json};

/// Everything in it carries the epoch: the key's id, the provider's credential, the config's slug for both.
fn epoch(name: &str, provider: &Server) -> Value {
    json!({"epoch": name,
        "keys": [{"id": format!("k-{name}"), "name": "dev", "sha256": sha256("pk-1")}],
        "providers": [{"slug": "mine", "provider": "openai", "api_key": format!("sk-{name}"),
            "custom_host": format!("{}/{name}/v1", provider.url())}],
        "configs": [{"slug": "pc-main", "config": {"provider": "@mine"}}]})
}

fn trusting(provider: &Server) -> Rig {
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    rig.apply(&epoch("a", provider));
    rig
}

fn ask() -> Ask {
    Ask::new("POST", CHAT)
        .header("x-gateway-api-key", "pk-1")
        .header("x-gateway-config", "pc-main")
        .body(words("mock", false))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_each_request_sees_one_epoch() {
    let provider = Server::start().await;
    let rig = trusting(&provider);
    let over = Arc::new(AtomicBool::new(false));
    let swapping = {
        let (gateway, over) = (Arc::clone(&rig.gateway), Arc::clone(&over));
        let snapshots = ["a", "b"].map(|name| epoch(name, &provider).to_string());
        tokio::spawn(async move {
            for snapshot in snapshots.iter().cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                gateway.apply_snapshot(snapshot.as_bytes()).unwrap();
                tokio::task::yield_now().await;
            }
        })
    };
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let gateway = Arc::clone(&rig.gateway);
            tokio::spawn(async move {
                for index in 0..100 {
                    let ask = ask().header("x-gateway-trace-id", &format!("{caller}-{index}"));
                    let ask = ask.header("openai-organization", &format!("{caller}-{index}"));
                    assert_eq!(gateway.handle(ask.request()).await.head.status, 200);
                }
            })
        })
        .collect();
    for caller in callers {
        in_time(caller).await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    in_time(swapping).await.unwrap();
    let (records, entries) = (rig.records(), provider.ledger_entries());
    assert_eq!((records.len(), entries.len()), (400, 400));
    let mut seen = std::collections::HashMap::new();
    for entry in &entries {
        let name = entry.path.split('/').nth(1).unwrap().to_owned();
        assert_eq!(entry.header("authorization"), Some(format!("Bearer sk-{name}").as_str()));
        seen.insert(entry.header("openai-organization").unwrap().to_owned(), name);
    }
    for record in &records {
        let name = &seen[record["trace_id"].as_str().unwrap()];
        assert_eq!(record["api_key_id"], format!("k-{name}"));
    }
    assert!(["a", "b"].iter().all(|name| seen.values().any(|other| other == name)), "both were used");
}

#[tokio::test]
async fn a_request_under_way_keeps_the_snapshot_it_began_with() {
    let provider = Server::start().await;
    let rig = trusting(&provider);
    let (feeder, feed) = feed_channel(|| ());
    let gateway = Arc::clone(&rig.gateway);
    let asking = tokio::spawn(async move {
        Told::read(gateway.handle(ask().with(Body::Streamed(feed, None)).request()).await).await
    });
    tokio::task::yield_now().await;
    rig.apply(&epoch("b", &provider));
    feeder.push(Bytes::from(words("mock", false)));
    feeder.finish(BodyEnd::Complete);
    assert_eq!(in_time(asking).await.unwrap().status, 200);
    rig.send(ask()).await;
    let paths: Vec<_> = provider.ledger_entries().iter().map(|entry| entry.path.clone()).collect();
    assert_eq!(paths, ["/a/v1/chat/completions", "/b/v1/chat/completions"]);
}

#[tokio::test]
async fn a_bad_snapshot_is_refused_whole() {
    let provider = Server::start().await;
    let rig = trusting(&provider);
    let mut bad = epoch("b", &provider);
    bad["keys"] = json!([{"id": "k-b", "name": "dev", "sha256": "short"}]);
    bad["configs"][0]["config"]["retry"] = json!(9);
    bad["management"] = json!(["/v1/health", "v1", "/internal", "/", ""]);
    let problems = rig.gateway.apply_snapshot(bad.to_string().as_bytes()).unwrap_err();
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
        assert!(rig.gateway.apply_snapshot(json.as_bytes()).is_err(), "{json}");
    }
    assert_eq!(rig.gateway.snapshot_epoch(), "a");
    assert_eq!(rig.send(ask()).await.status, 200);
    assert_eq!(provider.ledger_entries()[0].path, "/a/v1/chat/completions");
}

#[tokio::test]
async fn a_revoked_key_is_dead_at_once() {
    let provider = Server::start().await;
    let rig = trusting(&provider);
    assert_eq!(rig.send(ask()).await.status, 200);
    let mut revoked = epoch("b", &provider);
    revoked["keys"] = json!([{"id": "k-2", "name": "other", "sha256": sha256("pk-2")}]);
    rig.apply(&revoked);
    let told = rig.send(ask()).await;
    assert_eq!((told.status, told.code().as_str()), (401, "03"));
    let mut expired = epoch("c", &provider);
    expired["keys"][0]["expires_at"] = json!(1);
    rig.apply(&expired);
    assert_eq!(rig.send(ask()).await.status, 401);
    let mut lasting = epoch("d", &provider);
    lasting["keys"][0]["expires_at"] = json!(u32::MAX);
    rig.apply(&lasting);
    assert_eq!(rig.send(ask()).await.status, 200);
}

/// A part of the store: keys by numbers, and a config of each number.
fn part(name: &str, numbers: &[usize]) -> Value {
    let keys =
        numbers.iter().map(|n| json!({"id": format!("k-{n}"), "name": "n", "sha256": sha256(format!("pk-{n}"))}));
    let configs = numbers
        .iter()
        .map(|n| json!({"id": format!("c-{n}"), "slug": format!("pc-{n}"), "config": {"provider": "@mine"}}));
    json!({"name": name, "keys": keys.collect::<Vec<_>>(), "configs": configs.collect::<Vec<_>>()})
}

/// The statuses of a request with each of these keys and configs, the latter by slug and by id.
async fn statuses<const N: usize>(rig: &Rig, numbers: [usize; N]) -> [u16; N] {
    let mut found = [0; N];
    for (status, n) in found.iter_mut().zip(numbers) {
        for config in [format!("pc-{n}"), format!("c-{n}")] {
            let ask = Ask::new("POST", CHAT).header("x-gateway-api-key", &format!("pk-{n}"));
            let told = rig.send(ask.header("x-gateway-config", &config).body(words("mock", false))).await;
            *status = (*status).max(told.status);
        }
    }
    found
}

#[tokio::test]
async fn of_a_change_only_the_parts_are_told_that_changed() {
    let provider = Server::start().await;
    let rig = trusting(&provider);
    let told = |epoch: &str, since: Option<&str>, parts: Value| {
        let host = format!("{}/v1", provider.url());
        let mine = json!({"slug": "mine", "provider": "openai", "api_key": "sk", "custom_host": host});
        let mut told = json!({"epoch": epoch, "providers": [mine], "parts": parts});
        if let Some(since) = since {
            told["since"] = since.into();
        }
        told
    };
    rig.apply(&told("b", None, json!([part("1", &[1, 2]), part("2", &[3])])));
    assert_eq!(statuses(&rig, [1, 2, 3, 4]).await, [200, 200, 200, 401]);
    rig.apply(&told("c", Some("b"), json!([part("1", &[1, 4])])));
    assert_eq!(statuses(&rig, [1, 2, 3, 4]).await, [200, 401, 200, 200]);
    rig.apply(&told("d", Some("c"), json!([{"name": "2", "keys": []}, {"name": "1", "configs": []}])));
    assert_eq!(statuses(&rig, [1, 2, 3, 4]).await, [400, 401, 401, 400]);
    let problems = rig.gateway.apply_snapshot(told("f", Some("c"), json!([])).to_string().as_bytes()).unwrap_err();
    assert_eq!(problems[0].path, "$.since");
    assert_eq!(rig.gateway.snapshot_epoch(), "d");
    let mut bad = told("e", Some("d"), json!([part("1", &[1])]));
    bad["parts"][0]["configs"][0]["config"]["retry"] = json!(9);
    let problems = rig.gateway.apply_snapshot(bad.to_string().as_bytes()).unwrap_err();
    assert_eq!(problems[0].path, "$.parts[0].configs[0].config.retry");
    rig.apply(&told("g", None, json!([part("1", &[1])])));
    assert_eq!(statuses(&rig, [1, 2, 3, 4]).await, [200, 401, 401, 401]);
}

#[tokio::test]
async fn a_key_that_the_file_has_too_is_there_when_the_store_has_it_no_longer() {
    let provider = Server::start().await;
    let rig = trusting(&provider);
    let told = |name: &str, parts: Value| {
        let mut told = epoch(name, &provider);
        told["parts"] = parts;
        told
    };
    let key = json!({"id": "k-store", "name": "n", "sha256": sha256("pk-1")});
    rig.apply(&told("b", json!([{"name": "1", "keys": [key]}])));
    rig.send(ask()).await;
    assert_eq!(rig.record()["api_key_id"], "k-store");
    let mut gone = told("c", json!([{"name": "1", "keys": []}]));
    gone["since"] = "b".into();
    rig.apply(&gone);
    rig.send(ask()).await;
    assert_eq!(rig.records().last().unwrap()["api_key_id"], "k-c");
}

#[tokio::test]
async fn a_stream_outlives_the_snapshot_that_allowed_it() {
    let provider = Server::start().await;
    let rig = trusting(&provider);
    let mut first = epoch("a", &provider);
    first["providers"][0]["custom_host"] = json!(format!("{}/v1", provider.url()));
    rig.apply(&first);
    let answer = rig.open(ask().body(words("mock?chunk_ms=5", true))).await;
    rig.apply(&json!({"epoch": "b", "keys": [{"id": "k-2", "name": "other", "sha256": sha256("pk-2")}]}));
    let told = Told::read(answer).await;
    assert!(told.body.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(rig.record()["api_key_id"], "k-a");
}

#[tokio::test]
async fn it_is_ready_between_the_first_snapshot_and_the_drain() {
    let settings = penstock_core::process::settings::Settings::default();
    let gateway = penstock_core::gateway::Gateway::new(settings).unwrap_or_else(|problems| panic!("{problems:?}"));
    let rig = Rig { gateway: Arc::new(gateway) };
    let status = async |path| rig.send(get(path)).await.status;
    assert_eq!((status("/ready").await, status("/live").await), (503, 200));
    rig.apply(&json!({"epoch": "1"}));
    assert_eq!((status("/ready").await, status("/live").await), (200, 200));
    assert!(rig.gateway.apply_snapshot(b"{").is_err());
    assert_eq!(status("/ready").await, 200);
    rig.gateway.drain();
    assert_eq!((status("/ready").await, status("/live").await), (503, 200));
    // What still comes is still served.
    assert_ne!(rig.send(chat("m")).await.status, 503);
}
