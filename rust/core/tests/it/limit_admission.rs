//! Rate limits and budgets of callers and targets.

use std::{fs::File, path::Path, time::Duration};

use penstock_mock::Server;
use serde_json::{Value, json};

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, TestResponse, chat_body, mock_target, sha256_hex,
    wait_for_ledger_entries,
};

/// Price of a token in pico-dollars.
const TOKEN_PRICE: u64 = 1_000_000;

pub fn limit(kind: &str, id: &str, fields: &Value) -> Value {
    let mut limit = json!({"id": format!("{kind}-{id}"), "owner": {"kind": kind, "id": id, "slug": id}, "limit": 1});
    limit.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    limit
}

pub async fn start_gateway(limits: Value) -> (Server, TestGateway) {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |_| ());
    set_limits(&gateway, &limits);
    (provider, gateway)
}

/// Publishes limits of the workspace `w` and of what belongs to it.
pub fn set_limits(gateway: &TestGateway, limits: &Value) {
    let rates = json!({"input": [[0, TOKEN_PRICE]], "output": [[0, TOKEN_PRICE]]});
    let price = json!({"provider": "mock", "model": "mock", "prices": [{"version": "v1", "rates": rates}]});
    gateway.apply_snapshot(&json!({"epoch": "1", "prices": {"overrides": [price]},
        "workspaces": [{"id": "w", "slug": "here", "organisation_id": "o"}],
        "keys": [{"id": "k", "name": "dev", "workspace": "w", "sha256": sha256_hex("pk")}],
        "providers": [{"id": "p", "integration_id": "i", "slug": "mine", "provider": "mock", "workspace": "w"}],
        "parts": [{"name": "limits/00", "limits": [{"workspace": "w", "limits": limits}]}]}));
}

pub fn chat(provider: &str) -> TestRequest {
    let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", "pk");
    request.header("content-type", "application/json").header("x-gateway-provider", provider)
}

fn plain_chat() -> TestRequest {
    chat("mock").body(chat_body("mock", false))
}

#[tokio::test]
async fn counts_requests_of_keys_and_workspaces() {
    for owner in [("api_key", "k"), ("workspace", "w"), ("policy", "any")] {
        let fields = json!({"type": "requests", "limit": 2, "window": {"unit": "week"}});
        let (provider, gateway) = start_gateway(json!([limit(owner.0, owner.1, &fields)])).await;
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(gateway.send(plain_chat()).await.status);
        }
        assert_eq!(statuses, [200, 200, 429, 429], "{owner:?}");
        wait_for_ledger_entries(&provider, 2).await;
    }
}

#[tokio::test]
async fn rejection_has_the_format_of_the_client() {
    let fields = json!({"type": "requests", "limit": 0, "window": {"unit": "week"}});
    let (_provider, gateway) = start_gateway(json!([limit("api_key", "k", &fields)])).await;
    let body = json!({"model": "mock", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]});
    let request = TestRequest::new("POST", MESSAGES_PATH).header("x-gateway-api-key", "pk");
    let request = request.header("content-type", "application/json").header("x-gateway-provider", "mock");
    let response = gateway.send(request.body(body.to_string())).await;
    assert_eq!((response.status, response.header("x-should-retry")), (429, Some("false")));
    let error = response.json();
    assert_eq!((error["type"].as_str(), error["error"]["type"].as_str()), (Some("error"), Some("rate_limit_error")));
    assert!(error["error"]["message"].as_str().unwrap().contains("API key `k`"), "{error}");
}

#[tokio::test]
async fn limit_of_a_provider_applies_to_its_attempts() {
    for owner in [("provider", "p"), ("integration", "i")] {
        let fields = json!({"type": "requests", "limit": 1, "window": {"unit": "week"}});
        let (_provider, gateway) = start_gateway(json!([limit(owner.0, owner.1, &fields)])).await;
        let config = json!({"strategy": {"mode": "fallback", "on_status_codes": [429]},
            "targets": [{"provider": "@mine"}, {"provider": "mock"}]});
        let mut used = Vec::new();
        for _ in 0..3 {
            let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", "pk");
            let request =
                request.header("content-type", "application/json").header("x-gateway-config", &config.to_string());
            let response = gateway.send(request.body(chat_body("mock", false))).await;
            used.push(response.header("x-gateway-last-used-option-index").unwrap().to_owned());
        }
        assert_eq!(used, ["config.targets[0]", "config.targets[1]", "config.targets[1]"], "{owner:?}");
        assert_eq!(gateway.send(chat("@mine").body(chat_body("mock", false))).await.status, 429);
    }
}

