//! Cost of a request in its record, in whole nano-dollars, with the version of the price that applied.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body, chat_request, pick_fields, post_request,
    post_with_config,
    scripted_server::{
        SSE_RESPONSE_HEAD, ScriptedServer, encode_chunks, gzip_compress, gzip_response, json_response, read_request,
        sse_response,
    },
    stream_request,
};
use penstock_mock::Server;
use serde_json::{Value, json};

const COST_FIELDS: [&str; 4] = ["cost_nanodollars", "cost_currency", "price_version", "total_units"];

fn token_price(version: &str, input: u64, output: u64) -> Value {
    json!({"version": version, "rates": {"input": [[0, input]], "output": [[0, output]]}})
}

fn apply_prices(gateway: &TestGateway) {
    let prices_json = [
        json!({"provider": "mock", "model": "mock?chunks=5&usage=on", "prices": [token_price("v1", 2_500_000, 10_000_000)]}),
        json!({"provider": "mock", "model": "mock", "prices": [token_price("v2", 1_000, 1_000)]}),
        json!({"provider": "mock", "model": "mock?usage=off", "prices": [token_price("v3", 1_000, 1_000)]}),
    ];
    let models = json!([{"id": "i", "allow_all": true, "models": [
        {"slug": "mock", "enabled": true, "prices": [token_price("own", 2_000, 2_000)]}]}]);
    let models = json!([models[0], {"id": "cheap", "allow_all": true, "models": [],
        "adjustment": {"version": "x", "request": 1_000_000, "factors": {"input": 500_000, "output": 500_000}}}]);
    let providers = json!([{"slug": "mine", "provider": "mock", "models": "i"},
        {"slug": "ours", "provider": "mock", "models": "cheap"}]);
    gateway.apply_snapshot(
        &json!({"epoch": "1", "prices": {"overrides": prices_json}, "models": models, "providers": providers}),
    );
}

fn read_metric(gateway: &TestGateway, name: &str) -> u64 {
    gateway.state.record_sink.metrics.to_json()[name].as_u64().unwrap()
}

#[tokio::test]
async fn cost_follows_tokens_for_both_formats_and_streams() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_prices(&gateway);
    for (path, streamed) in [(CHAT_PATH, false), (CHAT_PATH, true), (MESSAGES_PATH, false), (MESSAGES_PATH, true)] {
        gateway.send(post_request(path, chat_body("mock?chunks=5&usage=on", streamed))).await;
        // 12 input tokens and 5 output tokens.
        assert_eq!(
            pick_fields(&gateway.single_record(), COST_FIELDS),
            json!([80_000, "USD", "v1", 17]),
            "{path} {streamed}"
        );
    }
    assert_eq!((read_metric(&gateway, "cost"), read_metric(&gateway, "unpriced")), (320_000, 0));
}

#[tokio::test]
async fn estimated_tokens_are_priced() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_prices(&gateway);
    gateway.send(stream_request(CHAT_PATH, "mock?usage=off")).await;
    let record = gateway.single_record();
    assert_eq!(record["units_estimated"], true);
    assert_eq!(record["cost_nanodollars"], record["total_units"], "{record:#}");
}

#[tokio::test]
async fn unknown_price_is_null_and_counted() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.send(chat_request("mock")).await;
    let record = gateway.single_record();
    assert_eq!(record.get("cost_nanodollars"), Some(&Value::Null));
    assert_eq!(pick_fields(&record, ["cost_currency", "price_version"]), json!([null, null]));
    assert_eq!((read_metric(&gateway, "cost"), read_metric(&gateway, "unpriced")), (0, 1));
}

#[tokio::test]
async fn request_without_usage_has_no_cost() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_prices(&gateway);
    gateway.send(chat_request("mock?status=500")).await;
    gateway.send(post_request(CHAT_PATH, "nonsense")).await;
    for record in gateway.drain_records() {
        assert_eq!(record.get("cost_nanodollars"), None, "{record:#}");
    }
    assert_eq!(read_metric(&gateway, "unpriced"), 0);
}

#[tokio::test]
async fn price_of_a_saved_model_takes_precedence() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_prices(&gateway);
    for (slug, version) in [("mock", "v2"), ("@mine", "own")] {
        let request = TestRequest::new("POST", CHAT_PATH)
            .header("x-gateway-provider", slug)
            .header("content-type", "application/json");
        gateway.send(request.body(chat_body("mock", false))).await;
        assert_eq!(gateway.single_record()["price_version"], version);
    }
}

