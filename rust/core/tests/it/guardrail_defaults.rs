//! Default guardrails of a workspace against a client that brings its own config and writes its own bodies. Neither
//! lets a text bypass a default guardrail.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, TestResponse, golden_provider::GoldenProvider, sha256_hex, wait_until,
};

const WORD: &str = "CANARY";
const KEY: &str = "one";

/// Action of the default guardrail if a text contains the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Deny,
    Redact,
}

const ACTIONS: [Action; 2] = [Action::Deny, Action::Redact];

/// Returns a gateway whose workspace has a default guardrail for requests and responses, named `pg-default`.
fn gateway_with_default(action: Action) -> TestGateway {
    let check = match action {
        Action::Deny => {
            json!({"id": "default.contains", "parameters": {"words": [WORD], "operator": "none", "scope": "all"}})
        }
        Action::Redact => {
            json!({"id": "default.regexReplace", "parameters": {"rule": WORD, "redactText": "#", "scope": "all"}})
        }
    };
    let guardrail = json!({"id": "g1", "slug": "pg-default", "organisation": "o", "version": "v", "workspace": "w",
        "checks": [check], "actions": {"deny": action == Action::Deny}});
    let gateway = GoldenProvider::gateway_trusting_loopback();
    gateway.apply_snapshot(&json!({"epoch": "1",
        "workspaces": [{"id": "w", "slug": "one", "organisation_id": "o", "input_guardrails": ["g1"],
            "output_guardrails": ["g1"]}],
        "keys": [{"id": "k", "name": "a", "workspace": "w", "sha256": sha256_hex(KEY)}],
        "parts": [{"name": "guardrails/00", "guardrails": [guardrail]}]}));
    gateway
}

fn request_with(config: &Value, provider: &GoldenProvider, path: &str) -> TestRequest {
    let mut config = config.clone();
    for (name, value) in [("provider", "openai"), ("api_key", "k"), ("custom_host", &provider.server.url())] {
        config[name] = json!(value);
    }
    TestRequest::new("POST", path)
        .header("x-gateway-api-key", KEY)
        .header("x-gateway-config", &config.to_string())
        .header("content-type", "application/json")
}

fn chat(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}]})
}

async fn provider_with(text: &str, is_stream: bool) -> GoldenProvider {
    let (kind, body) = if is_stream {
        let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]});
        ("text/event-stream", format!("data: {chunk}\n\ndata: [DONE]\n\n"))
    } else {
        let choice = json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"});
        ("application/json", json!({"id": "c", "object": "chat.completion", "choices": [choice]}).to_string())
    };
    GoldenProvider::start(200, kind, body.into_bytes(), 4096).await
}

/// Returns the last request that the provider received, as text.
fn sent_to(provider: &GoldenProvider) -> String {
    String::from_utf8_lossy(&provider.last_request.lock().unwrap()).into_owned()
}

