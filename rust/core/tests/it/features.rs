//! Every config feature on every route. Covers complete and streamed responses, saved and inline configs, snake case
//! and camel case.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, TestResponse, mock_target, routing_headers,
    scripted_server::{ScriptedServer, json_response, read_request},
    sensitive_breaker_config, wait_for_ledger_entries,
};
use penstock_core::gateway::UpgradeOutcome;
use penstock_mock::{Entry, Server};
use serde_json::{Map, Value, json};

/// Built-in and passed-through paths; true if the path can stream.
const JSON_ROUTES: &[(&str, bool)] = &[
    (CHAT_PATH, true),
    (MESSAGES_PATH, true),
    ("/v1/responses", true),
    ("/v1/completions", true),
    ("/v1/embeddings", false),
    ("/v1/rerank", false),
    ("/v1/proxy/chat/completions", true),
    ("/v1/some/inference", true),
];

/// Routes whose request or response is not JSON, or whose method is not POST.
const OTHER_ROUTES: &[(&str, &str, RequestContent)] = &[
    ("GET", "/v1/files/file-1", RequestContent::Empty),
    ("GET", "/v1/files/file-1/content", RequestContent::Empty),
    ("DELETE", "/v1/files/file-1", RequestContent::Empty),
    ("GET", "/v1/models", RequestContent::Empty),
    ("HEAD", "/v1/some/thing", RequestContent::Empty),
    ("POST", "/v1/files", RequestContent::Multipart),
    ("POST", "/v1/audio/transcriptions", RequestContent::Multipart),
    ("POST", "/v1/images/edits", RequestContent::Multipart),
    ("POST", "/v1/audio/speech", RequestContent::Json),
    ("PUT", "/v1/some/thing", RequestContent::Json),
    ("GET", "/v1/proxy/files/file-1", RequestContent::Empty),
    ("DELETE", "/v1/proxy/files/file-1", RequestContent::Empty),
    ("POST", "/v1/proxy/audio/transcriptions", RequestContent::Multipart),
    ("PATCH", "/v1/proxy/some/thing", RequestContent::Json),
];

/// Type of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestContent {
    Empty,
    Json,
    Multipart,
}

const MULTIPART_BODY: &str = "--edge\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n\
    --edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\x00RIFF\r\n--edge--\r\n";
const SPEECH_BYTES: &[u8] = b"\0ID3 a pretend voice \x7f\r\n\r\n";

impl RequestContent {
    fn body_text(self) -> String {
        match self {
            Self::Empty => String::new(),
            Self::Json => request_body(false).to_string(),
            Self::Multipart => MULTIPART_BODY.to_owned(),
        }
    }

    fn add_to_request(self, request: TestRequest) -> TestRequest {
        match self {
            Self::Empty => request,
            Self::Json => request.header("content-type", "application/json").body(self.body_text()),
            Self::Multipart => {
                request.header("content-type", "multipart/form-data; boundary=edge").body(self.body_text())
            }
        }
    }
}

/// How a request supplies its config.
#[derive(Debug, Clone, Copy)]
enum ConfigForm {
    Inline,
    InlineCamelCase,
    Saved,
}

/// A config, the number of requests of a kind that are sent with it, and how many of them reach the provider.
struct FeatureCase {
    name: &'static str,
    config: Value,
    request_count: usize,
    upstream_count: usize,
    /// Checks the last response and the provider's ledger entries.
    is_expected: fn(&TestResponse, &[Entry]) -> bool,
}

fn feature_case(
    name: &'static str,
    config: Value,
    (asks, reached): (usize, usize),
    holds: fn(&TestResponse, &[Entry]) -> bool,
) -> FeatureCase {
    FeatureCase { name, config, request_count: asks, upstream_count: reached, is_expected: holds }
}

impl FeatureCase {
    /// Returns how many requests the failing provider receives.
    fn failing_upstream_count(&self) -> usize {
        match self.name {
            "fallback" | "cb_config" => 1,
            "retry" => 3,
            _ => 0,
        }
    }
}

