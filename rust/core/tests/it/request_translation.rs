//! Request translation. A request in one API format reaches a provider with another format.

use std::fs;

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body,
    golden_provider::{GoldenProvider, extract_model, golden_case, read_hex_frames, strip_created_time},
    pick_fields, post_with_config,
};
use penstock_mock::Server;
use serde_json::{Value, json};

#[tokio::test]
async fn routes_a_model_in_the_path_like_one_in_the_body() {
    let case = golden_case("openai/generateContent/complete");
    let responded = fs::read(case.path("response.json")).unwrap();
    let golden_provider = GoldenProvider::start(200, "application/json", responded, 50).await;
    let (_, request_body) = extract_model(&fs::read(case.path("request.json")).unwrap());
    let url = golden_provider.server.url();
    let saved = json!({"epoch": "1", "providers": [
        {"slug": "mine", "provider": "openai", "api_key": "sk-1", "custom_host": url}]});
    let gateway = GoldenProvider::gateway_trusting_loopback();
    gateway.state.apply_snapshot(saved.to_string().as_bytes()).unwrap();
    let build_request = |path: &str| {
        TestRequest::new("POST", path).header("content-type", "application/json").body(request_body.clone())
    };
    for path in [
        "/v1beta/models/@mine/gpt-4o:generateContent",
        "/v1alpha/models/@mine/gpt-4o:generateContent",
        "/v1/models/%40mine%2Fgpt-4o:generateContent",
        "/v1beta1/publishers/google/models/@mine/gpt-4o:generateContent",
        "/v1beta1/projects/p/locations/l/publishers/google/models/@mine/gpt-4o:generateContent",
        "/v1/projects/p/locations/l/publishers/google/models/@mine/gpt-4o:generateContent",
    ] {
        let reply = gateway.send(build_request(path)).await;
        assert_eq!(
            (reply.status, golden_provider.parse_last_request().1["model"].as_str()),
            (200, Some("gpt-4o")),
            "{}",
            reply.text()
        );
    }
    let target = json!({"provider": "@mine", "override_params": {"model": "gpt-4.1", "temperature": 0}});
    let config = json!({"strategy": {"mode": "conditional", "default": "b",
        "conditions": [{"query": {"params.model": "fast"}, "then": "a"}]},
        "targets": [{"name": "a", "provider": "@mine", "override_params": target["override_params"]},
            {"name": "b", "provider": "@mine"}]});
    let request_body = |model: &str| {
        build_request(&format!("/v1beta/models/{model}:generateContent"))
            .header("x-gateway-config", &config.to_string())
    };
    assert_eq!(gateway.send(request_body("fast")).await.status, 200);
    assert_eq!(pick_fields(&golden_provider.parse_last_request().1, ["model", "temperature"]), json!(["gpt-4.1", 0]));
    assert_eq!(gateway.send(request_body("slow")).await.status, 200);
    assert_eq!(pick_fields(&golden_provider.parse_last_request().1, ["model", "temperature"]), json!(["slow", 0.5]));
}

/// The Hugging Face router supports only chat; a dedicated endpoint also supports text completions.
#[tokio::test]
async fn dedicated_endpoint_gets_completions_unchanged() {
    let response_body = br#"{"object":"text_completion","choices":[{"text":" so","index":0,"finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}"#;
    let golden_provider = GoldenProvider::start(200, "application/json", response_body.to_vec(), 50).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let url = golden_provider.server.url();
    for (key, path) in [("huggingface_base_url", "/v1/completions"), ("custom_host", "/v1/chat/completions")] {
        let mut config = json!({"provider": "huggingface", "api_key": "k"});
        config[key] = url.as_str().into();
        let request = TestRequest::new("POST", "/v1/completions").header("content-type", "application/json");
        let body = r#"{"model":"tgi","prompt":"It is","max_tokens":3,"n":1}"#;
        let response = gateway.send(request.header("x-gateway-config", &config.to_string()).body(body)).await;
        let (head, sent) = golden_provider.parse_last_request();
        assert!(head.starts_with(&format!("POST {path} HTTP/1.1")), "{head} {}", response.text());
        assert_eq!(
            (sent["prompt"] == "It is", response.body == response_body),
            (path == "/v1/completions", path == "/v1/completions")
        );
    }
}

