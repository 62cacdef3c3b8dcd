//! A target that fails too often is left alone, and all of them are used where all are closed off.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::harness::{
    CHAT, Rig, by, by_with,
    ill::{Ill, median, storm},
    settled, target, touchy, way, words,
};
use penstock_core::ingress::body::{Body, BodyEnd, feed_channel};
use penstock_mock::Server;
use serde_json::{Value, json};

fn guarded(targets: &[Value], more: &Value) -> Value {
    let mut breaker = json!({"failure_threshold": 1, "cooldown_interval": 30_000});
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
    let config = guarded(&[target("status=503"), target("status=502")], &touchy());
    for _ in 0..3 {
        assert_eq!(rig.send(by(&config)).await.status, 502);
    }
    settled(&provider, 6).await;
}

#[tokio::test]
async fn a_share_goes_to_those_that_are_open() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut config = guarded(&[target("status=503"), target("chunks=1")], &touchy());
    config["strategy"]["mode"] = json!("loadbalance");
    let mut failed = 0;
    for _ in 0..40 {
        failed += usize::from(rig.send(by(&config)).await.status == 503);
    }
    assert_eq!(failed, 1);
}

#[tokio::test]
async fn who_has_no_weight_is_no_help_where_all_others_are_closed_off() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut config = guarded(&[target("status=503"), target("chunks=1")], &touchy());
    config["strategy"]["mode"] = json!("loadbalance");
    config["targets"][1]["weight"] = json!(0);
    for _ in 0..3 {
        let told = Box::pin(crate::harness::in_time(rig.send(by(&config)))).await;
        assert_eq!((told.status, way(&told)[0]), (503, "config.targets[0]"));
    }
}

#[tokio::test]
async fn refusals_do_not_count_and_another_config_has_breakers_of_its_own() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = guarded(&[target("status=429"), target("chunks=1")], &touchy());
    for _ in 0..3 {
        rig.send(by(&config)).await;
    }
    settled(&provider, 6).await;
    let broken = |note: &str| {
        let mut config = guarded(&[target("status=503"), target("chunks=1")], &touchy());
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
    let config = guarded(&[target("status=503"), target("chunks=1")], &touchy());
    for (epoch, named) in [("1", "pc-1"), ("2", "pc-1"), ("3", "c-1")] {
        rig.apply(&json!({"epoch": epoch, "configs": [{"id": "c-1", "slug": "pc-1", "config": config}]}));
        let ask = crate::harness::post(crate::harness::CHAT, crate::harness::words("mock", false))
            .header("x-gateway-config", named);
        assert_eq!(rig.send(ask).await.status, 200);
    }
    settled(&provider, 4).await;
}

#[tokio::test]
async fn a_target_that_names_nobody_has_a_breaker_for_each_whom_requests_name() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let saved = |slug: &str| json!({"slug": slug, "provider": "mock"});
    rig.apply(&json!({"epoch": "1", "providers": [saved("one"), saved("two")]}));
    let config = guarded(&[json!({"passthrough": true}), target("chunks=1")], &touchy());
    let asked = |named: &str, model: &str| by_with(&config, CHAT, words(&format!("@{named}/{model}"), false));
    for (named, model, answers) in [("one", "mock?status=503", 1), ("one", "mock", 1), ("two", "mock", 0)] {
        let told = rig.send(asked(named, model)).await;
        assert_eq!(way(&told)[0], format!("config.targets[{answers}]"), "{named}: {}", told.text());
    }
}

/// A config whose first target was closed off by a failure, and may be tried again.
async fn half_open(rig: &Rig, provider: &Server, mut config: Value) -> Value {
    // What it is asked for is said in the request: the config stays the same, and so do its breakers.
    config["targets"][0] = json!({"provider": "mock"});
    while rig.gateway.shared.breakers.open_count() == 0 {
        rig.send(by_with(&config, CHAT, words("mock?status=503", false))).await;
    }
    assert_eq!(rig.gateway.shared.breakers.open_count(), 1);
    rig.gateway.shared.clock.advance(Duration::from_secs(30));
    provider.clear_ledger();
    rig.records();
    config
}

fn with_two(mode: &str) -> Value {
    json!({"strategy": {"mode": mode, "cb_config": touchy()},
        "retry": {"attempts": 2, "on_status_codes": [503]},
        "targets": [{}, {"provider": "mock", "override_params": {"model": "mock?chunks=1"}}]})
}

#[tokio::test]
async fn one_request_alone_tries_a_target_that_may_be_well_again_and_once() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.retry_backoff_ms = 1);
    let config = half_open(&rig, &provider, with_two("fallback")).await;
    let ask = || rig.send(by_with(&config, CHAT, words("mock?status=503&first_ms=200", false)));
    let answers = tokio::join!(ask(), ask(), ask(), ask(), ask());
    for told in [&answers.0, &answers.1, &answers.2, &answers.3, &answers.4] {
        assert_eq!((told.status, way(told)[0]), (200, "config.targets[1]"));
    }
    let models: Vec<_> = settled(&provider, 6).await.into_iter().map(|entry| entry.model).collect();
    assert_eq!(models.iter().filter(|model| model.contains("503")).count(), 1, "{models:?}");
    let stopped = json!({"step": "stopped", "at": "config.targets[0]", "because": "the breaker lets it try once"});
    let records = rig.records();
    assert_eq!(records.iter().filter(|record| record["decisions"][1] == stopped).count(), 1, "{records:#?}");
}