#[tokio::test]
async fn budget_in_dollars_counts_the_real_cost() {
    let fields = json!({"type": "cost", "limit": 100_000, "period": {"start": 1}});
    let (_provider, gateway) = start_gateway(json!([limit("api_key", "k", &fields)])).await;
    let mut spent = 0;
    for _ in 0..100 {
        let response = gateway.send(plain_chat()).await;
        if response.status != 200 {
            assert_eq!((response.status, response.json()["error"]["code"].as_str()), (412, Some("04")));
            break;
        }
        spent += response.json()["usage"]["total_tokens"].as_u64().unwrap() * TOKEN_PRICE / 1000;
    }
    assert!((50_000..=120_000).contains(&spent), "{spent}");
}

#[tokio::test]
async fn hard_budget_bounds_the_response_and_is_never_exceeded() {
    let fields = json!({"type": "tokens", "limit": 3000, "period": {"start": 1}, "enforcement": "hard"});
    let (provider, gateway) = start_gateway(json!([limit("policy", "any", &fields)])).await;
    let unbounded = json!({"model": "mock", "messages": [{"role": "user", "content": "x"}]}).to_string();
    let response = gateway.send(chat("mock").body(unbounded.clone())).await;
    let cap: u64 = response.header("x-gateway-max-tokens").unwrap().parse().unwrap();
    assert!((2000..3000).contains(&cap), "{cap}");
    wait_for_ledger_entries(&provider, 1).await;
    // A request that may use more than is left is not sent.
    let large = json!({"model": "mock", "max_tokens": 5000, "messages": [{"role": "user", "content": "x"}]});
    assert_eq!(gateway.send(chat("mock").body(large.to_string())).await.status, 412);
    assert_eq!(gateway.send(chat("mock").body(unbounded)).await.status, 200);
}

fn json_request(method: &str, path: &str, body: &Value) -> TestRequest {
    let request = TestRequest::new(method, path).header("x-gateway-api-key", "pk");
    let request = request.header("content-type", "application/json").header("x-gateway-provider", "mock");
    request.body(body.to_string())
}

#[tokio::test]
async fn stored_data_stays_readable_when_a_budget_is_used_up() {
    let fields = json!({"type": "tokens", "limit": 1, "period": {"start": 1}});
    let (_provider, gateway) = start_gateway(json!([limit("api_key", "k", &fields)])).await;
    assert_eq!(gateway.send(plain_chat()).await.status, 200);
    assert_eq!(gateway.send(plain_chat()).await.status, 412);
    for path in ["/v1/files", "/v1/batches/batch_1", "/v1/files/file-1/content", "/v1/responses/resp_1"] {
        let response = gateway.send(json_request("GET", path, &json!({}))).await;
        assert_ne!(response.status, 412, "{path}: {}", response.text());
        assert!(response.header("ratelimit").is_some_and(|header| header.contains(";r=0")), "{path}");
    }
    assert_eq!(gateway.send(plain_chat()).await.status, 412);
}

