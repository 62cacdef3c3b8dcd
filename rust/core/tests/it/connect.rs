//! Opening of `WebSocket` sessions. The handshake is routed to a provider like any other request, or refused with a
//! reason.

use crate::harness::{
    TestGateway, TestRequest, pick_fields,
    realtime_client::{
        REALTIME_PATH, connect_realtime, expect_rejection, open_realtime, realtime_request, response_status,
    },
    scripted_server::{ScriptedServer, encode_chunks, json_response, read_request},
    sha256_hex,
    tls::{tls_acceptor, tls_file},
    wait_for_ledger_entries,
};
use penstock_core::{gateway::UpgradeOutcome, response::client_response::ClientResponseBody};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

#[tokio::test]
async fn refused_session_returns_its_status_and_writes_a_record() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (request, expected, code) in [
        (realtime_request("/v1/realtime?model=m&mock-status=429"), 429, Value::Null),
        (TestRequest::new("GET", REALTIME_PATH), 400, json!("provider_required")),
        (
            TestRequest::new("GET", REALTIME_PATH).header("x-gateway-provider", "groq"),
            500,
            json!("unsupported_operation"),
        ),
        (
            TestRequest::new("GET", "/v1/responses").header("x-gateway-provider", "anthropic"),
            500,
            json!("unsupported_operation"),
        ),
        (
            realtime_request(REALTIME_PATH).header("x-gateway-custom-host", "http://127.0.0.1:9/v1"),
            400,
            json!("invalid_custom_host"),
        ),
    ] {
        let (status, _) = expect_rejection(&gateway, request).await;
        let record = gateway.single_record();
        assert_eq!(
            pick_fields(&record, ["response_status_code", "is_success"]),
            json!([expected, false]),
            "{record:#}"
        );
        assert_eq!((status, &record["error"]), (expected, &code), "{record:#}");
    }
}

#[tokio::test]
async fn subprotocol_key_authenticates_and_is_not_forwarded() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": sha256_hex("pk-1")}],
        "providers": [{"slug": "mine", "provider": "mock", "api_key": "sk-stored"}]}));
    let build_request = |target: &str, key: &str| {
        let protocols = format!("realtime, openai-insecure-api-key.{key}, openai-beta.realtime-v1");
        TestRequest::new("GET", target).header("sec-websocket-protocol", &protocols)
    };
    let (status, _) = expect_rejection(&gateway, build_request("/v1/realtime?model=@mine/m", "pk-2")).await;
    assert_eq!((status, gateway.single_record()["error"].as_str()), (401, Some("03")));
    let mut client = open_realtime(&gateway, build_request("/v1/realtime?model=%40mine%2Fgpt-realtime", "pk-1")).await;
    assert_eq!(client.protocol.as_deref(), Some("realtime"));
    assert_eq!(client.receive_event().await["session"]["model"], "gpt-realtime");
    client.close(1000, "").await;
    let record = gateway.single_record();
    assert_eq!(pick_fields(&record, ["api_key_id", "ai_model"]), json!(["k", "gpt-realtime"]));
    assert!(!record.to_string().contains("pk-1"), "{record}");
    let sent = &wait_for_ledger_entries(&provider, 1).await[0];
    let field = |field_name: &str| {
        sent.headers.iter().filter(|(name, _)| name == field_name).map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(field("authorization"), ["Bearer sk-stored"]);
    assert_eq!(field("sec-websocket-protocol"), ["realtime, openai-beta.realtime-v1"]);
    assert!(!format!("{:?}", sent.headers).contains("pk-1"));
}

#[tokio::test]
async fn open_gateway_sends_the_subprotocol_key_to_the_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let offered =
        realtime_request(REALTIME_PATH).header("sec-websocket-protocol", "realtime, openai-insecure-api-key.sk-own");
    let client = open_realtime(&gateway, offered).await;
    client.close(1000, "").await;
    let sent = &wait_for_ledger_entries(&provider, 1).await[0];
    assert!(sent.headers.iter().any(|(name, value)| name == "authorization" && value == "Bearer sk-own"));
}

