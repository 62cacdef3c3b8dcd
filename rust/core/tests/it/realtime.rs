//! `WebSocket` sessions. Messages pass in both directions, and one record holds the usage of the session.

use crate::harness::{
    TestGateway, TestRequest, pick_fields,
    realtime_client::{REALTIME_PATH, close_code_and_reason, expect_rejection, open_realtime, realtime_request},
    wait_for_ledger_entries,
};
use penstock_core::endpoints::realtime::Message;
use penstock_mock::{Outcome, Server};
use serde_json::{Value, json};

#[tokio::test]
async fn session_relays_messages_and_writes_one_record_with_usage() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let rates = json!({"input": [[0, 1_000_000]], "audio_in": [[0, 10_000_000]], "output": [[0, 2_000_000]]});
    let prices_json =
        json!([{"provider": "mock", "model": "gpt-realtime", "prices": [{"version": "v1", "rates": rates}]}]);
    gateway.apply_snapshot(&json!({"epoch": "1", "prices": {"overrides": prices_json}}));
    let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
    assert_eq!(client.receive_event().await["session"]["model"], "gpt-realtime");
    for _ in 0..2 {
        client.send_event(json!({"type": "response.create"})).await;
        assert_eq!(client.receive_until("response.output_text.delta").await["delta"], "Hello");
        client.receive_until("response.done").await;
    }
    client.send_message(Message::Binary(vec![0, 255, 7].into())).await;
    assert_eq!(client.receive_message().await, Message::Binary(vec![0, 255, 7].into()));
    assert!(gateway.drain_records().is_empty(), "not before its end");
    client.close(1000, "done").await;
    let record = gateway.single_record();
    let reply =
        pick_fields(&record, ["operation", "ai_model", "outcome", "is_success", "response_status_code", "stream_mode"]);
    assert_eq!(reply, json!(["realtime", "gpt-realtime", "complete", true, 101, true]));
    assert_eq!(pick_fields(&record, ["req_units", "res_units", "total_units"]), json!([24, 16, 40]));
    assert_eq!(record["usage"], json!({"input": 14, "output": 16, "audio_in": 10}));
    // Two responses, each with 7 text tokens, 5 audio tokens and 8 output tokens.
    assert_eq!(
        pick_fields(&record, ["cost_nanodollars", "price_version"]),
        json!([2 * (7_000 + 50_000 + 16_000), "v1"])
    );
    assert_eq!(wait_for_ledger_entries(&provider, 1).await[0].outcome, Outcome::Complete);
    assert_eq!(gateway.state.record_sink.metrics.in_flight(), 0);
}

#[tokio::test]
async fn record_lists_session_events_with_usage_and_errors() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
    client.send_event(json!({"type": "session.update", "session": {"voice": "ash"}})).await;
    client.receive_until("session.updated").await;
    client.send_event(json!({"type": "response.create"})).await;
    client.receive_until("response.done").await;
    client.send_event(json!({"type": "nothing"})).await;
    client.receive_until("error").await;
    client.close(1000, "").await;
    let record = gateway.single_record();
    let reply: Vec<_> = record["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| pick_fields(event, ["type", "word", "res_units"]))
        .collect();
    let expected = json!([
        ["session.created", null, null],
        ["session.updated", null, null],
        ["response.done", "completed", 8],
        ["error", "invalid_request_error", null],
    ]);
    assert_eq!(json!(reply), expected, "{record:#}");
    let after: Vec<_> =
        record["events"].as_array().unwrap().iter().map(|event| event["after"].as_f64().unwrap()).collect();
    assert!(after.is_sorted() && after[3] < record["response_time"].as_f64().unwrap(), "{after:?}");
    // A record lists at most 200 events and counts the rest.
    let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
    for _ in 0..210 {
        client.send_event(json!({"type": "nothing"})).await;
        client.receive_until("error").await;
    }
    client.close(1000, "").await;
    let record = gateway.single_record();
    assert_eq!((record["events"].as_array().unwrap().len(), &record["events_left_out"]), (200, &json!(11)));
}

