//! Token counts in request records. They come from the provider if it reports usage; otherwise the gateway counts them
//! and marks them as estimated.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, TestResponse,
    golden_provider::GoldenProvider,
    into_stream, pick_fields, post_request,
    scripted_server::{
        CHAT_EVENTS, MESSAGE_EVENTS, SSE_RESPONSE_HEAD, ScriptedServer, encode_chunks, gzip_compress, gzip_response,
        json_response, sse_response,
    },
    with_timeout,
};
use serde_json::{Value, json};

const RESPONSES_PATH: &str = "/v1/responses";
const COMPLETIONS_PATH: &str = "/v1/completions";

fn token_counts(record: &Value) -> Value {
    pick_fields(record, ["req_units", "res_units", "total_units", "units_estimated", "outcome"])
}

async fn post_and_get_record(path: &str, message: &Value, response: Vec<u8>) -> Value {
    let provider = ScriptedServer::start_responding(response).await;
    let gateway = TestGateway::for_url(&provider.url());
    gateway.send(post_request(path, message.to_string())).await;
    gateway.single_record()
}

fn chat_request_json(stream: bool) -> Value {
    json!({"model": "gpt-4o", "stream": stream, "messages": [{"role": "user", "content": "hello world"}]})
}

/// Streams of all text operations, without usage: "hello world" in two deltas.
fn streams_without_usage() -> [(&'static str, Value, String); 4] {
    let chat_event =
        |text: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let chat_events = [chat_event("hello"), chat_event(" world"), "data: [DONE]\n\n".into()].concat();
    let chunk = |text: &str| format!("data: {{\"choices\":[{{\"text\":\"{text}\",\"index\":0}}]}}\n\n");
    let chunks = [chunk("hello"), chunk(" world"), "data: [DONE]\n\n".into()].concat();
    let delta = |text: &str| {
        format!(
            "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"delta\":\"{text}\"}}\n\n"
        )
    };
    let done = "data: {\"type\":\"response.output_text.done\",\"text\":\"hello world\"}\n\n";
    let end = "data: {\"type\":\"response.incomplete\",\"response\":{\"status\":\"incomplete\",\"usage\":null}}\n\n";
    let response = [delta("hello"), delta(" world"), done.into(), end.into()].concat();
    let block = |text: &str| {
        format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
        )
    };
    let messages = [block("hello"), block(" world"), "data: {\"type\":\"message_stop\"}\n\n".into()].concat();
    [
        (CHAT_PATH, chat_request_json(true), chat_events),
        (COMPLETIONS_PATH, json!({"model": "gpt-4o", "stream": true, "prompt": "hello world"}), chunks),
        (RESPONSES_PATH, json!({"model": "gpt-4o", "stream": true, "input": "hello world"}), response),
        (MESSAGES_PATH, chat_request_json(true), messages),
    ]
}

fn expected_request_tokens(path: &str) -> u64 {
    if matches!(path, CHAT_PATH | MESSAGES_PATH) { 3 + 3 + 1 + 2 } else { 2 }
}

#[tokio::test]
async fn counts_tokens_of_stream_without_usage() {
    for (path, message, sent) in streams_without_usage() {
        for chunk in [1, 7, 100_000] {
            let record = post_and_get_record(path, &message, sse_response(sent.as_bytes(), chunk)).await;
            let request_tokens = expected_request_tokens(path);
            let expected = json!([request_tokens, 2, request_tokens + 2, true, "complete"]);
            assert_eq!(token_counts(&record), expected, "{path} in chunks of {chunk}");
            let raw = path.replacen("/v1", "/v1/proxy", 1);
            let record = post_and_get_record(&raw, &message, sse_response(sent.as_bytes(), chunk)).await;
            assert_eq!(token_counts(&record), expected, "{raw} in chunks of {chunk}");
        }
    }
}