fn two_target_config(strategy: &Value, targets: &[Value; 2]) -> Value {
    json!({"strategy": strategy, "targets": targets})
}

fn second_target_responded(response: &TestResponse, _: &[Entry]) -> bool {
    response.status == 200 && routing_headers(response)[0] == "config.targets[1]"
}

/// Cases for the selection of one of several targets.
fn strategy_cases() -> Vec<FeatureCase> {
    let (bad, well, silent) = (mock_target("status=503"), mock_target("chunks=1"), mock_target("fault=silence"));
    let never = |target: &Value| json!({"provider": "mock", "weight": 0, "override_params": target["override_params"]});
    let named_target = |name: &str| json!({"provider": "mock", "name": name});
    let listed = json!({"mode": "fallback", "on_status_codes": [429]});
    let hedged = json!({"mode": "fallback", "hedge": {"after_ms": 20}});
    let guarded = json!({"mode": "fallback", "cb_config": sensitive_breaker_config()});
    let shared = json!({"mode": "loadbalance"});
    let stuck = json!({"mode": "loadbalance", "sticky": {"hash_fields": ["params.max_tokens"], "ttl": 60}});
    let condition = json!({"query": {"$and": [{"params.max_tokens": {"$gte": 5}}], "metadata.plan": "paid",
        "url.pathname": {"$regex": "^/v1/"}}, "then": "b"});
    let request_body = json!({"mode": "conditional", "conditions": [condition], "default": "a"});
    vec![
        feature_case(
            "single",
            two_target_config(&json!({"mode": "single"}), &[well.clone(), bad.clone()]),
            (1, 1),
            |response, _| response.status == 200 && routing_headers(response)[0] == "config.targets[0]",
        ),
        feature_case(
            "fallback",
            two_target_config(&listed, &[mock_target("status=429"), well.clone()]),
            (1, 2),
            second_target_responded,
        ),
        feature_case("hedge", two_target_config(&hedged, &[silent, well.clone()]), (1, 2), second_target_responded),
        feature_case(
            "cb_config",
            two_target_config(&guarded, &[bad.clone(), well.clone()]),
            (2, 3),
            second_target_responded,
        ),
        feature_case(
            "loadbalance",
            two_target_config(&shared, &[never(&bad), well.clone()]),
            (1, 1),
            second_target_responded,
        ),
        feature_case("sticky", two_target_config(&stuck, &[never(&bad), well]), (1, 1), second_target_responded),
        feature_case(
            "conditional",
            two_target_config(&request_body, &[named_target("a"), named_target("b")]),
            (1, 1),
            second_target_responded,
        ),
    ]
}

/// Cases for an attempt at one target. `other` is the address of another provider.
fn attempt_cases(other: &str) -> Vec<FeatureCase> {
    let (mut persistent, mut short_timeout) = (mock_target("status=503"), mock_target("fault=silence"));
    persistent["retry"] = json!({"attempts": 2, "on_status_codes": [503], "use_retry_after_headers": true});
    short_timeout["request_timeout"] = json!(40);
    let mut config = two_target_config(
        &json!({"mode": "fallback"}),
        &[mock_target("chunks=9&fault=cut&after=1"), mock_target("chunks=1")],
    );
    config["recovery"] = json!("hold");
    let parameters = json!({"provider": "mock", "default_params": {"model": "default", "user": "ann", "seed": 1},
        "override_params": {"seed": 2}, "drop_params": ["max_tokens"]});
    let forwarding = json!({"provider": "mock", "forward_headers": ["x-team"]});
    let remaining = json!({"provider": "mock", "cache": {"mode": "simple", "max_age": 60}});
    vec![
        feature_case("retry", persistent, (1, 3), |response, _| {
            response.status == 503
                && routing_headers(response)[1] == "-1"
                && response.header("x-should-retry") == Some("false")
        }),
        feature_case("request_timeout", short_timeout, (1, 1), |response, _| response.status == 408),
        feature_case("recovery", config, (1, 2), second_target_responded),
        feature_case("parameters", parameters, (1, 1), |response, entries| {
            let sizes = [changed_body_length(false), changed_body_length(true)];
            response.status == 200 && entries[0].model == "mock" && sizes.contains(&entries[0].body_bytes)
        }),
        feature_case("forward_headers", forwarding, (1, 1), |_, entries| entries[0].header("x-team") == Some("blue")),
        feature_case("custom_host", json!({"provider": "mock", "custom_host": other}), (1, 0), |response, _| {
            response.status == 200
        }),
        feature_case("passthrough", json!({"passthrough": true}), (1, 1), |response, entries| {
            response.status == 200 && entries[0].header("authorization") == Some("Bearer sk-mine")
        }),
        feature_case("cache", remaining, (2, 1), |response, _| routing_headers(response)[2] == "HIT"),
    ]
}

