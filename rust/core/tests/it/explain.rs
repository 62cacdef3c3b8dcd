//! What would become of a request is told without sending it, and of one that was sent in a header.

use crate::harness::{Ask, CHAT, Rig, by, by_with, get, pick, post, target, touchy, words};
use penstock_mock::Server;
use serde_json::{Map, Value, json};

fn explain(asked: &Value) -> Ask {
    Ask::new("POST", "/v1/explain").header("content-type", "application/json").body(asked.to_string())
}

fn would_be(config: &Value, body: &Value) -> Value {
    json!({"path": CHAT, "headers": {"x-gateway-config": config.to_string(), "x-gateway-metadata": r#"{"plan":"paid"}"#,
        "authorization": "Bearer sk-caller"}, "body": body})
}

#[tokio::test]
async fn every_target_is_told_in_its_order_with_what_it_would_get() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let inner = json!({"name": "paid", "strategy": {"mode": "fallback"}, "retry": {"attempts": 2}, "request_timeout": 50, "targets": [
        {"provider": "mock", "override_params": {"model": "a"}, "default_params": {"seed": 7}, "drop_params": ["user"]},
        {"provider": "mock", "api_key": "sk-stored", "cache": "simple",
            "cb_config": touchy()},
        {"provider": "nobody"}]});
    let config = json!({"strategy": {"mode": "conditional", "default": "paid",
        "conditions": [{"query": {"metadata.plan": "paid"}, "then": "paid"}]}, "targets": [inner]});
    let told = rig.send(explain(&would_be(&config, &json!({"model": "m", "user": "u"})))).await;
    assert_eq!(told.status, 200, "{}", told.text());
    let said = told.json();
    assert_eq!(said["strategy"], "conditional");
    assert_eq!(
        said["decisions"],
        json!([{"step": "chose", "at": "config", "strategy": "conditional", "target": 0, "condition": 0}])
    );
    let names = ["target", "provider", "model", "body", "timeout_ms", "retries", "breaker"];
    assert_eq!(
        pick(&said["targets"][0], names),
        json!(["config.targets[0].targets[0]", "mock", "a", {"model": "a", "seed": 7}, 50, 2, null])
    );
    let second = &said["targets"][1];
    assert_eq!(pick(second, ["model", "retries", "breaker", "has_credential"]), json!(["m", 2, "closed", true]));
    assert_eq!((&second["cache"]["status"], second["cache"]["key"].as_str().unwrap().len()), (&json!("miss"), 64));
    assert_eq!(
        pick(&said["targets"][2], ["target", "error"]),
        json!(["config.targets[0].targets[2]", "invalid_provider"])
    );
    assert!(!told.text().contains("sk-"), "{}", told.text());
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn the_model_of_a_websocket_is_read_of_its_query() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = json!({"provider": "mock", "api_key": "sk-1", "override_params": {"model": "b"}});
    let plain = json!({"provider": "mock", "api_key": "sk-1"});
    for (path, upgrade) in [("/v1/realtime?model=a", None), ("/v1/responses?model=a", Some("websocket"))] {
        for (config, model) in [(&plain, "a"), (&config, "b")] {
            let mut headers = json!({"x-gateway-config": config.to_string()});
            if let Some(kind) = upgrade {
                headers["Upgrade"] = kind.into();
            }
            let told = rig.send(explain(&json!({"method": "GET", "path": path, "headers": headers}))).await;
            let found = pick(&told.json()["targets"][0], ["provider", "model", "stream"]);
            assert_eq!(found, json!(["mock", model, true]), "{path}: {}", told.text());
        }
    }
}

#[tokio::test]
async fn the_headers_of_the_asking_hold_unless_others_are_said() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let asked = json!({"path": CHAT, "body": {"model": "m"}});
    let told =
        rig.send(explain(&asked).header("x-gateway-provider", "mock").header("x-gateway-request-timeout", "77")).await;
    assert_eq!(pick(&told.json()["targets"][0], ["target", "timeout_ms", "retries"]), json!(["config", 77, 0]));
}