#[tokio::test]
async fn reserved_budget_is_released_after_requests_end() {
    let fields = json!({"type": "tokens", "limit": 3000, "period": {"start": 1, "end": 4_000_000_000_000_u64},
        "enforcement": "hard"});
    let (_provider, gateway) = start_gateway(json!([limit("policy", "any", &fields)])).await;
    let message = json!([{"role": "user", "content": "x"}]);
    let body = |model: &str, most: u64| json!({"model": model, "max_tokens": most, "messages": message}).to_string();
    let read_remaining = async || {
        let request = json!({"path": "/v1/chat/completions", "headers": {"x-gateway-provider": "mock"},
            "body": {"model": "mock", "max_tokens": 1, "messages": message}});
        let explain = TestRequest::new("POST", "/v1/explain").header("x-gateway-api-key", "pk");
        let explain = explain.header("content-type", "application/json").body(request.to_string());
        gateway.send(explain).await.json()["targets"][0]["limits"][0]["remaining"].as_u64().unwrap()
    };
    let others = async {
        while read_remaining().await > 1000 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let reserved = gateway.send(chat("mock").body(body("mock", 2000))).await;
        let never = gateway.send(chat("mock").body(body("mock", 9000))).await;
        (reserved, never)
    };
    let slow = gateway.send(chat("mock").body(body("mock?first_ms=1500", 2500)));
    let (slow, (reserved, never)) = tokio::join!(slow, others);
    assert_eq!((slow.status, reserved.status, never.status), (200, 412, 412), "{}", reserved.text());
    assert_eq!(
        (reserved.header("retry-after"), reserved.header("x-should-retry")),
        (Some("2"), None),
        "{}",
        reserved.text()
    );
    assert!(reserved.text().contains("requests in progress hold"), "{}", reserved.text());
    assert_eq!(never.header("x-should-retry"), Some("false"), "{}", never.text());
    assert_eq!(gateway.send(chat("mock").body(body("mock", 2000))).await.status, 200);
}

#[tokio::test]
async fn dry_run_counts_and_admits() {
    let fields = json!({"type": "requests", "limit": 1, "window": {"unit": "week"}, "dry_run": true});
    let (_provider, gateway) = start_gateway(json!([limit("policy", "any", &fields)])).await;
    for _ in 0..3 {
        assert_eq!(gateway.send(plain_chat()).await.status, 200);
    }
    assert_eq!(gateway.state.limiter.metrics.would_reject.get(), 2);
}

#[tokio::test]
async fn record_names_each_dry_run_limit_once() {
    let fields = json!({"type": "tokens", "limit": 0, "period": {"start": 1}, "dry_run": true});
    let limits: Vec<_> = (0..6).map(|number| limit("policy", &format!("p{number}"), &fields)).collect();
    let (provider, gateway) = start_gateway(limits.into()).await;
    let target = json!({"provider": "mock"});
    let slow = mock_target("first_ms=30000");
    let strategy = json!({"mode": "fallback", "hedge": {"after_ms": 20, "max_ratio": 1}});
    for config in [
        json!({"provider": "mock", "retry": {"attempts": 1, "on_status_codes": [200]}}),
        json!({"strategy": strategy, "targets": [slow, target]}),
    ] {
        let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", "pk");
        let request =
            request.header("content-type", "application/json").header("x-gateway-config", &config.to_string());
        let response = gateway.send(request.body(chat_body("mock", false))).await;
        wait_for_ledger_entries(&provider, 2).await;
        provider.clear_ledger();
        let record = gateway.single_record();
        let names = record["limits"]["would_reject"].as_array().map(Vec::len);
        assert_eq!((response.status, names), (200, Some(6)), "{record}");
    }
}

#[tokio::test]
async fn responses_without_an_attempt_show_what_is_left() {
    let fields = json!({"type": "tokens", "limit": 1_000_000, "period": {"start": 1}});
    let (provider, gateway) = start_gateway(json!([limit("policy", "any", &fields)])).await;
    let denies_all = json!([{"contains": {"words": ["no-such-word"], "operator": "any"}, "deny": true, "id": "never"}]);
    let cached = json!({"provider": "mock", "cache": {"mode": "simple"}});
    let denied = json!({"provider": "mock", "input_guardrails": denies_all});
    let mut shown = Vec::new();
    for (config, status) in [(&cached, 200), (&cached, 200), (&denied, 446)] {
        let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", "pk");
        let request =
            request.header("content-type", "application/json").header("x-gateway-config", &config.to_string());
        let response = gateway.send(request.body(chat_body("mock", false))).await;
        assert_eq!(response.status, status, "{}", response.text());
        let remaining: u64 = response.header("x-gateway-ratelimit-remaining-tokens").unwrap().parse().unwrap();
        assert!(response.header("ratelimit").unwrap().contains("policy-any-tokens"));
        shown.push(remaining);
    }
    wait_for_ledger_entries(&provider, 1).await;
    // The first response shows the remaining amount while its own amount is reserved.
    assert!(shown[0] < shown[1] && shown[1] == shown[2] && shown[1] < 1_000_000, "{shown:?}");
}