#[tokio::test]
async fn transcription_is_priced_by_its_own_model() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let price = |model: &str, version: &str, audio: u64| {
        let rates = json!({"input": [[0, 1_000_000]], "audio_in": [[0, audio]], "output": [[0, 2_000_000]]});
        json!({"provider": "mock", "model": model, "prices": [{"version": version, "rates": rates}]})
    };
    let prices_json = json!([price("gpt-realtime", "v1", 10_000_000), price("gpt-4o-transcribe", "w1", 3_000_000)]);
    gateway.apply_snapshot(&json!({"epoch": "1", "prices": {"overrides": prices_json}}));
    // A transcription model without a price of its own is billed at the price of the session's model.
    for (writer, audio, version) in [("gpt-4o-transcribe", 36_000, "v1+w1"), ("unknown", 120_000, "v1")] {
        let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
        let input = json!({"input": {"transcription": {"model": writer}}});
        client.send_event(json!({"type": "session.update", "session": {"audio": input}})).await;
        client.send_event(json!({"type": "input_audio_buffer.commit"})).await;
        client.send_event(json!({"type": "response.create"})).await;
        client.receive_until("response.done").await;
        client.close(1000, "done").await;
        let record = gateway.single_record();
        assert_eq!(record["usage"], json!({"input": 8, "output": 17, "audio_in": 17}));
        let cost = 7_000 + 50_000 + 16_000 + 1_000 + audio + 18_000;
        assert_eq!(pick_fields(&record, ["cost_nanodollars", "price_version"]), json!([cost, version]), "{writer}");
    }
}

#[tokio::test]
async fn saved_price_applies_to_a_transcription_session() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let rates = json!({"input": [[0, 1_000_000]], "audio_in": [[0, 3_000_000]], "output": [[0, 2_000_000]]});
    let row = |slug: &str| json!({"slug": slug, "enabled": true, "prices": [{"version": slug, "rates": rates}]});
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [{"slug": "mine", "provider": "mock", "models": "m"}],
        "models": [{"id": "m", "allow_all": true, "models": [row("gpt-4o-transcribe")]}]}));
    let request = TestRequest::new("GET", "/v1/realtime?intent=transcription").header("x-gateway-provider", "@mine");
    let mut client = open_realtime(&gateway, request).await;
    let input = json!({"input": {"transcription": {"model": "gpt-4o-transcribe"}}});
    client.send_event(json!({"type": "session.update", "session": {"audio": input}})).await;
    client.send_event(json!({"type": "input_audio_buffer.commit"})).await;
    client.receive_until("conversation.item.input_audio_transcription.completed").await;
    client.close(1000, "").await;
    let record = gateway.single_record();
    let cost = 1_000 + 36_000 + 18_000;
    assert_eq!(
        pick_fields(&record, ["cost_nanodollars", "price_version"]),
        json!([cost, "gpt-4o-transcribe"]),
        "{record}"
    );
}

#[tokio::test]
async fn azure_foundry_session_uses_the_v1_path() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let request = TestRequest::new("GET", REALTIME_PATH)
        .header("x-gateway-provider", "azure-ai")
        .header("x-gateway-custom-host", &provider.url())
        .header("authorization", "Bearer sk-1");
    let mut client = open_realtime(&gateway, request).await;
    assert_eq!(client.receive_until("session.created").await["session"]["model"], "gpt-realtime");
    client.close(1000, "").await;
    let entry = wait_for_ledger_entries(&provider, 1).await.remove(0);
    assert_eq!((entry.path.as_str(), entry.header("authorization")), (REALTIME_PATH, Some("Bearer sk-1")));
    assert_eq!(pick_fields(&gateway.single_record(), ["operation", "ai_org"]), json!(["realtime", "azure-ai"]));
}

#[tokio::test]
async fn session_handshake_sends_provider_headers() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let request = TestRequest::new("GET", REALTIME_PATH)
        .header("x-gateway-provider", "openai")
        .header("x-gateway-custom-host", &format!("{}/v1", provider.url()))
        .header("authorization", "Bearer sk-1")
        .header("x-gateway-openai-organization", "org-1")
        .header("x-gateway-openai-project", "proj-1")
        .header("openai-beta", "realtime=v1")
        .header("x-gateway-trace-id", "t-1");
    open_realtime(&gateway, request).await.close(1000, "").await;
    let entry = wait_for_ledger_entries(&provider, 1).await.remove(0);
    let response = ["authorization", "openai-organization", "openai-project", "openai-beta", "x-gateway-trace-id"];
    let expected = [Some("Bearer sk-1"), Some("org-1"), Some("proj-1"), Some("realtime=v1"), None];
    assert_eq!(response.map(|name| entry.header(name)), expected);
}

/// Gateway with a saved provider of this kind that allows only the model `good`.
fn gateway_allowing_one_model(provider: &Server, kind: &str) -> TestGateway {
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [{"slug": "az", "provider": kind, "api_key": "k", "custom_host": provider.url(), "models": "m"}],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "good", "enabled": true}]}]}));
    gateway
}

