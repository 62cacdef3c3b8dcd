//! Streams that break off: held back until they are whole, or continued by another target, in both dialects.

use std::fs;

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, Told, by_with, chat, pick,
    played::{Played, golden, without_model},
    scripted::{EVENTS_HEAD, Scripted, chunks},
    settled, target, way, words,
};
use penstock_mock::Server;
use serde_json::{Value, json};

const ITEMS: &str = "/v1beta/models/m:streamGenerateContent";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";

fn config(recovery: &Value, targets: &[Value]) -> Value {
    json!({"strategy": {"mode": "fallback"}, "recovery": recovery, "targets": targets})
}

/// All events of a stream.
fn events(told: &Told) -> Vec<Value> {
    let text = told.text();
    text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

/// What a reader of the stream sees.
fn text(told: &Told) -> String {
    let part = |event: &Value| {
        let chat = event["choices"][0]["delta"]["content"].as_str();
        let response = event["delta"].as_str().filter(|_| event["type"] == "response.output_text.delta");
        let completion = event["choices"][0]["text"].as_str();
        chat.or_else(|| event["delta"]["text"].as_str()).or(response).or(completion).unwrap_or_default().to_owned()
    };
    events(told).iter().map(part).collect()
}

async fn canon(rig: &Rig) -> String {
    let told = rig.send(chat("mock?chunks=60")).await.json();
    rig.records();
    told["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

fn steps(record: &Value) -> Value {
    let steps = record["decisions"].as_array().unwrap();
    steps.iter().map(|step| json!([step["step"], step["at"].as_str().unwrap().trim_start_matches("config.")])).collect()
}

fn streamed(config: &Value, path: &str) -> Ask {
    let mut body = json!({"model": "m", "stream": true, "max_tokens": 99, "stream_options": {"include_usage": true}});
    match path {
        COMPLETIONS | "/v1/proxy/completions" => body["prompt"] = json!("say it: "),
        RESPONSES => body["input"] = json!([{"role": "user", "content": "say it"}]),
        _ => body["messages"] = json!([{"role": "user", "content": "say it"}]),
    }
    by_with(config, path, body.to_string())
}

fn well(more: &str) -> Value {
    target(&format!("chunks=60{more}"))
}

#[tokio::test]
async fn a_held_stream_that_breaks_off_fails_like_any_attempt() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| (settings.idle_timeout_ms, settings.retry_backoff_ms) = (200, 1));
    let canon = canon(&rig).await;
    for path in [CHAT, COMPLETIONS, MESSAGES, RESPONSES] {
        for fault in ["cut&after=40", "cut_event&after=5", "stall&after=20", "error_event&after=3", "bad_framing"] {
            let told =
                rig.send(streamed(&config(&json!("hold"), &[well(&format!("&fault={fault}")), well("")]), path)).await;
            assert_eq!((told.status, way(&told)[0]), (200, "config.targets[1]"), "{path} {fault}: {}", told.text());
            assert_eq!(text(&told), canon, "{path} {fault}");
            let record = rig.record();
            assert_eq!(pick(&record, ["outcome", "is_success"]), json!(["complete", true]));
            assert!(record["decisions"][0]["error"].is_string(), "{path} {fault}: {record}");
        }
    }
    let mut retried = well("&fault=cut&times=1");
    retried["retry"] = json!({"attempts": 1});
    let told = rig.send(streamed(&config(&json!("hold"), &[retried]), CHAT)).await;
    assert_eq!((text(&told), way(&told)[1]), (canon, "1"));
    // It is used until the last byte of it is gone.
    assert!(rig.gateway.shared.recovery_memory.used_bytes() > 0);
    drop(told);
    assert_eq!(rig.gateway.shared.recovery_memory.used_bytes(), 0);
}

#[tokio::test]
async fn frames_and_items_are_held_like_events() {
    for (operation, path) in [("converseStream", "/model/m/converse-stream"), ("streamGenerateContent", ITEMS)] {
        let case = golden(&format!("openai/{operation}/stream"));
        let whole = fs::read(case.join("answered.sse")).unwrap();
        let half = whole[..whole.len() / 2].to_vec();
        let failed = b"data: {\"error\":{\"message\":\"too much\",\"code\":503}}\n\n".to_vec();
        let asked = without_model(&fs::read(case.join("asked.json")).unwrap()).1;
        let mut told = Vec::new();
        for first in [whole.clone(), half, failed] {
            let first = Played::answering(200, "text/event-stream", first, 33).await;
            let second = Played::answering(200, "text/event-stream", whole.clone(), 33).await;
            let at = |played: &Played| json!({"provider": "openai", "api_key": "sk-1", "custom_host": played.provider.url()});
            let rig = Played::rig();
            let config = config(&json!("hold"), &[at(&first), at(&second)]);
            let answer = rig.send(by_with(&config, path, asked.clone())).await;
            assert_eq!((answer.status, answer.cut), (200, false), "{operation}: {}", answer.text());
            let record = rig.record();
            assert_eq!(rig.gateway.record_sink.metrics.streams_buffered.get(), 1, "{operation}: {record}");
            told.push((way(&answer)[0].to_owned(), record["outcome"].clone(), answer.body));
        }
        let [(first, outcome, all), others @ ..] = &told[..] else { panic!("three were asked") };
        assert_eq!((first.as_str(), outcome), ("config.targets[0]", &json!("complete")), "{operation}");
        for (at, outcome, body) in others {
            assert_eq!((at.as_str(), outcome), ("config.targets[1]", &json!("complete")), "{operation}");
            assert_eq!(body.len(), all.len(), "{operation}");
        }
    }
}

#[tokio::test]
async fn nothing_of_a_held_stream_is_told_where_nobody_completes_it() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (fault, told_so) in [("cut", "complete"), ("error_event", "overloaded")] {
        let told = rig.send(streamed(&config(&json!("hold"), &[well(&format!("&fault={fault}"))]), CHAT)).await;
        assert_eq!(
            (told.status, told.code().as_str(), told.streamed),
            (502, "upstream_broke", false),
            "{}",
            told.text()
        );
        assert!(told.text().contains(told_so) || fault == "cut", "{}", told.text());
        assert_eq!(rig.record()["outcome"], "refused");
    }
}

