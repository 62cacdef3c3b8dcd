//! Retries. Attempts and delays follow the config, within the limits of the retry budget.

use std::time::{Duration, Instant};

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, chat_body, chat_with_config,
    failing_provider::{FailingProvider, send_at_rate},
    mock_target, pick_fields, post_with_config, routing_headers,
    scripted_server::{self, ScriptedServer, read_request},
    wait_for_ledger_entries,
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

fn gateway_with_fast_retries(url: &str) -> TestGateway {
    TestGateway::with_settings(url, |settings| {
        settings.retry_backoff_ms = 2;
        settings.retry_budget_min = 1000;
    })
}

fn config_with_retries(attempts: u32, behaviour: &str) -> Value {
    let mut config = mock_target(behaviour);
    config["retry"] = json!({"attempts": attempts});
    config
}

#[tokio::test]
async fn uses_all_attempts_on_persistent_failures() {
    let provider = Server::start().await;
    let gateway = gateway_with_fast_retries(&provider.url());
    for (failing, count) in [("status=429", 4), ("status=500", 8), ("status=529", 12), ("fault=reset", 16)] {
        let response = gateway.send(chat_with_config(&config_with_retries(3, failing))).await;
        assert_eq!(
            (routing_headers(&response)[1], response.header("x-should-retry")),
            ("-1", Some("false")),
            "{failing}"
        );
        wait_for_ledger_entries(&provider, count).await;
    }
    assert_eq!(
        pick_fields(&gateway.drain_records()[0], ["retry_success_count", "response_status_code"]),
        json!([-1, 429])
    );
}

#[tokio::test]
async fn does_not_retry_unlisted_statuses() {
    let provider = Server::start().await;
    let gateway = gateway_with_fast_retries(&provider.url());
    for status in [400, 401, 404, 501] {
        let response = gateway.send(chat_with_config(&config_with_retries(3, &format!("status={status}")))).await;
        assert_eq!((response.status, routing_headers(&response)[1]), (status, "0"));
    }
    wait_for_ledger_entries(&provider, 4).await;
    let mut config = mock_target("status=418");
    config["retry"] = json!({"attempts": 1, "on_status_codes": [418]});
    assert_eq!(routing_headers(&gateway.send(chat_with_config(&config)).await)[1], "-1");
    wait_for_ledger_entries(&provider, 6).await;
}

#[tokio::test]
async fn does_not_retry_requests_that_the_gateway_rejects() {
    let gateway = TestGateway::with_settings("", |settings| settings.retry_backoff_ms = 60_000);
    let saved = json!({"slug": "saved", "provider": "anthropic", "api_key": "k"});
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [saved]}));
    let config = json!({"passthrough": true, "retry": {"attempts": 5, "on_status_codes": [400, 500]}});
    let body = chat_body("@saved/claude", false);
    let response = gateway.send(post_with_config(&config, CHAT_PATH, body.clone())).await;
    assert_eq!(
        (response.status, response.error_code().as_str(), routing_headers(&response)[1]),
        (500, "unsupported_operation", "0"),
        "{}",
        response.text()
    );
    let request = format!(r#"{{"path":"{CHAT_PATH}","body":{body}}}"#);
    let explained = gateway.send(post_with_config(&config, "/v1/explain", request)).await;
    assert_eq!(explained.json()["targets"][0]["error"], "unsupported_operation", "{}", explained.text());
}