#[tokio::test]
async fn a_group_in_which_no_condition_holds_is_passed_by() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let nobody = json!({"strategy": {"mode": "conditional", "conditions": [{"query": {"metadata.plan": "free"}, "then": "a"}]},
        "targets": [{"name": "a", "provider": "mock"}]});
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [nobody, target("chunks=1")]});
    let words: Value = serde_json::from_str(&words("mock", false)).unwrap();
    let told = rig.send(explain(&would_be(&config, &words))).await.json();
    assert_eq!(pick(&told["targets"][0], ["target", "provider"]), json!(["config.targets[1]", "mock"]), "{told}");
    let failed = json!({"step": "failed", "at": "config.targets[0]", "error": "no_target"});
    assert_eq!(told["decisions"], json!([failed]));
    assert_eq!(rig.send(by(&config)).await.status, 200);
    assert_eq!(rig.records().pop().unwrap()["decisions"][0], failed);
    let alone = explain(&would_be(&config["targets"][0], &words));
    assert_eq!(rig.send(alone).await.code(), "no_target");
}

#[tokio::test]
async fn an_open_breaker_and_a_kept_answer_are_told() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut failing = target("status=503");
    failing["cb_config"] = touchy();
    let config =
        json!({"strategy": {"mode": "fallback"}, "targets": [failing, {"provider": "mock", "cache": "simple"}]});
    let same = |path: &str, body: String| by_with(&config, path, body).header("x-gateway-cache-namespace", "n");
    let words: Value = serde_json::from_str(&words("mock", false)).unwrap();
    assert_eq!(rig.send(same(CHAT, words.to_string())).await.status, 200);
    let told = rig.send(same("/v1/explain", json!({"path": CHAT, "body": words}).to_string())).await;
    let said = told.json();
    assert_eq!(said["decisions"][0], json!({"step": "skipped", "at": "config.targets[0]", "breaker": "open"}));
    assert_eq!(said["targets"].as_array().unwrap().len(), 1);
    assert_eq!(said["targets"][0]["cache"]["status"], "hit");
}

#[tokio::test]
async fn the_key_of_the_cache_is_the_one_that_the_same_bytes_would_have() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = json!({"provider": "mock", "cache": "simple"});
    let body = r#"{ "model" : "mock",  "n":1.0, "messages":[{"role":"user","content":"\u0041\u00e9/"}] }"#;
    let same = |path: &str, body: String| by_with(&config, path, body).header("x-gateway-cache-namespace", "n");
    assert_eq!(rig.send(same(CHAT, body.to_owned())).await.status, 200);
    let asked = |body: &str| same("/v1/explain", format!(r#"{{"path":"{CHAT}","body":{body}}}"#));
    assert_eq!(rig.send(asked(body)).await.json()["targets"][0]["cache"]["status"], "hit");
    assert_eq!(rig.send(asked(&body.replace("  ", ""))).await.json()["targets"][0]["cache"]["status"], "miss");
}

#[tokio::test]
async fn what_is_imposed_on_the_key_decides_as_it_would() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.apply(&json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": crate::harness::sha256("pk"),
        "defaults": {"metadata": {"plan": "paid"}}}]}));
    let config = json!({"strategy": {"mode": "conditional", "default": "a",
        "conditions": [{"query": {"metadata.plan": "paid"}, "then": "b"}]},
        "targets": [{"name": "a", "provider": "mock"}, {"name": "b", "provider": "mock"}]});
    let told = rig.send(explain(&would_be(&config, &json!({"model": "m"}))).header("x-gateway-api-key", "pk")).await;
    assert_eq!(told.json()["targets"][0]["target"], "config.targets[1]", "{}", told.text());
    let mut free = would_be(&config, &json!({"model": "m"}));
    free["headers"]["x-gateway-metadata"] = json!(r#"{"plan":"free"}"#);
    let told = rig.send(explain(&free).header("x-gateway-api-key", "pk")).await;
    assert_eq!(told.json()["targets"][0]["target"], "config.targets[1]", "{}", told.text());
}