#[tokio::test]
async fn same_api_format_passes_byte_for_byte_both_ways() {
    let body = br#"{ "contents" : [{"parts":[{"text":"Hi"}]}], "unknown": 1 }"#.to_vec();
    let response = br#"{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":4,"thoughtsTokenCount":2,"cachedContentTokenCount":3,"totalTokenCount":15},"x":1}"#;
    for config in [json!({"provider": "google"}), json!({"provider": "google", "retry": {"attempts": 1}})] {
        let golden_provider = GoldenProvider::start(200, "application/json", response.to_vec(), 20).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let mut config = config.clone();
        config["custom_host"] = golden_provider.server.url().into();
        config["api_key"] = "sk-1".into();
        let request = TestRequest::new("POST", "/v1/models/gemini-2.5-pro:generateContent?x=1")
            .header("content-type", "application/json")
            .header("x-gateway-config", &config.to_string());
        let reply = gateway.send(request.body(body.clone())).await;
        assert_eq!((reply.status, reply.body.as_slice()), (200, response.as_slice()));
        let (head, _) = golden_provider.parse_last_request();
        assert!(head.starts_with("POST /v1beta/models/gemini-2.5-pro:generateContent?x=1 HTTP/1.1"), "{head}");
        assert!(golden_provider.last_request.lock().unwrap().ends_with(&body));
        assert_eq!(pick_fields(&gateway.single_record(), ["req_units", "res_units"]), json!([9, 6]));
    }
    let stream = read_hex_frames(&golden_case("bedrock/chatComplete/stream").path("response.hex"));
    let golden_provider = GoldenProvider::start(200, "application/vnd.amazon.eventstream", stream.clone(), 33).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let reply =
        gateway.send(golden_provider.build_request("bedrock", "/model/m%3A0/converse-stream", b"{ }".to_vec())).await;
    assert_eq!((reply.status, reply.body.as_slice()), (200, stream.as_slice()));
    assert!(golden_provider.parse_last_request().0.starts_with("POST /model/m%3A0/converse-stream HTTP/1.1"));
    assert_eq!(
        pick_fields(&gateway.single_record(), ["outcome", "req_units", "res_units"]),
        json!(["complete", 20, 5])
    );
}

#[tokio::test]
async fn rejects_an_untranslatable_request_before_sending() {
    let golden_provider = GoldenProvider::start(200, "application/json", Vec::new(), 50).await;
    let request_body = json!({"model": "claude-x", "n": 3, "messages": []}).to_string();
    let response = GoldenProvider::gateway_trusting_loopback()
        .send(golden_provider.build_request("anthropic", CHAT_PATH, request_body.into()))
        .await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "untranslatable_request"));
    assert!(response.text().contains("anthropic: n: "), "{}", response.text());
    assert_eq!(golden_provider.server.connection_count(), 0);
}

#[tokio::test]
async fn signs_bedrock_requests_and_sends_no_api_key() {
    let responded = fs::read(golden_case("bedrock/chatComplete/complete").path("response.json")).unwrap();
    let golden_provider = GoldenProvider::start(200, "application/json", responded, 50).await;
    let build_request = || {
        golden_provider
            .build_request("bedrock", CHAT_PATH, chat_body("m", false).into())
            .header("x-gateway-aws-access-key-id", "AKID")
    };
    let signed = build_request()
        .header("x-gateway-aws-secret-access-key", "s3cret")
        .header("x-gateway-aws-session-token", "tok");
    assert_eq!(GoldenProvider::gateway_trusting_loopback().send(signed).await.status, 200);
    let (head, _) = golden_provider.parse_last_request();
    assert!(head.contains("authorization: AWS4-HMAC-SHA256 Credential=AKID/"), "{head}");
    assert!(head.contains("/eu-west-1/bedrock/aws4_request") && head.contains("x-amz-security-token: tok"), "{head}");
    assert!(!head.contains("s3cret") && !head.contains("sk-1") && head.matches("authorization").count() == 1, "{head}");
    let half = GoldenProvider::gateway_trusting_loopback().send(build_request()).await;
    assert_eq!((half.status, half.error_code().as_str()), (400, "invalid_provider_option"), "{}", half.text());
    let role = build_request().header("x-gateway-aws-auth-type", "serviceRole");
    let role = GoldenProvider::gateway_trusting_loopback().send(role).await;
    assert_eq!((role.status, role.error_code().as_str()), (400, "invalid_provider_option"), "{}", role.text());
    assert!(role.text().contains("only a stored provider or config may use them"), "{}", role.text());
}

