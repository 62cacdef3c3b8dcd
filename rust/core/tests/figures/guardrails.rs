//! Time of guardrails: five checks on a text of 2 KB, checks of a stream in portions, and hosts that are called in
//! parallel or hang. Also measures a request without any guardrail.

use std::{
    hint::black_box,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use penstock_core::{
    guardrails::{
        checks::{CheckInput, Stage},
        saved::compile_content,
        window::PlaceholderNames,
    },
    parse::document_reader::Strictness,
    state::snapshot::Snapshot,
};
use penstock_llm::{operation::Operation, texts::request_texts};
use penstock_net::headers::Headers;
use serde_json::{Value, json};

use crate::harness::{TestGateway, mock_target, post_with_config};

const MAX_CHECKS_TIME: Duration = Duration::from_micros(30);
const MAX_PORTION_TIME: Duration = Duration::from_micros(2);
const MAX_NOTHING_TIME: Duration = Duration::from_nanos(200);
/// Time that a host takes for its reply.
const HOST_TIME: Duration = Duration::from_millis(20);
/// Maximum time that two hosts, called in parallel, add to a request.
const MAX_ADDED_BY_HOSTS: Duration = Duration::from_millis(23);
/// Maximum time that a hanging host adds to a request after its circuit breaker has opened.
const MAX_ADDED_BY_HANGING_HOST: Duration = Duration::from_millis(1);
/// Timeout of a call to the hanging host.
const HANGING_TIMEOUT: Duration = Duration::from_millis(100);
/// Number of failed calls after which a host is not called any more.
const FAILING_CALLS: usize = 5;
const ROUNDS: usize = 200;

/// Returns the time of one call in the fastest of several rounds, because other load only makes rounds longer.
fn shortest(calls: u32, mut call: impl FnMut()) -> Duration {
    let round = |call: &mut dyn FnMut()| {
        let began = Instant::now();
        (0..calls).for_each(|_| call());
        began.elapsed() / calls
    };
    (0..ROUNDS).map(|_| round(&mut call)).min().unwrap_or_default()
}

fn input<'i>(request: &'i Value, texts: &'i [penstock_llm::texts::TextPart], headers: &'i Headers) -> CheckInput<'i> {
    CheckInput {
        stage: Stage::Input,
        operation: Operation::ChatComplete,
        provider: "mock",
        model: "m",
        is_streaming: false,
        metadata: &[],
        headers,
        request,
        response: &Value::Null,
        texts,
    }
}

#[test]
fn five_checks_take_at_most_thirty_microseconds() {
    let content = json!({"checks": [
        {"id": "default.contains", "parameters": {"words": ["canary", "secret"], "operator": "none"}},
        {"id": "default.regexMatch", "parameters": {"rule": "[A-Z]{3}-[0-9]{6}", "not": true}},
        {"id": "default.wordCount", "parameters": {"maxWords": 5000}},
        {"id": "gateway.pii", "parameters": {"categories": ["EMAIL_ADDRESS", "CREDIT_CARD", "SSN"]}},
        {"id": "default.sentenceCount", "parameters": {"maxSentences": 500}},
    ]});
    let hook = compile_content(&content, Strictness::Strict).unwrap();
    let request = json!({"messages": [{"role": "user", "content": "A usual sentence of a user. ".repeat(74)}]});
    let (texts, headers) = (request_texts(&request), Headers::default());
    let elapsed = shortest(50, || {
        for check in &hook.checks {
            black_box(check.check.check.run(&input(&request, &texts, &headers))).unwrap();
        }
    });
    println!("five checks on 2 KB: {elapsed:?}");
    assert!(elapsed <= MAX_CHECKS_TIME, "{elapsed:?}");
}