#[tokio::test]
async fn a_stream_for_which_there_is_no_room_goes_on_as_it_comes() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.recovery_stream_bytes = 2_000);
    let canon = canon(&rig).await;
    let told = rig.send(streamed(&config(&json!("hold"), &[well(""), target("chunks=1")]), CHAT)).await;
    assert_eq!((text(&told), way(&told)[0]), (canon, "config.targets[0]"));
    assert_eq!(steps(&rig.record()), json!([["unheld", "targets[0]"], ["tried", "targets[0]"]]));
    let told =
        rig.send(streamed(&config(&json!("hold"), &[well("&fault=cut&after=40"), target("chunks=1")]), CHAT)).await;
    assert!(events(&told).pop().unwrap()["error"].is_object());
    assert_eq!(rig.record()["outcome"], "cut");
    let metrics = &rig.gateway.record_sink.metrics;
    assert_eq!(
        (
            metrics.streams_buffered.get(),
            metrics.stream_recovery_overflows.get(),
            rig.gateway.shared.recovery_memory.used_bytes()
        ),
        (0, 2, 0)
    );
}

#[tokio::test]
async fn a_held_stream_ends_with_the_callers_patience() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let endless = config(&json!("hold"), &[target("chunk_ms=100&chunks=1000"), well("")]);
    let told = rig.send(streamed(&endless, CHAT).header("x-stainless-timeout", "0.3")).await;
    assert_eq!((told.status, told.header("x-should-retry")), (408, Some("false")), "{}", told.text());
}

