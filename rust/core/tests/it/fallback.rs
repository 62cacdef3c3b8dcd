//! Fallback through targets until one responds. Covers complete and streamed responses, nested groups and every route.

use std::time::Duration;

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, TestResponse, chat_body, chat_with_config, mock_target,
    pick_fields, post_with_config, routing_headers,
    scripted_server::{SSE_RESPONSE_HEAD, ScriptedServer, read_request, sse_response},
    wait_for_ledger_entries,
};
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

fn fallback_config(targets: &[Value]) -> Value {
    json!({"strategy": {"mode": "fallback"}, "targets": targets})
}

#[tokio::test]
async fn first_good_response_wins_and_is_identified() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway
        .send(chat_with_config(&fallback_config(&[
            mock_target("status=503"),
            mock_target("status=400"),
            mock_target("chunks=1"),
            mock_target("chunks=2"),
        ])))
        .await;
    assert_eq!((response.status, routing_headers(&response)), (200, ["config.targets[2]", "0", "DISABLED"]));
    assert_eq!(response.header("x-should-retry"), None);
    let models: Vec<_> = wait_for_ledger_entries(&provider, 3).await.iter().map(|entry| entry.model.clone()).collect();
    assert_eq!(models, ["mock?status=503", "mock?status=400", "mock?chunks=1"]);
    let record = gateway.single_record();
    assert_eq!(
        pick_fields(&record, ["mode", "last_used_option_index", "ai_model", "retry_success_count"]),
        json!(["fallback", "config.targets[2]", "mock?chunks=1", 0])
    );
    let steps: Vec<_> = record["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| pick_fields(step, ["step", "at", "status", "target"]))
        .collect();
    assert_eq!(
        steps,
        [
            json!(["tried", "config.targets[0]", 503, null]),
            json!(["chose", "config", null, 1]),
            json!(["tried", "config.targets[1]", 400, null]),
            json!(["chose", "config", null, 2]),
            json!(["tried", "config.targets[2]", 200, null]),
        ]
    );
}

#[tokio::test]
async fn returns_last_failure_with_should_retry_false() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response =
        gateway.send(chat_with_config(&fallback_config(&[mock_target("status=503"), mock_target("status=429")]))).await;
    assert_eq!((response.status, routing_headers(&response)), (429, ["config.targets[1]", "0", "DISABLED"]));
    assert_eq!(response.header("x-should-retry"), Some("false"));
    wait_for_ledger_entries(&provider, 2).await;
}

#[tokio::test]
async fn on_status_codes_selects_failures_that_fall_back() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (listed, first, responded) in [
        (json!([429]), "status=429", 200),
        (json!([429]), "status=400", 400),
        // Exactly the listed statuses count, server errors included.
        (json!([429]), "status=500", 500),
        (json!([500]), "status=500", 200),
        (json!([429]), "fault=reset", 200),
        (json!([200]), "chunks=1", 200),
    ] {
        let config = json!({"strategy": {"mode": "fallback", "on_status_codes": listed}, "targets": [mock_target(first), mock_target("chunks=3")]});
        let response = gateway.send(chat_with_config(&config)).await;
        let option = if responded == 200 { "config.targets[1]" } else { "config.targets[0]" };
        assert_eq!(
            (response.status, routing_headers(&response)[0]),
            (responded, option),
            "{first} {}",
            response.text()
        );
    }
}

#[tokio::test]
async fn content_policy_rejection_falls_back_only_if_listed() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let listed = json!({"mode": "fallback", "on_status_codes": [400]});
    for (strategy, code, status) in [
        (json!({"mode": "fallback"}), "content_policy_violation", 400),
        (json!({"mode": "fallback"}), "context_length_exceeded", 200),
        (listed, "content_policy_violation", 200),
    ] {
        let refused = mock_target(&format!("status=400&code={code}"));
        let config = json!({"strategy": strategy, "targets": [refused, mock_target("chunks=1")]});
        let response = gateway.send(chat_with_config(&config)).await;
        assert_eq!(response.status, status, "{config}: {}", response.text());
        assert_eq!(response.text().contains(code), status == 400);
    }
}

