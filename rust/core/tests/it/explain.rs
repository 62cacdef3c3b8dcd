//! Explanation of routing decisions: before a request is sent, or in a response header afterwards.

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, chat_body, chat_with_config, get_request, mock_target, pick_fields,
    post_request, post_with_config, sensitive_breaker_config,
};
use penstock_mock::Server;
use serde_json::{Map, Value, json};

fn explain_request(request: &Value) -> TestRequest {
    TestRequest::new("POST", "/v1/explain").header("content-type", "application/json").body(request.to_string())
}

fn hypothetical_request(config: &Value, body: &Value) -> Value {
    json!({"path": CHAT_PATH, "headers": {"x-gateway-config": config.to_string(), "x-gateway-metadata": r#"{"plan":"paid"}"#,
        "authorization": "Bearer sk-caller"}, "body": body})
}

#[tokio::test]
async fn explains_all_targets_in_order_with_their_requests() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let inner = json!({"name": "paid", "strategy": {"mode": "fallback"}, "retry": {"attempts": 2}, "request_timeout": 50, "targets": [
        {"provider": "mock", "override_params": {"model": "a"}, "default_params": {"seed": 7}, "drop_params": ["user"]},
        {"provider": "mock", "api_key": "sk-stored", "cache": "simple",
            "cb_config": sensitive_breaker_config()},
        {"provider": "nobody"}]});
    let config = json!({"strategy": {"mode": "conditional", "default": "paid",
        "conditions": [{"query": {"metadata.plan": "paid"}, "then": "paid"}]}, "targets": [inner]});
    let response =
        gateway.send(explain_request(&hypothetical_request(&config, &json!({"model": "m", "user": "u"})))).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let body = response.json();
    assert_eq!(body["strategy"], "conditional");
    assert_eq!(
        body["decisions"],
        json!([{"step": "chose", "at": "config", "strategy": "conditional", "target": 0, "condition": 0}])
    );
    let names = ["target", "provider", "model", "body", "timeout_ms", "retries", "breaker"];
    assert_eq!(
        pick_fields(&body["targets"][0], names),
        json!(["config.targets[0].targets[0]", "mock", "a", {"model": "a", "seed": 7}, 50, 2, null])
    );
    let second = &body["targets"][1];
    assert_eq!(pick_fields(second, ["model", "retries", "breaker", "has_credential"]), json!(["m", 2, "closed", true]));
    assert_eq!((&second["cache"]["status"], second["cache"]["key"].as_str().unwrap().len()), (&json!("miss"), 64));
    assert_eq!(
        pick_fields(&body["targets"][2], ["target", "error"]),
        json!(["config.targets[0].targets[2]", "invalid_provider"])
    );
    assert!(!response.text().contains("sk-"), "{}", response.text());
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn reads_websocket_model_from_query() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = json!({"provider": "mock", "api_key": "sk-1", "override_params": {"model": "b"}});
    let plain = json!({"provider": "mock", "api_key": "sk-1"});
    for (path, upgrade) in [("/v1/realtime?model=a", None), ("/v1/responses?model=a", Some("websocket"))] {
        for (config, model) in [(&plain, "a"), (&config, "b")] {
            let mut headers = json!({"x-gateway-config": config.to_string()});
            if let Some(kind) = upgrade {
                headers["Upgrade"] = kind.into();
            }
            let response =
                gateway.send(explain_request(&json!({"method": "GET", "path": path, "headers": headers}))).await;
            let actual = pick_fields(&response.json()["targets"][0], ["provider", "model", "stream"]);
            assert_eq!(actual, json!(["mock", model, true]), "{path}: {}", response.text());
        }
    }
}

#[tokio::test]
async fn uses_headers_of_the_explain_call_by_default() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let request = json!({"path": CHAT_PATH, "body": {"model": "m"}});
    let response = gateway
        .send(explain_request(&request).header("x-gateway-provider", "mock").header("x-gateway-request-timeout", "77"))
        .await;
    assert_eq!(
        pick_fields(&response.json()["targets"][0], ["target", "timeout_ms", "retries"]),
        json!(["config", 77, 0])
    );
}

