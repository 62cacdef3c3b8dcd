//! The header map of one request: filled, scanned, read for control headers, and rendered for the provider.

use std::{hint::black_box, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use penstock_core::{
    features::forward_headers::ForwardHeaders,
    ingress::{
        headers::{Control, Head, Headers},
        route::Route,
    },
    request::request_head::{self, Length, Manner, Said},
    resolve::{
        target::{Coding, Reach, Target, Telling},
        target_resolver::Call,
    },
    upstream::Base,
};
use penstock_llm::{
    catalog::{self, Options, Stated},
    operation::Operation,
};

/// What an official SDK sends, and the gateway's own fields beside it.
const SENT: &[(&str, &str)] = &[
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

fn filled() -> Headers {
    let mut headers = Headers::with_capacity(SENT.len());
    for (name, value) in SENT {
        headers.push(name.as_bytes(), value.as_bytes());
    }
    headers
}

fn map(c: &mut Criterion) {
    let mut group = c.benchmark_group("headers");
    group.bench_function("push 19 fields", |b| b.iter(filled));
    let headers = filled();
    group.bench_function("scan for the last", |b| b.iter(|| headers.get(black_box("content-length"))));
    group.bench_function("scan in vain", |b| b.iter(|| headers.get(black_box("idempotency-key"))));
    let aliases = ["x-portkey-".to_owned()];
    group.bench_function("read control headers", |b| b.iter(|| Control::read(black_box(&headers), &aliases)));
    group.finish();
}

fn render(c: &mut Criterion) {
    let mut group = c.benchmark_group("render");
    let aliases = ["x-portkey-".to_owned()];
    let head = Head {
        method: "POST".into(),
        path: "/v1/chat/completions".into(),
        query: String::new(),
        headers: filled(),
        ..Head::default()
    };
    let cases = [("an operation", Operation::ChatComplete), ("a pass-through", Operation::Proxy)];
    for (name, operation) in cases {
        let route = Route { operation, path: "/chat/completions", stated: Stated::default() };
        let call = Call { route, head: &head, control: Control::read(&head.headers, &aliases) };
        let Some(target) = target() else { return };
        let said = Said {
            model: "gpt-4o",
            user: "",
            streams: false,
            manner: Manner::AsItCame,
            content_type: None,
            betas: None,
            version: None,
            next: None,
            length: Length::Known(412),
            issued: None,
        };
        group.bench_function(name, |b| {
            b.iter(|| request_head::head(&call, &target, said, &aliases));
        });
    }
    group.finish();
}

fn target() -> Option<Target<'static>> {
    Some(Target {
        provider: catalog::find("openai")?,
        base: Base::parse("https://api.openai.com/v1").ok()?,
        options: Options::default(),
        credential: Some("sk-0123456789abcdef0123456789abcdef".into()),
        authorization: None,
        caller: penstock_core::auth::caller::Caller::default(),
        forward: ForwardHeaders::default(),
        timeout: Duration::from_mins(5),
        patience: Duration::from_mins(5),
        inspects: false,
        coding: Coding::Any,
        telling: Telling::Asked,
        strict: true,
        passthrough: false,
        saved: None,
        reach: Reach::Own,
        priced: penstock_core::accounting::prices::Own::default(),
        goes_on: None,
        grant: None,
        fields: Vec::new(),
    })
}

criterion_group!(benches, map, render);
criterion_main!(benches);
