//! Response cache. A cached response is returned only to the callers for whom it was stored.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body, chat_body_with_usage,
    golden_provider::GoldenProvider,
    into_stream, pick_fields, post_with_config, read_stream, routing_headers,
    scripted_server::{CHAT_EVENTS, ScriptedServer, sse_response},
    sha256_hex, wait_for_ledger_entries,
};
use penstock_mock::Server;
use serde_json::{Value, json};

fn config_with_cache() -> Value {
    json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 60}})
}

fn cacheable_request(path: &str, stream: bool) -> TestRequest {
    let model = "mock?chunks=3";
    post_with_config(
        &config_with_cache(),
        path,
        if stream { chat_body_with_usage(model) } else { chat_body(model, false) },
    )
}

#[tokio::test]
async fn repeats_cached_response_without_calling_the_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (count, path) in [(1, CHAT_PATH), (2, MESSAGES_PATH), (3, "/v1/proxy/chat/completions"), (4, "/v1/embeddings")]
    {
        let (first, second) =
            (gateway.send(cacheable_request(path, false)).await, gateway.send(cacheable_request(path, false)).await);
        assert_eq!((routing_headers(&first)[2], routing_headers(&second)[2]), ("MISS", "HIT"), "{path}");
        assert_eq!((first.status, second.status), (200, 200), "{path}");
        assert_eq!((&first.body, first.header("content-type")), (&second.body, second.header("content-type")));
        wait_for_ledger_entries(&provider, count).await;
    }
    let fields = ["cache_status", "total_units", "is_success"];
    let records = gateway.drain_records();
    assert_eq!(
        (pick_fields(&records[0], fields), pick_fields(&records[1], fields)),
        (json!(["miss", 15, true]), json!(["hit", null, true]))
    );
}

#[tokio::test]
async fn accept_header_is_part_of_cache_key_on_proxy_paths() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let build_request = |kind| cacheable_request("/v1/proxy/chat/completions", false).header("accept", kind);
    for (kind, status) in [("image/*", "MISS"), ("application/json", "MISS"), ("image/*", "HIT")] {
        assert_eq!(routing_headers(&gateway.send(build_request(kind)).await)[2], status, "{kind}");
    }
    // A known operation always returns the same content type, so `accept` does not matter.
    for (kind, status) in [("*/*", "MISS"), ("application/json", "HIT")] {
        assert_eq!(
            routing_headers(&gateway.send(cacheable_request(CHAT_PATH, false).header("accept", kind)).await)[2],
            status,
            "{kind}"
        );
    }
}

#[tokio::test]
async fn max_age_and_forwarded_headers_change_the_cache_key() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let build_request = |age: u64, language: &str| {
        let config = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": age}, "forward_headers": ["accept-language"]});
        post_with_config(&config, CHAT_PATH, chat_body("mock", false))
            .header("accept-language", language)
            .header("x-gateway-cache-namespace", "n")
    };
    let ways = [(600, "de", "MISS"), (600, "de", "HIT"), (60, "de", "MISS"), (600, "fr", "MISS"), (600, "de", "HIT")];
    for (age, language, status) in ways {
        assert_eq!(routing_headers(&gateway.send(build_request(age, language)).await)[2], status, "{age} {language}");
    }
}

#[tokio::test]
async fn replays_a_cached_stream() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (count, path) in [(1, CHAT_PATH), (2, MESSAGES_PATH)] {
        let (first, second) =
            (gateway.send(cacheable_request(path, true)).await, gateway.send(cacheable_request(path, true)).await);
        assert_eq!((routing_headers(&second)[2], second.header("content-type")), ("HIT", first.header("content-type")));
        assert!(first.body == second.body && second.is_streamed && !second.is_truncated);
        wait_for_ledger_entries(&provider, count).await;
    }
    let records = gateway.drain_records();
    for record in &records {
        let is_counted = record["total_units"].is_u64();
        assert_eq!(is_counted, record["cache_status"] == "miss", "{record:#}");
    }
    assert_eq!(records.len(), 4);
}

#[tokio::test]
async fn caches_stream_whose_last_event_has_no_blank_line() {
    let sent = CHAT_EVENTS.trim_end();
    let provider = ScriptedServer::start_responding(sse_response(sent.as_bytes(), 9)).await;
    let gateway = TestGateway::for_url(&provider.url());
    let (first, second) = (
        gateway.send(cacheable_request(CHAT_PATH, true)).await,
        gateway.send(cacheable_request(CHAT_PATH, true)).await,
    );
    assert_eq!((routing_headers(&second)[2], first.text(), second.text()), ("HIT", sent.to_owned(), sent.to_owned()));
}

