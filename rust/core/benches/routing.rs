//! Benchmark of what a large config costs per request: choosing a target alone, and the complete path to a provider and
//! back.

use std::{fmt::Write, hint::black_box, sync::Arc};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use penstock_core::{
    accounting::record::metadata::Metadata,
    config::{Config, Strictness},
    gateway_state::GatewayState,
    ingress::{Request, message::RequestHead},
    process::settings::{Settings, TargetLimits},
    response::client_response::ClientResponseBody,
    state::shared::inline_configs::InlineConfigCache,
    strategies::{Strategy, condition_input::ConditionInput},
};
use penstock_mock::Server;
use penstock_net::{body::Body, headers::Headers};
use serde_json::{Value, json};

/// Builds a config with `levels` nested groups and `targets` targets in the innermost one.
fn nested_config(levels: usize, targets: usize) -> Value {
    let leaves: Vec<_> = (0..targets).map(|seed| json!({"provider": "mock", "weight": seed % 7 + 1})).collect();
    let mut group = json!({"strategy": {"mode": "loadbalance"}, "targets": leaves});
    for _ in 1..levels {
        group = json!({"strategy": {"mode": "fallback"}, "targets": [group]});
    }
    group
}

/// Builds a config with `count` conditions, of which only the last one matches.
fn conditional_config(count: usize) -> Value {
    let targets: Vec<_> = (0..count).map(|name| json!({"provider": "mock", "name": name.to_string()})).collect();
    let condition = |index: usize| {
        let user = if index + 1 == count { "ann".to_owned() } else { format!("user {index}") };
        json!({"query": {"metadata.user": {"$eq": user}, "params.model": {"$regex": "^m"}}, "then": index.to_string()})
    };
    let conditions: Vec<_> = (0..count).map(condition).collect();
    json!({"strategy": {"mode": "conditional", "conditions": conditions, "default": "0"}, "targets": targets})
}

fn parse_config(config: &Value) -> Option<Config> {
    Config::parse(config.to_string().as_bytes(), Strictness::Strict).ok()
}

fn bench_choose_target(c: &mut Criterion) {
    let mut group = c.benchmark_group("routing/choose");
    let metadata = Metadata::parse(r#"{"user":"ann"}"#);
    let params = [Some(json!("model"))];
    let condition_input =
        ConditionInput { metadata: &metadata, params: &params, path: "/v1/chat/completions", pattern_results: None };
    if let Some(Config { root, .. }) = parse_config(&conditional_config(1000))
        && let Strategy::Conditional(strategy) = &root.strategy
    {
        group.bench_function("the last of 1,000 conditions", |b| {
            b.iter(|| strategy.choose_target(black_box(&condition_input)));
        });
    }
    if let Some(Config { root, .. }) = parse_config(&nested_config(1, 100))
        && let Strategy::LoadBalance(strategy) = &root.strategy
    {
        group.bench_function("one of 100 by weight", |b| b.iter(|| strategy.pick_random(black_box(0.7), None)));
    }
    group.finish();
}

fn bench_parse_config(c: &mut Criterion) {
    let mut group = c.benchmark_group("routing/config");
    let text = nested_config(5, 100).to_string();
    group.bench_function("parse 100 targets", |b| {
        b.iter(|| Config::parse(black_box(text.as_bytes()), Strictness::Lenient).is_ok());
    });
    let cache = InlineConfigCache::new(1 << 24);
    group.bench_function("100 targets, already compiled", |b| {
        b.iter(|| cache.get_or_compile(black_box(&text), TargetLimits::default()).is_ok());
    });
    group.finish();
}

fn build_request(config: &str, prompt: &str) -> Request {
    let mut headers = Headers::default();
    headers.push(b"x-gateway-config", config.as_bytes());
    headers.push(b"x-gateway-metadata", br#"{"user":"ann"}"#);
    headers.push(b"content-type", b"application/json");
    let body = json!({"model": "mock", "messages": [{"role": "user", "content": prompt}]}).to_string();
    let head = RequestHead {
        method: "POST".into(),
        path: "/v1/chat/completions".into(),
        query: String::new(),
        headers,
        ..RequestHead::default()
    };
    Request { head, body: Body::Complete(body.into()) }
}

/// Runs over a real connection, so that the complete request path is measured. Only the differences between the configs
/// matter.
fn bench_complete_request(c: &mut Criterion) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let server = runtime.block_on(Server::start());
    let settings = Settings {
        mock_host: Some(server.url()),
        max_nested_targets: 200,
        control_socket: Some("/nonexistent".into()),
        records: true,
        ..Settings::default()
    };
    let Ok(state) = GatewayState::new(settings) else { return };
    let configs = [
        ("one target", json!({"provider": "mock"})),
        ("5 levels, 100 targets", nested_config(5, 100)),
        ("1,000 conditions", conditional_config(1000)),
    ];
    let rows: Vec<_> = configs
        .iter()
        .enumerate()
        .map(|(index, (_, config))| json!({"slug": format!("pc-{index}"), "config": config}))
        .collect();
    if state.apply_snapshot(json!({"epoch": "1", "configs": rows}).to_string().as_bytes()).is_err() {
        return;
    }
    let state = Arc::new(state);
    let mut group = c.benchmark_group("routing/walk");
    for (index, (name, _)) in configs.iter().enumerate() {
        let mut slug = String::new();
        let _ = write!(slug, "pc-{index}");
        group.bench_function(*name, |b| {
            b.iter_batched(
                || {
                    if let Some(lines) = state.record_sink.outbox.take_pending() {
                        state.record_sink.outbox.acknowledge(lines);
                    }
                    build_request(&slug, "hi")
                },
                |request| {
                    let response = runtime.block_on(penstock_core::gateway::handle(&state, request));
                    assert!(response.head.status == 200 && matches!(response.body, ClientResponseBody::Complete(_)));
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// Compares a cached response, including its record, with the same response forwarded.
fn bench_cached_response(c: &mut Criterion) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let server = runtime.block_on(Server::start());
    let settings = Settings {
        mock_host: Some(server.url()),
        control_socket: Some("/nonexistent".into()),
        records: true,
        ..Settings::default()
    };
    let Ok(state) = GatewayState::new(settings) else { return };
    if state.apply_snapshot(br#"{"epoch":"1"}"#).is_err() {
        return;
    }
    let state = Arc::new(state);
    let mut group = c.benchmark_group("routing/kept");
    let prompt = "Tell me more. ".repeat(64);
    for (name, config) in
        [("kept", r#"{"provider":"mock","cache":{"mode":"simple"}}"#), ("forwarded", r#"{"provider":"mock"}"#)]
    {
        group.bench_function(name, |b| {
            let setup = || {
                if let Some(lines) = state.record_sink.outbox.take_pending() {
                    state.record_sink.outbox.acknowledge(lines);
                }
                build_request(config, &prompt)
            };
            let response = |request| {
                assert_eq!(runtime.block_on(penstock_core::gateway::handle(&state, request)).head.status, 200);
            };
            b.iter_batched(setup, response, BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, bench_choose_target, bench_parse_config, bench_complete_request, bench_cached_response);
criterion_main!(benches);