#[tokio::test]
async fn rejects_disallowed_session_model_in_every_query_parameter() {
    let provider = Server::start().await;
    let gateway = gateway_allowing_one_model(&provider, "azure-ai");
    let build_request =
        |query: &str| TestRequest::new("GET", &format!("/v1/realtime?{query}")).header("x-gateway-provider", "@az");
    for query in ["model=bad", "deployment=bad", "model=good&deployment=bad", "model=good&mod%65l=bad"] {
        let (status, response) = expect_rejection(&gateway, build_request(query)).await;
        assert_eq!((status, &response["error"]["code"]), (403, &json!("model_not_allowed")), "{query}: {response}");
    }
    assert!(provider.ledger_entries().is_empty());
    open_realtime(&gateway, build_request("model=good")).await.close(1000, "").await;
}

#[tokio::test]
async fn session_update_with_a_disallowed_model_ends_the_session() {
    let provider = Server::start().await;
    let gateway = gateway_allowing_one_model(&provider, "mock");
    let session = |model: &str| json!({"audio": {"input": {"transcription": {"model": model}}}});
    let update = |session: Value| json!({"type": "session.update", "session": session});
    let build_request = || TestRequest::new("GET", "/v1/realtime?model=good").header("x-gateway-provider", "@az");
    for body in [session("bad"), json!({"input_audio_transcription": {"model": "bad"}}), json!({"model": "bad"})] {
        let mut client = open_realtime(&gateway, build_request()).await;
        client.receive_until("session.created").await;
        client.send_event(update(body.clone())).await;
        assert_eq!(close_code_and_reason(&client.receive_message().await).0, 1008, "{body}");
        client.wait_until_closed().await;
        assert_eq!(gateway.single_record()["outcome"], "refused", "{body}");
    }
    let mut client = open_realtime(&gateway, build_request()).await;
    client.receive_until("session.created").await;
    client.send_event(update(session("good"))).await;
    client.receive_until("session.updated").await;
    client.close(1000, "").await;
}

#[tokio::test]
async fn responses_api_works_over_a_websocket() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut client = open_realtime(&gateway, realtime_request("/v1/responses")).await;
    client.send_event(json!({"type": "response.create", "model": "m", "input": "hi"})).await;
    assert_eq!(client.receive_until("response.completed").await["response"]["usage"]["total_tokens"], 20);
    client.close(1000, "").await;
    let record = gateway.single_record();
    let reply = pick_fields(&record, ["operation", "ai_model", "total_units", "outcome"]);
    assert_eq!(reply, json!(["createModelResponse", "m", 20, "complete"]));
}

#[tokio::test]
async fn each_response_of_a_session_is_priced_by_its_own_model() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let rates = |input: u64| json!({"input": [[0, input]], "audio_in": [[0, input]], "output": [[0, input]]});
    let row = |slug: &str, rate: u64| json!({"slug": slug, "enabled": true, "prices": [{"version": slug, "rates": rates(rate)}]});
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [{"slug": "mine", "provider": "mock", "api_key": "k", "custom_host": provider.url(), "models": "m"}],
        "models": [{"id": "m", "allow_all": true, "models": [row("small", 1_000), row("large", 10_000)]}]}));
    for (models, cost, version) in [
        (["small", "large", "small"], json!(2 * 20 + 200), json!("small+large")),
        (["large", "large", "small"], json!(2 * 200 + 20), json!("large+small")),
        // If the price of one model is unknown, the cost is unknown; the first model's price does not apply instead.
        (["small", "unknown", "small"], json!(null), json!(null)),
    ] {
        let mut client =
            open_realtime(&gateway, TestRequest::new("GET", "/v1/responses").header("x-gateway-provider", "@mine"))
                .await;
        for model in models {
            client.send_event(json!({"type": "response.create", "model": model, "input": "hi"})).await;
            client.receive_until("response.completed").await;
        }
        client.close(1000, "").await;
        let record = gateway.single_record();
        let reply = pick_fields(&record, ["ai_model", "total_units", "cost_nanodollars", "price_version"]);
        assert_eq!(reply, json!([models[0], 60, cost, version]), "{models:?}");
    }
}

