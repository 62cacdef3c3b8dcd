//! Routing of random nested configs. The result must match a simple reference model, and every request must end.

use crate::harness::{CHAT_PATH, TestGateway, TestResponse, mock_target, post_with_config, routing_headers};
use fastrand::Rng;
use penstock_mock::Server;
use serde_json::{Map, Value, json};

const UPSTREAM_STATUSES: [u16; 5] = [200, 400, 429, 500, 503];

/// Generates a random node: a target, or a group of targets. Exactly one member of each group has a non-zero weight.
fn random_node(random: &mut Rng, depth: u32, id: &mut u32, port: u16) -> Value {
    if depth == 0 || random.u8(0..4) == 0 {
        *id += 1;
        let status = UPSTREAM_STATUSES[random.usize(0..UPSTREAM_STATUSES.len())];
        let mut leaf = mock_target(&format!("status={status}&chunks={id}"));
        add_random_settings(random, &mut leaf, port);
        return leaf;
    }
    let count = random.usize(1..4);
    let mut targets: Vec<_> = (0..count).map(|_| random_node(random, depth - 1, id, port)).collect();
    let chosen = random.usize(0..count);
    for (index, target) in targets.iter_mut().enumerate() {
        target["name"] = json!(format!("t{index}"));
        target["weight"] = json!(u8::from(index == chosen));
    }
    let strategy = match random.u8(0..5) {
        0 => json!({"mode": "single"}),
        1 => json!({"mode": "loadbalance"}),
        2 => json!({"mode": "conditional", "default": format!("t{chosen}"),
            "conditions": [{"query": {"metadata.plan": "paid"}, "then": "t0"}]}),
        3 => json!({"mode": "fallback", "on_status_codes": [429]}),
        _ => json!({"mode": "fallback"}),
    };
    let mut group = json!({"strategy": strategy, "targets": targets});
    if group["strategy"]["mode"] == "fallback" && random.u8(0..3) == 0 {
        // Longer than any response takes, so no hedge starts.
        group["strategy"]["hedge"] = json!({"after_ms": 60_000});
    }
    if random.u8(0..4) == 0 {
        group["strategy"]["cb_config"] = NEVER_OPENING_BREAKER.parse().unwrap();
    }
    add_random_settings(random, &mut group, port);
    group
}

/// Circuit breaker settings under which the breaker never opens.
const NEVER_OPENING_BREAKER: &str = r#"{"failure_threshold": 100000, "cooldown_interval": 30000}"#;

/// Adds random inheritable settings to a node.
fn add_random_settings(random: &mut Rng, node: &mut Value, port: u16) {
    let names = ["seed", "user", "top_p", "n"];
    let name = |random: &mut Rng| names[random.usize(0..names.len())];
    let hosts = [format!("http://127.0.0.1:{port}/v1"), format!("http://localhost:{port}/v1")];
    let own = [
        ("retry", json!({"attempts": random.u8(0..2), "on_status_codes": [503]})),
        ("recovery", json!(["off", "hold", "continue"][random.usize(0..3)])),
        ("default_params", json!({name(random): random.u32(0..100), (format!("only{}", random.u8(0..3))): 1})),
        ("drop_params", json!([name(random), name(random)])),
        ("request_timeout", json!(random.u32(5_000..7_000))),
        ("cache", json!({"mode": "simple", "max_age": random.u32(60..100)})),
        ("cb_config", NEVER_OPENING_BREAKER.parse().unwrap()),
        ("custom_host", json!(hosts[random.usize(0..2)])),
        ("forward_headers", json!([format!("x-{}", name(random))])),
        ("strict_open_ai_compliance", json!(random.bool())),
    ];
    for (key, value) in own {
        if random.u8(0..3) == 0 {
            node[key] = value;
        }
    }
    if random.u8(0..3) == 0 {
        node["override_params"][name(random)] = json!(random.u32(100..200));
    }
}

/// Outcome of a request that the reference model predicts.
#[derive(Debug, Default)]
struct ExpectedOutcome {
    /// Models of the upstream requests, in order.
    requested_models: Vec<String>,
    status: u16,
    target_path: String,
    retries: i32,
    is_cache_enabled: bool,
}