/// Converts the config's keys to camel case. Keys with a dot, which conditions and sticky sessions use, stay as they
/// are.
fn to_camel_case(config: &Value) -> Value {
    let camel = |key: &str| {
        if key.contains('.') {
            return key.to_owned();
        }
        let mut parts = key.split('_');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |name, part| name + &part[..1].to_uppercase() + &part[1..])
    };
    match config {
        Value::Object(object) => {
            object.iter().map(|(key, value)| (camel(key), to_camel_case(value))).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(to_camel_case).collect(),
        other => other.clone(),
    }
}

/// Builds a body that all routes accept.
fn request_body(stream: bool) -> Value {
    let mut body = json!({"model": "mock", "max_tokens": 9, "input": "hi", "prompt": "hi",
        "messages": [{"role": "user", "content": "hi"}]});
    if stream {
        // The gateway does not change the body of a client that requests usage.
        (body["stream"], body["stream_options"]) = (json!(true), json!({"include_usage": true}));
    }
    body
}

/// Returns the body length in bytes after a case has set and dropped parameters.
fn changed_body_length(stream: bool) -> u64 {
    let mut body = request_body(stream);
    body.as_object_mut().unwrap().remove("max_tokens");
    (body["user"], body["seed"]) = (json!("ann"), json!(2));
    body.to_string().len() as u64
}

fn request_with_config_form(method: &str, path: &str, form: ConfigForm, config: &Value) -> TestRequest {
    let config = match form {
        ConfigForm::Inline => config.to_string(),
        ConfigForm::InlineCamelCase => to_camel_case(config).to_string(),
        ConfigForm::Saved => "pc-1".to_owned(),
    };
    let request = TestRequest::new(method, path).header("x-gateway-config", &config);
    let request = request.header("x-gateway-metadata", r#"{"plan":"paid"}"#).header("x-team", "blue");
    request.header("x-gateway-explain", "true")
}

/// Returns the target that the explanation header names, if any.
fn explained_target(response: &TestResponse) -> Option<String> {
    let explanation: Value = serde_json::from_str(response.header("x-gateway-explanation")?).ok()?;
    explanation["target"]["target"].as_str().map(ToOwned::to_owned)
}

fn json_request(path: &str, stream: bool, form: ConfigForm, config: &Value) -> TestRequest {
    request_with_config_form("POST", path, form, config)
        .header("content-type", "application/json")
        .body(request_body(stream).to_string())
}

fn start_gateway(provider: &Server, config: &Value) -> TestGateway {
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        (settings.retry_backoff_ms, settings.trusted_custom_hosts) = (1, vec!["127.0.0.1".into()]);
    });
    gateway.apply_snapshot(
        &json!({"epoch": "1", "providers": [{"slug": "mine", "provider": "mock", "api_key": "sk-mine"}],
        "configs": [{"slug": "pc-1", "config": config}]}),
    );
    gateway
}

