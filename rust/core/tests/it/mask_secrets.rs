//! Stored secrets reach neither the caller nor a host that the request names; records show no credentials.

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, chat_body, chat_request,
    golden_provider::GoldenProvider,
    post_with_config,
    scripted_server::{ScriptedServer, gzip_compress, gzip_response, json_response, read_request, sse_response},
    sha256_hex, wait_until,
};
use crate::spool::{CLIENT_RESPONSE, END, SpoolFolder};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

const SECRET: &str = "CANARY-mcp-token-0123456789";

/// Config with secrets in its parameters, as saved for a workspace.
fn config_with_secrets() -> Value {
    json!({"provider": "mock", "override_params": {"tools": [{"type": "mcp", "server_label": "crm",
        "server_url": format!("https://crm.example/mcp?sig={SECRET}-1"), "authorization": SECRET,
        "headers": {"X-Team": format!("{SECRET}-2")}}]}})
}

fn snapshot() -> Value {
    json!({"epoch": "1", "configs": [{"slug": "pc-crm", "config": config_with_secrets()}]})
}

fn chat_with_saved_config() -> TestRequest {
    let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-config", "pc-crm");
    request.header("content-type", "application/json").body(chat_body("mock", false))
}

#[tokio::test]
async fn explanations_do_not_show_secrets_of_a_saved_config() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&snapshot());
    let client_request = json!({"path": CHAT_PATH, "headers": {"x-gateway-config": "pc-crm"}, "body": {"model": "m"}});
    let request = TestRequest::new("POST", "/v1/explain").header("content-type", "application/json");
    let response = gateway.send(request.body(client_request.to_string())).await;
    assert!(
        response.status == 200 && response.text().contains("\"crm\"") && !response.text().contains("CANARY"),
        "{}",
        response.text()
    );
    let response = gateway.send(chat_with_saved_config().header("x-gateway-explain", "true")).await;
    let explanation = response.header("x-gateway-explanation").unwrap_or_default();
    assert!(
        response.status == 200 && explanation.contains("tools") && !explanation.contains("CANARY"),
        "{explanation}"
    );
}

#[tokio::test]
async fn secrets_of_a_saved_config_are_not_sent_to_a_host_of_the_request() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    gateway.apply_snapshot(&snapshot());
    let response = gateway.send(chat_with_saved_config().header("x-gateway-custom-host", &provider.url())).await;
    assert_eq!((response.status, &*response.error_code()), (400, "invalid_custom_host"), "{}", response.text());
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn provider_errors_do_not_repeat_stored_secrets() {
    let key = "sk-stored-0123456789";
    let echo = format!(r#"{{"error":{{"message":"wrong key {key}, header {SECRET}-h, tool {SECRET}"}}}}"#);
    let response_body = json_response("401 Unauthorized", &format!("x-echo: Bearer {key}\r\n"), &echo);
    let provider = ScriptedServer::start_responding(response_body).await;
    let gateway = TestGateway::for_url(&provider.url());
    let mut config = config_with_secrets();
    config["provider"] = "@mine".into();
    gateway.apply_snapshot(&json!({"epoch": "1", "configs": [{"slug": "pc-crm", "config": config}],
        "providers": [{"slug": "mine", "provider": "mock", "api_key": key, "headers": {"x-own": format!("{SECRET}-h")}}]}));
    let raw = TestRequest::new("POST", "/v1/proxy/whatever").header("x-gateway-config", "pc-crm");
    for request in [chat_with_saved_config(), raw.header("content-type", "application/json").body(r#"{"model":"m"}"#)] {
        let response = gateway.send(request).await;
        assert_eq!(response.status, 401, "{}", response.text());
        assert_eq!(response.header("x-echo"), Some("Bearer ***"));
        assert!(response.text().contains("wrong key ***"), "{}", response.text());
        assert!(!response.text().contains("CANARY") && !response.text().contains(key), "{}", response.text());
    }
}

#[tokio::test]
async fn records_show_only_known_headers() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let token = "CANARY00-eyJhbGciOiJSUzI1NiJ9.e30.c2ln";
    let mut request =
        chat_request("mock").header("user-agent", "OpenAI/Python 1.99.1").header("accept-language", token);
    for name in ["cf-access-jwt-assertion", "x-goog-iap-jwt-assertion", "x-pat", "x-otp", "x-gateway-aws-external-id"] {
        request = request.header(name, token);
    }
    assert_eq!(gateway.send(request).await.status, 200);
    let record = gateway.single_record();
    assert!(!record.to_string().contains("CANARY"), "{record}");
    let headers = &record["request_headers"];
    assert_eq!((&headers["user-agent"], &headers["x-pat"]), (&json!("OpenAI/Python 1.99.1"), &json!("***")));
    assert_eq!(headers["x-gateway-provider"], "mock");
}

#[tokio::test]
async fn requests_without_a_key_leave_small_records_of_their_own() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": sha256_hex("pk")}]}));
    for _ in 0..2_000 {
        let request =
            chat_request("m").header("x-gateway-trace-id", &"t".repeat(7_000)).header("x-pad", &"A".repeat(7_000));
        assert_eq!(gateway.send(request).await.status, 401);
    }
    let sink = &gateway.state.record_sink;
    assert_eq!((sink.outbox.accepted_lines(), sink.outbox.unacknowledged_bytes()), (0, 0));
    assert!(sink.refused_outbox.dropped_lines() > 0 && sink.refused_outbox.unacknowledged_bytes() < 300_000);
    let records = gateway.drain_records();
    assert!(records.iter().all(|record| record["error"] == "03" && record.to_string().len() < 1_000));
}