#[tokio::test]
async fn refused_session_falls_back_to_the_next_target() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [
        {"provider": "openai", "api_key": "sk", "custom_host": "http://127.0.0.1:4009/v1"},
        {"provider": "mock", "override_params": {"model": "another one"}}]});
    let request = TestRequest::new("GET", REALTIME_PATH).header("x-gateway-config", &config.to_string());
    let client = open_realtime(&gateway, request).await;
    client.close(1000, "").await;
    let response = pick_fields(&gateway.single_record(), ["ai_org", "last_used_option_index", "outcome", "ai_model"]);
    assert_eq!(response, json!(["mock", "config.targets[1]", "complete", "another one"]));
    let sent = &wait_for_ledger_entries(&provider, 1).await[0];
    assert!(sent.path.contains("model=another+one"), "{}", sent.path);
}

/// Builds a session request with an inline config.
fn realtime_request_with_config(config: &Value) -> TestRequest {
    TestRequest::new("GET", REALTIME_PATH).header("x-gateway-config", &config.to_string())
}

/// Returns the recorded outcome of a session: status, target and retry count, then the decision steps.
fn recorded_outcome(gateway: &TestGateway) -> (Value, Vec<Value>) {
    let record = gateway.single_record();
    let steps = record["decisions"].as_array().unwrap().iter().map(|step| pick_fields(step, ["step", "at", "status"]));
    (pick_fields(&record, ["response_status_code", "last_used_option_index", "retry_success_count"]), steps.collect())
}

/// Starts a provider that refuses every session with this status. Also returns a target that uses it.
async fn start_refusing_provider(status: &str) -> (ScriptedServer, Value) {
    let provider =
        ScriptedServer::start_closing_after_response(json_response(status, "connection: close\r\n", "{}")).await;
    let target = json!({"provider": "mock", "custom_host": format!("{}/v1", provider.url())});
    (provider, target)
}

fn gateway_trusting_localhost(provider: &Server) -> TestGateway {
    TestGateway::with_settings(&provider.url(), |settings| {
        (settings.retry_backoff_ms, settings.trusted_custom_hosts) = (1, vec!["127.0.0.1".into()]);
    })
}

#[tokio::test]
async fn refusal_body_is_returned_up_to_64_kib() {
    let head =
        "HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    for (length, response) in [(9, 9), (65_536, 65_536), (300_000, 65_536)] {
        let response_body = "n".repeat(length);
        let body = [head.as_bytes(), &encode_chunks(response_body.as_bytes(), 5000), b"0\r\n\r\n"].concat();
        let provider = ScriptedServer::start_closing_after_response(body).await;
        let gateway = TestGateway::for_url(&provider.url());
        let UpgradeOutcome::Rejected(reply) = connect_realtime(&gateway, realtime_request(REALTIME_PATH)).await else {
            panic!("it was opened")
        };
        let ClientResponseBody::Complete(body) = &reply.body else { panic!("a stream") };
        assert_eq!((response_status(&reply), body.len(), &body[..9]), (403, response, &response_body.as_bytes()[..9]));
        assert_eq!(reply.head.headers.get_str("content-length"), Some(response.to_string().as_str()));
    }
}

#[tokio::test]
async fn refused_handshake_is_explained_on_request() {
    let (provider, (_kept, bad)) = (Server::start().await, start_refusing_provider("503 Service Unavailable").await);
    let gateway = gateway_trusting_localhost(&provider);
    let UpgradeOutcome::Rejected(response) =
        connect_realtime(&gateway, realtime_request_with_config(&bad).header("x-gateway-explain", "true")).await
    else {
        panic!("a session")
    };
    let fields: Value = serde_json::from_str(response.head.headers.get_str("x-gateway-explanation").unwrap()).unwrap();
    assert_eq!(pick_fields(&fields["target"], ["provider", "model"]), json!(["mock", "gpt-realtime"]), "{fields}");
    assert_eq!(pick_fields(&fields["decisions"][0], ["step", "status"]), json!(["tried", 503]), "{fields}");
}

#[tokio::test]
async fn on_status_codes_decide_which_refusals_fall_back() {
    let (provider, (_kept, bad)) = (Server::start().await, start_refusing_provider("400 Bad Request").await);
    let gateway = gateway_trusting_localhost(&provider);
    let by = |listed: Value| json!({"strategy": {"mode": "fallback", "on_status_codes": listed}, "targets": [bad, {"provider": "mock"}]});
    assert_eq!(expect_rejection(&gateway, realtime_request_with_config(&by(json!([429])))).await.0, 400);
    let tried = |at: &str, status: u16| json!(["tried", at, status]);
    assert_eq!(
        recorded_outcome(&gateway),
        (json!([400, "config.targets[0]", 0]), vec![tried("config.targets[0]", 400)])
    );
    open_realtime(&gateway, realtime_request_with_config(&by(json!([400])))).await.close(1000, "").await;
    let chose = json!(["chose", "config", null]);
    let steps = vec![tried("config.targets[0]", 400), chose, tried("config.targets[1]", 101)];
    assert_eq!(recorded_outcome(&gateway), (json!([101, "config.targets[1]", 0]), steps));
}