/// Predicts the outcome of a node in the simplest way: settings are inherited by copying maps.
fn predict_node(node: &Value, path: &str, inherited: &Map<String, Value>, expected: &mut ExpectedOutcome) {
    let own = merge_inherited_settings(node, inherited);
    let Some(targets) = node["targets"].as_array() else {
        return predict_target(node, path, &own, expected);
    };
    for index in candidate_indexes(node, targets, inherited) {
        predict_node(&targets[index], &format!("{path}.targets[{index}]"), &own, expected);
        let listed = node["strategy"].get("on_status_codes").and_then(Value::as_array);
        let is_failure = listed.map_or(expected.status != 200, |listed| listed.contains(&json!(expected.status)));
        if !is_failure {
            break;
        }
    }
}

/// Returns the settings that a node passes to its children. Parameters are merged field by field; for all other
/// settings the nearest one applies.
fn merge_inherited_settings(node: &Value, inherited: &Map<String, Value>) -> Map<String, Value> {
    let mut own = inherited.clone();
    let replaced = [
        "retry",
        "recovery",
        "request_timeout",
        "cache",
        "cb_config",
        "custom_host",
        "forward_headers",
        "strict_open_ai_compliance",
    ];
    for key in replaced {
        node.get(key).into_iter().for_each(|content| drop(own.insert(key.to_owned(), content.clone())));
    }
    if let Some(content) = node["strategy"].get("cb_config") {
        own.insert("cb_config".to_owned(), content.clone());
    }
    for key in ["default_params", "override_params"] {
        let all = own.entry(key).or_insert_with(|| json!({})).as_object_mut().unwrap();
        all.extend(node[key].as_object().cloned().unwrap_or_default());
    }
    let drops = own.entry("drop_params").or_insert_with(|| json!([])).as_array_mut().unwrap();
    drops.extend(node["drop_params"].as_array().cloned().unwrap_or_default());
    own
}

/// Body of every request in this test.
fn request_body() -> Value {
    json!({"model": "m", "user": "ann", "top_p": 1, "messages": [{"role": "user", "content": "hi"}]})
}

/// Returns the request body after the parameter settings of a target are applied.
fn apply_parameters(own: &Map<String, Value>) -> Value {
    let mut changed = request_body();
    let fields = changed.as_object_mut().unwrap();
    for (key, value) in own["default_params"].as_object().unwrap() {
        fields.entry(key.clone()).or_insert_with(|| value.clone());
    }
    fields.extend(own["override_params"].as_object().unwrap().clone());
    for dropped in own["drop_params"].as_array().unwrap() {
        fields.remove(dropped.as_str().unwrap());
    }
    changed
}

/// Returns the indexes of the group members that may be tried, in order.
fn candidate_indexes(node: &Value, targets: &[Value], inherited: &Map<String, Value>) -> Vec<usize> {
    let strategy = &node["strategy"];
    let find = |is_it: &dyn Fn(&Value) -> bool| vec![targets.iter().position(is_it).unwrap()];
    match strategy["mode"].as_str().unwrap() {
        "single" => vec![0],
        "loadbalance" => find(&|target| target["weight"] == 1),
        // Every second request has metadata that match the condition of the first target.
        "conditional" if inherited.contains_key("paid") => vec![0],
        "conditional" => find(&|target| target["name"] == strategy["default"]),
        _ => (0..targets.len()).collect(),
    }
}

/// Returns every target that may be tried, in order, with its inherited settings. Appends the paths of hedge targets to
/// `hedged`.
fn expected_targets(
    node: &Value,
    path: &str,
    inherited: &Map<String, Value>,
    port: u16,
    hedged: &mut Vec<String>,
) -> Vec<Value> {
    let own = merge_inherited_settings(node, inherited);
    let Some(targets) = node["targets"].as_array() else {
        let build_value = |key: &str, otherwise: Value| own.get(key).cloned().unwrap_or(otherwise);
        let retries = own.get("retry").map_or(json!(0), |retry| retry["attempts"].clone());
        let host = own.get("custom_host").map(|url| url.as_str().unwrap()[7..].trim_end_matches("/v1").to_owned());
        return vec![json!([
            path,
            retries,
            build_value("recovery", json!("off")),
            apply_parameters(&own),
            build_value("request_timeout", json!(8_000)),
            if own.contains_key("cache") { "miss" } else { "disabled" },
            own.get("cb_config").map(|_| "closed"),
            host.unwrap_or_else(|| format!("127.0.0.1:{port}")),
            build_value("forward_headers", json!([])),
            build_value("strict_open_ai_compliance", json!(true)),
        ])];
    };
    if node["strategy"].get("hedge").is_some() && targets.len() > 1 {
        hedged.push(format!("{path}.targets[1]"));
    }
    let mut all = Vec::new();
    for index in candidate_indexes(node, targets, inherited) {
        all.extend(expected_targets(&targets[index], &format!("{path}.targets[{index}]"), &own, port, hedged));
    }
    all
}

