//! Translation of upstream responses, streams and errors to the client format. Clients see no difference between a
//! translated and a native provider.

use std::fs;

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestRequest, chat_body,
    golden_provider::{
        CaseFiles, GoldenProvider, extract_model, find_golden_case, golden_case, read_hex_frames, strip_created_time,
    },
    into_stream, pick_fields, post_with_config, read_stream, routing_headers,
};
use penstock_llm::stream::aws_event_stream::FrameDecoder;
use serde_json::{Value, json};

const PROVIDER_CASES: [(&str, &str, &str, &str); 8] = [
    ("anthropic", "chatComplete", "POST /messages HTTP/1.1", "x-api-key: sk-1"),
    ("openai", "messages", "POST /chat/completions HTTP/1.1", "authorization: Bearer sk-1"),
    ("groq", "messages", "POST /chat/completions HTTP/1.1", "authorization: Bearer sk-1"),
    ("google", "chatComplete", "POST /v1beta/models/gemini-2.5-flash:", "x-goog-api-key: sk-1"),
    ("google", "messages", "POST /v1beta/models/gemini-2.5-flash:", "x-goog-api-key: sk-1"),
    (
        "vertex-ai",
        "chatComplete",
        "POST /v1/projects/p/locations/europe-west4/publishers/google/models/gemini-2.5-flash:",
        "authorization: Bearer sk-1",
    ),
    ("bedrock", "messages", "POST /model/us.amazon.nova-pro-v1%3A0/converse", "authorization: Bearer sk-1"),
    ("cohere", "chatComplete", "POST /v2/chat HTTP/1.1", "authorization: Bearer sk-1"),
];

#[tokio::test]
async fn translates_complete_responses_of_every_provider() {
    for (provider, operation, line, key) in PROVIDER_CASES {
        let case = golden_case(&format!("{provider}/{operation}/tools"));
        let read = |file: &str| fs::read(case.path(file)).unwrap();
        let golden_provider = GoldenProvider::start(200, "application/json", read("response.json"), 50).await;
        let path = if operation == "messages" { MESSAGES_PATH } else { CHAT_PATH };
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let reply = gateway.send(golden_provider.build_request(provider, path, read("request.json"))).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")), "{}", reply.text());
        let (head, body) = golden_provider.parse_last_request();
        assert!(head.starts_with(line) && head.contains(key), "{head}");
        assert_eq!(body, serde_json::from_slice::<Value>(&read("upstream_request.json")).unwrap(), "{provider}");
        let mut expected: Value = serde_json::from_slice(&read("client_response.json")).unwrap();
        let mut actual = reply.json();
        // Some IDs contain the time.
        for response in [&mut expected, &mut actual] {
            response.as_object_mut().unwrap().retain(|key, _| key != "created" && key != "id");
        }
        assert_eq!(actual, expected, "{provider}");
        let lost = fs::read_to_string(case.path("dropped_params.txt")).ok();
        assert_eq!(reply.header("x-gateway-not-translated"), lost.as_deref().map(str::trim_end), "{provider}");
        let record = gateway.single_record();
        assert_eq!(
            pick_fields(&record, ["req_units", "res_units", "estimated"]),
            json!([30, 20, null]),
            "{provider}: {record}"
        );
        assert_eq!(record["ai_org"], provider);
    }
}