/// Starts a provider that returns 429 to the first `times` requests, then 200.
async fn start_failing_provider(times: usize, fields: &'static str) -> ScriptedServer {
    let request_count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    ScriptedServer::start(move |mut io, _| {
        let attempt_count = std::sync::Arc::clone(&request_count);
        async move {
            while read_request(&mut io).await.is_some() {
                let is_good = attempt_count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) >= times;
                let (status, fields) = if is_good { ("200 OK", "") } else { ("429 Too Many Requests", fields) };
                let _ = io.write_all(&scripted_server::json_response(status, fields, "{\"choices\":[]}")).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn response_header_counts_the_retries() {
    for times in 0..4 {
        let provider = start_failing_provider(times, "").await;
        let gateway = gateway_with_fast_retries(&provider.url());
        let config = json!({"provider": "mock", "retry": {"attempts": 3}});
        let reply = gateway.send(chat_with_config(&config)).await;
        assert_eq!((reply.status, routing_headers(&reply)[1]), (200, times.to_string().as_str()));
        assert_eq!(gateway.single_record()["retry_success_count"], times);
        // The gateway reads each discarded response to its end, so that the connection can be reused.
        assert_eq!(provider.connection_count(), 1);
    }
}

#[tokio::test]
async fn retries_after_the_delay_in_retry_after() {
    let provider = start_failing_provider(1, "retry-after-ms: 150\r\n").await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.retry_backoff_ms = 60_000);
    let start = Instant::now();
    let response = gateway
        .send(chat_with_config(&json!({"provider": "mock", "retry": {"attempts": 1, "use_retry_after_header": true}})))
        .await;
    assert_eq!((response.status, routing_headers(&response)[1]), (200, "1"));
    assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());
}

#[tokio::test]
async fn does_not_wait_for_a_retry_after_of_one_minute() {
    let provider = start_failing_provider(9, "retry-after: 60\r\n").await;
    let gateway = gateway_with_fast_retries(&provider.url());
    let response = gateway
        .send(chat_with_config(&json!({"provider": "mock", "retry": {"attempts": 5, "use_retry_after_header": true}})))
        .await;
    assert_eq!((response.status, routing_headers(&response)[1]), (429, "-1"));
}

#[tokio::test]
async fn does_not_start_a_delay_longer_than_the_client_timeout() {
    let provider = start_failing_provider(9, "retry-after: 40\r\n").await;
    let gateway = gateway_with_fast_retries(&provider.url());
    let config = json!({"provider": "mock", "retry": {"attempts": 5, "use_retry_after_header": true}});
    // Both times exceed the timeout of a test, so a wait for either would fail it.
    let response = gateway.send(chat_with_config(&config).header("x-stainless-read-timeout", "30")).await;
    assert_eq!(
        (response.status, routing_headers(&response)[1], response.header("x-should-retry")),
        (429, "-1", Some("false"))
    );
}

#[tokio::test]
async fn sequential_failures_stay_within_the_retry_budget() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.retry_backoff_ms = 1;
        settings.retry_budget_min = 10;
    });
    let config = config_with_retries(3, "status=503");
    let requests: usize = 200;
    let mut spent = 0;
    let start = Instant::now();
    for _ in 0..requests {
        let response = gateway.send(chat_with_config(&config)).await;
        spent += usize::from(routing_headers(&response)[1] == "-1");
    }
    let seconds = start.elapsed().as_secs() as usize + 1;
    assert_eq!(spent, requests);
    let attempts = provider.wait_until_settled(requests, Duration::from_secs(5)).await.len();
    assert!(attempts <= requests + requests / 5 + 10 * (seconds + 1), "{attempts} in {seconds} s");
    assert!(
        gateway
            .drain_records()
            .iter()
            .any(|record| record["decisions"].to_string().contains("the retry budget is exhausted"))
    );
}

#[tokio::test]
async fn target_retry_setting_overrides_the_inherited_one() {
    let provider = Server::start().await;
    let gateway = gateway_with_fast_retries(&provider.url());
    let mut first = mock_target("status=503");
    first["retry"] = json!({"attempts": 0});
    let config = json!({"strategy": {"mode": "fallback"}, "retry": {"attempts": 2}, "targets": [first, mock_target("status=502")]});
    let response = gateway.send(chat_with_config(&config)).await;
    assert_eq!((response.status, routing_headers(&response)), (502, ["config.targets[1]", "-1", "DISABLED"]));
    wait_for_ledger_entries(&provider, 4).await;
}