#[tokio::test]
async fn fallback_translates_the_original_request_for_each_target() {
    let error = fs::read(golden_case("anthropic/chatComplete/error").path("response.json")).unwrap();
    let first = GoldenProvider::start(529, "application/json", error, 50).await;
    let case = golden_case("google/chatComplete/tools_stream");
    let second =
        GoldenProvider::start(200, "text/event-stream", fs::read(case.path("response.sse")).unwrap(), 50).await;
    let target = |provider: &str, golden_provider: &GoldenProvider| json!({"provider": provider, "api_key": "sk-1", "custom_host": golden_provider.server.url()});
    let targets = [target("anthropic", &first), target("google", &second)];
    let config = json!({"strategy": {"mode": "fallback", "on_status_codes": [529]}, "targets": targets});
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let request = TestRequest::new("POST", CHAT_PATH)
        .header("x-gateway-config", &config.to_string())
        .header("content-type", "application/json")
        .body(fs::read(case.path("request.json")).unwrap());
    let reply = gateway.send(request).await;
    assert_eq!((reply.status, reply.is_truncated), (200, false), "{}", reply.text());
    assert_eq!(
        strip_created_time(&reply.text()),
        strip_created_time(&fs::read_to_string(case.path("client_response.sse")).unwrap())
    );
    let sent: Value = serde_json::from_slice(&fs::read(case.path("upstream_request.json")).unwrap()).unwrap();
    assert_eq!(second.parse_last_request().1, sent);
    assert_eq!(first.parse_last_request().1["messages"][0]["role"], "user");
    let record = gateway.single_record();
    assert_eq!(
        pick_fields(&record, ["ai_org", "req_units", "last_used_option_index"]),
        json!(["google", 30, "config.targets[1]"])
    );
}

#[tokio::test]
async fn sends_anthropic_headers_only_to_anthropic() {
    let golden_provider = GoldenProvider::start(
        200,
        "application/json",
        fs::read(golden_case("openai/messages/complete").path("response.json")).unwrap(),
        50,
    )
    .await;
    let reply = GoldenProvider::gateway_trusting_loopback()
        .send(golden_provider.build_request("openai", "/v1/messages?beta=true", chat_body("gpt-4o", false).into()))
        .await;
    assert_eq!(reply.status, 200);
    let (head, _) = golden_provider.parse_last_request();
    assert!(head.starts_with("POST /chat/completions HTTP/1.1"), "{head}");
    assert!(!head.contains("anthropic-beta"), "{head}");
    let to_anthropic = fs::read(golden_case("anthropic/chatComplete/complete").path("response.json")).unwrap();
    let golden_provider = GoldenProvider::start(200, "application/json", to_anthropic, 50).await;
    GoldenProvider::gateway_trusting_loopback()
        .send(golden_provider.build_request("anthropic", CHAT_PATH, chat_body("claude-x", false).into()))
        .await;
    let (head, _) = golden_provider.parse_last_request();
    assert!(head.contains("anthropic-beta: caching") && head.contains("anthropic-version: 2023-06-01"), "{head}");
}