#[tokio::test]
async fn skips_group_without_matching_condition() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let no_match = json!({"strategy": {"mode": "conditional", "conditions": [{"query": {"metadata.plan": "free"}, "then": "a"}]},
        "targets": [{"name": "a", "provider": "mock"}]});
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [no_match, mock_target("chunks=1")]});
    let words: Value = serde_json::from_str(&chat_body("mock", false)).unwrap();
    let response = gateway.send(explain_request(&hypothetical_request(&config, &words))).await.json();
    assert_eq!(
        pick_fields(&response["targets"][0], ["target", "provider"]),
        json!(["config.targets[1]", "mock"]),
        "{response}"
    );
    let failed = json!({"step": "failed", "at": "config.targets[0]", "error": "no_matching_target"});
    assert_eq!(response["decisions"], json!([failed]));
    assert_eq!(gateway.send(chat_with_config(&config)).await.status, 200);
    assert_eq!(gateway.drain_records().pop().unwrap()["decisions"][0], failed);
    let alone = explain_request(&hypothetical_request(&config["targets"][0], &words));
    assert_eq!(gateway.send(alone).await.error_code(), "no_matching_target");
}

#[tokio::test]
async fn shows_open_breaker_and_cache_hit() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut failing = mock_target("status=503");
    failing["cb_config"] = sensitive_breaker_config();
    let config =
        json!({"strategy": {"mode": "fallback"}, "targets": [failing, {"provider": "mock", "cache": "simple"}]});
    let same =
        |path: &str, body: String| post_with_config(&config, path, body).header("x-gateway-cache-namespace", "n");
    let words: Value = serde_json::from_str(&chat_body("mock", false)).unwrap();
    assert_eq!(gateway.send(same(CHAT_PATH, words.to_string())).await.status, 200);
    let response = gateway.send(same("/v1/explain", json!({"path": CHAT_PATH, "body": words}).to_string())).await;
    let response_json = response.json();
    assert_eq!(response_json["decisions"][0], json!({"step": "skipped", "at": "config.targets[0]", "breaker": "open"}));
    assert_eq!(response_json["targets"].as_array().unwrap().len(), 1);
    assert_eq!(response_json["targets"][0]["cache"]["status"], "hit");
}

#[tokio::test]
async fn cache_key_matches_request_with_identical_bytes() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = json!({"provider": "mock", "cache": "simple"});
    let body = r#"{ "model" : "mock",  "n":1.0, "messages":[{"role":"user","content":"\u0041\u00e9/"}] }"#;
    let same =
        |path: &str, body: String| post_with_config(&config, path, body).header("x-gateway-cache-namespace", "n");
    assert_eq!(gateway.send(same(CHAT_PATH, body.to_owned())).await.status, 200);
    let build_request = |body: &str| same("/v1/explain", format!(r#"{{"path":"{CHAT_PATH}","body":{body}}}"#));
    assert_eq!(gateway.send(build_request(body)).await.json()["targets"][0]["cache"]["status"], "hit");
    assert_eq!(
        gateway.send(build_request(&body.replace("  ", ""))).await.json()["targets"][0]["cache"]["status"],
        "miss"
    );
}

#[tokio::test]
async fn applies_metadata_defaults_of_the_key() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(
        &json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": crate::harness::sha256_hex("pk"),
        "defaults": {"metadata": {"plan": "paid"}}}]}),
    );
    let config = json!({"strategy": {"mode": "conditional", "default": "a",
        "conditions": [{"query": {"metadata.plan": "paid"}, "then": "b"}]},
        "targets": [{"name": "a", "provider": "mock"}, {"name": "b", "provider": "mock"}]});
    let response = gateway
        .send(explain_request(&hypothetical_request(&config, &json!({"model": "m"}))).header("x-gateway-api-key", "pk"))
        .await;
    assert_eq!(response.json()["targets"][0]["target"], "config.targets[1]", "{}", response.text());
    let mut free = hypothetical_request(&config, &json!({"model": "m"}));
    free["headers"]["x-gateway-metadata"] = json!(r#"{"plan":"free"}"#);
    let response = gateway.send(explain_request(&free).header("x-gateway-api-key", "pk")).await;
    assert_eq!(response.json()["targets"][0]["target"], "config.targets[1]", "{}", response.text());
}