#[tokio::test]
async fn a_chat_goes_on_where_it_broke_off_as_one_answer() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.idle_timeout_ms = 200);
    let canon = canon(&rig).await;
    for fault in ["cut&after=40", "cut_event&after=40", "stall&after=40", "cut_reset&after=40"] {
        let config = config(&json!("continue"), &[well(&format!("&fault={fault}")), well("&prefix=on")]);
        let told = rig.send(streamed(&config, CHAT)).await;
        assert_eq!((told.status, told.cut, text(&told)), (200, false, canon.clone()), "{fault}: {}", told.text());
        assert!(told.text().ends_with("data: [DONE]\n\n"), "{fault}");
        let events = events(&told);
        assert!(events.iter().all(|event| event["id"] == events[0]["id"]), "{fault}");
        assert_eq!(events.iter().filter(|event| event["choices"][0]["delta"]["role"].is_string()).count(), 1);
        let record = rig.record();
        let told_steps = json!([
            ["tried", "targets[0]"],
            ["broke", "targets[0]"],
            ["tried", "targets[1]"],
            ["continued", "targets[1]"]
        ]);
        assert_eq!(steps(&record), told_steps);
        assert_eq!(
            pick(&record, ["outcome", "is_success", "error", "last_used_option_index", "units_estimated"]),
            json!(["complete", true, null, "config.targets[1]", true])
        );
        // The provider's own twenty, and forty that were counted: each of its words is a token, about.
        let usage = events.iter().find_map(|event| event["usage"].as_object()).unwrap();
        assert_eq!(
            json!([usage["prompt_tokens"], usage["completion_tokens"]]),
            pick(&record, ["req_units", "res_units"])
        );
        assert!((55..75).contains(&record["res_units"].as_u64().unwrap()), "{record}");
        assert!(record["req_units"].as_u64().unwrap() > 12);
    }
    assert_eq!(
        (rig.gateway.record_sink.metrics.streams_resumed.get(), rig.gateway.shared.recovery_memory.used_bytes()),
        (4, 0)
    );
}

#[tokio::test]
async fn what_one_began_and_another_ended_is_not_kept() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut config = config(&json!("continue"), &[well("&fault=cut&after=40"), well("&prefix=on")]);
    config["cache"] = json!({"mode": "simple", "max_age": 60});
    for _ in 0..2 {
        let told = rig.send(streamed(&config, CHAT)).await;
        assert_eq!((told.status, told.header("x-gateway-cache-status")), (200, Some("MISS")), "{}", told.text());
        assert!(told.text().ends_with("data: [DONE]\n\n"));
    }
    assert_eq!(rig.gateway.record_sink.metrics.streams_resumed.get(), 2);
}

#[tokio::test]
async fn what_passes_through_is_recovered_too() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let canon = canon(&rig).await;
    for mode in ["hold", "continue"] {
        let config = config(&json!(mode), &[well("&fault=cut&after=40"), well("&prefix=on")]);
        let told = rig.send(streamed(&config, "/v1/proxy/chat/completions")).await;
        assert_eq!((text(&told), told.cut), (canon.clone(), false), "{mode}: {}", told.text());
    }
}

#[tokio::test]
async fn messages_go_on_within_their_block() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let canon = canon(&rig).await;
    let config = config(&json!("continue"), &[well("&fault=cut&after=40"), well("&prefix=on")]);
    let told = rig.send(streamed(&config, MESSAGES)).await;
    assert_eq!((text(&told), told.cut), (canon, false), "{}", told.text());
    let events = events(&told);
    for (kind, count) in
        [("message_start", 1), ("content_block_start", 1), ("content_block_stop", 1), ("message_stop", 1)]
    {
        assert_eq!(events.iter().filter(|event| event["type"] == kind).count(), count, "{kind}: {}", told.text());
    }
    assert!(events.iter().all(|event| event["index"].is_null() || event["index"] == 0));
    let usage = &events.iter().rfind(|event| event["type"] == "message_delta").unwrap()["usage"];
    let record = rig.record();
    assert_eq!(json!([usage["input_tokens"], usage["output_tokens"]]), pick(&record, ["req_units", "res_units"]));
}

#[tokio::test]
async fn a_prompt_is_gone_on_from_by_every_model_to_the_letter() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let canon = canon(&rig).await;
    // What the pretend provider says of chats it says of prompts too.
    let config = config(
        &json!("continue"),
        &[
            well("&fault=cut&after=40"),
            json!({"provider": "mock", "name": "other",
        "override_params": {"model": "mock?chunks=60&prefix=on"}}),
        ],
    );
    for path in [COMPLETIONS, "/v1/proxy/completions"] {
        let (told, record) = (rig.send(streamed(&config, path)).await, rig.record());
        assert_eq!((text(&told), told.cut), (canon.clone(), false), "{path}: {record}");
        let events = events(&told);
        assert!(events.iter().all(|event| event["id"] == events[0]["id"]), "{path}");
        assert_eq!(steps(&record)[3], json!(["continued", "targets[1]"]));
    }
    let asked = json!({"path": COMPLETIONS, "headers": {"x-gateway-config": r#"{"provider":"openai","recovery":"continue"}"#},
        "body": {"model": "m", "prompt": "p"}});
    let ask = Ask::new("POST", "/v1/explain").header("content-type", "application/json").body(asked.to_string());
    assert_eq!(rig.send(ask).await.json()["targets"][0]["recovery"], json!({"mode": "continue", "continues": true}));
}