#[tokio::test]
async fn session_is_retried_and_a_failing_target_opens_its_breaker() {
    let (provider, (bad, mut target)) =
        (Server::start().await, start_refusing_provider("503 Service Unavailable").await);
    let gateway = gateway_trusting_localhost(&provider);
    target["retry"] = json!({"attempts": 2});
    target["cb_config"] = json!({"failure_threshold": 2, "cooldown_interval": 30_000});
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [target, {"provider": "mock"}]});
    open_realtime(&gateway, realtime_request_with_config(&config)).await.close(1000, "").await;
    assert_eq!((bad.connection_count(), gateway.state.record_sink.metrics.retries.get()), (3, 2));
    let names: Vec<_> = recorded_outcome(&gateway).1.iter().map(|step| step[0].clone()).collect();
    assert_eq!(names, ["tried", "tried", "tried", "stopped", "chose", "tried"]);
    assert_eq!(gateway.state.shared.breakers.open_count(), 1);
    open_realtime(&gateway, realtime_request_with_config(&config)).await.close(1000, "").await;
    assert_eq!(
        (bad.connection_count(), recorded_outcome(&gateway).1[0].clone()),
        (3, json!(["skipped", "config.targets[0]", null]))
    );
}

#[tokio::test]
async fn session_handshake_ends_at_the_client_timeout() {
    let provider = Server::start().await;
    let silent =
        ScriptedServer::start(|mut stream, _| async move { while read_request(&mut stream).await.is_some() {} }).await;
    let gateway = gateway_trusting_localhost(&provider);
    let target = json!({"provider": "mock", "custom_host": format!("{}/v1", silent.url())});
    let two = json!({"strategy": {"mode": "fallback"}, "targets": [target, {"provider": "mock"}]});
    for config in [&target, &two] {
        let (status, _) =
            expect_rejection(&gateway, realtime_request_with_config(config).header("x-stainless-timeout", "0.2")).await;
        assert_eq!(status, 408);
    }
}

/// Starts a TLS listener with a certificate of the test authority in front of a provider. Returns its port.
async fn start_tls_frontend(provider: &Server) -> u16 {
    let (listener, to) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), provider.addr);
    let (port, acceptor) = (listener.local_addr().unwrap().port(), tls_acceptor(&[b"h2", b"http/1.1"]));
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let Ok(mut outside) = acceptor.accept(io).await else { continue };
            tokio::spawn(async move {
                let mut inside = TcpStream::connect(to).await.unwrap();
                let _ = copy_bidirectional(&mut outside, &mut inside).await;
            });
        }
    });
    port
}

#[tokio::test]
async fn session_over_tls_requires_a_trusted_authority() {
    let provider = Server::start().await;
    let port = start_tls_frontend(&provider).await;
    let gateway = |trusts: bool| {
        TestGateway::with_settings("", |settings| {
            settings.trusted_custom_hosts = vec!["localhost".into()];
            settings.tls_ca = trusts.then(|| tls_file("authority.pem"));
        })
    };
    let build_request =
        || realtime_request(REALTIME_PATH).header("x-gateway-custom-host", &format!("https://localhost:{port}/v1"));
    let trusting = gateway(true);
    let mut client = open_realtime(&trusting, build_request()).await;
    assert_eq!(client.receive_event().await["session"]["model"], "gpt-realtime");
    client.send_event(json!({"type": "response.create"})).await;
    assert_eq!(client.receive_until("response.output_text.delta").await["delta"], "Hello");
    client.receive_until("response.done").await;
    client.close(1000, "done").await;
    assert_eq!(pick_fields(&trusting.single_record(), ["outcome", "total_units"]), json!(["complete", 20]));
    let (status, reply) = expect_rejection(&gateway(false), build_request()).await;
    assert_eq!((status, &reply["error"]["code"]), (502, &json!("upstream_connect_failed")), "{reply}");
}