#[tokio::test]
async fn dry_run_budget_counts_beyond_its_limit() {
    for measure in ["tokens", "requests", "cost"] {
        let fields = json!({"type": measure, "limit": 1, "period": {"start": 1}, "dry_run": true});
        let (_provider, gateway) = start_gateway(json!([limit("policy", "any", &fields)])).await;
        for number in 0..3 {
            assert_eq!(gateway.send(plain_chat()).await.status, 200);
            let limits = &gateway.single_record()["limits"];
            assert_eq!(limits["budgets"][0]["id"], "policy-any", "{measure} {number}: {limits}");
            assert_eq!(limits["would_reject"].is_array(), number > 0, "{measure} {number}: {limits}");
        }
    }
}

#[tokio::test]
async fn invalid_request_counts_for_nothing() {
    let fields = json!({"type": "requests", "limit": 1, "window": {"unit": "week"}});
    let (_provider, gateway) = start_gateway(json!([limit("api_key", "k", &fields)])).await;
    for _ in 0..3 {
        assert_eq!(gateway.send(chat("mock").body("{")).await.status, 400);
    }
    assert_eq!(gateway.send(plain_chat()).await.status, 200);
}

/// Returns a gateway with two budgets: a hard one of `limit_units`, and a soft one of twice as much.
pub async fn hard_gateway(kind: &str, limit_units: u64) -> (Server, TestGateway) {
    let hard = json!({"type": kind, "limit": limit_units, "period": {"start": 1}, "enforcement": "hard"});
    start_gateway(json!([limit("policy", "any", &hard)])).await
}

#[tokio::test]
async fn hard_budget_rejects_requests_without_a_bound() {
    let (provider, gateway) = hard_gateway("cost", 9_000_000_000).await;
    let chat_with = |field: &str, value: Value| {
        let mut body = json!({"model": "mock", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]});
        body[field] = value;
        json_request("POST", CHAT_PATH, &body)
    };
    let file = json!([{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]);
    let batch = json!({"input_file_id": "f", "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    for (request, what) in [
        (chat_with("messages", file), "`file_id`"),
        (chat_with("web_search_options", json!({})), "web_search_options"),
        (json_request("POST", "/v1/batches", &batch), "a batch that a provider runs"),
        (json_request("POST", "/v1/fine_tuning/jobs", &json!({"model": "m"})), "a fine-tuning job"),
        (json_request("POST", "/v1/some/path", &json!({"model": "m"})), "`POST /some/path`"),
    ] {
        let response = gateway.send(request).await;
        let error = response.json();
        assert_eq!((response.status, error["error"]["code"].as_str()), (412, Some("usage_not_bounded")), "{error}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(what) && message.contains("policy `any`"), "{message}");
    }
    assert_eq!(provider.ledger_entries().len(), 0);
    // Requests that only read are admitted, and so are requests whose usage is bounded.
    assert_ne!(gateway.send(json_request("GET", "/v1/files", &json!({}))).await.status, 412);
    assert_eq!(gateway.send(plain_chat_of(5)).await.status, 200);
}

fn plain_chat_of(max_tokens: u64) -> TestRequest {
    let body = json!({"model": "mock", "max_tokens": max_tokens, "messages": [{"role": "user", "content": "x"}]});
    chat("mock").body(body.to_string())
}

#[tokio::test]
async fn hard_budget_reserves_images_of_requests_and_responses() {
    let (_provider, gateway) = hard_gateway("tokens", 40_000).await;
    let image = json!({"type": "image_url", "image_url": {"url": "https://a.example/b.png"}});
    let body = json!({"model": "mock", "max_tokens": 5, "messages": [{"role": "user", "content": [image]}]});
    let refused = gateway.send(chat("mock").body(body.to_string())).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (412, Some("usage_limit_exceeded")));
    let image_request = |count: u64| {
        let request = TestRequest::new("POST", "/v1/images/generations").header("x-gateway-api-key", "pk");
        let request = request.header("content-type", "application/json").header("x-gateway-provider", "mock");
        request.body(json!({"model": "mock", "prompt": "a cat", "n": count}).to_string())
    };
    assert_eq!(gateway.send(image_request(3)).await.status, 412);
    assert_ne!(gateway.send(image_request(2)).await.status, 412);
}

#[tokio::test]
async fn explain_shows_limits_and_what_they_leave() {
    let of_key = json!({"type": "requests", "limit": 2, "window": {"unit": "week"}});
    let of_policy = json!({"type": "cost", "limit": 1_500_000_000, "period": {"start": 1}, "enforcement": "hard"});
    let of_provider = json!({"type": "requests", "limit": 5, "window": {"unit": "week", "sliding": true}});
    let (provider, gateway) = start_gateway(json!([
        limit("api_key", "k", &of_key),
        limit("policy", "any", &of_policy),
        limit("provider", "p", &of_provider),
    ]))
    .await;
    assert_eq!(gateway.send(plain_chat_of(5)).await.status, 200);
    let body = json!({"model": "mock", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]});
    let request = json!({"path": CHAT_PATH, "headers": {"x-gateway-provider": "@mine"}, "body": body});
    let explain = || {
        let sent = TestRequest::new("POST", "/v1/explain").header("x-gateway-api-key", "pk");
        sent.header("content-type", "application/json").body(request.to_string())
    };
    let explanation = gateway.send(explain()).await.json();
    let limits = explanation["targets"][0]["limits"].as_array().unwrap();
    let found: Vec<_> = limits
        .iter()
        .map(|one| {
            (one["owner_name"].as_str().unwrap(), one["applies_to"].as_str().unwrap(), &one["remaining"], &one["limit"])
        })
        .collect();
    let [any, key, mine] = &found[..] else { panic!("{explanation}") };
    assert_eq!((any.0, any.1, any.3), ("any", "caller", &json!(1.5)));
    assert!(any.2.as_f64().unwrap() < 1.5, "{explanation}");
    assert_eq!(*key, ("k", "caller", &json!(1), &json!(2)));
    assert_eq!(*mine, ("p", "target", &json!(5), &json!(5)));
    assert!(limits.iter().all(|one| one["admits"] == true), "{explanation}");
    assert_eq!(limits[0]["enforcement"], "hard");
    // An explanation uses nothing of the budget.
    assert_eq!(gateway.send(explain()).await.json()["targets"][0]["limits"][1]["remaining"], 1);
    assert_eq!(gateway.send(plain_chat_of(5)).await.status, 200);
    assert_eq!(gateway.send(explain()).await.json()["targets"][0]["limits"][1]["admits"], false);
    wait_for_ledger_entries(&provider, 2).await;
}

