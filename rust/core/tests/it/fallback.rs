//! One target after the other until one answers: whole or streamed, nested or not, on every route.

use std::time::Duration;

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, Told, by, by_with, pick,
    scripted::{EVENTS_HEAD, Scripted, events, request},
    settled, target, way, words,
};
use penstock_core::ingress::body::{Body, BodyEnd, feed_channel};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

fn fallback(targets: &[Value]) -> Value {
    json!({"strategy": {"mode": "fallback"}, "targets": targets})
}

#[tokio::test]
async fn the_first_good_answer_counts_and_says_where_it_came_from() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig
        .send(by(&fallback(&[target("status=503"), target("status=400"), target("chunks=1"), target("chunks=2")])))
        .await;
    assert_eq!((told.status, way(&told)), (200, ["config.targets[2]", "0", "DISABLED"]));
    assert_eq!(told.header("x-should-retry"), None);
    let models: Vec<_> = settled(&provider, 3).await.iter().map(|entry| entry.model.clone()).collect();
    assert_eq!(models, ["mock?status=503", "mock?status=400", "mock?chunks=1"]);
    let record = rig.record();
    assert_eq!(
        pick(&record, ["mode", "last_used_option_index", "ai_model", "retry_success_count"]),
        json!(["fallback", "config.targets[2]", "mock?chunks=1", 0])
    );
    let steps: Vec<_> =
        record["decisions"].as_array().unwrap().iter().map(|step| pick(step, ["step", "at", "status"])).collect();
    assert_eq!(
        steps,
        [
            json!(["tried", "config.targets[0]", 503]),
            json!(["tried", "config.targets[1]", 400]),
            json!(["tried", "config.targets[2]", 200]),
        ]
    );
}

#[tokio::test]
async fn the_last_answer_is_given_whatever_it_is_and_no_client_needs_to_repeat_it() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(by(&fallback(&[target("status=503"), target("status=429")]))).await;
    assert_eq!((told.status, way(&told)), (429, ["config.targets[1]", "0", "DISABLED"]));
    assert_eq!(told.header("x-should-retry"), Some("false"));
    settled(&provider, 2).await;
}

#[tokio::test]
async fn a_list_says_which_refusals_count() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (listed, first, answered) in [
        (json!([429]), "status=429", 200),
        (json!([429]), "status=400", 400),
        (json!([429]), "status=500", 200),
        (json!([429]), "fault=reset", 200),
        (json!([200]), "chunks=1", 200),
    ] {
        let config = json!({"strategy": {"mode": "fallback", "on_status_codes": listed}, "targets": [target(first), target("chunks=3")]});
        let told = rig.send(by(&config)).await;
        let option = if answered == 200 && first != "chunks=1" { "config.targets[1]" } else { "config.targets[0]" };
        assert_eq!((told.status, way(&told)[0]), (answered, option), "{first} {}", told.text());
    }
}

#[tokio::test]
async fn what_a_providers_policy_refuses_is_asked_of_nobody_else_unless_its_status_is_listed() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let listed = json!({"mode": "fallback", "on_status_codes": [400]});
    for (strategy, code, status) in [
        (json!({"mode": "fallback"}), "content_policy_violation", 400),
        (json!({"mode": "fallback"}), "context_length_exceeded", 200),
        (listed, "content_policy_violation", 200),
    ] {
        let refused = target(&format!("status=400&code={code}"));
        let config = json!({"strategy": strategy, "targets": [refused, target("chunks=1")]});
        let told = rig.send(by(&config)).await;
        assert_eq!(told.status, status, "{config}: {}", told.text());
        assert_eq!(told.text().contains(code), status == 400);
    }
}