const KEY: &str = "sk-stored-0123456789";

/// Starts a gateway whose saved provider `@mine` has a stored key, with a provider that always sends this response.
async fn start_with_stored_key(response: Vec<u8>) -> (TestGateway, ScriptedServer) {
    let provider = ScriptedServer::start_responding(response).await;
    let gateway = TestGateway::for_url(&provider.url());
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [{"slug": "mine", "provider": "mock", "api_key": KEY}]}));
    (gateway, provider)
}

fn post_to_mine(path: &str) -> TestRequest {
    let request = TestRequest::new("POST", path).header("x-gateway-provider", "@mine");
    request.header("content-type", "application/json").body(chat_body("mock", false))
}

#[tokio::test]
async fn errors_with_status_200_do_not_repeat_stored_secrets() {
    let echo = format!(r#"{{"error":{{"message":"wrong key {KEY}","code":401}}}}"#);
    let (gateway, _provider) = start_with_stored_key(json_response("200 OK", "", &echo)).await;
    for path in [CHAT_PATH, "/v1/images/generations", "/v1/moderations"] {
        let response = gateway.send(post_to_mine(path)).await;
        assert!(
            response.status == 401 && response.text().contains("wrong key ***"),
            "{path} {}: {}",
            response.status,
            response.text()
        );
    }
    let config = json!({"provider": "@mine", "retry": {"attempts": 0}});
    let response =
        gateway.send(post_to_mine("/v1/images/generations").header("x-gateway-config", &config.to_string())).await;
    assert!(response.status == 401 && !response.text().contains(KEY), "{}", response.text());
}

#[tokio::test]
async fn errors_of_held_streams_do_not_repeat_stored_secrets() {
    let error = format!("data: {{\"error\":{{\"message\":\"wrong key {KEY}\"}}}}\n\n");
    let (gateway, _provider) = start_with_stored_key(sse_response(error.as_bytes(), 4096)).await;
    let config = json!({"provider": "@mine", "recovery": "hold"});
    let response = gateway.send(post_to_mine(CHAT_PATH).header("x-gateway-config", &config.to_string())).await;
    assert!(response.status >= 500 && response.text().contains("wrong key ***"), "{}", response.text());
}

#[tokio::test]
async fn redirects_do_not_repeat_stored_secrets() {
    let head = format!("location: https://elsewhere.example/?key={KEY}\r\n");
    let (gateway, _provider) = start_with_stored_key(json_response("307 Temporary Redirect", &head, "")).await;
    for path in [CHAT_PATH, "/v1/proxy/whatever"] {
        let response = gateway.send(post_to_mine(path)).await;
        assert_eq!(
            (response.status, response.header("location")),
            (307, Some("https://elsewhere.example/?key=***")),
            "{path}"
        );
    }
}

#[tokio::test]
async fn errors_of_file_and_blob_stores_do_not_repeat_stored_secrets() {
    let token = "storage-token-0123456789";
    let echo = format!(r#"{{"error":{{"message":"wrong key {KEY} {token}"}}}}"#);
    let provider = ScriptedServer::start(move |mut io, _| {
        let echo = echo.clone();
        async move {
            let own_url = format!("http://{}", io.local_addr().unwrap());
            while let Some(request) = read_request(&mut io).await {
                let request = String::from_utf8(request).unwrap();
                let (status, body) = if request.starts_with("POST /t/oauth2") {
                    ("200 OK", json!({"access_token": token, "expires_in": 3600}).to_string())
                } else if request.contains("/batches/b") {
                    let blob = format!("{own_url}/out/1");
                    let batch = json!({"id": "b", "status": "completed", "output_file_id": null, "output_blob": blob});
                    ("200 OK", batch.to_string())
                } else {
                    ("403 Forbidden", echo.clone())
                };
                io.write_all(&json_response(status, "", &body)).await.unwrap();
            }
        }
    })
    .await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let host = provider.url();
    let entra = json!({"azure_auth_mode": "entra", "azure_entra_tenant_id": "t", "azure_entra_client_id": "c",
        "azure_entra_client_secret": KEY, "azure_authority_host": host, "azure_api_version": "2025-04-01-preview"});
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [
        {"slug": "azure", "provider": "azure-openai", "custom_host": host, "options": entra},
        {"slug": "store", "provider": "fireworks-ai", "custom_host": host, "api_key": KEY,
            "options": {"fireworks_account_id": "acc"}}]}));
    for (saved, path) in [("@azure", "/v1/batches/b/output"), ("@store", "/v1/files/file-1")] {
        let response = gateway.send(TestRequest::new("GET", path).header("x-gateway-provider", saved)).await;
        let text = response.text();
        assert!(response.status == 403 && text.contains("wrong key ***"), "{path} {}: {text}", response.status);
        assert!(!text.contains(KEY) && (saved == "@store" || !text.contains(token)), "{path}: {text}");
    }
}