#[tokio::test]
async fn a_response_goes_on_within_its_message() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let canon = canon(&rig).await;
    let config = config(&json!("continue"), &[well("&fault=cut&after=40"), well("&prefix=on")]);
    let told = rig.send(streamed(&config, RESPONSES)).await;
    assert_eq!((text(&told), told.cut), (canon.clone(), false), "{}", told.text());
    let events = events(&told);
    for (kind, count) in [("created", 1), ("output_item.added", 1), ("output_item.done", 1), ("completed", 1)] {
        let kind = format!("response.{kind}");
        assert_eq!(events.iter().filter(|event| event["type"] == *kind).count(), count, "{kind}: {}", told.text());
    }
    assert!(events.iter().all(|event| event["output_index"].is_null() || event["output_index"] == 0));
    let done = events.iter().find(|event| event["type"] == "response.output_text.done").unwrap();
    let whole = &events.last().unwrap()["response"];
    assert_eq!([&done["text"], &whole["output"][0]["content"][0]["text"]], [&json!(canon); 2]);
    // After the seam each has its own number.
    let numbers: Vec<_> = events[43..].iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    let (record, usage) = (rig.record(), &whole["usage"]);
    assert_eq!(json!([usage["input_tokens"], usage["output_tokens"]]), pick(&record, ["req_units", "res_units"]));
    assert_eq!(steps(&record)[3], json!(["continued", "targets[1]"]));
}

#[tokio::test]
async fn it_goes_on_in_another_dialect_too() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let canon = canon(&rig).await;
    let other = json!({"provider": "anthropic", "api_key": "k", "custom_host": format!("{}/v1", provider.url()),
        "override_params": {"model": "mock?chunks=60&prefix=on"}, "recovery": {"mode": "continue", "prefill": true}});
    for (path, count) in [(CHAT, 3), (RESPONSES, 5)] {
        let config = config(&json!("continue"), &[well("&fault=cut&after=40"), other.clone()]);
        let told = rig.send(streamed(&config, path)).await;
        assert_eq!((text(&told), told.cut), (canon.clone(), false), "{path}: {}", told.text());
        assert_eq!(settled(&provider, count).await[count - 1].path, "/v1/messages");
    }
}

#[tokio::test]
async fn it_goes_on_as_often_as_there_is_somebody_to_ask_and_else_says_that_it_broke() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let canon = canon(&rig).await;
    let cut = |more: &str| well(&format!("&fault=cut&after=10{more}"));
    let told =
        rig.send(streamed(&config(&json!("continue"), &[cut(""), cut("&prefix=on"), well("&prefix=on")]), CHAT)).await;
    assert_eq!((text(&told), told.cut), (canon.clone(), false), "{}", told.text());
    assert_eq!(rig.record()["last_used_option_index"], "config.targets[2]");
    // Alone it is asked itself.
    let told = rig.send(streamed(&config(&json!("continue"), &[cut("&prefix=on&times=1")]), CHAT)).await;
    assert_eq!(text(&told), canon);
    rig.records();
    for targets in
        [vec![cut(""), cut("&prefix=on")], vec![cut(""), well("&prefix=off")], vec![cut(""), target("status=503")]]
    {
        let told = rig.send(streamed(&config(&json!("continue"), &targets), CHAT)).await;
        let last = events(&told).pop().unwrap();
        assert_eq!((last["error"]["code"].as_str(), told.cut), (Some("upstream_broke"), false), "{targets:?}");
        let record = rig.record();
        assert_eq!(pick(&record, ["outcome", "is_success"]), json!(["cut", false]));
    }
}

