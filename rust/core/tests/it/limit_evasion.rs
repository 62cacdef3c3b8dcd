//! Requests of clients that try to use more than their limits allow: each must reserve what it can use, or is rejected.

use serde_json::{Value, json};

use crate::{
    harness::{CHAT_PATH, TestRequest, into_stream, mock_target, with_timeout},
    limit_admission::{chat, hard_gateway, limit, start_gateway},
};

fn post(path: &str, provider: &str, body: &Value) -> TestRequest {
    let request = TestRequest::new("POST", path).header("x-gateway-api-key", "pk");
    request.header("content-type", "application/json").header("x-gateway-provider", provider).body(body.to_string())
}

fn with_config(config: &Value, body: &Value) -> TestRequest {
    let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", "pk");
    request
        .header("content-type", "application/json")
        .header("x-gateway-config", &config.to_string())
        .body(body.to_string())
}

fn question() -> Value {
    json!([{"role": "user", "content": "x"}])
}

#[tokio::test]
async fn maximum_that_the_gateway_sets_is_divided_by_the_number_of_responses() {
    let (_provider, gateway) = hard_gateway("tokens", 4000).await;
    for (choices, most) in [(1, 4000), (10, 400)] {
        let body = json!({"model": "mock", "n": choices, "messages": question()});
        let response = gateway.send(chat("mock").body(body.to_string())).await;
        let set: u64 = response.header("x-gateway-max-tokens").unwrap().parse().unwrap();
        assert!((most * 9 / 10..most).contains(&set), "{set}");
    }
    let body = json!({"model": "mock", "prompt": ["a", "b", "c", "d"], "best_of": 5});
    let response = gateway.send(post("/v1/completions", "mock", &body)).await;
    let set: u64 = response.header("x-gateway-max-tokens").unwrap().parse().unwrap();
    assert!((170..200).contains(&set), "{set}");
}

#[tokio::test]
async fn parameters_of_a_config_count_like_those_of_the_body() {
    let (provider, gateway) = hard_gateway("tokens", 5000).await;
    let body = json!({"model": "mock", "max_tokens": 5, "messages": question()});
    for params in [json!({"n": 2000}), json!({"max_tokens": 9000}), json!({"max_completion_tokens": 9000})] {
        let config = json!({"provider": "mock", "override_params": params});
        let response = gateway.send(with_config(&config, &body)).await;
        assert_eq!((response.status, response.error_code().as_str()), (412, "usage_limit_exceeded"), "{config}");
    }
    assert_eq!(provider.ledger_entries().len(), 0);
}

#[tokio::test]
async fn limit_of_a_model_applies_to_the_model_that_is_used() {
    let fields = json!({"type": "requests", "limit": 0, "window": {"unit": "week"},
        "conditions": [{"key": "model", "values": ["mock?chunks=2"]}]});
    let (provider, gateway) = start_gateway(json!([limit("policy", "dear", &fields)])).await;
    let cheap = json!({"model": "mock", "messages": question()});
    assert_eq!(gateway.send(chat("mock").body(cheap.to_string())).await.status, 200);
    for config in [
        json!({"provider": "mock", "override_params": {"model": "mock?chunks=2"}}),
        json!({"strategy": {"mode": "fallback"}, "targets": [mock_target("chunks=2")]}),
    ] {
        let response = gateway.send(with_config(&config, &cheap)).await;
        assert_eq!((response.status, response.error_code().as_str()), (429, "rate_limited"), "{config}");
    }
    assert_eq!(provider.ledger_entries().len(), 1);
}