async fn check_case(case: &FeatureCase, (path, stream): (&str, bool), form: ConfigForm) {
    let provider = Server::start().await;
    let gateway = start_gateway(&provider, &case.config);
    let mut last = None;
    for _ in 0..case.request_count {
        let mut request = json_request(path, stream, form, &case.config);
        if case.name == "passthrough" {
            request = request.header("x-gateway-provider", "@mine");
        }
        last = Some(gateway.send(request).await);
    }
    let (response, entries) = (last.unwrap(), wait_for_ledger_entries(&provider, case.upstream_count).await);
    let location = format!("{} on {path} {form:?}, streamed: {stream}", case.name);
    assert!(
        (case.is_expected)(&response, &entries),
        "{location}: {} {:?} {}",
        response.status,
        routing_headers(&response),
        response.text()
    );
    assert_eq!(explained_target(&response).as_deref(), Some(routing_headers(&response)[0]), "{location}");
}

/// Unhealthy providers: one fails, the other never responds.
struct UnhealthyProviders {
    failing: ScriptedServer,
    silent: ScriptedServer,
}

impl UnhealthyProviders {
    async fn start() -> Self {
        Self {
            failing: ScriptedServer::start_closing_after_response(json_response(
                "503 Service Unavailable",
                "connection: close\r\n",
                "{}",
            ))
            .await,
            silent: ScriptedServer::start(
                |mut stream, _| async move { while read_request(&mut stream).await.is_some() {} },
            )
            .await,
        }
    }

    /// Cases that apply to any request content. Targets differ by host, because most of these requests have no model
    /// name.
    fn feature_cases(&self) -> Vec<FeatureCase> {
        self.strategy_cases().into_iter().chain(self.target_cases()).collect()
    }

    /// Cases of strategies with two targets.
    fn strategy_cases(&self) -> Vec<FeatureCase> {
        let (failing, silent, healthy) =
            (scripted_target(&self.failing), scripted_target(&self.silent), healthy_target());
        let unused = with_field(&failing, "weight", json!(0));
        let [one, other] = ["a", "b"].map(|name| with_field(&healthy, "name", json!(name)));
        let fallback = json!({"mode": "fallback", "on_status_codes": [503]});
        let hedge = json!({"mode": "fallback", "hedge": {"after_ms": 20}});
        let breaker = json!({"mode": "fallback", "cb_config": sensitive_breaker_config()});
        let sticky = json!({"mode": "loadbalance", "sticky": {"hash_fields": ["metadata.plan"], "ttl": 60}});
        let query = json!({"$and": [{"url.pathname": {"$regex": "^/v1/"}}], "metadata.plan": "paid"});
        let conditional = json!({"mode": "conditional", "conditions": [{"query": query, "then": "b"}], "default": "a"});
        let single = two_target_config(&json!({"mode": "single"}), &[healthy.clone(), failing.clone()]);
        let first = |response: &TestResponse, _: &[Entry]| {
            response.status == 200 && routing_headers(response)[0] == "config.targets[0]"
        };
        let to_second = |name, strategy: &Value, targets: [&Value; 2], counts| {
            feature_case(name, two_target_config(strategy, &targets.map(Clone::clone)), counts, second_target_responded)
        };
        vec![
            feature_case("single", single, (1, 0), first),
            to_second("fallback", &fallback, [&failing, &healthy], (1, 1)),
            to_second("hedge", &hedge, [&silent, &healthy], (1, 0)),
            to_second("cb_config", &breaker, [&failing, &healthy], (2, 1)),
            to_second("loadbalance", &json!({"mode": "loadbalance"}), [&unused, &healthy], (1, 0)),
            to_second("sticky", &sticky, [&unused, &healthy], (1, 0)),
            to_second("conditional", &conditional, [&one, &other], (1, 0)),
        ]
    }

