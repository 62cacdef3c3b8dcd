//! Columns of the log store. Some case writes each column that comes from the record, and records have no other keys.

use std::{collections::BTreeSet, fs, net::IpAddr};

use penstock_mock::Server;
use serde_json::{Value, json};

use crate::{
    harness::{
        CHAT_PATH, TestGateway, TestRequest, chat_body, chat_request,
        golden_provider::{GoldenProvider, golden_case},
        realtime_client::{REALTIME_PATH, open_realtime, realtime_request},
        scripted_server::{ScriptedServer, json_response},
        sha256_hex, wait_until,
    },
    spool::{AMEND, BEGIN, END, SpoolFolder},
};

/// Generated from the list of columns in Python.
const LOG_FIELDS: &str = include_str!("../../../../docs/log-fields.md");

/// Returns the columns that the documentation lists as set by `origin`.
fn columns_set_by(origin: &str) -> BTreeSet<String> {
    let rows = LOG_FIELDS.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    cells.filter(|cells| cells[3] == origin).map(|cells| cells[1].trim_matches('`').to_owned()).collect()
}

fn snapshot() -> Value {
    let rates = json!({"input": [[0, 1000]], "output": [[0, 2000]]});
    let price = json!({"provider": "mock", "model": "mock", "prices": [{"version": "v1", "rates": rates}]});
    let budget = json!({"id": "b", "owner": {"kind": "workspace", "id": "w-1", "slug": "ws-one"}, "type": "requests",
        "limit": 1000, "period": {"start": 1}});
    let content =
        json!({"string": "[{\"role\": \"user\", \"content\": \"{{name}}\"}]", "virtual_key": "mine", "model": "m"});
    let prompt = json!({"id": "pr-1", "slug": "greeting", "workspace": "w-1", "default": 1, "latest": 1,
        "labels": {"production": 1}, "versions": [{"number": 1, "id": "pv-1", "content": content}]});
    json!({"epoch": "1", "prices": {"overrides": [price]},
        "parts": [{"name": "limits/00", "limits": [{"workspace": "w-1", "limits": [budget]}]},
            {"name": "prompts/00", "prompts": [prompt]}],
        "workspaces": [{"id": "w-1", "slug": "ws-one", "organisation_id": "o-1"}],
        "keys": [{"id": "k", "name": "dev", "workspace": "w-1", "user_id": "u-1", "sha256": sha256_hex("pk")}],
        "providers": [{"id": "p-1", "integration_id": "i-1", "slug": "mine", "provider": "mock", "workspace": "w-1"}],
        "configs": [{"id": "c-1", "version_id": "v-1", "slug": "pc-one", "workspace": "w-1",
            "config": {"provider": "@mine", "cache": {"mode": "simple"},
                "input_guardrails": [{"contains": {"words": ["never"], "operator": "none"}}]}}]})
}

fn keyed_request(path: &str) -> TestRequest {
    TestRequest::new("POST", path).header("x-gateway-api-key", "pk").header("content-type", "application/json")
}

fn chat(model: &str) -> TestRequest {
    keyed_request(CHAT_PATH).header("x-gateway-provider", "mock").body(chat_body(model, false))
}