/// Returns the text of a response without its `hook_results`, because the results of a denial contain the word of the
/// check itself.
fn visible(response: &TestResponse) -> String {
    response.text().split("\"hook_results\"").next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn named_default_guardrail_also_checks_changes_of_the_config() {
    for action in ACTIONS {
        let (gateway, provider) = (gateway_with_default(action), provider_with("fine", false).await);
        let config = json!({"input_guardrails": ["pg-default", {"addPrefix": {"prefix": "CANARY "}}]});
        let request = request_with(&config, &provider, CHAT_PATH).body(chat("hi").to_string());
        let response = gateway.send(request).await;
        assert!(!sent_to(&provider).contains(WORD), "{action:?}: {}", sent_to(&provider));
        assert_eq!(response.status, if action == Action::Deny { 446 } else { 200 }, "{}", response.text());
        let before = response.json()["hook_results"]["before_request_hooks"].as_array().unwrap().len();
        assert_eq!(before, 2, "{}", response.text());
    }
}

#[tokio::test]
async fn hosts_of_a_client_get_no_text_that_a_default_denies_or_redacts() {
    let reply = br#"{"verdict": true}"#.to_vec();
    for (action, is_stream) in ACTIONS.into_iter().flat_map(|action| [(action, false), (action, true)]) {
        for option in [json!({}), json!({"async": true}), json!({"deny": true}), json!({"stream": "end"})] {
            let host = GoldenProvider::start(200, "application/json", reply.clone(), 4096).await;
            let (gateway, provider) = (gateway_with_default(action), provider_with("a CANARY here", is_stream).await);
            let mut hook = json!({"id": "mine", "webhook": {"webhookURL": host.server.url()}});
            hook.as_object_mut().unwrap().extend(option.as_object().unwrap().clone());
            let mut body = chat("hi");
            body["stream"] = json!(is_stream);
            let config = json!({"output_guardrails": [hook]});
            let cell = format!("{action:?} stream={is_stream} {option}");
            let response = gateway.send(request_with(&config, &provider, CHAT_PATH).body(body.to_string())).await;
            assert!(!visible(&response).contains(WORD), "{cell}: {}", response.text());
            // Asynchronous hooks have ended when the record is written.
            wait_until("the record", || !gateway.drain_records().is_empty()).await;
            let got = sent_to(&host);
            assert!(!got.contains(WORD), "{cell}: {got}");
            assert_eq!(got.is_empty(), action == Action::Deny, "{cell}: {got}");
        }
    }
}

#[tokio::test]
async fn verdicts_of_a_client_do_not_describe_what_a_default_denies_or_redacts() {
    for (action, is_stream) in ACTIONS.into_iter().flat_map(|action| [(action, false), (action, true)]) {
        for mode in ["hold", "window", "end"] {
            let (gateway, provider) = (gateway_with_default(action), provider_with("a CANARY here", is_stream).await);
            let spy = json!({"id": "mine", "stream": mode, "contains": {"words": ["CANARY here"], "operator": "none"}});
            let config = json!({"output_guardrails": [spy], "strict_open_ai_compliance": false});
            let mut body = chat("hi");
            body["stream"] = json!(is_stream);
            let response = gateway.send(request_with(&config, &provider, CHAT_PATH).body(body.to_string())).await;
            let text = response.text();
            let own = text.split(r#""id":"mine""#).next().unwrap();
            assert!(!own.ends_with(r#""verdict":false,"#), "{action:?} stream={is_stream} {mode}: {text}");
            let is_skipped = text.contains(r#""id":"mine","type":"guardrail","skipped":true"#);
            assert_eq!(is_skipped, action == Action::Deny, "{action:?} stream={is_stream} {mode}: {text}");
        }
    }
}

#[tokio::test]
async fn parameters_of_a_config_are_checked() {
    for action in ACTIONS {
        for config in [
            json!({"override_params": {"messages": [{"role": "user", "content": WORD}]}}),
            json!({"override_params": {"suffix": WORD}}),
            json!({"default_params": {"instructions": WORD}}),
            json!({"override_params": {"tools": [{"type": "function", "function": {"name": "f", "description": WORD}}]}}),
            json!({"targets": [{"override_params": {"metadata": {"a": WORD}}}]}),
        ] {
            let (gateway, provider) = (gateway_with_default(action), provider_with("fine", false).await);
            let request = request_with(&config, &provider, CHAT_PATH).body(chat("hi").to_string());
            let response = gateway.send(request).await;
            assert!(!sent_to(&provider).contains(WORD), "{action:?} {config}: {}", sent_to(&provider));
            assert_ne!(response.status, 500, "{action:?} {config}: {}", response.text());
        }
    }
}

#[tokio::test]
async fn tools_of_every_client_format_are_checked() {
    let function = json!({"name": "delete", "description": "d"});
    let rules = json!({"blockedTypes": ["web_search", "googleSearch"], "blockedFunctionNames": ["delete"]});
    let guardrail = json!({"deny": true, "requestParametersCheck": {"tools": rules}});
    let contents = json!([{"role": "user", "parts": [{"text": "hi"}]}]);
    let messages = json!([{"role": "user", "content": [{"text": "hi"}]}]);
    for (path, more) in [
        (CHAT_PATH, json!({"tools": [{"type": "function", "function": function}]})),
        (CHAT_PATH, json!({"functions": [function]})),
        (CHAT_PATH, json!({"tools": [{"type": "custom", "custom": function}]})),
        ("/v1/responses", json!({"input": "hi", "tools": [{"type": "function", "name": "delete"}]})),
        ("/v1/responses", json!({"input": "hi", "tools": [{"type": "web_search"}]})),
        ("/v1/messages", json!({"max_tokens": 9, "tools": [{"name": "delete", "input_schema": {}}]})),
        (
            "/v1beta/models/m:generateContent",
            json!({"contents": contents, "tools": [{"functionDeclarations": [function]}]}),
        ),
        ("/v1beta/models/m:generateContent", json!({"contents": contents, "tools": [{"google_search": {}}]})),
        ("/v1beta/models/m:streamGenerateContent", json!({"contents": contents, "tools": [{"googleSearch": {}}]})),
        ("/model/m/converse", json!({"messages": messages, "toolConfig": {"tools": [{"toolSpec": function}]}})),
    ] {
        let (gateway, provider) = (gateway_with_default(Action::Deny), provider_with("fine", false).await);
        let mut body = chat("hi");
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = json!({"input_guardrails": [guardrail]});
        let response = gateway.send(request_with(&config, &provider, path).body(body.to_string())).await;
        assert_eq!((response.status, sent_to(&provider)), (446, String::new()), "{path} {more}: {}", response.text());
    }
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Name of a body, its header fields, and the body.
type UnusualBody = (&'static str, Vec<(&'static str, &'static str)>, Vec<u8>);

/// Returns bodies that a lenient provider may read although they are no usual JSON.
fn unusual_bodies() -> Vec<UnusualBody> {
    let plain = chat(WORD).to_string();
    let nested = |depth: usize| format!("{}\"CANARY\"{}", "[".repeat(depth), "]".repeat(depth));
    let with_content =
        |content: &str| format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#).into_bytes();
    let mut invalid_utf8 = with_content("\"CANARY ?\"");
    let at = invalid_utf8.iter().position(|byte| *byte == b'?').unwrap();
    invalid_utf8[at] = 0xff;
    vec![
        ("lone surrogate", vec![], with_content(r#""CANARY \ud800""#)),
        ("escaped letters", vec![], with_content(r#""\u0043ANARY""#)),
        ("invalid UTF-8", vec![], invalid_utf8),
        ("byte order mark", vec![], format!("\u{feff}{plain}").into_bytes()),
        ("text after the end", vec![], format!("{plain}{{}}").into_bytes()),
        ("comment", vec![], format!("/* */{plain}").into_bytes()),
        ("single quotes", vec![], plain.replace('"', "'").into_bytes()),
        ("NaN", vec![], plain.replacen('{', r#"{"temperature":NaN,"#, 1).into_bytes()),
        ("UTF-16", vec![], plain.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("deep content", vec![], with_content(&nested(40))),
        ("too deep", vec![], with_content(&nested(200))),
        ("JSON lines", vec![], format!("{plain}\n{plain}\n").into_bytes()),
        ("a list of requests", vec![], format!("[{plain}]").into_bytes()),
        ("a string", vec![], json!(plain).to_string().into_bytes()),
        ("gzip", vec![("content-encoding", "gzip")], gzip(&plain)),
        ("gzip without a name", vec![], gzip(&plain)),
        ("identity", vec![("content-encoding", "identity")], plain.clone().into_bytes()),
        ("a charset", vec![("content-type", "application/json; charset=utf-16")], plain.clone().into_bytes()),
        ("a form", vec![("content-type", "application/x-www-form-urlencoded")], b"model=m&prompt=CANARY".to_vec()),
    ]
}

#[tokio::test]
async fn unusual_bodies_get_past_no_default() {
    for action in ACTIONS {
        for path in [CHAT_PATH, "/v1/responses", "/v1/completions", "/v1/proxy/chat/completions", "/v1/proxy/unknown"] {
            for (name, headers, body) in unusual_bodies() {
                let (gateway, provider) = (gateway_with_default(action), provider_with("fine", false).await);
                let mut request = request_with(&json!({}), &provider, path);
                for (field, value) in headers {
                    request = request.header(field, value);
                }
                let compressed = gzip(&chat(WORD).to_string());
                let response = gateway.send(request.body(body)).await;
                let sent = provider.last_request.lock().unwrap().clone();
                let is_compressed = sent.windows(compressed.len()).any(|part| part == compressed);
                let text = String::from_utf8_lossy(&sent).replace('\0', "");
                assert!(!text.contains(WORD) && !is_compressed, "{action:?} {path} {name}: {} {text}", response.status);
            }
        }
    }
}