#[tokio::test]
async fn what_never_answers_has_failed() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for first in ["fault=reset", "fault=silence", "fault=short_length", "fault=cut"] {
        let mut silent = target(first);
        silent["request_timeout"] = json!(100);
        let told = rig.send(by(&fallback(&[silent, target("chunks=1")]))).await;
        assert_eq!((told.status, way(&told)[0]), (200, "config.targets[1]"), "{first}: {}", told.text());
    }
    let refused = json!({"provider": "mock", "custom_host": "http://127.0.0.1:1/v1"});
    let rig = Rig::with(&provider.url(), |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    assert_eq!(rig.send(by(&fallback(&[refused, target("chunks=1")]))).await.status, 200);
}

#[tokio::test]
async fn a_target_that_cannot_be_tried_is_passed_over() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for unfit in [json!({"provider": "nobody"}), json!({"provider": "@gone"}), json!({"passthrough": true}), json!({})]
    {
        let told = rig.send(by(&fallback(&[unfit.clone(), target("chunks=1")]))).await;
        assert_eq!((told.status, way(&told)[0]), (200, "config.targets[1]"), "{unfit}");
        assert_eq!(rig.record()["decisions"][0]["step"], "failed");
    }
    let told = rig.send(by(&fallback(&[target("status=500"), json!({"provider": "nobody"})]))).await;
    assert_eq!((told.status, told.code().as_str()), (400, "invalid_provider"));
}

#[tokio::test]
async fn a_stream_that_fails_before_its_first_byte_falls_back() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for first in ["status=503", "fault=429", "fault=reset"] {
        let told = rig.send(by_with(&fallback(&[target(first), target("chunks=3")]), CHAT, words("mock", true))).await;
        assert_eq!((told.status, told.streamed, told.cut), (200, true, false), "{first}");
        assert!(told.text().ends_with("data: [DONE]\n\n"), "{first}: {}", told.text());
    }
}

#[tokio::test]
async fn a_stream_that_ends_before_its_first_byte_falls_back() {
    let provider = Scripted::start(|mut io, _| async move {
        while let Some(asked) = request(&mut io).await {
            if String::from_utf8_lossy(&asked).contains("first") {
                let _ = io.write_all(EVENTS_HEAD.as_bytes()).await;
                tokio::time::sleep(Duration::from_millis(60)).await;
                return;
            }
            let _ = io.write_all(&events(b"data: {\"second\":1}\n\ndata: [DONE]\n\n", 64)).await;
        }
    })
    .await;
    let model = |name: &str| json!({"provider": "mock", "override_params": {"model": name}});
    // However soon a caller hears that a stream lives, or never.
    for heartbeat in [0, 20, 15_000] {
        let rig = Rig::with(&provider.url(), |settings| settings.heartbeat_ms = heartbeat);
        let told = rig.send(by_with(&fallback(&[model("first"), model("other")]), CHAT, words("m", true))).await;
        assert_eq!((told.status, way(&told)[0]), (200, "config.targets[1]"), "{heartbeat}");
        assert!(told.text().contains("second") && !told.cut);
    }
}

#[tokio::test]
async fn an_overloaded_first_event_falls_back_as_a_529() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut config = fallback(&[target("fault=overloaded_first"), target("chunks=2")]);
    config["anthropic_inspect_stream_for_overloaded_error"] = json!(true);
    let told = rig.send(by_with(&config, MESSAGES, words("mock", true))).await;
    assert_eq!((told.status, way(&told)[0], told.cut), (200, "config.targets[1]", false));
    assert!(told.text().contains("message_stop"), "{}", told.text());
    assert_eq!(rig.record()["decisions"][0]["status"], 529);
}

#[tokio::test]
async fn groups_stand_within_groups_to_any_depth() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut group = fallback(&[target("status=500"), target("chunks=1")]);
    for _ in 0..20 {
        group = fallback(&[target("status=500"), group]);
    }
    let told = rig.send(by(&group)).await;
    assert_eq!((told.status, way(&told)[0]), (200, format!("config{}.targets[1]", ".targets[1]".repeat(20)).as_str()));
    settled(&provider, 22).await;
}