#[tokio::test]
async fn price_adjustment_of_a_provider_applies() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_prices(&gateway);
    let request = TestRequest::new("POST", CHAT_PATH)
        .header("x-gateway-provider", "@ours")
        .header("content-type", "application/json");
    gateway.send(request.body(chat_body("mock?chunks=5&usage=on", false))).await;
    assert_eq!(pick_fields(&gateway.single_record(), COST_FIELDS), json!([40_000, "USD", "v1*x", 17]));
}

#[tokio::test]
async fn cache_hit_costs_nothing() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_prices(&gateway);
    let send_request =
        || chat_request("mock").header("x-gateway-config", r#"{"provider":"mock","cache":{"mode":"simple"}}"#);
    gateway.send(send_request()).await;
    assert!(gateway.single_record()["cost_nanodollars"].as_u64().unwrap() > 0);
    gateway.send(send_request()).await;
    let record = gateway.single_record();
    assert_eq!(pick_fields(&record, ["cache_status", "cost_nanodollars"]), json!(["hit", 0]), "{record:#}");
}

/// Sets these prices: 10 dollars per 1,000 web searches, 2.50 dollars per 1,000 file searches, 1 dollar per million
/// tokens.
fn apply_search_prices(gateway: &TestGateway) {
    let rates = json!({"input": [[0, 1_000_000]], "output": [[0, 1_000_000]], "web_search": [[0, 10_000_000_000_u64]],
        "file_search": [[0, 2_500_000_000_u64]]});
    let prices_json = json!([{"provider": "mock", "model": "m", "prices": [{"version": "v", "rates": rates}]}]);
    gateway.apply_snapshot(&json!({"epoch": "1", "prices": {"overrides": prices_json}}));
}

#[tokio::test]
async fn response_cost_includes_tokens_and_searches() {
    let item = |kind: &str, action: &str| json!({"type": kind, "status": "completed", "action": {"type": action}});
    let long = json!({"type": "message", "content": [{"type": "output_text", "text": "x".repeat(400_000)}]});
    let items = json!([
        item("web_search_call", "search"),
        item("web_search_call", "open_page"),
        item("web_search_call", "search"),
        item("file_search_call", "")
    ]);
    let mut large = items.clone();
    large.as_array_mut().unwrap().push(long);
    let response = |output: &Value| {
        json!({"id": "r", "output": output,
        "usage": {"input_tokens": 30, "output_tokens": 12, "total_tokens": 42}})
    };
    let completed = json!({"type": "response.completed", "response": response(&items)});
    let event = format!("event: response.completed\ndata: {completed}\n\n");
    // Two web searches at 10 million nano-dollars each, one file search at 2.5 million, and 42 tokens at 1,000 each.
    let expected = json!([22_542_000, "USD", "v", 42]);
    for reply in [
        json_response("200 OK", "", &response(&items).to_string()),
        json_response("200 OK", "", &response(&large).to_string()),
        sse_response(event.as_bytes(), 50),
    ] {
        let provider = ScriptedServer::start_responding(reply).await;
        let gateway = TestGateway::for_url(&provider.url());
        apply_search_prices(&gateway);
        gateway.send(post_request("/v1/responses", r#"{"model":"m","input":"x"}"#)).await;
        let record = gateway.single_record();
        assert_eq!(pick_fields(&record, COST_FIELDS), expected, "{record:#}");
        assert_eq!(pick_fields(&record["usage"], ["web_searches", "file_searches"]), json!([2, 1]));
    }
}

/// The tier that served the request decides its price, so the record names it; the default tier is left out.
#[tokio::test]
async fn record_names_the_service_tier_and_its_times() {
    for (reported, expected) in [("default", Value::Null), ("flex", json!("flex")), ("priority", json!("priority"))] {
        let response = json!({"id": "c", "object": "chat.completion", "model": "m", "service_tier": reported,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}});
        let provider = ScriptedServer::start_responding(json_response("200 OK", "", &response.to_string())).await;
        let gateway = TestGateway::for_url(&provider.url());
        gateway.send(post_request(CHAT_PATH, chat_body("m", false))).await;
        let record = gateway.single_record();
        assert_eq!(record["usage"]["service_tier"], expected, "{record:#}");
        assert!(record["authentication_time"].is_number(), "{record:#}");
    }
}

/// `OpenAI` bills one search per request to its search models, and no response reports it.
#[tokio::test]
async fn chat_with_a_search_model_costs_one_search() {
    let response = json!({"id": "c", "object": "chat.completion", "model": "gpt-4o-search-preview-2025-03-11",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "so"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}});
    let chunk = json!({"id": "c", "object": "chat.completion.chunk", "model": "gpt-4o-search-preview-2025-03-11",
        "choices": [{"index": 0, "delta": {"content": "so"}, "finish_reason": "stop"}], "usage": response["usage"]});
    let stream = format!("data: {chunk}\n\ndata: [DONE]\n\n");
    let (searched, plain) = (json!([25_042_000, "v", 1]), json!([42_000, "v", null]));
    for (path, provider, model, streamed, expected) in [
        (CHAT_PATH, "openai", "gpt-4o-search-preview", false, &searched),
        (CHAT_PATH, "openai", "gpt-4o-mini-search-preview-2025-03-11", true, &searched),
        (MESSAGES_PATH, "openai", "gpt-5-search-api", false, &searched),
        (MESSAGES_PATH, "openai", "gpt-5-search-api", true, &searched),
        (CHAT_PATH, "openai", "gpt-4o", false, &plain),
        // This provider reports its searches in the response.
        (CHAT_PATH, "openrouter", "openai/gpt-4o-search-preview", false, &plain),
    ] {
        let bytes = if streamed {
            sse_response(stream.as_bytes(), 50)
        } else {
            json_response("200 OK", "", &response.to_string())
        };
        let scripted = ScriptedServer::start_responding(bytes).await;
        let gateway =
            TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
        // 25 dollars per 1,000 searches, 1 dollar per million tokens.
        let price = json!({"version": "v", "rates": {"input": [[0, 1_000_000]], "output": [[0, 1_000_000]],
            "web_search": [[0, 25_000_000_000_u64]]}});
        let prices_json = json!([{"provider": provider, "model": model, "prices": [price]}]);
        let row = json!({"slug": "o", "provider": provider, "api_key": "k", "custom_host": scripted.url()});
        gateway.apply_snapshot(&json!({"epoch": "1", "prices": {"overrides": prices_json}, "providers": [row]}));
        let request = TestRequest::new("POST", path).header("content-type", "application/json");
        let reply = gateway.send(request.header("x-gateway-provider", "@o").body(chat_body(model, streamed))).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let record = gateway.single_record();
        let actual = json!([record["cost_nanodollars"], record["price_version"], record["usage"]["web_searches"]]);
        assert_eq!(&actual, expected, "{path} {model} {streamed}: {record:#}");
    }
}

