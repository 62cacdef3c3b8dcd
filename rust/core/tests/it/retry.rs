//! A request is sent to its target again as often and as soon as its config says, and no more often than its target can bear.

use std::time::{Duration, Instant};

use crate::harness::{
    CHAT, MESSAGES, Rig, by, by_with,
    ill::{Ill, storm},
    pick,
    scripted::{self, Scripted, request},
    settled, target, way, words,
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

fn quick(url: &str) -> Rig {
    Rig::with(url, |settings| {
        settings.retry_backoff_ms = 2;
        settings.retry_budget_floor = 1000;
    })
}

fn retried(attempts: u32, behaviour: &str) -> Value {
    let mut config = target(behaviour);
    config["retry"] = json!({"attempts": attempts});
    config
}

#[tokio::test]
async fn all_attempts_are_spent_on_what_keeps_failing() {
    let provider = Server::start().await;
    let rig = quick(&provider.url());
    for (failing, count) in [("status=429", 4), ("status=500", 8), ("status=529", 12), ("fault=reset", 16)] {
        let told = rig.send(by(&retried(3, failing))).await;
        assert_eq!((way(&told)[1], told.header("x-should-retry")), ("-1", Some("false")), "{failing}");
        settled(&provider, count).await;
    }
    assert_eq!(pick(&rig.records()[0], ["retry_success_count", "response_status_code"]), json!([-1, 429]));
}

#[tokio::test]
async fn what_is_not_listed_comes_back_at_once() {
    let provider = Server::start().await;
    let rig = quick(&provider.url());
    for status in [400, 401, 404, 501] {
        let told = rig.send(by(&retried(3, &format!("status={status}")))).await;
        assert_eq!((told.status, way(&told)[1]), (status, "0"));
    }
    settled(&provider, 4).await;
    let mut config = target("status=418");
    config["retry"] = json!({"attempts": 1, "on_status_codes": [418]});
    assert_eq!(way(&rig.send(by(&config)).await)[1], "-1");
    settled(&provider, 6).await;
}

#[tokio::test]
async fn what_is_refused_here_is_not_tried_again() {
    let rig = Rig::with("", |settings| settings.retry_backoff_ms = 60_000);
    let saved = json!({"slug": "saved", "provider": "anthropic", "api_key": "k"});
    rig.apply(&json!({"epoch": "1", "providers": [saved]}));
    let config = json!({"passthrough": true, "retry": {"attempts": 5, "on_status_codes": [400, 500]}});
    let body = words("@saved/claude", false);
    let told = rig.send(by_with(&config, CHAT, body.clone())).await;
    assert_eq!(
        (told.status, told.code().as_str(), way(&told)[1]),
        (500, "unsupported_operation", "0"),
        "{}",
        told.text()
    );
    let asked = format!(r#"{{"path":"{CHAT}","body":{body}}}"#);
    let explained = rig.send(by_with(&config, "/v1/explain", asked)).await;
    assert_eq!(explained.json()["targets"][0]["error"], "unsupported_operation", "{}", explained.text());
}

/// Fails so many times, then answers.
async fn failing(times: usize, fields: &'static str) -> Scripted {
    let made = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    Scripted::start(move |mut io, _| {
        let made = std::sync::Arc::clone(&made);
        async move {
            while request(&mut io).await.is_some() {
                let is_good = made.fetch_add(1, std::sync::atomic::Ordering::SeqCst) >= times;
                let (status, fields) = if is_good { ("200 OK", "") } else { ("429 Too Many Requests", fields) };
                let _ = io.write_all(&scripted::whole(status, fields, "{\"choices\":[]}")).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn an_answer_says_after_which_retry_it_came() {
    for times in 0..4 {
        let provider = failing(times, "").await;
        let rig = quick(&provider.url());
        let config = json!({"provider": "mock", "retry": {"attempts": 3}});
        let told = rig.send(by(&config)).await;
        assert_eq!((told.status, way(&told)[1]), (200, times.to_string().as_str()));
        assert_eq!(rig.record()["retry_success_count"], times);
        // What nobody wanted was read, so that its connection could serve again.
        assert_eq!(provider.connections(), 1);
    }
}

#[tokio::test]
async fn a_provider_that_says_when_is_asked_again_then() {
    let provider = failing(1, "retry-after-ms: 150\r\n").await;
    let rig = Rig::with(&provider.url(), |settings| settings.retry_backoff_ms = 60_000);
    let start = Instant::now();
    let told =
        rig.send(by(&json!({"provider": "mock", "retry": {"attempts": 1, "use_retry_after_header": true}}))).await;
    assert_eq!((told.status, way(&told)[1]), (200, "1"));
    assert!((150..400).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
}

#[tokio::test]
async fn nobody_is_kept_waiting_for_a_minute() {
    let provider = failing(9, "retry-after: 60\r\n").await;
    let rig = quick(&provider.url());
    let start = Instant::now();
    let told =
        rig.send(by(&json!({"provider": "mock", "retry": {"attempts": 5, "use_retry_after_header": true}}))).await;
    assert_eq!((told.status, way(&told)[1]), (429, "-1"));
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_wait_that_the_caller_would_not_live_to_see_is_not_begun() {
    let provider = failing(9, "retry-after: 5\r\n").await;
    let rig = quick(&provider.url());
    let config = json!({"provider": "mock", "retry": {"attempts": 5, "use_retry_after_header": true}});
    let start = Instant::now();
    let told = rig.send(by(&config).header("x-stainless-read-timeout", "2")).await;
    assert_eq!((told.status, way(&told)[1], told.header("x-should-retry")), (429, "-1", Some("false")));
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn when_all_fails_there_are_no_more_attempts_than_the_budget_allows() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| {
        settings.retry_backoff_ms = 1;
        settings.retry_budget_floor = 10;
    });
    let config = retried(3, "status=503");
    let requests: usize = 200;
    let mut spent = 0;
    let start = Instant::now();
    for _ in 0..requests {
        let told = rig.send(by(&config)).await;
        spent += usize::from(way(&told)[1] == "-1");
    }
    let seconds = start.elapsed().as_secs() as usize + 1;
    assert_eq!(spent, requests);
    let attempts = provider.wait_until_settled(requests, Duration::from_secs(5)).await.len();
    assert!(attempts <= requests + requests / 5 + 10 * (seconds + 1), "{attempts} in {seconds} s");
    assert!(rig.records().iter().any(|record| record["decisions"].to_string().contains("the retry budget is spent")));
}

#[tokio::test]
async fn a_nearer_setting_and_a_further_one_hold_where_they_stand() {
    let provider = Server::start().await;
    let rig = quick(&provider.url());
    let mut first = target("status=503");
    first["retry"] = json!({"attempts": 0});
    let config =
        json!({"strategy": {"mode": "fallback"}, "retry": {"attempts": 2}, "targets": [first, target("status=502")]});
    let told = rig.send(by(&config)).await;
    assert_eq!((told.status, way(&told)), (502, ["config.targets[1]", "-1", "DISABLED"]));
    settled(&provider, 4).await;
}

#[tokio::test]
async fn streams_and_paths_that_are_passed_through_are_retried_too() {
    let provider = failing(2, "").await;
    let rig = quick(&provider.url());
    let config = json!({"provider": "mock", "retry": {"attempts": 2}});
    assert_eq!(way(&rig.send(by_with(&config, "/v1/proxy/x", words("m", false))).await)[1], "2");
    let provider = Server::start().await;
    let rig = quick(&provider.url());
    for path in [CHAT, MESSAGES] {
        let told = rig.send(by_with(&retried(1, "fault=429"), path, words("mock", true))).await;
        assert_eq!((told.status, way(&told)[1]), (429, "-1"));
    }
    settled(&provider, 4).await;
}

#[tokio::test]
async fn without_a_config_a_client_may_still_try_again() {
    let provider = Server::start().await;
    let rig = quick(&provider.url());
    let told = rig.send(crate::harness::chat("mock?status=503")).await;
    assert_eq!((told.status, told.header("x-should-retry"), way(&told)), (503, None, ["config", "0", "DISABLED"]));
    settled(&provider, 1).await;
}

#[tokio::test]
async fn where_all_fails_there_are_few_more_attempts_than_requests() {
    let ill = Ill::start().await;
    let rig = Rig::with(&ill.provider.url(), |settings| settings.retry_backoff_ms = 1);
    let mut config = target("ill");
    config["retry"] = json!({"attempts": 3, "on_status_codes": [503]});
    let began = Instant::now();
    let answers = storm(&rig, &config, 300, 900).await;
    assert!(answers.iter().all(|(_, _, told)| told.status == 503));
    // After the first second: a fifth more, and the floor of ten a second with one second's change of windows.
    let first = began + Duration::from_secs(1);
    let attempts = ill.asked().into_iter().filter(|at| *at > first).count();
    let requests = answers.iter().filter(|(at, ..)| *at > first).count();
    let most = requests * 12 / 10 + 3 * 10;
    assert!(requests > 500 && attempts > requests && attempts <= most, "{attempts} for {requests}, {most} allowed");
    assert!(rig.gateway.record_sink.metrics.retries_denied.get() > 0);
}

#[tokio::test]
async fn a_client_is_told_not_to_try_again_where_the_config_says_something_of_that_on_the_way_that_it_went() {
    let provider = Server::start().await;
    let rig = quick(&provider.url());
    let [none, once] = [0, 1].map(|attempts| retried(attempts, "status=503"));
    let (bad, well) = (target("status=503"), target("chunks=1"));
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
        (&retried(1, "chunks=1"), None, 1),
        (&balanced(&well, &once), None, 1),
    ] {
        provider.clear_ledger();
        let told = rig.send(by(config)).await;
        assert_eq!(told.header("x-should-retry"), expected, "{config}");
        settled(&provider, attempts).await;
    }
}