#[tokio::test]
async fn translates_between_chat_and_messages_with_mock_provider() {
    let mock = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let build_request = |provider: &str, path: &str, stream: bool| {
        TestRequest::new("POST", path)
            .header("x-gateway-provider", provider)
            .header("x-gateway-custom-host", &format!("{}/v1", mock.url()))
            .header("content-type", "application/json")
            .header("authorization", "Bearer sk-1")
            .body(chat_body("mock", stream))
    };
    let complete = gateway.send(build_request("anthropic", CHAT_PATH, false)).await.json();
    let streamed = gateway.send(build_request("anthropic", CHAT_PATH, true)).await;
    let content = complete["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(!content.is_empty() && !streamed.is_truncated);
    let deltas = streamed.text();
    let deltas = deltas.lines().filter_map(|line| line.strip_prefix("data: {")).map(|rest| format!("{{{rest}"));
    let deltas = deltas.map(|data| serde_json::from_str::<Value>(&data).unwrap());
    let text: String =
        deltas.filter_map(|data| Some(data["choices"][0]["delta"]["content"].as_str()?.to_owned())).collect();
    assert_eq!(text, content);
    let message = gateway.send(build_request("openai", MESSAGES_PATH, false)).await.json();
    assert_eq!(message["content"][0]["text"], content.as_str());
    let events = gateway.send(build_request("openai", MESSAGES_PATH, true)).await;
    assert!(
        events.text().starts_with("event: message_start\n")
            && events.text().ends_with("{\"type\":\"message_stop\"}\n\n")
    );
    assert!(
        gateway
            .drain_records()
            .iter()
            .all(|record| record["units_estimated"] == Value::Null && record["req_units"] != Value::Null)
    );
}

#[tokio::test]
async fn all_client_formats_reach_a_provider_that_validates() {
    let mock = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let callers = [
        ("google/chatComplete", CHAT_PATH),
        ("google/messages", MESSAGES_PATH),
        ("google/createModelResponse", "/v1/responses"),
        ("openai/generateContent", "/v1beta/models/mock:generateContent"),
        ("anthropic/converse", "/model/mock/converse"),
        ("openai/invokeModel", "/model/mock/invoke"),
    ];
    for (request_body, path) in callers {
        let case = golden_case(&format!("{request_body}/tools"));
        let (_, request_body) = extract_model(&fs::read(case.path("request.json")).unwrap());
        let is_named = path.starts_with("/v1/");
        let request_body = if is_named {
            String::from_utf8(request_body).unwrap().replacen('{', "{\"model\":\"mock\",", 1).into()
        } else {
            request_body
        };
        for (provider, prefix) in [("openai", "/v1"), ("anthropic", "/v1"), ("google", ""), ("bedrock", "")] {
            let is_native = (provider == "google" && path.starts_with("/v1beta"))
                || (provider == "bedrock" && !path.starts_with("/v1"));
            if is_native {
                continue;
            }
            let request = TestRequest::new("POST", path)
                .header("x-gateway-provider", provider)
                .header("x-gateway-custom-host", &format!("{}{prefix}", mock.url()))
                .header("x-gateway-aws-region", "eu-west-1")
                .header("content-type", "application/json")
                .header("authorization", "Bearer sk-1")
                .body(request_body.clone());
            let response = gateway.send(request).await;
            assert_eq!(response.status, 200, "{path} to {provider}: {}", response.text());
            assert!(
                response.text().contains("Hello from the pretend provider"),
                "{path} to {provider}: {}",
                response.text()
            );
            assert_eq!(
                pick_fields(&gateway.single_record(), ["req_units", "res_units"]),
                json!([12, 8]),
                "{path} to {provider}"
            );
        }
    }
}

/// Golden cases of Claude on hosting providers: provider, case, request line, and the beta header that the provider
/// receives.
const HOSTED_CLAUDE_CASES: [(&str, &str, &str, &str); 4] = [
    ("bedrock", "native_betas", "POST /model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke HTTP/1.1", ""),
    (
        "bedrock",
        "native_betas_stream",
        "POST /model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke-with-response-stream HTTP/1.1",
        "",
    ),
    ("vertex-ai", "native_request", "claude-sonnet-4-5%4020250929:rawPredict HTTP/1.1", "anthropic-beta: one-1, two-2"),
    (
        "vertex-ai",
        "native_request_stream",
        "claude-sonnet-4-5%4020250929:streamRawPredict HTTP/1.1",
        "anthropic-beta: one-1, two-2",
    ),
];

#[tokio::test]
async fn hosted_claude_messages_pass_unchanged_both_ways() {
    let beta_headers = ["anthropic-beta", "x-gateway-anthropic-beta"];
    for ((provider, label, line, beta), beta_header) in
        HOSTED_CLAUDE_CASES.into_iter().flat_map(|case| beta_headers.map(|beta_header| (case, beta_header)))
    {
        let case = golden_case(&format!("{provider}/messages/{label}"));
        let (kind, responded) = match [case.path("response.hex"), case.path("response.sse"), case.path("response.json")]
        {
            [hex, ..] if hex.exists() => ("application/vnd.amazon.eventstream", read_hex_frames(&hex)),
            [_, sse, _] if sse.exists() => ("text/event-stream; charset=utf-8", fs::read(sse).unwrap()),
            [.., json] => ("application/json", fs::read(json).unwrap()),
        };
        let golden_provider = GoldenProvider::start(200, kind, responded.clone(), 11).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let request = fs::read(case.path("request.json")).unwrap();
        let reply = gateway
            .send(
                TestRequest::new("POST", MESSAGES_PATH)
                    .header("x-gateway-provider", provider)
                    .header("x-gateway-custom-host", &golden_provider.server.url())
                    .header("x-gateway-vertex-project-id", "p")
                    .header("x-gateway-vertex-region", "europe-west4")
                    .header("x-gateway-aws-region", "eu-west-1")
                    .header("content-type", "application/json")
                    .header("anthropic-version", "2023-06-01")
                    .header(beta_header, "one-1, two-2")
                    .header("authorization", "Bearer sk-1")
                    .body(request.clone()),
            )
            .await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        if kind == "application/vnd.amazon.eventstream" {
            assert_eq!(
                reply.text(),
                fs::read_to_string(case.path("client_response.sse")).unwrap().trim_end().to_owned() + "\n\n"
            );
        } else {
            assert_eq!(reply.text().as_bytes(), responded, "{provider} {label}: byte by byte");
        }
        let bytes = golden_provider.last_request.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(line) && head.contains(beta) && !head.contains("anthropic-version"), "{head}");
        let is_in_body = body.contains(r#""anthropic_beta":["one-1","two-2"]"#);
        assert_eq!(is_in_body, provider == "bedrock", "{provider} {beta_header}: {body}");
        // The client's JSON is forwarded exactly as it was written.
        let written = String::from_utf8(request).unwrap();
        let (_, after) = written.split_once("\"max_tokens\"").unwrap();
        let (thoughts, _) = after.split_once("\"And?\"").unwrap();
        assert!(body.contains(thoughts), "{body}");
        let record = gateway.single_record();
        assert_eq!(pick_fields(&record, ["req_units", "res_units"]), json!([16, 5]), "{provider} {label}: {record}");
    }
}

#[tokio::test]
async fn translates_operations_other_than_chat() {
    let post = |path| ("POST", path);
    for (provider, operation, label, (method, path), line) in [
        ("google", "models", "complete", ("GET", "/v1/models"), "GET /v1beta/models?pageSize=1000 HTTP/1.1"),
        ("cohere", "models", "complete", ("GET", "/v1/models"), "GET /v1/models?page_size=1000 HTTP/1.1"),
        ("bedrock", "models", "complete", ("GET", "/v1/models"), "GET /foundation-models HTTP/1.1"),
        ("stability-ai", "imageGenerate", "complete", post("/v1/images/generations"), "/generate/core HTTP/1.1"),
        (
            "bedrock",
            "imageGenerate",
            "complete",
            post("/v1/images/generations"),
            "/model/amazon.nova-canvas-v1%3A0/invoke HTTP/1.1",
        ),
        (
            "bedrock",
            "embed",
            "complete",
            post("/v1/embeddings"),
            "/model/amazon.titan-embed-text-v2%3A0/invoke HTTP/1.1",
        ),
        ("vertex-ai", "embed", "complete", post("/v1/embeddings"), "/models/text-embedding-005:predict HTTP/1.1"),
        (
            "google",
            "messagesCountTokens",
            "complete",
            post("/v1/messages/count_tokens"),
            "gemini-2.5-flash:countTokens HTTP/1.1",
        ),
        (
            "vertex-ai",
            "messagesCountTokens",
            "claude",
            post("/v1/messages/count_tokens"),
            "/count-tokens:rawPredict HTTP/1.1",
        ),
    ] {
        let case = golden_case(&format!("{provider}/{operation}/{label}"));
        let read = |file: &str| fs::read(case.path(file)).unwrap();
        let golden_provider = GoldenProvider::start(200, "application/json", read("response.json"), 50).await;
        let body = if method == "GET" { Vec::new() } else { read("request.json") };
        let request = golden_provider.build_request(provider, path, body).method(method);
        let reply = GoldenProvider::gateway_trusting_loopback().send(request).await;
        assert_eq!(reply.status, 200, "{provider} {operation}: {}", reply.text());
        let (mut actual, mut expected) =
            (reply.json(), serde_json::from_slice::<Value>(&read("client_response.json")).unwrap());
        for response in [&mut actual, &mut expected] {
            response.as_object_mut().unwrap().retain(|key, _| key != "created");
        }
        assert_eq!(actual, expected, "{provider} {operation}");
        let bytes = golden_provider.last_request.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(line), "{provider} {operation}: {text}");
        let is_form = text.contains("\r\ncontent-type: multipart/form-data; boundary=");
        assert_eq!(is_form, provider == "stability-ai", "{text}");
        assert!(!is_form || text.matches("content-type:").count() == 1, "{text}");
    }
}

