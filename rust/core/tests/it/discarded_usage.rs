//! Responses that no client gets, because a guardrail, a retry, another target or a faster one replaces them: the
//! provider bills them, so they count for budgets.

use std::time::Duration;

use penstock_llm::tokens::{count_request_body, encoding_for_model};
use penstock_mock::Server;
use serde_json::{Value, json};

use crate::{
    harness::{
        CHAT_PATH, TestGateway, TestRequest, chat_body, into_stream, mock_target, wait_for_ledger_entries, with_timeout,
    },
    limit_admission::{limit, start_gateway},
};

const LIMIT: u64 = 1_000_000_000;

fn post(path: &str, config: &Value, body: String) -> TestRequest {
    let request = TestRequest::new("POST", path).header("x-gateway-api-key", "pk");
    request.header("content-type", "application/json").header("x-gateway-config", &config.to_string()).body(body)
}

/// Sends a chat; returns its status, and its record once that is written.
async fn send(gateway: &TestGateway, config: &Value, is_stream: bool) -> (u16, Value) {
    let response = gateway.send(post(CHAT_PATH, config, chat_body("mock", is_stream))).await;
    (response.status, gateway.single_record())
}

/// Returns what is left of the budget, in its units.
async fn read_remaining(gateway: &TestGateway, measure: &str) -> u64 {
    let body: Value = serde_json::from_str(&chat_body("mock", false)).unwrap();
    let request = json!({"path": CHAT_PATH, "headers": {"x-gateway-provider": "mock"}, "body": body});
    let explanation = gateway.send(post("/v1/explain", &json!({"provider": "mock"}), request.to_string())).await;
    gateway.drain_records();
    let remaining = explanation.json()["targets"][0]["limits"][0]["remaining"].as_f64().unwrap();
    let unit = if measure == "cost" { 1e9 } else { 1.0 };
    format!("{:.0}", remaining * unit).parse().unwrap()
}

fn discarded_amount(record: &Value) -> u64 {
    let budgets = record["limits"]["budgets"].as_array().unwrap();
    let amounts: Vec<_> = budgets.iter().filter_map(|budget| budget["amount"].as_u64()).collect();
    assert!(amounts.len() <= 1, "{record}");
    amounts.iter().sum()
}

async fn start(measure: &str, enforcement: &str) -> (Server, TestGateway) {
    let fields = json!({"type": measure, "limit": LIMIT, "period": {"start": 1}, "enforcement": enforcement});
    start_gateway(json!([limit("policy", "any", &fields)])).await
}

/// A guardrail that denies every response of the mock provider.
fn denies_all() -> Value {
    json!([{"contains": {"words": ["no-such-word"], "operator": "any"}, "deny": true, "id": "never"}])
}

#[tokio::test]
async fn each_response_that_is_not_used_counts_once() {
    let target = json!({"provider": "mock"});
    let denied = json!({"provider": "mock", "output_guardrails": denies_all()});
    let mut retried = denied.clone();
    retried["retry"] = json!({"attempts": 1, "on_status_codes": [446]});
    let fallback = |status: u16, targets: Value| json!({"strategy": {"mode": "fallback", "on_status_codes": [status]}, "targets": targets});
    for (measure, field) in [("tokens", "total_units"), ("cost", "cost_nanodollars")] {
        let (provider, gateway) = start(measure, "soft").await;
        for is_stream in [false, true] {
            let before = read_remaining(&gateway, measure).await;
            let (status, record) = send(&gateway, &target, is_stream).await;
            let usage = record[field].as_u64().unwrap();
            assert!(status == 200 && usage > 0, "{record}");
            assert_eq!(read_remaining(&gateway, measure).await, before - usage, "{measure} {is_stream}");
            for (config, expected_status, calls) in [
                (fallback(446, json!([retried, target])), 200, 3),
                (fallback(200, json!([target, target])), 200, 2),
                (json!({"provider": "mock", "retry": {"attempts": 2, "on_status_codes": [200]}}), 200, 3),
                (retried.clone(), 446, 2),
                (denied.clone(), 446, 1),
            ] {
                provider.clear_ledger();
                let before = read_remaining(&gateway, measure).await;
                let (status, record) = send(&gateway, &config, is_stream).await;
                wait_for_ledger_entries(&provider, calls).await;
                assert_eq!(status, expected_status, "{config}");
                let counted = (record[field].as_u64().unwrap_or(0), discarded_amount(&record));
                assert_eq!(counted, (usage, usage * (calls as u64 - 1)), "{measure} {is_stream} {config}: {record}");
                assert_eq!(
                    read_remaining(&gateway, measure).await,
                    before - usage * calls as u64,
                    "{measure} {is_stream} {config}"
                );
            }
        }
    }
}

