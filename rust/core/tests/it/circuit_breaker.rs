//! Circuit breakers of targets. A target that fails too often is skipped; if all breakers are open, all targets are
//! tried.

use std::{sync::atomic::Ordering, time::Duration};

use crate::harness::{
    CHAT_PATH, TestGateway, chat_body, chat_with_config,
    failing_provider::{FailingProvider, send_at_rate},
    mock_target, post_with_config, routing_headers, sensitive_breaker_config, wait_for_ledger_entries,
};
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::{Value, json};

fn config_with_breaker(targets: &[Value], more: &Value) -> Value {
    let mut breaker = json!({"failure_threshold": 1, "cooldown_interval": 30_000});
    breaker.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"strategy": {"mode": "fallback", "cb_config": breaker}, "targets": targets})
}

#[tokio::test]
async fn skips_target_with_open_breaker() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = config_with_breaker(&[mock_target("status=503"), mock_target("chunks=1")], &json!({}));
    for _ in 0..6 {
        let response = gateway.send(chat_with_config(&config)).await;
        assert_eq!((response.status, routing_headers(&response)[0]), (200, "config.targets[1]"));
    }
    let models: Vec<_> = wait_for_ledger_entries(&provider, 8).await.into_iter().map(|entry| entry.model).collect();
    assert_eq!(models.iter().filter(|model| model.as_str() == "mock?status=503").count(), 2);
    let skipped = json!({"step": "skipped", "at": "config.targets[0]", "breaker": "open"});
    assert_eq!(gateway.drain_records().iter().filter(|record| record["decisions"][0] == skipped).count(), 4);
}

#[tokio::test]
async fn tries_all_targets_when_all_breakers_are_open() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config =
        config_with_breaker(&[mock_target("status=503"), mock_target("status=502")], &sensitive_breaker_config());
    for _ in 0..3 {
        assert_eq!(gateway.send(chat_with_config(&config)).await.status, 502);
    }
    wait_for_ledger_entries(&provider, 6).await;
}

#[tokio::test]
async fn load_balances_among_targets_with_closed_breakers() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut config =
        config_with_breaker(&[mock_target("status=503"), mock_target("chunks=1")], &sensitive_breaker_config());
    config["strategy"]["mode"] = json!("loadbalance");
    let mut failed = 0;
    for _ in 0..40 {
        failed += usize::from(gateway.send(chat_with_config(&config)).await.status == 503);
    }
    assert_eq!(failed, 1);
}

#[tokio::test]
async fn never_selects_zero_weight_target_when_others_are_open() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut config =
        config_with_breaker(&[mock_target("status=503"), mock_target("chunks=1")], &sensitive_breaker_config());
    config["strategy"]["mode"] = json!("loadbalance");
    config["targets"][1]["weight"] = json!(0);
    for _ in 0..3 {
        let response = Box::pin(crate::harness::with_timeout(gateway.send(chat_with_config(&config)))).await;
        assert_eq!((response.status, routing_headers(&response)[0]), (503, "config.targets[0]"));
    }
}

#[tokio::test]
async fn ignores_429_and_keeps_breakers_per_config() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config =
        config_with_breaker(&[mock_target("status=429"), mock_target("chunks=1")], &sensitive_breaker_config());
    for _ in 0..3 {
        gateway.send(chat_with_config(&config)).await;
    }
    wait_for_ledger_entries(&provider, 6).await;
    let broken = |note: &str| {
        let mut config =
            config_with_breaker(&[mock_target("status=503"), mock_target("chunks=1")], &sensitive_breaker_config());
        config["note"] = json!(note);
        config
    };
    for note in ["a", "b"] {
        gateway.send(chat_with_config(&broken(note))).await;
    }
    wait_for_ledger_entries(&provider, 10).await;
}

#[tokio::test]
async fn saved_config_keeps_its_breaker_across_snapshots() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config =
        config_with_breaker(&[mock_target("status=503"), mock_target("chunks=1")], &sensitive_breaker_config());
    for (epoch, name) in [("1", "pc-1"), ("2", "pc-1"), ("3", "c-1")] {
        gateway.apply_snapshot(&json!({"epoch": epoch, "configs": [{"id": "c-1", "slug": "pc-1", "config": config}]}));
        let request = crate::harness::post_request(crate::harness::CHAT_PATH, crate::harness::chat_body("mock", false))
            .header("x-gateway-config", name);
        assert_eq!(gateway.send(request).await.status, 200);
    }
    wait_for_ledger_entries(&provider, 4).await;
}

