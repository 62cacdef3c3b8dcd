//! State that outlives a request. A background response is billed once, on the request that first sees its usage, and
//! tool calls get their signatures back. Nodes that share a Redis share both.

use std::sync::{Arc, Mutex};

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest,
    redis_server::RedisServer,
    scripted_server::{ScriptedServer, gzip_compress, gzip_response, read_request},
    wait_until,
};
use penstock_core::process::secret::Secret;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const RESPONSES_PATH: &str = "/v1/responses";
const STORED_RESPONSE_PATH: &str = "/v1/responses/resp_1";
/// 10 input tokens at 1,000 nano-dollars each, and 2 output tokens at 2,000.
const RESPONSE_COST_NANODOLLARS: u64 = 14_000;

fn response_body(status: &str, usage: &Value) -> String {
    json!({"id": "resp_1", "object": "response", "status": status, "background": true, "model": "gpt-own-name",
        "output": [], "usage": usage})
    .to_string()
}

fn completed_response() -> String {
    response_body("completed", &json!({"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}))
}

fn ok_response(kind: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Starts a provider of background responses. It answers a create request with a queued response, and a lookup or
/// cancel request with the completed one, plain or gzip-compressed.
async fn start_responses_provider(is_packed: bool) -> ScriptedServer {
    ScriptedServer::start(move |mut stream, _| async move {
        while let Some(request) = read_request(&mut stream).await {
            let request = String::from_utf8_lossy(&request).into_owned();
            let begins = request.starts_with("POST /v1/responses ");
            let text = if begins { response_body("queued", &Value::Null) } else { completed_response() };
            let response = if request.contains("stream=true") {
                let event = format!(
                    "event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{text}}}\n\n"
                );
                ok_response("text/event-stream", event.as_bytes())
            } else if is_packed {
                gzip_response("application/json", &gzip_compress(&text))
            } else {
                ok_response("application/json", text.as_bytes())
            };
            stream.write_all(&response).await.unwrap();
        }
    })
    .await
}

fn apply_prices(gateway: &TestGateway) {
    let price = json!({"version": "v", "rates": {"input": [[0, 1_000_000]], "output": [[0, 2_000_000]]}});
    let prices_json = json!([{"provider": "mock", "model": "asked-for", "prices": [price]}]);
    gateway.apply_snapshot(&json!({"epoch": "1", "prices": {"overrides": prices_json}}));
}

fn responses_request(method: &str, path: &str) -> TestRequest {
    let body = json!({"model": "asked-for", "input": "a question of some length", "background": true}).to_string();
    let body = if path == RESPONSES_PATH { body } else { String::new() };
    TestRequest::new(method, path)
        .header("content-type", "application/json")
        .header("x-gateway-provider", "mock")
        .body(body)
}

/// Returns the only new record. Waits for it, because the gateway may first ask Redis which request pays.
async fn wait_for_record(gateway: &TestGateway) -> Value {
    let mut records = Vec::new();
    wait_until("a record", || {
        records.extend(gateway.drain_records());
        !records.is_empty()
    })
    .await;
    assert_eq!(records.len(), 1, "{records:#?}");
    records.remove(0)
}

/// Sends the requests one by one. Returns the cost, units and model that each record shows.
async fn collect_costs(gateway: &TestGateway, requests: &[(&str, &str)]) -> Vec<Value> {
    let mut costs = Vec::new();
    for (method, path) in requests {
        let response = gateway.send(responses_request(method, path)).await;
        assert_eq!(response.status, 200, "{}", response.text());
        let record = wait_for_record(gateway).await;
        costs.push(json!([record.get("cost_nanodollars"), record.get("total_units"), record["ai_model"]]));
    }
    costs
}

#[tokio::test]
async fn background_response_is_billed_once() {
    let (nothing, begun) = (json!([null, null, ""]), json!([null, null, "asked-for"]));
    let paid = json!([RESPONSE_COST_NANODOLLARS, 12, "asked-for"]);
    for is_packed in [false, true] {
        let provider = start_responses_provider(is_packed).await;
        let gateway = TestGateway::for_url(&provider.url());
        apply_prices(&gateway);
        let streamed = format!("{STORED_RESPONSE_PATH}?stream=true");
        let cancel = format!("{STORED_RESPONSE_PATH}/cancel");
        let lookups = [("GET", STORED_RESPONSE_PATH), ("GET", &streamed), ("POST", &cancel)];
        // A response that no client created through this gateway is not billed.
        assert_eq!(
            collect_costs(&gateway, &lookups).await,
            [nothing.clone(), nothing.clone(), nothing.clone()],
            "{is_packed}"
        );
        for first in 0..lookups.len() {
            let others = [lookups[(first + 1) % 3], lookups[(first + 2) % 3]];
            let requests = [("POST", RESPONSES_PATH), lookups[first], others[0], others[1]];
            let expected = [begun.clone(), paid.clone(), nothing.clone(), nothing.clone()];
            assert_eq!(collect_costs(&gateway, &requests).await, expected, "{is_packed} {first}");
        }
    }
}

/// After a broken stream, the request that fetches the rest carries the cost of the complete response.
#[tokio::test]
async fn broken_background_stream_is_billed_on_resume() {
    let provider = ScriptedServer::start(move |mut stream, _| async move {
        while let Some(request) = read_request(&mut stream).await {
            let begins = request.starts_with(b"POST ");
            let event =
                |kind: &str, text: &str| format!("data: {{\"type\":\"response.{kind}\",\"response\":{text}}}\n\n");
            if begins {
                let begun = event("created", &response_body("in_progress", &Value::Null));
                let word = "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a word\"}\n\n";
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99999\r\n\r\n";
                stream.write_all([head, &begun, word].concat().as_bytes()).await.unwrap();
                return;
            }
            let response = ok_response("text/event-stream", event("completed", &completed_response()).as_bytes());
            stream.write_all(&response).await.unwrap();
        }
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    apply_prices(&gateway);
    let body = json!({"model": "asked-for", "input": "hi", "background": true, "stream": true}).to_string();
    gateway.send(responses_request("POST", RESPONSES_PATH).body(body)).await;
    let record = gateway.single_record();
    assert_eq!((record.get("total_units"), &record["outcome"]), (None, &json!("cut")), "{record:#}");
    let streamed = format!("{STORED_RESPONSE_PATH}?stream=true&starting_after=1");
    let expected = [json!([RESPONSE_COST_NANODOLLARS, 12, "asked-for"]), json!([null, null, ""])];
    assert_eq!(collect_costs(&gateway, &[("GET", &streamed), ("GET", STORED_RESPONSE_PATH)]).await, expected);
}

/// Starts one of several gateways that share a Redis.
async fn start_node(provider_url: &str, redis: &RedisServer) -> TestGateway {
    let gateway =
        TestGateway::with_settings(provider_url, |settings| settings.redis_url = Some(Secret::new(redis.url())));
    let state = Arc::clone(&gateway.state);
    tokio::spawn(async move { state.shared.sync_with_redis().await });
    wait_until("Redis is there", || gateway.state.shared.redis.as_ref().unwrap().is_available()).await;
    gateway
}

/// Polls Redis until exactly `count` keys match the pattern.
async fn wait_for_key_count(redis: &RedisServer, pattern: &str, count: usize) {
    let mut connection = redis.connect().await;
    for _ in 0..2_000 {
        let names: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut connection).await.unwrap();
        if names.len() == count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    panic!("never {count} of {pattern}");
}

/// Polls Redis until the key has the expected value.
async fn wait_for_key_value(redis: &RedisServer, name: &str, expected: &str) {
    let mut connection = redis.connect().await;
    for _ in 0..2_000 {
        let content: Option<String> = redis::cmd("GET").arg(name).query_async(&mut connection).await.unwrap();
        if content.as_deref() == Some(expected) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    panic!("{name} is never {expected:?}");
}

#[tokio::test]
async fn background_response_is_billed_on_another_node() {
    let (provider, redis) = (start_responses_provider(false).await, RedisServer::start().await);
    let (first_node, other) = (start_node(&provider.url(), &redis).await, start_node(&provider.url(), &redis).await);
    apply_prices(&first_node);
    apply_prices(&other);
    assert_eq!(collect_costs(&first_node, &[("POST", RESPONSES_PATH)]).await, [json!([null, null, "asked-for"])]);
    wait_for_key_count(&redis, "penstock:due:*", 1).await;
    assert_eq!(
        collect_costs(&other, &[("GET", STORED_RESPONSE_PATH)]).await,
        [json!([RESPONSE_COST_NANODOLLARS, 12, "asked-for"])]
    );
    wait_for_key_value(&redis, "penstock:due:mock/resp_1", "").await;
    // No node bills the response again, not even the one that created it.
    for node in [&other, &first_node] {
        assert_eq!(collect_costs(node, &[("GET", STORED_RESPONSE_PATH)]).await, [json!([null, null, ""])]);
    }
}

/// Starts a mock of Gemini that signs its function calls. Also returns the requests that it receives.
async fn start_gemini() -> (ScriptedServer, Arc<Mutex<Vec<String>>>) {
    let received = Arc::new(Mutex::new(Vec::new()));
    let shared_log = Arc::clone(&received);
    let provider = ScriptedServer::start(move |mut stream, _| {
        let shared_log = Arc::clone(&shared_log);
        async move {
            while let Some(request) = read_request(&mut stream).await {
                shared_log.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
                let response = json!({"responseId": "r", "candidates": [{"finishReason": "STOP", "content": {"parts": [
                    {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2lnbmVk"}]}}]});
                stream.write_all(&ok_response("application/json", response.to_string().as_bytes())).await.unwrap();
            }
        }
    })
    .await;
    (provider, received)
}

#[tokio::test]
async fn nodes_share_tool_call_signatures_of_the_same_caller() {
    let ((provider, received_count), redis) = (start_gemini().await, RedisServer::start().await);
    let (first_node, other) = (start_node(&provider.url(), &redis).await, start_node(&provider.url(), &redis).await);
    let build_request = |key: &str, turns: &Value| {
        let config = json!({"provider": "google", "custom_host": provider.url(), "api_key": key});
        let body = json!({"model": "gemini-3-flash", "messages": turns}).to_string();
        TestRequest::new("POST", CHAT_PATH)
            .header("content-type", "application/json")
            .header("x-gateway-config", &config.to_string())
            .body(body)
    };
    let message = json!({"role": "user", "content": "hi"});
    let response: Value =
        serde_json::from_slice(&first_node.send(build_request("sk-1", &json!([message]))).await.body).unwrap();
    wait_for_key_count(&redis, "penstock:signature:*", 1).await;
    let call = &response["choices"][0]["message"]["tool_calls"][0];
    let calls = json!([{"id": call["id"], "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "r"});
    let turns = json!([message, {"role": "assistant", "tool_calls": calls}, result]);
    for (key, is_found) in [("sk-1", true), ("sk-2", false)] {
        let response = other.send(build_request(key, &turns)).await;
        assert_eq!(response.header("x-gateway-not-translated"), (!is_found).then_some("thought_signature"), "{key}");
        let last = received_count.lock().unwrap().last().unwrap().clone();
        assert_eq!(last.contains("c2lnbmVk"), is_found, "{last}");
    }
}