#[tokio::test]
async fn does_not_change_breaker_state() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let guarded = |behaviour: &str| {
        let mut target = mock_target(behaviour);
        target["cb_config"] = sensitive_breaker_config();
        target
    };
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [guarded("status=503"), guarded("chunks=1")]});
    let build_request = hypothetical_request(&config, &json!({"model": "m"}));
    assert_eq!(gateway.send(chat_with_config(&config)).await.status, 200);
    let breakers = || async { gateway.send(explain_request(&build_request)).await.json() };
    for _ in 0..3 {
        let content = breakers().await;
        assert_eq!(content["targets"].as_array().unwrap().len(), 1, "{content}");
    }
    assert_eq!(gateway.state.record_sink.metrics.breaker_skips.get(), 0);
    gateway.state.shared.clock.advance(std::time::Duration::from_secs(30));
    for _ in 0..3 {
        let content = breakers().await;
        assert_eq!(content["targets"][0]["breaker"], "half_open", "{content}");
    }
    // The explanation did not use up the single attempt that a half-open breaker allows.
    provider.clear_ledger();
    assert_eq!(gateway.send(chat_with_config(&config)).await.status, 200);
    assert_eq!(crate::harness::wait_for_ledger_entries(&provider, 2).await.len(), 2);
}

#[tokio::test]
async fn reports_same_errors_as_a_real_request() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (request, code) in [
        (hypothetical_request(&json!({"retry": 1}), &json!({"model": "m"})), "provider_required"),
        (hypothetical_request(&json!({"provider": "mock", "retry": 1}), &json!({"model": "m"})), "invalid_config"),
        (json!({"path": "/elsewhere"}), "invalid_request"),
        (json!({"path": CHAT_PATH, "header": {}}), "invalid_request"),
        (json!({"path": CHAT_PATH, "headers": {"x-a": 1}}), "invalid_request"),
    ] {
        let response = gateway.send(explain_request(&request)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, code), "{request}");
    }
}

#[tokio::test]
async fn requires_a_key_like_other_requests() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.require_key = true);
    assert_eq!(gateway.send(explain_request(&json!({"path": CHAT_PATH}))).await.status, 401);
}

#[tokio::test]
async fn explains_real_request_in_response_header() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config =
        json!({"strategy": {"mode": "fallback"}, "targets": [mock_target("status=503"), mock_target("chunks=1")]});
    let response = gateway.send(chat_with_config(&config).header("x-gateway-explain", "true")).await;
    let fields: Value = serde_json::from_str(response.header("x-gateway-explanation").unwrap()).unwrap();
    assert_eq!(pick_fields(&fields, ["config", "option"]), json!([null, "config.targets[1]"]));
    assert_eq!(pick_fields(&fields["decisions"][0], ["step", "status"]), json!(["tried", 503]));
    assert_eq!(fields["decisions"], gateway.single_record()["decisions"]);
    assert_eq!(gateway.send(chat_with_config(&config)).await.header("x-gateway-explanation"), None);
}

#[tokio::test]
async fn header_describes_the_target_that_responded() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut last = json!({"provider": "mock", "name": "größe", "override_params": {"user": "Zoë", "model": "mock?chunks=1"},
        "drop_params": ["max_tokens"], "request_timeout": 700, "cache": "simple", "retry": {"attempts": 2}});
    last["cb_config"] = json!({"failure_threshold": 3, "cooldown_interval": 30_000});
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [mock_target("status=503"), last]});
    let body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x".repeat(300)}]});
    let response =
        gateway.send(post_with_config(&config, CHAT_PATH, body.to_string()).header("x-gateway-explain", "true")).await;
    let header = response.header("x-gateway-explanation").unwrap();
    assert!(header.is_ascii(), "{header}");
    let fields: Value = serde_json::from_str(header).unwrap();
    let target = &fields["target"];
    assert_eq!(
        pick_fields(target, ["target", "name", "provider", "model", "timeout_ms", "retries", "breaker"]),
        json!(["config.targets[1]", "größe", "mock", "mock?chunks=1", 700, 2, "closed"])
    );
    assert_eq!(target["body"], json!({"model": "mock?chunks=1", "messages": "(330 bytes)", "user": "Zoë"}));
    assert_eq!((&target["cache"]["status"], target["cache"]["key"].as_str().unwrap().len()), (&json!("miss"), 64));
}