/// Embedding and token count requests of Google's client: golden case, and the request line that the provider receives.
const EMBED_AND_COUNT_CASES: [(&str, &str); 8] = [
    ("openai/batchEmbedContents/complete", "POST /embeddings HTTP/1.1"),
    ("openai/embedContent/complete", "POST /embeddings HTTP/1.1"),
    ("cohere/batchEmbedContents/complete", "POST /v2/embed HTTP/1.1"),
    ("vertex-ai/batchEmbedContents/complete", "/publishers/google/models/gemini-embedding-001:predict HTTP/1.1"),
    ("bedrock/embedContent/complete", "POST /model/amazon.titan-embed-text-v2%3A0/invoke HTTP/1.1"),
    ("anthropic/countTokens/complete", "POST /messages/count_tokens HTTP/1.1"),
    ("bedrock/countTokens/complete", "POST /model/amazon.nova-pro-v1%3A0/count-tokens HTTP/1.1"),
    ("vertex-ai/countTokens/claude", "/publishers/anthropic/models/count-tokens:rawPredict HTTP/1.1"),
];

#[tokio::test]
async fn google_client_embeds_and_counts_at_other_providers() {
    for (provider_name, line) in EMBED_AND_COUNT_CASES {
        let case = golden_case(provider_name);
        let read = |file: &str| fs::read(case.path(file)).unwrap();
        let [provider, verb, _] = provider_name.split('/').collect::<Vec<_>>()[..] else { panic!("{provider_name}") };
        let golden_provider = GoldenProvider::start(200, "application/json", read("response.json"), 50).await;
        let (model, request) = extract_model(&read("request.json"));
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let reply = gateway
            .send(golden_provider.build_request(provider, &format!("/v1beta/models/{model}:{verb}"), request))
            .await;
        assert_eq!(
            (reply.status, reply.json()),
            (200, serde_json::from_slice(&read("client_response.json")).unwrap()),
            "{provider_name}"
        );
        let (head, body) = golden_provider.parse_last_request();
        assert!(head.contains(line), "{provider_name}: {head}");
        assert_eq!(body, serde_json::from_slice::<Value>(&read("upstream_request.json")).unwrap(), "{provider_name}");
        let lost = fs::read_to_string(case.path("dropped_params.txt")).ok();
        assert_eq!(reply.header("x-gateway-not-translated"), lost.as_deref().map(str::trim_end), "{provider_name}");
        let units =
            if verb == "countTokens" { Value::Null } else { reply.json()["usageMetadata"]["promptTokenCount"].clone() };
        assert_eq!(gateway.single_record()["req_units"], units, "{provider_name}");
    }
}

