//! Ways around a denying or redacting guardrail that clients and providers may try: whole requests over real sockets.

use base64::{Engine, engine::general_purpose::STANDARD};
use penstock_llm::stream::aws_event_stream::encode_frame;
use serde_json::{Value, json};

use crate::harness::{CHAT_PATH, TestGateway, TestResponse, golden_provider::GoldenProvider, post_with_config};

const WORD: &str = "CANARY";

fn chat_response(message: &Value) -> String {
    json!({"id": "c", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    .to_string()
}

fn request(content: &str) -> Value {
    json!({"model": "gpt-x", "messages": [{"role": "user", "content": content}]})
}

/// Sends a request through a gateway. Returns the response, and what the provider got; `None` if it got nothing.
async fn send(
    provider_name: &str,
    path: &str,
    config: Value,
    request: &Value,
    provider: GoldenProvider,
) -> (TestResponse, Option<String>) {
    let gateway: TestGateway = GoldenProvider::gateway_trusting_loopback();
    let mut config = config;
    config["provider"] = json!(provider_name);
    config["api_key"] = json!("sk-1");
    config["custom_host"] = json!(provider.server.url());
    let response = gateway.send(post_with_config(&config, path, request.to_string())).await;
    let was_called = !provider.request_lines.lock().unwrap().is_empty();
    let sent = was_called.then(|| provider.parse_last_request().1.to_string());
    (response, sent)
}

async fn chat_provider(message: &Value) -> GoldenProvider {
    GoldenProvider::start(200, "application/json", chat_response(message).into_bytes(), 4096).await
}

fn denying_guardrail() -> Value {
    json!({"id": "default", "deny": true, "contains": {"words": [WORD], "operator": "none", "scope": "all"}})
}

#[tokio::test]
async fn later_guardrails_check_what_earlier_ones_write() {
    let glue = json!({"regexReplace": {"rule": "_X_", "redactText": "", "scope": "all"}});
    let prefix = json!({"addPrefix": {"prefix": "CANARY "}});
    for (first, content) in [(&glue, "CAN_X_ARY"), (&prefix, "hi")] {
        let config = json!({"input_guardrails": [first, denying_guardrail()]});
        let provider = chat_provider(&json!({"role": "assistant", "content": "ok"})).await;
        let (response, sent) = send("openai", CHAT_PATH, config, &request(content), provider).await;
        assert_eq!((response.status, sent), (446, None), "{content}: {}", response.text());
    }
    let config = json!({"output_guardrails": [glue, denying_guardrail()]});
    let provider = chat_provider(&json!({"role": "assistant", "content": "CAN_X_ARY"})).await;
    let (response, _) = send("openai", CHAT_PATH, config, &request("hi"), provider).await;
    assert_eq!(response.status, 446, "{}", response.text());
    assert!(!response.text().contains(WORD), "{}", response.text());
}

#[tokio::test]
async fn all_redactions_of_a_request_hold() {
    let words = |word: &str| json!({"rule": word, "redactText": "#", "scope": "all"});
    let in_one = json!({"input_guardrails": [{"a": {"id": "default.regexReplace", "rule": "CANARY", "redactText": "#"},
        "b": {"id": "default.regexReplace", "rule": "SECOND", "redactText": "#"}}]});
    let in_two = json!({"input_guardrails": [{"regexReplace": words("CANARY")}, {"regexReplace": words("SECOND")}]});
    for config in [in_one, in_two] {
        let provider = chat_provider(&json!({"role": "assistant", "content": "ok"})).await;
        let (response, sent) = send("openai", CHAT_PATH, config.clone(), &request("CANARY and SECOND"), provider).await;
        assert_eq!(response.status, 200, "{config}: {}", response.text());
        let sent = sent.unwrap();
        assert!(!sent.contains(WORD) && !sent.contains("SECOND"), "{config}: {sent}");
    }
}

#[tokio::test]
async fn a_redaction_that_cannot_search_a_text_denies_it() {
    let config = json!({"input_guardrails": [{"regexReplace": {"rule": "(?=C)CANARY", "redactText": "#"}}]});
    let long = format!("CANARY{}", "x".repeat(20_000));
    let provider = chat_provider(&json!({"role": "assistant", "content": "ok"})).await;
    let (response, sent) = send("openai", CHAT_PATH, config, &request(&long), provider).await;
    assert_eq!((response.status, sent), (446, None), "{}", response.text());
}

/// Values of a repeated key: a text that must not arrive, and one that may. Checks read the last one.
const REPEATED: &str = r#""content":"CANARY","content":"fine""#;

#[tokio::test]
async fn a_response_that_cannot_be_redacted_is_denied() {
    let redacting_guardrail =
        |mode: &str| json!({"regexReplace": {"rule": "CANARY", "redactText": "#"}, "stream": mode});
    let mut request = request("hi");
    for (kind, body) in [
        ("application/json\r\ncontent-encoding: br", chat_response(&json!({"content": WORD}))),
        ("application/json", format!("[{}]", chat_response(&json!({"content": WORD})))),
        ("text/event-stream\r\ncontent-encoding: br", "data: CANARY\n\n".to_owned()),
        ("text/event-stream", "data: <CANARY>\n\n".to_owned()),
    ] {
        request["stream"] = json!(kind.starts_with("text/event-stream"));
        for mode in ["hold", "window"] {
            let provider = GoldenProvider::start_with_headers(200, kind, body.clone().into_bytes(), 4096).await;
            let config = json!({"output_guardrails": [redacting_guardrail(mode)]});
            let (response, _) = send("openai", CHAT_PATH, config, &request, provider).await;
            assert!(!response.text().contains(WORD), "{kind} {mode}: {} {}", response.status, response.text());
        }
    }
}

#[tokio::test]
async fn values_of_repeated_keys_do_not_get_around_checks() {
    let redacting_guardrail = json!({"regexReplace": {"rule": WORD, "redactText": "#", "scope": "all"}});
    let window = json!({"regexReplace": {"rule": WORD, "redactText": "#", "scope": "all"}, "stream": "window"});
    let whole = format!(r#"{{"id":"c","choices":[{{"index":0,"message":{{"role":"assistant",{REPEATED}}}}}]}}"#);
    let event = format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{{REPEATED}}}}}]}}"#);
    let events = format!("data: {event}\n\ndata: [DONE]\n\n");
    for hook in [denying_guardrail(), redacting_guardrail.clone(), window] {
        let config = json!({"output_guardrails": [hook]});
        for (kind, body) in [("application/json", &whole), ("text/event-stream", &events)] {
            let provider = GoldenProvider::start(200, kind, body.clone().into_bytes(), 4096).await;
            let mut body = request("hi");
            body["stream"] = json!(kind == "text/event-stream");
            let (response, _) = send("openai", CHAT_PATH, config.clone(), &body, provider).await;
            assert_eq!(response.status, 200, "{config}: {}", response.text());
            // The hook results contain the word of the guardrail itself.
            let text = response.text().split("\"hook_results\"").next().unwrap().to_owned();
            assert!(text.contains("fine") && !text.contains(WORD), "{config}: {text}");
        }
    }
    // The provider gets only the value that the checks have read.
    for hook in [denying_guardrail(), redacting_guardrail] {
        let provider = chat_provider(&json!({"role": "assistant", "content": "ok"})).await;
        let gateway: TestGateway = GoldenProvider::gateway_trusting_loopback();
        let config = json!({"provider": "openai", "api_key": "sk-1", "custom_host": provider.server.url(),
            "input_guardrails": [hook]});
        let body = format!(r#"{{"model":"gpt-x","messages":[{{"role":"user",{REPEATED}}}]}}"#);
        let response = gateway.send(post_with_config(&config, CHAT_PATH, body)).await;
        assert_eq!(response.status, 200, "{config}: {}", response.text());
        let sent = String::from_utf8(provider.last_request.lock().unwrap().clone()).unwrap();
        assert!(sent.contains("fine") && !sent.contains(WORD), "{config}: {sent}");
    }
}