#[tokio::test]
async fn it_leaves_no_trace_in_what_decides() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let guarded = |behaviour: &str| {
        let mut target = target(behaviour);
        target["cb_config"] = touchy();
        target
    };
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [guarded("status=503"), guarded("chunks=1")]});
    let asked = would_be(&config, &json!({"model": "m"}));
    assert_eq!(rig.send(by(&config)).await.status, 200);
    let breakers = || async { rig.send(explain(&asked)).await.json() };
    for _ in 0..3 {
        let said = breakers().await;
        assert_eq!(said["targets"].as_array().unwrap().len(), 1, "{said}");
    }
    assert_eq!(rig.gateway.record_sink.metrics.breaker_skips.get(), 0);
    rig.gateway.shared.clock.advance(std::time::Duration::from_secs(30));
    for _ in 0..3 {
        let said = breakers().await;
        assert_eq!(said["targets"][0]["breaker"], "half_open", "{said}");
    }
    // The one that may try is still to come.
    provider.clear_ledger();
    assert_eq!(rig.send(by(&config)).await.status, 200);
    assert_eq!(crate::harness::settled(&provider, 2).await.len(), 2);
}

#[tokio::test]
async fn what_would_be_refused_is_refused_with_the_same_words() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (asked, code) in [
        (would_be(&json!({"retry": 1}), &json!({"model": "m"})), "provider_needed"),
        (would_be(&json!({"provider": "mock", "retry": 1}), &json!({"model": "m"})), "invalid_config"),
        (json!({"path": "/elsewhere"}), "invalid_request"),
        (json!({"path": CHAT, "header": {}}), "invalid_request"),
        (json!({"path": CHAT, "headers": {"x-a": 1}}), "invalid_request"),
    ] {
        let told = rig.send(explain(&asked)).await;
        assert_eq!((told.status, told.code().as_str()), (400, code), "{asked}");
    }
}

#[tokio::test]
async fn a_key_is_asked_for_as_ever() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.require_key = true);
    assert_eq!(rig.send(explain(&json!({"path": CHAT}))).await.status, 401);
}

#[tokio::test]
async fn a_real_request_is_explained_in_a_header_when_it_asks() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [target("status=503"), target("chunks=1")]});
    let told = rig.send(by(&config).header("x-gateway-explain", "true")).await;
    let said: Value = serde_json::from_str(told.header("x-gateway-explanation").unwrap()).unwrap();
    assert_eq!(pick(&said, ["config", "option"]), json!([null, "config.targets[1]"]));
    assert_eq!(pick(&said["decisions"][0], ["step", "status"]), json!(["tried", 503]));
    assert_eq!(said["decisions"], rig.record()["decisions"]);
    assert_eq!(rig.send(by(&config)).await.header("x-gateway-explanation"), None);
}

#[tokio::test]
async fn the_target_that_answered_is_told_as_it_was_asked() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut last = json!({"provider": "mock", "name": "größe", "override_params": {"user": "Zoë", "model": "mock?chunks=1"},
        "drop_params": ["max_tokens"], "request_timeout": 700, "cache": "simple", "retry": {"attempts": 2}});
    last["cb_config"] = json!({"failure_threshold": 3, "cooldown_interval": 30_000});
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [target("status=503"), last]});
    let body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x".repeat(300)}]});
    let told = rig.send(by_with(&config, CHAT, body.to_string()).header("x-gateway-explain", "true")).await;
    let header = told.header("x-gateway-explanation").unwrap();
    assert!(header.is_ascii(), "{header}");
    let said: Value = serde_json::from_str(header).unwrap();
    let target = &said["target"];
    assert_eq!(
        pick(target, ["target", "name", "provider", "model", "timeout_ms", "retries", "breaker"]),
        json!(["config.targets[1]", "größe", "mock", "mock?chunks=1", 700, 2, "closed"])
    );
    assert_eq!(target["body"], json!({"model": "mock?chunks=1", "messages": "(330 bytes)", "user": "Zoë"}));
    assert_eq!((&target["cache"]["status"], target["cache"]["key"].as_str().unwrap().len()), (&json!("miss"), 64));
}