#[tokio::test]
async fn a_member_of_a_group_is_asked_for_when_its_turn_comes() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut config = guarded(&[json!({"provider": "mock"}), target("status=502"), target("chunks=1")], &touchy());
    config["targets"][0]["cb_config"] = json!({"failure_threshold": 99, "cooldown_interval": 30_000});
    let ask = |behaviour: &str| by_with(&config, CHAT, words(&format!("mock?{behaviour}"), false));
    // While the first is slow, another request closes the second off.
    let (slow, quick) = tokio::join!(rig.send(ask("status=503&first_ms=300")), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        rig.send(ask("status=503")).await
    });
    assert_eq!((way(&slow)[0], way(&quick)[0]), ("config.targets[2]", "config.targets[2]"));
    let models: Vec<_> = settled(&provider, 5).await.into_iter().map(|entry| entry.model).collect();
    assert_eq!(models.iter().filter(|model| model.contains("502")).count(), 1, "{models:?}");
}

#[tokio::test]
async fn what_a_caller_does_wrong_is_no_failure_of_the_target_and_no_success_either() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.max_body_bytes = 2 * 1024 * 1024);
    let config = half_open(&rig, &provider, with_two("loadbalance")).await;
    let form = |feeding: Body| {
        let ask = crate::harness::Ask::new("POST", "/v1/files").header("x-gateway-config", &config.to_string());
        ask.header("content-type", "multipart/form-data; boundary=x").with(feeding)
    };
    let fed = |end: BodyEnd, pieces: usize| {
        let (feeder, reading) = feed_channel(|| ());
        for _ in 0..pieces {
            feeder.push(vec![0; 1024 * 1024].into());
        }
        feeder.finish(end);
        Body::Streamed(reading, None)
    };
    let hurried = || by_with(&config, CHAT, words("mock?first_ms=3000", false));
    let mut tried = 0;
    for _ in 0..60 {
        for (ask, code) in [
            (form(fed(BodyEnd::Disconnected, 1)), "broken_body"),
            (form(fed(BodyEnd::Complete, 3)), "body_too_large"),
            (hurried().header("x-gateway-request-timeout", "5"), "timeout"),
            (hurried().header("x-stainless-timeout", "0.005"), "timeout"),
        ] {
            rig.send(ask).await;
            let record = rig.record();
            if record["last_used_option_index"] == "config.targets[0]" {
                assert_eq!(record["error"], code);
                tried += 1;
            }
        }
        if tried > 12 {
            break;
        }
    }
    // Each of them was let through to try, and left it as it was: one that fails closes it off for as long again.
    assert!(tried > 12, "{tried}");
    assert_eq!(rig.gateway.shared.breakers.open_count(), 1);
    assert_eq!(rig.gateway.record_sink.metrics.breakers_opened.get(), 1);
}

#[tokio::test]
async fn a_caller_in_a_hurry_closes_nothing_off_and_a_slow_target_does() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = json!({"provider": "mock", "request_timeout": 60,
        "cb_config": touchy()});
    let slow = |config: &Value| by_with(config, CHAT, words("mock?first_ms=3000", false));
    for hurry in [("x-gateway-request-timeout", "20"), ("x-stainless-timeout", "0.02")] {
        assert_eq!(rig.send(slow(&config).header(hurry.0, hurry.1)).await.status, 408);
        assert_eq!(rig.gateway.shared.breakers.open_count(), 0, "{hurry:?}");
    }
    // Who waits longer than the config does not make it less of a failure.
    assert_eq!(rig.send(slow(&config).header("x-gateway-request-timeout", "80")).await.status, 408);
    assert_eq!(rig.gateway.shared.breakers.open_count(), 1);
}

#[tokio::test]
async fn what_cannot_be_said_to_a_provider_is_not_its_failure() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let config = json!({"provider": "anthropic", "api_key": "sk", "custom_host": format!("{}/v1", provider.url()),
        "cb_config": touchy()});
    for _ in 0..3 {
        let told = rig.send(by_with(&config, CHAT, r#"{"model":"claude-x","n":3,"messages":[]}"#)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "untranslatable_request"));
        assert_eq!(rig.gateway.shared.breakers.open_count(), 0);
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn nobody_tries_again_where_the_breaker_has_opened_meanwhile() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.retry_backoff_ms = 1);
    let mut config = guarded(&[target("status=503"), target("chunks=1")], &json!({"failure_threshold": 2}));
    config["retry"] = json!({"attempts": 5});
    let told = rig.send(by(&config)).await;
    assert_eq!((told.status, way(&told)[0]), (200, "config.targets[1]"));
    // The third failure is more than two.
    assert_eq!(settled(&provider, 4).await.len(), 4);
    let stopped = json!({"step": "stopped", "at": "config.targets[0]", "because": "the breaker opened"});
    assert!(rig.record()["decisions"].as_array().unwrap().contains(&stopped));
    // Where all are closed off they are tried as often as the config says.
    config["targets"] = json!([target("status=503")]);
    for attempts in [3, 6] {
        let before = provider.ledger_entries().len();
        assert_eq!(rig.send(by(&config)).await.status, 503);
        assert_eq!(settled(&provider, before + attempts).await.len(), before + attempts);
    }
}

#[tokio::test]
async fn in_a_storm_of_failures_it_opens_within_a_second_costs_little_and_recovers_within_five() {
    let ill = Ill::start().await;
    let rig = Rig::at(&ill.provider.url());
    let mut config = guarded(&[target("ill"), target("well")], &json!({"failure_threshold": 4}));
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
    rig.gateway.shared.clock.advance(Duration::from_secs(30));
    let (ended, before) = (Instant::now(), ill.asked().len());
    let answers = storm(&rig, &config, 300, 300).await;
    let back = answers.iter().filter(|(_, _, told)| way(told)[0] == "config.targets[0]").map(|(at, ..)| *at).min();
    assert!(back.unwrap() - ended < Duration::from_secs(5));
    assert!(ill.asked().len() - before > 250);
}