fn frame(event: &str, payload: &str) -> Vec<u8> {
    encode_frame("event", event, payload.as_bytes())
}

/// Returns a stream of Converse with one event that has a text.
fn converse_stream(delta: &str) -> Vec<u8> {
    let end = json!({"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}}).to_string();
    [
        frame("messageStart", r#"{"role":"assistant"}"#),
        frame("contentBlockDelta", delta),
        frame("contentBlockStop", r#"{"contentBlockIndex":0}"#),
        frame("messageStop", r#"{"stopReason":"end_turn"}"#),
        frame("metadata", &end),
    ]
    .concat()
}

/// An event that `InvokeModelWithResponseStream` wraps in base64.
fn wrap_in_base64(inner: &str) -> String {
    format!(r#""bytes":"{}""#, STANDARD.encode(inner))
}

/// Returns a stream of Anthropic's events in frames, with one frame that has a text.
fn invoke_stream(payload: &str) -> Vec<u8> {
    let start = r#"{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[]}}"#;
    let stop = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}"#;
    let event = |inner: &str| frame("chunk", &format!("{{{}}}", wrap_in_base64(inner)));
    [event(start), frame("chunk", payload), event(stop), event(r#"{"type":"message_stop"}"#)].concat()
}

/// Returns streams that are no server-sent events, each with its path, provider and content type. An event repeats a key,
/// at one of the levels at which it can.
fn repeating_streams() -> Vec<(&'static str, &'static str, &'static str, Vec<u8>)> {
    let frames = "application/vnd.amazon.eventstream";
    let invoke_path = "/model/anthropic.claude-3-haiku-20240307-v1:0/invoke-with-response-stream";
    let delta =
        |text: &str| format!(r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta",{text}}}}}"#);
    let (hidden, harmless) = (delta(r#""text":"CANARY""#), delta(r#""text":"fine""#));
    let converse = [
        r#"{"contentBlockIndex":0,"delta":{"text":"CANARY","text":"fine"}}"#,
        r#"{"contentBlockIndex":0,"delta":{"text":"CANARY"},"delta":{"text":"fine"}}"#,
        r#"{"contentBlockIndex":0,"delta":{"\u0074ext":"CANARY","text":"fine"}}"#,
    ];
    let invoke = [
        format!("{{{}}}", wrap_in_base64(&delta(r#""text":"CANARY","text":"fine""#))),
        format!("{{{},{}}}", wrap_in_base64(&hidden), wrap_in_base64(&harmless)),
    ];
    let gemini = [
        r#"[{"candidates":[{"content":{"parts":[{"text":"CANARY","text":"fine"}]},"finishReason":"STOP"}]}]"#,
        r#"[{"candidates":[{"content":{"parts":[{"text":"CANARY"}],"parts":[{"text":"fine"}]},"finishReason":"STOP"}]}]"#,
    ];
    let converse =
        converse.iter().map(|delta| ("/model/m.x/converse-stream", "bedrock", frames, converse_stream(delta)));
    let invoke = invoke.iter().map(|payload| (invoke_path, "bedrock", frames, invoke_stream(payload)));
    let gemini = gemini.iter().map(|array| {
        ("/v1beta/models/m:streamGenerateContent", "google", "application/json", array.as_bytes().to_vec())
    });
    converse.chain(invoke).chain(gemini).collect()
}

/// Returns the text of a body and of its base64 parts, without the hook results, which contain the word of the
/// guardrail itself.
fn visible(body: &[u8]) -> String {
    let plain = String::from_utf8_lossy(body).into_owned();
    let encoded = plain.split("\"bytes\":\"").skip(1).filter_map(|rest| STANDARD.decode(rest.split('"').next()?).ok());
    let decoded: String = encoded.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect();
    plain.split("\"hook_results\"").next().unwrap_or_default().to_owned() + &decoded
}

fn config_of(provider_name: &str, provider: &GoldenProvider) -> Value {
    json!({"provider": provider_name, "api_key": "sk-1", "custom_host": provider.server.url(),
        "aws_access_key_id": "a", "aws_secret_access_key": "s", "aws_region": "us-east-1"})
}

#[tokio::test]
async fn values_of_repeated_keys_do_not_pass_in_binary_frames_and_arrays() {
    let redacting_guardrail = json!({"regexReplace": {"rule": WORD, "redactText": "#", "scope": "all"}});
    let mut window = redacting_guardrail.clone();
    window["stream"] = json!("window");
    for (path, provider_name, kind, stream) in repeating_streams() {
        for hook in [denying_guardrail(), redacting_guardrail.clone(), window.clone()] {
            let provider = GoldenProvider::start(200, kind, stream.clone(), 7).await;
            let mut config = config_of(provider_name, &provider);
            config["output_guardrails"] = json!([hook]);
            let body = if provider_name == "google" {
                json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]})
            } else {
                json!({"max_tokens": 9, "anthropic_version": "bedrock-2023-05-31",
                    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]})
            };
            let gateway: TestGateway = GoldenProvider::gateway_trusting_loopback();
            let response = gateway.send(post_with_config(&config, path, body.to_string())).await;
            let text = visible(&response.body);
            assert_eq!(response.status, 200, "{path} {config}: {text}");
            assert!(text.contains("fine") && !text.contains(WORD), "{path} {config}: {text}");
        }
    }
}

#[tokio::test]
async fn providers_of_other_formats_get_what_was_checked() {
    let part = r#"{"text":"CANARY","text":"fine"}"#;
    let typed = r#"{"type":"text","text":"CANARY","text":"fine"}"#;
    for (path, provider_name, body) in [
        (
            "/v1beta/models/m:generateContent",
            "google",
            format!(r#"{{"contents":[{{"role":"user","parts":[{part}]}}]}}"#),
        ),
        ("/v1beta/models/m:streamGenerateContent", "google", format!(r#"{{"contents":[{{"parts":[{part}]}}]}}"#)),
        ("/model/m.x/converse", "bedrock", format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#)),
        ("/model/m.x/converse-stream", "bedrock", format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#)),
        (
            "/model/anthropic.claude-3-haiku-20240307-v1:0/invoke",
            "bedrock",
            format!(r#"{{"max_tokens":9,"messages":[{{"role":"user","content":[{typed}]}}]}}"#),
        ),
        (
            "/v1/messages",
            "anthropic",
            format!(r#"{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":[{typed}]}}]}}"#),
        ),
        ("/v1/responses", "openai", r#"{"model":"m","input":"CANARY","input":"fine"}"#.to_owned()),
    ] {
        for hook in [denying_guardrail(), json!({"regexReplace": {"rule": WORD, "redactText": "#", "scope": "all"}})] {
            let provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 4096).await;
            let mut config = config_of(provider_name, &provider);
            config["input_guardrails"] = json!([hook]);
            let gateway: TestGateway = GoldenProvider::gateway_trusting_loopback();
            let response = gateway.send(post_with_config(&config, path, body.clone())).await;
            assert_ne!(response.status, 446, "{path}: {}", response.text());
            let sent = String::from_utf8_lossy(&provider.last_request.lock().unwrap()).into_owned();
            assert!(sent.contains("fine") && !sent.contains(WORD), "{path}: {sent}");
        }
    }
}