#[tokio::test]
async fn explain_shows_the_limits_of_a_prompt() {
    let of_prompt = |slug: &str| {
        let condition = json!([{"key": "prompt", "values": [slug]}]);
        limit(
            "policy",
            slug,
            &json!({"type": "requests", "limit": 3, "window": {"unit": "week"}, "conditions": condition}),
        )
    };
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |_| ());
    let content = json!({"string": r#"[{"role": "user", "content": "Greet {{name}}"}]"#, "virtual_key": "mine",
        "model": "mock", "parameters": {"max_tokens": 7}});
    gateway.apply_snapshot(&json!({"epoch": "1",
        "workspaces": [{"id": "w", "slug": "here", "organisation_id": "o"}],
        "keys": [{"id": "k", "name": "dev", "workspace": "w", "sha256": sha256_hex("pk")}],
        "providers": [{"id": "p", "integration_id": "i", "slug": "mine", "provider": "mock", "workspace": "w"}],
        "parts": [
            {"name": "limits/00", "limits": [{"workspace": "w", "limits": [of_prompt("greet"), of_prompt("other")]}]},
            {"name": "prompts/00", "prompts": [{"id": "p1", "slug": "greet", "workspace": "w", "default": 1, "latest": 1,
                "versions": [{"number": 1, "id": "v", "content": content}]}]}]}));
    let explain = async |path: &str| {
        let request = json!({"path": path, "body": {"variables": {"name": "Ann"}}});
        let sent = TestRequest::new("POST", "/v1/explain").header("x-gateway-api-key", "pk");
        gateway.send(sent.header("content-type", "application/json").body(request.to_string())).await
    };
    let explanation = explain("/v1/prompts/greet/completions").await.json();
    let target = &explanation["targets"][0];
    let owners: Vec<_> = target["limits"].as_array().unwrap().iter().map(|one| &one["owner_name"]).collect();
    assert_eq!(owners, ["greet"], "{explanation}");
    assert_eq!((&target["provider"], &target["body"]["max_tokens"]), (&json!("mock"), &json!(7)));
    assert_eq!(target["body"]["messages"][0]["content"], "Greet Ann");
    let unknown = explain("/v1/prompts/unknown/completions").await;
    assert_eq!((unknown.status, unknown.error_code()), (404, "prompt_not_found".into()));
    assert_eq!(provider.ledger_entries().len(), 0);
}