#[tokio::test]
async fn falls_back_when_target_does_not_respond() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for first in ["fault=reset", "fault=silence", "fault=short_length", "fault=cut"] {
        let mut silent = mock_target(first);
        silent["request_timeout"] = json!(100);
        let response = gateway.send(chat_with_config(&fallback_config(&[silent, mock_target("chunks=1")]))).await;
        assert_eq!(
            (response.status, routing_headers(&response)[0]),
            (200, "config.targets[1]"),
            "{first}: {}",
            response.text()
        );
    }
    let refused = json!({"provider": "mock", "custom_host": "http://127.0.0.1:1/v1"});
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    assert_eq!(gateway.send(chat_with_config(&fallback_config(&[refused, mock_target("chunks=1")]))).await.status, 200);
}

#[tokio::test]
async fn skips_targets_that_cannot_be_tried() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for unfit in [json!({"provider": "nobody"}), json!({"provider": "@gone"}), json!({"passthrough": true}), json!({})]
    {
        let response =
            gateway.send(chat_with_config(&fallback_config(&[unfit.clone(), mock_target("chunks=1")]))).await;
        assert_eq!((response.status, routing_headers(&response)[0]), (200, "config.targets[1]"), "{unfit}");
        assert_eq!(gateway.single_record()["decisions"][0]["step"], "failed");
    }
}

#[tokio::test]
async fn targets_that_cannot_be_tried_do_not_hide_the_failure_before() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut missing_model = mock_target("chunks=1");
    missing_model["override_params"] = json!({"model": "@gone/x"});
    missing_model.as_object_mut().unwrap().remove("provider");
    let condition = json!([{"query": {"metadata.tier": {"$eq": "gold"}}, "then": "a"}]);
    let mut named_target = mock_target("chunks=1");
    named_target["name"] = "a".into();
    let unmatched = json!({"strategy": {"mode": "conditional", "conditions": condition}, "targets": [named_target]});
    let nested = fallback_config(&[json!({"provider": "@gone"}), json!({})]);
    for missing in [
        json!({"provider": "nobody"}),
        json!({"provider": "@gone"}),
        json!({}),
        json!({"passthrough": true}),
        missing_model,
        unmatched,
        nested,
    ] {
        for (first, status, code) in
            [("status=503", 503, "server_error"), ("fault=reset", 502, "upstream_disconnected")]
        {
            let config = fallback_config(&[json!({}), mock_target(first), missing.clone(), missing.clone()]);
            let response = gateway.send(chat_with_config(&config)).await;
            assert_eq!(
                (response.status, routing_headers(&response)),
                (status, ["config.targets[1]", "0", "DISABLED"]),
                "{missing}: {}",
                response.text()
            );
            let record = gateway.single_record();
            assert_eq!(
                pick_fields(&record, ["response_status_code", "last_used_option_index", "ai_model"]),
                json!([status, "config.targets[1]", format!("mock?{first}")]),
                "{missing}: {record}"
            );
            let steps: Vec<_> = record["decisions"].as_array().unwrap().iter().map(|step| &step["step"]).collect();
            assert!(steps.contains(&&json!("tried")) && steps.contains(&&json!("failed")), "{record}");
            let is_response = code == "server_error";
            assert_eq!(record["outcome"] == "complete", is_response, "{record}");
            assert!(is_response || record["error"] == code, "{record}");
        }
    }
}

#[tokio::test]
async fn failed_stream_falls_back_before_its_first_byte() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for first in ["status=503", "fault=429", "fault=reset"] {
        let response = gateway
            .send(post_with_config(
                &fallback_config(&[mock_target(first), mock_target("chunks=3")]),
                CHAT_PATH,
                chat_body("mock", true),
            ))
            .await;
        assert_eq!((response.status, response.is_streamed, response.is_truncated), (200, true, false), "{first}");
        assert!(response.text().ends_with("data: [DONE]\n\n"), "{first}: {}", response.text());
    }
}