#[tokio::test]
async fn compressed_responses_do_not_repeat_stored_secrets() {
    let error = format!(r#"{{"error":{{"message":"wrong key {KEY}","code":401}}}}"#);
    let (gateway, _provider) = start_with_stored_key(gzip_response("application/json", &gzip_compress(&error))).await;
    let response = gateway.send(post_to_mine(CHAT_PATH).header("accept-encoding", "gzip")).await;
    assert_eq!((response.status, response.header("content-encoding")), (401, None), "{}", response.text());
    assert!(response.text().contains("wrong key ***"), "{}", response.text());

    let events = format!("data: {{\"choices\":[]}}\n\ndata: {{\"error\":{{\"message\":\"wrong key {KEY}\"}}}}\n\n");
    let (gateway, _provider) = start_with_stored_key(gzip_response("text/event-stream", &gzip_compress(&events))).await;
    for path in [CHAT_PATH, "/v1/proxy/whatever"] {
        let response = gateway.send(post_to_mine(path).header("accept-encoding", "gzip")).await;
        assert_eq!((response.status, response.header("content-encoding")), (200, None), "{}", response.text());
        assert!(response.text().contains("wrong key ***") && !response.text().contains(KEY), "{}", response.text());
    }
}

#[tokio::test]
async fn streams_in_a_content_coding_that_cannot_be_masked_fail() {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: br\r\ncontent-length: 5\r\n\r\n";
    let (gateway, _provider) = start_with_stored_key([head.as_bytes(), b"12345"].concat()).await;
    let response = gateway.send(post_to_mine("/v1/proxy/whatever").header("accept-encoding", "br")).await;
    assert_eq!((response.status, &*response.error_code()), (502, "upstream_disconnected"), "{}", response.text());
    // Without stored secrets the stream is passed on as it is.
    let own = TestRequest::new("POST", "/v1/proxy/whatever").header("x-gateway-provider", "mock");
    let response = gateway.send(own.header("content-type", "application/json").body(chat_body("mock", false))).await;
    assert_eq!((response.status, response.header("content-encoding")), (200, Some("br")));
}

#[tokio::test]
async fn amazon_event_streams_do_not_repeat_stored_secrets() {
    use penstock_llm::stream::aws_event_stream::{FrameDecoder, encode_frame};
    let message = format!(r#"{{"message":"wrong key {KEY}"}}"#);
    let frames = [
        encode_frame("event", "messageStart", br#"{"role":"assistant"}"#),
        encode_frame("exception", "accessDeniedException", message.as_bytes()),
    ]
    .concat();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\nconnection: close\r\n\r\n";
    let (gateway, _provider) = start_with_stored_key([head.as_bytes(), &frames].concat()).await;
    let response = gateway.send(post_to_mine("/v1/proxy/model/m/converse-stream")).await;
    let mut decoder = FrameDecoder::new(4096);
    decoder.push_chunk(&response.body);
    let payloads: Vec<_> = std::iter::from_fn(|| decoder.next_frame())
        .map(|frame| String::from_utf8(frame.unwrap().payload.to_vec()).unwrap())
        .collect();
    assert_eq!(payloads, [r#"{"role":"assistant"}"#, r#"{"message":"wrong key ***"}"#]);
}

#[tokio::test]
async fn configs_hold_a_bounded_number_of_secrets() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (count, length, is_allowed) in [(128, 20, true), (129, 20, false), (100, 400, false)] {
        let headers: serde_json::Map<_, _> =
            (0..count).map(|number| (format!("x-api-key-{number}"), format!("{number:0>length$}").into())).collect();
        let config = json!({"provider": "mock", "override_params": {"tools": [{"type": "mcp", "headers": headers}]}});
        let request = chat_request("mock").header("x-gateway-config", &config.to_string());
        let response = gateway.send(request).await;
        assert_eq!(response.status == 200, is_allowed, "{count} {length}: {} {}", response.status, response.text());
        assert!(is_allowed || response.text().contains("may hold 128 secrets with 32768 bytes"), "{}", response.text());
    }
}

/// Body of a message in Anthropic's format, as a whole or as a stream.
fn anthropic_body(is_stream: bool) -> String {
    let message = |content: Value| {
        json!({"id": "m", "type": "message", "role": "assistant", "model": "m",
            "content": content, "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}})
    };
    if !is_stream {
        return message(json!([{"type": "text", "text": "ok"}])).to_string();
    }
    let events = [
        json!({"type": "message_start", "message": message(json!([]))}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}),
        json!({"type": "message_stop"}),
    ];
    let text = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    events.iter().map(text).collect::<Vec<_>>().concat()
}

#[tokio::test]
async fn translated_responses_do_not_repeat_credentials_of_tools() {
    let tool = json!({"type": "mcp", "server_label": "crm", "server_url": "https://crm.example/mcp",
        "authorization": SECRET, "headers": {"X-Team": SECRET}});
    for (is_stream, kind) in [(false, "application/json"), (true, "text/event-stream")] {
        let provider = GoldenProvider::start(200, kind, anthropic_body(is_stream).into_bytes(), 4096).await;
        let spool = SpoolFolder::new();
        let gateway = spool.gateway("", |_| ());
        let config = json!({"provider": "anthropic", "api_key": "k", "custom_host": provider.server.url()});
        let body = json!({"model": "m", "input": "hi", "tools": [tool], "stream": is_stream}).to_string();
        let response = gateway.send(post_with_config(&config, "/v1/responses", body)).await;
        let text = response.text();
        assert!(response.status == 200 && text.contains("\"server_label\":\"crm\""), "{text}");
        wait_until("the end of the record", || spool.kinds().contains(&END)).await;
        let recorded = spool.body(CLIENT_RESPONSE);
        assert!(recorded.contains("crm.example") && !spool.text().contains("CANARY"), "{}", spool.text());
        assert!(!text.contains("CANARY"), "{text}");
    }
}

#[tokio::test]
async fn messages_in_records_do_not_repeat_the_credential_of_the_request() {
    let key = "CANARY-own-key-0123456789";
    let long = "x".repeat(490);
    // The second message is cut in the middle of the key.
    for (message, expected) in
        [(format!("wrong key {key}"), "wrong key ***"), (format!("{long} wrong key {key}"), "wrong key")]
    {
        let echo = json!({"error": {"message": message}}).to_string();
        let provider = ScriptedServer::start_responding(json_response("401 Unauthorized", "", &echo)).await;
        let spool = SpoolFolder::new();
        let gateway = spool.gateway(&provider.url(), |_| ());
        let config = json!({"strategy": {"mode": "fallback"}, "targets": [
            {"provider": "mock", "api_key": key}, {"provider": "mock", "api_key": key}]});
        let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-config", &config.to_string());
        let request = request.header("content-type", "application/json").body(chat_body("m", false));
        assert_eq!(gateway.send(request).await.status, 401);
        wait_until("the end of the record", || spool.kinds().contains(&END)).await;
        let end = spool.frames().into_iter().find(|frame| frame.kind == END).unwrap().json();
        for attempt in end["attempts"].as_array().unwrap() {
            let reason = attempt["reason"].as_str().unwrap();
            assert!(reason.trim_end().ends_with(expected) && reason.len() <= 512, "{reason}");
            assert!(!reason.contains("CANARY"), "{reason}");
        }
    }
}