#[tokio::test]
async fn continued_stream_retains_the_reservation() {
    let config = json!({"strategy": {"mode": "fallback"}, "recovery": "continue", "targets": [
        mock_target("chunks=60&fault=cut&after=40"), mock_target("chunks=60")]});
    // Each part reserves 99 tokens for its response, and the bytes of its prompt. The prompt of the second part
    // includes the response so far.
    for (most, is_continued) in [(1000, true), (400, false)] {
        let fields = json!({"type": "tokens", "limit": most, "period": {"start": 1}, "enforcement": "hard"});
        let (_provider, gateway) = start_gateway(json!([limit("policy", "any", &fields)])).await;
        let body = json!({"model": "m", "stream": true, "max_tokens": 99, "prompt": "say it: ",
            "stream_options": {"include_usage": true}});
        let request = TestRequest::new("POST", "/v1/completions").header("x-gateway-api-key", "pk");
        let request =
            request.header("content-type", "application/json").header("x-gateway-config", &config.to_string());
        let response = gateway.send(request.body(body.to_string())).await;
        assert_eq!(response.status, 200, "{}", response.text());
        let record = gateway.single_record();
        let steps: Vec<_> = record["decisions"].as_array().unwrap().iter().map(|step| &step["step"]).collect();
        assert_eq!(steps.contains(&&json!("continued")), is_continued, "{record}");
        assert_eq!(record["limits"]["budgets"][0]["id"], "policy-any", "{record}");
        let used = record["total_units"].as_u64().unwrap();
        assert!(used > 0 && used <= most, "{record}");
        // The next request can use what both parts have left of the budget.
        let next = json!({"path": "/v1/completions", "headers": {"x-gateway-provider": "mock"},
            "body": {"model": "mock", "prompt": "x", "max_tokens": 1}});
        let explain = TestRequest::new("POST", "/v1/explain").header("x-gateway-api-key", "pk");
        let explained =
            gateway.send(explain.header("content-type", "application/json").body(next.to_string())).await.json();
        assert_eq!(explained["targets"][0]["limits"][0]["remaining"], most - used, "{record}");
    }
}

/// Locks the only counter in a folder, as a worker does that has no CPU while it changes the counter.
fn lock_counter(folder: &Path) -> File {
    let mut shards = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let shard = shards.find(|path| path.is_dir()).unwrap();
    let counter = std::fs::read_dir(shard).unwrap().next().unwrap().unwrap().path();
    let file = File::open(counter).unwrap();
    file.lock().unwrap();
    file
}

#[tokio::test]
async fn other_tasks_run_while_a_request_waits_for_a_locked_counter() {
    let folder = std::env::temp_dir().join(format!("penstock-locked-{:x}", fastrand::u128(..)));
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.limits_path = Some(folder.to_string_lossy().into_owned());
    });
    // Each request needs the counter, because a hundredth of this limit is less than one request.
    let fields = json!({"type": "requests", "limit": 50, "window": {"unit": "week"}});
    set_limits(&gateway, &json!([limit("api_key", "k", &fields)]));
    assert_eq!(gateway.send(plain_chat()).await.status, 200);
    let shows_share = |response: &TestResponse| response.header("ratelimit-policy").unwrap().contains("penstock-share");
    let locked = lock_counter(&folder);
    // This task and the gateway run on the same thread.
    let unlock = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(locked);
    };
    let (response, ()) = tokio::join!(gateway.send(plain_chat()), unlock);
    assert_eq!((response.status, shows_share(&response)), (200, false));
    // The owner of the lock is stopped: the worker admits its share.
    let locked = lock_counter(&folder);
    for _ in 0..2 {
        let response = gateway.send(plain_chat()).await;
        assert_eq!((response.status, shows_share(&response)), (200, true));
    }
    drop(locked);
    std::fs::remove_dir_all(&folder).unwrap();
}