#[tokio::test]
async fn caches_only_complete_successful_responses() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for failing in ["status=500", "fault=cut&after=2", "fault=error_event"] {
        for _ in 0..2 {
            let response = gateway
                .send(post_with_config(&config_with_cache(), CHAT_PATH, chat_body(&format!("mock?{failing}"), true)))
                .await;
            assert_eq!(routing_headers(&response)[2], "MISS", "{failing}");
        }
    }
    let slow = chat_body_with_usage("mock?chunks=3&chunk_ms=20");
    let abandoned = gateway.handle_request(post_with_config(&config_with_cache(), CHAT_PATH, slow.clone())).await;
    let mut stream = into_stream(abandoned);
    stream.next().await.unwrap();
    drop(stream);
    let response = gateway.handle_request(post_with_config(&config_with_cache(), CHAT_PATH, slow)).await;
    assert_eq!(response.head.headers.get_str("x-gateway-cache-status"), Some("MISS"));
    read_stream(into_stream(response)).await;
}

#[tokio::test]
async fn isolates_cache_by_key_and_namespaces_by_workspace() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let key =
        |id: &str, workspace: &str| json!({"id": id, "name": id, "sha256": sha256_hex(id), "workspace": workspace});
    gateway.apply_snapshot(&json!({"epoch": "1", "keys": [key("a", "one"), key("b", "one"), key("c", "two")]}));
    let from = |key: &str| cacheable_request(CHAT_PATH, false).header("x-gateway-api-key", key);
    for (caller, expected) in [("a", "MISS"), ("a", "HIT"), ("b", "MISS"), ("c", "MISS")] {
        assert_eq!(routing_headers(&gateway.send(from(caller)).await)[2], expected, "{caller}");
    }
    let with_namespace = |key: &str| from(key).header("x-gateway-cache-namespace", "shared");
    for (caller, expected) in [("a", "MISS"), ("b", "HIT"), ("c", "MISS")] {
        assert_eq!(routing_headers(&gateway.send(with_namespace(caller)).await)[2], expected, "{caller}");
    }
}

#[tokio::test]
async fn open_gateway_isolates_cache_namespace_by_credential() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let from = |token: &str| {
        cacheable_request(CHAT_PATH, false)
            .header("x-gateway-cache-namespace", "n")
            .header("authorization", &format!("Bearer {token}"))
    };
    for (token, expected) in [("x", "MISS"), ("x", "HIT"), ("y", "MISS")] {
        assert_eq!(routing_headers(&gateway.send(from(token)).await)[2], expected);
    }
}

#[tokio::test]
async fn force_refresh_replaces_cached_response() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let refreshed = || cacheable_request(CHAT_PATH, false).header("x-gateway-cache-force-refresh", "true");
    let statuses = [
        gateway.send(cacheable_request(CHAT_PATH, false)).await,
        gateway.send(refreshed()).await,
        gateway.send(cacheable_request(CHAT_PATH, false)).await,
    ];
    assert_eq!(statuses.map(|response| routing_headers(&response)[2].to_owned()), ["MISS", "REFRESH", "HIT"]);
    let remaining = cacheable_request(CHAT_PATH, false).header("x-gateway-cache-force-refresh", "false");
    assert_eq!(routing_headers(&gateway.send(remaining).await)[2], "HIT");
    wait_for_ledger_entries(&provider, 2).await;
}

#[tokio::test]
async fn override_params_change_the_cache_key() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = |seed: u32| {
        json!({"strategy": {"mode": "single"}, "cache": "simple",
        "targets": [{"provider": "mock", "override_params": {"seed": seed}}]})
    };
    let build_request = |seed| {
        post_with_config(&config(seed), CHAT_PATH, chat_body("mock", false)).header("x-gateway-cache-namespace", "n")
    };
    for (seed, expected) in [(1, "MISS"), (1, "HIT"), (2, "MISS")] {
        assert_eq!(routing_headers(&gateway.send(build_request(seed)).await)[2], expected);
    }
}

#[tokio::test]
async fn does_not_cache_requests_that_create_objects() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let paths = ["/v1/threads", "/v1/threads/t/messages", "/v1/assistants", "/v1/vector_stores", "/v1/proxy/evals"];
    for (index, path) in paths.iter().enumerate() {
        for count in [1, 2] {
            assert_eq!(routing_headers(&gateway.send(cacheable_request(path, false)).await)[2], "DISABLED", "{path}");
            wait_for_ledger_entries(&provider, index * 2 + count).await;
        }
    }
}

#[tokio::test]
async fn cache_hit_reports_nothing_about_earlier_targets() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.retry_backoff_ms = 1);
    let mut failing = crate::harness::mock_target("status=503");
    failing["retry"] = json!({"attempts": 1, "on_status_codes": [503]});
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [failing, config_with_cache()]});
    for expected in ["MISS", "HIT"] {
        let response = gateway.send(post_with_config(&config, CHAT_PATH, chat_body("mock?chunks=1", false))).await;
        assert_eq!(routing_headers(&response), ["config.targets[1]", "0", expected]);
    }
}