#[tokio::test]
async fn google_embed_and_count_requests_pass_byte_for_byte() {
    let body = br#"{ "requests" : [{"model":"models/@mine/e-1","content":{"parts":[{"text":"Hi"}]}}] }"#;
    let renamed = br#"{"requests":[{"model":"models/e-1","content":{"parts":[{"text":"Hi"}]}}]}"#;
    for (provider, line) in [
        ("google", "POST /v1beta/models/e-1:VERB HTTP/1.1"),
        ("vertex-ai", "POST /v1/projects/p/locations/europe-west4/publishers/google/models/e-1:VERB HTTP/1.1"),
    ] {
        for verb in ["embedContent", "batchEmbedContents", "countTokens"] {
            if provider == "vertex-ai" && verb != "countTokens" {
                continue;
            }
            let golden_provider =
                GoldenProvider::start(200, "application/json", b"{ \"totalTokens\":3 }".to_vec(), 50).await;
            let gateway = GoldenProvider::gateway_trusting_loopback();
            let response = gateway
                .send(golden_provider.build_request(provider, &format!("/v1beta/models/e-1:{verb}"), body.to_vec()))
                .await;
            assert_eq!((response.status, response.body.as_slice()), (200, b"{ \"totalTokens\":3 }".as_slice()));
            assert!(
                golden_provider.parse_last_request().0.contains(&line.replace("VERB", verb)),
                "{}",
                golden_provider.parse_last_request().0
            );
            assert!(golden_provider.last_request.lock().unwrap().ends_with(body), "{verb}");
        }
    }
    let golden_provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 50).await;
    let saved = json!({"epoch": "1", "providers": [
        {"slug": "mine", "provider": "google", "api_key": "sk-1", "custom_host": golden_provider.server.url()}]});
    let gateway = GoldenProvider::gateway_trusting_loopback();
    gateway.state.apply_snapshot(saved.to_string().as_bytes()).unwrap();
    let request = TestRequest::new("POST", "/v1beta/models/@mine/e-1:batchEmbedContents")
        .header("content-type", "application/json");
    assert_eq!(gateway.send(request.body(body.to_vec())).await.status, 200);
    assert!(
        golden_provider.last_request.lock().unwrap().ends_with(renamed),
        "{:?}",
        golden_provider.parse_last_request()
    );
}