#[tokio::test]
async fn counts_tokens_of_complete_response_without_usage() {
    let cases = [
        (
            CHAT_PATH,
            chat_request_json(false),
            json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "hello world"}, "finish_reason": "stop"}]}),
            2,
        ),
        (
            COMPLETIONS_PATH,
            json!({"model": "gpt-4o", "prompt": "hello world"}),
            json!({"choices": [{"text": "hello world", "finish_reason": "stop"}]}),
            2,
        ),
        (
            RESPONSES_PATH,
            json!({"model": "gpt-4o", "input": "hello world"}),
            json!({"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello world"}]}]}),
            2,
        ),
        (
            MESSAGES_PATH,
            chat_request_json(false),
            json!({"content": [{"type": "text", "text": "hello world"}], "stop_reason": "end_turn"}),
            2,
        ),
        (
            "/v1/embeddings",
            json!({"model": "gpt-4o", "input": "hello world"}),
            json!({"data": [{"embedding": [0.5]}]}),
            0,
        ),
    ];
    for (path, message, response, content) in cases {
        let record = post_and_get_record(path, &message, json_response("200 OK", "", &response.to_string())).await;
        let request_tokens = expected_request_tokens(path);
        assert_eq!(
            token_counts(&record),
            json!([request_tokens, content, request_tokens + content, true, "complete"]),
            "{path}"
        );
    }
}

#[tokio::test]
async fn uses_token_counts_reported_by_provider() {
    // Path that Anthropic's SDK uses for Vertex AI.
    let at_vertex = "/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict";
    for (path, sent, response) in [
        (CHAT_PATH, CHAT_EVENTS, [9, 12, 21]),
        (MESSAGES_PATH, MESSAGE_EVENTS, [25, 15, 40]),
        (at_vertex, MESSAGE_EVENTS, [25, 15, 40]),
    ] {
        let record = post_and_get_record(path, &chat_request_json(true), sse_response(sent.as_bytes(), 50)).await;
        assert_eq!(token_counts(&record), json!([response[0], response[1], response[2], null, "complete"]), "{path}");
    }
}