#[tokio::test]
async fn hard_budget_rejects_what_providers_fetch_or_read_in_their_own_way() {
    let (provider, gateway) = hard_gateway("tokens", 40_000).await;
    let messages =
        |part: Value| json!({"model": "mock", "max_tokens": 5, "messages": [{"role": "user", "content": [part]}]});
    for (path, body, code) in [
        (CHAT_PATH, json!({"model": "mock", "max_tokens": 0, "messages": question()}), "usage_not_bounded"),
        (
            CHAT_PATH,
            messages(json!({"type": "document_url", "document_url": "https://a.example/b.pdf"})),
            "usage_not_bounded",
        ),
        (
            CHAT_PATH,
            messages(json!({"type": "audio_url", "audio_url": {"url": "https://a.example"}})),
            "usage_not_bounded",
        ),
        (
            CHAT_PATH,
            json!({"model": "mock", "max_tokens": 5, "MAX_TOKENS": 90_000, "messages": question()}),
            "usage_limit_exceeded",
        ),
        (
            CHAT_PATH,
            json!({"model": "mock", "max_tokens": 5, "messages": [{"role": "assistant", "audio": {"id": "a"}}]}),
            "usage_not_bounded",
        ),
        (
            "/v1/embeddings",
            json!({"model": "mock", "input": [{"image": "https://a.example/b.png"}]}),
            "usage_limit_exceeded",
        ),
        ("/v1/images/generations", json!({"model": "mock", "prompt": "x", "n": "50"}), "usage_not_bounded"),
        ("/v1/images/generations", json!({"model": "mock", "prompt": "x", "num_images": 5}), "usage_limit_exceeded"),
        (
            "/v1/responses",
            json!({"model": "mock", "max_output_tokens": 5, "input": [{"type": "computer_call_output",
            "call_id": "c", "output": {"type": "computer_screenshot", "image_url": "https://a.example/b.png"}}]}),
            "usage_limit_exceeded",
        ),
        ("/v1/responses", json!({"model": "mock", "background": true, "input": "x"}), "usage_not_bounded"),
    ] {
        let response = gateway.send(post(path, "mock", &body)).await;
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (412, code),
            "{path} {body}: {}",
            response.text()
        );
    }
    assert_eq!(provider.ledger_entries().len(), 0);
}

fn with_fields(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn limit_that_a_translation_drops_reserves_as_if_there_were_none() {
    let (provider, gateway) = hard_gateway("tokens", 40_000).await;
    let foreign = [
        json!({"max_new_tokens": 1}),
        json!({"max_output_tokens": 1}),
        json!({"Max_Tokens": 1}),
        json!({"options": {"num_predict": 1}}),
        json!({"extra_body": {"max_tokens": 1}}),
        json!({"toolConfig": {"maxTokens": 1}}),
    ];
    for fields in &foreign {
        let body = with_fields(json!({"model": "mock", "messages": question()}), fields);
        let response = gateway.send(post(CHAT_PATH, "mock", &body)).await;
        let set: u64 = response.header("x-gateway-max-tokens").unwrap().parse().unwrap();
        assert!((1000..=5000).contains(&set), "{fields}: {set}");
    }
    let sent = provider.ledger_entries().len();
    assert_eq!(sent, foreign.len());
    // A target may respect a higher limit. The gateway sets no limit in formats in which it is nested.
    for (path, body) in [
        (CHAT_PATH, json!({"model": "mock", "max_new_tokens": 90_000, "messages": question()})),
        (
            "/v1beta/models/mock:generateContent",
            json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}], "maxOutputTokens": 1}),
        ),
        (
            "/model/mock/converse",
            json!({"messages": [{"role": "user", "content": [{"text": "x"}]}], "inferenceConfig": {"max_tokens": 1}}),
        ),
    ] {
        let response = gateway.send(post(path, "mock", &body)).await;
        assert!(response.text().contains("policy `any`"), "{path}: {}", response.text());
    }
    assert_eq!(provider.ledger_entries().len(), sent);
}

#[tokio::test]
async fn hard_budget_rejects_tools_and_items_of_the_provider_among_those_of_the_client() {
    let (provider, gateway) = hard_gateway("tokens", 40_000).await;
    for (path, fields, what) in [
        (CHAT_PATH, json!({"tools": [{"functionDeclarations": [], "googleSearch": {}}]}), "`googleSearch`"),
        (CHAT_PATH, json!({"tools": {"type": "web_search"}}), "`web_search`"),
        ("/v1/responses", json!({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}), "provider stores"),
        ("/v1/responses", json!({"input": [{"id": "msg_1"}]}), "provider stores"),
    ] {
        let limits = json!({"model": "mock", "max_tokens": 5, "max_output_tokens": 5, "messages": question()});
        let response = gateway.send(post(path, "mock", &with_fields(limits, &fields))).await;
        let text = response.text();
        assert_eq!((response.status, response.error_code().as_str()), (412, "usage_not_bounded"), "{fields}: {text}");
        assert!(text.contains(what), "{fields}: {text}");
    }
    assert_eq!(provider.ledger_entries().len(), 0);
}