#[tokio::test]
async fn azure_sends_only_claude_to_the_anthropic_path() {
    let response = fs::read(golden_case("azure-ai/chatComplete/claude").path("response.json")).unwrap();
    for (prefix, model, path, expected) in [
        ("/models", "claude-opus-4-5", CHAT_PATH, "POST /anthropic/v1/messages HTTP/1.1"),
        ("/models", "claude-opus-4-5", MESSAGES_PATH, "POST /anthropic/v1/messages HTTP/1.1"),
        ("", "claude-opus-4-5", MESSAGES_PATH, "POST /anthropic/v1/messages HTTP/1.1"),
        ("/anthropic", "our-best", MESSAGES_PATH, "POST /anthropic/v1/messages HTTP/1.1"),
        ("/models", "gpt-5", CHAT_PATH, "POST /models/chat/completions HTTP/1.1"),
    ] {
        let golden_provider = GoldenProvider::start(200, "application/json", response.clone(), 50).await;
        let host = format!("{}{prefix}", golden_provider.server.url());
        let config = json!({"provider": "azure-ai", "api_key": "k-1", "custom_host": host});
        let reply = GoldenProvider::gateway_trusting_loopback()
            .send(post_with_config(&config, path, chat_body(model, false)))
            .await;
        assert_eq!(reply.status, 200, "{prefix} {model}: {}", reply.text());
        let head = golden_provider.parse_last_request().0.to_ascii_lowercase();
        assert!(head.starts_with(&expected.to_ascii_lowercase()), "{head}");
        let is_claude = expected.contains("anthropic");
        assert_eq!(head.contains("\r\nanthropic-version: 2023-06-01\r\n"), is_claude, "{head}");
        assert_eq!(head.contains("\r\nx-api-key: k-1\r\n"), is_claude, "{head}");
        assert_eq!(head.contains("\r\nauthorization: bearer k-1\r\n"), !is_claude, "{head}");
    }
}

#[tokio::test]
async fn azure_sends_rerank_to_the_cohere_path() {
    let body = json!({"model": "rerank-v3", "query": "q", "documents": ["d"]});
    for (prefix, expected) in [("/models", "/providers/cohere/v2/rerank"), ("/cohere/v2", "/cohere/v2/rerank")] {
        let golden_provider = GoldenProvider::start(200, "application/json", b"{\"results\":[]}".to_vec(), 50).await;
        let host = format!("{}{prefix}", golden_provider.server.url());
        let config = json!({"provider": "azure-ai", "api_key": "k-1", "custom_host": host});
        GoldenProvider::gateway_trusting_loopback()
            .send(post_with_config(&config, "/v1/rerank", body.to_string().into_bytes()))
            .await;
        let head = golden_provider.parse_last_request().0;
        assert!(head.starts_with(&format!("POST {expected} HTTP/1.1")), "{head}");
    }
}

/// Option names and values.
type OptionPairs = &'static [(&'static str, &'static str)];