#[tokio::test]
async fn what_has_said_nothing_yet_begins_anew_with_anybody() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let canon = canon(&rig).await;
    for path in [CHAT, MESSAGES, RESPONSES] {
        let config = config(&json!("continue"), &[well("&fault=cut&after=0"), well("&prefix=off")]);
        let told = rig.send(streamed(&config, path)).await;
        assert_eq!((text(&told), told.cut), (canon.clone(), false), "{path}: {}", told.text());
    }
}

#[tokio::test]
async fn whoever_begins_anew_is_not_asked_to_go_on() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = config(&json!("continue"), &[well("&fault=cut&after=40"), well("")]);
    let told = rig.send(streamed(&config, CHAT)).await;
    assert!(events(&told).pop().unwrap()["error"].is_object());
    assert_eq!(
        steps(&rig.record()),
        json!([["tried", "targets[0]"], ["broke", "targets[0]"], ["unable", "targets[1]"]])
    );
    settled(&provider, 1).await;
}

#[tokio::test]
async fn each_provider_is_told_in_its_own_way_that_an_answer_was_begun() {
    const BEGUN: &[&str] = &[
        r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"The quick "},"finish_reason":null}]}"#,
    ];
    let beginning = json!({"role": "assistant", "content": "The quick"});
    let with = |field: &str| {
        let mut last = beginning.clone();
        last[field] = true.into();
        last
    };
    for (slug, model, path, last, beside) in [
        ("mistral-ai", "mistral-small-latest", "/v1/chat/completions", with("prefix"), None),
        ("deepseek", "deepseek-chat", "/beta/chat/completions", with("prefix"), None),
        ("moonshot", "kimi-k2.5", "/v1/chat/completions", with("partial"), None),
        ("dashscope", "qwen-plus", "/chat/completions", with("partial"), None),
        ("groq", "llama-3.3-70b-versatile", "/chat/completions", beginning.clone(), None),
        ("siliconflow", "deepseek-ai/DeepSeek-V2.5", "/chat/completions", Value::Null, Some("The quick")),
    ] {
        // Some say again what they were given.
        let repeated = if slug == "mistral-ai" { "The quick" } else { "" };
        let rest = [
            json!({"id": "b", "choices": [{"index": 0, "delta": {"role": "assistant", "content": repeated}, "finish_reason": null}]}),
            json!({"id": "b", "choices": [{"index": 0, "delta": {"content": " brown fox"}, "finish_reason": null}]}),
            json!({"id": "b", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        ];
        let rest = rest.map(|chunk| format!("data: {chunk}\n\n")).concat() + "data: [DONE]\n\n";
        let (first, second) = (broken(BEGUN).await, Played::answering(200, "text/event-stream", rest.into(), 64).await);
        let prefix = if ["mistral-ai", "deepseek"].contains(&slug) { "/v1" } else { "" };
        let target = |provider: &str, url: String, model: &str| {
            json!({"provider": provider, "api_key": "k",
            "custom_host": url, "override_params": {"model": model}})
        };
        let targets =
            [target("cerebras", first.url(), "m"), target(slug, format!("{}{prefix}", second.provider.url()), model)];
        // Groq has responses of its own, of which nobody says that they go on.
        for caller in [CHAT, MESSAGES, RESPONSES].into_iter().filter(|caller| (slug, *caller) != ("groq", RESPONSES)) {
            let rig = Played::rig();
            let told = rig.send(streamed(&config(&json!("continue"), &targets), caller)).await;
            let (head, body) = second.sent();
            assert_eq!(
                (text(&told).as_str(), told.cut),
                ("The quick brown fox", false),
                "{slug} {caller}: {}",
                told.text()
            );
            assert!(head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{slug} {caller}: {head}");
            let messages = body["messages"].as_array().unwrap();
            let found = messages.iter().find(|message| message["role"] == "assistant").cloned().unwrap_or_default();
            assert_eq!((found, body["prefix"].as_str()), (last.clone(), beside), "{slug} {caller}");
            assert_eq!(messages[0]["role"], "user", "{slug} {caller}");
            assert_eq!(pick(&rig.record(), ["outcome", "ai_org"]), json!(["complete", slug]));
        }
    }
}

#[tokio::test]
async fn why_a_target_does_not_go_on_is_in_the_record_and_explained() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    for (slug, model, recovery, because) in [
        ("openai", "gpt-4o", json!("continue"), "its provider is not known to continue a partial response"),
        ("groq", "openai/gpt-oss-120b", json!("continue"), "its model does not continue a partial response"),
        (
            "mistral-ai",
            "m",
            json!({"mode": "continue", "prefill": false}),
            "the config says that its model does not continue a partial response",
        ),
    ] {
        let other = json!({"provider": slug, "api_key": "k", "custom_host": provider.url(), "recovery": recovery,
            "override_params": {"model": model}});
        let config = config(&json!("continue"), &[well("&fault=cut&after=40"), other]);
        let told = rig.send(streamed(&config, CHAT)).await;
        assert_eq!(events(&told).pop().unwrap()["error"]["code"], "upstream_broke", "{slug}");
        let record = rig.record();
        assert_eq!(record["decisions"][2], json!({"step": "unable", "at": "config.targets[1]", "because": because}));
        let asked = json!({"path": CHAT, "headers": {"x-gateway-config": config.to_string()},
            "body": serde_json::from_str::<Value>(&words("m", true)).unwrap()});
        let ask = Ask::new("POST", "/v1/explain").header("content-type", "application/json").body(asked.to_string());
        let recovery = rig.send(ask).await.json()["targets"][1]["recovery"].clone();
        rig.records();
        assert_eq!(recovery, json!({"mode": "continue", "continues": false, "because": because}));
    }
}

/// A provider whose streams say this and then break off.
async fn broken(said: &[&str]) -> Scripted {
    let events: Vec<u8> = said.iter().flat_map(|data| [b"data: ", data.as_bytes(), b"\n\n"].concat()).collect();
    Scripted::closing([EVENTS_HEAD.as_bytes(), &chunks(&events, 64)].concat()).await
}

#[tokio::test]
async fn what_called_a_tool_or_is_no_plain_text_ends_in_an_error_event_and_the_record_says_why() {
    const CALLED: &[&str] = &[
        r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"Let me look."},"finish_reason":null}]}"#,
        r#"{"id":"a","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"look","arguments":"{\"at"}}]},"finish_reason":null}]}"#,
    ];
    const USED: &[&str] = &[
        r#"{"type":"message_start","message":{"id":"a","type":"message","role":"assistant","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c","name":"look","input":{}}}"#,
    ];
    const THOUGHT: &[&str] = &[
        r#"{"type":"response.created","sequence_number":0,"response":{"id":"r","status":"in_progress","output":[]}}"#,
        r#"{"type":"response.output_item.added","sequence_number":1,"output_index":0,"item":{"type":"reasoning","id":"t","summary":[]}}"#,
    ];
    const DONE: &[&str] = &[
        r#"{"type":"response.created","sequence_number":0,"response":{"id":"r","status":"in_progress","output":[]}}"#,
        r#"{"type":"response.output_item.done","sequence_number":1,"output_index":0,"item":{"type":"message","id":"m","content":[]}}"#,
        r#"{"type":"response.output_item.added","sequence_number":2,"output_index":1,"item":{"type":"function_call","id":"f","name":"look","arguments":""}}"#,
        r#"{"type":"response.output_item.done","sequence_number":3,"output_index":1,"item":{"type":"function_call","id":"f","name":"look","arguments":"{}"}}"#,
    ];
    const LEGACY: &[&str] = &[r#"{"id":"a","choices":[{"index":0,"text":"One","finish_reason":null}]}"#];
    for (path, said, because) in [
        (CHAT, CALLED, "a tool was called"),
        (MESSAGES, USED, "a tool was called"),
        (RESPONSES, THOUGHT, "it broke off within a thought"),
        (RESPONSES, DONE, "a tool was called"),
        ("/v1/some/inference", LEGACY, "answers on this path are not continued"),
    ] {
        let provider = broken(said).await;
        let rig = Rig::at(&provider.url());
        let told = rig.send(streamed(&config(&json!("continue"), &[well(""), well("&prefix=on")]), path)).await;
        assert_eq!((told.status, told.cut), (200, false), "{path}: {}", told.text());
        for data in said {
            assert!(told.text().contains(data), "{path}: {}", told.text());
        }
        let last = events(&told).pop().unwrap();
        assert!(last["error"].is_object() || last["type"] == "error", "{path}: {last}");
        let record = rig.record();
        assert_eq!(
            pick(&record, ["outcome", "is_success", "error"]),
            json!(["cut", false, "upstream_broke"]),
            "{path}"
        );
        assert_eq!(
            steps(&record),
            json!([["tried", "targets[0]"], ["broke", "targets[0]"], ["stopped", "targets[0]"]])
        );
        assert_eq!(record["decisions"][2]["because"], because);
        assert_eq!(provider.connections(), 1, "{path}");
    }
}