#[tokio::test]
async fn denied_response_of_unknown_usage_counts_as_what_it_holds() {
    for measure in ["tokens", "cost"] {
        let (provider, gateway) = start(measure, "soft").await;
        // The body is compressed, or has no usage.
        for behaviour in ["fault=gzip", "usage=false"] {
            for (is_stream, calls) in [(false, 1), (true, 1), (false, 2)] {
                let mut config = mock_target(behaviour);
                config["output_guardrails"] = denies_all();
                config["retry"] = json!({"attempts": calls - 1, "on_status_codes": [446]});
                provider.clear_ledger();
                let before = read_remaining(&gateway, measure).await;
                let (status, record) = send(&gateway, &config, is_stream).await;
                wait_for_ledger_entries(&provider, calls).await;
                assert_eq!(status, 446, "{behaviour} {is_stream}: {record}");
                let counted = discarded_amount(&record);
                assert!(counted > 0, "{behaviour} {is_stream} {calls}: {record}");
                assert_eq!(
                    read_remaining(&gateway, measure).await,
                    before - counted,
                    "{behaviour} {is_stream} {calls}"
                );
            }
        }
    }
}

#[tokio::test]
async fn discarded_response_counts_for_a_used_up_dry_run_budget() {
    for (measure, field) in [("tokens", "total_units"), ("cost", "cost_nanodollars")] {
        let fields = json!({"type": measure, "limit": 1, "period": {"start": 1}, "dry_run": true});
        let (_provider, gateway) = start_gateway(json!([limit("policy", "any", &fields)])).await;
        let (_, record) = send(&gateway, &json!({"provider": "mock"}), false).await;
        let usage = record[field].as_u64().unwrap();
        let retried = json!({"provider": "mock", "retry": {"attempts": 2, "on_status_codes": [200]}});
        let (status, record) = send(&gateway, &retried, false).await;
        assert_eq!((status, record[field].as_u64()), (200, Some(usage)), "{record}");
        assert_eq!(discarded_amount(&record), 2 * usage, "{measure}: {record}");
    }
}

#[tokio::test]
async fn cancelled_hedge_counts_as_what_it_holds() {
    let slow = mock_target("first_ms=30000");
    let well = mock_target("first_ms=200");
    for enforcement in ["soft", "hard"] {
        let (_provider, gateway) = start("tokens", enforcement).await;
        for (after_ms, targets) in [(20, [&slow, &well]), (20, [&well, &slow])] {
            let before = read_remaining(&gateway, "tokens").await;
            let strategy = json!({"mode": "fallback", "hedge": {"after_ms": after_ms, "max_ratio": 1}});
            let config = json!({"strategy": strategy, "targets": targets});
            let (status, record) = send(&gateway, &config, false).await;
            assert_eq!(status, 200, "{record}");
            let (used, reserved) = (record["total_units"].as_u64().unwrap(), discarded_amount(&record));
            assert!(used > 0 && reserved > 0, "{record}");
            assert_eq!(
                read_remaining(&gateway, "tokens").await,
                before - used - reserved,
                "{enforcement} {config}: {record}"
            );
        }
    }
}

#[tokio::test]
async fn response_that_the_client_does_not_wait_for_counts_as_what_it_holds() {
    let (_provider, gateway) = start("tokens", "hard").await;
    let mut checked = mock_target("chunk_ms=100&chunks=1000");
    let mut recovered = checked.clone();
    checked["output_guardrails"] = denies_all();
    recovered["recovery"] = json!({"mode": "hold"});
    for config in [checked, recovered] {
        let before = read_remaining(&gateway, "tokens").await;
        let request = post(CHAT_PATH, &config, chat_body("mock", true)).header("x-stainless-timeout", "0.3");
        let response = gateway.send(request).await;
        assert_eq!(response.status, 408, "{}", response.text());
        let record = gateway.single_record();
        let reserved = discarded_amount(&record);
        assert!(reserved > 0, "{config}: {record}");
        assert_eq!(read_remaining(&gateway, "tokens").await, before - reserved, "{config}: {record}");
    }
}

