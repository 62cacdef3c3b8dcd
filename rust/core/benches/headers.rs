//! Benchmark of the header map of one request: build it, scan it, read the control headers, and render the provider's
//! request head.

use std::{hint::black_box, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use penstock_core::{
    accounting::record::masking::encode_upstream_head,
    features::forward_headers::ForwardHeaders,
    ingress::{control_headers::ControlHeaders, message::RequestHead, route::Route},
    request::upstream_head::{self, BodyLength, RenderInput, TransformMode},
    resolve::{
        target::{CredentialOrigin, ResponseCoding, StreamUsage, Target},
        target_resolver::ClientRequest,
    },
};
use penstock_llm::{
    catalog::{self, Options},
    operation::Operation,
};
use penstock_net::{BaseUrl, headers::Headers};

/// Headers that an official SDK sends, plus the gateway's own.
const SDK_HEADERS: &[(&str, &str)] = &[
    ("host", "127.0.0.1:8787"),
    ("accept-encoding", "gzip, deflate"),
    ("connection", "keep-alive"),
    ("accept", "application/json"),
    ("content-type", "application/json"),
    ("user-agent", "OpenAI/Python 2.8.1"),
    ("x-stainless-lang", "python"),
    ("x-stainless-package-version", "2.8.1"),
    ("x-stainless-os", "Linux"),
    ("x-stainless-arch", "x64"),
    ("x-stainless-runtime", "CPython"),
    ("x-stainless-runtime-version", "3.11.9"),
    ("authorization", "Bearer sk-0123456789abcdef0123456789abcdef"),
    ("x-stainless-async", "false"),
    ("x-gateway-api-key", "pk-0123456789abcdef0123456789abcdef"),
    ("x-gateway-provider", "openai"),
    ("x-gateway-trace-id", "0190a2b4-7c1d-7e4f-8a5b-1c2d3e4f5a6b"),
    ("x-stainless-retry-count", "0"),
    ("content-length", "412"),
];

fn build_headers() -> Headers {
    let mut headers = Headers::with_capacity(SDK_HEADERS.len());
    for (name, value) in SDK_HEADERS {
        headers.push(name.as_bytes(), value.as_bytes());
    }
    headers
}

fn bench_header_map(c: &mut Criterion) {
    let mut group = c.benchmark_group("headers");
    group.bench_function("push 19 fields", |b| b.iter(build_headers));
    let headers = build_headers();
    group.bench_function("find the last field", |b| b.iter(|| headers.get(black_box("content-length"))));
    group.bench_function("look up a missing field", |b| b.iter(|| headers.get(black_box("idempotency-key"))));
    let aliases = ["x-portkey-".to_owned()];
    group.bench_function("read control headers", |b| b.iter(|| ControlHeaders::parse(black_box(&headers), &aliases)));
    group.finish();
}

fn bench_render(c: &mut Criterion) {
    let mut group = c.benchmark_group("render");
    let aliases = ["x-portkey-".to_owned()];
    let head = RequestHead {
        method: "POST".into(),
        path: "/v1/chat/completions".into(),
        query: String::new(),
        headers: build_headers(),
        ..RequestHead::default()
    };
    let cases = [("an operation", Operation::ChatComplete), ("a pass-through", Operation::Proxy)];
    for (name, operation) in cases {
        let route = Route::new(operation, "/chat/completions");
        let client_request = ClientRequest::new(route, &head, ControlHeaders::parse(&head.headers, &aliases));
        let Some(target) = build_target() else { return };
        let render_input = RenderInput {
            model: "gpt-4o",
            user: "",
            is_streaming: false,
            mode: TransformMode::Unchanged,
            content_type: None,
            anthropic_betas: None,
            anthropic_version: None,
            page_token: None,
            body_length: BodyLength::Known(412),
            issued_credential: None,
        };
        group.bench_function(name, |b| {
            b.iter(|| upstream_head::render_head(&client_request, &target, render_input, &aliases));
        });
        let Ok(rendered) = upstream_head::render_head(&client_request, &target, render_input, &aliases) else { return };
        group.bench_function(format!("{name}, encoded for its record"), |b| {
            b.iter(|| encode_upstream_head(&target.base_url.origin, black_box(&rendered), &[]));
        });
    }
    group.finish();
}

fn build_target() -> Option<Target<'static>> {
    Some(Target {
        provider: catalog::find_provider("openai")?,
        base_url: BaseUrl::parse("https://api.openai.com/v1").ok()?,
        options: Options::default(),
        credential: Some("sk-0123456789abcdef0123456789abcdef".into()),
        authorization: None,
        caller: penstock_core::auth::caller::Caller::default(),
        forward_headers: ForwardHeaders::default(),
        timeout: Duration::from_mins(5),
        configured_timeout: Duration::from_mins(5),
        inspects_stream: false,
        response_coding: ResponseCoding::AnyAccepted,
        stream_usage: StreamUsage::Requested,
        is_strict: true,
        is_passthrough: false,
        saved_provider: None,
        lender_workspace: None,
        credential_origin: CredentialOrigin::Request,
        price_overrides: penstock_core::accounting::prices::ProviderPricing::default(),
        prefill: None,
        grant: None,
        header_fields: Vec::new(),
        check_headers: Vec::new(),
        stored_parameters: penstock_core::features::parameters::Parameters::default(),
    })
}

criterion_group!(benches, bench_header_map, bench_render);
criterion_main!(benches);
