//! Benchmark of prompts: parsing and rendering of templates, and a request that runs a prompt, compared with the same
//! plain request.

use std::{fmt::Write, hint::black_box, sync::Arc};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use penstock_core::{
    gateway_state::GatewayState,
    ingress::{Request, message::RequestHead},
    process::settings::Settings,
    prompts::{
        prompt::CompiledPrompt,
        template::{RenderLimits, Template},
    },
    response::client_response::ClientResponseBody,
};
use penstock_mock::Server;
use penstock_net::{body::Body, headers::Headers};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const KEY: &str = "pk-bench";

/// Returns the content of a chat prompt of about 2 KB with 10 variables.
fn prompt_content() -> Value {
    let part = |number: usize| format!("{{{{v{number}}}}} {}", "text of the template ".repeat(9));
    let user: String = (1..10).map(part).collect();
    let messages = json!([{"role": "system", "content": part(0)}, {"role": "user", "content": user}]);
    json!({"string": messages.to_string(), "parameters": {"max_tokens": 9}, "virtual_key": "mine", "model": "mock"})
}

fn variables() -> Value {
    (0..10)
        .map(|number| (format!("v{number}"), json!("a value of usual length")))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn bench_templates(c: &mut Criterion) {
    let mut group = c.benchmark_group("prompts/template");
    for (name, count) in [("parse 1 KB", 1), ("parse 32 KB", 32), ("parse 1 MB", 1024)] {
        let source = "{{#a}} text {{b.c}} and {{! comment }} more{{/a}} text of the line\n".repeat(count * 16);
        group.throughput(criterion::Throughput::Bytes(source.len() as u64));
        group.bench_function(name, |b| b.iter(|| Template::parse(black_box(&source)).is_ok()));
    }
    group.finish();
    let Ok(prompt) = CompiledPrompt::parse(prompt_content().to_string().as_bytes()) else { return };
    let variables = variables();
    c.bench_function("prompts/render 2 KB with 10 variables", |b| {
        b.iter(|| prompt.render(black_box(&variables), RenderLimits::INLINE, |_| None).is_ok());
    });
}

fn build_request(path: &str, body: &Value) -> Request {
    let mut headers = Headers::default();
    headers.push(b"x-gateway-api-key", KEY.as_bytes());
    headers.push(b"x-gateway-provider", b"@mine");
    headers.push(b"content-type", b"application/json");
    let head = RequestHead { method: "POST".into(), path: path.into(), headers, ..RequestHead::default() };
    Request { head, body: Body::Complete(body.to_string().into()) }
}

/// Runs over a real connection. Only the difference between the two requests matters.
fn bench_complete_request(c: &mut Criterion) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let server = runtime.block_on(Server::start());
    let settings = Settings {
        mock_host: Some(server.url()),
        control_socket: Some("/nonexistent".into()),
        records: true,
        ..Settings::default()
    };
    let Ok(state) = GatewayState::new(settings) else { return };
    let digest = Sha256::digest(KEY).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let version = json!({"number": 1, "id": "v", "content": prompt_content()});
    let prompt =
        json!({"id": "p", "slug": "greeting", "workspace": "w", "default": 1, "latest": 1, "versions": [version]});
    let snapshot = json!({"epoch": "1", "workspaces": [{"id": "w", "slug": "w", "organisation_id": "o"}],
        "keys": [{"id": "k", "name": "k", "workspace": "w", "sha256": digest}],
        "providers": [{"slug": "mine", "provider": "mock", "workspace": "w"}],
        "parts": [{"name": "prompts/00", "prompts": [prompt]}]});
    if state.apply_snapshot(snapshot.to_string().as_bytes()).is_err() {
        return;
    }
    let state = Arc::new(state);
    let text = "text of the template ".repeat(100);
    let plain = json!({"model": "mock", "max_tokens": 9, "messages": [{"role": "user", "content": text}]});
    let mut group = c.benchmark_group("prompts/request");
    for (name, path, body) in [
        ("plain", "/v1/chat/completions", plain),
        ("prompt", "/v1/prompts/greeting/completions", json!({"variables": variables()})),
    ] {
        group.bench_function(name, |b| {
            b.iter_batched(
                || {
                    if let Some(lines) = state.record_sink.outbox.take_pending() {
                        state.record_sink.outbox.acknowledge(lines);
                    }
                    build_request(path, &body)
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

criterion_group!(benches, bench_templates, bench_complete_request);
criterion_main!(benches);