#[tokio::test]
async fn a_request_without_a_config_is_explained_too_and_none_is_too_long_for_a_header() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let many: Value = (0..400).map(|at| (format!("field{at}"), json!("ä".repeat(90)))).collect::<Map<_, _>>().into();
    for ask in [get("/v1/files/file-1"), post(CHAT, words("mock", true)), post("/v1/some/thing", many.to_string())] {
        let told = rig.send(ask.header("x-gateway-explain", "true")).await;
        let header = told.header("x-gateway-explanation").unwrap();
        assert!(header.len() < 8_000, "{}", header.len());
        let said: Value = serde_json::from_str(header).unwrap();
        assert_eq!(pick(&said["target"], ["provider", "retries"]), json!(["mock", 0]), "{header}");
        assert_eq!(pick(&said["decisions"][0], ["step", "status"]), json!(["tried", 200]));
    }
}

/// What differs from one run to the next.
fn steady(mut told: Value, provider: &Server) -> Value {
    let host = provider.addr.to_string();
    for step in told.as_array_mut().into_iter().flatten() {
        let Some(step) = step.as_object_mut() else { continue };
        step.remove("milliseconds");
        if step.get("host").is_some_and(|value| *value == host) {
            step.insert("host".into(), "the pretend provider".into());
        }
    }
    told
}

/// A case with what is told of it before (`targets`, `expected`), and after it was sent (`status`, `decisions`).
async fn traced(case: &Value) -> Value {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.retry_backoff_ms = 1);
    let mut headers = case["headers"].as_object().unwrap().clone();
    headers.insert("x-gateway-config".into(), case["config"].to_string().into());
    let path = case["path"].as_str().unwrap();
    let explained = rig.send(explain(&json!({"path": path, "headers": headers, "body": case["body"]}))).await.json();
    rig.records();
    let mut ask = by_with(&case["config"], path, case["body"].to_string());
    for (name, value) in case["headers"].as_object().unwrap() {
        ask = ask.header(name, value.as_str().unwrap());
    }
    let told = rig.send(ask).await;
    let decisions = rig.record()["decisions"].clone();
    let mut traced = case.clone();
    traced["expected"] = explained["decisions"].clone();
    traced["targets"] = steady(explained["targets"].clone(), &provider);
    traced["status"] = told.status.into();
    traced["decisions"] = steady(decisions, &provider);
    traced
}

#[tokio::test]
async fn the_traces_are_those_of_the_files() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/explained");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let written: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let traced = traced(&written).await;
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, format!("{traced:#}\n")).unwrap();
        } else {
            assert_eq!(traced, written, "{}", path.display());
        }
        count += 1;
    }
    assert!(count >= 9, "the cases are not where they should be");
}

#[tokio::test]
async fn the_time_that_is_told_is_the_callers_where_that_is_shorter() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = json!({"provider": "mock", "request_timeout": 5_000});
    for (patience, expected) in [("2", 1_500..=1_900), ("60", 5_000..=5_000)] {
        let headers = json!({"x-gateway-config": config.to_string(), "x-stainless-read-timeout": patience});
        let asked =
            json!({"path": "/v1/chat/completions", "headers": headers, "body": {"model": "mock", "messages": []}});
        let told = rig.send(post("/v1/explain", asked.to_string())).await.json();
        assert!(expected.contains(&told["targets"][0]["timeout_ms"].as_u64().unwrap()), "{told}");
        let ask = by(&config).header("x-gateway-explain", "true").header("x-stainless-read-timeout", patience);
        let told = rig.send(ask).await;
        let said: Value = serde_json::from_str(told.header("x-gateway-explanation").unwrap()).unwrap();
        assert!(expected.contains(&said["target"]["timeout_ms"].as_u64().unwrap()), "{said}");
    }
}