/// Sends requests that together fill all columns.
async fn send_all(gateway: &TestGateway, usage_url: &str) {
    let with_names = keyed_request(CHAT_PATH).header("x-gateway-config", "pc-one");
    let with_names = [
        ("x-gateway-metadata", r#"{"_user":"ann"}"#),
        ("x-gateway-span-id", "s-1"),
        ("x-gateway-span-name", "step"),
        ("x-gateway-parent-span-id", "s-0"),
        ("x-stainless-runtime", "node"),
        ("x-stainless-runtime-version", "v22"),
        ("x-stainless-package-version", "2.8.1"),
    ]
    .into_iter()
    .fold(with_names, |request, (name, value)| request.header(name, value));
    assert_eq!(gateway.send(with_names.body(chat_body("mock", false))).await.status, 200);
    let prompt = keyed_request("/v1/prompts/greeting@production/completions");
    assert_eq!(gateway.send(prompt.body(r#"{"variables": {"name": "Ann"}}"#)).await.status, 200);
    gateway.send(chat("mock?usage=off")).await;
    gateway.send(chat("mock").header("x-gateway-debug", "false")).await;
    // Together, these values are too long for one record.
    let value = "o".repeat(2048);
    gateway.send((0..80).fold(chat("mock"), |request, _| request.header("openai-organization", &value))).await;
    assert_eq!(gateway.send(keyed_request(CHAT_PATH).header("x-gateway-provider", "nobody")).await.status, 400);
    let with_usage = keyed_request(CHAT_PATH).header("x-gateway-provider", "openai");
    let with_usage = with_usage.header("x-gateway-custom-host", usage_url).header("authorization", "Bearer sk-1");
    gateway.send(with_usage.body(chat_body("m", false))).await;
    let audio = TestRequest::new("POST", "/v1/audio/transcriptions").header("content-type", "audio/wav");
    let audio = audio.header("x-gateway-provider", "mock").header("x-gateway-api-key", "pk");
    gateway.send(audio.header("x-gateway-audio-file-duration", "1200").body("RIFF")).await;
    let mut refused = chat("mock").build();
    refused.head.headers.retain(|name| name != b"x-gateway-api-key");
    refused.head.peer_ip = Some(IpAddr::from([192, 0, 2, 7]));
    penstock_core::gateway::handle(&gateway.state, refused).await;
    let mut client = open_realtime(gateway, realtime_request(REALTIME_PATH).header("x-gateway-api-key", "pk")).await;
    for _ in 0..210 {
        client.send_event(json!({"type": "nothing"})).await;
        client.receive_until("error").await;
    }
    client.close(1000, "").await;
}

#[tokio::test]
async fn every_column_of_a_record_is_written_in_some_case() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |settings| settings.header_bytes = 1 << 20);
    gateway.apply_snapshot(&snapshot());
    let details = json!({"prompt_tokens": 9, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}});
    let response = json!({"choices": [], "usage": details}).to_string();
    let with_usage = ScriptedServer::start_responding(json_response("200 OK", "", &response)).await;
    send_all(&gateway, &format!("{}/v1", with_usage.url())).await;
    let translated = fs::read(golden_case("anthropic/chatComplete/complete").path("response.json")).unwrap();
    let golden_provider = GoldenProvider::start(200, "application/json", translated, 50).await;
    let request = golden_provider.build_request("anthropic", CHAT_PATH, chat_body("claude-x", false).into());
    assert_eq!(gateway.send(request.header("x-gateway-api-key", "pk")).await.status, 200);
    let count = |kind| spool.kinds().into_iter().filter(|entry_kind| *entry_kind == kind).count();
    wait_until("the records are complete", || count(AMEND) > 0 && count(END) == 11).await;

    let frames = spool.frames().into_iter().filter(|frame| [BEGIN, END, AMEND].contains(&frame.kind));
    let mut written: BTreeSet<String> =
        frames.flat_map(|frame| frame.json().as_object().unwrap().keys().cloned().collect::<Vec<_>>()).collect();
    // The log worker reads this field if the amendment never comes, and does not store it.
    assert!(written.remove("pending_usage"));
    let columns = columns_set_by("record");
    assert!(columns.len() > 60, "{columns:?}");
    assert_eq!(columns.difference(&written).collect::<Vec<_>>(), [""; 0], "columns that no record has");
    assert_eq!(written.difference(&columns).collect::<Vec<_>>(), [""; 0], "keys without a column");
}

#[tokio::test]
async fn translation_of_responses_is_measured() {
    for (case, kind) in [("complete", "application/json"), ("stream", "text/event-stream")] {
        let files = golden_case(&format!("anthropic/chatComplete/{case}"));
        let name = if case == "complete" { "response.json" } else { "response.sse" };
        let golden_provider = GoldenProvider::start(200, kind, fs::read(files.path(name)).unwrap(), 50).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        gateway
            .send(golden_provider.build_request("anthropic", CHAT_PATH, chat_body("claude-x", case == "stream").into()))
            .await;
        let record = gateway.single_record();
        let (spent, total) =
            (record["response_parsing_time"].as_f64().unwrap(), record["response_time"].as_f64().unwrap());
        assert!(spent > 0.0 && spent < total, "{case}: {spent} of {total}");
    }
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.send(chat_request("mock")).await;
    assert_eq!(gateway.single_record()["response_parsing_time"], Value::Null);
}