#[tokio::test]
async fn it_holds_on_paths_that_are_passed_through() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for path in ["/v1/proxy/chat/completions", "/v1/some/inference"] {
        let told =
            rig.send(by_with(&fallback(&[target("status=503"), target("chunks=1")]), path, words("mock", false))).await;
        assert_eq!((told.status, way(&told)[0]), (200, "config.targets[1]"), "{path}: {}", told.text());
    }
}

/// An upload that arrives while it is sent on.
async fn upload(rig: &Rig, config: &Value, kind: &str) -> Told {
    let (feeder, reading) = feed_channel(|| ());
    feeder.push(b"some bytes"[..].into());
    let ask =
        Ask::new("POST", "/v1/files").header("x-gateway-config", &config.to_string()).header("content-type", kind);
    let ask = ask
        .header("x-mock-status", "503")
        .header("x-gateway-forward-headers", "x-mock-status")
        .with(Body::Streamed(reading, None));
    let feeding = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        feeder.finish(BodyEnd::Complete);
    });
    let told = rig.send(ask).await;
    feeding.await.unwrap();
    told
}

#[tokio::test]
async fn an_upload_that_is_sent_on_as_it_comes_has_one_attempt() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut config = fallback(&[json!({"provider": "mock"}), json!({"provider": "mock"})]);
    config["retry"] = json!({"attempts": 2});
    let told = upload(&rig, &config, "audio/wav").await;
    assert_eq!((told.status, way(&told)), (503, ["config.targets[0]", "-1", "DISABLED"]));
    assert_eq!(settled(&provider, 1).await.len(), 1);
    let steps = rig.record()["decisions"].clone();
    assert!(steps.to_string().contains("the body was sent as it came and is gone"), "{steps}");
}

#[tokio::test]
async fn an_upload_of_which_nothing_was_sent_goes_to_the_next() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| {
        (settings.retry_backoff_ms, settings.trusted_custom_hosts) = (1, vec!["127.0.0.1".into()]);
    });
    let refused = json!({"provider": "mock", "custom_host": "http://127.0.0.1:1/v1", "retry": {"attempts": 1}});
    let unable = [json!({"provider": "@nobody"}), refused, json!({"provider": "azure-openai"})];
    let config = fallback(&[&unable[..], &[json!({"provider": "mock"})]].concat());
    let pieces: Vec<_> = (0..20_u8).map(|number| vec![number; 100_000]).collect();
    for length in [None, Some(2_000_000)] {
        let (feeder, reading) = feed_channel(|| ());
        for piece in &pieces {
            feeder.push(piece.clone().into());
        }
        feeder.finish(BodyEnd::Complete);
        let ask = Ask::new("POST", "/v1/files").header("x-gateway-config", &config.to_string());
        let ask = ask.header("content-type", "audio/wav").with(Body::Streamed(reading, length));
        let told = rig.send(ask).await;
        assert_eq!((told.status, way(&told)[0]), (200, "config.targets[3]"), "{}", told.text());
        let steps = rig.record()["decisions"].clone();
        let tried = steps.as_array().unwrap().iter().filter(|step| step["step"] == "tried");
        assert_eq!(tried.count(), 3, "{steps}");
    }
    for entry in settled(&provider, 2).await {
        assert_eq!(entry.body_bytes, 2_000_000);
    }
}

#[tokio::test]
async fn a_caller_whose_time_is_up_is_not_kept_waiting_by_further_targets() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = fallback(&[target("fault=silence"), target("fault=silence"), target("chunks=1")]);
    for (name, value) in [("x-stainless-timeout", "0.2"), ("x-stainless-read-timeout", "0.2")] {
        let start = std::time::Instant::now();
        let told = rig.send(by(&config).header(name, value)).await;
        assert_eq!((told.status, told.header("x-should-retry")), (408, Some("false")), "{}", told.text());
        assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    }
    let told = rig
        .send(by(&fallback(&[target("status=500"), target("chunks=1")])).header("x-stainless-timeout", "NOT_GIVEN"))
        .await;
    assert_eq!(told.status, 200);
}
