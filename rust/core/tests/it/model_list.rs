//! Lists of models. The list of every provider has the same shape and contains all pages.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::harness::{
    TestRequest,
    golden_provider::{GoldenProvider, golden_case},
    scripted_server::{ScriptedServer, json_response, read_request},
};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

/// Starts a provider that answers each request with the next page. Also returns the request lines that it receives.
async fn start_paged_provider(pages: Vec<(u16, Value)>) -> (ScriptedServer, Arc<Mutex<Vec<String>>>) {
    let (pages, lines) = (Arc::new(pages), Arc::new(Mutex::new(Vec::<String>::new())));
    let noted = Arc::clone(&lines);
    let provider = ScriptedServer::start(move |mut stream, _| {
        let (pages, noted) = (Arc::clone(&pages), Arc::clone(&noted));
        async move {
            while let Some(bytes) = read_request(&mut stream).await {
                let line = bytes.split(|byte| *byte == b'\r').next().unwrap();
                let count = {
                    let mut noted = noted.lock().unwrap();
                    noted.push(String::from_utf8(line.to_vec()).unwrap());
                    noted.len()
                };
                let (status, page) = pages.get(count - 1).or(pages.last()).unwrap();
                let body = page.to_string();
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    (provider, lines)
}

fn list_models_request(provider: &str, host: &str) -> TestRequest {
    TestRequest::new("GET", "/v1/models")
        .header("x-gateway-provider", provider)
        .header("x-gateway-custom-host", host)
        .header("x-gateway-vertex-project-id", "p")
        .header("x-gateway-vertex-region", "global")
        .header("authorization", "Bearer sk-1")
}

#[tokio::test]
async fn model_list_has_the_same_shape_for_all_providers() {
    let list = json!({"object": "list", "has_more": false, "data": [
        {"id": "m-1", "object": "model", "created": 5, "owned_by": "o", "context_length": 9}, {"id": "m-2"}]});
    let golden_provider = GoldenProvider::start(200, "application/json", list.to_string().into_bytes(), 20).await;
    for provider in ["openai", "mistral-ai", "ollama", "github", "mock"] {
        let response = GoldenProvider::gateway_trusting_loopback()
            .send(list_models_request(provider, &golden_provider.server.url()))
            .await;
        let data = json!([{"id": "m-1", "object": "model", "created": 5, "owned_by": "o", "type": "model"},
            {"id": "m-2", "object": "model", "created": 0, "owned_by": provider, "type": "model"}]);
        assert_eq!(response.json(), json!({"object": "list", "data": data, "provider": provider}));
    }
    // A raw proxy path returns the provider's list unchanged.
    let raw = TestRequest::new("GET", "/v1/proxy/models");
    let host = golden_provider.server.url();
    let raw = raw.header("x-gateway-provider", "openai").header("x-gateway-custom-host", &host);
    assert_eq!(GoldenProvider::gateway_trusting_loopback().send(raw).await.json(), list);
}

#[tokio::test]
async fn fetches_all_pages_of_a_model_list() {
    let page = |id: &str, next: &str| {
        (200, json!({"publisherModels": [{"name": format!("publishers/google/models/{id}")}], "nextPageToken": next}))
    };
    let (provider, lines) = start_paged_provider(vec![page("a", "t/1&x="), page("b", "t2"), page("c", "")]).await;
    let response =
        GoldenProvider::gateway_trusting_loopback().send(list_models_request("vertex-ai", &provider.url())).await;
    let ids: Vec<Value> = response.json()["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!((response.status, json!(ids)), (200, json!(["a", "b", "c"])), "{}", response.text());
    let lines = lines.lock().unwrap().clone();
    let path = "GET /v1beta1/publishers/google/models?pageSize=200";
    assert_eq!(
        lines,
        [
            format!("{path} HTTP/1.1"),
            format!("{path}&pageToken=t%2F1%26x%3D HTTP/1.1"),
            format!("{path}&pageToken=t2 HTTP/1.1")
        ]
    );
}

#[tokio::test]
async fn later_page_error_is_returned_and_endless_list_fails() {
    let page = (200, json!({"models": [{"name": "models/a"}], "nextPageToken": "t"}));
    let failed = (429, json!({"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}));
    let (provider, _) = start_paged_provider(vec![page.clone(), failed]).await;
    let response =
        GoldenProvider::gateway_trusting_loopback().send(list_models_request("google", &provider.url())).await;
    assert_eq!((response.status, &response.json()["error"]["message"]), (429, &json!("google error: slow down")));
    let (provider, lines) = start_paged_provider(vec![page]).await;
    let response =
        GoldenProvider::gateway_trusting_loopback().send(list_models_request("google", &provider.url())).await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (502, "upstream_disconnected"),
        "{}",
        response.text()
    );
    assert_eq!(lines.lock().unwrap().len(), 50);
}

#[tokio::test]
async fn lists_chat_models_unless_the_client_names_a_task() {
    let list = json!({"error": null, "output": [{"modelId": "a/b", "task": "chat"}]});
    let (provider, lines) = start_paged_provider(vec![(200, list)]).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let response = gateway.send(list_models_request("bytez", &provider.url())).await.json();
    assert_eq!((&response["object"], &response["data"][0]["id"]), (&json!("list"), &json!("a/b")), "{response}");
    let other = TestRequest::new("GET", "/v1/models?task=summarization").header("x-gateway-provider", "bytez");
    gateway.send(other.header("x-gateway-custom-host", &provider.url())).await;
    let lines = lines.lock().unwrap().clone();
    let ends: Vec<_> = lines.iter().filter_map(|line| line.split_once("/models?").map(|(_, end)| end)).collect();
    assert_eq!(ends, ["task=chat HTTP/1.1", "task=summarization HTTP/1.1"], "{lines:?}");
}

#[tokio::test]
async fn oversized_model_list_passes_unchanged_or_fails() {
    let list = |name: &str, count: usize| {
        let model = |at: usize| json!({name: format!("models/{at}"), "description": "d".repeat(1000)});
        json!({if name == "id" { "data" } else { "models" }: (0..count).map(model).collect::<Vec<_>>()})
    };
    for (count, is_read) in [(200, true), (4200, false)] {
        let theirs = list("id", count);
        let golden_provider =
            GoldenProvider::start(200, "application/json", theirs.to_string().into_bytes(), 1 << 20).await;
        let response = GoldenProvider::gateway_trusting_loopback()
            .send(list_models_request("openai", &golden_provider.server.url()))
            .await;
        assert_eq!(
            (response.status, response.json()["object"] == "list", response.json() == theirs),
            (200, is_read, !is_read)
        );
        let (provider, _) = start_paged_provider(vec![(200, list("name", count))]).await;
        let response =
            GoldenProvider::gateway_trusting_loopback().send(list_models_request("google", &provider.url())).await;
        if is_read {
            assert_eq!((response.status, response.json()["data"].as_array().map(Vec::len)), (200, Some(count)));
        } else {
            assert_eq!(
                (response.status, response.error_code().as_str()),
                (502, "upstream_disconnected"),
                "{}",
                response.text()
            );
        }
    }
}

#[tokio::test]
async fn all_pages_share_one_request_timeout() {
    let requests = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&requests);
    let provider = ScriptedServer::start(move |mut stream, _| {
        let counted = Arc::clone(&counted);
        async move {
            while read_request(&mut stream).await.is_some() {
                *counted.lock().unwrap() += 1;
                tokio::time::sleep(Duration::from_millis(30)).await;
                let page = r#"{"models":[{"name":"models/a"}],"nextPageToken":"t"}"#;
                stream.write_all(&json_response("200 OK", "", page)).await.unwrap();
            }
        }
    })
    .await;
    let response = GoldenProvider::gateway_trusting_loopback()
        .send(list_models_request("google", &provider.url()).header("x-gateway-request-timeout", "200"))
        .await;
    assert_eq!(response.status, 408, "{}", response.text());
    let pages = *requests.lock().unwrap();
    assert!((1..50).contains(&pages), "{pages} pages");
}

#[tokio::test]
async fn anthropic_model_list_follows_the_client_format() {
    let case = golden_case("anthropic/models/complete");
    let read = |file: &str| fs::read(case.path(file)).unwrap();
    for (version, file) in [(None, "client_response.json"), (Some("2023-06-01"), "response.json")] {
        let golden_provider = GoldenProvider::start(200, "application/json", read("response.json"), 50).await;
        let mut request = TestRequest::new("GET", "/v1/models")
            .header("x-gateway-provider", "anthropic")
            .header("x-gateway-custom-host", &golden_provider.server.url())
            .header("x-api-key", "sk-1");
        if let Some(version) = version {
            request = request.header("anthropic-version", version);
        }
        let reply = GoldenProvider::gateway_trusting_loopback().send(request).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.json(), serde_json::from_slice::<Value>(&read(file)).unwrap());
    }
}

#[tokio::test]
async fn anthropic_client_reads_every_list_in_its_own_format() {
    let anthropic_model =
        |id: &str, created_at: &str| json!({"type": "model", "id": id, "display_name": id, "created_at": created_at});
    for (provider, theirs, created_at) in [
        (
            "openai",
            json!({"object": "list", "data": [{"id": "a", "created": 5}, {"id": "b", "created": 5}]}),
            "1970-01-01T00:00:05Z",
        ),
        ("google", json!({"models": [{"name": "models/a"}, {"name": "models/b"}]}), "1970-01-01T00:00:00Z"),
    ] {
        let (provider_url, _) = start_paged_provider(vec![(200, theirs)]).await;
        let response = GoldenProvider::gateway_trusting_loopback()
            .send(list_models_request(provider, &provider_url.url()).header("anthropic-version", "2023-06-01"))
            .await;
        let data = json!([anthropic_model("a", created_at), anthropic_model("b", created_at)]);
        let expected = json!({"data": data, "has_more": false, "first_id": "a", "last_id": "b"});
        assert_eq!((response.status, response.json()), (200, expected), "{provider}");
    }
}

#[tokio::test]
async fn clients_of_google_and_cohere_read_every_list_in_their_own_format() {
    for (provider, theirs) in [
        ("openai", json!({"object": "list", "data": [{"id": "a", "created": 5}, {"id": "b", "created": 5}]})),
        ("google", json!({"models": [{"name": "models/a"}, {"name": "models/b"}]})),
        ("cohere", json!({"models": [{"name": "a"}, {"name": "b"}]})),
    ] {
        let (provider_url, _) = start_paged_provider(vec![(200, theirs)]).await;
        let google =
            json!({"models": [{"name": "models/a", "displayName": "a"}, {"name": "models/b", "displayName": "b"}]});
        let cohere = json!({"models": [{"name": "a"}, {"name": "b"}]});
        for (header, value, expected) in [
            ("x-goog-api-client", "google-genai-sdk/3.3.0", &google),
            ("x-goog-api-key", "sk-1", &google),
            ("user-agent", "cohere/7.3.1", &cohere),
        ] {
            let response = GoldenProvider::gateway_trusting_loopback()
                .send(list_models_request(provider, &provider_url.url()).header(header, value))
                .await;
            assert_eq!((response.status, response.json()), (200, expected.clone()), "{provider} {header}");
        }
    }
}