#[tokio::test]
async fn what_was_thought_stays_and_its_text_goes_on() {
    const THOUGHT: &[&str] = &[
        r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"Hm."},"finish_reason":null}]}"#,
        r#"{"id":"a","choices":[{"index":0,"delta":{"content":"The quick "},"finish_reason":null}]}"#,
    ];
    let other = Server::start().await;
    let provider = broken(THOUGHT).await;
    let rig = Rig::with(&provider.url(), |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let mut next = well("&prefix=on");
    next["custom_host"] = json!(format!("{}/v1", other.url()));
    let told = rig.send(streamed(&config(&json!("continue"), &[well(""), next]), CHAT)).await;
    assert!(!told.cut && told.text().contains("Hm.") && told.text().ends_with("data: [DONE]\n\n"), "{}", told.text());
    assert_eq!(rig.record()["outcome"], "complete");
    assert!(settled(&other, 1).await[0].body_bytes > 0);
}

#[tokio::test]
async fn explain_says_how_a_target_recovers() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = config(&json!("continue"), &[well("&prefix=on"), json!({"provider": "mock", "recovery": "off"})]);
    let asked = json!({"path": CHAT, "headers": {"x-gateway-config": config.to_string()}, "body": serde_json::from_str::<Value>(&words("m", true)).unwrap()});
    let ask = Ask::new("POST", "/v1/explain").header("content-type", "application/json").body(asked.to_string());
    let said = rig.send(ask).await.json();
    let said: Vec<_> = said["targets"].as_array().unwrap().iter().map(|target| target["recovery"].clone()).collect();
    assert_eq!(said, [json!({"mode": "continue", "continues": true}), json!({"mode": "off", "continues": false})]);
}