#[tokio::test]
async fn passthrough_target_has_one_breaker_per_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let saved = |slug: &str| json!({"slug": slug, "provider": "mock"});
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [saved("one"), saved("two")]}));
    let config =
        config_with_breaker(&[json!({"passthrough": true}), mock_target("chunks=1")], &sensitive_breaker_config());
    let build_request = |provider_name: &str, model: &str| {
        post_with_config(&config, CHAT_PATH, chat_body(&format!("@{provider_name}/{model}"), false))
    };
    for (provider_name, model, responses) in [("one", "mock?status=503", 1), ("one", "mock", 1), ("two", "mock", 0)] {
        let response = gateway.send(build_request(provider_name, model)).await;
        assert_eq!(
            routing_headers(&response)[0],
            format!("config.targets[{responses}]"),
            "{provider_name}: {}",
            response.text()
        );
    }
}

/// Returns a config whose first target failed and now has a half-open breaker.
async fn prepare_half_open_breaker(gateway: &TestGateway, provider: &Server, mut config: Value) -> Value {
    // The request's model sets the target's behaviour, so the config and its breakers stay the same.
    config["targets"][0] = json!({"provider": "mock"});
    while gateway.state.shared.breakers.open_count() == 0 {
        gateway.send(post_with_config(&config, CHAT_PATH, chat_body("mock?status=503", false))).await;
    }
    assert_eq!(gateway.state.shared.breakers.open_count(), 1);
    gateway.state.shared.clock.advance(Duration::from_secs(30));
    provider.clear_ledger();
    gateway.drain_records();
    config
}

fn two_target_config(mode: &str) -> Value {
    json!({"strategy": {"mode": mode, "cb_config": sensitive_breaker_config()},
        "retry": {"attempts": 2, "on_status_codes": [503]},
        "targets": [{}, {"provider": "mock", "override_params": {"model": "mock?chunks=1"}}]})
}

#[tokio::test]
async fn half_open_breaker_allows_a_single_attempt() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.retry_backoff_ms = 1);
    let config = prepare_half_open_breaker(&gateway, &provider, two_target_config("fallback")).await;
    let send_request =
        || gateway.send(post_with_config(&config, CHAT_PATH, chat_body("mock?status=503&first_ms=200", false)));
    let responses = tokio::join!(send_request(), send_request(), send_request(), send_request(), send_request());
    for response in [&responses.0, &responses.1, &responses.2, &responses.3, &responses.4] {
        assert_eq!((response.status, routing_headers(response)[0]), (200, "config.targets[1]"));
    }
    let models: Vec<_> = wait_for_ledger_entries(&provider, 6).await.into_iter().map(|entry| entry.model).collect();
    assert_eq!(models.iter().filter(|model| model.contains("503")).count(), 1, "{models:?}");
    let stopped = json!({"step": "stopped", "at": "config.targets[0]", "reason": "the half-open circuit breaker allows one attempt"});
    let records = gateway.drain_records();
    assert_eq!(records.iter().filter(|record| record["decisions"][1] == stopped).count(), 1, "{records:#?}");
}

#[tokio::test]
async fn checks_breaker_when_fallback_reaches_the_target() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut config = config_with_breaker(
        &[json!({"provider": "mock"}), mock_target("status=502"), mock_target("chunks=1")],
        &sensitive_breaker_config(),
    );
    config["targets"][0]["cb_config"] = json!({"failure_threshold": 99, "cooldown_interval": 30_000});
    let build_request =
        |behaviour: &str| post_with_config(&config, CHAT_PATH, chat_body(&format!("mock?{behaviour}"), false));
    // While the first target is slow, another request opens the second target's breaker.
    let (slow, quick) = tokio::join!(gateway.send(build_request("status=503&first_ms=300")), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        gateway.send(build_request("status=503")).await
    });
    assert_eq!((routing_headers(&slow)[0], routing_headers(&quick)[0]), ("config.targets[2]", "config.targets[2]"));
    let models: Vec<_> = wait_for_ledger_entries(&provider, 5).await.into_iter().map(|entry| entry.model).collect();
    assert_eq!(models.iter().filter(|model| model.contains("502")).count(), 1, "{models:?}");
}