#[tokio::test]
async fn hard_budget_admits_ordinary_parts_of_messages() {
    let (_provider, gateway) = hard_gateway("tokens", 40_000).await;
    let thoughts = json!([{"type": "reasoning.text", "text": "x"}, {"type": "reasoning.encrypted", "data": "AA"}]);
    let document = json!({"type": "document", "document": {"id": "d", "data": {"title": "x"}}});
    for (path, fields) in [
        (CHAT_PATH, json!({"messages": [{"role": "assistant", "content": "x", "reasoning_details": thoughts}]})),
        (CHAT_PATH, json!({"messages": [{"role": "tool", "tool_call_id": "c", "content": [document]}]})),
        (
            "/v1/responses",
            json!({"tools": [{"type": "computer"}], "input": [{"type": "computer_call", "call_id": "c",
            "actions": [{"type": "click", "x": 1, "y": 2}]}]}),
        ),
        ("/v1/rerank", json!({"query": "x", "documents": [{"text": "x", "type": "faq"}]})),
    ] {
        let limits = json!({"model": "mock", "max_tokens": 5, "max_output_tokens": 5});
        let response = gateway.send(post(path, "mock", &with_fields(limits, &fields))).await;
        assert_ne!(response.status, 412, "{fields}: {}", response.text());
    }
}

#[tokio::test]
async fn compressed_recording_has_no_bound() {
    let (provider, gateway) = hard_gateway("tokens", 40_000).await;
    let request = TestRequest::new("POST", "/v1/audio/transcriptions").header("x-gateway-api-key", "pk");
    let request =
        request.header("content-type", "multipart/form-data; boundary=b").header("x-gateway-provider", "mock");
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nmock\r\n--b--\r\n";
    let response = gateway.send(request.header("content-encoding", "gzip").body(form)).await;
    assert_eq!((response.status, response.error_code().as_str()), (412, "usage_not_bounded"), "{}", response.text());
    assert_eq!(provider.ledger_entries().len(), 0);
}

#[tokio::test]
async fn stream_that_the_client_leaves_costs_what_was_sent() {
    // The streams have no usage, or the client closes them before the usage arrives.
    for (model, is_left) in [("mock?chunks=40&usage=off", false), ("mock?chunks=40&chunk_ms=5", true)] {
        let fields = json!({"type": "tokens", "limit": 5000, "period": {"start": 1}, "enforcement": "hard"});
        let (_provider, gateway) = start_gateway(json!([limit("policy", "any", &fields)])).await;
        let body = json!({"model": model, "stream": true, "max_tokens": 90, "messages": question()});
        let mut stream = into_stream(gateway.handle_request(chat("mock").body(body.to_string())).await);
        let mut text = Vec::new();
        while let Some(chunk) = with_timeout(stream.next()).await.unwrap() {
            text.extend_from_slice(&chunk);
            if is_left && text.windows(7).filter(|part| part == b"content").count() > 20 {
                break;
            }
        }
        drop(stream);
        let record = gateway.single_record();
        let used = record["total_units"].as_u64().unwrap_or_default();
        assert!(used > 15, "{model}: {record}");
        let body = json!({"model": "mock", "max_tokens": 5, "messages": question()});
        let request = json!({"path": CHAT_PATH, "headers": {"x-gateway-provider": "mock"}, "body": body});
        let explained = gateway.send(post("/v1/explain", "mock", &request)).await.json();
        assert_eq!(explained["targets"][0]["limits"][0]["remaining"], 5000 - used, "{record}");
    }
}

#[tokio::test]
async fn retries_and_fallbacks_count_once_for_the_caller_and_each_time_for_targets() {
    let of_key = json!({"type": "requests", "limit": 100, "window": {"unit": "week"}});
    let (provider, gateway) = start_gateway(json!([
        limit("api_key", "k", &of_key),
        limit("provider", "p", &of_key),
        limit(
            "policy",
            "of provider",
            &json!({"type": "requests", "limit": 100, "window": {"unit": "week"},
            "group_by": ["provider"]})
        ),
    ]))
    .await;
    let config = json!({"provider": "@mine", "retry": {"attempts": 3, "on_status_codes": [500]}});
    let body = json!({"model": "mock?status=500", "messages": question()});
    let response = gateway.send(with_config(&config, &body)).await;
    assert_eq!(response.status, 500, "{}", response.text());
    let attempts = provider.ledger_entries().len() as u64;
    assert_eq!(attempts, 4);
    let request = json!({"path": CHAT_PATH, "headers": {"x-gateway-provider": "@mine"},
        "body": {"model": "mock", "messages": question()}});
    let explained = gateway.send(post("/v1/explain", "@mine", &request)).await.json();
    let remaining: Vec<_> =
        explained["targets"][0]["limits"].as_array().unwrap().iter().map(|limit| &limit["remaining"]).collect();
    assert_eq!(remaining, [&json!(100 - attempts), &json!(99), &json!(100 - attempts)], "{explained}");
}
