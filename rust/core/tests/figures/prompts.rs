//! Time of prompts: rendering, parsing, and what a prompt adds to a request.

use std::{
    fmt::Write as _,
    hint::black_box,
    time::{Duration, Instant},
};

use penstock_core::prompts::{
    prompt::CompiledPrompt,
    template::{RenderLimits, Template},
};
use penstock_mock::Server;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::harness::{TestGateway, TestRequest, sha256_hex};

const MAX_RENDER_TIME: Duration = Duration::from_micros(5);
const MAX_ADDED_CPU: Duration = Duration::from_micros(15);
/// Maximum ratio of the time per byte of 1 MB to that of 1 KB. Memory is slower than the cache, but not by this factor.
const MAX_TIME_RATIO: f64 = 4.0;
const ROUNDS: usize = 30;

fn content() -> Value {
    let part = |number: usize| format!("{{{{v{number}}}}} {}", "text of the template ".repeat(9));
    let user = (1..10).fold(String::new(), |mut text, number| {
        let _ = write!(text, "{}", part(number));
        text
    });
    let messages = json!([{"role": "system", "content": part(0)}, {"role": "user", "content": user}]);
    json!({"string": messages.to_string(), "parameters": {"max_tokens": 9}, "virtual_key": "mine", "model": "mock"})
}

fn variables() -> Value {
    (0..10)
        .map(|number| (format!("v{number}"), json!("a value of usual length")))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Returns the time of one call in the fastest of several rounds, because other load only makes rounds longer.
fn shortest(calls: u32, mut call: impl FnMut()) -> Duration {
    let rounds = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        (0..calls).for_each(|_| call());
        began.elapsed() / calls
    });
    rounds.min().unwrap()
}

#[test]
fn a_prompt_of_2_kb_renders_within_five_microseconds() {
    let prompt = CompiledPrompt::parse(content().to_string().as_bytes()).unwrap();
    let variables = variables();
    let elapsed = shortest(2000, || {
        black_box(prompt.render(black_box(&variables), RenderLimits::INLINE, |_| None).is_ok());
    });
    println!("render of 2 KB with 10 variables: {elapsed:?}");
    assert!(elapsed <= MAX_RENDER_TIME, "{elapsed:?}");
}

#[test]
fn parsing_is_linear_from_1_kb_to_1_mb() {
    for line in [
        "{{#a}} text {{b.c}} and {{! comment }} more{{/a}} text of the line\n",
        "{{=<% %>=}}<%x%><%={{ }}=%>\n",
        "  {{! alone }}  \n",
        "{{{a}}} { { }} {{&b}} \\ \" {{c}}\n",
        "{{>p}}\n  {{>p}}\r\n",
        "                                                                \n",
    ] {
        let per_byte = |bytes: usize| {
            let source = line.repeat(bytes / line.len());
            let calls = u32::try_from((1 << 18) / bytes).unwrap_or(1).max(1);
            let elapsed = shortest(calls, || {
                black_box(Template::parse(black_box(&source)).is_ok());
            });
            elapsed.as_secs_f64() * 1e9 / bytes as f64
        };
        let [small, large] = [1 << 10, 1 << 20].map(per_byte);
        println!("parsing {line:?}: {small:.1} ns per byte of 1 KB, {large:.1} of 1 MB");
        assert!(large <= small * MAX_TIME_RATIO, "{line:?}: {large} ns per byte, of 1 KB {small}");
    }
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Both kinds of requests take turns, so that other load affects them alike. The provider runs on the same thread, and
/// its time is in both.
#[tokio::test]
async fn a_prompt_adds_at_most_fifteen_microseconds_to_a_request() {
    let server = Server::start().await;
    let gateway = TestGateway::for_url(&server.url());
    let prompt = json!({"id": "p", "slug": "greeting", "workspace": "w", "default": 1, "latest": 1,
        "versions": [{"number": 1, "id": "v", "content": content()}]});
    gateway.apply_snapshot(&json!({"epoch": "1", "workspaces": [{"id": "w", "slug": "w", "organisation_id": "o"}],
        "keys": [{"id": "k", "workspace": "w", "sha256": sha256_hex("pk")}],
        "providers": [{"slug": "mine", "provider": "mock", "workspace": "w"}],
        "parts": [{"name": "prompts/00", "prompts": [prompt]}]}));
    let text = "text of the template ".repeat(90) + &"a value of usual length".repeat(10);
    let plain = json!({"model": "@mine/mock", "max_tokens": 9, "messages": [{"role": "system", "content": &text[..200]},
        {"role": "user", "content": &text[200..]}]});
    let kinds = [
        ("/v1/chat/completions", plain.to_string()),
        ("/v1/prompts/greeting/completions", json!({"variables": variables()}).to_string()),
    ];
    let send = async |kind: usize, count: u32| {
        let began = thread_cpu_time();
        for _ in 0..count {
            let request = TestRequest::new("POST", kinds[kind].0).header("content-type", "application/json");
            let response = gateway.send(request.header("x-gateway-api-key", "pk").body(kinds[kind].1.clone())).await;
            assert_eq!(response.status, 200, "{}", response.text());
        }
        let elapsed = thread_cpu_time().saturating_sub(began) / count;
        gateway.drain_records();
        elapsed
    };
    let mut shortest = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (kind, best) in shortest.iter_mut().enumerate() {
            *best = send(kind, 100).await.min(*best);
        }
    }
    let added = shortest[1].saturating_sub(shortest[0]);
    println!("plain request {:?}, with a prompt {:?}: {added:?} more", shortest[0], shortest[1]);
    assert!(added <= MAX_ADDED_CPU, "{added:?} more than {:?}", shortest[0]);
}
