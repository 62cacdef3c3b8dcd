//! Fallback through targets until one responds. Covers complete and streamed responses, nested groups and every route.

use std::time::Duration;

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, TestResponse, chat_body, chat_with_config, mock_target,
    pick_fields, post_with_config, routing_headers,
    scripted::{SSE_RESPONSE_HEAD, ScriptedServer, read_request, sse_response},
    wait_for_ledger_entries,
};
use penstock_core::ingress::body::{Body, BodyEnd, feed_channel};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

fn fallback_config(targets: &[Value]) -> Value {
    json!({"strategy": {"mode": "fallback"}, "targets": targets})
}

#[tokio::test]
async fn first_good_response_wins_and_is_identified() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    let told = rig
        .send(chat_with_config(&fallback_config(&[
            mock_target("status=503"),
            mock_target("status=400"),
            mock_target("chunks=1"),
            mock_target("chunks=2"),
        ])))
        .await;
    assert_eq!((told.status, routing_headers(&told)), (200, ["config.targets[2]", "0", "DISABLED"]));
    assert_eq!(told.header("x-should-retry"), None);
    let models: Vec<_> = wait_for_ledger_entries(&provider, 3).await.iter().map(|entry| entry.model.clone()).collect();
    assert_eq!(models, ["mock?status=503", "mock?status=400", "mock?chunks=1"]);
    let record = rig.single_record();
    assert_eq!(
        pick_fields(&record, ["mode", "last_used_option_index", "ai_model", "retry_success_count"]),
        json!(["fallback", "config.targets[2]", "mock?chunks=1", 0])
    );
    let steps: Vec<_> = record["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| pick_fields(step, ["step", "at", "status"]))
        .collect();
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
async fn returns_last_failure_with_should_retry_false() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    let told =
        rig.send(chat_with_config(&fallback_config(&[mock_target("status=503"), mock_target("status=429")]))).await;
    assert_eq!((told.status, routing_headers(&told)), (429, ["config.targets[1]", "0", "DISABLED"]));
    assert_eq!(told.header("x-should-retry"), Some("false"));
    wait_for_ledger_entries(&provider, 2).await;
}

#[tokio::test]
async fn on_status_codes_selects_failures_that_fall_back() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    for (listed, first, answered) in [
        (json!([429]), "status=429", 200),
        (json!([429]), "status=400", 400),
        (json!([429]), "status=500", 200),
        (json!([429]), "fault=reset", 200),
        (json!([200]), "chunks=1", 200),
    ] {
        let config = json!({"strategy": {"mode": "fallback", "on_status_codes": listed}, "targets": [mock_target(first), mock_target("chunks=3")]});
        let told = rig.send(chat_with_config(&config)).await;
        let option = if answered == 200 && first != "chunks=1" { "config.targets[1]" } else { "config.targets[0]" };
        assert_eq!((told.status, routing_headers(&told)[0]), (answered, option), "{first} {}", told.text());
    }
}

#[tokio::test]
async fn content_policy_rejection_falls_back_only_if_listed() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    let listed = json!({"mode": "fallback", "on_status_codes": [400]});
    for (strategy, code, status) in [
        (json!({"mode": "fallback"}), "content_policy_violation", 400),
        (json!({"mode": "fallback"}), "context_length_exceeded", 200),
        (listed, "content_policy_violation", 200),
    ] {
        let refused = mock_target(&format!("status=400&code={code}"));
        let config = json!({"strategy": strategy, "targets": [refused, mock_target("chunks=1")]});
        let told = rig.send(chat_with_config(&config)).await;
        assert_eq!(told.status, status, "{config}: {}", told.text());
        assert_eq!(told.text().contains(code), status == 400);
    }
}

#[tokio::test]
async fn falls_back_when_target_does_not_respond() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    for first in ["fault=reset", "fault=silence", "fault=short_length", "fault=cut"] {
        let mut silent = mock_target(first);
        silent["request_timeout"] = json!(100);
        let told = rig.send(chat_with_config(&fallback_config(&[silent, mock_target("chunks=1")]))).await;
        assert_eq!((told.status, routing_headers(&told)[0]), (200, "config.targets[1]"), "{first}: {}", told.text());
    }
    let refused = json!({"provider": "mock", "custom_host": "http://127.0.0.1:1/v1"});
    let rig = TestGateway::with_settings(&provider.url(), |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    assert_eq!(rig.send(chat_with_config(&fallback_config(&[refused, mock_target("chunks=1")]))).await.status, 200);
}