#[tokio::test]
async fn message_with_a_disallowed_model_ends_the_session() {
    let provider = Server::start().await;
    let gateway = gateway_allowing_one_model(&provider, "mock");
    let build_request = || TestRequest::new("GET", "/v1/responses").header("x-gateway-provider", "@az");
    let create = |more: &str| format!("{{\"type\":\"response.create\",\"input\":\"hi\",{more}}}");
    for more in [
        r#""model":"bad""#,
        r#""mod\u0065l":"bad""#,
        r#""model":"good","model":"bad""#,
        r#""model":"good","response":{"model":"bad"}"#,
        r#""prompt":{"id":"pmpt_1"}"#,
        r#""model":"good","tools":[{"type":"image_generation","model":"bad"}]"#,
        r#""response":{"model":"good","tools":[{"type":"image_generation","model":"bad"}]}"#,
    ] {
        let mut client = open_realtime(&gateway, build_request()).await;
        client.send_message(Message::text(create(more))).await;
        assert_eq!(close_code_and_reason(&client.receive_message().await).0, 1008, "{more}");
        client.wait_until_closed().await;
        assert_eq!(gateway.single_record()["outcome"], "refused", "{more}");
    }
    let mut client = open_realtime(&gateway, build_request()).await;
    client.send_message(Message::text(create(r#""model":"good""#))).await;
    client.receive_until("response.completed").await;
    client.close(1000, "").await;
}

#[tokio::test]
async fn provider_close_code_and_reason_reach_the_client() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (code, outcome, error) in [(1000, "complete", Value::Null), (4001, "cut", json!("upstream_disconnected"))] {
        let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
        client.receive_event().await;
        client.send_event(json!({"type": "mock.close", "code": code, "reason": "enough"})).await;
        assert_eq!(close_code_and_reason(&client.receive_message().await), (code, "enough".into()));
        client.wait_until_closed().await;
        assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!([outcome, error]));
    }
    let all = wait_for_ledger_entries(&provider, 2).await;
    assert!(all.iter().all(|entry| entry.outcome == Outcome::Complete), "its goodbye was answered");
}

#[tokio::test]
async fn provider_disconnect_is_an_error_and_usage_is_recorded() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
    client.send_event(json!({"type": "response.create"})).await;
    client.receive_until("response.done").await;
    client.send_event(json!({"type": "mock.drop"})).await;
    assert_eq!(close_code_and_reason(&client.receive_message().await).0, 1011);
    client.wait_until_closed().await;
    let reply = pick_fields(&gateway.single_record(), ["outcome", "error", "is_success", "total_units"]);
    assert_eq!(reply, json!(["cut", "upstream_disconnected", false, 20]));
}

#[tokio::test]
async fn client_disconnect_writes_one_record_with_usage() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
    client.send_event(json!({"type": "response.create"})).await;
    client.receive_until("response.done").await;
    client.sender = None;
    client.wait_until_closed().await;
    let reply = pick_fields(&gateway.single_record(), ["outcome", "is_success", "total_units", "response_status_code"]);
    assert_eq!(reply, json!(["aborted", false, 20, 101]));
    assert_eq!(wait_for_ledger_entries(&provider, 1).await[0].outcome, Outcome::Complete, "the provider saw the close");
}

#[tokio::test]
async fn slow_client_slows_the_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
    client.receive_event().await;
    client.send_event(json!({"type": "mock.flood", "count": 400, "bytes": 100_000})).await;
    // 40 MB, which is far more than sockets and channels buffer.
    for at in 0..5 {
        assert_eq!(client.receive_event().await["at"], at);
    }
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let passed = gateway.state.record_sink.metrics.to_json()["stream_chunks"].as_u64().unwrap();
    assert!(passed < 12, "{passed} messages went on to a caller who took six");
    for at in 5..400 {
        assert_eq!(client.receive_event().await["at"], at);
    }
    client.close(1000, "").await;
}

#[tokio::test]
async fn oversized_message_ends_the_session() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
    client.receive_event().await;
    client.send_message(Message::Binary(vec![0; 16 * 1024 * 1024 + 1].into())).await;
    assert_eq!(close_code_and_reason(&client.receive_message().await).0, 1009);
    client.wait_until_closed().await;
    assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!(["refused", "body_too_large"]));
}

#[tokio::test]
async fn pings_keep_a_session_alive_and_detect_a_dead_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.heartbeat_ms = 20;
        settings.idle_timeout_ms = 200;
    });
    let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
    client.receive_event().await;
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    client.send_event(json!({"type": "mock.pings"})).await;
    assert!(client.receive_event().await["count"].as_u64().unwrap() > 3);
    client.send_event(json!({"type": "mock.silence"})).await;
    assert_eq!(close_code_and_reason(&client.receive_message().await).0, 1011);
    client.wait_until_closed().await;
    assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!(["cut", "idle_timeout"]));
}

#[tokio::test]
async fn graceful_shutdown_closes_sessions() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut client = open_realtime(&gateway, realtime_request(REALTIME_PATH)).await;
    client.receive_event().await;
    gateway.state.drain();
    assert_eq!(close_code_and_reason(&client.receive_message().await).0, 1012);
    client.wait_until_closed().await;
    assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!(["cut", "draining"]));
}