#[tokio::test]
async fn explains_without_config_and_bounds_header_size() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let many: Value = (0..400).map(|at| (format!("field{at}"), json!("ä".repeat(90)))).collect::<Map<_, _>>().into();
    for request in [
        get_request("/v1/files/file-1"),
        post_request(CHAT_PATH, chat_body("mock", true)),
        post_request("/v1/some/thing", many.to_string()),
    ] {
        let response = gateway.send(request.header("x-gateway-explain", "true")).await;
        let header = response.header("x-gateway-explanation").unwrap();
        assert!(header.len() < 8_000, "{}", header.len());
        let fields: Value = serde_json::from_str(header).unwrap();
        assert_eq!(pick_fields(&fields["target"], ["provider", "retries"]), json!(["mock", 0]), "{header}");
        assert_eq!(pick_fields(&fields["decisions"][0], ["step", "status"]), json!(["tried", 200]));
    }
}

/// Removes or replaces the values that differ between runs.
fn normalise_trace(mut response: Value, provider: &Server) -> Value {
    let host = provider.addr.to_string();
    for step in response.as_array_mut().into_iter().flatten() {
        let Some(step) = step.as_object_mut() else { continue };
        step.remove("milliseconds");
        if step.get("host").is_some_and(|value| *value == host) {
            step.insert("host".into(), "the pretend provider".into());
        }
    }
    response
}

/// Returns the case with its explanation (`targets`, `expected`) and the result of the real request (`status`,
/// `decisions`).
async fn trace_case(case: &Value) -> Value {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.retry_backoff_ms = 1);
    let mut headers = case["headers"].as_object().unwrap().clone();
    headers.insert("x-gateway-config".into(), case["config"].to_string().into());
    let path = case["path"].as_str().unwrap();
    let explained =
        gateway.send(explain_request(&json!({"path": path, "headers": headers, "body": case["body"]}))).await.json();
    gateway.drain_records();
    let mut request = post_with_config(&case["config"], path, case["body"].to_string());
    for (name, value) in case["headers"].as_object().unwrap() {
        request = request.header(name, value.as_str().unwrap());
    }
    let response = gateway.send(request).await;
    let decisions = gateway.single_record()["decisions"].clone();
    let mut traced = case.clone();
    traced["expected"] = explained["decisions"].clone();
    traced["targets"] = normalise_trace(explained["targets"].clone(), &provider);
    traced["status"] = response.status.into();
    traced["decisions"] = normalise_trace(decisions, &provider);
    traced
}

#[tokio::test]
async fn traces_match_golden_files() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/explained");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let written: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let traced = trace_case(&written).await;
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, format!("{traced:#}\n")).unwrap();
        } else {
            assert_eq!(traced, written, "{}", path.display());
        }
        count += 1;
    }
    assert!(count >= 9, "the cases are not where they should be");
}

#[tokio::test]
async fn explains_shorter_of_client_and_config_timeout() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = json!({"provider": "mock", "request_timeout": 5_000});
    for (max_wait, expected) in [("2", 1_500..=1_900), ("60", 5_000..=5_000)] {
        let headers = json!({"x-gateway-config": config.to_string(), "x-stainless-read-timeout": max_wait});
        let client_request =
            json!({"path": "/v1/chat/completions", "headers": headers, "body": {"model": "mock", "messages": []}});
        let response = gateway.send(post_request("/v1/explain", client_request.to_string())).await.json();
        assert!(expected.contains(&response["targets"][0]["timeout_ms"].as_u64().unwrap()), "{response}");
        let request =
            chat_with_config(&config).header("x-gateway-explain", "true").header("x-stainless-read-timeout", max_wait);
        let response = gateway.send(request).await;
        let explanation: Value = serde_json::from_str(response.header("x-gateway-explanation").unwrap()).unwrap();
        assert!(expected.contains(&explanation["target"]["timeout_ms"].as_u64().unwrap()), "{explanation}");
    }
}