#[tokio::test]
async fn skips_targets_that_cannot_be_tried() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    for unfit in [json!({"provider": "nobody"}), json!({"provider": "@gone"}), json!({"passthrough": true}), json!({})]
    {
        let told = rig.send(chat_with_config(&fallback_config(&[unfit.clone(), mock_target("chunks=1")]))).await;
        assert_eq!((told.status, routing_headers(&told)[0]), (200, "config.targets[1]"), "{unfit}");
        assert_eq!(rig.single_record()["decisions"][0]["step"], "failed");
    }
    let told =
        rig.send(chat_with_config(&fallback_config(&[mock_target("status=500"), json!({"provider": "nobody"})]))).await;
    assert_eq!((told.status, told.error_code().as_str()), (400, "invalid_provider"));
}

#[tokio::test]
async fn failed_stream_falls_back_before_its_first_byte() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    for first in ["status=503", "fault=429", "fault=reset"] {
        let told = rig
            .send(post_with_config(
                &fallback_config(&[mock_target(first), mock_target("chunks=3")]),
                CHAT_PATH,
                chat_body("mock", true),
            ))
            .await;
        assert_eq!((told.status, told.is_streamed, told.is_truncated), (200, true, false), "{first}");
        assert!(told.text().ends_with("data: [DONE]\n\n"), "{first}: {}", told.text());
    }
}

#[tokio::test]
async fn stream_that_ends_before_first_byte_falls_back() {
    let provider = ScriptedServer::start(|mut io, _| async move {
        while let Some(asked) = read_request(&mut io).await {
            if String::from_utf8_lossy(&asked).contains("first") {
                let _ = io.write_all(SSE_RESPONSE_HEAD.as_bytes()).await;
                tokio::time::sleep(Duration::from_millis(60)).await;
                return;
            }
            let _ = io.write_all(&sse_response(b"data: {\"second\":1}\n\ndata: [DONE]\n\n", 64)).await;
        }
    })
    .await;
    let model = |name: &str| json!({"provider": "mock", "override_params": {"model": name}});
    // Falls back for any heartbeat interval, and with heartbeats off.
    for heartbeat in [0, 20, 15_000] {
        let rig = TestGateway::with_settings(&provider.url(), |settings| settings.heartbeat_ms = heartbeat);
        let told = rig
            .send(post_with_config(
                &fallback_config(&[model("first"), model("other")]),
                CHAT_PATH,
                chat_body("m", true),
            ))
            .await;
        assert_eq!((told.status, routing_headers(&told)[0]), (200, "config.targets[1]"), "{heartbeat}");
        assert!(told.text().contains("second") && !told.is_truncated);
    }
}

#[tokio::test]
async fn overloaded_first_event_falls_back_as_529() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    let mut config = fallback_config(&[mock_target("fault=overloaded_first"), mock_target("chunks=2")]);
    config["anthropic_inspect_stream_for_overloaded_error"] = json!(true);
    let told = rig.send(post_with_config(&config, MESSAGES_PATH, chat_body("mock", true))).await;
    assert_eq!((told.status, routing_headers(&told)[0], told.is_truncated), (200, "config.targets[1]", false));
    assert!(told.text().contains("message_stop"), "{}", told.text());
    assert_eq!(rig.single_record()["decisions"][0]["status"], 529);
}

#[tokio::test]
async fn nests_target_groups_to_any_depth() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    let mut group = fallback_config(&[mock_target("status=500"), mock_target("chunks=1")]);
    for _ in 0..20 {
        group = fallback_config(&[mock_target("status=500"), group]);
    }
    let told = rig.send(chat_with_config(&group)).await;
    assert_eq!(
        (told.status, routing_headers(&told)[0]),
        (200, format!("config{}.targets[1]", ".targets[1]".repeat(20)).as_str())
    );
    wait_for_ledger_entries(&provider, 22).await;
}