#[tokio::test]
async fn client_errors_leave_half_open_breaker_unchanged() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.max_body_bytes = 2 * 1024 * 1024);
    let config = prepare_half_open_breaker(&gateway, &provider, two_target_config("loadbalance")).await;
    let form = |feeding: Body| {
        let request =
            crate::harness::TestRequest::new("POST", "/v1/files").header("x-gateway-config", &config.to_string());
        request.header("content-type", "multipart/form-data; boundary=x").with_body(feeding)
    };
    let fed = |end: BodyEnd, chunks: usize| {
        let (feeder, reading) = feed_channel(|| ());
        for _ in 0..chunks {
            feeder.push(vec![0; 1024 * 1024].into());
        }
        feeder.finish(end);
        Body::Streamed(reading, None)
    };
    let hurried = || post_with_config(&config, CHAT_PATH, chat_body("mock?first_ms=3000", false));
    let mut tried = 0;
    for _ in 0..60 {
        for (request, code) in [
            (form(fed(BodyEnd::Disconnected, 1)), "incomplete_body"),
            (form(fed(BodyEnd::Complete, 3)), "body_too_large"),
            (hurried().header("x-gateway-request-timeout", "5"), "timeout"),
            (hurried().header("x-stainless-timeout", "0.005"), "timeout"),
        ] {
            gateway.send(request).await;
            let record = gateway.single_record();
            if record["last_used_option_index"] == "config.targets[0]" {
                assert_eq!(record["error"], code);
                tried += 1;
            }
        }
        if tried > 12 {
            break;
        }
    }
    // Each of these requests tried the target and left its breaker half-open. A failed attempt would open it for
    // another full cooldown.
    assert!(tried > 12, "{tried}");
    assert_eq!(gateway.state.shared.breakers.open_count(), 1);
    assert_eq!(gateway.state.record_sink.metrics.breakers_opened.get(), 1);
}

#[tokio::test]
async fn slow_target_opens_breaker_but_client_timeout_does_not() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = json!({"provider": "mock", "request_timeout": 60,
        "cb_config": sensitive_breaker_config()});
    let slow = |config: &Value| post_with_config(config, CHAT_PATH, chat_body("mock?first_ms=3000", false));
    for hurry in [("x-gateway-request-timeout", "20"), ("x-stainless-timeout", "0.02")] {
        assert_eq!(gateway.send(slow(&config).header(hurry.0, hurry.1)).await.status, 408);
        assert_eq!(gateway.state.shared.breakers.open_count(), 0, "{hurry:?}");
    }
    // A client timeout longer than the config's does not prevent the failure from counting.
    assert_eq!(gateway.send(slow(&config).header("x-gateway-request-timeout", "80")).await.status, 408);
    assert_eq!(gateway.state.shared.breakers.open_count(), 1);
}

#[tokio::test]
async fn untranslatable_request_does_not_open_breaker() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let config = json!({"provider": "anthropic", "api_key": "sk", "custom_host": format!("{}/v1", provider.url()),
        "cb_config": sensitive_breaker_config()});
    for _ in 0..3 {
        let response =
            gateway.send(post_with_config(&config, CHAT_PATH, r#"{"model":"claude-x","n":3,"messages":[]}"#)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "untranslatable_request"));
        assert_eq!(gateway.state.shared.breakers.open_count(), 0);
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn stops_retrying_when_breaker_opens() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.retry_backoff_ms = 1);
    let mut config =
        config_with_breaker(&[mock_target("status=503"), mock_target("chunks=1")], &json!({"failure_threshold": 2}));
    config["retry"] = json!({"attempts": 5});
    let response = gateway.send(chat_with_config(&config)).await;
    assert_eq!((response.status, routing_headers(&response)[0]), (200, "config.targets[1]"));
    // The third failure exceeds the threshold of two.
    assert_eq!(wait_for_ledger_entries(&provider, 4).await.len(), 4);
    let stopped = json!({"step": "stopped", "at": "config.targets[0]", "reason": "the circuit breaker opened"});
    assert!(gateway.single_record()["decisions"].as_array().unwrap().contains(&stopped));
    // If all breakers are open, targets are tried as often as the config says.
    config["targets"] = json!([mock_target("status=503")]);
    for attempts in [3, 6] {
        let before = provider.ledger_entries().len();
        assert_eq!(gateway.send(chat_with_config(&config)).await.status, 503);
        assert_eq!(wait_for_ledger_entries(&provider, before + attempts).await.len(), before + attempts);
    }
}

/// The times of both changes are measured in `tests/figures`.
#[tokio::test]
async fn opens_under_load_and_recovers_after_the_cooldown() {
    let failing_provider = FailingProvider::start().await;
    let gateway = TestGateway::for_url(&failing_provider.server.url());
    let mut config = config_with_breaker(&[mock_target("ill"), mock_target("well")], &json!({"failure_threshold": 4}));
    config["retry"] = json!({"attempts": 3, "on_status_codes": [503]});
    let responses = send_at_rate(&gateway, &config, 300, 600).await;
    assert!(responses.iter().all(|(_, _, response)| response.status == 200));
    assert_eq!(gateway.state.shared.breakers.open_count(), 1);
    // From here on the provider does not fail any more, and the cooldown of the breaker passes.
    failing_provider.is_failing.store(false, Ordering::Relaxed);
    gateway.state.shared.clock.advance(Duration::from_secs(30));
    let responses = send_at_rate(&gateway, &config, 300, 300).await;
    assert!(responses.iter().any(|(_, _, response)| routing_headers(response)[0] == "config.targets[0]"));
    assert_eq!(gateway.state.shared.breakers.open_count(), 0);
}