#[tokio::test]
async fn stream_that_ends_before_first_byte_falls_back() {
    let provider = ScriptedServer::start(|mut io, _| async move {
        while let Some(request) = read_request(&mut io).await {
            if String::from_utf8_lossy(&request).contains("first") {
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
        let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.heartbeat_ms = heartbeat);
        let response = gateway
            .send(post_with_config(
                &fallback_config(&[model("first"), model("other")]),
                CHAT_PATH,
                chat_body("m", true),
            ))
            .await;
        assert_eq!((response.status, routing_headers(&response)[0]), (200, "config.targets[1]"), "{heartbeat}");
        assert!(response.text().contains("second") && !response.is_truncated);
    }
}

#[tokio::test]
async fn overloaded_first_event_falls_back_as_529() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut config = fallback_config(&[mock_target("fault=overloaded_first"), mock_target("chunks=2")]);
    config["anthropic_inspect_stream_for_overloaded_error"] = json!(true);
    let response = gateway.send(post_with_config(&config, MESSAGES_PATH, chat_body("mock", true))).await;
    assert_eq!(
        (response.status, routing_headers(&response)[0], response.is_truncated),
        (200, "config.targets[1]", false)
    );
    assert!(response.text().contains("message_stop"), "{}", response.text());
    assert_eq!(gateway.single_record()["decisions"][0]["status"], 529);
}

#[tokio::test]
async fn nests_target_groups_to_any_depth() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut group = fallback_config(&[mock_target("status=500"), mock_target("chunks=1")]);
    for _ in 0..20 {
        group = fallback_config(&[mock_target("status=500"), group]);
    }
    let response = gateway.send(chat_with_config(&group)).await;
    assert_eq!(
        (response.status, routing_headers(&response)[0]),
        (200, format!("config{}.targets[1]", ".targets[1]".repeat(20)).as_str())
    );
    wait_for_ledger_entries(&provider, 22).await;
}

#[tokio::test]
async fn falls_back_on_passthrough_paths() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for path in ["/v1/proxy/chat/completions", "/v1/some/inference"] {
        let response = gateway
            .send(post_with_config(
                &fallback_config(&[mock_target("status=503"), mock_target("chunks=1")]),
                path,
                chat_body("mock", false),
            ))
            .await;
        assert_eq!(
            (response.status, routing_headers(&response)[0]),
            (200, "config.targets[1]"),
            "{path}: {}",
            response.text()
        );
    }
}

/// Sends an upload whose body is still arriving while the gateway forwards it.
async fn send_streamed_upload(gateway: &TestGateway, config: &Value, kind: &str) -> TestResponse {
    let (feeder, reading) = feed_channel(|| ());
    feeder.push(b"some bytes"[..].into());
    let request = TestRequest::new("POST", "/v1/files")
        .header("x-gateway-config", &config.to_string())
        .header("content-type", kind);
    let request = request
        .header("x-mock-status", "503")
        .header("x-gateway-forward-headers", "x-mock-status")
        .with_body(Body::Streamed(reading, None));
    let feeding = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        feeder.finish(BodyEnd::Complete);
    });
    let response = gateway.send(request).await;
    feeding.await.unwrap();
    response
}

#[tokio::test]
async fn streamed_upload_gets_a_single_attempt() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut config = fallback_config(&[json!({"provider": "mock"}), json!({"provider": "mock"})]);
    config["retry"] = json!({"attempts": 2});
    let response = send_streamed_upload(&gateway, &config, "audio/wav").await;
    assert_eq!((response.status, routing_headers(&response)), (503, ["config.targets[0]", "-1", "DISABLED"]));
    assert_eq!(wait_for_ledger_entries(&provider, 1).await.len(), 1);
    let steps = gateway.single_record()["decisions"].clone();
    assert!(steps.to_string().contains("the request body was streamed and cannot be sent again"), "{steps}");
}

#[tokio::test]
async fn unsent_upload_falls_back_to_next_target() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        (settings.retry_backoff_ms, settings.trusted_custom_hosts) = (1, vec!["127.0.0.1".into()]);
    });
    let refused = json!({"provider": "mock", "custom_host": "http://127.0.0.1:1/v1", "retry": {"attempts": 1}});
    let unable = [json!({"provider": "@nobody"}), refused, json!({"provider": "azure-openai"})];
    let config = fallback_config(&[&unable[..], &[json!({"provider": "mock"})]].concat());
    let chunks: Vec<_> = (0..20_u8).map(|number| vec![number; 100_000]).collect();
    for length in [None, Some(2_000_000)] {
        let (feeder, reading) = feed_channel(|| ());
        for chunk in &chunks {
            feeder.push(chunk.clone().into());
        }
        feeder.finish(BodyEnd::Complete);
        let request = TestRequest::new("POST", "/v1/files").header("x-gateway-config", &config.to_string());
        let request = request.header("content-type", "audio/wav").with_body(Body::Streamed(reading, length));
        let response = gateway.send(request).await;
        assert_eq!((response.status, routing_headers(&response)[0]), (200, "config.targets[3]"), "{}", response.text());
        let steps = gateway.single_record()["decisions"].clone();
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
    let gateway = TestGateway::for_provider(&provider);
    let config =
        fallback_config(&[mock_target("fault=silence"), mock_target("fault=silence"), mock_target("chunks=1")]);
    for (name, value) in [("x-stainless-timeout", "0.2"), ("x-stainless-read-timeout", "0.2")] {
        let response = gateway.send(chat_with_config(&config).header(name, value)).await;
        assert_eq!((response.status, response.header("x-should-retry")), (408, Some("false")), "{}", response.text());
    }
    let response = gateway
        .send(
            chat_with_config(&fallback_config(&[mock_target("status=500"), mock_target("chunks=1")]))
                .header("x-stainless-timeout", "NOT_GIVEN"),
        )
        .await;
    assert_eq!(response.status, 200);
}