#[tokio::test]
async fn reads_usage_from_start_or_end_of_large_response() {
    let filler = "x".repeat(400_000);
    let usage = r#""usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}"#;
    let choices = format!(r#""choices":[{{"message":{{"content":"{filler}"}}}}]"#);
    let meta =
        r#""meta":{"api_version":{"version":"2"},"billed_units":{"search_units":1},"tokens":{"input_tokens":12}}"#;
    let cases = [
        (CHAT_PATH, format!("{{{choices},{usage}}}"), json!([5, 7, 12, null, "complete"])),
        (CHAT_PATH, format!("{{{usage},{choices}}}"), json!([5, 7, 12, null, "complete"])),
        ("/v1/rerank", format!("{{\"results\":[\"{filler}\"],{meta}}}"), json!([12, 0, 12, null, "complete"])),
        (
            "/v1/rerank",
            format!("{{\"usage\":{{\"total_tokens\":15}},\"results\":[\"{filler}\"]}}"),
            json!([15, 0, 15, null, "complete"]),
        ),
        (
            "/v1/images/generations",
            format!(
                "{{\"data\":[{{\"b64_json\":\"{filler}\"}}],\"usage\":{{\"input_tokens\":3,\"output_tokens\":9,\"total_tokens\":12,\"input_tokens_details\":{{\"text_tokens\":3}}}}}}"
            ),
            json!([3, 9, 12, null, "complete"]),
        ),
        ("/v1/proxy/chat/completions", format!("{{{choices},{usage}}}"), json!([5, 7, 12, null, "complete"])),
    ];
    for (path, response, expected) in cases {
        let record = post_and_get_record(path, &chat_request_json(false), json_response("200 OK", "", &response)).await;
        assert_eq!(token_counts(&record), expected, "{path} {}", &response[..40]);
    }
}

/// Responses without usage to "hello world", by the provider that sends them: complete, and as a stream.
fn responses_without_usage(provider: &str) -> [String; 2] {
    match provider {
        "openai" => {
            let message = json!({"role": "assistant", "content": "hello world"});
            let choice =
                |key: &str, reason: Value| json!({"choices": [{"index": 0, key: message, "finish_reason": reason}]});
            let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
            let stream = format!("data: {}\n\ndata: {end}\n\ndata: [DONE]\n\n", choice("delta", Value::Null));
            [choice("message", "stop".into()).to_string(), stream]
        }
        "anthropic" => {
            let complete = json!({"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
                "content": [{"type": "text", "text": "hello world"}]});
            let events = [
                json!({"type": "message_start", "message": {"id": "m", "model": "m", "content": []}}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello world"}}),
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
                json!({"type": "message_stop"}),
            ];
            [complete.to_string(), events.map(|event| format!("data: {event}\n\n")).concat()]
        }
        _ => {
            let item =
                json!({"candidates": [{"content": {"parts": [{"text": "hello world"}]}, "finishReason": "STOP"}]});
            [item.to_string(), format!("data: {item}\r\n\r\n")]
        }
    }
}

/// Returns the tokens that the last usage in a response reports, whatever its format.
fn reported_tokens(response: &TestResponse) -> [u64; 2] {
    let text = response.text();
    let at =
        text.rfind("\"usage\":{").or_else(|| text.rfind("\"usageMetadata\":{")).unwrap_or_else(|| panic!("{text}"));
    let (_, object) = text[at..].split_once(':').unwrap();
    let usage = serde_json::Deserializer::from_str(object).into_iter::<Value>().next().unwrap().unwrap();
    let count =
        |names: [&str; 4]| names.iter().find_map(|name| usage[name].as_u64()).unwrap_or_else(|| panic!("{usage}"));
    [
        count(["input_tokens", "prompt_tokens", "promptTokenCount", "inputTokens"]),
        count(["output_tokens", "completion_tokens", "candidatesTokenCount", "outputTokens"]),
    ]
}

#[tokio::test]
async fn translated_responses_without_usage_have_the_estimate_of_their_record() {
    let client = json!([{"role": "user", "content": "hello world"}]);
    let chat = |stream: bool| json!({"model": "gpt-4o", "max_tokens": 99, "stream": stream, "messages": client, "stream_options": {"include_usage": true}});
    let response = |stream: bool| json!({"model": "gpt-4o", "input": "hello world", "stream": stream});
    let gemini = |_: bool| json!({"contents": [{"role": "user", "parts": [{"text": "hello world"}]}]});
    let converse = |_: bool| json!({"messages": [{"role": "user", "content": [{"text": "hello world"}]}]});
    let body_of = |path: &str, stream: bool| match path {
        CHAT_PATH | MESSAGES_PATH => chat(stream),
        RESPONSES_PATH => response(stream),
        path if path.contains("onverse") => converse(stream),
        _ => gemini(stream),
    };
    let gemini_paths = ["/v1beta/models/m:generateContent", "/v1beta/models/m:streamGenerateContent?alt=sse"];
    for (provider, paths) in [
        ("openai", [MESSAGES_PATH; 2]),
        ("openai", gemini_paths),
        ("openai", ["/v1beta/models/m:generateContent", "/v1beta/models/m:streamGenerateContent"]),
        ("openai", ["/model/m/converse", "/model/m/converse-stream"]),
        ("anthropic", [CHAT_PATH; 2]),
        ("anthropic", [RESPONSES_PATH; 2]),
        ("anthropic", gemini_paths),
        ("google", [CHAT_PATH; 2]),
        ("google", [MESSAGES_PATH; 2]),
    ] {
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let [complete, stream] = responses_without_usage(provider);
        for (path, is_stream, kind, sent) in
            [(paths[0], false, "application/json", complete), (paths[1], true, "text/event-stream", stream)]
        {
            let golden_provider = GoldenProvider::start(200, kind, sent.into_bytes(), 40).await;
            let body = body_of(path, is_stream).to_string().into_bytes();
            let reply = gateway.send(golden_provider.build_request(provider, path, body)).await;
            let record = gateway.single_record();
            let [input, output] = reported_tokens(&reply);
            assert!(input >= 2, "{provider} {path}: {}", reply.text());
            assert_eq!(
                token_counts(&record),
                json!([input, 2, input + 2, true, "complete"]),
                "{provider} {path}: {}",
                reply.text()
            );
            assert_eq!(output, 2, "{provider} {path}");
        }
    }
}

#[tokio::test]
async fn end_without_usage_does_not_wait_for_the_end_of_the_connection() {
    let [_, stream] = responses_without_usage("openai");
    // The last chunk of the body is missing.
    let sent = [SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(stream.as_bytes(), 40)].concat();
    for is_closed in [false, true] {
        let provider = if is_closed {
            ScriptedServer::start_closing_after_response(sent.clone()).await
        } else {
            ScriptedServer::start_responding(sent.clone()).await
        };
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let request = TestRequest::new("POST", MESSAGES_PATH)
            .body(chat_request_json(true).to_string().into_bytes())
            .header("content-type", "application/json")
            .header("x-gateway-provider", "openai")
            .header("x-gateway-custom-host", &provider.url())
            .header("authorization", "Bearer sk-1");
        let reply = with_timeout(gateway.send(request)).await;
        assert!(reply.text().ends_with("data: {\"type\":\"message_stop\"}\n\n"), "{is_closed}: {}", reply.text());
        let [input, output] = reported_tokens(&reply);
        let record = gateway.single_record();
        assert_eq!(token_counts(&record), json!([input, output, input + output, true, "complete"]), "{is_closed}");
    }
}

#[tokio::test]
async fn translated_embeddings_without_usage_have_the_estimate_of_their_record() {
    for (path, body) in [
        ("/v1/embeddings", json!({"model": "m", "input": "hello world"})),
        ("/v1beta/models/m:embedContent", json!({"content": {"parts": [{"text": "hello world"}]}})),
    ] {
        let (provider, vectors) = match path {
            "/v1/embeddings" => ("google", json!({"embeddings": [{"values": [0.5]}]})),
            _ => ("openai", json!({"object": "list", "data": [{"embedding": [0.5], "index": 0}]})),
        };
        let golden_provider =
            GoldenProvider::start(200, "application/json", vectors.to_string().into_bytes(), 40).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let reply = gateway.send(golden_provider.build_request(provider, path, body.to_string().into_bytes())).await;
        let usage = [&reply.json()["usage"]["prompt_tokens"], &reply.json()["usageMetadata"]["promptTokenCount"]]
            .map(Value::as_u64);
        assert!(usage.contains(&Some(2)), "{path}: {}", reply.text());
        assert_eq!(token_counts(&gateway.single_record()), json!([2, 0, 2, true, "complete"]), "{path}");
    }
}

#[tokio::test]
async fn estimates_tokens_of_oversized_response_by_length() {
    let response = format!(r#"{{"choices":[{{"message":{{"content":"{}"}}}}]}}"#, "x".repeat(400_000));
    let record =
        post_and_get_record(CHAT_PATH, &chat_request_json(false), json_response("200 OK", "", &response)).await;
    let body = response.len() as u64 / 4;
    assert_eq!(token_counts(&record), json!([9, body, 9 + body, true, "complete"]));
}

#[tokio::test]
async fn does_not_count_tokens_of_errors_and_non_text() {
    let error = post_and_get_record(
        CHAT_PATH,
        &chat_request_json(false),
        json_response("500 Oops", "", r#"{"error":{"message":"hello"}}"#),
    )
    .await;
    let zipped = post_and_get_record(
        CHAT_PATH,
        &chat_request_json(false),
        json_response("200 OK", "content-encoding: gzip\r\n", "xxxx"),
    )
    .await;
    let fetched = get_and_get_record("/v1/responses/r").await;
    let failed = "data: {\"error\":{\"message\":\"x\",\"type\":\"overloaded_error\"}}\n\ndata: [DONE]\n\n";
    let failed = post_and_get_record(CHAT_PATH, &chat_request_json(true), sse_response(failed.as_bytes(), 9)).await;
    for record in [error, zipped, fetched, failed] {
        assert_eq!(pick_fields(&record, ["req_units", "res_units"]), json!([null, null]), "{record}");
    }
}

async fn get_and_get_record(path: &str) -> Value {
    let response = json!({"usage": {"input_tokens": 3, "output_tokens": 4}}).to_string();
    let provider = ScriptedServer::start_responding(json_response("200 OK", "", &response)).await;
    let gateway = TestGateway::for_url(&provider.url());
    gateway.send(crate::harness::get_request(path)).await;
    gateway.single_record()
}

#[tokio::test]
async fn counts_tokens_before_cut_or_client_disconnect_once() {
    for (path, message, sent) in streams_without_usage() {
        let half = sent.rsplit_once("\n\n").unwrap().0.rsplit_once("\n\n").unwrap().0.to_owned() + "\n\n";
        let provider = ScriptedServer::start_closing_after_response(
            [SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(half.as_bytes(), 50)].concat(),
        )
        .await;
        let gateway = TestGateway::for_url(&provider.url());
        gateway.send(post_request(path, message.to_string())).await;
        let request_tokens = expected_request_tokens(path);
        assert_eq!(
            token_counts(&gateway.single_record()),
            json!([request_tokens, 2, request_tokens + 2, true, "cut"]),
            "{path}"
        );
        let mut response = into_stream(gateway.handle_request(post_request(path, message.to_string())).await);
        let mut checked = 0;
        while checked < half.len() {
            checked += with_timeout(response.next()).await.unwrap().unwrap().len();
        }
        drop(response);
        assert_eq!(
            token_counts(&gateway.single_record()),
            json!([request_tokens, 2, request_tokens + 2, true, "aborted"]),
            "{path}"
        );
        assert_eq!(gateway.state.record_sink.metrics.tokens_estimated.get(), 2 * (request_tokens + 2), "{path}");
    }
}

#[tokio::test]
async fn counts_tokens_of_tools_reasoning_and_escapes() {
    let deltas = [
        r#"{"reasoning_content":"hello"}"#,
        r#"{"content":null,"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":" world"}}]}"#,
        r#"{"content": "\n\n\"\u00e9\ud83d\ude42"}"#,
    ];
    let sent: String = deltas.map(|delta| format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n")).concat();
    let record = post_and_get_record(
        CHAT_PATH,
        &chat_request_json(true),
        sse_response(format!("{sent}data: [DONE]\n\n").as_bytes(), 11),
    )
    .await;
    let text = penstock_llm::tokens::count_text(penstock_llm::tokens::Encoding::O200K_BASE, "hello world\n\n\"é🙂");
    assert_eq!(record["res_units"], text);
}

#[tokio::test]
async fn estimates_tokens_of_oversized_request_by_length() {
    let provider = ScriptedServer::start_responding(json_response("200 OK", "", r#"{"choices":[]}"#)).await;
    let gateway = TestGateway::for_url(&provider.url());
    let long = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "x".repeat(33 << 20)}]}).to_string();
    let length = long.len() as u64;
    gateway.send(TestRequest::new("POST", CHAT_PATH).header("x-gateway-provider", "mock").body(long)).await;
    assert_eq!(gateway.single_record()["req_units"], length / 4);
}

#[tokio::test]
async fn reads_usage_of_compressed_response_without_changing_it() {
    let usage = r#""usage":{"prompt_tokens":70,"completion_tokens":5,"total_tokens":75}"#;
    let response_body = format!(r#"{{"choices":[{{"message":{{"content":"hello world"}}}}],{usage}}}"#);
    let events = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"hi\"}}}}],{usage}}}\n\ndata: [DONE]\n\n");
    for (kind, text, is_stream) in [
        ("application/json", &response_body, false),
        ("application/json; charset=utf-8", &response_body, false),
        ("text/event-stream", &events, true),
    ] {
        let sent = gzip_compress(text);
        let provider = ScriptedServer::start_responding(gzip_response(kind, &sent)).await;
        let gateway = TestGateway::for_url(&provider.url());
        let response = gateway.send(post_request(CHAT_PATH, chat_request_json(is_stream).to_string())).await;
        assert!(response.body == sent && !response.is_truncated, "{kind}");
        assert_eq!(token_counts(&gateway.single_record()), json!([70, 5, 75, null, "complete"]), "{kind}");
    }
}

#[tokio::test]
async fn counts_tokens_of_compressed_response_without_usage() {
    let response = r#"{"choices":[{"message":{"content":"hello world"}}]}"#;
    let record = post_and_get_record(
        CHAT_PATH,
        &chat_request_json(false),
        gzip_response("application/json", &gzip_compress(response)),
    )
    .await;
    assert_eq!(token_counts(&record), json!([9, 2, 11, true, "complete"]));
    for (path, message, sent) in streams_without_usage() {
        let record =
            post_and_get_record(path, &message, gzip_response("text/event-stream", &gzip_compress(&sent))).await;
        let request_tokens = expected_request_tokens(path);
        assert_eq!(token_counts(&record), json!([request_tokens, 2, request_tokens + 2, true, "complete"]), "{path}");
    }
}

#[tokio::test]
async fn forwards_invalid_or_expanding_gzip_unchanged() {
    let swelling = format!(r#"{{"choices":[{{"message":{{"content":"{}"}}}}]}}"#, " ".repeat(30_000_000));
    for body in [b"not gzip at all".to_vec(), gzip_compress(&swelling), gzip_compress("{").split_at(12).0.to_vec()] {
        let provider = ScriptedServer::start_responding(gzip_response("application/json", &body)).await;
        let gateway = TestGateway::for_url(&provider.url());
        let response = gateway.send(post_request(CHAT_PATH, chat_request_json(false).to_string())).await;
        assert!(response.body == body);
        assert_eq!(gateway.single_record()["outcome"], "complete");
    }
}