#[tokio::test]
async fn falls_back_on_passthrough_paths() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    for path in ["/v1/proxy/chat/completions", "/v1/some/inference"] {
        let told = rig
            .send(post_with_config(
                &fallback_config(&[mock_target("status=503"), mock_target("chunks=1")]),
                path,
                chat_body("mock", false),
            ))
            .await;
        assert_eq!((told.status, routing_headers(&told)[0]), (200, "config.targets[1]"), "{path}: {}", told.text());
    }
}

/// Sends an upload whose body is still arriving while the gateway forwards it.
async fn send_streamed_upload(rig: &TestGateway, config: &Value, kind: &str) -> TestResponse {
    let (feeder, reading) = feed_channel(|| ());
    feeder.push(b"some bytes"[..].into());
    let ask = TestRequest::new("POST", "/v1/files")
        .header("x-gateway-config", &config.to_string())
        .header("content-type", kind);
    let ask = ask
        .header("x-mock-status", "503")
        .header("x-gateway-forward-headers", "x-mock-status")
        .with_body(Body::Streamed(reading, None));
    let feeding = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        feeder.finish(BodyEnd::Complete);
    });
    let told = rig.send(ask).await;
    feeding.await.unwrap();
    told
}

#[tokio::test]
async fn streamed_upload_gets_a_single_attempt() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    let mut config = fallback_config(&[json!({"provider": "mock"}), json!({"provider": "mock"})]);
    config["retry"] = json!({"attempts": 2});
    let told = send_streamed_upload(&rig, &config, "audio/wav").await;
    assert_eq!((told.status, routing_headers(&told)), (503, ["config.targets[0]", "-1", "DISABLED"]));
    assert_eq!(wait_for_ledger_entries(&provider, 1).await.len(), 1);
    let steps = rig.single_record()["decisions"].clone();
    assert!(steps.to_string().contains("the request body was streamed and cannot be sent again"), "{steps}");
}

#[tokio::test]
async fn unsent_upload_falls_back_to_next_target() {
    let provider = Server::start().await;
    let rig = TestGateway::with_settings(&provider.url(), |settings| {
        (settings.retry_backoff_ms, settings.trusted_custom_hosts) = (1, vec!["127.0.0.1".into()]);
    });
    let refused = json!({"provider": "mock", "custom_host": "http://127.0.0.1:1/v1", "retry": {"attempts": 1}});
    let unable = [json!({"provider": "@nobody"}), refused, json!({"provider": "azure-openai"})];
    let config = fallback_config(&[&unable[..], &[json!({"provider": "mock"})]].concat());
    let pieces: Vec<_> = (0..20_u8).map(|number| vec![number; 100_000]).collect();
    for length in [None, Some(2_000_000)] {
        let (feeder, reading) = feed_channel(|| ());
        for piece in &pieces {
            feeder.push(piece.clone().into());
        }
        feeder.finish(BodyEnd::Complete);
        let ask = TestRequest::new("POST", "/v1/files").header("x-gateway-config", &config.to_string());
        let ask = ask.header("content-type", "audio/wav").with_body(Body::Streamed(reading, length));
        let told = rig.send(ask).await;
        assert_eq!((told.status, routing_headers(&told)[0]), (200, "config.targets[3]"), "{}", told.text());
        let steps = rig.single_record()["decisions"].clone();
        let tried = steps.as_array().unwrap().iter().filter(|step| step["step"] == "tried");
        assert_eq!(tried.count(), 3, "{steps}");
    }
    for entry in wait_for_ledger_entries(&provider, 2).await {
        assert_eq!(entry.body_bytes, 2_000_000);
    }
}

#[tokio::test]
async fn client_timeout_bounds_all_fallback_attempts() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    let config =
        fallback_config(&[mock_target("fault=silence"), mock_target("fault=silence"), mock_target("chunks=1")]);
    for (name, value) in [("x-stainless-timeout", "0.2"), ("x-stainless-read-timeout", "0.2")] {
        let told = rig.send(chat_with_config(&config).header(name, value)).await;
        assert_eq!((told.status, told.header("x-should-retry")), (408, Some("false")), "{}", told.text());
    }
    let told = rig
        .send(
            chat_with_config(&fallback_config(&[mock_target("status=500"), mock_target("chunks=1")]))
                .header("x-stainless-timeout", "NOT_GIVEN"),
        )
        .await;
    assert_eq!(told.status, 200);
}