/// A hedged request pays only for the target that responds. A stream that a second target continues pays for both
/// targets.
#[tokio::test]
async fn hedged_request_pays_one_search_and_continued_stream_two() {
    let chunk = |text: &str, end: Value| {
        let body = json!([{"index": 0, "delta": {"content": text}, "finish_reason": end}]);
        format!("data: {}\n\n", json!({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": body}))
    };
    let whole_answer = chunk("so", "stop".into()) + "data: [DONE]\n\n";
    let silent = ScriptedServer::start(|mut stream, _| async move {
        read_request(&mut stream).await;
        std::future::pending::<()>().await;
    });
    let (silent, well) =
        (silent.await, ScriptedServer::start_responding(sse_response(whole_answer.as_bytes(), 50)).await);
    let half = encode_chunks(chunk("so, ", Value::Null).as_bytes(), 50);
    let cut = ScriptedServer::start_closing_after_response([SSE_RESPONSE_HEAD.as_bytes(), &half].concat()).await;
    let at = |host: &ScriptedServer| {
        json!({"provider": "openai", "api_key": "k", "custom_host": host.url(),
            "recovery": {"mode": "continue", "prefill": true},
            "override_params": {"model": "gpt-4o-search-preview"}})
    };
    let raced = json!({"mode": "fallback", "hedge": {"after_ms": 20, "max_ratio": 1}});
    for (strategy, first, searches) in [(raced, &silent, 1), (json!({"mode": "fallback"}), &cut, 2)] {
        let gateway =
            TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
        let config = json!({"strategy": strategy, "targets": [at(first), at(&well)]});
        let response = gateway.send(post_with_config(&config, CHAT_PATH, chat_body("m", true))).await;
        assert!(response.text().ends_with("data: [DONE]\n\n"), "{}", response.text());
        let record = gateway.single_record();
        assert_eq!(record["usage"]["web_searches"], searches, "{record:#}");
    }
}

#[tokio::test]
async fn images_are_priced_by_quality_and_size() {
    const IMAGES_PATH: &str = "/v1/images/generations";
    let two_images = r#"{"created":1,"data":[{"url":"u"},{"url":"u"}]}"#;
    let counted = r#"{"data":[{"url":"u"}],"usage":{"input_tokens":10,"output_tokens":0,"total_tokens":10}}"#;
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n\
        --b\r\ncontent-disposition: form-data; name=\"size\"\r\n\r\n1024x1792\r\n--b--\r\n";
    let edit = TestRequest::new("POST", "/v1/images/edits")
        .header("content-type", "multipart/form-data; boundary=b")
        .header("x-gateway-provider", "mock")
        .body(form);
    let build_request = |more: &str| post_request(IMAGES_PATH, format!(r#"{{"model":"m","prompt":"p"{more}}}"#));
    let overridden = json!({"provider": "mock", "override_params": {"quality": "hd"}});
    for (request, status, response, expected) in [
        // 4 cents for each image in the response, however many were requested.
        (build_request(r#","n":3"#), "200 OK", two_images, json!([80_000_000, "USD", "v", null])),
        (
            build_request(r#","quality":"hd","size":"1024x1792""#),
            "200 OK",
            two_images,
            json!([240_000_000, "USD", "v", null]),
        ),
        // Adds 10 tokens at 1,000 nano-dollars each.
        (build_request(""), "200 OK", counted, json!([40_010_000, "USD", "v", 10])),
        (edit, "200 OK", two_images, json!([160_000_000, "USD", "v", null])),
        (
            build_request("").header("x-gateway-config", &overridden.to_string()),
            "200 OK",
            two_images,
            json!([160_000_000, "USD", "v", null]),
        ),
        // A compressed response costs the same.
        (build_request(r#","n":3"#), "200 OK", "gzip", json!([80_000_000, "USD", "v", null])),
        // No cost: an image size without a price, and a failed request.
        (build_request(r#","size":"1x1""#), "200 OK", counted, json!([null, null, null, 10])),
        (build_request(""), "400 Bad Request", r#"{"error":{"message":"no"}}"#, json!([null, null, null, null])),
    ] {
        let response = if response == "gzip" {
            gzip_response("application/json", &gzip_compress(two_images))
        } else {
            json_response(status, "", response)
        };
        let provider = ScriptedServer::start_responding(response).await;
        let gateway = TestGateway::for_url(&provider.url());
        let images = json!({"standard": {"1024x1024": 40_000_000_000_u64, "1024x1792": 80_000_000_000_u64},
            "hd": {"1024x1024": 80_000_000_000_u64, "1024x1792": 120_000_000_000_u64}});
        let price = json!({"version": "v", "images": images, "rates": {"input": [[0, 1_000_000]]}});
        let prices_json = json!([{"provider": "mock", "model": "m", "prices": [price]}]);
        gateway.apply_snapshot(&json!({"epoch": "1", "prices": {"overrides": prices_json}}));
        gateway.send(request).await;
        let record = gateway.single_record();
        assert_eq!(pick_fields(&record, COST_FIELDS), expected, "{record:#}");
    }
}

#[tokio::test]
async fn provisioned_throughput_costs_nothing_if_configured() {
    let responded = |traffic: &str| {
        json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "so"}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 2, "candidatesTokenCount": 3, "totalTokenCount": 5, "trafficType": traffic},
            "modelVersion": "gemini-2.5-pro"})
    };
    let prices_json =
        json!([{"provider": "vertex-ai", "model": "gemini-2.5-pro", "prices": [token_price("v", 1_000, 1_000)]}]);
    for (traffic, skips, cost) in [
        ("PROVISIONED_THROUGHPUT", json!("true"), json!([0, null])),
        ("ON_DEMAND", json!("true"), json!([5, "v"])),
        ("PROVISIONED_THROUGHPUT", json!("false"), json!([5, "v"])),
        ("PROVISIONED_THROUGHPUT", Value::Null, json!([5, "v"])),
    ] {
        let response_body = responded(traffic).to_string();
        for streamed in [false, true] {
            let event = format!("data: {response_body}\r\n\r\n");
            let bytes =
                if streamed { sse_response(event.as_bytes(), 50) } else { json_response("200 OK", "", &response_body) };
            let provider = ScriptedServer::start_responding(bytes).await;
            let gateway =
                TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
            let mut options = json!({"vertex_project_id": "p", "vertex_region": "r"});
            if !skips.is_null() {
                options["vertex_skip_ptu_cost_attribution"] = skips.clone();
            }
            let row = json!({"slug": "v", "provider": "vertex-ai", "api_key": "t", "custom_host": provider.url(),
                "options": options});
            gateway.apply_snapshot(&json!({"epoch": "1", "prices": {"overrides": prices_json}, "providers": [row]}));
            let request = TestRequest::new("POST", CHAT_PATH).header("content-type", "application/json");
            let request = request.header("x-gateway-provider", "@v").body(chat_body("gemini-2.5-pro", streamed));
            let response = gateway.send(request).await;
            assert_eq!(response.status, 200, "{}", response.text());
            let actual = pick_fields(&gateway.single_record(), ["cost_nanodollars", "price_version"]);
            assert_eq!(actual, cost, "{traffic} {skips} {streamed}");
        }
    }
}