    /// Cases of features that a single target has.
    fn target_cases(&self) -> Vec<FeatureCase> {
        let retry = json!({"attempts": 2, "on_status_codes": [503], "use_retry_after_headers": true});
        let retry = with_field(&scripted_target(&self.failing), "retry", retry);
        let timeout = with_field(&scripted_target(&self.silent), "request_timeout", json!(40));
        let forward_headers = with_field(&healthy_target(), "forward_headers", json!(["x-team"]));
        vec![
            feature_case("retry", retry, (1, 3), |response, entries| {
                let spent = routing_headers(response)[1] == "-1" && response.header("x-should-retry") == Some("false");
                response.status == 503 && spent && entries.is_empty()
            }),
            feature_case("request_timeout", timeout, (1, 0), |response, _| response.status == 408),
            feature_case("forward_headers", forward_headers, (1, 0), |_, entries| {
                entries[0].header("x-team") == Some("blue")
            }),
            feature_case("passthrough", json!({"passthrough": true}), (1, 0), |response, entries| {
                response.status == 200 && entries[0].header("authorization") == Some("Bearer sk-mine")
            }),
        ]
    }
}

fn scripted_target(provider: &ScriptedServer) -> Value {
    json!({"provider": "mock", "custom_host": format!("{}/v1", provider.url())})
}

fn healthy_target() -> Value {
    json!({"provider": "mock"})
}

fn with_field(target: &Value, key: &str, value: Value) -> Value {
    let mut target = target.clone();
    target[key] = value;
    target
}

#[tokio::test]
async fn every_feature_works_for_any_method_and_content() {
    for (method, path, content) in OTHER_ROUTES {
        for form in [ConfigForm::Inline, ConfigForm::InlineCamelCase, ConfigForm::Saved] {
            for at in 0..UnhealthyProviders::start().await.feature_cases().len() {
                let (provider, failing_provider) = (Server::start().await, UnhealthyProviders::start().await);
                let case = failing_provider.feature_cases().remove(at);
                let gateway = start_gateway(&provider, &case.config);
                let mut response = None;
                for _ in 0..case.request_count {
                    let request = content.add_to_request(request_with_config_form(method, path, form, &case.config));
                    let names = case.name == "passthrough";
                    response = Some(
                        gateway.send(if names { request.header("x-gateway-provider", "@mine") } else { request }).await,
                    );
                }
                let response = response.unwrap();
                let entries =
                    wait_for_ledger_entries(&provider, if response.status == 200 { case.request_count } else { 0 })
                        .await;
                let location = format!("{} on {method} {path} {form:?}", case.name);
                assert!(
                    (case.is_expected)(&response, &entries),
                    "{location}: {} {:?} {}",
                    response.status,
                    routing_headers(&response),
                    response.text()
                );
                assert_eq!(failing_provider.failing.connection_count(), case.upstream_count, "{location}");
                assert_eq!(explained_target(&response).as_deref(), Some(routing_headers(&response)[0]), "{location}");
                for entry in entries {
                    let original_path = path.replace("/proxy", "");
                    assert_eq!((&*entry.method, &*entry.path), (*method, &*original_path), "{location}");
                    assert_eq!(entry.body_bytes, content.body_text().len() as u64, "{location}");
                }
            }
        }
    }
}

#[tokio::test]
async fn changes_and_caches_only_json_requests() {
    for (method, path, content) in OTHER_ROUTES {
        let provider = Server::start().await;
        let config = json!({"provider": "mock", "cache": "simple", "override_params": {"voice": "alloy"},
            "default_params": {"speed": 2}, "drop_params": ["max_tokens", "file"]});
        let gateway = start_gateway(&provider, &config);
        let mut changed = request_body(false);
        changed.as_object_mut().unwrap().remove("max_tokens");
        (changed["speed"], changed["voice"]) = (json!(2), json!("alloy"));
        let response = [(); 2]
            .map(|()| content.add_to_request(request_with_config_form(method, path, ConfigForm::Inline, &config)));
        let [first, second] = response;
        let (first, second) = (gateway.send(first).await, gateway.send(second).await);
        let is_kept = *method == "POST" && *content == RequestContent::Json;
        assert_eq!(
            [routing_headers(&first)[2], routing_headers(&second)[2]],
            if is_kept { ["MISS", "HIT"] } else { ["DISABLED"; 2] },
            "{path}"
        );
        let received = wait_for_ledger_entries(&provider, if is_kept { 1 } else { 2 }).await;
        let sent = if *content == RequestContent::Json { changed.to_string() } else { content.body_text() };
        assert!(received.iter().all(|entry| entry.body_bytes == sent.len() as u64), "{path}: {received:#?}");
        if *path == "/v1/audio/speech" {
            let kinds = [&first, &second].map(|response| response.header("content-type"));
            assert_eq!((kinds, &*first.body, &*second.body), ([Some("audio/mpeg"); 2], SPEECH_BYTES, SPEECH_BYTES));
        }
    }
}