#[tokio::test]
async fn translates_streams_of_every_provider_at_any_chunk_size() {
    for (provider, operation, ..) in PROVIDER_CASES {
        let case = golden_case(&format!("{provider}/{operation}/stream"));
        let read = |file: &str| fs::read(case.path(file)).unwrap();
        let (kind, responded) = match case.path("response.hex") {
            path if path.exists() => ("application/vnd.amazon.eventstream", read_hex_frames(&path)),
            _ => ("text/event-stream; charset=utf-8", read("response.sse")),
        };
        for chunk in [7, 100_000] {
            let golden_provider = GoldenProvider::start(200, kind, responded.clone(), chunk).await;
            let gateway = GoldenProvider::gateway_trusting_loopback();
            let path = if operation == "messages" { MESSAGES_PATH } else { CHAT_PATH };
            let reply = gateway.send(golden_provider.build_request(provider, path, read("request.json"))).await;
            assert_eq!((reply.status, reply.is_streamed, reply.is_truncated), (200, true, false), "{}", reply.text());
            assert_eq!(reply.header("content-type"), Some("text/event-stream"));
            let expected = String::from_utf8(read("client_response.sse")).unwrap();
            assert_eq!(strip_generated_ids(&reply.text()), strip_generated_ids(&expected), "{provider}");
            let record = gateway.single_record();
            assert_eq!(record["outcome"], "complete", "{record}");
            assert_eq!(record["req_units"], 20, "{provider}: {record}");
        }
    }
}

#[tokio::test]
async fn records_stream_usage_and_returns_it_only_if_requested() {
    for provider in ["anthropic", "google", "vertex-ai", "bedrock", "cohere"] {
        let case = golden_case(&format!("{provider}/chatComplete/stream"));
        let (kind, responded) = match case.path("response.hex") {
            path if path.exists() => ("application/vnd.amazon.eventstream", read_hex_frames(&path)),
            _ => ("text/event-stream", fs::read(case.path("response.sse")).unwrap()),
        };
        let mut request_body: Value = serde_json::from_slice(&fs::read(case.path("request.json")).unwrap()).unwrap();
        for (options, is_shown) in [
            (Value::Null, false),
            (json!({}), false),
            (json!({"include_usage": false}), false),
            (json!({"include_usage": true}), true),
        ] {
            request_body["stream_options"] = options;
            let golden_provider = GoldenProvider::start(200, kind, responded.clone(), 13).await;
            let gateway = GoldenProvider::gateway_trusting_loopback();
            let request = golden_provider.build_request(provider, CHAT_PATH, request_body.to_string().into());
            let request =
                request.header("accept-encoding", "gzip").header("x-gateway-forward-headers", "accept-encoding");
            let reply = gateway.send(request).await.text();
            assert_eq!(reply.matches("\"usage\"").count(), usize::from(is_shown), "{provider}: {reply}");
            assert_eq!(
                reply.matches("\"choices\":[],\"usage\":{").count(),
                usize::from(is_shown),
                "{provider}: {reply}"
            );
            assert!(reply.ends_with("data: [DONE]\n\n"), "{provider}: {reply}");
            let fields = pick_fields(&gateway.single_record(), ["outcome", "req_units", "units_estimated"]);
            assert_eq!(fields, json!(["complete", 20, null]), "{provider}");
            // Usage in a compressed stream could be neither read nor hidden.
            let (head, _) = golden_provider.parse_last_request();
            assert!(head.contains("\r\naccept-encoding: identity") && !head.contains("gzip"), "{head}");
        }
    }
}

/// Removes the time and the random part of generated IDs.
fn strip_generated_ids(text: &str) -> String {
    let text = strip_created_time(text);
    let digits = |character: char| character.is_ascii_digit();
    ["\"id\":\"bedrock-", "\"id\":\"msg_"].iter().fold(text, |text, mark| {
        let mut parts = text.split(mark);
        let first = parts.next().unwrap_or_default().to_owned();
        let own = |part: &str| match part.trim_start_matches(digits).split_once('"') {
            Some((chance, rest)) if chance.starts_with('-') => format!("\"{rest}"),
            _ => part.to_owned(),
        };
        parts.fold(first, |out, part| out + &own(part))
    })
}

#[tokio::test]
async fn keeps_error_status_and_translates_error_body() {
    for (provider, operation, ..) in PROVIDER_CASES {
        for status in [400, 429, 529] {
            let case = golden_case(&format!("{provider}/{operation}/error"));
            let read = |file: &str| fs::read(case.path(file)).unwrap();
            let golden_provider = GoldenProvider::start(status, "application/json", read("response.json"), 50).await;
            let path = if operation == "messages" { MESSAGES_PATH } else { CHAT_PATH };
            let reply = GoldenProvider::gateway_trusting_loopback()
                .send(golden_provider.build_request(provider, path, read("request.json")))
                .await;
            assert_eq!(reply.status, status, "{}", reply.text());
            let expected: Value = serde_json::from_slice(&read("client_response.json")).unwrap();
            assert_eq!(reply.json()["error"]["message"], expected["error"]["message"], "{provider}");
            assert_eq!(reply.header("x-request-id"), Some("up-1"));
        }
    }
}