/// Provider, its options (sent as headers or in the config), and the text that the upstream request head must contain.
const PROVIDER_OPTION_CASES: &[(&str, OptionPairs, &str)] = &[
    ("stability-ai", &[("stability-client-id", "c-1")], "stability-client-id: c-1\r\n"),
    ("openrouter", &[("http-referer", "https://app.example"), ("x-title", "App")], "x-title: App\r\n"),
    ("mistral-ai", &[("mistral-fim-completion", "true")], "POST /fim/completions HTTP/1.1"),
    (
        "azure-ai",
        &[("azure-extra-params", "pass-through"), ("azure-endpoint-name", "n")],
        "extra-parameters: pass-through\r\n",
    ),
    (
        "databricks",
        &[("databricks-workspace", "w"), ("databricks-serving-endpoint-name", "own")],
        "POST /own/invocations HTTP/1.1",
    ),
    (
        "vertex-ai",
        &[("vertex-region", "r"), ("vertex-project-id", "p"), ("anthropic-beta", "one-1")],
        "anthropic-beta: one-1\r\n",
    ),
    ("bedrock", &[("aws-region", "r"), ("provider-model", "amazon.nova")], "POST /model/amazon.nova/converse HTTP/1.1"),
    ("sagemaker", &[("aws-region", "r"), ("amzn-sagemaker-session-id", "s-1")], "x-amzn-sagemaker-session-id: s-1\r\n"),
];

#[tokio::test]
async fn accepts_provider_options_from_headers_and_config() {
    for (slug, options, expected) in PROVIDER_OPTION_CASES {
        let path = match *slug {
            "stability-ai" | "sagemaker" => "/v1/proxy/anything",
            "vertex-ai" => MESSAGES_PATH,
            _ => CHAT_PATH,
        };
        let model = if *slug == "vertex-ai" { "claude-x" } else { "m" };
        for in_config in [false, true] {
            let golden_provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 50).await;
            let mut config = json!({"provider": slug, "api_key": "k", "custom_host": golden_provider.server.url()});
            let mut request =
                TestRequest::new("POST", path).header("content-type", "application/json").body(chat_body(model, false));
            for (header, value) in *options {
                if in_config {
                    config[header.replace('-', "_")] = json!(value);
                } else {
                    request = request.header(&format!("x-portkey-{header}"), value);
                }
            }
            let response = GoldenProvider::gateway_trusting_loopback()
                .send(request.header("x-gateway-config", &config.to_string()))
                .await;
            let (head, _) = golden_provider.parse_last_request();
            assert!(head.contains(expected), "{slug} {in_config}: {head} {}", response.text());
        }
    }
}

#[tokio::test]
async fn anthropic_version_in_body_becomes_a_header_unless_set() {
    let case = golden_case("anthropic/chatComplete/complete");
    let mut body: Value = serde_json::from_slice(&fs::read(case.path("request.json")).unwrap()).unwrap();
    body["anthropic_version"] = "2023-01-01".into();
    for (own, expected, provider_name) in
        [(None, "2023-01-01", false), (Some(("x-gateway-anthropic-version", "2024-02-02")), "2024-02-02", true)]
    {
        let golden_provider =
            GoldenProvider::start(200, "application/json", fs::read(case.path("response.json")).unwrap(), 50).await;
        let mut request = golden_provider.build_request("anthropic", CHAT_PATH, body.to_string().into_bytes());
        if let Some((name, value)) = own {
            request = request.header(name, value);
        }
        let reply = GoldenProvider::gateway_trusting_loopback().send(request).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let (head, sent) = golden_provider.parse_last_request();
        assert_eq!(head.matches("anthropic-version: ").count(), 1, "{head}");
        assert!(head.contains(&format!("anthropic-version: {expected}")), "{head}");
        assert_eq!(sent.get("anthropic_version"), None);
        let lost = reply.header("x-gateway-not-translated").unwrap_or_default().to_owned();
        assert_eq!(lost.contains("anthropic_version"), provider_name, "{lost}");
    }
}

#[tokio::test]
async fn moves_anthropic_betas_from_body_to_header() {
    let case = golden_case("anthropic/chatComplete/sampling_params");
    let read = |file: &str| fs::read(case.path(file)).unwrap();
    let golden_provider = GoldenProvider::start(200, "application/json", read("response.json"), 50).await;
    let reply = GoldenProvider::gateway_trusting_loopback()
        .send(golden_provider.build_request("anthropic", CHAT_PATH, read("request.json")))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let (head, body) = golden_provider.parse_last_request();
    assert!(head.contains("anthropic-beta: one-1,two-2"), "{head}");
    assert_eq!(body, serde_json::from_slice::<Value>(&read("upstream_request.json")).unwrap());
}