#[test]
fn a_portion_takes_at_most_two_microseconds_per_chunk() {
    let content =
        json!({"checks": [{"id": "gateway.pii", "parameters": {"categories": ["EMAIL_ADDRESS"], "redact": true}}]});
    let hook = compile_content(&content, Strictness::Strict).unwrap();
    let check = hook.checks[0].check.check.window().unwrap();
    // A portion consists of the text that was held back, and of 512 bytes of new text, which are about 25 chunks.
    let (text, chunks) = ("words of a model ".repeat(45), 25);
    let elapsed = shortest(200, || {
        let settled = check.settled_end(&text);
        black_box(check.find(&text, settled, &mut PlaceholderNames::default()));
    });
    println!("a portion: {elapsed:?}, {:?} per chunk", elapsed / chunks);
    assert!(elapsed / chunks <= MAX_PORTION_TIME, "{elapsed:?}");
}

#[test]
fn nothing_is_paid_without_guardrails() {
    let snapshot =
        Snapshot::compile(br#"{"epoch":"1","workspaces":[{"id":"w","slug":"w","organisation_id":"o"}]}"#).unwrap();
    let elapsed = shortest(1000, || {
        black_box(black_box(&snapshot).default_guardrails(black_box(Some("w"))).is_some());
    });
    println!("without guardrails: {elapsed:?}");
    assert!(elapsed <= MAX_NOTHING_TIME, "{elapsed:?}");
}

/// Starts a host that waits for `HOST_TIME` before each reply; returns its URL. It runs on threads of its own, because
/// timers of the runtime end up to a millisecond late.
fn start_slow_host() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || reply_slowly(stream));
        }
    });
    format!("http://{address}/check")
}

fn reply_slowly(mut stream: TcpStream) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(1..) = stream.read(&mut buffer) {
        std::thread::sleep(HOST_TIME);
        let reply = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n{\"verdict\":true}";
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn two_hosts_side_by_side_add_their_time_once() {
    let provider = penstock_mock::Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    let check = |url: &str| json!({"webhook": {"webhookURL": url}, "deny": true});
    let mut guarded = mock_target("");
    guarded["input_guardrails"] = json!([check(&start_slow_host()), check(&start_slow_host())]);
    let [plain, checked] = compare(&gateway, guarded).await;
    println!("p99 {plain:?}, with two hosts {checked:?}");
    assert!(checked.saturating_sub(plain) <= MAX_ADDED_BY_HOSTS, "{checked:?}, without {plain:?}");
}

/// Returns the 99th percentile of the duration of requests without guardrails, and of requests with this config.
async fn compare(gateway: &TestGateway, guarded: Value) -> [Duration; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (config, durations) in [mock_target(""), guarded.clone()].iter().zip(&mut times) {
            durations.push(time_request(gateway, config).await);
        }
    }
    times.map(|mut durations| {
        durations.sort();
        durations[durations.len() * 99 / 100]
    })
}

async fn time_request(gateway: &TestGateway, config: &Value) -> Duration {
    let body = json!({"model": "mock", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let began = Instant::now();
    let response = gateway.send(post_with_config(config, "/v1/chat/completions", body)).await;
    let elapsed = began.elapsed();
    assert_eq!(response.status, 200, "{}", response.text());
    elapsed
}

#[tokio::test]
async fn host_that_hangs_costs_nothing_after_its_breaker_opened() {
    let provider = penstock_mock::Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/check", listener.local_addr().unwrap());
    // The kernel accepts connections to this listener, but nothing reads them.
    let mut guarded = mock_target("");
    let timeout = HANGING_TIMEOUT.as_millis() as u64;
    guarded["input_guardrails"] = json!([{"webhook": {"webhookURL": url, "timeout": timeout}, "deny": true}]);
    for _ in 0..FAILING_CALLS {
        let elapsed = time_request(&gateway, &guarded).await;
        assert!(elapsed >= HANGING_TIMEOUT, "{elapsed:?}");
    }
    let [plain, checked] = compare(&gateway, guarded).await;
    println!("p99 {plain:?}, with a host that hangs {checked:?}");
    assert!(checked.saturating_sub(plain) <= MAX_ADDED_BY_HANGING_HOST, "{checked:?}, without {plain:?}");
    drop(listener);
}