/// Returns the number of tokens of the body of a chat.
fn input_tokens(is_stream: bool) -> u64 {
    let body = chat_body("mock", is_stream);
    count_request_body(encoding_for_model("mock"), body.as_bytes()).unwrap() as u64
}

#[tokio::test]
async fn request_that_the_client_cancels_counts_its_input() {
    for enforcement in ["soft", "hard"] {
        let (provider, gateway) = start("tokens", enforcement).await;
        for is_stream in [false, true] {
            provider.clear_ledger();
            let before = read_remaining(&gateway, "tokens").await;
            let request = post(CHAT_PATH, &mock_target("first_ms=30000"), chat_body("mock", is_stream));
            let answer = gateway.handle_request(request);
            assert!(tokio::time::timeout(Duration::from_millis(100), answer).await.is_err(), "it was answered");
            wait_for_ledger_entries(&provider, 1).await;
            let record = gateway.single_record();
            let used = record["total_units"].as_u64();
            assert_eq!((record["outcome"].as_str(), used), (Some("aborted"), Some(input_tokens(is_stream))));
            assert_eq!(read_remaining(&gateway, "tokens").await, before - used.unwrap(), "{enforcement} {is_stream}");
        }
    }
}

#[tokio::test]
async fn stream_that_the_client_cancels_counts_what_it_got() {
    let (_provider, gateway) = start("tokens", "hard").await;
    for (read, expected_output) in [(0, 0), (4, 1)] {
        let before = read_remaining(&gateway, "tokens").await;
        let config = mock_target("chunks=1000&chunk_ms=20&usage=false");
        let response = gateway.handle_request(post(CHAT_PATH, &config, chat_body("mock", true))).await;
        let mut stream = into_stream(response);
        for _ in 0..read {
            with_timeout(stream.next()).await.unwrap().unwrap();
        }
        drop(stream);
        let record = gateway.single_record();
        let [input, output] = ["req_units", "res_units"].map(|field| record[field].as_u64().unwrap());
        assert_eq!(input, input_tokens(true), "{record}");
        assert!(output >= expected_output, "{record}");
        assert_eq!(read_remaining(&gateway, "tokens").await, before - input - output, "{record}");
    }
}

#[tokio::test]
async fn attempt_that_times_out_counts_its_input() {
    let mut slow = mock_target("first_ms=30000");
    slow["request_timeout"] = json!(100);
    let target = json!({"provider": "mock"});
    let fallback = json!({"strategy": {"mode": "fallback", "on_status_codes": [408]}, "targets": [slow, target]});
    let mut retried = slow.clone();
    retried["retry"] = json!({"attempts": 1, "on_status_codes": [408]});
    let hedged = json!({"strategy": {"mode": "fallback", "on_status_codes": [408],
        "hedge": {"after_ms": 20, "max_ratio": 1}}, "targets": [slow, mock_target("first_ms=300")]});
    let (_provider, gateway) = start("tokens", "soft").await;
    let input = input_tokens(false);
    for (config, expected_status, timed_out) in
        [(&slow, 408, 0), (&retried, 408, 1), (&fallback, 200, 1), (&hedged, 200, 1)]
    {
        let before = read_remaining(&gateway, "tokens").await;
        let (status, record) = send(&gateway, config, false).await;
        let counted = (status, discarded_amount(&record));
        assert_eq!(counted, (expected_status, timed_out * input), "{config}: {record}");
        let used = record["total_units"].as_u64().unwrap();
        assert!(status == 200 || used == input, "{config}: {record}");
        assert_eq!(read_remaining(&gateway, "tokens").await, before - used - timed_out * input, "{config}");
    }
}

#[tokio::test]
async fn request_that_reaches_no_provider_counts_nothing() {
    let (provider, gateway) = start("tokens", "soft").await;
    drop(provider);
    let before = read_remaining(&gateway, "tokens").await;
    let (status, record) = send(&gateway, &json!({"provider": "mock"}), false).await;
    assert_eq!((status, record["total_units"].as_u64()), (502, None), "{record}");
    assert_eq!(read_remaining(&gateway, "tokens").await, before);
}