#[tokio::test]
async fn translates_an_error_that_is_not_json() {
    let golden_provider = GoldenProvider::start(502, "text/html", b"<h1>Bad Gateway</h1>".to_vec(), 50).await;
    let response = GoldenProvider::gateway_trusting_loopback()
        .send(golden_provider.build_request("anthropic", CHAT_PATH, chat_body("claude-x", true).into()))
        .await;
    assert_eq!((response.status, response.header("content-type")), (502, Some("application/json")));
    assert_eq!(response.json()["error"]["message"], "anthropic error: <h1>Bad Gateway</h1>");
}

#[tokio::test]
async fn reports_an_invalid_response_as_a_provider_error() {
    // The `anthropic` response is translated to another API format. In the `together-ai` response only the finish
    // reason is normalised to OpenAI's values.
    for (provider, body) in [("anthropic", r#"{"content": 1}"#), ("anthropic", "{"), ("together-ai", r#"{"choices":["#)]
    {
        let golden_provider = GoldenProvider::start(200, "application/json", body.into(), 50).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let reply =
            gateway.send(golden_provider.build_request(provider, CHAT_PATH, chat_body("claude-x", false).into())).await;
        let message = format!("{provider} returned an invalid response: {body}");
        let error = json!({"message": message, "type": null, "param": null, "code": null});
        let expected = json!({"error": error, "provider": provider});
        assert_eq!((reply.status, reply.json()), (200, expected));
        let record = gateway.single_record();
        assert_eq!((&record["error"], &record["is_success"]), (&"invalid_response".into(), &false.into()), "{record}");
        // Fallback tries the next target, although the status is 200.
        let good = GoldenProvider::start(200, "application/json", br#"{"choices":[]}"#.to_vec(), 50).await;
        let at = |provider: &str, url: &str| json!({"provider": provider, "custom_host": url, "api_key": "k"});
        let config = json!({"strategy": {"mode": "fallback"},
            "targets": [at(provider, &golden_provider.server.url()), at("openai", &good.server.url())]});
        let reply = gateway.send(post_with_config(&config, CHAT_PATH, chat_body("m", false).into_bytes())).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, r#"{"choices":[]}"#), "{provider}");
    }
}

#[tokio::test]
async fn a_truncated_stream_never_looks_complete() {
    for (provider, operation, ..) in PROVIDER_CASES.into_iter().filter(|pair| pair.0 != "bedrock") {
        let case = golden_case(&format!("{provider}/{operation}/stream"));
        let responded = fs::read(case.path("response.sse")).unwrap();
        let golden_provider =
            GoldenProvider::start(200, "text/event-stream", responded[..responded.len() / 2].to_vec(), 50).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let path = if operation == "messages" { MESSAGES_PATH } else { CHAT_PATH };
        let reply = gateway
            .send(golden_provider.build_request(provider, path, fs::read(case.path("request.json")).unwrap()))
            .await;
        assert_eq!(gateway.single_record()["outcome"], "cut", "{provider}");
        let (_, last) = reply.last_event();
        assert!(last["error"].is_object(), "{provider}: {}", reply.text());
    }
}

/// Path parts before and after the model, for complete and for streamed requests.
type PathParts = [(&'static str, &'static str); 2];

/// Google and Amazon clients: provider, operations for complete and streamed responses, and their paths.
const VENDOR_CLIENTS: [(&str, [&str; 2], PathParts); 5] = [
    ("openai", ["generateContent", "streamGenerateContent"], GEMINI_PATHS),
    ("anthropic", ["generateContent", "streamGenerateContent"], GEMINI_PATHS),
    ("anthropic", ["converse", "converseStream"], CONVERSE_PATHS),
    ("google", ["converse", "converseStream"], CONVERSE_PATHS),
    ("openai", ["invokeModel", "invokeModelStream"], INVOKE_PATHS),
];

const GEMINI_PATHS: PathParts =
    [("/v1beta/models/", ":generateContent"), ("/v1beta/models/", ":streamGenerateContent?alt=sse")];

const CONVERSE_PATHS: PathParts = [("/model/", "/converse"), ("/model/", "/converse-stream")];

const INVOKE_PATHS: PathParts = [("/model/", "/invoke"), ("/model/", "/invoke-with-response-stream")];

#[tokio::test]
async fn translates_complete_responses_for_google_and_amazon_clients() {
    for (provider, [operation, _], [(before, after), _]) in VENDOR_CLIENTS {
        let case = golden_case(&format!("{provider}/{operation}/tools"));
        let read = |file: &str| fs::read(case.path(file)).unwrap();
        let golden_provider = GoldenProvider::start(200, "application/json", read("response.json"), 50).await;
        let (model, request) = extract_model(&read("request.json"));
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let reply =
            gateway.send(golden_provider.build_request(provider, &format!("{before}{model}{after}"), request)).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")), "{}", reply.text());
        assert_eq!(reply.json(), serde_json::from_slice::<Value>(&read("client_response.json")).unwrap(), "{provider}");
        assert_eq!(
            golden_provider.parse_last_request().1,
            serde_json::from_slice::<Value>(&read("upstream_request.json")).unwrap(),
            "{provider}"
        );
        let actual =
            pick_fields(&gateway.single_record(), ["operation", "ai_model", "req_units", "res_units", "stream_mode"]);
        assert_eq!(actual, json!([operation, model, 30, 20, false]), "{provider}");
    }
}

#[tokio::test]
async fn translates_streams_for_google_and_amazon_clients() {
    for (provider, [_, operation], [_, (before, after)]) in VENDOR_CLIENTS {
        let case = golden_case(&format!("{provider}/{operation}/stream"));
        let read = |file: &str| fs::read(case.path(file)).unwrap();
        let (model, request_body) = extract_model(&read("request.json"));
        let golden_provider = GoldenProvider::start(200, "text/event-stream", read("response.sse"), 33).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let reply = gateway
            .send(golden_provider.build_request(provider, &format!("{before}{model}{after}"), request_body))
            .await;
        assert_eq!((reply.status, reply.is_streamed, reply.is_truncated), (200, true, false), "{}", reply.text());
        let kind = reply.header("content-type").unwrap();
        if after.starts_with(':') {
            assert_eq!(kind, "text/event-stream");
            assert_eq!(reply.text(), String::from_utf8(read("client_response.sse")).unwrap(), "{provider}");
        } else {
            assert_eq!(kind, "application/vnd.amazon.eventstream");
            let returned = String::from_utf8(read("client_response.txt")).unwrap();
            assert_eq!(
                frame_names(&reply.body),
                returned.lines().map(|line| line.split(' ').next().unwrap()).collect::<Vec<_>>()
            );
        }
        let actual = pick_fields(&gateway.single_record(), ["operation", "outcome", "req_units", "stream_mode"]);
        assert_eq!(actual, json!([operation, "complete", 20, true]), "{provider}");
    }
}

#[tokio::test]
async fn streams_a_json_array_to_clients_that_do_not_request_sse() {
    for provider in ["openai", "anthropic"] {
        let case = golden_case(&format!("{provider}/streamGenerateContent/stream"));
        let read = |file: &str| fs::read(case.path(file)).unwrap();
        let (model, request_body) = extract_model(&read("request.json"));
        let golden_provider = GoldenProvider::start(200, "text/event-stream", read("response.sse"), 33).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let path = format!("/v1beta/models/{model}:streamGenerateContent");
        let reply = gateway.send(golden_provider.build_request(provider, &path, request_body.clone())).await;
        assert_eq!((reply.status, reply.is_streamed, reply.is_truncated), (200, true, false), "{}", reply.text());
        assert_eq!(reply.header("content-type"), Some("application/json"));
        let events = String::from_utf8(read("client_response.sse")).unwrap();
        let items: Vec<Value> = events
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|item| serde_json::from_str(item).unwrap())
            .collect();
        assert_eq!(reply.json(), json!(items), "{provider}");
        let actual = pick_fields(&gateway.single_record(), ["operation", "outcome", "req_units", "stream_mode"]);
        assert_eq!(actual, json!(["streamGenerateContent", "complete", 20, true]), "{provider}");
        let config = json!({"provider": provider, "api_key": "sk-1", "custom_host": golden_provider.server.url(),
            "retry": {"attempts": 1}});
        for request in [
            post_with_config(&config, &path, request_body.clone()),
            golden_provider.build_request(provider, &path, request_body),
        ] {
            let (chunks, _) = read_stream(into_stream(gateway.handle_request(request).await)).await;
            assert!(chunks.len() > 1 && chunks[0].starts_with(b"[{") && !chunks[0].ends_with(b"]"), "{chunks:?}");
        }
        // An error has the same form as for other operations.
        let golden_provider = GoldenProvider::start(429, "application/json", b"{}".to_vec(), 50).await;
        let reply =
            gateway.send(golden_provider.build_request(provider, &path, extract_model(&read("request.json")).1)).await;
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (429, &json!(429)));
    }
}

#[tokio::test]
async fn a_json_array_without_finish_reason_is_cut_and_not_cached() {
    let case = golden_case("openai/streamGenerateContent/stream");
    let request_body = extract_model(&fs::read(case.path("request.json")).unwrap()).1;
    let events = fs::read(case.path("response.sse")).unwrap();
    let item = r#"{"candidates":[{"content":{"parts":[{"text":"Hi"}]}}]}"#;
    let items = |last: &str| format!("[{item},\n{last}]").into_bytes();
    let json = "application/json";
    for (provider, kind, responded, [outcome, error], is_kept) in [
        ("openai", "text/event-stream", events.clone(), ["complete", ""], true),
        ("openai", "text/event-stream", events[..events.len() / 2].to_vec(), ["cut", "upstream_disconnected"], false),
        ("google", json, items(r#"{"candidates":[{"finishReason":"STOP"}]}"#), ["complete", ""], true),
        ("google", json, items(item), ["cut", "upstream_disconnected"], false),
        ("google", json, items(r#"{"error":{"code":503}}"#), ["complete", "upstream_error_event"], false),
    ] {
        let golden_provider = GoldenProvider::start(200, kind, responded, 33).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let config = json!({"provider": provider, "api_key": "k", "custom_host": golden_provider.server.url(), "cache": "simple"});
        let send_request = || post_with_config(&config, "/v1beta/models/m:streamGenerateContent", request_body.clone());
        let (reply, again) = (gateway.send(send_request()).await, gateway.send(send_request()).await);
        assert_eq!((reply.status, reply.is_truncated), (200, outcome == "cut"), "{provider}: {}", reply.text());
        assert_eq!(routing_headers(&again)[2], if is_kept { "HIT" } else { "MISS" }, "{provider}: {}", reply.text());
        let record = &gateway.drain_records()[0];
        assert_eq!(record["outcome"], outcome, "{record}");
        assert_eq!(record["error"].as_str().unwrap_or_default(), error, "{record}");
    }
}

/// Returns the names of the frames in a stream.
fn frame_names(bytes: &[u8]) -> Vec<String> {
    let mut frames = FrameDecoder::new(1 << 20);
    frames.push_chunk(bytes);
    let names = std::iter::from_fn(|| frames.next_frame()).map(|frame| frame.unwrap().event_name).collect();
    assert!(!frames.has_partial_frame());
    names
}

#[tokio::test]
async fn translates_errors_for_google_and_amazon_clients() {
    for (provider, [operation, _], [(before, after), _]) in VENDOR_CLIENTS {
        let case = golden_case(&format!("{provider}/{operation}/error"));
        let read = |file: &str| fs::read(case.path(file)).unwrap();
        let golden_provider = GoldenProvider::start(429, "application/json", read("response.json"), 50).await;
        let (model, request_body) = extract_model(&read("request.json"));
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let path = format!("{before}{model}{after}");
        let reply = gateway.send(golden_provider.build_request(provider, &path, request_body)).await;
        let refused =
            gateway.send(TestRequest::new("POST", &path).header("content-type", "application/json").body("{}")).await;
        let word = |reply: &crate::harness::TestResponse| match reply.json() {
            reply if after.starts_with(':') => reply["error"]["status"].as_str().unwrap().to_owned(),
            reply => reply["__type"].as_str().unwrap().to_owned(),
        };
        assert!(["RESOURCE_EXHAUSTED", "ThrottlingException"].contains(&word(&reply).as_str()), "{}", reply.text());
        assert!(["INVALID_ARGUMENT", "ValidationException"].contains(&word(&refused).as_str()), "{}", refused.text());
        assert_eq!((reply.status, refused.status), (429, 400));
        // A truncated stream ends with an error event if its format has one.
        let Some(stream) = find_golden_case(&format!("{provider}/{operation}Stream/stream")) else { continue };
        let responded = fs::read(stream.path("response.sse")).unwrap();
        let golden_provider =
            GoldenProvider::start(200, "text/event-stream", responded[..responded.len() / 2].to_vec(), 50).await;
        let cut = gateway.send(golden_provider.build_request(
            provider,
            &format!("{before}{model}{after}-stream"),
            b"{\"messages\":[]}".to_vec(),
        ));
        if after == "/converse" {
            assert_eq!(frame_names(&cut.await.body).last().map(String::as_str), Some("serviceUnavailableException"));
        }
    }
}

#[tokio::test]
async fn returns_529_for_an_overloaded_stream_if_configured() {
    let overloaded = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let golden_provider = GoldenProvider::start(200, "text/event-stream", overloaded.into(), 50).await;
    let config = json!({"provider": "anthropic", "anthropic_inspect_stream_for_overloaded_error": true,
        "custom_host": golden_provider.server.url(), "api_key": "sk-1"});
    let request = TestRequest::new("POST", CHAT_PATH)
        .header("x-gateway-config", &config.to_string())
        .header("content-type", "application/json")
        .body(chat_body("claude-x", true));
    let response = GoldenProvider::gateway_trusting_loopback().send(request).await;
    assert_eq!((response.status, response.is_streamed), (529, false), "{}", response.text());
    assert_eq!(response.json()["error"]["message"], "anthropic error: Overloaded");
    // Claude models of other hosts are inspected too.
    let request_body = GoldenProvider::start(200, "text/event-stream", overloaded.into(), 50).await;
    let config = json!({"provider": "vertex-ai", "anthropic_inspect_stream_for_overloaded_error": true,
        "vertex_project_id": "p", "vertex_region": "europe-west4", "custom_host": request_body.server.url(), "api_key": "sk-1"});
    for path in [CHAT_PATH, "/v1/messages"] {
        let request = TestRequest::new("POST", path)
            .header("x-gateway-config", &config.to_string())
            .header("content-type", "application/json")
            .body(chat_body("anthropic.claude-sonnet-4-5", true));
        assert_eq!(GoldenProvider::gateway_trusting_loopback().send(request).await.status, 529, "{path}");
    }
}

#[tokio::test]
async fn reports_dropped_response_fields_in_header_and_sse_comment() {
    let case = golden_case("google/chatComplete/image");
    let read = |case: &CaseFiles, file: &str| fs::read(case.path(file)).unwrap();
    let golden_provider = GoldenProvider::start(200, "application/json", read(&case, "response.json"), 50).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let reply = gateway.send(golden_provider.build_request("google", CHAT_PATH, read(&case, "request.json"))).await;
    let dropped_names = "image, executableCode, codeExecutionResult, groundingMetadata";
    assert_eq!(reply.header("x-gateway-not-translated"), Some(dropped_names));
    assert_eq!(gateway.state.record_sink.metrics.partly_translated.get(), 1);
    let case = golden_case("google/chatComplete/image_stream");
    let golden_provider = GoldenProvider::start(200, "text/event-stream", read(&case, "response.sse"), 9).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let reply = gateway.send(golden_provider.build_request("google", CHAT_PATH, read(&case, "request.json"))).await;
    assert!(reply.text().contains(": not translated: image\n\n") && !reply.is_truncated, "{}", reply.text());
    assert_eq!(gateway.single_record()["outcome"], "complete");
    assert_eq!(gateway.state.record_sink.metrics.partly_translated.get(), 1);
}

#[tokio::test]
async fn records_token_kinds_that_the_client_format_lacks() {
    let case = golden_case("google/messages/token_details");
    let read = |file: &str| fs::read(case.path(file)).unwrap();
    let golden_provider = GoldenProvider::start(200, "application/json", read("response.json"), 50).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let reply = gateway.send(golden_provider.build_request("google", MESSAGES_PATH, read("request.json"))).await;
    assert_eq!(reply.json()["usage"]["input_tokens"], 200, "{}", reply.text());
    let record = gateway.single_record();
    let expected = json!({"input": 20, "output": 5, "cache_read": 40, "reasoning": 3, "audio_in": 100, "image_in": 80,
        "cache_read_audio": 80});
    let actual = record["usage"].as_object().unwrap().iter().filter(|(_, tokens)| **tokens != 0);
    assert_eq!(actual.map(|(key, tokens)| (key.clone(), tokens.clone())).collect::<Value>(), expected, "{record}");
}

#[tokio::test]
async fn requests_json_and_converts_raw_image_bytes_to_base64() {
    for (provider, case) in [("stability-ai", "complete"), ("workers-ai", "complete"), ("google", "complete")] {
        let request_body =
            fs::read(golden_case(&format!("{provider}/imageGenerate/{case}")).path("request.json")).unwrap();
        let golden_provider = GoldenProvider::start(200, "image/png", b"\x89PNG\r\n".to_vec(), 50).await;
        let request =
            golden_provider.build_request(provider, "/v1/images/generations", request_body).header("accept", "*/*");
        let response = GoldenProvider::gateway_trusting_loopback().send(request).await;
        assert_eq!(
            (response.status, response.header("content-type")),
            (200, Some("application/json")),
            "{}",
            response.text()
        );
        assert_eq!(response.json()["data"], json!([{"b64_json": "iVBORw0K"}]), "{provider}: {}", response.text());
        let bytes = golden_provider.last_request.lock().unwrap().clone();
        let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        assert!(head.contains("\r\naccept: application/json\r\n") && !head.contains("*/*"), "{head}");
    }
}

#[tokio::test]
async fn does_not_forward_the_location_of_a_redirect() {
    let kind = "application/json\r\nlocation: http://169.254.169.254/latest";
    let golden_provider = GoldenProvider::start(307, kind, b"{}".to_vec(), 9).await;
    let response = GoldenProvider::gateway_trusting_loopback()
        .send(golden_provider.build_request("google", CHAT_PATH, chat_body("m", false).into_bytes()))
        .await;
    assert_eq!((response.status, response.header("location")), (307, None), "{}", response.text());
}

#[tokio::test]
async fn keeps_the_status_of_an_oversized_error() {
    for (length, is_quoted) in [(200 * 1024, true), (260 * 1024, false)] {
        let body = json!({"error": {"code": 400, "message": "A".repeat(length)}}).to_string();
        let golden_provider = GoldenProvider::start(400, "application/json", body.into_bytes(), 64 * 1024).await;
        let response = GoldenProvider::gateway_trusting_loopback()
            .send(golden_provider.build_request("google", CHAT_PATH, chat_body("m", false).into_bytes()))
            .await;
        assert_eq!((response.status, response.text().contains("AAAA")), (400, is_quoted), "{length}");
    }
}
