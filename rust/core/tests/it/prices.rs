//! What a request cost stands in its record, in whole nano-dollars, with the version of the price by which it was summed up.

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, by_with, chat, pick, post,
    scripted::{EVENTS_HEAD, Scripted, chunks, events, gzipped, packed, request, whole},
    stream, words,
};
use penstock_mock::Server;
use serde_json::{Value, json};

const TOLD: [&str; 4] = ["cost_nanodollars", "cost_currency", "price_version", "total_units"];

fn rates(version: &str, input: u64, output: u64) -> Value {
    json!({"version": version, "rates": {"input": [[0, input]], "output": [[0, output]]}})
}

fn priced(rig: &Rig) {
    let said = [
        json!({"provider": "mock", "model": "mock?chunks=5&usage=on", "prices": [rates("v1", 2_500_000, 10_000_000)]}),
        json!({"provider": "mock", "model": "mock", "prices": [rates("v2", 1_000, 1_000)]}),
        json!({"provider": "mock", "model": "mock?usage=off", "prices": [rates("v3", 1_000, 1_000)]}),
    ];
    let models = json!([{"id": "i", "allow_all": true, "models": [
        {"slug": "mock", "enabled": true, "prices": [rates("own", 2_000, 2_000)]}]}]);
    let models = json!([models[0], {"id": "cheap", "allow_all": true, "models": [],
        "adjustment": {"version": "x", "request": 1_000_000, "factors": {"input": 500_000, "output": 500_000}}}]);
    let providers = json!([{"slug": "mine", "provider": "mock", "models": "i"},
        {"slug": "ours", "provider": "mock", "models": "cheap"}]);
    rig.apply(&json!({"epoch": "1", "prices": {"said": said}, "models": models, "providers": providers}));
}

fn figure(rig: &Rig, name: &str) -> u64 {
    rig.gateway.record_sink.metrics.to_json()[name].as_u64().unwrap()
}

#[tokio::test]
async fn whole_and_streamed_answers_of_both_dialects_cost_what_their_tokens_do() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    priced(&rig);
    for (path, streamed) in [(CHAT, false), (CHAT, true), (MESSAGES, false), (MESSAGES, true)] {
        rig.send(post(path, words("mock?chunks=5&usage=on", streamed))).await;
        // Twelve tokens asked and five answered.
        assert_eq!(pick(&rig.record(), TOLD), json!([80_000, "USD", "v1", 17]), "{path} {streamed}");
    }
    assert_eq!((figure(&rig, "cost"), figure(&rig, "unpriced")), (320_000, 0));
}

#[tokio::test]
async fn tokens_that_were_counted_here_are_paid_too() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    priced(&rig);
    rig.send(stream(CHAT, "mock?usage=off")).await;
    let record = rig.record();
    assert_eq!(record["units_estimated"], true);
    assert_eq!(record["cost_nanodollars"], record["total_units"], "{record:#}");
}

#[tokio::test]
async fn a_price_that_nobody_knows_is_null_and_counted() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.send(chat("mock")).await;
    let record = rig.record();
    assert_eq!(record.get("cost_nanodollars"), Some(&Value::Null));
    assert_eq!(pick(&record, ["cost_currency", "price_version"]), json!([null, null]));
    assert_eq!((figure(&rig, "cost"), figure(&rig, "unpriced")), (0, 1));
}

#[tokio::test]
async fn what_used_nothing_has_no_cost() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    priced(&rig);
    rig.send(chat("mock?status=500")).await;
    rig.send(post(CHAT, "nonsense")).await;
    for record in rig.records() {
        assert_eq!(record.get("cost_nanodollars"), None, "{record:#}");
    }
    assert_eq!(figure(&rig, "unpriced"), 0);
}

#[tokio::test]
async fn the_price_that_was_saved_with_a_model_goes_before_all_others() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    priced(&rig);
    for (slug, version) in [("mock", "v2"), ("@mine", "own")] {
        let ask = Ask::new("POST", CHAT).header("x-gateway-provider", slug).header("content-type", "application/json");
        rig.send(ask.body(words("mock", false))).await;
        assert_eq!(rig.record()["price_version"], version);
    }
}