#[tokio::test]
async fn does_not_cache_without_a_config() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for count in 1..3 {
        assert_eq!(routing_headers(&gateway.send(crate::harness::chat_request("mock")).await)[2], "DISABLED");
        wait_for_ledger_entries(&provider, count).await;
    }
}

#[tokio::test]
async fn deployment_and_strict_compliance_change_the_cache_key() {
    let response = br#"{"choices":[]}"#.to_vec();
    let golden_provider = GoldenProvider::start(200, "application/json", response, 99).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let build_request = |deployment: &str, strict: bool| {
        let config = json!({"provider": "azure-openai", "custom_host": golden_provider.server.url(), "api_key": "k",
            "cache": "simple", "api_version": "2025-01-01", "strict_open_ai_compliance": strict});
        post_with_config(&config, CHAT_PATH, chat_body("m", false))
            .header("x-gateway-cache-namespace", "n")
            .header("x-gateway-azure-deployment-id", deployment)
    };
    for (deployment, strict, expected) in
        [("one", true, "MISS"), ("one", true, "HIT"), ("two", true, "MISS"), ("two", false, "MISS")]
    {
        assert_eq!(
            routing_headers(&gateway.send(build_request(deployment, strict)).await)[2],
            expected,
            "{deployment} {strict}"
        );
    }
    let requests: Vec<_> = golden_provider.request_lines.lock().unwrap().clone();
    assert!(requests[0].contains("/deployments/one/") && requests[1].contains("/deployments/two/"), "{requests:?}");
}

#[tokio::test]
async fn tracing_and_retry_headers_do_not_change_the_cache_key() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (count, name) in [
        "x-amz-date",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "x-amzn-trace-id",
        "cf-ray",
        "x-cloud-trace-context",
        "x-client-request-id",
        "x-ms-client-request-id",
        "x-datadog-trace-id",
        "sentry-trace",
        "baggage",
        "x-request-id",
        "via",
        "forwarded",
        "x-forwarded-for",
        "x-stainless-retry-count",
    ]
    .into_iter()
    .enumerate()
    {
        let body = chat_body("mock?chunks=3", false).replace("hi", name);
        let build_request =
            |value: &str| post_with_config(&config_with_cache(), CHAT_PATH, body.clone()).header(name, value);
        let (first, second) = (gateway.send(build_request("one")).await, gateway.send(build_request("two")).await);
        assert_eq!((routing_headers(&first)[2], routing_headers(&second)[2]), ("MISS", "HIT"), "{name}");
        wait_for_ledger_entries(&provider, count + 1).await;
    }
}

#[tokio::test]
async fn cache_key_uses_sigv4_access_key_not_signature() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let key = |id: &str| json!({"id": id, "name": id, "sha256": sha256_hex(id)});
    gateway.apply_snapshot(&json!({"epoch": "1", "keys": [key("a"), key("b")]}));
    let signed = |id: &str, signature: &str| {
        let value =
            format!("AWS4-HMAC-SHA256 Credential={id}/20261121/eu-west-1/bedrock/aws4_request, Signature={signature}");
        post_with_config(&config_with_cache(), "/model/mock%3Fchunks%3D1/converse", r#"{"messages":[]}"#)
            .header("authorization", &value)
    };
    for (id, signature, expected) in [("a", "00", "MISS"), ("a", "11", "HIT"), ("b", "00", "MISS"), ("b", "22", "HIT")]
    {
        let response = gateway.send(signed(id, signature)).await;
        assert_eq!(
            (response.status, routing_headers(&response)[2]),
            (200, expected),
            "{id} {signature} {}",
            response.text()
        );
    }
}

#[tokio::test]
async fn requests_uncompressed_response_only_for_caching() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let path = "/v1/proxy/chat/completions";
    let packing = |config: &Value| {
        post_with_config(config, path, chat_body("mock?gzip=on", false)).header("accept-encoding", "gzip, deflate")
    };
    let (first, second) =
        (gateway.send(packing(&config_with_cache())).await, gateway.send(packing(&config_with_cache())).await);
    assert_eq!((routing_headers(&first)[2], routing_headers(&second)[2]), ("MISS", "HIT"));
    assert!(first.json()["choices"].is_array() && first.body == second.body);
    let response = gateway.send(packing(&json!({"provider": "mock"}))).await;
    assert_eq!(response.header("content-encoding"), Some("gzip"));
    // A request that is never cached, such as a list, keeps its `accept-encoding` header.
    let list = TestRequest::new("GET", "/v1/proxy/files").header("x-gateway-config", &config_with_cache().to_string());
    assert_eq!(gateway.send(list.header("accept-encoding", "gzip")).await.status, 200);
    assert_eq!(provider.ledger_entries().last().unwrap().header("accept-encoding"), Some("gzip"));
}