#[tokio::test]
async fn every_feature_works_on_every_route_and_config_form() {
    let other = Server::start().await;
    for case in strategy_cases().into_iter().chain(attempt_cases(&format!("{}/v1", other.url()))) {
        for (path, streams) in JSON_ROUTES {
            for stream in [false, true].into_iter().filter(|stream| *streams || !stream) {
                for form in [ConfigForm::Inline, ConfigForm::InlineCamelCase, ConfigForm::Saved] {
                    check_case(&case, (path, stream), form).await;
                }
            }
        }
    }
}

/// Opens a session with a config. Returns 101 or the status of the rejection, and the selected option.
async fn open_session(gateway: &TestGateway, request: TestRequest) -> (u16, String) {
    let head = request.build().head;
    match Box::pin(crate::harness::with_timeout(penstock_core::gateway::handle_upgrade(&gateway.state, head))).await {
        UpgradeOutcome::Accepted(session) => {
            drop(session);
            let record = gateway.single_record();
            (101, record["last_used_option_index"].as_str().unwrap_or_default().to_owned())
        }
        UpgradeOutcome::Rejected(answer) => {
            let option = answer.head.headers.get_str("x-gateway-last-used-option-index").unwrap_or_default();
            (answer.head.status, option.to_owned())
        }
    }
}

#[tokio::test]
async fn every_feature_works_on_websockets() {
    for form in [ConfigForm::Inline, ConfigForm::InlineCamelCase, ConfigForm::Saved] {
        for path in ["/v1/realtime?model=m", "/v1/proxy/realtime?model=m"] {
            for at in 0..UnhealthyProviders::start().await.feature_cases().len() {
                let (provider, failing_provider) = (Server::start().await, UnhealthyProviders::start().await);
                let case = failing_provider.feature_cases().remove(at);
                let gateway = start_gateway(&provider, &case.config);
                let mut response = None;
                for _ in 0..case.request_count {
                    let request = request_with_config_form("GET", path, form, &case.config);
                    let names = case.name == "passthrough";
                    let request = if names { request.header("x-gateway-provider", "@mine") } else { request };
                    response = Some(open_session(&gateway, request).await);
                }
                let expected = match case.name {
                    "single" => (101, "config.targets[0]"),
                    "retry" => (503, "config"),
                    "request_timeout" => (408, "config"),
                    "forward_headers" | "passthrough" => (101, "config"),
                    _ => (101, "config.targets[1]"),
                };
                let location = format!("{} on {path} {form:?}", case.name);
                let (status, option) = response.unwrap();
                assert_eq!((status, option.as_str()), expected, "{location}");
                let entries =
                    wait_for_ledger_entries(&provider, if status == 101 { case.request_count } else { 0 }).await;
                assert_eq!(failing_provider.failing.connection_count(), case.failing_upstream_count(), "{location}");
                match case.name {
                    "forward_headers" => assert_eq!(entries[0].header("x-team"), Some("blue"), "{location}"),
                    "passthrough" => {
                        assert_eq!(entries[0].header("authorization"), Some("Bearer sk-mine"), "{location}");
                    }
                    _ => (),
                }
            }
        }
    }
}