#[tokio::test]
async fn a_provider_whose_contract_has_other_prices_costs_by_those() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    priced(&rig);
    let ask = Ask::new("POST", CHAT).header("x-gateway-provider", "@ours").header("content-type", "application/json");
    rig.send(ask.body(words("mock?chunks=5&usage=on", false))).await;
    assert_eq!(pick(&rig.record(), TOLD), json!([40_000, "USD", "v1*x", 17]));
}

#[tokio::test]
async fn an_answer_that_was_kept_was_paid_for_when_it_was_made() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    priced(&rig);
    let ask = || chat("mock").header("x-gateway-config", r#"{"provider":"mock","cache":{"mode":"simple"}}"#);
    rig.send(ask()).await;
    assert!(rig.record()["cost_nanodollars"].as_u64().unwrap() > 0);
    rig.send(ask()).await;
    let record = rig.record();
    assert_eq!(pick(&record, ["cache_status", "cost_nanodollars"]), json!(["hit", 0]), "{record:#}");
}

/// Ten dollars for a thousand searches of the web, two and a half for a thousand of files, one for a million tokens.
fn searched(rig: &Rig) {
    let rates = json!({"input": [[0, 1_000_000]], "output": [[0, 1_000_000]], "web_search": [[0, 10_000_000_000_u64]],
        "file_search": [[0, 2_500_000_000_u64]]});
    let said = json!([{"provider": "mock", "model": "m", "prices": [{"version": "v", "rates": rates}]}]);
    rig.apply(&json!({"epoch": "1", "prices": {"said": said}}));
}