/// Returns the step that the record lists for the second target of the last request.
fn second_step(gateway: &TestGateway) -> Value {
    let record = gateway.single_record();
    let steps = record["decisions"].as_array().unwrap();
    steps.iter().find(|step| step["at"] == "config.targets[1]").unwrap()["step"].clone()
}

#[tokio::test]
async fn error_with_status_200_is_a_failure() {
    let error = r#"{"error":{"message":"slow down","code":429}}"#;
    let provider = crate::harness::scripted_server::ScriptedServer::start_responding(
        crate::harness::scripted_server::json_response("200 OK", "", error),
    )
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    let response = gateway.send(crate::harness::chat_request("m")).await;
    assert_eq!((response.status, response.text().contains("slow down")), (429, true), "{}", response.text());
    let record = gateway.single_record();
    assert_eq!((&record["is_success"], &record["response_status_code"]), (&json!(false), &json!(429)), "{record}");
    assert!(record["req_units"].is_null() && record["cost_nanodollars"].is_null(), "{record}");
    let target = json!({"provider": "mock", "cache": "simple"});
    let config = json!({"strategy": {"mode": "fallback", "on_status_codes": [429]}, "targets": [target, {"provider": "nobody"}]});
    let response = gateway.send(chat_with_config(&config)).await;
    assert_eq!(second_step(&gateway), "failed", "the second target's turn came: {}", response.text());
    let retried = json!({"provider": "mock", "cache": "simple", "retry": {"attempts": 1}});
    for _ in 0..2 {
        let response = gateway.send(chat_with_config(&retried)).await;
        assert_eq!(
            (response.status, routing_headers(&response)[1..].to_vec()),
            (429, vec!["-1", "MISS"]),
            "{}",
            response.text()
        );
    }
}

#[tokio::test]
async fn an_error_as_first_event_of_a_stream_is_a_failure() {
    let events = "data: {\"error\":{\"message\":\"no capacity\",\"code\":503}}\n\n";
    let provider = crate::harness::scripted_server::ScriptedServer::start_responding(
        crate::harness::scripted_server::sse_response(events.as_bytes(), 4096),
    )
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [{"provider": "mock"}, {"provider": "nobody"}]});
    let response = gateway.send(chat_with_config(&config)).await;
    assert_eq!(second_step(&gateway), "failed", "the second target's turn came: {}", response.text());
    let response = gateway.send(chat_with_config(&json!({"provider": "mock", "retry": {"attempts": 1}}))).await;
    assert!(response.status == 502 && response.text().contains("no capacity"), "{}", response.text());
    // Without another attempt, the client gets the provider's own event.
    let response = gateway.send(crate::harness::chat_request("m")).await;
    assert!(response.status == 200 && response.text().contains("no capacity"), "{}", response.text());
}

#[tokio::test]
async fn a_held_stream_that_stays_silent_is_a_failure() {
    let provider = crate::harness::scripted_server::ScriptedServer::start(|mut io, _| async move {
        while crate::harness::scripted_server::read_request(&mut io).await.is_some() {
            let event = crate::harness::scripted_server::encode_chunks(b"data: {\"choices\":[]}\n\n", 4096);
            let start = [crate::harness::scripted_server::SSE_RESPONSE_HEAD.as_bytes(), &event].concat();
            tokio::io::AsyncWriteExt::write_all(&mut io, &start).await.unwrap();
            std::future::pending::<()>().await;
        }
    })
    .await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.idle_timeout_ms = 100);
    let config = json!({"strategy": {"mode": "fallback"}, "recovery": "hold",
        "targets": [{"provider": "mock"}, {"provider": "nobody"}]});
    let response = gateway.send(chat_with_config(&config)).await;
    assert_eq!(second_step(&gateway), "failed", "the second target's turn came: {}", response.text());
}