#[tokio::test]
async fn what_would_come_compressed_is_held_and_gone_on_from_too() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let canon = canon(&rig).await;
    for mode in ["hold", "continue"] {
        let targets = [well("&fault=cut&after=20&gzip=on"), well("&prefix=on&gzip=on")];
        let mut config = config(&json!({"mode": mode, "prefill": true}), &targets);
        config["targets"][1]["provider"] = json!("mock");
        let ask = streamed(&config, "/v1/proxy/chat/completions").header("accept-encoding", "gzip, deflate");
        let told = rig.send(ask).await;
        assert_eq!((told.status, text(&told)), (200, canon.clone()), "{mode}: {}", told.text());
    }
}

#[tokio::test]
async fn a_stream_goes_on_however_long_ago_its_caller_would_have_given_up_a_single_read() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let canon = canon(&rig).await;
    let slow = well("&fault=cut&after=30&chunk_ms=20");
    let config = config(&json!({"mode": "continue", "prefill": true}), &[slow, well("&prefix=on")]);
    for name in ["x-stainless-read-timeout", "x-stainless-timeout"] {
        let told = rig.send(streamed(&config, CHAT).header(name, "0.3")).await;
        assert_eq!(text(&told), canon, "{name}: {}", told.text());
        assert_eq!(rig.record()["last_used_option_index"], "config.targets[1]");
    }
}

#[tokio::test]
async fn the_record_says_why_nobody_went_on() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let cut = || well("&fault=cut&after=20");
    let unread = target("status=201");
    for (other, expected) in
        [(json!({"provider": "@nobody"}), json!(["failed", "targets[1]"])), (unread, json!(["unable", "targets[1]"]))]
    {
        let config = config(&json!({"mode": "continue", "prefill": true}), &[cut(), other]);
        let told = rig.send(streamed(&config, CHAT)).await;
        assert!(events(&told).pop().unwrap()["error"].is_object(), "{}", told.text());
        let record = rig.record();
        assert_eq!(steps(&record).as_array().unwrap().last(), Some(&expected), "{record:#}");
    }
}