#[tokio::test]
async fn a_response_costs_its_tokens_and_what_its_provider_looked_up() {
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
    // Two searches of ten millions each, one of two and a half, and 42 tokens of a thousand.
    let expected = json!([22_542_000, "USD", "v", 42]);
    for answer in [
        whole("200 OK", "", &response(&items).to_string()),
        whole("200 OK", "", &response(&large).to_string()),
        events(event.as_bytes(), 50),
    ] {
        let provider = Scripted::answering(answer).await;
        let rig = Rig::at(&provider.url());
        searched(&rig);
        rig.send(post("/v1/responses", r#"{"model":"m","input":"x"}"#)).await;
        let record = rig.record();
        assert_eq!(pick(&record, TOLD), expected, "{record:#}");
        assert_eq!(pick(&record["usage"], ["web_searches", "file_searches"]), json!([2, 1]));
    }
}

/// Who asks the models of `OpenAI` that search before they answer pays for one search, which no answer names.
#[tokio::test]
async fn a_chat_of_a_model_that_always_searches_costs_one_search() {
    let answer = json!({"id": "c", "object": "chat.completion", "model": "gpt-4o-search-preview-2025-03-11",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "so"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}});
    let chunk = json!({"id": "c", "object": "chat.completion.chunk", "model": "gpt-4o-search-preview-2025-03-11",
        "choices": [{"index": 0, "delta": {"content": "so"}, "finish_reason": "stop"}], "usage": answer["usage"]});
    let stream = format!("data: {chunk}\n\ndata: [DONE]\n\n");
    let (searched, plain) = (json!([25_042_000, "v", 1]), json!([42_000, "v", null]));
    for (path, provider, model, streamed, expected) in [
        (CHAT, "openai", "gpt-4o-search-preview", false, &searched),
        (CHAT, "openai", "gpt-4o-mini-search-preview-2025-03-11", true, &searched),
        (MESSAGES, "openai", "gpt-5-search-api", false, &searched),
        (MESSAGES, "openai", "gpt-5-search-api", true, &searched),
        (CHAT, "openai", "gpt-4o", false, &plain),
        // It says itself what it looked up.
        (CHAT, "openrouter", "openai/gpt-4o-search-preview", false, &plain),
    ] {
        let bytes = if streamed { events(stream.as_bytes(), 50) } else { whole("200 OK", "", &answer.to_string()) };
        let scripted = Scripted::answering(bytes).await;
        let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
        // Twenty-five dollars for a thousand searches, one for a million tokens.
        let price = json!({"version": "v", "rates": {"input": [[0, 1_000_000]], "output": [[0, 1_000_000]],
            "web_search": [[0, 25_000_000_000_u64]]}});
        let said = json!([{"provider": provider, "model": model, "prices": [price]}]);
        let row = json!({"slug": "o", "provider": provider, "api_key": "k", "custom_host": scripted.url()});
        rig.apply(&json!({"epoch": "1", "prices": {"said": said}, "providers": [row]}));
        let asked = Ask::new("POST", path).header("content-type", "application/json");
        let told = rig.send(asked.header("x-gateway-provider", "@o").body(words(model, streamed))).await;
        assert_eq!(told.status, 200, "{}", told.text());
        let record = rig.record();
        let found = json!([record["cost_nanodollars"], record["price_version"], record["usage"]["web_searches"]]);
        assert_eq!(&found, expected, "{path} {model} {streamed}: {record:#}");
    }
}

/// Of two that are raced who answers is paid for, and of two that say one answer both.
#[tokio::test]
async fn who_searches_is_paid_for_once_for_each_answer_or_beginning_that_is_told() {
    let chunk = |text: &str, end: Value| {
        let said = json!([{"index": 0, "delta": {"content": text}, "finish_reason": end}]);
        format!("data: {}\n\n", json!({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": said}))
    };
    let whole_answer = chunk("so", "stop".into()) + "data: [DONE]\n\n";
    let silent = Scripted::start(|mut stream, _| async move {
        request(&mut stream).await;
        std::future::pending::<()>().await;
    });
    let (silent, well) = (silent.await, Scripted::answering(events(whole_answer.as_bytes(), 50)).await);
    let half = chunks(chunk("so, ", Value::Null).as_bytes(), 50);
    let cut = Scripted::closing([EVENTS_HEAD.as_bytes(), &half].concat()).await;
    let at = |host: &Scripted| {
        json!({"provider": "openai", "api_key": "k", "custom_host": host.url(),
            "recovery": {"mode": "continue", "prefill": true},
            "override_params": {"model": "gpt-4o-search-preview"}})
    };
    let raced = json!({"mode": "fallback", "hedge": {"after_ms": 20, "max_ratio": 1}});
    for (strategy, first, searches) in [(raced, &silent, 1), (json!({"mode": "fallback"}), &cut, 2)] {
        let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
        let config = json!({"strategy": strategy, "targets": [at(first), at(&well)]});
        let told = rig.send(by_with(&config, CHAT, words("m", true))).await;
        assert!(told.text().ends_with("data: [DONE]\n\n"), "{}", told.text());
        let record = rig.record();
        assert_eq!(record["usage"]["web_searches"], searches, "{record:#}");
    }
}

#[tokio::test]
async fn images_cost_what_is_said_of_their_quality_and_size_however_many_tokens_they_were() {
    const IMAGES: &str = "/v1/images/generations";
    let drawn = r#"{"created":1,"data":[{"url":"u"},{"url":"u"}]}"#;
    let counted = r#"{"data":[{"url":"u"}],"usage":{"input_tokens":10,"output_tokens":0,"total_tokens":10}}"#;
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n\
        --b\r\ncontent-disposition: form-data; name=\"size\"\r\n\r\n1024x1792\r\n--b--\r\n";
    let edit = Ask::new("POST", "/v1/images/edits")
        .header("content-type", "multipart/form-data; boundary=b")
        .header("x-gateway-provider", "mock")
        .body(form);
    let asked = |more: &str| post(IMAGES, format!(r#"{{"model":"m","prompt":"p"{more}}}"#));
    let overridden = json!({"provider": "mock", "override_params": {"quality": "hd"}});
    for (ask, status, answer, expected) in [
        // Four cents each of those that came, however many were asked for.
        (asked(r#","n":3"#), "200 OK", drawn, json!([80_000_000, "USD", "v", null])),
        (asked(r#","quality":"hd","size":"1024x1792""#), "200 OK", drawn, json!([240_000_000, "USD", "v", null])),
        // And ten tokens of a thousand each.
        (asked(""), "200 OK", counted, json!([40_010_000, "USD", "v", 10])),
        (edit, "200 OK", drawn, json!([160_000_000, "USD", "v", null])),
        (
            asked("").header("x-gateway-config", &overridden.to_string()),
            "200 OK",
            drawn,
            json!([160_000_000, "USD", "v", null]),
        ),
        // Compressed it is the same.
        (asked(r#","n":3"#), "200 OK", "gzip", json!([80_000_000, "USD", "v", null])),
        // Nothing is said of those.
        (asked(r#","size":"1x1""#), "200 OK", counted, json!([null, null, null, 10])),
        (asked(""), "400 Bad Request", r#"{"error":{"message":"no"}}"#, json!([null, null, null, null])),
    ] {
        let answer =
            if answer == "gzip" { packed("application/json", &gzipped(drawn)) } else { whole(status, "", answer) };
        let provider = Scripted::answering(answer).await;
        let rig = Rig::at(&provider.url());
        let images = json!({"standard": {"1024x1024": 40_000_000_000_u64, "1024x1792": 80_000_000_000_u64},
            "hd": {"1024x1024": 80_000_000_000_u64, "1024x1792": 120_000_000_000_u64}});
        let price = json!({"version": "v", "images": images, "rates": {"input": [[0, 1_000_000]]}});
        let said = json!([{"provider": "mock", "model": "m", "prices": [price]}]);
        rig.apply(&json!({"epoch": "1", "prices": {"said": said}}));
        rig.send(ask).await;
        let record = rig.record();
        assert_eq!(pick(&record, TOLD), expected, "{record:#}");
    }
}

#[tokio::test]
async fn what_is_answered_out_of_throughput_that_was_paid_for_costs_nothing_where_that_is_said() {
    let answered = |traffic: &str| {
        json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "so"}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 2, "candidatesTokenCount": 3, "totalTokenCount": 5, "trafficType": traffic},
            "modelVersion": "gemini-2.5-pro"})
    };
    let said = json!([{"provider": "vertex-ai", "model": "gemini-2.5-pro", "prices": [rates("v", 1_000, 1_000)]}]);
    for (traffic, skips, cost) in [
        ("PROVISIONED_THROUGHPUT", json!("true"), json!([0, null])),
        ("ON_DEMAND", json!("true"), json!([5, "v"])),
        ("PROVISIONED_THROUGHPUT", json!("false"), json!([5, "v"])),
        ("PROVISIONED_THROUGHPUT", Value::Null, json!([5, "v"])),
    ] {
        let answer = answered(traffic).to_string();
        for streamed in [false, true] {
            let event = format!("data: {answer}\r\n\r\n");
            let bytes = if streamed { events(event.as_bytes(), 50) } else { whole("200 OK", "", &answer) };
            let provider = Scripted::answering(bytes).await;
            let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
            let mut options = json!({"vertex_project_id": "p", "vertex_region": "r"});
            if !skips.is_null() {
                options["vertex_skip_ptu_cost_attribution"] = skips.clone();
            }
            let row = json!({"slug": "v", "provider": "vertex-ai", "api_key": "t", "custom_host": provider.url(),
                "options": options});
            rig.apply(&json!({"epoch": "1", "prices": {"said": said}, "providers": [row]}));
            let asked = Ask::new("POST", CHAT).header("content-type", "application/json");
            let asked = asked.header("x-gateway-provider", "@v").body(words("gemini-2.5-pro", streamed));
            let told = rig.send(asked).await;
            assert_eq!(told.status, 200, "{}", told.text());
            let found = pick(&rig.record(), ["cost_nanodollars", "price_version"]);
            assert_eq!(found, cost, "{traffic} {skips} {streamed}");
        }
    }
}
