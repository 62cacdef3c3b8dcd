//! A target that fails too often is left alone, and all of them are used where all are closed off.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod harness;

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use harness::{
    Rig, by,
    ill::{Ill, median, storm},
    settled, target, way,
};
use penstock_mock::Server;
use serde_json::{Value, json};

fn guarded(targets: &[Value], more: &Value) -> Value {
    let mut breaker = json!({"failure_threshold": 2, "cooldown_interval": 30_000});
    breaker.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"strategy": {"mode": "fallback", "cb_config": breaker}, "targets": targets})
}

#[tokio::test]
async fn what_failed_too_often_is_passed_over_under_its_own_name() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = guarded(&[target("status=503"), target("chunks=1")], &json!({}));
    for _ in 0..6 {
        let told = rig.send(by(&config)).await;
        assert_eq!((told.status, way(&told)[0]), (200, "config.targets[1]"));
    }
    let models: Vec<_> = settled(&provider, 8).await.into_iter().map(|entry| entry.model).collect();
    assert_eq!(models.iter().filter(|model| model.as_str() == "mock?status=503").count(), 2);
    let skipped = json!({"step": "skipped", "at": "config.targets[0]", "breaker": "open"});
    assert_eq!(rig.records().iter().filter(|record| record["decisions"][0] == skipped).count(), 4);
}

#[tokio::test]
async fn where_all_are_closed_off_all_are_tried() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = guarded(&[target("status=503"), target("status=500")], &json!({"failure_threshold": 1}));
    for _ in 0..3 {
        assert_eq!(rig.send(by(&config)).await.status, 500);
    }
    settled(&provider, 6).await;
}

#[tokio::test]
async fn a_share_goes_to_those_that_are_open() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut config = guarded(&[target("status=503"), target("chunks=1")], &json!({"failure_threshold": 1}));
    config["strategy"]["mode"] = json!("loadbalance");
    let mut failed = 0;
    for _ in 0..40 {
        failed += usize::from(rig.send(by(&config)).await.status == 503);
    }
    assert_eq!(failed, 1);
}

#[tokio::test]
async fn refusals_do_not_count_and_another_config_has_breakers_of_its_own() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = guarded(&[target("status=429"), target("chunks=1")], &json!({"failure_threshold": 1}));
    for _ in 0..3 {
        rig.send(by(&config)).await;
    }
    settled(&provider, 6).await;
    let broken = |note: &str| {
        let mut config = guarded(&[target("status=503"), target("chunks=1")], &json!({"failure_threshold": 1}));
        config["note"] = json!(note);
        config
    };
    for note in ["a", "b"] {
        rig.send(by(&broken(note))).await;
    }
    settled(&provider, 10).await;
}

#[tokio::test]
async fn a_saved_config_has_one_breaker_for_all_who_use_it_across_snapshots() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = guarded(&[target("status=503"), target("chunks=1")], &json!({"failure_threshold": 1}));
    for epoch in ["1", "2", "3"] {
        rig.apply(&json!({"epoch": epoch, "configs": [{"slug": "pc-1", "config": config}]}));
        let ask = harness::post(harness::CHAT, harness::words("mock", false)).header("x-gateway-config", "pc-1");
        assert_eq!(rig.send(ask).await.status, 200);
    }
    settled(&provider, 4).await;
}

#[tokio::test]
async fn in_a_storm_of_failures_it_opens_within_a_second_costs_little_and_recovers_within_five() {
    let ill = Ill::start().await;
    let rig = Rig::with(&ill.provider.url(), |settings| settings.retry_backoff_ms = 1);
    let mut config = guarded(&[target("ill"), target("well")], &json!({"failure_threshold": 5}));
    config["retry"] = json!({"attempts": 3, "on_status_codes": [503]});
    let usual = storm(&rig, &json!({"strategy": {"mode": "fallback"}, "targets": [target("well")]}), 300, 300).await;
    let began = Instant::now();
    let answers = storm(&rig, &config, 300, 600).await;
    assert!(answers.iter().all(|(_, _, told)| told.status == 200));
    let last = ill.asked().into_iter().max().unwrap();
    assert!(last - began < Duration::from_secs(1), "{:?}", last - began);
    let open = answers.iter().filter(|(at, ..)| *at > last);
    let took = median(open.map(|(_, took, _)| *took).collect());
    let usually = median(usual.iter().map(|(_, took, _)| *took).collect());
    assert!(took < usually + Duration::from_millis(5), "{took:?}, without {usually:?}");
    // Its cause ends, and the time for which it is left alone.
    ill.is_failing.store(false, Ordering::Relaxed);
    rig.gateway.shared.clock.jump(Duration::from_secs(30));
    let (ended, before) = (Instant::now(), ill.asked().len());
    let answers = storm(&rig, &config, 300, 300).await;
    let back = answers.iter().filter(|(_, _, told)| way(told)[0] == "config.targets[0]").map(|(at, ..)| *at).min();
    assert!(back.unwrap() - ended < Duration::from_secs(5));
    assert!(ill.asked().len() - before > 250);
}