#[tokio::test]
async fn retries_streams_and_pass_through_paths() {
    let provider = start_failing_provider(2, "").await;
    let gateway = gateway_with_fast_retries(&provider.url());
    let config = json!({"provider": "mock", "retry": {"attempts": 2}});
    assert_eq!(
        routing_headers(&gateway.send(post_with_config(&config, "/v1/proxy/x", chat_body("m", false))).await)[1],
        "2"
    );
    let provider = Server::start().await;
    let gateway = gateway_with_fast_retries(&provider.url());
    for path in [CHAT_PATH, MESSAGES_PATH] {
        let response =
            gateway.send(post_with_config(&config_with_retries(1, "fault=429"), path, chat_body("mock", true))).await;
        assert_eq!((response.status, routing_headers(&response)[1]), (429, "-1"));
    }
    wait_for_ledger_entries(&provider, 4).await;
}

#[tokio::test]
async fn without_a_config_the_client_may_still_retry() {
    let provider = Server::start().await;
    let gateway = gateway_with_fast_retries(&provider.url());
    let response = gateway.send(crate::harness::chat_request("mock?status=503")).await;
    assert_eq!(
        (response.status, response.header("x-should-retry"), routing_headers(&response)),
        (503, None, ["config", "0", "DISABLED"])
    );
    wait_for_ledger_entries(&provider, 1).await;
}

#[tokio::test]
async fn concurrent_failures_stay_within_the_retry_budget() {
    let failing_provider = FailingProvider::start().await;
    let gateway = TestGateway::with_settings(&failing_provider.server.url(), |settings| settings.retry_backoff_ms = 1);
    let mut config = mock_target("ill");
    config["retry"] = json!({"attempts": 3, "on_status_codes": [503]});
    let began = Instant::now();
    let responses = send_at_rate(&gateway, &config, 300, 900).await;
    assert!(responses.iter().all(|(_, _, response)| response.status == 503));
    // Counts only after the first second. Allows 20 % more attempts than requests, plus the floor of ten per second and
    // one second for the change of windows.
    let first = began + Duration::from_secs(1);
    let attempts = failing_provider.request_times().into_iter().filter(|at| *at > first).count();
    let requests = responses.iter().filter(|(at, ..)| *at > first).count();
    let max_attempts = requests * 12 / 10 + 3 * 10;
    assert!(
        requests > 500 && attempts > requests && attempts <= max_attempts,
        "{attempts} for {requests}, {max_attempts} allowed"
    );
    assert!(gateway.state.record_sink.metrics.retries_denied.get() > 0);
}

#[tokio::test]
async fn forbids_client_retries_if_the_used_route_sets_retries() {
    let provider = Server::start().await;
    let gateway = gateway_with_fast_retries(&provider.url());
    let [none, once] = [0, 1].map(|attempts| config_with_retries(attempts, "status=503"));
    let (bad, well) = (mock_target("status=503"), mock_target("chunks=1"));
    let balanced = |chosen: &Value, other: &Value| {
        let mut other = other.clone();
        other["weight"] = json!(0);
        json!({"strategy": {"mode": "loadbalance"}, "targets": [chosen, other]})
    };
    let group = json!({"strategy": {"mode": "fallback"}, "targets": [bad, bad]});
    let mut inherited = balanced(&bad, &bad);
    inherited["retry"] = json!({"attempts": 0});
    let hedged = json!({"strategy": {"mode": "fallback", "hedge": {"after_ms": 1000}}, "targets": [bad, bad]});
    for (config, expected, attempts) in [
        (&none, Some("false"), 1),
        (&once, Some("false"), 2),
        (&bad, None, 1),
        (&balanced(&bad, &once), None, 1),
        (&balanced(&bad, &group), None, 1),
        (&balanced(&none, &bad), Some("false"), 1),
        (&balanced(&group, &bad), Some("false"), 2),
        (&inherited, Some("false"), 1),
        (&hedged, Some("false"), 2),
        (&config_with_retries(1, "chunks=1"), None, 1),
        (&balanced(&well, &once), None, 1),
    ] {
        provider.clear_ledger();
        let response = gateway.send(chat_with_config(config)).await;
        assert_eq!(response.header("x-should-retry"), expected, "{config}");
        wait_for_ledger_entries(&provider, attempts).await;
    }
}