fn parse_explanation(response: &TestResponse) -> (Vec<Value>, Vec<String>) {
    let body = response.json();
    let of = |target: &Value| {
        json!([
            target["target"],
            target["retries"],
            target["recovery"]["mode"],
            target["body"],
            target["timeout_ms"],
            target["cache"]["status"],
            target["breaker"],
            target["host"],
            target["forward_headers"],
            target["strict_open_ai_compliance"]
        ])
    };
    let steps = body["decisions"].as_array().unwrap().iter().filter(|step| step["step"] == "would_hedge");
    let hedged = steps.map(|step| step["at"].as_str().unwrap().to_owned()).collect();
    (body["targets"].as_array().unwrap().iter().map(of).collect(), hedged)
}

fn predict_target(node: &Value, path: &str, own: &Map<String, Value>, expected: &mut ExpectedOutcome) {
    let model = node["override_params"]["model"].as_str().unwrap();
    let status: u16 = model.split("status=").nth(1).unwrap()[..3].parse().unwrap();
    let attempts = own.get("retry").map_or(0, |retry| retry["attempts"].as_u64().unwrap());
    let sent = if status == 503 { attempts + 1 } else { 1 };
    expected.requested_models.extend((0..sent).map(|_| model.to_owned()));
    expected.status = status;
    path.clone_into(&mut expected.target_path);
    expected.is_cache_enabled = own.contains_key("cache");
    expected.retries = if status == 503 && attempts > 0 { -1 } else { 0 };
}

fn assert_outcome(response: &TestResponse, expected: &ExpectedOutcome, request: &[String], config: &Value) {
    assert_eq!(request, expected.requested_models, "{config:#}");
    let retries = expected.retries.to_string();
    let cache_status = if expected.is_cache_enabled { "MISS" } else { "DISABLED" };
    assert_eq!(
        (response.status, routing_headers(response)),
        (expected.status, [&*expected.target_path, &retries, cache_status]),
        "{config:#}"
    );
}

#[tokio::test]
async fn routing_and_explanation_match_the_reference_model() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.retry_backoff_ms = 1;
        settings.retry_budget_min = 100_000;
        settings.trusted_custom_hosts = vec!["127.0.0.1".into(), "localhost".into()];
    });
    let mut random = Rng::with_seed(20_260_101);
    let (mut checked, port) = (0, provider.addr.port());
    for round in 0..300 {
        let config = random_node(&mut random, round % 5, &mut 0, port);
        let is_paid = round % 2 == 0;
        let mut inherited = Map::new();
        let client_request = json!({"path": CHAT_PATH, "body": request_body()}).to_string();
        let mut request = post_with_config(&config, CHAT_PATH, request_body().to_string());
        let mut explain = post_with_config(&config, "/v1/explain", client_request);
        if is_paid {
            inherited.insert("paid".into(), Value::Null);
            request = request.header("x-gateway-metadata", r#"{"plan":"paid"}"#);
            explain = explain.header("x-gateway-metadata", r#"{"plan":"paid"}"#);
        }
        let (leaves, hedged) = parse_explanation(&gateway.send(explain).await);
        let mut second = Vec::new();
        let model = self::expected_targets(&config, "config", &inherited, port, &mut second);
        assert_eq!((leaves, hedged), (model, second), "{config:#}");
        let mut expected = ExpectedOutcome::default();
        predict_node(&config, "config", &inherited, &mut expected);
        let response = gateway.send(request).await;
        let entries =
            crate::harness::wait_for_ledger_entries(&provider, checked + expected.requested_models.len()).await;
        let client_request: Vec<_> = entries[checked..].iter().map(|entry| entry.model.clone()).collect();
        checked = entries.len();
        assert_outcome(&response, &expected, &client_request, &config);
    }
    assert!(checked > 200, "{checked} are few");
}
